"""Build one segment of a search index, on any worker (DESIGN, "Search indexes")."""

from __future__ import annotations

from dataclasses import dataclass

from driftline.storage.entities import Entity
from driftline.storage.lines.segments import Segment, SegmentSpec, build_segment
from driftline.tasks.embedding.context import TaskContext


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """A segment to build of the table of ``place`` (``Workspace.lines``) and an embedding fingerprint."""

    place: Entity
    fingerprint: str
    spec: SegmentSpec


def build(task: SegmentTask, context: TaskContext) -> Segment:
    """Build the segment; it is invisible until the coordinator publishes it. Raises StorageError."""
    return build_segment(context.workspace.lines(task.place, task.fingerprint), task.spec)

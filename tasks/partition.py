"""Scan one partition of a source against its slice of the manifest, on any worker."""

from __future__ import annotations

from dataclasses import dataclass

from driftline.storage.documents import SCHEMA
from driftline.storage.entities import Entity
from driftline.tasks.context import TaskContext
from driftline.tasks.scan import ScanResult, ScanSpec, scan


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """A part of a source; ``now_ns`` is when the run began to scan."""

    scan: ScanSpec
    entity: Entity
    now_ns: int


def scan_partition(spec: PartitionSpec, context: TaskContext) -> ScanResult:
    """List the partition and compare it with what the manifest says of it."""
    manifest = context.workspace.documents(spec.entity)
    return scan(spec.scan, lambda prefixes: manifest.read(prefixes, columns=SCHEMA.names), now_ns=spec.now_ns)

"""How far an index is behind a commit, from the run history and git; reads only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from driftline.flows.config.paths import local_path
from driftline.storage.entities import Entity
from driftline.storage.workspace.records import SourceRecord
from driftline.storage.workspace.run_history import RunHistory, RunRecord
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.git.commits import commit_time, is_ancestor
from driftline.tasks.git.work_tree import git_origin


@dataclass(frozen=True, slots=True)
class SourceAge:
    """How much older than a commit one source of the index is; ``seconds`` is None if it was never indexed."""

    uri: str
    entity: str | None = None
    indexed: str | None = None
    run_id: str | None = None
    seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As ``ci --json`` prints it; ``indexed`` is the commit that was indexed last."""
        return {
            "uri": self.uri,
            "entity": self.entity,
            "indexed": self.indexed,
            "run_id": self.run_id,
            "seconds": self.seconds if self.seconds is None else round(self.seconds, 3),
        }


def ages(workspace: Workspace, uris: Sequence[str], commit: str, committed: datetime) -> list[SourceAge]:
    """The age of every source that ``uris`` name, compared with ``commit``, which was made at ``committed``.

    An index of ``commit`` or of one of its descendants has age 0. Otherwise an index is as old as the commit that it
    was made from, if the work tree knows that commit, and at least as old as the run that made it.
    """
    known = list(workspace.readable_sources())
    result: list[SourceAge] = []
    for uri in uris:
        place = _place(uri)
        entities = [entity for entity, record in known if record.same_place(place)]
        result += [_age(workspace, entity, place.uri, commit, committed) for entity in entities]
        if not entities:
            result.append(SourceAge(place.uri))
    return result


def _age(workspace: Workspace, entity: Entity, uri: str, commit: str, committed: datetime) -> SourceAge:
    for run in RunHistory(workspace.objects, entity.tenant).newest_first():
        source = _source_of(run, entity)
        if source is None:
            continue
        indexed = source.get("commit")
        age = SourceAge(uri, str(entity), indexed, run.run_id, 0.0)
        if indexed == commit:
            return age
        moment = datetime.fromisoformat(run.started)
        if indexed is not None and local_path(uri) is not None:
            if is_ancestor(uri, commit, indexed):
                return age
            moment = min(moment, commit_time(uri, indexed) or moment)
        return SourceAge(uri, str(entity), indexed, run.run_id, max(0.0, (committed - moment).total_seconds()))
    return SourceAge(uri, str(entity))


def _source_of(run: RunRecord, entity: Entity) -> Mapping[str, Any] | None:
    """The report of ``run`` on a source that it brought in step, or None."""
    if run.kind != "index":
        return None
    failed = {failure["uri"] for failure in run.report.get("failed", ())}
    if run.outcome != "done" and not failed:
        return None
    sources: Sequence[Mapping[str, Any]] = run.report.get("sources", ())
    return next((s for s in sources if s["entity"] == str(entity) and s["uri"] not in failed), None)


def _place(uri: str) -> SourceRecord:
    path = local_path(uri)
    if path is None:
        return SourceRecord(entity="", uri=uri.rstrip("/"))
    root = os.path.realpath(path)
    origin = git_origin(root)
    return SourceRecord(
        entity="", uri=root, origin=origin.url if origin else None, subpath=origin.subpath if origin else ""
    )

"""One file is shown once, even if several sources hold it: those of different tenants, or of a run that is not done."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from driftline.storage.entities import Entity
from driftline.storage.sources.source import known_source
from driftline.storage.workspace.records import SourceRecord
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.windows import Window


@dataclass(slots=True)
class SourceRecords:
    """The records of the sources of a search, each read once."""

    workspace: Workspace
    _read: dict[str, SourceRecord | None] = field(default_factory=dict)

    def get(self, entity: str) -> SourceRecord | None:
        """The record of a source; None if it was forgotten."""
        if entity not in self._read:
            self._read[entity] = self.workspace.readable_source(Entity.parse(entity, self.workspace.config.hierarchy))
        return self._read[entity]


def distinct_windows(find: Callable[[int], Sequence[Window]], top_k: int, records: SourceRecords) -> list[Window]:
    """The first ``top_k`` of the windows that ``find`` gives, for a number of them, without files of two sources."""
    wanted = top_k
    while True:
        found = find(wanted)
        kept = _distinct(found, records)
        if len(kept) >= top_k or len(found) < wanted:
            return kept[:top_k]
        wanted *= 2


def _distinct(windows: Sequence[Window], records: SourceRecords) -> list[Window]:
    if len({window.entity for window in windows}) < 2:
        return list(windows)
    owners: dict[tuple[str, ...], str] = {}
    return [window for window in windows if owners.setdefault(_file(window, records), window.entity) == window.entity]


def _file(window: Window, records: SourceRecords) -> tuple[str, ...]:
    """What identifies the file of a window, whatever source it comes from."""
    record = records.get(window.entity)
    if record is None:
        return window.entity, window.path
    if records.workspace.objects.is_local or not known_source(record.uri).is_local:
        return (posixpath.join(record.uri, window.path),)
    if record.origin is not None:
        return record.origin, posixpath.join(record.subpath, window.path)
    return window.entity, window.path  # a path of one of several machines

"""Search files of which a workspace may hold some: those in its index, the others in memory, in one ranking.

Nothing is written. What a workspace holds is searched there while the file is as it was indexed, so that the answer is
that of ``tasks.search.grep`` over all files.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from driftline.storage.entities import Entity
from driftline.storage.errors import SourceNotFound
from driftline.storage.ids import content_hash
from driftline.storage.lines.filters import LineFilter
from driftline.storage.model import Embedder, SkipReason
from driftline.storage.sources.local_tree import INODE_BITS
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.context import ModelRef, load_embedder
from driftline.tasks.scanning.claims import below
from driftline.tasks.scanning.selection import files_named
from driftline.tasks.search.grep import grep, read_texts
from driftline.tasks.search.hits import Hit
from driftline.tasks.search.named_places import where_named
from driftline.tasks.search.query import SearchReport, search

_COLUMNS = ("path", "size_bytes", "mtime_ns", "hash", "fingerprint", "reason", "racy", "ctime_ns", "inode")


def search_files(
    workspace: Workspace,
    query: str,
    files: Sequence[str],
    open_embedder: Callable[[], Embedder],
    *,
    top_k: int,
    max_distance: float | None,
    n_lines: int,
    min_relevance: float | None = None,
    on_skip: Callable[[str, SkipReason], None] = lambda path, reason: None,
) -> SearchReport:
    """The windows of ``files`` nearest to ``query``, best first, each with the ``path`` that the file was named by.

    ``files`` are files, folders, globs, and URIs of what is indexed. ``open_embedder`` gives the embedder of a
    workspace that has none yet. Raises SourceNotFound, AccessDenied, UsageError, and what ``search`` raises.
    """
    limits: dict[str, Any] = {"top_k": top_k, "max_distance": max_distance, "n_lines": n_lines} | {
        "min_relevance": min_relevance
    }
    uris = [name for name in files if "://" in name]
    shown = {os.path.realpath(path): path for path in files_named((f for f in files if f not in uris), on_skip=on_skip)}
    held = _Held(workspace, uris)
    for real in held.find(shown):
        del shown[real]
    reports = [report for report in [held.search(query, limits)] if report is not None]
    if shown:
        texts = read_texts(shown.values(), on_skip=on_skip)
        reports.append(grep(query, texts, _embedder(workspace, open_embedder), **limits))
    found = [hit for report in reports for hit in report.results]
    best = sorted(found, key=lambda hit: hit.distance)[:top_k]
    if not best and reports:
        return min(reports, key=lambda report: report.nearest.distance if report.nearest else math.inf)
    return SearchReport(query, tuple(replace(hit, rank=rank) for rank, hit in enumerate(best, start=1)))


def _embedder(workspace: Workspace, open_embedder: Callable[[], Embedder]) -> Embedder:
    config = workspace.config
    if config.model is None or config.fingerprint is None or config.dim is None:
        return open_embedder()
    return load_embedder(ModelRef(config.model, config.fingerprint, config.dim))


@dataclass(slots=True)
class _Held:
    """The documents of a workspace that are still as they were indexed; ``shown`` says how each was named."""

    workspace: Workspace
    uris: Sequence[str]
    shown: dict[tuple[str, str], str] = field(default_factory=dict)
    filters: list[LineFilter] = field(default_factory=list)

    def __post_init__(self) -> None:
        for uri in self.uris:
            where = where_named(self.workspace, [uri])
            if not where.any_of:
                raise SourceNotFound("The workspace holds nothing of this URI", uri, "Index it first.")
            self.filters.append(where)

    def find(self, files: Mapping[str, str]) -> list[str]:
        """Which of ``files``, real paths and their names, the workspace holds as they are."""
        found: list[str] = []
        rest = dict(files)
        for entity, record in self.workspace.readable_sources():
            inside = {path: real for real in rest if (path := below(record.uri, real))}
            if not inside:
                continue
            rows = self.workspace.manifest(entity).read(columns=_COLUMNS).to_pylist()
            documents = [row for row in rows if row["reason"] is None]
            current = {row["path"] for row in documents if row["path"] in inside and self._is_current(row, inside)}
            self.shown |= {(str(entity), path): rest[inside[path]] for path in current}
            self.filters += _filters(entity, [row["path"] for row in documents], current)
            for path in current:
                found.append(inside[path])
                del rest[inside[path]]
        return found

    def _is_current(self, row: Mapping[str, Any], inside: Mapping[str, str]) -> bool:
        real = inside[row["path"]]
        if row["fingerprint"] != self.workspace.config.fingerprint:
            return False
        try:
            status = os.stat(real)
            if status.st_size != row["size_bytes"]:
                return False
            same = status.st_mtime_ns == row["mtime_ns"] and row["ctime_ns"] in (0, status.st_ctime_ns)
            if same and row["inode"] in (0, status.st_ino & INODE_BITS) and not row["racy"]:
                return True
            with open(real, "rb") as file:
                return bool(content_hash(file.read()) == row["hash"])
        except OSError:
            return False  # whoever reads it next says why

    def search(self, query: str, limits: Mapping[str, Any]) -> SearchReport | None:
        """The nearest windows of the documents; None if there are no documents."""
        if not self.filters:
            return None
        report = search(self.workspace, query, where=LineFilter(any_of=tuple(self.filters)), mode="vector", **limits)
        nearest = self._as_named(report.nearest) if report.nearest else None
        return replace(report, results=tuple(map(self._as_named, report.results)), nearest=nearest)

    def _as_named(self, hit: Hit) -> Hit:
        return replace(hit, path=self.shown.get((hit.source, hit.path), hit.path))


def _filters(entity: Entity, documents: Iterable[str], chosen: Set[str]) -> Iterator[LineFilter]:
    """Filters that allow the ``chosen`` of the documents of a source, by whole folders where that is the same."""
    folders: set[str] = set()
    paths: list[str] = []
    all_in = Counter(folder for path in documents for folder in _folders(path))
    chosen_in = Counter(folder for path in chosen for folder in _folders(path))
    for path in sorted(chosen):
        whole = next((folder for folder in _folders(path) if chosen_in[folder] == all_in[folder]), None)
        if whole is None:
            paths.append(path)
        else:
            folders.add(whole)
    if folders:
        yield LineFilter(entities=(entity,), dirs=tuple(sorted(folders)))
    if paths:
        yield LineFilter(entities=(entity,), paths=tuple(paths))


def _folders(path: str) -> Iterator[str]:
    """The folders that hold a path, from the top ("") on."""
    parts = path.split("/")
    return ("/".join(parts[:depth]) for depth in range(len(parts)))

"""What a search finds on a branch and not in the main index: lines that only the branch has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc

from driftline.storage.deltas.delta_index import ADD
from driftline.storage.entities import Entity
from driftline.storage.lines.filters import LineFilter
from driftline.storage.workspace.branches import read_branch
from driftline.storage.workspace.workspace import Branch, Workspace
from driftline.tasks.search.defaults import DEFAULT_TOP_K
from driftline.tasks.search.hits import Hit
from driftline.tasks.search.query import SearchReport, search

MAX_FETCHED = 400
"""Hits among which those are sought whose lines the main index lacks."""


def changed_paths(workspace: Workspace, branch: Branch) -> list[str]:
    """The documents of a branch that differ from the main index it was cut from, sorted. Raises CorruptFile."""
    record = read_branch(workspace, branch.entity, branch.name)
    since = record.main_revision if record is not None else 0
    changed = workspace.manifest(branch.entity).changes_since(since, columns=["path", "reason"])
    found = changed.filter(pc.and_(pc.equal(changed["op"], ADD), pc.is_null(changed["reason"])))
    paths: list[str] = found["path"].to_pylist()
    return paths


def search_new_lines(workspace: Workspace, query: str, *, top_k: int = DEFAULT_TOP_K, **options: Any) -> SearchReport:
    """As ``search`` on the branches of ``workspace``, without hits whose best line the main index has as well.

    A line that has only moved within its document is not new. Raises what ``search`` raises.
    """
    changed = {branch.entity: changed_paths(workspace, branch) for branch in workspace.branches}
    where = LineFilter(
        any_of=tuple(LineFilter(entities=(entity,), paths=tuple(paths)) for entity, paths in changed.items())
    )
    wanted = top_k
    while True:
        report = search(workspace, query, where=where, top_k=wanted, **options)
        new = [*_new(workspace, report.results)]
        if len(new) >= top_k or len(report.results) < wanted or wanted >= MAX_FETCHED:
            return SearchReport(query, tuple(new[:top_k]), report.explanation)
        wanted = min(4 * wanted, MAX_FETCHED)


def _new(workspace: Workspace, hits: tuple[Hit, ...]) -> Iterator[Hit]:
    main = workspace.on(())
    known: dict[str, set[tuple[str, str]]] = {}
    for source in {hit.source for hit in hits}:
        entity = Entity.parse(source, workspace.config.hierarchy)
        rows = main.lines(entity).of_documents(entity, sorted({hit.path for hit in hits if hit.source == source}))
        known[source] = set(zip(rows["path"].to_pylist(), rows["text"].to_pylist(), strict=True))
    rank = 0
    for hit in hits:
        if (hit.path, hit.text) not in known[hit.source]:
            rank += 1
            yield replace(hit, rank=rank)

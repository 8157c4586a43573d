"""Search the versions of the last search at once, while a bucket lists the current ones.

Most searches of a process find the versions that the one before found. The answer counts only if a listing that began
after the search did shows the same tenants and, for each table, the same newest version with the same etag.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from operator import call
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache

from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError
from driftline.storage.layout import CONFIG
from driftline.storage.shared_cache import SharedCache
from driftline.storage.workspace.early_reads import EarlyReads
from driftline.storage.workspace.workspace import Workspace

if TYPE_CHECKING:
    from driftline.storage.lines.line_table import LineTable
    from driftline.storage.lines.table_searcher import TableSearcher
    from driftline.tasks.search.hits import SearchReport

WORKSPACES_REMEMBERED = 64
MAX_AGE_SECONDS = 600.0
"""Older versions are not searched: compaction may have deleted their indexes, and a search would read whole tables."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """The tenants that a search found, and its tables: each with its opened version, and the version's key and etag.

    ``at`` is the time of the search, on the monotonic clock.
    """

    tenants: tuple[Entity, ...]
    tables: tuple[tuple[LineTable, Any, tuple[str, str]], ...]
    at: float

    def is_newest(self, workspace: Workspace) -> bool:
        """List the tenants and the versions, and return whether they are still the same. Raises DriftlineError."""
        checks = [partial(_has_tenants, workspace, self.tenants)]
        checks += [partial(_has_newest, table, listed) for table, _, listed in self.tables]
        return all([*workspace.map_parallel(call, checks)])


def _has_tenants(workspace: Workspace, tenants: tuple[Entity, ...]) -> bool:
    return tuple(workspace.tenants()) == tenants


def _has_newest(table: LineTable, listed: tuple[str, str]) -> bool:
    return table.newest() == listed


_LAST: SharedCache[tuple[str, ...], _Opened] = SharedCache(LRUCache(WORKSPACES_REMEMBERED))


def _client_of(workspace: Workspace) -> tuple[str, ...] | None:
    """Return what identifies the workspace and the credentials that read it, or None if its reads are not cached."""
    through_cache = workspace.objects.cached_lance(CONFIG)
    return (through_cache[0], *map(str, sorted(through_cache[1].items()))) if through_cache else None


def remember(workspace: Workspace, tenants: Sequence[Entity], tables: Sequence[TableSearcher]) -> None:
    """Remember what a search of ``workspace`` opened, if all of it can be recognized in a listing.

    A tenant without a table may get one, which a listing of the tenants does not show.
    """
    if workspace.objects.is_local or workspace.branches or (client := _client_of(workspace)) is None:
        return
    listed = [(each.table, each.dataset, each.table.listed_as(each.dataset)) for each in tables]
    known = tuple((table, dataset, where) for table, dataset, where in listed if where)
    if len(known) == len(listed) == len(tenants):
        _LAST.put(client, _Opened(tuple(tenants), known, time.monotonic()))


def with_last_versions(workspace: Workspace, search: Callable[[Workspace], SearchReport]) -> SearchReport:
    """Return the result of ``search``, which may first search what the last search opened."""
    early = workspace.early
    if workspace.objects.is_local or workspace.branches or early.names or early.tables:
        return search(workspace)
    client = _client_of(workspace)
    last = _LAST.get(client) if client else None
    if last is None or time.monotonic() - last.at > MAX_AGE_SECONDS:
        return search(workspace)
    known = EarlyReads.known(last.tenants, {table.uri: dataset for table, dataset, _ in last.tables})
    with ThreadPoolExecutor(1, "driftline-listing") as pool:
        is_newest = pool.submit(contextvars.copy_context().run, last.is_newest, workspace)
        try:
            report = search(replace(workspace, early=known))
        except DriftlineError:  # of a version that cleanup may have deleted
            if is_newest.result():
                raise
        else:
            if is_newest.result():
                return report
    return search(workspace)

"""Start reading a workspace in a bucket before the modules that need the answers are imported.

Imports no library that takes long to load, so the first requests are on their way while such libraries load.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from driftline.storage.entities import Entity
from driftline.storage.errors import ObjectNotFound
from driftline.storage.layout import CONFIG, is_tenant, table_path
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.records import WorkspaceConfig, parse_record

if TYPE_CHECKING:
    from lance import LanceDataset

    from driftline.storage.lines.line_table import LineTable
    from driftline.storage.lines.table_searcher import TableSearcher

_Result = TypeVar("_Result")

EARLY_SECONDS = 5.0
"""How long early reads are valid."""
TABLES_AT_ONCE = 8


@dataclass(slots=True)
class EarlyReads:
    """Reads in the background. Each serves one call, within EARLY_SECONDS of its start; pickling drops them."""

    config: Future[bytes] | None = None
    names: Future[list[str]] | None = None
    opens_tables: bool = False
    tables: dict[str, Future[LanceDataset]] = field(default_factory=dict)
    began: float = 0.0
    opened: float = 0.0

    @classmethod
    def begin(cls, objects: ObjectStore, *, opens_tables: bool = False) -> EarlyReads:
        """Start reading the configuration and listing the tenants, unless they are on a local disk.

        If the caller ``opens_tables`` next, the newest versions of the lines tables are read as well.
        """
        if objects.is_local:
            return cls()
        context = contextvars.copy_context
        pool = ThreadPoolExecutor(3, "driftline-early")
        config = pool.submit(context().run, objects.get, CONFIG)
        names = pool.submit(context().run, objects.list_dirs)
        if opens_tables:
            pool.submit(context().run, _open_ahead, objects, config, names)
        pool.shutdown(wait=False)
        return cls(config, names, opens_tables, began=time.monotonic())

    @classmethod
    def known(cls, tenants: Iterable[Entity], tables: Mapping[str, LanceDataset]) -> EarlyReads:
        """Return reads that have already returned ``tenants``, and the versions ``tables``, keyed by URI."""
        now = time.monotonic()
        names = _done([tenant.directory for tenant in tenants])
        return cls(names=names, tables={uri: _done(each) for uri, each in tables.items()}, began=now, opened=now)

    def open(self, tables: Iterable[LineTable], read: Callable[[TableSearcher], None]) -> None:
        """Start opening ``tables``; ``read`` reads what the search needs."""
        import lance  # noqa: F401  # in a thread, its import would take turns with the caller's

        self.opened = time.monotonic()
        pool = ThreadPoolExecutor(TABLES_AT_ONCE, "driftline-early")
        for table in tables:
            self.tables[table.uri] = pool.submit(contextvars.copy_context().run, _opened, table, read)
        pool.shutdown(wait=False)

    def take_config(self) -> bytes | None:
        """Return the configuration. Like the other calls, returns None if there is no valid read."""
        config, self.config = self.config, None
        try:
            return config.result() if config and _is_valid(self.began) else None
        except ObjectNotFound:
            return None

    def take_names(self) -> list[str] | None:
        """Return the names of the tenants' directories."""
        names, self.names = self.names, None
        return names.result() if names and _is_valid(self.began) else None

    def take_table(self, table: LineTable) -> Future[LanceDataset] | None:
        """Return the newest version of ``table``."""
        opened = self.tables.pop(table.uri, None)
        return opened if _is_valid(self.opened) else None

    def __reduce__(self) -> tuple[object, ...]:
        return EarlyReads, ()


def _done(result: _Result) -> Future[_Result]:
    future = Future[_Result]()
    future.set_result(result)
    return future


def _is_valid(began: float) -> bool:
    return time.monotonic() - began < EARLY_SECONDS


def tenants_in(names: Iterable[str]) -> list[Entity]:
    """Return the tenants among the workspace's directories ``names``."""
    return [Entity.of_directory(name) for name in names if is_tenant(name)]


def _opened(table: LineTable, read: Callable[[TableSearcher], None]) -> LanceDataset:
    from driftline.storage.lines.table_searcher import TableSearcher

    searcher = TableSearcher(table)
    read(searcher)
    return searcher.dataset


def _open_ahead(objects: ObjectStore, config: Future[bytes], names: Future[list[str]]) -> None:
    fingerprint = parse_record(objects, CONFIG, config.result(), WorkspaceConfig).fingerprint
    if fingerprint is not None:
        objects.open_ahead(table_path(tenant, "line", fingerprint) for tenant in tenants_in(names.result()))

"""Listings, counts and sums of memory by DuckDB over the Parquet indexes, without the catalog."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from driftline.storage.deltas.delta_index import ADD, Log
from driftline.storage.deltas.key_ranges import after_prefix
from driftline.storage.errors import CorruptFile, ObjectNotFound, StorageError
from driftline.storage.layout import BASE
from driftline.storage.memory.index import MemoryIndex
from driftline.storage.objects.store import ObjectStore

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

READ_ATTEMPTS = 5
DEFAULT_LIMIT = 1_000
COLUMNS = ("key", "entity", "size_bytes", "content_hash", "metadata", "created", "updated", "expires")


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of an entity and its descendants in the index, which may lag behind the catalog by a second."""

    entries: int
    size_bytes: int


class MemoryListing:
    """Queries over the memory indexes of a workspace. Thread-safe; each call folds base and deltas.

    ``cached`` keeps the footers of files in memory. All methods raise StorageError, CorruptFile.
    """

    def __init__(self, objects: ObjectStore, *, threads: int | None = None, cached: bool = True) -> None:
        self._objects = objects
        self._threads = threads
        self._cached = cached
        self._lock = threading.Lock()
        self._connection: DuckDBPyConnection | None = None

    def list(
        self,
        directory: str,
        *,
        prefix: str = "",
        low: str = "",
        high: str | None = None,
        after: str = "",
        limit: int = DEFAULT_LIMIT,
        now: datetime | None = None,
    ) -> pa.Table:
        """The entries at or below the entity of a directory, ordered by key, with ``COLUMNS``.

        Keys start with ``prefix``, satisfy ``low <= key < high``, and are greater than ``after``.
        """
        query = f"SELECT {', '.join(COLUMNS)} FROM alive ORDER BY key LIMIT {int(limit)}"
        bound = after_prefix(prefix) if prefix else None
        highs = [each for each in (high, bound) if each is not None]
        return self._answer(directory, max(low, prefix), min(highs) if highs else None, after, query, now)

    def totals(self, directory: str, *, prefix: str = "", now: datetime | None = None) -> Totals:
        """The number and size of the entries at or below an entity whose key starts with ``prefix``."""
        query = "SELECT count(*) AS n, coalesce(sum(size_bytes), 0)::BIGINT AS size FROM alive"
        bound = after_prefix(prefix) if prefix else None
        row = self._answer(directory, prefix, bound, "", query, now).to_pylist()[0]
        return Totals(row["n"], row["size"])

    def by_owner(self, directory: str, *, now: datetime | None = None) -> dict[str, Totals]:
        """The totals of each owner of entries at or below an entity, by the owner's directory."""
        query = (
            "SELECT entity, count(*) AS n, sum(size_bytes)::BIGINT AS size FROM alive GROUP BY entity ORDER BY entity"
        )
        rows = self._answer(directory, "", None, "", query, now).to_pylist()
        return {row["entity"]: Totals(row["n"], row["size"]) for row in rows}

    def _answer(
        self, directory: str, low: str, high: str | None, after: str, query: str, now: datetime | None
    ) -> pa.Table:
        import duckdb

        index = MemoryIndex(self._objects, directory)
        parameters = {"low": low, "high": high, "after": after, "now": now or datetime.now(UTC)}
        for _ in range(READ_ATTEMPTS):
            log = index.log()
            with self._cursor() as cursor:
                try:
                    source = self._source(cursor, index, log)
                    return cursor.sql(_FOLD.format(source=source, query=query), params=parameters).to_arrow_table()
                except ObjectNotFound as error:
                    missing: Exception = error
                except duckdb.IOException as error:  # a file vanished: a compaction has finished
                    missing = error
                except duckdb.Error as error:
                    index.check()  # raises an error that names the damaged file
                    reason = str(error).partition("\n")[0][:300]
                    raise CorruptFile(
                        f"A memory index cannot be read ({reason})",
                        directory,
                        "Rebuild it: driftline memory rebuild",
                    ) from error
        raise StorageError(
            f"Files vanished in each of {READ_ATTEMPTS} attempts to read an index", directory, "Try again."
        ) from missing

    def _source(self, cursor: DuckDBPyConnection, index: MemoryIndex, log: Log) -> str:
        """The relation to query: files on a local disk, or rows of files in a bucket, which DuckDB cannot read."""
        names = [*log.deltas, *([BASE] if log.has_base else [])]
        if not names:
            cursor.register("nothing", index.file_schema.empty_table())
            return "nothing"
        if self._objects.is_local:
            paths = [f"{self._objects.uri}/{index.directory}/{name}" for name in names]
            listed = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
            return f"read_parquet([{listed}], hive_partitioning = false)"
        cursor.register("files", index.raw(names))
        return "files"

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[DuckDBPyConnection]:
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()
            cursor = self._connection.cursor()
        try:
            yield cursor
        finally:
            cursor.close()

    def _connect(self) -> DuckDBPyConnection:
        import duckdb

        connection = duckdb.connect()
        for name in ("parquet_metadata_cache", "enable_http_metadata_cache"):
            connection.execute(f"SET GLOBAL {name} = {str(self._cached).lower()}")  # GLOBAL: cursors inherit it
        if self._threads is not None:
            connection.execute(f"SET GLOBAL threads = {int(self._threads)}")
        connection.execute("SET GLOBAL TimeZone = 'UTC'")
        return connection


_FOLD = f"""
    WITH latest AS (
        SELECT * FROM {{source}}
        WHERE key >= $low AND ($high IS NULL OR key < $high) AND key > $after
        QUALIFY row_number() OVER (PARTITION BY key ORDER BY rev DESC) = 1
    ), alive AS (
        SELECT * FROM latest WHERE op = '{ADD}' AND (expires IS NULL OR expires > $now)
    )
    {{query}}
"""

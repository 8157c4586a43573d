"""A Lance table of a workspace: opens, creates and writes it, and provides the parts of a commit (decision 0004)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.entities import Entity
from driftline.storage.errors import CorruptFile, StorageError, UsageError
from driftline.storage.globs import is_unicode
from driftline.storage.lance.beside import ProcessDied, survived
from driftline.storage.lance.damage import unreadable_fragments, with_indexes
from driftline.storage.lance.errors import first_line, is_lance_failure, write_failed, writing
from driftline.storage.lance.retries import is_network_failure, persistent, persistently
from driftline.storage.layout import branch_table_path, table_path
from driftline.storage.objects.store import ObjectStore

if TYPE_CHECKING:
    from lance import FragmentMetadata, LanceDataset, Transaction

COMMIT_ATTEMPTS = 20
VECTOR_TYPE = pa.float16()
"""Half the size of float32 with the same top ten (decision 0002)."""
INDEX_CACHE_BYTES = 2 * 2**30
"""A vector index takes 46 bytes per line; searches are ten times faster with the index in memory."""
METADATA_CACHE_BYTES = 256 * 2**20
READS_AT_ONCE = 256
"""Reads of a bucket that Lance makes side by side. With its default of 64, a search reads its candidates in rounds."""
_ADDRESS_BITS = 32
AGAIN = "Run it again."


class LanceTable:
    """A table of embeddings of one tenant and one embedding fingerprint.

    With ``cut`` it is a branch of that table (decision 0015). Subclasses define the ``KIND`` of table, its ``TITLE`` in
    errors, and the ``REPAIR`` that errors suggest.
    """

    KIND: ClassVar[str]
    TITLE: ClassVar[str]
    REPAIR: ClassVar[str]

    def __init__(self, objects: ObjectStore, tenant: Entity, fingerprint: str, cut: str | None = None) -> None:
        self.fingerprint = fingerprint
        main = table_path(tenant, self.KIND, fingerprint)
        self.path = branch_table_path(main, cut) if cut else main
        self.uri = objects.lance_uri(self.path)
        self.options = objects.lance_options
        self.is_local = objects.is_local
        self._objects = objects

    def exists(self) -> bool:
        """Whether any version of the table has been committed."""
        return any(info.path.endswith(".manifest") for info in self._objects.list(f"{self.path}/_versions"))

    def open(self, version: int | None = None, *, cached: bool = False) -> LanceDataset:
        """Open the newest version, or ``version``.

        With ``cached``, indexes stay in memory for later searches of this process. Raises StorageError if the table
        does not exist, CorruptFile if Lance cannot read it.
        """
        import lance

        if not self.is_local:
            allow_parallel_reads()
        try:
            session = _session() if cached else None
            return persistently(lambda: lance.dataset(self.uri, version, storage_options=self.options, session=session))
        except BaseException as error:
            if not is_lance_failure(error):
                raise
            if not self.exists():
                raise StorageError(f"The table of {self.TITLE} does not exist", self.uri, self.REPAIR) from error
            reason = first_line(error)
            if is_network_failure(error):
                raise StorageError(f"The table of {self.TITLE} cannot be read ({reason})", self.uri, AGAIN) from error
            raise CorruptFile(f"The table of {self.TITLE} cannot be read ({reason})", self.uri, self.REPAIR) from error

    def _create(self, first: pa.Table) -> None:
        """Create the table with the rows of ``first``, unless it exists or another process creates it first."""
        import lance

        if self.exists():
            return
        try:
            lance.write_dataset(
                first, self.uri, mode="create", enable_stable_row_ids=True, storage_options=self.options
            )
        except OSError as error:  # includes CommitConflictError
            if not self.exists():
                raise write_failed("Could not create a table", self.uri, error) from error

    def set_damage_aside(self, suffix: str) -> int:
        """Make the table readable: drop its unreadable newest versions and fragments; returns their number.

        A dropped version is renamed with ``suffix``, for people. The caller holds the tenant's maintenance lease, and
        indexes what is now missing again. Raises StorageError.
        """
        count = 0
        while not self._opens():
            manifests = [info.path for info in self._objects.list(f"{self.path}/_versions")]
            newest = min((path for path in manifests if path.endswith(".manifest")), default=None)
            if newest is None:
                return count
            self._objects.create(f"{newest}{suffix}", self._objects.get(newest))
            self._objects.delete([newest])
            count += 1
        unreadable = self.damaged_fragments()
        if unreadable:
            import lance

            dataset = self.open()
            update = lance.LanceOperation.Update(
                removed_fragment_ids=unreadable, updated_fragments=[], new_fragments=[]
            )
            with writing("Could not drop unreadable fragments", self.uri):
                self._transact(lance.Transaction(dataset.version, update))
        return count + len(unreadable)

    def damaged_fragments(self) -> list[int]:
        """The ids of the fragments that cannot be read whole, each of which may end the process that reads it."""
        try:
            return survived(_unreadable, self)
        except ProcessDied:
            return [number for number in survived(_fragments, self) if not self._survives(number)]

    def _survives(self, fragment: int) -> bool:
        try:
            return not survived(_unreadable, self, fragment)
        except ProcessDied:
            return False

    def _opens(self) -> bool:
        try:
            survived(_fragments, self)
        except CorruptFile:
            return False
        except StorageError:
            return not self.exists()
        return True

    def tracked_files(self) -> frozenset[str]:
        """The paths, relative to the table, of the files that any version refers to. Raises CorruptFile."""
        files: set[str] = set()
        try:
            dataset = self.open()
            for batch in persistently(lambda: list(dataset.tracked_files())):
                files.update(pc.unique(batch.column("path")).to_pylist())
        except BaseException as error:
            if not is_lance_failure(error):
                raise
            reason = first_line(error)
            if is_network_failure(error):
                raise StorageError(f"A version of the table cannot be read ({reason})", self.uri, AGAIN) from error
            raise CorruptFile(f"A version of the table cannot be read ({reason})", self.uri, "Restore it.") from error
        return frozenset(files)

    def index_files(self) -> frozenset[str]:
        """The files of all indexes, published or not, relative to their folder. Raises StorageError."""
        folder = f"{self.path}/_indices"
        return frozenset(info.path.removeprefix(f"{folder}/") for info in self._objects.list(folder))

    def write(self, rows: pa.Table) -> list[FragmentMetadata]:
        """Write ``rows`` as fragments, which readers do not see until a commit adds them.

        Safe on any worker at any time, because the files have unique names. Raises StorageError.
        """
        from lance.fragment import write_fragments

        with writing(f"{self.TITLE[0].upper()}{self.TITLE[1:]} cannot be written", self.uri):
            return persistently(
                lambda: list(
                    write_fragments(
                        rows,
                        self.uri,
                        schema=rows.schema,
                        enable_stable_row_ids=True,
                        storage_options=self.options,
                    )
                )
            )

    def _transact(self, transaction: Transaction) -> None:
        """Commit ``transaction``. Raises lance.commit.CommitConflictError, and OSError for an unknown outcome."""
        import lance

        lance.LanceDataset.commit(self.uri, transaction, storage_options=self.options)


def _fragments(table: LanceTable) -> list[int]:
    return [fragment.fragment_id for fragment in table.open().get_fragments()]


def _unreadable(table: LanceTable, fragment: int | None = None) -> list[int]:
    return unreadable_fragments(table.open(), None if fragment is None else [fragment])


def allow_parallel_reads() -> None:
    """Let Lance read a bucket with READS_AT_ONCE, unless the environment says otherwise."""
    os.environ.setdefault("LANCE_IO_THREADS", str(READS_AT_ONCE))


@cache
def _session() -> Any:
    from lance import Session  # type: ignore[attr-defined]  # missing in pylance's stubs

    return Session(index_cache_size_bytes=INDEX_CACHE_BYTES, metadata_cache_size_bytes=METADATA_CACHE_BYTES)


def quote(text: str) -> str:
    """``text`` as a string literal of a Lance filter: data, never syntax. Raises UsageError for one that no row has."""
    if not is_unicode(text):
        raise UsageError("A name is not UTF-8, as no indexed name is", repr(text), "Check its spelling and encoding.")
    return "'" + text.replace("'", "''") + "'"


def is_one_of(column: str, values: Sequence[str]) -> str:
    """The filter ``column IN (values)``."""
    return f"{column} IN ({', '.join(quote(value) for value in values)})" if values else "false"


def _addresses(dataset: LanceDataset, where: str) -> NDArray[np.uint64]:
    def read(indexed: bool) -> NDArray[np.uint64]:
        scanner = dataset.scanner(columns=[], filter=where, with_row_address=True, use_scalar_index=indexed)
        return np.asarray(scanner.to_table()["_rowaddr"].to_numpy(), np.uint64)

    return with_indexes(dataset, "rows", read)


@persistent
def without_rows(dataset: LanceDataset, filters: Sequence[str]) -> tuple[list[int], list[FragmentMetadata]]:
    """``(ids of fragments that become empty, changed fragments)`` of ``dataset`` without the rows that match."""
    matches = [_addresses(dataset, where) for where in filters]
    addresses = np.unique(np.concatenate(matches))
    fragments = addresses >> np.uint64(_ADDRESS_BITS)
    offsets = addresses & np.uint64((1 << _ADDRESS_BITS) - 1)
    removed: list[int] = []
    updated: list[FragmentMetadata] = []
    for fragment_id in np.unique(fragments):
        fragment: Any = dataset.get_fragment(int(fragment_id))
        rest = fragment.delete_rows(offsets[fragments == fragment_id].tolist())
        if rest is None:
            removed.append(int(fragment_id))
        else:
            updated.append(rest)
    return removed, updated

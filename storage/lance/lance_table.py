"""Open, create, write, commit and compact a workspace's Lance tables (decision 0004; DESIGN, "Compaction").

Index optimization, compaction and version cleanup conflict, so one process runs them in sequence, holding the tenant's
maintenance lease. Only rewriting is distributed to workers.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from itertools import chain
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.entities import Entity
from driftline.storage.errors import CommitConflict, CorruptFile, StorageError, UsageError
from driftline.storage.globs import is_unicode
from driftline.storage.lance.failures import (
    AGAIN,
    Examine,
    is_conflict,
    is_lance_failure,
    is_network_failure,
    read_failed,
    read_fragments,
    reading,
    retried,
    skim,
    with_indexes,
    with_lance_retries,
    write_failed,
    writing,
)
from driftline.storage.lance.reader_process import ProcessDied, run_in_worker
from driftline.storage.layout import ByteRange, branch_table_path, table_path
from driftline.storage.objects.store import ObjectStore

if TYPE_CHECKING:
    from lance import FragmentMetadata, LanceDataset, LanceFragment, Transaction
    from lance.optimize import CompactionOptions, CompactionTask, RewriteResult

_Result = TypeVar("_Result")

COMMIT_ATTEMPTS = 20
VECTOR_TYPE = pa.float16()
"""The type of stored vectors: half the size of float32, with the same top ten results (decision 0002)."""
INDEX_CACHE_BYTES = 2 * 2**30
"""Size of Lance's index cache: 46 bytes per line for vectors; makes searches ten times faster."""
METADATA_CACHE_BYTES = 256 * 2**20
READS_AT_ONCE = 256
"""Parallel reads from a bucket. With Lance's default of 64, a search needs several rounds to read its candidates."""
MAX_VERSION = 2**64 - 1
"""A version's file has the difference to this number as its name, so the newest is listed first."""
ADDRESS_BITS = 32
"""A row address is a fragment id followed by an offset of this many bits."""
UNWRITTEN_COLUMN_BYTES = 20 * 2**20
"""How much of a column a writer keeps in memory before it writes a page. A column that is smaller, as all but vectors
and directories are in a batch, is written after those that are larger, in the order of the schema.
"""


class TableFile(NamedTuple):
    """A table file, relative to the table or, with a ``base_id``, to the main table that shares it with a branch."""

    path: str
    base_id: int | None = None


class LanceTable:
    """An embedding table: one tenant, one embedding fingerprint.

    If ``cut`` is set, this is a branch of that table (decision 0015). Subclasses define the table's ``KIND``, its
    ``TITLE`` in errors, its required ``COLUMNS``, and the fixes suggested by errors: ``REPAIR`` for a damaged table,
    ``REBUILD`` for an unsupported format.
    """

    KIND: ClassVar[str]
    TITLE: ClassVar[str]
    REPAIR: ClassVar[str]
    COLUMNS: ClassVar[tuple[str, ...]] = ()
    REBUILD: ClassVar[str] = "Index the sources into a new workspace: driftline index SOURCE --workspace NEW"

    def __init__(self, objects: ObjectStore, tenant: Entity, fingerprint: str, cut: str | None = None) -> None:
        self.fingerprint, self.cut, self._tenant = fingerprint, cut, tenant
        self._main = table_path(tenant, self.KIND, fingerprint)
        self.path = branch_table_path(self._main, cut) if cut else self._main
        self.uri = objects.lance_uri(self.path)
        self.options = objects.lance_options
        self.is_local = objects.is_local
        self._objects = objects

    def exists(self) -> bool:
        """Return whether any version of the table was committed."""
        return any(info.path.endswith(".manifest") for info in self._objects.list(f"{self.path}/_versions"))

    def open(self, version: int | None = None, *, cached: bool = False) -> LanceDataset:
        """Open the newest version, or ``version``.

        If ``cached`` is set, indexes stay in memory for later searches in this process. Raises StorageError if the
        table does not exist, CorruptFile if Lance cannot read it, UsageError if its format is unsupported.
        """
        import lance

        if not self.is_local:
            allow_parallel_reads()
        try:
            through_cache = self._objects.cached_lance(self.path) if cached else None
            uri, options = through_cache or (self.uri, self.options)
            session = _session() if cached else None
            dataset = with_lance_retries(lambda: lance.dataset(uri, version, storage_options=options, session=session))
        except BaseException as error:
            if not is_lance_failure(error):
                raise
            if not self.exists():
                raise StorageError(f"The {self.TITLE} table does not exist", self.uri, self.REPAIR) from error
            raise read_failed(f"Cannot read the {self.TITLE} table", self.uri, error, self.REPAIR) from error
        missing = set(self.COLUMNS).difference(dataset.schema.names)
        if missing:
            raise UsageError(
                f"The {self.TITLE} table has an unsupported format: it has no column {', '.join(sorted(missing))}",
                self.uri,
                self.REBUILD,
            )
        return dataset

    def listed_as(self, dataset: LanceDataset) -> tuple[str, str] | None:
        """Return the key and etag that identify an opened version of this table in a bucket, or None if unknown."""
        name = f"{MAX_VERSION - dataset.version:020d}.manifest"
        key, etag = self._objects.only_etag(f"{self.path}/_versions/{name}")
        return (key, etag) if etag else None

    def newest(self) -> tuple[str, str] | None:
        """Return the key and etag of the newest version of this table in a bucket."""
        return self._objects.newest_version(self.path)

    def nearest_rows(
        self, columns: Sequence[str], query: NDArray[np.float32], limit: int, where: str, exact_rows: int = 0
    ) -> pa.Table:
        """Return ``columns`` and ``distance`` (1 - cosine) of the ``limit`` rows nearest to a unit vector, best first.

        ``where`` applies before the search, which is exact if it leaves at most ``exact_rows``.
        """
        dataset = self.open(cached=True)

        def search(indexed: bool) -> pa.Table:
            by_index = indexed and is_indexed(dataset) and (not exact_rows or dataset.count_rows(where) > exact_rows)
            return dataset.scanner(
                columns=[*columns, "_distance"],
                nearest=nearest_options(dataset, query, limit, by_index=by_index),
                filter=where,
                prefilter=True,
                limit=limit,
                use_scalar_index=indexed,
            ).to_table()

        return with_cosine_distance(with_indexes(dataset, self.TITLE, search)).sort_by("distance")

    def read_ahead(self, ranges: Mapping[TableFile, ByteRange]) -> None:
        """Prefetch ``ranges`` of a bucket table's files, which Lance would otherwise request one after another."""
        folders = {file: self.path if file.base_id is None else self._main for file in ranges}
        self._objects.read_ahead({f"{folders[file]}/{file.path}": wanted for file, wanted in ranges.items()})

    def _create(self, first: pa.Table) -> None:
        """Create the table with rows ``first`` unless it exists or another process creates it sooner."""
        import lance

        if self.exists():
            return
        try:
            dataset = lance.write_dataset(
                first, self.uri, mode="create", enable_stable_row_ids=True, storage_options=self.options
            )
            self.sync_fragments([fragment.metadata for fragment in dataset.get_fragments()])
            self.sync_newest_version()
        except OSError as error:  # includes CommitConflictError
            if not self.exists():
                raise write_failed("Could not create a table", self.uri, error) from error

    def quarantine_damage(self, suffix: str) -> int:
        """Make the table readable: drop its unreadable newest versions and fragments, and return how many were dropped.

        Dropped versions are renamed with ``suffix``, for later inspection. The caller holds the tenant's maintenance
        lease, and reindexes the missing documents. Raises StorageError, also if a read fails: that proves no damage.
        """
        count = 0
        while self.exists() and not self._opens():
            manifests = [info.path for info in self._objects.list(f"{self.path}/_versions")]
            newest = min(path for path in manifests if path.endswith(".manifest"))
            self._objects.create(f"{newest}{suffix}", self._objects.get(newest))
            self._objects.delete([newest])
            count += 1
        unreadable = self.damaged_fragments() if self.exists() else []
        if unreadable:
            dataset = self.open()
            with writing("Could not drop unreadable fragments", self.uri):
                self._replace_rows(dataset, unreadable, [])
        return count + len(unreadable)

    def damaged_fragments(self) -> list[int]:
        """Return the ids of fragments that cannot be read completely; reading one may crash the process."""
        return self.examined(skim)[0]

    def examined(self, examine: Examine) -> tuple[list[int], set[Any]]:
        """Return ``damaged_fragments``, and what ``examine``, which must be picklable, finds in the other fragments."""
        try:
            return run_in_worker(_read, self, None, examine)
        except ProcessDied:
            pass  # read each one in another process
        damaged, found = list[int](), set[Any]()
        for number in run_in_worker(_fragments, self):
            try:
                unreadable, wrong = run_in_worker(_read, self, [number], examine)
            except ProcessDied:
                unreadable, wrong = [number], set()
            damaged += unreadable
            found |= wrong
        return damaged, found

    def own_fragments(self) -> list[int]:
        """Return the ids of fragments with files of this table; a branch shares the others with the main table."""
        fragments = ((each.fragment_id, each.metadata) for each in self.open().get_fragments())
        return [number for number, metadata in fragments if any(file.base_id is None for file in metadata.files)]

    def _opens(self) -> bool:
        try:
            run_in_worker(_fragments, self)
        except CorruptFile:
            return False
        return True

    def tracked_files(self) -> frozenset[str]:
        """Return the paths, relative to the table, of files that any version refers to. Raises CorruptFile."""
        files: set[str] = set()
        try:
            dataset = self.open()
            for batch in with_lance_retries(lambda: list(dataset.tracked_files())):
                files.update(pc.unique(batch.column("path")).to_pylist())
        except BaseException as error:
            if not is_lance_failure(error):
                raise
            raise read_failed("Cannot read a version of the table", self.uri, error, "Restore it.") from error
        return frozenset(files)

    def index_files(self) -> frozenset[str]:
        """Return the files of all indexes, published or not, relative to the index folder. Raises StorageError."""
        folder = f"{self.path}/_indices"
        return frozenset(info.path.removeprefix(f"{folder}/") for info in self._objects.list(folder))

    def write(self, rows: pa.Table | Callable[[], Iterator[pa.Table]]) -> list[FragmentMetadata]:
        """Write ``rows`` as fragments that readers cannot see until they are committed.

        A function returns the rows in parts, which become one fragment; every attempt calls it. Safe on any worker at
        any time, because file names are unique. Raises StorageError, and what the function raises.
        """
        if isinstance(rows, pa.Table):
            return with_lance_retries(lambda: self._write(rows))
        return with_lance_retries(lambda: streamed(self._write, rows())) or []

    def _write(self, rows: pa.Table | pa.RecordBatchReader) -> list[FragmentMetadata]:
        from lance.fragment import write_fragments

        with writing(f"Cannot write the {self.TITLE} table", self.uri):
            return list(
                write_fragments(
                    rows,
                    self.uri,
                    schema=rows.schema,
                    data_cache_bytes=UNWRITTEN_COLUMN_BYTES * len(rows.schema),
                    enable_stable_row_ids=True,
                    storage_options=self.options,
                )
            )

    def commit_attempts(self, count: int = COMMIT_ATTEMPTS) -> Iterator[LanceDataset]:
        """Yield the newest version for each of ``count`` attempts; if all fail, the caller raises ``conflicted``."""
        return (self.open() for _ in range(count))

    def conflicted(self) -> CommitConflict:
        """Return the error for a change whose ``commit_attempts`` all conflicted."""
        return CommitConflict(f"{COMMIT_ATTEMPTS} commits conflicted with other writers", self.uri, AGAIN)

    def _replace_rows(
        self,
        dataset: LanceDataset,
        removed: list[int],
        updated: list[FragmentMetadata],
        added: Sequence[FragmentMetadata] = (),
    ) -> None:
        """Commit ``dataset`` without fragments ``removed``, with fragments ``updated`` and ``added``.

        Raises what ``_transact`` raises.
        """
        import lance

        operation = lance.LanceOperation.Update(
            removed_fragment_ids=removed, updated_fragments=updated, new_fragments=list(added)
        )
        self._transact(lance.Transaction(dataset.version, operation))

    def _transact(self, transaction: Transaction) -> None:
        """Commit ``transaction`` durably.

        Raises lance.commit.CommitConflictError, OSError for an unknown outcome, and StorageError if the disk fails.
        """
        import lance

        operation: Any = transaction.operation
        self.sync_fragments(operation.new_fragments, operation.updated_fragments)
        lance.LanceDataset.commit(self.uri, transaction, storage_options=self.options)
        self.sync_newest_version()

    # Lance flushes nothing: after a power failure, a committed version could refer to files that the disk has lost.

    def sync_fragments(self, new: Iterable[FragmentMetadata], updated: Iterable[FragmentMetadata] = ()) -> None:
        """Flush the data files of ``new`` fragments, and the deletion files of ``updated`` ones."""
        data = [f"data/{file.path}" for fragment in new for file in fragment.files]
        deletions = [(each.deletion_file, each.id) for each in updated]
        paths = [*data, *(file.path(fragment) for file, fragment in deletions if file is not None)]
        self._objects.sync(f"{self.path}/{path}" for path in paths)

    def sync_newest_version(self) -> None:
        """Flush the newest version; its data must have been flushed before it was committed."""
        if self.is_local:
            versions = (info.path for info in self._objects.list(f"{self.path}/_versions"))
            self._objects.sync([min(path for path in versions if path.endswith(".manifest"))])

    def sync_branch(self, cut: str) -> None:
        """Flush a new branch of this table."""
        if self.is_local:
            references = self._objects.list(f"{self.path}/_refs")
            self._objects.sync(info.path for info in references if cut in info.path)
            type(self)(self._objects, self._tenant, self.fingerprint, cut).sync_newest_version()

    def sync_indexes(self, dataset: LanceDataset, name: str | None = None) -> None:
        """Flush the indexes of ``dataset``, or only index ``name``, and the newest version.

        If an index is lost nevertheless, it is rebuilt.
        """
        if self.is_local:
            indexes = (index for index in dataset.describe_indices() if name in (None, index.name))
            for segment in chain.from_iterable(index.segments for index in indexes):
                folder = self._objects.list(f"{self.path}/_indices/{segment.uuid}")
                self._objects.sync(info.path for info in folder)
            self.sync_newest_version()


def _fragments(table: LanceTable) -> list[int]:
    return [fragment.fragment_id for fragment in table.open().get_fragments()]


def _read(table: LanceTable, among: list[int] | None, examine: Examine) -> tuple[list[int], set[Any]]:
    with reading(table.TITLE, table.uri):
        return read_fragments(table.open(), among, examine)


def allow_parallel_reads() -> None:
    """Let Lance read buckets with READS_AT_ONCE threads, unless the environment sets another number."""
    os.environ.setdefault("LANCE_IO_THREADS", str(READS_AT_ONCE))


@cache
def _session() -> Any:
    from lance import Session  # type: ignore[attr-defined]  # missing from pylance's stubs

    return Session(index_cache_size_bytes=INDEX_CACHE_BYTES, metadata_cache_size_bytes=METADATA_CACHE_BYTES)


def quote(text: str) -> str:
    """Quote ``text`` as a string literal for a Lance filter. Raises UsageError if no row can contain this text."""
    if not is_unicode(text):
        raise UsageError(
            "The name is not UTF-8, but all indexed names are", repr(text), "Check its spelling and encoding."
        )
    return "'" + text.replace("'", "''") + "'"


def is_one_of(column: str, values: Sequence[str]) -> str:
    """Return the filter ``column IN (values)``."""
    return f"{column} IN ({', '.join(quote(value) for value in values)})" if values else "false"


def _addresses(dataset: LanceDataset, where: str) -> NDArray[np.uint64]:
    def read(indexed: bool) -> NDArray[np.uint64]:
        scanner = dataset.scanner(columns=[], filter=where, with_row_address=True, use_scalar_index=indexed)
        return np.asarray(scanner.to_table()["_rowaddr"].to_numpy(), np.uint64)

    return with_indexes(dataset, "rows", read)


@retried
def without_rows(
    dataset: LanceDataset, filters: Sequence[str], addresses: Sequence[int] = ()
) -> tuple[list[int], list[FragmentMetadata]]:
    """Return ``dataset`` without the matching rows: ``(ids of emptied fragments, changed fragments)``.

    The rows at ``addresses`` are also removed.
    """
    matches = [np.asarray(addresses, np.uint64), *(_addresses(dataset, where) for where in filters)]
    doomed = np.unique(np.concatenate(matches))
    fragments = doomed >> np.uint64(ADDRESS_BITS)
    offsets = doomed & np.uint64((1 << ADDRESS_BITS) - 1)
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


FRAGMENT_ROWS = 1 << 15
"""Smaller fragments are merged. Larger fragments stay as runs wrote them until many of their rows are deleted."""
WORN_SHARE = 0.1
"""A fragment is rewritten without its deleted rows once their share exceeds this value."""
_OPTIONS: CompactionOptions = {
    "target_rows_per_fragment": FRAGMENT_ROWS,
    "materialize_deletions_threshold": WORN_SHARE,
    "num_threads": 1,
}


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The tasks for compacting ``version``. Each task is picklable input for ``rewrite`` on any worker."""

    version: int
    tasks: tuple[CompactionTask, ...]


def plan_compaction(table: LanceTable) -> CompactionPlan:
    """Plan which fragments to merge, and which to rewrite without their deleted rows."""
    from lance.optimize import Compaction

    dataset = table.open()
    plan = with_lance_retries(lambda: Compaction.plan(dataset, _OPTIONS))
    return CompactionPlan(dataset.version, tuple(plan.tasks))


def rewrite(table: LanceTable, task: CompactionTask) -> RewriteResult:
    """Rewrite a task's fragments under new names, invisible until the commit. The result is picklable.

    Raises StorageError.
    """
    with writing("Could not rewrite fragments", table.uri):
        return with_lance_retries(lambda: task.execute(table.open(task.read_version)))


def commit_compaction(table: LanceTable, plan: CompactionPlan, rewritten: Sequence[RewriteResult]) -> None:
    """Replace the compacted fragments with the results of all tasks, in one version.

    Raises CommitConflict if a writer changed one of the fragments after planning or if the store failed temporarily,
    and StorageError if it failed otherwise. After either error, plan and rewrite again: a failed commit deletes the
    rewritten fragments, so repeating only the commit would lose their rows.
    """
    from lance.optimize import Compaction

    try:
        table.sync_fragments(chain.from_iterable(each.new_fragments for each in rewritten))
        Compaction.commit(table.open(plan.version), list(rewritten), _OPTIONS)
        table.sync_indexes(table.open())  # it may have adapted some
    except OSError as error:  # includes CommitConflictError
        if is_conflict(error):
            raise CommitConflict("A writer changed the compacted fragments", table.uri, "Try again.") from error
        if is_network_failure(error):
            raise CommitConflict("The store failed while committing a compaction", table.uri, "Try again.") from error
        raise write_failed("Could not commit a compaction", table.uri, error) from error


def remove_old_versions(table: LanceTable, older_than: timedelta) -> int:
    """Delete versions older than ``older_than`` and the files that only they use; return the number of deleted
    versions.

    Files of uncommitted transactions are kept for a week, because a worker may still be writing them. The caller has
    fenced off every writer of the tenant. Raises StorageError.
    """
    with writing("Could not remove old versions", table.uri):
        stats = with_lance_retries(
            lambda: table.open().cleanup_old_versions(
                max(older_than, timedelta(microseconds=1)), delete_unverified=False, error_if_tagged_old_versions=False
            )
        )
    return int(stats.old_versions)


def data_file(fragment: LanceFragment) -> str:
    """Return the path of a fragment's first data file. Data file names are never reused."""
    file = fragment.data_files()[0]
    # The public property defines a class on every access, which took half the commit time for a table of 1,000 sources.
    return getattr(file, "_path", None) or str(file.path)


VECTOR = "vector_idx"
VECTOR_INDEX = "IVF_RQ"
"""One bit per dimension keeps the index small, and fast to scan completely. Candidates are then compared by their full
vectors.
"""
VECTOR_BITS = 1
VECTOR_METRIC: Literal["l2"] = "l2"
"""Lance returns the squared distance; half of it is 1 - cosine, because vectors have unit length. With "cosine", Lance
would normalize every vector again, which takes as long as the rest of the build.
"""
EXACT_SEARCH_ROWS = 20_000
"""Maximum number of filtered vectors to compare exactly, which is faster than scanning the whole index."""
REFINED_ROWS = 200
"""Minimum number of approximate candidates to compare exactly."""
MIN_REFINE_FACTOR = 3


def is_indexed(dataset: LanceDataset) -> bool:
    """Return whether the table has a vector index."""
    return any(index.name == VECTOR for index in dataset.describe_indices())


def is_indexable(dataset: LanceDataset) -> bool:
    """Return whether Lance can index the vectors: RaBitQ requires a multiple of 8 dimensions."""
    return int(dataset.schema.field("vector").type.list_size) % 8 == 0


def vector_options(dim: int) -> dict[str, Any]:
    """Return Lance's options for an index of ``dim``-dimensional vectors, or for a segment of one.

    There is one partition: searches would probe all partitions in any case, and assigning vectors to partitions takes
    most of the build time.
    """
    return {
        "index_type": VECTOR_INDEX,
        "metric": VECTOR_METRIC,
        "num_partitions": 1,
        "ivf_centroids": np.zeros((1, dim), np.float32),
        "num_bits": VECTOR_BITS,
        "rabitq_model": _rotation(dim),
    }


def create_vector_index(dataset: LanceDataset) -> None:
    """Build the index for the ``vector`` column."""
    dim = dataset.schema.field("vector").type.list_size
    dataset.create_index("vector", name=VECTOR, **vector_options(dim))


def nearest_options(dataset: LanceDataset, query: NDArray[np.float32], limit: int, *, by_index: bool) -> dict[str, Any]:
    """Return Lance's options for the ``limit`` rows nearest to a unit vector.

    Through the index, a search probes all of it, then compares candidates exactly.
    """
    options: dict[str, Any] = {"column": "vector", "q": query.astype(np.float16), "k": limit, "metric": VECTOR_METRIC}
    if not by_index:
        return {**options, "use_index": False}
    # Lance caps the probes at the number of partitions.
    probes = {"nprobes": dataset.count_rows(), "refine_factor": max(MIN_REFINE_FACTOR, REFINED_ROWS // limit)}
    return {**options, **probes}


def with_cosine_distance(rows: pa.Table) -> pa.Table:
    """Replace Lance's last column, the squared distance of unit vectors, by ``distance``, 1 - cosine."""
    halved = pc.divide(rows["_distance"], pa.scalar(2, pa.float32()))
    return rows.set_column(rows.num_columns - 1, "distance", halved)


@cache
def _rotation(dim: int) -> str:
    """Return the random rotation for RaBitQ as Lance's JSON; fixed, so segments can be merged and compared."""
    import lance

    model = json.loads(lance.lance.indices.build_rq_model(dim, VECTOR_BITS))
    signs = len(model["fast_rotation_signs"])
    model["fast_rotation_signs"] = list(hashlib.shake_256(f"driftline rotation {dim}".encode()).digest(signs))
    return json.dumps(model)


def streamed(write: Callable[[pa.RecordBatchReader], _Result], parts: Iterator[pa.Table]) -> _Result | None:
    """Return the result of ``write`` over the rows of ``parts``, or None if there are none.

    ``write`` runs in another thread. This thread computes a part once ``write`` has taken the one before: at most one
    is in memory, and the code that computes it keeps its thread and context. Raises what either of them raises.
    """
    first = next(parts, None)
    if first is None:
        return None
    schema = first.schema
    wanted, handed = SimpleQueue[bool](), SimpleQueue[pa.Table | None]()
    handed.put(first)
    del first

    def batches() -> Iterator[pa.RecordBatch]:
        while (part := handed.get()) is not None:
            yield from part.to_batches()
            del part  # before the next one is computed
            wanted.put(True)

    with ThreadPoolExecutor(1, "driftline-writer") as pool:
        try:
            written = pool.submit(write, pa.RecordBatchReader.from_batches(schema, batches()))
            written.add_done_callback(lambda _: wanted.put(False))
            while wanted.get():
                handed.put(next(parts, None))
        finally:
            handed.put(None)  # lets ``write`` end after an error or an interrupt, too
        return written.result()

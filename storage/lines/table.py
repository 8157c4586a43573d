"""The table of line embeddings: one row per line, kept in Lance (DESIGN, "Index run").

Workers write fragments; one place commits. A commit removes the old rows of the replaced
documents, adds the new fragments and rewrites the source's commit marker, in one version. Since
every commit of a source rewrites the same row, two of them conflict, and a lost acknowledgement
is found by looking at it. Commit markers have neither vector nor text, so no search returns them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.entities import Entity
from driftline.storage.errors import CommitConflict, CorruptFile, LeaseLost, StorageError
from driftline.storage.lance.errors import write_failed, writing
from driftline.storage.objects.store import ObjectStore

if TYPE_CHECKING:
    from lance import FragmentMetadata, LanceDataset, Transaction

    from driftline.storage.deltas.manifest import BatchId

VECTOR_TYPE = pa.float16()
"""Half the bytes of float32 and the same top ten (decision 0002)."""
MARKER_LINE = -1
"""``line_number`` of a commit marker."""
COMMIT_ATTEMPTS = 20
PATHS_PER_LOOKUP = 2_000
UNKNOWN_OUTCOMES = 3
"""So many transactions may fail without a word on whether they happened, before a commit gives up."""
LINES_PER_BLOCK = 16
"""Full-text search finds blocks of so many lines: fewer postings than by line, and words that stand together count."""
INDEX_CACHE_BYTES = 2 * 2**30
"""A vector index takes 46 bytes per line; a search that finds it in memory takes a tenth of the time."""
METADATA_CACHE_BYTES = 256 * 2**20
_ADDRESS_BITS = 32


def schema(dim: int) -> pa.Schema:
    """The columns of ``line_embeddings``; ``vector`` is ``(dim,) float16``; ``parent_dirs`` end with a slash.

    ``block`` stands in the first row of each block of a document: its path, a line feed, and the lines of the block
    from the first to the last that has a row, joined by line feeds (decision 0007).
    """
    return pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("entity", pa.string()),
            pa.field("path", pa.string()),
            pa.field("line_number", pa.int32()),
            pa.field("text", pa.string()),
            pa.field("vector", pa.list_(VECTOR_TYPE, dim)),
            pa.field("parent_dirs", pa.list_(pa.string())),
            pa.field("ext", pa.string()),
            pa.field("hash", pa.string()),
            pa.field("block", pa.string(), metadata={"lance-encoding:compression": "zstd"}),
        ]
    )


@dataclass(frozen=True, slots=True)
class CommitMarker:
    """A source's commit marker: the newest fencing token, and the last batch that was committed."""

    token: int
    run_id: str = ""
    batch: int = 0

    def holds(self, batch: BatchId) -> bool:
        """Whether ``batch`` is committed: batches of a run are committed in their order."""
        return self.run_id == batch.run_id and self.batch >= batch.batch


class LineTable:
    """``line_embeddings`` of one tenant and one embedding fingerprint."""

    def __init__(self, objects: ObjectStore, tenant: Entity, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.path = f"{tenant.directory}/_tables/line_embeddings-{fingerprint}.lance"
        self.uri = objects.lance_uri(self.path)
        self.options = objects.lance_options
        self._objects = objects

    # -- opening -----------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether any version of the table has been committed."""
        return any(info.path.endswith(".manifest") for info in self._objects.list(f"{self.path}/_versions"))

    def open(self, version: int | None = None, *, cached: bool = False) -> LanceDataset:
        """The newest version, or the one given. Raises CorruptFile when Lance cannot read it.

        With ``cached``, what it reads of indexes is kept for later searches of this process.
        """
        import lance

        try:
            session = _session() if cached else None
            return lance.dataset(self.uri, version, storage_options=self.options, session=session)
        except (ValueError, OSError) as error:
            if not self.exists():
                raise StorageError("The table of lines does not exist", self.uri, "Index a source first.") from error
            raise CorruptFile(
                f"The table of lines cannot be read ({first_line(error)})", self.uri, "Restore it, or index anew."
            ) from error

    def create(self, dim: int) -> LanceDataset:
        """Create the table for vectors of ``dim`` numbers, or open the one that another run has just created."""
        import lance

        if not self.exists():
            try:
                return lance.write_dataset(
                    schema(dim).empty_table(),
                    self.uri,
                    mode="create",
                    enable_stable_row_ids=True,
                    storage_options=self.options,
                )
            except OSError as error:  # a CommitConflictError is one, too
                if not self.exists():
                    raise write_failed("Cannot create a table", self.uri, error) from error
        return self.open()

    def tracked_files(self) -> frozenset[str]:
        """The files that any version refers to, by their paths within the table. Raises CorruptFile."""
        found: set[str] = set()
        try:
            for batch in self.open().tracked_files():
                found.update(pc.unique(batch.column("path")).to_pylist())
        except (ValueError, OSError) as error:
            raise CorruptFile(
                f"A version of the table cannot be read ({first_line(error)})", self.uri, "Restore it."
            ) from error
        return frozenset(found)

    # -- writing -----------------------------------------------------------------------------

    def write_fragments(self, rows: pa.Table) -> list[str]:
        """Write ``rows``, of ``schema(dim)``, as fragments that no reader sees before a commit; returns them as JSON.

        Safe on any worker, at any time: the files have unique names. Raises StorageError.
        """
        from lance.fragment import write_fragments

        with writing("Lines cannot be written", self.uri):
            fragments = write_fragments(
                rows,
                self.uri,
                schema=rows.schema,
                enable_stable_row_ids=True,
                storage_options=self.options,
            )
        return [json.dumps(fragment.to_json()) for fragment in fragments]

    def commit_marker(self, entity: Entity) -> CommitMarker:
        """What is written down of ``entity``; token 0 if nothing is."""
        return _newest(self._markers(entity, self.open()))

    def fence(self, entity: Entity, token: int) -> CommitMarker:
        """Write ``token`` into the commit marker, so that a stale holder's commit conflicts; return the old one."""
        return self._commit(entity, token, None, (), ())

    def commit(
        self, entity: Entity, token: int, batch: BatchId, replaced: Sequence[str], fragments: Sequence[str]
    ) -> None:
        """Remove the rows of the ``replaced`` paths, add ``fragments`` and record ``batch``, in one version.

        Exactly once: a batch that the marker holds already is left alone. Raises LeaseLost when a
        newer token is found, CommitConflict after ``COMMIT_ATTEMPTS``.
        """
        self._commit(entity, token, batch, replaced, fragments)

    def _commit(
        self, entity: Entity, token: int, batch: BatchId | None, replaced: Sequence[str], fragments: Sequence[str]
    ) -> CommitMarker:
        """One transaction that removes every commit marker it has seen and writes a new one; returns what stood there.

        Two transactions conflict only if they remove the same row. So where there is no row yet, one is laid down
        first, with the token alone: of two holders that do so at once, one sees the other's row beside its own.
        """
        import lance
        from lance.commit import CommitConflictError

        new = [lance.FragmentMetadata.from_json(text) for text in fragments]
        written: dict[CommitMarker, list[FragmentMetadata]] = {}
        unknown_outcomes = 0
        for _ in range(COMMIT_ATTEMPTS):
            dataset = self.open()
            rows = self._markers(entity, dataset)
            before = _newest(rows)
            if before.token > token:
                raise LeaseLost(
                    f"Another run has taken {entity} over (token {before.token}, ours is {token})", self.uri
                )
            entry = CommitMarker(token, batch.run_id, batch.batch) if batch else replace(before, token=token)
            if entry in rows if batch else rows == [entry]:
                return before  # an earlier attempt succeeded, and its acknowledgement was lost
            if not rows:
                entry = CommitMarker(token)
            if entry not in written:
                texts = self.write_fragments(_marker_row(dataset.schema, entity, entry))
                written[entry] = [lance.FragmentMetadata.from_json(text) for text in texts]
            if rows:
                removed, updated = without_rows(dataset, [_marker_filter(entity), *_path_filters(entity, replaced)])
                operation = lance.LanceOperation.Update(
                    removed_fragment_ids=removed, updated_fragments=updated, new_fragments=[*new, *written[entry]]
                )
            else:
                operation = lance.LanceOperation.Update(new_fragments=written[entry])
            try:
                self._transact(lance.Transaction(dataset.version, operation))
                if rows:
                    return before
            except CommitConflictError:
                pass  # plan the deletes again on the newest version; the new fragments stay as they are
            except OSError as error:
                unknown_outcomes += 1
                if unknown_outcomes == UNKNOWN_OUTCOMES:
                    raise write_failed("A commit failed", self.uri, error) from error
        raise CommitConflict(
            f"{COMMIT_ATTEMPTS} attempts to commit to the table met other writers", self.uri, "Run it again."
        )

    def _markers(self, entity: Entity, dataset: LanceDataset) -> list[CommitMarker]:
        found = dataset.to_table(columns=["hash"], filter=_marker_filter(entity))["hash"].to_pylist()
        return [CommitMarker(**json.loads(text)) for text in found]

    def _transact(self, transaction: Transaction) -> None:
        import lance

        lance.LanceDataset.commit(self.uri, transaction, storage_options=self.options)

    # -- reading -----------------------------------------------------------------------------

    def count(self, where: str | None = None) -> int:
        """How many lines there are, or how many match the filter ``where``."""
        return int(self.open().count_rows(lines_only(where)))

    def paths(self, entity: Entity) -> set[str]:
        """The documents of a source that have lines; reads all their paths."""
        batches = self.rows(["path"], f"entity = {quote(str(entity))}")
        return {path for batch in batches for path in pc.unique(batch.column("path")).to_pylist()}

    def rows(self, columns: Sequence[str], where: str | None = None) -> Iterator[pa.RecordBatch]:
        """The lines in batches, unordered."""
        yield from self.open().to_batches(columns=list(columns), filter=lines_only(where))


@cache
def _session() -> Any:
    from lance import Session  # type: ignore[attr-defined]  # pylance's stubs leave it out

    return Session(index_cache_size_bytes=INDEX_CACHE_BYTES, metadata_cache_size_bytes=METADATA_CACHE_BYTES)


def _marker_row(columns: pa.Schema, entity: Entity, entry: CommitMarker) -> pa.Table:
    row = {"id": 0, "entity": str(entity), "path": "", "line_number": MARKER_LINE, "hash": json.dumps(asdict(entry))}
    return pa.Table.from_pylist([{name: row.get(name) for name in columns.names}], schema=columns)


def _newest(rows: Sequence[CommitMarker]) -> CommitMarker:
    """The highest token, and the last batch: a row that was laid down beside another names none."""
    batches = max((row for row in rows if row.run_id), key=lambda row: row.token, default=CommitMarker(0))
    return replace(batches, token=max((row.token for row in rows), default=0))


def quote(text: str) -> str:
    """``text`` as a string literal of a Lance filter: data, never syntax."""
    return "'" + text.replace("'", "''") + "'"


def is_one_of(column: str, values: Sequence[str]) -> str:
    """The filter ``column IN (values)``."""
    return f"{column} IN ({', '.join(quote(value) for value in values)})" if values else "false"


def lines_only(where: str | None) -> str:
    only = f"line_number > {MARKER_LINE}"
    return f"({where}) AND {only}" if where else only


def no_lines(where: str | None) -> str:
    """The rows that match and are no lines, which an index of paths finds."""
    return f"path = '' AND ({where})" if where else "path = ''"


def _marker_filter(entity: Entity) -> str:
    return f"path = '' AND line_number = {MARKER_LINE} AND entity = {quote(str(entity))}"


def _path_filters(entity: Entity, paths: Sequence[str]) -> list[str]:
    chunks = [paths[i : i + PATHS_PER_LOOKUP] for i in range(0, len(paths), PATHS_PER_LOOKUP)]
    return [f"{is_one_of('path', chunk)} AND entity = {quote(str(entity))}" for chunk in chunks]


def without_rows(dataset: LanceDataset, filters: Sequence[str]) -> tuple[list[int], list[FragmentMetadata]]:
    """Fragments of ``dataset`` without the rows that match: ``(ids of emptied ones, the others that change)``."""
    found = [
        dataset.scanner(columns=[], filter=where, with_row_address=True).to_table()["_rowaddr"].to_numpy()
        for where in filters
    ]
    addresses = np.unique(np.concatenate(found))
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


def first_line(error: BaseException) -> str:
    """What an error says, cut to one line."""
    return str(error).partition("\n")[0][:300]

"""Write, read and count the Lance table of line embeddings, one row per line (DESIGN, "Index run").

Workers write fragments; one process commits. A commit removes the old rows of replaced documents, adds fragments and
rewrites the source's commit marker, all in one version.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError, LeaseLost, StorageError
from driftline.storage.lance.failures import (
    is_lance_failure,
    read_failed,
    reading,
    retried,
    with_indexes,
    write_failed,
)
from driftline.storage.lance.lance_table import (
    COMMIT_ATTEMPTS,
    VECTOR_TYPE,
    LanceTable,
    TableFile,
    is_one_of,
    quote,
    without_rows,
)
from driftline.storage.layout import ByteRange
from driftline.storage.lines.commit_marker import (
    MARKER_LINE,
    CommitMarker,
    SourceCommit,
    lines_only,
    marker_rows,
    newest,
    read_markers,
)
from driftline.storage.lines.outline import OUTLINE_COLUMN

if TYPE_CHECKING:
    from lance import FragmentMetadata, LanceDataset, LanceFragment


PATHS_PER_LOOKUP = 2_000
UNKNOWN_OUTCOMES = 3
"""How many unknown outcomes are tolerated per commit."""
TEXT_COLUMN, TEXT = "block", "text_idx"
"""The column of blocks, and its full-text index."""
LINES_PER_BLOCK = 16
"""Lines per block of the full-text index. Blocks need fewer postings than lines, and words of neighbouring lines add
up. A block has at most this many rows.
"""
CODE_COLUMN = "block_code"
METADATA_BYTES = 2**13
END_BYTES_PER_ROW, EXACT_BYTES_PER_ROW = 14, 9
"""Sizes in a data file of the columns that every search needs: CODE_COLUMN and later columns, and for exact searches
PACK_LINE_COLUMN and later columns. The metadata of the file follows them.
"""
PACK_COLUMN, PACK_LINE_COLUMN, GRAMS_COLUMN = "pack", "pack_line", "grams"
SPELLED, CONTINUED = "\x1f", "\r"
_COMPRESSED = {
    "lance-encoding:compression": "zstd",
    "lance-encoding:structural-encoding": "miniblock",
    "lance-encoding:minichunk-size": str(2**14),
}
"""Neighbouring values are compressed together, in a third of the bytes, and a value is read without looking up its
offset. Chunks of Lance's default size, 4 KiB, would make texts a third larger."""
_PACKED = {**_COMPRESSED, "lance-encoding:minichunk-size": str(2**16), "lance-encoding:compression-level": "6"}
"""Packs are larger than blocks, and most are read once: several share a chunk, in three quarters of the bytes."""


def schema(dim: int) -> pa.Schema:
    """Return the columns of ``line_embeddings``; ``vector`` is ``(dim,) float16``; ``parent_dirs`` end with a slash.

    A long line has several rows; ``column_number`` is the column where a row starts.

    Only the first row of each block has ``block``, ``outline`` and ``block_code``. ``block`` consists of the path; a
    tab and the name of the definition that the block starts in, if any; SPELLED and the words that the index's own
    tokenizer would miss (tokenizer.py), if any; a newline; and the lines of the block from the first to the last that
    has a row, joined by newlines, or by CONTINUED if a row continues a line (decision 0007). ``outline`` contains the
    block's definitions (outline.py), or null if they were not determined. ``block_code`` is the block's quantized
    vector (block_codes.py), or null if the model knows none of its words.

    Some rows have a ``pack``: their document's text from line ``pack_line`` to the next pack, exactly as decoded, with
    ``grams``, the filter over its trigrams and parts of words (packs.py).

    Files hold the columns in this order; the files of earlier tables may have another. The columns that every search
    reads come last, next to the metadata of the file, so that one read of the end of the file gets both
    (block_cache.py). Exact searches read the end from ``pack_line`` on, ranked searches from ``block_code`` on.
    """
    return pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("text", pa.string()),
            pa.field("vector", pa.list_(VECTOR_TYPE, dim)),
            pa.field("parent_dirs", pa.list_(pa.string())),
            pa.field("ext", pa.string()),
            pa.field(PACK_COLUMN, pa.string(), metadata=_PACKED),
            pa.field(TEXT_COLUMN, pa.string(), metadata=_COMPRESSED),
            pa.field(CODE_COLUMN, pa.binary(), metadata=_COMPRESSED),
            pa.field(PACK_LINE_COLUMN, pa.int32()),
            pa.field(GRAMS_COLUMN, pa.binary(), metadata=_COMPRESSED),
            pa.field("entity", pa.string()),
            pa.field("path", pa.string()),
            pa.field("line_number", pa.int32()),
            pa.field("column_number", pa.int32()),
            pa.field("hash", pa.string()),
            pa.field(OUTLINE_COLUMN, pa.string(), metadata=_COMPRESSED),
        ]
    )


def searched_parts(
    fragments: Iterable[LanceFragment], bytes_per_row: int = END_BYTES_PER_ROW
) -> dict[TableFile, ByteRange]:
    """Return the byte ranges of ``fragments`` that every search reads: the ends of data files, and deletion files.

    The end of a file has its metadata and ``bytes_per_row`` of its columns.
    """
    parts: dict[TableFile, ByteRange] = {}
    for fragment in fragments:
        metadata: Any = fragment.metadata
        for file in metadata.files:
            if size := file.file_size_bytes:
                start = size - METADATA_BYTES - bytes_per_row * metadata.physical_rows
                parts[TableFile(f"data/{file.path}", file.base_id)] = max(0, start), size
        if (deletions := metadata.deletion_file) is not None:
            parts[TableFile(deletions.path(fragment.fragment_id), deletions.base_id)] = 0, None
    return parts


class LineTable(LanceTable):
    """The ``line_embeddings`` table of one tenant and one embedding fingerprint."""

    KIND = "line"
    COLUMNS = tuple(schema(1).names)
    TITLE = "lines"
    REPAIR = "Restore it, or index the sources again."

    def create(self, dim: int) -> None:
        """Create the table for ``dim``-dimensional vectors unless it exists. Raises StorageError."""
        self._create(schema(dim).empty_table())

    # -- writing -----------------------------------------------------------------------------

    def write_fragments(self, rows: pa.Table | Callable[[], Iterator[pa.Table]]) -> list[str]:
        """Write rows of ``schema(dim)`` like ``write``, and return the fragments as JSON, for ``commit``.

        Raises StorageError, and UsageError if the table's format is unsupported.
        """
        try:
            fragments = self.write(rows)
        except StorageError:
            if self.exists():
                self.open()  # reports the format if that is the cause
            raise
        return [json.dumps(fragment.to_json()) for fragment in fragments]

    def commit_marker(self, entity: Entity) -> CommitMarker:
        """Return the commit marker of ``entity``; it has token 0 if the table has none."""
        return self.marker_in(self.open(), entity)

    def commit_markers(self, entities: Sequence[Entity]) -> dict[Entity, CommitMarker]:
        """Return the commit marker of each of ``entities``; it has token 0 if the table has none."""
        found = read_markers(self, self.open(), entities)
        return {entity: newest(list(found[str(entity)].values())) for entity in entities}

    def marker_in(self, dataset: LanceDataset, entity: Entity) -> CommitMarker:
        """Like ``commit_marker``, for a given version of the table."""
        return newest(list(read_markers(self, dataset, [entity])[str(entity)].values()))

    def fence(self, entity: Entity, token: int) -> CommitMarker:
        """Write ``token`` into the commit marker, which fences off stale holders; return the old marker.

        Raises LeaseLost, CommitConflict, StorageError.
        """
        return self.commit([SourceCommit(entity, token)], ())[0]

    def commit(self, parts: Sequence[SourceCommit], fragments: Sequence[str]) -> list[CommitMarker]:
        """Commit ``parts`` of one or several sources, whose rows share ``fragments``, in one version: all or none.

        Exactly once: batches that the markers already record are skipped. Returns the old commit markers. Raises
        LeaseLost if a marker has a newer token: none of the parts can ever be committed then. Also raises
        CommitConflict after ``COMMIT_ATTEMPTS``, and StorageError.

        The transaction replaces every existing marker. Two transactions conflict only if they remove the same row.
        Sources with no marker therefore first get one that has only the token. If two holders write one concurrently,
        the later commit sees both markers.
        """
        import lance
        from lance.commit import CommitConflictError

        new = [lance.FragmentMetadata.from_json(text) for text in fragments]
        written: dict[tuple[CommitMarker, ...], list[FragmentMetadata]] = {}
        failures: list[OSError] = []
        # The last attempt only looks for the batch.
        for attempt, dataset in enumerate(self.commit_attempts(COMMIT_ATTEMPTS + 1)):
            found = read_markers(self, dataset, [part.entity for part in parts])
            rows = [found[str(part.entity)] for part in parts]
            before = [newest(list(each.values())) for each in rows]
            if any(part.is_committed(each) for part, each in zip(parts, rows, strict=True)):
                return before  # an earlier attempt succeeded, but its acknowledgement was lost
            for part, marker in zip(parts, before, strict=True):
                if marker.token > part.token:
                    raise self._fenced(part, marker, is_known=not failures or len(parts) == 1)
            if len(failures) == UNKNOWN_OUTCOMES:
                raise write_failed("Could not commit to the table", self.uri, failures[-1]) from failures[-1]
            if attempt == COMMIT_ATTEMPTS:
                break
            unmarked = [part for part, each in zip(parts, rows, strict=True) if not each]
            if unmarked:
                entities = [part.entity for part in unmarked]
                markers = [CommitMarker(part.token) for part in unmarked]
                additions, removals, addresses = [], list[str](), list[int]()
            else:
                entities = [part.entity for part in parts]
                markers = [part.after(marker) for part, marker in zip(parts, before, strict=True)]
                additions, removals = new, [where for part in parts for where in _path_filters(part.entity, part.gone)]
                addresses = [address for each in rows for address in each]
            key = tuple(markers)
            if key not in written:
                written[key] = self.write(marker_rows(dataset.schema, entities, markers))
            try:
                removed, updated = without_rows(dataset, removals, addresses) if removals or addresses else ([], [])
                self._replace_rows(dataset, removed, updated, [*additions, *written[key]])
                if not unmarked:
                    return before
            except CommitConflictError:
                pass  # recompute the deletions for the newest version; the new fragments stay valid
            except OSError as error:
                failures.append(error)  # the outcome is unknown: look for the batch first
        raise self.conflicted()

    def _fenced(self, part: SourceCommit, marker: CommitMarker, *, is_known: bool) -> DriftlineError:
        """Return the error for a fenced holder. Unless ``is_known`` is set, an attempt may still get committed."""
        why = f"Another run took over {part.entity} (its token is {marker.token}, ours is {part.token})"
        return (LeaseLost if is_known else StorageError)(why, self.uri, "Start this run again.")

    # -- reading -----------------------------------------------------------------------------

    def count(self, where: str | None = None) -> int:
        """Return the number of lines, or of lines that match ``where``.

        Raises StorageError, CorruptFile.
        """
        with reading(self.TITLE, self.uri):
            return int(self.open().count_rows(lines_only(where)))

    def paths(self, entity: Entity) -> set[str]:
        """Return the paths of a source's documents that have lines; reads every line's path."""
        batches = self.rows(["path"], f"entity = {quote(str(entity))}")
        return {path for batch in batches for path in pc.unique(batch.column("path")).to_pylist()}

    def of_documents(self, entity: Entity, paths: Sequence[str], columns: Sequence[str] | None = None) -> pa.Table:
        """Return ``columns`` (default: all) of the lines of documents, unordered. Raises StorageError, CorruptFile."""
        dataset = self.open()
        names = list(dataset.schema.names if columns is None else columns)
        filters = _path_filters(entity, paths)
        found = [with_indexes(dataset, self.TITLE, partial(_read, dataset, names, where)) for where in filters]
        return pa.concat_tables([dataset.schema.empty_table().select(names), *found])

    def rows(self, columns: Sequence[str], where: str | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the lines in batches, unordered. Raises StorageError, CorruptFile."""
        with reading(self.TITLE, self.uri):
            yield from self.open().to_batches(columns=list(columns), filter=lines_only(where))


def each_document(rows: pa.Table, paths: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of each document in ``paths``, sorted by line and column; ``rows``, from ``of_documents``, are
    sorted once.
    """
    rows = rows.sort_by([(name, "ascending") for name in ("path", "line_number", "column_number")])
    names = pa.array(paths, pa.string())
    starts, ends = (pc.search_sorted(rows["path"], names, side=side).to_pylist() for side in ("left", "right"))
    for start, end in zip(starts, ends, strict=True):
        yield rows.slice(start, end - start)


def _read(dataset: LanceDataset, columns: list[str], where: str, indexed: bool) -> pa.Table:
    return dataset.scanner(columns=columns, filter=where, use_scalar_index=indexed).to_table()


def _path_filters(entity: Entity, paths: Sequence[str]) -> list[str]:
    chunks = [paths[i : i + PATHS_PER_LOOKUP] for i in range(0, len(paths), PATHS_PER_LOOKUP)]
    return [f"{is_one_of('path', chunk)} AND entity = {quote(str(entity))}" for chunk in chunks]


COUNTS = pa.schema([("entity", pa.string()), ("path", pa.string()), ("hash", pa.string()), ("rows", pa.int64())])
MERGE_ROWS = 1_000_000
"""Number of partial counts collected before a merge."""
IDS_AT_ONCE = 32_000_000
"""Number of ids compared per pass, in 256 MB; more ids take several passes."""
MAX_REPEATED = 10_000
"""Maximum number of repeated ids to look up; more would only lengthen a report that already shows widespread damage."""
LOOKUP_IDS = 1_000


@dataclass(frozen=True, slots=True)
class Inventory:
    """The line counts of a table.

    ``counts`` has the schema COUNTS, sorted by entity and path; ``version`` is the counted table version. ``repeated``
    contains the ``(entity, path)`` of documents with duplicate lines. ``markers`` maps each entity's name to its number
    of commit markers.
    """

    version: int
    counts: pa.Table
    repeated: frozenset[tuple[str, str]]
    markers: dict[str, int]

    def of(self, entity: str) -> pa.Table:
        """Return ``path, hash, rows`` of one entity."""
        start, end = (pc.search_sorted(self.counts["entity"], entity, side=side).as_py() for side in ("left", "right"))
        return self.counts.slice(start, end - start).drop_columns(["entity"])


EMPTY_INVENTORY = Inventory(0, COUNTS.empty_table(), frozenset(), {})


@retried
def take_inventory(table: LineTable) -> Inventory:
    """Count the lines in the newest version of ``table``. Memory use grows with documents, not lines.

    Raises CorruptFile, StorageError.
    """
    dataset = table.open()
    try:
        counts, markers = _counted(dataset)
        return Inventory(dataset.version, counts, _repeated(dataset), markers)
    except BaseException as error:
        if not is_lance_failure(error):
            raise
        raise read_failed("Cannot read the lines table", table.uri, error, table.REPAIR) from error


def _counted(dataset: LanceDataset) -> tuple[pa.Table, dict[str, int]]:
    merged, pending, pending_rows = COUNTS.empty_table(), [], 0
    for batch in dataset.to_batches(columns=["entity", "path", "hash", "line_number"]):
        lines = pa.table(batch)
        marker = pc.equal(lines["line_number"], MARKER_LINE)
        hashes = pc.if_else(marker, "", lines["hash"])
        lines = lines.set_column(lines.schema.get_field_index("hash"), "hash", hashes)
        part = _sum(lines.select(["entity", "path", "hash"]).append_column("rows", pa.repeat(pa.scalar(1), len(lines))))
        pending.append(part)
        pending_rows += len(part)
        if pending_rows > MERGE_ROWS:
            merged, pending, pending_rows = _sum(pa.concat_tables([merged, *pending])), [], 0
    merged = _sum(pa.concat_tables([merged, *pending]))
    is_marker = pc.equal(merged["path"], "")
    markers = merged.filter(is_marker)
    counts = merged.filter(pc.invert(is_marker)).sort_by([("entity", "ascending"), ("path", "ascending")])
    return counts, dict(zip(markers["entity"].to_pylist(), markers["rows"].to_pylist(), strict=True))


def _sum(counts: pa.Table) -> pa.Table:
    summed = counts.group_by(["entity", "path", "hash"]).aggregate([("rows", "sum")])
    return summed.rename_columns(["entity", "path", "hash", "rows"]).select(COUNTS.names).cast(COUNTS)


def _repeated(dataset: LanceDataset) -> frozenset[tuple[str, str]]:
    """Return the documents with duplicate lines. Row ids are derived from document, line and column."""
    passes = 1 + dataset.count_rows() // IDS_AT_ONCE
    repeated_ids = np.concatenate([_repeated_ids(dataset, number, passes) for number in range(passes)])[:MAX_REPEATED]
    documents: set[tuple[str, str]] = set()
    for start in range(0, len(repeated_ids), LOOKUP_IDS):
        ids = ", ".join(map(str, repeated_ids[start : start + LOOKUP_IDS]))
        where = f"id IN ({ids}) AND line_number > {MARKER_LINE}"
        columns = ["entity", "path", "line_number", "column_number"]
        rows = dataset.to_table(columns=columns, filter=where)
        grouped = rows.group_by(columns).aggregate([([], "count_all")])
        duplicates = grouped.filter(pc.greater(grouped["count_all"], 1))
        documents.update(zip(duplicates["entity"].to_pylist(), duplicates["path"].to_pylist(), strict=True))
    return frozenset(documents)


def _repeated_ids(dataset: LanceDataset, number: int, passes: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    parts = [np.empty(0, np.int64)]
    for batch in dataset.to_batches(columns=["id"], filter=f"line_number > {MARKER_LINE}"):
        ids = batch.column("id").to_numpy()
        parts.append(ids[ids % passes == number] if passes > 1 else ids)
    ids = np.sort(np.concatenate(parts))
    repeated: np.ndarray[Any, np.dtype[np.int64]] = np.unique(ids[1:][ids[1:] == ids[:-1]])
    return repeated

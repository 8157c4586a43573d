"""Count the lines of each document in one pass, and check that the indexes find sampled lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.lance.failures import is_damage, is_lance_failure, read_failed, retried, with_retries
from driftline.storage.lance.lance_table import VECTOR, VECTOR_METRIC, quote
from driftline.storage.lines.commit_marker import MARKER_LINE
from driftline.storage.lines.indexes import PARENT_DIRS, PATH, coverage
from driftline.storage.lines.line_table import TEXT, LineTable

if TYPE_CHECKING:
    from lance import LanceDataset

COUNTS = pa.schema([("entity", pa.string()), ("path", pa.string()), ("hash", pa.string()), ("rows", pa.int64())])
MERGE_ROWS = 1_000_000
"""Number of partial counts collected before a merge."""
IDS_AT_ONCE = 32_000_000
"""Number of ids compared per pass, in 256 MB; more ids take several passes."""
MAX_REPEATED = 10_000
"""Maximum number of repeated ids to look up; more would only lengthen a report that already shows widespread damage."""
LOOKUP_IDS = 1_000
SAMPLE_ROWS = 16
UNREADABLE_INDEX = "its files cannot be read"

_INDEXED_WORD = re.compile(r"(?<![\w])[A-Za-z]{6,40}(?![\w])")
"""A word that the full-text index always contains: neither a stop word nor too long."""


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


EMPTY = Inventory(0, COUNTS.empty_table(), frozenset(), {})


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
        columns = [name for name in columns if name in dataset.schema.names]  # tables of 0.1 have no columns of lines
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


# -- indexes ---------------------------------------------------------------------------------


def index_names(table: LineTable) -> list[str]:
    """Return the names of the indexes of ``table``, without reading the indexes."""
    return [index.name for index in table.open().describe_indices()]


def check_indexes(table: LineTable, seed: str) -> Iterator[tuple[str, str]]:
    """Yield ``(index, problem)`` for each index that reports a wrong row count or misses a sampled line.

    The sample has ``SAMPLE_ROWS`` lines, drawn with ``seed``, so that each run can draw others; each is searched
    with and without the index.
    """
    dataset = table.open()
    known, rows = coverage(dataset), dataset.count_rows()
    for index in dataset.describe_indices():
        if index.name not in known:
            yield index.name, UNREADABLE_INDEX
    for name, covered in known.items():
        if covered.indexed_rows + covered.unindexed_rows != rows:
            yield name, f"it counts {covered.indexed_rows + covered.unindexed_rows:,} rows of {rows:,}"
    sample = _sample(dataset, rows, seed)
    counts = _Counts(dataset)
    for name in known:
        try:
            missed = sum(not with_retries(partial(_finds, dataset, counts, name, line)) for line in sample)
        except BaseException as error:
            if not is_damage(error):
                raise
            yield name, UNREADABLE_INDEX
            continue
        if missed:
            yield name, f"it misses {missed} of {len(sample)} sampled lines"


def _sample(dataset: LanceDataset, rows: int, seed: str) -> list[dict[str, Any]]:
    offsets = np.random.default_rng([*seed.encode()]).choice(rows, min(rows, SAMPLE_ROWS), replace=False)
    columns = ["id", "entity", "path", "text", "vector", "parent_dirs", "line_number"]
    taken = dataset.take(sorted(offsets.tolist()), columns=columns).to_pylist()
    return [line for line in taken if line["line_number"] > MARKER_LINE]


class _Counts:
    """Counts the rows of a document or folder that meet a condition, with indexes and by a scan; caches both counts."""

    def __init__(self, dataset: LanceDataset) -> None:
        self.indexed = cache(dataset.count_rows)
        self.scanned = cache(partial(_scanned, dataset))

    def agree(self, where: str) -> bool:
        return bool(self.indexed(where) == self.scanned(where))


def _finds(dataset: LanceDataset, counts: _Counts, index: str, line: dict[str, Any]) -> bool:
    """Return whether a search through ``index`` finds everything that a scan finds for the document of ``line``."""
    here = f"entity = {quote(line['entity'])} AND path = {quote(line['path'])}"
    if index == PATH:
        return counts.agree(here)
    if index == PARENT_DIRS:
        if not line["parent_dirs"]:
            return True
        below = f"array_has_any(parent_dirs, [{quote(line['parent_dirs'][-1])}])"
        return counts.agree(below)
    if index == TEXT:
        words = _INDEXED_WORD.findall(line["text"])
        if not words:
            return True
        query = {"query": max(words, key=len), "columns": ["text"]}
        return _holds(
            dataset.scanner(columns=["id"], full_text_query=query, filter=here, prefilter=True, use_scalar_index=False),
            line,
        )
    if index == VECTOR and line["vector"] is not None:
        nearest = {
            "column": "vector",
            "q": np.asarray(line["vector"], np.float16),
            "k": 1 + counts.scanned(here),
            "metric": VECTOR_METRIC,
            "nprobes": max(1, counts.indexed()),
        }
        return _holds(
            dataset.scanner(columns=["id"], nearest=nearest, filter=here, prefilter=True, use_scalar_index=False), line
        )
    return True


def _holds(scanner: Any, line: dict[str, Any]) -> bool:
    return line["id"] in scanner.to_table()["id"].to_pylist()


def _scanned(dataset: LanceDataset, where: str) -> int:
    return int(dataset.scanner(columns=["id"], filter=where, use_scalar_index=False).count_rows())

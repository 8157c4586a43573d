"""What a table of lines holds of each document, counted in one pass over it; and whether its indexes find it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.errors import CorruptFile
from driftline.storage.lance.table import quote
from driftline.storage.lance.vector_index import VECTOR, VECTOR_METRIC
from driftline.storage.lines.indexes import PARENT_DIRS, PATH, TEXT, coverage
from driftline.storage.lines.table import MARKER_LINE, LineTable

if TYPE_CHECKING:
    from lance import LanceDataset

COUNTS = pa.schema([("entity", pa.string()), ("path", pa.string()), ("hash", pa.string()), ("rows", pa.int64())])
MERGE_ROWS = 1_000_000
"""Partial counts that are kept before they are merged."""
IDS_AT_ONCE = 32_000_000
"""Ids that are compared at once, 256 MB; more take several passes over the ids."""
MAX_REPEATED = 10_000
"""So many repeated ids are looked up; whoever has more has them in many documents anyway."""
LOOKUP_IDS = 1_000
SAMPLE_ROWS = 16

_INDEXED_WORD = re.compile(r"(?<![\w])[A-Za-z]{6,40}(?![\w])")
"""A word that a full-text index surely holds: neither a stop word nor too long."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """``counts`` (of COUNTS) are sorted by entity and path; ``repeated`` are ``(entity, path)`` with a line twice.

    ``markers`` counts the commit markers of each entity, by its name.
    """

    version: int
    counts: pa.Table
    repeated: frozenset[tuple[str, str]]
    markers: dict[str, int]

    def of(self, entity: str) -> pa.Table:
        """``path, hash, rows`` of one entity."""
        return self.counts.filter(pc.equal(self.counts["entity"], entity)).drop_columns(["entity"])


EMPTY = Inventory(0, COUNTS.empty_table(), frozenset(), {})


def take_inventory(table: LineTable) -> Inventory:
    """Count the newest version of ``table``. Raises CorruptFile.

    Memory grows with the documents, not with their lines.
    """
    dataset = table.open()
    try:
        counts, markers = _counted(dataset)
        return Inventory(dataset.version, counts, _repeated(dataset), markers)
    except (ValueError, OSError) as error:
        raise CorruptFile(
            f"The table of lines cannot be read ({str(error)[:300]})", table.uri, "Restore it, or index anew."
        ) from error


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
    is_ledger = pc.equal(merged["path"], "")
    markers = merged.filter(is_ledger)
    found = dict(zip(markers["entity"].to_pylist(), markers["rows"].to_pylist(), strict=True))
    counts = merged.filter(pc.invert(is_ledger)).sort_by([("entity", "ascending"), ("path", "ascending")])
    return counts, found


def _sum(counts: pa.Table) -> pa.Table:
    summed = counts.group_by(["entity", "path", "hash"]).aggregate([("rows", "sum")])
    return summed.rename_columns(["entity", "path", "hash", "rows"]).select(COUNTS.names).cast(COUNTS)


def _repeated(dataset: LanceDataset) -> frozenset[tuple[str, str]]:
    """The documents of which a row stands twice: the id of a row follows from document and line number."""
    passes = 1 + dataset.count_rows() // IDS_AT_ONCE
    twice = np.concatenate([_ids_seen_twice(dataset, number, passes) for number in range(passes)])[:MAX_REPEATED]
    found: set[tuple[str, str]] = set()
    for start in range(0, len(twice), LOOKUP_IDS):
        ids = ", ".join(map(str, twice[start : start + LOOKUP_IDS]))
        where = f"id IN ({ids}) AND line_number > {MARKER_LINE}"
        rows = dataset.to_table(columns=["entity", "path", "line_number"], filter=where)
        grouped = rows.group_by(["entity", "path", "line_number"]).aggregate([([], "count_all")])
        again = grouped.filter(pc.greater(grouped["count_all"], 1))
        found.update(zip(again["entity"].to_pylist(), again["path"].to_pylist(), strict=True))
    return frozenset(found)


def _ids_seen_twice(dataset: LanceDataset, number: int, passes: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    parts = [np.empty(0, np.int64)]
    for batch in dataset.to_batches(columns=["id"], filter=f"line_number > {MARKER_LINE}"):
        ids = batch.column("id").to_numpy()
        parts.append(ids[ids % passes == number] if passes > 1 else ids)
    ids = np.sort(np.concatenate(parts))
    twice: np.ndarray[Any, np.dtype[np.int64]] = np.unique(ids[1:][ids[1:] == ids[:-1]])
    return twice


# -- indexes ---------------------------------------------------------------------------------


def check_indexes(table: LineTable, seed: int = 0) -> Iterator[tuple[str, str]]:
    """``(index, what is wrong with it)`` for each index that miscounts its rows or misses one of a sample.

    The sample is ``SAMPLE_ROWS`` lines, drawn with ``seed``; each is looked for through the index and without it.
    """
    dataset = table.open()
    known, rows = coverage(dataset), dataset.count_rows()
    for name, found in known.items():
        if found.indexed_rows + found.unindexed_rows != rows:
            yield name, f"it counts {found.indexed_rows + found.unindexed_rows:,} rows of {rows:,}"
    sample = _sample(dataset, rows, seed)
    for name in known:
        missed = sum(not _finds(dataset, name, line) for line in sample)
        if missed:
            yield name, f"it misses {missed} of {len(sample)} lines that are there"


def _sample(dataset: LanceDataset, rows: int, seed: int) -> list[dict[str, Any]]:
    offsets = np.random.default_rng(seed).choice(rows, min(rows, SAMPLE_ROWS), replace=False)
    columns = ["id", "entity", "path", "text", "vector", "parent_dirs", "line_number"]
    taken = dataset.take(sorted(offsets.tolist()), columns=columns).to_pylist()
    return [line for line in taken if line["line_number"] > MARKER_LINE]


def _finds(dataset: LanceDataset, index: str, line: dict[str, Any]) -> bool:
    """Whether a search through ``index`` finds all that a scan finds of the document of ``line``."""
    here = f"entity = {quote(line['entity'])} AND path = {quote(line['path'])}"
    if index == PATH:
        return dataset.count_rows(here) == _scanned(dataset, here)
    if index == PARENT_DIRS:
        if not line["parent_dirs"]:
            return True
        below = f"array_has_any(parent_dirs, [{quote(line['parent_dirs'][-1])}])"
        return dataset.count_rows(below) == _scanned(dataset, below)
    if index == TEXT:
        words = _INDEXED_WORD.findall(line["text"])
        if not words:
            return True
        query = {"query": max(words, key=len), "columns": ["text"]}
        return _holds(dataset.scanner(columns=["id"], full_text_query=query, filter=here, prefilter=True), line)
    if index == VECTOR and line["vector"] is not None:
        nearest = {
            "column": "vector",
            "q": np.asarray(line["vector"], np.float16),
            "k": 1 + _scanned(dataset, here),
            "metric": VECTOR_METRIC,
            "nprobes": max(1, dataset.count_rows()),
        }
        return _holds(dataset.scanner(columns=["id"], nearest=nearest, filter=here, prefilter=True), line)
    return True


def _holds(scanner: Any, line: dict[str, Any]) -> bool:
    return line["id"] in scanner.to_table()["id"].to_pylist()


def _scanned(dataset: LanceDataset, where: str) -> int:
    return int(dataset.scanner(columns=["id"], filter=where, use_scalar_index=False).count_rows())

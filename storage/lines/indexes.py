"""The search indexes of a table of lines, and their maintenance (decision 0003)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from driftline.storage.lance.damage import index_stats
from driftline.storage.lance.errors import writing
from driftline.storage.lance.vector_index import VECTOR, create_vector_index
from driftline.storage.lines.table import LineTable

if TYPE_CHECKING:
    from lance import LanceDataset

TEXT, PATH, PARENT_DIRS = "text_idx", "path_idx", "parent_dirs_idx"
SCALAR_INDEXES: dict[str, tuple[str, Literal["BTREE", "LABEL_LIST"]]] = {
    PATH: ("path", "BTREE"),
    PARENT_DIRS: ("parent_dirs", "LABEL_LIST"),
}

TEXT_COLUMN = "block"
TOKENIZER: dict[str, Any] = {
    "base_tokenizer": "code",
    "split_identifiers": True,
    "preserve_original": False,
    "stem": True,
    "remove_stop_words": False,
}
"""Identifiers are split into words, and words are stemmed. Stop words stay, because "is not" can be code."""

MIN_ROWS_FOR_VECTOR_INDEX = 256

MAX_UNINDEXED_ROWS = 20_000
"""Up to this many unindexed rows, scanning them is cheaper than an update of the index."""
MAX_UNINDEXED_TEXT_FRACTION = 0.1
"""Larger than for other indexes, because extending a full-text index costs nearly as much as building it."""

IndexScope = Literal["all", "text", "none"]


@dataclass(frozen=True, slots=True)
class Coverage:
    """The rows that an index covers and those left to a scan; ``parts`` are searched in parallel."""

    kind: str
    indexed_rows: int
    unindexed_rows: int
    parts: int


def maintain(table: LineTable, scope: IndexScope = "all", *, thorough: bool = False) -> list[str]:
    """Create missing indexes and extend those that lag; returns the names of the changed indexes.

    ``scope="text"`` skips the vector index. ``thorough`` covers every row and merges each index into one part, because
    fragments covered by different parts cannot be merged. The caller holds the tenant's maintenance lease, because
    concurrent builds fail. Without indexes searches are slower, and words are neither split nor stemmed.
    Raises StorageError.
    """
    if scope == "none" or not table.exists():
        return []
    changed: list[str] = []
    dataset = table.open()
    rows = dataset.count_rows()
    known = coverage(dataset)
    for name in (index.name for index in dataset.describe_indices() if index.name not in known):  # built again below
        drop(table, [name])
        changed.append(name)
    dataset = table.open() if changed else dataset
    for name in (PATH, PARENT_DIRS, TEXT, *([VECTOR] if scope == "all" else [])):
        covered = known.get(name)
        if covered is None:
            if rows and (name != VECTOR or _has_vectors_to_index(dataset)):
                with writing("Could not build an index", table.uri):
                    _create(dataset, name, rows)
                changed.append(name)
        elif name == VECTOR and (covered.unindexed_rows or covered.parts > 1) and not _has_vectors_to_index(dataset):
            # Too few vectors are left: Lance cannot train on them, and they need no index.
            drop(table, [VECTOR])
            changed.append(name)
        elif _lags(name, covered) or (thorough and (covered.unindexed_rows or covered.parts > 1)):
            merged = covered.parts if thorough else _merged(name)
            with writing("Could not extend an index", table.uri):
                dataset.optimize.optimize_indices(index_names=[name], num_indices_to_merge=merged)
            changed.append(name)
        if changed and changed[-1] == name:
            dataset = table.open()
    return changed


def tokens(text: str, *, whole: bool = False) -> list[str]:
    """The words of ``text`` in order, as in the full-text index; ``whole`` keeps endings and accents."""
    import lance

    options = TOKENIZER | {"stem": False, "ascii_folding": False} if whole else TOKENIZER
    return [token.text for token in lance.tokenize(text, **options)]


def drop(table: LineTable, names: Sequence[str]) -> None:
    """Drop indexes, which ``maintain`` builds again. The caller holds the tenant's maintenance lease.

    Raises StorageError.
    """
    for name in names:
        with writing("Could not drop an index", table.uri):
            table.open().drop_index(name)


def coverage(dataset: LanceDataset) -> dict[str, Coverage]:
    """The indexes of ``dataset`` by name, without those that Lance cannot read."""
    return {
        name: Coverage(
            str(stats["index_type"]),
            int(stats["num_indexed_rows"]),
            int(stats["num_unindexed_rows"]),
            int(stats["num_indices"]),
        )
        for name, stats in index_stats(dataset).items()
        if stats is not None
    }


def _has_vectors_to_index(dataset: LanceDataset) -> bool:
    """Whether there are enough vectors for an index; commit markers and lines without known words have no vector."""
    rows = dataset.scanner(columns=["id"], filter="vector IS NOT NULL", limit=MIN_ROWS_FOR_VECTOR_INDEX).to_table()
    return len(rows) == MIN_ROWS_FOR_VECTOR_INDEX


def _lags(name: str, covered: Coverage) -> bool:
    if name == TEXT:
        return covered.unindexed_rows > max(MAX_UNINDEXED_ROWS, MAX_UNINDEXED_TEXT_FRACTION * covered.indexed_rows)
    return covered.unindexed_rows > MAX_UNINDEXED_ROWS


def _merged(name: str) -> int:
    """The number of parts that an update merges: none of the vector index, whose parts are searched in parallel."""
    return 0 if name == VECTOR else 1


def _create(dataset: LanceDataset, name: str, rows: int) -> None:
    if name == VECTOR:
        create_vector_index(dataset, rows)
    elif name == TEXT:
        dataset.create_scalar_index(TEXT_COLUMN, "INVERTED", name=TEXT, with_position=False, **TOKENIZER)
    else:
        column, kind = SCALAR_INDEXES[name]
        dataset.create_scalar_index(column, kind, name=name)

"""The search indexes of a table of lines, and what keeps them in step with it (decision 0003)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

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
"""Identifiers are split into words and words are stemmed; "is not" can be code."""

MIN_ROWS_FOR_VECTOR_INDEX = 256

MAX_UNINDEXED_ROWS = 20_000
"""Rows without an index are searched one by one, which is cheaper than an update while they are this few."""
MAX_UNINDEXED_TEXT_FRACTION = 0.1
"""Extending a full-text index costs nearly as much as building it."""

IndexScope = Literal["all", "text", "none"]


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many rows an index holds and how many it leaves to a scan; ``parts`` are searched side by side."""

    kind: str
    indexed_rows: int
    unindexed_rows: int
    parts: int


def maintain(table: LineTable, scope: IndexScope = "all", *, thorough: bool = False) -> list[str]:
    """Create the indexes that are missing and extend those that lag; returns the names of what changed.

    ``scope="text"`` leaves the vector index alone. ``thorough`` leaves no row to a scan and makes one part of each
    index, since fragments that different parts hold cannot be merged. The caller holds the tenant's maintenance
    lease, since two builds at once fail. Searches go without it, only slower, and words are then neither split nor
    stemmed. Raises StorageError.
    """
    if scope == "none" or not table.exists():
        return []
    changed: list[str] = []
    dataset = table.open()
    rows = dataset.count_rows()
    known = coverage(dataset)
    for name in (PATH, PARENT_DIRS, TEXT, *([VECTOR] if scope == "all" else [])):
        found = known.get(name)
        if found is None:
            if rows and (name != VECTOR or _has_vectors_to_index(dataset)):
                with writing("An index could not be built", table.uri):
                    _create(dataset, name, rows)
                changed.append(name)
        elif name == VECTOR and (found.unindexed_rows or found.parts > 1) and not _has_vectors_to_index(dataset):
            # Its lines are gone: Lance cannot learn from none, and so few need no index.
            drop(table, [VECTOR])
            changed.append(name)
        elif _lags(name, found) or (thorough and (found.unindexed_rows or found.parts > 1)):
            merged = found.parts if thorough else _merged(name)
            with writing("An index could not be extended", table.uri):
                dataset.optimize.optimize_indices(index_names=[name], num_indices_to_merge=merged)
            changed.append(name)
        if changed and changed[-1] == name:
            dataset = table.open()
    return changed


def tokens(text: str, *, whole: bool = False) -> list[str]:
    """The words of ``text`` in their order, as the full-text index holds them; ``whole``: with endings and accents."""
    import lance

    options = TOKENIZER | {"stem": False, "ascii_folding": False} if whole else TOKENIZER
    return [token.text for token in lance.tokenize(text, **options)]


def drop(table: LineTable, names: Sequence[str]) -> None:
    """Forget indexes; ``maintain`` builds them anew. The caller holds the tenant's maintenance lease."""
    for name in names:
        with writing("An index could not be dropped", table.uri):
            table.open().drop_index(name)


def coverage(dataset: LanceDataset) -> dict[str, Coverage]:
    """The indexes of ``dataset`` by name."""
    found: dict[str, Coverage] = {}
    for index in dataset.describe_indices():
        stats: dict[str, Any] = dataset.stats.index_stats(index.name)
        found[index.name] = Coverage(
            str(stats["index_type"]),
            int(stats["num_indexed_rows"]),
            int(stats["num_unindexed_rows"]),
            int(stats["num_indices"]),
        )
    return found


def _has_vectors_to_index(dataset: LanceDataset) -> bool:
    """Whether there are enough vectors for an index; commit markers and lines of unknown words have none."""
    found = dataset.scanner(columns=["id"], filter="vector IS NOT NULL", limit=MIN_ROWS_FOR_VECTOR_INDEX).to_table()
    return len(found) == MIN_ROWS_FOR_VECTOR_INDEX


def _lags(name: str, found: Coverage) -> bool:
    if name == TEXT:
        return found.unindexed_rows > max(MAX_UNINDEXED_ROWS, MAX_UNINDEXED_TEXT_FRACTION * found.indexed_rows)
    return found.unindexed_rows > MAX_UNINDEXED_ROWS


def _merged(name: str) -> int:
    """How many parts of an index an update merges: none for vectors, whose parts are searched side by side."""
    return 0 if name == VECTOR else 1


def _create(dataset: LanceDataset, name: str, rows: int) -> None:
    if name == VECTOR:
        create_vector_index(dataset, rows)
    elif name == TEXT:
        dataset.create_scalar_index(TEXT_COLUMN, "INVERTED", name=TEXT, with_position=False, **TOKENIZER)
    else:
        column, kind = SCALAR_INDEXES[name]
        dataset.create_scalar_index(column, kind, name=name)

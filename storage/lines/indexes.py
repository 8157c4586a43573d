"""The search indexes of a table of lines: their names, kinds and coverage (decisions 0003, 0010)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from driftline.storage.lance.damage import index_stats
from driftline.storage.lance.errors import writing
from driftline.storage.lance.vector_index import VECTOR
from driftline.storage.lines.table import TEXT_COLUMN, LineTable

if TYPE_CHECKING:
    from lance import LanceDataset

TEXT, PATH, PARENT_DIRS = "text_idx", "path_idx", "parent_dirs_idx"
COLUMNS = {PATH: "path", PARENT_DIRS: "parent_dirs", TEXT: TEXT_COLUMN, VECTOR: "vector"}
"""The column of each index, in the order in which they are built."""
SCALAR_INDEXES: dict[str, Literal["BTREE", "LABEL_LIST"]] = {PATH: "BTREE", PARENT_DIRS: "LABEL_LIST"}
TOKENIZER: dict[str, Any] = {
    "base_tokenizer": "code",
    "split_identifiers": True,
    "preserve_original": False,
    "stem": True,
    "remove_stop_words": False,
    "max_token_length": None,
}
"""Identifiers are split into words, and words are stemmed. Stop words stay, because "is not" can be code; so do long
words, because 40 bytes, the default limit, are 13 letters of Georgian."""

IndexScope = Literal["all", "text", "none"]


@dataclass(frozen=True, slots=True)
class Coverage:
    """The rows that an index covers and those left to a scan; its ``segments`` are searched in parallel."""

    kind: str
    indexed_rows: int
    unindexed_rows: int
    segments: int


def tokens(text: str, *, whole: bool = False) -> list[str]:
    """The words of ``text`` in order, as in the full-text index; ``whole`` keeps endings and accents."""
    import lance

    options = TOKENIZER | {"stem": False, "ascii_folding": False} if whole else TOKENIZER
    return [token.text for token in lance.tokenize(text, **options)]


def drop(table: LineTable, names: Sequence[str]) -> None:
    """Drop indexes, which ``segments.maintain`` builds again. The caller holds the tenant's maintenance lease.

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

"""Find definitions, files and outlines by name in one version of a lines table (DESIGN, "Search").

``blocks_defining`` and ``definitions_of`` find what a query names; ``blocks_at_places`` finds the places in a stack
trace. A version's definitions are read once, then looked up in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache
from numpy.typing import NDArray

from driftline.storage.lance.lance_table import is_one_of, quote
from driftline.storage.lines.line_table import LINES_PER_BLOCK, TEXT_COLUMN
from driftline.storage.lines.outline import OUTLINE_COLUMN, Definition, decode, parts_of_name
from driftline.storage.lines.table_searcher import MAX_KEPT_LINES, TableSearcher, is_among
from driftline.storage.shared_cache import SharedCache

MAX_FOLDERS = 32
"""Maximum number of trailing path components in a query that are compared with indexed paths."""
MAX_FILES = 20
"""Maximum number of files to look up per name."""
_TAIL_BYTES = 8
"""Bytes at the end of a name that are compared for all definitions in one pass."""
_OF_WORDS = np.array([byte in b"abcdefghijklmnopqrstuvwxyz0123456789_" for byte in range(256)])
_DEFINITIONS: SharedCache[tuple[str | int, ...], _Definitions] = SharedCache(
    LRUCache(256 * 2**20, lambda definitions: definitions.nbytes)
)
"""The definitions in each version in which this process looked up a name, about 3 bytes per line."""
_OUTLINES: SharedCache[tuple[str | int, ...], _Outlines] = SharedCache(
    LRUCache(64 * 2**20, lambda outlines: outlines.nbytes)
)
"""The outlines of each small version in which this process looked up many lines, about 10 bytes per line."""
_LOOKUPS: SharedCache[tuple[str | int, ...], int] = SharedCache(LRUCache(1_024))
"""How often this process looked up the outlines of some lines in a version on disk."""
LOOKUPS_BEFORE_ALL = 32
"""Reading all outlines takes as long as this many lookups of some."""
_BLOCK_BITS = 28


@dataclass(frozen=True, slots=True)
class _Definitions:
    """The definitions in a version, except keys, each from the outline of the block with its name.

    Definition ``i`` has the outline entry ``entries[i]``, which ends with the bytes ``tails[i]`` in lowercase, in the
    block with the row id ``rows[i]``.
    """

    entries: pa.ChunkedArray
    tails: NDArray[np.uint64]
    rows: NDArray[np.uint64]

    @classmethod
    def of(cls, blocks: pa.Table) -> Self:
        """Select the definitions of ``blocks``, which have ``outline``, ``line_number`` and ``_rowid``."""
        parts = [_defined_in(batch) for batch in blocks.to_batches()]
        tails, rows = (np.concatenate([np.zeros(0, np.uint64), *(part[at] for part in parts)]) for at in (1, 2))
        entries = pa.table({"entry": pa.chunked_array([each for each, *_ in parts], pa.string())})
        return cls(entries.combine_chunks()["entry"], tails, rows)  # taking a few from many chunks would copy them all

    @property
    def nbytes(self) -> int:
        """The size of the definitions in memory."""
        return int(self.entries.nbytes) + self.tails.nbytes + self.rows.nbytes

    def ending_in(self, part: str) -> Iterator[tuple[int, Definition]]:
        """Yield the definitions whose names may end in ``part``, case-insensitively, with the rows of their blocks."""
        tail = pc.utf8_lower(part).as_py().encode()[-_TAIL_BYTES:]  # unlike Python, Arrow lowers letters one by one
        ends_alike = self.tails & np.uint64(256 ** len(tail) - 1) == int.from_bytes(tail, "big")
        if len(tail) < _TAIL_BYTES:
            ends_alike &= ~_OF_WORDS[self.tails >> np.uint64(8 * len(tail)) & np.uint64(255)]
        alike = np.flatnonzero(ends_alike)
        entries = self.entries.take(pa.array(alike.tolist(), pa.int64())).to_pylist()
        yield from zip(self.rows[alike].tolist(), (decode(entry)[0] for entry in entries), strict=True)


def _defined_in(blocks: pa.RecordBatch) -> tuple[pa.StringArray, NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the entries, tails and rows of ``_Definitions``."""
    split = pc.split_pattern(blocks[OUTLINE_COLUMN], "\n")
    entries, block = split.flatten(), pc.list_parent_indices(split).to_numpy()
    kind, line = pc.extract_regex(entries, r"^(?P<kind>\w+)\t(?P<line>\d+)\t").flatten()  # null for anchors
    lines = pc.fill_null(line.cast(pa.int64()), -1).to_numpy()
    of_block = lines // LINES_PER_BLOCK == blocks["line_number"].to_numpy()[block] // LINES_PER_BLOCK
    own = np.flatnonzero(of_block & pc.fill_null(pc.not_equal(kind, "key"), False).to_numpy(zero_copy_only=False))
    entries = entries.take(pa.array(own.tolist(), pa.int64()))
    lower = pc.utf8_lower(entries)
    ends = pc.binary_length(lower).to_numpy().cumsum(dtype=np.int64)
    names = lower.buffers()[2].to_pybytes()[: ends[-1]] if len(ends) else b""
    padded = np.frombuffer(bytes(_TAIL_BYTES) + names, np.uint8)
    tails = np.lib.stride_tricks.sliding_window_view(padded, _TAIL_BYTES)[ends].view(">u8")[:, 0]
    return entries, tails.astype(np.uint64), blocks["_rowid"].to_numpy()[block[own]]


@dataclass(frozen=True, slots=True)
class _Outlines:
    """The outlines of all blocks in a version.

    Block ``order[i]`` has the key ``keys[i]``, in ascending order: the positions of its document's ``paths`` and
    ``entities``, and its number.
    """

    outlines: pa.StringArray
    paths: pa.StringArray
    entities: pa.StringArray
    keys: NDArray[np.int64]
    order: NDArray[np.int64]

    @classmethod
    def of(cls, rows: pa.Table) -> Self:
        """Prepare the outlines in ``rows`` for lookups; these also have ``entity``, ``path`` and ``line_number``."""
        paths, entities = (rows[name].combine_chunks().dictionary_encode() for name in ("path", "entity"))
        documents = paths.indices.to_numpy().astype(np.int64) * len(entities.dictionary) + entities.indices.to_numpy()
        keys = documents << _BLOCK_BITS | rows["line_number"].to_numpy() // LINES_PER_BLOCK
        order = np.argsort(keys)
        outlines = rows[OUTLINE_COLUMN].combine_chunks()
        return cls(outlines, paths.dictionary, entities.dictionary, keys[order], order)

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self.outlines, self.paths, self.entities, self.keys, self.order))

    def at(self, lines: Sequence[tuple[str, str, int]]) -> dict[tuple[str, str, int], str]:
        """Return the outlines of the blocks that contain ``lines``; the longest if a block has several rows."""
        paths = pc.index_in(pa.array([path for _, path, _ in lines], pa.string()), self.paths)
        entities = pc.index_in(pa.array([entity for entity, *_ in lines], pa.string()), self.entities)
        found: dict[tuple[str, str, int], str] = {}
        for line, path, entity in zip(lines, paths.to_pylist(), entities.to_pylist(), strict=True):
            if path is None or entity is None:
                continue
            key = (path * len(self.entities) + entity) << _BLOCK_BITS | line[2] // LINES_PER_BLOCK
            start, end = (int(np.searchsorted(self.keys, key, side)) for side in ("left", "right"))
            outlines = (self.outlines[int(row)].as_py() for row in self.order[start:end])
            if (outline := max(outlines, key=len, default=None)) is not None:
                found[line] = outline
        return found


def blocks_defining(table: TableSearcher, names: Sequence[str], limit: int) -> NDArray[np.uint64]:
    """Return the rows of the blocks that contain definitions of ``names``, case-insensitively, at most ``limit`` per
    name.

    Outer definitions precede inner ones.
    """
    found = sorted({row for name in names for row in _definition_rows(table, name, limit)})
    rows = np.array(found, np.uint64)
    return rows[table.passing(rows)] if table.sql else rows


def _definition_rows(table: TableSearcher, name: str, limit: int) -> list[int]:
    """Return the row ids of the blocks with the best definitions of one name."""
    parts = parts_of_name(name)
    found: list[tuple[bool, int, int]] = []
    for row, definition in _named(table, name):
        own = parts_of_name(definition.name)
        found.append((own[-len(parts) :] != parts, len(own), row))
    return [row for *_, row in sorted(found)[:limit]]


def definitions_of(table: TableSearcher, name: str) -> list[tuple[str, str, str, Definition]]:
    """Return the definitions of ``name`` that pass the filter, each with its entity, path and hash.

    Matching is case-sensitive if ``name`` has a capital letter.
    """
    parts = parts_of_name(name)
    exactly = name.lower() != name
    found = [
        (row, each)
        for row, each in _named(table, name)
        if not exactly or parts_of_name(each.name)[-len(parts) :] == parts
    ]
    if not found:
        return []
    where = is_among(row for row, _ in found) + (f" AND ({table.sql})" if table.sql else "")
    rows = table.read(["entity", "path", "hash", "_rowid"], where=where, with_row_id=True)
    columns = (rows[each].to_pylist() for each in ("_rowid", "entity", "path", "hash"))
    of_row = {row: document for row, *document in zip(*columns, strict=True)}
    return [(*of_row[row], each) for row, each in found if row in of_row]


def _named(table: TableSearcher, name: str) -> Iterator[tuple[int, Definition]]:
    """Yield each definition of ``name``, case-insensitively, with the row id of the block with its name."""
    parts = parts_of_name(name)
    if not parts:
        return
    for row, definition in _definitions(table).ending_in(parts[-1]):
        if definition.matches_name(name):
            yield row, definition


def _definitions(table: TableSearcher) -> _Definitions:
    """Return all definitions, read once per version."""
    return _DEFINITIONS.get_or_compute(table.exact_version, partial(_read_definitions, table))


def _read_definitions(table: TableSearcher) -> _Definitions:
    # It takes Lance twice as long to drop the empty outlines as well.
    return _Definitions.of(
        table.scan([OUTLINE_COLUMN, "line_number"], filter=f"{OUTLINE_COLUMN} IS NOT NULL", with_row_id=True)
    )


def _kept_outlines(table: TableSearcher) -> _Outlines | None:
    """Return all outlines if they are in memory already, or reading them pays off."""
    version = table.exact_version
    known = _OUTLINES.get(version)
    if known is None and table.table.is_local:
        lookups = (_LOOKUPS.get(version) or 0) + 1
        _LOOKUPS.put(version, lookups)
        if lookups > LOOKUPS_BEFORE_ALL and table.lines <= MAX_KEPT_LINES:
            known = _OUTLINES.get_or_compute(version, partial(_read_outlines, table))
    return known


def _read_outlines(table: TableSearcher) -> _Outlines:
    columns = ["entity", "path", "line_number", OUTLINE_COLUMN]
    return _Outlines.of(table.read(columns, where=f"{OUTLINE_COLUMN} IS NOT NULL").combine_chunks())


def outlines_of(table: TableSearcher, requested: Sequence[tuple[str, str, int]]) -> dict[tuple[str, str, int], str]:
    """Return the known outlines of the blocks that contain the lines ``(entity, path, number)``."""
    if not requested:
        return {}
    if (kept := _kept_outlines(table)) is not None:
        return kept.at(requested)
    # The index covers paths; comparing entities and lines in Lance as well would take three times as long.
    paths = sorted({path for _, path, _ in requested})
    columns = ["entity", "path", "line_number", OUTLINE_COLUMN]
    where = f"{is_one_of('path', paths)} AND {OUTLINE_COLUMN} IS NOT NULL"
    # In a bucket, every search reads the paths in any case; their index would be read only for this.
    rows = table.read(columns, where=where, use_scalar_index=table.table.is_local)
    known: dict[tuple[str, str, int], str] = {}
    for entity, path, number, outline in zip(*(rows[name].to_pylist() for name in columns), strict=True):
        block = entity, path, number // LINES_PER_BLOCK
        # a block that starts in the middle of a line has fewer definitions
        known[block] = max(known.get(block, ""), outline, key=len)
    blocks = ((line, (line[0], line[1], line[2] // LINES_PER_BLOCK)) for line in requested)
    return {line: known[block] for line, block in blocks if block in known}


def blocks_at_places(table: TableSearcher, places: Sequence[tuple[str, int | None]]) -> NDArray[np.uint64]:
    """Return the rows of the blocks that contain ``places``, pairs of a path and a 1-based line; with no line, the
    first block.

    A path may have more leading folders than the indexed path, as in a stack trace. If it is the only place, it may
    also have fewer: it then matches up to MAX_FILES files with that name, nearest to the root first,
    case-insensitively.
    """
    if not places:
        return np.empty(0, np.uint64)
    blocks = []
    for path, line in places:
        parts = path.lstrip("/").split("/")[-MAX_FOLDERS:]
        known = ["/".join(parts[at:]) for at in range(len(parts))]
        first = max(0, (line or 1) - 1) // LINES_PER_BLOCK * LINES_PER_BLOCK
        within = f"line_number BETWEEN {first} AND {first + LINES_PER_BLOCK - 1}"
        known += _files_named(table, path, within) if len(places) == 1 else []
        blocks.append(f"({is_one_of('path', known)} AND {within})")
    where = f"({' OR '.join(blocks)}) AND {TEXT_COLUMN} IS NOT NULL"
    rows = np.sort(table.scan([], filter=where, with_row_id=True)["_rowid"].to_numpy())
    return rows[table.passing(rows)] if table.sql else rows


def _files_named(table: TableSearcher, name: str, within: str) -> list[str]:
    """Return the paths ending in ``name`` among documents that have lines ``within`` a condition."""
    where = f"ends_with(lower(path), {quote('/' + name.lower().lstrip('/'))}) AND {within}"
    where += f" AND ({table.sql})" if table.sql else ""
    found = pc.unique(table.scan(["path"], filter=where)["path"]).to_pylist()
    return sorted(found, key=lambda path: (path.count("/"), path))[:MAX_FILES]

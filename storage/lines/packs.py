"""Store decoded document text in packs next to the lines, and search it exactly (decision 0019).

A pack contains consecutive lines of one document, including lines with no words, which have no row. Its grams are a
filter over its trigrams and parts of words that rules out most non-matching packs without reading them.
"""

from __future__ import annotations

import itertools
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import itemgetter
from string import ascii_letters, ascii_uppercase, digits
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache
from numpy.typing import NDArray

from driftline.storage.documents import GAP_LINE
from driftline.storage.errors import CorruptFile
from driftline.storage.lance.failures import REPAIR, with_indexes
from driftline.storage.lance.lance_table import is_one_of
from driftline.storage.lines.line_table import (
    EXACT_BYTES_PER_ROW,
    GRAMS_COLUMN,
    PACK_COLUMN,
    PACK_LINE_COLUMN,
    searched_parts,
)
from driftline.storage.lines.regex_patterns import GRAM_BYTES, Clause, folded
from driftline.storage.lines.table_searcher import Passage, TableSearcher
from driftline.storage.shared_cache import SharedCache

PACK_BYTES = 16 * 2**10
"""A pack that has reached this size ends before the next line that has a row."""
_HASH = np.uint32(0x9E3779B1)
_HASH_BITS = 17
_SHIFT = np.uint32(32 - _HASH_BITS)
_BITS_PER_GRAM = 1.5
"""Minimum number of filter bits per gram; the maximum is 1.45 times that. A single gram has many false positives, but a
literal has several grams.
"""
_SIZES = sorted(part << exponent for part in (9, 13) for exponent in range(5, 14))
"""Filter sizes, in bits."""
_SEAL, _SEAL_BYTES = b"\0%08x\0", 10
"""Ends a pack: the checksum of its text."""
_MAX_GRAMS = 64
"""Maximum number of grams of a literal to look up; more would rule out hardly any other pack."""
_IS_CAPITAL, _IS_OF_WORD = (
    bytes(byte in held.encode() for byte in range(256)) for held in (ascii_uppercase, f"{ascii_letters}{digits}_")
)
"""Tables for ``bytes.translate``: 1 for each byte of a kind, otherwise 0."""


def packs(
    texts: Sequence[str],
    document: NDArray[np.int32],
    line: NDArray[np.int32],
    column: NDArray[np.int32],
    first_line: int = 0,
) -> dict[str, pa.Array]:
    """Return PACK_COLUMN, PACK_LINE_COLUMN and GRAMS_COLUMN, ``(n,)`` each, null except in rows with a pack.

    ``document`` contains indices into ``texts``, the documents' texts starting at ``first_line``. The rows are in
    order, and every document that has lines has a row. A document's packs are contiguous from its first line to its
    last.
    """
    rows: list[int] = []
    first_lines: list[int] = []
    found: list[bytes] = []
    bounds = np.searchsorted(document, np.arange(len(texts) + 1))
    for text, (start, stop) in zip(texts, itertools.pairwise(bounds.tolist()), strict=True):
        if start == stop:
            continue
        data = text.encode()
        cuts = _cuts(data, line[start:stop] - np.int32(first_line), column[start:stop])
        for (row, begin, number), (_, end, _) in itertools.pairwise([*cuts, (0, len(data), 0)]):
            rows.append(start + row)
            first_lines.append(first_line + number)
            found.append(data[begin:end])
    positions = np.full(len(document), -1)
    positions[rows] = np.arange(len(rows))
    indices = pa.array(positions, mask=positions < 0)
    return {
        PACK_COLUMN: pa.array(map(_sealed, found), pa.binary()).cast(pa.string()).take(indices),
        PACK_LINE_COLUMN: pa.array(first_lines, pa.int32()).take(indices),
        GRAMS_COLUMN: pa.array([grams(data) for data in found], pa.binary()).take(indices),
    }


def _cuts(data: bytes, line: NDArray[np.int32], column: NDArray[np.int32]) -> list[tuple[int, int, int]]:
    """Return, for each pack of a document, its row, its first byte, and the number of its first line."""
    cuts = [(0, 0, 0)]
    if len(data) <= PACK_BYTES:
        return cuts
    begins = np.flatnonzero(column == 0)
    breaks = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    offsets = np.append(-1, breaks)[line[begins]] + 1
    while True:
        at = int(np.searchsorted(offsets, cuts[-1][1] + PACK_BYTES))
        if at == len(offsets):
            return cuts
        cuts.append((int(begins[at]), int(offsets[at]), int(line[begins[at]])))


def _sealed(data: bytes) -> bytes:
    return data + _SEAL % zlib.crc32(data)


def text_in(pack: bytes) -> bytes | None:
    """Return the text in a pack, or None if the pack was changed since it was written.

    >>> pack = _sealed(b"a line")
    >>> text_in(pack), text_in(pack.replace(b"line", b"lime"))
    (b'a line', None)
    """
    text = pack[:-_SEAL_BYTES]
    return text if pack == _sealed(text) else None


def texts_in(packs: pa.StringArray | pa.ChunkedArray, where: str) -> pa.StringArray:
    """Return the texts in packs of the table ``where``. Raises CorruptFile if one was changed since it was written."""
    data = (packs.combine_chunks() if isinstance(packs, pa.ChunkedArray) else packs).cast(pa.binary())
    texts = pc.binary_slice(data, 0, -_SEAL_BYTES)
    own = pa.array([_SEAL % zlib.crc32(text.as_buffer()) for text in texts], pa.binary())
    if own.equals(pc.binary_slice(data, -_SEAL_BYTES)):  # without a copy of each text, which takes three times as long
        return texts.cast(pa.string())
    raise CorruptFile("Cannot read the lines table (the checksum of a document's text does not match)", where, REPAIR)


def text_of_lines(line: Sequence[int], text: Sequence[str]) -> str:
    """Return a text with each row on its line, and empty lines elsewhere. Rows of the same line are adjacent in the
    input.
    """
    lines = [""] * (max(line, default=-1) + 1)
    for number, part in zip(line, text, strict=True):
        lines[number] += part.replace("\n", " ")
    return "".join(f"{each}\n" for each in lines)


def _hashes(data: bytes) -> NDArray[np.uint32]:
    """Return a ``_HASH_BITS``-bit hash of each gram of a text: its folded trigrams, folded runs of four and five
    characters of words, and runs of four with a capital letter.

    A long text often contains all trigrams of a word it does not contain, but rarely all of the longer runs.
    """
    text = folded(data)
    codes = np.frombuffer(text, np.uint8).astype(np.uint32)
    grams = (codes[:-2] << 16 | codes[1:-1] << 8 | codes[2:]) * _HASH
    found = [grams]
    part = _which(text, _IS_OF_WORD)
    held = part[:-2] & part[1:-1] & part[2:]
    for last in (3, 4):
        grams = (grams[:-1] ^ codes[last:]) * _HASH
        held = held[:-1] & part[last:]
        found.append(grams[held])
    part, capital = _which(data, _IS_OF_WORD), _which(data, _IS_CAPITAL)
    runs = part[:-3] & part[1:-2] & part[2:-1] & part[3:]
    runs &= capital[:-3] | capital[1:-2] | capital[2:-1] | capital[3:]
    starts = np.flatnonzero(runs)
    four = np.frombuffer(data, np.uint8)[starts[:, None] + np.arange(4)].view(">u4").ravel()
    found.append(four.astype(np.uint32) * _HASH)
    return np.right_shift(np.concatenate(found), _SHIFT)


def _which(data: bytes, table: bytes) -> NDArray[np.bool_]:
    return np.frombuffer(data.translate(table), np.bool_)


@lru_cache(1_024)
def _grams_of(literal: bytes) -> list[int]:
    return sorted({*_hashes(literal).tolist()})[:_MAX_GRAMS]


def grams(data: bytes) -> bytes:
    """Return the gram filter of a text: each gram sets the bit at its hash modulo the filter size."""
    held = np.zeros(1 << _HASH_BITS, np.bool_)
    if len(data) >= GRAM_BYTES:
        held[_hashes(data)] = True
    found = np.flatnonzero(held)
    bits = np.zeros(_SIZES[min(bisect_left(_SIZES, _BITS_PER_GRAM * len(found)), len(_SIZES) - 1)], np.bool_)
    bits[found % len(bits)] = True
    return np.packbits(bits, bitorder="little").tobytes()


@dataclass(frozen=True, slots=True)
class Packs:
    """The packs of one table version, without their texts, sorted by path, entity and line.

    ``rows`` has the columns ``entity``, ``path``, ``hash``, ``line`` (the number of the first line) and ``_rowid``.
    ``documents`` ``(n,)`` contains the document number of each pack. ``filters`` contains the grams, grouped by size:
    each group has the positions of its packs in ``rows`` and, for each byte of a filter, those of all packs.
    """

    rows: pa.Table
    documents: NDArray[np.int64]
    filters: tuple[tuple[NDArray[np.int64], NDArray[np.uint8]], ...]

    @property
    def nbytes(self) -> int:
        """The size of the packs in memory."""
        return int(self.rows.nbytes) + sum(positions.nbytes + grams.nbytes for positions, grams in self.filters)

    def of(self, documents: Collection[tuple[str, str]]) -> dict[tuple[str, str], tuple[list[int], list[int]]]:
        """Return the packs' first lines, in order, and their row ids, for each ``(entity, path)`` in ``documents``."""
        paths = pa.array([path for _, path in documents], pa.string())
        rows = self.rows.filter(pc.is_in(self.rows["path"], value_set=paths)).sort_by("line")
        found: dict[tuple[str, str], tuple[list[int], list[int]]] = {document: ([], []) for document in documents}
        columns = (rows[name].to_pylist() for name in ("entity", "path", "line", "_rowid"))
        for entity, path, line, row in zip(*columns, strict=True):
            if (of_document := found.get((entity, path))) is not None:
                of_document[0].append(line)
                of_document[1].append(row)
        return found

    def may_hold(self, required: Sequence[Clause]) -> NDArray[np.bool_]:
        """Return whether each pack may contain a literal from every clause, as ``(n,)``."""
        possible = np.ones(len(self.rows), np.bool_)
        for positions, filters in self.filters:
            left = np.ones(len(positions), np.bool_)
            for clause in required:
                left &= np.stack([_hold(filters, literal) for literal in clause]).any(axis=0)
            possible[positions] = left
        return possible

    def documents_that_may_hold(self, required: Sequence[Clause]) -> NDArray[np.bool_]:
        """Return an ``(n,)`` mask of the packs of documents that may contain a literal from every clause, possibly in
        different packs.
        """
        possible = np.ones(len(self.rows), np.bool_)
        for clause in required:
            possible &= (np.bincount(self.documents, self.may_hold([clause])) > 0)[self.documents]
        return possible


def _hold(filters: NDArray[np.uint8], literal: bytes) -> NDArray[np.bool_]:
    size = 8 * len(filters)
    if size not in _SIZES:  # a damaged filter rules nothing out: reading the pack reports the damage
        return np.ones(filters.shape[1], np.bool_)
    at = np.array([each % size for each in _grams_of(literal)], np.int64)
    found: NDArray[np.bool_] = (filters[at >> 3] & (1 << (at & 7)).astype(np.uint8)[:, None]).all(axis=0)
    return found


_PACKS: SharedCache[tuple[str | int, ...], Packs] = SharedCache(LRUCache(256 * 2**20, lambda packs: packs.nbytes))
"""The packs of each version that this process searched."""


def packs_of(searcher: TableSearcher) -> Packs:
    """Return the packs of the version that ``searcher`` reads, regardless of its filter.

    Raises StorageError, CorruptFile.
    """
    return _PACKS.get_or_compute(searcher.exact_version, partial(_read_packs, searcher))


def _read_packs(searcher: TableSearcher) -> Packs:
    options: dict[str, Any] = {}
    if not searcher.table.is_local:
        searcher.table.read_ahead(searched_parts(searcher.dataset.get_fragments(), EXACT_BYTES_PER_ROW))
        # All columns in one round: by default, the others are read after the smallest one, which is faster on a disk.
        options["late_materialization"] = False
    columns = ["entity", "path", "hash", PACK_LINE_COLUMN, GRAMS_COLUMN]
    rows = _scan(searcher, columns, f"{PACK_LINE_COLUMN} IS NOT NULL", **options).combine_chunks()
    documents = _places(rows["path"]) * len(rows) + _places(rows["entity"])
    order = np.lexsort((rows[PACK_LINE_COLUMN].to_numpy(), documents))
    rows, documents = rows.take(pa.array(order.tolist(), pa.int64())).combine_chunks(), documents[order]
    sizes = pc.binary_length(rows[GRAMS_COLUMN]).to_numpy()
    filters = tuple(_together(rows, sizes, size) for size in sorted({*sizes.tolist()}))
    renamed = rows.drop_columns([GRAMS_COLUMN]).rename_columns({PACK_LINE_COLUMN: "line"})
    return Packs(renamed, np.cumsum(np.diff(documents, prepend=documents[:1]) > 0), filters)


def _places(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the place of each value of a column among its sorted distinct values."""
    encoded = column.combine_chunks().dictionary_encode()
    places = np.empty(len(encoded.dictionary), np.int64)
    places[pc.array_sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(places))
    return np.asarray(places[encoded.indices.to_numpy()])


def _together(rows: pa.Table, sizes: NDArray[np.int32], size: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    positions = np.flatnonzero(sizes == size)
    # A list: for an array, Arrow imports numpy.ma, which takes longer than a search.
    joined = b"".join(rows[GRAMS_COLUMN].take(pa.array(positions.tolist(), pa.int64())).to_pylist())
    return positions, np.ascontiguousarray(np.frombuffer(joined, np.uint8).reshape(len(positions), size).T)


def allowed(searcher: TableSearcher, found: Packs) -> NDArray[np.bool_]:
    """Return an ``(n,)`` mask of the packs of documents that pass the filter of ``searcher``."""
    if searcher.sql is None:
        return np.ones(len(found.rows), np.bool_)
    rows = _scan(searcher, [], f"{PACK_LINE_COLUMN} IS NOT NULL AND ({searcher.sql})")
    return np.asarray(pc.is_in(found.rows["_rowid"], value_set=rows["_rowid"].combine_chunks()).to_numpy())


def documents_of(searcher: TableSearcher) -> Iterator[tuple[str, str, str]]:
    """Yield path, entity and hash of each document that passes the filter of ``searcher``, unordered."""
    first = f"{PACK_LINE_COLUMN} = 0" + (f" AND ({searcher.sql})" if searcher.sql else "")
    rows = _scan(searcher, ["path", "entity", "hash"], first)
    yield from zip(*(rows[name].to_pylist() for name in ("path", "entity", "hash")), strict=True)


_TEXTS: SharedCache[tuple[str | int, ...], pa.StringArray] = SharedCache(LRUCache(64 * 2**20, lambda text: text.nbytes))
"""Pack texts that this process already read, keyed by version and row id. Packs with many trigrams are read repeatedly.
"""


def texts(packs: Sequence[tuple[TableSearcher, int]]) -> pa.StringArray:
    """Return the texts of packs, each given as a searcher and a row id, in this order."""
    keys = [(*searcher.exact_version, row) for searcher, row in packs]
    known = {key: text for key in keys if (text := _TEXTS.get(key)) is not None}
    for searcher in {id(searcher): searcher for searcher, _ in packs}.values():
        missing = [row for key, (of, row) in zip(keys, packs, strict=True) if of is searcher and key not in known]
        if not missing:
            continue
        found = _scan(searcher, [PACK_COLUMN], f"_rowid IN ({', '.join(map(str, missing))})")
        column = texts_in(found[PACK_COLUMN], searcher.table.uri)
        read = {(*searcher.exact_version, row): column.take([at]) for at, row in enumerate(found["_rowid"].to_pylist())}
        known |= read
        for key, text in read.items():
            _TEXTS.put(key, text)
    return pa.concat_arrays([known[key] for key in keys])


NOT_INDEXED = "… not indexed …"
"""Shown in place of each line of a large document that was not read."""


def lines_in(pack: str) -> list[str]:
    """Return the lines of a pack, with NOT_INDEXED in place of those in a gap."""
    lines = pack.removesuffix("\n").split("\n")
    first, end = _gap_in(lines)
    lines[first:end] = [NOT_INDEXED] * (end - first)
    return lines


def _gap_in(lines: Sequence[str]) -> tuple[int, int]:
    """Return the range of a pack's lines that were not read: GAP_LINE and the empty lines below it."""
    if GAP_LINE not in lines:
        return 0, 0
    first = lines.index(GAP_LINE)
    return first, next((at for at in range(first + 1, len(lines)) if lines[at]), len(lines))


class Gap(NamedTuple):
    """Lines ``first`` to ``end`` (exclusive) of a document's pack that were not read, relative to its first line."""

    entity: str
    path: str
    first: int
    end: int


_GAPS: SharedCache[tuple[str | int, ...], dict[int, Gap]] = SharedCache(LRUCache(1_024))
_GAPS_AT_ONCE = 64
"""Number of packs to read at once when looking for gaps; bounds memory."""


def gaps_of(searcher: TableSearcher) -> dict[int, Gap]:
    """Return the gaps of all large documents that are indexed only at both ends, keyed by their packs' row ids."""
    return _GAPS.get_or_compute(searcher.exact_version, partial(_read_gaps, searcher))


def _read_gaps(searcher: TableSearcher) -> dict[int, Gap]:
    found = packs_of(searcher)
    likely = found.rows.take(
        pa.array(np.flatnonzero(found.may_hold([frozenset([GAP_LINE.encode()])])).tolist(), pa.int64())
    )
    gaps: dict[int, Gap] = {}
    for start in range(0, len(likely), _GAPS_AT_ONCE):
        rows, entities, paths = (
            likely[name][start : start + _GAPS_AT_ONCE].to_pylist() for name in ("_rowid", "entity", "path")
        )
        read = texts([(searcher, row) for row in rows]).to_pylist()
        for row, entity, path, text in zip(rows, entities, paths, read, strict=True):
            first, end = _gap_in(text.split("\n"))
            if first < end:
                gaps[row] = Gap(entity, path, first, end)
    return gaps


def passing_gaps(searcher: TableSearcher) -> list[Gap]:
    """Return the gaps in documents that pass the filter of ``searcher``."""
    gaps = gaps_of(searcher)
    if not gaps or searcher.sql is None:
        return [*gaps.values()]
    passing = _scan(searcher, [], f"_rowid IN ({', '.join(map(str, gaps))}) AND ({searcher.sql})")
    return [gaps[row] for row in passing["_rowid"].to_pylist()]


LINES_BEFORE = 2_048
"""How many lines before a passage to search for the row of its pack: few packs have more."""


_WITH_PASSAGES: SharedCache[tuple[str | int, ...], bool] = SharedCache(LRUCache(1_024))
"""Versions from which this process already read passages. In a bucket, the first read scans the paths of all rows,
which a search has already loaded: the path index would take two more round trips.
"""


def lines_of(searcher: TableSearcher, passages: Collection[Passage]) -> dict[Passage, list[str]]:
    """Return the lines of passages as they were indexed, omitting lines past the end of a document.

    Documents that do not exist or do not pass the filter have no lines.
    """
    near = {each: f"line_number BETWEEN {each.first - LINES_BEFORE} AND {each.last}" for each in passages}
    found = _lines_among(searcher, near)
    rest = {each: f"{PACK_LINE_COLUMN} <= {each.last}" for each in passages if each not in found}
    return {each: [] for each in passages} | found | _lines_among(searcher, rest)


def _lines_among(searcher: TableSearcher, rows: Mapping[Passage, str]) -> dict[Passage, list[str]]:
    """Return the lines of passages whose first pack matches their condition in ``rows``."""
    if not rows:
        return {}
    paths = is_one_of("path", sorted({each.path for each in rows}))  # uses the path index
    each_of = [f"({is_one_of('path', [each.path])} AND {condition})" for each, condition in rows.items()]
    where = f"{paths} AND ({' OR '.join(each_of)})" + (f" AND ({searcher.sql})" if searcher.sql else "")
    version = searcher.exact_version
    by_index = searcher.table.is_local or _WITH_PASSAGES.get(version) is not None
    _WITH_PASSAGES.put(version, True)
    late = [PACK_LINE_COLUMN, PACK_COLUMN]  # in one round: by default, the smaller one is read first
    read = _scan(searcher, ["entity", "path", *late], where, by_index=by_index, late_materialization=late)
    read = read.sort_by(PACK_LINE_COLUMN)
    read = read.filter(pc.is_valid(read[PACK_LINE_COLUMN]))
    columns = (read[name].to_pylist() for name in ("entity", "path", PACK_LINE_COLUMN))
    packs: dict[tuple[str, str], list[tuple[int, str]]] = {}
    of_packs = texts_in(read[PACK_COLUMN], searcher.table.uri).to_pylist()
    for entity, path, line, text in zip(*columns, of_packs, strict=True):
        packs.setdefault((entity, path), []).append((line, text))
    found: dict[Passage, list[str]] = {}
    for each in rows:
        of_document = packs.get((each.entity, each.path), [])
        at = bisect_right(of_document, each.first, key=itemgetter(0)) - 1
        if at < 0:
            continue
        begin, lines = of_document[at][0], list[str]()
        end = bisect_right(of_document, each.last, key=itemgetter(0))
        for start, text in of_document[at:end]:
            if start != begin + len(lines):  # an earlier pack, read for another passage
                break
            lines += lines_in(text)
        else:
            if kept := lines[each.first - begin : each.last + 1 - begin]:
                found[each] = kept
    return found


def _scan(
    searcher: TableSearcher, columns: Sequence[str], where: str, *, by_index: bool = True, **more: Any
) -> pa.Table:
    def scan(indexed: bool) -> pa.Table:
        options: dict[str, Any] = {"use_scalar_index": indexed and by_index, "with_row_id": True, **more}
        return searcher.dataset.scanner(columns=list(columns), filter=where, **options).to_table()

    return with_indexes(searcher.dataset, searcher.table.TITLE, scan)

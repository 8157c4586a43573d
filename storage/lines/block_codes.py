"""Find blocks of lines semantically, by two bits per dimension of their vectors (DESIGN, "Search"; decision 0020).

A block's vector is the sum of its lines' vectors. For each dimension, the code contains the sign and whether the value
is large. The signs alone preselect blocks, both bits rank them, as in RaBitQ (Gao and Long, 2024) but without a
rotation: the dimensions of static models are similar enough.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
from cachetools import LRUCache
from numpy.typing import NDArray

from driftline.storage.lance.lance_table import ADDRESS_BITS, data_file
from driftline.storage.lines.line_table import CODE_COLUMN

if TYPE_CHECKING:
    from lance import LanceDataset, LanceFragment

WORD_BITS = 64
SMALL_VALUE = 0.35
"""The value assumed for dimensions that are not large; large ones count as 1."""
QUERY_BITS = 4
"""Bits per query dimension during preselection by signs."""
SELECTED = 8
"""Number of blocks preselected by signs per block returned."""
MIN_SELECTED = 512
_BLOCKS_AT_ONCE = 1_024
"""Number of blocks whose vectors are summed per step so that they fit into a core's cache."""
_COMPARED_AT_ONCE = 8_192
"""Number of blocks whose signs are compared per step, with buffers that stay in a core's cache."""

_FragmentKey = tuple[int, str]
"""A fragment's id and its first data file. Data file names are never reused."""
_Read = Callable[[Sequence["LanceFragment"] | None], pa.Table]


def encode(vectors: NDArray[np.float16], starts: NDArray[np.int64]) -> pa.Array:
    """Return the codes of blocks of lines as ``(b,) binary``; null for a block with no vector.

    Args:
        vectors: ``(n, dim)`` unit vectors of lines, or zeros.
        starts: ``(b,)`` the first line of each block, ascending from 0.

    Examples:
        >>> lines = np.array([[1, 0, 0], [0.6, -0.8, 0], [0, 0, 0]], np.float16)
        >>> [code and code.hex() for code in encode(lines, np.array([0, 2])).to_pylist()]
        ['80000000000000008000000000000000', None]
    """
    codes: list[bytes | None] = []
    lengths = np.diff(starts, append=len(vectors))
    for first in range(0, len(starts), _BLOCKS_AT_ONCE):
        some = slice(first, first + _BLOCKS_AT_ONCE)
        sums = _sums(vectors, starts[some], lengths[some])
        sizes = np.abs(sums)
        means = sizes.mean(axis=1, keepdims=True)
        planes = np.concatenate([_packed(sums > 0), _packed(sizes > means)], axis=1)
        codes += [plane.tobytes() if mean else None for plane, mean in zip(planes, means[:, 0], strict=True)]
    return pa.array(codes, pa.binary())


def _sums(vectors: NDArray[np.float16], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return each block's sum of vectors as ``(b, dim)``; several times faster than ``np.add.reduceat``."""
    sums = vectors[starts].astype(np.float32)
    for row in range(1, lengths.max(initial=0)):
        longer = np.flatnonzero(lengths > row)
        sums[longer] += vectors[starts[longer] + row]
    return sums


def _packed(bits: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Pack the rows of ``bits`` into whole words; ``bits`` has shape ``(b, dim)``."""
    return np.packbits(np.pad(bits, ((0, 0), (0, -bits.shape[1] % WORD_BITS))), axis=1)


@dataclass(frozen=True, slots=True)
class BlockCodes:
    """The codes of a table's blocks.

    Attributes:
        rows: ``(n,) uint64`` row ids of the blocks' first rows.
        signs: ``(w, n) uint64`` dimension signs, packed into words.
        large: ``(w, n) uint64`` which dimensions are large.
        ranges: the range of blocks of each fragment.
        may_hold_deleted: whether some blocks may have been deleted since.
    """

    rows: NDArray[np.uint64]
    signs: NDArray[np.uint64]
    large: NDArray[np.uint64]
    ranges: dict[_FragmentKey, tuple[int, int]]
    may_hold_deleted: bool = False

    @property
    def nbytes(self) -> int:
        """The size of the codes in memory."""
        return self.rows.nbytes + self.signs.nbytes + self.large.nbytes

    def __len__(self) -> int:
        return len(self.rows)

    def among(self, held: NDArray[np.bool_]) -> BlockCodes:
        """Return the codes of the blocks selected by the ``(n,)`` mask ``held``."""
        return BlockCodes(self.rows[held], self.signs[:, held], self.large[:, held], {})

    def nearest(self, vector: NDArray[np.float32], limit: int) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
        """Return ``(limit,)`` rows of the blocks nearest to ``vector``, nearest first, and their ``(limit,)`` cosines.

        Args:
            vector: ``(dim,)``, not zero.
            limit: the maximum number of blocks.
        """
        at = _preselected(self.signs, vector, max(SELECTED * limit, MIN_SELECTED))
        signs, large = (np.ascontiguousarray(words[:, at].T).view(np.uint8) for words in (self.signs, self.large))
        total = _Sums.of(vector, signs.shape[1])
        of_large = total(signs & large) - total(large & ~signs)
        products = SMALL_VALUE * (2 * total(signs) - vector.sum()) + (1 - SMALL_VALUE) * of_large
        counts = np.bitwise_count(large).sum(axis=1, dtype=np.int64)
        norms = np.sqrt(counts + (len(vector) - counts) * SMALL_VALUE**2) * np.linalg.norm(vector)
        cosines = (products / norms).astype(np.float32)
        best = np.argsort(-cosines, kind="stable")[:limit]
        return self.rows[at[best]], cosines[best]

    def nearest_in(
        self, parts: Sequence[BlockCodes], vector: NDArray[np.float32], limit: int
    ) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.float32]]]:
        """Run ``nearest`` on these codes (``parts``, joined); yield each part's share of the rows and cosines."""
        numbers, cosines = self.nearest(vector, limit)
        first = 0
        for part in parts:
            own = (numbers >= first) & (numbers < first + len(part))
            yield part.rows[(numbers[own] - np.uint64(first)).astype(np.intp)], cosines[own]
            first += len(part)


def join(parts: Sequence[BlockCodes]) -> BlockCodes:
    """Return the codes of all ``parts``, at least one of which has blocks, numbered from 0 instead of by row."""
    some = [each for each in parts if len(each)]  # the codes of an empty table have no width
    signs, large = (np.concatenate([getattr(each, name) for each in some], axis=1) for name in ("signs", "large"))
    return BlockCodes(np.arange(signs.shape[1], dtype=np.uint64), signs, large, {})


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums of a vector over sets of dimensions.

    ``of_bytes`` contains 256 sums per position, one for each byte value.
    """

    of_bytes: NDArray[np.float32]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, vector: NDArray[np.float32], width: int) -> Self:
        """Precompute the sums for sets of ``width`` bytes."""
        bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float32)
        dimensions = np.pad(vector, (0, 8 * width - len(vector))).reshape(width, 8)
        return cls((dimensions @ bits.T).ravel(), np.arange(0, 256 * width, 256))

    def __call__(self, sets: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the sum for each row of ``sets``. Shapes: ``(n, width)`` to ``(n,)``."""
        return np.asarray(self.of_bytes[sets + self.offsets].sum(axis=1), np.float32)


def _preselected(signs: NDArray[np.uint64], vector: NDArray[np.float32], limit: int) -> NDArray[np.intp]:
    """Return the positions of the ``limit`` blocks whose signs have the largest products with ``vector``, ascending.

    The query is quantized to QUERY_BITS. A product, up to a factor and a constant, is then a weighted sum of common-bit
    counts, one query bit at a time. Shape of ``signs``: ``(w, n)``.
    """
    if signs.shape[1] <= limit:
        return np.arange(signs.shape[1])
    low = vector.min()
    steps = (2**QUERY_BITS - 1) / max(vector.max() - low, 1e-9)
    levels = np.rint((vector - low) * steps).astype(np.uint8)
    planes = [
        (np.float32(1 << bit), _packed((levels >> bit & 1).astype(np.bool_)[None]).view(np.uint64).T)
        for bit in range(QUERY_BITS)
    ]
    common = np.empty((len(signs), _COMPARED_AT_ONCE), np.uint64)
    counts = np.empty(common.shape, np.uint8)

    def counted(sets: NDArray[np.uint64]) -> NDArray[np.uint16]:
        found = np.bitwise_count(sets, out=counts[:, : sets.shape[1]])
        return np.asarray(found.sum(axis=0, dtype=np.uint16), np.uint16)

    best, products, least = np.zeros(0, np.intp), np.zeros(0, np.float32), np.float32(-np.inf)
    for first in range(0, signs.shape[1], _COMPARED_AT_ONCE):
        some = signs[:, first : first + _COMPARED_AT_ONCE]
        found = np.float32(low * steps) * counted(some)
        for weight, plane in planes:
            found += weight * counted(np.bitwise_and(some, plane, out=common[:, : some.shape[1]]))
        at = np.flatnonzero(found > least)
        best, products = np.append(best, first + at), np.append(products, found[at])
        is_last = first + _COMPARED_AT_ONCE >= signs.shape[1]
        if len(best) > (limit if is_last else 2 * limit):
            kept = np.argpartition(products, -limit)[-limit:]
            best, products = best[kept], products[kept]
            least = products.min()
    return np.sort(best)


_CODES: LRUCache[str, BlockCodes] = LRUCache(512 * 2**20, lambda codes: codes.nbytes)
"""For each table and table branch, the codes of the last version that this process searched."""
_ONE_AT_A_TIME = Lock()
_READING: defaultdict[str, Lock] = defaultdict(Lock)
"""A lock for each table: its branches share most codes, so only one of them should read at a time."""


def codes_of(dataset: LanceDataset, read: _Read, announce: Callable[[Sequence[LanceFragment]], None]) -> BlockCodes:
    """Return the codes of a table version; only new fragments' codes are read.

    Args:
        dataset: the table version.
        read: reads CODE_COLUMN, ``_rowid`` and ``_rowaddr`` of all blocks, or of the blocks in some fragments.
        announce: called before the read, with the fragments whose codes are missing.
    """
    fragments = {(each.fragment_id, data_file(each)): each for each in dataset.get_fragments()}
    may_hold_deleted = any(each.deletion_file() for each in fragments.values())
    codes = _known(dataset.uri)
    if codes is None or codes.ranges.keys() != fragments.keys():
        announce([each for key, each in fragments.items() if codes is None or key not in codes.ranges])
        with _READING[_main_table(dataset.uri)]:
            codes = _extended(_known(dataset.uri), fragments, read)
        with _ONE_AT_A_TIME:
            if codes.nbytes <= _CODES.maxsize:
                _CODES[dataset.uri] = codes
    return replace(codes, may_hold_deleted=may_hold_deleted)


def _main_table(uri: str) -> str:
    """Return the URI of the table that a branch belongs to.

    >>> _main_table("/a/tree/b/lines.lance/tree/01H") == _main_table("/a/tree/b/lines.lance")
    True
    >>> _main_table("/a/tree/c/lines.lance") == _main_table("/a/tree/b/lines.lance")
    False
    """
    return uri.partition(".lance/tree/")[0].removesuffix(".lance")


def _known(uri: str) -> BlockCodes | None:
    """Return a table's known codes, falling back to another branch's codes: branches share most fragments."""
    with _ONE_AT_A_TIME:
        related = (each for each in _CODES if _main_table(each) == _main_table(uri))
        best = uri if uri in _CODES else next(related, None)
        return _CODES[best] if best is not None else None


def _extended(known: BlockCodes | None, fragments: Mapping[_FragmentKey, LanceFragment], read: _Read) -> BlockCodes:
    """Return the codes of ``fragments``, reading only those that are not ``known``."""
    kept = {key: at for key, at in known.ranges.items() if key in fragments} if known else {}
    if known is None or not kept:
        return _read_codes([*fragments], read(None))
    new = [key for key in fragments if key not in kept]
    return _joined(known, kept, _read_codes(new, read([fragments[key] for key in new])) if new else None)


def _read_codes(fragments: Sequence[_FragmentKey], rows: pa.Table) -> BlockCodes:
    addresses = rows["_rowaddr"].to_numpy()
    if (addresses[1:] < addresses[:-1]).any():
        rows = rows.sort_by("_rowaddr")
        addresses = rows["_rowaddr"].to_numpy()
    signs, large = _planes(rows[CODE_COLUMN])
    fragment = addresses >> np.uint64(ADDRESS_BITS)
    numbers = np.array([number for number, _ in fragments], np.uint64)
    first, end = np.searchsorted(fragment, numbers), np.searchsorted(fragment, numbers, side="right")
    bounds = zip(first.tolist(), end.tolist(), strict=True)
    return BlockCodes(rows["_rowid"].to_numpy(), signs, large, dict(zip(fragments, bounds, strict=True)))


def _planes(codes: pa.ChunkedArray) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the signs and the large dimensions in ``codes``, ``(w, n)`` each, without a Python object per code."""
    width = len(codes[0].as_buffer()) if len(codes) else 0
    signs, large = np.empty((2, width // 16, len(codes)), np.uint64)
    at = 0
    for part in filter(len, codes.chunks):
        fixed = part.cast(pa.binary(width))
        size = len(fixed) * width // 8
        words = np.frombuffer(fixed.buffers()[1], np.uint64, size, fixed.offset * width).reshape(len(fixed), -1)
        signs[:, at : at + len(part)], large[:, at : at + len(part)] = np.split(words.T, 2)
        at += len(part)
    return signs, large


def _joined(known: BlockCodes, kept: dict[_FragmentKey, tuple[int, int]], new: BlockCodes | None) -> BlockCodes:
    """Return the ``kept`` ranges of ``known``, followed by the ``new`` codes."""
    held = [slice(*bounds) for bounds in kept.values()]
    ends = np.cumsum([each.stop - each.start for each in held]).tolist()
    ranges = dict(zip(kept, pairwise([0, *ends]), strict=True))
    others = [new] if new is not None and len(new) else []
    if new is not None:
        ranges |= {fragment: (ends[-1] + first, ends[-1] + end) for fragment, (first, end) in new.ranges.items()}
    return BlockCodes(
        np.concatenate([*(known.rows[each] for each in held), *(each.rows for each in others)]),
        np.concatenate([*(known.signs[:, each] for each in held), *(each.signs for each in others)], axis=1),
        np.concatenate([*(known.large[:, each] for each in held), *(each.large for each in others)], axis=1),
        ranges,
    )

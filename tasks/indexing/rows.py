"""Form the rows of ``line_embeddings`` from lines and vectors."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.entities import Entity
from driftline.storage.lines.outline import Definition, encode
from driftline.storage.lines.table import LINES_PER_BLOCK, schema
from driftline.storage.model import ManifestRow


def line_rows(
    entity: Entity,
    documents: Sequence[ManifestRow],
    doc_index: pa.Int32Array,
    line_number: pa.Int32Array,
    text: pa.StringArray,
    vectors: NDArray[np.float16],
    definitions: Sequence[Sequence[Definition]] | None = None,
) -> pa.Table:
    """Lines as a table of ``storage.lines.table.schema``; arrays have one length, ``vectors`` is ``(n, dim) float16``.

    ``doc_index`` points into ``documents``, as ``definitions`` does, which are None if nobody looked for them;
    documents and the lines of each are in order. A zero vector, which has no direction, becomes null, so that no
    search returns it.
    """
    dim = vectors.shape[1]
    meaningless = pa.array(~vectors.any(axis=1))
    paths = [document.path for document in documents]

    def of_document(values: Sequence[object], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind).take(doc_index)

    columns = {
        "id": pa.array(row_ids(entity, paths, doc_index.to_numpy(), line_number.to_numpy())),
        "entity": pa.repeat(pa.scalar(str(entity)), len(text)),
        "path": of_document(paths, pa.string()),
        "line_number": line_number,
        "text": text,
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), dim, mask=meaningless),
        "parent_dirs": of_document([parent_dirs(path) for path in paths], pa.list_(pa.string())),
        "ext": of_document([extension(path) for path in paths], pa.string()),
        "hash": of_document([document.hash for document in documents], pa.string()),
        "block": blocks(paths, doc_index, line_number, text, definitions),
        "outline": outlines(doc_index, line_number, definitions),
    }
    return pa.table(columns, schema=schema(dim))


def blocks(
    paths: Sequence[str],
    doc_index: pa.Int32Array,
    line_number: pa.Int32Array,
    text: pa.StringArray,
    definitions: Sequence[Sequence[Definition]] | None = None,
) -> pa.StringArray:
    """``(n,)``: the column ``block`` of ``storage.lines.table.schema``, null except in the first row of each block."""
    documents, numbers = doc_index.to_numpy(), line_number.to_numpy()
    first = _begins_block(documents, numbers)
    starts = np.flatnonzero(first)
    # Lines without a row are empty lines in the block.
    breaks = np.diff(numbers, prepend=0)
    breaks[starts] = numbers[starts] % LINES_PER_BLOCK + 1
    lines = pc.binary_join_element_wise(pc.binary_repeat("\n", pa.array(breaks)), text, "")
    offsets = pa.array(np.append(starts, len(numbers)), pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, lines), "")
    heads = pa.array(paths, pa.string()).take(doc_index.take(pa.array(starts)))
    if definitions is not None:
        places = zip(documents[starts].tolist(), numbers[starts].tolist(), strict=True)
        names = _names_around(places, definitions)
        heads = pc.binary_join_element_wise(heads, pa.array(names, pa.string()), "")
    named = pc.binary_join_element_wise(heads, joined, "")
    return named.take(pa.array(np.cumsum(first) - 1, mask=~first))


def outlines(
    doc_index: pa.Int32Array, line_number: pa.Int32Array, definitions: Sequence[Sequence[Definition]] | None
) -> pa.StringArray:
    """``(n,)``: the column ``outline`` of ``storage.lines.table.schema``, null but in the first row of each block."""
    if definitions is None:
        return pa.nulls(len(doc_index), pa.string())
    documents, numbers = doc_index.to_numpy(), line_number.to_numpy()
    first = _begins_block(documents, numbers)
    starts = np.flatnonzero(first)
    of_blocks = [_by_block(found) for found in definitions]
    places = zip(documents[starts].tolist(), (numbers[starts] // LINES_PER_BLOCK).tolist(), strict=True)
    known = pa.array([encode(of_blocks[document].get(block, ())) for document, block in places], pa.string())
    return known.take(pa.array(np.cumsum(first) - 1, mask=~first))


def _begins_block(documents: NDArray[np.int32], numbers: NDArray[np.int32]) -> NDArray[np.bool_]:
    """``(n,)``: whether each line is the first of its block that has a row."""
    block = numbers // LINES_PER_BLOCK
    first = np.ones(len(numbers), np.bool_)
    first[1:] = (documents[1:] != documents[:-1]) | (block[1:] != block[:-1])
    return first


def _by_block(definitions: Sequence[Definition]) -> dict[int, list[Definition]]:
    """The definitions of a document by the blocks that they lie in or hold, in their order."""
    found: dict[int, list[Definition]] = {}
    for each in definitions:
        for block in range(each.first // LINES_PER_BLOCK, each.last // LINES_PER_BLOCK + 1):
            found.setdefault(block, []).append(each)
    return found


def _names_around(places: Iterable[tuple[int, int]], definitions: Sequence[Sequence[Definition]]) -> list[str]:
    """What follows the path in the head of each block, which begins at ``(document, line)``: a tab and the name of the
    innermost definition that began before it, if any. So words find the inside of what they name."""
    of_blocks = [_by_block(found) for found in definitions]
    names: list[str] = []
    for document, line in places:
        inside = of_blocks[document].get(line // LINES_PER_BLOCK, ())
        name = next((each.name for each in reversed(inside) if each.line < line <= each.last), None)
        names.append("" if name is None else f"\t{name}")
    return names


def parent_dirs(path: str) -> list[str]:
    """The ancestor directories of ``path`` below the source, outermost first, each with a trailing slash."""
    return [path[: i + 1] for i, character in enumerate(path) if character == "/"]


def extension(path: str) -> str:
    """The extension of ``path`` in lower case, without its dot; "" if it has none."""
    return posixpath.splitext(path)[1][1:].lower()


def row_ids(
    entity: Entity, paths: Sequence[str], doc_index: NDArray[np.int32], line_number: NDArray[np.int32]
) -> NDArray[np.int64]:
    """``(n,) int64`` ids from entity, path and line number, the same at every attempt and on every worker.

    Document hash and line number are mixed as by splitmix64 (Steele et al., 2014).
    """
    seeds = b"".join(hashlib.blake2b(f"{entity}\0{path}".encode(), digest_size=8).digest() for path in paths)
    mixed = np.frombuffer(seeds, np.uint64)[doc_index]
    mixed = mixed + line_number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)

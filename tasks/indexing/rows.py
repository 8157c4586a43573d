"""Form the rows of ``line_embeddings`` from lines and vectors."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.entities import Entity
from driftline.storage.lines.table import LINES_PER_BLOCK, schema
from driftline.storage.model import ManifestRow


def line_rows(
    entity: Entity,
    documents: Sequence[ManifestRow],
    doc_index: pa.Int32Array,
    line_number: pa.Int32Array,
    text: pa.StringArray,
    vectors: NDArray[np.float16],
) -> pa.Table:
    """Lines as a table of ``storage.lines.table.schema``; arrays have one length, ``vectors`` is ``(n, dim) float16``.

    ``doc_index`` points into ``documents``; documents and the lines of each are in order. A zero vector, which has no
    direction, becomes null, so that no search returns it.
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
        "block": blocks(paths, doc_index, line_number, text),
    }
    return pa.table(columns, schema=schema(dim))


def blocks(
    paths: Sequence[str], doc_index: pa.Int32Array, line_number: pa.Int32Array, text: pa.StringArray
) -> pa.StringArray:
    """``(n,)``: the column ``block`` of ``storage.lines.table.schema``, null except in the first row of each block."""
    documents, numbers = doc_index.to_numpy(), line_number.to_numpy()
    block = numbers // LINES_PER_BLOCK
    first = np.ones(len(numbers), np.bool_)
    first[1:] = (documents[1:] != documents[:-1]) | (block[1:] != block[:-1])
    starts = np.flatnonzero(first)
    # Lines without a row are empty lines in the block.
    breaks = np.diff(numbers, prepend=0)
    breaks[starts] = numbers[starts] % LINES_PER_BLOCK + 1
    lines = pc.binary_join_element_wise(pc.binary_repeat("\n", pa.array(breaks)), text, "")
    offsets = pa.array(np.append(starts, len(numbers)), pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, lines), "")
    named = pc.binary_join_element_wise(pa.array(paths, pa.string()).take(doc_index.take(pa.array(starts))), joined, "")
    row_of_block = np.cumsum(first) - 1
    return named.take(pa.array(row_of_block, mask=~first))


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

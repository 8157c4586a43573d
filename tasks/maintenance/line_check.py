"""Check the values of lines: a disk may change a bit that no reader of the table notices (DESIGN, "Verification")."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.lines.block_codes import encode
from driftline.storage.lines.commit_marker import MARKER_LINE
from driftline.storage.lines.line_table import CODE_COLUMN, GRAMS_COLUMN, PACK_COLUMN, TEXT_COLUMN
from driftline.storage.lines.packs import has_own_grams, text_in
from driftline.tasks.indexing.rows import RowPositions, extension, lines_of_blocks, parent_dirs

ROUNDED_BITS = 4
"""Bits of a block's code that may depend on how a processor rounds."""


def changed_documents(batches: Iterator[pa.RecordBatch]) -> set[tuple[str, str]]:
    """Return entity and path of documents whose rows, those of a fragment in order, contradict each other.

    Texts are compared with blocks, packs with their checksums, their grams with their text, codes with vectors, and
    folders and extensions with paths. Nothing can be compared with vectors, outlines, or packs of earlier versions.
    """
    found, rest = set[tuple[str, str]](), list[pa.RecordBatch]()
    for batch in batches:
        lines = batch.filter(pc.greater(batch["line_number"], MARKER_LINE))
        found |= _documents(lines, _in_paths(lines) | _in_packs(lines))
        starts = np.flatnonzero(lines[TEXT_COLUMN].is_valid().to_numpy(zero_copy_only=False)).tolist()
        if starts:
            found |= _with_changed_blocks([*rest, lines[0 if rest else starts[0] : starts[-1]]])
            rest, lines = [], lines[starts[-1] :]  # it may continue in the next batch
        if starts or rest:  # otherwise, the block began in another fragment
            rest.append(lines)
    return found | _with_changed_blocks(rest, may_continue=True)


def _documents(rows: pa.RecordBatch, wrong: NDArray[np.bool_]) -> set[tuple[str, str]]:
    return {(rows["entity"][row].as_py(), rows["path"][row].as_py()) for row in np.flatnonzero(wrong).tolist()}


def _with_changed_blocks(parts: list[pa.RecordBatch], *, may_continue: bool = False) -> set[tuple[str, str]]:
    """Check whole blocks; the last one ``may_continue`` in another fragment."""
    table = pa.Table.from_batches(parts).combine_chunks() if parts else pa.table({})
    return _documents(rows := table.to_batches()[0], _in_blocks(rows, may_continue)) if len(table) else set()


def _in_paths(rows: pa.RecordBatch) -> NDArray[np.bool_]:
    paths = rows["path"].dictionary_encode()
    names = paths.dictionary.to_pylist()
    extensions = pa.array([extension(name) for name in names]).take(paths.indices)
    folders = pa.array(["\n".join(parent_dirs(name)) for name in names]).take(paths.indices)
    stored = pc.binary_join(rows["parent_dirs"], "\n")
    same = pc.and_(pc.equal(rows["ext"], extensions), pc.equal(stored, folders))
    return np.asarray(pc.invert(pc.fill_null(same, False)).to_numpy(zero_copy_only=False))


def _in_packs(rows: pa.RecordBatch) -> NDArray[np.bool_]:
    wrong, packs = np.zeros(len(rows), np.bool_), rows[PACK_COLUMN].cast(pa.binary())
    for row in np.flatnonzero(packs.is_valid().to_numpy(zero_copy_only=False)).tolist():
        text, filter = text_in(packs[row].as_py()), rows[GRAMS_COLUMN][row].as_py()
        wrong[row] = text is None or filter is None or not has_own_grams(text, filter)
    return wrong


def _in_blocks(rows: pa.RecordBatch, may_continue: bool) -> NDArray[np.bool_]:
    keys = np.stack([rows[name].dictionary_encode().indices.to_numpy() for name in ("path", "entity")])
    document = np.append(0, np.cumsum((keys[:, 1:] != keys[:, :-1]).any(axis=0))).astype(np.int32)
    numbers = RowPositions.of(pa.array(document), rows["line_number"], rows["column_number"])
    wrong: NDArray[np.bool_] = rows[TEXT_COLUMN].is_valid().to_numpy(zero_copy_only=False)
    wrong[numbers.starts] ^= True
    starts = pa.array(numbers.starts)
    stored, paths = (rows[name].cast(pa.binary()).take(starts).to_pylist() for name in (TEXT_COLUMN, "path"))
    lines = lines_of_blocks(numbers, rows["text"]).cast(pa.binary()).to_pylist()
    vectors = np.zeros((len(rows), rows["vector"].type.list_size), np.float16)
    has_vector = rows["vector"].is_valid().to_numpy(zero_copy_only=False)
    vectors[has_vector] = rows["vector"].flatten().to_numpy().reshape(-1, vectors.shape[1])
    codes = zip(rows[CODE_COLUMN].take(starts).to_pylist(), encode(vectors, numbers.starts).to_pylist(), strict=True)
    for row, block, path, text, (code, own) in zip(numbers.starts.tolist(), stored, paths, lines, codes, strict=True):
        if block is None or not block.startswith(path):
            wrong[row] = True
        elif block.endswith(text):
            wrong[row] |= not _agree(code, own)
        else:
            wrong[row] |= not (may_continue and row == numbers.starts[-1] and text in block)
    return wrong


def _agree(code: bytes | None, own: bytes | None) -> bool:
    if code is None or own is None or len(code) != len(own):
        return code == own
    return (int.from_bytes(code) ^ int.from_bytes(own)).bit_count() <= ROUNDED_BITS

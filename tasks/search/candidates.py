"""The lines among which a hybrid search chooses: those of the best blocks by words, and the nearest by meaning."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.storage.lines.outline import OUTLINE_COLUMN, Definition, decode
from driftline.storage.lines.table import CONTINUED, LINES_PER_BLOCK, SPELLED, TEXT_COLUMN
from driftline.storage.lines.words import names_in, telling_words, terms_asked
from driftline.tasks.search.ranking import CandidateLines, count_words

Document = tuple[str, str, str]
"""Entity, path and hash."""
NO_DEFINITION, UNKNOWN = -1, -2


@dataclass(frozen=True, slots=True)
class Candidates:
    """``n`` distinct lines, in the order of ``documents`` and lines.

    ``lines`` says where each line stands (``number`` 0-based), ``column`` ``(n,)`` where in it a row of a long line
    begins, and ``texts`` what it says. ``block`` ``(n,)`` is its row
    among the blocks, -1 if it is none of theirs; ``block_documents`` has the document of each block, ``block_names``
    what its head names besides. ``near`` ``(n,) bool`` says whether it is one of the nearest. ``counts``,
    ``(n, t) float32``, say how often it holds each of ``words``, ``t`` terms; ``lengths``, ``(n,) float32``, how long
    it is. ``definition`` ``(n,)`` is the innermost of ``definitions`` around it, NO_DEFINITION, or UNKNOWN.
    """

    words: Sequence[str]
    names: Sequence[str]
    documents: Sequence[Document]
    lines: CandidateLines
    column: NDArray[np.int64]
    texts: Sequence[str]
    block: NDArray[np.int64]
    block_documents: NDArray[np.int64]
    block_names: Sequence[str]
    near: NDArray[np.bool_]
    counts: NDArray[np.float32]
    lengths: NDArray[np.float32]
    definitions: Sequence[Definition]
    definition: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.texts)

    def row(self, at: int) -> dict[str, Any]:
        """One line as ``storage.queries.nearest_lines`` gives it, without its distance, and its ``definition``."""
        entity, path, digest = self.documents[self.lines.document[at]]
        number = int(self.lines.number[at])
        return {
            "entity": entity,
            "path": path,
            "line_number": number,
            "column_number": int(self.column[at]),
            "text": self.texts[at],
            "hash": digest,
            "definition": self.definition_of(at),
            "outlined": bool(self.definition[at] != UNKNOWN),
        }

    def definition_of(self, at: int) -> Definition | None:
        """The innermost definition around a line, if it is known."""
        position = int(self.definition[at])
        return self.definitions[position] if position >= 0 else None


def lines_of(blocks: pa.Table, query: str) -> Candidates:
    """The lines of ``blocks`` (``storage.queries.matching_blocks``), and the words of ``query`` in them."""
    words = terms_asked(telling_words(query))
    of_blocks = _documents(blocks)
    documents = sorted(set(of_blocks))
    block_documents = _positions(of_blocks, documents)
    first = blocks["line_number"].to_numpy().astype(np.int64) // LINES_PER_BLOCK * LINES_PER_BLOCK
    order = np.lexsort((first, block_documents))
    whole = blocks[TEXT_COLUMN].to_pylist()
    heads = [text.index("\n", len(path)) for text, (_, path, _) in zip(whole, of_blocks, strict=True)]
    names = [
        text[len(path) : head].partition(SPELLED)[0]
        for text, (_, path, _), head in zip(whole, of_blocks, heads, strict=True)
    ]
    split = [whole[at][heads[at] + 1 :].split("\n") for at in order.tolist()]
    sizes = np.fromiter(map(len, split), np.int64, len(split))
    block = np.repeat(order, sizes)
    number = first[block] + np.arange(len(block)) - np.repeat(sizes.cumsum() - sizes, sizes)
    texts = [*chain.from_iterable(split)]
    held = np.fromiter(map(bool, texts), np.bool_, len(texts))  # lines without a word have no row
    texts = [text for text in texts if text]
    block, number = block[held], number[held]
    texts, parts, column = _rows_of(texts, block, blocks["column_number"].to_numpy())
    block, number = np.repeat(block, parts), np.repeat(number, parts)
    definitions, definition = _definitions(blocks[OUTLINE_COLUMN].to_pylist(), block, number)
    return Candidates(
        words,
        names_in(query),
        documents,
        CandidateLines(block_documents[block], number),
        column,
        texts,
        block,
        block_documents,
        names,
        np.zeros(len(texts), np.bool_),
        *count_words(texts, words),
        definitions,
        definition,
    )


def _rows_of(
    texts: list[str], block: NDArray[np.int64], first_columns: NDArray[np.int32]
) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """The rows that lines of blocks consist of, how many each has, and the column of each row.

    The first line of a block begins at the column of the block.
    """
    begins = np.diff(block, prepend=-1) != 0
    column = np.where(begins, first_columns[block], 0).astype(np.int64)
    parts = np.ones(len(texts), np.int64)
    if not any(CONTINUED in text for text in texts):
        return texts, parts, column
    rows: list[str] = []
    columns: list[int] = []
    for at, (text, start) in enumerate(zip(texts, column.tolist(), strict=True)):
        of_line = text.split(CONTINUED)
        parts[at] = len(of_line)
        rows += of_line
        columns += [start + before for before in accumulate(map(len, of_line[:-1]), initial=0)]
    return rows, parts, np.array(columns, np.int64)


def _definitions(
    outlines: Sequence[str | None], block: NDArray[np.int64], number: NDArray[np.int64]
) -> tuple[list[Definition], NDArray[np.int64]]:
    """The definitions in the outlines of blocks, and for each line, ``(n,)``, the innermost around it."""
    definitions: list[Definition] = []
    innermost = np.full(len(block), UNKNOWN)
    starts = np.flatnonzero(np.diff(block, prepend=-1))  # the lines of a block stand together
    for start, stop in pairwise([*starts.tolist(), len(block)]):
        outline = outlines[block[start]]
        if outline is None:
            continue
        innermost[start:stop] = NO_DEFINITION
        numbers = number[start:stop].tolist()
        for each in decode(outline):
            first, end = bisect_left(numbers, each.first), bisect_right(numbers, each.last)
            innermost[start + first : start + end] = len(definitions)
            definitions.append(each)
    return definitions, innermost


def gather(found: Candidates, nearest: pa.Table) -> Candidates:
    """The distinct lines of ``found`` and of ``nearest`` (``storage.queries.nearest_lines``)."""
    of_nearest = _documents(nearest)
    documents = sorted({*found.documents, *of_nearest})
    moved = _positions(found.documents, documents)
    document, near_document = moved[found.lines.document], _positions(of_nearest, documents)
    near_number = nearest["line_number"].to_numpy().astype(np.int64)
    near_column = nearest["column_number"].to_numpy().astype(np.int64)
    places = _places(document, found.lines.number, found.column)
    near_places = _places(near_document, near_number, near_column)
    new = np.flatnonzero(~np.isin(near_places, places))
    texts = [*found.texts, *nearest["text"].take(pa.array(new)).to_pylist()]
    counts, lengths = count_words(texts[len(found) :], found.words)
    order = np.argsort(np.concatenate([places, near_places[new]]))
    return Candidates(
        found.words,
        found.names,
        documents,
        CandidateLines(
            np.concatenate([document, near_document[new]])[order],
            np.concatenate([found.lines.number, near_number[new]])[order],
        ),
        np.concatenate([found.column, near_column[new]])[order],
        [texts[at] for at in order.tolist()],
        np.concatenate([found.block, np.full(len(new), -1)])[order],
        moved[found.block_documents],
        found.block_names,
        np.concatenate([found.near | np.isin(places, near_places), np.ones(len(new), np.bool_)])[order],
        np.concatenate([found.counts, counts])[order],
        np.concatenate([found.lengths, lengths])[order],
        found.definitions,
        np.concatenate([found.definition, np.full(len(new), UNKNOWN)])[order],
    )


def _positions(wanted: Sequence[Document], documents: Sequence[Document]) -> NDArray[np.int64]:
    """``(n,)``: where each of the ``wanted`` ones stands among ``documents``."""
    position = {document: at for at, document in enumerate(documents)}
    return np.fromiter((position[document] for document in wanted), np.int64, len(wanted))


def _places(document: NDArray[np.int64], number: NDArray[np.int64], column: NDArray[np.int64]) -> NDArray[np.int64]:
    """One number for each row, in the order of documents, lines and columns, which are below 2**16."""
    return document << 47 | number << 16 | column


def _documents(rows: pa.Table) -> list[Document]:
    return list(zip(*(rows[name].to_pylist() for name in ("entity", "path", "hash")), strict=True))

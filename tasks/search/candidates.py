"""Collect and rank the candidates of a hybrid search: lines of the best lexical blocks, and the semantically nearest.

The result is the best of the candidates, best first (DESIGN, "Search").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, repeat
from math import log2
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.storage.documents import is_auxiliary, is_prose, is_test
from driftline.storage.embedding import Embedder
from driftline.storage.lines.line_table import CONTINUED, LINES_PER_BLOCK, SPELLED, TEXT_COLUMN
from driftline.storage.lines.outline import OUTLINE_COLUMN, Definition, decode, parts_of_name
from driftline.storage.lines.tokenizer import distinct_terms, is_paired, keywords, language_of, terms
from driftline.tasks.definitions.find_definitions import begins_definition
from driftline.tasks.search.filters import ALL_LINES, LineKinds
from driftline.tasks.search.query_language import is_constant, names_in, other_spellings, places_in, verbatim_in
from driftline.tasks.search.ranking import (
    BM25_K1,
    WEIGHTS,
    CandidateLines,
    DocumentVersion,
    FoundLine,
    Neighbourhood,
    Weights,
    Window,
    count_words,
    document_scores,
    line_scores,
    semantic_scores,
    text_scores,
    word_weights,
)

NO_DEFINITION, UNKNOWN = -1, -2
_NUMBER_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """``n`` distinct lines, in the order of ``documents`` and lines.

    ``lines`` contains each line's position (``number`` 0-based), ``column`` ``(n,)`` the start of its row within a long
    line, and ``texts`` its text. ``block`` ``(n,)`` is its row among the blocks, -1 if it has none; ``block_documents``
    contains each block's document, and ``block_names`` the name in its head. ``near`` ``(n,) bool`` marks semantically
    near lines. ``sequence`` contains the query's terms in order, and ``words`` the ``t`` distinct ones that count:
    ``counts`` ``(n, t) float32`` is how often a line contains each. ``lengths`` ``(n,) float32`` is a line's length.
    ``definition`` ``(n,)`` is its innermost enclosing definition in ``definitions``, NO_DEFINITION, or UNKNOWN.
    """

    words: Sequence[str]
    sequence: Sequence[str]
    language: str
    names: Sequence[str]
    verbatim: Sequence[str]
    places: Sequence[tuple[str, int | None]]
    documents: Sequence[DocumentVersion]
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

    def texts_of(self, windows: Sequence[Window]) -> list[str]:
        """Return the text of each window, as far as its lines are candidates."""
        position = {document: at for at, document in enumerate(self.documents)}
        keys = self.lines.document << _NUMBER_BITS | self.lines.number
        at = np.fromiter((position[(*each.file, each.hash)] for each in windows), np.int64) << _NUMBER_BITS
        bounds = np.array([(each.first, each.last) for each in windows], np.int64).reshape(-1, 2)
        first = np.searchsorted(keys, at | bounds[:, 0]).tolist()
        end = np.searchsorted(keys, at | bounds[:, 1], side="right").tolist()
        return ["\n".join(self.texts[start:stop]) for start, stop in zip(first, end, strict=True)]

    def definition_of(self, at: int) -> Definition | None:
        """Return a line's innermost enclosing definition, if it is known."""
        position = int(self.definition[at])
        return self.definitions[position] if position >= 0 else None


def lines_of(blocks: pa.Table, query: str) -> Candidates:
    """Return the lines of ``blocks`` (``TableSearcher.blocks``), with their counts of the words of ``query``.

    The column ``near``, if there is one, marks semantically near blocks.
    """
    language = language_of(query)
    words = distinct_terms(keywords(query), language)
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
    held = np.fromiter(map(bool, texts), np.bool_, len(texts))  # lines with no words have no row
    texts = [text for text in texts if text]
    block, number = block[held], number[held]
    texts, parts, column = _rows_of(texts, block, blocks["column_number"].to_numpy())
    block, number = np.repeat(block, parts), np.repeat(number, parts)
    near = blocks["near"].to_numpy() if "near" in blocks.column_names else np.zeros(len(blocks), np.bool_)
    definitions, definition = _definitions(blocks[OUTLINE_COLUMN].to_pylist(), block, number)
    counts, lengths = count_words(texts, words, language)
    return Candidates(
        words=words,
        sequence=terms(query, language),
        language=language,
        names=names_in(query),
        verbatim=verbatim_in(query),
        places=places_in(query),
        documents=documents,
        lines=CandidateLines(block_documents[block], number),
        column=column,
        texts=texts,
        block=block,
        block_documents=block_documents,
        block_names=names,
        near=near[block],
        counts=counts,
        lengths=lengths,
        definitions=definitions,
        definition=definition,
    )


def _rows_of(
    texts: list[str], block: NDArray[np.int64], first_columns: NDArray[np.int32]
) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """Split the lines of blocks into rows: return the rows, the row count of each line, and the column of each row.

    A block's first line starts at the block's column.
    """
    begins = np.diff(block, prepend=-1) != 0
    column = np.where(begins, first_columns[block], 0).astype(np.int64)
    parts = np.ones(len(texts), np.int64)
    if CONTINUED not in "".join(texts):
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
    """Return the definitions in the blocks' outlines, and for each line, ``(n,)``, the innermost enclosing one."""
    definitions: list[Definition] = []
    starts = np.flatnonzero(np.diff(block, prepend=-1))  # a block's lines are adjacent
    of_blocks = [outlines[at] for at in block[starts].tolist()]
    counts = []
    for outline in of_blocks:
        definitions += (found := decode(outline or ""))
        counts.append(len(found))
    sizes = np.diff(starts, append=len(block))
    known = np.fromiter((outline is not None for outline in of_blocks), np.bool_, len(of_blocks))
    innermost = np.repeat(np.where(known, NO_DEFINITION, UNKNOWN), sizes)
    # Numbers that increase across all blocks, so one search finds the lines of all definitions.
    at = np.repeat(np.arange(len(starts)), counts) << _NUMBER_BITS
    keys = np.repeat(np.arange(len(starts)), sizes) << _NUMBER_BITS | number
    bounds = np.array([(each.first, each.last) for each in definitions], np.int64).reshape(-1, 2)
    first = np.searchsorted(keys, at | bounds[:, 0])
    end = np.searchsorted(keys, at | bounds[:, 1], side="right")
    for position, (start, stop) in enumerate(zip(first.tolist(), end.tolist(), strict=True)):
        innermost[start:stop] = position  # inner definitions come later
    return definitions, innermost


def gather(found: Candidates, nearest: pa.Table) -> Candidates:
    """Merge ``found`` and ``nearest`` (``table_searcher.nearest_lines``) into distinct lines."""
    of_nearest = _documents(nearest)
    documents = sorted({*found.documents, *of_nearest})
    moved = _positions(found.documents, documents)
    document, near_document = moved[found.lines.document], _positions(of_nearest, documents)
    near_number = nearest["line_number"].to_numpy().astype(np.int64)
    near_column = nearest["column_number"].to_numpy().astype(np.int64)
    keys = _row_keys(document, found.lines.number, found.column)
    near_keys = _row_keys(near_document, near_number, near_column)
    new = np.flatnonzero(~np.isin(near_keys, keys))
    texts = [*found.texts, *nearest["text"].take(pa.array(new)).to_pylist()]
    counts, lengths = count_words(texts[len(found) :], found.words, found.language)
    order = np.argsort(np.concatenate([keys, near_keys[new]]))

    def joined(of_found: NDArray[Any], of_new: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([of_found, of_new])[order]

    return replace(
        found,
        documents=documents,
        block_documents=moved[found.block_documents],
        lines=CandidateLines(joined(document, near_document[new]), joined(found.lines.number, near_number[new])),
        column=joined(found.column, near_column[new]),
        texts=[texts[at] for at in order.tolist()],
        block=joined(found.block, np.full(len(new), -1)),
        near=joined(found.near | np.isin(keys, near_keys), np.ones(len(new), np.bool_)),
        counts=joined(found.counts, counts),
        lengths=joined(found.lengths, lengths),
        definition=joined(found.definition, np.full(len(new), UNKNOWN)),
    )


def _positions(subset: Sequence[DocumentVersion], documents: Sequence[DocumentVersion]) -> NDArray[np.int64]:
    """Return the position in ``documents`` of each document in ``subset``, as ``(n,)``."""
    position = {document: at for at, document in enumerate(documents)}
    return np.fromiter((position[document] for document in subset), np.int64, len(subset))


def _row_keys(document: NDArray[np.int64], number: NDArray[np.int64], column: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return one sortable number per row, ordered by document, line and column (below 2**16)."""
    return document << 47 | number << 16 | column


def _documents(rows: pa.Table) -> list[DocumentVersion]:
    return list(zip(*(rows[name].to_pylist() for name in ("entity", "path", "hash")), strict=True))


JUDGED_LINES = 20
"""How many of the lexically best lines per result are also scored semantically."""
MIN_RESULTS = 50
"""The number of results for which lines are judged if fewer are requested: a list must begin like a longer one."""
DISTANCE_DIGITS = 6
"""Distances are rounded to this many digits. Further digits of float32 sums depend on the order of addition, and a line
equal to the query must have distance 0.
"""
LEAST_OF_UNKNOWN = 6.0
"""The minimum weight of a word that no block contains."""
BEYOND_WORDS = 10.0
"""The contribution of cosines and definitions to the score of a good result. It is limited to the words' contribution,
because words have little weight in a small tree.
"""
DOUBLINGS_OF_LARGE = 12
"""How often a line doubles to the size of a large definition. The parts of a partial class differ widely in size."""
OTHER_CASE_OF_CONSTANT = 0.3
"""Factor for a definition named like a constant in another case: ``download_delay()`` is not DOWNLOAD_DELAY."""
IMPLEMENTS = 0.25
"""Deduction for a definition that only belongs to the type it is named after, so ``struct`` ranks above ``impl``, and a
class above its constructor.
"""
HEAD_OF_FILE = 0.9
"""The score of the lines after the first in the first block of a file named in the query."""
MENTION_OF_CONSTANT = 0.25
"""The score of a line that mentions, but does not set, a constant named in the query."""
MIN_QUOTED_WORDS = 3
MIN_QUOTED_SHARE = 0.5
"""The minimum number of the query's words in a row that a string literal shares, and their fraction of its weight. A
pasted message has values where the literal has placeholders.
"""
MAX_REPEATS = 4
"""How many places of a repeated word a run may pass: otherwise `0 1 0 1 …` would take minutes."""
_LITERAL = re.compile(r'"(?:[^"\\]|\\.)+"?|`[^`]+`?|(?<![\w\\])\'(?:[^\'\\]|\\.)+\'')
_SETS = r"^[^#(=]*\b%s\b['\"]?\s*(?::[^=]*)?:?=(?!=)|^\s*['\"]?%s['\"]?:\s"
_MEMBER = r"\s*(?:case\s+)?%s\b"
_ASKS_FOR_TESTS = frozenset(terms("test tests testing spec fixture mock assert"))


def rank(
    vector: NDArray[np.float32],
    candidates: Candidates,
    blocks: pa.Table,
    embedder: Embedder,
    *,
    n_windows: int,
    meaning: bool = True,
    only: LineKinds = ALL_LINES,
    weights: Weights = WEIGHTS,
) -> Iterator[FoundLine]:
    """Return the best ``candidates``, best first. They come from ``blocks`` (``lines_of``) and nearest lines
    (``gather``).

    ``vector`` ``(dim,) float32`` is the query's. Without ``meaning``, only words are scored, and lines with none of
    them are dropped. Lines that do not pass ``only`` are always dropped.
    """
    if not len(candidates):
        return iter(())
    lines, texts = candidates.lines, candidates.texts
    of_words, of_own_words, covered, max_score = _text_scores(candidates, blocks, weights)
    max_score = max_score + (min(max_score, BEYOND_WORDS) if meaning else 0.0) or 1.0  # avoids a division by 0
    allowed = _allowed(candidates, only)
    best = np.flatnonzero((of_words > 0) & allowed)
    best = best[np.argsort(-of_words[best], kind="stable")][: JUDGED_LINES * max(n_windows, MIN_RESULTS)]
    named = _named(candidates, weights) * allowed
    is_chosen = (named > 0) | (candidates.near & allowed if meaning else False)
    is_chosen[best] = True
    chosen = np.flatnonzero(is_chosen)
    relevance, fit = of_words[chosen], of_own_words[chosen]
    if not meaning:
        own_cosines = embedder.embed([texts[number] for number in chosen.tolist()]) @ vector
    else:
        prose = _of_documents(candidates, is_prose)[lines.document[chosen]]
        prose &= (relevance > 0).any()  # if no words match, all are scored semantically
        own_cosines, gain, own_gain = np.zeros((3, len(chosen)), np.float32)
        for kind, rows in ((weights.code, np.flatnonzero(~prose)), (weights.prose, np.flatnonzero(prose))):
            if len(rows):
                own_cosines[rows], gain[rows] = _meaning(candidates, chosen[rows], kind, vector, embedder)
                own_gain[rows] = kind[0].weight * own_cosines[rows]
        bonus = weights.definition * (_begins_definition(candidates, chosen) & (relevance > 0) & ~prose)
        relevance, fit = relevance + gain + bonus, fit + own_gain + bonus
    relevance, fit = relevance + weights.name * named[chosen], fit + weights.name * named[chosen]
    relevance = np.where(relevance > 0, _kept_shares(candidates, chosen, named, weights), 1) * relevance
    order = np.argsort(-relevance, kind="stable")
    distances = (1 - own_cosines[order].astype(np.float64)).round(DISTANCE_DIGITS)
    at = chosen[order]
    position = candidates.definition[at]
    definitions = [*candidates.definitions, None]
    columns: tuple[Iterable[Any], ...] = (
        map(candidates.documents.__getitem__, lines.document[at].tolist()),
        lines.number[at].tolist(),
        candidates.column[at].tolist(),
        map(texts.__getitem__, at.tolist()),
        distances.tolist(),
        relevance[order].tolist(),
        fit[order].tolist(),
        repeat(max_score),
        np.maximum(covered, named)[at].tolist(),
        (named[at] > 0).tolist(),
        map(definitions.__getitem__, position.clip(-1).tolist()),
        (position != UNKNOWN).tolist(),
    )
    return map(FoundLine._make, zip(*columns, strict=False))  # lazily: the first rows yield enough windows


def _kept_shares(
    candidates: Candidates, chosen: NDArray[np.int64], named: NDArray[np.float32], weights: Weights
) -> NDArray[np.float32]:
    """Return the fraction of relevance that each of the ``chosen`` rows keeps, given its document, as ``(n,)``.

    A test module inside a source file, as in Rust, is treated as a test.
    """
    shares = np.where(_of_documents(candidates, is_prose), weights.text, weights.source)
    shares *= np.where(_of_documents(candidates, is_auxiliary), weights.auxiliary, 1.0)
    if named.any():
        with_name = np.zeros(len(shares), np.bool_)
        with_name[candidates.lines.document[named > 0]] = True
        shares *= np.where(with_name, 1.0, weights.unnamed)
    of_rows = shares[candidates.lines.document[chosen]]
    if weights.source < weights.text or not _ASKS_FOR_TESTS & {*candidates.words}:  # including how-to questions
        tests = _of_documents(candidates, is_test)[candidates.lines.document[chosen]]
        inline = np.fromiter((*(each.is_test for each in candidates.definitions), False), np.bool_)
        of_rows *= np.where(tests | inline[candidates.definition[chosen].clip(-1)], weights.test, 1.0)
    return of_rows.astype(np.float32)


def _allowed(candidates: Candidates, only: LineKinds) -> NDArray[np.bool_]:
    """Return an ``(n,)`` mask of the lines that pass ``only``."""
    if only == ALL_LINES:
        return np.ones(len(candidates), np.bool_)
    paths, numbers = [path for _, path, _ in candidates.documents], candidates.lines.number.tolist()
    documents = candidates.lines.document.tolist()
    found = (
        only.allow(candidates.definition_of(at), numbers[at], paths[documents[at]]) for at in range(len(candidates))
    )
    return np.fromiter(found, np.bool_, len(candidates))


def _of_documents(candidates: Candidates, holds: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Return the result of ``holds`` for each document's path, as ``(d,)``."""
    return np.fromiter((holds(path) for _, path, _ in candidates.documents), np.bool_, len(candidates.documents))


def _named(candidates: Candidates, weights: Weights) -> NDArray[np.float32]:
    """Score each line, as an ``(n,)`` array: 1 for lines that start a definition named in the query (half in prose,
    less elsewhere).

    Also 1 for lines that the query points to, and for lines that set a constant it names.
    """
    found = _placed(candidates)
    if not candidates.names:
        return found
    for name in candidates.names:
        mention = MENTION_OF_CONSTANT if is_constant(name) else weights.mention
        if not mention:
            continue
        holding = (at for at, text in enumerate(candidates.texts) if name in text)
        patterns = (pattern.replace("%s", re.escape(name)) for pattern in (_SETS, _MEMBER, r"\b%s\b"))
        sets, member, mentions = map(re.compile, patterns)
        for at in holding:
            text = candidates.texts[at]
            is_set = is_constant(name) and (sets.search(text) or (member.match(text) and _in_enum(candidates, at)))
            found[at] = max(found[at], 1.0 if is_set else mention if mentions.search(text) else 0.0)
    begins = np.flatnonzero(_begins_known(candidates, np.arange(len(candidates))))
    begun = [candidates.definitions[position] for position in candidates.definition[begins].tolist()]
    undefined = [name for name in candidates.names if not any(each.matches_name(name) for each in begun)]
    names = [*candidates.names, *chain.from_iterable(map(other_spellings, undefined))]
    for at, definition in zip(begins.tolist(), begun, strict=True):
        found[at] = max(found[at], share_of_name(definition, names))
    return found


def _in_enum(candidates: Candidates, at: int) -> bool:
    """Return whether a line is in an enum, or in a type, such as C's ``typedef enum``."""
    definition = candidates.definition_of(at)
    return definition is not None and definition.kind in ("enum", "type")


def _placed(candidates: Candidates) -> NDArray[np.float32]:
    """Score each line, as an ``(n,)`` array: 1 if the query points to the line, or if it is the first line of a file
    that the query names.

    The lines around that first line get less, so a result shows the start of the file.
    """
    found = np.zeros(len(candidates), np.float32)
    lines = candidates.lines
    for path, line in candidates.places:
        for document, (_, own, _) in enumerate(candidates.documents):
            is_named = f"/{own}".lower().endswith(f"/{path.lstrip('/')}".lower())
            if not (is_named or ("/" in own and path.endswith(f"/{own}"))):
                continue
            of_file = np.flatnonzero(lines.document == document)
            away = np.abs(lines.number[of_file] - (line - 1 if line else 0))
            if len(away) and away.min() < LINES_PER_BLOCK:
                if line is None:
                    near = of_file[away < LINES_PER_BLOCK]
                    found[near] = np.maximum(found[near], HEAD_OF_FILE)
                found[of_file[away.argmin()]] = 1.0
    return found


def _begins_known(candidates: Candidates, chosen: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether each of the ``chosen`` rows starts its definition, if known, as ``(n,)``."""
    # The last entry is for rows without a definition.
    first = np.fromiter((*(each.line for each in candidates.definitions), -1), np.int64)
    return np.asarray(first[candidates.definition[chosen].clip(-1)] == candidates.lines.number[chosen], np.bool_)


def share_of_name(definition: Definition, names: Sequence[str]) -> float:
    """Return how well a definition matches a name: less for prose, another case, nesting, few lines, an ``impl``, or a
    constructor.
    """
    named = [parts_of_name(name) for name in names if definition.matches_name(name)]
    if not named:
        return 0.0
    own = parts_of_name(definition.name)
    exact = any(own[-len(parts) :] == parts for parts in named)
    in_another_case = OTHER_CASE_OF_CONSTANT if all(map(is_constant, names)) else 0.8
    whole = (1.0 if definition.is_code else 0.5) * (1.0 if exact else in_another_case)
    size = min(1.0, log2(1 + definition.last - definition.line) / DOUBLINGS_OF_LARGE)
    implements = definition.kind == "impl" or (definition.is_constructor and len(named[0]) == 1)
    return whole - 0.05 * (len(own) - len(named[0])) - 0.1 * (1 - size) - IMPLEMENTS * implements


def _begins_definition(candidates: Candidates, chosen: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return an ``(n,)`` mask of the ``chosen`` rows that start the definition of a function, class or type."""
    is_code = np.fromiter((*(each.is_code for each in candidates.definitions), False), np.bool_)
    definition = candidates.definition[chosen]
    begins: NDArray[np.bool_] = _begins_known(candidates, chosen) & is_code[definition.clip(-1)]
    for at in np.flatnonzero(definition == UNKNOWN).tolist():
        begins[at] = begins_definition(candidates.texts[chosen[at]])
    return begins


def _meaning(
    candidates: Candidates,
    chosen: NDArray[np.int64],
    meaning: Sequence[Neighbourhood],
    vector: NDArray[np.float32],
    embedder: Embedder,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the cosines and the ``semantic_scores`` of the ``chosen`` rows, ``(n,)`` each."""
    farthest = max(near.lines for near in meaning)
    is_near = np.zeros(len(candidates), np.bool_)
    is_near[(chosen[:, None] + np.arange(-farthest, farthest + 1)).clip(0, len(candidates) - 1)] = True
    around = np.flatnonzero(is_near)
    vectors = embedder.embed([candidates.texts[number] for number in around.tolist()])
    at = np.searchsorted(around, chosen)  # the positions of the chosen rows among their neighbours
    lines = CandidateLines(candidates.lines.document[around], candidates.lines.number[around])
    return (vectors @ vector)[at], semantic_scores(lines, vectors, vector, meaning)[at]


def _text_scores(
    candidates: Candidates, blocks: pa.Table, weights: Weights
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32], float]:
    """Return two scores per candidate, ``(n,)`` each: for the words around it and in its document, and for its own
    words; and the fraction of the query's information in the words around it.

    The last value is the score of a line that contains all query words many times. Words that no block contains are
    included, but not character bigrams that no block contains, if others are known: most of these span two words.
    """
    words, counts, lengths = candidates.words, candidates.counts, candidates.lengths
    counted = partial(count_words, words=words, language=candidates.language)
    in_path, path_lengths = counted([path for _, path, _ in candidates.documents])
    inside = candidates.block >= 0
    block = candidates.block[inside]
    block_counts = np.zeros((len(blocks), len(words)), np.float32)
    np.add.at(block_counts, block, counts[inside])
    block_lengths = np.bincount(block, lengths[inside], minlength=len(blocks)).astype(np.float32)
    document = candidates.block_documents
    bm25 = blocks["bm25"].to_numpy()
    in_heads, head_lengths = counted(candidates.block_names)
    by_words = bm25 > 0  # excluding blocks found by a name
    counts_in = block_counts + in_path[document] + in_heads
    lengths_of = block_lengths + path_lengths[document] + head_lengths
    idf = word_weights(counts_in[by_words], lengths_of[by_words], bm25[by_words])
    lines = candidates.lines
    in_names, _ = counted([*(each.name for each in candidates.definitions), ""])
    in_names = in_names[candidates.definition.clip(-1)]  # the last row stands for no definition: it has no words
    quoted = weights.quoted * _quoted(candidates, idf) if weights.quoted else 0.0
    scores, covered = text_scores(lines, counts, lengths, in_path[lines.document], in_names, idf, weights)
    shared = quoted + _verbatim(candidates, idf, weights.verbatim)
    scores += shared
    scores += document_scores(document, bm25, len(candidates.documents), weights)[lines.document] * (scores > 0)
    held: list[bool] = np.any(counts_in > 0, axis=0).tolist()
    known_pairs = any(known and is_paired(word) for word, known in zip(words, held, strict=True))
    absent = sum(not known and not (known_pairs and is_paired(word)) for word, known in zip(words, held, strict=True))
    unknown = absent * max(LEAST_OF_UNKNOWN, idf.max(initial=0))
    information = float(idf.sum() + unknown)
    covered = covered / (information or 1.0)
    return scores, line_scores(counts, lengths, idf) + shared, covered, (BM25_K1 + 1) * information


def _verbatim(candidates: Candidates, idf: NDArray[np.float32], weight: float) -> NDArray[np.float32]:
    """Return the weight of the query's verbatim words in each line, ``(n,)``: ``weight`` times the fraction of the
    query's terms in them, and the weights of these terms.
    """
    found = np.zeros(len(candidates), np.float32)
    of_terms = dict(zip(candidates.words, idf.tolist(), strict=True))
    for word in candidates.verbatim:
        held = terms(word, candidates.language)
        of_word = weight * len(held) / len(candidates.sequence) + sum(of_terms.get(term, 0.0) for term in {*held})
        before = r"(?<![\w-])(?<!\d\.)[vV]?" if word[0] == "-" or word[0].isalnum() else ""
        whole = re.compile(rf"{before}{re.escape(word)}(?!\w|[.-]\w)")  # neither a longer option nor another version
        for at, text in enumerate(candidates.texts):
            if word in text and whole.search(text):
                found[at] += of_word
    return found


def _quoted(candidates: Candidates, idf: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the weight of the best run of the query's words in a string literal of each line of code, as ``(n,)``:
    the query may be a message.

    0 if the run is shorter than MIN_QUOTED_WORDS or lighter than MIN_QUOTED_SHARE, or if the query points to lines.
    """
    found = np.zeros(len(candidates), np.float32)
    weight = dict(zip(candidates.words, idf.tolist(), strict=True))
    least = MIN_QUOTED_SHARE * sum(weight.values())
    if len(weight) < MIN_QUOTED_WORDS or not least or candidates.places:
        return found
    places: dict[str, list[int]] = {}
    before: list[int] = []  # where each term of the query was last
    for at, term in enumerate(candidates.sequence):
        of_term = places.setdefault(term, [])
        before.append(of_term[-1] if of_term else -1)
        of_term.append(at)
    code = ~_of_documents(candidates, is_prose)[candidates.lines.document]
    for row in np.flatnonzero(code & (np.count_nonzero(candidates.counts, axis=1) >= MIN_QUOTED_WORDS)).tolist():
        for literal in _LITERAL.findall(candidates.texts[row]):
            # For each term of the query: the start, distinct words and weight of the run that ends with it.
            runs: dict[int, tuple[int, int, float]] = {}
            for term in terms(literal, candidates.language):
                ends, runs = runs, {}
                for at in places.get(term, ())[:MAX_REPEATS]:
                    start, shared, of_run = ends.get(at - 1, (at, 0, 0.0))
                    if term in weight and before[at] < start:
                        shared, of_run = shared + 1, of_run + weight[term]
                    runs[at] = start, shared, of_run
                    if shared >= MIN_QUOTED_WORDS and of_run >= max(least, found[row]):
                        found[row] = of_run
    return found

"""Score how well lines match a query: lexically, semantically, and by definitions (DESIGN, "Search").

A line is scored together with its neighbours, because a single line says little:

    score = BM25 of the words around it and in its path, and a quarter of the weights of the words in its path
          + 0.06 x BM25 of the four best blocks of its document
          + 8 x cosine of the vectors around it; in prose 2 x, and 4 x the cosine of more distant vectors
          + half of the weights of the words in the names of its enclosing definitions
          + the weights of the words in a run of the query that a string literal contains, in code
          + the weights of the terms in an option, a version or a URL of the query that it contains, and 12 times its
            share of the query
          + 5 if it begins a definition, in code

The values are in ``Weights``; ``tests/benchmarks/weights.py`` tuned them on the tuning halves. Neighbouring lines are
merged into windows (``merge_windows``), which ``arranged`` orders, taking files into account.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from driftline.storage.documents import is_auxiliary, is_prose
from driftline.storage.lines.outline import Definition, parts_of_name
from driftline.storage.lines.tokenizer import ENGLISH, name_parts, terms, terms_of
from driftline.tasks.search.query_language import QueryForm


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """How many neighbouring lines' vectors to include, their decay, and the weight of their cosine."""

    weight: float
    lines: int
    decay: float


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a ranking.

    A line's score includes words within ``word_reach`` lines, multiplied by ``word_decay`` per line of distance.
    ``path`` and ``names`` are for words in the path and in the names of enclosing definitions, as fractions of the word
    weights. ``document`` is for the BM25 of a document's ``document_blocks`` best blocks. ``definition`` is for lines
    that start a definition, ``name`` for lines that start a definition named in the query; lines that only mention the
    name gain the fraction ``mention`` of it. ``quoted`` is for a run of the query's words in a string literal.
    ``verbatim`` is for lines with a word of the query whose punctuation matters, such as ``--no-verify``, times the
    fraction of the query that it is; they also gain the weights of its terms.

    A line keeps the fraction ``test`` of its relevance in tests, unless the query is about tests, ``text`` in prose,
    ``source`` in anything else, ``auxiliary`` in files that repeat, list or illustrate others, and, if the query is a
    single name, ``unnamed`` in files that do not contain it while other files do.

    Windows gain fractions of the best score: ``file`` for the best window of the file with the most windows, less for
    other files; ``stem`` for a file name that contains all query words, or part of it for some; ``full_stem_match`` for
    a file name that consists of them; ``again`` for each better window in the same file, or in the same prose section.
    These apply to queries about a topic: phrases of up to ``phrase_words`` significant words and questions of up to
    ``question_words``. They fade for longer queries.

    A few lines of code are enough to embed their meaning. Prose needs a paragraph, and even then words are better
    evidence.
    """

    word_reach: int = 16
    word_decay: float = 0.85
    path: float = 0.25
    names: float = 0.5
    document: float = 0.06
    quoted: float = 1.0
    verbatim: float = 12.0
    document_blocks: int = 4
    definition: float = 5.0
    name: float = 20.0
    test: float = 0.7
    text: float = 0.85
    source: float = 1.0
    auxiliary: float = 0.9
    unnamed: float = 1.0
    mention: float = 0.0
    file: float = 0.25
    stem: float = 0.2
    full_stem_match: float = 0.35
    again: float = -0.5
    phrase_words: int = 5
    question_words: int = 8
    code: tuple[Neighbourhood, ...] = (Neighbourhood(8.0, 3, 0.7),)
    prose: tuple[Neighbourhood, ...] = (Neighbourhood(2.0, 3, 0.7), Neighbourhood(4.0, 16, 0.95))


WEIGHTS = Weights()
USAGE_WEIGHTS = replace(WEIGHTS, quoted=0.0, definition=0.0, source=0.6, test=0.5, text=1.0, auxiliary=0.75)
"""Weights for questions about how to use something or what it is: documentation answers these, not source code."""
SENTENCE_WEIGHTS = replace(
    WEIGHTS, definition=6.0, name=4.0, file=0.0, stem=0.0, full_stem_match=0.0, again=0.0, phrase_words=1_000
)
"""Weights for sentences, which describe one item in any file: a name in them more often refers to something that
the described definition uses. They do not fade.
"""
NAME_WEIGHTS = replace(WEIGHTS, quoted=0.0, unnamed=0.6, mention=0.25)
"""Weights for queries that are a single name; among other words, WebSocket may be a topic."""
WEIGHTS_OF_FORMS: Mapping[QueryForm, Weights] = {
    "name": NAME_WEIGHTS,
    "question": replace(WEIGHTS, quoted=0.0),
    "usage": USAGE_WEIGHTS,
    "sentence": SENTENCE_WEIGHTS,
}
"""All other forms use WEIGHTS."""


BM25_K1, BM25_B = 1.2, 0.75
_NO_LENGTH = 1e-6
"""Shorter vectors are zero, apart from rounding."""
STEMS_OF_FOLDERS = frozenset(("__init__", "index", "init", "mod"))
"""Names of files that represent their folder."""
_ASCII_PARTS = bytes(code if chr(code).isalnum() else ord(" ") for code in range(256))
"""For ``bytes.translate``: characters between ``name_parts`` of ASCII text become spaces."""


@dataclass(frozen=True, slots=True)
class CandidateLines:
    """The positions of ``n`` lines, ordered by document and line.

    ``document`` ``(n,) int`` identifies the document, ``number`` ``(n,) int`` the 0-based line in it.
    """

    document: NDArray[np.int64]
    number: NDArray[np.int64]


DocumentVersion = tuple[str, str, str]
"""Entity, path and hash."""


class FoundLine(NamedTuple):
    """A row that matches a query: its line, 0-based, and its scores.

    ``relevance`` orders the rows, ``max_score`` is its maximum, 0 if it is a cosine, and ``fit`` ignores the line's
    neighbours. ``covered`` is the fraction of the query's information in the words around the line. ``named`` means
    that it starts a definition named in the query; ``definition`` is its innermost enclosing definition, if it is
    ``outlined``.
    """

    document: DocumentVersion
    number: int
    column: int
    text: str
    distance: float
    relevance: float
    fit: float
    max_score: float = 0.0
    covered: float = 1.0
    named: bool = False
    definition: Definition | None = None
    outlined: bool = False

    @property
    def file(self) -> tuple[str, str]:
        """The key of its document."""
        return self.document[:2]


def word_weights(
    counts: NDArray[np.float32], lengths: NDArray[np.float32], bm25: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the weights (idf) of ``t`` words as ``(t,)``, inferred from the scores of ``b`` blocks in an index.

    ``counts`` ``(b, t)`` is how often each block contains each word, ``lengths`` ``(b,)`` its length. The index returns
    scores rather than weights, so the weights are fitted to the scores by least squares.
    """
    if not counts.size:
        return np.zeros(counts.shape[1], np.float32)
    idf, *_ = np.linalg.lstsq(_saturated(counts, lengths), bm25)
    return np.asarray(idf.clip(min=0), np.float32)


def text_scores(
    lines: CandidateLines,
    counts: NDArray[np.float32],
    lengths: NDArray[np.float32],
    in_path: NDArray[np.float32],
    in_names: NDArray[np.float32],
    idf: NDArray[np.float32],
    weights: Weights = WEIGHTS,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the BM25 scores ``(n,)`` of the words around each line, in its path, and in its enclosing definitions'
    names, and the sum of the weights of those words, ``(n,)``.

    ``counts``, ``in_path`` and ``in_names`` ``(n, t)`` are how often a line, its path and those names contain each word
    of the query, ``lengths`` ``(n,)`` the length of a line, ``idf`` ``(t,)`` the weight of each word.
    """
    around = _around(lines, np.column_stack([counts, lengths]), weights.word_reach, weights.word_decay)
    scores: NDArray[np.float32] = _saturated(around[:, :-1] + in_path, around[:, -1]) @ idf
    named = weights.names * ((in_names > 0) @ idf)
    covered = np.minimum(around[:, :-1] + in_path + in_names, 1) @ idf
    return np.asarray(scores + weights.path * ((in_path > 0) @ idf) + named, np.float32), covered


def line_scores(
    counts: NDArray[np.float32], lengths: NDArray[np.float32], idf: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return BM25 of each line's own words as ``(n,)``; it selects a window's best line."""
    scores: NDArray[np.float32] = _saturated(counts, lengths) @ idf
    return scores


def document_scores(
    document: NDArray[np.int64], bm25: NDArray[np.float32], count: int, weights: Weights = WEIGHTS
) -> NDArray[np.float32]:
    """Return each document's score, from its best blocks, as ``(count,)``.

    ``document`` contains each block's document, best first.
    """
    gains, taken = np.zeros(count, np.float32), [0] * count
    for at, score in zip(document.tolist(), bm25.tolist(), strict=True):
        if taken[at] < weights.document_blocks:
            taken[at] += 1
            gains[at] += weights.document * score
    return gains


def semantic_scores(
    lines: CandidateLines, vectors: NDArray[np.float32], query: NDArray[np.float32], meaning: Sequence[Neighbourhood]
) -> NDArray[np.float32]:
    """Return weighted cosines between ``query`` and the mean of the ``vectors`` around each line.

    ``vectors`` is ``(n, dim)``, the result ``(n,)``. Computing the norms of the means from products of adjacent vectors
    is faster than computing the means.
    """
    scores = np.zeros(len(vectors), np.float32)
    if not len(vectors):
        return scores
    of_query = vectors @ query
    for near in meaning:
        at = _spread(lines, near.lines)
        shares = (near.decay ** np.abs(np.arange(-near.lines, near.lines + 1))).astype(np.float32)
        # Pairwise products, by distance between lines.
        padded = np.zeros((2 * near.lines + 1, int(at[-1]) + len(shares)), np.float32)
        padded[0, at + near.lines] = of_query
        products = np.correlate(padded[0], shares)[at]
        padded[0, at + near.lines] = np.einsum("ij,ij->i", vectors, vectors)
        for step in range(1, min(len(padded), len(vectors))):
            distance = at[step:] - at[:-step]
            pairs = np.flatnonzero(distance < len(padded))
            if not len(pairs):
                break
            of_pairs = np.einsum("ij,ij->i", vectors[:-step], vectors[step:])
            padded[distance[pairs], at[pairs] + near.lines] = 2 * of_pairs[pairs]
        kernels = (shares[: len(shares) - apart] * shares[apart:] for apart in range(len(padded)))
        squares = sum(np.correlate(row, kernel)[at] for row, kernel in zip(padded, kernels, strict=True))
        norms = np.sqrt(np.maximum(squares, 0))
        scores += near.weight * np.divide(products, norms, out=np.zeros_like(norms), where=norms > _NO_LENGTH)
    return scores


def filename_boosts(paths: Iterable[str], words: Sequence[str], weights: Weights = WEIGHTS) -> list[float]:
    """Return, for each file, the fraction of the best score that its windows gain for ``words`` in its name.

    ``words`` are distinct terms. A file that represents its folder has the folder's name.
    """
    of_query = {*words}
    names = [{*terms(_stem(path))} for path in paths]
    return [
        weights.stem * len(name & of_query) / len(of_query) + weights.full_stem_match * (set() < name <= of_query)
        for name in names
    ]


def _stem(path: str) -> str:
    folder, name = posixpath.split(path)
    stem = name.partition(".")[0] or name  # in hub.plugin.bash and user.service.ts, the rest is the file type
    return posixpath.basename(folder) or stem if stem in STEMS_OF_FOLDERS else stem


def count_words(
    texts: Sequence[str], words: Sequence[str], language: str = ENGLISH
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return how often each text contains each of ``words`` (distinct terms), ``(n, t)``, and its length, ``(n,)``.

    The texts' words are compared by their stems in ``language``. Lengths are in characters, which BM25 only compares
    with their mean.
    """
    lengths = np.fromiter(map(len, map(str.strip, texts)), np.float32, len(texts))
    column = {word: at for at, word in enumerate(words)}
    found: list[int] = []  # positions in ``counts``, row by row
    plain = "\n".join(texts)
    if not plain.isascii():
        others = [(at, text) for at, text in enumerate(texts) if not text.isascii()]
        for at, text in others:
            held = (column[term] for part in name_parts(text) for term in terms_of(part, language) if term in column)
            found += [at * len(words) + each for each in held]
        bare = [*texts]
        for at, text in others:
            bare[at] = " " * len(text)
        plain = "\n".join(bare)
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)
    starts, parts = _parts_with(plain, words)
    columns = {part: [column[term] for term in terms_of(part, language) if term in column] for part in {*parts}}
    of_text = np.searchsorted(ends, starts, side="right") * len(words)
    found += [at + each for at, part in zip(of_text.tolist(), parts, strict=True) for each in columns[part]]
    counts = np.bincount(np.array(found, np.int64), minlength=len(texts) * len(words)).astype(np.float32)
    return counts.reshape(len(texts), len(words)), lengths


def _parts_with(text: str, words: Sequence[str]) -> tuple[NDArray[np.int64], list[str]]:
    """Return the starts of the ``name_parts`` in ASCII ``text`` that may contain any of ``words``, and the parts."""
    encoded = f" {text} ".encode().translate(_ASCII_PARTS)
    lower, positions = encoded.lower(), list[int]()
    for beginning in map(str.encode, {*map(_beginning, words)}):
        at = lower.find(beginning)
        while at >= 0:
            positions.append(at)
            at = lower.find(beginning, at + 1)
    characters, at_positions = np.frombuffer(encoded, np.uint8), np.array(positions, np.int64)
    # A word in a part starts at its start, after a digit, or with a capital letter.
    inside = (characters[at_positions] >= ord("a")) & (characters[at_positions - 1] >= ord("a"))
    blanks = np.flatnonzero(characters == ord(" "))
    after = np.sort(np.searchsorted(blanks, at_positions[~inside]))
    after = after[np.diff(after, prepend=-1) > 0]  # np.unique imports numpy.ma, which is slow
    starts, ends = blanks[after - 1] + 1, blanks[after]
    cut = encoded.decode()
    return starts - 1, [cut[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _beginning(stem: str) -> str:
    """Return the common prefix of words with this stem.

    English stemming replaces at most the last letter, except in ``dying``. In a stem of three letters, the replacement
    is an i or an e, except in ``skies``, whose stem is ``sky``.
    """
    if len(stem) == 3:
        return stem[:1] if stem.endswith("ie") else stem[:2] if stem[2] in "ei" or stem == "sky" else stem
    return stem[:-1] if len(stem) > 3 else stem


def _saturated(counts: NDArray[np.float32], lengths: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the BM25 saturation of counts, before word weights are applied (Robertson and Zaragoza, 2009)."""
    mean = lengths.mean() or 1.0
    norm = BM25_K1 * (1 - BM25_B + BM25_B * lengths / mean)
    return np.asarray(counts * (BM25_K1 + 1) / (counts + norm[:, None]), np.float32)


def _around(lines: CandidateLines, values: NDArray[np.float32], reach: int, decay: float) -> NDArray[np.float32]:
    """Return the sum of ``values`` around each line, weighted by proximity. Both have shape ``(n, c)``."""
    if not len(values):
        return values
    at = _spread(lines, reach)
    spread = np.zeros((int(at[-1]) + 1, values.shape[1]), np.float32)
    spread[at] = values
    total, product = spread.copy(), np.empty_like(spread)
    for step in range(1, min(reach, len(spread) - 1) + 1):
        np.multiply(spread, np.float32(decay**step), out=product)
        total[step:] += product[:-step]
        total[:-step] += product[step:]
    return total[at]


def _spread(lines: CandidateLines, reach: int) -> NDArray[np.int64]:
    """Return ``(n,)`` positions on one axis that preserve line distances; documents are more than ``reach`` apart.

    Neighbours can then be added to all lines in one pass, as sums of slices. Rows of the same line are also neighbours.
    """
    steps = np.diff(lines.number, prepend=lines.number[:1]).clip(1, reach + 1)
    steps[np.diff(lines.document, prepend=lines.document[:1]) != 0] = reach + 1
    steps[0] = 0
    return steps.cumsum()


# -- windows -----------------------------------------------------------------------------------

MAX_WINDOW_LINES = 32
"""Maximum number of lines in a window, not counting context."""
GROWTH = 0.7
"""Minimum relevance of a hit that extends a window, as a fraction of the window's relevance. Weaker hits would add more
lines than information.
"""
GROWTH_ACROSS = 0.9
"""The same for a hit in another definition, unless the query is a sentence, which may describe either definition.
"""
MAX_HEAD_LINES = 8
MAX_TAIL_LINES = 6
"""Maximum number of lines by which a window is extended to the start or end of its definition."""
JUDGED_WINDOWS = 80
"""Number of windows used to determine which files a query is about."""
COVERING_WINDOWS = 10
"""Among how many windows one must cover the query for the first of them to be likely."""
MAX_WINDOWS_OF_DEFINITION = 3
"""Maximum number of windows per function, so none fills the results; prose sections have no limit."""


@dataclass(slots=True)
class Window:
    """Neighbouring hits in one document; lines are 0-based and inclusive.

    ``best`` is the line of the hit that matches the query best on its own, and ``fit`` that hit's quality.
    ``distance``, ``text``, ``column`` (where the text starts in its line) and ``definition`` (the innermost one) are
    this hit's; the definition is unknown unless the window is ``outlined``. ``score`` ranks the window: it is a hit's
    relevance, at most ``max_score``, or the cosine if hits are sorted by cosine (``max_score`` is then 0). ``penalty``
    is the deduction from the score for better windows in the same place; it does not reduce the likelihood. ``lead`` is
    the score in excess of the best later window in another file (``set_leads``). ``covered`` is the fraction of the
    query's information in it and around it, and ``coverage`` the highest such fraction of it and the windows after it
    (``set_leads``). ``copies`` lists other documents with nearly the same text. If the query ``named`` the definition,
    the window stays inside it.
    """

    entity: str
    path: str
    hash: str
    best: int
    distance: float
    text: str
    fit: float
    first: int
    last: int
    definition: Definition | None = None
    outlined: bool = False
    score: float = field(default=0.0, compare=False)
    column: int = 0
    max_score: float = 0.0
    covered: float = 1.0
    coverage: float = field(default=1.0, compare=False)
    penalty: float = field(default=0.0, compare=False)
    lead: float = field(default=0.0, compare=False)
    copies: tuple[str, ...] = ()
    named: bool = False

    @property
    def file(self) -> tuple[str, str]:
        """The key of its document."""
        return self.entity, self.path

    @property
    def section(self) -> str:
        """The name of its prose section, "" if there is none: unlike a module, a book covers many topics."""
        return self.definition.name if self.definition is not None and self.definition.kind == "section" else ""

    @classmethod
    def around(cls, found: FoundLine) -> Window:
        """Return the window of a single hit."""
        line = found.number
        return cls(
            *found.document,
            line,
            found.distance,
            found.text,
            found.fit,
            first=line,
            last=line,
            definition=found.definition,
            outlined=found.outlined,
            score=found.relevance,
            column=found.column,
            max_score=found.max_score,
            covered=found.covered,
            named=found.named,
        )

    def shares_lines(self, file: tuple[str, str], first: int, last: int) -> bool:
        """Return whether it has any of the lines from ``first`` to ``last`` of ``file``."""
        return self.file == file and self.first <= last and first <= self.last

    def add_copy(self, other: Window) -> None:
        """Record another window's document, and its copies, as copies of this window."""
        path = other.path if other.entity == self.entity else f"{other.entity}/{other.path}"
        added = (path, *other.copies) if other.file != self.file else other.copies
        self.copies = tuple(dict.fromkeys((*self.copies, *added)))

    def can_merge(self, line: int) -> bool:
        """Return whether the window may grow to a line: always, unless the query names the window's definition."""
        return not self.named or self.definition is None or self.definition.first <= line <= self.definition.last

    def improves_with(self, found: FoundLine, across: float) -> bool:
        """Return whether a later hit is inside the window, or relevant enough to extend it (see ``merge_windows``)."""
        if self.first <= found.number <= self.last or not self.max_score or self.score <= 0:
            return True
        if found.relevance < min(across, GROWTH) * self.score:
            return False
        share = across if self.is_disjoint_from(found.definition) else GROWTH
        return found.relevance >= share * self.score

    def is_disjoint_from(self, definition: Definition | None) -> bool:
        """Return whether its definition and ``definition`` are both code, and neither contains the other."""
        own = self.definition
        if own is None or definition is None or not (own.is_code and definition.is_code):
            return False
        return own.last < definition.first or definition.last < own.first

    def merge(self, other: Window) -> None:
        """Merge ``other`` into this window; the window with the better fit supplies the best line."""
        if other.fit > self.fit:
            self.best, self.distance, self.text, self.fit = other.best, other.distance, other.text, other.fit
            self.definition, self.outlined, self.column = other.definition, other.outlined, other.column
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)


def merge_windows(rows: Iterable[FoundLine], max_gap: int, limit: int, across: float = GROWTH) -> list[Window]:
    """Merge hits (best first) into at most ``limit`` windows, ordered by their first hit.

    Hits up to ``max_gap`` lines apart are merged into one window. If that would be too long, or if the later hit has
    less than the fraction GROWTH of a window's relevance (between definitions: ``across``), the hit is dropped. Hits
    are read until there are enough windows, so no window is extended by hits that are worse than all windows. A window
    that starts shortly after the start of its definition, or ends shortly before its end, is extended to it.
    """
    windows: dict[int, Window] = {}  # by identity
    of_document: dict[DocumentVersion, dict[int, Window]] = {}
    for row in rows:
        known = of_document.setdefault(row.document, {})
        line = row.number
        lowest, highest = line - max_gap, line + max_gap
        near = [window for window in known.values() if window.first <= highest and lowest <= window.last]
        if near:
            kept, *others = near
            if not others and row.fit <= kept.fit and kept.first <= line <= kept.last:
                continue  # most rows change nothing
            first, last = min(kept.first, line), max(kept.last, line)
            for other in others:
                first, last = min(first, other.first), max(last, other.last)
            if last - first >= MAX_WINDOW_LINES or not any(window.improves_with(row, across) for window in near):
                continue
            if not all(window.can_merge(line) for window in near):
                continue
            for other in others:
                kept.merge(other)
                del known[id(other)], windows[id(other)]
            if row.fit > kept.fit:
                kept.merge(Window.around(row))
            kept.first, kept.last = first, last
            continue
        new = Window.around(row)
        if (definition := new.definition) is not None and definition.is_code:
            inside = [each for each in known.values() if definition.first <= each.best <= definition.last]
            if sum([each.definition == definition for each in inside]) >= MAX_WINDOWS_OF_DEFINITION:
                continue
        known[id(new)] = windows[id(new)] = new
        if len(windows) == limit:
            break
    for known in of_document.values():
        _complete_definitions([*known.values()], max_gap)
    return [*windows.values()]


def _complete_definitions(windows: Sequence[Window], max_gap: int) -> None:
    """Extend one document's ``windows`` to nearby bounds of their definitions, keeping a distance to other windows."""
    for window in windows:
        definition = window.definition
        if definition is None or not definition.is_code:
            continue
        first, last = definition.first, definition.last
        begins = 0 < window.first - first <= MAX_HEAD_LINES and window.last - first < MAX_WINDOW_LINES
        if begins and not any(first - max_gap <= each.last < window.first for each in windows):
            window.first = first
        ends = 0 < last - window.last <= MAX_TAIL_LINES and last - window.first < MAX_WINDOW_LINES
        if ends and not any(window.last < each.first <= last + max_gap for each in windows):
            window.last = last


def arranged(
    windows: Sequence[Window],
    words: Sequence[str],
    form: QueryForm = "phrase",
    name: str = "",
) -> list[Window]:
    """Sort ``windows`` by their scores, raised for files with many hits or a matching name, and lowered for repeats.

    ``words`` are the query's distinct terms, ``form`` its form. If the query is a ``name``, its definition is first.
    Each window is assigned the score that it is ranked by.
    """
    if not windows or not words:
        return list(windows)
    weights = WEIGHTS_OF_FORMS.get(form, WEIGHTS)
    limit = weights.question_words if form in ("question", "usage") else weights.phrase_words
    least, best = min(window.score for window in windows), max(0.0, *(window.score for window in windows))
    # If the query is a single name, its definition's score says nothing about how well file names match.
    of_words = max((each.score for each in windows if not each.named), default=best) if form == "name" else best
    of_file: dict[tuple[str, str], float] = defaultdict(float)
    for window in windows:
        of_file[window.file] += window.score - least
    most = max(of_file.values()) or 1.0
    named = dict(zip(of_file, filename_boosts((path for _, path in of_file), words, weights), strict=True))
    fading = min(1.0, limit / len(words)) ** 3
    seen: dict[tuple[str, str], int] = defaultdict(int)
    for window in windows:
        first = not seen[window.file]
        seen[window.file] += 1
        gain = weights.file * of_file[window.file] / most if first else 0.0
        window.score += of_words * fading * (gain + named[window.file])
    of_place: dict[tuple[tuple[str, str], str], int] = defaultdict(int)
    for window in by_score(windows):
        place = window.file, window.section
        window.penalty = -best * fading * weights.again * of_place[place]
        window.score -= window.penalty
        of_place[place] += 1
    if name:
        _lift_definitions(windows, name, 1 if form == "name" else 2)
    return by_score(windows)


def _lift_definitions(windows: Sequence[Window], name: str, least: int) -> None:
    """Raise the scores of the definitions that fit ``name`` best, so that one is first.

    Definitions with a ``_fit_of_name`` below ``least`` are not raised.
    """
    found = [(fit, window) for window in windows if (fit := _fit_of_name(window, name)) >= least]
    best = max((fit for fit, _ in found), default=0)
    fitting = [window for fit, window in found if fit == best]
    if fitting:
        lacking = max(each.score for each in windows) - max(each.score for each in fitting)
        for window in fitting:
            window.score += lacking * 1.001


def _fit_of_name(window: Window, name: str) -> int:
    """Return 2 for the start of a definition of ``name`` in code, 1 if leading underscores differ, otherwise 0.

    Also 1 for a constructor of the class ``name``.
    """
    definition = window.definition
    if definition is None or not definition.is_code or not window.first <= definition.line <= window.last:
        return 0
    parts, own = parts_of_name(name), parts_of_name(definition.name)
    if own[-len(parts) :] == parts:
        return 1 if definition.is_constructor and len(parts) == 1 else 2
    return int([each.strip("_") for each in own[-len(parts) :]] == [each.strip("_") for each in parts])


COPIED = 0.7
"""Minimum fraction of the shingles of a window, or of its copy if that has fewer, that both have."""
SHINGLE = 3
"""Words per shingle."""
MIN_SHINGLES = 8
"""A window with fewer shingles, such as one line, is only a copy of one as short in a file with the same name."""
_WORD = re.compile(r"[a-z0-9]+|[^\W_a-z0-9]")
"""Words, or single characters in other scripts, some of which separate no words."""


MAX_WINDOWS_OF_TEXT = 20
"""Text in more windows than this, such as a licence, is not evidence of a copy."""


def without_copies(
    windows: Sequence[Window], texts: Sequence[str], gone: Collection[str] = frozenset()
) -> list[Window]:
    """Drop windows that repeat an earlier window, which then lists their documents as copies.

    These are windows of a document with the same name and content, and, judging by their ``texts``, windows with nearly
    the same words in another document, if both are prose, or if the names of the files or of the definitions are equal.
    A window in a file that only repeats others, such as a bundle, is replaced by its first copy in another file, and
    one in a source that is ``gone`` (an entity) by its first copy in a source that is there.
    """
    documents: dict[tuple[str, str], tuple[str, str]] = {}
    shown_in: dict[tuple[str, str], int] = {}
    holding: dict[tuple[bytes | str, ...], list[int]] = defaultdict(list)
    kept: list[Window] = []
    known: list[tuple[int, set[str]]] = []  # the number of shingles and the names of each window in ``kept``
    all_names = [*map(_names_of, windows)]
    named = {(name, window.file) for window, names in zip(windows, all_names, strict=True) for name in names}
    in_files = Counter(name for name, _ in named)
    for window, text, of_window in zip(windows, texts, all_names, strict=True):
        names = {name for name in of_window if in_files[name] > 1}
        shingles = _shingles(text) if names else set()  # most windows of code share no name
        content = (window.hash, window.path.rpartition("/")[2])
        original = documents.setdefault(content, window.file) if window.hash else window.file
        if original != window.file:
            first = kept[shown_in[original]]
            is_better = first.entity in gone and window.entity not in gone
            kept[shown_in[original]] = _with_copy(first, window, replaced=is_better)
            continue
        at = _copied_window(window, names, shingles, holding, kept, known)
        if at is None:
            for each in shingles:
                if len(holding[each]) < MAX_WINDOWS_OF_TEXT:
                    holding[each].append(len(kept))
            shown_in.setdefault(window.file, len(kept))
            kept.append(window)
            known.append((len(shingles), names))
            continue
        shown_in.setdefault(window.file, at)
        shown = kept[at]
        is_whole = len(shingles) >= COPIED * known[at][0]  # not only a part of the text
        is_better = is_auxiliary(shown.path) and not is_auxiliary(window.path)
        is_better |= shown.entity in gone and window.entity not in gone
        kept[at] = _with_copy(shown, window, replaced=is_whole and is_better)
    return kept


def _with_copy(shown: Window, copy: Window, *, replaced: bool) -> Window:
    """Return ``shown`` with ``copy`` among its copies, or the other way round if it is ``replaced``."""
    if replaced:
        shown, copy = copy, shown
        shown.score = copy.score
    shown.add_copy(copy)
    return shown


def _copied_window(
    window: Window,
    names: set[str],
    shingles: set[tuple[bytes | str, ...]],
    holding: Mapping[tuple[bytes | str, ...], list[int]],
    kept: Sequence[Window],
    known: Sequence[tuple[int, set[str]]],
) -> int | None:
    """Return the position in ``kept`` of the window that ``window`` repeats most, or None."""
    shared = Counter(chain.from_iterable(holding[each] for each in shingles if each in holding))
    for at, count in sorted(shared.items(), key=lambda each: (-each[1], each[0])):  # sets differ between processes
        size, named = min(known[at][0], len(shingles)), known[at][1]
        if count < COPIED * size or kept[at].file == window.file or not named & names:
            continue
        is_equal = len(shingles) == known[at][0] and _stem(kept[at].path) == _stem(window.path)
        if size >= MIN_SHINGLES or is_equal:
            return at
    return None


def _names_of(window: Window) -> set[str]:
    """Return the names that windows with copied text have in common: the file's and the definition's, or prose."""
    definition = window.definition
    defined = parts_of_name(definition.name)[-1:] if definition is not None and definition.is_code else ()
    return {_stem(window.path), *defined} | ({"/"} if is_prose(window.path) else set())


def _shingles(text: str) -> set[tuple[bytes | str, ...]]:
    """Return the distinct runs of SHINGLE words in ``text``, in lower case; a shorter text is one run."""
    lower = text.lower()
    words: list[bytes] | list[str] = (
        lower.encode().translate(_ASCII_PARTS).split() if text.isascii() else _WORD.findall(lower)
    )
    return {*zip(*(words[at:] for at in range(SHINGLE)), strict=False)} or {tuple(words)}


def extended(found: list[Window], windows: Sequence[Window]) -> list[Window]:
    """Append those ``windows`` that share no line with any of ``found``, so the beginning of a list never changes."""

    in_files: dict[tuple[str, str], list[Window]] = defaultdict(list)
    for each in found:
        in_files[each.file].append(each)

    def is_new(window: Window) -> bool:
        near = in_files.get(window.file, ())
        return not any(each.shares_lines(window.file, window.first, window.last) for each in near)

    return found + [window for window in windows if is_new(window)]


def with_whole_definitions(windows: Sequence[Window]) -> list[Window]:
    """Extend the first window, and those of definitions named in the query, to their definitions, if these fit.

    Windows inside the same definition are dropped. If a definition does not fit,
    it is tried without its leading comment.
    """
    kept: list[Window] = []
    dropped: set[int] = set()
    for at, window in enumerate(windows):
        if id(window) in dropped:
            continue
        kept.append(window)
        definition = window.definition
        if definition is None or not definition.is_code or not (at == 0 or window.named):
            continue
        first = definition.first if definition.last - definition.first < MAX_WINDOW_LINES else definition.line
        first, last = min(first, window.first), max(definition.last, window.last)
        near = [each for each in windows if each is not window and each.shares_lines(window.file, first, last)]
        inside = all(each.first >= first and each.last <= last for each in near)
        if last - first < MAX_WINDOW_LINES and inside and not {*map(id, near)} & {*map(id, kept)}:
            window.first, window.last = first, last
            dropped.update(map(id, near))
    return kept


def set_leads(windows: Sequence[Window]) -> None:
    """Set each window's ``lead`` over the next of ``windows``, best first, in another file, and its ``coverage``.

    The lead of windows with no other file after them is 0, but if there is only one file, it depends on the score. The
    coverage is the highest of a window and the COVERING_WINDOWS - 1 after it: a window is not weak if a lower one may
    be relevant.
    """
    is_only = len({each.file for each in windows}) == 1
    other = following = None
    for at, window in reversed([*enumerate(windows)]):
        window.coverage = max(each.covered for each in windows[at : at + COVERING_WINDOWS])
        if following is not None and following.file != window.file:
            other = following
        following = window
        if is_only and window.max_score:
            window.lead = max(0.0, window.score) ** 2 / (4 * window.max_score)
        else:
            window.lead = max(0.0, window.score - other.score) if other is not None else 0.0


def by_score(windows: Sequence[Window]) -> list[Window]:
    """Sort ``windows``, best first; ties keep their order."""
    return sorted(windows, key=lambda window: -window.score)

"""Find every line that matches patterns, sorted by file or ranked by other query words (DESIGN, "Search").

Packs whose grams cannot match are skipped; the others are read in result order until there are enough results.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from heapq import merge
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.defaults import DEFAULT_N_LINES
from driftline.storage.documents import DocumentKey, is_prose
from driftline.storage.errors import UsageError
from driftline.storage.lance.failures import without_panic
from driftline.storage.lines.definition_lookup import definitions_of
from driftline.storage.lines.line_filter import LineFilter
from driftline.storage.lines.outline import Definition, parts_of_name
from driftline.storage.lines.packs import (
    Packs,
    allowed,
    documents_of,
    gaps_of,
    lines_in,
    lines_of,
    packs_of,
    passing_gaps,
    texts,
)
from driftline.storage.lines.regex_patterns import Pattern, quoted
from driftline.storage.lines.table_searcher import Passage, TableSearcher
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.facets import Match, counted
from driftline.tasks.search.filters import LineKinds, line_filter, only_documents
from driftline.tasks.search.freshness import current_lines, freshness_after_read, is_unchanged
from driftline.tasks.search.hits import (
    ExactCounts,
    Hit,
    SearchReport,
    add_definitions,
    anchored,
    anchors_of,
    clipped,
    clipped_context,
    file_of,
    identity_of,
    links_of,
    nothing_indexed,
    read_documents,
    symbol_of,
    why_nothing,
)
from driftline.tasks.search.importance import (
    MAX_COMMENTED_LINES,
    MAX_SORTED_LINES,
    by_importance,
    commented_lines,
    importance,
    nearness,
)
from driftline.tasks.search.links import SourceRecords
from driftline.tasks.search.query_language import ExactTerms, declaration_of, use_of
from driftline.tasks.search.ranked import any_matches, open_tables, search_ranked, search_threads
from driftline.tasks.search.ranking import Window
from driftline.tasks.search.request import Explanation, SearchRequest
from driftline.tasks.text import rows_of_line

MAX_SECONDS = 30.0
"""Time limit of an exact search; at the limit, it stops and reports incomplete results."""
MAX_RANKED = 10_000
"""Maximum number of matching lines to rank by words."""
RANKED_WINDOWS = 200
"""Number of lexically found windows used for ranking matching lines."""
MAX_PATHS_IN_FILTER = 1_000
"""Up to this many matching documents become a ranked search's filter; with more, its results are filtered."""
MAX_FACET_PACKS = 300
"""Maximum number of packs to read for facet counts. Unlike a time limit, it always yields the same counts."""
MAX_IMPORT_PACKS, SHARE_OF_IMPORTS = 300, 0.25
"""Limits for finding files that import used names: the number of packs to read, and the fraction of the search's time.
Imports affect only the order of results, so most of the time is reserved for the results.
"""
_FIRST_PACKS, _MOST_PACKS = 16, 256
"""Number of packs to read at a time: few at first, because the first packs often suffice, but as many as possible in a
bucket, where reading some of them takes as long as reading one.
"""
_LISTED_PACKS = 1_024
"""Number of packs to list at a time, before they are read."""

_DECLARABLE = re.compile(r"\S{1,100}")
"""A name that is searched for declarations."""
_IMPORTS = r"^\s*#?\s*(?:from|import|export|use|using|require|include)\b.*"
"""The start of an import line, in the languages that Driftline parses."""


class IndexedDocument(NamedTuple):
    """A document in one of the searched tables. Sorts by path."""

    path: str
    entity: str
    hash: str
    table: int

    @property
    def key(self) -> DocumentKey:
        """The entity and path that identify it."""
        return self.entity, self.path


Matches = tuple[IndexedDocument, NDArray[np.int64], NDArray[np.bool_]]
"""A document, its matching line numbers, ``(n,)``, and which patterns match each line, ``(p, n)``."""
_PackRow = tuple[IndexedDocument, int, int]
"""A document, the first line number of one of its packs, and the pack's row id."""


@dataclass(slots=True)
class ExactFinder:
    """Finds the lines in several tables that match patterns, document by document.

    ``order`` sorts the documents, then their paths; ``chosen`` is asked in this order whether to search a document. If
    ``documents`` is given, only these are searched. ``late`` returns whether the time is up, and ``max_packs`` limits
    the number of packs to read; ``cut`` is set if some were not read. ``read`` counts the packs read.
    """

    tables: Sequence[TableSearcher]
    patterns: Sequence[Pattern]
    late: Callable[[], bool]
    order: Callable[[str, str], int]
    chosen: Callable[[IndexedDocument], bool]
    documents: frozenset[DocumentKey] | None = None
    max_packs: int | None = None
    cut: bool = False
    read: int = 0

    def lines(self) -> Iterator[Matches]:
        """Yield each document that matches every pattern, with its lines that match any pattern."""
        if any(pattern.multiline for pattern in self.patterns):
            yield from self._in_whole_documents()
            return
        for document, parts in groupby(self._parts(), key=lambda part: part[0]):
            found = [*parts]
            matched = np.concatenate([of_lines for *_, of_lines in found], axis=1)
            if matched.any(axis=1).all():
                yield document, np.concatenate([numbers for _, numbers, _ in found]), matched

    def _parts(self) -> Iterator[Matches]:
        """Yield each pack's matches, in result order."""
        for batch in self._batches():
            yield from self._matching(batch, self._texts(batch))

    def _batches(self, *, whole: bool = False) -> Iterator[Sequence[_PackRow]]:
        """Yield the packs to read at once, in result order; with ``whole``, a document is in one batch."""
        packs = self._candidate_packs()
        size = _FIRST_PACKS if all(table.table.is_local for table in self.tables) else _MOST_PACKS
        following = next(packs, None)
        while following is not None:
            if self.late() or (self.max_packs is not None and self.read >= self.max_packs):
                self.cut = True
                return
            batch: list[_PackRow] = []
            while following is not None and (len(batch) < size or (whole and following[0] == batch[-1][0])):
                batch.append(following)
                following = next(packs, None)
            self.read += len(batch)
            yield batch
            size = min(2 * size, _MOST_PACKS)

    def _texts(self, batch: Sequence[_PackRow]) -> pa.StringArray:
        return texts([(self.tables[document.table], row) for document, _, row in batch])

    def _in_whole_documents(self) -> Iterator[Matches]:
        """Like ``lines``, combining all packs of a document."""
        for batch in self._batches(whole=True):
            read = iter(self._texts(batch).to_pylist())
            for document, packs in groupby(batch, key=lambda pack: pack[0]):
                if self.late():
                    self.cut = True
                    return
                batch_of_document = [*packs]
                firsts = [first for _, first, _ in batch_of_document]
                *parts, last = islice(read, len(firsts))
                text = "\n".join([*(each.removesuffix("\n") for each in parts), last])
                lines = text.removesuffix("\n").split("\n")
                matched = np.stack([_matches(pattern, text, lines) for pattern in self.patterns])
                for _, first, row in batch_of_document:
                    if (gap := gaps_of(self.tables[document.table]).get(row)) is not None:
                        matched[:, first - firsts[0] + gap.first : first - firsts[0] + gap.end] = False
                numbers = np.flatnonzero(matched.any(axis=0))
                if matched.any(axis=1).all():
                    yield document, np.asarray(firsts[0] + numbers, np.int64), np.asarray(matched[:, numbers])

    def _candidate_packs(self) -> Iterator[_PackRow]:
        """Yield the packs that may match, in the order of the results: for the first ones, few documents are rated."""
        later: dict[int, list[list[_PackRow]]] = defaultdict(list)
        sorted_packs = merge(*(self._packs_of_table(*each) for each in enumerate(self.tables)))
        for document, packs in groupby(sorted_packs, key=itemgetter(0)):
            if self.documents is not None and document.key not in self.documents:
                continue
            if place := self.order(*document.key):
                later[place].append([*packs])
            elif self.chosen(document):
                yield from packs
        for place in sorted(later):
            yield from chain.from_iterable(packs for packs in later[place] if self.chosen(packs[0][0]))

    def _packs_of_table(self, table: int, searcher: TableSearcher) -> Iterator[_PackRow]:
        """Yield the packs of a table that may match, sorted by document and line."""
        packs = packs_of(searcher)
        found = np.flatnonzero(self._may_match(searcher, packs)).tolist()
        for start in range(0, len(found), _LISTED_PACKS):
            rows = packs.rows.take(pa.array(found[start : start + _LISTED_PACKS], pa.int64()))
            columns = (rows[name].to_pylist() for name in ("path", "entity", "hash", "line", "_rowid"))
            for path, entity, digest, line, row in zip(*columns, strict=True):
                yield IndexedDocument(path, entity, digest, table), line, row

    def _may_match(self, searcher: TableSearcher, packs: Packs) -> NDArray[np.bool_]:
        """Return which packs may match a pattern, among documents that may match all patterns."""
        if any(pattern.multiline for pattern in self.patterns):
            of_patterns = [packs.documents_that_may_hold(pattern.required) for pattern in self.patterns]
            left = np.asarray(np.stack(of_patterns).all(axis=0))
        else:
            of_patterns = [packs.may_hold(pattern.required) for pattern in self.patterns]
            left = np.asarray(np.stack(of_patterns).any(axis=0))
        if left.any():
            left &= allowed(searcher, packs)
        if self.documents is not None:
            paths = pa.array(sorted({path for _, path in self.documents}), pa.string())
            left &= pc.is_in(packs.rows["path"], value_set=paths).to_numpy()
        for possible in of_patterns if len(of_patterns) > 1 else ():
            left &= (np.bincount(packs.documents, possible) > 0)[packs.documents]
        return left

    def _matching(self, batch: Sequence[_PackRow], read: pa.StringArray) -> Iterator[Matches]:
        may = np.zeros(len(read), np.bool_)
        for pattern in self.patterns:
            may |= pattern.in_lines_only or pattern.matches(read).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(may)
        read = read.take(pa.array(rows.tolist(), pa.int64()))
        split = pc.split_pattern(read, "\n")
        lines, bounds = split.flatten(), split.offsets.to_numpy()
        matched = np.stack([pattern.matches(lines).to_numpy(zero_copy_only=False) for pattern in self.patterns])
        # The empty string after a pack's last newline is not a line.
        matched[:, bounds[1:][pc.ends_with(read, "\n").to_numpy(zero_copy_only=False)] - 1] = False
        limits = zip(rows.tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        gaps = [gaps_of(table) for table in self.tables]
        for row, start, stop in limits:
            inside = matched[:, start:stop]
            document, first, row_id = batch[row]
            if (gap := gaps[document.table].get(row_id)) is not None:
                inside[:, gap.first : gap.end] = False
            numbers = np.flatnonzero(inside.any(axis=0))
            if len(numbers):
                yield document, np.asarray(first + numbers, np.int64), np.asarray(inside[:, numbers])


def _matches(pattern: Pattern, text: str, lines: Sequence[str]) -> NDArray[np.bool_]:
    """Return which ``lines`` of a document's ``text`` match."""
    if not pattern.multiline:
        return np.asarray(pattern.matches(pa.array(lines, pa.string())).to_numpy(zero_copy_only=False))
    matched = np.zeros(len(lines), np.bool_)
    matched[[line for line in pattern.lines_in(text) if line < len(lines)]] = True
    return matched


# -- the search --------------------------------------------------------------------------------


@without_panic()
def search_exactly(
    workspace: Workspace,
    terms: ExactTerms,
    request: SearchRequest,
    *,
    max_seconds: float = MAX_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> SearchReport:
    """Return the first ``top_k`` matching lines of documents that contain all ``terms``; without terms, first lines.

    They are ordered by importance, path and line. Every line of every indexed document that passes the request's
    filters is searched, whether or not it contains a word. With ``files``, only the first line of each document is a
    result; with ``count``, lines are only counted. If the request has a query, its words rank the lines as in
    ``search_ranked``; lines with none of them come last, in order. The search stops after ``max_seconds`` of ``clock``.

    Raises UsageError, NotIndexed, StorageError, CorruptFile and, with a query, the errors of ``search_ranked``.
    """
    asked = "Exact terms" if terms else "Filters without words"
    if request.kinds or request.symbols:
        raise UsageError(
            f"{asked} cannot be combined with kinds and symbols",
            fix="Use def:Name for definitions, or sym:Name for the lines inside.",
        )
    if request.max_distance is not None or request.min_relevance is not None:
        raise UsageError(f"{asked} cannot be combined with max_distance and min_relevance", fix="Leave these out.")
    started = clock()
    tables = open_exact_tables(workspace, line_filter(request, workspace), texts=bool(terms.patterns))
    if not tables:
        return SearchReport("", (), notes=(nothing_indexed(workspace),), exact=ExactCounts(0, 0))
    left_out = LineKinds.of(request).left_out

    def late(share: float = 1.0) -> bool:
        return clock() - started > max_seconds * share

    found = ExactSearch(workspace, tables, terms, late, left_out, sort_deadline_passed=lambda: late(SHARE_OF_IMPORTS))
    if not workspace.objects.is_local and not request.count:
        found.records.read_ahead(search_threads(), chain.from_iterable(table.sources for table in tables))
    if not terms:
        files = found.files(in_order=request.facets or not request.count)
        report = found.listed(request, files)
    else:
        report = found.ranked(request) if request.query.strip() and not request.count else found.in_order(request)
    if request.facets:
        every = found
        if terms:
            every = ExactSearch(workspace, tables, terms, found.late, left_out, max_packs=MAX_FACET_PACKS)
            matching = [(document, len(numbers)) for document, numbers in every.lines()]
            files = [document for document, _ in matching]
            report = replace(report, exact=_more(report.exact, matching, is_cut=every.cut))
        matches = [Match(document.entity, document.path) for document in files]
        report = replace(report, facets=counted(matches, request, complete=not every.cut))
    return replace(report, explanation=found.explained(request)) if request.explain else report


@without_panic()
def search_inside(workspace: Workspace, terms: ExactTerms, request: SearchRequest) -> SearchReport:
    """Rank the lines inside the definitions named by ``terms.inside`` by the request's query, like ``search_ranked``.

    Raises NotIndexed, StorageError, CorruptFile and the errors of ``search_ranked``.
    """
    tables = open_exact_tables(workspace, line_filter(request, workspace), texts=False)
    documents = ExactSearch(workspace, tables, terms, lambda: False).documents_with_definitions
    if tables and not documents:
        return SearchReport("", (), notes=("No definition has this name.",))
    also = (*request.also, *([only_documents(workspace, documents)] if len(documents) <= MAX_PATHS_IN_FILTER else ()))
    inside = tuple(name.lower() if terms.any_case else name for name in terms.inside)
    return search_ranked(workspace, replace(request, also=also, inside=inside))


def without_matches(workspace: Workspace, patterns: Sequence[Pattern], request: SearchRequest) -> LineFilter:
    """Return a filter that drops the documents with a match for any of ``patterns``.

    Raises UsageError if these are too many for a filter, StorageError, CorruptFile.
    """
    tables = open_exact_tables(workspace, line_filter(request, workspace))
    deadline = time.monotonic() + MAX_SECONDS
    found: dict[DocumentKey, None] = {}
    for pattern in patterns:
        finder = ExactFinder(tables, [pattern], lambda: time.monotonic() > deadline, by_importance, lambda _: True)
        for document, *_ in finder.lines():
            found[document.key] = None
            if len(found) > MAX_PATHS_IN_FILTER:
                break
        if finder.cut or len(found) > MAX_PATHS_IN_FILTER:
            what = f"More than {MAX_PATHS_IN_FILTER:,} files have the excluded text, or it takes too long to find"
            raise UsageError(what, pattern.text[:100], "Exclude rarer text, or folders with -file:.")
    return LineFilter(none_of=(only_documents(workspace, found),))


def _more(
    counts: ExactCounts | None, matching: Sequence[tuple[IndexedDocument, int]], *, is_cut: bool
) -> ExactCounts | None:
    """Return the counts of the results, or those of ``matching``, the documents and line counts of a wider search."""
    if counts is None or counts.complete:
        return counts
    lines = max(counts.lines, sum(count for _, count in matching))
    documents = max(counts.documents, len(matching))
    reason = counts.reason if is_cut else "partial" if counts.partial else None
    return replace(counts, lines=lines, documents=documents, reason=reason)


def open_exact_tables(workspace: Workspace, where: LineFilter | None, *, texts: bool = True) -> list[TableSearcher]:
    """Open the lines tables for an exact search; with ``texts``, prefetch what is needed to find them in a bucket."""

    def open_table(searcher: TableSearcher) -> None:
        searcher.open()
        if texts and not searcher.table.is_local:
            packs_of(searcher)

    return open_tables(workspace, where, open_table)


Line = tuple[IndexedDocument, int]
"""A document and a 0-based line number."""


@dataclass(slots=True)
class ExactSearch:
    """An exact search.

    ``sort_deadline_passed`` (default: ``late``) returns whether to stop looking for what only sorts uses.
    ``max_packs`` limits a count; these files are then not looked up.
    """

    workspace: Workspace
    tables: Sequence[TableSearcher]
    terms: ExactTerms
    late: Callable[[], bool]
    left_out: Sequence[Callable[[str], bool]] = ()
    max_packs: int | None = None
    sort_deadline_passed: Callable[[], bool] | None = None
    patterns: list[Pattern] = field(init=False)
    records: SourceRecords = field(init=False)
    timers: Explanation = field(default_factory=lambda: Explanation("exact", "auto"))
    cut: bool = False

    def __post_init__(self) -> None:
        self.records = SourceRecords(self.workspace)
        self.patterns = [
            *self.terms.patterns,
            *(use_of(each, any_case=self.terms.any_case) for each in self.terms.uses),
        ]

    @property
    def documents_with_definitions(self) -> frozenset[DocumentKey]:
        """The documents with a definition of each name in ``inside``."""
        return frozenset.intersection(*(frozenset(self._defined(name)) for name in self.terms.inside))

    def lines(self) -> Iterator[tuple[IndexedDocument, list[int]]]:
        """Yield the documents that contain all terms, in order, with their matching line numbers."""
        defined = [self._defined(name) or self._declared(name) for name in self.terms.definitions]
        used, inside = ([self._defined(name) for name in names] for names in (self.terms.uses, self.terms.inside))
        required = [frozenset(found) for found in (*defined, *inside)]
        documents = frozenset[DocumentKey].intersection(*required) if required else None
        homes = {key for found in used for key, each in found.items() if any(one.is_code for _, one in each)}
        order = nearness(homes, self._importing()) if used else by_importance
        for document, of_patterns in self._matching(order, documents, defined or inside):
            key = document.key
            of_uses = of_patterns[len(self.terms.patterns) :] if used else []
            for matching, found in zip(of_uses, used, strict=True):
                matching -= {each.line for _, each in found.get(key, ())}
            if not all(of_uses):
                continue
            own = {each.line for found in defined for _, each in found.get(key, ())}
            ranges = [[(each.first, each.last) for _, each in found.get(key, ())] for found in inside]
            kept = [
                number
                for number in sorted(own.union(*of_patterns))
                if all(any(first <= number <= last for first, last in each) for each in ranges)
            ]
            if kept:
                yield document, kept

    def _importing(self) -> set[DocumentKey]:
        """Return the most important documents that import one of the used names, within the limits."""
        if self.max_packs is not None:
            return set()
        names = [quoted(use_of(name).text) for name in self.terms.uses]
        patterns = [Pattern.of(rf"{_IMPORTS}\b{name}\b", ignore_case=self.terms.any_case) for name in names]
        late, packs = self.sort_deadline_passed or self.late, max(1, MAX_IMPORT_PACKS // len(names))
        finders = (
            ExactFinder(self.tables, [each], late, by_importance, self._chooser(), max_packs=packs) for each in patterns
        )
        return {document.key for finder in finders for document, *_ in finder.lines()}

    def _matching(
        self,
        order: Callable[[str, str], int],
        documents: frozenset[DocumentKey] | None,
        defined: Sequence[Mapping[DocumentKey, Sequence[tuple[IndexedDocument, Definition]]]],
    ) -> Iterator[tuple[IndexedDocument, list[set[int]]]]:
        """Yield documents with the lines that match each pattern; without patterns, the lines of the definitions.

        Files with a definition in code come before those with a section or key.
        """
        if self.patterns:
            finder = ExactFinder(
                self.tables, self.patterns, self.late, order, self._chooser(), documents, self.max_packs
            )
            for document, numbers, matched in finder.lines():
                yield document, [{*numbers[of_pattern].tolist()} for of_pattern in matched]
            self.cut |= finder.cut
            return
        of_document = {document: each[0] for found in defined for document, (each, *_) in found.items()}
        in_code = {key for found in defined for key, each in found.items() if any(one.is_code for _, one in each)}
        indexed = [of_document[document] for document in documents or ()]
        in_order = sorted(indexed, key=lambda each: (each.key not in in_code, order(*each.key), each))
        for document in filter(self._chooser(), in_order):
            of_names = ([each for _, each in found[document.key]] for found in defined)
            if self.terms.only_inside:
                yield (
                    document,
                    [{n for each in of_name for n in range(each.first, each.last + 1)} for of_name in of_names],
                )
            else:
                yield document, [{each.line for each in of_name} for of_name in of_names]

    def files(self, *, in_order: bool) -> list[IndexedDocument]:
        """Return the documents that pass the filters; if the time is up, the ones found so far."""
        found: list[tuple[int, str, str, IndexedDocument]] = []
        with self.timers.timed("exact"):
            every = ((table, row) for table, searcher in enumerate(self.tables) for row in documents_of(searcher))
            for table, (path, entity, digest) in every:
                if self.late():
                    self.cut = True
                    break
                # Rating a path takes longer than everything else, and a count needs no order.
                place = importance(path) if in_order else 0
                found.append((place, path, entity, IndexedDocument(path, entity, digest, table)))
            if in_order:
                found.sort(key=itemgetter(0, 1, 2))
            return [*filter(self._chooser(), (document for *_, document in found))]

    def _defined(self, name: str) -> dict[DocumentKey, list[tuple[IndexedDocument, Definition]]]:
        """Return the definitions of a name, keyed by document. Case-sensitive, like uses, unless ``any_case``."""
        any_case = self.terms.any_case
        name = name.lower() if any_case else name
        parts = parts_of_name(name)
        found: dict[DocumentKey, list[tuple[IndexedDocument, Definition]]] = {}
        for table, searcher in enumerate(self.tables):
            for entity, path, digest, definition in definitions_of(searcher, name):
                own = definition.name.lower() if any_case else definition.name
                if parts_of_name(own)[-len(parts) :] == parts:
                    found.setdefault((entity, path), []).append(
                        (IndexedDocument(path, entity, digest, table), definition)
                    )
        return found

    def _declared(self, name: str) -> dict[DocumentKey, list[tuple[IndexedDocument, Definition]]]:
        """Return the lines that declare a name without a definition, such as a constant, as definitions of one line.

        For a qualified name, they must be inside a definition with the name before its last part.
        """
        if not _DECLARABLE.fullmatch(name) or not (parts := parts_of_name(name)):
            return {}
        *outer, own = parts
        scopes = self._defined(".".join(outer)) if outer else {}
        pattern = declaration_of(own, any_case=self.terms.any_case)
        only = frozenset(scopes) if outer else None
        finder = ExactFinder(
            self.tables, [pattern], self.late, by_importance, lambda _: True, only, max_packs=self.max_packs
        )
        found: dict[DocumentKey, list[tuple[IndexedDocument, Definition]]] = {}
        for document, numbers, _ in finder.lines():
            around = [scope for _, scope in scopes.get(document.key, ())]
            for line in () if is_prose(document.path) else numbers.tolist():
                if not outer or any(scope.line <= line <= scope.last for scope in around):
                    of_line = Definition("property", name, line, line, line)
                    found.setdefault(document.key, []).append((document, of_line))
        self.cut |= finder.cut
        return found

    def _chooser(self) -> Callable[[IndexedDocument], bool]:
        """Return a predicate for documents in the order of the results, which drops excluded ones and files already
        shown under an earlier source.
        """
        owners: dict[tuple[str, ...], str] = {}
        of_first: list[IndexedDocument] = []

        def is_own(document: IndexedDocument) -> bool:
            identity = identity_of(_window(document), self.records)
            return owners.setdefault(identity, document.entity) == document.entity

        def is_chosen(document: IndexedDocument) -> bool:
            if any(leaves_out(document.path) for leaves_out in self.left_out):
                return False
            if not owners and (not of_first or document.entity == of_first[0].entity):
                of_first.append(document)  # the record of an only source need not be read
                return True
            while of_first:
                is_own(of_first.pop())
            return is_own(document)

        return is_chosen

    def first(self, limit: int | None, *, files: bool = False) -> tuple[list[Line], ExactCounts]:
        """Return the first ``limit`` lines and the known counts; with ``files``, only one line per document."""
        kept: list[Line] = []
        lines = documents = 0
        reason: Literal["limit", "time", "partial"] | None = None
        for document, numbers in self.lines():
            documents += 1
            if limit is None:
                lines += len(numbers)
                continue
            taken = numbers[:1] if files else numbers
            remaining = limit - len(kept)
            lines += (len(numbers) if remaining else 0) if files else min(len(numbers), remaining)
            kept += [(document, number) for number in taken[:remaining]]
            if len(taken) > remaining:
                reason, documents = "limit", documents - (not remaining)
                break
        partial = self._partial()
        reason = reason or ("time" if self.cut else "partial" if partial else None)
        return kept, ExactCounts(lines, documents, reason, partial)

    def _code_first(self, request: SearchRequest) -> tuple[list[Line], ExactCounts]:
        """Return the first uses in code, then those in comments, docstrings and prose, and the known counts."""
        lines, counts = self.first(MAX_RANKED if request.files else max(request.top_k, MAX_SORTED_LINES))
        nearest = lines[:MAX_SORTED_LINES]
        read = partial(_contexts, self.tables, n_lines=MAX_COMMENTED_LINES, after=0)
        commented = commented_lines(nearest, read, self.sort_deadline_passed or self.late)
        return _shown([*sorted(nearest, key=commented.__contains__), *lines[MAX_SORTED_LINES:]], counts, request)

    def _partial(self) -> int:
        """Count the documents that pass the filters and are indexed only at both ends."""
        passing = {(gap.entity, gap.path) for table in self.tables if self.patterns for gap in passing_gaps(table)}
        return sum(not any(leaves_out(path) for leaves_out in self.left_out) for _, path in passing)

    def in_order(self, request: SearchRequest) -> SearchReport:
        """Return the first matching lines or, with ``count``, only their number."""
        with self.timers.timed("exact"):
            limit, is_sorted = None if request.count else request.top_k, bool(self.terms.uses) and not request.count
            lines, counts = self._code_first(request) if is_sorted else self.first(limit, files=request.files)
        if not counts.lines:
            return self._nothing(request, counts)
        found = () if request.count else self._hits(lines, request.n_lines)
        return SearchReport("", found, notes=counts.notes(len(found)), exact=counts)

    def _nothing(self, request: SearchRequest, counts: ExactCounts) -> SearchReport:
        """Return an empty report that names the filters that match no document, or else says that no line matches."""
        report = SearchReport("", (), notes=counts.notes(0), exact=counts)
        if counts.reason == "time":
            return report
        unmatched, notes = why_nothing(self.workspace, self.tables, request, any_matches)
        return replace(report, unmatched=unmatched, notes=notes or report.notes)

    def listed(self, request: SearchRequest, files: Sequence[IndexedDocument]) -> SearchReport:
        """Return the first lines of the first ``files`` or, with ``count``, only the number of files."""
        counts = ExactCounts(0, len(files), "time" if self.cut else None)
        if not files and counts.complete:
            unmatched, notes = why_nothing(self.workspace, self.tables, request, any_matches)
            notes = notes or ("No file passes all filters.",)
            return SearchReport("", (), unmatched=unmatched, notes=notes, exact=counts)
        shown = () if request.count else files[: request.top_k]
        found = self._hits([(document, 0) for document in shown], request.n_lines)
        notes = ()
        if self.cut:
            notes = ("The search timed out, so there may be more files: narrow it to some folders.",)
        elif not request.count and len(found) < len(files):
            some = f"{len(files):,} files match, more than the {len(found):,} shown: a larger `top_k` shows them."
            notes = (some,)
        return SearchReport("", found, notes=notes, exact=counts)

    def explained(self, request: SearchRequest) -> Explanation:
        """Return the steps of this search, with the number of lines that pass the filter of ``request``."""
        lines, matches = (sum(getattr(table, name) for table in self.tables) for name in ("lines", "matches"))
        return replace(self.timers, strategy=request.strategy, lines=lines, matches=matches)

    def ranked(self, request: SearchRequest) -> SearchReport:
        """Return matching lines in windows that match the request's query, then all other matching lines."""
        with self.timers.timed("exact"):
            lines, counts = self.first(MAX_RANKED)
        of_document: dict[DocumentKey, list[Line]] = {}
        for document, number in lines:
            of_document.setdefault(document.key, []).append((document, number))
        if not lines:
            return self._nothing(request, counts)
        wider = replace(
            request, top_k=max(request.top_k, RANKED_WINDOWS), n_lines=max(request.n_lines, DEFAULT_N_LINES)
        )
        wider = replace(wider, files=False, explain=False, facets=False)
        if len(of_document) <= MAX_PATHS_IN_FILTER:
            wider = replace(wider, also=(*request.also, only_documents(self.workspace, of_document)))
        scores: dict[Line, Hit] = {}
        with self.timers.timed("rank"):
            by_words = search_ranked(self.workspace, wider).results
        for hit in by_words:
            inside = [
                each
                for each in of_document.get((hit.source, hit.path), ())
                if hit.start_line <= each[1] + 1 <= hit.end_line and each not in scores
            ]
            scores |= dict.fromkeys(sorted(inside, key=lambda each: abs(each[1] + 1 - hit.line)), hit)
        shown, counts = _shown([*scores, *(each for each in lines if each not in scores)], counts, request)
        hits = zip(shown, self._hits(shown, request.n_lines), strict=True)
        found = tuple(_scored(hit, scores.get(line)) for line, hit in hits)
        return SearchReport("", found, notes=counts.notes(len(shown)), exact=counts)

    def _hits(self, lines: Sequence[Line], n_lines: int) -> tuple[Hit, ...]:
        with self.timers.timed("context"):
            return tuple(self.hits(lines, n_lines))

    def hits(self, lines: Sequence[Line], n_lines: int) -> Iterator[Hit]:
        """Yield the results for ``lines``, with ``n_lines`` of context on each side, as indexed."""
        windows = [_window(document, number) for document, number in lines]
        add_definitions(self.tables, windows)
        read = read_documents(self.workspace, windows, self.records, context=False)
        anchors = anchors_of(self.tables, windows, read)
        links = links_of(self.workspace, windows, self.records, read)
        contexts = [*(_contexts if self.terms else _beginnings)(self.tables, lines, n_lines)]
        own = [context[number - start] for (_, number), (start, context) in zip(lines, contexts, strict=True)]
        spans = self.terms.spans(own)
        named = {document for document, _ in lines}
        as_indexed = {document for document in named if is_unchanged(read.get(document.key), document.hash)}
        lines_of_data = cache(current_lines)
        found = zip(lines, windows, contexts, own, spans, strict=True)
        for rank, ((document, number), window, (start, context), text, matches) in enumerate(found, start=1):
            at = matches[0][0] if matches else 0
            first_row, unchanged = rows_of_line(text)[0][1] if text else "", document in as_indexed
            now = read.get(document.key)
            judged = freshness_after_read(
                first_row,
                number + 1,
                now,
                unchanged=unchanged,
                path=document.path,
                redaction=self.records.redaction(document.entity),
                lines_of_data=lines_of_data,
            )
            yield Hit(
                path=document.path,
                file=file_of(self.records, window),
                source=document.entity,
                line=number + 1,
                start_line=start + 1,
                end_line=start + len(context),
                score=1.0,
                distance=0.0,
                relevance=1.0,
                rank=rank,
                text=clipped(text, at),
                context=clipped_context(context, number - start, at),
                freshness=judged.state.value if judged else None,
                line_now=judged.line if judged else None,
                column=at + 1,
                **anchored(document.path, anchors.get((document.entity, document.path, number))),
                url=links.url(document.entity, document.path, number + 1),
                matches=tuple((begin + 1, end + 1) for begin, end in matches),
                **symbol_of(window.definition),
            )


def _window(document: IndexedDocument, number: int = 0) -> Window:
    return Window(document.entity, document.path, document.hash, number, 0.0, "", 0.0, first=number, last=number)


def _shown(ranked: Sequence[Line], counts: ExactCounts, request: SearchRequest) -> tuple[list[Line], ExactCounts]:
    """Return the lines that ``request`` shows, with ``files`` one of each document, and the counts that say so."""
    if request.files:
        best: dict[IndexedDocument, Line] = {}
        for line in ranked:
            best.setdefault(line[0], line)
        ranked = [*best.values()]
    shown = [*ranked[: request.top_k]]
    if counts.reason != "time" and len(shown) < len(ranked):
        counts = replace(counts, reason="limit")
    return shown, counts


def _scored(hit: Hit, by_words: Hit | None) -> Hit:
    """Return ``hit`` with the scores of ``by_words``, the window around it found by the query's words."""
    if by_words is None:
        return replace(hit, score=0.0, label="weak", distance=1.0, relevance=0.0)
    values = {name: getattr(by_words, name) for name in ("score", "label", "distance", "relevance")}
    return replace(hit, **values)


def _beginnings(
    tables: Sequence[TableSearcher], lines: Sequence[Line], n_lines: int
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Like ``_contexts``, for documents' first lines, without reading the tables' lists of packs."""
    passages = {document: Passage(*document.key, 0, n_lines) for document, _ in lines}
    read: dict[Passage, list[str]] = {}
    for table, searcher in enumerate(tables):
        of_table = [passage for document, passage in passages.items() if document.table == table]
        for start in range(0, len(of_table), _MOST_PACKS):
            read |= lines_of(searcher, of_table[start : start + _MOST_PACKS])
    yield from ((0, tuple(read[passages[document]])) for document, _ in lines)


def _contexts(
    tables: Sequence[TableSearcher], lines: Sequence[Line], n_lines: int, after: int | None = None
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield, for each line, its context and the context's first line number. ``after`` defaults to ``n_lines``."""
    after = n_lines if after is None else after
    packs: dict[IndexedDocument, tuple[list[int], list[int]]] = {}
    for table, searcher in enumerate(tables):
        of_table = {document.key: document for document, _ in lines if document.table == table}
        packs |= {of_table[key]: found for key, found in packs_of(searcher).of(of_table).items()} if of_table else {}
    needed: dict[Line, range] = {}
    for document, number in lines:
        first_lines, _ = packs[document]
        first = bisect_right(first_lines, max(0, number - n_lines)) - 1
        needed[document, number] = range(first, bisect_right(first_lines, number + after))
    keys = sorted({(document.table, packs[document][1][at]) for (document, _), span in needed.items() for at in span})
    lines_of: dict[tuple[int, int], list[str]] = {}
    for start in range(0, len(keys), _MOST_PACKS):
        part = keys[start : start + _MOST_PACKS]
        read = texts([(tables[table], row) for table, row in part]).to_pylist()
        lines_of |= {key: lines_in(text) for key, text in zip(part, read, strict=True)}
    for document, number in lines:
        first_lines, rows = packs[document]
        known = [*chain.from_iterable(lines_of[document.table, rows[at]] for at in needed[document, number])]
        first = first_lines[needed[document, number].start]
        start = max(first, number - n_lines)
        yield start, tuple(known[start - first : number + after + 1 - first])

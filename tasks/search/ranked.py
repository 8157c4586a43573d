"""Rank the lines of a workspace by the words and the meaning of a query (DESIGN, "Search")."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, starmap
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from cachetools import LRUCache
from numpy.typing import NDArray

from driftline.storage.defaults import DEFAULT_N_LINES, FALLBACK_THRESHOLD, Mode, Strategy
from driftline.storage.embedding import Embedder
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError, FingerprintMismatch, MissingExtra, ModelNotFound, UsageError
from driftline.storage.lance.failures import without_panic
from driftline.storage.lines.definition_lookup import blocks_at_places, blocks_defining, outlines_of
from driftline.storage.lines.line_filter import LineFilter
from driftline.storage.lines.outline import OUTLINE_COLUMN, decode, innermost
from driftline.storage.lines.table_searcher import NOTHING, RESULT_COLUMNS, Scored, TableSearcher, nearest_blocks
from driftline.storage.lines.tokenizer import keywords, language_of, normalize_query
from driftline.storage.objects.store_requests import in_parallel
from driftline.storage.shared_cache import SharedCache
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.candidates import MIN_RESULTS, Candidates, gather, lines_of, rank
from driftline.tasks.search.facets import Facets, Match, counted
from driftline.tasks.search.filters import ALL_LINES, LineKinds, line_filter, relative_to_sources
from driftline.tasks.search.hits import (
    UNKNOWN_WORDS,
    SearchReport,
    distinct_windows,
    hits,
    missing_sources,
    note_without_search,
    notes_on,
    nothing_indexed,
    of_distinct_files,
    similar_words,
    why_left_out,
    why_nothing,
)
from driftline.tasks.search.last_search import remember
from driftline.tasks.search.links import SourceRecords
from driftline.tasks.search.query_language import QueryForm, name_in, names_in, other_spellings, places_in, query_form
from driftline.tasks.search.ranking import (
    GROWTH,
    GROWTH_ACROSS,
    JUDGED_WINDOWS,
    WEIGHTS,
    WEIGHTS_OF_FORMS,
    FoundLine,
    Window,
    arranged,
    extended,
    merge_windows,
    set_leads,
    with_whole_definitions,
    without_copies,
)
from driftline.tasks.search.relevance import Calibration
from driftline.tasks.search.request import Explanation, SearchRequest
from driftline.tasks.search.rerank import (
    JOINED_WINDOWS,
    DeepSearch,
    Encoder,
    joined,
    reranked,
    weight_in,
    windows_to_rerank,
)
from driftline.tasks.task_context import ModelRef, load_embedder

log = logging.getLogger(__name__)
_Found = TypeVar("_Found")

FETCH_FACTOR = 3
"""Lines to fetch per result, because neighbouring lines are merged; more are fetched if necessary."""
CANDIDATE_BLOCKS = 100
CANDIDATE_NEAR_BLOCKS: Mapping[QueryForm, int] = {
    "name": 100,
    "phrase": 100,
    "question": 100,
    "usage": 100,
    "sentence": 50,
}
CANDIDATE_LINES = 30
"""Candidates of a hybrid search: lexical blocks, and semantic blocks or, with a distance limit, nearest lines.

A search with too few results fetches more. A sentence describes one definition, and more semantic blocks tend to hide
it."""
READ_BLOCKS: Mapping[QueryForm, int] = {"name": 80, "phrase": 80, "question": 80, "usage": 80, "sentence": 150}
"""How many of these blocks to read: the best by BM25 and cosine together.

Reading, counting and embedding lines takes most of a search's time, and few of the other blocks contain a result."""
BM25_OF_COSINE = 25.0
"""The BM25 score that counts as much as a cosine of 1 when both rank a block."""
CANDIDATE_DEFINITIONS = 20
"""How many definitions to look up per name in a query."""
MAX_TENANTS_AT_ONCE, MAX_TABLES_AT_ONCE = 8, 8
"""How many tenants, and tables per tenant, to open in parallel; each waits for a bucket."""
MAX_THREADS = 64
"""Maximum number of threads shared by all searches of a process."""
MAX_BLOCKS = 6_400
"""From this many candidate blocks on, fetch more only while the last ones contained results."""
MAX_COPIES = 64
"""If copies leave fewer results than requested, at most this many times as many lines and windows are ranked."""

_TENANTS: SharedCache[str, list[Entity]] = SharedCache(LRUCache(64))
"""Maps buckets to the tenants found by their last search."""


@without_panic()
def search_ranked(workspace: Workspace, request: SearchRequest) -> SearchReport:
    """Return the ``top_k`` windows that match a request best.

    ``max_distance`` drops more distant lines, ``min_relevance`` less relevant lines (relevance.py), and ``symbols``,
    ``kinds`` and ``tests`` drop lines that do not pass LineKinds. A transformer reranks the best ``rerank`` windows
    (True: DEFAULT_RERANKED). ``deep`` joins definitions found by a transformer (rerank.py); None does so in a hybrid
    search of a workspace with definition embeddings, if the extra is installed. ``branch`` and ``workspace_name`` are
    handled by the interfaces, which open the workspace on the branch and resolve the name to a filter. Raises
    UsageError, MissingExtra, ModelNotFound, FingerprintMismatch, CorruptFile.
    """
    for name in ("branch", "workspace_name"):
        if getattr(request, name) is not None:
            raise UsageError(f"{name} is not resolved", str(getattr(request, name)), "Search through driftline.search.")
    query, top_k, n_lines, mode = request.query, request.top_k, request.n_lines, request.mode
    where = line_filter(request, workspace)
    n_reranked, joining = windows_to_rerank(request.rerank), _deep(workspace, request.deep, mode)
    encoder = _transformer() if n_reranked else None
    only = LineKinds.of(request)
    explanation, model = Explanation(mode, request.strategy), model_of(workspace)
    nothing = SearchReport(query, (), explanation if request.explain else None)
    nothing = replace(nothing, facets=Facets() if request.facets else None)
    if top_k == 0 or not query.strip() or model is None:
        return replace(nothing, notes=note_without_search(workspace, request))
    records = SourceRecords(workspace)
    records.read_ahead(search_threads())
    with explanation.timed("open"):
        tables, embedder = _open(workspace, model, mode, where, (request.strategy, request.fallback_threshold))
    counting = [search_threads().submit(_count_ahead, table, records) for table in tables] if request.explain else []
    vector = embedder.embed_query(query)
    if not tables or (mode == "vector" and not vector.any()):
        return replace(nothing, notes=(UNKNOWN_WORDS if tables else nothing_indexed(workspace),))
    limit = (calibration := Calibration.of(embedder)).limit(request)
    finder = _Finder(query, vector, embedder, tables, limit, explanation, records, only, [] if request.facets else None)
    n_windows = max(top_k, n_reranked, JOINED_WINDOWS if joining else 0)
    deep_search = joining and DeepSearch.of(workspace, joining, where, only, limit)
    with ThreadPoolExecutor(1) as pool:
        definitions = pool.submit(deep_search.find, query) if deep_search else None
        windows = distinct_windows(lambda n_windows: finder.find(n_windows, n_lines, mode), n_windows, records)
    if deep_search and definitions:
        with explanation.timed("deep"):
            windows = joined(windows, definitions.result(), vector, deep_search, tables, embedder)
            set_leads(windows)
    if encoder is not None:
        with explanation.timed("rerank"):
            first = reranked(windows[:n_reranked], query, tables, encoder, weight_in(mode))
            set_leads(first)  # the other scores have another scale
            windows = [*first, *windows[n_reranked:]]
    with explanation.timed("context"):
        found = tuple(hits(workspace, tables, windows[:top_k], query, n_lines, records, calibration, mode != "vector"))
    if request.explain:
        wait(counting)
        _count(explanation, tables)
    if request.facets:
        nothing = replace(nothing, facets=counted(finder.matches(), request))
    if found:
        notes = notes_on(found)
        notes = (*notes, *(similar_words(tables, query) if notes else ()), *_note_on_blocks(explanation))
        return replace(nothing, results=found, notes=notes)
    return _explained(nothing, workspace, finder, request, records)


def _explained(
    report: SearchReport, workspace: Workspace, finder: _Finder, request: SearchRequest, records: SourceRecords
) -> SearchReport:
    """Add the reason and the nearest line that passes the filters to a ``report`` with no results."""
    calibration, tables = Calibration.of(finder.embedder), finder.tables
    windows = replace(finder, max_distance=None).nearest_allowed() if finder.embedded.any() else []
    near = [*hits(workspace, tables, windows, report.query, 0, records, calibration, False)]
    unmatched, notes = why_nothing(workspace, tables, request, any_matches)
    if not notes and request.mode != "vector":
        notes = similar_words(tables, report.query)
    notes = notes or (why_left_out(near, request.mode, finder.max_distance, finder.only),)
    notes = (*notes, *_note_on_blocks(finder.explanation))
    return replace(report, notes=notes, nearest=near[0] if near else None, unmatched=unmatched)


def _note_on_blocks(explanation: Explanation) -> tuple[str, ...]:
    if explanation.complete:
        return ()
    return ("Only the best blocks were searched: others may match. Narrow the query, or filter by path.",)


def any_matches(workspace: Workspace, where: LineFilter | None) -> bool:
    """Return whether any indexed line passes ``where``."""
    found = (each for tenant in workspace.tenants() for each in tables_of(workspace, tenant, where))
    tables = ((workspace.lines(entity), narrowed) for entity, narrowed in found)
    return any(TableSearcher(table, narrowed).matches for table, narrowed in tables if table.exists())


def model_of(workspace: Workspace) -> ModelRef | None:
    """Return the model that the workspace is bound to, or None if it has none yet."""
    config = workspace.config
    if config.fingerprint is None or config.model is None or config.dim is None:
        return None
    return ModelRef(config.model, config.fingerprint, config.dim)


def _transformer(name: str | None = None) -> Encoder:
    from driftline.tasks.embedding.transformer import load_transformer  # other searches do not load it

    return load_transformer(name)


def _deep(workspace: Workspace, deep: bool | None, mode: Mode) -> Encoder | None:
    """Return the workspace's transformer, if a search joins its definitions.

    If it was requested, raises UsageError if the workspace has none, MissingExtra, ModelNotFound, FingerprintMismatch.
    """
    known = workspace.deep_model
    if deep is False or (deep is None and (known is None or mode != "hybrid")):
        return None
    if known is None:
        raise UsageError("The workspace has no definition embeddings", fix="Run: driftline index SOURCE --deep")
    from driftline.tasks.embedding.transformer import deep_fingerprint, resolve_deep_model

    try:
        if deep_fingerprint(resolve_deep_model(known.name)) != known.fingerprint:
            fix = "Install the transformer that the workspace was indexed with, or run: driftline index --deep"
            raise FingerprintMismatch("The transformer differs from the workspace's", known.name, fix)
        return _transformer(known.name)
    except (MissingExtra, ModelNotFound, FingerprintMismatch) as error:
        if deep:
            raise
        log.warning("Skipping definitions: %s", error)
        return None


def _open(
    workspace: Workspace, model: ModelRef, mode: Mode, where: LineFilter | None, filtering: tuple[Strategy, float]
) -> tuple[list[TableSearcher], Embedder]:
    """Open each tenant's table, if there is one, and load the embedder in parallel."""

    def open_table(table: TableSearcher) -> None:
        table.open(words=mode != "vector", lines=mode == "vector", blocks=mode == "hybrid")

    shared = nullcontext(search_threads()) if workspace.objects.is_local else None
    with shared or ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load_embedder, model)
        return open_tables(workspace, where, open_table, filtering), loading.result()


def open_tables(
    workspace: Workspace,
    where: LineFilter | None,
    open_table: Callable[[TableSearcher], object],
    filtering: tuple[Strategy, float] = ("auto", FALLBACK_THRESHOLD),
) -> list[TableSearcher]:
    """Return a searcher of each existing lines table, with its sources' filter.

    ``open_table`` opens each, in parallel, and may read ahead what the search needs of it.
    """
    where = relative_to_sources(workspace, where) if where else None

    def opened_table(found: tuple[Entity, LineFilter | None]) -> TableSearcher | None:
        entity, narrowed = found
        table = workspace.lines(entity)
        searcher = TableSearcher(table, narrowed, *filtering, opened=workspace.early.take_table(table))
        try:
            open_table(searcher)
        except DriftlineError:
            if searcher.table.exists():
                raise
            return None
        return searcher

    def opened(tenant: Entity) -> list[TableSearcher]:
        tables = [*tables_of(workspace, tenant, where)]
        if workspace.objects.is_local or len(tables) == 1:
            return [*filter(None, map(opened_table, tables))]
        return [*filter(None, in_parallel(opened_table, tables, MAX_TABLES_AT_ONCE))]

    shared = nullcontext(search_threads()) if workspace.objects.is_local else None
    with shared or ThreadPoolExecutor(MAX_TENANTS_AT_ONCE) as pool:
        # Open the last search's tenants while the bucket lists the current ones.
        at = workspace.objects.uri
        opening = {tenant: pool.submit(opened, tenant) for tenant in _TENANTS.get(at) or ()}
        tenants = workspace.tenants()
        if not workspace.objects.is_local:
            _TENANTS.put(at, tenants)
        opening |= {tenant: pool.submit(opened, tenant) for tenant in tenants if tenant not in opening}
        found = [table for tenant in tenants for table in opening[tenant].result()]
    remember(workspace, tenants, found)
    return found


@cache
def search_threads() -> ThreadPoolExecutor:
    """Return the shared thread pool: starting a thread takes longer than most of its work."""
    return ThreadPoolExecutor(MAX_THREADS, "driftline-search")


os.register_at_fork(after_in_child=search_threads.cache_clear)


def tables_of(
    workspace: Workspace, tenant: Entity, where: LineFilter | None
) -> Iterator[tuple[Entity, LineFilter | None]]:
    """Yield a tenant's tables to search, as arguments for ``Workspace.lines``, each with its filter.

    Sources on a branch are searched in the branch's table, the others in the main index.
    """
    branched = tuple(entity for entity in workspace.branches if entity.tenant == tenant)
    others = [entity for entity in workspace.entities(tenant) if entity not in workspace.branches] if branched else []
    if others or not branched:
        rest = LineFilter(not_of=branched, all_of=(where,) if where else None) if branched else where
        yield tenant, rest
    for entity in branched:
        only_it = len(branched) == 1 and not others
        yield entity, where if only_it else LineFilter(entities=(entity,), all_of=(where,) if where else None)


def _count_ahead(table: TableSearcher, records: SourceRecords) -> None:
    """Warm the caches: count a table's lines for ``_count``, and read its sources' records."""
    if table.lines:
        records.read_ahead(search_threads(), table.sources)


def _count(explanation: Explanation, tables: Sequence[TableSearcher]) -> None:
    """Record how many lines passed the filter, and how many were compared."""
    explanation.lines = sum(table.lines for table in tables)
    explanation.matches = sum(table.matches for table in tables)
    if explanation.mode != "text":
        explanation.examined = sum(table.examined for table in tables)
        explanation.index = next((table.index for table in tables if table.index), None)


@dataclass(frozen=True, slots=True)
class _Finder:
    """A query over the tables of all tenants."""

    query: str
    embedded: NDArray[np.float32]
    embedder: Embedder
    tables: Sequence[TableSearcher]
    max_distance: float | None
    explanation: Explanation
    records: SourceRecords
    only: LineKinds = ALL_LINES
    ranked: list[FoundLine] | None = None
    """The lines ranked by the last attempt, best first, if facets need them."""

    def matches(self) -> Iterator[Match]:
        """Yield the files of the ranked lines."""
        kinds: dict[tuple[str, str], set[str]] = {}
        for row in self.ranked or ():
            of_file = kinds.setdefault(row.file, set())
            of_file |= {row.definition.kind} if row.definition is not None else set()
        return (Match(*file, frozenset(found)) for file, found in kinds.items())

    def _kept(self, rows: Iterable[FoundLine]) -> Iterable[FoundLine]:
        """Return ``rows``, keeping them for facets."""
        if self.ranked is None:
            return rows
        self.ranked[:] = rows
        return self.ranked

    def find(self, n_windows: int, n_lines: int, mode: Mode) -> list[Window]:
        """Return the best windows, best first."""
        if mode == "vector":
            return self.vector(n_windows, n_lines)
        return self.hybrid(n_windows, n_lines, meaning=mode == "hybrid")

    def vector(self, n_windows: int, n_lines: int) -> list[Window]:
        """Return windows around the nearest lines."""
        max_gap = 2 * n_lines + 1 if n_lines else 0
        fetch = n_windows * FETCH_FACTOR
        while True:
            with self.explanation.timed("vector"):
                found = self._nearest(fetch)
            windows = merge_windows(self._kept(self._allowed(found.sort_by("distance"))), max_gap, n_windows)
            if len(windows) == n_windows or len(found) < fetch:
                return windows
            fetch *= 2

    def hybrid(self, n_windows: int, n_lines: int, *, meaning: bool) -> list[Window]:
        """Return windows around the best-ranked lines of the best lexical and semantic blocks.

        If the search has a distance limit, the nearest lines replace the semantic blocks.
        """
        max_gap = 2 * max(n_lines, DEFAULT_N_LINES) + 1  # ranking already uses the neighbours
        by_distance = meaning and self.max_distance is not None
        form = query_form(self.query)
        n_blocks, n_near = CANDIDATE_BLOCKS, CANDIDATE_NEAR_BLOCKS[form] if meaning else 0
        n_near = CANDIDATE_LINES if by_distance else n_near
        judged, most = max(n_windows, MIN_RESULTS), MAX_COPIES * n_windows
        found: list[Window] = []
        while True:
            n_found = len(found)
            n_read = READ_BLOCKS[form] * n_blocks // CANDIDATE_BLOCKS
            blocks, is_complete, lines = self._candidates(n_blocks, n_near, n_read)
            self.records.read_ahead(search_threads(), {entity for entity, _, _ in lines.documents})
            with self.explanation.timed("rank"):
                options: dict[str, Any] = {"n_windows": judged, "meaning": meaning, "only": self.only}
                options["weights"] = WEIGHTS_OF_FORMS.get(form, WEIGHTS)
                rows = rank(self.embedded, lines, blocks, self.embedder, **options)
                if (farthest := self.max_distance) is not None:
                    rows = (row for row in rows if row.distance <= farthest)
                across = GROWTH if form == "sentence" else GROWTH_ACROSS
                merged = merge_windows(self._kept(rows), max_gap, max(judged, JUDGED_WINDOWS), across)
                merged = of_distinct_files(merged, self.records)
                windows = without_copies(merged, lines.texts_of(merged), missing_sources(merged, self.records))
                n_copies = len(merged) - len(windows)
                windows = arranged(windows, lines.words, form, name=name_in(self.query))
                windows = with_whole_definitions(windows)
                set_leads(windows)
                found = extended(found, windows)
            examined = [max(table.examined_blocks) for table in self.tables if table.examined_blocks]
            self.explanation.blocks, self.explanation.candidates = sum(examined) or len(blocks), len(lines)
            self.explanation.blocks_without_definitions = blocks[OUTLINE_COLUMN].null_count
            if len(found) < n_windows and n_copies and judged < most:  # copies took the places of other documents
                judged *= 4
                continue
            # A filter of kinds that few lines pass would otherwise read the whole index.
            is_vain = n_blocks >= MAX_BLOCKS and len(found) == n_found
            if len(found) >= n_windows or is_complete or is_vain:
                self.explanation.complete = is_complete or not is_vain
                return found[:n_windows]
            n_blocks, n_near = 4 * n_blocks, 4 * n_near

    def nearest_allowed(self) -> list[Window]:
        """Return the nearest line that passes ``only``, if it is among the nearest lines."""
        rows = self._allowed(self._nearest(CANDIDATE_BLOCKS))
        return [Window.around(row) for row in rows[:1]]

    def _candidates(self, blocks: int, near: int, read: int) -> tuple[pa.Table, bool, Candidates]:
        """Return the best lexical and semantic blocks, searched in parallel; whether there are no others; and their
        lines.

        If both searches find blocks, the best ``read`` are returned.
        """
        with self.explanation.timed("names"):
            names, places = names_in(self.query), places_in(self.query)
            names = [*names, *chain.from_iterable(map(other_spellings, names))]
            named = [
                np.append(blocks_at_places(table, places), blocks_defining(table, names, CANDIDATE_DEFINITIONS))
                for table in self.tables
            ]
        if any(map(len, named)) and len(self.query.split()) == 1 and self.max_distance is None:
            near = 0  # a definition with exactly this name is better evidence than similar lines

        def timed(find: Callable[[int], _Found]) -> _Found:
            with self.explanation.timed("vector"):
                return find(near)

        finding = search_threads().submit(timed, self._near_blocks if self.max_distance is None else self._nearest)
        try:
            with self.explanation.timed("text"):
                words = normalize_query(keywords(self.query), language_of(self.query))
                matching = _best(self._of_tables(lambda table: table.matching(words, blocks)), blocks)
            n_words = sum(map(len, matching))
            all_words = n_words < blocks or blocks >= MAX_BLOCKS
            if self.max_distance is None:
                near_blocks = finding.result()
                n_near = sum(map(len, near_blocks))
                is_complete = all_words and (not near or n_near < near)
                if n_words and n_near and blocks < MAX_BLOCKS:
                    floor = float(min(each.scores[-1] for each in matching if len(each))) if n_words == blocks else 0.0
                    matching, near_blocks = _best_of_both(matching, near_blocks, read, floor)
                    is_complete = is_complete and n_words + n_near == sum(map(len, (*matching, *near_blocks)))
                found = self._read(matching, named, near_blocks)
                return found, is_complete, lines_of(found, self.query)
            found = self._read(matching, named, [NOTHING] * len(self.tables))
            lines = lines_of(found, self.query)  # while the search for the nearest is still running
            nearest = finding.result()
            # If the nearest lines are complete, so are all lines within the distance.
            return found, len(nearest) < near if near else all_words, gather(lines, nearest)
        finally:
            wait([finding])  # leave nothing running if a search fails

    def _of_tables(self, find: Callable[..., _Found], *known: Iterable[Any]) -> list[_Found]:
        """Return the result of ``find`` for each table, such as many branches' tables, or its ``known`` result.

        Tables are searched in parallel.
        """
        if len(self.tables) == 1:
            return [*map(find, self.tables, *known)]
        finding = [search_threads().submit(find, *each) for each in zip(self.tables, *known, strict=True)]
        wait(finding)  # leave nothing running if a search fails
        return [each.result() for each in finding]

    def _near_blocks(self, limit: int) -> list[Scored]:
        return _best(nearest_blocks(self.tables, self.embedded, limit), limit)

    def _read(
        self, matching: Sequence[Scored], named: Sequence[NDArray[np.uint64]], near: Sequence[Scored]
    ) -> pa.Table:
        """Return each block found, once per table, best ``bm25`` first; ``near`` marks semantic blocks."""

        def read(table: TableSearcher, by_words: Scored, by_name: NDArray[np.uint64], by_meaning: Scored) -> pa.Table:
            near_rows = {*by_meaning.rows.tolist()}
            bm25 = dict(zip(by_words.rows.tolist(), by_words.scores.tolist(), strict=True))
            rows = [*dict.fromkeys(chain(bm25, by_name.tolist(), by_meaning.rows.tolist()))]
            blocks = table.blocks_at(rows)
            blocks = blocks.append_column("bm25", pa.array([bm25.get(row, 0.0) for row in rows], pa.float32()))
            return blocks.append_column("near", pa.array([row in near_rows for row in rows], pa.bool_()))

        with self.explanation.timed("text"):
            blocks = pa.concat_tables(self._of_tables(read, matching, named, near))
        order = np.argsort(-blocks["bm25"].to_numpy(), kind="stable")
        return blocks.take(pa.array(order.tolist(), pa.int64()))

    def _allowed(self, found: pa.Table) -> list[FoundLine]:
        """Return the nearest lines that pass ``only``, with their definitions if it needs them."""
        columns = (found[name].to_pylist() for name in (*RESULT_COLUMNS, "distance"))
        rows = [
            FoundLine((entity, path, digest), number, column, text, distance, 1 - distance, -distance)
            for entity, path, number, column, text, digest, distance in zip(*columns, strict=True)
        ]
        if self.only.needs_definitions:
            lines = [(*row.file, row.number) for row in rows]
            outlines = {line: text for table in self.tables for line, text in outlines_of(table, lines).items()}
            known = ((innermost(decode(outlines.get(line, "")), line[2]), line in outlines) for line in lines)
            rows = [
                row._replace(definition=definition, outlined=outlined)
                for row, (definition, outlined) in zip(rows, known, strict=True)
            ]
        if self.only == ALL_LINES:
            return rows
        return [row for row in rows if self.only.allow(row.definition, row.number, row.document[1])]

    def _nearest(self, limit: int) -> pa.Table:
        found = [table.nearest(self.embedded, limit, self.max_distance) for table in self.tables]
        return pa.concat_tables(found).sort_by("distance").slice(0, limit)


def _best(found: Sequence[Scored], limit: int) -> list[Scored]:
    """For each table, return which of its blocks are among the overall best ``limit``."""
    scores = np.concatenate([each.scores for each in found])
    best = np.zeros(len(scores), np.bool_)
    best[np.argsort(-scores, kind="stable")[:limit]] = True
    parts = np.split(best, np.cumsum([len(each) for each in found])[:-1])
    return [Scored(each.rows[held], each.scores[held]) for each, held in zip(found, parts, strict=True)]


def _best_of_both(
    matching: Sequence[Scored], near: Sequence[Scored], limit: int, floor: float
) -> tuple[list[Scored], list[Scored]]:
    """For each table, return its blocks ``matching`` words and those ``near``, as far as they are among the overall
    best ``limit``.

    A block's score is the sum of its excess over the worst of each search, which for BM25 is ``floor``: a block that a
    search did not find is at most as good as its worst.
    """
    farthest = min(float(each.scores[-1]) for each in near if len(each))
    scores: dict[tuple[int, int], float] = defaultdict(float)
    for found, least, weight in ((matching, floor, 1.0), (near, farthest, BM25_OF_COSINE)):
        for at, of_table in enumerate(found):
            for row, score in zip(of_table.rows.tolist(), of_table.scores.tolist(), strict=True):
                scores[at, row] += weight * (score - least)
    best = {*sorted(scores, key=lambda each: -scores[each])[:limit]}

    def kept(at: int, found: Scored) -> Scored:
        held = np.fromiter(((at, row) in best for row in found.rows.tolist()), np.bool_, len(found))
        return Scored(found.rows[held], found.scores[held])

    return [*starmap(kept, enumerate(matching))], [*starmap(kept, enumerate(near))]

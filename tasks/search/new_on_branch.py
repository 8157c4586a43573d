"""Search the lines that only a branch has, and find existing code that resembles its new functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.deltas.delta_index import ADD
from driftline.storage.entities import Entity
from driftline.storage.lines.definition_lookup import outlines_of
from driftline.storage.lines.line_filter import LineFilter
from driftline.storage.lines.line_table import each_document
from driftline.storage.lines.outline import OUTLINE_COLUMN, Definition, decode, innermost
from driftline.storage.lines.table_searcher import TableSearcher
from driftline.storage.workspace.branch_cuts import read_branch
from driftline.storage.workspace.workspace import Branch, Workspace
from driftline.tasks.search.hits import Hit, SearchReport, notes_on
from driftline.tasks.search.ranked import search_ranked
from driftline.tasks.search.request import SearchRequest

MAX_FETCHED = 400
"""How many hits to fetch when searching for lines that are new on a branch."""


def changed_paths(workspace: Workspace, branch: Branch) -> list[str]:
    """Return a branch's documents that differ from its snapshot of the main index, sorted. Raises CorruptFile."""
    record = read_branch(workspace, branch.entity, branch.name)
    since = record.main_revision if record is not None else 0
    changed = workspace.manifest(branch.entity).changes_since(since, columns=["path", "reason"])
    found = changed.filter(pc.and_(pc.equal(changed["op"], ADD), pc.is_null(changed["reason"])))
    paths: list[str] = found["path"].to_pylist()
    return paths


def new_lines(workspace: Workspace, request: SearchRequest) -> SearchReport:
    """Like ``search_ranked`` on the branches of ``workspace``, dropping hits whose best line is in the main index.

    Lines that only moved within their document are not new. Raises the same errors as ``search``.
    """
    changed = {branch.entity: changed_paths(workspace, branch) for branch in workspace.branches.values()}
    if not any(changed.values()):
        return SearchReport(request.query, (), notes=("The branch has the same documents as the main index.",))
    where = LineFilter(
        any_of=tuple(LineFilter(entities=(entity,), paths=tuple(paths)) for entity, paths in changed.items())
    )
    count = request.top_k
    while True:
        report = search_ranked(workspace, replace(request, also=(*request.also, where), top_k=count))
        new = [*_new(workspace, report.results)]
        if len(new) >= request.top_k or len(report.results) < count or count >= MAX_FETCHED:
            best = tuple(new[: request.top_k])
            known = ("Every line that matches is in the main index as well.",) if report.results else report.notes
            return SearchReport(request.query, best, report.explanation, notes_on(best) if best else known)
        count = min(4 * count, MAX_FETCHED)


def _new(workspace: Workspace, hits: tuple[Hit, ...]) -> Iterator[Hit]:
    main = workspace.on(())
    known: dict[str, set[tuple[str, str]]] = {}
    for source in {hit.source for hit in hits}:
        entity = Entity.parse(source, workspace.config.hierarchy)
        rows = main.lines(entity).of_documents(
            entity, sorted({hit.path for hit in hits if hit.source == source}), ["path", "text"]
        )
        known[source] = set(zip(rows["path"].to_pylist(), rows["text"].to_pylist(), strict=True))
    rank = 0
    for hit in hits:
        if (hit.path, hit.text) not in known[hit.source]:
            rank += 1
            yield replace(hit, rank=rank)


MAX_DISTANCE = 0.25
"""Functions more distant than this from all others are not reported."""
MIN_LINES = 3
"""Minimum length: shorter functions resemble many others."""
MAX_LINES = 24
"""Maximum number of lines to look up per function, evenly spaced."""
MAX_FUNCTIONS = 50
NEAREST = 8
"""Number of main index lines to look up for each line."""
_FUNCTIONS = frozenset(("function", "method"))
_COLUMNS = ("path", "line_number", "column_number", OUTLINE_COLUMN)


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A branch's new function and the nearest existing function. Lines are 1-based.

    ``distance`` is the mean, over the new function's lines, of 1 - cosine to the other's nearest line; a line with no
    near line adds twice MAX_DISTANCE.
    """

    source: str
    path: str
    line: int
    symbol: str
    like_source: str
    like_path: str
    like_line: int
    like_symbol: str
    distance: float


def find_duplicates(workspace: Workspace) -> list[Duplicate]:
    """Return the nearest main index function for each new function on the branches of ``workspace``.

    Nearest pairs come first. A function is not new if the main index has one with the same name in the same document.
    Functions more distant than MAX_DISTANCE from all others are omitted. Raises StorageError, CorruptFile.
    """
    found: list[Duplicate] = []
    for branch in workspace.branches.values():
        searcher = TableSearcher(workspace.on(()).lines(branch.entity))
        for path, definition, vectors in _new_functions(workspace, branch):
            duplicate = _nearest(searcher, branch, path, definition, vectors)
            if duplicate is not None:
                found.append(duplicate)
    return sorted(found, key=lambda each: (each.distance, each.path, each.line))


def _new_functions(workspace: Workspace, branch: Branch) -> Iterator[tuple[str, Definition, NDArray[np.float32]]]:
    """Yield up to MAX_FUNCTIONS new functions of a branch, each with its line vectors, ``(n, dim) float32``."""
    paths, count = changed_paths(workspace, branch), 0

    def documents(there: Workspace, columns: Sequence[str]) -> Iterator[pa.Table]:
        table = there.lines(branch.entity)
        return each_document(table.of_documents(branch.entity, paths, [*_COLUMNS, *columns]), paths)

    here, before = documents(workspace, ["vector"]), documents(workspace.on(()), [])
    for path, rows, old in zip(paths, here, before, strict=True):
        known = {each.name for each in _definitions(old)}
        for definition in _definitions(rows):
            if definition.kind not in _FUNCTIONS or definition.name in known:
                continue
            vectors = _vectors(rows, definition)
            if len(vectors) >= MIN_LINES:
                yield path, definition, vectors
                count += 1
                if count == MAX_FUNCTIONS:
                    return


def _definitions(rows: pa.Table) -> Sequence[Definition]:
    """Return a document's distinct definitions, sorted by line."""
    outlines = (text for text in rows[OUTLINE_COLUMN].to_pylist() if text)
    return sorted({each for text in outlines for each in decode(text)}, key=lambda each: (each.first, -each.last))


def _vectors(rows: pa.Table, definition: Definition) -> NDArray[np.float32]:
    inside = pc.and_(
        pc.greater_equal(rows["line_number"], definition.line), pc.less_equal(rows["line_number"], definition.last)
    )
    chosen = rows.filter(pc.and_(inside, pc.is_valid(rows["vector"])))["vector"].combine_chunks()
    if not len(chosen):
        return np.zeros((0, 0), np.float32)
    vectors = np.asarray(chosen.flatten().to_numpy(zero_copy_only=False), np.float32).reshape(len(chosen), -1)
    vectors = vectors[np.linalg.norm(vectors, axis=1) > 0]
    spread = np.unique(np.linspace(0, len(vectors) - 1, min(len(vectors), MAX_LINES)).astype(int))
    taken: NDArray[np.float32] = vectors[spread]
    return taken


def _nearest(
    searcher: TableSearcher, branch: Branch, path: str, new: Definition, vectors: NDArray[np.float32]
) -> Duplicate | None:
    """Return the main index function whose lines are nearest to ``vectors``, or None if none is within MAX_DISTANCE."""
    hits = [searcher.nearest(vector, NEAREST, 2 * MAX_DISTANCE).to_pylist() for vector in vectors]
    locations = [(hit["entity"], hit["path"], hit["line_number"]) for found in hits for hit in found]
    outlines = outlines_of(searcher, sorted(set(locations)))
    distances: dict[tuple[str, str, Definition], NDArray[np.float64]] = defaultdict(
        lambda: np.full(len(vectors), 2 * MAX_DISTANCE)
    )
    for number, hits_of_line in enumerate(hits):
        for hit in hits_of_line:
            location = (hit["entity"], hit["path"], hit["line_number"])
            definition = innermost(decode(outlines.get(location, "")), location[2])
            if definition is None or definition.kind not in _FUNCTIONS:
                continue
            of_function = distances[location[0], location[1], definition]
            of_function[number] = min(of_function[number], hit["distance"])
    means = {function: float(found.mean()) for function, found in distances.items()}
    if not means:
        return None
    (entity, like_path, like), distance = min(means.items(), key=lambda item: (item[1], item[0][1], item[0][2].line))
    if distance > MAX_DISTANCE:
        return None
    return Duplicate(
        source=str(branch.entity),
        path=path,
        line=new.line + 1,
        symbol=new.name,
        like_source=entity,
        like_path=like_path,
        like_line=like.line + 1,
        like_symbol=like.name,
        distance=distance,
    )

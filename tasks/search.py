"""Semantic search: from a query to windows of lines, best first (DESIGN, "Search")."""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import pyarrow as pa

from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError, UsageError
from driftline.storage.lines import LineTable, quote
from driftline.storage.queries import LineFilter, nearest_lines
from driftline.storage.sources import known_source
from driftline.storage.workspace import Workspace
from driftline.tasks.batch import HASH_BYTES
from driftline.tasks.context import ModelRef, load_embedder
from driftline.tasks.text import decode, split_lines

DEFAULT_TOP_K = 10
DEFAULT_N_LINES = 3
FETCH_FACTOR = 3
"""Lines fetched for each result wanted, because neighbouring ones merge; more are fetched if that is not enough."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A window of one document. Line numbers are 1-based and both ends are included.

    ``line`` and ``text`` are its best line; ``score`` is that line's cosine, ``distance`` 1 - ``score``;
    ``context`` holds the lines from ``start_line`` to ``end_line``.
    """

    path: str
    source: str
    line: int
    start_line: int
    end_line: int
    score: float
    distance: float
    rank: int
    text: str
    context: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SearchReport:
    """The answer to a query, best first."""

    query: str
    results: tuple[Hit, ...]

    def to_dict(self) -> dict[str, Any]:
        """As ``search --json`` prints it."""
        fields = Hit.__slots__
        results = [{name: getattr(hit, name) for name in fields} for hit in self.results]
        return {"query": self.query, "results": [{**hit, "context": list(hit["context"])} for hit in results]}


@dataclass(slots=True)
class _Window:
    """Neighbouring hits of one document; lines are 0-based and both ends included."""

    entity: str
    path: str
    hash: str
    best: int
    distance: float
    text: str
    first: int
    last: int


def search_workspace(
    workspace_uri: str,
    query: str,
    *,
    top_k: int = DEFAULT_TOP_K,
    max_distance: float | None = None,
    n_lines: int = DEFAULT_N_LINES,
    paths: Sequence[str] = (),
    dirs: Sequence[str] = (),
    exts: Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
) -> SearchReport:
    """The ``top_k`` windows nearest to ``query``; an empty filter means no filter. Needs read access only.

    Raises WorkspaceNotFound, UsageError, ModelNotFound, FingerprintMismatch, CorruptFile.
    """
    workspace = Workspace.open(workspace_uri, storage_options)
    where = LineFilter(paths=tuple(paths) or None, dirs=tuple(dirs) or None, exts=tuple(exts) or None)
    return search(workspace, query, top_k=top_k, max_distance=max_distance, n_lines=n_lines, where=where)


def search(
    workspace: Workspace,
    query: str,
    *,
    top_k: int = DEFAULT_TOP_K,
    max_distance: float | None = None,
    n_lines: int = DEFAULT_N_LINES,
    where: LineFilter | None = None,
) -> SearchReport:
    """As ``search_workspace``, in an open workspace."""
    if top_k < 0:
        raise UsageError("top_k must not be negative", str(top_k))
    if n_lines < 0:
        raise UsageError("n_lines must not be negative", str(n_lines))
    if top_k == 0 or not query.strip():
        return SearchReport(query, ())
    config = workspace.config
    if config.fingerprint is None or config.model is None or config.dim is None:
        return SearchReport(query, ())
    tables = [table for tenant in workspace.tenants() if (table := workspace.lines(tenant)).exists()]
    if not tables:
        return SearchReport(query, ())
    vector = load_embedder(ModelRef(config.model, config.fingerprint, config.dim)).embed_query(query)
    if not vector.any():
        return SearchReport(query, ())

    fetch = top_k * FETCH_FACTOR
    while True:
        found = [nearest_lines(table, vector, fetch, where, max_distance) for table in tables]
        windows = merge_windows(pa.concat_tables(found).sort_by("distance").to_pylist(), n_lines, top_k)
        if len(windows) == top_k or all(len(rows) < fetch for rows in found):
            break
        fetch *= 2
    hits = _with_context(workspace, windows, n_lines)
    return SearchReport(query, tuple(hits))


def merge_windows(rows: Sequence[Mapping[str, Any]], n_lines: int, top_k: int) -> list[_Window]:
    """Rows of ``nearest_lines``, best first, as at most ``top_k`` windows, best first.

    Hits whose contexts touch become one window. No more rows are used than it takes, so that a window
    does not grow by hits that are farther than all of the windows.
    """
    reach = 2 * n_lines + 1 if n_lines else 0
    rows = rows[: _rows_for(rows, reach, top_k)]
    of_document: dict[tuple[str, str], list[int]] = {}
    for rank, row in enumerate(rows):
        of_document.setdefault((row["entity"], row["path"]), []).append(rank)
    windows: list[tuple[int, _Window]] = []
    for ranks in of_document.values():
        group: list[int] = []
        for rank in sorted(ranks, key=lambda rank: rows[rank]["line_number"]):
            if group and rows[rank]["line_number"] - rows[group[-1]]["line_number"] > reach:
                windows.append((min(group), _window(rows, group)))
                group = []
            group.append(rank)
        windows.append((min(group), _window(rows, group)))
    return [window for _, window in sorted(windows, key=itemgetter(0))]


def _rows_for(rows: Sequence[Mapping[str, Any]], reach: int, top_k: int) -> int:
    """How many of the first ``rows`` make ``top_k`` windows; all of them if they do not."""
    lines_of: dict[tuple[str, str], list[int]] = {}
    windows = 0
    for count, row in enumerate(rows, start=1):
        line, lines = row["line_number"], lines_of.setdefault((row["entity"], row["path"]), [])
        at = bisect(lines, line)
        before = at > 0 and line - lines[at - 1] <= reach
        after = at < len(lines) and lines[at] - line <= reach
        one_window = before and after and lines[at] - lines[at - 1] <= reach
        windows += 1 - before - after + one_window
        lines.insert(at, line)
        if windows == top_k:
            return count
    return len(rows)


def _window(rows: Sequence[Mapping[str, Any]], group: Sequence[int]) -> _Window:
    best = rows[min(group)]
    return _Window(
        best["entity"],
        best["path"],
        best["hash"],
        best=best["line_number"],
        distance=best["distance"],
        text=best["text"],
        first=rows[group[0]]["line_number"],
        last=rows[group[-1]]["line_number"],
    )


def _with_context(workspace: Workspace, windows: Sequence[_Window], n_lines: int) -> Iterator[Hit]:
    documents = _documents(workspace, windows) if n_lines else {}
    for rank, window in enumerate(windows, start=1):
        lines = documents.get((window.entity, window.path))
        start, end = max(0, window.first - n_lines), window.last + n_lines
        if not n_lines:
            context = [window.text]
        elif lines is None:
            context = _indexed_lines(workspace, window, start, end)
        else:
            context = lines[start : end + 1]
        yield Hit(
            path=window.path,
            source=window.entity,
            line=window.best + 1,
            start_line=start + 1,
            end_line=start + len(context),
            score=1.0 - window.distance,
            distance=window.distance,
            rank=rank,
            text=window.text,
            context=tuple(context),
        )


def _documents(workspace: Workspace, windows: Sequence[_Window]) -> dict[tuple[str, str], list[str]]:
    """The lines of the documents of ``windows``, from their sources, by ``(entity, path)``.

    One that cannot be read, or has changed since it was indexed, is missing: the index answers for it.
    """
    hash_of = {(window.entity, window.path): window.hash for window in windows}
    found: dict[tuple[str, str], list[str]] = {}
    for entity in sorted({window.entity for window in windows}):
        record = workspace.source(Entity.parse(entity, workspace.config.hierarchy))
        paths = [path for owner, path in hash_of if owner == entity]
        if record is None:
            continue
        try:
            contents = known_source(record.uri, workspace.objects.storage_options).read_many(paths)
        except DriftlineError:
            continue
        for path, data in zip(paths, contents, strict=True):
            if isinstance(data, DriftlineError):
                continue
            if hashlib.blake2b(data, digest_size=HASH_BYTES).hexdigest() == hash_of[entity, path]:
                found[entity, path] = split_lines(decode(data)[0])
    return found


def _indexed_lines(workspace: Workspace, window: _Window, start: int, end: int) -> list[str]:
    """Lines ``start`` to ``end`` from the index, which leaves out lines without a letter or digit: those are empty."""
    entity = Entity.parse(window.entity, workspace.config.hierarchy)
    table: LineTable = workspace.lines(entity)
    where = f"entity = {quote(window.entity)} AND path = {quote(window.path)} AND line_number BETWEEN {start} AND {end}"
    known = {
        row["line_number"]: row["text"]
        for batch in table.rows(["line_number", "text"], where)
        for row in batch.to_pylist()
    }
    return [known.get(number, "") for number in range(start, max(known, default=window.last) + 1)]

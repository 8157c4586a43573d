"""Semantic search: from a query to windows of lines, best first (DESIGN, "Search")."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError, UsageError
from driftline.storage.lines import LineTable, quote
from driftline.storage.queries import LineFilter, nearest_lines
from driftline.storage.sources import open_source
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
        windows = merge_windows(pa.concat_tables(found).sort_by("distance").to_pylist(), n_lines)
        if len(windows) >= top_k or all(len(rows) < fetch for rows in found):
            break
        fetch *= 2
    hits = _with_context(workspace, windows[:top_k], n_lines)
    return SearchReport(query, tuple(hits))


def merge_windows(rows: Sequence[Mapping[str, Any]], n_lines: int) -> list[_Window]:
    """Rows of ``nearest_lines``, best first, as windows, best first; hits whose contexts touch become one."""
    windows: list[_Window] = []
    of_document: dict[tuple[str, str], list[_Window]] = {}
    for row in rows:
        line = row["line_number"]
        neighbours = of_document.setdefault((row["entity"], row["path"]), [])
        reach = 2 * n_lines + 1
        near = next((w for w in neighbours if w.first - reach <= line <= w.last + reach), None)
        if near is None or not n_lines:
            window = _Window(
                row["entity"], row["path"], row["hash"], line, row["distance"], row["text"], first=line, last=line
            )
            neighbours.append(window)
            windows.append(window)
        else:
            near.first, near.last = min(near.first, line), max(near.last, line)
    return windows


def _with_context(workspace: Workspace, windows: Sequence[_Window], n_lines: int) -> Iterator[Hit]:
    documents: dict[tuple[str, str], list[str] | None] = {}
    for rank, window in enumerate(windows, start=1):
        key = (window.entity, window.path)
        if key not in documents:
            documents[key] = _document_lines(workspace, window)
        lines = documents[key]
        start, end = max(0, window.first - n_lines), window.last + n_lines
        context = _indexed_lines(workspace, window, start, end) if lines is None else lines[start : end + 1]
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


def _document_lines(workspace: Workspace, window: _Window) -> list[str] | None:
    """The document as it was indexed, from its source; None if it cannot be read or has changed since."""
    record = workspace.source(Entity.parse(window.entity, workspace.config.hierarchy))
    if record is None:
        return None
    try:
        data = open_source(record.uri).read(window.path)
    except DriftlineError:
        return None  # the index answers where the source cannot be reached
    if hashlib.blake2b(data, digest_size=HASH_BYTES).hexdigest() != window.hash:
        return None
    text, reason = decode(data)
    return None if reason else split_lines(text)


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

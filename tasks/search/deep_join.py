"""Joins the windows of a search with the definitions that a transformer finds, by their ranks (decision 0016)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.storage.lines.deep_table import DeepTable
from driftline.storage.lines.filters import LineFilter
from driftline.storage.lines.outline import Definition
from driftline.storage.lines.queries import LineQuery
from driftline.storage.model import Embedder
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.hits import add_definitions
from driftline.tasks.search.line_kinds import LineKinds
from driftline.tasks.search.relative_filters import relative_to_sources
from driftline.tasks.search.reranking import Encoder
from driftline.tasks.search.windows import Window

CANDIDATE_DEFINITIONS = 60
"""Definitions looked up by their vectors."""
JOINED_WINDOWS = 50
"""Windows of words and meaning that are joined with them."""
RANK_OFFSET = 60
"""Added to ranks before they are inverted (reciprocal rank fusion, Cormack et al., 2009)."""
WEIGHT = 1.0
"""What a rank among definitions weighs against one among windows; chosen on the tuning halves of the benchmark."""


@dataclass(frozen=True, slots=True)
class DeepSearch:
    """The definitions of a workspace, looked up by the vector of a query."""

    tables: Sequence[DeepTable]
    encoder: Encoder
    where: LineFilter | None
    only: LineKinds
    max_distance: float | None = None
    weight: float = WEIGHT

    @classmethod
    def of(
        cls,
        workspace: Workspace,
        encoder: Encoder,
        where: LineFilter | None,
        only: LineKinds,
        max_distance: float | None,
    ) -> DeepSearch:
        """The definitions of all tenants that have any."""
        model = workspace.deep_model
        tables = [workspace.deep(tenant, model) for tenant in workspace.tenants()] if model else []
        relative = relative_to_sources(workspace, where) if where else None
        return cls([table for table in tables if table.exists()], encoder, relative, only, max_distance)

    def find(self, query: str) -> list[tuple[str, str, str, Definition]]:
        """``(entity, path, hash, definition)`` of the definitions nearest to ``query``, best first, each once."""
        vector = self.encoder.embed([query])[0]
        sql = self.where.to_sql() if self.where else None
        found = [table.nearest(vector, CANDIDATE_DEFINITIONS, sql) for table in self.tables]
        if not found:
            return []
        rows = pa.concat_tables(found).sort_by("distance").slice(0, CANDIDATE_DEFINITIONS)
        places = ((row["entity"], row["path"], row["hash"], _definition(row)) for row in rows.to_pylist())
        return list(dict.fromkeys(places))


def joined(
    windows: Sequence[Window],
    query: str,
    vector: NDArray[np.float32],
    deep: DeepSearch,
    tables: Sequence[LineQuery],
    embedder: Embedder,
) -> list[Window]:
    """``windows``, best first, and the definitions that ``deep`` finds, by the sum of their inverted ranks.

    A window of a definition that is found gains; one that has no window gets one at the line of its name. Those of
    documents that have changed since are left out. Raises StorageError, CorruptFile.
    """
    found = deep.find(query)
    if not found:
        return list(windows)
    add_definitions(tables, windows)
    scores: dict[int, float] = {}
    first_of: dict[tuple[str, str, Definition], int] = {}
    result = list(windows)
    for rank, window in enumerate(windows):
        scores[rank] = 1 / (RANK_OFFSET + rank)
        if window.definition is not None:
            first_of.setdefault((window.entity, window.path, window.definition), rank)
    new = _windows(found, tables, vector, embedder, deep)
    for rank, (entity, path, _, definition) in enumerate(found):
        gain = deep.weight / (RANK_OFFSET + rank)
        known = first_of.get((entity, path, definition))
        if known is not None:
            scores[known] += gain
        elif rank in new:
            scores[len(result)] = gain
            result.append(new[rank])
    return [result[at] for at in sorted(scores, key=lambda at: -scores[at])]


def _windows(
    found: Sequence[tuple[str, str, str, Definition]],
    tables: Sequence[LineQuery],
    vector: NDArray[np.float32],
    embedder: Embedder,
    deep: DeepSearch,
) -> dict[int, Window]:
    """A window at the line of each definition by its rank, where the document is as it was, and ``deep`` allows it."""
    places = [(entity, path, definition.line) for entity, path, _, definition in found]
    known: dict[tuple[str, str, int], tuple[str, str]] = {}
    for table in tables:
        known |= table.lines_at(places)
    texts = [known[place][0] if place in known else "" for place in places]
    distances = 1 - embedder.embed(texts) @ vector
    farthest = np.inf if deep.max_distance is None else deep.max_distance
    windows: dict[int, Window] = {}
    for rank, ((entity, path, content, definition), place) in enumerate(zip(found, places, strict=True)):
        if place not in known or known[place][1] != content or distances[rank] > farthest:
            continue
        if not deep.only.allow(definition, definition.line, path):
            continue
        row: dict[str, Any] = {"entity": entity, "path": path, "hash": content, "line_number": definition.line}
        row |= {"distance": float(distances[rank]), "text": texts[rank], "definition": definition, "outlined": True}
        windows[rank] = Window.around(row)
    return windows


def _definition(row: dict[str, Any]) -> Definition:
    return Definition(row["kind"], row["name"], row["line"], row["first"], row["last"])

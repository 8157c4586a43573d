"""Joins the windows of a search with the definitions that a transformer finds, by their scores (decision 0016)."""

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
from driftline.tasks.search.windows import Window, by_score

CANDIDATE_DEFINITIONS = 60
"""Definitions looked up by their vectors."""
JOINED_WINDOWS = 50
"""Windows of words and meaning that are joined with them."""
WEIGHT_OF_CODE, WEIGHT_OF_PROSE = 60.0, 20.0
"""What the cosine of a definition, or of a section, weighs against a score by words and meaning; chosen on the tuning
halves of the benchmark."""


@dataclass(frozen=True, slots=True)
class Place:
    """A definition of a document with this ``hash``."""

    entity: str
    path: str
    hash: str
    definition: Definition


@dataclass(frozen=True, slots=True)
class DeepSearch:
    """The definitions of a workspace, looked up by the vector of a query."""

    tables: Sequence[DeepTable]
    encoder: Encoder
    where: LineFilter | None
    only: LineKinds
    max_distance: float | None = None

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

    def find(self, query: str) -> dict[Place, float]:
        """The definitions nearest to ``query``, best first, each with its cosine."""
        vector = self.encoder.embed([query])[0]
        sql = self.where.to_sql() if self.where else None
        found = [table.nearest(vector, CANDIDATE_DEFINITIONS, sql) for table in self.tables]
        if not found:
            return {}
        rows = pa.concat_tables(found).sort_by("distance").slice(0, CANDIDATE_DEFINITIONS)
        nearest: dict[Place, float] = {}
        for row in rows.to_pylist():
            definition = Definition(row["kind"], row["name"], row["line"], row["first"], row["last"])
            nearest.setdefault(Place(row["entity"], row["path"], row["hash"], definition), 1 - row["distance"])
        return nearest


def joined(
    windows: Sequence[Window],
    found: dict[Place, float],
    vector: NDArray[np.float32],
    deep: DeepSearch,
    tables: Sequence[LineQuery],
    embedder: Embedder,
) -> list[Window]:
    """``windows``, best first, and the definitions that ``deep`` found, by their joined scores, which they get.

    The best window of a definition that is found gains what the transformer says of it beyond the last one found; a
    definition without a window gets one at the line of its name, and what the last of ``windows`` has besides. Those of
    documents that have changed since are left out. Raises StorageError, CorruptFile.
    """
    if not found:
        return list(windows)
    least = min(found.values())
    gains = {place: _weight(place.definition) * (cosine - least) for place, cosine in found.items()}
    add_definitions(tables, windows)
    base = min((window.score for window in windows), default=0.0)
    places = {(place.entity, place.path, place.definition): place for place in found}
    for window in windows:
        place = places.pop((window.entity, window.path, window.definition), None) if window.definition else None
        window.score += gains[place] if place else 0.0
    new = _windows([*places.values()], tables, vector, embedder, deep)
    for place, window in new.items():
        window.score = base + gains[place]
        window.attainable = max((each.attainable for each in windows), default=WEIGHT_OF_CODE)
    return by_score([*windows, *new.values()])


def _weight(definition: Definition) -> float:
    return WEIGHT_OF_CODE if definition.is_code else WEIGHT_OF_PROSE


def _windows(
    found: Sequence[Place],
    tables: Sequence[LineQuery],
    vector: NDArray[np.float32],
    embedder: Embedder,
    deep: DeepSearch,
) -> dict[Place, Window]:
    """A window at the line of each definition, where the document is as it was, and ``deep`` allows it."""
    lines = [(place.entity, place.path, place.definition.line) for place in found]
    known: dict[tuple[str, str, int], tuple[str, str]] = {}
    for table in tables:
        known |= table.lines_at(lines)
    texts = [known[line][0] if line in known else "" for line in lines]
    distances = 1 - embedder.embed(texts) @ vector if texts else np.zeros(0)
    farthest = np.inf if deep.max_distance is None else deep.max_distance
    windows: dict[Place, Window] = {}
    for place, line, text, distance in zip(found, lines, texts, distances.tolist(), strict=True):
        definition = place.definition
        if line not in known or known[line][1] != place.hash or distance > farthest:
            continue
        if not deep.only.allow(definition, definition.line, place.path):
            continue
        row: dict[str, Any] = {"entity": place.entity, "path": place.path, "hash": place.hash}
        row |= {"line_number": definition.line, "distance": distance, "text": text}
        windows[place] = Window.around(row | {"definition": definition, "outlined": True})
    return windows

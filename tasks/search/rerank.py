"""Rerank windows with a transformer, and merge them with its definition hits by score (decision 0016)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.storage.defaults import DEFAULT_RERANKED, MAX_RERANKED
from driftline.storage.embedding import Embedder
from driftline.storage.errors import UsageError
from driftline.storage.lines.definition_table import DeepTable
from driftline.storage.lines.line_filter import LineFilter
from driftline.storage.lines.outline import Definition
from driftline.storage.lines.table_searcher import Passage, TableSearcher
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.filters import LineKinds, relative_to_sources
from driftline.tasks.search.hits import add_definitions
from driftline.tasks.search.ranking import FoundLine, Window, by_score

LINES_AROUND, HEAD_LINES = 3, 6
"""How many lines to read on each side of a window, and from the head of its definition if that is further up."""
WEIGHT_OF_COSINE = 25.0
"""The weight of the cosine relative to a hybrid score; chosen on the tuning halves of the benchmark."""
WEIGHT_IN_VECTOR_MODE = 1.0
"""The same weight in ``vector`` mode, where scores are cosines."""


class Encoder(Protocol):
    """Embeds queries and windows the same way."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the unit vectors of ``texts`` as ``(n, dim) float32``."""


def windows_to_rerank(rerank: bool | int) -> int:
    """Return how many windows to rerank: DEFAULT_RERANKED for True, 0 for False. Raises UsageError."""
    count = DEFAULT_RERANKED if rerank is True else int(rerank)
    if not 0 <= count <= MAX_RERANKED:
        raise UsageError(f"rerank must be between 0 and {MAX_RERANKED} windows", str(count))
    return count


def weight_in(mode: str) -> float:
    """Return the weight of the cosine in this mode."""
    return WEIGHT_IN_VECTOR_MODE if mode == "vector" else WEIGHT_OF_COSINE


def reranked(
    windows: Sequence[Window], query: str, tables: Sequence[TableSearcher], encoder: Encoder, weight: float
) -> list[Window]:
    """Sort ``windows`` by their score plus ``weight`` times the cosine between ``query`` and their text.

    The best comes first. The cosine alone would prefer text that resembles the question over answers.
    """
    if len(windows) < 2:
        return list(windows)
    add_definitions(tables, windows)
    texts = texts_of(windows, tables)
    distinct = {text: at for at, text in enumerate(dict.fromkeys(texts))}  # windows in one definition share its text
    vectors = encoder.embed([query, *distinct])
    cosines = (vectors[1:] @ vectors[0])[[distinct[text] for text in texts]]
    # Nonnegative gains keep them ahead of windows that are not reranked.
    gains = (weight * (cosines - cosines.min())).tolist()
    # An answer need not share words with the question.
    scored = (
        replace(window, score=window.score + gain, covered=1.0) for window, gain in zip(windows, gains, strict=True)
    )
    return sorted(scored, key=lambda window: -window.score)


def texts_of(windows: Sequence[Window], tables: Sequence[TableSearcher]) -> list[str]:
    """Return each window's text for the encoder: its definition's name and head, its lines, and its path.

    The lines come from the index.
    """
    from driftline.tasks.embedding.transformer import FOLDERS, as_words  # other searches do not load it

    parts = [_passages(window) for window in windows]
    known: dict[tuple[str, str, int], str] = {}
    for table in tables:
        for row in table.passages([part for each in parts for part in each]).to_pylist():
            known[row["entity"], row["path"], row["line_number"]] = row["text"]
    found = []
    for window, passages in zip(windows, parts, strict=True):
        name = window.definition.name if window.definition else ""
        locations = [(part.entity, part.path, line) for part in passages for line in range(part.first, part.last + 1)]
        text = " ".join(as_words(known[location]) for location in locations if location in known)
        folders = os.path.splitext(window.path)[0].split("/")[-FOLDERS:]
        found.append(f"{as_words(name)} . {text} . {as_words(' '.join(folders))}")
    return found


def _passages(window: Window) -> list[Passage]:
    """Return the lines around a window, inside its definition, preceded by the definition's head."""
    first, last = max(0, window.first - LINES_AROUND), window.last + LINES_AROUND
    definition = window.definition
    head: list[Passage] = []
    if definition is not None and definition.is_code:
        if definition.first <= window.first:
            first = max(first, definition.first)
        if window.last <= definition.last:
            last = min(last, definition.last)
        if definition.first < first:
            end = min(definition.first + HEAD_LINES, first) - 1
            head.append(Passage(window.entity, window.path, definition.first, end))
    return [*head, Passage(window.entity, window.path, first, last)]


DEEP_DEFINITIONS = 60
"""Number of definitions to look up by vector."""
JOINED_WINDOWS = 50
"""Number of windows from the hybrid search to join with the definitions."""
WEIGHT_OF_CODE, WEIGHT_OF_PROSE = 60.0, 20.0
"""The weight of a definition's or section's cosine relative to a hybrid score.

Chosen on the tuning halves of the benchmark.
"""


@dataclass(frozen=True, slots=True)
class DefinitionKey:
    """A definition of a document with this ``hash``."""

    entity: str
    path: str
    hash: str
    definition: Definition


@dataclass(frozen=True, slots=True)
class DeepSearch:
    """Looks up a workspace's definitions by query vector."""

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
        """Open the definitions of all tenants that have any."""
        model = workspace.deep_model
        tables = [workspace.deep(tenant, model) for tenant in workspace.tenants()] if model else []
        relative = relative_to_sources(workspace, where) if where else None
        return cls([table for table in tables if table.exists()], encoder, relative, only, max_distance)

    def find(self, query: str) -> dict[DefinitionKey, float]:
        """Return the definitions nearest to ``query``, best first, each with its cosine."""
        vector = self.encoder.embed([query])[0]
        sql = self.where.to_sql() if self.where else None
        found = [table.nearest(vector, DEEP_DEFINITIONS, sql) for table in self.tables]
        if not found:
            return {}
        rows = pa.concat_tables(found).sort_by("distance").slice(0, DEEP_DEFINITIONS)
        nearest: dict[DefinitionKey, float] = {}
        for row in rows.to_pylist():
            definition = Definition(row["kind"], row["name"], row["line"], row["first"], row["last"])
            nearest.setdefault(DefinitionKey(row["entity"], row["path"], row["hash"], definition), 1 - row["distance"])
        return nearest


def joined(
    windows: Sequence[Window],
    found: dict[DefinitionKey, float],
    vector: NDArray[np.float32],
    deep: DeepSearch,
    tables: Sequence[TableSearcher],
    embedder: Embedder,
) -> list[Window]:
    """Join ``windows``, best first, with the definitions in ``found``, and sort them by joined score.

    A found definition's best window gains the difference between its cosine and the cosine of the last definition
    found. A definition with no window gets one at the line of its name, with the score of the last of ``windows``
    added. Definitions in changed documents are dropped. Raises StorageError, CorruptFile.
    """
    if not found:
        return list(windows)
    least = min(found.values())
    gains = {location: _weight(location.definition) * (cosine - least) for location, cosine in found.items()}
    add_definitions(tables, windows)
    base = min((window.score for window in windows), default=0.0)
    locations = {(location.entity, location.path, location.definition): location for location in found}
    for window in windows:
        location = locations.pop((window.entity, window.path, window.definition), None) if window.definition else None
        window.score += gains[location] if location else 0.0
    new = _windows([*locations.values()], tables, vector, embedder, deep)
    for location, window in new.items():
        window.score = base + gains[location]
        window.max_score = max((each.max_score for each in windows), default=WEIGHT_OF_CODE)
    return by_score([*windows, *new.values()])


def _weight(definition: Definition) -> float:
    return WEIGHT_OF_CODE if definition.is_code else WEIGHT_OF_PROSE


def _windows(
    found: Sequence[DefinitionKey],
    tables: Sequence[TableSearcher],
    vector: NDArray[np.float32],
    embedder: Embedder,
    deep: DeepSearch,
) -> dict[DefinitionKey, Window]:
    """Return a window at each definition's line, if its document is unchanged and it passes the filters of ``deep``."""
    lines = [(location.entity, location.path, location.definition.line) for location in found]
    known: dict[tuple[str, str, int], tuple[str, str]] = {}
    for table in tables:
        known |= table.lines_at(lines)
    texts = [known[line][0] if line in known else "" for line in lines]
    distances = 1 - embedder.embed(texts) @ vector if texts else np.zeros(0)
    farthest = np.inf if deep.max_distance is None else deep.max_distance
    windows: dict[DefinitionKey, Window] = {}
    for location, line, text, distance in zip(found, lines, texts, distances.tolist(), strict=True):
        definition = location.definition
        if line not in known or known[line][1] != location.hash or distance > farthest:
            continue
        if not deep.only.allow(definition, definition.line, location.path):
            continue
        document = location.entity, location.path, location.hash
        hit = FoundLine(document, definition.line, 0, text, distance, 1 - distance, -distance)
        windows[location] = Window.around(hit._replace(definition=definition, outlined=True))
    return windows

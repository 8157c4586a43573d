"""Search memory lexically and semantically: embed text, score entries, and confirm every hit against the catalog."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from driftline.storage.defaults import Mode
from driftline.storage.embedding import Embedder
from driftline.storage.entities import Entity
from driftline.storage.errors import shortened
from driftline.storage.lines.tokenizer import keywords, language_of
from driftline.storage.memory.catalog.entry_queries import EntryRow
from driftline.storage.memory.catalog.entry_writes import shown
from driftline.storage.memory.catalog.outbox import OutboxRow
from driftline.storage.memory.vectors import (
    Found,
    MemoryExplanation,
    VectorFilter,
    VectorRow,
    VectorTable,
    vector_tables,
)
from driftline.storage.objects.store import ObjectStore


def relevance(entry: Found, mode: Mode) -> float:
    """Return the score that hits are sorted by, at most 1: from the cosine and the word match.

    A word match closes its share of the gap between the cosine and 1; with no match, the score is the cosine.
    """
    cosine = 1.0 - entry.distance
    match mode:
        case "vector":
            return cosine
        case "text":
            return entry.match
        case _:
            return cosine + entry.match * (1.0 - cosine)


def ranked(
    near: Iterable[Found], worded: Iterable[Found], mode: Mode, max_distance: float | None = None
) -> list[Found]:
    """Return the distinct entries from both searches within ``max_distance``, best first.

    Ties are sorted by distance, then by key.
    """
    by_entry = {(entry.key, entry.rev): entry for entry in worded}
    for entry in near:  # keep the distance that Lance sorted by
        known = by_entry.get((entry.key, entry.rev))
        by_entry[entry.key, entry.rev] = entry._replace(match=known.match if known else 0.0)
    allowed = (each for each in by_entry.values() if max_distance is None or each.distance <= max_distance)
    return sorted(allowed, key=lambda entry: (-relevance(entry, mode), entry.distance, entry.key))


TEXT_FIELD = "text_field"
"""The metadata field that selects a text field of the value; without it, the whole value is embedded."""
EMBED_AT_ONCE = 1_000
WORD_CANDIDATES = 100
"""Number of top word matches for which the distance is computed as well."""
WEAK_SCORE = 0.15
"""Hybrid and vector searches note lower best scores. With the default model, half of 20 queries about other subjects
are below it, and none of 20 paraphrases.
"""
SHOWN_FIELDS = 10
MAX_ROUNDS = 6
"""Maximum number of searches per query; each fetches four times as many hits, until the catalog confirms enough."""

_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True)
class MemoryHit(Generic[_Entry]):
    """A matching entry. Hits are sorted by ``score`` (see ``relevance``); ``rank`` counts from 1.

    ``distance`` is 1 - the cosine of its text and the query; in ``vector`` mode, ``score`` is 1 - distance.
    """

    record: _Entry
    score: float
    rank: int
    distance: float = 0.0


class MemoryHits(list[MemoryHit[_Entry]]):
    """A search's hits, best first. ``notes`` say why there are none, or no good ones; ``explanation`` describes the
    search if it was requested.
    """

    explanation: MemoryExplanation | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryQuery:
    """A memory search over the entries in ``within``'s tenant that pass ``where``."""

    query: str
    top_k: int
    within: Entity
    where: VectorFilter
    mode: Mode = "hybrid"
    max_distance: float | None = None
    explain: bool = False


@dataclass(frozen=True, slots=True)
class MemoryResults:
    """The entries found by a search, best first, and its explanation."""

    found: list[tuple[EntryRow, Found]]
    explanation: MemoryExplanation


class MemorySearch:
    """The vectors of all tenants, one table each. ``values`` reads the values of entries, in order."""

    def __init__(
        self,
        objects: ObjectStore,
        embedder: Callable[[], Embedder],
        values: Callable[[Sequence[EntryRow]], list[Any]],
    ) -> None:
        self._objects = objects
        self._load = embedder
        self._loaded: Embedder | None = None
        self._values = values

    @property
    def embedder(self) -> Embedder:
        """The embedder, loaded on first use."""
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def table(self, tenant: Entity) -> VectorTable:
        """Return a tenant's table for this embedder; it may not exist yet."""
        return VectorTable(self._objects, tenant, self.embedder.fingerprint)

    def apply(self, tenant: Entity, changes: Sequence[OutboxRow]) -> None:
        """Apply ``changes`` to a tenant's vectors, in one commit. Raises CommitConflict, StorageError."""
        latest = {change.key: change.id for change in changes}
        rows = self._vectors([change.row for change in changes if change.row is not None])
        own = self.table(tenant)
        own.apply(latest, rows, changes[-1].id, self.embedder.dim)
        for other in vector_tables(self._objects, tenant):  # from other embeddings' tables, rows are only removed
            if other.fingerprint != own.fingerprint and other.exists():
                other.apply(latest, [], changes[-1].id, 0)

    def rebuild(self, tenant: Entity, pages: Callable[[], Iterable[Sequence[EntryRow]]], last: int) -> None:
        """Re-embed all of a tenant's entries, and replace its vectors in one commit."""
        self.table(tenant).replace_all(lambda: map(self._vectors, pages()), last, self.embedder.dim)

    def find(self, request: MemoryQuery, check: Callable[[Sequence[str]], Mapping[str, EntryRow]]) -> MemoryResults:
        """Return the ``top_k`` best entries for ``request`` that ``check`` confirms, best first."""
        words = keywords(request.query) if request.mode != "vector" else []
        language = language_of(request.query)
        explanation = MemoryExplanation(request.mode, words)
        if request.top_k == 0 or not request.query.strip():
            return MemoryResults([], explanation)
        table = self.table(request.within)
        if not table.exists():
            return MemoryResults([], explanation)
        with explanation.timed("embedding"):
            vector = self.embedder.embed_query(request.query)
        if request.explain:
            table.describe(request.where, explanation)
        confirmed: list[tuple[EntryRow, Found]] = []
        fetch, by_words = request.top_k, max(request.top_k, WORD_CANDIDATES)
        for _ in range(MAX_ROUNDS):
            with explanation.timed("searching"):
                near = table.nearest(vector, fetch, request.where) if request.mode != "text" else []
                worded = table.matching(words, language, vector, by_words, request.where)
            best = ranked(near, worded, request.mode, request.max_distance)
            with explanation.timed("confirming"):
                rows = check([hit.key for hit in best])
            # A hit is valid only if the entry has not changed since it was embedded.
            confirmed = [(rows[hit.key], hit) for hit in best if hit.key in rows and rows[hit.key].rev == hit.rev]
            explanation.by_meaning, explanation.by_words = len(near), len(worded)
            explanation.candidates, explanation.dropped = len(best), len(best) - len(confirmed)
            if len(confirmed) >= request.top_k or (len(near) < fetch and len(worded) < by_words):
                break
            if request.max_distance is not None and near and near[-1].distance > request.max_distance:
                break
            fetch, by_words = 4 * fetch, 4 * by_words
        return MemoryResults(confirmed[: request.top_k], explanation)

    def _vectors(self, rows: Sequence[EntryRow]) -> list[VectorRow]:
        """Return the ``rows`` with vectors and words; without text, or with no known token, the vector is empty."""
        embedded: list[VectorRow] = []
        for start in range(0, len(rows), EMBED_AT_ONCE):
            some = rows[start : start + EMBED_AT_ONCE]
            texts = [text_of(v, row.metadata) for v, row in zip(self._values(some), some, strict=True)]
            with_text = [text for text in texts if text]
            vectors = iter(self.embedder.embed(with_text, np.float16) if with_text else ())
            for row, text in zip(some, texts, strict=True):
                vector = next(vectors) if text else np.empty(0, np.float16)
                known = vector if vector.any() else vector[:0]
                words = f"{shown(row.key)} {text}".strip()
                embedded.append(VectorRow(row.key, row.rev, row.path, row.metadata, known, words))
        return embedded

    def why_empty(self, request: MemoryQuery) -> list[str]:
        """Explain why a search found nothing; only entries in its scopes affect the explanation."""
        if not request.query.strip():
            return ["The query is blank."]
        table, everything = self.table(request.within), replace(request.where, fields=None)
        if not table.exists() or not table.count(everything):
            return [NOTHING_THERE]
        fields = request.where.fields or {}
        if fields and not table.count(request.where):
            known = table.sample_fields(everything)
            alone = (
                name for name, value in fields.items() if not table.count(replace(everything, fields={name: value}))
            )
            notes = [_unmatched(name, fields[name], known) for name in alone]
            return notes or ["Each field of the filter matches an entry, but no entry matches all of them."]
        if request.mode == "text":
            return ["No entry contains a word of the query."]
        vector = self.embedder.embed_query(request.query)
        near = table.nearest(vector, 1, request.where)
        if not near:
            return ["The model knows no word of the query, and no entry contains one."]
        return (
            [f"The nearest entry has the distance {near[0].distance:.2f}."] if request.max_distance is not None else []
        )


NOTHING_THERE = "No entry is in the scope of the search."


def notes_on(hits: Sequence[MemoryHit[Any]], search: MemorySearch, requests: Sequence[MemoryQuery]) -> tuple[str, ...]:
    """Explain why the ``requests`` of a search, one per tenant, found nothing, or nothing good."""
    if not hits:
        found = (note for request in requests if request.top_k for note in search.why_empty(request))
        notes = tuple(dict.fromkeys(found))
        return tuple(note for note in notes if note != NOTHING_THERE) or notes  # another tenant has entries
    if requests[0].mode == "text" or hits[0].score >= WEAK_SCORE:
        return ()
    return (f"No entry is a good match: the best score is {round(hits[0].score, 2) + 0.0:.2f}.",)


def _unmatched(name: str, value: object, known: Mapping[str, Any]) -> str:
    if name in known:
        asked, other = (shortened(json.dumps(each, ensure_ascii=False)) for each in (value, known[name]))
        return f"No entry has {shortened(name)} = {asked}; another value is {other}."
    fields = ", ".join(map(shortened, sorted(known)[:SHOWN_FIELDS]))
    names = f"known fields are: {fields}" if known else "entries have no metadata"
    return f"No entry has the metadata field {shortened(name)}; {names}."


def text_of(value: Any, metadata: Mapping[str, Any]) -> str:
    """Return the text to embed: the whole value, or the field of the value selected by the metadata."""
    name = metadata.get(TEXT_FIELD)
    if isinstance(name, str):
        value = value.get(name) if isinstance(value, dict) else None
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return " ".join(text.split())

"""Store the vectors and words of a tenant's memory in a Lance table: one row per entry (DESIGN, "Memory").

The commit marker, a row with an empty key, holds the highest applied outbox id. Every commit rewrites it, so concurrent
commits conflict, and each change is applied once and in order, regardless of which process flushes it.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.storage.entities import Entity, directories
from driftline.storage.errors import StorageError
from driftline.storage.lance.failures import (
    first_line,
    index_stats,
    is_conflict,
    is_network_failure,
    reading,
    retried,
    with_indexes,
    write_failed,
)
from driftline.storage.lance.lance_table import (
    EXACT_SEARCH_ROWS,
    VECTOR,
    VECTOR_TYPE,
    LanceTable,
    create_vector_index,
    is_indexable,
    is_one_of,
    quote,
    without_rows,
)
from driftline.storage.layout import table_fingerprint, tables_directory
from driftline.storage.lines.tokenizer import TOKENIZER, distinct_terms, index_terms, name_parts, normalize_query, terms
from driftline.storage.objects.store import ObjectStore

if TYPE_CHECKING:
    from lance import FragmentMetadata, LanceDataset


@dataclass(slots=True)
class MemoryExplanation:
    """Statistics of a search.

    ``words`` lists the query's words. ``entries`` counts the entries, and ``matches`` counts the entries that pass the
    filter. ``index`` is the type of the vector index, None if entries were compared one by one. ``unindexed_words`` is
    the number of entries that the word index does not cover. ``by_words`` and ``by_meaning`` count the entries found by
    the lexical and the semantic search, ``candidates`` counts those found by either, and ``dropped`` counts the
    candidates that the catalog did not confirm. ``seconds`` is keyed by phase.
    """

    mode: str
    words: list[str] = field(default_factory=list)
    entries: int = 0
    matches: int = 0
    index: str | None = None
    unindexed_words: int = 0
    by_words: int = 0
    by_meaning: int = 0
    candidates: int = 0
    dropped: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Convert the statistics to JSON.

        Returns:
            The object printed by ``memory search --explain --json``.

        Examples:
            >>> driftline.MemoryExplanation("text").to_dict()["mode"]
            'text'
        """
        return asdict(self)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the duration of a ``with`` block to ``seconds[phase]``.

        Args:
            phase: the name of the phase.

        Returns:
            A context manager.

        Examples:
            >>> figures = driftline.MemoryExplanation("text")
            >>> with figures.timed("words"):
            ...     pass
            >>> [*figures.seconds]
            ['words']
        """
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - started


def added_up(explanations: Sequence[MemoryExplanation]) -> MemoryExplanation | None:
    """Sum the explanations of searches of several tenants for the same words, or return None if there are none."""
    if not explanations:
        return None
    total = MemoryExplanation(explanations[0].mode, explanations[0].words)
    for each in explanations:
        for name in ("entries", "matches", "unindexed_words", "by_words", "by_meaning", "candidates", "dropped"):
            setattr(total, name, getattr(total, name) + getattr(each, name))
        total.index = total.index or each.index
        for phase, seconds in each.seconds.items():
            total.seconds[phase] = total.seconds.get(phase, 0.0) + seconds
    return total


KEYS_PER_LOOKUP = 2_000
MIN_INDEXED_ROWS = 10_000
MIN_VECTOR_INDEX_ROWS = 100_000
_INDEXES: dict[str, Literal["BTREE", "LABEL_LIST"]] = {"key": "BTREE", "places": "LABEL_LIST", "fields": "LABEL_LIST"}
_MARKER = "key = ''"
_WORDS = pa.field("words", pa.string())
_TINY = float(np.finfo(np.float32).tiny)
_TEXT = "words_idx"
MAX_WORD_CHARACTERS = 8_192
"""Beyond this position in the text, each word is indexed only once."""
MAX_FURTHER_CHARACTERS = 65_536
"""Limit on the total length of the words that are indexed once; later words are not found."""
SAMPLE_ROWS = 1_000
"""Maximum number of entries read to explain why a filter matches nothing."""
MAX_UNINDEXED_WORDS = 20_000
"""Maximum number of unindexed rows that a search scans for words, at 5 microseconds each, before it skips them."""


def schema(dim: int) -> pa.Schema:
    """Return the schema of ``memory_embeddings``.

    - ``places``: the directories of the owner and its ancestors
    - ``fields``: the metadata fields, each as a JSON name and value
    - ``words``: the entry's key and text; beyond ``MAX_WORD_CHARACTERS``, only its distinct words
    - ``vector``: ``(dim,) float16``, null without a known word
    """
    return pa.schema(
        [
            pa.field("key", pa.string()),
            pa.field("rev", pa.int64()),
            pa.field("entity", pa.string()),
            pa.field("places", pa.list_(pa.string())),
            pa.field("fields", pa.list_(pa.string())),
            pa.field("vector", pa.list_(VECTOR_TYPE, dim)),
            _WORDS,
        ]
    )


@dataclass(frozen=True, slots=True)
class VectorRow:
    """An entry's unit vector, ``(dim,)``."""

    key: str
    rev: int
    path: str
    metadata: Mapping[str, Any]
    vector: NDArray[Any]
    words: str = ""


class Found(NamedTuple):
    """An entry found by a search: ``distance`` is 1 - cosine.

    ``match`` is the share, from 0 to 1, of the query's words that its key and text contain. Words that are rarer among
    the found entries have more weight.
    """

    key: str
    rev: int
    distance: float
    match: float = 0.0


@dataclass(frozen=True, slots=True)
class VectorFilter:
    """The conditions on a hit: it is at or below an entity of each tuple in ``scopes``, and matches all ``fields``.

    A field matches the given value, or any of a list of values. An empty list matches nothing.
    """

    scopes: tuple[tuple[Entity, ...], ...] = ()
    fields: Mapping[str, Any] | None = None

    def to_sql(self) -> str:
        """Return the filter as a Lance expression, with every value quoted."""
        parts = ["key <> ''", *(_has_any("places", [top.directory for top in tops]) for tops in self.scopes)]
        for name, expected in (self.fields or {}).items():
            values = expected if isinstance(expected, (list, tuple)) else [expected]
            parts.append(_has_any("fields", [field_tag(name, value) for value in values]))
        return " AND ".join(parts)


def field_tag(name: str, value: object) -> str:
    """Encode one metadata field as text; equal numbers have equal encodings."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps([name, value], separators=(",", ":"))


class VectorTable(LanceTable):
    """The ``memory_embeddings`` table of one tenant and one embedding fingerprint."""

    KIND = "memory"
    COLUMNS = tuple(schema(1).names)
    TITLE = "memory vectors"
    REPAIR = "Rebuild it: driftline memory rebuild"
    REBUILD = "Delete this folder, then run: driftline memory rebuild"

    # -- writing -----------------------------------------------------------------------------

    def apply(self, changed: Mapping[str, int], rows: Sequence[VectorRow], last: int, dim: int) -> None:
        """Remove the rows for the keys in ``changed``, add ``rows``, and record ``last`` as applied, in one version.

        ``changed`` maps each key to the id of its latest change; changes already applied according to the marker are
        skipped. Raises CommitConflict, StorageError, CorruptFile.
        """
        if not self.exists():
            if not rows:
                return
            self._prepare(dim)
        for dataset in self.commit_attempts():
            applied = _applied(dataset)
            due = {key for key, number in changed.items() if number > applied}
            if not due:
                return
            new_rows = [row for row in rows if row.key in due]
            filters = [_MARKER, *(is_one_of("key", some) for some in _lookups(sorted(due)))]
            removed, updated = without_rows(dataset, filters)
            added = self._fragments([*new_rows, _marker_row(last)], dataset.schema)
            if self._commit(dataset, removed, updated, added):
                return
        raise self.conflicted()

    @retried
    def index(self) -> None:
        """Create or extend the indexes, once the table is large enough to benefit from them.

        The caller holds the tenant's maintenance lease. Raises StorageError.
        """
        dataset = self.open()
        rows = dataset.count_rows()
        if rows < MIN_INDEXED_ROWS:
            return
        try:
            for name, stats in index_stats(dataset).items():
                if stats is None:
                    dataset.drop_index(name)  # rebuilt below
            dataset = self.open()
            known = {index.name for index in dataset.describe_indices()}
            self._index_words(dataset)
            for column, kind in _INDEXES.items():
                if f"{column}_idx" not in known:
                    dataset.create_scalar_index(column, kind, name=f"{column}_idx")
            if rows >= MIN_VECTOR_INDEX_ROWS and VECTOR not in known and is_indexable(dataset):
                create_vector_index(dataset)
            dataset.optimize.optimize_indices()
            self.sync_indexes(self.open())
        except OSError as error:
            raise StorageError(f"Could not build an index ({first_line(error)})", self.uri, "Try again.") from error

    def replace_all(self, pages: Callable[[], Iterable[Sequence[VectorRow]]], last: int, dim: int) -> None:
        """Replace all rows with ``pages``, in one version. Raises CommitConflict, StorageError, CorruptFile."""
        self._prepare(dim)
        for dataset in self.commit_attempts():
            added = self._fragments([_marker_row(max(last, _applied(dataset)))], dataset.schema)
            for rows in pages():
                added += self._fragments(rows, dataset.schema)
            fragments: list[Any] = list(dataset.get_fragments())
            if self._commit(dataset, [fragment.fragment_id for fragment in fragments], [], added):
                return
        raise self.conflicted()

    def _prepare(self, dim: int) -> None:
        # Two first commits conflict only if both replace a marker.
        self._create(_to_table([_marker_row(0)], schema(dim)))
        with contextlib.suppress(OSError):  # another process or the next compaction builds it
            self._index_words(self.open())

    def _index_words(self, dataset: LanceDataset) -> None:
        known = {index.name for index in dataset.describe_indices()}
        if _TEXT not in known:
            dataset.create_scalar_index(_WORDS.name, "INVERTED", name=_TEXT, with_position=False, **TOKENIZER)

    def _fragments(self, rows: Sequence[VectorRow], columns: pa.Schema) -> list[FragmentMetadata]:
        return self.write(_to_table(rows, columns)) if rows else []

    def _commit(
        self,
        dataset: LanceDataset,
        removed: list[int],
        updated: list[FragmentMetadata],
        added: list[FragmentMetadata],
    ) -> bool:
        """Commit, and return whether that succeeded.

        Returns False after a conflict or an unknown outcome; the marker shows which it was. Raises StorageError for any
        other failure.
        """
        try:
            self._replace_rows(dataset, removed, updated, added)
        except OSError as error:  # includes CommitConflictError
            if is_conflict(error) or is_network_failure(error):
                return False
            raise write_failed("Could not commit the memory vectors", self.uri, error) from error
        return True

    # -- reading -----------------------------------------------------------------------------

    def nearest(self, query: NDArray[np.float32], limit: int, where: VectorFilter) -> list[Found]:
        """Return the entries nearest to ``query`` (``(dim,)``), best first. The filter applies before the search."""
        length = np.linalg.norm(query)
        if limit == 0 or not length > 0:
            return []
        rows = self.nearest_rows(["key", "rev"], query / length, limit, where.to_sql(), EXACT_SEARCH_ROWS)
        hits = [Found(**row) for row in rows.to_pylist()]
        return sorted(hits, key=lambda hit: (hit.distance, hit.key))

    def matching(
        self, words: Sequence[str], language: str, query: NDArray[np.float32], limit: int, where: VectorFilter
    ) -> list[Found]:
        """Return the entries that best match ``words``, with their distances from ``query``, best first.

        ``language`` is the language of the words (``language_of``); ``where`` restricts the entries.

        Returns nothing if the table's words are not indexed yet, or the index is unusable.
        """
        from lance.query import MatchQuery

        dataset = self.open(cached=True)
        if limit == 0 or not words or all(index.name != _TEXT for index in dataset.describe_indices()):
            return []

        def search(indexed: bool) -> pa.Table | None:
            if not indexed:
                return None
            unindexed = int(dataset.stats.index_stats(_TEXT)["num_unindexed_rows"])
            return dataset.scanner(
                columns=["key", "rev", "vector", _WORDS.name, "_score"],
                full_text_query=MatchQuery(normalize_query(words, language), _WORDS.name),
                filter=where.to_sql(),
                prefilter=True,
                limit=limit,
                fast_search=unindexed > MAX_UNINDEXED_WORDS,
            ).to_table()

        rows = with_indexes(dataset, self.TITLE, search)
        if rows is None or not len(rows):
            return []
        distances = _distances(rows["vector"].combine_chunks(), query)
        matches = _matches(words, language, rows[_WORDS.name].to_pylist())
        columns = (rows["key"].to_pylist(), rows["rev"].to_pylist(), distances.tolist(), matches.tolist())
        return sorted(map(Found, *columns), key=lambda hit: (-hit.match, hit.key))

    def describe(self, where: VectorFilter, explanation: MemoryExplanation) -> None:
        """Fill in the statistics of the table and of the entries that pass ``where``."""
        dataset = self.open()
        kinds = {index.name: index.index_type for index in dataset.describe_indices()}
        explanation.entries = self._counted(dataset, "key <> ''")
        explanation.matches = self._counted(dataset, where.to_sql())
        explanation.index = kinds.get(VECTOR) if explanation.matches > EXACT_SEARCH_ROWS else None
        if _TEXT in kinds:
            stats = with_indexes(
                dataset, self.TITLE, lambda indexed: dataset.stats.index_stats(_TEXT) if indexed else {}
            )
            explanation.unindexed_words = int(stats.get("num_unindexed_rows", 0))

    def _counted(self, dataset: LanceDataset, where: str) -> int:
        def count(indexed: bool) -> int:
            scanner = dataset.scanner(columns=["rev"], filter=where, use_scalar_index=indexed)
            return int(scanner.count_rows())

        return with_indexes(dataset, self.TITLE, count)

    @retried
    def revs(self) -> list[tuple[str, int]]:
        """Return the ``(key, rev)`` of every vector. Raises CorruptFile, StorageError."""
        with reading(self.TITLE, self.uri):
            rows = self.open().to_table(columns=["key", "rev"], filter=f"NOT ({_MARKER})")
        return list(zip(rows["key"].to_pylist(), rows["rev"].to_pylist(), strict=True))

    def count(self, where: VectorFilter | None = None) -> int:
        """Return the number of entries, by default all, that pass ``where``."""
        return self._counted(self.open(), (where or VectorFilter()).to_sql())

    @retried
    def sample_fields(self, where: VectorFilter) -> dict[str, Any]:
        """Return the metadata fields of up to ``SAMPLE_ROWS`` entries that pass ``where``, with one value of each."""
        with reading(self.TITLE, self.uri):
            rows = self.open().to_table(columns=["fields"], filter=where.to_sql(), limit=SAMPLE_ROWS)
        return dict(json.loads(tag) for tags in rows["fields"].to_pylist() for tag in tags)


def last_change(table: VectorTable) -> int:
    """Return the highest outbox id applied to ``table``; 0 if the table does not exist.

    Raises CorruptFile, StorageError.
    """
    return _applied(table.open()) if table.exists() else 0


def vector_tables(objects: ObjectStore, tenant: Entity) -> list[VectorTable]:
    """Return a tenant's tables, one for each embedding."""
    names = objects.list_dirs(tables_directory(tenant))
    fingerprints = (table_fingerprint(name, VectorTable.KIND) for name in names)
    return [VectorTable(objects, tenant, fingerprint) for fingerprint in fingerprints if fingerprint]


def _distances(vectors: pa.FixedSizeListArray, query: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return 1 - cosine of ``n`` vectors and ``query`` as ``(n,)``; 1 for a vector or query with no known words."""
    distances = np.ones(len(vectors), np.float32)
    known = vectors.is_valid().to_numpy(zero_copy_only=False)
    length = float(np.linalg.norm(query))
    if known.any() and length > 0:
        flat = vectors.drop_null().flatten().to_numpy(zero_copy_only=False).astype(np.float32)
        distances[known] -= flat.reshape(-1, len(query)) @ (query / length)
    return distances


def _matches(words: Sequence[str], language: str, texts: Sequence[str]) -> NDArray[np.float64]:
    """Return the ``match`` of each of ``n`` entries as ``(n,)``."""
    query_terms = distinct_terms(words, language)
    held = [set(terms(text, language)) for text in texts]
    holds = np.array([[term in some for term in query_terms] for some in held], np.float64).reshape(
        len(texts), len(query_terms)
    )
    weights = np.log1p(len(texts) / np.maximum(1.0, holds.sum(axis=0)))
    return np.asarray(holds @ weights / max(float(weights.sum()), _TINY), np.float64)


def _applied(dataset: LanceDataset) -> int:
    """Return the outbox id up to which changes are applied. Raises CorruptFile, StorageError, AccessDenied."""
    with reading(VectorTable.TITLE, dataset.uri):
        return max(dataset.to_table(columns=["rev"], filter=_MARKER)["rev"].to_pylist(), default=0)


def _marker_row(last: int) -> VectorRow:
    return VectorRow("", last, "", {}, np.empty(0))


def _to_table(rows: Sequence[VectorRow], columns: pa.Schema) -> pa.Table:
    values: dict[str, list[Any]] = {
        "key": [row.key for row in rows],
        "rev": [row.rev for row in rows],
        "entity": [row.path for row in rows],
        "places": [directories(row.path) if row.path else [] for row in rows],
        "fields": [[field_tag(name, value) for name, value in row.metadata.items()] for row in rows],
        "vector": [row.vector.astype(np.float16) if len(row.vector) else None for row in rows],
        _WORDS.name: [_words_for_index(row.words) for row in rows],
    }
    arrays = [pa.array(values[field.name], field.type) for field in columns]
    return pa.table(arrays, schema=columns)


def _words_for_index(text: str) -> str | None:
    start, further = text[:MAX_WORD_CHARACTERS], ""
    if len(text) > len(start):
        start = start[: start.rfind(" ") + 1] or start  # do not split a word
        words = dict.fromkeys(name_parts(text[len(start) :]))
        further = " ".join(words)[:MAX_FURTHER_CHARACTERS]
    kept = f"{start} {further}" if further else start
    return " ".join([kept, *index_terms(kept)]) or None


def _has_any(column: str, values: Sequence[str]) -> str:
    return f"array_has_any({column}, [{', '.join(map(quote, values))}])" if values else "false"


def _lookups(keys: Sequence[str]) -> Iterable[Sequence[str]]:
    return (keys[start : start + KEYS_PER_LOOKUP] for start in range(0, len(keys), KEYS_PER_LOOKUP))

"""Measure ``search_memory`` over many entries: its time, and the vector index's recall against exact search.

Each entry is three lines of an installed package. Entries are stored for ten projects, flushed and compacted.
``memory_store.py --search`` runs it.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any

import corpus
import measure
import numpy as np

from driftline.storage.entities import Entity
from driftline.storage.lance.lance_table import is_indexed
from driftline.storage.memory.memory_indexes import compact_indexes, compact_vectors
from driftline.storage.memory.store import MemoryItem, MemoryStore
from driftline.storage.memory.vectors import VectorTable, vector_tables
from driftline.tasks.embedding.embedder import WordTableEmbedder

LINES_PER_ENTRY = 3
PROJECTS = 10
AT_ONCE = 50_000
QUERIES = 40
TOP_K = 10
ACME = "org:acme"


def measure_search(entries: int, count: int, verdict: measure.Verdict) -> None:
    """Fill a store and measure ``count`` searches of the whole store and of one project."""
    embedder = WordTableEmbedder.open()
    with measure.scratch() as folder:
        url = f"sqlite:///{folder / 'catalog.sqlite'}"
        with MemoryStore(str(folder / "workspace"), catalog_url=url, embedder=lambda: embedder) as store:
            store._flusher.notify = lambda rows: None  # type: ignore[method-assign]
            print(f"search_memory, {entries:,} entries", flush=True)
            texts = _load(store, entries)
            (table,) = vector_tables(store.workspace.objects, Entity.parse(ACME, ("org",)))
            kind = "an index" if is_indexed(table.open()) else "no index"
            print(f"  {table.count():,} entries with text, {kind} of vectors", flush=True)
            draw = random.Random(7)
            queries = [_query(draw.choice(texts), draw) for _ in range(count)]
            _times(store, queries, verdict)
            verdict.at_least(
                "search_memory: recall@10 of the index", _recall(store, table, embedder, queries), 0.95, ""
            )


def _load(store: MemoryStore, entries: int) -> list[str]:
    started = time.perf_counter()
    texts: list[str] = []
    numbered = enumerate(islice(_texts(entries), entries))
    while some := list(islice(numbered, AT_ONCE)):
        store.store_many(MemoryItem(f"key-{n:09}", text, f"{ACME}/project:p{n % PROJECTS}") for n, text in some)
        store.flush()
        texts += [text for _, text in some[:: AT_ONCE // 100]]
    print(f"  stored and flushed in {time.perf_counter() - started:.0f} s", flush=True)
    started = time.perf_counter()
    tenant = store.hierarchy.entity(ACME)
    compact_indexes(store.workspace, tenant, 0)
    compact_vectors(store.workspace, tenant, timedelta(0))
    print(f"  compacted, with indexes of vectors and words, in {time.perf_counter() - started:.0f} s", flush=True)
    return texts


def _texts(entries: int) -> Iterator[str]:
    tree = corpus.packages(2 * LINES_PER_ENTRY * entries).path
    while True:
        for path in sorted(tree.rglob("*.py")):
            lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
            starts = range(0, len(lines), LINES_PER_ENTRY)
            yield from (" ".join(lines[start : start + LINES_PER_ENTRY]) for start in starts)


def _query(text: str, draw: random.Random) -> str:
    """Return a query made of some words of an entry."""
    words = text.split()
    return " ".join(draw.sample(words, min(4, len(words))))


def _times(store: MemoryStore, queries: Sequence[str], verdict: measure.Verdict) -> None:
    def each(**options: Any) -> list[float]:
        return _timed(lambda query: store.search_memory(query, TOP_K, **{"scope": ACME, **options}), queries)

    for what, seconds, target in (
        ("all, by words and meaning", each(), 1_000),
        ("all, by meaning", each(mode="vector"), 1_000),
        ("of a project, by words and meaning", each(scope=f"{ACME}/project:p3"), 500),
    ):
        verdict.at_most(f"search_memory: {what}, p50", statistics.median(seconds) * 1_000, target, "ms")
        p95 = statistics.quantiles(seconds, n=20, method="inclusive")[-1]
        verdict.at_most(f"search_memory: {what}, p95", p95 * 1_000, target, "ms")


def _timed(search: Callable[[str], object], queries: Sequence[str]) -> list[float]:
    search(queries[0])
    seconds = []
    for query in queries:
        started = time.perf_counter()
        search(query)
        seconds.append(time.perf_counter() - started)
    return seconds


def _recall(store: MemoryStore, table: VectorTable, embedder: WordTableEmbedder, queries: Sequence[str]) -> float:
    """Return the share of the ten nearest entries that a vector search finds. Entries at equal distance are
    interchangeable.
    """
    rows = table.open().to_table(columns=["vector"], filter="key <> '' AND vector IS NOT NULL")
    column = rows["vector"].combine_chunks()
    vectors = column.flatten().to_numpy(zero_copy_only=False).astype(np.float32).reshape(len(rows), -1)
    shares: list[float] = []
    for query in queries:
        vector = embedder.embed_query(query)
        cosines = vectors @ (vector / max(float(np.linalg.norm(vector)), 1e-9))
        least = np.partition(cosines, -TOP_K)[-TOP_K] - 2e-3  # the precision of float16
        hits = store.search_memory(query, TOP_K, None, ACME, mode="vector")
        shares.append(sum(hit.score >= least for hit in hits) / TOP_K)
    return statistics.mean(shares)

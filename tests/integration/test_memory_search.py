"""Semantic memory search: real vectors in Lance, pushed-down filters, hits confirmed by the catalog."""

from __future__ import annotations

import gc
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from driftline.storage.errors import AccessDenied, BadEntry, StorageError, UsageError
from driftline.storage.lance import lance_table
from driftline.storage.lance.lance_table import is_indexed
from driftline.storage.memory import vectors as memory_vectors
from driftline.storage.memory.catalog.outbox import claim
from driftline.storage.memory.flush import CLAIM_SECONDS, OVERDUE_SECONDS, new_claim_owner
from driftline.storage.memory.memory_indexes import MemoryIndex, compact_vectors
from driftline.storage.memory.store import MemoryItem, MemoryStore
from driftline.storage.memory.vectors import VectorTable
from driftline.storage.objects.local_disk import LocalDisk
from driftline.tasks.embedding.embedder import WordTableEmbedder

ACME = "org:acme"
S1, S2 = "org:acme/project:p/user:u/session:s1", "org:acme/project:q/user:u/session:s2"
LARGE = "notes on the release of the search engine " * 60


class Counting:
    """The real embedder; it records its calls."""

    def __init__(self) -> None:
        self.inner = WordTableEmbedder.open()
        self.dim, self.fingerprint = self.inner.dim, self.inner.fingerprint
        self.texts: list[str] = []
        self.queries: list[str] = []

    def embed(self, lines: Any, dtype: Any = np.float32) -> NDArray[Any]:
        self.texts += list(lines)
        return self.inner.embed(lines, dtype)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        self.queries.append(text)
        return self.inner.embed_query(text)


@pytest.fixture(scope="module")
def embedder() -> Counting:
    return Counting()


@pytest.fixture
def clock() -> list[datetime]:
    return [datetime(2026, 11, 1, tzinfo=UTC)]


@pytest.fixture
def open_store(
    tmp_path: Path, sqlite_catalog: str, embedder: Counting, clock: list[datetime]
) -> Iterator[Callable[..., MemoryStore]]:
    stores: list[MemoryStore] = []
    embedder.texts.clear()
    embedder.queries.clear()

    def opened(**options: Any) -> MemoryStore:
        given = {"embedder": lambda: embedder, "now": lambda: clock[0], **options}
        stores.append(MemoryStore(str(tmp_path / "workspace"), catalog_url=sqlite_catalog, **given))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


@pytest.fixture
def store(open_store: Callable[..., MemoryStore]) -> MemoryStore:
    store = open_store()
    store.store_many(
        [
            MemoryItem("cat", "a cat sleeps on the sofa", S1, {"source": "chat", "phase": "plan", "year": 2025}),
            MemoryItem("dog", "a dog runs through the park", S1, {"source": "chat", "phase": "act", "year": 2026}),
            MemoryItem("engine", {"title": "search engine", "body": "unrelated"}, S2, {"source": "web", "year": 2026}),
            MemoryItem("release", LARGE, S2, {"source": "web", "phase": "act"}),
            MemoryItem("field", {"body": "a kitten on a couch", "noise": "tax law " * 50}, S2, {"text_field": "body"}),
            MemoryItem("nothing", None, S1),
            MemoryItem("number", 12345, S1),
        ]
    )
    return store


def found(
    store: MemoryStore, query: str, top_k: int, filter: dict[str, Any] | None = None, scope: str = ACME, **given: Any
) -> list[str]:
    return [hit.record.key for hit in store.search_memory(query, top_k, filter, scope, **given)]


def vectors(store: MemoryStore, embedder: Counting) -> int:
    return VectorTable(store.workspace.objects, store.hierarchy.entity(ACME), embedder.fingerprint).count()


def test_the_nearest_entries_come_first_with_score_and_rank(store: MemoryStore, embedder: Counting) -> None:
    hits = store.search_memory("cat on a sofa", 3, None, ACME, mode="vector")
    assert [hit.rank for hit in hits] == [1, 2, 3]
    assert hits[0].record.key == "cat"
    assert hits[0].record.value == "a cat sleeps on the sofa"
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    stored = embedder.inner.embed(["a cat sleeps on the sofa"])[0]
    assert hits[0].score == pytest.approx(float(stored @ embedder.inner.embed_query("cat on a sofa")), abs=2e-3)
    assert found(store, "search engine release", 1) == ["release"]


def test_only_the_named_field_is_embedded(store: MemoryStore, embedder: Counting) -> None:
    store.flush()
    assert "a kitten on a couch" in embedder.texts
    assert not any("tax law" in text for text in embedder.texts)
    assert found(store, "kitten couch", 1) == ["field"]


def test_filters_are_anded_and_undefined_ones_left_out(store: MemoryStore) -> None:
    everything = found(store, "cat", 10)
    assert set(everything) >= {"cat", "dog", "engine", "release", "field"}
    assert "nothing" not in everything
    assert set(found(store, "cat", 10, {"source": "chat"})) == {"cat", "dog"}
    assert found(store, "cat", 10, {"source": "chat", "phase": "act"}) == ["dog"]
    assert found(store, "cat", 10, {"source": "chat", "phase": None, "year": 2025}) == ["cat"]
    assert set(found(store, "cat", 10, {"year": [2025, 2026.0]})) == {"cat", "dog", "engine"}
    assert found(store, "cat", 10, {"source": "x' OR '1'='1"}) == []
    assert set(found(store, "cat", 10, {"entity": "org:acme/project:q"})) == {"engine", "release", "field"}
    assert found(store, "cat", 10, {"entity": "org:acme/project:q", "source": "chat"}) == []
    assert found(store, "cat", 10, {"entity": []}) == []
    with pytest.raises(BadEntry):
        found(store, "cat", 10, {"source": {"a": 1}})


def test_scopes_and_allowed_ancestors_are_pushed_down(store: MemoryStore) -> None:
    assert set(found(store, "cat", 1, scope="org:acme/project:q")) == {"field"}
    with pytest.raises(AccessDenied):
        found(store, "cat", 10, allowed_ancestors=[])
    assert "cat" in found(store, "cat", 10, allowed_ancestors=[S1])
    assert "release" not in found(store, "release", 10, allowed_ancestors=[S1])
    assert found(store, "cat", 10, scope="org:other") == []


def test_the_query_is_embedded_as_a_query_and_not_at_all_for_no_results(store: MemoryStore, embedder: Counting) -> None:
    store.flush()
    embedder.texts.clear()
    assert found(store, "cat", 0) == []
    assert found(store, "  ", 5) == []
    assert (embedder.queries, embedder.texts) == ([], [])
    found(store, "cat", 2)
    assert embedder.queries == ["cat"]
    assert "cat" not in embedder.texts
    with pytest.raises(UsageError):
        found(store, "cat", -1)


def test_hits_are_confirmed_by_the_catalog(
    store: MemoryStore, clock: list[datetime], embedder: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.store("short", "a cat for an hour", S1, expires_at=clock[0] + timedelta(hours=1))
    assert set(found(store, "cat", 3)) == {"cat", "short", "field"}
    monkeypatch.setattr(store, "_flusher", _Nothing())  # the vectors stay
    store.delete("cat", ACME)
    clock[0] += timedelta(hours=2)
    assert vectors(store, embedder) == 8
    assert found(store, "cat", 1) == ["field"]
    store.store("dog", "quite another text", S1)
    assert "dog" not in found(store, "dog", 10)


class _Nothing:
    def notify(self, rows: int) -> None:
        pass

    def flush_visible_writes(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_store_without_a_model_leaves_embedding_to_another(
    store: MemoryStore, open_store: Callable[..., MemoryStore], embedder: Counting
) -> None:
    store.flush()
    plain = open_store(embedder=None)
    plain.store("bird", "a bird sings", S1)
    plain.delete("dog", ACME)
    plain.flush()
    assert plain.flush() == 0
    assert "bird" not in found(store, "a bird sings", 10)
    store.flush()
    assert found(store, "a bird sings", 1) == ["bird"]
    assert "dog" not in found(store, "dog", 10)


def test_words_are_searched_alone_or_with_meaning_or_not_at_all(store: MemoryStore) -> None:
    assert found(store, "kitten", 10, mode="text") == ["field"]
    assert found(store, "xylophone", 10, mode="text") == []
    assert found(store, "engine", 1, mode="text", filter={"source": "web", "phase": "act"}) == ["release"]
    for mode in ("hybrid", "vector", "text"):
        hits = store.search_memory("cat on a sofa", 3, None, ACME, mode=mode, explain=True)
        assert hits[0].record.key == "cat"
        assert hits.explanation is not None
        assert (hits.explanation.mode, hits.explanation.entries) == (mode, 7)
        assert hits.explanation.words == ([] if mode == "vector" else ["cat", "sofa"])
    assert store.search_memory("cat", 3, None, ACME).explanation is None
    wrong: list[dict[str, Any]] = [{"mode": "perhaps"}, {"max_distance": -1}, {"max_distance": 3}]
    for options in wrong:
        with pytest.raises(UsageError):
            store.search_memory("cat", 3, None, ACME, **options)


def test_every_word_of_key_and_text_is_found(store: MemoryStore) -> None:
    long = " ".join(f"w{n}" for n in range(4_000))
    store.store_many(
        [
            MemoryItem("giraffe facts", None, S1),
            MemoryItem("no such field", {"a": "b"}, S1, {"text_field": "body"}),
            MemoryItem("long", f"{long} zanzibarquux", S1),
        ]
    )
    assert found(store, "giraffe", 1) == ["giraffe facts"]
    assert found(store, "giraffe", 1, mode="text") == ["giraffe facts"]
    assert found(store, "such", 1, mode="text") == ["no such field"]
    assert found(store, "zanzibarquux", 1) == ["long"]
    assert found(store, "w3999 zanzibarquux", 1, mode="text") == ["long"]


def test_an_empty_answer_says_why(store: MemoryStore) -> None:
    def notes(query: str = "cat", filter: dict[str, Any] | None = None, scope: str = ACME, **given: Any) -> list[str]:
        hits = store.search_memory(query, 5, filter, scope, **given)
        assert not hits
        return list(hits.notes)

    assert notes(filter={"year": "2026"})[0].startswith('No entry has year = "2026"; another value is 202')
    assert notes(filter={"yaer": 2026}) == [
        "No entry has the metadata field yaer; known fields are: phase, source, text_field, year."
    ]
    assert notes(filter={"phase": "plan", "year": 2026})[0].startswith("Each field of the filter matches")
    assert notes("xylophone", mode="text") == ["No entry contains a word of the query."]
    assert re.fullmatch(r"The nearest entry has the distance 0\.\d\d\.", notes("tax", max_distance=0.01)[0])
    assert notes(" ") == ["The query is blank."]
    assert notes(scope="org:typo") == ["No entry is in the scope of the search."]
    (bounded,) = notes(filter={"y" * 5_000: "x" * 5_000})
    assert len(bounded) < 2_000
    assert store.search_memory("cat", 0).notes == ()
    assert store.search_memory("cat", 1).notes == ()
    assert store.search_memory("zebra", 1, mode="vector").notes == (
        "No entry is a good match: the best score is 0.11.",
    )


def test_notes_do_not_mention_expired_entries(open_store: Callable[..., MemoryStore], clock: list[datetime]) -> None:
    store = open_store()
    store.store("login", "a cat", S1, {"password": "hunter"}, clock[0] + timedelta(hours=1))
    store.store("other", "a dog", S1, {"kind": "animal"})
    store.flush()
    clock[0] += timedelta(hours=2)
    notes = store.search_memory("cat", 5, {"password": "x"}, ACME).notes
    assert notes == ("No entry has the metadata field password; known fields are: kind.",)


def test_expired_entries_do_not_hide_others(open_store: Callable[..., MemoryStore], clock: list[datetime]) -> None:
    store = open_store()
    later = clock[0] + timedelta(hours=1)
    store.store_many(MemoryItem(f"cat {n}", "a cat sleeps on the sofa", S1, None, later) for n in range(1_100))
    store.store("other", "a dog runs through the park", S1)
    store.flush()
    clock[0] += timedelta(hours=2)
    assert found(store, "where is the cat", 1) == ["other"]


def test_a_table_of_another_format_is_refused_with_the_command_that_rebuilds_it(
    store: MemoryStore, embedder: Counting
) -> None:
    store.flush()
    table = VectorTable(store.workspace.objects, store.hierarchy.entity(ACME), embedder.fingerprint)
    table.open().drop_columns(["words"])
    with pytest.raises(UsageError, match="no column words") as refused:
        found(store, "kitten couch", 1)
    assert "driftline memory rebuild" in refused.value.fix
    shutil.rmtree(table.uri)
    store.rebuild(ACME)
    assert "field" in found(store, "kitten", 10, mode="text")


def test_a_search_flushes_the_writes_of_an_ended_process(
    store: MemoryStore,
    open_store: Callable[..., MemoryStore],
    clock: list[datetime],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.flush()
    ended, reader = open_store(), open_store()
    ended._flusher.notify = lambda rows: None  # type: ignore[method-assign]  # it ended before its flush
    ended.store("bird", "a bird sings", S1)
    assert "bird" not in found(reader, "a bird sings", 10)  # a process that runs would flush it in a moment
    clock[0] += timedelta(seconds=OVERDUE_SECONDS + 1)
    with monkeypatch.context() as patch:
        patch.setattr(LocalDisk, "create", _full_disk)
        assert "cat" in found(reader, "cat", 10)
    assert "another process's changes" in caplog.text
    clock[0] += timedelta(seconds=CLAIM_SECONDS + 1)  # the failed attempt left its claim
    assert found(reader, "a bird sings", 1) == ["bird"]


def test_the_claim_of_a_killed_process_is_void_at_once(
    store: MemoryStore, open_store: Callable[..., MemoryStore], clock: list[datetime]
) -> None:
    program = (
        "import os; from driftline.storage.memory.flush import new_claim_owner; "
        "print(new_claim_owner(), flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stdout.strip()
    assert len(killed) <= 64
    store.flush()
    ended, reader = open_store(), open_store()
    ended._flusher.notify = lambda rows: None  # type: ignore[method-assign]
    for n, (claim_owner, expected) in enumerate(
        [("of another host:1:2:3", False), (new_claim_owner(), False), (killed, True)]
    ):
        ended.store(f"bird {n}", "a bird sings", S1)
        tenant, until = store.hierarchy.entity(ACME), clock[0] + timedelta(seconds=CLAIM_SECONDS)
        assert store.catalog.write(partial(claim, tenant=tenant, flusher=claim_owner, now=clock[0], until=until))
        clock[0] += timedelta(seconds=OVERDUE_SECONDS + 1)
        assert (f"bird {n}" in found(reader, "a bird sings", 10)) is expected
        clock[0] += timedelta(seconds=CLAIM_SECONDS)


def _full_disk(*_: object) -> str:
    raise StorageError("The disk is full", "delta")


def test_a_store_that_nobody_closes_flushes_when_it_is_collected(
    store: MemoryStore, tmp_path: Path, embedder: Counting
) -> None:
    forgotten = MemoryStore(str(tmp_path / "forgotten"), embedder=lambda: embedder)
    forgotten.store("bird", "a bird sings", S1)
    objects = forgotten.workspace.objects
    del forgotten
    gc.collect()
    assert MemoryIndex(objects, ACME).read(columns=["key"])["key"].to_pylist() == ["bird"]


def test_vectors_are_rebuilt_from_the_catalog(store: MemoryStore, embedder: Counting) -> None:
    store.flush()
    before = found(store, "cat", 10)
    objects = store.workspace.objects
    objects.delete([info.path for info in objects.list("org:acme/_tables")])
    assert found(store, "cat", 10) == []
    store.rebuild(ACME)
    assert found(store, "cat", 10) == before
    store.rebuild(ACME)
    assert vectors(store, embedder) == len(before) + 1  # "nothing" has words, but no vector
    store.store("bird", "a bird sings", S1)
    assert found(store, "a bird sings", 1) == ["bird"]


def test_vectors_may_be_in_a_bucket(s3_bucket: str, sqlite_catalog: str, embedder: Counting) -> None:
    with MemoryStore(s3_bucket, catalog_url=sqlite_catalog, embedder=lambda: embedder) as store:
        store.store("cat", "a cat sleeps on the sofa", S1)
        store.store("dog", LARGE, S1)
        assert found(store, "cat", 1) == ["cat"]
        store.move_entity("org:acme/project:p/user:u", "org:acme/project:r")
        assert found(store, "cat", 1, scope="org:acme/project:r") == ["cat"]
        assert found(store, "cat", 1, scope="org:acme/project:p") == []


def test_a_large_table_gets_a_vector_index_that_finds_the_same(
    store: MemoryStore, embedder: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["cat", "dog", "sofa", "tax", "law", "park", "kitten", "song", "river", "glass", "sea", "ice", "tea"]
    texts = [" ".join(three) for three in combinations(words, 3)]  # other orders are equally near
    store.store_many(MemoryItem(f"{n}", text, S1 if n % 2 else S2, {"phase": n % 3}) for n, text in enumerate(texts))
    store.flush()

    def answers() -> list[list[str]]:
        return [
            found(store, query, 10, filter, mode="vector")
            for query in ("kitten on a sofa", "tax law")
            for filter in (None, {"phase": 1}, {"entity": S2, "phase": [0, 2]})
        ]

    exact = answers()
    objects = store.workspace.objects
    for name in ("MIN_INDEXED_ROWS", "MIN_VECTOR_INDEX_ROWS", "EXACT_SEARCH_ROWS"):
        monkeypatch.setattr(memory_vectors, name, 100)
    monkeypatch.setattr(lance_table, "REFINED_ROWS", 10_000)  # all, because the index stores quantized vectors
    compact_vectors(store.workspace, store.hierarchy.entity(ACME), timedelta(0))
    table = VectorTable(objects, store.hierarchy.entity(ACME), embedder.fingerprint)
    assert is_indexed(table.open())
    assert answers() == exact
    store.store("late", "kitten on a sofa", S1)  # which is not in the index yet
    assert found(store, "kitten on a sofa", 1) == ["late"]
    compact_vectors(store.workspace, store.hierarchy.entity(ACME), timedelta(0))
    assert found(store, "kitten on a sofa", 1) == ["late"]

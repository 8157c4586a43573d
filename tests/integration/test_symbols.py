"""Definitions in search: locations of hits, filters by kind, language and tests, and workspaces without definitions."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import lance
import pytest

import driftline as dl
from driftline.storage.defaults import Mode
from driftline.storage.lines.line_filter import LineFilter
from driftline.storage.lines.outline import OUTLINE_COLUMN, innermost
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.definitions.find_definitions import definitions
from tests.support.searches import search

Driftline = Callable[..., Any]

STORE = '''\
"""Sessions of a shop."""

TIMEOUT_SECONDS = 30


class SessionStore:
    # Finds the basket of a customer.
    def load_basket(self, customer):
        row = self.table.find(customer)
        return decode(row)

    def drop_basket(self, customer):
        self.table.remove(customer)


def close_basket(customer):
    return customer
'''
FILES = {
    "shop/store.py": STORE,
    "shop/store.go": "package shop\n\nfunc (s *Store) LoadBasket(customer string) Basket {\n\treturn s.rows\n}\n",
    "tests/test_store.py": "def test_load_basket():\n    assert load_basket('customer')\n",
    "docs/basket.md": "# Baskets\n\nText.\n\n## Load a basket\n\nA basket of a customer is loaded from the store.\n",
}


OTHER_SPELLINGS = ("retryWithBackoff", "RetryWithBackoff", "where is retryWithBackoff() defined")


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def shop(tmp_path: Path, driftline: Driftline) -> Path:
    """An indexed tree (at ``tree``) and its workspace."""
    write(tmp_path / "tree", FILES)
    assert driftline("index", tmp_path / "tree", "--workspace", tmp_path / "ws").code == 0
    return tmp_path / "ws"


@pytest.mark.parametrize("mode", get_args(Mode))
def test_a_hit_says_which_definition_it_is_in(shop: Path, mode: Mode) -> None:
    found: set[str | None] = set()
    for query in ("self.table.find(customer)", "TIMEOUT_SECONDS = 30", "A basket is loaded from the store."):
        for hit in dl.search(str(shop), query, mode=mode, top_k=50, n_lines=0).results:
            known = innermost(definitions(hit.path, FILES[hit.path]), hit.line - 1)
            reported = (hit.symbol, hit.kind, hit.symbol_start, hit.symbol_end)
            assert reported == ((known.name, known.kind, known.first + 1, known.last + 1) if known else (None,) * 4)
            found.add(hit.symbol)
    assert {None, "SessionStore.load_basket", "Baskets > Load a basket"} <= found


def test_a_changed_document_keeps_its_indexed_definitions(shop: Path) -> None:
    path = shop.parent / "tree/shop/store.py"
    path.write_text(STORE.replace("class", "\n\n\nclass"))
    hit = dl.search(str(shop), "row = self.table.find(customer)", mode="vector", top_k=1).results[0]
    assert (hit.freshness, hit.line_now, hit.symbol_start) == ("moved", 12, 7)


def test_the_context_of_a_function_ends_with_it(shop: Path) -> None:
    hit = dl.search(str(shop), "drop_basket remove", top_k=1, n_lines=9).results[0]
    assert (hit.symbol, hit.start_line, hit.end_line) == ("SessionStore.drop_basket", 12, 13)


def test_only_definitions_are_found_on_demand(shop: Path) -> None:
    for mode in get_args(Mode):
        found = dl.search(str(shop), "load the basket of a customer", symbols=True, mode=mode, top_k=50)
        assert found.results
        for hit in found.results:
            assert hit.symbol is not None
            assert hit.text in FILES[hit.path].split("\n")
            last = hit.symbol.rsplit(".")[-1].rsplit(" > ")[-1]
            assert last in hit.text


def test_kinds_languages_and_tests_narrow_a_search(shop: Path, driftline: Driftline) -> None:
    def paths(*options: str) -> set[tuple[str, str | None]]:
        found = driftline("search", "load basket", "--workspace", shop, "--top-k", 50, "--json", *options).json
        return {(hit["path"], hit["kind"]) for hit in found["results"]}

    assert ("tests/test_store.py", "function") in paths()
    assert {path for path, _ in paths("--no-tests")} == {"shop/store.py", "shop/store.go", "docs/basket.md"}
    assert {path for path, _ in paths("--lang", "go", "--lang", "md")} == {"shop/store.go", "docs/basket.md"}
    assert paths("--kind", "method") == {("shop/store.py", "method"), ("shop/store.go", "method")}
    assert paths("--kind", "section", "--mode", "vector") == {("docs/basket.md", "section")}
    assert paths("--kind", "method", "--lang", "python", "--symbols") == {("shop/store.py", "method")}


def test_unknown_names_are_usage_errors(shop: Path, driftline: Driftline) -> None:
    for option, value, known in (
        ("--kind", "gadget", "function"),
        ("--lang", "klingon", "kotlin"),
        ("--lang", "zz", "python"),
    ):
        outcome = driftline("search", "x", "--workspace", shop, option, value)
        assert outcome.code == 2
        assert value in outcome.err
        assert known in outcome.err


def test_a_search_names_the_definition(shop: Path, driftline: Driftline) -> None:
    shown = driftline("search", "table find customer", "--workspace", shop, "--top-k", 1).out
    assert "method SessionStore.load_basket" in shown


def test_a_table_of_another_format_is_refused_with_the_command_that_rebuilds_it(
    shop: Path, driftline: Driftline
) -> None:
    opened = Workspace.open(str(shop))
    dataset: Any = lance.dataset(opened.lines(opened.tenants()[0]).uri)
    dataset.drop_columns([OUTLINE_COLUMN])
    for command in (["search", "basket"], ["index", str(shop.parent / "tree"), "--full"]):
        refused = driftline(*command, "--workspace", shop, "--json")
        assert refused.code == 2, command
        assert "no column outline" in refused.json["message"]
        assert "driftline index SOURCE --workspace NEW" in refused.json["fix"]
    assert OUTLINE_COLUMN not in lance.dataset(dataset.uri).schema.names


def test_the_index_knows_the_definitions_of_files_that_are_gone(tmp_path: Path, driftline: Driftline) -> None:
    write(tmp_path / "tree", {"a.py": "def basket():\n    pass\n"})
    driftline("index", tmp_path / "tree", "--workspace", tmp_path / "ws")
    shutil.rmtree(tmp_path / "tree")
    hit = dl.search(str(tmp_path / "ws"), "basket").results[0]
    assert (hit.symbol, hit.freshness) == ("basket", "gone")


@pytest.mark.parametrize("mode", ["hybrid", "text"])
def test_the_definition_that_a_query_names_comes_first_even_if_its_words_are_frequent(
    tmp_path: Path, driftline: Driftline, mode: Mode
) -> None:
    calls = "".join(
        f"def test_after_failure_{k}():\n    assert retry_with_backoff(lambda: {k})\n\n" for k in range(150)
    )
    logs = "".join(f"- {k}: retry with backoff after a failure\n" for k in range(2_000))
    source = "import time\n\n\ndef retry_with_backoff(call):\n    for _ in range(5):\n        return call()\n"
    write(tmp_path / "tree", {"net/again.py": source, "tests/test_client.py": calls, "CHANGELOG.md": logs})
    assert driftline("index", tmp_path / "tree", "--workspace", tmp_path / "ws").code == 0
    workspace = Workspace.open(str(tmp_path / "ws"))
    for name in ("retry_with_backoff", "RETRY_WITH_BACKOFF", "where is retry_with_backoff defined", *OTHER_SPELLINGS):
        first = search(workspace, name, mode=mode).results[0]
        assert (first.path, first.line, first.symbol) == ("net/again.py", 4, "retry_with_backoff"), name
        elsewhere = search(workspace, name, mode=mode, where=LineFilter(dirs=("tests",))).results
        assert {hit.path for hit in elsewhere} == {"tests/test_client.py"}


def test_another_spelling_of_a_name_counts_only_if_nothing_is_spelled_like_it(
    tmp_path: Path, driftline: Driftline
) -> None:
    sources = {f"{name}.go": f"package a\n\nfunc {name}() int {{\n\treturn 1\n}}\n" for name in ("max_size", "maxSize")}
    write(tmp_path / "tree", sources | {"b.go": "package a\n\nfunc MinSize() int {\n\treturn 1\n}\n"})
    assert driftline("index", tmp_path / "tree", "--workspace", tmp_path / "ws").code == 0
    workspace = Workspace.open(str(tmp_path / "ws"))
    found = {name: search(workspace, name).results[0].symbol for name in ("max_size", "maxSize", "MAXSIZE", "min_size")}
    assert found == {"max_size": "max_size", "maxSize": "maxSize", "MAXSIZE": "maxSize", "min_size": "MinSize"}

"""What a real engine for YAML agents met in the actions: imports, arguments of templates, calls side by side.

Items that concern memory alone are in ``test_memory_items_engine.py``.
"""

from __future__ import annotations

import re
import shutil
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import driftline as dl
from tests.conformance.search_places import (
    ROOT,
    Answer,
    Registry,
    action_pages,
    actions,
    error_type,
    ok,
    plant,
    without_variables,
)
from tests.conformance.table import criterion
from tests.support.yaml_engine import YamlEngine

ENGINE_PINS = {"typer": "0.20.0"}
"""What the engine pins exactly, so that both can be installed only if Driftline allows it."""
NEWER_TYPER = {"TyperException", "exceptions"}
"""Names that typer 0.20 does not have."""


FILES = {"docs/a.md": "parser\none\n", "docs/b.md": "group\ntwo\n", "src/c.py": "action\n"}
ODD_FILES = {"2024": "the year 2024 and 42\n", "[odd].md": "parser\n"}


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A project that nobody changes, and beside it a workspace of the small model over two of its folders."""
    place = tmp_path_factory.mktemp("indexed")
    plant(place / "project", {**FILES, **ODD_FILES})
    sources = [str(place / "project" / name) for name in ("docs", "src")]
    dl.index(*sources, workspace=str(place / "ws"), model=str(tiny_model))
    return place


@pytest.fixture(autouse=True)
def _in_the_project(indexed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_variables(monkeypatch)
    monkeypatch.chdir(indexed / "project")


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return actions(tmp_path / "home")


@pytest.fixture
def ws(indexed: Path, tmp_path: Path) -> str:
    """A copy of the workspace, which a test may change."""
    return str(shutil.copytree(indexed / "ws", tmp_path / "ws"))


# -- 3: installed beside the engine ----------------------------------------------------------


def requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(line) for line in project["dependencies"]]


# -- 4: imported one by one, and beside the engine's own -------------------------------------

SEARCH = ("search.", "semtools.", "actions.search_", "actions.semtools_")


def _own(state: Any, **_: Any) -> Answer:
    return {"own": True}


# -- 6: closed -------------------------------------------------------------------------------


@criterion("engine", "6", "after the engine has closed, every action answers with one typed error")
def test_a_closed_engine_has_one_error(tmp_path: Path, ws: str) -> None:
    engine = YamlEngine()
    registry = actions(tmp_path / "home", engine)
    given: dict[str, dict[str, Any]] = {
        "search.workspace_create": {"workspace": ws},
        "search.workspace_index": {"workspace": ws, "paths": ["docs"]},
        "search.workspace_search": {"workspace": ws, "query": "parser"},
        "search.workspace_stats": {"workspace": ws},
        "search.semantic": {"query": "parser", "files": "docs"},
        "semtools.search": {"query": "parser", "files": "docs"},
    }
    for name, arguments in given.items():
        ok(registry[name]({}, **arguments))
    engine.close()
    engine.close()
    answers = {name: registry[name]({}, **arguments) for name, arguments in given.items()}
    assert len({error_type(answer) for answer in answers.values()}) == 1, answers
    assert all("closed" in answer["error"] for answer in answers.values())


# -- 7: arguments from templates -------------------------------------------------------------


TEMPLATES = """
nodes:
  - name: index
    uses: search.workspace_index
    with: {workspace: "{{ ws }}", paths: "{{ paths | tojson }}", recursive: "{{ deep }}", extensions: "{{ none }}"}
  - name: find
    uses: search.workspace_search
    with:
      workspace: "{{ ws }}"
      query: "{{ question }}"
      paths: "{{ missing }}"
      top_k: "{{ count }}"
      max_distance: "{{ none }}"
      n_lines: "{{ zero }}"
    output: found
  - name: grep
    uses: semtools.search
    with: {query: "{{ question }}", files: "{{ found.results[0].file }}", n_results: "{{ count }}", max_distance: 2}
    output: matches
"""


@criterion("engine", "7", "every error_type stands in the reference")
def test_every_error_type_stands_in_the_reference() -> None:
    kinds = {
        "workspace_not_found",
        "file_not_found",
        "validation_error",
        "index_corrupt",
        "lancedb_error",
        "storage_error",
        "prerequisite_missing",
        "deletion_refused",
        "lease_held",
        "cli_error",
        "parse_error",
        "timeout",
    }
    source = "\n".join(path.read_text() for path in (ROOT / "flows" / "actions").glob("*.py"))
    kinds |= set(re.findall(r"\bActionError\(\s*\"(\w+)\"", source))
    page = action_pages()
    assert {kind for kind in kinds if f"`{kind}`" not in page} == set()


# -- 8: one meaning, and side by side --------------------------------------------------------


@criterion("engine", "8", "path means the same with a workspace and without")
@pytest.mark.parametrize("files", ["docs", "docs/a.md", "docs/*.md", "./docs", ["docs", "src/c.py"], "{project}/docs"])
def test_path_means_the_same(files: Any, registry: Registry, ws: str) -> None:
    """Whatever it is relative to: one file has one ``path``, whether or not a workspace helps."""
    if isinstance(files, str):
        files = files.format(project=Path.cwd())
    given = {"query": "parser group action", "files": files, "top_k": 20, "n_lines": 0}

    def paths(**options: Any) -> set[str]:
        return {hit["path"] for hit in ok(registry["search.semantic"]({}, **given, **options))["results"]}

    plain = paths()
    assert plain
    assert paths(workspace=ws) == plain


@criterion("engine", "8", "searches in one workspace at once are not slower than in turn")
def test_searches_at_once_cost_no_more_than_in_turn(registry: Registry, ws: str) -> None:
    given = {"query": "parser of groups", "files": ["docs", "src"], "workspace": ws}

    def search(_: int) -> Answer:
        return ok(registry["search.semantic"]({}, **given))

    def seconds(run: Callable[[], object]) -> float:
        started = time.process_time()  # of all threads: what others do on the machine does not count
        run()
        return time.process_time() - started

    def at_once() -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(search, range(8)))

    search(0)
    in_turn = min(seconds(lambda: [search(n) for n in range(8)]) for _ in range(3))
    assert min(seconds(at_once) for _ in range(3)) <= 1.3 * in_turn + 0.05

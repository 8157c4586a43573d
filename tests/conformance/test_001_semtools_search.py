"""Document 001: ``semtools.search``, with Driftline's own engine and with the programs of semtools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.search_places import (
    Answer,
    action_pages,
    actions,
    error_type,
    ok,
    plant,
    without_variables,
)
from tests.conformance.table import criterion
from tests.support.semtools_program import (
    VERSIONS,
    install,
)
from tests.support.yaml_engine import YamlEngine

Search = Callable[..., Answer]
HINT = "npm i -g @llamaindex/semtools"
STORIES = {
    "docs/stories/7.md": "# Story\nAs a user I can log in.\n\nQuality gate: concerns, issues, problems.\n\nEnd.\n",
    "docs/stories/8.md": "# Story\nAs a user I can log out.\n\nThe weather was fine all week.\n",
    "docs/deep/cooking.md": "# Dinner\nBoil the potatoes in salted water.\nFry the onions.\n",
    "src/client.py": "try:\n    connect()\nexcept OSError as error:\n    raise ClientError from error\n",
    "src/deep/server.py": "def listen(port):\n    bind(port)\n",
}
GATE = ("docs/stories/7.md", 4)
QUERY = "quality gate concerns issues problems"


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test stands in a project of its own, where no program of semtools is installed."""
    without_variables(monkeypatch)
    monkeypatch.chdir(plant(tmp_path / "project", STORIES))
    monkeypatch.setenv("PATH", "/nonexistent")


@pytest.fixture(scope="module")
def search() -> Search:
    """The action, with one embedder for all tests."""
    return actions()["semtools.search"]


@pytest.fixture(params=["driftline", *VERSIONS])
def either(request: pytest.FixtureRequest, search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Search:
    """The action with Driftline's engine, and with each program: what a document says holds for all."""
    if request.param == "driftline":
        return search
    install(tmp_path / "bin", request.param, monkeypatch)
    return lambda state, *positional, **given: search(state, *positional, **{"engine": "cli", **given})


@pytest.fixture(params=VERSIONS)
def program(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each program as the only one on the path: where it records how it was called."""
    return install(tmp_path / "bin", request.param, monkeypatch)


def found(answer: Answer) -> list[tuple[str, int]]:
    """Files and lines of the matches of an answer, in their order."""
    return [(match["file"], match["line"]) for match in ok(answer)["matches"]]


# -- the search ------------------------------------------------------------------------------


# -- the answer ------------------------------------------------------------------------------


# -- what must be installed ------------------------------------------------------------------


@criterion("001", "AC 11", "the program is looked for before it is run")
@criterion("001", "T10", "a missing program is an error that helps")
def test_a_missing_program_is_an_error_that_helps(search: Search) -> None:
    answer = search({}, query=QUERY, files="docs/stories/7.md", engine="cli")
    assert error_type(answer) == "prerequisite_missing"
    assert (answer["matches"], answer["has_matches"]) == ([], False)
    assert HINT in answer["install_hint"]


# -- errors ----------------------------------------------------------------------------------


@criterion("001", "AC 14", "a missing file is named")
@criterion("001", "T11", "a missing file is named")
@pytest.mark.parametrize("files", ["docs/stories/9.md", ["docs/stories/7.md", "docs/stories/9.md"], "docs/9/*.md"])
def test_a_missing_file_is_named(files: Any, either: Search) -> None:
    answer = either({}, query=QUERY, files=files)
    assert error_type(answer) == "file_not_found"
    assert "9" in answer["error"]
    assert (answer["matches"], answer["has_matches"]) == ([], False)


# -- integration -----------------------------------------------------------------------------


@criterion("001", "AC 17", "the action has two names")
@criterion("001", "T13", "the action has two names")
def test_the_action_has_two_names(tmp_path: Path) -> None:
    registry = actions(tmp_path)
    for name in ("semtools.search", "actions.semtools_search"):
        assert found(registry[name]({}, query=QUERY, files="docs/stories/7.md"))[0] == GATE


@criterion("001", "AC 19", "the reference shows the action, with examples")
def test_the_reference_shows_the_action() -> None:
    page = action_pages()
    for words in ("semtools.search", "actions.semtools_search", HINT, "uses: semtools.search", "has_matches"):
        assert words in page
    for argument in ("query", "files", "max_distance", "n_results", "n_lines"):
        assert f"`{argument}`" in page
    for key in ("matches", "best_match", "total_matches", "file", "line", "score", "text", "context"):
        assert key in page
    for kind in ("prerequisite_missing", "cli_error", "timeout", "parse_error", "file_not_found"):
        assert f"`{kind}`" in page


# -- examples --------------------------------------------------------------------------------

GATES = """
name: check the gate of a story
nodes:
  - name: look_for_concerns
    uses: semtools.search
    with:
      query: "quality gate concerns issues problems"
      files: "docs/stories/{{ state.story }}.md"
      max_distance: 0.25
      n_results: 1
    output: gate
  - name: decide
    run: |
      hits = state.get("gate", {})
      if hits.get("has_matches"):
          text = hits.get("best_match", {}).get("text", "").upper()
          for status in ("CONCERNS", "FAIL", "PASS"):
              if status in text:
                  return {"status": status}
      return {"status": "UNKNOWN"}
  - name: review
    run: "return {'reviewed': True}"
edges:
  - {from: look_for_concerns, to: decide}
  - {from: decide, to: review, when: "state.get('status') == 'CONCERNS'"}
"""


def engine(keeps_types: bool) -> YamlEngine:
    return YamlEngine(actions(), keeps_types=keeps_types)


@criterion("001", "example 1", "a gate is decided by the text of the best match")
@pytest.mark.parametrize("keeps_types", [True, False])
@pytest.mark.parametrize(("story", "status"), [(7, "CONCERNS"), (8, "UNKNOWN")])
def test_a_gate_is_decided_by_the_best_match(story: int, status: str, keeps_types: bool) -> None:
    runs = engine(keeps_types)
    state = runs.run(GATES, {"story": story})
    ok(state["gate"])
    assert state["status"] == status
    assert runs.visited == ["look_for_concerns", "decide"] + ["review"] * (status == "CONCERNS")


CODE = """
name: find code
nodes:
  - name: find
    uses: semtools.search
    with:
      query: "{{ state.question }}"
      files: "src/**/*.py"
      max_distance: 0.7
      n_results: 10
    output: code
"""


@criterion("001", "example 2", "code is found in a tree")
def test_code_is_found_in_a_tree() -> None:
    state = engine(True).run(CODE, {"question": "except error raise"})
    assert ("src/client.py", 3) in found(state["code"])
    assert state["code"]["total_matches"] <= 10


ROUTE = """
name: route by meaning
nodes:
  - name: gate_check
    uses: semtools.search
    with:
      query: "quality gate concerns issues problems"
      files: "docs/stories/{{ state.story }}.md"
      max_distance: 0.25
      n_results: 3
  - name: extract
    run: |
      return {"status": "CONCERNS" if state.get("gate_check", {}).get("has_matches") else "PASS"}
  - {name: fix}
  - {name: complete}
edges:
  - {from: gate_check, to: extract}
  - {from: extract, to: fix, when: "state.get('status') == 'CONCERNS'"}
  - {from: extract, to: complete, when: "state.get('status') != 'CONCERNS'"}
"""


@criterion("001", "example 3", "an agent takes its route by has_matches")
@pytest.mark.parametrize(("story", "end"), [("7", "fix"), ("8", "complete")])
def test_an_agent_takes_its_route(story: str, end: str) -> None:
    runs = engine(True)
    runs.run(ROUTE, {"story": story})
    assert runs.visited == ["gate_check", "extract", end]


ALIKE = """
name: find similar documents
nodes:
  - name: similar
    uses: semtools.search
    with:
      query: "{{ state.reference }}"
      files: "docs/**/*.md"
      max_distance: 0.2
      n_results: 5
      n_lines: 3
    output: alike
  - name: report
    run: |
      matches = state.get("alike", {}).get("matches", [])
      lines = [f"{m['file']}:{m['line']} ({m['score']:.2f}) {m['text']}" for m in matches]
      return {"report": lines}
"""


@criterion("001", "example 4", "a report of similar documents")
@pytest.mark.parametrize("keeps_types", [True, False])
def test_similar_documents_are_reported(keeps_types: bool) -> None:
    state = engine(keeps_types).run(ALIKE, {"reference": "boil potatoes in salted water"})
    assert len(ok(state["alike"])["matches"][0]["context"]) == 3
    (line,) = state["report"]
    assert line.startswith("docs/deep/cooking.md:2 (0.")
    assert line.endswith("Boil the potatoes in salted water.")

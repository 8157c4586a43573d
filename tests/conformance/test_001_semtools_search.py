"""Document 001: ``semtools.search``, with Driftline's own engine and with the semtools programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.search_support import (
    Answer,
    action_pages,
    actions,
    error_type,
    ok,
    plant,
)
from tests.conformance.table import criterion
from tests.support.semtools_program import (
    FAILURE_VARIABLE,
    SLEEP_VARIABLE,
    VERSIONS,
    calls,
    install,
)
from tests.support.waiting import PATIENCE_SECONDS
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
    """Run each test in its own project, without any semtools program."""
    monkeypatch.chdir(plant(tmp_path / "project", STORIES))
    monkeypatch.setenv("PATH", "/nonexistent")


@pytest.fixture(scope="module")
def search() -> Search:
    """The action; all tests share one embedder."""
    return actions()["semtools.search"]


@pytest.fixture(params=["driftline", *VERSIONS])
def either(request: pytest.FixtureRequest, search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Search:
    """The action with Driftline's engine and with each program, for requirements that apply to all of them."""
    if request.param == "driftline":
        return search
    install(tmp_path / "bin", request.param, monkeypatch)
    return lambda state, *positional, **given: search(state, *positional, **{"engine": "cli", **given})


@pytest.fixture(params=VERSIONS)
def program(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put only this program on the PATH, and return the file that records its calls."""
    return install(tmp_path / "bin", request.param, monkeypatch)


def found(answer: Answer) -> list[tuple[str, int]]:
    """Return the files and lines of the matches in a response, in order."""
    return [(match["file"], match["line"]) for match in ok(answer)["matches"]]


# -- the search ------------------------------------------------------------------------------


@criterion("001", "AC 1", "the action searches and returns matches")
@criterion("001", "AC 2", "query says what to look for")
@criterion("001", "T1", "a basic search returns matches")
def test_a_search_returns_matches(either: Search) -> None:
    answer = ok(either({}, query=QUERY, files="docs/stories/7.md"))
    assert answer["query"] == QUERY
    assert found(answer)[0] == GATE
    assert answer["matches"][0]["text"] == "Quality gate: concerns, issues, problems."


@criterion("001", "AC 3", "files is a glob or a list")
@criterion("001", "T2", "files may be a glob")
@pytest.mark.parametrize("files", ["docs/stories/*.md", "docs/**/*.md", "./docs/stories/7.md"])
def test_files_may_be_a_glob(files: str, either: Search) -> None:
    (file, line) = found(either({}, query=QUERY, files=files))[0]
    assert (os.path.normpath(file), line) == GATE


@criterion("001", "AC 3", "a glob of two stars goes any depth, and none at all")
def test_two_stars_go_any_depth(either: Search) -> None:
    answer = either({}, query="listen port bind connect", files="src/**/*.py", max_distance=1.0)
    assert {file for file, _ in found(answer)} == {"src/client.py", "src/deep/server.py"}


@criterion("001", "AC 3", "files is a glob or a list")
@criterion("001", "T3", "files may be a list")
def test_files_may_be_a_list(either: Search) -> None:
    files = ["docs/stories/8.md", "docs/stories/7.md", "docs/deep/*.md"]
    assert found(either({}, query=QUERY, files=files))[0] == GATE


@criterion("001", "AC 4", "max_distance drops what is farther")
@criterion("001", "T4", "max_distance drops what is farther")
def test_max_distance_drops_more_distant_lines(either: Search) -> None:
    plant(Path(), {"three.txt": "onions\nthe gate of a garden\nthe quality gate\n"})
    given = {"query": "the quality gate", "files": "three.txt"}
    best, second = ok(either({}, **given, max_distance=1.0))["matches"][:2]
    limit = (2 - best["score"] - second["score"]) / 2
    assert found(either({}, **given, max_distance=limit)) == [("three.txt", 3)]
    assert all(match["score"] >= 0.5 for match in ok(either({}, query=QUERY, files="docs/**/*.md"))["matches"])


@criterion("001", "AC 5", "n_results limits the matches")
@criterion("001", "T5", "n_results limits the matches")
def test_n_results_limits_the_matches(either: Search) -> None:
    plant(Path(), {"many.txt": "the quality gate\n" * 30})
    given = {"query": "the quality gate", "files": "many.txt"}
    assert len(found(either({}, **given))) == 10
    for wanted in (1, 4, 25):
        answer = either({}, **given, n_results=wanted)
        assert (len(found(answer)), answer["total_matches"]) == (wanted, wanted)


@criterion("001", "AC 6", "n_lines adds the lines around a match")
@criterion("001", "T6", "n_lines adds the lines around a match")
def test_n_lines_adds_context(either: Search) -> None:
    """Context changes neither the line nor the text of a match, even at the start or end of a file."""
    text = Path(GATE[0]).read_text().splitlines()
    for n_lines in (0, 1, 2, 9):
        best = ok(either({}, query=QUERY, files=GATE[0], n_lines=n_lines))["best_match"]
        assert (best["file"], best["line"], best["text"]) == (*GATE, text[3])
        assert best["context"] == text[max(0, 3 - n_lines) : 4 + n_lines]


# -- the answer ------------------------------------------------------------------------------


@criterion("001", "AC 7", "the answer and its matches have the documented keys")
def test_the_answer_has_the_documented_keys(either: Search) -> None:
    answer = ok(either({}, query=QUERY, files="docs/stories/*.md", n_lines=1))
    assert set(answer) >= {"success", "matches", "best_match", "has_matches", "total_matches", "query"}
    for match in answer["matches"]:
        assert set(match) >= {"file", "line", "score", "text", "context"}
        kinds = (match["file"], match["line"], match["score"], match["text"], match["context"])
        assert [type(value) for value in kinds] == [str, int, float, str, list]
        assert match["text"] in match["context"]


@criterion("001", "AC 8", "the score is the cosine: higher is more alike")
@criterion("001", "T7", "each match has a score")
def test_the_score_is_the_cosine(either: Search) -> None:
    plant(Path(), {"three.txt": "onions\nthe quality gate\nthe gate of a garden\n"})
    matches = ok(either({}, query="the quality gate", files="three.txt", max_distance=1.0))["matches"]
    scores = [match["score"] for match in matches]
    assert scores == sorted(scores, reverse=True)
    assert matches[0]["text"] == "the quality gate"
    assert scores[0] == pytest.approx(1.0, abs=1e-3)
    assert all(-1 <= score < 0.95 for score in scores[1:])


@criterion("001", "AC 9", "best_match is the match with the highest score")
@criterion("001", "T8", "best_match is the match with the highest score")
def test_best_match_is_the_best(either: Search) -> None:
    answer = ok(either({}, query=QUERY, files="docs/**/*.md", max_distance=1.0))
    assert answer["best_match"] == max(answer["matches"], key=lambda match: match["score"])
    assert (answer["best_match"]["file"], answer["best_match"]["line"]) == GATE
    assert ok(either({}, query="zebra", files="docs/stories/8.md", max_distance=0.1))["best_match"] is None


@criterion("001", "AC 10", "has_matches is a boolean for routes")
@criterion("001", "T9", "has_matches is a boolean for routes")
def test_has_matches_is_a_boolean(either: Search) -> None:
    assert ok(either({}, query=QUERY, files="docs/stories/7.md"))["has_matches"] is True
    assert ok(either({}, query="zebra crossing", files="docs/stories/8.md", max_distance=0.1))["has_matches"] is False


# -- what must be installed ------------------------------------------------------------------


@criterion("001", "AC 11", "the program is looked for before it is run")
@criterion("001", "T10", "a missing program is an error that helps")
def test_the_error_for_a_missing_program_says_how_to_install_it(search: Search) -> None:
    answer = search({}, query=QUERY, files="docs/stories/7.md", engine="cli")
    assert error_type(answer) == "prerequisite_missing"
    assert (answer["matches"], answer["has_matches"]) == ([], False)
    assert HINT in answer["install_hint"]


@criterion("001", "AC 12", "the error says how to install it, by npm or by cargo")
def test_the_error_says_how_to_install_the_program(search: Search) -> None:
    answer = search({}, query=QUERY, files="docs/stories/7.md", engine="cli")
    assert "semtools" in answer["error"]
    assert HINT in answer["error"]
    assert "cargo install semtools" in answer["install_hint"] + answer["error"]


@criterion("001", "AC 13", "the version can be checked, 1.5.1 at least")
@pytest.mark.parametrize(
    ("version", "options", "accepted"),
    [
        ("1.5.0", {}, True),
        ("1.5.0", {"check_version": True}, False),
        ("1.5.1", {"check_version": True}, True),
        ("2.0.0", {"check_version": True}, True),
        ("3.0.1", {"check_version": True}, True),
        ("3.4.0", {"check_version": True}, True),
        ("3.4.0", {"min_version": "3.4"}, True),
        ("3.4.0", {"min_version": "3.5"}, False),
        ("2.0.0", {"min_version": 3}, False),
        ("3.0.1", {"min_version": "2.0"}, True),
    ],
)
def test_the_version_can_be_checked(
    version: str,
    options: dict[str, Any],
    accepted: bool,
    search: Search,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """3.0.1 cannot report its version, but the name ``semtools`` implies 3.0 or later."""
    install(tmp_path / "bin", version, monkeypatch)
    answer = search({}, query=QUERY, files="docs/stories/7.md", engine="cli", **options)
    if accepted:
        assert found(answer) == [GATE]
    else:
        assert error_type(answer) == "prerequisite_missing"
        assert version in answer["error"]


# -- errors ----------------------------------------------------------------------------------


@criterion("001", "AC 14", "a missing file is named")
@criterion("001", "T11", "a missing file is named")
@pytest.mark.parametrize("files", ["docs/stories/9.md", ["docs/stories/7.md", "docs/stories/9.md"], "docs/9/*.md"])
def test_a_missing_file_is_reported(files: Any, either: Search) -> None:
    answer = either({}, query=QUERY, files=files)
    assert error_type(answer) == "file_not_found"
    assert "9" in answer["error"]
    assert (answer["matches"], answer["has_matches"]) == ([], False)


@criterion("001", "AC 15", "no match is no error")
@criterion("001", "T12", "no match is no error")
def test_no_match_is_not_an_error(either: Search) -> None:
    answer = ok(either({}, query="zebra crossing", files="docs/stories/8.md", max_distance=0.1))
    assert (answer["matches"], answer["best_match"], answer["has_matches"], answer["total_matches"]) == (
        [],
        None,
        False,
        0,
    )


@criterion("001", "AC 16", "what the program says when it fails is in the answer")
def test_the_error_of_a_failing_program_is_quoted(
    search: Search, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAILURE_VARIABLE, "the model cannot be loaded")
    answer = search({}, query=QUERY, files="docs/stories/7.md", engine="cli")
    assert error_type(answer) == "cli_error"
    assert "the model cannot be loaded" in answer["stderr"]
    assert "the model cannot be loaded" in answer["error"]
    assert (answer["matches"], answer["has_matches"]) == ([], False)


# -- integration -----------------------------------------------------------------------------


@criterion("001", "AC 17", "the action has two names")
@criterion("001", "T13", "the action has two names")
def test_the_action_has_two_names(tmp_path: Path) -> None:
    registry = actions(tmp_path)
    for name in ("semtools.search", "actions.semtools_search"):
        assert found(registry[name]({}, query=QUERY, files="docs/stories/7.md"))[0] == GATE


@criterion("001", "AC 18", "the program runs in a process of its own, for 60 s at most by default")
def test_the_program_runs_in_a_process_of_its_own(
    search: Search, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(search({}, query=f"{QUERY}; echo $HOME", files="docs/stories/*.md", engine="cli", max_distance=0.9))
    (call,) = calls(program)
    assert f"{QUERY}; echo $HOME" in call
    assert {"docs/stories/7.md", "docs/stories/8.md"} < set(call)
    assert found(search({}, query=QUERY, files=["docs/stories/7.md"], engine="cli", timeout=PATIENCE_SECONDS)) == [GATE]
    monkeypatch.setenv(SLEEP_VARIABLE, "100000")
    answer = search({}, query=QUERY, files="docs/stories/7.md", engine="cli", timeout=0.3)
    assert error_type(answer) == "timeout"
    assert (answer["matches"], answer["has_matches"]) == ([], False)


@pytest.mark.parametrize("engine", ["driftline", "auto"])
def test_a_search_of_our_own_engine_ends_after_its_timeout(engine: str, search: Search) -> None:
    answer = search({}, query=QUERY, files="docs/stories/*.md", engine=engine, timeout=1e-9)
    assert (error_type(answer), answer["has_matches"]) == ("timeout", False)


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

"""``semtools.search`` with the external program, replaced by a stand-in that records its calls."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driftline.flows.actions.semtools import semtools_search
from tests.support.waiting import until

PROGRAM = """#!{python}
import json, os, sys, time
folder = os.path.dirname(os.path.abspath(__file__))
if sys.argv[1:] == ["--version"]:
    print(open(folder + "/version").read())
    sys.exit()
json.dump(sys.argv[1:], open(folder + "/called", "w"))
plan = json.load(open(folder + "/plan"))
if plan.get("sleep"):
    # As the npm wrapper does: a child that holds the pipes, too.
    if os.fork() == 0:
        open(folder + "/child", "w").write(str(os.getpid()))
    time.sleep(plan["sleep"])
sys.stderr.write(plan.get("stderr", ""))
sys.stdout.write(plan["stdout"])
sys.exit(plan.get("code", 0))
"""
NEW = {
    "results": [
        {
            "filename": "a.md",
            "start_line_number": 3,
            "end_line_number": 6,
            "match_line_number": 4,
            "distance": 0.25,
            "content": "before\nthe match\nafter\n",
        },
        {
            "filename": "b.md",
            "start_line_number": 0,
            "end_line_number": 1,
            "match_line_number": 0,
            "distance": 0.5,
            "content": "first line",
        },
    ]
}
OLD = [{"file": "a.md", "line": 5, "score": 0.75, "text": "the match", "context": "before\nthe match\nafter"}]
FAILED = {"success": False, "matches": [], "has_matches": False}
Search = Callable[..., dict[str, Any]]


class Program:
    """The stand-in, which is first on the PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        program = folder / "semtools"
        program.write_text(PROGRAM.format(python=sys.executable))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.says_version("semtools 3.4.0")

    def says_version(self, version: str) -> None:
        (self.folder / "version").write_text(version)

    def answers(self, answer: Any = "", **plan: Any) -> None:
        text = answer if isinstance(answer, str) else json.dumps(answer)
        (self.folder / "plan").write_text(json.dumps({"stdout": text, **plan}))

    @property
    def called(self) -> list[str]:
        return list(json.loads((self.folder / "called").read_text()))


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes" / "deep").mkdir(parents=True)
    for name in ("a.md", "notes/b.md", "notes/deep/c.md", "-dash.md"):
        (tmp_path / name).write_text("x\n")
    return Program(tmp_path / "bin")


def search(query: str = "question", files: Any = "a.md", **options: Any) -> dict[str, Any]:
    return semtools_search({}, **{"query": query, "files": files, "engine": "cli", **options})


def test_the_answer_of_version_3_is_counted_from_one(program: Program) -> None:
    program.answers(NEW)
    best = {"file": "a.md", "line": 5, "score": 0.75, "text": "the match", "context": ["before", "the match", "after"]}
    second = {"file": "b.md", "line": 1, "score": 0.5, "text": "first line", "context": ["first line"]}
    assert search() == {
        "success": True,
        "matches": [best, second],
        "best_match": best,
        "has_matches": True,
        "total_matches": 2,
        "query": "question",
        "engine": "cli",
        "version": "3.4.0",
    }
    assert search(n_results=1)["matches"] == [best]


def test_the_list_format_of_an_older_version_is_accepted(program: Program) -> None:
    program.answers(OLD)
    found = search()
    assert found["best_match"] == {**OLD[0], "context": ["before", "the match", "after"]}
    program.answers([{"file": "a.md", "line": "5", "distance": 0.25, "text": "the match"}])
    assert search()["best_match"] == {**OLD[0], "context": ["the match"]}
    program.answers(NEW["results"])
    assert search()["best_match"]["line"] == 5


@pytest.mark.parametrize("answer", ["", "\n", {"results": []}, []])
def test_no_match_is_not_an_error(program: Program, answer: Any) -> None:
    program.answers(answer)
    assert search() == {
        "success": True,
        "matches": [],
        "best_match": None,
        "has_matches": False,
        "total_matches": 0,
        "query": "question",
        "engine": "cli",
        "version": "3.4.0",
    }


def test_the_action_is_called_as_documented(program: Program) -> None:
    program.answers(NEW)
    search(files=["a.md", "notes/**/*.md"], max_distance=0.3)
    files = ["a.md", "notes/b.md", "notes/deep/c.md"]
    options = ["--json", "--n-lines", "0", "--max-distance", "0.3", "--top-k", "10"]
    assert program.called == ["search", "question", *files, *options]
    search(n_lines=2, n_results=4)
    assert program.called[3:] == ["--json", "--n-lines", "2", "--max-distance", "0.5", "--top-k", "4"]


def test_a_query_or_file_that_begins_with_a_dash_is_data(program: Program) -> None:
    program.answers(NEW)
    assert search("--help", ["-dash.md", "a.md"])["query"] == "--help"
    options = ["--json", "--n-lines", "0", "--max-distance", "0.5", "--top-k", "10"]
    assert program.called == ["search", *options, "--", "--help", "./-dash.md", "a.md"]


def test_a_missing_or_old_program_is_reported_with_how_to_install_it(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.answers(NEW)
    hint = {"error_type": "prerequisite_missing", "install_hint": "npm i -g @llamaindex/semtools"}
    for version, accepted in (("semtools 1.5.1", True), ("1.10.0", True), ("semtools 1.5.0", False), ("?", False)):
        program.says_version(version)
        found = search(check_version=True)
        assert found["success"] is accepted, version
        assert accepted or found == {**FAILED, **hint, "error": found["error"]}
        assert search()["success"], "any version will do unless one is asked for"
    program.says_version("semtools 3.4.0")
    assert [search(min_version=wanted)["success"] for wanted in ("4", "3.4", "3.4.1", 2)] == [False, True, False, True]
    monkeypatch.setenv("PATH", "/nonexistent")
    found = search()
    assert found == {**FAILED, **hint, "error": found["error"]}


def test_more_files_than_one_call_takes_are_searched_by_several(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftline.flows.actions.semtools._MAX_ARGUMENT_BYTES", 10)
    program.answers(NEW)
    assert [match["score"] for match in search(files=["a.md", "notes/b.md"])["matches"]] == [0.75, 0.75, 0.5, 0.5]
    assert program.called[2:4] == ["notes/b.md", "--json"]
    assert search(files=["a.md", "notes/b.md"], n_results=1)["total_matches"] == 1


def test_the_program_is_not_called_without_searchable_files(program: Program, tmp_path: Path) -> None:
    (tmp_path / "photo.bin").write_bytes(b"\0\1" * 100)
    found = search(files="photo.bin")
    assert (found["matches"], found["skipped_files"]) == ([], [{"path": "photo.bin", "reason": "binary"}])
    assert not (program.folder / "called").exists()


def test_the_error_of_a_failing_program_is_quoted(program: Program) -> None:
    program.answers(NEW, code=3, stderr="no model\n")
    found = search()
    assert found == {**FAILED, "error": found["error"], "error_type": "cli_error", "stderr": "no model\n"}
    assert "code 3" in found["error"]
    assert "no model" in found["error"]


@pytest.mark.parametrize(
    "answer",
    ["oops", "{}", '{"results": 7}', "[1]", '[{"file": "a"}]', [{**NEW["results"][0], "match_line_number": 9}]],
)
def test_an_unexpected_answer_is_a_parse_error(program: Program, answer: Any) -> None:
    program.answers(answer)
    found = search()
    assert found == {**FAILED, "error": found["error"], "error_type": "parse_error"}


def test_a_program_that_hangs_is_stopped_with_its_children(program: Program) -> None:
    program.answers(NEW, sleep=100_000)
    started = program.folder / "child"
    for seconds in (1.5, 15, 150):  # a busy machine may take longer to start it
        found = search(timeout=seconds)
        assert found == {**FAILED, "error": found["error"], "error_type": "timeout"}
        if started.exists() and started.read_text():
            break
    child = int(started.read_text())
    until(lambda: not _runs(child), "the end of the child")


def test_bad_arguments_and_missing_files_are_errors_before_the_call(program: Program) -> None:
    for options, error_type in (
        ({"files": "missing.md"}, "file_not_found"),
        ({"files": "*.zip"}, "file_not_found"),
        ({"files": []}, "validation_error"),
        ({"query": ""}, "validation_error"),
        ({"n_results": -1}, "validation_error"),
        ({"max_distance": -1}, "validation_error"),
        ({"timeout": 0}, "validation_error"),
        ({"engine": "program"}, "validation_error"),
    ):
        found = search(**options)
        assert found == {**FAILED, "error": found["error"], "error_type": error_type}
    assert not (program.folder / "called").exists()


def test_an_engine_object_of_the_host_selects_our_engine(program: Program) -> None:
    (program.folder.parent / "a.md").write_text("potatoes\nthe lease has expired\n")
    found = semtools_search({}, query="-lease expired", files="*.md", engine=object(), max_distance=0.9)
    assert (found["best_match"]["file"], found["best_match"]["line"]) == ("a.md", 2)
    assert found["best_match"]["context"] == ["the lease has expired"]
    assert not (program.folder / "called").exists()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

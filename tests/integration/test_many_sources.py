"""``driftline index --all``: one run over the sources of a file, each independent of the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driftline.flows.runs.source_run import SourceRun
from driftline.storage.errors import StorageError

Driftline = Callable[..., Any]


@pytest.fixture
def team(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a file of three sources, one of which is missing."""
    for name, text in {"web/a.py": "alpha = 1\n", "web/b.js": "let beta\n", "docs/guide/c.md": "gamma\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "driftline.toml").write_text(
        f"""
workspace = "index"
model = "{tiny_model}"

[[sources]]
uri = "web"
include = ["*.py"]

[[sources]]
uri = "gone"

[[sources]]
uri = "docs"
entity = "org:acme/project:alpha/source:handbook"
"""
    )
    for variable in ("DRIFTLINE_CONFIG", "DRIFTLINE_WORKSPACE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def documents(outcome: Any) -> dict[str, int]:
    return {s["entity"].rpartition(":")[2]: s["documents_total"] for s in outcome.json["sources"]}


def test_a_source_that_fails_does_not_stop_the_others(
    team: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = driftline("index", "--all", "--json")
    assert done.code == 3
    assert done.json["workspace"] == str(team / "index")
    assert documents(done) == {"web": 1, "handbook": 1}
    (failure,) = done.json["failed"]
    assert (failure["uri"], failure["error"]) == (str(team / "gone"), "source_not_found")
    (run,) = driftline("runs", "--json", "--limit", 1).json["runs"]
    assert (run["outcome"], run["failed"]) == ("source_not_found", [failure["uri"]])
    # The file is authoritative: settings removed from it no longer apply.
    text = (team / "driftline.toml").read_text()
    (team / "driftline.toml").write_text(text.replace('include = ["*.py"]\n', "").replace('"gone"', '"docs/guide"'))
    monkeypatch.chdir(team / "web")
    repeated = driftline("index", "--all", "--json")
    assert (repeated.code, repeated.json["failed"]) == (0, [])
    assert documents(repeated) == {"web": 2, "guide": 1, "handbook": 1}
    # Reading commands find the workspace of the file.
    assert driftline("status", "--json").json["total_documents"] == 4
    told = driftline("index", "--all")
    assert "in step after" in told.out


def test_if_no_source_can_start_nothing_is_written(team: Path, driftline: Driftline) -> None:
    (team / "driftline.toml").write_text('[[sources]]\nuri = "gone"\n[[sources]]\nuri = "lost"\n')
    failed = driftline("index", "--all", "--json")
    assert (failed.code, failed.json["error"]) == (2, "source_not_found")
    assert not (team / ".driftline").exists()


def test_a_dry_run_over_all_writes_nothing(team: Path, driftline: Driftline) -> None:
    planned = driftline("index", "--all", "--dry-run", "--json")
    assert (planned.code, documents(planned)) == (3, {"web": 0, "handbook": 0})
    assert {s["new"] for s in planned.json["sources"]} == {1}
    assert not (team / "index").exists()


@pytest.mark.parametrize(
    "arguments",
    [("--all", "web"), ("--all", "--entity", "source:x"), ("--all", "--include", "*.py"), ("web", "--config", "x"), ()],
)
def test_all_and_source_exclude_each_other(team: Path, driftline: Driftline, arguments: tuple[str, ...]) -> None:
    wrong = driftline("index", *arguments)
    assert (wrong.code, "SOURCE" in wrong.err or "--all" in wrong.err) == (2, True)


def test_without_a_file_all_says_what_is_missing(
    driftline: Driftline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRIFTLINE_CONFIG", raising=False)
    missing = driftline("index", "--all")
    assert (missing.code, "driftline.toml" in missing.err) == (2, True)


def test_the_nearest_workspace_is_used_unless_the_file_is_named(
    team: Path, driftline: Driftline, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert driftline("index", "docs", "--model", tiny_model).code == 0  # without --all the file is ignored
    monkeypatch.chdir(team / "docs" / "guide")
    assert driftline("sources", "--json").json["workspace"] == str(team / "docs" / ".driftline")
    monkeypatch.setenv("DRIFTLINE_CONFIG", str(team / "driftline.toml"))
    assert driftline("sources").code == 2  # the workspace of the file does not exist yet


def test_fifty_sources_are_indexed_beside_each_other_whatever_happens_to_two_of_them(
    tmp_path: Path, tiny_model: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"repository_{number:02}" for number in range(50)]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text(f"def of_{name}():\n    return 1\n")
    tables = "".join(f'[[sources]]\nuri = "{name}"\n' for name in names)
    (tmp_path / "driftline.toml").write_text(f'workspace = "index"\nmodel = "{tiny_model}"\n{tables}')
    monkeypatch.setenv("DRIFTLINE_CONFIG", str(tmp_path / "driftline.toml"))
    monkeypatch.delenv("DRIFTLINE_WORKSPACE", raising=False)
    running, most_at_once, lock = 0, 0, threading.Lock()
    execute = SourceRun.execute

    def watched(run: SourceRun) -> None:
        nonlocal running, most_at_once
        with lock:
            running += 1
            most_at_once = max(most_at_once, running)
        try:
            if run.entity.parts[-1][1] in (names[7], names[31]):
                raise StorageError("The disk has failed", run.report.uri)
            execute(run)
        finally:
            with lock:
                running -= 1

    with monkeypatch.context() as patch:
        patch.setattr(SourceRun, "execute", watched)
        failed = driftline("index", "--all", "--indexes", "none", "--json")
    assert failed.code == 3
    assert most_at_once > 1
    assert sorted(failure["uri"] for failure in failed.json["failed"]) == [str(tmp_path / names[i]) for i in (7, 31)]
    assert [source["uri"] for source in failed.json["sources"]] == [str(tmp_path / name) for name in names]
    assert sum(source["new"] for source in failed.json["sources"]) == 48
    assert failed.json["phases"]["lease"] > 0
    done = driftline("index", "--all", "--indexes", "none", "--json")
    assert (done.code, done.json["failed"]) == (0, [])
    assert {source["documents_total"] for source in done.json["sources"]} == {1}
    assert driftline("status", "--json").json["total_lines"] == 100

"""Every command ends without a traceback, whatever its streams, locale, folder and arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from driftline.flows.commands.main import COMMANDS, main
from tests.hostile.odd_streams import CONDITIONS
from tests.support.processes import ForkedProgram
from tests.support.waiting import PATIENCE_SECONDS

ODD_STREAMS = Path(__file__).with_name("odd_streams.py")
PROGRAM = str(Path(sys.executable).parent / "driftline")
NOT_UTF8 = b"gr\xf6\xdfe"
LINES: dict[str, Sequence[str]] = {
    "index": ("index", "."),
    "remove": ("remove", "source:none"),
    "search": ("search", "heron größe"),
    "status": ("status",),
    "sources": ("sources",),
    "grep": ("grep", "heron", "größe.txt"),
    "pull": ("pull", "copy"),
    "compact": ("compact",),
    "cleanup": ("cleanup",),
    "verify": ("verify",),
    "serve": ("serve", "--help"),
    "deploy": ("deploy", "--help"),
    "mcp": ("mcp",),
    "web": ("web", "--help"),
    "watch": ("watch", "--help"),
    "branches": ("branches",),
    "diff": ("diff", "main"),
    "ci": ("ci",),
    "runs": ("runs",),
    "report": ("report",),
    "memory": ("memory", "list"),
    "token": ("token", "list"),
    "trust": ("trust",),
    "sql": ("sql", "SELECT 'größe' AS name"),
    "agents": ("agents", "list"),
    "fleet": ("fleet", "list", "--help"),
}
"""A call of each command that exits by itself."""
QUIET = {"mcp", "trust", "remove", "pull", "diff", "ci", "memory"}
"""Commands whose calls above may print nothing to standard output."""
PRINTING = ("index", "search", "status", "grep", "runs", "web")
"""Commands that print names and lines, each through different code."""
AS_JSON = {f"{name} as JSON": (*LINES[name], "--json") for name in ("index", "search", "status", "grep", "runs", "sql")}
CALLS = LINES | AS_JSON


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an index of one document."""
    location = tmp_path_factory.mktemp("location")
    (location / "größe.txt").write_text("the heron lands, größe\n")
    assert run(["index", "."], location).returncode == 0
    return location


def run(
    arguments: Sequence[str | bytes],
    cwd: Path,
    output: str = "",
    *,
    before: str = "",
    **environment: str,
) -> subprocess.CompletedProcess[bytes]:
    """Run ``before`` and then ``driftline`` in a shell that redirects standard ``output``."""
    script = f'{before}\nexec "$@" {output}'
    command = ["sh", "-c", script, "sh", PROGRAM, *arguments]
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, capture_output=True,
        timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip


def check_end(name: str, ended: subprocess.CompletedProcess[bytes], codes: Sequence[int]) -> None:
    outcome = ended.stderr.decode("utf-8", "replace")
    assert b"Traceback" not in ended.stdout + ended.stderr, (name, outcome)
    assert not any(sign in outcome for sign in ("unexpected", "Exception ignored")), (name, outcome)
    assert ended.returncode in codes, (name, ended.returncode, outcome)


def forked(condition: str, name: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command's call in a fork with odd streams or an odd folder."""
    process = ForkedProgram(ODD_STREAMS, condition, *CALLS[name])
    out, err = process.communicate(PATIENCE_SECONDS)
    return subprocess.CompletedProcess(CALLS[name], process.wait(), os.fsencode(out), os.fsencode(err))


def test_each_command_has_a_summary() -> None:
    assert set(LINES) == set(COMMANDS)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_every_command_succeeds_or_explains_its_failure_with(
    condition: str, location: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_gone = condition == "a directory that is gone"
    monkeypatch.chdir(tmp_path if is_gone else location)
    for name in LINES if is_gone else CALLS if condition in ("full", "closed") else PRINTING:
        ended = forked(condition, name)
        check_end(name, ended, (0, 2) if is_gone else (0, 1, 2, 3))
        if condition in ("full", "closed") and name not in QUIET:
            assert ended.returncode == 3 or name == "cleanup", (name, ended)
            assert b"Cannot write to standard output" in ended.stderr, (name, ended)


AT_THE_START: dict[str, dict[str, str]] = {
    "full": {"output": ">/dev/full"},
    "closed": {"output": ">&-"},
    "all closed": {"output": "<&- >&- 2>&-"},
    "a pipe nobody reads": {"output": "| true"},
    "an ASCII output": {"PYTHONIOENCODING": "ascii:strict"},
    "a POSIX locale": {"LC_ALL": "POSIX"},
    "an ASCII file system": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "a directory that is gone": {"before": "mkdir gone && cd gone && rmdir ../gone"},
}


@pytest.mark.parametrize("condition", AT_THE_START)
def test_an_interpreter_succeeds_or_explains_its_failure_with(condition: str, location: Path) -> None:
    names = (
        ("index", "grep") if "locale" in condition or "file system" in condition else ("search",)
    )  # both search below
    for name in names:
        check_end(name, run(LINES[name], location, **AT_THE_START[condition]), (0, 2, 3))


@pytest.mark.parametrize("output", [">/dev/full", ">&-"])
def test_a_failure_is_printed_to_standard_error_if_it_cannot_be_printed_as_json(location: Path, output: str) -> None:
    ended = run(["search", "heron", "--ext", "*", "--json"], location, output)
    check_end("search", ended, (2, 3))
    assert ended.stderr.startswith(b"driftline: ")


@pytest.mark.parametrize(("options", "output"), [([], "2>&1 >/dev/null | true"), (["--log-json"], "2>/dev/full")])
def test_a_run_goes_on_if_its_messages_cannot_be_written(
    options: list[str], output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("the heron lands\n")
    os.mkfifo(tmp_path / ".gitignore")  # a message warns of it
    run([*options, "index", "."], tmp_path, output)
    assert main(["search", "heron", "--workspace", str(tmp_path / ".driftline")]) == 0
    assert "a.txt:1" in capsys.readouterr().out


@pytest.mark.parametrize("option", [[], ["--workspace"], ["--model"]])
def test_the_home_of_nobody_is_a_clear_error(
    location: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    assert main(["index", *([str(location), *option] if option else []), "~nobody-of-this-name/x"]) == 2
    assert "The home folder is unknown" in capsys.readouterr().err


def test_a_user_without_a_home_indexes_and_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("the heron lands\n")
    (tmp_path / "b.md").write_text("the stork lands\n")
    assert main(["index", "."]) == 0
    for command in (["search", "heron", "--ext", "txt"], ["status"], ["sources"], ["report"], ["verify"]):
        assert main(command) == 0, capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {".driftline", "a.txt", "b.md"}


@pytest.mark.parametrize("name", LINES)
def test_every_command_refuses_arguments_that_are_not_utf8(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["no such file"] if name == "grep" else []
    assert main([name, os.fsdecode(NOT_UTF8), *files]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("folder", "variables"),
    [
        ("location", {"DRIFTLINE_WORKSPACE": "{odd}/ws"}),
        ("location", {"DRIFTLINE_WORKSPACE": "@notes", "DRIFTLINE_HOME": "{odd}"}),
        ("{odd}", {"DRIFTLINE_WORKSPACE": "ws"}),
        ("{odd}/inside", {}),
    ],
)
@pytest.mark.parametrize("command", ["index", "watch"])
def test_a_path_that_is_not_utf8_is_refused_without_a_traceback(
    folder: str, variables: dict[str, str], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    odd = tmp_path / os.fsdecode(NOT_UTF8)
    for each in (tmp_path / "location", odd / "inside"):
        each.mkdir(parents=True)
        (each / "a.txt").write_text("the heron lands\n")
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(odd=odd))
    monkeypatch.chdir(tmp_path / folder.format(odd=odd))
    assert main([command, "."]) == 2
    outcome = capsys.readouterr().err
    assert "not UTF-8" in outcome
    assert "Traceback" not in outcome
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.txt", "a.txt", odd.name, "inside", "location"]


def test_a_name_that_is_not_utf8_can_be_grepped(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(NOT_UTF8)).write_text("the heron lands\n")
    ended = run(["grep", "heron", NOT_UTF8], tmp_path)
    check_end("grep", ended, (0,))
    assert b"the heron lands" in ended.stdout


@pytest.mark.parametrize(
    "options", [{"LC_ALL": "POSIX"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_a_query_means_the_same_in_any_locale(location: Path, options: dict[str, str]) -> None:
    ended = run(["search", "größe", "--mode", "text", "--path", "größe.txt", "--json"], location, **options)
    check_end("search", ended, (0,))
    assert b"the heron lands" in ended.stdout

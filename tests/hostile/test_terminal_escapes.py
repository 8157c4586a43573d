"""No control character in a name, line or message from an untrusted source reaches the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Driftline = Callable[..., Any]

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b1m\u202e"
FORBIDDEN = {*map(chr, range(32)), *map(chr, range(127, 160)), "\u202e"} - {"\n", "\t"}


@pytest.fixture(autouse=True)
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder: a source whose names, lines, ignore files and configuration contain escape sequences."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"tree{ESCAPE}").mkdir()
    tree = tmp_path / "tree"
    (tree / f"folder{ESCAPE}").mkdir(parents=True)
    (tree / f"folder{ESCAPE}" / f"file{ESCAPE}.txt").write_text(f"a line with {ESCAPE} in it\n" + "a plain line\n" * 50)
    (tree / f"binary{ESCAPE}").write_bytes(b"\0\1\2")
    (tree / f"link{ESCAPE}").symlink_to(tmp_path)
    os.mkfifo(tree / ".gitignore")
    (tmp_path / f"plain{ESCAPE}.txt").write_text("a plain file\n")
    (tmp_path / f"odd{ESCAPE}.toml").write_text(f'[[source]]\nuri = "x"\n"{ascii(ESCAPE)[1:-1]}" = 1\n')


TREE = "tree"
COMMANDS: list[tuple[object, ...]] = [
    ("index", TREE),
    ("index", f"tree{ESCAPE}"),
    ("index", TREE, "--dry-run"),
    ("index", f"missing{ESCAPE}"),
    ("index", f"plain{ESCAPE}.txt"),
    ("index", TREE, "--entity", f"org:{ESCAPE}"),
    ("index", TREE, "--model", f"model{ESCAPE}"),
    ("index", TREE, "--exclude", f"[{ESCAPE}"),
    ("index", TREE, f"--option{ESCAPE}"),
    ("index", "--all", "--config", f"odd{ESCAPE}.toml"),
    ("index", "--all", "--config", f"missing{ESCAPE}.toml"),
    ("index", f"s3{ESCAPE}://bucket/x"),
    ("index", f"odd{ESCAPE}://bucket/x"),
    (f"command{ESCAPE}",),
    ("search", "line"),
    ("search", "line", "--explain"),
    ("search", "line", "--in", f"name{ESCAPE}"),
    ("search", "line", "--entity", f"org:{ESCAPE}"),
    ("search", "line", "--workspace", f"nowhere{ESCAPE}"),
    ("grep", "line", TREE),
    ("grep", "line", f"missing{ESCAPE}"),
    ("grep", "line", f"{TREE}/binary{ESCAPE}"),
    ("status",),
    ("sources",),
    ("runs",),
    ("ci", TREE),
    ("ci", TREE, "--summary", f"missing{ESCAPE}/file"),
    ("compact",),
    ("cleanup", "--max-age-seconds", 0),
    ("verify",),
    ("memory", "put", f"key{ESCAPE}", "1"),
    ("memory", "get", f"key{ESCAPE}"),
    ("report", "--out", f"report{ESCAPE}.html"),
    ("report", "--out", f"missing{ESCAPE}/report.html"),
    ("remove", f"org:{ESCAPE}"),
]


def test_no_command_prints_a_control_character(driftline: Driftline, tmp_path: Path) -> None:
    at = ("--workspace", tmp_path / "workspace")
    indexed = driftline("index", TREE, *at, "--json")
    assert indexed.json.get("sources", [{}])[0].get("new") == 1, indexed
    (tmp_path / "workspace" / f"foreign{ESCAPE}").write_text("x")
    shown = {}
    for command in COMMANDS:
        with_location = command[0] in ("grep", f"command{ESCAPE}") or "--workspace" in command
        done = driftline(*command, *(() if with_location else at))
        text = done.out + done.err
        assert text, command
        if found := FORBIDDEN & set(text):
            shown[" ".join(map(str, command))] = (sorted(found), text)
    assert shown == {}


def test_warnings_and_tracebacks_are_escaped(tmp_path: Path) -> None:
    """Runs in its own process, where nothing captures the logs."""
    program = f"""
import logging, sys
from driftline.flows.commands import main as command_line
from driftline.flows.commands.app import app
@app.command("fail")
def fail():
    logging.getLogger("driftline.x").warning("warned of %s", {ESCAPE!r})
    raise RuntimeError({ESCAPE!r})
sys.exit(command_line.main(["fail"]))
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 3
    for part in ("warned of", "RuntimeError", "Traceback"):
        assert part in ran.stderr
    assert not FORBIDDEN & set(ran.stderr + ran.stdout)

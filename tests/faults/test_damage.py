"""Damaged workspaces: a correct result or a clear error, never a traceback; a repair rebuilds what it can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from driftline.storage.lance.failures import read_fragments
from driftline.storage.lance.reader_process import ProcessDied, run_in_worker
from driftline.storage.lines.line_table import LineTable
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.maintenance.verification import changed_documents
from tests.faults.damage import ABORTED, COLUMNS, COMMANDS, KINDS, Example, cells, values_of
from tests.support.effort import examples

LOST_FOR_GOOD = {"value of a memory entry"}
"""Damage that cannot be repaired; verify reports it."""
BY_ANOTHER_COMMAND = {
    *("memory catalog", "vectors of memory", "words of memory", "maintenance lease"),
    *("version of the table of memory", "deletions of memory"),
}
"""The error or finding names the command, or the file to delete, since ``verify --repair`` cannot judge."""
CHANGED = ("empty", "cut", "one bit flipped")
"""Ways to change a file: one is tried for each kind, or all under ``make proofs``."""


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    return Example.make(tmp_path_factory.mktemp("damage") / "example")


@pytest.mark.parametrize("kind", KINDS)
def test_damage_causes_no_traceback_and_can_be_repaired(example: Example, kind: str, tmp_path: Path) -> None:
    """Delete each kind of file, write it in a newer format, and change it in one way; ``make proofs`` tries every
    way.
    """
    left_out = {*CHANGED} - {CHANGED[[*KINDS].index(kind) % len(CHANGED)]} if examples(1) == 1 else set[str]()
    for number, way in enumerate(cells(kind)):
        if way in left_out:
            continue
        location = tmp_path / str(number)
        location.mkdir()
        damaged = example.copy(location)
        damaged.damage(kind, way)
        ended = {name: damaged.run(*command) for name, command in COMMANDS.items()}
        assert ABORTED not in [each.kind for each in ended.values()], f"{kind}, {way}"
        unclear = {name: each.output[-800:] for name, each in ended.items() if not each.is_clear}
        assert unclear == {}, f"{kind}, {way}"
        if way == "newer format":
            continue  # every command that needs the file rejects it and must not rewrite it
        if kind not in LOST_FOR_GOOD | BY_ANOTHER_COMMAND:
            assert not ended["verify --repair"].kind, f"{kind}, {way}: {ended['verify --repair'].output}"
            assert ended["verify again"].code == 0, f"{kind}, {way}: {ended['verify again'].output}"
        if ended["search again"].code == 0:
            hits = json.loads(ended["search again"].output.splitlines()[-1])["results"]
            assert (hits[0]["path"], hits[0]["text"]) == ("1.txt", "the needle of the haystack"), f"{kind}, {way}"
        else:
            pytest.fail(f"{kind}, {way}: {ended['search again'].output}")


def _read_and_examined(table: LineTable) -> tuple[list[dict[str, Any]] | None, bool]:
    """Return the values of the lines, or None if Lance cannot decode them, and whether verify finds anything."""
    unreadable, changed = read_fragments(table.open(), examine=changed_documents)
    rows = None if unreadable else table.open().to_table(columns=[*COLUMNS.values()]).to_pylist()
    return rows, bool(unreadable or changed)


def test_no_changed_bit_of_a_text_goes_unnoticed(example: Example, tmp_path: Path) -> None:
    """Each bit is of the values of one column; a code of a block may differ in a few bits, which changes no answer."""
    damaged, random = example.copy(tmp_path), Random(1)
    path = damaged.file_of("lines")
    sound = path.read_bytes()
    workspace = Workspace.open(str(damaged.workspace))
    table = workspace.lines(workspace.tenants()[0])
    expected, found = run_in_worker(_read_and_examined, table)
    assert expected
    assert not found
    for column in [*COLUMNS.values()] * examples(4):
        values, data = values_of(path, column), bytearray(sound)
        at = random.randrange(values.start, values.stop)
        data[at] ^= 1 << random.randrange(8)
        path.write_bytes(data)
        try:
            rows, found = run_in_worker(_read_and_examined, table)
        except ProcessDied:
            continue  # verify reports the fragment
        finally:
            path.write_bytes(sound)
        if column == "block_code" and rows is not None:
            rows = [{**row, column: None} for row in rows]
            assert found or rows == [{**row, column: None} for row in expected], (column, at)
        else:
            assert found or rows == expected, (column, at)


MAY_ABORT = ("search", "index", "compact")
"""Commands that may abort with an explanation; verify, repair, and all later commands must not abort."""


@pytest.mark.parametrize("seed", range(int(os.environ.get("DRIFTLINE_DAMAGED_WORKSPACES", "6"))))
def test_any_change_of_a_table_is_clear_and_repaired(example: Example, seed: int, tmp_path: Path) -> None:
    damaged = example.copy(tmp_path)
    path = damaged.fuzz(Random(seed)).relative_to(tmp_path)
    ended = {name: damaged.run(*COMMANDS[name]) for name in COMMANDS if name not in MAY_ABORT[1:]}
    assert {name: each.output[-800:] for name, each in ended.items() if not each.is_clear} == {}, path
    assert [name for name, each in ended.items() if each.kind == ABORTED and name not in MAY_ABORT] == [], path
    assert ended["search again"].code in (0, 1), (path, ended["search again"].output)
    if "memory_" not in str(path):
        assert ended["verify again"].code == 0, (path, ended["verify again"].output)


def test_a_command_that_native_code_aborts_says_so() -> None:
    code = (
        "import sys, os, threading; from driftline.flows.commands import main\n"
        "def abort():\n    thread = threading.Thread(target=os.abort); thread.start(); thread.join()\n"
        "main.main = abort\n"
        "sys.exit(main.command_line())"
    )
    for options, stream in ((["--json"], "stdout"), ([], "stderr")):
        command = [sys.executable, "-c", code, "search", "x", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, "verify --repair" in getattr(done, stream)) == (2, True), done.stderr
        assert "Traceback" not in done.stderr
        if options:
            assert json.loads(done.stdout)["error"] == "corrupt_file"

"""Damaged workspaces: a right answer or a clear error, never a traceback; a repair makes whole what can be rebuilt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults.damage import COMMANDS, KINDS, Example, cells

LOST_FOR_GOOD = {"value of a memory entry"}
"""No other file holds it; verify names it."""
BY_ANOTHER_COMMAND = {"memory catalog", "vectors of memory", "words of memory", "maintenance lease"}
"""The error or finding names the command, or the file to delete, since ``verify --repair`` cannot judge."""


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    return Example.make(tmp_path_factory.mktemp("damage") / "example")


@pytest.mark.parametrize("kind", KINDS)
def test_no_damage_ends_in_a_traceback_and_a_repair_makes_whole(example: Example, kind: str, tmp_path: Path) -> None:
    for number, way in enumerate(cells(kind)):
        place = tmp_path / str(number)
        place.mkdir()
        damaged = example.copy(place)
        damaged.damage(kind, way)
        ended = {name: damaged.run(*command) for name, command in COMMANDS.items()}
        unclear = {name: each.output[-800:] for name, each in ended.items() if not each.is_clear}
        assert unclear == {}, f"{kind}, {way}"
        if way == "newer format":
            continue  # refused by every command that needs the file: nothing of it may be rewritten
        if kind not in LOST_FOR_GOOD | BY_ANOTHER_COMMAND:
            assert ended["verify again"].code == 0, f"{kind}, {way}: {ended['verify again'].output}"
        if ended["search again"].code == 0:
            hits = json.loads(ended["search again"].output.splitlines()[-1])["results"]
            assert (hits[0]["path"], hits[0]["text"]) == ("1.txt", "the needle of the haystack"), f"{kind}, {way}"
        else:
            pytest.fail(f"{kind}, {way}: {ended['search again'].output}")

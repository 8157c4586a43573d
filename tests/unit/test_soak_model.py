"""The oracle of the fault soak detects lost, old and invented entries."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.soak.commands import Commands, Done, Host
from tests.soak.memory_model import MemoryModel

HOST = Host("east", 0.0, Path("/"))
KEY = "east 0"


class Scripted(Commands):
    """Commands with predefined responses."""

    def __init__(self, *answers: Done) -> None:
        super().__init__("", {}, random.Random(1))
        self._answers = list(answers)

    def run(self, host: Host, *arguments: object, gently: bool = False) -> Done:
        return self._answers.pop(0)


def put(code: int | None) -> Done:
    return Done(code, {})


def got(value: Any) -> Done:
    return Done(1, {}) if value is None else Done(0, {"value": value})


@pytest.mark.parametrize(
    ("outcome", "found", "is_right"),
    [
        (0, "new", True),
        (0, "old", False),
        (0, None, False),
        (None, "new", True),
        (None, "old", True),
        (None, None, False),
    ],
)
def test_an_acknowledged_value_must_exist_and_one_in_flight_may(
    outcome: int | None, found: str | None, is_right: bool
) -> None:
    commands = Scripted(put(outcome), got(found))
    memory = MemoryModel(commands, HOST, random.Random(1))
    memory._may_be[KEY] = {"old"}
    memory._put(KEY)
    (new,) = memory._may_be[KEY] - {"old"}
    commands._answers = [got(new if found == "new" else found)]
    memory._get(KEY)
    assert (commands.problems == []) is is_right


def test_lost_and_invented_keys_of_a_listing_are_noticed() -> None:
    for keys, is_right in (([KEY], True), ([], False), ([KEY, "east 1"], False)):
        commands = Scripted(Done(0, {"entries": [{"key": key} for key in keys]}))
        memory = MemoryModel(commands, HOST, random.Random(1))
        memory._may_be[KEY] = {"value"}
        memory._list()
        assert (commands.problems == []) is is_right


@pytest.mark.parametrize(
    ("code", "out", "err", "is_right"),
    [
        (0, "{}", "", True),
        (3, '{"error": "lease_held"}', "", True),
        (3, '{"error": "storage_error"}', "", False),
        (3, '{"error": "unexpected"}', "", False),
        (0, "{}", "Traceback (most recent call last):", False),
        (-6, "", "Aborted", False),
        (-9, "", "", True),
    ],
)
def test_under_contention_commands_fail_only_with_a_held_lease(code: int, out: str, err: str, is_right: bool) -> None:
    commands = Commands("", {}, random.Random(1))
    commands._judge(["index"], code, out, err)
    assert (commands.problems == []) is is_right

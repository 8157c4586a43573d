"""A model of memory after commands, some of which were killed: memory has all acknowledged changes and may have
unfinished ones.
"""

from __future__ import annotations

import random

from tests.soak.commands import Commands, Host
from tests.support.oracle import WORDS

KEYS = 6
LONG = 2_000
"""Number of characters of the longer values, which become blobs."""
ACME = ("--within", "org:acme")
GONE = None


class MemoryModel:
    """The entries of one host, their only writer. After an unknown outcome, an entry may have its old or its new
    value.
    """

    def __init__(self, commands: Commands, host: Host, chance: random.Random) -> None:
        self._commands, self._host, self._chance = commands, host, chance
        self._user = f"org:acme/user:{host.name}"
        self._may_be: dict[str, set[str | None]] = {f"{host.name} {n}": {GONE} for n in range(KEYS)}

    def step(self) -> None:
        """Store, delete, read, list or search."""
        key = self._chance.choice(list(self._may_be))
        match self._chance.randrange(8):
            case 0 | 1 | 2:
                self._put(key)
            case 3:
                self._delete(key)
            case 4 | 5:
                self._get(key)
            case 6:
                self._list()
            case _:
                self._search()

    def check(self) -> None:
        """Compare every entry, and all listing and search results, with the model."""
        for key in self._may_be:
            self._get(key, gently=True)
        self._list(gently=True)
        self._search(gently=True)

    def _put(self, key: str) -> None:
        word, length = self._chance.choice(WORDS), self._chance.choice((0, LONG))
        value = f"{word} {self._chance.random()} {'x' * length}"
        before = self._may_be[key]
        self._may_be[key] = before | {value}
        if self._commands.run(self._host, "memory", "put", key, value, "--entity", self._user).code == 0:
            self._may_be[key] = {value}

    def _delete(self, key: str) -> None:
        self._may_be[key] = self._may_be[key] | {GONE}
        if self._commands.run(self._host, "memory", "delete", key, *ACME).code in (0, 1):
            self._may_be[key] = {GONE}

    def _get(self, key: str, *, gently: bool = False) -> None:
        done = self._commands.run(self._host, "memory", "get", key, *ACME, gently=gently)
        if done.code not in (0, 1):
            return
        found = done.answer["value"] if done.code == 0 else GONE
        if found not in self._may_be[key]:
            self._commands.problem(f"{key} is {str(found)[:60]}, not one of {_short(self._may_be[key])}")
        self._may_be[key] = {found}

    def _list(self, *, gently: bool = False) -> None:
        done = self._commands.run(self._host, "memory", "list", self._user, *ACME, gently=gently)
        if done.code != 0:
            return
        keys = {entry["key"] for entry in done.answer["entries"]}
        must = {key for key, values in self._may_be.items() if GONE not in values}
        may = {key for key, values in self._may_be.items() if values != {GONE}}
        if not must <= keys <= may:
            self._commands.problem(f"listed {sorted(keys)}, must {sorted(must)}, may {sorted(may)}")

    def _search(self, *, gently: bool = False) -> None:
        query = self._chance.choice(WORDS)
        done = self._commands.run(self._host, "memory", "search", query, "--top-k", 50, *ACME, gently=gently)
        if done.code != 0:
            return
        for record in (each["record"] for each in done.answer["results"]):
            if record["key"] in self._may_be and record["value"] not in self._may_be[record["key"]]:
                self._commands.problem(f"search found {record['key']} as {str(record['value'])[:60]}")


def _short(values: set[str | None]) -> list[str]:
    return [str(value)[:60] for value in values]

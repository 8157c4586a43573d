"""The delta index, compared with a dict that keeps the full history of each key."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from driftline.storage.deltas import delta_index as delta
from driftline.storage.deltas.delta_index import ADD, REMOVE, REMOVE_RETENTION, DeltaIndex
from driftline.storage.errors import UsageError
from driftline.storage.layout import new_ulid
from driftline.storage.objects.store import ObjectStore
from tests.support.effort import examples

FIELDS = (pa.field("key", pa.string()), pa.field("value", pa.int64()))
KEYS = st.sampled_from(
    ["", "a", "a/b", "a/b/c", "a/é", "ab", "b", "b/\U0010ffff", "b/\U0010ffffc", "c", "z/\ud7ff", "z/z"]
)
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def _joined(pieces: Iterator[pa.Table]) -> pa.Table:
    return pa.concat_tables([pa.schema(FIELDS).empty_table(), *(piece.select(["key", "value"]) for piece in pieces)])


class DeltaIndexMachine(RuleBasedStateMachine):
    """Two indexes over the same history. ``written`` deltas may be published late, twice, or after newer ones."""

    @initialize()
    def begin(self) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="delta-model-")
        self.index = DeltaIndex(ObjectStore.open(self.directory.name), "org:a/source:b", "test", FIELDS)
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(delta, "ROW_GROUP_ROWS", 3)
        self.patch.setattr(delta, "GROUPS_PER_READ", 2)
        self.patch.setattr(delta, "ROUND_BYTES", 6_000)  # two or three deltas at once
        self.now = NOON
        self.rev = 0
        self.compacted_rev = 0
        self.published_rev = 0
        self.changes: dict[tuple[str, int], int | None] = {}
        self.held: list[tuple[str, bytes, dict[tuple[str, int], int | None], datetime]] = []
        self.past: list[tuple[str, bytes, datetime]] = []

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()
            self.directory.cleanup()

    # -- the model ---------------------------------------------------------------------------

    def expected(self, as_of: int | None = None) -> dict[str, int]:
        newest: dict[str, tuple[int, int | None]] = {}
        for (key, rev), value in self.changes.items():
            if (as_of is None or rev <= as_of) and newest.get(key, (-1, None))[0] < rev:
                newest[key] = (rev, value)
        return {key: value for key, (_, value) in newest.items() if value is not None}

    @staticmethod
    def rows(table: pa.Table) -> dict[str, int]:
        keys = table["key"].to_pylist()
        assert keys == sorted(set(keys)), "keys are unique and sorted"
        return dict(zip(keys, table["value"].to_pylist(), strict=True))

    # -- operations ---------------------------------------------------------------------------

    def encode(self, added: dict[str, int], removed: set[str]) -> tuple[bytes, dict[tuple[str, int], int | None]]:
        self.rev += 1
        removed = removed - added.keys()
        values = pa.table({"key": list(added), "value": list(added.values())}, schema=self.index.schema)
        keys = pa.table({"key": pa.array(removed, pa.string())})
        rows = [self.index.changes(ADD, self.rev, values, now=self.now)]
        rows.append(self.index.changes(REMOVE, self.rev, keys, now=self.now))
        changes: dict[tuple[str, int], int | None] = {(key, self.rev): value for key, value in added.items()}
        changes |= {(key, self.rev): None for key in removed}
        return self.index.encode(pa.concat_tables(rows)), changes

    def publish(self, ulid: str, data: bytes, changes: dict[tuple[str, int], int | None], written: datetime) -> None:
        self.index.publish(ulid, data)
        self.changes |= changes
        self.past.append((ulid, data, written))
        self.published_rev = max([self.published_rev, *(rev for _, rev in changes)])

    @rule(added=st.dictionaries(KEYS, st.integers(0, 99), max_size=4), removed=st.sets(KEYS, max_size=3))
    def change(self, added: dict[str, int], removed: set[str]) -> None:
        self.publish(new_ulid(), *self.encode(added, removed), self.now)

    @rule(added=st.dictionaries(KEYS, st.integers(0, 99), max_size=2), removed=st.sets(KEYS, max_size=2))
    def change_that_is_published_late(self, added: dict[str, int], removed: set[str]) -> None:
        self.held.append((new_ulid(), *self.encode(added, removed), self.now))

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 99))
    def publish_late(self, number: int) -> None:
        ulid, data, changes, written = self.held.pop(number % len(self.held))
        if self.now - written < REMOVE_RETENTION:
            self.publish(ulid, data, changes, written)

    @precondition(lambda self: self.past)
    @rule(number=st.integers(0, 99), under_its_name=st.booleans())
    def publish_again(self, number: int, under_its_name: bool) -> None:
        ulid, data, written = self.past[number % len(self.past)]
        if self.now - written < REMOVE_RETENTION:
            self.index.publish(ulid if under_its_name else new_ulid(), data)

    @rule()
    def compact(self) -> None:
        folded = self.index.compact(now=self.now)
        if folded.deltas:
            self.compacted_rev = self.published_rev
        assert self.index.log().deltas == ()

    @rule()
    def compact_without_deleting(self) -> None:
        deltas = self.index.log().deltas
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ObjectStore, "delete", lambda store, paths: None)
            self.index.compact(now=self.now)
        if deltas:
            self.compacted_rev = self.published_rev
        assert self.index.log().deltas == deltas

    @rule(days=st.integers(1, 8))
    def wait(self, days: int) -> None:
        self.now += timedelta(days=days)

    # -- invariants ---------------------------------------------------------------------------

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "index"):
            return
        assert self.rows(self.index.read()) == self.expected()

    @rule(prefixes=st.lists(KEYS, max_size=3))
    def read_prefixes(self, prefixes: list[str]) -> None:
        wanted = {key: value for key, value in self.expected().items() if key.startswith(tuple(prefixes))}
        assert self.rows(self.index.read(prefixes)) == wanted

    @rule(keys=st.lists(KEYS, max_size=4))
    def get_keys(self, keys: list[str]) -> None:
        assert self.rows(self.index.get(keys)) == {key: v for key, v in self.expected().items() if key in keys}

    @rule(low=KEYS, high=KEYS | st.none())
    def read_a_range(self, low: str, high: str | None) -> None:
        wanted = {key: v for key, v in self.expected().items() if low <= key and (high is None or key < high)}
        assert self.rows(self.index.reduce(_joined, low, high, columns=("key", "value"))) == wanted

    @rule(back=st.integers(0, 6))
    def read_the_past(self, back: int) -> None:
        as_of = max(0, self.rev - back)
        if as_of >= self.compacted_rev:
            assert self.rows(self.index.read(as_of=as_of)) == self.expected(as_of)
        else:
            with pytest.raises(UsageError, match="precedes the last compaction"):
                self.index.read(as_of=as_of)


TestDeltaIndex = DeltaIndexMachine.TestCase
TestDeltaIndex.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)

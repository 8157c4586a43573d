"""An old lease holder commits while a new one fences it, in every interleaving of their reads and transactions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pytest
from lance import LanceDataset, Transaction
from lance.commit import CommitConflictError

from driftline.storage.deltas.manifest import SCHEMA, BatchId
from driftline.storage.entities import Entity
from driftline.storage.errors import CommitConflict, LeaseLost, StorageError
from driftline.storage.lance.lance_table import COMMIT_ATTEMPTS
from driftline.storage.layout import new_ulid
from driftline.storage.leases.lease import Lease, acquire
from driftline.storage.lines.commit_marker import SourceCommit
from driftline.storage.lines.line_table import UNKNOWN_OUTCOMES, LineTable, schema
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.indexing.commit import ChangeSet, Committer, settle
from tests.support.waiting import PATIENCE_SECONDS

ENTITY, OTHER = Entity.parse("source:one"), Entity.parse("source:other")
DIM = 4
OLD, NEW = 1, 2
OLD_BATCH, NEW_BATCH = BatchId("0" * 25 + "A", 1), BatchId("0" * 25 + "B", 1)
OLD_STEPS, NEW_STEPS = 4, 5
"""Number of each holder's reads and transactions that are interleaved; later ones run at the end."""


class Stage:
    """Interleaves the steps of two threads in a given order: each thread waits for its turn before every step."""

    def __init__(self, turns: list[int]) -> None:
        self.turns = turns
        self.gone: set[int] = set()
        self.changed = threading.Condition()

    def step(self, actor: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: not self.turns or self.turns[0] == actor, PATIENCE_SECONDS)
            if self.turns:
                self.turns.pop(0)
            self._skip()

    def leave(self, actor: int) -> None:
        with self.changed:
            self.gone.add(actor)
            self._skip()

    def _skip(self) -> None:
        while self.turns and self.turns[0] in self.gone:
            self.turns.pop(0)
        self.changed.notify_all()


class StagedTable(LineTable):
    """A table that waits for its turn before it reads the newest version and before each transaction."""

    stage: Stage
    actor: int

    def open(self, version: int | None = None, *, cached: bool = False) -> LanceDataset:
        self.stage.step(self.actor)
        return super().open(version, cached=cached)

    def _transact(self, transaction: Transaction) -> None:
        self.stage.step(self.actor)
        super()._transact(transaction)


def line(text: str, entity: Entity = ENTITY) -> pa.Table:
    row = {"id": 1, "entity": str(entity), "path": "x", "line_number": 0, "text": text, "vector": [1.0] * DIM}
    return pa.Table.from_pylist([{name: row.get(name) for name in schema(DIM).names}], schema=schema(DIM))


def run_both(*holders: Callable[[], None]) -> None:
    threads = [threading.Thread(target=holder) for holder in holders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("has_row", [False, True], ids=["first commit of a source", "later commit"])
def test_in_any_order_a_successor_knows_the_commits_of_its_predecessor(tmp_path: Path, has_row: bool) -> None:
    steps = range(OLD_STEPS + NEW_STEPS)
    orders = list(combinations(steps, OLD_STEPS))[:: 4 if has_row else 1]
    objects = ObjectStore.open(str(tmp_path))
    for number, locations in enumerate(orders):
        turns = [OLD if location in locations else NEW for location in steps]
        fingerprint = f"{number:x}"
        plain = LineTable(objects, ENTITY.tenant, fingerprint)
        plain.create(DIM)
        if has_row:
            plain.fence(ENTITY, 0)
        stage = Stage(list(turns))
        tables: dict[int, StagedTable] = {}
        seen: list[tuple[bool, int]] = []
        for actor in (OLD, NEW):
            tables[actor] = StagedTable(objects, ENTITY.tenant, fingerprint)
            tables[actor].stage, tables[actor].actor = stage, actor

        def old_holder(table: StagedTable = tables[OLD]) -> None:
            try:
                table.commit([SourceCommit(ENTITY, OLD, OLD_BATCH)], table.write_fragments(line("old")))
            except LeaseLost:
                pass
            finally:
                table.stage.leave(OLD)

        def new_holder(
            table: StagedTable = tables[NEW], plain: LineTable = plain, seen: list[tuple[bool, int]] = seen
        ) -> None:
            try:
                known = table.fence(ENTITY, NEW).holds(OLD_BATCH)
                seen.append((known, plain.count()))
                table.commit(
                    [SourceCommit(ENTITY, NEW, NEW_BATCH, ("x",) if known else ())], table.write_fragments(line("new"))
                )
            finally:
                table.stage.leave(NEW)

        run_both(old_holder, new_holder)
        assert seen in ([(False, 0)], [(True, 1)]), (turns, seen)
        texts = [text for batch in plain.rows(["text"]) for text in batch["text"].to_pylist()]
        assert texts == ["new"], (turns, texts)
        assert plain.commit_marker(ENTITY).holds(NEW_BATCH), turns


@pytest.mark.parametrize("has_row", [False, True], ids=["first commit of a source", "later commit"])
def test_sources_that_share_a_commit_are_all_committed_or_none(tmp_path: Path, has_row: bool) -> None:
    """One holder commits two sources at once while another takes over the first source."""
    steps = range(OLD_STEPS + NEW_STEPS)
    objects = ObjectStore.open(str(tmp_path))
    outcomes = set()
    for number, places in enumerate(list(combinations(steps, OLD_STEPS))[:: 6 if has_row else 2]):
        stage = Stage([OLD if place in places else NEW for place in steps])
        tables = {actor: StagedTable(objects, ENTITY.tenant, f"{number:x}") for actor in (OLD, NEW)}
        plain = LineTable(objects, ENTITY.tenant, f"{number:x}")
        plain.create(DIM)
        for entity in (ENTITY, OTHER) if has_row else ():
            plain.fence(entity, 0)
        for actor, table in tables.items():
            table.stage, table.actor = stage, actor
        lost: list[int] = []
        known: list[bool] = []

        def old_holder(table: StagedTable = tables[OLD], lost: list[int] = lost, plain: LineTable = plain) -> None:
            both = pa.concat_tables([line("old"), line("other", OTHER)])
            parts = [SourceCommit(entity, OLD, OLD_BATCH) for entity in (ENTITY, OTHER)]
            try:
                table.commit(parts, table.write_fragments(both))
            except LeaseLost:
                lost.append(plain.count(f"entity = '{OTHER}'"))
            finally:
                table.stage.leave(OLD)

        def new_holder(table: StagedTable = tables[NEW], known: list[bool] = known) -> None:
            try:
                known.append(table.fence(ENTITY, NEW).holds(OLD_BATCH))
                gone = ("x",) if known[0] else ()
                table.commit([SourceCommit(ENTITY, NEW, NEW_BATCH, gone)], table.write_fragments(line("new")))
            finally:
                table.stage.leave(NEW)

        run_both(old_holder, new_holder)
        texts = sorted(text for batch in plain.rows(["text"]) for text in batch["text"].to_pylist())
        assert texts == (["new", "other"] if known[0] else ["new"]), (places, texts)
        assert plain.commit_marker(OTHER).holds(OLD_BATCH) == known[0], places
        assert lost == ([] if known[0] else [0]), places
        outcomes.add(known[0])
    assert outcomes == {False, True}


class UnreliableTable(LineTable):
    """A table whose first ``conflicts`` commits conflict, and whose later outcomes are unknown: only number ``lands``
    of them is committed.
    """

    conflicts = 0
    lands = 0
    attempts = 0

    def _transact(self, transaction: Transaction) -> None:
        self.attempts += 1
        if self.attempts <= self.conflicts:
            raise CommitConflictError("Retryable commit conflict")
        if self.attempts - self.conflicts == self.lands:
            super()._transact(transaction)
        raise OSError("error sending request: connection reset")


@pytest.mark.parametrize("conflicts", [0, COMMIT_ATTEMPTS - 1], ids=["at once", "at the last attempt"])
@pytest.mark.parametrize("lands", range(UNKNOWN_OUTCOMES + 1))
def test_a_commit_that_landed_is_found_before_the_run_gives_up(tmp_path: Path, conflicts: int, lands: int) -> None:
    objects = ObjectStore.open(str(tmp_path))
    table, reliable = UnreliableTable(objects, ENTITY.tenant, "f"), LineTable(objects, ENTITY.tenant, "f")
    reliable.create(DIM)
    reliable.fence(ENTITY, NEW)
    table.conflicts, table.lands = conflicts, lands
    fragments = table.write_fragments(line("new"))
    has_attempt = 0 < lands <= COMMIT_ATTEMPTS - conflicts
    with nullcontext() if has_attempt else pytest.raises((StorageError, CommitConflict)):
        table.commit([SourceCommit(ENTITY, NEW, NEW_BATCH)], fragments)
    assert table.count() == has_attempt
    assert table.commit_marker(ENTITY).holds(NEW_BATCH) == has_attempt


def test_a_new_table_of_a_holder_that_lost_its_lease_is_fenced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = ObjectStore.open(str(tmp_path))
    workspace = Workspace.prepare(objects).bind_model("model", "00000001", DIM)
    path, check, now = workspace.lease_of(ENTITY), Lease.check, [0.0]
    old, table = acquire(objects, path, new_ulid()), workspace.lines(ENTITY, "00000002")
    committer = Committer(workspace, ENTITY, old, new_ulid(), table, DIM)

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def lose_after(lease: Lease) -> None:
        check(lease)
        successor = acquire(objects, path, new_ulid(), wait_seconds=1e6, clock=lambda: now[0], sleep=sleep)
        settle(workspace, ENTITY, successor)

    monkeypatch.setattr(Lease, "check", lose_after)
    with pytest.raises(LeaseLost):
        committer.commit(ChangeSet(SCHEMA.empty_table(), removed=("gone.txt",)))

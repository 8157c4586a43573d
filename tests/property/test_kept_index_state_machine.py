"""A tree and its index through maintenance and stale writers: compaction, cleanup, crashes in either, wrong clocks,
expiring leases, and holders that wake up and commit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from driftline.flows.runs.cleanup import CleanupRequest, clean_workspace
from driftline.flows.runs.compact import CompactRequest, compact_workspace
from driftline.flows.runs.index import index_sources
from driftline.storage.errors import DriftlineError, LeaseLost
from driftline.storage.layout import lease_path
from driftline.storage.leases import lease as leases
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.maintenance import search_quality
from driftline.tasks.maintenance.search_quality import SearchQuality
from tests.faults.faults import Crash, Faults, Mode, injected
from tests.faults.sleeper import Sleeper, allow_sleepers, clock_wrong_by
from tests.property.test_index_state_machine import ENTITY, IndexMachine, texts
from tests.support.effort import examples
from tests.support.oracle import assert_in_step, indexed_rows

DAY = 86_400.0
PATHS = ("a.txt", "b.txt", "c.txt", "d.txt", "sub/a.txt", "sub/e.txt", "sub/deep/f.txt")
skews = st.sampled_from([0.0, -DAY, DAY])
faults = st.builds(Faults, st.sampled_from(list(Mode)), st.integers(0, 20))


class Clock:
    """A clock that may advance by an hour while a run waits for a lease."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class KeptIndexMachine(IndexMachine):
    """``sleeper`` is a run that pauses before or after a transaction while it holds the lease of ``token``."""

    def __init__(self) -> None:
        super().__init__()
        self.exists = False
        self.sleeper: Sleeper | None = None
        self.token = 0
        self.moment = ""

    def teardown(self) -> None:
        if self.sleeper is not None:
            self.sleeper.wake()
        super().teardown()

    def request(self, **options: Any) -> Any:
        self.exists = True
        return super().request(wait_seconds=3_600.0, **options)

    def assert_as_known(self) -> None:
        if not self.unsure:
            texts = {path: known.data for path, known in self.known.items() if known.indexed}
            assert_in_step(Workspace.open(self.workspace), ENTITY, texts)

    def newest_token(self) -> int:
        record = json.loads(Workspace.open(self.workspace).objects.get(lease_path(ENTITY)))
        return int(record["token"])

    @initialize()
    def begin_with_an_index(self) -> None:
        for number, path in enumerate(PATHS):
            self.put(path, f"word{number}\nword{number + 1}".encode())
        self.index(full=False)

    @rule(changes=st.dictionaries(st.sampled_from(PATHS), st.none() | texts, min_size=2, max_size=5))
    def change_several(self, changes: dict[str, str | None]) -> None:
        for path, text in changes.items():
            if text is not None:
                self.put(path, text.encode())
            elif self.files.pop(path, None) is not None:
                (self.tree / path).unlink()

    # -- maintenance -----------------------------------------------------------------------------

    def keep(self, action: Literal["compact", "cleanup"]) -> None:
        if action == "compact":
            compact_workspace(CompactRequest(self.workspace, max_deltas=0, retention_seconds=0.0, workers=1))
        else:
            clean_workspace(CleanupRequest(self.workspace, 0.0, dry_run=False))

    @rule(action=st.sampled_from(["compact", "cleanup"]), skew=skews)
    @precondition(lambda self: self.exists and not self.unsure)
    def compact_or_clean(self, action: Literal["compact", "cleanup"], skew: float) -> None:
        before = indexed_rows(Workspace.open(self.workspace), ENTITY)
        with clock_wrong_by(skew):
            self.keep(action)
        assert indexed_rows(Workspace.open(self.workspace), ENTITY) == before
        self.assert_as_known()

    @rule(action=st.sampled_from(["compact", "cleanup"]), faults=faults)
    @precondition(lambda self: self.exists and not self.unsure)
    def compact_or_clean_and_be_interrupted(self, action: Literal["compact", "cleanup"], faults: Faults) -> None:
        with injected(Faults(faults.mode, faults.at)):
            try:
                self.keep(action)
            except (Crash, DriftlineError) as error:
                note(f"{error!r}")
        self.assert_as_known()

    # -- stale writers ----------------------------------------------------------------

    @rule(skew=skews, full=st.booleans())
    def index_by_a_wrong_clock(self, skew: float, full: bool) -> None:
        with clock_wrong_by(skew):
            self.index(full)

    @rule(moment=st.sampled_from(["before", "after"]), at=st.integers(1, 3), skew=skews)
    @precondition(lambda self: self.sleeper is None)
    def fall_asleep_under_a_lease(self, moment: Literal["before", "after"], at: int, skew: float) -> None:
        request = self.request(full=True)
        with clock_wrong_by(skew):
            sleeper = Sleeper(lambda: index_sources(request), moment, at)
        if sleeper.is_asleep:
            self.sleeper, self.token, self.moment, self.unsure = sleeper, self.newest_token(), moment, True
        else:
            assert sleeper.wake() is None
            self.remember()
            self.unsure = False

    @rule(
        moment=st.sampled_from(["before", "after"]),
        at=st.integers(1, 3),
        skew=skews,
        changes=st.dictionaries(st.sampled_from(PATHS), st.none() | texts, max_size=5),
        actions=st.lists(st.sampled_from(["compact", "cleanup"]), max_size=2),
    )
    @precondition(lambda self: self.sleeper is None)
    def be_replaced_while_asleep(
        self,
        moment: Literal["before", "after"],
        at: int,
        skew: float,
        changes: dict[str, str | None],
        actions: list[Literal["compact", "cleanup"]],
    ) -> None:
        self.fall_asleep_under_a_lease(moment, at, skew)
        self.change_several(changes)
        self.index(full=False)
        for action in actions:
            self.compact_or_clean(action, -skew)
        if self.sleeper is not None:
            self.wake_up_and_commit()
        self.index(full=False)

    @rule()
    @precondition(lambda self: self.sleeper is not None)
    def wake_up_and_commit(self) -> None:
        assert self.sleeper is not None
        replaced = self.newest_token() > self.token
        error, self.sleeper = self.sleeper.wake(), None
        if replaced:
            # It may have paused after its last transaction.
            assert isinstance(error, LeaseLost) or (error is None and self.moment == "after"), error
            self.assert_as_known()
        else:
            assert error is None
            self.unsure = True  # the run had scanned an older tree


@pytest.mark.timeout(examples(1800))
def test_the_index_survives_maintenance_and_late_writers(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    assert leases.acquire.__kwdefaults__ is not None
    monkeypatch.setitem(leases.acquire.__kwdefaults__, "clock", clock)
    monkeypatch.setitem(leases.acquire.__kwdefaults__, "sleep", clock.sleep)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    monkeypatch.setattr("driftline.flows.runs.source_run.BATCH_DOCUMENTS", 3)
    monkeypatch.setattr("driftline.flows.runs.source_run.BATCHES_PER_COMMIT", 1)
    monkeypatch.setattr(search_quality, "measure", lambda table: SearchQuality(0.001, 1.0))
    allow_sleepers(monkeypatch)
    KeptIndexMachine.model = model
    KeptIndexMachine.TestCase.settings = settings(
        max_examples=examples(6), stateful_step_count=10, deadline=None, suppress_health_check=list(HealthCheck)
    )
    KeptIndexMachine.TestCase().runTest()

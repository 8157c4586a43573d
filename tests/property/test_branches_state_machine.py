"""Branches, compared with a dictionary of dictionaries through runs, merges, force-pushes, crashes and maintenance."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from driftline.flows.config.index_request import IndexRequest
from driftline.flows.runs.branches import delete_named
from driftline.flows.runs.cleanup import CleanupRequest, clean_workspace
from driftline.flows.runs.compact import CompactRequest, compact_workspace
from driftline.flows.runs.index import index_sources
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError
from driftline.storage.workspace.branch_cuts import branch_records, cuts_of, on_branch
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.maintenance import search_quality
from driftline.tasks.maintenance.search_quality import SearchQuality
from tests.faults.faults import Crash, Faults, Mode, injected
from tests.support.effort import examples
from tests.support.oracle import assert_in_step

ENTITY = Entity.parse("source:tree")
MAIN = ""
NAMES = ("topic", "Topic", "feature/ä")
PATHS = ("a.txt", "b.txt", "sub/c.txt", "sub/d.txt")
START_NS = 1_600_000_000_000_000_000
names = st.sampled_from(NAMES)
states = st.sampled_from((MAIN, *NAMES))
texts = st.lists(st.sampled_from([f"word{number}" for number in range(8)]), max_size=4).map("\n".join)
faults = st.builds(Faults, st.sampled_from(list(Mode)), st.integers(0, 25))


class BranchMachine(RuleBasedStateMachine):
    """``trees`` holds each branch's files; ``indexed`` holds the expected content of its index. main is "". A branch
    whose run was interrupted is ``unsure`` until its next run.
    """

    model: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.workspace, self.tree = str(self.root / "workspace"), self.root / "tree"
        self.trees: dict[str, dict[str, str]] = {MAIN: {}}
        self.indexed: dict[str, dict[str, str]] = {}
        self.unsure: set[str] = set()
        self.ticks = START_NS

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @initialize()
    def begin_with_an_index(self) -> None:
        self.trees[MAIN] = {path: f"word{number}\nword{number + 1}" for number, path in enumerate(PATHS)}
        self.index(MAIN)

    # -- the repository --------------------------------------------------------------------------

    def check_out(self, name: str) -> None:
        wanted = self.trees[name]
        for path in PATHS:
            file = self.tree / path
            if path not in wanted:
                file.unlink(missing_ok=True)
            elif not file.exists() or file.read_text() != wanted[path]:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(wanted[path])
                self.ticks += 10**9
                os.utime(file, ns=(self.ticks, self.ticks))

    @rule(name=states, changes=st.dictionaries(st.sampled_from(PATHS), st.none() | texts, min_size=1, max_size=3))
    def change(self, name: str, changes: dict[str, str | None]) -> None:
        tree = self.trees.setdefault(name, dict(self.trees[MAIN]))
        for path, text in changes.items():
            if text is None:
                tree.pop(path, None)
            else:
                tree[path] = text

    @rule(source=states, into=states)
    def merge_or_reset(self, source: str, into: str) -> None:
        """Squash-merge, rebase or force-push: they differ in git, but the index sees only trees."""
        self.trees[into] = dict(self.trees.get(source, self.trees[MAIN]))

    # -- runs ------------------------------------------------------------------------------------

    def run(self, name: str) -> None:
        self.trees.setdefault(name, dict(self.trees[MAIN]))
        self.check_out(name)
        request = IndexRequest(
            (str(self.tree),),
            self.workspace,
            entity="source:tree",
            model=str(self.model),
            workers=1,
            indexes="none",
            max_delete_fraction=1.0,
            branch=name or None,
        )
        index_sources(request)

    @rule(name=states)
    def index(self, name: str) -> None:
        self.run(name)
        self.indexed[name] = dict(self.trees[name])
        self.unsure.discard(name)

    @rule(name=states, faults=faults)
    def index_and_be_interrupted(self, name: str, faults: Faults) -> None:
        self.unsure.add(name)
        with injected(Faults(faults.mode, faults.at)):
            try:
                self.run(name)
            except (Crash, DriftlineError, OSError) as error:
                note(f"{error!r}")

    @rule(name=names)
    @precondition(lambda self: not self.unsure)
    def delete(self, name: str) -> None:
        if name in self.indexed:
            delete_named(Workspace.open(self.workspace), name, None)
            del self.indexed[name]

    # -- upkeep ----------------------------------------------------------------------------------

    @rule()
    @precondition(lambda self: not self.unsure)
    def compact(self) -> None:
        compact_workspace(CompactRequest(self.workspace, max_deltas=0, retention_seconds=0.0, workers=1))

    @rule()
    @precondition(lambda self: not self.unsure)
    def clean(self) -> None:
        clean_workspace(CleanupRequest(self.workspace, 0.0, dry_run=False))
        opened = Workspace.open(self.workspace)
        needed = {record.cut for record in branch_records(opened, ENTITY)}
        assert set(cuts_of(opened.lines(ENTITY.tenant))) == needed

    @rule(faults=faults)
    @precondition(lambda self: not self.unsure)
    def clean_and_be_interrupted(self, faults: Faults) -> None:
        with injected(Faults(faults.mode, faults.at)), suppress(Crash, DriftlineError, OSError):
            clean_workspace(CleanupRequest(self.workspace, 0.0, dry_run=False))

    @rule()
    def garbage_found_by_traces_is_garbage_and_the_rest_is_found_by_listing(self) -> None:
        before, traced, listed = self.files(self.workspace), f"{self.workspace}.traced", f"{self.workspace}.listed"
        for copy in (traced, listed):
            shutil.copytree(self.workspace, copy)
        some = clean_workspace(CleanupRequest(traced, 0.0, dry_run=False))
        everything = clean_workspace(CleanupRequest(listed, 0.0, dry_run=False, full=True))
        note(f"{some.full=} {len(some.deleted)=} {len(everything.deleted)=}")
        assert {orphan.path for orphan in some.deleted} <= {orphan.path for orphan in everything.deleted}
        clean_workspace(CleanupRequest(traced, 0.0, dry_run=False, full=True))
        assert before & self.files(traced) == before & self.files(listed)
        for copy in (traced, listed):
            shutil.rmtree(copy)

    @staticmethod
    def files(workspace: str) -> set[str]:
        return {str(path.relative_to(workspace)) for path in Path(workspace).rglob("*") if path.is_file()}

    @invariant()
    def each_branch_holds_exactly_its_documents(self) -> None:
        for name, files in self.indexed.items():
            if name not in self.unsure:
                opened = Workspace.open(self.workspace)
                here = on_branch(opened, name) if name else opened
                assert_in_step(here, ENTITY, {path: text.encode() for path, text in files.items()})


@pytest.mark.timeout(examples(1800))
def test_main_and_branches_keep_their_own_documents(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    monkeypatch.setattr("driftline.flows.runs.source_run.BATCH_DOCUMENTS", 2)
    monkeypatch.setattr("driftline.flows.runs.source_run.BATCHES_PER_COMMIT", 1)
    monkeypatch.setattr(search_quality, "measure", lambda table: SearchQuality(0.001, 1.0))
    BranchMachine.model = model
    BranchMachine.TestCase.settings = settings(
        max_examples=examples(12), stateful_step_count=14, deadline=None, suppress_health_check=list(HealthCheck)
    )
    BranchMachine.TestCase().runTest()

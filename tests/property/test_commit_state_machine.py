"""A repository that is randomly edited, committed, reset and switched: indexing only the paths reported by git gives
the same index as a full scan.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from driftline.flows.config.index_request import IndexRequest
from driftline.flows.output.run_reports import SourceReport
from driftline.flows.runs.index import index_sources
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError
from driftline.storage.workspace.workspace import Workspace
from tests.faults.faults import Crash, Faults, Mode, injected
from tests.support.effort import examples
from tests.support.oracle import WORDS, assert_in_step, assert_nothing_staged, files_below

ENTITY = Entity.parse("source:tree")
KEPT = "kept.txt"
"""Keeps the source folder in place: git removes a folder along with its last file, and a missing source is an error."""
IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgSign=false")

paths = st.sampled_from(["a.txt", "b.txt", "x.log", "sub/a.txt", "sub/d d.txt", "sub/deep/%_'é.txt"])
texts = st.lists(st.sampled_from(WORDS[:9]), max_size=3).map("\n".join)


class CommitMachine(RuleBasedStateMachine):
    model: Path

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="driftline-commits-"))
        self.top = self.folder / "repository"
        self.tree = self.top / "tree"  # the source is a folder in its repository
        self.tree.mkdir(parents=True)
        self.workspace = str(self.folder / "workspace")
        self.git("init", "-q", "-b", "main")
        self.put("a.txt", "word1")
        self.put(KEPT, "word2")
        self.commit()

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def git(self, *arguments: str) -> str:
        command = ["git", *IDENTITY, *arguments]
        return subprocess.run(command, cwd=self.top, check=True, capture_output=True, text=True).stdout.strip()

    def put(self, path: str, text: str) -> None:
        target = self.tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def files(self) -> list[Path]:
        return sorted(path for path in self.tree.rglob("*") if path.is_file() and path.name != KEPT)

    # -- edits -----------------------------------------------------------------------------

    @rule(path=paths, text=texts)
    def write(self, path: str, text: str) -> None:
        self.put(path, text)

    @rule(data=st.data())
    @precondition(lambda self: self.files())
    def delete(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.files())).unlink()

    @rule(data=st.data(), to=paths)
    @precondition(lambda self: self.files())
    def rename(self, data: st.DataObject, to: str) -> None:
        source = data.draw(st.sampled_from(self.files()))
        (self.tree / to).parent.mkdir(parents=True, exist_ok=True)
        source.rename(self.tree / to)

    @rule(text=texts)
    def write_next_to_the_source(self, text: str) -> None:
        (self.top / "beside.txt").write_text(text)

    @rule(ignores=st.sampled_from(["", "*.log\n"]), above=st.booleans())
    def ignore(self, ignores: str, above: bool) -> None:
        ((self.top if above else self.tree) / ".gitignore").write_text(ignores)

    @rule()
    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "a commit")

    @rule()
    def go_back_as_a_force_push_does(self) -> None:
        if int(self.git("rev-list", "--count", "HEAD")) > 1:
            self.git("reset", "-q", "--hard", "HEAD~1")

    @rule(branch=st.sampled_from(["main", "topic"]))
    def switch(self, branch: str) -> None:
        self.commit()
        exists = self.git("branch", "--list", branch)
        self.git("switch", "-q", *([branch] if exists else ["-c", branch]))

    # -- runs --------------------------------------------------------------------------------

    def index(self, *, by_commit: bool) -> SourceReport:
        request = IndexRequest(
            (str(self.tree),), self.workspace, entity="source:tree", exclude=(".gitignore",), model=str(self.model),
            workers=1, indexes="none", by_commit=by_commit, max_delete_fraction=1.0,
        )  # fmt: skip
        return index_sources(request).sources[0]

    @rule()
    def index_everything(self) -> None:
        self.index(by_commit=False)

    @rule(mode=st.sampled_from(list(Mode)), at=st.integers(1, 14))
    def be_interrupted(self, mode: Mode, at: int) -> None:
        with injected(Faults(mode, at)):
            try:
                self.index(by_commit=True)
            except (Crash, DriftlineError) as error:
                note(f"{error!r}")

    @rule()
    def index_changes(self) -> None:
        report = self.index(by_commit=True)
        event("changes only" if report.base else "everything")
        ignored = any(
            folder.joinpath(".gitignore").is_file() and folder.joinpath(".gitignore").read_text()
            for folder in (self.top, self.tree)
        )
        found = files_below(self.tree)
        found.pop(".gitignore", None)
        expected = {path: data for path, data in found.items() if not (ignored and path.endswith(".log"))}
        opened = Workspace.open(self.workspace)
        assert_in_step(opened, ENTITY, expected)
        assert_nothing_staged(opened)
        assert report.documents_total == len(expected)

    @rule()
    def commit_and_index_changes_twice(self) -> None:
        self.commit()
        self.index_changes()
        again = self.index(by_commit=True)
        assert again.base == self.git("rev-parse", "HEAD"), again.full_scan_reason
        assert again.bytes_read == 0


def test_indexing_only_changed_paths_keeps_the_index_in_step(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    CommitMachine.model = model
    CommitMachine.TestCase.settings = settings(
        max_examples=examples(4), stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
    )
    CommitMachine.TestCase().runTest()

"""Small sources that share a commit: wherever the run ends, the index holds each source's old or new state."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from driftline.flows.config.index_request import IndexRequest, SourceRequest
from driftline.flows.runs import source_group
from driftline.flows.runs.index import index_sources
from driftline.flows.runs.source_run import Survey
from driftline.storage.defaults import IndexScope
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError, LeaseLost, StorageError
from driftline.storage.leases.lease import peek
from driftline.storage.lines.line_table import LineTable
from driftline.storage.workspace.workspace import Workspace, marker_tokens
from driftline.tasks.indexing import commit
from driftline.tasks.indexing.commit import ChangeSet, Committer
from tests.faults.faults import Crash, Faults, Mode, injected
from tests.faults.test_interrupted_runs import OLD_NS, write_tree
from tests.support.oracle import assert_in_step, assert_nothing_staged, files_below

NAMES = ("one", "two", "three")
OLD = {"changed.txt": "word1\nword2\n", "gone.txt": "word3\n"}
NEW = {"changed.txt": "word4\nword2\n", "new.txt": "word5\n"}


@pytest.fixture(autouse=True)
def one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_group, "SOURCES_PER_SLOT", 1)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


class Sources:
    """Folders and their sources in a workspace."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model, self.workspace = folder, model, folder / "workspace"

    def write(self, files: dict[str, str], *, names: Sequence[str] = NAMES, later: int = 0) -> None:
        for name in names:
            write_tree(self.folder / name, files, OLD_NS + later * 10**9)

    def index(self, *names: str, indexes: IndexScope = "none") -> Any:
        sources = tuple(SourceRequest(str(self.folder / name), f"source:{name}") for name in names or NAMES)
        request = IndexRequest(
            sources, str(self.workspace), model=str(self.model), workers=1, indexes=indexes, keep_going=True
        )
        return index_sources(request)

    def check(self, names: Sequence[str] = NAMES) -> None:
        for name in names:
            files = files_below(self.folder / name)
            assert_in_step(Workspace.open(str(self.workspace)), Entity.parse(f"source:{name}"), files)

    def failures(self) -> list[int]:
        """Return each lease's number of failed holders, which tells cleanup that there may be garbage."""
        workspace = Workspace.open(str(self.workspace))
        leases = [workspace.lease_of(Entity.parse(f"source:{name}")) for name in NAMES]
        return [peek(workspace.objects, lease).failures for lease in leases]


@pytest.mark.parametrize("known", [False, True], ids=["first run", "later run"])
@pytest.mark.parametrize("mode", list(Mode))
def test_an_interrupted_run_of_small_sources_leaves_each_source_old_or_new(
    tmp_path: Path, model: Path, mode: Mode, known: bool
) -> None:
    """Afterwards one source is restored, another is indexed alone, and all are up to date."""
    sources, template = Sources(tmp_path, model), tmp_path / "template"
    if known:
        sources.write(OLD)
        sources.index()
        sources.workspace.rename(template)

    def attempt(faults: Faults) -> None:
        shutil.rmtree(sources.workspace, ignore_errors=True)
        if known:
            shutil.copytree(template, sources.workspace)
        sources.write(NEW, later=1)
        with injected(faults):
            try:
                report = sources.index()
            except (Crash, DriftlineError):
                return
        failed = {uri.rpartition("/")[2] for uri, _ in report.failed}
        sources.check([name for name in NAMES if name not in failed])

    undisturbed = Faults()
    attempt(undisturbed)
    transactions = [name for name in undisturbed.log if "_transact" in name]
    assert len(transactions) == (1 if known else 2), transactions
    first = next(at for at, name in enumerate(undisturbed.log) if "_staged_" in name)
    for at in range(first - 1 - known, len(undisturbed.log), 2 if mode is Mode.CRASH_AFTER else 4):
        try:
            attempt(Faults(mode, at))
            sources.write(OLD, names=NAMES[:1])
            sources.index(NAMES[0])
            sources.index(NAMES[1])
            sources.check(NAMES[:2])
            sources.index()
            sources.check()
            assert_nothing_staged(Workspace.open(str(sources.workspace)))
        except Exception as error:
            raise AssertionError(f"after {mode} operation {at}, {undisturbed.log[at]}") from error


def test_a_source_that_another_run_takes_over_does_not_fail_the_others(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = Sources(tmp_path, model)
    sources.write(OLD)
    sources.index()
    sources.write(NEW, later=1)

    def taken_over(changes: Sequence[tuple[Committer, ChangeSet]], fragments: Sequence[str]) -> Any:
        victim = changes[1][0]
        victim.table.fence(victim.entity, victim.lease.token + 1)
        return commit.commit_together(changes, fragments)

    with monkeypatch.context() as patch:
        patch.setattr(source_group, "commit_together", taken_over)
        report = sources.index()
    assert [(uri.rpartition("/")[2], type(error)) for uri, error in report.failed] == [(NAMES[1], LeaseLost)]
    assert sources.failures() == [1, 1, 1]
    sources.check((NAMES[0], NAMES[2]))
    assert not sources.index().failed
    sources.check()
    assert_nothing_staged(Workspace.open(str(sources.workspace)))


def test_a_commit_that_fails_counts_for_each_source(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = Sources(tmp_path, model)
    sources.write(OLD)
    for failure, counted in ((StorageError("The store is away"), 1), (KeyboardInterrupt(), 2)):

        def fail(*_: object, failure: BaseException = failure) -> Any:
            raise failure

        with monkeypatch.context() as patch:
            patch.setattr(source_group, "commit_together", fail)
            with suppress(KeyboardInterrupt):
                assert len(sources.index().failed) == len(NAMES)
        assert sources.failures() == [counted] * len(NAMES)
    assert not sources.index().failed
    sources.check()


def test_a_source_that_cannot_be_staged_does_not_stop_others(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = Sources(tmp_path, model)
    sources.write(NEW)
    faults = Faults()
    with injected(faults):
        sources.index()
    sources.check()
    staged = [at for at, name in enumerate(faults.log) if "create" in name and "_staged_" in name]
    assert len(staged) == len(NAMES)
    assert faults.log[staged[-1] :].count("delete") == 1, "one request removes all of them"
    assert sources.failures() == [0, 0, 0]
    sources.write(OLD, later=2)
    with injected(Faults(Mode.FAIL, _number_of_second_stage(sources))):
        report = sources.index()
    assert not report.failed
    assert sources.failures() == [1, 1, 1]
    sources.check()


def test_sources_without_lease_files_continue_from_their_markers(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one reads the markers of all."""
    sources = Sources(tmp_path, model)
    sources.write(OLD)
    sources.index()
    sources.write(NEW, names=NAMES[1:2], later=1)
    sources.index(NAMES[1])
    looks: list[int] = []
    commit_markers = LineTable.commit_markers

    def counted(table: LineTable, entities: Sequence[Entity]) -> Any:
        looks.append(len(entities))
        return commit_markers(table, entities)

    monkeypatch.setattr(LineTable, "commit_markers", counted)
    sources.write(OLD, later=2)
    for lease in sources.workspace.glob("org:*/_leases/source:*"):
        lease.unlink()
    assert not sources.index().failed
    sources.check()
    assert looks == [len(NAMES)]
    workspace = Workspace.open(str(sources.workspace))
    found = [peek(workspace.objects, workspace.lease_of(Entity.parse(f"source:{name}"))).token for name in NAMES]
    assert found == [2, 3, 2]


def test_markers_that_could_not_be_read_are_read_again_for_the_next_source(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = Sources(tmp_path, model)
    sources.write(OLD)
    sources.index()
    workspace = Workspace.open(str(sources.workspace))
    entities = [Entity.parse(f"org:default/project:default/source:{name}") for name in NAMES]
    token = marker_tokens(workspace, entities)
    with monkeypatch.context() as patch:
        patch.setattr(LineTable, "commit_markers", failing)
        with pytest.raises(StorageError):
            token(entities[0])
    assert [token(entity) for entity in entities] == [1] * len(NAMES)


def failing(table: LineTable, entities: Sequence[Entity]) -> Any:
    raise StorageError("The store failed", "", "")


def test_new_lines_of_small_sources_are_indexed(tmp_path: Path, model: Path) -> None:
    sources = Sources(tmp_path, model)
    sources.write(OLD)
    assert sources.index(indexes="all").indexes


@pytest.mark.parametrize("name", [NAMES[0], NAMES[-1]])
def test_each_source_of_a_group_completes_the_indexes_that_a_run_left_out(
    tmp_path: Path, model: Path, name: str
) -> None:
    sources = Sources(tmp_path, model)
    sources.write(OLD)
    assert not sources.index(indexes="none").indexes
    assert sources.index(name, indexes="all").indexes


def _number_of_second_stage(sources: Sources) -> int:
    """Return the number of the operation that stages the second source, determined by a run into a copy of the
    workspace.
    """
    kept, faults = sources.workspace.with_name("kept"), Faults()
    shutil.copytree(sources.workspace, kept)
    with injected(faults):
        sources.index()
    shutil.rmtree(sources.workspace)
    kept.rename(sources.workspace)
    return [at for at, name in enumerate(faults.log) if "create" in name and "_staged_" in name][1]


def test_a_failing_source_leaves_the_others_complete(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = Sources(tmp_path, model)
    sources.write(OLD, names=("one", "one/inner", "two"))
    sources.index("one", "two")
    work = Survey.work

    def fail(survey: Survey, *arguments: Any) -> Any:
        if survey.context.entity == Entity.parse("source:two"):
            raise StorageError("Could not read a file (Input/output error)", "two")
        return work(survey, *arguments)

    monkeypatch.setattr(Survey, "work", fail)
    inner = SourceRequest(str(tmp_path / "one/inner"), "source:inner")
    requests = (inner, SourceRequest(str(tmp_path / "two"), "source:two"))
    request = IndexRequest(requests, str(sources.workspace), model=str(model), workers=1, keep_going=True)
    assert [Path(uri).name for uri, _ in index_sources(request).failed] == ["two"]
    outer = Workspace.open(str(sources.workspace)).manifest(Entity.parse("source:one")).read(columns=["path"])
    assert sorted(outer["path"].to_pylist()) == sorted(OLD), "inner took over its files"

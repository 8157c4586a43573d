"""A run of a branch interrupted at each of its steps: main stays as it was, and the next run completes the branch."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from lance import LanceDataset

from driftline.flows.runs.branches import delete_named
from driftline.flows.runs.cleanup import CleanupRequest, clean_workspace
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError, UsageError
from driftline.storage.workspace.branch_cuts import branch_records, cuts_of, on_branch
from driftline.storage.workspace.workspace import Workspace
from tests.faults.faults import Crash, Faults, Mode, injected, steps
from tests.faults.test_interrupted_runs import (
    ENTITY,
    FIRST,
    LATER,
    OLD_NS,
    index,
    small_batches,
    write_tree,
)
from tests.support.oracle import assert_in_step, assert_nothing_staged, files_below

__all__ = ["small_batches"]
BRANCH = "feature/ä"
MAIN_SINCE = {**LATER, "on main.txt": "word30\nword31\n"}
ON_BRANCH = {**MAIN_SINCE, "on branch.txt": "word40\nword41\n"}


def everywhere(
    prepare: Callable[[], Workspace],
    work: Callable[[], object],
    check: Callable[[str], None],
    modes: Sequence[Mode] = (Mode.CRASH_AFTER, Mode.LOST_ACKNOWLEDGEMENT, Mode.FAIL),
) -> None:
    """Fail each step of ``work`` in turn, in each way, and ``check`` the result."""
    prepare()
    with injected(Faults()) as undisturbed:
        work()
    assert any("create_branch" in name or "delete" in name for name in undisturbed.log)
    for mode in modes:
        for at in steps(undisturbed.log, mode):
            operation = undisturbed.log[at]
            prepare()
            with injected(Faults(mode, at)), suppress(Crash, DriftlineError, OSError):
                work()
            try:
                check(operation)
            except Exception as error:
                raise AssertionError(f"after {mode} operation {at}, {operation}") from error


def restored(template: Path, folder: Path) -> Workspace:
    """Return a copy of the workspace in ``template``."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    return Workspace.open(str(folder))


@pytest.mark.parametrize("known", [False, True], ids=["new", "brought forward"])
@pytest.mark.usefixtures("small_batches")
def test_a_run_of_a_branch_that_is_interrupted_anywhere_is_completed_by_the_next(
    tmp_path: Path, model: Path, known: bool
) -> None:
    tree, template, folder = (tmp_path / name for name in ("tree", "template", "workspace"))
    workspace = str(folder)
    write_tree(tree, FIRST, OLD_NS)
    index(tree, str(template), model)
    main_files = files_below(tree)
    if known:
        write_tree(tree, {**FIRST, "on branch.txt": "word50\n"}, OLD_NS)
        index(tree, str(template), model, branch=BRANCH)
        write_tree(tree, MAIN_SINCE, OLD_NS + 10**9)
        index(tree, str(template), model)
        main_files = files_below(tree)

    def prepare() -> Workspace:
        restored(template, folder)
        write_tree(tree, ON_BRANCH, OLD_NS + 2 * 10**9)
        return Workspace.open(workspace)

    def check(operation: str) -> None:
        assert_in_step(Workspace.open(workspace), ENTITY, main_files)
        index(tree, workspace, model, branch=BRANCH)
        opened = Workspace.open(workspace)
        assert_in_step(on_branch(opened, BRANCH), ENTITY, files_below(tree))
        assert_in_step(opened, ENTITY, main_files)
        clean_workspace(CleanupRequest(workspace, 0.0, dry_run=False))
        assert_in_step(on_branch(opened, BRANCH), ENTITY, files_below(tree))
        assert_nothing_staged(opened)
        assert_only_what_branches_need(opened)

    everywhere(prepare, lambda: index(tree, workspace, model, branch=BRANCH), check)


@pytest.mark.usefixtures("small_batches")
def test_an_interrupted_deletion_leaves_the_whole_branch_or_none_of_it(tmp_path: Path, model: Path) -> None:
    tree, template, folder = (tmp_path / name for name in ("tree", "template", "workspace"))
    workspace = str(folder)
    write_tree(tree, FIRST, OLD_NS)
    index(tree, str(template), model)
    main_files = files_below(tree)
    write_tree(tree, LATER, OLD_NS + 10**9)
    index(tree, str(template), model, branch=BRANCH)

    def prepare() -> Workspace:
        return restored(template, folder)

    def check(operation: str) -> None:
        opened = Workspace.open(workspace)
        assert_in_step(opened, ENTITY, main_files)
        if branch_records(opened, ENTITY):
            assert_in_step(on_branch(opened, BRANCH), ENTITY, files_below(tree))
        else:
            with pytest.raises(UsageError, match="no branch with this name"):
                on_branch(opened, BRANCH)
        clean_workspace(CleanupRequest(workspace, 0.0, dry_run=False))
        assert_only_what_branches_need(opened)
        assert_in_step(opened, ENTITY, main_files)

    everywhere(prepare, lambda: drop(workspace), check)


def test_the_next_cleanup_removes_the_versions_that_a_killed_one_left_of_a_deleted_branch(
    tmp_path: Path, model: Path
) -> None:
    tree, template, place = (tmp_path / name for name in ("tree", "template", "workspace"))
    workspace, request = str(place), CleanupRequest(str(place), 0.0, dry_run=False)
    write_tree(tree, FIRST, OLD_NS)
    index(tree, str(template), model)
    index(tree, str(template), model, branch=BRANCH)
    clean_workspace(CleanupRequest(str(template), 0.0, dry_run=False))
    write_tree(tree, LATER, OLD_NS + 10**9)
    index(tree, str(template), model)
    drop(str(template))

    def prepare() -> Workspace:
        return restored(template, place)

    def check(operation: str) -> None:
        opened = Workspace.open(workspace)
        assert not clean_workspace(request).full
        assert len(opened.lines(ENTITY.tenant).open().versions()) == 1
        assert_only_what_branches_need(opened)
        assert_in_step(opened, ENTITY, files_below(tree))

    assert len(prepare().lines(ENTITY.tenant).open().versions()) > 1
    everywhere(prepare, lambda: clean_workspace(request), check, [Mode.CRASH_AFTER])


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("lost", ["manifest", "reference"])
def test_a_cut_is_made_again_if_lance_repeats_its_requests(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    tree, workspace = tmp_path / "tree", str(tmp_path / "workspace")
    write_tree(tree, FIRST, OLD_NS)
    index(tree, workspace, model)
    main_files = files_below(tree)
    write_tree(tree, LATER, OLD_NS + 10**9)
    create_branch: Callable[..., LanceDataset] = LanceDataset.create_branch
    calls: list[str] = []

    def create_twice(dataset: LanceDataset, name: str, *arguments: object, **options: object) -> LanceDataset:
        calls.append(name)
        created = create_branch(dataset, name, *arguments, **options)
        if len(calls) > 1:
            return created
        if lost == "reference":
            raise ValueError(f"Ref conflict error: branch {name} already exists, /build/refs.rs:432:23")
        return create_branch(dataset, name, *arguments, **options)

    monkeypatch.setattr(LanceDataset, "create_branch", create_twice)
    index(tree, workspace, model, branch=BRANCH)
    assert len(calls) == 2
    opened = Workspace.open(workspace)
    assert_in_step(on_branch(opened, BRANCH), ENTITY, files_below(tree))
    assert_in_step(opened, ENTITY, main_files)
    clean_workspace(CleanupRequest(workspace, 0.0, dry_run=False))
    assert_only_what_branches_need(opened)


def drop(workspace: str) -> None:
    delete_named(Workspace.open(workspace), BRANCH, None)


def assert_only_what_branches_need(workspace: Workspace) -> None:
    """Assert that the source's table and folder have no cut without a branch."""
    needed = {record.cut for record in branch_records(workspace, ENTITY)}
    assert set(cuts_of(workspace.lines(Entity.parse(str(ENTITY)).tenant))) == needed
    directories = {info.path for info in workspace.objects.list() if "/_branches/" in info.path}
    assert all(path.endswith("/_branch.json") or path.split("/")[-2] in needed for path in directories), directories

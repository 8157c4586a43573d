"""Fleets: discovery, work and cost of a sync, and renamed, deleted or failing repositories."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from driftline.flows.runs import branches as branch_runs
from driftline.flows.runs import fleet as fleet_runs
from driftline.flows.runs import plan, source_group
from driftline.flows.runs.branches import prune_branches
from driftline.flows.runs.fleet_part import FleetPart
from driftline.flows.runs.source_run import Survey
from driftline.storage.embedding import CURRENT_EMBEDDING_VERSION
from driftline.storage.entities import Entity, normalized_name
from driftline.storage.errors import ModelNotFound, StorageError
from driftline.storage.objects.store import ObjectStore
from driftline.storage.sources.mirror import Mirror, quoted_path
from driftline.storage.workspace.branch_cuts import branch_at, branch_records
from driftline.storage.workspace.fleet_state import FleetRecord, KnownRepository, read_fleets, write_fleets
from driftline.tasks.embedding import models
from tests.servers.git_server import Checkout, GitServer, git
from tests.support.fleets import Fleet, branches, rows, states
from tests.support.waiting import PATIENCE_SECONDS

Driftline = Callable[..., Any]


@pytest.fixture
def projects(git_server: GitServer, tmp_path: Path) -> dict[str, Checkout]:
    """Three repositories on the server, ``team/a.git`` to ``team/c.git``, with one file each."""
    (git_server.root / "team").mkdir()
    found = {}
    for name in "abc":
        tree = Checkout.of(git_server.create(f"team/{name}.git"), tmp_path / "trees" / name)
        tree.write(f"{name}.md", f"file of {name}\n")
        tree.push()
        found[name] = tree
    return found


@pytest.fixture
def fleet(tmp_path: Path, tiny_model: Path, git_server: GitServer) -> Fleet:
    """A fleet over the folder that the server serves."""
    table = f'[[fleet]]\nprovider = "folder"\nname = "here"\nurl = {json.dumps(str(git_server.root))}\n'
    return Fleet(tmp_path, tiny_model, table)


def listed(git_server: GitServer, *names: str) -> str:
    uris = [git_server.url(f"team/{name}.git") for name in names]
    return f'[[fleet]]\nprovider = "list"\nrepositories = {json.dumps(uris)}\n'


def test_a_list_is_indexed_in_one_run_and_then_costs_no_run(
    git_server: GitServer, projects: dict[str, Checkout], fleet: Fleet
) -> None:
    fleet.tables = listed(git_server, "a", "b", "c")
    first = fleet.sync()
    assert (states(first), fleet.runs()) == (dict.fromkeys(("team/a", "team/b", "team/c"), "indexed"), 1)
    assert fleet.documents() == {"a": {"a.md"}, "b": {"b.md"}, "c": {"c.md"}}
    git_server.requested.clear()
    second = fleet.sync()
    assert (second["run_id"], second["to_index"], fleet.runs()) == (None, [], 1)
    requested = [each.path.partition("?")[0].rpartition("/")[2] for each in git_server.requested]
    assert sorted(requested) == sorted(["refs", "git-upload-pack"] * 3)
    projects["b"].write("more.md", "another file\n")
    commit = projects["b"].push()
    third = fleet.sync()
    assert third["to_index"] == [rows(third)["team/b"]["entity"]]
    assert rows(third)["team/b"]["indexed"] == commit
    assert fleet.documents()["b"] == {"b.md", "more.md"}


def test_a_first_sync_reads_the_state_of_the_fleets_once_for_all_repositories(
    git_server: GitServer, projects: dict[str, Checkout], fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(objects: ObjectStore) -> dict[str, FleetRecord]:
        read.append(objects.uri)
        return read_fleets(objects)

    monkeypatch.setattr(plan, "read_fleets", counted)
    fleet.tables = listed(git_server, "a", "b", "c")
    assert states(fleet.sync()) == dict.fromkeys(("team/a", "team/b", "team/c"), "indexed")
    assert len(read) == 1


def test_repositories_are_fetched_ahead_of_their_scans(
    git_server: GitServer, projects: dict[str, Checkout], fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot scans one repository at a time, but hosts serve many at once."""
    monkeypatch.setattr(source_group, "SOURCES_PER_SLOT", 1)
    fleet.tables = listed(git_server, *projects)
    fetch, together = Mirror._fetch, threading.Barrier(len(projects))

    def met(mirror: Mirror, commit: str) -> None:
        together.wait(PATIENCE_SECONDS)
        fetch(mirror, commit)

    monkeypatch.setattr(Mirror, "_fetch", met)
    assert set(states(fleet.sync(workers=1)).values()) == {"indexed"}
    for name, project in projects.items():
        project.write("more.md", f"more of {name}\n")
        project.push()

    attempts, looks, look = list[str](), list[str](), Survey.unchanged_at

    def looked(survey: Survey) -> int | None:
        looks.append(survey.context.entity.id)
        return look(survey)

    def lost(mirror: Mirror, commit: str) -> None:
        attempts.append(mirror.remote.name)
        if mirror.remote.name == "b":
            raise StorageError("The connection is lost", mirror.remote.uri)
        fetch(mirror, commit)

    monkeypatch.setattr(Mirror, "_fetch", lost)
    monkeypatch.setattr(Survey, "unchanged_at", looked)
    report = fleet.sync(workers=1)
    assert states(report) == {"team/a": "indexed", "team/b": "failing", "team/c": "indexed"}
    assert "The connection is lost" in rows(report)["team/b"]["reason"]
    assert sorted(attempts) == sorted(looks) == ["a", "b", "c"], "a scan repeats nothing that its fetch has done"


def test_an_interrupted_run_fetches_no_more_repositories(
    git_server: GitServer, projects: dict[str, Checkout], fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """a is fetched in its group; b is fetched in the only thread, so c waits for it."""
    stopped, together, attempts = threading.Event(), threading.Barrier(2), list[str]()

    class Pool(ThreadPoolExecutor):
        def __init__(self, *_: object, **options: Any) -> None:
            super().__init__(1, **options)

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait, cancel_futures=cancel_futures)
            stopped.set()

    def interrupted(mirror: Mirror, _: str) -> None:
        attempts.append(mirror.remote.name)
        together.wait(PATIENCE_SECONDS)
        if mirror.remote.name == "a":
            raise KeyboardInterrupt
        assert stopped.wait(PATIENCE_SECONDS), "the run waits for its fetches before it cancels others"

    monkeypatch.setattr(source_group, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(source_group, "SOURCES_PER_SLOT", 1)
    monkeypatch.setattr(Mirror, "_fetch", interrupted)
    fleet.tables = listed(git_server, *projects)
    with pytest.raises(KeyboardInterrupt):
        fleet.sync(workers=1)
    assert sorted(attempts) == ["a", "b"]


def test_many_groups_fetch_no_more_ahead_than_one(
    git_server: GitServer, projects: dict[str, Checkout], fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The groups are (a, b) and (c): one repository ahead leaves none for each group."""
    threads, fetch = list[str](), Mirror._fetch

    def noted(mirror: Mirror, commit: str) -> None:
        threads.append(threading.current_thread().name)
        fetch(mirror, commit)

    monkeypatch.setattr(source_group, "FETCHES_AHEAD", 1)
    monkeypatch.setattr(source_group, "SOURCES_PER_SLOT", 1)
    monkeypatch.setattr(Mirror, "_fetch", noted)
    fleet.tables = listed(git_server, *projects)
    assert set(states(fleet.sync(workers=2)).values()) == {"indexed"}
    assert (len(threads), [name for name in threads if name.startswith("fetch")]) == (3, [])


def test_the_command_lists_syncs_and_shows_the_state(
    projects: dict[str, Checkout], fleet: Fleet, driftline: Driftline
) -> None:
    config = fleet.config
    found = driftline("fleet", "list", "--config", config)
    assert (found.code, "team/a" in found.out) == (0, True), found.err
    dry = driftline("fleet", "sync", "--config", config, "--dry-run", "--json")
    assert (len(dry.json["to_index"]), (fleet.folder / "index").exists()) == (3, False)
    synced = driftline("fleet", "sync", "--config", config)
    assert (synced.code, "3 indexed" in synced.out) == (0, True), synced.err
    status = driftline("fleet", "status", "--config", config, "--json")
    assert set(states(status.json).values()) == {"indexed"}
    assert driftline("search", "file of b", "--workspace", fleet.folder / "index").out.startswith("b.md:1")


def test_a_failing_repository_is_retried_with_backoff_and_does_not_stop_others(
    git_server: GitServer, projects: dict[str, Checkout], fleet: Fleet
) -> None:
    fleet.tables = listed(git_server, "a", "gone", "c")
    first = fleet.sync()
    assert states(first) == {"team/a": "indexed", "team/gone": "failing", "team/c": "indexed"}
    assert "no such repository" in rows(first)["team/gone"]["reason"]
    assert fleet.has_failed
    git_server.requested.clear()
    fleet.now += timedelta(minutes=4)
    fleet.sync()
    assert not [each for each in git_server.requested if "gone" in each.path]
    fleet.now += timedelta(minutes=2)
    again = rows(fleet.sync())["team/gone"]
    assert again["failures"] == 2
    assert datetime.fromisoformat(again["retry_at"]) - fleet.now == timedelta(minutes=10)
    shutil.copytree(git_server.root / "team/a.git", git_server.root / "team/gone.git")
    assert states(fleet.sync(retry=True))["team/gone"] == "indexed"


def test_an_unusable_folder_for_mirrors_fails_the_repositories_that_need_it(
    git_server: GitServer, projects: dict[str, Checkout], fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fleet.sync()
    fleet.tables += listed(git_server, "a").replace('"list"', '"list"\nname = "served"')
    folder = tmp_path / "a file"
    folder.write_text("")
    monkeypatch.setenv("DRIFTLINE_GIT_CACHE", str(folder))
    projects["b"].write("more.md", "another file\n")
    projects["b"].push()
    report = fleet.sync()
    failing = [row for each in report["fleets"] for row in each["repositories"] if row["state"] == "failing"]
    assert ["folder for mirrors cannot be used" in row["reason"] for row in failing] == [True, True], report
    monkeypatch.setenv("DRIFTLINE_GIT_CACHE", str(tmp_path / "cache"))
    assert set(states(fleet.sync(retry=True)).values()) == {"indexed"}
    assert "more.md" in fleet.documents()["b"]


@pytest.mark.parametrize("lost", ["the commit", "the branch", "the repository"])
def test_a_repository_that_changes_between_lookup_and_fetch_is_indexed_later(
    git_server: GitServer, projects: dict[str, Checkout], fleet: Fleet, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    fleet.tables = listed(git_server, "a", "b")
    remote, kept = projects["a"].remote, fleet.folder / "kept.git"
    look_up, first = FleetPart.at_current_commit, projects["a"].push()

    def overtaken(part: FleetPart, repository: KnownRepository, now: datetime) -> KnownRepository:
        found = look_up(part, repository, now)
        if found.commit == first:
            shutil.copytree(remote, kept)
            if lost == "the repository":
                shutil.rmtree(remote)
            else:
                git(remote, "update-ref", "-d", "refs/heads/main")
                if lost == "the commit":
                    git(remote, "reflog", "expire", "--expire=now", "--all")
                    git(remote, "prune", "--expire=now")
        return found

    monkeypatch.setattr(FleetPart, "at_current_commit", overtaken)
    report = fleet.sync()
    monkeypatch.undo()
    expected = {"the commit": "failing", "the branch": "indexed", "the repository": "failing"}
    assert states(report) == {"team/a": expected[lost], "team/b": "indexed"}
    if lost == "the commit":
        assert "The host no longer has the commit" in rows(report)["team/a"]["reason"]
    shutil.rmtree(remote, ignore_errors=True)
    shutil.copytree(kept, remote)
    projects["a"].write("a.md", "replaced\n")
    git(projects["a"].folder, "commit", "-q", "--amend", "-am", "replaced")
    git(projects["a"].folder, "push", "-q", "--force", "origin", "main")
    fleet.now += timedelta(minutes=6)
    report = fleet.sync()
    assert states(report) == {"team/a": "indexed", "team/b": "indexed"}
    assert rows(report)["team/a"]["indexed"] == git(remote, "rev-parse", "main")


def test_an_empty_repository_is_not_a_failure(
    git_server: GitServer, projects: dict[str, Checkout], fleet: Fleet
) -> None:
    git_server.create("team/empty.git")
    git(projects["a"].remote, "symbolic-ref", "HEAD", "refs/heads/master")
    report = fleet.sync()
    for name in ("team/empty", "team/a"):
        assert states(report)[name] == "empty"
        assert rows(report)[name]["reason"] == "its default branch has no commit"
    assert not fleet.has_failed
    git(projects["a"].remote, "symbolic-ref", "HEAD", "refs/heads/main")
    report = fleet.sync()
    assert (states(report)["team/a"], rows(report)["team/a"]["reason"]) == ("indexed", "")


def test_a_repository_of_a_list_is_kept_until_the_list_no_longer_has_it(
    git_server: GitServer, projects: dict[str, Checkout], fleet: Fleet
) -> None:
    """A host reports a repository that the token may not read like a deleted one."""
    fleet.tables = listed(git_server, "a", "b")
    fleet.sync()
    shutil.rmtree(git_server.root / "team/b.git")
    for _ in range(3):
        fleet.now += timedelta(days=8)
        row = rows(fleet.sync())["team/b"]
        assert (row["state"], "remove it from the list" in row["reason"]) == ("failing", True)
    assert set(fleet.documents()) == {"a", "b"}
    fleet.tables = listed(git_server, "a")
    assert states(fleet.sync())["team/b"] == "missing"
    fleet.now += timedelta(days=8)
    assert states(fleet.sync())["team/b"] == "retired"
    assert (set(fleet.documents()), fleet.has_failed) == ({"a"}, False)


def test_missing_repositories_are_retired_after_the_grace_period_and_returning_ones_indexed_again(
    git_server: GitServer, projects: dict[str, Checkout], fleet: Fleet
) -> None:
    fleet.sync()
    away = git_server.root.parent / "away.git"
    (git_server.root / "team/b.git").rename(away)
    assert states(fleet.sync())["team/b"] == "missing"
    fleet.now += timedelta(days=6)
    fleet.sync()
    assert "b" in fleet.documents()
    fleet.now += timedelta(days=2)
    assert states(fleet.sync())["team/b"] == "retired"
    assert set(fleet.documents()) == {"a", "c"}
    away.rename(git_server.root / "team/b.git")
    assert states(fleet.sync())["team/b"] == "indexed"


def test_folders_with_odd_names_are_indexed_and_a_partial_clone_fails_alone(
    git_server: GitServer, projects: dict[str, Checkout], fleet: Fleet
) -> None:
    """A clone without its files would otherwise be an empty index."""
    names = ("with blank", "c#d", "e?f", "50%41", "a@b")
    for name in names:
        shutil.copytree(projects["a"].remote, git_server.root / f"{name}.git")
    git(projects["a"].remote, "config", "uploadpack.allowFilter", "true")
    git(git_server.root, "clone", "-q", "--mirror", "--filter=blob:none", f"file://{projects['a'].remote}", "part.git")
    (git_server.root / "uris").write_text(
        f"git+file://{quoted_path(str(git_server.root))}/with%20blank.git\nhttps://t@h/x.git\n"
    )
    found = states(fleet.sync())
    assert {found.pop(name) for name in ("team/a", *names)} == {"indexed"}
    assert found == {"part": "failing", "team/b": "indexed", "team/c": "indexed"}
    assert "partial clone" in rows(fleet.sync())["part"]["reason"]
    assert sum(each == {"a.md"} for each in fleet.documents().values()) == 1 + len(names)
    fleet.tables = f'[[fleet]]\nprovider = "list"\nname = "listed"\nurl = "{git_server.root}/uris"\n'
    report = fleet.sync()
    assert [*states(report).values()] == ["indexed"]
    assert ["may contain a secret" in each for each in report["fleets"][0]["problems"]] == [True]


def test_an_unreadable_folder_removes_no_repository(
    git_server: GitServer, projects: dict[str, Checkout], fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.sync()
    git_server.root.rename(git_server.root.with_name("unmounted"))
    for _ in range(3):
        fleet.now += timedelta(days=30)
        report = fleet.sync()
    assert report["fleets"][0]["problems"]
    git_server.root.mkdir()
    for _ in range(3):
        fleet.now += timedelta(days=30)
        report = fleet.sync()
    assert "no longer lists any repositories" in report["fleets"][0]["problems"][0]
    assert len(fleet.documents()) == 3


def test_suspiciously_many_retirements_need_a_confirmation(
    git_server: GitServer, projects: dict[str, Checkout], fleet: Fleet
) -> None:
    for name in "defgh":
        shutil.copytree(git_server.root / "team/a.git", git_server.root / f"team/{name}.git")
    fleet.sync()
    for name in "abcde":
        shutil.rmtree(git_server.root / f"team/{name}.git")
    for _ in range(3):
        fleet.now += timedelta(days=8)
        report = fleet.sync()
    assert "5 of 8 repositories are missing" in report["fleets"][0]["problems"][0]
    assert len(fleet.documents()) == 8
    fleet.sync(max_delete_fraction=1.0)
    assert len(fleet.documents()) == 3


def test_a_kill_between_run_and_state_loses_nothing(
    projects: dict[str, Checkout], fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves = iter((write_fleets,))  # the commit before the run

    def killed(*arguments: Any) -> None:
        save = next(saves, None)
        if save is None:
            raise KeyboardInterrupt
        save(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(fleet_runs, "write_fleets", killed)
        with pytest.raises(KeyboardInterrupt):
            fleet.sync()
    assert len(fleet.documents()) == 3
    shutil.rmtree(projects["c"].remote)
    report = fleet.sync()
    assert states(report) == {"team/a": "indexed", "team/b": "indexed", "team/c": "missing"}
    fleet.now += timedelta(days=8)
    fleet.sync()
    assert set(fleet.documents()) == {"a", "b"}, "the state knows a source whose run was the last thing that happened"


def test_a_repository_without_commits_is_kept_for_the_grace_period(
    git_server: GitServer, projects: dict[str, Checkout], fleet: Fleet
) -> None:
    fleet.sync()
    git(projects["a"].remote, "update-ref", "-d", "refs/heads/main")
    report = fleet.sync()
    assert (states(report)["team/a"], fleet.has_failed) == ("empty", False)
    assert "no longer has a commit" in rows(report)["team/a"]["reason"]
    fleet.now += timedelta(days=6)
    fleet.sync()
    assert len(fleet.documents()) == 3
    fleet.now += timedelta(days=1)
    assert "retired" in {row["state"] for row in fleet.sync()["fleets"][0]["repositories"]}
    assert set(fleet.documents()) == {"b", "c"}
    projects["a"].push()
    assert states(fleet.sync())["team/a"] == "indexed"


def test_a_source_that_was_removed_by_hand_is_indexed_again(
    projects: dict[str, Checkout], fleet: Fleet, driftline: Driftline
) -> None:
    entity = rows(fleet.sync())["team/a"]["entity"]
    driftline("remove", entity, "--workspace", fleet.folder / "index")
    (record,) = read_fleets(fleet.workspace.objects).values()
    assert [each.entity for each in record.repositories.values() if not each.indexed] == [entity]  # all a bucket shows
    assert fleet.sync()["to_index"] == [entity]
    assert len(fleet.documents()) == 3


def test_a_fleet_that_is_renamed_keeps_its_index(projects: dict[str, Checkout], fleet: Fleet) -> None:
    before = rows(fleet.sync())
    fleet.tables = fleet.tables.replace('"here"', '"there"')
    report = fleet.sync()
    assert (report["to_index"], report["fleets"][0]["name"]) == ([], "there")
    assert {path: row["entity"] for path, row in rows(report).items()} == {p: r["entity"] for p, r in before.items()}
    assert list(read_fleets(fleet.workspace.objects)) == ["there"]


def test_two_fleets_with_one_repository_index_it_once(
    git_server: GitServer, projects: dict[str, Checkout], fleet: Fleet
) -> None:
    fleet.sync()
    files = fleet.documents()
    uri = f"git+file://{projects['a'].remote}"
    fleet.tables = f'[[fleet]]\nprovider = "list"\nname = "other"\nrepositories = ["{uri}"]\n'
    report = fleet.sync(has_all_fleets=False)  # like a deployment, which has only its own fleet's table
    assert states(report) == {str(projects["a"].remote)[1:].removesuffix(".git"): "failing"}
    assert fleet.documents() == files


def table(name: str, *uris: str, settings: str = "") -> str:
    return f'[[fleet]]\nprovider = "list"\nname = "{name}"\nrepositories = {json.dumps(uris)}\n{settings}'


@pytest.mark.parametrize("leaves", ["it is removed", "it excludes it", "it lists it no longer"])
def test_a_repository_of_two_fleets_stays_indexed_if_the_first_leaves_it(
    projects: dict[str, Checkout], fleet: Fleet, leaves: str
) -> None:
    a, b = (f"git+file://{projects[name].remote}" for name in "ab")
    other = table("other", a)
    fleet.tables = table("first", a, b) + other
    fleet.sync()
    files = fleet.documents()
    assert (files, fleet.has_failed) == ({"a": {"a.md"}, "b": {"b.md"}}, True)
    fleet.tables = {
        "it is removed": table("next", b) + other,
        "it excludes it": table("first", a, b, settings='exclude = ["**/a"]\n') + other,
        "it lists it no longer": table("first", b) + other,
    }[leaves]
    for _ in range(3):
        fleet.now += timedelta(days=8)
        fleet.sync()
        assert (fleet.documents(), fleet.has_failed) == (files, False)
    projects["a"].write("more.md", "another file\n")
    projects["a"].push()
    fleet.sync()
    assert fleet.documents() == files | {"a": {"a.md", "more.md"}}


@pytest.mark.parametrize("excludes", [True, False])
def test_one_of_several_fleets_takes_over_a_repository(
    projects: dict[str, Checkout], fleet: Fleet, excludes: bool
) -> None:
    a, b = (f"git+file://{projects[name].remote}" for name in "ab")
    others = table("elsewhere", a, settings='entity = "org:other/source:{name}"\n') + table("i", a) + table("j", a)
    fleet.tables = table("first", a, b) + others
    fleet.sync()
    files = fleet.documents()
    first = table("first", a, b, settings='exclude = ["**/a"]\n') if excludes else table("first", b)
    fleet.tables = first + others
    for _ in range(2):
        fleet.sync()
        assert fleet.documents() == files
        fleet.now += timedelta(days=8)
    known = read_fleets(fleet.workspace.objects)
    assert [known[name].repositories[a].uri for name in ("elsewhere", "i", "j")] == ["", a, ""]


@pytest.mark.parametrize("kind", ["folder", "list"])
def test_branches_are_indexed_as_their_hosts_have_them(
    git_server: GitServer, projects: dict[str, Checkout], fleet: Fleet, kind: str
) -> None:
    fleet.tables = fleet.tables if kind == "folder" else listed(git_server, "a", "b", "c")
    fleet.tables += 'branches = ["release/*", "next"]\n'
    project = projects["a"]
    for branch in ("release/1", "release/2", "other"):
        project.write("branch.md", f"on {branch}\n")
        project.push(branch)
    first = fleet.sync()
    assert branches(fleet) == {"a": {name: {"a.md", "branch.md"} for name in ("release/1", "release/2")}}
    assert [each["name"] for each in first["branches"]] == ["release/1", "release/2"]
    assert set(rows(first)["team/a"]["branches"]) == {"release/1", "release/2"}
    runs = fleet.runs()
    assert (fleet.sync()["branches"], fleet.runs()) == ([], runs)
    git(project.remote, "update-ref", "-d", "refs/heads/release/1")
    git(project.remote, "branch", "next", "other")
    assert [(each["name"], each["commit"] is None) for each in fleet.sync()["branches"]] == [
        ("release/1", True),
        ("next", False),
    ]
    assert set(branches(fleet)["a"]) == {"release/2", "next"}
    git(project.remote, "symbolic-ref", "HEAD", "refs/heads/next")
    fleet.sync()
    assert (set(branches(fleet)["a"]), fleet.documents()["a"]) == ({"release/2"}, {"a.md", "branch.md"})
    fleet.tables = fleet.tables.replace('"release/*", "next"', "")
    fleet.sync()
    assert branches(fleet) == {}


def test_suspiciously_many_branches_that_are_gone_stay(projects: dict[str, Checkout], fleet: Fleet) -> None:
    fleet.tables += 'branches = ["*"]\n'
    names = [f"b{number}" for number in range(5)]
    for name in names:
        git(projects["a"].remote, "branch", name, "main")
    fleet.sync()
    assert set(branches(fleet)["a"]) == {*names}
    for name in names[:4]:
        git(projects["a"].remote, "branch", "-D", name)
    report = fleet.sync()
    assert "4 of 5 branches are missing" in report["fleets"][0]["problems"][0]
    assert set(branches(fleet)["a"]) == {*names}
    fleet.sync(max_delete_fraction=1.0)
    assert set(branches(fleet)["a"]) == {"b4"}


def test_a_source_that_was_removed_by_hand_gets_its_branches_again(
    projects: dict[str, Checkout], fleet: Fleet, driftline: Driftline
) -> None:
    fleet.tables += 'branches = ["*"]\n'
    git(projects["a"].remote, "branch", "topic", "main")
    entity = rows(fleet.sync())["team/a"]["entity"]
    driftline("remove", entity, "--workspace", fleet.folder / "index")
    fleet.sync()
    assert set(branches(fleet)["a"]) == {"topic"}


def test_a_branch_of_a_fleet_is_not_pruned(projects: dict[str, Checkout], fleet: Fleet) -> None:
    fleet.tables += 'branches = ["*"]\n'
    git(projects["a"].remote, "branch", "topic", "main")
    fleet.sync()
    assert prune_branches(fleet.workspace, older_than_days=0) == []
    fleet.tables = fleet.tables.replace('"*"', '"t/*"')
    fleet.sync()
    assert branches(fleet) == {}


def test_a_branch_that_fails_does_not_stop_the_others(
    projects: dict[str, Checkout], fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.tables += 'branches = ["*"]\n'
    for name in "ab":
        git(projects[name].remote, "branch", "topic", "main")
    enter = branch_runs._enter

    def fail(plan: Any, part: Any, name: str) -> Any:
        if part.entity.id == "a":
            raise StorageError("The host is away")
        return enter(plan, part, name)

    with monkeypatch.context() as patch:
        patch.setattr(branch_runs, "_enter", fail)
        report = fleet.sync()
    assert states(report) == {"team/a": "failing", "team/b": "indexed", "team/c": "indexed"}
    assert branches(fleet) == {"b": {"topic": {"b.md"}}}
    fleet.sync(retry=True)
    assert branches(fleet)["a"] == {"topic": {"a.md"}}


def test_a_branch_with_a_damaged_record_does_not_stop_other_repositories(
    projects: dict[str, Checkout], fleet: Fleet
) -> None:
    fleet.tables += 'branches = ["*"]\n'
    for name in "ab":
        git(projects[name].remote, "branch", "topic", "main")
    entity = Entity.parse(rows(fleet.sync())["team/a"]["entity"])
    (record,) = branch_records(fleet.workspace, entity)
    (fleet.folder / "index" / branch_at(entity, record).record_path).write_text("{")
    git(projects["a"].remote, "branch", "-D", "topic")
    projects["b"].write("more.md", "more\n")
    projects["b"].push("topic")
    report = fleet.sync()
    assert states(report) == {"team/a": "failing", "team/b": "indexed", "team/c": "indexed"}
    assert "topic" in rows(report)["team/b"]["branches"]
    assert len(report["branch_run_ids"]) == 1


def test_branches_that_a_uri_cannot_name_are_skipped_with_a_reason(projects: dict[str, Checkout], fleet: Fleet) -> None:
    fleet.tables += 'branches = ["*"]\n'
    odd = ["dependabot/npm_and_yarn/@types/node-18", "x@y", "a#b"]
    for name in [*odd, "topic"]:
        git(projects["a"].remote, "branch", name, "main")
    report = fleet.sync()
    skipped = rows(report)["team/a"]["skipped_branches"]
    assert (set(skipped), all(skipped.values()), fleet.has_failed) == ({*odd}, True, False)
    assert branches(fleet) == {"a": {"topic": {"a.md"}}}
    git(projects["a"].remote, "branch", "-D", "x@y")
    assert set(rows(fleet.sync())["team/a"]["skipped_branches"]) == {odd[0], odd[2]}


def test_runs_of_branches_are_reported(projects: dict[str, Checkout], fleet: Fleet) -> None:
    fleet.tables += 'branches = ["*"]\n'
    fleet.sync()
    for name in "ab":
        git(projects[name].remote, "branch", "topic", "main")
    report = fleet.sync()
    assert (report["run_id"], len(report["branch_run_ids"])) == (None, 1)
    assert (fleet.report and fleet.report.in_words()) == "3 repositories, 0 changed, 2 branches changed, 0 retired"
    assert fleet.sync()["branch_run_ids"] == []


def test_other_file_globs_index_the_fleet_again(projects: dict[str, Checkout], fleet: Fleet) -> None:
    projects["a"].write("code.py", "x = 1\n")
    projects["a"].push()
    fleet.sync()
    fleet.tables += 'include_files = ["*.md"]\n'
    assert len(fleet.sync()["to_index"]) == 3
    assert fleet.documents()["a"] == {"a.md"}
    assert fleet.sync()["to_index"] == []


def test_an_entity_of_another_source_is_not_taken(
    git_server: GitServer, projects: dict[str, Checkout], fleet: Fleet, driftline: Driftline
) -> None:
    indexed = driftline("index", projects["a"].folder, "--workspace", fleet.folder / "index", "--model", fleet.model)
    assert indexed.code == 0, indexed.err
    fleet.tables = listed(git_server, "a", "b")
    report = fleet.sync()
    assert states(report) == {"team/a": "failing", "team/b": "indexed"}, rows(report)
    assert "bound to another URI" in rows(report)["team/a"]["reason"]
    assert git(projects["a"].folder, "rev-parse", "HEAD") == rows(report)["team/a"]["commit"]


def test_names_that_differ_in_case_or_form_only_are_sources_of_their_own_on_any_disk(
    git_server: GitServer, fleet: Fleet, tmp_path: Path
) -> None:
    names = ["Org/App", "org/app", "org/\u00fc", "org/u\u0308"]
    trees = {}
    for number, name in enumerate(names):
        (git_server.root / name).parent.mkdir(exist_ok=True)
        trees[name] = Checkout.of(git_server.create(f"{name}.git"), tmp_path / "trees" / str(number))
        trees[name].write(f"of_{number}.md", f"file {number}\n")
        trees[name].push()
    first = rows(fleet.sync())
    assert {path: row["state"] for path, row in first.items()} == dict.fromkeys(names, "indexed")
    entities = {path: row["entity"] for path, row in first.items()}
    assert len({normalized_name(entity) for entity in entities.values()}) == len(names)
    directories = {Entity.parse(entity).directory.casefold() for entity in entities.values()}
    assert len(directories) == len(names)
    found = fleet.documents()
    for number, name in enumerate(names):
        assert found[Entity.parse(entities[name]).id] == {f"of_{number}.md"}
    trees["org/app"].write("more.md", "another file\n")
    trees["org/app"].push()
    second = fleet.sync()
    assert second["to_index"] == [entities["org/app"]]
    assert {path: row["entity"] for path, row in rows(second).items()} == entities


def test_a_sync_and_a_run_agree_whether_a_repository_is_up_to_date(
    projects: dict[str, Checkout], fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new redaction mode, an upgrade's text preparation and ``--full`` index repositories to which nobody pushed."""
    projects["a"].write("settings.py", 'api_key = "q9Zt7xLm2Vb8Rk4N"\n')
    projects["a"].push()
    fleet.sync()
    assert fleet.sync()["to_index"] == []
    entities = sorted(str(entity) for entity, _ in fleet.workspace.sources())
    for options in ({"redact": "strict"}, {"full": True}):
        assert sorted(fleet.sync(**options)["to_index"]) == entities
    texts = [each for entity, _ in fleet.workspace.sources() for each in fleet.workspace.lines(entity).rows(["text"])]
    assert not any("q9Zt7x" in str(each) for each in texts)
    before = fleet.workspace.config.fingerprint
    monkeypatch.setattr(models, "CURRENT_EMBEDDING_VERSION", CURRENT_EMBEDDING_VERSION + 1)
    assert sorted(fleet.sync()["to_index"]) == entities
    assert fleet.workspace.config.fingerprint != before
    assert fleet.sync()["to_index"] == []
    with pytest.raises(ModelNotFound):
        fleet.sync(model="/no/model")

"""A fleet's index eventually matches its host, whatever the host's responses and wherever a sync dies."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError, StorageError
from driftline.storage.sources import discovery, mirror
from driftline.storage.workspace.branch_cuts import branch_at, branch_records
from driftline.storage.workspace.fleet_state import read_fleets
from tests.faults.faults import Crash, Faults, Mode, injected, wrap
from tests.servers.git_server import GitServer, Reply
from tests.servers.host_api import HostApi, Hosted, altered, failing, throttled
from tests.support.effort import examples
from tests.support.fleets import Fleet
from tests.support.oracle import WORDS, assert_in_step, save_tiny_model

REPOSITORIES = min(40, examples(5))
STEPS = 6 + min(18, examples(1))
PROVIDERS = ("github", "gitlab", "gitea", "server")
OWNERS = {"github": "org", "gitlab": "group", "gitea": "org", "server": "org"}
BRANCHES = ("main", "trunk", "release/1")
FOLLOWED = ("trunk", "release/*")
Files = dict[str, bytes]


@dataclass
class Project:
    """A repository on the host: the files of each branch, and of every commit it ever had."""

    hosted: Hosted
    folder: Path
    branches: dict[str, Files] = field(default_factory=dict)
    past: list[Files] = field(default_factory=list)

    @property
    def files(self) -> Files | None:
        """The files on the default branch; None if it has no commit."""
        return self.branches.get(self.hosted.branch)

    def commit(self, branch: str, files: Files, *, is_new_history: bool) -> None:
        """Replace a branch's content with a new commit, either on top of the last one or as a new root."""
        known = branch in self.branches and not is_new_history
        lines = [f"commit refs/heads/{branch}", f"committer t <t@localhost> {len(self.past)} +0000", "data 1", "."]
        lines += [f"from refs/heads/{branch}^0"] if known else []
        stream = "\n".join([*lines, "deleteall", ""]).encode()
        for path, data in files.items():
            stream += f"M 100644 inline {path}\ndata {len(data)}\n".encode() + data + b"\n"
        command = ["git", "fast-import", "--quiet", "--force"]
        subprocess.run(command, cwd=self.folder, input=stream, check=True, capture_output=True)
        self.branches[branch] = files
        self.past.append(files)

    def switch(self, branch: str) -> None:
        self.hosted.branch = branch
        (self.folder / "HEAD").write_text(f"ref: refs/heads/{branch}\n")

    def drop(self, branch: str) -> None:
        """Delete a branch."""
        self.branches.pop(branch)
        (self.folder / "refs/heads" / branch).unlink()


class World:
    """A host, its repositories, and the fleet that follows it. Host and fleet share the fleet's clock."""

    def __init__(self, seed: int, server: GitServer, fleet: Fleet) -> None:
        self.chance, self.server, self.fleet = random.Random(seed), server, fleet
        self.provider = PROVIDERS[seed % len(PROVIDERS)]
        self.api = HostApi(server, self.provider, per_page=3)
        server.api, server.clock = self._answer, self._time
        (server.root / "acme").mkdir()
        self.blank = server.create("blank")
        self.projects: dict[str, Project] = {}
        self.ids, self.names = count(1), count(1)
        self.broken: set[str] = set()
        self.lied = False
        provider = "bitbucket" if self.provider == "server" else self.provider
        self.takes_archived = self.chance.random() < 0.5
        fleet.tables = (
            f'[[fleet]]\nprovider = "{provider}"\nurl = "http://{server.host}"\n{OWNERS[self.provider]} = "acme"\n'
            f"archived = {str(self.takes_archived).lower()}\n"
            f"branches = {json.dumps([*FOLLOWED])}\n"
        )

    def _time(self) -> float:
        return self.fleet.now.timestamp()

    def _answer(self, target: str, headers: Any) -> Reply | None:
        if any(f"/{path}.git/" in target for path in self.broken):
            return 500, {}, b""
        return self.api(target, headers)

    # -- what happens at the host ------------------------------------------------------------

    def path(self, project: Project) -> Path:
        prefix = "scm/" if self.provider == "server" else ""
        return self.server.root / f"{prefix}{project.hosted.path}.git"

    def location(self, project: Project) -> None:
        target = self.path(project)
        target.parent.mkdir(parents=True, exist_ok=True)
        project.folder.rename(target)
        project.folder = target

    def files(self) -> Files:
        names = [f"{self.chance.choice(('', 'a/', 'a/b/'))}{number}.md" for number in self.chance.sample(range(9), 3)]
        return {name: "\n".join(self.chance.choices(WORDS, k=self.chance.randrange(4))).encode() for name in names}

    def create(self, path: str = "") -> None:
        hosted = Hosted(next(self.ids), path or f"acme/r{next(self.names)}")
        folder = self.server.root / f"new{hosted.id}"
        shutil.copytree(self.blank, folder)
        project = Project(hosted, folder)
        self.location(project)
        if self.chance.random() < 0.9:
            self.push(project)
        self.projects[str(hosted.id)] = project
        self.api.repositories.append(hosted)

    def push(self, project: Project) -> None:
        branch = self.chance.choice((project.hosted.branch, project.hosted.branch, *BRANCHES))
        files = dict(project.branches.get(branch, {}))
        for name in self.chance.sample(sorted(files), min(len(files), 1)):
            del files[name]
        project.commit(branch, files | self.files(), is_new_history=self.chance.random() < 0.3)
        now = self.fleet.now
        last = datetime.fromisoformat(project.hosted.pushed)
        if self.provider != "gitlab" or now - last >= timedelta(hours=1):  # it updates the time once an hour
            project.hosted.pushed = now.strftime("%Y-%m-%dT%H:%M:%SZ")

    def delete(self, project: Project) -> str:
        del self.projects[str(project.hosted.id)]
        self.api.repositories.remove(project.hosted)
        shutil.rmtree(project.folder)
        return project.hosted.path

    def happen(self) -> None:
        """Let one event happen on the host."""
        chance = self.chance
        project = chance.choice(list(self.projects.values()))
        event = chance.choice(
            ("push",) * 6 + ("rename", "swap", "switch", "drop", "create", "delete", "recreate", "archive")
        )
        print(f"{self.fleet.now:%d %H:%M:%S} {event} {project.hosted.id} {project.hosted.path}")
        if event == "push":
            self.push(project)
        elif event == "rename":
            project.hosted.path = f"acme/r{next(self.names)}"
            self.location(project)
        elif event == "swap":
            other = chance.choice(list(self.projects.values()))
            project.hosted.path, other.hosted.path = other.hosted.path, project.hosted.path
            aside = self.server.root / "aside"
            project.folder = project.folder.rename(aside)
            for each in dict.fromkeys((other.hosted.id, project.hosted.id)):
                self.location(self.projects[str(each)])
        elif event == "switch" and project.branches:
            project.switch(chance.choice(sorted(project.branches)))
        elif event == "drop" and project.branches:
            project.drop(chance.choice(sorted(project.branches)))
        elif event == "create":
            self.create()
        elif event == "delete" and len(self.projects) > 2:
            self.delete(project)
        elif event == "recreate":
            self.create(self.delete(project))
        elif event == "archive":
            project.hosted.archived = not project.hosted.archived

    # -- what the host says ------------------------------------------------------------------

    def disturb(self) -> None:
        """Make the host's next responses errors, rate limits or wrong."""
        chance, api = self.chance, self.api
        before: list[Callable[[str], Reply | None]] = [lambda _: None] * chance.randrange(3)
        event = chance.choice(("fails", "limits", "partial", "total", "twice", "stale", "garbled", "broken"))
        print(f"the host: {event}")
        if event == "fails":
            api.faults = before + [failing()] * chance.choice((1, 3))
        elif event == "limits":
            api.faults = [*before, throttled(429, Retry_After="17")]
        elif event == "total":
            api.total = len(api.repositories) + chance.choice((-1, 1))
        elif event == "broken":
            self.broken = {each.hosted.path for each in self.projects.values() if chance.random() < 0.5}
        else:
            change = {"partial": self._partial, "twice": self._twice, "stale": self._stale, "garbled": self._garbled}
            api.faults = [*before, altered(api, change[event])]
            self.lied = True

    def _partial(self, answer: Reply) -> Reply:
        """A page that claims to be the last but lacks repositories."""
        content = json.loads(answer[2])
        if self.provider == "server":
            return 200, {}, json.dumps({"values": content["values"][:1], "isLastPage": True}).encode()
        return 200, {}, json.dumps(content[:1]).encode()

    def _twice(self, answer: Reply) -> Reply:
        """A page that lists one repository twice and lacks another."""
        content = json.loads(answer[2])
        items = content["values"] if self.provider == "server" else content
        items[-1:] = items[:1] if len(items) > 1 else items[-1:]
        return 200, {name: text for name, text in answer[1].items() if name != "ETag"}, json.dumps(content).encode()

    def _stale(self, answer: Reply) -> Reply:
        return 304, {}, b""

    def _garbled(self, answer: Reply) -> Reply:
        content = json.loads(answer[2])
        items = content["values"] if self.provider == "server" else content
        if items:
            items[0]["id"] = None
            items[0].pop("full_name", items[0].pop("path_with_namespace", items[0].pop("slug", None)))
        return 200, answer[1], json.dumps(content).encode()

    def tell_the_truth(self) -> None:
        self.api.faults, self.api.total, self.broken = [], None, set()

    # -- what the index must be --------------------------------------------------------------

    def sources(self) -> dict[str, Entity]:
        """Return the workspace's sources by repository id; assert that each source belongs to a repository."""
        (record,) = read_fleets(self.fleet.workspace.objects).values()
        known = {each.entity: identifier for identifier, each in record.repositories.items() if each.entity}
        return {known[str(entity)]: entity for entity, _ in self.fleet.workspace.sources()}

    def is_selected(self, project: Project) -> bool:
        return self.takes_archived or not project.hosted.archived

    def check_kept(self, before: set[str]) -> None:
        """Assert that indexed repositories that still exist are in the index, with their current or earlier content."""
        sources = self.sources()
        for identifier in before & self.projects.keys():
            project = self.projects[identifier]
            if self.is_selected(project) and project.files is not None:
                assert identifier in sources, f"{project.hosted.path} is lost"
        for identifier in sources.keys() & self.projects.keys():
            self._check_is_any(sources[identifier], self.projects[identifier].past)

    def _check_is_any(self, entity: Entity, past: list[Files]) -> None:
        for files in reversed(past):
            with contextlib.suppress(AssertionError):
                assert_in_step(self.fleet.workspace, entity, files)
                return
        raise AssertionError(f"{entity} holds what its repository never had")

    def check_in_step(self) -> None:
        """Assert that the index holds the current content of each repository on the host."""
        sources = self.sources()
        for identifier, project in self.projects.items():
            if self.is_selected(project) and project.files is not None:
                assert identifier in sources, f"{project.hosted.path} is not indexed"
                assert_in_step(self.fleet.workspace, sources[identifier], project.files)
                self._check_branches(sources[identifier], project)

    def _check_branches(self, entity: Entity, project: Project) -> None:
        """Assert that the index's branches are the followed branches except the default one."""
        records = {record.name: record for record in branch_records(self.fleet.workspace, entity)}
        names = {name for name in project.branches if any(fnmatchcase(name, glob) for glob in FOLLOWED)}
        assert records.keys() == names - {project.hosted.branch}, project.hosted.path
        for name, record in records.items():
            on_branch = self.fleet.workspace.on([branch_at(entity, record)])
            assert_in_step(on_branch, entity, project.branches[name])

    def sync(self, **options: Any) -> dict[str, Any]:
        print("sync")
        return self.fleet.sync(retry=True, max_delete_fraction=1.0, indexes="none", workers=1, **options)

    def sync_and_die(self) -> None:
        """Run a sync that fails at, or dies after, one of its writes or git commands."""
        faults = Faults(self.chance.choice(list(Mode)), self.chance.randrange(40))
        print(f"{faults.mode} {faults.at}")
        with injected(faults), pytest.MonkeyPatch.context() as patch:
            wrap(patch, faults, mirror, "_run", StorageError)
            with contextlib.suppress(Crash, DriftlineError):
                self.sync()
        for folder in mirror.cache_folder().glob("*/repository/objects/pack"):
            (folder / "tmp_pack_of_a_killed_fetch").write_bytes(b"PACK")
            (folder.parent.parent / "shallow.lock").touch()


@pytest.mark.parametrize("seed", range(2 + examples(1) // 10))
def test_the_index_of_a_fleet_follows_its_host(
    seed: int, git_server: GitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFTLINE_GIT_CACHE", str(tmp_path / "mirrors"))
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    assert discovery.discover.__kwdefaults__ is not None
    monkeypatch.setitem(discovery.discover.__kwdefaults__, "sleep", abs)
    fleet = Fleet(tmp_path, save_tiny_model(tmp_path / "model"), "", datetime(2026, 1, 1, tzinfo=UTC))
    world = World(seed, git_server, fleet)
    for _ in range(REPOSITORIES):
        world.create()
    world.sync()
    world.check_in_step()
    chance = world.chance
    for _ in range(STEPS):
        for _ in range(chance.randint(1, 2 + REPOSITORIES // 4)):
            world.happen()
            fleet.now += timedelta(seconds=chance.choice((0.2, 1, 30, 3600, 90_000)))
        before = set(world.sources())
        event = chance.choice(("truth", "disturbed", "death"))
        if event == "disturbed":
            world.disturb()
            world.sync()
            world.tell_the_truth()
            world.check_kept(before)
        elif event == "death":
            world.sync_and_die()
        if world.lied:  # a wrong response about changes has an effect for a day
            fleet.now += timedelta(days=1)
            world.lied = False
        world.sync()
        world.check_kept(before)
        world.check_in_step()
    for _ in range(2):
        fleet.now += timedelta(days=8)
        world.sync()
    world.check_in_step()
    there = (
        each for each, project in world.projects.items() if world.is_selected(project) and project.files is not None
    )
    assert set(world.sources()) == set(there)
    assert world.sync()["to_index"] == []

"""The fault soak: two hosts with skewed clocks use one workspace in a store that fails one request in ten.

``soak.py FOLDER SECONDS SEED`` prints one JSON object: counts, and the list ``problems``, which must be empty. Commands
that index (including branches), compact, clean up, verify, search and remember run concurrently. Some are killed, some
are stopped for longer than their leases last, and blocks in the hosts' caches are damaged. At the end, the workspace
must match a naive reading of the sources, and memory must match the acknowledged changes.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from driftline.storage.entities import Boundary, Entity
from driftline.storage.workspace.branch_cuts import on_branch
from driftline.storage.workspace.workspace import Workspace
from tests.faults.damage import fuzzed
from tests.servers.flaky import FlakyProxy
from tests.servers.s3_server import running_s3
from tests.servers.serving import serving
from tests.soak.commands import TTL_SECONDS, Commands, Host
from tests.soak.memory_model import MemoryModel
from tests.support.oracle import WORDS, assert_in_step, files_below, save_tiny_model

RATE = 0.1
SKEW_SECONDS = 400.0
"""Clock skew between each host and the store; stores accept 900 s."""
FILES = 15
LINES = 6
PROJECT = "org:acme/project:p"
BRANCHES = ("topic", "feature/ä")
BRANCHED = 0.4
"""The share of index runs that index a branch."""
SETTLING_ATTEMPTS = 5
DAMAGE_SECONDS = 0.2
SEARCHED = 3
"""Number of words to search for at the end, with and without cached blocks."""
WAIT = ("--wait", 2.5 * TTL_SECONDS)
"""A command must wait longer than a lease's TTL to take over from a host that it cannot check."""


class Tree:
    """A source that changes while it is indexed; ``written`` holds every line that any file has ever had."""

    def __init__(self, folder: Path, entity: str, chance: random.Random) -> None:
        self.folder, self.entity = folder, entity
        self.written: set[tuple[str, str]] = set()
        self._chance = chance
        self._lock = threading.Lock()
        folder.mkdir()
        for _ in range(FILES):
            self.change()

    def change(self) -> None:
        """Write, overwrite or delete a file."""
        name = f"{self._chance.randrange(FILES)}.txt"
        if self._chance.random() < 0.15:
            (self.folder / name).unlink(missing_ok=True)
            return
        lines = [" ".join(self._chance.choices(WORDS, k=3)) for _ in range(self._chance.randint(1, LINES))]
        temporary = self.folder.with_name(f"{self.folder.name}.new")
        with self._lock:  # both hosts change one tree
            self.written = self.written | {(name, line) for line in lines}  # a new set, since a search may be reading
            temporary.write_text("".join(f"{line}\n" for line in lines))
            temporary.replace(self.folder / name)


class Soak:
    """The roles that work concurrently until ``deadline``."""

    def __init__(self, commands: Commands, hosts: list[Host], trees: list[Tree], chance: random.Random) -> None:
        self.commands, self.hosts, self.trees = commands, hosts, trees
        self.memories = [MemoryModel(commands, host, chance) for host in hosts]
        self.deadline = 0.0
        self._chance = chance

    def run(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        roles: list[Callable[[], None]] = [partial(self._index, host, n) for n, host in enumerate(self.hosts)]
        roles += [memory.step for memory in self.memories]
        roles += [self._keep, self._search, self._damage_blocks]
        threads = [threading.Thread(target=self._repeat, args=(role,)) for role in roles]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _repeat(self, role: Callable[[], None]) -> None:
        while time.monotonic() < self.deadline and not self.commands.problems:
            try:
                role()
            except Exception:
                self.commands.problem(traceback.format_exc())

    def _index(self, host: Host, number: int) -> None:
        """Index the host's tree, or the tree that both hosts index."""
        tree = self.trees[self._chance.choice((number, 2))]
        for _ in range(self._chance.randint(0, 4)):
            tree.change()
        options = ["--full"] if self._chance.random() < 0.1 else []
        if self._chance.random() < BRANCHED:
            options += ["--branch", self._chance.choice(BRANCHES)]
        self.commands.run(host, "index", tree.folder, "--entity", tree.entity, *WAIT, *options)

    def _keep(self) -> None:
        host = self._chance.choice(self.hosts)
        match self._chance.randrange(4):
            case 0:
                self.commands.run(host, "compact", "--max-deltas", 2)
            case 1:
                self.commands.run(host, "cleanup", "--delete")
            case 2:
                name, entity = self._chance.choice(BRANCHES), self._chance.choice(self.trees).entity
                self.commands.run(host, "branches", "delete", name, "--entity", entity, "--missing-ok")
            case _:
                found = self.commands.run(host, "verify").answer
                if isinstance(found, dict) and found.get("findings"):
                    self.commands.problem(f"verify found {found['findings']}")

    def _search(self) -> None:
        query = " ".join(self._chance.choices(WORDS, k=2))
        answer = self.commands.run(self._chance.choice(self.hosts), "search", query, "--top-k", 5).answer
        written = {(tree.entity, *line) for tree in self.trees for line in tree.written}
        for hit in answer.get("results", ()) if isinstance(answer, dict) else ():
            if (hit["source"], hit["path"], hit["text"]) not in written:
                self.commands.problem(f"search found what never was: {hit}")

    def _damage_blocks(self) -> None:
        """Damage or swap cached blocks during searches."""
        time.sleep(DAMAGE_SECONDS)
        # os.walk, unlike rglob, passes over a folder that a command removes meanwhile.
        walk = os.walk(self._chance.choice(self.hosts).blocks)
        blocks = [Path(folder, name) for folder, _, names in walk for name in names if "-" in name]
        if len(blocks) > 1:
            one, other = self._chance.sample(blocks, 2)
            with suppress(FileNotFoundError):  # evicted
                one.write_bytes(fuzzed(one.read_bytes(), self._chance))
                other.replace(one.parent / other.name)

    # -- the end -----------------------------------------------------------------------------

    def settle(self, model: Path | None = None) -> None:
        """Bring everything up to date on a store that still fails; the first run specifies the model."""
        named = ["--model", model] if model else []
        for number, tree in enumerate(self.trees):
            index = partial(self._until_done, "index", tree.folder, "--entity", tree.entity, *WAIT)
            index(*named, host=self.hosts[number % 2])
            if not model:
                for branch in BRANCHES:
                    index("--branch", branch, host=self.hosts[number % 2])
            named = []

    def finish(self) -> None:
        """Run once more, clean up, and verify without a repair."""
        self.settle()
        self._until_done("compact", "--max-deltas", 0, *WAIT)
        for memory in self.memories:
            memory.check()
        self._until_done("cleanup", "--delete", "--max-age-seconds", 0)
        for _ in range(2):  # what the cleanup left must be intact, too
            found = self._until_done("verify")
            if found.get("findings") or found.get("skipped"):
                self.commands.problem(f"at the end, verify found {found['findings']}, and skipped {found['skipped']}")
            self.settle()
        for word in WORDS[:SEARCHED]:
            hosts = (*self.hosts, replace(self.hosts[0], caches=False))
            answers = [self._until_done("search", word, "--top-k", 20, host=host)["results"] for host in hosts]
            if any(answer != answers[-1] for answer in answers):
                self.commands.problem(f"a search finds other lines through the cache of blocks: {answers}")

    def _until_done(self, *arguments: object, host: Host | None = None) -> dict[str, object]:
        """Repeat a command until it succeeds. Leases of killed processes may have to expire; nothing else may fail."""
        for _ in range(SETTLING_ATTEMPTS):
            done = self.commands.run(host or self.hosts[0], *arguments, gently=True)
            if done.code == 0 and not (isinstance(done.answer, dict) and done.answer.get("skipped")):
                return dict(done.answer)
            time.sleep(TTL_SECONDS / 2)
        self.commands.problem(f"{arguments} does not end well: {done.answer}")
        return {}


def soak(folder: Path, seconds: float, seed: int) -> dict[str, object]:
    """Run the soak in ``folder`` and compare the result with the oracle."""
    chance = random.Random(seed)
    hosts = [Host(name, skew, folder / name) for name, skew in (("east", SKEW_SECONDS), ("west", -SKEW_SECONDS))]
    for host in hosts:
        host.folder.mkdir()
    trees = [Tree(folder / f"tree{n}", f"{PROJECT}/source:s{n}", chance) for n in range(3)]
    (folder / "s3").mkdir()
    with running_s3(folder / "s3") as server, serving(FlakyProxy(server, rate=RATE, seed=seed)) as proxy:
        environment = {
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": proxy.endpoint,
            "DATABASE_URL": f"sqlite:///{folder / 'catalog.sqlite'}",
        }
        commands = Commands(f"s3://{server.bucket}/workspace", environment, chance)
        work = Soak(commands, hosts, trees, chance)
        work.settle(save_tiny_model(folder / "model"))
        work.run(seconds)
        if not commands.problems:
            work.finish()
        if not commands.problems:
            os.environ.update(environment, AWS_ENDPOINT_URL=server.endpoint)
            workspace = Workspace.open(commands.workspace)
            for tree in trees:
                try:
                    entity = Entity.parse(tree.entity)
                    for here in (
                        workspace,
                        *(on_branch(workspace, name, within=Boundary.of(entity)) for name in BRANCHES),
                    ):
                        assert_in_step(here, entity, files_below(tree.folder))
                except AssertionError as error:
                    commands.problem(f"{tree.entity} is not up to date: {error}")
        return {
            "commands": dict(sorted(commands.counts.items())),
            "faults": dict(proxy.met),
            "requests": len(proxy.requests),
            "problems": commands.problems,
        }


if __name__ == "__main__":
    print(json.dumps(soak(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])), indent=1))

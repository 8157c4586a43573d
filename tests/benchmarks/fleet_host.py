"""Measure a fleet on a simulated host: discovery, a sync without changes, and the time from a push to a hit.

.venv/bin/python tests/benchmarks/fleet_host.py

The state of unchanged repositories is written directly, without indexing: a sync reads nothing else about them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import corpus
import measure

sys.path.insert(0, str(Path(__file__).parents[2]))

from driftline.storage.entities import TEMPLATE, Entity, entity_of
from driftline.storage.json_records import from_json, to_json
from driftline.storage.layout import FLEET
from driftline.storage.objects.store import ObjectStore
from driftline.storage.sources.hosts import HostedRepository
from driftline.storage.workspace.fleet_state import FleetFile
from driftline.storage.workspace.workspace import Workspace
from tests.servers.git_server import Checkout, GitServer, Reply, running_git_server

REQUEST_SECONDS = 0.005
PER_PAGE = 100
PUSHED = "2020-01-01T00:00:00Z"
ENTRY_BYTES = 5_000
"""The size of an entry in GitHub's listings; most of it is URLs."""


@dataclass
class Api:
    """GitHub's listing of ``count`` repositories; ``pushed`` holds the times of later pushes."""

    server: GitServer
    count: int
    pushed: dict[int, str] = field(default_factory=dict)
    requests: int = 0

    def __call__(self, target: str, headers: Mapping[str, str]) -> Reply | None:
        time.sleep(REQUEST_SECONDS)
        if not target.startswith("/api/"):
            return None
        self.requests += 1
        page = int(target.rpartition("page=")[2]) if "&page=" in target else 1
        numbers = range(PER_PAGE * (page - 1), min(PER_PAGE * page, self.count))
        etag = f'"{page}-{self.count}-{[self.pushed[each] for each in numbers if each in self.pushed]}"'
        link = f"<http://{self.server.host}{target.partition('&page=')[0]}&page={page + 1}>"
        more = {"Link": f'{link}; rel="next"'} if numbers.stop < self.count else {}
        if headers.get("If-None-Match") == etag:
            return 304, more, b""
        return 200, more | {"ETag": etag}, json.dumps([self.entry(each) for each in numbers]).encode()

    def entry(self, number: int) -> dict[str, Any]:
        own = {"id": number, "full_name": f"acme/r{number}", "private": True, "default_branch": "main"}
        return own | {"pushed_at": self.pushed.get(number, PUSHED), "urls": "x" * ENTRY_BYTES}


def main() -> int:
    options = measure.begin(__doc__, repositories=2_000, discovered=10_000)
    count, discovered = (5, 120) if options.small else (options.repositories, options.discovered)
    verdict = measure.Verdict(options.small)
    with measure.scratch() as folder:
        measure_host(folder, count, discovered, verdict)
    return verdict.exit_code


def measure_host(folder: Path, count: int, discovered: int, verdict: measure.Verdict) -> None:
    """Measure the discovery of ``discovered`` repositories, and syncs of ``count``."""
    with running_git_server(folder) as server:
        api = Api(server, discovered)
        server.api = api
        head = f'workspace = "index"\nmodel = "{corpus.model()}"\n'
        table = f'[[fleet]]\nprovider = "github"\nurl = "http://{server.host}"\norg = "acme"\nname = "bench"\n'
        (folder / "driftline.toml").write_text(head + table)
        listed, _ = _run(folder, "list")
        verdict.at_most(f"memory of the discovery of {discovered:,} repositories", listed.own_peak / 1e6, 200.0, "MB")
        (folder / "acme").mkdir()
        project = Checkout.of(server.create("acme/r0.git"), folder / "tree")
        project.write("a.md", "first\n")
        project.push()
        api.count = 1
        _run(folder, "sync")
        api.count = count
        multiply(folder / "index", count)
        _run(folder, "sync")  # reads the new pages
        runs = len(list((folder / "index").glob("org:*/_runs/*")))
        api.requests = 0
        unchanged, report = _run(folder, "sync")
        if report["to_index"] or len(list((folder / "index").glob("org:*/_runs/*"))) != runs:
            raise SystemExit(f"a sync without changes has indexed {len(report['to_index'])} repositories")
        what = f"sync of {count:,} unchanged repositories with {1000 * REQUEST_SECONDS:g} ms a request"
        print(f"  {api.requests} requests, {unchanged.cpu_seconds:.2f} CPU s")
        verdict.at_most(what, unchanged.seconds, 20.0, "s")
        project.write("a.md", "second\n")
        project.push()
        api.pushed[0] = "2020-01-02T00:00:00Z"
        pushed, report = _run(folder, "sync")
        if len(report["to_index"]) != 1:
            raise SystemExit(f"{len(report['to_index'])} repositories were indexed instead of one")
        print(f"  {pushed.cpu_seconds:.2f} CPU s")
        verdict.at_most(f"one push to one of {count:,} repositories until it is found", pushed.seconds, 3.0, "s")


def multiply(workspace: Path, count: int) -> None:
    """Give the fleet ``count`` copies of its only repository, each with a source record."""
    objects = ObjectStore.open(str(workspace))
    known = from_json(FleetFile, objects.get(FLEET))
    (first,) = known.fleets["bench"].repositories.values()
    record = Workspace.open(str(workspace)).source(Entity.parse(first.entity))
    assert record is not None
    repositories = {first.listed.id: first}
    for number in range(1, count):
        listed = HostedRepository(str(number), f"acme/r{number}", "main", PUSHED)
        entity, uri = entity_of(TEMPLATE, *listed.naming, ()), first.uri.replace("r0.git", f"r{number}.git")
        repositories[listed.id] = replace(first, listed=listed, entity=entity, uri=uri, stamp=listed.stamp)
        path = f"{Entity.parse(entity).directory}/_source.json"
        objects.create(path, to_json(replace(record, entity=entity, uri=uri)))
    fleet = replace(known.fleets["bench"], repositories=repositories)
    _, version = objects.get_versioned(FLEET)
    objects.replace(FLEET, to_json(replace(known, fleets={"bench": fleet})), version)


def _run(folder: Path, verb: str) -> tuple[measure.Measured, dict[str, Any]]:
    command = [*measure.DRIFTLINE, "fleet", verb, "--config", str(folder / "driftline.toml"), "--json"]
    result = measure.run(command, {"DRIFTLINE_GIT_CACHE": str(folder / "mirrors")})
    return result, json.loads(result.output)


if __name__ == "__main__":
    sys.exit(main())

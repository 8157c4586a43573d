"""Measure the run time, size and search latency of a branch, and the effect of many branches on the main index.

    .venv/bin/python tests/benchmarks/branches.py

A run of a branch alternates with a run of the main index over the same changed files.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import corpus
import measure
from bucket import QUERIES

sys.path.insert(0, str(Path(__file__).parents[2]))

from driftline.flows.config.index_request import IndexRequest
from driftline.flows.runs.branches import list_branches
from driftline.flows.runs.index import index_sources
from driftline.storage.garbage import scan_references
from driftline.storage.workspace.branch_cuts import on_branch
from driftline.storage.workspace.workspace import Workspace
from tests.servers.delaying import DelayingProxy, delaying
from tests.servers.s3_server import running_s3
from tests.support.searches import search

CHANGED_FILES = 20
BRANCHES = 30
SOURCES = 10
"""The number of sources on branches in one search."""
ROUNDS = 2
TURNS = 4


def main() -> int:
    options = measure.begin(__doc__, lines=200_000)
    verdict = measure.Verdict(options.small)
    tree = corpus.packages(500 if options.small else options.lines)
    branches, rounds = (2, 1) if options.small else (BRANCHES, ROUNDS)
    print(tree)
    with measure.scratch() as folder:
        source, template = folder / "tree", folder / "template"
        shutil.copytree(tree.path, source)
        _index(source, template)
        _change(source, "edited")
        runs, sizes = _runs(source, template, folder, rounds)
        verdict.at_most("first run of a branch, of a main run over the same files", runs, 1.2)
        branch, main = sizes
        print(f"  bytes: {branch / 1e6:.2f} MB of the branch, {main / 1e6:.2f} MB that the main run added")
        verdict.at_most(
            "bytes of a branch beyond 1.5 times those of the main run", (branch - 1.5 * main) / 1e6, 1, "MB"
        )

        location = folder / "main"
        shutil.copytree(template, location)
        _index(source, location, "topic")
        merged = _index(source, location)
        print(f"  main run after the merge: {merged:,} lines embedded")
        verdict.at_most("lines that the main run embeds after a merge", merged, 0, "")
        workspace = Workspace.open(str(location))  # main holds the same files as the branch
        turns = 2 if options.small else TURNS
        queries = QUERIES[:2] if options.small else QUERIES
        of_branch, of_main = _searches(queries, on_branch(workspace, "topic"), workspace, turns=turns)
        print(f"  search: {of_branch * 1e3:.1f} ms on the branch, {of_main * 1e3:.1f} ms on main")
        verdict.at_most("search of a branch, p50, of one of main", of_branch / of_main, 1.2)
        _hundred(folder, source, location, branches, verdict, queries, turns)
        _several(folder, tree.path, verdict, queries, turns, 2 if options.small else SOURCES)
        _requests(folder, source, verdict)
    return verdict.exit_code


def _index(
    source: Path, workspace: Path | str, branch: str | None = None, entity: str = "source:web", **storage: str
) -> int:
    """Index ``source`` and return the number of lines embedded."""
    request = IndexRequest(
        (str(source),), str(workspace), entity=entity, branch=branch, storage_options=storage or None
    )
    return index_sources(request).sources[0].lines_embedded


def _change(source: Path, word: str) -> None:
    """Append a line to CHANGED_FILES files in the tree."""
    files = sorted(path for path in source.rglob("*.py") if path.is_file())
    for path in files[:: max(1, len(files) // CHANGED_FILES)][:CHANGED_FILES]:
        with path.open("a") as file:
            file.write(f"\n# {word} {path.name}\n")


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _runs(source: Path, template: Path, folder: Path, rounds: int) -> tuple[float, tuple[int, int]]:
    """Return the times of a branch's first run and of a main run over the same files, and the bytes added by each."""
    before = _size(template)
    times: dict[str, list[float]] = {"branch": [], "main": []}
    added = {"branch": 0, "main": 0}
    for _ in range(rounds):
        for name, found in times.items():
            location = folder / f"run of {name}"
            shutil.copytree(template, location)
            found.append(_seconds(lambda: _index(source, location, "topic" if name == "branch" else None)))  # noqa: B023
            if name == "branch":
                added[name] = list_branches(Workspace.open(str(location)))[0].size_bytes
            else:
                added[name] = _size(location) - before
            shutil.rmtree(location)
    branch, main = (min(times[name]) for name in ("branch", "main"))
    print(f"  run over {CHANGED_FILES} changed files: {branch:.2f} s of a new branch, {main:.2f} s of main")
    return branch / main, (added["branch"], added["main"])


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _searches(queries: Sequence[str], *workspaces: Workspace, turns: int) -> list[float]:
    """Return the median time of a warm search in each workspace. Searches alternate."""
    times: list[list[float]] = [[] for _ in workspaces]
    for turn in range(turns):
        for query in queries:
            for workspace, found in zip(workspaces, times, strict=True):
                seconds = _seconds(lambda: search(workspace, query))  # noqa: B023
                if turn:  # the first round is a warm-up
                    found.append(seconds)
    return [median(found) for found in times]


def _several(
    folder: Path, tree: Path, verdict: measure.Verdict, queries: Sequence[str], turns: int, count: int
) -> None:
    """Compare a search with ``count`` sources on branches (and one on main) to a search of main alone."""
    location, files = folder / "several", sorted(path for path in tree.rglob("*.py") if path.is_file())
    sources = [folder / "sources" / f"part{number}" for number in range(min(count + 1, len(files)))]
    for number, path in enumerate(files):
        sources[number % len(sources)].mkdir(parents=True, exist_ok=True)
        shutil.copy(path, sources[number % len(sources)] / f"{number}.py")
    for source in sources:
        _index(source, location, entity=f"source:{source.name}")
    for source in sources[1:]:
        _change(source, "on a branch")
        _index(source, location, "topic", entity=f"source:{source.name}")
    workspace = Workspace.open(str(location))
    several, main = _searches(queries, on_branch(workspace, "topic"), workspace, turns=turns + 1)
    print(f"  search: {several * 1e3:.1f} ms over {len(sources) - 1} branches and main, {main * 1e3:.1f} ms over main")
    verdict.at_most(f"search over main and {len(sources) - 1} branches, p50, of one of main", several / main, 1.2)


def _hundred(
    folder: Path,
    source: Path,
    location: Path,
    branches: int,
    verdict: measure.Verdict,
    queries: Sequence[str],
    turns: int,
) -> None:
    """Compare a main index that has many branches to a copy of the workspace without branches."""
    without = folder / "without"
    shutil.copytree(location, without)
    for number in range(branches):
        path = source / f"only on branch {number}.py"
        path.write_text(f"# branch {number}\n")
        _index(source, location, f"topic/{number}")
        path.unlink()
    measured: dict[str, list[float]] = {}
    for name, work in (
        ("unchanged run of main", lambda at: _index(source, at)),
        ("search of main", lambda at: _searches(queries, Workspace.open(str(at)), turns=turns)),
        ("survey of a cleanup", lambda at: scan_references(Workspace.open(str(at)))),
    ):
        times = [(_seconds(lambda: work(location)), _seconds(lambda: work(without))) for _ in range(turns + 1)]  # noqa: B023
        measured[name] = [min(pair[0] for pair in times), min(pair[1] for pair in times)]
        with_them, alone = measured[name]
        print(f"  {name}: {with_them:.3f} s with {branches} branches, {alone:.3f} s without")
    for name, limit in (("unchanged run of main", 1.1), ("search of main", 1.0), ("survey of a cleanup", 3)):
        verdict.at_most(
            f"{name} with {branches} branches, of one without", measured[name][0] / measured[name][1], limit
        )


def _requests(folder: Path, source: Path, verdict: measure.Verdict) -> None:
    """Return how many more requests a new branch in a bucket needs than a main run over the same files."""
    with running_s3(folder) as server, delaying(server.endpoint, 0.0) as proxy:
        storage = {"aws_access_key_id": server.access_key, "aws_secret_access_key": server.secret_key}
        storage |= {"aws_region": "us-east-1", "aws_endpoint": proxy.endpoint, "aws_allow_http": "true"}
        uri = f"s3://{server.bucket}/workspace"
        _index(source, uri, **storage)
        _change(source, "once more")
        of_branch = _count(proxy, lambda: _index(source, uri, "topic", **storage))
        again = _count(proxy, lambda: _index(source, uri, "topic", **storage))
        _change(source, "a last time")
        of_main = _count(proxy, lambda: _index(source, uri, **storage))
    print(f"  requests: {of_branch} of a new branch, {of_main} of main, {again} of the branch unchanged")
    verdict.at_most("requests of a new branch, beyond those of a main run", of_branch - of_main, 60, "")


def _count(proxy: DelayingProxy, work: Callable[[], object]) -> int:
    proxy.take()
    work()
    return len(proxy.take())


if __name__ == "__main__":
    sys.exit(main())

"""Measure runs with little or no work: an unchanged tree, one changed file, a fresh clone, a commit.

    .venv/bin/python tests/benchmarks/unchanged.py

The tree consists of small files; the peer is ``find`` over the same tree in the same minute. Each figure is the best of
several alternating runs, since the target of 1.5 s assumes a quiet host. CPU seconds are shown for busy hosts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import corpus
import measure

COMMITTED_FILES = 20
OBSTACLE = "half of it is the start of Python and its libraries"
FIND_FORMAT = "%p %s %T@\\n"


def main() -> int:
    options = measure.begin(__doc__, files=100_000, rounds=3)
    files = 120 if options.small else options.files
    rounds = 1 if options.small else options.rounds
    verdict = measure.Verdict(options.small)
    tree, git = corpus.small_files(files), corpus.git_tree(files)
    print(f"{tree}; {rounds} rounds in turn, the best of each")
    with measure.scratch() as folder:
        _plain_tree(tree, folder / "plain", rounds, verdict)
        _git_tree(git, folder, rounds, verdict)
    return verdict.exit_code


def _plain_tree(tree: corpus.Corpus, workspace: Path, rounds: int, verdict: measure.Verdict) -> None:
    first, report = index(tree.path, workspace)
    expect(report, "new", tree.files)
    print(f"  first run: {_described([first])}", flush=True)
    edited = next(path for path in sorted(tree.path.rglob("*.py")))
    before = edited.read_text()
    find, unchanged, one_changed = list[measure.Measured](), list[measure.Measured](), list[measure.Measured]()
    try:
        for turn in range(rounds):
            command = ["find", str(tree.path), "-type", "f", "-printf", FIND_FORMAT]
            find.append(measure.run(command))
            run, report = index(tree.path, workspace)
            unchanged.append(run)
            expect(report, "unchanged", tree.files)
            edited.write_text(f"{before}changed = {turn}\n")
            run, report = index(tree.path, workspace)
            one_changed.append(run)
            expect(report, "changed", 1)
            edited.write_text(before)
            os.utime(edited, (1, 1))  # an old mtime: files modified in the current second are read again
            index(tree.path, workspace)
    finally:
        edited.write_text(before)
    print(
        f"  find {_described(find)}, unchanged {_described(unchanged)}, one file changed {_described(one_changed)}",
        flush=True,
    )
    listed, same, changed = _best(find), _best(unchanged), _best(one_changed)
    verdict.at_most("a run over the unchanged tree", same, 1.5 + 5 * listed, "s")
    verdict.at_most("a run after one change, of the unchanged run", changed / same, 1.5)


def _git_tree(tree: corpus.Corpus, folder: Path, rounds: int, verdict: measure.Verdict) -> None:
    workspace, clones = folder / "git", folder / "clones"
    clones.mkdir()
    _, report = index(tree.path, workspace)
    expect(report, "new", tree.files)
    unchanged, cloned = list[measure.Measured](), list[measure.Measured]()
    embedded = 0
    for _ in range(rounds):
        index(tree.path, workspace)  # a previous clone had newer mtimes
        run, report = index(tree.path, workspace)
        unchanged.append(run)
        expect(report, "unchanged", tree.files)
        clone = corpus.fresh_clone(tree, clones)
        if rounds > 1:
            _wait_past_the_clock()
        run, report = index(clone, workspace)
        cloned.append(run)
        embedded = max(embedded, report["lines_embedded"])
    print(f"  git tree: unchanged {_described(unchanged)}, fresh clone {_described(cloned)}", flush=True)
    committed = _commit(corpus.fresh_clone(tree, clones), workspace, rounds)
    print(f"  a commit of {COMMITTED_FILES} files: {_described(committed)}", flush=True)
    verdict.at_most(f"index a commit of {COMMITTED_FILES} files", _best(committed), 3.0, "s", OBSTACLE)
    verdict.at_most("lines embedded of a fresh clone", embedded, 0, "lines")
    verdict.at_most("a run over a fresh clone, of the unchanged run", _best(cloned) / _best(unchanged), 3.0)


def _commit(clone: Path, workspace: Path, rounds: int) -> list[measure.Measured]:
    """Measure runs after commits, in a cold process. When a run ends, its changes are searchable."""
    index(clone, workspace, "--ci")
    runs: list[measure.Measured] = []
    files = sorted(clone.rglob("*.py"))
    for turn in range(rounds):
        for path in files[turn :: len(files) // COMMITTED_FILES][:COMMITTED_FILES]:
            with path.open("a") as file:
                file.write(f"committed = {turn}\n")
        corpus.git(clone, "commit", "-qam", f"Turn {turn}")
        run, report = index(clone, workspace, "--ci")
        expect(report, "changed", COMMITTED_FILES)
        runs.append(run)
    return runs


def _best(runs: list[measure.Measured]) -> float:
    return min(run.seconds for run in runs)


def _described(runs: list[measure.Measured]) -> str:
    return f"{_best(runs):.2f} s ({min(run.cpu_seconds for run in runs):.2f} CPU s)"


def index(tree: Path, workspace: Path, *options: str) -> tuple[measure.Measured, dict[str, Any]]:
    result = measure.run([*measure.DRIFTLINE, "index", str(tree), "--workspace", str(workspace), "--json", *options])
    (source,) = json.loads(result.output)["sources"]
    return result, source


def expect(report: dict[str, Any], state: str, count: int) -> None:
    if report[state] != count:
        raise SystemExit(f"{report[state]} documents are {state}, not {count}: {report}"[:500])


def _wait_past_the_clock() -> None:
    """Wait until a clone's files are no longer racy: a run reads racy files again."""
    time.sleep(2.5)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr}")

"""Compare a run over an unchanged tree of a million files with ``find`` over the same tree in the same minute.

    .venv/bin/python tests/benchmarks/million_files.py

The first run does not build indexes, since an unchanged run does not use them. A run over one file measures the
start-up time.
"""

from __future__ import annotations

import subprocess
import sys

import corpus
import measure
from unchanged import FIND_FORMAT, expect, index

LISTINGS = 3.0
"""The target as a multiple of ``find``'s time, start-up excluded."""


def main() -> int:
    options = measure.begin(__doc__, files=1_000_000, rounds=2)
    files, rounds = (120, 1) if options.small else (options.files, options.rounds)
    verdict = measure.Verdict(options.small)
    tree = corpus.small_files(files)
    print(f"{tree}; {rounds} rounds in turn, the best of each")
    find, unchanged, start = list[float](), list[measure.Measured](), list[float]()
    with measure.scratch() as folder:
        lone = folder / "tree"
        lone.mkdir()
        (lone / "one.py").write_text("one = 1\n")
        index(lone, folder / "one")
        first, report = index(tree.path, folder / "workspace", "--indexes", "none")
        expect(report, "new", tree.files)
        print(f"  first run, without indexes: {first.seconds:.1f} s, {first.own_peak / 1e9:.2f} GB", flush=True)
        for _ in range(rounds):
            start.append(index(lone, folder / "one")[0].seconds)
            find.append(measure.run(["find", str(tree.path), "-type", "f", "-printf", FIND_FORMAT]).seconds)
            run, report = index(tree.path, folder / "workspace", "--indexes", "none")
            expect(report, "unchanged", tree.files)
            unchanged.append(run)
            print(f"  find {find[-1]:.2f} s, unchanged {run.seconds:.2f} s, phases {report['phases']}", flush=True)
    best = min(run.seconds for run in unchanged)
    print(f"  starting takes {min(start):.2f} s; peak memory {max(run.own_peak for run in unchanged) / 1e9:.2f} GB")
    verdict.at_most(
        "an unchanged run beyond its start, of find",
        (best - min(start)) / min(find),
        LISTINGS,
        obstacle="one process walks the tree and compares it; Python takes three times as long as find for each file",
    )
    return verdict.exit_code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr}")

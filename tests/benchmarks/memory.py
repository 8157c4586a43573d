"""Measure the coordinator's memory while two million lines are indexed and batches are embedded in its process or
others.

    .venv/bin/python tests/benchmarks/memory.py

It also measures a quarter of the lines: the coordinator's memory must not grow with the number of lines.
"""

from __future__ import annotations

import json
import subprocess
import sys

import corpus
import measure

MAX_BYTES = 1.5e9


def main() -> int:
    options = measure.begin(__doc__, lines=2_000_000)
    sizes = [500] if options.small else [options.lines // 4, options.lines]
    verdict = measure.Verdict(options.small)
    print(f"{'lines':>10} {'executor':9} {'s':>7} {'coordinator MB':>15} {'largest process MB':>19}")
    for lines in sizes:
        tree = corpus.packages(lines)
        for executor in ("inline", "local"):
            with measure.scratch() as folder:
                command = [*measure.DRIFTLINE, "index", str(tree.path), "--workspace", str(folder / "workspace")]
                result = measure.run([*command, "--executor", executor, "--json"])
            (source,) = json.loads(result.output)["sources"]
            if source["new"] != tree.files:
                raise SystemExit(f"driftline indexed {source['new']} of {tree.files} files")
            own, largest = result.own_peak / 1e6, result.largest_peak / 1e6
            print(f"{tree.lines:10,} {executor:9} {result.seconds:7.1f} {own:15,.0f} {largest:19,.0f}", flush=True)
            if lines == sizes[-1]:
                verdict.at_most(f"peak of the coordinator, {executor}", result.own_peak / 1e9, MAX_BYTES / 1e9, "GB")
    return verdict.exit_code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr}")

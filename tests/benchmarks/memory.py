"""Memory of the coordinator while it indexes two million lines, with batches embedded in the same process or in others.

    .venv/bin/python tests/benchmarks/memory.py

The same is measured on a quarter of the lines: memory of the coordinator must not grow with their number.
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

"""Compare full runs of ``driftline index`` with semble and a plain pipeline, as processes over one tree.

    .venv/bin/python tests/benchmarks/indexing.py

All load the same model directory, index the same files and write their index to disk. Runs alternate, each in a fresh
folder. "text" supports exact vector search and full-text search; "all" adds the vector index. For all contenders,
"lines" counts the lines of the tree, including blank ones.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import corpus
import measure

PEERS = Path(__file__).parent / "peers"
TEXT, ALL, SEMBLE, PLAIN = "driftline, text", "driftline, all", "semble 0.7", "plain pipeline"


def main() -> int:
    options = measure.begin(__doc__, lines=600_000, rounds=3)
    tree = corpus.packages(500 if options.small else options.lines)
    rounds = 1 if options.small else options.rounds
    model = corpus.model()
    print(f"{tree}; {rounds} rounds in turn, medians")

    contenders: dict[str, Callable[[Path], measure.Measured]] = {
        TEXT: lambda target: _driftline(tree, model, target, "text"),
        SEMBLE: lambda target: _peer("semble_index.py", tree, model, target),
        ALL: lambda target: _driftline(tree, model, target, "all"),
        PLAIN: lambda target: _peer("plain_pipeline.py", tree, model, target),
    }
    found: dict[str, list[measure.Measured]] = {name: [] for name in contenders}
    with measure.scratch() as folder:
        for turn in range(rounds):
            for name, index in contenders.items():
                target = folder / "target"
                result = index(target)
                found[name].append(result)
                cpu = result.cpu_seconds
                print(f"  round {turn + 1}: {name:16} {result.seconds:6.1f} s  {cpu:6.1f} CPU s", flush=True)
                shutil.rmtree(target)

    seconds = {name: measure.median([run.seconds for run in runs]) for name, runs in found.items()}
    print(f"\n{'':16} {'s':>7} {'CPU s':>7} {'lines/s':>9} {'peak MB':>8} {'x semble':>9} {'x plain':>8}")
    for name, runs in found.items():
        cpu = measure.median([run.cpu_seconds for run in runs])
        peak = max(run.largest_peak for run in runs) / 1e6
        print(
            f"{name:16} {seconds[name]:7.1f} {cpu:7.1f} {tree.lines / seconds[name]:9,.0f} {peak:8,.0f} "
            f"{seconds[SEMBLE] / seconds[name]:9.2f} {seconds[PLAIN] / seconds[name]:8.2f}"
        )
    measure.bars("Lines indexed per second", "lines/s", {name: tree.lines / taken for name, taken in seconds.items()})
    verdict = measure.Verdict(options.small)
    verdict.at_least("lines/s to exact and full-text search, of semble's", seconds[SEMBLE] / seconds[TEXT], 1.8)
    verdict.at_least("lines/s with all indexes, of semble's", seconds[SEMBLE] / seconds[ALL], 1.5)
    verdict.at_least("lines/s with all indexes, of the plain pipeline's", seconds[PLAIN] / seconds[ALL], 1.5)
    return verdict.exit_code


def _driftline(tree: corpus.Corpus, model: Path, target: Path, indexes: str) -> measure.Measured:
    command = [*measure.DRIFTLINE, "index", str(tree.path), "--workspace", str(target), "--model", str(model)]
    result = measure.run([*command, "--indexes", indexes, "--json"])
    (source,) = json.loads(result.output)["sources"]
    if source["new"] != tree.files:
        raise SystemExit(f"driftline indexed {source['new']} of {tree.files} files: {source['skipped'][:5]}")
    return result


def _peer(script: str, tree: corpus.Corpus, model: Path, target: Path) -> measure.Measured:
    # semble has a cache: without a fresh one, the second run would find the index of the first.
    env = {"SEMBLE_INDEX_WORKERS": "2", "SEMBLE_CACHE_LOCATION": str(target / "cache"), "HF_HUB_OFFLINE": "1"}
    result = measure.run([measure.PYTHON, str(PEERS / script), str(tree.path), str(model), str(target)], env)
    indexed = int(result.output)
    if indexed < 0.99 * tree.files:  # semble skips files without text
        raise SystemExit(f"{script} indexed {indexed} of {tree.files} files")
    return result


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr}")

"""Measure index updates (a first run, an unchanged run and a run after changes) against an incremental indexer.

    .venv/bin/python tests/benchmarks/incremental.py

The peer is LlamaIndex's ingestion pipeline with upserts and the same model. ``make bench`` installs it; without it,
only Driftline is measured. ``find`` and ``git status`` over the same tree show the minimum time to find no changes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import corpus
import measure

PEERS = Path(__file__).parent / "peers"
PEERS_PYTHON = Path(sys.prefix) / "peers" / "bin" / "python"
CHANGED_FILES = 5
Index = Callable[[], tuple[measure.Measured, int]]
"""A run's measurements and the number of files it embedded."""


def main() -> int:
    options = measure.begin(__doc__, files=2_000)
    tree = corpus.git_tree(120 if options.small else options.files)
    print(f"{tree}; {CHANGED_FILES} files are changed")
    verdict = measure.Verdict(options.small)
    seconds: dict[str, dict[str, float]] = {}
    with measure.scratch() as folder:
        contenders: dict[str, Index] = {"driftline": lambda: _driftline(tree.path, folder / "driftline")}
        if PEERS_PYTHON.exists():
            contenders["llama-index"] = lambda: _llama_index(tree.path, folder / "llama-index")
        else:
            print("  llama-index is not set up: make peers")
        for name, index in contenders.items():
            seconds[name] = _measure(name, tree, index)
    find = measure.run(["find", str(tree.path), "-type", "f", "-printf", "%p %s %T@\\n"]).seconds
    status = measure.run(["git", "-C", str(tree.path), "status", "--porcelain"]).seconds
    print(f"  find {find:.2f} s, git status {status:.2f} s")
    for kind in next(iter(seconds.values())):
        measure.bars(f"Seconds of a run: {kind}", "s", {name: found[kind] for name, found in seconds.items()})
        if "llama-index" in seconds:
            ratio = seconds["llama-index"][kind] / seconds["driftline"][kind]
            verdict.at_least(f"{kind}, faster than llama-index", ratio, 1.0)
    return verdict.exit_code


def _measure(name: str, tree: corpus.Corpus, index: Index) -> dict[str, float]:
    """Time each kind of run, then restore the tree."""
    first, embedded = index()
    _expect(name, embedded, tree.files)
    unchanged, embedded = index()
    _expect(name, embedded, 0)
    files = sorted(tree.path.rglob("*.py"))
    edited = {path: path.read_bytes() for path in files[:: len(files) // CHANGED_FILES][:CHANGED_FILES]}
    try:
        for path, before in edited.items():
            path.write_bytes(before + b"changed = 1\n")
        changed, embedded = index()
        _expect(name, embedded, len(edited))
    finally:
        for path, before in edited.items():
            path.write_bytes(before)
            os.utime(path, (1, 1))
    found = {"first": first.seconds, "unchanged": unchanged.seconds, "few files changed": changed.seconds}
    print(f"  {name:12} {', '.join(f'{kind} {taken:.2f} s' for kind, taken in found.items())}", flush=True)
    return found


def _driftline(tree: Path, target: Path) -> tuple[measure.Measured, int]:
    command = [*measure.DRIFTLINE, "index", str(tree), "--workspace", str(target), "--model", str(corpus.model())]
    result = measure.run([*command, "--json"])
    (source,) = json.loads(result.output)["sources"]
    return result, source["new"] + source["changed"]


def _llama_index(tree: Path, target: Path) -> tuple[measure.Measured, int]:
    script = str(PEERS / "llama_index_pipeline.py")
    result = measure.run([str(PEERS_PYTHON), script, str(tree), str(corpus.model()), str(target)])
    return result, int(result.output.splitlines()[-1])


def _expect(name: str, embedded: int, expected: int) -> None:
    if embedded != expected:
        raise SystemExit(f"{name} embedded {embedded} files, not {expected}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr}")

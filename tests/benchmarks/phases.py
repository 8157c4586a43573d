"""Measure the time of each phase of an index run, and compare it with the machine's limit.

    .venv/bin/python tests/benchmarks/phases.py

The limits are measured over the same tree and the same rows: ``find`` for the scan, ``cat`` for reading, a copy of the
text for splitting, a copy of the vectors for embedding, Lance's own write of the rows for forming and writing them, and
its own index builds. Workers' phases overlap on all cores; their seconds are summed for comparison with the limits of
one core.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import corpus
import lance
import measure
import numpy as np
import pyarrow as pa

from driftline.storage.lance.lance_table import create_vector_index
from driftline.storage.lines.indexes import COLUMNS, SCALAR_INDEXES
from driftline.storage.lines.line_table import TEXT_COLUMN
from driftline.storage.lines.tokenizer import TOKENIZER
from driftline.tasks.embedding.models import dimension, fingerprint, resolve_model
from driftline.tasks.task_context import ModelRef, load_embedder

MAX_OF_LIMITS = 2.5
MAX_BYTES_PER_ROW = 850
LINES_PER_BATCH = 100_000


def main() -> int:
    options = measure.begin(__doc__, lines=600_000)
    tree = corpus.packages(500 if options.small else options.lines)
    verdict = measure.Verdict(options.small)
    print(tree)
    with measure.scratch() as folder:
        workspace = folder / "workspace"
        _cat(tree.path)  # into the page cache
        command = [*measure.DRIFTLINE, "index", str(tree.path), "--workspace", str(workspace), "--json"]
        result = measure.run(command)
        run = json.loads(result.output)
        (table,) = workspace.rglob("line_embeddings-*.lance")
        limits, rows = _limits(tree, table, folder)
        size = sum(path.stat().st_size for path in workspace.rglob("*") if path.is_file())

    own = {**run["phases"], **run["worker_phases"]}
    whole = f"{result.seconds:.2f} s ({result.cpu_seconds:.2f} CPU s)"
    print(f"  whole run {whole}, of it in the pipeline {run['seconds']:.2f} s")
    print(f"  {'phase':14} {'s':>8} {'limit s':>8} {'times':>6}")
    far = {}
    for phase, (limit, what) in limits.items():
        seconds = sum(own.get(name, 0.0) for name in phase.split("+"))
        far[phase] = seconds / max(limit, 1e-3)
        print(f"  {phase:14} {seconds:8.3f} {limit:8.3f} {far[phase]:6.1f}  {what}")
    others = {name: seconds for name, seconds in own.items() if not any(name in phase.split("+") for phase in limits)}
    print(f"  without a limit: {', '.join(f'{name} {seconds:.3f}' for name, seconds in others.items())}")
    print(f"  furthest from its limit: {max(far, key=lambda phase: far[phase])}")
    alone = _embedding_alone(rows)
    floor = limits["read"][0] + alone + limits["write"][0] + limits["index"][0]
    print(f"  embedding alone {alone:.2f} s; cat, embedding, raw write and raw indexes: {floor:.2f} s")
    verdict.at_most("the whole run, of that sum", result.seconds / floor, MAX_OF_LIMITS)
    verdict.at_most("bytes on disk for each row", size / len(rows), MAX_BYTES_PER_ROW, "")
    return verdict.exit_code


def _limits(tree: corpus.Corpus, table: Path, folder: Path) -> tuple[dict[str, tuple[float, str]], pa.Table]:
    """Return the seconds and name of each phase's limit, and the table's rows without commit markers."""
    rows = lance.dataset(str(table)).to_table(filter="line_number >= 0")
    text, vectors = rows["text"].combine_chunks(), rows["vector"].combine_chunks().flatten().to_numpy()
    raw = str(folder / "raw.lance")
    found = {
        "scan": (_seconds(lambda: _run("find", str(tree.path), "-type", "f", "-printf", "%p %s %T@\\n")), "find"),
        "read": (_seconds(lambda: _cat(tree.path)), "cat"),
        "split": (_seconds(lambda: [np.array(part, copy=True) for part in text.buffers() if part]), "copy the text"),
        "embed": (_seconds(lambda: np.array(vectors, copy=True)), "copy the vectors"),
        "write": (_seconds(lambda: lance.write_dataset(rows, raw, enable_stable_row_ids=True)), "Lance's raw write"),
    }
    dataset = lance.dataset(raw)
    found["index"] = (_seconds(lambda: _build(dataset)), "Lance's raw index builds")
    return found, rows


def _build(dataset: Any) -> None:
    for name, kind in SCALAR_INDEXES.items():
        dataset.create_scalar_index(COLUMNS[name], kind)
    dataset.create_scalar_index(TEXT_COLUMN, "INVERTED", **TOKENIZER)
    create_vector_index(dataset)


def _embedding_alone(rows: pa.Table) -> float:
    """Return the seconds it takes to embed the lines in threads, as the run does."""
    files = resolve_model()
    embedder = load_embedder(ModelRef(files.name, fingerprint(files), dimension(files)))
    embedder.embed_query("warm up")
    text = rows["text"].combine_chunks()
    batches = [text[start : start + LINES_PER_BATCH] for start in range(0, len(text), LINES_PER_BATCH)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return _seconds(lambda: list(pool.map(lambda batch: len(embedder.embed(batch, np.float16)), batches)))


def _cat(tree: Path) -> None:
    _run("find", str(tree), "-type", "f", "-exec", "cat", "{}", "+")


def _run(*command: str) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr}")

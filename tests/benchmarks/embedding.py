"""Measure embedding in one process: StaticModel.encode against a cold and a warm word table, on real source files.

Run: python tests/benchmarks/embedding.py Exits with 1 if the table is less than 3 times as fast cold or 6 times as fast
warm, or if the vectors differ. Ratios are based on CPU seconds: all contenders are single-threaded, and other work on
the machine distorts wall-clock time.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.tasks.embedding.embedder import WordTableEmbedder
from driftline.tasks.embedding.models import fingerprint, load, resolve_model
from driftline.tasks.text import decode, split_documents

MIN_LINES = 600_000
MIN_COLD_RATIO = 3.0
MIN_WARM_RATIO = 6.0
MAX_DEVIATION = 1e-4


def source_lines(at_least: int) -> pa.StringArray:
    """Return the lines of installed packages, file by file."""
    parts, count = [], 0
    for path in sorted(Path(sysconfig.get_path("purelib")).rglob("*.py")):
        text, skipped = decode(path.read_bytes())
        if skipped is None:
            parts.append(split_documents([text]).text)
            count += len(parts[-1])
        if count >= at_least:
            return pa.concat_arrays(parts)
    sys.exit(f"Only {count:,} lines are installed here, {at_least:,} are needed: install more packages.")


def timed(name: str, count: int, work: Callable[[], NDArray[np.float32]]) -> tuple[NDArray[np.float32], float]:
    clock, cpu = time.perf_counter(), time.process_time()
    result = work()
    clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
    print(f"{name:<22}{clock:8.2f} s{cpu:8.2f} CPU s{count / cpu:12,.0f} lines/CPU s")
    return result, cpu


def main() -> int:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread for both contenders
    lines = source_lines(MIN_LINES)
    files = resolve_model()
    model = load(files)
    embedder = WordTableEmbedder(load(files), fingerprint(files))
    texts = lines.to_pylist()
    model.encode(texts[:1000], use_multiprocessing=False)
    embedder.embed_query("warm up")

    print(f"{len(lines):,} lines")
    expected, plain = timed("StaticModel.encode", len(lines), lambda: model.encode(texts, use_multiprocessing=False))
    cold_rows, cold = timed("word table, cold", len(lines), lambda: embedder.embed(lines))
    warm_rows, warm = timed("word table, warm", len(lines), lambda: embedder.embed(lines))
    deviation = max(float(np.abs(rows - expected).max()) for rows in (cold_rows, warm_rows))
    print(f"cold {plain / cold:.1f} times, warm {plain / warm:.1f} times; largest deviation {deviation:.1e}")
    good = plain / cold >= MIN_COLD_RATIO and plain / warm >= MIN_WARM_RATIO and deviation <= MAX_DEVIATION
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

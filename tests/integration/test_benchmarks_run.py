"""Each benchmark runs to its end on a tiny corpus. The figures are meaningless there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of corpora during these tests."""
    return tmp_path_factory.mktemp("corpora")


@pytest.mark.parametrize(
    "name",
    [
        "indexing",
        "unchanged",
        "million_files",
        "memory",
        "memory_store",
        "searching",
        "quality",
        "index_kinds",
        "phases",
        "dask_scale",
        "store_requests",
        "many_sources",
        "fleet",
        "branches",
        "deepening",
    ],
)
def test_a_benchmark_runs_on_a_small_corpus(name: str, corpora: Path) -> None:
    env = {**os.environ, "TMPDIR": str(corpora)}
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--small"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"{os.cpu_count()} cores" in done.stdout
    assert "MISSED" not in done.stdout

"""Each benchmark runs to completion on a tiny corpus, where the figures are meaningless."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.processes import ForkedProgram, forked_command, forked_python
from tests.support.waiting import PATIENCE_SECONDS

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpora cache during these tests."""
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
    cheap = {
        "TMPDIR": str(corpora),
        "DRIFTLINE_BENCH_PROGRAM": str(forked_command()),
        "DRIFTLINE_BENCH_PYTHON": str(forked_python()),
        "DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "forkserver",
    }
    benchmark = ForkedProgram(BENCHMARKS / f"{name}.py", "--small", environment=cheap)
    output, errors = benchmark.communicate(timeout=PATIENCE_SECONDS)
    assert benchmark.returncode == 0, errors[-2000:]
    assert f"{os.cpu_count()} cores" in output
    assert "MISSED" not in output


@pytest.mark.parametrize(("exit_code", "is_kept"), [(0, False), (3, False), (1, True), (-9, True)])
def test_only_a_complete_run_replaces_the_last_results(
    exit_code: int, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    bench = importlib.import_module("bench")
    record = tmp_path / "unchanged.json"
    last = {"command": "", "date": "", "seconds": 0, "exit_code": 0, "records": [], "output": ["the last run"]}
    record.write_text(json.dumps(last))
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "RESULTS.md")
    monkeypatch.setattr(bench, "run", lambda *_: {**last, "exit_code": exit_code, "output": ["half of a run"]})
    monkeypatch.setattr(sys, "argv", ["bench.py", "unchanged"])
    assert bench.main() == (exit_code != 0)
    assert json.loads(record.read_text())["output"] == (["the last run"] if is_kept else ["half of a run"])

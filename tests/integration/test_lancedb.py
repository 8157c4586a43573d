"""LanceDB can read tables written by Driftline; later runs extend the indexes."""

from __future__ import annotations

import argparse
import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from driftline.storage.lance.lance_table import VECTOR
from driftline.storage.lines import indexes
from driftline.storage.lines.indexes import PARENT_DIRS, PATH, coverage
from driftline.storage.lines.line_table import TEXT
from driftline.storage.workspace.workspace import Workspace

Driftline = Callable[..., Any]


WORDS = sorted(set(re.findall(r"[a-z]{5,}", inspect.getsource(argparse))))


def text(number: int, line: int) -> str:
    """Return a line of file ``number``. No two lines have the same words, because a static model ignores word order."""
    return f"{WORDS[number // 16]} {WORDS[20 + number % 16]} {WORDS[40 + line]}"


def write(tree: Path, first: int, files: int) -> None:
    """Write ``files`` files of ten lines each."""
    for number in range(first, first + files):
        path = tree / f"package{number % 3}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{text(number, line)}\n" for line in range(10)))
        os.utime(path, (1_000_000_000, 1_000_000_000))


@pytest.fixture
def index(tmp_path: Path, driftline: Driftline, tiny_model: Path) -> Callable[..., Any]:
    """Index the tree and return the indexes that the run built or extended."""

    def run(*options: str) -> Any:
        at = ("--workspace", tmp_path / "ws", "--model", tiny_model, "--json")
        outcome = driftline("index", tmp_path / "tree", *at, *options)
        assert outcome.code == 0, outcome.err
        return outcome.json["indexes"]

    return run


@pytest.fixture
def status(tmp_path: Path, driftline: Driftline) -> Callable[[], tuple[bool, str | None]]:
    def run() -> tuple[bool, str | None]:
        found = driftline("status", "--workspace", tmp_path / "ws", "--json").json
        return found["has_index"], found["index_type"]

    return run


@pytest.fixture
def best(tmp_path: Path, driftline: Driftline) -> Callable[..., list[str]]:
    def run(query: str, *options: object) -> list[str]:
        found = driftline("search", query, "--workspace", tmp_path / "ws", "-n", 0, "--json", *options).json
        return [f"{hit['path']}:{hit['line']}" for hit in found["results"]]

    return run


def covered(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the number of indexed and unindexed rows by index name."""
    workspace = Workspace.open(str(folder))
    found = coverage(workspace.lines(workspace.tenants()[0]).open())
    return {name: (index.indexed_rows, index.unindexed_rows) for name, index in found.items()}


def test_lancedb_opens_reads_and_searches_the_same_table(tmp_path: Path, index: Callable[..., Any]) -> None:
    write(tmp_path / "tree", 0, 30)
    assert set(index()) == {PATH, PARENT_DIRS, TEXT, VECTOR}
    workspace = Workspace.open(str(tmp_path / "ws"))
    ours = workspace.lines(workspace.tenants()[0])
    import lancedb  # takes seconds, which every process of the suite would pay

    theirs = lancedb.connect(Path(ours.uri).parent).open_table(Path(ours.uri).stem)
    lines = "line_number >= 0"  # the source's commit marker has none
    assert theirs.count_rows(lines) == ours.count() == 300
    # LanceDB contains an older Lance, which ignores BTREE indexes of tables with stable row ids.
    assert {found.name for found in theirs.list_indices()} | {PATH} == {PATH, PARENT_DIRS, TEXT, VECTOR}
    stats = theirs.index_stats(VECTOR)
    assert stats is not None
    assert stats.num_indexed_rows + stats.num_unindexed_rows == 301  # with the commit marker
    assert stats.num_unindexed_rows <= 1
    row = theirs.search().where("path = 'package1/module1.py' AND line_number = 3").limit(1).to_list()[0]
    assert row["text"] == text(1, 3)
    assert row["parent_dirs"] == ["package1/"]
    nearest = theirs.search(np.asarray(row["vector"], np.float32)).limit(10).to_list()  # quantized vectors
    assert ("package1/module1.py", 3) in {(found["path"], found["line_number"]) for found in nearest}
    within = theirs.search(np.asarray(row["vector"], np.float32)).where("path LIKE 'package2/%'", prefilter=True)
    assert {found["path"].partition("/")[0] for found in within.limit(20).to_list()} == {"package2"}
    words = theirs.search(WORDS[43], query_type="fts").limit(1000).to_list()
    assert "package1/module1.py" in {found["path"] for found in words}  # full text, by line blocks
    assert min(found["line_number"] for found in words) >= 0


def test_a_vector_index_is_built_from_256_lines_and_search_is_right_before(
    tmp_path: Path, index: Callable[..., Any], status: Callable[[], Any], best: Callable[..., list[str]]
) -> None:
    write(tmp_path / "tree", 0, 25)
    assert VECTOR not in index()
    assert status() == (False, None)
    assert best(text(7, 4), "--top-k", 1) == ["package1/module7.py:5"]
    (tmp_path / "tree" / "six.py").write_text("".join(f"{text(90, line)}\n" for line in range(6)))
    assert VECTOR in index()
    assert status() == (True, "IVF_RQ")
    assert best(text(7, 4), "--top-k", 1) == ["package1/module7.py:5"]
    assert best(text(90, 3), "--top-k", 1) == ["six.py:4"]


def test_a_small_change_is_found_at_once_and_touches_no_index(
    tmp_path: Path, index: Callable[..., Any], best: Callable[..., list[str]]
) -> None:
    write(tmp_path / "tree", 0, 30)
    index()
    (tmp_path / "tree" / "package0" / "module0.py").write_text("class MutuallyExclusiveGroup:\n")
    (tmp_path / "tree" / "package1" / "module1.py").unlink()
    assert index() == []
    assert best("class MutuallyExclusiveGroup:", "--top-k", 1) == ["package0/module0.py:1"]
    assert best("class MutuallyExclusiveGroup:", "--top-k", 1, "--dir", "package0") == ["package0/module0.py:1"]
    assert best("class MutuallyExclusiveGroup:", "--top-k", 1, "--path", "package0/module0.py") != []
    everything = best(WORDS[0], "--top-k", 1000, "--mode", "vector")
    assert len(everything) == 281
    assert not [hit for hit in everything if hit.startswith("package1/module1.py")]


def test_later_runs_extend_the_indexes_and_leave_a_bounded_rest(
    tmp_path: Path, index: Callable[..., Any], best: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "MAX_UNINDEXED_ROWS", 100)
    write(tmp_path / "tree", 0, 60)
    index()
    for run in range(1, 4):
        write(tmp_path / "tree", 60 * run, 60)
        assert set(index()) == {PATH, PARENT_DIRS, TEXT, VECTOR}
        for name, (indexed, unindexed) in covered(tmp_path / "ws").items():
            assert indexed >= 600 * (run + 1), name
            assert unindexed <= 100, name
    write(tmp_path / "tree", 240, 5)
    assert index() == []
    assert all(unindexed <= 100 for _, unindexed in covered(tmp_path / "ws").values())
    for number in (0, 70, 130, 190, 244):
        assert best(text(number, 4))[0] == f"package{number % 3}/module{number}.py:5"


def test_index_maintenance_may_be_left_to_a_later_run(
    tmp_path: Path, index: Callable[..., Any], status: Callable[[], Any], best: Callable[..., list[str]]
) -> None:
    write(tmp_path / "tree", 0, 30)
    assert index("--indexes", "none") == []
    assert status() == (False, None)
    assert best(text(7, 4), "--top-k", 1) == ["package1/module7.py:5"]
    write(tmp_path / "tree", 30, 1)
    assert set(index("--indexes", "text")) == {PATH, PARENT_DIRS, TEXT}
    write(tmp_path / "tree", 31, 1)
    assert index() == [VECTOR]
    assert status() == (True, "IVF_RQ")

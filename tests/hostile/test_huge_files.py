"""A file that is too large to split into lines is skipped, whatever limit the user sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driftline.storage.documents import SkipReason
from driftline.storage.sources.source import Source
from driftline.tasks.indexing import batch
from driftline.tasks.text import MAX_TEXT_BYTES


def test_a_file_beyond_the_limit_is_skipped_and_the_rest_is_indexed(
    tmp_path: Path, driftline: Callable[..., Any]
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "small.txt").write_text("a line of text\n")
    with (tree / "huge.txt").open("wb") as file:
        file.truncate(3 * 2**30)  # sparse: uses no disk space
    done = driftline("index", tree, "--max-file-bytes", 2**40, "--indexes", "none", "--json")
    assert done.code == 0, done.err
    [source] = done.json["sources"]
    assert (source["new"], source["skipped"]) == (1, [{"path": "huge.txt", "reason": SkipReason.TOO_LARGE}])
    assert source["bytes_read"] == len("a line of text\n")  # the huge file is not read into memory


def test_a_file_that_grew_beyond_the_limit_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 3 * MAX_TEXT_BYTES < 2**31
    monkeypatch.setattr(batch, "MAX_TEXT_BYTES", 10)
    (tmp_path / "a.txt").write_text("longer than ten")
    change = {"path": "a.txt", "size_bytes": 3, "mtime_ns": 1, "etag": ""}
    assert [read for _, read in batch.read_all(Source(str(tmp_path)), [change])] == [SkipReason.TOO_LARGE]

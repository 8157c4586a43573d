"""Documents from the file to the hit: indexed with their anchors, once, and found by every interface."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import driftline as dl
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.extraction import extractor
from driftline.tasks.search.hits import read_excerpt
from driftline.tasks.search.query import search

Driftline = Callable[..., Any]
_CELLS = [
    ("markdown", ["# Herons\n", "\n", "Where they nest."]),
    ("code", ["def count_herons(pond):\n", "    return 1\n"]),
    ("markdown", ["The egret fishes at dawn."]),
]


def notebook(cells: list[tuple[str, list[str]]]) -> bytes:
    listed = [{"cell_type": kind, "source": source, "outputs": [{"text": ["a loud output"]}]} for kind, source in cells]
    return json.dumps({"nbformat": 4, "metadata": {}, "cells": listed}).encode()


def write(path: Path, data: bytes) -> None:
    """A file that is a minute old, so that it is not racy."""
    path.write_bytes(data)
    minute_ago = time.time() - 60
    os.utime(path, (minute_ago, minute_ago))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "docs"
    root.mkdir()
    write(root / "nb.ipynb", notebook(_CELLS))
    write(root / "tern.1.gz", gzip.compress(b".TH TERN 1\nthe tern migrates\n"))
    write(root / "plain.txt", b"an ordinary line\n")
    return root


@pytest.fixture
def workspace(tree: Path, tmp_path: Path, tiny_model: Path) -> Path:
    dl.index(str(tree), workspace=str(tmp_path / "ws"), model=str(tiny_model))
    return tmp_path / "ws"


def again(tree: Path, workspace: Path) -> Any:
    """The report of another run on the source."""
    (source,) = dl.index(str(tree), workspace=str(workspace)).sources
    return source


def test_a_cell_is_found_with_its_number_and_definition(workspace: Path, driftline: Driftline) -> None:
    outcome = driftline("search", "count_herons", "--workspace", workspace, "--top-k", "1", "--json")
    (hit,) = outcome.json["results"]
    assert (hit["path"], hit["line"], hit["anchor"], hit["symbol"]) == ("nb.ipynb", 5, "cell 2", "count_herons")
    assert (hit["freshness"], hit["line_now"]) == ("fresh", 5)
    assert hit["context"][-2:] == ["def count_herons(pond):", "    return 1"]
    printed = driftline("search", "count_herons", "--workspace", workspace, "--top-k", "1").out
    assert printed.startswith("nb.ipynb:5  cell 2  ")


def test_outputs_and_markup_of_a_notebook_are_not_indexed(workspace: Path) -> None:
    assert search(Workspace.open(str(workspace)), "loud output", mode="text").results == ()
    assert search(Workspace.open(str(workspace)), "cell_type", mode="text").results == ()


def test_the_lines_around_a_hit_are_those_of_the_extracted_text(workspace: Path) -> None:
    opened = Workspace.open(str(workspace))
    excerpt = read_excerpt(opened, "nb.ipynb", 5, n_lines=2)
    assert excerpt.lines == ("Where they nest.", "", "def count_herons(pond):", "    return 1")
    assert excerpt.current
    (hit,) = search(opened, "tern migrates", mode="text", top_k=1).results
    assert (hit.path, hit.line, hit.anchor, hit.context) == (
        "tern.1.gz",
        2,
        None,
        (".TH TERN 1", "the tern migrates"),
    )


def test_an_unchanged_document_is_not_read_again(tree: Path, workspace: Path) -> None:
    report = again(tree, workspace)
    assert (report.bytes_read, report.lines_embedded, sum(report.states.values())) == (0, 0, 3)


def test_a_new_version_of_an_extractor_reads_again_only_what_it_concerns(
    tree: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = tuple(
        replace(each, version=each.version + 1) if each.name == "notebook" else each for each in extractor.EXTRACTORS
    )
    monkeypatch.setattr(extractor, "EXTRACTORS", newer)
    monkeypatch.setattr(extractor, "READERS", (*extractor.COMPRESSIONS, *newer))
    report = again(tree, workspace)
    assert report.bytes_read == (tree / "nb.ipynb").stat().st_size
    assert again(tree, workspace).bytes_read == 0


def test_a_workspace_from_before_the_extractor_reads_such_files(
    tree: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(extractor, "EXTRACTORS", ())
        before.setattr(extractor, "COMPRESSIONS", ())
        before.setattr(extractor, "READERS", ())
        before.setattr(extractor, "BY_SUFFIX", {})
        report = dl.index(str(tree), workspace=str(tmp_path / "ws"), model=str(tiny_model))
        assert report.sources[0].skipped == [("tern.1.gz", "binary")]
    assert again(tree, tmp_path / "ws").skipped == []
    assert [hit.anchor for hit in search(Workspace.open(str(tmp_path / "ws")), "egret", top_k=1).results] == ["cell 3"]


def test_a_changed_document_says_nothing_of_its_old_lines(tree: Path, workspace: Path) -> None:
    write(tree / "nb.ipynb", notebook(_CELLS[1:]))
    (hit,) = search(Workspace.open(str(workspace)), "egret fishes", mode="text", top_k=1).results
    assert (hit.freshness, hit.line_now) == (None, None)
    again(tree, workspace)
    (hit,) = search(Workspace.open(str(workspace)), "egret fishes", mode="text", top_k=1).results
    assert (hit.anchor, hit.line, hit.freshness) == ("cell 2", 4, "fresh")


def test_files_that_are_searched_without_an_index_have_anchors_too(tree: Path, driftline: Driftline) -> None:
    outcome = driftline("grep", "egret fishes", tree, "--top-k", "1", "--json")
    (hit,) = outcome.json["results"]
    assert (Path(hit["path"]).name, hit["line"], hit["anchor"]) == ("nb.ipynb", 8, "cell 3")

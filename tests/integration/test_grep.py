"""``driftline grep``: searched files, matches, and the command line."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import driftline as dl
from driftline.storage.errors import DriftlineError, SourceNotFound
from driftline.tasks.embedding.embedder import WordTableEmbedder
from driftline.tasks.scanning.walk import files_named
from driftline.tasks.search.request import SearchRequest
from driftline.tasks.search.unindexed import NamedText, grep, open_embedder
from driftline.tasks.text import split_documents
from tests.support.processes import forked_command

Driftline = Callable[..., Any]

FILES = {
    "a.py": "parser\none\n",
    "b.md": "subcommand\n",
    "deep/c.py": "namespace\n",
    "deep/er/d.py": "action\n",
    "deep/odd[1].py": "store\n",
    ".hidden/e.py": "prefix\n",
    "ignored/f.py": "metavar\n",
    ".env": "password\n",
}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / ".gitignore").write_text("ignored/\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def embedder(tiny_model: Path) -> Any:
    return open_embedder(str(tiny_model))


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (["."], [".gitignore", ".hidden/e.py", "a.py", "b.md", "deep/c.py", "deep/er/d.py", "deep/odd[1].py"]),
        (["deep"], ["deep/c.py", "deep/er/d.py", "deep/odd[1].py"]),
        (["deep/", "./deep/c.py"], ["deep/c.py", "deep/er/d.py", "deep/odd[1].py"]),
        (["*.py"], ["a.py"]),
        (["*.py", "a.py"], ["a.py"]),
        (["**/*.py"], [".hidden/e.py", "a.py", "deep/c.py", "deep/er/d.py", "deep/odd[1].py"]),
        (["deep/**/*.py"], ["deep/c.py", "deep/er/d.py", "deep/odd[1].py"]),
        (["*/*.py"], [".hidden/e.py", "deep/c.py", "deep/odd[1].py"]),
        (["deep/[co]*"], ["deep/c.py", "deep/odd[1].py"]),
        (["deep/odd[1].py"], ["deep/odd[1].py"]),
        (["ignored/f.py", ".env"], ["ignored/f.py", ".env"]),
        (["ignored"], ["ignored/f.py"]),
    ],
)
def test_files_folders_and_globs_are_found_once_each(tree: Path, named: list[str], expected: list[str]) -> None:
    assert list(files_named(named)) == expected
    absolute = [str(tree / name) for name in named if name != "."]
    assert [os.path.relpath(path) for path in files_named(absolute)] == (expected if absolute else [])


def test_a_tilde_is_the_home_folder(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tree))
    assert list(files_named(["~/*.md"])) == [str(tree / "b.md")]


@pytest.mark.parametrize("named", ["missing.py", "a.py/", "missing/*.py", "*.zip", "ignored/**/*.nope", ".e*"])
def test_a_selection_without_files_is_an_error(tree: Path, named: str) -> None:
    with pytest.raises(SourceNotFound, match="No "):
        list(files_named([named]))


def test_a_name_that_git_would_ignore_in_a_work_tree_is_left_out_of_its_folder(tree: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    (tree / ".gitignore").write_text("er/\n")
    assert list(files_named(["deep"])) == ["deep/c.py", "deep/odd[1].py"]


def test_hits_are_the_nearest_lines_by_brute_force(embedder: WordTableEmbedder) -> None:
    import argparse
    import inspect

    texts = [NamedText(f"{name}.py", inspect.getsource(getattr(argparse, name))) for name in ("Action", "Namespace")]
    texts.append(NamedText("empty", ""))
    lines = split_documents([text.text for text in texts])
    distances = 1 - embedder.embed(lines.text) @ embedder.embed_query("option strings")
    found = grep(SearchRequest("option strings", top_k=12, n_lines=0), texts, embedder).results
    assert len(found) == 12
    np.testing.assert_allclose([hit.distance for hit in found], np.sort(distances)[:12], atol=1e-5)
    by_name = {text.path: text.text.split("\n") for text in texts}
    for rank, hit in enumerate(found, 1):
        assert (hit.rank, hit.text, hit.context) == (rank, by_name[hit.path][hit.line - 1], (hit.text,))
    limit = found[4].distance
    assert {
        hit.distance <= limit
        for hit in grep(SearchRequest("option strings", max_distance=limit), texts, embedder).results
    } == {True}
    everything = grep(SearchRequest("option strings", top_k=10**6, n_lines=0), texts, embedder).results
    assert len(everything) == len(lines)


def test_neighbouring_hits_become_one_window(embedder: WordTableEmbedder) -> None:
    text = "\n".join(["parser", "x", "parser", *["---"] * 30, "parser"])
    found = grep(SearchRequest("parser", top_k=2, n_lines=1), [NamedText("t", text)], embedder).results
    assert [(hit.line, hit.start_line, hit.end_line) for hit in found] == [(1, 1, 4), (34, 33, 34)]
    assert found[0].context == ("parser", "x", "parser", "---")


def test_two_texts_of_one_name_are_kept_apart(embedder: WordTableEmbedder) -> None:
    texts = [NamedText("t", "parser\n"), NamedText("t", "one\nparser\n")]
    found = grep(SearchRequest("parser", top_k=2, n_lines=1), texts, embedder).results
    assert [(hit.line, hit.context) for hit in found] == [(1, ("parser",)), (2, ("one", "parser"))]


def test_a_letter_whose_lower_case_is_longer_keeps_the_columns(tiny_model: Path, tmp_path: Path) -> None:
    text = f"{'İ' * 600}{' HARBOUR' * 600}"
    (tmp_path / "turkish.md").write_text(f"{text}\n{text}\n")
    report = dl.grep("harbour", str(tmp_path / "turkish.md"), ignore_case=True, model=str(tiny_model), n_lines=0)
    assert sorted(hit.line for hit in report.results) == [1, 2]


def test_the_python_api_gives_the_same_results(tree: Path, tiny_model: Path) -> None:
    found = dl.grep("namespace", "**/*.py", "b.md", model=str(tiny_model), top_k=1, n_lines=0)
    assert [(hit.path, hit.line, hit.context) for hit in found.results] == [("deep/c.py", 1, ("namespace",))]


def test_search_is_case_sensitive_by_default(driftline: Driftline, tree: Path) -> None:
    (tree / "case.txt").write_text("SUBCOMMAND PARSER\n")

    def score(*options: str) -> float:
        return float(driftline("grep", "subcommand parser", "case.txt", "--json", *options).json["results"][0]["score"])

    assert score() < 0.99
    assert score("-i") == pytest.approx(1)
    found = driftline("grep", "subcommand parser", "case.txt", "-i", "--json").json["results"][0]
    assert found["text"] == "SUBCOMMAND PARSER"


def test_json_has_the_shape_of_search_and_exit_codes_report_matches(
    driftline: Driftline, tree: Path, tiny_model: Path
) -> None:
    model = ("--model", tiny_model)
    outcome = driftline("grep", "namespace", ".", "--top-k", 1, "--json", *model)
    assert outcome.code == 0
    (hit,) = outcome.json["results"]
    indexed = driftline("index", tree, "--workspace", tree / "ws", *model)
    assert indexed.code == 0
    same = driftline("search", "namespace", "--top-k", 1, "--json", "--workspace", tree / "ws").json["results"][0]
    assert list(hit) == list(same)
    assert (hit["path"], hit["line"], hit["source"]) == (same["path"], same["line"], "")
    for nothing in (("--top-k", 0), ("--max-distance", 0, "-i")):
        outcome = driftline("grep", "zzz", ".", "--json", *nothing, *model)
        assert (outcome.code, outcome.json["results"]) == (1, [])
    for wrong in (("x", "missing"), ("x",), ("x", ".", "-n", -1), ("x", ".", "--max-distance", 3)):
        outcome = driftline("grep", *wrong, *model)
        assert (outcome.code, outcome.out) == (2, ""), wrong
    text = driftline("grep", "namespace", "deep", "--top-k", 1, "-n", 0, *model)
    assert text.out == "deep/c.py:1  1.00\n  1: namespace\n"


def test_files_without_text_are_reported_and_skipped(driftline: Driftline, tree: Path, tiny_model: Path) -> None:
    (tree / "image").write_bytes(b"\x89PNG\0\0")
    with (tree / "deep" / "large").open("w") as file:
        file.truncate(5 * 2**20)
    outcome = driftline("grep", "parser", "image", "a.py", "deep", "--json", "--model", tiny_model)
    assert outcome.json["results"][0]["path"] == "a.py"
    assert outcome.err == (
        "driftline: image is not searched: binary\ndriftline: deep/large is not searched: too large\n"
    )
    for number in range(9):
        (tree / "deep" / f"{number}.bin").write_bytes(b"\0")
    outcome = driftline("grep", "parser", "deep", "--json", "--model", tiny_model)
    assert outcome.err == "driftline: 10 files were not searched: 9 binary, 1 too large\n"


def test_a_dash_is_standard_input(
    driftline: Driftline, tree: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\nsubcommand\n")))
    outcome = driftline("grep", "subcommand", "-", "a.py", "-", "--json", "-n", 0, "--model", tiny_model)
    assert [(hit["path"], hit["line"]) for hit in outcome.json["results"]][:1] == [("-", 2)]
    assert len([hit for hit in outcome.json["results"] if hit["path"] == "-"]) == 2


def test_on_a_terminal_hits_are_links(tree: Path, tiny_model: Path) -> None:
    dl.index("deep", workspace="deep/.driftline", model=str(tiny_model))
    command = [str(forked_command()), "search", "namespace", "--top-k", "1", "--workspace", "deep/.driftline"]
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm-256color"}
    screen, terminal = pty.openpty()
    with os.fdopen(screen, "rb", buffering=0) as said:
        subprocess.run(command, cwd=tree, env=environment, stdout=terminal, stderr=subprocess.DEVNULL, check=True)
        os.close(terminal)
        shown = said.read(65536)
    assert (tree / "deep/c.py").as_uri().encode() in shown
    assert b"\x1b[1;33mnamespace" in shown


def test_an_unsearchable_folder_is_a_driftline_error(tree: Path) -> None:
    with pytest.raises(DriftlineError):
        list(files_named([""]))

"""Searches with random filters return the same lines as a brute-force search, with and without an index."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from driftline.storage.entities import Entity
from driftline.storage.lance import lance_table
from driftline.storage.lines import table_searcher
from driftline.storage.lines.indexes import maintain
from driftline.storage.lines.line_table import LineTable
from driftline.storage.lines.table_searcher import LineFilter, nearest_lines
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.indexing.line_store import LineEmbedding, LineStore
from tests.support.effort import examples

DIM = 8
SOURCES = ("source:web", "source:api", "source:it's %odd_")
FOLDERS = ("", "a/", "a/b/", "a b/", "a_b/", "a%b/", "a'b/", 'a"b/', "🚀/", "a/🚀/", "A/")
FILES = ("x.py", "x.PY", "y.md", "it's.py", "50%.txt", "under_score", "archive.tar.gz", ".dot")
LINES = 3

Row = dict[str, Any]


def make_lines(rng: np.random.Generator) -> dict[str, list[LineEmbedding]]:
    vectors = iter(rng.standard_normal((len(SOURCES) * len(FOLDERS) * len(FILES) * LINES, DIM)).astype(np.float32))
    return {
        source: [
            LineEmbedding(folder + file, number, next(vectors), f"{source} {folder}{file} {number}")
            for folder in FOLDERS
            for file in FILES
            for number in range(LINES)
        ]
        for source in SOURCES
    }


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> LineTable:
    """About 800 lines from three sources (one was written twice), and their commit markers."""
    workspace = Workspace.open_for_writing(str(tmp_path_factory.mktemp("workspace")))
    workspace = workspace.bind_model("none", "0" * 20, DIM)
    for source, lines in make_lines(np.random.default_rng(1)).items():
        LineStore(workspace, source).upsert_line_embeddings(lines)
    LineStore(workspace, SOURCES[0]).upsert_line_embeddings(make_lines(np.random.default_rng(2))[SOURCES[0]])
    return workspace.lines(Entity.parse(SOURCES[0]))


@pytest.fixture(scope="module")
def rows(table: LineTable) -> list[Row]:
    columns = ("id", "entity", "path", "line_number", "vector", "text")
    return [row for batch in table.rows(columns) for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def indexed(table: LineTable, rows: list[Row]) -> Iterator[LineTable]:
    """The same table with all indexes; they are used even if few lines match."""
    assert "vector_idx" in maintain(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_searcher, "EXACT_SEARCH_ROWS", 0)
        patch.setattr(table_searcher, "EXACT_SEARCH_SHARE", 0)
        patch.setattr(
            lance_table, "REFINED_ROWS", 10_000
        )  # refine all of them, because the index stores quantized vectors
        yield table


def optional(values: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...] | None]:
    return st.none() | st.lists(st.sampled_from(values), max_size=4).map(tuple)


PATHS = tuple(folder + file for folder in FOLDERS for file in FILES)
filters = st.builds(
    LineFilter,
    entities=optional(SOURCES).map(lambda found: None if found is None else tuple(map(Entity.parse, found))),
    paths=optional((*PATHS, "no/such file", "./a/x.py", "a//b/x.py", "a'b/")),
    dirs=optional((*FOLDERS, "a", "./a/", "a/b", "nowhere", "x.py", "a/b/../")),
    exts=optional(("py", ".py", "PY", "md", "gz", "", "txt", "zip", "%")),
)
vectors = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).standard_normal(DIM).astype(np.float32)
)


def allowed(where: LineFilter, row: Row) -> bool:
    """The documented behaviour of LineFilter, implemented independently."""
    path: str = row["path"]
    name = path.rpartition("/")[2]
    extension = name.rpartition(".")[2].lower() if "." in name.lstrip(".") else ""
    clean = {
        "paths": None if where.paths is None else {posixpath.normpath(p) for p in where.paths},
        "dirs": None if where.dirs is None else {posixpath.normpath(d or ".") for d in where.dirs},
    }
    ancestors = {".", *(path[:at] for at, character in enumerate(path) if character == "/")}
    return (
        (where.entities is None or row["entity"] in {str(entity) for entity in where.entities})
        and (clean["paths"] is None or path in clean["paths"])
        and (clean["dirs"] is None or bool(ancestors & clean["dirs"]))
        and (where.exts is None or extension in {ext.lstrip(".").lower() for ext in where.exts})
    )


def brute_force(rows: list[Row], query: NDArray[np.float32], where: LineFilter) -> list[tuple[float, int]]:
    """Return all allowed rows as ``(1 - cosine, id)``, nearest first."""
    found = [row for row in rows if allowed(where, row)]
    if not found:
        return []
    matrix = np.array([row["vector"] for row in found], np.float64)
    cosine = matrix @ query / np.linalg.norm(matrix, axis=1) / np.linalg.norm(query)
    return sorted(zip((1 - cosine).tolist(), (row["id"] for row in found), strict=True))


def check(table: LineTable, rows: list[Row], query: NDArray[np.float32], where: LineFilter, top_k: int) -> float:
    """Compare with a brute-force search and return the recall."""
    expected = brute_force(rows, query, where)
    found = nearest_lines(table, query, top_k, where, columns=("id", "path", "line_number"))
    distance_of = {row_id: distance for distance, row_id in expected}
    ids = found["id"].to_pylist()
    assert len(ids) == len(set(ids)) == min(top_k, len(expected))
    assert set(ids) <= set(distance_of)  # neither a filtered line nor a commit marker
    assert np.allclose(found["distance"], [distance_of[row_id] for row_id in ids], atol=2e-3)
    if not ids:
        return 1.0
    limit = expected[len(ids) - 1][0] + 2e-3  # float16 vectors have 11 significant bits
    return sum(distance_of[row_id] <= limit for row_id in ids) / len(ids)


@settings(max_examples=examples(40), deadline=None)
@given(query=vectors, where=filters, top_k=st.integers(0, 30) | st.just(10_000))
def test_without_an_index_the_nearest_allowed_lines_are_found(
    table: LineTable, rows: list[Row], query: NDArray[np.float32], where: LineFilter, top_k: int
) -> None:
    assert check(table, rows, query, where, top_k) == 1.0


@settings(max_examples=examples(40), deadline=None)
@given(query=vectors, where=filters, top_k=st.integers(0, 30))
def test_all_index_kinds_find_the_same_lines(
    indexed: LineTable, rows: list[Row], query: NDArray[np.float32], where: LineFilter, top_k: int
) -> None:
    assert check(indexed, rows, query, where, top_k) >= 0.9


def test_recall_through_the_index_is_at_least_95_percent(indexed: LineTable, rows: list[Row]) -> None:
    rng = np.random.default_rng(3)
    for where in (
        LineFilter(),
        LineFilter(dirs=("a",)),
        LineFilter(exts=("py",), entities=(Entity.parse(SOURCES[1]),)),
    ):
        recalls = [check(indexed, rows, rng.standard_normal(DIM).astype(np.float32), where, 10) for _ in range(40)]
        assert np.mean(recalls) >= 0.95, where


@settings(max_examples=30, deadline=None)
@given(query=vectors, where=filters, limit=st.floats(0, 2))
def test_max_distance_keeps_the_lines_within_it(
    table: LineTable, rows: list[Row], query: NDArray[np.float32], where: LineFilter, limit: float
) -> None:
    found = nearest_lines(table, query, 10_000, where, limit)
    near = [distance for distance, _ in brute_force(rows, query, where)]
    assert sum(d <= limit - 2e-3 for d in near) <= len(found) <= sum(d <= limit + 2e-3 for d in near)
    assert all(distance <= limit for distance in found["distance"].to_pylist())

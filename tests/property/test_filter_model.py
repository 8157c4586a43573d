"""For any names, filters match the same lines as a model in plain Python; strategies differ only in cost."""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from driftline.storage.entities import Entity
from driftline.storage.errors import UsageError
from driftline.storage.globs import check_glob
from driftline.storage.lance import lance_table
from driftline.storage.lines import table_searcher
from driftline.storage.lines.indexes import maintain
from driftline.storage.lines.line_filter import LineFilter
from driftline.storage.lines.line_table import LineTable
from driftline.storage.lines.table_searcher import Strategy, TableSearcher
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.indexing.line_store import LineEmbedding, LineStore
from tests.support.effort import examples

DIM = 8
SOURCES = ("source:web", "project:al/source:web", "project:alpha/source:web", "project:al_%'/source:x")
ENTITIES = ("org:default", "project:default", "project:al", "project:alpha", "project:a", *SOURCES)
PATHS = (
    "a.py",
    "a.PY",
    "b.md",
    "src/a.py",
    "src/a.pyc",
    "src/core/a.py",
    "src/core/deep/b.py",
    "src/core.py/a.txt",
    "srcs/a.py",
    "it's/quo\"te.py",
    "100%/50%_off.py",
    "100x/50y_off.py",
    "a_b/c_d.txt",
    "aXb/cXd.txt",
    "a b/ c.txt",
    "line\nfeed/a\nb.txt",
    "a\n",
    "[x]/[!y].txt",
    "x/y.txt",
    "^-]/a-b^c.txt",
    "a&&b/~~.txt",
    "{a,b}/$1(2)+|.txt",
    "back\\slash/a\\b.txt",
    "emoji 🚀/naïve é.py",
    "**/star*.txt",
    "q?/?.txt",
    "no_extension",
    ".hidden/.dot",
    "archive.tar.gz",
)
STRATEGIES: tuple[Strategy, ...] = ("auto", "prefilter", "postfilter", "hybrid")

Row = dict[str, Any]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> LineTable:
    """A table that has three lines for each path in each source, and all indexes."""
    workspace = Workspace.open_for_writing(str(tmp_path_factory.mktemp("workspace")))
    workspace = workspace.bind_model("none", "0" * 20, DIM)
    rng = np.random.default_rng(1)
    for source in SOURCES:
        vectors = iter(rng.standard_normal((3 * len(PATHS), DIM)).astype(np.float32))
        lines = [LineEmbedding(path, number, next(vectors), f"line {number}") for path in PATHS for number in range(3)]
        LineStore(workspace, source).upsert_line_embeddings(lines)
    found = workspace.lines(Entity.parse(SOURCES[0]))
    assert "vector_idx" in maintain(found)
    return found


@pytest.fixture(scope="module")
def rows(table: LineTable) -> list[Row]:
    columns = ("id", "entity", "path", "line_number", "vector")
    return [row for batch in table.rows(columns) for row in batch.to_pylist()]


@pytest.fixture
def through_the_index() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_searcher, "EXACT_SEARCH_ROWS", -1)
        patch.setattr(table_searcher, "EXACT_SEARCH_SHARE", -1)
        patch.setattr(
            lance_table, "REFINED_ROWS", 10_000
        )  # refine all of them, because the index stores quantized vectors
        yield


# The model.


def glob_matches(glob: str, path: str) -> bool:
    """Match a glob segment by segment, as documented for LineFilter."""
    names = [name.replace("[^", "[!") for name in glob.split("/") if name not in ("", ".")]
    if glob.endswith("/"):
        names.append("**")
    if "/" not in glob.rstrip("/") and glob != "**":
        names.insert(0, "**")
    return names_match(names, path.split("/"))


def is_accepted(glob: str) -> bool:
    try:
        check_glob(glob)
    except UsageError:
        return False
    return True


def names_match(globs: list[str], names: list[str]) -> bool:
    if not globs or not names:
        return not globs and not names
    if globs[0] == "**":
        return names_match(globs, names[1:]) or (names_match(globs[1:], names) if globs[1:] else len(names) == 1)
    return fnmatch.fnmatchcase(names[0], globs[0]) and names_match(globs[1:], names[1:])


def allowed(where: LineFilter, row: Row) -> bool:
    path: str = row["path"]
    ancestors = {".", *(path[:at] for at, character in enumerate(path) if character == "/")}
    name = path.rpartition("/")[2].lstrip(".")
    extension = name.rpartition(".")[2].lower() if "." in name else ""
    entities = None if where.entities is None else [str(entity).split("/") for entity in where.entities]
    segments = row["entity"].split("/")
    return (
        (entities is None or any(segments[: len(entity)] == entity for entity in entities))
        and (where.paths is None or path in map(posixpath.normpath, where.paths))
        and (where.dirs is None or bool(ancestors & {posixpath.normpath(name or ".") for name in where.dirs}))
        and (where.globs is None or any(glob_matches(glob, path) for glob in where.globs))
        and (where.exts is None or extension in {ext.removeprefix(".").lower() for ext in where.exts})
        and (where.any_of is None or any(allowed(part, row) for part in where.any_of))
    )


# Strategies.


def spelled(names: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Return one of ``names``, in one of its spellings."""
    spellings = ("{}", "{}/", "./{}", "./{}//", "x/../{}", "{}/.", "nowhere/{}")
    return st.builds(
        lambda name, spelling: spelling.replace("{}", name), st.sampled_from(names), st.sampled_from(spellings)
    )


def some(values: st.SearchStrategy[str], size: int = 3) -> st.SearchStrategy[tuple[str, ...] | None]:
    return st.none() | st.lists(values, max_size=size).map(tuple)


FOLDERS = tuple(sorted({path[:at] for path in PATHS for at, character in enumerate(path) if character == "/"}))
CHARACTERS = "".join(sorted(set("".join(PATHS)) - {*"/{}"}))
literals = st.text(st.sampled_from(CHARACTERS), min_size=1, max_size=3)
sets = st.builds(
    lambda no, inside: f"[{no}{inside}]",
    st.sampled_from(("", "!")),
    literals | st.sampled_from(("a-c", "c-a", "+-9", "]a", "--b", "a-")),
)
names = st.lists(st.sampled_from(("*", "*", "?", ".", "a", "[")) | literals | sets, min_size=1, max_size=4).map("".join)
names = names.filter(lambda name: "**" not in name)


@st.composite
def loosened(draw: st.DrawFn) -> str:
    """Return the path of a document, with some characters and names replaced by wildcards."""
    parts = draw(st.sampled_from(PATHS)).split("/")
    for at, part in enumerate(parts):
        match draw(st.integers(0, 5)):
            case 0:
                parts[at] = "**"
            case 1:
                parts[at] = "*"
            case 2:
                cut = draw(st.integers(0, len(part)))
                parts[at] = part[:cut] + draw(st.sampled_from("*?")) + part[cut + 1 :]
            case 3:
                cut = draw(st.integers(0, len(part) - 1))
                parts[at] = f"{part[:cut]}[{draw(st.sampled_from(('', '!', 'z', 'a-')))}{part[cut]}]{part[cut + 1 :]}"
    joined = draw(st.sampled_from(("", "./", "/", "**/"))) + "/".join(part.replace("{", "[{]") for part in parts)
    return joined if all(part == "**" or "**" not in part for part in joined.split("/")) else "*"


globs = loosened() | st.lists(names | st.just("**"), min_size=1, max_size=3).map("/".join)
globs = (globs | globs.map("{}/".format)).filter(is_accepted)
simple = st.builds(
    LineFilter,
    entities=some(st.sampled_from(ENTITIES)).map(
        lambda found: None if found is None else tuple(map(Entity.parse, found))
    ),
    paths=some(spelled(PATHS), 4),
    dirs=some(spelled(FOLDERS) | st.sampled_from(("", ".", "src/core/.."))),
    exts=some(st.sampled_from(("py", ".py", ".PY", "gz", "", "txt", "p", "%", "_", "py'"))),
)
one_kind = st.one_of(
    st.builds(LineFilter, paths=some(spelled(PATHS), 4)),
    st.builds(LineFilter, globs=some(globs)),
    st.builds(LineFilter, dirs=some(spelled(FOLDERS)), globs=some(globs)),
    simple,
)
filters = one_kind | st.builds(
    LineFilter, any_of=st.lists(one_kind, max_size=3).map(tuple), dirs=some(spelled(FOLDERS))
)
vectors = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).standard_normal(DIM).astype(np.float32)
)


@settings(max_examples=examples(60), deadline=None)
@given(where=filters)
@example(LineFilter(globs=("**/a.py",)))
@example(LineFilter(globs=("src/**",)))
@example(LineFilter(globs=("src/**/a.py", "srcs/*")))
@example(LineFilter(globs=("src[+-9]a.py", "x[!a]y.txt")))
@example(LineFilter(globs=("src/", "/a.py", "./b.md", "/src//*.py")))
@example(LineFilter(globs=("a[--b]b/*",)))
@example(LineFilter(any_of=()))
@example(LineFilter(any_of=(LineFilter(), LineFilter(paths=()))))
def test_a_filter_matches_what_its_model_matches(table: LineTable, rows: list[Row], where: LineFilter) -> None:
    batches = table.rows(("id",), where.to_sql())
    found = sorted(row_id for batch in batches for row_id in batch.column("id").to_pylist())
    assert found == sorted(row["id"] for row in rows if allowed(where, row))


@pytest.mark.parametrize("path", PATHS)
def test_a_name_without_wildcards_is_a_glob_of_itself(table: LineTable, path: str) -> None:
    escaped = "".join(f"[{character}]" if character in "*?[{" else character for character in path)
    where = LineFilter(globs=(f"./{escaped}" if "/" in path else escaped,))
    found = {name for batch in table.rows(("path",), where.to_sql()) for name in batch.column("path").to_pylist()}
    assert found == {other for other in PATHS if other == path or ("/" not in path and other.endswith(f"/{path}"))}


def nearest_ids(rows: list[Row], vector: NDArray[np.float32], where: LineFilter) -> list[int]:
    """Return the distances, computed by brute force."""
    found = [row for row in rows if allowed(where, row)]
    if not found:
        return []
    cosine = np.array([row["vector"] for row in found], np.float64) @ vector
    return [found[at]["id"] for at in np.argsort(-cosine)]


@pytest.mark.usefixtures("through_the_index")
@settings(max_examples=25, deadline=None)
@given(
    where=filters, vector=vectors, top_k=st.integers(0, 12) | st.just(1000), threshold=st.sampled_from((0.0, 0.5, 1.0))
)
@example(LineFilter(paths=("a.py",)), np.ones(DIM, np.float32), 12, 0.5)
@example(LineFilter(exts=("PY",)), np.ones(DIM, np.float32), 10, 0.0)
def test_every_strategy_finds_the_nearest_lines_and_enough_of_them(
    table: LineTable, rows: list[Row], where: LineFilter, vector: NDArray[np.float32], top_k: int, threshold: float
) -> None:
    expected = nearest_ids(rows, vector, where)
    wanted = min(top_k, len(expected))
    columns = ("id", "path", "line_number")
    exact = TableSearcher(table, where, exact=True)
    truth = exact.nearest(vector, top_k, columns=columns)
    assert exact.matches == len(expected)
    for strategy in STRATEGIES:
        query = TableSearcher(table, where, strategy, threshold)
        assert query.index is not None
        assert (query.lines, query.matches) == (len(rows), len(expected))
        afterwards = strategy == "postfilter" or (strategy == "hybrid" and len(expected) >= threshold * len(rows))
        assert query.examined == (len(rows) if afterwards and where.to_sql() else len(expected)), strategy
        found = query.nearest(vector, top_k, columns=columns)
        assert len(found) == wanted, strategy
        assert set(found["id"].to_pylist()) <= set(expected), strategy
        assert found["id"].to_pylist() == truth["id"].to_pylist(), strategy
    assert np.allclose(
        truth["distance"].to_numpy(),
        1
        - np.array(
            [row["vector"] for row_id in truth["id"].to_pylist() for row in rows if row["id"] == row_id]
        ).reshape(-1, DIM)
        @ (vector / np.linalg.norm(vector)),
        atol=2e-3,
    )
    assert len(set(truth["id"].to_pylist()) ^ set(expected[:wanted])) <= 2  # float16 vectors have 11 significant bits

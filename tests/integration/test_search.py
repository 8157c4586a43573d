"""Search: its hits, their context, and its filters."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import driftline as dl
from driftline.storage.entities import Entity
from driftline.storage.lines.outline import Definition
from driftline.storage.lines.table_searcher import NOTHING, LineFilter, Scored, nearest_lines
from driftline.storage.option_table import given_values
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search import ranked as searching
from driftline.tasks.search.hits import Hit
from driftline.tasks.search.ranking import GROWTH_ACROSS, MAX_WINDOW_LINES, FoundLine, merge_windows
from driftline.tasks.text import decode
from tests.support.searches import search

Driftline = Callable[..., Any]

# Twelve lines: known words are at 2, 6 and 12; lines 1, 5 and 9 have no row.
NUMBERED = "\nparser\none\ntwo\n---\nsubcommand\nthree\nfour\n\n  five\nsix\nnamespace"
NAMES = [
    "plain.py",
    "with space/deep er/file name.md",
    "quo'te\"s/it's.py",
    "100%/50%_off.py",
    "under_score/a_b.txt",
    "underXscore/aXb.txt",
    "emoji 🚀/naïve.py",
    "back\\slash/x.py",
    "UPPER/File.PY",
    "no_extension",
    ".hidden/.dotfile",
    "archive.tar.gz",
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A workspace with two sources of one tenant and one of another; their trees are next to it."""
    location = tmp_path_factory.mktemp("corpus")
    files = {"numbered.txt": NUMBERED} | {name: f"argument number {i}\n" for i, name in enumerate(NAMES)}
    for source, content in {
        "web": files,
        "api": {"numbered.txt": "parser\nmutually exclusive group\n"},
        "foreign": {"numbered.txt": "parser\n", "secret plan.txt": "prefix characters\n"},
    }.items():
        for name, text in content.items():
            (location / source / name).parent.mkdir(parents=True, exist_ok=True)
            (location / source / name).write_text(text)
        org = "other" if source == "foreign" else "default"
        entity = f"org:{org}/project:default/source:{source}"
        dl.index(str(location / source), workspace=str(location / "ws"), entity=entity, model=str(tiny_model))
    return location / "ws"


@pytest.fixture
def own(corpus: Path, tmp_path: Path, tiny_model: Path) -> Path:
    """A tree and a workspace; tests may change both."""
    shutil.copytree(corpus.parent / "web", tmp_path / "web")
    dl.index(str(tmp_path / "web"), workspace=str(tmp_path / "ws"), model=str(tiny_model))
    return tmp_path / "ws"


def hits(workspace: Path, query: str, **options: Any) -> tuple[Hit, ...]:
    return search(Workspace.open(str(workspace)), query, **given_values(options)).results


def in_web(**names: Any) -> LineFilter:
    return LineFilter(entities=(Entity.parse("source:web"),), **names)


# Lines and windows.


def test_json_has_the_documented_shape(corpus: Path, driftline: Driftline) -> None:
    at = ("--workspace", corpus, "--json")
    found = driftline(
        "search", "subcommand", "--top-k", 1, "-n", 1, "--path", "numbered.txt", "--mode", "vector", *at
    ).json
    assert list(found) == ["query", "results"]
    assert found["query"] == "subcommand"
    first = found["results"][0]
    assert first.pop("distance") == pytest.approx(0.0)
    assert first.pop("score") > 0
    assert first == {
        "path": "numbered.txt",
        "file": str(corpus.parent / "web/numbered.txt"),
        "source": "org:default/project:default/source:web",
        "line": 6,
        "start_line": 5,
        "end_line": 7,
        "relevance": 1.0,
        "rank": 1,
        "text": "subcommand",
        "context": ["---", "subcommand", "three"],
        "freshness": "fresh",
        "line_now": 6,
        "column": 1,
        "symbol": None,
        "kind": None,
        "symbol_start": None,
        "symbol_end": None,
        "label": None,
        "matches": [],
        "copies": [],
        "anchor": None,
        "fragment": None,
        "url": None,
    }
    assert len(found["results"]) == 1


@pytest.mark.parametrize("options", [{"mode": "text"}, {"fixed": ["timed"]}])
def test_a_changed_file_is_decoded_once_for_all_of_its_hits(
    tmp_path: Path, tiny_model: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, workspace = tmp_path / "tree/server.log", tmp_path / "ws"
    log.parent.mkdir()
    log.write_text("".join(f"request {number} has timed out\n" + "\n" * 30 for number in range(5)))
    dl.index(str(log.parent), workspace=str(workspace), model=str(tiny_model))
    log.write_text("started\n" + log.read_text())
    decoded: list[int] = []

    def counted(data: bytes) -> tuple[str, Any]:
        decoded.append(len(data))
        return decode(data)

    monkeypatch.setattr("driftline.tasks.search.freshness.decode", counted)
    found = dl.search(str(workspace), "" if "fixed" in options else "timed", **options).results
    assert sorted((hit.line_now, hit.freshness) for hit in found) == [(31 * number + 2, "moved") for number in range(5)]
    assert len(decoded) == 1


def test_lines_count_from_one_and_windows_stop_at_both_ends_of_the_file(corpus: Path) -> None:
    lines = NUMBERED.split("\n")
    for query, line in (("parser", 2), ("subcommand", 6), ("namespace", 12)):
        for n_lines in (0, 1, 3, 50):
            where = in_web(paths=("numbered.txt",))
            found = search(
                dl.open(str(corpus)).storage, query, top_k=1, n_lines=n_lines, where=where, mode="vector"
            ).results
            (hit,) = found
            assert hit.line == line
            assert hit.start_line == max(1, line - n_lines)
            assert hit.end_line == min(12, line + n_lines)
            assert hit.context == tuple(lines[hit.start_line - 1 : hit.end_line])
            assert lines[hit.line - 1] == hit.text == query
            assert 1 <= hit.start_line <= hit.end_line <= 12
            if n_lines == 0:
                assert (hit.start_line, hit.end_line, hit.context) == (line, line, (query,))


def row(line: int, distance: float, path: str = "a") -> FoundLine:
    return FoundLine(("e", path, "h"), line, 0, f"line {line}", distance, 1 - distance, -distance)


def test_hits_whose_contexts_touch_become_one_window() -> None:
    rows = [row(10, 0.1), row(40, 0.2), row(17, 0.3), row(25, 0.4), row(10, 0.5, "b")]
    windows = merge_windows(rows, max_gap=7, limit=10)
    assert [(w.path, w.first, w.last, w.best) for w in windows] == [
        ("a", 10, 17, 10),
        ("a", 40, 40, 40),
        ("a", 25, 25, 25),
        ("b", 10, 10, 10),
    ]
    assert len(merge_windows(rows, max_gap=0, limit=10)) == 5
    assert [(w.first, w.last) for w in merge_windows([row(1, 0.1), row(2, 0.2)], 0, 10)] == [(1, 1), (2, 2)]


def test_a_hit_between_two_windows_joins_them() -> None:
    (window,) = merge_windows([row(0, 0.1), row(14, 0.2), row(7, 0.3)], max_gap=7, limit=10)
    assert (window.first, window.last, window.best, window.distance) == (0, 14, 0, 0.1)


def test_windows_grow_only_by_hits_that_are_nearer_than_the_last_window() -> None:
    rows = [row(0, 0.1), row(4, 0.2), row(30, 0.3), row(8, 0.4), row(26, 0.5), row(60, 0.6)]
    for top_k, expected in ((1, [(0, 0)]), (2, [(0, 4), (30, 30)]), (3, [(0, 8), (26, 30), (60, 60)])):
        assert [(w.first, w.last) for w in merge_windows(rows, 7, top_k)] == expected
    between = [row(0, 0.1), row(14, 0.2), row(7, 0.3), row(3, 0.4), row(90, 0.5)]
    assert [(w.first, w.last) for w in merge_windows(between, 7, 2)] == [(0, 0), (14, 14)]
    assert [(w.first, w.last) for w in merge_windows(between, 7, 3)] == [(0, 14), (90, 90)]


def test_windows_do_not_grow_beyond_a_screen() -> None:
    (window,) = merge_windows([row(line, 0.1) for line in range(100)], max_gap=7, limit=2)[:1]
    assert (window.first, window.last) == (0, MAX_WINDOW_LINES - 1)


def scored(line: int, relevance: float, definition: Definition | None = None) -> FoundLine:
    found = row(line, 0.5)._replace(relevance=relevance, fit=relevance, max_score=20.0)
    return found._replace(definition=definition, outlined=True)


def test_windows_grow_only_by_hits_that_are_nearly_as_relevant() -> None:
    first, worth, other, weak, inside = (
        scored(10, 10.0),
        scored(12, 7.1),
        scored(30, 9.9),
        scored(16, 6.9),
        scored(11, 2),
    )
    windows = merge_windows([first, other, worth, weak, inside], max_gap=7, limit=10)
    assert [(w.first, w.last, w.best) for w in windows] == [(10, 12, 10), (30, 30, 30)]
    for relevance, expected in ((6.4, [(10, 10), (24, 24)]), (6.5, [(10, 24)])):
        between = merge_windows([first, scored(24, 9.2), scored(17, relevance)], max_gap=7, limit=10)
        assert [(w.first, w.last) for w in between] == expected, "one that would extend either joins them"


def test_a_window_extends_into_another_definition_only_for_a_nearly_equal_hit() -> None:
    own, next_one = (Definition("function", name, at, at, at + 4) for name, at in (("renew", 10), ("release", 15)))
    whole = Definition("class", "Lease", 8, 8, 40)
    for definition, relevance, last in ((next_one, 8.9, 14), (next_one, 9.1, 15), (own, 7.1, 15), (whole, 7.1, 15)):
        windows = merge_windows([scored(10, 10.0, own), scored(15, relevance, definition)], 7, 10, GROWTH_ACROSS)
        assert [(w.first, w.last) for w in windows] == [(10, last)], (definition, relevance)


@pytest.mark.parametrize(
    ("line", "head", "before", "first"),
    [(17, 10, 2, 10), (19, 10, 2, 19), (17, 10, 4, 17), (17, 17, 2, 17)],
    ids=["near", "far", "behind a window", "at its beginning"],
)
def test_a_window_begins_with_its_definition_if_that_is_near(line: int, head: int, before: int, first: int) -> None:
    definition = Definition("function", "renew", head + 1, head, 60)
    windows = merge_windows([scored(line, 9.0, definition), scored(before, 8.0)], max_gap=6, limit=10)
    assert [(w.first, w.last) for w in windows] == [(first, line), (before, before)]


@pytest.mark.parametrize(
    ("end", "behind", "last"),
    [(26, 60, 26), (27, 60, 20), (26, 33, 26), (26, 32, 20)],
    ids=["near", "far", "", "close"],
)
def test_a_window_ends_with_its_definition_if_that_is_near(end: int, behind: int, last: int) -> None:
    definition = Definition("function", "renew", 2, 2, end)
    windows = merge_windows([scored(20, 9.0, definition), scored(behind, 8.0)], max_gap=6, limit=10)
    assert [(w.first, w.last) for w in windows] == [(20, last), (behind, behind)]


def test_windows_of_one_file_never_overlap(corpus: Path) -> None:
    for n_lines in (1, 2, 3):
        found = [h for h in hits(corpus, "two or four", top_k=50, n_lines=n_lines) if h.source.endswith("web")]
        seen = [(h.path, number) for h in found for number in range(h.start_line, h.end_line + 1)]
        assert len(seen) == len(set(seen))


# Number of results.


def test_top_k_zero_finds_nothing_and_loads_no_model(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(searching, "load_embedder", refuse)
    assert hits(corpus, "parser", top_k=0) == ()
    assert hits(corpus, "  ", top_k=5) == ()


def test_exit_codes_distinguish_matches_no_matches_and_usage_errors(
    corpus: Path, tmp_path: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # with no source above or below
    at = ("--workspace", corpus)
    assert driftline("search", "parser", *at).code == 0
    for nothing in (
        ("parser", "--top-k", 0),
        ("parser", "--max-distance", 0, "--path", "plain.py"),
        ("parser", "--dir", "nowhere"),
        ("parser", "--ext", "zip"),
    ):
        outcome = driftline("search", *nothing, *at, "--json")
        assert (outcome.code, outcome.json["results"]) == (1, []), nothing
    for wrong in (("--top-k", -1), ("-n", -1), ("--max-distance", -0.1), ("--path", "../x"), ("--dir", "a/../..")):
        outcome = driftline("search", "parser", *wrong, *at)
        assert (outcome.code, outcome.out) == (2, ""), wrong
    assert driftline("search", "parser", "--workspace", tmp_path / "none").code == 2


def test_negative_numbers_are_refused_from_python_too(corpus: Path) -> None:
    for options in ({"top_k": -1}, {"n_lines": -1}):
        with pytest.raises(dl.DriftlineError):
            hits(corpus, "parser", **options)


def test_more_results_than_lines_are_all_lines(corpus: Path) -> None:
    total = dl.open(str(corpus)).status().total_lines
    found = hits(corpus, "parser", top_k=10_000, n_lines=0, mode="vector")
    assert len(found) == total
    assert [hit.rank for hit in found] == list(range(1, total + 1))
    assert [hit.distance for hit in found] == sorted(hit.distance for hit in found)


def test_max_distance_drops_more_distant_lines(corpus: Path) -> None:
    everything = hits(corpus, "subcommand", top_k=1000, n_lines=0, mode="vector")
    limit = everything[3].distance
    assert [
        h.distance for h in hits(corpus, "subcommand", top_k=1000, n_lines=0, mode="vector", max_distance=limit)
    ] == [h.distance for h in everything if h.distance <= limit]
    assert len(hits(corpus, "subcommand", max_distance=0.0)) == 1


# Filters.


@pytest.mark.parametrize("name", NAMES)
def test_every_name_can_be_searched_by_path_directory_and_extension(
    corpus: Path, driftline: Driftline, name: str
) -> None:
    at = ("--workspace", corpus, "--top-k", 100, "-n", 0, "--json")

    def paths(*filters: str) -> set[str]:
        return {hit["path"] for hit in driftline("search", "argument number", *filters, *at).json["results"]}

    assert paths("--path", name) == {name}
    assert paths("--path", f"./{name}") == {name}
    folder, _, _ = name.rpartition("/")
    if folder:
        inside = {other for other in NAMES if other.startswith(folder + "/")}
        for spelling in (folder, f"{folder}/", f"./{folder}", f"{folder}//"):
            assert paths("--dir", spelling) == inside, spelling
        top = name.partition("/")[0]
        assert name in paths("--dir", top)
        assert paths("--path", folder) == set()
    extension = Path(name).suffix
    if extension:
        same = {other for other in NAMES if Path(other).suffix.lower() == extension.lower()}
        for spelling in (extension, extension[1:], extension.upper()):
            found = {path for path in paths("--ext", spelling) if path != "numbered.txt" and path != "secret plan.txt"}
            assert found == same, spelling


def test_filters_of_one_kind_are_alternatives_and_kinds_are_joined(corpus: Path) -> None:
    def paths(**filters: Any) -> set[str]:
        where = in_web(**filters)
        return {
            h.path for h in search(dl.open(str(corpus)).storage, "argument", top_k=100, n_lines=0, where=where).results
        }

    assert paths(paths=("plain.py", "no_extension")) == {"plain.py", "no_extension"}
    assert paths(dirs=("emoji 🚀", "UPPER")) == {"emoji 🚀/naïve.py", "UPPER/File.PY"}
    assert paths(dirs=("emoji 🚀", "under_score"), exts=("py",)) == {"emoji 🚀/naïve.py"}
    assert paths(dirs=("",)) == paths(dirs=(".",)) == paths() == {*NAMES, "numbered.txt"}
    assert paths(dirs=("", "UPPER")) == {*NAMES, "numbered.txt"}
    assert paths(exts=("",)) == {"no_extension", ".hidden/.dotfile"}


@pytest.mark.parametrize("kind", ["entities", "paths", "dirs", "exts"])
def test_an_empty_filter_allows_nothing_and_no_filter_allows_all(corpus: Path, kind: str) -> None:
    opened = dl.open(str(corpus)).storage
    assert search(opened, "parser", where=LineFilter(**{kind: ()})).results == ()
    assert search(opened, "parser", where=LineFilter(**{kind: None})).results
    assert search(opened, "parser", where=LineFilter()).results


def test_a_filter_value_is_data_and_never_syntax(corpus: Path) -> None:
    opened = dl.open(str(corpus)).storage
    for text in ("x') OR (true", "' OR '1'='1", "%", "_", "", "x\0y", "*"):
        for kind in ("paths", "dirs", "exts"):
            if (kind, text) in (("dirs", ""), ("exts", "")):
                continue
            filters: dict[str, Any] = {kind: (text,)}
            where = LineFilter(**filters)
            assert search(opened, "parser", where=where).results == (), (kind, text)


def test_tenants_are_searched_together_or_one_by_one(corpus: Path) -> None:
    opened = dl.open(str(corpus)).storage
    found = search(opened, "parser", top_k=3, n_lines=0).results
    assert {(hit.source.split("/")[0], hit.distance < 1e-3) for hit in found} == {
        ("org:default", True),
        ("org:other", True),
    }
    foreign = LineFilter(entities=(Entity.parse("org:other/source:foreign"),))
    assert {h.path for h in search(opened, "parser", top_k=9, where=foreign).results} == {
        "numbered.txt",
        "secret plan.txt",
    }


# Rows that are never returned.


@pytest.mark.parametrize("mode", ["hybrid", "vector", "text"])
def test_a_table_that_replaces_a_deleted_one_is_opened_again(tmp_path: Path, tiny_model: Path, mode: str) -> None:
    workspace = tmp_path / "ws"
    for source in ("web", "api"):
        (tmp_path / source).mkdir()
        (tmp_path / source / "a.txt").write_text("argument parser\n")
        shutil.rmtree(workspace, ignore_errors=True)
        dl.index(str(tmp_path / source), workspace=str(workspace), entity=f"source:{source}", model=str(tiny_model))
        (hit,) = hits(workspace, "argument parser", mode=mode)
        assert hit.source == f"org:default/project:default/source:{source}"


def test_commit_markers_are_neither_returned_nor_counted(corpus: Path) -> None:
    opened = dl.open(str(corpus)).storage
    table = opened.lines(opened.tenants()[0])
    dataset = table.open()
    markers = dataset.count_rows("line_number = -1")
    assert markers == 2
    assert table.count() == dataset.count_rows() - markers
    found = nearest_lines(table, np.ones(24, np.float32), 10_000)
    assert len(found) == table.count()
    assert min(found["line_number"].to_pylist()) >= 0
    assert len(nearest_lines(table, np.ones(24, np.float32), 10, LineFilter(paths=("",)))) == 0
    for word in ("token", "batch", "run_id"):
        hits = dataset.to_table(full_text_query=word, columns=["line_number"])
        assert -1 not in hits["line_number"].to_pylist()
    totals = opened.stats()
    assert totals.total_lines == sum(source["lines"] for source in totals.sources)


# Context.


def test_context_comes_from_the_index_when_the_file_has_changed_or_is_gone(own: Path) -> None:
    expected = hits(own, "subcommand", top_k=1, n_lines=2, mode="vector")[0]
    assert expected.context == ("two", "---", "subcommand", "three", "four")
    file = own.parent / "web" / "numbered.txt"
    file.write_text("something else\n" * 20)
    for _ in range(2):
        (hit,) = hits(own, "subcommand", top_k=1, n_lines=2, mode="vector")
        assert (hit.line, hit.start_line, hit.end_line) == (6, 4, 8)
        assert hit.context == expected.context
        file.unlink(missing_ok=True)
    shutil.rmtree(own.parent / "web")
    (hit,) = hits(own, "namespace", top_k=1, n_lines=1, mode="vector")
    assert (hit.line, hit.context) == (12, ("six", "namespace"))


def test_search_status_and_sources_need_read_access_only(own: Path) -> None:
    for path in (own, *own.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    code = (
        "import os, sys\n"
        "from driftline.flows.commands.main import main\n"
        "assert not os.access(sys.argv[1], os.W_OK)\n"
        "by_words = ['search', 'subcommand', '--top-k', '1', '--mode', 'text']\n"  # vectors are random in each session
        "for command in (by_words, ['search', 'subcommand'], ['status'], ['sources']):\n"
        "    assert main([*command, '--workspace', sys.argv[1]]) == 0, command\n"
    )
    # Without these capabilities, root must also obey permissions.
    command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    if command and not shutil.which(command[0]):
        pytest.skip("root may write everywhere, and setpriv is missing")
    before = sorted(own.rglob("*"))
    done = subprocess.run([*command, sys.executable, "-c", code, own], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("numbered.txt:6")
    assert sorted(own.rglob("*")) == before


def test_the_default_model_finds_meaning_across_a_real_text(tmp_path: Path, driftline: Driftline) -> None:
    source = Path(json.__file__).parent
    at = ("--workspace", tmp_path / "ws", "--json")
    assert driftline("index", source, "--include", "*.py", *at).code == 0
    assert driftline("status", *at).json["has_index"]
    found = driftline("search", "escape special characters in a string", "--top-k", 5, *at).json["results"]
    assert any("escape" in hit["text"] for hit in found)
    lines = (source / found[0]["path"]).read_text().split("\n")
    assert found[0]["context"] == lines[found[0]["start_line"] - 1 : found[0]["end_line"]]


def test_a_file_of_two_tenants_is_shown_once_and_each_tenant_has_it(tmp_path: Path, tiny_model: Path) -> None:
    ws, tree = str(tmp_path / "ws"), tmp_path / "tree"
    tree.mkdir()
    for name, text in (("a.txt", "parser\n"), ("b.txt", "group\n"), ("c.txt", "action\n")):
        (tree / name).write_text(text)
    for tenant in ("one", "two", "three"):
        dl.index(str(tree), workspace=ws, entity=f"org:{tenant}/project:p/source:s", model=str(tiny_model))
    for mode in ("vector", "text", "hybrid"):
        found = dl.search(ws, "parser group action", mode=mode, top_k=3, n_lines=0).results
        assert sorted(hit.path for hit in found) == ["a.txt", "b.txt", "c.txt"], mode
        assert [hit.rank for hit in found] == [1, 2, 3]
    entities = (dl.Entity.parse("org:two"),)
    alone = dl.search(ws, "parser", mode="vector", where=dl.LineFilter(entities=entities)).results
    assert {hit.source for hit in alone} == {"org:two/project:p/source:s"}


# Filters that match nothing, and empty results.


def test_every_spelling_of_a_glob_matches_alike(corpus: Path, driftline: Driftline) -> None:
    web = corpus.parent / "web"

    def paths(*options: object) -> set[str]:
        outcome = driftline(
            "search", "parser", "--mode", "vector", "--top-k", 100, "--workspace", corpus, "--json", *options
        )
        return {hit["path"] for hit in outcome.json["results"] if hit["source"].endswith("source:web")}

    expected = paths("--glob", "*.txt")
    assert expected
    for spelling in ("*.{txt,zip}", "{*.txt,nothing}", f"{web}/**/*.txt", f"{web.parent}/*/**/*.txt", "**//*.txt"):
        assert paths("--glob", spelling) == expected, spelling
    assert paths("--ext", "{txt,zip}") == expected
    assert paths("--glob", f"{web}/numbered.txt") == paths("--path", "numbered.txt") == {"numbered.txt"}


@pytest.mark.parametrize(
    ("option", "value", "nearest"),
    [
        ("--glob", "", "'**'"),
        ("--glob", "!*.py", "'*.py'"),
        ("--glob", "[", "'[[]'"),
        ("--glob", "*.{ts,tsx", "'*.{ts,tsx}'"),
        ("--glob", "*.(ts|tsx)", "'*.{ts,tsx}'"),
        ("--glob", "[[:digit:]].py", "[0-9]"),
        ("--ext", "*.py", "'py'"),
        ("--ext", "tar.gz", "'*.tar.gz'"),
        ("--ext", "py,md", "'{py,md}'"),
        ("--ext", "", "'py'"),
        ("--lang", "pyhton", "'python'"),
        ("--kind", "functoin", "'function'"),
        ("--path", "", "'.'"),
    ],
)
def test_a_filter_that_can_match_nothing_is_refused_with_the_nearest_that_can(
    corpus: Path, driftline: Driftline, option: str, value: str, nearest: str
) -> None:
    outcome = driftline("search", "parser", option, value, "--workspace", corpus)
    assert (outcome.code, outcome.out) == (2, "")
    assert nearest in outcome.err


@pytest.mark.parametrize(
    ("option", "value", "code"), [("--glob", "*.zz", 2), ("--ext", "zz", 1), ("--path", "zz", 1), ("--dir", "zz", 1)]
)
def test_a_filter_that_matches_no_document_says_so(
    corpus: Path, driftline: Driftline, option: str, value: str, code: int
) -> None:
    outcome = driftline("search", "parser", option, value, "--workspace", corpus, "--json")
    assert outcome.code == code
    assert f"{value!r}" in outcome.err
    assert [note for note in outcome.json["notes"] if f"{value!r}" in note]


@pytest.mark.parametrize("mode", ["hybrid", "vector"])
def test_an_empty_answer_shows_the_nearest_line(corpus: Path, mode: Literal["hybrid", "vector"]) -> None:
    opened = dl.open(str(corpus)).storage
    best = search(opened, "get http response", mode="vector", top_k=1).results[0]
    report = search(opened, "get http response", mode=mode, max_distance=best.distance / 2)
    assert report.results == ()
    assert report.nearest is not None
    assert report.nearest.distance == pytest.approx(best.distance)
    assert report.nearest.relevance == best.relevance
    assert f"{best.distance:.4f}" in report.notes[0]


def test_a_hit_shows_a_window_of_a_long_line_around_its_match(tmp_path: Path, driftline: Driftline) -> None:
    line = "lorem ipsum " * 150 + "the heron lands " + "dolor sit " * 50_000
    (tmp_path / "long.js").write_text(f"---\n{line}\n---\n")
    assert driftline("index", tmp_path, "--workspace", tmp_path / "ws").code == 0
    at = ("--workspace", tmp_path / "ws")
    for command in (
        ("search", "heron", "--mode", "text", *at),
        ("search", "heron", *at),
        ("search", "heron", "--mode", "vector", *at),
        ("grep", "heron", tmp_path / "long.js"),
    ):
        outcome = driftline(*command, "--json")
        hit = outcome.json["results"][0]
        if "text" in command:  # semantically, another part of the line may be nearer
            assert "heron" in hit["text"]
            assert hit["column"] == line.index("heron") + 1
        assert max(map(len, (hit["text"], *hit["context"]))) <= 500
        assert len(outcome.out) < 5_000
        assert f"long.js:2:{hit['column']}" in driftline(*command).out


def test_a_file_is_found_by_its_name_or_the_end_of_its_path(
    tmp_path: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "CANDIDATE_BLOCKS", 1)  # which is filled by other files
    monkeypatch.setattr(searching, "CANDIDATE_NEAR_BLOCKS", dict.fromkeys(searching.CANDIDATE_NEAR_BLOCKS, 1))
    deep = tmp_path / "tree/a/b/Lease.py"
    deep.parent.mkdir(parents=True)
    deep.write_text("import os\n" * 40)
    (tmp_path / "tree/notes.md").write_text("lease.py\n\nb/lease.py, py of the lease\n")
    workspace = ("--workspace", tmp_path / "ws")
    assert driftline("index", tmp_path / "tree", *workspace).code == 0
    for name, line in (("lease.py", 1), ("b/lease.py", 1), ("lease.py:20", 20), ("/srv/tree/a/b/Lease.py", 1)):
        found = driftline("search", name, "--json", *workspace).json["results"][0]
        assert (found["path"], found["line"]) == ("a/b/Lease.py", line), name
    found = driftline("search", "lease.py", "--json", "--ext", "md", *workspace).json["results"]
    assert {each["path"] for each in found} == {"notes.md"}


def test_a_search_for_more_results_than_its_first_blocks_hold_finds_all(tmp_path: Path) -> None:
    for number in range(180):
        words = " ".join(f"{word}{number}" for word in ("alpha", "beta", "gamma", "delta", "epsilon"))
        (tmp_path / f"{number}.txt").write_text(f"the heron {words} lands\n")
    workspace = tmp_path / "ws"
    dl.index(tmp_path, workspace=workspace)
    found = dl.open(workspace).search("heron lands", top_k=500).results
    assert {each.path for each in found} == {f"{number}.txt" for number in range(180)}


def test_blocks_that_both_searches_find_are_read_first() -> None:
    words = [Scored(np.array([1, 2, 3], np.uint64), np.array([9.0, 8.0, 7.0], np.float32)), NOTHING]
    near = [
        Scored(np.array([4, 3], np.uint64), np.array([0.6, 0.5], np.float32)),
        Scored(np.array([3, 9], np.uint64), np.array([0.55, 0.4], np.float32)),
    ]
    best_words, best_near = searching._best_of_both(words, near, 3, 7.0)
    # Above the worst of each search: 3 of the second table 3.75, 4 of the first 5.0, its 3 2.5, its 1 2.0.
    assert [each.rows.tolist() for each in best_words] == [[3], []]
    assert [each.rows.tolist() for each in best_near] == [[4, 3], [3]]

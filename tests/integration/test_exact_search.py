"""Exact search finds the same as an oracle: Python's ``re`` over the decoded files, line by line."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import driftline
from driftline.flows.runs.compact import CompactRequest, compact_workspace
from driftline.flows.runs.verify_and_repair import VerifyRequest, verify_workspace
from driftline.flows.search import search as served
from driftline.flows.search import searches_table
from driftline.storage.entities import Boundary, Entity
from driftline.storage.errors import UsageError
from driftline.storage.lines import definition_lookup, line_table
from driftline.storage.lines.line_filter import LineFilter
from driftline.storage.lines.line_table import GRAMS_COLUMN
from driftline.storage.lines.packs import _PACKS, LINES_BEFORE, _scan, lines_of, texts
from driftline.storage.lines.regex_patterns import MAX_PATTERN_CHARACTERS, Pattern
from driftline.storage.lines.table_searcher import Passage, TableSearcher
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.indexing import batch, rows
from driftline.tasks.search.exact import (
    MAX_FACET_PACKS,
    MAX_IMPORT_PACKS,
    ExactFinder,
    ExactSearch,
    IndexedDocument,
    Matches,
    open_exact_tables,
    search_exactly,
)
from driftline.tasks.search.hits import ExactCounts, SearchReport
from driftline.tasks.search.importance import commented_lines, in_comments
from driftline.tasks.search.query_language import ExactTerms, parse
from driftline.tasks.search.request import SearchRequest
from driftline.tasks.text import decode, split_lines

FILES: dict[str, bytes] = {
    "src/app.py": b"def csrf_token(request):\n    return request.csrf_cookie\n\n\n}\n---\n\tTabbed = 1\nTOKEN = 3\n",
    "src/naive.py": "naïve = 'Straße'\nK = 'Kelvin'  # ſmall Kelvin\nΣίσυφος σ ς\n日本語 = 1\n".encode(),
    "src/cr.txt": b"one\rtwo csrf_token\r\n}\r\n\rlast",
    "src/long.js": b"x=1;" * 6_000 + b"needle(csrf_end);" + b"y;" * 600 + b"\nend\n",
    "src/utf16.txt": "wide csrf_line\n}\n".encode("utf-16"),
    "src/marks.txt": "a\ufdd0b foo foo\n\ufdd2 foo\n".encode(),
    "separators.txt": b"---\n}\n===\n",
    "blank.txt": b"\n\n  \n",
    "empty.txt": b"",
    "tests/test_app.py": b"def test_csrf_token():\n    assert csrf_token(None)\n",
    "vendor/lib.py": b"csrf_token = None\n",
    "big.txt": b"".join(b"line %d of words %d\n}\n" % (i, i * 7919 % 1000) for i in range(4_000)),
}
ATOMS = (
    "csrf_", "csrf_token", "foo", "line", "words", "}", "---", "-", "needle", "x=1;", r"\d+", r"\w+", "[a-z]+",
    "[^a-z ]", ".", ".*", "^", "$", r"\bfoo\b", "K", "s", "σ", "ß", "straße", "(token|cookie)", "(?:a|b)?", "1{2}",
    "9{1,3}", r"\(", "日", r"\.", "of words 7", "def ", r"[\w.]+", "E?", "_+", "max", "TOKEN", "request", r"\t", "7 ?}",
)  # fmt: skip


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("exact") / "tree"
    for name, data in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


@pytest.fixture(scope="module")
def workspace(tree: Path) -> Workspace:
    driftline.index(str(tree), workspace=str(tree.parent / "ws"), indexes="none")
    return Workspace.open(str(tree.parent / "ws"))


def documents(tree: Path) -> Iterator[tuple[str, list[str]]]:
    for path in sorted(tree.rglob("*")):
        if path.is_file():
            yield path.relative_to(tree).as_posix(), split_lines(decode(path.read_bytes())[0])


def oracle(tree: Path, pattern: re.Pattern[str], *, words: bool = False) -> set[tuple[str, int]]:
    expression = rf"(?:^|\W)(?:{pattern.pattern})(?:\W|$)" if words else pattern.pattern
    wanted = re.compile(expression, pattern.flags)
    return {
        (name, number)
        for name, lines in documents(tree)
        for number, line in enumerate(lines, start=1)
        if wanted.search(line)
    }


def found(workspace: Workspace, pattern: Pattern) -> set[tuple[str, int]]:
    search = ExactSearch(workspace, open_exact_tables(workspace, None), ExactTerms((pattern,)), lambda: False)
    return {(location.path, number + 1) for location, numbers in search.lines() for number in numbers}


def some_patterns() -> Iterator[str]:
    chance = random.Random(31)
    yield from ATOMS
    for _ in range(160):
        joined = "".join(chance.choices(ATOMS, k=chance.randint(1, 3)))
        other = chance.choice(ATOMS)
        yield chance.choice((joined, f"({joined})+", f"{joined}|{other}", f"^{joined}", f"{joined}$"))


def test_a_pack_is_read_once_for_all_searches(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    before = found(workspace, Pattern.of("csrf_"))
    scanned: list[str] = []
    monkeypatch.setattr("driftline.storage.lines.packs._scan", lambda query, columns, where: scanned.extend(columns))
    assert found(workspace, Pattern.of("csrf_")) == before
    assert not scanned


def test_after_many_lookups_outlines_come_from_memory(
    workspace: Workspace, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (table,) = open_exact_tables(workspace, None)
    (source,) = (str(entity) for entity, _ in workspace.readable_sources())
    lines = [(source, name, number) for name, of_file in documents(tree) for number in range(len(of_file) + 20)]
    lines += [(source, "missing.py", 0), ("org:other", "src/app.py", 0)]
    definition_lookup._OUTLINES.clear()
    definition_lookup._LOOKUPS.clear()
    from_disk = definition_lookup.outlines_of(table, lines)
    assert {path for _, path, _ in from_disk} >= {"src/app.py", "src/long.js", "big.txt"}
    assert any(from_disk.values())
    monkeypatch.setattr(definition_lookup, "LOOKUPS_BEFORE_ALL", 0)
    assert definition_lookup.outlines_of(table, lines) == from_disk
    monkeypatch.setattr(TableSearcher, "scan", pytest.fail)
    assert definition_lookup.outlines_of(table, lines) == from_disk
    assert definition_lookup.outlines_of(table, lines[-2:]) == {}


@pytest.mark.parametrize("lines_before", [10, LINES_BEFORE])
def test_passages_have_every_line_of_their_documents(
    workspace: Workspace, tree: Path, lines_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftline.storage.lines.packs.LINES_BEFORE", lines_before)
    (table,) = open_exact_tables(workspace, None)
    (source,) = (str(entity) for entity, _ in workspace.readable_sources())
    ranges = ((0, 0), (0, 3), (2, 2), (4, 900), (1_000, 1_900), (7_000, 7_010), (7_990, 9_000), (9_000, 9_001))
    texts = dict(documents(tree))
    passages = [Passage(source, name, *each) for name in texts for each in ranges]
    assert lines_of(table, passages) == {each: texts[each.path][each.first : each.last + 1] for each in passages}


def test_passages_of_short_lines_are_never_joined_across_packs_that_were_not_read(tmp_path: Path) -> None:
    """A pack of lines this short has more lines than are searched for its row."""
    chance = random.Random(29)
    texts = {
        f"{width}.txt": [chance.choice("ab}")[:1] * chance.randint(1, width) for _ in range(20_000)] for width in (1, 8)
    }
    for name, lines in texts.items():
        (tmp_path / "tree").mkdir(exist_ok=True)
        (tmp_path / "tree" / name).write_text("\n".join(lines) + "\n")
    driftline.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"), indexes="none")
    workspace = Workspace.open(str(tmp_path / "ws"))
    (table,) = open_exact_tables(workspace, None)
    (source,) = (str(entity) for entity, _ in workspace.readable_sources())
    for _ in range(60):
        starts = [
            (name, chance.randrange(len(texts[name]))) for name in chance.choices([*texts], k=chance.randint(1, 6))
        ]
        passages = [Passage(source, name, first, first + chance.randrange(1_000)) for name, first in starts]
        assert lines_of(table, passages) == {each: texts[each.path][each.first : each.last + 1] for each in passages}


@pytest.mark.parametrize("ignore_case", [False, True], ids=["with case", "without case"])
def test_every_line_that_matches_is_found(workspace: Workspace, tree: Path, ignore_case: bool) -> None:
    flags = re.ASCII if not ignore_case else re.IGNORECASE
    for text in some_patterns():
        # RE2's classes are ASCII. So are Python's with re.ASCII, but IGNORECASE then ignores other letters.
        spelled = text.replace(r"\w", "a-zA-Z0-9_" if "[\\w" in text else "[a-zA-Z0-9_]").replace(r"\d", "[0-9]")
        if ignore_case:
            spelled = spelled.replace(r"\bfoo\b", r"(?<![a-zA-Z0-9_])foo(?![a-zA-Z0-9_])")
        pattern = Pattern.of(text, ignore_case=ignore_case)
        assert found(workspace, pattern) == oracle(tree, re.compile(spelled, flags)), text


@pytest.mark.parametrize(
    "text",
    [
        "foo",
        "csrf_token",
        "\\w+",
        "日本語",
        ".",
        "a.c|foo",
        r"\.foo",
        "1",
        "(foo|a(b|c))",
        "(?P<x>f)(oo)",
        r"[(]?(foo)",
    ],
)
def test_whole_words_match_only_between_word_boundaries(workspace: Workspace, tree: Path, text: str) -> None:
    spelled = re.compile(text.replace(r"\w", "[a-zA-Z0-9_]"))
    assert found(workspace, Pattern.of(text, words=True)) == oracle(tree, spelled, words=True)


def find(workspace: Workspace | str, query: str = "", **options: Any) -> SearchReport:
    return driftline.search(workspace, query, **{"top_k": 100, "n_lines": 0, **options})


def locations(report: SearchReport) -> list[tuple[str, int]]:
    return [(hit.path, hit.line) for hit in report.results]


def test_source_code_comes_before_tests_and_vendored_files(workspace: Workspace) -> None:
    report = find(workspace, fixed=["csrf_token"])
    in_order = [
        ("src/app.py", 1),
        ("src/cr.txt", 2),
        ("tests/test_app.py", 1),
        ("tests/test_app.py", 2),
        ("vendor/lib.py", 1),
    ]
    assert locations(report) == in_order
    assert report.exact is not None
    counts = {"lines": 5, "documents": 4, "complete": True, "reason": None, "partial": 0}
    assert report.exact.to_dict() == {**counts, "terms": ['"csrf_token"']}
    assert locations(find(workspace, '"csrf_token" -file:vendor', tests=False)) == in_order[:2]
    assert locations(find(workspace, '"csrf_token" -file:vendor', prose=False)) == [in_order[0], *in_order[2:4]]


@pytest.mark.parametrize("places", [1, 2, 3])
def test_the_first_matches_come_in_order_before_all_documents_are_rated(
    workspace: Workspace, places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_FIRST_PACKS", "_MOST_PACKS"):
        monkeypatch.setattr(f"driftline.tasks.search.exact.{name}", 1)
    monkeypatch.setattr("driftline.tasks.search.exact._LISTED_PACKS", 2)
    rated: list[str] = []

    def order(_: str, path: str) -> int:
        rated.append(path)
        return (len(path) + 1) % places

    finder = ExactFinder(open_exact_tables(workspace, None), [Pattern.of(".*")], lambda: False, order, lambda _: True)
    matches = finder.lines()
    found = [next(matches)[0].path]
    assert places > 1 or len(rated) < 4
    found += [document.path for document, *_ in matches]
    assert found == sorted((name for name in FILES if FILES[name]), key=lambda path: (order("", path), path))


def test_omitted_results_are_reported(workspace: Workspace) -> None:
    report = find(workspace, fixed=["csrf_token"], top_k=2)
    assert report.exact is not None
    assert (len(report.results), report.exact.reason) == (2, "limit")
    times = iter(range(0, 10_000, 100))
    request = SearchRequest("", top_k=1)
    terms = ExactTerms((Pattern.of("line"),))
    for top_k, counts in ((2, (2, 2)), (4, (5, 4))):
        files = find(workspace, fixed=["csrf_token"], top_k=top_k, files=True).exact
        assert files is not None
        assert ((files.lines, files.documents), files.complete) == (counts, top_k == 4)
    late = search_exactly(workspace, terms, request, max_seconds=50, clock=lambda: next(times))
    assert late.exact is not None
    assert late.exact.reason == "time"


def test_lines_are_counted_and_files_are_listed(workspace: Workspace, tree: Path) -> None:
    counted = find(workspace, regex=["."], count=True)
    assert counted.results == ()
    assert counted.exact is not None
    assert counted.exact.lines == len(oracle(tree, re.compile(".")))
    listed = find(workspace, fixed=["csrf_token"], files=True)
    assert [hit.path for hit in listed.results] == ["src/app.py", "src/cr.txt", "tests/test_app.py", "vendor/lib.py"]


@pytest.mark.parametrize("name", ["file", "File", "FILE", "path", "Path", "filename"])
def test_the_case_of_a_field_does_not_matter(workspace: Workspace, name: str) -> None:
    assert locations(find(workspace, f"{name}:src/app.py")) == [("src/app.py", 1)]
    assert parse(f"F:{name} User:alice L:10 Typ:x").is_plain, "drives and messages are words"
    for message in ("Path: /usr/bin is missing", "Error in File: a.py", "Branch: main", "CASE: 3"):
        assert parse(message).is_plain, message


@pytest.mark.parametrize("scheme", ["", "file:", "file://", "FILE://localhost"])
def test_an_absolute_path_or_file_uri_becomes_a_path_in_its_source(
    workspace: Workspace, tree: Path, scheme: str
) -> None:
    test = [("tests/test_app.py", 1)]
    for given in ({"paths": [f"{scheme}{tree}/tests/test_app.py"]}, {"globs": [f"{scheme}{tree}/tests/*.py"]}):
        assert locations(find(workspace, "lang:python", **given)) == test
    assert locations(find(workspace, "lang:python", dirs=[f"{scheme}{tree}/tests"])) == test
    assert find(workspace, "lang:python", paths=[f"{scheme}{tree}/tests/test_app.pyx"]).results == ()
    if not scheme:
        for name in ("tests/test_app.py", "tests", "tests/*.py", "tests/**"):
            assert locations(find(workspace, f"lang:python file:{tree}/{name}")) == test
        assert locations(find(workspace, f"lang:python -file:{tree}/src -file:vendor")) == test
        for above in (f"{tree}", f"{tree}/", f"{tree.parent}", f"{tree.parent}/"):
            assert locations(find(workspace, f"lang:python file:{above} -file:src -file:vendor")) == test
            assert find(workspace, f"lang:python -file:{above}").results == ()
        assert find(workspace, f"lang:python file:{tree.parent}x").results == ()


def test_escapes_of_a_file_uri_are_decoded_unless_a_file_is_called_that(tmp_path: Path) -> None:
    for name in ("a b.txt", "100%.txt", "c%20d.txt", "c d.txt"):
        (tmp_path / name).write_text(f"heron in {name}\n")
    driftline.index(tmp_path, workspace=tmp_path / "ws")
    for written, name in (("a%20b.txt", "a b.txt"), ("100%25.txt", "100%.txt"), ("c%20d.txt", "c%20d.txt")):
        found = driftline.search(tmp_path / "ws", "heron", mode="text", paths=[f"file://{tmp_path}/{written}"])
        assert [hit.path for hit in found.results] == [name]


def test_filters_alone_list_the_files_that_they_allow(workspace: Workspace) -> None:
    report = find(workspace, "lang:python -file:naive", top_k=2, n_lines=1, facets=True)
    assert locations(report) == [("src/app.py", 1), ("tests/test_app.py", 1)]
    assert report.results[0].context == ("def csrf_token(request):", "    return request.csrf_cookie")
    assert (report.exact, report.notes[0][:15]) == (ExactCounts(0, 3), "3 files match, ")
    assert report.facets is not None
    assert report.facets.counts["dirs"] == {"src": 1, "tests": 1, "vendor": 1}
    assert find(workspace, "lang:python", tests=False, count=True).exact == ExactCounts(0, 3)
    assert locations(find(workspace, "file:separators")) == [("separators.txt", 1)], "a file without a word"
    nothing = find(workspace, "lang:go")
    assert (nothing.exact, nothing.notes) == (ExactCounts(0, 0), ("No indexed document matches the ending 'go'.",))
    assert find(workspace, "lang:typescript").notes[0].startswith("No indexed document matches .ts or .")
    assert find(workspace, "heron -file:*").notes == ("The query excludes every indexed document.",)
    with pytest.raises(UsageError, match="Filters without words cannot be combined with kinds"):
        find(workspace, "lang:python", kinds=["function"])


def test_filters_alone_look_for_files_once_and_read_no_grams(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    _PACKS.clear()
    scanned: list[Sequence[str]] = []

    def watched(query: TableSearcher, columns: Sequence[str], where: str, **more: Any) -> pa.Table:
        scanned.append(columns)
        return _scan(query, columns, where, **more)

    monkeypatch.setattr("driftline.storage.lines.packs._scan", watched)
    report = find(workspace, "-file:none", n_lines=2, facets=True)
    texts = {hit.path: hit.context for hit in report.results}
    assert texts["blank.txt"] == ("", "", "  ")
    assert texts["big.txt"] == ("line 0 of words 0", "}", "line 1 of words 919")
    assert scanned.count(["path", "entity", "hash"]) == 1
    assert not any(GRAMS_COLUMN in columns for columns in scanned)


@pytest.mark.parametrize("count_only", [False, True])
def test_filters_alone_end_when_the_time_is_up(workspace: Workspace, *, count_only: bool) -> None:
    clock = map(float, count())  # a second for each file
    request = SearchRequest("", top_k=1, count=count_only, facets=True)
    report = search_exactly(workspace, ExactTerms(), request, max_seconds=3, clock=lambda: next(clock))
    assert report.exact == ExactCounts(0, 3, "time")
    assert len(report.results) == (0 if count_only else 1)
    assert report.notes[0].startswith("The search timed out")
    assert report.facets is not None
    assert not report.facets.complete
    assert sum(report.facets.counts["tests"].values()) == 3


def test_fields_of_other_code_searches_are_understood(workspace: Workspace) -> None:
    pairs = {
        "path:src -path:*.py": "file:src -file:*.py",
        "language:python": "lang:python",
        "ext:py -ext:.js csrf": "file:*.py -file:*.js csrf",
        "symbol:csrf_token": "def:csrf_token",
        "f:src l:python": "file:src lang:python",
    }
    for theirs, ours in pairs.items():
        found_paths = [hit.path for hit in find(workspace, theirs).results]
        assert found_paths == [hit.path for hit in find(workspace, ours).results] != [], theirs
    assert parse("type: x std::type type::x is: f: a").is_plain
    assert parse("SELECT A FROM B WHERE NOT C OR D").is_plain


def test_a_file_has_all_exact_terms_and_a_line_any(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/both.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "tree/one.txt").write_text("one\n")
    driftline.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"), indexes="none")
    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        ("", {"fixed": ["one", "two"]}),
        ('"one"', {"regex": ["two"]}),
        ('"one" /two/', {}),
    )
    for query, exact in cases:
        found = driftline.search(str(tmp_path / "ws"), query, n_lines=0, **exact)
        assert [(hit.path, hit.line) for hit in found] == [("both.txt", 1), ("both.txt", 2)]


def test_options_of_exact_text_need_some(workspace: Workspace) -> None:
    options: tuple[dict[str, Any], ...] = ({"whole_words": True}, {"multiline": True}, {"ignore_case": False})
    for option in options:
        for query in ("csrf token", "def:csrf_token", "lang:python"):
            with pytest.raises(UsageError, match=f"`{next(iter(option))}` applies only to exact text"):
                find(workspace, query, **option)
        assert find(workspace, '"csrf_token"', **option).results


def test_case_is_not_searched_as_a_word(workspace: Workspace) -> None:
    assert not parse("case:yes csrf token").is_plain
    with_field, without = (find(workspace, query).results for query in ("case:yes csrf token", "csrf token"))
    assert with_field == without
    assert with_field
    assert parse(" csrf\t token ").is_plain
    for query in ("case:yes", " case:no case:auto "):
        with pytest.raises(UsageError, match="case: needs a search term"):
            find(workspace, query)
    assert locations(find(workspace, "case:yes", fixed=["TOKEN"])) == [("src/app.py", 8)]


def test_all_matches_of_a_line_are_reported_with_their_columns(workspace: Workspace) -> None:
    (first, *_) = find(workspace, "/foo/ file:marks", n_lines=1).results
    assert (first.matches, first.context) == (((5, 8), (9, 12)), ("a\ufdd0b foo foo", "\ufdd2 foo"))
    (words, *_) = find(workspace, fixed=["foo"], whole_words=True).results
    assert words.matches == first.matches
    (wide,) = find(workspace, "/本./ case:yes").results
    assert wide.matches == ((2, 4),)


def test_definitions_and_uses_are_told_apart(workspace: Workspace) -> None:
    assert locations(find(workspace, "def:csrf_token")) == [("src/app.py", 1)]
    uses = locations(find(workspace, "uses:csrf_token"))
    assert uses == [("tests/test_app.py", 2), ("vendor/lib.py", 1), ("src/cr.txt", 2)]
    assert locations(find(workspace, '"csrf_" sym:csrf_token')) == [("src/app.py", 1), ("src/app.py", 2)]


def test_constants_are_found_where_they_are_declared(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/a.py").write_text("LIMIT = 3\n\n\ndef check():\n    return LIMIT\n")
    (tmp_path / "tree/b.java").write_text(
        "enum Colour {\n    RED,\n    BLUE;\n}\nclass Box { Colour c = Colour.RED; }\n"
    )
    (tmp_path / "tree/notes.md").write_text("LIMIT = 3\n\nRED\n")
    (tmp_path / "tree/check.py").write_text("check = 1\n")
    driftline.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"), indexes="none")
    expected = {
        "def:LIMIT": [("a.py", 1)],
        "def:RED": [("b.java", 2)],
        "def:check": [("a.py", 4)],
        "def:limit case:no": [("a.py", 1)],
        "def:Colour.RED": [("b.java", 2)],
        "def:Colour::RED": [("b.java", 2)],
        "def:colour.RED": [],
        "def:colour.RED case:no": [("b.java", 2)],
        "def:Box.RED": [],
        "def:Elsewhere.RED": [],
        "def:missing": [],
    }
    for query, lines in expected.items():
        assert locations(find(str(tmp_path / "ws"), query)) == lines, query


def test_words_are_ranked_inside_the_definitions_of_a_name(tmp_path: Path) -> None:
    classes = (f"class {name}:\n    def connect(self):\n        timeout = {name}\n\n\n" for name in ("Pool", "Other"))
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/a.py").write_text("".join(classes))
    (tmp_path / "tree/b.py").write_text("timeout = 1\n" * 20)
    driftline.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"), indexes="none")
    for name in ("Pool", "pool case:no", "Pool.connect", "connect sym:Pool"):
        report = find(str(tmp_path / "ws"), f"sym:{name} timeout")
        assert {hit.path for hit in report} == {"a.py"}, name
        assert all(hit.line <= 4 for hit in report)
        assert report.exact is None
    assert locations(find(str(tmp_path / "ws"), "sym:Pool")) == [("a.py", line) for line in (1, 2, 3)]
    (note,) = find(str(tmp_path / "ws"), "sym:pool timeout").notes
    assert note == "No definition has this name."


def test_sections_are_definitions_after_code(tmp_path: Path) -> None:
    files = {
        "a.md": "# Guide\n\n## Server\n\ntext\n",
        "a.toml": "[Server]\nport = 1\n",
        "z.py": "class Server:\n    pass\n",
    }
    (tmp_path / "tree").mkdir()
    for name, text in files.items():
        (tmp_path / "tree" / name).write_text(text)
    driftline.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"), indexes="none")
    assert locations(find(str(tmp_path / "ws"), "def:Server")) == [("z.py", 1), ("a.md", 3)]


def test_files_with_excluded_text_are_left_out(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    every = {hit.path for hit in find(workspace, "csrf_token")}
    assert {"src/app.py", "vendor/lib.py"} <= every
    for query in ('csrf_token -"request"', "csrf_token -/REQ.EST/ case:no", 'csrf_token NOT "request"'):
        left = {hit.path for hit in find(workspace, query)}
        assert every - {"src/app.py"} <= left, query
        assert "src/app.py" not in left, query
    assert "src/app.py" not in {hit.path for hit in find(workspace, '"csrf_token" -"request"')}
    assert find(workspace, '"csrf_token" -"request"', count=True).exact == ExactCounts(4, 3)
    listed = {hit.path for hit in find(workspace, 'lang:python -"csrf_token"')}
    assert listed == {"src/naive.py"}
    assert {hit.path for hit in find(workspace, "lang:python NOT file:src")} == {"tests/test_app.py", "vendor/lib.py"}
    for words in ("SELECT A WHERE NOT B", "IntegrityError NOT NULL constraint failed", "server MUST NOT send a body"):
        assert parse(words).is_plain, words
    for operators in ("lease NOT renew", "NOT lease", "do NOT use this"):
        with pytest.raises(UsageError, match=r'no operator NOT.*-"text"'):
            parse(operators)
    monkeypatch.setattr("driftline.tasks.search.exact.MAX_PATHS_IN_FILTER", 1)
    with pytest.raises(UsageError, match="Exclude rarer text"):
        find(workspace, 'csrf_token -"csrf"')


def test_slashes_next_to_blanks_are_not_a_regular_expression(workspace: Workspace) -> None:
    assert parse("read / write / execute").is_plain
    assert parse("client /server / proxy").is_plain
    report = find(workspace, "/csrf_[a-z]+/ request")
    assert report.exact is not None
    assert report.exact.terms == ("/csrf_[a-z]+/",)
    assert report.notes[0] == "Exact: /csrf_[a-z]+/. The other words rank the lines that match."
    assert not find(workspace, "/csrf_[a-z]+/").notes


def test_parts_of_paths_ignore_case_unless_they_have_a_capital(tmp_path: Path) -> None:
    (tmp_path / "tree/Docs").mkdir(parents=True)
    for name in ("README.md", "Docs/readme.txt", "a.py"):
        (tmp_path / "tree" / name).write_text("text\n")
    driftline.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"), indexes="none")
    expected = {
        "file:readme": {"README.md", "Docs/readme.txt"},
        "file:README": {"README.md"},
        "file:/docs": {"Docs/readme.txt"},
        "file:docs/READ": set(),
        "-file:readme": {"a.py"},
        "file:*readme*": {"Docs/readme.txt"},
        r"file:docs\readme": {"Docs/readme.txt"},
        r"file:Docs\*.txt": {"Docs/readme.txt"},
        r"-file:docs\ -file:a.py": {"README.md"},
        "ext:txt,": {"Docs/readme.txt"},
    }
    for query, paths in expected.items():
        assert {hit.path for hit in find(str(tmp_path / "ws"), query)} == paths, query
    assert find(str(tmp_path / "ws"), "file:nowhere").notes == ("No indexed document matches file:nowhere.",)


def test_names_are_case_sensitive(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/a.py").write_text("class Token:\n    pass\n\n\ndef token():\n    return Token()\n")
    (tmp_path / "tree/b.py").write_text("class Token:\n    pass\n")
    driftline.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"), indexes="none")
    assert locations(find(str(tmp_path / "ws"), "def:token()")) == [("a.py", 5)]
    for query, expected in (("def:token", [("a.py", 5)]), ("def:Token", [("a.py", 1), ("b.py", 1)]), ("def:TOKEN", [])):
        report = find(str(tmp_path / "ws"), query)
        assert locations(report) == expected
        assert all(hit.matches and hit.column == hit.matches[0][0] > 1 for hit in report.results)
    assert locations(find(str(tmp_path / "ws"), "uses:Token")) == [("a.py", 6)]
    assert locations(find(str(tmp_path / "ws"), "def:TOKEN case:no")) == [("a.py", 1), ("a.py", 5), ("b.py", 1)]


def test_a_document_must_use_each_name(tmp_path: Path) -> None:
    files = {
        "defines.py": "def foo(token):\n    return token\n",
        "uses.py": "foo(token)\n",
        "both.py": "def foo(token):\n    return foo(1)\n",
    }
    (tmp_path / "tree").mkdir()
    for name, text in files.items():
        (tmp_path / "tree" / name).write_text(text)
    driftline.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"), indexes="none")
    ws = str(tmp_path / "ws")
    assert locations(find(ws, 'uses:foo "token"')) == [("both.py", 1), ("both.py", 2), ("uses.py", 1)]
    assert locations(find(ws, "uses:foo")) == [("both.py", 2), ("uses.py", 1)]
    assert locations(find(ws, "uses:foo def:foo")) == [("both.py", 1), ("both.py", 2)]


def index_files(folder: Path, files: dict[str, str]) -> None:
    """Write files into ``tree``, and index it into ``ws`` without search indexes."""
    for name, text in files.items():
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "tree" / name).write_text(text)
    driftline.index(str(folder / "tree"), workspace=str(folder / "ws"), indexes="none")


def test_uses_are_nearest_first(tmp_path: Path) -> None:
    files = {
        "home/z.py": "def foo():\n    return 1\n\n\nfoo()\n",
        "home/near.py": "foo()\n",
        "other/imports.py": "from home.z import foo\n",
        "more/names.py": "print(foo)\n",
    }
    index_files(tmp_path, files)
    nearest = [("home/z.py", 5), ("home/near.py", 1), ("other/imports.py", 1), ("more/names.py", 1)]
    assert locations(find(str(tmp_path / "ws"), "uses:foo")) == nearest


def test_uses_in_code_come_before_those_in_comments_and_prose(tmp_path: Path) -> None:
    files = {
        "home/a.py": '"""Call foo\n\nor foo."""\n\ndef foo():\n    r"""Like foo."""\n    # foo\n\n\nx = foo()  # foo\n',
        "home/README.md": "Call foo.\n",
        "src/b.ts": "/**\n * Calls foo.\n */\nconst all = 'src/*.ts';\nfoo(); /* foo */\n/* foo */\n// foo\n",
        "src/c.go": "// foo is used\nfunc main() {\n\tfoo() // foo\n}\n",
        "src/d.rb": "# foo\nfoo\n",
    }
    index_files(tmp_path, files)
    code = [("home/a.py", 10), ("src/b.ts", 5), ("src/c.go", 3), ("src/d.rb", 2)]
    rest = [*(("home/a.py", line) for line in (1, 3, 6, 7)), ("home/README.md", 1)]
    rest += [*(("src/b.ts", line) for line in (2, 6, 7)), ("src/c.go", 1), ("src/d.rb", 1)]
    every = find(str(tmp_path / "ws"), "uses:foo", top_k=50)
    assert locations(every) == code + rest
    assert every.exact == ExactCounts(14, 5)
    few = find(str(tmp_path / "ws"), "uses:foo", top_k=3)
    assert locations(few) == code[:3]
    assert few.exact == ExactCounts(14, 5, "limit")
    assert locations(find(str(tmp_path / "ws"), "uses:foo", files=True)) == [*code, ("home/README.md", 1)]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        *(("a.py", line) for line in ("marks = \"'''\"", "# it's ''' here", "x = '\\\\'; y = '\"\"\"'")),
        *(("a.ts", line) for line in ("x = 'in /* y'", 'x = "\\" /* y"', "// like /* here", "x = 'src/**/*'")),
    ],
)
def test_comment_signs_in_strings_and_line_comments_do_not_begin_comments(path: str, line: str) -> None:
    quotes = ('"""', '"""') if path == "a.py" else ("/*", "*/")
    assert in_comments(path, [line, "foo()", f"{quotes[0]} foo", f"foo {quotes[1]}", "foo()"], range(1, 5)) == {2, 3}


def test_documents_are_read_to_sort_uses_until_the_deadline() -> None:
    lines = [(IndexedDocument(f"{number}.py", "org:acme", "", 0), 0) for number in range(120)]
    late = iter((False, False, True))
    found = commented_lines(lines, lambda part: ((0, ["# foo"]) for _ in part), lambda: next(late))
    assert found == {*lines[:100]}


def test_case_in_the_query_applies_to_options(workspace: Workspace) -> None:
    options: tuple[dict[str, Any], ...] = ({"fixed": ["token = 3"]}, {"regex": ["token = \\d"]})
    for exact in options:
        assert (
            locations(find(workspace, "case:no", **exact)) == locations(find(workspace, **exact)) == [("src/app.py", 8)]
        )
        assert locations(find(workspace, "case:yes", **exact, ignore_case=True)) == []


def test_inapplicable_options_are_refused_and_applicable_ones_explained(workspace: Workspace) -> None:
    for limit in ({"min_relevance": 0.5}, {"max_distance": 1.0}):
        with pytest.raises(UsageError, match="min_relevance"):
            find(workspace, '"csrf_token" assert', **limit)
    before = len(searches_table(workspace))
    for query in ('"csrf_token"', '"csrf_token" assert'):
        outcome = served(workspace, SearchRequest(query, exts=("py",), explain=True)).explanation
        assert outcome is not None
        assert (outcome.mode, 0 < outcome.matches < outcome.lines, "exact" in outcome.seconds) == ("exact", True, True)
    assert len(searches_table(workspace)) == before + 2


def test_files_are_ranked_by_their_best_lines(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    filler = "".join(f"nothing {n}\n" for n in range(60))
    (tmp_path / "tree/b.py").write_text(f"token renews the lease\n{filler}token\n")
    (tmp_path / "tree/a.py").write_text(f"token\n{filler}")
    (tmp_path / "tree/c.py").write_text(f"lease of a token\n{filler}")
    driftline.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"))
    ranked = locations(find(str(tmp_path / "ws"), '"token" renews the lease'))
    listed = locations(find(str(tmp_path / "ws"), '"token" renews the lease', files=True))
    assert [*dict.fromkeys(path for path, _ in ranked)] == [path for path, _ in listed]
    assert listed[0] == ("b.py", 1)


def test_words_rank_what_exact_terms_find(workspace: Workspace) -> None:
    found = locations(find(workspace, '"csrf_token" assert'))
    assert found[0][0] == "tests/test_app.py"
    assert len(found) == 5


def test_a_pattern_may_match_over_several_lines(workspace: Workspace) -> None:
    for first in (1_999, 2_500):  # from one pack or two
        expression = rf"line {first} of words \d+\n\}}\nline {first + 1} of"
        report = find(workspace, regex=[expression], multiline=True)
        lines = [2 * first + 1, 2 * first + 2, 2 * first + 3]
        assert [(hit.path, hit.line) for hit in report.results] == [("big.txt", line) for line in lines]
    assert find(workspace, fixed=["}\n---\n\tTabbed"], multiline=True).exact == ExactCounts(3, 1)
    assert not find(workspace, regex=[r"---\n---"], multiline=True).results
    wrong: dict[str, Any]
    for wrong in ({"whole_words": True, "multiline": True}, {"multiline": False}):
        with pytest.raises(UsageError, match=r"multiline pattern|line break"):
            find(workspace, "", fixed=["first(\n"], **wrong)


def test_a_pattern_over_several_lines_reads_the_packs_of_many_documents_at_once(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []

    def counted(packs: Sequence[tuple[TableSearcher, int]]) -> pa.StringArray:
        reads.append(len(packs))
        return texts(packs)

    monkeypatch.setattr("driftline.tasks.search.exact.texts", counted)
    report = find(workspace, regex=[r"\}\n"], multiline=True, count=True)
    assert report.exact is not None
    assert report.exact.documents >= 4
    assert len(reads) < report.exact.documents


def facets(workspace: Workspace, query: str, **options: Any) -> dict[str, Any]:
    report = find(workspace, query, facets=True, **{"top_k": 1, **options})
    assert report.facets is not None
    assert report.facets.complete
    files: dict[str, Any] = report.facets.to_dict()["files"]
    return files


def test_facets_and_counts_are_of_the_same_matches(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    total = find(workspace, '"csrf_"', count=True).exact
    report = find(workspace, '"csrf_"', facets=True, top_k=1)
    assert total is not None
    assert (report.exact, total.documents, len(report.results)) == (total, 6, 1)
    assert "More lines match" in report.notes[0]
    monkeypatch.setattr("driftline.tasks.search.exact.MAX_FACET_PACKS", 0)
    assert find(workspace, '"csrf_"', facets=True, top_k=1).exact == ExactCounts(1, 1, "limit")


def test_facets_count_all_files_that_match(workspace: Workspace) -> None:
    assert facets(workspace, '"csrf_"') == {
        "source": {"org:default/project:default/source:tree": 6},
        "lang": {"python": 3, "text": 2, "javascript": 1},
        "dir": {"src": 4, "tests": 1, "vendor": 1},
        "tests": {"false": 5, "true": 1},
    }
    assert find(workspace, '"csrf_"').facets is None


def test_a_chosen_facet_counts_its_alternatives_and_narrows_the_others(workspace: Workspace) -> None:
    found = facets(workspace, '"csrf_"', languages=["py"], dirs=["src"])
    assert found["lang"] == {"text": 2, "python": 1, "javascript": 1}  # under src, in any language
    assert found["dir"] == {"src": 1, "tests": 1, "vendor": 1}  # in Python, anywhere
    assert found["tests"] == {"false": 1}
    assert facets(workspace, '"csrf_"', tests=False)["tests"] == {"false": 5, "true": 1}


@pytest.mark.parametrize("mode", ["hybrid", "text", "vector"])
def test_facets_of_a_ranked_search_count_the_files_of_its_lines(workspace: Workspace, mode: Any) -> None:
    found = facets(workspace, "csrf token request", mode=mode)
    assert found["source"] == {"org:default/project:default/source:tree": sum(found["tests"].values())}
    assert found["lang"]["python"] > 0
    assert facets(workspace, "csrf token request", mode=mode, dirs=["vendor"])["lang"] == {"python": 1}
    if mode != "vector":  # a search without the index knows no definitions
        assert found["kind"]["function"] == 2


def test_facets_say_when_not_all_files_are_counted(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftline.tasks.search.exact.MAX_FACET_PACKS", 0)
    report = find(workspace, '"csrf_"', facets=True, top_k=1)
    assert report.facets is not None
    assert not report.facets.complete
    assert len(report.results) == 1


@pytest.mark.parametrize(
    ("query", "location"),
    [
        ('x "open', "character 3"),
        ('x -"open', "character 4"),
        ('x def:"open', "character 7"),
        ('x file:"', "character 8"),
        ('x ""', "character 3 of the query"),
        ("x -/a(b/", "character 2 (missing )), in the term at character 4 of the query"),
        ("x ext:,", "The field ext:"),
        ("/a(b/", "character 2"),
        (r"/a\x{D800}/", "character 2"),
        (r"/[\u2028]/", r"Write \x{2028}."),
        ("langs:go x", "lang:"),
        ("lang:", "character 1"),
        ("case:maybe x", "character 1"),
        ("-def:x", "character 1"),
        ("-symbol:x", "character 1"),
        ("lease type:function", "kinds"),
        ("ext: x", "character 1"),
        ("lease OR renew", "character 7"),
        ("lease AND (renew OR take)", "all exact terms"),
        ("NOT def:lease", "-file:"),
        ("x rev:main", "branch:name"),
        ("x is:fork", "no such filter"),
        ("x count:all", "`top_k`"),
        ("x org:acme", "repo:name"),
    ],
)
def test_unreadable_values_are_reported_with_their_location(workspace: Workspace, query: str, location: str) -> None:
    with pytest.raises(UsageError, match=re.escape(location)):
        find(workspace, query)


HOSTILE = (
    "(x+x+)+y", "(a|a)*b", "(a{1,30}){1,30}", r"[\pL\pN]{900}", "((((((((((.*)*)*)*)*)*)*)*)*)*x",
    "(" * 900 + ")" * 900,
    "|".join(f"word{i}" for i in range(400)), "x" * 100_000, ".{1000}", r"(?i)[^\x00-\x{10ffff}]", r"\C",
    "(?P<n>x)(?P<n>y)",
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_patterns_are_answered_or_refused(workspace: Workspace, text: str) -> None:
    refused = False
    try:
        report = find(workspace, regex=[text], top_k=1)
    except UsageError:
        refused = True
    assert refused or report.exact is not None
    assert refused or len(text) <= MAX_PATTERN_CHARACTERS


def test_filters_and_boundaries_hold(workspace: Workspace) -> None:
    only = LineFilter(dirs=("tests",))
    assert {path for path, _ in locations(find(workspace, fixed=["csrf"], where=only))} == {"tests/test_app.py"}
    elsewhere = LineFilter(entities=(Entity.parse("source:other"),))
    for query in ('"csrf_token"', "def:csrf_token", "uses:csrf_token"):
        assert find(workspace, query, where=elsewhere).results == ()


def test_everything_beyond_a_boundary_is_hidden_and_not_counted(tmp_path: Path) -> None:
    at = str(tmp_path / "ws")
    for project in ("own", "other"):
        (tmp_path / project).mkdir()
        (tmp_path / project / f"{project}.py").write_text("def csrf_token():\n    return csrf_token\n")
        entity = f"org:acme/project:{project}/source:s"
        driftline.index(str(tmp_path / project), workspace=at, entity=entity, indexes="none")
    opened, own = driftline.open(at), Entity.parse("org:acme/project:own")
    requested: tuple[dict[str, Any], ...] = (
        {"fixed": ("csrf_token",)},
        {"fixed": ("csrf_token",), "count": True},
        {"fixed": ("csrf_token",), "files": True},
        {"query": '"csrf_token" return'},
        {"query": "def:csrf_token"},
        {"query": "uses:csrf_token"},
        {"query": "lang:python"},
    )
    for options in requested:
        everything, bound = (
            driftline.search(opened, **{"query": "", "n_lines": 0, **options}, within=within) for within in (None, own)
        )
        assert everything.exact is not None
        assert bound.exact is not None
        assert 2 * bound.exact.lines == everything.exact.lines
        assert 2 * bound.exact.documents == everything.exact.documents > 0
        assert {hit.path for hit in bound.results} <= {"own.py"}
    assert {hit.path for hit in driftline.search(opened, "token", within=own)} == {"own.py"}


def test_a_request_only_narrows_the_boundary_of_a_server(tmp_path: Path) -> None:
    at = str(tmp_path / "ws")
    for project in ("own", "other"):
        (tmp_path / project).mkdir()
        (tmp_path / project / f"{project}.py").write_text("token = 1\n")
        entity = f"org:acme/project:{project}/source:s"
        driftline.index(str(tmp_path / project), workspace=at, entity=entity, indexes="none")
    org, own, other = map(Entity.parse, ("org:acme", "org:acme/project:own", "org:acme/project:other"))
    for boundary, asked, expected in (
        ([own], other, []),
        ([own], org, ["own.py"]),
        ([org], other, ["other.py"]),
        ([own], None, ["own.py"]),
        ([own, other], org, ["other.py", "own.py"]),
        ([own, other], other, ["other.py"]),
        ([], org, []),
        ([], None, []),
    ):
        report = served(Workspace.open(at), SearchRequest('"token"', within=asked), within=Boundary.of(*boundary))
        assert sorted(hit.path for hit in report.results) == expected
    with pytest.raises(UsageError, match="within"):
        driftline.connect("http://127.0.0.1:1").search("token", within=own)


def test_a_branch_is_searched_in_its_own_state(tmp_path: Path) -> None:
    root, at = tmp_path / "tree", str(tmp_path / "ws")
    root.mkdir()
    (root / "a.txt").write_text("both\n}\n")
    (root / "gone.txt").write_text("main\n}\n")
    driftline.index(str(root), workspace=at, indexes="none")
    (root / "a.txt").write_text("both\nbranch\n}\n")
    (root / "gone.txt").unlink()
    driftline.index(str(root), workspace=at, branch="topic", max_delete_fraction=1.0)
    assert locations(find(at, regex=["^}$"])) == [("a.txt", 2), ("gone.txt", 2)]
    for on_branch in (find(at, regex=["^}$"], branch="topic"), find(at, "/^}$/ branch:topic")):
        assert locations(on_branch) == [("a.txt", 3)]
    assert find(at, fixed=["branch"]).results == ()


def test_a_table_with_another_order_of_columns_is_searched_and_kept_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, at, again, copied = tmp_path / "tree", str(tmp_path / "ws"), str(tmp_path / "again"), list[str]()
    root.mkdir()
    (root / "app.py").write_bytes(FILES["src/app.py"])
    today, copy_rows = line_table.schema, rows.copy_rows
    names = random.Random(31).sample(today(1).names, len(today(1)))

    def watched(*arguments: Any) -> Iterator[tuple[str, pa.Table]]:
        for path, of_path in copy_rows(*arguments):
            copied.append(path)
            yield path, of_path

    with monkeypatch.context() as earlier:
        for module in (line_table, rows):
            earlier.setattr(module, "schema", lambda dim: pa.schema([today(dim).field(name) for name in names]))
        driftline.index(str(root), workspace=at, indexes="none")
    monkeypatch.setattr(batch, "copy_rows", watched)
    opened = Workspace.open(at)
    assert opened.lines(opened.tenants()[0]).open().schema.names == names
    (root / "new.py").write_text("def csrf_token():\n    }\n")
    for branch in ("topic", None):  # main copies the lines of the branch
        driftline.index(str(root), workspace=at, branch=branch, indexes="none")
    assert copied == ["new.py"]
    driftline.index(str(root), workspace=again, indexes="none")
    for _ in range(2):
        for query in ("/csrf_\\w+/", "/^}$/", "def:csrf_token", "csrf token of the request"):
            ours, expected = ({(hit.path, hit.line) for hit in find(each, query).results} for each in (at, again))
            assert ours == expected != set()
        compact_workspace(CompactRequest(at))
    assert verify_workspace(VerifyRequest(at)).findings == []


def test_a_search_stops_reading_packs_at_its_time_limit(workspace: Workspace) -> None:
    def looked_at(late: Callable[[], bool]) -> tuple[bool, bool]:
        pattern = Pattern.of("(x+x+)+y")
        finder = ExactFinder(open_exact_tables(workspace, None), [pattern], late, lambda *_: 0, lambda _: True)
        assert [*finder.lines()] == []
        return finder.read > 0, finder.cut

    assert looked_at(lambda: False) == (True, False)
    assert looked_at(lambda: True) == (False, True)


def test_finding_imports_leaves_time_for_the_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FIRST_PACKS", "_MOST_PACKS"):
        monkeypatch.setattr(f"driftline.tasks.search.exact.{name}", 1)
    (tmp_path / "tree").mkdir()
    for number in range(6):
        (tmp_path / "tree" / f"{number}.py").write_text("from home import foo\nfoo()\n")
    driftline.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"), indexes="none")
    clock = map(float, count())  # a second for each pack
    report = search_exactly(
        Workspace.open(str(tmp_path / "ws")),
        ExactTerms(uses=("foo",)),
        SearchRequest("", top_k=20),
        max_seconds=5,
        clock=lambda: next(clock),
    )
    assert locations(report)[:2] == [("0.py", 1), ("0.py", 2)]
    assert report.exact is not None
    assert report.exact.reason == "time"


def test_finding_imports_reads_a_bounded_number_of_packs(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int | None] = []
    lines = ExactFinder.lines

    def watched(finder: ExactFinder) -> Iterator[Matches]:
        limits.append(finder.max_packs)
        return lines(finder)

    monkeypatch.setattr(ExactFinder, "lines", watched)
    find(workspace, "uses:csrf_token uses:request")
    assert limits == [*2 * [MAX_IMPORT_PACKS // 2], None]
    limits.clear()
    assert find(workspace, "uses:csrf_token", facets=True).facets is not None
    assert limits == [MAX_IMPORT_PACKS, None, MAX_FACET_PACKS], "counting needs no order"


def test_edits_deletions_and_compaction_leave_what_is_there(tmp_path: Path) -> None:
    root, at = tmp_path / "tree", str(tmp_path / "ws")
    root.mkdir()
    (root / "a.txt").write_text("one\n}\n")
    (root / "b.txt").write_text("---\n")
    driftline.index(str(root), workspace=at)
    (root / "a.txt").write_text("two\n}\n}\n")
    (root / "b.txt").unlink()
    (root / "c.txt").write_text("===\n}\n")
    driftline.index(str(root), workspace=at, max_delete_fraction=1.0)
    for _ in range(2):
        assert locations(find(at, regex=["^[^a-z]+$"])) == [
            ("a.txt", 2),
            ("a.txt", 3),
            ("c.txt", 1),
            ("c.txt", 2),
        ]
        assert find(at, fixed=["one"]).results == ()
        compact_workspace(CompactRequest(at))


def test_a_restored_backup_is_searched_in_an_open_process(tmp_path: Path) -> None:
    """A restored table repeats version numbers, so nothing cached from before the restore may answer."""
    source, workspace = tmp_path / "source", tmp_path / "ws"
    source.mkdir()
    (source / "kept.md").write_text("kept words\n")
    driftline.index(str(source), workspace=str(workspace), indexes="none")
    shutil.copytree(workspace, tmp_path / "backup")
    for name in ("removed", "added"):
        (source / f"{name}.md").write_text(f"{name} words\n")
        driftline.index(str(source), workspace=str(workspace), indexes="none")
        hits = driftline.open(str(workspace)).search('"words"')
        assert [hit.path for hit in hits] == sorted([f"{name}.md", "kept.md"])
        (source / f"{name}.md").unlink()
        shutil.rmtree(workspace)
        shutil.copytree(tmp_path / "backup", workspace)


@pytest.mark.parametrize("query", ['"csrf_token"', "/csrf_\\w+/", "def:csrf_token", '"csrf_token" request'])
def test_an_exact_search_names_the_filters_that_match_no_document(workspace: Workspace, query: str) -> None:
    report = served(workspace, SearchRequest.of(query, {"globs": ["*.rst"], "count": query[0] == "/"}))
    assert (report.results, report.unmatched) == ((), ("glob '*.rst'",))
    assert "'*.rst'" in report.notes[0]

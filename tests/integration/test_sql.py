"""SQL over a workspace: the rows in each view, forbidden queries, and the output."""

from __future__ import annotations

import csv
import io
import json
import resource
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import driftline as dl
from driftline.flows.runs.index import IndexRequest, index_sources
from driftline.storage import sql_process
from driftline.storage.defaults import DEFAULT_SQL_SECONDS
from driftline.storage.errors import CorruptFile, OutOfMemory, UsageError
from driftline.storage.lines.line_table import LineTable
from driftline.storage.sql import MAX_BYTES, Limits, query_here
from driftline.storage.sql_process import query
from driftline.storage.workspace.workspace import Workspace

Driftline = Callable[..., Any]

CORE, WEB = "org:acme/project:core/source:core", "org:acme/project:site/source:web"
FOREIGN = "org:other/project:x/source:foreign"
FILES = {
    CORE: {
        "a.py": "class A:\n    def run(self):\n        return shared_value_of_both\n\n# TODO(bob) later\n",
        "b.txt": "one\n",
    },
    WEB: {
        "c.go": "package web\n\nfunc Serve() {\n        return shared_value_of_both\n}\n",
        "d.md": "# Head\n\ntext\n",
        ".github/CODEOWNERS": "* @web\n*.md @docs @web # both\n/.github/\n",
        "CODEOWNERS": "* @nobody\n",
    },
    FOREIGN: {"secret.py": "password = 1\n"},
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Workspace:
    """Sources of two teams of one tenant, and one source of another tenant; the first was indexed twice and has a
    branch.
    """
    location = tmp_path_factory.mktemp("sql")
    ws = str(location / "ws")
    for entity, files in FILES.items():
        folder = location / entity.rpartition(":")[2]
        folder.mkdir()
        for name, text in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        (folder / "picture.bin").write_bytes(bytes(100))
        dl.index(str(folder), workspace=ws, entity=entity, model=str(tiny_model))
    dl.index(str(location / "core"), workspace=ws, entity=CORE, branch="topic")
    (location / "core" / "e.py").write_text("x = 1\ny = 2\n")
    dl.index(str(location / "core"), workspace=ws, entity=CORE)
    return dl.open(ws).storage


def rows_here(workspace: Workspace, text: str) -> list[tuple[Any, ...]]:
    """Run a query in this process, where a test can replace parts."""
    with query_here(workspace, text, (), None, None, Limits(DEFAULT_SQL_SECONDS, MAX_BYTES)) as result:
        return [*result.rows()]


def rows(workspace: Workspace, text: str, **options: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in dl.sql(workspace, text, **options).to_pylist()]


# -- the views ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "SELECT path, ext, lines, indexed_lines, size_bytes FROM documents WHERE entity LIKE '%core' ORDER BY path",
            [("a.py", "py", 5, 4, 83), ("b.txt", "txt", 1, 1, 4), ("e.py", "py", 2, 2, 12)],
        ),
        (
            "SELECT path, lang FROM documents WHERE ext <> '' AND entity LIKE '%:acme%' ORDER BY path",
            [("a.py", "python"), ("b.txt", "text"), ("c.go", "go"), ("d.md", "markdown"), ("e.py", "python")],
        ),
        ("SELECT path, line FROM lines WHERE lang = 'go' AND line > 2", [("c.go", 3), ("c.go", 4)]),
        (
            "SELECT * FROM owners ORDER BY ALL",
            [(WEB, "CODEOWNERS", "@web"), (WEB, "c.go", "@web"), (WEB, "d.md", "@docs"), (WEB, "d.md", "@web")],
        ),
        (
            "SELECT owner, count(*) FROM lines JOIN owners USING (entity, path) WHERE owner = '@docs' GROUP BY ALL",
            [("@docs", 2)],
        ),
        ("SELECT entity, path, reason FROM skipped WHERE entity LIKE '%web'", [(WEB, "picture.bin", "binary")]),
        (
            "SELECT entity, path, line, \"column\" FROM lines WHERE line = 3 AND ext = 'py'",
            [(CORE, "a.py", 3, 1)],
        ),
        (
            "SELECT name, kind, line, first_line, last_line FROM definitions WHERE path = 'a.py' ORDER BY name",
            [("A", "class", 1, 1, 3), ("A.run", "method", 2, 2, 3)],
        ),
        (
            "SELECT org, project, source FROM sources ORDER BY ALL",
            [("acme", "core", "core"), ("acme", "site", "web"), ("other", "x", "foreign")],
        ),
        ("SELECT name, entity FROM branches", [("topic", CORE)]),
        ("SELECT kind, outcome, count(*) FROM runs GROUP BY ALL", [("index", "done", 5)]),
        (
            "SELECT new, documents_total, skipped FROM run_sources WHERE entity LIKE '%core' AND branch IS NULL "
            "ORDER BY started",
            [(2, 2, 1), (1, 3, 1)],
        ),
        ("SELECT count(*) FROM memory", [(0,)]),
        ("SELECT count(*) FROM searches", [(0,)]),
    ],
    ids=lambda value: value.partition(" FROM ")[2].split()[0] if isinstance(value, str) else "",
)
def test_each_view_shows_the_data_of_the_workspace(
    workspace: Workspace, text: str, expected: list[tuple[Any, ...]]
) -> None:
    assert rows(workspace, text) == expected


def test_line_counts_equal_the_lines_of_the_text(tmp_path: Path, tiny_model: Path) -> None:
    tree, ws = tmp_path / "tree", str(tmp_path / "ws")
    tree.mkdir()
    texts = {
        "braces.js": "f(() => {\n  x = 1;\n})\n}\n",
        "no-end.txt": "one\n\n---",
        "long.txt": "a word, and more of them\n---\n" * 2_000,  # several packs
        "blank.txt": "\n\n",
        "empty.txt": "",
    }
    for name, text in texts.items():
        (tree / name).write_text(text)
    dl.index(str(tree), workspace=ws, model=str(tiny_model))
    branch = {**texts, "braces.js": "x\n}\n"}
    (tree / "braces.js").write_text(branch["braces.js"])
    dl.index(str(tree), workspace=ws, branch="topic")
    for on, written in ((None, texts), ("topic", branch)):
        found = dl.sql(ws, "SELECT path, lines FROM documents", branch=on).to_pylist()
        assert {row["path"]: row["lines"] for row in found} == {
            name: len(text.splitlines()) for name, text in written.items()
        }
    assert dl.sql(ws, "SELECT count(*) AS n FROM documents WHERE lines > 3").to_pylist() == [{"n": 2}]


def test_skipped_files_equal_those_in_the_reports(tmp_path: Path, tiny_model: Path) -> None:
    tree, ws = tmp_path / "tree", str(tmp_path / "ws")
    for name in ("key.pem", "a.txt", "large.txt", "ignored/b.txt", "ignored/.driftlineignore"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("*\n" * 100 if name == "large.txt" else "*\n")
    (tree / "picture.bin").write_bytes(bytes(100))
    (tree / "link").symlink_to("/etc")
    with zipfile.ZipFile(tree / "old.zip", "w") as archive:
        archive.writestr("member.txt", "member\n")
        archive.writestr("member.bin", bytes(100))
    (tree / "damaged.zip").write_bytes(b"PK\3\4")

    def index(**options: Any) -> list[tuple[str, str]]:
        (source,) = dl.index(str(tree), workspace=ws, model=str(tiny_model), max_file_bytes=150, **options).sources
        return sorted((path, str(reason)) for path, reason in source.skipped)

    def view() -> list[tuple[Any, ...]]:
        return rows(dl.open(ws).storage, "SELECT path, reason FROM skipped ORDER BY path")

    first = index()
    assert {reason for _, reason in first} > {"binary", "excluded", "secret", "too large", "archive"}
    assert view() == first == index() == view()
    opened = index(archives=True)
    assert ("old.zip", "archive") not in opened
    assert {"old.zip!/member.bin", "damaged.zip"} < {path for path, _ in opened}
    assert view() == opened == index() == view()
    (tree / "large.txt").write_text("small\n")
    (tree / "new.bin").write_bytes(bytes(10))
    index_sources(IndexRequest((str(tree),), ws, paths=("large.txt", "new.bin")))
    partly = view()
    assert (len(partly), partly == index() == view()) == (len(opened), True)


def test_a_join_uses_a_view_twice(workspace: Workspace) -> None:
    both = "lines a JOIN lines b ON trim(a.text) = trim(b.text) AND a.entity < b.entity"
    found = dl.sql(workspace, f"SELECT DISTINCT a.entity, b.entity FROM {both}")
    assert found.to_pylist() == [{"entity": CORE, "entity_2": WEB}]


def test_parameters_are_values_and_no_syntax(workspace: Workspace) -> None:
    text = "SELECT count(*) FROM documents WHERE path = ?"
    assert rows(workspace, text, parameters=["a.py"]) == [(1,)]
    assert rows(workspace, text, parameters=["' OR true --"]) == [(0,)]


def test_a_named_branch_is_searched(workspace: Workspace) -> None:
    text = "SELECT count(*) FROM documents WHERE path = 'e.py'"
    of_lines = text.replace("documents", "lines")
    assert (rows(workspace, text), rows(workspace, of_lines)) == ([(1,)], [(2,)])
    assert (rows(workspace, text, branch="topic"), rows(workspace, of_lines, branch="topic")) == ([(0,)], [(0,)])


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT DISTINCT entity FROM {view}"
        for view in ("documents", "skipped", "lines", "definitions", "sources", "branches", "run_sources")
    ],
)
def test_a_boundary_hides_siblings(workspace: Workspace, text: str) -> None:
    seen = {entity for (entity,) in rows(workspace, text, within="org:acme/project:site")}
    assert seen <= {WEB}
    assert {entity for (entity,) in rows(workspace, text)} - {WEB}
    assert {entity for (entity,) in rows(workspace, text, within="org:acme")} <= {CORE, WEB}


def test_a_boundary_hides_the_runs_of_others(workspace: Workspace) -> None:
    assert rows(workspace, "SELECT count(*), sum(requests) FROM runs", within="org:other") == [(1, None)]
    assert rows(workspace, "SELECT count(*) FROM runs", within="org:nobody") == [(0,)]


def test_memory_is_seen_within_its_owner(tmp_path: Path, driftline: Driftline, tiny_model: Path) -> None:
    ws = tmp_path / "ws"
    for owner in ("org:acme", "org:other"):
        assert driftline("memory", "put", f"plan-{owner[4:]}", "1", "--entity", owner, "--workspace", ws).code == 0
    text = "SELECT key, entity FROM memory ORDER BY key"
    found = rows(dl.open(str(ws)).storage, text)
    assert [key for key, _ in found] == ["plan-acme", "plan-other"]
    assert [key for key, _ in rows(dl.open(str(ws)).storage, text, within="org:other")] == ["plan-other"]


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_now_is_in_utc_on_a_machine_in_any_zone(
    zone: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        ((now, zone_of_session),) = rows(workspace, "SELECT now()::TIMESTAMP, current_setting('TimeZone')")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert zone_of_session == "UTC"
    assert abs(now - datetime.now(UTC).replace(tzinfo=None)) < timedelta(hours=1)


def test_only_the_columns_and_rows_of_a_query_are_read(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    import lance

    requested: list[tuple[list[str], str]] = []
    scanner = lance.LanceDataset.scanner

    def noted(self: Any, columns: Any = None, filter: Any = None, **options: Any) -> Any:
        requested.append((columns, str(filter)))
        return scanner(self, columns=columns, filter=filter, **options)

    monkeypatch.setattr(lance.LanceDataset, "scanner", noted)
    rows_here(workspace, "SELECT count(*) FROM lines WHERE ext = 'go'")
    assert requested, requested
    assert {len(columns) for columns, _ in requested} == {1}
    assert all('(ext == "go")' in where for _, where in requested)
    requested.clear()
    assert rows_here(workspace, "SELECT lines FROM documents WHERE path = 'a.py'") == [(5,)]
    assert requested, requested
    assert all("a.py" in where for _, where in requested)


# -- what no query can do ----------------------------------------------------------------------


ATTACKS = (
    "COPY lines TO '{location}/stolen.csv'",
    "COPY (SELECT 1) TO '{location}/stolen.parquet' (FORMAT parquet)",
    "EXPORT DATABASE '{location}/stolen'",
    "SELECT * FROM read_csv('{location}/secret.csv')",
    "SELECT * FROM read_text('{location}/secret.csv')",
    "SELECT * FROM read_blob('{location}/*')",
    "SELECT * FROM read_parquet('{location}/x.parquet')",
    "SELECT * FROM read_json('{location}/secret.csv')",
    "SELECT * FROM sniff_csv('{location}/secret.csv')",
    "SELECT * FROM glob('{location}/*')",
    "SELECT * FROM '{location}/secret.csv'",
    "SELECT * FROM query('SELECT * FROM read_text(''{location}/secret.csv'')')",
    "SELECT * FROM 'https://127.0.0.1:9/x.parquet'",
    "ATTACH '{location}/stolen.db' AS stolen",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{location}/x.duckdb_extension'",
    "PRAGMA database_list",
    "PRAGMA enable_profiling",
    "SET enable_external_access = true",
    "SET memory_limit = '100GB'",
    "RESET memory_limit",
    "CALL pragma_version()",
    "CREATE TABLE kept AS SELECT * FROM lines",
    "CREATE OR REPLACE VIEW lines AS SELECT 1",
    "DROP VIEW lines",
    "INSERT INTO lines VALUES (1)",
    "UPDATE lines SET text = ''",
    "DELETE FROM lines",
    "CREATE SECRET (TYPE s3)",
    "IMPORT DATABASE '{location}'",
    "EXPLAIN ANALYZE COPY lines TO '{location}/stolen.csv'",
    "SELECT 1; COPY lines TO '{location}/stolen.csv'",
    "SELECT 1; SELECT 2",
    "PREPARE later AS COPY lines TO '{location}/stolen.csv'",
    "SELECT getenv('HOME')",
    "SELECT * FROM workspace",
    "SELECT * FROM ATTACKS",
    "",
    "SELEC",
)


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_a_usage_error_and_touches_no_file(workspace: Workspace, attack: str, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("password\nhunter2\n")
    with pytest.raises(UsageError) as refused:
        dl.sql(workspace, attack.format(location=tmp_path))
    assert "hunter2" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("SELECT * FROM documets", 'Did you mean "documents"?'),
        ("SELECT lenght(path) FROM documents", 'Did you mean "length"?'),
        ("SELECT nosuch FROM documents", "DESCRIBE a view to see its columns; text is in single quotes."),
        ("SELECT * FROM read_text('/etc/hostname')", "A query can only read the views."),
        ("SELECT * FRO documents", ""),
    ],
)
def test_an_error_suggests_what_helps(workspace: Workspace, text: str, fix: str) -> None:
    with pytest.raises(UsageError) as refused:
        dl.sql(workspace, text)
    assert refused.value.fix == fix
    assert "??" not in str(refused.value)
    assert "?." not in str(refused.value)


def test_no_query_changes_settings(workspace: Workspace) -> None:
    names = ("enable_external_access", "lock_configuration", "autoload_known_extensions", "temp_directory")
    listed = ", ".join(f"current_setting('{name}')" for name in names)
    assert rows(workspace, f"SELECT {listed}") == [(False, True, False, "")]


def test_a_slow_query_is_interrupted(workspace: Workspace) -> None:
    text = "SELECT max(sin(a.range + b.range)) FROM range(10000000) a, range(10000000) b"
    with pytest.raises(UsageError, match=r"longer than 0\.2 s"):
        dl.sql(workspace, text, timeout_seconds=0.2)


def test_a_query_that_needs_much_memory_is_refused(workspace: Workspace) -> None:
    text = "SELECT list(range) FROM range(50000000)"
    with pytest.raises(OutOfMemory, match="more memory than"), query(workspace, text, max_bytes=64 * 2**20) as result:
        result.table()


@pytest.mark.parametrize(
    "value",
    [
        "repeat('x', 2000000000)",
        "repeat(repeat('x', 30000), 30000) || 'y'",
        "repeat('x', 400000000) || repeat('y', 400000000)",
    ],
)
def test_the_memory_of_strings_is_bounded(workspace: Workspace, value: str) -> None:
    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    text, before = "SELECT count(*) FROM documents", peak()
    with pytest.raises(OutOfMemory, match="LIMIT"), query(workspace, f"SELECT {value}", max_bytes=2**26) as result:
        result.table()
    with query(workspace, text, max_bytes=2**26) as result:
        assert [*result.rows()] == [(8,)]
    assert peak() - before < 100


def test_a_function_that_cannot_be_interrupted_is_killed(workspace: Workspace) -> None:
    text = "SELECT levenshtein(repeat('x', 300000), repeat('y', 300000))"
    with pytest.raises(UsageError, match=r"longer than 0\.1 s"):
        dl.sql(workspace, text, timeout_seconds=0.1)
    assert rows(workspace, "SELECT count(*) FROM documents") == [(8,)]


def test_a_caller_that_fails_leaves_no_query_behind(workspace: Workspace) -> None:
    def read_some() -> None:
        with query(workspace, "SELECT * FROM range(10_000_000)") as result:
            next(iter(result))
            raise UsageError("enough")

    with pytest.raises(UsageError, match="enough"):
        read_some()
    with sql_process._pool().reserved() as helper, pytest.raises(IndexError):
        helper.run(None, sql_process._next)


def test_a_result_that_is_read_too_late_has_no_rows_of_the_next_query(workspace: Workspace) -> None:
    with query(workspace, "SELECT 'own' AS word FROM range(10)") as late:
        pass
    with query(workspace, "SELECT 'other' AS word FROM range(10)") as result:
        assert [*late.rows()] == []
        assert [*result.rows()] == [("other",)] * 10


def test_a_large_result_is_streamed_and_a_table_of_it_is_refused(workspace: Workspace) -> None:
    text = "SELECT range AS n, 'x' || range FROM range(100000000000)"
    with query(workspace, text) as result:
        assert [next(result)[0] for result in [result.rows()]] == [0]
    with query(workspace, text, max_bytes=2**26) as result, pytest.raises(OutOfMemory):
        result.table()
    wide = "SELECT repeat('x', 1000000) AS wide FROM range(20)"
    with query(workspace, wide) as result:
        assert [(each.num_rows, each.nbytes // 10**6) for each in result] == [(1, 1)] * 20


@pytest.mark.parametrize("text", ["SELECT '\udc80'", "SELECT ?"])
def test_text_that_is_not_unicode_is_a_usage_error(workspace: Workspace, text: str) -> None:
    with pytest.raises(UsageError, match="not UTF-8"):
        dl.sql(workspace, text, ["\udc80"] * text.count("?"))


@pytest.mark.parametrize("parameter", [lambda: 1, object()], ids=["function", "object"])
def test_a_parameter_without_a_value_in_sql_is_a_usage_error(workspace: Workspace, parameter: object) -> None:
    with pytest.raises(UsageError):
        dl.sql(workspace, "SELECT ?", [parameter])


MOMENTS = {
    "'infinity'::DATE": "infinity",
    "'-infinity'::DATE": "-infinity",
    "'infinity'::TIMESTAMP": "infinity",
    "DATE '12000-02-29'": "12000-02-29",
    "TIMESTAMP '20000-01-01 12:30:00.5'": "20000-01-01 12:30:00.500000",
    "TIMESTAMPTZ '290000-01-01 00:00:00+00'": "290000-01-01 00:00:00+00:00",
    "DATE '0044-03-15 (BC)'": "-043-03-15",
    "make_timestamp_ns(1)": "1970-01-01 00:00:00.000000001",
    "[DATE '12000-01-01', '2000-01-01'::DATE, NULL]": ["12000-01-01", "2000-01-01", None],
    "{'a': 'infinity'::DATE, 'b': 1}": {"a": "infinity", "b": 1},
}


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_a_moment_that_python_does_not_have_is_text(workspace: Workspace, driftline: Driftline, form: str) -> None:
    chosen = MOMENTS if form == "json" else dict([*MOMENTS.items()][:1])
    text = "SELECT " + ", ".join(f"{value} AS v{at}" for at, value in enumerate(chosen))
    done = driftline("sql", text, "--workspace", workspace.objects.uri, "--format", form)
    assert (done.code, done.err) == (0, "")
    assert "infinity" in done.out
    if form == "json":
        assert [*done.json["rows"][0].values()] == [*chosen.values()]


NOT_IN_ARROW = {
    "INTERVAL 90 MINUTE": "01:30:00",
    "INTERVAL '1 month 2 days'": "1 month 2 days",
    "[INTERVAL 1 DAY, NULL]": "[1 day, NULL]",
    "{'a': INTERVAL 1 DAY}": "{'a': 1 day}",
    "'01:02:03+01'::TIMETZ": "01:02:03+01",
    "'0101'::BIT": "0101",
    "340282366920938463463374607431768211455::UHUGEINT": "340282366920938463463374607431768211455",
    f"{'7' * 60}::BIGNUM": "7" * 60,
    "union_value(a := 1)": "1",
    "2::VARIANT": "2",
}


@pytest.mark.parametrize("form", ["table", "csv", "json", "parquet"])
def test_values_that_arrow_lacks_are_text(
    workspace: Workspace, form: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    from driftline.flows.commands.main import main

    text = "SELECT " + ", ".join(f'{value} AS "v{at}"' for at, value in enumerate(NOT_IN_ARROW))
    assert main(["sql", f'{text}, 5 AS "a""b"', "--workspace", workspace.objects.uri, "--format", form]) == 0
    out = capfdbinary.readouterr().out
    expected = [*NOT_IN_ARROW.values()]
    if form == "parquet":
        (row,) = pq.read_table(pa.BufferReader(out)).to_pylist()
        assert row == {f"v{at}": value for at, value in enumerate(expected)} | {'a"b': 5}
    elif form == "json":
        assert [*json.loads(out)["rows"][0].values()] == [*expected, 5]
    elif form == "csv":
        assert [*csv.reader(io.StringIO(out.decode()))][1] == [*expected, "5"]
    else:
        assert all(value in out.decode() for value in expected)


def test_names_that_equal_those_of_types_do_not_make_values_text(workspace: Workspace) -> None:
    values = {"{'UNION': 1, 'VARIANT': 2}": {"UNION": 1, "VARIANT": 2}, "['BIT']::ENUM('BIT', 'x')[]": ["BIT"]}
    assert rows_here(workspace, f"SELECT {', '.join(values)}") == [(*values.values(),)]


@pytest.mark.parametrize("where", ["path = 'nope'", "etag < ''", "lang = 'cobol'", "path IN ('x', 'y') AND ext = ''"])
def test_documents_that_no_filter_passes_have_no_lines(workspace: Workspace, where: str) -> None:
    assert rows_here(workspace, f"SELECT path, lines FROM documents WHERE {where}") == []
    assert rows_here(workspace, f"SELECT coalesce(sum(lines), 0) FROM documents WHERE {where}") == [(0,)]


def test_csv_rounds_no_number(workspace: Workspace, driftline: Driftline) -> None:
    text = "SELECT 123456789.125::DOUBLE a, 1e-300 b, 1/3 c, 12.5::DECIMAL(4, 2) d, '\\xff'::BLOB e, 2e20 f"
    shown = driftline("sql", text, "--workspace", workspace.objects.uri, "--format", "csv").out
    assert shown.splitlines()[1] == "123456789.125,1e-300,0.3333333333333333,12.50,ff,2e+20"
    table = driftline("sql", text, "--workspace", workspace.objects.uri).out
    assert table.splitlines()[1].split() == ["123456789", "1e-300", "0.333333", "12.50", "ff", "2e+20"]


def test_a_failure_of_the_workspace_is_reported_as_such(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(self: LineTable) -> Iterator[None]:
        raise CorruptFile("The table is damaged", "here", "Repair it.")

    monkeypatch.setattr(LineTable, "open", damaged)
    with pytest.raises(CorruptFile, match="The table is damaged"):
        rows_here(workspace, "SELECT count(*) FROM lines")
    assert rows_here(workspace, "SELECT count(*) FROM documents") == [(8,)]


# -- the command -------------------------------------------------------------------------------


def test_a_table_without_its_files_is_damaged(workspace: Workspace, tmp_path: Path) -> None:
    shutil.copytree(workspace.objects.uri, tmp_path / "ws")
    for file in (tmp_path / "ws").glob("*/_tables/*/data/*"):
        file.unlink()
    with pytest.raises(CorruptFile, match="verify --repair"):
        dl.sql(str(tmp_path / "ws"), "SELECT max(line) FROM lines")
    table = next(iter(Workspace.open(str(tmp_path / "ws")).line_tables(workspace.tenants()[0])))
    with pytest.raises(CorruptFile):
        table.paths(next(iter(workspace.sources()))[0])


def test_the_command_prints_rows_in_each_format(workspace: Workspace, driftline: Driftline) -> None:
    def run(*options: str) -> Any:
        done = driftline(
            "sql",
            "SELECT path, lines, [1, 2] AS l, NULL AS n FROM documents WHERE ext <> '' ORDER BY path LIMIT 2",
            "--workspace",
            workspace.objects.uri,
            *options,
        )
        assert done.code == 0, done.err
        return done

    table = run().out.splitlines()
    assert [line.split()[:2] for line in table] == [["path", "lines"], ["a.py", "5"], ["b.txt", "1"]]
    assert list(csv.reader(io.StringIO(run("--format", "csv").out)))[1] == ["a.py", "5", "[1, 2]", ""]
    values = "SELECT 'nan'::DOUBLE AS a, ['inf'::DOUBLE, 1] AS b, {'c': '-inf'::FLOAT} AS d, 'NaN' AS e, 1.5 AS f"
    (row,) = json.loads(
        driftline("sql", values, "--workspace", workspace.objects.uri, "--json").out, parse_constant=pytest.fail
    )["rows"]
    assert row == {"a": None, "b": [None, 1.0], "d": {"c": None}, "e": "NaN", "f": 1.5}
    for option in (["--json"], ["--format", "json"]):
        answer = run(*option).json
        assert answer["columns"] == ["path", "lines", "l", "n"]
        assert answer["rows"][1] == {"path": "b.txt", "lines": 1, "l": [1, 2], "n": None}


@pytest.mark.parametrize("digits", ["1" * 39, "-" + "1" * 39, "9" * 38, "-" + "9" * 38])
def test_a_number_that_parquet_cannot_hold_is_an_error(
    digits: str, workspace: Workspace, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    from driftline.flows.commands.main import main

    statement = f"SELECT ({digits[:-1]}::HUGEINT * 10 + {'-' * (digits[0] == '-')}{digits[-1]}) AS x, [1, 2] AS y"
    code = main(["sql", statement, "--workspace", workspace.objects.uri, "--format", "parquet"])
    out, err = capfdbinary.readouterr()
    if len(digits.strip("-")) == 39:
        assert (code, b"does not fit into its Parquet type" in err) == (2, True)
    else:
        assert (code, str(pq.read_table(io.BytesIO(out))["x"][0].as_py())) == (0, digits)


def test_parquet_goes_to_standard_output(workspace: Workspace, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    from driftline.flows.commands.main import main

    arguments = ["sql", "SELECT path FROM documents", "--workspace", workspace.objects.uri, "--format", "parquet"]
    assert main(arguments) == 0
    found = pq.read_table(pa.BufferReader(capfdbinary.readouterr().out))
    assert len(found) == 8


def test_empty_results_and_invalid_sql_are_reported(workspace: Workspace, driftline: Driftline) -> None:
    empty = driftline("sql", "SELECT 1 WHERE false", "--workspace", workspace.objects.uri)
    assert (empty.code, empty.err) == (0, "driftline: The query returned no rows.\n")
    wrong = driftline("sql", "SELECT nothing FROM lines", "--workspace", workspace.objects.uri)
    assert wrong.code == 2
    assert "nothing" in wrong.err
    assert wrong.err.count("\n") == 1


def test_a_long_table_is_cut_and_says_so(workspace: Workspace, driftline: Driftline) -> None:
    done = driftline("sql", "SELECT range FROM range(2000)", "--workspace", workspace.objects.uri)
    assert len(done.out.splitlines()) == 1001
    assert "first 1,000 rows" in done.err

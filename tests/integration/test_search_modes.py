"""Lexical, semantic and hybrid search: hits, filters and explanations."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

import driftline as dl
from driftline.flows.mcp_server.tools import SearchAnswer
from driftline.storage.defaults import Mode
from driftline.storage.entities import Entity
from driftline.storage.lines.indexes import coverage
from driftline.storage.lines.line_filter import LineFilter
from driftline.storage.lines.line_table import TEXT
from driftline.storage.lines.table_searcher import Scored
from driftline.tasks.search import ranked
from driftline.tasks.search.hits import NO_GOOD_MATCH, Hit, SearchReport
from tests.support.mcp import hits_of
from tests.support.searches import search

Driftline = Callable[..., Any]
MODES: tuple[Mode, ...] = get_args(Mode)

CLIENT = """\
from transport import connection

payload = get_http_response(address)
print(get_http_response)
retry(get_http_response, times=3)







def unrelated():
    return 0




def get_http_response(address):
    return connection(address)
"""
FILES = {
    "net/client.py": CLIENT,
    "net/cars.md": "The automobile stopped at the red light.\n",
    "food/soup.md": "Boil the carrots and add salt.\n",
    "food/it's 100%_done.md": "Bake the bread until it is brown.\n",
    "api/server.py": "class Server:\n    def listen(self, port):\n        self.port = port\n",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace (default model) over ``web`` and ``docs``, and the same names in another tenant."""
    location = tmp_path_factory.mktemp("modes")
    write(location / "web", FILES)
    write(location / "docs", {"net/cars.md": "Bicycles have two wheels.\n", "guide.md": "Read the manual first.\n"})
    write(location / "foreign", {"net/client.py": "def get_http_response(url): ...\n"})
    for source, entity in (
        ("web", "source:web"),
        ("docs", "source:docs"),
        ("foreign", "org:other/project:x/source:foreign"),
    ):
        dl.index(str(location / source), workspace=str(location / "ws"), entity=entity)
    return location / "ws"


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def ask(workspace: Path, query: str, **options: Any) -> SearchReport:
    return search(dl.open(str(workspace)).storage, query, **options)


def found(workspace: Path, query: str, **options: Any) -> tuple[Hit, ...]:
    return ask(workspace, query, **options).results


WEB = LineFilter(entities=(Entity.parse("source:web"),))


# Modes.


def test_an_entry_without_a_common_word_is_found_semantically(corpus: Path) -> None:
    query = "vehicle traffic signal"
    assert found(corpus, query, mode="text") == ()
    prose = LineFilter(exts=("md",))
    for mode in ("hybrid", "vector"):
        assert found(corpus, query, mode=mode, where=prose)[0].text.startswith("The automobile")


@pytest.mark.parametrize("query", ["getHTTPResponse", "get_http_response", "GetHttpResponses", "HTTP response"])
def test_an_identifier_is_found_in_any_notation(corpus: Path, query: str) -> None:
    for mode in ("text", "hybrid"):
        best = found(corpus, query, mode=mode, where=WEB)[0]
        assert best.path == "net/client.py"
        assert "get_http_response" in best.text


def test_underscores_accents_and_case_do_not_hide_a_word(tmp_path: Path, tiny_model: Path) -> None:
    files = {"x.py": "def __init__(self):\n    self._cache = class_\n", "y.py": "nothing = here\n"}
    files |= {"x.txt": "le café de Łódź, Hauptstraße 1, Straße 2\n", "y.txt": "nothing here\n"}
    write(tmp_path / "tree", files)
    dl.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"), model=str(tiny_model))
    for query in ("__init__", "_cache", "cache", "init", "class", "class_"):
        assert [hit.path for hit in found(tmp_path / "ws", query, mode="text")] == ["x.py"], query
    for query in ("café", "CAFÉ", "cafe", "ŁÓDŹ", "lodz", "straße"):
        assert [hit.path for hit in found(tmp_path / "ws", query, mode="text")] == ["x.txt"], query


def test_a_definition_comes_before_its_uses(corpus: Path) -> None:
    best = found(corpus, "get http response", where=WEB)[0]
    assert best.text == "def get_http_response(address):"
    assert best.line == CLIENT[: CLIENT.index("def get_http_response")].count("\n") + 1


ENGINE = "".join(f"    step_{number} = engine.run(core)\n" for number in range(2, 60))
BODY = "    fn boil(&self) {}\n" * 70
PLACES = {
    "app/core/engine.py": f"def start(core):\n{ENGINE}",
    "app/core/run.py": "def engine(core):\n    return core\n" * 20,
    "app/settings.py": "TIMEOUT = 3\nDOWNLOAD_DELAY: float = 0.5\n",
    "app/slot.py": "def download_delay(settings):\n    return settings['DOWNLOAD_DELAY']\n",
    "lib/kettle.rs": f"struct TeaKettle;\n\n// A tea kettle\nimpl TeaKettle {{ // tea kettle\n{BODY}}}\n",
    "lib/mod.rs": "mod kettle;\npub use pottery::FromClay;\n",
    "shop/Feature.java": "enum Feature {\n    FAIL_FAST(true),\n    FAIL_ON_UNKNOWN(true),\n    OTHER(false);\n}\n",
    "shop/Reader.java": "class Reader {\n    boolean fails() {\n        return FAIL_ON_UNKNOWN;\n    }\n}\n",
    "lib/from_clay.rs": "// from clay: clay from clay\nfn bake() {}\n" * 9,
}


@pytest.mark.parametrize(
    ("query", "path", "line"),
    [
        ("app/core/engine.py", "app/core/engine.py", 1),
        ("engine.py", "app/core/engine.py", 1),
        ('File "/srv/lib/app/core/engine.py", line 43, in run', "app/core/engine.py", 43),
        ("app/core/engine.py:43:5: error: engine is not defined", "app/core/engine.py", 43),
        ("DOWNLOAD_DELAY", "app/settings.py", 2),
        ("FAIL_ON_UNKNOWN", "shop/Feature.java", 3),
        ("download_delay", "app/slot.py", 1),
        ("TeaKettle", "lib/kettle.rs", 1),
        ("FromClay", "lib/mod.rs", 2),
    ],
)
def test_a_query_finds_the_line_the_file_and_the_constant_that_it_names(
    tmp_path_factory: pytest.TempPathFactory, query: str, path: str, line: int
) -> None:
    workspace = tmp_path_factory.getbasetemp() / "places.driftline"
    if not workspace.exists():
        write(workspace.with_suffix(""), PLACES)
        dl.index(str(workspace.with_suffix("")), workspace=str(workspace))
    best = found(workspace, query)[0]
    assert (best.path, best.line) == (path, line)


STEPS = "step(0)\n" * 40
MESSAGES = {
    "a.py": ('raise E(f"table schema version isn\'t known: {got!r}")', "error: table schema version isn't known: 12"),
    "b.go": ('return fmt.Errorf("\\"%s\\" has lost its parcel label", id)', 'ERROR "a-7" has lost its parcel label'),
    "c.js": ("throw new E(`basket of ${who} holds stale prices`)", "at 9:30: basket of Ann holds stale prices"),
    "d.rb": ("raise 'no printer is free for invoice ' + id", "RuntimeError: no printer is free for invoice 7"),
}
TOPICS = {
    "p.py": "# The version of a schema: a table has a known schema, each schema a version.",
    "q.go": "// A label of a parcel; a parcel without its label is lost.",
    "r.js": "// The prices in a basket; a basket holds no stale prices.",
    "s.rb": "# A free printer of invoices: an invoice waits until a printer is free for an invoice.",
}


@pytest.mark.parametrize(("path", "topic"), [*zip(MESSAGES, TOPICS, strict=True)])
def test_a_pasted_message_finds_the_string_literal_that_contains_it(
    tmp_path_factory: pytest.TempPathFactory, path: str, topic: str
) -> None:
    workspace = tmp_path_factory.getbasetemp() / "messages.driftline"
    if not workspace.exists():
        tree = {name: statement for name, (statement, _) in MESSAGES.items()} | TOPICS
        write(workspace.with_suffix(""), {name: f"{STEPS}{text}\n{STEPS}" for name, text in tree.items()})
        dl.index(str(workspace.with_suffix("")), workspace=str(workspace))
    message = MESSAGES[path][1]
    assert found(workspace, message)[0].path == path
    assert found(workspace, f"what is {message}?")[0].path == topic, "a question is not a message"


VERBATIM = {
    "hooks.md": "Skip the hook of a commit with --no-verify.",
    "releases.md": "Version v1.12.0 is the release of May.",
    "routes.go": 'mux.Handle("GET /users/{id}/keys", listed)',
    "tasks.json": '{"scripts": {"test:update": "jest -u"}}',
}
NOISE = {
    "a.md": "No commit: verify no commit, verify and verify; no git, no git commit, no --no-verify-host.",
    "b.md": "12 of 1, 0 of 12, 1 of 12: version 12, 1, 0. Version 0 of 12, 11.12.0, 1.12.0-rc.",
    "c.go": "func getUsersIdKeys(users, id, keys) { users.id.keys(); users.keys(id) } // get keys, get users",
    "d.json": '{"test": "update test", "update": "test update", "npm": ""}',
}


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("git commit --no-verify", "hooks.md"),
        ("git commit no verify", "a.md"),
        ("1.12.0", "releases.md"),
        ("version v1.12.0?", "releases.md"),
        ("version 1 12 0", "b.md"),
        ("GET /users/{id}/keys", "routes.go"),
        ("get users id keys", "c.go"),
        ("npm test:update", "tasks.json"),
        ("npm test update", "d.json"),
    ],
)
def test_an_option_a_version_a_route_and_a_key_are_found_as_they_are_written(
    tmp_path_factory: pytest.TempPathFactory, query: str, path: str
) -> None:
    workspace = tmp_path_factory.getbasetemp() / "verbatim.driftline"
    if not workspace.exists():
        write(workspace.with_suffix(""), VERBATIM | NOISE)
        dl.index(str(workspace.with_suffix("")), workspace=str(workspace))
    assert found(workspace, query)[0].path == path


def test_adjacent_lines_of_a_trace_are_separate_results(tmp_path: Path) -> None:
    write(tmp_path / "tree", PLACES)
    dl.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"))
    trace = " ".join(f'File "/srv/app/core/engine.py", line {line}, in run' for line in (43, 30))
    assert {hit.line for hit in found(tmp_path / "ws", trace, n_lines=0, top_k=2)} == {43, 30}


def test_a_line_with_all_words_is_not_labelled_weak_in_a_tiny_workspace(tmp_path: Path) -> None:
    write(tmp_path / "tree", {"a.txt": "heron\n"})
    dl.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"))
    for mode in ("text", "hybrid"):
        report = ask(tmp_path / "ws", "heron", mode=mode)
        assert report.results[0].label != "weak"
        assert NO_GOOD_MATCH not in report.notes
    assert found(tmp_path / "ws", "heron zebra", mode="text")[0].label == "weak"


@pytest.mark.parametrize(
    "query",
    [
        "knit purple response",
        "how do I knit a response",
        "wann blüht der response",
        "MerinoWoolResponse",
        "猫の餌の作り方",
    ],
)
def test_one_word_of_a_query_about_something_else_is_not_a_good_match(corpus: Path, query: str) -> None:
    report = ask(corpus, query)
    assert {hit.label for hit in report.results} == {"weak"}
    assert NO_GOOD_MATCH in report.notes
    assert found(corpus, "get http response")[0].label != "weak"


@pytest.mark.parametrize(
    "query", ["settings.py:" + "9" * 5_000, "settings.py:99999999999", "a/" * 20_000 + "settings.py:2", "a.b" * 20_000]
)
def test_huge_paths_and_line_numbers_do_not_fail(corpus: Path, query: str) -> None:
    ask(corpus, query)


@pytest.mark.parametrize("mode", MODES)
def test_max_distance_applies_in_each_mode(corpus: Path, mode: Mode) -> None:
    everything = found(corpus, "get http response", top_k=100, n_lines=0, mode=mode)
    distances = sorted(hit.distance for hit in everything)
    limit = sum(distances[len(distances) // 2 - 1 :][:2]) / 2
    near = found(corpus, "get http response", top_k=100, n_lines=0, mode=mode, max_distance=limit)
    assert near
    assert all(hit.distance <= limit for hit in near)
    assert {(h.source, h.path) for h in near} == {(h.source, h.path) for h in everything if h.distance <= limit}
    assert found(corpus, "get http response", mode=mode, max_distance=0.0) == ()
    scores = [hit.score for hit in everything]
    assert scores == sorted(scores, reverse=True)
    if mode == "vector":
        assert scores == pytest.approx([1 - hit.distance for hit in everything])
        assert {hit.label for hit in everything} == {None}
    else:
        assert {hit.label for hit in everything} <= {"strong", "likely", "weak"}


@pytest.mark.parametrize("mode", MODES)
def test_top_k_zero_returns_nothing(corpus: Path, mode: Mode) -> None:
    assert found(corpus, "get http response", mode=mode, top_k=0) == ()
    assert found(corpus, "\n ", mode=mode) == ()


@pytest.mark.parametrize("mode", ["hybrid", "vector"])
def test_a_large_top_k_returns_every_line(tmp_path: Path, tiny_model: Path, mode: Mode) -> None:
    """Every line is found, even if the words of its block do not help."""
    write(tmp_path / "tree", {"a.txt": "parser" + 15 * "\n" + "namespace\n", "b.txt": "subcommand\n"})
    dl.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"), model=str(tiny_model))
    lines = {(hit.path, hit.line) for hit in found(tmp_path / "ws", "parser", mode=mode, top_k=50)}
    assert lines == {("a.txt", 1), ("a.txt", 16), ("b.txt", 1)}


def test_a_list_begins_like_a_longer_one(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(dl.__file__).parents[1] / "tasks/search", tmp_path / "code", ignore=ignored)
    dl.index(str(tmp_path / "code"), workspace=str(tmp_path / "ws"))
    workspace = dl.open(str(tmp_path / "ws"))
    for query in ("how are windows merged", "BM25 of words", "clip long lines", "tests"):
        found = {top_k: [(hit.path, hit.line) for hit in workspace.search(query, top_k=top_k)] for top_k in (3, 10, 50)}
        assert (found[3], found[10]) == (found[50][:3], found[50][:10]), query
        labels = [str(hit.label) for hit in workspace.search(query, top_k=50)]
        assert labels == sorted(labels, key=["strong", "likely", "weak"].index), query


def test_a_query_without_results_says_so_in_every_interface(corpus: Path, driftline: Driftline) -> None:
    nonsense, at = "quantum marmalade trousers", ("--workspace", corpus)
    reported = driftline("search", nonsense, *at, "--json")
    assert {hit["label"] for hit in reported.json["results"]} == {"weak"}
    assert (reported.code, reported.json["notes"], reported.err) == (0, [NO_GOOD_MATCH], "")
    shown = driftline("search", nonsense, *at)
    count = len(reported.json["results"])
    assert (shown.out.startswith(f"No good match. The nearest 3 of {count}, all weak"), shown.err) == (True, "")
    lines = shown.out.splitlines()
    assert (len([line for line in lines if " weak" in line]), len([line for line in lines if line[:2] == "  "])) == (
        4,
        3,
    )
    verdict, *nearest = SearchAnswer().of(ask(corpus, nonsense)).splitlines()
    assert verdict.startswith(f"No good match. The nearest 3 of {count} results"), "the answer to MCP"
    assert len(hits_of("\n".join(nearest))) == len(nearest) == 3
    assert ask(corpus, "get http response").notes == ()
    assert "No good match" not in driftline("search", "get http response", *at).out
    exact = driftline("search", f'"retry(" {nonsense}', *at)
    assert (exact.out.count("client.py:5"), "No good match" in exact.out) == (1, False), "it matches exactly"


@pytest.mark.parametrize(
    ("query", "similar"),
    [
        ("connektion", "connection"),
        ("carots", "carrots"),
        ("brwead zzqx", "bread"),
        ("lissten()", "listen"),
        ("autmobiel", "automobile"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_most_similar_one(
    corpus: Path, driftline: Driftline, query: str, similar: str
) -> None:
    expected = f"No line contains any of the query's words. Similar: {similar}."
    assert ask(corpus, query).notes == (NO_GOOD_MATCH, expected)
    assert ask(corpus, query, mode="text").notes == (expected,)
    weak = driftline("search", query, "--workspace", corpus)
    assert weak.out.startswith("No good match")
    assert weak.err.endswith(f"{expected}\n")
    nothing = driftline("search", query, "--mode", "text", "--workspace", corpus)
    assert nothing.out == ""
    assert nothing.err.count(expected) == 1
    assert expected in SearchAnswer().of(ask(corpus, query))


@pytest.mark.parametrize("query", ["zzqx", "connektion of carots and salt", "connektion http", "a" * 5000, "猫"])
def test_no_similar_word_is_offered_if_there_is_none_or_the_query_has_a_known_one(corpus: Path, query: str) -> None:
    assert "Similar" not in " ".join(ask(corpus, query).notes)


CHAPTERS = {
    "cache.md": ("キャッシュは最近の結果を保存します。\n", "缓存保存最近的结果。\n"),
    "signature.md": ("パッケージの署名を検証します。\n", "验证软件包的签名。\n"),
    "printer.md": ("プリンタの設定を変更します。\n", "更改打印机的设置。\n"),
    "quota.md": ("ディスク容量を制限します。\n", "限制用户的磁盘空间。\n"),
}


@pytest.mark.parametrize(
    ("language", "queries"),
    [
        (0, ("キャッシュの保存", "署名の検証", "プリンタを設定する方法", "ディスクの容量制限")),
        (1, ("缓存结果", "如何验证签名", "打印机设置", "磁盘限制")),
    ],
    ids=["japanese", "chinese"],
)
def test_chinese_and_japanese_questions_find_their_chapter(
    tmp_path: Path, language: int, queries: tuple[str, ...]
) -> None:
    """They are found by character bigrams, because the default model is English."""
    write(tmp_path / "tree", {name: chapter[language] for name, chapter in CHAPTERS.items()})
    dl.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"))
    for mode in ("hybrid", "text"):
        assert [found(tmp_path / "ws", query, mode=mode)[0].path for query in queries] == list(CHAPTERS)
    assert not any(ask(tmp_path / "ws", query).notes for query in queries), "pairs across two words tell nothing"


MANUAL = {
    "server/tls.py": "def enable_tls(server, certificate):\n    server.load(certificate)\n    server.tls = True\n",
    "tests/test_tls.py": "def test_enable_tls(server):\n    enable_tls(server, CERTIFICATE)\n    assert server.tls\n",
    "docs/security.md": "# Security\n\nEnable TLS with a certificate in the settings of the server.\n",
}


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("how do I enable TLS", "docs/security.md"),
        ("How to enable TLS?", "docs/security.md"),
        ("can I test TLS", "docs/security.md"),
        ("Wie kann ich TLS enable", "docs/security.md"),
        ("what is TLS", "docs/security.md"),
        ("how is TLS enabled", "server/tls.py"),
        ("enable_tls", "server/tls.py"),
    ],
)
def test_the_manual_answers_how_to_use_something_and_the_source_how_it_works(
    tmp_path_factory: pytest.TempPathFactory, query: str, path: str
) -> None:
    workspace = tmp_path_factory.getbasetemp() / "manual.driftline"
    if not workspace.exists():
        write(workspace.with_suffix(""), MANUAL)
        dl.index(str(workspace.with_suffix("")), workspace=str(workspace))
    assert found(workspace, query)[0].path == path


@pytest.mark.parametrize("query", ["->", "%", "'", '"x" OR y:*', "a" * 5000, "\u0000", "日本語"])
def test_any_query_is_answered(corpus: Path, query: str) -> None:
    for mode in MODES:
        for hit in found(corpus, query, mode=mode, top_k=3):
            assert hit.text


def test_every_mode_gives_a_line_the_same_location(corpus: Path) -> None:
    for mode in MODES:
        for hit in found(corpus, "port server listen", mode=mode, where=WEB, top_k=20, n_lines=1):
            lines = FILES[hit.path].split("\n")
            assert lines[hit.line - 1] == hit.text
            assert list(hit.context) == lines[hit.start_line - 1 : hit.end_line]
            assert (hit.freshness, hit.line_now) == ("fresh", hit.line)


# Tenants and absolute paths.


@pytest.mark.parametrize("mode", MODES)
def test_tenants_are_searched_together_and_apart(corpus: Path, mode: Mode) -> None:
    both = found(corpus, "get http response", mode=mode, top_k=20)
    assert {hit.source.split("/")[0] for hit in both} == {"org:default", "org:other"}
    for tenant in ("org:default", "org:other"):
        where = LineFilter(entities=(Entity.parse(tenant),))
        assert {hit.source.split("/")[0] for hit in found(corpus, "get http response", mode=mode, where=where)} == {
            tenant
        }


def test_an_absolute_path_names_one_file(corpus: Path) -> None:
    web = corpus.parent / "web"
    for where in (
        LineFilter(paths=(str(web / "net/cars.md"),)),
        LineFilter(dirs=(str(web / "net"),), exts=("md",)),
        LineFilter(dirs=(f"{web}/net/",), paths=(f"{web}/./net/cars.md", "guide.md")),
    ):
        hits = found(corpus, "wheels of a car", where=where, mode="vector")
        assert [(hit.source.rpartition(":")[2], hit.path) for hit in hits] == [("web", "net/cars.md")]
    whole = found(corpus, "wheels of a car", where=LineFilter(dirs=(str(web),)), mode="vector", top_k=50)
    assert {hit.path for hit in whole} == set(FILES)
    assert found(corpus, "wheels", where=LineFilter(paths=("/nowhere/net/x.md",))) == ()


# Named workspaces.


CONFIG = """
workspace = "ws"
[[sources]]
uri = "web"
[[sources]]
uri = "docs"
[workspaces.overlapping]
dirs = ["web/net", "web", "web/food"]
[workspaces.narrow]
dirs = ["web/net", "docs/net", "./web/net/"]
[workspaces.mixed]
sources = ["source:docs"]
dirs = ["web/food"]
[workspaces.empty]
"""


@pytest.fixture(scope="module")
def config(corpus: Path) -> Path:
    path = corpus.parent / "driftline.toml"
    path.write_text(CONFIG)
    return path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("overlapping", {f"web:{path}" for path in FILES}),
        ("narrow", {"web:net/client.py", "web:net/cars.md", "docs:net/cars.md"}),
        ("mixed", {"web:food/soup.md", "web:food/it's 100%_done.md", "docs:net/cars.md", "docs:guide.md"}),
    ],
)
def test_a_view_contains_its_directories_and_sources(
    config: Path, driftline: Driftline, name: str, expected: set[str]
) -> None:
    at = ("--in", name, "--config", config, "--top-k", 50, "--json")
    for mode in ("vector", "hybrid"):
        results = driftline("search", "bread and wheels", *at, "--mode", mode).json["results"]
        assert {f"{hit['source'].rpartition(':')[2]}:{hit['path']}" for hit in results} == expected
    lines = [(hit["source"], hit["path"], hit["line"]) for hit in results]
    assert len(lines) == len(set(lines))
    within = driftline("search", "wheels", *at, "--glob", "net/*").json["results"]
    assert {f"{hit['source'].rpartition(':')[2]}:{hit['path']}" for hit in within} == {
        path for path in expected if ":net/" in path
    }


def test_an_empty_view_allows_nothing(config: Path, driftline: Driftline) -> None:
    outcome = driftline("search", "bread", "--in", "empty", "--config", config, "--json")
    assert (outcome.code, outcome.json["results"]) == (1, [])


def test_an_unknown_name_and_an_invalid_directory_are_refused(
    config: Path, corpus: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = driftline("search", "bread", "--in", "nothing", "--config", config)
    assert (outcome.code, outcome.out) == (2, "")
    assert "'nothing'" in outcome.err
    assert "overlapping, narrow, mixed, empty" in outcome.err
    for number, text in enumerate(('dirs = ["web/nowhere"]', 'dirs = ["elsewhere"]', 'dirs = ["web/net/cars.md"]')):
        wrong = corpus.parent / f"wrong{number}.toml"
        wrong.write_text(f"{CONFIG}[workspaces.bad]\n{text}\n")
        outcome = driftline("search", "bread", "--in", "bad", "--config", wrong)
        assert (outcome.code, outcome.out) == (2, ""), text
        assert "workspaces.bad" in outcome.err
    monkeypatch.chdir(os.sep)
    outcome = driftline("search", "bread", "--in", "bad", "--workspace", corpus)
    assert (outcome.code, outcome.out) == (2, "")


# Explanations.


@pytest.mark.parametrize("strategy", ["auto", "prefilter", "postfilter", "hybrid"])
def test_the_explanation_counts_what_the_filter_matches(corpus: Path, driftline: Driftline, strategy: str) -> None:
    at = ("--workspace", corpus, "--explain", "--strategy", strategy)
    total = dl.open(str(corpus)).status().total_lines
    counts = {"--dir": ("food", 2), "--ext": ("md", 5), "--glob": ("**/s*", 4), "--entity": ("org:other", 1)}
    for option, (value, matches) in counts.items():
        reported = driftline("search", "bread", option, value, *at, "--json").json["explanation"]
        assert (reported["lines"], reported["matches"], reported["hit_rate"]) == (total, matches, matches / total), (
            option
        )
        assert (reported["mode"], reported["strategy"], reported["index"]) == ("hybrid", strategy, None)
        assert reported["examined"] in {"postfilter": (total,), "hybrid": (matches, total)}.get(strategy, (matches,))
        assert 0 < reported["candidates"] <= matches
        assert all(seconds > 0 for seconds in reported["seconds"].values())
    shown = driftline("search", "bread", "--dir", "food", *at)
    assert f"2 of {total} lines match the filter" in shown.out
    assert "explanation" not in driftline("search", "bread", "--workspace", corpus, "--json").json


def test_a_search_without_results_can_be_explained(corpus: Path, driftline: Driftline) -> None:
    at = ("--workspace", corpus, "--explain", "--json")
    total = dl.open(str(corpus)).status().total_lines
    reported = driftline("search", "bread", "--dir", "nowhere", *at).json
    assert (reported["results"], reported["explanation"]["matches"], reported["explanation"]["lines"]) == ([], 0, total)
    assert reported["explanation"]["hit_rate"] == 0
    assert driftline("search", "bread", "--top-k", 0, *at).json["explanation"]["seconds"] == {}


# Freshness.


@pytest.mark.parametrize("mode", MODES)
def test_results_show_the_freshness_of_their_lines(tmp_path: Path, tiny_model: Path, mode: Mode) -> None:
    tree, workspace = tmp_path / "tree", tmp_path / "ws"
    before = "argument\nparser\nnamespace\n"
    write(tree, {f"{name}.txt": f"{before}{name}\n" for name in ("same", "moved", "stale", "gone", "binary")})
    dl.index(str(tree), workspace=str(workspace), model=str(tiny_model))
    (tree / "moved.txt").write_text(f"subcommand\n\n{before}moved\n")
    (tree / "stale.txt").write_text("argument\nparsers\nnamespace\n")
    (tree / "gone.txt").unlink()
    (tree / "binary.txt").write_bytes(b"parser\0\1")
    for n_lines in (0, 2):
        hits = found(workspace, "parser", mode=mode, n_lines=n_lines, top_k=20)
        reported = {hit.path: (hit.line, hit.text, hit.freshness, hit.line_now) for hit in hits if hit.text == "parser"}
        assert reported == {
            "same.txt": (2, "parser", "fresh", 2),
            "moved.txt": (2, "parser", "moved", 4),
            "stale.txt": (2, "parser", "stale", None),
            "gone.txt": (2, "parser", "gone", None),
            "binary.txt": (2, "parser", "stale", None),
        }
    shutil.rmtree(tree)
    for hit in found(workspace, "parser", mode=mode):
        assert hit.freshness in ("gone", None)
        assert hit.context


@pytest.mark.parametrize("mode", MODES)
def test_lines_not_yet_in_the_text_index_are_found(tmp_path: Path, tiny_model: Path, mode: Mode) -> None:
    tree, workspace = tmp_path / "tree", tmp_path / "ws"
    write(tree, {"kept.txt": "namespace\n"})
    dl.index(str(tree), workspace=str(workspace), model=str(tiny_model))
    write(tree, {"old.txt": "argument\nparser\n"})
    dl.index(str(tree), workspace=str(workspace), model=str(tiny_model))
    write(tree, {"new.txt": "subcommand\nexclusive_group\n", "old.txt": "argument\nprefix\n"})
    dl.index(str(tree), workspace=str(workspace), model=str(tiny_model))
    opened = dl.open(str(workspace)).storage
    assert coverage(opened.lines(opened.tenants()[0]).open())[TEXT].unindexed_rows > 0
    assert found(workspace, "exclusiveGroup", mode=mode)[0].path == "new.txt"
    assert found(workspace, "prefix", mode=mode)[0].text == "prefix"
    assert all(hit.text != "parser" for hit in found(workspace, "parser", mode=mode, top_k=50, n_lines=0))


def test_a_filter_that_nothing_passes_does_not_read_the_whole_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "tree", {"a.txt": "a connection of the pool\n" * 16 * 40})
    dl.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"))
    monkeypatch.setattr(ranked, "CANDIDATE_BLOCKS", 1)
    monkeypatch.setattr(ranked, "CANDIDATE_NEAR_BLOCKS", dict.fromkeys(ranked.CANDIDATE_NEAR_BLOCKS, 1))
    monkeypatch.setattr(ranked, "MAX_BLOCKS", 4)
    limits: list[int] = []
    near_blocks = ranked._Finder._near_blocks

    def counted(finder: ranked._Finder, limit: int) -> list[Scored]:
        limits.append(limit)
        return near_blocks(finder, limit)

    monkeypatch.setattr(ranked._Finder, "_near_blocks", counted)
    report = ask(tmp_path / "ws", "failed connection", kinds=("class",))
    assert not report.results
    assert report.notes[-1].startswith("Only the best blocks were searched")
    assert limits == [1, 4]

"""``driftline search --server`` and ``driftline.connect``: a server returns the same results as the workspace."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

import driftline as dl
from driftline.flows.client import Connection
from driftline.flows.web.access import Authentication, KnownTokens
from driftline.flows.web.api import Reader
from driftline.flows.web.server import Exposure, web_server
from driftline.storage.errors import UsageError
from driftline.storage.workspace.tokens import create_token, read_tokens
from driftline.storage.workspace.workspace import Workspace
from tests.support.web import ask, serving


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    folder = tmp_path_factory.mktemp("web-client")
    tree = folder / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "lease.py").write_text("def renew(lease):\n    return lease.renew()\n")
    (tree / "sub/test_lease.py").write_text("def test_renew():\n    assert renew(lease)\n")
    (tree / "many.txt").write_text("".join(f"many lines {number}\n" for number in range(20)))
    (tree / "sub/notes.md").write_text("who renews the lease of a run\n")
    dl.index(str(tree), workspace=str(folder / "ws"), executor="inline")
    return Workspace.open(str(folder / "ws"))


@pytest.fixture(scope="module")
def url(workspace: Workspace) -> Iterator[str]:
    with serving(web_server(Reader(workspace.reread), "127.0.0.1", 0)) as address:
        yield f"http://{address}/"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRIFTLINE_SERVER", raising=False)
    monkeypatch.delenv("DRIFTLINE_TOKEN", raising=False)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--top-k", 1, "-n", 0),
        ("--mode", "text", "--ext", "md"),
        ("--dir", "sub", "--no-tests"),
        ("--lang", "python", "--kind", "function", "--symbols"),
        ("--min-relevance", 0.9),
        ("-F", "many lines"),
        ("-E", "many +lines"),
        ("-F", "many lines", "--top-k", 3, "-n", 1),
        ('"many lines"',),
    ],
)
def test_a_server_prints_what_the_workspace_prints(
    workspace: Workspace, url: str, driftline: Callable[..., Any], options: tuple[object, ...]
) -> None:
    query = () if "many" in str(options) else ("renew the lease",)
    for form in ((), ("--json",)):
        here = driftline("search", *query, "--workspace", workspace.objects.uri, *options, *form)
        there = driftline("search", *query, "--server", url, *options, *form)
        assert (there.code, there.out) == (here.code, here.out)
        assert "renew" in here.out or "many lines 12" in here.out or "--top-k" in options


@pytest.mark.parametrize(
    "options", [("-F", "lease"), ("-E", "re.ew"), ("-F", "lease", "--files"), ("-F", "lease", "--count")]
)
def test_a_server_finds_exact_text_without_words(
    workspace: Workspace, url: str, driftline: Callable[..., Any], options: tuple[object, ...]
) -> None:
    options = (*options, "--top-k", 20, "-n", 0)
    here = driftline("search", "--workspace", workspace.objects.uri, *options)
    there = driftline("search", "--server", url, *options)
    assert (there.code, there.out) == (here.code, here.out)
    assert here.code == 0


def test_a_request_without_query_and_exact_text_is_refused(url: str) -> None:
    for parameters in ({}, {"q": " "}, {"files": True}):
        with pytest.raises(UsageError, match="The parameter q is missing"):
            Connection.to(url).get("search", parameters)


def test_the_environment_sets_the_server_unless_a_workspace_is_given(
    workspace: Workspace, url: str, driftline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFTLINE_SERVER", url)
    assert driftline("search", "lease", "--json").json["results"]
    assert driftline("search", "zebra", "--mode", "text").code == 1
    monkeypatch.setenv("DRIFTLINE_SERVER", "http://127.0.0.1:1")
    assert driftline("search", "lease", "--workspace", workspace.objects.uri).code == 0
    away = driftline("search", "lease", "--json")
    assert (away.code, away.json["error"]) == (3, "storage_error")


def test_wrong_use_is_reported_before_any_request(url: str, driftline: Callable[..., Any]) -> None:
    for wrong in (
        ("--server", url, "--workspace", "x"),
        ("--server", url, "--explain"),
        ("--server", url, "--rerank"),
        ("--server", url, "--config", "driftline.toml"),
        ("--server", "ftp://host"),
        ("--server", "http://user:hunter2@host"),
    ):
        outcome = driftline("search", "x", *wrong)
        assert (outcome.code, "hunter2" in outcome.err) == (2, False), wrong
    outcome = driftline("search", "x", "--server", url, "--top-k", 51, "--json")
    assert (outcome.code, outcome.json["error"]) == (2, "usage")
    assert "A server accepts --top-k from 1 to 50: 51" in outcome.json["message"]
    outcome = driftline("search", "x", "--server", url, "--lang", "klingon", "--json")
    assert (outcome.code, "Unknown language" in outcome.json["message"]) == (2, True)


def test_a_client_answers_with_the_types_of_the_library(workspace: Workspace, url: str) -> None:
    client = dl.connect(url)
    assert client.search("renew the lease", top_k=3) == dl.search(workspace, "renew the lease", top_k=3)
    for exact in ({}, {"count": True}, {"top_k": 1}):
        found = client.search('"lease"', **exact)
        assert found == dl.search(workspace, '"lease"', **exact)
        assert found.exact is not None
        assert found.exact.lines > 0
    hit = client.search("who renews", exts=["md"]).results[0]
    excerpt = client.excerpt(hit.source, hit.path, hit.line, n_lines=1)
    assert (excerpt.lines, excerpt.current) == (("who renews the lease of a run",), True)
    assert [each.path for each in client.documents()] == ["lease.py", "many.txt", "sub/notes.md", "sub/test_lease.py"]
    assert [each.lines for each in client.documents(dirs=["sub"], exts=["py"])] == [2]
    assert client.status().total_documents == len(list(client.documents()))
    assert [source["documents"] for source in client.sources()] == [4]
    assert client.branches() == []
    here = dl.open(workspace.objects.uri)
    assert [run.kind for run in client.runs()] == ["index"]
    assert client.runs(limit=1) == here.runs(limit=1)
    query = "SELECT path, lines, modified, 1 / 3.0 AS third FROM documents WHERE ext = ? AND lines > ? ORDER BY path"
    assert client.sql(query, ["md", 0]).equals(here.sql(query, ["md", 0]))
    assert client.sql("SELECT path FROM documents", within="org:other").num_rows == 0
    answer = client.connection.get("sql", {"q": "SELECT 0 / 0.0 AS odd, DATE '2026-01-02' AS day"})
    assert answer == {"columns": ["odd", "day"], "rows": [{"odd": None, "day": "2026-01-02"}]}
    for wrong in ("DROP VIEW documents", "SELECT range FROM range(100001)", "SELECT ?"):
        with pytest.raises(dl.UsageError):
            client.sql(wrong)
    with pytest.raises(dl.UsageError, match="text, numbers"):
        client.sql("SELECT ?", [object()])
    far = client.connection.get("sql", {"q": "SELECT TIMESTAMP '29000-01-01' AS far"})
    assert far["rows"] == [{"far": "29000-01-01 00:00:00"}]
    for odd in ("{}", "[" * 2_000, "[[1]]"):
        with pytest.raises(dl.UsageError, match="JSON list"):
            client.connection.get("sql", {"q": "SELECT 1", "parameters": odd})
    with pytest.raises(dl.UsageError, match="No such document"):
        client.excerpt(hit.source, "secret", 1)
    with pytest.raises(dl.UsageError, match="no memory"):
        client.search_memory("x")
    with pytest.raises(dl.BadEntity):
        client.search("x", sources=["<"])


def test_a_token_is_sent_and_never_shown(
    workspace: Workspace, driftline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    token, _ = create_token(workspace, scopes=["search"])
    known = KnownTokens(lambda: read_tokens(workspace.objects))
    exposure = Exposure(authentication=Authentication(known))
    with serving(web_server(Reader(workspace.reread), "127.0.0.1", 0, exposure)) as address:
        server = f"http://{address}"
        outcome = driftline("search", "lease", "--server", server, "--json")
        assert (outcome.code, outcome.json["error"]) == (2, "access_denied")
        assert "DRIFTLINE_TOKEN" in outcome.json["fix"]
        monkeypatch.setenv("DRIFTLINE_TOKEN", token)
        assert driftline("search", "lease", "--server", server).code == 0
        client = dl.connect(server, token)
        assert client.sources()
        assert token not in repr(client)
        with pytest.raises(dl.AccessDenied, match="scope"):
            client.search_memory("x")


class _Odd(http.server.BaseHTTPRequestHandler):
    """Is busy at first, then redirects, then sends an invalid response."""

    seen: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.seen.append(self.headers["Authorization"])
        status, headers = [(429, {"Retry-After": "0"}), (302, {"Location": "http://127.0.0.2:1/"})][len(self.seen) > 1]
        body = json.dumps({"error": "usage", "detail": "busy"}).encode() if status == 429 else b"<html>"
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def test_a_busy_server_is_retried_and_redirects_are_not_followed() -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), _Odd)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(dl.StorageError, match="not from a Driftline server"):
            dl.connect(f"http://127.0.0.1:{server.server_port}", "t").sources()
    finally:
        server.shutdown()
        server.server_close()
    assert _Odd.seen == ["Bearer t", "Bearer t"]


class _Kept(http.server.BaseHTTPRequestHandler):
    """Counts its connections, and closes one after /api/v1/last without saying so."""

    protocol_version = "HTTP/1.1"
    opened: ClassVar[int] = 0

    def setup(self) -> None:
        super().setup()
        type(self).opened += 1

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
        self.close_connection = self.path.endswith("last")

    def log_message(self, *_: object) -> None: ...


def test_requests_share_a_connection_until_it_or_the_client_is_closed() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Kept)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with dl.connect(f"http://127.0.0.1:{server.server_port}") as client:
            opened = []
            for route in ("first", "second", "last", "after"):
                client.connection.get(route)
                opened.append(_Kept.opened)
            client.close()
            client.connection.get("again")
    finally:
        server.shutdown()
        server.server_close()
    assert (opened, _Kept.opened) == ([1, 1, 1, 2], 3)


def test_a_server_that_does_not_answer_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = dl.connect(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.1)
        with pytest.raises(dl.StorageError, match="Cannot reach the server"):
            client.status()


def test_certificates_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    for name in ("empty.pem", "missing.pem"):
        with pytest.raises(dl.UsageError, match="Cannot read the certificates"):
            dl.connect("https://driftline.example.com", verify=tmp_path / name)


class _Paged(http.server.BaseHTTPRequestHandler):
    """A server behind a proxy that strips the prefix /driftline, or rewrites links to include it."""

    seen: ClassVar[list[str]] = []
    prefix: ClassVar[str]

    def do_GET(self) -> None:
        self.seen.append(self.path)
        self.send_response(200)
        if "cursor" not in self.path:
            self.send_header("Link", f'<{self.prefix}/api/v1/documents?cursor=x>; rel="next"')
        self.end_headers()
        self.wfile.write(b'{"documents": []}')

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.mark.parametrize("prefix", ["", "/driftline"])
def test_every_page_is_requested_below_the_prefix_of_the_url(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Paged, "prefix", prefix, raising=False)
    _Paged.seen.clear()
    server = http.server.HTTPServer(("127.0.0.1", 0), _Paged)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert not list(dl.connect(f"http://127.0.0.1:{server.server_port}/driftline", "t").documents())
    finally:
        server.shutdown()
        server.server_close()
    assert [path.partition("?")[0] for path in _Paged.seen] == ["/driftline/api/v1/documents"] * 2


@pytest.mark.parametrize(
    ("wrong", "right"), [("extensions", "ext"), ("limit", "top_k"), ("globs", "glob"), ("bogus", "top_k")]
)
def test_an_unknown_parameter_is_refused_with_the_nearest(url: str, wrong: str, right: str) -> None:
    with pytest.raises(dl.UsageError, match=f"Unknown parameter '{wrong}'") as refused:
        Connection.to(url).get("search", {"q": "lease", wrong: "1"})
    assert right in refused.value.fix


@pytest.mark.parametrize(
    "repeated",
    [
        "search?q=lease&q=lock",
        "search?q=lease&top_k=5&top_k=6",
        "search?q=a&tests=true&tests=false",
        "runs?limit=1&limit=2",
    ],
)
def test_a_parameter_with_one_value_is_refused_if_it_is_repeated(url: str, repeated: str) -> None:
    assert "has several values" in ask(urlsplit(url).netloc, f"/api/v1/{repeated}").body
    assert ask(urlsplit(url).netloc, "/api/v1/search?q=lease&ext=md&ext=py&glob=*.md&glob=*.py").status == 200


@pytest.mark.parametrize("text", ["gr%F6%DFe", "%ff", "a%C3", "lease&file=%E9.md"])
def test_parameters_that_are_not_utf_8_are_refused(url: str, text: str) -> None:
    answer = ask(urlsplit(url).netloc, f"/api/v1/search?q={text}")
    assert (answer.status, "are not UTF-8" in answer.body) == (400, True)


def test_an_empty_answer_says_why(url: str) -> None:
    client = dl.connect(url)
    found = client.search("renew the lease", globs=["*.zz"])
    assert (found.results, found.unmatched) == ((), ("glob '*.zz'",))
    assert client.search("lease", mode="vector", max_distance=0.0001).nearest is not None
    with pytest.raises(dl.UsageError, match="Unclosed"):
        client.search("lease", globs=["["])

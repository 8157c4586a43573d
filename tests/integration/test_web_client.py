"""``driftline search --server`` and ``driftline.connect``: a server returns the same results as the workspace."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

import driftline as dl
from driftline.flows.client import Connection
from driftline.flows.web.api import Reader
from driftline.flows.web.authentication import Authentication, KnownTokens
from driftline.flows.web.server import Exposure, web_server
from driftline.storage.workspace.tokens import create_token, read_tokens
from driftline.storage.workspace.workspace import Workspace
from tests.support.web import serving


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    folder = tmp_path_factory.mktemp("web-client")
    tree = folder / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "lease.py").write_text("def renew(lease):\n    return lease.renew()\n")
    (tree / "sub/test_lease.py").write_text("def test_renew():\n    assert renew(lease)\n")
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
    ],
)
def test_a_server_prints_what_the_workspace_prints(
    workspace: Workspace, url: str, driftline: Callable[..., Any], options: tuple[object, ...]
) -> None:
    here = driftline("search", "renew the lease", "--workspace", workspace.objects.uri, *options)
    there = driftline("search", "renew the lease", "--server", url, *options)
    assert (there.code, there.out) == (here.code, here.out)
    there = driftline("search", "renew the lease", "--server", url, *options, "--json")
    assert (
        there.json
        == driftline("search", "renew the lease", "--workspace", workspace.objects.uri, *options, "--json").json
    )


def test_the_environment_names_the_server_unless_a_workspace_is_named(
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
        ("--server", "ftp://host"),
        ("--server", "http://user:hunter2@host"),
    ):
        outcome = driftline("search", "x", *wrong)
        assert (outcome.code, "hunter2" in outcome.err) == (2, False), wrong
    outcome = driftline("search", "x", "--server", url, "--top-k", 51, "--json")
    assert (outcome.code, outcome.json["error"]) == (2, "usage")
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
    assert [each.path for each in client.documents()] == ["lease.py", "sub/notes.md", "sub/test_lease.py"]
    assert [each.lines for each in client.documents(dirs=["sub"], exts=["py"])] == [2]
    assert client.status().total_documents == len(list(client.documents()))
    assert [source["documents"] for source in client.sources()] == [3]
    assert client.branches() == []
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


@pytest.mark.parametrize(
    ("wrong", "right"), [("extensions", "ext"), ("limit", "top_k"), ("globs", "glob"), ("bogus", "top_k")]
)
def test_an_unknown_parameter_is_refused_with_the_nearest(url: str, wrong: str, right: str) -> None:
    with pytest.raises(dl.UsageError, match=f"Unknown parameter '{wrong}'") as refused:
        Connection.to(url).get("search", {"q": "lease", wrong: "1"})
    assert right in refused.value.fix


def test_an_empty_answer_says_why(url: str) -> None:
    client = dl.connect(url)
    found = client.search("renew the lease", globs=["*.zz"])
    assert (found.results, found.unmatched) == ((), ("glob '*.zz'",))
    assert client.search("lease", mode="vector", max_distance=0.0001).nearest is not None
    with pytest.raises(dl.UsageError, match="Unclosed"):
        client.search("lease", globs=["["])

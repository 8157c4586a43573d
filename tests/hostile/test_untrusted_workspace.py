"""Source records in a workspace cause no connection, because the workspace may be part of an unpacked folder."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import driftline as dl
from driftline.flows.actions import register_actions
from driftline.storage.errors import StorageError, UnsafeStore
from driftline.storage.sources.access import SourceAccess
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.documents import read_excerpt
from tests.servers.git_server import git
from tests.support.mcp import make_server

Driftline = Callable[..., Any]
TEXT = "the first line\n\nthe needle of the haystack\n\n***\nthe last line\n"


class Server:
    """A web server on loopback that counts requests and serves the indexed file."""

    def __init__(self) -> None:
        self.requests: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler) -> None:
                self.requests.append(handler.path)
                handler.send_response(200)
                handler.send_header("Content-Length", str(len(TEXT)))
                handler.end_headers()
                handler.wfile.write(TEXT.encode())

            do_HEAD = do_GET

            def log_message(handler, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    opened = Server()
    yield opened
    opened.close()


@pytest.fixture
def unpacked(
    tmp_path: Path, driftline: Driftline, server: Server, monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> Path:
    """Return the current folder, whose workspace was changed by ``configure``."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-key-of-the-build")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret-of-the-build")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server.address}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    for name in ("DRIFTLINE_CONFIG", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    docs = tmp_path / "unpacked" / "docs"
    docs.mkdir(parents=True)
    (docs / "a.txt").write_text(TEXT)
    workspace = tmp_path / "unpacked" / ".driftline"
    assert driftline("index", docs, "--workspace", workspace, "--model", tiny_model).code == 0
    shutil.rmtree(docs)
    monkeypatch.chdir(tmp_path / "unpacked")
    return workspace


def configure(workspace: Path, uri: str) -> None:
    (record,) = workspace.rglob("_source.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "uri": uri}))


def locations(server: Server) -> list[str]:
    return [f"http://{server.address}/docs", "s3://bucket/docs", f"simplecache::http://{server.address}/docs"]


def call(workspace: Path, tool: str, **arguments: Any) -> None:
    import anyio

    mcp = make_server(Workspace.open(str(workspace)))

    async def run() -> None:
        await mcp.call_tool(tool, arguments)

    anyio.run(run)


def test_no_interface_contacts_sources_that_only_the_workspace_names(
    unpacked: Path, server: Server, driftline: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    for uri in locations(server):
        configure(unpacked, uri)
        found = driftline("search", "needle", "--json").json["results"][0]
        assert (found["text"], found["freshness"]) == ("the needle of the haystack", None)
        assert driftline("search", "needle", "--workspace", unpacked, "--n-lines", "0", "--json").code == 0
        for command in (["status"], ["sources"], ["runs"], ["verify"], ["cleanup"], ["report", "--out", "r.html"]):
            driftline(*command)
        workspace = dl.open(str(unpacked)).storage
        assert dl.search(workspace, "needle").results
        assert not read_excerpt(workspace, "a.txt", 3, n_lines=2).current
        call(unpacked, "search_lines", query="needle")
        call(unpacked, "read_context", path="a.txt", line=3)
        call(unpacked, "index_status")
        actions: dict[str, Any] = {}
        register_actions(actions)
        assert actions["search.workspace_search"](state={}, workspace=str(unpacked), query="needle")["success"]
        actions["search.workspace_stats"](state={}, workspace=str(unpacked))
        assert server.requests == [], uri


def test_sources_that_the_caller_names_are_read(
    unpacked: Path, server: Server, driftline: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"http://{server.address}/docs"
    configure(unpacked, uri)
    workspace = dl.open(str(unpacked), sources=[uri]).storage
    assert dl.search(workspace, "needle", n_lines=2).results[0].context[4] == "***"  # not a line of the index
    assert server.requests == ["/docs/a.txt"]
    Path("driftline.toml").write_text(f'[[sources]]\nuri = "{uri}"\nentity = "source:docs"\n')
    server.requests.clear()
    driftline("search", "needle")
    assert server.requests == []  # nobody has trusted the file
    driftline("trust")
    driftline("search", "needle")
    assert server.requests == ["/docs/a.txt"]


def test_a_workspace_that_was_found_reads_no_local_files_outside_its_folder(
    unpacked: Path, driftline: Driftline, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.txt").write_text(TEXT)
    for uri in (str(outside), "/", f"{unpacked.parent}/../outside"):
        configure(unpacked, uri)
        assert driftline("search", "needle", "--json").json["results"][0]["freshness"] is None
    configure(unpacked, str(outside))
    named = driftline("search", "needle", "--workspace", unpacked, "--json").json["results"][0]
    assert named["freshness"] == "fresh"
    inside = unpacked.parent / "docs"
    inside.mkdir()
    (inside / "a.txt").write_text(TEXT)
    configure(unpacked, str(inside))
    assert driftline("search", "needle", "--json").json["results"][0]["freshness"] == "fresh"


def test_branches_of_a_workspace_that_was_found_contact_nothing_outside_its_folder(
    unpacked: Path, server: Server, driftline: Driftline, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.txt").write_text(TEXT)
    git(outside, "init", "-q", "-b", "main")
    git(outside, "add", ".")
    git(outside, "commit", "-qm", "first")
    git(outside, "remote", "add", "origin", f"http://{server.address}/evil.git")
    here = ("--entity", "source:outside", "--workspace", unpacked)
    assert driftline("index", outside, *here).code == 0
    (outside / "b.txt").write_text("the needle of the branch\n")
    git(outside, "add", ".")
    git(outside, "commit", "-qm", "second")
    assert driftline("index", outside, *here, "--branch", "feature").code == 0
    found = driftline("diff", "main", "feature", "needle of the branch", "--json").json["results"]
    assert [(hit["path"], hit["freshness"]) for hit in found] == [("b.txt", None)]
    pruned = driftline("branches", "prune", "--dry-run", "--json")
    assert (pruned.json["pruned"], server.requests) == ([], [])
    assert "outside the workspace's folder" in pruned.err
    named = driftline("diff", "main", "feature", "needle", "--workspace", unpacked, "--json").json["results"]
    assert named[0]["freshness"] == "fresh"
    driftline("branches", "prune", "--dry-run", "--workspace", unpacked)
    assert [path.partition("?")[0] for path in server.requests] == ["/evil.git/info/refs"]


def test_pipes_and_links_that_replace_files_are_not_read(unpacked: Path, driftline: Driftline, tmp_path: Path) -> None:
    inside, secret = unpacked.parent / "docs", tmp_path / "secret"
    inside.mkdir()
    secret.write_text(TEXT)
    configure(unpacked, str(inside))
    os.mkfifo(inside / "a.txt")
    assert driftline("search", "needle", "--json").json["results"][0]["freshness"] in (None, "gone")
    (inside / "a.txt").unlink()
    (inside / "a.txt").symlink_to(secret)
    assert driftline("search", "needle", "--json").json["results"][0]["freshness"] in (None, "gone")


def test_pipes_in_place_of_workspace_objects_do_not_abort_searches(unpacked: Path) -> None:
    opened = Workspace.open(str(unpacked))
    names = [info.path for info in opened.objects.list() if info.path.endswith(".json")]
    assert len(names) >= 2
    for name in names:
        (unpacked / name).unlink()
        os.mkfifo(unpacked / name)
        with pytest.raises(StorageError, match="not a regular file"):
            opened.objects.get(name)
        with pytest.raises(StorageError, match="not a regular file"):
            opened.objects.open_input(name)


def test_a_report_does_not_overwrite_the_target_of_a_link_in_the_workspace(
    unpacked: Path, driftline: Driftline, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.write_text("of the user")
    report = unpacked / "report.html"
    report.symlink_to(own)
    assert driftline("report").code == 0
    assert own.read_text() == "of the user"
    assert not report.is_symlink()
    assert "<html" in report.read_text()
    report.unlink()
    (report / "in the way").mkdir(parents=True)
    assert driftline("report").code == 3
    assert not [*unpacked.glob(".tmp-*")]


def test_a_lock_that_is_a_link_is_not_followed(unpacked: Path, tmp_path: Path) -> None:
    objects = Workspace.open(str(unpacked)).objects
    (unpacked / ".lock").unlink(missing_ok=True)
    (unpacked / ".lock").symlink_to(tmp_path / "outside")
    with pytest.raises(UnsafeStore, match="is a link"):
        objects.delete(["report.html"])
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("/home/me/code", True),
        ("/home/me/code/docs", True),
        ("/home/me/codes", False),
        ("/home/me", False),
        ("/home/me/code/../x", False),
        ("s3://bucket/docs", True),
        ("s3://bucket/docs/more", True),
        ("s3://bucket/docs2", False),
        ("https://bucket/docs", False),
        ("zip::s3://bucket/docs", False),
    ],
)
def test_access_to_sources_depends_on_names(uri: str, expected: bool) -> None:
    assert SourceAccess(("s3://bucket/docs",), "/home/me/code").allows(uri) is expected

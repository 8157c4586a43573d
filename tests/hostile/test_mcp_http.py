"""The MCP tools' HTTP server responds only to its own clients and closes other connections."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from driftline.flows import http_server
from driftline.flows.mcp_server import server as mcp_http
from driftline.storage.workspace.workspace import Workspace
from tests.support.mcp import make_server
from tests.support.waiting import PATIENCE_SECONDS, until

REQUEST_SECONDS = 1.0
MAX_CONNECTIONS = 40
PING = '{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
ACCEPTED = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


@pytest.fixture
def address(
    tmp_path: Path, driftline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, int]]:
    """The host and port of a running server that accepts 40 connections."""
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", MAX_CONNECTIONS)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/a.txt").write_text("a line\n")
    assert driftline("index", tmp_path / "tree", "--workspace", tmp_path / "ws").code == 0
    server = mcp_http.http_server(make_server(Workspace.open(str(tmp_path / "ws"))), "127.0.0.1", 0)
    thread = threading.Thread(target=server.run)
    thread.start()
    parts = urlsplit(server.url)
    assert parts.hostname is not None
    assert parts.port is not None
    yield parts.hostname, parts.port
    server.server.should_exit = True
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def ask(address: tuple[str, int], **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE_SECONDS)
    connection.request("POST", "/mcp", PING, ACCEPTED | headers)
    return connection.getresponse()


def test_only_own_names_and_origins_are_answered(address: tuple[str, int]) -> None:
    host, port = address
    for name in (f"{host}:{port}", f"localhost:{port}", f"[::1]:{port}"):
        assert ask(address, Host=name).status == 200
        assert ask(address, Host=name, Origin=f"http://{name}").status == 200
    foreign = (
        *(f"localhost:{port}.evil.com", f"localhost:{port}@evil.com", f"127.0.0.1:{port}.evil.com", "evil.com"),
        *(f"evil.com:{port}", "localhost", f"localhost:{port + 1}", f"localhost.:{port}", f"LOCALHOST:{port}x", "null"),
    )
    for name in foreign:
        assert ask(address, Host=name).status == 421, name
        assert ask(address, Origin=f"http://{name}").status == 403, name
    for origin in (f"https://localhost:{port}", "null", "file://", f"http://localhost:{port}/", "chrome-extension://x"):
        assert ask(address, Origin=origin).status == 403, origin


def test_no_session_is_kept(address: tuple[str, int]) -> None:
    for _ in range(5):
        response = ask(address)
        assert (response.status, response.getheader("mcp-session-id")) == (200, None)


def is_closed(connection: socket.socket, seconds: float) -> bool:
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize(
    "begun",
    [b"", b"POST /mcp HTTP/1.1\r\nHost: x", b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n{"],
    ids=["nothing", "half a head", "half a body"],
)
def test_an_incomplete_request_times_out(
    address: tuple[str, int], begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", REQUEST_SECONDS)
    with socket.create_connection(address) as connection:
        connection.sendall(begun.replace(b"x", f"{address[0]}:{address[1]}".encode()))
        started = time.monotonic()
        assert is_closed(connection, PATIENCE_SECONDS)
        assert time.monotonic() - started > REQUEST_SECONDS / 2


def test_a_trickling_request_times_out(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", REQUEST_SECONDS)
    with socket.create_connection(address) as connection:
        connection.sendall(b"POST /mcp HTTP/1.1\r\n")

        def is_given_up() -> bool:
            with suppress(OSError):  # closed since
                connection.sendall(b"X: y\r\n")
            return is_closed(connection, REQUEST_SECONDS / 10)

        until(is_given_up, "the end of the connection")


def test_a_flood_of_connections_is_held_to_a_limit_and_locks_nobody_out(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds, closed in ((PATIENCE_SECONDS, 300 - MAX_CONNECTIONS), (REQUEST_SECONDS, 300)):
        with monkeypatch.context() as patch, ExitStack() as stack:
            patch.setattr(http_server, "REQUEST_SECONDS", seconds)
            flood = [stack.enter_context(socket.create_connection(address)) for _ in range(300)]
            until(lambda: sum(is_closed(each, 0.001) for each in flood) == closed, f"{closed} closed")  # noqa: B023
    assert ask(address).status == 200

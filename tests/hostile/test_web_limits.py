"""The web server's limits: TLS, slow clients, too many clients, large requests, long responses, concurrent searches."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import http.cookies
import json
import logging
import re
import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from html import unescape
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import anyio
import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

import driftline as dl
from driftline.flows import http_server
from driftline.flows.http_server import MAX_BODY_BYTES, HttpServer, TimeoutProtocol, listen
from driftline.flows.web import guard
from driftline.flows.web.access import cookie
from driftline.flows.web.api import MAX_QUERY_CHARACTERS, Reader
from driftline.flows.web.routes import McpApp
from driftline.flows.web.server import MAX_HEAD_BYTES, Exposure, web_server
from driftline.storage.errors import StorageError, UsageError
from driftline.storage.option_table import MAX_SERVED_NAMES
from driftline.storage.workspace.workspace import Workspace
from tests.support.waiting import PATIENCE_SECONDS, until
from tests.support.web import ask, serving

ODD_NAMES = (
    "new\nline.md",
    "ends in one\n",
    "\n",
    "return\rcarriage.md",
    "a#b?c%0A.md",
    "separator\u2028.md",
    "a b;c.md",
)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Workspace:
    folder = tmp_path_factory.mktemp("web-limits")
    (folder / "tree").mkdir()
    (folder / "tree/notes.md").write_text("who renews the lease\n")
    (folder / "tree/long.md").write_text("".join(f"line {number} of a long document\n" for number in range(2_000)))
    for name in ODD_NAMES:
        (folder / "tree" / name).write_text("what stands in an odd file\n")
    dl.index(str(folder / "tree"), workspace=str(folder / "ws"), model=str(tiny_model), executor="inline")
    return Workspace.open(str(folder / "ws"))


def server(workspace: Workspace, exposure: Exposure | None = None) -> HttpServer:
    return web_server(Reader(workspace.reread), "127.0.0.1", 0, exposure)


@pytest.fixture
def address(workspace: Workspace) -> Iterator[str]:
    with serving(server(workspace)) as address:
        yield address


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)


def is_closed(connection: socket.socket) -> bool:
    """Return whether the peer closes within the timeout of the socket."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def refuses(address: str) -> bool:
    """Return whether the server closes a new connection at once; an accepted connection stays open longer."""
    with connected(address) as connection:
        connection.settimeout(0.5)
        return is_closed(connection)


def is_healthy(address: str) -> bool:
    try:
        return ask(address, "/healthz").status == 200
    except (OSError, http.client.HTTPException):
        return False


def is_refused(connection: socket.socket, parts: list[bytes]) -> bool:
    """Return whether the response to ``parts`` is a client error, or missing because the peer closed the connection."""
    try:
        for part in parts:
            connection.sendall(part)
        answer = connection.recv(65_536)
    except (ConnectionResetError, BrokenPipeError):
        return True
    return not answer or answer.startswith(b"HTTP/1.1 4")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("certificate")
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "driftline")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pkcs8 = serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, serialization.NoEncryption()))
    return str(folder / "cert.pem"), str(folder / "key.pem")


def test_tls_serves_clients_that_trust_the_certificate(workspace: Workspace, certificate: tuple[str, str]) -> None:
    made = server(workspace, Exposure(certificate=certificate[0], key=certificate[1]))
    assert made.url.startswith("https://")
    with serving(made) as address:
        trusting = ssl.create_default_context(cafile=certificate[0])
        connection = http.client.HTTPSConnection(address, timeout=PATIENCE_SECONDS, context=trusting)
        connection.request("GET", "/api/v1/search?q=lease&path=notes.md")
        answer = connection.getresponse()
        assert (answer.status, len(json.loads(answer.read())["results"])) == (200, 1)
        connection.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            http.client.HTTPSConnection(
                address, timeout=PATIENCE_SECONDS, context=ssl.create_default_context()
            ).request("GET", "/")
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(address, "/")  # in plain text


def test_a_certificate_without_its_key_is_refused(workspace: Workspace, certificate: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="certificate and its key"):
        server(workspace, Exposure(certificate=certificate[0]))


def test_an_incomplete_request_is_dropped(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, serving(server(workspace)) as address:
        patch.setattr(http_server, "REQUEST_SECONDS", 0.5)
        for sent in (
            b"",
            b"GET /api/v1/search?q=lea",
            f"GET / HTTP/1.1\r\nHost: {address}\r\nX-Slow: ".encode(),
            f"POST /sign-in HTTP/1.1\r\nHost: {address}\r\nContent-Length: 100\r\n\r\nnext".encode(),
        ):
            with connected(address) as connection:
                connection.sendall(sent)
                assert is_closed(connection), sent
        patch.undo()
        assert ask(address, "/healthz").status == 200


def test_connections_are_limited(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 3)
    made = server(workspace)
    with serving(made) as address:
        held = [connected(address) for _ in range(5)]
        assert [is_closed(each) for each in held[:2]] == [True, True]
        assert len(made.server.server_state.connections) == 3
        for each in held:
            each.close()
        until(lambda: not made.server.server_state.connections)
        assert ask(address, "/healthz").status == 200


def test_connections_whose_request_is_being_answered_are_kept(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 2)
    go_on, requested = threading.Event(), threading.Semaphore(0)

    def slow() -> Workspace:
        requested.release()
        go_on.wait(PATIENCE_SECONDS)
        return workspace.reread()

    with serving(web_server(Reader(slow), "127.0.0.1", 0)) as address, ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(ask, address, "/api/v1/status") for _ in range(2)]
        assert all(requested.acquire(timeout=PATIENCE_SECONDS) for _ in answers)
        with connected(address) as connection:
            assert is_closed(connection)
        go_on.set()
        assert [answer.result().status for answer in answers] == [200, 200]


def test_a_large_head_or_body_is_refused(address: str) -> None:
    with connected(address) as connection:
        connection.sendall(
            f"POST /sign-in HTTP/1.1\r\nHost: {address}\r\nContent-Length: {MAX_BODY_BYTES + 1}\r\n\r\n".encode()
        )
        assert connection.recv(65_536).startswith(b"HTTP/1.1 413")
    with connected(address) as connection:
        assert is_refused(connection, [f"GET / HTTP/1.1\r\nHost: {address}\r\nX: ".encode(), b"x" * MAX_HEAD_BYTES * 2])
    with connected(address) as connection:  # announces no length
        head = f"POST /sign-in HTTP/1.1\r\nHost: {address}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        assert is_refused(connection, [head, *[chunk] * (MAX_BODY_BYTES // 0x10000 + 4), b"0\r\n\r\n"])
    assert ask(address, "/healthz").status == 200


def test_parameters_have_limits_that_errors_name(address: str) -> None:
    for target, limit in (
        (f"q=x&glob=a&glob={'x' * 5_000}", "glob: String should have at most 4096"),
        (f"q={'x' * (MAX_QUERY_CHARACTERS + 1)}", "2000"),
        ("q=x&" + "&".join(["ext=py"] * (MAX_SERVED_NAMES + 1)), "100"),
        ("q=x&top_k=51", "50"),
        ("q=x&n_lines=21", "20"),
    ):
        answer = ask(address, f"/api/v1/search?{target}")
        assert (answer.status, limit in json.loads(answer.body)["detail"]) == (400, True), target


def test_no_request_waits_forever(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "ANSWER_SECONDS", 0.3)
    go_on = threading.Event()

    def slow() -> Workspace:
        go_on.wait(PATIENCE_SECONDS)
        return workspace.reread()

    with serving(web_server(Reader(slow), "127.0.0.1", 0)) as address:
        answer = ask(address, "/api/v1/status")
        assert (answer.status, json.loads(answer.body)["error"]) == (503, "storage_error")
        assert ask(address, "/healthz").status == 200
        go_on.set()


def test_few_searches_run_at_once_and_the_others_wait(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, started, go_on = list[anyio.CapacityLimiter](), [0], threading.Event()

    def turns_of(_: object) -> anyio.CapacityLimiter:
        if not turns:
            turns.append(anyio.CapacityLimiter(2))
        return turns[0]

    def newest() -> Workspace:
        started[0] += 1
        go_on.wait(PATIENCE_SECONDS)
        return workspace.reread()

    monkeypatch.setattr(guard, "_turns", turns_of)

    with serving(web_server(Reader(newest), "127.0.0.1", 0)) as address:
        statuses: list[int] = []
        clients = [
            threading.Thread(target=lambda: statuses.append(ask(address, "/api/v1/search?q=lease").status))
            for _ in range(8)
        ]
        for client in clients:
            client.start()
        until(lambda: turns and turns[0].statistics().tasks_waiting == 6 and started[0] == 2, "searches that wait")
        go_on.set()
        for client in clients:
            client.join(PATIENCE_SECONDS)
    assert statuses == [200] * 8


def test_many_viewers_of_the_index_page_share_one_read(workspace: Workspace) -> None:
    reads = Counter[str]()

    def run(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        reads[function.__name__] += 1
        return function(*args, **options)

    with serving(web_server(Reader(workspace.reread, run=run), "127.0.0.1", 0)) as address:
        assert len({ask(address, "/index").body for _ in range(5)}) == 1
    assert reads["index_view"] == 1


def test_a_thread_whose_client_gave_up_keeps_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(guard, "SEARCHES_AT_ONCE", 2)
    started, ended, go_on = [0], threading.Semaphore(0), threading.Event()

    def route() -> Response:
        started[0] += 1
        go_on.wait(PATIENCE_SECONDS)
        ended.release()
        return Response()

    search = guard.in_thread(route, searches=True)

    async def give_up() -> None:
        for _ in range(3):
            outcomes = await asyncio.gather(search(), search(), return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [StorageError] * 2
        assert started == [2]
        go_on.set()
        for _ in range(2):
            assert await asyncio.to_thread(ended.acquire, timeout=PATIENCE_SECONDS)
        monkeypatch.setattr(guard, "ANSWER_SECONDS", PATIENCE_SECONDS)
        assert (await search()).status_code == 200
        assert started == [3]  # requests that nobody waits for are not answered later

    asyncio.run(give_up())


def never_reading(address: str, target: str = "/static/style.css") -> socket.socket:
    """A connection from a client that sends many requests and reads no response."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    host, _, port = address.rpartition(":")
    connection.connect((host, int(port)))
    connection.settimeout(0.2)
    with contextlib.suppress(OSError):
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode() * 400)
    return connection


@pytest.mark.parametrize("answer_bytes", [100, 100_000, 20_000_000])
def test_clients_that_never_read_lose_their_connection(monkeypatch: pytest.MonkeyPatch, answer_bytes: int) -> None:
    monkeypatch.setattr(http_server, "WRITE_SECONDS", 0.5)
    answered = [0]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        answered[0] += 1
        await Response(b"x" * answer_bytes)(scope, receive, send)

    listener = listen("127.0.0.1", 0, what="The server")
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    running = uvicorn.Server(
        uvicorn.Config(app, http=http_server.timeout_protocol(), lifespan="off", timeout_keep_alive=1)
    )
    with serving(HttpServer(f"http://{address}", running, listener)):
        held = [never_reading(address) for _ in range(3)]
        until(lambda: answered[0] == 3 and not running.server_state.connections)
        assert answered[0] == 3  # not one for each request sent
        monkeypatch.setattr(http_server, "WRITE_SECONDS", PATIENCE_SECONDS)
        assert len(ask(address, "/").body) == answer_bytes
        for each in held:
            each.close()


def is_idle(made: HttpServer, client: socket.socket) -> bool:
    """Return whether the server has accepted the client's connection, and does not work on a request of it."""
    open_ones = cast("set[TimeoutProtocol]", made.server.server_state.connections)
    own = [each for each in [*open_ones] if each.client == client.getsockname()]
    if own:
        return all(each.waits_since is not None for each in own)
    return bool(select.select([client], [], [], 0)[0])  # an answer, or the end


def test_a_new_client_replaces_an_idle_one(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 4)
    for name in ("WRITE_SECONDS", "REQUEST_SECONDS"):
        monkeypatch.setattr(http_server, name, 3_600.0)
    for begin in (never_reading, connected):
        made = server(workspace)
        with serving(made) as address:
            held = []
            for _ in range(8):
                held.append(begin(address))
                # If the server were busy with all its connections, it would refuse the next one.
                until(partial(is_idle, made, held[-1]), "a server that has answered this client")
            assert ask(address, "/healthz").status == 200
            for each in held:
                each.close()


def test_one_client_cannot_take_all_connections(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS_OF_A_CLIENT", 2)
    made = server(workspace)
    with serving(made) as address:  # many clients share loopback
        held = [connected(address) for _ in range(5)]
        until(lambda: len(made.server.server_state.connections) == 5)
        for each in held:
            each.close()
    monkeypatch.setattr(TimeoutProtocol, "_is_shared", lambda self, address: False)
    made = server(workspace)
    with serving(made) as address:
        held = [connected(address) for _ in range(5)]
        assert [is_closed(each) for each in held[:3]] == [True] * 3
        assert len(made.server.server_state.connections) == 2
        for each in held:
            each.close()


@pytest.mark.parametrize(
    ("address", "shares"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.7", True),
        ("::ffff:10.0.0.7", True),
        ("10.0.1.7", False),
        ("fe80::1%eth0", False),
        ("2001:db8::1", False),
    ],
)
def test_loopback_and_the_trusted_proxy_are_shared_by_many_clients(address: str, shares: bool) -> None:
    protocol = http_server.timeout_protocol([ip_network("10.0.0.0/24")])
    assert protocol._is_shared(protocol.__new__(protocol), address) is shares


def test_a_client_that_reads_slowly_gets_its_whole_answer(address: str) -> None:
    with connected(address) as connection:
        target = "/d/project:tree/long.md"
        found = ask(address, "/api/v1/documents?limit=1")
        source = json.loads(found.body)["documents"][0]["source"]
        target = f"/d/{source}/long.md"
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
        received = bytearray()
        while part := connection.recv(20_000):
            received += part
            time.sleep(0.01)
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert f"content-length: {len(body)}".encode() in head.lower()


@pytest.mark.parametrize("part", ["one header", "many headers", "the query", "a cookie"])
@pytest.mark.parametrize(("bytes_", "is_answered"), [(-300, True), (1, False), (40_000, False), (400_000, False)])
def test_a_head_is_bounded_by_the_documented_number_of_bytes(
    address: str, part: str, bytes_: int, is_answered: bool
) -> None:
    size = MAX_HEAD_BYTES + bytes_
    query, more = "", ""
    if part == "the query":
        query = "?" + "x" * size
    elif part == "many headers":
        more = "".join(f"X-{number:05}: {'y' * 989}\r\n" for number in range(size // 1_000))
        more += f"X-rest: {'y' * (size % 1_000)}\r\n"
    else:
        more = f"{'Cookie' if part == 'a cookie' else 'X-Large'}: {'x' * size}\r\n"
    with connected(address) as connection:
        parts = [f"GET /healthz{query} HTTP/1.1\r\nHost: {address}\r\n{more}\r\n".encode()]
        assert is_refused(connection, parts) is not is_answered
    assert ask(address, "/healthz").status == 200


def test_no_route_lets_the_standard_library_parse_cookies(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        pytest.fail("http.cookies is asked")

    monkeypatch.setattr(http.cookies, "_unquote", fail)
    monkeypatch.setattr(http.cookies.BaseCookie, "load", fail)
    for target in ("/healthz", "/", "/index", "/api/v1/status", "/sign-in", "/static/style.css", "/nowhere"):
        for sent in ('driftline_token="' + "\\" * 60_000 + '"', 'a="' + "\\" * 60_000 + '"', ";" * 60_000):
            assert ask(address, target, Cookie=sent).status in (200, 404), target


@pytest.mark.parametrize(
    ("lines", "token"),
    [
        (["driftline_token=abc"], "abc"),
        (['a=1; driftline_token="abc"; b=2'], "abc"),
        (["a=1;driftline_token=abc;driftline_token=def"], "abc"),
        (["a=1", "driftline_token=abc"], "abc"),
        (["xdriftline_token=abc"], ""),
        (["driftline_token"], ""),
        ([], ""),
    ],
)
def test_one_cookie_is_read(lines: list[str], token: str) -> None:
    assert cookie(Headers(raw=[(b"cookie", line.encode()) for line in lines])) == token


def test_head_answers_as_get_without_a_body(address: str) -> None:
    documents = json.loads(ask(address, "/api/v1/documents").body)["documents"]
    source = documents[0]["source"]
    for target in (
        "/",
        "/index",
        "/healthz",
        "/readyz",
        "/api/v1/status",
        "/static/page.js",
        f"/d/{source}/notes.md",
        "/x",
    ):
        whole, head = ask(address, target), ask(address, target, method="HEAD")
        assert (head.status, head.body) == (whole.status, ""), target
        for name in ("content-type", "etag"):
            assert head.headers.get(name) == whole.headers.get(name), target
        assert int(head.headers["content-length"]) > 0, target


def test_a_method_that_a_page_lacks_is_answered_with_those_that_it_has(address: str) -> None:
    for target, allowed in (("/", "GET, HEAD"), ("/api/v1/search?q=x", "GET, HEAD"), ("/sign-in", "GET, HEAD, POST")):
        refused = ask(address, target, method="PUT")
        assert (refused.status, refused.headers["allow"]) == (405, allowed), target


def test_a_target_may_be_a_whole_address_of_this_server(address: str) -> None:
    plain = ask(address, "/api/v1/documents?limit=1")
    for whole in (f"http://{address}", f"HTTP://{address}"):
        assert ask(address, f"{whole}/api/v1/documents?limit=1").body == plain.body
        assert ask(address, f"{whole}?q=x").status == ask(address, "/?q=x").status
    for other in ("http://egret.example", "http://egret.example:80", f"http://x@{address}", "http://"):
        assert ask(address, f"{other}/api/v1/documents").status == 421, other
    assert ask(address, f"ftp://{address}/api/v1/documents").status == 404


def test_documents_with_odd_names_have_pages(address: str) -> None:
    documents = json.loads(ask(address, "/api/v1/documents").body)["documents"]
    source = documents[0]["source"]
    assert {*ODD_NAMES} <= {document["path"] for document in documents}
    for name in ODD_NAMES:
        answer = ask(address, f"/d/{source}/{quote(name)}")
        assert (answer.status, "what stands in an odd file" in answer.body) == (200, True), name
    page = ask(address, "/?q=odd+file").body
    links = {unescape(link) for link in re.findall(r'href="(/d/[^"]*)"', page)}
    assert links
    for link in links:
        assert ask(address, link.partition("#")[0]).status == 200, link


def test_a_line_past_the_end_does_not_exist_although_others_are_in_its_context(workspace: Workspace) -> None:
    ((source, _),) = workspace.readable_sources()
    with serving(server(workspace)) as address:
        for target in (f"/api/v1/excerpt?source={source}&path=long.md&n_lines=10&line=", f"/d/{source}/long.md?line="):
            assert ask(address, f"{target}2000").status == 200
            past = ask(address, f"{target}2001")
            assert (past.status, "has no line 2001: it has 2000 lines" in past.body) == (404, True), target


def mcp_server(workspace: Workspace) -> HttpServer:
    reader = Reader(workspace.reread)
    return web_server(reader, "127.0.0.1", 0, mcp=McpApp(reader))


def test_no_stream_is_held_open_for_clients_of_mcp(workspace: Workspace) -> None:
    with serving(mcp_server(workspace)) as address:
        for method in ("GET", "DELETE", "HEAD", "PUT"):
            answer = ask(address, "/mcp", method=method, Accept="text/event-stream")
            assert (answer.status, answer.headers["allow"]) == (405, "POST"), method


def test_a_truncated_body_is_not_a_server_error(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "driftline.access")
    accepts = "Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n"
    with serving(mcp_server(workspace)) as address:
        assert ask(address, "/mcp", method="POST", body="{").status == 400
        monkeypatch.setattr(http_server, "REQUEST_SECONDS", 3.0)
        with connected(address) as first, connected(address) as second:
            for path, connection in (("/mcp", first), ("/sign-in", second)):
                head = f"POST {path} HTTP/1.1\r\nHost: {address}\r\n{accepts}"
                connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
            assert is_closed(first)
            assert is_closed(second)
        monkeypatch.setattr(http_server, "REQUEST_SECONDS", PATIENCE_SECONDS)
        for path in ("/mcp", "/sign-in"):
            with connected(address) as connection:
                connection.sendall(f"POST {path} HTTP/1.1\r\nHost: {address}\r\n{accepts}".encode())
                chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
                body = b"Transfer-Encoding: chunked\r\n\r\n" + chunk * (MAX_BODY_BYTES // 0x10000 + 1)
                connection.sendall(body)
                assert connection.recv(65_536).startswith(b"HTTP/1.1 413"), path
    statuses = [vars(record)["fields"]["status"] for record in caplog.records if record.name == "driftline.access"]
    assert sorted(statuses) == [400, 413, 413, 499, 499]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]

"""Each limit of the web server: TLS, slow and too many clients, large requests, long answers, searches at once."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import driftline as dl
from driftline.flows.serving import impatient
from driftline.flows.web import threads
from driftline.flows.web.guard import MAX_BODY_BYTES
from driftline.flows.web.requests import MAX_NAMES, MAX_QUERY_CHARACTERS, Reader
from driftline.flows.web.serving import MAX_HEAD_BYTES, Exposure, WebServer, web_server
from driftline.storage.errors import UsageError
from driftline.storage.workspace.workspace import Workspace
from tests.support.waiting import PATIENCE_SECONDS, until
from tests.support.web import ask, serving


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Workspace:
    folder = tmp_path_factory.mktemp("web-limits")
    (folder / "tree").mkdir()
    (folder / "tree/notes.md").write_text("who renews the lease\n")
    dl.index(str(folder / "tree"), workspace=str(folder / "ws"), model=str(tiny_model), executor="inline")
    return Workspace.open(str(folder / "ws"))


def server(workspace: Workspace, exposure: Exposure | None = None) -> WebServer:
    return web_server(Reader(workspace.reread), "127.0.0.1", 0, exposure)


@pytest.fixture
def place(workspace: Workspace) -> Iterator[str]:
    with serving(server(workspace)) as place:
        yield place


def connected(place: str) -> socket.socket:
    host, _, port = place.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side closes within the timeout of the socket."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def refuses(place: str) -> bool:
    """Whether the server closes a new connection at once; one that it holds stays open for longer."""
    with connected(place) as connection:
        connection.settimeout(0.5)
        return is_closed(connection)


def is_healthy(place: str) -> bool:
    try:
        return ask(place, "/healthz").status == 200
    except (OSError, http.client.HTTPException):
        return False


def is_refused(connection: socket.socket, parts: list[bytes]) -> bool:
    """Whether what is sent gets an answer of a client error, or none because the other side has closed."""
    try:
        for part in parts:
            connection.sendall(part)
        answer = connection.recv(65_536)
    except (ConnectionResetError, BrokenPipeError):
        return True
    return not answer or answer.startswith(b"HTTP/1.1 4")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate of 127.0.0.1 that signs itself, and its key."""
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


def test_tls_serves_those_who_trust_the_certificate(workspace: Workspace, certificate: tuple[str, str]) -> None:
    made = server(workspace, Exposure(certificate=certificate[0], key=certificate[1]))
    assert made.url.startswith("https://")
    with serving(made) as place:
        trusting = ssl.create_default_context(cafile=certificate[0])
        connection = http.client.HTTPSConnection(place, timeout=PATIENCE_SECONDS, context=trusting)
        connection.request("GET", "/api/v1/search?q=lease")
        answer = connection.getresponse()
        assert (answer.status, len(json.loads(answer.read())["results"])) == (200, 1)
        connection.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            http.client.HTTPSConnection(place, timeout=PATIENCE_SECONDS, context=ssl.create_default_context()).request(
                "GET", "/"
            )
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(place, "/")  # in plain text


def test_a_certificate_without_its_key_is_refused(workspace: Workspace, certificate: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="certificate and its key"):
        server(workspace, Exposure(certificate=certificate[0]))


def test_a_request_that_does_not_arrive_is_dropped(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, serving(server(workspace)) as place:
        patch.setattr(impatient, "REQUEST_SECONDS", 0.5)
        for sent in (
            b"",
            b"GET /api/v1/search?q=lea",
            f"GET / HTTP/1.1\r\nHost: {place}\r\nX-Slow: ".encode(),
            f"POST /sign-in HTTP/1.1\r\nHost: {place}\r\nContent-Length: 100\r\n\r\nnext".encode(),
        ):
            with connected(place) as connection:
                connection.sendall(sent)
                assert is_closed(connection), sent
        patch.undo()
        assert ask(place, "/healthz").status == 200


def test_only_so_many_connections_are_held(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impatient, "MAX_CONNECTIONS", 3)
    with serving(server(workspace)) as place:
        held = [connected(place) for _ in range(3)]
        until(lambda: refuses(place), "the refusal of a fourth")
        for each in held:
            each.close()
        until(lambda: is_healthy(place), "the end of connections that are closed")


def test_a_large_head_or_body_is_refused(place: str) -> None:
    with connected(place) as connection:
        connection.sendall(
            f"POST /sign-in HTTP/1.1\r\nHost: {place}\r\nContent-Length: {MAX_BODY_BYTES + 1}\r\n\r\n".encode()
        )
        assert connection.recv(65_536).startswith(b"HTTP/1.1 413")
    with connected(place) as connection:
        assert is_refused(connection, [f"GET / HTTP/1.1\r\nHost: {place}\r\nX: ".encode(), b"x" * MAX_HEAD_BYTES * 2])
    with connected(place) as connection:  # announces no length
        head = f"POST /sign-in HTTP/1.1\r\nHost: {place}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        assert is_refused(connection, [head, *[chunk] * (MAX_BODY_BYTES // 0x10000 + 4), b"0\r\n\r\n"])
    assert ask(place, "/healthz").status == 200


def test_parameters_have_limits_that_errors_name(place: str) -> None:
    for target, limit in (
        (f"q={'x' * (MAX_QUERY_CHARACTERS + 1)}", "2000"),
        ("q=x&" + "&".join(["ext=py"] * (MAX_NAMES + 1)), "100"),
        ("q=x&top_k=51", "50"),
        ("q=x&n_lines=21", "20"),
    ):
        answer = ask(place, f"/api/v1/search?{target}")
        assert (answer.status, limit in json.loads(answer.body)["detail"]) == (400, True), target


def test_nobody_waits_for_an_answer_without_end(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "ANSWER_SECONDS", 0.3)
    go_on = threading.Event()

    def slow() -> Workspace:
        go_on.wait(PATIENCE_SECONDS)
        return workspace.reread()

    with serving(web_server(Reader(slow), "127.0.0.1", 0)) as place:
        answer = ask(place, "/api/v1/status")
        assert (answer.status, json.loads(answer.body)["error"]) == (503, "storage_error")
        assert ask(place, "/healthz").status == 200
        go_on.set()


def test_few_searches_run_at_once_and_the_others_wait(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SEARCHES_AT_ONCE", 2)
    running, most, changed = [0], [0], threading.Condition()

    def newest() -> Workspace:
        with changed:
            running[0] += 1
            most[0] = max(most[0], running[0])
            changed.notify_all()
            assert changed.wait_for(lambda: most[0] >= 2, PATIENCE_SECONDS), "no two searches at once"
        time.sleep(0.1)
        with changed:
            running[0] -= 1
        return workspace.reread()

    with serving(web_server(Reader(newest), "127.0.0.1", 0)) as place:
        statuses: list[int] = []
        clients = [
            threading.Thread(target=lambda: statuses.append(ask(place, "/api/v1/search?q=lease").status))
            for _ in range(8)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join(PATIENCE_SECONDS)
    assert statuses == [200] * 8
    assert most[0] == 2

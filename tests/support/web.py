"""A running web server for tests, and individual requests to it."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from driftline.flows.http_server import HttpServer
from tests.support.waiting import PATIENCE_SECONDS


@dataclass(frozen=True)
class Answer:
    """A response; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: str


@contextmanager
def serving(server: HttpServer) -> Iterator[str]:
    """Serve in a thread until the end of the block; yields ``host:port``."""
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield urlsplit(server.url).netloc
    finally:
        server.server.should_exit = True
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def ask(
    address: str, target: str, *, token: str = "", method: str = "GET", body: str | None = None, **headers: str
) -> Answer:
    """Return the response to one request; underscores in ``headers`` names become hyphens."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_SECONDS)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if token:
        sent["Authorization"] = f"Bearer {token}"
    try:
        connection.request(method, target, body, sent)
        response = connection.getresponse()
        received = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, received, response.read().decode())
    finally:
        connection.close()

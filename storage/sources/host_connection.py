"""Request a page from a git host within a total time: a socket's timeout limits only the wait for each byte."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, cast

from driftline.storage.errors import StorageError, without_secrets

CONNECT_SECONDS = 60.0
"""Limit for the connection, and for each wait for more bytes."""
_CHUNK = 1 << 16


class Connection:
    """Sends requests one at a time, through the configured proxy. Follows no redirects; every status is an answer."""

    def __init__(self, name: str, most_bytes: int, most_seconds: float) -> None:
        self._name, self._most_bytes, self._most_seconds = name, most_bytes, most_seconds
        self._opener = urllib.request.OpenerDirector()
        for handler in (urllib.request.ProxyHandler(), _Handler(self)):
            self._opener.add_handler(handler)
        self.limit = _Limit()

    def get(self, url: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        """Return the status, the headers and the body. If there is none, the status is 0 and the body is the reason.

        Raises StorageError if the body is too large.
        """
        try:
            with self._limited() as limit:
                request = urllib.request.Request(url, headers=dict(headers))
                answer: HTTPResponse
                with self._opener.open(request, timeout=CONNECT_SECONDS) as answer:
                    body = self._body(answer)
                if limit.is_over:
                    raise OSError
        except (OSError, ValueError, HTTPException) as error:
            if self.limit.is_over:
                return 0, {}, b"the answer arrives too slowly"
            # The text of an HTTPException is the host's, which may repeat the token.
            text = "" if isinstance(error, HTTPException) else without_secrets(str(error))
            return 0, {}, (text or type(error).__name__).encode("utf-8", "replace")
        return answer.status, cast("Mapping[str, str]", answer.headers), body

    @contextmanager
    def _limited(self) -> Iterator[_Limit]:
        """Limit the time of one request."""
        self.limit = limit = _Limit()
        timer = threading.Timer(self._most_seconds, limit.end)
        timer.daemon = True
        timer.start()
        try:
            yield limit
        finally:
            timer.cancel()

    def _body(self, answer: HTTPResponse) -> bytes:
        parts, size = list[bytes](), 0
        while chunk := answer.read(_CHUNK):
            parts.append(chunk)
            size += len(chunk)
            if size > self._most_bytes:
                raise StorageError(f"A page from the host has more than {self._most_bytes:,} bytes", self._name)
        return b"".join(parts)


class _Limit:
    """The sockets of one request, which ``end`` shuts down, even those that are connected later."""

    def __init__(self) -> None:
        self.is_over = False
        self._sockets: list[socket.socket] = []

    def note(self, connected: socket.socket) -> None:
        self._sockets.append(connected)
        if self.is_over:
            self.end()

    def end(self) -> None:
        self.is_over = True
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Handler(urllib.request.AbstractHTTPHandler):
    """Opens connections whose sockets are noted in the limit of ``of``."""

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_

    def __init__(self, of: Connection) -> None:
        super().__init__()
        self._of = of

    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(partial(_noted, HTTPConnection, self._of), req)

    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(partial(_noted, HTTPSConnection, self._of), req)


def _noted(kind: type[HTTPConnection], of: Connection, host: str, **options: Any) -> HTTPConnection:
    """Return a connection whose socket is noted in the limit of ``of``."""

    class Noted(kind):  # type: ignore[misc, valid-type]  # HTTPConnection or HTTPSConnection
        def connect(self) -> None:
            super().connect()
            of.limit.note(self.sock)

    found: HTTPConnection = Noted(host, **options)
    return found

"""A proxy in front of the S3 server that injects network and store faults at a given rate and seed."""

from __future__ import annotations

import enum
import random
import socket
import struct
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler

from tests.servers.proxies import Proxy, Upstream

SLOW_SECONDS = 0.3
"""The pause in the middle of a slow body."""
_CLOSE_AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER that makes ``close`` send a reset."""


class Fault(enum.StrEnum):
    """A kind of fault."""

    REFUSED_500 = "500"
    REFUSED_503 = "503"
    RESET = "reset before the request is carried out"
    LOST = "carried out, and the answer is lost"
    CUT = "a body that ends too early"
    SLOW = "a body that pauses"


_ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>Injected.</Message></Error>"
_REFUSALS = {Fault.REFUSED_500: (500, "InternalError"), Fault.REFUSED_503: (503, "SlowDown")}


class FlakyProxy(Proxy):
    """A ``Proxy`` that injects ``faults`` into a share ``rate`` of all requests; ``met`` counts them."""

    def __init__(self, upstream: Upstream, *, rate: float, seed: int, faults: tuple[Fault, ...] = tuple(Fault)) -> None:
        super().__init__(upstream)
        self.RequestHandlerClass = _FlakyHandler
        self.rate = rate
        self.met: Counter[Fault] = Counter()
        self._faults = faults
        self._chance = random.Random(seed)
        self._lock = threading.Lock()

    def draw(self) -> Fault | None:
        with self._lock:
            if self._chance.random() >= self.rate:
                return None
            fault = self._chance.choice(self._faults)
            self.met[fault] += 1
            return fault

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients hang up on broken responses: that is not a proxy error."""


class _FlakyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _forward(self) -> None:
        proxy = self.server
        assert isinstance(proxy, FlakyProxy)
        proxy.requests.append((self.command, self.path))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = proxy.draw()
        if fault is Fault.RESET:
            self._reset()
            return
        if fault in _REFUSALS:
            status, code = _REFUSALS[fault]
            self._answer(status, {"Content-Type": "application/xml"}, _ERROR.format(code=code).encode(), None)
            return
        answer, data = proxy.ask(
            self.command, proxy.path_upstream(self.path), proxy.headers_upstream(self.headers), body
        )
        if fault is Fault.LOST:
            self._reset()
            return
        self._answer(answer.status, proxy.headers_back(answer), data, fault)

    def _answer(self, status: int, headers: dict[str, str], data: bytes, fault: Fault | None) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if not any(name.lower() == "content-length" for name in headers):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        half = len(data) // 2
        if fault is Fault.CUT and data:
            self.wfile.write(data[:half])
            self.wfile.flush()
            self.close_connection = True
            return
        if fault is Fault.SLOW:
            self.wfile.write(data[:half])
            self.wfile.flush()
            time.sleep(SLOW_SECONDS)
            data = data[half:]
        self.wfile.write(data)

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _CLOSE_AT_ONCE)
        self.close_connection = True

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _forward

    def log_message(self, format: str, *args: object) -> None:
        pass

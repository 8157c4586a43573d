"""A proxy in front of the S3 server that simulates the latency of a bucket and records requests in order. It forwards
bytes unchanged, so signatures stay valid, and adds little time of its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

LINE_LIMIT = 2**26
"""Maximum number of bytes in a message's head or line, which asyncio reads at once."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its response; times are in seconds on a monotonic clock."""

    method: str
    path: str
    range: str
    sent_bytes: int
    received_bytes: int
    started: float
    ended: float


def rounds(exchanges: Sequence[Exchange]) -> int:
    """Return the length of the longest chain of exchanges in which each started after the previous one ended."""
    count, ended = 0, 0.0
    for exchange in sorted(exchanges, key=lambda each: each.ended):
        if exchange.started >= ended:
            count, ended = count + 1, exchange.ended
    return count


@dataclass(slots=True)
class DelayingProxy:
    """Delays responses from the server at ``upstream`` by ``delay_seconds``; ``exchanges`` records them."""

    upstream: str
    delay_seconds: float
    exchanges: list[Exchange]
    endpoint: str = ""

    def take(self) -> list[Exchange]:
        """Return the exchanges since the last call, sorted by start."""
        taken, self.exchanges = self.exchanges, []
        return sorted(taken, key=lambda each: each.started)

    async def serve(self, ready: threading.Event, ended: asyncio.Event) -> None:
        """Serve on loopback until ``ended``."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=LINE_LIMIT, backlog=512)
        self.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await ended.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for connection in others:
            connection.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        url = urlsplit(self.upstream)
        from_server, to_server = await asyncio.open_connection(url.hostname, url.port, limit=LINE_LIMIT)
        with suppress(asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                started = time.monotonic()
                method, path, *_ = head.split(b" ", 2)
                fields = _fields(head)
                body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
                to_server.write(head + body)
                answer = await _answer(from_server, method)
                await asyncio.sleep(max(0.0, started + self.delay_seconds - time.monotonic()))
                exchange = (method.decode(), path.decode(), fields.get(b"range", b"").decode(), len(body), len(answer))
                self.exchanges.append(Exchange(*exchange, started, time.monotonic()))
                writer.write(answer)
                await writer.drain()
        writer.close()
        to_server.close()


async def _answer(reader: asyncio.StreamReader, method: bytes) -> bytes:
    """Return a full message: head and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    status = head.split(b" ", 2)[1]
    if method == b"HEAD" or status in (b"204", b"304"):
        return head
    if status == b"100":
        return head + await _answer(reader, method)
    fields = _fields(head)
    if fields.get(b"transfer-encoding") != b"chunked":
        return head + await reader.readexactly(int(fields.get(b"content-length", b"0")))
    parts = [head]
    while True:
        size = await reader.readuntil(b"\r\n")
        parts += [size, await reader.readexactly(int(size, 16) + 2)]
        if int(size, 16) == 0:
            return b"".join(parts)


def _fields(head: bytes) -> dict[bytes, bytes]:
    pairs = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


@contextmanager
def delaying(upstream: str, delay_seconds: float) -> Iterator[DelayingProxy]:
    """Run a proxy in front of the server at the URL ``upstream``."""
    proxy = DelayingProxy(upstream, delay_seconds, [])
    loop, ready, ended = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(proxy.serve(ready, ended),), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()

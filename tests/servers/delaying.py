"""A proxy in front of the S3 server that is as far away as a bucket, and tells how often and in which order it is asked."""

from __future__ import annotations

import http.client
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.servers.proxies import Proxy, Upstream


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer; times in seconds of a monotonic clock."""

    method: str
    path: str
    range: str
    received_bytes: int
    sent_bytes: int
    started: float
    ended: float


def rounds(exchanges: Sequence[Exchange]) -> int:
    """The length of the longest chain of exchanges of which each began after the one before it had ended."""
    count, ended = 0, 0.0
    for exchange in sorted(exchanges, key=lambda each: each.ended):
        if exchange.started >= ended:
            count, ended = count + 1, exchange.ended
    return count


class DelayingProxy(Proxy):
    """A ``Proxy`` whose answers take at least ``delay_seconds``; ``exchanges`` holds what was asked."""

    request_queue_size = 256

    def __init__(self, upstream: Upstream, *, delay_seconds: float) -> None:
        super().__init__(upstream)
        self.delay_seconds = delay_seconds
        self.exchanges: list[Exchange] = []

    def ask(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[http.client.HTTPResponse, bytes]:
        started = time.monotonic()
        answer, data = super().ask(method, path, headers, body)
        time.sleep(max(0.0, started + self.delay_seconds - time.monotonic()))
        asked = next((value for name, value in headers.items() if name.lower() == "range"), "")
        self.exchanges.append(Exchange(method, path, asked, len(body), len(data), started, time.monotonic()))
        return answer, data

    def take(self) -> list[Exchange]:
        """The exchanges since the last call, in the order of their beginnings."""
        taken, self.exchanges = self.exchanges, []
        return sorted(taken, key=lambda each: each.started)

"""Ports for servers that cannot choose one by themselves."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress

LOWEST, HIGHEST = 11_000, 32_000
"""Below the ephemeral ports: a connection could take one of them before a slow server opens it."""


def free_ports(count: int) -> list[int]:
    """Return distinct ports on which nobody listens."""
    chance, found = random.SystemRandom(), list[int]()
    with ExitStack() as stack:
        while len(found) < count:
            with suppress(OSError):
                server = stack.enter_context(socket.create_server(("127.0.0.1", chance.randrange(LOWEST, HIGHEST))))
                found.append(server.getsockname()[1])
    return found


def free_port() -> int:
    """Return a port on which nobody listens."""
    return free_ports(1)[0]

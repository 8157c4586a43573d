"""The socket that a server listens on."""

from __future__ import annotations

import ipaddress
import socket

from driftline.storage.errors import UsageError


def listen(host: str, port: int, *, what: str, only_loopback: str = "") -> socket.socket:
    """Listen on an address; port 0 chooses a free port. ``what`` names the server in errors.

    Raises UsageError for an address that is in use, or that other machines can reach where ``only_loopback`` says what
    to do instead.
    """
    place = f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if only_loopback and not ipaddress.ip_address(address[0]).is_loopback:
            raise UsageError(f"{what} listens on loopback only", place, only_loopback)
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # clients that read the URL can connect at once
    except OSError as error:
        raise UsageError(f"{what} cannot listen on this address", place, f"Choose another --port ({error}).") from error
    return listener


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach the socket."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def own_places(host: str, listener: socket.socket) -> list[str]:
    """``host:port`` of the socket first, then the other names of loopback, if it is one of them."""
    shown, port = f"[{host}]" if ":" in host else host, listener.getsockname()[1]
    names = [shown] + (["127.0.0.1", "localhost", "[::1]"] if is_loopback(listener) else [])
    return [f"{name}:{port}" for name in names]

"""A smart-HTTP git server on loopback: ``git http-backend`` behind an HTTP server in this process."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from tests.servers.serving import serving

IDENTITY = ("-c", "user.name=test", "-c", "user.email=test@localhost")


def git(folder: Path, *arguments: str, text: bytes | None = None) -> str:
    """Run git in ``folder`` as a user with an identity; return its output."""
    command = ["git", *IDENTITY, "-c", "protocol.file.allow=always", *arguments]
    return subprocess.run(command, cwd=folder, input=text, check=True, capture_output=True).stdout.decode().strip()


@dataclass(frozen=True, slots=True)
class SearchCase:
    """A request: its path with query, and its ``Authorization``."""

    path: str
    authorization: str


Reply = tuple[int, dict[str, str], bytes]
"""The status, headers and body of a response."""


class GitServer(ThreadingHTTPServer):
    """Serves the repositories under ``root``; if ``authorization`` is set, requests must send it.

    ``redirects`` maps path prefixes to target URLs. Paths with a prefix in ``dumb`` are served as files. ``api`` takes
    precedence if it is set and returns something. ``clock`` determines the ``Date`` header.
    """

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.authorization = ""
        self.redirects: dict[str, str] = {}
        self.dumb: tuple[str, ...] = ()
        self.requested: list[SearchCase] = []
        self.clock: Callable[[], float] = time.time
        self.api: Callable[[str, Mapping[str, str]], Reply | None] | None = None

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def url(self, name: str) -> str:
        """Return the URL of a repository, as a source."""
        return f"git+http://{self.host}/{name}"

    def create(self, name: str) -> Path:
        """Create an empty bare repository whose default branch is ``main``."""
        folder = self.root / name
        git(self.root, "init", "--quiet", "--bare", "--initial-branch=main", str(folder))
        return folder


@dataclass
class Checkout:
    """A work tree whose ``push`` publishes its commits."""

    folder: Path
    remote: Path
    count: int = field(default=0)

    @classmethod
    def of(cls, remote: Path, folder: Path) -> Checkout:
        git(remote.parent, "init", "--quiet", "--initial-branch=main", str(folder))
        git(folder, "remote", "add", "origin", str(remote))
        return cls(folder, remote)

    def write(self, path: str, text: str) -> None:
        location = self.folder / path
        location.parent.mkdir(parents=True, exist_ok=True)
        location.write_text(text)

    def push(self, branch: str = "main") -> str:
        """Commit everything, force-push it, and return the commit."""
        self.count += 1
        git(self.folder, "add", "--all", "--force")
        git(self.folder, "commit", "--quiet", "--allow-empty", "-m", f"change {self.count}")
        git(self.folder, "push", "--quiet", "--force", "origin", f"HEAD:refs/heads/{branch}")
        return git(self.folder, "rev-parse", "HEAD")


class _Handler(BaseHTTPRequestHandler):
    server: GitServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, format: str, *arguments: object) -> None: ...

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(self.server.clock() if timestamp is None else timestamp)

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requested.append(SearchCase(self.path, self.headers.get("Authorization", "")))
        answered = self.server.api(self.path, dict(self.headers.items())) if self.server.api else None
        if answered is not None:
            self._send(*answered)
            return
        target = next((to for start, to in self.server.redirects.items() if self.path.startswith(start)), None)
        if target is not None:
            self._send(302, {"Location": target + self.path}, b"")
        elif self.server.authorization and self.headers.get("Authorization") != self.server.authorization:
            self._send(401, {"WWW-Authenticate": 'Basic realm="git"'}, b"")
        elif self.path.startswith(self.server.dumb or ("\0",)):
            path = self.server.root / unquote(self.path.partition("?")[0]).lstrip("/")
            try:
                self._send(200, {}, path.read_bytes())
            except (FileNotFoundError, IsADirectoryError):  # a push may remove it meanwhile
                self._send(404, {}, b"")
        else:
            self._run_backend(body)

    def _run_backend(self, body: bytes) -> None:
        path, _, query = self.path.partition("?")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
            "GIT_PROJECT_ROOT": str(self.server.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "PATH_INFO": unquote(path),
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        answer = subprocess.run(
            ["git", "http-backend"], check=False, input=body, env=environment, capture_output=True
        ).stdout
        head, _, content = answer.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        status = int(headers.pop("Status", "200").split()[0])
        self._send(status, headers, content)

    def _send(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def running_git_server(root: Path) -> Iterator[GitServer]:
    """Run a server for the repositories under ``root``."""
    with serving(GitServer(root)) as server:
        yield server

"""A driftline.toml in an unpacked folder cannot send the user's credentials to its author's endpoint."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from driftline.flows.config.driftline_toml import open_config

Driftline = Callable[..., Any]

TOKEN = "the-token-of-the-build"
COMMANDS = (
    *(
        ("search", "line"),
        ("status",),
        ("sources",),
        ("runs",),
        ("verify",),
        ("compact",),
        ("cleanup",),
        ("ci", "docs"),
    ),
    *(("index", "--all"), ("index", "docs"), ("remove", "source:docs"), ("memory", "list", "org:default")),
    *(("search", "line", "--in", "all"), ("report", "--out", "report.html")),
)


class Endpoint:
    """A server that keeps the first bytes of each connection and responds with an error."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self.received.append(connection.recv(65_536))
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    yield server
    server.close()


@pytest.fixture
def unpacked(tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder; its configuration refers to an endpoint and a build variable."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("CI_TOKEN", TOKEN)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "DRIFTLINE_CONFIG", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "unpacked"
    (folder / "docs").mkdir(parents=True)
    (folder / "docs/a.txt").write_text("a line\n")
    (folder / "driftline.toml").write_text(
        f"""
workspace = "s3://bucket/workspace"
[[sources]]
uri = "docs"
[workspaces.all]
dirs = ["docs"]
[storage_options]
aws_access_key_id = "${{CI_TOKEN}}"
aws_secret_access_key = "${{CI_TOKEN}}"
aws_endpoint_url = "http://127.0.0.1:{endpoint.port}"
aws_region = "us-east-1"
aws_allow_http = "true"
[memory.catalog]
url = "postgresql://user:${{CI_TOKEN}}@127.0.0.1:{endpoint.port}/catalog"
"""
    )
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_untrusted_configuration_is_ignored(
    unpacked: Path, endpoint: Endpoint, driftline: Driftline, command: tuple[str, ...]
) -> None:
    # A workspace next to the file: no real store is contacted.
    (unpacked / "driftline.toml").write_text(
        (unpacked / "driftline.toml").read_text().replace('"s3://bucket/workspace"', '".driftline"')
    )
    done = driftline(*command)
    assert endpoint.received == []
    assert TOKEN not in done.out + done.err


def test_trust_ends_when_the_configuration_changes(unpacked: Path, endpoint: Endpoint, driftline: Driftline) -> None:
    trusted = driftline("trust")
    assert (trusted.code, TOKEN in trusted.out) == (0, False)
    assert "aws_access_key_id = ${CI_TOKEN}" in trusted.out
    assert driftline("status").code != 0
    assert any(TOKEN.encode() in request for request in endpoint.received)
    file = unpacked / "driftline.toml"
    for change in (lambda: file.write_text(file.read_text() + "\n"), lambda: driftline("trust", "--revoke")):
        driftline("trust")
        change()
        endpoint.received.clear()
        file.write_text(file.read_text().replace('"s3://bucket/workspace"', '".driftline"'))
        driftline("status")
        assert endpoint.received == []


@pytest.mark.parametrize(
    ("home", "state", "shipped"),
    [(None, None, "~/.local/state"), (".", None, ".local/state"), ("/nowhere", "state", "state")],
)
def test_a_folder_cannot_bring_its_own_mark_of_trust(
    unpacked: Path,
    driftline: Driftline,
    monkeypatch: pytest.MonkeyPatch,
    home: str | None,
    state: str | None,
    shipped: str,
) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    assert driftline("trust").code == 0
    assert not open_config(None).is_withheld
    shutil.copytree(unpacked.parent / "state", unpacked / shipped)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name, value in (("HOME", home), ("XDG_STATE_HOME", state)):
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    assert open_config(None).is_withheld
    if state is None:
        refused = driftline("trust")
        assert (refused.code, "The home folder is unknown" in refused.err) == (2, True)


def test_a_file_below_a_name_that_is_not_utf8_can_be_trusted(
    unpacked: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = unpacked / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    shutil.copy(unpacked / "driftline.toml", folder)
    monkeypatch.chdir(folder)
    assert open_config(None).is_withheld
    assert driftline("trust").code == 0
    assert not open_config(None).is_withheld


@pytest.mark.parametrize("how", ["--config", "DRIFTLINE_CONFIG"])
def test_a_named_configuration_needs_no_trust(
    unpacked: Path, endpoint: Endpoint, driftline: Driftline, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: tuple[str, ...] = ("--config", "driftline.toml")
    if how == "DRIFTLINE_CONFIG":
        monkeypatch.setenv(how, "driftline.toml")
        arguments = ()
    driftline("index", "--all", *arguments)
    assert any(TOKEN.encode() in request for request in endpoint.received)


def test_deploying_asks_for_trust(unpacked: Path, driftline: Driftline) -> None:
    refused = driftline("deploy")
    assert (refused.code, "driftline trust" in refused.err) == (2, True)

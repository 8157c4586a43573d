"""Every command ends correctly on a store that fails one request in ten, with each kind of fault."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driftline.storage.entities import Entity
from driftline.storage.objects import bucket, store_requests
from driftline.storage.workspace.workspace import Workspace
from tests.servers.flaky import Fault, FlakyProxy
from tests.servers.serving import serving
from tests.support.oracle import WORDS, assert_in_step, files_below, save_tiny_model

RATE = 0.1
FILES = 12
LINES = 5
ENTRIES = 4
ACME = ("--within", "org:acme")
LOCAL, REMOTE = "org:acme/project:p/source:local", "org:acme/project:p/source:remote"


def page(n: int, edition: int) -> str:
    return "".join(f"{WORDS[(n * LINES + line) * 2 + edition]}\n" for line in range(LINES))


def fill(tree: Path, edition: int) -> None:
    for n in range(FILES):
        (tree / f"{n}.txt").write_text(page(n, edition if n % 2 else 0))


class Commands:
    """The command line on one workspace; each command must end well."""

    def __init__(self, driftline: Callable[..., Any], workspace: str) -> None:
        self._driftline, self._workspace = driftline, workspace

    def __call__(self, *arguments: object) -> Any:
        done = self._driftline(*arguments, "--json", "--workspace", self._workspace)
        assert done.code == 0, f"{arguments}: {done.out} {done.err}"
        assert "Traceback" not in done.err
        return done.json

    def answers(self, query: str, path: str, line: int) -> None:
        best = self("search", query, "--top-k", "1")["results"][0]
        assert (best["path"], best["line"]) == (path, line), best


def use_memory(commands: Commands) -> None:
    for n in range(ENTRIES):
        commands("memory", "put", f"key {n}", WORDS[n], "--entity", "org:acme/user:u")
    commands("memory", "delete", "key 0", *ACME)
    assert [commands("memory", "get", f"key {n}", *ACME)["value"] for n in range(1, ENTRIES)] == [*WORDS[1:ENTRIES]]
    assert [entry["key"] for entry in commands("memory", "list", "org:acme")["entries"]] == [
        f"key {n}" for n in range(1, ENTRIES)
    ]
    assert commands("memory", "search", WORDS[3], *ACME)["results"][0]["record"]["key"] == "key 3"


@pytest.mark.parametrize("seed", [1])
def test_each_command_succeeds_although_one_request_in_ten_fails(
    driftline: Callable[..., Any],
    s3_bucket: str,
    s3_server: Any,
    tmp_path: Path,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree, workspace = tmp_path / "tree", f"{s3_bucket}/workspace"
    tree.mkdir()
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path / 'catalog.sqlite'}")
    for module in (bucket, store_requests):  # there are a hundred faults
        monkeypatch.setattr(module, "FIRST_DELAY_SECONDS", 0.02)
    direct = os.environ["AWS_ENDPOINT_URL"]

    def upload() -> None:
        client: Any = s3_server.client()
        prefix = s3_bucket.removeprefix(f"s3://{s3_server.bucket}/")
        for name, data in files_below(tree).items():
            client.put_object(Bucket=s3_server.bucket, Key=f"{prefix}/tree/{name}", Body=data)

    with serving(FlakyProxy(s3_server, rate=RATE, seed=seed)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        commands = Commands(driftline, workspace)
        first = ["--model", save_tiny_model(tmp_path / "model")]
        for edition in range(2):
            fill(tree, edition)
            upload()
            commands("index", tree, "--entity", LOCAL, "--executor", "inline", *first)
            report = commands("index", f"{s3_bucket}/tree", "--entity", REMOTE, "--executor", "inline")["sources"][0]
            assert (report["documents_total"], report["lines_total"]) == (FILES, FILES * LINES)
            first = []
        commands.answers(page(3, 1).split()[2], "3.txt", 3)
        use_memory(commands)
        assert commands("status")["total_documents"] == 2 * FILES
        commands("compact")
        commands.answers(page(5, 1).split()[4], "5.txt", 5)
        commands("cleanup", "--delete", "--max-age-seconds", "0")
        assert commands("verify")["findings"] == []
        assert set(proxy.met) == set(Fault)
        monkeypatch.setenv("AWS_ENDPOINT_URL", direct)
    for source in (LOCAL, REMOTE):
        assert_in_step(Workspace.open(workspace), Entity.parse(source), files_below(tree))

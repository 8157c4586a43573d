"""``driftline token``, and the ``driftline web`` options that need tokens."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import driftline as dl
from tests.support.processes import forked_command


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tree and its index."""
    folder = tmp_path_factory.mktemp("indexed")
    (folder / "tree").mkdir()
    (folder / "tree/a.txt").write_text("a line\n")
    dl.index(folder / "tree", workspace=folder / "ws")
    return folder


@pytest.fixture
def workspace(indexed: Path, tmp_path: Path) -> Path:
    shutil.copytree(indexed, tmp_path, dirs_exist_ok=True)
    return tmp_path / "ws"


def test_a_token_is_shown_once(workspace: Path, driftline: Callable[..., Any]) -> None:
    ws = ("--workspace", workspace)
    created = driftline("token", "create", *ws, "--within", "org:acme", "--scope", "memory, search", "--expires", "2d")
    token = created.out.strip()
    assert token.startswith("driftline_")
    assert token not in created.err
    (listed,) = driftline("token", "list", *ws, "--json").json["tokens"]
    assert (listed["within"], listed["scopes"]) == ("org:acme", ["search", "memory"])
    ends = datetime.fromisoformat(listed["expires"]) - datetime.now(UTC)
    assert timedelta(days=1.9) < ends < timedelta(days=2.1)
    assert listed["id"] in driftline("token", "list", *ws).out
    assert driftline("token", "revoke", listed["id"], *ws).out == f"revoked {listed['id']}\n"
    assert driftline("token", "list", *ws, "--json").json["tokens"] == []
    assert driftline("token", "create", *ws, "--expires", "never", "--json").json["expires"] is None


@pytest.mark.parametrize(
    "wrong",
    [
        ("token", "create", "--scope", "write"),
        ("token", "create", "--scope", ","),
        ("token", "create", "--expires", "soon"),
        ("token", "create", "--expires", "0d"),
        ("token", "create", "--expires", "99999999999d"),
        ("cleanup", "--max-age-seconds", "1e15"),
        ("compact", "--retention-seconds", "1e15"),
        ("branches", "prune", "--older-than-days", "1e10"),
        ("token", "create", "--within", "acme"),
        ("token", "create", "--within", "project:alpha/planet:x"),
        ("token", "revoke", "deadbeef"),
        ("web", "--require-token"),
        ("web", "--host", "0.0.0.0"),
        ("web", "--allowed-host", "driftline.example.com"),
        ("web", "--trusted-proxy-header", "X-User"),
        ("web", "--trusted-proxy", "10.0.0.1"),
        ("web", "--trusted-proxy-header", "X-User", "--trusted-proxy", "proxy"),
        ("web", "--tls-certificate", "missing.pem"),
        ("web", "--tls-certificate", "missing.pem", "--tls-key", "missing.pem"),
        ("web", "--within", "acme"),
    ],
)
def test_wrong_use_is_reported(workspace: Path, driftline: Callable[..., Any], wrong: tuple[str, ...]) -> None:
    outcome = driftline(*wrong, "--workspace", workspace, *(["--port", 0] if wrong[0] == "web" else []))
    assert outcome.code == 2, outcome
    assert len(outcome.err.splitlines()) == 1


ACCESS = """
workspace = "ws"
[access]
users = {{ann = ["{entity}"]}}
"""


@pytest.mark.parametrize(
    ("entity", "options", "complaint"),
    [
        ("org:acme", (), "[access] requires a proxy that authenticates users"),
        ("acme", ("--trusted-proxy-header", "X-User", "--trusted-proxy", "10.0.0.1"), "'acme'"),
    ],
)
def test_impossible_access_rules_stop_the_server(
    workspace: Path,
    driftline: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    entity: str,
    options: tuple[str, ...],
    complaint: str,
) -> None:
    monkeypatch.chdir(workspace.parent)
    Path("driftline.toml").write_text(ACCESS.format(entity=entity))
    outcome = driftline("web", "--port", 0, *options)
    assert (outcome.code, complaint in outcome.err) == (2, True), outcome


def test_rules_apply_for_any_spelling_of_the_workspace_and_are_not_lost_elsewhere(
    workspace: Path,
    driftline: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    monkeypatch.chdir(workspace.parent)
    file = Path("driftline.toml").absolute()
    file.write_text(ACCESS.format(entity="org:acme"))
    for spelling in ("ws", "ws/", "./ws", f"{workspace}/", f"file://{workspace}", f"file://{workspace}/"):
        outcome = driftline("web", "--port", 0, "--workspace", spelling)
        assert (outcome.code, "[access] requires a proxy" in outcome.err) == (2, True), outcome
    proxy = ("--trusted-proxy-header", "X-User", "--trusted-proxy", "10.0.0.1")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))  # where the file is not found
    outcome = driftline("web", "--port", 0, "--workspace", workspace, *proxy)
    assert (outcome.code, "Users of the proxy have no access rules" in outcome.err) == (2, True), outcome
    monkeypatch.setenv("DRIFTLINE_CONFIG", str(file))
    outcome = driftline("web", "--port", 0, "--workspace", f"file://{workspace}")
    assert (outcome.code, "[access] requires a proxy" in outcome.err) == (2, True), outcome


def test_a_fleet_with_readers_stops_a_server_without_a_proxy(
    workspace: Path, driftline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace.parent)
    fleet = '[[fleet]]\nprovider = "github"\norg = "acme"\ntoken = "${T}"\nreaders = "{login}"\n'
    Path("driftline.toml").write_text(f'workspace = "ws"\n{fleet}')
    outcome = driftline("web", "--port", 0)
    assert (outcome.code, "A fleet with readers requires a proxy" in outcome.err) == (2, True), outcome


@pytest.mark.parametrize("within", ["org:default", "source:tree", "org:default/project:default/user:u"])
def test_every_command_understands_the_same_boundaries(
    workspace: Path, driftline: Callable[..., Any], within: str
) -> None:
    ws = ("--within", within, "--workspace", workspace)
    assert driftline("token", "create", *ws, "--json").code == 0
    documents = driftline("sql", "SELECT path FROM documents", *ws, "--json").json["rows"]
    assert [row["path"] for row in documents] == ([] if "user:" in within else ["a.txt"])
    assert dl.sql(workspace, "SELECT path FROM documents", within=within).num_rows == len(documents)
    command = [str(forked_command()), "mcp", *map(str, ws)]
    served = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (served.returncode, served.stderr) == (0, "")  # the client left, which ends the reader process


def test_boundaries_are_in_the_hierarchy_of_memory_or_of_sources(
    workspace: Path, driftline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace.parent)
    Path("driftline.toml").write_text('workspace = "ws"\n[memory.hierarchy]\nlevels = ["company", "team"]\n')
    assert driftline("trust").code == 0
    for within in ("org:default", "source:tree", "company:acme"):
        assert driftline("token", "create", "--within", within).code == 0, within
    assert driftline("token", "create", "--within", "team:alpha").code == 2


def test_a_wildcard_address_needs_a_name(workspace: Path, driftline: Callable[..., Any]) -> None:
    assert driftline("token", "create", "--workspace", workspace).code == 0
    outcome = driftline("web", "--workspace", workspace, "--host", "0.0.0.0", "--port", 0)
    assert (outcome.code, "--allowed-host" in outcome.err) == (2, True)

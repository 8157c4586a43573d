"""A deleted or damaged lease file does no harm: tokens continue from the index."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driftline.storage.layout import lease_path
from driftline.storage.workspace.workspace import Workspace

Driftline = Callable[..., Any]


@pytest.fixture
def indexed(tmp_path: Path, driftline: Driftline) -> Callable[..., Any]:
    """Index a new state of a two-file tree; four runs have been made before."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "same.txt").write_text("a line that stays\n")

    def index(text: str) -> Any:
        (tree / "a.txt").write_text(f"{text} is what the line says\n")
        return driftline("index", tree, "--workspace", tmp_path / "workspace", "--indexes", "none", "--json")

    for number in range(4):
        assert index(f"run {number}").code == 0
    return index


def lease_of(workspace: Path) -> Path:
    [(entity, _)] = Workspace.open(str(workspace)).sources()
    return workspace / lease_path(entity)


def test_after_a_lease_file_is_deleted_the_next_run_commits(
    tmp_path: Path, indexed: Callable[..., Any], driftline: Driftline
) -> None:
    workspace = tmp_path / "workspace"
    lease = lease_of(workspace)
    for token in (5, 6):
        lease.unlink()
        done = indexed(f"run {token} after a loss")
        assert (done.code, done.json["sources"][0]["changed"]) == (0, 1)
        assert json.loads(lease.read_bytes())["token"] == token
    hits = driftline("search", "run 6 after a loss", "--workspace", workspace, "--mode", "vector", "--json").json
    assert [hit["text"] for hit in hits["results"] if hit["path"] == "a.txt"] == [
        "run 6 after a loss is what the line says"
    ]
    assert driftline("verify", "--workspace", workspace).code == 0


def test_the_error_for_a_damaged_lease_names_a_fix_that_works(
    tmp_path: Path, indexed: Callable[..., Any], driftline: Driftline
) -> None:
    lease = lease_of(tmp_path / "workspace")
    lease.write_bytes(lease.read_bytes()[:40])
    refused = indexed("refused")
    assert (refused.code, refused.json["error"]) == (2, "corrupt_file")
    assert "Delete it while no run is active" in refused.json["message"]
    lease.unlink()
    assert indexed("accepted").code == 0
    assert json.loads(lease.read_bytes())["token"] == 5
    assert driftline("verify", "--workspace", tmp_path / "workspace").code == 0

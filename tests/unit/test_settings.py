"""The default workspace of a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from driftline.flows.config.driftline_toml import config_of
from driftline.flows.config.which_workspace import workspace_for_indexing, workspace_for_reading
from driftline.flows.config.workspace_names import local_path
from driftline.flows.runs import pull
from driftline.storage.environment import user_folder
from driftline.storage.errors import UsageError, WorkspaceNotFound
from driftline.storage.objects import block_cache
from driftline.storage.sources import mirror


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a project with a nested source and no workspace."""
    (tmp_path / "project" / "src" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def test_the_option_wins_over_the_environment(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIFTLINE_WORKSPACE", "s3://bucket/environment")
    assert workspace_for_reading("s3://bucket/option") == "s3://bucket/option"
    assert workspace_for_indexing("s3://bucket/option", ["src"]) == "s3://bucket/option"


def test_the_environment_wins_over_a_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / ".driftline").mkdir()
    monkeypatch.setenv("DRIFTLINE_WORKSPACE", "gs://bucket/x")
    assert workspace_for_reading(None) == "gs://bucket/x"
    assert workspace_for_indexing(None, ["s3://remote/source"]) == "gs://bucket/x"


def test_reading_finds_the_nearest_folder_upward(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "src" / "deep")
    (project.parent / ".driftline").mkdir()
    assert workspace_for_reading(None) == str(project.parent / ".driftline")
    (project / ".driftline").mkdir()
    assert workspace_for_reading(None) == str(project / ".driftline")


def test_a_file_called_dot_driftline_is_not_a_workspace(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "src")
    (project / "src" / ".driftline").write_text("")
    (project / ".driftline").mkdir()
    assert workspace_for_reading(None) == str(project / ".driftline")


def test_reading_without_any_workspace_says_what_to_do(project: Path) -> None:
    with pytest.raises(WorkspaceNotFound, match="driftline index"):
        workspace_for_reading(None)


def test_indexing_makes_a_workspace_at_the_root_of_the_source(project: Path) -> None:
    assert workspace_for_indexing(None, ["src"]) == str(project / "src" / ".driftline")
    assert not (project / "src" / ".driftline").exists()


def test_indexing_prefers_a_folder_above_the_source_over_a_new_one(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    (project / ".driftline").mkdir()
    assert workspace_for_indexing(None, [str(project / "src")]) == str(project / ".driftline")


def test_sources_below_one_workspace_share_it(project: Path) -> None:
    (project / "other").mkdir()
    (project / ".driftline").mkdir()
    assert workspace_for_indexing(None, ["src", "other"]) == str(project / ".driftline")


def test_sources_with_different_default_workspaces_are_refused(project: Path) -> None:
    (project / "other").mkdir()
    with pytest.raises(UsageError, match="--workspace"):
        workspace_for_indexing(None, ["src", "other"])


@pytest.mark.parametrize("sources", [["s3://bucket/code"], ["src", "memory://x"], []])
def test_remote_sources_need_a_named_workspace(project: Path, sources: list[str]) -> None:
    with pytest.raises(UsageError):
        workspace_for_indexing(None, sources)


@pytest.mark.parametrize("spelling", ["s3://bucket/ws", "s3://bucket/ws/"])
def test_a_configuration_is_found_for_any_spelling_of_its_workspace(
    project: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    monkeypatch.setenv("DRIFTLINE_WORKSPACE", spelling)
    for written in ("s3://bucket/ws", "s3://bucket/ws/"):
        Path("driftline.toml").write_text(f'workspace = "{written}"\n')
        assert config_of(workspace_for_reading(None)) is not None
        assert config_of("s3://bucket/another") is None


def test_a_path_becomes_absolute_a_name_is_in_the_home_and_a_file_uri_is_a_path(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRIFTLINE_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert workspace_for_reading("@ws") == "/data/driftline/workspaces/ws"
    monkeypatch.setenv("DRIFTLINE_HOME", "/home/of")
    assert workspace_for_reading("./ws") == str(project / "ws")
    assert workspace_for_reading("a/ws") == str(project / "a" / "ws")
    assert workspace_for_reading("ws") == str(project / "ws")
    assert workspace_for_reading("@ws") == "/home/of/ws"
    assert workspace_for_reading("file:///x/a%20b") == "/x/a%20b"


def test_a_relative_folder_of_xdg_is_ignored(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, "mine")
    for name in (
        "DRIFTLINE_HOME",
        pull.CACHE_VARIABLE,
        mirror.GIT_CACHE_VARIABLE,
        block_cache.BLOCK_CACHE_VARIABLE,
    ):
        monkeypatch.delenv(name, raising=False)
    assert workspace_for_reading("@ws") == "/home/ann/.local/share/driftline/workspaces/ws"
    folders = [module.cache_folder() for module in (pull, mirror, block_cache)]
    assert folders == [Path("/home/ann/.cache/driftline", name) for name in ("workspaces", "git", "blocks")]
    monkeypatch.setenv("XDG_STATE_HOME", "~/state")
    assert user_folder("XDG_STATE_HOME") == Path("/home/ann/state")


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("a/b", Path("a/b")),
        ("file:///a%20b", Path("/a%20b")),
        ("odd:name", Path("odd:name")),
        ("s3://b/k", None),
        ("zip://a::s3://b/k.zip", None),
        ("simplecache::s3://b/k", None),
        ("memory://x", None),
        ("nosuch+scheme://x", None),
    ],
)
def test_local_path_distinguishes_paths_from_uris(uri: str, path: Path | None) -> None:
    assert local_path(uri) == path

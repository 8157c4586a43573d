"""A secret from any input is never printed, logged or stored: not in a name, a record or a row."""

from __future__ import annotations

import json
import logging
import os
import pickle
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import driftline as dl
from driftline.flows.actions import register_actions
from driftline.flows.config.memory_settings import MEMORY_CONFIG_VARIABLE, VARIABLES
from driftline.storage.errors import StorageError, has_query, may_hold_secret, without_secrets
from driftline.storage.memory.catalog import database
from driftline.storage.memory.store import MemoryStore

Driftline = Callable[..., Any]
SECRET = "pl4nted-s3cret"
URIS = (
    f"http://127.0.0.1:1/docs?token={SECRET}",
    f"http://127.0.0.1:1/docs?v=1&X-Amz-Signature={SECRET}#{SECRET}",
    f"https://127.0.0.1:1/docs/#{SECRET}",
    f"http://{SECRET}@127.0.0.1:1/docs",
    f"http://user:{SECRET}@127.0.0.1:1/docs",
    f"https://user:{SECRET}@127.0.0.1:1/docs?key={SECRET}",
    f"ftp://user:{SECRET}@127.0.0.1:1/docs",
    f"sftp://user:{SECRET}@127.0.0.1:1/docs?x={SECRET}",
    f"nothing://user:{SECRET}@127.0.0.1:1/docs?token={SECRET}",
    f"s3://key:{SECRET}@bucket/docs",
    f"s3://bucket/docs?X-Amz-Signature={SECRET}",
    f"gs://bucket/docs?X-Goog-Signature={SECRET}",
    f"az://container/docs?sig={SECRET}",
    f"simplecache::http://user:{SECRET}@127.0.0.1:1/docs",
    f"zip://*.txt::https://127.0.0.1:1/docs.zip?token={SECRET}",
)
DATABASES = (
    f"postgresql://user:{SECRET}@127.0.0.1:1/db",
    f"postgresql://127.0.0.1:1/db?user=me&password={SECRET}",
    f"mysql://user:{SECRET}@127.0.0.1:1/db?password={SECRET}",
    f"postgresql://user:{SECRET}@127.0.0.1:one/db",
    f"{SECRET}",
)


class Watch(logging.Handler):
    """Keeps Driftline's log messages as received by a program with its own logging configuration."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("driftline"):
            self.text += f"{record.getMessage()}\n"


@pytest.fixture
def watch() -> Iterator[Watch]:
    handler = Watch()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watch: Watch, tiny_model: Path) -> Path:
    """The current folder, which contains a source; the environment refers to no real service."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "DRIFTLINE_", "LTM_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    for name in (MEMORY_CONFIG_VARIABLE, *VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "UseDevelopmentStorage=true")
    monkeypatch.setattr(database, "RETRY_DELAYS_SECONDS", ())
    folder = tmp_path / "folder"
    (folder / "docs").mkdir(parents=True)
    (folder / "docs/a.txt").write_text("the needle of the haystack\n")
    (folder / "driftline.toml").write_text(f'model = "{tiny_model}"\n')
    monkeypatch.chdir(folder)
    return folder


def expect_unseen(location: Path, watch: Watch, *outputs: object) -> None:
    """Assert that no output, log record, file name or file contains the secret."""
    for output in outputs:
        assert SECRET not in str(output)
    assert SECRET not in watch.text
    for path in location.parent.rglob("*"):
        assert SECRET not in str(path)
        if path.is_file() and path.suffix not in (".toml", ".yaml") and "/.git/" not in str(path):
            assert SECRET.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("uri", URIS)
def test_uris_of_sources(location: Path, watch: Watch, driftline: Driftline, uri: str, tiny_model: Path) -> None:
    index = ("index", "docs", uri, "--workspace", location / "ws", "--model", tiny_model)
    ran = [driftline(*index), driftline(*index, "--entity", "source:docs", "--json"), driftline("index", uri)]
    for command in (["search", "needle", "--dir", uri], ["search", "needle", "--path", uri], ["remove", uri]):
        ran.append(driftline(*command, "--workspace", location / "ws"))
        ran.append(driftline(*command, "--workspace", location / "ws", "--json"))
    ran.append(driftline("grep", "needle", uri))
    shown = (["runs"], ["status"], ["sources"], ["report", "--out", "report.html"])
    ran += [driftline(*command, "--workspace", location / "ws") for command in shown]
    ran.append(driftline("--log-json", "index", uri, "--workspace", location / "ws"))
    expect_unseen(location, watch, *ran)


@pytest.mark.parametrize("uri", URIS)
def test_uris_of_sources_in_python_and_actions(location: Path, watch: Watch, uri: str, tiny_model: Path) -> None:
    with pytest.raises(dl.DriftlineError) as failure:
        dl.index(uri, workspace=str(location / "ws"), model=str(tiny_model))
    actions: dict[str, Any] = {}
    register_actions(actions)
    workspace = str(location / "ws")
    answers = [
        actions["search.workspace_index"](state={}, workspace=workspace, paths=[uri]),
        actions["search.workspace_search"](state={}, workspace=workspace, query="needle", paths=[uri]),
        actions["search.workspace_remove"](state={}, workspace=workspace, paths=[uri]),
        actions["search.semantic"](state={}, query="needle", files=[uri]),
    ]
    expect_unseen(location, watch, failure.value, pickle.loads(pickle.dumps(failure.value)), *answers)


@pytest.mark.parametrize("uri", URIS)
def test_uris_of_workspaces(location: Path, watch: Watch, driftline: Driftline, uri: str, tiny_model: Path) -> None:
    ran = [driftline("index", "docs", "--workspace", uri, "--model", tiny_model)]
    for command in (["search", "needle"], ["status"], ["verify"], ["cleanup"], ["memory", "get", "key"], ["mcp"]):
        ran.append(driftline(*command, "--workspace", uri))
        ran.append(driftline(*command, "--workspace", uri, "--json"))
    with pytest.raises(dl.DriftlineError) as failure:
        dl.open(uri)
    expect_unseen(location, watch, failure.value, *ran)


@pytest.mark.parametrize("uri", URIS)
def test_uris_in_the_configuration(
    location: Path, watch: Watch, driftline: Driftline, uri: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFTLINE_CONFIG", "driftline.toml")
    ran = []
    for text in (
        f'workspace = "ws"\nmodel = "{tiny_model}"\n[[sources]]\nuri = "{uri}"\nentity = "source:x"\n',
        f'workspace = "{uri}"\nmodel = "{tiny_model}"\n[[sources]]\nuri = "docs"\n',
    ):
        (location / "driftline.toml").write_text(text)
        commands = (["index", "--all"], ["search", "needle"], ["status"], ["trust"], ["ci", "docs"])
        ran += [driftline(*command) for command in commands]
    expect_unseen(location, watch, *ran)


@pytest.mark.parametrize("url", DATABASES)
def test_urls_of_catalogs(
    location: Path, watch: Watch, driftline: Driftline, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MemoryStore(str(location / "ws"), catalog_url=f"sqlite:///{location}/catalog.sqlite") as store:
        store.store("key", "value", "org:acme")
    monkeypatch.setenv("DRIFTLINE_WORKSPACE", str(location / "ws"))
    ran = []
    (location / "settings.yaml").write_text(f'settings: {{ltm: {{catalog: {{url: "{url}"}}}}}}\n')
    for variable, value in (("DATABASE_URL", url), ("LTM_CONFIG", "settings.yaml")):
        monkeypatch.setenv(variable, value)
        for command in (["memory", "get", "key"], ["memory", "restore", "--elsewhere"], ["memory", "adopt"]):
            ran.append(driftline(*command))
            ran.append(driftline(*command, "--json"))
        upkeep = (["verify"], ["cleanup", "--delete"], ["compact"], ["status"])
        ran += [driftline(*command, "--json") for command in upkeep]
        monkeypatch.delenv(variable)
    with pytest.raises(dl.DriftlineError) as failure:
        MemoryStore(str(location / "ws"), catalog_url=url)
    expect_unseen(location, watch, failure.value, *ran)


def test_storage_options(location: Path, watch: Watch, tiny_model: Path, driftline: Driftline) -> None:
    options = {"aws_secret_access_key": SECRET, "aws_access_key_id": SECRET, "aws_region": "us-east-1"}
    with pytest.raises(dl.DriftlineError) as failure:
        dl.index("s3://bucket/docs", workspace=str(location / "ws"), model=str(tiny_model), storage_options=options)
    dl.index(str(location / "docs"), workspace=str(location / "ws"), model=str(tiny_model), storage_options=options)
    workspace = dl.open(str(location / "ws"), options)
    expect_unseen(location, watch, failure.value, repr(workspace), driftline("runs", "--workspace", location / "ws"))


def test_the_origin_of_a_repository(location: Path, watch: Watch, tiny_model: Path, driftline: Driftline) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(location / "docs"), *arguments], check=True, capture_output=True)

    git("init", "-q")
    git("remote", "add", "origin", f"https://user:{SECRET}@example.org/team/repository.git?private_token={SECRET}")
    indexed = driftline("index", "docs", "--workspace", location / "ws", "--model", tiny_model)
    assert indexed.code == 0
    (record,) = (location / "ws").rglob("_source.json")
    assert json.loads(record.read_text())["origin"] == "https://example.org/team/repository.git"
    expect_unseen(location, watch, indexed)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see https://me:pw@host/x and ftp://me@host/y", "see https://host/x and ftp://host/y"),
        ("http://host/x?token=1&v=2: failed", "http://host/x?… failed"),
        ("postgresql://me:p@ss@host/db?password=x", "postgresql://host/db?…"),
        ("az://container@account/x", "az://container@account/x"),
        ("s3://bucket/what?.txt", "s3://bucket/what?.txt"),
        ("no URI: a@b?c=d", "no URI: a@b?c=d"),
        ("Use git+https://${NAME}@host/path.", "Use git+https://${NAME}@host/path."),
        ("git+https://me:${NAME}@h and https://me:pw${NAME}@h", "git+https://me:${NAME}@h and https://h"),
        ("'https://u:p@h/x?a=b'", "'https://h/x?…'"),
    ],
)
def test_redaction_of_sample_lines(text: str, expected: str) -> None:
    assert without_secrets(text) == expected
    assert str(StorageError(text)) == expected


def test_keys_that_may_hold_a_secret() -> None:
    plain = (
        "s3://bucket/what?.txt",
        "az://container@account/x",
        "ftp://me@host/x",
        "https://host/x",
        "a/b?c=d",
        "s3://b/#1",
    )
    assert [uri for uri in plain if may_hold_secret(uri) or has_query(uri)] == []
    assert [uri for uri in URIS if not may_hold_secret(uri)] == []


# -- modes -------------------------------------------------------------------------------------


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that everyone can read, like its parents."""
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        before = os.umask(0o022)
        yield Path(name)
        os.umask(before)


def test_only_the_owner_reads_the_workspace_of_a_source_that_only_he_can_read(shared: Path, tiny_model: Path) -> None:
    source, workspace = shared / "source", shared / "workspace"
    source.mkdir(mode=0o700)
    (source / "a.txt").write_text("the needle of the haystack\n")
    dl.index(str(source), workspace=str(workspace), model=str(tiny_model))
    assert stat.S_IMODE(workspace.stat().st_mode) == 0o700
    own = [path for path in workspace.rglob("*") if "_tables" not in path.parts]
    assert {stat.S_IMODE(path.stat().st_mode) for path in own} == {0o600, 0o700}
    with MemoryStore(str(workspace), catalog_url=f"sqlite:///{shared}/catalog.sqlite") as store:
        store.store("key", "value " * 1_000, "org:acme")
        assert {stat.S_IMODE(path.stat().st_mode) for path in shared.glob("catalog.sqlite*")} == {0o600}


def test_other_workspaces_have_the_modes_of_the_umask(shared: Path, tiny_model: Path) -> None:
    source, workspace = shared / "source", shared / "workspace"
    source.mkdir(mode=0o755)
    (source / "a.txt").write_text("the needle of the haystack\n")
    dl.index(str(source), workspace=str(workspace), model=str(tiny_model))
    assert modes(workspace) == {0o644, 0o755}
    os.umask(0o077)
    dl.index(str(source), workspace=str(shared / "private"), model=str(tiny_model))
    assert modes(shared / "private") == {0o600, 0o700}

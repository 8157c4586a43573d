"""Fixtures shared by all tests: a real S3 server on loopback, and workspace URIs of every kind."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import runpy
import shutil
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.servers.git_server import GitServer, running_git_server
from tests.servers.proxies import Proxy
from tests.servers.s3_server import S3Server, running_s3
from tests.support.processes import (
    FEW_SAMPLES,
    LIMITS,
    SAMPLES,
    forked_dask_workers,
    forked_helpers,
    loaded,
    without_fsync,
)
from tests.support.waiting import PATIENCE_SECONDS

hypothesis.settings.register_profile("patient", parent=hypothesis.settings.default, deadline=None)
hypothesis.settings.load_profile("patient")

# Tests start hundreds of interpreters: without cached bytecode, each takes two to three times the CPU time.
sys.dont_write_bytecode = False
os.environ["PYTHONDONTWRITEBYTECODE"] = ""
without_fsync()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background jobs of shells, and in what they start
    signal.signal(signal.SIGINT, signal.default_int_handler)

MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 * 2**30
"""Free space from which on the tests' files are kept in memory, where they take less than a tenth of it. Without a
journal, ext4 spends up to a third of a test's CPU time on creating files soon after others were deleted.
"""
if (
    not {"TMPDIR", "DRIFTLINE_SOAK_SECONDS"} & os.environ.keys()  # soaks write for minutes
    and os.access(MEMORY, os.W_OK)
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES
):
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

pytest_plugins = ("tests.servers.emulators", "tests.servers.postgres_server", "tests.servers.prefect_server")


CI_MARKERS = (
    *("CI", "GITHUB_ACTIONS", "GITLAB_CI", "JENKINS_URL", "BUILDKITE", "CIRCLECI", "TF_BUILD"),
    "BITBUCKET_BUILD_NUMBER",
)
"""Variables by which ``driftline ci`` detects a CI system. They are unset, because a CI system that runs the tests does
not build the tests' trees.
"""
for _name in CI_MARKERS:
    os.environ.pop(_name, None)


GARBAGE_THRESHOLD = 50_000
"""Number of new objects between garbage collections, as in the commands."""


LONG_BYTES = 20
"""Longer bytes are no name of a test."""


def pytest_collection_finish() -> None:
    """Exclude the collected tests and loaded modules from garbage collection: they live as long as the process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group tests for pytest-xdist: a process runs all tests of a module that share a fixture, and makes it once.

    The modules of tests/unit are groups, too: their tests are short and share caches.
    """
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("xdist_group") is None:
            found = item._fixtureinfo.name2fixturedefs
            shares = any(found[name][-1].scope == "module" for name in item.fixturenames if name in found)
            if shares or item.path.parent.name == "unit":
                item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name} {item.path.stem}"))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Let one process at a time import a test module: in a new clone, the first compiles it, and the others wait."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    with collector.path.open() as module:
        fcntl.flock(module, fcntl.LOCK_EX)
        return (yield)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name long bytes after their argument: archives contain the time, and each process must collect the same names."""
    return argname if isinstance(val, bytes) and len(val) > LONG_BYTES else None


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    """Keep the environment constant across tests: forking processes restart when it changes."""
    current = os.environ.pop("PYTEST_CURRENT_TEST")
    try:
        return (yield)
    finally:
        os.environ["PYTEST_CURRENT_TEST"] = current


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limits of imported modules."""
    for module, name in loaded(LIMITS):
        monkeypatch.setattr(module, name, PATIENCE_SECONDS)


@pytest.fixture(autouse=True)
def _caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep git mirrors and bucket blocks out of the user's cache."""
    monkeypatch.setenv("DRIFTLINE_GIT_CACHE", str(tmp_path_factory.getbasetemp() / "git-mirrors"))
    monkeypatch.setenv("DRIFTLINE_BLOCK_CACHE", str(tmp_path_factory.getbasetemp() / "blocks"))


@pytest.fixture
def git_server(tmp_path: Path) -> Iterator[GitServer]:
    """A smart-HTTP git server, initially without repositories."""
    (tmp_path / "served").mkdir()
    with running_git_server(tmp_path / "served") as server:
        yield server


@pytest.fixture
def forked_workers() -> Iterator[None]:
    """Let this process's local clusters fork their workers."""
    with forked_dask_workers():
        yield


@pytest.fixture(autouse=True)
def _forked_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes that run native code for this one: starting an interpreter takes a second."""
    if helpers := sys.modules.get("driftline.storage.helper_process"):
        monkeypatch.setattr(helpers, "_start", forked_helpers(helpers._start))


@pytest.fixture(autouse=True)
def _leases() -> Iterator[None]:
    """Stop renewing the leases that a test leaves held: later tests would see warnings about its removed folder."""
    before = _renewed_leases()
    yield
    for lease in _renewed_leases() - before:
        lease.leave_held()


def _renewed_leases() -> set[Any]:
    module = sys.modules.get("driftline.storage.leases.lease")
    return set(module._renewals()._held) if module else set()


@pytest.fixture(autouse=True)
def _small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let compactions and verifications search little: otherwise searches take half their time."""
    for module, name in loaded(SAMPLES):
        monkeypatch.setattr(module, name, FEW_SAMPLES)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A SeaweedFS server with one administrator; it starts in about 4 s on a quiet machine."""
    with running_s3(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture
def s3_environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server; the environment variables that a user would set are set."""
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION", "AWS_ALLOW_HTTP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return s3_server


@pytest.fixture
def s3_bucket(s3_environment: S3Server) -> str:
    """The URI of a fresh, empty prefix."""
    return f"s3://{s3_environment.bucket}/{uuid.uuid4().hex}"


@pytest.fixture
def proxy(s3_server: S3Server, request: pytest.FixtureRequest) -> Iterator[Proxy]:
    """A proxy in front of the server; indirect parameters become its keyword arguments."""
    server = Proxy(s3_server, **getattr(request, "param", {}))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(params=["local", "memory", "s3"])
def store_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of a fresh, empty workspace of each kind."""
    match request.param:
        case "local":
            return str(tmp_path / "workspace")
        case "memory":
            return "memory://"
        case _:
            return str(request.getfixturevalue("s3_bucket"))


@pytest.fixture(params=["local", "memory", "s3", "gs", "az"])
def every_store_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of a fresh, empty workspace in every supported store, to test the stores themselves."""
    match request.param:
        case "local":
            return str(tmp_path / "workspace")
        case "memory":
            return "memory://"
        case kind:
            fixture = {"s3": "s3_bucket", "gs": "google_bucket", "az": "azure_container"}[kind]
            return str(request.getfixturevalue(fixture))


FAMILIES = (
    "default",
    "wordpiece",
    "byte_level",
    "byte_level_prefixed",
    "unigram",
    "unigram_quantized",
    "sentencepiece_bpe",
    "word_level",
    "phrases",
)


@pytest.fixture(scope="session", params=FAMILIES)
def model_directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model2vec directory for each tokenizer family."""
    families = runpy.run_path(
        str(Path(__file__).with_name("support") / "families.py")
    )  # imported here: it loads model2vec
    folder: Path = families["save_family"](request.param, tmp_path_factory.mktemp(request.param))
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model2vec directory with random 24-dimensional vectors. It loads instantly; equal lines have equal vectors."""
    families = runpy.run_path(str(Path(__file__).with_name("support") / "families.py"))
    folder: Path = families["save_family"]("wordpiece", tmp_path_factory.mktemp("tiny-model"))
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model2vec directory with a random vector for each word of the oracle."""
    from tests.support.oracle import save_tiny_model  # imported here: it loads model2vec

    return save_tiny_model(tmp_path_factory.mktemp("model"))


@dataclass(frozen=True)
class Outcome:
    """The output of a command and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def driftline(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Run the command line in this process: ``driftline("index", tree, "--json").json``."""
    from driftline.flows.commands.main import main

    monkeypatch.delenv("DRIFTLINE_WORKSPACE", raising=False)

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run

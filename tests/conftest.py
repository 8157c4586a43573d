"""Fixtures shared by all tests: a real S3 server on loopback, and workspace URIs of every kind."""

from __future__ import annotations

import json
import runpy
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.client
import botocore.config
import botocore.session
import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.proxies import Proxy

pytest_plugins = ("tests.emulators", "tests.postgres_server", "tests.prefect_server")

S3_START_SECONDS = 60
BUCKET = "driftline-tests"


@dataclass(frozen=True)
class S3Server:
    """A running server, and an administrator's credentials; the bucket exists, and no other is made on demand."""

    endpoint: str
    access_key: str
    secret_key: str
    bucket: str = BUCKET

    def client(self) -> botocore.client.BaseClient:
        return botocore.session.get_session().create_client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=botocore.config.Config(retries={"total_max_attempts": 1}),
        )


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in sockets]


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """SeaweedFS with one administrator; ready in about 4 s."""
    directory = tmp_path_factory.mktemp("seaweedfs")
    access_key, secret_key = "test-access-key", f"test-secret-{uuid.uuid4().hex}"
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
    names = ("master", "volume", "filer", "s3")
    ports = _free_ports(2 * len(names))
    # Where it can, the server dies with a test run that is killed.
    command = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    command += [str(Path(sys.executable).parent / "weed"), "server", "-s3", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    for name, port, grpc_port in zip(names, ports[::2], ports[1::2], strict=True):
        command += [f"-{name}.port={port}", f"-{name}.port.grpc={grpc_port}"]
    command += [
        f"-dir={directory}",
        f"-s3.config={directory / 's3.json'}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.iam=false",
        "-s3.autoCreateBucket=false",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=64",
        "-volume.max=100",
        "-volume.preStopSeconds=0",
    ]
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=subprocess.STDOUT)
    server = S3Server(f"http://127.0.0.1:{ports[6]}", access_key, secret_key)
    try:
        _wait_until_ready(server, process, directory / "server.log")
        yield server
    finally:
        process.kill()  # its data goes with it, and a polite stop takes 10 s
        process.wait()
        for port in ports:  # it puts these beside its directory, whatever it is told
            for leftover in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                leftover.unlink()


def _wait_until_ready(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    client = server.client()
    deadline = time.monotonic() + S3_START_SECONDS
    while True:
        try:
            client.create_bucket(Bucket=server.bucket)
            client.put_object(Bucket=server.bucket, Key="ready", Body=b"ready")
            return
        except (BotoCoreError, ClientError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"SeaweedFS did not start ({error}):\n{log.read_text()[-3000:]}") from error
            time.sleep(0.1)


@pytest.fixture
def s3_environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with the variables set that a user would set, and no others."""
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
    """Such a proxy, indirectly parametrized by its keyword arguments, if any."""
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
    """As ``store_uri``, in every kind of store that there is: for what a store itself must do."""
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
    """A model2vec directory of each tokenizer family."""
    families = runpy.run_path(str(Path(__file__).with_name("families.py")))  # loads model2vec: not for every test run
    folder: Path = families["save_family"](request.param, tmp_path_factory.mktemp(request.param))
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model2vec directory of 24 dimensions with random vectors: loads at once, and equal lines are equal vectors."""
    families = runpy.run_path(str(Path(__file__).with_name("families.py")))
    folder: Path = families["save_family"]("wordpiece", tmp_path_factory.mktemp("tiny-model"))
    return folder


@dataclass(frozen=True)
class Outcome:
    """What one command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def driftline(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """The command line, in this process: ``driftline("index", tree, "--json").json``."""
    from driftline.flows.cli import main

    monkeypatch.delenv("DRIFTLINE_WORKSPACE", raising=False)

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run

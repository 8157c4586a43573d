"""A real S3 server on loopback, for tests and benchmarks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import botocore.client
import botocore.config
import botocore.session
from botocore.exceptions import BotoCoreError, ClientError

from tests.servers.ports import free_ports
from tests.support.waiting import ended, until

BUCKET = "driftline-tests"


@dataclass(frozen=True)
class S3Server:
    """A running server with an administrator's credentials. The bucket exists; others are not created on demand."""

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


@contextmanager
def running_s3(directory: Path) -> Iterator[S3Server]:
    """Run SeaweedFS with one administrator and its data in ``directory``; it starts in about 4 s on a quiet machine."""
    access_key, secret_key = "test-access-key", f"test-secret-{uuid.uuid4().hex}"
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
    names = ("master", "volume", "filer", "s3")
    ports = free_ports(2 * len(names))
    # On Linux, the server dies if the test run is killed.
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
        "-volume.minFreeSpace=10MiB",  # by default, it refuses writes to a disk that is 99 % full
    ]
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=subprocess.STDOUT)
    server = S3Server(f"http://127.0.0.1:{ports[6]}", access_key, secret_key)
    try:
        _wait_until_ready(server, process, directory / "server.log")
        yield server
    finally:
        process.kill()  # a graceful stop takes 10 s, and the data is disposable
        process.wait()
        for port in ports:  # the server ignores its directory for these files
            for leftover in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                leftover.unlink(missing_ok=True)


def _wait_until_ready(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    client = server.client()

    def accepts_writes() -> bool:
        with suppress(BotoCoreError, ClientError):
            client.create_bucket(Bucket=server.bucket)
        with suppress(BotoCoreError, ClientError):
            client.put_object(Bucket=server.bucket, Key="ready", Body=b"ready")
            return True
        return False

    until(accepts_writes, "the start of SeaweedFS", unless=lambda: ended(process, log), poll=0.1)

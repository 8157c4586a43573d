"""Fixtures for Google Cloud Storage and Azure on loopback: a proxy in front of the S3 server, and Azurite from npm."""

from __future__ import annotations

import base64
import hmac
import json
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.servers.ports import free_port
from tests.servers.proxies import GoogleProxy
from tests.support.waiting import ended, until

AZURITE = Path(sys.prefix) / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
"""The folder into which ``make azurite`` installs."""
AZURE_ACCOUNT, CONTAINER = "devstoreaccount1", "driftline-tests"
AZURE_KEY = "ZHJpZnRsaW5lLXRlc3RzLWFjY291bnQta2V5LTAwMDE="


@pytest.fixture(scope="session")
def google_server(s3_server: Any) -> Iterator[GoogleProxy]:
    """The S3 server behind the Google Cloud Storage API."""
    server = GoogleProxy(s3_server)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def google_bucket(google_server: GoogleProxy, s3_server: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a fresh, empty prefix; sets the environment variables that an emulator needs."""
    account = {"gcs_base_url": google_server.endpoint, "disable_oauth": True}
    account |= {"client_email": "", "private_key": "", "private_key_id": ""}
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
    monkeypatch.setenv("GOOGLE_BASE_URL", google_server.endpoint)
    for name in ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    return f"gs://{s3_server.bucket}/{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def azure_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Azurite with an empty container, in memory; it starts in 2 s. Skips the test if Azurite is not installed."""
    node = shutil.which("node")
    if node is None or not AZURITE.exists():
        pytest.skip("Azurite is not installed: make azurite (needs npm)")
    directory = tmp_path_factory.mktemp("azurite")
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
    # On Linux, the server dies if the test run is killed.
    command = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    command += [node, str(AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    command += ["--silent", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableProductStyleUrl"]
    command += ["--disableTelemetry"]
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=directory,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={"AZURITE_ACCOUNTS": f"{AZURE_ACCOUNT}:{AZURE_KEY}"},
        )
    try:
        _make_container(endpoint, process, directory / "server.log")
        yield endpoint
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def azure_container(azure_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a fresh, empty prefix; sets the environment variables that a user would set."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", AZURE_ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", AZURE_KEY)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", azure_endpoint)
    return f"az://{CONTAINER}/{uuid.uuid4().hex}"


def _make_container(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    def is_made() -> bool:
        date = formatdate(usegmt=True)
        headers = {"x-ms-date": date, "x-ms-version": "2021-08-06", "Content-Length": "0"}
        resource = f"/{AZURE_ACCOUNT}{urlsplit(endpoint).path}/{CONTAINER}\nrestype:container"
        text = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:2021-08-06\n{resource}"
        signature = base64.b64encode(hmac.digest(base64.b64decode(AZURE_KEY), text.encode(), "sha256")).decode()
        headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{signature}"
        request = urllib.request.Request(f"{endpoint}/{CONTAINER}?restype=container", headers=headers, method="PUT")
        try:
            urllib.request.urlopen(request, timeout=60).close()
        except urllib.error.HTTPError:
            raise
        except OSError:
            return False
        return True

    until(is_made, "the start of Azurite", unless=lambda: ended(process, log), poll=0.1)

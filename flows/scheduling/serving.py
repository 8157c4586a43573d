"""``driftline serve``: runs the deployments of a workspace on this machine, and a Prefect server if there is none."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from hashlib import blake2b

from filelock import FileLock, Timeout
from prefect import serve as run_deployments
from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings

from driftline.flows.scheduling.deployments import Deployments
from driftline.flows.scheduling.registration import check_names, connected, register_automations, to_prefect
from driftline.storage.errors import ExecutorError

START_SECONDS = 900
"""Of a server whose process runs; on a quiet machine it takes ten."""
STOP_SECONDS = 20


def serve(deployments: Deployments, *, workspace: str, port: int, limit: int, announce: Callable[[str], None]) -> bool:
    """Run at most ``limit`` flow runs at once until the process is stopped.

    Returns False at once if another process on this machine serves the workspace. Without a configured server it uses
    the one at ``port`` of this machine, and starts one there, with its data in PREFECT_HOME, if none answers.
    ``announce`` receives a line once the deployments are ready. Raises UsageError if a configured server does not
    answer, ExecutorError if a server does not start.
    """
    url = PREFECT_API_URL.value()
    own = f"http://127.0.0.1:{port}/api"
    key = blake2b(f"{url or own} {workspace}".encode(), digest_size=8).hexdigest()
    home = get_current_settings().home
    home.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(home / f"driftline-serve-{key}.lock", timeout=0), _server(url, own) as address:
            with connected() as client:
                check_names(client, deployments)
                register_automations(client, deployments)
            runners = [to_prefect(spec, pool=None) for spec in deployments.deployments]
            names = ", ".join(runner.full_name for runner in runners)
            announce(f"serving {names} at {address.removesuffix('/api')}; Ctrl-C stops it")
            run_deployments(*runners, limit=limit, print_starting_message=False)
    except Timeout:
        return False
    return True


@contextmanager
def _server(configured: str | None, own: str) -> Iterator[str]:
    """The address of the server to use; a server that this starts stops when the context closes."""
    if configured is not None:
        yield configured
    elif _answers(own):
        with _used(own):
            yield own
    else:
        with _started(own), _used(own):
            yield own


@contextmanager
def _started(url: str) -> Iterator[None]:
    host, _, port = url.removeprefix("http://").removesuffix("/api").partition(":")
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", host, "--port", port]
    log = get_current_settings().home / "driftline-server.log"
    # The web page asks the API at the default port unless it is told otherwise.
    environment = {"PREFECT_UI_API_URL": url, **os.environ}
    with log.open("wb") as output:
        # A new session keeps Ctrl-C from the server: the deployments still report to it while they stop.
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ExecutorError("The Prefect server did not start", url, f"See {log}, or choose another --port.")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _used(url: str) -> AbstractContextManager[object]:
    """Use ``url`` as the Prefect server of this process and its children."""
    os.environ["PREFECT_API_URL"] = url
    return temporary_settings({PREFECT_API_URL: url})


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.read() == b"true")
    except OSError:
        return False

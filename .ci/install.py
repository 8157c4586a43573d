"""Installs a lock file and the package itself into this interpreter's environment: ``install.py requirements.lock``.

uv, which pip installs, does the work. Where uv cannot be installed or fails, pip installs the same files more slowly.
Both refuse a file whose hash is not in the lock.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import run_uv

ROOT = Path(__file__).resolve().parents[1]
DEVELOPMENT_LOCK = ROOT / "requirements-dev.lock"
PIP = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
HEARTBEAT_SECONDS = {True: 0.5, False: 10.0}
"""How often the progress line changes on a terminal, and how often it is printed elsewhere."""


class Progress:
    """One line that says what is being done and for how long; used as a context."""

    def __init__(self, doing: str) -> None:
        self.doing, self.started, self.terminal = doing, time.monotonic(), sys.stdout.isatty()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.beat, daemon=True)

    def __enter__(self) -> Progress:
        self.show()
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.done.set()
        self.thread.join()
        self.show()
        if self.terminal:
            print(flush=True)

    def beat(self) -> None:
        while not self.done.wait(HEARTBEAT_SECONDS[self.terminal]):
            self.show()

    def show(self) -> None:
        line = f"make: {self.doing} ({time.monotonic() - self.started:.0f} s)"
        print(f"\r\033[K{line}" if self.terminal else line, end="" if self.terminal else "\n", flush=True)


def pinned(lock: str, name: str) -> str:
    """The entry of one package in the text of a lock file, with its hashes."""
    found = re.search(rf"^{re.escape(name)}==.*\n(?: +--hash=.*\n)+", lock, re.MULTILINE)
    if found is None:
        raise SystemExit(f"make: {name} is missing from {DEVELOPMENT_LOCK.name}; run `make lock`")
    return found.group()


def ran(command: Sequence[str | Path], environment: Mapping[str, str] | None = None, text: str | None = None) -> bool:
    """Whether a command succeeded; its output appears only if it did not."""
    done = subprocess.run(
        command, env=environment, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        print(f"\n{done.stdout.rstrip()}", file=sys.stderr)
    return done.returncode == 0


def uv_is_ready() -> bool:
    """Install the locked uv if it is not there yet."""
    entry = pinned(DEVELOPMENT_LOCK.read_text(), "uv")
    if run_uv.UV.exists():
        version = subprocess.run([run_uv.UV, "--version"], capture_output=True, text=True, check=False).stdout.split()
        if version[1:2] == [entry.split()[0].partition("==")[2]]:
            return True
    return ran([*PIP, "--require-hashes", "-r", "/dev/stdin"], text=entry)


def install(lock: Path) -> bool:
    """Install with uv, or else with pip; returns whether one of them could."""
    package = ["--no-deps", "--editable", ROOT]
    if uv_is_ready():
        environment = run_uv.environment()
        command = [run_uv.UV, "pip", "install", "--quiet"]
        constraints = ["--build-constraints", DEVELOPMENT_LOCK]
        if ran([*command, "--require-hashes", "-r", lock], environment) and ran(
            [*command, *constraints, *package], environment
        ):
            return True
    print("make: uv cannot install here; pip goes on, which takes minutes", file=sys.stderr)
    return ran([*PIP, "--no-deps", "--require-hashes", "-r", lock]) and ran([*PIP, *package])


def main() -> int:
    lock = Path(sys.argv[1])
    packages = len(re.findall(r"^[a-z0-9].*==", lock.read_text(), re.MULTILINE))
    with Progress(f"installing {packages} packages of {lock.name}"):
        installed = install(lock)
    return 0 if installed else 1


if __name__ == "__main__":
    sys.exit(main())

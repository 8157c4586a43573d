"""The programs of semtools: which one is installed, its version, and one call of it.

Up to 2.0 it is called ``search`` and prints text; since 3.0 it is ``semtools search`` and prints JSON.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from driftline.flows.actions.calls import ActionError

PROGRAM = "semtools"
OLD_PROGRAM = "search"
INSTALL_HINT = "npm i -g @llamaindex/semtools"
OTHER_HINT = "cargo install semtools"
MIN_VERSION = "1.5.1"

_SINCE_RENAMED = (3, 0)
"""``semtools`` was called ``search`` before; its first version under this name does not say which one it is."""
_VERSION_SECONDS = 10.0
_VERSION = re.compile(r"\d+(?:\.\d+)*")
_PARTS = 4
"""Parts of a version that are compared; those that are not written are zero."""


@dataclass(frozen=True, slots=True)
class Program:
    """An installed program. ``version`` is None if it does not say; it is ``at_least`` that one then."""

    path: str
    command: tuple[str, ...]
    has_json: bool
    version: str | None
    at_least: tuple[int, ...]

    def require(self, wanted: str) -> None:
        """Raises ActionError prerequisite_missing if the program is older than ``wanted``."""
        if not self.at_least or _padded(self.at_least) < _padded(_numbers(wanted)):
            told = self.version or "one that does not say its version"
            raise missing(f"{PROGRAM} {wanted} or newer is needed, not {told}")


def find() -> Program | None:
    """The program on the PATH, the newer name first; another program called ``search`` is not taken for it."""
    path = shutil.which(PROGRAM)
    if path is not None:
        said = _said_version(path)
        if said is None:
            return Program(path, ("search",), True, None, _SINCE_RENAMED)
        return Program(path, ("search",), True, _match(said), _numbers(said))
    for folder in os.get_exec_path():
        path = shutil.which(OLD_PROGRAM, path=folder) if os.path.isabs(folder) else None
        said = _said_version(path) if path is not None else None
        if path is not None and said is not None and said.startswith(f"{PROGRAM} "):
            return Program(path, (), False, _match(said), _numbers(said))
    return None


def run(program: Program, arguments: Sequence[str], timeout_seconds: float) -> str:
    """What the program prints. Raises ActionError: cli_error, timeout."""
    try:
        code, out, err = _call([program.path, *program.command, *arguments], timeout_seconds)
    except subprocess.TimeoutExpired as error:
        raise ActionError("timeout", f"{PROGRAM} did not finish in time ({timeout_seconds:g} s were left)") from error
    except (OSError, ValueError) as error:
        raise ActionError("cli_error", f"{PROGRAM} cannot be run: {error}", stderr="") from error
    if code:
        said = err.strip() or "nothing on standard error"
        raise ActionError("cli_error", f"{PROGRAM} failed with code {code}: {said}", stderr=err)
    return out


def missing(what: str) -> ActionError:
    """The error of a program that must be installed."""
    return ActionError(
        "prerequisite_missing", f"{what}. Run: {INSTALL_HINT} (or: {OTHER_HINT})", install_hint=INSTALL_HINT
    )


def _said_version(path: str) -> str | None:
    """What a program answers to ``--version``; None if it does not know that option, or cannot be run."""
    try:
        code, out, _ = _call([path, "--version"], _VERSION_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if code else out.strip()


def _call(command: Sequence[str], timeout_seconds: float) -> tuple[int, str, str]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_seconds)
    except BaseException:  # whatever ends the wait: the program must not outlive it
        with contextlib.suppress(ProcessLookupError):
            # The program is a wrapper: its children hold the pipes, too.
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, out, err


def _match(text: str) -> str | None:
    match = _VERSION.search(text)
    return match[0] if match else None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, (_match(text) or "").split("."))) if _match(text) else ()


def _padded(version: tuple[int, ...]) -> tuple[int, ...]:
    return (*version, *(0,) * _PARTS)[:_PARTS]

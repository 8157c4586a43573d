"""The ``semtools`` program: called, timed, and its answers of several versions understood."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from typing import Any

from driftline.flows.actions.calls import ActionError

PROGRAM = "semtools"
INSTALL_HINT = "npm i -g @llamaindex/semtools"
MIN_VERSION = "1.5.1"
TIMEOUT_SECONDS = 60.0

_VERSION = re.compile(r"\d+(?:\.\d+)*")


def search(
    query: str,
    files: Sequence[str],
    *,
    max_distance: float,
    n_lines: int,
    timeout_seconds: float = TIMEOUT_SECONDS,
    min_version: str | None = None,
) -> list[dict[str, Any]]:
    """What the program finds, in its order: ``{file, line, score, text, context}``, lines 1-based.

    Raises ActionError: prerequisite_missing, cli_error, parse_error, timeout.
    """
    if min_version is not None:
        _check_version(min_version, timeout_seconds)
    options = ["--json", "--n-lines", str(n_lines), "--max-distance", str(max_distance)]
    paths = [f"./{path}" if path.startswith("-") else path for path in files]
    if query.startswith("-"):
        arguments = ["search", *options, "--", query, *paths]
    else:
        arguments = ["search", query, *paths, *options]
    return parse_answer(_run(arguments, timeout_seconds))


def parse_answer(answer: str) -> list[dict[str, Any]]:
    """The matches in what the program has printed: an object with ``results``, or the list of older versions."""
    if not answer.strip():
        return []
    try:
        parsed = json.loads(answer)
        results = parsed["results"] if isinstance(parsed, dict) else parsed
        return [_match(result) for result in results]
    except (ValueError, LookupError, TypeError) as error:
        detail = f"{type(error).__name__}: {error}"
        raise ActionError("parse_error", f"{PROGRAM} answered what is not understood ({detail})") from error


def _match(result: dict[str, Any]) -> dict[str, Any]:
    """One result, of version 3 (0-based numbers, a distance and a block of lines) or older (as we report it)."""
    if "match_line_number" not in result:
        text = str(result["text"])
        context = result.get("context") or [text]
        lines = context.split("\n") if isinstance(context, str) else list(context)
        score = float(result["score"]) if "score" in result else 1.0 - float(result["distance"])
        return {"file": result["file"], "line": int(result["line"]), "score": score, "text": text, "context": lines}
    lines = str(result["content"]).removesuffix("\n").split("\n")
    number, start = int(result["match_line_number"]), int(result["start_line_number"])
    if not 0 <= number - start < len(lines):
        raise ValueError(f"line {number} is not among lines {start} to {start + len(lines) - 1}")
    return {
        "file": result["filename"],
        "line": number + 1,
        "score": 1.0 - float(result["distance"]),
        "text": lines[number - start],
        "context": lines,
    }


def _check_version(wanted: str, timeout_seconds: float) -> None:
    found = _run(["--version"], timeout_seconds).strip()
    if _version(found) < _version(wanted):
        raise _missing(f"{PROGRAM} {wanted} or newer is needed, not {found or 'one that does not say'}")


def _version(text: str) -> tuple[int, ...]:
    match = _VERSION.search(text)
    return tuple(map(int, match[0].split("."))) if match else ()


def _run(arguments: Sequence[str], timeout_seconds: float) -> str:
    program = shutil.which(PROGRAM)
    if program is None:
        raise _missing(f"The program {PROGRAM} is not installed")
    try:
        process = subprocess.Popen(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise ActionError("cli_error", f"{PROGRAM} cannot be run: {error}", stderr="") from error
    try:
        out, err = process.communicate(timeout=timeout_seconds)
    except BaseException as error:  # whatever ends the wait, and is raised again: the program must not outlive it
        with contextlib.suppress(ProcessLookupError):
            # The program is a wrapper: its children hold the pipes, too.
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise ActionError("timeout", f"{PROGRAM} took more than {timeout_seconds:g} s") from error
        raise
    if process.returncode:
        said = err.strip() or "nothing on standard error"
        raise ActionError("cli_error", f"{PROGRAM} failed with code {process.returncode}: {said}", stderr=err)
    return out


def _missing(what: str) -> ActionError:
    return ActionError("prerequisite_missing", f"{what}. Run: {INSTALL_HINT}", install_hint=INSTALL_HINT)

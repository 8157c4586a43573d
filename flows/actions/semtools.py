"""Define the action ``semtools.search``: semantic search for single lines, with Driftline's engine or a semtools
program.

A program's matches become ``{file, line, score, text, context}``: lines are 1-based, in the program's order. Up to
version 2.0, the program is ``search`` and prints text; since 3.0, it is ``semtools search`` and prints JSON. Any other
output raises ActionError parse_error.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeAlias

from driftline.flows.actions.arguments import Count, Distance, Flag, Fraction, Name, Query, Seconds, SomeNames, Version
from driftline.flows.actions.registry import ActionError, Handles, Result, action
from driftline.flows.actions.sources import SkippedFiles
from driftline.storage.errors import UsageError
from driftline.tasks.search.hits import Hit, clipped, match_in
from driftline.tasks.search.request import SearchRequest
from driftline.tasks.search.unindexed import NamedText

PROGRAM = "semtools"
OLD_PROGRAM = "search"
INSTALL_HINT = "npm i -g @llamaindex/semtools"
OTHER_HINT = "cargo install semtools"
MIN_VERSION = "1.5.1"

_SINCE_RENAMED = (3, 0)
"""``semtools`` was renamed from ``search``; the first version under the new name does not report its version."""
_VERSION_SECONDS = 10.0
_VERSION = re.compile(r"\d+(?:\.\d+)*")
_PARTS = 4
"""How many version components to compare; missing ones are zero."""


@dataclass(frozen=True, slots=True)
class Program:
    """An installed program. If it does not report its version, ``version`` is None and ``at_least`` a lower bound."""

    path: str
    command: tuple[str, ...]
    has_json: bool
    version: str | None
    at_least: tuple[int, ...]

    def require(self, min_version: str) -> None:
        """Raise ActionError prerequisite_missing if the program is older than ``min_version``."""
        if not self.at_least or _padded(self.at_least) < _padded(_numbers(min_version)):
            found = self.version or "an unknown version"
            raise missing(f"{PROGRAM} {min_version} or newer is required, but {found} is installed")


def find() -> Program | None:
    """Return the program on PATH, trying the newer name first; an unrelated program called ``search`` is ignored."""
    path = shutil.which(PROGRAM)
    if path is not None:
        said = _version_output(path)
        if said is None:
            return Program(path, ("search",), True, None, _SINCE_RENAMED)
        return Program(path, ("search",), True, _version_in(said), _numbers(said))
    for folder in os.get_exec_path():
        path = shutil.which(OLD_PROGRAM, path=folder) if os.path.isabs(folder) else None
        said = _version_output(path) if path is not None else None
        if path is not None and said is not None and said.startswith(f"{PROGRAM} "):
            return Program(path, (), False, _version_in(said), _numbers(said))
    return None


def run(program: Program, arguments: Sequence[str], timeout_seconds: float) -> str:
    """Run the program and return its output. Raises ActionError: cli_error, timeout."""
    try:
        code, out, err = _call([program.path, *program.command, *arguments], timeout_seconds)
    except subprocess.TimeoutExpired as error:
        raise ActionError("timeout", f"{PROGRAM} timed out (after {timeout_seconds:g} s)") from error
    except (OSError, ValueError) as error:
        raise ActionError("cli_error", f"Cannot run {PROGRAM}: {error}", stderr="") from error
    if code:
        said = err.strip() or "nothing on standard error"
        raise ActionError("cli_error", f"{PROGRAM} failed with code {code}: {said}", stderr=err)
    return out


def missing(what: str) -> ActionError:
    """Return the error for a program that is not installed."""
    return ActionError(
        "prerequisite_missing", f"{what}. Run: {INSTALL_HINT} (or: {OTHER_HINT})", install_hint=INSTALL_HINT
    )


def _version_output(path: str) -> str | None:
    """Return a program's ``--version`` output, or None if it does not support that option or cannot be run."""
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
    except BaseException:  # do not leave the program running
        with contextlib.suppress(ProcessLookupError):
            # The program is a wrapper whose children also hold the pipes.
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, out, err


def _version_in(text: str) -> str | None:
    match = _VERSION.search(text)
    return match[0] if match else None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, (_version_in(text) or "").split("."))) if _version_in(text) else ()


def _padded(version: tuple[int, ...]) -> tuple[int, ...]:
    return (*version, *(0,) * _PARTS)[:_PARTS]


Match: TypeAlias = dict[str, Any]

_HEADER = re.compile(r"(?P<file>.*):(?P<start>\d+)::(?P<end>\d+) \((?P<distance>[^()]*)\)")
_NUMBERED = re.compile(r" *(?P<number>\d+): (?P<text>.*)")


def parse_json(answer: str) -> list[Match]:
    """Parse version 3 output: an object with ``results``, or a list of results."""
    if not answer.strip():
        return []
    try:
        parsed = json.loads(answer)
        results = parsed["results"] if isinstance(parsed, dict) else parsed
        return [_parsed_match(result) for result in results]
    except (ValueError, LookupError, TypeError) as error:
        raise _not_understood(error) from error


def parse_text(answer: str, texts: Mapping[str, str], n_lines: int) -> list[Match]:
    """Parse the output of versions 1 and 2. They do not mark the matching line, so they run without context.

    ``texts`` maps file names to contents, which supply ``n_lines`` of context on each side.
    """
    try:
        return list(_blocks(answer.split("\n"), texts, n_lines))
    except (ValueError, LookupError) as error:
        raise _not_understood(error) from error


def _blocks(lines: Sequence[str], texts: Mapping[str, str], n_lines: int) -> Iterator[Match]:
    at = 0
    while at < len(lines):
        if not lines[at]:
            at += 1
            continue
        header, numbered = _HEADER.fullmatch(lines[at]), _NUMBERED.fullmatch(lines[at + 1])
        if header is None or numbered is None or int(numbered["number"]) != int(header["start"]) + 1:
            raise ValueError(f"unexpected line {lines[at]!r}")
        number, text = int(header["start"]), numbered["text"]
        known = program_lines(texts.get(header["file"], ""))
        yield {
            "file": header["file"],
            "line": number + 1,
            "score": 1.0 - float(header["distance"]),
            "text": text,
            "context": known[max(0, number - n_lines) : number + n_lines + 1] or [text],
        }
        at += 2


def program_lines(text: str) -> list[str]:
    """Split text into lines the way the programs do."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _parsed_match(result: dict[str, Any]) -> Match:
    """Convert a version 3 result (0-based numbers, a distance and a block of lines) to our format."""
    if "match_line_number" not in result:
        text = str(result["text"])
        context = result.get("context") or [text]
        lines = context.split("\n") if isinstance(context, str) else list(context)
        score = float(result["score"]) if "score" in result else 1.0 - float(result["distance"])
        return {"file": result["file"], "line": int(result["line"]), "score": score, "text": text, "context": lines}
    number, start = int(result["match_line_number"]), int(result["start_line_number"])
    lines = str(result["content"]).split("\n")
    if len(lines) == int(result["end_line_number"]) - start + 1 and not lines[-1]:
        lines.pop()  # the block ends with a newline
    if not 0 <= number - start < len(lines):
        raise ValueError(f"line {number} is outside lines {start} to {start + len(lines) - 1}")
    return {
        "file": result["filename"],
        "line": number + 1,
        "score": 1.0 - float(result["distance"]),
        "text": lines[number - start],
        "context": lines,
    }


def _not_understood(error: Exception) -> ActionError:
    return ActionError("parse_error", f"Cannot parse the output of semtools ({type(error).__name__}: {error})")


TIMEOUT_SECONDS = 60.0
_MAX_TOP_K = 2**31 - 1
_MAX_ARGUMENT_BYTES = 100_000
"""Maximum bytes of file names per call; more files need several calls."""


def search(
    program: Program,
    query: str,
    texts: Sequence[NamedText],
    *,
    max_distance: float,
    n_results: int,
    n_lines: int,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> list[Match]:
    """Return the ``n_results`` best matches in the files of ``texts``, best first.

    Raises ActionError: cli_error, parse_error, timeout.
    """
    deadline = time.monotonic() + timeout_seconds
    found: list[Match] = []
    for part in _parts(texts):
        left = deadline - time.monotonic()
        if left <= 0:
            raise ActionError("timeout", f"{PROGRAM} took more than {timeout_seconds:g} s")
        found += _search(program, query, part, max_distance, n_results, n_lines, left)
    return sorted(found, key=lambda match: -match["score"])[:n_results]


def _search(
    program: Program,
    query: str,
    texts: Sequence[NamedText],
    max_distance: float,
    n_results: int,
    n_lines: int,
    timeout_seconds: float,
) -> list[Match]:
    named = {f"./{text.path}" if text.path.startswith("-") else text.path: text for text in texts}
    # Without --top-k, a program that uses its own workspace returns only three results.
    limits = ["--max-distance", str(max_distance), "--top-k", str(min(max(n_results, 1), _MAX_TOP_K))]
    options = [*(("--json", "--n-lines", str(n_lines)) if program.has_json else ("--n-lines", "0")), *limits]
    arguments = [*options, "--", query, *named] if query.startswith("-") else [query, *named, *options]
    answer = run(program, arguments, timeout_seconds)
    if program.has_json:
        matches = parse_json(answer)
    else:
        matches = parse_text(answer, {name: text.text for name, text in named.items()}, n_lines)
    for match in matches:
        if match["file"] in named:
            match["file"] = named[match["file"]].path
    return matches


def _parts(texts: Sequence[NamedText]) -> Iterator[list[NamedText]]:
    part: list[NamedText] = []
    size = 0
    for text in texts:
        size += len(text.path.encode("utf-8", "surrogateescape")) + 1
        if part and size > _MAX_ARGUMENT_BYTES:
            yield part
            part, size = [], len(text.path)
        part.append(text)
    if part:
        yield part


DEFAULT_MAX_DISTANCE = 0.5
ENGINES = ("cli", "auto", "driftline")


def _semtools_search(
    state: Any,
    query: Query,
    files: SomeNames,
    max_distance: Distance = DEFAULT_MAX_DISTANCE,
    n_results: Count = 10,
    n_lines: Count = 0,
    engine: Any = None,
    timeout: Seconds = TIMEOUT_SECONDS,
    min_version: Version | None = None,
    check_version: Flag = False,
    model: Name | None = None,
    min_relevance: Fraction | None = None,
    handles: Handles | None = None,
) -> Result:
    """Search files line by line: ``{matches, best_match, has_matches, total_matches, query, engine, version}``.

    The search ends after ``timeout`` seconds. ``engine="cli"`` uses an installed semtools program; ``engine="auto"``
    does so if there is one. ``check_version`` requires at least MIN_VERSION, and ``min_version`` at least the given
    version. A match is ``{file, line, score, text, context}``; with Driftline's engine, it also has ``column``,
    ``distance`` and ``relevance``, and a result with no matches includes the ``nearest`` line. ``skipped_files`` lists
    files that cannot be searched.
    """
    from driftline.tasks.search.unindexed import grep, read_texts

    min_version_needed = min_version or (MIN_VERSION if check_version else None)
    program = _program(engine, min_version_needed, only_ours=model is not None or min_relevance is not None)
    skipped = SkippedFiles()
    texts = read_texts(files, on_skip=skipped.add)
    matches: Sequence[Match]
    summary: dict[str, Any] = {}
    if program is not None:
        limits: dict[str, Any] = {"max_distance": max_distance, "n_results": n_results, "n_lines": n_lines}
        matches = search(program, query, list(texts), timeout_seconds=timeout, **limits)
        matches = [_bounded(match, query) for match in matches]
    else:
        limits = {"top_k": n_results, "n_lines": n_lines, "max_distance": max_distance, "min_relevance": min_relevance}
        deadline = time.monotonic() + timeout
        embedder = (handles or Handles()).embedder(model)
        report = grep(SearchRequest.of(query, limits), _before(deadline, texts, timeout), embedder)
        matches = [_match(hit) for hit in report.results]
        summary = {"notes": list(report.notes)} if report.notes else {}
        summary |= {"nearest": _match(report.nearest)} if report.nearest else {}
    return {
        "matches": matches,
        "best_match": max(matches, key=lambda match: match["score"], default=None),
        "has_matches": bool(matches),
        "total_matches": len(matches),
        "query": query,
        "engine": "driftline" if program is None else "cli",
        "version": version("driftline") if program is None else program.version,
        **summary,
        **skipped.to_dict(),
    }


def _before(deadline: float, texts: Iterable[NamedText], timeout_seconds: float) -> Iterator[NamedText]:
    """Yield ``texts`` until the deadline. Raises ActionError: timeout."""
    for text in texts:
        if time.monotonic() >= deadline:
            raise ActionError("timeout", f"The search took more than {timeout_seconds:g} s")
        yield text


def _match(hit: Hit) -> Match:
    found = {"file": hit.path, "line": hit.line, "column": hit.column, "score": hit.score, "distance": hit.distance}
    return {**found, "relevance": hit.relevance, "text": hit.text, "context": list(hit.context)}


def _bounded(match: Match, query: str) -> Match:
    """Clip the long lines of a program's match."""
    text, context = match["text"], match["context"]
    at = match_in(text, query)
    return {
        **match,
        "text": clipped(text, at),
        "context": [clipped(line, at if line == text else 0) for line in context],
    }


def _program(engine: Any, min_version_needed: str | None, *, only_ours: bool) -> Program | None:
    """Return the program to use, or None for Driftline's engine, which is also used if the host passes an engine
    object.

    ``only_ours`` means that only Driftline's engine supports the request.
    """
    if not isinstance(engine, str) or engine == "driftline":
        return None
    if engine not in ENGINES:
        raise UsageError("Unknown engine", repr(engine), f"Use one of {', '.join(ENGINES)}, or omit it.")
    if only_ours:
        if engine == "auto":
            return None
        raise UsageError("The semtools program supports neither model nor min_relevance", fix="Omit the engine.")
    program = find()
    if program is None:
        if engine == "auto":
            return None
        raise missing(f"The program {PROGRAM} is not installed")
    if min_version_needed is not None:
        program.require(min_version_needed)
    return program


semtools_search = action(_semtools_search, on_failure={"matches": [], "has_matches": False})

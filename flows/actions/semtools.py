"""The action ``semtools.search``: single lines by meaning, with Driftline's own engine or a program of semtools."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from driftline.flows.actions import semtools_cli, semtools_program
from driftline.flows.actions.arguments import Count, Distance, Flag, Fraction, Name, Query, Seconds, SomeNames, Version
from driftline.flows.actions.calls import Result, action
from driftline.flows.actions.handles import Handles
from driftline.flows.actions.semtools_answers import Match
from driftline.flows.actions.semtools_program import Program
from driftline.flows.actions.skipped import SkippedFiles
from driftline.storage.errors import UsageError
from driftline.tasks.search.excerpts import clipped, match_in
from driftline.tasks.search.hits import Hit

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
    timeout: Seconds = semtools_cli.TIMEOUT_SECONDS,
    min_version: Version | None = None,
    check_version: Flag = False,
    model: Name | None = None,
    min_relevance: Fraction | None = None,
    handles: Handles | None = None,
) -> Result:
    """Search files line by line: ``{matches, best_match, has_matches, total_matches, query, engine, version}``.

    ``engine="cli"`` takes an installed program of semtools, for at most ``timeout`` seconds, ``engine="auto"`` if there
    is one; ``check_version`` asks for semtools_program.MIN_VERSION, ``min_version`` for another one. A match is
    ``{file, line, score, text, context}``; with our own engine it has its ``column``, ``distance`` and ``relevance``,
    too, and an answer without matches names the ``nearest`` line. Files that cannot be searched are ``skipped_files``.
    """
    from driftline.tasks.search.grep import grep, read_texts

    wanted = min_version or (semtools_program.MIN_VERSION if check_version else None)
    program = _program(engine, wanted, only_ours=model is not None or min_relevance is not None)
    skipped = SkippedFiles()
    texts = read_texts(files, on_skip=skipped.add)
    matches: Sequence[Match]
    told: dict[str, Any] = {}
    if program is not None:
        limits: dict[str, Any] = {"max_distance": max_distance, "n_results": n_results, "n_lines": n_lines}
        matches = semtools_cli.search(program, query, list(texts), timeout_seconds=timeout, **limits)
        matches = [_bounded(match, query) for match in matches]
    else:
        report = grep(
            query,
            texts,
            (handles or Handles()).embedder(model),
            top_k=n_results,
            max_distance=max_distance,
            min_relevance=min_relevance,
            n_lines=n_lines,
        )
        matches = [_match(hit) for hit in report.results]
        told = {"notes": list(report.notes)} if report.notes else {}
        told |= {"nearest": _match(report.nearest)} if report.nearest else {}
    return {
        "matches": matches,
        "best_match": max(matches, key=lambda match: match["score"], default=None),
        "has_matches": bool(matches),
        "total_matches": len(matches),
        "query": query,
        "engine": "driftline" if program is None else "cli",
        "version": version("driftline") if program is None else program.version,
        **told,
        **skipped.to_dict(),
    }


def _match(hit: Hit) -> Match:
    found = {"file": hit.path, "line": hit.line, "column": hit.column, "score": hit.score, "distance": hit.distance}
    return {**found, "relevance": hit.relevance, "text": hit.text, "context": list(hit.context)}


def _bounded(match: Match, query: str) -> Match:
    """A match of a program with windows of its long lines."""
    text, context = match["text"], match["context"]
    at = match_in(text, query)
    return {
        **match,
        "text": clipped(text, at),
        "context": [clipped(line, at if line == text else 0) for line in context],
    }


def _program(engine: Any, wanted: str | None, *, only_ours: bool) -> Program | None:
    """The program that shall search; None for our own engine, as for any object, which a host has passed.

    ``only_ours`` says that our own engine alone can do what was asked.
    """
    if not isinstance(engine, str) or engine == "driftline":
        return None
    if engine not in ENGINES:
        raise UsageError("There is no such engine", repr(engine), f"It is one of {', '.join(ENGINES)}, or left out.")
    if only_ours:
        if engine == "auto":
            return None
        raise UsageError("A program of semtools takes neither model nor min_relevance", fix="Leave out the engine.")
    program = semtools_program.find()
    if program is None:
        if engine == "auto":
            return None
        raise semtools_program.missing(f"The program {semtools_program.PROGRAM} is not installed")
    if wanted is not None:
        program.require(wanted)
    return program


semtools_search = action(_semtools_search, on_failure={"matches": [], "has_matches": False})

"""A search by an installed program of semtools."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from driftline.flows.actions.calls import ActionError
from driftline.flows.actions.semtools_answers import Match, parse_json, parse_text
from driftline.flows.actions.semtools_program import PROGRAM, Program, run
from driftline.tasks.search.grep import NamedText

TIMEOUT_SECONDS = 60.0
_MAX_TOP_K = 2**31 - 1
_MAX_ARGUMENT_BYTES = 100_000
"""Names of files given to one call, in bytes: more are searched by several calls."""


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
    """The ``n_results`` best matches in the files of ``texts``, best first.

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
    # In a workspace of its own, the program stops at three results unless it is told a number.
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

"""What the programs of semtools print, as matches ``{file, line, score, text, context}``: lines 1-based, their order.

Raises ActionError parse_error for anything else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from driftline.flows.actions.calls import ActionError

Match: TypeAlias = dict[str, Any]

_HEADER = re.compile(r"(?P<file>.*):(?P<start>\d+)::(?P<end>\d+) \((?P<distance>[^()]*)\)")
_NUMBERED = re.compile(r" *(?P<number>\d+): (?P<text>.*)")


def parse_json(answer: str) -> list[Match]:
    """The matches of version 3: an object with ``results``, or a list of them."""
    if not answer.strip():
        return []
    try:
        parsed = json.loads(answer)
        results = parsed["results"] if isinstance(parsed, dict) else parsed
        return [_match(result) for result in results]
    except (ValueError, LookupError, TypeError) as error:
        raise _not_understood(error) from error


def parse_text(answer: str, texts: Mapping[str, str], n_lines: int) -> list[Match]:
    """The matches of versions 1 and 2, which were asked for without context, since they do not say which line matches.

    ``texts`` are those of the files by their names; they give ``n_lines`` of context on each side.
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
    """The lines of a text as the programs count them."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _match(result: dict[str, Any]) -> Match:
    """One result, of version 3 (0-based numbers, a distance and a block of lines) or as we report it."""
    if "match_line_number" not in result:
        text = str(result["text"])
        context = result.get("context") or [text]
        lines = context.split("\n") if isinstance(context, str) else list(context)
        score = float(result["score"]) if "score" in result else 1.0 - float(result["distance"])
        return {"file": result["file"], "line": int(result["line"]), "score": score, "text": text, "context": lines}
    number, start = int(result["match_line_number"]), int(result["start_line_number"])
    lines = str(result["content"]).split("\n")
    if len(lines) == int(result["end_line_number"]) - start + 1 and not lines[-1]:
        lines.pop()  # a block that ends in a line break
    if not 0 <= number - start < len(lines):
        raise ValueError(f"line {number} is not among lines {start} to {start + len(lines) - 1}")
    return {
        "file": result["filename"],
        "line": number + 1,
        "score": 1.0 - float(result["distance"]),
        "text": lines[number - start],
        "context": lines,
    }


def _not_understood(error: Exception) -> ActionError:
    return ActionError("parse_error", f"semtools answered what is not understood ({type(error).__name__}: {error})")

"""Print plain text to terminals: names, lines and messages are untrusted, and must not control the terminal.

All command output passes through here, or is JSON, which escapes its strings. Search results are printed without Rich,
because importing it takes longer than a search through a server.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TextIO, get_args
from urllib.parse import urlsplit

from driftline.storage.defaults import SHOWN_WEAK, all_weak, is_clipped
from driftline.storage.documents import container_of
from driftline.storage.errors import without_secrets
from driftline.storage.lines.outline import location_of

_CONTROLS = (*range(9), *range(10, 32), *range(127, 160))
_BIDIRECTIONAL = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that change the display order of text."""
_ESCAPED = {code: f"\\x{code:02x}" for code in _CONTROLS} | {code: f"\\u{code:04x}" for code in _BIDIRECTIONAL}


Color = Literal["auto", "always", "never"]
COLORS: tuple[str, ...] = get_args(Color)


@dataclass(frozen=True, slots=True)
class Appearance:
    """The output settings of the command line: ``quiet`` omits progress and reports; colours are on or off.

    ``verbose`` is the number of ``-v`` options: 1 logs the progress of runs, 2 logs everything.
    """

    quiet: bool = False
    verbose: int = 0
    color: Color = "auto"


_CURRENT = [Appearance()]


def appearance() -> Appearance:
    """Return the current output settings."""
    return _CURRENT[0]


def show_as(**changes: Any) -> None:
    """Change the settings of all further output."""
    _CURRENT[0] = replace(_CURRENT[0], **changes)


@contextmanager
def own_appearance() -> Iterator[None]:
    """Use the default appearance inside the context, and restore it on exit."""
    _CURRENT[0] = Appearance()
    try:
        yield
    finally:
        _CURRENT[0] = Appearance()


def printable(text: str) -> str:
    """Escape control characters in ``text``, except tabs."""
    return text.translate(_ESCAPED)


def say(text: str) -> None:
    """Print one line on standard output."""
    print(printable(text))


def say_done(text: str) -> None:
    """Print one line about completed work, unless the command is quiet."""
    if not _CURRENT[0].quiet:
        say(text)


def print_json(result: Mapping[str, Any]) -> None:
    """Print a JSON object on one line, with non-ASCII characters escaped so that any terminal can display it."""
    emit(json.dumps(result) + "\n")


def emit(text: str) -> None:
    """Write ``text`` to standard output; a closed pipe (``| head``) is not an error."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _end(sys.stdout)


def _end(stream: TextIO) -> None:
    """Redirect an unwritable stream to the null device, because Python flushes its buffer again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def warn(text: str, stream: TextIO | None = None) -> None:
    """Print one line on standard error; messages may contain newlines from file names and libraries."""
    log_line(f"driftline: {printable(without_secrets(' '.join(text.split())))}", stream)


def log_line(line: str, stream: TextIO | None = None) -> None:
    """Print ``line`` on standard error. A full disk or a closed pipe stops the messages, not the command."""
    stream = stream or sys.stderr
    try:
        print(line, file=stream, flush=True)
    except OSError:
        _end(stream)


def print_traceback() -> None:
    """Print the traceback of the current exception on standard error."""
    for line in traceback.format_exc().splitlines():
        log_line(printable(without_secrets(line)))


_STYLES = {"location": "1;36", "dim": "2", "definition": "32", "changed": "33", "best": "1;33"}
"""The ECMA-48 attributes of each part (Select Graphic Rendition)."""


def print_search(result: Mapping[str, Any], folders: Mapping[str, str] | None = None) -> None:
    """Print each hit as ``path:line`` and its lines, numbered from 1; a colon marks the best line, as in grep.

    For hits in documents, the anchor replaces the line number: ``report.pdf:p12``. Weak hits show only their best line.

    ``folders`` maps local sources to their folders; with it, terminals that support links show ``path:line`` as a link
    to the file or, if that is missing, to the line's permalink.
    """
    results: Sequence[Mapping[str, Any]] = result["results"]
    with_source = len({hit["source"] for hit in results}) > 1
    styled = wants_styles()
    exact = result.get("exact")
    if exact is not None and not any(hit["label"] for hit in results):
        lines = [_exact_line(hit, (folders or {}).get(hit["source"]), with_source, styled) for hit in results]
        counts = [_count(exact["lines"], "line")] if exact["lines"] or not exact["documents"] else []
        lines += [] if results else [" in ".join([*counts, _count(exact["documents"], "file")]) + "\n"]
        emit("".join(lines) + _facets(result))
        return
    none_good = exact is None and all_weak(hit.get("label") for hit in results)
    shown = [_no_good_match(len(results))] if none_good else []
    for hit in results[:SHOWN_WEAK] if none_good else results:
        folder = (folders or {}).get(hit["source"])
        shown_lines = _window({**hit, "context": ()} if hit.get("label") == "weak" else hit, styled)
        shown.append("".join([_header(hit, folder, with_source, styled), *shown_lines]))
    emit("\n".join(shown) + _facets(result))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _no_good_match(count: int) -> str:
    if count <= SHOWN_WEAK:
        return "No good match. The nearest, all weak:\n"
    return f"No good match. The nearest {SHOWN_WEAK} of {count}, all weak (--json has all):\n"


_SHOWN_VALUES = 12
"""How many values to show per facet."""


def _facets(result: Mapping[str, Any]) -> str:
    """Format the file counts, one line per facet."""
    text = ""
    for name, values in result.get("facets", {}).get("files", {}).items():
        shown = [f"{printable(value)} {count:,}" for value, count in [*values.items()][:_SHOWN_VALUES]]
        more = f", and {len(values) - _SHOWN_VALUES:,} more" if len(values) > _SHOWN_VALUES else ""
        text += f"{name}: {', '.join(shown)}{more}\n"
    return f"\nFiles\n{text}" if text else ""


def _exact_line(hit: Mapping[str, Any], folder: str | None, with_source: bool, styled: bool) -> str:
    """Format a line in grep's format, with its context lines, if any."""
    source = f"{printable(hit['source'])}:" if with_source else ""
    text = ""
    for number, line in enumerate(hit["context"], start=hit["start_line"]):
        mark = ":" if number == hit["line"] else "-"
        at = location_of(hit.get("anchor"), number) if mark == ":" else number
        location = _styled(f"{source}{printable(hit['path'])}{mark}{printable(str(at))}{mark}", "location", styled)
        opened = _url_of_file(hit, folder) if hit.get("fragment") is not None else hit.get("url")
        location = _linked(location, opened if mark == ":" else None, styled)
        text += f"{location}{_styled(printable(line), 'best' if mark == ':' else 'dim', styled)}\n"
    return text + ("--\n" if len(hit["context"]) > 1 else "")


def _header(hit: Mapping[str, Any], folder: str | None, with_source: bool, styled: bool) -> str:
    def part(text: str, style: str) -> str:
        return "  " + _styled(text, style, styled)

    freshness = hit.get("freshness")
    line = hit["line_now"] if freshness == "moved" else hit["line"]
    column = f":{hit['column']}" if is_clipped(hit["text"]) else ""
    location = location_of(hit.get("anchor"), f"{line}{column}")
    header = _styled(f"{printable(hit['path'])}:{printable(location)}", "location", styled)
    url, is_here = hit.get("url"), folder is not None and hit["path"] != "-"
    header = _linked(header, _url_of_file(hit, folder), styled)
    if hit["score"] is not None:
        header += part(" ".join([f"{hit['score']:.2f}", *([hit["label"]] if hit.get("label") else [])]), "dim")
    if hit.get("symbol") is not None:
        header += part(f"{hit['kind']} {printable(hit['symbol'])}", "definition")
    if with_source:
        header += part(printable(hit["source"]), "dim")
    if hit.get("copies"):
        header += part(f"+{len(hit['copies'])} {'copy' if len(hit['copies']) == 1 else 'copies'}", "dim")
    if freshness not in (None, "fresh"):
        header += part(f"moved from line {hit['line']}" if freshness == "moved" else freshness, "changed")
    if styled and is_here and url is not None:
        header += "  " + _linked(_styled(urlsplit(url).hostname or "", "dim", styled), url, styled)
    return header + "\n"


def _url_of_file(hit: Mapping[str, Any], folder: str | None) -> str | None:
    """Return the URL that opens a hit: the file in the local ``folder`` at its anchor, or otherwise its permalink."""
    if folder is None or hit["path"] == "-":
        return hit.get("url")
    fragment = hit.get("fragment")
    return Path(folder, container_of(hit["path"])).as_uri() + (f"#{fragment}" if fragment is not None else "")


def _linked(text: str, url: str | None, styled: bool) -> str:
    """Return ``text`` as a terminal hyperlink (OSC 8); terminals that do not support it print only the text."""
    return f"\x1b]8;;{printable(url)}\x1b\\{text}\x1b]8;;\x1b\\" if styled and url is not None else text


def _window(hit: Mapping[str, Any], styled: bool) -> Iterator[str]:
    context = hit["context"] or [hit["text"]]
    first = hit["start_line"] if hit["context"] else hit["line"]
    width = len(str(first + len(context) - 1))
    for number, text in enumerate(context, start=first):
        best = number == hit["line"]
        numbered = _styled(f"  {number:>{width}}{':' if best else '-'} ", "dim", styled)
        yield numbered + _styled(printable(text).expandtabs(4), "best" if best else "dim", styled) + "\n"


def _styled(text: str, style: str, styled: bool) -> str:
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if styled and text else text


def wants_styles(stream: TextIO | None = None) -> bool:
    """Return whether to use colours on ``stream``, according to ``--color``, the usual variables, and whether it is a
    terminal.

    ``stream`` defaults to standard output.
    """
    if _CURRENT[0].color != "auto":
        return _CURRENT[0].color == "always"
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream or sys.stdout).isatty()

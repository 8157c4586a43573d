"""Plain text for terminals: names, lines and messages are untrusted, and none of them may steer a terminal.

All output of commands passes through here, or is JSON, which escapes what it prints.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any, TextIO

from driftline.storage.redaction import redacted

_CONTROLS = (*range(9), *range(10, 32), *range(127, 160))
_BIDIRECTIONAL = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""They display a text in another order than it has."""
_ESCAPED = {code: f"\\x{code:02x}" for code in _CONTROLS} | {code: f"\\u{code:04x}" for code in _BIDIRECTIONAL}


def printable(text: str) -> str:
    """``text`` with its control characters escaped; tabs stay."""
    return text.translate(_ESCAPED)


def say(text: str) -> None:
    """Print one line on standard output."""
    print(printable(text))


def print_json(result: Mapping[str, Any]) -> None:
    """Print a JSON object on one line, with non-ASCII characters escaped, so that every terminal can print it."""
    emit(json.dumps(result) + "\n")


def emit(text: str) -> None:
    """Write ``text`` to standard output; a closed pipe (``| head``) is not an error."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes the buffer again at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def warn(text: str, stream: TextIO | None = None) -> None:
    """Print one line on standard error; messages may contain newlines from file names and libraries."""
    print(f"driftline: {printable(redacted(' '.join(text.split())))}", file=stream or sys.stderr, flush=True)


def print_traceback() -> None:
    """Print the traceback of the current exception on standard error."""
    for line in traceback.format_exc().splitlines():
        print(printable(redacted(line)), file=sys.stderr)

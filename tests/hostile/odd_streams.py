"""The ``driftline`` command with odd standard streams, for forked processes: as if it had been started with them.

Usage: odd_streams.py CONDITION ARGUMENT...
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path

from driftline.flows.commands import main

CONDITIONS = (
    *("full", "closed", "all closed", "all full", "a pipe nobody reads"),
    *("an ASCII output", "a Latin-1 output", "a directory that is gone"),
)


def enter(condition: str) -> None:
    """Change this process's streams or folder."""
    match condition:
        case "full":
            write_to(os.open("/dev/full", os.O_WRONLY), 1)
        case "all full":
            write_to(os.open("/dev/full", os.O_WRONLY), 1, 2)
        case "closed":
            close("stdout")
        case "all closed":
            close("stdin", "stdout", "stderr")
        case "a pipe nobody reads":
            read, write = os.pipe()
            os.close(read)
            write_to(write, 1)
        case "an ASCII output" | "a Latin-1 output":
            for stream, errors in ((sys.stdout, "strict"), (sys.stderr, "backslashreplace")):
                assert isinstance(stream, io.TextIOWrapper)
                stream.reconfigure(encoding=condition.split()[1], errors=errors)
        case _:
            gone = Path.cwd() / "gone"
            gone.mkdir()
            os.chdir(gone)
            shutil.rmtree(gone)


def write_to(file: int, *streams: int) -> None:
    for stream in streams:
        os.dup2(file, stream)
    os.close(file)


def close(*names: str) -> None:
    """Close standard streams: Python sets them to None if they are closed at start-up."""
    for name in names:
        os.close(getattr(sys, name).fileno())
        setattr(sys, name, None)
        setattr(sys, f"__{name}__", None)


if __name__ == "__main__":
    enter(sys.argv[1])
    sys.argv = ["driftline", *sys.argv[2:]]
    sys.exit(main.command_line())

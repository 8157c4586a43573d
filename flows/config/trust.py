"""Configuration files that the user has trusted, by path and content (as direnv keeps them).

A ``driftline.toml`` that was found by walking up may come from somebody else. Its storage options and references could
send credentials of this user to an endpoint of its author, so they are used only after ``driftline trust``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from driftline.storage.errors import UsageError

STATE_VARIABLE = "XDG_STATE_HOME"


def is_trusted(file: Path, content: bytes, environ: Mapping[str, str]) -> bool:
    """Whether the user has trusted ``file`` with exactly this content."""
    return _mark(file, content, environ).is_file()


def trust(file: Path, content: bytes, environ: Mapping[str, str]) -> None:
    """Trust ``file`` with this content. Raises UsageError if that cannot be recorded."""
    mark = _mark(file, content, environ)
    try:
        mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark.write_text(f"{file}\n")
    except OSError as error:
        raise UsageError("The trust cannot be recorded", str(mark), f"{error.strerror}.") from error


def distrust(file: Path, content: bytes, environ: Mapping[str, str]) -> None:
    """Take the trust in ``file`` back."""
    _mark(file, content, environ).unlink(missing_ok=True)


def _mark(file: Path, content: bytes, environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME") or os.path.expanduser("~")
    state = Path(environ.get(STATE_VARIABLE) or Path(home, ".local", "state"))
    digest = hashlib.sha256(os.fsencode(file) + b"\0" + content).hexdigest()
    return state / "driftline" / "trusted" / digest

"""Find the folders of the user that contain data, caches and state, and the limits of caches in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from driftline.storage.errors import UsageError

_USER_FOLDERS = {"XDG_CACHE_HOME": "~/.cache", "XDG_DATA_HOME": "~/.local/share", "XDG_STATE_HOME": "~/.local/state"}


def user_folder(variable: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the absolute folder that the XDG ``variable`` is set to, or its default in the home folder.

    Ignores a relative path, as the XDG specification requires: the current folder may be a clone of anyone's
    repository. Raises UsageError if the home folder is unknown.
    """
    named = Path(os.path.expanduser(environ.get(variable, "")))
    return named if named.is_absolute() else with_home(_USER_FOLDERS[variable])


def with_home(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` with ``~`` replaced by the home folder.

    Raises UsageError if the user has no home, as in some containers; pathlib would raise RuntimeError.
    """
    found = Path(os.path.expanduser(path))
    if os.fspath(path).startswith("~") and not found.is_absolute():
        raise UsageError("No home folder is known", str(path)[:200], "Set HOME, or use an absolute path.")
    return found


def cache_folder_of(variable: str, name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that an environment ``variable`` is set to, or ``driftline/{name}`` in the user's cache folder.

    Raises UsageError.
    """
    if named := environ.get(variable):
        return with_home(named).absolute()
    return user_folder("XDG_CACHE_HOME", environ) / "driftline" / name


def byte_limit(variable: str, default: int) -> int:
    """Return the byte count in an environment ``variable``, or ``default``. Raises UsageError."""
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal():
        raise UsageError(f"{variable} must be a number of bytes", text, "Correct it.")
    return int(text)

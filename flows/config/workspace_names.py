"""Resolve the paths, URIs and names of workspaces that users specify, and find ``driftline.toml``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from driftline.storage.environment import user_folder, with_home
from driftline.storage.errors import UsageError
from driftline.storage.option_table import path_or_uri

HOME_VARIABLE = "DRIFTLINE_HOME"
"""The folder with named workspaces, such as ``@notes``."""
DATABASE_VARIABLE = "DATABASE_URL"
"""The URL of the memory catalog."""
SERVER_VARIABLE = "DRIFTLINE_SERVER"
"""The URL of the web server that searches query, and that flow reports link to."""
WORKSPACE_FOLDER = ".driftline"
CONFIG_FILE, CONFIG_VARIABLE = "driftline.toml", "DRIFTLINE_CONFIG"

# A single letter before the colon is a Windows drive, not a scheme.
_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://(?P<rest>.*)", re.DOTALL)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_OF_HOST = re.compile(r"[A-Za-z0-9._-]+@[A-Za-z0-9._-]+:.")
"""``git@host:path``, an ssh repository."""
NAME_SIGN = "@"
"""The first character of a workspace name: anything else is a path or a URI."""
_LOCAL_SCHEMES = frozenset({"file", "local"})


def local_path(uri: str) -> Path | None:
    """Return the local path of ``uri`` (a bare path or ``file://``), or None for other URIs.

    Percent escapes are kept.
    """
    if "::" in uri:  # chained file systems, such as zip://…::s3://…
        return None
    match = _URI.fullmatch(uri)
    if match is None:
        is_remote = _OF_HOST.match(uri) is not None and not os.path.lexists(uri)
        return None if is_remote else with_home(uri)
    return Path(match["rest"]) if match["scheme"].lower() in _LOCAL_SCHEMES else None


def absolute_workspace(workspace: str | os.PathLike[str], home: str | None = None) -> str:
    """Return the canonical spelling of a workspace: an absolute path, or a URI without a trailing slash.

    ``@notes`` is the workspace called ``notes`` in ``home``, which defaults to $DRIFTLINE_HOME, then to the user's data
    folder (XDG). Raises UsageError for an invalid name.
    """
    workspace = path_or_uri("A workspace", workspace)
    if workspace.startswith(NAME_SIGN):
        name = workspace.removeprefix(NAME_SIGN)
        if not is_plain_name(name):
            fix = f"Names consist of letters, digits, - and _; for a folder, write ./{workspace}"
            raise UsageError("Not a valid workspace name", workspace, fix)
        home = home or os.environ.get(HOME_VARIABLE)
        folder = with_home(home) if home else user_folder("XDG_DATA_HOME") / "driftline" / "workspaces"
        return str((folder / name).resolve())
    if not _URI.fullmatch(workspace):
        return str(with_home(workspace).resolve())
    path = local_path(workspace)
    return os.path.abspath(path) if path is not None else absolute_uri(workspace, Path.cwd())


def is_plain_name(workspace: str) -> bool:
    """Return whether ``workspace`` looks like a name missing its @, rather than a path or a URI."""
    return _PLAIN_NAME.fullmatch(workspace) is not None


def absolute_uri(uri: str, folder: Path) -> str:
    """Make a local URI or path absolute, relative to ``folder``; remove a trailing slash from other URIs."""
    path = local_path(uri)
    if path is None:
        scheme, separator, rest = uri.partition("://") if "://" in uri else ("", "", uri)
        return f"{scheme}{separator}{rest.rstrip('/')}"
    return os.path.realpath(folder / path)


def nearest(start: Path, name: str, exists: Callable[[Path], bool]) -> Path | None:
    """Return the first ``name`` in ``start`` or a parent folder for which ``exists`` is true.

    Pass ``os.path.isdir`` or ``os.path.isfile``: the methods of ``Path`` raise PermissionError.
    """
    resolved = start.resolve()
    return next((path for folder in (resolved, *resolved.parents) if exists(path := folder / name)), None)


def nearest_workspace(start: Path) -> Path | None:
    """Return the first ``.driftline`` folder in ``start`` or a parent folder."""
    return nearest(start, WORKSPACE_FOLDER, os.path.isdir)


def find_config(given: str | os.PathLike[str] | None) -> Path | None:
    """Return the given file, then $DRIFTLINE_CONFIG, then the nearest ``driftline.toml`` here or above, then None.

    Raises UsageError if an explicitly given file does not exist.
    """
    if named := given or os.environ.get(CONFIG_VARIABLE):
        path = with_home(named).resolve()
        if not path.is_file():
            fix = f"Check the path in {'--config' if given else CONFIG_VARIABLE}."
            raise UsageError("The configuration file does not exist", str(path), fix)
        return path
    return nearest(Path.cwd(), CONFIG_FILE, os.path.isfile)


def location_of(path: Path, table: str = "", row: int | None = None) -> str:
    """Format the location of an error in a configuration file; ``row`` is 0-based, the result 1-based."""
    if not table:
        return str(path)
    return f"{path}, {table}" if row is None else f"{path}, [[{table}]] number {row + 1}"

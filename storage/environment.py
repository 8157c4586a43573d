"""Find the user's folders, cache limits, and the command that installed Driftline.

``install_command``, ``upgrade_command`` and ``package_command`` return commands for the hints of errors.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from driftline.storage.errors import UsageError

_USER_FOLDERS = {"XDG_CACHE_HOME": "~/.cache", "XDG_DATA_HOME": "~/.local/share", "XDG_STATE_HOME": "~/.local/state"}


def user_folder(variable: str) -> Path:
    """Return the absolute folder that the XDG ``variable`` is set to, or its default in the home folder.

    Ignores a relative path, as the XDG specification requires: the current folder may be a clone of anyone's
    repository. Raises UsageError if the home folder is unknown.
    """
    named = Path(os.path.expanduser(os.environ.get(variable, "")))
    return named if named.is_absolute() else with_home(_USER_FOLDERS[variable])


def with_home(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` with ``~`` replaced by the home folder.

    Raises UsageError if the user has no home, as in some containers; pathlib would raise RuntimeError.
    """
    found = Path(os.path.expanduser(path))
    if os.fspath(path).startswith("~") and not found.is_absolute():
        raise UsageError("The home folder is unknown", str(path)[:200], "Set HOME, or use an absolute path.")
    return found


def cache_folder_of(variable: str, name: str) -> Path:
    """Return the folder that an environment ``variable`` is set to, or ``driftline/{name}`` in the user's cache folder.

    Raises UsageError.
    """
    if named := os.environ.get(variable):
        return with_home(named).absolute()
    return user_folder("XDG_CACHE_HOME") / "driftline" / name


def byte_limit(variable: str, default: int) -> int:
    """Return the byte count in an environment ``variable``, or ``default``. Raises UsageError."""
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal():
        raise UsageError(f"{variable} must be a number of bytes", text, "Correct it.")
    return int(text)


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation of Driftline.

    Args:
        extra: The name of an optional dependency in ``pyproject.toml``, such as ``s3``.
    """
    folder, requirement, editable = _installed_from(_origin(), f"[{extra}]")
    if folder and os.path.isfile(os.path.join(folder, "Makefile")) and _is_below(sys.prefix, folder):
        return f"make -C {shlex.quote(folder)} install"
    return f"{_installer()} {'-e ' if editable else ''}{shlex.quote(requirement)}"


def upgrade_command() -> str:
    """Return the command that upgrades this installation of Driftline to the newest version."""
    folder, requirement, editable = _installed_from(_origin(), "")
    if not folder:
        return f"{_installer()} --upgrade {shlex.quote(requirement)}"
    quoted = shlex.quote(folder)
    return f"git -C {quoted} pull && {_installer()} {'-e ' if editable else ''}{quoted}"


def package_command(*arguments: str) -> str:
    """Return the command that installs another package next to Driftline; ``arguments`` are passed to pip."""
    return shlex.join([*shlex.split(_installer()), *arguments])


def _origin() -> Mapping[str, Any]:
    """Return the origin of this installation (PEP 610); an empty mapping if it came from a package index."""
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").is_file():
        return {"url": checkout.as_uri(), "dir_info": {"editable": True}}
    import json  # importing these takes 10 ms: pay for it only on failure
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        text = distribution("driftline").read_text("direct_url.json")
    except PackageNotFoundError:
        return {}
    return json.loads(text) if text else {}


def _installed_from(origin: Mapping[str, Any], extras: str) -> tuple[str | None, str, bool]:
    """Return the folder of the clone, if any, the requirement with ``extras``, and whether it is editable."""
    if not origin:
        return None, f"driftline{extras}", False
    url = str(origin["url"])
    if "dir_info" in origin:
        folder = url.removeprefix("file://")
        return folder, f"{folder}{extras}", bool(origin["dir_info"].get("editable"))
    vcs = origin.get("vcs_info", {}).get("vcs")
    return None, f"driftline{extras} @ {f'{vcs}+' if vcs else ''}{url}", False


def _installer() -> str:
    """Return the install command's prefix for whichever tool (pip, uv, ...) created this environment."""
    if os.path.isfile(os.path.join(sys.prefix, "uv-receipt.toml")):
        return "uv tool install --force"
    if os.path.isfile(os.path.join(sys.prefix, "pipx_metadata.json")):
        return "pipx install --force"
    if importlib.util.find_spec("pip") is None:
        return f"uv pip install --python {shlex.quote(sys.executable)}"
    import shutil

    found = shutil.which("pip")
    is_ours = found is not None and os.path.dirname(found) == os.path.dirname(sys.executable)
    return "pip install" if is_ours else f"{shlex.quote(sys.executable)} -m pip install"


def _is_below(path: str, folder: str) -> bool:
    return os.path.realpath(path).startswith(os.path.join(os.path.realpath(folder), ""))

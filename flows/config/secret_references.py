"""Secrets in a configuration: never written out, only referred to, as ``${VARIABLE}`` or ``block:NAME`` of Prefect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from driftline.storage.errors import UsageError

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_BLOCK = re.compile(r"block:([a-z0-9][a-z0-9-]*)")
_SECRET_KEY = re.compile(
    r"key|secret|token|passw|signature|credential|connection_string|(^|_)(sas|user|username)($|_)", re.I
)
_SECRET_VALUE = re.compile(
    r"-----BEGIN |\"private_key\"|[?&](sig|signature|token|key|password)=|://[^/@:]*:[^/@]+@", re.I
)
_FIX = "Write ${VARIABLE}, which is read from the environment, or block:NAME of a Prefect Secret block."


def check_options(options: Mapping[str, str], where: str) -> None:
    """Raise UsageError for an option that holds a secret, or looks like a reference and is none."""
    for key, value in options.items():
        if _VARIABLE.fullmatch(value) or _BLOCK.fullmatch(value):
            continue
        if value.startswith("block:") or "${" in value:
            raise UsageError(f"The storage option {key!r} is no reference that can be followed", where, _FIX)
        if _SECRET_KEY.search(key) or _SECRET_VALUE.search(value):
            raise UsageError(f"The storage option {key!r} may hold a secret, which is not written here", where, _FIX)


def check_uri(uri: str, where: str) -> None:
    """Raise UsageError, which does not repeat ``uri``, if it holds a password or a signature."""
    if _SECRET_VALUE.search(uri):
        fix = "Take the credentials out of it and put references to them into [storage_options]."
        raise UsageError("A URI holds credentials, which are not written here", where, fix)


def resolve_options(options: Mapping[str, str], environ: Mapping[str, str], where: str = "") -> dict[str, str]:
    """``options`` with what their references stand for now. Raises UsageError for a reference to what is not there."""
    return {key: _resolve(key, value, environ, where) for key, value in options.items()}


def _resolve(key: str, value: str, environ: Mapping[str, str], where: str) -> str:
    if variable := _VARIABLE.fullmatch(value):
        found = environ.get(variable[1])
        if not found:
            raise UsageError(f"The storage option {key!r} needs the variable {variable[1]}", where, "Set it.")
        return found
    if block := _BLOCK.fullmatch(value):
        return _load_block(key, block[1], where)
    return value


def _load_block(key: str, name: str, where: str) -> str:
    from prefect.blocks.system import Secret

    try:
        # Also inside a flow, where it would be awaited; the types do not know the argument.
        loaded: Any = Secret.load(name, _sync=True)  # type: ignore[call-arg]
    except ValueError as error:
        fix = f"Make it: prefect block create secret, with the name {name}."
        raise UsageError(f"The storage option {key!r} needs the Secret block {name!r}", where, fix) from error
    return str(loaded.get())

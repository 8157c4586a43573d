"""Resolve secret references: configurations contain ``${VARIABLE}`` or Prefect's ``block:NAME`` instead of secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from driftline.storage.errors import UsageError, may_hold_secret

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_TOKEN = re.compile(r"^(git\+https?://|https?://)(?:[A-Za-z0-9._~-]+:)?\$\{[A-Za-z_][A-Za-z0-9_]*\}@")
_BLOCK = re.compile(r"block:([a-z0-9][a-z0-9-]*)")
_SECRET_KEY = re.compile(
    r"key|secret|token|passw|signature|credential|connection_string|(^|_)(sas|user|username)($|_)", re.I
)
_SECRET_VALUE = re.compile(
    r"-----BEGIN |\"private_key\"|[?&](sig|signature|token|key|password)=|://[^/@:]*:[^/@]+@", re.I
)
_FIX = "Use ${VARIABLE} for an environment variable, or block:NAME for a Prefect Secret block."


def check_options(options: Mapping[str, str], where: str) -> None:
    """Raise UsageError if options contain a plain-text secret or a malformed reference."""
    for key, value in options.items():
        if _VARIABLE.fullmatch(value) or _BLOCK.fullmatch(value):
            continue
        if value.startswith("block:") or "${" in value:
            raise UsageError(f"The storage option {key!r} is a malformed reference", where, _FIX)
        if _SECRET_KEY.search(key) or _SECRET_VALUE.search(value):
            raise UsageError(f"The storage option {key!r} may contain a plain-text secret", where, _FIX)


def check_secret(name: str, value: str, where: str) -> None:
    """Raise UsageError unless ``value`` is a secret reference. The message never quotes ``value``."""
    if not _VARIABLE.fullmatch(value) and not _BLOCK.fullmatch(value):
        raise UsageError(f"{name!r} contains a plain-text secret", where, _FIX)


def resolve_secret(name: str, value: str, where: str) -> str:
    """Return a secret's current value. Raises UsageError if it has none."""
    return _resolve(f"The webhook {name!r}", value, where)


def check_uri(uri: str, where: str) -> None:
    """Raise UsageError if ``uri`` contains a password or a signature. The message never quotes ``uri``."""
    if _SECRET_VALUE.search(uri) or may_hold_secret(uri):
        fix = "Remove the credentials from the URI and refer to them in [storage_options]."
        raise UsageError("The URI contains plain-text credentials", where, fix)


def without_reference(uri: str) -> str:
    """Remove the token reference from a git repository's URI; return any other URI unchanged."""
    return _TOKEN.sub(r"\1", uri)


def check_catalog(url: str, where: str) -> None:
    """Raise UsageError if a catalog URL contains a plain-text password; references are allowed."""
    if _SECRET_VALUE.search(_VARIABLE.sub("", url)):
        raise UsageError("The catalog URL may contain a plain-text password", where, _FIX)


def resolve_catalog(url: str, where: str) -> str:
    """Replace references in a catalog URL with their current values. Raises UsageError if a reference has no value."""
    if block := _BLOCK.fullmatch(url):
        return _load_block("The catalog", block[1], where)
    return _VARIABLE.sub(lambda match: _resolve("The catalog", match[0], where), url)


def resolve_options(options: Mapping[str, str], where: str = "") -> dict[str, str]:
    """Replace references in ``options`` with their current values. Raises UsageError if a reference has no value."""
    return {key: _resolve(f"The storage option {key!r}", value, where) for key, value in options.items()}


def _resolve(what: str, value: str, where: str) -> str:
    if variable := _VARIABLE.fullmatch(value):
        secret = os.environ.get(variable[1])
        if not secret:
            raise UsageError(f"{what} needs the variable {variable[1]}", where, "Set it.")
        return secret
    if block := _BLOCK.fullmatch(value):
        return _load_block(what, block[1], where)
    return value


def _load_block(what: str, name: str, where: str) -> str:
    from prefect.blocks.system import Secret

    try:
        # Inside a flow, load() would return an awaitable; its type hints do not include the argument that prevents
        # this.
        loaded: Any = Secret.load(name, _sync=True)  # type: ignore[call-arg]
    except ValueError as error:
        fix = f"Create it under the name {name}: prefect block create secret."
        raise UsageError(f"{what} requires the Secret block {name!r}", where, fix) from error
    return str(loaded.get())

"""Runs uv with the machine's pip configuration: index, certificates, proxy. As a program it passes its arguments to uv.

uv reads neither pip.conf nor PIP_* variables, so a machine that installs from a mirror would need two configurations.
Explicit settings of uv win. Additional indexes of pip are ignored: files there may share a version with the index and
differ in content, and `make lock` would record their hashes.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

BIN = Path(sys.executable).parent
UV = BIN / "uv"
SECTIONS = ("global", "install", ":env:")
"""Where pip finds an option, the strongest last."""
VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "no-index": "UV_NO_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
}
INDEX_OPTIONS = ("index-url", "no-index", "find-links")
INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_CONFIG_FILE")


def pip_settings(listing: str) -> dict[str, str]:
    """What ``pip config list`` prints, by option: the strongest section that sets it."""
    by_section: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in listing.splitlines():
        name, assigned, value = line.partition("=")
        section, dot, option = name.rpartition(".")
        if assigned and dot and section in by_section:
            by_section[section][option] = str(ast.literal_eval(value))
    return {option: value for section in SECTIONS for option, value in by_section[section].items()}


def uv_variables(settings: Mapping[str, str], environ: Mapping[str, str], own_index: bool = False) -> dict[str, str]:
    """The variables that make uv install from where pip would: none that is set, no index where uv has its own."""
    own_index = own_index or any(environ.get(name) for name in INDEX_VARIABLES)
    variables: dict[str, str] = {}
    for option, name in VARIABLES.items():
        value = settings.get(option, "").split()
        if option == "find-links" and "UV_NO_INDEX" not in variables:
            continue
        if value and not environ.get(name) and not (own_index and option in INDEX_OPTIONS):
            variables[name] = " ".join(value) if option == "trusted-host" else ",".join(value)
    return variables


def is_configured() -> bool:
    """Whether the user or the machine has a configuration file for uv, which may name an index."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return any((folder / "uv" / "uv.toml").exists() for folder in (home, Path("/etc")))


def environment() -> dict[str, str]:
    """This process's variables, and those that uv needs beside them."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listing = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    variables = uv_variables(pip_settings(listing), os.environ, is_configured())
    return {**os.environ, **variables, "VIRTUAL_ENV": str(BIN.parent)}


if __name__ == "__main__":
    os.execve(UV, [str(UV), *sys.argv[1:]], environment())

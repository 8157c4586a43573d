"""Type checkers over a separate folder, as in a user's editor or CI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def outside_of_the_checkout() -> dict[str, str]:
    """Return the environment without PYTHONPATH, through which an interpreter could find the checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def mypy(folder: Path, cache: Path, python: str = sys.executable) -> str:
    """Check the programs in ``folder`` with strict mypy and the packages of ``python``. Return its output, or ""
    without errors.
    """
    options = ["--strict", "--no-error-summary", "--cache-dir", str(cache), "--python-executable", python]
    return _printed([sys.executable, "-m", "mypy", *options, "."], folder)


def pyright(folder: Path, python: str = sys.executable) -> str:
    """Check the programs in ``folder`` with strict pyright and the packages of ``python``. Return its output, or ""
    without errors.
    """
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    printed = _printed([sys.executable, "-m", "basedpyright", "--pythonpath", python], folder)
    return "" if printed.startswith("0 errors, 0 warnings") else printed


def _printed(command: list[str], folder: Path) -> str:
    environ = outside_of_the_checkout()
    ended = subprocess.run(command, check=False, cwd=folder, env=environ, capture_output=True, text=True)
    assert not ended.stderr, ended.stderr
    return ended.stdout.strip()

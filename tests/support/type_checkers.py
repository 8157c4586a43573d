"""Type checkers over a separate folder, as in a user's editor or CI."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PROGRAM = Path(__file__).with_name("user_program.py")
MISTAKES = """
import driftline

driftline.serach("workspace", "query")
driftline.index("folder", workspace="workspace", max_delete_fractoin=0.5)
driftline.search("workspace", "query", mode="hybird")
driftline.grep("query", "file").results[0].line.upper()
"""
INTERNAL = ("dask", "distributed", "httpx", "mcp", "prefect", "rich", "sqlalchemy", "starlette", "typer", "uvicorn")
"""Libraries that no public name mentions: mypy would read them for as long as all others."""


def assert_checks(checker: Callable[[Path, str], str], folder: Path, python: str) -> None:
    """Assert that ``checker`` accepts the user's program and refuses each mistake, with the packages of ``python``."""
    shutil.copy(PROGRAM, folder)
    (folder / "mistakes.py").write_text(MISTAKES)
    printed = checker(folder, python)
    for number in (4, 5, 6, 7):
        assert f"mistakes.py:{number}:" in printed
    assert PROGRAM.name not in printed


def outside_of_the_checkout() -> dict[str, str]:
    """Return the environment without PYTHONPATH, through which an interpreter could find the checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def mypy(folder: Path, python: str) -> str:
    """Check the programs in ``folder`` with strict mypy and the packages of ``python``. Return its output."""
    skipped = ",".join(f"{name}.*" for name in INTERNAL)
    (folder / "mypy.ini").write_text(f"[mypy]\n[mypy-{skipped}]\nfollow_imports = skip\n")
    options = ["--strict", "--no-error-summary", "--cache-dir", os.devnull, "--python-executable", python]
    return _printed([sys.executable, "-m", "mypy", *options, "."], folder)


def pyright(folder: Path, python: str) -> str:
    """Check the programs in ``folder`` with strict pyright and the packages of ``python``. Return its output."""
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    return _printed([sys.executable, "-m", "basedpyright", "--pythonpath", python], folder)


def _printed(command: list[str], folder: Path) -> str:
    environ = outside_of_the_checkout()
    ended = subprocess.run(command, check=False, cwd=folder, env=environ, capture_output=True, text=True)
    assert not ended.stderr, ended.stderr
    return ended.stdout.strip()

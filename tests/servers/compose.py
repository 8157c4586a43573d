"""The commands in deployments/compose.yaml, so tests run the same commands as the containers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).resolve().parents[2] / "deployments" / "compose.yaml"
BIN = Path(sys.executable).parent


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())["services"]
    return found


def compose_command(service: str, replaced: Mapping[str, str], program: str = "") -> list[str]:
    """Return the command of a service that runs ``program`` from the virtual environment. Words in ``replaced`` are
    replaced; each must occur.
    """
    words = [program] if program else []
    words += services()[service]["command"]
    missing = set(replaced) - set(words)
    assert not missing, f"{service} has no {missing}"
    head, *rest = (replaced.get(word, word) for word in words)
    return [str(BIN / head), *rest]

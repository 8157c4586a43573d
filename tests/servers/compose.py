"""The commands of deployments/compose.yaml, so that tests run the same commands as the containers."""

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
    """The command of a service that runs ``program`` of the virtual environment; some words are ``replaced``, and each
    of them must occur.
    """
    words = [program] if program else []
    words += services()[service]["command"]
    missing = set(replaced) - set(words)
    assert not missing, f"{service} has no {missing}"
    head, *rest = (replaced.get(word, word) for word in words)
    return [str(BIN / head), *rest]

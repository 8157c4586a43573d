"""axe-core: the rules of WCAG 2.2 AA that a program can check, run in a page of the browser."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

SCRIPT = Path(sys.prefix) / "axe/node_modules/axe-core/axe.min.js"
"""The file that ``make axe`` installs."""
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def violations(page: Page) -> list[str]:
    """Return the rules that the current state of ``page`` violates, each with the first elements that violate it."""
    # An evaluated script is not one of the page: its policy stays as strict as it is.
    page.evaluate(SCRIPT.read_text())
    found: dict[str, Any] = page.evaluate("rules => axe.run({runOnly: rules})", _RULES)
    return [f"{each['id']}: {[node['html'][:200] for node in each['nodes'][:3]]}" for each in found["violations"]]

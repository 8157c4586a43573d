"""axe-core: the WCAG 2.2 AA rules that a program can check, run in a browser page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

SCRIPT = Path(sys.prefix) / "axe/node_modules/axe-core/axe.min.js"
"""The file installed by ``make axe``."""
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def violations(page: Page) -> list[str]:
    """Return the rules that the current state of ``page`` violates, each with the first violating elements."""
    # An evaluated script is not a page script, so the page's policy stays strict.
    page.evaluate(SCRIPT.read_text())
    found: dict[str, Any] = page.evaluate("rules => axe.run({runOnly: rules})", _RULES)
    return [f"{each['id']}: {[node['html'][:200] for node in each['nodes'][:3]]}" for each in found["violations"]]

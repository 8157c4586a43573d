"""Headless Chromium for tests: opens pages, waits for text, and saves documentation screenshots on request."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page, expect, sync_playwright

from tests.support.waiting import PATIENCE_SECONDS

SCREENSHOTS = Path(__file__).resolve().parents[2] / "docs" / "images"
SCREENSHOT_VARIABLE = "DRIFTLINE_SCREENSHOTS"
"""Set to 1 to update the pictures in the README."""
WAIT_MILLISECONDS = 1000 * PATIENCE_SECONDS
PACKAGED = Path(sys.prefix) / "browser"
"""The folder into which ``make browser`` unpacks Chromium, its libraries, and a proportional font."""
_PACKAGED_PROGRAM = shutil.which("chromium", path=str(PACKAGED))
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or _PACKAGED_PROGRAM
)


@dataclass(frozen=True)
class Browser:
    """A browser window."""

    page: Page

    def open(self, url: str, *texts: str) -> None:
        """Open ``url`` and wait until each of ``texts`` is visible."""
        self.page.goto(url, wait_until="domcontentloaded")
        for text in texts:
            expect(self.page.get_by_text(text).first).to_be_visible()

    @contextmanager
    def fresh(self) -> Iterator[Browser]:
        """Yield a window of the same browser that shares nothing with this one; close it at the end of the block."""
        assert self.page.context.browser is not None
        context = self.page.context.browser.new_context(viewport={"width": 1200, "height": 800})
        context.set_default_timeout(WAIT_MILLISECONDS)
        yield Browser(context.new_page())
        context.close()

    def first_paint_milliseconds(self) -> float:
        """Return the time from the start of the navigation to the first text or image of the page."""
        found = self.page.evaluate(
            """() => new Promise((told) => new PerformanceObserver((list) => {
                const paint = list.getEntriesByName("first-contentful-paint")[0];
                if (paint) told(paint.startTime);
            }).observe({ type: "paint", buffered: true }))"""
        )
        return float(found)

    def waited_milliseconds(self) -> float:
        """Return the time from the request for the page to the first byte of the response."""
        (sent,) = self.page.evaluate("() => performance.getEntriesByType('navigation').map((each) => each.toJSON())")
        return float(sent["responseStart"] - sent["requestStart"])

    def keep(self, name: str, *, height: int = 800) -> None:
        """Save a screenshot of the window, if requested."""
        if os.environ.get(SCREENSHOT_VARIABLE) == "1":
            SCREENSHOTS.mkdir(exist_ok=True)
            self.page.set_viewport_size({"width": 1200, "height": height})
            self.page.wait_for_timeout(500)
            self.page.screenshot(path=SCREENSHOTS / f"{name}.png")


def _fonts(folder: Path) -> Path:
    """Write the font settings: the fonts from ``make browser``, and Prefect's monospaced font for code."""
    found = find_spec("prefect")
    assert found is not None
    assert found.origin is not None
    settings = folder / "fonts.conf"
    settings.write_text(
        f"""<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>
        <dir>{PACKAGED / "fonts"}</dir><dir>{Path(found.origin).parent / "server"}</dir><cachedir>{folder}</cachedir>
        <alias><family>monospace</family><prefer><family>Geist Mono</family></prefer></alias>
        <alias><family>sans-serif</family><prefer><family>Open Sans</family></prefer></alias>
        <alias><family>system-ui</family><prefer><family>Open Sans</family></prefer></alias></fontconfig>"""
    )
    return settings


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Open a window until the block ends, in the Chromium on the PATH or else the one from ``make browser``."""
    assert CHROMIUM, "Chromium is not installed (Debian: apt-get install chromium; any Linux with npm: make browser)"
    variables: dict[str, str | float | bool] = {**os.environ}
    if CHROMIUM == _PACKAGED_PROGRAM:
        variables |= {"LD_LIBRARY_PATH": str(PACKAGED / "lib")}
    with TemporaryDirectory() as folder, sync_playwright() as driver:
        if CHROMIUM == _PACKAGED_PROGRAM:
            variables["FONTCONFIG_FILE"] = str(_fonts(Path(folder)))
        # The sandbox needs rights that containers and root lack; tests only open their own pages.
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], env=variables, timeout=WAIT_MILLISECONDS
        )
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.set_default_timeout(WAIT_MILLISECONDS)
        expect.set_options(timeout=WAIT_MILLISECONDS)
        yield Browser(page)
        browser.close()

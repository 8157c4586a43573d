"""``driftline web`` as a process, and its pages in a browser: wide, narrow, dark, and without a script."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.servers.browser import WAIT_MILLISECONDS, open_browser

HOSTILE_NAME = "<img src=x onerror=alert(1)>.py"
STOP_SECONDS = 60


@pytest.fixture
def process(tmp_path: Path, driftline: Callable[..., Any]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running ``driftline web`` and its URL."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / HOSTILE_NAME).write_text("lease = '<script>alert(1)</script>'" + " # wide" * 100 + "\n")
    (tmp_path / "tree/notes.md").write_text("who renews the lease of a run\n")
    assert driftline("index", tmp_path / "tree", "--workspace", tmp_path / "ws").code == 0
    command = [sys.executable, "-m", "driftline", "web", "--workspace", str(tmp_path / "ws"), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as running:
        assert running.stderr is not None
        try:
            said = re.search(r"serving (http://\S+/)", next(line for line in running.stderr if "serving" in line))
            assert said is not None
            yield running, said[1]
        finally:
            running.kill()


def test_pages_work_in_a_browser(process: tuple[subprocess.Popen[str], str]) -> None:
    _, url = process
    said: list[str] = []
    with open_browser() as browser:
        page = browser.page
        page.on("console", lambda message: said.append(message.text))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        asked: set[str] = set()
        page.on("request", lambda request: asked.add(request.url))
        browser.open(url)
        expect(page.locator("#q")).to_be_focused(timeout=WAIT_MILLISECONDS)
        page.keyboard.type("lease")
        page.keyboard.press("Enter")
        page.wait_for_url("**/?q=lease*")
        browser.open(page.url, HOSTILE_NAME, "who renews the lease")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            page.set_viewport_size({"width": 360, "height": 640})
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, scheme
        page.get_by_role("link", name="md", exact=True).click()
        page.wait_for_url("**ext=md*")
        page.get_by_role("link", name="notes.md:1").click()
        page.wait_for_url("**/d?*#L1")
        assert page.locator("#L1").inner_text().endswith("who renews the lease of a run")
    assert said == []
    assert all(each.startswith(url) for each in asked)


def test_sigterm_ends_the_process(process: tuple[subprocess.Popen[str], str]) -> None:
    running, _ = process
    running.send_signal(signal.SIGTERM)
    assert running.wait(STOP_SECONDS) in (0, -signal.SIGTERM)

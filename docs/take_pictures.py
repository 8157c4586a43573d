"""Take the pictures of the web page for the documentation: index a git repository in three runs, serve it, and look.

    python docs/take_pictures.py   # into images/web-{search,document,index}.png

The repository is a temporary copy of ``storage/``, ``tasks/`` and ``docs/``; each run indexes one of them more.
The pictures of Prefect's pages come from ``tests/integration/test_deployments.py`` with ``DRIFTLINE_SCREENSHOTS=1``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from record_session import copy_package, run  # noqa: E402

from tests.servers.browser import Browser, open_browser  # noqa: E402

FOLDERS = ("storage", "tasks", "docs")
ENTITY = "org:acme/project:search/source:driftline"
REMOTE = "https://github.com/acme/driftline.git"
QUERY = "who renews the lease of a run"
SIZE = {"width": 1280, "height": 800}


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        top = Path(temporary).resolve() / "driftline"
        make_index(top)
        with served(top) as url, open_browser() as browser:
            browser.page.set_viewport_size(SIZE)
            take(browser, f"{url}?q={QUERY.replace(' ', '+')}", "web-search")
            take(browser, f"{url}d/{ENTITY}/storage/leases/lease.py?line=111#L111", "web-document")
            take(browser, f"{url}index", "web-index", ".plots")
    return 0


def make_index(top: Path) -> None:
    """Commit and index each of ``FOLDERS`` in turn, as a repository whose remote has the same commits."""
    top.mkdir()
    run(f"git init -q -b main . && git remote add origin {REMOTE}", top)
    run("git config user.name Driftline && git config user.email driftline@example.com", top)
    for name in FOLDERS:
        copy_package(name, top)
        run(f"git add -A && git commit -q -m 'Add {name}' && git update-ref refs/remotes/origin/main HEAD", top)
        run(f"driftline index . --entity {ENTITY}", top)


@contextmanager
def served(top: Path) -> Iterator[str]:
    """Serve the workspace of ``top`` and yield the URL of its pages, until the block ends."""
    program = Path(sys.executable).with_name("driftline")
    command = [program, "web", "--port", "0"]
    with subprocess.Popen(command, cwd=top, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE) as web:
        assert web.stderr
        try:
            for line in web.stderr:
                if found := re.search(rb"http://\S+", line):
                    yield found[0].decode()
                    break
        finally:
            web.terminate()


def take(browser: Browser, url: str, name: str, scroll_to: str | None = None) -> None:
    """Save a picture of ``url``, scrolled to the first element that matches a selector."""
    browser.page.goto(url, wait_until="networkidle")
    if scroll_to:
        browser.page.locator(scroll_to).first.evaluate("element => element.scrollIntoView()")
    browser.page.screenshot(path=ROOT / "docs" / "images" / f"{name}.png")


if __name__ == "__main__":
    sys.exit(main())

"""``driftline web`` as a process, and its pages in a browser: wide, narrow, dark, and without scripts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

import driftline
from driftline.flows.commands.main import main
from driftline.flows.web.api import Reader
from driftline.flows.web.pages import SQL_TABLES, DocumentView, document_page, search_page
from driftline.flows.web.server import web_server
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.facets import Facets
from driftline.tasks.search.hits import ExactCounts, Hit, SearchReport
from driftline.tasks.search.request import SearchRequest
from tests.servers.axe import SCRIPT as AXE
from tests.servers.axe import violations
from tests.servers.browser import WAIT_MILLISECONDS, Browser, open_browser
from tests.servers.git_server import git
from tests.support.waiting import PATIENCE_SECONDS, until
from tests.support.web import ask, serving

HOSTILE_NAME = "<img src=x onerror=alert(1)>\"'&#?%41.py"
SOURCE = "org:default/project:default/source:tree"
MAX_BYTES = 60_000
"""Maximum size of a page, including everything it loads."""

LEASE = '''"""Leases: one writer at a time."""


class Lease:
    """Who may write, until when."""

    def renew(self, seconds):
        """Renew the lease of a run before it ends."""
        self.until = now() + seconds

    def release(self):
        """Give the lease back."""
        self.until = 0
'''
NOTES = """# Leases

who renews the lease of a run

the lease ends by itself

See [the code](src/lease.py#L7), [the folder](src). <img src=x onerror=alert(1)>![](https://other.example/x.png)
"""


@dataclass
class Site:
    """A running server, its tree, and its pages' console messages and requests."""

    url: str
    tree: Path
    page: Page
    browser: Browser
    said: list[str] = field(default_factory=list)
    requested: set[str] = field(default_factory=set)

    def note(self, message: str) -> None:
        """Keep a console message, unless the test was only faster than the page's ``autofocus``."""
        if not message.startswith("Autofocus processing was blocked"):
            self.said.append(message)


@contextmanager
def running(workspace: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A ``driftline web`` process and its URL."""
    command = [sys.executable, "-m", "driftline", "web", "--workspace", str(workspace), "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stderr is not None
        try:
            said = re.search(r"serving (http://\S+/)", next(line for line in process.stderr if "serving" in line))
            assert said is not None
            yield process, said[1]
        finally:
            process.kill()


def make_tree(folder: Path) -> Path:
    (folder / "src").mkdir(parents=True)
    (folder / "src/lease.py").write_text(LEASE)
    (folder / HOSTILE_NAME).write_text("lease = '</code><script>alert(1)</script>'" + " # wide" * 100 + "\n")
    (folder / "notes.md").write_text(NOTES)
    (folder / "photo.bin").write_bytes(bytes(range(256)) * 10)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "remote", "add", "origin", "git@github.com:acme/tree.git")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "pushed")
    git(folder, "update-ref", "refs/remotes/origin/main", "HEAD")
    return folder


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("site") / "tree")


@pytest.fixture(scope="module")
def workspace(tree: Path) -> Path:
    folder = tree.with_name("ws")
    for more in ([], [], ["--branch", "feature/x"]):  # growth is drawn from the second run on
        assert main(["index", str(tree), "--workspace", str(folder), *more]) == 0
    return folder


@pytest.fixture(scope="module")
def served(workspace: Path) -> Iterator[str]:
    """The URL of a server."""
    with running(workspace) as (_, url):
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as window:
        yield window


@pytest.fixture
def site(served: str, tree: Path, browser: Browser) -> Iterator[Site]:
    """The server in a fresh window; the tree is unchanged since it was indexed."""
    (tree / "src/lease.py").write_text(LEASE)
    with browser.fresh() as window:
        window.page.bring_to_front()  # the clipboard belongs to the front window
        found = Site(served, tree, window.page, window)
        window.page.on("console", lambda message: found.said.append(message.text))
        window.page.on("pageerror", lambda error: found.said.append(str(error)))
        window.page.on("dialog", lambda dialog: found.said.append(dialog.message))
        window.page.on("request", lambda request: found.requested.add(request.url))
        yield found
        # Policy violations appear on the console.
        assert found.said == []
        assert all(each.startswith(served) for each in found.requested)


def results(page: Page) -> Any:
    return page.locator("article h3 > a:first-child")


def files(page: Page) -> Any:
    return page.locator("article h2 a")


def test_a_search_while_typing_has_keys_and_a_link(site: Site) -> None:
    page, browser = site.page, site.browser
    browser.open(site.url)
    box = page.locator("#q")
    expect(box).to_be_focused(timeout=WAIT_MILLISECONDS)
    page.keyboard.type("who renews the lease")
    in_notes = page.locator("article").filter(has=page.get_by_role("link", name="notes.md", exact=True))
    expect(in_notes.get_by_role("link", name="Line 3")).to_be_visible(timeout=WAIT_MILLISECONDS)
    page.wait_for_url("**/?q=who+renews+the+lease*")
    expect(page.locator("#count")).to_contain_text("result")
    page.keyboard.press("ArrowDown")
    expect(results(page).first).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(results(page).nth(1)).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(box).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Escape")
    expect(box).to_be_focused()
    results(page).first.focus()
    page.keyboard.press("/")
    expect(box).to_be_focused()
    link, shown = page.url, results(page).all_inner_texts()
    browser.open(link, "who renews the lease")
    assert results(page).all_inner_texts() == shown
    page.select_option("#mode", "text")
    page.wait_for_url("**mode=text*")
    results(page).first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/d/**#L*")


def test_recent_searches_are_listed_in_this_browser_until_they_are_cleared(site: Site) -> None:
    page, recent = site.page, site.page.locator("#recent")
    site.browser.open(site.url, "Examples")
    expect(recent).to_be_hidden()
    site.browser.open(f"{site.url}?q=lease&mode=text", "notes.md")
    site.browser.open(f"{site.url}?q=nothing-like-this&mode=text", "Nothing found")
    site.browser.open(site.url, "Recent searches")
    page.keyboard.type("<b>who renews")
    page.wait_for_url("**/?q=*renews*")
    expect(page.locator("article").first).to_be_visible()
    page.locator("#q").fill("")
    expect(recent.get_by_role("link")).to_have_text(["<b>who renews", "lease"])
    assert violations(page) == [] if AXE.exists() else True
    recent.get_by_role("link", name="lease").click()
    page.wait_for_url("**/?q=lease&mode=text")
    site.browser.open(site.url, "Recent searches")
    recent.get_by_role("button", name="Clear").click()
    expect(recent).to_be_hidden()
    site.browser.open(site.url, "Examples")
    expect(recent).to_be_hidden()


def test_facets_narrow_and_filters_go(site: Site) -> None:
    page = site.page
    site.browser.open(f"{site.url}?q=lease&mode=text", "notes.md")
    page.get_by_label("python 2").focus()
    page.keyboard.press("Space")
    page.wait_for_url("**lang=python*")
    expect(page.get_by_label("python 2")).to_be_focused()
    assert "notes.md" not in files(page).all_inner_texts()
    page.get_by_label("markdown 1").check()
    page.wait_for_url("**lang=markdown*")
    expect(page.get_by_role("link", name="notes.md", exact=True)).to_be_visible()
    page.get_by_label("src 1").check()
    page.wait_for_url("**dir=src*")
    expect(files(page)).to_have_text(["src/lease.py"])
    assert page.get_by_role("link", name="Clear all").get_attribute("href") == "/?q=lease&mode=text"
    page.get_by_role("link", name="Remove the filter lang: markdown").click()
    expect(page.get_by_label("markdown")).to_have_count(0)
    page.get_by_label("src 1").uncheck()
    page.wait_for_url(lambda url: "dir" not in url)
    page.get_by_role("link", name="feature/x", exact=True).click()
    page.wait_for_url("**branch=feature*")
    assert results(page).count() > 0
    page.get_by_role("link", name="Remove the filter branch: feature/x").click()
    page.wait_for_url(lambda url: "branch" not in url)


_OFFERED = """(texts) => texts.map((text) => {
    const box = document.getElementById("q");
    box.value = text;
    box.setSelectionRange(text.length, text.length);
    box.dispatchEvent(new Event("input"));
    return [...document.querySelectorAll("#offers li")].map((each) => each.firstChild.textContent).join(" ");
})"""
"""Types each text before the page can search for it, and returns what is offered."""


def test_terms_are_completed_and_a_file_is_found_by_its_name(site: Site) -> None:
    page = site.page
    box, offers = page.locator("#q"), page.locator("#offers li")
    site.browser.open(site.url)
    box.press_sequentially("lease la")
    expect(offers).to_have_text([re.compile("^lang: Only")])
    box.press("ArrowDown")
    expect(offers).to_have_attribute("aria-selected", "true")
    assert violations(page) == [] if AXE.exists() else True
    box.press("Enter")
    expect(box).to_have_value("lease lang:")
    page.wait_for_url("**q=lease+la&*")
    expect(offers.first).to_have_text("lang:python 2 files")  # counted in the results for the previous input
    box.press_sequentially("mark")
    offers.get_by_text("lang:markdown").click()
    expect(box).to_have_value("lease lang:markdown ")
    expect(box).to_be_focused()
    page.wait_for_url("**q=lease+lang%3Amarkdown*")
    expect(files(page)).to_have_text(["notes.md"])
    box.fill("who -re")
    expect(offers).to_have_text([re.compile("^-repo:")])
    box.press("Escape")
    expect(offers).to_have_count(0)
    expect(box).to_have_value("who -re")
    box.fill("renew lang")
    expect(offers).to_have_count(1)
    page.wait_for_url("**q=renew+lang&*")
    box.press("ArrowDown")
    box.press("ArrowDown")  # after the last result
    expect(results(page).first).to_be_focused()
    expect(offers).to_have_count(0)
    typed = ["def:ren", "renew file:lea", "branch:feat"]
    assert page.evaluate(_OFFERED, typed) == ["def:Lease.renew", "file:src/lease.py", "branch:feature/x"]
    box.fill("SRC/Lease.py")
    page.wait_for_url("**q=SRC*")
    expect(files(page).first).to_have_text("src/lease.py")


def test_results_stay_while_the_query_is_wrong(site: Site) -> None:
    page = site.page
    site.browser.open(f"{site.url}?q=lease&mode=text", "notes.md")
    shown = files(page).all_inner_texts()
    page.fill("#q", "/lease(/")
    expect(page.locator("#count.bad")).to_contain_text("Invalid pattern at character 6")
    assert files(page).all_inner_texts() == shown
    page.fill("#q", "/lease/")
    expect(page.locator("#count")).to_contain_text("result")
    site.said.clear()  # a 400 response
    page.goto(f"{site.url}?q=/lease(/")
    expect(page.get_by_role("alert")).to_contain_text("Invalid pattern at character 6")
    expect(page.get_by_role("table", name="What a query can say")).to_be_visible()
    site.said.clear()


HIT = Hit("a.py", None, SOURCE, 3, 3, 3, 1.0, 0.0, 1.0, 1, "token = 1", ("token = 1",))


def test_hits_lead_to_the_branch_that_the_query_names() -> None:
    report = SearchReport("", (HIT,), exact=ExactCounts(1, 1))
    page = search_page(SearchRequest('"token" branch:topic'), report, branches=("other", "topic")).decode()
    assert page.count("/a.py?line=3&amp;branch=topic#L3") == 2
    assert [name in page for name in (">other</a>", ">topic</a>")] == [True, False]
    page = search_page(
        SearchRequest('"token" branch:topic', branch="other"), report, branches=("other", "topic")
    ).decode()
    assert "/a.py?line=3&amp;branch=other#L3" in page


@pytest.mark.parametrize(
    ("report", "status", "nothing"),
    [
        (SearchReport("", (HIT,), exact=ExactCounts(1, 1)), "1 result", False),
        (
            SearchReport("", (HIT,), notes=("Cut.",), exact=ExactCounts(1, 1, "limit")),
            "1 result of 1 or more in",
            False,
        ),
        (SearchReport("", (), exact=ExactCounts(5, 2)), "0 results of 5 in 2 files", False),
        (SearchReport("", (HIT,), exact=ExactCounts(0, 2)), "1 result of 2 files", False),
        (SearchReport("", (), notes=("Late.",), exact=ExactCounts(0, 0, "time")), "0 results of 0 or more in", True),
        (SearchReport("", (), notes=("Why.",)), "0 results", True),
    ],
)
def test_a_page_says_what_is_missing(report: SearchReport, status: str, nothing: bool) -> None:
    page = search_page(SearchRequest('"token"'), report).decode()
    assert f'role="status">{status}' in page
    assert ("Nothing found" in page) == nothing
    assert all(f">{note}</p>" in page for note in report.notes)


def test_a_document_shows_its_lines_outline_neighbours_and_remote(site: Site) -> None:
    page = site.page
    site.browser.open(f"{site.url}d/{SOURCE}/src/lease.py#L8", "Renew the lease of a run")
    expect(page.locator("#L8")).to_have_class("best")
    page.wait_for_url("**?line=8#L8")
    expect(page.locator("#similar h2")).to_have_text("More like line 8")
    assert page.locator("#similar a").count() > 0
    page.locator("#L3 a, #L7 a").last.click()
    page.wait_for_url("**?line=7#L7")
    expect(page.locator("#similar h2")).to_have_text("More like line 7")
    remote = page.locator("#remote").get_attribute("href")
    commit = git(site.tree, "rev-parse", "HEAD")
    assert remote == f"https://github.com/acme/tree/blob/{commit}/src/lease.py#L7"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    own = f"{site.url}d/{SOURCE}/src/lease.py?line=7#L7"
    for button, link in (("Copy permalink", remote), ("Copy link", own)):
        page.get_by_role("button", name=button).click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == link
        expect(page.get_by_role("button", name="Copied")).to_be_hidden()
    blame = page.get_by_role("link", name="Blame").get_attribute("href")
    assert blame == f"https://github.com/acme/tree/blame/{commit}/src/lease.py#L7"
    page.get_by_role("link", name="release", exact=True).click()
    page.wait_for_url("**#L11")
    (site.tree / "src/lease.py").write_text(LEASE.replace("class Lease", "class Secret"))

    def has_remote() -> bool:
        """Return whether the search process that compared the file with its commit before answers again."""
        site.browser.open(f"{site.url}d/{SOURCE}/src/lease.py?line=7", "has changed since it was indexed")
        return page.locator("#remote").count() > 0

    until(has_remote, "a link to the text shown on the page")
    expect(page.locator("#remote")).to_have_attribute("href", remote)
    assert page.locator("#L4").inner_text().endswith("class Lease:")
    assert "Secret" not in page.content()


def test_several_lines_have_a_link(site: Site) -> None:
    page, marked = site.page, site.page.locator(".document .best")
    site.browser.open(f"{site.url}d/{SOURCE}/src/lease.py#L8-L10", "Renew the lease of a run")
    expect(marked).to_have_count(3)
    page.wait_for_url("**?line=8#L8-L10")
    expect(page.locator("#remote")).to_have_attribute("href", re.compile("lease.py#L8-L10$"))
    page.locator("#L12 a").click()
    expect(marked).to_have_count(1)
    page.locator("#L11 a").click(modifiers=["Shift"])
    page.wait_for_url("**?line=11#L11-L12")
    expect(marked).to_have_count(2)
    expect(page.locator("#own")).to_have_text("Lines 11-12")
    expect(page.locator("#own")).to_have_attribute("href", re.compile(r"\?line=11#L11-L12$"))


def test_back_leads_through_the_searches(site: Site) -> None:
    page = site.page
    site.browser.open(site.url, "Browse")
    page.locator("#q").press_sequentially("lease")
    page.wait_for_url("**q=lease*")
    page.get_by_label("python 2").check()
    page.wait_for_url("**lang=python*")
    page.go_back()
    page.wait_for_url(lambda url: "q=lease" in url and "lang" not in url)
    expect(page.get_by_label("python 2")).not_to_be_checked()
    page.go_back()
    expect(page.get_by_text("Browse").nth(1)).to_be_visible()
    expect(page.locator("#q")).to_have_value("")
    page.go_forward()
    expect(page.locator("#q")).to_have_value("lease")
    expect(page.get_by_label("python 2")).not_to_be_checked()


def test_escape_leaves_the_box_and_keeps_the_query(site: Site) -> None:
    page = site.page
    site.browser.open(f"{site.url}?q=lease&mode=text", "notes.md")
    page.keyboard.press("j")
    expect(results(page).first).to_be_focused()
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    expect(results(page).first).to_be_focused()
    page.keyboard.press("j")
    expect(results(page).nth(1)).to_be_focused()
    expect(page.locator("#q")).to_have_value("lease")


def test_references_are_shown_below_the_document(site: Site) -> None:
    page, panel = site.page, site.page.locator("body > #references")
    site.browser.open(f"{site.url}d/{SOURCE}/src/lease.py?line=1", "Renew the lease of a run")
    click(page, "#L7", "renew")
    expect(panel.get_by_role("heading", name="Definitions of renew 1 line")).to_be_visible()
    expect(panel.locator(".lines")).to_contain_text("def renew(self, seconds)")
    assert violations(page) == [] if AXE.exists() else True
    panel.get_by_role("link", name="7", exact=True).click()
    page.wait_for_url("**?line=7#L7")
    expect(panel).to_be_visible()
    page.keyboard.press("Escape")
    expect(panel).to_have_count(0)
    click(page, "#L1", "writer")  # prose
    click(page, "#L9", "until")
    uses = panel.get_by_role("heading", name=re.compile("Uses of until"))
    expect(uses).to_contain_text("3 lines")
    panel.get_by_role("button").click()
    page.get_by_role("link", name="Uses of Lease", exact=True).click()
    expect(panel).to_be_focused()
    expect(panel.get_by_role("heading").first).to_have_text(re.compile("Definitions of Lease"))


def test_prose_wraps_and_has_branches_but_no_uses(served: str) -> None:
    page = ask(urlsplit(served).netloc, f"/d/{SOURCE}/notes.md?line=1").body
    assert 'title="Leases"' in page
    assert "uses%3A" not in page
    assert 'class="code prose"' in page
    assert f'<a href="/d/{SOURCE}/notes.md?line=1&amp;branch=feature%2Fx#L1">on feature/x</a>' in page
    of_branch = ask(urlsplit(served).netloc, f"/d/{SOURCE}/notes.md?line=1&branch=feature/x").body
    assert f'<a href="/d/{SOURCE}/notes.md?line=1#L1">on the main index</a>' in of_branch


def test_prose_is_laid_out_and_linked_by_line(site: Site) -> None:
    page, prose = site.page, site.page.locator(".laid-out")
    site.browser.open(f"{site.url}d/{SOURCE}/", "notes.md")
    page.get_by_role("link", name="notes.md", exact=True).click()
    expect(prose.get_by_role("heading", name="Leases")).to_be_visible()
    expect(prose.locator("img, script")).to_have_count(0)
    assert violations(page) == [] if AXE.exists() else True
    prose.get_by_role("link", name="the code").click()
    page.wait_for_url("**/src/lease.py?line=7#L7")  # the script adds the line
    page.go_back()
    prose.get_by_role("link", name="the folder").click()
    page.wait_for_url("**/source:tree/src/")
    site.browser.open(f"{site.url}d/{SOURCE}/notes.md?line=3", "who renews")
    page.locator("#L5 a").click()
    page.wait_for_url("**?line=5#L5")
    page.get_by_role("link", name="Rendered").click()
    page.wait_for_url("**/notes.md#L5")
    expect(prose.locator(".best")).to_have_text("the lease ends by itself")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == page.url.partition("#")[0]
    page.get_by_role("link", name="Source", exact=True).click()
    expect(page.locator(".document .found > .code #L1")).to_be_visible()


_RANGE_OF_NAME = """([line, name]) => {
    const texts = document.createTreeWalker(document.querySelector(`${line} code`), NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
        const at = text.data.indexOf(name);
        if (at >= 0) getSelection().setBaseAndExtent(text, at, text, at + name.length);
    }
    return getSelection().getRangeAt(0).getBoundingClientRect().toJSON();
}"""


def select(page: Page, line: str, name: str) -> dict[str, float]:
    """Select a name in a line, as by a double click, and return its place."""
    place: dict[str, float] = page.evaluate(_RANGE_OF_NAME, [line, name])
    return place


def click(page: Page, line: str, name: str) -> None:
    """Click a name in a line."""
    place = select(page, line, name)
    page.evaluate("getSelection().removeAllRanges()")
    page.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)


def test_a_name_leads_to_its_definition_and_its_uses(site: Site) -> None:
    page, document = site.page, f"{site.url}d/{SOURCE}/src/lease.py?line=1"
    site.browser.open(document, "Renew the lease of a run")
    select(page, "#L9", "until")
    expect(page.locator("#jump").get_by_role("link", name="Uses")).to_have_attribute("href", "/?q=uses%3Auntil")
    select(page, "#L7", "renew")
    page.locator("#jump").get_by_role("link", name="Definition").click()
    page.wait_for_url("**/d/**#L7")  # the only result


def test_a_result_begins_with_its_definition_and_has_links_to_copy() -> None:
    context = ("x = 1", "", "def renew():", *(f"    step({at})" for at in range(9)), "", "y = 2")
    found: dict[str, Any] = {
        "context": context,
        "symbol": "renew",
        "kind": "function",
        "symbol_start": 3,
        "symbol_end": 12,
    }
    hit = replace(HIT, line=11, start_line=1, end_line=14, url="https://github.com/acme/tree/blob/x/a.py#L11", **found)
    page = search_page(SearchRequest("renew"), SearchReport("renew", (hit,))).decode()
    assert re.findall(r"<div(?: class=\"best\")?><span>(\d+)</span>", page) == [str(line) for line in range(3, 13)]
    assert re.findall(r"<button type=\"button\" class=\"copy.*?>(.*?)<", page) == ["Copy link", "Copy permalink"]


@pytest.mark.parametrize(
    ("tests", "counts", "complete", "status"),
    [
        (True, {"false": 38, "true": 25}, True, "1 result · 63 files match<"),
        (False, {"false": 38, "true": 25}, False, "1 result · 38+ files match<"),
        (True, {"false": 1}, True, "1 result<"),
        (True, {}, True, "1 result<"),
    ],
)
def test_a_page_says_how_many_files_match(tests: bool, counts: dict[str, int], complete: bool, status: str) -> None:
    report = SearchReport("lease", (HIT,), facets=Facets({"tests": counts}, complete))
    assert f'role="status">{status}' in search_page(SearchRequest("lease", tests=tests), report).decode()


def test_a_page_shows_more_results_on_request() -> None:
    hits = tuple(replace(HIT, line=line, start_line=line, rank=line) for line in range(1, 11))
    assert (
        'href="/?q=token&amp;mode=hybrid&amp;top_k=50">More results'
        in search_page(SearchRequest("token"), SearchReport("token", hits)).decode()
    )
    for shown, top_k in ((9, 10), (10, 50)):
        request = SearchRequest("token", top_k=top_k)
        assert "More results" not in search_page(request, SearchReport("token", hits[:shown])).decode()


def numbers_in(page: bytes) -> list[tuple[str, bool]]:
    """The line numbers that a page shows, and whether each is marked as a hit."""
    return [
        (number, bool(best)) for best, number in re.findall(r"<div( class=\"best\")?><span>(\d+)</span>", page.decode())
    ]


def test_exact_hits_are_short_and_share_the_lines_between_them() -> None:
    def exact(line: int) -> Hit:
        return replace(HIT, line=line, start_line=1, end_line=40, context=("token",) * 40)

    report = SearchReport("", (exact(10), exact(14), exact(30)), exact=ExactCounts(9, 2, "limit"))
    page = search_page(SearchRequest('"token"'), replace(report, notes=report.exact.notes(3)))  # type: ignore[union-attr]
    shown = [*range(8, 17), *range(28, 33)]
    assert numbers_in(page) == [(str(line), line in (10, 14, 30)) for line in shown]
    assert [(b">Line 10</a>, <a" in page), (b">Line 14<" in page), (b">Line 30<" in page)] == [True, False, True]
    assert b"3 results of 9 or more in 2 files" in page
    assert b"More lines match" not in page, "the count says so"


def test_weak_hits_are_short() -> None:
    context = ("", "x = 1", "", *("token",) * 9)
    weak = replace(HIT, line=2, start_line=1, end_line=12, context=context, symbol="f", symbol_start=1, symbol_end=12)
    strong = replace(weak, path="b.py", label="strong")
    page = search_page(SearchRequest("token"), SearchReport("token", (strong, replace(weak, label="weak"))))
    assert numbers_in(page)[-2:] == [("10", False), ("2", True)]


def test_a_long_path_loses_its_middle_and_a_filter_reads_like_a_sentence() -> None:
    path = "/".join(["top", *["a-long-name-of-a-folder"] * 9, "a.py"])
    request = SearchRequest("token", tests=False, whole_words=True, kinds=["function"], sources=[SOURCE])
    page = search_page(request, SearchReport("token", (replace(HIT, path=path),))).decode()
    assert f'title="{path}">top/…/a-long-name-of-a-folder/a.py</a>' in page
    told = re.findall(r'aria-label="Remove the filter (.*?)"', page)
    assert sorted(told) == ["kind: function", "no tests", "source: tree", "whole words"]


def test_a_slow_answer_is_announced(site: Site) -> None:
    page, held = site.page, list[Any]()
    site.browser.open(f"{site.url}?q=lease&mode=text", "notes.md")

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/?q=renew*", hold)
    page.fill("#q", "renew")
    expect(page.locator("#count")).to_have_text("Searching…")
    expect(page.locator("main")).to_have_attribute("aria-busy", "true")
    held[-1].continue_()
    expect(page.locator("#count")).to_contain_text("result")
    expect(page.locator("main[aria-busy]")).to_have_count(0)


def test_the_page_of_sql_shows_rows_a_plot_and_what_is_wrong(site: Site) -> None:
    page = site.page
    site.browser.open(f"{site.url}sql", "Examples")
    for table in SQL_TABLES:
        page.get_by_role("link", name=table, exact=True).click()
        expect(page.locator("th").first).to_contain_text("column_name")
        page.go_back()
    page.get_by_role("link", name="Lines by file type").click()
    expect(page.locator("table tr").nth(1)).to_be_visible()
    assert page.locator("figure svg rect").count() >= 2
    values = "(VALUES (2026, 10000, -1234567.0, '12345', TRUE), (2025, 9999, 0.5, '', NULL))"
    page.fill("#sql", f"SELECT * FROM {values} AS t(year, files, bytes, digits, yes)")
    page.get_by_role("button", name="Run").click()
    expected = ["2026", "10,000", "-1,234,567", "12345", "True", "2025", "9,999", "0.5", "", ""]
    expect(page.locator("td")).to_have_text(expected)
    expect(page.locator("th .kind")).to_have_text(["int32", "int32", "decimal128", "string", "bool"])
    assert page.locator("td.null").count() == 1
    with page.expect_download() as downloading:
        page.get_by_role("link", name="CSV").click()
    rows = downloading.value.path().read_text()
    assert rows == "year,files,bytes,digits,yes\n2026,10000,-1234567.0,12345,True\n2025,9999,0.5,,\n"
    page.fill("#sql", """select '--it''s' AS x, "from", 1.5 -- select\nFROM lines /* 2""")
    coloured = [("k", "select"), ("s1", "'--it''s'"), ("k", "AS"), ("mi", "1.5"), ("c1", "-- select"), ("k", "FROM")]
    texts = "spans => spans.map((each) => [each.className, each.textContent])"
    found = page.locator(".editor span").evaluate_all(texts)
    assert [*map(tuple, found)] == [*coloured, ("c1", "/* 2")]
    assert page.locator(".editor pre").text_content() == page.input_value("#sql") + "\n"
    assert "q=SELECT+" in page.url
    page.fill("#sql", "SELECT path, hash FROM documents WHERE path LIKE '<img%'")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("status")).to_have_text("1 row")
    assert HOSTILE_NAME in page.locator("td").first.inner_text()
    page.fill("#sql", "DROP VIEW documents")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_be_visible()
    assert ["400" in each for each in site.said] == [True]
    site.said.clear()


def test_a_missing_document_leads_to_a_search_for_its_name(served: str) -> None:
    found = ask(urlsplit(served).netloc, f"/d/{SOURCE}/src/lost%20lease.py").body
    assert "<h1>Not found</h1>" in found
    assert "<title>Not found - Driftline</title>" in found
    assert 'href="/?q=lost+lease.py&amp;mode=hybrid">Search for lost lease.py</a>' in found


@pytest.mark.parametrize("query", ["fixed=renew", "regex=^class"])
def test_exact_text_needs_no_words(served: str, query: str) -> None:
    assert "src/lease.py" in ask(urlsplit(served).netloc, f"/?{query}").body


def test_the_index_page_shows_sources_growth_runs_and_what_was_skipped(site: Site) -> None:
    page = site.page
    site.browser.open(f"{site.url}index", "Growth: lines")
    assert page.locator("#sources + div td a").first.get_attribute("title") == SOURCE
    commit = git(site.tree, "rev-parse", "HEAD")
    expect(page.locator("#sources + div td code")).to_have_text(commit[:12])
    page.locator("summary", has_text="binary").click()
    expect(page.get_by_text("photo.bin")).to_be_visible()
    expect(page.locator("tr[id]").first).to_contain_text("index")
    assert page.locator("figure svg").first.bounding_box()["width"] >= 400  # type: ignore[index]


def test_hostile_names_and_contents_are_text(site: Site) -> None:
    page = site.page
    site.browser.open(f"{site.url}?q=lease", HOSTILE_NAME)
    page.get_by_role("link", name=HOSTILE_NAME).first.click()
    page.wait_for_url("**/d/**")
    expect(page.locator("h1")).to_have_text(HOSTILE_NAME)
    assert "</code><script>alert(1)</script>" in page.locator("#L1").inner_text()


def test_folders_are_browsed_with_keys_and_searched(site: Site) -> None:
    page = site.page
    site.browser.open(site.url, "Browse")
    page.get_by_role("link", name="tree", exact=True).click()
    page.wait_for_url("**/source:tree/")
    entries = page.locator(".entries li")
    expect(entries).to_have_text(
        [re.compile("src/ 1 doc"), re.compile("<img"), re.compile("notes.md \\d+ B"), re.compile("bin")]
    )
    expect(entries.last).to_have_text("photo.bin not indexed: binary")
    page.keyboard.press("j")
    expect(entries.first.get_by_role("link")).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_url("**/src/")
    page.fill("#q", "lease")
    page.keyboard.press("Enter")
    page.wait_for_url("**dir=src*")
    expect(files(page)).to_have_text(["src/lease.py"])


def test_a_document_page_shows_the_folder_and_its_files(site: Site) -> None:
    page = site.page
    site.browser.open(f"{site.url}d/{SOURCE}/src/lease.py?line=8", "Renew the lease of a run")
    crumbs = page.get_by_role("navigation", name="Breadcrumb").get_by_role("link")
    assert crumbs.all_inner_texts() == ["Sources", "tree", "src"]
    expect(page.locator(".tree [aria-current]")).to_have_text("lease.py")
    expect(page.locator(".names .here")).to_contain_text("renew")
    page.locator("#L12 a").click()
    expect(page.locator(".names .here")).to_contain_text("release")
    page.get_by_role("link", name="The folder above").click()
    expect(page.locator(".tree > li > a")).to_have_text(["src/", HOSTILE_NAME, "notes.md"])
    expect(page.locator(".tree li li > [aria-current]")).to_have_text("lease.py")
    expect(page.get_by_role("link", name="The folder above")).to_have_count(0)
    page.get_by_role("button", name="Unfold src/").click()
    expect(page.locator(".tree li li")).to_be_hidden()
    assert violations(page) == [] if AXE.exists() else True
    page.get_by_role("link", name="Sources").click()
    page.wait_for_url("**/d/")
    expect(page.locator(".entries li")).to_have_text([re.compile("tree 3 documents")])
    page.get_by_role("button", name="Unfold tree").click()
    page.get_by_role("button", name="Unfold src/").click()
    page.get_by_role("link", name="lease.py").click()
    page.wait_for_url("**/src/lease.py")


def test_keys_find_a_file_go_to_a_line_and_copy_its_permalink(site: Site) -> None:
    page, dialog = site.page, site.page.get_by_role("dialog")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    site.browser.open(f"{site.url}d/{SOURCE}/notes.md?line=1", "who renews")
    page.keyboard.press("t")
    page.keyboard.type("Sr/ lpy")
    expect(dialog.get_by_role("link")).to_have_text(["src/lease.py"])
    assert violations(page) == [] if AXE.exists() else True
    page.keyboard.press("ArrowDown")
    expect(dialog.get_by_role("link")).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_url("**/src/lease.py")
    page.keyboard.press("l")
    page.keyboard.type("11")
    page.keyboard.press("Enter")
    page.wait_for_url("**/src/lease.py?line=11#L11")
    expect(page.locator("#L11")).to_be_in_viewport()
    expect(page.locator("#remote")).to_have_attribute("href", re.compile("#L11$"))
    page.keyboard.press("y")
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()").endswith("/src/lease.py#L11")
    page.keyboard.press("t")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.get_by_label("in this file").check()
    page.keyboard.press("/")
    page.keyboard.type("lease")
    page.keyboard.press("Enter")
    page.wait_for_url("**document=*")
    expect(files(page)).to_have_text(["src/lease.py"])


def test_files_are_found_by_letters_of_their_paths(served: str) -> None:
    def found(query: str) -> list[str]:
        page = ask(urlsplit(served).netloc, f"/files?{query}").body
        return re.findall(r'<li><a href="[^"]*">(.*?)</a>', page)

    assert found("q=LEASE") == ["src/lease.py"]
    assert found("q=e.&source=" + SOURCE)[:2] == ["src/lease.py", "notes.md"]
    assert found("q=photo") == []
    assert found("q=lease&branch=feature/x") == ["src/lease.py"]
    assert found("q=lease&source=org:default/project:default/source:other") == []
    assert found("q=(z") == []


def test_a_line_without_a_code_host_has_a_link_to_copy() -> None:
    lines = {"lines": ["a", "b"], "start_line": 1, "current": True, "url": None, "anchors": ()}
    view = DocumentView({"source": SOURCE, "path": "src/a.py", **lines}, line=2, branch="topic")
    link = f"/d/{SOURCE}/src/a.py?line=2&amp;branch=topic#L2"
    assert (
        f'<a id="own" href="{link}">Line 2</a> <button type="button" class="copy own">' in document_page(view).decode()
    )


def test_a_search_without_results_suggests_wider_ones(site: Site) -> None:
    page = site.page
    site.browser.open(f'{site.url}?q="renews+zebra"&lang=markdown', "Nothing found")
    expect(page.get_by_role("link", name="without filters")).to_be_visible()
    page.get_by_role("link", name="by the words alone").click()
    page.wait_for_url("**/?q=renews+zebra*")
    assert results(page).count() > 0


def test_links_of_a_result_are_shown_while_it_is_used(site: Site) -> None:
    page = site.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    site.browser.open(f"{site.url}?q=lease&mode=text", "notes.md")
    heading = page.locator("article h3").first
    links = heading.locator(".links")
    page.mouse.move(0, 0)
    expect(links).to_have_css("opacity", "0")
    expect(links).to_have_css("position", "absolute")  # takes no row of its own
    heading.get_by_role("link").first.focus()
    expect(links).to_have_css("opacity", "1")
    page.locator("#q").focus()
    heading.locator("+ .code").hover()
    expect(links).to_have_css("opacity", "1")
    links.get_by_role("button", name="Copy link").click()
    expect(links.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()").endswith(results(page).first.get_attribute("href"))
    page.set_viewport_size({"width": 390, "height": 800})
    expect(links.get_by_role("button").first).to_be_hidden()
    page.set_viewport_size({"width": 1200, "height": 800})


def test_the_header_is_short_on_a_phone_and_the_query_has_its_width(site: Site) -> None:
    page = site.page
    page.set_viewport_size({"width": 390, "height": 800})
    rows = (("", 2, 0), ("?q=lease&mode=text", 3, 0), (f"d/{SOURCE}/src/lease.py?line=8", 1, 2), ("sql", 1, 0))
    for target, header, path in rows:
        page.goto(site.url + target)
        assert page.locator("header").bounding_box()["height"] <= 16 + 40 * header, target  # type: ignore[index]
        if not path and target != "sql":
            assert page.locator("#q").bounding_box()["width"] >= 350, target  # type: ignore[index]
        if path:
            assert page.locator(".path").bounding_box()["height"] <= 16 + 36 * path  # type: ignore[index]
            expect(page.get_by_label("in this file")).to_be_hidden()
            page.focus("#q")
            page.get_by_label("in this file").check()
        page.fill("#q", "renew")
        page.press("#q", "Enter")
        page.wait_for_url("**q=renew*")
    page.set_viewport_size({"width": 1200, "height": 800})


def test_a_key_explains_queries_and_keys_on_every_page(site: Site) -> None:
    page = site.page
    for target in ("", f"d/{SOURCE}/src/lease.py?line=8", "sql"):
        page.goto(site.url + target)
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("?")
        expect(page.get_by_role("dialog").get_by_role("heading", name="What a query can say")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()


def test_filters_are_collapsed_on_a_narrow_screen(site: Site) -> None:
    page = site.page
    page.set_viewport_size({"width": 390, "height": 800})
    site.browser.open(f"{site.url}?q=lease&mode=text", "notes.md")
    expect(page.get_by_label("python 2")).to_be_hidden()
    page.get_by_text("Filters", exact=True).click()
    page.get_by_label("python 2").check()
    page.wait_for_url("**lang=python*")
    expect(page.get_by_label("python 2")).to_be_visible()
    page.set_viewport_size({"width": 1200, "height": 800})
    expect(page.get_by_label("python 2")).to_be_visible()


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed (any machine with npm: make axe)")
def test_every_page_is_accessible_light_and_dark_wide_and_narrow(site: Site) -> None:
    page = site.page
    found = []
    for target in (
        "",
        "?q=lease",
        "?q=nothing&mode=text",
        f"d/{SOURCE}/src/lease.py?line=8",
        f"d/{SOURCE}/",
        "references?name=renew",
        "files?q=lease",
        "index",
        "sql?q=SHOW+TABLES",
        "sign-in",
    ):
        page.goto(site.url + target)
        for scheme, width in (("light", 1200), ("dark", 360)):
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            page.set_viewport_size({"width": width, "height": 640})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (target, scheme)
            found += [f"{target} {scheme}: {each}" for each in violations(page)]
    assert found == []


def test_people_sign_in_and_out_in_a_browser(
    workspace: Path, browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["token", "create", "--workspace", str(workspace)]) == 0
    token = capsys.readouterr().out.strip()
    with running(workspace, "--require-token") as (_, url), browser.fresh() as window:
        page = window.page
        page.goto(f"{url}?q=lease&mode=text")
        for given in ("wrong", token):
            expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
            page.get_by_label("Token").fill(given)
            page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("link", name="notes.md", exact=True)).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_pages_work_without_a_script(site: Site) -> None:
    browser = site.page.context.browser
    assert browser is not None
    page = browser.new_context(java_script_enabled=False).new_page()
    page.set_default_timeout(WAIT_MILLISECONDS)
    page.goto(site.url)
    assert page.locator("#q").get_attribute("list") == "terms"
    assert page.locator('#terms option[value="repo:tree"]').count() == 1
    page.fill("#q", "renews the lease")
    page.press("#q", "Enter")
    page.wait_for_url("**/?q=renews*")
    page.get_by_label("markdown").check()
    page.get_by_role("button", name="Apply").click()
    page.wait_for_url("**lang=markdown*")
    in_notes = page.locator("article").filter(has=page.get_by_role("link", name="notes.md", exact=True))
    in_notes.get_by_role("link", name="Line 3").click()
    expect(page.locator("#L3")).to_have_class("best")
    assert page.locator("#similar a").count() > 0
    page.context.close()


def test_a_page_is_small_and_renders_quickly(site: Site) -> None:
    page = site.page
    received: list[int] = []
    page.on("response", lambda response: received.append(len(response.body())))
    for target in ("", "?q=lease", f"d/{SOURCE}/src/lease.py?line=8", f"d/{SOURCE}/", "d/"):
        received.clear()
        page.goto(site.url + target, wait_until="networkidle")
        page.wait_for_function("performance.getEntriesByType('resource').length >= 2")
        assert len(received) >= 3, target
        assert 0 < sum(received) <= MAX_BYTES, target
        assert site.browser.first_paint_milliseconds() > 0


def test_a_site_that_is_opened_from_the_disk_runs_its_search(browser: Browser, tmp_path: Path) -> None:
    shim = Path(driftline.__file__).resolve().parents[1] / "docs/javascripts/iframe-worker.js"
    (tmp_path / "more.js").write_text("const doubled = (number) => 2 * number;")
    (tmp_path / "worker.js").write_text(
        "addEventListener('message', async (event) => {"
        " await importScripts('more.js'); postMessage(doubled(event.data)); });"
    )
    (tmp_path / "index.html").write_text(
        f"<body><script>{shim.read_text()}</script><script>const worker = new Worker('worker.js');"
        "worker.addEventListener('message', (event) => document.body.append(`told ${event.data}`));"
        "worker.postMessage(21);</script>"
    )
    browser.open((tmp_path / "index.html").as_uri(), "told 42")


def test_sigterm_ends_the_process(workspace: Path) -> None:
    with running(workspace) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) in (0, -signal.SIGTERM)


def test_one_document_is_searched_and_an_empty_readme_does_not_hide_its_folder(tmp_path: Path) -> None:
    """Two sources have the same path; a document's address names one of them."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.md").write_text(f"the lease of {name}\n")
        (tmp_path / name / "README.md").write_text("")
        driftline.index(str(tmp_path / name), workspace=str(tmp_path / "ws"))
    parent = SOURCE.rpartition("/")[0]
    with serving(web_server(Reader(Workspace.open(str(tmp_path / "ws")).reread), "127.0.0.1", 0)) as address:
        found = ask(address, f"/?q=lease&document={parent}/source:one/same.md")
        text = re.sub(r"<[^>]*>", "", found.body)
        assert (found.status, "the lease of one" in text, "the lease of two" in text) == (200, True, False), text
        listed = ask(address, f"/d/{parent}/source:one/")
        assert (listed.status, "same.md" in listed.body) == (200, True)
        assert ask(address, "/?q=lease&document=source:one").status == 400

"""The web server's pages and API over a workspace with hostile names and contents, and with hostile clients."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import threading
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest

from driftline.flows.http_server import HttpServer
from driftline.flows.web.api import Reader, parse_cursor
from driftline.flows.web.pages import static, version_of
from driftline.flows.web.server import web_server
from driftline.storage.errors import NotIndexed, UsageError
from driftline.storage.workspace.workspace import Workspace
from tests.support.waiting import PATIENCE_SECONDS

HOSTILE_NAME = "<img src=x onerror=alert(1)>\"'&.py"
HOSTILE_LINE = "lease = '</code><script>alert(1)</script>' \"onload=x & <b>"
PAGE_TAGS = frozenset(
    {"html", "head", "meta", "title", "link", "bdi", "body", "header", "main", "nav", "article", "div", "span", "code"}
    | {"details", "section", "summary", "script"}
    | {"form", "label", "input", "select", "option", "button", "h1", "h2", "h3", "p", "ul", "li", "a"}
    | {"datalist", "fieldset", "legend", "noscript", "kbd", "table", "tr", "th", "td"}
)


class Page(HTMLParser):
    """The tags, attributes and text on a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def links(self) -> list[str]:
        return [attributes["href"] or "" for tag, attributes in self.tags if tag == "a"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    (folder / "sub").mkdir(parents=True)
    (folder / HOSTILE_NAME).write_text(f"first = 1\n{HOSTILE_LINE}\nlast = 2\n")
    (folder / "sub/plain.md").write_text("who renews the lease of a run\n")
    return folder


@pytest.fixture
def server(tmp_path: Path, tree: Path, driftline: Callable[..., Any]) -> Iterator[HttpServer]:
    assert driftline("index", tree, "--workspace", tmp_path / "ws").code == 0
    reader = Reader(Workspace.open(str(tmp_path / "ws")).reread)
    reader.warm()
    made = web_server(reader, "127.0.0.1", 0)
    thread = threading.Thread(target=made.run)
    thread.start()
    yield made
    made.server.should_exit = True
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def ask(server: HttpServer, target: str, **headers: str) -> tuple[http.client.HTTPResponse, str]:
    parts = urlsplit(server.url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE_SECONDS)
    connection.request("GET", target, headers=headers)
    response = connection.getresponse()
    return response, response.read().decode()


def test_the_api_answers_as_the_command_line(server: HttpServer, driftline: Callable[..., Any], tmp_path: Path) -> None:
    ws = ("--workspace", tmp_path / "ws", "--json")
    for target, arguments in (
        ("search?q=lease&top_k=5&n_lines=1", ("search", "lease", "--top-k", 5, "-n", 1)),
        ("search?q=lease&ext=md&mode=text", ("search", "lease", "--ext", "md", "--mode", "text")),
        ("status", ("status",)),
        ("sources", ("sources",)),
    ):
        response, body = ask(server, f"/api/v1/{target}")
        assert response.status == 200
        assert json.loads(body) == driftline(*arguments, *ws).json


def test_a_commit_is_found_by_the_next_request(
    server: HttpServer, driftline: Callable[..., Any], tmp_path: Path, tree: Path
) -> None:
    (tree / "new.md").write_text("a zebra crosses\n")
    assert driftline("index", tree, "--workspace", tmp_path / "ws").code == 0
    found = json.loads(ask(server, "/api/v1/search?q=zebra&mode=text")[1])
    assert [hit["path"] for hit in found["results"]] == ["new.md"]


def test_a_branch_is_searched_and_read_by_its_name(
    server: HttpServer, driftline: Callable[..., Any], tmp_path: Path, tree: Path
) -> None:
    (tree / "sub/plain.md").write_text("who renews the lease of a zebra\n")
    ws, name = ("--workspace", tmp_path / "ws"), "feature/<b>ä"
    assert driftline("index", tree, *ws, "--branch", name).code == 0
    branch = urlencode({"branch": name})
    for target, arguments in (
        (f"search?q=zebra&top_k=5&{branch}", ("search", "zebra", "--top-k", 5, "--branch", name)),
        ("search?q=zebra&top_k=5", ("search", "zebra", "--top-k", 5)),
    ):
        response, body = ask(server, f"/api/v1/{target}")
        assert response.status == 200
        assert json.loads(body) == driftline(*arguments, *ws, "--json").json
    (listed,) = json.loads(ask(server, "/api/v1/branches")[1])["branches"]
    assert listed["name"] == name
    page = Page(ask(server, f"/?q=zebra&mode=text&{branch}")[1])
    assert "zebra" in page.text
    (link,) = {link for link in page.links() if link.startswith("/d/org:")}
    assert branch in link
    assert "zebra" in Page(ask(server, link.partition("#")[0])[1]).text
    response, body = ask(server, "/api/v1/search?q=x&branch=none")
    assert (response.status, json.loads(body)["fix"]) == (404, f"It has: {name}.")


def test_the_sql_page_accepts_values_that_are_not_numbers(server: HttpServer) -> None:
    for over in ("'a'", "TIMESTAMP '2026-01-01' + INTERVAL (i) DAY"):
        rows = "(VALUES (1, 'nan'), (2, 'inf'), (3, '-inf'), (4, '7')) AS t(i, v)"
        response, body = ask(server, f"/sql?{urlencode({'q': f'SELECT {over} AS x, v::DOUBLE AS v FROM {rows}'})}")
        assert response.status == 200
        assert "<td" in body


def test_wrong_requests_are_problems_with_a_kind(server: HttpServer) -> None:
    excerpt = {"source": "org:default/project:default/source:tree", "path": "../secret", "line": 1}
    for target in (
        *("search", "search?q=x&top_k=51", "search?q=x&n_lines=21", "search?q=x&mode=best"),
        *(f"search?q={'x' * 2001}", "search?q=x&" + "&".join(["ext=py"] * 101), f"search?q=x&path={'p' * 4097}"),
        *(f"excerpt?{urlencode(excerpt | {'line': 0})}", "excerpt?source=x", "search?q=x&lang=klingon"),
        *("search?q=x&kind=verb", "search?q=x&max_distance=3", "search?q=x&cursor="),
    ):
        response, body = ask(server, f"/api/v1/{target}")
        assert (response.status, response.getheader("content-type")) == (400, "application/problem+json"), target
        assert json.loads(body)["error"] == "usage", target
    for target in (f"excerpt?{urlencode(excerpt)}", "search?q=x&branch=none", "search?q=x&cursor=none"):
        response, body = ask(server, f"/api/v1/{target}")
        assert (response.status, json.loads(body)["error"]) == (404, "not_indexed"), target
    response, body = ask(server, "/api/v1/search?q=x&source=%3Cscript%3E")
    assert (response.status, json.loads(body)["error"]) == (400, "bad_entity")
    assert ask(server, "/api/v1/nothing")[0].status == 404
    response, body = ask(server, "/nothing", Accept="text/html")
    assert (response.status, "There is no such page." in Page(body).text) == (404, True)


def test_the_openapi_document_lists_the_routes_of_programs(server: HttpServer) -> None:
    document = json.loads(ask(server, "/api/v1/openapi.json")[1])
    assert sorted(document["paths"]) == [
        f"/api/v1/{name}"
        for name in ("branches", "documents", "excerpt", "memory/search", "runs", "search", "sources", "sql", "status")
    ]


def test_names_and_contents_are_escaped_on_every_page(server: HttpServer) -> None:
    _, body = ask(server, "/?q=lease")
    page = Page(body)
    (document,) = {link for link in page.links() if "img" in link and link.startswith("/d/")}
    pages = [page, Page(ask(server, document.partition("#")[0])[1])]
    for each in pages:
        assert HOSTILE_NAME in each.text
        assert HOSTILE_LINE in each.text
    hostile = quote('"><script>alert(1)</script>')
    pages += [Page(ask(server, f"/?q={hostile}&ext={hostile}&dir={hostile}")[1])]
    pages += [Page(ask(server, f"/?q=x&source={hostile}")[1]), Page(ask(server, f"/d/source:x/{hostile}")[1])]
    for each in pages:
        assert {tag for tag, _ in each.tags} <= PAGE_TAGS
        script = {"src": f"/static/page.js?{version_of('page.js')}", "defer": None}
        assert [given for tag, given in each.tags if tag == "script"] == [script]
        attributes = {name for _, given in each.tags for name in given}
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        assert all(re.match(r"/|(\?line=\d+)?#L\d+$", link) for link in each.links())


def test_a_page_marks_words_and_its_facets_narrow(server: HttpServer) -> None:
    page = Page(ask(server, "/?q=lease")[1])
    assert any((attributes.get("class") or "").endswith("-Mark") for _, attributes in page.tags)
    boxes = [given for tag, given in page.tags if tag == "input" and given.get("type") == "checkbox"]
    assert [given["value"] for given in boxes if given["name"] == "lang"] == ["markdown", "python"]
    narrowed = Page(ask(server, "/?q=lease&mode=hybrid&lang=markdown")[1])
    assert "sub/plain.md\nLine 1" in narrowed.text
    assert HOSTILE_NAME not in narrowed.text
    assert "/?q=lease&mode=hybrid" in narrowed.links()  # removes the filter


def test_the_home_page_says_what_is_indexed_and_its_examples_work(server: HttpServer) -> None:
    page = Page(ask(server, "/")[1])
    assert re.search(r"2 documents · 4 lines · 1 source · indexed (just now|\d+ minutes? ago)", page.text)
    examples = [link for link in page.links() if link.startswith("/?q=")]
    assert len(examples) == 3
    assert [ask(server, link)[0].status for link in examples] == [200] * 3


def test_results_are_grouped_by_file_and_show_only_states_that_matter(server: HttpServer, tree: Path) -> None:
    (tree / "sub/plain.md").write_text("another line\n")
    page = Page(ask(server, "/?q=%22lease%22")[1])
    assert [tag for tag, _ in page.tags].count("article") == 2
    assert {given["title"] for _, given in page.tags if given.get("class") == "source"} == {
        "org:default/project:default/source:tree"
    }
    assert "org:default" not in page.text
    assert "relevance" not in page.text
    badges = [given for _, given in page.tags if given.get("class") == "badge"]
    assert len(badges) == 1  # of the file that has changed
    assert "fresh" not in page.text
    assert len([given for _, given in page.tags if (given.get("class") or "").endswith("-Mark")]) == 2
    assert re.search(r"\b(strong|likely|weak)\b", Page(ask(server, "/?q=lease")[1]).text)


def test_a_document_page_says_that_the_file_has_changed(server: HttpServer, tree: Path) -> None:
    target = "/d/org:default/project:default/source:tree/sub/plain.md"
    assert "has changed" not in ask(server, target)[1]
    (tree / "sub/plain.md").write_text("secret\n")
    _, body = ask(server, target)
    assert "has changed" in body
    assert "who renews the lease" in body
    assert "secret" not in body


def test_only_own_names_and_origins_are_answered(server: HttpServer) -> None:
    address = urlsplit(server.url).netloc
    for target in ("/", "/healthz", "/readyz", "/static/style.css", "/d/source:a/b", "/index", "/api/v1/status"):
        assert ask(server, target, Host=address, Origin=f"http://{address}")[0].status in (200, 400, 404)
        for name in ("evil.com", f"{address}.evil.com", "localhost", f"x@{address}"):
            assert ask(server, target, Host=name)[0].status == 421
        for origin in ("http://evil.com", "null", f"https://{address}", f"http://{address}.evil.com"):
            assert ask(server, target, Origin=origin)[0].status == 403


def test_every_answer_has_the_headers_that_guard_it(server: HttpServer) -> None:
    numbers = set()
    for target in ("/", "/?q=lease", "/d/x", "/healthz", "/static/style.css", "/api/v1/status", "/api/v1/nothing"):
        response, _ = ask(server, target)
        policy = response.getheader("content-security-policy") or ""
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert response.getheader("x-content-type-options") == "nosniff"
        numbers.add(response.getheader("x-request-id"))
    assert len(numbers) == 7


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_other_machines_reach_requires_tokens(host: str) -> None:
    with pytest.raises(UsageError, match="requires authentication except on loopback"):
        web_server(Reader(lambda: pytest.fail("nothing is read")), host, 0)


def test_pages_of_a_search_and_of_documents_follow_each_other(server: HttpServer) -> None:
    for target, field in (("search?q=lease&top_k=1&n_lines=0", "results"), ("documents?limit=1", "documents")):
        whole = json.loads(ask(server, f"/api/v1/{target.replace('=1', '=50')}")[1])[field]
        link, found = f"/api/v1/{target}", []
        while link:
            response, body = ask(server, link)
            found += json.loads(body)[field]
            link = re.sub(r'<(.+)>; rel="next"', r"\1", response.getheader("link") or "")
        assert len(found) == len(whole) >= 2
        assert found == whole
    for cursor in ("x", "bnVsbA", "WzFd", "WyJhIl0", "WzFlOTld", "Wy0xXQ"):
        for target in ("documents", "search?q=x"):
            response, body = ask(server, f"/api/v1/{target}{'&' if '?' in target else '?'}cursor={cursor}")
            if (target, cursor) != ("search?q=x", "WzFd"):  # [1] marks where a page may begin
                assert (response.status, json.loads(body)["error"]) == (404, "not_indexed"), (target, cursor)


def test_an_unchanged_answer_is_not_sent_again(server: HttpServer) -> None:
    target = "/api/v1/search?q=lease"
    tag = ask(server, target)[0].getheader("etag")
    assert tag
    strong = tag.removeprefix("W/")
    for known, status in ((tag, 304), (strong, 304), (f'"x", {tag}', 304), ("*", 304), ('"x"', 200), ('"*"', 200)):
        response, body = ask(server, target, **{"If-None-Match": known})
        assert (response.status, bool(body), response.getheader("etag")) == (status, status == 200, tag)


def test_answers_are_compressed_for_clients_that_ask(server: HttpServer) -> None:
    whole = ask(server, "/static/style.css")[1].encode()
    parts = urlsplit(server.url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=PATIENCE_SECONDS)
    connection.request("GET", "/static/style.css", headers={"Accept-Encoding": "gzip"})
    response = connection.getresponse()
    body = response.read()
    assert (response.headers["Content-Encoding"], response.headers["Vary"]) == ("gzip", "Accept-Encoding")
    assert len(body) < len(whole) / 3
    assert gzip.decompress(body) == whole


def test_browsers_keep_what_all_pages_load_until_it_changes(server: HttpServer) -> None:
    for name, version, kept in (
        ("style.css", version_of("style.css"), "public, max-age=31536000, immutable"),
        ("style.css", "0123456789ab", "private, no-cache"),
        ("page.js", "", "private, no-cache"),
    ):
        response, body = ask(server, f"/static/{name}?{version}")
        assert (response.headers["Cache-Control"], body.encode()) == (kept, static(name))


def test_no_text_of_a_script_spans_lines() -> None:
    """The server removes indentation."""
    for name in ("page.js", "sql.js"):
        assert not [line for line in static(name).decode().splitlines() if line.count("`") % 2]


@pytest.mark.parametrize("data", [b"[" * 5_000, b"[" * 60_000, b"[-1.5]", b"[true]", b'["1"]', b"{}", b"", b"\xff"])
def test_an_unissued_cursor_is_rejected(data: bytes) -> None:
    with pytest.raises(NotIndexed, match="no page at this cursor"):
        parse_cursor(tuple[int], urlsafe_b64encode(data).decode())

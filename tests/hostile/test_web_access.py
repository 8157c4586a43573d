"""Web server tokens: without one, nobody has access, and nobody learns anything outside its boundary."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

import driftline as dl
from driftline.flows.config.memory_settings import load_memory_configuration
from driftline.flows.config.which_workspace import boundary_in
from driftline.flows.http_server import MAX_BODY_BYTES
from driftline.flows.served_memory import Memory
from driftline.flows.web import access
from driftline.flows.web.access import (
    AccessRules,
    Authentication,
    FleetReaders,
    HostReaders,
    KnownTokens,
    TrustedProxy,
)
from driftline.flows.web.api import Reader, _within
from driftline.flows.web.guard import Guard, RateLimit
from driftline.flows.web.routes import McpApp
from driftline.flows.web.server import Exposure, web_server
from driftline.storage.entities import Boundary, Entity
from driftline.storage.errors import StorageError, UsageError
from driftline.storage.workspace import tokens
from driftline.storage.workspace.records import RunRecord
from driftline.storage.workspace.tokens import Scope, TokenRecord, create_token, read_tokens, revoke_token, token_hash
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.embedder import WordTableEmbedder
from tests.support.mcp import hits_of, text_of
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.web import Answer, ask, serving

OWN = "org:acme/project:own"
FOREIGN = {"secretb": "org:acme/project:secretb", "secretx": "org:secretx/project:p"}
ABSENT = {"secretb": "absentb", "secretx": "absentx"}
"""Unused names, of the same length as the secret ones."""
NOW, DAY = datetime(2026, 1, 2, tzinfo=UTC), timedelta(days=1)
_OWN, *_FOREIGN = (Entity.parse(f"{e}/source:{name}") for name, e in {"own": OWN, **FOREIGN}.items())
FOLLOWED = {
    "fleet": {
        "ann": [(_OWN, NOW - DAY), *((each, NOW - DAY - timedelta(seconds=1)) for each in _FOREIGN)],
        "bob": [(each, NOW) for each in _FOREIGN],
    },
    "another": {"ann": [(each, NOW) for each in _FOREIGN]},
}
"""Who may read what: ann reads her own repository, and could read the others until a while ago. The server does not
follow the other fleet.
"""
ACCEPT = "application/json, text/event-stream"
PROTECTED = (
    *(
        "/",
        "/?q=x",
        "/d/source:a/b",
        "/index",
        "/sql",
        "/references?name=x",
        "/files?q=x",
        "/metrics",
        "/nothing",
        "/api/v1/openapi.json",
    ),
    *(f"/api/v1/{name}" for name in ("search?q=x", "excerpt", "documents", "status", "sources", "branches", "runs")),
    "/api/v1/sql?q=SELECT+1",
    "/api/v1/memory/search?q=x",
)


@dataclass(frozen=True)
class Site:
    """A workspace of three projects with memory, and a server that requires tokens."""

    address: str
    workspace: Workspace
    tokens: KnownTokens
    readers: HostReaders

    def token(self, *scopes: Scope, within: str | None = None, expires: datetime | None = None) -> str:
        boundary = boundary_in(self.workspace, within).tops[0] if within else None
        token, _ = create_token(self.workspace, within=boundary, scopes=scopes, expires=expires)
        self.forget()
        return token

    def forget(self) -> None:
        """Make the next request read the tokens."""
        self.tokens._tried_at = -access.STALE_SECONDS

    def ask(self, target: str, **options: str) -> Answer:
        return ask(self.address, target, **options)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("web-access")
    model = {"model": str(tiny_model)}
    uri = str(folder / "ws")
    with dl.MemoryStore(uri, embedder=lambda: WordTableEmbedder.open(str(tiny_model))) as memory:
        for name, project in {"own": OWN, **FOREIGN}.items():
            tree = folder / name
            tree.mkdir()
            (tree / f"{name}.py").write_text(f"def lease_{name}():\n    return '{name}'\n")
            (tree / "shared.md").write_text(f"who renews the lease of {name}\n")
            entity = f"{project}/source:{name}"
            dl.index(str(tree), workspace=uri, entity=entity, model=str(tiny_model), executor="inline")
            (tree / "shared.md").write_text(f"who renews the lease of {name} on a branch\n")
            dl.index(str(tree), workspace=uri, entity=entity, branch=f"branch-{name}", executor="inline")
            memory.store(name, {"text": f"parser {name}"}, project, {"project": name})
    workspace = Workspace.open(uri)
    known = KnownTokens(lambda: read_tokens(workspace.objects))
    readers = HostReaders(lambda: FOLLOWED, {"fleet": FleetReaders("{login}@acme.example", DAY)}, lambda: NOW)
    proxy = TrustedProxy("X-User", [ip_network("127.0.0.0/8")])
    recalled = Memory(workspace, load_memory_configuration(environ={}, embedding=model))
    reader = Reader(workspace.reread, lambda: recalled)
    exposure = Exposure(authentication=Authentication(known, proxy, rules=AccessRules(readers=readers)))
    with serving(web_server(reader, "127.0.0.1", 0, exposure, McpApp(reader))) as address:
        yield Site(address, workspace, known, readers)


def test_readers_that_cannot_be_read_grant_nothing_and_refuse_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Any:
        raise StorageError("The record is damaged", "_fleet.json")

    readers = HostReaders(lambda: FOLLOWED, {"fleet": FleetReaders("{login}@acme.example", DAY)}, lambda: NOW)
    readers.refresh()
    assert [*readers.readable_by("ann@acme.example")] == [_OWN]
    readers.read = fail
    readers._tried_at = readers._read_at = -access.STALE_SECONDS
    readers.refresh()
    assert [*readers.readable_by("ann@acme.example")] == []
    assert "Cannot read" in caplog.text
    tokens = KnownTokens(fail)
    tokens.refresh()
    with pytest.raises(StorageError, match="tokens"):
        tokens.find("t")


@pytest.fixture(scope="module")
def bound(site: Site) -> str:
    """A token for one of the projects."""
    return site.token("search", "memory", within=OWN)


def call(name: str, **arguments: Any) -> str:
    params = {"name": name, "arguments": arguments}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})


def ask_mcp(site: Site, token: str, body: str, **headers: str) -> Answer:
    headers |= {"Accept": ACCEPT, "Content_Type": "application/json"}
    return site.ask("/mcp", token=token, method="POST", body=body, **headers)


def test_requests_need_a_valid_token(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tokens, "datetime", SimpleNamespace(now=lambda zone: datetime.now(zone) - timedelta(hours=1)))
        expired = site.token("search", expires=datetime.now(UTC) - timedelta(minutes=1))
    for target in PROTECTED:
        for token in ("", "x", "driftline_" + "x" * 43, expired, "x" * 10_000):
            answer = site.ask(target, token=token)
            if target in ("/", "/?q=x", "/d/source:a/b", "/index", "/sql", "/references?name=x", "/files?q=x"):
                assert (answer.status, answer.headers["location"].partition("?")[0]) == (303, "/sign-in")
            else:
                assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer"), target
            assert "acme" not in answer.body
    assert ask_mcp(site, "", call("index_status")).status == 401
    for target in ("/healthz", "/readyz", "/sign-in", "/static/style.css", "/static/page.js"):
        assert site.ask(target).status == 200


@pytest.mark.parametrize("query", ["lease", '"lease"'])
def test_facets_count_nothing_beyond_the_boundary(site: Site, bound: str, query: str) -> None:
    """Facets show nothing outside the boundary, even if the request specifies the source: a facet ignores the filter on
    its own values.
    """
    requested = urlencode({"q": query, "facets": "true", "source": f"{FOREIGN['secretx']}/source:secretx"})
    files = json.loads(site.ask(f"/api/v1/search?{requested}", token=bound).body)["facets"]["files"]
    assert files["source"] == {f"{OWN}/source:own": 2}
    page = site.ask(f"/?{urlencode({'q': query})}", token=bound).body
    assert "source:own" in page
    assert "secret" not in page


def test_sql_sees_nothing_beyond_the_boundary_and_needs_the_scope_of_memory(site: Site, bound: str) -> None:
    for view in (
        "documents",
        "lines",
        "definitions",
        "skipped",
        "sources",
        "branches",
        "runs",
        "run_sources",
        "memory",
    ):
        for page in ("/sql", "/api/v1/sql"):
            answer = site.ask(f"{page}?{urlencode({'q': f'SELECT * FROM {view}'})}", token=bound)
            assert answer.status == 200, view
            assert "secret" not in answer.body.replace("SELECT", ""), view
    beyond = urlencode({"q": "SELECT path FROM documents", "within": FOREIGN["secretx"]})
    assert json.loads(site.ask(f"/api/v1/sql?{beyond}", token=bound).body)["rows"] == []
    runs = site.ask("/api/v1/runs", token=bound).body
    assert "source:own" in runs
    assert "secret" not in runs
    query = urlencode({"q": "SELECT path FROM documents"})
    for page in ("/sql", "/api/v1/sql"):
        assert site.ask(f"{page}?{query}", token=site.token("search")).status == 403
        assert site.ask(f"{page}?{urlencode({'q': 'SELECT * FROM read_csv(1)'})}", token=bound).status == 400
    large = urlencode({"q": "SELECT repeat('x', 10000) FROM range(20000)"})
    answer = site.ask(f"/api/v1/sql?{large}", token=bound)
    assert (answer.status, "Add a LIMIT" in answer.body) == (400, True)


def test_references_are_those_inside_the_boundary(site: Site) -> None:
    for name, lines in {"own": 1, **dict.fromkeys(FOREIGN, 0)}.items():
        answer = site.ask(f"/references?name=lease_{name}", token=site.token("search", within=OWN))
        assert answer.status == 200
        assert (f"def lease_{name}" in re.sub("<[^>]*>", "", answer.body)) == bool(lines), name


def test_files_are_found_inside_the_boundary(site: Site) -> None:
    token = site.token("search", within=OWN)
    assert f"/d/{OWN}/source:own/" in site.ask("/files?q=py", token=token).body
    for query in ("q=py", f"q=py&source={FOREIGN['secretx']}/source:secretx"):
        answer = site.ask(f"/files?{query}", token=token)
        assert answer.status == 200
        assert "source:secret" not in answer.body.replace(f'value="{FOREIGN["secretx"]}/source:secretx"', "")


def test_a_scope_opens_its_routes_only(site: Site) -> None:
    tokens = {scope: site.token(scope) for scope in ("search", "memory", "metrics")}
    of = {"/api/v1/status": "search", "/?q=x": "search", "/api/v1/memory/search?q=x&entity=org:acme": "memory"}
    for target, needed in of.items():
        for scope, token in tokens.items():
            assert site.ask(target, token=token).status == (200 if scope == needed else 403), (target, scope)
    status, memory = call("index_status"), call("search_memory", query="parser", entity="org:acme")
    for tool, needed in ((status, "search"), (memory, "memory")):
        for scope in ("search", "memory"):
            result = json.loads(ask_mcp(site, tokens[scope], tool).body)["result"]
            assert result.get("isError", False) == (scope != needed), (tool, scope)
    assert ask_mcp(site, tokens["metrics"], status).status == 403


def test_a_revoked_token_is_refused_within_seconds(site: Site) -> None:
    token = site.token("search")
    assert site.ask("/api/v1/status", token=token).status == 200
    revoke_token(site.workspace, read_tokens(site.workspace.objects)[-1].id)
    site.forget()
    assert site.ask("/api/v1/status", token=token).status == 401


def test_a_bound_token_sees_its_project(site: Site, bound: str) -> None:
    found = json.loads(site.ask("/api/v1/search?q=lease&mode=text", token=bound).body)["results"]
    assert {hit["path"] for hit in found} == {"own.py", "shared.md"}
    status = json.loads(site.ask("/api/v1/status", token=bound).body)
    assert status["total_documents"] == 2
    documents = json.loads(site.ask("/api/v1/documents", token=bound).body)["documents"]
    assert [document["path"] for document in documents] == ["own.py", "shared.md"]
    memory = json.loads(site.ask("/api/v1/memory/search?q=parser", token=bound).body)["results"]
    assert [hit["record"]["key"] for hit in memory] == ["own"]
    for requested in (
        call("search_lines", query="lease"),
        call("grep_lines", pattern="lease", literal=True),
    ):
        outcome = json.loads(ask_mcp(site, bound, requested).body)["result"]
        text = outcome["content"][0]["text"]
        assert {path for path, _, _ in hits_of(text)} == {"own.py", "shared.md"}
        assert not any(name in text for name in FOREIGN)


def test_an_mcp_client_sees_what_its_token_sees(site: Site, bound: str) -> None:
    async def talk() -> tuple[set[str], Any]:
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {bound}"}) as sender:
            transport = streamable_http_client(f"http://{site.address}/mcp", http_client=sender)
            async with Client(transport, read_timeout_seconds=PATIENCE_SECONDS) as client:
                tools = {tool.name for tool in (await client.list_tools()).tools}
                return tools, await client.call_tool("search_lines", {"query": "lease"})

    tools, outcome = asyncio.run(talk())
    exact = {"grep_lines", "find_definitions", "find_uses"}
    assert tools == {"search_lines", "read_context", "index_status", "search_memory"} | exact
    assert {path for path, _, _ in hits_of(text_of(outcome))} == {"own.py", "shared.md"}
    assert not any(name in text_of(outcome) for name in FOREIGN)
    assert "Paths are relative" not in text_of(outcome), "the server's files are of no use to its clients"


NAMES = st.sampled_from(sorted(FOREIGN))


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str | None]:
    """Return a path with a query, or a tool call, that refers to something outside the boundary."""
    name = draw(NAMES)
    source = draw(st.sampled_from([f"{FOREIGN[name]}/source:{name}", FOREIGN[name], f"{OWN}/source:{name}"]))
    path = draw(st.sampled_from([f"{name}.py", "shared.md", f"../{name}/{name}.py"]))
    branch = draw(st.sampled_from([{}, {"branch": f"branch-{name}"}]))
    query = draw(st.sampled_from(["lease", name]))
    wanted = draw(
        st.sampled_from(["search", "page", "excerpt", "document", "folder", "documents", "memory", "read", "recall"])
    )
    if wanted == "read":
        return "", call("read_context", path=path, line=1, **branch, **draw(st.sampled_from([{}, {"source": source}])))
    if wanted == "recall":
        return "", call("search_memory", query=query, mode="text", entity=source.partition("/source:")[0])
    narrowing = draw(st.sampled_from([{}, {"source": source}, {"path": path.rpartition("/")[2]}, {"glob": f"{name}*"}]))
    parameters: dict[str, dict[str, Any]] = {
        "search": {"q": query, "mode": "text", **narrowing, **branch},
        "page": {"q": query, "mode": "text", **narrowing, **branch},
        "excerpt": {"source": source, "path": path, "line": 1, **branch},
        "documents": {"source": source, "limit": 1},
        "memory": {"q": query, "mode": "text", "entity": source.partition("/source:")[0]},
    }
    if wanted == "document":
        line = draw(st.sampled_from([{}, {"line": 1}]))
        return f"/d/{source}/{path.removeprefix('../')}?{urlencode({**line, **branch})}", None
    if wanted == "folder":
        return f"/d/{source}/{draw(st.sampled_from(['', 'sub/', f'{name}/', '../']))}?{urlencode(branch)}", None
    routes = {"page": "/", "memory": "/api/v1/memory/search"}
    return f"{routes.get(wanted, f'/api/v1/{wanted}')}?{urlencode(parameters[wanted])}", None


def without_nearest(body: str) -> str:
    """Return a response without its nearest line, which is inside the boundary but depends on the query's words."""
    try:
        answer = json.loads(body)
    except ValueError:  # a page
        return body
    if nearest := answer.pop("nearest", None):
        assert nearest["source"] == f"{OWN}/source:own"
    return json.dumps(answer)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request=requests(), follows=st.booleans())
def test_existing_and_missing_things_beyond_the_boundary_look_alike(
    site: Site, bound: str, request: tuple[str, str | None], follows: bool
) -> None:
    """The boundary is a token's, or what a fleet's host lets a proxy user read."""
    token, user = ("", {"X_User": "ann@acme.example"}) if follows else (bound, {})

    def answer(replaced: bool) -> Answer:
        target, body = request
        if replaced:
            for name, absent in ABSENT.items():
                target, body = target.replace(name, absent), body and body.replace(name, absent)
        got = site.ask(target, token=token, **user) if body is None else ask_mcp(site, token, body, **user)
        headers = {k: v for k, v in got.headers.items() if k not in ("x-request-id", "etag", "date")}
        headers.pop("content-length", None)
        return replace(got, headers=headers, body=without_nearest(got.body))

    real, twin = answer(replaced=False), answer(replaced=True)
    body = real.body
    for name, absent in ABSENT.items():
        body = body.replace(name, absent)
    assert (real.status, body, real.headers) == (twin.status, twin.body, twin.headers)


def test_the_access_that_a_host_gives_expires(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(user: str) -> set[str]:
        answer = site.ask("/api/v1/sources", X_User=f"{user}@acme.example")
        assert answer.status in (200, 403)
        return {name for name in ("own", "secretb", "secretx") if f"source:{name}" in answer.body}

    assert (seen("ann"), seen("bob"), seen("eve")) == ({"own"}, {"secretb", "secretx"}, set())
    memory = site.ask("/api/v1/memory/search?q=parser", X_User="ann@acme.example")
    assert (memory.status, "can access has memory" in memory.body) == (404, True)
    monkeypatch.setattr(site.readers, "_now", lambda: NOW + timedelta(seconds=1))
    assert (seen("ann"), seen("bob")) == (set(), {"secretb", "secretx"})
    monkeypatch.setattr(site.readers, "_now", lambda: NOW - 3 * DAY)  # written by a clock that was far ahead
    assert (seen("ann"), seen("bob")) == (set(), set())


@pytest.mark.parametrize(
    ("spelling", "user", "login"),
    [
        ("{login}", "Ann-B", "ann-b"),
        ("{login}@Acme.example", "ann@acme.EXAMPLE", "ann"),
        ("acme\\{login}", "ACME\\ann", "ann"),
        ("{login}@acme.example", "ann@acme.example.evil", ""),
        ("{login}@acme.example", "ann", ""),
        ("{login}@acme.example", "@acme.example", ""),
        ("aa{login}aa", "aaa", ""),
        ("{login}", "\u212aim", ""),  # in lower case, the Kelvin sign is a k
        ("{login}", "", ""),
    ],
)
def test_a_login_is_the_user_name_without_its_affixes(spelling: str, user: str, login: str) -> None:
    assert FleetReaders(spelling, DAY).login_of(user) == login


def test_lists_omit_everything_beyond_the_boundary(site: Site, bound: str) -> None:
    assert OWN in site.ask("/index", token=bound).body
    assert f"/d/{OWN}/source:own/shared.md" in site.ask(f"/d/{OWN}/source:own/own.py?line=1", token=bound).body
    for target in ("status", "sources", "branches", "documents", "search?q=lease&top_k=50", "search?q=x&branch=none"):
        assert "secret" not in site.ask(f"/api/v1/{target}", token=bound).body, target
    for target in ("/", "/d/", f"/d/{OWN}/source:own/", f"/d/{OWN}/source:own/own.py"):
        page = site.ask(target, token=bound).body
        assert f"/d/{OWN}/source:own/" in page
        assert "secret" not in page, target
    for target in ("/?q=lease", "/d/source:x/y", "/index", "/readyz", "/api/v1/openapi.json"):
        assert "secret" not in site.ask(target, token=bound).body, target
    assert "secret" not in ask_mcp(site, bound, call("index_status")).body
    read = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "driftline://sources"}}
    sources = ask_mcp(site, bound, json.dumps(read)).body
    assert "source:own" in sources
    assert "secret" not in sources
    assert "secret" not in ask_mcp(site, bound, call("search_lines", query="lease", branch="none")).body


def test_a_failed_run_is_shown_as_failed_to_those_who_see_its_source() -> None:
    source = {"uri": "/s", "entity": f"{OWN}/source:s"}

    def seen(outcome: str, *failed: str) -> list[str]:
        report = {"sources": [source], "failed": [{"uri": uri} for uri in failed]}
        about: dict[str, Any] = {"run_id": "1", "kind": "index", "started": NOW.isoformat(), "seconds": 3.0}
        run = RunRecord(**about, outcome=outcome, report=report)
        return [each.outcome for each in _within([run], Boundary.of(Entity.parse(OWN)))]

    assert (seen("done"), seen("interrupted"), seen("storage_error")) == (["done"], ["interrupted"], ["storage_error"])
    assert (seen("storage_error", "/s"), seen("storage_error", "/another")) == (["failed"], ["done"])


def test_people_sign_in_with_their_token(site: Site, bound: str) -> None:
    form = {"method": "POST", "Content_Type": "application/x-www-form-urlencoded"}
    wrong = site.ask("/sign-in", body=urlencode({"token": "x", "next": "/"}), **form)
    assert (wrong.status, "set-cookie" in wrong.headers) == (401, False)
    for target, back in (
        ("/?q=lease", "/?q=lease"),
        ("//evil.com/", "/"),
        ("https://evil.com", "/"),
        ("/\\evil", "/"),
        ("//[", "/"),
    ):
        answer = site.ask("/sign-in", body=urlencode({"token": bound, "next": target}), **form)
        assert (answer.status, answer.headers["location"]) == (303, back)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie  # a link in a message leads to its page, not to the sign-in page
    page = site.ask("/?q=lease&mode=text", Cookie=cookie.partition(";")[0])
    assert (page.status, "own.py" in page.body, "secret" in page.body) == (200, True, False)
    assert ("Sign out" in page.body, "Sign out" in site.ask("/", X_User="ann@acme.example").body) == (True, False)
    assert 'driftline_token=""' in site.ask("/sign-in/out", **form).headers["set-cookie"]
    assert site.ask("/sign-in?next=//%5B").status == 200
    assert site.ask("/sign-in", body=urlencode({"token": bound}), Origin="http://evil.com", **form).status == 403


def test_the_cookie_is_secure_behind_a_proxy_with_tls(site: Site, bound: str) -> None:
    exposure = Exposure(names=("search.example",), authentication=Authentication(site.tokens))
    with serving(web_server(Reader(site.workspace.reread), "127.0.0.1", 0, exposure)) as address:

        def cookie(origin: str) -> str:
            kind = {"Content_Type": "application/x-www-form-urlencoded", "Host": "search.example", "Origin": origin}
            answer = ask(address, "/sign-in", method="POST", body=urlencode({"token": bound}), **kind)
            assert answer.status == 303
            return answer.headers["set-cookie"]

        assert "; Secure" in cookie("https://search.example")
        assert "; Secure" not in cookie("http://search.example")


def test_signing_in_leads_back_to_a_document_with_any_name(site: Site) -> None:
    answer = site.ask("/d/source:web/a%23b%3Fc%20d.py?line=3")
    back = parse_qs(urlsplit(answer.headers["location"]).query)["next"]
    assert (answer.status, back) == (303, ["/d/source:web/a%23b%3Fc%20d.py?line=3"])


def test_a_large_body_is_refused(site: Site, bound: str) -> None:
    big = call("search_lines", query="x" * MAX_BODY_BYTES)
    assert ask_mcp(site, bound, big).status == 413


def test_each_token_has_its_rate(site: Site, bound: str) -> None:
    other = site.token("search")
    exposure = Exposure(authentication=Authentication(site.tokens), rate_limit=RateLimit(0.01, burst=3))
    with serving(web_server(Reader(site.workspace.reread), "127.0.0.1", 0, exposure)) as address:
        answers = [ask(address, "/api/v1/sources", token=bound) for _ in range(4)]
        assert [answer.status for answer in answers] == [200, 200, 200, 429]
        assert 0 < int(answers[-1].headers["retry-after"]) <= 100
        assert ask(address, "/api/v1/sources", token=other).status == 200
        assert ask(address, "/healthz").status == 200


def test_scripts_of_a_named_origin_read_the_api_with_a_token_and_nothing_else(site: Site, bound: str) -> None:
    named, other = "https://portal.example", "https://evil.example"
    exposure = Exposure(authentication=Authentication(site.tokens), cors_origins=[named])
    preflight = {"method": "OPTIONS", "Access_Control_Request_Method": "GET", "Access_Control_Request_Headers": "x"}
    allowed = "access-control-allow-origin"
    with serving(web_server(Reader(site.workspace.reread), "127.0.0.1", 0, exposure)) as address:
        requested = ask(address, "/api/v1/status", Origin=named, **preflight)
        assert (requested.status, requested.headers[allowed], requested.body) == (204, named, "")
        assert "Authorization" in requested.headers["access-control-allow-headers"]
        answer = ask(address, "/api/v1/status", token=bound, Origin=named)
        assert (answer.status, answer.headers[allowed]) == (200, named)
        assert "Origin" in answer.headers["vary"]
        assert "access-control-allow-credentials" not in answer.headers  # the cookie of browsers is not used
        assert ask(address, "/api/v1/status", Origin=named).status == 401
        for target, options in (
            ("/api/v1/status", {"Origin": other, **preflight}),
            ("/api/v1/status", {"Origin": other, "token": bound}),
            ("/api/v1/status", {"Origin": named, "Host": "evil.example", **preflight}),
            ("/", {"Origin": named, "token": bound}),
            ("/mcp", {"Origin": named, "token": bound, "method": "POST"}),
            ("/sign-in", {"Origin": named, "method": "POST"}),
        ):
            refused = ask(address, target, **options)
            assert refused.status in (403, 421), target
            assert allowed not in refused.headers
    assert allowed not in site.ask("/api/v1/status", token=bound).headers
    wrong = ("*", "portal.example", "https://portal.example/path", "https://a@portal.example", "https://")
    for origin in (*wrong, "https://Portal.example", "https://*.example", "https://portal.example:443"):
        with pytest.raises(UsageError, match="origin"):
            web_server(Reader(site.workspace.reread), "127.0.0.1", 0, replace(exposure, cors_origins=[origin]))


@pytest.mark.parametrize(("network", "status"), [("127.0.0.0/8", 200), ("10.0.0.0/8", 401)])
def test_only_the_trusted_proxy_vouches_for_users(site: Site, network: str, status: int) -> None:
    proxy = TrustedProxy("X-Forwarded-User", [ip_network(network)])
    within = boundary_in(site.workspace, OWN)
    exposure = Exposure(names=["search.example"], authentication=Authentication(site.tokens, proxy, within))
    with serving(web_server(Reader(site.workspace.reread), "127.0.0.1", 0, exposure)) as address:
        named = {"Host": "search.example", "X_Forwarded_User": "alice"}
        answer = ask(address, "/api/v1/sources", **named)
        assert answer.status == status
        assert "secret" not in answer.body
        assert ask(address, "/api/v1/sources", Host="search.example").status == 401
        assert ask(address, "/api/v1/sources", **{**named, "X_Forwarded_User": " "}).status == 401
        assert ask(address, "/healthz", Host="search.example", Origin="https://search.example").status == 200
        assert ask(address, "/healthz", Host="evil.example").status == 421


def test_requests_wait_for_the_tokens_that_another_request_is_reading() -> None:
    record = TokenRecord(id="1", hash=token_hash("t"), scopes=("search",), created=datetime.now(UTC))
    both = threading.Barrier(2)

    def read() -> tuple[TokenRecord, ...]:
        both.wait(PATIENCE_SECONDS)  # for the second request
        time.sleep(0.2)
        return (record,)

    guarded = Guard(PlainTextResponse("ok"), ["x.example"], authentication=Authentication(KnownTokens(read)))
    client = TestClient(guarded, base_url="http://x.example")

    def status(is_late: bool) -> int:
        if is_late:
            both.wait(PATIENCE_SECONDS)
        return client.get("/api/v1/status", headers={"Authorization": "Bearer t"}).status_code

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(status, (False, True))] == [200, 200]


OWN_ONLY, WITH_B = {"own"}, {"own", "secretb"}


@pytest.mark.parametrize(
    ("headers", "seen"),
    [
        ({"X_User": "alice"}, OWN_ONLY),
        ({"X_User": "alice", "X_Groups": "unknown, readers of b"}, WITH_B),
        ({"X_User": "bob", "X_Groups": "readers of b,readers of b"}, {"secretb"}),
        ({"X_User": "Alice", "X_Groups": "OWN, Readers of B"}, set()),
        ({"X_User": "bob"}, set()),
        ({"X_User": "bob", "X_Groups": "alice"}, set()),
        ({"X_Groups": "readers of b"}, None),
    ],
)
def test_a_user_of_the_proxy_sees_what_is_granted_to_user_and_groups(
    site: Site, headers: dict[str, str], seen: set[str] | None
) -> None:
    own, of_b = (Boundary.of(Entity.parse(name)) for name in (OWN, FOREIGN["secretb"]))
    rules = AccessRules(users={"alice": own}, groups={"readers of b": of_b}, groups_header="X-Groups")
    proxy = TrustedProxy("X-User", [ip_network("127.0.0.0/8")])
    exposure = Exposure(authentication=Authentication(site.tokens, proxy, rules=rules))
    reader = Reader(site.workspace.reread)
    with serving(web_server(reader, "127.0.0.1", 0, exposure, McpApp(reader))) as address:
        answers = {name: ask(address, f"/api/v1/{name}", **headers) for name in ("sources", "status", "branches")}
        answers |= {q: ask(address, f"/api/v1/search?q={q}&facets=true", **headers) for q in ("lease", "%22lease%22")}
        answers["documents"] = ask(address, "/api/v1/documents", **headers)
        answers["page"] = ask(address, "/?q=lease", **headers)
        answers["index"] = ask(address, "/index", **headers)
        mcp = {"method": "POST", "Accept": ACCEPT, "Content_Type": "application/json", **headers}
        answers["mcp"] = ask(address, "/mcp", body=call("index_status"), **mcp)
        found = ask(address, "/mcp", body=call("search_lines", query="lease"), **mcp).body  # with short names
        assert [name for name in ("secretb", "secretx") if name in found and name not in (seen or ())] == []
        expected = {401, 303} if seen is None else {403} if not seen else {200}
        for name, answer in answers.items():
            assert answer.status in expected, name
            for project in ("own", "secretb", "secretx"):
                is_there = f"source:{project}" in answer.body or f"branch-{project}" in answer.body
                assert is_there == (project in (seen or ())), (name, project)
        if seen:
            assert len(json.loads(answers["documents"].body)["documents"]) == 2 * len(seen)


def test_a_request_with_several_users_names_nobody() -> None:
    proxy = TrustedProxy("X-User", [ip_network("10.0.0.0/8")])
    for sent, user in (([b"ann"], "ann"), ([b"ann", b"bob"], ""), ([b""], ""), ([], ""), (["Zoë".encode()], "Zoë")):
        headers = Headers(raw=[(b"x-user", each) for each in sent])
        assert proxy.user_of("10.1.2.3", headers) == user
        assert proxy.user_of("11.1.2.3", headers) == proxy.user_of("unknown", headers) == ""


def test_the_servers_boundary_applies_to_every_token(site: Site, bound: str) -> None:
    everything, beyond = site.token("search"), site.token("search", within=FOREIGN["secretx"])
    within = boundary_in(site.workspace, OWN)
    exposure = Exposure(authentication=Authentication(site.tokens, within=within))
    with serving(web_server(Reader(site.workspace.reread), "127.0.0.1", 0, exposure)) as address:
        for token in (bound, everything):
            (source,) = json.loads(ask(address, "/api/v1/sources", token=token).body)["sources"]
            assert source["entity"].startswith(OWN)
        assert ask(address, "/api/v1/sources", token=beyond).status == 401


def test_the_last_known_tokens_are_trusted_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    record = TokenRecord(id="1", hash=token_hash("t"), scopes=("search",), created=datetime.now(UTC))
    now, reads = [1_000.0], [True]

    def read() -> tuple[TokenRecord, ...]:
        if not reads[0]:
            raise StorageError("The store is away", "here")
        return (record,)

    # Only this module's clock: the event loop needs the real one.
    monkeypatch.setattr(access, "time", SimpleNamespace(monotonic=lambda: now[0]))
    proxy = TrustedProxy("X-User", [ip_network("10.0.0.0/8")])
    guarded = Guard(PlainTextResponse("ok"), ["x.example"], authentication=Authentication(KnownTokens(read), proxy))

    def status(**headers: str) -> int:
        client = TestClient(guarded, base_url="http://x.example", client=("10.1.2.3", 1))
        return client.get("/api/v1/status", headers=headers).status_code

    assert status(Authorization="Bearer t") == 200
    reads[0] = False
    for _ in range(int(access.STALE_SECONDS)):
        now[0] += 1
        assert status(Authorization="Bearer t") == 200
    for _ in range(2 * int(access.REFRESH_SECONDS) + 2):  # also between two attempts to read them
        now[0] += 1
        assert status(Authorization="Bearer t") == status(Authorization="Bearer unknown") == 503
    assert status(**{"X-User": "ann"}) == 200  # a user of the proxy needs no token
    reads[0] = True
    now[0] += access.REFRESH_SECONDS + 1
    assert status(Authorization="Bearer t") == 200

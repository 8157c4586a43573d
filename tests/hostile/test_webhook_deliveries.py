"""Webhooks from senders without the secret, and from malicious ones with it: only configured runs start."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest

from driftline.flows import http_server
from driftline.flows.ci import webhooks
from driftline.flows.ci.webhooks import Hooks, Work
from driftline.flows.config.driftline_toml import HookSettings
from driftline.flows.config.index_request import SourceRequest
from driftline.flows.web.api import Reader
from driftline.flows.web.guard import MAX_HOOK_BYTES
from driftline.flows.web.server import web_server
from driftline.storage.workspace.workspace import Workspace
from tests.support.hooks import SECRET, deliver, push, request, signed
from tests.support.waiting import PATIENCE_SECONDS, until
from tests.support.web import ask, serving

URL = "https://code.example/team/app.git"
SOURCE = SourceRequest(f"git+{URL}", "org:a/project:b/source:app")


@dataclass
class Site:
    address: str = ""
    ran: list[Work] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)

    def run(self, work: Work) -> None:
        self.ran.append(work)
        self.held.wait(PATIENCE_SECONDS)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A server that accepts webhooks; its run lasts until the end of the test."""
    Workspace.open_for_writing(str(tmp_path / "ws"))
    found = Site()
    settings = HookSettings({}, ("*",), pull_requests=True)
    hooks = Hooks(settings, dict.fromkeys(webhooks.HOSTS, SECRET), (SOURCE,), found.run, debounce_seconds=0.0)
    server = web_server(Reader(Workspace.open(str(tmp_path / "ws")).reread), "127.0.0.1", 0, hooks=hooks)
    with serving(server) as found.address, hooks.running():
        try:
            yield found
        finally:
            found.held.set()


@pytest.mark.parametrize("host", webhooks.HOSTS)
def test_a_signature_that_is_missing_or_wrong_starts_nothing(site: Site, host: str) -> None:
    event, payload = push(host, URL)
    (header,) = signed(host, "")
    right = signed(host, json.dumps(payload))[header]
    wrong = [
        "",
        "sha256=",
        "x" * 10_000,
        "\xff" * 64,
        f"sha256={'0' * 64}",
        "0" * 64,
        right[:-1],
        f"{right}0",
        SECRET[:-1],
    ]
    for each in wrong:
        answer = deliver(site.address, host, event, json.dumps(payload), **{header: each})
        assert (answer.status, SECRET in answer.body) == (401, False)
    sha1 = deliver(site.address, host, event, payload, **{header: "", "X_Hub_Signature_1": "sha1=00"})
    assert sha1.status == 401
    assert site.ran == []


@pytest.mark.parametrize("host", webhooks.HOSTS)
def test_a_replayed_delivery_is_refused_under_its_own_id_or_another(site: Site, host: str) -> None:
    event, payload = push(host, URL)
    body = json.dumps(payload)
    assert deliver(site.address, host, event, body, delivery="one").status == 202
    assert deliver(site.address, host, event, body, delivery="one").status == 409
    if not webhooks.HOSTS[host].is_token:  # the id is not signed, but the body is
        assert deliver(site.address, host, event, body, delivery="two").status == 409
    until(lambda: site.ran)
    assert len(site.ran) == 1


def test_the_memory_of_deliveries_is_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = Hooks(HookSettings(), {}, (), site.run)
    for number in range(2 * webhooks.KNOWN_DELIVERIES):
        hooks._seen[str(number)] = True
    assert len(hooks._seen) == webhooks.KNOWN_DELIVERIES


def test_a_huge_body_is_refused_with_or_without_a_length(site: Site) -> None:
    body = "x" * (MAX_HOOK_BYTES + 1)
    assert ask(site.address, "/hooks/github", method="POST", body=body).status == 413
    host, _, port = site.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as raw:
        head = f"POST /hooks/github HTTP/1.1\r\nHost: {site.address}\r\nTransfer-Encoding: chunked\r\n\r\n"
        raw.sendall(head.encode())
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        answer = b""
        try:
            for _ in range(MAX_HOOK_BYTES // 0x10000 + 2):
                raw.sendall(chunk)
        except OSError:
            pass  # the server has responded and reads no more
        answer = raw.recv(100)
    assert answer.startswith(b"HTTP/1.1 413")
    assert site.ran == []


@pytest.mark.parametrize("path", ["/hooks/github", "/nowhere"])
@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_a_client_that_sends_all_of_a_huge_body_gets_the_response(
    site: Site, path: str, is_chunked: bool, connection: str
) -> None:
    data = b"x" * (MAX_HOOK_BYTES + (1 << 20))
    length = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {len(data)}"
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data) if is_chunked else data
    host, _, port = site.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as raw:
        head = f"POST {path} HTTP/1.1\r\nHost: {site.address}\r\nConnection: {connection}\r\n{length}\r\n\r\n"
        raw.sendall(head.encode() + body)
        answer = raw.makefile("rb").readline()
    assert answer.split()[1] in (b"404", b"405", b"413")
    assert answer.split()[1] == b"413" or path != "/hooks/github"
    assert ask(site.address, "/healthz").status == 200


def test_a_client_that_asks_before_it_sends_a_huge_body_gets_the_response(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not wait for a body that the client will not send."""
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 10 * PATIENCE_SECONDS)
    host, _, port = site.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as raw:
        length = f"Content-Length: {MAX_HOOK_BYTES + 1}"
        head = f"POST /hooks/github HTTP/1.1\r\nHost: {site.address}\r\nConnection: close\r\n{length}\r\n"
        raw.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
        assert raw.makefile("rb").read().split()[1] == b"413"


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[]",
        "null",
        '"x"',
        "[" * 100_000,
        '{"repository": ' * 50_000,
        '{"a": 1e999999, "b": "\\ud800"',
        "\0",
        "payload=",
        "payload=1&payload",
    ],
    ids=range(11),
)
def test_a_signed_body_that_is_not_an_object_is_rejected(site: Site, body: str) -> None:
    assert deliver(site.address, "github", "push", body).status == 400
    assert ask(site.address, "/healthz").status == 200


@pytest.mark.parametrize("host", webhooks.HOSTS)
def test_payloads_of_other_shapes_are_ignored(site: Site, host: str) -> None:
    shapes: list[object] = [None, [], {}, "x", 7, True, [{}], {"x": []}, [None] * 20]
    for event, payload in (push(host, URL), request(host, URL, 7, "x")):
        for key in payload:
            for shape in shapes:
                assert deliver(site.address, host, event, {**payload, key: shape}).status in (200, 202)
    assert all(work.source == SOURCE for work in site.ran)


@pytest.mark.parametrize(
    "branch",
    [
        *(
            "--upload-pack=touch x",
            "-x",
            "a..b",
            "a b",
            "a\nb",
            "a\0b",
            "../../etc",
            "a@{1}",
            "a@b",
            "x" * 300,
            "a~1",
            "a:b",
        ),
        *("refs/heads/../x", "a.lock", "/a", "a/", "é\u202e", "*", "", " "),
    ],
)
def test_odd_refs_never_reach_git(site: Site, branch: str) -> None:
    for event, payload in (push("github", URL, branch), request("github", URL, 7, branch)):
        answer = deliver(site.address, "github", event, payload)
        assert answer.status in (200, 202)
    for work in site.ran:
        assert work.ref in ("", f"refs/heads/{branch}")
        assert branch == "-x"  # as refs/heads/-x, it is not an option


@pytest.mark.parametrize("number", ["7/head", "-1", "١", "7\n", "", "0x7", " 7"])
def test_odd_numbers_of_pull_requests_never_reach_git(site: Site, number: str) -> None:
    event, payload = request("github", URL, 7, "x", fork=True)
    assert deliver(site.address, "github", event, {**payload, "number": number}).status == 200
    assert site.ran == []


@pytest.mark.parametrize(
    "url",
    [
        "https://code.example/team/other.git",
        "https://evil.example/team/app.git",
        "https://code.example.evil.example/team/app.git",
        "https://code.example@evil.example/team/app.git",
        "file:///team/app.git",
        "ext::sh -c 'touch x'",
        "/team/app.git",
        "https://code.example/team/app.git/../other",
        "",
    ],
)
def test_a_delivery_for_an_unknown_repository_starts_no_run(site: Site, url: str) -> None:
    event, payload = push("github", url)
    for body in (payload, f"payload={quote(json.dumps(payload))}"):  # a form is GitHub's default
        answer = deliver(site.address, "github", event, body)
        assert answer.status == 200
        assert "no source" in answer.body
    assert site.ran == []


def test_a_payload_never_names_what_is_fetched(site: Site) -> None:
    event, payload = push("github", URL)
    payload["repository"] |= {"ssh_url": "git@evil.example:x/y.git", "html_url": "https://evil.example/x"}
    assert deliver(site.address, "github", event, payload).status == 202
    until(lambda: site.ran)
    assert [work.uri for work in site.ran] == [SOURCE.uri]


def test_no_more_runs_wait_than_a_bound_and_the_host_may_deliver_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "MAX_WAITING", 3)
    deliver(site.address, "github", *push("github", URL, "first"))
    until(lambda: site.ran)
    statuses = [deliver(site.address, "github", *push("github", URL, f"b{n}")).status for n in range(5)]
    assert statuses == [202, 202, 202, 503, 503]
    event, payload = push("github", URL, "b9")
    body = json.dumps(payload)
    assert [deliver(site.address, "github", event, body, delivery="same").status for _ in range(2)] == [503, 503]


def test_only_known_hosts_and_the_post_method_have_a_route(site: Site) -> None:
    assert ask(site.address, "/hooks/svn", method="POST", body="{}").status == 404
    assert ask(site.address, "/hooks/github").status == 405
    assert ask(site.address, "/hooks/", method="POST", body="{}").status == 404
    assert ask(site.address, "/hooks/../metrics", method="POST", body="{}").status in (404, 405)

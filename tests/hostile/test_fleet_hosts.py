"""Malicious hosts: no response redirects git or a token, grows without limit, or removes a repository."""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from driftline.storage.entities import TEMPLATE, entity_of, normalized_name
from driftline.storage.errors import DriftlineError, UsageError
from driftline.storage.sources import discovery, host_connection
from driftline.storage.sources.discovery import READING, FleetSelection, HostListing, KnownPage, discover
from driftline.storage.sources.hosts import Host, HostedRepository
from driftline.storage.sources.mirror import parse_remote
from driftline.storage.workspace.fleet_state import KnownRepository, reconcile, to_retire
from tests.servers.git_server import GitServer, running_git_server
from tests.servers.host_api import HostApi, Hosted, altered, moved, throttled
from tests.support.fleets import Fleet

TOKEN = {"TOKEN": "s3cret"}


@pytest.fixture
def api(git_server: GitServer) -> HostApi:
    git_server.api = HostApi(git_server, "github", [Hosted(each, f"acme/r{each}") for each in range(1, 6)])
    return git_server.api


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[GitServer]:
    """Another host with the same listing."""
    (tmp_path / "elsewhere").mkdir()
    with running_git_server(tmp_path / "elsewhere") as server:
        server.api = HostApi(server, "github", [Hosted(1, "acme/r1")])
        yield server


def look(api: HostApi) -> HostListing:
    return discover(Host("github", f"http://{api.server.host}", "acme", "org", "TOKEN"), environ=TOKEN, sleep=abs)


def answering(body: Any, **headers: str) -> Any:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lambda _: (200, headers, text)


def test_redirects_and_links_to_another_host_are_not_followed(api: HostApi, elsewhere: GitServer) -> None:
    there = f"http://{elsewhere.host}"
    items = [Hosted(1, "acme/r1").item("github")]
    for fault in (
        moved(there),
        moved(there.replace("http:", "")),
        answering(items, Link=f'<{there}/api/v3/orgs/acme/repos?page=2>; rel="next"'),
        answering(items, Link='<file:///etc/passwd>; rel="next"'),
        moved("file://"),
    ):
        api.faults = [fault]
        listing = look(api)
        assert "another host" in str(listing.failure)
        assert not listing.is_complete
    assert elsewhere.requested == []
    assert "s3cret" not in str(listing.failure)


def test_a_redirect_without_end_is_an_error(api: HostApi) -> None:
    api.faults = [moved("")] * 50
    assert isinstance(look(api).failure, DriftlineError)
    assert len(api.faults) > 40


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "acme/..",
        "acme/./x",
        "acme/x@evil.example",
        "acme//x",
        "/acme/x",
        "-acme/--upload-pack=touch",
        "acme/x y",
        "acme/x\n",
        "acme/x?y=1",
        "acme/x#y",
        "https://evil.example/x",
        "acme\\x/y",
        "only-one",
        "",
        None,
        7,
    ],
)
def test_a_path_that_leads_elsewhere_is_not_a_repository(api: HostApi, path: Any) -> None:
    api.repositories[1].path = "acme/placeholder"
    items = [each.item("github") for each in api.repositories[:2]]
    items[1]["full_name"] = path
    api.faults = [answering(items)]
    listing = look(api)
    assert ([*listing.repositories], listing.is_complete) == (["1"], False)
    with pytest.raises((UsageError, TypeError)):
        Host("github", "https://host", "acme", "org").uri(HostedRepository("2", path))


@pytest.mark.parametrize(
    "path", ["acme/-", "acme/--x", "acme/.github", "acme/_x~y+z", "1/2", "g-1/s.2/-/x", "~ann/notes", "_g/...a"]
)
def test_a_path_that_hosts_allow_is_a_repository(path: str) -> None:
    uri = Host("gitlab", "https://host/sub", "g", "group", "TOKEN").uri(HostedRepository("2", path))
    remote = parse_remote(uri)
    assert remote is not None
    assert (remote.uri, remote.variable) == (f"git+https://host/sub/{path}.git", "TOKEN")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[" * 100_000,
        b"null",
        b"{}",
        b'"text"',
        b"[null, 1, [], {}]",
        b'[{"id": {}, "full_name": [], "private": 1}]',
        b'[{"id": 1, "full_name": "acme/x", "private": true, "size": "many"}]',
        b"\xff\xfe",
    ],
)
def test_an_answer_that_is_not_a_page_makes_the_listing_incomplete(api: HostApi, body: bytes) -> None:
    api.faults = [answering(body)]
    assert not look(api).is_complete


def test_pages_that_lead_in_a_circle_or_grow_without_end_are_errors(
    api: HostApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = f"http://{api.server.host}/api/v3/orgs/acme/repos"
    api.faults = [answering([], Link=f'<{here}?page=7>; rel="next"')] * 3
    assert "does not end" in str(look(api).failure)
    monkeypatch.setattr(discovery, "MAX_PAGES", 5)
    api.faults = [answering([], Link=f'<{here}?page={number}>; rel="next"') for number in range(50)]
    assert "does not end" in str(look(api).failure)
    assert len(api.faults) > 40
    api.faults = [answering(b" " * 100_000)]
    monkeypatch.setattr(discovery, "MAX_PAGE_BYTES", 10_000)
    assert "10,000 bytes" in str(look(api).failure)
    monkeypatch.setattr(discovery, "MAX_REPOSITORIES", 3)
    monkeypatch.setattr(discovery, "MAX_PAGE_BYTES", 10_000_000)
    api.faults = []
    assert "more than 3" in str(look(api).failure)


@pytest.mark.parametrize("provider", ["gitlab", "gitea"])
def test_a_wrong_total_makes_the_listing_incomplete(git_server: GitServer, provider: Any) -> None:
    api = HostApi(git_server, provider, [Hosted(each, f"acme/r{each}") for each in range(1, 6)], total=7)
    git_server.api = api
    host = Host(provider, f"http://{git_server.host}", "acme", "group" if provider == "gitlab" else "org")
    listing = discover(host, sleep=abs)
    assert (len(listing.repositories), listing.is_complete) == (5, False)
    api.total = 5
    assert discover(host).is_complete


FAR = "Sat, 31 Dec 9999 23:59:59 GMT"


@pytest.mark.parametrize(
    ("wait", "seconds"),
    [
        ({}, [60.0]),
        ({"Retry_After": "0"}, [1.0]),
        ({"Retry_After": "-5"}, [60.0]),
        ({"Retry_After": "soon"}, [60.0]),
        ({"Retry_After": "1e9"}, [60.0]),
        ({"Retry_After": "\u0663"}, [60.0]),
        ({"Retry_After": "9" * 400}, None),
        ({"Retry_After": "901"}, None),
        ({"Retry_After": "Mon, 01 Jan 1990 00:00:00 GMT"}, [1.0]),
        ({"Retry_After": "Mon, 01 Jan 0001 00:00:00 +2359"}, [1.0]),
        ({"Retry_After": FAR}, None),
        ({"Retry_After": FAR.replace("GMT", "-2359")}, None),
        ({"Retry_After": "Fri, 99 Foo 2024 99:99:99 GMT"}, [60.0]),
        ({"Retry_After": "Mon, 01 Jan 1990 00:00:00 GMT", "Date": "Tue, 02 Jan 1990 00:00:00 GMT"}, [1.0]),
        ({"X_RateLimit_Reset": "9" * 400}, None),
        ({"X_RateLimit_Reset": "0"}, [1.0]),
        ({"X_RateLimit_Reset": "-1"}, [60.0]),
    ],
)
def test_a_host_decides_about_waits_only_up_to_a_limit(
    api: HostApi, wait: dict[str, str], seconds: list[float] | None
) -> None:
    waits: list[float] = []
    host = Host("github", f"http://{api.server.host}", "acme", "org", "TOKEN")
    coded = {name: text.encode().decode("latin-1") for name, text in wait.items()}
    api.faults = [throttled(429, **coded)]
    listing = discover(host, environ=TOKEN, sleep=waits.append)
    assert (waits, listing.is_complete) == ([] if seconds is None else seconds, seconds is not None)
    waits.clear()
    api.faults = [throttled(429, **coded)] * 2_000
    listing = discover(host, environ=TOKEN, sleep=waits.append)
    assert not listing.is_complete
    assert sum(waits) <= discovery.MAX_WAIT_SECONDS + 1


@pytest.mark.parametrize(
    "link",
    [
        "https://{host}{path}",
        "http://{host}@evil.example{path}",
        "http://s3cret@{host}{path}",
        "http://evil.example\\@{host}{path}",
        "http://{host}\\@evil.example{path}",
        "http://{host}.evil.example{path}",
        "http://{host}0{path}",
        "javascript:alert(1)",
        "data:application/json,[]",
        "ftp://{host}{path}",
    ],
)
def test_a_link_that_only_looks_like_the_host_is_not_followed(api: HostApi, link: str) -> None:
    target = link.format(host=api.server.host, path="/api/v3/orgs/acme/repos?page=2")
    items = [Hosted(1, "acme/r1").item("github")]
    for fault in (answering(items, Link=f'<{target}>; rel="next"'), lambda _: (307, {"Location": target}, b"")):
        api.faults = [fault]
        listing = look(api)
        assert "another host" in str(listing.failure)
        assert "s3cret" not in str(listing.failure)
    assert len(api.server.requested) == 2


def test_pages_that_lead_back_by_other_names_end(api: HostApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "MAX_PAGES", 5)
    first = "/api/v3/orgs/acme/repos?per_page=100&type=all&sort=created&direction=asc"
    items = [Hosted(1, "acme/r1").item("github")]
    for links in (["?page=2", first], [f"{first}#{number}" for number in range(50)], [f"{first}&x={'x' * 9_000}"] * 50):
        api.faults = [answering(items, Link=f'<{link}>; rel="next"') for link in [*links, *links]]
        listing = look(api)
        assert "does not end" in str(listing.failure)
        assert [*listing.repositories] == ["1"]


def test_a_listing_without_end_in_time_ends(api: HostApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "LISTING_SECONDS", -1.0)
    assert "does not end" in str(look(api).failure)


@pytest.mark.parametrize("value", [None, True, 1.0, [], {}, {"a": 1}, "", "x" * 300])
def test_an_id_that_identifies_nothing_is_not_accepted(api: HostApi, value: Any) -> None:
    items = [each.item("github") for each in api.repositories[:2]]
    items[1]["id"] = value
    api.faults = [answering(items)]
    listing = look(api)
    assert ([*listing.repositories], listing.is_complete) == (["1"], False)


@pytest.mark.parametrize("size", ["Infinity", "-Infinity", "NaN", "1e999", '"1"', "[]", "-1", "9" * 5_000])
def test_an_invalid_size_does_not_crash_the_listing(api: HostApi, size: str) -> None:
    body = json.dumps([each.item("github") for each in api.repositories[:2]])
    api.faults = [answering(body.replace('"size": 1', f'"size": {size}').encode())]
    listing = look(api)
    assert not listing.is_complete or size in ("-1", '"1"', "[]")


@pytest.mark.parametrize("status", [201, 204, 206, 300, 304, 305, 400, 410, 418, 451, 600, 999])
def test_an_unexpected_status_makes_the_listing_incomplete(api: HostApi, status: int) -> None:
    body = json.dumps([api.repositories[0].item("github")]).encode()
    api.faults = [lambda _: (status, {}, b"" if status in (204, 304) else body)] * 9
    assert not look(api).is_complete


@pytest.mark.parametrize("provider", ["gitlab", "gitea"])
@pytest.mark.parametrize("total", ["-1", "NaN", "9" * 5_000, "9" * 50, "\u0665", "0", "5, 5", "5.0", ""])
def test_a_total_is_believed_only_against_the_listing(git_server: GitServer, provider: Any, total: str) -> None:
    api = HostApi(git_server, provider, [Hosted(each, f"acme/r{each}") for each in range(1, 3)])
    git_server.api = api
    name = "X-Total" if provider == "gitlab" else "X-Total-Count"
    coded = total.encode().decode("latin-1")
    api.faults = [altered(api, lambda reply: (reply[0], {**reply[1], name: coded}, reply[2]))] * 3
    host = Host(provider, f"http://{git_server.host}", "acme", "group" if provider == "gitlab" else "org")
    listing = discover(host, sleep=abs)
    assert len(listing.repositories) <= 2
    assert listing.is_complete == (not total.isascii() or not total.isdecimal())


def test_paths_that_differ_by_case_are_two_repositories(api: HostApi) -> None:
    api.repositories[:] = [Hosted(1, "acme/App"), Hosted(2, "acme/app"), Hosted(3, "Acme/APP")]
    listing = look(api)
    assert listing.is_complete
    taken, entities = set[str](), list[str]()
    for each in listing.repositories.values():
        entities.append(entity_of(TEMPLATE, *each.naming, taken))
        taken.add(normalized_name(entities[-1]))
    assert len({normalized_name(each) for each in entities}) == 3


def test_an_unchanged_page_keeps_what_is_known_despite_its_headers(api: HostApi) -> None:
    first = look(api)
    api.faults = [lambda _: (304, {"ETag": '"another"', "Link": '<http://evil.example/>; rel="next"'}, b"")] * 3
    host = Host("github", f"http://{api.server.host}", "acme", "org", "TOKEN")
    listing = discover(host, first.repositories, first.pages, environ=TOKEN, sleep=abs)
    assert (listing.repositories, listing.is_complete) == (first.repositories, True)


def test_a_repository_that_is_archived_intermittently_stays() -> None:
    why_not, known = FleetSelection(archived=False).reasons(), dict[str, KnownRepository]()
    now = datetime(2024, 1, 1, tzinfo=UTC)
    for day in range(60):
        listed = HostedRepository("1", "acme/r1", archived=day % 5 > 0)
        known = reconcile(known, HostListing({"1": listed}), why_not, now + timedelta(days=day))
        known["1"] = replace(known["1"], entity="source:r1", uri="git+https://host/acme/r1.git", indexed="1" * 40)
        assert to_retire(known, now + timedelta(days=day), timedelta(days=7)) == []


def stream(*parts: bytes) -> Callable[[], Iterator[bytes]]:
    """Return what a host sends: ``parts``, the last one for ever."""
    return lambda: chain(parts, repeat(parts[-1]))


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        stream(b""),
        stream(b"HTTP/1.1 100 Continue\r\n\r\n"),
        stream(OK, b"A: b\r\n"),
        stream(OK + b"A: ", b"b"),
        stream(OK + b"\r\n[", b" "),
        stream(OK + b"Content-Length: 99999\r\n\r\n[", b" "),
        stream(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        stream(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1"),
        stream(b"HTTP/1.1 200 s3cret\r\n\r\n", b" "),
        stream(b"s3cret\r\n"),
    ],
)
def test_an_answer_that_does_not_end_is_abandoned(
    monkeypatch: pytest.MonkeyPatch, sent: Callable[[], Iterator[bytes]]
) -> None:
    monkeypatch.setattr(discovery, "PAGE_SECONDS", 0.3)
    monkeypatch.setattr(discovery, "ATTEMPTS", 1)
    stopped = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                for part in sent():
                    self.request.sendall(part)
                    if stopped.wait(0.01):
                        return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = Host("github", f"http://127.0.0.1:{server.server_address[1]}", "acme", "org", "TOKEN")
        listing = discover(host, environ=TOKEN, sleep=abs)
        stopped.set()
        server.shutdown()
    assert isinstance(listing.failure, DriftlineError)
    assert "s3cret" not in str(listing.failure)


def test_a_connection_that_takes_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch, api: HostApi) -> None:
    ended, connect, end = threading.Event(), HTTPConnection.connect, host_connection._Limit.end

    def connect_late(connection: HTTPConnection) -> None:
        ended.wait()
        connect(connection)

    def note_end(limit: host_connection._Limit) -> None:
        end(limit)
        ended.set()

    monkeypatch.setattr(HTTPConnection, "connect", connect_late)
    monkeypatch.setattr(host_connection._Limit, "end", note_end)
    monkeypatch.setattr(discovery, "PAGE_SECONDS", 0.01)
    monkeypatch.setattr(discovery, "ATTEMPTS", 1)
    assert "too slowly" in str(look(api).failure)
    assert api.server.requested == []


def test_an_unchanged_page_that_was_never_sent_is_an_error(api: HostApi) -> None:
    api.faults = [lambda _: (304, {}, b"")]
    assert not look(api).is_complete
    first = f"http://{api.server.host}/api/v3/orgs/acme/repos?per_page=100&type=all&sort=created&direction=asc"
    forged = (KnownPage(first, '"etag"', "http://evil.example/", ("1",), reading=READING),)
    api.faults = [lambda _: (304, {}, b"")]
    host = Host("github", f"http://{api.server.host}", "acme", "org", "TOKEN")
    listing = discover(host, {"1": HostedRepository("1", "acme/r1")}, forged, environ=TOKEN, sleep=abs)
    assert "another host" in str(listing.failure)


def test_a_changed_state_parameter_does_not_redirect_elsewhere(
    git_server: GitServer, tmp_path: Path, tiny_model: Path
) -> None:
    secret = tmp_path / "secret"
    subprocess.run(["git", "init", "-q", "--bare", str(secret)], check=True)
    (git_server.root / "a").mkdir()
    git_server.create("a/b.git")
    fleet = Fleet(tmp_path, tiny_model, f'[[fleet]]\nprovider = "folder"\nurl = "{git_server.root}"\n')
    fleet.sync()
    file = tmp_path / "index" / "_fleet.json"
    state = json.loads(file.read_text())
    (record,) = state["fleets"].values()
    forged = record["repositories"]["a/b.git"] | {"indexed": "0" * 40, "entity": "source:x"}
    forged["listed"] = forged["listed"] | {"id": "../secret", "path": "../secret"}
    forged |= {
        "missed_since": "2020-01-01T00:00:00Z",
        "misses": 9,
    }  # otherwise git would be asked first
    forged |= {"uri": "git+file:///x"}
    record["repositories"]["../secret"] = forged
    file.write_text(json.dumps(state))
    report = fleet.sync()
    (row,) = [row for row in report["fleets"][0]["repositories"] if row["id"] == "../secret"]
    assert "Not a path in" in row["reason"]


def test_a_huge_listing_takes_little_memory(tmp_path: Path) -> None:
    """Ten thousand repositories with 5 KB each in the listing, as with GitHub."""
    program = f"""
import json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
sys.path.insert(0, {str(Path.cwd())!r})
from driftline.storage.sources.discovery import discover
from driftline.storage.sources.hosts import Host
padding = {{f"url_{{n}}": "https://api.example/" + "x" * 80 for n in range(45)}}
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        page = int(self.path.rpartition("page=")[2]) if "&page=" in self.path else 1
        first = (page - 1) * 100
        common = padding | {{"private": True, "pushed_at": "2020-01-01T00:00:00Z"}}
        items = [common | {{"id": n, "full_name": f"acme/r{{n}}"}} for n in range(first, first + 100)]
        body = json.dumps(items).encode()
        self.send_response(200)
        if page < 100:
            target = f"http://127.0.0.1:{{server.server_address[1]}}/api/v3/orgs/acme/repos?x=1&page={{page + 1}}"
            self.send_header("Link", f'<{{target}}>; rel="next"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): ...
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
listing = discover(Host("github", f"http://127.0.0.1:{{server.server_address[1]}}", "acme", "org"))
with open("/proc/self/status") as lines:  # ru_maxrss would begin at that of the process that forked this one
    peak = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
print(len(listing.repositories), listing.is_complete, peak)
"""
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    output = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment
    ).stdout.split()
    assert output[:2] == ["10000", "True"]
    assert int(output[2]) * 1024 < 200_000_000


def test_globs_of_a_fleet_that_match_nothing_are_refused() -> None:
    with pytest.raises(UsageError):
        FleetSelection(include=("!acme",)).reasons()

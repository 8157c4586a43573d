"""A run's requests to object stores: the run and a proxy in front of the store count the same number."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from driftline.flows.output.terminal_reports import requests_text
from driftline.storage.objects.bucket import USER_AGENT
from driftline.storage.objects.store_requests import (
    by_kind,
    count,
    count_requests_of,
    merged,
    phase,
    price,
    request_counter,
)
from driftline.storage.sources.source import Source
from tests.servers.emulators import AZURE_ACCOUNT, AZURE_KEY
from tests.servers.proxies import Proxy
from tests.servers.serving import serving

Driftline = Callable[..., Any]

MOST_OTHERS = 50
"""Maximum number of requests in an unchanged run, apart from the listing of its source."""


class SmallPages(Proxy):
    """A store that lists sources in pages of ten."""

    size = 10

    def path_upstream(self, path: str) -> str:
        return f"{path}&max-keys={self.size}" if lists_source(path) else path


SOURCE = "many-objects"


def lists_source(path: str) -> bool:
    """Return whether a request lists the source ``SOURCE`` rather than its folder in the workspace."""
    return parse_qs(urlsplit(path).query).get("prefix", [""])[0].endswith(f"/{SOURCE}/")


def seen(proxy: Any) -> Counter[str]:
    """Return requests by price class, without Lance's requests for table files."""
    found = Counter[str]()
    for (method, path), agent in zip(proxy.requests, proxy.agents, strict=True):
        query = parse_qs(urlsplit(path).query, keep_blank_values=True)
        if agent == USER_AGENT or agent.startswith("aiobotocore/"):
            listing = "list" if "list-type" in query else method.lower()
            found["delete" if "delete" in query else listing] += 1
    return found


def upload(server: Any, prefix: str, count: int) -> None:
    client = server.client()
    key = prefix.removeprefix(f"s3://{server.bucket}/")

    def put(number: int) -> None:
        client.put_object(Bucket=server.bucket, Key=f"{key}/{number:05}.txt", Body=b"line %d\n" % number)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(put, range(count)))


@pytest.fixture
def prefix(s3_environment: Any) -> Callable[[], str]:
    return lambda: f"s3://{s3_environment.bucket}/{uuid.uuid4().hex}"


@pytest.mark.parametrize("executor", ["inline", "local"])
def test_a_run_counts_the_requests_that_the_server_sees(
    executor: str,
    s3_environment: Any,
    prefix: Callable[[], str],
    proxy: Any,
    tiny_model: Path,
    driftline: Driftline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, workspace = prefix(), prefix()
    upload(s3_environment, source, 12)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    options = ("--model", tiny_model, "--executor", executor, *(["--workers", 1] if executor == "local" else []))
    command = ("index", source, "--workspace", workspace, *options, "--json")
    for documents_read in (12, 0):
        proxy.requests.clear()
        proxy.agents.clear()
        run = driftline(*command).json
        assert run["requests"] == seen(proxy)
        phases = run["requests_by_phase"]
        assert by_kind(phases) == run["requests"]
        assert phases.get("batches", {}).get("get", 0) == documents_read
        assert phases["scan"]["list"] >= 1
    (kept,) = driftline("runs", "--workspace", workspace, "--json", "--limit", 1).json["runs"]
    assert 0 < kept["requests"] < sum(run["requests"].values()), "a run record cannot count its own write"


def test_an_unchanged_run_costs_its_listing_and_a_few_requests(
    s3_environment: Any,
    prefix: Callable[[], str],
    tiny_model: Path,
    driftline: Driftline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objects = 64
    source, workspace = f"{prefix()}/{SOURCE}", prefix()
    upload(s3_environment, source, objects)
    command = ("index", source, "--workspace", workspace, "--model", tiny_model, "--indexes", "none", "--json")
    assert driftline(*command).json["sources"][0]["new"] == objects
    with serving(SmallPages(s3_environment)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        run = driftline(*command).json
    assert run["sources"][0]["unchanged"] == objects
    pages = -(-objects // SmallPages.size)
    listed = sum(lists_source(path) for _, path in proxy.requests)
    assert pages <= listed <= pages + 2  # one request for the source and one for its folders
    assert len(proxy.requests) < listed + MOST_OTHERS, "\n".join(map(str, proxy.requests))
    assert run["requests"] == seen(proxy)


def test_requests_to_azure_are_counted_as_well(azure_container: str, azure_endpoint: str) -> None:
    account = f"AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY};BlobEndpoint={azure_endpoint}"
    connection = {"connection_string": f"DefaultEndpointsProtocol=http;{account};"}
    source = Source(azure_container, connection, is_local=False)
    with request_counter() as sent:
        assert list(source.list()) == []
        assert source.stat("nothing") is None
    counts = by_kind(sent.counts)
    assert counts["list"] >= 1
    assert counts["head"] >= 1


def test_requests_to_google_are_counted_as_well() -> None:
    class Client:  # no emulator supports its JSON API
        async def _request(self, method: str, path: str, *names: str) -> str:
            return path.format(*names)

    client = Client()
    count_requests_of(client, "gs")
    calls = [
        ("GET", "b/{}/o", "bucket"),
        ("GET", "b/{}/o/{}", "bucket", "name"),
        ("DELETE", "b/{}/o/{}", "bucket", "x"),
    ]
    with request_counter() as sent:
        answers = [asyncio.run(client._request(*call)) for call in calls]
    assert answers == ["b/bucket/o", "b/bucket/o/name", "b/bucket/o/x"]
    assert by_kind(sent.counts) == {"list": 1, "get": 1, "delete": 1}


def test_counts_are_kept_by_phase_and_add_up() -> None:
    count("get")  # nothing counts here
    with request_counter() as sent:
        count("list")
        with phase("scan"):
            count("list", 3)
            with request_counter() as inner, phase("inner"):
                count("put")
            count("get")
    assert inner.counts == {"inner": {"put": 1}}
    assert sent.counts == {"other": {"list": 1}, "scan": {"list": 3, "get": 1}}
    both = merged(sent.counts, inner.counts)
    assert by_kind(both) == {"list": 4, "get": 1, "put": 1}


def test_requests_are_shown_with_their_price_if_it_is_known() -> None:
    requests = {"list": 2000, "get": 5}
    assert price(requests, {}) is None
    assert price(requests, {"list": 0.005, "put": 9}) == pytest.approx(0.01)
    assert requests_text(requests, {}) == "2,000 LIST, 5 GET"
    assert requests_text(requests, {"list": 0.005}) == "2,000 LIST, 5 GET: about 0.01"

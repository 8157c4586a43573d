"""Stores that drop connections, format etags in their own way, or have a wrong clock."""

from __future__ import annotations

import contextlib
import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError

import driftline as dl
from driftline.storage.errors import AccessDenied, PreconditionFailed, StorageError
from driftline.storage.objects import bucket, store_requests
from driftline.storage.objects.store import ObjectStore
from driftline.storage.sources.source import open_source
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.maintenance.verification import damaged_indexes
from tests.servers.flaky import Fault, FlakyProxy
from tests.servers.proxies import CephProxy, Proxy, SkewedProxy
from tests.servers.serving import serving
from tests.support.searches import search

SHARE = 0.25
"""The share of requests that fail; six failures in a row are rare."""
ROUNDS = 3


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_requests, "FIRST_DELAY_SECONDS", 0.01)


@pytest.mark.parametrize("fault", list(Fault))
def test_reads_listings_and_deletions_survive_each_fault(s3_bucket: str, s3_server: Any, fault: Fault) -> None:
    with serving(FlakyProxy(s3_server, rate=0, seed=3, faults=(fault,))) as proxy:
        store = ObjectStore.open(s3_bucket, {"aws_endpoint": proxy.endpoint})
        content = {f"a/{n}": b"%d" % n * 1000 for n in range(3)}
        for path, data in content.items():
            store.create(path, data)
        proxy.rate = SHARE
        for _ in range(ROUNDS):
            assert {info.path: store.get(info.path) for info in store.list("a")} == content
            assert sorted(info.path for info in store.list("a", recursive=False)) == sorted(content)
            assert store.list_dirs() == ["a"]
            assert all(store.head(path) for path in content)
            assert store.open_input("a/1").read() == content["a/1"]
            store.create("b", b"1")
            store.delete(["b", "c"])
            assert store.head("b") is None
        assert proxy.met[fault] >= ROUNDS


def test_a_large_object_is_read_although_its_parts_break_off(
    s3_bucket: str, s3_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "WHOLE_OBJECT_BYTES", 10)
    with serving(FlakyProxy(s3_server, rate=0, seed=5, faults=(Fault.CUT, Fault.RESET))) as proxy:
        store = ObjectStore.open(s3_bucket, {"aws_endpoint": proxy.endpoint})
        data = bytes(range(256)) * 40
        store.create("a", data)
        proxy.rate = SHARE
        with store.open_input("a") as opened:
            assert b"".join(iter(lambda: opened.read(1000), b"")) == data


def test_a_broken_listing_resumes_after_its_last_key(
    s3_bucket: str, s3_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = sorted([f"many/{n:04}" for n in range(1050)] + ["many/0500~20 a%2Fb é"])
    with serving(FlakyProxy(s3_server, rate=0, seed=1, faults=(Fault.CUT,))) as proxy:
        store = ObjectStore.open(s3_bucket, {"aws_endpoint": proxy.endpoint})
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda path: store.create(path, b""), paths))
        monkeypatch.setattr(bucket, "LIST_CHUNK", 50)  # obstore's page size; the store's pages have 1,000
        failures = itertools.count(1)

        def recover(_: float) -> None:
            proxy.rate = 1 if next(failures) % 2 else 0

        monkeypatch.setattr("driftline.storage.objects.bucket.time.sleep", recover)
        proxy.rate = 1
        listing = store.list("many")
        first = next(listing)
        proxy.rate = 1
        assert [first.path, *(info.path for info in listing)] == paths
        assert proxy.met[Fault.CUT] >= 2


@pytest.mark.parametrize("fault", list(Fault))
def test_a_source_in_a_bucket_survives_each_fault(s3_bucket: str, s3_server: Any, fault: Fault) -> None:
    content = {f"a{n}/{n}": b"%d" % n * 1000 for n in range(3)}
    store = ObjectStore.open(s3_bucket)
    for path, data in content.items():
        store.create(path, data)
    with serving(FlakyProxy(s3_server, rate=0, seed=3, faults=(fault,))) as proxy:
        source = open_source(s3_bucket, {"endpoint_url": proxy.endpoint})
        proxy.rate = SHARE
        for _ in range(ROUNDS):
            assert sorted(info.path for info in source.list()) == sorted(content)
            assert source.read_many(list(content)) == list(content.values())
            assert source.first_look()[0] == ["a0/", "a1/", "a2/"]
        assert proxy.met[fault]


def test_a_broken_unsorted_listing_is_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    def pages(*_: Any, **__: Any) -> Any:
        yield [{"path": "x/b", "size": 1, "last_modified": datetime.now(UTC), "e_tag": "1", "version": None}]
        yield [{"path": "x/a", "size": 1, "last_modified": datetime.now(UTC), "e_tag": "1", "version": None}]
        raise GenericError("HTTP error: HttpError { kind: Interrupted")

    monkeypatch.setattr("driftline.storage.objects.bucket.obstore.list", pages)
    store = ObjectStore.open("s3://bucket/x", {"aws_access_key_id": "a", "aws_secret_access_key": "b"})
    with pytest.raises(StorageError, match="Could not list"):
        list(store.list())


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (GenericError("HttpError { kind: Interrupted"), store_requests.ATTEMPTS),
        (GenericError("status code: 503 Service Unavailable"), store_requests.ATTEMPTS),
        (GenericError("in 8s, after 5 retries, max_retries: 5 - status code: 503"), 1),
        (GenericError("HttpError { kind: Connect"), 1),
        (PermissionDeniedError("status code: 403 Forbidden"), 1),
    ],
)
def test_only_transient_failures_are_retried_and_only_a_few_times(
    error: Exception, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = itertools.count()

    def fail(*_: Any, **__: Any) -> Any:
        next(tried)
        raise error

    monkeypatch.setattr("driftline.storage.objects.bucket.obstore.get", fail)
    store = ObjectStore.open("s3://bucket/x", {"aws_access_key_id": "a", "aws_secret_access_key": "b"})
    with pytest.raises((StorageError, AccessDenied)):
        store.get("a")
    assert next(tried) == attempts


def test_attempts_end_in_time_and_their_delays_grow() -> None:
    now = itertools.count(0, 6)
    assert len(list(store_requests.delays(clock=lambda: next(now), chance=lambda: 1.0))) == 3
    waits = list(store_requests.delays(clock=lambda: 0.0, chance=lambda: 1.0))
    assert waits == sorted(waits)
    assert len(waits) == store_requests.ATTEMPTS - 1
    assert max(waits) <= store_requests.MAX_DELAY_SECONDS


def test_retries_leave_the_random_numbers_of_the_program_alone() -> None:
    before = random.getstate()
    assert store_requests.with_retries(lambda: "done", lambda _: False) == "done"
    assert len([*store_requests.delays()]) > 0
    assert random.getstate() == before


# --- etags ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [412, 400])
def test_a_store_with_bare_etags_works(s3_bucket: str, s3_server: Any, status: int) -> None:
    with serving(CephProxy(s3_server, status=status)) as proxy:
        store = ObjectStore.open(s3_bucket, {"aws_endpoint": proxy.endpoint})
        store.probe_conditional_writes()
        first = store.create("a", b"1")
        second = store.replace("a", b"2", first)
        with pytest.raises(PreconditionFailed):
            store.replace("a", b"3", first)
        store.replace("a", b"4", second)
        other = ObjectStore.open(s3_bucket, {"aws_endpoint": proxy.endpoint})  # has probed nothing
        with pytest.raises(PreconditionFailed):
            other.replace("a", b"5", first)
        other.replace("a", b"6", other.get_versioned("a")[1])
        assert store.get("a") == b"6"
        assert [info.path for info in store.list(temporary=True)] == ["a"]


def test_a_store_that_ignores_bare_etags_gets_quoted_ones(
    s3_bucket: str, s3_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(CephProxy(s3_server)) as proxy:
        proxy.strip = "if-match"
        store = ObjectStore.open(s3_bucket, {"aws_endpoint": proxy.endpoint})
        version = store.create("a", b"1")
        with pytest.raises(PreconditionFailed):
            store.replace("a", b"2", version)
        assert store.get("a") == b"1"


def test_a_conflict_on_a_store_with_quoted_etags_costs_one_request(s3_bucket: str, proxy: Any) -> None:
    store = ObjectStore.open(s3_bucket, {"aws_endpoint": proxy.endpoint})
    first = store.create("a", b"1")
    store.replace("a", b"2", first)
    proxy.requests.clear()
    with pytest.raises(PreconditionFailed):
        store.replace("a", b"3", first)
    assert [method for method, _ in proxy.requests] == ["PUT", "GET"]


# --- clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize(("seconds", "says"), [(3600, "(0:59:5.|1:00:0.) h slow"), (-1200, "0:(19:5.|20:0.) h fast")])
def test_a_skewed_clock_is_reported_as_such(
    s3_bucket: str, s3_server: Any, seconds: float, says: str, tells: bool
) -> None:
    with serving(SkewedProxy(s3_server, seconds=seconds, tells=tells)) as proxy:
        store = ObjectStore.open(s3_bucket, {"aws_endpoint": proxy.endpoint})
        for operation in (lambda: store.get("a"), lambda: store.create("a", b"1"), lambda: list(store.list())):
            with pytest.raises(AccessDenied, match=f"machine's clock is {says}.*time server"):
                operation()
        options = {"aws_endpoint": proxy.endpoint, "aws_access_key_id": "a", "aws_secret_access_key": "b"}
        with pytest.raises(AccessDenied, match="This machine's clock"):
            open_source(s3_bucket, options)


def test_a_store_without_times_still_reports_a_skewed_clock() -> None:
    assert bucket.describe("<Code>RequestTimeTooSkewed</Code>", "http://127.0.0.1:1").endswith("from the store's clock")
    assert bucket.describe("<ServerTime>soon</ServerTime>", "").endswith("from the store's clock")
    with contextlib.suppress(ValueError):
        now = datetime(2026, 1, 2, tzinfo=UTC)
        assert "1:00:00 h fast" in bucket.describe("<ServerTime>2026-01-01T23:00:00Z</ServerTime>", "", now=now)


class RefusingProxy(Proxy):
    """A store that rejects the caller's credentials when the rows of a table are read."""

    def __init__(self, upstream: Any, status: int, code: str) -> None:
        super().__init__(upstream)
        self._answer = status, f"<Error><Code>{code}</Code></Error>"

    def own_answer(self, method: str, path: str) -> tuple[int, bytes, str] | None:
        status, body = self._answer
        return (status, body.encode(), "application/xml") if "/data/" in path else None


@pytest.mark.parametrize(("status", "code"), [(400, "ExpiredToken"), (403, "AccessDenied")])
def test_a_table_that_the_store_refuses_to_read_is_not_damaged(
    s3_bucket: str, s3_server: Any, tiny_model: Path, tmp_path: Path, status: int, code: str
) -> None:
    (tmp_path / "a.txt").write_text("a lease\n")
    dl.index(str(tmp_path), workspace=s3_bucket, model=str(tiny_model), executor="inline")
    with serving(RefusingProxy(s3_server, status, code)) as proxy:
        workspace = Workspace.open(s3_bucket, {"aws_endpoint": proxy.endpoint})
        table = workspace.lines(workspace.tenants()[0])
        for read in (table.damaged_fragments, partial(damaged_indexes, table, ""), partial(search, workspace, "lease")):
            with pytest.raises(AccessDenied, match=code):
                read()
        advice = "Renew the temporary" if code == "ExpiredToken" else "Allow the account to read objects below s3://"
        with pytest.raises(AccessDenied, match=advice):
            workspace.objects.get("org:default/data/a")

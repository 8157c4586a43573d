"""Deliveries arrive late, twice and in any order: the index ends as the pull requests do."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from driftline.flows.ci.webhooks import HOSTS, Hooks, Work, _seconds
from driftline.flows.config.driftline_toml import HookSettings
from driftline.flows.config.index_request import SourceRequest
from tests.support.hooks import DELIVERIES, EVENTS, SECRET, push, request, signed

URL = "https://code.example/team/app.git"
SOURCE = SourceRequest(f"git+{URL}@main", "org:a/project:b/source:app")
TIMES = {
    "github": ("pull_request", "updated_at", "2024-05-06T07:08:{:02}Z"),
    "gitlab": ("object_attributes", "updated_at", "2024-05-06 07:08:{:02} UTC"),
    "gitea": ("pull_request", "updated_at", "2024-05-06T09:08:{:02}+02:00"),
    "bitbucket": ("pullrequest", "updated_on", "2024-05-06T07:08:{:02}.000000+00:00"),
}


class Site:
    """Webhooks of one host, and a model of the index: the open pull requests that each branch is kept for."""

    def __init__(self, host: str) -> None:
        self.host, self.index, self.numbers = host, dict[str, set[str]](), count()
        settings = HookSettings({}, (), pull_requests=True)
        self.hooks = Hooks(settings, {host: SECRET}, (SOURCE,), self.run)
        self.hooks.observe(CollectorRegistry())

    def send(self, event: str, *, delivery: str = "", timed: bool = True) -> int:
        """Deliver an event such as ``open 7 at 1``, each of a pull request from the branch ``topic``."""
        state, number, _, second = event.split()
        name, payload = request(self.host, URL, int(number), "topic", state=state)
        place, key, form = TIMES[self.host]
        if timed:
            payload[place][key] = form.format(int(second))
        return self.post(name, payload, delivery)

    def post(self, name: str, payload: dict[str, Any], delivery: str = "") -> int:
        body = json.dumps({"sent": delivery or next(self.numbers), **payload})
        headers = {EVENTS[self.host]: name, DELIVERIES[self.host]: delivery or str(next(self.numbers))}
        headers |= signed(self.host, body)
        given = {name.replace("_", "-").lower(): value for name, value in headers.items()}
        return self.hooks.receive(self.host, given, body.encode())[0]

    def work(self) -> None:
        while self.hooks._waiting:
            self.run(self.hooks._waiting.popitem(last=False)[1].work)

    def run(self, work: Work) -> None:
        name = work.branch or "main"
        left = (self.index.get(name, set()) | work.opened) - work.closed
        if work.is_gone and (work.ref or not left):
            self.index.pop(name, None)
        elif not work.is_gone or name in self.index:
            self.index[name] = left


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    ("events", "left"),
    [
        (["open 7 at 1", "closed 7 at 3"], set()),
        (["closed 7 at 3", "open 7 at 1"], set()),
        (["open 7 at 1", "closed 7 at 3", "open 7 at 2"], set()),
        (["open 7 at 1", "closed 7 at 3", "open 7 at 3"], set()),
        (["open 7 at 1", "closed 7 at 3", "open 7 at 5"], {"7"}),
        (["closed 7 at 3", "open 7 at 1", "open 7 at 5"], {"7"}),
        (["open 7 at 5", "closed 7 at 3"], {"7"}),
        (["open 7 at 1", "open 8 at 2", "closed 7 at 3"], {"8"}),
        (["open 8 at 2", "closed 7 at 3", "open 7 at 1"], {"8"}),
        (["open 7 at 1", "closed 8 at 4", "open 8 at 2"], {"7"}),
        (["open 7 at 1", "open 8 at 2", "closed 7 at 3", "closed 8 at 4"], set()),
        (["open 7 at 1", "open 8 at 2", "closed 8 at 4", "open 8 at 2", "closed 7 at 5"], set()),
        (["open 7 at 1", "closed 7 at 3", "open 8 at 4"], {"8"}),
        (["open 7 at 1", "open 7 at 1", "closed 7 at 3", "closed 7 at 3"], set()),
    ],
)
def test_the_order_of_deliveries_does_not_matter(host: str, at_once: bool, events: list[str], left: set[str]) -> None:
    site = Site(host)
    for event in events:
        assert site.send(event) in (200, 202)
        if not at_once:
            site.work()
    site.work()
    assert site.index == ({"topic": left} if left else {})


@pytest.mark.parametrize("host", HOSTS)
def test_a_comment_on_a_closed_request_does_not_hide_the_closing(host: str) -> None:
    site = Site(host)
    site.send("open 7 at 1")
    site.work()
    name, payload = request(host, URL, 7, "topic")
    place, key, form = TIMES[host]
    payload[place] |= {key: form.format(5), "state": "closed", "action": "update"}
    site.post(name.replace("created", "comment_created"), payload)
    site.send("closed 7 at 3")
    site.work()
    assert site.index == {}


def of_topic(ref: str = "refs/heads/topic", *, is_gone: bool = False, opened: str = "", closed: str = "") -> Work:
    return Work(SOURCE, "topic", ref, is_gone, opened=frozenset(opened), closed=frozenset(closed))


def test_a_retry_does_not_undo_what_was_delivered_since() -> None:
    closed, deleted = of_topic("", is_gone=True, closed="1"), of_topic(is_gone=True)
    newer = closed.after(of_topic(opened="2"))
    assert newer.after(of_topic("", is_gone=True, closed="3")) == of_topic(opened="2", closed="13")
    newer = closed.after(deleted.after(of_topic(opened="12")))
    assert newer.after(of_topic(opened="1")) == of_topic(is_gone=True, opened="2", closed="1")


@pytest.mark.parametrize("host", HOSTS)
def test_a_delivery_counts_once(host: str) -> None:
    site = Site(host)
    assert [site.send("open 7 at 1", delivery="one") for _ in range(3)] == [202, 409, 409]
    assert site.send("closed 7 at 3", delivery="two") == 202
    site.work()
    assert site.send("open 7 at 1", delivery="one") == 409
    site.work()
    assert site.index == {}


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("closed_first", [False, True])
def test_a_deleted_branch_needs_no_request(host: str, closed_first: bool) -> None:
    """The host deletes the branch of a merged request; either delivery may come first, and before any run."""
    site = Site(host)
    site.send("open 7 at 1")
    site.send("open 8 at 1")
    site.work()
    for is_closing in (closed_first, not closed_first):
        sent = site.send("closed 7 at 3") if is_closing else site.post(*push(host, URL, "topic", is_gone=True))
        assert sent == 202
    (waiting,) = site.hooks._waiting.values()
    assert (waiting.work.is_gone, waiting.work.ref) == (True, "refs/heads/topic")


@pytest.mark.parametrize("host", HOSTS)
def test_events_without_a_time_are_taken_as_they_come(host: str) -> None:
    site = Site(host)
    for event, left in (("open 7 at 9", {"topic": {"7"}}), ("closed 7 at 1", {}), ("open 7 at 0", {"topic": {"7"}})):
        assert site.send(event, timed=False) == 202
        site.work()
        assert site.index == left


@pytest.mark.parametrize("updated", [10**400, -(10**400), True, "never", None])
def test_an_impossible_time_is_unknown(updated: object) -> None:
    assert _seconds(updated) is None

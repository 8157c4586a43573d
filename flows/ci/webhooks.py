"""Receive webhooks from git hosts: each delivery identifies a repository to fetch, and starts a run of its sources.

A delivery needs a valid signature, and is accepted only once. Its payload only selects a repository, a branch or a pull
request; the run fetches the content from the host. ``Build.index_branch`` maps branches and pull requests to index
branches, as in ``driftline ci``. Deliveries for the same index within DEBOUNCE_SECONDS start a single run.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, Literal
from urllib.parse import parse_qs

from cachetools import FIFOCache
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from driftline.flows.ci.build import USUAL_DEFAULTS, Build, value_at
from driftline.flows.config.driftline_toml import Configuration, HookSettings
from driftline.flows.config.index_request import IndexRequest, SourceRequest
from driftline.flows.runs.branches import delete_branch, delete_closed, note_pull_requests
from driftline.flows.runs.fleet import sources_of_fleets
from driftline.flows.runs.index import index_sources
from driftline.flows.runs.plan import requests_of
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError, ExecutorError, LeaseHeld, SourceNotFound, StorageError, UsageError
from driftline.storage.layout import new_ulid
from driftline.storage.sources.discovery import parse_timestamp
from driftline.storage.sources.mirror import Remote, parse_remote, resolve, with_ref
from driftline.storage.workspace.branch_cuts import check_name
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.links import address_of

log = logging.getLogger(__name__)

DEBOUNCE_SECONDS = 1.0
"""Delay before a run: a push arrives together with the pull requests it updates, and a burst needs only one run."""
MAX_DEBOUNCES = 10
"""More deliveries delay a run at most this many times, so a busy repository still gets indexed."""
KNOWN_DELIVERIES = 10_000
"""Number of remembered deliveries; replaying a forgotten delivery costs one listing of its repository's refs."""
MAX_WAITING = 1_000
"""Maximum number of indexes that may wait for a run."""
ATTEMPTS = 3
RETRY_SECONDS = 30.0
"""Delay before retrying a run that failed because of the store or the host; doubles each time."""
WAIT_SECONDS = 5.0
"""How long a run waits for another run of its source before it lets the runs of other sources go first."""
BUSY_SECONDS = 3_600.0
"""How long a delivery is retried while other runs hold its source."""
STOP_SECONDS = 10.0
"""How long the server waits for a run at shutdown; a killed run loses only its uncommitted batches."""
_LAG_BUCKETS = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_HEX = re.compile(r"[0-9a-f]{64}")
_NO_NUMBER = "?"
_NOTHING = re.compile(r"0{40}(?:0{24})?")
ACCEPTED, IGNORED, MALFORMED, FORGED, UNKNOWN, REPLAYED, BUSY = 202, 200, 400, 401, 404, 409, 503


# -- what hosts send ---------------------------------------------------------------------------


EventKind = Literal["changed", "gone", "late"]
"""What happened to a branch or pull request. After a request is closed, another one may use its branch, so a late event
changes nothing.
"""


@dataclass(frozen=True, slots=True)
class Event:
    """The event of a delivery: a change to a ``branch``, or to the pull request ``number`` from that branch.

    ``is_own`` is set if a pull request's branch belongs to the same repository. ``updated_at`` is when the host updated
    the request, in seconds, if it says so.
    """

    kind: EventKind
    branch: str
    default: str = ""
    number: str = ""
    target: str = ""
    is_own: bool = False
    updated_at: float | None = None


Payload = Mapping[str, Any]


def _text(payload: Any, *keys: str) -> str:
    value = value_at(payload, *keys)
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _branch(ref: str) -> str:
    return ref.removeprefix("refs/heads/") if ref.startswith("refs/heads/") else ""


_Paths = tuple[str, str, str, str, str, str, str]
"""The paths in a payload of a pull request's number and state, of its branches and repositories, source first, and of
the time of its last update.
"""
_GITHUB: _Paths = (
    "number", "pull_request.state", "pull_request.head.ref", "pull_request.base.ref",
    "pull_request.head.repo.id", "pull_request.base.repo.id", "pull_request.updated_at",
)  # fmt: skip
_GITLAB: _Paths = (
    "object_attributes.iid", "object_attributes.state", "object_attributes.source_branch",
    "object_attributes.target_branch", "object_attributes.source_project_id", "object_attributes.target_project_id",
    "object_attributes.updated_at",
)  # fmt: skip
_BITBUCKET_CLOUD: _Paths = (
    "pullrequest.id", "pullrequest.state", "pullrequest.source.branch.name", "pullrequest.destination.branch.name",
    "pullrequest.source.repository.full_name", "pullrequest.destination.repository.full_name", "pullrequest.updated_on",
)  # fmt: skip
_BITBUCKET_DATA_CENTER: _Paths = (
    "pullRequest.id", "pullRequest.state", "pullRequest.fromRef.displayId", "pullRequest.toRef.displayId",
    "pullRequest.fromRef.repository.id", "pullRequest.toRef.repository.id", "pullRequest.updatedDate",
)  # fmt: skip


def _of_request(payload: Payload, paths: _Paths, default: str, *, is_closing: bool) -> Event:
    """Return the event of a pull request. Hosts also report comments and labels of closed ones."""
    number, state, source, target, own, upstream, _ = (_text(payload, *path.split(".")) for path in paths)
    is_over = state.lower() in ("closed", "merged", "declined", "superseded")
    kind: EventKind = "gone" if is_closing else "late" if is_over else "changed"
    updated_at = _seconds(value_at(payload, *paths[-1].split(".")))
    return Event(kind, source, default, number or _NO_NUMBER, target, own == upstream != "", updated_at)


def _seconds(time: Any) -> float | None:
    """Return a host's time in seconds, or None if there is none."""
    if isinstance(time, int) and not isinstance(time, bool):
        return time / 1000 if abs(time) < 1 << 63 else None  # Bitbucket Data Center
    return parse_timestamp(time.replace(" UTC", "Z")) if isinstance(time, str) else None


def _of_github(kind: str, payload: Payload) -> Iterator[Event]:
    """Yield the events in a payload from GitHub, or from Gitea, whose payloads have the same shape."""
    default = _text(payload, "repository", "default_branch")
    if kind == "push" and (branch := _branch(_text(payload, "ref"))):
        is_gone = payload.get("deleted") is True or bool(_NOTHING.fullmatch(_text(payload, "after")))
        yield Event("gone" if is_gone else "changed", branch, default)
    elif kind == "delete" and payload.get("ref_type") == "branch":
        yield Event("gone", _text(payload, "ref").removeprefix("refs/heads/"), default)
    elif kind == "pull_request":
        yield _of_request(payload, _GITHUB, default, is_closing=payload.get("action") == "closed")


def _of_gitlab(kind: str, payload: Payload) -> Iterator[Event]:
    default, kind = _text(payload, "project", "default_branch"), _text(payload, "object_kind")
    if kind == "push" and (branch := _branch(_text(payload, "ref"))):
        is_gone = bool(_NOTHING.fullmatch(_text(payload, "after")))
        yield Event("gone" if is_gone else "changed", branch, default)
    elif kind == "merge_request":
        action = _text(payload, "object_attributes", "action")
        yield _of_request(payload, _GITLAB, default, is_closing=action in ("close", "merge"))


def _of_bitbucket(kind: str, payload: Payload) -> Iterator[Event]:
    """Yield the events in a payload from Bitbucket Cloud or Data Center, which rarely names the default branch."""
    default = _text(payload, "repository", "mainbranch", "name")
    changes = value_at(payload, "push", "changes") if kind == "repo:push" else payload.get("changes")
    if kind in ("repo:push", "repo:refs_changed") and isinstance(changes, list):
        for change in changes[:MAX_WAITING]:
            if kind == "repo:push":
                named = value_at(change, "new") or value_at(change, "old")
                if _text(named, "type") == "branch":
                    yield Event("changed" if value_at(change, "new") else "gone", _text(named, "name"), default)
            elif branch := _branch(_text(change, "refId") or _text(change, "ref", "id")):
                yield Event("gone" if _text(change, "type") == "DELETE" else "changed", branch, default)
    elif kind.startswith(("pullrequest:", "pr:")):
        paths = _BITBUCKET_CLOUD if "pullrequest" in payload else _BITBUCKET_DATA_CENTER
        is_closing = kind.partition(":")[2] in ("fulfilled", "rejected", "merged", "declined", "deleted")
        yield _of_request(payload, paths, default, is_closing=is_closing)


def _remotes(payload: Payload) -> Iterator[str]:
    """Yield every URL that a payload gives for its repository."""
    # Bitbucket Data Center identifies the repository only in the pull request.
    for path in (("repository",), ("project",), ("pullRequest", "toRef", "repository")):
        named = value_at(payload, *path)
        for name in ("clone_url", "ssh_url", "html_url", "git_http_url", "git_ssh_url", "http_url", "web_url"):
            yield _text(named, name)
        yield _text(named, "links", "html", "href")
        clones = value_at(named, "links", "clone")
        for each in clones[:10] if isinstance(clones, list) else ():
            yield _text(each, "href")


@dataclass(frozen=True, slots=True)
class DeliveryFormat:
    """How a host type signs and describes its deliveries; header names are in lower case.

    ``request_ref`` is the template of pull request refs, "" if the host has no such refs.
    """

    signature: str
    event: str
    deliveries: tuple[str, ...]
    events: Callable[[str, Payload], Iterator[Event]]
    request_ref: str
    is_token: bool = False

    def is_signed(self, secret: str, headers: Mapping[str, str], body: bytes) -> bool:
        """Check in constant time whether the sender knows the secret."""
        given = headers.get(self.signature, "")
        if self.is_token:
            return hmac.compare_digest(given.encode("latin-1"), secret.encode())
        given = given.removeprefix("sha256=").lower()
        expected = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        return bool(_HEX.fullmatch(given)) and hmac.compare_digest(given, expected)

    def ids(self, headers: Mapping[str, str], body: bytes) -> set[str]:
        """Return the keys that identify a delivery: its id and, if the id is not signed, the signed part."""
        named = next((f"{name}:{headers[name][:200]}" for name in self.deliveries if headers.get(name)), None)
        if named is not None and self.is_token:
            return {named}
        return {hashlib.sha256(body).hexdigest(), *([named] if named is not None else [])}


HOSTS: Mapping[str, DeliveryFormat] = {
    "github": DeliveryFormat(
        "x-hub-signature-256", "x-github-event", ("x-github-delivery",), _of_github, "refs/pull/{}/head"
    ),
    "gitlab": DeliveryFormat(
        "x-gitlab-token",
        "x-gitlab-event",
        ("idempotency-key", "x-gitlab-event-uuid"),
        _of_gitlab,
        "refs/merge-requests/{}/head",
        is_token=True,
    ),
    "gitea": DeliveryFormat(
        "x-gitea-signature", "x-gitea-event", ("x-gitea-delivery",), _of_github, "refs/pull/{}/head"
    ),
    "bitbucket": DeliveryFormat(
        "x-hub-signature", "x-event-key", ("x-request-uuid", "x-request-id"), _of_bitbucket, ""
    ),
}


# -- what is to be done ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Work:
    """A run on a source's main index or on the ``branch`` that indexes ``ref``, or the deletion of that branch.

    ``opened`` and ``closed`` are the numbers of pull requests from this branch of the repository. ``delivery``
    identifies the delivery that requested it.
    """

    source: SourceRequest
    branch: str | None = None
    ref: str = ""
    is_gone: bool = False
    delivery: str = ""
    opened: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()

    @property
    def key(self) -> tuple[str, str]:
        """The index that the run updates."""
        return str(self.source.entity), self.branch or ""

    @property
    def uri(self) -> str:
        """The URI to index."""
        return with_ref(self.source.uri, self.ref) if self.ref else self.source.uri

    def after(self, earlier: Work) -> Work:
        """Return this work together with an ``earlier`` one for the same index that was not done yet."""
        opened = earlier.opened - self.closed | self.opened
        closed = earlier.closed - self.opened | self.closed
        if self.is_gone and not self.ref and opened:  # the branch is still there and needed
            return replace(earlier, opened=opened, closed=closed)
        ref = earlier.ref if self.is_gone and earlier.is_gone and not self.ref else self.ref
        return replace(self, ref=ref, opened=opened, closed=closed)


def work_of(event: Event, source: SourceRequest, settings: HookSettings, request_ref: str) -> Work | None:
    """Return the work that an event requires for a source, or None if there is none.

    If the default branch is unknown, as on Bitbucket, a push to another branch than those of the settings runs the main
    index, which finds out. Raises UsageError if the ref name is not valid in git.
    """
    remote = parse_remote(source.uri)
    if remote is None or not event.branch or event.kind == "late":
        return None
    main, is_gone = remote.ref.removeprefix("refs/heads/") or event.default or None, event.kind == "gone"
    is_listed = any(fnmatchcase(event.branch, pattern) for pattern in settings.branches)
    if main is None and event.branch not in USUAL_DEFAULTS:
        main = "" if event.number or is_gone or is_listed else event.branch
    build = Build(
        system="a webhook",
        branch=event.branch,
        default_branch=main,
        is_request=bool(event.number),
        pull_request=event.number or None,
        target=event.target or None,
        is_own=event.is_own,
    )
    name = build.index_branch()
    if name is None:
        return None if is_gone else Work(source)
    ref, is_request, numbers = f"refs/heads/{event.branch}", bool(event.number), frozenset[str]()
    if is_request and name.startswith("pr/"):
        is_known = event.number.isascii() and event.number.isdecimal()
        ref = request_ref.format(event.number) if is_known else ""
        if not settings.pull_requests or not ref:
            return None
    else:
        if is_request and is_gone and is_listed:
            return None  # the branch outlives its pull request
        if not is_gone and not is_listed and not (is_request and settings.pull_requests):
            return None
        numbers = frozenset({event.number} - {""})
    check_name(name)
    with_ref(source.uri, ref)
    opened, closed = (frozenset[str](), numbers) if is_gone else (numbers, frozenset[str]())
    return Work(source, name, "" if is_request and is_gone else ref, is_gone, opened=opened, closed=closed)


@dataclass(frozen=True, slots=True)
class Runs:
    """Executes work on the configured workspace, in this process or through its Prefect deployments."""

    configuration: Configuration
    by_prefect: bool = False

    def __call__(self, work: Work) -> None:
        """Execute ``work``. Raises DriftlineError."""
        if work.is_gone:
            self._delete(work)
        elif self.by_prefect and (work.branch is None or not self._fleet_of(work.source)):
            self._start(work)
        else:
            index_sources(self._request(work))
        if work.branch is not None and not work.is_gone and (work.opened or work.closed):
            note_pull_requests(*self._place(work), work.branch, work.opened, work.closed)

    def _place(self, work: Work) -> tuple[Workspace, Entity]:
        opened = Workspace.open(self.configuration.workspace, self.configuration.options())
        return opened, Entity.parse(str(work.source.entity), opened.config.hierarchy)

    def _start(self, work: Work) -> None:
        from driftline.flows.scheduling.deployments import fleet_deployments, start_fleet_run, start_index_run

        commit, fleet = resolve(_remote(work.uri)), self._fleet_of(work.source)
        if fleet:
            start_fleet_run(fleet_deployments(self.configuration)[fleet], commit, work.delivery)
        else:
            start_index_run(replace(work.source, uri=work.uri), commit, work.branch, work.delivery)

    def _fleet_of(self, source: SourceRequest) -> str:
        """Return the name of the fleet the source belongs to, or "" if the source has its own table."""
        fleets = sources_of_fleets(self.configuration) if self.configuration.fleets else {}
        return next((name for name, sources in fleets.items() if source in sources), "")

    def _request(self, work: Work) -> IndexRequest:
        return IndexRequest(
            replace(work.source, uri=work.uri),
            self.configuration.workspace,
            executor="inline",  # the run uses one core; searches have the others
            wait_seconds=WAIT_SECONDS,
            branch=work.branch,
            **self.configuration.run_options(),
        )

    def _delete(self, work: Work) -> None:
        """Delete an index branch, unless the repository still has the ref, or another open pull request uses it."""
        if work.branch is None:
            return
        is_there = bool(work.ref) and _exists(_remote(work.uri))
        workspace, entity = self._place(work)
        if not is_there and (work.ref or not work.closed):
            delete_branch(workspace, entity, work.branch, new_ulid(), wait_seconds=WAIT_SECONDS)
        elif work.closed:
            delete_closed(workspace, entity, work.branch, work.closed, wait_seconds=WAIT_SECONDS)


def _exists(remote: Remote) -> bool:
    try:
        resolve(remote)
    except SourceNotFound:
        return False
    return True


def _remote(uri: str) -> Remote:
    found = parse_remote(uri)
    if found is None:
        raise UsageError("Not a URI of a git repository", uri)
    return found


# -- the queue ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Waiting:
    """Work, when its first delivery arrived, and the ids of its deliveries."""

    work: Work
    since: float
    due: float
    ids: frozenset[str] = frozenset()
    attempt: int = 1


@dataclass(slots=True)
class Hooks:
    """Responds to deliveries, and executes their runs one after another.

    ``secrets`` maps host types that may deliver to their secrets. ``of_fleets`` returns the fleets' repositories.
    """

    settings: HookSettings
    secrets: Mapping[str, str] = field(repr=False)
    sources: tuple[SourceRequest, ...]
    run: Callable[[Work], None]
    debounce_seconds: float = DEBOUNCE_SECONDS
    retry_seconds: float = RETRY_SECONDS
    clock: Callable[[], float] = time.monotonic
    of_fleets: Callable[[], Iterable[SourceRequest]] = tuple
    _seen: FIFOCache[str, bool] = field(default_factory=lambda: FIFOCache(KNOWN_DELIVERIES), init=False, repr=False)
    _newest: FIFOCache[str, tuple[float, bool]] = field(
        default_factory=lambda: FIFOCache(KNOWN_DELIVERIES), init=False, repr=False
    )
    """When each pull request was updated, by its newest event, and whether that closed it."""
    _waiting: OrderedDict[tuple[str, str], _Waiting] = field(default_factory=OrderedDict, init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    _stopped: bool = field(default=False, init=False)
    _deliveries: Counter = field(init=False, repr=False)
    _runs: Counter = field(init=False, repr=False)
    _lag: Histogram = field(init=False, repr=False)
    _gauge: Gauge = field(init=False, repr=False)

    def observe(self, registry: CollectorRegistry) -> None:
        """Count deliveries and runs in ``registry``, and measure the lag from a delivery to the end of its run."""
        about = "Webhook deliveries, by response."
        self._deliveries = Counter("driftline_hook_deliveries", about, ["host", "status"], registry=registry)
        self._runs = Counter("driftline_hook_runs", "Runs of webhooks.", ["outcome"], registry=registry)
        about = "Time from the first delivery to the end of its run, when searches find the change."
        self._lag = Histogram("driftline_hook_lag_seconds", about, buckets=_LAG_BUCKETS, registry=registry)
        about = "How long the oldest delivery has been waiting for its run."
        self._gauge = Gauge("driftline_hook_waiting_seconds", about, registry=registry)
        self._gauge.set_function(self._waiting_seconds)

    def receive(self, host: str, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
        """Return the response status for a delivery and its reason; ``headers`` has lower-case keys."""
        if host not in HOSTS or host not in self.secrets:
            return UNKNOWN, "no webhook is configured for this host"
        status, reason = self._receive(HOSTS[host], self.secrets[host], headers, body)
        self._deliveries.labels(host, str(status)).inc()
        return status, reason

    def _receive(self, host: DeliveryFormat, secret: str, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
        if not host.is_signed(secret, headers, body):
            return FORGED, "the signature is missing or invalid"
        try:
            payload = json.loads(parse_qs(body.decode())["payload"][0] if body.startswith(b"payload=") else body)
        except (ValueError, KeyError, RecursionError):
            return MALFORMED, "the body is not JSON; set the host's content type to application/json"
        if not isinstance(payload, dict):
            return MALFORMED, "the body is not a JSON object"
        ids = host.ids(headers, body)
        with self._changed:
            if any(each in self._seen for each in ids):
                return REPLAYED, "this delivery was received before"
            self._seen.update(dict.fromkeys(ids, True))
        named = {address.key for text in _remotes(payload) if text and (address := address_of(text)) is not None}
        try:
            sources = [source for source in chain(self.sources, self.of_fleets()) if _key(source) in named]
        except DriftlineError as error:
            log.warning("Cannot read the fleets' state for a webhook: %s", error)
            self._forget(ids)
            return BUSY, "cannot read the fleets' state"
        if not sources:
            return IGNORED, "no source matches this repository"
        works, reason = list[Work](), "nothing to index"
        for event in host.events(headers.get(host.event, ""), payload):
            if event.number and self._is_late(f"{min(named)}#{event.number}", event.kind, event.updated_at):
                reason = "a newer event of this pull request was received before"
                continue
            for source in sources:
                try:
                    work = work_of(event, source, self.settings, host.request_ref)
                except DriftlineError as error:
                    reason = str(error)
                else:
                    works += [replace(work, delivery=min(ids))] if work is not None else []
        return self._enqueue(works, ids) if works else (IGNORED, reason)

    def _is_late(self, request: str, kind: EventKind, at: float | None) -> bool:
        """Return whether a newer event of a pull request was received: hosts do not keep the order of deliveries.

        A comment on a closed one is newer than the closing, but does not replace it.
        """
        if at is None or kind == "late":
            return False
        with self._changed:
            newest = self._newest.get(request, (at, False))
            if (at, kind == "gone") < newest:
                return True
            self._newest[request] = at, kind == "gone"
        return False

    def _enqueue(self, works: Sequence[Work], ids: set[str]) -> tuple[int, str]:
        now = self.clock()
        with self._changed:
            new = {work.key for work in works} - self._waiting.keys()
            if len(self._waiting) + len(new) > MAX_WAITING:
                self._forget(ids)
                return BUSY, "too many runs are waiting"
            for work in works:
                known = self._waiting.get(work.key)
                since = known.since if known is not None else now
                due = min(now + self.debounce_seconds, since + MAX_DEBOUNCES * self.debounce_seconds)
                merged = ids | (known.ids if known is not None else frozenset())
                whole = work.after(known.work) if known is not None else work
                self._waiting[work.key] = _Waiting(whole, since, due, frozenset(merged))
            self._changed.notify()
        return ACCEPTED, "a run was requested"

    def _forget(self, ids: Iterable[str]) -> None:
        """Forget a delivery so that the host can redeliver it."""
        with self._changed:
            for each in ids:
                self._seen.pop(each, None)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Execute the work in a thread until the context exits."""
        thread = threading.Thread(target=self._work, name="driftline-hooks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._stopped = True
                self._changed.notify()
                if self._waiting:
                    log.warning("%d webhook runs are left to the next scheduled run", len(self._waiting))
            thread.join(STOP_SECONDS)

    def _work(self) -> None:
        while (waiting := self._next()) is not None:
            try:
                self.run(waiting.work)
            except (StorageError, ExecutorError, LeaseHeld) as error:
                self._retry(waiting, error)
            except DriftlineError as error:
                self._failed(waiting, error)
            except Exception:  # a bug that one run hits must not stop the server's webhooks
                self._runs.labels("unexpected").inc()
                log.exception("The webhook run for %s failed", "/".join(filter(None, waiting.work.key)))
            else:
                self._runs.labels("done").inc()
                self._lag.observe(self.clock() - waiting.since)

    def _next(self) -> _Waiting | None:
        """Wait until the next work item is due and return it; None after a stop."""
        with self._changed:
            while not self._stopped:
                first = min(self._waiting.values(), key=lambda each: each.due, default=None)
                now = self.clock()
                if first is not None and first.due <= now:
                    return self._waiting.pop(first.work.key)
                self._changed.wait(None if first is None else first.due - now)
        return None

    def _retry(self, waiting: _Waiting, error: DriftlineError) -> None:
        is_busy = isinstance(error, LeaseHeld)
        is_last = self.clock() - waiting.since > BUSY_SECONDS if is_busy else waiting.attempt >= ATTEMPTS
        if is_last or isinstance(error, SourceNotFound):
            self._failed(waiting, error)
            return
        log.warning("Retrying a webhook run: %s", error)
        due = self.clock() + (self.retry_seconds if is_busy else self.retry_seconds * 2 ** (waiting.attempt - 1))
        again = replace(waiting, due=due, attempt=waiting.attempt + (not is_busy))
        with self._changed:
            newer = self._waiting.setdefault(waiting.work.key, again)
            if newer is not again:
                newer.work = newer.work.after(waiting.work)

    def _failed(self, waiting: _Waiting, error: DriftlineError) -> None:
        self._runs.labels(error.kind).inc()
        self._forget(waiting.ids)
        log.warning("The webhook run for %s failed: %s", "/".join(filter(None, waiting.work.key)), error)

    def _waiting_seconds(self) -> float:
        with self._changed:
            return self.clock() - min((each.since for each in self._waiting.values()), default=self.clock())


def _key(source: SourceRequest) -> tuple[str, str] | None:
    remote = parse_remote(source.uri)
    address = address_of(remote.location) if remote is not None and not remote.is_local else None
    return address.key if address is not None else None


def hooks_of(configuration: Configuration) -> Hooks | None:
    """Return the webhooks that a configuration enables, and their secrets, or None if it enables none.

    Raises UsageError for a secret with no value, and if no source is a repository URL.
    """
    settings = configuration.hooks
    if settings is None:
        return None
    sources = tuple(source for source in requests_of(configuration.sources) if _key(source) is not None)
    if not sources and not configuration.fleets:
        fix = "Add one as git+https://host/path.git, or a fleet."
        raise UsageError("Webhooks need at least one source that is a repository URL", str(configuration.path), fix)
    hooks = Hooks(settings, configuration.hook_secrets(), sources, Runs(configuration, settings.prefect))
    if configuration.fleets:
        hooks.of_fleets = lambda: chain.from_iterable(sources_of_fleets(configuration).values())
    return hooks

"""Discover an owner's git repositories: through a host's API, in a folder, or from a list.

Host responses are untrusted. Redirects and next-page links are only followed on the same host. A listing is complete
only if every page arrived, every entry could be read, and the host's own total agrees.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from driftline.storage.errors import (
    AccessDenied,
    DriftlineError,
    SourceNotFound,
    StorageError,
    UsageError,
    without_secrets,
)
from driftline.storage.globs import check_glob, glob_pattern
from driftline.storage.json_records import from_json, to_json
from driftline.storage.sources.git_isolation import COMMIT_ID
from driftline.storage.sources.hosts import (
    READER,
    REPOSITORY_PATH,
    Host,
    HostedRepository,
    HostPage,
    Visibility,
    api_of,
)
from driftline.storage.sources.mirror import Remote, bare_repository, parse_remote

MAX_REPOSITORIES = 100_000
MAX_PAGES = 10_000
MAX_OPEN_PULLS = 1_000
"""Maximum number of open pull requests per repository."""
MAX_READERS = 50_000
"""Maximum number of people who may read a repository."""
MAX_PAGE_BYTES = 32 * 1024 * 1024
MAX_LIST_BYTES = 16 * 1024 * 1024
MAX_FOLDER_DEPTH = 6
MAX_REDIRECTS = 3
PAGE_SECONDS = 300.0
LISTING_SECONDS = 3_600.0
"""Maximum time of one listing: a host may answer each request, but slowly and without end."""
ATTEMPTS = 3
"""Maximum number of attempts if a request fails with a 5xx status or without a response."""
MAX_WAIT_SECONDS = 900.0
"""Maximum total time that a sync's requests wait because the host asks them to."""
_MAX_ID = 200


@dataclass(frozen=True, slots=True)
class KnownPage:
    """A page of a listing as it was received, so it is only requested again if it changed."""

    url: str
    etag: str
    next: str
    ids: tuple[str, ...]
    total: int | None = None
    reading: int = 0


READING = 1
"""The version of the page parser. Pages parsed by another version are requested again."""


@dataclass(frozen=True, slots=True)
class FleetSelection:
    """Which of a host's repositories belong to a fleet. Globs match paths; a glob with no slash matches the name."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    archived: bool = True
    forks: bool = True
    visibility: tuple[Visibility, ...] = ()
    max_size_bytes: int | None = None

    def reasons(self) -> Callable[[HostedRepository], str]:
        """Return a function that returns why a repository is excluded, or "" if it is selected. Raises UsageError."""
        include, exclude = _matcher(self.include), _matcher(self.exclude)
        topics, limit = {topic.lower() for topic in self.topics}, self.max_size_bytes

        def why_not(repository: HostedRepository) -> str:
            if (self.include and not include(repository.path)) or exclude(repository.path):
                return "excluded"
            if repository.archived and not self.archived:
                return "archived"
            if repository.fork and not self.forks:
                return "fork"
            if self.visibility and repository.visibility not in self.visibility:
                return repository.visibility
            if topics and topics.isdisjoint(topic.lower() for topic in repository.topics):
                return "other topics"
            return "too large" if limit is not None and repository.size_bytes > limit else ""

        return why_not


def _matcher(globs: Sequence[str]) -> Callable[[str], bool]:
    patterns = [re.compile(glob_pattern(each)) for glob in globs for each in check_glob(glob)]
    return lambda path: any(pattern.match(path) for pattern in patterns)


@dataclass(slots=True)
class HostWaits:
    """The waits requested by a host, shared by concurrent requests. After a ``refused`` wait, no request is sent."""

    waits: int = 0
    seconds: float = 0.0
    refused: StorageError | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True)
class HostListing:
    """A host's listing. ``failure`` is the error that ended it early; ``problems`` lists what could not be read or
    disagrees.

    ``started_at`` is when the listing started, in seconds by the host's clock, or None if the host reports none.
    ``requests`` and ``unchanged_pages`` also count the requests for pull requests and readers. ``teams`` keeps the
    pages of teams' members by URL: a team may read many repositories.
    """

    repositories: dict[str, HostedRepository] = field(default_factory=dict)
    pages: list[KnownPage] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    failure: DriftlineError | None = None
    started_at: float | None = None
    requests: int = 0
    unchanged_pages: int = 0
    limit: HostWaits = field(default_factory=HostWaits)
    teams: dict[str, KnownPage] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether a repository that is missing here is also missing at the host."""
        return self.failure is None and not self.problems

    def add(self, repository: HostedRepository) -> None:
        """Add a repository. Raises StorageError if there are too many."""
        self.repositories[repository.id] = repository
        if len(self.repositories) > MAX_REPOSITORIES:
            raise StorageError(f"The host lists more than {MAX_REPOSITORIES:,} repositories", fix="Narrow the fleet.")


def discover(
    host: Host,
    known: Mapping[str, HostedRepository] | None = None,
    pages: Sequence[KnownPage] = (),
    *,
    limit: HostWaits | None = None,
    environ: Mapping[str, str] = os.environ,
    sleep: Callable[[float], object] = time.sleep,
    notify: Callable[[str], object] = lambda text: None,
) -> HostListing:
    """List the repositories of ``host``; a failure is recorded in the listing.

    ``pages`` are the previous listing's pages, and ``known`` maps ids to their repositories: the host need not resend
    unchanged pages. ``limit`` contains the waits of earlier requests; ``notify`` receives messages for waiting users.
    Raises UsageError if the token's variable is not set.
    """
    listing = HostListing(limit=limit or HostWaits())
    token = host.token(environ)
    try:
        if host.provider == "folder":
            _list_folder(host, listing)
        elif host.provider == "list":
            _list_uris(host, listing)
        else:
            _HostReader(host, token, listing, known or {}, pages, sleep, notify).read()
    except DriftlineError as error:
        listing.failure = error
    return listing


def open_pulls(
    host: Host,
    repository: HostedRepository,
    known: Collection[int] = (),
    etag: str = "",
    *,
    listing: HostListing | None = None,
    notify: Callable[[str], object] = lambda text: None,
) -> tuple[dict[int, str], str] | None:
    """Return the commit of each open pull request, keyed by number, and the listing's etag, "" if it has several pages.

    A ``known`` pull request that is not listed maps to "" if the host reports it as closed or merged. Returns None if
    the listing still has ``etag``. Requests are counted in ``listing``, the host's listing, and share its waits. Raises
    AccessDenied, SourceNotFound, StorageError, UsageError.
    """
    listing = listing or HostListing()
    return _HostReader(host, host.token(), listing, {}, (), time.sleep, notify).pulls(repository, known, etag)


def readers_of(
    host: Host,
    repository: HostedRepository,
    pages: Sequence[KnownPage] = (),
    *,
    listing: HostListing | None = None,
    sleep: Callable[[float], object] = time.sleep,
    notify: Callable[[str], object] = lambda text: None,
) -> tuple[KnownPage, ...]:
    """Return the pages that list who may read a repository's code. The ``ids`` of a page are logins.

    Ids that begin with "/" are teams, whose members are on other pages; "-" is somebody without access to the code.
    ``pages`` are the pages of the last answer. Requests are counted in ``listing``, the host's listing, and share its
    waits. Raises AccessDenied, SourceNotFound, StorageError if the host does not list everyone, UsageError.
    """
    listing = listing or HostListing()
    return _HostReader(host, host.token(), listing, {}, pages, sleep, notify).readers(repository)


# -- folders and lists --------------------------------------------------------------------------


def _list_folder(host: Host, listing: HostListing) -> None:
    """Add the repositories under a folder: bare repositories, mirrors, and working trees. Follows no links."""
    if not os.path.isdir(host.url):
        raise SourceNotFound("The fleet's folder does not exist", host.url, "Correct its url.")

    def walk(folder: str, depth: int) -> None:
        try:
            with os.scandir(folder) as entries:
                inside = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError as error:
            listing.problems.append(f"{folder} cannot be read ({error.strerror})")
            return
        for name in inside:
            found = os.path.join(folder, name)
            if bare_repository(found) is not None or bare_repository(os.path.join(found, ".git")) is not None:
                path = os.path.relpath(found, host.url)
                listing.add(HostedRepository(path, path.removesuffix(".git")))
            elif depth < MAX_FOLDER_DEPTH:
                walk(found, depth + 1)

    walk(host.url, 1)


def _list_uris(host: Host, listing: HostListing) -> None:
    """Add the repositories in the list and in its file, which has one URI per line; comments start with #."""
    for uri in (*host.uris, *_lines_of(host.url)):
        try:
            remote = parse_remote(uri) or (Remote(os.path.realpath(uri), "file") if bare_repository(uri) else None)
        except UsageError as error:
            listing.problems.append(str(error))
            continue
        if remote is None:
            listing.problems.append(f"{without_secrets(uri)!r} is not the URI of a git repository")
            continue
        _, _, path = remote.location.rpartition("://")
        parts = [part for part in path.removesuffix(".git").split("/") if part]
        if not remote.is_local:  # without the host; a colon precedes a port, or the path in user@host:path
            host_part = parts.pop(0)
            parts[:0] = (
                [host_part.partition(":")[2]] if remote.protocol == "ssh" and "://" not in remote.location else []
            )
        path = "/".join(part for part in parts if part) or remote.name
        listing.add(HostedRepository(remote.uri, path, remote.ref))


def _lines_of(file: str) -> Iterator[str]:
    if not file:
        return
    try:
        with open(file, encoding="utf-8") as lines:
            text = lines.read(MAX_LIST_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise SourceNotFound(
            f"Cannot read the fleet's list ({error})", file, "Save it as readable UTF-8 text."
        ) from error
    if len(text) > MAX_LIST_BYTES:
        raise SourceNotFound(f"The fleet's list is larger than {MAX_LIST_BYTES:,} bytes", file, "Split it.")
    yield from (line for raw in text.splitlines() if (line := raw.partition("#")[0].strip()))


# -- the APIs of hosts --------------------------------------------------------------------------


class _HostReader:
    """Reads the pages of one listing in sequence, waiting when the host asks for it."""

    def __init__(
        self,
        host: Host,
        token: str,
        listing: HostListing,
        known: Mapping[str, HostedRepository],
        pages: Sequence[KnownPage],
        sleep: Callable[[float], object],
        notify: Callable[[str], object],
    ) -> None:
        self._host, self._api, self._listing = host, api_of(host), listing
        self._known, self._pages = known, {page.url: page for page in pages}
        self._limit, self._sleep, self._notify = listing.limit, sleep, notify
        self._root = self._api.root(host.site)
        self._missing = "The host has no such owner", "Check its name, and the token."
        self._headers = {"User-Agent": "driftline", "Accept": "application/json", **dict(self._api.headers)}
        if token:
            self._headers["Authorization"] = self._api.authorization.format(token=token)
        from driftline.storage.sources.host_connection import Connection  # reading a configuration needs no HTTP

        self._connection = Connection(self._host.name, MAX_PAGE_BYTES, PAGE_SECONDS)

    def read(self) -> None:
        """Fill the listing. Raises UsageError, AccessDenied, SourceNotFound, StorageError."""
        target = self._api.targets.get(self._host.owner_kind)
        if target is None:
            raise UsageError("This host lists repositories only by owner", self._host.name, "Set its org.")
        url = self._root + target.format(owner=quote(self._host.owner, safe=""))
        for page in self._walk(url, self._repositories):
            self._listing.pages.append(page)
        total, listed = _total_of(self._listing.pages), len(self._listing.repositories)
        if total is not None and total != listed:
            self._listing.problems.append(f"the host counts {total:,} repositories and lists {listed:,}")

    def _walk(self, url: str, read: Callable[[str], KnownPage]) -> Iterator[KnownPage]:
        """Yield the page at ``url`` and all later ones. Raises StorageError if they do not end."""
        seen, received, deadline = set[str](), 0, time.monotonic() + LISTING_SECONDS
        while url:
            if url in seen or len(seen) >= MAX_PAGES or time.monotonic() > deadline:
                raise StorageError(
                    "The host's listing does not end, so no repository is removed",
                    self._host.name,
                    "Report it to the host.",
                )
            seen.add(url)
            page = read(url)
            yield page
            received += len(page.ids)
            url = page.next or self._counted(page, received)

    def _counted(self, page: KnownPage, received: int) -> str:
        """Return the URL of the next page if the host omits it although there are more repositories; "" otherwise."""
        number = re.search(r"(?<=[?&]page=)\d+", page.url)
        if number is None or page.total is None or not page.ids or received >= page.total:
            return ""
        return page.url[: number.start()] + str(int(number[0]) + 1) + page.url[number.end() :]

    def _repositories(self, url: str) -> KnownPage:
        known = self._pages.get(url)
        if known is not None and not all(each in self._known for each in known.ids):
            known = None
        page = self._page(url, known, self._add)
        if page is known:
            for each in known.ids:
                self._take(self._known[each])
        return page

    def _page(self, url: str, known: KnownPage | None, add: Callable[[Any], str]) -> KnownPage:
        """Return the page at ``url``, which is ``known`` if it has not changed; ``add`` returns the id of an entry."""
        etag = known.etag if known is not None and known.reading == READING else ""
        status, headers, body = self._ask(url, etag)
        if status == HTTPStatus.NOT_MODIFIED and known is not None and etag:
            if known.next:  # the state is in the workspace, which others may write to
                self._on_this_host(url, known.next)
            self._count_unchanged()
            return known
        answer = self._parsed(url, headers, body)
        ids = tuple(add(item) for item in answer.items)
        total = answer.total if isinstance(answer.total, int) else None
        return KnownPage(url, "" if "" in ids else headers.get("ETag") or "", answer.next, ids, total, READING)

    def _parsed(self, url: str, headers: Mapping[str, str], body: bytes) -> HostPage:
        try:
            answer = self._api.read(url, json.loads(body), headers)
            following = self._on_this_host(url, answer.next) if answer.next else ""
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            what = f"The host did not return a page ({type(error).__name__})"
            raise StorageError(what, self._host.name, "Check its address.") from error
        if not isinstance(answer.items, list):
            raise StorageError("The host did not return a page", self._host.name)
        return replace(answer, next=following)

    def _add(self, item: Any) -> str:
        """Add an entry, and return its id, or "" if it cannot be parsed."""
        try:
            # with the types that its record requires
            repository = from_json(HostedRepository, to_json(self._api.parse(item)))
            is_valid = REPOSITORY_PATH.fullmatch(repository.path) and 0 < len(repository.id) <= _MAX_ID
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            is_valid = False
        if not is_valid:
            self._listing.problems.append("the host lists a repository that cannot be parsed")
            return ""
        self._take(repository)
        return repository.id

    def _take(self, repository: HostedRepository) -> None:
        if repository.id in self._listing.repositories:  # pages have shifted and may miss another
            self._listing.problems.append(f"the host lists {repository.path} twice")
        self._listing.add(repository)

    def _on_this_host(self, url: str, target: str) -> str:
        """Resolve ``target`` against ``url``. Raises StorageError if it is on another host."""
        whole = urljoin(url, target)
        if urlsplit(whole)[:2] != urlsplit(url)[:2]:
            where = without_secrets(f"{urlsplit(whole).scheme}://{urlsplit(whole).netloc}")
            raise StorageError("The host redirects to another host", where, "Use that URL for the fleet.")
        return whole

    def pulls(
        self, repository: HostedRepository, known: Collection[int], etag: str
    ) -> tuple[dict[int, str], str] | None:
        """Same as ``open_pulls``, with the same errors."""
        self._missing = "The host has no pull requests there", "Check the permissions of the token."
        named = self._api.pulls.format(path=repository.path, id=quote(repository.id, safe=""))
        first = url = self._root + named
        found, tag = dict[int, str](), ""
        while url:
            status, headers, body = self._ask(url, etag if url == first else "")
            if status == HTTPStatus.NOT_MODIFIED:
                self._count_unchanged()
                return None
            answer = self._parsed(url, headers, body)
            before = len(found)
            found |= {number: commit for number, commit in map(self._pull, answer.items) if commit}
            if len(found) > MAX_OPEN_PULLS or (answer.next and len(found) == before):
                raise StorageError(f"The host lists more than {MAX_OPEN_PULLS:,} open pull requests", repository.path)
            tag = (headers.get("ETag") or "") if url == first and not answer.next else ""
            url = answer.next
        # a pull request may move between pages; its absence proves nothing
        for number in sorted(set(known) - found.keys()):
            if self._is_closed(f"{first.partition('?')[0]}/{number}"):
                found[number] = ""
            else:
                tag = ""
        return found, tag

    def readers(self, repository: HostedRepository) -> tuple[KnownPage, ...]:
        """Same as ``readers_of``, with the same errors."""
        self._missing = "The host does not list the readers of a repository", "Check the permissions of the token."
        named = {"path": repository.path, "id": quote(repository.id, safe="")}
        found, people = list[KnownPage](), 0
        todo: list[tuple[str, Callable[[str], KnownPage]]] = [
            (each.format(**named), self._people) for each in self._api.readers
        ]
        while todo:
            pages = list[KnownPage]()
            path, read = todo.pop()
            for page in self._walk(self._root + path, read):
                pages.append(page)
                people += len(page.ids)
                if people > MAX_READERS:
                    raise StorageError(f"The host lists more than {MAX_READERS:,} readers", repository.path)
            total, listed = _total_of(pages), sum(len(page.ids) for page in pages)
            if total is not None and total != listed:
                raise StorageError(f"The host reports {total:,} readers, but lists {listed:,}", repository.path)
            found += pages
            todo += [(each, self._members) for page in pages for each in page.ids if each.startswith("/")]
        return tuple(found)

    def _people(self, url: str) -> KnownPage:
        return self._page(url, self._pages.get(url), self._add_reader)

    def _members(self, url: str) -> KnownPage:
        """Return a page of a team's members, which is requested once for all repositories of the listing."""
        teams = self._listing.teams
        page = teams[url] = teams.get(url) or self._people(url)
        return page

    def _count_unchanged(self) -> None:
        with self._limit.lock:
            self._listing.unchanged_pages += 1

    def _add_reader(self, item: Any) -> str:
        """Return an id of ``readers_of``. Raises StorageError."""
        try:
            name = self._api.reader(item)
            return name.lower() if READER.fullmatch(name) else "-"
        except (KeyError, TypeError, AttributeError) as error:
            raise StorageError("The host lists a reader that cannot be parsed", self._host.name) from error

    def _is_closed(self, url: str) -> bool:
        """Return whether the host reports a pull request as closed or merged; for deleted ones it reports nothing."""
        try:
            return json.loads(self._ask(url, "")[2])["state"] in ("closed", "merged")
        except (SourceNotFound, ValueError, KeyError, TypeError, RecursionError):
            return False

    def _pull(self, item: Any) -> tuple[int, str]:
        """Return a pull request's number and its head commit, "" if it has none. Raises StorageError."""
        try:
            number = item.get("iid") or item["number"]
            commit = item["sha"] if "sha" in item else item["head"]["sha"]
            is_valid = isinstance(number, int) and number > 0 and (not commit or COMMIT_ID.fullmatch(commit))
        except (KeyError, TypeError, AttributeError):
            is_valid = False
        if not is_valid:
            raise StorageError("The host lists a pull request that cannot be parsed", self._host.name)
        return number, commit or ""

    # -- requests ----------------------------------------------------------------------------

    def _ask(self, url: str, etag: str) -> tuple[int, Mapping[str, str], bytes]:
        attempts, redirects = 0, 0
        while True:
            with self._limit.lock:  # a waiting request holds the lock
                waits = self._limit.waits
                if self._limit.refused is not None:
                    raise self._limit.refused
                self._listing.requests += 1
            status, headers, body = self._answer(url, etag)
            if (pause := self._pause(status, headers, body)) is not None:
                self._wait(pause, waits)
            elif status in (301, 302, 303, 307, 308) and headers.get("Location") and redirects < MAX_REDIRECTS:
                url, redirects = self._on_this_host(url, headers["Location"] or ""), redirects + 1
            elif status >= 500 or status == 0:
                attempts += 1
                if attempts == ATTEMPTS:
                    why = f"status {status}" if status else body.decode("utf-8", "replace")
                    what = f"The host failed to list its repositories ({why})"
                    raise StorageError(what, self._host.name, "Try again later.")
                self._sleep(2.0 ** (attempts - 1))
            elif status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                fix = f"Check the token in {self._host.variable}." if self._host.variable else "Set a token."
                raise AccessDenied(f"The host denies access to its listing (status {status})", self._host.name, fix)
            elif status == HTTPStatus.NOT_FOUND:
                what, fix = self._missing
                raise SourceNotFound(what, self._host.name, fix)
            elif status in (HTTPStatus.OK, HTTPStatus.NOT_MODIFIED):
                return status, headers, body
            else:
                what = f"The host failed to list its repositories (status {status})"
                raise StorageError(what, self._host.name, "Try again later.")

    def _answer(self, url: str, etag: str) -> tuple[int, Mapping[str, str], bytes]:
        """Send one request. If the response is incomplete, the status is 0 and the body is the reason."""
        headers = self._headers | ({"If-None-Match": etag} if etag else {})
        status, answered, body = self._connection.get(url, headers)
        if self._listing.started_at is None:
            self._listing.started_at = _time_of(answered)
        return status, answered, body

    def _pause(self, status: int, headers: Mapping[str, str], body: bytes) -> float | None:
        """Return the seconds that the host asks to wait before the next attempt, or None if it does not.

        GitHub's secondary limit is a 403 that only its body distinguishes from a denial.
        """
        if status not in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.FORBIDDEN, HTTPStatus.SERVICE_UNAVAILABLE):
            return None
        after = headers.get("Retry-After") or ""
        if after.isdecimal():
            return float(after)
        if (at := _time_in(after)) is not None:
            return max(0.0, at - (_time_of(headers) or time.time())) + 1.0
        reset = headers.get("X-RateLimit-Reset") or headers.get("RateLimit-Reset") or ""
        is_empty = (headers.get("X-RateLimit-Remaining") or headers.get("RateLimit-Remaining")) == "0"
        if reset.isdecimal() and (is_empty or status == HTTPStatus.TOO_MANY_REQUESTS):
            return max(0.0, float(reset) - (_time_of(headers) or time.time())) + 1.0
        is_limit = status == HTTPStatus.TOO_MANY_REQUESTS or (status == HTTPStatus.FORBIDDEN and b"rate limit" in body)
        return 60.0 if is_limit else None

    def _wait(self, seconds: float, waits: int) -> None:
        """Wait for the rate limit, unless another request already waited (``limit.waits`` differs from ``waits``).
        Raises StorageError.
        """
        limit = self._limit
        with limit.lock:
            if limit.waits != waits:
                return
            if limit.seconds + seconds > MAX_WAIT_SECONDS:
                what = f"The host's rate limit requires a wait of {seconds:,.0f} s"
                limit.refused = StorageError(what, self._host.name, "Run the command again later, or set a token.")
                raise limit.refused
            self._notify(f"{self._host.name} limits requests: waiting {seconds:,.0f} s")
            limit.seconds += max(seconds, 1.0)
            self._sleep(max(seconds, 1.0))
            limit.waits += 1


def _total_of(pages: Sequence[KnownPage]) -> int | None:
    """Return the total that the host has reported last, or None if it reports none."""
    return next((page.total for page in reversed(pages) if page.total is not None), None)


def _time_of(headers: Mapping[str, str]) -> float | None:
    """Return the host's time from its response headers, or None if it is missing."""
    return _time_in(headers.get("Date") or "")


def _time_in(date: str) -> float | None:
    """Return the time of an HTTP date, or None if it is invalid."""
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None


def parse_timestamp(text: str) -> float | None:
    """Parse a host's time, in seconds, or return None if it is invalid.

    >>> parse_timestamp("1970-01-01T00:01:00Z")
    60.0
    """
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()

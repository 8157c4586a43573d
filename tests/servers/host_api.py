"""A git server with the listings of GitHub, GitLab, Gitea and Bitbucket, as described in their public APIs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.servers.git_server import GitServer, Reply


@dataclass
class Hosted:
    """A repository on the host; ``pushed`` is the time of its last push.

    ``pulls`` holds the commits of its pull requests by number; ``closed`` holds the numbers of closed ones. ``readers``
    may read its code; ``members`` belong to it but may not. On Gitea, each of the ``teams`` has members.
    """

    id: int
    path: str
    pushed: str = "2020-01-01T00:00:00Z"
    branch: str = "main"
    archived: bool = False
    fork: bool = False
    visibility: str = "private"
    topics: tuple[str, ...] = ()
    size_kb: int = 1
    pulls: dict[int, str] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    readers: list[str] = field(default_factory=list)
    members: list[str] = field(default_factory=list)
    teams: dict[int, list[str]] = field(default_factory=dict)

    def people(self, provider: str) -> list[dict[str, Any]]:
        """Return the entries of its collaborators or members."""
        reads = dict.fromkeys(self.members, False) | dict.fromkeys(self.readers, True)
        match provider:
            case "github":
                return [{"login": name, "permissions": {"pull": may}} for name, may in reads.items()]
            case "gitlab":
                common = {"state": "active", "membership_state": "active"}
                return [common | {"username": name, "access_level": 20 if may else 10} for name, may in reads.items()]
            case _:
                return [{"login": name} for name, may in reads.items() if may]

    def pull(self, number: int, provider: str) -> dict[str, Any]:
        """Return the entry for a pull request."""
        state = "closed" if number in self.closed else "opened" if provider == "gitlab" else "open"
        if provider == "gitlab":
            return {"id": 1000 + number, "iid": number, "sha": self.pulls[number], "state": state}
        return {"id": 1000 + number, "number": number, "head": {"sha": self.pulls[number]}, "state": state}

    def item(self, provider: str) -> dict[str, Any]:
        """Return the entry in a listing."""
        owner, _, name = self.path.rpartition("/")
        common = {"id": self.id, "default_branch": self.branch, "archived": self.archived, "topics": [*self.topics]}
        is_private = self.visibility == "private"
        match provider:
            case "github":
                own = {"full_name": self.path, "name": name, "private": is_private, "visibility": self.visibility}
                return common | own | {"fork": self.fork, "pushed_at": self.pushed, "size": self.size_kb}
            case "gitlab":
                own = {"path_with_namespace": self.path, "visibility": self.visibility}
                origin = {"forked_from_project": {"id": 1}} if self.fork else {}
                return common | own | origin | {"last_activity_at": self.pushed}
            case "gitea":
                own = {"full_name": self.path, "private": is_private, "internal": self.visibility == "internal"}
                return common | own | {"fork": self.fork, "updated_at": self.pushed, "size": self.size_kb}
            case "cloud":
                return {
                    "uuid": f"{{{self.id}}}", "full_name": self.path, "is_private": is_private,
                    "parent": {} if self.fork else None, "size": 1024 * self.size_kb, "updated_on": self.pushed,
                    "mainbranch": {"name": self.branch},
                }  # fmt: skip
            case _:
                return {
                    "id": self.id, "slug": name, "project": {"key": owner.upper()}, "public": not is_private,
                    "archived": self.archived,
                }  # fmt: skip


PREFIXES = {
    "github": "/api/v3/",
    "gitlab": "/api/v4/",
    "gitea": "/api/v1/",
    "cloud": "/2.0/",
    "server": "/rest/api/1.0/",
}


_TEAM = re.compile(r"/api/v1/teams/(?P<number>\d+)/members")
_PEOPLE = re.compile(r"/api/v\d/(?:repos|projects)/(?P<path>.+)/(?P<what>collaborators|members/all|teams)")
_PULLS = re.compile(r"/api/v\d/(?:repos|projects)/(?P<path>.+)/(?:pulls|merge_requests)(?:/(?P<number>\d+))?")


@dataclass
class HostApi:
    """Serves listings of ``repositories`` in pages of ``per_page``.

    ``faults`` handle the next requests, in turn, instead of the host; if one returns None, the host responds. ``total``
    is the number of entries that the host claims to have.
    """

    server: GitServer
    provider: str
    repositories: list[Hosted] = field(default_factory=list)
    per_page: int = 2
    total: int | None = None
    etags: bool = True
    token: str = ""
    faults: list[Callable[[str], Reply | None]] = field(default_factory=list)
    served: list[str] = field(default_factory=list)
    not_modified: int = 0

    def __call__(self, target: str, headers: Mapping[str, str]) -> Reply | None:
        if not target.startswith(PREFIXES[self.provider]):
            return None
        if self.faults and (reply := self.faults.pop(0)(target)) is not None:
            return reply
        self.served.append(target)
        if self.token and self.token not in headers.get("Authorization", ""):
            return 401, {}, b'{"message": "Bad credentials"}'
        query = parse_qs(urlsplit(target).query)
        start = int(query.get("start", ["0"])[0]) or self.per_page * (int(query.get("page", ["1"])[0]) - 1)
        path = target.partition("?")[0]
        if team := _TEAM.fullmatch(path):
            teams = {number: people for each in self.repositories for number, people in each.teams.items()}
            found = [{"login": name} for name in teams[int(team["number"])]]
        elif asked := _PEOPLE.fullmatch(path):
            repository = self._named(asked["path"])
            if asked["what"] == "teams":
                issues = {"id": 99, "units_map": {"repo.issues": "write"}}
                others = [{"id": number, "units_map": {"repo.code": "read"}} for number in repository.teams]
                return 200, {}, json.dumps([issues, *others]).encode()
            found = repository.people(self.provider)
        elif asked := _PULLS.fullmatch(path):
            repository = self._named(asked["path"])
            if asked["number"]:
                return 200, {}, json.dumps(repository.pull(int(asked["number"]), self.provider)).encode()
            found = [repository.pull(each, self.provider) for each in repository.pulls if each not in repository.closed]
        else:
            found = [each.item(self.provider) for each in self.repositories]
        items = found[start : start + self.per_page]
        following = start + self.per_page if start + self.per_page < len(found) else None
        answer, more = self._page(items, target, following, len(found))
        body = json.dumps(answer).encode()
        etag = f'W/"{hashlib.sha256(body + str(more).encode()).hexdigest()}"'
        if self.etags and headers.get("If-None-Match") == etag:
            self.not_modified += 1
            return 304, {}, b""
        return 200, more | ({"ETag": etag} if self.etags else {}), body

    def _named(self, path: str) -> Hosted:
        """Return the repository with this path or id."""
        named = path.replace("%2F", "/")
        return next(each for each in self.repositories if named in (each.path, str(each.id)))

    def _page(self, items: list[Any], target: str, following: int | None, count: int) -> tuple[Any, dict[str, str]]:
        total = count if self.total is None else self.total
        here = f"http://{self.server.host}{target}".partition("&page=")[0]
        link = f"{here}&page={following // self.per_page + 1}" if following is not None else ""
        if self.provider == "cloud":
            return {"values": items, "size": total} | ({"next": link} if link else {}), {}
        if self.provider == "server":
            return {"values": items, "isLastPage": following is None, "nextPageStart": following}, {}
        counted = {"gitlab": {"X-Total": str(total)}, "gitea": {"X-Total-Count": str(total)}}.get(self.provider, {})
        linked = {"Link": f'<{here}&page=1>; rel="first", <{link}>; rel="next"'} if link else {}
        return items, counted | linked


def throttled(status: int, **headers: str) -> Callable[[str], Reply | None]:
    """A fault: the host's rate limit."""
    return lambda _: (status, {name.replace("_", "-"): value for name, value in headers.items()}, b"{}")


def failing(status: int = 502) -> Callable[[str], Reply | None]:
    """A fault: a host error."""
    return lambda _: (status, {}, b"<html>bad gateway</html>")


def answering(body: bytes) -> Callable[[str], Reply | None]:
    """A fault: a different response."""
    return lambda _: (200, {}, body)


def moved(address: str) -> Callable[[str], Reply | None]:
    """A fault: a redirect to ``address``, with the same path."""
    return lambda target: (302, {"Location": address + target}, b"")


def altered(api: HostApi, change: Callable[[Reply], Reply]) -> Callable[[str], Reply | None]:
    """A fault: the host's response with a change."""

    def fault(target: str) -> Reply | None:
        later, api.faults = api.faults, []
        try:
            answer = api(target, {})
        finally:
            api.faults = later
        return change(answer) if answer is not None else None

    return fault

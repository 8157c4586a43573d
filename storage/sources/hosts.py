"""Describe git hosting services: URLs of their sites, APIs and clones, and how to parse their listings.

Responses are untrusted: a repository's URL consists of the configured URL and a checked path, so no response can direct
git or a token to another host.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from driftline.storage.errors import UsageError
from driftline.storage.sources.mirror import Remote, parse_remote, quoted_path

Provider = Literal["github", "gitlab", "gitea", "bitbucket", "folder", "list"]
OwnerKind = Literal["org", "group", "user", ""]
Visibility = Literal["public", "internal", "private"]
REPOSITORY_PATH = re.compile(r"(?!-|(?:.*/)?\.{1,2}(?:/|$))[A-Za-z0-9_.+~-]+(?:/[A-Za-z0-9_.+~-]+)+")
READER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}|/teams/\d+/members\?limit=50&page=1")
"""A login, or the listing of a team."""
_GITLAB_REPORTER = 20
"""The lowest access level that may read the code of a private project."""
LOCAL_PROVIDERS = ("folder", "list")
"""The providers that have no host with an API."""
_NEXT = re.compile(r'<([^>]*)>\s*(?:;[^,<]*)?;\s*rel="?next"?')


@dataclass(frozen=True, slots=True)
class HostedRepository:
    """A repository as listed by its host. ``id`` survives renames; ``path`` consists of its groups and its name.

    ``changed`` is the time of the last push in the host's own format, "" if the host does not report it; a size of 0
    means unknown.
    """

    id: str
    path: str
    branch: str = ""
    changed: str = ""
    archived: bool = False
    fork: bool = False
    visibility: Visibility = "private"
    topics: tuple[str, ...] = ()
    size_bytes: int = 0

    @property
    def naming(self) -> tuple[str, str, str]:
        """The fields that determine its entity."""
        return self.id, self.path, self.branch

    @property
    def stamp(self) -> str:
        """The fields that change with a push or a new default branch, or "" if the host does not report them."""
        return f"{self.changed} {self.branch}" if self.changed else ""


@dataclass(frozen=True, slots=True)
class Host:
    """Where to discover repositories: those of ``owner`` on a host, or every repository the token can read.

    ``url`` is a self-hosted instance's URL, the folder for the ``folder`` provider, or the file for the ``list``
    provider, which also has ``uris``. ``variable`` is the environment variable that contains the token.
    """

    provider: Provider
    url: str = ""
    owner: str = ""
    owner_kind: OwnerKind = ""
    variable: str = ""
    uris: tuple[str, ...] = field(default=(), repr=False)

    @property
    def site(self) -> str:
        """The URL of the host's web pages; its repositories are below it."""
        return (self.url or _API_OF[self.provider].site).rstrip("/")

    @property
    def name(self) -> str:
        """A human-readable name, such as ``github.com/acme``."""
        if self.provider == "list" and not self.url:
            return "list"
        base = self.url if self.provider in LOCAL_PROVIDERS else self.site.partition("://")[2]
        return f"{base}/{self.owner}" if self.owner else base

    def token(self, environ: Mapping[str, str] = os.environ) -> str:
        """Return the token, "" if no variable is configured. Raises UsageError if the variable has none."""
        token = environ.get(self.variable, "").strip() if self.variable else ""
        if self.variable and not token:
            raise UsageError(f"The fleet needs the variable {self.variable}", self.name, "Set it to the token.")
        if not (token.isascii() and token.isprintable()):  # the HTTP client's error would quote it
            fix = "Set it to the token, which consists of printable ASCII characters."
            raise UsageError(f"The variable {self.variable} does not contain a token", self.name, fix)
        return token

    def remote(self, repository: HostedRepository) -> Remote:
        """Return the repository's remote, with a reference to the token. Raises UsageError."""
        remote = parse_remote(self.uri(repository))
        if remote is None:
            raise UsageError("Not a valid repository path", repr(repository.path))
        return remote

    def uri(self, repository: HostedRepository) -> str:
        """Return a repository's URI, with a reference to the token. Raises UsageError."""
        if self.provider == "list":
            for uri in self.uris:
                if (remote := parse_remote(uri)) is not None and remote.uri == repository.id:
                    return uri
            return repository.id
        if self.provider == "folder":
            if os.path.isabs(repository.id) or ".." in repository.id.split("/"):
                raise UsageError("Not a path in the fleet's folder", repr(repository.id))
            return f"git+file://{quoted_path(os.path.join(self.url, repository.id))}"
        if not REPOSITORY_PATH.fullmatch(repository.path):
            raise UsageError("Not a valid repository path", repr(repository.path))
        api = api_of(self)
        scheme, _, rest = self.site.partition("://")
        reference = f"{self._reference}@" if self.variable else ""
        return f"git+{scheme}://{reference}{rest}{api.clone_path}/{repository.path}.git"

    def references(self) -> dict[str, str]:
        """Return the reference to the token, ``user:${NAME}``, by the start of the URIs that it is for."""
        if not self.variable or self.provider in LOCAL_PROVIDERS:
            return {}
        api = api_of(self)
        start = f"git+{self.site}{api.clone_path}/"
        return dict.fromkeys({start, f"{start}{self.owner}/" if self.owner else start}, self._reference)

    @property
    def _reference(self) -> str:
        return f"{api_of(self).git_user}:${{{self.variable}}}"

    @property
    def has_pulls(self) -> bool:
        """Whether the host lists a repository's open pull requests."""
        return self.provider not in LOCAL_PROVIDERS and bool(api_of(self).pulls)

    def pull_ref(self, number: int) -> str:
        """Return a pull request's ref."""
        return api_of(self).pull_ref.format(number)

    @property
    def unlisted(self) -> frozenset[str]:
        """The settings that select by properties that this host does not list, so they would have no effect."""
        if self.provider in LOCAL_PROVIDERS:
            return frozenset({"topics", "archived", "forks", "visibility", "max_size"})
        return api_of(self).unlisted

    @property
    def has_readers(self) -> bool:
        """Whether the host lists everyone who may read a repository of the owner."""
        if self.provider in LOCAL_PROVIDERS or not self.variable:
            return False
        return bool(api_of(self).readers) and (self.provider != "gitea" or self.owner_kind == "org")

    @property
    def stamp_resolution_seconds(self) -> float | None:
        """Seconds after a push until another push is sure to change ``Repository.changed``, or None if none is."""
        return None if self.provider in LOCAL_PROVIDERS else api_of(self).stamp_resolution_seconds


@dataclass(frozen=True, slots=True)
class HostPage:
    """A page: its entries, the next page's URL, and the total reported by the host."""

    items: Sequence[Any]
    next: str = ""
    total: int | None = None


@dataclass(frozen=True, slots=True)
class HostApi:
    """How a host lists repositories.

    ``root`` returns the API's URL for a site, and ``targets`` maps an owner kind to the path of its listing. ``pulls``
    is the path of a repository's open pull requests, and ``pull_ref`` the ref of one. ``readers`` are the paths that
    list the people who may read a repository; ``reader`` returns an entry's login, "" if it may not read code, or the
    path of a further listing. ``unlisted`` contains the fleet settings that the host's entries have no data for.
    """

    site: str
    root: Callable[[str], str]
    targets: Mapping[str, str]
    authorization: str
    read: Callable[[str, Any, Mapping[str, str]], HostPage]
    parse: Callable[[Any], HostedRepository]
    git_user: str = "x-access-token"
    clone_path: str = ""
    stamp_resolution_seconds: float | None = 60.0
    headers: tuple[tuple[str, str], ...] = ()
    pulls: str = ""
    pull_ref: str = "refs/pull/{}/head"
    readers: tuple[str, ...] = ()
    reader: Callable[[Any], str] = str
    unlisted: frozenset[str] = frozenset()


def _identifier(value: Any) -> str:
    """Return an id as text. Raises TypeError for what no host uses: two such values may look the same."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError("not an id")
    return str(value)


def _github(item: Any) -> HostedRepository:
    visibility: Visibility = item.get("visibility") or ("private" if item["private"] else "public")
    return HostedRepository(
        _identifier(item["id"]), item["full_name"], item.get("default_branch") or "", item.get("pushed_at") or "",
        bool(item.get("archived")), bool(item.get("fork")), visibility, tuple(item.get("topics") or ()),
        1024 * int(item.get("size") or 0),
    )  # fmt: skip


def _gitlab(item: Any) -> HostedRepository:
    size = (item.get("statistics") or {}).get("repository_size") or 0
    visibility: Visibility = item.get("visibility") or "private"
    if item.get("repository_access_level", "enabled") != "enabled":  # the project may be public, its code is not
        visibility = "private"
    return HostedRepository(
        _identifier(item["id"]), item["path_with_namespace"], item.get("default_branch") or "",
        item.get("last_activity_at") or "", bool(item.get("archived")), bool(item.get("forked_from_project")),
        visibility, tuple(item.get("topics") or item.get("tag_list") or ()), int(size),
    )  # fmt: skip


def _gitea(item: Any) -> HostedRepository:
    is_limited = item.get("internal") or (item.get("owner") or {}).get("visibility", "public") != "public"
    visibility: Visibility = "private" if item["private"] else "internal" if is_limited else "public"
    return HostedRepository(
        _identifier(item["id"]), item["full_name"], item.get("default_branch") or "", item.get("updated_at") or "",
        bool(item.get("archived")), bool(item.get("fork")), visibility, tuple(item.get("topics") or ()),
        1024 * int(item.get("size") or 0),
    )  # fmt: skip


def _bitbucket_cloud(item: Any) -> HostedRepository:
    return HostedRepository(
        _identifier(item["uuid"]), item["full_name"], (item.get("mainbranch") or {}).get("name") or "",
        item.get("updated_on") or "", fork=item.get("parent") is not None,
        visibility="private" if item["is_private"] else "public", size_bytes=int(item.get("size") or 0),
    )  # fmt: skip


def _bitbucket_server(item: Any) -> HostedRepository:
    return HostedRepository(
        _identifier(item["id"]), f"{item['project']['key'].lower()}/{item['slug']}",
        archived=bool(item.get("archived")), fork=item.get("origin") is not None,
        visibility="public" if item.get("public") else "private",
    )  # fmt: skip


def _github_reader(item: Any) -> str:
    return item["login"] if item["permissions"]["pull"] is True else ""


def _gitlab_reader(item: Any) -> str:
    is_active = item["state"] == "active" and item.get("membership_state", "active") == "active"
    return item["username"] if is_active and item["access_level"] >= _GITLAB_REPORTER else ""


def _gitea_reader(item: Any) -> str:
    if "units_map" not in item:
        login: str = item["login"]
        return login
    may_read = item["units_map"].get("repo.code") in ("read", "write", "admin", "owner")
    return f"/teams/{item['id']}/members?limit=50&page=1" if may_read else ""


def _linked(url: str, body: Any, headers: Mapping[str, str]) -> HostPage:
    """Read a page from a host that gives the next page in the ``Link`` header."""
    found = _NEXT.search(headers.get("Link") or "")
    total = headers.get("X-Total") or headers.get("X-Total-Count") or ""
    return HostPage(body, found[1] if found else "", int(total) if total.isdecimal() else None)


def _embedded(url: str, body: Any, headers: Mapping[str, str]) -> HostPage:
    return HostPage(body["values"], body.get("next") or "", body.get("size"))


def _numbered(url: str, body: Any, headers: Mapping[str, str]) -> HostPage:
    if body["isLastPage"]:
        return HostPage(body["values"])
    return HostPage(body["values"], re.sub(r"&start=\d+$", "", url) + f"&start={int(body['nextPageStart'])}")


_API_OF: dict[str, HostApi] = {
    "github": HostApi(
        "https://github.com",
        lambda site: "https://api.github.com" if site == "https://github.com" else f"{site}/api/v3",
        {
            "org": "/orgs/{owner}/repos?per_page=100&type=all&sort=created&direction=asc",
            "user": "/users/{owner}/repos?per_page=100&type=owner&sort=created&direction=asc",
            "": "/user/repos?per_page=100&sort=created&direction=asc",
        },
        "Bearer {token}",
        _linked,
        _github,
        headers=(("Accept", "application/vnd.github+json"), ("X-GitHub-Api-Version", "2022-11-28")),
        pulls="/repos/{path}/pulls?state=open&per_page=100&sort=created&direction=asc",
        readers=("/repos/{path}/collaborators?affiliation=all&per_page=100",),
        reader=_github_reader,
    ),
    "gitlab": HostApi(
        "https://gitlab.com",
        lambda site: f"{site}/api/v4",
        {
            "group": "/groups/{owner}/projects?include_subgroups=true&with_shared=false"
            "&per_page=100&order_by=id&sort=asc",
            "user": "/users/{owner}/projects?per_page=100&order_by=id&sort=asc",
            "": "/projects?membership=true&pagination=keyset&per_page=100&order_by=id&sort=asc",
        },
        "Bearer {token}",
        _linked,
        _gitlab,
        git_user="oauth2",
        stamp_resolution_seconds=7200.0,  # last_activity_at is raised at most once an hour
        pulls="/projects/{id}/merge_requests?state=opened&per_page=100&order_by=created_at&sort=asc",
        pull_ref="refs/merge-requests/{}/head",
        readers=("/projects/{id}/members/all?per_page=100",),
        reader=_gitlab_reader,
        unlisted=frozenset({"max_size"}),  # the projects of a group have no statistics
    ),
    "gitea": HostApi(
        "https://gitea.com",
        lambda site: f"{site}/api/v1",
        {
            "org": "/orgs/{owner}/repos?limit=50&page=1",
            "user": "/users/{owner}/repos?limit=50&page=1",
            "": "/user/repos?limit=50&page=1",
        },
        "token {token}",
        _linked,
        _gitea,
        pulls="/repos/{path}/pulls?state=open&limit=50&page=1",
        readers=("/repos/{path}/collaborators?limit=50&page=1", "/repos/{path}/teams"),
        reader=_gitea_reader,
    ),
    "bitbucket": HostApi(
        "https://bitbucket.org",
        lambda site: "https://api.bitbucket.org/2.0",
        {"org": "/repositories/{owner}?pagelen=100&sort=created_on"},
        "Bearer {token}",
        _embedded,
        _bitbucket_cloud,
        git_user="x-token-auth",
        unlisted=frozenset({"topics", "archived"}),
    ),
}
_BITBUCKET_SERVER = HostApi(
    "",
    lambda site: f"{site}/rest/api/1.0",
    {"org": "/projects/{owner}/repos?limit=100", "": "/repos?limit=100"},
    "Bearer {token}",
    _numbered,
    _bitbucket_server,
    git_user="x-token-auth",
    clone_path="/scm",
    stamp_resolution_seconds=None,
    unlisted=frozenset({"topics", "max_size"}),
)
OWNERS: Mapping[str, frozenset[str]] = {
    "github": frozenset({"org", "user", ""}),
    "gitlab": frozenset({"group", "user", ""}),
    "gitea": frozenset({"org", "user", ""}),
    "bitbucket": frozenset({"org", ""}),
    "folder": frozenset({""}),
    "list": frozenset({""}),
}
"""The owner kinds supported by each provider; "" means everything that the token can read."""


def api_of(host: Host) -> HostApi:
    """Return the API of a host; Bitbucket has one for its cloud and one for its servers."""
    is_server = host.provider == "bitbucket" and host.url and host.site != _API_OF["bitbucket"].site
    return _BITBUCKET_SERVER if is_server else _API_OF[host.provider]

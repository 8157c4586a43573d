"""Hosts and their APIs: paging, unchanged pages, rate limits, renames and pushes, from the listing to the index."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

import driftline
from driftline.flows.commands.web import _access_rules, _reread
from driftline.flows.config.driftline_toml import load_config
from driftline.flows.runs import fleet as fleet_runs
from driftline.flows.runs.remove import remove_source
from driftline.flows.web import access
from driftline.flows.web.access import Authentication, TrustedProxy
from driftline.flows.web.api import Reader
from driftline.flows.web.server import Exposure, web_server
from driftline.storage.errors import AccessDenied, SourceConflict, SourceNotFound, StorageError, UsageError
from driftline.storage.sources import discovery, hosts
from driftline.storage.sources.discovery import (
    FleetSelection,
    HostListing,
    HostWaits,
    KnownPage,
    discover,
    open_pulls,
    readers_of,
)
from driftline.storage.sources.hosts import Host, HostedRepository
from driftline.storage.workspace.fleet_state import read_fleets, readable_by_login
from tests.servers.git_server import Checkout, GitServer, Reply, git
from tests.servers.host_api import PREFIXES, HostApi, Hosted, answering, failing, moved, throttled
from tests.support.fleets import Fleet, branches, rows, states
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.web import ask, serving

OWNERS = {"github": "org", "gitlab": "group", "gitea": "org", "cloud": "org", "server": "org"}


@pytest.fixture(params=list(PREFIXES))
def api(request: pytest.FixtureRequest, git_server: GitServer, monkeypatch: pytest.MonkeyPatch) -> HostApi:
    """A host of each kind; ``acme`` has five repositories on three pages."""
    found = HostApi(git_server, request.param, [Hosted(each, f"acme/r{each}") for each in range(1, 6)])
    git_server.api = found
    if request.param == "cloud":
        cloud = hosts._API_OF["bitbucket"]
        here = f"http://{git_server.host}"
        changed = replace(cloud, site=here, root=lambda site: f"{here}/2.0")
        monkeypatch.setitem(hosts._API_OF, "bitbucket", changed)
    return found


def host_of(api: HostApi, **options: Any) -> Host:
    provider: Any = "bitbucket" if api.provider in ("cloud", "server") else api.provider
    kind: Any = OWNERS[api.provider]
    return Host(provider, f"http://{api.server.host}", "acme", kind, **options)


def look(api: HostApi, last: HostListing | None = None, **options: Any) -> tuple[HostListing, list[float]]:
    """List a host and return the listing and the seconds waited."""
    waits: list[float] = []
    known, pages = (last.repositories, last.pages) if last is not None else ({}, ())
    host = host_of(api, **options)
    return discover(host, known, pages, environ={"TOKEN": "s3cret"}, sleep=waits.append), waits


def test_every_page_is_read_and_an_unchanged_one_is_not_sent_again(api: HostApi) -> None:
    first, _ = look(api)
    assert (len(first.repositories), first.is_complete, first.requests) == (5, True, 3)
    assert {each.path for each in first.repositories.values()} == {f"acme/r{number}" for number in range(1, 6)}
    second, _ = look(api, first)
    assert (second.repositories, second.unchanged_pages, api.not_modified) == (first.repositories, 3, 3)
    api.repositories[4].path = "acme/renamed"
    api.repositories.append(Hosted(6, "acme/r6"))
    third, _ = look(api, second)
    assert len(third.repositories) == 6
    assert third.is_complete
    assert "acme/renamed" in {each.path for each in third.repositories.values()}


def test_the_token_is_sent_to_the_host_by_its_own_scheme(api: HostApi, git_server: GitServer) -> None:
    api.token = "s3cret"
    assert isinstance(look(api)[0].failure, AccessDenied)
    assert look(api, variable="TOKEN")[0].is_complete
    with pytest.raises(UsageError, match="needs the variable TOKEN"):
        discover(host_of(api, variable="TOKEN"), environ={})


def test_a_token_may_end_in_a_newline_and_no_error_shows_it(api: HostApi) -> None:
    api.token = "s3cret"
    assert discover(host_of(api, variable="TOKEN"), environ={"TOKEN": "s3cret\n"}).is_complete
    for broken in ("s3cret\ns3cret", "s3cr\u00e9t", "s3cret\0"):
        with pytest.raises(UsageError, match="TOKEN does not contain a token") as raised:
            discover(host_of(api, variable="TOKEN"), environ={"TOKEN": broken})
        assert "s3c" not in str(raised.value)


def test_rate_limits_are_respected_and_long_ones_reported(api: HostApi) -> None:
    api.faults = [throttled(429, Retry_After="17"), lambda _: None, throttled(403, Retry_After="5")]
    listing, waits = look(api)
    assert (listing.is_complete, waits) == (True, [17.0, 5.0])
    now = datetime.now(UTC).timestamp()
    api.faults = [throttled(403, X_RateLimit_Remaining="0", X_RateLimit_Reset=str(int(now) + 300))]
    listing, waits = look(api)
    assert listing.is_complete
    assert 290 < waits[0] < 310
    api.faults = [lambda _: (403, {}, b'{"message": "You have exceeded a secondary rate limit"}')]
    assert look(api)[1] == [60.0]
    api.faults = [throttled(503, Retry_After=format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True))]
    assert 25 < look(api)[1][0] < 35
    api.faults = [throttled(429, Retry_After="86400")]
    listing, waits = look(api)
    assert (listing.is_complete, waits) == (False, [])
    assert "86,400 s" in str(listing.failure)


def test_a_failing_page_is_retried_and_a_lost_one_makes_the_listing_incomplete(api: HostApi) -> None:
    api.faults = [lambda _: None, failing(), failing(500)]
    listing, waits = look(api)
    assert (listing.is_complete, waits, len(listing.repositories)) == (True, [1.0, 2.0], 5)
    api.faults = [lambda _: None, failing(), failing(), failing()]
    listing, _ = look(api)
    assert (listing.is_complete, len(listing.repositories)) == (False, 2)
    assert isinstance(listing.failure, StorageError)
    api.faults = [failing(404)]
    assert isinstance(look(api)[0].failure, SourceNotFound)


def test_a_redirect_on_the_same_host_is_followed(api: HostApi, git_server: GitServer) -> None:
    api.faults = [moved("")]
    assert look(api)[0].is_complete


@pytest.mark.parametrize("fork", [False, True])
@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize("visibility", ["public", "internal", "private"])
def test_each_entry_of_a_listing_is_read_as_the_host_means_it(
    api: HostApi, visibility: Any, archived: bool, fork: bool
) -> None:
    if visibility == "internal" and api.provider in ("cloud", "server"):
        visibility = "private"  # which has no such level
    api.repositories[:] = [
        Hosted(7, "acme/app", "2024-05-06T07:08:09Z", "trunk", archived, fork, visibility, ("search", "Rust"), 2048)
    ]
    (found,) = look(api)[0].repositories.values()
    assert (found.path, found.visibility, found.id.strip("{}")) == ("acme/app", visibility, "7")
    lacking: dict[str, dict[str, Any]] = {
        "cloud": {"archived": False, "topics": ()},
        "server": {"fork": False, "topics": (), "branch": "", "changed": "", "size_bytes": 0},
        "gitlab": {"size_bytes": 0},
    }
    expected: dict[str, Any] = {"archived": archived, "fork": fork, "topics": ("search", "Rust"), "branch": "trunk"}
    expected |= {"changed": "2024-05-06T07:08:09Z", "size_bytes": 2 << 20} | lacking.get(api.provider, {})
    assert {name: getattr(found, name) for name in expected} == expected


SELECTING = {"topics": '["x"]', "archived": "false", "forks": "false", "visibility": '["public"]', "max_size": "9"}


@pytest.mark.parametrize("setting", SELECTING)
@pytest.mark.parametrize(
    ("provider", "unlisted"),
    [
        ('"github"\norg = "acme"', set()),
        ('"gitea"\norg = "acme"', set()),
        ('"gitlab"\ngroup = "acme"', {"max_size"}),
        ('"bitbucket"\norg = "acme"', {"topics", "archived"}),
        ('"bitbucket"\nurl = "https://code.example"\norg = "acme"', {"topics", "max_size"}),
        ('"folder"\nurl = "."', set(SELECTING)),
        ('"list"\nrepositories = ["git+https://code.example/a/b.git"]', set(SELECTING)),
    ],
)
def test_a_setting_that_a_host_cannot_answer_is_refused(
    tmp_path: Path, provider: str, unlisted: set[str], setting: str
) -> None:
    file = tmp_path / "driftline.toml"
    file.write_text(f"[[fleet]]\nprovider = {provider}\n")
    load_config(file)
    file.write_text(f"[[fleet]]\nprovider = {provider}\n{setting} = {SELECTING[setting]}\n")
    with pytest.raises(UsageError, match=f"select by {setting}") if setting in unlisted else nullcontext():
        load_config(file)


@pytest.mark.parametrize(
    ("selection", "chosen"),
    [
        (FleetSelection(), {"acme/app", "acme/old", "acme/deep/lib", "acme/copy"}),
        (FleetSelection(include=("acme/*",)), {"acme/app", "acme/old", "acme/copy"}),
        (FleetSelection(exclude=("lib",)), {"acme/app", "acme/old", "acme/copy"}),
        (FleetSelection(archived=False, forks=False), {"acme/app", "acme/deep/lib"}),
        (FleetSelection(topics=("Search",)), {"acme/app"}),
        (FleetSelection(visibility=("public",)), {"acme/app"}),
        (FleetSelection(max_size_bytes=4096), {"acme/app", "acme/old", "acme/copy"}),
    ],
)
def test_a_selection_narrows_what_a_host_lists(selection: FleetSelection, chosen: set[str]) -> None:
    found = [
        hosts.HostedRepository("1", "acme/app", visibility="public", topics=("search",)),
        hosts.HostedRepository("2", "acme/old", archived=True, size_bytes=4096),
        hosts.HostedRepository("3", "acme/deep/lib", size_bytes=4097),
        hosts.HostedRepository("4", "acme/copy", fork=True),
    ]
    why_not = selection.reasons()
    assert {each.path for each in found if not why_not(each)} == chosen


@pytest.mark.parametrize("api", ["github", "gitlab", "gitea"], indirect=True)
def test_a_pull_request_is_closed_only_if_the_host_says_so(api: HostApi) -> None:
    commits = {number: f"{number:040x}" for number in (4, 5, 9)}
    api.repositories[1].pulls = dict(commits)
    host, repository = host_of(api), HostedRepository("2", "acme/r2")
    assert open_pulls(host, repository, [4]) == (commits, "")
    api.repositories[1].closed = {4, 9}
    found = open_pulls(host, repository, [4, 9])
    assert found is not None
    commits_now, etag = found
    assert (commits_now, bool(etag)) == ({4: "", 5: commits[5], 9: ""}, True)
    assert open_pulls(host, repository, [5], etag) is None, "the listing is unchanged"
    api.faults = [answering(b"[]")]
    assert open_pulls(host, repository, [5]) == ({}, ""), "it is not listed, and the host says that it is open"
    api.faults = [lambda _: None, failing(404)]
    assert open_pulls(host, repository, [3, 4]) == ({4: "", 5: commits[5]}, ""), "a deleted one stops no other"
    api.faults = [failing(404)]
    with pytest.raises(SourceNotFound):
        open_pulls(host, repository, [5])
    for wrong in (
        b'[{"number": 1, "head": {"sha": "--upload-pack=x"}}]',
        b'[{"iid": "../1", "sha": ""}]',
        b"[7]",
        b"{}",
    ):
        api.faults = [answering(wrong)]
        with pytest.raises(StorageError):
            open_pulls(host, repository)


HOSTS_WITH_READERS = ["github", "gitlab", "gitea"]


def logins(pages: tuple[KnownPage, ...]) -> set[str]:
    return {each for page in pages for each in page.ids if each[0] not in "-/"}


@pytest.mark.parametrize("api", HOSTS_WITH_READERS, indirect=True)
def test_those_who_may_read_the_code_are_on_all_pages_of_all_teams(api: HostApi) -> None:
    hosted = api.repositories[1]
    hosted.readers, hosted.members = ["Ann", "bob", "c.d-e_f", "dan", "eve"], ["guest", "issues-only"]
    if api.provider == "gitea":
        hosted.teams = {4: ["fay", "gil", "hal"], 5: ["Ann"]}
    host, repository = host_of(api), HostedRepository("2", "acme/r2")
    first = readers_of(host, repository)
    in_teams = {"fay", "gil", "hal"} if hosted.teams else set()
    assert logins(first) == {"ann", "bob", "c.d-e_f", "dan", "eve"} | in_teams
    api.not_modified = 0
    assert readers_of(host, repository, first) == first
    unchanged = len([page for page in first if page.etag])
    assert api.not_modified == unchanged >= 3
    hosted.readers.remove("dan")
    assert logins(readers_of(host, repository, first)) == logins(first) - {"dan"}


@pytest.mark.parametrize("api", ["gitea"], indirect=True)
def test_a_team_is_asked_once_for_all_its_repositories(api: HostApi) -> None:
    for hosted in api.repositories:
        hosted.visibility, hosted.readers, hosted.teams = "private", ["ann"], {4: ["fay"]}
    host, listing = host_of(api), HostListing()
    repositories = [HostedRepository(str(each), f"acme/r{each}") for each in (1, 2, 3)]
    first = [readers_of(host, each, listing=listing) for each in repositories]
    assert {frozenset(logins(pages)) for pages in first} == {frozenset({"ann", "fay"})}
    assert listing.requests == len(api.served) == 2 * 3 + 1
    again = HostListing()
    assert [
        readers_of(host, each, pages, listing=again) for each, pages in zip(repositories, first, strict=True)
    ] == first
    assert (again.requests, again.unchanged_pages) == (7, 4), "this host gives a list of teams no etag"


@pytest.mark.parametrize("api", HOSTS_WITH_READERS, indirect=True)
def test_an_incomplete_list_of_readers_is_an_error(api: HostApi) -> None:
    api.repositories[1].readers = ["ann", "bob", "eve"]
    host, repository = host_of(api), HostedRepository("2", "acme/r2")
    circle = {"Link": f'<http://{api.server.host}{PREFIXES[api.provider]}x>; rel="next"'}
    wrong: list[tuple[list[Any], type[Exception]]] = [
        ([failing(403)], AccessDenied),
        ([failing(401)], AccessDenied),
        ([failing(404)], SourceNotFound),
        ([failing(500)] * 3, StorageError),
        ([lambda _: None, *[failing()] * 3], StorageError),
        ([lambda _: None, failing(404)], SourceNotFound),
        ([moved("http://elsewhere.example")], StorageError),
        ([lambda _: (200, circle, b"[]")] * 3, StorageError),
        ([lambda _: (304, {}, b"")], StorageError),
        *(([answering(body)], StorageError) for body in (b"{}", b"", b"[7]", b"[{}]", b'[{"login": 7}]', b"[null]")),
    ]
    if api.provider != "github":  # which does no counting
        api.repositories[1].members = ["guest"]
        cut = json.dumps(api.repositories[1].people(api.provider)[:1]).encode()
        totals = {"X-Total": "3", "X-Total-Count": "3"}
        wrong.append(([lambda _: (200, totals, cut), *[answering(b"[]")] * 3], StorageError))
    for faults, error in wrong:
        api.faults = list(faults)
        with pytest.raises(error):
            readers_of(host, repository, sleep=abs)
    api.faults = []
    assert logins(readers_of(host, repository)) == {"ann", "bob", "eve"}


@pytest.mark.parametrize("api", ["github"], indirect=True)
def test_requests_to_one_host_share_a_limit_on_waiting(api: HostApi) -> None:
    limit, waits, host = HostWaits(), list[float](), host_of(api)
    for answered in (1, 2):
        api.faults = [throttled(429, Retry_After="400")]
        assert discover(host, limit=limit, sleep=waits.append).is_complete
        assert waits == [400.0] * answered
    api.faults = [throttled(429, Retry_After="400")]
    assert "requires a wait of 400 s" in str(discover(host, limit=limit, sleep=waits.append).failure)
    asked = len(api.served)
    assert "requires a wait of 400 s" in str(discover(host, limit=limit, sleep=waits.append).failure)
    assert (len(waits), len(api.served)) == (2, asked), "it is not asked again"


@pytest.mark.parametrize("api", ["github"], indirect=True)
def test_concurrent_requests_wait_together(api: HostApi) -> None:
    limit, waits, host, both = HostWaits(), list[float](), host_of(api), threading.Barrier(2)

    def limited(_: str) -> Reply:
        both.wait(PATIENCE_SECONDS)
        return 429, {"Retry-After": "600"}, b""

    api.faults = [limited, limited]
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(discover, host, limit=limit, sleep=waits.append) for _ in range(2)]
    assert [each.result().failure for each in found] == [None, None]
    assert waits == [600.0]


# -- from the listing to the index --------------------------------------------------------------


@pytest.fixture
def hosted(git_server: GitServer, tmp_path: Path, tiny_model: Path) -> tuple[Fleet, HostApi, dict[int, Checkout]]:
    """A fleet on a self-hosted GitHub; git also serves its three ``acme`` repositories."""
    (git_server.root / "acme").mkdir()
    api = HostApi(git_server, "github", [])
    trees: dict[int, Checkout] = {}
    for number in (1, 2, 3):
        name = f"acme/r{number}"
        trees[number] = Checkout.of(git_server.create(f"{name}.git"), tmp_path / "trees" / name)
        trees[number].write(f"f{number}.md", f"file {number}\n")
        trees[number].push()
        api.repositories.append(Hosted(number, name))
    git_server.api = api
    table = f'[[fleet]]\nprovider = "github"\nurl = "http://{git_server.host}"\norg = "acme"\n'
    return Fleet(tmp_path, tiny_model, table), api, trees


def git_requests(server: GitServer) -> list[str]:
    requested = [each.path for each in server.requested if ".git/" in each.path]
    server.requested.clear()
    return requested


def test_a_repository_whose_line_is_unchanged_costs_no_request_of_git(
    hosted: tuple[Fleet, HostApi, dict[int, Checkout]], git_server: GitServer
) -> None:
    fleet, api, trees = hosted
    first = fleet.sync()
    assert set(states(first).values()) == {"indexed"}
    assert rows(first)["acme/r1"]["entity"] == "org:acme/project:default/source:r1"
    git_requests(git_server)
    second = fleet.sync()
    assert (second["to_index"], git_requests(git_server), second["fleets"][0]["unchanged_pages"]) == ([], [], 2)
    trees[2].write("new.md", "pushed\n")
    trees[2].push()
    api.repositories[1].pushed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert len(fleet.sync()["to_index"]) == 1
    assert all("r2.git" in path for path in git_requests(git_server))
    trees[2].write("new.md", "pushed in the same second\n")
    commit = trees[2].push()
    assert rows(fleet.sync())["acme/r2"]["indexed"] == commit, "a push this second leaves the time as it was"
    git_requests(git_server)
    fleet.now += timedelta(days=1)
    fleet.sync()
    assert len({path.partition(".git")[0] for path in git_requests(git_server)}) == 3, "once a day, all are asked"


def test_a_renamed_repository_keeps_its_entity_and_its_lines(
    hosted: tuple[Fleet, HostApi, dict[int, Checkout]], git_server: GitServer
) -> None:
    fleet, api, _ = hosted
    entity = rows(fleet.sync())["acme/r1"]["entity"]
    api.repositories[0].path = "acme/better"
    (git_server.root / "acme/r1.git").rename(git_server.root / "acme/better.git")
    report = fleet.sync()
    assert report["to_index"] == [entity]
    assert (rows(report)["acme/better"]["entity"], rows(report)["acme/better"]["state"]) == (entity, "indexed")
    (record,) = [record for each, record in fleet.workspace.sources() if str(each) == entity]
    assert record.uri == git_server.url("acme/better.git")
    assert fleet.sync()["to_index"] == []
    api.repositories.append(Hosted(9, "acme/r1"))
    new = Checkout.of(git_server.create("acme/r1.git"), fleet.folder / "trees" / "new")
    new.write("other.md", "another project\n")
    new.push()
    report = fleet.sync()
    assert rows(report)["acme/r1"]["entity"].startswith("org:acme/project:default/source:r1-")
    assert fleet.documents()["r1"] == {"f1.md"}


def test_a_repository_that_still_answers_is_not_retired(
    hosted: tuple[Fleet, HostApi, dict[int, Checkout]], git_server: GitServer
) -> None:
    fleet, api, _ = hosted
    fleet.sync()
    del api.repositories[1]
    for _ in range(3):
        fleet.now += timedelta(days=10)
        report = fleet.sync()
    assert rows(report)["acme/r2"]["reason"] == "not listed, but it still responds"
    assert len(fleet.documents()) == 3
    (git_server.root / "acme/r2.git").rename(git_server.root / "elsewhere.git")
    assert states(fleet.sync())["acme/r2"] == "retired"


def test_an_incomplete_listing_is_indexed_and_deletes_nothing(
    hosted: tuple[Fleet, HostApi, dict[int, Checkout]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, api, trees = hosted
    monkeypatch.setattr(discovery, "ATTEMPTS", 1)
    fleet.sync()
    trees[1].write("new.md", "pushed\n")
    trees[1].push()
    api.repositories[0].pushed = "2021-01-01T00:00:00Z"
    for _ in range(3):
        fleet.now += timedelta(days=10)
        api.faults = [lambda _: None, failing()]
        report = fleet.sync()
    assert set(states(report).values()) == {"indexed"}
    assert (len(fleet.documents()), "new.md" in fleet.documents()["r1"]) == (3, True)


def test_a_repository_that_its_record_could_not_hold_makes_the_listing_incomplete(api: HostApi) -> None:
    api.repositories[1] = replace(api.repositories[1], pushed=20200101)  # type: ignore[arg-type]
    listing, _ = look(api)
    if api.provider == "server":  # which does not list times
        assert listing.is_complete
    else:
        assert (len(listing.repositories), listing.is_complete) == (4, False)
        assert "cannot be parsed" in listing.problems[0]


def test_a_page_that_repeats_a_repository_makes_the_listing_incomplete(api: HostApi) -> None:
    api.repositories[3] = api.repositories[1]  # a repository was created meanwhile and moved the others back
    listing, _ = look(api)
    assert (len(listing.repositories), listing.is_complete) == (4, False)
    assert "acme/r2 twice" in listing.problems[0]


def test_a_path_may_move_to_another_repository(
    hosted: tuple[Fleet, HostApi, dict[int, Checkout]], git_server: GitServer
) -> None:
    fleet, api, _ = hosted
    fleet.sync()
    api.repositories[0].path, api.repositories[1].path = "acme/r2", "acme/r1"
    for old, new in (("r1", "aside"), ("r2", "r1"), ("aside", "r2")):
        (git_server.root / f"acme/{old}.git").rename(git_server.root / f"acme/{new}.git")
    hidden = api.repositories.pop(1)
    fleet.sync()  # an incomplete listing without the other one
    assert fleet.documents() == {"r1": {"f1.md"}, "r2": {"f2.md"}, "r3": {"f3.md"}}
    api.repositories.append(hidden)
    fleet.sync()
    assert fleet.documents() == {"r1": {"f1.md"}, "r2": {"f2.md"}, "r3": {"f3.md"}}
    assert fleet.sync()["to_index"] == []
    api.repositories[0].id = 9  # deleted, then created again under the same name
    entities = {row["id"]: row["entity"] for row in fleet.sync()["fleets"][0]["repositories"]}
    assert entities["9"].startswith("org:acme/project:default/source:r2-")
    fleet.now += timedelta(days=8)
    fleet.sync()
    assert len(fleet.documents()) == 3
    assert {"f1.md"} in fleet.documents().values()


def test_an_archived_repository_can_leave_the_fleet(hosted: tuple[Fleet, HostApi, dict[int, Checkout]]) -> None:
    fleet, api, _ = hosted
    fleet.sync()
    fleet.tables += "archived = false\ngrace_days = 1\n"
    api.repositories[2].archived = True
    assert states(fleet.sync())["acme/r3"] == "excluded"
    fleet.now += timedelta(days=2)
    assert states(fleet.sync())["acme/r3"] == "retired"
    assert states(fleet.sync())["acme/r3"] == "excluded", "it is listed still"
    assert set(fleet.documents()) == {"r1", "r2"}


def test_the_token_reaches_the_api_and_git_and_no_file(
    hosted: tuple[Fleet, HostApi, dict[int, Checkout]],
    git_server: GitServer,
    monkeypatch: pytest.MonkeyPatch,
    driftline: Callable[..., Any],
) -> None:
    fleet, api, _ = hosted
    fleet.tables += 'token = "${ACME_TOKEN}"\n'
    config = fleet.config
    assert driftline("fleet", "sync", "--config", config).code == 2
    assert not (fleet.folder / "index").exists()
    monkeypatch.setenv("ACME_TOKEN", "s3cret-token")
    api.token = "s3cret-token"
    outcome = driftline("fleet", "sync", "--config", config, "--json")
    assert outcome.code == 0, outcome.err
    assert all(each.authorization for each in git_server.requested)
    written = [path for path in (fleet.folder / "index").rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if b"s3cret" in path.read_bytes()]
    assert "s3cret" not in outcome.out + outcome.err
    state = json.loads((fleet.folder / "index/_fleet.json").read_text())
    assert "ACME_TOKEN" not in json.dumps(state)


def test_a_private_repository_is_read_again_with_the_token_of_its_fleet(
    hosted: tuple[Fleet, HostApi, dict[int, Checkout]],
    git_server: GitServer,
    monkeypatch: pytest.MonkeyPatch,
    driftline: Callable[..., Any],
) -> None:
    fleet, api, trees = hosted
    fleet.tables += 'token = "${ACME_TOKEN}"\n'
    monkeypatch.setenv("ACME_TOKEN", "s3cret-token")
    monkeypatch.setenv("DRIFTLINE_CONFIG", str(fleet.config))
    api.token = "s3cret-token"
    user = base64.b64encode(b"x-access-token:s3cret-token").decode()
    git_server.authorization = f"Basic {user}"
    assert set(states(fleet.sync()).values()) == {"indexed"}
    entity = next(entity for entity, _ in fleet.workspace.sources() if entity.id == "r1")
    fleet.workspace.lines(entity).open().delete("path = 'f1.md'")
    repaired = driftline("verify", "--repair", "--json", "--workspace", fleet.folder / "index")
    assert (repaired.code, repaired.json["repaired"], repaired.json["skipped"]) == (0, 1, []), repaired.out
    record = fleet.workspace.source(entity)
    assert record is not None
    trees[1].write("later.md", "later\n")
    trees[1].push()
    index = ("index", record.uri, "--entity", entity, "--workspace", fleet.folder / "index")
    indexed = driftline(*index, "--json")
    assert (indexed.code, indexed.json["sources"][0]["new"]) == (0, 1), indexed.err
    assert "ACME_TOKEN" not in indexed.out + repaired.out
    monkeypatch.delenv("DRIFTLINE_CONFIG")
    assert driftline(*index).code == 2


def test_open_pull_requests_are_branches_until_the_host_closes_them(
    hosted: tuple[Fleet, HostApi, dict[int, Checkout]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, api, trees = hosted
    fleet.tables += "pull_requests = true\n"
    monkeypatch.setattr(discovery, "ATTEMPTS", 1)

    def propose(number: int, text: str) -> None:
        """Push a fork's commit that only its pull request ref contains."""
        trees[1].write("fork.md", text)
        api.repositories[0].pulls[number] = trees[1].push(f"fork{number}")
        remote = trees[1].remote
        git(remote, "update-ref", f"refs/pull/{number}/head", f"fork{number}")
        git(remote, "branch", "-D", f"fork{number}")

    for number in range(4, 9):
        propose(number, "first\n")
    first = fleet.sync()
    assert {each["name"] for each in first["branches"]} == {f"pr/{number}" for number in range(4, 9)}
    assert branches(fleet) == {"r1": {f"pr/{number}": {"f1.md", "fork.md"} for number in range(4, 9)}}
    assert fleet.documents()["r1"] == {"f1.md"}, "no text of a fork is in the main index"
    propose(7, "second\n")
    api.repositories[0].closed = {4, 5, 6, 8}
    changes = {each["name"]: each["commit"] for each in fleet.sync()["branches"]}
    assert changes == {"pr/7": api.repositories[0].pulls[7]} | dict.fromkeys(("pr/4", "pr/5", "pr/6", "pr/8"))
    assert set(branches(fleet)["r1"]) == {"pr/7"}
    requests = len(api.served)
    assert fleet.sync()["branches"] == []
    assert len(api.served) - requests == 5, "two pages of repositories, and one of pull requests for each"
    api.repositories[0].closed.add(7)
    api.faults = [lambda _: None, lambda _: None, *[failing()] * 3]
    report = fleet.sync()
    assert "the host failed" in rows(report)["acme/r1"]["pull_requests_problem"].lower()
    assert set(branches(fleet)["r1"]) == {"pr/7"}, "a host that fails closes nothing"
    assert (report["fleets"][0]["complete"], fleet.has_failed) == (True, True)
    report = fleet.sync()
    assert not any(row["pull_requests_problem"] for row in rows(report).values())
    assert not fleet.has_failed
    assert branches(fleet) == {}
    api.repositories[0].closed.clear()
    assert len(fleet.sync()["branches"]) == 5
    fleet.tables = fleet.tables.replace("pull_requests = true\n", "")
    fleet.sync()
    assert branches(fleet) == {}


def test_a_sync_stops_asking_for_pull_requests_at_the_first_wait_that_is_too_long(
    hosted: tuple[Fleet, HostApi, dict[int, Checkout]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, api, _ = hosted
    fleet.tables += "pull_requests = true\n"
    monkeypatch.setattr(fleet_runs, "CONCURRENT_LOOKUPS", 1)
    api.faults = [lambda _: None, lambda _: None, throttled(429, Retry_After="86400")]
    report = fleet.sync()
    assert all("86,400 s" in row["pull_requests_problem"] for row in rows(report).values())
    assert not [each for each in api.served if "/pulls" in each]
    assert report["fleets"][0]["problems"] == ["the pull requests of 3 repositories cannot be listed"]
    fleet.tables = fleet.tables.replace("pull_requests = true\n", "")
    fleet.sync()
    assert not fleet.has_failed
    fleet.tables += fleet.tables.replace("[[fleet]]", '[[fleet]]\nname = "again"')
    asked, api.faults = len(api.served), [throttled(429, Retry_After="86400")]
    assert [each["complete"] for each in fleet.sync()["fleets"]] == [False, False]
    assert len(api.served) == asked, "the second fleet has the same host and token"


def readable(fleet: Fleet) -> dict[str, set[str]]:
    """Return the source ids that each login may read."""
    (record,) = read_fleets(fleet.workspace.objects).values()
    return {login: {entity.id for entity, _ in found} for login, found in readable_by_login(record).items()}


def test_the_last_list_of_readers_is_valid_until_the_host_denies_access(
    hosted: tuple[Fleet, HostApi, dict[int, Checkout]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, api, _ = hosted
    monkeypatch.setenv("ACME_TOKEN", "s3cret")
    monkeypatch.setattr(discovery, "ATTEMPTS", 1)
    monkeypatch.setattr(fleet_runs, "CONCURRENT_LOOKUPS", 1)
    fleet.tables += 'token = "${ACME_TOKEN}"\nreaders = "{login}"\n'
    one, two, three = api.repositories
    one.readers, two.readers, three.visibility = ["Ann"], ["ann", "bob"], "public"
    first = fleet.sync()
    assert readable(fleet) == {"ann": {"r1", "r2"}, "bob": {"r2"}, "": {"r3"}}
    assert not [each for each in api.served if "r3/collaborators" in each]
    asked_at = rows(first)["acme/r2"]["readers_at"]
    listing = [lambda _: None] * 2
    fleet.now += timedelta(hours=1)
    one.readers, three.visibility = ["bob"], "private"
    api.faults = [*listing, lambda _: None, failing(), failing()]
    report = fleet.sync()
    assert readable(fleet) == {"ann": {"r2"}, "bob": {"r1", "r2"}}, "nobody is known to read what was public"
    assert (rows(report)["acme/r2"]["readers_at"], fleet.has_failed) == (asked_at, True)
    assert report["fleets"][0]["problems"] == ["the readers of 2 repositories cannot be listed"]
    api.faults = [*listing, lambda _: None, failing(404), failing(403)]
    fleet.sync()
    assert readable(fleet) == {"bob": {"r1"}}
    fleet.sync()
    assert not fleet.has_failed
    assert readable(fleet) == {"ann": {"r2"}, "bob": {"r1", "r2"}}
    del api.repositories[1]
    fleet.sync()
    assert readable(fleet) == {"bob": {"r1"}}, "the index still has it"
    fleet.tables += 'exclude = ["r1"]\n'
    fleet.sync()
    assert readable(fleet) == {}


@pytest.mark.parametrize("provider", HOSTS_WITH_READERS)
def test_a_repository_that_was_public_is_readable_only_by_its_current_readers(
    provider: str, git_server: GitServer, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (git_server.root / "acme").mkdir()
    tree = Checkout.of(git_server.create("acme/r1.git"), tmp_path / "tree")
    tree.write("a.md", "text\n")
    tree.push()
    repository = Hosted(1, "acme/r1", teams={4: ["fay"]} if provider == "gitea" else {})
    api = git_server.api = HostApi(git_server, provider, [repository])
    owner = f'{OWNERS[provider]} = "acme"\nname = "f"\n'
    table = f'[[fleet]]\nprovider = "{provider}"\nurl = "http://{git_server.host}"\n{owner}'
    fleet = Fleet(tmp_path, tiny_model, table + 'token = "${ACME_TOKEN}"\nreaders = "{login}"\n')
    monkeypatch.setenv("ACME_TOKEN", "s3cret")
    monkeypatch.setattr(discovery, "ATTEMPTS", 1)
    team = {"fay"} if provider == "gitea" else set[str]()
    for visibility, readers, status, expected in [
        ("private", ["ann"], 200, {"ann"} | team),
        ("public", ["ann"], 200, {""}),
        ("public", ["ann"], 500, {""}),
        ("private", ["bob"], 500, set()),
        ("private", ["bob"], 200, {"bob"} | team),
        ("private", ["ann"], 500, {"bob"} | team),
        ("internal", ["ann"], 200, {"ann"} | team),
        ("public", [], 200, {""}),
        ("internal", ["ann"], 403, set()),
        ("private", [], 200, team),
    ]:
        repository.visibility, repository.readers = visibility, readers
        api.faults = [lambda _: None, *([failing(status)] if status != 200 else [])]
        fleet.now += timedelta(hours=1)
        fleet.sync()
        assert set(readable(fleet)) == expected, (visibility, status)


@pytest.mark.parametrize("url", ["", 'url = "https://code.example"\n'])
def test_a_host_that_lists_no_readers_is_refused_as_their_source(tmp_path: Path, url: str) -> None:
    (tmp_path / "driftline.toml").write_text(
        f'[[fleet]]\nprovider = "bitbucket"\n{url}org = "acme"\ntoken = "${{T}}"\nreaders = "{{login}}"\n'
    )
    with pytest.raises(UsageError, match="readers"):
        load_config(tmp_path / "driftline.toml")


def test_another_source_cannot_take_the_place_of_a_repository_that_has_readers(
    hosted: tuple[Fleet, HostApi, dict[int, Checkout]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fleet, api, _ = hosted
    monkeypatch.setenv("ACME_TOKEN", "s3cret")
    fleet.tables += 'token = "${ACME_TOKEN}"\nreaders = "{login}"\nentity = "source:{name}"\n'
    for each in api.repositories:
        each.readers = ["ann"]
    fleet.sync()
    entity = next(str(entity) for entity, _ in fleet.workspace.sources() if entity.id == "r1")
    (tmp_path / "salaries").mkdir()
    (tmp_path / "salaries" / "all.md").write_text("the salary of everyone\n")
    where = fleet.workspace.objects.uri
    with pytest.raises(SourceConflict, match="whose host determines its readers"):
        driftline.index(str(tmp_path / "salaries"), workspace=where, entity=entity, rebind=True)
    remove_source(where, entity)
    with pytest.raises(SourceConflict, match="whose host determines its readers"):
        driftline.index(str(tmp_path / "salaries"), workspace=where, entity=entity)
    (tmp_path / "salaries").rename(tmp_path / "r1")  # whose default entity is that of the repository
    with pytest.raises(SourceConflict, match="whose host determines its readers"):
        driftline.index(str(tmp_path / "r1"), workspace=where)


def test_a_page_that_was_read_by_other_rules_is_requested_again(
    hosted: tuple[Fleet, HostApi, dict[int, Checkout]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, api, _ = hosted
    fleet.sync()
    with monkeypatch.context() as patch:
        patch.setattr(discovery, "READING", discovery.READING - 1)
        api.repositories[2].visibility = "public"
        fleet.sync()
    (record,) = read_fleets(fleet.workspace.objects).values()
    assert {page.reading for page in record.pages} == {discovery.READING - 1}
    fleet.sync()
    (record,) = read_fleets(fleet.workspace.objects).values()
    assert {page.reading for page in record.pages} == {discovery.READING}


def test_a_user_of_the_proxy_finds_what_the_host_lets_them_read(
    hosted: tuple[Fleet, HostApi, dict[int, Checkout]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, api, _ = hosted
    monkeypatch.setenv("ACME_TOKEN", "s3cret")
    fleet.tables += 'token = "${ACME_TOKEN}"\nreaders = "{login}@acme.example"\n'
    fleet.tables += '[access.users]\nroot = ["org:acme"]\n'
    for each, readers in zip(api.repositories, (["Ann"], ["ann", "bob"], []), strict=True):
        each.readers = readers
    fleet.sync()
    monkeypatch.chdir(fleet.config.parent)
    workspace, proxy = fleet.workspace, TrustedProxy("X-User", [ip_network("127.0.0.0/8")])
    rules = _access_rules(workspace, proxy)
    assert rules is not None
    known = _reread(rules, workspace, proxy)
    exposure = Exposure(authentication=Authentication(proxy=proxy, rules=known))
    with serving(web_server(Reader(workspace.reread), "127.0.0.1", 0, exposure)) as address:

        def found(user: str) -> set[str]:
            answer = ask(address, "/api/v1/search?q=file&mode=text", X_User=user)
            return {hit["path"] for hit in json.loads(answer.body)["results"]} if answer.status == 200 else set()

        assert found("ann@acme.example") == found("ANN@Acme.example") == {"f1.md", "f2.md"}
        assert found("bob@acme.example") == {"f2.md"}
        assert found("root") == {"f1.md", "f2.md", "f3.md"}
        for nobody in ("ann", "ann@evil.example", "eve@acme.example", "@acme.example", "{login}@acme.example"):
            assert found(nobody) == set(), nobody
        api.repositories[0].readers = []
        fleet.sync()
        assert rules.readers is not None
        rules.readers._tried_at = -access.STALE_SECONDS
        assert found("ann@acme.example") == {"f2.md"}
        fleet.tables = fleet.tables.replace("root =", "other =")
        assert fleet.config.is_file()
        known._tried_at = -access.STALE_SECONDS
        assert (found("root"), found("other")) == (set(), {"f1.md", "f2.md", "f3.md"})
        for cached in (known, rules.readers):  # no request for a while
            cached._tried_at = cached._read_at = -access.STALE_SECONDS
        assert found("ann@acme.example") == {"f2.md"}
        fleet.config.unlink()
        known._tried_at = known._read_at = -access.STALE_SECONDS
        assert (found("other"), found("ann@acme.example")) == (set(), set())


def test_a_fleet_without_an_api_has_no_pull_requests(hosted: tuple[Fleet, HostApi, dict[int, Checkout]]) -> None:
    fleet, _, _ = hosted
    fleet.tables = '[[fleet]]\nprovider = "folder"\nurl = "."\npull_requests = true\n'
    with pytest.raises(UsageError, match="does not support pull requests"):
        fleet.sync()

"""Store fleet state: the repositories listed by the hosts, their indexed commits, and failures.

``_fleet.json`` contains the state of all fleets; one sync at a time writes it, under a separate lease. Pure functions
decide what follows from a listing: an incomplete listing removes nothing, a renamed repository keeps its entity, and a
missing one is kept for a grace period.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

from driftline.storage.entities import Entity, normalized_name
from driftline.storage.errors import AccessDenied, DriftlineError, ObjectNotFound, SourceNotFound
from driftline.storage.json_records import to_json
from driftline.storage.layout import FLEET
from driftline.storage.leases.lease import Lease
from driftline.storage.objects.store import ObjectStore
from driftline.storage.sources.discovery import HostListing, KnownPage, parse_timestamp
from driftline.storage.sources.hosts import Host, HostedRepository
from driftline.storage.workspace.records import FORMAT_VERSION, parse_record, read_record, update_record

State = Literal["new", "indexed", "behind", "empty", "failing", "missing", "excluded"]

FIRST_BACKOFF = timedelta(minutes=5)
MAX_BACKOFF = timedelta(days=1)
LOOKED_AT_AGAIN_AFTER = timedelta(days=1)
"""A repository's commit is looked up at least this often, even if the host lists no change."""
RETIRED_AFTER_MISSES = 2
"""How many complete listings must lack a repository before it may be retired, even if the grace period is short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBranch:
    """A repository branch: its ``commit``, "" once it is deleted, and the ``indexed`` commit.

    The commit was indexed from ``uri`` with ``settings``. ``pull`` is the number of a pull request.
    """

    pull: int = 0
    commit: str = ""
    indexed: str = ""
    uri: str = ""
    settings: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownReaders:
    """The readers of a repository, as reported by its host at ``at``: ``everyone``, or the logins on ``pages``."""

    at: datetime
    everyone: bool = False
    pages: tuple[KnownPage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRepository:
    """A fleet repository.

    ``commit`` is the commit that the host reported at the last lookup, at ``looked_at``; ``stamp`` is the host's stamp
    at that time, "" if a later push might not have changed it. ``indexed`` is the commit in the index, indexed with
    ``settings``, and ``behind_since`` the first time that it was behind. ``missed_since`` and ``misses`` count complete
    listings that lack it, and ``empty_since`` is when the indexed branch was first seen without a commit. ``excluded``
    says why it does not belong to the fleet. ``uri`` is the source's URI; after an interrupted run, the source may have
    one of ``other_uris`` instead. ``branches`` has the other branches that match the ``followed`` globs, keyed by their
    names in the index; ``skipped_branches`` says why matching ones cannot be indexed. Open pull requests are among the
    branches: ``pulls_etag`` is the etag of their last listing, and ``pulls_problem`` says why there is no newer
    listing. ``readers`` is the last complete list of who may read it, and ``readers_problem`` says why there is no
    newer.
    """

    listed: HostedRepository
    entity: str = ""
    uri: str = ""
    other_uris: tuple[str, ...] = ()
    former_path: str = ""
    commit: str = ""
    stamp: str = ""
    looked_at: datetime | None = None
    indexed: str = ""
    indexed_at: datetime | None = None
    settings: str = ""
    behind_since: datetime | None = None
    missed_since: datetime | None = None
    misses: int = 0
    empty_since: datetime | None = None
    excluded: str = ""
    failures: int = 0
    retry_at: datetime | None = None
    reason: str = ""
    branches: dict[str, KnownBranch] = field(default_factory=dict)
    followed: tuple[str, ...] = ()
    skipped_branches: dict[str, str] = field(default_factory=dict)
    pulls_etag: str = ""
    pulls_problem: str = ""
    readers: KnownReaders | None = None
    readers_problem: str = ""

    @property
    def state(self) -> State:
        """The repository's state, in one word."""
        if self.excluded:
            return "excluded"
        if self.missed_since is not None:
            return "missing"
        if self.failures:
            return "failing"
        if self.looked_at is not None and not self.commit:
            return "empty"
        if not self.indexed:
            return "new"
        return "behind" if self.behind_since is not None else "indexed"

    @property
    def uris(self) -> set[str]:
        """The URIs that its source may have; empty if it was never indexed."""
        return {self.uri, *self.other_uris} - {""}

    @property
    def pulls(self) -> frozenset[int]:
        """The numbers of its known pull requests."""
        return frozenset(each.pull for each in self.branches.values() if each.pull)

    def lag_seconds(self, now: datetime) -> float:
        """Return how long the index has been known to be behind a repository that the fleet still has."""
        if self.behind_since is None or self.excluded or self.missed_since is not None:
            return 0.0
        return (now - self.behind_since).total_seconds()

    def needs_lookup(self, now: datetime, *, is_current: bool, retry: bool, branch_globs: tuple[str, ...]) -> bool:
        """Return whether to ask the host for the commit, which is not necessary if the listing shows no push.

        ``is_current`` means that the current listing has the repository; if not, another repository may now have its
        path. ``retry`` ignores the repository's backoff. ``branch_globs`` are the fleet's.
        """
        if not is_current or self.excluded or (self.is_waiting(now) and not retry):
            return False
        is_quiet = bool(self.stamp) and self.stamp == self.listed.stamp and not self.failures
        is_quiet &= self.followed == branch_globs
        return not is_quiet or self.looked_at is None or now - self.looked_at >= LOOKED_AT_AGAIN_AFTER

    def is_waiting(self, now: datetime) -> bool:
        """Return whether the repository failed and is waiting for its next attempt."""
        return self.retry_at is not None and now < self.retry_at

    def failed(self, error: DriftlineError, now: datetime) -> KnownRepository:
        """Return the repository after another failure; each failure doubles the delay before the next attempt."""
        pause = min(FIRST_BACKOFF * 2 ** min(self.failures, 20), MAX_BACKOFF)
        return replace(self, failures=self.failures + 1, retry_at=now + pause, reason=str(error), stamp="")

    def at_commit(self, commit: str, now: datetime, settings: str, *, stamp: str) -> KnownRepository:
        """Return the repository updated with the ``commit`` reported by its host."""
        is_behind = bool(commit) and (commit, settings) != (self.indexed, self.settings)
        since = (self.behind_since or now) if is_behind else None
        empty_since = (self.empty_since or now) if self.uris and not commit else None
        reason = "" if commit else "its default branch has no commit"
        reason = "its branch no longer has a commit; the index keeps the last one" if empty_since else reason
        fine = replace(self, failures=0, retry_at=None, reason=reason, empty_since=empty_since)
        return replace(fine, commit=commit, looked_at=now, behind_since=since, stamp=stamp)

    def with_branches(
        self, commits: Mapping[str, str], skipped: Mapping[str, str], branch_globs: tuple[str, ...]
    ) -> KnownRepository:
        """Return the repository updated with the ``commits`` that its host reported for branches that match
        ``branch_globs``.

        ``skipped`` maps other branches to why they are not indexed.
        """
        others = {name: each for name, each in self.branches.items() if each.pull}
        gone = {name: replace(each, commit="") for name, each in self.branches.items()} | others
        known = {
            name: replace(self.branches.get(name, KnownBranch()), commit=commit) for name, commit in commits.items()
        }
        return replace(self, branches=gone | known, skipped_branches=dict(skipped), followed=branch_globs)

    def with_pulls(self, commits: Mapping[int, str], etag: str) -> KnownRepository:
        """Return the repository updated with its host's pull request ``commits``; "" marks closed pull requests."""
        named = {
            number: f"pr/{number}" for number, commit in commits.items() if commit or f"pr/{number}" in self.branches
        }
        known = {
            name: replace(self.branches.get(name, KnownBranch(pull=number)), commit=commits[number])
            for number, name in named.items()
        }
        return replace(self, branches=self.branches | known, pulls_etag=etag)

    def with_readers(self, answer: KnownReaders | DriftlineError) -> KnownRepository:
        """Return the repository after a request for its readers.

        If the host failed, the last list stays valid until it expires; if the host denied access, the list is dropped.
        """
        if isinstance(answer, KnownReaders):
            return replace(self, readers=answer)
        is_denied = isinstance(answer, AccessDenied | SourceNotFound)
        is_kept = self.readers is not None and not self.readers.everyone and not is_denied
        return replace(self, readers=self.readers if is_kept else None, readers_problem=str(answer))

    def with_indexed(self, name: str, uri: str, settings: str) -> KnownRepository:
        """Return the repository after a run indexed the commit of its branch called ``name``."""
        known = self.branches[name]
        done = replace(known, indexed=known.commit, uri=uri, settings=settings)
        return replace(self, branches=self.branches | {name: done})

    def indexed_next(self, *uris: str, is_new: bool = False) -> KnownRepository:
        """Return the repository to save before a run over any of ``uris``; a new index has no branches."""
        branches = {
            name: KnownBranch(pull=each.pull, commit=each.commit) if is_new else each
            for name, each in self.branches.items()
        }
        others = tuple(sorted({*self.uris, *uris} - {self.uri}))
        return replace(self, other_uris=others, branches=branches)

    def adopted_as(self, new: KnownRepository) -> KnownRepository:
        """Return the repository as listed by another fleet, ``new``, so that a renamed fleet keeps its index."""
        return replace(self, listed=new.listed, excluded=new.excluded, missed_since=None, misses=0)

    def indexed_at_commit(self, uri: str, now: datetime, settings: str) -> KnownRepository:
        """Return the repository after a run indexed its commit from ``uri``."""
        fine = replace(self, behind_since=None, failures=0, retry_at=None, reason="", former_path="")
        return replace(fine, indexed=self.commit, indexed_at=now, settings=settings, uri=uri, other_uris=())


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRecord:
    """The state of one fleet: its repositories, keyed by the host's id, and the pages of its last listing."""

    repositories: dict[str, KnownRepository] = field(default_factory=dict)
    pages: tuple[KnownPage, ...] = ()
    listed_at: datetime | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFile:
    """The content of ``_fleet.json``: the state of each fleet, keyed by its name."""

    format_version: int = FORMAT_VERSION
    fleets: dict[str, FleetRecord] = field(default_factory=dict)


def read_fleets(objects: ObjectStore) -> dict[str, FleetRecord]:
    """Return the state of each fleet, keyed by name. Raises CorruptFile, WorkspaceTooNew, StorageError."""
    found = read_record(objects, FLEET, FleetFile)
    return dict(found.fleets) if found is not None else {}


def write_fleets(objects: ObjectStore, fleets: Mapping[str, FleetRecord], lease: Lease) -> None:
    """Replace the state of ``fleets``, keeping the state of others; ``lease`` is the one at ``FLEET_LEASE``.

    Raises LeaseLost, PreconditionFailed if another process wrote it first, StorageError.
    """
    lease.check()
    try:
        data, version = objects.get_versioned(FLEET)
    except ObjectNotFound:
        objects.create(FLEET, to_json(FleetFile(fleets=dict(fleets)), compact=True))
        return
    known = parse_record(objects, FLEET, data, FleetFile)
    merged = known.fleets | dict(fleets)
    changed = replace(known, fleets={name: each for name, each in merged.items() if each != FleetRecord()})
    if changed != known:
        objects.replace(FLEET, to_json(changed, compact=True), version)


def forget_index(objects: ObjectStore, entity: Entity) -> None:
    """Let the next sync index the repository of ``entity`` again, because its index is gone or damaged.

    A sync that is running may write its own state later. Raises CommitConflict, CorruptFile, StorageError.
    """

    def forgotten(known: KnownRepository) -> KnownRepository:
        return replace(known, indexed="") if known.entity == str(entity) else known

    def change(file: FleetFile) -> FleetFile:
        fleets = {
            name: replace(each, repositories={at: forgotten(known) for at, known in each.repositories.items()})
            for name, each in file.fleets.items()
        }
        return replace(file, fleets=fleets)

    update_record(objects, FLEET, FleetFile, change, FleetFile())


# -- what follows from a listing -----------------------------------------------------------------------


def reconcile(
    known: Mapping[str, KnownRepository],
    listing: HostListing,
    why_not: Callable[[HostedRepository], str],
    now: datetime,
) -> dict[str, KnownRepository]:
    """Return the repositories after a listing: the listed ones, plus known ones missing from it.

    A repository counts as missing only if a complete listing lacks it. A missing repository that was never indexed is
    forgotten. A repository that the fleet no longer selects counts as missing, too. Problems with pull requests and
    readers are forgotten.
    """
    known = {identifier: replace(old, pulls_problem="", readers_problem="") for identifier, old in known.items()}
    after: dict[str, KnownRepository] = {}
    for identifier, listed in listing.repositories.items():
        old = known.get(identifier) or KnownRepository(listed=listed)
        excluded = why_not(listed)
        was_renamed = bool(old.indexed) and old.listed.path != listed.path
        former = old.former_path or old.listed.path if was_renamed else old.former_path
        new = replace(old, listed=listed, excluded=excluded, former_path=former)
        if not (excluded and old.uris):
            new = replace(new, missed_since=None, misses=0)
        elif listing.is_complete:
            new = _missed(new, now)
        after[identifier] = new
    for identifier, old in known.items():
        if identifier in after:
            continue
        if not listing.is_complete:
            after[identifier] = old
        elif old.uris:
            after[identifier] = _missed(old, now)
    return after


def _missed(repository: KnownRepository, now: datetime) -> KnownRepository:
    since = repository.missed_since or now
    return replace(repository, missed_since=since, misses=repository.misses + 1)


def to_retire(repositories: Mapping[str, KnownRepository], now: datetime, grace: timedelta) -> list[str]:
    """Return the ids of repositories that were empty, or missing from complete listings, for the whole grace period."""

    def since(each: KnownRepository) -> datetime | None:
        return each.missed_since if each.misses >= RETIRED_AFTER_MISSES else each.empty_since

    return [
        identifier
        for identifier, each in repositories.items()
        if (gone := since(each)) is not None and now - gone >= grace
    ]


def stable_stamp(host: Host, listing: HostListing, repository: HostedRepository) -> str:
    """Return a repository's stamp if any later push will change it, or "" if one might not.

    Hosts write the time of the last push in whole seconds, or update it once an hour.
    """
    after, pushed = host.stamp_resolution_seconds, parse_timestamp(repository.changed)
    if after is None or pushed is None or listing.started_at is None or listing.started_at - pushed < after:
        return ""
    return repository.stamp


def readable_by_login(record: FleetRecord) -> dict[str, list[tuple[Entity, datetime]]]:
    """Map each login ("" for everyone) to the indexed repositories it may read, with the time the host reported it.

    A repository that its host or the fleet no longer has is readable by nobody.
    """
    found = defaultdict[str, list[tuple[Entity, datetime]]](list)
    for repository in record.repositories.values():
        if (
            repository.readers is None
            or repository.excluded
            or repository.missed_since is not None
            or not repository.uris
        ):
            continue
        entry = Entity.parse(repository.entity), repository.readers.at
        listed = {login for page in repository.readers.pages for login in page.ids if login[0] not in "-/"}
        for login in {""} if repository.readers.everyone else listed:
            found[login].append(entry)
    return dict(found)


def entities_in_use(fleets: Iterable[FleetRecord]) -> set[str]:
    """Return the normalized names of the entities of all repositories in ``fleets``."""
    return {normalized_name(each.entity) for fleet in fleets for each in fleet.repositories.values() if each.entity}

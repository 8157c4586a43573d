"""Update the index from fleets: discover repositories, index changed ones in one run, retire missing ones.

Failing repositories are retried later, and do not stop the others. An unchanged repository costs a line in the host's
listing, or one git request, but no run.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from driftline.flows.config.driftline_toml import Configuration, ConfiguredFleet
from driftline.flows.config.index_request import IndexRequest, SourceRequest
from driftline.flows.output.progress import NullProgress, Progress
from driftline.flows.output.run_reports import (
    BranchToIndex,
    FleetReport,
    FleetsReport,
    RepositoryReport,
    SyncReport,
)
from driftline.flows.runs.branches import delete_branch
from driftline.flows.runs.fleet_part import FleetPart, source_of
from driftline.flows.runs.index import index_sources
from driftline.flows.runs.plan import settings_of_all
from driftline.flows.runs.remove import DeletionLimit, remove_source
from driftline.storage.entities import Entity, entity_of, normalized_name
from driftline.storage.errors import (
    BadEntity,
    DriftlineError,
    LeaseHeld,
    SourceConflict,
    UsageError,
    WorkspaceNotFound,
)
from driftline.storage.layout import FLEET_LEASE, SOURCE, new_ulid
from driftline.storage.leases.lease import Lease, acquire
from driftline.storage.objects.store import ObjectStore
from driftline.storage.objects.store_requests import in_parallel
from driftline.storage.option_table import given_values
from driftline.storage.sources.discovery import HostWaits, discover, open_pulls, readers_of
from driftline.storage.sources.mirror import parse_remote
from driftline.storage.workspace.fleet_state import (
    FleetRecord,
    KnownReaders,
    KnownRepository,
    entities_in_use,
    read_fleets,
    reconcile,
    to_retire,
    write_fleets,
)
from driftline.storage.workspace.workspace import Workspace, acquire_source

CONCURRENT_LOOKUPS = 8
"""Number of repositories whose commit is looked up concurrently: each needs a git process, which mostly waits."""


@dataclass(frozen=True, slots=True)
class FleetRequest:
    """The inputs of a sync. ``run`` is the index run of the changed repositories, without its sources.

    ``retry`` retries failing repositories without waiting for their backoff. Unless ``has_all_fleets`` is set, the
    workspace may have fleets that are not in the configuration.
    """

    configuration: Configuration
    workspace: str
    run: IndexRequest
    retry: bool = False
    has_all_fleets: bool = True

    @property
    def limit(self) -> DeletionLimit:
        """The maximum number of repositories of a fleet to retire, and of branches of a repository to delete."""
        return DeletionLimit.of_repositories(self.run)

    @classmethod
    def of(
        cls,
        configuration: Configuration,
        workspace: str,
        given: Mapping[str, Any],
        *,
        retry: bool = False,
        has_all_fleets: bool = True,
    ) -> Self:
        """Return the request for a run with the ``given`` options, falling back to the configuration's."""
        run = IndexRequest((), workspace, keep_going=True, **configuration.run_options() | given_values(given))
        return cls(configuration, workspace, run, retry, has_all_fleets)

    @property
    def fleets(self) -> tuple[ConfiguredFleet, ...]:
        if not self.configuration.fleets:
            raise UsageError("The configuration has no fleet", str(self.configuration.path), "Add a [[fleet]] table.")
        return self.configuration.fleets


def sources_of_fleets(configuration: Configuration) -> dict[str, tuple[SourceRequest, ...]]:
    """Return each fleet's repositories as of the last sync, as sources, keyed by fleet name.

    Raises CorruptFile, StorageError.
    """
    try:
        known = read_fleets(Workspace.open(configuration.workspace, configuration.options()).objects)
    except WorkspaceNotFound:
        return {}
    found = {}
    for fleet in configuration.fleets:
        there = known.get(fleet.name, FleetRecord()).repositories.values()
        present = (
            repository
            for repository in there
            if repository.entity and not repository.excluded and repository.missed_since is None
        )
        found[fleet.name] = tuple(source_of(fleet, repository) for repository in present)
    return found


def list_fleets(request: FleetRequest, progress: Progress | None = None) -> FleetsReport:
    """Discover each fleet's repositories without contacting any of them, and write nothing. Raises UsageError."""
    now = datetime.now(UTC)
    known, _ = _read_state(request)
    parts = _discover(request, known, progress or NullProgress(), now)
    return FleetsReport(request.workspace, tuple(part.report(now) for part in parts))


def fleet_status(request: FleetRequest) -> FleetsReport:
    """Return each fleet's state after the last sync, without contacting its host. Raises WorkspaceNotFound."""
    now = datetime.now(UTC)
    workspace = Workspace.open(request.workspace, request.run.storage_options)
    configured = {fleet.name: fleet for fleet in request.configuration.fleets}
    known = read_fleets(workspace.objects)
    fleets = []
    for name in sorted(configured.keys() | known.keys()):
        record, fleet = known.get(name, FleetRecord()), configured.get(name)
        by_path = sorted(record.repositories.values(), key=lambda repository: repository.listed.path)
        rows = (replace(RepositoryReport.of(repository, now, None), is_new=False) for repository in by_path)
        provider = fleet.host.provider if fleet is not None else None
        problems = (record.problem,) if record.problem else ()
        fleets.append(FleetReport(name, provider, problems, tuple(rows), listed_at=record.listed_at))
    return FleetsReport(workspace.objects.uri, tuple(fleets))


def sync_fleets(
    request: FleetRequest,
    progress: Progress | None = None,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> FleetsReport:
    """Discover each fleet's repositories, index the changed ones in one run, and retire the missing ones.

    The report lists failures. Raises UsageError before anything is written, LeaseHeld while another sync is running,
    and the errors of ``index_sources`` if a run fails as a whole.
    """
    progress = progress or NullProgress()
    for fleet in request.fleets:
        fleet.host.token()
    of_run = settings_of_all(request.run)
    with ExitStack() as stack:
        lease = None
        if not request.run.dry_run:
            workspace = _prepared(request)
            held = acquire(workspace.objects, FLEET_LEASE, new_ulid(), wait_seconds=request.run.wait_seconds)
            lease = stack.enter_context(held)
        known, entities = _read_state(request)
        parts = _discover(request, known, progress, now(), of_run)
        if request.has_all_fleets:
            _adopt_former(parts, known)
        _hand_over(parts)
        names = {part.fleet.name for part in parts}
        others = {name: record for name, record in known.items() if name not in names}
        sync = _Sync(request, parts, others, entities, lease, progress, now)
        sync.assign_entities(entities_in_use(known.values()))
        sync.look_up_commits()
        sync.look_up_pulls()
        if lease is not None:
            sync.look_up_readers()
        changed = sync.changed_repositories()
        branches = sync.changed_branches({repository.entity for _, repository in changed})
        run_id, of_branches = (None, list[str]()) if lease is None else sync.index_and_retire(changed)
    to_update = [
        BranchToIndex(repository.entity, name, repository.branches[name].commit or None)
        for _, repository, name in branches
    ]
    of_sync = SyncReport(
        dry_run=request.run.dry_run,
        run_id=run_id,
        branch_run_ids=tuple(of_branches),
        to_index=tuple(repository.entity for _, repository in changed),
        branches=tuple(to_update),
    )
    return FleetsReport(request.workspace, tuple(part.report(now()) for part in parts), of_sync)


# -- the state ----------------------------------------------------------------------------------


def _prepared(request: FleetRequest) -> Workspace:
    """Return the workspace, and create it if it does not exist."""
    folders = [fleet.host.url for fleet in request.fleets if fleet.host.provider == "folder"]
    return Workspace.prepare(ObjectStore.open(request.workspace, request.run.storage_options), folders)


def _read_state(request: FleetRequest) -> tuple[dict[str, FleetRecord], set[str]]:
    """Return the state of all fleets, and the workspace's entities."""
    try:
        workspace = Workspace.open(request.workspace, request.run.storage_options)
    except WorkspaceNotFound:
        return {}, set()
    fleets, objects, entities = read_fleets(workspace.objects), workspace.objects, workspace.entities()
    if objects.is_local:  # in a bucket, reading every record would cost more requests than all listings
        entities = [entity for entity in entities if objects.head(f"{entity.directory}/{SOURCE}") is not None]
    return fleets, {str(entity) for entity in entities}


# -- discover -----------------------------------------------------------------------------------


def _discover(
    request: FleetRequest, known: Mapping[str, FleetRecord], progress: Progress, now: datetime, of_run: str = ""
) -> list[FleetPart]:
    """List each fleet's host. Fleets with the same host and token share a rate limit."""
    parts, limits = [], defaultdict[tuple[str, ...], HostWaits](HostWaits)
    for fleet in request.fleets:
        before, host = known.get(fleet.name, FleetRecord()), fleet.host
        progress.phase(f"listing {fleet.name}")
        lines = {identifier: repository.listed for identifier, repository in before.repositories.items()}
        limit, notify = limits[host.provider, host.url, host.variable], progress.message
        listing = discover(host, lines, before.pages, limit=limit, notify=notify)
        if not listing.repositories and before.repositories and listing.is_complete and not request.limit.is_off:
            listing.problems.append("the host no longer lists any repositories; --max-delete-fraction 1 confirms that")
        after = reconcile(before.repositories, listing, fleet.selection.reasons(), now)
        parts.append(FleetPart(fleet, before, listing, after, of_run))
    return parts


def _adopt_former(parts: Sequence[FleetPart], known: dict[str, FleetRecord]) -> None:
    """Take over the state of repositories without an index from fleets that are no longer configured."""
    for name in known.keys() - {part.fleet.name for part in parts}:
        former = dict(known[name].repositories)
        of_uri = {
            repository.uri: identifier
            for identifier, repository in former.items()
            if repository.uri and repository.entity
        }
        for part in parts if of_uri else ():
            for identifier, repository in part.repositories.items():
                uri = part.source_uri(repository) if not repository.uris and part.is_present(identifier) else ""
                if uri in of_uri:
                    part.repositories[identifier] = former.pop(of_uri.pop(uri)).adopted_as(repository)
        known[name] = replace(known[name], repositories=former) if former else FleetRecord()


def _hand_over(parts: Sequence[FleetPart]) -> None:
    """Hand over the indexes of repositories that one fleet lost or excludes to another fleet that lists them.

    A fleet with another entity template would have them in other places, where other people may read them.
    """
    left = {
        repository.uri: (part, identifier)
        for part in parts
        for identifier, repository in part.repositories.items()
        if repository.uri and (repository.excluded or repository.missed_since is not None)
    }
    for part in parts if left else ():
        for identifier, repository in [*part.repositories.items()]:
            if repository.uris or repository.excluded or not part.is_present(identifier):
                continue
            uri = part.source_uri(repository)
            former, of_former = left.get(uri, (part, ""))
            a, b = part.fleet, former.fleet
            if former is part or a.template != b.template:
                continue
            if (a.host.provider, a.host.url) == (b.host.provider, b.host.url) and identifier != of_former:
                continue  # at the same host, another id is another repository
            del left[uri]
            known = former.repositories.pop(of_former)
            part.repositories[identifier] = known.adopted_as(repository)
            if known.excluded:
                former.repositories[of_former] = KnownRepository(listed=known.listed, excluded=known.excluded)


# -- sync ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sync:
    """A sync of the fleets in ``parts``; ``others`` are the workspace's remaining fleets.

    ``entities`` are those that the workspace has. ``lease`` is None in a dry run, which writes nothing.
    """

    request: FleetRequest
    parts: Sequence[FleetPart]
    others: Mapping[str, FleetRecord]
    entities: set[str]
    lease: Lease | None
    progress: Progress
    now: Callable[[], datetime]

    def save(self) -> None:
        """Save the state of all fleets."""
        if self.lease is not None:
            now = self.now()
            records = {part.fleet.name: part.record(now) for part in self.parts}
            write_fleets(self.workspace().objects, {**self.others, **records}, self.lease)

    def workspace(self) -> Workspace:
        """Open the workspace as it is now."""
        return Workspace.open(self.request.workspace, self.request.run.storage_options)

    # -- look up -----------------------------------------------------------------------------

    def assign_entities(self, taken: set[str]) -> None:
        """Assign a permanent entity to each new repository, other than those ``taken``."""
        for part in self.parts:
            by_path = sorted(part.repositories.items(), key=lambda item: (item[1].listed.path, item[0]))
            for identifier, repository in by_path:
                if repository.entity or repository.excluded:
                    continue
                try:
                    entity = entity_of(part.fleet.template, *repository.listed.naming, taken)
                except BadEntity as error:
                    part.repositories[identifier] = repository.failed(error, self.now())
                    continue
                taken.add(normalized_name(entity))
                part.repositories[identifier] = replace(repository, entity=entity)

    def look_up_commits(self) -> None:
        """Look up each repository's commit, unless the listing shows that nothing was pushed."""
        now = self.now()
        due = [
            (part, identifier)
            for part in self.parts
            for identifier, repository in part.repositories.items()
            if repository.entity
            and repository.needs_lookup(
                now,
                is_current=part.is_present(identifier),
                retry=self.request.retry,
                branch_globs=part.fleet.branches,
            )
        ]
        self.progress.phase(f"looking up the commits of {len(due):,} repositories")
        _replace_repositories(due, lambda part, repository: part.at_current_commit(repository, now))
        for part, _ in due:
            part.asked += 1

    def look_up_pulls(self) -> None:
        """Look up each repository's open pull requests. If the host does not respond, the known ones are kept."""
        now = self.now()
        due = [
            (part, identifier)
            for part in self.parts
            for identifier, repository in part.selected()
            if part.fleet.pull_requests or repository.pulls
        ]

        def with_open_pulls(part: FleetPart, repository: KnownRepository) -> KnownRepository:
            if not part.fleet.pull_requests:
                return repository.with_pulls(dict.fromkeys(repository.pulls, ""), "")
            if repository.is_waiting(now) and not self.request.retry:
                return repository
            try:
                host, listed, notify = part.fleet.host, repository.listed, self.progress.message
                found = open_pulls(
                    host, listed, repository.pulls, repository.pulls_etag, listing=part.listing, notify=notify
                )
            except DriftlineError as error:
                return replace(repository, pulls_problem=str(error))
            return repository.with_pulls(*found) if found is not None else repository

        _replace_repositories(due, with_open_pulls)

    def look_up_readers(self) -> None:
        """Look up who may read each repository of fleets that follow their hosts' permissions."""
        now = self.now()
        due = [
            (part, identifier)
            for part in self.parts
            if part.fleet.readers
            for identifier, repository in part.selected()
            if repository.readers is not None or not repository.failures  # another source may have its entity
        ]

        def with_readers(part: FleetPart, repository: KnownRepository) -> KnownRepository:
            if repository.listed.visibility == "public":
                return repository.with_readers(KnownReaders(at=now, everyone=True))
            known = repository.readers.pages if repository.readers is not None else ()
            try:
                host, notify = part.fleet.host, self.progress.message
                pages = readers_of(host, repository.listed, known, listing=part.listing, notify=notify)
            except DriftlineError as error:
                return repository.with_readers(error)
            return repository.with_readers(KnownReaders(at=now, pages=pages))

        _replace_repositories(due, with_readers)

    # -- index -------------------------------------------------------------------------------

    def index_and_retire(self, changed: Sequence[tuple[FleetPart, KnownRepository]]) -> tuple[str | None, list[str]]:
        """Index changed repositories, retire missing ones, and save the state before and after.

        Return the run's id, and the ids of the branch runs.
        """
        try:
            run_id = self.index_repositories(changed) if changed else None
            of_branches = self.update_branches()
            self.retire()
        except DriftlineError:
            self.save()
            raise
        self.save()
        return run_id, of_branches

    def changed_repositories(self) -> list[tuple[FleetPart, KnownRepository]]:
        """Return the repositories whose index does not match their current commit, URI and settings.

        In a full run, return all that have a commit.
        """
        found = []
        for part in self.parts:
            for _, repository in part.selected():
                if not repository.commit or repository.failures:
                    continue
                is_current = (repository.indexed, repository.settings) == (repository.commit, part.settings)
                is_current = is_current and repository.entity in self.entities
                if self.request.run.full or not is_current or repository.uri != part.source_uri(repository):
                    found.append((part, repository))
        return found

    def owners(self) -> dict[str, str]:
        """Map repository URIs to entities. If two fleets list the same repository, the entity already indexed wins."""
        others = () if self.request.has_all_fleets else self.others.values()
        found = {
            repository.uri: repository
            for record in others
            for repository in record.repositories.values()
            if repository.uri and repository.missed_since is None and not repository.excluded
        }
        for part in self.parts:
            for _, repository in part.selected():
                uri = part.source_uri(repository)
                if uri not in found or (repository.uri == uri and found[uri].uri != uri):
                    found[uri] = repository
        return {uri: repository.entity for uri, repository in found.items()}

    def index_repositories(self, changed: Sequence[tuple[FleetPart, KnownRepository]]) -> str | None:
        """Index the changed repositories in one run, and record the results.

        The state is saved before anything else is written, so every source of a killed run belongs to a fleet.
        Propagates errors from ``index_sources``.
        """
        workspace, owners = self.workspace(), self.owners()
        planned: dict[str, tuple[FleetPart, KnownRepository]] = {}
        for part, repository in changed:
            uri = part.source_uri(repository)
            error = _conflict(workspace, repository, uri, owners)
            if error is not None:
                part.replace(replace(repository.failed(error, self.now()), readers=None))
            else:
                is_new = bool(repository.branches) and not workspace.has_branches(Entity.parse(repository.entity))
                part.replace(repository.indexed_next(uri, is_new=is_new))
                planned[uri] = part, repository
        displaced = _displace(self.parts, planned)
        self.save()
        for uri, entity in displaced:
            if not _detach(workspace, entity, uri, self.request):
                planned.pop(uri, None)
        if not planned:
            return None
        sources = tuple(part.source(part.current(repository)) for part, repository in planned.values())
        run_id, failed = self.run_index(sources)
        for uri, (part, repository) in planned.items():
            part.replace(part.after_run(part.current(repository), uri, failed.get(uri), self.now()))
        return run_id

    def run_index(
        self, sources: tuple[SourceRequest, ...], branch: str | None = None
    ) -> tuple[str, dict[str, DriftlineError]]:
        """Index ``sources``. Return the run's id, and the failures keyed by URI (with no credentials)."""
        run = self.request.run
        reembed = run.reembed and branch is None  # a branch takes the main index's model
        report = index_sources(replace(run, sources=sources, branch=branch, reembed=reembed), self.progress)
        return report.run_id, {_without_credentials(uri): error for uri, error in report.failed}

    # -- branches ----------------------------------------------------------------------------

    def changed_branches(self, to_index: Collection[str] = ()) -> list[tuple[FleetPart, KnownRepository, str]]:
        """Return the branches of indexed repositories that are gone, or whose index is not at their commit.

        Repositories in ``to_index`` are treated as indexed; a full run returns all branches of indexed repositories.
        """
        return [
            (part, repository, name)
            for part in self.parts
            for identifier, repository in part.repositories.items()
            if part.is_present(identifier) and not repository.excluded and not repository.failures
            if repository.indexed or repository.entity in to_index
            for name, branch in repository.branches.items()
            if self.request.run.full
            or (branch.indexed, branch.uri, branch.settings)
            != (branch.commit, part.source_uri(repository), part.settings)
        ]

    def update_branches(self) -> list[str]:
        """Delete missing branches, and index changed ones in one run per name; return the runs' ids.

        The state is saved first, so every branch of a killed run belongs to a fleet.
        """
        by_name: dict[str, dict[str, tuple[FleetPart, KnownRepository]]] = defaultdict(dict)
        for part, repository, name in self.changed_branches():
            if repository.branches[name].commit:
                uri = _without_credentials(part.at_branch(repository, name).uri)
                by_name[name][uri] = part, repository
        for part in self.parts:
            for repository in [*part.repositories.values()]:
                try:
                    self.delete_branches(part, repository)
                except DriftlineError as error:
                    part.replace(repository.failed(error, self.now()))
        run_ids = list[str]()
        if by_name:
            self.save()
        for name, members in sorted(by_name.items()):
            sources = tuple(part.at_branch(part.current(repository), name) for part, repository in members.values())
            try:
                run_id, failed = self.run_index(sources, name)
                run_ids.append(run_id)
            except DriftlineError as error:  # of any single source
                failed = dict.fromkeys(members, error)
            for uri, (part, repository) in members.items():
                current, why = part.current(repository), failed.get(uri)
                if why is None:
                    part.replace(current.with_indexed(name, part.source_uri(current), part.settings))
                elif not isinstance(why, LeaseHeld):
                    part.replace(current.failed(why, self.now()))
        return run_ids

    def delete_branches(self, part: FleetPart, repository: KnownRepository) -> None:
        """Delete a repository's branches that are gone, unless there are suspiciously many or they are in use.

        Closed pull requests are never suspicious, because the host reports each of them as closed.
        """
        gone = [name for name, branch in repository.branches.items() if not branch.commit]
        if not gone or repository.failures:
            return
        branches = [branch for branch in repository.branches.values() if not branch.pull]
        lost = sum(not branch.commit for branch in branches)
        refused = self.request.limit.refusal(lost, len(branches), "branches", repository.listed.path)
        if refused is not None:
            part.refused.append(refused)
            gone = [name for name in gone if repository.branches[name].pull]
        workspace, kept = self.workspace(), dict(repository.branches)
        for name in gone:
            try:
                delete_branch(workspace, Entity.parse(repository.entity), name, new_ulid())
            except LeaseHeld:
                continue
            del kept[name]
        part.replace(replace(repository, branches=kept))

    # -- retire ------------------------------------------------------------------------------

    def retire(self) -> None:
        """Remove repositories missing for the grace period, unless they respond or there are suspiciously many."""
        now = self.now()
        for part in self.parts:
            if not part.listing.is_complete:
                continue
            doomed = to_retire(part.repositories, now, timedelta(days=part.fleet.grace_days))
            doomed = [identifier for identifier in doomed if part.is_gone(identifier)]
            known = sum(bool(repository.indexed) for repository in part.repositories.values())
            refused = self.request.limit.refusal(len(doomed), known, "repositories", part.fleet.name)
            if refused is not None:
                part.refused.append(refused)
                continue
            for identifier in doomed:
                repository = part.repositories[identifier]
                try:
                    self.remove(repository)
                except DriftlineError as error:
                    part.repositories[identifier] = repository.failed(error, now)
                    continue
                self.progress.message(
                    f"{repository.entity} is removed: the fleet no longer has {repository.listed.path}"
                )
                part.retired[identifier] = part.repositories.pop(identifier)

    def remove(self, repository: KnownRepository) -> None:
        """Remove a repository's source, unless its entity belongs to another source by now."""
        known = self.workspace().readable_source(Entity.parse(repository.entity))
        if known is None or known.uri not in repository.uris:
            return  # removed manually, or the entity now belongs to another source
        remove_source(
            self.request.workspace,
            repository.entity,
            wait_seconds=self.request.run.wait_seconds,
            storage_options=self.request.run.storage_options,
        )


def _replace_repositories(
    due: Sequence[tuple[FleetPart, str]], look_up: Callable[[FleetPart, KnownRepository], KnownRepository]
) -> None:
    """Replace the repositories in ``due``, given by id, with the results of concurrent calls of ``look_up``."""
    found = in_parallel(lambda item: look_up(item[0], item[0].repositories[item[1]]), due, CONCURRENT_LOOKUPS)
    for (part, identifier), repository in zip(due, found, strict=True):
        part.repositories[identifier] = repository


def _without_credentials(uri: str) -> str:
    remote = parse_remote(uri)
    return remote.uri if remote is not None else uri


def _conflict(
    workspace: Workspace, repository: KnownRepository, uri: str, owners: Mapping[str, str]
) -> DriftlineError | None:
    """Return why a repository cannot be indexed as its entity: another source has the entity or the URI."""
    if owners.get(uri) != repository.entity:
        return SourceConflict("Two fleets contain the same repository", uri, "Exclude one of them.")
    known = workspace.readable_source(Entity.parse(repository.entity))
    if known is None or known.uri in {uri, *repository.uris}:
        return None
    return SourceConflict(f"{repository.entity} is bound to another URI", known.uri, "Change the fleet's entity.")


def _placeholder_uri(uri: str, entity: str) -> str:
    """Return a placeholder URI for a source whose repository at ``uri`` was replaced by another."""
    digest = hashlib.blake2b(entity.encode(), digest_size=4).hexdigest()
    return f"{uri}@refs/displaced/{digest}"


def _displace(parts: Iterable[FleetPart], planned: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return ``(URI, entity)`` of sources whose URI now belongs to another repository, and record their new URI.

    If two sources shared a URI, only the first would get its files.
    """
    found = []
    for part in parts:
        for identifier, repository in part.repositories.items():
            for uri in repository.uris & planned.keys():
                if planned[uri][1].entity != repository.entity:
                    known = part.repositories[identifier]
                    part.repositories[identifier] = known.indexed_next(_placeholder_uri(uri, repository.entity))
                    found.append((uri, repository.entity))
    return found


def _detach(workspace: Workspace, entity: str, uri: str, request: FleetRequest) -> bool:
    """Give the source at ``uri`` a placeholder URI. Return False if another run is working on it."""
    source = Entity.parse(entity)
    try:
        with acquire_source(workspace, source, new_ulid(), wait_seconds=request.run.wait_seconds):
            record = workspace.readable_source(source)
            if record is not None and record.uri == uri:
                workspace.bind_source(source, replace(record, uri=_placeholder_uri(uri, entity)))
    except LeaseHeld:
        return False
    return True

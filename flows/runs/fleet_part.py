"""One fleet during a sync: what its host lists, and the state of its repositories."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import fnmatchcase

from driftline.flows.config.driftline_toml import ConfiguredFleet
from driftline.flows.config.index_request import SourceRequest
from driftline.flows.output.run_reports import (
    FleetReport,
    ListingReport,
    RepositoryReport,
)
from driftline.storage.errors import (
    AccessDenied,
    DriftlineError,
    LeaseHeld,
    SourceNotFound,
    StorageError,
    UsageError,
)
from driftline.storage.sources.discovery import HostListing
from driftline.storage.sources.mirror import REDIRECTS, current_branches, current_commit, with_ref
from driftline.storage.workspace.branch_cuts import check_name
from driftline.storage.workspace.fleet_state import (
    FleetRecord,
    KnownBranch,
    KnownRepository,
    stable_stamp,
)
from driftline.tasks.git.commits import branch_named, index_name


@dataclass(slots=True)
class FleetPart:
    """One fleet during a sync: its host's listing, and the state of its repositories.

    ``of_run`` is a hash of the run's settings, and ``refused`` lists refused deletions.
    """

    fleet: ConfiguredFleet
    before: FleetRecord
    listing: HostListing
    repositories: dict[str, KnownRepository]
    of_run: str = ""
    asked: int = 0
    retired: dict[str, KnownRepository] = field(default_factory=dict)
    refused: list[DriftlineError] = field(default_factory=list)

    @property
    def settings(self) -> str:
        """A hash of all that determines what of a repository is indexed: the fleet's and the run's settings, the model,
        and the release.
        """
        rules = json.dumps([self.fleet.include, self.fleet.exclude, self.of_run])
        return hashlib.blake2b(rules.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()

    @property
    def problems(self) -> list[str]:
        """The reasons for incomplete listings, also of pull requests and readers, and the refused deletions."""
        found = [str(error) for error in (self.listing.failure, *self.refused) if error is not None]
        known = self.repositories.values()
        for what, of in (("pull requests", "pulls_problem"), ("readers", "readers_problem")):
            if unlisted := sum(bool(getattr(repository, of)) for repository in known):
                found.append(f"the {what} of {unlisted:,} repositories cannot be listed")
        return found + list(dict.fromkeys(self.listing.problems))

    def is_present(self, identifier: str) -> bool:
        return identifier in self.listing.repositories

    def selected(self) -> Iterator[tuple[str, KnownRepository]]:
        """Yield the listed repositories that are not excluded and have an entity, with their ids."""
        for identifier, repository in self.repositories.items():
            if self.is_present(identifier) and not repository.excluded and repository.entity:
                yield identifier, repository

    def current(self, repository: KnownRepository) -> KnownRepository:
        """Return the current state of a repository that this sync may have replaced."""
        return self.repositories[repository.listed.id]

    def replace(self, repository: KnownRepository) -> None:
        """Replace the state of a repository."""
        self.repositories[repository.listed.id] = repository

    def source(self, repository: KnownRepository) -> SourceRequest:
        """Return the repository as a source of an index run at its commit."""
        found = source_of(self.fleet, repository)
        return replace(found, commit=repository.commit, rebind=bool(repository.uris))

    def source_uri(self, repository: KnownRepository) -> str:
        """Return the source's URI in the workspace, which has no credentials."""
        return self.fleet.host.remote(repository.listed).uri

    def record(self, now: datetime) -> FleetRecord:
        """Return the state to save."""
        is_listed = self.listing.failure is None
        return FleetRecord(
            repositories=self.repositories,
            pages=tuple(self.listing.pages) if self.listing.is_complete else (),
            listed_at=now if is_listed else self.before.listed_at,
            problem="; ".join(self.problems),
        )

    def report(self, now: datetime) -> FleetReport:
        """Return the fleet and its repositories as they are now; the retired ones come last."""
        by_path, before = sorted(self.repositories.values(), key=lambda repository: repository.listed.path), self.before
        rows = [
            RepositoryReport.of(repository, now, before.repositories.get(repository.listed.id))
            for repository in by_path
        ]
        rows += [
            RepositoryReport.of(repository, now, before.repositories.get(repository.listed.id), "retired")
            for repository in self.retired.values()
        ]
        listing = ListingReport(
            found=len(self.listing.repositories),
            complete=self.listing.is_complete,
            requests=self.listing.requests,
            unchanged_pages=self.listing.unchanged_pages,
            waited_seconds=self.listing.limit.seconds,
            asked=self.asked,
        )
        return FleetReport(self.fleet.name, self.fleet.host.provider, tuple(self.problems), tuple(rows), listing)

    def at_current_commit(self, repository: KnownRepository, now: datetime) -> KnownRepository:
        """Return the repository with the commits of its default branch and of the followed branches, as of ``now``."""
        branches = dict[str, str]()
        try:
            remote = self.fleet.host.remote(repository.listed)
            if self.fleet.branches:
                commit, branches = current_branches(remote)
            else:
                commit = current_commit(remote)
        except SourceNotFound as error:
            # A host says so, too, if the token may not read the repository: only the list can tell that it is gone.
            if self.fleet.host.provider == "list":
                fix = f"{error.fix} If it was deleted, remove it from the list."
                error = SourceNotFound(error.what, error.where, fix)
            return repository.failed(error, now)
        except DriftlineError as error:
            return repository.failed(error, now)
        stamp = stable_stamp(self.fleet.host, self.listing, repository.listed)
        found = repository.at_commit(commit, now, self.settings, stamp=stamp)
        return found.with_branches(*self._followed(repository, branches), self.fleet.branches) if commit else found

    def _followed(
        self, repository: KnownRepository, branches: Mapping[str, str]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the commits of followed branches, keyed by index branch name, and why other branches are skipped.

        Git allows branch names that a URI cannot contain, and bots use them, so skipping them is not a failure.
        """
        found, skipped = dict[str, str](), dict[str, str]()
        for branch, commit in branches.items():
            if any(fnmatchcase(branch, glob) for glob in self.fleet.branches):
                try:
                    check_name(branch)
                    self.at_branch(repository, index_name(branch))
                except UsageError as error:
                    skipped[branch] = error.what
                else:
                    found[index_name(branch)] = commit
        return found, skipped

    def at_branch(self, repository: KnownRepository, name: str) -> SourceRequest:
        """Return the source at an index branch. Raises UsageError if a URI cannot contain the branch name."""
        source, known = self.source(repository), repository.branches.get(name, KnownBranch())
        ref = self.fleet.host.pull_ref(known.pull) if known.pull else f"refs/heads/{branch_named(name)}"
        uri = with_ref(source.uri, ref)
        return replace(source, uri=uri, commit=known.commit)

    def after_run(
        self, repository: KnownRepository, uri: str, error: DriftlineError | None, now: datetime
    ) -> KnownRepository:
        """Return the repository after a run of its source at ``uri``, which may have failed with ``error``."""
        if error is None:
            return repository.indexed_at_commit(uri, now, self.settings)
        return repository if isinstance(error, LeaseHeld) else repository.failed(error, now)

    def is_gone(self, identifier: str) -> bool:
        """Return whether an unlisted repository is gone; if not, record why it is kept."""
        repository = self.repositories[identifier]
        if repository.excluded:
            return True
        try:
            listed = self.listing.repositories.values()
            if any(other.path == repository.listed.path and other.id != identifier for other in listed):
                return True  # the repository that now has this URL would respond
            commit = current_commit(self.fleet.host.remote(repository.listed))
        except (SourceNotFound, AccessDenied):
            return True
        except (StorageError, UsageError) as error:
            if error.what == REDIRECTS:
                return True
            self.repositories[identifier] = replace(repository, reason=f"not listed, and cannot be reached: {error}")
            return False
        if self.is_present(identifier):
            return not commit
        self.repositories[identifier] = replace(repository, reason="not listed, but it still responds")
        return False


def source_of(fleet: ConfiguredFleet, repository: KnownRepository) -> SourceRequest:
    """Return a fleet's repository as a source, without its commit."""
    provider = fleet.host.provider
    link = provider if provider in ("github", "gitlab", "gitea") else None
    uri = fleet.host.uri(repository.listed)
    return SourceRequest(uri, repository.entity, fleet.include, fleet.exclude, link=link)

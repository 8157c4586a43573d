"""The branches of a workspace: list, delete, and prune those that nobody needs any more (decision 0015)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.deltas.delta_index import ADD, REMOVE
from driftline.storage.entities import Entity
from driftline.storage.errors import LeaseHeld, NotIndexed, UsageError
from driftline.storage.ids import new_ulid
from driftline.storage.layout import branch_lease_path
from driftline.storage.leases.lease import acquire, fenced
from driftline.storage.workspace.branches import branch_at, branch_records, delete, read_branch
from driftline.storage.workspace.records import BranchRecord
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.git.branches import ask_remote_branches, branch_named, is_merged, local_branches

DEFAULT_PRUNED_AFTER_DAYS = 14.0


@dataclass(frozen=True, slots=True)
class BranchReport:
    """A branch of a source.

    ``base`` is the commit of the main index that it was cut from and ``commit`` the one that it was indexed at, where
    git names them; ``documents`` differ from the main index of today, with ``lines``, and ``deleted`` are missing.
    ``size_bytes`` is what the branch does not share with the main index; ``age_seconds`` count from its last run.
    """

    name: str
    entity: str
    base: str | None
    commit: str | None
    documents: int
    deleted: int
    lines: int
    size_bytes: int
    age_seconds: float
    behind: bool

    def to_dict(self) -> dict[str, Any]:
        """As ``branches --json`` prints it; ``behind`` says that the main index has changed since the cut."""
        return {
            "name": self.name,
            "entity": self.entity,
            "base": self.base,
            "commit": self.commit,
            "documents": self.documents,
            "deleted": self.deleted,
            "lines": self.lines,
            "size_bytes": self.size_bytes,
            "age_seconds": round(self.age_seconds, 3),
            "behind": self.behind,
        }


def list_branches(workspace: Workspace, within: Entity | None = None) -> list[BranchReport]:
    """The branches of the sources at or below ``within``, by source and name. Raises CorruptFile, StorageError."""
    now = datetime.now(UTC)
    return [
        _report(workspace, entity, record, now)
        for entity, _ in workspace.readable_sources(within)
        for record in branch_records(workspace, entity)
    ]


def _report(workspace: Workspace, entity: Entity, record: BranchRecord, now: datetime) -> BranchReport:
    here = workspace.on([branch_at(entity, record)])
    changed = here.manifest(entity).changes_since(record.main_revision, columns=["path", "hash", "lines", "reason"])
    main = workspace.manifest(entity).get(changed["path"].to_pylist(), columns=["path", "hash", "reason"])
    main = main.filter(pc.is_null(main["reason"]))
    same = pc.is_in(_contents(changed), value_set=_contents(main))
    is_there = pc.and_(pc.equal(changed["op"], ADD), pc.is_null(changed["reason"]))
    added = changed.filter(pc.and_(is_there, pc.invert(same)))
    missing = changed.filter(
        pc.and_(pc.equal(changed["op"], REMOVE), pc.is_in(changed["path"], value_set=main["path"]))
    )
    table = here.lines(entity, record.fingerprint)
    sizes = [info.size_bytes for info in workspace.objects.list(table.path)]
    sizes += [info.size_bytes for info in workspace.objects.list(branch_at(entity, record).directory)]
    return BranchReport(
        name=record.name,
        entity=str(entity),
        base=record.base,
        commit=record.source.commit.id if record.source.commit else None,
        documents=len(added),
        deleted=len(missing),
        lines=pc.sum(added["lines"], min_count=0).as_py(),
        size_bytes=sum(sizes),
        age_seconds=(now - record.updated).total_seconds(),
        behind=workspace.manifest(entity).recent_rev() != record.main_revision,
    )


def _contents(documents: pa.Table) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(documents["path"], documents["hash"], "\0")


def delete_named(
    workspace: Workspace, name: str, within: Entity | None, *, wait_seconds: float = 0.0, missing_ok: bool = False
) -> list[str]:
    """Delete the branch ``name`` of each source at or below ``within``; returns their entities.

    Raises NotIndexed if no source has it, unless it is ``missing_ok``, and LeaseHeld while a run works on it.
    """
    sources = [entity for entity, _ in workspace.readable_sources(within)]
    holders = [entity for entity in sources if read_branch(workspace, entity, name) is not None]
    if not holders and not missing_ok:
        known = sorted({record.name for entity in sources for record in branch_records(workspace, entity)})
        fix = f"It has: {', '.join(known[:20])}." if known else "It has none."
        raise NotIndexed("The workspace has no branch of this name", name, fix)
    run_id = new_ulid()
    for entity in holders:
        delete_branch(workspace, entity, name, run_id, wait_seconds=wait_seconds)
    return [str(entity) for entity in holders]


def delete_branch(workspace: Workspace, entity: Entity, name: str, run_id: str, *, wait_seconds: float = 0.0) -> None:
    """Delete a branch of a source under its lease; does nothing if it is gone. Raises LeaseHeld, StorageError."""
    path = branch_lease_path(entity, name)
    with acquire(workspace.objects, path, run_id, wait_seconds=wait_seconds) as lease, fenced(lease):
        record = read_branch(workspace, entity, name)
        if record is not None:
            delete(workspace, entity, record)


@dataclass(frozen=True, slots=True)
class Pruned:
    """A branch that was, or in a dry run would be, deleted, and why."""

    name: str
    entity: str
    why: str


def prune_branches(
    workspace: Workspace,
    within: Entity | None = None,
    *,
    older_than_days: float = DEFAULT_PRUNED_AFTER_DAYS,
    dry_run: bool = False,
    skip: Callable[[str], None] = lambda _: None,
) -> list[Pruned]:
    """Delete the branches that are merged, gone from the remote, or older; ``skip`` gets a message for each busy one.

    The work tree of a source, where that is on this disk, shows whether a branch is merged, and names the remote. Only
    a remote that answers proves that a branch is gone; a pull request is no branch, so that its remote proves nothing.
    """
    if older_than_days < 0:
        raise UsageError("An age cannot be negative", f"{older_than_days:g} d", "Pass 0 or more.")
    pruned: list[Pruned] = []
    for entity, known in workspace.readable_sources(within):
        records = branch_records(workspace, entity)
        on_remote = ask_remote_branches(known.uri) if records else None
        if on_remote is not None:
            on_remote |= local_branches(known.uri)
        elif records and known.origin is not None:
            skip(f"The remote of {entity} did not name its branches, so none of them counts as gone.")
        for record in records:
            why = _why_pruned(record, known.uri, on_remote, timedelta(days=older_than_days))
            if why is None:
                continue
            try:
                if not dry_run:
                    delete_branch(workspace, entity, record.name, new_ulid())
            except LeaseHeld as error:
                skip(f"Skipped the branch {record.name} of {entity}: {error.what}")
                continue
            pruned.append(Pruned(record.name, str(entity), why))
    return pruned


def _why_pruned(record: BranchRecord, uri: str, on_remote: frozenset[str] | None, limit: timedelta) -> str | None:
    age = datetime.now(UTC) - record.updated
    if age > limit:
        return f"not indexed for {age.days:,} days"
    commit = record.source.commit
    branch = branch_named(record.name)
    if on_remote is not None and record.base is not None and branch is not None and branch not in on_remote:
        return "gone from the remote"
    if commit is not None and commit.id != record.base and is_merged(uri, commit.id):
        return "merged"
    return None

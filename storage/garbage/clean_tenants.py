"""Find the tenants that may hold garbage, without listing the workspace (DESIGN, "Cleanup").

Everything that may leave orphans holds a lease: index runs, compactions, branch deletions. Lease files are never
deleted, and each holder changes its file; a holder that fails leaves the lease held, or increments its failure count.
For each clean tenant, ``_cleanup.json`` records its leases as they were before the cleanup looked for garbage. While
these leases have only been held and released without failure since then, the tenant is still clean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from driftline.storage.errors import AlreadyExists, CorruptFile, ObjectNotFound, PreconditionFailed
from driftline.storage.json_records import to_json
from driftline.storage.layout import (
    BRANCH,
    CLEANUP,
    ObjectKind,
    branch_of_lease,
    is_tenant,
    parse_name,
    table_fingerprint,
)
from driftline.storage.leases.lease import peek
from driftline.storage.objects.store import ObjectInfo, ObjectStore
from driftline.storage.workspace.records import FORMAT_VERSION, BranchRecord, parse_record, read_record
from driftline.storage.workspace.workspace import Workspace

FULL_EVERY = timedelta(days=7)
"""A cleanup lists everything if that last happened longer ago than this, which also finds garbage that left no trace.
"""
FIRST_TOKENS = 2
"""Lease tokens used by the first run on a branch: one to create the branch, one for the index run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseState:
    """A released lease: its ``version`` in a listing, its number of failed holders, and its branch's cut, if any."""

    version: str
    failures: int = 0
    cut: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupRecord:
    """The content of ``_cleanup.json``: when everything was last listed, and the leases of each clean tenant."""

    format_version: int = FORMAT_VERSION
    workspace_id: str
    models: tuple[str | None, ...]
    """The fingerprints of the current embedding models; a change makes tables superseded."""
    listed: datetime
    clean: Mapping[str, Mapping[str, LeaseState]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CleanTenants:
    """What leases reveal about garbage: ``candidates`` are the directories of the tenants that must be listed.

    ``leases`` contains the state of each tenant's leases, or None for a tenant that is in use or was abandoned.
    ``listed`` is the time of the last complete listing, or None if everything must be listed. ``version`` is the
    record's version, None if there is no record.
    """

    candidates: frozenset[str]
    leases: Mapping[str, Mapping[str, LeaseState] | None]
    listed: datetime | None
    version: str | None


def read_clean_tenants(workspace: Workspace, *, now: datetime, full: bool = False) -> CleanTenants:
    """Read the leases that changed since the last cleanup.

    Everything must be listed if ``full`` is set, if this workspace has no record, or after FULL_EVERY. Raises
    CorruptFile, WorkspaceTooNew, AccessDenied, StorageError.
    """
    objects = workspace.objects
    record, version = _read(workspace)
    expired = record is None or abs(now - record.listed) >= FULL_EVERY
    is_valid = record is not None and not (full or expired) and record.models == _models(workspace)
    known = record.clean if record is not None and is_valid else {}
    candidates: set[str] = set()
    leases: dict[str, Mapping[str, LeaseState] | None] = {}
    for tenant in filter(is_tenant, objects.list_dirs()):
        found = objects.list(f"{tenant}/_leases", recursive=False)
        states = _states(workspace, found, known.get(tenant, {}))
        whole = {path: state for path, state in states.items() if state is not None}
        leases[tenant] = whole if len(whole) == len(states) else None
        if tenant not in known or leases[tenant] is None or _tells_of_garbage(whole, known[tenant]):
            candidates.add(tenant)
    listed = None if full or expired or record is None else record.listed
    return CleanTenants(frozenset(candidates), leases, listed, version)


def _states(
    workspace: Workspace, listed: Iterable[ObjectInfo], known: Mapping[str, LeaseState]
) -> dict[str, LeaseState | None]:
    """Return the state of each lease, or None if it is held or was abandoned. Only changed leases are read."""
    infos = [info for info in listed if parse_name(info.path).kind in (ObjectKind.PERMANENT, ObjectKind.BRANCH_LEASE)]
    states: dict[str, LeaseState | None] = {
        info.path: known[info.path] for info in infos if info.path in known and known[info.path].version == info.version
    }
    changed = [info for info in infos if info.path not in states]
    read = workspace.map_parallel(lambda info: _state(workspace, info, known.get(info.path)), changed)
    return states | dict(zip((info.path for info in changed), read, strict=True))


def _state(workspace: Workspace, info: ObjectInfo, known: LeaseState | None) -> LeaseState | None:
    status = peek(workspace.objects, info.path)
    if not status.is_free or status.holder_died:
        return None
    failures = status.failures
    if parse_name(info.path).kind is not ObjectKind.BRANCH_LEASE:
        return LeaseState(version=info.version, failures=failures)
    record = read_record(workspace.objects, f"{branch_of_lease(info.path)}/{BRANCH}", BranchRecord)
    if record is None:
        # the lease of a deleted branch is itself garbage, and stays until the branch's other files are gone
        return None
    if known is None and status.token > FIRST_TOKENS:
        failures += 1  # the branch may have been created more than once
    return LeaseState(version=info.version, failures=failures, cut=record.cut)


def _tells_of_garbage(leases: Mapping[str, LeaseState], known: Mapping[str, LeaseState]) -> bool:
    new = LeaseState(version="")
    return any(
        state.failures != known.get(path, new).failures
        or (path in known and state.cut != known[path].cut)  # the former cut is deleted after its lease is released
        for path, state in leases.items()
    )


def write_clean_tenants(workspace: Workspace, known: CleanTenants, *, now: datetime, garbage: Iterable[str]) -> None:
    """Record each tenant that is not in ``garbage`` as clean, with its leases in ``known``.

    If another cleanup has written a record meanwhile, that record is kept. Raises StorageError.
    """
    left = {*garbage}
    clean = {tenant: leases for tenant, leases in known.leases.items() if leases is not None and tenant not in left}
    record = CleanupRecord(
        workspace_id=workspace.config.workspace_id,
        models=_models(workspace),
        listed=now if known.listed is None else known.listed,
        clean=clean,
    )
    objects, data = workspace.objects, to_json(record, compact=True)
    with suppress(AlreadyExists, PreconditionFailed):
        if known.version is None:
            objects.create(CLEANUP, data)
        else:
            objects.replace(CLEANUP, data, known.version)


def _models(workspace: Workspace) -> tuple[str | None, ...]:
    config = workspace.config
    return config.fingerprint, config.deep.fingerprint if config.deep else None


def tenants_with_other_models(workspace: Workspace, tables: Iterable[str]) -> set[str]:
    """Return the directories of tenants that have tables for models other than the current ones.

    A run that moves a tenant's last documents to the current model leaves no trace.
    """
    current = dict(zip(("line", "deep"), _models(workspace), strict=True))
    found: set[str] = set()
    for path in tables:
        tenant, _, name = path.partition("/_tables/")
        of_kinds = {kind: table_fingerprint(name, kind) for kind in current}
        if any(known is not None and known != current[kind] for kind, known in of_kinds.items()):
            found.add(tenant)
    return found


def _read(workspace: Workspace) -> tuple[CleanupRecord | None, str | None]:
    """Return this workspace's record and its file version. A damaged record is treated as missing, so everything is
    listed.
    """
    objects: ObjectStore = workspace.objects
    try:
        data, version = objects.get_versioned(CLEANUP)
    except ObjectNotFound:
        return None, None
    try:
        record = parse_record(objects, CLEANUP, data, CleanupRecord)
    except CorruptFile:
        return None, version
    return (record if record.workspace_id == workspace.config.workspace_id else None), version

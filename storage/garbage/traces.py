"""Find out without listing a workspace which tenants may hold garbage (DESIGN, "Cleanup").

Whatever leaves files that nothing refers to holds a lease: runs, compactions, deletions of branches. Lease files are
never deleted, and each holder changes its file; one that ends in any way but well leaves it held, or counted as failed.
``_cleanup.json`` records the leases of each tenant as a cleanup saw them before it found no garbage there. A tenant
whose leases have since only been held and released without failure has none either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from pydantic import BaseModel, ConfigDict, Field

from driftline.storage.errors import AlreadyExists, CorruptFile, ObjectNotFound, PreconditionFailed
from driftline.storage.layout import BRANCH, CLEANUP, Kind, branch_of_lease, is_tenant, parse_name
from driftline.storage.leases.lease import look
from driftline.storage.objects.store import ObjectInfo, ObjectStore
from driftline.storage.workspace.records import FORMAT_VERSION, BranchRecord, parse_record, read_record
from driftline.storage.workspace.workspace import Workspace

FULL_EVERY = timedelta(days=7)
"""A cleanup lists everything if none has for so long: what no lease tells of is found then."""
READ_THREADS = 16
FIRST_TOKENS = 2
"""The tokens that the first run of a branch takes: to cut it, and to index it."""


class LeaseState(BaseModel):
    """A released lease: its ``version`` in a listing, how many holders failed, and the cut of its branch, if any."""

    model_config = ConfigDict(frozen=True)

    version: str
    failures: int = 0
    cut: str | None = None


class CleanupRecord(BaseModel):
    """The content of ``_cleanup.json``: when everything was listed, and the leases of each tenant without garbage."""

    model_config = ConfigDict(frozen=True)

    format_version: int = FORMAT_VERSION
    workspace_id: str
    listed: datetime
    clean: Mapping[str, Mapping[str, LeaseState]] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Traces:
    """What leases tell of garbage: the directories of ``suspects``, the tenants that must be listed.

    ``leases`` has the state of all leases of each tenant; None for a tenant that is in use, or was abandoned.
    ``listed`` is the time of the last complete listing; None if everything must be listed.
    """

    suspects: frozenset[str]
    leases: Mapping[str, Mapping[str, LeaseState] | None]
    listed: datetime | None


def read_traces(workspace: Workspace, *, now: datetime, full: bool = False) -> Traces:
    """Read the leases that have changed since the last cleanup.

    Everything must be listed if ``full``, without a record of this workspace, or after FULL_EVERY. Raises CorruptFile,
    WorkspaceTooNew, AccessDenied, StorageError.
    """
    objects = workspace.objects
    record = _read(workspace)
    expired = record is None or abs(now - record.listed) >= FULL_EVERY
    known = record.clean if record is not None and not (full or expired) else {}
    suspects: set[str] = set()
    leases: dict[str, Mapping[str, LeaseState] | None] = {}
    for tenant in filter(is_tenant, objects.list_dirs()):
        found = objects.list(f"{tenant}/_leases", recursive=False)
        states = _states(workspace, found, known.get(tenant, {}))
        whole = {path: state for path, state in states.items() if state is not None}
        leases[tenant] = whole if len(whole) == len(states) else None
        if tenant not in known or leases[tenant] is None or _tells_of_garbage(whole, known[tenant]):
            suspects.add(tenant)
    return Traces(frozenset(suspects), leases, None if full or expired or record is None else record.listed)


def _states(
    workspace: Workspace, listed: Iterable[ObjectInfo], known: Mapping[str, LeaseState]
) -> dict[str, LeaseState | None]:
    """Return the state of each lease; None for one that is held or was abandoned. Only changed ones are read."""
    infos = [info for info in listed if parse_name(info.path).kind in (Kind.PERMANENT, Kind.BRANCH_LEASE)]
    states: dict[str, LeaseState | None] = {
        info.path: known[info.path] for info in infos if info.path in known and known[info.path].version == info.version
    }
    changed = [info for info in infos if info.path not in states]
    with ThreadPoolExecutor(1 if workspace.objects.is_local else READ_THREADS) as pool:
        read = pool.map(lambda info: _state(workspace, info, known.get(info.path)), changed)
        return states | dict(zip((info.path for info in changed), read, strict=True))


def _state(workspace: Workspace, info: ObjectInfo, known: LeaseState | None) -> LeaseState | None:
    sighting = look(workspace.objects, info.path)
    if not sighting.is_free or sighting.is_abandoned:
        return None
    failures = sighting.failures
    if parse_name(info.path).kind is not Kind.BRANCH_LEASE:
        return LeaseState(version=info.version, failures=failures)
    record = read_record(workspace.objects, f"{branch_of_lease(info.path)}/{BRANCH}", BranchRecord)
    if record is None:
        return None  # the lease of a deleted branch is garbage itself, and stays until everything of the branch is gone
    if known is None and sighting.token > FIRST_TOKENS:
        failures += 1  # it may have been cut more than once
    return LeaseState(version=info.version, failures=failures, cut=record.cut)


def _tells_of_garbage(leases: Mapping[str, LeaseState], known: Mapping[str, LeaseState]) -> bool:
    new = LeaseState(version="")
    return any(
        state.failures != known.get(path, new).failures
        or (path in known and state.cut != known[path].cut)  # the former cut is deleted after its lease is released
        for path, state in leases.items()
    )


def write_traces(workspace: Workspace, traces: Traces, *, now: datetime, garbage: Iterable[str]) -> None:
    """Record that, apart from those with ``garbage`` left, each tenant is as clean as its leases were in ``traces``.

    A record that another cleanup has written meanwhile is kept. Raises StorageError.
    """
    left = {*garbage}
    clean = {tenant: leases for tenant, leases in traces.leases.items() if leases is not None and tenant not in left}
    record = CleanupRecord(
        workspace_id=workspace.config.workspace_id, listed=now if traces.listed is None else traces.listed, clean=clean
    )
    objects, data = workspace.objects, record.model_dump_json(exclude_defaults=True).encode()
    write = partial(objects.create, CLEANUP, data)
    try:
        _, version = objects.get_versioned(CLEANUP)
        write = partial(objects.replace, CLEANUP, data, version)
    except ObjectNotFound:
        pass
    try:
        write()
    except (AlreadyExists, PreconditionFailed):
        return


def _read(workspace: Workspace) -> CleanupRecord | None:
    """Return the record of this workspace; None without one. A damaged one only costs a listing."""
    objects: ObjectStore = workspace.objects
    try:
        record = parse_record(objects, CLEANUP, objects.get(CLEANUP), CleanupRecord)
    except (ObjectNotFound, CorruptFile):
        return None
    return record if record.workspace_id == workspace.config.workspace_id else None

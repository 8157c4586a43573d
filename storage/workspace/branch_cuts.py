"""Create, read and delete source branches: each is a cut of the main index and stores only the differences (decision
0015).

A cut is a branch of the tenant's line table with its own manifest, both named by a ULID. ``_branch.json`` records the
current cut. A cut that no record references is garbage, left by a killed run, a deleted branch or a replaced cut.
"""

from __future__ import annotations

import contextlib
import logging
import re
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from driftline.storage.deltas.manifest import token_of
from driftline.storage.entities import Boundary, Entity
from driftline.storage.errors import NotIndexed, ObjectNotFound, PreconditionFailed, StorageError, UsageError
from driftline.storage.json_records import to_json
from driftline.storage.lance.failures import with_lance_retries, writing
from driftline.storage.layout import BASE, BRANCH, branches_directory, cut_of, lance_branch, new_ulid, staged_name
from driftline.storage.lines.commit_marker import CommitMarker
from driftline.storage.lines.line_table import LineTable
from driftline.storage.workspace.records import BranchRecord, parse_record, read_record
from driftline.storage.workspace.workspace import Branch, Workspace

if TYPE_CHECKING:
    from lance import LanceDataset

log = logging.getLogger(__name__)

MAX_NAME_CHARACTERS = 200
CUT_ATTEMPTS = 20
"""How often to retry reading a table version and the manifest at the same revision, while runs commit."""
_ANSWER_LOST = re.compile(r"Ref conflict|Clone operation should not enter build_manifest")
"""Lance's error for a new branch if it repeats a request that succeeded but whose response was lost."""


def check_name(name: str) -> None:
    """Check that ``name`` is a valid branch name. Raises UsageError."""
    if not _is_name(name):
        fix = f"Use at most {MAX_NAME_CHARACTERS} printable characters, with no spaces at either end."
        raise UsageError("Not a valid branch name", repr(name), fix)


def _is_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME_CHARACTERS and name == name.strip() and name.isprintable()


# -- records -----------------------------------------------------------------------------------


def read_branch(workspace: Workspace, entity: Entity, name: str) -> BranchRecord | None:
    """Return the record of a source's branch, or None. Raises CorruptFile, WorkspaceTooNew."""
    return read_record(workspace.objects, Branch(entity, name, "").record_path, BranchRecord)


def branch_records(workspace: Workspace, entity: Entity, most: int | None = None) -> list[BranchRecord]:
    """Return a source's branches, or the ``most`` whose directories come first, sorted by name.

    Raises CorruptFile, WorkspaceTooNew, StorageError.
    """
    objects, directory = workspace.objects, branches_directory(entity)
    paths = [f"{directory}/{name}/{BRANCH}" for name in objects.list_dirs(directory)[:most]]
    records = workspace.map_parallel(lambda path: read_record(objects, path, BranchRecord), paths)
    return sorted((record for record in records if record is not None), key=lambda record: record.name)


def branch_at(entity: Entity, record: BranchRecord) -> Branch:
    """Return the branch that a source's ``record`` describes."""
    return Branch(entity, record.name, record.cut)


def on_branch(workspace: Workspace, name: str, within: Boundary | None = None) -> Workspace:
    """Return ``workspace`` with every source ``within`` the boundary switched to its branch ``name``, if it has one.

    Raises NotIndexed if no source has it, UsageError if the branch was embedded with a different model.
    """
    check_name(name)
    sources = [entity for entity, _ in workspace.readable_sources(within)]
    records = [*workspace.map_parallel(lambda entity: read_branch(workspace, entity, name), sources)]
    found = [(entity, record) for entity, record in zip(sources, records, strict=True) if record is not None]
    if not found:
        known = sorted({record.name for entity in sources for record in branch_records(workspace, entity)})
        fix = f"It has: {', '.join(known[:20])}{', ...' if len(known) > 20 else ''}." if known else "It has none."
        raise NotIndexed("The workspace has no branch with this name", name, fix)
    for _, record in found:
        if record.fingerprint != workspace.config.fingerprint:
            fix = f"Index it again: driftline index --branch {name}"
            raise UsageError("The branch was embedded with a different model than the workspace", name, fix)
    return workspace.on(branch_at(entity, record) for entity, record in found)


def has_branch(workspace: Workspace, name: str, within: Boundary | None = None) -> bool:
    """Return whether any source ``within`` a boundary has a branch with this name."""
    check_name(name)
    return any(read_branch(workspace, entity, name) is not None for entity, _ in workspace.readable_sources(within))


# -- cuts --------------------------------------------------------------------------------------


def cut(workspace: Workspace, entity: Entity, name: str, lease_token: int) -> BranchRecord:
    """Create a branch from the newest state of the main index, and return its record, which is not written yet.

    The record has the main index's commit only if no later run changed the index since. The caller holds the branch's
    lease and the tenant's maintenance lease, so no version is removed concurrently. Raises UsageError if the source has
    no main index; also StorageError, CorruptFile.
    """
    table, known = workspace.lines(entity.tenant), workspace.source(entity)
    if known is None or workspace.config.fingerprint is None or not table.exists():
        fix = "Index its default branch first: driftline index SOURCE"
        raise UsageError("The source has no main index to branch from", str(entity), fix)
    dataset, marker, documents, main_revision = _state(workspace, entity, table)
    main_token = max(marker.token, token_of(main_revision))
    token, now = max(lease_token, main_token), datetime.now(UTC)
    commit = known.commit if known.commit is not None and known.commit.token >= main_token else None
    record = BranchRecord(
        name=name,
        entity=str(entity),
        cut=_new_cut(table, dataset),
        fingerprint=workspace.config.fingerprint,
        main_revision=main_revision,
        token=token,
        base=commit.id if commit else None,
        created=now,
        updated=now,
        source=replace(known, commit=commit and replace(commit, token=token)),
    )
    workspace.objects.create(f"{branch_at(entity, record).index_directory}/{BASE}", documents)
    return record


def _new_cut(table: LineTable, dataset: LanceDataset) -> str:
    """Create a branch of a table version. After an unknown outcome, create another; the first one is garbage."""

    def attempt() -> str:
        name = new_ulid().lower()
        dataset.create_branch(lance_branch(name), dataset.version, storage_options=table.options)
        table.sync_branch(name)
        return name

    with writing("Could not create a branch", table.uri):
        for _ in range(CUT_ATTEMPTS - 1):
            try:
                return with_lance_retries(attempt)
            except (OSError, ValueError) as error:
                if not _ANSWER_LOST.search(str(error)):
                    raise
        return with_lance_retries(attempt)


def _state(workspace: Workspace, entity: Entity, table: LineTable) -> tuple[LanceDataset, CommitMarker, bytes, int]:
    """Return a table version, the manifest of the same state as the bytes of a base, and the manifest's revision.

    A commit stages its delta, changes the table, and publishes the delta. So deltas that are covered by the version's
    commit marker but not published yet belong to the state. If the marker is unchanged afterwards, no commit came in
    between.
    """
    documents = workspace.manifest(entity)
    for _ in range(CUT_ATTEMPTS):
        dataset = table.open()
        marker = table.marker_in(dataset, entity)
        staged = [staged_name(batch.run_id, batch.batch) for batch in documents.staged() if marker.holds(batch)]
        with contextlib.suppress(ObjectNotFound):  # published concurrently
            data, reached = documents.snapshot(staged)
            if table.commit_marker(entity) == marker:
                return dataset, marker, data, reached
    raise StorageError("Runs commit faster than a branch can be created", str(entity), "Try again.")


def write_record(workspace: Workspace, entity: Entity, record: BranchRecord, before: BranchRecord | None) -> None:
    """Make ``record`` the branch's record, in place of ``before``. The caller holds the branch's lease.

    Raises PreconditionFailed, AlreadyExists, StorageError.
    """
    path, data = branch_at(entity, record).record_path, to_json(record)
    if before is None:
        workspace.objects.create(path, data)
        return
    found, version = workspace.objects.get_versioned(path)
    if parse_record(workspace.objects, path, found, BranchRecord) != before:
        raise PreconditionFailed("Another run changed this branch", f"{workspace.objects.uri}/{path}")
    workspace.objects.replace(path, data, version)


# -- deletion ----------------------------------------------------------------------------------


def delete(workspace: Workspace, entity: Entity, record: BranchRecord) -> None:
    """Delete a branch, its record first, so that no search finds it half deleted. The caller holds its lease.

    Raises StorageError.
    """
    branch = branch_at(entity, record)
    workspace.objects.delete([branch.record_path])
    delete_cut(workspace, entity, record.cut, branch.index_directory)


def delete_cut(workspace: Workspace, tenant: Entity, cut: str, index_directory: str | None) -> None:
    """Delete the content of an unreferenced cut: its branch in any table, and its manifest.

    Raises StorageError.
    """
    for table in workspace.on(()).line_tables(tenant.tenant):
        with writing("Could not delete a branch", table.uri):
            with_lance_retries(partial(_delete_from, table, cut))
    if index_directory is not None:
        objects = workspace.objects
        objects.delete([info.path for info in objects.list(index_directory, temporary=True)])


def _delete_from(table: LineTable, cut: str) -> None:
    if cut in cuts_of(table):
        try:
            table.open().branches.delete(lance_branch(cut))
        except ValueError as error:
            if "Ref not found" not in str(error):  # another process deleted it concurrently
                raise


def cuts_of(table: LineTable) -> dict[str, datetime]:
    """Return the cuts in a line table with their creation times. Raises StorageError, CorruptFile."""
    if not table.exists():
        return {}
    found = with_lance_retries(table.open().branches.list)
    return {
        cut: datetime.fromtimestamp(branch["create_at"], UTC)
        for name, branch in found.items()
        if (cut := cut_of(name)) is not None
    }

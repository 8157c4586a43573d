"""Commit a source's batches, settle staged deltas of killed runs, and build index segments (DESIGN, "Index run").

A new model's table replaces the old one once it contains every source completely (DESIGN, "Embedding").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.deltas.delta_index import ADD, REMOVE
from driftline.storage.deltas.manifest import SCHEMA, BatchId, Manifest, revision
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError, LeaseHeld, LeaseLost
from driftline.storage.lance.lance_table import rewrite
from driftline.storage.layout import derived_ulid, new_ulid
from driftline.storage.leases.lease import Lease, leave_held_on_failure
from driftline.storage.lines.commit_marker import SourceCommit
from driftline.storage.lines.indexes import Segment, SegmentSpec, build_segment
from driftline.storage.lines.line_table import LineTable
from driftline.storage.workspace.workspace import Workspace, acquire_source
from driftline.tasks.task_context import ModelRef, TaskContext, release_memory


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """The changes of one commit: manifest ``rows`` to add, ``removed`` and ``replaced`` paths, new ``fragments``.

    The commit removes the old lines of ``replaced`` and ``removed`` documents.
    """

    rows: pa.Table
    fragments: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def touches_lines(self) -> bool:
        return bool(self.fragments or self.replaced or self.removed)


@dataclass(slots=True)
class Committer:
    """The only code that commits to a source, under its lease. ``batch`` counts its commits, from 1."""

    workspace: Workspace
    entity: Entity
    lease: Lease
    run_id: str
    table: LineTable
    dim: int
    batch: int = 0
    _documents: Manifest = field(init=False)

    def __post_init__(self) -> None:
        self._documents = self.workspace.manifest(self.entity)

    def commit(self, changes: ChangeSet) -> None:
        """Make ``changes`` visible exactly once, despite retries and interruptions.

        It stages the manifest delta, runs one table transaction, and publishes the delta. After a crash at any step,
        the next run can settle it. Raises LeaseLost, CommitConflict, StorageError.
        """
        if changes.touches_lines:
            self.table.create(self.dim)  # before the lease is checked: a successor can then fence the table
            staged = self.stage(changes)
            self.table.commit([staged.part], changes.fragments)
            self._documents.publish_staged(staged.batch, staged.data)
            return
        self.batch += 1
        rows = self._delta(changes)
        self.lease.check()
        self._documents.append(derived_ulid(self.run_id, self.batch), rows)

    def stage(self, changes: ChangeSet) -> Staged:
        """Write the delta of ``changes`` for a transaction that may include other sources.

        Raises LeaseLost, StorageError.
        """
        self.batch += 1
        batch = BatchId(self.run_id, self.batch)
        rows = self._delta(changes)
        self.lease.check()
        gone = (*changes.replaced, *changes.removed)
        part = SourceCommit(self.entity, self.lease.token, batch, gone)
        return Staged(self, part, batch, self._documents.stage(batch, rows))

    def publish(self, staged: Staged) -> None:
        """Publish a delta whose transaction was committed; the staged file is kept. Raises StorageError."""
        self._documents.publish_and_keep(staged.batch, staged.data)

    @property
    def staged_path(self) -> str:
        """The path of the last staged delta."""
        return self._documents.staged_path(BatchId(self.run_id, self.batch))

    def remove_lines(self, paths: Sequence[str]) -> None:
        """Remove the lines of documents that are not in the manifest; the manifest does not change."""
        self.batch += 1
        self.lease.check()
        batch = BatchId(self.run_id, self.batch)
        self.table.commit([SourceCommit(self.entity, self.lease.token, batch, tuple(paths))], ())

    def _delta(self, changes: ChangeSet) -> pa.Table:
        rev, now = revision(self.lease.token, self.batch), datetime.now(UTC)
        added = self._documents.changes(ADD, rev, changes.rows.select(SCHEMA.names), now=now)
        if not changes.removed:
            return added
        paths = pa.table({"path": pa.array(changes.removed, pa.string())})
        return pa.concat_tables([added, self._documents.changes(REMOVE, rev, paths, now=now)])


@dataclass(frozen=True, slots=True)
class Staged:
    """A source's staged delta, and its ``part`` of the transaction."""

    committer: Committer
    part: SourceCommit
    batch: BatchId
    data: bytes


class GroupCommitFailed(Exception):
    """The transaction of a group of sources can never be committed: each source must be committed alone."""


def commit_together(changes: Sequence[tuple[Committer, ChangeSet]], fragments: Sequence[str]) -> list[Staged]:
    """Commit changes to several sources, whose rows share ``fragments``, in one table transaction.

    Each source has its own staged delta and commit marker, so after a crash each source is settled on its own. The
    caller publishes the returned deltas. Raises GroupCommitFailed if a source cannot take part, after removing the
    staged deltas, and CommitConflict or StorageError if the outcome is unknown; the next run finds out.
    """
    first = changes[0][0]
    first.table.create(first.dim)
    try:
        staged = [*first.workspace.map_parallel(lambda each: each[0].stage(each[1]), changes)]
    except DriftlineError as error:
        _discard(committer for committer, _ in changes)
        raise GroupCommitFailed from error
    try:
        first.table.commit([each.part for each in staged], fragments)
    except LeaseLost as error:
        _discard(committer for committer, _ in changes)
        raise GroupCommitFailed from error
    return staged


def publish_together(staged: Sequence[Staged]) -> list[DriftlineError | None]:
    """Publish the deltas of one transaction, then remove all staged files in one step.

    Returns, in the order of ``staged``, why the next run must settle a source, or None.
    """

    def publish(each: Staged) -> DriftlineError | None:
        try:
            each.committer.publish(each)
        except DriftlineError as error:
            return error
        return None

    failures = [*staged[0].committer.workspace.map_parallel(publish, staged)]
    try:
        _discard(each.committer for each, failure in zip(staged, failures, strict=True) if failure is None)
    except DriftlineError as error:
        return [failure or error for failure in failures]
    return failures


def _discard(committers: Iterable[Committer]) -> None:
    """Remove the last staged deltas of ``committers`` in one workspace."""
    found = [each for each in committers if each.batch]
    if found:
        found[0].workspace.objects.delete([each.staged_path for each in found])


def settle(workspace: Workspace, entity: Entity, lease: Lease) -> int:
    """Publish or discard earlier runs' staged deltas, fence those runs off, and return how many were published.

    A staged delta is published if a commit marker contains its batch, and discarded otherwise. A holder that released
    its lease no longer commits, so only a holder whose lease was taken over must be fenced off. Raises CorruptFile,
    StorageError.
    """
    done, dead = publish_committed(workspace, entity, lease)
    workspace.manifest(entity).discard_staged(dead)
    return done


def publish_committed(workspace: Workspace, entity: Entity, lease: Lease) -> tuple[int, list[BatchId]]:
    """Like ``settle``, but discard nothing: return ``(number published, dead batches that can never be committed)``."""
    with leave_held_on_failure(lease):
        return _publish_committed(workspace, entity, lease)


def _publish_committed(workspace: Workspace, entity: Entity, lease: Lease) -> tuple[int, list[BatchId]]:
    documents = workspace.manifest(entity)
    staged = documents.staged()
    if not staged and not lease.taken_over:
        return 0, []
    if workspace.config.dim is not None:
        workspace.lines(entity).create(workspace.config.dim)  # fencing writes a row to the table
    # A run that died before its first commit leaves a folder with fragments but no table.
    tables = [table for table in workspace.line_tables(entity) if table.exists()]
    markers = [table.fence(entity, lease.token) for table in tables]
    staged = documents.staged()  # again, because the previous holder may have committed before it was fenced off
    done = [batch for batch in staged if any(marker.holds(batch) for marker in markers)]
    for batch in done:
        documents.publish_staged(batch)
    return len(done), [batch for batch in staged if batch not in done]


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """A segment to build for the table of ``owner`` (``Workspace.lines``) and a model fingerprint."""

    owner: Entity
    fingerprint: str
    spec: SegmentSpec


def build(task: SegmentTask, context: TaskContext) -> Segment:
    """Build the segment; it is invisible until the coordinator publishes it. Raises StorageError."""
    segment = build_segment(context.workspace.lines(task.owner, task.fingerprint), task.spec)
    release_memory()
    return segment


@dataclass(frozen=True, slots=True)
class RewriteSpec:
    """A task from the compaction plan of a table, identified by tenant and fingerprint."""

    tenant: Entity
    fingerprint: str
    task: Any


def rewrite_fragments(spec: RewriteSpec, context: TaskContext) -> Any:
    """Execute a compaction task on any worker and return its result for the commit."""
    return rewrite(context.workspace.lines(spec.tenant, spec.fingerprint), spec.task)


def complete_reembedding(workspace: Workspace, model: ModelRef, replaces: str, report: Callable[[str], None]) -> bool:
    """Make ``model`` current if all sources are embedded with it, and return whether it is current.

    Otherwise report which sources are missing, and keep the old table. Holds all sources' leases until it returns.
    Raises FingerprintMismatch if a third model became current.
    """
    run_id = new_ulid()
    missing = []
    with ExitStack() as leases:
        for entity, _ in workspace.sources():
            try:
                lease = leases.enter_context(acquire_source(workspace, entity, run_id))
            except LeaseHeld as error:
                report(f"The old model stays current until the next run with --reembed: {error.what}")
                return False
            settle(workspace, entity, lease)
            manifest = workspace.manifest(entity).read(columns=["fingerprint", "reason"])
            documents = manifest.filter(pc.is_null(manifest["reason"]))
            if pc.any(pc.not_equal(documents["fingerprint"], model.fingerprint)).as_py():
                missing.append(str(entity))
            table = workspace.lines(entity, model.fingerprint)
            remove_lines_without_document(Committer(workspace, entity, lease, run_id, table, model.dim))
        if missing:
            report(f"The old model stays current until these sources are re-embedded: {', '.join(missing)}")
            return False
        workspace.bind_model(model.name, model.fingerprint, model.dim, instead_of=replaces)
    return True


def remove_lines_without_document(committer: Committer) -> int:
    """Remove the lines of documents that are not in the manifest, and return the number of documents.

    A run writes only one of a tenant's two tables, so the other keeps the lines of documents that the run deletes.
    """
    if not committer.table.exists():
        return 0
    manifest = committer.workspace.manifest(committer.entity).read(columns=["path", "reason"])
    indexed = manifest.filter(pc.is_null(manifest["reason"]))["path"].to_pylist()
    strays = committer.table.paths(committer.entity).difference(indexed)
    if strays:
        committer.remove_lines(sorted(strays))
    return len(strays)

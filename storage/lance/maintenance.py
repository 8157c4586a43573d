"""Compacts the fragments of a table and removes its old versions (DESIGN, "Compaction").

Index optimization, compaction and version clean-up conflict with each other, so one process runs them in sequence
under the tenant's maintenance lease. Only rewriting is distributed over workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from driftline.storage.errors import CommitConflict
from driftline.storage.lance.errors import is_conflict, write_failed, writing
from driftline.storage.lance.retries import is_network_failure, persistently
from driftline.storage.lance.table import LanceTable

if TYPE_CHECKING:
    from lance.optimize import CompactionOptions, CompactionTask, RewriteResult

_OPTIONS: CompactionOptions = {"target_rows_per_fragment": 1024 * 1024, "num_threads": 1}


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The tasks of a compaction of ``version``. Each task is picklable input for ``rewrite`` on any worker."""

    version: int
    tasks: tuple[CompactionTask, ...]


def plan_compaction(table: LanceTable) -> CompactionPlan:
    """Plan which fragments to merge, and which to rewrite without their deleted rows."""
    from lance.optimize import Compaction

    dataset = table.open()
    plan = persistently(lambda: Compaction.plan(dataset, _OPTIONS))
    return CompactionPlan(dataset.version, tuple(plan.tasks))


def rewrite(table: LanceTable, task: CompactionTask) -> RewriteResult:
    """Rewrite the fragments of a task under new names, invisible until the commit. The result is picklable.

    Raises StorageError.
    """
    with writing("Could not rewrite fragments", table.uri):
        return persistently(lambda: task.execute(table.open(task.read_version)))


def commit_compaction(table: LanceTable, plan: CompactionPlan, rewritten: Sequence[RewriteResult]) -> None:
    """Replace the compacted fragments by the results of all tasks, in one version.

    Raises CommitConflict if a writer has changed one of the fragments since the plan, or the store failed in passing,
    and StorageError if it failed otherwise. After either, plan and rewrite again: a commit that fails deletes the
    rewritten fragments, so that repeating it would lose their rows.
    """
    from lance.optimize import Compaction

    try:
        Compaction.commit(table.open(plan.version), list(rewritten), _OPTIONS)
    except OSError as error:  # includes CommitConflictError
        if is_conflict(error):
            raise CommitConflict("A writer has changed the compacted fragments", table.uri, "Try again.") from error
        if is_network_failure(error):
            raise CommitConflict(
                "The store failed during the commit of a compaction", table.uri, "Try again."
            ) from error
        raise write_failed("Could not commit a compaction", table.uri, error) from error


def remove_old_versions(table: LanceTable, older_than: timedelta) -> int:
    """Delete versions older than ``older_than`` and the files that only they use; returns the number of versions.

    Files of uncommitted transactions stay until they are a week old, because a worker may still write them. The caller
    has fenced every writer of the tenant. Raises StorageError.
    """
    with writing("Could not remove old versions", table.uri):
        stats = persistently(
            lambda: table.open().cleanup_old_versions(
                max(older_than, timedelta(microseconds=1)), delete_unverified=False, error_if_tagged_old_versions=False
            )
        )
    return int(stats.old_versions)

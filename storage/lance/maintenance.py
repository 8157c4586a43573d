"""Keeps a table of lines small: compaction of its fragments, and removal of its old versions (DESIGN, "Compaction").

Optimising indexes, compaction and clean-up conflict with each other, so one place does them in turn, under the
tenant's maintenance lease. Only rewriting is spread over workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from driftline.storage.errors import CommitConflict
from driftline.storage.lance.errors import write_failed, writing
from driftline.storage.lance.table import LanceTable

if TYPE_CHECKING:
    from lance.optimize import CompactionOptions, CompactionTask, RewriteResult

_CONFLICT = "commit conflict"
"""What Lance says of a compaction that was overtaken; other commits raise CommitConflictError, this one OSError."""
_OPTIONS: CompactionOptions = {"target_rows_per_fragment": 1024 * 1024, "num_threads": 1}


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What to rewrite, of which version. ``tasks`` pickle, and each is for ``rewrite``, on any worker."""

    version: int
    tasks: tuple[CompactionTask, ...]


def plan_compaction(table: LanceTable) -> CompactionPlan:
    """Which fragments to merge, and which to rid of their deleted rows."""
    from lance.optimize import Compaction

    dataset = table.open()
    plan = Compaction.plan(dataset, _OPTIONS)
    return CompactionPlan(dataset.version, tuple(plan.tasks))


def rewrite(table: LanceTable, task: CompactionTask) -> RewriteResult:
    """Write the fragments of one task anew, under new names; nobody sees them before the commit. The result pickles."""
    with writing("Fragments could not be rewritten", table.uri):
        return task.execute(table.open(task.read_version))


def commit_compaction(table: LanceTable, plan: CompactionPlan, rewritten: Sequence[RewriteResult]) -> None:
    """Put the results of all tasks in the place of what they were made of, in one version.

    Raises CommitConflict when a writer has changed one of those fragments since the plan, and StorageError when the
    outcome is unknown: plan again then, which finds out.
    """
    from lance.commit import CommitConflictError
    from lance.optimize import Compaction

    try:
        Compaction.commit(table.open(plan.version), list(rewritten), _OPTIONS)
    except (CommitConflictError, OSError) as error:
        if isinstance(error, CommitConflictError) or _CONFLICT in str(error):
            raise CommitConflict("Writers have changed the fragments that were compacted", table.uri) from error
        raise write_failed("A compaction was not committed", table.uri, error) from error


def remove_old_versions(table: LanceTable, older_than: timedelta) -> int:
    """Delete versions older than this, and the files that only they need; returns how many.

    Files of transactions that are not committed stay, unless they are a week old: a worker may be writing them. The
    caller has fenced off every writer of the tenant. Raises StorageError.
    """
    with writing("Old versions could not be removed", table.uri):
        stats = table.open().cleanup_old_versions(
            max(older_than, timedelta(microseconds=1)), delete_unverified=False, error_if_tagged_old_versions=False
        )
    return int(stats.old_versions)

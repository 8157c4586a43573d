"""Limit what one run deletes from the index, so that a source that is unmounted or listed incompletely keeps its part.

Documents, sources, repositories and branches are deleted only if the listing that lacks them is complete, and no more
of them at once than a fraction of those known. ``--max-delete-fraction 1`` confirms larger deletions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from driftline.flows.config.index_request import IndexRequest
from driftline.storage.documents import INSIDE
from driftline.storage.errors import DeletionRefused
from driftline.tasks.scanning.overlap import Claim, claimed
from driftline.tasks.scanning.path_patterns import Matcher, Rules
from driftline.tasks.scanning.scan import ScanResult

GUARDED_DOCUMENTS = 100
"""Up to this many documents may always be deleted."""
GUARDED_REPOSITORIES = 3
"""Up to this many repositories of a fleet, or branches of a repository, may always be deleted."""


@dataclass(frozen=True, slots=True)
class DeletionLimit:
    """Allows ``always`` deletions, and more only up to ``max_fraction`` (0 to 1) of what is known."""

    max_fraction: float
    always: int

    @classmethod
    def of_documents(cls, request: IndexRequest) -> Self:
        """Return how many of a source's documents a run may delete."""
        return cls(request.max_delete_fraction, GUARDED_DOCUMENTS)

    @classmethod
    def of_repositories(cls, request: IndexRequest) -> Self:
        """Return how many of a fleet's repositories a sync may retire, and how many branches of each it may delete."""
        return cls(request.max_delete_fraction, GUARDED_REPOSITORIES)

    def allows(self, lost: int, known: int) -> bool:
        """Return whether ``lost`` of ``known`` things may be deleted."""
        return lost <= self.always or lost <= self.max_fraction * known

    @property
    def is_off(self) -> bool:
        return self.max_fraction >= 1

    def refusal(self, lost: int, known: int, what: str, where: str) -> DeletionRefused | None:
        """Return the error for deleting ``lost`` of ``known`` things, which are called ``what``, or None if allowed."""
        if self.allows(lost, known):
            return None
        return DeletionRefused(
            f"{lost:,} of {known:,} {what} are missing, more than the fraction {self.max_fraction:g}; "
            "the index keeps them",
            where,
            "To delete them, run again with --max-delete-fraction 1.",
        )


def missing_documents(scans: Sequence[ScanResult]) -> pa.Table | None:
    """Return the documents that the listing lacks (diff.DELETED_SCHEMA), or None if it is incomplete and lacks any."""
    missing = pa.concat_tables([scan.diff.deleted for scan in scans])
    return missing if not len(missing) or all(scan.complete for scan in scans) else None


def unexplained_deletions(missing: pa.Table, rules: Rules, claims: Sequence[Claim]) -> pa.Table:
    """Return the ``missing`` documents that count towards the limit.

    Documents that the request excludes or another source claims do not count, nor do files that were skipped.
    """
    documents = missing.filter(pc.is_null(missing["reason"]))
    paths = documents["path"].combine_chunks()
    left_out = Matcher(rules).excluded(paths) | claimed(paths, claims)
    if not rules.archives:
        left_out |= pc.match_substring(paths, INSIDE).to_numpy(zero_copy_only=False)
    return documents.filter(pa.array(~left_out))


def count_missing(documents: pa.Table, new_hashes: Counter[str]) -> int:
    """Return how many ``documents`` are gone; those whose content a new document has were only renamed."""
    return len(documents) - (Counter(documents["hash"].to_pylist()) & new_hashes).total()

"""Find a workspace's unreferenced objects: a pure function of a listing (DESIGN, "Cleanup").

Only objects with a name that the layout defines can be orphans. All others are unrecognized: reported, never deleted.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from driftline.storage.layout import Name, ObjectInfo, ObjectKind, branch_of_lease, cut_at

RUN_RETENTION = timedelta(days=90)


class Reason(enum.StrEnum):
    """Why an object is an orphan."""

    FOLDED = "folded into the base"
    DEAD_RUN = "staged by a dead run and never committed"
    UNCOMMITTED = "belongs to no version of its table"
    SUPERSEDED = "table of a superseded embedding"
    EXPIRED = "run record beyond its retention"
    TEMPORARY = "left by a write that was killed"
    UNOWNED = "memory blob that no entry refers to"
    NO_BRANCH = "belongs to no branch any more"


@dataclass(frozen=True, slots=True)
class References:
    """The references in a workspace. Objects not covered by these fields are not orphans.

    ``folded`` lists the deltas already folded into their base, and ``dead`` lists the staged deltas that can never be
    committed. ``tracked`` maps each table to the paths, relative to the table, that its versions refer to.
    ``superseded`` maps each unused embedding table to the time it was replaced. ``blobs`` contains the paths referenced
    by memory entries; None without a catalog. ``retired`` maps blobs to the time they lost their entry. ``cuts`` lists
    the cuts that contain branches, and ``branches`` lists the directories of existing or leased branches; both are None
    if they were not read.
    """

    folded: frozenset[str] = frozenset()
    dead: frozenset[str] = frozenset()
    tracked: Mapping[str, frozenset[str]] = field(default_factory=dict)
    superseded: Mapping[str, datetime] = field(default_factory=dict)
    blobs: frozenset[str] | None = None
    retired: Mapping[str, datetime] = field(default_factory=dict)
    cuts: frozenset[str] | None = None
    branches: frozenset[str] | None = None


class Orphan(NamedTuple):
    """An object that cleanup may delete."""

    path: str
    size_bytes: int
    age_seconds: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """``orphans`` in deletion order, and the sorted paths of ``foreign`` (unrecognized) objects."""

    orphans: tuple[Orphan, ...]
    foreign: tuple[str, ...]


def find_orphans(
    named: Sequence[tuple[ObjectInfo, Name]],
    references: References,
    *,
    now: datetime,
    max_age: timedelta,
    run_retention: timedelta = RUN_RETENTION,
) -> GarbageReport:
    """Return the unreferenced objects of a listing that are at least ``max_age`` old.

    ``now`` is the current time by the store's clock. Run records expire after ``run_retention``, except each tenant's
    newest. A superseded table is deleted as a whole, ``max_age`` after both its last write and its replacement.
    """
    classifier = _Classifier.of(named, references, now, max_age, run_retention)
    orphans = []
    for info, name in named:
        reason = classifier.reason_of(info, name)
        if reason is not None:
            age = (now - info.modified).total_seconds()
            orphans.append((_turn(name, reason), Orphan(info.path, info.size_bytes, age, reason)))
    orphans.sort(key=lambda pair: (pair[0], pair[1].path))
    foreign = sorted(info.path for info, name in named if name.kind is ObjectKind.FOREIGN)
    return GarbageReport(tuple(orphan for _, orphan in orphans), tuple(foreign))


@dataclass(frozen=True, slots=True)
class _Classifier:
    """Classify single objects by references, ages, and facts about the whole listing."""

    references: References
    now: datetime
    max_age: timedelta
    run_retention: timedelta
    newest_runs: frozenset[str]
    orphaned_tables: frozenset[str]
    orphaned_cuts: frozenset[str]

    @classmethod
    def of(
        cls,
        named: Sequence[tuple[ObjectInfo, Name]],
        references: References,
        now: datetime,
        max_age: timedelta,
        run_retention: timedelta,
    ) -> _Classifier:
        """Create the classifier for a listing."""
        newest_run: dict[str, str] = {}
        newest_file: dict[str, datetime] = {}
        newest_of_cut: dict[str, datetime] = {}
        for info, name in named:
            if name.kind is ObjectKind.BRANCH and (cut := cut_at(info.path)) is not None:
                newest_of_cut[cut] = max(newest_of_cut.get(cut, info.modified), info.modified)
            if name.kind is ObjectKind.RUN:
                newest_run[name.directory] = max(newest_run.get(name.directory, ""), info.path)
            elif name.directory in references.superseded:
                newest_file[name.directory] = max(newest_file.get(name.directory, info.modified), info.modified)
        orphaned = frozenset(
            table
            for table, newest in newest_file.items()
            if min(now - newest, now - references.superseded[table]) >= max_age
        )
        dead = newest_of_cut.keys() - references.cuts if references.cuts is not None else set()
        cuts = frozenset(cut for cut in dead if now - newest_of_cut[cut] >= max_age)
        return cls(references, now, max_age, run_retention, frozenset(newest_run.values()), orphaned, cuts)

    def reason_of(self, info: ObjectInfo, name: Name) -> Reason | None:
        """Return the reason why an object is an orphan, or None."""
        age = self.now - info.modified
        if name.directory in self.orphaned_tables:
            return Reason.SUPERSEDED
        if name.kind is ObjectKind.RUN:
            return Reason.EXPIRED if age >= self.run_retention and info.path not in self.newest_runs else None
        if age < self.max_age:
            return None
        references = self.references
        match name.kind:
            case ObjectKind.TEMPORARY:
                return Reason.TEMPORARY
            case ObjectKind.BRANCH if cut_at(info.path) in self.orphaned_cuts:
                return Reason.NO_BRANCH
            case ObjectKind.BRANCH if cut_at(info.path) is None and "/.tmp-" in info.path:
                return Reason.TEMPORARY
            case ObjectKind.BRANCH_LEASE if references.branches is not None:
                gone = branch_of_lease(info.path) not in references.branches
                return Reason.NO_BRANCH if gone else None
            case ObjectKind.DELTA if info.path in references.folded:
                return Reason.FOLDED
            case ObjectKind.STAGED if info.path in references.dead:
                return Reason.DEAD_RUN
            case ObjectKind.TABLE if (
                name.directory in references.tracked and name.rest not in references.tracked[name.directory]
            ):
                return Reason.UNCOMMITTED
            case ObjectKind.BLOB if references.blobs is not None and info.path not in references.blobs:
                since = references.retired.get(info.path, info.modified)
                retired_for = max(self.now - since, timedelta(0))  # the store's clock and the writer's may differ
                return Reason.UNOWNED if retired_for >= self.max_age else None
        return None


def _turn(name: Name, reason: Reason) -> int:
    """Return the position in the deletion order: in superseded tables, hint and versions go before their files."""
    if reason is Reason.NO_BRANCH and name.rest.startswith("_refs/"):
        return 0  # Lance must forget the branch before its files are deleted
    if reason is not Reason.SUPERSEDED:
        return 3
    return {ObjectKind.TABLE_HINT: 0, ObjectKind.VERSION: 1}.get(name.kind, 2)

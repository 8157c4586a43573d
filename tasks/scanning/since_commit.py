"""Limit a run to the paths that git reports as changed since the last indexed commit (DESIGN, "After a commit")."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import version
from typing import Self

from driftline.storage.ids import content_hash
from driftline.storage.workspace.records import IndexedCommit
from driftline.tasks.git.commits import ChangedPaths, Commit, changes_between, changes_on_disk, head, union
from driftline.tasks.git.work_tree import WorkTree, find_work_tree
from driftline.tasks.scanning.ignore import IGNORE_FILES


@dataclass(frozen=True, slots=True)
class WorkTreeAtCommit:
    """A work tree and the commit that is checked out when a run begins.

    ``scanned_with`` is a hash of all settings that decide what a run indexes. A run with another one scans everything.
    """

    tree: WorkTree
    commit: Commit
    scanned_with: str

    @classmethod
    def look(cls, root: str, rules: object) -> Self | None:
        """The work tree that contains ``root``, or None; the ``repr`` of ``rules`` identifies them."""
        tree = find_work_tree(root)
        commit = head(root) if tree is not None else None
        if tree is None or commit is None:
            return None
        settings = repr((rules, tree.prefix, version("driftline"))).encode() + _read(tree.exclude)
        settings += b"\0" + _read(tree.excludes)
        return cls(tree, commit, content_hash(settings))

    def changes_since(self, last: IndexedCommit | None, token: int | None) -> ChangedPaths:
        """The paths to scan so that an index that was exact at ``last`` is exact for the disk.

        ``token`` is that of the current lease, or None for a dry run, which holds no lease and may miss changes.
        """
        if last is None:
            return ChangedPaths(None, "no indexed commit is recorded")
        if token is not None and last.token != token - 1:
            return ChangedPaths(None, "another run has worked on the source since")
        if last.scanned_with != self.scanned_with:
            return ChangedPaths(None, "the source was indexed with other settings")
        return union(
            changes_between(self.tree, last.id, self.commit.id, ignore_files=IGNORE_FILES),
            changes_on_disk(self.tree, ignore_files=IGNORE_FILES),
        )

    def reached(self, token: int) -> IndexedCommit | None:
        """The commit to record at the end of the run; None unless the disk is still at it."""
        if head(self.tree.root) != self.commit or changes_on_disk(self.tree, ignore_files=IGNORE_FILES).paths != ():
            return None
        return IndexedCommit(
            id=self.commit.id, committed=self.commit.committed, token=token, scanned_with=self.scanned_with
        )


def _read(path: str) -> bytes:
    if not os.path.isfile(path):
        return b""
    with open(path, "rb") as file:
        return file.read()

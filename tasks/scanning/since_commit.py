"""Compare a source with the last indexed commit: the paths that git reports as changed, or why a run scans everything
(DESIGN, "After a commit").
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.metadata import version
from typing import Self

from driftline.storage.documents import content_hash
from driftline.storage.sources.source import RepositorySource
from driftline.storage.workspace.records import IndexedCommit
from driftline.tasks.git.commits import (
    MAX_CHANGED_PATHS,
    ChangedPaths,
    Commit,
    changes_between,
    changes_on_disk,
    head,
    union,
)
from driftline.tasks.git.work_tree import WorkTree, find_work_tree
from driftline.tasks.scanning.path_patterns import IGNORE_FILES, MAX_IGNORE_BYTES, OUR_IGNORE_FILE


@dataclass(frozen=True, slots=True)
class WorkTreeAtCommit:
    """A working tree and the commit that is checked out when a run starts.

    ``scanned_with`` is a hash of all settings that determine what a run indexes. A run with another hash scans
    everything.
    """

    tree: WorkTree
    commit: Commit
    scanned_with: str

    @classmethod
    def of(cls, root: str, rules: object) -> Self | None:
        """Return the working tree that contains ``root``, or None; ``rules`` are identified by their ``repr``."""
        tree = find_work_tree(root)
        commit = head(root) if tree is not None else None
        if tree is None or commit is None:
            return None
        settings = repr((rules, tree.prefix, release())).encode() + _read(tree.exclude)
        settings += b"\0" + _read(tree.excludes)
        return cls(tree, commit, content_hash(settings))

    @property
    def commit_id(self) -> str:
        return self.commit.id

    def changes_since(self, last: IndexedCommit | None, token: int | None) -> ChangedPaths:
        """Return the paths to scan to bring an index from ``last`` to the state on disk.

        ``token`` is the current lease's, or None for a dry run, which holds no lease and may miss changes.
        """
        if (why := _why_outdated(last, self.scanned_with, token)) or last is None:
            return ChangedPaths(None, why)
        return union(
            changes_between(self.tree, last.id, self.commit.id, ignore_files=IGNORE_FILES),
            changes_on_disk(self.tree, ignore_files=IGNORE_FILES),
        )

    @property
    def committed(self) -> datetime:
        """The time of the commit."""
        return self.commit.committed

    def commit_to_record(self, token: int) -> IndexedCommit | None:
        """Return the commit to record at the end of the run; None unless the disk still matches it."""
        if head(self.tree.root) != self.commit or changes_on_disk(self.tree, ignore_files=IGNORE_FILES).paths != ():
            return None
        return IndexedCommit(
            id=self.commit.id, committed=self.commit.committed, token=token, scanned_with=self.scanned_with
        )


@dataclass(frozen=True, slots=True)
class RepositoryAtCommit:
    """A git repository with no working tree, and the commit that a run indexes; otherwise like WorkTreeAtCommit."""

    source: RepositorySource
    scanned_with: str

    @classmethod
    def of(cls, source: RepositorySource, rules: object) -> Self:
        """Return the commit of ``source``; ``rules`` are identified by their ``repr``."""
        return cls(source, content_hash(repr((rules, release())).encode()))

    @property
    def commit_id(self) -> str:
        return self.source.commit

    def is_indexed(self, last: IndexedCommit | None, token: int) -> bool:
        """Return whether the index is at the commit, and the lease was not taken since ``last``."""
        expected = (self.commit_id, self.scanned_with, token)
        return last is not None and (last.id, last.scanned_with, last.token) == expected

    def changes_since(self, last: IndexedCommit | None, token: int | None) -> ChangedPaths:
        """Fetch the commit; otherwise like ``WorkTreeAtCommit.changes_since``."""
        if (why := _why_outdated(last, self.scanned_with, token)) or last is None:
            return ChangedPaths(None, why)
        paths = self.source.tree.changed_since(last.id)
        if paths is None:
            return ChangedPaths(None, f"git cannot compare with {last.id[:12]}, the last indexed commit")
        if any(path.rpartition("/")[2] == OUR_IGNORE_FILE for path in paths):
            return ChangedPaths(None, f"a {OUR_IGNORE_FILE} has changed")
        if len(paths) > MAX_CHANGED_PATHS:
            return ChangedPaths(None, f"{len(paths):,} paths have changed")
        return ChangedPaths(tuple(sorted(paths)))

    @property
    def committed(self) -> datetime:
        """The time of the commit."""
        return self.source.tree.committed()

    def commit_to_record(self, token: int) -> IndexedCommit | None:
        """Return the commit to record at the end of the run."""
        return IndexedCommit(id=self.commit_id, committed=self.committed, token=token, scanned_with=self.scanned_with)


def _why_outdated(last: IndexedCommit | None, scanned_with: str, token: int | None) -> str:
    """Return why the index may differ from ``last``, or "" if it does not. ``token`` is None for a dry run."""
    if last is None:
        return "no earlier run of ci recorded a commit"
    if token is not None and last.token != token - 1:
        return "another run worked on the source since then"
    return "" if last.scanned_with == scanned_with else "the source was indexed with other settings"


@cache
def release() -> str:
    """Return Driftline's version, cached because Python parses a metadata file for it."""
    return version("driftline")


def _read(path: str) -> bytes:
    if not os.path.isfile(path):
        return b""
    with open(path, "rb") as file:
        return file.read(MAX_IGNORE_BYTES + 1)

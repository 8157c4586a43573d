"""Git work trees: find clean files and their blob ids without reading the files.

A blob id identifies the bytes that git stores. Filters (line endings, LFS) may write other bytes to the disk for the
same id; the scan also compares sizes, so that an LFS pointer is not mistaken for its file. If git fails, the tree is
scanned as a plain folder.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.redaction import redacted
from driftline.tasks.git.isolation import Repository, ask, find_repository, finish, run, start

log = logging.getLogger(__name__)

BLOB_SCHEMA = pa.schema([("path", pa.binary()), ("etag", pa.binary())])

_MAX_PATHSPECS = 100
_ID_START = len("H 100644 ")
_PATH_END = 1 << 30  # "to the end"


@dataclass(frozen=True, slots=True)
class WorkTree:
    """A source inside a git work tree.

    ``root`` is the source and ``top`` the top of the work tree, both absolute; ``prefix`` leads from top to root
    ("" or with a trailing slash); ``index`` and ``exclude`` are git's index and ``info/exclude``.
    """

    root: str
    repository: Repository

    @property
    def top(self) -> str:
        return self.repository.top

    @property
    def prefix(self) -> str:
        return self.repository.prefix

    @property
    def index(self) -> str:
        return self.repository.index

    @property
    def exclude(self) -> str:
        return self.repository.exclude


@dataclass(frozen=True, slots=True)
class GitOrigin:
    """The origin of a work tree. ``url`` has no credentials; ``subpath`` is "" or has a trailing slash."""

    url: str | None
    subpath: str
    commit: str | None


def find_work_tree(root: str) -> WorkTree | None:
    """The work tree that contains ``root`` (absolute); None if there is none, if git is missing or refuses to read it,
    or if it ignores ``root`` (a project below a home folder that is itself under git).
    """
    repository = find_repository(root)
    if repository is None:
        return None
    prefix = repository.prefix
    if prefix and run(repository, repository.top, "check-ignore", "--quiet", "--", f"./{prefix}") is not None:
        return None
    return WorkTree(root, repository)


def clean_blobs(tree: WorkTree, prefixes: Sequence[str] = ()) -> pa.Table:
    """The tracked files that are clean now: ``path`` (binary, relative to the source) and ``etag`` (``git:id``).

    Call it after the files are stat'ed: a file that changes in between is dirty or has another id. ``prefixes``
    (folders with a trailing slash) limit the result, which may hold more. Files with skip-worktree or
    assume-unchanged, in conflict, or only intended to be added are left out. Empty if git fails.
    """
    narrowed = [] if "" in prefixes or len(prefixes) > _MAX_PATHSPECS else [f":(literal){p}" for p in prefixes]
    for _ in range(2):
        before = _signature(tree.index)
        options = ("--name-only", "--relative", "--no-renames", "--ignore-submodules=all", "-z")
        comparison = start(tree.repository, tree.root, "diff-files", *options, "--", *narrowed)
        tracked = run(tree.repository, tree.root, "ls-files", "--stage", "-v", "-z", "--", *narrowed)
        dirty = finish(comparison)
        if dirty is None or tracked is None:
            break
        # The two commands agree only if the index did not change between them.
        if before == _signature(tree.index):
            return _parse(tracked, dirty)
    log.debug("git cannot list the clean files of %s", tree.root)
    return BLOB_SCHEMA.empty_table()


def git_origin(root: str) -> GitOrigin | None:
    """Origin, subpath and commit of the work tree that contains ``root``, or None."""
    tree = find_work_tree(root)
    if tree is None:
        return None
    url = ask(root, "config", "--get", "remote.origin.url")
    commit = ask(root, "rev-parse", "--verify", "--quiet", "HEAD")
    return GitOrigin(
        _without_credentials(url.decode("utf-8", "replace").strip()) if url else None,
        tree.prefix,
        commit.decode().strip() if commit else None,
    )


def _parse(tracked: bytes, dirty: bytes) -> pa.Table:
    """Parse entries ``H 100644 <id> 0\\t<path>``: cached, without flag, a regular file, without conflict."""
    end = tracked.find(b" ", _ID_START)  # SHA-1 and SHA-256 ids differ in width
    entries = pa.array(tracked.split(b"\0")[:-1], pa.binary())
    merged = pc.equal(pc.binary_slice(entries, end, end + 3), pa.scalar(b" 0\t", pa.binary()))
    clean = pc.and_(pc.starts_with(entries, b"H 100"), merged)
    ids = pc.binary_slice(entries, _ID_START, end)
    etags = pc.binary_join_element_wise(pa.scalar(b"git", pa.binary()), ids, pa.scalar(b":", pa.binary()))
    paths = pc.binary_slice(entries, end + 3, _PATH_END)
    if dirty:
        clean = pc.and_not(clean, pc.is_in(paths, pa.array(dirty.split(b"\0")[:-1], pa.binary())))
    return pa.Table.from_arrays([paths, etags], schema=BLOB_SCHEMA).filter(clean)


def _without_credentials(url: str) -> str:
    shown = redacted(url)
    return shown.partition("?")[0] if "://" in shown else shown


def _signature(path: str) -> tuple[int, int, int] | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns

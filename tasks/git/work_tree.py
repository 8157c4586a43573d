"""Find the clean files of git working trees, and their blob ids, without reading the files.

A blob id identifies stored bytes; filters (line endings, LFS) may write other bytes to disk. The scan therefore also
compares sizes. If git fails, the tree is scanned as a plain folder.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.errors import without_secrets
from driftline.storage.sources.access import SafeFolder
from driftline.storage.sources.git_isolation import (
    Repository,
    Running,
    ask,
    common_dir_of,
    find_repository,
    finish,
    nested_repository,
    run,
    start,
)

log = logging.getLogger(__name__)

BLOB_SCHEMA = pa.schema([("path", pa.binary()), ("etag", pa.binary())])

Signature = tuple[int, int, int]
"""Inode, size and mtime of git's index."""

_GITDIR = b"gitdir: "
_MAX_GIT_FILE_BYTES = 8_192
_MAX_PATHSPECS = 100
_LINK_MODE, _SUBMODULE = b" 160000 ", re.compile(rb"(?:\A|\0)[A-Za-z] 160000 [0-9a-f]+ \d\t([^\0]+)")
_ID_START = len("H 100644 ")
_PATH_END = 1 << 30  # no limit


@dataclass(frozen=True, slots=True)
class WorkTree:
    """A source inside a git working tree.

    ``root`` is the source and ``top`` the top of the working tree, both absolute; ``prefix`` is root relative to top
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

    @property
    def excludes(self) -> str:
        """The user's ignore file for all repositories; it may not exist."""
        return self.repository.excludes


@dataclass(frozen=True, slots=True)
class GitOrigin:
    """The origin of a working tree. ``url`` has no credentials; ``subpath`` is "" or has a trailing slash."""

    url: str | None
    subpath: str
    commit: str | None


def find_work_tree(root: str) -> WorkTree | None:
    """Return the working tree that contains ``root`` (absolute).

    Returns None if there is none, if git is missing or refuses to read it, or if ``root`` is ignored, such as a project
    below a home folder that is itself under git.
    """
    repository = find_repository(root)
    if repository is None:
        return None
    prefix = repository.prefix
    if prefix and run(repository, repository.top, "check-ignore", "--quiet", "--", f"./{prefix}") is not None:
        return None
    return WorkTree(root, repository)


class TrackedFiles:
    """The files that git tracks in a folder of a working tree; a context manager. Paths are relative to the folder.

    ``prefixes`` limits them as in ``clean_blobs``. ``start``, or else the first other call, starts the listing.
    """

    def __init__(self, repository: Repository, root: str, prefixes: Sequence[str] = ()) -> None:
        self._repository = repository
        self._root = root
        self._narrowed = (
            [] if "" in prefixes or len(prefixes) > _MAX_PATHSPECS else [f":(literal){p}" for p in prefixes]
        )
        self._running: Running | None = None
        self._is_started = False
        self._output: bytes | None = None
        self._entries: list[bytes] | None = None
        self._path_start = 0
        self.signature: Signature | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._finish()

    def start(self) -> None:
        """Make git list the files in the background."""
        if not self._is_started:
            self._is_started = True
            self.signature = _signature(self._repository.index)
            command = ("ls-files", "--stage", "-v", "-z", "--", *self._narrowed)
            self._running = start(self._repository, self._root, *command)

    @property
    def ignores_case(self) -> bool:
        """Whether the repository's ignore rules are case-insensitive."""
        return self._repository.ignores_case

    def output(self) -> bytes | None:
        """Return git's list of entries, sorted by path, or None if git fails."""
        self.start()
        self._finish()
        return self._output

    def submodules(self) -> list[str]:
        """Return the folders of submodules, each with a trailing slash; an empty list if git fails."""
        output = self.output() or b""
        found = _SUBMODULE.findall(output) if _LINK_MODE in output else []
        return [os.fsdecode(path) + "/" for path in found]

    def holds(self, path: str) -> bool | None:
        """Return whether git tracks a file or, for a folder (with a trailing slash), any file inside.

        Returns None if git fails.
        """
        if self._entries is None:
            output = self.output()
            if output is None:
                return None
            self._entries = output.split(b"\0")[:-1]
            self._path_start = output.find(b"\t") + 1
        name = os.fsencode(path)
        if not path.endswith("/"):
            return self._from(name) == name
        entry = self._from(name)
        if entry is not None and entry.startswith(name):
            return True
        return self._from(name[:-1]) == name[:-1]  # a submodule

    def _from(self, name: bytes) -> bytes | None:
        """Return the first path that is not less than ``name``."""
        entries, start = self._entries or [], self._path_start
        row = bisect_left(entries, name, key=lambda entry: entry[start:])
        return entries[row][start:] if row < len(entries) else None

    def _finish(self) -> None:
        if self._running is not None:
            self._output = finish(self._running)
            self._running = None


@dataclass(frozen=True, slots=True)
class NestedRepository:
    """A repository with its own working tree in a folder (with a trailing slash) of a source."""

    folder: str
    git_dir: str
    common_dir: str

    @property
    def exclude(self) -> str:
        return f"{self.common_dir}/info/exclude"


def find_nested(tree: SafeFolder, folder: str) -> NestedRepository | None:
    """Return the repository whose ``.git`` is in ``folder`` of a source, or None if git does not accept it."""
    entry = f"{tree.root.rstrip('/')}/{folder}.git"
    git_dir = entry
    try:
        mode = tree.stat(f"{folder}.git").st_mode
        if not stat.S_ISDIR(mode):
            content = (tree.read(f"{folder}.git", _MAX_GIT_FILE_BYTES) or b"") if stat.S_ISREG(mode) else b""
            if not content.startswith(_GITDIR):
                return None
            named = os.fsdecode(content.removeprefix(_GITDIR).rstrip(b"\r\n"))
            git_dir = os.path.normpath(os.path.join(os.path.dirname(entry), named))
        common = common_dir_of(git_dir)
        parts = (os.path.join(common, name) for name in ("objects", "refs"))
        is_one = os.path.lexists(os.path.join(git_dir, "HEAD")) and all(map(os.path.isdir, parts))
    except (OSError, ValueError):
        return None
    return NestedRepository(folder, git_dir, common) if is_one else None


def tracked_in(root: str, nested: NestedRepository, outer: Collection[str]) -> TrackedFiles | None:
    """Return a nested repository's tracked files, or None if it cannot be read (see ``opened``)."""
    repository = opened(root, nested, outer)
    return TrackedFiles(repository, repository.top) if repository is not None else None


def opened(root: str, nested: NestedRepository, outer: Collection[str]) -> Repository | None:
    """Return a nested repository.

    Returns None if its git files are neither in the source nor in one of the git directories ``outer``: other
    directories are never read.
    """
    where = os.path.realpath(nested.git_dir)
    if not any(where.startswith(each.rstrip("/") + "/") for each in (os.path.realpath(root), *outer)):
        return None
    return nested_repository(f"{root.rstrip('/')}/{nested.folder}".rstrip("/"), nested.git_dir)


def clean_blobs(tree: WorkTree, prefixes: Sequence[str] = (), tracked: TrackedFiles | None = None) -> pa.Table:
    """Return the tracked files that are clean now: ``path`` (binary, relative to the source) and ``etag`` (``git:id``).

    Call it after the files are stat'ed: a file that has changed since is dirty or has another id. ``prefixes`` (folders
    with a trailing slash) limits the result, which may still contain more. Files that are marked skip-worktree or
    assume-unchanged, are in conflict, or were added with ``--intent-to-add`` are excluded. The result is empty if git
    fails. ``tracked`` may be an earlier listing with the same ``prefixes``.
    """
    narrowed = [] if "" in prefixes or len(prefixes) > _MAX_PATHSPECS else [f":(literal){p}" for p in prefixes]
    for _ in range(2):
        listed = tracked or TrackedFiles(tree.repository, tree.root, prefixes)
        listed.start()
        options = ("--name-only", "--relative", "--no-renames", "--ignore-submodules=all", "-z")
        dirty = run(tree.repository, tree.root, "diff-files", *options, "--", *narrowed)
        entries = listed.output()
        if dirty is None or entries is None:
            break
        # The two commands agree only if the index does not change between them.
        if listed.signature == _signature(tree.index):
            return _parse(entries, dirty)
        tracked = None
    log.debug("git cannot list the clean files of %s", tree.root)
    return BLOB_SCHEMA.empty_table()


def git_origin(root: str) -> GitOrigin | None:
    """Return the origin, subpath and commit of the working tree that contains ``root``, or None."""
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
    """Return the entries ``H 100644 <id> 0\\t<path>``: regular files without flag or conflict, not ``dirty``."""
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
    shown = without_secrets(url)
    return shown.partition("?")[0] if "://" in shown else shown


def _signature(path: str) -> Signature | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns

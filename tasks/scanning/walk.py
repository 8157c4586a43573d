"""Walk a local tree level by level and skip what the rules exclude.

The patterns of a whole level are matched at once, and only the remaining files are stat'ed.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.storage.errors import StorageError
from driftline.storage.model import SkipReason
from driftline.storage.sources.beneath import Beneath, read_regular
from driftline.storage.sources.local_tree import VANISHED
from driftline.tasks.git.work_tree import WorkTree
from driftline.tasks.scanning.diff import LISTING_SCHEMA, SKIPPED_SCHEMA
from driftline.tasks.scanning.ignore import (
    IGNORE_FILES,
    NEVER_ENTERED,
    OWN_IGNORE_FILE,
    Matcher,
    PatternList,
    Rules,
    read_ignore_file,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Subtree:
    """A part of a source: everything below ``prefix`` ("" or a folder with a trailing slash) except the direct child
    folders ``without`` (full relative paths with a trailing slash). So each folder that appears later is in some part.
    """

    prefix: str = ""
    without: tuple[str, ...] = ()


@dataclass(slots=True)
class Listing:
    """The listed files (``etags`` may be empty), the skipped ones with their reasons, and the unreadable paths."""

    paths: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    mtimes: list[int] = field(default_factory=list)
    etags: list[str] = field(default_factory=list)
    skipped_paths: list[str] = field(default_factory=list)
    skipped_reasons: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def skip(self, reason: SkipReason, *paths: str) -> None:
        self.skipped_paths.extend(paths)
        self.skipped_reasons.extend([reason.value] * len(paths))

    def table(self) -> pa.Table:
        """The listed files, LISTING_SCHEMA, sorted by path."""
        columns = [self.paths, self.sizes, self.mtimes, self.etags or [""] * len(self.paths)]
        return pa.table(columns, schema=LISTING_SCHEMA).sort_by("path")

    def skipped_table(self) -> pa.Table:
        """The skipped files, SKIPPED_SCHEMA."""
        return pa.table([self.skipped_paths, self.skipped_reasons], schema=SKIPPED_SCHEMA)


@dataclass(slots=True)
class _Level:
    """The entries of one level. ``scopes`` maps a list of patterns to the slices of files and folders it applies to."""

    file_paths: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    scopes: dict[PatternList, tuple[slice, slice]] = field(default_factory=dict)
    stacks: dict[str, tuple[PatternList, ...]] = field(default_factory=dict)


class Walk:
    """One walk over a local tree.

    ``only`` (files and all their parent folders) restricts it to these paths. The folders
    ``without`` are not entered.
    """

    def __init__(
        self,
        root: str,
        rules: Rules,
        work_tree: WorkTree | None = None,
        only: Collection[str] | None = None,
        without: frozenset[str] = frozenset(),
    ) -> None:
        self._root = root.rstrip("/")
        self._tree = Beneath(root)
        # Patterns of folders above the source are relative to them, so paths are matched from the top of the work tree.
        self._above = work_tree.prefix if work_tree else ""
        self._matcher = Matcher(rules, self._above)
        self._only = only
        self._without = without
        self._stacks: dict[str, tuple[PatternList, ...]] = {}
        self._read: dict[str, tuple[PatternList, ...]] = {}
        self._outer = self._outer_patterns(work_tree)
        self.listing = Listing()

    def run(self, subtrees: Sequence[Subtree]) -> Listing:
        """List the files of ``subtrees``. Raises StorageError if the root cannot be listed."""
        without = self._without.union(folder for subtree in subtrees for folder in subtree.without)
        folders = sorted(subtree.prefix for subtree in subtrees)
        with self._tree:
            while folders:
                level = self._scan(folders, without)
                folders = self._keep_folders(level)
                self._stat(level, self._keep_files(level))
                self._stacks = level.stacks
        return self.listing

    def subfolders(self, folders: Sequence[str]) -> list[str]:
        """The direct subfolders of ``folders`` that a walk enters."""
        with self._tree:
            return self._keep_folders(self._scan(folders, self._without))

    def _scan(self, folders: Iterable[str], without: Collection[str]) -> _Level:
        level = _Level()
        for folder in folders:
            first_file, first_folder = len(level.file_paths), len(level.folders)
            try:
                ignore_files = self._scan_folder(folder, level, without)
            except OSError as error:
                self._unlisted(folder, error)
                del level.file_paths[first_file:], level.folders[first_folder:]
                continue
            stack = self._stacks.get(folder)
            if stack is None:
                stack = self._inherited(folder)
            for name in ignore_files:
                patterns = self._patterns_inside(folder + name, self._above + folder)
                stack = (*stack, patterns) if patterns else stack
            for patterns in stack:
                files, subfolders = level.scopes.get(patterns, (slice(first_file, 0), slice(first_folder, 0)))
                level.scopes[patterns] = (
                    slice(files.start, len(level.file_paths)),
                    slice(subfolders.start, len(level.folders)),
                )
            for subfolder in level.folders[first_folder:]:
                level.stacks[subfolder] = stack
        return level

    def _scan_folder(self, folder: str, level: _Level, without: Collection[str]) -> list[str]:
        """Add the entries of a folder to the level; returns the names of its ignore files, lowest precedence first."""
        ignore_files = set()
        only = self._only
        for entry in self._tree.entries(folder):
            name = entry.name
            path = folder + name
            if name in NEVER_ENTERED:
                continue
            if entry.is_file(follow_symlinks=False):
                if name in IGNORE_FILES:
                    ignore_files.add(name)
                if only is None or path in only:
                    level.file_paths.append(path)
            elif entry.is_dir(follow_symlinks=False):
                path += "/"
                if path not in without and (only is None or path in only):
                    level.folders.append(path)
            elif only is not None and path not in only:
                continue
            elif entry.is_symlink():
                if self._leads_astray(path, folder):
                    self.listing.skip(SkipReason.OUTSIDE, _printable(path))
            else:
                self.listing.skip(SkipReason.UNREADABLE, _printable(path))  # a pipe, a socket, a device
        return [name for name in IGNORE_FILES if name in ignore_files]

    def _unlisted(self, folder: str, error: OSError) -> None:
        if not folder or not os.path.isdir(self._root):
            raise StorageError("The source cannot be listed", self._root, str(error)) from error
        if error.errno not in VANISHED:  # vanished or replaced meanwhile
            log.debug("cannot list %s: %s", folder, error)
            self.listing.skip(SkipReason.UNREADABLE, folder)
            self.listing.unread.append(folder)

    def _keep_folders(self, level: _Level) -> list[str]:
        keep = self._good_names(level.folders)
        paths = self._array([folder[:-1] for folder in level.folders], keep)
        ignored = self._ignored(paths, level, folders=True) | self._matcher.exclude.matches(paths, folders=True)
        names = np.array(level.folders, dtype=object)
        self.listing.skip(SkipReason.EXCLUDED, *names[keep & ignored])
        return list(names[keep & ~ignored])

    def _keep_files(self, level: _Level) -> NDArray[np.int64]:
        keep = self._good_names(level.file_paths)
        paths = self._array(level.file_paths, keep)
        secret = self._matcher.secret(paths)
        if secret.any():
            self._admit(secret, paths, level)
        ignored = self._ignored(paths, level, folders=False) | self._matcher.excluded(paths)
        names = level.file_paths
        self.listing.skip(SkipReason.SECRET, *(names[i] for i in np.flatnonzero(keep & secret)))
        self.listing.skip(SkipReason.EXCLUDED, *(names[i] for i in np.flatnonzero(keep & ~secret & ignored)))
        return np.flatnonzero(keep & ~secret & ~ignored)

    def _stat(self, level: _Level, rows: NDArray[np.int64]) -> None:
        listing, paths = self.listing, level.file_paths
        for row in rows.tolist():
            try:
                info = self._tree.stat(paths[row])
            except OSError as error:
                if error.errno in VANISHED:
                    continue
                log.debug("cannot stat %s: %s", paths[row], error)
                listing.skip(SkipReason.UNREADABLE, paths[row])
                listing.unread.append(paths[row])
                continue
            if stat.S_ISREG(info.st_mode):
                listing.paths.append(paths[row])
                listing.sizes.append(info.st_size)
                listing.mtimes.append(info.st_mtime_ns)

    def _ignored(self, paths: pa.Array, level: _Level, *, folders: bool) -> NDArray[np.bool_]:
        ignored = np.zeros(len(paths), dtype=bool)
        # From the top down (the sort is stable), so that the deepest ignore file takes precedence.
        for patterns, slices in sorted(level.scopes.items(), key=lambda item: len(item[0].base)):
            part = slices[folders]
            if part.stop > part.start:
                patterns.apply(paths[part], ignored[part], folders=folders)
        return ignored

    def _admit(self, secret: NDArray[np.bool_], paths: pa.Array, level: _Level) -> None:
        """Take from ``secret`` the files that a negated pattern of an ignore file of ours names."""
        admitted = secret.copy()
        for patterns, (files, _) in sorted(level.scopes.items(), key=lambda item: len(item[0].base)):
            if patterns.admits and files.stop > files.start:
                patterns.apply(paths[files], admitted[files])
        secret &= admitted

    def _good_names(self, paths: Sequence[str]) -> NDArray[np.bool_]:
        """False for names that are not UTF-8, which are reported as skipped."""
        good = np.ones(len(paths), dtype=bool)
        try:
            "".join(paths).encode()
        except UnicodeEncodeError:
            for row, path in enumerate(paths):
                printable = _printable(path)
                if printable != path:
                    good[row] = False
                    self.listing.skip(SkipReason.BAD_NAME, printable)
        return good

    def _array(self, paths: Sequence[str], good: NDArray[np.bool_]) -> pa.Array:
        if not good.all():
            paths = [path if fine else "" for path, fine in zip(paths, good, strict=True)]
        return pa.array([self._above + path for path in paths] if self._above else paths, pa.string())

    def _leads_astray(self, link: str, folder: str) -> bool:
        """Whether a link leads outside the source or in a circle. The target of any other link is indexed itself."""
        try:
            target = os.path.realpath(f"{self._root}/{link}", strict=True)
        except OSError as error:
            return error.errno == errno.ELOOP
        here = os.path.realpath(f"{self._root}/{folder}")
        inside = target == self._root or target.startswith(self._root + "/")
        return not inside or here == target or here.startswith(target + "/")

    def _inherited(self, folder: str) -> tuple[PatternList, ...]:
        """The patterns of the folders above ``folder``."""
        stack = self._outer
        if folder:
            parts = folder.rstrip("/").split("/")
            for above in ["", *("/".join(parts[:depth]) + "/" for depth in range(1, len(parts)))]:
                stack += self._read_all(above)
        return stack

    def _outer_patterns(self, work_tree: WorkTree | None) -> tuple[PatternList, ...]:
        if work_tree is None:
            return ()
        exclude = self._patterns_outside(work_tree.exclude, "")
        stack: tuple[PatternList, ...] = (exclude,) if exclude else ()
        parts = self._above.rstrip("/").split("/") if self._above else []
        for depth in range(len(parts)):
            above = "".join(part + "/" for part in parts[:depth])
            lists = [self._patterns_outside(f"{work_tree.top}/{above}{name}", above) for name in IGNORE_FILES]
            stack += tuple(patterns for patterns in lists if patterns)
        return stack

    def _read_all(self, folder: str) -> tuple[PatternList, ...]:
        if folder not in self._read:
            lists = [self._patterns_inside(folder + name, self._above + folder) for name in IGNORE_FILES]
            self._read[folder] = tuple(patterns for patterns in lists if patterns)
        return self._read[folder]

    def _patterns_outside(self, path: str, base: str) -> PatternList:
        return _patterns(lambda: read_regular(path), path, base)

    def _patterns_inside(self, path: str, base: str) -> PatternList:
        return _patterns(lambda: self._tree.read(path), f"{self._root}/{path}", base)


def _patterns(read: Callable[[], bytes | None], path: str, base: str) -> PatternList:
    try:
        data = read()
    except OSError as error:
        if error.errno != errno.ENOENT:
            log.warning("cannot read the ignore file %s, which is skipped: %s", path, error)
        return PatternList((), base)
    if data is None:
        log.warning("the ignore file %s is not a regular file, and is skipped", path)
    return PatternList(read_ignore_file(data or b""), base, admits=os.path.basename(path) == OWN_IGNORE_FILE)


def above_and_self(paths: Iterable[str]) -> set[str]:
    """The paths and every folder above them, folders with a trailing slash."""
    names: set[str] = set()
    for path in paths:
        names.add(path)
        names.update(_folders_above(path))
    return names


def _folders_above(path: str) -> Iterator[str]:
    end = path.find("/")
    while end >= 0:
        yield path[: end + 1]
        end = path.find("/", end + 1)


def _printable(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")

"""Walk a local tree, and select local files by name: a file, a folder or a glob, with braces and ``~``.

The walk proceeds level by level and skips excluded paths: patterns are matched for a whole level at a time, and only
the remaining files are stat'ed. A file given by name is always selected. Folders and globs skip ignored files
(``tasks.scanning.path_patterns``). In globs, ``**`` matches at any depth; folders where nothing can match are not
entered.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.storage.defaults import DEFAULT_MAX_FILE_BYTES
from driftline.storage.documents import SkipReason
from driftline.storage.errors import AccessDenied, SourceNotFound, StorageError, UsageError
from driftline.storage.globs import alternatives
from driftline.storage.sources.access import SafeFolder, read_regular
from driftline.storage.sources.git_isolation import excludes_file
from driftline.storage.sources.mirror import bare_repository
from driftline.storage.sources.source import INODE_BITS, VANISHED, storable_ns
from driftline.tasks.git.encodings import ATTRIBUTES
from driftline.tasks.git.work_tree import TrackedFiles, WorkTree, find_nested, find_work_tree, tracked_in
from driftline.tasks.scanning.diff import LISTING_SCHEMA, SKIPPED_SCHEMA
from driftline.tasks.scanning.path_patterns import (
    BY_GIT,
    BY_US,
    GIT,
    IGNORE_FILES,
    MAX_IGNORE_BYTES,
    NEVER_ENTERED,
    OUR_IGNORE_FILE,
    IgnoreFileLimits,
    Matcher,
    PatternList,
    Rules,
)

log = logging.getLogger(__name__)

STDIN = "-"
"""The name of standard input."""
_MAGIC = re.compile(r"[*?[]|\{[^}]*(?:,|\.\.)")
_SPECIAL = re.compile(r"([\\*?\[\]{}])")
_BLANK = re.compile(r"(\s)")  # gitignore strips whitespace at the end of a pattern

_BARE = frozenset({"HEAD", "objects", "refs"})
"""Entries of every git directory."""
_OF_GIT = _BARE | {GIT, ATTRIBUTES}


@dataclass(frozen=True, slots=True)
class Subtree:
    """A part of a source: everything under ``prefix`` except the direct child folders ``without``.

    ``prefix`` is "" or a folder with a trailing slash; ``without`` contains full relative paths with a trailing slash.
    Every folder created later therefore belongs to some part.
    """

    prefix: str = ""
    without: tuple[str, ...] = ()


@dataclass(slots=True)
class Listing:
    """The listed files (``etags`` may be empty), the skipped files with reasons, and the unreadable paths.

    ``unsure`` contains ignored files and folders that git may or may not track, because its listing failed.
    ``attributed`` contains the folders that have a ``.gitattributes``, also above the listed subtrees, and
    ``encodings`` what such files declare: the Python codecs of listed files, or None if git fails.
    """

    paths: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    mtimes: list[int] = field(default_factory=list)
    ctimes: list[int] = field(default_factory=list)
    inodes: list[int] = field(default_factory=list)
    etags: list[str] = field(default_factory=list)
    skipped_paths: list[str] = field(default_factory=list)
    skipped_reasons: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    attributed: set[str] = field(default_factory=set)
    encodings: Mapping[str, str] | None = field(default_factory=dict)

    def skip(self, reason: SkipReason, *paths: str) -> None:
        self.skipped_paths.extend(paths)
        self.skipped_reasons.extend([reason.value] * len(paths))

    def leave_out(self, folders: Collection[str]) -> None:
        """Skip the files in ``folders``, before they have etags."""
        holders = [next((part for part in _folders_above(path) if part in folders), "") for path in self.paths]
        kept = [not holder for holder in holders]
        columns: tuple[list[Any], ...] = self.paths, self.sizes, self.mtimes, self.ctimes, self.inodes
        for column in columns:
            column[:] = compress(column, kept)
        self.skip(SkipReason.EXCLUDED, *sorted({holder for holder in holders if holder}))

    def table(self) -> pa.Table:
        """Return the listed files, LISTING_SCHEMA, sorted by path."""
        etags = self.etags or [""] * len(self.paths)
        columns = [self.paths, self.sizes, self.mtimes, etags, self.ctimes, self.inodes]
        return pa.table(columns, schema=LISTING_SCHEMA).sort_by("path")

    def skipped_table(self) -> pa.Table:
        """Return the skipped files, SKIPPED_SCHEMA."""
        return pa.table([self.skipped_paths, self.skipped_reasons], schema=SKIPPED_SCHEMA)


@dataclass(frozen=True, slots=True)
class _Repository:
    """A folder's repository: its ``tracked`` files, relative to ``base`` (a folder in the source), if known.

    ``common_dirs`` contains the git directories of this repository and of its enclosing repositories.
    """

    base: str = ""
    tracked: TrackedFiles | None = None
    common_dirs: tuple[str, ...] = ()

    @property
    def ignores_case(self) -> bool:
        return self.tracked is not None and self.tracked.ignores_case

    def holds(self, path: str) -> bool | None:
        return self.tracked.holds(path.removeprefix(self.base)) if self.tracked is not None else False


@dataclass(frozen=True, slots=True)
class _FolderRules:
    """The rules for a folder's entries: the ignore files above it, and the repository it belongs to.

    ``closed`` is set if git ignores the folder: only its tracked files are then listed.
    """

    stack: tuple[PatternList, ...] = ()
    repository: _Repository = _Repository()
    closed: bool = False


@dataclass(slots=True)
class _Level:
    """The entries of one level. ``scopes`` maps a list of patterns to the slices of files and folders it applies to.

    ``starts`` lists the first file and first folder of each parent folder, and ``rules`` lists their rules.
    """

    file_paths: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    scopes: dict[PatternList, list[tuple[slice, slice]]] = field(default_factory=dict)
    starts: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    rules: list[_FolderRules] = field(default_factory=list)
    inside: dict[str, _FolderRules] = field(default_factory=dict)

    def add(self, folder_rules: _FolderRules, first_file: int, first_folder: int) -> None:
        """Record that the following entries belong to a folder with ``folder_rules``."""
        last = slice(first_file, len(self.file_paths)), slice(first_folder, len(self.folders))
        for patterns in folder_rules.stack:
            known = self.scopes.setdefault(patterns, [])
            if known and (known[-1][0].stop, known[-1][1].stop) == (first_file, first_folder):
                first, last_of = known[-1]
                known[-1] = slice(first.start, last[0].stop), slice(last_of.start, last[1].stop)
            else:
                known.append(last)
        self.starts[0].append(first_file)
        self.starts[1].append(first_folder)
        self.rules.append(folder_rules)
        self.inside.update(dict.fromkeys(self.folders[first_folder:], folder_rules))


class Walk:
    """A walk over a local tree.

    ``only`` (files and all their parent folders) restricts it to these paths. The folders in ``without`` are not
    entered. ``tracked`` contains the source's tracked files, if git is already listing them. In a git working tree, and
    in each repository inside, the listing equals ``git ls-files --cached --others --exclude-standard``.
    """

    def __init__(
        self,
        root: str,
        rules: Rules,
        work_tree: WorkTree | None = None,
        only: Collection[str] | None = None,
        without: frozenset[str] = frozenset(),
        tracked: TrackedFiles | None = None,
    ) -> None:
        self._root = root.rstrip("/")
        self._tree = SafeFolder(root)
        # Patterns from the source's parent folders are relative to these, so match paths from the top of the working
        # tree.
        self._above = work_tree.prefix if work_tree else ""
        self._matcher = Matcher.of(rules, self._above)
        self._only = only
        self._without = without
        self._rules: dict[str, _FolderRules] = {}
        self._excludes = work_tree.excludes if work_tree else None
        self._limits = IgnoreFileLimits()
        self._outer = self._outermost(work_tree, tracked)
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
                self._rules = level.inside
        tracked = self._outer.repository.tracked
        submodules = tracked.submodules() if tracked is not None and self._only is None else ()
        # Git lists no files of submodules that are not checked out.
        empty = {folder for folder in submodules if not os.path.lexists(f"{self._root}/{folder}{GIT}")}
        if empty:
            self.listing.leave_out(empty)
        return self.listing

    def subfolders(self, folders: Sequence[str]) -> list[str]:
        """Return the direct subfolders of ``folders`` that a walk enters."""
        with self._tree:
            return self._keep_folders(self._scan(folders, self._without))

    def _scan(self, folders: Iterable[str], without: Collection[str]) -> _Level:
        level = _Level()
        for folder in folders:
            first_file, first_folder = len(level.file_paths), len(level.folders)
            folder_rules = self._rules.get(folder)
            try:
                if folder_rules is None:
                    folder_rules = self._rules_of(folder)
                ignore_files, git_entries = self._scan_folder(folder, level, without)
            except OSError as error:
                self._unlisted(folder, error)
                del level.file_paths[first_file:], level.folders[first_folder:]
                continue
            if ATTRIBUTES in git_entries:
                self.listing.attributed.add(folder)
            inside = self._entered(folder, folder_rules, ignore_files, has_git=GIT in git_entries)
            is_bare = folder_rules.repository.tracked is None and self._is_git_directory(folder, git_entries)
            if inside is None or is_bare:
                self.listing.skip(SkipReason.GIT_DIRECTORY if is_bare else SkipReason.WORK_TREE, folder)
                del level.file_paths[first_file:], level.folders[first_folder:]
                continue
            level.add(inside, first_file, first_folder)
        return level

    def _entered(
        self, folder: str, folder_rules: _FolderRules, ignore_files: Sequence[str], *, has_git: bool
    ) -> _FolderRules | None:
        """Return the rules for entries of ``folder``, or None for another working tree of an enclosing repository."""
        nested = find_nested(self._tree, folder) if has_git and folder else None
        if nested is not None:
            outer = folder_rules.repository
            if nested.common_dir in outer.common_dirs:
                return None
            tracked = tracked_in(self._root or "/", nested, outer.common_dirs)
            inner = _Repository(folder, tracked, (*outer.common_dirs, nested.common_dir))
            if self._excludes is None:
                self._excludes = excludes_file(self._root or "/")
            ours = tuple(patterns for patterns in folder_rules.stack if patterns.mark == BY_US)
            named = (self._excludes, _followed(nested.exclude, f"{self._root}/{folder}", nested.common_dir))
            lists = [self._patterns_outside(path, self._above + folder, inner) for path in named]
            folder_rules = _FolderRules((*ours, *filter(None, lists)), inner)
        repository = folder_rules.repository
        lists = [self._patterns_inside(folder + name, self._above + folder, repository) for name in ignore_files]
        return replace(folder_rules, stack=(*folder_rules.stack, *filter(None, lists)))

    def _rules_of(self, folder: str) -> _FolderRules:
        """Return the rules for ``folder`` if the walk starts there."""
        if not folder:
            return self._outer
        above = folder[: folder.rindex("/", 0, -1) + 1] if "/" in folder[:-1] else ""
        names = [name for name in (*IGNORE_FILES, GIT) if self._is_there(above + name)]
        if self._is_there(above + ATTRIBUTES):
            self.listing.attributed.add(above)
        outer = self._rules_of(above)
        folder_rules = (
            self._entered(above, outer, [name for name in names if name != GIT], has_git=GIT in names) or outer
        )
        level = _Level(folders=[folder])
        level.add(folder_rules, 0, 0)
        is_ignored = self._verdict(self._array([folder[:-1]], np.ones(1, dtype=bool)), level, folders=True)[0] == BY_GIT
        return replace(folder_rules, closed=True) if is_ignored else folder_rules

    def _is_there(self, path: str) -> bool:
        try:
            self._tree.stat(path)
        except OSError:
            return False
        return True

    def _is_git_directory(self, folder: str, git_entries: Collection[str]) -> bool:
        """Return whether ``folder`` in the source is a git directory, given its ``git_entries``."""
        return bool(folder) and _BARE.issubset(git_entries) and bare_repository(f"{self._root}/{folder}") is not None

    def _scan_folder(self, folder: str, level: _Level, without: Collection[str]) -> tuple[list[str], set[str]]:
        """Add a folder's entries to the level.

        Returns the names of its ignore files, lowest precedence first, and of the entries that git uses (HEAD, objects,
        refs, .git, .gitattributes).
        """
        ignore_files, git_entries = set(), set()
        only = self._only
        for entry in self._tree.entries(folder):
            name = entry.name
            path = folder + name
            if name in _OF_GIT:
                git_entries.add(name)
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
                if self._escapes(path, folder):
                    self.listing.skip(SkipReason.OUTSIDE, _printable(path))
            else:
                self.listing.skip(SkipReason.UNREADABLE, _printable(path))  # a pipe, socket or device
        return [name for name in IGNORE_FILES if name in ignore_files], git_entries

    def _unlisted(self, folder: str, error: OSError) -> None:
        if not folder or not os.path.isdir(self._root):
            raise StorageError(f"Cannot list the source ({error})", self._root, "Check its permissions.") from error
        if error.errno not in VANISHED:  # deleted or replaced concurrently
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
                listing.mtimes.append(storable_ns(info.st_mtime_ns))
                listing.ctimes.append(storable_ns(info.st_ctime_ns))
                listing.inodes.append(info.st_ino & INODE_BITS)

    def _ignored(self, paths: pa.Array, level: _Level, *, folders: bool) -> NDArray[np.bool_]:
        """Return an ``(n,) bool`` mask of the ignored paths. Git ignore files never exclude tracked files."""
        verdict = self._verdict(paths, level, folders=folders)
        names = level.folders if folders else level.file_paths
        starts = level.starts[folders]
        for row in np.flatnonzero(verdict == BY_GIT).tolist():
            folder_rules = level.rules[bisect_right(starts, row) - 1]
            tracks = folder_rules.repository.holds(names[row])
            if tracks is None:
                self.listing.unsure.append(names[row])
            elif tracks:
                verdict[row] = 0
                if folders:
                    level.inside[names[row]] = replace(folder_rules, closed=True)
        return verdict > 0

    def _verdict(self, paths: pa.Array, level: _Level, *, folders: bool) -> NDArray[np.uint8]:
        """Return BY_GIT or BY_US if such an ignore file excludes a path, whether or not git tracks it, otherwise 0."""
        verdict = np.zeros(len(paths), dtype=np.uint8)
        # Top-down (the sort is stable), so the deepest ignore file takes precedence.
        for patterns, parts in sorted(level.scopes.items(), key=lambda item: len(item[0].base)):
            for part in (slices[folders] for slices in parts):
                if part.stop > part.start:
                    patterns.apply(paths[part], verdict[part], folders=folders)
        starts = [*level.starts[folders], len(paths)]
        for i, folder_rules in enumerate(level.rules):
            if folder_rules.closed:
                inside = verdict[starts[i] : starts[i + 1]]
                inside[inside == 0] = BY_GIT
        return verdict

    def _admit(self, secret: NDArray[np.bool_], paths: pa.Array, level: _Level) -> None:
        """Remove from ``secret`` the files that match a negated pattern in one of our ignore files."""
        admitted = secret.copy()
        for patterns, parts in sorted(level.scopes.items(), key=lambda item: len(item[0].base)):
            for files, _ in parts:
                if patterns.mark == BY_US and files.stop > files.start:
                    patterns.apply(paths[files], admitted[files])
        secret &= admitted

    def _good_names(self, paths: Sequence[str]) -> NDArray[np.bool_]:
        """Return False for names that are not UTF-8, and report them as skipped."""
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

    def _escapes(self, link: str, folder: str) -> bool:
        """Return whether a link points outside the source or forms a cycle; any other target is indexed under its own
        path.
        """
        try:
            target = os.path.realpath(f"{self._root}/{link}", strict=True)
        except OSError as error:
            return error.errno == errno.ELOOP
        here = os.path.realpath(f"{self._root}/{folder}")
        inside = target == self._root or target.startswith(self._root + "/")
        return not inside or here == target or here.startswith(target + "/")

    def _outermost(self, work_tree: WorkTree | None, tracked: TrackedFiles | None) -> _FolderRules:
        if work_tree is None:
            return _FolderRules()
        tracked = tracked or TrackedFiles(work_tree.repository, work_tree.root)
        repository = _Repository("", tracked, (work_tree.repository.common_dir,))
        exclude = _followed(work_tree.exclude, work_tree.top, work_tree.repository.common_dir)
        lists = [self._patterns_outside(path, "", repository) for path in (work_tree.excludes, exclude)]
        parts = self._above.rstrip("/").split("/") if self._above else []
        closed = False  # whether a folder is ignored, although it has tracked files: without any, it is no working tree
        for depth, part in enumerate(parts):
            above = "".join(part + "/" for part in parts[:depth])
            paths = (f"{work_tree.top}/{above}{name}" for name in IGNORE_FILES)
            lists += [self._patterns_outside(path, above, repository) for path in paths]
            verdict = np.zeros(1, dtype=np.uint8)
            for patterns in filter(None, lists):
                patterns.apply(pa.array([above + part], pa.string()), verdict, folders=True)
            closed |= bool(verdict[0] == BY_GIT)
        return _FolderRules(tuple(filter(None, lists)), repository, closed)

    def _patterns_outside(self, path: str, base: str, repository: _Repository) -> PatternList | None:
        return self._patterns(lambda limit: read_regular(path, limit), path, base, repository) if path else None

    def _patterns_inside(self, path: str, base: str, repository: _Repository) -> PatternList:
        return self._patterns(lambda limit: self._tree.read(path, limit), f"{self._root}/{path}", base, repository)

    def _patterns(
        self, read: Callable[[int], bytes | None], path: str, base: str, repository: _Repository
    ) -> PatternList:
        try:
            data = read(MAX_IGNORE_BYTES + 1)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                log.warning("cannot read the ignore file %s, which is skipped: %s", path, error)
            return PatternList((), base)
        if data is None:
            log.warning("the ignore file %s is not a regular file, and is skipped", path)
            return PatternList((), base)
        lines = self._limits.lines(path, data) if self._limits.admit(path, len(data)) else ()
        mark = BY_US if path.endswith(f"/{OUR_IGNORE_FILE}") else BY_GIT
        flags = "si" if repository.ignores_case else "s"
        return PatternList(lines, base, mark=mark, flags=flags)


def _followed(exclude: str, top: str, common_dir: str) -> str:
    """Return where a link at ``info/exclude`` leads, which git follows, if that is inside the repository."""
    path = os.path.realpath(exclude)
    return path if path.startswith((f"{os.path.realpath(top)}/", f"{common_dir}/")) else exclude


def above_and_self(paths: Iterable[str]) -> set[str]:
    """Return the paths and all their parent folders, folders with a trailing slash."""
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


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """Files in ``folder`` (as given, with ``~`` expanded): ``file``, or all files that pass ``rules``."""

    folder: str
    file: str | None = None
    rules: Rules = field(default_factory=Rules)


def select(named: str) -> NamedFiles:
    """Return the selection for a name; an existing file's name is never a glob. Raises SourceNotFound, UsageError."""
    if not named:
        raise UsageError("Empty file name", fix="Specify files, folders or globs; '.' is the current folder.")
    path = os.path.expanduser(named)
    if os.path.isdir(path):
        return NamedFiles(path)
    if os.path.lexists(path):
        folder, _, name = path.rpartition("/")
        return NamedFiles(folder or ("/" if path.startswith("/") else "."), name)
    magic = _MAGIC.search(path)
    folder, slash, _ = path[: magic.start() if magic else 0].rpartition("/")
    base = folder or slash or "."
    if magic is None or not os.path.isdir(base):
        raise SourceNotFound("No such file or folder", named, "Check the spelling.")
    patterns = alternatives(path[len(folder) + len(slash) :], escapes=True)
    # Folders among the alternatives of a brace group are selected as a whole.
    whole = [not _MAGIC.search(each) and os.path.isdir(f"{folder}{slash}{each}") for each in patterns]
    include = tuple(f"/{each}/**" if all_of_it else f"/{each}" for each, all_of_it in zip(patterns, whole, strict=True))
    steps = [pattern[1:].split("/") for pattern in include]
    exclude = () if any("**" in each for each in steps) else ("/" + "*/" * max(map(len, steps)),)
    rules = Rules(include=include, exclude=exclude)
    rules.check()
    return NamedFiles(base, rules=rules)


def is_glob(named: str) -> bool:
    """Return whether a name is a glob: it has wildcards, and no file with that name exists."""
    return _MAGIC.search(named) is not None and not os.path.lexists(os.path.expanduser(named))


def literal(name: str) -> str:
    """Return the gitignore pattern that matches only a file called ``name`` at the top of a source."""
    return "/" + _BLANK.sub(r"[\1]", _SPECIAL.sub(r"\\\1", name))


def files_named(
    names: Iterable[str],
    *,
    stdin: bool = False,
    on_skip: Callable[[str, SkipReason], None] = lambda path, reason: None,
) -> Iterator[str]:
    """Yield the path of each file that ``names`` select, without duplicates; files in a folder or glob are sorted.

    With ``stdin``, STDIN selects standard input. Files above DEFAULT_MAX_FILE_BYTES, and secrets that are not
    given by name, are skipped and reported to ``on_skip``; files excluded by patterns are not reported. Raises
    SourceNotFound (including for a glob that matches nothing), AccessDenied, StorageError, UsageError.
    """
    seen: set[str] = set()
    for name in names:
        for path in [STDIN] if stdin and name == STDIN else _files(name, select(name), on_skip):
            absolute = os.path.abspath(path)
            if absolute not in seen:
                seen.add(absolute)
                yield path


def _files(named: str, selection: NamedFiles, on_skip: Callable[[str, SkipReason], None]) -> Iterator[str]:
    prefix = "" if selection.folder == "." else selection.folder.rstrip("/") + "/"
    if selection.file is not None:
        yield prefix + selection.file
        return
    root = os.path.realpath(selection.folder)
    if not os.access(root, os.R_OK | os.X_OK):
        raise AccessDenied("Cannot read the folder", selection.folder, "Check its permissions.")
    listing = Walk(root, selection.rules, find_work_tree(root)).run([Subtree()])
    for path, reason in zip(listing.skipped_paths, listing.skipped_reasons, strict=True):
        if reason != SkipReason.EXCLUDED:
            on_skip(prefix + path, SkipReason(reason))
    if not listing.paths and selection.rules.include:
        raise SourceNotFound(
            "No file matches", named, "To include skipped files, list them individually instead of using a glob."
        )
    for path, size in sorted(zip(listing.paths, listing.sizes, strict=True)):
        if size <= DEFAULT_MAX_FILE_BYTES:
            yield prefix + path
        else:
            on_skip(prefix + path, SkipReason.TOO_LARGE)

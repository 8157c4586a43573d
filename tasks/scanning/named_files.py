"""Select local files by name: a file, a folder or a glob, with braces and ``~``.

A file given by name is always selected. Folders and globs skip ignored files (``tasks.scanning.path_patterns``). In
globs, ``**`` matches at any depth; folders where nothing can match are not entered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from driftline.storage.defaults import DEFAULT_MAX_FILE_BYTES
from driftline.storage.documents import SkipReason
from driftline.storage.errors import AccessDenied, SourceNotFound, UsageError
from driftline.storage.globs import alternatives
from driftline.tasks.git.work_tree import find_work_tree
from driftline.tasks.scanning.path_patterns import Rules
from driftline.tasks.scanning.walk import Subtree, Walk

STDIN = "-"
"""The name of standard input."""

_MAGIC = re.compile(r"[*?[]|\{[^}]*(?:,|\.\.)")
_SPECIAL = re.compile(r"([\\*?\[\]{}])")
_BLANK = re.compile(r"(\s)")  # gitignore strips whitespace at the end of a pattern


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

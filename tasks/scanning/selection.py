"""Which local files somebody names: a file, a folder, or a glob; ``~`` expands.

A file is taken whatever it is. Folders and globs leave out what an index leaves out (``tasks/ignore``);
a glob selects files, ``**`` in it any depth, and enters no folder that it cannot select from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from driftline.storage.errors import AccessDenied, SourceNotFound, UsageError
from driftline.storage.model import SkipReason
from driftline.tasks.git.work_tree import find_work_tree
from driftline.tasks.scanning.ignore import Rules
from driftline.tasks.scanning.scan import MAX_FILE_BYTES
from driftline.tasks.scanning.walk import Subtree, Walk

STDIN = "-"
"""Standard input among the names of files."""

_MAGIC = re.compile(r"[*?[]")
_SPECIAL = re.compile(r"([\\*?\[\]])")
_BLANK = re.compile(r"(\s)")  # at the end of a pattern they would be cut off


@dataclass(frozen=True, slots=True)
class Selection:
    """Files below ``folder`` (as it was written, ``~`` expanded): the one called ``file``, or all that ``rules`` let
    through.
    """

    folder: str
    file: str | None = None
    rules: Rules = field(default_factory=Rules)


def select(named: str) -> Selection:
    """What ``named`` selects; a name that exists is no glob. Raises SourceNotFound, UsageError."""
    if not named:
        raise UsageError("A file name is empty", fix="Name files, folders or globs; a dot is the current folder.")
    path = os.path.expanduser(named)
    if os.path.isdir(path):
        return Selection(path)
    if os.path.lexists(path):
        folder, _, name = path.rpartition("/")
        return Selection(folder or ("/" if path.startswith("/") else "."), name)
    magic = _MAGIC.search(path)
    folder, slash, _ = path[: magic.start() if magic else 0].rpartition("/")
    base = folder or slash or "."
    if magic is None or not os.path.isdir(base):
        raise SourceNotFound("No such file or folder", named, "Check the spelling.")
    pattern = path[len(folder) + len(slash) :]
    steps = pattern.split("/")
    exclude = () if "**" in steps else ("/" + "*/" * len(steps),)
    rules = Rules(include=(f"/{pattern}",), exclude=exclude)
    rules.check()
    return Selection(base, rules=rules)


def is_glob(named: str) -> bool:
    """Whether ``named`` is a glob: it has wildcards, and nothing is called so."""
    return _MAGIC.search(named) is not None and not os.path.lexists(os.path.expanduser(named))


def literal(name: str) -> str:
    """The gitignore pattern that matches the file ``name`` at the top of a source, and nothing else there."""
    return "/" + _BLANK.sub(r"[\1]", _SPECIAL.sub(r"\\\1", name))


def files_named(
    names: Iterable[str],
    *,
    stdin: bool = False,
    on_skip: Callable[[str, SkipReason], None] = lambda path, reason: None,
) -> Iterator[str]:
    """The path of each file that ``names`` select, each once; those of one folder or glob sorted.

    With ``stdin``, STDIN stands for itself. Files of more than MAX_FILE_BYTES are left out where they are not named
    themselves, and ``on_skip`` is told. Raises SourceNotFound (a glob that selects nothing, too), AccessDenied,
    StorageError, UsageError.
    """
    seen: set[str] = set()
    for name in names:
        for path in [STDIN] if stdin and name == STDIN else _files(name, select(name), on_skip):
            absolute = os.path.abspath(path)
            if absolute not in seen:
                seen.add(absolute)
                yield path


def _files(named: str, selection: Selection, on_skip: Callable[[str, SkipReason], None]) -> Iterator[str]:
    prefix = "" if selection.folder == "." else selection.folder.rstrip("/") + "/"
    if selection.file is not None:
        yield prefix + selection.file
        return
    root = os.path.realpath(selection.folder)
    if not os.access(root, os.R_OK | os.X_OK):
        raise AccessDenied("The folder cannot be read", selection.folder, "Check its permissions.")
    listing = Walk(root, selection.rules, find_work_tree(root)).run([Subtree()])
    if not listing.paths and selection.rules.include:
        raise SourceNotFound("No file matches", named, "What an index leaves out must be named without a glob.")
    for path, size in sorted(zip(listing.paths, listing.sizes, strict=True)):
        if size <= MAX_FILE_BYTES:
            yield prefix + path
        else:
            on_skip(prefix + path, SkipReason.TOO_LARGE)

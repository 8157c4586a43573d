"""Read files of git working trees in the encoding that ``.gitattributes`` declares (``working-tree-encoding``).

Git stores such files as UTF-8 and converts them when it writes them to a working tree.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum
from functools import lru_cache

from driftline.storage.sources.access import SafeFolder, read_regular
from driftline.storage.sources.git_isolation import run
from driftline.tasks.git.work_tree import find_nested, find_work_tree, opened
from driftline.tasks.text import declarable, has_control_characters, is_utf8

ATTRIBUTES = ".gitattributes"
"""The file in which a folder of a repository declares encodings."""
_GIT, _ATTRIBUTE = ".git", "working-tree-encoding"
_MAX_ATTRIBUTES_BYTES = 1024 * 1024
_WIDE = ("utf-16", "utf-32")
_OF_ENDING = re.compile(rb"[ \t]*\*(\.[\w-]+)[ \t]")
"""A line about all files whose names end like this."""
_MAX_ENDINGS = 100


class _Named(IntEnum):
    """Whether the attribute files of a folder and its parents name the attribute."""

    NO = 0
    YES = 1
    UNREADABLE = 2  # a pipe, on which git would block, or a link, which it does not follow


def declared_encodings(
    root: str, paths: Iterable[str], attributed: Collection[str] | None = None
) -> Mapping[str, str] | None:
    """Return the Python codec of each of ``paths``, files of the folder ``root``, for which git declares an encoding.

    ``attributed`` contains the folders ("" or with a trailing slash) of ``root`` that have a ``.gitattributes``, if
    known. Starts git only if such a file above one of the paths names the attribute. Returns None if git fails.
    """
    by_repository: dict[str, list[str]] = {}
    known: dict[str, tuple[str, _Named]] = {}
    with SafeFolder(root) as tree:
        above = _named_above(tree.root)
        if attributed is not None and above is _Named.NO:
            declared = {each: _endings(tree.read, each) for each in attributed}
            attributed = {each for each, found in declared.items() if found}
            endings = tuple(set[str]().union(*declared.values()))
            if len(endings) <= _MAX_ENDINGS:
                paths = [path for path in paths if path.lower().endswith(endings)] if endings else []

        def look(folder: str) -> tuple[str, _Named]:
            """Return the top of a folder's repository, and what its attribute files say from there down."""
            below = list[tuple[str, _Named]]()  # no recursion: a hostile tree is deeper than the stack
            while folder not in known:
                is_attributed = attributed is None or folder in attributed
                named = _names_attribute(tree.read, folder) if is_attributed else _Named.NO
                if not folder:
                    known[folder] = folder, max(named, above)
                elif _has_repository(tree, folder):
                    known[folder] = folder, named
                else:
                    below.append((folder, named))
                    folder = _parent(folder)
            top, said = known[folder]
            for folder, named in reversed(below):
                said = max(named, said)
                known[folder] = top, said
            return top, said

        for path in paths:
            top, named = look(_parent(path))
            if named is _Named.YES:
                by_repository.setdefault(top, []).append(path)
        answers = [_ask(tree, top, held) for top, held in by_repository.items()]
    found: dict[str, str] = {}
    for answer in answers:
        if answer is None:
            return None
        found |= answer
    return found


def as_utf8(data: bytes, codec: str | None) -> bytes:
    r"""Convert a text from the encoding declared for it. A file that is not in that encoding stays as it is.

    >>> as_utf8("gümüş".encode("cp1254"), "cp1254").decode()
    'gümüş'
    >>> as_utf8("gümüş".encode(), "cp1254").decode()
    'gümüş'
    """
    if codec is None:
        return data
    if not codec.startswith(_WIDE) and (is_utf8(data) or has_control_characters(data)):
        return data
    try:
        return data.decode(codec).encode()
    except UnicodeError:
        return data


def _ask(tree: SafeFolder, top: str, paths: list[str]) -> dict[str, str] | None:
    """Ask git for the encodings of files in the repository whose top is the folder ``top`` of a source.

    Returns None if git fails, but no encodings if it must not read the repository.
    """
    work_tree = find_work_tree(tree.root)
    repository = work_tree.repository if work_tree is not None else None
    if top:
        nested, outer = find_nested(tree, top), [repository.common_dir] if repository is not None else []
        repository = opened(tree.root, nested, outer) if nested is not None else None
    if repository is None:
        return {}
    names = b"".join(os.fsencode(path.removeprefix(top)) + b"\0" for path in paths)
    answer = run(repository, os.path.join(tree.root, top), "check-attr", "--stdin", "-z", _ATTRIBUTE, stdin=names)
    if answer is None:
        return None
    codecs_of = ((path, _codec(value)) for path, value in zip(paths, answer.split(b"\0")[2::3], strict=False))
    return {path: codec for path, codec in codecs_of if codec is not None}


@lru_cache(64)
def _codec(value: bytes) -> str | None:
    """Return the Python codec for an encoding as git spells it, or None if it is unknown."""
    name = value.decode("ascii", "replace")
    with contextlib.suppress(LookupError, ValueError):
        wide = codecs.lookup(name.upper().removesuffix("-BOM")).name
        if wide.startswith(_WIDE):
            return wide
    return declarable(name)


def _parent(path: str) -> str:
    """Return the folder of a file or folder, "" or with a trailing slash."""
    return path[: path.rstrip("/").rfind("/") + 1]


def _has_repository(tree: SafeFolder, folder: str) -> bool:
    with contextlib.suppress(OSError):
        tree.stat(f"{folder}{_GIT}")
        return True
    return False


def _endings(read: Callable[[str, int], bytes | None], folder: str) -> set[str]:
    """Return how the names of all files end for which a folder's attribute file may declare encodings, in lower case.

    "" is how any name ends.
    """
    try:
        content = read(f"{folder}{ATTRIBUTES}", _MAX_ATTRIBUTES_BYTES)
    except FileNotFoundError:
        return set()
    except OSError:
        content = None
    if content is None:
        return {""}
    lines = [line for line in content.split(b"\n") if _ATTRIBUTE.encode() in line]
    found = [_OF_ENDING.match(line) for line in lines if not line.lstrip().startswith(b"#")]
    return {each[1].decode().lower() if each else "" for each in found}


def _names_attribute(read: Callable[[str, int], bytes | None], folder: str) -> _Named:
    try:
        content = read(f"{folder}{ATTRIBUTES}", _MAX_ATTRIBUTES_BYTES)
    except FileNotFoundError:
        return _Named.NO
    except OSError:
        return _Named.UNREADABLE
    if content is None:
        return _Named.UNREADABLE
    return _Named.YES if _ATTRIBUTE.encode() in content else _Named.NO


def _named_above(root: str) -> _Named:
    """Return what the attribute files above ``root`` say, up to the top of its working tree."""
    folder, named = os.path.abspath(root), _Named.NO
    while not os.path.lexists(os.path.join(folder, _GIT)):
        above = os.path.dirname(folder)
        if above == folder:
            return _Named.NO
        folder = above
        named = max(named, _names_attribute(read_regular, f"{folder}/"))
    return named

"""Order exact matches: source before tests, files near a definition first, and code before comments.

Comments and docstrings are recognized by their delimiters, without parsing.
"""

from __future__ import annotations

import posixpath
import re
from bisect import bisect
from collections.abc import Callable, Iterable, Sequence, Set
from functools import lru_cache
from itertools import accumulate
from typing import Protocol, TypeVar

from driftline.storage.documents import DocumentKey, is_auxiliary, is_prose, is_test
from driftline.tasks.search.facets import language_of_file
from driftline.tasks.search.hits import LINE_COMMENT

_IN_QUOTES = frozenset(("elixir", "julia", "python"))
"""The languages whose documentation is text in triple quotes, and in which ``/*`` begins no comment."""
_STRING = r"\\.|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
"""An escape, or a string on one line. Strings and line comments may contain the signs of a comment."""
_QUOTED = re.compile(rf"""#[^\n]*|[rRbBuUfF]{{0,2}}((\"{{3}}|'{{3}}).*?(?:\2|\Z))|{_STRING}""", re.DOTALL)
_BLOCK = re.compile(rf"//[^\n]*|(?<!\S)(/\*.*?(?:\*/|\Z)|<!--.*?(?:-->|\Z))|{_STRING}", re.DOTALL)
"""Group 1 is a comment or documentation of several lines."""


MAX_SORTED_LINES = 200
"""Up to this many results are sorted: code before comments, docstrings and prose."""
MAX_COMMENTED_LINES = 5_000
"""Lines further down a document count as code: to tell, all lines before them are read."""

_READ_DOCUMENTS = 50
"""Documents to read at a time."""


@lru_cache(1 << 17)
def importance(path: str) -> int:
    """Return 0 for source code, 1 for prose, 2 for tests, and 3 for vendored, generated and repeated files.

    Examples:
        >>> [importance(path) for path in ("src/a.py", "README.md", "tests/test_a.py", "vendor/a.py")]
        [0, 1, 2, 3]
    """
    if is_auxiliary(path):
        return 3
    return 2 if is_test(path) else int(is_prose(path))


def by_importance(entity: str, path: str) -> int:
    """Return the importance of a source's file, as a sort key for documents."""
    return importance(path)


def nearness(homes: Set[DocumentKey], importing: Set[DocumentKey]) -> Callable[[str, str], int]:
    """Return a document sort key: where a name is defined, the same folders, files that import it, then the rest."""
    folders = {(entity, posixpath.dirname(path)) for entity, path in homes}

    def order(entity: str, path: str) -> int:
        if (entity, path) in homes:
            return 0
        is_near, imports = (entity, posixpath.dirname(path)) in folders, (entity, path) in importing
        return importance(path) + (1 if is_near else 5 if imports else 9)

    return order


class _Document(Protocol):
    @property
    def path(self) -> str: ...


_D = TypeVar("_D", bound=_Document)


def commented_lines(
    lines: Sequence[tuple[_D, int]],
    read: Callable[[Sequence[tuple[_D, int]]], Iterable[tuple[int, Sequence[str]]]],
    late: Callable[[], bool],
) -> set[tuple[_D, int]]:
    """Return the ``lines``, documents with 0-based numbers in order, that are in comments, docstrings or prose.

    ``read`` returns the text from each document's first line to the given one. Once it is ``late``, the rest is code.
    """
    last = [*{document: number for document, number in lines if number < MAX_COMMENTED_LINES}.items()]
    found: set[tuple[_D, int]] = set()
    for start in range(0, len(last), _READ_DOCUMENTS):
        if late():
            break
        part = last[start : start + _READ_DOCUMENTS]
        for (document, end), (_, text) in zip(part, read(part), strict=True):
            numbers = (number for each, number in lines if each == document and number <= end)
            found |= {(document, number) for number in in_comments(document.path, text, numbers)}
    return found


def in_comments(path: str, lines: Sequence[str], numbers: Iterable[int]) -> set[int]:
    """Return which of the 0-based line ``numbers`` are in a comment, a docstring or prose.

    ``lines`` begin with the document's first line, and go to the last of ``numbers`` or further.

    Examples:
        >>> sorted(in_comments("a.py", ["'''Call foo", "or foo.'''", "foo()  # foo", "# foo"], range(4)))
        [0, 1, 3]
        >>> sorted(in_comments("a.go", ["/* foo", " * foo */", "foo()", "// foo"], range(4)))
        [0, 1, 3]
    """
    if is_prose(path):
        return {*numbers}
    blocks = _QUOTED if language_of_file(path) in _IN_QUOTES else _BLOCK
    spans = [found.span() for found in blocks.finditer("\n".join(lines)) if found[1]]
    begins = [begin for begin, _ in spans]
    offsets = [0, *accumulate(len(line) + 1 for line in lines)]

    def is_in_comment(number: int) -> bool:
        line = lines[number]
        at = offsets[number] + len(line) - len(line.lstrip())
        before = bisect(begins, at) - 1
        return LINE_COMMENT.match(line) is not None or (before >= 0 and at < spans[before][1])

    return {number for number in numbers if is_in_comment(number)}

"""Map each conformance test to the specification line that it checks, and list all lines.

Documents 000 to 004 are the specification. ``search``, ``memory``, ``pipeline`` and ``engine`` are numbered lists of
problems that users had while following it; ``pages`` lists what the documentation must say.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).parent


def criterion(document: str, number: str, what: str) -> pytest.MarkDecorator:
    """Mark a test as the check for ``number`` in ``document``; ``what`` summarizes it. A test may have several
    marks.
    """
    return pytest.mark.criterion(document, number, what)


class Row(NamedTuple):
    """A line of a document."""

    document: str
    number: str


def _rows(document: str, prefix: str, last: int, *, digits: int = 1, first: int = 1) -> Iterator[Row]:
    return (Row(document, f"{prefix}{number:0{digits}}") for number in range(first, last + 1))


ROWS: tuple[Row, ...] = (
    *_rows("000", "AC ", 17),
    *_rows("000", "T", 17),
    *_rows("000", "example ", 1),
    *_rows("001", "AC ", 19),
    *_rows("001", "T", 13),
    *_rows("001", "example ", 4),
    *_rows("002", "solution ", 3),
    Row("002", "approach"),
    Row("002", "normalization"),
    *_rows("002", "fallback ", 3),
    Row("002", "configuration"),
    *_rows("002", "impact ", 3),
    *_rows("002", "monitoring ", 3),
    *_rows("002", "test ", 3),
    *_rows("002", "edge ", 3),
    *_rows("003", "AC ", 18),
    *_rows("003", "UNIT-", 3, digits=3),
    *_rows("003", "INT-", 9, digits=3),
    *_rows("003", "E2E-", 2, digits=3),
    *_rows("003", "PERF-", 2, digits=3),
    Row("003", "Environment"),
    Row("003", "design"),
    *_rows("004", "test ", 8),
    *_rows("004", "step ", 6),
    *_rows("004", "review ", 5),
    *_rows("004", "run ", 2),
    *_rows("004", "docs ", 2),
    *_rows("004", "check ", 3),
    *_rows("search", "", 12),
    *_rows("memory", "", 13),
    *_rows("pipeline", "", 2),
    *_rows("engine", "", 8),
    *_rows("pages", "", 2),
)
"""In table order. ``T`` and a number refer to a listed test case, in list order. In document 002, ``solution``,
``fallback``, ``impact``, ``monitoring`` and ``test`` are the lists of that name, and ``edge`` is the list of edge cases
in its tests. In document 004, ``test`` to ``check`` are the six sections.
"""


@cache
def carried_rows(folder: Path = HERE) -> dict[Row, list[str]]:
    """Return the rows checked by tests in ``folder``, with the names of the tests. They are read from the source
    instead of collected, so a single file can be run alone.
    """
    found: dict[Row, list[str]] = {}
    for path in sorted(folder.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for row in filter(None, map(_row_of, node.decorator_list)):
                    found.setdefault(row, []).append(f"{path.name}::{node.name}")
    return found


def _row_of(decorator: ast.expr) -> Row | None:
    match decorator:
        case ast.Call(
            func=ast.Name(id="criterion"),
            args=[ast.Constant(value=str() as document), ast.Constant(value=str() as number), *_],
        ):
            return Row(document, number)
    return None

"""Exact search finds what an oracle finds: Python's ``re`` over the decoded files, line by line."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import driftline
from driftline.storage.lines.patterns import Pattern
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.exact import ExactSearch, ExactTerms, open_tables
from driftline.tasks.text import decode, split_lines

FILES: dict[str, bytes] = {
    "src/app.py": b"def csrf_token(request):\n    return request.csrf_cookie\n\n\n}\n---\n\tTabbed = 1\nTOKEN = 3\n",
    "src/naive.py": "naïve = 'Straße'\nK = 'Kelvin'  # ſmall Kelvin\nΣίσυφος σ ς\n日本語 = 1\n".encode(),
    "src/cr.txt": b"one\rtwo csrf_token\r\n}\r\n\rlast",
    "src/long.js": b"x=1;" * 6_000 + b"needle(csrf_end);" + b"y;" * 600 + b"\nend\n",
    "src/utf16.txt": "wide csrf_line\n}\n".encode("utf-16"),
    "src/marks.txt": "a\ufdd0b foo foo\n\ufdd2 foo\n".encode(),
    "separators.txt": b"---\n}\n===\n",
    "blank.txt": b"\n\n  \n",
    "empty.txt": b"",
    "tests/test_app.py": b"def test_csrf_token():\n    assert csrf_token(None)\n",
    "vendor/lib.py": b"csrf_token = None\n",
    "big.txt": b"".join(b"line %d of words %d\n}\n" % (i, i * 7919 % 1000) for i in range(4_000)),
}
ATOMS = (
    "csrf_", "csrf_token", "foo", "line", "words", "}", "---", "-", "needle", "x=1;", r"\d+", r"\w+", "[a-z]+",
    "[^a-z ]", ".", ".*", "^", "$", r"\bfoo\b", "K", "s", "σ", "ß", "straße", "(token|cookie)", "(?:a|b)?", "1{2}",
    "9{1,3}", r"\(", "日", r"\.", "of words 7", "def ", r"[\w.]+", "E?", "_+", "max", "TOKEN", "request", r"\t", "7 ?}",
)  # fmt: skip


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("exact") / "tree"
    for name, data in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


@pytest.fixture(scope="module")
def workspace(tree: Path) -> Workspace:
    driftline.index(str(tree), workspace=str(tree.parent / "ws"), indexes="none")
    return driftline.open(str(tree.parent / "ws"))


def documents(tree: Path) -> Iterator[tuple[str, list[str]]]:
    for path in sorted(tree.rglob("*")):
        if path.is_file():
            yield path.relative_to(tree).as_posix(), split_lines(decode(path.read_bytes())[0])


def oracle(tree: Path, pattern: re.Pattern[str], *, words: bool = False) -> set[tuple[str, int]]:
    expression = rf"(?:^|\W)(?:{pattern.pattern})(?:\W|$)" if words else pattern.pattern
    wanted = re.compile(expression, pattern.flags)
    return {
        (name, number)
        for name, lines in documents(tree)
        for number, line in enumerate(lines, start=1)
        if wanted.search(line)
    }


def found(workspace: Workspace, pattern: Pattern) -> set[tuple[str, int]]:
    search = ExactSearch(workspace, open_tables(workspace, None), ExactTerms((pattern,)), lambda: False)
    return {(place.path, number + 1) for place, numbers in search.lines() for number in numbers}


def some_patterns() -> Iterator[str]:
    chance = random.Random(31)
    yield from ATOMS
    for _ in range(160):
        joined = "".join(chance.choices(ATOMS, k=chance.randint(1, 3)))
        other = chance.choice(ATOMS)
        yield chance.choice((joined, f"({joined})+", f"{joined}|{other}", f"^{joined}", f"{joined}$"))


@pytest.mark.parametrize("ignore_case", [False, True], ids=["with case", "without case"])
def test_every_line_that_matches_is_found(workspace: Workspace, tree: Path, ignore_case: bool) -> None:
    flags = re.ASCII if not ignore_case else re.IGNORECASE
    for text in some_patterns():
        # RE2's classes are of ASCII; Python's are only without IGNORECASE, which then knows no other letters.
        spelled = text.replace(r"\w", "a-zA-Z0-9_" if "[\\w" in text else "[a-zA-Z0-9_]").replace(r"\d", "[0-9]")
        if ignore_case:
            spelled = spelled.replace(r"\bfoo\b", r"(?<![a-zA-Z0-9_])foo(?![a-zA-Z0-9_])")
        pattern = Pattern.of(text, ignore_case=ignore_case)
        assert found(workspace, pattern) == oracle(tree, re.compile(spelled, flags)), text

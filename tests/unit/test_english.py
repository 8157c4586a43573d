"""The English of documentation, docstrings, comments, help and errors: spelling, and phrases that sound translated."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from driftline.storage import errors
from driftline.storage.errors import DriftlineError

ROOT = Path(__file__).parents[2]
CODE = sorted(path for package in ("flows", "storage", "tasks") for path in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
DATA = {ROOT / "storage/lines/tokenizer.py", ROOT / "tasks/search/query_language.py"}
"""Modules that contain words and lines of text as data."""

KINDS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, DriftlineError)}
BANNED = {
    r"(?:^|[.:] |\n\n)What (?!to\b|happened\b)[^.;:?,]*? (?:is|are|has|stays?|goes|counts|takes) \w": (
        "name the subject instead of a what-clause"
    ),
    r"as one (?:types|sees|knows|would)": "write 'while typing', or name who acts",
    r"\bthose that\b(?! (?:are|were|have|is|match|need|it|no|a|the|remain|others)\b)": "name the things",
    r"\blets? in\b": "write 'admit' or 'trust'",
    r"\b(?:front )?doors\b": "write 'interfaces'",
    r"\brooms\b": "write 'modules'",
    r"\b(?:is|are|be) told (?:to|that|by)\b": "say who reports it",
    r"\bstands? (?:beside|in|there|on)\b": "write 'is in' or 'is next to'",
    r"\bbeside (?:it|them|this|that|the|others?|each other)\b": "write 'next to', 'during' or 'concurrently'",
    r"\banew\b": "write 'again'",
    r"\blike in\b": "write 'as in'",
    r"\btell the (?:server's )?(?:owner|administrator)\b": "write 'contact'",
    r"\bis no (?:\w+ ){0,2}(?:of|for|that|which)\b": "write 'is not a'",
    r"\bshall\b": "write 'must' or 'may'",
    r"\bby and by\b": "write 'gradually'",
    r"\bso (?:many|much) (?:\w+ )?(?:are|is|may|do|does|take)\b": "write 'at most' or 'up to'",
    r"\b(?:how|where) it stands\b": "say what the state is",
    r"\bof (?:today|now)\b": "write 'current'",
    r"\btells? of\b": "write 'report' or 'show'",
    r"\b[Ww](?:hoever|hosoever)\b": "name the person",
    r"\bnor ever will\b": "write 'can never'",
    r"\bin any way but\b": "say what happens",
}


SETTLED = {
    r"\bRaises the errors of\b": "write 'Propagates errors from'",
    r"\bin the meantime\b": "write 'concurrently' or 'since then'",
    r"\bline feeds?\b": "write 'newline'",
    r"\btables? of lines\b": "write 'lines table'",
    r"\b(?:in|out)side of\b": "write 'inside' or 'outside'",
    r"\bat the latest\b": "write 'no later than'",
    r"\bbegin to\b": "write 'start', or the verb itself",
    r"\bfarther\b": "write 'more distant'",
    r"\bby meaning\b": "write 'semantically'",
    r"\bvariables? of the environment\b": "write 'environment variable'",
    r"\banyway\b": "say what happens instead, or write 'in any case'",
    r"\beverything below\b": "write 'everything under'",
    r"`` holds\b": "write 'contains', 'lists' or 'is'",
    r"\bin each of \{": "write 'on all N attempts'",
    r"\bfrom (?:here|now|\d+) on\b": "write 'later', 'or later', or 'non-negative'",
    r"; (?:None|\"\") (?:if|for)\b": "write ', or None if'",
    r"\bReturn, as\b": "put the shape last",
    r",(?: and)? of which\b": "write 'whose', or a second sentence",
    r"(?:^|[.:] |\n\n)Of (?:the|several|a|each|``)": "put the subject first",
    r"\buntil (?:its|their) end\b": "write 'until the input is closed', or what ends it",
    r"\b(?:is|are|becomes?) (?:that|those) of\b": "name the thing again",
    r"\b(?:what|how|where)ever\b(?!,)": "write 'any', 'even if', or 'in any case'",
    r"\b(?:run it|ask) again\b": "write 'run the command again' or 'retry'",
    r"\blies? (?:in|at|below|inside|within|on|above|under)\b": "write 'is'",
    r"\b(?:normal|optim|serial|quant|organ|initial|summar|recogn)is(?:e[ds]?|ing|ations?)\b": "spell it with -ize",
}
"""Phrases that the pages and the packages in ``SETTLED_PACKAGES`` no longer contain."""
SETTLED_PACKAGES = frozenset({"flows", "storage", "tasks"})

IN_NAMES = {
    r"(?<!there\s)\b(?:is|are) no\b(?! (?:longer|more)\b)": "write 'is not a'",
    r"\b(?:is|are) named(?: with\b| or\b|$)": "write 'is reported' or 'is given'",
    r"\b(?:is|are) (?:that|those) that\b": "name the thing again",
    r"\bspelt\b|\banyway\b|\bside by side\b|\bnamed workspaces? (?:is|are) searched": "use the word of the docs",
    r"\b(?:may|can) (?:lie|be asked for)\b|\blies$": "write 'be' or 'be requested'",
    r"\b(?:stop|hide|join|drop|abort|fail|break|touch|begin)s? no\b": "write 'does not' and the verb",
    r"\b(?:is|are) (?:refused|asked|folded|ignored|priced) where\b": "write 'if' or 'unless'",
}
"""Phrases that the names of tests do not contain, in addition to the others; an underscore counts as a blank."""


def code_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield docstrings, comments, and all strings that contain a blank, with their line numbers."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def page_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of a page, without code blocks."""
    text = re.sub(r"^ *```.*?^ *```", lambda found: "\n" * found[0].count("\n"), path.read_text(), flags=re.S | re.M)
    line = 1
    for paragraph in re.split(r"(?<=\n)\n", text):
        yield line, re.sub(r"`[^`]*`", "`code`", paragraph)
        line += paragraph.count("\n") + 1


@cache
def prose() -> list[tuple[Path, int, str]]:
    """Return all texts to check; decision records are not rewritten."""
    code = [(path, *each) for path in CODE if path not in DATA for each in code_prose(path)]
    return code + [(path, *each) for path in PAGES if "decisions" not in path.parts for each in page_prose(path)]


def test_spelling() -> None:
    """codespell knows common misspellings; ``.codespellrc`` lists the files and words that it must ignore."""
    found = subprocess.run(
        [Path(sys.executable).with_name("codespell"), *map(str, PAGES), *map(str, CODE)],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


@cache
def names_of_tests() -> list[tuple[Path, int, str]]:
    """Return the name of each test as a sentence, with its line number."""
    return [
        (path, number, name.replace("_", " "))
        for path in TESTS
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        for name in re.findall(r"^ *(?:async )?def test_(\w+)", line)
    ]


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern in which a blank matches any white space."""
    flags = re.IGNORECASE if not pattern.startswith("(?:^") else re.NOFLAG
    return re.compile(re.sub(r"(?<!\|) (?!\|)", r"\\s+", pattern), flags)


@pytest.mark.parametrize("pattern", [*BANNED, *SETTLED])
def test_no_phrase_sounds_translated(pattern: str) -> None:
    expression = compiled(pattern)
    found = [
        f"{path.relative_to(ROOT)}:{line + text[: match.start()].count(chr(10))}: {' '.join(match[0].split())!r}"
        for path, line, text in prose()
        if pattern in BANNED or path.suffix == ".md" or path.relative_to(ROOT).parts[0] in SETTLED_PACKAGES
        for match in expression.finditer(text)
    ]
    assert not found, f"{(BANNED | SETTLED)[pattern]}:\n" + "\n".join(found)


@pytest.mark.parametrize("pattern", [*BANNED, *SETTLED, *IN_NAMES])
def test_no_name_of_a_test_sounds_translated(pattern: str) -> None:
    expression = compiled(pattern)
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]!r}"
        for path, line, name in names_of_tests()
        for match in expression.finditer(name)
    ]
    assert not found, f"{(BANNED | SETTLED | IN_NAMES)[pattern]}:\n" + "\n".join(found)


def test_docstrings_of_properties_describe_the_value() -> None:
    """A property reads like a field: "Whether ...", "The ...". Functions are imperative: "Return ..."."""
    imperative = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in CODE
        if path.relative_to(ROOT).parts[0] in SETTLED_PACKAGES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
        and (ast.get_docstring(node) or "").startswith("Return")
    ]
    assert imperative == []


def test_names_of_tests_name_their_subject() -> None:
    odd = re.compile(r"def (test_(?:what(?!_to_)|whatever|whoever|whichever|of|nothing_of|no_other|how_often)_\w+)")
    assert [name for path in TESTS for name in odd.findall(path.read_text())] == []


@pytest.mark.parametrize(
    ("subject", "accepted"),
    [
        ("search: rank definitions first", True),
        ("ci, docs: check the subjects of merges", False),
        ("merge: exact search of documents", True),
        ('Revert "search: rank definitions first"', True),
        ("Merge branch 'documents' into me", False),
        ("fixup! search: rank definitions first", False),
        ("squash! search: rank definitions first", False),
        ("Search: rank definitions first", False),
        (f"search: {'x' * 65}", False),
    ],
)
def test_subjects_of_commits_name_their_area(subject: str, accepted: bool) -> None:
    checked = subprocess.run(
        ["awk", "-f", ROOT / ".ci/subjects.awk"], input=subject, capture_output=True, text=True, check=False
    )
    assert (checked.returncode == 0) == accepted


def _is_reason(fix: ast.expr) -> bool:
    """Return whether a fix quotes the error without saying what to do: it has no sentence of its own."""
    if isinstance(fix, ast.Attribute):  # the fix of another error
        return False
    names = {node.id for node in ast.walk(fix) if isinstance(node, ast.Name)}
    text = " ".join(node.value for node in ast.walk(fix) if isinstance(node, ast.Constant) and type(node.value) is str)
    return bool({"error", "why", "status"} & names) and re.search(r"\b[A-Z][a-z]+ [\w']+", text) is None


def test_every_fix_is_a_step_and_not_a_reason() -> None:
    reasons = [
        f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(fix)}"
        for path in CODE
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS
        for fix in [*node.args[2:3], *(each.value for each in node.keywords if each.arg == "fix")]
        if _is_reason(fix)
    ]
    assert reasons == []


def test_a_list_of_errors_in_a_docstring_has_each_that_is_raised() -> None:
    unlisted = [
        f"{path.relative_to(ROOT)}:{node.lineno} {call.func.id}"
        for path in CODE
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        for listed in re.findall(r"\bRaises\b.*", ast.get_docstring(node) or "", re.DOTALL)
        for call in (each.exc for each in ast.walk(node) if isinstance(each, ast.Raise))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in KINDS
        if not {kind.__name__ for kind in getattr(errors, call.func.id).__mro__} & set(re.findall(r"\w+", listed))
        and " errors " not in listed
    ]
    assert unlisted == []

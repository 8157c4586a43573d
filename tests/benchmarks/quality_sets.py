"""Queries with known answers, made from the packages of this environment (pinned by requirements.lock).

Code: the first sentence of a docstring is the query for its function, in a tree without docstrings. Prose: the first
sentence of a paragraph is removed and becomes the query for the rest, in a tree of the packages' documentation.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import random
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from corpus import Corpus, cached

CODE_PACKAGES = (
    "aiohttp",
    "alembic",
    "botocore",
    "dask",
    "distributed",
    "fsspec",
    "hypothesis",
    "joblib",
    "numpy",
    "prefect",
    "prompt_toolkit",
    "pydantic",
    "redis",
    "sqlalchemy",
    "tornado",
)
MIN_QUERY_WORDS, MAX_QUERY_WORDS = 5, 30
MIN_FUNCTION_LINES = 3
MIN_REST_WORDS = 15
MAX_PER_FILE = {"code": 4, "prose": 16, "javascript": 6, "go": 6, "rust": 8, "java": 6, "c": 8, "cpp": 8}
_SEED = 20261122
_SENTENCE_END = re.compile(r"(?<=[a-z0-9)`'\"*])[.!?:](?:\s|$)")
_MARKUP = re.compile(r":[a-z:]+:`|[`*]|\[([^\]]*)\]\([^)]*\)")

Half = Literal["tuning", "reporting"]


@dataclass(frozen=True, slots=True)
class Query:
    """A query ``text`` for lines ``first`` to ``last`` (1-based, inclusive) of ``path``."""

    text: str
    path: str
    first: int
    last: int
    half: Half

    def met_by(self, path: str, start_line: int, end_line: int) -> bool:
        """Return whether a result that shows these lines is correct."""
        return path == self.path and start_line <= self.last and end_line >= self.first


@dataclass(frozen=True, slots=True)
class QuerySet:
    """A tree and its queries."""

    kind: str
    tree: Corpus
    queries: tuple[Query, ...]

    def half(self, half: Half, count: int | None = None) -> list[Query]:
        """Return at most ``count`` queries of one half, in a fixed random order."""
        return [query for query in self.queries if query.half == half][:count]


def code_set(packages: Sequence[str] = CODE_PACKAGES, count: int = 2_400) -> QuerySet:
    """Return ``count`` queries for functions in ``packages``."""

    def make(root: Path) -> tuple[int, int, int]:
        found: list[tuple[str, str, int, int]] = []
        trees = []
        for package in packages:
            for source in sorted((_site() / package).rglob("*.py")):
                path = source.relative_to(_site()).as_posix()
                try:
                    text, functions = without_docstrings(source.read_text("utf-8"))
                except (SyntaxError, UnicodeDecodeError):
                    continue
                trees.append((path, text))
                if not re.search(r"(^|/)(tests?|testing|_vendor|vendored)/|/test_|/conftest", path):
                    found += [(query, path, first, last) for query, first, last in functions]
        return write_set("code", root, trees, found, count)

    return read_set("code", f"quality-code-{len(packages)}-{count}", make)


def prose_set(count: int = 1_200, packages: int | None = None) -> QuerySet:
    """Return up to ``count`` queries for paragraphs in the documentation of all installed packages, or of the first
    ones.
    """

    def make(root: Path) -> tuple[int, int, int]:
        found: list[tuple[str, str, int, int]] = []
        trees = []
        for path, text in _documentation(packages):
            rest, paragraphs = without_first_sentences(text)
            trees.append((path, rest))
            found += [(query, path, first, last) for query, first, last in paragraphs]
        return write_set("prose", root, trees, found, count)

    return read_set("prose", f"quality-prose-{count}", make)


def without_docstrings(source: str) -> tuple[str, list[tuple[str, int, int]]]:
    """Return ``source`` without docstrings. For each function that had one, also return its first sentence, first line
    and last line.

    Raises SyntaxError.
    """
    lines = source.splitlines()
    dropped: set[int] = set()
    described: list[tuple[str, int, int]] = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            continue
        docstring = ast.get_docstring(node)
        if docstring is None:
            continue
        statement = node.body[0]
        dropped.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and len(node.body) > 1:
            described.append((docstring, node.lineno, node.end_lineno or node.lineno))
    number, new_number = 0, [0]
    for line in range(1, len(lines) + 1):
        number += line not in dropped
        new_number.append(number)
    functions = []
    for docstring, first, last in described:
        query = first_sentence(docstring)
        if query is not None and new_number[last] - new_number[first] + 1 >= MIN_FUNCTION_LINES:
            functions.append((query, new_number[first], new_number[last]))
    kept = [line for at, line in enumerate(lines, start=1) if at not in dropped]
    return "\n".join(kept) + "\n", functions


def without_first_sentences(text: str) -> tuple[str, list[tuple[str, int, int]]]:
    """Return ``text`` without the first sentence of each longer paragraph, and each of these sentences with the lines
    of its paragraph's rest.
    """
    kept: list[str] = []
    paragraphs: list[tuple[str, int, int]] = []
    fenced = False
    for block in re.split(r"(\n[ \t]*\n+)", text):
        plain = bool(re.match(r"[A-Z]", block)) and not fenced
        fenced ^= block.count("```") % 2 == 1
        match = _SENTENCE_END.search(block)
        if plain and match:
            query, rest = first_sentence(block), block[match.end() :].lstrip()
            if query is not None and len(re.findall(r"[A-Za-z]{2,}", rest)) >= MIN_REST_WORDS:
                first = "".join(kept).count("\n") + 1
                paragraphs.append((query, first, first + rest.count("\n")))
                kept.append(rest)
                continue
        kept.append(block)
    return "".join(kept), paragraphs


def first_sentence(text: str) -> str | None:
    """Return the first sentence of ``text`` without markup, or None if it is too short, too long, or not made of
    words.
    """
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    match = _SENTENCE_END.search(paragraph)
    sentence = _MARKUP.sub(lambda found: found[1] or "", paragraph[: match.start()] if match else paragraph).strip()
    words = sentence.split()
    meant = sum(word.strip(",;()").isalpha() for word in words)
    if not MIN_QUERY_WORDS <= len(words) <= MAX_QUERY_WORDS or meant < 0.7 * len(words) or not sentence.isascii():
        return None
    return sentence


def _documentation(packages: int | None) -> Iterator[tuple[str, str]]:
    """Yield the path and text of each package's description and of the documents among its files."""
    for distribution in sorted(importlib.metadata.distributions(), key=lambda found: found.name.lower())[:packages]:
        name = re.sub(r"\W+", "_", distribution.name.lower())
        description = distribution.read_text("METADATA") or ""
        description = description.partition("\n\n")[2]
        if len(description) > 500 and name != "driftline":
            yield f"{name}/README.md", description
        for file in distribution.files or ():
            if file.suffix in {".md", ".rst"} and "licen" not in file.as_posix().lower():
                try:
                    yield f"{name}/{file.as_posix()}", Path(str(file.locate())).read_text("utf-8")
                except (OSError, UnicodeDecodeError):
                    continue


def write_set(
    kind: str, root: Path, trees: Sequence[tuple[str, str]], found: Sequence[tuple[str, str, int, int]], count: int
) -> tuple[int, int, int]:
    """Write the tree and, next to it, a random sample of the unique queries."""
    lines = size = 0
    for path, text in trees:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
        lines, size = lines + text.count("\n"), size + len(text.encode())
    requested = Counter(query.lower() for query, *_ in found)
    dice, per_file = random.Random(_SEED), Counter[str]()
    chosen: list[Query] = []
    for text, path, first, last in dice.sample(list(found), len(found)):
        if requested[text.lower()] == 1 and per_file[path] < MAX_PER_FILE[kind] and len(chosen) < count:
            per_file[path] += 1
            chosen.append(Query(text, path, first, last, dice.choice(("tuning", "reporting"))))
    (root.parent / "queries.json").write_text(json.dumps([asdict(query) for query in chosen]))
    return len(trees), lines, size


def read_set(kind: str, name: str, make: object) -> QuerySet:
    tree = cached(name, make)  # type: ignore[arg-type]
    queries = json.loads((tree.path.parent / "queries.json").read_text())
    return QuerySet(kind, tree, tuple(Query(**query) for query in queries))


def _site() -> Path:
    return Path(sysconfig.get_path("purelib"))

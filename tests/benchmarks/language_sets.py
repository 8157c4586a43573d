"""Queries with known answers in languages other than Python, and questions by people who do not know the code.

The first sentence of a doc comment is the query for its function, in a tree without doc comments. Each question asks
for a definition or a section; ``questions.tsv`` has tree, path, name and question.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from packages import Package, sources
from quality_sets import (
    MIN_FUNCTION_LINES,
    Half,
    Query,
    QuerySet,
    code_set,
    first_sentence,
    prose_set,
    read_set,
    write_set,
)

from driftline.storage.documents import is_test
from driftline.tasks.definitions.find_definitions import definitions

_GO = "usr/share/go-1.19/src"
_JAVA = "usr/lib/jvm/openjdk-17/lib"
_GO_FOLDERS = """
archive bufio bytes compress container context crypto database encoding errors expvar flag fmt go hash html image io log
math mime net os path reflect regexp sort strconv strings sync testing text time unicode
"""
_JAVA_FOLDERS = "io lang math net nio security text time util"
_RUST = "usr/share/cargo/registry"
LANGUAGES: dict[str, tuple[tuple[str, ...], tuple[Package, ...]]] = {
    "javascript": (
        (".js", ".ts", ".tsx", ".mjs"),
        (
            Package("npm", "eslint", "9.18.0", ("lib",)),
            Package("npm", "three", "0.170.0", ("src",)),
            Package("npm", "rxjs", "7.8.2", ("src",)),
            Package("npm", "react-native", "0.72.17", ("Libraries", "scripts")),
        ),
    ),
    "go": (
        (".go",),
        (
            Package(
                "debian",
                "golang-1.19-src",
                "1.19.8-2",
                tuple(f"{_GO}/{name}" for name in _GO_FOLDERS.split()),
            ),
        ),
    ),
    "rust": (
        (".rs",),
        tuple(
            Package("debian", f"librust-{name}-dev", version, (_RUST,))
            for name, version in (
                ("tokio", "1.24.2-1"),
                ("regex", "1.7.1-1"),
                ("hyper", "0.14.19-1"),
                ("clap", "4.0.32-1"),
                ("serde-json", "1.0.87-1"),
            )
        ),
    ),
    "java": (
        (".java",),
        (
            Package(
                "debian",
                "openjdk-17-source",
                "17.0.21.1+2-1~deb12u1",
                tuple(f"{_JAVA}/java.base/java/{name}" for name in _JAVA_FOLDERS.split()),
            ),
        ),
    ),
    "c": (
        (".c", ".h"),
        (
            Package("pypi", "gevent", "24.11.1", ("deps",)),
            Package("pypi", "igraph", "0.11.8", ("vendor/source/igraph/src", "vendor/source/igraph/include")),
            Package("pypi", "zstandard", "0.23.0", ("zstd",)),
        ),
    ),
    "cpp": (
        (".h", ".hpp", ".cc"),
        (
            Package("debian", "libabsl-dev", "20220623.1-1+deb12u2", ("usr/include",)),
            Package("debian", "libxtensor-dev", "0.24.3-1", ("usr/include",)),
            Package("debian", "nlohmann-json3-dev", "3.11.2-2", ("usr/include",)),
            Package("debian", "googletest", "1.12.1-0.2", ("usr/src",)),
            Package("debian", "libeigen3-dev", "3.4.0-4", ("usr/include",)),
        ),
    ),
}
QUESTIONS = Path(__file__).with_name("questions.tsv")
_COMMENT = ("//", "/*", "*")
_MARKERS = re.compile(r"^\s*(?:/\*+[!<]?|\*+/|\*(?!/)|//[/!]?)|\*+/\s*$")
_TAGS = re.compile(r"\{@\w+\s+([^}]*)\}|</?\w+[^>]*>|\\(?:brief|ref|c|a|p)\s|\\function\s+\w+|^\w+\(\)\s*:")


def language_set(language: str, count: int = 700) -> QuerySet:
    """Return ``count`` queries for functions in a language's packages."""
    extensions, packages = LANGUAGES[language]

    def make(root: Path) -> tuple[int, int, int]:
        found: list[tuple[str, str, int, int]] = []
        trees = []
        for package in packages:
            for path, source in sources(package, extensions):
                text, functions = without_doc_comments(path, source)
                trees.append((path, text))
                if not is_test(path) and "vendor/" not in path.removeprefix("igraph/vendor/"):
                    found += [(query, path, first, last) for query, first, last in functions]
        return write_set(language, root, trees, found, count)

    return read_set(language, f"quality-{language}-{count}", make)


def question_sets() -> tuple[QuerySet, ...]:
    """Return the questions about each tree, split in halves by hash."""
    requested: dict[str, list[tuple[str, str, str]]] = {}
    for line in QUESTIONS.read_text("utf-8").splitlines():
        tree, path, name, question = line.split("\t")
        requested.setdefault(tree, []).append((path, name, question))
    return tuple(_questions(tree, found) for tree, found in requested.items())


def _questions(tree: str, requested: list[tuple[str, str, str]]) -> QuerySet:
    queries = code_set() if tree == "python" else prose_set() if tree == "prose" else language_set(tree)
    files = {path.relative_to(queries.tree.path).as_posix(): path for path in queries.tree.path.rglob("*.*")}
    found = []
    for ending, name, question in requested:
        path = next(path for path in sorted(files) if f"/{path}".endswith(f"/{ending}"))
        known = definitions(path, files[path].read_text("utf-8"))
        location = next(each for each in known if each.name == name or each.name.endswith(f" > {name}"))
        half: Half = "tuning" if hashlib.sha256(question.encode()).digest()[0] % 2 else "reporting"
        found.append(Query(question, path, location.first + 1, location.last + 1, half))
    return QuerySet(queries.kind, queries.tree, tuple(found))


def without_doc_comments(path: str, source: str) -> tuple[str, list[tuple[str, int, int]]]:
    """Return ``source`` without the comments above its definitions. For each function that had one, also return the
    comment's first sentence without the function's name, and the first and last line of the function.
    """
    lines = source.split("\n")
    dropped: set[int] = set()
    described: list[tuple[str, int, int]] = []
    for each in definitions(path, source):
        comment = [at for at in range(each.first, each.line) if lines[at].lstrip().startswith(_COMMENT)]
        dropped.update(comment)
        if comment and each.kind in ("function", "method"):
            query = _query([lines[at] for at in comment], each.name.rsplit(".")[-1])
            if query is not None:
                described.append((query, each.line, each.last))
    number, new_number = 0, []
    for at in range(len(lines)):
        number += at not in dropped
        new_number.append(number)
    functions = [
        (query, new_number[first], new_number[last])
        for query, first, last in described
        if new_number[last] - new_number[first] + 1 >= MIN_FUNCTION_LINES
    ]
    return "\n".join(line for at, line in enumerate(lines) if at not in dropped), functions


def _query(comment: list[str], name: str) -> str | None:
    text: list[str] = []
    for line in comment:
        bare = _TAGS.sub(lambda found: found[1] or "", _MARKERS.sub("", line)).strip()
        if bare.startswith(("@", "\\", "# ")) or (text and not bare):
            break
        if bare:
            text.append(bare)
    query = first_sentence(" ".join(text))
    if query is None:
        return None
    words = [word for word in query.split() if name.lower() not in word.lower()]
    return first_sentence(" ".join(words))

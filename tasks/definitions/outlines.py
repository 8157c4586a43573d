"""Find a document's definitions: functions, classes, types, sections and keys (decision 0012).

If there is a tree-sitter grammar for the file extension, the queries in ``queries/*.scm`` find them. Headings delimit
sections in Markdown, reStructuredText and HTML. In languages with no grammar, patterns find lines that look like the
start of a definition.
"""

from __future__ import annotations

import atexit
import html
import importlib
import logging
import marshal
import os
import posixpath
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from driftline.storage.lines.outline import KINDS, Definition

if TYPE_CHECKING:
    from tree_sitter import Language, Node, Query

_SLASHES = ("//", "/*", "*", "@", "#[")
_HASHES = ("#", "@")
_DASHES = ("--",)
SEPARATOR = " > "
MAX_HEADING_CHARACTERS = 120
_UNDERLINE = re.compile(r"([=\-~^\"'`#*+:.<>_])\1{2,}\s*")
_ATX = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*")
_SETEXT = re.compile(r" {0,3}(=+|-+)[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_NO_PARAGRAPH = re.compile(r" {4}|\t| {0,3}(?:[-+*>|]|\d+[.)])(?:[ \t]|$)")
_HTML_HEADING = re.compile(r"<h([1-6])\b[^>]*>(.*?)</h\1\s*>", re.IGNORECASE | re.DOTALL)
_MARKUP = re.compile(r"<[^>]*>|[`*]|\]\([^)]*\)|\[(?=[^\]]*\]\()")
_TAG = re.compile(r"<[^>]*>")
_KINDS = {
    "def": "function", "func": "function", "fn": "function", "fun": "function", "sub": "function",
    "defp": "function", "defguard": "function", "defguardp": "function", "defdelegate": "function",
    "defmacro": "macro", "defmacrop": "macro", "defmodule": "module", "defprotocol": "interface", "defimpl": "impl",
    "record": "struct", "package": "module",
}  # fmt: skip
_DEFINITION = re.compile(
    r"[ \t]*(?:(?:export|default|public|private|protected|internal|static|abstract|final|async|inline|local"
    r"|pub(?:\([^)\n]*\))?)[ \t]+)*"
    r"(def(?:p|macrop?|guardp?|delegate|module|protocol|impl)?|class|func|function|fn|fun|sub|interface|struct|enum|trait"
    r"|impl|module|type|record|namespace)[ \t]+([\w.<>:]+[?!]?)[ \t]*"
    r"(?:[(:{<=\[]|$|(?:struct|interface|extends|implements|for|do|when)\b|,[ \t]*(?:do|for|to):)",
    re.MULTILINE,
)
_BLOCKS = {
    "resource": ("type", ""), "data": ("type", "data."), "variable": ("property", "var."),
    "output": ("property", "output."), "module": ("module", "module."),
}  # fmt: skip
"""Maps Terraform block types to their kind and the prefix of their name in expressions."""
_BLOCK = re.compile(r'(resource|data|variable|output|module)[ \t]+"([\w.-]+)"(?:[ \t]+"([\w.-]+)")?[ \t]*\{')
_LEADING = ("#", "@")
MAX_PARSED_CHARACTERS = 1_000_000
"""Larger files are generated code or data, where patterns are good enough."""
MAX_NAME_CHARACTERS = 160
FLOW_PRAGMA_WITHIN = 2_000
MAX_COMMENT_LINES = 200
_HOLDS_METHODS = frozenset(("class", "enum", "impl", "interface", "struct", "trait", "union"))
_DECLARATORS = ("declarator", "name")
_NOISE = re.compile(r"^(?:module\.exports|exports|this|self)\.|\.prototype(?=\.)|[\"'`]")
_SCOPES = re.compile(r"::|#(?=\w)")
_BLANK = re.compile(r"\s+")
MIN_CHARACTERS = 500_000
"""Parsing less than this takes a tenth of a second, which is not worth another process."""
EXIT_SECONDS = 2.0
_LENGTH = struct.Struct("<Q")
_SERVE = "from driftline.tasks.definitions.outlines import serve; serve()"
PathAndText = tuple[str, str]
"""Path and text."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language: its query, its grammar's package and function, and its ``leading`` prefixes.

    Lines directly above a definition that start with such a prefix belong to it: comments, decorators and attributes.
    """

    language: str
    package: str
    function: str = "language"
    leading: tuple[str, ...] = _SLASHES


_PYTHON = Grammar("python", "tree_sitter_python", leading=_HASHES)
_JAVASCRIPT = Grammar("javascript", "tree_sitter_javascript")
_TYPESCRIPT = Grammar("typescript", "tree_sitter_typescript", "language_typescript")
_TSX = Grammar("typescript", "tree_sitter_typescript", "language_tsx")
_GO = Grammar("go", "tree_sitter_go")
_RUST = Grammar("rust", "tree_sitter_rust")
_JAVA = Grammar("java", "tree_sitter_java")
_KOTLIN = Grammar("kotlin", "tree_sitter_kotlin")
_C = Grammar("c", "tree_sitter_c")
_CPP = Grammar("cpp", "tree_sitter_cpp")
_CSHARP = Grammar("csharp", "tree_sitter_c_sharp", leading=("//", "/*", "*", "["))
_RUBY = Grammar("ruby", "tree_sitter_ruby", leading=_HASHES)
_PHP = Grammar("php", "tree_sitter_php", "language_php")
_SWIFT = Grammar("swift", "tree_sitter_swift")
_SCALA = Grammar("scala", "tree_sitter_scala")
_BASH = Grammar("bash", "tree_sitter_bash", leading=_HASHES)
_SQL = Grammar("sql", "tree_sitter_sql", leading=_DASHES)
_YAML = Grammar("yaml", "tree_sitter_yaml", leading=_HASHES)
_TOML = Grammar("toml", "tree_sitter_toml", leading=_HASHES)

BY_EXTENSION: dict[str, Grammar] = {
    **dict.fromkeys(("py", "pyi", "pyw"), _PYTHON),
    **dict.fromkeys(("js", "jsx", "mjs", "cjs"), _JAVASCRIPT),
    **dict.fromkeys(("ts", "mts", "cts"), _TYPESCRIPT),
    "tsx": _TSX,
    "go": _GO,
    "rs": _RUST,
    "java": _JAVA,
    **dict.fromkeys(("kt", "kts"), _KOTLIN),
    "c": _C,
    **dict.fromkeys(("h", "cc", "cpp", "cxx", "hh", "hpp", "hxx", "ipp", "cu", "cuh"), _CPP),
    "cs": _CSHARP,
    **dict.fromkeys(("rb", "rake", "gemspec"), _RUBY),
    "php": _PHP,
    "swift": _SWIFT,
    **dict.fromkeys(("scala", "sc", "sbt"), _SCALA),
    **dict.fromkeys(("sh", "bash"), _BASH),
    "sql": _SQL,
    **dict.fromkeys(("yaml", "yml"), _YAML),
    "toml": _TOML,
}
"""The grammars, keyed by file extension. C headers are parsed as C++, which covers nearly all of them."""


@cache
def loaded(grammar: Grammar) -> tuple[Language, Query]:
    """Load the grammar and its query, once per process."""
    from tree_sitter import Language, Query

    language = Language(getattr(importlib.import_module(grammar.package), grammar.function)())
    source = Path(__file__).with_name("queries") / f"{grammar.language}.scm"
    return language, Query(language, source.read_text("utf-8"))


def markdown_sections(text: str) -> list[Definition]:
    """Return the sections of ``#`` and underlined headings (CommonMark), ignoring fenced code."""
    lines = text.split("\n")
    fence = "---" if lines[0] == "---" and "---" in lines[1:] else ""  # front matter
    headings: list[tuple[int, int, str]] = []
    for at, line in enumerate(lines):
        marks = _FENCE.fullmatch(line)
        if fence:
            closes = marks and marks[1].startswith(fence) and not marks[2].strip()
            fence = "" if closes or (fence == "---" == line and at) else fence
        elif marks:
            fence = marks[1]
        elif (atx := _ATX.fullmatch(line)) and atx[2]:
            headings.append((len(atx[1]), at, atx[2]))
        elif at and (under := _SETEXT.fullmatch(line)) and lines[at - 1].strip():
            above = lines[at - 1]
            if not (_NO_PARAGRAPH.match(above) or _ATX.fullmatch(above) or _SETEXT.fullmatch(above)):
                headings.append((1 if under[1][0] == "=" else 2, at - 1, above))
    return nested_sections(headings, text)


def rst_sections(text: str) -> list[Definition]:
    """Return the sections of underlined titles.

    Underline characters get levels in order of first use, like in docutils.
    """
    lines = text.split("\n")
    levels: dict[str, int] = {}
    headings: list[tuple[int, int, str]] = []
    for at, (title, below) in enumerate(pairwise(lines)):
        if not title.strip() or title[0].isspace() or _UNDERLINE.fullmatch(title):
            continue
        if _UNDERLINE.fullmatch(below) and len(below.rstrip()) >= len(title.rstrip()):
            overlined = at > 0 and _UNDERLINE.fullmatch(lines[at - 1]) is not None and lines[at - 1][0] == below[0]
            level = levels.setdefault(below[0] * (1 + overlined), len(levels))
            headings.append((level, at, title))
    return nested_sections(headings, text)


def html_sections(text: str) -> list[Definition]:
    """Return the sections of the headings ``h1`` to ``h6``."""

    def found() -> Iterator[tuple[int, int, str]]:
        line = counted = 0
        for match in _HTML_HEADING.finditer(text):
            line += text.count("\n", counted, match.start())
            counted = match.start()
            yield int(match[1]), line, html.unescape(_TAG.sub("", match[2]))

    return nested_sections([*found()], text)


def nested_sections(headings: Sequence[tuple[int, int, str]], text: str) -> list[Definition]:
    """Return sections from ``(level, line, title)``; each ends before the next heading of its or a higher level."""
    end = text.count("\n") + (not text.endswith("\n"))
    found: list[Definition] = []
    around: list[tuple[int, int]] = []  # (level, position in found)
    for level, line, heading in headings:
        while around and around[-1][0] >= level:
            _, at = around.pop()
            found[at] = replace(found[at], last=max(found[at].line, line - 1))
        title = " ".join(_MARKUP.sub("", heading).split())[:MAX_HEADING_CHARACTERS]
        name = SEPARATOR.join((found[around[-1][1]].name, title)) if around else title
        around.append((level, len(found)))
        found.append(Definition("section", name, line, line, max(line, end - 1)))
    return found


HEADINGS: dict[str, Callable[[str], list[Definition]]] = {
    "md": markdown_sections,
    "markdown": markdown_sections,
    "rst": rst_sections,
    "html": html_sections,
    "htm": html_sections,
}


_DOC, _END_OF_DOC = ("@doc", "@typedoc"), ('"""', "'''")
"""The Elixir attributes whose text may span several lines, and the possible last lines of that text."""


def begins_definition(line: str) -> bool:
    """Return whether a line starts the definition of a function, class or type."""
    return _begun(line) is not None


def _begun(line: str) -> tuple[str, str] | None:
    """Return the kind and name of the definition that a line starts, if any."""
    if match := _DEFINITION.match(line):
        kind = _KINDS.get(match[1], match[1])
        return kind if kind in KINDS else "type", match[2]
    if block := _BLOCK.match(line):
        kind, before = _BLOCKS[block[1]]
        return kind, before + ".".join(filter(None, block.groups()[1:]))
    return None


def by_patterns(text: str) -> list[Definition]:
    """Return the definitions whose first line matches a pattern; each ends before the next line not indented deeper."""
    lines = text.split("\n")
    found: list[Definition] = []
    open_: list[tuple[int, int]] = []  # (indent, position in found) of the definitions that contain the current line
    for number, line in enumerate(lines):
        bare = line.lstrip()
        if not bare:
            continue
        indent = len(line) - len(bare)
        while open_ and indent <= open_[-1][0]:
            outer, at = open_.pop()
            closes = indent == outer and (bare[0] in "})]" or bare.startswith("end"))
            found[at] = _until(found[at], number if closes else number - 1)
        if begun := _begun(line):
            kind, name = begun
            name = f"{found[open_[-1][1]].name}.{name}" if open_ else name
            open_.append((indent, len(found)))
            found.append(Definition(kind, name, number, _with_leading(lines, number, _LEADING), number))
    for _, at in open_:
        found[at] = _until(found[at], len(lines) - 1)
    return found


def _until(each: Definition, last: int) -> Definition:
    return replace(each, last=last)


def definitions(path: str, text: str) -> list[Definition]:
    """Return the definitions in ``text``, a document, ordered by start, outer definitions first.

    They are found by the grammar for the extension of ``path``, or by patterns if there is none. Code that a grammar
    cannot parse costs only the definitions around it.
    """
    extension = posixpath.splitext(path)[1][1:].lower()
    headings = HEADINGS.get(extension)
    if headings is not None:
        return headings(text)
    grammar = BY_EXTENSION.get(extension)
    if extension in ("js", "jsx") and "@flow" in text[:FLOW_PRAGMA_WITHIN]:
        grammar = BY_EXTENSION["tsx"]  # Flow type annotations are similar
    if grammar is None or len(text) > MAX_PARSED_CHARACTERS:
        return by_patterns(text)
    found = sorted(_parsed(grammar, text), key=lambda each: (each.first, -each.last))
    return _qualified(found)


def _parsed(grammar: Grammar, text: str) -> Iterator[Definition]:
    """Yield the definitions found by the grammar, unordered, with unqualified names."""
    from tree_sitter import Parser, QueryCursor

    if "\r" in text and "\n" not in text:
        text = text.replace("\r", "\n")
    data = text.encode()
    language, query = loaded(grammar)
    lines: list[str] | None = None
    for _, captures in QueryCursor(query).matches(Parser(language).parse(data).root_node):
        kind, name, scope = "", None, None
        for capture, nodes in captures.items():
            if capture == "name":
                name = nodes[0]
            elif capture == "scope":
                scope = nodes[0]
            elif capture == "declarator":
                name = _declared(nodes[0])
            else:
                kind, node = capture.removeprefix("definition."), nodes[0]
        if name is None:
            continue
        first, last = node.start_point.row, node.end_point.row
        if node.end_point.column == 0 and last > first:
            last -= 1
        if lines is None:
            lines = text.split("\n")
        line = name.start_point.row
        label = _label(data, name, scope)
        if label:
            yield Definition(kind, label, line, _with_leading(lines, first, grammar.leading), last)


def _declared(node: Node) -> Node | None:
    """Return the name in a C or C++ declarator: it may be wrapped in pointers, references and argument lists."""
    for _ in range(20):
        inner = next((child for name in _DECLARATORS if (child := node.child_by_field_name(name))), None)
        if node.type in ("qualified_identifier", "destructor_name", "operator_name") or inner is None:
            break
        node = inner
    if node.type in ("reference_declarator", "parenthesized_declarator"):  # its child is not a named field
        return _declared(node.named_children[-1])
    known = node.type.endswith("identifier") or node.type in ("destructor_name", "operator_name", "operator_cast")
    return node if known else None


def _label(data: bytes, name: Node, scope: Node | None) -> str:
    """Return a definition's name as in the source code, with dots between its parts."""
    text = data[name.start_byte : name.end_byte].decode(errors="replace")
    if scope is not None:
        text = f"{data[scope.start_byte : scope.end_byte].decode(errors='replace')}.{text}"
    text = _SCOPES.sub(".", _NOISE.sub("", text))
    return _BLANK.sub(" ", text).strip()[:MAX_NAME_CHARACTERS]


def _with_leading(lines: Sequence[str], first: int, leading: tuple[str, ...]) -> int:
    """Return the first of the lines directly above a definition that belong to it."""
    while first > 0:
        above = lines[first - 1]
        start: int | None = first - 1
        if "/*" in leading and above.rstrip().endswith("*/"):
            start = _comment_start(lines, first - 1)
        elif "@" in leading and above.strip() in _END_OF_DOC:
            start = _doc_start(lines, first - 1)
        elif not above.lstrip().startswith(leading):
            start = None
        if start is None:
            break
        first = start
    return first


def _comment_start(lines: Sequence[str], end: int) -> int | None:
    """Return the line that starts the comment ending at ``end``, if it contains nothing else."""
    for at in range(end, max(-1, end - MAX_COMMENT_LINES), -1):
        if "/*" in lines[at]:
            return at if lines[at].lstrip().startswith("/*") else None
    return None


def _doc_start(lines: Sequence[str], end: int) -> int | None:
    """Return the line of the attribute whose text ends with the quotes at ``end``."""
    begins = (
        at for at in range(end - 1, max(-1, end - MAX_COMMENT_LINES), -1) if lines[at].rstrip().endswith(_END_OF_DOC)
    )
    start = next(begins, None)
    return start if start is not None and lines[start].lstrip().startswith(_DOC) else None


def _qualified(found: Sequence[Definition]) -> list[Definition]:
    """Qualify the names in ``found`` with their enclosing definitions; functions in a class become methods."""
    result: list[Definition] = []
    around: list[Definition] = []
    for each in found:
        while around and around[-1].last < each.first:
            around.pop()
        named = _within(around[-1], each) if around else each
        if named is not None:
            around.append(named)
            result.append(named)
    return result


def _within(outer: Definition, inner: Definition) -> Definition | None:
    """Return ``inner`` nested in ``outer``, or None if both are the same definition, matched by two query patterns."""
    if (inner.line, inner.kind, inner.last) == (outer.line, outer.kind, outer.last):
        return None
    kind = "method" if inner.kind == "function" and outer.kind in _HOLDS_METHODS else inner.kind
    name = f"{outer.name}.{inner.name}"[-MAX_NAME_CHARACTERS:]
    return replace(inner, kind=kind, name=name, last=min(inner.last, outer.last))


def definitions_in_worker(documents: Sequence[PathAndText], *, allowed: bool) -> Callable[[], list[list[Definition]]]:
    """Start finding the definitions of ``documents``; call the result to wait for them, in the same order.

    If there are few documents or only one core, or if another process is not ``allowed``, that call parses them.
    """
    few = sum(len(text) for _, text in documents) < MIN_CHARACTERS
    if few or not allowed or (os.cpu_count() or 1) < 2:
        return lambda: [definitions(path, text) for path, text in documents]
    pending: Future[list[list[Definition]]] = _waiting().submit(_request_definitions, list(documents))
    return pending.result


def _request_definitions(documents: list[PathAndText]) -> list[list[Definition]]:
    answer = _helper().ask(documents)
    if answer is None:
        return [definitions(path, text) for path, text in documents]
    return [[Definition(*each) for each in found] for found in answer]


@cache
def _waiting() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="driftline-definitions")


@cache
def _helper() -> _Helper:
    return _Helper()


class _Helper:
    """The parser process.

    It is started by the first request, and exits when its input is closed, no later than this process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_lost = False

    def ask(self, documents: list[PathAndText]) -> list[list[tuple[str, str, int, int, int]]] | None:
        """Return the fields of each document's definitions, or None if no process responds."""
        with self._lock:
            if self._is_lost:
                return None
            try:
                process = self._process or self._start()
                assert process.stdin is not None
                assert process.stdout is not None
                _send(process.stdin, documents)
                found: list[list[tuple[str, str, int, int, int]]] = _received(process.stdout)
            except (OSError, EOFError) as error:
                log.debug("Finding definitions in this process: %s", error)
                self._is_lost = True
                self._end()
                return None
            return found

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,  # the parent handles Ctrl-C
        )
        atexit.register(self._end)
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.communicate(timeout=EXIT_SECONDS)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()


def serve() -> None:
    """Read documents from standard input and write their definitions to standard output until the input is closed."""
    while True:
        try:
            documents: list[PathAndText] = _received(sys.stdin.buffer)
        except EOFError:
            return
        _send(
            sys.stdout.buffer,
            [
                [(each.kind, each.name, each.line, each.first, each.last) for each in definitions(*document)]
                for document in documents
            ],
        )


def _send(pipe: IO[bytes], value: list[Any]) -> None:
    data = marshal.dumps(value)
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _received(pipe: IO[bytes]) -> list[Any]:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError("The worker process exited")
    (length,) = _LENGTH.unpack(head)
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError("The worker process exited while writing")
    return list(marshal.loads(data))

"""Find a document's definitions: functions, classes, types, sections and keys (decision 0012).

If there is a tree-sitter grammar for the file extension, the queries in ``queries/*.scm`` find them. Headings delimit
sections in Markdown, reStructuredText, AsciiDoc, Org and HTML. In languages with no grammar, patterns find lines that
look like the start of a definition: their own or those of any language.
"""

from __future__ import annotations

import html
import importlib
import logging
import marshal
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from driftline.storage import helper_process
from driftline.storage.errors import StorageError
from driftline.storage.helper_process import HelperDied, HelperPool, HelperProcess, limit_cpu_time
from driftline.storage.lines.outline import KINDS, Definition

if TYPE_CHECKING:
    from tree_sitter import Language, Node, Query

# -- languages without a grammar: lines that start a definition ------------------------------------

Where = Literal["anywhere", "top", "bound", "type"]
"""Where a pattern applies. ``top`` is outside functions: unindented, or in a type or module. ``bound`` is there, and in
the ``where`` of a function; ``type`` is only in a type.
"""
_Row = tuple[str, Where, str]
"""The kind ("" for the kind of the preceding definition), where the pattern applies, and the pattern, whose groups are
the parts of the name.
"""
_NAME = r"[a-z_][\w']*"
_SIGN = r"\([ \t]*[^\w\s()\"',]+[ \t]*\)"
_HASKELL: tuple[_Row, ...] = (
    ("module", "anywhere", r"module[ \t]+([A-Z][\w.']*)"),
    ("type", "anywhere", r"[ \t]*(?:data|newtype|type)(?: +(?:family|instance))?[ \t]+(?:[^=]*=>)?[ \t]*([A-Z][\w']*)"),
    ("class", "anywhere", r"class[ \t]+(?:.*=>)?[ \t]*([A-Z][\w']*)"),
    ("impl", "anywhere",
     r"(?:deriving[ \t]+(?:\w+[ \t]+)?)?instance[ \t]+(?:\{-#.*#-\})?(?:.*=>)?[ \t]*([A-Z][\w.']*)"
     r"[ \t]+(?:[\[(]*([A-Z][\w']*)|(\S+))"),
    ("function", "anywhere", r"pattern[ \t]+([A-Z][\w']*)"),
    ("function", "anywhere", rf"foreign[ \t]+(?:im|ex)port[ \t].*?({_NAME})[ \t]*::"),
    ("function", "anywhere", rf"[ \t]*(?:where[ \t]+)?({_NAME}|{_SIGN})(?:[ \t]*,[ \t]*{_NAME})*[ \t]*::(?!\S)"),
    ("struct", "type", r"[ \t]+(?:[=|][ \t]*(?:forall[^.]*\.)?[ \t]*([A-Z][\w']*)|([A-Z][\w']*)[ \t]*::)"),
    ("property", "type", rf"[ \t]*(?:[=|][^{{]*)?[{{,][ \t]*({_NAME})(?:[ \t]*,[ \t]*{_NAME})*[ \t]*::"),
    ("function", "bound",
     r"[ \t]*(?:where[ \t]+)?\w[\w']*[ \t]+(?!(?:[=|]|->|<-|::|=>)\s)([!#$%&*+./<=>?\\^|~:-]+)[ \t]"),
    ("function", "bound",
     r"[ \t]*(?:where[ \t]+)?(?!(?:case|class|data|default|deriving|do|else|foreign|if|import|in|infix[lr]?|instance"
     rf"|let|module|newtype|of|then|type|where)\b)({_NAME}|{_SIGN})(?![^\s(,=|@~!]|.*'')"),
)  # fmt: skip
_OCAML: tuple[_Row, ...] = (
    ("", "top", rf"[ \t]*and[ \t]+(?:[+-]?'\w+[ \t]+|\([^)]*\)[ \t]*)?({_NAME})"),
    ("function", "top", rf"[ \t]*let(?:[ \t]+rec)?[ \t]+(?!rec\b|_\b)({_NAME}|{_SIGN})"),
    ("type", "anywhere", rf"[ \t]*type(?: +nonrec)?[ \t]+(?:[+-]?'\w+[ \t]+|\([^)]*\)[ \t]*)?({_NAME})"),
    ("type", "anywhere", r"[ \t]*exception[ \t]+([A-Z][\w']*)"),
    ("interface", "anywhere", r"[ \t]*module[ \t]+type[ \t]+(?!of\b)(\w+)"),
    ("module", "anywhere", r"[ \t]*module[ \t]+(?:rec[ \t]+)?([A-Z][\w']*)[ \t]*(?:[=:(]|$)"),
    ("class", "anywhere", rf"[ \t]*class(?:[ \t]+(?:virtual|type))*[ \t]+(?:\[[^\]]*\][ \t]*)?({_NAME})"),
    ("function", "anywhere",
     rf"[ \t]*(?:val|external|method!?)(?:[ \t]+(?:private|virtual|mutable))*[ \t]+({_NAME}|{_SIGN})"),
)  # fmt: skip
_DART: tuple[_Row, ...] = (
    ("class", "anywhere", r"[ \t]*(?:(?:abstract|base|final|interface|mixin|sealed)[ \t]+)*class[ \t]+(\w+)"),
    ("enum", "anywhere", r"[ \t]*enum[ \t]+(\w+)"),
    ("trait", "anywhere", r"[ \t]*(?:base[ \t]+)?mixin[ \t]+(?!class\b)(\w+)"),
    ("impl", "anywhere", r"[ \t]*extension[ \t]+(?:type[ \t]+(?:const[ \t]+)?)?(?!on\b)(\w+)"),
    ("type", "anywhere", r"[ \t]*typedef[ \t]+(?:[\w<>?, ]+[ \t])?(\w+)(?:<[^=]*>)?[ \t]*[=(]"),
    ("function", "top",
     r"[ \t]*(?:@\w+[ \t]+)*(?:(?:static|external|factory|const|covariant)[ \t]+)*(?:[\w.]+(?:<[^=()]*>)?\??[ \t]+)?"
     r"(?:(?:get|set)[ \t]+(\w+)|(operator)[ \t]*([^\w\s(]+)[ \t]*\(|(?!(?:Function|assert|catch|for|if|return|super"
     r"|switch|throw|while)\b)(\w[\w.]*)(?:<[^=()]*>)?\()"),
)  # fmt: skip
_JULIA: tuple[_Row, ...] = (
    ("module", "anywhere", r"(?:bare)?module[ \t]+(\w+)"),
    ("struct", "anywhere", r"[ \t]*(?:@\w+[ \t]+)*(?:mutable[ \t]+)?struct[ \t]+(\w+)"),
    ("type", "anywhere", r"[ \t]*(?:abstract|primitive)[ \t]+type[ \t]+(\w+)"),
    ("macro", "anywhere", r"[ \t]*macro[ \t]+(\w+)"),
    ("function", "anywhere", r"[ \t]*(?:@\w+[ \t]+)*function[ \t]+(\w[\w.!]*(?::[^\w\s(]+)?)"),
    ("function", "top", r"[ \t]*(?:@\w+[ \t]+)*(\w[\w.!]*(?::[^\w\s(]+)?)(?:\{[^}]*\})?\(.*\)[^()=]*[ \t]=[ \t]"),
)
_R: tuple[_Row, ...] = (
    ("class", "anywhere", r"[ \t]*([\w.]+)[ \t]*(?:<-|=)[ \t]*(?:R6::)?(?:R6Class|setRefClass|setClass|ggproto)\("),
    ("class", "anywhere", r"[ \t]*set(?:Ref)?Class\([ \t]*[\"']([\w.]+)"),
    ("function", "anywhere", r"[ \t]*(?:`([^`]+)`|[\"']?([\w.]+)[\"']?)[ \t]*(?:<<?-|=)[ \t]*(?:function\b|\\\()"),
    ("function", "anywhere", r"[ \t]*set(?:Generic|Method)\([ \t]*(?:f[ \t]*=[ \t]*)?[\"']([^\"']+)"),
)
_PROTOBUF: tuple[_Row, ...] = (
    ("struct", "anywhere", r"[ \t]*(?:message|extend)[ \t]+([\w.]+)"),
    ("enum", "anywhere", r"[ \t]*enum[ \t]+(\w+)"),
    ("interface", "anywhere", r"[ \t]*service[ \t]+(\w+)"),
    ("method", "anywhere", r"[ \t]*rpc[ \t]+(\w+)"),
)
_SYMBOL = r"(?:\^(?:\{[^}]*\}|[^\s{]\S*)[ \t]+)*([^\s()\[\]{}\"';^]+)"
_CLOJURE: tuple[_Row, ...] = (
    ("module", "anywhere", rf"\(ns[ \t]+{_SYMBOL}"),
    ("interface", "anywhere", rf"[ \t]*\((?:defprotocol|definterface)[ \t]+{_SYMBOL}"),
    ("struct", "anywhere", rf"[ \t]*\((?:defrecord|deftype)[ \t]+{_SYMBOL}"),
    ("macro", "anywhere", rf"[ \t]*\(defmacro[ \t]+{_SYMBOL}"),
    ("function", "anywhere", rf"[ \t]*\((?:[\w.-]+/)?def(?!ault)[\w*-]*[ \t]+{_SYMBOL}"),
    ("function", "type", r"[ \t]+\(([^\s()\[\]]+)[ \t]+\["),
)
_ERLANG: tuple[_Row, ...] = (
    ("module", "anywhere", r"-module\([ \t]*'?([\w.]+)"),
    ("struct", "anywhere", r"-record\([ \t]*'?([\w.]+)"),
    ("macro", "anywhere", r"-define\([ \t]*(\w+)"),
    ("type", "anywhere", r"-(?:type|opaque|nominal)[ \t]+'?(\w+)'?\("),
    ("function", "anywhere", r"(?:-(?:spec|callback)[ \t(]+(?:\w+:)?)?(?:([a-z][\w@]*)|'([^']+)')[ \t]*\("),
)


class Syntax(NamedTuple):
    """A language's patterns, the prefixes of comments above a definition, and those of lines that never end one."""

    patterns: tuple[tuple[str, Where, re.Pattern[str]], ...]
    leading: tuple[str, ...]
    skipped: tuple[str, ...]


_SYNTAXES: dict[str, tuple[tuple[_Row, ...], tuple[str, ...], tuple[str, ...]]] = {
    **dict.fromkeys(("hs", "lhs"), (_HASKELL, ("--", "{-"), ("--", "#"))),
    **dict.fromkeys(("ml", "mli"), (_OCAML, ("(*", "*"), ("(*",))),
    "dart": (_DART, ("//", "/*", "*", "@"), ("//",)),
    "proto": (_PROTOBUF, ("//", "/*", "*"), ("//",)),
    "jl": (_JULIA, ("#", "@"), ("#",)),
    "r": (_R, ("#",), ("#",)),
    **dict.fromkeys(("clj", "cljs", "cljc"), (_CLOJURE, (";",), (";",))),
    **dict.fromkeys(("erl", "hrl"), (_ERLANG, ("%",), ("%",))),
}
_HASKELL_COMMENT = re.compile(r"--[^\n]*|'\\?\"'|\"(?:\\.|[^\"\\\n])*\"|(\{-(?!#).*?(?:-\}|\Z))", re.DOTALL)
"""A block comment, or a line comment or string, which may contain the signs of one."""
_TEX = re.compile(r"^\\(begin|end)\{code\}")
_NOT_NEWLINE = re.compile(r"[^\n]+")
_MARKS = re.compile(r"[()\s]+")
MAX_PATTERN_CHARACTERS = 400
"""Only the start of a line is compared with these patterns."""


@cache
def syntax_of(extension: str) -> Syntax | None:
    """Return the syntax of files with this extension, or None if the common pattern is enough."""
    if extension not in _SYNTAXES:
        return None
    rows, leading, skipped = _SYNTAXES[extension]
    return Syntax(tuple((kind, where, re.compile(each)) for kind, where, each in rows), leading, skipped)


def started_by(syntax: Syntax, line: str, applies: Callable[[Where], bool]) -> tuple[str, str] | None:
    """Return the kind and name of the definition that a line starts, if any."""
    for kind, where, pattern in syntax.patterns:
        if applies(where) and (match := pattern.match(line, 0, MAX_PATTERN_CHARACTERS)):
            return kind, _MARKS.sub("", ".".join(filter(None, match.groups())))
    return None


def code_of(text: str, extension: str) -> str:
    """Return Haskell without block comments and without the prose of literate files, with the same line numbers."""
    if extension == "lhs":
        text = "\n".join(_literate(text.split("\n")))
    if extension in ("hs", "lhs"):
        text = _HASKELL_COMMENT.sub(lambda found: _NOT_NEWLINE.sub("", found[0]) if found[1] else found[0], text)
    return text


def _literate(lines: list[str]) -> list[str]:
    """Return the code of a literate file: what follows ``>``, or is inside a LaTeX code environment."""
    found, in_code = [], False
    for line in lines:
        marks = _TEX.match(line)
        found.append(line if in_code and not marks else line[1:].removeprefix(" ") if line.startswith(">") else "")
        in_code = marks[1] == "begin" if marks else in_code
    return found


# -- definitions of any document -------------------------------------------------------------------

log = logging.getLogger(__name__)
_SLASHES = ("//", "/*", "*", "@", "#[")
_HASHES = ("#", "@")
_DASHES = ("--",)
SEPARATOR = " > "
_MAX_LEVELS = 9
MAX_HEADING_CHARACTERS = 120
_UNDERLINE = re.compile(r"([=\-~^\"'`#*+:.<>_])\1{2,}\s*")
_ATX = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*")
_SETEXT = re.compile(r" {0,3}(=+|-+)[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_NO_PARAGRAPH = re.compile(r" {4}|\t| {0,3}(?:[-+*>|]|\d+[.)])(?:[ \t]|$)")
_ASCIIDOC = re.compile(r"([=#]{1,6})[ \t]+(\S.*)")
_ASCIIDOC_BLOCK = re.compile(r"([-=.*_+/])\1{3,}|```.*")
_ASCIIDOC_TEXT = re.compile(r"(?!\.|//|:[\w-]+!?:|\[.*\]$).*\w.*")
"""A line of text, unlike a block's title, a comment and attributes."""
_ASCIIDOC_UNDERLINES = [*map(set, "=-~^+")]
_ORG = re.compile(r"(\*+)[ \t]+(\S.*)")
_HTML_HEADING = re.compile(r"<h([1-6])\b[^<>]*>", re.IGNORECASE)
_HEADING_END = {str(level): re.compile(rf"</h{level}\s*>", re.IGNORECASE) for level in range(1, 7)}
_MARKUP = re.compile(r"<[^>]*>|[`*]|\]\([^)]*\)|\[(?=[^\]]*\]\()")
_TAG = re.compile(r"<[^<>]*>")
_MAX_MARKUP_CHARACTERS = 8 * MAX_HEADING_CHARACTERS
"""Markup is removed from the start of a heading only: ``_MARKUP`` takes quadratic time."""
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
MAX_DEPTH = 32
"""Definitions nested deeper are left out: each block of lines stores all definitions around it."""
FLOW_PRAGMA_WITHIN = 2_000
MAX_COMMENT_LINES = 200
_MAX_DECLARATORS = 40
_MAX_LABEL_BYTES = 4_096
_HOLDS_METHODS = frozenset(("class", "enum", "impl", "interface", "struct", "trait", "union"))
_END = re.compile(
    r"[})\]]|end(?:case|class|def|for|foreach|func|function|if|interface|macro|module|proc|program|switch|task|while)?\b"
)
_OPENING = ("{", "(", "[", "=>", "struct")
"""The ends of a line that continues the definition whose parameters or signature it closes."""
_HOLDS_PARTS = _HOLDS_METHODS | {"type"}
_DECLARATORS = ("declarator", "name")
_NOISE = re.compile(r"^(?:module\.exports|exports|this|self)\.|\.prototype(?=\.)|[\"'`]")
_SCOPES = re.compile(r"::|#(?=\w)")
_BLANK = re.compile(r"\s+")
CPU_SECONDS = 20
"""CPU time limit per document; one of MAX_PARSED_CHARACTERS takes less than two."""
WALL_SECONDS = 600.0
"""Wall-clock time limit per request, long enough even on a heavily overloaded machine."""
_SERVE = "from driftline.tasks.definitions.find_definitions import serve; serve()"
PathAndText = tuple[str, str]
"""Path and text."""


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
    **dict.fromkeys(("js", "jsx", "mjs", "cjs", "es6"), _JAVASCRIPT),
    **dict.fromkeys(("ts", "mts", "cts"), _TYPESCRIPT),
    "tsx": _TSX,
    "go": _GO,
    "rs": _RUST,
    "java": _JAVA,
    **dict.fromkeys(("kt", "kts"), _KOTLIN),
    "c": _C,
    **dict.fromkeys(("h", "cc", "cpp", "cxx", "c++", "hh", "hpp", "hxx", "inl", "ipp", "tpp", "cu", "cuh"), _CPP),
    **dict.fromkeys(("cs", "csx"), _CSHARP),
    **dict.fromkeys(("rb", "rake", "gemspec"), _RUBY),
    **dict.fromkeys(("php", "phtml"), _PHP),
    "swift": _SWIFT,
    **dict.fromkeys(("scala", "sc", "sbt"), _SCALA),
    **dict.fromkeys(("sh", "bash", "zsh", "ksh", "bats"), _BASH),
    "sql": _SQL,
    **dict.fromkeys(("yaml", "yml"), _YAML),
    "toml": _TOML,
}
"""The grammars, keyed by file extension. C headers are parsed as C++, which covers nearly all of them."""
_BY_INTERPRETER = {
    **dict.fromkeys(("sh", "bash", "dash", "ksh", "zsh"), _BASH),
    **{"python": _PYTHON, "node": _JAVASCRIPT, "ruby": _RUBY, "php": _PHP},
}
_MAX_SHEBANG_CHARACTERS = 200


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

    Underline characters get levels in order of first use, as in docutils.
    """
    lines = text.split("\n")
    levels: dict[str, int] = {}
    headings: list[tuple[int, int, str]] = []
    for at, (title, below) in enumerate(pairwise(lines)):
        if not title.strip() or title[0].isspace() or _UNDERLINE.fullmatch(title):
            continue
        if _UNDERLINE.fullmatch(below) and len(below.rstrip()) >= len(title.rstrip()):
            overlined = at > 0 and _UNDERLINE.fullmatch(lines[at - 1]) is not None and lines[at - 1][0] == below[0]
            level = levels.setdefault(below[0] * (1 + overlined), min(len(levels), _MAX_LEVELS - 1))
            headings.append((level, at, title))
    return nested_sections(headings, text)


def asciidoc_sections(text: str) -> list[Definition]:
    """Return the sections of titles after ``=`` or above an underline of nearly their length, ignoring blocks."""
    headings: list[tuple[int, int, str]] = []
    block = before = earlier = ""
    for at, line in enumerate(map(str.rstrip, text.split("\n"))):
        if block:
            block = "" if line == block else block
        elif (
            abs(len(line) - len(before)) <= 1 < len(line)
            and {*line} in _ASCIIDOC_UNDERLINES
            and _ASCIIDOC_TEXT.fullmatch(before)
            and not _ASCIIDOC_TEXT.fullmatch(earlier)  # otherwise, it ends a paragraph, and a block follows
        ):
            headings.append((1 + _ASCIIDOC_UNDERLINES.index({*line}), at - 1, before))
        elif _ASCIIDOC_BLOCK.fullmatch(line):
            block = line[: len(line) - len(line.lstrip("`"))] or line
        elif title := _ASCIIDOC.fullmatch(line):
            headings.append((len(title[1]), at, title[2].removesuffix(f" {title[1]}")))
        earlier, before = before, line
    return nested_sections(headings, text)


def org_sections(text: str) -> list[Definition]:
    """Return the sections of headlines after ``*``; such lines in a block have a comma before it."""
    found = ((at, _ORG.match(line)) for at, line in enumerate(text.split("\n")))
    return nested_sections([(len(title[1]), at, title[2]) for at, title in found if title], text)


def html_sections(text: str) -> list[Definition]:
    """Return the sections of the headings ``h1`` to ``h6``."""

    def found() -> Iterator[tuple[int, int, str]]:
        line = counted = 0
        for match, following in zip_longest(starts, starts[1:]):
            end = _HEADING_END[match[1]].search(text, match.end(), following.start() if following else len(text))
            if end is None:
                continue
            line += text.count("\n", counted, match.start())
            counted = match.start()
            yield int(match[1]), line, html.unescape(_TAG.sub("", text[match.end() : end.start()]))

    starts = [*_HTML_HEADING.finditer(text)]

    return nested_sections([*found()], text)


def nested_sections(headings: Sequence[tuple[int, int, str]], text: str) -> list[Definition]:
    """Return sections from ``(level, line, title)``; each ends before the next heading of its level or above."""
    end = text.count("\n") + (not text.endswith("\n"))
    found: list[Definition] = []
    around: list[tuple[int, int]] = []  # (level, position in found)
    for level, line, heading in headings:
        while around and around[-1][0] >= level:
            _, at = around.pop()
            found[at] = replace(found[at], last=max(found[at].line, line - 1))
        title = " ".join(_MARKUP.sub("", heading[:_MAX_MARKUP_CHARACTERS]).split())[:MAX_HEADING_CHARACTERS]
        name = SEPARATOR.join((found[around[-1][1]].name, title)) if around else title
        around.append((level, len(found)))
        found.append(Definition("section", name, line, line, max(line, end - 1)))
    return found


HEADINGS: dict[str, Callable[[str], list[Definition]]] = {
    **dict.fromkeys(("md", "mdx", "mkd", "markdown"), markdown_sections),
    "rst": rst_sections,
    **dict.fromkeys(("adoc", "asc", "asciidoc"), asciidoc_sections),
    "org": org_sections,
    **dict.fromkeys(("html", "htm", "xhtml"), html_sections),
}


_DOC, _END_OF_DOC = ("@doc", "@typedoc", '"""'), ('"""', "'''")
"""How a multi-line documentation string above a definition starts in Elixir and Julia, and its possible last lines."""


def begins_definition(line: str) -> bool:
    """Return whether a line starts the definition of a function, class or type."""
    return _started_by_common_pattern(line) is not None


def _started_by_common_pattern(line: str) -> tuple[str, str] | None:
    """Return the kind and name of the definition that a line starts, if any."""
    if match := _DEFINITION.match(line):
        kind = _KINDS.get(match[1], match[1])
        return kind if kind in KINDS else "type", match[2][:MAX_NAME_CHARACTERS]
    if block := _BLOCK.match(line):
        kind, before = _BLOCKS[block[1]]
        return kind, (before + ".".join(filter(None, block.groups()[1:])))[:MAX_NAME_CHARACTERS]
    return None


def by_patterns(text: str, extension: str = "") -> list[Definition]:
    """Return the definitions whose first line matches a pattern; each ends before the next line not indented deeper.

    Neighbours of the same kind and name are clauses of one definition.
    """
    syntax = syntax_of(extension)
    leading, skipped = (syntax.leading, syntax.skipped) if syntax else (_LEADING, ())
    lines = text.split("\n")
    found: list[Definition] = []
    open_: list[tuple[int, int]] = []  # (indent, position in found) of the definitions that contain the current line
    closed, before, code, is_bound = (-1, -1), 0, 0, False
    for number, line in enumerate(code_of(text, extension).split("\n")):
        bare = line.strip()
        if not bare or bare.startswith(skipped):
            continue
        indent = len(line) - len(line.lstrip())
        ends = _END.match(bare) is not None
        goes_on = bool(open_) and indent == open_[-1][0] and ends and bare.endswith(_OPENING)
        while open_ and indent <= open_[-1][0] and not goes_on:
            outer, at = closed = open_.pop()
            found[at] = _until(found[at], number if ends and indent == outer else before)
        around = found[open_[-1][1]] if open_ else None
        before, is_bound = number, is_bound or closed[0] == indent
        above, code = code, code if bare.startswith(leading) else number
        starts = _started(line, syntax, around, is_bound=is_bound) if len(open_) < MAX_DEPTH and not goes_on else None
        is_bound = bare.endswith("where")
        if starts is None:
            continue
        sibling = found[closed[1]] if closed[0] == indent else None
        kind, name = starts[0] or (sibling.kind if sibling else "function"), starts[1][:MAX_NAME_CHARACTERS]
        new = Definition(kind, name, number, _with_leading(lines, number, leading), number)
        new = replace(_within(around, new), last=number) if around else new
        if sibling and sibling.last >= above and (sibling.kind, sibling.name) == (new.kind, new.name):
            open_.append(closed)
        else:
            open_.append((indent, len(found)))
            found.append(new)
    for _, at in open_:
        found[at] = _until(found[at], before)
    return found


def _started(line: str, syntax: Syntax | None, around: Definition | None, *, is_bound: bool) -> tuple[str, str] | None:
    """Return the kind and name of the definition that a line starts inside ``around``, if any."""
    if syntax is None:
        return _started_by_common_pattern(line)
    in_type = around is not None and around.kind in _HOLDS_PARTS
    at_top = in_type or not line[0].isspace() or (around is not None and around.kind == "module")
    is_bound = is_bound or at_top or line.lstrip().startswith("where ")
    applies: dict[Where, bool] = {"anywhere": True, "top": at_top, "bound": is_bound, "type": in_type}
    return started_by(syntax, line, applies.__getitem__)


def _until(each: Definition, last: int) -> Definition:
    return replace(each, last=last)


def definitions(path: str, text: str) -> list[Definition]:
    """Return the definitions in ``text``, a document, ordered by start, outer definitions first.

    They are found by the grammar for the extension of ``path`` or the interpreter of a script, or by patterns if there
    is none. If a grammar cannot parse some code, only the definitions around it are lost.
    """
    extension = posixpath.splitext(path)[1][1:].lower()
    headings = HEADINGS.get(extension)
    if headings is not None:
        return headings(text)
    grammar = BY_EXTENSION.get(extension) if extension else _grammar_of_script(text)
    if extension in ("js", "jsx") and "@flow" in text[:FLOW_PRAGMA_WITHIN]:
        grammar = BY_EXTENSION["tsx"]  # Flow type annotations are similar
    if grammar is None or len(text) > MAX_PARSED_CHARACTERS:
        return by_patterns(text, extension)
    return _qualified(sorted(_parsed(grammar, text), key=lambda each: (each.start, -each.end)))


def _grammar_of_script(text: str) -> Grammar | None:
    """Return the grammar for the interpreter in the first line of a script, as in ``#!/usr/bin/env python3``."""
    if not text.startswith("#!"):
        return None
    words = [word for word in text[2:_MAX_SHEBANG_CHARACTERS].split("\n", 1)[0].split() if not word.startswith("-")]
    names = [posixpath.basename(word).rstrip("0123456789.") for word in words]
    return next((_BY_INTERPRETER[name] for name in names[:2] if name in _BY_INTERPRETER), None)


class _Parsed(NamedTuple):
    """A definition with an unqualified name, and the bytes where its node and the name in it are."""

    definition: Definition
    start: int
    end: int
    name: int


def _parsed(grammar: Grammar, text: str) -> Iterator[_Parsed]:
    """Yield the definitions found by the grammar, unordered."""
    from tree_sitter import Parser, QueryCursor

    if "\r" in text and "\n" not in text:
        text = text.replace("\r", "\n")
    data = text.encode()
    language, query = loaded(grammar)
    lines: list[str] | None = None
    leading: dict[int, int] = {}
    """The first line that belongs to a definition, by the line where the definition itself starts."""
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
            if first not in leading:
                leading[first] = _with_leading(lines, first, grammar.leading)
            found = Definition(kind, label, line, leading[first], last)
            yield _Parsed(found, node.start_byte, node.end_byte, name.start_byte)


def _declared(node: Node) -> Node | None:
    """Return the name in a C or C++ declarator: it may be wrapped in pointers, references and argument lists."""
    for _ in range(_MAX_DECLARATORS):
        inner = next((child for name in _DECLARATORS if (child := node.child_by_field_name(name))), None)
        if inner is None and node.type in ("reference_declarator", "parenthesized_declarator"):
            inner = next(reversed(node.named_children), None)  # it is not a named field
        if node.type in ("qualified_identifier", "destructor_name", "operator_name") or inner is None:
            break
        node = inner
    known = node.type.endswith("identifier") or node.type in ("destructor_name", "operator_name", "operator_cast")
    return node if known else None


def _label(data: bytes, name: Node, scope: Node | None) -> str:
    """Return a definition's name as in the source code, with dots between its parts."""
    text = _text(data, name) if scope is None else f"{_text(data, scope)}.{_text(data, name)}"
    text = _SCOPES.sub(".", _NOISE.sub("", text))
    return _BLANK.sub(" ", text).strip()[:MAX_NAME_CHARACTERS]


def _text(data: bytes, node: Node) -> str:
    return data[node.start_byte : min(node.end_byte, node.start_byte + _MAX_LABEL_BYTES)].decode(errors="replace")


def _with_leading(lines: Sequence[str], first: int, leading: tuple[str, ...]) -> int:
    """Return the first of the lines directly above a definition that belong to it."""
    last = first - MAX_COMMENT_LINES
    while first > max(0, last):
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


def _qualified(found: Sequence[_Parsed]) -> list[Definition]:
    """Qualify the names in ``found`` with their enclosing definitions; functions in a class become methods.

    A definition that two patterns match is returned once. Several on one line are distinct.
    """
    result: list[Definition] = []
    around: list[_Parsed] = []
    known: set[tuple[str, int, int]] = set()
    for each in found:
        while around and around[-1].end <= each.start:
            around.pop()
        key = (each.definition.kind, each.name, each.end)
        if key in known or len(around) >= MAX_DEPTH:
            continue
        known.add(key)
        named = _within(around[-1].definition, each.definition) if around else each.definition
        around.append(each._replace(definition=named))
        result.append(named)
    return result


def _within(outer: Definition, inner: Definition) -> Definition:
    """Return ``inner`` nested in ``outer``."""
    kind = "method" if inner.kind == "function" and outer.kind in _HOLDS_METHODS else inner.kind
    name = f"{outer.name}.{inner.name}"[-MAX_NAME_CHARACTERS:]
    return replace(inner, kind=kind, name=name, last=min(inner.last, outer.last))


# -- the parser process --------------------------------------------------------------------------


def definitions_in_worker(documents: Sequence[PathAndText]) -> Callable[[], list[list[Definition]]]:
    """Find the definitions of ``documents`` in another process; return a function that waits for them, in this order.

    Grammars are native code that a document can crash or block; such a document gets no definitions.
    """
    return _waiting().submit(_parsed_apart, list(documents)).result


@cache
def _waiting() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="driftline-definitions")


@cache
def _pool() -> HelperPool[HelperProcess]:
    return HelperPool(partial(HelperProcess, _SERVE, quiet=True))


def _parsed_apart(documents: list[PathAndText]) -> list[list[Definition]]:
    if not documents:
        return []
    try:
        return _pool().ask(WALL_SECONDS, _decoded, marshal.dumps(documents))
    except StorageError as error:  # no process can be started
        log.warning("No definitions are indexed for %d documents: %s", len(documents), error)
        return [[] for _ in documents]
    except (HelperDied, TimeoutError, EOFError, TypeError, ValueError) as error:
        if len(documents) == 1:
            log.warning("No definitions are indexed for %s: its parser crashed or takes too long", documents[0][0])
            log.debug("The parser: %r", error)
            return [[]]
    return [found for document in documents for found in _parsed_apart([document])]


def _decoded(answer: bytes) -> list[list[Definition]]:
    return [[Definition(*each) for each in found] for found in marshal.loads(answer)]


def serve() -> None:
    """Answer each request with the definitions of its document until the input is closed."""
    helper_process.serve(_answer)


def _answer(data: bytes, _: bytes) -> bytes:
    found = []
    for document in marshal.loads(data):
        limit_cpu_time(CPU_SECONDS)
        found.append([(each.kind, each.name, each.line, each.first, each.last) for each in definitions(*document)])
    return marshal.dumps(found)

"""Define the patterns of lines that start a definition, for languages that the common pattern does not cover."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Literal, NamedTuple

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

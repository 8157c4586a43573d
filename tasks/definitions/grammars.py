"""The tree-sitter grammars by file extension, and the queries that find definitions (``queries/*.scm``)."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Language, Query

_SLASHES = ("//", "/*", "*", "@", "#[")
_HASHES = ("#", "@")
_DASHES = ("--",)


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language: its query, the package and function that give its grammar, and what lines above a definition that
    belong to it begin with (comments, decorators, attributes)."""

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
"""Headers of C are parsed as C++, which reads nearly all of them."""


@cache
def loaded(grammar: Grammar) -> tuple[Language, Query]:
    """The grammar, and its query; once in a process."""
    from tree_sitter import Language, Query

    language = Language(getattr(importlib.import_module(grammar.package), grammar.function)())
    source = Path(__file__).with_name("queries") / f"{grammar.language}.scm"
    return language, Query(language, source.read_text("utf-8"))

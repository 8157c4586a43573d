"""What a document is, by its path: prose or code, test or not, and the extensions of a language."""

from __future__ import annotations

import re

PROSE_EXTENSIONS = (".md", ".rst", ".txt", ".adoc", ".org", ".tex", ".html")
_TEST = re.compile(
    r"(?:^|/)(?:tests?|testing|testdata|specs?|__tests__|e2e|testsuite)/"
    r"|(?:^|/)(?:test_[^/]*|conftest|[^/]*_tests?|[^/]*_spec|[^/]*[.-](?:test|spec))\.\w+$"
    r"|(?:^|/)[^/]*[a-z0-9](?:Test|Tests|TestCase|IT|Spec)\.(?:java|kt|scala|cs|swift|php)$"
)
_AUXILIARY = re.compile(
    r"(?:^|/)(?:vendor|_?vendored|_vendor|third[_-]?party|node_modules|dist|_esm|_cjs|locales?|i18n|examples?|samples?|demos?"
    r"|docs?_src|compat|_compat|legacy|fixtures?)/"
    r"|(?:^|/)(?:changelog|changes|history|news|releases?)(?:\.\w+)?$"
    r"|(?:\.lock|-lock\.json|-lock\.yaml|\.lockb|/go\.sum|\.pot?|_pb2(?:_grpc)?\.pyi?|\.pb\.(?:go|cc|h)|\.g\.dart|\.min\.\w+|\.map"
    r"|\.d\.ts|[._-]generated\.\w+|\.snap|\.csv|\.svg)$",
    re.IGNORECASE,
)
LANGUAGES: dict[str, tuple[str, ...]] = {
    "bash": ("sh", "bash", "zsh"),
    "c": ("c", "h"),
    "c++": ("cc", "cpp", "cxx", "h", "hh", "hpp", "hxx", "ipp"),
    "c#": ("cs",),
    "css": ("css", "scss", "less"),
    "go": ("go",),
    "html": ("html", "htm"),
    "java": ("java",),
    "javascript": ("js", "jsx", "mjs", "cjs"),
    "kotlin": ("kt", "kts"),
    "markdown": ("md", "markdown"),
    "php": ("php",),
    "python": ("py", "pyi", "pyw"),
    "restructuredtext": ("rst",),
    "ruby": ("rb", "rake", "gemspec"),
    "rust": ("rs",),
    "scala": ("scala", "sc", "sbt"),
    "sql": ("sql",),
    "swift": ("swift",),
    "toml": ("toml",),
    "typescript": ("ts", "tsx", "mts", "cts"),
    "yaml": ("yaml", "yml"),
}
ALIASES = {
    "shell": "bash", "sh": "bash", "cpp": "c++", "csharp": "c#", "cs": "c#", "js": "javascript", "ts": "typescript",
    "py": "python", "rb": "ruby", "rs": "rust", "md": "markdown", "rst": "restructuredtext", "golang": "go",
}  # fmt: skip


def is_prose(path: str) -> bool:
    """Whether a document is meant to be read as text, by its extension."""
    return path.lower().endswith(PROSE_EXTENSIONS)


def is_test(path: str) -> bool:
    """Whether a document is a test or belongs to tests, by the names of its folders and its own."""
    return _TEST.search(path) is not None


def is_auxiliary(path: str) -> bool:
    """Whether a document repeats, lists or illustrates what others say: lock files, changelogs, vendored, generated and
    translated files, examples, data."""
    return _AUXILIARY.search(path) is not None

"""Tell the kind of a file from its name: its language, and whether it is prose, a test or auxiliary."""

import re
from functools import lru_cache

_PACKED = r"(?:\.(?:gz|bz2|xz|zst|lz4))?"
_TEXT = r"(?:md|mdx|mkd|markdown|rst|txt|adoc|asc|asciidoc|org|textile|wiki)"
_LIST_OF_CHANGES = (
    r"(?i:change[-_]?log|changes|history|news|releases?|release[-_]?notes)(?:[-.]\d+(?:\.\d+)*(?:[a-z]+\d+)?)?"
)
_PROSE = re.compile(
    rf"(?i:\.(?:{_TEXT}|tex|texi|texinfo|pod|x?html?|pdf|doc[xm]|ppt[xm]|od[tp]|epub|rtf|eml|mbox|srt|vtt"
    rf"|[1-9](?:pm|p|ssl|x|posix|perl|tcl|ncurses|const|type)?){_PACKED})$"
    r"|(?:^|/)README(?:[._-][^/]*)?$"
    r"|(?:^|/)(?:[A-Z]{2,}[-_])?(?:INSTALL|LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|AUTHORS|CONTRIBUTORS|CONTRIBUTING|CREDITS"
    r"|MAINTAINERS|HACKING|UPGRADING|THANKS|PATENTS|TODO|FAQ)(?:[-_.][A-Z0-9-]+)?$"
    rf"|(?:^|/){_LIST_OF_CHANGES}$"
)
"""Names of prose: by extension, where numbers are sections of man pages, and by the names that packages use."""
_TEST = re.compile(
    r"(?:^|/)(?:(?:[^/]*[-_.])?[Tt]ests?|[^/]*[a-z](?:Tests?|Specs)|testing|testdata|[Ss]pecs?|__tests__|e2e|testsuite)/"
    r"|(?:^|/)t/(?:[^/]+/)*[^/]+\.(?:t|pl|pm|sh)$|\.t$"
    r"|(?:^|/)(?:test_[^/]*|conftest|[^/]*_tests?|[^/]*_spec|[^/]*[.-](?:test|spec))\.\w+$"
    rf"|(?:^|/)tests?\.(?!{_TEXT}$|x?html?$|json$|ya?ml$|toml$)\w+$"
    r"|(?:^|/)[^/]*[a-z0-9](?:Test|Tests|TestCase|IT|Spec)\.(?:java|kt|scala|cs|fs|swift|php|hs|groovy)$"
)
_AUXILIARY = re.compile(
    r"(?:^|/)(?:vendor|_?vendored|_vendor|third[_-]?party|node_modules|dist|_esm|_cjs|locales?|i18n|_?examples?|samples?|demos?|stubs"
    r"|docs?_src|compat|_compat|legacy|fixtures?)/"
    rf"|(?:^|/){_LIST_OF_CHANGES}(?:\.{_TEXT}|\.html?)?{_PACKED}$"
    r"|(?:^|/)(?:(?:index|genindex|toc|contents)\.x?html?|summary\.md|_sidebar\.md)$"
    r"|(?:^|/)(?:go\.sum|npm-shrinkwrap\.json|cdn\.js)$"
    r"|(?:\.lock|-lock\.json|-lock\.yaml|\.lockb|\.pot?|_pb2(?:_grpc)?\.pyi?|\.pb\.(?:go|cc|h)|\.g\.dart|\.min\.\w+|\.map"
    r"|\.d\.[cm]?ts|\.cjs|[._-]generated\.\w+|\.snap|\.csv|\.svg)$",
    re.IGNORECASE,
)


@lru_cache(65_536)
def is_prose(path: str) -> bool:
    """Return whether a document is prose, judging by its name.

    >>> [is_prose(path) for path in ("guide.md", "report.PDF", "man1/ls.1.gz", "INSTALL", "main.py", "notes.ipynb")]
    [True, True, True, True, False, False]
    """
    return _PROSE.search(path) is not None


@lru_cache(65_536)
def is_test(path: str) -> bool:
    """Return whether a document is or belongs to a test, judging by its name and its folders' names."""
    return _TEST.search(path) is not None


@lru_cache(65_536)
def is_auxiliary(path: str) -> bool:
    """Return whether a document only repeats, lists or illustrates others.

    These are lock files, changelogs, tables of contents, examples, data, and vendored, generated or translated files.

    >>> [is_auxiliary(path) for path in ("vendor/a.c", "html/index.html", "NEWS", "src/index.ts", "src/news.go")]
    [True, True, True, False, False]
    """
    return _AUXILIARY.search(path) is not None


LANGUAGES: dict[str, tuple[str, ...]] = {
    "bash": ("sh", "bash", "zsh", "ksh", "bats"),
    "c": ("c", "h"),
    "c++": ("cc", "cpp", "cxx", "c++", "h", "hh", "hpp", "hxx", "inl", "ipp", "tpp"),
    "c#": ("cs", "csx"),
    "clojure": ("clj", "cljs", "cljc"),
    "css": ("css", "scss", "less"),
    "dart": ("dart",),
    "elixir": ("ex", "exs"),
    "erlang": ("erl", "hrl"),
    "go": ("go",),
    "haskell": ("hs", "lhs"),
    "html": ("html", "htm"),
    "java": ("java",),
    "javascript": ("js", "jsx", "mjs", "cjs", "es6"),
    "json": ("json", "jsonc", "jsonl"),
    "julia": ("jl",),
    "kotlin": ("kt", "kts"),
    "lua": ("lua",),
    "markdown": ("md", "markdown"),
    "ocaml": ("ml", "mli"),
    "perl": ("pl", "pm"),
    "php": ("php", "phtml"),
    "powershell": ("ps1", "psm1", "psd1"),
    "protobuf": ("proto",),
    "python": ("py", "pyi", "pyw"),
    "r": ("r",),
    "restructuredtext": ("rst",),
    "ruby": ("rb", "rake", "gemspec"),
    "rust": ("rs",),
    "scala": ("scala", "sc", "sbt"),
    "sql": ("sql",),
    "swift": ("swift",),
    "terraform": ("tf", "tfvars", "hcl"),
    "text": ("txt",),
    "toml": ("toml",),
    "typescript": ("ts", "tsx", "mts", "cts"),
    "xml": ("xml", "xsd", "xsl"),
    "yaml": ("yaml", "yml"),
    "zig": ("zig",),
}
ALIASES = {
    "shell": "bash", "sh": "bash", "cpp": "c++", "csharp": "c#", "cs": "c#", "js": "javascript", "ts": "typescript",
    "py": "python", "rb": "ruby", "rs": "rust", "md": "markdown", "rst": "restructuredtext", "golang": "go",
}  # fmt: skip
LANGUAGE_OF = {extension: name for name, extensions in reversed(LANGUAGES.items()) for extension in extensions}
"""The language of each extension; of several, the first in LANGUAGES."""

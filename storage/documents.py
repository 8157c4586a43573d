"""Define the states of documents, the reasons to skip one, its content hash, and the kinds of files by their names."""

from __future__ import annotations

import enum
import hashlib
import re
from functools import lru_cache

DocumentKey = tuple[str, str]
"""A document's entity and path."""


class DocumentState(enum.StrEnum):
    """The state of a document, as found by a scan."""

    NEW = "new"
    CHANGED = "changed"
    TOUCHED = "touched"
    UNCHANGED = "unchanged"
    DELETED = "deleted"
    MISSING = "missing"
    """A path that does not exist and was never indexed; scans never return it."""


class SkipReason(enum.StrEnum):
    """Why a file is not indexed."""

    BINARY = "binary"
    TOO_LARGE = "too large"
    UNDECODABLE = "undecodable"
    CONTENT_ENCODING = "Content-Encoding that cannot be decoded"
    UNREADABLE = "unreadable"
    EXCLUDED = "excluded"
    SECRET = "secret"
    BAD_NAME = "undecodable name"
    ODD_KEY = "key is not a plain path"
    WORK_TREE = "another work tree of the same repository"
    GIT_DIRECTORY = "git directory"
    OUTSIDE = "link leads outside the source or in a circle"
    UNSTABLE = "changed while it was read"
    LINK = "symbolic link"
    LFS = "pointer of Git LFS"
    SUBMODULE = "submodule"
    ENCRYPTED = "encrypted"
    DAMAGED = "damaged document"
    OTHER_COMPRESSION = "compression that is not read"
    NO_TEXT = "document without text"
    BOMB = "document that unpacks to too much"
    NEEDS_EXTRA = "needs driftline[documents]"
    OTHER_OFFICE = "Office format that is not read"
    IWORK = "Apple iWork document"
    ARCHIVE = "archive"
    NESTED = "archive nested too deep"
    REPLACED = "replaced by a later member of the same name"
    SLOW = "document that takes too long to read"


def content_hash(data: bytes) -> str:
    """Return the blake2b-128 of ``data``, as 32 hex digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


INSIDE = "!/"
"""Separates the path of an archive or email from the path of a file inside it."""
NAMED_LIKE_ARCHIVE = (
    r"\.(?i:zip|jar|war|ear|aar|apk|whl|egg|nupkg|vsix|conda|crate|gem|emlx?|mbox"
    r"|tar|tgz|tbz2?|txz|tzst|tar\.(?:gz|bz2|xz|zst|zstd|lz4))$"
)
"""Names of files that a run opens as folders if ``archives`` is set."""


def container_of(path: str) -> str:
    """Return the path of the file on disk that contains a document: the outermost archive or email, or the document
    itself.

    >>> container_of("old/a.zip!/b/c.txt"), container_of("c.txt")
    ('old/a.zip', 'c.txt')
    """
    return path.partition(INSIDE)[0]


GAP_LINE = "<[{(|~^...^~|)}]>"
"""Replaces the first line of the part of a large file that is not indexed; the other lines of the part are empty.

It has no letter or digit, so it gets no row, but enough punctuation to be found by a pack's grams.
"""


def holds_records(path: str) -> bool:
    """Return whether a file is named like a log, CSV or JSON lines file. Such files stay useful at any size: their
    first and last lines show what they contain.
    """
    return re.search(r"\.(?i:csv|jsonl|log|log\.\d+|ndjson|tsv)$", path) is not None


# -- kinds of files, from their names --------------------------------------------------------------
#
# The patterns stay text until they are needed: every command imports this module, and to compile them takes 13 ms.

_PACKED = r"(?:\.(?:gz|bz2|xz|zst|lz4))?"
_TEXT = r"(?:md|mdx|mkd|markdown|rst|txt|adoc|asc|asciidoc|org|textile|wiki)"
_LIST_OF_CHANGES = (
    r"(?i:change[-_]?log|changes|history|news|releases?|release[-_]?notes)(?:[-.]\d+(?:\.\d+)*(?:[a-z]+\d+)?)?"
)
_PROSE = (
    rf"(?i:\.(?:{_TEXT}|tex|texi|texinfo|pod|x?html?|pdf|doc[xm]|ppt[xm]|od[tp]|epub|rtf|eml|mbox|srt|vtt"
    rf"|[1-9](?:pm|p|ssl|x|posix|perl|tcl|ncurses|const|type)?){_PACKED})$"
    r"|(?:^|/)README(?:[._-][^/]*)?$"
    r"|(?:^|/)(?:[A-Z]{2,}[-_])?(?:INSTALL|LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|AUTHORS|CONTRIBUTORS|CONTRIBUTING|CREDITS"
    r"|MAINTAINERS|HACKING|UPGRADING|THANKS|PATENTS|TODO|FAQ)(?:[-_.][A-Z0-9-]+)?$"
    rf"|(?:^|/){_LIST_OF_CHANGES}$"
)
"""Names of prose: by extension, where numbers are sections of man pages, and by the names that packages use."""
_TEST = (
    r"(?:^|/)(?:(?:[^/]*[-_.])?[Tt]ests?|[^/]*[a-z](?:Tests?|Specs)|testing|testdata|[Ss]pecs?|__tests__|e2e|testsuite)/"
    r"|(?:^|/)t/(?:[^/]+/)*[^/]+\.(?:t|pl|pm|sh)$|\.t$"
    r"|(?:^|/)(?:test_[^/]*|conftest|[^/]*_tests?|[^/]*_spec|[^/]*[.-](?:test|spec))\.\w+$"
    rf"|(?:^|/)tests?\.(?!{_TEXT}$|x?html?$|json$|ya?ml$|toml$)\w+$"
    r"|(?:^|/)[^/]*[a-z0-9](?:Test|Tests|TestCase|IT|Spec)\.(?:java|kt|scala|cs|fs|swift|php|hs|groovy)$"
)
_AUXILIARY = (
    r"(?:^|/)(?:vendor|_?vendored|_vendor|third[_-]?party|node_modules|dist|_esm|_cjs|locales?|i18n|_?examples?|samples?|demos?|stubs"
    r"|docs?_src|compat|_compat|legacy|fixtures?)/"
    r"|(?:^|/)(?:public|static|assets|wwwroot|plugins)/(?:[^/]+/)*[a-z][\w.]*-v?\d+\.\d+[^/]*(?:/|\.m?js$|\.css$)"
    rf"|(?:^|/){_LIST_OF_CHANGES}(?:\.{_TEXT}|\.html?)?{_PACKED}$"
    r"|(?:^|/)(?:(?:index|genindex|toc|contents)\.x?html?|summary\.md|_sidebar\.md)$"
    r"|(?:^|/)(?:go\.sum|npm-shrinkwrap\.json|cdn\.js)$"
    r"|(?:\.lock|-lock\.json|-lock\.yaml|\.lockb|\.pot?|_pb2(?:_grpc)?\.pyi?|\.pb\.(?:go|cc|h)|\.g\.dart|\.min\.\w+|\.map"
    r"|\.d\.[cm]?ts|\.cjs|[._-]generated\.\w+|\.snap|\.csv|\.svg)$"
)


@lru_cache(65_536)
def is_prose(path: str) -> bool:
    """Return whether a document is prose, judging by its name.

    >>> [is_prose(path) for path in ("guide.md", "report.PDF", "man1/ls.1.gz", "INSTALL", "main.py", "notes.ipynb")]
    [True, True, True, True, False, False]
    """
    return re.search(_PROSE, path) is not None


@lru_cache(65_536)
def is_test(path: str) -> bool:
    """Return whether a document is or belongs to a test, judging by its name and its folders' names."""
    return re.search(_TEST, path) is not None


@lru_cache(65_536)
def is_auxiliary(path: str) -> bool:
    """Return whether a document only repeats, lists or illustrates others.

    These are lock files, changelogs, tables of contents, examples, data, and vendored, generated or translated files.

    >>> [is_auxiliary(path) for path in ("vendor/a.c", "html/index.html", "NEWS", "src/index.ts", "src/news.go")]
    [True, True, True, False, False]
    """
    return re.search(_AUXILIARY, path, re.IGNORECASE) is not None


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

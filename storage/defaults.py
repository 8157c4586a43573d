"""Define defaults, user folders and argument names that the command line, the flows and Python share, without NumPy."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from driftline.storage.errors import UsageError

DEFAULT_MAX_FILE_BYTES = 4 * 1024 * 1024
"""Larger files are skipped."""
DEFAULT_MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
"""The same for documents, logs, CSV and JSON lines."""
DEFAULT_MAX_DELETE_FRACTION = 0.5
"""A run refuses to delete a larger fraction of a source's documents."""
DEFAULT_MAX_DELTAS = 100
"""Sources with more deltas are due for compaction: every delta slows each read of the manifest."""
DEFAULT_VERSION_RETENTION_SECONDS = 3_600.0
"""Compaction keeps younger versions of a table for readers and writers that opened one."""
DEFAULT_MAX_AGE_SECONDS = 3_600.0
"""Cleanup keeps younger objects, because a run may not have written the reference to them yet."""
DEFAULT_CI_TIMEOUT_SECONDS = 3_600.0
"""Seconds that ``driftline ci`` waits for a deployment."""
DEFAULT_EXECUTOR = "inline"
"""Runs tasks in threads of the process itself."""

Redaction = Literal["off", "known", "strict"]
"""Selects the credentials that are replaced in text before it is stored.

``known`` replaces credentials that can be recognised by their form. ``strict`` also replaces random values after a word
such as ``password``."""
DEFAULT_REDACTION: Redaction = "known"
"""How the text of a new source is redacted."""

INSIDE = "!/"
"""Separates the path of an archive or a mail from the path of a file inside."""
NAMED_LIKE_ARCHIVE = (
    r"\.(?i:zip|jar|war|ear|aar|apk|whl|egg|nupkg|vsix|conda|crate|gem|eml|mbox"
    r"|tar|tgz|tbz2?|txz|tzst|tar\.(?:gz|bz2|xz|zst|zstd|lz4))$"
)
"""Names of files that a run opens as folders if ``archives`` is set."""


def container_of(path: str) -> str:
    """Return the path of the file on disk that holds a document: the outermost archive or mail, or the document itself.

    >>> container_of("old/a.zip!/b/c.txt"), container_of("c.txt")
    ('old/a.zip', 'c.txt')
    """
    return path.partition(INSIDE)[0]


def holds_records(path: str) -> bool:
    """Return whether a file has the name of a log, CSV or JSON lines, which stays useful however large it is: its first
    and last lines alone say what it holds.
    """
    return re.search(r"\.(?i:csv|jsonl|log|log\.\d+|ndjson|tsv)$", path) is not None


FALLBACK_THRESHOLD = 0.5
"""The strategy ``hybrid`` filters after the search if at least this share of the lines matches."""

Strategy = Literal["auto", "prefilter", "postfilter", "hybrid"]
"""When a filter applies.

``auto`` and ``prefilter`` apply it before the search. ``postfilter`` applies it after the search, and fetches more
lines until enough match. ``hybrid`` chooses by ``fallback_threshold``. ``auto`` also counts the matches, and compares
them without the index if there are few."""


__all__ = ["DEFAULT_N_LINES", "DEFAULT_RERANKED", "DEFAULT_TOP_K", "FALLBACK_THRESHOLD", "MAX_RERANKED"]

DEFAULT_TOP_K = 10
DEFAULT_ENTRIES = 5
"""Default maximum number of entries that a memory search returns."""
DEFAULT_N_LINES = 3
"""Lines of context on each side of a window."""
DEFAULT_RERANKED, MAX_RERANKED = 10, 200
"""Number of windows that a reranking transformer reads. More windows improved nothing on the tuning halves, and each
takes several milliseconds.
"""
MAX_SHOWN_CHARACTERS, CUT = 500, "…"
"""A longer line is shown as a window of this many characters around the match, with CUT at each cut end."""
SYNONYMS = (
    {"top_k", "k", "n", "limit", "count", "size", "max_results", "num_results", "n_results"},
    {"n_lines", "context", "context_lines", "lines"},
    {"q", "query", "text", "search"},
    {"paths", "path", "file", "files", "filename", "document", "documents"},
    {"dirs", "dir", "directory", "directories", "folder", "folders"},
    {"globs", "glob", "pattern", "patterns", "include", "includes"},
    {"exts", "ext", "extension", "extensions", "ending", "endings", "suffix", "file_types", "filetype"},
    {"languages", "lang", "langs", "language"},
    {"kinds", "kind", "type", "types", "symbol_kind"},
    {"entity", "entities", "source", "sources", "repo", "repository", "project"},
    {"max_distance", "distance", "threshold"},
    {"min_relevance", "min_score", "score", "relevance"},
)
"""Argument names of other tools. Each set names one argument."""


def is_clipped(line: str) -> bool:
    """Return whether ``line``, as shown, is only a window of the line."""
    return len(line) == MAX_SHOWN_CHARACTERS and (line[0] == CUT or line[-1] == CUT)


def nearest_name(name: str, known: Sequence[str]) -> str:
    """Return advice for an unknown argument ``name``: the nearest of the ``known`` names."""
    plain = name.strip("-").replace("-", "_").lower()
    same = [each for synonyms in SYNONYMS if plain in synonyms for each in known if each in synonyms]
    near = same or difflib.get_close_matches(plain, known, 1)
    return f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(known) or 'none'}."


_USER_FOLDERS = {"XDG_CACHE_HOME": "~/.cache", "XDG_DATA_HOME": "~/.local/share", "XDG_STATE_HOME": "~/.local/state"}


def user_folder(variable: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the absolute folder that an XDG ``variable`` names, else its default in the home folder.

    Ignores a relative path, as the XDG specification requires: the current folder may be a clone of anyone's
    repository. Raises UsageError if the home folder is unknown.
    """
    named = Path(os.path.expanduser(environ.get(variable, "")))
    return named if named.is_absolute() else with_home(_USER_FOLDERS[variable])


def with_home(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` with ``~`` replaced by the home folder.

    Raises UsageError if the user has no home, as in some containers; pathlib would raise RuntimeError.
    """
    found = Path(os.path.expanduser(path))
    if os.fspath(path).startswith("~") and not found.is_absolute():
        raise UsageError("No home folder is known", str(path)[:200], "Set HOME, or write the path from / on.")
    return found


def path_or_uri(what: str, given: object) -> str:
    """Return a path or a URI as text. Raises UsageError, which names ``what``, for anything else."""
    found = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
    if not isinstance(found, str) or "\0" in found:
        raise UsageError(f"{what} must be one path or URI", repr(given)[:100])
    return found


def cache_folder_of(variable: str, name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that an environment ``variable`` names, else ``driftline/{name}`` in the user's cache folder.

    Raises UsageError.
    """
    if named := environ.get(variable):
        return with_home(named).absolute()
    return user_folder("XDG_CACHE_HOME", environ) / "driftline" / name


def byte_limit(variable: str, default: int) -> int:
    """Return the number of bytes in an environment ``variable``, else ``default``. Raises UsageError."""
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal():
        raise UsageError(f"{variable} must be a number of bytes", text, "Correct it.")
    return int(text)

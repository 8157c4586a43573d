"""The defaults of a search and the names of its arguments, for modules that must not import NumPy to know them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from driftline.storage.lines.defaults import FALLBACK_THRESHOLD

__all__ = ["DEFAULT_N_LINES", "DEFAULT_RERANKED", "DEFAULT_TOP_K", "FALLBACK_THRESHOLD", "MAX_RERANKED"]

DEFAULT_TOP_K = 10
DEFAULT_N_LINES = 3
"""Lines of context on each side of a window."""
DEFAULT_RERANKED, MAX_RERANKED = 10, 200
"""Windows that a transformer reads when a search is reranked. More gained nothing on the tuning halves, and each costs
several milliseconds."""
MAX_SHOWN_CHARACTERS, CUT = 500, "…"
"""A longer line is shown as a window of so many characters around what matches, with CUT where it is cut."""
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
"""What other tools call the arguments of a search: each set is one argument."""


def is_clipped(line: str) -> bool:
    """Whether a line as it is shown is only a window of the line."""
    return len(line) == MAX_SHOWN_CHARACTERS and (line[0] == CUT or line[-1] == CUT)


def nearest_name(name: str, known: Sequence[str]) -> str:
    """Advice for an argument whose name is not among the ``known`` ones."""
    plain = name.strip("-").replace("-", "_").lower()
    same = [each for synonyms in SYNONYMS if plain in synonyms for each in known if each in synonyms]
    near = same or difflib.get_close_matches(plain, known, 1)
    return f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(known)}."

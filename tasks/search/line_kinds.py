"""Which lines a search may answer with, by the definitions that they are in and by whether they belong to tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Self

from driftline.storage.errors import UsageError
from driftline.storage.lines.outline import KINDS, Definition
from driftline.tasks.search.file_kinds import ALIASES, LANGUAGES, is_test


@dataclass(frozen=True, slots=True)
class LineKinds:
    """With ``symbols``, only lines that begin a definition; with ``kinds``, only those whose innermost definition is of
    one; without ``tests``, none of a test."""

    symbols: bool = False
    kinds: tuple[str, ...] = ()
    tests: bool = True

    @classmethod
    def of(cls, *, symbols: bool = False, kinds: Sequence[str] | None = None, tests: bool = True) -> Self:
        """As the fields say. Raises UsageError for an unknown kind."""
        unknown = [kind for kind in kinds or () if kind not in KINDS]
        if unknown:
            near = get_close_matches(unknown[0].lower(), KINDS, 1)
            advice = f"Did you mean {near[0]!r}? " if near else ""
            fix = f"{advice}Use one of {', '.join(KINDS)}."
            raise UsageError("Unknown kind of definition", ", ".join(unknown), fix)
        return cls(symbols, tuple(kinds or ()), tests)

    @property
    def needs_definitions(self) -> bool:
        """Whether lines cannot be judged by their paths alone."""
        return self.symbols or bool(self.kinds)

    def allow(self, definition: Definition | None, line: int, path: str) -> bool:
        """Whether a line (0-based) of ``path`` may be an answer; ``definition`` is the innermost around it."""
        if not self.tests and is_test(path):
            return False
        if self.symbols and (definition is None or definition.line != line):
            return False
        return not self.kinds or (definition is not None and definition.kind in self.kinds)


ALL_LINES = LineKinds()


def extensions_of(languages: Sequence[str]) -> tuple[str, ...]:
    """The file extensions of languages, by the names that people use. Raises UsageError for an unknown one."""
    found: dict[str, None] = {}
    for language in languages:
        name = language.lower()
        extensions = LANGUAGES.get(ALIASES.get(name, name))
        if extensions is None:
            near = get_close_matches(name, (*LANGUAGES, *ALIASES), 1)
            advice = f"Did you mean {near[0]!r}? " if near else ""
            raise UsageError("Unknown language", language, f"{advice}Use one of {', '.join(LANGUAGES)}, or an ending.")
        found.update(dict.fromkeys(extensions))
    return tuple(found)

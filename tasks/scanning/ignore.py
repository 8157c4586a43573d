"""Which files of a tree are indexed: ignore files, ``--include``, ``--exclude`` and secrets.

Patterns have gitignore syntax. They match a whole Arrow array of paths at a time: consecutive patterns of the same sign
form one regular expression, so that 100,000 paths and a hundred patterns take about 20 ms.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.errors import UsageError
from driftline.storage.globs import alternatives, is_unicode, spellings
from driftline.tasks.scanning.wildmatch import NO_BYTE, Pattern, translate

IGNORE_FILES = (".gitignore", ".driftlineignore")
"""Read in every folder; the later one takes precedence."""

NEVER_ENTERED = frozenset({".git", ".hg", ".svn", ".driftline"})
"""Folders of metadata, which are skipped without a report."""

SECRETS = (
    *(".env", ".env.*", "!.env.example", "!.env.sample", "!.env.template", "!.env.dist", "!.env.*.example"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519"),
    *(".netrc", "_netrc", ".npmrc", ".pypirc", ".pgpass", ".htpasswd", ".git-credentials"),
    *("**/.docker/config.json", "**/.kube/config", "**/.aws/credentials", "**/.aws/config"),
    *("credentials", "credentials.json", "credentials.yaml", "credentials.yml", "credentials.toml"),
    *("secrets.json", "secrets.yaml", "secrets.yml", "secrets.toml"),
    *("client_secret*.json", "service-account*.json", "service_account*.json"),
)
"""Names of files that usually hold credentials; matching ignores case."""

_DESCENDING = re.compile(r"\[(.)-(.)\]")
_PATTERNS_PER_REGEX = 100
"""RE2 limits the memory of an expression; matching is slow beyond."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The caller's filters for a source, in gitignore syntax with braces (``*.{ts,tsx}``).

    A non-empty ``include`` selects only matching files.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    skip_secrets: bool = True

    def check(self, root: str | None = None) -> None:
        """Check the patterns, of a source at the local folder ``root`` if that is known. Raises UsageError."""
        root = root.rstrip("/") if root else None
        for opposite, patterns in (("exclude", self.include), ("include", self.exclude)):
            for pattern in patterns:
                _check(pattern, opposite, root)


def _check(pattern: str, opposite: str, root: str | None) -> None:
    """Raises UsageError, with the nearest right spelling, for a pattern that can match nothing."""
    nearest = ""
    if not pattern.strip():
        raise _invalid(pattern, "It is empty: leave it out; '*' matches everything.")
    if pattern.startswith("!"):
        raise _invalid(pattern, f"Leave out '!', and --{opposite} {pattern[1:]!r}.")
    if not is_unicode(pattern):
        raise _invalid(pattern, "It is not UTF-8: write '?' for each byte that cannot be typed.")
    if root and (pattern == root or pattern.startswith(f"{root}/")):
        nearest = pattern[len(root) :] or "*"
    elif "://" in pattern or pattern.startswith(("~/", "../")):
        raise _invalid(pattern, "Patterns are relative to their source: write it as seen from there.")
    elif pattern.startswith("./"):
        nearest = pattern[1:]
    elif "//" in pattern:
        nearest = re.sub("//+", "/", pattern)
    elif pattern.startswith("#"):
        nearest = f"\\{pattern}"
    elif any(_is_unmatchable(each) for each in alternatives(pattern, escapes=True)):
        nearest = _DESCENDING.sub(lambda found: f"[{found[2]}-{found[1]}]", pattern)
        nearest = pattern.replace("[", "\\[") if nearest == pattern else nearest
        nearest = (pattern.rstrip("/\\") or "*") if nearest == pattern else nearest
    if nearest:
        raise _invalid(pattern, f"It matches nothing: write {nearest!r}.")


def _invalid(pattern: str, fix: str) -> UsageError:
    return UsageError("The pattern is not valid", repr(pattern), fix)


def _is_unmatchable(pattern: str) -> bool:
    found = translate(pattern.encode())
    return found is None or NO_BYTE in found.regex


def _spelled(patterns: Iterable[str]) -> list[str]:
    """What the patterns of a caller stand for: without braces, with accents composed and decomposed."""
    return [form for pattern in patterns for each in alternatives(pattern, escapes=True) for form in spellings(each)]


class PatternList:
    """Ordered gitignore patterns: the last match decides.

    Patterns are relative to the folder ``base`` ("" or with a trailing slash). By default a pattern matches a single
    entry, as in git's walk. With ``descendants`` a match of a folder also matches everything below it.
    """

    def __init__(
        self, lines: Iterable[bytes | str], base: str = "", *, descendants: bool = False, flags: str = "s"
    ) -> None:
        self.base = base
        self._flags = flags
        encoded = (line.encode(errors="surrogateescape") if isinstance(line, str) else line for line in lines)
        patterns = [pattern for line in encoded if (pattern := translate(line, base)) is not None]
        self._of_files = self._runs(patterns, _file_end(descendants=descendants))
        self._of_folders = self._runs(patterns, _folder_end(descendants=descendants))

    def __bool__(self) -> bool:
        return bool(self._of_folders)

    def apply(self, paths: pa.Array, verdict: NDArray[np.bool_], *, folders: bool = False) -> None:
        """Update ``verdict`` in place where a pattern matches: True for a match, False for a negated one.

        ``paths`` are those of files, or of folders without a trailing slash.
        """
        as_bytes = paths.cast(pa.binary())
        for positive, regex in self._of_folders if folders else self._of_files:
            hit = pc.match_substring_regex(as_bytes, regex)
            verdict[hit.to_numpy(zero_copy_only=False)] = positive

    def matches(self, paths: pa.Array, *, folders: bool = False) -> NDArray[np.bool_]:
        """``(n,) bool``: the paths that the patterns select."""
        verdict = np.zeros(len(paths), dtype=bool)
        self.apply(paths, verdict, folders=folders)
        return verdict

    def _runs(self, patterns: Sequence[Pattern], end: Callable[[Pattern], str | None]) -> list[tuple[bool, str]]:
        """Consecutive patterns of the same sign as one expression each."""
        runs: list[tuple[bool, list[str]]] = []
        for pattern in patterns:
            ending = end(pattern)
            if ending is None:
                continue
            if not runs or runs[-1][0] == pattern.negated or len(runs[-1][1]) >= _PATTERNS_PER_REGEX:
                runs.append((not pattern.negated, []))
            runs[-1][1].append(f"(?:{pattern.regex}{ending})")
        return [(positive, f"(?{self._flags})" + "|".join(regexes)) for positive, regexes in runs]


class Matcher:
    """The compiled rules of a caller. Paths are ``base`` and the path in the source (see PatternList)."""

    def __init__(self, rules: Rules, base: str = "") -> None:
        self.exclude = PatternList(_spelled(rules.exclude), base, descendants=True)
        self._include = PatternList(_spelled(rules.include), base, descendants=True)
        self._only_included = bool(rules.include)
        self._secrets = PatternList(SECRETS if rules.skip_secrets else (), base, flags="si")

    def secret(self, files: pa.Array) -> NDArray[np.bool_]:
        """``(n,) bool``: files that look like credentials by their names."""
        return self._secrets.matches(files)

    def excluded(self, files: pa.Array) -> NDArray[np.bool_]:
        """``(n,) bool``: files that the rules exclude or do not include."""
        excluded = self.exclude.matches(files)
        if self._only_included:
            excluded |= ~self._include.matches(files)
        return excluded


def lets_through(rules: Rules, path: str) -> bool:
    """Whether the caller's patterns admit a file, regardless of ignore files."""
    return not Matcher(rules).excluded(pa.array([path], pa.string()))[0]


def read_ignore_file(data: bytes) -> list[bytes]:
    """The lines of an ignore file."""
    return [line.removesuffix(b"\r") for line in data.removeprefix(codecs.BOM_UTF8).split(b"\n")]


def _file_end(*, descendants: bool) -> Callable[[Pattern], str | None]:
    if descendants:
        return lambda pattern: r"/.*\z" if pattern.only_folders else r"(?:/.*)?\z"
    return lambda pattern: None if pattern.only_folders else r"\z"


def _folder_end(*, descendants: bool) -> Callable[[Pattern], str]:
    return lambda pattern: r"(?:/.*)?\z" if descendants else r"\z"

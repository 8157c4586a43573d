"""Which files of a tree are indexed: ignore files, ``--include``, ``--exclude`` and secrets.

Patterns have gitignore syntax. They match a whole Arrow array of paths at a time: consecutive patterns of the same sign
form one regular expression, so that 100,000 paths and a hundred patterns take about 20 ms.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pathspec.patterns.gitignore import GitIgnorePatternError
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from driftline.storage.errors import UsageError

log = logging.getLogger(__name__)

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

_PATTERNS_PER_REGEX = 100
"""RE2 limits the memory of an expression; matching is slow beyond."""

# The endings of pathspec's regular expressions; "/" is the third.
_DIRECTORY = "(?P<ps_d>/)"
_ENTRY = "(?:(?P<ps_d>/)|$)"


@dataclass(frozen=True, slots=True)
class Rules:
    """The caller's filters for a source, in gitignore syntax. A non-empty ``include`` selects only matching files."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    skip_secrets: bool = True

    def check(self) -> None:
        """Check the patterns. Raises UsageError."""
        for pattern in (*self.include, *self.exclude):
            try:
                regex, _ = GitIgnoreSpecPattern.pattern_to_regex(pattern)
                usable = regex is not None and _is_valid(_anchored(regex, "", descendants=True))
            except (GitIgnorePatternError, IndexError):
                usable = False
            if not usable or pattern.startswith("!"):
                raise UsageError(
                    "The pattern is not valid", repr(pattern), "Use the syntax of .gitignore, without '!'."
                )


class PatternList:
    """Ordered gitignore patterns: the last match decides.

    Patterns are relative to the folder ``base`` ("" or with a trailing slash). By default a pattern matches a single
    entry, as in git's walk (folders have a trailing slash). With ``descendants`` a match of a folder also matches
    everything below it.
    """

    def __init__(self, lines: Iterable[str], base: str = "", *, descendants: bool = False, flags: str = "s") -> None:
        self.base = base
        self._flags = flags
        runs: list[tuple[bool, list[str]]] = []
        for line in lines:
            try:
                regex, positive = GitIgnoreSpecPattern.pattern_to_regex(line)
            except (GitIgnorePatternError, IndexError) as error:
                log.debug("skipped pattern %r in %r: %s", line, base, error)
                continue
            if regex is None or positive is None:
                continue
            anchored = _anchored(regex, base, descendants=descendants)
            if not runs or runs[-1][0] != positive or len(runs[-1][1]) >= _PATTERNS_PER_REGEX:
                runs.append((positive, []))
            runs[-1][1].append(anchored)
        self._runs = [(positive, self._compile(regexes)) for positive, regexes in runs]

    def __bool__(self) -> bool:
        return bool(self._runs)

    def apply(self, paths: pa.Array, verdict: NDArray[np.bool_]) -> None:
        """Update ``verdict`` in place where a pattern matches: True for a match, False for a negated one."""
        for positive, regex in self._runs:
            hit = pc.match_substring_regex(paths, regex)
            verdict[hit.to_numpy(zero_copy_only=False)] = positive

    def matches(self, paths: pa.Array) -> NDArray[np.bool_]:
        """``(n,) bool``: the paths that the patterns select."""
        verdict = np.zeros(len(paths), dtype=bool)
        self.apply(paths, verdict)
        return verdict

    def _compile(self, regexes: Sequence[str]) -> str:
        joined = f"(?{self._flags})" + "|".join(regexes)
        if _is_valid(joined):
            return joined
        good = [regex for regex in regexes if _is_valid(f"(?{self._flags}){regex}")]
        log.warning("skipped %d invalid patterns of the ignore file in %r", len(regexes) - len(good), self.base)
        return f"(?{self._flags})" + ("|".join(good) if good else r"\z.")


class Matcher:
    """The compiled rules of a caller. Paths are ``base`` and the path in the source (see PatternList)."""

    def __init__(self, rules: Rules, base: str = "") -> None:
        self.exclude = PatternList(rules.exclude, base, descendants=True)
        self._include = PatternList(rules.include, base, descendants=True)
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


def read_ignore_file(data: bytes) -> list[str]:
    """The lines of an ignore file."""
    return data.decode("utf-8-sig", errors="replace").replace("\r\n", "\n").split("\n")


def _anchored(regex: str, base: str, *, descendants: bool) -> str:
    # pathspec ends "[[:alpha:]]" at its first "]".
    regex = regex.replace(r":]\]", ":]]")
    if descendants:
        regex = regex.replace(_ENTRY, "(?:/|$)").replace(_DIRECTORY, "/")
    elif regex.endswith(_ENTRY):
        regex = regex.removesuffix(_ENTRY) + "/?$"
    elif regex.endswith(_DIRECTORY):
        regex = regex.removesuffix(_DIRECTORY) + "/$"
    elif regex.endswith("/"):  # "dir/**" selects the content of the folder, not the folder
        regex += "."
    if base:
        head = "^" + re.escape(base)
        regex = head + regex[1:] if regex.startswith("^") else f"{head}.*{regex}"
    return f"(?:{regex})"


def _is_valid(regex: str) -> bool:
    try:
        pc.match_substring_regex(pa.array([""]), regex)
    except pa.ArrowInvalid:
        return False
    return True

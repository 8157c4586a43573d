"""Expand and check globs: braces, brackets, and the two Unicode forms of accented names.

A brace group with a comma (``*.{ts,tsx}``) or a range of numbers or letters (``{1..3}``, ``{a..c}``) expands as in
bash; any other brace is literal. A glob that can never match is rejected, and the error suggests the nearest one that
can.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from driftline.storage.errors import UsageError

MAX_ALTERNATIVES = 1_000
"""Maximum number of alternatives per pattern, and of Unicode forms per path."""
MAX_BRACES = 50

_TOKEN = re.compile(r"(?<![^/])\*\*/|\*\*|\*|\?|\[[!^]?+[^/][^\]/]*\]|[^*?\[]+|\[")
_BRACKET = re.compile(r"\[[!^]?+[^/][^\]/]*\]")
_SET_ITEM = re.compile(r"(.)-(.)|(.)", re.DOTALL)
_WILDCARD = re.compile(r"[*?\[]")
_REGEX_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")
_GLOB_SPECIAL = re.compile(r"[*?\[{]")
_RANGE = re.compile(r"(?:(-?\d{1,9})\.\.(-?\d{1,9})|([a-zA-Z])\.\.([a-zA-Z]))(?:\.\.-?(\d{1,9}))?")
_EITHER = re.compile(r"[@+?*!]?\(([^()/]*\|[^()/]*)\)")
_ESCAPED = re.compile(r"\\([][*?{}!])")
_SEPARATED = re.compile(r"\\[*?]")
_MARKS = r"[\U00000300-\U0000036f]*"
"""Combining marks after a letter that is stored without its accents."""
_NOTHING = r"[^\U00000000-\U0010ffff]"
_CLASSES = {
    "alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "lower": "a-z", "upper": "A-Z", "xdigit": "0-9a-fA-F",
}  # fmt: skip


def alternatives(pattern: str, *, escapes: bool = False) -> tuple[str, ...]:
    r"""Expand the brace groups of ``pattern``. If ``escapes`` is set, ``\{`` is a literal brace.

    Raises UsageError if a group is not closed or has spaces around its commas, or if there are too many alternatives.
    """
    if pattern.count("{") > MAX_BRACES:
        raise UsageError(f"The pattern has more than {MAX_BRACES} braces", _shown(pattern), "Use several patterns.")
    found = tuple(dict.fromkeys(itertools.islice(_expanded(pattern, escapes), MAX_ALTERNATIVES + 1)))
    if len(found) > MAX_ALTERNATIVES:
        what = f"A pattern expands to more than {MAX_ALTERNATIVES:,} alternatives"
        raise UsageError(what, _shown(pattern), "Use several.")
    return found


def advice_on(pattern: str) -> str:
    r"""Return advice on how to correct a glob that matches nothing, or "".

    >>> advice_on("*.ts,*.tsx")
    "Alternatives have braces: '{*.ts,*.tsx}'."
    """
    if "{" not in pattern and ("," in pattern or _EITHER.search(pattern)):
        written = _EITHER.sub(lambda found: "{" + found[1].replace("|", ",") + "}", pattern)
        return f"Alternatives have braces: {written if '{' in written else '{' + pattern + '}'!r}."
    if "\\" in pattern:
        unescaped = _ESCAPED.sub(lambda found: f"[{found[1]}]" if found[1] in "*?[{" else found[1], pattern)
        forms = [repr(unescaped.replace("\\", "/"))]
        if _SEPARATED.search(pattern):
            forms.insert(0, repr(pattern.replace("\\", "/")))
        return f"A backslash is an ordinary character: write {' or '.join(forms)}."
    return ""


def spellings(path: str) -> tuple[str, ...]:
    """Return ``path`` in all forms in which file systems may store it: accents composed (NFC) or decomposed (NFD)."""
    if path.isascii():
        return (path,)
    names = [tuple(dict.fromkeys((name, *_forms(name)))) for name in path.split("/")]
    if len(names) > 1 and sum(len(forms) > 1 for forms in names) > 6:
        return tuple(dict.fromkeys((path, *_forms(path))))
    return tuple("/".join(chosen) for chosen in itertools.product(*names))


def literal_glob(path: str) -> str:
    """Return the glob that matches only ``path``."""
    return _GLOB_SPECIAL.sub(r"[\g<0>]", path)


def check_glob(glob: str) -> tuple[str, ...]:
    """Return the alternatives of a glob, with braces expanded. Raises UsageError if a glob can never match."""
    if not glob.strip():
        raise UsageError("Empty glob", fix="Omit it, or use '**' for all documents.")
    if not is_unicode(glob):
        raise UsageError("The glob is not UTF-8", _shown(glob), "Use '?' or '*' for characters that you cannot type.")
    if glob.startswith("!"):
        fix = f"Remove it to select what {glob.lstrip('!')!r} matches. To exclude files, use -file: in a query."
        raise UsageError("A glob cannot start with '!'", _shown(glob), fix)
    if (either := _EITHER.search(glob)) is not None:
        nearest = _EITHER.sub(lambda found: "{" + found[1].replace("|", ",") + "}", glob)
        raise UsageError(
            f"Glob alternatives are written in braces, not as {either[0]!r}", _shown(glob), f"Use {nearest!r}."
        )
    found = alternatives(glob)
    for alternative in found:
        if not alternative.strip():
            raise UsageError("The glob has an empty alternative, which matches nothing", _shown(glob), "Leave it out.")
        _check_brackets(alternative, glob)
        if ".." in alternative.split("/") and "://" not in alternative:
            raise UsageError("The glob points outside its source", _shown(glob), "Use a glob relative to the source.")
    return found


def glob_pattern(glob: str) -> str:
    """Translate a glob without braces into a whole-path regular expression, in syntax common to Rust and Python.

    A slash at the start or in the middle anchors the glob at the top of the source. A trailing slash selects the
    content of a folder.
    """
    return f"(?s)^{''.join(map(_translated, _TOKEN.findall(normal_glob(glob))))}$"


def literal_pattern(text: str) -> str:
    """Return a regular expression for ``text`` with its accents composed or decomposed."""
    if text.isascii():
        return _REGEX_SPECIAL.sub(r"\\\g<0>", text)
    composed, decomposed = _forms(text)
    found = "".join(_one_of(dict.fromkeys(_forms(character))) for character in composed)
    return found if text in (composed, decomposed) else _one_of([text, found], escape=False)


def normal_glob(glob: str) -> str:
    """Normalize a glob for whole paths: remove ``.``, doubled slashes, and slashes at its ends."""
    names = [name for name in glob.split("/") if name not in ("", ".")]
    names = [name for name, before in zip(names, ["", *names], strict=False) if name != "**" or before != "**"]
    if not names:
        return "**"
    if len(names) == 1 and not glob.startswith(("/", "./")):
        names.insert(0, "**")
    return "/".join([*names, "**"] if glob.endswith("/") else names)


def fixed_prefix(glob: str) -> str:
    """Return the common prefix of all paths that a glob from ``normal_glob`` matches, byte by byte, or "" if there is
    none.
    """
    fixed = _WILDCARD.split(glob, maxsplit=1)[0]
    return fixed[: next((at for at, character in enumerate(fixed) if not character.isascii()), len(fixed))]


def remainders(glob: Sequence[str], folders: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the remainders of a glob, split by name, that match below ``folders``; empty if it cannot match there."""
    reached = {0}
    for folder in folders:
        for at in range(len(glob)):
            if at in reached and glob[at] == "**":  # it may match no folder at all
                reached.add(at + 1)
        reached = {
            at if glob[at] == "**" else at + 1
            for at in reached
            if at < len(glob) and (glob[at] == "**" or _is_named(folder, glob[at]))
        }
    return [tuple(glob[at:]) for at in sorted(reached)]


def _is_named(folder: str, glob: str) -> bool:
    return not folder if not glob else re.match(glob_pattern(f"/{glob}"), folder) is not None


def is_unicode(text: str) -> bool:
    """Return whether ``text`` can be encoded as UTF-8; arguments and file names may contain undecodable bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _forms(text: str) -> tuple[str, str]:
    return unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 100 else f"{pattern[:99]}…")


# -- braces ----------------------------------------------------------------------------------


def _expanded(pattern: str, escapes: bool) -> Iterator[str]:
    for start in _characters(pattern, escapes):
        if pattern[start] != "{":
            continue
        commas, end = _group(pattern, start, escapes)
        if end is None:
            if commas:
                raise UsageError("Unclosed brace", _shown(pattern), f"Use {pattern + '}'!r}.")
            continue
        inside = pattern[start + 1 : end]
        cuts = [start, *commas, end]
        options = [pattern[low + 1 : high] for low, high in itertools.pairwise(cuts)]
        if not commas:
            if (ends := _RANGE.fullmatch(inside)) is None:
                continue
            options = _in_range(*ends.groups())
        elif any(option != option.strip() for option in options):
            nearest = pattern[: start + 1] + ",".join(map(str.strip, options)) + pattern[end:]
            raise UsageError("The brace group has spaces around its commas", _shown(pattern), f"Use {nearest!r}.")
        for option in options:
            for middle in _expanded(option, escapes):
                for rest in _expanded(pattern[end + 1 :], escapes):
                    yield pattern[:start] + middle + rest
        return
    yield pattern


def _in_range(first: str | None, last: str | None, low: str | None, high: str | None, step: str | None) -> list[str]:
    """Return the numbers or letters of a range as bash does: numbers have equal widths if an end has leading zeros."""
    start, stop = (int(first), int(last)) if first and last else (ord(low or ""), ord(high or ""))
    by = (int(step or 1) or 1) * (1 if start <= stop else -1)
    values = itertools.islice(range(start, stop + by // abs(by), by), MAX_ALTERNATIVES + 1)
    if not (first and last):
        return list(map(chr, values))
    width = max(len(first), len(last)) if any(re.match("-?0.", end) for end in (first, last)) else 0
    return [f"{value:0{width}}" for value in values]


def _group(pattern: str, start: int, escapes: bool) -> tuple[list[int], int | None]:
    """Return the comma positions of the brace group at ``start``, and its end, or None if it is not closed."""
    depth, commas = 0, list[int]()
    for position in _characters(pattern, escapes, start):
        if pattern[position] == "{":
            depth += 1
        elif pattern[position] == "}":
            depth -= 1
            if not depth:
                return commas, position
        elif pattern[position] == "," and depth == 1:
            commas.append(position)
    return commas, None


def _characters(pattern: str, escapes: bool, start: int = 0) -> Iterator[int]:
    """Yield the positions of characters that are neither escaped nor in brackets."""
    at = start
    while at < len(pattern):
        if escapes and pattern[at] == "\\":
            at += 2
            continue
        if pattern[at] == "[" and (bracket := _BRACKET.match(pattern, at)) is not None:
            at = bracket.end()
            continue
        yield at
        at += 1


# -- one glob --------------------------------------------------------------------------------


def _check_brackets(glob: str, given: str) -> None:
    for token in _TOKEN.findall(glob):
        if token == "[":
            raise UsageError("Unclosed bracket", _shown(given), f"Use {given.replace('[', '[[]')!r}.")
        if token[0] != "[":
            continue
        name = re.match(r"\[[!^]?\[:(\w+):?\]", token)
        if name is not None:
            nearest = f"[{_CLASSES.get(name[1], 'a-z')}]"
            raise UsageError("Globs do not support character classes", _shown(given), f"Use {nearest!r}.")
        if _set(token[1:-1]) == _NOTHING:
            nearest = f"[{token[-2]}-{token[1]}]" if re.fullmatch(r"\[.-.\]", token) else "'/' outside the brackets"
            raise UsageError("The bracket matches no character", _shown(given), f"Use {nearest}.")


def _translated(token: str) -> str:
    if token == "**/":
        return "(?:.*/)?"
    if token in ("**", "*", "?"):
        return {"**": ".*", "*": "[^/]*", "?": f"[^/]{_MARKS}"}[token]
    if len(token) > 1 and token[0] == "[":
        return _set(token[1:-1])
    return literal_pattern(token)


def _one_of(texts: Iterable[str], *, escape: bool = True) -> str:
    parts = [_REGEX_SPECIAL.sub(r"\\\g<0>", text) if escape else text for text in texts]
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


def _set(inside: str) -> str:
    """Return a character set without the slash; a descending range yields an empty set."""
    ranges, decomposed = "", []
    negated = inside[0] in "!^"
    for first, last, single in _SET_ITEM.findall(inside[negated:]):
        low, high = first or single, last or single
        for start, end in ((low, min(high, ".")), (max(low, "0"), high)):  # below and above the slash
            ranges += rf"\U{ord(start):08x}-\U{ord(end):08x}" if start <= end else ""
        if single and len(other := unicodedata.normalize("NFD", single)) > 1:
            decomposed.append(other)
    if negated:
        return f"[^/{ranges}]{_MARKS}"
    return _one_of([f"[{ranges}]", *decomposed], escape=False) if ranges else _NOTHING

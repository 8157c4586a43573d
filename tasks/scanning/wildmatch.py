"""Translates the patterns of ``.gitignore`` into regular expressions of RE2 that match as git does, byte by byte.

git matches bytes, not characters: ``?`` is one byte of a name. The reference is git itself (``tests/hostile``), where
it differs from its manual: ``ab**/c`` means ``ab`` and then ``**/c``, and a pattern with an open bracket matches
nothing.
"""

from __future__ import annotations

import string
from dataclasses import dataclass

_SPECIAL = frozenset(b"*?[\\")
_PLAIN = frozenset((string.ascii_letters + string.digits + "_/").encode())
_SLASH = ord("/")
NO_BYTE = r"[^\x00-\xff]"
"""The expression of brackets that match nothing."""
_CLASSES = {
    "alnum": string.ascii_letters + string.digits,
    "alpha": string.ascii_letters,
    "blank": " \t",
    "cntrl": "".join(map(chr, [*range(32), 127])),
    "digit": string.digits,
    "graph": "".join(map(chr, range(33, 127))),
    "lower": string.ascii_lowercase,
    "print": "".join(map(chr, range(32, 127))),
    "punct": string.punctuation,
    "space": " \t\n\r",
    "upper": string.ascii_uppercase,
    "xdigit": string.hexdigits,
}


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern: ``regex`` matches the path of an entry, without a slash at its end, from the first byte to the last.

    ``negated`` patterns (``!``) include again what an earlier one excluded. ``only_folders`` ends in a slash.
    """

    regex: str
    negated: bool
    only_folders: bool


def translate(line: bytes, base: str = "") -> Pattern | None:
    """The pattern of a line, relative to the folder ``base`` ("" or with a trailing slash).

    None for a comment, a blank line, and a pattern that can match nothing.
    """
    if line.startswith(b"#"):
        return None
    text = _without_trailing_spaces(line.partition(b"\0")[0])
    negated = text.startswith(b"!")
    text = text.removeprefix(b"!")
    only_folders = text.endswith(b"/")
    if only_folders:
        text = text[:-1]
    if not text:
        return None
    anywhere = b"/" not in text
    text = text.removeprefix(b"/")
    literal = next((i for i, byte in enumerate(text) if byte in _SPECIAL), len(text))
    rest = _wildcards(text[literal:])
    if rest is None or not text:
        return None
    head = f"^{_escaped(base.encode())}(?:.*/)?" if anywhere else f"^{_escaped(base.encode())}"
    return Pattern(head + _escaped(text[:literal]) + rest, negated, only_folders)


def _without_trailing_spaces(line: bytes) -> bytes:
    end = len(line.rstrip(b" "))
    backslashes = end - len(line[:end].rstrip(b"\\"))
    return line[: end + backslashes % 2] if end < len(line) else line


def _wildcards(pattern: bytes) -> str | None:
    """The expression of what follows the literal beginning of a pattern; None if it can match nothing."""
    parts: list[str] = []
    i = 0
    while i < len(pattern):
        byte = pattern[i]
        if byte == ord("*"):
            after = i + len(pattern[i:]) - len(pattern[i:].lstrip(b"*"))
            crosses = after - i > 1 and (i == 0 or pattern[i - 1] == _SLASH)
            if crosses and after == len(pattern):
                parts.append(".*")
            elif crosses and pattern[after] == _SLASH:
                parts.append("(?:.*/)?")
                after += 1
            elif crosses and pattern[after : after + 2] == b"\\/":
                parts.append(".*")
            else:
                parts.append("[^/]*")
            i = after
        elif byte == ord("?"):
            parts.append("[^/]")
            i += 1
        elif byte == ord("["):
            matched = _bracket(pattern, i + 1)
            if matched is None:
                return None
            members, i = matched
            parts.append(_one_of(members))
        else:
            if byte == ord("\\"):
                i += 1
                if i == len(pattern):
                    return None
            parts.append(_escaped(pattern[i : i + 1]))
            i += 1
    return "".join(parts)


def _bracket(pattern: bytes, start: int) -> tuple[frozenset[int], int] | None:
    """The bytes that a bracket expression matches, and the position after it; None if it is malformed."""
    i = start
    negated = pattern[i : i + 1] in (b"!", b"^")
    i += negated
    members: set[int] = set()
    previous: int | None = None
    first = True
    while first or pattern[i : i + 1] != b"]":
        first = False
        if i >= len(pattern):
            return None
        byte, last = pattern[i], pattern[i + 1 : i + 2]
        if byte == ord("-") and previous is not None and last and last != b"]":
            i += 1
            if pattern[i] == ord("\\"):
                i += 1
            if i >= len(pattern):
                return None
            members.update(range(previous, pattern[i] + 1))
            previous = None
        elif byte == ord("[") and last == b":":
            end = pattern.find(b"]", i + 2)
            if end < 0:
                return None
            if end - 1 > i + 1 and pattern[end - 1] == ord(":"):
                characters = _CLASSES.get(pattern[i + 2 : end - 1].decode("latin-1"))
                if characters is None:
                    return None
                members.update(characters.encode())
                previous, i = None, end
            else:
                members.add(byte)
                previous = byte
        else:
            if byte == ord("\\"):
                i += 1
                if i >= len(pattern):
                    return None
                byte = pattern[i]
            members.add(byte)
            previous = byte
        i += 1
    chosen = frozenset(range(256)) - members if negated else frozenset(members)
    return chosen - {_SLASH}, i + 1


def _one_of(members: frozenset[int]) -> str:
    """A character class, or an expression that matches nothing."""
    return "[" + "".join(rf"\x{byte:02x}" for byte in sorted(members)) + "]" if members else NO_BYTE


def _escaped(text: bytes) -> str:
    return "".join(chr(byte) if byte in _PLAIN else rf"\x{byte:02x}" for byte in text)

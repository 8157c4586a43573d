"""Find private keys in text: PEM, OpenSSH and PGP, also inside source code and JSON, and other formats."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from itertools import islice

KEY_MARK = "-----BEGIN"
_SPACE = r"(?:[ +]|%20)"
_BEGIN = rf"-----BEGIN{_SPACE}(?:[A-Z0-9]{{1,12}}{_SPACE}){{0,4}}PRIVATE{_SPACE}KEY(?:{_SPACE}BLOCK)?-----"
_BEGINS = re.compile(_BEGIN)
_KEY = re.compile(
    r"(?:[\s\"'+,#*/]|\\[nr])*+(?:[A-Za-z-]{4,20}: [^\n\\]{0,80}(?:\n|\\[nr])(?:[\s\"'+,#*/]|\\[nr])*+){0,8}+"
    r"(?P<line>[A-Za-z0-9+/=]{20,}+|[A-Za-z0-9+/]{8,}+={1,2})(?![_:(]|\.\w)"
)
"""What follows ``_BEGINS`` in a PEM, OpenSSH or PGP private key, even inside source code or JSON: any headers, and the
key's first line.
"""
_KEY_CHARS = 1_200
_MAX_BEGINS = 4_096
"""Only the first places where a key may begin are checked, which bounds the time."""
_DECORATION = re.compile(r"\\+[nrt]|%0[ADad]|&#[xX]?[0-9A-Fa-f]{1,4};")
"""Escaped ends of lines."""
_KEY_LINE = re.compile(r"(?<![\w.@+/])[A-Za-z0-9+/]{40,}+(?![_(@]|[.-]\w)")
_KEY_LINE_CHARS = 64
"""Formats of keys have lines of 64, 70 or 76 characters. A shorter line is the last one, or not alone."""
_DECORATED_CHARS = 400
"""Maximum number of characters before a key's first line, such as headers, quotes, line numbers or markup."""
_IN_WORDS = re.compile(r"[a-z]{3,}")
_MAX_IN_WORDS = 0.4
"""In a path or an identifier, more of the characters are in runs of lower-case letters; in random base64, 15%."""
_BEGINS_KEY = re.compile(rf"\s*(?:{_BEGIN}|---- BEGIN SSH2 (?:ENCRYPTED )?PRIVATE KEY ----|PuTTY-User-Key-File-\d)")
_BASE64_MARK = "LS0tLS1CRUdJTi"
_WORD_STARTS = r"(?:\b|(?<=\\[nrt]))"
_OTHER_KEYS = {
    "AGE-SECRET-KEY-1": re.compile(rf"{_WORD_STARTS}AGE-SECRET-KEY-1[0-9A-Z]{{40,}}"),
    _BASE64_MARK: re.compile(rf"{_BASE64_MARK}(?=([A-Za-z0-9+/]{{20}}[A-Za-z0-9+/=\s\\]{{120}}))"),
    "PrivateKey": re.compile(rf"{_WORD_STARTS}PrivateKey[ \t]*=[ \t]*[A-Za-z0-9+/]{{42}}[AEIMQUYcgkosw048]="),
    "PuTTY-User-Key-File-": re.compile(rf"{_WORD_STARTS}Private-Lines: \d"),
    "untrusted comment:": re.compile(r"untrusted comment: [^\n]{0,60}secret key[^\n]{0,80}\n\W{0,12}[A-Za-z0-9+/]{40}"),
    "kty": re.compile(r"[\"']d\\{0,3}[\"']\s*:\s*\\{0,3}[\"'][A-Za-z0-9_+/-]{40}"),
    "NKEY SEED": re.compile(rf"{_WORD_STARTS}S[ACNOUX][A-Z2-7]{{50}}"),
    "<RSAKeyValue>": re.compile(r"<D>\s*[A-Za-z0-9+/]{40}"),
}
"""Private keys in other formats, by a text that occurs with each: base64 of PEM, WireGuard, JWK, and so on."""
KEY_BLOCK = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?"
    r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
_LONE_TOKEN = re.compile(r"\s*[A-Za-z0-9+/_-]{20,}={0,2}\s*")
_ALLOWED = ("gitleaks:allow", "pragma: allowlist secret")
"""Comments that secret scanners accept as the author's assurance that a file contains no secrets."""


def contains_private_key(path: str, text: str) -> bool:
    """Return whether a file is or contains a private key, and has no comment that allows it.

    A file named ``*.key`` also qualifies if it is a single long word; other ``.key`` files are often translations.
    """
    found = (
        _BEGINS_KEY.match(text)
        or (KEY_MARK in text and any(_is_followed_by_key(text, at.end()) for at in _first(_BEGINS, text)))
        or any(mark in text and any(map(_is_key, _first(pattern, text))) for mark, pattern in _OTHER_KEYS.items())
        or (path.lower().endswith(".key") and _LONE_TOKEN.fullmatch(text))
    )
    return bool(found) and not is_allowed(text)


def _first(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    return islice(pattern.finditer(text), _MAX_BEGINS)


def _is_followed_by_key(text: str, start: int) -> bool:
    """Return whether a key follows the line ``BEGIN`` that ends at ``start``.

    Quotes, comment signs, line numbers and markup may be in between, but no other block.
    """
    key = _KEY.match(text, start, start + _KEY_CHARS)
    if key is not None and not _looks_like_words(key["line"]):
        return True
    part, dashes, _ = text[start : start + _DECORATED_CHARS].partition("-----")
    lines = [line for line in _KEY_LINE.findall(_DECORATION.sub("\n", part)) if _is_mixed(line)]
    return (
        any(len(line) >= _KEY_LINE_CHARS for line in lines)
        or len(lines) > 1
        or bool(lines and dashes and text.startswith("END", start + len(part) + len(dashes)))
    )


def _is_mixed(line: str) -> bool:
    """Return whether a line has digits, capital and small letters, but no words."""
    kinds = any(map(str.isdigit, line)) and any(map(str.isupper, line)) and any(map(str.islower, line))
    return kinds and not _looks_like_words(line)


def _looks_like_words(line: str) -> bool:
    """Return whether most of a line is words, as in a path or an identifier, so it is not base64."""
    return sum(map(len, _IN_WORDS.findall(line))) >= _MAX_IN_WORDS * len(line)


def _is_key(match: re.Match[str]) -> bool:
    """Return whether a match is of a private key; a match of base64 may be of any PEM block."""
    if match[0] != _BASE64_MARK:
        return True
    data = re.sub(r"\\[nr]|[^A-Za-z0-9+/]", "", match[0] + match[1])
    return b"PRIVATE KEY" in base64.b64decode(data[:64])


def is_allowed(text: str) -> bool:
    """Return whether a comment allows what looks like a credential in ``text``."""
    return any(word in text for word in _ALLOWED)

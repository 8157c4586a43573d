"""Find where a text breaks a token over lines, and read it as if it did not.

A token is broken at the end of a line, after a backslash or the ``=`` of quoted-printable, between string literals, at
an escaped end of a line, or at a tag such as ``<wbr>``. Indentation and the signs of comments and quotations in the
next line are not part of the token.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

_IN_TOKENS = r"[\w+/.~%:=@$-]"
_LINE_END = r"(?:\r?\n|\r)[ \t]*(?:(?:[#*;>|]|//|--)[ \t]*)*"
_BREAK = re.compile(
    rf"(?:(?<=\S)[ \t]*(?P<sign>\\){_LINE_END}(?=\S)"
    rf"|(?<={_IN_TOKENS})(?:(?P<quote>[\"'`])[ \t]*[+.&]?)?(?:(?P<soft>(?<=\w)=(?=\r?\n))|[ \t]*[>|][+-]?)?[ \t]*"
    rf"(?:{_LINE_END}|(?:\\{{1,8}}r)?\\{{1,8}}n[ \t]*|<w?br ?/?>)"
    rf"(?(quote)(?:[+.&][ \t]*)?[A-Za-z]{{0,2}}(?P=quote))(?={_IN_TOKENS}|[\"']))"
)
_REST = r"[\"'`]?[A-Za-z_/+-]{{0,11}}[0-9][A-Za-z0-9_/+.=-]{{{},}}".format
_SIGNED = r"[A-Za-z0-9_-](?:\\|=)\r?(?:\n|$)"
_INLINE = rf"[A-Za-z0-9_-](?:\\n|<w?br ?/?>){_REST(8)}"
_ALONE = rf"[ \t#*;>|/.+&-]*[A-Za-z]{{0,2}}(?:{_REST(8)}[\"'`,;)\]}}\\]{{0,4}}[ \t]*(?:[\r\n]|$)|{_REST(15)})"
MAY_BE_BROKEN = rf"{_SIGNED}|{_INLINE}|[A-Za-z0-9_-][\"'`]?[ \t+.&]*(?:\r?\n|\r){_ALONE}"
"""(RE2) Where a token may be broken so that no line has its beginning: at a sign, or before a line that is its rest."""
MAY_BE_PART = rf"{_SIGNED}|{_INLINE}|^{_ALONE}"
"""(RE2) What ``MAY_BE_BROKEN`` matches, in one of its lines."""
_ENDS_LINE = re.compile(r"[\"'`\\,;)\]}]*[ \t]*(?:\r?\n|\\|<|$)")
_RANDOM = 8
"""Characters of a part of a token that has digits, capital and small letters."""
_LEAST_WIDTH = 16
"""Characters of the lines of a block, whose last line may be shorter."""
_LONE = re.compile(r"\W*\S{8,}\W*")
MAX_LINES = 30
BEGINNING = 4
"""Lines that what announces a credential may have, such as a command with its options."""
MAX_CHARS = 2_000
"""No credential is looked for in more characters on either side of a break."""


def with_broken(lines: Sequence[str], start: int, end: int) -> tuple[int, int]:
    """Return where a part of a document starts and ends with the lines that a credential in it may be broken over."""
    start = min(start, len(lines))
    first, last = max(start - BEGINNING, 0), min(end + 2, len(lines))
    while start - MAX_LINES < first > 0 and _LONE.fullmatch(lines[first]):
        first -= 1
    while last < min(end + MAX_LINES, len(lines)) and _LONE.fullmatch(lines[last - 1]):
        last += 1
    return first, last


@dataclass(frozen=True, slots=True)
class Joined:
    """Parts of ``text``, joined as ``plain``: each begins at an offset in ``at``, and in the text at one in ``starts``.

    ``is_signed`` tells whether the text says that the lines belong together.
    """

    text: str
    plain: str
    at: tuple[int, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    glue: str
    is_signed: bool

    def lines(self) -> str:
        """Return the lines as they are."""
        return self.text[self.starts[0] : self.ends[-1]]

    def origin(self, at: int) -> int:
        """Return the offset in the text of the character at ``at``."""
        number = bisect_right(self.at, at) - 1
        return self.starts[number] + at - self.at[number]

    def parts(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the places in the text of what lies between two offsets, by line."""
        first, last = bisect_right(self.at, start) - 1, bisect_left(self.at, end)
        for number in range(first, last):
            yield (
                self.origin(start) if number == first else self.starts[number],
                self.origin(end - 1) + 1 if number == last - 1 else self.ends[number],
            )

    def continues_until(self, end: int) -> bool:
        """Return whether the last line, up to ``end``, is likely to continue a token that might have ended before."""
        last = self.plain[self.at[-1] : end]
        kinds = [any(map(kind, last)) for kind in (str.isdigit, str.isupper, str.islower)]
        is_alone = _ENDS_LINE.match(self.text, self.origin(end - 1) + 1) is not None
        widths = [after - before for before, after in pairwise(self.at[1:])]
        is_block = len(widths) > 1 and min(widths) == max(widths) >= max(_LEAST_WIDTH, len(last))
        return (len(last) >= _RANDOM and all(kinds)) or (is_alone and (is_block or (kinds[0] and any(kinds[1:]))))


@dataclass(frozen=True, slots=True)
class BrokenLines:
    """A text, and the places in it where a token may be broken."""

    text: str
    breaks: tuple[re.Match[str], ...]

    @classmethod
    def of(cls, text: str) -> BrokenLines:
        """Find the places in ``text``."""
        return cls(text, tuple(_BREAK.finditer(text)))

    def before(self, lines: Sequence[int]) -> Iterator[int]:
        """Yield the numbers of the breaks in, or a few lines before, one of ``lines``, which are sorted."""
        line = end = 0
        for number, each in enumerate(self.breaks):
            line += self.text.count("\n", end, each.start())
            end = each.start()
            following = bisect_left(lines, line)
            if following < len(lines) and lines[following] < line + BEGINNING:
                yield number

    def first_lines(self, number: int) -> str:
        """Return the line before a break and the next ones, joined, as far as a credential may begin in them."""
        *_, joined = islice(self.joined(number, ""), BEGINNING - 1)
        return joined.plain

    def joined(self, number: int, glue: str) -> Iterator[Joined]:
        """Yield the line before a break joined with the next one, then with the next two, and so on."""
        before = self.breaks[number]
        least = max(before.start() - MAX_CHARS, self.breaks[number - 1].end() if number else 0)
        begin = max(self.text.rfind("\n", least, before.start()) + 1, least)
        plain, at, starts, ends, is_signed = self.text[begin : before.start()], [0], [begin], [before.start()], True
        for follows in range(number, min(number + MAX_LINES, len(self.breaks))):
            start = self.breaks[follows].end()
            if follows > number and "\n" in self.text[self.breaks[follows - 1].end() : self.breaks[follows].start()]:
                return
            end = broken = min(self.text.find("\n", start, start + MAX_CHARS) % (len(self.text) + 1), start + MAX_CHARS)
            if follows + 1 < len(self.breaks) and (after := self.breaks[follows + 1]).start() < end:
                broken = after.start()
                end = end if "\n" in after[0] else broken
            is_signed &= any(self.breaks[follows].groups())
            plain += glue
            at.append(len(plain))
            starts.append(start)
            ends.append(broken)
            last = self.text[start:end].rstrip("\r")
            yield Joined(self.text, plain + last, tuple(at), tuple(starts), tuple(ends), glue, is_signed)
            plain += last[: broken - start]

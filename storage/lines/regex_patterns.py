"""Match exact-search patterns: RE2 expressions, which Arrow evaluates in linear time (decision 0019).

A pattern matches within one line, unless it is ``multiline``. Whole packs are tested first, ten times as fast as line
by line. A pack is not even read if its grams prove that it lacks a literal that every match contains (packs.py).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.errors import UsageError
from driftline.storage.globs import is_unicode

ONE_LINE = "A pattern matches within one line, unless `multiline` is set."
MAX_PATTERN_CHARACTERS = 4_000
MAX_PATTERN_SIZE = 8_000
"""Approximate maximum number of states: once RE2's cache is full, its run time grows with states times text length."""
MAX_SPANS = 1_000
"""Maximum number of matches returned per line."""
GRAM_BYTES = 3
_MAX_ALTERNATIVES = 200
_CIRCLED = r"\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}"
_WORD = rf"\pL\pM\p{{Nd}}\p{{Nl}}\p{{Pc}}\x{{200C}}\x{{200D}}{_CIRCLED}"
"""The characters of words according to Unicode (UTS 18), as in other engines: also joiners and circled letters."""
_MARKS = ("\ufdd0\ufdd1", "\ufdd2\ufdd3", "\ufdd4\ufdd5", "\ufdd6\ufdd7")
"""Pairs of noncharacters; a pair marks matches in a line that contains neither of its characters."""
_REPEAT = re.compile(r"\{(\d+)(,?)(\d*)\}")
_FLAGS = re.compile(r"\?(?P<flags>[a-zA-Z]*-?[a-zA-Z]*)(?P<end>[:)])")
_HEXADECIMAL = re.compile(r"x(?:\{([0-9A-Fa-f]+)\}|([0-9A-Fa-f]{2}))")
_ESCAPE_OF_OTHERS = re.compile(r"\\u\{?([0-9A-Fa-f]{4,6})\}?")
_CONTROLS = {"t": "\t", "f": "\f", "r": "\r", "v": "\v", "a": "\a", "n": "\n"}
_RE2_ERROR = re.compile(r"Invalid regular expression: (?P<why>.*?)(?:: (?P<part>.*))?\Z", re.DOTALL)

_QUOTE = re.compile(r"\\Q(?P<inside>.*?)(?:\\E|\Z)|\\.", re.DOTALL)

Clause = frozenset[bytes]
"""Literals, in lowercase if the pattern ignores case; a matching text contains at least one of them."""


@dataclass(frozen=True)
class Pattern:
    """A valid pattern. ``text`` is the input, and ``expression`` is the equivalent for RE2, without flags.

    With ``words``, a match has no letter, mark, digit, connector or joiner directly before or after it.
    """

    text: str
    expression: str
    ignore_case: bool
    words: bool = False
    required: tuple[Clause, ...] = field(default=(), compare=False)
    in_lines_only: bool = field(default=False, compare=False)
    """Whether the pattern distinguishes the start of a line from the start of the text, so packs cannot be tested
    whole.
    """
    multiline: bool = False
    """Whether a match may contain line breaks; ``.`` still matches none."""
    is_literal: bool = field(default=False, compare=False)

    @classmethod
    def of(
        cls,
        text: str,
        *,
        literal: bool = False,
        ignore_case: bool | None = None,
        words: bool = False,
        multiline: bool = False,
    ) -> Self:
        """Build a pattern from a regular expression, or from ``literal`` text.

        If ``ignore_case`` is None, matching is case-sensitive if ``text`` has a capital letter.

        Raises UsageError; the message includes the position in the pattern.

        Examples:
            >>> Pattern.of("csrf_[a-z]+").ignore_case
            True
            >>> Pattern.of("a.b", literal=True).expression
            'a\\\\.b'
        """
        if not text:
            raise UsageError("Empty pattern", fix="Use literal text or a regular expression.")
        if not is_unicode(text):
            raise UsageError("The pattern is not UTF-8", repr(text)[:100], "Check the encoding of the terminal.")
        if len(text) > MAX_PATTERN_CHARACTERS:
            what = f"The pattern has {len(text):,} characters (at most {MAX_PATTERN_CHARACTERS:,} are allowed)"
            raise UsageError(what, f"{text[:40]}…", "Search for a shorter one, or for its parts.")
        if "\r" in text or ("\n" in text and not multiline):
            raise UsageError("The pattern has a line break", repr(text)[:100], ONE_LINE)
        if multiline and words:
            fix = "Put \\b around each whole word in the expression."
            raise UsageError("Whole-word matching does not support multiline patterns", text[:100], fix)
        if not literal:
            _check(text)
        expression = quoted(text) if literal else _QUOTE.sub(_unquoted, text)
        read = _LiteralReader(expression, text, multiline=multiline).read()
        for at in reversed(read.unnamed):  # only named groups report the positions of matches
            expression = f"{expression[: at + 1]}?:{expression[at + 1 :]}"
        if ignore_case is None:
            ignore_case = not read.has_capital
        if ignore_case:
            read = _LiteralReader(expression, text, ignores_case=True, multiline=multiline).read()
        return cls(text, expression, ignore_case, words, tuple(read.clauses), read.in_lines_only, multiline, literal)

    @cached_property
    def _of_line(self) -> str:
        return f"(?{'i' if self.ignore_case else ''}m)" + (
            rf"(?:^|[^{_WORD}])(?:{self.expression})(?:$|[^{_WORD}])" if self.words else self.expression
        )

    def matches(self, texts: pa.StringArray) -> pa.BooleanArray:
        """Return an ``(n,)`` mask of lines that match, or of multi-line texts that may contain a matching line."""
        return pc.match_substring_regex(texts, self._of_line)

    def lines_in(self, text: str) -> list[int]:
        """Return the lines of a multi-line text that matches touch, counted from 0, in order."""
        ends = list(accumulate(len(line) + 1 for line in text.split("\n")))
        (spans,) = self._spans(pa.array([text], pa.string()), most=len(text) + 1, empty=True)
        touched = (
            range(bisect_right(ends, start), bisect_right(ends, max(start, end - 1)) + 1) for start, end in spans
        )
        return sorted({line for lines in touched for line in lines} | self._lines_after(text, ends, spans))

    def _lines_after(self, text: str, ends: Sequence[int], spans: Sequence[tuple[int, int]]) -> set[int]:
        """Return the lines that begin with an empty match directly after another match, which RE2 omits."""
        lines = [bisect_right(ends, end) for start, end in spans if start < end < len(text) and text[end - 1] == "\n"]
        starts = pa.array([text[ends[line - 1] : ends[line] + 1] for line in lines], pa.string())
        is_match = pc.match_substring_regex(starts, rf"(?{'i' if self.ignore_case else ''}m)\A(?:{self.expression})")
        return {line for line, found in zip(lines, is_match.to_pylist(), strict=True) if found}

    def spans(self, lines: pa.StringArray) -> list[list[tuple[int, int]]]:
        """Return the non-empty matches in each of ``lines`` from left to right, as ``(start, end)`` in characters."""
        return self._spans_of_words(lines) if self.words else self._spans(lines)

    def _spans(
        self, lines: pa.StringArray, most: int = MAX_SPANS, *, empty: bool = False
    ) -> list[list[tuple[int, int]]]:
        texts = lines.to_pylist()
        marks = next((pair for pair in _MARKS if not any(pair[0] in each or pair[1] in each for each in texts)), None)
        if marks is None:  # every marker pair occurs somewhere, but rarely all of them in the same line
            return [self._spans(pa.array([text.translate(_UNMARKED)]), most, empty=empty)[0] for text in texts]
        begin, end = marks[0], marks[1]
        found: list[list[tuple[int, int]]] = []
        replaced = pc.replace_substring_regex(lines, self._of_line, f"{begin}\\0{end}").cast(pa.binary())
        inside = re.compile(marks.encode() + rb"(?=[\x80-\xbf])")  # RE2 also matches \B inside a character
        for marked in (inside.sub(b"", each).decode() for each in replaced.to_pylist()):
            at, of_line = 0, list[tuple[int, int]]()
            before, *others = marked.split(begin)
            at = len(before)
            for part in others:
                match, _, rest = part.partition(end)
                if (match or empty) and len(of_line) < most:
                    of_line.append((at, at + len(match)))
                at += len(match) + len(rest)
            found.append(of_line)
        return found

    def _spans_of_words(self, lines: pa.StringArray) -> list[list[tuple[int, int]]]:
        """Return the spans of whole-word matches in each line.

        Matches are found one at a time, because two adjacent words may share a separator.
        """
        texts = [line.encode() for line in lines.to_pylist()]
        found: list[list[tuple[int, int]]] = [[] for _ in texts]
        flags, end_of_word = f"(?{'i' if self.ignore_case else ''}m)", rf"(?:$|[^{_WORD}])"
        match = f"(?P<driftline_match>{self.expression}){end_of_word}"
        first, later = rf"{flags}(?:^|[^{_WORD}]){match}", rf"{flags}[^{_WORD}]{match}"
        starts = dict.fromkeys(range(len(texts)), 0)
        for round_ in range(MAX_SPANS):
            rests = pa.array([texts[at][start:].decode() for at, start in starts.items()], pa.string())
            spans = pc.extract_regex_span(rests, later if round_ else first)
            captures = zip([*starts.items()], spans.is_valid().to_pylist(), spans.field(0).to_pylist(), strict=True)
            starts = {}
            for (number, origin), is_match, (offset, length) in captures:
                if not is_match:
                    continue
                start, end = origin + offset, origin + offset + length
                if length:
                    found[number].append((start, end))
                if end < len(texts[number]):
                    # the next search also tests the character before it
                    starts[number] = _last_character(texts[number], start, end)
            if not starts:
                break
        return [_in_characters(text, of_line) for text, of_line in zip(texts, found, strict=True)]


def _last_character(text: bytes, start: int, end: int) -> int:
    """Return where the last UTF-8 character from ``start`` to ``end`` starts, or ``start`` if the range is empty."""
    at = max(start, end - 1)
    while at > start and text[at] & 0xC0 == 0x80:
        at -= 1
    return at


_UNMARKED = dict.fromkeys(map(ord, "".join(_MARKS)), "\ufffd")


def _in_characters(text: bytes, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Convert ``spans`` from UTF-8 bytes to characters."""
    if text.isascii():
        return list(spans)
    ends = list(accumulate((byte & 0xC0 != 0x80 for byte in text), initial=0))
    return [(ends[start], ends[end]) for start, end in spans]


def quoted(text: str) -> str:
    """Return an expression that matches exactly ``text``."""
    return "".join(
        "\\x00" if each == "\0" else f"\\{each}" if each.isascii() and not (each.isalnum() or each == "_") else each
        for each in text
    )


def _unquoted(match: re.Match[str]) -> str:
    return match[0] if match["inside"] is None else quoted(match["inside"])


def folded(data: bytes) -> bytes:
    """Fold UTF-8 for grams: lowercase ASCII, and the two other characters that equal an ASCII letter
    case-insensitively.
    """
    data = data.lower()
    return data if data.isascii() else data.replace(b"\xc5\xbf", b"s").replace(b"\xe2\x84\xaa", b"k")


def _check(text: str) -> None:
    """Raise UsageError if RE2 rejects ``text``; the message includes the position."""
    try:
        pc.match_substring_regex(pa.array([""]), text)
    except pa.ArrowInvalid as error:
        parsed = _RE2_ERROR.search(str(error))
        why, part = (parsed["why"], parsed["part"] or "") if parsed else (str(error), "")
        if "too large" in str(error):
            raise _too_large(text) from error
        at = _unbalanced(text) if why.startswith(("missing", "unexpected")) else text.find(part) if part else -1
        raise wrong(why, text, max(at, 0)) from error


def wrong(why: str, text: str, at: int) -> UsageError:
    """Return the error for the character at index ``at`` of a pattern."""
    shown = text if len(text) <= 80 else f"…{text[max(0, at - 30) : at + 30]}…"
    fix = "The syntax is RE2's; `fixed` searches for literal text."
    if escape := _ESCAPE_OF_OTHERS.match(text, at):
        fix = rf"Write \x{{{escape[1]}}}."
    return UsageError(f"Invalid pattern at character {at + 1} ({why})", shown, fix)


def _too_large(text: str) -> UsageError:
    return UsageError("The pattern is too complex", text[:80], "Repeat less, or search for its parts.")


def _unbalanced(text: str) -> int:
    """Return the position of the unbalanced parenthesis or bracket, or -1."""
    opened: list[int] = []
    at = 0
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == "[":
            end = _end_of_class(text, at)
            if end is None:
                return at
            at = end - 1
        elif text[at] == "(":
            opened.append(at)
        elif text[at] == ")":
            if not opened:
                return at
            opened.pop()
        at += 1
    return opened[-1] if opened else -1


def _end_of_class(text: str, at: int) -> int | None:
    """Return the position after the character class that starts at ``at``, or None if it is unterminated."""
    at += 2 if text.startswith("[^", at) else 1
    first = True
    while at < len(text):
        if text[at] == "]" and not first:
            return at + 1
        if text[at] == "\\":
            at += 1
        elif text.startswith("[:", at) and (end := text.find(":]", at)) > 0:
            at = end + 1
        at, first = at + 1, False
    return None


@dataclass(slots=True)
class _Group:
    """An open group: the clauses of its finished branches and of the open branch, and the literal collected so far."""

    branches: list[list[Clause]] = field(default_factory=list)
    clauses: list[Clause] = field(default_factory=list)
    run: bytearray = field(default_factory=bytearray)
    size: int = 0

    def flush(self) -> None:
        if len(self.run) >= GRAM_BYTES:
            self.clauses.append(frozenset((bytes(self.run),)))
        self.run.clear()

    def end_branch(self) -> None:
        self.flush()
        self.branches.append(self.clauses)
        self.clauses = []

    def ended(self) -> list[Clause]:
        """Return the whole group's clauses; several branches yield one clause, with literals from each branch."""
        self.end_branch()
        if len(self.branches) == 1:
            return self.branches[0]
        if not all(self.branches):
            return []
        best = [max(branch, key=lambda clause: min(map(len, clause))) for branch in self.branches]
        alternatives = frozenset().union(*best)
        return [alternatives] if len(alternatives) <= _MAX_ALTERNATIVES else []


@dataclass(slots=True)
class _LiteralReader:
    """Reads the literals that every match of an expression contains. If in doubt, it omits a literal."""

    expression: str
    text: str
    ignores_case: bool = False
    multiline: bool = False
    at: int = 0
    groups: list[_Group] = field(default_factory=lambda: [_Group()])
    clauses: list[Clause] = field(default_factory=list)
    has_capital: bool = False
    in_lines_only: bool = False
    unnamed: list[int] = field(default_factory=list)

    def read(self) -> Self:
        """Read an expression that RE2 accepts. Raises UsageError for line breaks, bytes, or excessive size."""
        while self.at < len(self.expression):
            self._step(self.expression[self.at])
        while len(self.groups) > 1:
            self._close()
        self.clauses = self.groups[0].ended()
        if self.groups[0].size > MAX_PATTERN_SIZE:
            raise _too_large(self.text)
        return self

    def _step(self, character: str) -> None:
        group = self.groups[-1]
        if character == "\\":
            self._escape()
        elif character == "[":
            end = _end_of_class(self.expression, self.at) or len(self.expression)
            inside = self.expression[self.at : end]
            self.has_capital |= any(each.isupper() for each in re.sub(r"\\p\{[^}]*\}|\\.|\[:\w+:\]", "", inside))
            self.at = end
            self._opaque(100 if "\\p" in inside.lower() else 10)
        elif character == "(":
            self._open()
        elif character == ")":
            self.at += 1
            self._close()
        elif character == "|":
            self.at += 1
            group.end_branch()
        elif character in "^$":
            self.at += 1
            self._repeat()
        elif character == ".":
            self.at += 1
            self._opaque(5)
        else:
            self.at += 1
            self._literal(character)

    def _open(self) -> None:
        flags = _FLAGS.match(self.expression, self.at + 1)
        if flags:
            on, _, off = flags["flags"].partition("-")
            self.groups[-1].flush()  # a literal is entirely folded, or not at all
            self.ignores_case |= "i" in on
            self.in_lines_only |= "m" in off
            self.at = flags.end()
            if flags["end"] == ")":
                return
        elif self.expression.startswith("(?", self.at):
            self.at = self.expression.find(">", self.at) + 1  # a named group
        else:
            self.unnamed.append(self.at)
            self.at += 1
        self.groups.append(_Group())

    def _close(self) -> None:
        if len(self.groups) == 1:
            return
        closed = self.groups.pop()
        clauses, group = closed.ended(), self.groups[-1]
        least, most = self._repeat()
        group.flush()
        if least:
            group.clauses += clauses
        group.size += closed.size * most

    def _opaque(self, size: int) -> None:
        _, most = self._repeat()
        self.groups[-1].flush()
        self.groups[-1].size += size * most

    def _literal(self, character: str) -> None:
        if character == "\r" or (character == "\n" and not self.multiline):
            raise UsageError("The pattern has a line break", self.text[:100], ONE_LINE)
        self.has_capital |= character.isupper()
        group = self.groups[-1]
        repeated = self.at < len(self.expression) and self.expression[self.at] in "*+?{"
        least, most = self._repeat() if repeated else (1, 1)
        group.size += most
        if not least or (self.ignores_case and not character.isascii()) or character == "\n":
            group.flush()  # a line break may fall between two packs
            return
        group.run += (character.lower() if self.ignores_case else character).encode()
        if (least, most) != (1, 1):
            group.flush()

    def _repeat(self) -> tuple[int, int]:
        """Read repetitions. Return their minimum, capped at 1, and the number of copies that RE2 makes."""
        least, most = 1, 1
        while self.at < len(self.expression):
            character = self.expression[self.at]
            counted = _REPEAT.match(self.expression, self.at) if character == "{" else None
            if character in "*?":
                least, self.at = 0, self.at + 1
            elif character == "+":
                self.at, most = self.at + 1, most + 1
            elif counted:
                least *= min(1, int(counted[1]))
                most *= max(1, int(counted[3] or counted[1]))
                self.at = counted.end()
                most += not counted[3]
            else:
                break
        return least, most

    def _escape(self) -> None:
        character = self.expression[self.at + 1 : self.at + 2]
        number = _HEXADECIMAL.match(self.expression, self.at + 1)
        if character == "C":
            raise wrong("\\C is a byte, not a character", self.text, self.at)
        if character in "pP":
            braced = self.expression[self.at + 2 : self.at + 3] == "{"
            self.at = self.expression.find("}", self.at) + 1 if braced else self.at + 3
            self._opaque(100)
        elif character in "dDwWsS":
            self.at += 2
            self._opaque(10 if character.isupper() else 5)
        elif character in "bBAz":
            self.in_lines_only |= character in "Az"
            self.at += 2
            self._repeat()
        elif number:
            code = int(number[1] or number[2], 16)
            if 0xD800 <= code <= 0xDFFF:
                raise wrong("a surrogate is not a character", self.text, self.at)
            self.at = number.end()
            self._literal(chr(code))
        elif character.isdigit():
            self.at += 2
            while self.at < len(self.expression) and self.expression[self.at] in "01234567":
                self.at += 1
            self._opaque(1)
        elif character in _CONTROLS:
            self.at += 2
            self._literal(_CONTROLS[character])
        else:
            self.at += 2
            self._literal(character)

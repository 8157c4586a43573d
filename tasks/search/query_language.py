"""Parse and classify queries: exact terms, filters, and words that rank (DESIGN, "Search").

    "exact phrase" /regex/ def:Name uses:Name sym:Name lang:go
    file:src/**/*.ts -file:test repo:web branch:x case:yes words

The case of a field's name does not matter, if it has two letters or more. Everything else is a word, such as
``std::vector``, ``https://a.b/c``, ``/usr/bin`` and ``"a",``. The words are classified: names, a stack trace, keywords,
a question or a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache
from string import punctuation
from typing import Any, Literal, NoReturn

import pyarrow as pa

from driftline.storage.entities import Boundary, Entity
from driftline.storage.errors import UsageError
from driftline.storage.globs import check_glob, is_unicode
from driftline.storage.lines.line_filter import LineFilter
from driftline.storage.lines.regex_patterns import Pattern, quoted
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.filters import files_containing, relative_to_sources
from driftline.tasks.search.request import SearchRequest, extensions_of

FIELDS = {
    "def": "Definitions of this name.",
    "uses": "The name as a whole word, except where it is defined.",
    "sym": "Only inside definitions of this name.",
    "lang": "Only in files of this language.",
    "file": "Only in files whose path matches a glob or contains the text.",
    "repo": "Only in sources whose name contains the text.",
    "branch": "The sources as of this branch.",
    "case": "Case sensitivity: yes, no, or auto: only for terms with a capital letter.",
}
"""The fields of the query language."""
_NEGATED = frozenset(("lang", "file", "repo"))
_ALIASES = {"path": "file", "filename": "file", "f": "file", "language": "lang", "l": "lang"}
_ALIASES |= {"repository": "repo", "r": "repo", "b": "branch", "symbol": "def"}
"""Names of these fields in the code search of GitHub, Sourcegraph and Zoekt."""
_EXTENSIONS = ("ext", "extension")
"""``ext:py`` is ``file:*.py``."""
_NO_FILTER = "There is no such filter here."
_UNSUPPORTED = {
    "type": "Use the option `kinds`.",
    "select": "Use the option `files` or `facets`.",
    "content": "Put exact text in quotes.",
    "rev": "Use branch:name.",
    "revision": "Use branch:name.",
    "org": "Use repo:name.",
    "user": "Use repo:name.",
    "context": "Use repo:name.",
    "count": "Use the option `top_k`.",
    "patterntype": "Put a regular expression in slashes.",
    **dict.fromkeys(("is", "fork", "archived", "visibility", "author", "committer"), _NO_FILTER),
}
"""Fields of other code searches, and what replaces them here."""
_OPERATORS = {
    "AND": "A file must contain all exact terms: leave it out.",
    "OR": "Write alternatives as /one|two/, or as words, which rank.",
    "NOT": 'Leave out the files that contain a text with -"text".',
}
"""Uppercase operators of other code search engines, and their replacements here."""
MAX_NEIGHBOUR_CHARACTERS = 200
"""Where to look for the words beside an operator."""
CASES = {"yes": False, "no": True, "auto": None}
_NOT = r"(?:-|NOT\s+)"
_FIELD = re.compile(
    rf"(?P<not>{_NOT}?)(?P<name>[A-Za-z]+):(?P<value>(?!:|//)\"(?:[^\"\\]|\\.)*\"|(?!:|//)\S*)(?=\s|\Z)"
)
_PHRASE = re.compile(rf'(?P<not>{_NOT}?)"(?P<text>(?:[^"\\]|\\.)*)"(?=\s|\Z)')
_REGEX = re.compile(rf"(?P<not>{_NOT}?)/(?!\s)(?P<text>(?:[^/\\]|\\.|/(?!\s|\Z))+)(?<!\s)/(?=\s|\Z)")
"""A regular expression neither begins nor ends with a blank: ``read / write / execute`` is three words."""
_REGEX_WITH_FLAGS = re.compile(
    rf"(?P<not>{_NOT}?)/(?!\s|[\w-]+/[gim]*[suxy])(?P<text>(?:[^/\\]|\\.)+)(?<!\s)/(?P<flags>[gimsuxy]{{1,3}})(?=\s|\Z)"
)
"""With flags, it contains no slash, or paths like /usr/lib/x would be expressions. After a single name, only the usual
flags g, i and m count, or /src/gui and /tmp/x would be.
"""
_SUPPORTED_FLAGS = frozenset("gimuy")
"""Only i changes anything: every match counts, text is Unicode, and ^ and $ are the ends of lines."""
_TYPOGRAPHIC = re.compile(rf"(?P<not>{_NOT}?)[“„”](?P<text>[^“„”]+)[“”](?=\s|\Z)")
"""A phrase in the quotation marks of word processors."""
_WORD = re.compile(r"\S+")
_UNCLOSED = "The quotation mark is not closed", 'Close it with ", or omit it.'
_OPEN = re.compile(rf'{_NOT}?"')
_QUOTED_VALUE = re.compile(r'"(?:[^"\\]|\\.)*"')
_NAMES = frozenset(("def", "uses", "sym"))
_CALL = re.compile(r"(?<!operator)\(\)\Z")
"""``load()`` is a call of ``load``, but ``operator()`` is a name."""
_QUOTED = re.compile(r"[\"\\]")
_ESCAPED = re.compile(r"\\([\"\\])")
_LIKE = 0.8
"""A name at least this similar to a field is treated as a misspelling of it."""


_NAME = re.compile(r"[^\W\d][\w$]*(?:(?:::|->|[.\\#/])[\w$]+)*")
_SPELT_AS_NAME = re.compile(
    r"(?=\w*(?:[a-z0-9][A-Z]|[A-Z]{2}[a-z]{2}|[^\W_]_[^\W_])|_+[^\W_]|[^\W\d]\w*(?:::|->|[.#])\w)" + _NAME.pattern
)
_INNER_UNDERSCORE = re.compile(r"(?<=[^\W_])_(?=[^\W_])")
_NEW_WORD = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_FILE = r"[\w.@~+/\\-]*[\w-]\.[A-Za-z]\w{0,9}"
_PLACE = re.compile(rf"(?<![\w.@~+/\\-])({_FILE})(?:\"?, line |:(?:line )?|\()(\d{{1,9}})(?!\d)")
MAX_PLACES = 20
"""Maximum number of places per query: the frames at the top of a long stack trace."""
QueryForm = Literal["name", "phrase", "question", "usage", "sentence"]
"""The form of a query: one name, keywords, a question, a usage question, or a descriptive sentence."""
_WORDS_OF_SENTENCES = """
a an the this that these those its any each das dem den der ein eine einem einen einer
"""
_WORDS_OF_QUESTIONS = """
how what when where which who why wann warum was welche wer weshalb wie wo
"""
_ARTICLES, _QUESTION_WORDS = frozenset(_WORDS_OF_SENTENCES.split()), frozenset(_WORDS_OF_QUESTIONS.split())
_USAGE = re.compile(
    r"how to\b|(?:(?:how|where|when|what|which)(?: \w+)? )?(?:can|could|do|must|should) (?:i|we|you)\b|can it\b"
    r"|what(?:'s| is| are)\b|what do(?:es)?\b.*\bmean\b|why\b|was (?:ist|sind)\b|warum\b|wieso\b|weshalb\b"
    r"|(?:wie|wo|wann|womit) \w* ?(?:ich|man|wir)\b|(?:kann|muss|soll) (?:ich|man|wir)\b"
    r"|如何|怎[么麼樣样]|什么是|什麼是|为什么|為什麼|どうやって|なぜ|.*とは",
    re.IGNORECASE,
)
"""The start of a question that documentation answers: how to use something, or what it is."""


@dataclass(frozen=True, slots=True)
class ExactTerms:
    """What a document must contain: a match for each pattern, a definition of each name, a use of each name.

    A line matches if it matches one of the patterns, defines one of the names in ``definitions``, or uses one of
    ``uses`` without defining it. With ``inside``, only lines inside definitions of these names match, or all of these
    lines if there is nothing else to match. ``any_case`` ignores the case of names.
    """

    patterns: tuple[Pattern, ...] = ()
    definitions: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    any_case: bool = False

    def __bool__(self) -> bool:
        return bool(self.patterns or self.definitions or self.uses or self.inside)

    def __iter__(self) -> Iterator[str]:
        """Yield the terms as written in a query."""
        for each in self.patterns:
            yield f'"{each.text}"' if each.is_literal else f"/{each.text}/"
        for name, values in (("def", self.definitions), ("uses", self.uses), ("sym", self.inside)):
            yield from (f"{name}:{value}" for value in values)

    @property
    def only_inside(self) -> bool:
        """Whether the terms only restrict the search to lines in definitions."""
        return bool(self.inside) and not (self.patterns or self.definitions or self.uses)

    def spans(self, lines: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Return the matches of all patterns and names in each line: start and end in characters, in order."""
        patterns = [*self.patterns, *(use_of(each, any_case=self.any_case) for each in (*self.uses, *self.definitions))]
        array = pa.array(lines, pa.string())
        of_patterns = [pattern.spans(array) for pattern in patterns] if len(lines) else []
        by_line = zip(*of_patterns, strict=True) if of_patterns else ([] for _ in lines)
        return [sorted({span for found in of_line for span in found}) for of_line in by_line]


def use_of(name: str, *, any_case: bool = False) -> Pattern:
    """Return the whole-word pattern for a name, or for the last part of a qualified name."""
    parts = [part for part in name.replace("::", ".").replace("->", ".").replace("#", ".").split(".") if part]
    return Pattern.of(parts[-1] if parts else name, literal=True, ignore_case=any_case, words=True)


_DECLARING = (
    "abstract alias case const constexpr declare default export extern final given global implicit inline internal "
    "lateinit lazy let local mod mut mutable my open our override private protected public readonly static threadlocal "
    "typealias typedef using val var volatile"
).replace(" ", "|")
"""Words that begin a declaration, in the languages that Driftline parses."""
_ASSIGNED = "=(?:[^=~>]|$)"


def declaration_of(name: str, *, any_case: bool = False) -> Pattern:
    """Return the pattern of lines that declare a constant, a variable, a type's alias or an enum's member.

    These are no definitions of an outline. Assignments count at the start of a line, and for capitalized names.
    """
    own = quoted(name)
    lines = [
        rf"[$@]?{own}\s*(?::[^=:]*)?:?{_ASSIGNED}",
        rf"\s*(?:(?:{_DECLARING}|pub(?:\([^)]*\))?)\s+)+(?:[\w<>\[\],.?|:*&]+\s+)?[*&$@]*{own}(?:\[[^\]]*\])?\s*"
        r"(?:[:=;,({<]|$)",
        rf"\s*#\s*define\s+{own}(?:\W|$)",
        rf"\s*@(?:type|typep|opaque|callback|macrocallback)\s+{own}(?:\W|$)",
        rf"\s*attr_(?:reader|writer|accessor)\s.*:{own}(?:\W|$)",
        rf"\s*alias\s+{own}[\s=?!]",
        rf"\s+{own}\s+=\s+[^=].*,\s*(?://.*)?$",
    ]
    if name[:1].isupper():
        lines.append(rf"\s*{own}\s+(?:[\w.*\[\]]+\s+)?{_ASSIGNED}")
    if name.isupper():
        lines.append(rf"\s*{own}\s*(?:,?\s*(?:$|//|#|/\*)|\([^()]*\)\s*[,;{{])")
    return Pattern.of(f"^(?:{'|'.join(lines)})", ignore_case=any_case)


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A parsed query: ``terms`` filter, ``words`` rank, and the other fields restrict what is searched.

    ``files`` and ``languages`` include documents, ``not_files``, ``not_languages`` and ``excluded`` exclude them.
    """

    text: str
    words: str = ""
    terms: ExactTerms = field(default_factory=ExactTerms)
    excluded: tuple[Pattern, ...] = ()
    files: tuple[str, ...] = ()
    not_files: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    not_languages: tuple[str, ...] = ()
    repos: tuple[str, ...] = ()
    not_repos: tuple[str, ...] = ()
    branch: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the query consists only of words."""
        return self == ParsedQuery(self.text, " ".join(self.text.split()))

    @property
    def is_exact(self) -> bool:
        """Whether the query finds all lines that contain its terms or, with only filters, all files."""
        is_ranked = bool(self.words) and (self.terms.only_inside or not self.terms)
        return not (is_ranked or self.is_plain)

    def conditions(self, workspace: Workspace, within: Boundary | None = None) -> Iterator[LineFilter]:
        """Yield the filters for a search of ``workspace``. Raises UsageError for a repository that is not visible."""
        if self.files:
            yield LineFilter(any_of=tuple(_files(workspace, name, within) for name in self.files))
        if self.languages:
            yield LineFilter(exts=extensions_of(self.languages))
        if self.repos or self.not_repos:
            entities = [entity for entity, _ in workspace.readable_sources(within)]
            if self.repos:
                yield LineFilter(entities=_sources(entities, self.repos))
            if self.not_repos:
                yield LineFilter(not_of=_sources(entities, self.not_repos))
        excluded = [_files(workspace, name, within) for name in self.not_files]
        excluded += [LineFilter(exts=extensions_of((name,))) for name in self.not_languages]
        if excluded:
            yield LineFilter(none_of=tuple(excluded))


def parse_request(request: SearchRequest) -> ParsedQuery:
    """Parse a request's query and the exact terms in its options. Raises UsageError; its message has the position."""
    exact: dict[str, Any] = {"fixed": request.fixed or (), "regex": request.regex or ()}
    exact |= {"ignore_case": request.ignore_case, "whole_words": request.whole_words, "multiline": request.multiline}
    return _parsed(request.query, **exact)


def parse(
    text: str,
    *,
    fixed: Sequence[str] = (),
    regex: Sequence[str] = (),
    ignore_case: bool | None = None,
    whole_words: bool = False,
    multiline: bool = False,
) -> ParsedQuery:
    """Parse a query, and add ``fixed`` strings and ``regex`` patterns to its terms.

    ``ignore_case`` applies unless the query has ``case:``; ``whole_words`` and ``multiline`` apply to all patterns.
    Raises UsageError; the message includes the position.

    Examples:
        >>> parse('retry "max_attempts" lang:go').words
        'retry'
        >>> [pattern.text for pattern in parse('/csrf_[a-z]+/ "a b"').terms.patterns]
        ['csrf_[a-z]+', 'a b']
    """
    if not is_unicode(text):
        raise UsageError("The query is not UTF-8", repr(text)[:100], "Check the terminal's encoding.")
    parser = _Parser(text, ignore_case=ignore_case, whole_words=whole_words, multiline=multiline)
    parsed = parser.parse()
    given = [(each, True) for each in fixed] + [(each, False) for each in regex]
    options: dict[str, Any] = {"ignore_case": parser.ignore_case, "words": whole_words, "multiline": multiline}
    more = tuple(Pattern.of(each, literal=literal, **options) for each, literal in given)
    parsed = replace(parsed, terms=replace(parsed.terms, patterns=(*parsed.terms.patterns, *more)))
    if parsed == ParsedQuery(text) and text.strip():
        raise UsageError("case: needs a search term", text[:200], "Add words, an exact string or a regular expression.")
    return parsed


_parsed = lru_cache(64)(parse)
"""Interfaces parse a query to find its branch before the search does."""


def field_term(name: str, value: str) -> str:
    """Format a field term; the value may contain any characters.

    Examples:
        >>> parse(field_term("def", 'operator "" _km')).terms.definitions
        ('operator "" _km',)
    """
    quoted = _QUOTED.sub(r"\\\g<0>", value)
    return f'{name}:"{quoted}"'


class _Parser:
    def __init__(self, text: str, *, ignore_case: bool | None, whole_words: bool, multiline: bool) -> None:
        self.text = text
        self.ignore_case = ignore_case
        self.options = {"words": whole_words, "multiline": multiline}
        self.at = 0
        self.words: list[str] = []
        self.patterns: list[tuple[int, str, bool]] = []
        self.excluded: list[tuple[int, str, bool]] = []
        self.values: dict[str, list[str]] = {}

    def parse(self) -> ParsedQuery:
        """Read term by term; build the patterns once case sensitivity is known."""
        while self.at < len(self.text):
            if self.text[self.at].isspace():
                self.at += 1
            else:
                self._term()
        cases = [CASES[value] for value in self.values.get("case", [])]
        self.ignore_case = cases[-1] if cases else self.ignore_case
        options: dict[str, Any] = {**self.options, "ignore_case": self.ignore_case}
        patterns, excluded = (
            tuple(self._pattern(*each, **options) for each in given) for given in (self.patterns, self.excluded)
        )

        def of(name: str) -> tuple[str, ...]:
            return tuple(self.values.get(name, ()))

        branches = of("branch")
        names_any_case = cases[-1:] == [True] and any(map(of, ("def", "uses", "sym")))
        return ParsedQuery(
            self.text,
            " ".join(self.words),
            ExactTerms(patterns, of("def"), of("uses"), of("sym"), any_case=names_any_case),
            excluded,
            files=of("file"),
            not_files=of("-file"),
            languages=of("lang"),
            not_languages=of("-lang"),
            repos=of("repo"),
            not_repos=of("-repo"),
            branch=branches[-1] if branches else None,
        )

    def _pattern(self, start: int, text: str, literal: bool, **options: Any) -> Pattern:
        try:
            return Pattern.of(text, literal=literal, **options)
        except UsageError as error:
            what = f"{error.what}, in the term at character {start} of the query"
            raise UsageError(what, error.where, error.fix) from error

    def _term(self) -> None:
        start = self.at
        if phrase := self._take(_PHRASE):
            kept = self.excluded if phrase["not"] else self.patterns
            kept.append((phrase.start("text"), _ESCAPED.sub(r"\1", phrase["text"]), True))
        elif expression := self._take(_REGEX):
            kept = self.excluded if expression["not"] else self.patterns
            kept.append((expression.start("text"), expression["text"].replace("\\/", "/"), False))
        elif flagged := self._take(_REGEX_WITH_FLAGS):
            if unsupported := set(flagged["flags"]) - _SUPPORTED_FLAGS:
                fix = f'Use only the flag i. For the text itself, write "{flagged[0]}".'
                self._fail(start, f"There is no flag {min(unsupported)} of regular expressions", fix)
            kept = self.excluded if flagged["not"] else self.patterns
            flags = "(?i)" if "i" in flagged["flags"] else ""
            kept.append((flagged.start("text"), flags + flagged["text"].replace("\\/", "/"), False))
        elif phrase := self._take(_TYPOGRAPHIC):
            (self.excluded if phrase["not"] else self.patterns).append((phrase.start("text"), phrase["text"], True))
        elif (mark := _OPEN.match(self.text, start)) and '"' not in self.text[mark.end() :]:
            self._fail(mark.end() - 1, *_UNCLOSED)
        elif (found := _FIELD.match(self.text, start)) and self._is_field(start, found):
            self.at = found.end()
            self._field(start, found)
        else:
            word = self._take(_WORD)
            assert word is not None
            if (operator := word[0].strip("()")) in _OPERATORS and self._joins(start, operator):
                fix = f"{_OPERATORS[operator]} For the word itself, write it in lower case."
                self._fail(start, f"There is no operator {operator}", fix)
            self.words.append(word[0])

    def _joins(self, start: int, operator: str) -> bool:
        """Return whether the operator at ``start`` is between other words, unlike in MUST NOT and NOT NULL."""
        near = MAX_NEIGHBOUR_CHARACTERS
        before = self.text[max(start - near, 0) : start].split()[-1:]
        after = self.text[self.at : self.at + near].split()[:1]
        return bool(after and (before or operator == "NOT")) and not any(map(str.isupper, before + after))

    def _take(self, token: re.Pattern[str]) -> re.Match[str] | None:
        found = token.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def _is_field(self, start: int, found: re.Match[str]) -> bool:
        name = _field_name(found)
        if name != found["name"] and not found["value"]:
            return False  # part of a message, such as Path: /usr/bin
        if len(name) == 1 and found["value"].startswith("\\"):
            return False  # a drive, as in f:\\x
        if name in FIELDS or name in _EXTENSIONS or (name in _ALIASES and (len(name) > 1 or found["value"])):
            return True
        if name != found["name"]:
            return False  # part of a message, such as User:alice
        if name in _UNSUPPORTED and found["value"]:
            fix = f'{_UNSUPPORTED[name]} For the text itself, write "{found[0]}".'
            self._fail(start, f"There is no field {name!r}", fix)
        near = get_close_matches(name, FIELDS, 1, _LIKE)
        if near and found["value"]:
            self._fail(start, f"There is no field {name!r}", f"Did you mean {near[0]}:?")
        return False

    def _field(self, start: int, found: re.Match[str]) -> None:
        name, value = _ALIASES.get(_field_name(found), _field_name(found)), found["value"]
        if value[:1] in ("“", "„", "”"):
            self._fail(start, "A value has typographic quotation marks", f'Write {name}:"{value.strip("“„”")}".')
        if value.startswith('"'):
            if not _QUOTED_VALUE.fullmatch(value):
                self._fail(found.start("value"), *_UNCLOSED)
            value = _ESCAPED.sub(r"\1", value[1:-1])
        elif name in _NAMES:
            value = _CALL.sub("", value)
        if name in _EXTENSIONS:
            extensions = [each.strip().lstrip("*").lstrip(".") for each in value.split(",")]
            name, value = "file", _glob_of([*filter(None, extensions)])
        if not value.strip():
            fix = f"{FIELDS[name]} Write it right after the colon."
            self._fail(start, f"The field {found['name']}: is empty", fix)
        if found["not"] and name not in _NEGATED:
            self._fail(start, f"The field {name}: cannot be excluded", "Only -file:, -lang: and -repo: exclude.")
        if name == "case" and value not in CASES:
            self._fail(start, f"case: is not {value!r}", f"Use one of {', '.join(CASES)}.")
        try:
            if name == "lang":
                extensions_of((value,))
            if name == "file":
                check_glob(value)
        except UsageError as error:
            self._fail(start, error.what, error.fix)
        self.values.setdefault(f"-{name}" if found["not"] else name, []).append(value)

    def _fail(self, at: int, what: str, fix: str) -> NoReturn:
        raise UsageError(f"{what} (character {at + 1} of the query)", self.text[:200], fix)


def _field_name(found: re.Match[str]) -> str:
    """Return a field's name in lower case. A single capital is a drive, as in ``F:\\x``."""
    name: str = found["name"]
    return name.lower() if len(name) > 1 else name


def _glob_of(extensions: Sequence[str]) -> str:
    if len(extensions) < 2:
        return "".join(f"*.{each}" for each in extensions)
    return f"*.{{{','.join(extensions)}}}"


_WILDCARD = re.compile(r"[*?\[{]")


def _files(workspace: Workspace, name: str, within: Boundary | None) -> LineFilter:
    """Return a filter for files whose paths match a glob or contain a string."""
    name = name.removeprefix("./") or name
    either = dict.fromkeys((name, name.replace("\\", "/")))  # a path as Windows writes it, or a character of a name
    found = [
        relative_to_sources(workspace, LineFilter(globs=(each,)))
        if _WILDCARD.search(each)
        else files_containing(workspace, each, within)
        for each in either
    ]
    return found[0] if len(found) == 1 else LineFilter(any_of=tuple(found))


def _sources(entities: Iterable[Entity], names: Iterable[str]) -> tuple[Entity, ...]:
    """Return the sources whose names contain one of ``names``. Raises UsageError if no source name contains one."""
    found: dict[Entity, None] = {}
    known = [*entities]
    for name in names:
        of_name = [entity for entity in known if name.lower() in str(entity).rpartition("source:")[2].lower()]
        if not of_name:
            raise UsageError("No source name contains this text", name, "'driftline sources' lists them.")
        found |= dict.fromkeys(of_name)
    return tuple(found)


def names_in(query: str) -> list[str]:
    """Return the definition names in ``query``: its only word, or the words spelled like a name.

    ``getUser``, ``get_user``, ``IReader``, ``Session.get``, ``net::Session`` and ``get_user()`` are names; ``user`` is
    one only on its own.
    """
    words = [word.strip("`'\"()[]{},;:?.!") for word in query.split()]
    if len(words) == 1:
        return words if _NAME.fullmatch(words[0]) else []
    return [word for word in dict.fromkeys(words) if _SPELT_AS_NAME.fullmatch(word)]


def other_spellings(name: str) -> list[str]:
    """Return a name as it is spelled where words are joined otherwise; the case of letters does not matter.

    >>> other_spellings("getUserId"), other_spellings("Cache.max_size"), other_spellings("MAX_SIZE")
    (['get_User_Id'], ['Cache.maxsize'], [])
    """
    spelled = [] if is_constant(name) else [_INNER_UNDERSCORE.sub("", name), _NEW_WORD.sub("_", name)]
    return [each for each in spelled if each != name]


def name_in(query: str) -> str:
    """Return the name that ``query`` consists of, if it is spelled like one, or like a type, otherwise "".

    >>> name_in("Session"), name_in("Session.get"), name_in("session"), name_in("the Session")
    ('Session', 'Session.get', '', '')
    """
    names = names_in(query) if len(query.split()) == 1 else []
    return next((name for name in names if _SPELT_AS_NAME.fullmatch(name) or re.search(r"[A-Z_\d]", name)), "")


def is_constant(name: str) -> bool:
    """Return whether a name is spelled like a constant, a setting or an environment variable: MAX_TRIES."""
    return "_" in name and name.isupper() and name.isidentifier()


_JOINED = r"\w+(?:[-'\u2019]\w+)*|[^\W\d]+[/.][^\W\d]+"
_VERBATIM = re.compile(rf"(?!(?:{_JOINED})\Z)(?!.*[(\[])(?=-|\W*\w\W*\w)(?=.*[{re.escape(punctuation)}])\S*[^\W_]\S*")
"""A word whose punctuation matters, unlike that of ``real-time``, ``16-bit``, ``don't``, ``and/or`` and ``exit(1)``."""
_MARKS = "".join({*punctuation} - {"-", "/"})
"""Punctuation before a word, unlike the start of an option or a path."""
_VERSION_PREFIX = re.compile(r"\A[vV](?=\d)")
MAX_VERBATIM = 20
"""Maximum number of such words per query: a pasted log has thousands."""


def verbatim_in(query: str) -> list[str]:
    """Return the words in ``query`` whose punctuation matters: options, versions, URLs, routes and such.

    >>> verbatim_in("git commit --no-verify"), verbatim_in("what changed in v1.2.3?"), verbatim_in("GET /users/42, 404")
    (['--no-verify'], ['1.2.3'], ['/users/42'])
    >>> verbatim_in("a read-only file and/or folder, [optional]"), verbatim_in("Session.get() or get_user")
    ([], [])
    """
    words = (_VERSION_PREFIX.sub("", word.lstrip(_MARKS).rstrip(punctuation)) for word in query.split())
    found = dict.fromkeys(word for word in words if _VERBATIM.fullmatch(word) and not _SPELT_AS_NAME.fullmatch(word))
    return list(found)[:MAX_VERBATIM]


def places_in(query: str) -> list[tuple[str, int | None]]:
    """Return the files and 1-based lines in a stack trace or message. A query that is only a file name yields no line.

    >>> places_in('File "/srv/app/core/engine.py", line 200, in run'), places_in("src/main.rs:12:5")
    ([('/srv/app/core/engine.py', 200)], [('src/main.rs', 12)])
    >>> places_in("core/engine.py"), places_in("how does engine.py stop")
    ([('core/engine.py', None)], [])
    """
    found: list[tuple[str, int | None]] = [(path, int(line)) for path, line in _PLACE.findall(query)]
    if not found and re.fullmatch(_FILE, query.strip()):
        found = [(query.strip(), None)]
    places = dict.fromkeys((path.replace("\\", "/").removeprefix("./"), line) for path, line in found)
    return list(places)[:MAX_PLACES]


def query_form(query: str) -> QueryForm:
    """Return whether ``query`` is a name, a phrase, a question or a sentence.

    A name is a single word spelled like an identifier: getUser, get_user, Session.get, but not user. Keywords and
    questions name a topic; a sentence with an article, as in a doc comment, describes one specific item. "usage" is a
    question about how to use something, what it is, or why.

    >>> query_form("retry backoff"), query_form("how is the cache flushed"), query_form("Return the path of a lease")
    ('phrase', 'question', 'sentence')
    >>> query_form("how do I flush the cache"), query_form("what is a lease")
    ('usage', 'usage')
    """
    words = re.findall(r"\w+", query.lower())
    if len(query.split()) == 1 and any(map(_SPELT_AS_NAME.fullmatch, names_in(query))):
        return "name"
    if _USAGE.match(query.lstrip()):
        return "usage"
    if query.rstrip().endswith(("?", "\uff1f")) or (len(words) > 1 and words[0] in _QUESTION_WORDS):
        return "question"
    return "phrase" if _ARTICLES.isdisjoint(words) else "sentence"

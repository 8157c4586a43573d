"""Parse the query language of every interface: exact terms, filters, and words that rank (DESIGN, "Search").

    "exact phrase" /regex/ def:Name uses:Name sym:Name lang:go
    file:src/**/*.ts -file:test repo:web branch:x case:yes words

Everything else is a word, such as ``std::vector``, ``https://a.b/c``, ``/usr/bin`` and ``"a",``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, NoReturn

from driftline.storage.entities import Boundary, Entity
from driftline.storage.errors import UsageError
from driftline.storage.globs import check_glob, is_unicode
from driftline.storage.lines.line_filter import LineFilter
from driftline.storage.lines.regex_patterns import Pattern
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.exact import ExactTerms, search_exactly, search_inside, without_matches
from driftline.tasks.search.facets import chosen, with_alternatives, without_chosen
from driftline.tasks.search.request import SearchRequest, extensions_of
from driftline.tasks.search.search import SearchReport, answer

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
    "select": "Use the option `kinds`.",
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
}
"""Operators of other code searches, in capitals, and what replaces them here."""
CASES = {"yes": False, "no": True, "auto": None}
_NOT = r"(?:-|NOT\s+)"
_FIELD = re.compile(rf"(?P<not>{_NOT}?)(?P<name>[a-z]+):(?P<value>(?!:|//)\"(?:[^\"\\]|\\.)*\"|(?!:|//)\S*)(?=\s|\Z)")
_PHRASE = re.compile(rf'(?P<not>{_NOT}?)"(?P<text>(?:[^"\\]|\\.)*)"(?=\s|\Z)')
_REGEX = re.compile(rf"(?P<not>{_NOT}?)/(?!\s)(?P<text>(?:[^/\\]|\\.|/(?!\s|\Z))+)(?<!\s)/(?=\s|\Z)")
"""A regular expression neither begins nor ends with a blank: ``read / write / execute`` is three words."""
_NOT_WORD = re.compile(r"NOT\s+(?P<text>[^\s\"/(-]\S*)")
_WORD = re.compile(r"\S+")
_QUOTED = re.compile(r"[\"\\]")
_ESCAPED = re.compile(r"\\([\"\\])")
_LIKE = 0.8
"""A name at least this similar to a field is treated as a misspelling of it."""


@dataclass(frozen=True, slots=True)
class Question:
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
        """Return whether it consists only of words."""
        return self == Question(self.text, " ".join(self.text.split()))

    @property
    def is_exact(self) -> bool:
        """Return whether it finds all lines that contain its terms or, with only filters, all files."""
        is_ranked = bool(self.words) and (self.terms.only_inside or not self.terms)
        return not (is_ranked or self.is_plain)

    def conditions(self, workspace: Workspace, within: Boundary | None = None) -> Iterator[LineFilter]:
        """Yield the filters for a search of ``workspace``. Raises UsageError for a repository that is not visible."""
        if self.files:
            yield LineFilter(any_of=tuple(map(_files, self.files)))
        if self.languages:
            yield LineFilter(exts=extensions_of(self.languages))
        if self.repos or self.not_repos:
            entities = [entity for entity, _ in workspace.readable_sources(within)]
            if self.repos:
                yield LineFilter(entities=_sources(entities, self.repos))
            if self.not_repos:
                yield LineFilter(not_of=_sources(entities, self.not_repos))
        excluded = [_files(name) for name in self.not_files]
        excluded += [LineFilter(exts=extensions_of((name,))) for name in self.not_languages]
        if excluded:
            yield LineFilter(none_of=tuple(excluded))


def asked_by(request: SearchRequest) -> Question:
    """Parse a request's query and the exact terms in its options. Raises UsageError; its message has the position."""
    exact: dict[str, Any] = {"fixed": request.fixed or (), "regex": request.regex or ()}
    exact |= {"ignore_case": request.ignore_case, "whole_words": request.whole_words, "multiline": request.multiline}
    return parse(request.query, **exact)


def ask(workspace: Workspace, request: SearchRequest) -> SearchReport:
    """Run an exact search if the request has exact terms, otherwise a ranked search for its words.

    A request with only filters lists the matching files. The caller must open the workspace on the branch given in the
    query. Raises the same errors as ``search_exactly`` and ``answer``.
    """
    report = _answered(workspace, request)
    if report.facets is None:
        return report
    facets = replace(report.facets, files=())
    if chosen(request) and (wider := _answered(workspace, without_chosen(request)).facets):
        facets = with_alternatives(facets, wider, request)
    return replace(report, facets=facets)


def _answered(workspace: Workspace, request: SearchRequest) -> SearchReport:
    question = asked_by(request)
    if not question.is_exact and (request.count or request.files):
        raise UsageError(
            "Only exact matches can be counted", question.text, "Add an exact string or a regular expression."
        )
    if not question.terms.patterns:
        options = {"whole_words": True, "multiline": True, "ignore_case": False}
        for name in (name for name, value in options.items() if getattr(request, name) is value):
            fix = "Pass the text as an exact string or a regular expression."
            raise UsageError(f"`{name}` applies only to exact text", question.text, fix)
    if question.is_plain:
        return answer(workspace, request)
    also = (*request.also, *question.conditions(workspace, request.boundary))
    narrowed = replace(request, query=question.words, also=also, fixed=None, regex=None)
    if question.excluded:
        narrowed = replace(narrowed, also=(*also, without_matches(workspace, question.excluded, narrowed)))
    if question.is_exact:
        return _explained(search_exactly(workspace, question.terms, narrowed), question)
    inside = question.terms.only_inside
    report = search_inside(workspace, question.terms, narrowed) if inside else answer(workspace, narrowed)
    return replace(report, query=question.text)


def _explained(report: SearchReport, question: Question) -> SearchReport:
    """Add the exact terms to a report and, if they may have been meant as words, a note."""
    terms, notes = tuple(question.terms), report.notes
    expressions = [term for term in terms if term.startswith("/") and term in question.text]
    if question.words and expressions:
        notes = (f"Exact: {', '.join(expressions)}. The other words rank the lines that match.", *notes)
    exact = replace(report.exact, terms=terms) if report.exact else None
    return replace(report, query=question.text, notes=notes, exact=exact)


def parse(
    text: str,
    *,
    fixed: Sequence[str] = (),
    regex: Sequence[str] = (),
    ignore_case: bool | None = None,
    whole_words: bool = False,
    multiline: bool = False,
) -> Question:
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
    question = parser.parse()
    given = [(each, True) for each in fixed] + [(each, False) for each in regex]
    options: dict[str, Any] = {"ignore_case": parser.ignore_case, "words": whole_words, "multiline": multiline}
    more = tuple(Pattern.of(each, literal=literal, **options) for each, literal in given)
    question = replace(question, terms=replace(question.terms, patterns=(*question.terms.patterns, *more)))
    if question == Question(text) and text.strip():
        raise UsageError("case: needs a search term", text[:200], "Add words, an exact string or a regular expression.")
    return question


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
        self.patterns: list[tuple[str, bool]] = []
        self.excluded: list[tuple[str, bool]] = []
        self.values: dict[str, list[str]] = {}

    def parse(self) -> Question:
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
            tuple(Pattern.of(text, literal=literal, **options) for text, literal in given)
            for given in (self.patterns, self.excluded)
        )

        def of(name: str) -> tuple[str, ...]:
            return tuple(self.values.get(name, ()))

        branches = of("branch")
        names_any_case = cases[-1:] == [True] and any(map(of, ("def", "uses", "sym")))
        return Question(
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

    def _term(self) -> None:
        start = self.at
        if phrase := self._take(_PHRASE):
            kept = self.excluded if phrase["not"] else self.patterns
            kept.append((_ESCAPED.sub(r"\1", phrase["text"]), True))
        elif expression := self._take(_REGEX):
            kept = self.excluded if expression["not"] else self.patterns
            kept.append((expression["text"].replace("\\/", "/"), False))
        elif self.text[start] == '"' and '"' not in self.text[start + 1 :]:
            self._fail(start, "The quotation mark is not closed", 'Close it with ", or omit it.')
        elif (found := _FIELD.match(self.text, start)) and self._is_field(start, found):
            self.at = found.end()
            self._field(start, found)
        elif self.text != self.text.upper() and (unwanted := self._take(_NOT_WORD)):
            self.excluded.append((unwanted["text"], True))
        else:
            word = self._take(_WORD)
            assert word is not None
            if (operator := word[0].strip("()")) in _OPERATORS and self._joins(start):
                fix = f'{_OPERATORS[operator]} For the word itself, write {operator.lower()} or "{operator}".'
                self._fail(start, f"There is no operator {operator}", fix)
            self.words.append(word[0])

    def _joins(self, start: int) -> bool:
        """Return whether the operator at ``start`` has terms to apply to, unlike in a query in capitals."""
        others = _WORD.findall(self.text[:start] + self.text[self.at :])
        return (
            bool(self.text[:start].strip())
            and bool(self.text[self.at :].strip())
            and any(each != each.upper() for each in others)
        )

    def _take(self, token: re.Pattern[str]) -> re.Match[str] | None:
        found = token.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def _is_field(self, start: int, found: re.Match[str]) -> bool:
        name = found["name"]
        if name in FIELDS or name in _EXTENSIONS or (name in _ALIASES and (len(name) > 1 or found["value"])):
            return True
        if name in _UNSUPPORTED and found["value"]:
            fix = f'{_UNSUPPORTED[name]} For the text itself, write "{found[0]}".'
            self._fail(start, f"There is no field {name!r}", fix)
        near = get_close_matches(name, FIELDS, 1, _LIKE)
        if near and found["value"]:
            self._fail(start, f"There is no field {name!r}", f"Did you mean {near[0]}:?")
        return False

    def _field(self, start: int, found: re.Match[str]) -> None:
        name, value = _ALIASES.get(found["name"], found["name"]), found["value"]
        if value.startswith('"'):
            value = _ESCAPED.sub(r"\1", value[1:-1])
        if name in _EXTENSIONS:
            name, value = "file", value and f"*.{value.lstrip('*').lstrip('.')}"
        if not value.strip():
            fix = f"{FIELDS[name]} Write it right after the colon."
            self._fail(start, f"The field {name}: is empty", fix)
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


_WILDCARD = re.compile(r"[*?\[{]")


def _files(name: str) -> LineFilter:
    """Return a filter for files whose paths match a glob or contain a string."""
    return LineFilter(globs=(name,)) if _WILDCARD.search(name) else LineFilter(parts=(name,))


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

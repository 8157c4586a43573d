"""Classify a query: names, a stack trace, keywords, a question or a sentence (DESIGN, "Search")."""

from __future__ import annotations

import re
from typing import Literal

_NAME = re.compile(r"[^\W\d][\w$]*(?:(?:::|->|[.\\#/])[\w$]+)*")
_SPELT_AS_NAME = re.compile(
    r"(?=\w*(?:[a-z0-9][A-Z]|[A-Z]{2}[a-z]{2}|[^\W_]_[^\W_])|_+[^\W_]|[^\W\d]\w*(?:::|->|[.#])\w)" + _NAME.pattern
)
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


def names_in(query: str) -> list[str]:
    """Return the definition names in ``query``: its only word, or the words spelled like a name.

    ``getUser``, ``get_user``, ``IReader``, ``Session.get``, ``net::Session`` and ``get_user()`` are names; ``user`` is
    one only on its own.
    """
    words = [word.strip("`'\"()[]{},;:?.!") for word in query.split()]
    if len(words) == 1:
        return words if _NAME.fullmatch(words[0]) else []
    return [word for word in dict.fromkeys(words) if _SPELT_AS_NAME.fullmatch(word)]


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

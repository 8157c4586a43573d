"""Words of text as full-text search sees them: identifiers split, lower case, stemmed (``indexes.TOKENIZER``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from driftline.storage.lines.indexes import tokens

NAME_PART = re.compile(r"[^\W_]+")
"""The tokenizer leaves the underscores of _cache and __init__ where they are."""
_NAME = re.compile(r"[^\W\d][\w$]*(?:(?:::|->|[.\\#/])[\w$]+)*")
_SPELT_AS_NAME = re.compile(r"(?=\w*(?:[a-z0-9][A-Z]|[^\W_]_[^\W_])|[^\W\d]\w*(?:::|->|[.#])\w)" + _NAME.pattern)
WORDS_OF_A_NAME = 2
_PARTS_KEPT = 65_536

_FILLERS = """
a an and are as at be been but by can do does for from had has have how if in into is it its of on or so such than
that the their then there these they this to was we were what when where which who will with you your
"""
STOP_WORDS = frozenset(_FILLERS.split())
"""Words of a question that say nothing about its answer."""


def terms(text: str) -> list[str]:
    """The terms of ``text`` in their order: ``parse_HTTPRequests`` gives pars, http, request."""
    return [term for part in NAME_PART.findall(text) for term in terms_of(part)]


@lru_cache(_PARTS_KEPT)
def terms_of(part: str) -> tuple[str, ...]:
    """The terms of one NAME_PART."""
    return tuple(tokens(part))


def telling_words(query: str) -> list[str]:
    """The distinct words of ``query``, identifiers split, without STOP_WORDS unless it has no others."""
    words = list(dict.fromkeys(tokens(" ".join(NAME_PART.findall(query)), whole=True)))
    return [word for word in words if word not in STOP_WORDS] or words


def names_in(query: str) -> list[str]:
    """What the query may name a definition by: all of it if it is one word, or those of its words that are spelt so.

    ``getUser``, ``get_user``, ``Session.get``, ``net::Session`` and ``get_user()`` are; ``user`` only is alone.
    """
    words = [word.strip("`'\"()[]{},;:?.!") for word in query.split()]
    if len(words) == 1:
        return words if _NAME.fullmatch(words[0]) else []
    return [word for word in dict.fromkeys(words) if _SPELT_AS_NAME.fullmatch(word)]


def as_indexed(words: Sequence[str]) -> str:
    """A query for the full-text index, which holds ``_cache`` and ``__init__`` with their underscores.

    Those are looked for where the query may be a name: among many words, rare spellings would outweigh the others.
    """
    if len(words) > WORDS_OF_A_NAME:
        return " ".join(words)
    return " ".join(f"{word} _{word} __{word}__ {word}_" for word in words)

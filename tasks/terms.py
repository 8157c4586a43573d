"""Words of text as full-text search sees them: identifiers split, lower case, stemmed (``indexes.TOKENIZER``)."""

from __future__ import annotations

import re
from functools import lru_cache

import Stemmer

_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[^\W\d_A-Z]+|[A-Z]+|\d+")
_WORDS_KEPT = 65_536
_stemmer = Stemmer.Stemmer("english")


def terms(text: str) -> list[str]:
    """The terms of ``text`` in their order: ``parse_HTTPRequests`` gives pars, http, request."""
    return [stem(word) for word in _WORD.findall(text)]


@lru_cache(_WORDS_KEPT)
def stem(word: str) -> str:
    """``word`` in lower case, without its English ending (Porter's second stemmer)."""
    return str(_stemmer.stemWord(word.lower()))

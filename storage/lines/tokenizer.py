"""Turn text into the words of full-text search: identifiers split, in lower case and stemmed (``TOKENIZER``).

Scripts without word spacing, and Korean, are indexed as bigrams. The index's own tokenizer does neither this nor
Unicode folding, and stems only English, so each block appends these terms, and the stems of its language, to its text
(``index_terms``), and queries are normalized the same way (``normalize_query``).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

TOKENIZER: dict[str, Any] = {
    "base_tokenizer": "code",
    "split_identifiers": True,
    "preserve_original": False,
    "stem": True,
    "remove_stop_words": False,
    "max_token_length": None,
}
"""Split identifiers into words, and stem words. Stop words are kept, because "is not" can be code. So are long words:
the default limit of 40 bytes is only 13 Georgian letters.
"""
NAME_PART = re.compile(r"[^\W_]+")
"""A word with its underscores: the tokenizer keeps the outer underscores of _cache and __init__."""
WORDS_OF_A_NAME = 2
_PARTS_KEPT = 65_536

ENGLISH = "en"
_FILLERS = {
    "en": """
a an and are as at be been but by can do does for from had has have how if in into is it its of on or so such than
that the their then there these they this to was we were what when where which who will with you your
""",
    "de": """
aber alle allen als am an auch auf aus bei beim bin bis das dass dem den der des die diese dieser dieses durch ein eine
einem einen einer eines er es für hat ich ihn im in ist jeden jedem jeder kann man mit muss nach nicht oder sich sie
sind so um und von was welche welches wenn werden wie wird wo zu zum zur
""",
    "fr": """
au aux avec ce ces comment dans de des du elle en est et il je la le les leur mais ne on ou où par pas pour quand que
quel quelle qui sa se ses son sont sur un une vous
""",
    "es": """
al como cómo con cuál cuando de del dónde el en es ese esta este hay la las lo los no o para pero por que qué quién se
ser si son su sus un una y
""",
    "it": """
al alla che chi come con cosa da dei del della di dove e è gli i il in la le lo ma nel nella non o per quale quando se
si sono su un una
""",
    "pt": """
ao as com como da das de do dos e em é ele isso mais mas na não no nos o onde os ou para pela pelo por qual quando que
se seu sua são um uma
""",
    "nl": """
aan als bij dat de deze die dit door een en er het hij hoe ik in is je kan maar met naar niet of om op te tot uit van
voor waar wat wordt ze zijn
""",
    "ru": """
а без бы в вы где для до его ее если есть и из или их к как какой когда который кто ли мы на не но о об он она они от по
при с со так то у что чтобы это
""",
}
_STOP_WORDS = {language: frozenset(words.split()) for language, words in _FILLERS.items()}
STOP_WORDS = _STOP_WORDS[ENGLISH]
"""Words in a question that do not help to answer it."""
_CONVERSATION = """
am anybody anyone anything could everybody everyone everything happen happens he her him his just me my nobody our
really she somebody someone something them very want wants were why would
"""
"""English words that code rarely contains, so they would outweigh the others. They do not identify a language."""
_NOT_SEARCHED = STOP_WORDS | frozenset(_CONVERSATION.split())
_CONTRACTION = re.compile(r"\b\w+n['\u2019]t\b|(?<=\w)['\u2019](?:s|re|ve|ll|d|m)\b|(?<![\w./])I(?![\w./])")
"""don't, the ending of it's and I've, and I on its own, but not I/O."""
_STEMMERS = {
    "en": "English",
    "de": "German",
    "fr": "French",
    "es": "Spanish",
    "it": "Italian",
    "pt": "Portuguese",
    "nl": "Dutch",
    "ru": "Russian",
}
_MIN_FILLERS = 2
"""How many stop words of a non-English language identify the language of a question."""

_PAIRED = (
    "\\u0e00-\\u0eff\\u1000-\\u109f\\u1780-\\u17ff"  # Thai, Lao, Burmese, Khmer
    "\\u1100-\\u11ff\\u3130-\\u318f\\ua960-\\ua97f\\uac00-\\ud7ff"  # Korean
    "\\u3005-\\u3007\\u3041-\\u309f\\u30a1-\\u30ff\\u31f0-\\u31ff\\u3100-\\u312f"  # Japanese, Bopomofo
    "\\u3400-\\u4dbf\\u4e00-\\u9fff\\ua000-\\ua4cf\\uf900-\\ufaff\\U00020000-\\U0003ffff"  # Chinese characters, Yi
)
_LATIN = (
    "0-9A-Za-z\\u00aa\\u00b2\\u00b3\\u00b9\\u00ba\\u00bc-\\u00be\\u00c0-\\u00d6\\u00d8-\\u00f6\\u00f8-\\u024f"
    "\\u1e00-\\u1eff\\u2070-\\u209c\\ufb00-\\ufb06"
)
_PLAIN = re.compile(f"[{_LATIN}]+")
"""Letters whose accents and variants are folded by the index itself."""
_HIRAGANA = re.compile("[\\u3041-\\u309f]+")
_FORMS = re.compile("[\\uff00-\\uffef]+")
_MARKS = re.compile(
    "(?<![\u0438\u0418])[\\u0300-\\u036f\\u0591-\\u05bd\\u05bf\\u05c1\\u05c2\\u05c4\\u05c5\\u0640\\u064b-\\u0652\\u0670]+"
)
"""Accents, and Hebrew and Arabic vowel points, but not the breve of the Cyrillic short i."""
_BLOCKS_WITH_MARKS = (range(0x300, 0x1E00), range(0x20D0, 0x2100), range(0x3099, 0x309B), range(0xA800, 0xAC00))


def tokens(text: str, *, whole: bool = False, language: str = ENGLISH) -> list[str]:
    """Return the words in ``text``, tokenized like the full-text index; ``whole`` keeps endings and accents."""
    import lance

    options = TOKENIZER | ({"stem": False, "ascii_folding": False} if whole else {"language": _STEMMERS[language]})
    return [token.text for token in lance.tokenize(text, **options)]


def terms(text: str, language: str = ENGLISH) -> list[str]:
    """Return the terms in ``text``, in order: ``parse_HTTPRequests`` gives pars, http, request."""
    return [term for part in name_parts(text) for term in terms_of(part, language)]


def name_parts(text: str) -> list[str]:
    """Return the runs of letters, digits and combining marks in ``text``."""
    return (NAME_PART if text.isascii() else _marked_part()).findall(text)


@lru_cache(_PARTS_KEPT)
def terms_of(part: str, language: str = ENGLISH) -> tuple[str, ...]:
    """Return the terms of one of ``name_parts``; for bigram scripts, every character and every bigram."""
    if part.isascii() or _PLAIN.fullmatch(part):
        return tuple(tokens(part, language=language))
    words = _words_of(part)
    return tuple(term for word in words for term in ((word,) if is_paired(word) else tokens(word, language=language)))


def distinct_terms(words: Sequence[str], language: str = ENGLISH) -> list[str]:
    """Return the distinct terms of a query's ``keywords``, sorted."""
    paired = {word for word in words if is_paired(word)}
    return sorted(paired.union(terms(" ".join(word for word in words if word not in paired), language)))


def keywords(query: str) -> list[str]:
    """Return the distinct words in ``query``, with identifiers split, omitting STOP_WORDS unless there are no other
    words.

    Text in bigram scripts yields bigrams; a single character with no neighbours is a word.
    """
    language = language_of(query)
    if language == ENGLISH and name_parts(shortened := _CONTRACTION.sub("", query)):
        query = shortened
    if query.isascii():
        words = list(dict.fromkeys(tokens(" ".join(NAME_PART.findall(query)), whole=True)))
    else:
        words = list(dict.fromkeys(word for part in name_parts(query) for word in _query_words(part)))
    fillers = _NOT_SEARCHED if language == ENGLISH else _STOP_WORDS[language]
    significant = [word for word in words if word not in fillers] or words
    # Hiragana in Japanese text is mostly endings and particles.
    return [word for word in significant if not _HIRAGANA.fullmatch(word)] or significant


def is_paired(word: str) -> bool:
    """Return whether a word is a bigram from a script without word spacing; its characters may belong to two words."""
    found = None if word.isascii() else _runs().match(word)
    return found is not None and found.lastgroup == "paired"


def normalize_query(words: Sequence[str], language: str = ENGLISH) -> str:
    """Return a query for the full-text index, which keeps the underscores of ``_cache`` and ``__init__``.

    Such variants are added only if the query may be a name: among many words, rare variants would outweigh the others.
    The words' stems in ``language`` are added, which ``index_terms`` adds to text.
    """
    stems = _stems(words, language)
    if len(words) > WORDS_OF_A_NAME:
        return " ".join([*words, *stems])
    return " ".join([*(f"{word} _{word} __{word}__ {word}_" for word in words), *stems])


def index_terms(text: str) -> list[str]:
    """Return the words in ``text`` that the index's tokenizer would miss, and the stems of a language other than
    English. ASCII text is not examined, since it is mostly code.
    """
    if text.isascii():
        return []
    parts = name_parts(text)
    spelled = [word for part in parts if not part.isascii() for word in _spelled(part)]
    return spelled + _stems(parts, language_of(text))


def _stems(parts: Iterable[str], language: str) -> list[str]:
    """Return the distinct stems of ``parts`` in ``language`` that differ from their English stems."""
    if language == ENGLISH:
        return []
    stems = {part: terms_of(part, language) for part in parts}
    return [*dict.fromkeys(stem for part, of_part in stems.items() if of_part != terms_of(part) for stem in of_part)]


def language_of(text: str) -> str:
    """Return the code of the most likely language of ``text``, by its stop words; "en" if there are too few."""
    # A single letter says little: "I/O" is not Italian.
    words = {each for each in name_parts(text.lower()) if len(each) > 1 or not each.isascii()}
    found = {language: len(fillers & words) for language, fillers in _STOP_WORDS.items()}
    best = max(found, key=found.__getitem__)  # the first of equals, so English wins ties
    return best if found[best] >= _MIN_FILLERS else ENGLISH


@lru_cache(_PARTS_KEPT)
def _spelled(part: str) -> tuple[str, ...]:
    if _PLAIN.fullmatch(part):
        return ()
    words = tuple(_words_of(part))
    return () if words == (part,) and not is_paired(part) else words


def _words_of(part: str, *, alone: bool = True) -> Iterator[str]:
    """Yield the words in one of ``name_parts``, folded: split by script, with bigram scripts as bigrams.

    If ``alone`` is set, single characters of bigram scripts are always yielded; otherwise, only if they have no
    neighbour.
    """
    for found in _runs().finditer(_folded(part)):
        run = found[0]
        if found.lastgroup != "paired":
            yield run
            continue
        letters = "".join(character for character in run if unicodedata.category(character)[0] != "M")
        if alone or len(letters) == 1:
            yield from letters
        yield from map("".join, pairwise(letters))


def _query_words(part: str) -> Iterator[str]:
    """Yield the words in one part of a query."""
    if part.isascii() or _PLAIN.fullmatch(part):
        yield from tokens(part, whole=True)
        return
    for word in _words_of(part, alone=False):
        if is_paired(word):
            yield word
        else:
            yield from tokens(word, whole=True)


def _folded(text: str) -> str:
    """Fold full-width and half-width characters in ``text`` to ordinary ones, and remove accents."""
    text = _FORMS.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)
    return unicodedata.normalize("NFC", _MARKS.sub("", unicodedata.normalize("NFD", text)))


@cache
def _runs() -> re.Pattern[str]:
    """Matches runs of one kind of character; the largest pattern here, it takes 10 ms to compile."""
    return re.compile(f"(?P<paired>[{_PAIRED}]+)|[{_LATIN}]+|[^{_PAIRED}{_LATIN}]+")


@cache
def _marked_part() -> re.Pattern[str]:
    r"""Like NAME_PART, plus combining marks on letters, which ``\w`` excludes."""
    marks = (chr(code) for block in _BLOCKS_WITH_MARKS for code in block if unicodedata.category(chr(code))[0] == "M")
    return re.compile(rf"[^\W_](?:[^\W_]|[{''.join(marks)}])*")

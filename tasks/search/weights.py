"""What each sign of an answer weighs; ``tests/benchmarks/weights.py`` chose the figures on the tuning halves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reach:
    """How far the vectors around a line count, as words do, and what their cosine counts then."""

    weight: float
    lines: int
    decay: float


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a ranking.

    Words within ``word_reach`` lines count for a line, less by ``word_decay`` with each line of distance. ``path`` and
    ``names`` are for words in the path and in the names of the definitions around a line, of the weights of these
    words; ``document`` is for the BM25 of the ``document_blocks`` best blocks of a document. ``definition`` is for a
    line that begins one, ``name`` for one that begins what the query names.

    Of its relevance a line keeps the share ``test`` in a test unless the query asks for tests, ``text`` in prose, and
    ``auxiliary`` in a file that repeats, lists or illustrates others.

    Windows gain shares of the best one's score: the best window of the file with most of them ``file``, those of other
    files less; those of a file whose name has all words of the query ``stem``, or their share; each of them ``again``
    for each better window of its file. These are for queries of up to ``telling_words``, and fade for longer ones,
    which describe one place rather than a subject.

    A few lines of code say what they do; of prose it takes a paragraph, and even then words say more.
    """

    word_reach: int = 16
    word_decay: float = 0.85
    path: float = 0.25
    names: float = 0.5
    document: float = 0.06
    document_blocks: int = 4
    definition: float = 5.0
    name: float = 20.0
    test: float = 0.7
    text: float = 0.85
    auxiliary: float = 0.9
    file: float = 0.25
    stem: float = 0.25
    again: float = -0.15
    telling_words: int = 5
    code: tuple[Reach, ...] = (Reach(8.0, 3, 0.7),)
    prose: tuple[Reach, ...] = (Reach(2.0, 3, 0.7), Reach(4.0, 16, 0.95))


WEIGHTS = Weights()

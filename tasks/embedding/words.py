"""Cut lines into words that a tokenizer treats as it treats the whole line.

    line  ──before each run of spaces──>  chunks  ──between kinds of characters──>  words

A cut is sound if no token can span it. If the vocabulary has no entry in which, for example, a digit follows a letter,
no merge (BPE) and no best path (Unigram) joins the two, so either side can be tokenized alone. A check on probe lines,
which every plan must pass, covers tokenizers that split their input beforehand (BERT, GPT-2). A tokenizer that passes
no check gets no plan.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import Tokenizer

_CONTROL, _LETTER, _DIGIT, _PUNCTUATION, _SPACE, _WIDE, _END, _KINDS = range(8)
_KIND_OF_BYTE = np.full(256, _CONTROL, np.uint8)
_KIND_OF_BYTE[0x80:] = _WIDE
for _characters, _kind in (
    (string.ascii_letters, _LETTER),
    (string.digits, _DIGIT),
    (string.punctuation, _PUNCTUATION),
    (" ", _SPACE),
):
    _KIND_OF_BYTE[np.frombuffer(_characters.encode(), np.uint8)] = _kind

_MAX_ADDED_TOKENS = 256
_BYTE_TOKEN = r"<0x[0-9A-F]{2}>"
# SentencePiece's space, and the blanks of byte-level vocabularies.
_BLANKS = str.maketrans("▁ĠĊĉč", "  \n\t\r")
# The first two bytes of U+1680, U+2000 to U+207F and U+3000 to U+303F, where most of Unicode's white space lies.
_BLANK_BLOCKS = np.array([0xE19A, 0xE280, 0xE281, 0xE380], np.uint16)

# Lines that are hard to cut: runs and kinds of blanks, combining and invisible characters, contractions.
_PROBES = (
    """
 |  |\t|x| x|x |  x  |\tx\t|x\t y|x \t y|x\t\t  y|x  \t|x\u00a0 y|x  y   z    w     v|x \u00a0y|x\u2003 y
    return self._table[key]|if x == 12 and y != 345:  # 6 times|foo()  bar[]    baz{}|don't we'll I'm 'self'
def __init__(self, *args: int = 0) -> None:|    "name": "driftline", "version": "0.1.0",|a.b.c(d)->e;|``x''
0xDEADBEEF 1_000_000 3.14e-10 v2.0rc1|https://example.org/a/b?c=d&e=%20f#g|camelCaseHTTPServer snake_case_2
ÀÉÎ naïve café e\u0301 a\u0323 Straße ΟΔΟΣ ΟΔΟΣ2|\u00a0x \u3000y\u3000 z|zero\u200bwidth\u200d \ufeffx\ufeff y
漢字 と かな、カナ。 한국어 12個|שלום עולם (2) مرحبا|x\u0301 \u0301y ¼ ² \ufb01 \uff21\uff22\uff11|\x00 \x07a\x7f b
\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7 ok\U0001f44d \U0001f44d|—dash — “quoted” … • item|((((((((a))))))))
""".strip("\n")
    .replace("\n", "|")
    .split("|")
)
_PROBES += ["", "a" * 150, "-" * 90 + " x", "1" * 40]


@dataclass(frozen=True, slots=True)
class Cuts:
    """Strings cut into pieces: string ``i`` is ``pieces[bounds[i]:bounds[i + 1]]``; empty strings have none."""

    pieces: pa.StringArray
    bounds: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class WordPlan:
    """How to cut lines for a tokenizer, and the tokenizer of the words.

    ``tokenizer`` treats a word as the model's own does within a line, and does not truncate. ``prefix`` is put before
    each line that is not empty. ``special`` is a regular expression for chunks whose lines must be tokenized whole,
    because they may hold a special token. The cuts are tables over ``256 * byte + next byte``; ``word_cuts`` is None
    where chunks are the words.
    """

    tokenizer: Tokenizer
    prefix: str
    special: str | None
    chunk_cuts: NDArray[np.bool_]
    word_cuts: NDArray[np.bool_] | None

    def chunks(self, lines: pa.StringArray) -> Cuts:
        """Cut lines before each run of spaces."""
        if self.prefix:
            empty = pc.equal(pc.binary_length(lines), 0)
            prefixed = pc.binary_join_element_wise(self.prefix, lines, "")
            lines = pc.if_else(empty, lines, prefixed) if empty.true_count else prefixed
        return _cut(lines, self.chunk_cuts)

    def words(self, chunks: pa.StringArray) -> Cuts:
        """Cut chunks into words."""
        if self.word_cuts is None:
            return Cuts(chunks, np.arange(len(chunks) + 1, dtype=np.int32))
        return _cut(chunks, self.word_cuts)


def plan_words(tokenizer: Tokenizer, unknown_token: int | None = None) -> WordPlan | None:
    """The finest sound plan for ``tokenizer``; None if each line must be tokenized whole.

    The check ignores the unknown token: a cut may double it, since tokenizers fuse runs of it.
    """
    spec: dict[str, Any] = json.loads(tokenizer.to_str())
    spec["truncation"] = spec["padding"] = None
    added = [token["content"] for token in spec["added_tokens"]]
    if len(added) > _MAX_ADDED_TOKENS or any(re.search(r"\S\s", content) for content in added):
        return None
    specials = [re.escape(content) for content in added]
    if spec["model"].get("byte_fallback"):
        specials.append(_BYTE_TOKEN)
    special = f"(?i){'|'.join(specials)}" if specials else None

    vocabulary = _vocabulary(spec, tokenizer, added)
    chunk_cuts, word_cuts = _sound_cuts(vocabulary, spec["model"]["type"] in ("BPE", "Unigram"))
    probes = [*_PROBES, *_vocabulary_probes(vocabulary)]
    untruncated = Tokenizer.from_str(json.dumps(spec))
    expected = _token_ids(WordPlan(untruncated, "", None, *np.zeros((2, 256 * 256), np.bool_)), probes, unknown_token)
    candidates = [
        WordPlan(untruncated, "", special, chunk_cuts, word_cuts),
        WordPlan(untruncated, "", special, chunk_cuts, None),
    ]
    unprefixed = _without_prefix(spec)
    if unprefixed is not None:
        candidates.insert(0, WordPlan(unprefixed, " ", special, chunk_cuts, word_cuts))
    return next((plan for plan in candidates if _token_ids(plan, probes, unknown_token) == expected), None)


def _vocabulary(spec: dict[str, Any], tokenizer: Tokenizer, added: Sequence[str]) -> list[str]:
    """The tokens of text without special tokens, ordered by id, with plain characters for blanks."""
    ids = tokenizer.get_vocab(with_added_tokens=False)
    for content in added:
        ids.pop(content, None)
    if spec["model"].get("byte_fallback"):
        ids = {token: i for token, i in ids.items() if not re.fullmatch(_BYTE_TOKEN, token)}
    continuing = spec["model"].get("continuing_subword_prefix") or ""
    return [token.removeprefix(continuing).translate(_BLANKS) for token in sorted(ids, key=ids.__getitem__)]


def _sound_cuts(vocabulary: Sequence[str], anywhere: bool) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The cut tables of chunks and words: true between kinds of characters that no token holds in that order.

    Without ``anywhere``, words are cut only beside punctuation: the tokens of a WordPiece vocabulary depend on the
    position of a piece in its word, so letters must stay with adjacent digits.
    """
    text = np.frombuffer("\n".join(vocabulary).encode(), np.uint8)
    kinds = np.where(text == ord("\n"), _END, _KIND_OF_BYTE[text]).astype(np.intp)
    spanned = np.bincount(kinds[:-1] * _KINDS + kinds[1:], minlength=_KINDS**2).reshape(_KINDS, _KINDS) > 0

    chunks, words = np.zeros((2, _KINDS, _KINDS), np.bool_)
    visible = [_LETTER, _DIGIT, _PUNCTUATION]
    chunks[[*visible, _WIDE], _SPACE] = ~spanned[[*visible, _WIDE], _SPACE]
    words[np.ix_(visible, visible)] = ~spanned[np.ix_(visible, visible)]
    if not anywhere:
        words[np.ix_([_LETTER, _DIGIT], [_LETTER, _DIGIT])] = False
    of_bytes = np.ix_(_KIND_OF_BYTE, _KIND_OF_BYTE)
    return chunks[of_bytes].ravel(), words[of_bytes].ravel()


def _without_prefix(spec: dict[str, Any]) -> Tokenizer | None:
    """The tokenizer without the normalizer that prepends a space mark to each text; None if it has none."""
    normalizer = spec["normalizer"] or {}
    steps = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    if not steps or steps[0].get("type") != "Prepend":
        return None
    return Tokenizer.from_str(json.dumps({**spec, "normalizer": {"type": "Sequence", "normalizers": steps[1:]}}))


def _vocabulary_probes(vocabulary: Sequence[str]) -> list[str]:
    """Lines of known tokens, because fixed probes prove nothing about a vocabulary that lacks their words."""
    known = [token.strip() for token in vocabulary if token.isascii() and token.isprintable() and token.strip()]
    sample = known[:: max(1, len(known) // 96)]
    lines = [f"{a} {b}  {a}{b}" for a, b in pairwise(sample)]
    lines += [f"{sample[0]}{c}{sample[-1]} {c}{c} {c}1 x{c}" for c in string.punctuation + string.digits if sample]
    return lines


def _token_ids(plan: WordPlan, lines: Sequence[str], unknown_token: int | None) -> list[list[int]]:
    """The known tokens of each line, cut by the plan."""
    chunks = plan.chunks(pa.array(lines, pa.string()))
    words = plan.words(chunks.pieces)
    encodings = plan.tokenizer.encode_batch_fast(words.pieces.to_pylist(), add_special_tokens=False)
    known = [[i for i in encoding.ids if i != unknown_token] for encoding in encodings]
    return [list(chain.from_iterable(known[a:b])) for a, b in pairwise(words.bounds[chunks.bounds])]


def _cut(strings: pa.StringArray, cuts: NDArray[np.bool_]) -> Cuts:
    """Cut ``strings`` wherever ``cuts[256 * byte + next byte]`` is true, without copying their text."""
    _, offset_buffer, data_buffer = strings.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[strings.offset : strings.offset + len(strings) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return Cuts(pa.array([], pa.string()), np.zeros(len(strings) + 1, np.int32))
    text = np.frombuffer(data_buffer, np.uint8)[first:last]

    starts = np.zeros(len(text) + 1, np.bool_)
    starts[1:-1] = cuts[text[:-1].astype(np.uint16) << 8 | text[1:]]
    cut_ends = np.flatnonzero(starts)
    wide = cut_ends[text[cut_ends - 1] >= 0x80]
    starts[wide[_ends_in_blank(text, wide)]] = False
    starts[offsets - first] = True
    # The end of the text is a bound, but not the start of a piece.
    bounds = np.flatnonzero(starts).astype(np.int32)
    bounds[-1] = len(text)
    piece_offsets = bounds + np.int32(first)
    pieces = pa.StringArray.from_buffers(len(bounds) - 1, pa.py_buffer(piece_offsets), data_buffer)
    return Cuts(pieces, np.searchsorted(piece_offsets, offsets).astype(np.int32))


def _ends_in_blank(text: NDArray[np.uint8], ends: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether the non-ASCII character before each end may be white space, which must stay with the spaces.

    True for whole blocks of characters: _BLANK_BLOCKS, and U+0080 to U+00BF for the non-breaking space.
    """
    before = text[ends - 2]
    lead = text[ends - 3].astype(np.uint16) << 8 | before  # wraps around at the beginning, which does no harm
    blank: NDArray[np.bool_] = (before == 0xC2) | np.isin(lead, _BLANK_BLOCKS)
    return blank

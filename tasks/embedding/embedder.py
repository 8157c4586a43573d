"""Compute the same vectors as ``StaticModel.encode`` several times faster: tokenize each word once, then look it up.

A static model is a weighted sum of token vectors, scaled to unit length, so the sum over a word can be cached. A block
of lines takes two sparse products: words to chunks (cut before runs of spaces), and chunks to lines.

A cut is sound if no token can span it. If, for example, no vocabulary entry has a digit after a letter, no BPE merge or
Unigram path joins the two. Probe lines verify this, including for tokenizers that first split their input (BERT,
GPT-2). A tokenizer that fails the check gets no plan.
"""

from __future__ import annotations

import json
import re
import string
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise, repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import Tokenizer

from driftline.tasks.embedding.models import ModelParts, fingerprint, load_parts, resolve_model

if TYPE_CHECKING:
    from model2vec import StaticModel
    from scipy.sparse import csr_matrix
    from tokenizers import Tokenizer

MAX_WORD_CHARACTERS = 64
"""Longer words (hashes, base64) rarely repeat, and would make the table's memory unbounded."""

LONGEST_KEPT_LINE = 256
"""Vectors of longer lines (in characters) are not cached."""

_EVICTED_SHARE = 8  # evict an eighth of the table at a time
_NEVER = np.int64(2**63 - 1)  # larger than any age, so free slots are evicted last


class WordTable:
    """Maps words or lines of at most ``longest`` characters to their vectors and token counts; thread-safe.

    Memory is ``capacity * dim * 4`` bytes, allocated as the table fills.
    """

    def __init__(self, capacity: int, dim: int, longest: int = MAX_WORD_CHARACTERS) -> None:
        if capacity < 1:
            raise ValueError(f"The capacity of a word table must be at least 1, not {capacity}")
        self._capacity = capacity
        self._longest = longest
        self._vectors = np.empty((capacity, dim), np.float32)
        self._tokens = np.empty(capacity, np.float32)
        self._words = [""] * capacity
        self._slots: dict[str, int] = {}
        self._free = np.arange(capacity)
        self._last_used = np.full(capacity, _NEVER)  # the last lookup that touched each slot
        self._clock = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, word: str) -> bool:
        return word in self._slots

    def lookup(self, words: Sequence[str]) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.intp]]:
        """Return ``(n, dim)`` vectors, ``(n,)`` token counts, and the positions of missing words (undefined rows)."""
        with self._lock:
            slots = np.fromiter(map(self._slots.get, words, repeat(-1)), np.intp, len(words))
            known = slots >= 0
            self._clock += 1
            self._last_used[slots[known]] = self._clock
            return self._vectors[slots], self._tokens[slots], np.flatnonzero(~known)

    def insert(self, words: Sequence[str], vectors: NDArray[np.float32], tokens: NDArray[np.float32]) -> None:
        """Add distinct words as long as there is space; existing words do not change."""
        with self._lock:
            # Another thread may have inserted some of them.
            new = [i for i, word in enumerate(words) if len(word) <= self._longest and word not in self._slots]
            new = new[: self._capacity]
            slots = self._free_slots(len(new))
            self._vectors[slots] = vectors[new]
            self._tokens[slots] = tokens[new]
            self._last_used[slots] = self._clock
            for slot, i in zip(slots.tolist(), new, strict=True):
                self._words[slot] = words[i]
                self._slots[words[i]] = slot

    def _free_slots(self, count: int) -> NDArray[np.intp]:
        """Return ``count`` free slots; evicts in blocks, so partitioning by age is rare."""
        missing = count - len(self._free)
        if missing > 0:
            evict = min(max(missing, self._capacity // _EVICTED_SHARE), len(self._slots))
            oldest = np.argpartition(self._last_used, evict - 1)[:evict]
            for slot in oldest.tolist():
                del self._slots[self._words[slot]]
            self._last_used[oldest] = _NEVER
            self._free = np.concatenate([self._free, oldest])
        slots, self._free = self._free[:count], self._free[count:]
        return slots


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
# SentencePiece's space, and the whitespace characters of byte-level vocabularies.
_BLANKS = str.maketrans("▁ĠĊĉč", "  \n\t\r")
# The first two bytes of U+1680, U+2000 to U+207F and U+3000 to U+303F, which contain most of Unicode's whitespace.
_BLANK_BLOCKS = np.array([0xE19A, 0xE280, 0xE281, 0xE380], np.uint16)

# Lines that are hard to cut: whitespace of all kinds, combining and invisible characters, contractions.
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
    """Strings cut into pieces: string ``i`` is ``pieces[bounds[i]:bounds[i + 1]]``; empty strings have no pieces."""

    pieces: pa.StringArray
    bounds: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class WordPlan:
    """How to cut lines for a tokenizer, and the tokenizer for single words.

    ``tokenizer`` splits a word like the model's own tokenizer does inside a line, but without truncation. ``prefix`` is
    prepended to each non-empty line. ``special`` is a regular expression for chunks that may contain a special token:
    their lines must be tokenized whole. The cuts are tables over ``256 * byte + next byte``; ``word_cuts`` is None if
    the chunks are the words.
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
    """Return the finest sound plan for ``tokenizer``, or None if lines must be tokenized whole.

    The check ignores the unknown token: a cut may duplicate it, because tokenizers fuse runs of it.
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
    """Return the tokens except special ones, ordered by id, with plain whitespace characters."""
    ids = tokenizer.get_vocab(with_added_tokens=False)
    for content in added:
        ids.pop(content, None)
    if spec["model"].get("byte_fallback"):
        ids = {token: i for token, i in ids.items() if not re.fullmatch(_BYTE_TOKEN, token)}
    continuing = spec["model"].get("continuing_subword_prefix") or ""
    return [token.removeprefix(continuing).translate(_BLANKS) for token in sorted(ids, key=ids.__getitem__)]


def _sound_cuts(vocabulary: Sequence[str], anywhere: bool) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two tables of safe cut points, for chunks and words: true for byte classes never adjacent inside a token.

    Unless ``anywhere`` is set, words are cut only next to punctuation: WordPiece tokens depend on the position of a
    piece in its word, so letters must stay with adjacent digits.
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
    """Return the tokenizer minus the normalizer that prepends a space marker, or None if it has no such normalizer."""
    normalizer = spec["normalizer"] or {}
    steps = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    if not steps or steps[0].get("type") != "Prepend":
        return None
    return Tokenizer.from_str(json.dumps({**spec, "normalizer": {"type": "Sequence", "normalizers": steps[1:]}}))


def _vocabulary_probes(vocabulary: Sequence[str]) -> list[str]:
    """Return probe lines of known tokens: fixed probes prove nothing if the vocabulary does not contain their words."""
    known = [token.strip() for token in vocabulary if token.isascii() and token.isprintable() and token.strip()]
    sample = known[:: max(1, len(known) // 96)]
    lines = [f"{a} {b}  {a}{b}" for a, b in pairwise(sample)]
    lines += [f"{sample[0]}{c}{sample[-1]} {c}{c} {c}1 x{c}" for c in string.punctuation + string.digits if sample]
    return lines


def _token_ids(plan: WordPlan, lines: Sequence[str], unknown_token: int | None) -> list[list[int]]:
    """Return each line's known tokens, cut according to the plan."""
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
    """Return whether the non-ASCII character before each end may be whitespace, which must stay with adjacent spaces.

    Returns True for whole blocks of characters: _BLANK_BLOCKS, and U+0080 to U+00BF for the non-breaking space.
    """
    before = text[ends - 2]
    lead = text[ends - 3].astype(np.uint16) << 8 | before  # wraps around at the start, which is harmless
    blank: NDArray[np.bool_] = (before == 0xC2) | np.isin(lead, _BLANK_BLOCKS)
    return blank


TextLines: TypeAlias = Sequence[str] | pa.Array | pa.ChunkedArray

WORD_TABLE_SIZE = 150_000
"""Number of cached words; 154 MB at 256 dimensions."""
LINE_TABLE_SIZE = 32_768
"""Number of lines whose vectors are cached, because searches see them repeatedly; 34 MB at 256 dimensions."""

_BLOCK_LINES = 32_768
_BLOCK_BYTES = 1 << 19  # bytes of text: limits a block's temporaries to 200 MB even if no word repeats
_BULK_LINES = 4_096  # for this many lines, waiting for the plan is worth it
_FINITE = 2**30  # tokens: a line with more must be tokenized whole
_FEW_TOKENS = 65_536  # for fewer tokens, as in a search, sum without scipy, which takes 0.3 s to import
_TOKENIZED_AT_ONCE = 4_096  # strings: each Encoding object takes a kilobyte or more


class WordTableEmbedder:
    """An ``Embedder`` over a static model and a bounded table of word vectors.

    Rows equal ``model.encode(lines, normalize=True)`` to 1e-4. Thread-safe. The first ``plan_after`` lines are
    tokenized whole, because for a few changed files, planning the cuts would dominate.
    """

    def __init__(
        self, model: ModelParts | StaticModel, fingerprint: str, table_size: int = WORD_TABLE_SIZE, plan_after: int = 0
    ) -> None:
        self._fingerprint = fingerprint
        self._lines_before_plan = plan_after
        self._waits_for_plan = plan_after == 0
        self._planning = threading.Lock()
        self._tokenizer: Tokenizer = model.tokenizer  # truncates to the model's maximum length
        self._token_vectors: NDArray[np.float32] | NDArray[np.float16] = (
            model.embedding if model.embedding.dtype == np.float16 else model.embedding.astype(np.float32, copy=False)
        )
        self._token_weights: NDArray[np.float32] | None = model.weights
        self._token_rows: NDArray[np.int64] | None = model.token_mapping
        self._unknown_token: int | None = model.unk_token_id
        # encode() truncates its input to a number of characters, then to a number of tokens.
        self._max_tokens = np.inf if model.max_length is None else model.max_length
        self._table = WordTable(table_size, self.dim)
        self._lines = WordTable(LINE_TABLE_SIZE, self.dim, LONGEST_KEPT_LINE)

    @classmethod
    def open(cls, name: str | None = None, table_size: int = WORD_TABLE_SIZE) -> WordTableEmbedder:
        """Return the embedder for DEFAULT_MODEL, a model2vec directory or a Hugging Face model name.

        Raises ModelNotFound.
        """
        files = resolve_model(name)
        return cls(load_parts(files), fingerprint(files), table_size)

    @cached_property
    def _plan(self) -> WordPlan | None:
        return plan_words(self._tokenizer, self._unknown_token)  # takes up to a second, and a search does not need it

    @cached_property
    def _max_characters(self) -> int | None:
        if self._max_tokens == np.inf:
            return None
        return int(self._max_tokens) * int(np.median([len(token) for token in self._tokenizer.get_vocab()]))

    def _truncated(self, text: str) -> str:
        """Truncate ``text`` to a number of characters like encode(); the limit is never below the number of tokens."""
        return text if len(text) <= self._max_tokens else text[: self._max_characters]

    @property
    def dim(self) -> int:
        return int(self._token_vectors.shape[1])

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def prepare(self) -> None:
        """Plan the cuts now instead of during later calls; takes a second."""
        with self._planning:
            import scipy.sparse  # noqa: F401  # needed to use the plan

            _ = self._plan

    def embed(self, lines: TextLines, dtype: type[np.floating[Any]] = np.float32) -> NDArray[Any]:
        """Embed ``lines`` as ``(n, dim)`` unit rows of ``dtype`` (float32 or float16), in order.

        A line with no known tokens becomes a row of zeros.

        ``lines`` must not contain unpaired surrogates. Apart from the result, memory does not grow with their number.
        Vectors of short lists are cached: such lists come from searches.
        """
        if isinstance(lines, list) and len(lines) < _BULK_LINES:
            return self._embed_kept(lines).astype(dtype, copy=False)
        out = np.empty((len(lines), self.dim), dtype)
        for start in range(0, len(lines), _BLOCK_LINES):
            block = _as_strings(lines[start : start + _BLOCK_LINES])
            self._embed_block(block, out[start : start + _BLOCK_LINES])
        return out

    def _embed_kept(self, lines: list[str]) -> NDArray[np.float32]:
        """Embed ``lines`` like ``embed``, computing only vectors that are not cached."""
        vectors, _, missing = self._lines.lookup(lines)
        if len(missing):
            row_of: dict[str, int] = {}
            rows = [row_of.setdefault(lines[at], len(row_of)) for at in missing.tolist()]
            made = np.empty((len(row_of), self.dim), np.float32)
            self._embed_block(_as_strings([*row_of]), made)
            vectors[missing] = made[rows]
            self._lines.insert([*row_of], made, np.zeros(len(row_of), np.float32))
        return vectors

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Embed a query as a unit vector, ``(dim,) float32``; zeros if it has no known tokens."""
        ids = np.array(self._tokenizer.encode(self._truncated(text), add_special_tokens=False).ids, np.intp)
        weights, rows = self._weights_and_rows(ids)
        vector: NDArray[np.float32] = weights @ self._vectors_of(rows)
        _scale_to_unit(vector[None], vector[None])
        return vector

    def _embed_block(self, lines: pa.StringArray, out: NDArray[Any]) -> None:
        lengths = pc.binary_length(lines).to_numpy()
        if len(lines) > 1 and lengths.sum(dtype=np.int64) > _BLOCK_BYTES:
            half = len(lines) // 2
            self._embed_block(lines[:half], out[:half])
            self._embed_block(lines[half:], out[half:])
            return
        self._lines_before_plan -= len(lines)
        plan = self._plan_for(len(lines)) if self._lines_before_plan < 0 else None
        sums = self._sums_of_lines(plan, lines, lengths) if plan else self._sums_of_texts(lines.to_pylist())
        _scale_to_unit(sums, out)

    def _plan_for(self, lines: int) -> WordPlan | None:
        """Return the plan, if the model has one.

        While it is being built, small numbers of lines are embedded without it, so no search waits.
        """
        if self._waits_for_plan or lines >= _BULK_LINES or "_plan" in vars(self):
            return self._plan
        if not self._planning.locked():
            threading.Thread(target=self.prepare, daemon=True).start()
        return None

    def _sums_of_lines(self, plan: WordPlan, lines: pa.StringArray, lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the sum of each line's token vectors, as ``(n, dim)``."""
        whole = np.zeros(len(lines), np.bool_) if self._max_characters is None else lengths > self._max_characters
        chunks, line_chunks = _distinct(plan.chunks(pc.if_else(whole, "", lines) if whole.any() else lines))
        if plan.word_cuts is None:
            chunk_sums, chunk_tokens = self._sums_of_words(plan, chunks)
        else:
            words, chunk_words = _distinct(plan.words(chunks))
            word_sums, word_tokens = self._sums_of_words(plan, words)
            chunk_sums, chunk_tokens = chunk_words @ word_sums, chunk_words @ word_tokens
        if plan.special:
            special = pc.match_substring_regex(chunks, plan.special).to_numpy(zero_copy_only=False)
            chunk_tokens[special] = np.inf
        sums: NDArray[np.float32] = line_chunks @ chunk_sums
        whole |= line_chunks @ chunk_tokens > min(self._max_tokens, _FINITE)
        if whole.any():
            sums[whole] = self._sums_of_texts(lines.filter(pa.array(whole)).to_pylist())
        return sums

    def _sums_of_words(self, plan: WordPlan, words: pa.StringArray) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return ``(n, dim)`` token vector sums and ``(n,)`` token counts of distinct words."""
        texts = words.to_pylist()
        sums, tokens, unknown = self._table.lookup(texts)
        for start in range(0, len(unknown), _TOKENIZED_AT_ONCE):
            part = unknown[start : start + _TOKENIZED_AT_ONCE]
            part_texts = [texts[i] for i in part]
            sums[part], tokens[part] = self._tokenize(plan.tokenizer, part_texts)
            self._table.insert(part_texts, sums[part], tokens[part])
        return sums, tokens

    def _sums_of_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Tokenize each string like encode(), and return the sums of the token vectors as ``(n, dim)``."""
        sums = np.empty((len(texts), self.dim), np.float32)
        for start in range(0, len(texts), _TOKENIZED_AT_ONCE):
            part = [self._truncated(text) for text in texts[start : start + _TOKENIZED_AT_ONCE]]
            sums[start : start + len(part)], _ = self._tokenize(self._tokenizer, part)
        return sums

    def _tokenize(self, tokenizer: Tokenizer, texts: list[str]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return ``(n, dim)`` token vector sums and ``(n,)`` token counts of strings."""
        ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        tokens = np.fromiter(map(len, ids), np.int64, len(ids))
        flat = np.fromiter(chain.from_iterable(ids), np.intp, tokens.sum())
        weights, rows = self._weights_and_rows(flat)
        bounds = np.concatenate([[0], np.cumsum(tokens)])
        if len(flat) <= _FEW_TOKENS and "scipy.sparse" not in sys.modules:
            sums = np.empty((len(texts), self.dim), np.float32)
            distinct, at = np.unique(rows, return_inverse=True)
            vectors = self._vectors_of(distinct)
            for text, (start, end) in enumerate(pairwise(bounds.tolist())):
                np.dot(weights[start:end], vectors[at[start:end]], out=sums[text])
        else:
            self._token_vectors = self._token_vectors.astype(np.float32, copy=False)  # slow, but done only once
            sums = _sparse(weights, rows, bounds, len(self._token_vectors)) @ self._token_vectors
        return sums, tokens.astype(np.float32)

    def _vectors_of(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the token vectors at ``rows``."""
        return self._token_vectors[rows].astype(np.float32, copy=False)

    def _weights_and_rows(self, ids: NDArray[np.intp]) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
        """Return each token's weight and vector row; unknown tokens have weight 0."""
        weights = np.ones(len(ids), np.float32) if self._token_weights is None else self._token_weights[ids]
        if self._unknown_token is not None:
            weights = np.where(ids == self._unknown_token, np.float32(0), weights)
        return weights.astype(np.float32, copy=False), ids if self._token_rows is None else self._token_rows[ids]


def _as_strings(lines: TextLines) -> pa.StringArray:
    if isinstance(lines, pa.ChunkedArray):
        lines = lines.combine_chunks()
    if isinstance(lines, pa.Array):
        return lines.cast(pa.string())
    return pa.array(lines, pa.string())


def _distinct(cuts: Cuts) -> tuple[pa.StringArray, csr_matrix]:
    """Return the distinct pieces, and their counts as a sparse matrix ``(strings, distinct pieces)``."""
    encoded = cuts.pieces.dictionary_encode()
    columns = encoded.indices.to_numpy()
    matrix = _sparse(np.ones(len(columns), np.float32), columns, cuts.bounds, len(encoded.dictionary))
    return encoded.dictionary, matrix


def _sparse(data: NDArray[np.float32], columns: NDArray[Any], bounds: NDArray[Any], width: int) -> csr_matrix:
    from scipy.sparse import csr_matrix  # slow to import, and not needed for small numbers of lines

    return csr_matrix((data, columns, bounds), shape=(len(bounds) - 1, width))


def _scale_to_unit(rows: NDArray[np.float32], out: NDArray[Any]) -> None:
    """Write ``rows``, scaled to unit length, into ``out``; zero rows stay zero."""
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    norms[norms == 0] = 1
    np.divide(rows, norms[:, None], out=out, casting="same_kind")

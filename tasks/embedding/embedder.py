"""Compute the vectors of ``StaticModel.encode`` several times faster: words are tokenized once and then looked up.

A static model is a weighted sum of token vectors, scaled to unit length. So the sum over a word can be cached, and a
block of lines is two sparse products: words to chunks, and chunks to lines.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.tasks.embedding.models import ModelParts, fingerprint, load_parts, resolve_model
from driftline.tasks.embedding.word_table import WordTable
from driftline.tasks.embedding.words import Cuts, WordPlan, plan_words

if TYPE_CHECKING:
    from model2vec import StaticModel
    from scipy.sparse import csr_matrix
    from tokenizers import Tokenizer

TextLines: TypeAlias = Sequence[str] | pa.Array | pa.ChunkedArray

WORD_TABLE_SIZE = 150_000
"""The number of cached words; 154 MB at 256 dimensions."""

_BLOCK_LINES = 32_768
_BLOCK_BYTES = 1 << 19  # of text: bounds the temporaries of a block to 200 MB even if no word repeats
_BULK_LINES = 4_096  # are worth waiting for the plan
_FINITE = 2**30  # tokens: a line with more must be tokenized whole
_FEW_TOKENS = 16_384  # summed without scipy, which takes 0.3 s to import
_TOKENIZED_AT_ONCE = 4_096  # texts: each Encoding object takes a kilobyte or more


class WordTableEmbedder:
    """An ``Embedder`` over a static model and a bounded table of word vectors.

    Rows equal ``model.encode(lines, normalize=True)`` to 1e-4. Threads may share it. The first ``plan_after`` lines are
    tokenized whole, because planning the cuts would take longest for a few changed files.
    """

    def __init__(
        self, model: ModelParts | StaticModel, fingerprint: str, table_size: int = WORD_TABLE_SIZE, plan_after: int = 0
    ) -> None:
        self._fingerprint = fingerprint
        self._lines_before_plan = plan_after
        self._waits_for_plan = plan_after == 0
        self._planning = threading.Lock()
        self._tokenizer: Tokenizer = model.tokenizer  # truncates to the model's maximum length
        self._token_vectors: NDArray[np.float32] = model.embedding.astype(np.float32, copy=False)
        self._token_weights: NDArray[np.float32] | None = model.weights
        self._token_rows: NDArray[np.int64] | None = model.token_mapping
        self._unknown_token: int | None = model.unk_token_id
        # encode() truncates a text to a number of characters, then to a number of tokens.
        self._max_tokens = np.inf if model.max_length is None else model.max_length
        self._max_characters = None if model.max_length is None else model.max_length * model.median_token_length
        self._table = WordTable(table_size, self.dim)

    @classmethod
    def open(cls, name: str | None = None, table_size: int = WORD_TABLE_SIZE) -> WordTableEmbedder:
        """The embedder of DEFAULT_MODEL, of a model2vec directory or of a hub name. Raises ModelNotFound."""
        files = resolve_model(name)
        return cls(load_parts(files), fingerprint(files), table_size)

    @cached_property
    def _plan(self) -> WordPlan | None:
        return plan_words(self._tokenizer, self._unknown_token)  # takes up to a second, which a search does not need

    @property
    def dim(self) -> int:
        return int(self._token_vectors.shape[1])

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def prepare(self) -> None:
        """Make the plan now, which takes a second, rather than beside later calls."""
        with self._planning:
            import scipy.sparse  # noqa: F401  # what uses the plan needs it

            _ = self._plan

    def embed(self, lines: TextLines, dtype: type[np.floating[Any]] = np.float32) -> NDArray[Any]:
        """``(n, dim)`` unit rows of ``dtype`` (float32 or float16), in order; zero rows where no token is known.

        ``lines`` are strings without unpaired surrogates. Apart from the result, memory does not grow with their
        number.
        """
        out = np.empty((len(lines), self.dim), dtype)
        for start in range(0, len(lines), _BLOCK_LINES):
            block = _as_strings(lines[start : start + _BLOCK_LINES])
            self._embed_block(block, out[start : start + _BLOCK_LINES])
        return out

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """``(dim,) float32``, a unit vector, or zeros if no token is known."""
        ids = np.array(self._tokenizer.encode(text[: self._max_characters], add_special_tokens=False).ids, np.intp)
        weights, rows = self._weights_and_rows(ids)
        vector: NDArray[np.float32] = weights @ self._token_vectors[rows]
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
        """The plan, if the model has one; few lines go without until it is made, so that no search waits for it."""
        if self._waits_for_plan or lines >= _BULK_LINES or "_plan" in vars(self):
            return self._plan
        if not self._planning.locked():
            threading.Thread(target=self.prepare, daemon=True).start()
        return None

    def _sums_of_lines(self, plan: WordPlan, lines: pa.StringArray, lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        """``(n, dim)``: the sum of the token vectors of each line."""
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
        """``(n, dim)`` sums of token vectors and ``(n,)`` numbers of tokens of distinct words, through the table."""
        texts = words.to_pylist()
        sums, tokens, unknown = self._table.lookup(texts)
        for start in range(0, len(unknown), _TOKENIZED_AT_ONCE):
            part = unknown[start : start + _TOKENIZED_AT_ONCE]
            part_texts = [texts[i] for i in part]
            sums[part], tokens[part] = self._tokenize(plan.tokenizer, part_texts)
            self._table.insert(part_texts, sums[part], tokens[part])
        return sums, tokens

    def _sums_of_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """``(n, dim)``: the sum of the token vectors of each text, tokenized as encode() does."""
        sums = np.empty((len(texts), self.dim), np.float32)
        for start in range(0, len(texts), _TOKENIZED_AT_ONCE):
            part = [text[: self._max_characters] for text in texts[start : start + _TOKENIZED_AT_ONCE]]
            sums[start : start + len(part)], _ = self._tokenize(self._tokenizer, part)
        return sums

    def _tokenize(self, tokenizer: Tokenizer, texts: list[str]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """``(n, dim)`` sums of the token vectors of texts, and ``(n,)`` numbers of tokens."""
        ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        tokens = np.fromiter(map(len, ids), np.int64, len(ids))
        flat = np.fromiter(chain.from_iterable(ids), np.intp, tokens.sum())
        weights, rows = self._weights_and_rows(flat)
        bounds = np.concatenate([[0], np.cumsum(tokens)])
        if len(flat) <= _FEW_TOKENS:
            sums = np.empty((len(texts), self.dim), np.float32)
            vectors = self._token_vectors[rows]
            for text, (start, end) in enumerate(pairwise(bounds.tolist())):
                np.dot(weights[start:end], vectors[start:end], out=sums[text])
        else:
            sums = _sparse(weights, rows, bounds, len(self._token_vectors)) @ self._token_vectors
        return sums, tokens.astype(np.float32)

    def _weights_and_rows(self, ids: NDArray[np.intp]) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
        """The weight and the row of the vector of each token; an unknown token has weight 0."""
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
    """The distinct pieces, and the sparse matrix ``(strings, distinct pieces)`` of their counts."""
    encoded = cuts.pieces.dictionary_encode()
    columns = encoded.indices.to_numpy()
    matrix = _sparse(np.ones(len(columns), np.float32), columns, cuts.bounds, len(encoded.dictionary))
    return encoded.dictionary, matrix


def _sparse(data: NDArray[np.float32], columns: NDArray[Any], bounds: NDArray[Any], width: int) -> csr_matrix:
    from scipy.sparse import csr_matrix  # slow to import, and not needed for a few lines

    return csr_matrix((data, columns, bounds), shape=(len(bounds) - 1, width))


def _scale_to_unit(rows: NDArray[np.float32], out: NDArray[Any]) -> None:
    """Write ``rows``, scaled to unit length, into ``out``; zero rows stay zero."""
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    norms[norms == 0] = 1
    np.divide(rows, norms[:, None], out=out, casting="same_kind")

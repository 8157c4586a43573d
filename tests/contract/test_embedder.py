"""The contract of embedders, for every tokenizer family: their vectors equal those of StaticModel.encode."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from model2vec import StaticModel
from numpy.typing import NDArray
from tokenizers import Tokenizer

from driftline.storage.embedding import Embedder
from driftline.tasks.embedding import embedder as embedding
from driftline.tasks.embedding.embedder import WordTableEmbedder, plan_words
from driftline.tasks.embedding.models import dimension, fingerprint, load_parts, resolve_model
from tests.support import families

CODE = [line for line in inspect.getsource(inspect).splitlines() if line.strip()][:600]
BLANKS = (
    """
 |    |\t|\u00a0|\u3000|x| x|  x|x |x  | x  y   z |\tif x:\ty|x\t y|x \ty|x\u00a0 y|x \u00a0y|a\u3000b|\u3000 a
\ufeffa|a\u200b b|a\r|a\r b|a\x0bb|\u2003 a|a\u2028 b|a\x85 b|                                        deep
""".strip("\n")
    .replace("\n", "|")
    .split("|")
)
UNICODE = (
    """
e\u0301te\u0301 naïve|a \u0301b|漢字 と かな、カナ。|한국어 12개|שלום עולם (2)|مرحبا بالعالم|ΟΔΟΣ ΟΔΟΣ2
\x00a\x07 b\x7f|— “x” …|👩\u200d👩\u200d👧 family|🇫🇷 flag|ok👍 👍 👍|\ufb01 \u2460 ½ \uff21\uff22\uff11|Быстрая лиса
""".strip("\n")
    .replace("\n", "|")
    .split("|")
)
SPECIAL = [
    *("a <s> b</s>", "<unk>", "x [MASK] y [UNK]", "a<|endoftext|> b", "<mask>", "<0x41> <0x0A>"),
    "some two words here",
]
LONG = [
    *("word " * 3000, "x" * 5000, "漢" * 3000, "a b " * 256, "a b " * 255 + "c", "(" * 600, " " * 700 + "x", "1" * 600),
    *("self.value = other(value) + " * 40, "naïve café " * 200),
]
UNKNOWN = ["\U00010480\U00010481", "\U00010480 \U00010481", "", "a\n b\n"]
LINES = [*BLANKS, *UNICODE, *SPECIAL, *LONG, *UNKNOWN, *CODE]


@pytest.fixture(scope="module")
def model(model_directory: Path) -> StaticModel:
    return StaticModel.from_pretrained(model_directory)


@pytest.fixture(scope="module")
def expected(model: StaticModel) -> NDArray[np.float32]:
    return model.encode(LINES, normalize=True, use_multiprocessing=False)


@pytest.fixture(scope="module")
def embedder(model_directory: Path) -> WordTableEmbedder:
    return WordTableEmbedder.open(str(model_directory))


@pytest.fixture(autouse=True)
def no_numerical_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


def assert_same(actual: NDArray[np.floating], expected: NDArray[np.floating], lines: list[str]) -> None:
    assert actual.shape == expected.shape
    assert not np.isnan(actual).any()
    # Sums of thousands of float32 vectors depend on the order of summation.
    bound = np.array([1e-4 if len(line) > 1000 else 1e-5 for line in lines])
    wrong = np.flatnonzero(np.abs(actual - expected).max(axis=1) > bound)
    assert not len(wrong), [lines[i][:80] for i in wrong[:10]]


@pytest.mark.parametrize("trained", [families.wordpiece, families.unigram])
def test_models_of_tests_are_the_same_in_each_process(trained: Callable[[], Tokenizer]) -> None:
    """The order of hash maps differs within a process, too."""
    assert trained().to_str() == trained().to_str()


def test_it_implements_the_embedder_protocol(embedder: WordTableEmbedder, model_directory: Path) -> None:
    files = resolve_model(str(model_directory))
    typed: Embedder = embedder
    assert typed.dim == dimension(files)
    assert typed.fingerprint == fingerprint(files)


def test_lines_equal_encode_cold_and_warm(embedder: WordTableEmbedder, expected: NDArray[np.float32]) -> None:
    for _ in range(2):
        rows = embedder.embed(LINES)
        assert rows.dtype == np.float32
        assert_same(rows, expected, LINES)


def test_each_line_alone_equals_encode(embedder: WordTableEmbedder, expected: NDArray[np.float32]) -> None:
    lines = LINES[:80]
    assert_same(np.concatenate([embedder.embed([line]) for line in lines]), expected[:80], lines)


def test_queries_equal_encode(embedder: WordTableEmbedder, expected: NDArray[np.float32]) -> None:
    lines = LINES[:80]
    assert_same(np.stack([embedder.embed_query(line) for line in lines]), expected[:80], lines)


def test_rows_are_unit_vectors_or_zero(embedder: WordTableEmbedder, expected: NDArray[np.float32]) -> None:
    norms = np.linalg.norm(embedder.embed(LINES), axis=1)
    known = np.abs(expected).max(axis=1) > 0
    np.testing.assert_allclose(norms[known], 1, atol=1e-5)
    assert (norms[~known] == 0).all()
    assert not known[LINES.index("")]


def test_zero_lines_give_zero_rows(embedder: WordTableEmbedder) -> None:
    assert embedder.embed([]).shape == (0, embedder.dim)


def test_arrow_arrays_are_accepted(embedder: WordTableEmbedder, expected: NDArray[np.float32]) -> None:
    whole = pa.array(["before", *LINES, "after"])
    chunked = pa.chunked_array([LINES[:100], LINES[100:]])
    for lines in (whole[1:-1], whole.cast(pa.large_string())[1:-1], chunked):
        assert_same(embedder.embed(lines), expected, LINES)


def test_float16_rows_are_rounded_float32_rows(embedder: WordTableEmbedder) -> None:
    rows = embedder.embed(LINES, np.float16)
    np.testing.assert_array_equal(rows, embedder.embed(LINES).astype(np.float16))


def test_block_boundaries_do_not_change_vectors(
    embedder: WordTableEmbedder, expected: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "_BLOCK_LINES", 100)
    monkeypatch.setattr(embedding, "_BLOCK_BYTES", 999)
    monkeypatch.setattr(embedding, "_TOKENIZED_AT_ONCE", 7)
    assert_same(embedder.embed(LINES), expected, LINES)


def test_a_tiny_table_gives_the_same_vectors(model_directory: Path, expected: NDArray[np.float32]) -> None:
    embedder = WordTableEmbedder.open(str(model_directory), table_size=5)
    for _ in range(2):
        assert_same(embedder.embed(LINES), expected, LINES)


def test_replanning_midway_does_not_change_vectors(
    model_directory: Path, expected: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "_BLOCK_LINES", 100)
    files = resolve_model(str(model_directory))
    embedder = WordTableEmbedder(load_parts(files), fingerprint(files), plan_after=200)
    plans = Mock(wraps=plan_words)
    monkeypatch.setattr(embedding, "plan_words", plans)
    assert_same(embedder.embed(LINES[:200]), expected[:200], LINES[:200])
    plans.assert_not_called()
    assert_same(embedder.embed(LINES[200:]), expected[200:], LINES[200:])
    plans.assert_called_once()


def test_threads_may_share_one_embedder_whose_table_overflows(
    model_directory: Path, expected: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "_BLOCK_LINES", 64)
    embedder = WordTableEmbedder.open(str(model_directory), table_size=200)
    results: dict[int, NDArray[np.float32]] = {}

    def work(shift: int) -> None:
        rolled = [*LINES[shift:], *LINES[:shift]]
        results[shift] = np.roll(embedder.embed(rolled), shift, axis=0)

    threads = [threading.Thread(target=work, args=(shift,)) for shift in (0, 200, 400, 600)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for shift in (0, 200, 400, 600):
        assert_same(results[shift], expected, LINES)

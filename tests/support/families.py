"""Small static models for every tokenizer family, with random vectors, trained on the fly.

They are the same in each process, although two trainers number tokens, or choose them, in the order of a hash map.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
from model2vec import StaticModel
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from driftline.tasks.embedding.models import load, resolve_model

TEXT = [
    *inspect.getsource(argparse).splitlines(),
    "Быстрая коричневая лиса прыгает через ленивую собаку",
    "漢字とかなの混じった文です。 naïve café Straße e\u0301",
    "don't we'll I'm it's 12345 67.8e-9 ΟΔΟΣ שלום עולם",
]


def wordpiece() -> Tokenizer:
    """Return a tokenizer of all characters, and the most frequent words and parts of words."""
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    words = Counter(word for line in TEXT for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(line)))
    pieces = Counter[str]()
    for word, count in words.items():
        for start, end in combinations(range(len(word) + 1), 2):
            pieces["##" * (start > 0) + word[start:end]] += count
    single = sorted(piece for piece in pieces if len(piece.removeprefix("##")) == 1)
    whole = sorted(words.keys() - {*single}, key=lambda word: (-words[word], word))[:700]
    others = sorted(pieces.keys() - {*single, *whole}, key=lambda piece: (-pieces[piece] * len(piece), piece))
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *single, *whole, *others][:1500]
    tokenizer = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(known)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.add_special_tokens(known[:5])
    return tokenizer


def byte_level(add_prefix_space: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=1000, special_tokens=["<unk>", "<mask>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    unknown, mask, *learned = ((token, round(score, 2)) for token, score in vocabulary)
    tokenizer.model = models.Unigram([unknown, mask, *sorted(learned, key=lambda each: (-each[1], each[0]))], unk_id=0)
    return tokenizer


def sentencepiece_bpe() -> Tokenizer:
    """Return a BPE without a pre-tokenizer, as in Llama: merges may cross any boundary, including spaces."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=1500, special_tokens=["<unk>", "<s>"], show_progress=False)
    )
    return tokenizer


def word_level(phrase: str | None = None) -> Tokenizer:
    """Return a vocabulary in which a phrase is a token: it spans words, so lines cannot be cut."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        TEXT, trainers.WordLevelTrainer(vocab_size=1500, special_tokens=["[UNK]"], show_progress=False)
    )
    if phrase is not None:
        tokenizer.add_tokens([AddedToken(phrase)])
    return tokenizer


def random_model(tokenizer: Tokenizer, dim: int = 24, max_length: int | None = 512) -> StaticModel:
    size = tokenizer.get_vocab_size()
    vectors = np.random.default_rng(7).standard_normal((size, dim)).astype(np.float32)
    return StaticModel(vectors, tokenizer, normalize=True, max_length=max_length)


def quantized_model(tokenizer: Tokenizer, dim: int = 24) -> StaticModel:
    """Return a model in which several tokens share a vector and each has a weight, as after vocabulary quantization."""
    rng = np.random.default_rng(7)
    size = tokenizer.get_vocab_size()
    return StaticModel(
        rng.standard_normal((size // 4, dim)).astype(np.float32),
        tokenizer,
        weights=rng.random(size),
        token_mapping=rng.integers(0, size // 4, size),
        max_length=64,
    )


FAMILIES: dict[str, Callable[[], StaticModel]] = {
    "default": lambda: load(resolve_model()),
    "wordpiece": lambda: random_model(wordpiece()),
    "byte_level": lambda: random_model(byte_level(), max_length=None),
    "byte_level_prefixed": lambda: random_model(byte_level(add_prefix_space=True), max_length=32),
    "unigram": lambda: random_model(unigram()),
    "unigram_quantized": lambda: quantized_model(unigram()),
    "sentencepiece_bpe": lambda: random_model(sentencepiece_bpe()),
    "word_level": lambda: random_model(word_level()),
    "phrases": lambda: random_model(word_level(phrase="two words")),
}


def save_family(name: str, folder: Path) -> Path:
    """Save a family's model as a model2vec directory."""
    FAMILIES[name]().save_pretrained(folder)
    return folder

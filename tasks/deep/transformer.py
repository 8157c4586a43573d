"""A small transformer as an embedder of texts, through onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from driftline.storage.errors import ModelNotFound
from driftline.storage.model import DeepModel
from driftline.tasks.deep.files import (
    CONFIG,
    MAX_TOKENS,
    POOLING,
    SAFETENSORS,
    TOKENIZER,
    DeepFiles,
    deep_fingerprint,
    resolve_deep_model,
    unreadable,
)

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer

BATCH_TOKENS = 2_048
"""Tokens of a batch, padding included: larger ones are no faster, and take more memory."""
MAX_THREADS = min(4, os.cpu_count() or 1)
"""A search takes no more of a large host: others search, too."""


@dataclass(frozen=True, slots=True)
class Transformer:
    """An encoder of texts; ``first_token`` says that the vector of a text is that of its first token, not the mean."""

    name: str
    session: InferenceSession
    tokenizer: Tokenizer
    first_token: bool

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """``(n, dim) float32``: unit vectors of ``texts`` in their order; zeros for a text without a token.

        Texts of like length share a batch.
        """
        encoded = [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(encoded)), key=lambda at: len(encoded[at]))
        batches = _batches(order, [len(ids) for ids in encoded])
        found = [self._run([encoded[at] for at in batch]) for batch in batches]
        if not found:
            return np.zeros((0, 0), np.float32)
        vectors = np.concatenate(found)
        back = np.empty_like(vectors)
        back[order] = vectors
        return back

    def _run(self, encoded: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """The unit vectors of one batch; a text without a token has none."""
        ids = np.zeros((len(encoded), max(1, *map(len, encoded))), np.int64)
        mask = np.zeros_like(ids)
        for row, tokens in enumerate(encoded):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        known = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        wanted = {entry.name: known[entry.name] for entry in self.session.get_inputs()}
        hidden = np.asarray(self.session.run(None, wanted)[0], np.float32)
        if self.first_token:
            pooled = hidden[:, 0] * mask[:, :1]
        else:
            pooled = (hidden * mask[:, :, None]).sum(axis=1) / np.maximum(mask.sum(axis=1, keepdims=True), 1)
        norms = np.linalg.norm(pooled, axis=1, keepdims=True)
        return np.asarray(pooled / np.maximum(norms, 1e-12), np.float32)


def _batches(order: Sequence[int], lengths: Sequence[int]) -> Iterator[list[int]]:
    """``order``, which is by length, in runs of at most BATCH_TOKENS with their padding."""
    batch: list[int] = []
    for at in order:
        if batch and (len(batch) + 1) * lengths[at] > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(at)
    if batch:
        yield batch


def load_transformer(name: str | None = None, threads: int = MAX_THREADS) -> Transformer:
    """Load a transformer from this host, once per process. Raises MissingExtra, ModelNotFound."""
    return _loaded(resolve_deep_model(name), threads)


def deep_model(name: str | None = None) -> DeepModel:
    """The transformer as a workspace records it. Raises MissingExtra, ModelNotFound."""
    files = resolve_deep_model(name)
    width = files.settings(CONFIG).get("hidden_size")
    dim = width if isinstance(width, int) else _loaded(files, 1).embed(["dimension"]).shape[1]
    return DeepModel(files.name, deep_fingerprint(files), dim)


@lru_cache(maxsize=2)
def _loaded(files: DeepFiles, threads: int) -> Transformer:
    first_token = files.pooling and bool(files.settings(POOLING).get("pooling_mode_cls_token"))
    return Transformer(files.name, _session(files, threads), _tokenizer(files), first_token)


def _session(files: DeepFiles, threads: int) -> InferenceSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # Idle threads would spin while the rest of a search works.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    graph = _drawn(files) if files.graph == SAFETENSORS else files.read(files.graph)
    try:
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common base
        raise unreadable(files, error) from error
    known = {"input_ids", "attention_mask", "token_type_ids"}
    if not {entry.name for entry in session.get_inputs()} <= known:
        raise unreadable(files, f"its graph takes other inputs than {', '.join(sorted(known))}")
    if len(session.get_outputs()[0].shape) != 3:
        raise unreadable(files, "the first output of its graph is not one vector for each token")
    return session


def _drawn(files: DeepFiles) -> bytes:
    """The graph of the weights in ``model.safetensors``."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    from driftline.tasks.deep.graph import Shape, encoder

    config: dict[str, Any] = files.settings(CONFIG)
    kind = config.get("model_type")
    if kind != "bert" or config.get("hidden_act", "gelu") != "gelu":
        fix = "Use a BERT model, or a directory that holds onnx/model.onnx."
        raise ModelNotFound(f"Weights of this kind ({kind}) cannot be read", str(files.place), fix)
    try:
        shape = Shape(
            layers=int(config["num_hidden_layers"]),
            heads=int(config["num_attention_heads"]),
            epsilon=float(config.get("layer_norm_eps", 1e-12)),
        )
        tensors = load(files.read(SAFETENSORS))
        prefix = next((name for name in ("", "bert.") if f"{name}embeddings.word_embeddings.weight" in tensors), "")
        return encoder({name.removeprefix(prefix): values for name, values in tensors.items()}, shape)
    except (KeyError, TypeError, ValueError, SafetensorError) as error:
        raise unreadable(files, error) from error


def _tokenizer(files: DeepFiles) -> Tokenizer:
    from tokenizers import Tokenizer

    content = files.read(TOKENIZER)
    try:
        tokenizer = Tokenizer.from_str(content.decode())
    except Exception as error:  # tokenizers raises bare Exceptions for files that it cannot parse
        raise unreadable(files, error) from error
    tokenizer.no_padding()
    positions = files.settings(CONFIG).get("max_position_embeddings")
    tokenizer.enable_truncation(min(MAX_TOKENS, positions) if isinstance(positions, int) else MAX_TOKENS)
    return tokenizer

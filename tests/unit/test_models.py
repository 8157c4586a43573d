"""Finding models, fingerprinting them without loading them, and loading them."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model2vec import StaticModel
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from driftline.storage.embedding import CURRENT_EMBEDDING_VERSION
from driftline.storage.errors import ModelNotFound
from driftline.tasks.embedding import models
from driftline.tasks.embedding.embedder import WordTableEmbedder
from driftline.tasks.embedding.models import DEFAULT_MODEL, ModelFiles, dimension, fingerprint, load, resolve_model


@pytest.fixture(scope="module")
def saved_default(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model as a model2vec directory."""
    folder = tmp_path_factory.mktemp("model")
    load(resolve_model()).save_pretrained(folder)
    return folder


@pytest.fixture
def directory(saved_default: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved_default, tmp_path / "copy")


def test_the_default_model_is_found_with_and_without_its_name() -> None:
    assert resolve_model() == resolve_model(DEFAULT_MODEL)
    assert dimension(resolve_model()) == 256


def test_the_default_model_makes_float32_unit_vectors() -> None:
    vector = load(resolve_model()).encode("hello world")
    assert vector.dtype == np.float32
    assert np.linalg.norm(vector) == pytest.approx(1)


def test_the_vectors_of_the_default_model_stay_in_its_file() -> None:
    assert not models.load_parts(resolve_model()).embedding.flags.writeable


def test_looking_at_a_model_imports_neither_model2vec_nor_wordllama_nor_the_hub(saved_default: Path) -> None:
    code = (
        "import sys; from driftline.tasks.embedding.models import *\n"
        "from driftline.tasks.embedding.models import dimension, fingerprint\n"
        f"for name in (None, {str(saved_default)!r}):\n"
        "    files = resolve_model(name); fingerprint(files); dimension(files)\n"
        "heavy = {'model2vec', 'wordllama', 'tokenizers', 'huggingface_hub', 'safetensors'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_saved_model_loads_like_model2vec_does(saved_default: Path) -> None:
    ours, theirs = load(resolve_model(str(saved_default))), StaticModel.from_pretrained(saved_default)
    np.testing.assert_array_equal(ours.encode(["def f(x):", ""]), theirs.encode(["def f(x):", ""]))


def test_a_float16_model_loads_as_float32(tmp_path: Path) -> None:
    model = load(resolve_model())
    StaticModel(model.embedding.astype(np.float16), model.tokenizer).save_pretrained(tmp_path)
    assert load(resolve_model(str(tmp_path))).embedding.dtype == np.float32


def test_the_fingerprint_ignores_names_locations_and_settings_that_do_not_change_vectors(
    saved_default: Path, directory: Path
) -> None:
    before = fingerprint(resolve_model(str(saved_default)))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "normalize": False, "tokenizer_name": "other"}))
    (directory / "README.md").unlink()
    assert fingerprint(resolve_model(str(directory))) == before
    assert len(before) == 20
    assert int(before, 16)


def test_the_fingerprint_changes_with_weights_tokenizer_length_limit_and_version(
    saved_default: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = resolve_model(str(directory))
    seen = {fingerprint(files)}
    for path in (files.weights, files.tokenizer):
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)
        seen.add(fingerprint(files))
    (directory / "config.json").write_text(json.dumps({"max_length": 128}))
    seen.add(fingerprint(files))
    monkeypatch.setattr("driftline.tasks.embedding.models.CURRENT_EMBEDDING_VERSION", CURRENT_EMBEDDING_VERSION + 1)
    seen.add(fingerprint(files))
    assert len(seen) == 5


def test_a_model_is_hashed_once_for_all_runs_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    original = hashlib.file_digest

    def file_digest(file: BinaryIO, name: str) -> Any:
        hashed.append(file.name)
        return original(file, name)  # type: ignore[arg-type]

    monkeypatch.setattr(models, "_DIGESTS", {})
    monkeypatch.setattr("hashlib.file_digest", file_digest)
    files = resolve_model()
    assert fingerprint(files) == fingerprint(files)
    assert len(hashed) == 2


def test_the_length_limit_of_the_config_reaches_the_model(directory: Path) -> None:
    (directory / "config.json").write_text(json.dumps({"max_length": None}))
    assert load(resolve_model(str(directory))).max_length is None
    (directory / "config.json").write_text("{}")
    assert load(resolve_model(str(directory))).max_length == models.DEFAULT_MAX_TOKENS


def test_files_survive_pickling() -> None:
    files = resolve_model()
    assert pickle.loads(pickle.dumps(files)) == files


def test_sentence_transformers_layouts_are_found(directory: Path) -> None:
    (directory / "config.json").rename(directory / "config_sentence_transformers.json")
    assert resolve_model(str(directory)).config == directory / "config_sentence_transformers.json"


@pytest.mark.parametrize("name", ["no-such-model", "/no/such/model", "a/b/c", "owner/", "", "owner/na me"])
def test_a_name_that_is_neither_a_directory_nor_a_hub_name_is_refused(name: str) -> None:
    with pytest.raises(ModelNotFound, match="No such embedding model"):
        resolve_model(name)


def test_an_empty_directory_says_which_files_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"model\.safetensors, tokenizer\.json, config\.json"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("damaged", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_damaged_file_is_a_clear_error(directory: Path, damaged: str) -> None:
    path = directory / damaged
    path.write_bytes(path.read_bytes()[:100] + b"\xff")
    with pytest.raises(ModelNotFound, match="Cannot read"):
        load(resolve_model(str(directory)))


def test_the_dimension_of_damaged_weights_is_a_clear_error(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ModelNotFound, match="Cannot read"):
        dimension(resolve_model(str(directory)))


def run_resolve(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run in a new process, because the hub's client reads its settings on import."""
    code = (
        "import sys\nfrom driftline.tasks.embedding.models import *\n"
        "from driftline.storage.errors import ModelNotFound\n"
        "try:\n    print(resolve_model(sys.argv[1]).weights)\n"
        "except ModelNotFound as error:\n    print(error); sys.exit(2)"
    )
    return subprocess.run(
        [sys.executable, "-c", code, name], env=os.environ | environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("setting", [{"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}])
def test_a_hub_model_that_cannot_be_fetched_is_one_clear_line(tmp_path: Path, setting: dict[str, str]) -> None:
    done = run_resolve("owner/model", HF_HOME=str(tmp_path), **setting)
    assert done.returncode == 2, done.stderr
    assert "owner/model" in done.stdout
    assert "use a local model2vec directory" in done.stdout
    assert done.stdout.count("\n") == 1


def test_a_cached_hub_model_needs_no_network(saved_default: Path, tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--owner--model"
    revision = "0" * 40
    shutil.copytree(saved_default, repository / "snapshots" / revision)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    done = run_resolve("owner/model", HF_HOME=str(tmp_path), HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(repository / "snapshots" / revision / "model.safetensors")


def test_a_missing_default_model_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ModelNotFound, match=r"pip install .*wordllama"):
        resolve_model()


def test_files_without_a_config_use_the_default_length(directory: Path) -> None:
    files = ModelFiles("x", directory / "model.safetensors", directory / "tokenizer.json")
    assert load(files).max_length == models.DEFAULT_MAX_TOKENS


ROWS, DIM = 4, 3
TOKENS = {"[UNK]": 0, "apple": 1, "pear": 2, "plum": 3}


def save_model(
    folder: Path,
    tensors: Mapping[str, NDArray[Any]],
    tokens: Mapping[str, int] = MappingProxyType(TOKENS),
    config: object = MappingProxyType({}),
) -> str:
    """Save a model2vec directory that has these contents."""
    folder.mkdir()
    tokenizer = Tokenizer(WordLevel(dict(tokens), "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file({name: np.ascontiguousarray(table) for name, table in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config if not isinstance(config, Mapping) else dict(config)))
    return str(folder)


def vectors(*shape: int, dtype: Any = np.float32) -> NDArray[Any]:
    return np.arange(1, 1 + math.prod(shape or (ROWS, DIM))).reshape(shape or (ROWS, DIM)).astype(dtype)


def with_one(value: float, shape: tuple[int, ...] = (ROWS, DIM), dtype: Any = np.float32) -> NDArray[Any]:
    table = vectors(*shape, dtype=dtype)
    table.flat[-1] = value
    return table


ODD_LENGTHS: tuple[object, ...] = (0, -1, 2**31, 10**400, 1.5, math.inf, math.nan, True, "512", [], {})
HOSTILE: dict[str, tuple[dict[str, NDArray[Any]], dict[str, int], object]] = {
    name: (tensors, tokens, config)
    for name, tensors, tokens, config in (
        ("no vectors", {"other": vectors()}, TOKENS, {}),
        ("one dimension too few", {"embeddings": vectors(ROWS)}, TOKENS, {}),
        ("one dimension too many", {"embeddings": vectors(ROWS, DIM, 2)}, TOKENS, {}),
        ("vectors of length 0", {"embeddings": vectors(ROWS, 0)}, TOKENS, {}),
        ("no rows", {"embeddings": vectors(0, DIM)}, TOKENS, {}),
        ("vectors that are too long", {"embeddings": vectors(ROWS, models.MAX_DIMENSION + 1)}, TOKENS, {}),
        ("too few rows", {"embeddings": vectors(ROWS - 1, DIM)}, TOKENS, {}),
        ("too many rows", {"embeddings": vectors(ROWS + 1, DIM)}, TOKENS, {}),
        ("numbers of tokens with gaps", {"embeddings": vectors()}, {**TOKENS, "plum": 9}, {}),
        ("NaN", {"embeddings": with_one(math.nan)}, TOKENS, {}),
        ("infinite", {"embeddings": with_one(math.inf)}, TOKENS, {}),
        ("minus infinite", {"embeddings": with_one(-math.inf, dtype=np.float16)}, TOKENS, {}),
        ("huge", {"embeddings": with_one(1e30)}, TOKENS, {}),
        ("beyond float32", {"embeddings": with_one(1e300, dtype=np.float64)}, TOKENS, {}),
        ("nearly zero", {"embeddings": np.full((ROWS, DIM), 1e-30)}, TOKENS, {}),
        ("all zero", {"embeddings": np.zeros((ROWS, DIM), np.float32)}, TOKENS, {}),
        ("truth values", {"embeddings": np.ones((ROWS, DIM), np.bool_)}, TOKENS, {}),
        ("mapping beyond the end", {"embeddings": vectors(), "mapping": np.array([0, 1, 2, ROWS])}, TOKENS, {}),
        ("mapping before the beginning", {"embeddings": vectors(), "mapping": np.array([0, 1, 2, -1])}, TOKENS, {}),
        ("mapping too short", {"embeddings": vectors(), "mapping": np.array([0, 1, 2])}, TOKENS, {}),
        ("empty mapping", {"embeddings": vectors(), "mapping": np.array([], np.int64)}, TOKENS, {}),
        ("mapping of fractions", {"embeddings": vectors(), "mapping": np.arange(4.0)}, TOKENS, {}),
        ("mapping of two dimensions", {"embeddings": vectors(), "mapping": np.zeros((4, 1), np.int64)}, TOKENS, {}),
        ("weights too short", {"embeddings": vectors(), "weights": np.ones(ROWS - 1, np.float32)}, TOKENS, {}),
        ("weights of two dimensions", {"embeddings": vectors(), "weights": np.ones((ROWS, 2))}, TOKENS, {}),
        ("NaN as a weight", {"embeddings": vectors(), "weights": with_one(math.nan, (ROWS,))}, TOKENS, {}),
        ("weights of zero", {"embeddings": vectors(), "weights": np.zeros(ROWS)}, TOKENS, {}),
        ("no vocabulary", {"embeddings": vectors(0, DIM)}, {}, {}),
        *((f"max_length {value!r}", {"embeddings": vectors()}, TOKENS, {"max_length": value}) for value in ODD_LENGTHS),
        ("a config that is a list", {"embeddings": vectors()}, TOKENS, []),
    )
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_model_that_makes_no_vectors_is_refused_when_it_is_loaded(tmp_path: Path, name: str) -> None:
    folder = save_model(tmp_path / "model", *HOSTILE[name])
    with pytest.raises(ModelNotFound, match=r"Cannot read the embedding model \(.{5,200}\)"):
        WordTableEmbedder.open(folder)


@pytest.mark.parametrize("kind", ["F8_E4M3", "BF16", "F4", "", None, 7])
def test_weights_of_a_type_that_numpy_lacks_are_refused(tmp_path: Path, kind: object) -> None:
    folder = save_model(tmp_path / "model", {"embeddings": vectors()})
    header = json.dumps({"embeddings": {"dtype": kind, "shape": [4, 3], "data_offsets": [0, 48]}}).encode()
    (tmp_path / "model/model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 48)
    for read in (dimension, load):
        with pytest.raises(ModelNotFound, match=r"its tensor 'embeddings' has the type"):
            read(resolve_model(folder))


@pytest.mark.parametrize("config", ["null", "7", '"x"', "[]"])
def test_a_config_that_is_not_an_object_is_reported(tmp_path: Path, config: str) -> None:
    folder = save_model(tmp_path / "model", {"embeddings": vectors()})
    (tmp_path / "model/config.json").write_text(config)
    with pytest.raises(ModelNotFound, match=r"its config.json is not an object"):
        load(resolve_model(folder))


def replacing(text: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: text}, "content": content}


@pytest.mark.parametrize(
    ("steps", "is_refused"),
    [
        ([replacing("e", "ee")] * 24, True),
        ([replacing("ab", "a" * 1_000)], True),
        ([replacing(".", "x" * 300, "Regex")], True),
        ([replacing("e*", "ee", "Regex")] * 10, True),
        ([{"type": "Sequence", "normalizers": [replacing("e", "eeee")] * 5}], True),
        ([{"type": "Prepend", "prepend": "x" * 1_000}], True),
        ([replacing(" ", "\u2581"), {"type": "Prepend", "prepend": "\u2581"}], False),
        ([{"type": "NFKC"}, replacing(" {2,}", " ", "Regex"), {"type": "Lowercase"}, replacing("``", '"')], False),
    ],
)
def test_a_tokenizer_that_multiplies_text_is_refused(
    tmp_path: Path, steps: list[dict[str, Any]], is_refused: bool
) -> None:
    folder = save_model(tmp_path / "model", {"embeddings": vectors()})
    file = tmp_path / "model/tokenizer.json"
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"normalizer": {"type": "Sequence", "normalizers": steps}})
    )
    if is_refused:
        with pytest.raises(ModelNotFound, match="times as long"):
            load(resolve_model(folder))
    else:
        load(resolve_model(folder))


@pytest.mark.parametrize("kind", ["WordLevel", "WordPiece"])
def test_a_tokenizer_without_its_unknown_token_is_refused_when_it_is_loaded(tmp_path: Path, kind: str) -> None:
    folder = save_model(tmp_path / "model", {"embeddings": vectors()})
    file = tmp_path / "model/tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["model"] |= {"type": kind, "unk_token": "none"}
    if kind == "WordPiece":
        tokenizer["model"] |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    file.write_text(json.dumps(tokenizer))
    with pytest.raises(ModelNotFound, match=r"Cannot read the embedding model \(.{5,200}\)"):
        WordTableEmbedder.open(folder)


SHAPES = st.lists(st.integers(0, 6), max_size=3).map(tuple)
NUMBERS = st.sampled_from([0.0, 1e-30, 1.0, -1.0, 3.0, 4.0, 1e13, math.nan, math.inf])


def table_of(shape: tuple[int, ...], dtype: str, value: float) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        return np.full(shape, value if dtype.startswith("f") else 1).astype(dtype)


TABLES = st.builds(
    table_of,
    st.one_of(st.just((ROWS, DIM)), st.just((ROWS,)), SHAPES),
    st.sampled_from(["float32", "float16", "float64", "int8", "int64", "bool"]),
    NUMBERS,
)


@given(
    tensors=st.dictionaries(st.sampled_from(["embeddings", "weights", "mapping", "embedding.weight"]), TABLES),
    tokens=st.dictionaries(st.sampled_from(sorted(TOKENS)), st.integers(0, 8)).filter(
        lambda tokens: len({*tokens.values()}) == len(tokens)
    ),
    max_length=st.one_of(st.none(), st.integers(-1, 5), st.floats()),
)
def test_every_model_is_refused_or_makes_finite_vectors(
    tensors: dict[str, NDArray[Any]], tokens: dict[str, int], max_length: object
) -> None:
    with tempfile.TemporaryDirectory() as location:
        folder = save_model(Path(location, "model"), tensors, tokens, {"max_length": max_length})
        try:
            dim = dimension(resolve_model(folder))
            embedder = WordTableEmbedder.open(folder)
        except ModelNotFound:
            return
    made = embedder.embed(["apple pear plum", "apple", "unknown", ""])
    assert made.shape == (4, dim)
    assert np.isfinite(made).all()
    assert np.isfinite(embedder.embed_query("apple pear")).all()


@pytest.mark.parametrize("shape", [[4], [4, 0], [4, 10**12], [4, "3"], [4, 3.5], [], None, {"a": 1}, [[4, 3]], [-4, 3]])
def test_the_dimension_of_a_header_that_lies_is_a_clear_error(tmp_path: Path, shape: object) -> None:
    folder = save_model(tmp_path / "model", {"embeddings": vectors()})
    header = json.dumps({"embeddings": {"dtype": "F32", "shape": shape, "data_offsets": [0, 48]}}).encode()
    (tmp_path / "model/model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 48)
    with pytest.raises(ModelNotFound, match="Cannot read"):
        dimension(resolve_model(folder))


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_deeply_nested_files_of_a_model_are_refused(tmp_path: Path, file: str) -> None:
    folder = save_model(tmp_path / "model", {"embeddings": vectors()})
    nested = b"[" * 100_000
    size = len(nested).to_bytes(8, "little") if file == "model.safetensors" else b""
    (tmp_path / "model" / file).write_bytes(size + nested)
    for read in (dimension, load) if file == "model.safetensors" else (load,):
        with pytest.raises(ModelNotFound, match="Cannot read"):
            read(resolve_model(folder))

"""Finding models, fingerprinting them without loading, and loading."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from model2vec import StaticModel

from driftline.storage.errors import ModelNotFound
from driftline.storage.model import CURRENT_EMBEDDING_VERSION
from driftline.tasks.embedding import models
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


def test_the_fingerprint_ignores_names_places_and_settings_that_do_not_change_vectors(
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
    with pytest.raises(ModelNotFound, match="cannot be read"):
        load(resolve_model(str(directory)))


def test_the_dimension_of_damaged_weights_is_a_clear_error(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ModelNotFound, match="cannot be read"):
        dimension(resolve_model(str(directory)))


def run_resolve(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs in a new process, because the hub's client reads its settings on import."""
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
    assert "give a local model2vec directory" in done.stdout
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
    with pytest.raises(ModelNotFound, match="pip install wordllama"):
        resolve_model()


def test_files_without_a_config_use_the_default_length(directory: Path) -> None:
    files = ModelFiles("x", directory / "model.safetensors", directory / "tokenizer.json")
    assert load(files).max_length == models.DEFAULT_MAX_TOKENS

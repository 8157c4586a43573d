"""The configuration of the memory store: YAML, references, the environment, and invalid settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import driftline as dl
from driftline.flows.config import memory_settings
from driftline.flows.config.memory_settings import (
    VARIABLES,
    MemoryConfiguration,
    load_memory_configuration,
    open_memory,
)
from driftline.storage.errors import UsageError

FULL = """
settings:
  ltm:
    backend: hierarchical
    catalog: {type: postgresql, url: "postgresql://u:${PASSWORD}@h/d", pool_size: 7}
    storage: {uri: "${BUCKET:-s3://default}/memory"}
    hierarchy:
      levels: [org, team, agent]
      root_entity: {type: team, id: core}
      defaults: {team: everyone}
    performance:
      metadata_cache: {enabled: true, ttl_seconds: "${TTL:-60}"}
      parallel_reads: {threads: "${THREADS}"}
    index: {format: parquet, row_group_size: 122880, compression: zstd}
    inline_threshold: 512
"""


def load(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> MemoryConfiguration:
    file = tmp_path / "memory.yaml"
    file.write_text(text)
    return load_memory_configuration(file, environ or {})


def test_a_file_is_read_with_its_references(tmp_path: Path) -> None:
    found = load(tmp_path, FULL, {"PASSWORD": "secret", "THREADS": "8"})
    assert found.catalog.url == "postgresql://u:secret@h/d"
    assert found.storage.uri == "s3://default/memory"
    assert (found.performance.parallel_reads.threads, found.performance.metadata_cache.ttl_seconds) == (8, 60.0)
    assert found.hierarchy.levels == ("org", "team", "agent")
    assert found.inline_threshold == 512
    assert "secret" not in repr(found)


def test_defaults_apply_without_any_setting() -> None:
    assert load_memory_configuration(environ={}) == MemoryConfiguration()


def test_the_environment_wins_and_its_numbers_are_numbers(tmp_path: Path) -> None:
    environ = {
        "PASSWORD": "x",
        "THREADS": "8",
        "DATABASE_URL": "postgresql://other/d",
        "LTM_STORAGE_URI": "/srv/memory",
        "LTM_ROOT_ENTITY_TYPE": "org",
        "LTM_ROOT_ENTITY_ID": "acme",
        "LTM_METADATA_CACHE_TTL": "5",
        "LTM_PARALLEL_THREADS": "3",
        "LTM_COMPACTION_THRESHOLD": "12",
    }
    found = load(tmp_path, FULL, environ)
    assert found.catalog.url == "postgresql://other/d"
    assert found.storage.uri == "/srv/memory"
    assert found.hierarchy.root_entity is not None
    assert (found.hierarchy.root_entity.type, found.hierarchy.root_entity.id) == ("org", "acme")
    assert found.performance.metadata_cache.ttl_seconds == 5.0
    assert found.performance.parallel_reads.threads == 3
    assert found.index.compaction_threshold == 12


def test_sections_may_refer_to_variables_as_the_file_does() -> None:
    environ = {"URL": "sqlite:///memory.db", "ORG_ID": "acme"}
    root = {"type": "org", "id": "${ORG_ID}"}
    found = load_memory_configuration(environ=environ, catalog={"url": "${URL}"}, hierarchy={"root_entity": root})
    assert found.catalog.url == "sqlite:///memory.db"
    assert found.hierarchy.root_entity is not None
    assert found.hierarchy.root_entity.id == "acme"
    with pytest.raises(UsageError, match="The variable URL is not set"):
        load_memory_configuration(environ={}, catalog={"url": "${URL}"})


def test_a_doubled_dollar_is_the_text_of_a_reference(tmp_path: Path) -> None:
    url = "postgresql://app:$${PW}$$x$$${PW}@db/main"
    environ = {"PW": "1", "LTM_STORAGE_URI": "/srv"}
    (tmp_path / "memory.yaml").write_text(f"settings: {{ltm: {{catalog: {{url: '{url}'}}}}}}")
    for found in (
        load_memory_configuration(environ=environ, catalog={"url": url}),
        load_memory_configuration(environ=environ, settings={"catalog": {"url": url}}),
        load_memory_configuration(environ=environ, settings={"ltm": {"catalog": {"url": url}}, "other": 1}),
        load_memory_configuration(environ=environ, settings={"settings": {"ltm": {"catalog": {"url": url}}}}),
        load_memory_configuration(tmp_path / "memory.yaml", environ),
    ):
        assert found.catalog.url == "postgresql://app:${PW}$$x$1@db/main"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_the_file_is_read_in_any_locale(tmp_path: Path, encoding: str) -> None:
    text = "settings: {ltm: {hierarchy: {defaults: {project: Grüße}}}}"
    (tmp_path / "memory.yaml").write_text(text, encoding)
    code = (
        "from driftline.flows.config.memory_settings import load_memory_configuration as load\n"
        f"print(ascii(load({str(tmp_path / 'memory.yaml')!r}, {{}}).hierarchy.defaults))"
    )
    environ = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "PATH": os.environ["PATH"]}
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert printed.stdout.strip() == ascii({"project": "Grüße"})


def test_a_root_given_by_id_alone_is_of_the_first_level() -> None:
    found = load_memory_configuration(environ={"LTM_ROOT_ENTITY_ID": "acme"}, hierarchy={"levels": ["team", "agent"]})
    assert found.hierarchy.root_entity is not None
    assert found.hierarchy.root_entity.type == "team"


@pytest.mark.parametrize(
    ("old", "new", "outcome"),
    [
        ("inline_threshold: 512", "inline_treshold: 512", "inline_treshold: no such key"),
        ("pool_size: 7", "poolsize: 7", "catalog.poolsize: no such key"),
        ("pool_size: 7", "pool_size: none", "catalog.pool_size"),
        ("type: postgresql,", "type: sqlite,", "the type is sqlite"),
        ("backend: hierarchical", "backend: flat", "backend"),
        ("compression: zstd", "compression: zip", "index.compression"),
        ("${PASSWORD}", "${MISSING}", "MISSING is not set"),
        ("ltm:", "other:", "settings.ltm"),
        ("[org, team, agent]", "[org, ", "not valid YAML"),
    ],
)
def test_an_error_names_the_key_and_shows_no_secret(tmp_path: Path, old: str, new: str, outcome: str) -> None:
    with pytest.raises(UsageError) as refusal:
        load(tmp_path, FULL.replace(old, new), {"PASSWORD": "secret", "THREADS": "8"})
    assert outcome in str(refusal.value)
    assert "secret" not in str(refusal.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Cannot read"):
        load_memory_configuration(environ={"LTM_CONFIG": str(tmp_path / "missing.yaml")})


def test_stores_of_a_process_share_one_model_and_embed_few_values_without_a_plan() -> None:
    embedder = memory_settings._embedder(None)()
    assert embedder is memory_settings._embedder(None)()
    assert embedder.embed(["who renews the lease"]).any()
    assert "_plan" not in vars(embedder)


@pytest.mark.parametrize("enabled", [True, False])
def test_cache_and_threads_reach_the_store(tmp_path: Path, enabled: bool) -> None:
    performance = {"metadata_cache": {"enabled": enabled, "ttl_seconds": 60}, "parallel_reads": {"threads": 3}}
    configuration = load_memory_configuration(
        environ={}, performance=performance, storage={"uri": str(tmp_path / "workspace")}
    )
    with open_memory(configuration) as store:
        assert (store._writer._pool._max_workers, store._writer._blobs._cache.ttl) == (3, 60 if enabled else 0)


@pytest.mark.parametrize("compression", ["zstd", "snappy", "GZIP", "Brotli", "lz4", "none"])
def test_indexes_are_written_as_configured(compression: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes deltas, compacted indexes and rebuilt indexes. All of them are read, whatever is configured
    later.
    """
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    location, embedding = str(tmp_path / "memory"), {"enabled": False}
    config = {"row_group_size": 100, "compression": compression}
    index = tmp_path / "memory/org:default/_index.parquet"

    def written(path: Path) -> tuple[int, str]:
        metadata = pq.ParquetFile(path).metadata
        return metadata.row_group(0).num_rows, metadata.row_group(0).column(3).compression

    meant = "UNCOMPRESSED" if compression == "none" else compression.upper()
    with dl.create_ltm_backend(storage_uri=location, index_config=config, embedding=embedding) as backend:
        backend.store_many([{"key": f"key {n}", "value": n} for n in range(150)])
        backend.core.flush()
        assert [written(path) for path in index.parent.glob("_index_delta_*")] == [(100, meant)]
        backend.compact_indexes("org:default")
        assert written(index) == (100, meant)
        index.unlink()
        backend.core.rebuild("org:default")
        assert written(index) == (100, meant)
    with dl.create_ltm_backend(storage_uri=location, embedding=embedding) as backend:
        assert len(backend.query_index()["rows"]) == 150
    for wrong in ({"compression": "zip"}, {"row_group_size": 0}, {"row_group_size": "many"}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            dl.create_ltm_backend(storage_uri=location, index_config=wrong)

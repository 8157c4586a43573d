"""Read memory store settings: YAML under ``settings.ltm``, overridden by environment variables.

``${VAR}`` and ``${VAR:-default}`` are replaced in the file and in arguments; ``$${VAR}`` is the text ``${VAR}``. An
unknown key is an error that names it. Maintenance reads two of the settings, the catalog and the compaction threshold,
but only if the workspace holds memory: ``DATABASE_URL`` belongs to the application, and an index without memory must
not depend on it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from driftline.flows.config.driftline_toml import memory_table_for
from driftline.flows.config.workspace_names import DATABASE_VARIABLE, absolute_workspace
from driftline.storage.defaults import DEFAULT_MAX_DELTAS, DEFAULT_REDACTION, Redaction
from driftline.storage.deltas.delta_index import DEFAULT_ENCODING, Encoding
from driftline.storage.entities import ROOT_ID, Entity, EntityName, Hierarchy
from driftline.storage.environment import with_home
from driftline.storage.errors import BadEntity, CatalogError, UsageError
from driftline.storage.memory.workspace_catalog import belongs, has_embedded_catalog, holds_memory
from driftline.storage.workspace.workspace import Workspace

if TYPE_CHECKING:
    from driftline.storage.memory.store import MemoryStore

MEMORY_CONFIG_VARIABLE = "LTM_CONFIG"
SECTION = "settings.ltm"
VARIABLES: Mapping[str, tuple[str, ...]] = {
    "DATABASE_URL": ("catalog", "url"),
    "LTM_STORAGE_URI": ("storage", "uri"),
    "LTM_ROOT_ENTITY_TYPE": ("hierarchy", "root_entity", "type"),
    "LTM_ROOT_ENTITY_ID": ("hierarchy", "root_entity", "id"),
    "LTM_METADATA_CACHE_TTL": ("performance", "metadata_cache", "ttl_seconds"),
    "LTM_PARALLEL_THREADS": ("performance", "parallel_reads", "threads"),
    "LTM_COMPACTION_THRESHOLD": ("index", "compaction_threshold"),
}
"""Maps environment variables to the keys that they set."""

SHORT_KEYS: Mapping[str, tuple[str, str]] = {
    "metadata_cache_ttl": ("metadata_cache", "ttl_seconds"),
    "threads": ("parallel_reads", "threads"),
}
"""Short forms of keys in the ``performance`` section."""

_REFERENCE = re.compile(r"(\$+)(\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})")
_UNSET = "Set it, or use ${VAR:-default}, or $${VAR} for the text ${VAR}."


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CatalogSection(_Section):
    """The catalog's location; by default, a SQLite file in the workspace.

    The type ``sqlalchemy`` allows both SQLite and PostgreSQL.
    """

    type: Literal["sqlite", "postgresql", "sqlalchemy"] | None = Field(
        default=None, description="Database type; must match the URL."
    )
    url: str | None = Field(
        default=None,
        repr=False,
        description="A SQLAlchemy URL. Default: a SQLite file in the workspace.",
    )
    pool_size: Annotated[int, Field(ge=1, le=100)] = Field(
        default=10, description="Number of PostgreSQL connections to keep open."
    )

    @model_validator(mode="after")
    def _agree(self) -> CatalogSection:
        found = "sqlite" if (self.url or "sqlite").startswith("sqlite") else "postgresql"
        if self.type not in (None, "sqlalchemy", found):
            raise ValueError(f"the type is {self.type}, but the url is a {found} URL")
        return self


class StorageSection(_Section):
    """The workspace: a folder, or ``s3://``, ``gs://``, ``az://``."""

    uri: str | None = Field(default=None, description="The location of the workspace.")


class EntitySection(_Section):
    """One entity."""

    type: str = Field(description="Level of the default entity, for calls with no scope.")
    id: str = Field(description="The default entity's id.")


class HierarchySection(_Section):
    """The levels from the tenant down, their default ids, and the default scope of calls."""

    levels: tuple[str, ...] = Field(
        default=("org", "project", "user", "session"), description="Levels from the tenant down."
    )
    root_entity: EntitySection | None = None
    defaults: dict[str, str] = Field(
        default_factory=dict, description="Default ids of levels that a call omits, keyed by level."
    )


class CacheSection(_Section):
    """The blob cache; blobs never change."""

    enabled: bool = Field(default=True, description="Whether to cache blobs.")
    ttl_seconds: Annotated[float, Field(ge=0)] = Field(
        default=600.0, description="Lifetime of a cached blob, in seconds."
    )


class ThreadsSection(_Section):
    """How many blobs to read in parallel."""

    threads: Annotated[int, Field(ge=1, le=256)] = Field(default=8, description="Number of blobs to read in parallel.")


class PerformanceSection(_Section):
    """Caches and threads; ``metadata_cache_ttl`` and ``threads`` are short forms of nested keys."""

    metadata_cache: CacheSection = CacheSection()
    parallel_reads: ThreadsSection = ThreadsSection()


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


class IndexSection(_Section):
    """Index encoding, and the number of deltas that triggers folding. ``format`` is always ``parquet``."""

    format: Literal["parquet"] = Field(default="parquet", description="Always `parquet`.")
    row_group_size: Annotated[int, Field(ge=1, le=10_000_000)] = Field(
        default=122_880, description="Rows per row group of the Parquet indexes."
    )
    compression: Annotated[Literal["zstd", "snappy", "gzip", "brotli", "lz4", "none"], BeforeValidator(_lower)] = Field(
        default="zstd",
        description="Compression of the Parquet indexes: `zstd`, `snappy`, `gzip`, `brotli`, `lz4` or `none`.",
    )
    compaction_threshold: Annotated[int, Field(ge=0)] = Field(
        default=DEFAULT_MAX_DELTAS, description="Fold an index with more deltas than this."
    )


class EmbeddingSection(_Section):
    """Whether semantic search is available, and with which model; the default model is installed with Driftline."""

    enabled: bool = Field(default=True, description="Whether entries can be searched semantically.")
    model: str | None = Field(default=None, description="A model2vec directory or name. Default: the installed model.")


class MemoryConfiguration(_Section):
    """The settings of a memory store, as under ``settings.ltm``."""

    backend: Literal["hierarchical"] = Field(default="hierarchical", description="The only backend.")
    catalog: CatalogSection = CatalogSection()
    storage: StorageSection = StorageSection()
    hierarchy: HierarchySection = HierarchySection()
    performance: PerformanceSection = PerformanceSection()
    index: IndexSection = IndexSection()
    embedding: EmbeddingSection = EmbeddingSection()
    inline_threshold: Annotated[int, Field(ge=0, le=65_536)] = Field(
        default=1_024, description="Values larger than this many bytes are stored in blobs."
    )
    redact: Redaction = Field(
        default=DEFAULT_REDACTION,
        description="Which credentials in values and metadata are redacted before they are stored.",
    )


def load_memory_configuration(
    path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    below: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
    **given: Any,
) -> MemoryConfiguration:
    """Load the YAML file at ``path``, then ``settings``, then the file at $LTM_CONFIG, on top of ``below``.

    The first that exists is loaded. ``settings`` is an agent's ``settings.ltm``, its ``settings``, or its whole
    document. The environment, except for variables in ``without``, overrides all of these, and ``given`` (sections by
    name) overrides the environment. Raises UsageError; the message includes the invalid key.
    """
    variables = os.environ if environ is None else environ
    found: dict[str, Any] = _resolve(dict(below or {}), variables, "[memory]")
    where = str(path or (SECTION if settings is not None else variables.get(MEMORY_CONFIG_VARIABLE)) or "")
    if path is None and settings is not None:
        for key in ("settings", "ltm"):
            settings = settings[key] if isinstance(settings.get(key), Mapping) else settings
        found = merged(found, _resolve(settings, variables, where))
    elif where:
        found = merged(found, _read(with_home(where), variables))
    for variable, keys in VARIABLES.items():
        if variables.get(variable) and variable not in without:
            found = merged(found, _nested(keys, variables[variable]))
    found = merged(found, _resolve(given, variables, "an argument"))
    if "performance" in found:
        found["performance"] = nested_performance(found["performance"])
    try:
        return MemoryConfiguration.model_validate(_with_whole_root(found))
    except ValidationError as error:
        what = f"Invalid configuration of the memory store ({_mistakes(error)})"
        raise UsageError(what, where, "Correct it.") from None


def open_memory(
    configuration: MemoryConfiguration,
    storage_uri: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    request_compaction: Callable[[str, str, int], None] | None = None,
    within: EntityName | None = None,
) -> MemoryStore:
    """Open the store that ``configuration`` describes, at ``storage_uri`` if given.

    Raises the same errors as ``MemoryStore``.

    If a tenant has too many deltas, ``request_compaction`` is called with the workspace, the tenant and their number;
    without it, the store compacts them itself. The store is bound to ``within`` unless that is None.
    """
    from driftline.storage.memory.store import MemoryStore

    uri = storage_uri or configuration.storage.uri
    if uri is None:
        raise UsageError("No workspace is configured for memory", "", "Set storage.uri, or LTM_STORAGE_URI.")
    cache, ask = configuration.performance.metadata_cache, request_compaction
    uri = absolute_workspace(uri)
    return MemoryStore(
        uri,
        catalog_url=configuration.catalog.url,
        storage_options=storage_options,
        hierarchy=hierarchy_of(configuration),
        embedder=_embedder(configuration.embedding.model) if configuration.embedding.enabled else None,
        inline_bytes=configuration.inline_threshold,
        threads=configuration.performance.parallel_reads.threads,
        cache_seconds=cache.ttl_seconds if cache.enabled else 0.0,
        pool_size=configuration.catalog.pool_size,
        compaction_threshold=configuration.index.compaction_threshold,
        on_threshold=(lambda tenant, deltas: ask(uri, str(tenant), deltas)) if ask is not None else None,
        within=within,
        encoding=encoding_of(configuration),
        redact=configuration.redact,
    )


def encoding_of(configuration: MemoryConfiguration) -> Encoding:
    """Return the encoding of memory indexes."""
    from driftline.storage.deltas.delta_index import Encoding

    return Encoding(configuration.index.compression, configuration.index.row_group_size)


def boundary_of(configuration: MemoryConfiguration, within: EntityName) -> Entity:
    """Return the entity whose full path is ``within``.

    The catalog is not consulted, so the path names the same entity for lines and for memory. Raises BadEntity.
    """
    found = hierarchy_of(configuration)
    parts = found.parts(within)
    if not found.is_complete(parts):
        raise BadEntity(
            "A boundary must be an entity's full path",
            repr(within)[:200],
            "Start with its tenant, such as org:acme.",
        )
    return found.complete(parts)


def hierarchy_of(configuration: MemoryConfiguration) -> Hierarchy:
    """Return the hierarchy that ``configuration`` describes. Raises UsageError, BadEntity."""
    section, root = configuration.hierarchy, configuration.hierarchy.root_entity
    return Hierarchy(section.levels, section.defaults, (root.type, root.id) if root else None)


def find_memory(
    configuration: MemoryConfiguration, workspace: Workspace, within: EntityName | None = None
) -> Callable[[], MemoryStore] | None:
    """Return a function that opens the store for semantic search, bound to ``within``, or None if there is no memory.

    The store is at the configured location, or in ``workspace`` if that has memory. If there is no memory, no database
    is contacted and nothing is created. Raises UsageError, WorkspaceNotFound, CatalogError, CatalogConnectionError.
    """
    from driftline.storage.memory.workspace_catalog import find_catalog, holds_memory
    from driftline.storage.workspace.workspace import Workspace

    elsewhere = configuration.storage.uri
    target = Workspace.open(absolute_workspace(elsewhere)) if elsewhere else workspace
    if not configuration.embedding.enabled or not (configuration.storage.uri or holds_memory(target)):
        return None
    url = find_catalog(target, configuration.catalog.url)
    if url is None:
        return None
    catalog = configuration.catalog.model_copy(update={"url": url})
    found = configuration.model_copy(update={"catalog": catalog})
    return cache(lambda: open_memory(found, target.objects.uri, target.objects.storage_options, within=within))


def nested_performance(section: Any) -> Any:
    """Return the ``performance`` section with SHORT_KEYS expanded."""
    if not isinstance(section, Mapping):
        return section
    result = {key: value for key, value in section.items() if key not in SHORT_KEYS}
    for key, target in SHORT_KEYS.items():
        if section.get(key) is not None:
            result = merged(result, _nested(target, section[key]))
    return result


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``above`` into ``below``; None in ``above`` keeps the value from ``below``."""
    result = dict(below)
    for key, value in above.items():
        before = result.get(key)
        if isinstance(value, Mapping) and (before is None or isinstance(before, Mapping)):
            result[key] = merged(before or {}, value)
        elif value is not None:
            result[key] = value
    return result


def _embedder(model: str | None) -> Any:
    def load() -> Any:
        from driftline.tasks.embedding.models import model_of
        from driftline.tasks.task_context import ModelRef, load_embedder

        found = model_of(model)
        # Shared with searches. It plans where to cut words only for many lines.
        return load_embedder(ModelRef(found.name, found.fingerprint, found.dim))

    return load


def _read(path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    import yaml

    try:
        loaded = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise UsageError(f"Cannot read the configuration ({error.strerror})", str(path)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(
            f"The configuration is not valid YAML ({str(error).partition(chr(10))[0]})", str(path)
        ) from error
    section = loaded.get("settings") if isinstance(loaded, dict) else None
    found = section.get("ltm") if isinstance(section, dict) else None
    if not isinstance(found, dict):
        raise UsageError("The configuration has no settings.ltm", str(path), "Add it.")
    resolved: dict[str, Any] = _resolve(found, variables, str(path))
    return resolved


def _resolve(value: Any, variables: Mapping[str, str], where: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _resolve(each, variables, where) for key, each in value.items()}
    if isinstance(value, list):
        return [_resolve(each, variables, where) for each in value]
    if not isinstance(value, str):
        return value

    def put(match: re.Match[str]) -> str:
        dollars, braces, name, default = match.groups()
        literal = "$" * (len(dollars) // 2)  # each pair stands for one
        if len(dollars) % 2 == 0:
            return literal + str(braces)
        found = variables.get(name) or default
        if found is None:
            raise UsageError(f"The variable {name} is not set", where, _UNSET)
        return literal + str(found)

    return _REFERENCE.sub(put, value)


def _nested(keys: tuple[str, ...], value: Any) -> dict[str, Any]:
    for key in reversed(keys):
        value = {key: value}
    return dict(value)


def _with_whole_root(settings: dict[str, Any]) -> dict[str, Any]:
    """Complete the root: its level defaults to the first level, its id to the level's default id."""
    hierarchy = settings.get("hierarchy")
    root = hierarchy.get("root_entity") if isinstance(hierarchy, dict) else None
    if not isinstance(hierarchy, dict) or not isinstance(root, dict) or not root or {"type", "id"} <= set(root):
        return settings
    levels = hierarchy.get("levels") or HierarchySection().levels
    type = root.get("type", levels[0])
    id = root.get("id") or (hierarchy.get("defaults") or {}).get(type, ROOT_ID)
    return {**settings, "hierarchy": {**hierarchy, "root_entity": {**root, "type": type, "id": id}}}


def _mistakes(error: ValidationError) -> str:
    """Return each invalid key and the reason, but not its value, which may be a secret."""
    parts = []
    for part in error.errors():
        name = ".".join(map(str, part["loc"]))
        parts.append(f"{name}: no such key" if part["type"] == "extra_forbidden" else f"{name}: {part['msg']}")
    return "; ".join(parts)


WHERE_CATALOGS_ARE_NAMED = f"{DATABASE_VARIABLE}, LTM_CONFIG, or [memory.catalog] in driftline.toml"


def memory_of(workspace: str, path: str | None = None) -> MemoryConfiguration:
    """Return the memory settings of ``workspace``, from the file at ``path`` or $LTM_CONFIG and the environment.

    Their defaults come from ``[memory]`` in the workspace's ``driftline.toml``. Raises UsageError.
    """
    return load_memory_configuration(path, below=memory_table_for(workspace))


def catalog_to_keep(workspace: Workspace) -> str | None:
    """Return the configured catalog URL of the memory in ``workspace``, or None.

    $DATABASE_URL is used only if it contains this catalog, or if it cannot be read and the workspace has no catalog.
    Raises UsageError, CatalogMismatch.
    """
    if not holds_memory(workspace):
        return None
    table = memory_table_for(workspace.objects.uri)
    named = load_memory_configuration(below=table, without=[DATABASE_VARIABLE]).catalog.url
    return named or _of_application(workspace, os.environ.get(DATABASE_VARIABLE))


def compaction_threshold(workspace: Workspace) -> int | None:
    """Return how many deltas a memory index in ``workspace`` may have before folding, or None if there is no memory."""
    if not holds_memory(workspace):
        return None
    return memory_of(workspace.objects.uri).index.compaction_threshold


def memory_encoding(workspace: Workspace) -> Encoding:
    """Return the encoding of the memory indexes in ``workspace``."""
    if not holds_memory(workspace):
        return DEFAULT_ENCODING
    return encoding_of(memory_of(workspace.objects.uri))


def _of_application(workspace: Workspace, url: str | None) -> str | None:
    if not url:
        return None
    try:
        return url if belongs(workspace, url) else None
    except CatalogError:
        return None if has_embedded_catalog(workspace) else url
    except UsageError:  # another type of database, which cannot be a catalog
        return None

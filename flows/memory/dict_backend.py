"""The memory store for hosts that expect dictionaries: ``{success, ...}`` or ``{success: False, error, error_type}``.

``error_type`` is the stable ``kind`` of the error, such as ``storage_error`` or ``connection_error``. What nobody
foresaw is raised, as a defect.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, get_args

from driftline.flows.config.defaults import DEFAULT_MAX_AGE_SECONDS
from driftline.flows.config.memory_settings import (
    MemoryConfiguration,
    load_memory_configuration,
    merged,
    nested_performance,
    open_memory,
)
from driftline.flows.output.compaction_events import ask_for_memory
from driftline.storage.deltas.delta_index import Folded
from driftline.storage.errors import BadEntry, DriftlineError, UsageError
from driftline.storage.hierarchy import EntityName
from driftline.storage.memory.index_query import KeyRange
from driftline.storage.memory.ranking import Mode
from driftline.storage.memory.reader import MemoryEntry
from driftline.storage.memory.search import MemoryHits
from driftline.storage.memory.store import MemoryItem, MemoryStore
from driftline.storage.memory.upkeep import compact_index, compact_indexes, entries_of

Result = dict[str, Any]
Errors = Literal["return", "raise"]
_P = ParamSpec("_P")


def entry_to_dict(entry: MemoryEntry) -> Result:
    """An entry as JSON has it: times are ISO 8601 with their zone, the entity is its path."""
    return {
        "key": entry.key,
        "value": entry.value,
        "entity": entry.entity.directory,
        "metadata": entry.metadata,
        "size_bytes": entry.size_bytes,
        "content_hash": entry.content_hash,
        "created": entry.created.isoformat(),
        "updated": entry.updated.isoformat(),
        "expires": entry.expires.isoformat() if entry.expires else None,
    }


def hits_to_dict(hits: MemoryHits[MemoryEntry]) -> Result:
    """``{results: [{record, score, rank, distance}]}``, and ``explanation`` if the hits have one."""
    results = [
        {"record": entry_to_dict(hit.record), "score": hit.score, "rank": hit.rank, "distance": hit.distance}
        for hit in hits
    ]
    return {"results": results, **({"explanation": hits.explanation.to_dict()} if hits.explanation else {})}


def _told(
    method: Callable[Concatenate[HierarchicalLTMBackend, _P], Result],
) -> Callable[Concatenate[HierarchicalLTMBackend, _P], Result]:
    @functools.wraps(method)
    def call(self: HierarchicalLTMBackend, *args: _P.args, **kwargs: _P.kwargs) -> Result:
        try:
            self.core.catalog.check_open()
            return {"success": True, **method(self, *args, **kwargs)}
        except DriftlineError as error:
            if self.errors == "raise":
                raise
            return failure(error)

    return call  # type: ignore[return-value]  # wraps() hides that it is a function, which binds to its object


def failure(error: DriftlineError) -> Result:
    """``{success, error, error_type}``, and the ``blob_path`` and ``blob_paths`` that were written in vain, if any."""
    blobs = {name: value for name, value in error.to_dict().items() if name in ("blob_path", "blob_paths")}
    return {"success": False, "error": str(error), "error_type": error.kind, **blobs}


class HierarchicalLTMBackend:
    """A memory store behind dictionaries; ``core`` is what it adapts. Close it after use.

    With ``errors="raise"`` failures are raised as the typed exceptions of ``core``.
    """

    def __init__(self, store: MemoryStore, configuration: MemoryConfiguration, errors: Errors = "return") -> None:
        self.core = store
        self.configuration = configuration
        self.errors = errors

    def close(self) -> None:
        """Flush what is waiting and close the store."""
        self.core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- entries -----------------------------------------------------------------------------

    @_told
    def store(
        self,
        key: str,
        value: Any,
        entity: EntityName | None = None,
        metadata: Mapping[str, Any] | None = None,
        expires_at: datetime | str | None = None,
    ) -> Result:
        """``{key, entity}``; without an entity the root owns it."""
        owner = self.core.names.root if entity is None else self.core.names.find(entity)
        self.core.store(key, value, owner, metadata, _time(expires_at))
        return {"key": key, "entity": owner.directory}

    @_told
    def store_many(self, items: Sequence[Mapping[str, Any]]) -> Result:
        """``{stored}``; items have the arguments of ``store`` as keys."""
        drafts = []
        for item in items:
            unknown = set(item) - {"key", "value", "entity", "metadata", "expires_at"}
            if unknown or "key" not in item or "value" not in item:
                raise BadEntry("An item has key, value and perhaps entity, metadata, expires_at", str(sorted(item)))
            owner, expires = item.get("entity") or self.core.names.root, _time(item.get("expires_at"))
            owner = tuple(owner) if isinstance(owner, list) else owner  # a pair that comes from JSON
            drafts.append(MemoryItem(item["key"], item["value"], owner, item.get("metadata"), expires))
        return {"stored": self.core.store_many(drafts)}

    @_told
    def retrieve(self, key: str, entity: EntityName | None = None) -> Result:
        """``{found, entry, value}``; ``value`` is None, too, where nothing was found."""
        entry = self.core.retrieve(key, entity)
        found = entry_to_dict(entry) if entry is not None else None
        return {"found": entry is not None, "entry": found, "value": entry.value if entry else None}

    @_told
    def retrieve_batch(self, keys: Sequence[str], entity: EntityName | None = None) -> Result:
        """``{entries: {key: entry}, missing}``."""
        found = self.core.retrieve_batch(keys, entity)
        entries = {key: entry_to_dict(entry) for key, entry in found.items()}
        return {"entries": entries, "missing": [key for key in keys if key not in found]}

    @_told
    def retrieve_by_entity(
        self,
        entity_type: str,
        entity_id: str,
        include_descendants: bool = True,
        limit: int = 1_000,
        offset: int = 0,
        allowed_ancestors: Sequence[EntityName] | None = None,
        cursor: str | None = None,
        within: EntityName | None = None,
    ) -> Result:
        """``{entries, total_count, has_more, cursor}``."""
        page = self.core.retrieve_by_entity(
            entity_type,
            entity_id,
            include_descendants,
            limit,
            offset,
            within=within,
            allowed_ancestors=allowed_ancestors,
            cursor=cursor,
        )
        entries = [entry_to_dict(entry) for entry in page.entries]
        return {
            "entries": entries,
            "total_count": page.total_count,
            "has_more": page.has_more,
            "cursor": page.cursor,
        }

    @_told
    def delete(self, key: str, entity: EntityName | None = None) -> Result:
        """``{deleted}``: whether there was such an entry."""
        return {"deleted": self.core.delete(key, entity)}

    @_told
    def search(
        self,
        query: str = "",
        metadata_filter: Mapping[str, Any] | None = None,
        entity: EntityName | None = None,
        allowed_ancestors: Sequence[EntityName] | None = None,
        limit: int = 1_000,
    ) -> Result:
        """``{entries}`` by the words of their keys and by their metadata."""
        found = self.core.search(query, metadata_filter, entity, allowed_ancestors=allowed_ancestors, limit=limit)
        return {"entries": [entry_to_dict(entry) for entry in found]}

    @_told
    def search_memory(
        self,
        query: str,
        top_k: int = 5,
        filter: Mapping[str, Any] | None = None,
        entity: EntityName | None = None,
        allowed_ancestors: Sequence[EntityName] | None = None,
        max_distance: float | None = None,
        mode: Mode = "hybrid",
        explain: bool = False,
    ) -> Result:
        """``{results: [{record, score, rank}]}`` by words and meaning, best first; with ``explain``, ``explanation``.

        The score is 1 - distance. ``max_distance`` drops what is farther. ``mode`` is hybrid, vector or text.
        """
        hits = self.core.search_memory(
            query,
            top_k,
            filter,
            entity,
            allowed_ancestors=allowed_ancestors,
            max_distance=max_distance,
            mode=mode,
            explain=explain,
        )
        return hits_to_dict(hits)

    @_told
    def query_index(
        self,
        range: KeyRange | None = None,
        group_by: str | None = None,
        entity: EntityName | None = None,
        rev: int | None = None,
        limit: int = 1_000,
    ) -> Result:
        """``{rows}`` of the index of an entity: entries without values, or ``{LEVEL: id, entity, entries, size_bytes}``
        of each entity of the level ``group_by``.

        ``range`` is the first key and the one behind the last. ``rev`` asks for an earlier revision of the index.
        """
        return {"rows": self.core.query_index(range, group_by, entity, rev=rev, limit=limit)}

    # -- entities ----------------------------------------------------------------------------

    @_told
    def register_entity(self, entity: EntityName) -> Result:
        """``{entity}``."""
        return {"entity": self.core.register_entity(entity).entity.directory}

    @_told
    def register_entity_with_defaults(
        self, entity_type: str, entity_id: str, parents: Mapping[str, str] | None = None
    ) -> Result:
        """``{entity}``, with the defaults of the levels that were not named."""
        record = self.core.register_entity_with_defaults(entity_type, entity_id, parents)
        return {"entity": record.entity.directory}

    @_told
    def list_entities(
        self, within: EntityName | None = None, entity_type: str | None = None, limit: int = 1_000
    ) -> Result:
        """``{entities}``, by their paths."""
        found = self.core.list_entities(within, entity_type, limit=limit)
        return {"entities": [record.entity.directory for record in found]}

    @_told
    def move_entity(self, entity: EntityName, parent: EntityName) -> Result:
        """``{entity}``: where it is now."""
        return {"entity": self.core.move_entity(entity, parent).directory}

    @_told
    def delete_entity(self, entity: EntityName, cascade: bool = False) -> Result:
        """``{entries_deleted}``."""
        return {"entries_deleted": self.core.delete_entity(entity, cascade=cascade)}

    # -- upkeep ------------------------------------------------------------------------------

    @_told
    def compact_indexes(self, entity_path: EntityName | None = None, max_deltas: int | None = None) -> Result:
        """``{compacted_paths, entries_processed}`` of the index of an entity, or of all with more than ``max_deltas``.

        An entry counts once, in however many indexes it is.
        """
        self.core.flush()
        workspace = self.core.workspace
        threshold = self.configuration.index.compaction_threshold if max_deltas is None else max_deltas
        folded: dict[str, Folded] = {}
        if entity_path is not None:
            folded = compact_index(workspace, self.core.names.find(entity_path))
        else:
            boundary = self.core.names.boundary
            for top in workspace.tenants() if boundary is None else [boundary]:
                folded |= compact_indexes(workspace, top, threshold)
        return {"compacted_paths": sorted(folded), "entries_processed": entries_of(folded)}

    @_told
    def cleanup_orphans(self, max_age_seconds: float = DEFAULT_MAX_AGE_SECONDS, dry_run: bool = False) -> Result:
        """What ``driftline cleanup --json`` prints; a bound store cleans the memory blobs within its boundary."""
        from driftline.flows.runs.cleanup_run import CleanupRequest, clean_workspace
        from driftline.flows.runs.cleanup_within import clean_within

        core, objects = self.core, self.core.workspace.objects
        if (boundary := core.names.boundary) is not None:
            if not dry_run:
                core.collect_expired()
            report = clean_within(core.workspace, core.catalog, boundary, max_age_seconds, dry_run=dry_run)
            return report.to_dict()
        request = CleanupRequest(
            objects.uri,
            max_age_seconds,
            dry_run,
            storage_options=objects.storage_options,
            catalog_url=self.configuration.catalog.url,
        )
        return clean_workspace(request).to_dict()


def create_ltm_backend(
    backend: str = "hierarchical",
    *,
    catalog_url: str | None = None,
    storage_uri: str | None = None,
    hierarchy_levels: Sequence[str] | None = None,
    hierarchy_defaults: Mapping[str, str] | None = None,
    index_config: Mapping[str, Any] | None = None,
    performance_config: Mapping[str, Any] | None = None,
    catalog: Mapping[str, Any] | None = None,
    storage: Mapping[str, Any] | None = None,
    hierarchy: Mapping[str, Any] | None = None,
    index: Mapping[str, Any] | None = None,
    performance: Mapping[str, Any] | None = None,
    embedding: Mapping[str, Any] | None = None,
    inline_threshold: int | None = None,
    config: str | None = None,
    settings: Mapping[str, Any] | None = None,
    within: EntityName | None = None,
    errors: Errors = "return",
) -> HierarchicalLTMBackend:
    """Open a memory store whose methods return dictionaries.

    Arguments win over environment variables, and those over ``config``, a YAML file, or ``settings``, what its
    ``settings.ltm`` holds. ``catalog``, ``storage``,
    ``hierarchy``, ``index``, ``performance`` and ``embedding`` are sections of that file; ``catalog_url``,
    ``storage_uri``, ``hierarchy_levels`` and ``hierarchy_defaults`` are single keys of them, and win over them, as
    ``index_config`` and ``performance_config`` win over ``index`` and ``performance``. ``inline_threshold`` is in
    bytes. ``within`` binds the store to an entity (see ``MemoryStore``). With ``errors="raise"`` the methods raise
    typed exceptions. Raises BadEntity, UsageError, CatalogMismatch, UnsafeStore, WorkspaceTooNew, CorruptFile,
    AccessDenied, CatalogError, StorageError.
    """
    if backend != "hierarchical":
        raise UsageError("There is no such memory backend", repr(backend), "It is 'hierarchical'.")
    if errors not in get_args(Errors):
        raise UsageError("There is no such way to report errors", repr(errors), "It is 'return' or 'raise'.")
    configuration = load_memory_configuration(
        config,
        settings=settings,
        catalog=merged(catalog or {}, {"url": catalog_url}),
        storage=merged(storage or {}, {"uri": storage_uri}),
        hierarchy=merged(hierarchy or {}, {"levels": hierarchy_levels, "defaults": hierarchy_defaults}),
        index=merged(index or {}, index_config or {}),
        performance=merged(nested_performance(performance or {}), nested_performance(performance_config or {})),
        embedding=embedding,
        inline_threshold=inline_threshold,
    )
    store = open_memory(configuration, ask_for_compaction=ask_for_memory, within=within)
    return HierarchicalLTMBackend(store, configuration, errors)


def _time(given: datetime | str | None) -> datetime | None:
    if not isinstance(given, str):
        return given
    try:
        return datetime.fromisoformat(given)
    except ValueError:
        raise BadEntry("A time of expiry is written in ISO 8601, with its zone", repr(given[:40])) from None

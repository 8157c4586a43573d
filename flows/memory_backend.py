"""Adapt the memory store for hosts that expect dictionaries: ``{success, ...}`` or ``{success: False, error,
error_type}``.

``error_type`` is the stable ``kind`` of the error, such as ``storage_error`` or ``connection_error``. Unexpected
exceptions are bugs, and propagate.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, cast, get_args

from driftline.flows.config.memory_settings import (
    MemoryConfiguration,
    encoding_of,
    load_memory_configuration,
    merged,
    nested_performance,
    open_memory,
)
from driftline.flows.memory_arguments import checked_argument, checked_arguments, shortened
from driftline.storage.defaults import DEFAULT_ENTRIES, DEFAULT_MAX_AGE_SECONDS, Mode
from driftline.storage.deltas.delta_index import Folded
from driftline.storage.entities import EntityName
from driftline.storage.errors import BadEntry, DriftlineError, UsageError
from driftline.storage.memory.entries import MemoryEntry
from driftline.storage.memory.memory_indexes import KeyRange, check_count, compact_index, compact_indexes, entries_of
from driftline.storage.memory.search import MemoryHits
from driftline.storage.memory.store import MemoryItem, MemoryStore
from driftline.storage.option_table import path_or_uri

PREFECT_SERVER_VARIABLE = "PREFECT_API_URL"
Result = dict[str, Any]
Errors = Literal["return", "raise"]
_P = ParamSpec("_P")
_Answer = TypeVar("_Answer")

_ITEM = frozenset({"key", "value", "entity", "metadata", "expires_at"})


def hits_to_dict(hits: MemoryHits[MemoryEntry]) -> Result:
    """Return ``{results: [{record, score, rank, distance}], notes}``, plus ``explanation`` if the hits have one."""
    results = [
        {"record": hit.record.to_dict(), "score": hit.score, "rank": hit.rank, "distance": hit.distance} for hit in hits
    ]
    answer: Result = {"results": results, "notes": list(hits.notes)}
    return answer | ({"explanation": hits.explanation.to_dict()} if hits.explanation else {})


def _up_to(limit: int, found: Sequence[Any]) -> tuple[Sequence[Any], bool]:
    """Return the first ``limit`` of what was found with ``limit + 1``, and whether there is more."""
    return found[:limit], 0 < limit < len(found)


def _returning_dict(
    method: Callable[Concatenate[HierarchicalLTMBackend, _P], _Answer],
) -> Callable[Concatenate[HierarchicalLTMBackend, _P], _Answer]:
    """Decorate ``method``: check its arguments by name, and convert its results and errors to dictionaries."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self: HierarchicalLTMBackend, *args: _P.args, **kwargs: _P.kwargs) -> Any:
        try:
            self.core.catalog.check_open()
            checked: Callable[..., Any] = method
            answer = checked(self, **checked_arguments(signature, args, kwargs))
            return {"success": True, **answer} if isinstance(answer, Mapping) else answer
        except DriftlineError as error:
            if self.errors == "raise":
                raise
            return failure(error)

    return call  # type: ignore[return-value]  # wraps() hides that it is a function and binds as a method


def failure(error: DriftlineError) -> Result:
    """Return ``{success, error, error_type}``, plus ``blob_path`` and ``blob_paths`` of unreferenced blobs."""
    blobs = {name: value for name, value in error.to_dict().items() if name in ("blob_path", "blob_paths")}
    return {"success": False, "error": str(error), "error_type": error.kind, **blobs}


class HierarchicalLTMBackend:
    """A memory store whose methods return dictionaries; ``core`` is the wrapped store. Close it after use.

    A failure is ``{success: False, error, error_type}``; with ``errors="raise"``, methods raise the exceptions of
    ``core``.
    """

    core: MemoryStore
    configuration: MemoryConfiguration
    errors: Errors

    def __init__(
        self,
        catalog_url: str | None = None,
        storage_uri: str | os.PathLike[str] | None = None,
        hierarchy_levels: Sequence[str] | None = None,
        hierarchy_defaults: Mapping[str, str] | None = None,
        index_config: Mapping[str, Any] | None = None,
        performance_config: Mapping[str, Any] | None = None,
        *,
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
    ) -> None:
        """Open a store. See ``create_ltm_backend`` for the arguments."""
        if errors not in get_args(Errors):
            raise UsageError("errors must be 'return' or 'raise'", shortened(errors), "Pass one of them.")
        sections: dict[str, tuple[Any, Any]] = {
            "catalog": (catalog, {"url": catalog_url}),
            "storage": (storage, {"uri": storage_uri and path_or_uri("storage_uri", storage_uri)}),
            "hierarchy": (hierarchy, {"levels": hierarchy_levels, "defaults": hierarchy_defaults}),
            "index": (index, index_config),
            "performance": (performance, performance_config),
            "embedding": (embedding, None),
            "settings": (settings, None),
        }
        for name, parts in sections.items():
            for part in parts:
                if part is not None and not isinstance(part, Mapping):
                    raise UsageError(f"{name} must be a mapping, not {shortened(part)}")
        whole = {name: merged(below or {}, above or {}) for name, (below, above) in sections.items()}
        nested = [nested_performance(each or {}) for each in (performance, performance_config)]
        whole["performance"] = merged(*nested)
        del whole["settings"]
        found = load_memory_configuration(config, settings=settings, **whole, inline_threshold=inline_threshold)
        self.core = open_memory(found, request_compaction=memory_compaction_request(), within=within)
        self.configuration = found
        self.errors = errors

    def close(self) -> None:
        """Flush pending changes and close the store.

        Examples:
            >>> driftline.create_ltm_backend(storage_uri=f"{location}-closed").close()
        """
        self.core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- entries -----------------------------------------------------------------------------

    @_returning_dict
    def store(
        self,
        key: str,
        value: Any,
        entity: EntityName | None = None,
        metadata: Mapping[str, Any] | None = None,
        expires_at: date | str | None = None,
    ) -> Result:
        """Store a JSON value. It is durable when the call returns.

        Args:
            key: unique within the owner's tenant.
            value: any JSON value.
            entity: the owner; by default the root.
            metadata: fields for filters.
            expires_at: a time or a date, or its ISO 8601 string; UTC if it has no time zone.

        Returns:
            ``{success, key, entity, replaced, moved_from, redacted}``: whether the key had a value, the entity that
            owned it, if another one, and the number of redacted credentials by rule.

        Examples:
            >>> memory.store("goal", "ship it", "org:acme")["success"]
            True
        """
        owner = self.core.names.root if entity is None else self.core.names.find(entity)
        expires = cast("datetime | None", expires_at)  # ARGUMENTS converted it
        stored = self.core.store(key, value, owner, metadata, expires)
        left = next(iter(stored.moved_from.get(key, ())), None)
        moved = {"replaced": stored.replaced > 0, "moved_from": left.directory if left else None}
        return {"key": key, "entity": owner.directory, **moved, "redacted": dict(stored.redacted)}

    @_returning_dict
    def store_many(self, items: Sequence[Mapping[str, Any]]) -> Result:
        """Store items in one transaction.

        Args:
            items: mappings with the arguments of ``store`` as keys.

        Returns:
            ``{success, stored, replaced, moved_from, redacted}``: how many keys had a value, lists of the former
            owners of keys that moved (one per tenant), and the number of redacted credentials by rule.

        Raises:
            BadEntry: if an item has no key or no value, with ``errors="raise"``.

        Examples:
            >>> memory.store_many([{"key": "a", "value": 1}, {"key": "b", "value": 2}])["stored"]
            2
        """
        drafts = []
        for item in list[Any](items):
            if not isinstance(item, Mapping) or not {"key", "value"} <= set(item) <= _ITEM:
                text = shortened(list(item) if isinstance(item, Mapping) else item)
                raise BadEntry(
                    "An item must have a key and a value; entity, metadata and expires_at are optional", text
                )
            filled = {name: value for name, value in item.items() if value is not None or name == "key"}
            given = {name: checked_argument(name, value) for name, value in filled.items()}
            owner = given.get("entity", self.core.names.root)
            draft = MemoryItem(given["key"], item["value"], owner, given.get("metadata"), given.get("expires_at"))
            drafts.append(draft)
        stored = self.core.store_many(drafts)
        moved = {key: [owner.directory for owner in owners] for key, owners in stored.moved_from.items()}
        counts = {"stored": stored.entries, "replaced": stored.replaced}
        return {**counts, "moved_from": moved, "redacted": dict(stored.redacted)}

    @_returning_dict
    def retrieve(self, key: str, entity: EntityName | None = None) -> Result:
        """Return the entry stored under a key.

        Args:
            key: its key.
            entity: search only this entity and everything under it; default: the root, or everything if there is none.

        Returns:
            ``{success, found, entry, value}``; ``value`` is also None if nothing was found.

        Examples:
            >>> memory.retrieve("missing")["found"]
            False
        """
        entry = self.core.retrieve(key, entity)
        found = entry.to_dict() if entry is not None else None
        return {"found": entry is not None, "entry": found, "value": entry.value if entry else None}

    @_returning_dict
    def retrieve_batch(self, keys: Sequence[str], entity: EntityName | None = None) -> Result:
        """Return the entries stored under several keys.

        Args:
            keys: their keys.
            entity: search only this entity and everything under it; default: the root, or everything if there is none.

        Returns:
            ``{success, entries: {key: entry}, missing}``.

        Examples:
            >>> memory.retrieve_batch(["missing"])["missing"]
            ['missing']
        """
        found = self.core.retrieve_batch(keys, entity)
        entries = {key: entry.to_dict() for key, entry in found.items()}
        return {"entries": entries, "missing": [key for key in keys if key not in found]}

    @_returning_dict
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
        """Return a page of an entity's entries, like ``MemoryStore.retrieve_by_entity``.

        Args:
            entity_type: its level.
            entity_id: its id.
            include_descendants: include the entries of its descendants.
            limit: maximum number of entries.
            offset: how many entries to skip.
            allowed_ancestors: only entries at or below one of these entities.
            cursor: the cursor that the previous page returned.
            within: include every entity of this type and id at or below this entity.

        Returns:
            ``{success, entries, total_count, has_more, cursor, partial}``; ``partial`` is set if ``allowed_ancestors``
            excludes a part of the entity.

        Examples:
            >>> memory.retrieve_by_entity("org", "empty")["total_count"]
            0
        """
        ask = functools.partial(
            self.core.retrieve_by_entity, entity_type, entity_id, include_descendants, limit, offset
        )
        page = ask(within=within, allowed_ancestors=allowed_ancestors, cursor=cursor)
        entries = [entry.to_dict() for entry in page.entries]
        more = {"total_count": page.total_count, "has_more": page.has_more, "cursor": page.cursor}
        return {"entries": entries, **more, "partial": page.is_partial}

    @_returning_dict
    def delete(self, key: str, entity: EntityName | None = None) -> Result:
        """Delete the entry of a key.

        Args:
            key: its key.
            entity: look only in this entity and everything under it; default: the root, or everything if there is none.

        Returns:
            ``{success, deleted}``: whether the entry existed.

        Examples:
            >>> memory.delete("missing")["deleted"]
            False
        """
        return {"deleted": self.core.delete(key, entity)}

    @_returning_dict
    def search(
        self,
        query: str = "",
        metadata_filter: Mapping[str, Any] | None = None,
        entity: EntityName | None = None,
        allowed_ancestors: Sequence[EntityName] | None = None,
        limit: int = 1_000,
    ) -> Result:
        """Find entries by words in their keys and by metadata, latest first.

        Args:
            query: words that the key must contain.
            metadata_filter: fields that must match.
            entity: search only this entity and everything under it; default: the root, or everything if there is none.
            allowed_ancestors: only entries at or below one of these entities.
            limit: maximum number of entries.

        Returns:
            ``{success, entries, has_more}``; a larger limit returns more.

        Examples:
            >>> memory.search("no such words")["entries"]
            []
        """
        more = check_count(limit, "limit") + 1
        found = self.core.search(query, metadata_filter, entity, allowed_ancestors=allowed_ancestors, limit=more)
        shown, has_more = _up_to(limit, found)
        return {"entries": [entry.to_dict() for entry in shown], "has_more": has_more}

    @_returning_dict
    def search_memory(
        self,
        query: str,
        top_k: int = DEFAULT_ENTRIES,
        filter: Mapping[str, Any] | None = None,
        entity: EntityName | None = None,
        allowed_ancestors: Sequence[EntityName] | None = None,
        max_distance: float | None = None,
        mode: Mode = "hybrid",
        explain: bool = False,
    ) -> Result:
        """Return the entries that match a query best, like ``MemoryStore.search_memory``.

        Args:
            query: the query.
            top_k: maximum number of results.
            filter: metadata fields; ``entity`` may be an entity path.
            entity: search only this entity and everything under it; default: the root, or everything if there is none.
            allowed_ancestors: only entries at or below one of these entities.
            max_distance: drop more distant results (1 - cosine, 0 to 2).
            mode: ``hybrid``, ``vector`` or ``text``.
            explain: add an ``explanation``.

        Returns:
            ``{success, results: [{record, score, rank, distance}], notes}``, best first; ``notes`` say why nothing
            was found.

        Examples:
            >>> _ = memory.store("pet", "the dog barks at the moon", "org:yard")
            >>> [each["rank"] for each in memory.search_memory("what barks", entity="org:yard")["results"]]
            [1]
        """
        ask = functools.partial(
            self.core.search_memory, query, top_k, filter, entity, allowed_ancestors=allowed_ancestors
        )
        return hits_to_dict(ask(max_distance=max_distance, mode=mode, explain=explain))

    @_returning_dict
    def query_index(
        self,
        range: KeyRange | None = None,
        group_by: str | None = None,
        entity: EntityName | None = None,
        rev: int | None = None,
        limit: int = 1_000,
    ) -> Result:
        """Query an entity's Parquet index, without using the catalog.

        Args:
            range: the first key and an exclusive upper bound.
            group_by: return totals per entity of this level instead of entries.
            entity: query only this entity and everything under it; default: the root, or everything if there is none.
            rev: read the index as of this revision.
            limit: maximum number of entries.

        Returns:
            ``{success, rows, has_more}``: entries with their values omitted, or ``{LEVEL: id, entity, entries,
            size_bytes}``.

        Examples:
            >>> memory.query_index(("x", "y"), entity="org:nothing")["rows"]
            []
        """
        more = check_count(limit, "limit") + 1
        found = self.core.query_index(range, group_by, entity, rev=rev, limit=more)
        rows, has_more = (found, False) if group_by else _up_to(limit, found)
        return {"rows": rows, "has_more": has_more}

    # -- entities ----------------------------------------------------------------------------

    @_returning_dict
    def register_entity(
        self,
        entity: EntityName | None = None,
        entity_id: str | None = None,
        parent: EntityName | None = None,
        *,
        entity_type: str | None = None,
    ) -> Result:
        """Register an entity and its ancestors.

        Args:
            entity: a path, or the level of ``entity_id``.
            entity_id: the id of ``entity`` below ``parent``.
            parent: the parent entity.
            entity_type: the level of ``entity_id``, instead of ``entity``.

        Returns:
            ``{success, entity}``: its path.

        Raises:
            UsageError: unless either a path, or a level and an id are passed, with ``errors="raise"``.

        Examples:
            >>> memory.register_entity("project", "beta", parent="org:acme")["entity"]
            'org:acme/project:beta'
        """
        name = entity if entity_type is None else entity_type
        if (entity is None) == (entity_type is None) or name is None:
            raise UsageError("Pass either entity or entity_type", fix='Write ("org", "acme").')
        if entity_id is None and entity_type is not None:
            raise UsageError("A level requires entity_id", fix='Write ("user", "alice", parent).')
        return {"entity": self.core.register_entity(name, entity_id, parent).entity.directory}

    @_returning_dict
    def register_entity_with_defaults(
        self, entity_type: str, entity_id: str, parents: Mapping[str, str] | None = None
    ) -> str | Result:
        """Register an entity; missing levels are set to their defaults.

        Args:
            entity_type: its level.
            entity_id: its id.
            parents: maps higher levels to ids.

        Returns:
            The entity's path, or a dictionary on failure.

        Examples:
            >>> memory.register_entity_with_defaults("project", "p", {"org": "acme"})
            'org:acme/project:p'
        """
        return self.core.register_entity_with_defaults(entity_type, entity_id, parents).entity.directory

    def _generate_hierarchical_path(self, entity: EntityName) -> str:
        """Return the URI of the folder with the data of ``entity``. Raises BadEntity."""
        return f"{self.core.workspace.objects.uri}/{self.core.names.find(entity).directory}/"

    @_returning_dict
    def list_entities(
        self,
        within: EntityName | None = None,
        entity_type: str | None = None,
        limit: int = 1_000,
        after: EntityName | None = None,
    ) -> Result:
        """List entities, sorted by path.

        Args:
            within: only entities under this one.
            entity_type: only entities of this level.
            limit: maximum number of entities.
            after: start after this entity, such as the last one of the previous page.

        Returns:
            ``{success, entities, has_more}``: their paths.

        Examples:
            >>> memory.list_entities("org:nothing")["entities"]
            []
        """
        found = self.core.list_entities(within, entity_type, limit=check_count(limit, "limit") + 1, after=after)
        shown, has_more = _up_to(limit, found)
        return {"entities": [record.entity.directory for record in shown], "has_more": has_more}

    @_returning_dict
    def move_entity(self, entity: EntityName, parent: EntityName) -> Result:
        """Move an entity under another parent.

        Args:
            entity: the entity.
            parent: an entity one level up, in the same tenant.

        Returns:
            ``{success, entity}``: its new path.

        Examples:
            >>> memory.move_entity("org:acme/project:none/user:none", "org:acme/project:q")["error_type"]
            'bad_entity'
        """
        return {"entity": self.core.move_entity(entity, parent).directory}

    @_returning_dict
    def delete_entity(self, entity: EntityName, cascade: bool = False) -> Result:
        """Delete an entity.

        Args:
            entity: the entity.
            cascade: also delete its descendants and entries.

        Returns:
            ``{success, entries_deleted}``.

        Examples:
            >>> memory.delete_entity("org:never")["success"]
            False
        """
        return {"entries_deleted": self.core.delete_entity(entity, cascade=cascade)}

    # -- maintenance -------------------------------------------------------------------------

    @_returning_dict
    def compact_indexes(self, entity_path: EntityName | None = None, max_deltas: int | None = None) -> Result:
        """Fold the deltas of one index, or of all indexes with more than ``max_deltas``.

        Args:
            entity_path: the entity of the index; None means all indexes.
            max_deltas: defaults to ``index.compaction_threshold``.

        Returns:
            ``{success, compacted_paths, entries_processed}``; an entry is counted once, even if it is in several
            indexes.

        Examples:
            >>> memory.compact_indexes()["compacted_paths"]
            []
        """
        self.core.flush()
        workspace = self.core.workspace
        threshold = self.configuration.index.compaction_threshold if max_deltas is None else max_deltas
        encoding, folded = encoding_of(self.configuration), dict[str, Folded]()
        if entity_path is not None:
            folded = compact_index(workspace, self.core.names.find(entity_path), encoding)
        else:
            boundary = self.core.names.boundary
            for top in workspace.tenants() if boundary is None else [boundary]:
                folded |= compact_indexes(workspace, top, threshold, encoding)
        return {"compacted_paths": sorted(folded), "entries_processed": entries_of(folded)}

    @_returning_dict
    def cleanup_orphans(self, max_age_seconds: float = DEFAULT_MAX_AGE_SECONDS, dry_run: bool = False) -> Result:
        """Delete unreferenced files. A bound store deletes only memory blobs inside its boundary.

        Args:
            max_age_seconds: keep younger files.
            dry_run: only report.

        Returns:
            ``{success, ...}`` plus the fields of ``driftline cleanup --json``.

        Examples:
            >>> memory.cleanup_orphans(dry_run=True)["deleted_count"]
            0
        """
        from driftline.flows.runs.cleanup import CleanupRequest, clean_within, clean_workspace

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
            full=True,
            storage_options=objects.storage_options,
            catalog_url=self.configuration.catalog.url,
        )
        return clean_workspace(request).to_dict()


def create_ltm_backend(
    backend: str = "hierarchical",
    *,
    catalog_url: str | None = None,
    storage_uri: str | os.PathLike[str] | None = None,
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

    ``catalog`` to ``embedding`` are configuration sections; ``catalog_url`` to ``performance_config`` and
    ``inline_threshold`` are keys in these sections, and take precedence over them.

    Args:
        backend: ``hierarchical``.
        config: a YAML file; the environment and other arguments override it.
        settings: its ``settings.ltm``, or the whole document.
        within: the boundary of the store.
        errors: ``return`` failures as dictionaries, or ``raise`` typed exceptions.

    Returns:
        The store; close it after use.

    Raises:
        DriftlineError: for bad input, or if the store cannot be opened.

    Examples:
        >>> driftline.create_ltm_backend(storage_uri=f"{location}-ltm").close()
    """
    if backend != "hierarchical":
        raise UsageError("Unknown memory backend", shortened(backend), "Use 'hierarchical'.")
    return HierarchicalLTMBackend(
        catalog_url,
        storage_uri,
        hierarchy_levels,
        hierarchy_defaults,
        index_config,
        performance_config,
        catalog=catalog,
        storage=storage,
        hierarchy=hierarchy,
        index=index,
        performance=performance,
        embedding=embedding,
        inline_threshold=inline_threshold,
        config=config,
        settings=settings,
        within=within,
        errors=errors,
    )


def memory_compaction_request() -> Callable[[str, str, int], None] | None:
    """Return the function that requests a compaction because a tenant's memory exceeds its threshold.

    Returns None if $PREFECT_API_URL is not set: the store then compacts the memory itself. Importing Prefect takes a
    second, and would start a server.
    """
    return _request_memory_compaction if os.environ.get(PREFECT_SERVER_VARIABLE) else None


def _request_memory_compaction(workspace: str, tenant: str, deltas: int) -> None:
    from driftline.flows.scheduling.flow_execution import request_compaction

    request_compaction(workspace, "memory", tenant, deltas)

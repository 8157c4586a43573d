"""Register, list, move, delete and resolve a memory store's entities, by full path or name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Any

from sqlalchemy.engine import Connection

from driftline.storage.entities import Entity, EntityName, Hierarchy, Parts, is_within
from driftline.storage.errors import AccessDenied, BadEntity, UsageError
from driftline.storage.memory.catalog import entity_tree, entry_writes
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.memory.catalog.entity_tree import EntityRecord
from driftline.storage.memory.catalog.entry_queries import Scope, Unscoped
from driftline.storage.memory.memory_indexes import DEFAULT_LIMIT, check_count

Limits = Sequence[Sequence[Entity]]
"""The limits of a read: it sees only what is at, above or below an entity of each."""
_SHOWN = 5


class EntityNames:
    """Resolves entity names against the catalog.

    A path that starts at the first level, without gaps, is complete. Any other name is completed by its longest
    registered part: ``user:alice/session:new`` is under the registered ``user:alice``. Unregistered levels come from
    the root, then from the defaults. With a configured root, names are looked up in its tenant, and calls see only what
    is at or below it; otherwise both cover all tenants. Methods raise BadEntity, CatalogError, CatalogConnectionError.
    """

    def __init__(self, catalog: Catalog, hierarchy: Hierarchy, boundary: Entity | None = None) -> None:
        """Set ``boundary`` as the root; nothing outside it is looked up or found."""
        self.hierarchy = hierarchy if boundary is None else replace(hierarchy, root=boundary)
        self.boundary = boundary
        self._catalog = catalog

    @property
    def root(self) -> Entity:
        """The owner of entries that are stored without one."""
        return self.hierarchy.root_entity

    def tops(self, within: EntityName | None) -> list[Entity]:
        """Return the entities that a call covers: ``within``, falling back to the configured root, then all tenants."""
        if within is not None:
            return [self.find(within)]
        return [self.root] if self.hierarchy.root else self._catalog.read(entity_tree.all_tenants)

    def find(self, name: EntityName, limits: Limits = ()) -> Entity:
        """Resolve ``name``. Raises BadEntity if it is outside the root, or several registered entities have that
        name.
        """
        return self.find_all([name], limits)[0]

    def find_all(self, names: Iterable[EntityName], limits: Limits = ()) -> list[Entity]:
        """Resolve ``names``, in order. Raises BadEntity."""
        found = self.resolve(names, limits)
        for entity in found:
            if not self.is_inside(entity):
                # The error must not reveal whether it exists.
                raise BadEntity(
                    f"The entity is outside the root of this store ({self.root.directory})",
                    entity.directory,
                    "Pass an entity at or below the root, or open a store with another root.",
                )
        return found

    def is_inside(self, entity: Entity) -> bool:
        """Return whether ``entity`` is at or below the configured root, if any."""
        return not self.hierarchy.root or is_within(entity, self.root)

    def resolve(self, names: Iterable[EntityName], limits: Limits = (), *, lists_paths: bool = True) -> list[Entity]:
        """Resolve ``names`` as limits of a read, where entities outside the root are harmless.

        Registered entities outside ``limits`` affect neither the result nor an error. ``lists_paths`` includes the
        matches in the error for an ambiguous name.
        """
        parsed = [self.hierarchy.parts(name) for name in names]
        short = {parts for parts in parsed if not self.hierarchy.is_complete(parts)}
        found: dict[Parts, Entity] = {}
        for parts in short:
            self.hierarchy.complete(parts)  # reject bad names before they reach the catalog
        if short:
            look_up = partial(self._look_up, limits=limits, lists_paths=lists_paths)
            found = self._catalog.read(lambda connection: {parts: look_up(connection, parts) for parts in short})
        return [found.get(parts) or self.hierarchy.complete(parts) for parts in parsed]

    def allowed(self, names: Sequence[EntityName] | None) -> tuple[Entity, ...] | None:
        """Resolve the ``allowed_ancestors`` of a read, whose errors must not list what the reader may not see."""
        return None if names is None else tuple(self.resolve(names, lists_paths=False))

    def visible(self, within: EntityName | None, names: Sequence[EntityName] | None = None) -> Scope | Unscoped:
        """Return the scope of a call: the entries at or below ``within`` and one of the allowed ``names``.

        If ``within`` is None, the configured root, if any, restricts the entries. Raises AccessDenied if no allowed
        entity overlaps with ``within``.
        """
        allowed = self.allowed(names)
        if within is None and self.hierarchy.root is None:
            if allowed == ():
                raise denied("anything")
            return Unscoped(allowed)
        scope = Scope(self.root if within is None else self.find(within, limits_of(allowed)), allowed)
        if allowed is not None and not _touches(scope.within, allowed):
            raise denied("anything" if within is None else str(within)[:200])
        return scope

    def check_allowed(self, connection: Connection, type: str, id: str, scope: Scope, own: Entity | None) -> None:
        """Raise AccessDenied unless ``own`` or, if it is None, an entity ``type:id`` in ``scope`` overlaps with
        ``scope.allowed``.

        An unregistered entity is treated as being anywhere in the scope, so the result reveals neither its existence
        nor its location.
        """
        if scope.allowed is None:
            return
        tops = [own] if own else [*entity_tree.named(connection, type, id, scope.within.tenant)]
        if own is None:
            tops += _known_by(scope.allowed, (type, id))
            tops = [entity for entity in tops if is_within(entity, scope.within)]
        if not any(_touches(top, scope.allowed) for top in tops) and (own or is_partial(scope, own)):
            raise denied(f"{type}:{id}"[:200])

    def _look_up(self, connection: Connection, parts: Parts, limits: Limits, lists_paths: bool) -> Entity:
        """Return the entity of ``parts``, completed from its longest registered part, falling back to defaults."""
        for length in range(len(parts), 0, -1):
            known, rest = parts[:length], parts[length:]
            if self.hierarchy.is_complete(known):
                break
            registered = self._registered(connection, known, limits)
            if len(registered) > 1:
                paths = [entity.directory for entity in registered]
                more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
                listed = f" of one of them: {', '.join(paths[:_SHOWN])}{more}" if lists_paths else ""
                name = "/".join(f"{type}:{id}" for type, id in known)
                raise BadEntity("Several entities have this name", name, f"Use the path{listed}.")
            if registered:
                return self.hierarchy.complete((*registered[0].parts, *rest))
        return self.hierarchy.complete(parts)

    def _registered(self, connection: Connection, parts: Parts, limits: Limits) -> list[Entity]:
        """Return the entities with that name below the root; if a configured root has none, all with that name.

        Omits entities that are disjoint from every entity of some limit. A limit's entities and their ancestors count
        as registered, so that the result does not reveal whether they are.
        """
        tenant = self.root.tenant if self.hierarchy.root else None
        if self.hierarchy.is_complete(parts[:1]):
            tenant = Entity(parts[:1])
        named = [*entity_tree.named(connection, *parts[-1], tenant), *_known_by(chain(*limits), parts[-1])]
        found = [
            entity
            for entity in dict.fromkeys(named)
            if set(parts) <= set(entity.parts)
            and tenant in (None, entity.tenant)
            and all(_touches(entity, limit) for limit in limits)
        ]
        inside = [entity for entity in found if self.is_inside(entity)]
        return inside if self.boundary else inside or found


def limits_of(allowed: Sequence[Entity] | None) -> Limits:
    """Return ``allowed`` as limits for ``EntityNames.find``."""
    return () if allowed is None else (allowed,)


def is_partial(scope: Scope, own: Entity | None) -> bool:
    """Return whether ``scope.allowed`` may exclude a part of ``own`` or, if it is None, of the scope."""
    top = own or scope.within
    return scope.allowed is not None and not any(is_within(top, each) for each in scope.allowed)


def _touches(entity: Entity, limit: Iterable[Entity]) -> bool:
    """Return whether ``entity`` is at, above or below an entity of ``limit``."""
    return any(is_within(entity, each) or is_within(each, entity) for each in limit)


def _known_by(limit: Iterable[Entity], part: tuple[str, str]) -> list[Entity]:
    """Return the entities that end with ``part``, among those of ``limit`` and their ancestors."""
    return [Entity(each.parts[: each.parts.index(part) + 1]) for each in limit if part in each.parts]


def denied(what: str) -> AccessDenied:
    """Return the error for a read that ``allowed_ancestors`` does not permit; it repeats only names from the call."""
    return AccessDenied("The allowed ancestors do not include this entity", what, "Add one of its ancestors.")


def bound_names(catalog: Catalog, hierarchy: Hierarchy, within: EntityName | None) -> EntityNames:
    """Return the entity names visible to a store, restricted to ``within`` unless it is None."""
    names = EntityNames(catalog, hierarchy)
    return names if within is None else EntityNames(catalog, hierarchy, names.resolve([within])[0])


def split_filter(fields: Mapping[str, Any], hierarchy: Hierarchy) -> tuple[dict[str, Any], list[EntityName] | None]:
    """Split a filter into metadata fields and the entities under ``entity``, or None.

    ``entity`` may also be a metadata field: a value that is not an entity path, such as ``invoice``, is compared with
    that field.
    """
    rest = {name: value for name, value in fields.items() if name != "entity"}
    given = fields.get("entity")
    if given is None:
        return rest, None
    if _is_pair(given, hierarchy):
        return rest, [(given[0], given[1])]
    named = given if isinstance(given, list) else [given]
    if all(_is_path(each, hierarchy) for each in named):
        return rest, named
    return dict(fields), None


def _is_pair(value: object, hierarchy: Hierarchy) -> bool:
    return isinstance(value, list) and len(value) == 2 and value[0] in hierarchy.levels and isinstance(value[1], str)


def _is_path(value: object, hierarchy: Hierarchy) -> bool:
    return isinstance(value, str) and value.partition(":")[0] in hierarchy.levels and ":" in value


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


class EntityRegistry:
    """A catalog's entities. Callers pass an ``Entity``, a string such as ``org:acme/project:alpha``, or a pair.

    ``EntityNames`` resolves incomplete paths. Every call is confined to its entity's tenant. All methods raise
    BadEntity, CatalogError, CatalogConnectionError.
    """

    def __init__(
        self,
        catalog: Catalog,
        names: EntityNames,
        now: Callable[[], datetime] = utc_now,
        on_change: Callable[[int], None] = lambda entries: None,
        check: Callable[[Entity], None] = lambda tenant: None,
    ) -> None:
        """Register entities in ``catalog``.

        ``on_change`` is called with the number of entries moved or deleted by a call, and ``check`` with a tenant
        before it is changed; it may raise CatalogMismatch.
        """
        self.catalog = catalog
        self.names = names
        self._now = now
        self._on_change = on_change
        self._check = check

    def register_entity(
        self, entity: EntityName, entity_id: str | None = None, parent: EntityName | None = None
    ) -> EntityRecord:
        """Register an entity and its ancestors; existing entities are unchanged.

        Args:
            entity: a path, a part of one, a pair, or the level of ``entity_id``.
            entity_id: the id of ``entity`` below ``parent``.
            parent: the parent entity.

        Returns:
            Its record.

        Raises:
            BadEntity: for an invalid name, or if another process deletes the entity concurrently.
            UsageError: for a parent without an id.

        Examples:
            >>> store.register_entity("org:acme/project:beta").entity
            Entity(parts=(('org', 'acme'), ('project', 'beta')))
            >>> store.register_entity("project", "beta", parent="org:acme").entity.directory
            'org:acme/project:beta'
        """
        if entity_id is not None:
            above = () if parent is None else self.names.find(parent).parts
            level = self.names.hierarchy.check_type(str(entity))
            entity = Entity((*above, *self.names.hierarchy.parts((level, entity_id))))
        elif parent is not None:
            raise UsageError("A parent requires entity_id", fix='Write ("user", "alice", parent).')
        node = self.names.find(entity)

        def work(connection: Connection) -> EntityRecord | None:
            tenant = entity_tree.lock_tenant(connection, node, create=True)
            assert tenant is not None
            entity_tree.ensure(connection, tenant, [node.directory], self._now())
            return entity_tree.find(connection, node)

        record = self.get_entity(node)
        if record is None:
            self._check(node.tenant)
            record = self.catalog.write(work)
        if record is None:
            raise BadEntity("Another process deleted the entity", node.directory)
        return record

    def register_entity_with_defaults(
        self, type: str, id: str, parents: Mapping[str, str] | None = None
    ) -> EntityRecord:
        """Register the entity ``type:id``; missing levels get their defaults.

        Args:
            type: the level of the entity.
            id: the id of the entity.
            parents: maps higher levels to ids.

        Returns:
            Its record.

        Raises:
            BadEntity: for an unknown level or an invalid id.

        Examples:
            >>> store.register_entity_with_defaults("user", "bob", {"org": "acme"}).entity.directory
            'org:acme/project:_unassigned/user:bob'
        """
        return self.register_entity(self.names.hierarchy.named(type, id, parents))

    def get_entity(self, entity: EntityName) -> EntityRecord | None:
        """Return the record of an entity.

        Args:
            entity: a path, a part of one, or a pair.

        Returns:
            The record, or None if the entity is not registered.

        Raises:
            DriftlineError: BadEntity if the entity is invalid or outside the root, CatalogError if the catalog fails.

        Examples:
            >>> store.get_entity("org:unknown") is None
            True
        """
        node = self.names.find(entity)
        return self.catalog.read(lambda connection: entity_tree.find(connection, node))

    def list_entities(
        self,
        within: EntityName | None = None,
        type: str | None = None,
        *,
        limit: int = DEFAULT_LIMIT,
        after: EntityName | None = None,
    ) -> list[EntityRecord]:
        """Return entities, sorted by path.

        Args:
            within: only entities under this one; by default those below the configured root, if any, otherwise all,
                including tenants.
            type: only entities of this level.
            limit: maximum number of entities.
            after: start after this entity.

        Returns:
            Their records, sorted by path.

        Raises:
            DriftlineError: BadEntity if the entity is invalid or outside the root, CatalogError if the catalog fails.

        Examples:
            >>> _ = store.register_entity("org:listed/project:one")
            >>> [record.entity.directory for record in store.list_entities("org:listed")]
            ['org:listed/project:one']
        """
        if type is not None:
            self.names.hierarchy.check_type(type)
        limit = check_count(limit, "limit")
        last = "" if after is None else self.names.find(after).directory
        page = partial(entity_tree.page, type=type, after=last, limit=limit)
        if within is None and self.names.hierarchy.root is None:
            return self.catalog.read(page)
        top = self.names.root if within is None else self.names.find(within)
        return self.catalog.read(partial(page, entity=top))

    def ancestors(self, entity: EntityName) -> list[EntityRecord]:
        """Return the ancestors of an entity.

        Args:
            entity: a path, a part of one, or a pair.

        Returns:
            Their records, the parent first.

        Raises:
            DriftlineError: BadEntity if the entity is invalid or outside the root, CatalogError if the catalog fails.

        Examples:
            >>> _ = store.register_entity("org:acme/project:gamma")
            >>> [record.entity.directory for record in store.ancestors("org:acme/project:gamma")]
            ['org:acme']
        """
        node = self.names.find(entity)
        above = self.catalog.read(lambda connection: entity_tree.ancestors(connection, node))
        return [record for record in above if self.names.is_inside(record.entity)]

    def descendants(
        self, entity: EntityName, type: str | None = None, max_depth: int | None = None
    ) -> list[EntityRecord]:
        """Return the entities under an entity.

        Args:
            entity: a path, a part of one, or a pair.
            type: only entities of this level.
            max_depth: the number of levels to descend; None means all.

        Returns:
            Their records, sorted by path.

        Raises:
            DriftlineError: BadEntity if the entity is invalid or outside the root, CatalogError if the catalog fails.

        Examples:
            >>> _ = store.register_entity("org:deep/project:p/user:u")
            >>> [record.entity.type for record in store.descendants("org:deep")]
            ['project', 'user']
        """
        if type is not None:
            self.names.hierarchy.check_type(type)
        node = self.names.find(entity)
        return self.catalog.read(
            lambda connection: entity_tree.descendants(connection, node, type=type, max_depth=max_depth)
        )

    def move_entity(self, entity: EntityName, parent: EntityName) -> Entity:
        """Move an entity and its descendants under another parent. Blobs are not moved.

        Args:
            entity: the entity.
            parent: an entity one level higher in the same tenant; registered if necessary.

        Returns:
            The entity with its new path.

        Raises:
            BadEntity: if the entity does not exist, or the new path already does.

        Examples:
            >>> _ = store.register_entity("org:moves/project:p/user:u")
            >>> store.move_entity("org:moves/project:p/user:u", "org:moves/project:q").directory
            'org:moves/project:q/user:u'
        """
        source, above = self.names.find_all([entity, parent])
        if above.tenant != source.tenant:
            raise BadEntity("An entity cannot move to another tenant", above.directory)
        if len(above.parts) != len(source.parts) - 1:
            raise BadEntity(f"A {source.type} cannot be directly below a {above.type}", above.directory)
        target = Entity((*above.parts, source.parts[-1]))
        if target == source:
            return source

        def work(connection: Connection) -> int:
            tenant = entity_tree.lock_tenant(connection, source)
            if tenant is None:
                raise BadEntity("The entity does not exist", source.directory)
            entity_tree.ensure(connection, tenant, [above.directory], self._now())
            entity_tree.move(connection, source, target)
            return entry_writes.relocate(connection, tenant, source, target, self._now())

        self._check(source.tenant)
        self._on_change(self.catalog.write(work))
        return target

    def delete_entity(self, entity: EntityName, *, cascade: bool = False) -> int:
        """Delete an entity.

        Args:
            entity: the entity.
            cascade: also delete its descendants and entries.

        Returns:
            The number of deleted entries.

        Raises:
            BadEntity: if it does not exist, or has descendants or entries and ``cascade`` is not set.

        Examples:
            >>> _ = store.store("note", 1, "org:gone")
            >>> store.delete_entity("org:gone", cascade=True)
            1
        """
        node = self.names.find(entity)

        def work(connection: Connection) -> entry_writes.Removed:
            tenant = entity_tree.lock_tenant(connection, node)
            if tenant is None or entity_tree.find(connection, node) is None:
                raise BadEntity("The entity does not exist", node.directory)
            if not cascade and entity_tree.has_content(connection, node, self._now()):
                raise BadEntity("The entity has descendants or entries", node.directory, "Delete it with cascade.")
            keys = entry_writes.keys_below(connection, node)
            removed = entry_writes.remove(connection, tenant, keys, Scope(node), self._now())
            entity_tree.delete(connection, node)
            return removed

        self._check(node.tenant)
        removed = self.catalog.write(work)
        self._on_change(removed.entries)
        return removed.alive

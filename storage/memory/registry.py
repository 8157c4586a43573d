"""The entities of a memory store: registers, lists, moves and deletes them by their full paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial

from sqlalchemy.engine import Connection

from driftline.storage.entities import Entity
from driftline.storage.errors import BadEntity
from driftline.storage.hierarchy import EntityName
from driftline.storage.memory.catalog import entities as entity_tree
from driftline.storage.memory.catalog import writes as entry_rows
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.memory.catalog.entities import EntityRecord
from driftline.storage.memory.catalog.queries import Scope
from driftline.storage.memory.names import EntityNames
from driftline.storage.memory.pages import check_count

DEFAULT_LIMIT = 1_000


def utc_now() -> datetime:
    """The time of this host in UTC."""
    return datetime.now(UTC)


class EntityRegistry:
    """The entities of a catalog. Callers pass an ``Entity``, text such as ``org:acme/project:alpha``, or a pair.

    A name that is not a whole path means what ``EntityNames`` finds. Every call is confined to the tenant of its
    entity. All methods raise BadEntity, CatalogError, CatalogConnectionError.
    """

    def __init__(
        self,
        catalog: Catalog,
        names: EntityNames,
        now: Callable[[], datetime] = utc_now,
        on_change: Callable[[int], None] = lambda entries: None,
    ) -> None:
        """``on_change`` receives the number of entries that a call has moved or deleted."""
        self.catalog = catalog
        self.names = names
        self._now = now
        self._on_change = on_change

    def register_entity(self, entity: EntityName) -> EntityRecord:
        """Register an entity and its ancestors; existing entities stay unchanged."""
        node = self.names.owner(entity)

        def work(connection: Connection) -> EntityRecord | None:
            tenant = entity_tree.lock_tenant(connection, node, create=True)
            assert tenant is not None
            entity_tree.ensure(connection, tenant, [node.directory], self._now())
            return entity_tree.find(connection, node)

        record = self.get_entity(node) or self.catalog.write(work)
        if record is None:
            raise BadEntity("Another process has deleted the entity", node.directory)
        return record

    def register_entity_with_defaults(
        self, type: str, id: str, parents: Mapping[str, str] | None = None
    ) -> EntityRecord:
        """Register ``type:id`` below ``parents``, ``{level: id}``; missing levels get their defaults."""
        return self.register_entity(self.names.hierarchy.named(type, id, parents))

    def get_entity(self, entity: EntityName) -> EntityRecord | None:
        """The record of an entity, or None."""
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
        """Up to ``limit`` entities below ``within``, ordered by path, starting after ``after``.

        Without ``within``, they are those below the configured root, or else all, tenants included.
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
        """The ancestors of an entity, its parent first."""
        node = self.names.find(entity)
        above = self.catalog.read(lambda connection: entity_tree.ancestors(connection, node))
        return [record for record in above if self.names.is_inside(record.entity)]

    def descendants(
        self, entity: EntityName, type: str | None = None, max_depth: int | None = None
    ) -> list[EntityRecord]:
        """All entities below an entity, ordered by path."""
        if type is not None:
            self.names.hierarchy.check_type(type)
        node = self.names.find(entity)
        return self.catalog.read(
            lambda connection: entity_tree.descendants(connection, node, type=type, max_depth=max_depth)
        )

    def move_entity(self, entity: EntityName, parent: EntityName) -> Entity:
        """Move an entity and its descendants below ``parent``; returns the entity with its new path.

        The parent must be of the next higher level and of the same tenant; it is registered if necessary. Blobs are not
        moved. Raises BadEntity, also if the new path already exists.
        """
        source, above = self.names.owners([entity, parent])
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
            return entry_rows.relocate(connection, tenant, source, target, self._now())

        self._on_change(self.catalog.write(work))
        return target

    def delete_entity(self, entity: EntityName, *, cascade: bool = False) -> int:
        """Delete an entity and, with ``cascade``, all its descendants and entries; returns the number of entries.

        Raises BadEntity if it does not exist, or if it has descendants or entries and ``cascade`` is not set.
        """
        node = self.names.owner(entity)

        def work(connection: Connection) -> int:
            tenant = entity_tree.lock_tenant(connection, node)
            if tenant is None or entity_tree.find(connection, node) is None:
                raise BadEntity("The entity does not exist", node.directory)
            if not cascade and entity_tree.has_content(connection, node):
                raise BadEntity("The entity has descendants or entries", node.directory, "Delete it with cascade.")
            keys = entry_rows.keys_below(connection, node)
            removed = entry_rows.remove(connection, tenant, keys, Scope(node), self._now())
            entity_tree.delete(connection, node)
            return removed

        removed = self.catalog.write(work)
        self._on_change(removed)
        return removed

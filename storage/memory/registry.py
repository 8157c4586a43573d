"""The entities of a memory store: registered, listed, moved and deleted by their full paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from sqlalchemy.engine import Connection

from driftline.storage.entities import Entity
from driftline.storage.errors import BadEntity
from driftline.storage.hierarchy import Hierarchy
from driftline.storage.memory.catalog import entities as entity_tree
from driftline.storage.memory.catalog import writes as entry_rows
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.memory.catalog.entities import EntityRecord
from driftline.storage.memory.catalog.queries import Scope

DEFAULT_LIMIT = 1_000


def utc_now() -> datetime:
    """The time of this host, with its zone."""
    return datetime.now(UTC)


class EntityRegistry:
    """The hierarchy of a catalog. An entity is given as text, ``org:acme/project:alpha``, or as an ``Entity``.

    Levels that are not named get their defaults, so that ``user:alice`` is a whole path, too. Every call stays within
    the tenant that its entity names. All raise BadEntity, CatalogError and CatalogConnectionError.
    """

    def __init__(
        self,
        catalog: Catalog,
        hierarchy: Hierarchy,
        now: Callable[[], datetime] = utc_now,
        on_change: Callable[[int], None] = lambda entries: None,
    ) -> None:
        """``on_change`` is called with the number of entries that a call has moved or deleted."""
        self.catalog = catalog
        self.hierarchy = hierarchy
        self._now = now
        self._on_change = on_change

    def register_entity(self, entity: Entity | str) -> EntityRecord:
        """Register an entity with all its ancestors; one that exists stays as it is."""
        wanted = self.hierarchy.entity(entity)

        def work(connection: Connection) -> EntityRecord | None:
            tenant = entity_tree.lock_tenant(connection, wanted, create=True)
            assert tenant is not None
            entity_tree.ensure(connection, tenant, [wanted.directory], self._now())
            return entity_tree.find(connection, wanted)

        return self.get_entity(wanted) or _found(self.catalog.write(work), wanted)

    def register_entity_with_defaults(
        self, type: str, id: str, parents: Mapping[str, str] | None = None
    ) -> EntityRecord:
        """Register ``type:id`` below ``parents``, ``{level: id}``; levels that are not named get their defaults."""
        return self.register_entity(self.hierarchy.named(type, id, parents))

    def get_entity(self, entity: Entity | str) -> EntityRecord | None:
        """The record of an entity, or None."""
        wanted = self.hierarchy.entity(entity)
        return self.catalog.read(lambda connection: entity_tree.find(connection, wanted))

    def list_entities(
        self,
        within: Entity | str | None = None,
        type: str | None = None,
        *,
        limit: int = DEFAULT_LIMIT,
        after: Entity | str | None = None,
    ) -> list[EntityRecord]:
        """The entities below ``within``, by default the root, in the order of their paths; ``after`` pages on."""
        top = self.hierarchy.root_entity if within is None else self.hierarchy.entity(within)
        behind = "" if after is None else self.hierarchy.entity(after).directory
        return self.catalog.read(
            lambda connection: entity_tree.descendants(connection, top, type=type, after=behind, limit=limit)
        )

    def ancestors(self, entity: Entity | str) -> list[EntityRecord]:
        """The ancestors of an entity, its parent first."""
        wanted = self.hierarchy.entity(entity)
        return self.catalog.read(lambda connection: entity_tree.ancestors(connection, wanted))

    def descendants(
        self, entity: Entity | str, type: str | None = None, max_depth: int | None = None
    ) -> list[EntityRecord]:
        """All entities below an entity, in the order of their paths."""
        wanted = self.hierarchy.entity(entity)
        return self.catalog.read(
            lambda connection: entity_tree.descendants(connection, wanted, type=type, max_depth=max_depth)
        )

    def move_entity(self, entity: Entity | str, parent: Entity | str) -> Entity:
        """Move an entity, with all that lies below it, under ``parent``; returns its new path.

        The parent is registered if need be; it must be of the level above, and of the same tenant. Values stay where
        they lie. Raises BadEntity also where an entity of that name is there already.
        """
        source, above = self.hierarchy.entity(entity), self.hierarchy.entity(parent)
        if above.tenant != source.tenant:
            raise BadEntity("An entity cannot move to another tenant", above.directory)
        if len(above.parts) != len(source.parts) - 1:
            raise BadEntity(f"A {source.type} cannot lie directly below a {above.type}", above.directory)
        target = Entity((*above.parts, source.parts[-1]))
        if target == source:
            return source

        def work(connection: Connection) -> int:
            tenant = entity_tree.lock_tenant(connection, source)
            if tenant is None:
                raise BadEntity("There is no such entity", source.directory)
            entity_tree.ensure(connection, tenant, [above.directory], self._now())
            entity_tree.move(connection, source, target)
            return entry_rows.relocate(connection, tenant, source, target)

        self._on_change(self.catalog.write(work))
        return target

    def delete_entity(self, entity: Entity | str, *, cascade: bool = False) -> int:
        """Delete an entity and, with ``cascade``, all entities and entries below it; returns how many entries.

        Raises BadEntity if there is none, or if it holds anything and ``cascade`` is not set.
        """
        doomed = self.hierarchy.entity(entity)

        def work(connection: Connection) -> int:
            tenant = entity_tree.lock_tenant(connection, doomed)
            if tenant is None or entity_tree.find(connection, doomed) is None:
                raise BadEntity("There is no such entity", doomed.directory)
            if not cascade and entity_tree.has_content(connection, doomed):
                raise BadEntity("The entity holds entries or entities", doomed.directory, "Delete it with cascade.")
            keys = entry_rows.keys_below(connection, doomed)
            removed = entry_rows.remove(connection, tenant, keys, Scope(doomed), self._now())
            entity_tree.delete(connection, doomed)
            return removed

        removed = self.catalog.write(work)
        self._on_change(removed)
        return removed


def _found(record: EntityRecord | None, entity: Entity) -> EntityRecord:
    if record is None:
        raise BadEntity("The entity was deleted meanwhile", entity.directory)
    return record

"""What the name of an entity means in a memory store: the registered entity of that name, or else one with defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy.engine import Connection

from driftline.storage.entities import Entity
from driftline.storage.errors import BadEntity
from driftline.storage.hierarchy import EntityName, Hierarchy, Parts, is_within
from driftline.storage.memory.catalog import entities as entity_tree
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.memory.catalog.queries import Scope

_SHOWN = 5


class EntityNames:
    """Looks names up in the catalog.

    A path that names every level from the first one on means itself. Of any other name, the longest part that is
    registered counts: ``user:alice/session:new`` lies below the registered ``user:alice``. What is not registered gets
    the levels of the root, and defaults. With a configured root, names are looked up in its tenant, else in all of
    them. Methods raise BadEntity, CatalogError, CatalogConnectionError.
    """

    def __init__(self, catalog: Catalog, hierarchy: Hierarchy, boundary: Entity | None = None) -> None:
        """``boundary`` is the root, and nothing outside of it is looked up or found."""
        self.hierarchy = hierarchy if boundary is None else replace(hierarchy, root=boundary)
        self.boundary = boundary
        self._catalog = catalog

    @property
    def root(self) -> Entity:
        """The entity that is meant where none is named."""
        return self.hierarchy.root_entity

    def find(self, name: EntityName) -> Entity:
        """The entity that ``name`` means. Raises BadEntity if several registered ones have that name."""
        return self.find_all([name])[0]

    def find_all(self, names: Iterable[EntityName]) -> list[Entity]:
        """The entities that ``names`` mean, in their order."""
        found = self.places(names)
        for entity in found:
            if not self.is_inside(entity):
                # Whether it exists must not show.
                raise BadEntity("The entity is outside of what this store is bound to", entity.directory)
        return found

    def is_inside(self, entity: Entity) -> bool:
        """Whether ``entity`` is at or below the boundary."""
        return self.boundary is None or is_within(entity, self.boundary)

    def places(self, names: Iterable[EntityName]) -> list[Entity]:
        """The entities that ``names`` mean as limits of a read, where those outside of the boundary do no harm."""
        parsed = [self.hierarchy.parts(name) for name in names]
        short = {parts for parts in parsed if not self.hierarchy.is_complete(parts)}
        found: dict[Parts, Entity] = {}
        for parts in short:
            self.hierarchy.complete(parts)  # raises before the catalog sees what it cannot take
        if short:
            found = self._catalog.read(lambda connection: {parts: self._look_up(connection, parts) for parts in short})
        return [found.get(parts) or self.hierarchy.complete(parts) for parts in parsed]

    def home_of(self, type: str, id: str) -> Entity:
        """Where the entity ``type:id`` is to be read: the root if one is configured, else the tenant of the entity."""
        found = self.find((type, id))
        return self.root if self.hierarchy.root else found.tenant

    def scope(self, within: EntityName | None, allowed: Sequence[EntityName] | None = None) -> Scope:
        """What a call may see: what lies at or below ``within``, the root by default, and one of ``allowed``."""
        top = self.root if within is None else self.find(within)
        return Scope(top, None if allowed is None else tuple(self.places(allowed)))

    def _look_up(self, connection: Connection, parts: Parts) -> Entity:
        """The entity of the longest part of ``parts`` that is registered, completed, or else one with defaults."""
        for length in range(len(parts), 0, -1):
            known, rest = parts[:length], parts[length:]
            if self.hierarchy.is_complete(known):
                break
            registered = self._registered(connection, known)
            if len(registered) > 1:
                paths = [entity.directory for entity in registered]
                more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
                raise BadEntity(
                    "Several entities have this name",
                    "/".join(f"{type}:{id}" for type, id in known),
                    f"Name one of them by its path: {', '.join(paths[:_SHOWN])}{more}.",
                )
            if registered:
                return self.hierarchy.complete((*registered[0].parts, *rest))
        return self.hierarchy.complete(parts)

    def _registered(self, connection: Connection, parts: Parts) -> list[Entity]:
        """The entities of that name that may be meant: those below the root, if it is configured and has any."""
        tenant = self.root.tenant if self.hierarchy.root else None
        if self.hierarchy.is_complete(parts[:1]):
            tenant = Entity(parts[:1])
        found = [
            entity
            for entity in entity_tree.named(connection, *parts[-1], tenant)
            if set(parts) <= set(entity.parts) and self.is_inside(entity)
        ]
        below = [entity for entity in found if is_within(entity, self.root)] if self.hierarchy.root else []
        return below or found


def bound_names(catalog: Catalog, hierarchy: Hierarchy, within: EntityName | None) -> EntityNames:
    """The names of a store that is bound to ``within``, if that is an entity."""
    names = EntityNames(catalog, hierarchy)
    return names if within is None else EntityNames(catalog, hierarchy, names.find(within))


def split_filter(fields: Mapping[str, Any], hierarchy: Hierarchy) -> tuple[dict[str, Any], list[EntityName] | None]:
    """The fields of the metadata in a filter, and the entities that it names under ``entity``, or None.

    ``entity`` may be the name of a field, too: a value that is no path of an entity, such as ``invoice``, is one.
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

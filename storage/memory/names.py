"""What the name of an entity means in a memory store: the registered entity of that name, or else one with defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy.engine import Connection

from driftline.storage.entities import Entity
from driftline.storage.errors import AccessDenied, BadEntity
from driftline.storage.hierarchy import EntityName, Hierarchy, Parts, is_within
from driftline.storage.memory.catalog import entities as entity_tree
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.memory.catalog.queries import Everywhere, Scope

_SHOWN = 5


class EntityNames:
    """Looks names up in the catalog.

    A path that names every level from the first one on means itself. Of any other name, the longest part that is
    registered counts: ``user:alice/session:new`` lies below the registered ``user:alice``. What is not registered gets
    the levels of the root, and defaults. With a configured root, names are looked up in its tenant, and calls without a
    scope see what lies at or below it; otherwise both cover all tenants. Methods raise BadEntity, CatalogError,
    CatalogConnectionError.
    """

    def __init__(self, catalog: Catalog, hierarchy: Hierarchy, boundary: Entity | None = None) -> None:
        """``boundary`` is the root, and nothing outside of it is looked up or found."""
        self.hierarchy = hierarchy if boundary is None else replace(hierarchy, root=boundary)
        self.boundary = boundary
        self._catalog = catalog

    @property
    def root(self) -> Entity:
        """The owner of entries that are stored without one."""
        return self.hierarchy.root_entity

    def tops(self, within: EntityName | None) -> list[Entity]:
        """What a call covers: the entity ``within``, else the configured root, else all tenants in the catalog."""
        if within is not None:
            return [self.find(within)]
        return [self.root] if self.hierarchy.root else self._catalog.read(entity_tree.all_tenants)

    def owner(self, name: EntityName) -> Entity:
        """The entity that ``name`` means, to be written to. Raises BadEntity also if it is outside of the root."""
        return self.owners([name])[0]

    def owners(self, names: Iterable[EntityName]) -> list[Entity]:
        """The entities that ``names`` mean, to be written to, in their order."""
        found = self.find_all(names)
        for entity in found:
            if self.hierarchy.root and not is_within(entity, self.root):
                raise BadEntity(
                    f"The entity is outside of the root of this store ({self.root.directory})",
                    entity.directory,
                    "Name an entity at or below the root, or open a store with another root.",
                )
        return found

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

    def scope(self, within: EntityName, allowed: Sequence[EntityName] | None = None) -> Scope:
        """What a call may see: what lies at or below ``within`` and one of ``allowed``."""
        return Scope(self.find(within), None if allowed is None else tuple(self.places(allowed)))

    def visible(self, within: EntityName | None, allowed: Sequence[EntityName] | None = None) -> Scope | Everywhere:
        """As ``scope``; without ``within``, the root limits what is seen if one is configured.

        Raises AccessDenied if no entity of ``allowed`` has anything in common with ``within``.
        """
        if within is None and self.hierarchy.root is None:
            places = None if allowed is None else tuple(self.places(allowed))
            if places == ():
                raise denied("anything")
            return Everywhere(places)
        scope = self.scope(self.root if within is None else within, allowed)
        if scope.allowed is not None and not any(_overlap(scope.within, each) for each in scope.allowed):
            raise denied("anything" if within is None else str(within)[:200])
        return scope

    def check_allowed(self, connection: Connection, type: str, id: str, scope: Scope, own: Entity | None) -> None:
        """Raises AccessDenied unless an entity ``type:id`` in ``scope`` has something in common with ``scope.allowed``.

        One that is not registered counts as ``own``, or else as lying anywhere in the scope: whether it exists, and
        where, must not show.
        """
        if scope.allowed is None:
            return
        named = entity_tree.named(connection, type, id, scope.within.tenant)
        found = [entity for entity in named if is_within(entity, scope.within)]
        top = own or scope.within
        if not any(is_within(top, each) or any(_overlap(entity, each) for entity in found) for each in scope.allowed):
            raise denied(f"{type}:{id}"[:200])

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


def _overlap(one: Entity, other: Entity) -> bool:
    return is_within(one, other) or is_within(other, one)


def denied(what: str) -> AccessDenied:
    """The error of a read that ``allowed_ancestors`` does not permit; it names only what the caller has named."""
    return AccessDenied("The allowed ancestors do not permit to read this", what, "Name one of its ancestors.")


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

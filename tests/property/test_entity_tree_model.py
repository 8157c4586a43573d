"""The closure table, compared with a plain tree: both agree after any registrations, moves and deletions."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from driftline.storage.entities import Entity, Hierarchy, is_within
from driftline.storage.errors import BadEntity
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.memory.catalog.tables import closure, entities, owners
from driftline.storage.memory.entity_names import EntityNames, EntityRegistry
from tests.support.oracle import lineage

NAMES = st.sampled_from(["a", "b", "a/b", "á"])


@st.composite
def some_entity(draw: st.DrawFn, min_depth: int = 1) -> Entity:
    depth = draw(st.integers(min_depth, 4))
    tenant = draw(st.sampled_from(["t", "u"]))
    levels = Hierarchy().levels[1:depth]
    return Entity((("org", tenant), *((level, draw(NAMES)) for level in levels)))


class TreeMachine(RuleBasedStateMachine):
    """``tree`` is the model: the registered entities, each with its ancestors."""

    def __init__(self, template: Path) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="driftline-tree-"))
        shutil.copy(template, self.directory / "catalog.sqlite")
        self.catalog = Catalog(f"sqlite:///{self.directory / 'catalog.sqlite'}")
        self.registry = EntityRegistry(self.catalog, EntityNames(self.catalog, Hierarchy()))
        self.tree: set[Entity] = set()

    @rule(entity=some_entity())
    def register(self, entity: Entity) -> None:
        assert self.registry.register_entity(entity).entity == entity
        self.tree |= set(lineage(entity))

    @rule(entity=some_entity(2), parent=some_entity())
    def move(self, entity: Entity, parent: Entity) -> None:
        target = Entity((*parent.parts, entity.parts[-1]))
        allowed = (
            len(target.parts) == len(entity.parts)
            and parent.tenant == entity.tenant
            and (target == entity or (entity in self.tree and target not in self.tree))
        )
        if not allowed:
            with pytest.raises(BadEntity):
                self.registry.move_entity(entity, parent)
            return
        assert self.registry.move_entity(entity, parent) == target
        if target != entity:
            moved = {node for node in self.tree if is_within(node, entity)}
            depth = len(entity.parts)
            self.tree -= moved
            self.tree |= {Entity((*target.parts, *node.parts[depth:])) for node in moved} | set(lineage(parent))

    @rule(entity=some_entity(), cascade=st.booleans())
    def delete(self, entity: Entity, cascade: bool) -> None:
        subtree = {node for node in self.tree if is_within(node, entity)}
        if entity not in self.tree or (not cascade and len(subtree) > 1):
            with pytest.raises(BadEntity):
                self.registry.delete_entity(entity, cascade=cascade)
            return
        assert self.registry.delete_entity(entity, cascade=cascade) == 0
        self.tree -= subtree

    @rule(entity=some_entity())
    def look(self, entity: Entity) -> None:
        assert (self.registry.get_entity(entity) is not None) == (entity in self.tree)
        if entity in self.tree:
            above = [record.entity for record in self.registry.ancestors(entity)]
            assert above == lineage(entity)[-2::-1]
        below = {record.entity for record in self.registry.descendants(entity)}
        assert below == {node for node in self.tree if is_within(node, entity) and node != entity}

    @invariant()
    def closure_holds_each_pair_once(self) -> None:
        above, below = entities.alias(), entities.alias()
        query = (
            sa.select(above.c.path, below.c.path, closure.c.depth)
            .join(closure, closure.c.ancestor_id == above.c.id)
            .join(below, below.c.id == closure.c.descendant_id)
        )
        found = self.catalog.read(lambda connection: sorted(tuple(row) for row in connection.execute(query)))
        assert found == sorted(
            (top.directory, node.directory, len(node.parts) - len(top.parts))
            for node in self.tree
            for top in lineage(node)
        )

    def teardown(self) -> None:
        assert self.catalog.read(lambda c: c.execute(sa.select(sa.func.count()).select_from(owners)).scalar()) == 0
        self.catalog.close()
        shutil.rmtree(self.directory)


def test_the_closure_table_is_the_tree(catalog_file: Path) -> None:
    run_state_machine_as_test(
        lambda: TreeMachine(catalog_file),  # type: ignore[arg-type]  # a class or what makes one
        settings=settings(max_examples=15, stateful_step_count=20, deadline=None),
    )

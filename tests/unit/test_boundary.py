"""Boundaries limit which entities are visible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from driftline.storage.entities import Boundary, Entity, is_within

_NAMES = st.sampled_from("ab")
_PATHS = st.lists(_NAMES, min_size=1, max_size=3)
ENTITIES = _PATHS.map(lambda names: Entity(tuple(zip(("org", "project", "source"), names, strict=False))))
BOUNDARIES = st.lists(ENTITIES, max_size=4).map(lambda entities: Boundary.of(*entities))


@given(st.lists(ENTITIES, max_size=4), ENTITIES)
def test_a_boundary_allows_what_is_at_or_below_any_of_its_entities(tops: list[Entity], entity: Entity) -> None:
    boundary = Boundary.of(*tops)
    expected = any(is_within(entity, top) for top in tops)
    assert boundary.allows(entity) == boundary.allows_name(str(entity)) == expected
    assert all(top in tops for top in boundary.tops)


@given(BOUNDARIES, BOUNDARIES, ENTITIES)
def test_a_narrowed_boundary_allows_what_both_allow(one: Boundary, other: Boundary, entity: Entity) -> None:
    assert one.narrowed(other).allows(entity) == (one.allows(entity) and other.allows(entity))
    assert one.narrowed(other) == other.narrowed(one)

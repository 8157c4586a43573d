"""Boundaries limit which entities are visible."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftline.flows.config import memory_settings
from driftline.flows.config.which_workspace import boundary_in
from driftline.storage.entities import INDEX_LEVELS, Boundary, Entity, is_within
from driftline.storage.errors import BadEntity, UsageError
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.records import WorkspaceConfig
from driftline.storage.workspace.workspace import Workspace

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


def workspace(folder: Path, *levels: str) -> Workspace:
    return Workspace(ObjectStore.open(str(folder)), WorkspaceConfig(hierarchy=levels or INDEX_LEVELS))


@pytest.mark.parametrize(
    ("levels", "name", "expected"),
    [
        (("org", "team", "source"), "org:acme/team:web", "org:acme/team:web"),
        (("org", "team", "source"), "org:acme/team:web/source:app", "org:acme/team:web/source:app"),
        (("org", "team", "source"), "org:acme/project:x/user:bob", "org:acme/project:x/user:bob"),
        ((), "org:acme", "org:acme"),
        ((), "org:acme/project:web/", "org:acme/project:web"),
        ((), "source:app", "org:default/project:default/source:app"),
        ((), "org:acme/project:web/user:bob", "org:acme/project:web/user:bob"),
        ((), "org:a~20b/project:c~2Fd", "org:a b/project:c/d"),
    ],
)
def test_a_path_is_of_the_hierarchy_of_the_workspace_or_else_of_memory(
    levels: tuple[str, ...], name: str, expected: str, tmp_path: Path
) -> None:
    assert str(boundary_in(workspace(tmp_path, *levels), name)) == expected


@pytest.mark.parametrize("name", ["user:bob", "project:web", "org:acme/session:s", "org", ""])
def test_a_boundary_other_than_a_source_is_a_full_path(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadEntity):
        boundary_in(workspace(tmp_path), name)


def test_the_settings_of_memory_are_read_once_and_only_for_paths_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTM_PARALLEL_THREADS", "abc")
    here = workspace(tmp_path)
    assert len(boundary_in(here, "org:acme", "org:other/project:web", "source:app").tops) == 3
    with pytest.raises(UsageError, match="threads"):
        boundary_in(here, "org:acme/project:web/user:bob")
    monkeypatch.undo()
    read: list[str] = []
    known = memory_settings.MemoryConfiguration()

    def memory_of(uri: str) -> memory_settings.MemoryConfiguration:
        read.append(uri)
        return known

    monkeypatch.setattr(memory_settings, "memory_of", memory_of)
    boundary_in(here, "org:acme/project:web/user:bob", "org:acme/project:web/user:eve")
    assert len(read) == 1

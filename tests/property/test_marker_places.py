"""A table finds the same commit markers as a full fragment scan, whatever happens to the fragments."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from driftline.storage.deltas.manifest import BatchId
from driftline.storage.entities import Entity
from driftline.storage.lance.lance_table import commit_compaction, plan_compaction, remove_old_versions, rewrite
from driftline.storage.lines import commit_marker
from driftline.storage.lines.commit_marker import SourceCommit, read_markers
from driftline.storage.lines.indexes import maintain
from driftline.storage.lines.line_table import LineTable
from driftline.storage.objects.store import ObjectStore

SOURCES = [Entity.parse(f"source:s{number}") for number in range(5)]
DIM = 4


def rows(entity: Entity, path: str) -> list[dict[str, object]]:
    return [
        {
            "id": number,
            "entity": str(entity),
            "path": path,
            "line_number": number,
            "column_number": 0,
            "text": "a word",
            "vector": [1.0, 0.0, 0.0, 0.0],
            "parent_dirs": [],
            "ext": "md",
            "hash": "h",
            "block": f"{path}\na word" if number == 0 else None,
        }
        for number in range(3)
    ]


def write(table: LineTable, entity: Entity, path: str) -> list[str]:
    columns = table.open().schema
    found = [{name: row.get(name) for name in columns.names} for row in rows(entity, path)]
    return table.write_fragments(pa.Table.from_pylist(found, schema=columns))


def take_back(table: LineTable, folder: Path) -> None:
    """Drop the newest version, as a repair does if it is unreadable."""
    manifests = sorted(folder.rglob("_versions/*.manifest"))
    if len(manifests) > 1:
        manifests[0].unlink()
    assert table.open().version > 0


@pytest.mark.parametrize("seed", range(3))
def test_cached_locations_equal_those_of_a_full_read(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_marker, "MANY_FRAGMENTS", 0)
    monkeypatch.setattr(commit_marker, "SMALL_FRAGMENT_ROWS", 6)
    chance = random.Random(seed)
    table = LineTable(ObjectStore.open(str(tmp_path)), SOURCES[0].tenant, "fp")
    table.create(DIM)
    processes = [commit_marker._MarkerPlaces(), commit_marker._MarkerPlaces()]
    tokens, batches = dict.fromkeys(SOURCES, 1), dict.fromkeys(SOURCES, 0)
    everything = commit_marker._MarkerPlaces()
    for step in range(30):
        entity = chance.choice(SOURCES)
        monkeypatch.setattr(commit_marker, "_PLACES", chance.choice(processes))
        event = chance.random()
        if event < 0.6:
            batches[entity] += 1
            path = f"{chance.randrange(4)}.md"
            batch = BatchId(f"run{tokens[entity]}", batches[entity])
            table.commit([SourceCommit(entity, tokens[entity], batch, (path,))], write(table, entity, path))
        elif event < 0.7:
            tokens[entity] += 1
            table.fence(entity, tokens[entity])
        elif event < 0.8:
            plan = plan_compaction(table)
            if plan.tasks:
                commit_compaction(table, plan, [rewrite(table, task) for task in plan.tasks])
        elif event < 0.85:
            maintain(table, "text")
        elif event < 0.9:
            remove_old_versions(table, timedelta())
        elif step:
            take_back(table, tmp_path)
            tokens = {each: max(tokens[each], table.commit_marker(each).token) for each in SOURCES}
        dataset = table.open()
        looking = [locations for locations in processes if chance.random() < 0.4]
        for each in SOURCES:
            for locations in looking:
                monkeypatch.setattr(commit_marker, "_PLACES", locations)
                found = read_markers(table, dataset, [each])[str(each)]
                monkeypatch.setattr(commit_marker, "MANY_FRAGMENTS", 1 << 30)
                monkeypatch.setattr(commit_marker, "_PLACES", everything)
                assert found == read_markers(table, dataset, [each])[str(each)]
                monkeypatch.setattr(commit_marker, "MANY_FRAGMENTS", 0)

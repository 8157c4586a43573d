"""What users of the pipeline met: runs in Prefect's graph, Dask on local trees, other clouds, LanceDB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import lancedb
import pytest

import driftline as dl
from driftline.tasks.search.grep import open_embedder
from tests.conformance.search_places import ROOT, plant, without_variables
from tests.conformance.table import criterion
from tests.servers.prefect_server import PrefectServer

STAGES = ("scan", "embed", "index")
PROGRAM = """
import json, sys
from driftline.flows.prefect_flows import index

report = index(json.loads(sys.argv[1]), sys.argv[2], model=sys.argv[3])
print("REPORT" + json.dumps(report))
"""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    without_variables(monkeypatch)


# -- 1: stages -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flow_run(
    prefect_server: PrefectServer, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path
) -> dict[str, Any]:
    """A run over two sources, of 13 and 17 documents: the flow run, its task runs, and what was said of each."""
    place = tmp_path_factory.mktemp("stages")
    for source, count in (("web", 13), ("app", 17)):
        plant(place / source, {f"{n}.txt": "parser\n" for n in range(count)})
    arguments = [json.dumps([str(place / "web"), str(place / "app")]), str(place / "ws"), str(tiny_model)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**prefect_server.environment, "PYTHONPATH": str(ROOT)},
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (run,) = [each for each in prefect_server.post("flow_runs/filter", {}) if str(place) in json.dumps(each)]
    only = {"flow_runs": {"id": {"any_": [run["id"]]}}, "sort": "EXPECTED_START_TIME_ASC"}
    return {
        "run": run,
        "tasks": prefect_server.post("task_runs/filter", only),
        "artifacts": prefect_server.post("artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}}),
        "logs": prefect_server.post("logs/filter", {"logs": {"flow_run_id": {"any_": [run["id"]]}}}),
    }


def stages(flow_run: dict[str, Any], source: str) -> dict[str, list[dict[str, Any]]]:
    """The task runs of one source by stage."""
    mine = [task for task in flow_run["tasks"] if source in task["name"]]
    return {stage: [task for task in mine if stage in task["name"].lower()] for stage in STAGES}


# -- 2: other clouds, other readers ----------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A workspace with 600 lines, a vector index, and 300 entries of memory."""
    place = tmp_path_factory.mktemp("lancedb")
    words = ("parser", "group", "action", "option", "value", "prefix")
    files = {f"{n}.txt": f"{words[n % 6]} {n}\n" * 2 for n in range(300)}
    dl.index(str(plant(place / "tree", files)), workspace=str(place / "ws"), model=str(tiny_model))
    embedder = open_embedder(str(tiny_model))
    with dl.MemoryStore(str(place / "ws"), embedder=lambda: embedder) as store:
        items = [dl.MemoryItem(f"entry {n}", f"{words[n % 6]} {n}", "org:default") for n in range(300)]
        store.store_many(items)
    return place / "ws"


@criterion("pipeline", "2", "the lancedb package opens and searches both tables")
@pytest.mark.parametrize("name", ["line_embeddings", "memory_embeddings"])
def test_lancedb_searches_both_tables(name: str, written: Path, tiny_model: Path) -> None:
    (table_folder,) = [path for path in written.rglob(f"{name}*.lance") if path.is_dir()]
    table: Any = lancedb.connect(str(table_folder.parent)).open_table(table_folder.stem)
    assert table.count_rows() >= 300
    if name == "line_embeddings":
        assert {"id", "path", "line_number", "vector"} <= set(table.schema.names)
    query = open_embedder(str(tiny_model)).embed_query("parser 6")
    found = table.search(query, vector_column_name="vector").distance_type("l2").limit(5).to_list()
    assert len(found) == 5
    distances = [row["_distance"] for row in found]
    assert distances == sorted(distances)
    assert distances[0] < 0.05, "the line itself is there"

"""The pipeline: stages in Prefect's run graph, Dask on local trees, other clouds, and LanceDB as a reader."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import driftline as dl
from driftline.flows.runs import source_run
from driftline.storage.objects.store import ObjectStore
from driftline.tasks.scanning.scan import plan_partitions
from driftline.tasks.search.unindexed import open_embedder
from tests.conformance.search_support import ROOT, pages, plant
from tests.conformance.table import criterion
from tests.servers.prefect_server import PrefectServer

STAGES = ("scan", "embed", "index")


PROGRAM = """
import json, sys
from driftline.flows.prefect_flows import index

report = index(json.loads(sys.argv[1]), sys.argv[2], model=sys.argv[3])
print("REPORT" + json.dumps(report))
"""


# -- 1: stages -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flow_run(
    prefect_server: PrefectServer, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path
) -> dict[str, Any]:
    """A flow run over two sources (13 and 17 documents), its task runs, and their logs and artifacts."""
    location = tmp_path_factory.mktemp("stages")
    for source, count in (("web", 13), ("app", 17)):
        plant(location / source, {f"{n}.txt": "parser\n" for n in range(count)})
    arguments = [json.dumps([str(location / "web"), str(location / "app")]), str(location / "ws"), str(tiny_model)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**prefect_server.environment, "PYTHONPATH": str(ROOT)},
        cwd=location,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (run,) = [each for each in prefect_server.post("flow_runs/filter", {}) if str(location) in json.dumps(each)]
    only = {"flow_runs": {"id": {"any_": [run["id"]]}}, "sort": "EXPECTED_START_TIME_ASC"}
    return {
        "run": run,
        "tasks": prefect_server.post("task_runs/filter", only),
        "artifacts": prefect_server.post("artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}}),
        "logs": prefect_server.post("logs/filter", {"logs": {"flow_run_id": {"any_": [run["id"]]}}}),
    }


def stages(flow_run: dict[str, Any], source: str) -> dict[str, list[dict[str, Any]]]:
    """Return one source's task runs by stage."""
    mine = [task for task in flow_run["tasks"] if source in task["name"]]
    return {stage: [task for task in mine if stage in task["name"].lower()] for stage in STAGES}


@criterion("pipeline", "1", "scan, embed and commit, and index of each source are tasks of the run")
@pytest.mark.xdist_group("prefect")
@pytest.mark.parametrize("source", ["web", "app"])
def test_each_stage_of_each_source_is_a_task(source: str, flow_run: dict[str, Any]) -> None:
    """Task names contain the stage and the source, so the graph and timeline are readable."""
    found = stages(flow_run, f"{source}")
    assert {stage: len(tasks) for stage, tasks in found.items()} == dict.fromkeys(STAGES, 1)
    starts = [found[stage][0]["start_time"] for stage in STAGES]
    assert starts == sorted(starts)
    assert {found[stage][0]["state_type"] for stage in STAGES} == {"COMPLETED"}


@criterion("pipeline", "1", "the tasks tell counts")
@pytest.mark.xdist_group("prefect")
@pytest.mark.parametrize(("source", "count"), [("web", 13), ("app", 17)])
def test_the_tasks_report_counts(source: str, count: int, flow_run: dict[str, Any]) -> None:
    """A task's counts are in its name, state, log or an artifact."""
    for stage in ("scan", "embed"):
        (task,) = stages(flow_run, source)[stage]
        said = [task["name"], str(task["state"].get("message"))]
        said += [log["message"] for log in flow_run["logs"] if log.get("task_run_id") == task["id"]]
        said += [json.dumps(each) for each in flow_run["artifacts"] if each.get("task_run_id") == task["id"]]
        assert any(re.search(rf"\b{count} (new )?documents", text) for text in said), said


@criterion("pipeline", "1", "stages that can be repeated are tried again")
@pytest.mark.xdist_group("prefect")
def test_stages_are_tried_again(flow_run: dict[str, Any]) -> None:
    for source in ("web", "app"):
        for stage in ("scan", "index"):
            (task,) = stages(flow_run, source)[stage]
            assert (task["empirical_policy"].get("retries") or 0) >= 1, task["name"]


@criterion("pipeline", "1", "the state of a large local tree is computed in parallel on Dask")
@pytest.mark.usefixtures("forked_workers")
def test_the_state_of_a_local_tree_is_computed_in_parallel(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several partitions; their seconds are counted as worker time."""
    parts: list[int] = []

    def plan(*arguments: Any) -> Any:
        planned = plan_partitions(*arguments)
        parts.append(len(planned))
        return planned

    monkeypatch.setattr(source_run, "plan_partitions", plan)
    for folder in range(40):
        plant(tmp_path / "tree" / f"{folder:02}", {f"{n:03}.txt": "" for n in range(150)})
    given: dict[str, Any] = {"workspace": str(tmp_path / "ws"), "model": str(tiny_model), "dry_run": True}
    report = dl.index(str(tmp_path / "tree"), executor="local", workers=2, **given)
    (source,) = report.to_dict()["sources"]
    assert source["new"] == 6_000
    assert parts[0] > 1
    assert "scan" in source["worker_phases"], source["worker_phases"]


# -- 2: other clouds, other readers ----------------------------------------------------------


@criterion("pipeline", "2", "gs:// and az:// sources are read")
@pytest.mark.parametrize("fixture", ["google_bucket", "azure_container"])
def test_sources_in_other_clouds_are_read(
    fixture: str, tmp_path: Path, tiny_model: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulators' environment variables are set, so nothing contacts the real clouds."""
    uri = f"{request.getfixturevalue(fixture)}/tree"
    if fixture == "google_bucket":
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", os.environ["GOOGLE_BASE_URL"])
    else:
        endpoint, account = os.environ["AZURE_STORAGE_ENDPOINT"], os.environ["AZURE_STORAGE_ACCOUNT_NAME"]
        key = f"AccountKey={os.environ['AZURE_STORAGE_ACCOUNT_KEY']}"
        connection = f"DefaultEndpointsProtocol=http;AccountName={account};{key};BlobEndpoint={endpoint};"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
    bucket = ObjectStore.open(uri)
    for name, text in {"a.txt": b"parser\none\n", "deep/b.txt": b"group\n", "deep/skip.bin": b"\0\1\2"}.items():
        bucket.create(name, text)
    given: dict[str, Any] = {"workspace": str(tmp_path / "ws"), "model": str(tiny_model)}
    (source,) = dl.index(uri, **given).to_dict()["sources"]
    assert (source["new"], source["lines_total"]) == (2, 3)
    best = dl.search(str(tmp_path / "ws"), "group", mode="vector", n_lines=0).results[0]
    assert (best.path, best.line) == ("deep/b.txt", 1)
    bucket.create("c.txt", b"action\n")
    (again,) = dl.index(uri, **given).to_dict()["sources"]
    assert (again["new"], again["changed"], again["unchanged"]) == (1, 0, 2)


@criterion("pipeline", "2", "a recipe shows how, and says what LanceDB cannot use")
def test_a_recipe_shows_lancedb() -> None:
    texts = [text for text in pages().values() if "lancedb.connect" in text]
    assert texts, "no page shows lancedb.connect"
    recipe = "\n".join(texts)
    for words in ("line_embeddings", "memory_embeddings", "open_table", ".search("):
        assert words in recipe
    assert re.search(r"vector index|IVF", recipe)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A workspace with 600 lines, a vector index, and 300 memory entries."""
    location = tmp_path_factory.mktemp("lancedb")
    words = ("parser", "group", "action", "option", "value", "prefix")
    files = {f"{n}.txt": f"{words[n % 6]} {n}\n" * 2 for n in range(300)}
    dl.index(str(plant(location / "tree", files)), workspace=str(location / "ws"), model=str(tiny_model))
    embedder = open_embedder(str(tiny_model))
    with dl.MemoryStore(str(location / "ws"), embedder=lambda: embedder) as store:
        items = [dl.MemoryItem(f"entry {n}", f"{words[n % 6]} {n}", "org:default") for n in range(300)]
        store.store_many(items)
    return location / "ws"


@criterion("pipeline", "2", "the lancedb package opens and searches both tables")
@pytest.mark.parametrize("name", ["line_embeddings", "memory_embeddings"])
def test_lancedb_searches_both_tables(name: str, written: Path, tiny_model: Path) -> None:
    (table_folder,) = [path for path in written.rglob(f"{name}*.lance") if path.is_dir()]
    import lancedb  # takes seconds, which every process of the suite would pay

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

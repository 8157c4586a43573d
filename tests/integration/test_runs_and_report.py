"""``driftline runs`` and ``report``: the history of real runs, as a list and as a self-contained page."""

from __future__ import annotations

import json
import math
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from driftline.flows.config.index_request import IndexRequest, SourceRequest
from driftline.flows.output.report_page import History, Series, bar_plot, line_plot, newest_runs, number, render, to_row
from driftline.flows.runs.index import index_sources
from driftline.storage.entities import Boundary, Entity
from driftline.storage.errors import StorageError
from driftline.storage.json_records import to_json
from driftline.storage.objects.local_disk import LocalDisk
from driftline.storage.sql_process import query
from driftline.storage.workspace.records import RunHistory, RunRecord, WorkspaceStats
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.maintenance.search_quality import last_measured

Driftline = Callable[..., Any]
START = datetime(2026, 11, 1, tzinfo=UTC)


def run(kind: str, hour: int, report: dict[str, Any], outcome: str = "done") -> RunRecord:
    started = (START + timedelta(hours=hour)).isoformat()
    return RunRecord(run_id=f"{hour:026}", kind=kind, started=started, seconds=1.5, outcome=outcome, report=report)


def source(entity: str, lines: int, **figures: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("new", "changed", "touched", "unchanged", "deleted", "bytes_read", "lines_embedded"), 0)
    return {"entity": entity, "lines_total": lines, "revision": 7, "skipped": [], **counts, **figures}


def values(series: Series) -> list[float]:
    return [value for _, value in series.points]


# Real runs.


def test_the_runs_of_a_workspace_and_its_page(driftline: Driftline, tiny_model: Path, tmp_path: Path) -> None:
    tree = tmp_path / "web<b>"
    tree.mkdir()
    at = ("--workspace", tmp_path / "index")
    for number_of_run in range(2):
        (tree / f"{number_of_run}.txt").write_text("hello\nworld\n")
        assert driftline("index", tree, *at, "--model", tiny_model).code == 0
    entity = driftline("sources", *at, "--json").json["sources"][0]["entity"]
    assert driftline("compact", *at, "--entity", entity).code == 0
    assert driftline("remove", entity, *at).code == 0
    listed = driftline("runs", *at, "--json").json
    assert [one["kind"] for one in listed["runs"]] == ["remove", "compact", "index", "index"]
    assert {one["outcome"] for one in listed["runs"]} == {"done"}
    remove, compact, second, _ = listed["runs"]
    assert (remove["entity"], remove["documents"], remove["lines"]) == (entity, 2, 4)
    assert compact["folded"] == 2
    assert (second["sources"], second["new"], second["lines_embedded"]) == ([entity], 1, 2)
    assert len(driftline("runs", *at, "--json", "--limit", 2).json["runs"]) == 2
    text = driftline("runs", *at).out
    assert text.index("remove") < text.index("compact") < text.index("2 lines embedded")
    page = tmp_path / "report.html"
    assert driftline("report", *at, "-o", page, "--json").json == {
        "workspace": str(tmp_path / "index"),
        "report": str(page),
        "runs": 4,
    }
    html = page.read_text()
    for title in ("Growth: lines", "Cost per run: time", "Deltas by source", "Runs", "index", "compact"):
        assert title in html
    assert "<b>.txt" not in html
    assert "web&lt;b&gt;" in html
    assert_needs_nothing_else(html)
    assert driftline("report", *at, "-o", tmp_path / "no" / "folder.html").code == 2


def test_a_workspace_without_runs_has_an_empty_list_and_a_page(driftline: Driftline, tmp_path: Path) -> None:
    Workspace.open_for_writing(str(tmp_path / "index"))
    assert driftline("runs", "--workspace", tmp_path / "index", "--json").json["runs"] == []
    assert "No runs" in driftline("runs", "--workspace", tmp_path / "index").out
    assert driftline("report", "--workspace", tmp_path / "index", "-o", tmp_path / "r.html").code == 0


def test_a_report_is_by_default_a_file_of_the_workspace(driftline: Driftline, tmp_path: Path) -> None:
    at = ("--workspace", tmp_path / "index")
    Workspace.open_for_writing(str(tmp_path / "index"))
    assert driftline("report", *at, "--json").json["report"] == str(tmp_path / "index" / "report.html")
    assert driftline("cleanup", *at, "--full", "--json").json["foreign"] == []


def assert_needs_nothing_else(html: str) -> None:
    """Assert that the page has no external links, scripts, style sheets or images, and that its policy forbids them."""

    class Page(HTMLParser):
        tags: list[str]

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert tag not in ("script", "link", "img", "iframe", "object"), tag
            assert not {name for name, _ in attrs} & {"src", "href"}, attrs

    Page().feed(html)
    assert "default-src 'none'" in html
    assert "url(" not in html
    for plot in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        ET.fromstring(plot)


WRONG = (None, "egret", 1e308, {"heron": [1]}, [1])
TIMES = ("2026-13-45", "2026-01-01T00:00:00", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00")


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container in a JSON value with each of its keys."""
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield value, key
        yield from places(each)


def test_a_damaged_run_record_is_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    workspace = Workspace.open_for_writing(str(tmp_path / "index"))
    tenant = Entity.parse("org:acme")
    workspace.objects.create(f"{tenant.directory}/project:p/source:s/_source.json", b"{}")
    runs, entity = RunHistory(workspace.objects, tenant), f"{tenant}/project:p/source:s"
    skipped = [{"path": "a", "reason": "binary"}]
    index = source(entity, 5, new=1, uri="/s", phases={"scan": 0.5}, commit="c" * 40, deltas=2) | {"skipped": skipped}
    size = {"bytes": 5, "recall_at_10": 0.9}
    compact = {"tenant": str(tenant), "folded": [{"entity": entity, "deltas": 3}], "before": size, "after": size}
    good = run("cleanup", 1, {"deleted_count": 3})
    runs.record(good)
    written = tmp_path / "index" / "org:acme" / "_runs" / f"{2:026}.json"
    for kind, report in (
        ("index", {"sources": [index], "failed": [{"uri": "/t", "message": "m"}], "requests": {"get": 3}}),
        ("compact", compact | {"versions_removed": 1, "measured": START.isoformat()}),
    ):
        whole = json.loads(to_json(run(kind, 2, report)))
        for container, key in [*places(whole)]:
            right = container[key]
            for wrong in (*WRONG, *TIMES) if key in ("started", "measured") else WRONG:
                container[key] = wrong
                written.write_text(json.dumps(whole))
                caplog.clear()
                read = newest_runs(workspace, 10)
                assert good in read
                assert len(read) == 2 or str(written) in caplog.text, (key, wrong)
                History(read[::-1]).measured("recall_at_10")
                assert [to_row(each)["run_id"] for each in read][-1] == good.run_id
                last_measured(workspace, tenant)
            container[key] = right
    whole["started"] = "yesterday"
    written.write_text(json.dumps(whole))
    with query(workspace, "SELECT run_id FROM runs") as result:
        assert [row for batch in result for row in batch.to_pylist()] == [{"run_id": good.run_id}]


def test_a_run_over_several_tenants_is_one_run(tmp_path: Path) -> None:
    workspace = Workspace.open_for_writing(str(tmp_path / "index"))
    for tenant in (Entity.parse("org:acme"), Entity.parse("org:other")):
        runs = RunHistory(workspace.objects, tenant)
        workspace.objects.create(f"{tenant.directory}/project:p/source:s/_source.json", b"{}")
        runs.record(run("cleanup", 2, {"deleted_count": 3 if tenant.id == "acme" else 4}))
        runs.record(run("index", 1, {"sources": [source(f"{tenant}/project:p/source:s", 5, new=1)]}))
    rows = [to_row(found) for found in newest_runs(workspace, 10)]
    assert [(row["kind"], row.get("deleted"), row.get("new")) for row in rows] == [
        ("cleanup", 7, None),
        ("index", 0, 2),
    ]
    assert len(newest_runs(workspace, 1)) == 1


def test_a_tenants_run_record_does_not_mention_other_tenants(
    driftline: Driftline, tiny_model: Path, tmp_path: Path
) -> None:
    sources = []
    for name in ("acme", "other"):
        (tmp_path / f"of-{name}").mkdir()
        (tmp_path / f"of-{name}" / f"{name}.txt").write_text("hello\n")
        (tmp_path / f"of-{name}" / f"{name}.bin").write_bytes(b"\0\0")
        for folder in (f"of-{name}", f"missing-{name}"):
            entity = f"org:{name}/project:p/source:{folder}"
            sources.append(SourceRequest(str(tmp_path / folder), entity))
    request = IndexRequest(
        sources=tuple(sources), workspace=str(tmp_path / "index"), model=str(tiny_model), keep_going=True
    )
    report = index_sources(request)
    workspace = Workspace.open(str(tmp_path / "index"))
    for name, others in (("acme", "other"), ("other", "acme")):
        (written,) = (tmp_path / "index" / f"org:{name}" / "_runs").iterdir()
        text = written.read_text()
        names = (f"of-{name}", f"{name}.bin", f"missing-{name}", others)
        assert [each for each in names if each not in text] == [others]
        # Records of before hold the whole report, and tell a reader no more.
        whole = json.loads(text) | {"report": report.to_dict()}
        written.write_text(json.dumps(whole))
        last = RunHistory(workspace.objects, Entity.parse(f"org:{name}")).last()
        assert f"of-{name}" in str(last)
        assert others not in str(last)
    (row,) = (to_row(each) for each in newest_runs(workspace, 10))
    assert (row["new"], row["skipped"], row["failed"]) == (2, 2, [])
    assert sorted(row["sources"]) == [f"org:{name}/project:p/source:of-{name}" for name in ("acme", "other")]
    (row,) = (to_row(each) for each in newest_runs(workspace, 10, within=Boundary.of(Entity.parse("org:acme"))))
    assert row["sources"] == ["org:acme/project:p/source:of-acme"]
    with query(workspace, "SELECT count(*), sum(sources), (SELECT count(*) FROM run_sources) FROM runs") as result:
        assert list(result.rows()) == [(1, 2, 2)]
    assert len((workspace.stats().last_run or {})["report"]["sources"]) == 2


@pytest.mark.parametrize("outcome", ["done", "storage_error"])
def test_only_a_run_that_succeeded_fails_because_of_its_record(
    tmp_path: Path, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace.open_for_writing(str(tmp_path / "index"))

    def fail(*_: object) -> str:
        raise StorageError("The disk is full", "_runs")

    monkeypatch.setattr(LocalDisk, "create", fail)
    record = run("index", 1, {"sources": []}, outcome)
    runs = RunHistory(workspace.objects, Entity.parse("org:acme"))
    try:
        raise KeyError  # a program may index while handling its own error
    except KeyError:
        with pytest.raises(StorageError) if outcome == "done" else nullcontext():
            runs.record(record)


# Plots.


def test_growth_sums_sources_including_earlier_ones() -> None:
    history = History(
        [
            run("index", 1, {"sources": [source("web", 100, new=4)]}),
            run("index", 2, {"sources": [source("docs", 50, unchanged=9, changed=1)]}),
            run("index", 3, {"sources": [source("web", 120, changed=1)]}),
            run("index", 4, {"sources": [source("web", 0, revision=0)]}, "storage_error"),
            run("remove", 5, {"entity": "docs"}),
        ]
    )
    assert values(history.growth("lines_total")) == [150, 150, 170, 120]


def test_deltas_fall_when_they_are_folded_and_measurements_come_from_compactions() -> None:
    folded = {
        "tenant": "org:default",
        "folded": [{"entity": "web", "deltas": 3}],
        "before": {"recall_at_10": 0.9, "p50_seconds": 0.02},
        "after": {"recall_at_10": 0.99, "p50_seconds": 0.01},
        "versions_removed": 1,
    }
    history = History(
        [
            run("index", 1, {"sources": [source("web", 1, deltas=2)]}),
            run("index", 2, {"sources": [source("web", 1, deltas=3)]}),
            run("compact", 3, folded),
        ]
    )
    assert to_row(history.runs[-1])["folded"] == 3
    assert [values(line) for line in history.deltas()] == [[2, 3, 0]]
    assert [values(line) for line in history.measured("recall_at_10")] == [[0.99]]
    assert [values(line) for line in history.measured("p50_seconds", 1000)] == [[10]]


def test_requests_are_priced_if_runs_counted_them() -> None:
    history = History([run("index", hour, {"sources": [], "requests": {"put": 500, "get": 7}}) for hour in (1, 2)])
    series, cost = history.requests({"put": 0.01})
    assert {line.name: values(line) for line in series} == {"put": [500, 500], "get": [7, 7]}
    assert cost == pytest.approx(0.01)
    assert history.requests({})[1] is None
    stats = WorkspaceStats(1, 1, False, None, "w", "m", (), 0, None)
    html = render(stats, list(reversed(history.runs)), START, {"put": 0.01})
    assert "Cost per run: requests" in html
    assert "0.0100" in html


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (1234, "1,234"), (12_345_678, "12.3M"), (0.0342, "0.0342")])
def test_figures_are_short(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_plots_show_only_finite_numbers(value: float) -> None:
    points = [(START, 1.0), (START + timedelta(hours=1), value), (START + timedelta(hours=2), 2.0)]
    for plot in (line_plot("v", [Series("v", points)]), bar_plot("v", [(str(at), y) for at, y in points])):
        assert plot.count("<title>") == 2
        assert not re.search("nan|inf", plot)
    assert line_plot("v", [Series("v", points[1:])]) == bar_plot("v", [("v", value)]) == ""
    assert number(value) == str(value)


@pytest.mark.parametrize("value", [5e-324, sys.float_info.min, sys.float_info.max])
def test_the_least_and_the_largest_numbers_are_plotted(value: float) -> None:
    assert line_plot("v", [Series("v", [(START, 0.0), (START + timedelta(hours=1), value)])]).count("<title>") == 2
    assert bar_plot("v", [("v", value)]).count("<title>") == 1


def test_a_plot_holds_every_point_within_its_frame_and_survives_any_name() -> None:
    points = [(START + timedelta(hours=hour), float(value)) for hour, value in enumerate((0, 999_999, 500_000))]
    svg = ET.fromstring(line_plot("a < b & \x07", [Series('"q" <x>', points), Series("one", points[:1])], unit="s"))
    circles = svg.findall("{*}circle")
    assert len(circles) == 4
    for circle in circles:
        assert 0 <= float(circle.attrib["cx"]) <= 560
        assert 0 <= float(circle.attrib["cy"]) <= 220
    assert float(circles[1].attrib["cy"]) < float(circles[2].attrib["cy"]) < float(circles[0].attrib["cy"])
    assert line_plot("nothing", [Series("none", [])]) == ""
    counts = [(START + timedelta(hours=hour), float(hour)) for hour in range(2)]
    assert ">0.25<" not in line_plot("counts have whole ticks", [Series("deltas", counts)])

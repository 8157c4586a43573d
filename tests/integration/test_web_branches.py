"""A document page links to the branches of its source."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import driftline as dl
from driftline.flows.web.api import Reader
from driftline.flows.web.pages import MAX_FACETS
from driftline.flows.web.server import web_server
from driftline.storage.json_records import to_json
from driftline.storage.workspace import branch_cuts
from driftline.storage.workspace.branch_cuts import branch_at, branch_records
from driftline.storage.workspace.workspace import Workspace
from tests.support.web import ask, serving

SOURCE = "org:default/project:default/source:{}"


@pytest.fixture
def workspace(tmp_path: Path, tiny_model: Path) -> Workspace:
    """The sources ``app``, with a branch of its own, and ``web``, with one of its own."""
    for name in ("app", "web"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("x = 1\n")
        options: dict[str, Any] = {"workspace": str(tmp_path / "ws"), "model": str(tiny_model), "executor": "inline"}
        dl.index(str(tmp_path / name), **options)
        dl.index(str(tmp_path / name), branch=f"of-{name}", **options)
    return Workspace.open(str(tmp_path / "ws"))


def linked(workspace: Workspace, name: str, branch: str = "") -> list[str]:
    """Return the branches that the page of a document of the source ``name`` links to."""
    with serving(web_server(Reader(workspace.reread), "127.0.0.1", 0)) as address:
        answer = ask(address, f"/d/{SOURCE.format(name)}/a.py" + (f"?branch={branch}" if branch else ""))
    assert answer.status == 200
    return re.findall(r">on ([^<]+)</a>", answer.body)


def test_a_document_page_has_only_branches_of_its_source(workspace: Workspace) -> None:
    assert linked(workspace, "app") == ["of-app"]
    assert linked(workspace, "web") == ["of-web"]
    assert linked(workspace, "web", "of-web") == ["the main index"]


def test_a_document_page_reads_and_shows_few_of_many_branches(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (entity,) = (each for each, _ in workspace.readable_sources() if each.id == "app")
    (record,) = branch_records(workspace, entity)
    for number in range(50):
        other = replace(record, name=f"branch-{number:02}")
        workspace.objects.create(branch_at(entity, other).record_path, to_json(other))
    assert len(branch_records(workspace, entity)) == 51
    read: list[str] = []
    read_record = vars(branch_cuts)["read_record"]

    def counted(objects: Any, path: str, kind: Any) -> Any:
        read.append(path)
        return read_record(objects, path, kind)

    monkeypatch.setattr(branch_cuts, "read_record", counted)
    shown = linked(workspace, "app")
    assert shown == [f"branch-{number:02}" for number in range(MAX_FACETS)]
    assert len(read) == MAX_FACETS + 1
    assert linked(workspace, "app", "of-app") == ["the main index", *shown]

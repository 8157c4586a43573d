"""A store that fails during a compaction's commit: no row is lost, although Lance deletes files it cannot commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from driftline.flows.config.index_request import IndexRequest
from driftline.flows.runs.compact import CompactRequest, compact_workspace
from driftline.flows.runs.index import index_sources
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError
from driftline.storage.lance.lance_table import commit_compaction, plan_compaction, rewrite
from driftline.storage.workspace.workspace import Workspace
from tests.servers.flaky import Fault, FlakyProxy
from tests.servers.serving import serving
from tests.support.oracle import assert_in_step, files_below, save_tiny_model

ENTITY = Entity.parse("source:tree")


class OneFault(FlakyProxy):
    """Makes request number ``at``, counted from now, fail with ``fault``; with None, no request fails."""

    def arm(self, at: int | None, fault: Fault = Fault.CUT) -> None:
        self.left, self.fault, self.seen = at, fault, 0

    def draw(self) -> Fault | None:
        self.seen += 1
        return self.fault if self.left is not None and self.seen == self.left + 1 else None


def test_a_commit_of_a_compaction_that_fails_at_any_request_loses_no_row(
    tmp_path: Path, s3_bucket: str, s3_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, model = tmp_path / "tree", save_tiny_model(tmp_path / "model")
    tree.mkdir()
    with serving(OneFault(s3_server, rate=0.0, seed=1)) as proxy:
        proxy.arm(None)
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)

        def add(number: int) -> None:
            """Add a document to have something to compact."""
            (tree / f"{number}.txt").write_text(f"word{number}\nword{number + 1}\n")
            index_sources(IndexRequest((str(tree),), s3_bucket, entity="source:tree", model=str(model), indexes="none"))

        def commit(at: int | None) -> int:
            """Commit a compaction whose request ``at`` fails, and return its number of requests."""
            table = Workspace.open(s3_bucket).lines(ENTITY)
            plan = plan_compaction(table)
            rewritten = [rewrite(table, task) for task in plan.tasks]
            assert rewritten
            proxy.arm(at)
            try:
                commit_compaction(table, plan, rewritten)
            except DriftlineError:
                assert at is not None
            made = proxy.seen
            proxy.arm(None)
            return made

        for number in range(3):
            add(number)
        requests = commit(None)
        assert requests > 3
        for at in range(requests):
            add(10 + at)
            commit(at)
            assert_in_step(Workspace.open(s3_bucket), ENTITY, files_below(tree))
        compact_workspace(CompactRequest(s3_bucket, retention_seconds=0.0, workers=1))
        assert_in_step(Workspace.open(s3_bucket), ENTITY, files_below(tree))

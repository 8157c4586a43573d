"""The progress artifact of a flow run never delays the run."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any
from uuid import uuid4

import pytest

from driftline.flows.scheduling import flow_execution
from driftline.flows.scheduling.flow_execution import PrefectProgress, options_of
from driftline.storage.errors import UsageError
from tests.support.waiting import until


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str]]:
    """The updates that reach a server that takes 0.1 s per update."""
    updates: list[tuple[float, str]] = []
    run = threading.get_ident()

    def update(_: object, progress: float, description: str) -> None:
        assert progress == 100.0 or threading.get_ident() != run, "the run waits for the server"
        time.sleep(0.1)
        updates.append((progress, description))

    monkeypatch.setattr(flow_execution, "create_progress_artifact", lambda *_, **__: uuid4())
    monkeypatch.setattr(flow_execution, "update_progress_artifact", update)
    monkeypatch.setattr(flow_execution, "UPDATE_SECONDS", 0.05)
    monkeypatch.setattr(flow_execution, "MAX_SHARE", 0.0001)
    return updates


def test_a_slow_server_gets_few_updates_and_does_not_delay_the_run(outcome: list[tuple[float, str]]) -> None:
    with PrefectProgress(logging.getLogger("tests")) as progress:
        progress.phase("embedding", 100_000)
        for _ in range(10):
            for _ in range(100):
                progress.advance(10, 20)
            time.sleep(0.06)
        until(lambda: outcome, "the first update")
        assert len(outcome) == 1  # the next one may follow after 1,000 s: updates take 0.01 % of the time
        progress.finish("done")
    assert outcome[-1] == (100.0, "done")
    assert "documents" in outcome[0][1]


def test_an_unreachable_server_does_not_fail_the_run(monkeypatch: pytest.MonkeyPatch, outcome: list[Any]) -> None:
    calls: list[float] = []

    def fail(_: object, progress: float, description: str) -> None:
        calls.append(progress)
        raise OSError("no route")

    monkeypatch.setattr(flow_execution, "update_progress_artifact", fail)
    with PrefectProgress(logging.getLogger("tests")) as progress:
        progress.phase("embedding")
        progress.advance(1)
        until(lambda: calls, "an update")


def test_a_run_without_counts_shows_progress_only_if_it_has_changed_something(outcome: list[tuple[float, str]]) -> None:
    for has_changed in (False, True):
        with PrefectProgress(logging.getLogger("tests")) as progress:
            progress.phase("scanning")
            progress.finish("done", has_changed=has_changed)
        assert outcome == [(100.0, "done")] * has_changed


def test_secrets_are_resolved_on_the_worker_and_refused_in_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_SECRET", "s3cr3t")
    assert options_of({"secret": "${STORE_SECRET}"}) == {"secret": "s3cr3t"}
    with pytest.raises(UsageError) as caught:
        options_of({"secret": "s3cr3t"})
    assert "s3cr3t" not in str(caught.value)

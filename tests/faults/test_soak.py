"""Eight writers, three compactors and two readers run concurrently, for a minute under ``make soak``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.soak import (
    BLOCK,
    COMPACTORS,
    LIFE,
    READERS,
    WRITERS,
    Publication,
    chain_problems,
    contradictions,
    model,
)
from tests.support.waiting import PATIENCE_SECONDS

SECONDS = float(os.environ.get("DRIFTLINE_SOAK_SECONDS", "3"))


def soak(uri: str) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).with_name("soak.py")), uri, str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS + PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.fixture(params=["local", "s3"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else str(request.getfixturevalue("s3_bucket"))


@pytest.mark.timeout(SECONDS + 1800)
def test_concurrent_writers_compactors_and_readers_lose_and_resurrect_nothing(uri: str) -> None:
    report = soak(uri)
    assert report["problems"] == []
    assert (len(report["changes"]), len(report["publications"]), len(report["reads"])) == (WRITERS, COMPACTORS, READERS)
    assert min(report["changes"]) >= 2 * BLOCK
    assert min(report["reads"]) >= 1
    assert sum(report["publications"]) >= 2


# -- the checks themselves detect each fault ---------------------------------------------------


def test_lost_resurrected_and_changed_rows_are_detected() -> None:
    done = [20, 0]
    seen = {key: value for key, value in model(done).items() if key.startswith("own/")}
    assert sorted(seen) == [f"own/0/{number:07}" for number in range(21 - LIFE, 21)]
    assert contradictions(seen, done, done) == []
    assert contradictions(seen, done, [20 + BLOCK, 0]) == [], "some of them are about to go"
    assert contradictions({key: seen[key] for key in list(seen)[1:]}, done, done) == [f"lost own/0/{21 - LIFE:07}"]
    assert contradictions(seen | {"own/0/0000003": 3}, done, done) == ["resurrected own/0/0000003"]
    assert contradictions(seen | {"own/0/0000020": 7}, done, done) == ["own/0/0000020 has value 7"]


def test_concurrent_compactors_and_an_old_base_are_detected() -> None:
    first = Publication(1, "", "a", 0.0, 1.0)
    assert chain_problems([Publication(2, "a", "b", 1.5, 2.0), first]) == []
    assert "same time" in chain_problems([first, Publication(2, "a", "b", 0.5, 2.0)])[0]
    assert "did not replace" in chain_problems([first, Publication(2, "", "b", 1.5, 2.0)])[0]
    assert "after token 2" in chain_problems([Publication(2, "", "a", 0.0, 1.0), Publication(1, "a", "b", 2, 3)])[0]

"""The fault soak: runs for ``DRIFTLINE_SOAK_SECONDS`` with ``DRIFTLINE_SOAK_SEED`` (``make soak``)."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_SECONDS

SECONDS = float(os.environ.get("DRIFTLINE_SOAK_SECONDS", "20"))
SEED = int(os.environ.get("DRIFTLINE_SOAK_SEED", "0")) or random.randrange(1, 10**6)
SETTLING_SECONDS = 400
"""Time for the first runs and for the last runs, which bring everything up to date."""


@pytest.mark.timeout(SECONDS + SETTLING_SECONDS + 1800)
def test_two_hosts_on_a_failing_store_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.soak.soak", str(tmp_path), str(SECONDS), str(SEED)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        command,
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS + SETTLING_SECONDS + PATIENCE_SECONDS,
    )
    print(f"seed {SEED}\n{done.stdout}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["problems"] == [], f"seed {SEED}"

"""Thousands of broken documents, within ``DRIFTLINE_SOAK_SECONDS`` (``make soak``)."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.support.fuzzing import CANARY, fuzz

SECONDS = float(os.environ.get("DRIFTLINE_SOAK_SECONDS", "20"))
SEED = int(os.environ.get("DRIFTLINE_SOAK_SEED", "0")) or random.randrange(1, 10**6)
FILES = 5_000
ALL_FROM_SECONDS = 600
"""How long a soak must be to read all files, however long that takes."""


@pytest.mark.timeout(SECONDS + 3_600)
def test_broken_documents_do_not_hang_crash_or_leak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    print(f"seed {SEED}")
    outcome = fuzz(FILES, SEED, tmp_path, SECONDS if SECONDS < ALL_FROM_SECONDS else float("inf"))
    print(f"{outcome.files:,} files: {dict(outcome.ends.most_common())}")
    assert outcome.leaks == []
    assert outcome.ends["document that takes too long to read"] == 0
    assert outcome.files == FILES or SECONDS < ALL_FROM_SECONDS

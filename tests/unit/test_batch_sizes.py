"""Batches are large where each worker gets several, and equally large, because a batch becomes a data file."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftline.flows.runs.executors import Executor
from driftline.flows.runs.source_run import (
    BATCH_BYTES,
    BATCH_DOCUMENTS,
    BATCHES_PER_SLOT,
    LARGE_BATCH_BYTES,
    MEMBER_BATCH_BYTES,
    WORTHWHILE_BYTES,
    batch_bytes,
    cut,
    text_bytes,
)

MIB = 2**20


@dataclass
class Slots:
    slots: int
    remote: bool = True


def of(total: int, slots: int, *, remote: bool = True) -> int:
    executor: Executor = Slots(slots, remote)  # type: ignore[assignment]
    return batch_bytes(total, executor)


@pytest.mark.parametrize(
    ("total", "slots", "remote", "expected"),
    [
        (100_000, 2, False, BATCH_BYTES),
        (100_000, 2, True, WORTHWHILE_BYTES),
        (6 * MIB, 2, True, 3 * MIB),
        (6 * MIB, 2, False, BATCH_BYTES),
        (48 * MIB, 2, True, 12 * MIB),
        (48 * MIB, 2, False, 12 * MIB),
        (48 * MIB, 12, True, 4 * MIB),
        (48 * MIB, 48, True, MIB),
        (1_024 * MIB, 8, True, LARGE_BATCH_BYTES),
    ],
)
def test_batches_are_as_large_as_the_work_allows(total: int, slots: int, remote: bool, expected: int) -> None:
    assert of(total, slots, remote=remote) == expected


@given(st.integers(0, 2**34), st.integers(1, 256), st.booleans())
def test_no_worker_gets_too_few_or_too_large_batches(total: int, slots: int, remote: bool) -> None:
    limit = of(total, slots, remote=remote)
    assert min(WORTHWHILE_BYTES, BATCH_BYTES) <= limit <= LARGE_BATCH_BYTES
    if limit > BATCH_BYTES:
        assert -(-total // limit) > slots * (BATCHES_PER_SLOT - 1)
        assert -(-total // limit) <= -(-total // (slots * limit)) * slots  # the same number for each


@given(st.lists(st.integers(0, 3_000), max_size=300), st.integers(1, 12))
def test_batches_have_every_document_once_and_nearly_the_same_size(sizes: list[int], count: int) -> None:
    limit = max(1, -(-sum(sizes) // count))
    found = [*cut(sizes, [False] * len(sizes), limit)]
    assert [at for start, end in found for at in range(start, end)] == [*range(len(sizes))]
    for start, end in found:
        assert start < end
        assert end == start + 1 or sum(sizes[start:end]) <= limit + limit // 8
    if max(sizes, default=0) <= limit // 8:
        assert len(found) <= count + 1


def test_many_small_documents_end_a_batch_and_members_share_one() -> None:
    assert len([*cut([1] * (3 * BATCH_DOCUMENTS), [False] * (3 * BATCH_DOCUMENTS), BATCH_BYTES)]) == 3
    assert len([*cut([1] * (3 * BATCH_DOCUMENTS), [False] * (3 * BATCH_DOCUMENTS), 2 * BATCH_BYTES)]) == 2
    assert len([*cut([MIB] * 32, [True] * 32, BATCH_BYTES)]) == 32 * MIB // MEMBER_BATCH_BYTES


@pytest.mark.parametrize("name", ["app.log.gz", "APP.LOG.GZ", "dump.bz2", "a.xz", "a.zst", "a.zstd", "a.lz4"])
def test_compressed_files_count_as_their_text(name: str) -> None:
    assert text_bytes(name, MIB) == 4 * MIB
    assert text_bytes(f"{name}.txt", MIB) == MIB

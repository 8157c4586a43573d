"""Rows are written part by part: one part at a time is in memory, and errors of both sides are raised."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

import pyarrow as pa
import pytest

from driftline.storage.lance.streaming import streamed


def part(number: int) -> pa.Table:
    return pa.table({"number": [number, number]})


def numbers(reader: pa.RecordBatchReader) -> list[int]:
    return [each for batch in reader for each in batch["number"].to_pylist()]


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_all_parts_are_written_in_order(count: int) -> None:
    found = streamed(numbers, map(part, range(count)))
    assert found == ([each for number in range(count) for each in (number, number)] or None)


def test_a_part_is_computed_in_this_thread_after_the_one_before_was_written() -> None:
    written = list[int]()
    alive = list["weakref.ref[pa.Table]"]()

    def parts() -> Iterator[pa.Table]:
        for number in range(4):
            assert threading.current_thread() is here
            assert written == [each for before in range(number) for each in (before, before)]
            assert not any(each() for each in alive)
            made = part(number)
            alive.append(weakref.ref(made))
            yield made
            del made

    def write(reader: pa.RecordBatchReader) -> None:
        for batch in reader:
            written.extend(batch["number"].to_pylist())

    here = threading.current_thread()
    streamed(write, parts())
    assert len(written) == 8


@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_error_of_the_parts_is_raised(after: int) -> None:
    def parts() -> Iterator[pa.Table]:
        yield from map(part, range(after))
        raise KeyError(after)

    with pytest.raises(KeyError):
        streamed(numbers, parts())


@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_error_of_the_writer_is_raised_without_computing_all_parts(after: int) -> None:
    computed = list[int]()

    def parts() -> Iterator[pa.Table]:
        for number in range(100):
            computed.append(number)
            yield part(number)

    def write(reader: pa.RecordBatchReader) -> None:
        for _ in range(after):
            reader.read_next_batch()
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        streamed(write, parts())
    assert len(computed) <= after + 2

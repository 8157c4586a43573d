"""Rows are written part by part: one part at a time is in memory, and errors of both sides are raised."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from queue import Queue
from typing import Any

import pyarrow as pa
import pytest

from driftline.storage.lance import lance_table
from driftline.storage.lance.lance_table import streamed


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


def test_an_interrupt_while_the_writer_starts_does_not_wait_for_it_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    queues, interrupts = list["Queue[Any]"](), list[BaseException]()

    class Remembered(Queue[Any]):
        def __init__(self) -> None:
            super().__init__()
            queues.append(self)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def run() -> None:
        try:
            streamed(numbers, map(part, range(3)))
        except KeyboardInterrupt as error:
            interrupts.append(error)

    monkeypatch.setattr(lance_table, "SimpleQueue", Remembered)
    monkeypatch.setattr(Future, "add_done_callback", interrupt)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    ended = not thread.is_alive()
    for each in queues:
        each.put(None)  # lets the threads end
    thread.join()
    assert ended
    assert interrupts

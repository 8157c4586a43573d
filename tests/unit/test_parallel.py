"""``in_parallel``: results in order, requests counted, and nothing new starts after a failure or an interruption."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from driftline.storage.objects.store import ObjectStore
from driftline.storage.objects.store_requests import by_kind, count, in_parallel, phase, request_counter
from tests.support.waiting import PATIENCE_SECONDS

THREADS = 4
MOST_STARTED = 2 * THREADS


def test_results_are_in_order_and_requests_are_counted_in_the_callers_phase() -> None:
    second_ran = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            assert second_ran.wait(PATIENCE_SECONDS)  # only another thread can set it
        second_ran.set()
        count("get")
        return number

    with request_counter() as requests, phase("scan"):
        assert [*in_parallel(work, range(100), THREADS)] == [*range(100)]
    assert requests.counts == {"scan": {"get": 100}}


@pytest.mark.parametrize("shared", [False, True], ids=["own-threads", "shared-pool"])
def test_no_item_starts_after_the_first_failure(shared: bool) -> None:
    started = itertools.count()

    def work(number: int) -> None:
        next(started)
        raise OSError(str(number))

    with ThreadPoolExecutor(THREADS) as pool:
        with pytest.raises(OSError, match=r"^0$"):
            list(in_parallel(work, range(640), THREADS, pool if shared else None))
        assert next(started) <= MOST_STARTED
        pool.submit(int).result()
    assert next(started) <= MOST_STARTED + 1  # nor later


def test_an_interrupt_stops_items_in_progress_and_starts_no_others() -> None:
    started, ended = itertools.count(), itertools.count()

    def work(_number: int) -> None:
        next(started)
        next(ended)

    def items() -> Iterator[int]:
        yield from range(MOST_STARTED - 1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(in_parallel(work, items(), THREADS))
    assert next(started) == next(ended)
    assert not [each for each in threading.enumerate() if each.name.startswith("driftline-parallel")]


def test_a_caller_that_stops_early_reads_only_the_items_ahead() -> None:
    read = itertools.count()
    results = in_parallel(str, read, THREADS)
    assert [next(results), next(results)] == ["0", "1"]
    results.close()  # type: ignore[attr-defined]
    assert next(read) <= MOST_STARTED + 1


def test_a_pool_that_was_shut_down_leaves_the_work_to_the_caller() -> None:
    pool = ThreadPoolExecutor(THREADS)
    pool.shutdown()
    assert [*in_parallel(lambda _: threading.current_thread(), range(3), pool=pool)] == [threading.main_thread()] * 3


def test_reads_from_a_local_disk_take_no_threads(tmp_path: Path) -> None:
    objects = ObjectStore.open(tmp_path)
    with request_counter() as requests:
        threads = {*in_parallel(lambda _: threading.current_thread(), range(99), objects.requests_at_once)}
    assert threads == {threading.main_thread()}
    assert by_kind(requests.counts) == {}

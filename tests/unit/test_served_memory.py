"""The memory stores that a server shares between its requests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from driftline.flows.served_memory import MAX_STORES, MemoryStores
from driftline.storage.entities import Entity
from driftline.storage.errors import NotIndexed, StorageError
from tests.support.waiting import PATIENCE_SECONDS


class Store:
    def __init__(self, opened: list[Store]) -> None:
        self.is_closed = False
        opened.append(self)

    def close(self) -> None:
        self.is_closed = True


def entity(number: int) -> Entity:
    return Entity.parse(f"org:o{number}")


def test_a_slow_catalog_delays_only_the_searches_of_its_boundary() -> None:
    slow, go_on, waiting, opened = entity(0), threading.Event(), threading.Event(), list[Store]()

    def find(boundary: Entity | None) -> Callable[[], Any]:
        if boundary == slow:
            waiting.set()
            assert go_on.wait(PATIENCE_SECONDS)
        return lambda: Store(opened)

    stores, seen = MemoryStores(find), list[Any]()

    def search() -> None:
        with stores.bound_to(slow) as store:
            seen.append(store)

    searches = [threading.Thread(target=search) for _ in range(2)]
    for each in searches:
        each.start()
    assert waiting.wait(PATIENCE_SECONDS)
    with stores.bound_to(entity(1)):
        go_on.set()
    for each in searches:
        each.join(PATIENCE_SECONDS)
    assert len(opened) == 2  # the two searches share one store
    assert seen[0] is seen[1]
    stores.close()
    assert all(store.is_closed for store in opened)


def test_unused_stores_are_closed_beyond_the_limit_and_those_in_use_are_not() -> None:
    opened = list[Store]()
    stores = MemoryStores(lambda _: lambda: Store(opened))  # type: ignore[arg-type, return-value]
    with ExitStack() as stack:
        for number in range(MAX_STORES + 2):
            stack.enter_context(stores.bound_to(entity(number)))
        assert not any(store.is_closed for store in opened)
    with stores.bound_to(entity(100)):
        assert sum(store.is_closed for store in opened) == 3
        assert len(stores._open) == MAX_STORES


def test_a_store_that_could_not_be_opened_is_opened_by_the_next_search() -> None:
    outcomes: list[Any] = [StorageError("The catalog is away"), None, Store([])]

    def find(_: Entity | None) -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome and (lambda: outcome)

    stores = MemoryStores(find)
    for error in (StorageError, NotIndexed):
        with pytest.raises(error), stores.bound_to(None):
            pass
    with stores.bound_to(None) as store:
        assert isinstance(store, Store)

"""Reads of a Lance table that survive damaged indexes: they scan the data instead, and say so once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from driftline.storage.errors import CorruptFile, StorageError, gave_up, is_panic
from driftline.storage.lance.errors import first_line, is_lance_failure
from driftline.storage.lance.retries import is_network_failure, persistently

if TYPE_CHECKING:
    from lance import LanceDataset, LanceFragment

log = logging.getLogger(__name__)

REPAIR = "Run 'driftline verify --repair'."
_MAX_REMEMBERED = 1_000

_UNUSABLE: dict[tuple[str, int], None] = {}
"""The versions of tables with an index that this process could not use."""
_Result = TypeVar("_Result")


@contextmanager
def without_panic(where: str = "") -> Iterator[None]:
    """Translate a panic of native code, which no ``except Exception`` sees, into CorruptFile; a decorator, too."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise gave_up(first_line(error), where) from error


@contextmanager
def reading(title: str, where: str) -> Iterator[None]:
    """Translate what Lance raises for unreadable data into CorruptFile, or StorageError for a store out of reach."""
    try:
        yield
    except BaseException as error:
        if not is_lance_failure(error):
            raise
        if is_network_failure(error):
            raise StorageError(
                f"The table of {title} cannot be read ({first_line(error)})", where, "Run it again."
            ) from error
        raise CorruptFile(f"The table of {title} cannot be read ({first_line(error)})", where, REPAIR) from error


def index_stats(dataset: LanceDataset) -> dict[str, dict[str, Any] | None]:
    """Lance's statistics of each index of ``dataset`` by name; None for one whose files cannot be read."""
    names = [index.name for index in persistently(dataset.describe_indices)]
    # Each waits for several reads of a bucket, one after another.
    with ThreadPoolExecutor(max(1, len(names))) as pool:
        return dict(zip(names, pool.map(partial(_index_stats, dataset), names), strict=True))


def _index_stats(dataset: LanceDataset, name: str) -> dict[str, Any] | None:
    try:
        return persistently(partial(dataset.stats.index_stats, name))
    except BaseException as error:
        if not is_lance_failure(error) or is_network_failure(error):
            raise
        return None


def with_indexes(dataset: LanceDataset, title: str, read: Callable[[bool], _Result]) -> _Result:
    """``read(True)``, which uses the indexes of ``dataset``, or ``read(False)``, which scans, if one is unusable.

    Raises CorruptFile, StorageError.
    """
    version = (dataset.uri, dataset.version)
    if version in _UNUSABLE:
        with reading(title, dataset.uri):
            return persistently(lambda: read(False))
    try:
        return persistently(lambda: read(True))
    except BaseException as error:
        if not is_lance_failure(error):
            raise
        reason = first_line(error)
    with reading(title, dataset.uri):
        result = persistently(lambda: read(False))
    if len(_UNUSABLE) >= _MAX_REMEMBERED:
        _UNUSABLE.clear()
    _UNUSABLE[version] = None
    log.warning("A search index of %s is unusable (%s): it is scanned instead. %s", dataset.uri, reason, REPAIR)
    return result


def _read_all(fragment: LanceFragment) -> None:
    for _ in fragment.to_batches():  # every column, since a page of one of them may be damaged
        pass


def unreadable_fragments(dataset: LanceDataset, among: Collection[int] | None = None) -> list[int]:
    """The ids of the fragments, of all or ``among`` some, whose files are missing, cut, changed or not Lance's."""
    unreadable: list[int] = []
    for fragment in dataset.get_fragments():
        if among is not None and fragment.fragment_id not in among:
            continue
        try:
            persistently(partial(_read_all, fragment))
        except BaseException as error:
            if not is_lance_failure(error) or is_network_failure(error):
                raise
            unreadable.append(fragment.fragment_id)
    return unreadable

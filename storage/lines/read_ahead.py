"""Reads ahead what a search of a bucket needs of the indexes: few large reads side by side instead of many small ones.

An index that is searched without it is read in small parts, one after another, each of which waits for the bucket.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from driftline.storage.lance.damage import with_indexes
from driftline.storage.lines.indexes import TEXT

if TYPE_CHECKING:
    from lance import LanceDataset

MAX_TEXT_BYTES = 64 * 2**20
"""Beyond this size, the postings of the words of a query are less to read than the whole text index."""

_done: set[tuple[str, str]] = set()
"""Segments of indexes that this process holds, by the URI of their table; they are immutable."""
_lock = threading.Lock()
_MAX_DONE = 10_000


def read_ahead(dataset: LanceDataset, names: Iterable[str], title: str) -> None:
    """Bring the indexes ``names`` of ``dataset`` into the memory of its session, all at once.

    An index that is damaged is left to the search, which does without it.
    """
    wanted = set(names)
    found = [
        (index.name, {(dataset.uri, str(segment.uuid)) for segment in index.segments})
        for index in dataset.describe_indices()
        if index.name in wanted and (index.name != TEXT or (index.total_size_bytes or 0) <= MAX_TEXT_BYTES)
    ]
    with _lock:
        missing = [(name, segments) for name, segments in found if not segments <= _done]
    if not missing:
        return

    def read(name: str) -> None:
        def attempt(indexed: bool) -> None:
            if indexed:
                dataset.prewarm_index(name)

        with_indexes(dataset, title, attempt)

    with ThreadPoolExecutor(len(missing)) as pool:
        list(pool.map(read, [name for name, _ in missing]))
    with _lock:
        if len(_done) > _MAX_DONE:
            _done.clear()
        _done.update(*(segments for _, segments in missing))

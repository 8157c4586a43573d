"""How a memory store ends: by a call, with the object, or with the process, so that the last writes are indexed."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from driftline.storage.errors import DriftlineError
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.memory.flush import Flusher

_log = logging.getLogger(__name__)


class Closing:
    """Flushes and closes the parts of ``store`` once: in ``close``, or when the store is collected or Python exits."""

    def __init__(self, store: object, flusher: Flusher, pool: ThreadPoolExecutor, catalog: Catalog) -> None:
        self._parts = flusher, pool, catalog
        self._finalizer = weakref.finalize(store, _close_unattended, os.getpid(), *self._parts)

    def close(self) -> None:
        """Flush and close; does nothing the second time. Raises StorageError, CatalogError."""
        if self._finalizer.detach() is not None:
            _close(*self._parts, Flusher.count_deltas)


def _close(
    flusher: Flusher,
    pool: ThreadPoolExecutor,
    catalog: Catalog,
    last: Callable[[Flusher], None] = lambda flusher: None,
) -> None:
    try:
        flusher.close()
        last(flusher)
    finally:
        pool.shutdown()
        catalog.close()


def _close_unattended(process: int, flusher: Flusher, pool: ThreadPoolExecutor, catalog: Catalog) -> None:
    """Close without a caller that could be told of a failure: the outbox keeps what is not flushed for other readers.

    A process that was forked has the connections of its parent, which closes them itself.
    """
    if os.getpid() != process:
        return
    try:
        _close(flusher, pool, catalog)
    except DriftlineError as error:
        _log.warning("Could not update the memory indexes at the end, the next reader will: %s", error)

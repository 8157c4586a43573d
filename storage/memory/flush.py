"""Apply the outbox to indexes and vectors, in batches, about a second after each write.

Claim names encode the owning process, so other processes on this host can tell whether it exited.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial

from driftline.storage.deltas.delta_index import DEFAULT_ENCODING, Encoding
from driftline.storage.documents import content_hash
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError
from driftline.storage.leases.liveness import ProcessIdentity
from driftline.storage.memory.catalog import outbox
from driftline.storage.memory.catalog.database import Catalog
from driftline.storage.memory.catalog.outbox import OutboxRow
from driftline.storage.memory.memory_indexes import DeltaWatch, publish
from driftline.storage.memory.search import MemorySearch
from driftline.storage.memory.vectors import vector_tables
from driftline.storage.objects.store import ObjectStore

_HOST_CHARACTERS = 10
_UNIQUE_CHARACTERS = 4
FLUSH_SECONDS = 1.0
FLUSH_ROWS = 1_000
BATCH_ROWS = 50_000
"""Maximum number of changes per delta; bounds memory."""
CLAIM_SECONDS = 30.0
OVERDUE_SECONDS = 2.0
"""Older changes were left behind by a process that exited; a live process flushes after ``FLUSH_SECONDS``."""
MAX_PAUSE_SECONDS = 60.0
"""Longest delay between attempts while the workspace is not writable; the outbox keeps the changes."""

_log = logging.getLogger(__name__)


def new_claim_owner() -> str:
    """Return a unique name that identifies this process, at most 64 characters long."""
    this = ProcessIdentity.current()
    unique = uuid.uuid4().hex[:_UNIQUE_CHARACTERS]
    return ":".join((_host(this), str(this.pid), this.start_time, unique, this.liveness_file))


def is_dead_owner(claim_owner: str) -> bool:
    """Return whether the ``claim_owner`` process ran on this host, in this boot, and is provably dead."""
    this = ProcessIdentity.current()
    host, _, rest = claim_owner.partition(":")
    pid, _, rest = rest.partition(":")
    if host != _host(this) or not pid.isdecimal():
        return False
    start_time, _, rest = rest.partition(":")
    liveness_file = rest.partition(":")[2]
    return ProcessIdentity(this.host, this.boot_id, int(pid), start_time, liveness_file).is_provably_dead()


def _host(process: ProcessIdentity) -> str:
    return content_hash(f"{process.host}/{process.boot_id}".encode())[:_HOST_CHARACTERS]


class Flusher:
    """Empties the outbox in a background thread, ``FLUSH_SECONDS`` after a write or once ``FLUSH_ROWS`` are pending.

    A crash at any step leaves changes in the outbox, and the next flush reapplies them. That is idempotent: indexes
    compare ``rev``, vectors compare ids with their commit marker. If ``search`` is None, the flusher updates only
    indexes; for tenants with vectors, it leaves the changes to a process that has a model.
    """

    def __init__(
        self,
        catalog: Catalog,
        objects: ObjectStore,
        search: MemorySearch | None,
        now: Callable[[], datetime],
        watch: DeltaWatch | None = None,
        within: Entity | None = None,
        encoding: Encoding = DEFAULT_ENCODING,
    ) -> None:
        """Limit flushes to the tenant of ``within``, and counts to entities at or below ``within``."""
        self._catalog = catalog
        self._objects = objects
        self._search = search
        self._now = now
        self._watch = watch
        self._within = within
        self._encoding = encoding
        self._name = new_claim_owner()
        self._one_at_a_time = threading.Lock()
        self._state = threading.Condition()
        self._waiting = 0
        self._is_flushing = False
        self._ended = False
        self._thread: threading.Thread | None = None

    def notify(self, rows: int) -> None:
        """Report that ``rows`` were added to the outbox."""
        with self._state:
            self._waiting += rows
            if self._thread is None and rows and not self._ended:
                thread = threading.Thread(target=self._run, name="driftline-memory-flush", daemon=True)
                with contextlib.suppress(RuntimeError):  # the interpreter is shutting down, and ``close`` flushes
                    thread.start()
                    self._thread = thread
            self._state.notify_all()

    @property
    def has_waiting(self) -> bool:
        """Whether this process has unflushed changes; a flush in progress may not include all of them."""
        with self._state:
            return self._waiting > 0 or self._is_flushing

    def flush_visible_writes(self) -> None:
        """Flush this process's writes and other processes' overdue writes so that a search finds them all.

        Raises StorageError or CatalogError if this process's changes cannot be flushed; failures to flush other
        processes' changes are only logged.
        """
        if self.has_waiting:
            self.flush()
            return
        before = self._now() - timedelta(seconds=OVERDUE_SECONDS)
        find = partial(outbox.overdue, before=before, for_vectors=self._search is not None)
        left = self._visible(self._catalog.read(find))
        if not left:
            return
        try:
            with self._one_at_a_time:
                for tenant in left:
                    self._empty(tenant, shared=True)
        except DriftlineError as error:
            _log.warning("Could not flush another process's changes to the memory indexes: %s", error)

    def flush(self, *, shared: bool = False) -> int:
        """Empty the outbox now, and return how many changes were flushed.

        ``shared`` skips tenants that another process is flushing. Raises StorageError, CatalogError.
        """
        with self._one_at_a_time:
            with self._state:
                self._waiting, self._is_flushing = 0, True  # later writes are either read below or counted again
            try:
                return self._flush(shared)
            except BaseException:
                with self._state:
                    self._waiting += 1
                raise
            finally:
                with self._state:
                    self._is_flushing = False

    def _flush(self, shared: bool) -> int:
        flushed = 0
        for tenant in self._visible(self._catalog.read(partial(outbox.waiting, for_vectors=self._search is not None))):
            number = self._empty(tenant, shared=shared)
            if number is None:
                with self._state:
                    self._waiting += 1  # the other process may not reread the outbox
            flushed += number or 0
        return flushed

    def _empty(self, tenant: Entity, *, shared: bool) -> int | None:
        """Flush one tenant's changes, and return how many there were.

        Returns None if ``shared`` is set and another process is flushing the tenant.
        """
        if shared and not self._claim(tenant, CLAIM_SECONDS):
            return None
        flushed = batches = 0
        while batch := self._batch(tenant):
            self._publish(tenant, batch)
            flushed += sum(map(self._counts, batch))
            batches += 1
            if shared:
                self._claim(tenant, CLAIM_SECONDS)
        if shared:
            self._claim(tenant, 0.0)
        if self._watch is not None and batches:
            self._watch.flushed(tenant, batches)
        return flushed

    def close(self) -> None:
        """Stop the thread, then flush pending changes.

        Raises StorageError, CatalogError; the changes then stay in the outbox.
        """
        with self._state:
            self._ended = True
            self._state.notify_all()
        if self._thread is threading.current_thread():
            return  # the flush itself garbage-collected the store; the thread exits after the flush
        if self._thread is not None:
            self._thread.join()
        if self.has_waiting:
            self.flush()

    def count_deltas(self) -> None:
        """Count deltas, and compact, or request a compaction, if there are too many. Raises StorageError."""
        if self._watch is not None:
            self._watch.count_flushed()

    def _visible(self, tenants: Sequence[Entity]) -> list[Entity]:
        return [tenant for tenant in tenants if self._within is None or tenant == self._within.tenant]

    def _counts(self, change: OutboxRow) -> bool:
        if self._within is None:
            return True
        top = f"{self._within.directory}/"
        return any(f"{path}/".startswith(top) for path in (change.path, change.left_path) if path)

    def _publish(self, tenant: Entity, batch: list[OutboxRow]) -> None:
        changes = [change for change in batch if not change.is_indexed]
        publish(self._objects, changes, self._now(), self._encoding)
        ids = [change.id for change in batch]
        if self._search is not None:
            self._search.apply(tenant, batch)
        elif vector_tables(self._objects, tenant):
            self._catalog.write(lambda connection: outbox.mark_indexed(connection, ids))
            return
        self._catalog.write(lambda connection: outbox.forget(connection, ids))

    def _batch(self, tenant: Entity) -> list[OutboxRow]:
        find = partial(outbox.batch, for_vectors=self._search is not None)
        return self._catalog.read(lambda connection: find(connection, tenant, BATCH_ROWS))

    def _claim(self, tenant: Entity, seconds: float) -> bool:
        now = self._now()
        until = now + timedelta(seconds=seconds)
        return self._catalog.write(
            lambda connection: outbox.claim(connection, tenant, self._name, now, until, is_dead_owner)
        )

    def _run(self) -> None:
        pause_seconds = FLUSH_SECONDS
        while True:
            with self._state:
                self._state.wait_for(lambda: self._ended or self._waiting)
                deadline = time.monotonic() + pause_seconds
                while not self._ended and (remaining := deadline - time.monotonic()) > 0:
                    if self._waiting >= FLUSH_ROWS and pause_seconds == FLUSH_SECONDS:
                        break
                    self._state.wait(remaining)
                if self._ended:
                    return
            try:
                self.flush(shared=True)
                pause_seconds = FLUSH_SECONDS
            except DriftlineError as error:
                _log.warning("Could not update the memory indexes, will retry: %s", error)
                pause_seconds = min(2 * pause_seconds, MAX_PAUSE_SECONDS)
            except Exception:  # an embedder may raise anything, and later writes must still be flushed
                _log.exception("Could not update the memory indexes, will retry")
                pause_seconds = min(2 * pause_seconds, MAX_PAUSE_SECONDS)


class Closing:
    """Flush and close a store's parts once: in ``close``, or when the store is garbage-collected or Python exits."""

    def __init__(self, store: object, flusher: Flusher, pool: ThreadPoolExecutor, catalog: Catalog) -> None:
        self._parts = flusher, pool, catalog
        self._finalizer = weakref.finalize(store, _close_unattended, os.getpid(), *self._parts)

    def close(self) -> None:
        """Flush and close; a second call does nothing. Raises StorageError, CatalogError."""
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
    """Close when no caller can receive an error; unflushed changes stay in the outbox for other processes.

    A forked process shares its parent's connections, which the parent closes itself.
    """
    if os.getpid() != process:
        return
    try:
        _close(flusher, pool, catalog)
    except DriftlineError as error:
        _log.warning("Could not update the memory indexes on exit, the next reader will: %s", error)

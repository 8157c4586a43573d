"""Acquire and renew leases with fencing tokens: one holder at a time, and a token that rejects late commits.

A lease alone is not enough, because a paused holder may resume after it expired. Every commit under a lease therefore
checks the token (DESIGN, "Leases").
"""

from __future__ import annotations

import contextvars
import heapq
import itertools
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import TracebackType
from typing import Literal, Self

from driftline.storage.environment import upgrade_command
from driftline.storage.errors import (
    AlreadyExists,
    CorruptFile,
    DriftlineError,
    LeaseHeld,
    LeaseLost,
    ObjectNotFound,
    PreconditionFailed,
    StorageError,
    WorkspaceTooNew,
)
from driftline.storage.json_records import from_json, to_json
from driftline.storage.leases import liveness
from driftline.storage.leases.liveness import ProcessIdentity
from driftline.storage.objects.store import ObjectStore

FORMAT_VERSION = 1
LEASE_TTL_SECONDS = 60.0
RENEWALS_PER_TTL = 3
MAX_RENEWAL_THREADS = 16
"""Bounds the threads of a process that holds the leases of thousands of sources, as a cleanup does."""
POLLS_PER_TTL = 20
MAX_POLL_SECONDS = 1.0
WRITE_ATTEMPTS = 5

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owner(ProcessIdentity):
    """The run that holds a lease, and its process."""

    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """A lease file's content. ``nonce`` distinguishes acquisitions whose other fields are equal.

    ``failures`` counts the holders that failed or did not release the lease, and may have left garbage. ``indexes_lag``
    is set while lines have changed since the search indexes were updated.
    """

    format_version: int = FORMAT_VERSION
    owner: _Owner
    nonce: str
    token: int
    state: Literal["held", "released"]
    acquired: datetime
    renewed: datetime
    ttl_seconds: float
    failures: int = 0
    indexes_lag: bool = False

    def to_bytes(self) -> bytes:
        return to_json(self)


class Lease:
    """A held lease. Background threads renew it until it is released or abandoned; exiting the context releases it.

    ``token`` is higher than the token of every earlier holder. ``taken_over`` is true if the previous holder did not
    release the lease, so its late commits must be fenced off. A forked child neither renews nor releases the lease.
    ``indexes_lagged`` is true if an earlier holder changed lines without updating the search indexes. Set
    ``indexes_lag`` to tell the next holder that lines have changed, until ``indexes_are_current``.
    """

    def __init__(self, objects: ObjectStore, path: str, record: _Record, version: str, *, taken_over: bool) -> None:
        self.token = record.token
        self.run_id = record.owner.run_id
        self.taken_over = taken_over
        self.indexes_lagged = record.indexes_lag
        self.indexes_lag = taken_over
        self._objects = objects
        self._path = path
        self._record = record
        self._version = version
        self._pid = os.getpid()
        self._has_ended = False
        self._writing = threading.Lock()
        self._context = contextvars.copy_context()  # counts the requests of renewals, too
        self._leaves_garbage = False
        liveness.change_references(+1)
        _renewals().add(self)

    def check(self) -> None:
        """Read the lease file and verify that this process still holds the lease.

        Raises LeaseLost, CorruptFile, WorkspaceTooNew, StorageError.
        """
        if self._has_ended or os.getpid() != self._pid:
            raise LeaseLost("This process no longer holds the lease", self._where, "Start the run again.")
        try:
            current, _ = _read(self._objects, self._path)
        except ObjectNotFound:
            raise LeaseLost("The lease file no longer exists", self._where, "Start the run again.") from None
        if not self._is_ours(current):
            raise _lost(current, self._where)

    def expect_garbage(self) -> None:
        """Make ``release`` count this holder as failed, because it leaves unreferenced files."""
        self._leaves_garbage = True

    def release(self, *, failed: bool = False) -> None:
        """Stop renewing and free the lease immediately; do nothing if it is already lost or released.

        If ``failed`` is set, the file's failure count increases.

        A store failure is logged, not raised: the lease then expires.
        """
        if not self._stop():
            return
        failures = self._record.failures + (failed or self._leaves_garbage)
        indexes_lag = self.indexes_lagged or self.indexes_lag
        self._record = replace(self._record, failures=failures, indexes_lag=indexes_lag)
        try:
            self._write("released")
            liveness.change_references(-1)
        except LeaseLost:
            liveness.change_references(-1)
            _log.warning("Another run took over the lease before its release: %s", self._where)
        except DriftlineError as error:
            _log.warning("The lease was not released and will expire: %s", error)

    def leave_held(self) -> None:
        """Stop renewing but leave the lease held, so that the next holder sees ``taken_over``; used for unknown
        outcomes.
        """
        self._stop()

    def indexes_are_current(self) -> None:
        """Record in the released lease that the search indexes were updated, unless another run holds it by now."""
        if self._record.state != "released":
            return  # its release failed
        record = replace(self._record, indexes_lag=False)
        try:
            self._version = self._objects.replace(self._path, record.to_bytes(), self._version)
        except PreconditionFailed:
            return  # the holder knows that they lagged, and updates them
        except DriftlineError as error:
            _log.warning("The next run will check the search indexes again: %s", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release(failed=error is not None)

    @property
    def _where(self) -> str:
        return f"{self._objects.uri}/{self._path}"

    def renew(self) -> bool:
        """Write the lease file again; return whether the lease is still held. A failure of the store is logged."""
        with self._writing:
            if self._has_ended:
                return False
            try:
                self._context.run(self._write, "held")
            except LeaseLost as error:
                _log.warning("%s", error)
                return False
            except DriftlineError as error:  # the next renewal may succeed; commits call check() in any case
                _log.warning("Could not renew the lease, will retry: %s", error)
            except Exception:  # a bug must not end the renewals of the leases that share this thread
                _log.exception("Could not renew the lease, will retry: %s", self._where)
            return True

    @property
    def renewal_interval_seconds(self) -> float:
        return self._record.ttl_seconds / RENEWALS_PER_TTL

    def _stop(self) -> bool:
        """Stop renewing; return False if renewal already stopped or belongs to another process."""
        if os.getpid() != self._pid:
            return False
        with self._writing:  # waits for a renewal in progress
            if self._has_ended:
                return False
            self._has_ended = True
        _renewals().remove(self)
        return True

    def _write(self, state: Literal["held", "released"]) -> None:
        record = replace(self._record, state=state, renewed=datetime.now(UTC))
        for _ in range(WRITE_ATTEMPTS):
            try:
                self._version = self._objects.replace(self._path, record.to_bytes(), self._version)
                self._record = record
                return
            except PreconditionFailed:  # our own earlier write may have succeeded without an acknowledgement
                current, self._version = _read(self._objects, self._path)
                if not self._is_ours(current):
                    raise _lost(current, self._where) from None
        raise StorageError(
            f"The store rejected {WRITE_ATTEMPTS} attempts to write a lease that no other run holds",
            self._where,
            "Check that the store honours conditional writes.",
        )

    def _is_ours(self, current: _Record) -> bool:
        return (current.token, current.nonce) == (self._record.token, self._record.nonce)


class _Renewals:
    """Renews the leases of this process: a few threads share a heap of due times, so a lease needs no thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: set[Lease] = set()
        self._due: list[tuple[float, int, Lease]] = []
        self._order = itertools.count()  # leases do not compare
        self._threads = 0

    def add(self, lease: Lease) -> None:
        with self._changed:
            self._held.add(lease)
            self._schedule(lease)
            if self._threads < min(len(self._held), MAX_RENEWAL_THREADS):
                threading.Thread(target=self._run, name="lease renewal", daemon=True).start()
                self._threads += 1

    def remove(self, lease: Lease) -> None:
        with self._changed:
            self._held.discard(lease)
            if not self._held:
                self._due.clear()
                self._changed.notify_all()

    def _schedule(self, lease: Lease) -> None:
        due = time.monotonic() + lease.renewal_interval_seconds
        heapq.heappush(self._due, (due, next(self._order), lease))
        self._changed.notify()

    def _run(self) -> None:
        while (lease := self._next()) is not None:
            if not lease.renew():
                self.remove(lease)
                continue
            with self._changed:
                if lease in self._held:
                    self._schedule(lease)

    def _next(self) -> Lease | None:
        """Wait for the next due lease; return None, which ends the thread, once no lease is held."""
        with self._changed:
            while self._held:
                if not self._due:  # other threads are renewing the rest
                    self._changed.wait()
                    continue
                seconds = self._due[0][0] - time.monotonic()
                if seconds <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(seconds)
            self._threads -= 1
            return None


@lru_cache(1)
def _renewals() -> _Renewals:
    return _Renewals()


os.register_at_fork(after_in_child=_renewals.cache_clear)  # a forked process has none of its parent's threads


def acquire(
    objects: ObjectStore,
    path: str,
    run_id: str,
    *,
    ttl_seconds: float = LEASE_TTL_SECONDS,
    wait_seconds: float = 0.0,
    known_token: Callable[[], int] = lambda: 0,
    at_least: int = 0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Lease:
    """Acquire the lease at ``path`` for this process, waiting up to ``wait_seconds`` for its holder.

    A lease is free if it was never taken or was released, if its holder is provably dead (on this machine), or if its
    file did not change for the holder's TTL, measured by ``clock``. If the holder's last renewal is older than that by
    the hosts' clocks, which may disagree, every caller waits up to one TTL to find out: the next scheduled run takes
    over from a host that died, even without ``wait_seconds``. If the file is missing, numbering continues after the
    highest token in use, which ``known_token`` returns; a token above 0 is then treated as a takeover. The new token is
    higher than ``at_least``.

    Raises LeaseHeld, CorruptFile, WorkspaceTooNew, StorageError.
    """
    deadline = clock() + wait_seconds
    seen_version, seen_since = "", clock()
    is_watched = False
    conflicts = 0
    while True:
        before = clock()
        try:
            current, version = _read(objects, path)
        except ObjectNotFound:
            current, version = None, ""
        if version != seen_version:
            seen_version, seen_since = version, clock()
        expired = current is not None and before - seen_since >= current.ttl_seconds
        if current is None or current.state == "released" or expired or current.owner.is_provably_dead():
            token = current.token if current is not None else known_token()
            taken_over = current.state == "held" if current is not None else token > 0
            failures = (current.failures if current is not None else 0) + taken_over
            indexes_lag = taken_over or (current is not None and current.indexes_lag)
            record = _new_record(run_id, max(token, at_least) + 1, ttl_seconds, failures, indexes_lag)
            try:
                if current is None:
                    written = objects.create(path, record.to_bytes())
                else:
                    written = objects.replace(path, record.to_bytes(), version)
            except (AlreadyExists, PreconditionFailed):
                conflicts += 1
                if conflicts >= WRITE_ATTEMPTS and clock() >= deadline:
                    raise
                continue
            return Lease(objects, path, record, written, taken_over=taken_over)
        if not is_watched and datetime.now(UTC) >= _valid_until(current):
            is_watched, deadline = True, max(deadline, seen_since + current.ttl_seconds)
            _log.info("%s was not renewed; watching it for %.0f s", f"{objects.uri}/{path}", current.ttl_seconds)
        remaining = deadline - clock()
        if remaining <= 0:
            raise _held(current, f"{objects.uri}/{path}")
        sleep(min(remaining, MAX_POLL_SECONDS, current.ttl_seconds / POLLS_PER_TTL))


@contextmanager
def leave_held_on_failure(lease: Lease) -> Iterator[None]:
    """Abandon a lease that was taken over if the work under it fails: the next holder must fence off the old one."""
    try:
        yield
    except BaseException:
        if lease.taken_over:
            lease.leave_held()
        raise


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """The state of a lease file. ``is_free`` means that ``acquire`` would succeed without waiting. ``version`` is the
    file's version.

    ``holder`` is a human-readable description. ``holder_died`` is true if the lease is free because its holder died.
    ``token`` and ``indexes_lag`` are the last holder's; ``failures`` is how many holders failed or did not release the
    lease.
    """

    is_free: bool
    version: str
    holder: str
    holder_died: bool = False
    token: int = 0
    failures: int = 0
    indexes_lag: bool = False


def peek(objects: ObjectStore, path: str) -> LeaseStatus:
    """Read a lease without acquiring it; a missing file means that it is free. Raises CorruptFile, WorkspaceTooNew,
    StorageError.
    """
    try:
        current, version = _read(objects, path)
    except ObjectNotFound:
        return LeaseStatus(True, "", "")
    holder_died = current.state == "held" and current.owner.is_provably_dead()
    return LeaseStatus(
        current.state == "released" or holder_died,
        version,
        _held(current, path).what,
        holder_died,
        current.token,
        current.failures,
        current.indexes_lag,
    )


def _new_record(run_id: str, token: int, ttl_seconds: float, failures: int, indexes_lag: bool) -> _Record:
    now = datetime.now(UTC)
    return _Record(
        owner=_Owner(**asdict(ProcessIdentity.current()), run_id=run_id),
        nonce=uuid.uuid4().hex,
        token=token,
        state="held",
        acquired=now,
        renewed=now,
        ttl_seconds=ttl_seconds,
        failures=failures,
        indexes_lag=indexes_lag,
    )


def _read(objects: ObjectStore, path: str) -> tuple[_Record, str]:
    data, version = objects.get_versioned(path)
    where = f"{objects.uri}/{path}"
    try:
        record = from_json(_Record, data)
    except ValueError as error:
        raise CorruptFile(
            "The file is not a Driftline lease",
            where,
            "Delete it while no run is active; the next run continues from the index.",
        ) from error
    if record.format_version > FORMAT_VERSION:
        raise WorkspaceTooNew("A newer version of Driftline wrote the lease", where, f"Upgrade: {upgrade_command()}")
    return record, version


def _valid_until(current: _Record) -> datetime:
    return current.renewed + timedelta(seconds=current.ttl_seconds)


def _held(current: _Record, where: str) -> LeaseHeld:
    owner = current.owner
    until = _valid_until(current).isoformat(timespec="seconds")
    return LeaseHeld(
        f"Run {owner.run_id} holds the lease (host {owner.host}, process {owner.pid}), until {until} unless it renews",
        where,
        "Run the command again after it finishes or, if its host died, after that time.",
    )


def _lost(current: _Record, where: str) -> LeaseLost:
    owner = current.owner
    return LeaseLost(
        f"Run {owner.run_id} took over the lease (host {owner.host}, process {owner.pid})",
        where,
        "This run can no longer publish; start it again.",
    )

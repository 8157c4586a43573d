"""Leases with fencing tokens: one holder at a time, and a number by which late commits are refused.

A lease alone protects nothing, since a holder may be paused and wake up late: whoever commits under a lease checks
its token (DESIGN, "Leases").
"""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

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
from driftline.storage.leases.process_identity import ProcessIdentity
from driftline.storage.objects.store import ObjectStore

FORMAT_VERSION = 1
LEASE_TTL_SECONDS = 60.0
RENEWALS_PER_TTL = 3
POLLS_PER_TTL = 20
MAX_POLL_SECONDS = 1.0
WRITE_ATTEMPTS = 5

_log = logging.getLogger(__name__)


class _Owner(BaseModel):
    model_config = ConfigDict(frozen=True)

    host: str
    boot_id: str
    pid: int
    start_time: str
    run_id: str


class _Record(BaseModel):
    """The lease file. ``nonce`` tells two acquisitions apart whose other fields are equal."""

    model_config = ConfigDict(frozen=True)

    format_version: int = FORMAT_VERSION
    owner: _Owner
    nonce: str
    token: int
    state: Literal["held", "released"]
    acquired: datetime
    renewed: datetime
    ttl_seconds: float

    def to_bytes(self) -> bytes:
        return self.model_dump_json(indent=1).encode()

    def is_provably_dead(self) -> bool:
        owner = self.owner
        return ProcessIdentity(owner.host, owner.boot_id, owner.pid, owner.start_time).is_provably_dead()


class Lease:
    """A held lease, renewed by a thread until it is released or abandoned; a context manager that releases.

    ``token`` is higher than that of every earlier holder. ``taken_over`` tells that the previous holder did not
    release: its late commits must be fenced. A process forked from the holder's neither renews nor releases.
    """

    def __init__(self, objects: ObjectStore, path: str, record: _Record, version: str, *, taken_over: bool) -> None:
        self.token = record.token
        self.taken_over = taken_over
        self._objects = objects
        self._path = path
        self._record = record
        self._version = version
        self._pid = os.getpid()
        self._ended = threading.Event()
        # In a copy of this context, so that its requests are counted.
        renew = contextvars.copy_context().run
        self._thread = threading.Thread(
            target=renew, args=(self._renew_until_ended,), name=f"lease {path}", daemon=True
        )
        self._thread.start()

    def check(self) -> None:
        """Read the lease file. Raises LeaseLost when another holder has taken over or this one has ended."""
        if self._ended.is_set() or os.getpid() != self._pid:
            raise LeaseLost("This lease is not held by this process any more", self._where)
        try:
            found, _ = _read(self._objects, self._path)
        except ObjectNotFound:
            raise LeaseLost("The lease file is gone", self._where, "Start the run again.") from None
        if not self._is_ours(found):
            raise _lost(found, self._where)

    def release(self) -> None:
        """Stop renewing and let the next holder in at once; harmless when the lease is lost or released already.

        A store that fails here is logged, not raised: the lease then expires.
        """
        if not self._stop():
            return
        try:
            self._write("released")
        except LeaseLost:
            _log.warning("The lease was taken over before its release: %s", self._where)
        except DriftlineError as error:
            _log.warning("The lease was not released and will expire: %s", error)

    def abandon(self) -> None:
        """Stop renewing but leave the lease held, after an unknown outcome: the next holder sees ``taken_over``."""
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    @property
    def _where(self) -> str:
        return f"{self._objects.uri}/{self._path}"

    def _stop(self) -> bool:
        """End the renewals; False when they have ended before or belong to another process."""
        if self._ended.is_set() or os.getpid() != self._pid:
            return False
        self._ended.set()
        self._thread.join()
        return True

    def _renew_until_ended(self) -> None:
        while not self._ended.wait(self._record.ttl_seconds / RENEWALS_PER_TTL):
            try:
                self._write("held")
            except LeaseLost as error:
                _log.warning("%s", error)
                return
            except DriftlineError as error:  # the next turn may succeed; check() is what protects
                _log.warning("The lease was not renewed: %s", error)

    def _write(self, state: Literal["held", "released"]) -> None:
        record = self._record.model_copy(update={"state": state, "renewed": datetime.now(UTC)})
        for _ in range(WRITE_ATTEMPTS):
            try:
                self._version = self._objects.replace(self._path, record.to_bytes(), self._version)
                self._record = record
                return
            except PreconditionFailed:  # perhaps by an earlier write of ours whose acknowledgement was lost
                found, self._version = _read(self._objects, self._path)
                if not self._is_ours(found):
                    raise _lost(found, self._where) from None
        raise StorageError("The store refuses every renewal of a lease that nobody else has taken", self._where)

    def _is_ours(self, found: _Record) -> bool:
        return (found.token, found.nonce) == (self._record.token, self._record.nonce)


def acquire(
    objects: ObjectStore,
    path: str,
    run_id: str,
    *,
    ttl_seconds: float = LEASE_TTL_SECONDS,
    wait_seconds: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Lease:
    """Take the lease at ``path`` for this process, waiting up to ``wait_seconds`` for its holder.

    A lease is free when it was never taken, was released, when its holder is provably dead (same host and boot), or
    when its file has not changed for the holder's TTL as seen by ``clock``; so the lease of a dead holder on another
    host is taken over only by a caller that waits. Raises LeaseHeld, CorruptFile for a file that is no lease,
    WorkspaceTooNew for one of a newer format.
    """
    deadline = clock() + wait_seconds
    seen_version, seen_since = "", clock()
    conflicts = 0
    while True:
        before = clock()
        try:
            found, version = _read(objects, path)
        except ObjectNotFound:
            found, version = None, ""
        if version != seen_version:
            seen_version, seen_since = version, clock()
        expired = found is not None and before - seen_since >= found.ttl_seconds
        if found is None or found.state == "released" or expired or found.is_provably_dead():
            record = _new_record(run_id, found.token + 1 if found else 1, ttl_seconds)
            try:
                if found is None:
                    written = objects.create(path, record.to_bytes())
                else:
                    written = objects.replace(path, record.to_bytes(), version)
            except (AlreadyExists, PreconditionFailed):
                conflicts += 1
                if conflicts >= WRITE_ATTEMPTS and clock() >= deadline:
                    raise
                continue
            return Lease(objects, path, record, written, taken_over=found is not None and found.state == "held")
        remaining = deadline - clock()
        if remaining <= 0:
            raise _held(found, f"{objects.uri}/{path}")
        sleep(min(remaining, MAX_POLL_SECONDS, found.ttl_seconds / POLLS_PER_TTL))


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a lease file says: ``is_free`` if ``acquire`` would get it without waiting; ``version`` changes with it.

    ``is_abandoned`` if it is free because its holder has died.
    """

    is_free: bool
    version: str
    holder: str
    is_abandoned: bool = False


def look(objects: ObjectStore, path: str) -> Sighting:
    """Read a lease without taking it. Raises CorruptFile and WorkspaceTooNew; a missing file is free."""
    try:
        found, version = _read(objects, path)
    except ObjectNotFound:
        return Sighting(True, "", "")
    is_abandoned = found.state == "held" and found.is_provably_dead()
    return Sighting(found.state == "released" or is_abandoned, version, _held(found, path).what, is_abandoned)


def _new_record(run_id: str, token: int, ttl_seconds: float) -> _Record:
    process = ProcessIdentity.current()
    owner = _Owner(
        host=process.host, boot_id=process.boot_id, pid=process.pid, start_time=process.start_time, run_id=run_id
    )
    now = datetime.now(UTC)
    return _Record(
        owner=owner,
        nonce=uuid.uuid4().hex,
        token=token,
        state="held",
        acquired=now,
        renewed=now,
        ttl_seconds=ttl_seconds,
    )


def _read(objects: ObjectStore, path: str) -> tuple[_Record, str]:
    data, version = objects.get_versioned(path)
    where = f"{objects.uri}/{path}"
    try:
        record = _Record.model_validate_json(data)
    except ValidationError as error:
        raise CorruptFile(
            "This is not a lease of Driftline", where, "Look at the file; delete it only when no run is active."
        ) from error
    if record.format_version > FORMAT_VERSION:
        raise WorkspaceTooNew("The lease was written by a newer Driftline", where, "Update Driftline.")
    return record, version


def _held(found: _Record, where: str) -> LeaseHeld:
    until = (found.renewed + timedelta(seconds=found.ttl_seconds)).isoformat(timespec="seconds")
    return LeaseHeld(
        f"Run {found.owner.run_id} holds the lease (host {found.owner.host}, process {found.owner.pid}), "
        f"until {until} unless it renews",
        where,
        f"Run again when it has ended; if its host has died, wait {found.ttl_seconds:.0f} s for the lease to expire.",
    )


def _lost(found: _Record, where: str) -> LeaseLost:
    return LeaseLost(
        f"Run {found.owner.run_id} has taken the lease over (host {found.owner.host}, process {found.owner.pid})",
        where,
        "This run must not publish; start it again.",
    )

"""Make a run's Nth mutating operation fail, and simulate the death of the process."""

from __future__ import annotations

import enum
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count
from typing import Any, TypeVar

import lance
import pytest

from driftline.storage.errors import LeaseLost, StorageError
from driftline.storage.leases.liveness import ProcessIdentity
from driftline.storage.lines.line_table import LineTable
from driftline.storage.objects.bucket import Bucket
from driftline.storage.objects.local_disk import LocalDisk
from tests.support.effort import examples

_Result = TypeVar("_Result")

_FIRST_DEAD_PID = 1 << 23  # above every pid that Linux assigns
_dead_pids = count(_FIRST_DEAD_PID)


class Crash(BaseException):
    """The process died: no handler may catch this and continue, and nothing more is written."""


class Mode(enum.StrEnum):
    """How an operation fails. A crash before it equals a crash after the previous one."""

    CRASH_AFTER = "a crash after"
    LOST_ACKNOWLEDGEMENT = "a lost acknowledgement of"
    FAIL = "a failure of"


@dataclass
class Faults:
    """Records the mutating operations of a run in ``log``; operation number ``at`` fails in mode ``mode``."""

    mode: Mode = Mode.FAIL
    at: int | None = None
    dead: bool = False
    log: list[str] = field(default_factory=list)

    def perform(self, name: str, operation: Callable[[], _Result], error: type[Exception]) -> _Result:
        if threading.current_thread().name.startswith("lease "):  # renewals depend on time
            if self.dead:
                raise LeaseLost("A dead process renews nothing")
            return operation()
        if self.dead:
            raise Crash("a dead process does nothing")
        self.log.append(name)
        if len(self.log) - 1 != self.at:
            return operation()
        if self.mode is not Mode.FAIL:
            operation()
        if self.mode is Mode.CRASH_AFTER:
            self.dead = True
            raise Crash(f"{self.mode} {name}")
        raise error(f"{self.mode} {name}")


@contextmanager
def injected(faults: Faults) -> Iterator[Faults]:
    """Route every write of this process through ``faults``: objects, leases, fragments and table commits.

    Afterwards the process counts as dead, so the next run takes over its leases.
    """
    with pytest.MonkeyPatch.context() as patch:
        for backend in (LocalDisk, Bucket):
            for method in ("create", "replace", "delete"):
                wrap(patch, faults, backend, method, StorageError)
        wrap(patch, faults, LineTable, "_transact", OSError)
        wrap(patch, faults, lance, "write_dataset", OSError)
        wrap(patch, faults, lance.fragment, "write_fragments", OSError)
        for method in ("create_index_uncommitted", "commit_existing_index_segments", "drop_index", "create_branch"):
            wrap(patch, faults, lance.LanceDataset, method, OSError)
        wrap(patch, faults, import_module("lance.dataset").Branches, "delete", OSError)
        found = ProcessIdentity.current()
        doomed = ProcessIdentity(found.host, found.boot_id, next(_dead_pids), "0")
        patch.setattr(ProcessIdentity, "current", lambda: doomed)
        yield faults


_IDENTIFIER = re.compile(rf"{re.escape(tempfile.gettempdir())}/\S*/|[0-9A-Za-z]{{26}}|[0-9a-f]{{8,}}|\d+")


def steps(log: Sequence[str], mode: Mode) -> list[int]:
    """Return the numbers of operations in ``log`` to fail in ``mode``: one of each kind, or all under ``make proofs``.

    Operations are of the same kind if their names differ only in identifiers and numbers. The choice alternates between
    the first and the last operation of a kind, across kinds and modes.
    """
    of_kind: dict[str, list[int]] = {}
    for number, name in enumerate(log):
        of_kind.setdefault(_IDENTIFIER.sub("#", name), []).append(number)
    if examples(1) > 1:
        return [*range(len(log))]
    turn = [*Mode].index(mode)
    return sorted(found[-((kind + turn) % 2)] for kind, found in enumerate(of_kind.values()))


def wrap(patch: pytest.MonkeyPatch, faults: Faults, owner: Any, method: str, error: type[Exception]) -> None:
    """Route calls of a method of ``owner`` through ``faults``; a failure raises ``error``."""
    original = getattr(owner, method)

    def wrapped(*arguments: Any, **options: Any) -> Any:
        first = arguments[1] if len(arguments) > 1 and isinstance(arguments[1], str) else ""
        return faults.perform(f"{method} {first}".strip(), lambda: original(*arguments, **options), error)

    patch.setattr(owner, method, wrapped)

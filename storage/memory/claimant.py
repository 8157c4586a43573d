"""Who flushes: names of claims, from which this host can tell whether the process that made one has ended."""

from __future__ import annotations

import uuid

from driftline.storage.ids import content_hash
from driftline.storage.leases.process_identity import ProcessIdentity

_HOST_CHARACTERS = 10
_UNIQUE_CHARACTERS = 4


def new_claimant() -> str:
    """A unique name with the identity of this process, of at most 64 characters."""
    this = ProcessIdentity.current()
    unique = uuid.uuid4().hex[:_UNIQUE_CHARACTERS]
    return ":".join((_host(this), str(this.pid), this.start_time, unique, this.sign))


def has_ended(claimant: str) -> bool:
    """Whether the process of ``claimant`` was on this host, in this boot, and is provably dead."""
    this = ProcessIdentity.current()
    host, _, rest = claimant.partition(":")
    pid, _, rest = rest.partition(":")
    if host != _host(this) or not pid.isdecimal():
        return False
    start_time, _, rest = rest.partition(":")
    sign = rest.partition(":")[2]
    return ProcessIdentity(this.host, this.boot_id, int(pid), start_time, sign).is_provably_dead()


def _host(process: ProcessIdentity) -> str:
    return content_hash(f"{process.host}/{process.boot_id}".encode())[:_HOST_CHARACTERS]

"""By how much the clock of this machine differs from that of a store that refuses its signatures."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

CODE = "RequestTimeTooSkewed"
"""The code of S3 and of compatible stores."""
FIX = "Set the clock of this machine; it should follow a time server."
TIMEOUT_SECONDS = 3
_SERVER_TIME = re.compile(r"<ServerTime>([^<]+)</ServerTime>")


def describe(answer: str, endpoint: str, *, now: datetime | None = None) -> str:
    """What happened, with the difference if ``answer`` or, without credentials, ``endpoint`` ("" if none) tells it."""
    now = now or datetime.now(UTC)
    theirs = _told_in(answer) or _asked(endpoint)
    if theirs is None:
        return "The clock of this machine differs too much from that of the store"
    seconds = round((now - theirs).total_seconds())
    direction = "fast" if seconds > 0 else "slow"
    return f"The clock of this machine is {timedelta(seconds=abs(seconds))} h {direction}, by that of the store"


def _told_in(answer: str) -> datetime | None:
    if match := _SERVER_TIME.search(answer):
        with contextlib.suppress(ValueError):
            told = datetime.fromisoformat(match[1])
            return told if told.tzinfo else told.replace(tzinfo=UTC)
    return None


def _asked(endpoint: str) -> datetime | None:
    """The time in the head of any answer of the store."""
    url = urlsplit(endpoint)
    if not url.hostname:
        return None
    import email.utils  # these take longer to import than most commands have to spare
    import http.client

    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError, TypeError):
        connection = kind(url.hostname, url.port, timeout=TIMEOUT_SECONDS)
        with contextlib.closing(connection):
            connection.request("HEAD", "/")
            date = connection.getresponse().getheader("Date")
            return email.utils.parsedate_to_datetime(date) if date else None
    return None

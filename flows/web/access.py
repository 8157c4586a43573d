"""Authenticate requests by a workspace token or the user name from a trusted proxy; optional on loopback.

The resulting ``Access`` is available to all code that handles the request.
"""

from __future__ import annotations

import ipaddress
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from starlette.datastructures import Headers

from driftline.storage.entities import Boundary, Entity
from driftline.storage.errors import AccessDenied, DriftlineError, StorageError
from driftline.storage.workspace.tokens import SCOPES, Scope, TokenRecord, token_hash

_CURRENT: ContextVar[Access] = ContextVar("access")
COOKIE = "driftline_token"
REFRESH_SECONDS = 5.0
"""How long a revoked token may still be accepted."""
STALE_SECONDS = 60.0
"""How long known tokens are accepted while tokens cannot be read; after that, all requests are rejected."""
MAX_TOKEN_CHARACTERS = 200
_Record = TypeVar("_Record")
NOTHING = Boundary(())
Readable = Mapping[str, Sequence[tuple[Entity, datetime]]]
"""Maps each login ("" for everyone) to the repositories it may read, with the time of the host's report."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Access:
    """Access to everything inside the boundary ``within``, for the given ``scopes``.

    ``token_id`` identifies the token that was used, and ``user`` is the user reported by a proxy. At most one is set.
    """

    within: Boundary | None = None
    scopes: frozenset[Scope] = frozenset(SCOPES)
    token_id: str = ""
    user: str = ""


def grant(access: Access) -> None:
    """Grant ``access`` to the rest of this request, and to the threads that it starts."""
    _CURRENT.set(access)


def granted(scope: Scope) -> Access:
    """Return the current request's access. Raises AccessDenied if there is none or it does not include ``scope``."""
    access = _CURRENT.get(None)
    if access is None or scope not in access.scopes:
        fix = f"Create another: driftline token create --scope {scope}"
        raise AccessDenied(f"The token does not have the scope {scope!r}", "", fix)
    return access


def is_signed_in() -> bool:
    """Return whether the current request was authenticated by a token, as on the sign-in page."""
    access = _CURRENT.get(None)
    return access is not None and bool(access.token_id)


@dataclass(slots=True)
class CachedRecords(Generic[_Record]):
    """The records that ``read`` returns by key, read again by the first request after REFRESH_SECONDS."""

    read: Callable[[], Mapping[str, _Record]]
    what: str
    _known: Mapping[str, _Record] = field(default_factory=dict)
    _read_at: float = -STALE_SECONDS
    _tried_at: float = -STALE_SECONDS
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_old(self) -> bool:
        return time.monotonic() - self._tried_at > REFRESH_SECONDS

    @property
    def must_be_read(self) -> bool:
        """Whether a request has to wait for ``refresh``, which may be in progress for another request."""
        return self.is_old or self.is_stale

    @property
    def is_stale(self) -> bool:
        """Whether the records have been unreadable for so long that they must not be trusted."""
        return time.monotonic() - self._read_at > STALE_SECONDS

    def refresh(self) -> None:
        """Read the records if they are old; if that fails, log it and keep them."""
        with self._lock:
            if self.is_old:
                self._tried_at = time.monotonic()
                try:
                    self._known = self.read()
                    self._read_at = time.monotonic()
                except DriftlineError as error:
                    log.warning("Cannot read the workspace's %s: %s", self.what, error)


class KnownTokens(CachedRecords[TokenRecord]):
    """The tokens of a workspace."""

    __slots__ = ()

    def __init__(self, read: Callable[[], Iterable[TokenRecord]]) -> None:
        super().__init__(lambda: {record.hash: record for record in read()}, "tokens")

    def find(self, token: str) -> TokenRecord | None:
        """Return a token's record, or None if it is unknown or invalid. Raises StorageError for stale records."""
        if self.is_stale:
            raise StorageError("Cannot read the workspace's tokens", "", "Try again in a minute.")
        record = self._known.get(token_hash(token))
        return record if record is not None and record.is_valid(datetime.now(UTC)) else None


def _text_of(header: str) -> str:
    """Return the text of a header that was decoded as Latin-1: proxies send UTF-8."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header


@dataclass(frozen=True, slots=True)
class TrustedProxy:
    """A proxy at one of ``addresses`` that authenticates users, and sends their name in ``header``."""

    header: str
    addresses: Collection[ipaddress.IPv4Network | ipaddress.IPv6Network]

    def user_of(self, client: str, headers: Headers) -> str:
        """Return the user name sent by the proxy; "" unless it sent the request with exactly one name."""
        try:
            address = ipaddress.ip_address(client)
        except ValueError:
            return ""
        named = headers.getlist(self.header)
        is_trusted = len(named) == 1 and any(address in network for network in self.addresses)
        return _text_of(named[0]).strip() if is_trusted else ""


@dataclass(frozen=True, slots=True)
class FleetReaders:
    """A fleet whose host lists the readers of its repositories; ``pattern`` maps a login to the proxy's user name."""

    pattern: str
    max_age: timedelta

    def login_of(self, user: str) -> str:
        """Return the login of a user of the proxy, "" if it has none. Case is ignored.

        >>> FleetReaders("{login}@example.org", timedelta(1)).login_of("Ann@Example.org")
        'ann'
        """
        before, _, after = self.pattern.lower().partition("{login}")
        name = user.lower() if user.isascii() else ""
        if not (len(name) > len(before + after) and name.startswith(before) and name.endswith(after)):
            return ""
        return name[len(before) : len(name) - len(after)]


class HostReaders(CachedRecords[Readable]):
    """What the hosts of ``fleets``, by name, let their users read."""

    __slots__ = ("_fleets", "_now")

    def __init__(
        self,
        read: Callable[[], Mapping[str, Readable]],
        fleets: Mapping[str, FleetReaders],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__(read, "fleets")
        self._fleets, self._now = fleets, now

    def readable_by(self, user: str) -> Iterator[Entity]:
        """Yield the sources that a user of the proxy may read according to a host report that has not expired.

        Stale records grant nothing: tokens and other rules do not depend on the hosts.
        """
        if self.is_stale:
            return
        now = self._now()
        for name, fleet in self._fleets.items():
            readable, login = self._known.get(name, {}), fleet.login_of(user)
            for entity, at in (*readable.get("", ()), *(readable.get(login, ()) if login else ())):
                if abs(now - at) <= fleet.max_age:  # a clock that is far ahead gives no access for longer
                    yield entity


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The boundaries of users that a proxy names: for everyone, for each user, for each group, and by ``readers``.

    The proxy sends a user's groups in ``groups_header``, separated by commas.
    """

    everyone: Boundary = NOTHING
    users: Mapping[str, Boundary] = field(default_factory=dict)
    groups: Mapping[str, Boundary] = field(default_factory=dict)
    groups_header: str = ""
    readers: HostReaders | None = None

    def boundary_of(self, user: str, headers: Headers) -> Boundary:
        """Return the union of what ``user`` and the groups in ``headers`` may see; unknown names add nothing."""
        sent = headers.getlist(self.groups_header) if self.groups_header else []
        groups = [group.strip() for line in sent for group in _text_of(line).split(",")]
        found = [self.everyone, self.users.get(user, NOTHING), *(self.groups.get(each, NOTHING) for each in groups)]
        listed = self.readers.readable_by(user) if self.readers is not None else ()
        return Boundary.of(*(top for boundary in found for top in boundary.tops), *listed)

    def now(self) -> AccessRules:
        """Return these rules, which never change."""
        return self

    @property
    def records(self) -> tuple[CachedRecords[Any], ...]:
        """The records that the rules depend on."""
        return () if self.readers is None else (self.readers,)


class KnownRules(CachedRecords[AccessRules]):
    """The access rules, read again like tokens: a user removed from them must not keep access until a restart."""

    __slots__ = ()

    def __init__(self, read: Callable[[], AccessRules]) -> None:
        super().__init__(lambda: {"": read()}, "access rules")

    def now(self) -> AccessRules:
        """Return the rules; stale ones grant nothing."""
        return AccessRules() if self.is_stale else self._known[""]

    @property
    def records(self) -> tuple[CachedRecords[Any], ...]:
        """These rules and the records that they depended on when they were last read, even if they are stale."""
        return (self, *(self._known[""].records if self._known else ()))


@dataclass(frozen=True, slots=True)
class Authentication:
    """Determines a request's access, which never extends beyond ``within``.

    Without ``tokens`` and ``proxy``, everyone has access. Without ``rules``, users of the proxy see ``within``.
    """

    tokens: KnownTokens | None = None
    proxy: TrustedProxy | None = None
    within: Boundary | None = None
    rules: AccessRules | KnownRules | None = None

    @property
    def old(self) -> list[CachedRecords[Any]]:
        """The records to read again before the next request is authenticated."""
        records = self.rules.records if self.rules is not None else ()
        return [each for each in (self.tokens, *records) if each is not None and each.must_be_read]

    @property
    def is_open(self) -> bool:
        return self.tokens is None and self.proxy is None

    def access_of(self, client: str, headers: Headers) -> Access | None:
        """Return the access of a request from address ``client``, or None if it is denied.

        Raises StorageError if it depends on tokens that cannot be read.
        """
        if self.is_open:
            return Access(self.within)
        user = self.proxy.user_of(client, headers) if self.proxy is not None else ""
        boundary = self._boundary_of(user, headers) if user else NOTHING
        if boundary != NOTHING:
            return Access(boundary, user=user)
        token = bearer(headers) or cookie(headers)
        if not token:
            return Access(NOTHING, frozenset(), user=user) if user else None
        return self.access_with(token)

    def _boundary_of(self, user: str, headers: Headers) -> Boundary | None:
        if self.rules is None:
            return self.within
        return self._narrowed(self.rules.now().boundary_of(user, headers))

    def access_with(self, token: str) -> Access | None:
        """Return the access of ``token``, or None if it is unknown, expired or revoked. Raises StorageError."""
        if self.tokens is None or len(token) > MAX_TOKEN_CHARACTERS:
            return None
        record = self.tokens.find(token)
        if record is None:
            return None
        boundary = self.within if record.boundary is None else self._narrowed(Boundary.of(record.boundary))
        return None if boundary == NOTHING else Access(boundary, frozenset(record.scopes), record.id)

    def _narrowed(self, boundary: Boundary) -> Boundary:
        return boundary if self.within is None else self.within.narrowed(boundary)


def bearer(headers: Headers) -> str:
    """Return the token in the Authorization header, or ''."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def cookie(headers: Headers) -> str:
    """Return the token in the cookie set by the sign-in page, or ''."""
    # Not http.cookies: before Python 3.11.10, it takes quadratic time for quoted values.
    for line in headers.getlist("cookie"):
        for each in line.split(";"):
            name, _, value = each.partition("=")
            if name.strip() == COOKIE:
                return value.strip().removeprefix('"').removesuffix('"')
    return ""

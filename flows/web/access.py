"""What a request may see, known to everything that answers it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from driftline.storage.entities import Entity
from driftline.storage.errors import AccessDenied
from driftline.storage.workspace.tokens import SCOPES, Scope


@dataclass(frozen=True, slots=True)
class Access:
    """Everything at or below ``within``, of what ``scopes`` name; ``token_id`` tells who asks, if a token does."""

    within: Entity | None = None
    scopes: frozenset[Scope] = frozenset(SCOPES)
    token_id: str = ""


_CURRENT: ContextVar[Access] = ContextVar("access")


def grant(access: Access) -> None:
    """Let the rest of this request, and the threads that it starts, see what ``access`` allows."""
    _CURRENT.set(access)


def granted(scope: Scope) -> Access:
    """What the request that is being answered may see. Raises AccessDenied without ``scope``: nobody granted it."""
    access = _CURRENT.get(None)
    if access is None or scope not in access.scopes:
        raise AccessDenied(f"The token has no scope {scope!r}", "", "Ask for another: driftline token create --scope")
    return access

"""Store web server tokens and their permissions, as hashes (DESIGN, "Tokens").

A token has 256 random bits, so its hash needs neither a salt nor a slow function.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, get_args

from driftline.storage.entities import Entity
from driftline.storage.errors import UsageError
from driftline.storage.layout import TOKENS
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.records import FORMAT_VERSION, read_copy_record, read_record, update_record
from driftline.storage.workspace.workspace import Workspace

Scope = Literal["search", "memory", "metrics"]
"""A token's permissions: search and read lines, search memory, read server metrics."""
SCOPES: tuple[Scope, ...] = get_args(Scope)
PREFIX = "driftline_"
_SECRET_BYTES = 32
MAX_WORKSPACE_TOKENS = 10_000
MAX_NOTE_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token in ``_tokens.json``; ``within`` is an entity's directory, empty for the whole workspace.

    ``expires`` is None if the token never expires.
    """

    id: str
    hash: str
    within: str = ""
    scopes: tuple[Scope, ...]
    created: datetime
    expires: datetime | None = None
    note: str = ""

    @property
    def boundary(self) -> Entity | None:
        """The token's boundary, or None for the whole workspace."""
        return Entity.of_directory(self.within) if self.within else None

    def is_valid(self, now: datetime) -> bool:
        """Return whether the token has not expired."""
        return self.expires is None or now < self.expires


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """The content of ``_tokens.json``: the tokens that are not revoked, oldest first."""

    format_version: int = FORMAT_VERSION
    tokens: tuple[TokenRecord, ...] = ()


def read_tokens(objects: ObjectStore) -> tuple[TokenRecord, ...]:
    """Return a workspace's tokens, including expired ones. Raises CorruptFile, WorkspaceTooNew, StorageError."""
    found = read_record(objects, TOKENS, TokenFile)
    return found.tokens if found is not None else ()


def token_hash(token: str) -> str:
    """Return the hash that ``_tokens.json`` stores for a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def create_token(
    workspace: Workspace,
    *,
    within: Entity | None = None,
    scopes: Collection[Scope],
    expires: datetime | None = None,
    note: str = "",
) -> tuple[str, TokenRecord]:
    """Create a token, and return it and its record; it is shown only once. Raises UsageError, StorageError."""
    if not scopes:
        raise UsageError("A token needs a scope", "", f"Use {', '.join(SCOPES)}.")
    if expires is not None and expires <= datetime.now(UTC):
        raise UsageError("A token cannot expire in the past", expires.isoformat())
    if len(note) > MAX_NOTE_CHARACTERS or not (note.isprintable() or not note):
        raise UsageError("Not a valid token note", repr(note[:40]), f"Use at most {MAX_NOTE_CHARACTERS} characters.")
    token = PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    record = TokenRecord(
        id=secrets.token_hex(4),
        hash=token_hash(token),
        within=within.directory if within is not None else "",
        scopes=tuple(scope for scope in SCOPES if scope in scopes),
        created=datetime.now(UTC),
        expires=expires,
        note=note,
    )

    def add(known: tuple[TokenRecord, ...]) -> tuple[TokenRecord, ...]:
        now = datetime.now(UTC)
        kept = tuple(each for each in known if each.is_valid(now))
        if len(kept) >= MAX_WORKSPACE_TOKENS:
            what = f"The workspace has its maximum of {MAX_WORKSPACE_TOKENS:,} tokens"
            raise UsageError(what, workspace.objects.uri, "Revoke unused ones: driftline token revoke ID")
        return (*kept, record)

    _change(workspace, add)
    return token, record


def revoke_token(workspace: Workspace, identifier: str) -> TokenRecord:
    """Revoke the token with id ``identifier``. Raises UsageError if there is none; also StorageError."""
    revoked: list[TokenRecord] = []

    def remove(known: tuple[TokenRecord, ...]) -> tuple[TokenRecord, ...]:
        revoked[:] = [each for each in known if each.id == identifier]
        if not revoked:
            raise UsageError("The workspace has no such token", repr(identifier), "List them: driftline token list")
        return tuple(each for each in known if each.id != identifier)

    _change(workspace, remove)
    return revoked[0]


def _change(workspace: Workspace, change: Callable[[tuple[TokenRecord, ...]], tuple[TokenRecord, ...]]) -> None:
    """Replace the tokens with the result of ``change``; retry if another process changed them concurrently."""
    objects = workspace.objects
    if (copied := read_copy_record(objects)) is not None:
        raise UsageError("Cannot write to a copy", objects.uri, f"Use the original: {copied.origin}.")
    if not objects.is_local:
        objects.probe_conditional_writes()
    update_record(objects, TOKENS, TokenFile, lambda known: TokenFile(tokens=change(known.tokens)), TokenFile())

"""Tokens in a workspace on every store: created once and revoked permanently, even by several processes at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from driftline.storage.entities import Entity
from driftline.storage.errors import CorruptFile, UsageError
from driftline.storage.layout import TOKENS, ObjectKind, parse_name
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.tokens import create_token, read_tokens, revoke_token, token_hash
from driftline.storage.workspace.workspace import Workspace


@pytest.fixture
def workspace(every_store_uri: str) -> Workspace:
    return Workspace.prepare(ObjectStore.open(every_store_uri))


def test_a_token_is_kept_as_a_hash(workspace: Workspace) -> None:
    within = Entity.parse("org:a b/project:ü/source:x")
    token, record = create_token(workspace, within=within, scopes=["memory", "search"], note="for CI")
    (read,) = read_tokens(workspace.objects)
    assert read == record
    assert (read.boundary, read.scopes, read.hash) == (within, ("search", "memory"), token_hash(token))
    assert token.encode() not in workspace.objects.get(TOKENS)
    assert parse_name(TOKENS).kind is ObjectKind.PERMANENT


def test_a_revoked_token_is_gone(workspace: Workspace) -> None:
    kept, gone = (create_token(workspace, scopes=["search"])[1] for _ in range(2))
    assert revoke_token(workspace, gone.id) == gone
    assert read_tokens(workspace.objects) == (kept,)
    with pytest.raises(UsageError, match="no such token"):
        revoke_token(workspace, gone.id)


def test_concurrent_writers_keep_every_token(workspace: Workspace) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: create_token(workspace, scopes=["search"])[1], range(12)))
    assert {record.id for record in read_tokens(workspace.objects)} == {record.id for record in made}


def test_expired_tokens_are_dropped_by_the_next_one(workspace: Workspace) -> None:
    soon = datetime.now(UTC) + timedelta(milliseconds=50)
    _, short = create_token(workspace, scopes=["search"], expires=soon)
    assert short.is_valid(soon - timedelta(milliseconds=1))
    assert not short.is_valid(soon)
    while datetime.now(UTC) < soon:
        pass
    _, other = create_token(workspace, scopes=["search"])
    assert read_tokens(workspace.objects) == (other,)


def test_wrong_tokens_are_refused_before_anything_is_written(workspace: Workspace) -> None:
    past = datetime.now(UTC) - timedelta(days=1)
    with pytest.raises(UsageError, match="scope"):
        create_token(workspace, scopes=[])
    with pytest.raises(UsageError, match="past"):
        create_token(workspace, scopes=["search"], expires=past)
    with pytest.raises(UsageError, match="note"):
        create_token(workspace, scopes=["search"], note="a\nb")
    assert workspace.objects.head(TOKENS) is None


def test_nobody_is_admitted_while_the_file_of_tokens_is_damaged(workspace: Workspace) -> None:
    workspace.objects.create(TOKENS, b"{}")
    with pytest.raises(CorruptFile):
        read_tokens(workspace.objects)

"""Build and classify all file names of a workspace, and the sortable ids in them (DESIGN, "Workspace layout")."""

from __future__ import annotations

import enum
import hashlib
import os
import re
import time
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import NamedTuple

from driftline.storage.entities import Entity

CONFIG = "_workspace.json"
SOURCE = "_source.json"
BRANCH = "_branch.json"
BRANCHES = "_branches"
GITIGNORE = ".gitignore"
CATALOG = "_catalog.sqlite"
"""The catalog of a local workspace, unless another is configured."""
CATALOG_RECORD = "_catalog.json"
COPY_RECORD = "_copy.json"
TOKENS = "_tokens.json"
FLEET = "_fleet.json"
FLEET_LEASE = "_fleet_lease.json"
CLEANUP = "_cleanup.json"
REPORT = "report.html"
"""The page that ``driftline report`` writes into a local workspace."""
BASE = "_index.parquet"

_ULID = "[0-9A-HJKMNP-TV-Z]{26}"
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_ENTITY = "[a-z][a-z0-9_]*:[A-Za-z0-9._~-]+"
_LANCE_TEMPORARY = r"\.tmp[A-Za-z0-9]{6}"
"""Lance writes local files under such a name first, and manifests under their own name plus ``#1``."""

_CUT = r"[0-9a-hjkmnp-tv-z]{26}"
"""A cut's name: a lowercase ULID, because Lance's branch names allow no uppercase letters."""
_BRANCH_ID = r"[a-z0-9.-]{1,40}-[0-9a-f]{20}"

_CUT_AT = re.compile(rf"/(?:{BRANCHES}/[^/]+/|tree/cut-|_refs/branches/cut-)({_CUT})(?:[/.]|$)")
_RUN = re.compile(rf"({_ULID})\.json")
_DELTA = re.compile(rf"_index_delta_({_ULID})\.parquet")
_STAGED = re.compile(rf"_staged_(?P<run>{_ULID})_(?P<batch>\d{{6}})\.parquet")
_TABLE_NAME = re.compile(r"(?P<kind>line|memory|deep)_embeddings-(?P<fingerprint>[0-9a-f]+)\.lance")
_TENANT = re.compile(_ENTITY)
_BETWEEN_LEVELS = re.compile(r"~2F(?=[a-z][a-z0-9_]*:)")


# -- forming names -----------------------------------------------------------------------------


def delta_name(ulid: str) -> str:
    """Return the file name of a delta with this ``ulid``."""
    return f"_index_delta_{ulid}.parquet"


def is_delta(name: str) -> bool:
    """Return whether ``name`` is the file name of a delta."""
    return _DELTA.fullmatch(name) is not None


def staged_name(run_id: str, batch: int) -> str:
    """Return the file name of the staged delta of a commit."""
    return f"_staged_{run_id}_{batch:06}.parquet"


def parse_staged_name(name: str) -> tuple[str, int] | None:
    """Return the ``(run_id, batch)`` of a staged delta's file name, or None for any other name."""
    match = _STAGED.fullmatch(name)
    return (match["run"], int(match["batch"])) if match else None


def run_directory(tenant: Entity) -> str:
    """Return the directory of a tenant's run history."""
    return f"{tenant.directory}/_runs"


def run_id_of(name: str) -> str | None:
    """Return the run id in a run record's file name, or None for any other name."""
    match = _RUN.fullmatch(name)
    return match[1] if match else None


def table_path(tenant: Entity, kind: str, fingerprint: str) -> str:
    """Return the path of an embedding table; ``kind`` is ``line``, ``memory`` or ``deep``."""
    return f"{tables_directory(tenant)}/{kind}_embeddings-{fingerprint}.lance"


def branches_directory(entity: Entity) -> str:
    """Return the directory of a source's branches."""
    return f"{entity.directory}/{BRANCHES}"


def branch_directory(entity: Entity, name: str) -> str:
    """Return the directory of a source's branch. A hash of the name keeps similar names apart on every file system."""
    readable = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")[:40].rstrip("-.") or "branch"
    return f"{branches_directory(entity)}/{readable}-{hashlib.blake2b(name.encode(), digest_size=10).hexdigest()}"


def is_cut(name: str) -> bool:
    """Return whether ``name`` is a cut's name in its branch directory."""
    return re.fullmatch(_CUT, name) is not None


def lance_branch(cut: str) -> str:
    """Return Lance's name for the table branch that contains ``cut``."""
    return f"cut-{cut}"


def cut_of(lance_name: str) -> str | None:
    """Return the cut held by a table branch, or None if Driftline did not create the branch."""
    cut = lance_name.removeprefix("cut-")
    return cut if lance_name == lance_branch(cut) and is_cut(cut) else None


def branch_table_path(table: str, cut: str) -> str:
    """Return the folder where Lance keeps a branch's own files, not shared with the table at ``table``."""
    return f"{table}/tree/{lance_branch(cut)}"


def tables_directory(tenant: Entity) -> str:
    """Return the directory of a tenant's tables."""
    return f"{tenant.tenant.directory}/_tables"


def table_fingerprint(name: str, kind: str) -> str | None:
    """Return the fingerprint in a table's directory name, or None if it is not a table of ``kind``."""
    match = _TABLE_NAME.fullmatch(name)
    return match["fingerprint"] if match and match["kind"] == kind else None


def is_tenant(name: str) -> bool:
    """Return whether a top-level directory of this name is the root of a tenant."""
    return _TENANT.fullmatch(name) is not None


def lease_path(entity: Entity, purpose: str = "source") -> str:
    """Return the path of the lease ``{purpose}:{entity}``."""
    name = entity.directory.replace("/", "~2F")
    return f"{entity.tenant.directory}/_leases/{purpose}:{name}.json"


def cut_at(path: str) -> str | None:
    """Return the cut that a branch file at ``path`` belongs to, or None for a branch record."""
    match = _CUT_AT.search(path)
    return match[1] if match else None


def branch_of_lease(path: str) -> str:
    """Return the directory of the branch that the lease at ``path`` belongs to."""
    _, entity = leased_entity(path)
    return f"{branches_directory(entity)}/{path.rpartition('~2F')[2].removesuffix('.json')}"


def branch_lease_path(entity: Entity, name: str) -> str:
    """Return the path of a branch's lease."""
    identifier = branch_directory(entity, name).rpartition("/")[2]
    return lease_path(entity, "branch").replace(".json", f"~2F{BRANCHES}~2F{identifier}.json")


def leased_entity(path: str) -> tuple[str, Entity]:
    """Return ``(purpose, entity)`` for a lease file; for a branch, the entity is its source. Inverts ``lease_path``."""
    purpose, _, name = path.rpartition("/")[2].removesuffix(".json").partition(":")
    if purpose == "branch":
        name = name.rpartition(f"~2F{BRANCHES}~2F")[0]
    # Ids never contain an unescaped colon, so an escaped slash in an id cannot be mistaken for a level separator.
    return purpose, Entity.of_directory(_BETWEEN_LEVELS.sub("/", name))


# -- parsing paths -----------------------------------------------------------------------------


class ObjectKind(enum.StrEnum):
    """The kinds of objects defined by the layout."""

    PERMANENT = "permanent"
    BASE = "base"
    DELTA = "delta"
    STAGED = "staged delta"
    BLOB = "memory blob"
    RUN = "run record"
    TABLE = "file of a table"
    VERSION = "version of a table"
    TABLE_HINT = "hint of a table"
    BRANCH = "file of a branch"
    BRANCH_LEASE = "lease of a branch"
    TEMPORARY = "temporary file"
    FOREIGN = "foreign"


_KINDS = [
    (ObjectKind.TEMPORARY, rf"(?P<directory>(?:{_ENTITY}/)*(?:_leases/|_runs/)?)\.tmp-(?:[a-z]+-)?[0-9a-f]{{32}}"),
    (
        ObjectKind.PERMANENT,
        r"(?P<directory>)(?:_workspace\.json|_(?:catalog|cleanup|copy|tokens|fleet|fleet_lease)\.json|report\.html|\.gitignore|\.lock|_catalog\.sqlite(?:-wal|-shm|-journal)?)",
    ),
    (ObjectKind.PERMANENT, rf"(?P<directory>(?:{_ENTITY}/)+)_source\.json"),
    (
        ObjectKind.BRANCH_LEASE,
        rf"(?P<directory>{_ENTITY}/_leases/)branch:[A-Za-z0-9._~:-]+~2F{BRANCHES}~2F{_BRANCH_ID}\.json",
    ),
    (ObjectKind.PERMANENT, rf"(?P<directory>{_ENTITY}/_leases/)[a-z]+:[A-Za-z0-9._~:-]+\.json"),
    (
        ObjectKind.BRANCH,
        rf"(?P<directory>(?:{_ENTITY}/)+{BRANCHES}/{_BRANCH_ID}/)"
        rf"(?:_branch\.json|{_CUT}/(?:_index\.parquet|_index_delta_{_ULID}\.parquet|_staged_{_ULID}_\d{{6}}\.parquet)"
        rf"|(?:{_CUT}/)?\.tmp-(?:[a-z]+-)?[0-9a-f]{{32}})",
    ),
    (ObjectKind.RUN, rf"(?P<directory>{_ENTITY}/_runs/){_ULID}\.json"),
    (ObjectKind.BASE, rf"(?P<directory>(?:{_ENTITY}/)+)_index\.parquet"),
    (ObjectKind.DELTA, rf"(?P<directory>(?:{_ENTITY}/)+)_index_delta_{_ULID}\.parquet"),
    (ObjectKind.STAGED, rf"(?P<directory>(?:{_ENTITY}/)+)_staged_{_ULID}_\d{{6}}\.parquet"),
    (ObjectKind.BLOB, rf"(?P<directory>(?:{_ENTITY}/)+)[0-9a-f]{{16,64}}-[0-9a-f]{{16,64}}-{_ULID}\.json"),
]
_TABLE = rf"(?P<directory>{_ENTITY}/_tables/(?:line|memory|deep)_embeddings-[0-9a-f]+\.lance/)(?P<rest>.+)"
_TABLE_KINDS = [
    (
        ObjectKind.TABLE,
        rf"data/[0-9a-f]+\.lance(?:#\d+)?|_deletions/\d+-\d+-\d+\.(?:arrow|bin)(?:#\d+)?"
        rf"|_transactions/\d+-{_UUID}\.txn(?:#\d+)?|_indices/{_UUID}/(?:staging/)?[A-Za-z0-9_.-]+(?:#\d+)?"
        rf"|_versions/\d+\.manifest#\d+"
        rf"|(?:data|_versions|_deletions|_transactions|_indices/{_UUID}(?:/staging)?)/{_LANCE_TEMPORARY}",
    ),
    (ObjectKind.BRANCH, rf"(?:tree/cut-{_CUT}/.+|_refs/branches/cut-{_CUT}\.json(?:#\d+)?)"),
    (ObjectKind.VERSION, r"_versions/\d+\.manifest"),
    (ObjectKind.TABLE_HINT, r"_versions/latest_version_hint\.json"),
]
_compiled = cache(re.compile)
"""Compiled on first use, because a search classifies no names."""


class PathName(NamedTuple):
    """A classified path. ``directory`` is the directory it belongs to; for a table's file, the table."""

    kind: ObjectKind
    directory: str = ""
    rest: str = ""


def parse_name(path: str) -> PathName:
    """Classify ``path``, relative to the workspace; FOREIGN unless the layout defines such a name."""
    table = _compiled(_TABLE).fullmatch(path)
    if table is not None:
        for kind, pattern in _TABLE_KINDS:
            if _compiled(pattern).fullmatch(table["rest"]):
                return PathName(kind, table["directory"][:-1], table["rest"])
        return PathName(ObjectKind.FOREIGN)
    for kind, pattern in _KINDS:
        match = _compiled(pattern).fullmatch(path)
        if match is not None:
            return PathName(kind, match["directory"].rstrip("/"), path[match.end("directory") :])
    return PathName(ObjectKind.FOREIGN)


_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TIME_CHARACTERS, _RANDOM_BYTES = 10, 10


def _encode(number: int, characters: int) -> str:
    return "".join(_ALPHABET[(number >> (5 * i)) & 31] for i in reversed(range(characters)))


def new_ulid() -> str:
    """Return a new ULID: 48 bits of milliseconds and 80 random bits, in 26 characters of Crockford's base 32."""
    return _encode(time.time_ns() // 1_000_000, _TIME_CHARACTERS) + _encode(
        int.from_bytes(os.urandom(_RANDOM_BYTES)), 16
    )


def derived_ulid(ulid: str, number: int) -> str:
    """Return the ULID for part ``number`` of ``ulid``; deterministic, so a retry recognizes its own writes."""
    digest = hashlib.blake2b(f"{ulid}/{number}".encode(), digest_size=_RANDOM_BYTES).digest()
    return ulid[:_TIME_CHARACTERS] + _encode(int.from_bytes(digest), 16)


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object: ``path`` is relative to the workspace; ``modified`` is the store's own time, with a time zone.

    ``version`` (an etag or a generation) changes with the content. ``replace`` accepts only versions returned by
    ``get_versioned``, ``head``, ``create`` and ``replace``: listings by Google Cloud Storage and Azure format them
    differently.
    """

    path: str
    size_bytes: int
    modified: datetime
    version: str


ByteRange = tuple[int, int | None]
"""A byte range of an object: from the first number to the second (exclusive), or to the end."""

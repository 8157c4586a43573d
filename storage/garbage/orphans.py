"""Which objects of a workspace nothing refers to: a pure decision over a listing (DESIGN, "Cleanup").

Only names of the layout can be orphans. Whatever else lies in a workspace is foreign: reported, never deleted.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from driftline.storage.objects.backend import ObjectInfo

RUN_RETENTION = timedelta(days=90)

_ULID = "[0-9A-HJKMNP-TV-Z]{26}"
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_ENTITY = "[a-z][a-z0-9_]*:[A-Za-z0-9._~-]+"
_LANCE_TEMPORARY = r"\.tmp[A-Za-z0-9]{6}"
"""Lance writes local files under such a name first, and manifests beside their own with ``#1``."""


class Kind(enum.StrEnum):
    """What a name of the layout stands for."""

    PERMANENT = "permanent"
    BASE = "base"
    DELTA = "delta"
    STAGED = "staged delta"
    BLOB = "memory blob"
    RUN = "run history"
    TABLE = "file of a table"
    VERSION = "version of a table"
    TABLE_HINT = "hint of a table"
    TEMPORARY = "temporary file"
    FOREIGN = "foreign"


class Reason(enum.StrEnum):
    """Why an object is an orphan."""

    FOLDED = "folded into the base"
    DEAD_RUN = "staged by a dead run and never committed"
    UNCOMMITTED = "belongs to no version of its table"
    SUPERSEDED = "table of a superseded embedding"
    EXPIRED = "run history beyond its retention"
    TEMPORARY = "left by a write that was killed"
    UNOWNED = "memory blob that no entry refers to"


_KINDS = [
    (kind, re.compile(pattern))
    for kind, pattern in [
        (Kind.TEMPORARY, rf"(?P<place>(?:{_ENTITY}/)*(?:_leases/|_runs/)?)\.tmp-(?:[a-z]+-)?[0-9a-f]{{32}}"),
        (Kind.PERMANENT, r"(?P<place>)(?:_workspace\.json|\.gitignore|\.lock|_catalog\.sqlite(?:-wal|-shm|-journal)?)"),
        (Kind.PERMANENT, rf"(?P<place>(?:{_ENTITY}/)+)_source\.json"),
        (Kind.PERMANENT, rf"(?P<place>{_ENTITY}/_leases/)[a-z]+:[A-Za-z0-9._~:-]+\.json"),
        (Kind.RUN, rf"(?P<place>{_ENTITY}/_runs/){_ULID}\.json"),
        (Kind.BASE, rf"(?P<place>(?:{_ENTITY}/)+)_index\.parquet"),
        (Kind.DELTA, rf"(?P<place>(?:{_ENTITY}/)+)_index_delta_{_ULID}\.parquet"),
        (Kind.STAGED, rf"(?P<place>(?:{_ENTITY}/)+)_staged_{_ULID}_\d{{6}}\.parquet"),
        (Kind.BLOB, rf"(?P<place>(?:{_ENTITY}/)+)[0-9a-f]{{16,64}}-[0-9a-f]{{16,64}}-{_ULID}\.json"),
    ]
]
_TABLE = re.compile(rf"(?P<place>{_ENTITY}/_tables/(?:line|memory)_embeddings-[0-9a-f]+\.lance/)(?P<rest>.+)")
_TABLE_KINDS = [
    (
        Kind.TABLE,
        re.compile(
            rf"data/[0-9a-f]+\.lance(?:#\d+)?|_deletions/\d+-\d+-\d+\.(?:arrow|bin)(?:#\d+)?"
            rf"|_transactions/\d+-{_UUID}\.txn(?:#\d+)?|_indices/{_UUID}/[A-Za-z0-9_.-]+(?:#\d+)?"
            rf"|_versions/\d+\.manifest#\d+"
            rf"|(?:data|_versions|_deletions|_transactions|_indices/{_UUID})/{_LANCE_TEMPORARY}"
        ),
    ),
    (Kind.VERSION, re.compile(r"_versions/\d+\.manifest")),
    (Kind.TABLE_HINT, re.compile(r"_versions/latest_version_hint\.json")),
]


class Name(NamedTuple):
    """A path, taken apart: ``place`` is the directory that it belongs to, for files of a table that of the table."""

    kind: Kind
    place: str = ""
    rest: str = ""


def parse_name(path: str) -> Name:
    """What ``path``, relative to the workspace, is; FOREIGN unless the layout has such a name at such a place."""
    table = _TABLE.fullmatch(path)
    if table is not None:
        for kind, pattern in _TABLE_KINDS:
            if pattern.fullmatch(table["rest"]):
                return Name(kind, table["place"][:-1], table["rest"])
        return Name(Kind.FOREIGN)
    for kind, pattern in _KINDS:
        match = pattern.fullmatch(path)
        if match is not None:
            return Name(kind, match["place"].rstrip("/"), path[match.end("place") :])
    return Name(Kind.FOREIGN)


@dataclass(frozen=True, slots=True)
class References:
    """What a workspace refers to. Whatever is not judged here is not an orphan.

    ``folded`` are the deltas that their base has folded, ``dead`` the staged deltas that can never be committed, both
    as paths. ``tracked`` gives, for each table that may be judged, the paths within it that any of its versions names.
    ``superseded`` gives the tables whose embedding serves nobody any more, and since when. ``blobs`` are the paths
    that memory entries refer to, None where no catalog says; ``retired`` tells since when a blob is not one of them.
    """

    folded: frozenset[str] = frozenset()
    dead: frozenset[str] = frozenset()
    tracked: Mapping[str, frozenset[str]] = field(default_factory=dict)
    superseded: Mapping[str, datetime] = field(default_factory=dict)
    blobs: frozenset[str] | None = None
    retired: Mapping[str, datetime] = field(default_factory=dict)


class Orphan(NamedTuple):
    """An object that may go."""

    path: str
    size_bytes: int
    age_seconds: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class Verdict:
    """``orphans`` in the order in which they may be deleted, and the paths of ``foreign`` objects, sorted."""

    orphans: tuple[Orphan, ...]
    foreign: tuple[str, ...]


def find_orphans(
    named: Sequence[tuple[ObjectInfo, Name]],
    references: References,
    *,
    now: datetime,
    max_age: timedelta,
    run_retention: timedelta = RUN_RETENTION,
) -> Verdict:
    """The objects of a listing, with their parsed names, that nothing refers to and that are at least ``max_age`` old.

    ``now`` is the time of the store that gave the listing. Run records live for ``run_retention``, a tenant's newest
    for ever. A superseded table goes as a whole, ``max_age`` after its last file and after its successor took over.
    """
    newest_run: dict[str, str] = {}
    newest_file: dict[str, datetime] = {}
    for info, name in named:
        if name.kind is Kind.RUN:
            newest_run[name.place] = max(newest_run.get(name.place, ""), info.path)
        elif name.place in references.superseded:
            newest_file[name.place] = max(newest_file.get(name.place, info.modified), info.modified)
    doomed = {
        table
        for table, newest in newest_file.items()
        if min(now - newest, now - references.superseded[table]) >= max_age
    }

    def reason_of(info: ObjectInfo, name: Name) -> Reason | None:
        age = now - info.modified
        if name.place in doomed:
            return Reason.SUPERSEDED
        if name.kind is Kind.RUN:
            return Reason.EXPIRED if age >= run_retention and info.path != newest_run[name.place] else None
        if age < max_age:
            return None
        match name.kind:
            case Kind.TEMPORARY:
                return Reason.TEMPORARY
            case Kind.DELTA if info.path in references.folded:
                return Reason.FOLDED
            case Kind.STAGED if info.path in references.dead:
                return Reason.DEAD_RUN
            case Kind.TABLE if name.place in references.tracked and name.rest not in references.tracked[name.place]:
                return Reason.UNCOMMITTED
            case Kind.BLOB if references.blobs is not None and info.path not in references.blobs:
                since = references.retired.get(info.path, info.modified)
                retired_for = max(now - since, timedelta(0))  # two clocks: that of the store and that of a writer
                return Reason.UNOWNED if retired_for >= max_age else None
        return None

    orphans = []
    for info, name in named:
        reason = reason_of(info, name)
        if reason is not None:
            age = (now - info.modified).total_seconds()
            orphans.append((_turn(name, reason), Orphan(info.path, info.size_bytes, age, reason)))
    orphans.sort(key=lambda pair: (pair[0], pair[1].path))
    foreign = sorted(info.path for info, name in named if name.kind is Kind.FOREIGN)
    return Verdict(tuple(orphan for _, orphan in orphans), tuple(foreign))


def _turn(name: Name, reason: Reason) -> int:
    """Of a superseded table the hint goes first, then the versions: it never names a file that has gone."""
    if reason is not Reason.SUPERSEDED:
        return 3
    return {Kind.TABLE_HINT: 0, Kind.VERSION: 1}.get(name.kind, 2)

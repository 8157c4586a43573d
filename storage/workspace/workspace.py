"""A workspace: the URI that holds everything Driftline keeps, its configuration and its sources."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from driftline.storage.deltas.manifest import Manifest
from driftline.storage.entities import INDEX_LEVELS, Entity, decode_id
from driftline.storage.errors import (
    AlreadyExists,
    CorruptFile,
    FingerprintMismatch,
    ObjectNotFound,
    PreconditionFailed,
    WorkspaceNotFound,
    WorkspaceTooNew,
)
from driftline.storage.lines.table import LineTable
from driftline.storage.model import WorkspaceStats
from driftline.storage.objects.store import ObjectStore

FORMAT_VERSION = 1
CONFIG = "_workspace.json"
SOURCE = "_source.json"
GITIGNORE = ".gitignore"

_LINE_TABLE = re.compile(r"line_embeddings-([0-9a-f]+)\.lance")
_TENANT = re.compile(r"[a-z][a-z0-9_]*:[A-Za-z0-9._~-]+")
_BETWEEN_LEVELS = re.compile(r"~2F(?=[a-z][a-z0-9_]*:)")

_Record = TypeVar("_Record", bound=BaseModel)


class WorkspaceConfig(BaseModel):
    """``_workspace.json``. ``fingerprint`` names the table that serves; None until a first run chose a model."""

    model_config = ConfigDict(frozen=True)

    format_version: int = FORMAT_VERSION
    workspace_id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    hierarchy: tuple[str, ...] = INDEX_LEVELS
    created: datetime = Field(default_factory=lambda: datetime.now(UTC))
    model: str | None = None
    fingerprint: str | None = None
    dim: int | None = None


class IndexedCommit(BaseModel):
    """The commit that a source was in step with when the lease with ``token`` ended, its work tree being clean.

    ``scanned_with`` stands for all else that decides which files are indexed, and how.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    committed: datetime
    token: int
    scanned_with: str


class SourceRecord(BaseModel):
    """``_source.json``: what a source scans. A git work tree is known by ``origin`` and ``subpath``, not by place.

    ``commit`` is set by runs that look at changed paths only, and void as soon as the lease had another holder.
    """

    model_config = ConfigDict(frozen=True)

    format_version: int = FORMAT_VERSION
    entity: str
    uri: str
    origin: str | None = None
    subpath: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    commit: IndexedCommit | None = None

    def same_place(self, other: SourceRecord) -> bool:
        """Whether both scan the same files: the same URI, or the same path of the same git origin."""
        if self.origin and other.origin:
            return (self.origin, self.subpath) == (other.origin, other.subpath)
        return self.uri == other.uri


@dataclass(frozen=True, slots=True)
class Workspace:
    """An open workspace. Picklable; opening and reading it need read access only."""

    objects: ObjectStore
    config: WorkspaceConfig

    @classmethod
    def open(cls, uri: str, storage_options: Mapping[str, str] | None = None) -> Workspace:
        """Open an existing workspace. Raises WorkspaceNotFound, WorkspaceTooNew, CorruptFile, AccessDenied."""
        return cls(ObjectStore.open(uri, storage_options), WorkspaceConfig()).reread()

    def reread(self) -> Workspace:
        """The workspace as it is now. Raises as ``open`` does."""
        config = read_record(self.objects, CONFIG, WorkspaceConfig)
        if config is None:
            raise WorkspaceNotFound("There is no workspace", self.objects.uri, "Index a source into it first.")
        return replace(self, config=config)

    @classmethod
    def open_for_writing(cls, uri: str, storage_options: Mapping[str, str] | None = None) -> Workspace:
        """Open a workspace, or create it. Raises UnsafeStore for a store that ignores conditional writes."""
        return cls.prepare(ObjectStore.open(uri, storage_options))

    @classmethod
    def prepare(cls, objects: ObjectStore) -> Workspace:
        """As ``open_for_writing``, where ``objects`` are."""
        config = read_record(objects, CONFIG, WorkspaceConfig)
        if not objects.is_local:
            objects.probe_conditional_writes()
        if config is not None:
            return cls(objects, config)
        fresh = WorkspaceConfig()
        try:
            if objects.is_local:
                objects.create(GITIGNORE, b"*\n")  # the index of a work tree is not part of it
        except AlreadyExists:
            pass
        try:
            objects.create(CONFIG, fresh.model_dump_json(indent=1).encode())
        except AlreadyExists:
            return cls(objects, fresh).reread()
        return cls(objects, fresh)

    # -- the embedding that serves -----------------------------------------------------------

    def bind_model(self, model: str, fingerprint: str, dim: int, *, instead_of: str | None = None) -> Workspace:
        """Make ``fingerprint`` the current one, if the current one is ``instead_of``; the loser takes the winner's.

        Raises FingerprintMismatch when another one is current already.
        """
        while True:
            data, version = self.objects.get_versioned(CONFIG)
            current = parse_record(self.objects, CONFIG, data, WorkspaceConfig)
            if current.fingerprint == fingerprint:
                return replace(self, config=current)
            if current.fingerprint != instead_of:
                raise fingerprint_mismatch(self.objects.uri, current, model)
            bound = current.model_copy(update={"model": model, "fingerprint": fingerprint, "dim": dim})
            try:
                self.objects.replace(CONFIG, bound.model_dump_json(indent=1).encode(), version)
            except PreconditionFailed:
                continue
            return replace(self, config=bound)

    def lines(self, tenant: Entity, fingerprint: str | None = None) -> LineTable:
        """The tenant's table of lines for ``fingerprint``, by default the one that serves; it may not exist yet.

        Raises WorkspaceNotFound before a first run has chosen a model.
        """
        wanted = fingerprint or self.config.fingerprint
        if wanted is None:
            raise WorkspaceNotFound("Nothing has been indexed here yet", self.objects.uri, "Index a source first.")
        return LineTable(self.objects, tenant.tenant, wanted)

    def line_tables(self, tenant: Entity) -> list[LineTable]:
        """Every table of lines that the tenant has: the one that serves, and those being built or left over."""
        names = self.objects.list_dirs(f"{tenant.tenant.directory}/_tables")
        found = [match[1] for match in map(_LINE_TABLE.fullmatch, names) if match]
        return [LineTable(self.objects, tenant.tenant, fingerprint) for fingerprint in found]

    def stats(self) -> WorkspaceStats:
        """The figures of the workspace."""
        from driftline.storage.workspace.stats import collect

        return collect(self)

    # -- sources -----------------------------------------------------------------------------

    def manifest(self, entity: Entity) -> Manifest:
        """The manifest of a source."""
        return Manifest(self.objects, entity)

    def source(self, entity: Entity) -> SourceRecord | None:
        """What is known of a source, or None."""
        return read_record(self.objects, f"{entity.directory}/{SOURCE}", SourceRecord)

    def bind_source(self, entity: Entity, record: SourceRecord) -> None:
        """Record what ``entity`` scans, in place of what was recorded. The caller holds the source's lease."""
        path = f"{entity.directory}/{SOURCE}"
        data = record.model_dump_json(indent=1).encode()
        try:
            before, version = self.objects.get_versioned(path)
        except ObjectNotFound:
            self.objects.create(path, data)
            return
        if before != data:
            self.objects.replace(path, data, version)

    def unbind_source(self, entity: Entity) -> None:
        """Forget a source. The caller holds its lease and has removed its documents."""
        self.objects.delete([f"{entity.directory}/{SOURCE}"])

    def tenants(self) -> list[Entity]:
        """The tenants, sorted, of whatever first level: memory may have other levels than sources."""
        return [Entity.of_directory(name) for name in self.objects.list_dirs("") if _TENANT.fullmatch(name)]

    def sources(self, below: Entity | None = None) -> Iterator[tuple[Entity, SourceRecord]]:
        """The sources at or below an entity, by default all, sorted."""
        for entity in self.entities(below):
            record = self.source(entity)
            if record is not None:
                yield entity, record

    def entities(self, below: Entity | None = None) -> list[Entity]:
        """Whatever has a directory where sources have theirs, bound to a place or not, sorted."""
        start = below or Entity(())
        levels = self.config.hierarchy[len(start.parts) :]
        found = [start]
        for level in levels:
            found = [
                Entity((*parent.parts, (level, name)))
                for parent in found
                for name in self._children(parent.directory, level)
            ]
        return found

    def _children(self, directory: str, level: str) -> list[str]:
        names = self.objects.list_dirs(directory)
        return [decode_id(name.partition(":")[2]) for name in names if name.startswith(f"{level}:")]


def lease_path(entity: Entity, purpose: str = "source") -> str:
    """Where the lease ``{purpose}:{entity}`` of a tenant lies."""
    name = entity.directory.replace("/", "~2F")
    return f"{entity.tenant.directory}/_leases/{purpose}:{name}.json"


def leased_entity(path: str) -> tuple[str, Entity]:
    """``(purpose, entity)`` of a lease file, the inverse of ``lease_path``."""
    purpose, _, name = path.rpartition("/")[2].removesuffix(".json").partition(":")
    # An id never holds a bare colon, so that an escaped slash within it is not taken for one between two levels.
    return purpose, Entity.of_directory(_BETWEEN_LEVELS.sub("/", name))


def fingerprint_mismatch(where: str, current: WorkspaceConfig, model: str) -> FingerprintMismatch:
    """The refusal to mix vectors of two models."""
    return FingerprintMismatch(
        f"This workspace was embedded with {current.model} (fingerprint {current.fingerprint}), not with {model}",
        where,
        "Use the same model, or embed everything anew with: driftline index --reembed",
    )


def read_record(objects: ObjectStore, path: str, kind: type[_Record]) -> _Record | None:
    """The JSON record at ``path``, or None. Raises CorruptFile, WorkspaceTooNew."""
    try:
        data = objects.get(path)
    except ObjectNotFound:
        return None
    return parse_record(objects, path, data, kind)


def parse_record(objects: ObjectStore, path: str, data: bytes, kind: type[_Record]) -> _Record:
    """``data`` as a record. Raises CorruptFile, WorkspaceTooNew."""
    where = f"{objects.uri}/{path}"
    try:
        version = int(_Versioned.model_validate_json(data).format_version)
        if version > FORMAT_VERSION:
            raise WorkspaceTooNew(
                f"This was written by a newer Driftline (format {version}, ours is {FORMAT_VERSION})",
                where,
                "Upgrade: pip install -U driftline",
            )
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise CorruptFile(
            f"This is not a file of Driftline's ({kind.__name__} does not fit)",
            where,
            "Restore it, or use another place.",
        ) from error


class _Versioned(BaseModel):
    format_version: int

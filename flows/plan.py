"""From a request to a plan: everything that can be wrong with the input is found here, before anything is written."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driftline.flows.settings import DEFAULT_MAX_FILE_BYTES
from driftline.storage.entities import Entity
from driftline.storage.errors import SourceConflict, UsageError, WorkspaceNotFound
from driftline.storage.indexes import Scope
from driftline.storage.leases import look
from driftline.storage.objects import ObjectStore
from driftline.storage.sources import Source, open_source
from driftline.storage.workspace import SourceRecord, Workspace, WorkspaceConfig, fingerprint_mismatch, lease_path
from driftline.tasks.context import ModelRef
from driftline.tasks.git import git_origin
from driftline.tasks.ignore import Rules
from driftline.tasks.models import dimension, fingerprint, resolve_model

DEFAULT_MAX_DELETE_FRACTION = 0.5


@dataclass(frozen=True, slots=True)
class IndexRequest:
    """What a person or a flow asks of one run; ``storage_options`` serve workspace and sources alike."""

    sources: tuple[str, ...]
    workspace: str
    entity: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    model: str | None = None
    executor: str = "inline"
    workers: int | None = None
    full: bool = False
    dry_run: bool = False
    max_delete_fraction: float = DEFAULT_MAX_DELETE_FRACTION
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES
    rebind: bool = False
    reembed: bool = False
    wait_seconds: float = 0.0
    indexes: Scope = "all"
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """One source: where it is, what it is called, and what is recorded of it."""

    source: Source
    entity: Entity
    record: SourceRecord

    @property
    def rules(self) -> Rules:
        return Rules(include=self.record.include, exclude=self.record.exclude)


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """A run that can begin. ``replaces`` is the fingerprint that a ``--reembed`` run supersedes."""

    request: IndexRequest
    workspace: Workspace
    model: ModelRef
    sources: tuple[SourcePlan, ...]
    replaces: str | None


def make_plan(request: IndexRequest) -> IndexPlan:
    """Check ``request`` against sources, model and workspace; writes nothing. Raises UsageError and its kin."""
    if not request.sources:
        raise UsageError("No source was given", fix="Name at least one folder or bucket.")
    if "" in request.sources:
        raise UsageError("A source is empty", fix="Name a folder or a bucket; a dot is the current folder.")
    if request.entity and len(request.sources) > 1:
        raise UsageError("--entity names one source, but several were given", fix="Run once for each.")
    if not 0 <= request.max_delete_fraction <= 1:
        raise UsageError("max_delete_fraction lies between 0 and 1", str(request.max_delete_fraction))
    Rules(include=request.include, exclude=request.exclude).check()
    workspace = _look_at(request)
    model = _model_for(request.model, workspace.config)
    current = workspace.config.fingerprint
    replaces = None
    if current is not None and current != model.fingerprint:
        if not request.reembed:
            raise fingerprint_mismatch(workspace.objects.uri, workspace.config, model.name)
        replaces = current
    plans: list[SourcePlan] = []
    for uri in request.sources:
        plan = _plan_source(uri, request, workspace, {p.entity for p in plans})
        if any(plan.source.uri == other.source.uri for other in plans):
            raise UsageError("A source was given twice", plan.source.uri)
        plans.append(plan)
    return IndexPlan(request, workspace, model, tuple(plans), replaces)


def _look_at(request: IndexRequest) -> Workspace:
    """The workspace as it is, or as it would be created."""
    try:
        return Workspace.open(request.workspace, request.storage_options)
    except WorkspaceNotFound:
        return Workspace(ObjectStore.open(request.workspace, request.storage_options), WorkspaceConfig())


def _model_for(name: str | None, config: WorkspaceConfig) -> ModelRef:
    files = resolve_model(config.model if name is None else name)
    return ModelRef(files.name, fingerprint(files), dimension(files))


def _plan_source(uri: str, request: IndexRequest, workspace: Workspace, taken: set[Entity]) -> SourcePlan:
    source = open_source(uri, request.storage_options, allow_empty=True)
    origin = git_origin(source.uri) if source.is_local else None
    record = SourceRecord(
        entity="",
        uri=source.uri,
        origin=origin.url if origin else None,
        subpath=origin.subpath if origin else "",
        include=request.include,
        exclude=request.exclude,
    )
    if request.entity:
        entity = Entity.parse(request.entity, workspace.config.hierarchy)
        if entity.type != workspace.config.hierarchy[-1]:
            raise UsageError(f"Documents belong to a {workspace.config.hierarchy[-1]}", request.entity, "Name one.")
        known = workspace.source(entity)
        if known is not None and not known.same_place(record) and not request.rebind:
            raise SourceConflict(
                f"{entity} is bound to another place",
                known.uri,
                "Choose another --entity, or move it with --rebind.",
            )
    else:
        entity, known = _default_entity(source.uri, record, workspace, taken)
    if known is not None:  # a damaged file is told before anything is written
        look(workspace.objects, lease_path(entity))
        workspace.documents(entity).check()
    if known is not None and not request.include and not request.exclude:
        record = record.model_copy(update={"include": known.include, "exclude": known.exclude})
    return SourcePlan(source, entity, record.model_copy(update={"entity": str(entity)}))


def _default_entity(
    uri: str, record: SourceRecord, workspace: Workspace, taken: set[Entity]
) -> tuple[Entity, SourceRecord | None]:
    """The entity named after the last part of ``uri``, with a hash suffix where that name belongs to another place."""
    level = workspace.config.hierarchy[-1]
    name = posixpath.basename(uri.rstrip("/")) or "root"
    suffix = hashlib.blake2b(uri.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    for candidate in (name, f"{name}-{suffix}"):
        entity = Entity.parse(f"{level}:{candidate.replace('/', '_')}", workspace.config.hierarchy)
        known = workspace.source(entity)
        if entity not in taken and (known is None or known.same_place(record)):
            return entity, known
    raise SourceConflict("No default entity is free for this source", uri, "Name one with --entity.")

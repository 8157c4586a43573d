"""From a request to a plan: everything that can be wrong with the input is found here, before anything is written."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from driftline.flows.config.defaults import DEFAULT_EXECUTOR, DEFAULT_MAX_DELETE_FRACTION, DEFAULT_MAX_FILE_BYTES
from driftline.flows.config.toml_file import ConfiguredSource
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError, SourceConflict, UsageError, WorkspaceNotFound
from driftline.storage.layout import lease_path
from driftline.storage.leases.lease import look
from driftline.storage.lines.indexes import IndexScope
from driftline.storage.objects.store import ObjectStore
from driftline.storage.sources.source import Source, open_source
from driftline.storage.workspace.records import SourceRecord, WorkspaceConfig
from driftline.storage.workspace.workspace import Workspace, fingerprint_mismatch
from driftline.tasks.embedding.context import ModelRef
from driftline.tasks.embedding.models import dimension, fingerprint, resolve_model
from driftline.tasks.git.work_tree import git_origin
from driftline.tasks.scanning.ignore import Rules


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """One source with an entity and filters of its own, which replace those that are recorded of it."""

    uri: str
    entity: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


def requests_of(sources: Iterable[ConfiguredSource]) -> tuple[SourceRequest, ...]:
    """What to index of a configuration file."""
    return tuple(SourceRequest(source.uri, str(source.entity), source.include, source.exclude) for source in sources)


@dataclass(frozen=True, slots=True)
class IndexRequest:
    """What a person or a flow asks of one run; ``storage_options`` serve workspace and sources alike.

    ``entity``, ``include`` and ``exclude`` are of sources that are mere URIs. With ``keep_going`` a source that fails
    is reported instead of raised. With ``by_commit`` git says which paths of a work tree to look at, where it can.
    """

    sources: tuple[str | SourceRequest, ...]
    workspace: str
    entity: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    model: str | None = None
    executor: str = DEFAULT_EXECUTOR
    workers: int | None = None
    full: bool = False
    dry_run: bool = False
    max_delete_fraction: float = DEFAULT_MAX_DELETE_FRACTION
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES
    rebind: bool = False
    reembed: bool = False
    wait_seconds: float = 0.0
    indexes: IndexScope = "all"
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    keep_going: bool = False
    by_commit: bool = False


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """One source: where it is, what it is called, what is recorded of it, and the commit that git has checked out."""

    source: Source
    entity: Entity
    record: SourceRecord
    commit: str | None = None

    @property
    def rules(self) -> Rules:
        return Rules(include=self.record.include, exclude=self.record.exclude)


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """A run that can begin. ``replaces`` is the fingerprint that a ``--reembed`` run supersedes.

    ``failures`` are the sources, by URI, that cannot be planned and are left out.
    """

    request: IndexRequest
    workspace: Workspace
    model: ModelRef
    sources: tuple[SourcePlan, ...]
    replaces: str | None
    failures: tuple[tuple[str, DriftlineError], ...] = ()


def make_plan(request: IndexRequest) -> IndexPlan:
    """Check ``request`` against sources, model and workspace; writes nothing. Raises UsageError and its kin."""
    if not request.sources:
        raise UsageError("No source was given", fix="Name at least one folder or bucket.")
    asked = [source if isinstance(source, SourceRequest) else SourceRequest(source) for source in request.sources]
    if not all(wanted.uri for wanted in asked):
        raise UsageError("A source is empty", fix="Name a folder or a bucket; a dot is the current folder.")
    if request.entity and len(request.sources) > 1:
        raise UsageError("--entity names one source, but several were given", fix="Run once for each.")
    if not 0 <= request.max_delete_fraction <= 1:
        raise UsageError("max_delete_fraction lies between 0 and 1", str(request.max_delete_fraction))
    Rules(include=request.include, exclude=request.exclude).check()
    for wanted in asked:
        Rules(include=wanted.include, exclude=wanted.exclude).check()
    workspace = _look_at(request)
    model = _model_for(request.model, workspace.config)
    current = workspace.config.fingerprint
    replaces = None
    if current is not None and current != model.fingerprint:
        if not request.reembed:
            raise fingerprint_mismatch(workspace.objects.uri, workspace.config, model.name)
        replaces = current
    plans: list[SourcePlan] = []
    failures: list[tuple[str, DriftlineError]] = []
    for source in request.sources:
        try:
            plan = _plan_source(source, request, workspace, {p.entity for p in plans})
            if any(plan.source.uri == other.source.uri for other in plans):
                raise UsageError("A source was given twice", plan.source.uri)
        except DriftlineError as error:
            if not request.keep_going:
                raise
            failures.append((source.uri if isinstance(source, SourceRequest) else source, error))
            continue
        plans.append(plan)
    if not plans:
        raise failures[0][1]
    return IndexPlan(request, workspace, model, tuple(plans), replaces, tuple(failures))


def _look_at(request: IndexRequest) -> Workspace:
    """The workspace as it is, or as it would be created."""
    try:
        return Workspace.open(request.workspace, request.storage_options)
    except WorkspaceNotFound:
        return Workspace(ObjectStore.open(request.workspace, request.storage_options), WorkspaceConfig())


def _model_for(name: str | None, config: WorkspaceConfig) -> ModelRef:
    files = resolve_model(config.model if name is None else name)
    return ModelRef(files.name, fingerprint(files), dimension(files))


def _plan_source(
    asked: str | SourceRequest, request: IndexRequest, workspace: Workspace, taken: set[Entity]
) -> SourcePlan:
    if isinstance(asked, SourceRequest):
        wanted, keeps_filters = asked, False
    else:
        wanted = SourceRequest(asked, request.entity, request.include, request.exclude)
        keeps_filters = not request.include and not request.exclude
    source = open_source(wanted.uri, request.storage_options, allow_empty=True)
    origin = git_origin(source.uri) if source.is_local else None
    record = SourceRecord(
        entity="",
        uri=source.uri,
        origin=origin.url if origin else None,
        subpath=origin.subpath if origin else "",
        include=wanted.include,
        exclude=wanted.exclude,
    )
    if wanted.entity:
        entity = Entity.parse(wanted.entity, workspace.config.hierarchy)
        if entity.type != workspace.config.hierarchy[-1]:
            raise UsageError(f"Documents belong to a {workspace.config.hierarchy[-1]}", wanted.entity, "Name one.")
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
        workspace.manifest(entity).check()
    if known is not None and keeps_filters:
        record = record.model_copy(update={"include": known.include, "exclude": known.exclude})
    record = record.model_copy(update={"entity": str(entity)})
    return SourcePlan(source, entity, record, origin.commit if origin else None)


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

"""Turn a request into a plan, validating all input before anything is written."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, get_args

from driftline.flows.config.driftline_toml import Configuration, ConfiguredSource
from driftline.storage.defaults import (
    DEFAULT_EXECUTOR,
    DEFAULT_MAX_DELETE_FRACTION,
    DEFAULT_MAX_DOCUMENT_BYTES,
    DEFAULT_MAX_FILE_BYTES,
    DEFAULT_REDACTION,
    Redaction,
)
from driftline.storage.embedding import DeepModel
from driftline.storage.entities import Entity
from driftline.storage.errors import CorruptFile, DriftlineError, SourceConflict, UsageError, WorkspaceNotFound
from driftline.storage.layout import lease_path
from driftline.storage.leases.lease import peek
from driftline.storage.lines.indexes import IndexScope
from driftline.storage.objects.store import ObjectStore
from driftline.storage.option_table import listed, path_or_uri
from driftline.storage.sources.mirror import parse_remote
from driftline.storage.sources.source import RepositorySource, Source, open_source
from driftline.storage.workspace.branch_cuts import check_name
from driftline.storage.workspace.fleet_state import read_fleets
from driftline.storage.workspace.records import BranchRecord, RunHistory, SourceRecord, WorkspaceConfig
from driftline.storage.workspace.workspace import Workspace, fingerprint_mismatch
from driftline.tasks.embedding.models import dimension, fingerprint, is_earlier_version, resolve_model
from driftline.tasks.git.work_tree import git_origin
from driftline.tasks.scanning.overlap import Claim
from driftline.tasks.scanning.path_patterns import Rules
from driftline.tasks.task_context import ModelRef

log = logging.getLogger(__name__)

CONFIGURED = ("model", "redact", "archives", "notebook_outputs")
"""Options of an index run that driftline.toml sets for all of its sources."""
PARTIAL = re.compile(r".+-(files|glob)-[0-9a-f]{8}")
"""Names of sources that contain only some files of a folder: the paths passed to an action."""


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """A source with its own entity and filters, which replace those recorded in the workspace.

    ``link``, its host's type or a link template, also replaces the recorded value; None keeps it, and "" removes it.
    ``commit`` is a repository's commit, if the caller already looked it up. If ``rebind`` is set, the entity may move
    to ``uri``.
    """

    uri: str
    entity: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    link: str | None = None
    commit: str = ""
    rebind: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", path_or_uri("A source", self.uri))
        _check_patterns(self)


def requests_of(sources: Iterable[ConfiguredSource]) -> tuple[SourceRequest, ...]:
    """Return the requests for a configuration file's sources."""
    return tuple(
        SourceRequest(source.uri, str(source.entity), source.include, source.exclude, source.link) for source in sources
    )


def known_request(entity: Entity, record: SourceRecord) -> SourceRequest:
    """Return a request for a source of the workspace, with its entity and filters."""
    return SourceRequest(record.uri, str(entity), record.include, record.exclude)


@dataclass(frozen=True, slots=True)
class IndexRequest:
    """The inputs of an index run; ``storage_options`` apply to the workspace and the sources.

    ``entity``, ``include`` and ``exclude`` apply to sources that are given as URIs. ``keep_going`` reports source
    failures instead of raising them. ``by_commit`` restricts the scan to the paths that git lists as changed, and
    ``paths`` restricts it to these files of the only source, for callers that know that nothing else changed. If
    ``branch`` is set, the run updates this branch of each source; ``build`` is the number of its CI build. ``deep``
    embeds definitions with a transformer: True selects the workspace's or the default transformer, a name that
    transformer. None keeps the workspace's transformer, if any, and False removes it. ``redact`` selects which
    credentials in the text are redacted; None keeps the source's mode (``known`` for a new source). ``archives``
    determines whether files inside archives and email are documents, and ``notebook_outputs`` determines whether a
    notebook's text includes its outputs; None keeps the source's setting (False for a new source). ``link`` is the same
    as in ``SourceRequest``.
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
    max_document_bytes: int = DEFAULT_MAX_DOCUMENT_BYTES
    rebind: bool = False
    reembed: bool = False
    wait_seconds: float = 0.0
    indexes: IndexScope = "all"
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    keep_going: bool = False
    by_commit: bool = False
    paths: tuple[str, ...] | None = None
    branch: str | None = None
    build: int | None = None
    deep: bool | str | None = None
    redact: Redaction | None = None
    link: str | None = None
    archives: bool | None = None
    notebook_outputs: bool | None = None

    def __post_init__(self) -> None:
        given = (each if isinstance(each, SourceRequest) else path_or_uri("A source", each) for each in self.sources)
        object.__setattr__(self, "sources", tuple(given))
        _check_patterns(self)


def _check_patterns(owner: SourceRequest | IndexRequest) -> None:
    """Convert pattern lists to tuples, as in the records. Raises UsageError for anything but strings."""
    for name in ("include", "exclude"):
        patterns = listed(name, getattr(owner, name)) or ()
        if not all(isinstance(each, str) for each in patterns):
            raise UsageError(f"{name} must be text", repr(patterns)[:100])
        object.__setattr__(owner, name, patterns)


def configured_request(
    configuration: Configuration, sources: tuple[str | SourceRequest, ...] | None = None, **options: Any
) -> IndexRequest:
    """Return a request for sources of a configuration (default: all) with its settings; ``options`` that are None keep
    them.
    """
    settings: dict[str, Any] = {name: getattr(configuration, name) for name in CONFIGURED}
    settings |= {"workspace": configuration.workspace, "storage_options": configuration.options()}
    settings |= {name: value for name, value in options.items() if value is not None}
    return IndexRequest(requests_of(configuration.sources) if sources is None else sources, **settings)


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """A source, its entity, its record to write, and the commit that git has checked out.

    Files covered by ``claims`` are left to other sources. ``joined`` is set if the source was not requested, but owns
    files of a requested source. ``branch_cut`` is the reason why the run takes a new branch snapshot or keeps the old
    one; ``superseded`` is the branch's previous record.
    """

    source: Source
    entity: Entity
    record: SourceRecord
    commit: str | None = None
    claims: tuple[Claim, ...] = ()
    joined: bool = False
    branch_cut: str = ""
    superseded: BranchRecord | None = None

    @property
    def rules(self) -> Rules:
        return Rules(include=self.record.include, exclude=self.record.exclude, archives=self.record.archives)


@dataclass(frozen=True, slots=True)
class Followed:
    """A repository of ``fleet`` whose readers its host lists, and the URIs it has had."""

    fleet: str
    uris: set[str]


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """A validated run. ``replaces`` is the fingerprint that a ``--reembed`` run supersedes.

    ``failures`` maps the URIs of sources that failed validation, and are skipped, to errors. The run takes over the
    files of the sources in ``instead_of`` and removes these sources. ``deep`` is the transformer for definitions.
    """

    request: IndexRequest
    workspace: Workspace
    model: ModelRef
    sources: tuple[SourcePlan, ...]
    replaces: str | None
    failures: tuple[tuple[str, DriftlineError], ...] = ()
    instead_of: tuple[str, ...] = ()
    new_workspace: bool = False
    deep: DeepModel | None = None


def make_plan(request: IndexRequest) -> IndexPlan:
    """Validate ``request`` against sources, model and workspace, without writing anything.

    Raises UsageError, CorruptFile, AccessDenied, StorageError.
    """
    if not request.sources:
        raise UsageError("No source was given", fix="Specify at least one folder or bucket.")
    sources = [source if isinstance(source, SourceRequest) else SourceRequest(source) for source in request.sources]
    if not all(source.uri for source in sources):
        raise UsageError("Empty source", fix="Specify a folder or a bucket; a dot is the current folder.")
    if request.entity and len(request.sources) > 1:
        raise UsageError("--entity applies to a single source, but several were given", fix="Run once per source.")
    if not 0 <= request.max_delete_fraction <= 1:
        raise UsageError("max_delete_fraction must be between 0 and 1", str(request.max_delete_fraction))
    if request.branch is not None:
        check_name(request.branch)
        if request.reembed or request.rebind:
            raise UsageError(
                "--branch cannot be combined with --reembed or --rebind", fix="Run them on the main index."
            )
    if request.redact not in (None, *get_args(Redaction)):
        raise UsageError(
            f"Unknown redaction mode {request.redact!r}", fix=f"Use one of {', '.join(get_args(Redaction))}."
        )
    Rules(include=request.include, exclude=request.exclude).check()
    for source in sources:
        Rules(include=source.include, exclude=source.exclude).check()
    workspace = _workspace_of(request)
    model = _model_for(request.model, workspace.config)
    current = workspace.config.fingerprint
    replaces = None
    if current is not None and current != model.fingerprint:
        if not request.reembed and not _is_earlier_version(model, current):
            raise fingerprint_mismatch(workspace.objects.uri, workspace.config, model.name)
        replaces = current
    followed = followed_repositories(workspace)
    plans: list[SourcePlan] = []
    failures: list[tuple[str, DriftlineError]] = []
    entities, uris = set[Entity](), set[str]()
    for given in request.sources:
        try:
            plan = plan_source(given, request, workspace, entities, followed)
            if plan.source.is_local:
                for root in (plan.source.uri, os.path.abspath(given if isinstance(given, str) else given.uri)):
                    plan.rules.check(root)
            if plan.source.uri in uris:
                raise UsageError("Duplicate source", plan.source.uri, "Specify it once.")
        except DriftlineError as error:
            if not request.keep_going:
                raise
            failures.append((given.uri if isinstance(given, SourceRequest) else given, error))
            continue
        plans.append(plan)
        entities.add(plan.entity)
        uris.add(plan.source.uri)
    if not plans:
        raise failures[0][1]
    return IndexPlan(request, workspace, model, tuple(plans), replaces, tuple(failures))


def _workspace_of(request: IndexRequest) -> Workspace:
    """Return the workspace, or an object for the workspace that the run would create; creates nothing."""
    try:
        return Workspace.open(request.workspace, request.storage_options)
    except WorkspaceNotFound:
        return Workspace(ObjectStore.open(request.workspace, request.storage_options), WorkspaceConfig())


def _model_for(name: str | None, config: WorkspaceConfig) -> ModelRef:
    files = resolve_model(config.model if name is None else name)
    return ModelRef(files.name, fingerprint(files), dimension(files))


def _is_earlier_version(model: ModelRef, fingerprint: str) -> bool:
    return is_earlier_version(resolve_model(model.name), fingerprint)


def plan_source(
    given: str | SourceRequest,
    request: IndexRequest,
    workspace: Workspace,
    taken: set[Entity],
    followed: Callable[[], Mapping[str, Followed]],
) -> SourcePlan:
    """Plan one source; its default entity avoids those in ``taken``, and it must not take one of ``followed``.

    Raises the same errors as ``make_plan``.
    """
    if isinstance(given, SourceRequest):
        named, keeps_filters = given, False
    else:
        named = SourceRequest(given, request.entity, request.include, request.exclude, request.link)
        keeps_filters = not request.include and not request.exclude
    remote = parse_remote(named.uri) if named.commit else None
    if remote is not None:
        source: Source = RepositorySource.at(remote, named.commit)
    else:
        source = open_source(named.uri, request.storage_options)
    origin = git_origin(source.uri) if source.is_local else None
    record = SourceRecord(
        entity="",
        uri=source.uri,
        origin=origin.url if origin else source.origin,
        subpath=origin.subpath if origin else "",
        include=named.include,
        exclude=named.exclude,
    )
    if named.entity:
        entity = Entity.parse(named.entity, workspace.config.hierarchy)
        level = workspace.config.hierarchy[-1]
        if entity.type != level:
            raise UsageError(f"Documents belong to a {level}", named.entity, f"Add /{level}:NAME.")
        known = _known_source(workspace, entity, record.uri)
        may_move = request.rebind or named.rebind or request.branch is not None
        if known is not None and not known.same_location(record) and not may_move:
            raise SourceConflict(
                f"{entity} is bound to another URI",
                known.uri,
                "Choose another --entity, or move this one with --rebind.",
            )
    else:
        entity, known = _default_entity(source.default_name, record, workspace, taken)
    if known is None or not known.same_location(record):
        _refuse_followed(followed(), entity, source.uri)
    if known is not None:  # damaged files are reported before anything is written
        peek(workspace.objects, lease_path(entity))
        workspace.manifest(entity).check()
    if known is not None and keeps_filters:
        record = replace(record, include=known.include, exclude=known.exclude)
    redact = request.redact or (known.redact if known is not None else DEFAULT_REDACTION)
    link = named.link if named.link is not None else known.link if known is not None else None
    kept = ("archives", "notebook_outputs")
    asked = {name: getattr(request, name) for name in kept if getattr(request, name) is not None}
    before = {name: getattr(known, name) for name in kept} if known is not None else {}
    settings = {"entity": str(entity), "redact": redact, "link": link or None} | before | asked
    record = replace(record, **settings)
    commit = source.commit if isinstance(source, RepositorySource) else origin.commit if origin else None
    return SourcePlan(source, entity, record, commit)


def followed_repositories(workspace: Workspace) -> Callable[[], Mapping[str, Followed]]:
    """Return a function that reads the fleets' repositories whose readers their hosts list, once; keyed by entity."""

    @cache
    def read() -> Mapping[str, Followed]:
        found: dict[str, Followed] = {}
        for name, fleet in read_fleets(workspace.objects).items():
            for each in fleet.repositories.values():
                if each.readers is not None:
                    known = found.get(each.entity)
                    found[each.entity] = Followed(name, each.uris if known is None else each.uris & known.uris)
        return found

    return read


def _refuse_followed(followed: Mapping[str, Followed], entity: Entity, uri: str) -> None:
    """Raise SourceConflict if the readers of a fleet's repository would see another source."""
    known = followed.get(str(entity))
    if known is not None and uri not in known.uris:
        what = f"{entity} belongs to the fleet {known.fleet}, whose host says who may read it"
        raise SourceConflict(what, uri, "Choose another --entity.")


def _known_source(workspace: Workspace, entity: Entity, uri: str) -> SourceRecord | None:
    """Return the record of ``entity``, or None.

    A damaged record is treated as missing if the last run shows that it belonged to ``uri``.

    Raises CorruptFile, WorkspaceTooNew.
    """
    try:
        return workspace.source(entity)
    except CorruptFile:
        for run in RunHistory(workspace.objects, entity.tenant).newest_first():
            for source in run.report.get("sources", ()):
                if source.get("entity") == str(entity) and source.get("uri") == uri:
                    log.warning("Rewriting the damaged record of %s", entity)
                    return None
        raise


def _around(workspace: Workspace, uri: str, free: Entity, taken: set[Entity]) -> tuple[Entity, SourceRecord | None]:
    """Return the source at ``uri`` that contains the workspace, whatever its name, or else the new source ``free``."""
    if workspace.local_path is not None and workspace.local_path.startswith(uri.rstrip("/") + "/"):
        for entity, known in workspace.readable_sources(Entity(free.parts[:-1])):
            if known.uri == uri and entity not in taken and not PARTIAL.fullmatch(entity.id):
                return entity, known
    return free, None


def _default_entity(
    name: str, record: SourceRecord, workspace: Workspace, taken: set[Entity]
) -> tuple[Entity, SourceRecord | None]:
    """Use ``name`` as the entity, with a hash suffix if that entity is bound to a URI other than the one in ``record``.

    A project that contains the workspace keeps its entity if its folder is renamed.
    """
    level = workspace.config.hierarchy[-1]
    uri = record.uri
    suffix = hashlib.blake2b(uri.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    for candidate in (name, f"{name}-{suffix}"):
        entity = Entity.parse(f"{level}:{candidate.replace('/', '_')}", workspace.config.hierarchy)
        known = _known_source(workspace, entity, uri)
        if entity not in taken and (known is None or known.same_location(record)):
            return (entity, known) if known is not None else _around(workspace, uri, entity, taken)
    raise SourceConflict("Another source already has this default entity", uri, "Specify one with --entity.")

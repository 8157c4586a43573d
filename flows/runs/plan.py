"""Turn a request into a plan, validating all input before anything is written."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache

from driftline.flows.config.driftline_toml import ConfiguredSource
from driftline.flows.config.index_request import SETTINGS, IndexRequest, SourceRequest
from driftline.flows.config.workspace_names import local_path
from driftline.storage.deltas.manifest import SCHEMA
from driftline.storage.documents import SkipReason, content_hash
from driftline.storage.embedding import DeepModel
from driftline.storage.entities import Entity
from driftline.storage.errors import (
    CorruptFile,
    DriftlineError,
    SourceConflict,
    UsageError,
    WorkspaceNotFound,
    shortened,
)
from driftline.storage.globs import advice_on
from driftline.storage.layout import lease_path
from driftline.storage.leases.lease import peek
from driftline.storage.objects.store import ObjectStore
from driftline.storage.redaction import RULES_VERSION
from driftline.storage.sources.mirror import parse_remote, with_reference
from driftline.storage.sources.source import RepositorySource, Source, open_source
from driftline.storage.workspace.branch_cuts import check_name
from driftline.storage.workspace.fleet_state import read_fleets
from driftline.storage.workspace.records import BranchRecord, RunHistory, SourceRecord, WorkspaceConfig
from driftline.storage.workspace.workspace import Workspace, fingerprint_mismatch
from driftline.tasks.embedding.models import dimension, fingerprint, is_earlier_version, resolve_model
from driftline.tasks.extraction.extractor import current_marks
from driftline.tasks.git.work_tree import git_origin
from driftline.tasks.scanning.overlap import Claim
from driftline.tasks.scanning.path_patterns import Rules, matches_any
from driftline.tasks.scanning.scan import ScanSpec, rules_of, scan
from driftline.tasks.scanning.since_commit import release
from driftline.tasks.task_context import ModelRef

log = logging.getLogger(__name__)

RECORDED = tuple(each.name for each in fields(SourceRecord) if each.name in SETTINGS)
"""Options that a source keeps until a run changes them."""
PARTIAL = re.compile(r".+-(files|glob)-[0-9a-f]{8}")
"""Names of sources that contain only some files of a folder: the paths passed to an action."""

_EVERYTHING = frozenset(("*", "**"))
"""Patterns that include every file, like having no pattern."""


def requests_of(sources: Iterable[ConfiguredSource]) -> tuple[SourceRequest, ...]:
    """Return the requests for a configuration file's sources."""
    return tuple(
        SourceRequest(source.uri, str(source.entity), source.include, source.exclude, source.link, configured=True)
        for source in sources
    )


def known_request(entity: Entity, record: SourceRecord) -> SourceRequest:
    """Return a request for a source of the workspace, with its entity and filters."""
    return SourceRequest(record.uri, str(entity), record.include, record.exclude)


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """A source, its entity, its record to write, and the commit that git has checked out.

    Files covered by ``claims`` are left to other sources. ``joined`` is set if the source was not requested, but owns
    files of a requested source. ``branch_cut`` is the reason why the run takes a new branch snapshot or keeps the old
    one; ``superseded`` is the branch's previous record, ``own_commit`` its unmerged commit in git.
    ``before`` is the record of the last run of a source that was given by its URI only, or in a configuration file, as
    in ``configured``. ``unmatched`` contains the new patterns to exclude that match no file; ``prunes`` is set if
    folders are excluded, whose content is unknown.
    """

    source: Source
    entity: Entity
    record: SourceRecord
    commit: str | None = None
    claims: tuple[Claim, ...] = ()
    joined: bool = False
    branch_cut: str = ""
    superseded: BranchRecord | None = None
    own_commit: str | None = None
    before: SourceRecord | None = None
    unmatched: tuple[str, ...] = ()
    configured: bool = False
    prunes: bool = False

    @property
    def rules(self) -> Rules:
        return rules_of(self.record)

    @property
    def has_new_filters(self) -> bool:
        """Whether the source's filters differ from those of its last run."""
        before = (self.before.include, self.before.exclude) if self.before is not None else ((), ())
        return (self.record.include, self.record.exclude) != before

    def about_filters(self) -> str:
        """Return sentences about filters that the run changes or takes from the record, or "" if there are none."""
        nothing = "matches no file outside excluded folders" if self.prunes else "matches no file"
        option = f"exclude of {self.entity}:" if self.configured else "--exclude"
        notes = [shortened(f"{option} {each!r} {nothing}. {advice_on(each)}".rstrip()) for each in self.unmatched]
        return "\n".join(filter(None, [self._about_change(), *notes]))

    def _about_change(self) -> str:
        if self.before is None or self.configured:
            return ""
        now, before = _flags(self.record), _flags(self.before)
        if self.has_new_filters:
            return f"The filters of {self.entity} are now {now or 'none'}, instead of {before or 'none'}."
        reset = "Other filters replace them; --include '*' removes them."
        return f"{self.entity} keeps the filters of its last run, {now}. {reset}" if now else ""


@dataclass(frozen=True, slots=True)
class RestrictedRepository:
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


def _flags(record: SourceRecord) -> str:
    """Return a source's filters as on the command line."""
    given = [("--include", each) for each in record.include] + [("--exclude", each) for each in record.exclude]
    return " ".join(f"{option} {shlex.quote(each)}" for option, each in given)


def _with_tried_filters(plan: SourcePlan) -> SourcePlan:
    """Return ``plan`` with the patterns of ``--exclude`` that match no file outside excluded folders.

    Raises UsageError if the source has files, and its filters exclude all of them.
    """
    found = scan(ScanSpec.of(plan.source, plan.record, "", ()), lambda _: SCHEMA.empty_table(), now_ns=0)
    if not found.listed and {*found.skipped["reason"].to_pylist()} == {SkipReason.EXCLUDED}:
        where = f"{_flags(plan.record)} in {plan.source.uri}"
        raise UsageError("The filters match no files", where, "Correct the globs; --include '*' matches all files.")
    left_out = found.skipped["path"]
    unmatched = tuple(each for each in plan.record.exclude if not matches_any(each, left_out))
    return replace(plan, unmatched=unmatched, prunes=any(path.endswith("/") for path in left_out.to_pylist()))


def make_plan(request: IndexRequest) -> IndexPlan:
    """Validate ``request`` against sources, model and workspace, without writing anything.

    Raises UsageError, CorruptFile, AccessDenied, StorageError.
    """
    if not request.given:
        raise UsageError("No source was given", fix="Specify at least one folder or bucket.")
    sources = [source if isinstance(source, SourceRequest) else SourceRequest(source) for source in request.given]
    if not all(source.uri for source in sources):
        raise UsageError("Empty source", fix="Specify a folder or a bucket; a dot is the current folder.")
    if request.entity and len(request.given) > 1:
        raise UsageError("--entity applies to a single source, but several were given", fix="Run once per source.")
    if request.branch is not None:
        check_name(request.branch)
        if request.reembed or request.rebind:
            raise UsageError(
                "--branch cannot be combined with --reembed or --rebind", fix="Run them on the main index."
            )
    Rules(tuple(request.include), tuple(request.exclude)).check()
    for source in sources:
        Rules(include=source.include, exclude=source.exclude).check()
    workspace = _workspace_of(request)
    model, replaces = _model_of(request, workspace)
    restricted = restricted_repositories(workspace)
    plans: list[SourcePlan] = []
    failures: list[tuple[str, DriftlineError]] = []
    entities, uris = set[Entity](), set[str]()
    for given in request.given:
        try:
            plan = plan_source(given, request, workspace, entities, restricted)
            if plan.source.is_local:
                for root in (plan.source.uri, os.path.abspath(given if isinstance(given, str) else given.uri)):
                    plan.rules.check(root)
            if (isinstance(given, str) or plan.configured) and plan.has_new_filters:
                plan = _with_tried_filters(plan)
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


def _model_of(request: IndexRequest, workspace: Workspace) -> tuple[ModelRef, str | None]:
    """Return the run's model, and the fingerprint that it replaces. Raises FingerprintMismatch, ModelNotFound."""
    current = workspace.config
    files = resolve_model(current.model if request.model is None else request.model)
    model = ModelRef(files.name, fingerprint(files), dimension(files))
    if current.fingerprint is None or current.fingerprint == model.fingerprint:
        return model, None
    if not request.reembed and not is_earlier_version(files, current.fingerprint):
        raise fingerprint_mismatch(workspace.objects.uri, current, model.name)
    return model, current.fingerprint


def settings_of_all(request: IndexRequest) -> str:
    """Return a hash of everything that determines what a run indexes, except the source's own settings.

    Raises FingerprintMismatch, ModelNotFound, CorruptFile, StorageError, UsageError.
    """
    model, _ = _model_of(request, _workspace_of(request))
    options = [getattr(request, name) for name in RECORDED]
    rules = (options, model.fingerprint, RULES_VERSION, sorted(current_marks()), release())
    return content_hash(repr(rules).encode())


def plan_source(
    given: str | SourceRequest,
    request: IndexRequest,
    workspace: Workspace,
    taken: set[Entity],
    restricted: Callable[[], Mapping[str, RestrictedRepository]],
) -> SourcePlan:
    """Plan one source; its default entity avoids those in ``taken``, and it must not take one of ``restricted``.

    Raises the same errors as ``make_plan``.
    """
    named, keeps_filters = given, False
    if not isinstance(named, SourceRequest):
        named = SourceRequest(named, request.entity, tuple(request.include), tuple(request.exclude), request.link)
        keeps_filters = not request.include and not request.exclude
    remote = parse_remote(named.uri) if named.commit else None
    if remote is not None:
        source: Source = RepositorySource.at(remote, named.commit)
    else:
        source = open_source(with_reference(named.uri, request.references), request.storage_options)
    origin = git_origin(source.uri) if source.is_local else None
    folder = local_path(named.uri) if source.is_local else None
    path = os.path.abspath(folder) if folder is not None else None
    record = SourceRecord(
        entity="",
        uri=source.uri,
        given=path if path not in (None, source.uri) else None,
        inode=_inode(source.uri) if source.is_local else None,
        origin=origin.url if origin else source.origin,
        subpath=origin.subpath if origin else "",
        include=named.include if not {*named.include} <= _EVERYTHING else (),
        exclude=named.exclude,
    )
    if named.entity:
        entity = Entity.parse(named.entity, workspace.config.hierarchy)
        level = workspace.config.hierarchy[-1]
        if entity.type != level:
            raise UsageError(f"Documents belong to a {level}", named.entity, f"Add /{level}:NAME.")
        known = _known_source(workspace, entity, record.uri)
        may_move = request.rebind or named.rebind or request.branch is not None or _by_same_link(known, record)
        if known is not None and not known.same_location(record) and not may_move:
            raise SourceConflict(
                f"{entity} is bound to another URI",
                known.uri,
                "Choose another --entity, or move this one with --rebind.",
            )
    else:
        entity, known = _default_entity(source.default_name, record, workspace, taken)
    if known is None or not known.same_location(record):
        _refuse_restricted(restricted(), entity, source.uri)
    if known is not None:  # damaged files are reported before anything is written
        peek(workspace.objects, lease_path(entity))
        workspace.manifest(entity).check()
    if known is not None and known.uri == record.uri:  # another link, or none, does not rename the source
        record = replace(record, given=known.given)
    if known is not None and keeps_filters:
        record = replace(record, include=known.include, exclude=known.exclude)
    link = named.link if named.link is not None else known.link if known is not None else None
    asked = {name: getattr(request, name) for name in RECORDED if getattr(request, name) is not None}
    kept = {name: getattr(known, name) for name in RECORDED} if known is not None else {}
    record = replace(record, **{"entity": str(entity), "link": link or None} | kept | asked)
    commit = source.commit if isinstance(source, RepositorySource) else origin.commit if origin else None
    before = known if isinstance(given, str) or named.configured else None
    return SourcePlan(source, entity, record, commit, before=before, configured=named.configured)


def _inode(folder: str) -> int | None:
    """Return a folder's inode, or None if the folder has just disappeared: its scan reports that."""
    with suppress(OSError):
        return os.stat(folder).st_ino
    return None


def restricted_repositories(workspace: Workspace) -> Callable[[], Mapping[str, RestrictedRepository]]:
    """Return a function that reads the fleets' repositories whose readers their hosts list, once; keyed by entity."""

    @cache
    def read() -> Mapping[str, RestrictedRepository]:
        found: dict[str, RestrictedRepository] = {}
        for name, fleet in read_fleets(workspace.objects).items():
            for each in fleet.repositories.values():
                if each.readers is not None:
                    known = found.get(each.entity)
                    found[each.entity] = RestrictedRepository(
                        name, each.uris if known is None else each.uris & known.uris
                    )
        return found

    return read


def _refuse_restricted(restricted: Mapping[str, RestrictedRepository], entity: Entity, uri: str) -> None:
    """Raise SourceConflict if the readers of a fleet's repository would see another source."""
    known = restricted.get(str(entity))
    if known is not None and uri not in known.uris:
        what = f"{entity} belongs to the fleet {known.fleet}, whose host determines its readers"
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


def _by_same_link(known: SourceRecord | None, record: SourceRecord) -> bool:
    return known is not None and record.given is not None and known.given == record.given


def _under_another_name(
    workspace: Workspace, record: SourceRecord, free: Entity, taken: set[Entity]
) -> tuple[Entity, SourceRecord | None]:
    """Return the known source at the URI of ``record``, if the workspace is inside it, or the one given by the same
    link.

    Otherwise, return the new entity ``free``.
    """
    is_inside = workspace.local_path is not None and workspace.local_path.startswith(record.uri.rstrip("/") + "/")
    if is_inside or record.given is not None:
        for entity, known in workspace.readable_sources(Entity(free.parts[:-1])):
            is_same = known.uri == record.uri or _by_same_link(known, record)
            if is_same and entity not in taken and not PARTIAL.fullmatch(entity.id):
                return entity, known
    return free, None


def _default_entity(
    name: str, record: SourceRecord, workspace: Workspace, taken: set[Entity]
) -> tuple[Entity, SourceRecord | None]:
    """Use ``name`` as the entity, with a hash suffix if that entity is bound to a URI other than the one in ``record``.

    The hash is of the URI or, because build machines use the same path for all repositories with one name, of the git
    origin. A project that contains the workspace keeps its entity if its folder is renamed, as does a link if its
    target changes.
    """
    level = workspace.config.hierarchy[-1]
    uri = record.uri
    identities = (uri, f"{record.origin}#{record.subpath}") if record.origin else (uri,)
    hashes = (hashlib.blake2b(each.encode("utf-8", "surrogateescape"), digest_size=4) for each in identities)
    for candidate in (name, *(f"{name}-{each.hexdigest()}" for each in hashes)):
        entity = Entity.parse(f"{level}:{candidate.replace('/', '_')}", workspace.config.hierarchy)
        known = _known_source(workspace, entity, uri)
        if entity not in taken and (known is None or known.same_location(record)):
            return (entity, known) if known is not None else _under_another_name(workspace, record, entity, taken)
    raise SourceConflict("Another source already has this default entity", uri, "Specify one with --entity.")

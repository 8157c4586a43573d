"""Read and validate a workspace's JSON records: configuration, sources, branches, and immutable run records.

Also defines the workspace's statistics, and how notebooks show them and search results as tables.
"""

from __future__ import annotations

import html
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Required, TypedDict, TypeVar

from driftline.storage.defaults import DEFAULT_MAX_DOCUMENT_BYTES, DEFAULT_MAX_FILE_BYTES, DEFAULT_REDACTION, Redaction
from driftline.storage.entities import INDEX_LEVELS, Entity
from driftline.storage.environment import upgrade_command
from driftline.storage.errors import (
    AlreadyExists,
    CommitConflict,
    CorruptFile,
    DriftlineError,
    ObjectNotFound,
    PreconditionFailed,
    UsageError,
    WorkspaceTooNew,
)
from driftline.storage.json_records import check_times, check_type, from_json, to_json
from driftline.storage.layout import COPY_RECORD, run_directory, run_id_of
from driftline.storage.objects.store import ObjectStore

FORMAT_VERSION = 1

PROGRAM_SCHEME = "upsert:"
"""The scheme of sources whose lines a program stores itself (``LineStore``): nothing can be read from there."""

_Record = TypeVar("_Record")
DONE = "done"
"""The outcome of a run without a failure."""
INDEX = "index"
"""The kind of an index run."""
_OF_TENANTS = ("sources", "failed")
"""The lists in an index run's report that differ between its tenants."""
CHANGE_ATTEMPTS = 20
"""Attempts to change a record that other processes change at the same time."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepRecord:
    """The transformer that produced the current definition embeddings."""

    model: str
    fingerprint: str
    dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceConfig:
    """The content of ``_workspace.json``. ``fingerprint`` selects the current tables.

    ``fingerprint`` is None until the first run binds a model.

    ``deep`` is the transformer, if the workspace has definition embeddings.
    """

    format_version: int = FORMAT_VERSION
    workspace_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    hierarchy: tuple[str, ...] = INDEX_LEVELS
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    model: str | None = None
    fingerprint: str | None = None
    dim: int | None = None
    deep: DeepRecord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedCommit:
    """The commit a source was indexed at, with a clean working tree, when the lease with ``token`` ended.

    ``scanned_with`` is a hash of all settings that affect which files are indexed and how. ``revision`` is the
    manifest's highest ``rev`` at that time, 0 if unknown. ``build`` is the number of the CI build that indexed it.
    """

    id: str
    committed: datetime
    token: int
    scanned_with: str
    revision: int = 0
    build: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecord:
    """The content of ``_source.json``: a source's settings.

    ``origin`` and ``subpath``, not the URI, identify a git tree. Text is stored and shown as redacted by ``redact``. If
    ``archives`` is set, files inside archives and emails are documents; if ``notebook_outputs`` is set, the text of
    notebooks includes their outputs. Files above ``max_file_bytes``, and documents and records above
    ``max_document_bytes``, are skipped.

    ``given`` is the path that the source was given by, if that leads to ``uri`` through a link. ``inode`` identifies a
    local folder: a folder with another inode at the same path is another folder, as after a disk was unmounted.

    ``workspace`` is the former path of a workspace on a local disk, as seen from the same machine as ``uri``. Runs that
    scan only changed paths set ``commit``, which becomes invalid as soon as the lease has another holder. ``reached``
    is the last commit that was set: documents not written by a later run still have that commit's content. ``link`` is
    a host type or a link template, for remotes that do not determine one.
    """

    format_version: int = FORMAT_VERSION
    entity: str
    uri: str
    given: str | None = None
    inode: int | None = None
    workspace: str | None = None
    origin: str | None = None
    subpath: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    redact: Redaction = DEFAULT_REDACTION
    archives: bool = False
    notebook_outputs: bool = False
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES
    max_document_bytes: int = DEFAULT_MAX_DOCUMENT_BYTES
    commit: IndexedCommit | None = None
    reached: IndexedCommit | None = None
    link: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether the source is a folder."""
        return "://" not in self.uri and not self.is_stored_by_program

    @property
    def is_stored_by_program(self) -> bool:
        """Whether only the program that stored the documents has their text."""
        return self.uri.startswith(PROGRAM_SCHEME)

    def same_location(self, other: SourceRecord) -> bool:
        """Return whether two records scan the same files.

        Args:
            other: the other record.

        Returns:
            True for the same URI, or for the same path in the same git origin.

        Examples:
            >>> a, b = (driftline.SourceRecord(entity="source:a", uri=uri) for uri in ("/a", "/b"))
            >>> a.same_location(a), a.same_location(b)
            (True, False)
        """
        if self.origin and other.origin:
            return (self.origin, self.subpath) == (other.origin, other.subpath)
        return self.uri == other.uri

    def seen_from(self, workspace: str) -> SourceRecord:
        """Return the record with the source's current location, inferred from how the workspace moved.

        A source that contains the workspace still contains it, under the same name. A source next to or below the
        workspace is assumed to have moved with it if it is found there. Any other source stayed where it was.

        Args:
            workspace: the current location of the workspace.

        Returns:
            The record.

        Examples:
            >>> driftline.SourceRecord(entity="source:a", uri="s3://b/a").seen_from("/ws").uri
            's3://b/a'
        """
        if self.workspace in (None, workspace) or "://" in self.uri:
            return self
        return replace(self, uri=_moved(self.uri, str(self.workspace), workspace), workspace=workspace)


def _moved(uri: str, before: str, now: str) -> str:
    """Return where the folder ``uri`` is if the workspace moved from ``before`` to ``now``.

    A folder outside the workspace's own parent moved with it only if nothing is left at ``uri``.
    """
    root = uri.rstrip("/") + "/"
    if before.startswith(root):
        inner = f"/{before[len(root) :]}"
        return now.removesuffix(inner) or "/" if now.endswith(inner) else uri
    project = os.path.dirname(before).rstrip("/") + "/"
    if not uri.startswith("/") or not before.startswith("/") or not (uri.startswith(project) or not os.path.isdir(uri)):
        return uri
    moved = os.path.realpath(os.path.join(now, os.path.relpath(uri, before)))
    return moved if os.path.isdir(moved) else uri


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRecord:
    """The content of ``_branch.json``: a branch's ``cut``, and its ``source`` as last indexed on the branch.

    A cut is made from the main index at ``main_revision`` (in git: at commit ``base``). The branch lease's tokens are
    higher than ``token``, because a cut starts with the main index's commit marker. ``build`` is the number of the CI
    build that was indexed last; older builds do not replace it. ``own_commit`` is the commit that git had checked out
    in the last run on a git branch of this name that was not merged yet. ``pull_requests`` are the numbers of the open
    ones from the branch, as far as webhooks reported them.
    """

    format_version: int = FORMAT_VERSION
    name: str
    entity: str
    cut: str
    fingerprint: str
    main_revision: int
    token: int
    base: str | None = None
    build: int | None = None
    own_commit: str | None = None
    pull_requests: tuple[str, ...] = ()
    created: datetime
    updated: datetime
    source: SourceRecord


def read_record(objects: ObjectStore, path: str, kind: type[_Record]) -> _Record | None:
    """Return the JSON record at ``path``, or None. Raises CorruptFile, WorkspaceTooNew."""
    try:
        data = objects.get(path)
    except ObjectNotFound:
        return None
    return parse_record(objects, path, data, kind)


def update_record(
    objects: ObjectStore,
    path: str,
    kind: type[_Record],
    change: Callable[[_Record], _Record],
    missing: _Record | None = None,
) -> _Record:
    """Replace the record at ``path`` with ``change(record)``, and return that; an equal record is not written.

    If another process changes the record at the same time, ``change`` is called again. It gets ``missing`` if there is
    no record; without it, that raises ObjectNotFound.

    Raises CommitConflict after CHANGE_ATTEMPTS, CorruptFile, WorkspaceTooNew, StorageError, and what ``change`` raises.
    """
    for _ in range(CHANGE_ATTEMPTS):
        version = None
        try:
            data, version = objects.get_versioned(path)
            known = parse_record(objects, path, data, kind)
        except ObjectNotFound:
            if missing is None:
                raise
            known = missing
        changed = change(known)
        if changed == known:
            return known
        try:
            if version is None:
                objects.create(path, to_json(changed))
            else:
                objects.replace(path, to_json(changed), version)
        except (AlreadyExists, PreconditionFailed):
            continue
        return changed
    reason = f"Other processes changed {path} during all {CHANGE_ATTEMPTS} attempts"
    raise CommitConflict(reason, objects.uri, "Try again.")


def parse_record(objects: ObjectStore, path: str, data: bytes, kind: type[_Record]) -> _Record:
    """Parse ``data`` as a record. Raises CorruptFile, WorkspaceTooNew."""
    where = f"{objects.uri}/{path}"
    try:
        version = from_json(_Versioned, data).format_version
        if version > FORMAT_VERSION:
            raise WorkspaceTooNew(
                f"A newer version of Driftline wrote this file (format {version}; this one supports {FORMAT_VERSION})",
                where,
                f"Upgrade: {upgrade_command()}",
            )
        record = from_json(kind, data)
        check_times(record)
        return record
    except ValueError as error:
        raise CorruptFile(
            f"The file is damaged or not Driftline's (it is not a valid {kind.__name__}: {error})",
            where,
            "Run 'driftline verify --repair', or restore it.",
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Versioned:
    format_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRecord:
    """A copy's ``_copy.json``: its ``origin``, when it was pulled, and the size and version of each file."""

    format_version: int = FORMAT_VERSION
    origin: str
    workspace_id: str
    pulled: datetime
    files: dict[str, tuple[int, str]]


def read_copy_record(objects: ObjectStore) -> CopyRecord | None:
    """Return a copy's record, or None for an original. Raises CorruptFile, WorkspaceTooNew."""
    return read_record(objects, COPY_RECORD, CopyRecord) if objects.is_local else None


class _SourceReport(TypedDict, total=False):
    entity: Required[str]
    uri: str
    new: int
    changed: int
    touched: int
    unchanged: int
    deleted: int
    missing: int
    skipped: list[_Skipped]
    lines_embedded: int
    lines_reused: int
    documents_total: int
    lines_total: int
    bytes_read: int
    revision: int
    deltas: int | None
    commit: str | None
    base: str | None
    branch: str | None
    phases: dict[str, float]


class _Skipped(TypedDict):
    path: str
    reason: str


class _Failure(TypedDict, total=False):
    uri: Required[str]
    message: str


class _Folded(TypedDict):
    entity: str
    deltas: int


class _Report(TypedDict, total=False):
    requests: dict[str, int]
    seconds: float


class _IndexReport(_Report, total=False):
    sources: list[_SourceReport]
    failed: list[_Failure]


class _CompactReport(_Report, total=False):
    tenant: str
    folded: list[_Folded]
    versions_removed: int
    before: dict[str, float | None] | None
    after: dict[str, float | None] | None
    measured: datetime | None


class _CleanupReport(_Report, total=False):
    deleted_count: int


_REPORTS: dict[str, type] = {INDEX: _IndexReport, "compact": _CompactReport, "cleanup": _CleanupReport}
"""What the reports of runs must have if they have it: readers rely on these types."""
_MAX_SECONDS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The record of one run. ``report`` is its JSON report, including every skipped file and the reason."""

    format_version: int = FORMAT_VERSION
    run_id: str
    kind: str
    started: str
    seconds: float
    outcome: str
    report: dict[str, Any]

    @property
    def main_sources(self) -> list[Mapping[str, Any]]:
        """The report's entries of the sources whose main index an index run updated, and not a branch."""
        if self.kind != INDEX:
            return []
        return [source for source in self.report.get("sources", ()) if source.get("branch") is None]


def whole_run(parts: Sequence[RunRecord]) -> RunRecord:
    """Join the records that one run wrote to several tenants.

    An index run's record lists the sources of all of them; every part has the counts of the whole run, such as its
    requests. The report of other runs holds the tenants' reports as ``parts``.
    """
    first, reports = parts[0], [part.report for part in parts]
    if len(parts) == 1:
        return first
    if first.kind != INDEX:
        return replace(first, report={"parts": reports})
    joined = {name: [each for report in reports for each in report.get(name, ())] for name in _OF_TENANTS}
    return replace(first, report=first.report | joined)


def _own(run: RunRecord, tenant: Entity) -> RunRecord:
    """Return the record of an index run without other tenants' sources, which older runs wrote to each tenant."""
    sources = run.report.get("sources", ()) if run.kind == INDEX else ()
    own = [each for each in sources if each["entity"].startswith(f"{tenant}/")]
    if len(own) == len(sources):
        return run
    uris = {each.get("uri") for each in own}
    failed = [each for each in run.report.get("failed", ()) if each["uri"] in uris]
    return replace(run, report=run.report | {"sources": own, "failed": failed})


@dataclass(frozen=True, slots=True)
class RunHistory:
    """A tenant's run history. Its records contain nothing about other tenants."""

    objects: ObjectStore
    tenant: Entity

    def record(self, run: RunRecord) -> None:
        """Write the record of a finished run. If the run failed, a failure to write its record is only logged."""
        try:
            self.objects.create(f"{self._directory}/{run.run_id}.json", to_json(run))
        except DriftlineError as error:
            if run.outcome == DONE:
                raise
            log.warning("The record of the run %s is not written: %s", run.run_id, error)

    def get(self, run_id: str) -> RunRecord | None:
        """Return a run's record, or None."""
        path = f"{self._directory}/{run_id}.json"
        run = read_record(self.objects, path, RunRecord)
        if run is None:
            return None
        try:
            check_type(run.report, _REPORTS.get(run.kind, _Report))
            if not 0 <= run.seconds <= _MAX_SECONDS:
                raise ValueError(f"it lasted {run.seconds:g} s")
            check_times(datetime.fromisoformat(run.started))
        except ValueError as error:
            raise CorruptFile(
                f"The record of a run is damaged: {error}", f"{self.objects.uri}/{path}", "Restore it, or delete it."
            ) from error
        return _own(run, self.tenant)

    def readable(self, run_id: str) -> RunRecord | None:
        """Return a run's record, or None, with a warning if it is damaged."""
        try:
            return self.get(run_id)
        except CorruptFile as error:
            log.warning("Skipped a damaged run record: %s", error)
            return None

    def revision(self, run_id: str, entity: Entity) -> int:
        """Return the ``rev`` of ``entity`` after a run, for reading its manifest ``as_of``. Raises UsageError."""
        run = self.get(run_id)
        sources = run.main_sources if run is not None else []
        revisions = [source["revision"] for source in sources if source["entity"] == str(entity)]
        if not revisions:
            raise UsageError(
                f"No run {run_id} indexed this source", str(entity), "The run ids are the file names in _runs/."
            )
        return int(revisions[0])

    def last(self) -> RunRecord | None:
        """Return the most recently started run, or None."""
        return next(self.newest_first(), None)

    def ids(self) -> list[str]:
        """Return the ids of all runs, newest first."""
        names = (info.path.rsplit("/", 1)[-1] for info in self.objects.list(self._directory, recursive=False))
        return sorted((run_id for name in names if (run_id := run_id_of(name))), reverse=True)

    def newest_first(self) -> Iterator[RunRecord]:
        """Yield the runs, newest first, each read lazily; damaged records are skipped with a warning."""
        for run_id in self.ids():
            run = self.readable(run_id)
            if run is not None:
                yield run

    @property
    def _directory(self) -> str:
        return run_directory(self.tenant)


def html_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table for notebooks, with every cell escaped."""
    cells = ["".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in rows]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


@dataclass(frozen=True, slots=True)
class WorkspaceStats:
    """Workspace statistics; ``total_lines`` counts rows of ``line_embeddings``."""

    total_documents: int
    total_lines: int
    has_index: bool
    index_type: str | None
    workspace: str = ""
    model: str | None = None
    sources: tuple[dict[str, Any], ...] = ()
    deltas: int = 0
    last_run: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as a dictionary.

        Returns:
            The object printed by ``status --json``.

        Examples:
            >>> ws.status().to_dict()["total_documents"]
            1
        """
        return asdict(self)

    def _repr_html_(self) -> str:
        rows = [(name, value) for name, value in self.to_dict().items() if name != "sources"]
        return html_table(("", self.workspace), rows)

"""The JSON records of a workspace: configuration, sources, and one immutable file per run, validated on reading."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from driftline.storage.entities import INDEX_LEVELS, Entity
from driftline.storage.errors import CorruptFile, ObjectNotFound, UsageError, WorkspaceTooNew, upgrade_command
from driftline.storage.layout import run_directory, run_id_of
from driftline.storage.objects.store import ObjectStore

FORMAT_VERSION = 1

_Record = TypeVar("_Record", bound=BaseModel)


class DeepRecord(BaseModel):
    """The transformer whose vectors of definitions serve."""

    model_config = ConfigDict(frozen=True)

    model: str
    fingerprint: str
    dim: int


class WorkspaceConfig(BaseModel):
    """``_workspace.json``. ``fingerprint`` selects the current tables; None until the first run chooses a model.

    ``deep`` is the transformer of a workspace whose definitions are embedded.
    """

    model_config = ConfigDict(frozen=True)

    format_version: int = FORMAT_VERSION
    workspace_id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    hierarchy: tuple[str, ...] = INDEX_LEVELS
    created: datetime = Field(default_factory=lambda: datetime.now(UTC))
    model: str | None = None
    fingerprint: str | None = None
    dim: int | None = None
    deep: DeepRecord | None = None


class IndexedCommit(BaseModel):
    """The commit that a source was indexed at, with a clean work tree, when the lease with ``token`` ended.

    ``scanned_with`` is a hash of all settings that affect which files are indexed and how.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    committed: datetime
    token: int
    scanned_with: str


class SourceRecord(BaseModel):
    """``_source.json``: what a source scans. ``origin`` and ``subpath``, not the URI, identify a git work tree.

    ``workspace`` is where the workspace on a local disk was, as seen from the same place as ``uri``. Runs over
    changed paths set ``commit``; it becomes void as soon as the lease has another holder.
    """

    model_config = ConfigDict(frozen=True)

    format_version: int = FORMAT_VERSION
    entity: str
    uri: str
    workspace: str | None = None
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

    def seen_from(self, workspace: str) -> SourceRecord:
        """The record with the place of the source today, as the place of its ``workspace`` shows it.

        A source around the workspace is where the workspace is, under the same name in it. One beside the workspace,
        or below, has moved with it if it is found there; any other source is where it was.
        """
        if self.workspace in (None, workspace) or "://" in self.uri:
            return self
        return self.model_copy(update={"uri": _moved(self.uri, str(self.workspace), workspace), "workspace": workspace})


def _moved(uri: str, before: str, now: str) -> str:
    """Where the folder ``uri`` is if the workspace, once at ``before``, is at ``now``."""
    root = uri.rstrip("/") + "/"
    if before.startswith(root):
        inner = f"/{before[len(root) :]}"
        return now.removesuffix(inner) or "/" if now.endswith(inner) else uri
    project = os.path.dirname(before).rstrip("/") + "/"
    beside = os.path.join(os.path.dirname(now), uri.removeprefix(project))
    return beside if uri.startswith(project) and os.path.isdir(beside) else uri


class BranchRecord(BaseModel):
    """``_branch.json``: the ``cut`` that holds a branch, and the ``source`` as it was indexed on the branch last.

    A cut is made from the main index at ``main_revision``, of the commit ``base`` where git names one. Tokens of the
    branch's lease are higher than ``token``, since a cut begins with the commit marker of the main index. ``build`` is
    the number of the CI build that was indexed last: an older one does not replace it.
    """

    model_config = ConfigDict(frozen=True)

    format_version: int = FORMAT_VERSION
    name: str
    entity: str
    cut: str
    fingerprint: str
    main_revision: int
    token: int
    base: str | None = None
    build: int | None = None
    created: datetime
    updated: datetime
    source: SourceRecord


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
                f"A newer version of Driftline wrote this file (format {version}; this one supports {FORMAT_VERSION})",
                where,
                f"Upgrade: {upgrade_command()}",
            )
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise CorruptFile(
            f"The file is damaged or not Driftline's (it is not a valid {kind.__name__})",
            where,
            "Run 'driftline verify --repair', or restore it.",
        ) from error


class _Versioned(BaseModel):
    format_version: int


log = logging.getLogger(__name__)


class RunRecord(BaseModel):
    """The record of one run. ``report`` is its JSON report, including every skipped file with its reason."""

    model_config = ConfigDict(frozen=True)

    format_version: int = FORMAT_VERSION
    run_id: str
    kind: str
    started: str
    seconds: float
    outcome: str
    report: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunHistory:
    """The run history of one tenant."""

    objects: ObjectStore
    tenant: Entity

    def record(self, run: RunRecord) -> None:
        """Write the record of a finished run."""
        self.objects.create(f"{self._directory}/{run.run_id}.json", run.model_dump_json(indent=1).encode())

    def get(self, run_id: str) -> RunRecord | None:
        """The record of a run, or None."""
        return read_record(self.objects, f"{self._directory}/{run_id}.json", RunRecord)

    def revision(self, run_id: str, entity: Entity) -> int:
        """The ``rev`` of ``entity`` after a run, for ``as_of`` of its manifest. Raises UsageError."""
        run = self.get(run_id)
        sources = run.report.get("sources", []) if run is not None else []
        revisions = [source["revision"] for source in sources if source["entity"] == str(entity)]
        if not revisions:
            raise UsageError(
                f"No run {run_id} has indexed this source", str(entity), "The run ids are the file names in _runs/."
            )
        return int(revisions[0])

    def last(self) -> RunRecord | None:
        """The run that started last, or None."""
        return next(self.newest_first(), None)

    def ids(self) -> list[str]:
        """The ids of all runs, newest first."""
        names = (info.path.rsplit("/", 1)[-1] for info in self.objects.list(self._directory, recursive=False))
        return sorted((run_id for name in names if (run_id := run_id_of(name))), reverse=True)

    def newest_first(self) -> Iterator[RunRecord]:
        """The runs, newest first, each read lazily; a damaged record is left out, with a warning."""
        for run_id in self.ids():
            try:
                run = self.get(run_id)
            except CorruptFile as error:
                log.warning("A run is left out: %s", error)
                continue
            if run is not None:
                yield run

    @property
    def _directory(self) -> str:
        return run_directory(self.tenant)

"""Sources that select the same files: what each leaves to the others, and which of them a run brings in step, too.

Only in workspaces on a local disk: in a bucket, one path may name the files of several machines.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from driftline.flows.output.progress import Progress
from driftline.flows.output.reports import IndexReport
from driftline.flows.runs.plan import IndexPlan, SourcePlan, SourceRequest, plan_source
from driftline.flows.runs.remove_run import remove_documents, remove_source
from driftline.flows.runs.source_run import GUARDED_DELETIONS
from driftline.storage.deltas.manifest import totals
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError, LeaseHeld
from driftline.storage.workspace.records import SourceRecord
from driftline.tasks.scanning.claims import Claim, claim_of, claimed, claims_on
from driftline.tasks.scanning.ignore import Matcher

log = logging.getLogger(__name__)


def share_files(plan: IndexPlan) -> IndexPlan:
    """``plan`` with what each source leaves to others, and with the known sources that hold files of those requested.

    Those are ``joined``: what was asked for includes their files. Raises CorruptFile, StorageError.
    """
    known = _Known.of(plan)
    if known is None:
        return plan
    parts = list(plan.sources)
    if not plan.request.alone:
        parts += known.joined(plan)
    everybody = [*known.records.items(), *((part.entity, part.record) for part in parts)]
    shared = (
        replace(part, claims=claims_on(part.entity, part.record, [o for o in everybody if o[0] != part.entity]))
        for part in parts
    )
    return replace(plan, sources=tuple(shared))


def settle_shares(plan: IndexPlan, report: IndexReport, progress: Progress) -> None:
    """Take out of other sources what those of a finished run have taken over. Raises LeaseLost, StorageError."""
    workspace, request = plan.workspace, plan.request
    for name in request.instead_of:
        if workspace.source(Entity.parse(name, workspace.config.hierarchy)) is not None:
            _remove(plan, name)
    known = _Known.of(plan)
    if known is None:
        return
    failed = {uri for uri, _ in report.failed}
    done = [part for part in plan.sources if part.source.uri not in failed]
    for entity, record in known.records.items():
        found = (claim_of(part.entity, part.record, entity, record) for part in done)
        claims = tuple(claim for claim in found if claim is not None)
        try:
            if known.is_gone(record) and _may_go(plan, entity, record, done):
                _remove(plan, str(entity))
            elif claims:
                _release(plan, entity, claims, report.run_id)
        except LeaseHeld as error:
            progress.message(f"{entity} keeps what this run has taken over until its own next run: {error.what}")


def _remove(plan: IndexPlan, entity: str) -> None:
    request = plan.request
    remove_source(
        plan.workspace.objects.uri, entity, wait_seconds=request.wait_seconds, storage_options=request.storage_options
    )


def _release(plan: IndexPlan, entity: Entity, claims: tuple[Claim, ...], run_id: str) -> None:
    """Take the documents that ``claims`` cover out of a source."""
    workspace = plan.workspace
    documents = workspace.manifest(entity).read([claim.prefix for claim in claims], columns=["path"])
    paths = documents["path"].combine_chunks()
    if not claimed(paths, claims).any():
        return
    lost = paths.filter(pa.array(claimed(paths, claims))).to_pylist()
    remove_documents(workspace, entity, lost, run_id=run_id, wait_seconds=plan.request.wait_seconds)
    log.info("%s has left %d documents to other sources", entity, len(lost))


def _may_go(plan: IndexPlan, entity: Entity, record: SourceRecord, done: list[SourcePlan]) -> bool:
    """Whether a source whose folder is gone may be removed: one of the run holds its folder, and few documents go."""
    if not any(claim_of(entity, record, part.entity, part.record) and not part.joined for part in done):
        return False
    documents, _ = totals(plan.workspace.manifest(entity).read(columns=["lines", "reason"]))
    return documents <= GUARDED_DELETIONS or plan.request.max_delete_fraction == 1


@dataclass(frozen=True, slots=True)
class _Known:
    """The sources of the tenants of a plan that are not in it themselves."""

    records: dict[Entity, SourceRecord]

    @classmethod
    def of(cls, plan: IndexPlan) -> _Known | None:
        """None where paths do not tell whether files are the same."""
        if not plan.workspace.objects.is_local:
            return None
        tenants = {part.entity.tenant for part in plan.sources}
        planned = {part.entity for part in plan.sources}
        found = ((e, r) for tenant in sorted(tenants) for e, r in plan.workspace.sources(tenant))
        return cls({entity: record for entity, record in found if entity not in planned})

    def is_gone(self, record: SourceRecord) -> bool:
        """Whether the local folder of a source is not there any more."""
        return "://" not in record.uri and not os.path.isdir(record.uri)

    def joined(self, plan: IndexPlan) -> Iterator[SourcePlan]:
        """The sources that hold files of a requested one."""
        for entity, record in self.records.items():
            if str(entity) in plan.request.instead_of or self.is_gone(record):
                continue
            if not any(self._holds_files_of(entity, record, part, plan) for part in plan.sources):
                continue
            named = SourceRequest(record.uri, str(entity), record.include, record.exclude)
            try:
                yield replace(plan_source(named, plan.request, plan.workspace, set()), joined=True)
            except DriftlineError as error:
                log.warning("%s is not brought in step: %s", entity, error)

    def _holds_files_of(self, entity: Entity, record: SourceRecord, part: SourcePlan, plan: IndexPlan) -> bool:
        claim = claim_of(entity, record, part.entity, part.record)
        if claim is None or (not part.record.include and not part.record.exclude):
            return claim is not None
        paths = plan.workspace.manifest(entity).read(columns=["path"])["path"].combine_chunks()
        inside = pc.binary_join_element_wise(claim.prefix, paths, "")
        return not Matcher(part.rules).excluded(inside).all()

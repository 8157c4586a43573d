"""Sources that select the same files: what each leaves to the others, and which of them a run brings in step, too.

Only in workspaces on a local disk: in a bucket, one path may name the files of several machines.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

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
from driftline.tasks.scanning.claims import Claim, Neighbours, claim_of, claimed
from driftline.tasks.scanning.ignore import Matcher

log = logging.getLogger(__name__)


def share_files(plan: IndexPlan, *, alone: bool = False) -> IndexPlan:
    """``plan`` with what each source leaves to others, and with the known sources that hold files of those requested.

    Those are ``joined``, unless the plan shall stay ``alone``: what was asked for includes their files.
    Raises CorruptFile, StorageError.
    """
    known = _known(plan)
    if known is None:
        return plan
    parts = list(plan.sources)
    if not alone:
        parts += _joined(plan, known)
    everybody = Neighbours({**known, **{part.entity: part.record for part in parts}})
    return replace(
        plan, sources=tuple(replace(part, claims=everybody.claims_on(part.entity, part.record)) for part in parts)
    )


def settle_shares(plan: IndexPlan, report: IndexReport, progress: Progress) -> None:
    """Take out of other sources what those of a finished run have taken over. Raises LeaseLost, StorageError."""
    workspace = plan.workspace
    for name in plan.instead_of:
        if workspace.source(Entity.parse(name, workspace.config.hierarchy)) is not None:
            _remove(plan, name)
    known = _known(plan)
    if known is None:
        return
    failed = {uri for uri, _ in report.failed}
    neighbours, lost = Neighbours(known), dict[Entity, list[Claim]]()
    for part in plan.sources:
        if part.source.uri in failed:
            continue
        for entity in neighbours.at_or_above(part.record.uri):
            claim = claim_of(part.entity, part.record, entity, known[entity])
            if claim is not None:
                lost.setdefault(entity, []).append(claim)
        if not part.joined:
            for entity in neighbours.at_or_below(part.record.uri):
                if _is_gone(known[entity]) and entity.tenant == part.entity.tenant:
                    _forget(plan, entity, progress)
    for entity, claims in lost.items():
        try:
            _release(plan, entity, claims, report.run_id)
        except LeaseHeld as error:
            progress.message(f"{entity} keeps what this run has taken over until its own next run: {error.what}")


def _remove(plan: IndexPlan, entity: str) -> None:
    request = plan.request
    remove_source(
        plan.workspace.objects.uri, entity, wait_seconds=request.wait_seconds, storage_options=request.storage_options
    )


def _release(plan: IndexPlan, entity: Entity, claims: Sequence[Claim], run_id: str) -> None:
    """Take the documents that ``claims`` cover out of a source."""
    workspace = plan.workspace
    documents = workspace.manifest(entity).read([claim.prefix for claim in claims], columns=["path"])
    paths = documents["path"].combine_chunks()
    if not claimed(paths, claims).any():
        return
    lost = paths.filter(pa.array(claimed(paths, claims))).to_pylist()
    remove_documents(workspace, entity, lost, run_id=run_id, wait_seconds=plan.request.wait_seconds)
    log.info("%s has left %d documents to other sources", entity, len(lost))


def _forget(plan: IndexPlan, entity: Entity, progress: Progress) -> None:
    """Remove a source whose folder is gone from the folder of another, unless many documents would go."""
    documents, _ = totals(plan.workspace.manifest(entity).read(columns=["lines", "reason"]))
    if documents > GUARDED_DELETIONS and plan.request.max_delete_fraction < 1:
        progress.message(f"The folder of {entity} is gone; the index keeps its {documents:,} documents.")
        return
    try:
        _remove(plan, str(entity))
    except LeaseHeld as error:
        progress.message(f"{entity}, whose folder is gone, is not removed: {error.what}")


def _known(plan: IndexPlan) -> dict[Entity, SourceRecord] | None:
    """The sources of the tenants of a plan besides its own and those that it replaces; None in a bucket."""
    if not plan.workspace.objects.is_local:
        return None
    tenants = {part.entity.tenant for part in plan.sources}
    planned = {part.entity for part in plan.sources}
    found = ((e, r) for tenant in sorted(tenants) for e, r in plan.workspace.readable_sources(tenant))
    return {e: record for e, record in found if e not in planned and str(e) not in plan.instead_of}


def _is_gone(record: SourceRecord) -> bool:
    """Whether the local folder of a source is not there any more."""
    return "://" not in record.uri and not os.path.isdir(record.uri)


def _joined(plan: IndexPlan, known: Mapping[Entity, SourceRecord]) -> list[SourcePlan]:
    """The known sources that hold files of a requested one."""
    neighbours, found = Neighbours(known), dict[Entity, SourcePlan]()
    for part in plan.sources:
        for entity in neighbours.at_or_below(part.record.uri):
            if entity in found or not _holds_files_of(entity, known[entity], part, plan):
                continue
            record = known[entity]
            named = SourceRequest(record.uri, str(entity), record.include, record.exclude)
            try:
                found[entity] = replace(plan_source(named, plan.request, plan.workspace, set()), joined=True)
            except DriftlineError as error:
                log.warning("%s is not brought in step: %s", entity, error)
    return [found[entity] for entity in sorted(found)]


def _holds_files_of(entity: Entity, record: SourceRecord, part: SourcePlan, plan: IndexPlan) -> bool:
    claim = claim_of(entity, record, part.entity, part.record)
    if claim is None or _is_gone(record):
        return False
    if not part.record.include and not part.record.exclude:
        return True
    paths = plan.workspace.manifest(entity).read(columns=["path"])["path"].combine_chunks()
    inside = pc.binary_join_element_wise(claim.prefix, paths, "")
    return not Matcher(part.rules).excluded(inside).all()

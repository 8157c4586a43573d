"""The definitions of sources by a transformer: what an index run adds to the lines, if it shall (decision 0016)."""

from __future__ import annotations

import time

from driftline.flows.output.progress import Progress
from driftline.flows.output.reports import IndexReport
from driftline.flows.runs.executors import Executor
from driftline.flows.runs.plan import IndexPlan
from driftline.storage.errors import LeaseHeld, MissingExtra
from driftline.storage.layout import lease_path
from driftline.storage.leases.lease import acquire
from driftline.storage.model import DeepModel
from driftline.tasks.deep.transformer import deep_model
from driftline.tasks.indexing.deepen import batches, deepen_batch, plan_deep

COMMIT_SECONDS = 15.0
"""A run that is killed loses about this much work."""


def chosen_model(plan: IndexPlan, progress: Progress) -> DeepModel | None:
    """The transformer of this run: the one asked for, else that of the workspace; None for none.

    Raises MissingExtra, ModelNotFound for one that is asked for and not there.
    """
    request, known = plan.request, plan.workspace.config.deep
    if request.deep is False or (request.deep is None and known is None):
        return None
    try:
        return deep_model(request.deep if isinstance(request.deep, str) else known.model if known else None)
    except MissingExtra as error:
        if request.deep is not None:
            raise
        progress.message(f"Definitions are not embedded: {error}")
        return None


def deepen(plan: IndexPlan, model: DeepModel, executor: Executor, progress: Progress, report: IndexReport) -> None:
    """Embed the definitions that are missing, and remove those of documents that are gone.

    A run that is killed leaves the rest to the next one. Raises StorageError, ExecutorError, ModelNotFound.
    """
    workspace = plan.workspace
    for entity in (part.entity for part in plan.sources):
        table = workspace.deep(entity, model)
        table.create(model.dim)
        lacking = plan_deep(workspace, entity, model)
        if not lacking.missing and not lacking.stale:
            continue
        try:
            lease = acquire(workspace.objects, lease_path(entity, "deep"), report.run_id)
        except LeaseHeld as error:
            progress.message(f"The definitions of {entity} are left to the next run: {error.what}")
            continue
        with lease:
            progress.phase(f"embedding definitions of {entity}", total=len(lacking.missing))
            pending: list[str] = []
            since = time.monotonic()
            for result in executor.map(deepen_batch, batches(entity, lacking, model)):
                progress.advance(result.documents, result.definitions)
                report.definitions_embedded += result.definitions
                pending += result.fragments
                if pending and time.monotonic() - since > COMMIT_SECONDS:
                    lease.check()
                    table.commit(entity, pending)
                    pending, since = [], time.monotonic()
            lease.check()
            if pending or lacking.stale:
                table.commit(entity, pending, lacking.stale)
            table.index()

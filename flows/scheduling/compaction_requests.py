"""Emit the event that requests a compaction when a source or memory has more deltas than its threshold."""

from __future__ import annotations

import os

DELTAS_EVENT = "driftline.deltas.threshold"
"""The event's name; a trigger in prefect.yaml starts the compaction."""
SERVER_VARIABLE = "PREFECT_API_URL"


def request_source_compaction(workspace: str, entity: str, deltas: int) -> None:
    """Request a compaction of one source."""
    _emit(workspace, f"driftline.source.{entity}", entity, {"entity": entity, "deltas": deltas})


def request_memory_compaction(workspace: str, tenant: str, deltas: int) -> None:
    """Request a compaction because the memory of ``tenant`` exceeds its threshold.

    Does nothing if $PREFECT_API_URL is not set: importing Prefect takes a second, and would start a server.
    """
    if os.environ.get(SERVER_VARIABLE):
        _emit(workspace, f"driftline.memory.{tenant}", tenant, {"entity": "", "memory": tenant, "deltas": deltas})


def _emit(workspace: str, resource: str, name: str, payload: dict[str, str | int]) -> None:
    from prefect.events import emit_event

    emit_event(
        DELTAS_EVENT,
        resource={
            "prefect.resource.id": resource,
            "prefect.resource.name": name,
            "driftline.workspace": workspace,
        },
        payload={"workspace": workspace, **payload},
    )

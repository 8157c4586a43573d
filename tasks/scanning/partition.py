"""Scan one partition of a source against its slice of the manifest, on any worker."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from driftline.storage.deltas.manifest import SCHEMA
from driftline.storage.entities import Entity
from driftline.tasks.embedding.context import TaskContext
from driftline.tasks.scanning.scan import ScanResult, ScanSpec, scan, scan_paths


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """A part of a source; ``now_ns`` is the start of the scan. With ``paths`` only these files are scanned."""

    scan: ScanSpec
    entity: Entity
    now_ns: int
    paths: tuple[str, ...] | None = None


def scan_partition(spec: PartitionSpec, context: TaskContext) -> ScanResult:
    """List the partition and compare it with its slice of the manifest. Raises StorageError."""
    started = time.monotonic()
    return replace(_scan(spec, context), seconds=time.monotonic() - started)


def _scan(spec: PartitionSpec, context: TaskContext) -> ScanResult:
    manifest = context.workspace.manifest(spec.entity)
    if spec.paths is not None:
        return scan_paths(spec.scan, spec.paths, manifest.get, now_ns=spec.now_ns)
    return scan(spec.scan, lambda prefixes: manifest.read(prefixes, columns=SCHEMA.names), now_ns=spec.now_ns)

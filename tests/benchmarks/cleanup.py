"""Measure how long a cleanup scans a workspace of 100,000 objects on a local disk (target: under 5 s).

    python tests/benchmarks/cleanup.py [--objects 100000] [--workspace DIR]

Most objects are memory blobs. There are also 10,000 orphans and 2,000 deltas; the cleanup reads the deltas' footers.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from driftline.flows.runs.cleanup import CleanupRequest, clean_workspace
from driftline.storage.deltas import manifest as documents
from driftline.storage.deltas.manifest import Manifest, ManifestRow
from driftline.storage.entities import Entity
from driftline.storage.layout import new_ulid
from driftline.storage.lines.line_table import LineTable
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.records import SourceRecord
from driftline.storage.workspace.workspace import Workspace

SOURCES = 20
DELTAS_PER_SOURCE = 100
RUNS = 3_000
TARGET_SECONDS = 5.0
ROUNDS = 3


def build(uri: str, objects: int) -> Workspace:
    """Create a workspace of about ``objects`` objects, a tenth of which belong to no version of their table."""
    workspace = Workspace.open_for_writing(uri).bind_model("benchmark", "be9c", 4)
    store = workspace.objects
    tenant = Entity.parse("org:acme")
    table = LineTable(store, tenant, "be9c")
    table.create(4)
    for number in range(SOURCES):
        entity = Entity.parse(f"org:acme/project:p/source:s{number}")
        workspace.bind_source(entity, SourceRecord(entity=str(entity), uri="/nowhere"))
        manifest = Manifest(store, entity)
        row = manifest.changes(
            "add", 1, documents.to_table([ManifestRow("a", 1, 1, fingerprint="be9c")]), now=datetime.now(UTC)
        )
        data = manifest.encode(row)
        for _ in range(DELTAS_PER_SOURCE):
            _put(store, f"{entity.directory}/_index_delta_{new_ulid()}.parquet", data)
    for _ in range(RUNS):
        _put(store, f"org:acme/_runs/{new_ulid()}.json", b"{}")
    rest = objects - SOURCES * DELTAS_PER_SOURCE - RUNS
    for number in range(objects // 10):
        _put(store, f"{table.path}/data/{number:050x}.lance", b"lines")
    for number in range(rest - objects // 10):
        _put(store, f"org:acme/user:u{number % 100}/{number:032x}-{number:032x}-{new_ulid()}.json", b"{}")
    return workspace


def _put(store: ObjectStore, path: str, data: bytes) -> None:
    target = Path(store.uri, path)  # bypasses the store, which would sync each file
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=100_000)
    parser.add_argument("--workspace", help="where to build it; default: a temporary directory")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        workspace = build(arguments.workspace or scratch, arguments.objects)
        seconds = []
        for _ in range(ROUNDS):
            started, processor = time.perf_counter(), time.process_time()
            report = clean_workspace(CleanupRequest(workspace.objects.uri, max_age_seconds=0.0))
            seconds.append((time.perf_counter() - started, time.process_time() - processor))
        wall, processor = min(seconds)
        print(f"{report.scanned:,} objects, {len(report.orphans):,} orphans; target {TARGET_SECONDS:.0f} s, idle")
        print(f"{wall:.2f} s, of which {processor:.2f} s of the processor")


if __name__ == "__main__":
    main()

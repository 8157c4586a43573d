"""Measure change detection among ten million documents: read the manifest and compare it with a simulated listing.

    .venv/bin/python tests/benchmarks/state_detection.py

Partitions of five top-level folders each are processed two at a time, as in a run on two workers. One document in a
hundred was changed, one in a thousand was deleted, one in a thousand is new. Listings are created in advance and read
from disk.
"""

from __future__ import annotations

import resource
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import manifests
import measure
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from driftline.storage.deltas.manifest import Manifest
from driftline.storage.entities import Entity
from driftline.storage.objects.store import ObjectStore
from driftline.tasks.scanning.diff import LISTING_SCHEMA, diff

CORES = 2
PARTITION_FOLDERS = 5
DELTAS, DELTA_ROWS = 50, 1_000
MAX_SECONDS = 30.0
MAX_GIB = 4.0
NOW_NS = time.time_ns()


def main() -> int:
    options = measure.begin(__doc__, documents=10_000_000, cores=CORES)
    count = 200_000 if options.small else options.documents
    folders = range(count // manifests.FOLDER_DOCUMENTS)
    with measure.scratch() as root:
        manifest = Manifest(ObjectStore.open(str(root / "workspace")), Entity.parse("source:benchmark"))
        manifests.fill(manifest, count)
        rng = np.random.default_rng(7)
        for number in range(DELTAS):
            manifests.append(manifest, 1 + number, np.unique(rng.integers(0, count, DELTA_ROWS)))
        for number in folders:
            _write_listing(root, number)
        log = manifest.log()
        print(f"a base of {count:,} documents, {log.base_bytes / 1e6:.0f} MB, and {len(log.deltas)} deltas", flush=True)
        started, cpu = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(options.cores) as pool:
            partitions = [folders[i : i + PARTITION_FOLDERS] for i in range(0, len(folders), PARTITION_FOLDERS)]
            found = list(pool.map(lambda partition: _compare(manifest, root, partition), partitions))
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    new, candidates, deleted, unchanged = (sum(counts) for counts in zip(*found, strict=True))
    print(f"  {new:,} new, {candidates:,} changed, {deleted:,} gone, {unchanged:,} unchanged")
    print(f"  {seconds:.1f} s, {cpu:.1f} CPU s", flush=True)
    expected = [sum(len(part) for part in parts) for parts in zip(*map(_simulated, folders), strict=True)]
    if [new, candidates, deleted] != expected:
        raise SystemExit(f"expected {expected}")
    verdict = measure.Verdict(options.small)
    verdict.at_most("state detection", seconds, MAX_SECONDS, "s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    verdict.at_most("peak memory, with making the data", peak / 2**30, MAX_GIB, "GiB")
    return verdict.exit_code


def _simulated(number: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the new, changed and deleted documents of a folder."""
    start = number * manifests.FOLDER_DOCUMENTS
    ids = np.arange(start, start + manifests.FOLDER_DOCUMENTS)
    return 10**9 + ids[ids % 1_000 == 1], ids[ids % 100 == 2], ids[ids % 1_000 == 3]


def _write_listing(root: Path, number: int) -> None:
    new, changed, deleted = _simulated(number)
    start = number * manifests.FOLDER_DOCUMENTS
    ids = np.setdiff1d(np.arange(start, start + manifests.FOLDER_DOCUMENTS), deleted)
    rows = manifests.documents(ids, changed.tolist()).select(LISTING_SCHEMA.names)
    added = manifests.documents(new).select(LISTING_SCHEMA.names)
    paths = [f"{manifests.folder(number)}new_{name}.py" for name in new.tolist()]
    added = added.set_column(0, LISTING_SCHEMA.field("path"), [paths])
    pq.write_table(pa.concat_tables([rows, added]).sort_by("path"), root / f"listing-{number}.parquet")


def _compare(manifest: Manifest, root: Path, partition: range) -> tuple[int, int, int, int]:
    listing = pa.concat_tables(pq.read_table(root / f"listing-{number}.parquet") for number in partition)
    known = manifest.read(map(manifests.folder, partition))
    found = diff(listing, known, manifests.FINGERPRINT, now_ns=NOW_NS)
    return len(found.new), len(found.candidates), len(found.deleted), found.unchanged


if __name__ == "__main__":
    raise SystemExit(main())

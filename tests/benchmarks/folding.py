"""Compare folding deltas into a base, and reading one folder of the base, with plain pyarrow over the same rows.

    .venv/bin/python tests/benchmarks/folding.py
    .venv/bin/python tests/benchmarks/folding.py --rows 10000000

Plain pyarrow reads all files, sorts the rows by path and writes them with the same compression, but without merging,
removals, conditional writes or crash safety. "Bytes read" counts the bytes requested from the file system.
"""

from __future__ import annotations

import io
import os
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import manifests
import measure
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from driftline.storage.deltas.delta_index import DEFAULT_ENCODING, ROW_GROUP_ROWS
from driftline.storage.deltas.manifest import Manifest
from driftline.storage.entities import Entity
from driftline.storage.objects.local_disk import LocalDisk
from driftline.storage.objects.store import ObjectStore

SLACK_SECONDS = 2.0
MAX_BYTES = 4 * 2**30


def main() -> int:
    options = measure.begin(__doc__, rows=1_000_000, deltas=200, delta_rows=1_000, rounds=3)
    rows, rounds = (20_000, 1) if options.small else (options.rows, options.rounds)
    verdict = measure.Verdict(options.small)
    with measure.scratch() as root:
        manifest = Manifest(ObjectStore.open(str(root)), Entity.parse("source:benchmark"))
        manifests.fill(manifest, rows)
        base_bytes = manifest.log().base_bytes
        deltas = f"{options.deltas} deltas of {options.delta_rows:,} rows"
        print(f"a base of {rows:,} rows, {base_bytes / 1e6:.0f} MB; {deltas}", flush=True)
        plain, folding = [], []
        rng = np.random.default_rng(7)
        for turn in range(1, rounds + 1):
            for number in range(options.deltas):
                ids = np.unique(rng.integers(0, rows + rows // 10, options.delta_rows))
                manifests.append(manifest, 1 + turn * options.deltas + number, ids)
            files = sorted((root / manifest.directory).glob("_index*.parquet"))
            if rows <= 1_000_000:
                plain.append(_timed(partial(_plain, files, root / "plain.parquet")))
                print(f"  round {turn}: plain {plain[-1]:6.2f} s", flush=True)
            folding.append(_timed(manifest.compact))
            print(f"  round {turn}: fold  {folding[-1]:6.2f} s", flush=True)
        prefix = manifests.folder(rows // manifests.FOLDER_DOCUMENTS // 2)
        seconds, read = _bytes_read(lambda: manifest.read([prefix]))
        print(f"  the folder {prefix}: {read / 1e6:.1f} MB read in {seconds:.2f} s")
    if plain:
        limit = measure.median(plain) + SLACK_SECONDS
        verdict.at_most("folding, against plain read, sort and write plus 2 s", measure.median(folding), limit, "s")
    groups = -(-rows // ROW_GROUP_ROWS)
    needed = -(-manifests.FOLDER_DOCUMENTS // ROW_GROUP_ROWS) + 1
    verdict.at_most("a folder's bytes, of the base's", read, 1.2 * base_bytes * min(1, needed / groups), "bytes")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    verdict.at_most("peak memory", peak / 2**30, MAX_BYTES / 2**30, "GiB")
    return verdict.exit_code


def _plain(files: list[Path], target: Path) -> None:
    rows = pa.concat_tables([pq.read_table(file) for file in files]).sort_by("path")
    pq.write_table(rows, target, compression=DEFAULT_ENCODING.compression, row_group_size=ROW_GROUP_ROWS)
    os.unlink(target)


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class _CountedFile(io.RawIOBase):
    """A file that counts the bytes read from it."""

    total = 0

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def read(self, size: int | None = -1) -> bytes:
        data: bytes = self._file.read(size)
        _CountedFile.total += len(data)
        return data


def _bytes_read(work: Callable[[], object]) -> tuple[float, int]:
    original = LocalDisk.open_input
    counted = lambda disk, path: pa.PythonFile(_CountedFile(original(disk, path)), mode="r")  # noqa: E731
    with mock.patch.object(LocalDisk, "open_input", counted):
        return _timed(work), _CountedFile.total


if __name__ == "__main__":
    raise SystemExit(main())

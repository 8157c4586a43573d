"""Manifests of many simulated documents, for the delta index benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.deltas.delta_index import ADD
from driftline.storage.deltas.manifest import SCHEMA, Manifest, revision
from driftline.storage.layout import new_ulid

FOLDER_DOCUMENTS = 100_000
FINGERPRINT = "0123456789abcdef0123456789abcdef"
OLD_NS = 1_600_000_000_000_000_000
_APPENDED_AT_ONCE = 500_000


def folder(number: int) -> str:
    """Return the path prefix of the ``number``-th group of FOLDER_DOCUMENTS documents."""
    return f"packages-{number:04}/"


def documents(ids: NDArray[np.int64], changed: Sequence[int] = ()) -> pa.Table:
    """Return the manifest rows for documents ``ids``: 64 characters of path, and 32 each of hash and etag.

    Documents in ``changed`` have a different etag and size.
    """
    other = np.isin(ids, np.asarray(changed, np.int64))
    names = zip((ids // FOLDER_DOCUMENTS).tolist(), (ids // 50 % 2_000).tolist(), ids.tolist(), strict=True)
    paths = [f"{folder(top)}module_{middle:04}/some_folder/source_file_{name:09}.py" for top, middle, name in names]
    columns = {
        "path": pa.array(paths, pa.string()),
        "size_bytes": pa.array(ids % 50_000 + other),
        "mtime_ns": pa.array(OLD_NS + ids * 1_000_000_007),
        "etag": _digits(ids, 1 + other),
        "hash": _digits(ids, 3 + other),
        "fingerprint": pa.repeat(FINGERPRINT, len(ids)),
        "lines": pa.array(ids % 1_000, pa.int32()),
        "reason": pa.nulls(len(ids), pa.string()),
        "racy": pa.repeat(False, len(ids)),
        "ctime_ns": pa.array(OLD_NS + ids * 1_000_000_007 + other),
        "inode": pa.array(ids + 1),
    }
    return pa.table(columns, schema=SCHEMA)


def fill(manifest: Manifest, count: int) -> None:
    """Write a base that contains the first ``count`` documents into ``manifest``."""
    for start in range(0, count, _APPENDED_AT_ONCE):
        ids = np.arange(start, min(count, start + _APPENDED_AT_ONCE))
        append(manifest, 0, ids)
    manifest.compact()


def append(manifest: Manifest, token: int, ids: NDArray[np.int64]) -> None:
    """Write a delta that adds documents ``ids``."""
    manifest.append(new_ulid(), manifest.changes(ADD, revision(token, 0), documents(ids), now=datetime.now(UTC)))


def _digits(ids: NDArray[np.int64], salt: NDArray[np.int64]) -> pa.Array:
    """Return 32 hexadecimal digits for each id that compress no better than hashes."""
    mixed = (
        (ids.astype(np.uint64) + np.uint64(1))
        * np.uint64(0x9E3779B97F4A7C15)
        * (salt.astype(np.uint64) * np.uint64(2) + np.uint64(1))
    )
    mixed ^= mixed >> np.uint64(29)
    high = pc.utf8_lpad(pa.array(mixed % np.uint64(10**16)).cast(pa.string()), 16, "0")
    mixed = mixed * np.uint64(0xBF58476D1CE4E5B9)
    low = pc.utf8_lpad(pa.array(mixed % np.uint64(10**16)).cast(pa.string()), 16, "0")
    return pc.binary_join_element_wise(high, low, "")

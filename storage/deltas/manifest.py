"""Store a source's manifest: a delta index of its documents, and the staged deltas of its commits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.deltas.delta_index import DeltaIndex, Log
from driftline.storage.entities import Entity
from driftline.storage.layout import derived_ulid, parse_staged_name, staged_name
from driftline.storage.objects.store import ObjectStore


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """One file of a source, as recorded in the manifest.

    ``path`` is relative and POSIX-style; ``mtime_ns`` is in nanoseconds; ``etag`` is "" if the store has none; ``hash``
    is the hex blake2b-128 of the bytes; ``lines`` counts rows of ``line_embeddings``; ``reason`` is set if the file is
    not indexed. ``racy`` means that the file may have changed in the same clock tick it was read in, so the next run
    compares its content. ``ctime_ns`` and ``inode`` are 0 if unknown, and are then not compared. ``extractor`` is the
    name and version of the extractor that read the file (tasks/extraction), "" for text files.
    """

    path: str
    size_bytes: int
    mtime_ns: int
    etag: str = ""
    hash: str = ""
    fingerprint: str = ""
    lines: int = 0
    reason: str | None = None
    racy: bool = False
    ctime_ns: int = 0
    inode: int = 0
    extractor: str = ""


KIND = "documents"
FIELDS = (
    pa.field("path", pa.string()),
    pa.field("size_bytes", pa.int64()),
    pa.field("mtime_ns", pa.int64()),
    pa.field("etag", pa.string()),
    pa.field("hash", pa.string()),
    pa.field("fingerprint", pa.string()),
    pa.field("lines", pa.int32()),
    pa.field("reason", pa.string()),
    pa.field("racy", pa.bool_()),
    pa.field("ctime_ns", pa.int64()),
    pa.field("inode", pa.int64()),
    pa.field("extractor", pa.string()),
)
SCHEMA = pa.schema(FIELDS)
"""One row per document; ``reason`` is null if the document is indexed (see ManifestRow)."""

_BATCH_BITS = 32


@dataclass(frozen=True, slots=True, order=True)
class BatchId:
    """A batch of a run: the idempotency key of the batch's commit."""

    run_id: str
    batch: int


def revision(token: int, batch: int) -> int:
    """Return the ``rev`` of rows written by batch ``batch`` of the run with fencing token ``token``."""
    return (token << _BATCH_BITS) | batch


def token_of(rev: int) -> int:
    """Return the fencing token encoded in a ``rev``; see ``revision``."""
    return rev >> _BATCH_BITS


class Manifest(DeltaIndex):
    """The manifest of one source. A branch has its own manifest in another ``directory``."""

    def __init__(self, objects: ObjectStore, entity: Entity, directory: str | None = None) -> None:
        super().__init__(objects, directory or entity.directory, KIND, FIELDS)
        self.entity = entity

    def stage(self, batch: BatchId, rows: pa.Table) -> bytes:
        """Write a commit's delta under a name that readers ignore, and return the bytes written."""
        data = self.encode(rows)
        self.objects.create(self.staged_path(batch), data)
        return data

    def publish_staged(self, batch: BatchId, data: bytes | None = None) -> None:
        """Publish a staged delta, then remove the staged file; idempotent."""
        self.publish_and_keep(batch, self.objects.get(self.staged_path(batch)) if data is None else data)
        self.discard_staged([batch])

    def publish_and_keep(self, batch: BatchId, data: bytes) -> None:
        """Publish a staged delta with ``data``, and keep the staged file; idempotent."""
        self.publish(derived_ulid(batch.run_id, batch.batch), data, self.staged_path(batch))

    def discard_staged(self, batches: Iterable[BatchId]) -> None:
        """Remove staged deltas."""
        self.objects.delete([self.staged_path(batch) for batch in batches])

    def staged(self) -> list[BatchId]:
        """Return the existing staged deltas, in commit order."""
        names = (info.path.rsplit("/", 1)[-1] for info in self.objects.list(self.directory, recursive=False))
        return sorted(BatchId(*parsed) for name in names if (parsed := parse_staged_name(name)))

    def staged_path(self, batch: BatchId) -> str:
        """Return the path of a staged delta."""
        return self._path(staged_name(batch.run_id, batch.batch))


def parse_staged(name: str) -> BatchId:
    """Return the batch that a staged delta's file name encodes. Raises ValueError for any other name."""
    parsed = parse_staged_name(name)
    if parsed is None:
        raise ValueError(f"not the name of a staged delta: {name!r}")
    return BatchId(*parsed)


def to_table(documents: Sequence[ManifestRow]) -> pa.Table:
    """Return ``documents`` as a table of ``SCHEMA``."""
    columns = {name: [getattr(document, name) for document in documents] for name in SCHEMA.names}
    return pa.table(columns, schema=SCHEMA)


RUNS_FOLD_DELTAS = 16
"""At this many deltas, a run folds them itself: every later run would spend milliseconds on each of them."""
RUNS_FOLD_BYTES = 8 * 1024 * 1024
"""Maximum size of a manifest that a run folds, which takes a fraction of a second: some 100,000 documents."""


def should_fold(log: Log) -> bool:
    """Return whether a run folds the deltas itself, because there are many, and folding them is fast."""
    size_bytes = log.base_bytes + sum(log.delta_bytes)
    return len(log.deltas) >= RUNS_FOLD_DELTAS and size_bytes <= RUNS_FOLD_BYTES


def totals(manifest: pa.Table) -> tuple[int, int]:
    """Return the numbers of indexed ``(documents, lines)``."""
    indexed = pc.is_null(manifest["reason"])
    return int(pc.sum(indexed).as_py() or 0), int(pc.sum(manifest["lines"]).as_py() or 0)

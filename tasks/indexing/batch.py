"""Embed one batch of documents: read, hash, decode, split, embed, write fragments (DESIGN, "Index run", step 4)."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from driftline.storage.deltas import manifest as documents
from driftline.storage.entities import Entity
from driftline.storage.errors import AccessDenied, DriftlineError, ObjectNotFound, SourceNotFound, StorageError
from driftline.storage.model import DocMeta, DocumentState, SkipReason
from driftline.storage.sources.source import FileInfo, Source
from driftline.tasks.embedding.context import TaskContext
from driftline.tasks.indexing.rows import line_rows
from driftline.tasks.scanning.diff import classify
from driftline.tasks.stopwatch import Stopwatch
from driftline.tasks.text import decode, split_documents

RACY_NS = 2_000_000_000
"""A file modified this shortly before it was read may have been changed again within the same tick of its clock."""
READ_ATTEMPTS = 3
HASH_BYTES = 16
_MD5_ETAG = re.compile(r'"?([0-9a-f]{32})"?')


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """Some documents of one source, rows of ``diff.CHANGE_SCHEMA``; with ``dry_run`` only read and classified."""

    source: Source
    entity: Entity
    changes: pa.Table
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What came of a batch; nothing of it is visible before it is committed.

    ``rows`` (documents.SCHEMA) belong into the manifest; ``replaced`` are the paths whose old lines
    have to go; ``fragments`` are references to what was written; ``new_hashes`` are those of new documents;
    ``seconds`` tells what was done how long: ``read`` (hashing included), ``split`` (decoding included), ``embed``,
    ``write`` (forming the rows included).
    """

    rows: pa.Table
    replaced: tuple[str, ...]
    fragments: tuple[str, ...]
    new_hashes: tuple[str, ...]
    states: dict[DocumentState, int]
    skipped: tuple[tuple[str, str], ...]
    documents: int
    lines: int
    bytes_read: int
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Read:
    """A file that was read: its metadata and bytes, and whether it may change again in the same tick of its clock."""

    info: FileInfo
    data: bytes
    racy: bool


def embed_batch(spec: BatchSpec, context: TaskContext) -> BatchResult:
    """Read the documents of ``spec``, embed those whose content is new, and write their lines as fragments."""
    fingerprint = context.model.fingerprint
    kept: list[DocMeta] = []
    texts: list[str] = []
    text_of: list[DocMeta] = []
    replaced: list[str] = []
    new_hashes: list[str] = []
    skipped: list[tuple[str, str]] = []
    states = dict.fromkeys(DocumentState, 0)
    bytes_read = 0
    watch = Stopwatch()
    for change, read, digest in watch.each("read", _read_all(spec)):
        path = change["path"]
        if isinstance(read, SkipReason):
            skipped.append((path, read))
            continue
        bytes_read += len(read.data)
        info = read.info
        meta = DocMeta(
            path, info.size_bytes, info.mtime_ns, info.etag, digest, fingerprint,
            lines=change["lines"] or 0, reason=change["reason"], racy=read.racy,
        )  # fmt: skip
        state = classify(change, digest)
        was_indexed = change["hash"] is not None and change["reason"] is None
        if state in (DocumentState.TOUCHED, DocumentState.UNCHANGED):
            if meta.reason is None:
                states[state] += 1
            else:
                skipped.append((path, meta.reason))
            if state is DocumentState.TOUCHED or not read.racy:
                kept.append(meta)
            continue
        if was_indexed:
            replaced.append(path)
        with watch.phase("split"):
            text, reason = decode(read.data)
        if reason is not None:
            kept.append(replace(meta, lines=0, reason=reason))
            skipped.append((path, reason))
            states[DocumentState.DELETED] += was_indexed
            continue
        if was_indexed:
            states[state] += 1
        else:
            states[DocumentState.NEW] += 1
            new_hashes.append(digest)
        texts.append(text)
        text_of.append(replace(meta, lines=0, reason=None))
    fragments: list[str] = []
    lines = 0
    with watch.phase("split"):
        found = split_documents(texts) if texts else None
    if found is not None:
        lines = len(found)
    if found is not None and not spec.dry_run:
        with watch.phase("embed"):
            vectors = context.embedder.embed(found.text, np.float16)
        counts = np.bincount(found.doc_index.to_numpy(), minlength=len(texts))
        text_of = [replace(meta, lines=int(count)) for meta, count in zip(text_of, counts, strict=True)]
        if lines:
            with watch.phase("write"):
                table = line_rows(spec.entity, text_of, found.doc_index, found.line_number, found.text, vectors)
                fragments = context.workspace.lines(spec.entity, fingerprint).write_fragments(table)
    return BatchResult(
        rows=documents.to_table([*kept, *text_of]),
        replaced=tuple(replaced),
        fragments=tuple(fragments),
        new_hashes=tuple(new_hashes),
        states=states,
        skipped=tuple(skipped),
        documents=len(spec.changes),
        lines=lines,
        bytes_read=bytes_read,
        seconds=watch.seconds,
    )


# -- reading ---------------------------------------------------------------------------------


def _read_all(spec: BatchSpec) -> Iterator[tuple[dict[str, Any], _Read | SkipReason, str]]:
    """Each document with its bytes and their hash, or with the reason why there are none."""
    changes = spec.changes.to_pylist()
    found = _reads_local(spec, changes) if spec.source.is_local else _reads_remote(spec, changes)
    for change, read in zip(changes, found, strict=True):
        if isinstance(read, SkipReason):
            yield change, read, ""
        else:
            yield change, read, hashlib.blake2b(read.data, digest_size=HASH_BYTES).hexdigest()


def _reads_local(spec: BatchSpec, changes: Sequence[dict[str, Any]]) -> Iterator[_Read | SkipReason]:
    return (_read_local(spec.source, change) for change in changes)


def _reads_remote(spec: BatchSpec, changes: Sequence[dict[str, Any]]) -> Iterator[_Read | SkipReason]:
    for change, data in zip(changes, spec.source.read_many([c["path"] for c in changes]), strict=True):
        if isinstance(data, (ObjectNotFound, SourceNotFound)):
            yield SkipReason.UNSTABLE
        elif isinstance(data, AccessDenied):
            yield SkipReason.UNREADABLE
        elif isinstance(data, DriftlineError):
            raise data
        else:
            yield _as_listed(change, data)


def _read_local(source: Source, change: dict[str, Any]) -> _Read | SkipReason:
    """Read a local file between two equal stats."""
    path = change["path"]
    for _ in range(READ_ATTEMPTS):
        started_ns = time.time_ns()
        try:
            before = source.stat(path)
            data = source.read(path)
            after = source.stat(path)
        except ObjectNotFound:
            return SkipReason.UNSTABLE
        except (AccessDenied, SourceNotFound, StorageError):
            return SkipReason.UNREADABLE
        if before is None or after is None:
            return SkipReason.UNSTABLE
        if before == after and len(data) == after.size_bytes:
            as_listed = (after.size_bytes, after.mtime_ns) == (change["size_bytes"], change["mtime_ns"])
            info = replace(after, path=path, etag=change["etag"] if as_listed else "")
            return _Read(info, data, racy=not info.etag and after.mtime_ns > started_ns - RACY_NS)
    return SkipReason.UNSTABLE


def _as_listed(change: dict[str, Any], data: bytes) -> _Read:
    """What a store returned, under the etag of the listing unless it is seen to be another version."""
    digest = _MD5_ETAG.fullmatch(change["etag"])
    same = len(data) == change["size_bytes"] and (
        digest is None or hashlib.md5(data, usedforsecurity=False).hexdigest() == digest[1]
    )
    info = FileInfo(change["path"], len(data), change["mtime_ns"], change["etag"] if same else "")
    return _Read(info, data, racy=not info.etag)

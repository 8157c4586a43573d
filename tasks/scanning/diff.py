"""Compare a listing with the manifest: a pure function over Arrow tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.documents import DocumentState
from driftline.tasks.extraction.archives import OF_MEMBERS
from driftline.tasks.extraction.extractor import ReadSettings, outdated, split_encoding

LISTING_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size_bytes", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("etag", pa.string()),
        ("ctime_ns", pa.int64()),
        ("inode", pa.int64()),
    ]
)
"""The columns of a listing. Values that the source does not have are "" for ``etag`` and 0 for numbers."""
_KEPT = [
    ("hash", pa.string()),
    ("fingerprint", pa.string()),
    ("lines", pa.int32()),
    ("reason", pa.string()),
    ("extractor", pa.string()),
]
MANIFEST_SCHEMA = pa.schema([*LISTING_SCHEMA, *_KEPT, ("racy", pa.bool_())])
"""The columns of a manifest row; ``reason`` is null for indexed documents."""

CHANGE_SCHEMA = pa.schema(
    [*MANIFEST_SCHEMA, ("metadata_differs", pa.bool_()), ("must_embed", pa.bool_()), ("encoding", pa.string())],
)
"""A listed file joined with its manifest row.

``hash`` to ``reason`` come from the manifest and are null for new files. The rest comes from the listing, so for
unchanged content, the columns of MANIFEST_SCHEMA are the file's next manifest row. ``encoding`` is the Python codec
that git declares for the file, or null."""

RACY_NS = 2_000_000_000
"""The age below which a file is racy: it may change again within the same clock tick."""

CTIME_TICK_NS = 20_000_000
"""The same for ctimes: the kernel's clock for them ticks at least every 10 ms."""

FEW_INODES = 10
"""Up to this many files that differ only in the inode are always read, even if they are most of the listing."""

_AS_TEXT = ReadSettings()
DELETED_SCHEMA = pa.schema([("path", pa.string()), *_KEPT])
SKIPPED_SCHEMA = pa.schema([("path", pa.string()), ("reason", pa.string())])


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences between a listing and the manifest.

    ``new`` and ``candidates`` (CHANGE_SCHEMA) must be read and classified by content. ``retouched`` (CHANGE_SCHEMA)
    files have different metadata, but their etag shows the same content. ``deleted`` (DELETED_SCHEMA) files are missing
    from the listing. ``skipped`` (SKIPPED_SCHEMA) files are unchanged and not indexed. ``unchanged`` counts the other
    unchanged files. Tables are in listing order; ``deleted`` is in manifest order.
    """

    new: pa.Table
    candidates: pa.Table
    retouched: pa.Table
    deleted: pa.Table
    skipped: pa.Table
    unchanged: int


def diff(
    listing: pa.Table,
    manifest: pa.Table,
    fingerprint: str,
    *,
    now_ns: int,
    full: bool = False,
    how: ReadSettings = _AS_TEXT,
    encodings: Mapping[str, str] | None = None,
) -> Diff:
    """Compare ``listing`` (LISTING_SCHEMA) with ``manifest`` (MANIFEST_SCHEMA), each with unique paths.

    Content is treated as unchanged, without reading it, if sizes and etags are equal or, if one side has no etag, if
    sizes, mtimes, ctimes and inodes are equal. Programs can set an mtime, but not a ctime. Some network file systems
    renumber their files on each mount, so inodes are ignored if most files differ only in the inode. A file whose git
    etag is gone is dirty. Git compares whole seconds, so its etag proves nothing about a file with the same mtime but a
    different ctime or inode. Files are also candidates if times are unknown (0), the row is racy, the fingerprint, the
    extractor, the declared encoding (``encodings`` maps paths to them) or another read setting in ``how`` differs, or
    ``full`` is set; except for the first two reasons, they are re-embedded even if the content is the same. ``now_ns``
    is the start of the listing: files that may have changed since then are marked as racy. Fastest if both tables are
    sorted by path.
    """
    encodings = encodings or {}
    listing = listing.combine_chunks().append_column("racy", _racy(listing, now_ns))
    if not len(manifest):  # saves time in first runs over many small sources
        none = CHANGE_SCHEMA.empty_table()
        return Diff(_new(listing, encodings), none, none, DELETED_SCHEMA.empty_table(), SKIPPED_SCHEMA.empty_table(), 0)
    manifest = manifest.combine_chunks()
    row = _align(listing["path"], manifest["path"])
    known = row >= 0
    seen = np.zeros(len(manifest), dtype=bool)
    seen[row[known]] = True

    in_step = known.all() and np.array_equal(row, np.arange(len(manifest)))
    old = manifest if in_step else manifest.take(pa.array(row[known]))
    now = listing if in_step else listing.filter(pa.array(known))
    same_size = _numpy(pc.equal(now["size_bytes"], old["size_bytes"]))
    same_times, same_inode = _same_times(now, old), _same_or_unknown(now["inode"], old["inode"])
    other_inode = same_size & same_times & ~same_inode
    if _are_renumbered(other_inode, same_size & same_times):
        same_inode |= other_inode
    same_etag = _numpy(pc.equal(now["etag"], old["etag"]))
    comparable = _numpy(pc.and_(pc.not_equal(now["etag"], ""), pc.not_equal(old["etag"], "")))
    was_clean = _numpy(pc.and_(pc.equal(now["etag"], ""), pc.starts_with(old["etag"], "git:")))
    dated = _numpy(pc.or_(pc.not_equal(now["mtime_ns"], 0), pc.not_equal(now["ctime_ns"], 0)))
    same_status = same_times & same_inode
    other_mtime = _numpy(pc.not_equal(now["mtime_ns"], old["mtime_ns"]))
    by_etag = same_etag & (same_status | other_mtime)
    same_content = same_size & np.where(comparable, by_etag, same_status & dated & ~was_clean)
    metadata_differs = ~(same_size & same_status & (same_etag | ~comparable))

    must_embed = _other_model(old, fingerprint) | full
    must_embed |= outdated(old["path"], old["extractor"], how, encodings)
    candidate = ~same_content | _numpy(old["racy"]) | must_embed
    retouched = ~candidate & metadata_differs
    skipped = ~candidate & _numpy(pc.is_valid(old["reason"]))

    return Diff(
        new=_new(listing.filter(pa.array(~known)), encodings),
        candidates=_changes(now, old, candidate, metadata_differs, must_embed, encodings),
        retouched=_changes(now, old, retouched, metadata_differs, must_embed, encodings),
        deleted=manifest.select(DELETED_SCHEMA.names).filter(pa.array(~seen)).cast(DELETED_SCHEMA),
        skipped=old.select(SKIPPED_SCHEMA.names).filter(pa.array(skipped)).cast(SKIPPED_SCHEMA),
        unchanged=int(np.count_nonzero(~candidate & ~retouched & ~skipped)),
    )


def recorded_encodings(manifest: pa.Table) -> dict[str, str]:
    """Return the encodings that git declared for the files of ``manifest`` when they were read."""
    rows = zip(manifest["path"].to_pylist(), manifest["extractor"].to_pylist(), strict=True)
    found = ((path, split_encoding(mark or "")[1]) for path, mark in rows)
    return {path: codec for path, codec in found if codec is not None}


def is_inside(manifest: pa.Table) -> pa.ChunkedArray:
    """Return which manifest rows are archive members."""
    etags = pc.fill_null(manifest["etag"], "")
    return pc.or_(*(pc.starts_with(etags, beginning) for beginning in OF_MEMBERS))


def joined(files: Diff, members: Diff) -> Diff:
    """Combine the differences of files and of archive members."""
    tables = {
        name: pa.concat_tables([getattr(files, name), getattr(members, name)])
        for name in ("new", "candidates", "retouched", "deleted", "skipped")
    }
    return Diff(**tables, unchanged=files.unchanged + members.unchanged)


def classify(candidate: Mapping[str, Any], content_hash: str) -> DocumentState:
    """Return the state of a CHANGE_SCHEMA row (as a mapping) once its content is known.

    ``UNCHANGED`` is a racy row with the same content and metadata. A file that must be re-embedded is always
    ``CHANGED``.
    """
    if candidate["hash"] is None:
        return DocumentState.NEW
    if candidate["must_embed"] or candidate["hash"] != content_hash:
        return DocumentState.CHANGED
    return DocumentState.TOUCHED if candidate["metadata_differs"] else DocumentState.UNCHANGED


def _other_model(old: pa.Table, fingerprint: str) -> NDArray[np.bool_]:
    """Return which files have another model's vectors; skipped files have no vectors."""
    unmarked_skip = _numpy(pc.and_(pc.is_valid(old["reason"]), pc.equal(old["fingerprint"], "")))
    return _numpy(pc.not_equal(old["fingerprint"], fingerprint)) & ~unmarked_skip


def _align(paths: pa.ChunkedArray, known: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return each path's row in ``known``, or -1."""
    if paths.equals(known):
        return np.arange(len(known), dtype=np.int64)
    rows = pc.fill_null(pc.index_in(paths, value_set=known), -1)
    return np.asarray(rows.to_numpy(), dtype=np.int64)


def _same_times(now: pa.Table, old: pa.Table) -> NDArray[np.bool_]:
    return _numpy(pc.equal(now["mtime_ns"], old["mtime_ns"])) & _same_or_unknown(now["ctime_ns"], old["ctime_ns"])


def _same_or_unknown(now: pa.ChunkedArray, old: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return for which rows a number equals the manifest's, or is 0 (unknown) there."""
    return _numpy(pc.fill_null(pc.or_(pc.equal(now, old), pc.equal(old, 0)), False))


def _are_renumbered(other_inode: NDArray[np.bool_], comparable: NDArray[np.bool_]) -> bool:
    """Return whether the file system renumbered its files: too many ``comparable`` files have ``other_inode``."""
    others = np.count_nonzero(other_inode)
    return bool(others > FEW_INODES and 2 * others > np.count_nonzero(comparable))


def _racy(listing: pa.Table, now_ns: int) -> pa.ChunkedArray:
    """Return which files are racy. A store's etag detects later changes; git's etag is older than the read."""
    young = pc.or_(
        pc.greater(listing["mtime_ns"], now_ns - RACY_NS), pc.greater(listing["ctime_ns"], now_ns - CTIME_TICK_NS)
    )
    unsure = pc.or_(pc.equal(listing["etag"], ""), pc.starts_with(listing["etag"], "git:"))
    return pc.and_(young, unsure)


def _new(listing: pa.Table, encodings: Mapping[str, str]) -> pa.Table:
    kept = [pa.nulls(len(listing), kind) for _, kind in _KEPT]
    flags = [pa.array(np.ones(len(listing), dtype=bool))] * 2
    columns = [listing[name] for name in LISTING_SCHEMA.names]
    flags.append(_encodings(listing["path"], encodings))
    return pa.Table.from_arrays([*columns, *kept, listing["racy"], *flags], schema=CHANGE_SCHEMA)


def _encodings(paths: pa.ChunkedArray, encodings: Mapping[str, str]) -> pa.Array:
    found = [encodings.get(path) for path in paths.to_pylist()] if encodings else None
    return pa.array(found, pa.string()) if found is not None else pa.nulls(len(paths), pa.string())


def _changes(
    now: pa.Table,
    old: pa.Table,
    chosen: NDArray[np.bool_],
    metadata_differs: NDArray[np.bool_],
    must_embed: NDArray[np.bool_],
    encodings: Mapping[str, str],
) -> pa.Table:
    rows = pa.array(np.flatnonzero(chosen))
    columns = [now[name].take(rows) for name in LISTING_SCHEMA.names]
    columns += [old[name].take(rows) for name, _ in _KEPT]
    columns.append(now["racy"].take(rows))
    flags = [pa.array(metadata_differs[chosen]), pa.array(must_embed[chosen])]
    return pa.Table.from_arrays([*columns, *flags, _encodings(columns[0], encodings)], schema=CHANGE_SCHEMA)


def _numpy(mask: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(mask.to_numpy(), dtype=bool)

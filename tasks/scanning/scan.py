"""Scan a source in partitions, on any worker: list each partition and compare it with its slice of the manifest."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.defaults import DEFAULT_MAX_DOCUMENT_BYTES, DEFAULT_MAX_FILE_BYTES, Redaction
from driftline.storage.deltas.delta_index import after_prefix
from driftline.storage.deltas.manifest import SCHEMA, Manifest
from driftline.storage.documents import (
    INSIDE,
    NAMED_LIKE_ARCHIVE,
    DocumentState,
    SkipReason,
    container_of,
    content_hash,
    holds_records,
)
from driftline.storage.entities import Entity
from driftline.storage.errors import (
    AccessDenied,
    BadEntity,
    ModelNotFound,
    ObjectNotFound,
    UsageError,
)
from driftline.storage.sources.commit_tree import TreeEntry
from driftline.storage.sources.content_encoding import StoredBytes
from driftline.storage.sources.source import FileInfo, RepositorySource, Source, open_source
from driftline.storage.workspace.records import SourceRecord, WorkspaceConfig
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.models import fingerprint, is_earlier_version, resolve_model
from driftline.tasks.extraction.archives import Member, OpenedArchive, is_member_etag, members_of, opened_mark
from driftline.tasks.extraction.extractor import NAMED_LIKE_DOCUMENT, ReadSettings
from driftline.tasks.extraction.process import Refused
from driftline.tasks.git.encodings import declared_encodings
from driftline.tasks.git.work_tree import TrackedFiles, clean_blobs, find_work_tree
from driftline.tasks.scanning.diff import (
    LISTING_SCHEMA,
    SKIPPED_SCHEMA,
    Diff,
    classify,
    diff,
    is_inside,
    joined,
    recorded_encodings,
)
from driftline.tasks.scanning.overlap import Claim, SourcesByFolder, claimed
from driftline.tasks.scanning.path_patterns import (
    NEVER_ENTERED,
    OUR_IGNORE_FILE,
    IgnoreFileLimits,
    Matcher,
    OwnIgnoreFiles,
    Rules,
)
from driftline.tasks.scanning.walk import Listing, Subtree, Walk, above_and_self
from driftline.tasks.task_context import TaskContext
from driftline.tasks.text import MAX_TEXT_BYTES

log = logging.getLogger(__name__)

_SUBTREES_PER_PARTITION = 4
"""Use more subtrees than partitions so that partitions have similar sizes."""
_MAX_PLAN_DEPTH = 4
_MOST_FOLDERS_PER_PARTITION = 16
"""The limit for buckets: each folder costs at least one request, but a flat listing has pages of 1,000."""

ReadManifest = Callable[[Sequence[str]], pa.Table]
"""Reads the manifest rows (MANIFEST_SCHEMA) of paths under any of the prefixes, and possibly more."""


def rules_of(record: SourceRecord) -> Rules:
    """Return the filters of a source."""
    return Rules(include=record.include, exclude=record.exclude, archives=record.archives)


@dataclass(frozen=True, slots=True)
class ScanSpec:
    """The inputs of a scan; picklable. Files covered by ``claims`` belong to other sources.

    Documents that the last run read with another ``redaction`` or ``outputs`` setting are reread. If ``archives`` is
    set, the files inside archives and email are also listed.
    """

    source: Source
    fingerprint: str
    subtrees: tuple[Subtree, ...] = (Subtree(),)
    rules: Rules = field(default_factory=Rules)
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES
    max_document_bytes: int = DEFAULT_MAX_DOCUMENT_BYTES
    full: bool = False
    claims: tuple[Claim, ...] = ()
    redaction: Redaction = "off"
    archives: bool = False
    outputs: bool = False

    @classmethod
    def of(cls, source: Source, record: SourceRecord, fingerprint: str, claims: tuple[Claim, ...]) -> Self:
        """Return the scan of a source with the settings in its record."""
        return cls(
            source,
            fingerprint,
            rules=rules_of(record),
            max_file_bytes=record.max_file_bytes,
            max_document_bytes=record.max_document_bytes,
            claims=claims,
            redaction=record.redact,
            archives=record.archives,
            outputs=record.notebook_outputs,
        )

    @property
    def most_bytes(self) -> int:
        """The size up to which documents and record files are read whole."""
        return min(max(self.max_file_bytes, self.max_document_bytes), MAX_TEXT_BYTES)

    @property
    def how(self) -> ReadSettings:
        """How the run reads files; if the settings changed, it lists each archive's members again."""
        settings = self.rules, self.max_file_bytes, self.max_document_bytes, self.claims
        return ReadSettings(
            self.redaction, self.most_bytes, opened_mark(settings) if self.archives else "", self.outputs
        )


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The result of a scan.

    ``skipped`` (SKIPPED_SCHEMA) lists every file that is not indexed; an ignored folder has one row, with a trailing
    slash. ``listed`` counts the compared files, and ``known`` counts the files in the manifest. ``complete`` is False
    if folders could not be read: they are in ``skipped``, and ``diff.deleted`` has none of their files. ``seconds`` is
    the worker's time; ``too_large`` maps files over the limit to their sizes. ``opened`` contains the archives and
    email whose members were listed, and ``container_only_paths`` those that are not documents themselves, because no
    pattern includes them.
    """

    diff: Diff
    skipped: pa.Table
    listed: int
    known: int
    complete: bool
    seconds: float = 0.0
    too_large: Mapping[str, int] = field(default_factory=dict)
    opened: Mapping[str, OpenedArchive] = field(default_factory=dict)
    container_only_paths: frozenset[str] = frozenset()


def plan_partitions(source: Source, n: int, rules: Rules | None = None) -> list[tuple[Subtree, ...]]:
    """Split the source into about ``n`` disjoint parts that cover it, including folders created later.

    A bucket is split only as long as that costs few requests.
    """
    if n <= 1 or isinstance(source, RepositorySource):  # git lists a whole commit in one call
        return [(Subtree(),)]
    subfolders = _subfolders(source, rules or Rules())
    whole, split = [""], list[Subtree]()
    for _ in range(_MAX_PLAN_DEPTH):
        if len(whole) >= n * _SUBTREES_PER_PARTITION:
            break
        below: dict[str, list[str]] = {}
        folders = subfolders(whole)
        if not source.is_local and not 0 < len(folders) <= n * _MOST_FOLDERS_PER_PARTITION:
            break
        for folder in sorted(folders):
            below.setdefault(folder[: folder.rindex("/", 0, -1) + 1] if "/" in folder[:-1] else "", []).append(folder)
        deeper: list[str] = []
        for prefix in whole:
            children = tuple(below.get(prefix, ()))
            split.append(Subtree(prefix, children))
            deeper.extend(children)
        whole = deeper
    subtrees = [*split, *map(Subtree, whole)]
    return [part for part in (tuple(subtrees[i::n]) for i in range(n)) if part]


def scan(spec: ScanSpec, read_manifest: ReadManifest, *, now_ns: int) -> ScanResult:
    """List the subtrees of ``spec`` and compare them with the manifest. Raises StorageError."""
    if isinstance(spec.source, RepositorySource):
        listing = _list_commit(spec, spec.source)
    else:
        listing = _list_local(spec) if spec.source.is_local else _list_remote(spec)
    manifest = read_manifest([subtree.prefix for subtree in spec.subtrees])
    if spec.subtrees != (Subtree(),):
        manifest = manifest.filter(pa.array(_covered(manifest["path"], spec.subtrees)))
    return _compare(spec, listing, manifest, now_ns)


def scan_paths(
    spec: ScanSpec,
    paths: Sequence[str],
    read_manifest: ReadManifest,
    *,
    now_ns: int,
    read_members: ReadManifest | None = None,
) -> ScanResult:
    """Like ``scan``, for single files. A path in the manifest that is not a file is treated as deleted.

    ``read_members`` reads the rows under archive prefixes.
    """
    files = sorted({path for path in paths if path and not path.endswith("/")})
    if spec.archives:
        outer = {container_of(path) for path in files if INSIDE in path}
        files = sorted({*files, *(path for path in outer if is_container(path))})
    if isinstance(spec.source, RepositorySource):
        listing = _list_commit(spec, spec.source, files)
    elif spec.source.is_local:
        listing = _list_local(spec, files)
    else:
        listing = Listing()
        _add_remote(listing, spec, [info for info in map(spec.source.stat, files) if info is not None])
    manifest = read_manifest(files)
    manifest = manifest.filter(pc.is_in(manifest["path"], pa.array(files, pa.string())))
    containers = [path + INSIDE for path in files if is_container(path)]
    if containers and read_members is not None:
        inside = read_members(containers)
        manifest = pa.concat_tables([manifest.filter(pc.invert(is_inside(manifest))), inside.filter(is_inside(inside))])
    return _compare(spec, listing, manifest, now_ns)


def _compare(spec: ScanSpec, listing: Listing, manifest: pa.Table, now_ns: int) -> ScanResult:
    table, known = listing.table(), len(manifest)
    table, large = _fitting(spec, listing, table)
    kept = [*listing.unread, *listing.unsure]
    if kept and len(manifest):
        unread = tuple(Subtree(path) for path in kept)
        manifest = manifest.filter(pa.array(~_covered(manifest["path"], unread)))
    inside = files = manifest
    if len(manifest):  # saves time in first runs over many small sources
        of_members = is_inside(manifest)
        inside, files = manifest.filter(of_members), manifest.filter(pc.invert(of_members))
    how, full = spec.how, spec.full
    encodings = listing.encodings if listing.encodings is not None else recorded_encodings(files)
    result = diff(table, files, spec.fingerprint, now_ns=now_ns, full=full, how=how, encodings=encodings)
    opened: dict[str, OpenedArchive] = {}
    listed = len(table)
    if spec.archives or len(inside):
        members, inside, opened = _open(spec, listing, table, result, inside)
        changes = diff(members, inside, spec.fingerprint, now_ns=now_ns, full=full, how=how)
        result, listed = joined(result, changes), listed + len(members)
    skipped = pa.concat_tables([listing.skipped_table(), result.skipped]).cast(SKIPPED_SCHEMA)
    sizes = dict(zip(large["path"].to_pylist(), large["size_bytes"].to_pylist(), strict=True))
    container_only_paths = _container_only(spec, table["path"]) if spec.archives and spec.rules.include else frozenset()
    return ScanResult(
        result,
        skipped.sort_by("path"),
        listed,
        known,
        not listing.unread,
        too_large=sizes,
        opened=opened,
        container_only_paths=container_only_paths,
    )


def _fitting(spec: ScanSpec, listing: Listing, table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Split the files of ``table`` that belong to the source into those that are small enough and those that are too
    large.
    """
    if spec.claims:
        table = table.filter(pa.array(~claimed(table["path"].combine_chunks(), spec.claims)))
    large = _too_large(spec, table)
    if not len(large):
        return table, large
    table = table.filter(pc.invert(pc.is_in(table["path"], large["path"].combine_chunks())))
    unopened = [not spec.archives and is_container(path) for path in large["path"].to_pylist()]
    listing.skip(SkipReason.ARCHIVE, *large.filter(pa.array(unopened, pa.bool_()))["path"].to_pylist())
    large = large.filter(pa.array([not each for each in unopened], pa.bool_()))
    listing.skip(SkipReason.TOO_LARGE, *large["path"].to_pylist())
    return table, large


# -- archives ------------------------------------------------------------------------------------


def is_container(path: str) -> bool:
    """Return whether a file name looks like an archive or email that can be opened as a folder."""
    return INSIDE not in path and re.search(NAMED_LIKE_ARCHIVE, path) is not None


def _container_only(spec: ScanSpec, paths: pa.ChunkedArray) -> frozenset[str]:
    named = pa.array([path for path in paths.to_pylist() if is_container(path)], pa.string())
    left_out = Matcher.of(replace(spec.rules, archives=False)).excluded(named)
    return frozenset(named.filter(pa.array(left_out)).to_pylist())


def _open(
    spec: ScanSpec, listing: Listing, table: pa.Table, result: Diff, inside: pa.Table
) -> tuple[pa.Table, pa.Table, dict[str, OpenedArchive]]:
    """Return the members of archives in ``table`` (LISTING_SCHEMA), and their manifest rows.

    New and changed archives are read. Members of unchanged archives come from the manifest rows ``inside``; members of
    currently unreadable archives are in neither table. The third result holds the archives that were read.
    """
    changes = (path for part in (result.new, result.candidates) for path in part["path"].to_pylist())
    changed = {path for path in changes if is_container(path)} if spec.archives else set[str]()
    there = {path for path in table["path"].to_pylist() if is_container(path)} if spec.archives else set[str]()
    containers = pa.array([container_of(path) for path in inside["path"].to_pylist()], pa.string())
    unchanged = inside.filter(pc.is_in(containers, pa.array(sorted(there - changed), pa.string())))
    found, opened, unread = list[Member](), dict[str, OpenedArchive](), list[str]()
    for path in sorted(changed):
        try:
            data = spec.source.read(path)
        except (AccessDenied, ObjectNotFound):  # the batch that reads it reports the reason
            unread.append(path)
            continue
        if isinstance(data, StoredBytes) and data.is_unreadable:
            opened[path] = OpenedArchive(content_hash(data), SkipReason.CONTENT_ENCODING)
            continue
        try:
            found += members_of(path, data)
            opened[path] = OpenedArchive(content_hash(data))
        except Refused as refused:
            opened[path] = OpenedArchive(content_hash(data), refused.reason)
    new = _admitted(spec, listing, found, table["path"])
    unknown = [0] * len(new)
    rows = [[each.path for each in new], [each.size_bytes for each in new], unknown, [each.etag for each in new]]
    listed = pa.table([*rows, unknown, unknown], LISTING_SCHEMA)
    members = pa.concat_tables([unchanged.select(LISTING_SCHEMA.names).cast(LISTING_SCHEMA), listed])
    inside = inside.filter(pc.invert(pc.is_in(containers, pa.array(unread, pa.string())))) if unread else inside
    return members.sort_by("path"), inside.sort_by("path"), opened


_UNNAMED = (SkipReason.ODD_KEY, SkipReason.BAD_NAME, SkipReason.REPLACED)
"""Reasons why members are not recorded in the manifest: their names are not unique, or not plain paths."""


def _admitted(spec: ScanSpec, listing: Listing, members: Sequence[Member], files: pa.ChunkedArray) -> list[Member]:
    """Return the members that pass the rules, each with the reason if it must not be indexed."""
    for member in members:
        if member.reason is not None and member.reason in _UNNAMED:
            listing.skip(member.reason, member.path)
    members = [member for member in members if member.reason not in _UNNAMED]
    paths, matcher = pa.array([member.path for member in members], pa.string()), Matcher.of(spec.rules)
    secret, excluded = matcher.secret(paths), matcher.excluded(paths)
    excluded |= claimed(paths, spec.claims)
    # A folder may be named like an archive followed by "!", and contain a file with a member's path.
    excluded |= pc.is_in(paths, files.combine_chunks()).to_numpy(zero_copy_only=False)

    def judged(member: Member, *, is_secret: bool) -> Member:
        is_large = member.size_bytes > _limit(spec, member.path)
        reason = SkipReason.SECRET if is_secret else SkipReason.TOO_LARGE if is_large else None
        return member if member.reason is not None else replace(member, reason=reason)

    kept = zip(members, secret, excluded, strict=True)
    return [judged(member, is_secret=is_secret) for member, is_secret, is_excluded in kept if not is_excluded]


def has_own_limit(path: str) -> bool:
    """Return whether ``max_document_bytes`` is the limit for files with this name."""
    return holds_records(path) or any(re.search(each, path) for each in (NAMED_LIKE_DOCUMENT, NAMED_LIKE_ARCHIVE))


def _too_large(spec: ScanSpec, table: pa.Table) -> pa.Table:
    """Return the files of ``table`` that exceed the size limit for their name."""
    files = table.filter(pc.greater(table["size_bytes"], min(spec.max_file_bytes, MAX_TEXT_BYTES)))
    paths, sizes = files["path"].to_pylist(), files["size_bytes"].to_pylist()
    large = [size > _limit(spec, path) for path, size in zip(paths, sizes, strict=True)]
    return files.filter(pa.array(large, pa.bool_()))


def _limit(spec: ScanSpec, path: str) -> int:
    if holds_records(path):
        return MAX_TEXT_BYTES if INSIDE not in path else spec.most_bytes
    is_closed = not spec.archives and is_container(path) and not path.lower().endswith(_MAIL)
    return spec.most_bytes if has_own_limit(path) and not is_closed else min(spec.max_file_bytes, MAX_TEXT_BYTES)


_MAIL = (".eml", ".mbox")


def _covered(paths: pa.ChunkedArray, subtrees: Sequence[Subtree]) -> NDArray[np.bool_]:
    """Return which paths are in one of ``subtrees``, in any order, at the cost of a binary search for each path."""
    prefixes = _prefixes_of(paths, [subtree.prefix for subtree in subtrees])
    # Each folder in ``without`` is below the prefix of its subtree, and no other such folder is.
    return np.asarray(prefixes > _prefixes_of(paths, [folder for subtree in subtrees for folder in subtree.without]))


def _prefixes_of(paths: pa.ChunkedArray, prefixes: Sequence[str]) -> NDArray[np.int64]:
    """Return how many of ``prefixes`` each path starts with: ranges that begin at or before it, minus ended ones."""
    count = np.zeros(len(paths), np.int64)
    ends = [end for end in map(after_prefix, prefixes) if end is not None]
    for sign, bounds in ((1, prefixes), (-1, ends)):
        positions = pc.search_sorted(pa.array(sorted(bounds), pa.string()), paths, side="right")
        count += sign * positions.to_numpy().astype(np.int64)
    return count


def _list_local(spec: ScanSpec, paths: Sequence[str] | None = None) -> Listing:
    listing = _list_files(spec, paths)
    listing.encodings = declared_encodings(spec.source.uri, listing.paths, listing.attributed)
    return listing


def _list_files(spec: ScanSpec, paths: Sequence[str] | None) -> Listing:
    work_tree = find_work_tree(spec.source.uri)
    elsewhere = frozenset(claim.prefix for claim in spec.claims if claim.is_whole)
    only = None if paths is None else above_and_self(paths)
    subtrees = spec.subtrees if paths is None else (Subtree(),)
    if work_tree is None:
        return Walk(spec.source.uri, spec.rules, None, only, elsewhere).run(subtrees)
    prefixes = [subtree.prefix for subtree in spec.subtrees] if paths is None else paths
    with TrackedFiles(work_tree.repository, work_tree.root, prefixes) as tracked:
        tracked.start()
        listing = Walk(spec.source.uri, spec.rules, work_tree, only, elsewhere, tracked).run(subtrees)
        # after the walk, as clean_blobs requires
        blobs = clean_blobs(work_tree, prefixes, tracked) if listing.paths else None
    if blobs is not None:
        rows = pc.index_in(pa.array(listing.paths, pa.string()).cast(pa.binary()), value_set=blobs["path"])
        etags = blobs["etag"].combine_chunks().cast(pa.string()).take(rows)
        listing.etags = pc.fill_null(etags, "").to_pylist()
    return listing


def _list_remote(spec: ScanSpec) -> Listing:
    listing = Listing()
    source = spec.source
    for subtree in spec.subtrees:
        if not subtree.without:
            _add_remote(listing, spec, source.list(subtree.prefix, recursive=True))
            continue
        folders, files = source.list_top(subtree.prefix)
        _add_remote(listing, spec, files)
        for folder in set(folders).difference(subtree.without):
            if _is_plain(folder):
                _add_remote(listing, spec, source.list(folder, recursive=True))
            else:
                listing.skip(SkipReason.ODD_KEY, folder)
    return listing


def _list_commit(spec: ScanSpec, source: RepositorySource, paths: Sequence[str] | None = None) -> Listing:
    """List the files of a commit, or only those at ``paths``, like a scan of its clean working tree."""
    listing = Listing()
    above = {"", *(name for name in above_and_self(paths or ()) if name.endswith("/"))}
    rules = [f"{folder}{OUR_IGNORE_FILE}" for folder in above]
    entries = source.tree.entries(None if paths is None else [*{*paths, *rules}])
    files = [entry for entry in entries if entry.reason is None and NEVER_ENTERED.isdisjoint(entry.path.split("/"))]
    ours = _own_ignore_files(source, [entry for entry in files if entry.path.rpartition("/")[2] == OUR_IGNORE_FILE])
    if paths is not None:
        selected = set(paths)
        files = [entry for entry in files if entry.path in selected]
        entries = [entry for entry in entries if entry.path in selected]
    for entry in entries:
        if entry.reason is not None:
            listing.skip(entry.reason, entry.path)
    _add_files(listing, spec, [FileInfo(e.path, e.size_bytes, 0, e.etag) for e in files], ours)
    return listing


def _own_ignore_files(source: RepositorySource, entries: Sequence[TreeEntry]) -> OwnIgnoreFiles:
    """Read the ignore files of a commit, outer folders first, within the limits of a scan."""
    limits = IgnoreFileLimits()
    by_depth = sorted(entries, key=lambda entry: (entry.path.count("/"), entry.path))
    admitted = [entry for entry in by_depth if limits.admit(entry.path, entry.size_bytes)]
    contents = source.tree.blobs([entry.blob for entry in admitted]) if admitted else []
    paths = (entry.path for entry in admitted)
    return OwnIgnoreFiles((path, limits.lines(path, data or b"")) for path, data in zip(paths, contents, strict=True))


def _add_remote(listing: Listing, spec: ScanSpec, infos: Iterable[FileInfo]) -> None:
    files = []
    for info in infos:
        if _is_plain(info.path):
            files.append(info)
        else:
            listing.skip(SkipReason.ODD_KEY, info.path)
    _add_files(listing, spec, files, OwnIgnoreFiles(()))


def _add_files(listing: Listing, spec: ScanSpec, files: list[FileInfo], ours: OwnIgnoreFiles) -> None:
    """Add the files that pass the caller's rules and the source's ignore files, and skip the others."""
    matcher = Matcher.of(spec.rules)
    paths = pa.array([info.path for info in files], pa.string())
    secret, excluded = ours.admitted(matcher.secret(paths), paths), matcher.excluded(paths) | ours.excluded(paths)
    listing.skip(SkipReason.SECRET, *(files[i].path for i in np.flatnonzero(secret)))
    listing.skip(SkipReason.EXCLUDED, *(files[i].path for i in np.flatnonzero(excluded & ~secret)))
    kept = [files[i] for i in np.flatnonzero(~excluded & ~secret)]
    listing.paths.extend(info.path for info in kept)
    listing.sizes.extend(info.size_bytes for info in kept)
    listing.mtimes.extend(info.mtime_ns for info in kept)
    listing.etags.extend(info.etag for info in kept)
    listing.ctimes.extend(info.ctime_ns for info in kept)
    listing.inodes.extend(info.inode for info in kept)


def _is_plain(key: str) -> bool:
    """Return whether a key is a canonical path inside the source."""
    parts = key.removesuffix("/").split("/")
    return not any(part in ("", ".", "..") for part in parts) and "?versionId=" not in key and "\0" not in key


def _subfolders(source: Source, rules: Rules) -> Callable[[Sequence[str]], list[str]]:
    if source.is_local:
        return Walk(source.uri, rules, find_work_tree(source.uri)).subfolders
    return lambda prefixes: _subfolders_remote(source, prefixes)


def _subfolders_remote(source: Source, prefixes: Sequence[str]) -> list[str]:
    """Return the direct subfolders of ``prefixes``; empty if a listing has more than one page."""
    subfolders: list[str] = []
    for prefix in prefixes:
        folders, _, complete = source.first_look(prefix)
        if not complete:
            return []
        subfolders += filter(_is_plain, folders)
    return subfolders


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """A part of a source; ``now_ns`` is the start of the scan. With ``paths``, only these files are scanned."""

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

    def read(prefixes: Sequence[str]) -> pa.Table:
        return manifest.read(prefixes, columns=SCHEMA.names)

    if spec.paths is not None:
        return scan_paths(spec.scan, spec.paths, manifest.get, now_ns=spec.now_ns, read_members=read)
    return scan(spec.scan, read, now_ns=spec.now_ns)


def analyze_document_states(
    workspace: Workspace, entity_path: str, paths: Sequence[str]
) -> list[tuple[str, DocumentState]]:
    """Return ``(path, state)`` of a source's documents, in the order of ``paths``, which are relative to the source.

    Paths that are neither documents nor files to be indexed are omitted. Raises BadEntity, UsageError before the first
    run, SourceNotFound.
    """
    entity = Entity.parse(entity_path, workspace.config.hierarchy)
    record = workspace.source(entity)
    if record is None:
        raise BadEntity("Unknown source", str(entity), "List the sources with: driftline sources")
    return _states(workspace, entity, record, SourcesByFolder(dict(workspace.sources(entity.tenant))), paths)


def _states(
    workspace: Workspace, entity: Entity, record: SourceRecord, neighbours: SourcesByFolder, paths: Sequence[str]
) -> list[tuple[str, DocumentState]]:
    if workspace.config.fingerprint is None:
        raise UsageError("The workspace has no model yet", workspace.objects.uri, "Index a source first.")
    with closing(open_source(record.uri, workspace.objects.storage_options, allow_empty=True)) as source:
        claims = neighbours.claims_on(entity, record)
        spec = ScanSpec.of(source, record, _fingerprint(workspace.config), claims)
        return _states_in(spec, workspace.manifest(entity), paths)


def _states_in(spec: ScanSpec, documents: Manifest, paths: Sequence[str]) -> list[tuple[str, DocumentState]]:
    asked = set(paths)
    manifest = documents.get(paths)
    differences = scan_paths(
        spec,
        paths,
        documents.get,
        now_ns=time.time_ns(),
        read_members=lambda prefixes: documents.read(prefixes, columns=SCHEMA.names),
    ).diff
    states = dict.fromkeys(manifest["path"].to_pylist(), DocumentState.UNCHANGED)
    states |= dict.fromkeys(differences.deleted["path"].to_pylist(), DocumentState.DELETED)
    states |= dict.fromkeys(differences.retouched["path"].to_pylist(), DocumentState.TOUCHED)
    for change in pa.concat_tables([differences.new, differences.candidates]).to_pylist():
        if change["path"] not in asked:
            continue  # a document's archive
        if is_container(change["path"]):
            change["must_embed"] = False  # what is listed inside depends on the run's limits
        try:
            etag = change["etag"]
            digest = etag.partition(":")[2] if is_member_etag(etag) else content_hash(spec.source.read(change["path"]))
        except ObjectNotFound:
            states[change["path"]] = DocumentState.DELETED  # deleted after the scan
            continue
        states[change["path"]] = classify(change, digest)
    return [(path, states[path]) for path in paths if path in states]


def _fingerprint(config: WorkspaceConfig) -> str:
    """Return the next run's fingerprint; it differs, and lines are re-embedded, if the text preparation changed."""
    bound = config.fingerprint or ""
    try:
        files = resolve_model(config.model) if config.model else None
    except ModelNotFound:
        return bound
    return fingerprint(files) if files is not None and is_earlier_version(files, bound) else bound


def states_of_files(workspace: Workspace, files: Sequence[str]) -> list[tuple[str, DocumentState]]:
    """Return ``(path, state)`` of local files, in the order of ``files``: absolute, or relative to the current folder.

    A file belongs to the source with the nearest folder. A file that no source indexes is NEW if it exists, otherwise
    MISSING. Raises UsageError before the first run, SourceNotFound.
    """
    known = dict(workspace.sources())
    local = {entity: record for entity, record in known.items() if record.is_local}
    roots = {
        os.path.realpath(record.uri): entity for entity, record in sorted(local.items(), key=lambda each: str(each[0]))
    }
    by_source: dict[Entity, dict[str, str]] = {}
    for file in files:
        path = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(file))), os.path.basename(file))
        root = next((folder for folder in map(str, PurePath(path).parents) if folder in roots), None)
        if root is not None:
            by_source.setdefault(roots[root], {})[file] = os.path.relpath(path, root)
    tenants = {entity.tenant for entity in by_source}
    neighbours = {each: SourcesByFolder({e: r for e, r in known.items() if e.tenant == each}) for each in tenants}
    states: dict[str, DocumentState] = {}
    for entity, relative in by_source.items():
        asked = list(dict.fromkeys(relative.values()))
        found = dict(_states(workspace, entity, known[entity], neighbours[entity.tenant], asked))
        states |= {file: found[path] for file, path in relative.items() if path in found}
    return [
        (file, states.get(file) or (DocumentState.NEW if os.path.exists(file) else DocumentState.MISSING))
        for file in files
    ]

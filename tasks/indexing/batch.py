"""Process one batch of documents: read, hash, decode, split, embed, write fragments (DESIGN, "Index run", step 4)."""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.storage.defaults import DEFAULT_REDACTION
from driftline.storage.deltas import manifest
from driftline.storage.deltas.manifest import ManifestRow
from driftline.storage.documents import GAP_LINE, DocumentState, SkipReason, container_of, content_hash, holds_records
from driftline.storage.entities import Entity
from driftline.storage.errors import AccessDenied, DriftlineError, ObjectNotFound, SourceNotFound, StorageError
from driftline.storage.lines.line_table import LINES_PER_BLOCK
from driftline.storage.lines.outline import Definition
from driftline.storage.private_keys import contains_private_key
from driftline.storage.redaction import suspected, with_mark
from driftline.storage.sources.content_encoding import StoredBytes
from driftline.storage.sources.source import FileInfo, Source, read_file, stat_file
from driftline.tasks.definitions.find_definitions import definitions_in_worker
from driftline.tasks.extraction.archives import OF_CONTENT, is_member_etag, read_members, reason_in, without_opened
from driftline.tasks.extraction.extractor import (
    UNOPENED,
    Reading,
    ReadSettings,
    definitions_by_part,
    encoding_mark,
    ends_mark,
    is_current,
    is_extracted,
    read_document,
    redacted,
)
from driftline.tasks.extraction.process import Refused
from driftline.tasks.git.encodings import as_utf8
from driftline.tasks.indexing.rows import Donated, Donations, copy_rows, line_rows
from driftline.tasks.scanning.diff import CTIME_TICK_NS, RACY_NS, classify
from driftline.tasks.task_context import CountReporter, Stopwatch, TaskContext, release_memory
from driftline.tasks.text import MAX_TEXT_BYTES, SplitLines, is_lfs_pointer, read_ends, split_documents

log = logging.getLogger(__name__)

READ_ATTEMPTS = 3
_STATUS = ("size_bytes", "mtime_ns", "ctime_ns", "inode")
_MD5_ETAG = re.compile(r'"?([0-9a-f]{32})"?')


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file's metadata, bytes and hash. A ``racy`` file may change again within the same clock tick.

    If ``only_ends`` is set, ``data`` contains only the start and the end of a large file.
    """

    info: FileInfo
    data: bytes
    content_hash: str
    racy: bool
    only_ends: bool = False


def read_all(
    source: Source, changes: Sequence[dict[str, Any]], most_bytes: int = MAX_TEXT_BYTES
) -> Iterator[tuple[dict[str, Any], ReadFile | SkipReason]]:
    """Yield each of ``changes`` (``diff.CHANGE_SCHEMA``) with its file or skip reason, in order.

    Reads only the first and last lines of record files larger than ``most_bytes``. Raises StorageError.
    """
    files = [change for change in changes if not is_member_etag(change["etag"])]
    large = {c["path"] for c in files if c["size_bytes"] > most_bytes and holds_records(c["path"])}
    whole = [change for change in files if change["path"] not in large]
    wholly = (_read_local(source, change) for change in whole) if source.is_local else _read_remote(source, whole)
    members = _read_members(source, [change for change in changes if is_member_etag(change["etag"])])

    def read(change: dict[str, Any]) -> ReadFile | SkipReason:
        if is_member_etag(change["etag"]):
            return next(members)
        return _read_ends(source, change, most_bytes) if change["path"] in large else next(wholly)

    return zip(changes, (_checked(read(change)) for change in changes), strict=True)


def _read_members(source: Source, changes: Sequence[dict[str, Any]]) -> Iterator[ReadFile | SkipReason]:
    """Read archive members, identified by the hashes in their etags; each archive once for adjacent members."""
    for container, members in groupby(changes, lambda change: container_of(change["path"])):
        asked = [*members]
        etags = ((change["path"], change["etag"]) for change in asked if reason_in(change["etag"]) is None)
        wanted = {path: etag.removeprefix(OF_CONTENT) for path, etag in etags}
        try:
            found = read_members(container, source.read(container), wanted) if wanted else {}
        except (AccessDenied, ObjectNotFound, SourceNotFound, Refused):
            found = {}
        for change in asked:
            reason = reason_in(change["etag"])
            if reason is not None:
                yield reason
                continue
            data = found.pop(change["path"], None)
            if data is None or content_hash(data) != change["etag"].removeprefix(OF_CONTENT):
                yield SkipReason.UNSTABLE  # the archive changed or disappeared after the scan
                continue
            info = FileInfo(change["path"], len(data), change["mtime_ns"], change["etag"])
            yield ReadFile(info, data, content_hash(data), racy=False)


def _read_ends(source: Source, change: dict[str, Any], most_bytes: int) -> ReadFile | SkipReason:
    """Read a file's first and last lines; its stat must be the same before and after."""
    path = change["path"]
    for _ in range(READ_ATTEMPTS):
        started_ns = time.time_ns()
        try:
            before = source.stat(path)
            ends = read_ends(source.chunks(path), most_bytes)
            after = source.stat(path)
        except (ObjectNotFound, SourceNotFound):
            return SkipReason.UNSTABLE
        except AccessDenied:
            return SkipReason.UNREADABLE
        if before is None or after is None:
            return SkipReason.UNSTABLE
        if ends is None or is_extracted(path, ends.data):
            return SkipReason.TOO_LARGE
        if before == after and ends.size_bytes == after.size_bytes:
            info, racy = _as_local(after, change, started_ns) if source.is_local else _as_remote(after, change)
            return ReadFile(info, ends.data, ends.content_hash, racy, only_ends=True)
    return SkipReason.UNSTABLE


def _checked(read: ReadFile | SkipReason) -> ReadFile | SkipReason:
    """Check the size again, because the file may have grown since the listing."""
    return SkipReason.TOO_LARGE if isinstance(read, ReadFile) and len(read.data) > MAX_TEXT_BYTES else read


def _read_remote(source: Source, changes: Sequence[dict[str, Any]]) -> Iterator[ReadFile | SkipReason]:
    contents = source.read_many([c["path"] for c in changes], [c["etag"] for c in changes])
    for change, data in zip(changes, contents, strict=True):
        if isinstance(data, (ObjectNotFound, SourceNotFound)):
            yield SkipReason.UNSTABLE
        elif isinstance(data, AccessDenied):
            yield SkipReason.UNREADABLE
        elif isinstance(data, DriftlineError):
            raise data
        elif isinstance(data, StoredBytes) and data.is_unreadable:
            yield SkipReason.CONTENT_ENCODING
        else:
            yield _as_listed(change, data)


def _read_local(source: Source, change: dict[str, Any]) -> ReadFile | SkipReason:
    """Read a local file; its stat must be the same before and after."""
    path = change["path"]
    for _ in range(READ_ATTEMPTS):
        started_ns = time.time_ns()
        try:
            with source.open_tree() as tree:
                before = stat_file(tree, path)
                data = read_file(tree, path)
                after = stat_file(tree, path)
        except ObjectNotFound:
            return SkipReason.UNSTABLE
        except (AccessDenied, SourceNotFound, StorageError):
            return SkipReason.UNREADABLE
        if before is None or after is None:
            return SkipReason.UNSTABLE
        if before == after and len(data) == after.size_bytes:
            info, racy = _as_local(after, change, started_ns)
            return ReadFile(info, data, content_hash(data), racy)
    return SkipReason.UNSTABLE


def _as_local(after: FileInfo, change: dict[str, Any], started_ns: int) -> tuple[FileInfo, bool]:
    """Return a file with the listing's etag if it has not changed since, and whether it is racy."""
    as_listed = all(getattr(after, name) == change[name] for name in _STATUS)
    info = replace(after, path=change["path"], etag=change["etag"] if as_listed else "")
    young = after.mtime_ns > started_ns - RACY_NS or after.ctime_ns > started_ns - CTIME_TICK_NS
    return info, not info.etag and young


def _as_remote(after: FileInfo, change: dict[str, Any]) -> tuple[FileInfo, bool]:
    """Like ``_as_local``, but for object stores, whose listings report times at a different precision."""
    as_listed = (after.size_bytes, after.etag) == (change["size_bytes"], change["etag"])
    info = FileInfo(change["path"], after.size_bytes, change["mtime_ns"] if as_listed else 0, after.etag)
    return info, not info.etag


def _as_listed(change: dict[str, Any], data: bytes) -> ReadFile:
    """Return a file in a store, with the listing's etag unless its size or MD5 shows another version."""
    digest = _MD5_ETAG.fullmatch(change["etag"])
    stored = data.stored if isinstance(data, StoredBytes) else data
    same = len(stored) == change["size_bytes"] and (
        digest is None or hashlib.md5(stored, usedforsecurity=False).hexdigest() == digest[1]
    )
    info = FileInfo(change["path"], len(stored), change["mtime_ns"], change["etag"] if same else "")
    return ReadFile(info, data, content_hash(data), racy=not info.etag)


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """Documents of one source (``diff.CHANGE_SCHEMA`` rows); in a ``dry_run``, they are only read and classified.

    The lines of ``donations`` are copied if the content is the same. Only the first and last lines are indexed of
    record files larger than ``how.most`` bytes. ``container_only_paths`` lists archives and email that are not
    documents themselves, but contain documents.
    """

    source: Source
    entity: Entity
    changes: pa.Table
    dry_run: bool = False
    donations: Donations = field(default_factory=dict)
    how: ReadSettings = field(default_factory=lambda: ReadSettings(DEFAULT_REDACTION, MAX_TEXT_BYTES))
    container_only_paths: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of a batch, invisible until it is committed.

    ``rows`` (manifest.SCHEMA) holds the new manifest rows; ``replaced`` the paths whose old lines must be removed;
    ``fragments`` references to the written fragments; ``new_hashes`` the hashes of new documents; ``skipped`` pairs
    ``(path, reason)``; ``truncated`` pairs ``(path, characters dropped)`` for documents with overlong lines.
    ``lines_reused`` counts copied lines, ``lines`` embedded lines. ``seconds`` is keyed by phase: ``read`` (including
    hashing), ``split`` (including decoding), ``redact``, ``embed`` and ``write`` (including building the rows).
    ``reported`` contains the document and line counts that the running task already reported. ``redacted`` counts the
    redacted credentials by rule.
    """

    rows: pa.Table
    replaced: tuple[str, ...]
    fragments: tuple[str, ...]
    new_hashes: tuple[str, ...]
    states: dict[DocumentState, int]
    skipped: tuple[tuple[str, str], ...]
    truncated: tuple[tuple[str, int], ...]
    documents: int
    lines: int
    lines_reused: int
    bytes_read: int
    seconds: dict[str, float]
    reported: tuple[int, int] = (0, 0)
    redacted: Mapping[str, int] = field(default_factory=dict)


def embed_batch(spec: BatchSpec, context: TaskContext) -> BatchResult:
    """Read the documents of ``spec``, embed new content, and write its lines as fragments."""
    watch, reporter = Stopwatch(), context.count_reporter()
    drafts = _read(spec, context, watch, reporter)
    copied = _copied(spec, context, drafts, watch) if drafts.reusable else []
    fragments: list[str] = []
    if copied:
        with watch.phase("write"):
            fragments += context.workspace.lines(spec.entity, drafts.fingerprint).write_fragments(
                pa.concat_tables(copied)
            )
    texts = _Texts.of([(spec, drafts)], watch)
    fragments += _embed(texts, context, watch, reporter, dry_run=spec.dry_run)
    result = texts.results(watch)[0]
    return replace(
        result,
        fragments=tuple(fragments),
        lines_reused=sum(map(len, copied)),
        reported=(reporter.documents, reporter.lines),
    )


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The result or error of each batch in a group, in order. All batches share ``fragments``."""

    parts: tuple[BatchResult | DriftlineError, ...]
    fragments: tuple[str, ...]
    reported: tuple[int, int]


def embed_group(specs: Sequence[BatchSpec], context: TaskContext) -> GroupResult:
    """Process small batches from several sources of one table like ``embed_batch``, but without donations.

    Their lines are embedded together and written to the same fragments, so the cost depends only on the lines.
    """
    watch, reporter = Stopwatch(), context.count_reporter()
    read: dict[int, tuple[BatchSpec, _Drafts]] = {}
    failed: dict[int, DriftlineError] = {}
    for number, spec in enumerate(specs):
        try:
            read[number] = spec, _read(spec, context, watch, reporter)
        except DriftlineError as error:
            failed[number] = error
        spec.source.close()
    texts = _Texts.of(list(read.values()), watch)
    fragments = _embed(texts, context, watch, reporter)
    results = dict(zip(read, texts.results(watch), strict=True))
    parts = tuple(results[number] if number in results else failed[number] for number in range(len(specs)))
    return GroupResult(parts, tuple(fragments), (reporter.documents, reporter.lines))


def _read(spec: BatchSpec, context: TaskContext, watch: Stopwatch, reporter: CountReporter) -> _Drafts:
    donations = {} if spec.dry_run else spec.donations
    drafts = _Drafts(context.model.fingerprint, spec.how, spec.container_only_paths, donations)
    changes = spec.changes.to_pylist()
    for change, read in watch.each("read", read_all(spec.source, changes, spec.how.most)):
        drafts.add(change, _as_declared(read, change["encoding"]), watch)
        reporter.add(documents=1)
    return drafts


def _as_declared(read: ReadFile | SkipReason, codec: str | None) -> ReadFile | SkipReason:
    return replace(read, data=as_utf8(read.data, codec)) if isinstance(read, ReadFile) and codec is not None else read


def _redact(batches: Sequence[_Drafts]) -> list[Counter[str]]:
    """Redact the batches like ``_Drafts.redact``, but search all of them at once: each search compiles its patterns."""
    suspects = set[int]()
    for mode in {drafts.how.redaction for drafts in batches}:
        texts = [
            (number, text) for number, each in enumerate(batches) if each.how.redaction == mode for text in each.texts()
        ]
        suspects.update(texts[at][0] for at in suspected([text for _, text in texts], mode))
    return [drafts.redact() if number in suspects else Counter() for number, drafts in enumerate(batches)]


@dataclass(slots=True)
class _Texts:
    """The documents of one or several batches that must be embedded.

    ``first`` is the index of each batch's first document. ``counts`` contains each document's line count, and
    ``left_out`` the number of characters dropped from overlong lines.
    """

    batches: Sequence[tuple[BatchSpec, _Drafts]]
    first: NDArray[np.int64]
    redacted: list[Counter[str]]
    entities: list[Entity]
    embedded: list[ManifestRow]
    readings: list[Reading]
    counts: NDArray[np.int64]
    left_out: Counter[int]

    @classmethod
    def of(cls, batches: Sequence[tuple[BatchSpec, _Drafts]], watch: Stopwatch) -> _Texts:
        """Collect and redact the documents of ``batches`` whose lines cannot be copied from a donor."""
        with watch.phase("redact"):
            redacted = _redact([drafts for _, drafts in batches])
        sizes = [len(drafts.readings) for _, drafts in batches]
        entities = [spec.entity for spec, drafts in batches for _ in drafts.readings]
        embedded = [row for _, drafts in batches for row in drafts.embedded]
        readings = [reading for _, drafts in batches for reading in drafts.readings]
        first = np.cumsum([0, *sizes])
        return cls(batches, first, redacted, entities, embedded, readings, np.zeros(len(readings), np.int64), Counter())

    def results(self, watch: Stopwatch) -> list[BatchResult]:
        """Return the batches' results, without fragments; each gets its documents' share of the times."""
        documents = sum(len(spec.changes) for spec, _ in self.batches) or 1
        found = []
        for number, (spec, drafts) in enumerate(self.batches):
            start, stop = (int(each) for each in self.first[number : number + 2])
            counts, embedded = self.counts[start:stop], drafts.embedded
            if not spec.dry_run:
                embedded = [replace(meta, lines=int(count)) for meta, count in zip(embedded, counts, strict=True)]
            left_out = ((at, count) for at, count in self.left_out.items() if start <= at < stop)
            share = len(spec.changes) / documents
            result = BatchResult(
                rows=manifest.to_table([*drafts.kept, *drafts.copied, *embedded]),
                replaced=tuple(drafts.replaced),
                fragments=(),
                new_hashes=tuple(drafts.new_hashes),
                states=drafts.states,
                skipped=tuple(drafts.skipped),
                truncated=tuple((self.embedded[at].path, count) for at, count in left_out),
                documents=len(spec.changes),
                lines=int(counts.sum()),
                lines_reused=0,
                bytes_read=drafts.bytes_read,
                seconds={phase: seconds * share for phase, seconds in watch.seconds.items()},
                redacted=self.redacted[number],
            )
            found.append(result)
        return found


def _embed(
    texts: _Texts, context: TaskContext, watch: Stopwatch, reporter: CountReporter, *, dry_run: bool = False
) -> list[str]:
    """Split, embed and write the documents, count their lines, and return the fragments."""
    if dry_run or not texts.readings:
        for _ in _split(texts, watch):
            pass
        return []

    def tables() -> Iterator[pa.Table]:
        return (_rows(texts, context, piece, lines, watch, reporter) for piece, lines in _split(texts, watch))

    with watch.rest("write"):
        fragments = context.workspace.lines(texts.entities[0], context.model.fingerprint).write_fragments(tables)
    release_memory()
    return fragments


def _split(texts: _Texts, watch: Stopwatch) -> Iterator[tuple[Piece, SplitLines]]:
    """Yield the pieces that have lines, and count the lines of each document; starts over when called again."""
    texts.counts[:] = 0
    texts.left_out.clear()
    for piece in pieces([reading.extracted.text for reading in texts.readings]):
        with watch.phase("split"):
            lines = piece.split()
        texts.counts += np.bincount(lines.doc_index.to_numpy(), minlength=len(texts.counts))
        texts.left_out.update(lines.left_out)
        if len(lines):
            yield piece, lines


PIECE_CHARACTERS, MAX_PIECE_CHARACTERS = 2 * 2**20, 8 * 2**20
"""Characters to embed at a time, of several texts and of one: some 100,000 or 200,000 lines, whose vectors take 100 or
200 MB during the computation.
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole texts of a batch, or part of a text that is larger than MAX_PIECE_CHARACTERS.

    ``documents`` ``(n,) int32`` are indexes into the batch, and ``texts`` are their texts. ``first_line`` is the line
    number where each text starts. A part starts at a block boundary.
    """

    documents: NDArray[np.int32]
    texts: Sequence[str]
    first_line: int = 0
    is_whole: bool = True

    def split(self) -> SplitLines:
        """Split the piece like ``split_documents`` splits the whole batch."""
        lines = split_documents(self.texts, every_document=True)
        number = pa.array(lines.line_number.to_numpy() + np.int32(self.first_line))
        left_out = {int(self.documents[at]): count for at, count in lines.left_out.items()}
        documents = pa.array(self.documents[lines.doc_index.to_numpy()])
        return SplitLines(lines.text, documents, number, lines.column_number, left_out)


def pieces(texts: Sequence[str], most: int | None = None) -> Iterator[Piece]:
    """Cut a batch's texts into pieces of about PIECE_CHARACTERS, in order; a text of up to ``most`` characters stays
    whole (default: MAX_PIECE_CHARACTERS).

    >>> [[*piece.texts] for piece in pieces(["one", "two", "three"], 6)]
    [['one', 'two'], ['three']]
    """
    most = MAX_PIECE_CHARACTERS if most is None else most
    held: list[int] = []
    size = 0
    for at, text in enumerate(texts):
        if held and size + len(text) > min(PIECE_CHARACTERS, most):
            yield Piece(np.array(held, np.int32), [texts[each] for each in held])
            held, size = [], 0
        if len(text) > most:
            for first, part in _parts(text, most):
                yield Piece(np.array([at], np.int32), [part], first, is_whole=False)
        else:
            held.append(at)
            size += len(text)
    if held:
        yield Piece(np.array(held, np.int32), [texts[each] for each in held])


def _parts(text: str, most: int) -> Iterator[tuple[int, str]]:
    """Yield the parts of a text, in whole blocks, each with its first line number.

    GAP_LINE is repeated at the start of a part that begins among the lines it stands for.
    """
    start = first = 0
    in_gap = False
    while start < len(text):
        end, lines = start, 0
        while end < len(text) and (end - start < most or lines % LINES_PER_BLOCK):
            found = text.find("\n", end)
            end = len(text) if found < 0 else found + 1
            lines += 1
        part = text[start:end]
        part = GAP_LINE + part if in_gap and part.startswith("\n") else part
        yield first, part
        in_gap = part.rstrip("\n").endswith(GAP_LINE)
        start, first = end, first + lines


def _rows(
    batch: _Texts,
    context: TaskContext,
    piece: Piece,
    lines: SplitLines,
    watch: Stopwatch,
    reporter: CountReporter,
) -> pa.Table:
    """Embed a piece's lines, and return their rows.

    A piece that is only part of a document gets no definitions.
    """
    chosen = [batch.readings[at] for at in piece.documents.tolist()] if piece.is_whole else []
    parts, joined = definitions_by_part([(reading.path, reading.extracted) for reading in chosen])
    outlined = definitions_in_worker(parts)
    with watch.phase("embed"):
        vectors = context.embedder.embed(lines.text, np.float16)
    reporter.add(lines=len(lines))
    with watch.phase("outline"):
        definitions: list[list[Definition]] = [[] for _ in batch.readings]
        for at, found in zip(piece.documents.tolist(), joined(outlined()), strict=False):
            definitions[at] = found
    with watch.phase("write"):
        anchors = [reading.extracted.anchors for reading in batch.readings]
        texts = [""] * len(batch.readings)
        for at, text in zip(piece.documents.tolist(), piece.texts, strict=True):
            texts[at] = text
        columns = lines.doc_index, lines.line_number, lines.text
        given: dict[str, Any] = {"column_number": lines.column_number, "anchors": anchors, "texts": texts}
        given["first_line"] = piece.first_line
        return line_rows(batch.entities, batch.embedded, *columns, vectors, definitions, **given)


def _copied(spec: BatchSpec, context: TaskContext, drafts: _Drafts, watch: Stopwatch) -> list[pa.Table]:
    """Copy the lines of reusable documents whose donors still have them; other documents will be embedded."""
    requested = {document.meta.path: donated for document, donated in drafts.reusable}
    with watch.phase("copy"):
        found = dict(copy_rows(context.workspace, spec.entity, drafts.fingerprint, context.model.dim, requested))
    for document, donated in drafts.reusable:
        if document.meta.path in found:
            drafts.add_copied(document, donated)
        else:
            drafts.add_extracted(document, watch)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class _Document:
    """A document with new content ``data``; ``was_indexed`` is set if an older version is in the index.

    ``mark`` is set for part of a larger file, and if git declares an encoding.
    """

    meta: ManifestRow
    data: bytes
    state: DocumentState
    was_indexed: bool
    mark: str


@dataclass(slots=True)
class _Drafts:
    """A batch's documents. ``kept`` contains the rows that stay, and ``embedded`` the documents to embed, with their
    ``readings``.

    ``reusable`` documents end up either ``copied`` or embedded.
    """

    fingerprint: str
    how: ReadSettings
    container_only_paths: frozenset[str]
    donations: Donations = field(default_factory=dict)
    reusable: list[tuple[_Document, Donated]] = field(default_factory=list)
    copied: list[ManifestRow] = field(default_factory=list)
    kept: list[ManifestRow] = field(default_factory=list)
    embedded: list[ManifestRow] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    new_hashes: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    states: dict[DocumentState, int] = field(default_factory=lambda: dict.fromkeys(DocumentState, 0))
    bytes_read: int = 0

    def add(self, change: dict[str, Any], read: ReadFile | SkipReason, watch: Stopwatch) -> None:
        """Add a document (a ``diff.CHANGE_SCHEMA`` row), depending on how its read went."""
        path = change["path"]
        if isinstance(read, SkipReason):
            self.skipped.append((path, read))
            if reason_in(change["etag"]) is not None:
                self._keep_unindexed(change, read)
            return
        info = read.info
        self.bytes_read += info.size_bytes
        meta = ManifestRow(
            path, info.size_bytes, info.mtime_ns, info.etag, read.content_hash, self.fingerprint,
            lines=change["lines"] or 0, reason=change["reason"], racy=read.racy,
            ctime_ns=info.ctime_ns, inode=info.inode, extractor=change["extractor"] or "",
        )  # fmt: skip
        state = classify(change, read.content_hash)
        if state in (DocumentState.TOUCHED, DocumentState.UNCHANGED):
            self._keep(meta, state)
            return
        was_indexed = change["hash"] is not None and change["reason"] is None
        if was_indexed:
            self.replaced.append(path)
        marks = ends_mark(self.how.most) if read.only_ends else "", encoding_mark(change["encoding"])
        document = _Document(meta, read.data, state, was_indexed, "+".join(filter(None, marks)))
        donated = self._donated(change, read)
        if donated is not None:
            self.reusable.append((document, donated))
        else:
            self.add_extracted(document, watch)

    def _keep_unindexed(self, change: dict[str, Any], reason: SkipReason) -> None:
        """Record an unindexable archive member so that the next run does not reopen the archive."""
        mark = with_mark(f"-{UNOPENED}", self.how.redaction)
        row = ManifestRow(change["path"], change["size_bytes"], 0, change["etag"], "", self.fingerprint, extractor=mark)
        self.kept.append(replace(row, reason=reason))
        if change["hash"] is not None and change["reason"] is None:
            self.replaced.append(change["path"])
            self.states[DocumentState.DELETED] += 1

    def add_copied(self, document: _Document, donated: Donated) -> None:
        """Add a document whose lines a donor has. This run did not open it, even if the donor's run did."""
        self._count(document)
        mark = without_opened(donated.extractor)
        self.copied.append(replace(document.meta, lines=donated.lines, reason=None, extractor=mark))

    def add_extracted(self, document: _Document, watch: Stopwatch) -> None:
        """Extract a document's text, and add it or the reason why it is not indexed."""
        path = document.meta.path
        with watch.phase("split"):
            reading = self._read(path, document.data)
        mark = with_mark("+".join(filter(None, (document.mark, reading.mark))), self.how.redaction)
        reason, meta = reading.reason, replace(document.meta, extractor=mark)
        if reason is None and contains_private_key(path, reading.extracted.text):
            reason = SkipReason.SECRET
        elif reason is None and is_lfs_pointer(reading.extracted.text):
            reason = SkipReason.LFS
        elif reading.replaced:
            log.warning("%s: replaced bytes that are invalid in the file's encoding", path)
        if reason is not None:
            self.kept.append(replace(meta, lines=0, reason=reason))
            self.skipped.append((path, reason))
            self.states[DocumentState.DELETED] += document.was_indexed
            return
        self._count(document)
        self.readings.append(reading)
        self.embedded.append(replace(meta, lines=0, reason=None))

    def _read(self, path: str, data: bytes) -> Reading:
        if path in self.container_only_paths:
            return Reading(path, f"-{UNOPENED}", reason=SkipReason.EXCLUDED)
        return read_document(path, data, outputs=self.how.outputs)

    def texts(self) -> list[str]:
        """Return what ``redact`` searches for credentials."""
        found = [reading.extracted for reading in self.readings]
        return [each.text for each in found] + [anchor.name for each in found for anchor in each.anchors]

    def redact(self) -> Counter[str]:
        """Redact credentials in the text and anchors of the readings, and count them by rule."""
        found, counts = redacted([reading.extracted for reading in self.readings], self.how.redaction)
        self.readings = [replace(reading, extracted=each) for reading, each in zip(self.readings, found, strict=True)]
        return counts

    def _donated(self, change: dict[str, Any], read: ReadFile) -> Donated | None:
        """Return a donor's document with this content, unless it must be embedded again."""
        if change["must_embed"] and change["hash"] is not None:
            return None
        path = change["path"]
        same = (each for each in self.donations.get(path, ()) if each.hash == read.content_hash)
        return next((each for each in same if is_current(path, each.extractor, self.how, change["encoding"])), None)

    def _count(self, document: _Document) -> None:
        if document.was_indexed:
            self.states[document.state] += 1
        else:
            self.states[DocumentState.NEW] += 1
            self.new_hashes.append(document.meta.hash)

    def _keep(self, meta: ManifestRow, state: DocumentState) -> None:
        """Add a document whose indexed content is up to date."""
        if meta.reason is None:
            self.states[state] += 1
        else:
            self.skipped.append((meta.path, meta.reason))
        if state is DocumentState.TOUCHED or not meta.racy:
            self.kept.append(meta)

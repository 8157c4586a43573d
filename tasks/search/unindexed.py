"""Semantic search in files or texts without writing anything: compare every line with the query by cosine.

Files that are unchanged since a workspace indexed them are searched there, others in memory, with a common ranking.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftline.storage.defaults import DEFAULT_REDACTION, Redaction
from driftline.storage.documents import SkipReason, content_hash
from driftline.storage.embedding import Embedder
from driftline.storage.entities import Entity
from driftline.storage.errors import AccessDenied, SourceNotFound, StorageError
from driftline.storage.lines.line_filter import LineFilter
from driftline.storage.lines.outline import Definition, innermost
from driftline.storage.sources.source import INODE_BITS, storable_ns
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.definitions.find_definitions import definitions
from driftline.tasks.extraction.extractor import Extracted, definitions_by_part, read_document, redacted
from driftline.tasks.git.encodings import as_utf8, declared_encodings
from driftline.tasks.scanning.overlap import below
from driftline.tasks.scanning.walk import STDIN, files_named
from driftline.tasks.search.filters import where_named
from driftline.tasks.search.hits import (
    UNKNOWN_WORDS,
    Hit,
    SearchReport,
    anchored,
    clipped,
    clipped_context,
    match_in,
    nearest_note,
    symbol_of,
)
from driftline.tasks.search.ranked import search_ranked
from driftline.tasks.search.ranking import FoundLine, merge_windows
from driftline.tasks.search.relevance import Calibration
from driftline.tasks.search.request import SearchRequest
from driftline.tasks.task_context import PLAN_AFTER_LINES, ModelRef, load_embedder
from driftline.tasks.text import is_utf8, rows_of_line, split_documents, split_lines

_REDACTED_CHARACTERS = 2**20
"""Characters to redact at a time."""
_BATCH_CHARACTERS = 4 * 2**20
"""Characters to embed at a time: some 100,000 lines, whose vectors take 100 MB."""


@dataclass(frozen=True, slots=True)
class NamedText:
    """One file: its path as given, and its text; ``extracted`` is set if the text was extracted from a document."""

    path: str
    text: str
    extracted: Extracted | None = None

    @property
    def definitions(self) -> list[Definition]:
        """The definitions in the text."""
        texts, joined = definitions_by_part([(self.path, self.extracted or Extracted(self.text))])
        return joined([definitions(path, text) for path, text in texts])[0]

    def anchor(self, line: int) -> str | None:
        """Return the position of a 0-based line in a document whose text was extracted."""
        anchors = self.extracted.anchors if self.extracted else ()
        return next((each.name for each in anchors if each.first <= line <= each.last), None)


def read_texts(
    names: Iterable[str],
    read_stdin: Callable[[], bytes] | None = None,
    on_skip: Callable[[str, SkipReason], None] = lambda path, reason: None,
    redaction: Callable[[str], Redaction] = lambda path: DEFAULT_REDACTION,
) -> Iterator[NamedText]:
    """Yield the texts that ``names`` select (see ``files_named``), in order; ``-`` is standard input.

    ``redaction`` returns which credentials to redact in a file; ``on_skip`` receives files that have no text or are too
    large. Raises SourceNotFound, AccessDenied, StorageError, UsageError.
    """
    held: list[NamedText] = []
    mode, size = DEFAULT_REDACTION, 0
    for path in files_named(names, stdin=read_stdin is not None, on_skip=on_skip):
        data = read_stdin() if path == STDIN and read_stdin is not None else _read(path)
        reading = read_document(path, _as_declared(path, data))
        if reading.reason is not None:
            on_skip(path, reading.reason)
            continue
        of_file = redaction(path)
        if of_file != mode or size > _REDACTED_CHARACTERS:
            yield from _redacted(held, mode)
            held, mode, size = [], of_file, 0
        held.append(NamedText(path, reading.extracted.text, reading.extracted))
        size += len(reading.extracted.text)
    yield from _redacted(held, mode)


def _as_declared(path: str, data: bytes) -> bytes:
    """Return a file as UTF-8 if git declares its encoding."""
    if path == STDIN or (b"\0" not in data and is_utf8(data)):
        return data
    folder, name = os.path.split(os.path.realpath(path))
    return as_utf8(data, (declared_encodings(folder, [name]) or {}).get(name))


def _redacted(texts: Sequence[NamedText], mode: Redaction) -> Iterator[NamedText]:
    found, _ = redacted([each.extracted or Extracted(each.text) for each in texts], mode)
    for named, extracted in zip(texts, found, strict=True):
        yield NamedText(named.path, extracted.text, extracted)


def open_embedder(model: str | None = None) -> Embedder:
    """Return the embedder for DEFAULT_MODEL, a directory or a Hugging Face model, ready for few lines.

    Raises ModelNotFound.
    """
    from driftline.tasks.embedding.embedder import WordTableEmbedder
    from driftline.tasks.embedding.models import fingerprint, load_parts, resolve_model

    files = resolve_model(model)
    return WordTableEmbedder(load_parts(files), fingerprint(files), plan_after=PLAN_AFTER_LINES)


def grep(
    request: SearchRequest, texts: Iterable[NamedText], embedder: Embedder, *, ignore_case: bool = False
) -> SearchReport:
    """Return the windows of ``texts`` nearest to a query, best first, in the format of ``search``; their source is "".

    Uses only ``top_k``, ``n_lines``, ``max_distance`` and ``min_relevance`` of the request. Lines with no letters or
    digits are never found. Memory contains the texts and 12 bytes per line.
    """
    query = request.query
    asked = lowered(query) if ignore_case else query
    vector = embedder.embed_query(asked) if query.strip() else np.zeros(1, np.float32)
    if request.top_k == 0 or not vector.any():
        for _ in texts:  # unreadable files are an error for any request
            pass
        notes = () if request.top_k == 0 else ("The query is blank." if not query.strip() else UNKNOWN_WORDS,)
        return SearchReport(query, (), notes=notes)
    calibration = Calibration.of(embedder)
    max_distance = calibration.limit(request)
    kept: list[NamedText] = []
    lines = _Lines()
    for batch in _batches(texts):
        lines.add(len(kept), batch, vector, embedder, ignore_case, max_distance)
        kept.extend(batch)
    found = tuple(_hits(kept, lines.sorted(kept), request, calibration))
    if found or lines.nearest is None:
        why = (
            "No line contains a word known to the model."
            if kept
            else "Nothing was searched: the files contain no text."
        )
        return SearchReport(query, found, notes=() if found else (why,))
    columns = tuple(np.array([value]) for value in lines.nearest)
    (nearest,) = _hits(kept, columns, replace(request, top_k=1, n_lines=0), calibration)
    assert max_distance is not None
    return SearchReport(query, (), notes=(nearest_note(nearest, max_distance),), nearest=nearest)


class _Lines:
    """The near lines so far: per batch, arrays of distance, document, 0-based line and column."""

    def __init__(self) -> None:
        self.distance: list[NDArray[np.float32]] = []
        self.document: list[NDArray[np.int32]] = []
        self.number: list[NDArray[np.int32]] = []
        self.column: list[NDArray[np.int32]] = []
        self.nearest: tuple[float, int, int, int] | None = None
        """The nearest line, within the limit or not: distance, document, line and column."""

    def add(
        self,
        first: int,
        batch: Sequence[NamedText],
        query: NDArray[np.float32],
        embedder: Embedder,
        ignore_case: bool,
        max_distance: float | None,
    ) -> None:
        lines = split_documents([lowered(text.text) if ignore_case else text.text for text in batch])
        distinct = lines.text.dictionary_encode()  # half of all lines of code are repeated
        vectors = embedder.embed(distinct.dictionary)
        distances = (1 - vectors @ query).astype(np.float32)
        distances[~vectors.any(axis=1)] = np.inf  # no known word
        of_line = distances[distinct.indices.to_numpy()]
        best = int(np.argmin(of_line)) if len(of_line) else 0
        if len(of_line) and of_line[best] < (self.nearest[0] if self.nearest else np.inf):
            document, number = lines.doc_index[best].as_py() + first, lines.line_number[best].as_py()
            self.nearest = float(of_line[best]), document, number, lines.column_number[best].as_py()
        near = np.isfinite(of_line) if max_distance is None else of_line <= max_distance
        self.distance.append(of_line[near])
        self.document.append(lines.doc_index.to_numpy()[near] + np.int32(first))
        self.number.append(lines.line_number.to_numpy()[near])
        self.column.append(lines.column_number.to_numpy()[near])

    def sorted(self, texts: Sequence[NamedText]) -> tuple[NDArray[Any], ...]:
        """Return all lines, nearest first; ties keep the order of the texts."""
        if not texts:
            return (np.empty(0),) * 4
        columns = (np.concatenate(each) for each in (self.distance, self.document, self.number, self.column))
        distance, *others = columns
        order = np.argsort(distance, kind="stable")
        return distance[order], *(each[order] for each in others)


def lowered(text: str) -> str:
    """Return ``text`` in lower case, with its length unchanged, so columns stay valid.

    >>> lowered("İZMİR")
    'izmir'
    """
    return text.replace("İ", "i").lower()  # the only character whose lower case has two


def _hits(
    texts: Sequence[NamedText],
    lines: tuple[NDArray[Any], ...],
    request: SearchRequest,
    calibration: Calibration,
) -> Iterator[Hit]:
    split: dict[int, list[str]] = {}
    n_lines = request.n_lines

    def lines_of(document: int) -> list[str]:
        if document not in split:
            split[document] = split_lines(texts[document].text)
        return split[document]

    @cache
    def outline(document: int) -> list[Definition]:
        return texts[document].definitions

    nearest = zip(*(column.tolist() for column in lines), strict=True)
    rows = (
        FoundLine(
            ("", str(document), ""),  # two texts may have the same path
            number,
            column,
            dict(rows_of_line(lines_of(document)[number]))[column],
            distance,
            1 - distance,
            -distance,
        )
        for distance, document, number, column in nearest
    )
    windows = merge_windows(rows, 2 * n_lines + 1 if n_lines else 0, request.top_k)
    for rank, window in enumerate(windows, start=1):
        document = int(window.path)
        start = max(0, window.first - n_lines)
        context = lines_of(document)[start : window.last + n_lines + 1]
        at = match_in(window.text, request.query)
        yield Hit(
            path=texts[document].path,
            file=None if texts[document].path == STDIN else os.path.abspath(texts[document].path),
            source="",
            line=window.best + 1,
            start_line=start + 1,
            end_line=start + len(context),
            score=window.score,
            distance=window.distance,
            relevance=calibration.relevance(window.distance),
            rank=rank,
            text=clipped(window.text, at),
            context=clipped_context(context, window.best - start, window.column + at),
            column=window.column + at + 1,
            **symbol_of(innermost(outline(document), window.best)),
            **anchored(texts[document].path, texts[document].anchor(window.best)),
        )


def _batches(texts: Iterable[NamedText]) -> Iterator[list[NamedText]]:
    batch: list[NamedText] = []
    size = 0
    for text in texts:
        if batch and size + len(text.text) > _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text.text)
    if batch:
        yield batch


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError as error:
        raise SourceNotFound("No such file", path, "Check the spelling.") from error
    except PermissionError as error:
        raise AccessDenied("Cannot read the file", path, "Check its permissions.") from error
    except OSError as error:
        raise StorageError(f"Cannot read the file ({error.strerror or error})", path, "Try again.") from error


_COLUMNS = ("path", "size_bytes", "mtime_ns", "hash", "fingerprint", "reason", "racy", "ctime_ns", "inode")


def search_files(
    workspace: Workspace,
    request: SearchRequest,
    files: Sequence[str],
    open_embedder: Callable[[], Embedder],
    *,
    on_skip: Callable[[str, SkipReason], None] = lambda path, reason: None,
) -> SearchReport:
    """Return the windows of ``files`` nearest to a query, best first, each with its file's ``path`` as given.

    ``files`` are files, folders, globs, and URIs of indexed documents. ``open_embedder`` returns the embedder for a
    workspace that has no model yet. Raises SourceNotFound, AccessDenied, UsageError, and the errors of ``search``.
    """
    uris = [name for name in files if "://" in name]
    shown = {os.path.realpath(path): path for path in files_named((f for f in files if f not in uris), on_skip=on_skip)}
    held = _IndexedFiles(workspace, uris)
    for real in held.find(shown):
        del shown[real]
    reports = [report for report in [held.search(request)] if report is not None]
    if shown:
        texts = read_texts(shown.values(), on_skip=on_skip, redaction=partial(_redaction_of, workspace))
        reports.append(grep(request, texts, _embedder(workspace, open_embedder)))
    found = [hit for report in reports for hit in report.results]
    best = sorted(found, key=lambda hit: hit.distance)[: request.top_k]
    if not best and reports:
        return min(reports, key=lambda report: report.nearest.distance if report.nearest else math.inf)
    return SearchReport(request.query, tuple(replace(hit, rank=rank) for rank, hit in enumerate(best, start=1)))


def _redaction_of(workspace: Workspace, path: str) -> Redaction:
    """Return the redaction setting of the source that contains a file (the nearest, if several do)."""
    real = os.path.realpath(path)
    around = [record for _, record in workspace.readable_sources() if below(record.uri, real)]
    return max(around, key=lambda record: len(record.uri)).redact if around else DEFAULT_REDACTION


def _embedder(workspace: Workspace, open_embedder: Callable[[], Embedder]) -> Embedder:
    config = workspace.config
    if config.model is None or config.fingerprint is None or config.dim is None:
        return open_embedder()
    return load_embedder(ModelRef(config.model, config.fingerprint, config.dim))


@dataclass(slots=True)
class _IndexedFiles:
    """A workspace's documents that are unchanged since they were indexed; ``shown`` maps them to their names."""

    workspace: Workspace
    uris: Sequence[str]
    shown: dict[tuple[str, str], str] = field(default_factory=dict)
    filters: list[LineFilter] = field(default_factory=list)

    def __post_init__(self) -> None:
        for uri in self.uris:
            where = where_named(self.workspace, [uri])
            if not where.any_of:
                raise SourceNotFound("Nothing from this URI is indexed", uri, "Index it first.")
            self.filters.append(where)

    def find(self, files: Mapping[str, str]) -> list[str]:
        """Return which of ``files`` (real paths and their names) are indexed and unchanged."""
        found: list[str] = []
        rest = dict(files)
        for entity, record in self.workspace.readable_sources():
            inside = {path: real for real in rest if (path := below(record.uri, real))}
            if not inside:
                continue
            rows = self.workspace.manifest(entity).read(columns=_COLUMNS).to_pylist()
            documents = [row for row in rows if row["reason"] is None]
            current = {row["path"] for row in documents if row["path"] in inside and self._is_current(row, inside)}
            self.shown |= {(str(entity), path): rest[inside[path]] for path in current}
            self.filters += _filters(entity, [row["path"] for row in documents], current)
            for path in current:
                found.append(inside[path])
                del rest[inside[path]]
        return found

    def _is_current(self, row: Mapping[str, Any], inside: Mapping[str, str]) -> bool:
        real = inside[row["path"]]
        if row["fingerprint"] != self.workspace.config.fingerprint:
            return False
        try:
            status = os.stat(real)
            if status.st_size != row["size_bytes"]:
                return False
            same = storable_ns(status.st_mtime_ns) == row["mtime_ns"]
            same = same and row["ctime_ns"] in (0, storable_ns(status.st_ctime_ns))
            if same and row["inode"] in (0, status.st_ino & INODE_BITS) and not row["racy"]:
                return True
            with open(real, "rb") as file:
                return bool(content_hash(file.read()) == row["hash"])
        except OSError:
            return False  # the code that reads it next reports the reason

    def search(self, request: SearchRequest) -> SearchReport | None:
        """Return the nearest windows of the documents, or None if there are no documents."""
        if not self.filters:
            return None
        within = LineFilter(any_of=tuple(self.filters))
        report = search_ranked(self.workspace, replace(request, also=(*request.also, within), mode="vector"))
        nearest = self._as_named(report.nearest) if report.nearest else None
        return replace(report, results=tuple(map(self._as_named, report.results)), nearest=nearest)

    def _as_named(self, hit: Hit) -> Hit:
        return replace(hit, path=self.shown.get((hit.source, hit.path), hit.path))


def _filters(entity: Entity, documents: Iterable[str], chosen: Set[str]) -> Iterator[LineFilter]:
    """Yield filters for the ``chosen`` documents of a source, using whole folders where possible."""
    folders: set[str] = set()
    paths: list[str] = []
    all_in = Counter(folder for path in documents for folder in _folders(path))
    chosen_in = Counter(folder for path in chosen for folder in _folders(path))
    for path in sorted(chosen):
        whole = next((folder for folder in _folders(path) if chosen_in[folder] == all_in[folder]), None)
        if whole is None:
            paths.append(path)
        else:
            folders.add(whole)
    if folders:
        yield LineFilter(entities=(entity,), dirs=tuple(sorted(folders)))
    if paths:
        yield LineFilter(entities=(entity,), paths=tuple(paths))


def _folders(path: str) -> Iterator[str]:
    """Yield a path's parent folders, from the top ("") down."""
    parts = path.split("/")
    return ("/".join(parts[:depth]) for depth in range(len(parts)))

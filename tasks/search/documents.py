"""List an index's documents, in pages or by folder, find them by name, and read a document's lines.

``read_excerpt`` returns parts of indexed documents, and nothing else, to programs that know only search results.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import PurePosixPath
from typing import Any
from unicodedata import normalize

import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.deltas.delta_index import after_prefix
from driftline.storage.documents import content_hash
from driftline.storage.entities import Boundary, Entity, is_allowed, is_within
from driftline.storage.errors import DriftlineError, NotIndexed, UsageError
from driftline.storage.globs import is_unicode, literal_pattern, spellings
from driftline.storage.lance.failures import without_panic
from driftline.storage.lines.definition_lookup import outlines_of
from driftline.storage.lines.line_filter import normalize_path
from driftline.storage.lines.line_table import LINES_PER_BLOCK
from driftline.storage.lines.outline import anchors_in
from driftline.storage.lines.packs import lines_of
from driftline.storage.lines.table_searcher import Passage, TableSearcher
from driftline.storage.redaction import redact_lines
from driftline.storage.sources.source import known_source
from driftline.storage.workspace.records import SourceRecord
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.extraction.extractor import is_extracted, is_named_like_document
from driftline.tasks.search.filters import inside_of
from driftline.tasks.search.hits import is_plain, is_readable
from driftline.tasks.search.links import find_links, is_archive_unchanged
from driftline.tasks.text import decode, split_lines

_COLUMNS = ["path", "size_bytes", "mtime_ns", "hash", "lines", "reason"]


@dataclass(frozen=True, slots=True, order=True)
class DocumentCursor:
    """A position in the sorted documents: after ``path`` of ``source``."""

    source: str
    path: str


@dataclass(frozen=True, slots=True)
class Document:
    """A document as indexed. If it was skipped, ``reason`` explains why it has no lines."""

    source: str
    path: str
    lines: int
    size_bytes: int
    modified: str | None
    hash: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """One page of documents, sorted by source and path.

    ``next`` is the start of the next page, None on the last page.
    """

    documents: tuple[Document, ...]
    next: DocumentCursor | None

    def to_dict(self) -> dict[str, Any]:
        """Return the page as a JSON object."""
        return {"documents": [asdict(document) for document in self.documents]}


def document_page(
    workspace: Workspace,
    sources: Sequence[Entity] | None = None,
    dirs: Sequence[str] = (),
    exts: Sequence[str] = (),
    *,
    within: Boundary | None = None,
    limit: int,
    after: DocumentCursor | None = None,
) -> DocumentPage:
    """Return at most ``limit`` documents after ``after``.

    Only documents of ``sources`` (default: all) inside the boundary ``within`` are listed. ``dirs`` includes everything
    under these directories. Raises UsageError for a directory outside its source; also StorageError.
    """
    entities = sorted(workspace.entities(within), key=str)
    if sources is not None:
        entities = [entity for entity in entities if any(is_within(entity, source) for source in sources)]
    found: list[Document] = []
    for entity in entities:
        if (after is not None and str(entity) < after.source) or workspace.readable_source(entity) is None:
            continue
        behind = after.path if after is not None and str(entity) == after.source else None
        found += _documents(workspace, entity, dirs, exts, behind, limit + 1 - len(found))
        if len(found) > limit:
            last = found[limit - 1]
            return DocumentPage(tuple(found[:limit]), DocumentCursor(last.source, last.path))
    return DocumentPage(tuple(found), None)


@dataclass(frozen=True, slots=True)
class Folder:
    """A source folder's content as indexed; ``path`` is empty for the root.

    ``folders`` contains names with the number of documents below each; ``documents`` contains names, sizes in bytes,
    and the reason if the document was skipped. Both are sorted by name. ``left_out`` counts entries beyond the limit.
    """

    source: str
    path: str
    folders: tuple[tuple[str, int], ...]
    documents: tuple[tuple[str, int, str | None], ...]
    left_out: int


def read_folder(workspace: Workspace, source: str, path: str, *, within: Boundary | None = None, limit: int) -> Folder:
    """Return a source's folder at ``path`` inside the boundary ``within``, with at most ``limit`` entries.

    Raises NotIndexed for anything else; also BadEntity, StorageError.
    """
    entity = Entity.parse(source, workspace.config.hierarchy)
    is_visible = is_unicode(path) and (within is None or within.allows(entity))
    prefix = f"{path}/" if path else ""
    if is_visible and workspace.readable_source(entity) is not None:
        rows = workspace.manifest(entity).read([prefix] if prefix else None, columns=["path", "size_bytes", "reason"])
        if len(rows) or not path:
            return _folder(source, path, rows, limit)
    raise NotIndexed("No such folder is indexed", path or source, "List the sources, and open a folder from there.")


def _folder(source: str, path: str, rows: pa.Table, limit: int) -> Folder:
    names = pc.utf8_slice_codeunits(rows["path"], len(path) + 1 if path else 0)
    is_below = pc.match_substring(names, "/")
    tops = pc.list_element(pc.split_pattern(names.filter(is_below), "/", max_splits=1), 0)
    counted = sorted((each["values"], each["counts"]) for each in pc.value_counts(tops).to_pylist())
    inside = rows.set_column(0, "path", names).filter(pc.invert(is_below)).sort_by("path")
    folders, room = tuple(counted[:limit]), max(0, limit - len(counted))
    documents = tuple((row["path"], row["size_bytes"] or 0, row["reason"]) for row in inside.slice(0, room).to_pylist())
    left_out = len(counted) + len(inside) - len(folders) - len(documents)
    return Folder(source, path, folders, documents, left_out)


MAX_FIND_SOURCES = 200
"""How many sources to look for a document in, unless one is named."""


@dataclass(frozen=True, slots=True)
class FoundDocuments:
    """The best of the ``count`` matching documents, as (source, path), best first. ``sources`` were searched; if there
    are more, ``complete`` is not set.
    """

    documents: tuple[tuple[str, str], ...]
    count: int
    complete: bool


def find_documents(
    workspace: Workspace, text: str, source: str | None = None, *, within: Boundary | None = None, limit: int
) -> FoundDocuments:
    """Find documents by the characters of ``text``, which their paths contain in this order, in any case.

    Names that contain the whole text come first, then paths that do, then the shortest. Only documents of sources
    inside the boundary ``within`` are found. Raises StorageError.
    """
    sought = normalize("NFC", "".join(text.split()).lower())
    pattern = "(?is)" + ".*?".join(map(literal_pattern, sought))
    entities = [entity for entity, _ in workspace.readable_sources(within) if source in (None, str(entity))]

    def find(entity: Entity) -> pa.Table:
        rows = workspace.manifest(entity).read(columns=["path", "reason"])
        paths = rows["path"].filter(pc.is_null(rows["reason"]))
        matching = paths.filter(pc.match_substring_regex(paths, pattern))
        return pa.table({"source": pa.repeat(str(entity), len(matching)), "path": matching})

    if not sought or not is_unicode(sought):
        return FoundDocuments((), 0, True)
    found = pa.concat_tables([_NO_PATHS, *workspace.map_parallel(find, entities[:MAX_FIND_SOURCES])])
    best = best_matches(found, sought, limit)
    documents = zip(best["source"].to_pylist(), best["path"].to_pylist(), strict=True)
    return FoundDocuments(tuple(documents), len(found), len(entities) <= MAX_FIND_SOURCES)


_NO_PATHS = pa.schema([("source", pa.string()), ("path", pa.string())]).empty_table()


def best_matches(found: pa.Table, sought: str, limit: int) -> pa.Table:
    """Sort paths: file names that start with ``sought``, names that contain it, other paths that do; the shortest
    first.
    """
    letters = literal_pattern(sought)
    name = rf"(?i){letters}[^/]*$"
    keys = {
        "starts": pc.match_substring_regex(found["path"], f"(^|/){name}"),
        "in_name": pc.match_substring_regex(found["path"], name),
        "in_path": pc.match_substring_regex(found["path"], f"(?i){letters}"),
        "length": pc.negate(pc.utf8_length(found["path"])),
    }
    ranked = found
    for key, column in keys.items():
        ranked = ranked.append_column(key, pc.cast(column, pa.int64()))
    order = [*((key, "descending") for key in keys), ("path", "ascending"), ("source", "ascending")]
    return found.take(pc.select_k_unstable(ranked, limit, order))


def _documents(
    workspace: Workspace, entity: Entity, dirs: Sequence[str], exts: Sequence[str], behind: str | None, limit: int
) -> list[Document]:
    """Return at most ``limit`` documents of a source after the path ``behind``; reads no more of the manifest."""
    names = {form for name in dirs for form in spellings(normalize_path(name))}
    prefixes = [""] if not names or "" in names else sorted(f"{name}/" for name in names)
    outermost = [each for each in prefixes if not any(each != other and each.startswith(other) for other in prefixes)]
    endings = {f".{ext.removeprefix('.').lower()}" for ext in exts}
    low = "" if behind is None else f"{behind}\0"

    def work(pieces: Iterator[pa.Table], room: int) -> list[Document]:
        rows = (row for piece in pieces for batch in piece.to_batches(1_000) for row in batch.to_pylist())
        matching = (row for row in rows if not endings or PurePosixPath(row["path"]).suffix.lower() in endings)
        return [_document(entity, row) for row in islice(matching, room)]

    found: list[Document] = []
    for prefix in outermost:
        until = after_prefix(prefix) if prefix else None
        if until is None or low < until:
            read = partial(work, room=limit - len(found))
            found += workspace.manifest(entity).reduce(read, max(low, prefix), until, columns=_COLUMNS)
    return found


def _document(entity: Entity, row: Mapping[str, Any]) -> Document:
    return Document(
        source=str(entity),
        path=row["path"],
        lines=row["lines"] or 0,
        size_bytes=row["size_bytes"] or 0,
        modified=_time(row["mtime_ns"]),
        hash=row["hash"] or "",
        reason=row["reason"],
    )


def _time(nanoseconds: int | None) -> str | None:
    if not nanoseconds:
        return None
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="seconds")


_LAST_LINE = 2**31 - 1
"""Lance cannot compare an int32 column with a larger number."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A document's lines as indexed, beginning at ``start_line`` (1-based).

    ``current`` is False if the document cannot be read or has changed; the lines then come from the index. ``url`` is a
    permalink to the requested line, as in a hit. ``anchors`` contains the document's sections, in order, each with its
    first line here.
    """

    source: str
    path: str
    start_line: int
    lines: tuple[str, ...]
    current: bool
    url: str | None = None
    anchors: tuple[tuple[int, str], ...] = ()


@without_panic()
def read_excerpt(
    workspace: Workspace,
    path: str,
    line: int,
    *,
    n_lines: int,
    source: str | None = None,
    within: Boundary | None = None,
) -> Excerpt:
    """Return a line of an indexed document, with ``n_lines`` of context on each side.

    ``path`` may also begin with ``./`` or be absolute. ``source`` may be omitted if only one source has the path. Only
    documents of sources inside the boundary ``within`` are read. Text that is not indexed is never returned: a document
    is read by its path in the manifest, and used only if its hash matches the manifest's. Raises NotIndexed for
    anything else, UsageError, StorageError.
    """
    if line < 1 or n_lines < 0:
        raise UsageError("line must be at least 1, and n_lines at least 0", f"{line}, {n_lines}")
    entity, path, digest = _indexed_excerpt(workspace, path, source, within)
    record = workspace.readable_source(entity)
    data = _read_excerpt(workspace, record, path, digest)
    lines = None if data is None else split_lines(decode(data)[0]) if is_plain(path, data) else []
    first, last = (min(max(0, at), _LAST_LINE) for at in (line - 1 - n_lines, line - 1 + n_lines))
    current = lines is not None or is_archive_unchanged(workspace, entity, record, path)
    if lines and record is not None:
        part = redact_lines(lines, record.redact, first, last)
    else:
        part = _from_index(workspace, entity, path, first, last)
    if line > first + len(part):
        count = len(lines or _from_index(workspace, entity, path, 0, last))
        what = f"The document has no line {line}: it has {count} {'line' if count == 1 else 'lines'}"
        raise NotIndexed(what, path, "Use a line number from a search result.")
    document = str(entity), path
    may_have_anchors = is_named_like_document(path) or (data is not None and is_extracted(path, data))
    anchors = _anchors_between(workspace, entity, path, first, first + len(part) - 1) if may_have_anchors else ()
    links = find_links(workspace, lambda _: record, {document: digest}, {document: data})
    return Excerpt(*document, first + 1, tuple(part), current, links.url(*document, line), anchors)


def _anchors_between(
    workspace: Workspace, entity: Entity, path: str, first: int, last: int
) -> tuple[tuple[int, str], ...]:
    """Return the anchors of lines ``first`` to ``last``, 0-based, each with its first line in this range, 1-based."""
    lines = [*range(first, last + 1, LINES_PER_BLOCK), last]
    found = outlines_of(TableSearcher(workspace.lines(entity)), [(str(entity), path, line) for line in lines])
    anchors = {anchor for outline in found.values() for anchor in anchors_in(outline)}
    inside = sorted((anchor.first, anchor.name) for anchor in anchors if anchor.first <= last and anchor.last >= first)
    return tuple((max(first, at) + 1, name) for at, name in inside)


def _indexed_excerpt(
    workspace: Workspace, path: str, source: str | None, within: Boundary | None
) -> tuple[Entity, str, str]:
    """Return the source ``within`` a boundary that has indexed ``path``, its path there, and the indexed hash."""
    if source is None:
        roots = [(entity, record.uri) for entity, record in workspace.readable_sources(within)]
    else:
        named = Entity.parse(source, workspace.config.hierarchy)
        record = workspace.readable_source(named) if is_allowed(named, within) else None
        roots = [(named, record.uri if record is not None else "")] if is_allowed(named, within) else []
    plain = posixpath.normpath(path)

    def find(source: tuple[Entity, str]) -> list[tuple[Entity, str, str]]:
        entity, root = source
        spelled = (path, plain, inside_of(root, plain) if plain.startswith("/") else None)
        names = list(dict.fromkeys(form for name in spelled if name for form in spellings(name)))
        rows = workspace.manifest(entity).get(names, columns=["path", "hash", "reason"]).to_pylist()
        hashes = {row["path"]: row["hash"] for row in rows if row["reason"] is None}
        return [(entity, name, hashes[name]) for name in names if name in hashes][:1]

    found = [each for some in workspace.map_parallel(find, roots) for each in some]
    if not found:
        raise NotIndexed("No such document is indexed", path, "Use the path and source from a search result.")
    if len(found) > 1:
        sources = ", ".join(str(entity) for entity, *_ in found)
        raise UsageError("Several sources contain this document", path, f"Specify one of them: {sources}.")
    return found[0]


def _read_excerpt(workspace: Workspace, record: SourceRecord | None, path: str, digest: str) -> bytes | None:
    """Return a document's content as indexed, or None if it changed or cannot be read."""
    if record is None or not workspace.access.allows(record.uri):
        return None
    source = known_source(record.uri, workspace.objects.storage_options)
    try:
        data = source.read(path) if is_readable(source, path) else b""
    except DriftlineError:
        return None  # fall back to the index
    return data if content_hash(data) == digest else None


def _from_index(workspace: Workspace, entity: Entity, path: str, first: int, last: int) -> list[str]:
    passage = Passage(str(entity), path, first, last)
    return lines_of(TableSearcher(workspace.lines(entity)), [passage])[passage]

"""List the documents of an index, in pages or by folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.entities import Boundary, Entity, is_within
from driftline.storage.errors import NotIndexed
from driftline.storage.globs import is_unicode
from driftline.storage.lines.line_filter import normalise
from driftline.storage.workspace.workspace import Workspace

_COLUMNS = ["path", "size_bytes", "mtime_ns", "hash", "lines", "reason"]


@dataclass(frozen=True, slots=True, order=True)
class DocumentCursor:
    """A position in the sorted documents: after ``path`` of ``source``."""

    source: str
    path: str


@dataclass(frozen=True, slots=True)
class Document:
    """A document as it was indexed; ``reason`` says why it has no lines, if it was skipped."""

    source: str
    path: str
    lines: int
    size_bytes: int
    modified: str | None
    hash: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """One page of documents, sorted by source and path. ``next`` is the start of the next page, None on the last."""

    documents: tuple[Document, ...]
    next: DocumentCursor | None

    def to_dict(self) -> dict[str, Any]:
        """Return the documents as JSON."""
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
    """Return at most ``limit`` documents that follow ``after``, of the ``sources`` (default: all) ``within`` a
    boundary.

    ``dirs`` include everything below them. Raises UsageError for a directory outside of its source, StorageError.
    """
    entities = sorted((entity for entity, _ in workspace.readable_sources(within)), key=str)
    if sources is not None:
        entities = [entity for entity in entities if any(is_within(entity, source) for source in sources)]
    found: list[Document] = []
    for entity in entities:
        if after is not None and str(entity) < after.source:
            continue
        behind = after.path if after is not None and str(entity) == after.source else None
        for document in _documents(workspace, entity, dirs, exts, behind):
            if len(found) == limit:
                return DocumentPage(tuple(found), DocumentCursor(found[-1].source, found[-1].path))
            found.append(document)
    return DocumentPage(tuple(found), None)


@dataclass(frozen=True, slots=True)
class Folder:
    """The content of a folder of a source as it was indexed; its ``path`` is empty for the root.

    ``folders`` are names with the number of documents below each, ``documents`` are the names of documents with their
    sizes in bytes, and the reason if they were skipped. Both are sorted by name. ``left_out`` counts further ones.
    """

    source: str
    path: str
    folders: tuple[tuple[str, int], ...]
    documents: tuple[tuple[str, int, str | None], ...]
    left_out: int


def read_folder(workspace: Workspace, source: str, path: str, *, within: Boundary | None = None, limit: int) -> Folder:
    """Return the folder ``path`` of a source ``within`` a boundary, with at most ``limit`` entries.

    Raises NotIndexed for anything else, BadEntity, StorageError.
    """
    entity = Entity.parse(source, workspace.config.hierarchy)
    is_visible = is_unicode(path) and (within is None or within.allows(entity))
    prefix = f"{path}/" if path else ""
    if is_visible and workspace.readable_source(entity) is not None:
        rows = workspace.manifest(entity).read([prefix] if prefix else None, columns=["path", "size_bytes", "reason"])
        if len(rows) or not path:
            return _folder(source, path, rows, limit)
    raise NotIndexed("No such folder is indexed", path or source, "Start at the sources.")


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


def _documents(
    workspace: Workspace, entity: Entity, dirs: Sequence[str], exts: Sequence[str], behind: str | None
) -> Iterator[Document]:
    names = [normalise(name) for name in dirs]
    prefixes = None if not names or "" in names else [f"{name}/" for name in names]
    rows = workspace.manifest(entity).read(prefixes, columns=_COLUMNS)
    if behind is not None:
        rows = rows.filter(pc.greater(pc.cast(rows["path"], "binary"), behind.encode("utf-8", "surrogatepass")))
    endings = {f".{ext.removeprefix('.').lower()}" for ext in exts}
    for batch in rows.to_batches(1_000):
        for row in batch.to_pylist():
            if endings and PurePosixPath(row["path"]).suffix.lower() not in endings:
                continue
            yield Document(
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

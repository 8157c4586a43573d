"""The documents of an index, page by page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

import pyarrow.compute as pc

from driftline.storage.entities import Entity
from driftline.storage.hierarchy import is_within
from driftline.storage.lines.filters import normalise
from driftline.storage.workspace.workspace import Workspace

_COLUMNS = ["path", "size_bytes", "mtime_ns", "hash", "lines", "reason"]


@dataclass(frozen=True, slots=True, order=True)
class DocumentCursor:
    """A place in the order of documents: behind ``path`` of the ``source``."""

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
    """Documents by source and path; ``next`` is where the next page begins, None after the last one."""

    documents: tuple[Document, ...]
    next: DocumentCursor | None

    def to_dict(self) -> dict[str, Any]:
        """The documents as JSON has them."""
        return {"documents": [asdict(document) for document in self.documents]}


def document_page(
    workspace: Workspace,
    sources: Sequence[Entity] | None = None,
    dirs: Sequence[str] = (),
    exts: Sequence[str] = (),
    *,
    within: Entity | None = None,
    limit: int,
    after: DocumentCursor | None = None,
) -> DocumentPage:
    """At most ``limit`` documents behind ``after``, of the ``sources`` (default: all) at or below ``within``.

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

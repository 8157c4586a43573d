"""Read and write a source's lines directly, for programs that produce their own text or embeddings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.storage.deltas import manifest
from driftline.storage.deltas.manifest import ManifestRow
from driftline.storage.documents import DocumentState
from driftline.storage.embedding import CURRENT_EMBEDDING_VERSION
from driftline.storage.entities import Entity
from driftline.storage.errors import NotIndexed, UsageError
from driftline.storage.globs import is_unicode
from driftline.storage.layout import new_ulid
from driftline.storage.lines.line_filter import normalize_path
from driftline.storage.lines.table_searcher import LineFilter, nearest_lines
from driftline.storage.option_table import listed, path_or_uri
from driftline.storage.workspace.records import PROGRAM_SCHEME, SourceRecord
from driftline.storage.workspace.workspace import Workspace, acquire_source
from driftline.tasks.embedding.models import model_of
from driftline.tasks.indexing.commit import ChangeSet, Committer, settle
from driftline.tasks.indexing.rows import line_rows


@dataclass(frozen=True, slots=True)
class DocMeta:
    """Metadata of a document whose lines a program stores itself; ``mtime`` is in seconds since 1970.

    ``version`` is the CURRENT_EMBEDDING_VERSION its text was prepared with.
    """

    path: str
    size_bytes: int
    mtime: float
    version: int = CURRENT_EMBEDDING_VERSION


@dataclass(frozen=True, slots=True)
class LineEmbedding:
    """One row of ``line_embeddings``: ``line_number`` is 0-based, ``embedding`` is ``(dim,)``."""

    path: str
    line_number: int
    embedding: Sequence[float] | NDArray[np.floating[Any]]
    text: str = ""


OWN_SOURCE = "source:lines"
_EMBED = "Embed with the workspace's model."
_SAME_SECONDS = 1e-6
"""Times nearer than this are equal: seconds as a float have a quarter of a microsecond."""
_MAX_LINES, _MAX_SECONDS = 2**31, 2**33
"""Limits of the columns: 32 bits, and 64 bits of nanoseconds."""


class OpenWorkspace(Protocol):
    """The attributes of a ``driftline.open`` result that a store needs."""

    storage: Workspace


class LineStore:
    """The lines of one source. Writes take the source's lease and are atomic; reads need only read access.

    If ``entity`` is None, the store writes to the source ``OWN_SOURCE``, and searches all sources of the workspace.
    """

    def __init__(self, workspace: Workspace | OpenWorkspace, entity: str | None = None) -> None:
        self.workspace = workspace if isinstance(workspace, Workspace) else workspace.storage
        self.entity = Entity.parse(entity or OWN_SOURCE, self.workspace.config.hierarchy)
        self._covers_all = entity is None

    @classmethod
    def open(cls, workspace_path: str | os.PathLike[str], entity: str | None = None) -> LineStore:
        """Open a workspace, or create it for the default model.

        Args:
            workspace_path: the workspace's path or URI.
            entity: the source to write to; by default ``source:lines``, and searches cover all sources.

        Returns:
            The store.

        Raises:
            DriftlineError: UsageError, ModelNotFound, UnsafeStore, AccessDenied, StorageError.

        Examples:
            >>> LineStore.open(location).delete_documents(["unknown.md"])
            0
        """
        workspace = Workspace.open_for_writing(workspace_path)
        if workspace.config.fingerprint is None:
            model = model_of()
            workspace = workspace.bind_model(model.name, model.fingerprint, model.dim)
        return cls(workspace, entity)

    def upsert_line_embeddings(
        self,
        embeddings: Iterable[LineEmbedding],
        documents: Iterable[DocMeta] = (),
        *,
        wait_seconds: float = 0.0,
    ) -> int:
        """Replace all lines of the documents that ``embeddings`` belong to.

        Args:
            embeddings: lines with vectors of the workspace's dimension. Paths are relative to the source: ``/a`` and
                ``./a`` are ``a``.
            documents: their metadata. If it is missing, the next index run compares the document with its file.
            wait_seconds: how long to wait for a run that holds the lease.

        Returns:
            The number of lines written.

        Raises:
            DriftlineError: UsageError, LeaseHeld, StorageError.

        Examples:
            >>> store = LineStore.open(f"{location}-own")
            >>> vector = [1.0] + [0.0] * (store.workspace.config.dim - 1)
            >>> store.upsert_line_embeddings([driftline.LineEmbedding("own.txt", 0, vector, "renew")])
            1
            >>> store.delete_documents(["own.txt"])
            1
        """
        dim, fingerprint = self._embedding()
        found = [_checked_line(line, dim) for line in _each("embeddings", embeddings)]
        lines = sorted(found, key=lambda line: (line.path, line.line_number))
        for line, following in pairwise(lines):
            if (line.path, line.line_number) == (following.path, following.line_number):
                raise UsageError("A line was given twice", f"{line.path}, line {line.line_number}", "Store it once.")
        given = {document.path: document for document in map(_checked_document, _each("documents", documents))}
        paths = sorted({line.path for line in lines} | set(given))
        if not paths:
            return 0
        row_of = {path: row for row, path in enumerate(paths)}
        counts = np.bincount([row_of[line.path] for line in lines], minlength=len(paths))
        metas = [_row(path, given.get(path), fingerprint, int(n)) for path, n in zip(paths, counts, strict=True)]
        rows = line_rows(
            self.entity,
            metas,
            pa.array([row_of[line.path] for line in lines], pa.int32()),
            pa.array([line.line_number for line in lines], pa.int32()),
            pa.array([line.text for line in lines], pa.string()),
            np.asarray([line.embedding for line in lines], np.float16).reshape(len(lines), dim),
        )
        self._commit(ChangeSet(manifest.to_table(metas), replaced=tuple(paths)), wait_seconds, rows)
        return len(rows)

    def delete_documents(self, paths: Iterable[str], *, wait_seconds: float = 0.0) -> int:
        """Remove documents and their lines.

        Args:
            paths: their paths; unknown paths are ignored.
            wait_seconds: how long to wait for a run that holds the lease.

        Returns:
            The number of documents removed.

        Raises:
            DriftlineError: LeaseHeld, StorageError.

        Examples:
            >>> LineStore(ws).delete_documents(["unknown.md"])
            0
        """
        names = [_checked_path(path) for path in _each("paths", paths)]
        indexed = self.workspace.manifest(self.entity).get(names, columns=["path"])["path"].to_pylist()
        if indexed:
            self._commit(ChangeSet(manifest.SCHEMA.empty_table(), removed=tuple(indexed)), wait_seconds)
        return len(indexed)

    def get_document_meta(self, path: str) -> DocMeta | None:
        """Return the metadata of a document, to compare it with its file.

        Args:
            path: its path, relative to the source or absolute.

        Returns:
            The metadata, or None for an unknown document or one stored without metadata.

        Raises:
            DriftlineError: UsageError, CorruptFile, StorageError.

        Examples:
            >>> LineStore(ws, "source:tree").get_document_meta("notes.md").size_bytes
            28
        """
        name = self._path(path)
        others = [entity for entity, _ in self.workspace.sources()] if self._covers_all else []
        each = (self._metadata([name], entity).get(name) for entity in (self.entity, *others))
        return next(filter(None, each), None)

    def _metadata(self, paths: Iterable[str], entity: Entity | None = None) -> dict[str, DocMeta]:
        columns = ["path", "size_bytes", "mtime_ns", "fingerprint", "racy"]
        _, current = self._embedding()
        return {
            row["path"]: DocMeta(
                row["path"],
                row["size_bytes"],
                row["mtime_ns"] / 1_000_000_000,
                CURRENT_EMBEDDING_VERSION if row["fingerprint"] == current else 0,
            )
            for row in self.workspace.manifest(entity or self.entity).get(sorted(paths), columns=columns).to_pylist()
            if row["mtime_ns"] or not row["racy"]
        }

    def search_line_embeddings(
        self,
        query_vec: Sequence[float] | NDArray[np.float32],
        paths: Iterable[str] | None = None,
        top_k: int = 10,
        max_distance: float | None = None,
    ) -> pa.Table:
        """Return the lines nearest to a vector, best first, with ``distance``.

        Args:
            query_vec: ``(dim,) float32``.
            paths: search only these documents, relative to their source or absolute; an empty sequence matches nothing.
            top_k: the maximum number of lines.
            max_distance: drop more distant lines (1 - cosine, 0 to 2).

        Returns:
            One row per line.

        Raises:
            DriftlineError: UsageError for a vector of another dimension, NotIndexed if there are no lines.

        Examples:
            >>> vector = [1.0] + [0.0] * (ws.storage.config.dim - 1)
            >>> LineStore(ws).search_line_embeddings(vector, top_k=1)["path"].to_pylist()
            ['notes.md']
        """
        dim, _ = self._embedding()
        vector = _checked_vector("The query", query_vec, dim).astype(np.float32)
        if not _is_whole(top_k, _MAX_LINES):
            raise UsageError("top_k must be a whole number, and not negative", repr(top_k)[:100])
        if max_distance is not None and not _is_number(max_distance):
            raise UsageError("max_distance must be a number", repr(max_distance)[:100])
        names = None if paths is None else tuple(map(self._path, _each("paths", paths)))
        where = LineFilter(entities=None if self._covers_all else (self.entity,), paths=names)
        tenants = self.workspace.tenants() if self._covers_all else [self.entity.tenant]
        tables = [table for tenant in tenants if (table := self.workspace.lines(tenant)).exists()]
        if len(tables) == 1 or not self._covers_all:
            table = tables[0] if tables else self.workspace.lines(self.entity)
            return nearest_lines(table, vector, top_k, where, max_distance)
        if not tables:
            raise NotIndexed(
                "The workspace has no lines yet", self.workspace.objects.uri, "Store or index lines first."
            )
        found = pa.concat_tables([nearest_lines(each, vector, top_k, where, max_distance) for each in tables])
        return found.sort_by("distance").slice(0, top_k)

    def _path(self, path: object) -> str:
        """Return a document's path in its source; an absolute one may be that of a file in a source's folder."""
        if not isinstance(path, str | os.PathLike) or not os.path.isabs(path):
            return _checked_path(path)
        path = os.fspath(path)
        known = [
            (entity, each) for entity, each in self.workspace.sources() if self._covers_all or entity == self.entity
        ]
        roots = [f"{os.path.realpath(record.uri).rstrip('/')}/" for _, record in known if record.is_local]
        file = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        within = max((root for root in roots if file.startswith(root)), key=len, default="")
        return _checked_path(file[len(within) :] if within else path)

    def _embedding(self) -> tuple[int, str]:
        config = self.workspace.config
        if config.dim is None or config.fingerprint is None:
            raise UsageError(
                "The workspace has no model yet", self.workspace.objects.uri, "Index a source first, or bind_model()."
            )
        return config.dim, config.fingerprint

    def _commit(self, changes: ChangeSet, wait_seconds: float, rows: pa.Table | None = None) -> None:
        dim, _ = self._embedding()
        workspace, run_id = self.workspace, new_ulid()
        with acquire_source(workspace, self.entity, run_id, wait_seconds=wait_seconds) as lease:
            settle(workspace, self.entity, lease)
            if workspace.source(self.entity) is None:
                record = SourceRecord(entity=str(self.entity), uri=f"{PROGRAM_SCHEME}{self.entity}")
                workspace.bind_source(self.entity, record)
            table = workspace.lines(self.entity)
            if rows is not None and len(
                rows
            ):  # under the lease, because a cleanup deletes fragments that no lease protects
                changes = replace(changes, fragments=tuple(table.write_fragments(rows)))
            Committer(workspace, self.entity, lease, run_id, table, dim).commit(changes)


def _each(name: str, given: Any) -> tuple[Any, ...]:
    return listed(name, given) or ()


def _is_whole(number: Any, below: int) -> bool:
    return isinstance(number, Integral) and 0 <= int(number) < below


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(number: object) -> bool:
    return isinstance(number, Real)


def _checked_path(path: object) -> str:
    """Return the path of a document as the index spells it. Raises UsageError."""
    found = normalize_path(path_or_uri("A path", path))
    if not found or not is_unicode(found):
        raise UsageError("A path must name a document, in valid Unicode", repr(path)[:100])
    return found


def _checked_vector(what: str, given: object, dim: int) -> NDArray[np.float64]:
    """Return a vector as ``(dim,) float64``. Raises UsageError."""
    try:
        vector = np.array(given, np.float64)
    except (TypeError, ValueError):
        raise UsageError(f"{what} must be {dim} numbers", repr(given)[:100]) from None
    if vector.shape != (dim,):
        raise UsageError(f"{what} has the shape {vector.shape}, not ({dim},)", "", _EMBED)
    if not np.isfinite(vector).all():
        raise UsageError(f"{what} contains numbers that are not finite", "", _EMBED)
    return vector


def _checked_line(line: object, dim: int) -> LineEmbedding:
    """Return a line with its path normalized and a unit vector, ``(dim,) float16``. Raises UsageError."""
    if not isinstance(line, LineEmbedding):
        raise UsageError("embeddings must be LineEmbedding objects", repr(line)[:100])
    path = _checked_path(line.path)
    where = f"{path}, line {line.line_number!r}"
    if not _is_whole(line.line_number, _MAX_LINES):
        raise UsageError("A line number must be a non-negative integer", where)
    if not (_is_text(line.text) and is_unicode(line.text)):
        raise UsageError("A line's text must be valid Unicode", where)
    vector = _checked_vector(f"The vector of {where}", line.embedding, dim)
    vector /= np.abs(vector).max() or 1.0  # its norm cannot overflow
    unit = (vector / (np.linalg.norm(vector) or 1.0)).astype(np.float16)
    return LineEmbedding(path, line.line_number, unit, line.text)


def _checked_document(document: object) -> DocMeta:
    """Return metadata with the path normalized. Raises UsageError."""
    if not isinstance(document, DocMeta):
        raise UsageError("documents must be DocMeta objects", repr(document)[:100])
    if not _is_whole(document.size_bytes, 2**63):
        raise UsageError("size_bytes must be a non-negative integer", repr(document)[:200])
    if not _is_number(document.mtime) or not abs(document.mtime) < _MAX_SECONDS:  # also of NaN
        raise UsageError("mtime must be seconds since 1970", repr(document)[:200])
    return replace(document, path=_checked_path(document.path))


def states_of_stored(store: LineStore, files: Sequence[str]) -> dict[str, DocumentState]:
    """Compare local files by size, time and version with the metadata that a program stored their documents with.

    A document's path is the file's path as given, or relative to the current folder. Other files are omitted.
    """
    record = store.workspace.source(store.entity)
    if record is None or not record.uri.startswith(PROGRAM_SCHEME):
        return {}
    names = {file: [path for path in (file, os.path.relpath(file)) if not path.startswith("..")] for file in files}
    known = store._metadata({_checked_path(path) for paths in names.values() for path in paths})
    found = {}
    for file, paths in names.items():
        document = next((known[path] for path in map(_checked_path, paths) if path in known), None)
        if document is not None:
            found[file] = _state(file, document)
    return found


def _state(file: str, document: DocMeta) -> DocumentState:
    try:
        now = os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return DocumentState.DELETED
    is_same_time = abs(now.st_mtime - document.mtime) < _SAME_SECONDS
    expected = (document.size_bytes, document.version)
    is_same = is_same_time and (now.st_size, CURRENT_EMBEDDING_VERSION) == expected
    return DocumentState.UNCHANGED if is_same else DocumentState.CHANGED


def _row(path: str, known: DocMeta | None, fingerprint: str, lines: int) -> ManifestRow:
    """Return a document's row. The next run compares the content if it is unknown or was prepared differently."""
    if known is None or known.version != CURRENT_EMBEDDING_VERSION:
        return ManifestRow(path, 0, 0, fingerprint=fingerprint, lines=lines, racy=True)
    mtime_ns = round(known.mtime * 1_000_000_000)
    return ManifestRow(path, known.size_bytes, mtime_ns, fingerprint=fingerprint, lines=lines)


Store = LineStore
"""Alias of LineStore, for programs written against its specification."""

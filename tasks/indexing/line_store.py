"""Read and write a source's lines directly, for programs that produce their own text or embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.storage.deltas import manifest
from driftline.storage.deltas.manifest import ManifestRow
from driftline.storage.embedding import CURRENT_EMBEDDING_VERSION
from driftline.storage.entities import Entity
from driftline.storage.errors import NotIndexed, UsageError
from driftline.storage.layout import new_ulid
from driftline.storage.lines.line_queries import LineFilter, nearest_lines
from driftline.storage.workspace.records import SourceRecord
from driftline.storage.workspace.workspace import Workspace, acquire_source
from driftline.tasks.embedding.models import model_of
from driftline.tasks.indexing.commit import ChangeSet, Committer, settle
from driftline.tasks.indexing.rows import line_rows


@dataclass(frozen=True, slots=True)
class DocMeta:
    """The metadata of a document whose lines a program stores itself: ``mtime`` is in seconds since 1970.

    ``version`` is the CURRENT_EMBEDDING_VERSION with which its text was prepared.
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
    embedding: Sequence[float] | NDArray[np.float32]
    text: str = ""


OWN_SOURCE = "source:lines"
_EMBED = "Embed with the workspace's model."


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
    def open(cls, workspace_path: str, entity: str | None = None) -> LineStore:
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
        self, lines: Sequence[LineEmbedding], documents: Sequence[DocMeta] = (), *, wait_seconds: float = 0.0
    ) -> int:
        """Replace all lines of the documents that ``lines`` belong to.

        Args:
            lines: lines with vectors of the workspace's dimension.
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
        paths = sorted({line.path for line in lines} | {document.path for document in documents})
        given = {document.path: document for document in documents}
        lines = sorted(lines, key=lambda line: (line.path, line.line_number))
        row_of = {path: row for row, path in enumerate(paths)}
        counts = np.bincount([row_of[line.path] for line in lines], minlength=len(paths))
        metas = [_row(path, given.get(path), fingerprint, int(n)) for path, n in zip(paths, counts, strict=True)]
        vectors = np.asarray([line.embedding for line in lines], np.float32).reshape(len(lines), -1)
        if lines and vectors.shape[1] != dim:
            what = f"The vectors have {vectors.shape[1]} dimensions, not {dim}"
            raise UsageError(what, str(self.entity), _EMBED)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0).reshape(len(lines), dim)
        rows = line_rows(
            self.entity,
            metas,
            pa.array([row_of[line.path] for line in lines], pa.int32()),
            pa.array([line.line_number for line in lines], pa.int32()),
            pa.array([line.text for line in lines], pa.string()),
            unit.astype(np.float16),
        )
        self._commit(ChangeSet(manifest.to_table(metas), replaced=tuple(paths)), wait_seconds, rows)
        return len(rows)

    def delete_documents(self, paths: Sequence[str], *, wait_seconds: float = 0.0) -> int:
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
        indexed = self.workspace.manifest(self.entity).get(paths, columns=["path"])["path"].to_pylist()
        if indexed:
            self._commit(ChangeSet(manifest.SCHEMA.empty_table(), removed=tuple(indexed)), wait_seconds)
        return len(indexed)

    def search_line_embeddings(
        self,
        query_vec: Sequence[float] | NDArray[np.float32],
        paths: Sequence[str] | None = None,
        top_k: int = 10,
        max_distance: float | None = None,
    ) -> pa.Table:
        """Return the lines nearest to a vector, best first, with ``distance``.

        Args:
            query_vec: ``(dim,) float32``.
            paths: search only these documents; an empty sequence matches nothing.
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
        vector = np.asarray(query_vec, np.float32)
        if vector.shape != (dim,):
            raise UsageError(f"The query has shape {vector.shape}, not ({dim},)", "", _EMBED)
        where = LineFilter(
            entities=None if self._covers_all else (self.entity,), paths=None if paths is None else tuple(paths)
        )
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
                workspace.bind_source(self.entity, SourceRecord(entity=str(self.entity), uri=f"upsert:{self.entity}"))
            table = workspace.lines(self.entity)
            if rows is not None and len(
                rows
            ):  # under the lease, because a cleanup deletes fragments that no lease protects
                changes = replace(changes, fragments=tuple(table.write_fragments(rows)))
            Committer(workspace, self.entity, lease, run_id, table, dim).commit(changes)


def _row(path: str, known: DocMeta | None, fingerprint: str, lines: int) -> ManifestRow:
    """Return a document's row. The next run compares the content if it is unknown or was prepared differently."""
    if known is None or known.version != CURRENT_EMBEDDING_VERSION:
        return ManifestRow(path, 0, 0, fingerprint=fingerprint, lines=lines, racy=True)
    mtime_ns = round(known.mtime * 1_000_000_000)
    return ManifestRow(path, known.size_bytes, mtime_ns, fingerprint=fingerprint, lines=lines)


Store = LineStore
"""Alias of LineStore, for programs written against its specification."""

"""Store transformer embeddings of definitions in a Lance table, one row per definition (decision 0016).

The table is derived from the lines. A row is valid only while its hash equals its document's, so the table may lag, or
contain orphaned and duplicate rows; the next run repairs them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.storage.entities import Entity
from driftline.storage.lance.failures import reading, retried, with_indexes, write_failed, writing
from driftline.storage.lance.lance_table import (
    VECTOR_TYPE,
    LanceTable,
    create_vector_index,
    is_indexed,
    is_one_of,
    quote,
    without_rows,
)
from driftline.storage.layout import table_fingerprint, tables_directory
from driftline.storage.objects.store import ObjectStore

if TYPE_CHECKING:
    from lance import LanceDataset

MIN_INDEXED_ROWS = 100_000
"""Minimum number of rows for a vector index; comparing fewer vectors one by one takes milliseconds."""
PATHS_PER_LOOKUP = 2_000


def schema(dim: int) -> pa.Schema:
    """Return the columns of ``deep_embeddings``: a document, and one of its definitions (see ``outline.Definition``),
    0-based.

    ``vector`` is ``(dim,) float16``; ``text_hash`` is the hash of the embedded text. A document with no definitions has
    one row with ``line`` -1, and null vector and text hash.
    """
    return pa.schema(
        [
            pa.field("entity", pa.string()),
            pa.field("path", pa.string()),
            pa.field("hash", pa.string()),
            pa.field("parent_dirs", pa.list_(pa.string())),
            pa.field("ext", pa.string()),
            pa.field("kind", pa.string()),
            pa.field("name", pa.string()),
            pa.field("line", pa.int32()),
            pa.field("first", pa.int32()),
            pa.field("last", pa.int32()),
            pa.field("text_hash", pa.string()),
            pa.field("vector", pa.list_(VECTOR_TYPE, dim)),
        ]
    )


FOUND_COLUMNS = ("entity", "path", "hash", "kind", "name", "line", "first", "last")


class DeepTable(LanceTable):
    """The ``deep_embeddings`` table of one tenant and one transformer."""

    KIND = "deep"
    TITLE = "definitions"
    REPAIR = "Delete it; the next run embeds them again."

    def create(self, dim: int) -> None:
        """Create the table for ``dim``-dimensional vectors unless it exists. Raises StorageError."""
        self._create(schema(dim).empty_table())

    def write_fragments(self, rows: pa.Table) -> list[str]:
        """Write rows of ``schema(dim)`` as fragments, invisible until committed; return them as JSON."""
        return [json.dumps(fragment.to_json()) for fragment in self.write(rows)]

    def documents(self, entity: Entity) -> pa.Table:
        """Return the distinct ``(path, hash)`` pairs of the source's documents that have rows.

        Raises StorageError.
        """
        if not self.exists():
            return pa.table({"path": pa.array([], pa.string()), "hash": pa.array([], pa.string())})
        dataset, where = self.open(), f"entity = {quote(str(entity))}"

        def read(indexed: bool) -> pa.Table:
            return dataset.scanner(columns=["path", "hash"], filter=where, use_scalar_index=indexed).to_table()

        rows = with_indexes(dataset, self.TITLE, read)
        return rows.group_by(["path", "hash"]).aggregate([]).select(["path", "hash"])

    def vectors(self, entity: Entity, paths: Sequence[str]) -> dict[str, NDArray[np.float16]]:
        """Return the vectors of all definitions in a source's documents, by ``text_hash``.

        Raises StorageError, CorruptFile.
        """
        found: dict[str, NDArray[np.float16]] = {}
        dataset = self.open()
        for start in range(0, len(paths), PATHS_PER_LOOKUP):
            some = is_one_of("path", paths[start : start + PATHS_PER_LOOKUP])
            where = f"{some} AND entity = {quote(str(entity))} AND line >= 0"
            with reading(self.TITLE, self.uri):
                rows = dataset.scanner(columns=["text_hash", "vector"], filter=where).to_table()
            vectors = np.stack(rows["vector"].to_numpy()) if len(rows) else ()
            found.update(zip(rows["text_hash"].to_pylist(), vectors, strict=True))
        return found

    def commit(self, entity: Entity, fragments: Sequence[str], stale: Sequence[tuple[str, str]] = ()) -> None:
        """Add fragments and remove the rows of ``stale`` documents, ``(path, hash)``, in one version. Raises
        StorageError.

        After an unknown outcome, the next run may commit the same rows again, so rows may be duplicated.
        """
        import lance

        new = [lance.FragmentMetadata.from_json(text) for text in fragments]
        for dataset in self.commit_attempts():
            removed, updated = without_rows(dataset, [], _rows_of(dataset, entity, stale)) if stale else ([], [])
            try:
                self._replace_rows(dataset, removed, updated, new)
            except lance.commit.CommitConflictError:
                continue
            except OSError as error:
                raise write_failed("Could not commit definitions", self.uri, error) from error
            return
        raise self.conflicted()

    def remove(self, entity: Entity) -> None:
        """Remove all rows of a source. Raises StorageError."""
        documents = self.documents(entity).to_pydict()
        stale = [*zip(documents["path"], documents["hash"], strict=True)]
        if stale:
            self.commit(entity, [], stale)

    def index(self) -> None:
        """Create or extend the vector index once the table is large enough. Raises StorageError."""
        with writing("Could not build an index", self.uri):
            dataset = self.open()
            if is_indexed(dataset):
                dataset.optimize.optimize_indices()
            elif dataset.count_rows() >= MIN_INDEXED_ROWS:
                create_vector_index(dataset)
            self.sync_indexes(self.open())

    def nearest(self, query: NDArray[np.float32], limit: int, where: str | None = None) -> pa.Table:
        """Return FOUND_COLUMNS and ``distance`` (1 - cosine) of the definitions nearest to a unit vector, sorted."""
        condition = f"({where}) AND line >= 0" if where else "line >= 0"
        return self.nearest_rows(FOUND_COLUMNS, query, limit, condition)


def deep_tables(objects: ObjectStore, tenant: Entity) -> list[DeepTable]:
    """Return a tenant's definition tables, one for each transformer."""
    names = objects.list_dirs(tables_directory(tenant))
    fingerprints = (table_fingerprint(name, DeepTable.KIND) for name in names)
    return [DeepTable(objects, tenant.tenant, fingerprint) for fingerprint in fingerprints if fingerprint]


@retried
def _rows_of(dataset: LanceDataset, entity: Entity, documents: Sequence[tuple[str, str]]) -> list[int]:
    """Return the addresses of the rows of each ``(path, hash)`` in ``documents``."""
    wanted, found = set(documents), list[int]()
    for start in range(0, len(documents), PATHS_PER_LOOKUP):
        paths = [path for path, _ in documents[start : start + PATHS_PER_LOOKUP]]
        where = f"{is_one_of('path', paths)} AND entity = {quote(str(entity))}"
        rows = dataset.scanner(columns=["path", "hash"], filter=where, with_row_address=True).to_table()
        columns = (rows[name].to_pylist() for name in ("path", "hash", "_rowaddr"))
        found += [address for path, digest, address in zip(*columns, strict=True) if (path, digest) in wanted]
    return found

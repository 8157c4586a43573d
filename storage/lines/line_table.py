"""Write and read the Lance table of line embeddings: one row per line (DESIGN, "Index run").

Workers write fragments; one process commits. One version removes the old rows of replaced documents, adds fragments and
rewrites the source's commit marker. Two commits of a source therefore conflict, and the marker shows whether an
unacknowledged commit succeeded. Markers have neither vector nor text, so no search returns them.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from driftline.storage.entities import Entity
from driftline.storage.errors import CommitConflict, DriftlineError, LeaseLost, StorageError
from driftline.storage.lance.lance_table import (
    ADDRESS_BITS,
    COMMIT_ATTEMPTS,
    VECTOR_TYPE,
    LanceTable,
    TableFile,
    data_file,
    is_one_of,
    quote,
    without_rows,
)
from driftline.storage.lance.retries import with_indexes, write_failed
from driftline.storage.lines.outline import OUTLINE_COLUMN
from driftline.storage.model import Range

if TYPE_CHECKING:
    from lance import FragmentMetadata, LanceDataset, LanceFragment
    from lance.dataset import LanceOperation

    from driftline.storage.deltas.manifest import BatchId

log = logging.getLogger(__name__)

MARKER_LINE = -1
"""``line_number`` of a commit marker."""
PATHS_PER_LOOKUP = 2_000
MANY_FRAGMENTS = 32
"""A table of fewer fragments is looked through for a marker: one scan takes a few milliseconds."""
SMALL_FRAGMENT_ROWS = 4096
TABLES_REMEMBERED = 16
UNKNOWN_OUTCOMES = 3
"""Unknown outcomes tolerated per commit."""
TEXT_COLUMN = "block"
LINES_PER_BLOCK = 16
"""Lines per block of the full-text index. Blocks need fewer postings than lines, and words of neighbouring lines add
up. A block has at most this many rows."""
CODE_COLUMN = "block_code"
END_BYTES_PER_ROW, METADATA_BYTES = 11, 2**16
"""Size in a data file of the columns from ``entity`` on, which every search reads, and of the metadata behind them."""
PACK_COLUMN, PACK_LINE_COLUMN, GRAMS_COLUMN = "pack", "pack_line", "grams"
SPELLED, CONTINUED = "\x1f", "\r"
_COMPRESSED = {"lance-encoding:compression": "zstd", "lance-encoding:structural-encoding": "miniblock"}
"""Neighbouring values are compressed together, in half the bytes, and a value is read without looking up its offset."""


def schema(dim: int) -> pa.Schema:
    """Return the columns of ``line_embeddings``; ``vector`` is ``(dim,) float16``; ``parent_dirs`` end with a slash.

    A long line has several rows; ``column_number`` is the column at which a row begins.

    Only the first row of each block has ``block``, ``outline`` and ``block_code``. ``block`` is the path; a tab and
    the name of the definition that the block begins in, if any; SPELLED and the words that the tokenizer of the index
    would miss (tokenizer.py), if any; a line feed; and the lines of the block from the first to the last line with a
    row, joined by line feeds, and by CONTINUED if a row continues a line (decision 0007). ``outline`` has the
    definitions in the block (outline.py), or null if they were not determined. ``block_code`` is the meaning of the
    block (block_codes.py), or null if the model knows none of its words.

    Some rows have a ``pack``: the text of their document from line ``pack_line`` to the next pack, exactly as it was
    decoded, with ``grams``, the filter of its trigrams (packs.py).

    Files hold the columns in this order. The columns that every search reads come last, next to the metadata of the
    file, so that one read of the end of the file gets both (block_cache.py).
    """
    return pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("text", pa.string()),
            pa.field("vector", pa.list_(VECTOR_TYPE, dim)),
            pa.field("parent_dirs", pa.list_(pa.string())),
            pa.field("ext", pa.string()),
            pa.field(PACK_COLUMN, pa.string(), metadata=_COMPRESSED),
            pa.field(PACK_LINE_COLUMN, pa.int32()),
            pa.field(GRAMS_COLUMN, pa.binary(), metadata=_COMPRESSED),
            pa.field(TEXT_COLUMN, pa.string(), metadata=_COMPRESSED),
            pa.field("entity", pa.string()),
            pa.field("path", pa.string()),
            pa.field("line_number", pa.int32()),
            pa.field("column_number", pa.int32()),
            pa.field("hash", pa.string()),
            pa.field(OUTLINE_COLUMN, pa.string(), metadata=_COMPRESSED),
            pa.field(CODE_COLUMN, pa.binary(), metadata=_COMPRESSED),
        ]
    )


def searched_parts(fragments: Iterable[LanceFragment]) -> dict[TableFile, Range]:
    """Return the byte ranges that every search reads in the files of ``fragments``: the ends of data files, and all of
    the deletion files.
    """
    parts: dict[TableFile, Range] = {}
    for fragment in fragments:
        metadata: Any = fragment.metadata
        for file in metadata.files:
            if size := file.file_size_bytes:
                start = size - METADATA_BYTES - END_BYTES_PER_ROW * metadata.physical_rows
                parts[TableFile(f"data/{file.path}", file.base_id)] = max(0, start), size
        if (deletions := metadata.deletion_file) is not None:
            parts[TableFile(deletions.path(fragment.fragment_id), deletions.base_id)] = 0, None
    return parts


@dataclass(frozen=True, slots=True)
class CommitMarker:
    """The commit marker of a source: the newest fencing token and the last committed batch."""

    token: int
    run_id: str = ""
    batch: int = 0

    def holds(self, batch: BatchId) -> bool:
        """Return whether ``batch`` is committed; a run commits its batches in order."""
        return self.run_id == batch.run_id and self.batch >= batch.batch


@dataclass(frozen=True, slots=True)
class SourceCommit:
    """One source's part in a transaction: record ``batch`` under ``token``, and remove the rows of ``gone``.

    Without a batch, it only fences off older holders.
    """

    entity: Entity
    token: int
    batch: BatchId | None = None
    gone: tuple[str, ...] = ()

    def after(self, before: CommitMarker) -> CommitMarker:
        """Return the marker that replaces ``before``."""
        return CommitMarker(self.token, self.batch.run_id, self.batch.batch) if self.batch else self._fence(before)

    def is_committed(self, rows: Mapping[int, CommitMarker]) -> bool:
        """Return whether the existing markers of the source show that its transaction has been committed."""
        markers = list(rows.values())
        if self.batch is None:
            return markers == [self._fence(_newest(markers))]
        return self.after(CommitMarker(0)) in markers

    def _fence(self, before: CommitMarker) -> CommitMarker:
        return replace(before, token=self.token)


class LineTable(LanceTable):
    """``line_embeddings`` of one tenant and one embedding fingerprint."""

    KIND = "line"
    COLUMNS = tuple(schema(1).names)
    TITLE = "lines"
    REPAIR = "Restore it, or index the sources again."

    def create(self, dim: int) -> LanceDataset:
        """Create the table for vectors of ``dim`` dimensions unless it exists, and open it. Raises StorageError."""
        self._create(schema(dim).empty_table())
        return self.open()

    # -- writing -----------------------------------------------------------------------------

    def write_fragments(self, rows: pa.Table) -> list[str]:
        """Write rows of ``schema(dim)`` and return the fragments as JSON, for ``commit``.

        Raises StorageError, and UsageError if the table has another format.
        """
        try:
            fragments = self.write(rows)
        except StorageError:
            if self.exists():
                self.open()  # names the format if that is the reason
            raise
        return [json.dumps(fragment.to_json()) for fragment in fragments]

    def commit_marker(self, entity: Entity) -> CommitMarker:
        """Return the commit marker of ``entity``, with token 0 if it has none."""
        return self.marker_in(self.open(), entity)

    def commit_markers(self, entities: Sequence[Entity]) -> dict[Entity, CommitMarker]:
        """Return the commit marker of each of ``entities``, with token 0 for those without one."""
        found = self._markers_of(entities, self.open())
        return {entity: _newest(list(found[str(entity)].values())) for entity in entities}

    def marker_in(self, dataset: LanceDataset, entity: Entity) -> CommitMarker:
        """Like ``commit_marker``, in a version of the table."""
        return _newest(list(self._markers(entity, dataset).values()))

    def fence(self, entity: Entity, token: int) -> CommitMarker:
        """Write ``token`` into the commit marker, which fences off stale holders; return the old marker.

        Raises LeaseLost, CommitConflict, StorageError.
        """
        return self._commit([SourceCommit(entity, token)], ())[0]

    def commit(
        self, entity: Entity, token: int, batch: BatchId, replaced: Sequence[str], fragments: Sequence[str]
    ) -> None:
        """Remove the rows of the ``replaced`` paths, add ``fragments`` and record ``batch``, in one version.

        Exactly once: a batch that the marker already records is skipped. Raises LeaseLost if the marker has a newer
        token, CommitConflict after ``COMMIT_ATTEMPTS``, StorageError.
        """
        self._commit([SourceCommit(entity, token, batch, tuple(replaced))], fragments)

    def commit_together(self, parts: Sequence[SourceCommit], fragments: Sequence[str]) -> None:
        """Commit the batches of several sources, whose rows share ``fragments``, in one version: all of them or none.

        Raises LeaseLost if a marker has a newer token: then none of the batches can ever be committed. Raises
        CommitConflict and StorageError as ``commit`` does.
        """
        self._commit(parts, fragments)

    def _commit(self, parts: Sequence[SourceCommit], fragments: Sequence[str]) -> list[CommitMarker]:
        """Replace every existing commit marker of ``parts`` with a new one in the transaction, and return the old ones.

        Two transactions conflict only if they remove the same row. Sources without a marker therefore first get one
        with only the token. If two holders write one concurrently, the later commit sees both markers.
        """
        import lance
        from lance.commit import CommitConflictError

        new = [lance.FragmentMetadata.from_json(text) for text in fragments]
        written: dict[tuple[CommitMarker, ...], list[FragmentMetadata]] = {}
        unknown_outcomes = 0
        for _ in range(COMMIT_ATTEMPTS):
            dataset = self.open()
            found = self._markers_of([part.entity for part in parts], dataset)
            rows = [found[str(part.entity)] for part in parts]
            before = [_newest(list(each.values())) for each in rows]
            if any(part.is_committed(each) for part, each in zip(parts, rows, strict=True)):
                return before  # an earlier attempt succeeded, but its acknowledgement was lost
            for part, marker in zip(parts, before, strict=True):
                if marker.token > part.token:
                    raise self._lost(part, marker, is_known=not unknown_outcomes or len(parts) == 1)
            unmarked = [part for part, each in zip(parts, rows, strict=True) if not each]
            if unmarked:
                entities = [part.entity for part in unmarked]
                markers = [CommitMarker(part.token) for part in unmarked]
                additions, removals, addresses = [], list[str](), list[int]()
            else:
                entities = [part.entity for part in parts]
                markers = [part.after(marker) for part, marker in zip(parts, before, strict=True)]
                additions, removals = new, [where for part in parts for where in _path_filters(part.entity, part.gone)]
                addresses = [address for each in rows for address in each]
            key = tuple(markers)
            if key not in written:
                written[key] = self.write(_marker_rows(dataset.schema, entities, markers))
            try:
                update = _update(dataset, removals, addresses, [*additions, *written[key]])
                self._transact(lance.Transaction(dataset.version, update))
                if not unmarked:
                    return before
            except CommitConflictError:
                pass  # plan the deletions again on the newest version; the new fragments stay valid
            except OSError as error:
                unknown_outcomes += 1
                if unknown_outcomes == UNKNOWN_OUTCOMES:
                    raise write_failed("Could not commit to the table", self.uri, error) from error
        raise CommitConflict(f"{COMMIT_ATTEMPTS} commits conflicted with other writers", self.uri, "Run it again.")

    def _lost(self, part: SourceCommit, marker: CommitMarker, *, is_known: bool) -> DriftlineError:
        """Return the error of a fenced holder. Unless its outcome ``is_known``, an attempt may still be committed."""
        why = f"Another run has taken over {part.entity} (its token is {marker.token}, ours is {part.token})"
        return (LeaseLost if is_known else StorageError)(why, self.uri, "Start this run again.")

    def _markers(self, entity: Entity, dataset: LanceDataset) -> dict[int, CommitMarker]:
        """Return the commit markers of ``entity``, keyed by the addresses of their rows."""
        return self._markers_of([entity], dataset)[str(entity)]

    def _markers_of(self, entities: Sequence[Entity], dataset: LanceDataset) -> dict[str, dict[int, CommitMarker]]:
        """Return the commit markers of each of ``entities``, keyed by the addresses of their rows."""
        names = [str(entity) for entity in entities]
        markers: dict[str, dict[int, CommitMarker]] = {name: {} for name in names}
        among = _PLACES.among(self.uri, dataset, names)
        if among is not None and not among:
            return markers
        where = f"path = '' AND line_number = {MARKER_LINE} AND {is_one_of('entity', names)}"

        def read(indexed: bool) -> pa.Table:
            scanner = dataset.scanner(
                columns=["entity", "hash"],
                filter=where,
                fragments=among,
                with_row_address=True,
                use_scalar_index=indexed,
            )
            return scanner.to_table()

        found = with_indexes(dataset, self.TITLE, read)
        columns = (found[name].to_pylist() for name in ("entity", "_rowaddr", "hash"))
        for name, address, text in zip(*columns, strict=True):
            markers[name][address] = CommitMarker(**json.loads(text))
        return markers

    # -- reading -----------------------------------------------------------------------------

    def count(self, where: str | None = None) -> int:
        """Return the number of lines, or of lines that match the filter ``where``."""
        return int(self.open().count_rows(lines_only(where)))

    def paths(self, entity: Entity) -> set[str]:
        """Return the paths of the documents of a source that have lines; reads the path of every line."""
        batches = self.rows(["path"], f"entity = {quote(str(entity))}")
        return {path for batch in batches for path in pc.unique(batch.column("path")).to_pylist()}

    def of_documents(self, entity: Entity, paths: Sequence[str]) -> pa.Table:
        """Return all columns of the lines of documents, unordered. Raises StorageError, CorruptFile."""
        dataset = self.open()
        filters = _path_filters(entity, paths)
        found = [with_indexes(dataset, self.TITLE, partial(_read, dataset, where)) for where in filters]
        return pa.concat_tables([dataset.schema.empty_table(), *found])

    def rows(self, columns: Sequence[str], where: str | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the lines in batches, unordered."""
        yield from self.open().to_batches(columns=list(columns), filter=lines_only(where))


class _MarkerPlaces:
    """Which small fragments of this process's tables have the commit marker of which source.

    A first run over many sources adds two fragments for each. Without an index, looking for a marker in all of them
    would take longer with every source. A fragment is remembered by the names of its data and deletion files, which are
    never reused.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, dict[_State, frozenset[str] | None]] = {}

    def among(self, uri: str, dataset: LanceDataset, names: Sequence[str]) -> list[LanceFragment] | None:
        """Return the fragments that may have a marker of the entities ``names``; None for all of them."""
        fragments = dataset.get_fragments()
        if len(fragments) < MANY_FRAGMENTS:
            return None
        with self._lock:
            known = self._known.get(uri, {})
        states = {each.fragment_id: _state(each) for each in fragments}
        held = {state: known[state] for state in states.values() if state in known}
        unseen = [each for each in fragments if states[each.fragment_id] not in held]
        try:
            held |= _held_by(dataset, unseen, states)
        except (OSError, ValueError) as error:  # a file that is damaged or was removed, or the store failed
            log.debug("%s: all fragments are searched: %s", uri, error)
            return None
        with self._lock:
            self._known[uri] = held
            while len(self._known) > TABLES_REMEMBERED:
                del self._known[next(iter(self._known))]
        holders = ((each, held[states[each.fragment_id]]) for each in fragments)
        return [each for each, entities in holders if entities is None or not entities.isdisjoint(names)]


_State = tuple[str, str | None]
_PLACES = _MarkerPlaces()


def _state(fragment: LanceFragment) -> _State:
    return data_file(fragment), fragment.deletion_file()


def _held_by(
    dataset: LanceDataset, fragments: Sequence[LanceFragment], states: Mapping[int, _State]
) -> dict[_State, frozenset[str] | None]:
    """Return the sources with markers in each of ``fragments``, keyed by its state; None for a large, indexed one."""
    small = [each for each in fragments if each.physical_rows <= SMALL_FRAGMENT_ROWS]
    found: dict[int, set[str]] = {each.fragment_id: set() for each in small}
    if small:
        where = f"path = '' AND line_number = {MARKER_LINE}"
        scanner = dataset.scanner(
            columns=["entity"], filter=where, fragments=small, with_row_address=True, use_scalar_index=False
        )
        rows = scanner.to_table()
        for address, holder in zip(rows["_rowaddr"].to_pylist(), rows["entity"].to_pylist(), strict=True):
            found[address >> ADDRESS_BITS].add(holder)
    large: dict[_State, frozenset[str] | None] = {
        states[each.fragment_id]: None for each in fragments if each.fragment_id not in found
    }
    return large | {states[number]: frozenset(holders) for number, holders in found.items()}


def _read(dataset: LanceDataset, where: str, indexed: bool) -> pa.Table:
    return dataset.scanner(filter=where, use_scalar_index=indexed).to_table()


def _marker_rows(columns: pa.Schema, entities: Sequence[Entity], markers: Sequence[CommitMarker]) -> pa.Table:
    rows = [
        {
            "id": 0,
            "entity": str(entity),
            "path": "",
            "line_number": MARKER_LINE,
            "column_number": 0,
            "hash": json.dumps(asdict(marker)),
        }
        for entity, marker in zip(entities, markers, strict=True)
    ]
    return pa.Table.from_pylist([{name: row.get(name) for name in columns.names} for row in rows], schema=columns)


def _newest(markers: Sequence[CommitMarker]) -> CommitMarker:
    """Return the marker with the highest token and the last batch; concurrent first markers name no batch."""
    last = max((marker for marker in markers if marker.run_id), key=lambda marker: marker.token, default=None)
    return replace(last or CommitMarker(0), token=max((marker.token for marker in markers), default=0))


def _update(
    dataset: LanceDataset, removals: Sequence[str], addresses: Sequence[int], additions: Sequence[FragmentMetadata]
) -> LanceOperation.Update:
    """Return the operation that removes rows of ``dataset`` and adds fragments.

    It removes the rows that match any of ``removals``, and those at ``addresses``.
    """
    import lance

    removed, updated = without_rows(dataset, removals, addresses) if removals or addresses else ([], [])
    return lance.LanceOperation.Update(
        removed_fragment_ids=removed, updated_fragments=updated, new_fragments=list(additions)
    )


def lines_only(where: str | None) -> str:
    only = f"line_number > {MARKER_LINE}"
    return f"({where}) AND {only}" if where else only


def no_lines(where: str | None) -> str:
    """Return a filter for the commit markers that match ``where``; the index of paths can answer it."""
    return f"path = '' AND ({where})" if where else "path = ''"


def _path_filters(entity: Entity, paths: Sequence[str]) -> list[str]:
    chunks = [paths[i : i + PATHS_PER_LOOKUP] for i in range(0, len(paths), PATHS_PER_LOOKUP)]
    return [f"{is_one_of('path', chunk)} AND entity = {quote(str(entity))}" for chunk in chunks]

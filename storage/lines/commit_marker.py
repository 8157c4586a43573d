"""Record commits in a lines table: each source's commit marker, a row with token and batch (decision 0001).

Each commit replaces its source's marker. Two commits for the same source therefore conflict, and the marker shows
whether an unacknowledged commit succeeded. Markers have neither vector nor text, so no search returns them.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from driftline.storage.entities import Entity
from driftline.storage.lance.failures import with_indexes
from driftline.storage.lance.lance_table import (
    ADDRESS_BITS,
    LanceTable,
    data_file,
    is_one_of,
)

if TYPE_CHECKING:
    from lance import LanceDataset, LanceFragment

    from driftline.storage.deltas.manifest import BatchId


log = logging.getLogger(__name__)

MARKER_LINE = -1
"""The ``line_number`` of commit markers."""
MANY_FRAGMENTS = 32
"""With fewer fragments, scanning them all for a marker takes only a few milliseconds."""
SMALL_FRAGMENT_ROWS = 4096
TABLES_REMEMBERED = 16


@dataclass(frozen=True, slots=True)
class CommitMarker:
    """A source's commit marker: the newest fencing token and the last committed batch."""

    token: int
    run_id: str = ""
    batch: int = 0

    def holds(self, batch: BatchId) -> bool:
        """Return whether ``batch`` is committed; a run commits its batches in order."""
        return self.run_id == batch.run_id and self.batch >= batch.batch


@dataclass(frozen=True, slots=True)
class SourceCommit:
    """One source's part of a transaction: record ``batch`` under ``token``, and remove the rows of ``gone`` paths.

    With no batch, it only fences off older holders.
    """

    entity: Entity
    token: int
    batch: BatchId | None = None
    gone: tuple[str, ...] = ()

    def after(self, before: CommitMarker) -> CommitMarker:
        """Return the marker that replaces ``before``."""
        return CommitMarker(self.token, self.batch.run_id, self.batch.batch) if self.batch else self._fence(before)

    def is_committed(self, rows: Mapping[int, CommitMarker]) -> bool:
        """Return whether the source's existing markers show that its transaction was committed."""
        markers = list(rows.values())
        if self.batch is None:
            return markers == [self._fence(newest(markers))]
        return self.after(CommitMarker(0)) in markers

    def _fence(self, before: CommitMarker) -> CommitMarker:
        return replace(before, token=self.token)


def read_markers(
    table: LanceTable, dataset: LanceDataset, entities: Sequence[Entity]
) -> dict[str, dict[int, CommitMarker]]:
    """Return the commit markers of ``entities`` in a version of ``table``, keyed by row address."""
    names = [str(entity) for entity in entities]
    markers: dict[str, dict[int, CommitMarker]] = {name: {} for name in names}
    among = _PLACES.among(table.uri, dataset, names)
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

    found = with_indexes(dataset, table.TITLE, read)
    columns = (found[name].to_pylist() for name in ("entity", "_rowaddr", "hash"))
    for name, address, text in zip(*columns, strict=True):
        markers[name][address] = CommitMarker(**json.loads(text))
    return markers


class _MarkerPlaces:
    """For each small fragment of this process's tables, the sources that have a commit marker in it.

    A first run over many sources adds two fragments per source. Without an index, searching all of them for a marker
    would get slower with every source. Fragments are identified by the names of their data and deletion files, which
    are never reused.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, dict[_State, frozenset[str] | None]] = {}

    def among(self, uri: str, dataset: LanceDataset, names: Sequence[str]) -> list[LanceFragment] | None:
        """Return the fragments that may hold a marker for any entity in ``names``, or None for all fragments."""
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
        except (OSError, ValueError) as error:  # a damaged or deleted file, or the store failed
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
    """Return the sources with markers in each fragment, keyed by its state, or None for large, indexed fragments."""
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


def marker_rows(columns: pa.Schema, entities: Sequence[Entity], markers: Sequence[CommitMarker]) -> pa.Table:
    """Return the rows that store each entity's marker in a table with these ``columns``."""
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


def newest(markers: Sequence[CommitMarker]) -> CommitMarker:
    """Return the marker with the highest token and the last batch; concurrent first markers have no batch."""
    last = max((marker for marker in markers if marker.run_id), key=lambda marker: marker.token, default=None)
    return replace(last or CommitMarker(0), token=max((marker.token for marker in markers), default=0))


def lines_only(where: str | None) -> str:
    """Return a filter for the lines that match ``where``, without commit markers."""
    only = f"line_number > {MARKER_LINE}"
    return f"({where}) AND {only}" if where else only


def no_lines(where: str | None) -> str:
    """Return a filter for the commit markers that match ``where``; the path index can evaluate it."""
    return f"path = '' AND ({where})" if where else "path = ''"

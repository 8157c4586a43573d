"""Plan, build, publish and check a line table's search indexes, which consist of segments (decisions 0008, 0010).

A segment covers some fragments. Any worker can build one; it stays invisible until the holder of the tenant's
maintenance lease publishes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from driftline.storage.defaults import IndexScope
from driftline.storage.lance.failures import (
    index_stats,
    is_conflict,
    is_lance_failure,
    is_of_system,
    retried,
    with_lance_retries,
    write_failed,
    writing,
)
from driftline.storage.lance.lance_table import (
    VECTOR,
    VECTOR_METRIC,
    is_indexable,
    quote,
    vector_options,
)
from driftline.storage.lines.commit_marker import MARKER_LINE
from driftline.storage.lines.line_table import TEXT, TEXT_COLUMN, LineTable
from driftline.storage.lines.tokenizer import TOKENIZER

if TYPE_CHECKING:
    from lance import LanceDataset

PATH, PARENT_DIRS = "path_idx", "parent_dirs_idx"
COLUMNS = {PATH: "path", PARENT_DIRS: "parent_dirs", TEXT: TEXT_COLUMN, VECTOR: "vector"}
"""The column of each index, in build order."""
SCALAR_INDEXES: dict[str, Literal["BTREE", "LABEL_LIST"]] = {PATH: "BTREE", PARENT_DIRS: "LABEL_LIST"}


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many rows an index covers, and how many are left to a scan; its ``segments`` are searched in parallel."""

    kind: str
    indexed_rows: int
    unindexed_rows: int
    segments: int


def drop(table: LineTable, names: Sequence[str]) -> None:
    """Drop indexes; ``maintain`` rebuilds them. The caller holds the tenant's maintenance lease.

    Raises StorageError.
    """
    for name in names:
        with writing("Could not drop an index", table.uri):
            table.open().drop_index(name)


def coverage(dataset: LanceDataset) -> dict[str, Coverage]:
    """Return the coverage of each readable index of ``dataset``, keyed by name."""
    return {
        name: Coverage(
            str(stats["index_type"]),
            int(stats["num_indexed_rows"]),
            int(stats["num_unindexed_rows"]),
            int(stats["num_indices"]),
        )
        for name, stats in index_stats(dataset).items()
        if stats is not None
    }


SEGMENT_ROWS = 1 << 20
"""Target rows per segment: small enough to give every worker one, large enough that searches open few."""
SMALL_SEGMENT_ROWS = SEGMENT_ROWS // 2
"""Smaller segments are merged later; larger ones are kept."""
MAX_SMALL_SEGMENTS = 8
"""Maximum number of small segments that a run leaves unmerged."""
OUTWEIGHS = 2
"""A small segment is merged with all smaller segments and new rows unless it is this many times their total size. This
way, each row is reindexed only a few times, and a small segment is a fraction of the next larger one.
"""
MAX_UNINDEXED_ROWS = 20_000
MAX_UNINDEXED_TEXT_ROWS = 1_000
"""Searches scan up to this many unindexed rows, which is cheaper than another segment.

A search tokenizes the text of unindexed rows: a millisecond per thousand rows. A segment of this size takes 10 ms to
build.
"""
MAX_UNINDEXED_TEXT_ROWS_OF_BRANCH = 100
"""The same limit for a branch: one search may read many branches, each with its own unindexed rows."""


def _most_unindexed(table: LineTable, name: str) -> int:
    of_text = MAX_UNINDEXED_TEXT_ROWS_OF_BRANCH if table.cut else MAX_UNINDEXED_TEXT_ROWS
    return min(MAX_UNINDEXED_ROWS, of_text) if name == TEXT else MAX_UNINDEXED_ROWS


def groups_to_build(
    rows: Mapping[int, int], segments: Sequence[Set[int]], *, few: int | None = None, thorough: bool = False
) -> list[tuple[int, ...]]:
    """Group fragments into the segments to build; a group includes every fragment of the segments it replaces.

    ``rows`` maps each live fragment to its row count, and ``segments`` maps each segment to the fragments it covers. Up
    to ``few`` rows, by default MAX_UNINDEXED_ROWS, may stay unindexed. ``thorough`` covers every row, and also merges
    small segments that do not outweigh the rest.
    """
    few = MAX_UNINDEXED_ROWS if few is None else few
    live = [found for segment in segments if (found := segment & rows.keys())]
    uncovered = set(rows).difference(*live)
    small = [segment for segment in live if _total(rows, segment) < SMALL_SEGMENT_ROWS]
    lags = bool(uncovered) and (thorough or not live or _total(rows, uncovered) > few)
    new = packed(rows, uncovered) if lags else []
    count = len(small) + sum(_total(rows, group) < SMALL_SEGMENT_ROWS for group in new)
    if small and (thorough or count > MAX_SMALL_SEGMENTS):
        merged = _outweighed(rows, small, uncovered, few)
        return packed(rows, uncovered.union(*merged)) if merged else new
    return new


def _outweighed(rows: Mapping[int, int], small: Sequence[Set[int]], uncovered: Set[int], few: int) -> list[Set[int]]:
    """Return the ``small`` segments to merge with each other and the ``uncovered`` fragments; segments of at most
    ``few`` rows are always merged.
    """
    by_size = sorted(small, key=lambda segment: _total(rows, segment))
    lighter, count = _total(rows, uncovered), 0
    for position, segment in enumerate(by_size):
        size = _total(rows, segment)
        if lighter and size < max(OUTWEIGHS * lighter, few):
            count = position + 1
        lighter += size
    return by_size[:count]


def packed(rows: Mapping[int, int], fragments: Iterable[int]) -> list[tuple[int, ...]]:
    """Group ``fragments`` so that a group has at most SEGMENT_ROWS rows, or a single fragment. At most one group is
    small.
    """
    groups: list[list[int]] = []
    open_group: list[int] = []
    size = 0
    for fragment in sorted(fragments):
        if rows[fragment] >= SMALL_SEGMENT_ROWS:
            groups.append([fragment])
            continue
        if not open_group or size + rows[fragment] > SEGMENT_ROWS:
            open_group, size = [], 0
            groups.append(open_group)
        open_group.append(fragment)
        size += rows[fragment]
    return sorted(tuple(group) for group in groups)


def _total(rows: Mapping[int, int], fragments: Iterable[int]) -> int:
    return sum(rows[fragment] for fragment in fragments)


MIN_ROWS_FOR_VECTOR_INDEX = 256


@dataclass(frozen=True, slots=True)
class SegmentSpec:
    """A segment to build: part of index ``name``, over ``fragments`` of a table version. Picklable."""

    name: str
    version: int
    fragments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """A built segment of index ``name``, invisible until published; ``index`` is Lance's object. Picklable."""

    name: str
    fragments: frozenset[int]
    index: Any


SegmentBuilder = Callable[[Iterable[SegmentSpec]], Iterable[Segment]]


@retried
def build_segment(table: LineTable, spec: SegmentSpec) -> Segment:
    """Build a segment under a unique name, on any worker. Raises StorageError."""
    column = COLUMNS[spec.name]
    options: dict[str, Any] = {"name": spec.name, "fragment_ids": list(spec.fragments), "replace": True}
    with writing("Could not build an index", table.uri):
        dataset = table.open(spec.version)
        if spec.name == VECTOR:
            options |= vector_options(dataset.schema.field(column).type.list_size)
        elif spec.name == TEXT:
            options |= {"index_type": "INVERTED", "with_position": False, **TOKENIZER}
        else:
            options |= {"index_type": SCALAR_INDEXES[spec.name]}
        return Segment(spec.name, frozenset(spec.fragments), dataset.create_index_uncommitted(column, **options))


@retried
def plan_new_segments(table: LineTable, scope: IndexScope, planned: set[int]) -> list[SegmentSpec]:
    """Plan segments for new fragments once there are enough of them, and add those fragments to ``planned``.

    ``maintain`` indexes the rest. Raises StorageError, CorruptFile.
    """
    dataset = table.open()
    rows = _rows(dataset)
    known = planned.union(*(covered for segments in _segments(dataset).values() for covered in segments))
    # The next commit replaces the commit marker, which is in a separate fragment.
    new = {fragment for fragment in rows.keys() - known if rows[fragment] > 1}
    groups = packed(rows, new)
    ready = [group for group in groups if sum(rows[fragment] for fragment in group) >= SMALL_SEGMENT_ROWS]
    planned.update(*ready)
    return [SegmentSpec(name, dataset.version, group) for group in ready for name in _names(dataset, scope)]


@retried
def maintain(
    table: LineTable,
    scope: IndexScope = "all",
    *,
    thorough: bool = False,
    built: Sequence[Segment] = (),
    build: SegmentBuilder | None = None,
) -> list[str]:
    """Create missing indexes and extend lagging ones; return the names of the changed indexes.

    Publishes the segments that are already ``built``, and builds all other missing ones with ``build`` (default: in
    this process). ``scope="text"`` skips the vector index. ``thorough`` covers every row and merges small segments. The
    caller holds the tenant's maintenance lease. Without indexes, searches are slower, and words are neither split nor
    stemmed. Raises StorageError, CommitConflict.
    """
    if scope == "none" or not table.exists():
        return []
    changed = _drop_unusable(table, thorough=thorough)
    changed |= publish(table, built)
    specs = _plan(table, scope, thorough=thorough)
    if specs:
        changed |= publish(table, list(build(specs) if build else (build_segment(table, spec) for spec in specs)))
    return [name for name in COLUMNS if name in changed]


def publish(table: LineTable, built: Sequence[Segment]) -> set[str]:
    """Make segments visible, in one version per index; return the names of the changed indexes.

    They replace the segments whose fragments they cover. A segment whose fragments changed since it was built is left
    to cleanup, which may already have deleted it. Raises CommitConflict, StorageError.
    """
    by_name: dict[str, list[Segment]] = {}
    present = table.index_files() if built else frozenset()
    for segment in built:
        if {f"{segment.index.uuid}/{file.path}" for file in segment.index.files or ()} <= present:
            by_name.setdefault(segment.name, []).append(segment)
    return {name for name in COLUMNS if name in by_name and _publish(table, name, by_name[name])}


def _publish(table: LineTable, name: str, built: Sequence[Segment]) -> bool:
    for dataset in table.commit_attempts():
        live, published = _rows(dataset).keys(), _segments(dataset).get(name, [])
        fitting = _fitting([segment for segment in built if segment.fragments <= live], published, live)
        if not fitting:
            return False
        try:
            dataset.commit_existing_index_segments(name, COLUMNS[name], [segment.index for segment in fitting])
            table.sync_indexes(dataset, name)
        except (OSError, RuntimeError, ValueError) as error:
            if not is_conflict(error):
                raise write_failed("Could not publish an index", table.uri, error) from error
        else:
            return True
    raise table.conflicted()


def _fitting(built: Sequence[Segment], published: Sequence[Set[int]], live: Set[int]) -> Sequence[Segment]:
    """Return the segments that together replace whole published segments; any others would leave rows unindexed."""
    covered = frozenset[int]().union(*(segment.fragments for segment in built))
    fitting = [
        segment for segment in built if all(other & live <= covered for other in published if other & segment.fragments)
    ]
    return fitting if len(fitting) == len(built) else _fitting(fitting, published, live)


def _plan(table: LineTable, scope: IndexScope, *, thorough: bool) -> list[SegmentSpec]:
    dataset = table.open()
    rows, published = _rows(dataset), _segments(dataset)
    return [
        SegmentSpec(name, dataset.version, group)
        for name in _names(dataset, scope)
        if name in published or (bool(rows) and (name != VECTOR or _has_vectors_to_index(dataset)))
        for group in groups_to_build(rows, published.get(name, []), few=_most_unindexed(table, name), thorough=thorough)
    ]


def _has_vectors_to_index(dataset: LanceDataset) -> bool:
    """Return whether there are enough vectors for an index; commit markers and lines with no known words have none."""
    rows = dataset.scanner(columns=["id"], filter="vector IS NOT NULL", limit=MIN_ROWS_FOR_VECTOR_INDEX).to_table()
    return len(rows) == MIN_ROWS_FOR_VECTOR_INDEX


def _names(dataset: LanceDataset, scope: IndexScope) -> list[str]:
    without = set() if scope == "all" and is_indexable(dataset) else {VECTOR}
    return [name for name in COLUMNS if name not in without] if scope != "none" else []


def _rows(dataset: LanceDataset) -> dict[int, int]:
    """Return each fragment's row count, including deleted rows, which indexes still contain."""
    return {fragment.fragment_id: fragment.physical_rows for fragment in dataset.get_fragments()}


def _segments(dataset: LanceDataset) -> dict[str, list[set[int]]]:
    """Return the fragments covered by each segment of each index."""
    return {
        index.name: [set(segment.fragment_ids) for segment in index.segments] for index in dataset.describe_indices()
    }


def _drop_unusable(table: LineTable, *, thorough: bool) -> set[str]:
    """Drop unreadable indexes (``maintain`` then rebuilds them) and a vector index over too few vectors."""
    dataset = table.open()
    stats = index_stats(dataset)
    unusable = {name for name, found in stats.items() if found is None}
    if thorough and VECTOR in stats and not _has_vectors_to_index(dataset):
        unusable.add(VECTOR)
    drop(table, sorted(unusable))
    return unusable


SAMPLE_ROWS = 16
UNREADABLE_INDEX = "its files cannot be read"
_INDEXED_WORD = re.compile(r"(?<![\w])[A-Za-z]{6,40}(?![\w])")
"""A word that the full-text index always contains: neither a stop word nor too long."""


def index_names(table: LineTable) -> list[str]:
    """Return the names of the indexes of ``table``, without reading the indexes."""
    return [index.name for index in table.open().describe_indices()]


def check_indexes(table: LineTable, seed: str) -> Iterator[tuple[str, str]]:
    """Yield ``(index, problem)`` for each index that reports a wrong row count or misses a sampled line.

    The sample has ``SAMPLE_ROWS`` lines, drawn with ``seed``, so that each run can draw others; each is searched
    with and without the index.
    """
    dataset = table.open()
    known, rows = coverage(dataset), dataset.count_rows()
    for index in dataset.describe_indices():
        if index.name not in known:
            yield index.name, UNREADABLE_INDEX
    for name, covered in known.items():
        if covered.indexed_rows + covered.unindexed_rows != rows:
            yield name, f"it counts {covered.indexed_rows + covered.unindexed_rows:,} rows of {rows:,}"
    sample = _sample(dataset, rows, seed)
    counts = _Counts(dataset)
    for name in known:
        try:
            missed = sum(not with_lance_retries(partial(_finds, dataset, counts, name, line)) for line in sample)
        except BaseException as error:
            if not is_lance_failure(error) or is_of_system(error):
                raise
            yield name, UNREADABLE_INDEX
            continue
        if missed:
            yield name, f"it misses {missed} of {len(sample)} sampled lines"


def _sample(dataset: LanceDataset, rows: int, seed: str) -> list[dict[str, Any]]:
    offsets = np.random.default_rng([*seed.encode()]).choice(rows, min(rows, SAMPLE_ROWS), replace=False)
    columns = ["id", "entity", "path", "text", "vector", "parent_dirs", "line_number"]
    taken = dataset.take(sorted(offsets.tolist()), columns=columns).to_pylist()
    return [line for line in taken if line["line_number"] > MARKER_LINE]


class _Counts:
    """Counts the rows of a document or folder that meet a condition, with indexes and by a scan; caches both counts."""

    def __init__(self, dataset: LanceDataset) -> None:
        self.indexed = cache(dataset.count_rows)
        self.scanned = cache(partial(_scanned, dataset))

    def agree(self, where: str) -> bool:
        return bool(self.indexed(where) == self.scanned(where))


def _finds(dataset: LanceDataset, counts: _Counts, index: str, line: dict[str, Any]) -> bool:
    """Return whether a search through ``index`` finds everything that a scan finds for the document of ``line``."""
    here = f"entity = {quote(line['entity'])} AND path = {quote(line['path'])}"
    if index == PATH:
        return counts.agree(here)
    if index == PARENT_DIRS:
        if not line["parent_dirs"]:
            return True
        below = f"array_has_any(parent_dirs, [{quote(line['parent_dirs'][-1])}])"
        return counts.agree(below)
    if index == TEXT:
        words = _INDEXED_WORD.findall(line["text"])
        if not words:
            return True
        query = {"query": max(words, key=len), "columns": ["text"]}
        return _holds(
            dataset.scanner(columns=["id"], full_text_query=query, filter=here, prefilter=True, use_scalar_index=False),
            line,
        )
    if index == VECTOR and line["vector"] is not None:
        nearest = {
            "column": "vector",
            "q": np.asarray(line["vector"], np.float16),
            "k": 1 + counts.scanned(here),
            "metric": VECTOR_METRIC,
            "nprobes": max(1, counts.indexed()),
        }
        return _holds(
            dataset.scanner(columns=["id"], nearest=nearest, filter=here, prefilter=True, use_scalar_index=False), line
        )
    return True


def _holds(scanner: Any, line: dict[str, Any]) -> bool:
    return line["id"] in scanner.to_table()["id"].to_pylist()


def _scanned(dataset: LanceDataset, where: str) -> int:
    return int(dataset.scanner(columns=["id"], filter=where, use_scalar_index=False).count_rows())

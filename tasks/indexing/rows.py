"""Build ``line_embeddings`` rows from lines and vectors, or copy a donor document's rows (decision 0015).

A donor is a document in the main index or on a branch with the same path, content hash and model fingerprint.
"""

from __future__ import annotations

import hashlib
import logging
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.deltas.delta_index import ADD
from driftline.storage.deltas.manifest import ManifestRow
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError
from driftline.storage.lines.block_codes import encode as encode_blocks
from driftline.storage.lines.line_table import CODE_COLUMN, CONTINUED, LINES_PER_BLOCK, SPELLED, each_document, schema
from driftline.storage.lines.outline import Anchor, Definition, encode
from driftline.storage.lines.packs import packs, text_of_lines
from driftline.storage.lines.tokenizer import index_terms
from driftline.storage.workspace.branch_cuts import branch_at, branch_records
from driftline.storage.workspace.records import BranchRecord
from driftline.storage.workspace.workspace import Branch, Workspace

_Part = TypeVar("_Part", Definition, Anchor)
MAX_DONORS = 20
"""Maximum number of branches to search for donors, newest first; each costs a few requests."""
_COLUMNS = ["path", "hash", "lines", "fingerprint", "reason", "extractor"]

log = logging.getLogger(__name__)


def line_rows(
    entities: Entity | Sequence[Entity],
    documents: Sequence[ManifestRow],
    doc_index: pa.Int32Array,
    line_number: pa.Int32Array,
    text: pa.StringArray,
    vectors: NDArray[np.float16],
    definitions: Sequence[Sequence[Definition]] | None = None,
    column_number: pa.Int32Array | None = None,
    anchors: Sequence[Sequence[Anchor]] | None = None,
    texts: Sequence[str] | None = None,
    first_line: int = 0,
) -> pa.Table:
    """Build rows of ``storage.lines.line_table.schema``; arrays have equal length, ``vectors`` is ``(n, dim) float16``.

    ``entities`` is one source for all documents, or one source per document. ``doc_index`` points into ``documents``,
    ``anchors`` and ``definitions``; the latter two are None if they were not determined. Documents, and the rows of
    each, are in order. ``column_number`` defaults to 0. ``texts`` contains the documents' texts from ``first_line`` on;
    by default, only the given lines. Zero vectors become null, so no search returns them.
    """
    dim = vectors.shape[1]
    columns_of_lines = column_number if column_number is not None else pa.array(np.zeros(len(text), np.int32))
    numbers = RowPositions.of(doc_index, line_number, columns_of_lines)
    meaningless = pa.array(~vectors.any(axis=1))
    paths = [document.path for document in documents]
    names = [str(entities)] * len(paths) if isinstance(entities, Entity) else [str(entity) for entity in entities]

    def of_document(values: Sequence[object], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind).take(doc_index)

    if texts is None:
        texts = _texts_of_lines(len(paths), numbers, text)
    columns = {
        "id": pa.array(row_ids(names, paths, numbers)),
        "entity": of_document(names, pa.string()),
        "path": of_document(paths, pa.string()),
        "line_number": line_number,
        "column_number": columns_of_lines,
        "text": text,
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), dim, mask=meaningless),
        "parent_dirs": of_document([parent_dirs(path) for path in paths], pa.list_(pa.string())),
        "ext": of_document([extension(path) for path in paths], pa.string()),
        "hash": of_document([document.hash for document in documents], pa.string()),
        "block": blocks(paths, numbers, text, definitions),
        "outline": outlines(numbers, definitions, anchors),
        CODE_COLUMN: numbers.of_starts(encode_blocks(vectors, numbers.starts)),
        **packs(texts, numbers.document, numbers.line, numbers.column, first_line),
    }
    return pa.table(columns, schema=schema(dim))


def _texts_of_lines(documents: int, numbers: RowPositions, text: pa.StringArray) -> list[str]:
    bounds = np.searchsorted(numbers.document, np.arange(documents + 1)).tolist()
    lines, parts = numbers.line.tolist(), text.to_pylist()
    return [text_of_lines(lines[start:stop], parts[start:stop]) for start, stop in pairwise(bounds)]


@dataclass(frozen=True, slots=True)
class RowPositions:
    """The positions of ``n`` rows, in order, as arrays ``(n,) int32``.

    ``starts`` contains the rows that start a block.
    """

    document: NDArray[np.int32]
    line: NDArray[np.int32]
    column: NDArray[np.int32]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, doc_index: pa.Int32Array, line_number: pa.Int32Array, column_number: pa.Int32Array) -> RowPositions:
        """Determine the blocks of rows, which are in order.

        Each group of LINES_PER_BLOCK lines is one block, or several if it has more rows than that.
        """
        document, line, column = (each.to_numpy() for each in (doc_index, line_number, column_number))
        group = line // LINES_PER_BLOCK
        first = np.ones(len(line), np.bool_)
        first[1:] = (document[1:] != document[:-1]) | (group[1:] != group[:-1])
        starts = np.flatnonzero(first)
        if column.any():
            sizes = np.diff(starts, append=len(line))
            ordinal = np.arange(len(line)) - np.repeat(starts, sizes)
            starts = np.flatnonzero(ordinal % LINES_PER_BLOCK == 0)
        return cls(document, line, column, starts)

    def of_starts(self, values: pa.Array) -> pa.Array:
        """Return block ``values`` as a column that is null except in each block's first row."""
        first = np.zeros(len(self.line), np.bool_)
        first[self.starts] = True
        return values.take(pa.array(np.cumsum(first) - 1, mask=~first))


def blocks(
    paths: Sequence[str],
    numbers: RowPositions,
    text: pa.StringArray,
    definitions: Sequence[Sequence[Definition]] | None = None,
) -> pa.StringArray:
    """Return the schema's ``block`` column, ``n`` rows; null except in each block's first row."""
    starts, joined = numbers.starts, lines_of_blocks(numbers, text)
    heads = pa.array(paths, pa.string()).take(pa.array(numbers.document[starts]))
    if definitions is not None:
        positions = zip(numbers.document[starts].tolist(), numbers.line[starts].tolist(), strict=True)
        names = _enclosing_names(positions, definitions)
        heads = pc.binary_join_element_wise(heads, pa.array(names, pa.string()), "")
    named = pc.binary_join_element_wise(heads, joined, "")
    others = np.flatnonzero(~pc.string_is_ascii(named).to_numpy(zero_copy_only=False))
    if len(others):
        spelled = pa.nulls(len(named), pa.string()).to_pylist()
        for at, whole in zip(others.tolist(), named.take(pa.array(others)).to_pylist(), strict=True):
            words = index_terms(whole)
            spelled[at] = f"{SPELLED}{' '.join(words)}" if words else None
        more = pc.fill_null(pa.array(spelled, pa.string()), "")
        named = pc.binary_join_element_wise(heads, more, joined, "")
    return numbers.of_starts(named)


def lines_of_blocks(numbers: RowPositions, text: pa.StringArray) -> pa.StringArray:
    """Return the lines of each block, as ``(b,)``: what follows its head in the schema's ``block`` column."""
    starts = numbers.starts
    # Lines that have no row are empty lines in the block.
    breaks = np.diff(numbers.line, prepend=0)
    breaks[starts] = numbers.line[starts] % LINES_PER_BLOCK + 1
    before = pc.binary_repeat("\n", pa.array(breaks))
    if numbers.column.any():
        before = pc.if_else(pa.array(breaks == 0), CONTINUED, before)
    lines = pc.binary_join_element_wise(before, text, "")
    offsets = pa.array(np.append(starts, len(numbers.line)), pa.int32())
    return pc.binary_join(pa.ListArray.from_arrays(offsets, lines), "")


def outlines(
    numbers: RowPositions,
    definitions: Sequence[Sequence[Definition]] | None,
    anchors: Sequence[Sequence[Anchor]] | None = None,
) -> pa.StringArray:
    """Return the schema's ``outline`` column, ``n`` rows; null except in each block's first row.

    A block that starts within a line has all anchors, but only the definitions that extend beyond that line.
    """
    if definitions is None:
        return pa.nulls(len(numbers.line), pa.string())
    starts = numbers.starts
    of_blocks = [_by_block(found) for found in definitions]
    anchored = [_by_block(found) for found in anchors or [()] * len(definitions)]
    positions = (each[starts].tolist() for each in (numbers.document, numbers.line, numbers.column))
    known = []
    for document, line, column in zip(*positions, strict=True):
        inside: Sequence[Definition] = of_blocks[document].get(line // LINES_PER_BLOCK, ())
        if column:
            inside = [each for each in inside if not each.first == each.last == line]
        known.append(encode(inside, anchored[document].get(line // LINES_PER_BLOCK, ())))
    return numbers.of_starts(pa.array(known, pa.string()))


def _by_block(parts: Sequence[_Part]) -> dict[int, list[_Part]]:
    """Map each block to the document's definitions or anchors that overlap it, in order."""
    found: dict[int, list[_Part]] = {}
    for each in parts:
        for block in range(each.first // LINES_PER_BLOCK, each.last // LINES_PER_BLOCK + 1):
            found.setdefault(block, []).append(each)
    return found


def _enclosing_names(positions: Iterable[tuple[int, int]], definitions: Sequence[Sequence[Definition]]) -> list[str]:
    """Return the suffix of the path in the head of each block; blocks start at ``(document, line)``.

    The suffix is a tab and the name of the innermost definition that started before the block, if any, so the name's
    words also find blocks inside the definition.
    """
    of_blocks = [_by_block(found) for found in definitions]
    names: list[str] = []
    for document, line in positions:
        inside = of_blocks[document].get(line // LINES_PER_BLOCK, ())
        name = next((each.name for each in reversed(inside) if each.line < line <= each.last), None)
        names.append("" if name is None else f"\t{name}")
    return names


def parent_dirs(path: str) -> list[str]:
    """Return the ancestor directories of ``path`` inside the source, outermost first, each with a trailing slash."""
    return [path[: i + 1] for i, character in enumerate(path) if character == "/"]


def extension(path: str) -> str:
    """Return the extension of ``path`` in lower case, without its dot, or "" if it has none."""
    return posixpath.splitext(path)[1][1:].lower()


def row_ids(entities: Sequence[str], paths: Sequence[str], numbers: RowPositions) -> NDArray[np.int64]:
    """Return ``(n,) int64`` ids derived from entity, path, line and column: stable across attempts and workers.

    Document hash and position are mixed as in splitmix64 (Steele et al., 2014).
    """
    names = zip(entities, paths, strict=True)
    seeds = b"".join(hashlib.blake2b(f"{entity}\0{path}".encode(), digest_size=8).digest() for entity, path in names)
    mixed = np.frombuffer(seeds, np.uint64)[numbers.document]
    mixed = mixed + numbers.line.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = mixed + numbers.column.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Donated:
    """An embedded document to copy: from the main index if ``branch`` is None, otherwise from that branch."""

    hash: str
    lines: int
    branch: Branch | None
    extractor: str = ""


Donations = Mapping[str, tuple[Donated, ...]]
"""Maps paths to donor documents; picklable."""


def find_donations(
    workspace: Workspace, entity: Entity, paths: pa.Array, fingerprint: str, superseded: BranchRecord | None = None
) -> Donations:
    """Find the documents among a source's ``paths`` that another index of the source already embedded.

    Runs of the main index search the branches. Branch runs search the main index and the ``superseded`` snapshot.
    Unreadable donors are skipped.
    """
    if not len(paths):
        return {}
    found: dict[str, tuple[Donated, ...]] = {}

    def add(branch: Branch | None, rows: pa.Table) -> None:
        is_there = pc.and_(pc.is_null(rows["reason"]), pc.equal(rows["fingerprint"], fingerprint))
        for row in rows.filter(pc.and_(is_there, pc.greater(rows["lines"], 0))).to_pylist():
            found[row["path"]] = (*found.get(row["path"], ()), _donated(row, branch))

    donors: list[BranchRecord | None] = [None, superseded] if workspace.branch_of(entity) else []
    try:
        if not donors:
            newest = sorted(branch_records(workspace, entity), key=lambda record: record.updated, reverse=True)
            donors = [*newest[:MAX_DONORS]]
        for record in donors:
            if record is None:
                if workspace.branch_of(entity):
                    add(None, workspace.on(()).manifest(entity).get(paths.to_pylist(), columns=_COLUMNS))
                continue
            branch = branch_at(entity, record)
            changed = workspace.on([branch]).manifest(entity).changes_since(record.main_revision, columns=_COLUMNS)
            requested = pc.and_(pc.equal(changed["op"], ADD), pc.is_in(changed["path"], value_set=paths))
            add(branch, changed.filter(requested))
    except DriftlineError as error:  # donors are only an optimization
        log.warning("Cannot copy lines from branches of %s: %s", entity, error)
    return found


def _donated(row: Mapping[str, Any], branch: Branch | None) -> Donated:
    return Donated(row["hash"], row["lines"], branch, row["extractor"] or "")


def copy_rows(
    workspace: Workspace, entity: Entity, fingerprint: str, dim: int, requested: Mapping[str, Donated]
) -> Iterable[tuple[str, pa.Table]]:
    """Yield the path and rows of each requested document whose donor still has all of them."""
    columns = schema(dim)
    for branch in {donated.branch for donated in requested.values()}:
        paths = [path for path, donated in requested.items() if donated.branch == branch]
        table = workspace.on([branch] if branch else ()).lines(entity, fingerprint)
        try:
            rows = table.of_documents(entity, paths, columns.names)  # an earlier table may have another order
        except DriftlineError as error:  # the branch may have been deleted
            log.info("Re-embedding lines of %s: %s", entity, error)
            continue
        for path, of_path in zip(paths, each_document(rows, paths), strict=True):
            donated = requested[path]
            if len(of_path) == donated.lines and pc.all(pc.equal(of_path["hash"], donated.hash)).as_py():
                yield path, of_path.cast(columns)

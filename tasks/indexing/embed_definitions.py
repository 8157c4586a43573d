"""Embed the definitions of indexed documents with a transformer (decision 0016)."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftline.storage.embedding import DeepModel
from driftline.storage.entities import Entity
from driftline.storage.errors import CorruptFile
from driftline.storage.lines.definition_table import schema
from driftline.storage.lines.outline import OUTLINE_COLUMN, Definition, decode
from driftline.storage.workspace.branch_cuts import branch_at, branch_records
from driftline.storage.workspace.records import BranchRecord
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.transformer import definition_text, load_transformer
from driftline.tasks.indexing.rows import extension, parent_dirs
from driftline.tasks.task_context import TaskContext

DOCUMENTS_PER_BATCH = 64
_OF_DOCUMENT = ("path", "hash", "lines")
_KEY_LINES = 3
"""Minimum number of lines for embedding a configuration key; shorter keys mean too little on their own."""


@dataclass(frozen=True, slots=True)
class DeepSpec:
    """A source's documents, ``(path, hash)``, whose definitions must be embedded.

    ``known`` lists paths with rows from an earlier version, whose vectors may be reusable.
    """

    entity: Entity
    documents: tuple[tuple[str, str], ...]
    known: tuple[str, ...]
    model: DeepModel


@dataclass(frozen=True, slots=True)
class DeepResult:
    """The result of embedding several documents: fragments, invisible until they are committed."""

    fragments: tuple[str, ...]
    documents: int
    definitions: int


@dataclass(frozen=True, slots=True)
class DeepPlan:
    """A source's documents, ``(path, hash)``, that have no embedded definitions, and the ``stale`` ones.

    ``known`` lists paths that have rows from any version of the document.
    """

    missing: tuple[tuple[str, str], ...]
    stale: tuple[tuple[str, str], ...]
    known: frozenset[str]


def plan_deep(workspace: Workspace, entity: Entity, model: DeepModel) -> DeepPlan:
    """Compare a source's manifest with its embedded definitions.

    On the main index, documents are stale if no branch has them either; on a branch, none are. If there are branches,
    they are compared only by a run that embeds something. Embedded definitions are read before the manifests, because a
    concurrent run of a branch commits its manifest before its definitions. Raises StorageError, CorruptFile.
    """
    known = workspace.deep(entity, model).documents(entity)
    there = set(zip(known["path"].to_pylist(), known["hash"].to_pylist(), strict=True))
    expected = _with_lines(workspace.manifest(entity).read(columns=_OF_DOCUMENT))
    stale = set[tuple[str, str]]() if workspace.branch_of(entity) is not None else there - expected
    missing = expected - there
    if stale and workspace.has_branches(entity):
        # Branches keep stale documents for long; reading their manifests in every run would cost most of its requests.
        stale = (
            stale - _of_branches(workspace, entity, sorted({path for path, _ in stale}), stale) if missing else set()
        )
    return DeepPlan(tuple(sorted(missing)), tuple(sorted(stale)), frozenset(path for path, _ in there))


def _with_lines(documents: pa.Table) -> set[tuple[str, str]]:
    """Return ``(path, hash)`` of each of ``documents``, ``_OF_DOCUMENT``, that has lines."""
    columns = (documents[name].to_pylist() for name in _OF_DOCUMENT)
    return {(path, content) for path, content, lines in zip(*columns, strict=True) if lines}


def _of_branches(
    workspace: Workspace, entity: Entity, paths: Sequence[str], every: set[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Return ``(path, hash)`` of each document at ``paths`` on any branch; ``every`` if one cannot be read."""

    def read(record: BranchRecord) -> set[tuple[str, str]]:
        documents = workspace.on([branch_at(entity, record)]).manifest(entity)
        return _with_lines(documents.get(paths, columns=_OF_DOCUMENT))

    try:
        return set[tuple[str, str]]().union(*workspace.map_parallel(read, branch_records(workspace, entity)))
    except CorruptFile:  # ``verify`` reports it
        return every


def batches(entity: Entity, plan: DeepPlan, model: DeepModel) -> Iterator[DeepSpec]:
    """Yield the work of ``plan`` in batches."""
    for start in range(0, len(plan.missing), DOCUMENTS_PER_BATCH):
        some = plan.missing[start : start + DOCUMENTS_PER_BATCH]
        yield DeepSpec(entity, some, tuple(path for path, _ in some if path in plan.known), model)


def deepen_batch(spec: DeepSpec, context: TaskContext) -> DeepResult:
    """Embed the indexed definitions of ``spec``, and write them as fragments.

    Definitions whose text was already in an earlier version of these documents keep their vectors. A document that
    changed since then yields no result; the next run embeds it. Raises MissingExtra, ModelNotFound, StorageError.
    """
    workspace, hashes = context.workspace, dict(spec.documents)
    names = ("path", "hash", "line_number", "text", OUTLINE_COLUMN)
    rows = workspace.lines(spec.entity).of_documents(spec.entity, sorted(hashes), [*names, "column_number"])
    rows = rows.sort_by([("line_number", "ascending"), ("column_number", "ascending")])
    texts: dict[str, dict[int, str]] = defaultdict(dict)
    outlines: dict[str, list[str]] = defaultdict(list)
    for path, content, number, text, outline in zip(*(rows[name].to_pylist() for name in names), strict=True):
        if content == hashes[path]:
            texts[path].setdefault(number, text)  # the start of a long line
            if outline:
                outlines[path].append(outline)
    found: list[tuple[str, Definition | None]] = []
    said: list[str] = []
    for path in sorted(texts):
        definitions = _definitions(outlines[path], texts[path])
        found += [(path, each) for each in definitions] or [(path, None)]
        said += [definition_text(path, each, texts[path]) for each in definitions]
    if not found:
        return DeepResult((), len(hashes), 0)
    table = workspace.deep(spec.entity, spec.model)
    vectors = table.vectors(spec.entity, spec.known) if spec.known else {}
    text_hashes = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest() for text in said]
    new = {text_hash: text for text_hash, text in zip(text_hashes, said, strict=True) if text_hash not in vectors}
    if new:
        encoder = load_transformer(spec.model.name, threads=1)
        vectors.update(zip(new, encoder.embed([*new.values()]).astype(np.float16), strict=True))
    fragments = table.write_fragments(_table(spec, found, hashes, text_hashes, vectors))
    return DeepResult(tuple(fragments), len(hashes), len(new))


def _definitions(outlines: Sequence[str], texts: dict[int, str]) -> list[Definition]:
    """Return a document's distinct definitions whose own line has text."""
    known = {each: None for outline in outlines for each in decode(outline)}
    return [
        each for each in known if each.line in texts and (each.kind != "key" or each.last - each.first >= _KEY_LINES)
    ]


def _table(
    spec: DeepSpec,
    found: Sequence[tuple[str, Definition | None]],
    hashes: dict[str, str],
    text_hashes: Sequence[str],
    vectors: dict[str, NDArray[np.float16]],
) -> pa.Table:
    columns, left = schema(spec.model.dim), iter(text_hashes)
    of_rows = [next(left) if definition is not None else None for _, definition in found]
    none = Definition("", "", -1, -1, -1)
    definitions = [definition or none for _, definition in found]
    paths = [path for path, _ in found]
    values = {
        "entity": [str(spec.entity)] * len(paths),
        "path": paths,
        "hash": [hashes[path] for path in paths],
        "parent_dirs": [parent_dirs(path) for path in paths],
        "ext": [extension(path) for path in paths],
        **{name: [getattr(each, name) for each in definitions] for name in ("kind", "name", "line", "first", "last")},
        "text_hash": of_rows,
        "vector": [vectors[each] if each is not None else None for each in of_rows],
    }
    return pa.table([pa.array(values[field.name], field.type) for field in columns], schema=columns)

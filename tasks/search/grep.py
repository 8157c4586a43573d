"""Semantic search without a workspace: every line of some texts against a query, by cosine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftline.storage.errors import AccessDenied, SourceNotFound, StorageError, UsageError
from driftline.storage.globs import is_unicode
from driftline.storage.lines.outline import Definition, innermost
from driftline.storage.model import Embedder, SkipReason
from driftline.tasks.definitions.outlines import definitions
from driftline.tasks.embedding.context import PLAN_AFTER_LINES
from driftline.tasks.scanning.selection import STDIN, files_named
from driftline.tasks.search.defaults import DEFAULT_N_LINES, DEFAULT_TOP_K
from driftline.tasks.search.excerpts import clipped, match_in
from driftline.tasks.search.hits import Hit, clipped_context, symbol_of
from driftline.tasks.search.query import SearchReport, nearest_note
from driftline.tasks.search.relevance import Calibration
from driftline.tasks.search.windows import merge_windows
from driftline.tasks.text import decode, rows_of_line, split_documents, split_lines

_BATCH_CHARACTERS = 4 * 2**20
"""Text embedded at once: some 100,000 lines, whose vectors take 100 MB."""


@dataclass(frozen=True, slots=True)
class NamedText:
    """One file: its path as it was named, and its text."""

    path: str
    text: str


def read_texts(
    names: Iterable[str],
    read_stdin: Callable[[], bytes] | None = None,
    on_skip: Callable[[str, SkipReason], None] = lambda path, reason: None,
) -> Iterator[NamedText]:
    """The texts that ``names`` select (see ``tasks.selection``), in order; ``-`` is standard input.

    ``on_skip`` is told of files that hold no text or are too large. Raises SourceNotFound, AccessDenied, StorageError,
    UsageError.
    """
    for path in files_named(names, stdin=read_stdin is not None, on_skip=on_skip):
        data = read_stdin() if path == STDIN and read_stdin is not None else _read(path)
        text, reason = decode(data, unpack=False)
        if reason is None:
            yield NamedText(path, text)
        else:
            on_skip(path, reason)


def open_embedder(model: str | None = None) -> Embedder:
    """The embedder of DEFAULT_MODEL, a directory or a hub name, ready for few lines. Raises ModelNotFound."""
    from driftline.tasks.embedding.embedder import WordTableEmbedder
    from driftline.tasks.embedding.models import fingerprint, load_parts, resolve_model

    files = resolve_model(model)
    return WordTableEmbedder(load_parts(files), fingerprint(files), plan_after=PLAN_AFTER_LINES)


def grep(
    query: str,
    texts: Iterable[NamedText],
    embedder: Embedder,
    *,
    top_k: int = DEFAULT_TOP_K,
    max_distance: float | None = None,
    min_relevance: float | None = None,
    n_lines: int = DEFAULT_N_LINES,
    ignore_case: bool = False,
) -> SearchReport:
    """The windows of ``texts`` nearest to ``query``, best first, as ``search`` reports them; their source is "".

    Lines without a letter or digit are never found. Holds the texts and 12 bytes a line. Raises UsageError.
    """
    if not is_unicode(query):
        raise UsageError("The query is not UTF-8", repr(query)[:100], "Check the encoding of the terminal.")
    if top_k < 0 or n_lines < 0:
        raise UsageError("top_k and n_lines must not be negative", f"{top_k}, {n_lines}")
    if min_relevance is not None and not 0 <= min_relevance <= 1:
        raise UsageError("min_relevance must be between 0 and 1", str(min_relevance))
    vector = embedder.embed_query(query.lower() if ignore_case else query) if query.strip() else np.zeros(1, np.float32)
    if top_k == 0 or not vector.any():
        for _ in texts:  # what cannot be read is an error whatever is asked
            pass
        return SearchReport(query, ())
    calibration = Calibration.of(embedder)
    max_distance = calibration.limit(min_relevance, max_distance)
    kept: list[NamedText] = []
    lines = _Lines()
    for batch in _batches(texts):
        lines.add(len(kept), batch, vector, embedder, ignore_case, max_distance)
        kept.extend(batch)
    found = tuple(_hits(query, kept, lines.sorted(kept), top_k, n_lines, calibration))
    if found or lines.nearest is None:
        return SearchReport(query, found, notes=() if found else ("No line holds a word that the model knows.",))
    columns = tuple(np.array([value]) for value in lines.nearest)
    (nearest,) = _hits(query, kept, (columns[0], columns[1], columns[2]), 1, 0, calibration)
    assert max_distance is not None
    return SearchReport(query, (), notes=(nearest_note(nearest, max_distance),), nearest=nearest)


class _Lines:
    """The rows near enough so far: arrays of distance, document, 0-based line and column, one of each per batch."""

    def __init__(self) -> None:
        self.distance: list[NDArray[np.float32]] = []
        self.document: list[NDArray[np.int32]] = []
        self.number: list[NDArray[np.int32]] = []
        self.column: list[NDArray[np.int32]] = []
        self.nearest: tuple[float, int, int] | None = None
        """The nearest of all lines, near enough or not, in the same order."""

    def add(
        self,
        first: int,
        batch: Sequence[NamedText],
        query: NDArray[np.float32],
        embedder: Embedder,
        ignore_case: bool,
        max_distance: float | None,
    ) -> None:
        lines = split_documents([text.text.lower() if ignore_case else text.text for text in batch])
        distinct = lines.text.dictionary_encode()  # half of the lines of code are repeated
        vectors = embedder.embed(distinct.dictionary)
        distances = (1 - vectors @ query).astype(np.float32)
        distances[~vectors.any(axis=1)] = np.inf  # no known word
        of_line = distances[distinct.indices.to_numpy()]
        best = int(np.argmin(of_line)) if len(of_line) else 0
        if len(of_line) and of_line[best] < (self.nearest[0] if self.nearest else np.inf):
            document, number = lines.doc_index[best].as_py() + first, lines.line_number[best].as_py()
            self.nearest = float(of_line[best]), document, number
        near = np.isfinite(of_line) if max_distance is None else of_line <= max_distance
        self.distance.append(of_line[near])
        self.document.append(lines.doc_index.to_numpy()[near] + np.int32(first))
        self.number.append(lines.line_number.to_numpy()[near])
        self.column.append(lines.column_number.to_numpy()[near])

    def sorted(self, texts: Sequence[NamedText]) -> tuple[NDArray[Any], ...]:
        """All of them, nearest first; ties in the order of the texts."""
        if not texts:
            return (np.empty(0),) * 4
        columns = (np.concatenate(each) for each in (self.distance, self.document, self.number, self.column))
        distance, *others = columns
        order = np.argsort(distance, kind="stable")
        return distance[order], *(each[order] for each in others)


def _hits(
    query: str,
    texts: Sequence[NamedText],
    lines: tuple[NDArray[Any], ...],
    top_k: int,
    n_lines: int,
    calibration: Calibration,
) -> Iterator[Hit]:
    split: dict[int, list[str]] = {}

    def lines_of(document: int) -> list[str]:
        if document not in split:
            split[document] = split_lines(texts[document].text)
        return split[document]

    @cache
    def outline(document: int) -> list[Definition]:
        return definitions(texts[document].path, texts[document].text)

    nearest = zip(*(column.tolist() for column in lines), strict=True)
    rows = (
        {
            "entity": "",
            "path": str(document),  # two texts may have one path
            "hash": "",
            "line_number": number,
            "column_number": column,
            "distance": distance,
            "text": dict(rows_of_line(lines_of(document)[number]))[column],
        }
        for distance, document, number, column in nearest
    )
    windows = merge_windows(rows, 2 * n_lines + 1 if n_lines else 0, top_k)
    for rank, window in enumerate(windows, start=1):
        document = int(window.path)
        start = max(0, window.first - n_lines)
        context = lines_of(document)[start : window.last + n_lines + 1]
        at = match_in(window.text, query)
        yield Hit(
            path=texts[document].path,
            file=None if texts[document].path == STDIN else os.path.abspath(texts[document].path),
            source="",
            line=window.best + 1,
            start_line=start + 1,
            end_line=start + len(context),
            score=window.score,
            distance=window.distance,
            relevance=calibration.relevance(window.distance),
            rank=rank,
            text=clipped(window.text, at),
            context=clipped_context(context, window.best - start, window.column + at),
            column=window.column + at + 1,
            **symbol_of(innermost(outline(document), window.best)),
        )


def _batches(texts: Iterable[NamedText]) -> Iterator[list[NamedText]]:
    batch: list[NamedText] = []
    size = 0
    for text in texts:
        if batch and size + len(text.text) > _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text.text)
    if batch:
        yield batch


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError as error:
        raise SourceNotFound("No such file", path, "Check the spelling.") from error
    except PermissionError as error:
        raise AccessDenied("The file cannot be read", path, "Check its permissions.") from error
    except OSError as error:
        raise StorageError("The file cannot be read", path, str(error)) from error

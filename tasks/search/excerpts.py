"""A part of one indexed document, and of nothing else: what a program may read that only knows search results."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError, NotIndexed, UsageError
from driftline.storage.hierarchy import is_within
from driftline.storage.ids import content_hash
from driftline.storage.lance.damage import without_panic
from driftline.storage.lines.queries import LineQuery, Passage
from driftline.storage.lines.words import telling_words
from driftline.storage.sources.source import known_source
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.defaults import CUT, MAX_SHOWN_CHARACTERS
from driftline.tasks.text import decode, split_lines

_BEFORE_CHARACTERS = 100
"""Of a window, before what matches."""
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines ``start_line`` (1-based) and on of a document, as they were indexed.

    ``current`` is False when the document cannot be read or has changed since: then the lines come from the
    index, which leaves out lines without a letter or digit: those are empty.
    """

    source: str
    path: str
    start_line: int
    lines: tuple[str, ...]
    current: bool


@without_panic()
def read_excerpt(
    workspace: Workspace,
    path: str,
    line: int,
    *,
    n_lines: int,
    source: str | None = None,
    within: Entity | None = None,
) -> Excerpt:
    """The line of an indexed document, and ``n_lines`` on each side; ``source`` may be left out where one has the path.

    Only documents of sources at or below ``within`` are read.

    What has not been indexed is never returned: a document is read by its path in the manifest, and only believed when
    its hash is the manifest's. Raises NotIndexed for anything else, UsageError, StorageError.
    """
    if line < 1 or n_lines < 0:
        raise UsageError("Lines count from 1, and n_lines must not be negative", f"{line}, {n_lines}")
    entity, digest = _indexed(workspace, path, source, within)
    lines = _read(workspace, entity, path, digest)
    first, last = max(0, line - 1 - n_lines), line - 1 + n_lines
    current = lines is not None
    part = lines[first : last + 1] if lines is not None else _from_index(workspace, entity, path, first, last)
    if not part:
        raise NotIndexed(f"The document has no line {line}", path, "Take line numbers from search results.")
    return Excerpt(str(entity), path, first + 1, tuple(part), current)


def _indexed(workspace: Workspace, path: str, source: str | None, within: Entity | None) -> tuple[Entity, str]:
    """The source at or below ``within`` that has indexed ``path``, and the hash of what it has indexed."""
    if source is None:
        entities = [entity for entity, _ in workspace.readable_sources(within)]
    else:
        entities = [Entity.parse(source, workspace.config.hierarchy)]
        if within is not None:
            entities = [entity for entity in entities if is_within(entity, within)]
    found: list[tuple[Entity, str]] = []
    for entity in entities:
        rows = workspace.manifest(entity).get([path], columns=["hash", "reason"]).to_pylist()
        found += [(entity, row["hash"]) for row in rows if row["reason"] is None]
    if not found:
        raise NotIndexed("No such document is indexed", path, "Take path and source from search results.")
    if len(found) > 1:
        names = ", ".join(str(entity) for entity, _ in found)
        raise UsageError("Several sources have this document", path, f"Name one of them: {names}.")
    return found[0]


def _read(workspace: Workspace, entity: Entity, path: str, digest: str) -> list[str] | None:
    record = workspace.readable_source(entity)
    if record is None or not workspace.reach.allows(record.uri):
        return None
    try:
        data = known_source(record.uri, workspace.objects.storage_options).read(path)
    except DriftlineError:
        return None  # the index answers for it
    if content_hash(data) != digest:
        return None
    return split_lines(decode(data)[0])


def _from_index(workspace: Workspace, entity: Entity, path: str, first: int, last: int) -> list[str]:
    rows = LineQuery(workspace.lines(entity)).passages([Passage(str(entity), path, first, last)])
    known: dict[int, str] = {}
    for row in rows.sort_by("column_number").to_pylist():
        known[row["line_number"]] = known.get(row["line_number"], "") + row["text"]
    return [known.get(number, "") for number in range(first, max(known, default=first - 1) + 1)]


def clipped(line: str, at: int = 0) -> str:
    """``line``, or its window of MAX_SHOWN_CHARACTERS around the character ``at``, with an ellipsis where it is cut."""
    if len(line) <= MAX_SHOWN_CHARACTERS:
        return line
    start = max(0, min(at - _BEFORE_CHARACTERS, len(line) - MAX_SHOWN_CHARACTERS))
    end = start + MAX_SHOWN_CHARACTERS
    head, tail = (CUT if start else ""), (CUT if end < len(line) else "")
    return head + line[start + len(head) : end - len(tail)] + tail


def match_in(line: str, query: str) -> int:
    """Where ``line`` answers ``query``: the first character of the window with most of its words; 0 without any."""
    words = {*map(str.lower, _WORD.findall(query))} | {*telling_words(query)}
    words = {word for word in words if len(word) > 1} or words
    if not words:
        return 0
    anyone = re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))))
    found = [(each.start(), each[0]) for each in anyone.finditer(line.lower())]
    best, most, end = 0, 0, 0
    held: Counter[str] = Counter()
    for start, word in found:
        while end < len(found) and found[end][0] < start + MAX_SHOWN_CHARACTERS - _BEFORE_CHARACTERS:
            held[found[end][1]] += 1
            end += 1
        if len(held) > most:
            best, most = start, len(held)
        held[word] -= 1
        if not held[word]:
            del held[word]
    return best

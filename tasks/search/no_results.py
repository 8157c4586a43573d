"""Explain why a search has no results, or only weak ones: an empty index, filters that match nothing, unknown words,
or the distance of the nearest line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from driftline.storage.defaults import Mode, all_weak
from driftline.storage.lines.line_filter import LineFilter
from driftline.storage.lines.table_searcher import TableSearcher
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.filters import ALL_LINES, LineKinds, conditions, line_filter
from driftline.tasks.search.hits import Hit
from driftline.tasks.search.request import SearchFilter, SearchRequest

NO_GOOD_MATCH = "No good match. These are the nearest lines, all weak."


UNKNOWN_WORDS = "The model knows none of the query's words."


def notes_on(found: Sequence[Hit]) -> tuple[str, ...]:
    """Return a note if no hit is likely to be relevant."""
    return (NO_GOOD_MATCH,) if all_weak(hit.label for hit in found) else ()


def nothing_indexed(workspace: Workspace) -> str:
    """Explain why a workspace has no lines: whether it has sources, and why their files were skipped."""
    if workspace.config.fingerprint and not workspace.config.model:  # restored by a repair
        return f"{workspace.objects.uri} has no record of its embedding model. Run: driftline index SOURCE --model NAME"
    reasons: Counter[str] = Counter()
    records = []
    for entity, record in workspace.readable_sources():
        records.append(record)
        reasons.update(filter(None, workspace.manifest(entity).read(columns=["reason"])["reason"].to_pylist()))
    if not records:
        return f"Nothing is indexed in {workspace.objects.uri}. Run: driftline index SOURCE"
    listed = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
    left_out = f"all files of its sources were skipped ({listed})" if reasons else "its sources have no indexed files"
    if any(record.include or record.exclude for record in records):
        left_out += " that match their filters (`include`, `exclude`)"
    return f"The index in {workspace.objects.uri} has no lines: {left_out}."


def note_without_search(workspace: Workspace, request: SearchRequest) -> tuple[str, ...]:
    if request.top_k == 0:
        return ("No results were requested (`top_k` is 0).",)
    return ("The query is blank.",) if not request.query.strip() else (nothing_indexed(workspace),)


def why_nothing(
    workspace: Workspace,
    tables: Sequence[TableSearcher],
    filters: SearchFilter,
    matches: Callable[[Workspace, LineFilter | None], bool],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the globs that match no documents, and messages about filters that match nothing.

    Both are empty if any line passes. ``matches`` returns whether any line passes a filter.
    """
    if any(table.matches for table in tables):
        return (), ()
    if not any(table.lines for table in tables):
        return (), (nothing_indexed(workspace),)
    empty = [each for each in conditions(filters) if not matches(workspace, line_filter(each[2], workspace))]
    notes = tuple(why for _, why, _ in empty) or ("No indexed document matches all filters together.",)
    return tuple(name for name, _, _ in empty if name.startswith("glob ")), notes


def why_left_out(nearest: Sequence[Hit], mode: Mode, limit: float | None, only: LineKinds) -> str:
    """Return why lines that pass the filters are not results."""
    if not nearest and only != ALL_LINES:
        return "No line near the query is of these kinds (`kinds`, `symbols`, `tests`)."
    if not nearest:
        return "No line contains any of the query's words, and the model knows none of them."
    if limit is None or nearest[0].distance <= limit:
        return (
            "No line contains any of the query's words."
            if mode == "text"
            else "No line near the query is of these kinds."
        )
    return nearest_note(nearest[0], limit)


def nearest_note(hit: Hit, limit: float) -> str:
    """Return how far the nearest line is beyond a search's limit."""
    return (
        f"No line is within the distance {limit:.4g}: the nearest, {hit.path}:{hit.line}, has distance "
        f"{hit.distance:.4f} and relevance {hit.relevance:.4f}."
    )

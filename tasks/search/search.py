"""Search a workspace: run a request as an exact or a ranked search (DESIGN, "Search").

Every interface searches through ``search``, in this process or another.
"""

from __future__ import annotations

from dataclasses import replace

from driftline.storage.errors import UsageError
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.exact import search_exactly, search_inside, without_matches
from driftline.tasks.search.facets import chosen, with_alternatives, without_chosen
from driftline.tasks.search.hits import SearchReport
from driftline.tasks.search.last_search import with_last_versions
from driftline.tasks.search.query_language import ParsedQuery, parse_request
from driftline.tasks.search.ranked import model_of, search_ranked
from driftline.tasks.search.request import SearchRequest
from driftline.tasks.task_context import load_embedder


def search(workspace: Workspace, request: SearchRequest) -> SearchReport:
    """Run an exact search if the request has exact terms, otherwise a ranked search for its words.

    A request with only filters lists the matching files. The caller must open the workspace on the branch given in the
    query. Raises the same errors as ``search_exactly`` and ``search_ranked``.
    """
    return with_last_versions(workspace, lambda opened: _complete(opened, request))


def _complete(workspace: Workspace, request: SearchRequest) -> SearchReport:
    report = _searched(workspace, request)
    if report.facets is None:
        return report
    facets = replace(report.facets, files=())
    if chosen(request) and (wider := _searched(workspace, without_chosen(request)).facets):
        facets = with_alternatives(facets, wider, request)
    return replace(report, facets=facets)


def _searched(workspace: Workspace, request: SearchRequest) -> SearchReport:
    query = parse_request(request)
    if not query.is_exact and (request.count or request.files):
        raise UsageError(
            "Only exact matches can be counted", query.text, "Add an exact string or a regular expression."
        )
    if not query.terms.patterns:
        options = {"whole_words": True, "multiline": True, "ignore_case": False}
        for name in (name for name, value in options.items() if getattr(request, name) is value):
            fix = "Pass the text as an exact string or a regular expression."
            raise UsageError(f"`{name}` applies only to exact text", query.text, fix)
    if query.is_plain:
        return search_ranked(workspace, request)
    also = (*request.also, *query.conditions(workspace, request.boundary))
    narrowed = replace(request, query=query.words, also=also, fixed=None, regex=None)
    if query.excluded:
        narrowed = replace(narrowed, also=(*also, without_matches(workspace, query.excluded, narrowed)))
    if query.is_exact:
        return _explained(search_exactly(workspace, query.terms, narrowed), query)
    inside = query.terms.only_inside
    report = search_inside(workspace, query.terms, narrowed) if inside else search_ranked(workspace, narrowed)
    return replace(report, query=query.text)


def _explained(report: SearchReport, query: ParsedQuery) -> SearchReport:
    """Add the exact terms to a report and, if they may have been meant as words, a note."""
    terms, notes = tuple(query.terms), report.notes
    expressions = [term for term in terms if term.startswith("/") and term in query.text]
    if query.words and expressions:
        notes = (f"Exact: {', '.join(expressions)}. The other words rank the lines that match.", *notes)
    exact = replace(report.exact, terms=terms) if report.exact else None
    return replace(report, query=query.text, notes=notes, exact=exact)


def warm(workspace: Workspace) -> None:
    """Load the model, and open the tables of ``workspace``. Raises the same errors as ``search``."""
    search(workspace, SearchRequest("warm", top_k=1))


def prepare(workspace: Workspace) -> None:
    """Like ``warm``, plus libraries that only long-lived processes load. Raises the same errors as ``search``."""
    warm(workspace)
    if (model := model_of(workspace)) is not None:
        load_embedder(model).prepare()

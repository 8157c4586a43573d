"""Render the pages completely on the server: they need no scripts, and nothing from other hosts.

Their libraries are loaded after the server started (``prepare``). A document's page also shows its definitions and
similar lines.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from driftline.flows.output.report_page import SHOWN_COMMIT, Series, bar_plot, line_plot, plots_of, run_row
from driftline.flows.web.access import is_signed_in
from driftline.flows.web.api import HomeView, IndexView, SqlView
from driftline.flows.web.snippets import joined, shortened, shown_lines
from driftline.storage.documents import LANGUAGES, is_prose
from driftline.storage.entities import short_names
from driftline.storage.errors import NotIndexed
from driftline.storage.globs import literal_glob
from driftline.storage.lines.outline import OF_TEXT
from driftline.storage.option_table import Option
from driftline.storage.workspace.records import DONE, RunRecord
from driftline.tasks.definitions.find_definitions import definitions
from driftline.tasks.search.documents import Folder, FoundDocuments
from driftline.tasks.search.facets import Facets, chosen
from driftline.tasks.search.hits import Hit, SearchReport, note_on_limit
from driftline.tasks.search.links import pages_of_host
from driftline.tasks.search.query_language import CASES, FIELDS, ParsedQuery, field_term, parse_request
from driftline.tasks.search.request import OPTIONS, SearchRequest

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_FACETS = 12
MAX_PAGE_LINES = 2_500
"""How many lines of a document to show on each side of the requested line."""
_FOLDER = "driftline.flows.web"
_OF_EVERY_PAGE = ("n_lines", "facets")
_MOST = int((OPTIONS["top_k"].served or (0, 0))[1])
"""How many results a page links to if there are more."""
_TITLES = {"sources": "Source", "languages": "Language", "kinds": "Kind", "dirs": "Directory", "tests": "Tests"}


def search_link(request: SearchRequest) -> str:
    """Return the link to a search."""
    fields = {OPTIONS[name].parameter: value for name, value in request.given().items() if name not in _OF_EVERY_PAGE}
    return "/?" + _encoded({"q": request.query, "mode": request.mode, **fields})


@dataclass(frozen=True, slots=True)
class DocumentView:
    """A document around ``line``: the requested or the first line.

    ``similar`` lists hits that resemble that line, and ``outline`` lists the definitions as (line, kind, name).
    ``folder`` is the document's folder, and ``branches`` the first branches of its source. If ``is_whole`` is
    set, no line was requested, and prose is laid out.
    """

    excerpt: dict[str, Any]
    line: int
    branch: str | None = None
    outline: Sequence[tuple[int, str, str]] = ()
    similar: Sequence[Hit] = ()
    folder: Folder | None = None
    branches: Sequence[str] = ()
    is_whole: bool = False


EXAMPLES = (
    ("where are errors handled", "lines with this meaning, even in other words"),
    ('"TODO"', "lines with exactly this text"),
    ("def:main lang:python", "where a name is defined, in one language"),
)
"""Queries for the home page, each with the type of results."""
SYNTAX = (
    ("words with a meaning", "best lines first, even in other words"),
    ("lease.py  leases/lease.py:120", "this file, at this line"),
    ('"exact text"', "every line with this text"),
    ("/lease_[a-z]+\\(/", "every line that matches an expression (RE2)"),
    ("def:Name", "where a name is defined"),
    ("uses:Name", "where it is used, nearest first"),
    ("sym:Name", "lines inside its definition"),
    ("lang:go  file:src/**  repo:web", "only these files; -file:test excludes"),
    ("case:yes", "exact terms are case-sensitive"),
)
"""The query syntax explained on the home page."""


def home_page(request: SearchRequest, view: HomeView, now: datetime, branches: Sequence[str] = ()) -> bytes:
    """Return the page with the search box, the content of the index, and examples."""
    age = _ago(now - view.indexed) if view.indexed is not None else ""
    examples = [(query, search_link(replace(request, query=query)), about) for query, about in EXAMPLES]
    sources = _listed(view.sources)
    names = {source["entity"]: source["documents"] for _, _, source in sources}
    terms = _terms(Facets({"sources": names}), branches)
    return _searching(request, home=view, sources=sources, age=age, examples=examples, terms=terms)


def _listed(sources: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Return each source's short name, link and statistics, largest first."""
    names = short_names([source["entity"] for source in sources])
    by_size = sorted(sources, key=lambda source: -source["lines"])
    return [(names[source["entity"]], folder_link(source["entity"], ""), source) for source in by_size]


def search_page(
    request: SearchRequest,
    report: SearchReport | None = None,
    *,
    branches: Sequence[str] = (),
    folders: Mapping[str, str] = MappingProxyType({}),
    error: str = "",
) -> bytes:
    """Return a search page: the results grouped by file, or the ``error``.

    ``folders`` maps sources to their paths inside their repositories.
    """
    hits = report.results if report is not None else ()
    question = parse_request(request) if report is not None else None
    branch = request.branch or (question.branch if question is not None else None)
    counted = report.facets if report is not None and report.facets is not None else Facets()
    others = [(name, search_link(replace(request, branch=name))) for name in branches if name != branch]
    return _searching(
        request,
        report=report,
        files=_by_file(question, branch, hits, folders) if question is not None else (),
        count=_count(report) + ("" if report.exact else _matching(request, counted, hits)) if report else "",
        names=short_names({hit.source for hit in hits}),
        branches=others[:MAX_FACETS],
        complete=counted.complete,
        facets=_facets(request, counted),
        terms=_terms(counted, branches, hits),
        more=search_link(replace(request, top_k=_MOST)) if request.top_k <= len(hits) < _MOST else None,
        instead=_suggestions(request, question) if question is not None and not hits else (),
        notes=_notes(report) if report is not None else (),
        error=_without_options(error),
    )


def _count(report: SearchReport, unit: str = "result") -> str:
    """Format how many results there are, and of how many.

    Examples:
        >>> from driftline.tasks.search.hits import ExactCounts
        >>> _count(SearchReport("lang:go", (), exact=ExactCounts(0, 57)))
        '0 results of 57 files'
    """
    found, exact = len(report.results), report.exact
    shown = f"{found} {unit}{'' if found == 1 else 's'}"
    if exact is None or (exact.complete and max(exact.lines, exact.documents) <= found):
        return shown
    more = "" if exact.complete else " or more"
    files = f"{exact.documents:,} file{'' if exact.documents == 1 else 's'}"
    if exact.documents and not exact.lines:
        return f"{shown} of {files}{more}"
    return f"{shown} of {exact.lines:,}{more} in {files}"


def _notes(report: SearchReport) -> list[str]:
    """Return the report's notes, without options, and without the one that only repeats ``_count``."""
    repeated = note_on_limit(len(report.results))
    return [_without_options(note) for note in report.notes if note != repeated]


def _matching(request: SearchRequest, counted: Facets, hits: Sequence[Hit]) -> str:
    """Format how many files match, if more than those of ``hits``.

    Examples:
        >>> _matching(SearchRequest("lease"), Facets({"tests": {"false": 38, "true": 25}}), ())
        ' · 63 files match'
    """
    tests = counted.counts.get("tests", {})
    files = tests.get("false", 0) + (tests.get("true", 0) if request.tests else 0)
    if files <= len({(hit.source, hit.path) for hit in hits}):
        return ""
    return f" · {files:,}{'' if counted.complete else '+'} files match"


MAX_TERMS = 50
"""How many values to offer per field."""


def _terms(facets: Facets, branches: Sequence[str], hits: Sequence[Hit] = ()) -> list[tuple[str, str]]:
    """Return query completions, with explanations: fields, and values that narrow the results."""
    counts = facets.counts
    languages = counts.get("languages", {})
    values: dict[str, Mapping[str, int]] = {
        "lang": {**languages, **dict.fromkeys(LANGUAGES, 0), **languages},
        "file": {f"{literal_glob(name)}/**": count for name, count in counts.get("dirs", {}).items()}
        | {literal_glob(hit.path): 0 for hit in hits},
        "repo": {name.rpartition(":")[2]: count for name, count in counts.get("sources", {}).items()},
        "branch": dict.fromkeys(branches, 0),
        "case": dict.fromkeys(CASES, 0),
    }
    names = [hit.symbol for hit in hits if hit.symbol is not None and hit.kind not in OF_TEXT]
    values |= {field: dict.fromkeys(names, 0) for field in ("def", "uses", "sym")}
    found = []
    for field, about in FIELDS.items():
        found.append((f"{field}:", about))
        for value, count in [*values[field].items()][:MAX_TERMS]:
            term = f"{field}:{value}" if _PLAIN.fullmatch(value) else field_term(field, value)
            found.append((term, f"{count:,} file{'' if count == 1 else 's'}" if count else ""))
    return found


_PLAIN = re.compile(r"[^\s\"]\S*")
_OPTION = re.compile(r" \([^()]*`\w+`[^()]*\)|[:;,] [^:;,.]*`\w+`[^:;,.]*")


def _without_options(note: str) -> str:
    """Remove the parts of a note about program options, which the page does not have.

    Examples:
        >>> _without_options("The syntax is RE2's; `fixed` searches for literal text.")
        "The syntax is RE2's."
    """
    return _OPTION.sub("", note)


def _suggestions(request: SearchRequest, question: ParsedQuery) -> Iterator[tuple[str, str]]:
    """Yield other searches to try if this one finds nothing, as descriptions and links."""
    plain = SearchRequest(request.query)
    if any(name not in ("mode", "top_k", *_OF_EVERY_PAGE) for name in request.given()):
        yield "without filters", search_link(plain)
    words = " ".join(re.findall(r"\w+", question.text))
    if not question.is_plain and words and (question.words or question.terms):
        yield "by the words alone", search_link(SearchRequest(words))


def _searching(request: SearchRequest, **content: Any) -> bytes:
    """Return a page with the search box and the search's filters."""
    as_facets = {row["parameter"] for row in content.get("facets", ())}
    filters, removable = [], []
    for name, given in request.given().items():
        row = OPTIONS[name]
        if name not in ("mode", "top_k", *_OF_EVERY_PAGE):
            for value in given if row.is_list else (given,):
                if row.parameter not in as_facets:
                    filters.append((row.parameter, _shown(value)))
                removable.append((_told(row, value), search_link(_without(request, row, value))))
    absent: dict[str, Any] = {
        "more": None,
        "home": None,
        "syntax": SYNTAX,
        "terms": (),
        "report": None,
        "files": (),
        "facets": (),
        "branches": (),
        "instead": (),
        "notes": (),
        "count": "",
        "error": "",
    }
    shown = {"filters": filters, "removable": removable, **absent, **content}
    cleared = search_link(SearchRequest(request.query, mode=request.mode))
    return _rendered("search.html.j2", request=request, cleared=cleared, **shown)


def _told(row: Option, value: Any) -> str:
    """Describe a filter: ``kind: function``, ``no tests`` or ``whole words``."""
    name = row.parameter.replace("_", " ")
    if isinstance(value, bool):
        return name if value else f"no {name}"
    return f"{name}: {_shown(value).rpartition(':')[2] if row.is_entity else _shown(value)}"


def _by_file(
    question: ParsedQuery, branch: str | None, hits: Sequence[Hit], folders: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Group hits by file, ordered by best hit, with each file's path in its repository."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    shown = [shown_lines(hit, is_exact=question.is_exact) for hit in hits]
    spans = iter(question.terms.spans([line for _, context, _ in shown for line in context]))
    for hit, (read, context, left_out) in zip(hits, shown, strict=True):
        link = document_link(hit.source, hit.path, hit.line, branch)
        path = f"{folders.get(hit.source, '')}/{hit.path}".removeprefix("/")
        shown_path = shortened(path)
        prose = is_prose(hit.path)
        new = {"source": hit.source, "path": path, "shown": shown_path, "link": link, "is_prose": prose, "hits": []}
        file = found.setdefault((hit.source, hit.path), new)
        matches = [*islice(spans, len(context))]
        lines = _numbered(hit.path, hit.start_line + read, context, question.words, matches)
        file["hits"].append({"link": link, "hit": hit, "best": [hit.line], "also": [], "lines": lines[left_out:]})
    for file in found.values() if question.is_exact else ():
        file["hits"] = joined(file["hits"])
    return list(found.values())


_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60))


def _ago(age: timedelta) -> str:
    """Format an age in its largest unit.

    Examples:
        >>> _ago(timedelta(hours=26)), _ago(timedelta(seconds=90)), _ago(timedelta(seconds=5))
        ('1 day ago', '1 minute ago', 'just now')
    """
    for unit, seconds in _UNITS:
        count = int(age.total_seconds()) // seconds
        if count > 0:
            return f"{count:,} {unit}{'' if count == 1 else 's'} ago"
    return "just now"


def document_page(view: DocumentView) -> bytes:
    """Return a document's page."""
    from driftline.flows.web.rendering import is_rendered

    excerpt, branch = view.excerpt, view.branch
    source, path, first = excerpt["source"], excerpt["path"], excerpt["start_line"]
    last = first + len(excerpt["lines"]) - 1
    earlier = document_link(source, path, max(1, first - MAX_PAGE_LINES), branch) if first > 1 else None
    later = document_link(source, path, last, branch) if last == view.line + MAX_PAGE_LINES else None
    folder, _, name = path.rpartition("/")
    is_prose_page = is_rendered(path) and not earlier and not later
    body = None
    if is_prose_page and view.is_whole:
        body = _laid_out(source, path, excerpt["lines"], branch, excerpt["anchors"])
    if body is not None:
        other_view = "Source", document_link(source, path, 1, branch)
    else:
        other_view = "Rendered", document_link(source, path, None, branch) + f"#L{view.line}"
    return _rendered(
        "document.html.j2",
        excerpt=excerpt,
        address=document_link(source, path, None).removeprefix("/d/"),
        body=body,
        other_view=other_view if is_prose_page else (),
        crumbs=_crumbs(source, folder, branch),
        name=name,
        entries=_entries(view.folder, branch, path) if view.folder is not None else [],
        folder=folder_link(source, folder, branch),
        up=folder_link(source, folder.rpartition("/")[0], branch) if folder else "",
        own=document_link(source, path, view.line if body is None else None, branch),
        here=max((n for n, each in enumerate(view.outline) if each[0] <= view.line), default=-1),
        lines=_numbered(path, first, excerpt["lines"]) if body is None else (),
        count=len(excerpt["lines"]),
        line=view.line,
        branch=branch,
        earlier=earlier,
        later=later,
        outline=[
            (*each, _uses(kind, name, branch))
            for each, (_, kind, name) in zip(_nested(view.outline), view.outline, strict=True)
        ],
        is_prose=is_prose(path),
        elsewhere=pages_of_host(excerpt["url"]) if excerpt["url"] else (),
        branches=[
            (each, document_link(source, path, view.line, each))
            for each in islice((each for each in view.branches if each != branch), MAX_FACETS)
        ],
        main=document_link(source, path, view.line) if branch else "",
        similar=[(document_link(hit.source, hit.path, hit.line, branch), hit) for hit in view.similar],
    )


def _laid_out(
    source: str, path: str, lines: Sequence[str], branch: str | None, anchors: Sequence[tuple[int, str]] = ()
) -> str | None:
    """Return a document of prose as HTML, or None if it is too long."""
    from driftline.flows.web.rendering import rendered

    def link(target: str, fragment: str) -> str:
        found = document_link(source, target, None, branch) if target else folder_link(source, "", branch)
        return f"{found}#{fragment}" if fragment else found

    return rendered(path, lines, link, anchors)


_SEPARATORS = (".", "::", " > ")
_MAX_DEPTH = 3


def _nested(outline: Sequence[tuple[int, str, str]]) -> Iterator[tuple[int, str, str, str, int]]:
    """Yield the definitions as (line, kind, qualified name, name in its parent, depth). The kind of a method, section
    or anchor is "", because its depth or name implies it.

    Examples:
        >>> list(_nested([(1, "class", "Lease"), (4, "method", "Lease.check"), (9, "function", "run")]))
        [(1, 'class', 'Lease', 'Lease', 0), (4, '', 'Lease.check', 'check', 1), (9, 'function', 'run', 'run', 0)]
    """
    around: list[str] = []
    for line, kind, name in outline:
        inside = None
        while around and inside is None:
            inside = next(
                (name[len(around[-1] + sep) :] for sep in _SEPARATORS if name.startswith(around[-1] + sep)), None
            )
            if inside is None:
                around.pop()
        shown = "" if kind in ("method", "section", "anchor") else kind
        yield line, shown, name, inside or name, min(len(around), _MAX_DEPTH)
        around.append(name)


MAX_BESIDE = 100
"""How many folder entries to show next to a document."""


def _crumbs(source: str, path: str, branch: str | None) -> list[tuple[str, str]]:
    """Return names and links of the sources page, ``source``, and the folders down to ``path``."""
    names = path.split("/") if path else []
    below = [(name, folder_link(source, "/".join(names[: at + 1]), branch)) for at, name in enumerate(names)]
    return [("Sources", folder_link()), (short_names([source])[source], folder_link(source, "", branch)), *below]


def _entries(folder: Folder, branch: str | None, shown: str = "") -> list[dict[str, Any]]:
    """Return a folder's entries, or only the ones around document ``shown``."""
    at = f"{folder.path}/" if folder.path else ""
    found: list[dict[str, Any]] = []
    for name, count in folder.folders:
        link = folder_link(folder.source, at + name, branch)
        found.append({"name": f"{name}/", "link": link, "documents": count, "reason": None, "is_shown": False})
    for name, size, reason in folder.documents:
        link = document_link(folder.source, at + name, None, branch) if reason is None else ""
        found.append(
            {"name": name, "link": link, "size": _size(size), "reason": reason, "is_shown": at + name == shown}
        )
    if shown:
        here = next((n for n, each in enumerate(found) if each["is_shown"]), 0)
        first = max(0, min(here - MAX_BESIDE // 2, len(found) - MAX_BESIDE))
        found = [each for each in found[first : first + MAX_BESIDE] if each["link"]]
    return found


def _size(count: int) -> str:
    """Format a byte count for display.

    Examples:
        >>> _size(999), _size(12_345), _size(3_400_000)
        ('999 B', '12.3 kB', '3.4 MB')
    """
    if count < 1_000:
        return f"{count} B"
    return f"{count / 1e3:,.1f} kB" if count < 1e6 else f"{count / 1e6:,.1f} MB"


def readme_of(folder: Folder) -> str | None:
    """Return the path of the document to show below a folder's list, if there is one."""
    from driftline.flows.web.rendering import is_rendered

    names = (name for name, _, reason in folder.documents if reason is None and name.lower().startswith("readme."))
    name = next((name for name in names if is_rendered(name) and is_prose(name)), None)
    return name and f"{folder.path}/{name}".removeprefix("/")


def folder_page(folder: Folder, branch: str | None = None, readme: Sequence[str] = ()) -> bytes:
    """Return a folder's page: its folders and documents, and the lines of its ``readme_of``."""
    *crumbs, (name, _) = _crumbs(folder.source, folder.path, branch)
    entries = _entries(folder, branch)
    path = readme_of(folder)
    return _rendered(
        "folder.html.j2",
        folder=folder,
        crumbs=crumbs,
        name=name,
        entries=entries,
        branch=branch,
        search=_below(folder),
        readme=_laid_out(folder.source, path, readme, branch) if path and readme else None,
    )


def _below(folder: Folder) -> list[tuple[str, str]]:
    """Return the filter parameters that limit a search to a folder."""
    given = [(OPTIONS["sources"].parameter, folder.source)]
    return [*given, (OPTIONS["dirs"].parameter, folder.path)] if folder.path else given


def files_page(query: str, found: FoundDocuments, source: str | None, branch: str | None) -> bytes:
    """Return the page that finds files by name, in ``source`` or in all sources."""
    names = short_names({each for each, _ in found.documents})
    files = [(names[each], path, document_link(each, path, None, branch)) for each, path in found.documents]
    within = [("source", source), ("branch", branch)]
    count = f"{found.count:,}{'' if found.complete else ' or more'} file{'' if found.count == 1 else 's'}"
    return _rendered("files.html.j2", query=query, files=files, count=count if query else "", within=within)


def sources_page(view: HomeView) -> bytes:
    """Return the page of all sources."""
    return _rendered(
        "folder.html.j2", folder=None, readme=None, sources=_listed(view.sources), crumbs=[], name="Sources"
    )


def folder_link(source: str = "", path: str = "", branch: str | None = None) -> str:
    """Return the link to a folder, to a source or, if ``source`` is empty, to all sources."""
    names = "".join(f"{quote(name, safe='/:', errors='surrogatepass')}/" for name in (source, path) if name)
    return f"/d/{names}" + (f"?{_encoded({'branch': branch})}" if branch else "")


def _uses(kind: str, name: str, branch: str | None) -> str | None:
    """Return the link to the uses of a code definition, or None for other definitions."""
    if kind in (*OF_TEXT, "anchor"):
        return None
    return search_link(SearchRequest(field_term("uses", name), branch=branch))


def references_page(
    name: str,
    defined: SearchReport,
    used: SearchReport,
    branch: str | None = None,
    folders: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """Return the page of a name: its definitions and uses, by file. Documents show it as a panel."""
    sections = []
    for title, field, report in (("Definitions", "def", defined), ("Uses", "uses", used)):
        request = SearchRequest(field_term(field, name), branch=branch, top_k=_MOST)
        lines = _by_file(parse_request(request), branch, report.results, folders)
        more = search_link(request) if report.exact is not None and report.exact.lines > len(report.results) else ""
        sections.append((title, _count(report, "line"), lines, more))
    names = short_names({hit.source for report in (defined, used) for hit in report.results})
    return _rendered("references.html.j2", name=name, sections=sections, names=names)


def index_page(view: IndexView, now: datetime) -> bytes:
    """Return the index page."""
    stats, last = view.stats, _last_indexed(view.runs)
    indexed = {entity: moment for entity, (moment, _) in last.items()}
    counts = {
        "documents": f"{stats.total_documents:,}",
        "indexed lines": f"{stats.total_lines:,}",
        f"source{'' if len(stats.sources) == 1 else 's'}": f"{len(stats.sources):,}",
        "last run": _ago(now - max(indexed.values())) if indexed else "never",
        "vector index": str(stats.index_type or "none"),
        "model": str(stats.model),
    }
    ages = {entity: _ago(now - moment) for entity, moment in indexed.items()}
    return _rendered(
        "index.html.j2",
        tiles=counts.items(),
        sources=[
            (*each, ages.get(each[2]["entity"], ""), last.get(each[2]["entity"], (now, ""))[1])
            for each in _listed(stats.sources)
        ],
        skipped=view.skipped,
        names=short_names([source["entity"] for source in stats.sources]),
        plots=plots_of(view.runs),
        runs=[run_row(run) for run in view.runs],
    )


SQL_EXAMPLES = (
    ("SELECT ext, sum(lines) AS lines FROM documents GROUP BY ext ORDER BY lines DESC LIMIT 20", "Lines by file type"),
    (
        "SELECT reason, count(*) AS files FROM skipped GROUP BY reason ORDER BY files DESC",
        "What is not indexed, and why",
    ),
    (
        "SELECT owner, count(*) AS todos FROM lines JOIN owners USING (entity, path) WHERE contains(text, 'TODO') "
        "GROUP BY owner ORDER BY todos DESC LIMIT 20",
        "TODOs by owner, as CODEOWNERS says",
    ),
    (
        "SELECT name || ' ' || path AS name, last_line - line + 1 AS length FROM definitions "
        "WHERE kind IN ('function', 'method') ORDER BY length DESC LIMIT 20",
        "The longest functions",
    ),
    (
        "SELECT started, sum(added) OVER (ORDER BY started) AS lines FROM (SELECT started, lines_total - "
        "lag(lines_total, 1, 0) OVER (PARTITION BY entity ORDER BY started) AS added FROM run_sources "
        "WHERE branch IS NULL) ORDER BY started",
        "Growth",
    ),
)
"""Example queries for the SQL page, each with the question it answers."""
SQL_TABLES = (
    *("documents", "lines", "owners", "definitions", "skipped", "sources", "branches", "runs", "run_sources", "memory"),
)
MAX_BARS = 25


def sql_page(query: str, view: SqlView | None = None, *, error: str = "") -> bytes:
    """Return the SQL page: a query, its rows and a plot of them, or examples."""
    from driftline.flows.web.rendering import cells, coloured

    columns = [cells(values) for values in zip(*view.rows, strict=True)] if view is not None else []
    links = [(*coloured("x.sql", [text]), f"/sql?{_encoded({'q': text})}", about) for text, about in SQL_EXAMPLES]
    return _rendered(
        "sql.html.j2",
        query=query,
        view=view,
        rows=[*zip(*columns, strict=True)],
        plot=_plot(view) if view is not None else "",
        tables=[(name, f"/sql?{_encoded({'q': f'DESCRIBE {name}'})}") for name in SQL_TABLES],
        csv_link=f"/sql?{_encoded({'q': query, 'csv': 'true'})}",
        examples=links,
        error=error,
    )


def _plot(view: SqlView) -> str:
    """Plot a numeric column over the first column: a line over timestamps, otherwise bars.

    It plots the column whose values decrease from row to row, or the first numeric column.
    """
    numbers = [at for at, is_number in enumerate(view.numbers) if is_number and at > 0]
    if not numbers or len(view.rows) < 2:
        return ""
    at = next((at for at in numbers if _falls([row[at] for row in view.rows])), numbers[0])
    points = [(row[0], float(str(row[at]))) for row in view.rows if row[0] is not None and row[at] is not None]
    moments = [(each, value) for each, value in points if isinstance(each, datetime)]
    if moments and len(moments) == len(points):
        return line_plot(view.columns[at], [Series(view.columns[at], sorted(moments))])
    return bar_plot(view.columns[at], [(str(name) or "(empty)", value) for name, value in points[:MAX_BARS]])


def _falls(values: Sequence[Any]) -> bool:
    known = [value for value in values if value is not None]
    return known == sorted(known, reverse=True) and len({*known}) > 1


def _last_indexed(runs: Sequence[RunRecord]) -> dict[str, tuple[datetime, str]]:
    """Return the start of the last complete run that indexed each source, and the commit that it indexed, if known.

    ``runs`` are newest first.
    """
    found: dict[str, tuple[datetime, str]] = {}
    for run in runs:
        for source in run.main_sources if run.outcome == DONE else ():
            commit = str(source.get("commit") or "")[:SHOWN_COMMIT]
            found.setdefault(source["entity"], (datetime.fromisoformat(run.started), commit))
    return found


def document_link(source: str, path: str, line: int | None, branch: str | None = None) -> str:
    """Return the link to a line of a document or, if ``line`` is None, to the document."""
    fields = ({"line": line} if line else {}) | ({"branch": branch} if branch else {})
    address = f"/d/{quote(source, safe='/:')}/{quote(path, errors='surrogatepass')}"
    return address + (f"?{_encoded(fields)}" if fields else "") + (f"#L{line}" if line else "")


def error_page(message: str, status: int, address: str = "") -> bytes:
    """Return the page for a failed request; ``address`` is the request's path."""
    if status == HTTPStatus.NOT_FOUND:
        title = "Not found"
    else:
        title = "This cannot be shown" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "The server cannot answer"
    name = (
        address.rstrip("/").rpartition("/")[2] if address.startswith("/d/") and status == HTTPStatus.NOT_FOUND else ""
    )
    instead = (name, search_link(SearchRequest(name))) if name else ()
    return _rendered("error.html.j2", title=title, message=message, instead=instead)


def sign_in_page(next: str, error: str = "") -> bytes:
    """Return the page that asks for a token and then redirects to ``next``."""
    return _rendered("sign_in.html.j2", next=next, error=error)


def prepare() -> None:
    """Load the libraries that only pages need."""
    for name in ("search", "document", "references", "files", "folder", "index", "sql"):
        _templates().get_template(f"{name}.html.j2")
    for name in STATIC:
        version_of(name)


_SCRIPTS = dict.fromkeys(("page.js", "sql.js"), "text/javascript")
STATIC = {"style.css": "text/css", **_SCRIPTS, "icon.svg": "image/svg+xml"}
"""Files loaded by pages, and their media types."""


_FOR_READERS = re.compile(r"^ *(?://.*|/\*\*[^*\n]*\*/)\n|^ +", re.MULTILINE)
"""Comments on lines of their own, and indentation, which browsers do not need. No text of a script spans lines."""


@cache
def static(name: str) -> bytes:
    """Return the content of a file in STATIC."""
    text = _text(name)
    if name == "style.css":
        from driftline.flows.web.rendering import colour_styles

        text += colour_styles()
    return _FOR_READERS.sub("", text).encode()


@cache
def version_of(name: str) -> str:
    """Return a value that changes with the content of a file in STATIC."""
    return hashlib.blake2b(static(name), digest_size=6).hexdigest()


def _facets(request: SearchRequest, facets: Facets) -> list[dict[str, Any]]:
    """Return the checkboxes of each facet: checked values, and the values with the most files."""
    checked = chosen(request)
    found = []
    for name, counts in facets.counts.items():
        if name == "tests":
            boxes = [("false", "Leave out tests", counts.get("true", 0), name in checked)]
            boxes = boxes if counts.get("true") or name in checked else []
        else:
            values = [*dict.fromkeys((*checked.get(name, ()), *counts))]
            names = short_names(values) if name == "sources" else {}
            boxes = [
                (value, names.get(value, value), counts.get(value, 0), value in checked.get(name, ()))
                for value in values[:MAX_FACETS]
            ]
        # A single checkbox would narrow nothing.
        is_only = name == "sources" and len(boxes) == 1 and not checked.get(name)
        if boxes and not is_only:
            more = 0 if name == "tests" else max(0, len({*counts, *checked.get(name, ())}) - MAX_FACETS)
            parameter = OPTIONS[name].parameter
            found.append({"title": _TITLES[name], "parameter": parameter, "boxes": boxes, "more": more})
    return found


def _without(request: SearchRequest, row: Option, value: Any) -> SearchRequest:
    """Remove one value of an option from ``request``."""
    left = tuple(each for each in getattr(request, row.name) if each != value) if row.is_list else ()
    return _with(request, row.name, left or row.default)


def _with(request: SearchRequest, name: str, value: Any) -> SearchRequest:
    changes: dict[str, Any] = {name: value}
    return replace(request, **changes)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _numbered(
    path: str, first: int, lines: Sequence[str], query: str = "", matches: Sequence[Sequence[tuple[int, int]]] = ()
) -> list[tuple[int, str]]:
    from driftline.flows.web.rendering import coloured

    return list(enumerate(coloured(path, lines, query, matches), start=first))


def _encoded(fields: dict[str, Any]) -> str:
    written = {name: _shown(value) if isinstance(value, bool) else value for name, value in fields.items()}
    return urlencode(written, doseq=True, errors="surrogatepass")


def _rendered(template: str, /, **content: Any) -> bytes:
    return _templates().get_template(template).render(**content).encode("utf-8", "replace")


@cache
def _templates() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    found = Environment(
        loader=FunctionLoader(_text), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found.filters["host"] = lambda url: urlsplit(url).hostname
    found.globals["is_signed_in"] = is_signed_in
    found.globals["static"] = lambda name: f"/static/{name}?{version_of(name)}"
    return found


def _text(name: str) -> str:
    return (files(_FOLDER) / name).read_text("utf-8")


MAX_DEFINITIONS = 500


def split_address(address: bytes, levels: Sequence[str]) -> tuple[str, str]:
    """Split a percent-encoded ``{entity}/{path}`` into source and path.

    Entity ids contain no slashes, and an id at the deepest of ``levels`` ends the entity. Raises NotIndexed.
    """
    try:
        text = unquote(address.decode("ascii"), errors="surrogatepass")
    except UnicodeDecodeError:
        raise NotIndexed("No such document is indexed", "", "Use the path and source from a search result.") from None
    segments = text.split("/")
    depth = next((i for i, each in enumerate(segments, 1) if each.startswith(f"{levels[-1]}:")), len(segments))
    return "/".join(segments[:depth]), "/".join(segments[depth:])


def outline(path: str, lines: Sequence[str], first: int) -> list[tuple[int, str, str]]:
    """Return (line, kind, qualified name) of each definition in ``lines``, numbered from ``first``."""
    found = definitions(path, "\n".join(lines))[:MAX_DEFINITIONS]
    return [(each.line + first, each.kind, each.name) for each in found]

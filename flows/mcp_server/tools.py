"""Define the MCP tools and their results. They are read-only, and failures are protocol errors (``is_error``).

Clients see the tools' docstrings and parameter descriptions, in every session of a model: they must be short. Nothing
that reads an index is imported before the first call, so that clients get the list of tools immediately.

Lines are returned as text only. Clients that receive structured content as well pass only that to the model, which
would see four times as many tokens, and neither totals nor notes. The text gives the essentials in few tokens and never
exceeds ``max_tokens``: context is trimmed first, then the last results are omitted. It ends with the number of omitted
results and how to get them.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import call
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from driftline.storage.defaults import CUT, DEFAULT_ENTRIES, SHOWN_WEAK, Mode, all_weak
from driftline.storage.entities import short_names
from driftline.storage.errors import DriftlineError, UsageError, is_panic, native_crash_error
from driftline.storage.option_table import MAX_SERVED_NAMES, Option, given_values, nearest_name, spread
from driftline.tasks.search.request import MAX_TOP_K, OPTIONS, SearchRequest

if TYPE_CHECKING:
    from driftline.storage.entities import Boundary
    from driftline.storage.memory.entries import MemoryEntry
    from driftline.storage.memory.search import MemoryHits
    from driftline.storage.workspace.records import WorkspaceStats
    from driftline.storage.workspace.workspace import Workspace
    from driftline.tasks.search.documents import Excerpt
    from driftline.tasks.search.hits import ExactCounts, Hit, SearchReport

MAX_SOURCES = 100
BYTES_PER_TOKEN = 4
"""UTF-8 bytes per token: a rule of thumb, since the client's tokenizer is unknown."""
MIN_TOKENS, DEFAULT_TOKENS, MAX_TOKENS = 200, 8_000, 16_000
MAX_ANSWER_BYTES = MAX_TOKENS * BYTES_PER_TOKEN
"""Size limit of a result's text, to save the model's context."""
_CONTEXTS = (10, 5, 2, 1, 0)
"""Lines of context on each side, tried in order if the requested number does not fit."""
_RESERVED_BYTES = 200
"""Bytes of each result that are reserved for the note on omitted results."""


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """Formats a search's results: like grep, each window below its definition.

    ``branch`` is the searched branch. With ``shows_files``, the text states where the sources' files are, for clients
    on the same machine.
    """

    max_tokens: int = DEFAULT_TOKENS
    branch: str | None = None
    shows_files: bool = False

    def of(self, report: SearchReport) -> str:
        """Return the first results that fit, but at least one, and then totals and notes."""
        if report.exact is None and all_weak(hit.label for hit in report.results):
            return self._of_weak(report)
        names = short_names({hit.source for hit in report.results})
        ends = [*_totals(report.exact), *self._nearest(report.nearest), *report.notes, *self._places(report, names)]
        budget = self.max_tokens * BYTES_PER_TOKEN - _RESERVED_BYTES - sum(map(_size, ends))

        def shown(hit: Hit) -> str:
            return shown_lines(hit, names.get(hit.source) if len(names) > 1 else None)

        whole = [shown(hit) for hit in report.results]
        texts, needed = whole, sum(map(_size, whole))
        for n_lines in _CONTEXTS if needed > budget else ():
            texts = [shown(_trimmed(hit, n_lines)) for hit in report.results]
            if sum(map(_size, texts)) <= budget:
                break
        kept = _fitting(texts, budget)
        more = [] if kept == whole else [self._more(len(kept), len(whole), needed + sum(map(_size, ends)))]
        return _within("\n".join([*kept, *ends, *more]) or "No results.", self.max_tokens)

    def _of_weak(self, report: SearchReport) -> str:
        """Return the verdict, and only the best lines without their context."""
        best = report.results[:SHOWN_WEAK]
        names = short_names({hit.source for hit in best})
        verdict = f"No good match. The nearest {len(best)} of {len(report.results)} results, all weak; try other words:"
        lines = [
            shown_lines(_trimmed(hit, 0), names[hit.source] if len(names) > 1 else None, with_label=False)
            for hit in best
        ]
        return _within("\n".join([verdict, *lines, *report.notes[1:], *self._places(report, names)]), self.max_tokens)

    def _nearest(self, nearest: Hit | None) -> list[str]:
        return [] if nearest is None else [f"nearest: {shown_lines(_trimmed(nearest, 0))}"]

    def _places(self, report: SearchReport, names: Mapping[str, str]) -> list[str]:
        """Return what a client needs to open a result: where each source's files are, and the branch."""
        roots = {hit.source: root for hit in report.results if (root := _root_of(hit)) and hit.source in names}
        if not self.shows_files or {*roots.values()} == {str(Path.cwd())}:
            roots = {}
        if len(names) > 1:
            roots = {names[source]: root for source, root in roots.items()}
            places = [f"{name} is in {root}" for name, root in roots.items()]
        else:
            places = [f"Paths are relative to {root}" for root in roots.values()]
        return places + ([f"branch: {self.branch}; pass it to read_context"] if self.branch else [])

    def _more(self, shown: int, found: int, needed: int) -> str:
        """Return the note on omitted results, and how to get them."""
        tokens = (needed + _RESERVED_BYTES) // BYTES_PER_TOKEN + 1
        what = f"{shown} of {found} results shown" if shown < found else "The context is shortened"
        how = f"max_tokens={tokens} shows all" if tokens <= MAX_TOKENS else "narrow the search by path or language"
        return f"{what} (max_tokens={self.max_tokens}): {how}; read_context reads around a line."


def shown_lines(hit: Hit, source: str | None = None, *, with_label: bool = True) -> str:
    """Format a window: a single line as ``path:line:text``, several lines below a heading with their definition."""
    path = f"{source} {hit.path}" if source else hit.path
    about = [f"{hit.kind} {hit.symbol}"] if hit.symbol else []
    about += [each for each in (hit.anchor, hit.label if with_label else None) if each]
    tail = f"  ({', '.join(about)})" if about else ""
    if len(hit.context) <= 1:
        return f"{path}:{hit.line}:{hit.text}{tail}"
    lines = [f"{path}:{hit.line}{tail}"]
    for number, line in enumerate(hit.context, start=hit.start_line):
        lines.append(f"{number}{':' if number == hit.line else '-'} {line}")
    return "\n".join(lines)


def _totals(exact: ExactCounts | None) -> list[str]:
    if exact is None:
        return []
    least = "" if exact.complete else "at least "
    documents = f"{exact.documents:,} document{'' if exact.documents == 1 else 's'}"
    lines = f"{least}{exact.lines:,} in " if exact.lines or not exact.documents else ""
    return [f"matches: {lines}{least}{documents}"]


def _root_of(hit: Hit) -> str | None:
    """Return where the paths of a hit's source begin, or None if its file cannot be opened."""
    return hit.file.removesuffix(f"/{hit.path}") if hit.file and hit.file.endswith(f"/{hit.path}") else None


def _trimmed(hit: Hit, n_lines: int) -> Hit:
    """Return a hit with up to ``n_lines`` of context on each side of its best line."""
    best = hit.line - hit.start_line
    first = max(0, best - n_lines)
    return replace(hit, context=hit.context[first : best + n_lines + 1], start_line=hit.start_line + first)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace")) + 1


def _fitting(texts: Sequence[str], budget: int) -> list[str]:
    """Return the first ``texts`` that fit into ``budget`` bytes; the first one is cut if necessary."""
    kept: list[str] = []
    for text in texts:
        if _size(text) > budget:
            break
        budget -= _size(text)
        kept.append(text)
    return kept or [_cut(text, budget) for text in texts[:1]]


def _cut(text: str, max_bytes: int) -> str:
    raw = text.encode("utf-8", "replace")
    if len(raw) <= max_bytes:
        return text
    return raw[: max(0, max_bytes - len(CUT.encode()))].decode("utf-8", "ignore") + CUT


def _within(text: str, max_tokens: int) -> str:
    return _cut(text, max_tokens * BYTES_PER_TOKEN)


class SourceStatus(BaseModel):
    """An indexed source."""

    entity: str
    uri: str
    documents: int
    lines: int


class IndexStatus(BaseModel):
    """Workspace statistics; ``sources_left_out`` counts the sources that are not listed."""

    workspace: str
    total_documents: int
    total_lines: int
    has_index: bool
    index_type: str | None
    model: str | None
    sources: list[SourceStatus]
    sources_left_out: int


def index_status(stats: WorkspaceStats) -> IndexStatus:
    """Return ``stats`` with at most MAX_SOURCES sources."""
    return IndexStatus(
        workspace=stats.workspace,
        total_documents=stats.total_documents,
        total_lines=stats.total_lines,
        has_index=stats.has_index,
        index_type=stats.index_type,
        model=stats.model,
        sources=[SourceStatus.model_validate(source) for source in stats.sources[:MAX_SOURCES]],
        sources_left_out=max(0, len(stats.sources) - MAX_SOURCES),
    )


def context_text(excerpt: Excerpt, line: int, max_tokens: int = DEFAULT_TOKENS, branch: str | None = None) -> str:
    """Format the lines of ``excerpt`` around ``line`` that fit: location, and numbered lines below their anchors.

    The first line is below the nearest anchor, even if that is of a line above.
    """
    from driftline.tasks.search.hits import clipped

    lines = [clipped(each) for each in excerpt.lines]
    names: dict[int, list[str]] = {}
    for number, name in excerpt.anchors:
        names.setdefault(number, []).append(f"[{name}]")
    numbered = [
        "\n".join([*names.get(number, ()), f"{number}: {each}"])
        for number, each in enumerate(lines, start=excerpt.start_line)
    ]
    start, end = excerpt.start_line, excerpt.start_line + len(lines) - 1

    def framed(first: int, last: int) -> str:
        location = f"{excerpt.path}:{start + first}-{start + last - 1}"
        heading = "  ".join([location, *filter(None, [branch and f"[{branch}]", excerpt.url])])
        changed = [] if excerpt.current else ["The document has since changed or been deleted."]
        more = [
            f"Lines {start + first} to {start + last - 1} of {start} to {end} fit (max_tokens={max_tokens}): "
            "call read_context again with another line for the rest."
        ]
        cut = more if last - first < len(lines) else []
        above = next((names[number] for number in range(start + first, start - 1, -1) if number in names), [])
        place = above if start + first not in names else []
        return "\n".join([heading, *changed, *place, *numbered[first:last], *cut])

    most_bytes = max_tokens * BYTES_PER_TOKEN
    first, last = _around(len(lines), line - start, lambda *shown: _size(framed(*shown)) <= most_bytes)
    return _within(framed(first, last), max_tokens)


def _around(count: int, middle: int, fits: Callable[[int, int], bool]) -> tuple[int, int]:
    """Return the bounds of as many of ``count`` lines around ``middle`` as fit, the same number on each side."""
    first, last = middle, middle + 1
    while first > 0 or last < count:
        wider = max(0, first - 1), min(count, last + 1)
        if not fits(*wider):
            break
        first, last = wider
    return first, last


MAX_FIELD_CHARACTERS = 4_000
"""Size limit for a value, and for metadata, as JSON."""
FilterValue = str | int | float | bool | list[str | int | float | bool] | None


class MemoryRecord(BaseModel):
    """An entry.

    ``cut`` lists fields that were too long: a value is reduced to the start of its JSON, metadata to {}.
    """

    key: str
    value: Any
    entity: str
    metadata: dict[str, Any]
    created: str
    updated: str
    expires: str | None
    cut: list[str]


class MemoryResult(BaseModel):
    """An entry that matches the query. Results are sorted by ``score``; ``distance`` is 1 - cosine."""

    record: MemoryRecord
    score: float
    rank: int
    distance: float


class MemoryAnswer(BaseModel):
    """Entries, best first. ``truncated``: fields were cut or entries omitted to keep the result short.

    ``found`` counts the entries before truncation; ``more`` explains what is missing and how to get it, or why nothing
    good was found.
    """

    query: str
    results: list[MemoryResult]
    truncated: bool
    found: int = 0
    more: str | None = None

    def text(self) -> str:
        """Format each entry as one line: its owner, key and value."""
        shown = (f"{each.record.entity} {each.record.key}: {_as_json(each.record.value)}" for each in self.results)
        return "\n".join([*shown, *filter(None, [self.more])]) or "No results."


def memory_answer(query: str, hits: MemoryHits[MemoryEntry], max_bytes: int) -> MemoryAnswer:
    """Return the first ``hits`` of ``query`` that fit into ``max_bytes`` of JSON, but at least one."""
    results: list[MemoryResult] = []
    budget, every = max_bytes - _RESERVED_BYTES, [*hits]
    for hit in every:
        result = MemoryResult(
            record=_short(hit.record.to_dict()), score=hit.score, rank=hit.rank, distance=hit.distance
        )
        budget -= len(result.model_dump_json().encode())
        if budget < 0 and results:
            break
        results.append(result)
    left_out = len(every) - len(results)
    more = f"{len(results)} of {len(every)} entries shown: raise max_tokens, or narrow by entity or filter."
    return MemoryAnswer(
        query=query,
        results=results,
        truncated=bool(left_out) or any(result.record.cut for result in results),
        found=len(every),
        more=more if left_out else " ".join(hits.notes) or None,
    )


def _as_json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short(entry: dict[str, Any]) -> MemoryRecord:
    cut = []
    value = json.dumps(entry["value"], ensure_ascii=False)
    if len(value) > MAX_FIELD_CHARACTERS:
        cut.append("value")
        entry["value"] = value[: MAX_FIELD_CHARACTERS - 1] + "…"
    if len(json.dumps(entry["metadata"], ensure_ascii=False)) > MAX_FIELD_CHARACTERS:
        cut.append("metadata")
        entry["metadata"] = {}
    return MemoryRecord(**{name: entry[name] for name in MemoryRecord.model_fields if name != "cut"}, cut=cut)


MAX_CONTEXT_LINES = 200

_P = ParamSpec("_P")

Query = Annotated[str, Field(min_length=1, max_length=2_000)]
Question = Annotated[
    str,
    Field(
        min_length=1,
        max_length=2_000,
        description='A question or a few words. May contain "exact text", /regex/, def:Name, uses:Name, '
        "sym:Name (inside it), lang:go, file:src/ (part of the path, or a glob), repo:web; -lang:, -file: and -repo: "
        "exclude. Filters alone list files.",
    ),
]
Name = Annotated[str, Field(min_length=1, max_length=500, description="Such as parse or Parser.parse. Case-sensitive.")]
MaxTokens = Annotated[int, Field(ge=MIN_TOKENS), AfterValidator(lambda given: min(given, MAX_TOKENS))]
"""A limit: a higher one than the server's is not an error."""
_CALL = re.compile(
    r"(?:(?:class|def|enum|fn|func|function|interface|struct|trait|type)\s+)?(?P<name>\S+?)(?:(?<!operator)\(\))?"
)
"""A name, as a model may copy it from code: ``def parse()``."""
_TOPIC = re.compile(r"(?:class|function|interface|trait|type)\s+[a-z]+")
"""A keyword and a word that may also be a topic: ``type system``."""
_LOCATION = re.compile(r"(?P<path>.+):(?P<line>[1-9]\d{0,8})")
_FILTERS = ("globs", "languages", "sources", "branch", "tests")
"""The filters that are parameters. The query language has these and more."""
_DESCRIPTIONS = {
    "globs": "Such as src/**/*.py.",
    "sources": "Their names.",
    "branch": "Search this branch where it is indexed.",
    "tests": "Include test files.",
    "prose": "Include prose, such as Markdown.",
    "n_lines": "Context on each side.",
    "files": "Only the first match of each file.",
    "ignore_case": "Default: if the pattern has no capital.",
    "rerank": "Slower; for hard questions.",
}
"""Descriptions for models, of the options whose name and type do not say enough."""


def parameters(*names: str, **changed: Any) -> list[inspect.Parameter]:
    """Return search options as tool parameters, within the limits for servers; ``changed`` are other defaults."""
    rows = (replace(OPTIONS[name], default=changed.get(name, OPTIONS[name].default)) for name in names)
    return [row.keyword(_annotation(row), row.default) for row in rows]


def _annotation(row: Option) -> Any:
    one = BeforeValidator(lambda given: [given] if isinstance(given, str) else given)
    kind = Annotated[list[str], Field(max_length=MAX_SERVED_NAMES), one] if row.is_list else row.value_type
    low, high = row.limits(served=True)
    longest = row.max_characters if kind is str else None
    about = Field(
        ge=low,
        le=high,
        min_length=1 if longest else None,
        max_length=longest,
        description=_DESCRIPTIONS.get(row.name),
    )
    return Annotated[kind if row.default is not None else kind | None, about]


def protocol_errors(tool: Callable[_P, str | BaseModel]) -> Callable[_P, CallToolResult]:
    """Decorate ``tool`` so that Driftline errors become protocol errors, which tell the client what to do."""

    @functools.wraps(tool)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> CallToolResult:
        try:
            return _as_result(tool(*args, **kwargs))
        except DriftlineError as error:
            raise ToolError(f"{error.kind}: {error}") from error
        except BaseException as error:
            if is_panic(error):
                raise ToolError(str(native_crash_error(str(error)[:300]))) from error
            if isinstance(error, Exception):
                traceback.print_exc()  # a bug: the client learns only that the tool failed
            raise

    own = inspect.signature(tool, eval_str=True)  # a bound method's signature, without self
    vars(call)["__signature__"] = own.replace(return_annotation=CallToolResult)
    return call


def _as_result(answer: str | BaseModel) -> CallToolResult:
    """Return text as it is, and records both as text and as a structured object for programs."""
    if isinstance(answer, str):
        text, structured = answer, None
    else:
        text = answer.text() if isinstance(answer, MemoryAnswer) else answer.model_dump_json()
        structured = answer.model_dump(mode="json")
    block = TextContent(type="text", text=text.encode("utf-8", "replace").decode())
    return CallToolResult(content=[block], structured_content=structured)


def exact_parameters(*names: str) -> list[inspect.Parameter]:
    """Return the parameters of exact searches and of the options in ``names``. By default, lines have no context."""
    return parameters("top_k", "n_lines", *_FILTERS, *names, n_lines=0)


@dataclass(frozen=True, slots=True)
class LineTools:
    """Tools over a workspace's lines; ``newest`` opens the workspace for each call.

    They see everything inside the call's ``boundary``, or everything if that is None. With ``shows_files``, results
    state where the sources' files are.
    """

    newest: Callable[[], Workspace]
    boundary: Callable[[], Boundary | None] = lambda: None
    run: Callable[..., Any] = call
    """Runs a read of the index, in this or another process."""
    shows_files: bool = False

    @spread("given", parameters("top_k", "n_lines", *_FILTERS, "prose", "rerank"))
    def search_lines(self, query: Question, max_tokens: MaxTokens = DEFAULT_TOKENS, *, given: dict[str, Any]) -> str:
        """Find code and text semantically, without knowing the exact words. Best first."""
        request = SearchRequest.of(query, self._named(given))
        return self._text(self._found(request), request, max_tokens)

    @spread("given", exact_parameters("files", "count", "whole_words", "ignore_case", "multiline"))
    def grep_lines(
        self,
        pattern: Annotated[str, Field(min_length=1, description="A regular expression (RE2).")],
        literal: Annotated[bool, Field(description="The pattern is plain text.")] = False,
        max_tokens: MaxTokens = DEFAULT_TOKENS,
        *,
        given: dict[str, Any],
    ) -> str:
        """Find every line that matches a pattern, source code first, and count them."""
        try:
            return self._exactly("", {**given, "fixed" if literal else "regex": (pattern,)}, max_tokens)
        except UsageError as error:
            error.fix = error.fix.replace("`fixed`", "`literal`")  # this tool's name for the option
            raise

    @spread("given", exact_parameters())
    def find_definitions(self, name: Name, max_tokens: MaxTokens = DEFAULT_TOKENS, *, given: dict[str, Any]) -> str:
        """Find where a function, class or other name is defined."""
        return self._of_name("def", name, given, max_tokens)

    @spread("given", exact_parameters())
    def find_uses(self, name: Name, max_tokens: MaxTokens = DEFAULT_TOKENS, *, given: dict[str, Any]) -> str:
        """Find the lines that use a name, nearest to its definition first. Compares names, not types."""
        return self._of_name("uses", name, given, max_tokens)

    def _of_name(self, field: str, text: str, given: dict[str, Any], max_tokens: int) -> str:
        """Search for a name, or for all of ``text`` if it may be a topic and something, such as a section, is called
        that.
        """
        name, notes = _name_in(text), tuple[str, ...]()
        if _TOPIC.fullmatch(text.strip()):
            whole = " ".join(text.split())
            topic = SearchRequest.of(f"{_field('def', whole)} case:no", {**self._named(given), "top_k": 1})
            if self._found(topic).results:
                return self._exactly(f"{_field(field, whole)} case:no", given, max_tokens)
            notes = (f"Nothing is called {whole!r}: this is about {name!r}.",)
        return self._exactly(_field(field, name), given, max_tokens, notes)

    def _exactly(self, query: str, given: dict[str, Any], max_tokens: int, notes: Sequence[str] = ()) -> str:
        request = SearchRequest.of(query, {"n_lines": 0, **self._named(given)})
        report = self._found(request)
        if not report.results and not (report.exact and report.exact.documents):
            notes = (*notes, "search_lines also finds synonyms and related names.")
        return self._text(replace(report, notes=(*report.notes, *notes)), request, max_tokens)

    def _found(self, request: SearchRequest) -> SearchReport:
        """Search. Exact matches beyond ``top_k`` are counted, too, unless the index is in a bucket."""
        from driftline.flows.search import resolved, search
        from driftline.tasks.search.hits import note_on_limit
        from driftline.tasks.search.search import search as search_lines

        workspace, within = self.newest(), self.boundary()
        report = search(workspace, request, within=within, run=self.run)
        if report.exact is None or report.exact.reason != "limit" or not workspace.objects.is_local:
            return report
        opened, complete = resolved(workspace, request, within)
        counted = self.run(search_lines, opened, replace(complete, facets=True)).exact
        shown = len(report.results)
        how = "a larger `top_k` shows more" if shown < MAX_TOP_K else "narrow the search by `globs` or `languages`"
        others = (note for note in report.notes if note != note_on_limit(shown))
        return replace(report, exact=counted, notes=(*others, f"{shown:,} shown: {how}."))

    def _text(self, report: SearchReport, request: SearchRequest, max_tokens: int) -> str:
        from driftline.tasks.search.query_language import parse_request

        branch = request.branch or parse_request(request).branch
        return SearchAnswer(max_tokens, branch, self.shows_files).of(report)

    def _named(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the options that are not empty, with the entities of the sources that are given by name."""
        options = given_values(given)
        if options.get("sources"):
            options["sources"] = [self._source(each) for each in options["sources"]]
        return options

    def _source(self, name: str) -> str:
        """Return the entity of a source, given as in results or as an entity. Raises UsageError."""
        if ":" in name:
            return name
        known = short_names([str(entity) for entity, _ in self.newest().readable_sources(self.boundary())])
        found = [source for source, short in known.items() if name in (short, short.rpartition("/")[2])]
        if len(found) == 1:
            return found[0]
        names = [known[source] for source in found or known]
        if found:
            raise UsageError("Several sources have this name", name, f"Use one of {', '.join(names)}.")
        raise UsageError("No source has this name", name, nearest_name(name, names))

    def index_status(self) -> IndexStatus:
        """Show what is indexed: the sources, their size, and the model."""
        from driftline.storage.workspace.workspace import Workspace

        return index_status(self.run(Workspace.stats, self.newest(), self.boundary()))

    def read_context(
        self,
        path: Annotated[str, Field(min_length=1, description="A result's path.")],
        line: Annotated[int | None, Field(ge=1, description="1-based; default: as in path:line, or 1.")] = None,
        n_lines: Annotated[int, Field(ge=0, le=MAX_CONTEXT_LINES // 2, description=_DESCRIPTIONS["n_lines"])] = 20,
        source: Annotated[str | None, Field(description="The result's source, if it names one.")] = None,
        branch: Annotated[str | None, Field(max_length=200, description="The branch that was searched.")] = None,
        max_tokens: MaxTokens = DEFAULT_TOKENS,
    ) -> str:
        """Read an indexed document around a line, as it was indexed."""
        from driftline.flows.config.which_workspace import on_named_branch
        from driftline.tasks.search.documents import read_excerpt

        if line is None:
            located = _LOCATION.fullmatch(path)
            path, line = (located["path"], int(located["line"])) if located else (path, 1)
        within = self.boundary()
        opened = on_named_branch(self.newest(), branch, within)
        entity = None if source is None else self._source(source)
        found = self.run(read_excerpt, opened, path, line, n_lines=n_lines, source=entity, within=within)
        return context_text(found, line, max_tokens, branch)


def _name_in(text: str) -> str:
    """Return the name in ``text``.

    >>> _name_in("class Lease"), _name_in("Lease.check()"), _name_in("operator()"), _name_in("Where to go")
    ('Lease', 'Lease.check', 'operator()', 'Where to go')
    """
    found = _CALL.fullmatch(text.strip())
    return found["name"] if found else text


def _field(name: str, value: str) -> str:
    from driftline.tasks.search.query_language import field_term

    return field_term(name, value)


@dataclass(frozen=True, slots=True)
class MemoryTools:
    """The memory tool; ``search`` is called like ``MemoryStore.search_memory``."""

    search: Callable[..., MemoryHits[MemoryEntry]]

    def search_memory(
        self,
        query: Query,
        top_k: Annotated[int, Field(ge=0, le=MAX_TOP_K)] = DEFAULT_ENTRIES,
        filter: Annotated[
            dict[str, FilterValue] | None,
            Field(description="Metadata fields that must all match; a list matches any of its values."),
        ] = None,
        entity: Annotated[
            str | None,
            Field(description="Only at or below it, such as org:acme/project:alpha."),
        ] = None,
        max_distance: Annotated[
            float | None,
            Field(ge=0, le=2, description="1 - cosine."),
        ] = None,
        mode: Mode = "hybrid",
        max_tokens: MaxTokens = DEFAULT_TOKENS,
    ) -> MemoryAnswer:
        """Find the memory entries that match a query best."""
        hits = self.search(query, top_k=top_k, filter=filter, scope=entity, max_distance=max_distance, mode=mode)
        return memory_answer(query, hits, max_tokens * BYTES_PER_TOKEN)

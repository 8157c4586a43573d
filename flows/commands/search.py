"""Define ``driftline search``, ``grep`` and ``pull``: query a workspace, a web server or files, or copy a workspace."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftline.flows.commands.app import (
    DONE,
    CacheOption,
    ConfigOption,
    JsonOption,
    ModelOption,
    QueryArgument,
    WordsArgument,
    WorkspaceOption,
    app,
    parameters,
    show,
    show_search,
)
from driftline.flows.config.which_workspace import cache_settings, open_for_reading
from driftline.flows.config.workspace_names import SERVER_VARIABLE, absolute_workspace
from driftline.flows.output.plain_text import print_search, say_done, warn
from driftline.flows.search import search_request, view
from driftline.storage.defaults import DEFAULT_REDACTION, DEFAULT_RERANKED, MAX_RERANKED, Redaction
from driftline.storage.errors import SourceNotFound, UsageError
from driftline.storage.option_table import given_values, spread
from driftline.tasks.search.request import OPTIONS, SearchRequest

if TYPE_CHECKING:
    from driftline.flows.config.which_workspace import Opener
    from driftline.storage.documents import SkipReason
    from driftline.storage.sources.access import SourceAccess
    from driftline.storage.workspace.workspace import Workspace


def named_server(given: str | None, workspace: str | None) -> str | None:
    """Return the server to query: ``given``, or $DRIFTLINE_SERVER unless a workspace is given.

    Raises UsageError if both a server and a workspace are given.
    """
    if given and workspace:
        raise UsageError("--server and --workspace are mutually exclusive", given, "Omit one of them.")
    return given or (None if workspace else os.environ.get(SERVER_VARIABLE) or None)


def search_on(server: str, request: SearchRequest, only_here: Mapping[str, Any], *, as_json: bool) -> int:
    """Search on ``server``, and print the results in the same format as for a local workspace.

    Raises UsageError if an option in ``only_here``, or any other that servers do not support, is set.
    """
    from driftline.flows.client import Connection, search_parameters  # loads http and ssl

    for option, value in only_here.items():
        if value not in (None, False):
            raise UsageError("Servers do not support this option", option, "Omit it, or search a --workspace.")
    found = Connection.to(server).get("search", search_parameters(request))
    return show_search(found, as_json, print_search)


RerankWindowsOption = Annotated[
    int | None,
    typer.Option(
        "--rerank-windows",
        min=0,
        max=MAX_RERANKED,
        help="Like --rerank, for this many results.",
        show_default=str(DEFAULT_RERANKED),
        rich_help_panel="Ranking",
    ),
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Search on this web server, with the token in $DRIFTLINE_TOKEN. Default: $DRIFTLINE_SERVER.",
        rich_help_panel="Workspace",
    ),
]


@app.command()
@spread("given", parameters(OPTIONS.offered_in("command")))
def search(
    words: WordsArgument = None,
    workspace: WorkspaceOption = None,
    *,
    given: dict[str, Any],
    rerank_windows: RerankWindowsOption = None,
    cache: CacheOption = None,
    server: ServerOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Search the indexed lines. Exit code 1 if nothing is found.

    A query may also contain "exact text", /an expression/, def:NAME, uses:NAME, sym:NAME, lang:go, file:src/** or
    -file:test, such as 'def:main lang:python'.

    Defaults come from [search] in driftline.toml.
    """
    query, given = " ".join(word.strip() for word in words or ()), given_values(given)
    if not query and not given.get("fixed") and not given.get("regex"):
        missing = "The query is empty" if words else "The argument QUERY is missing"
        raise UsageError(missing, fix="Pass words, or exact text with -F or -E.")
    if rerank_windows is not None and given.get("rerank") is not False:
        given["rerank"] = rerank_windows
    if (remote := named_server(server, workspace)) is not None:
        request = SearchRequest.of(query, given | _exact_defaults(query, given, EXACT_LINES_SERVED))
        return search_on(remote, request, {"--cache": cache, "--config": config}, as_json=as_json)
    named = given.get("workspace_name")
    view_workspace = view(named, config)[1] if named is not None else None
    of_main = given.get("branch") is None
    opened = open_for_reading(workspace, config, default=view_workspace, opened=_opener(cache), opens_tables=of_main)
    from driftline.flows.search import search as run_search

    request = search_request(query, given | _exact_defaults(query, given, EXACT_LINES), on_this_machine=True)
    report = run_search(opened, request, config=config)
    code = show_search(report.to_dict(), as_json, partial(_print_hits, opened))
    last = words[-1] if words and len(words) > 1 else ""
    if "/" in last and os.path.isdir(last):  # as in: grep -r WORD FOLDER/
        warn(f"{last!r} is part of the query. To search below this folder only: --dir {last.rstrip('/')}")
    return code


EXACT_LINES, EXACT_LINES_SERVED = 100, 50
"""How many lines an exact search shows; servers return no more than 50 results."""


def _exact_defaults(query: str, given: Mapping[str, Any], lines: int) -> dict[str, Any]:
    """Return the defaults that differ for an exact search: up to ``lines`` results, no context."""
    from driftline.tasks.search.query_language import parse

    if not given.get("fixed") and not given.get("regex") and not parse(query).is_exact:
        return {}
    defaults = {"top_k": lines, "n_lines": 0}
    return {name: value for name, value in defaults.items() if given.get(name) is None}


def _opener(cache: bool | None) -> Opener | None:
    """Return a function that opens the up-to-date local copy of a bucket, if copies are requested."""
    is_wanted, max_bytes = cache_settings(cache)
    if not is_wanted:
        return None
    from driftline.flows.output.progress import open_progress
    from driftline.flows.runs.pull import open_copy

    def opened(uri: str, storage_options: Mapping[str, str] | None, access: SourceAccess | None) -> Workspace:
        with open_progress() as progress:
            return open_copy(uri, storage_options, access, max_bytes=max_bytes, warn=warn, progress=progress)

    return opened


def _print_hits(workspace: Workspace, result: dict[str, Any]) -> None:
    from driftline.flows.output.plain_text import print_search

    if "explanation" in result:
        from driftline.flows.output.terminal_reports import print_explanation

        print_explanation(result["explanation"])
    print_search(result, _local_folders(workspace, result["results"]) if sys.stdout.isatty() else None)


def _local_folders(opened: Workspace, hits: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the folder of each local source with hits, for links."""
    from driftline.flows.config.workspace_names import local_path
    from driftline.storage.entities import Entity

    folders: dict[str, str] = {}
    for entity in {hit["source"] for hit in hits}:
        record = opened.source(Entity.parse(entity, opened.config.hierarchy))
        if record is not None and local_path(record.uri) is not None:
            folders[entity] = record.uri
    return folders


_NAMED_SKIPS = 5
"""Maximum number of skipped files to list; if there are more, they are counted by reason."""


_LIMITS = ("top_k", "max_distance", "min_relevance", "n_lines")


@app.command()
@spread("given", parameters(OPTIONS.offered_in("command", *_LIMITS)))
def grep(
    query: QueryArgument,
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Files, folders, quoted globs, or - for standard input.")
    ],
    *,
    given: dict[str, Any],
    ignore_case: Annotated[bool, typer.Option("--ignore-case", "-i", help="Ignore case.")] = False,
    model: ModelOption = None,
    redact: Annotated[Redaction, typer.Option(help="Which credentials in the text to redact.")] = DEFAULT_REDACTION,
    as_json: JsonOption = False,
) -> int:
    """Search FILE semantically, without an index. For exact text or a regular expression, use search -F or -E.

    Exit code 1 if nothing is found.
    """
    from driftline.flows.output.plain_text import print_search
    from driftline.tasks.search.unindexed import grep as search_texts
    from driftline.tasks.search.unindexed import open_embedder, read_texts

    skipped: list[tuple[str, SkipReason]] = []
    skip = lambda path, reason: skipped.append((path, reason))  # noqa: E731
    texts = read_texts(files, sys.stdin.buffer.read, skip, lambda _: redact)
    request = SearchRequest.of(query, given)
    try:
        result = search_texts(request, texts, open_embedder(model), ignore_case=ignore_case).to_dict()
    except SourceNotFound as error:  # of several unquoted words, the second is taken as the first file
        fix = f"{error.fix} Quote a query of several words."
        raise SourceNotFound(error.what, error.where, fix) from error
    _warn_of_skipped(skipped)
    return show_search(result, as_json, partial(print_search, folders={"": os.getcwd()}))


def _warn_of_skipped(skipped: Sequence[tuple[str, SkipReason]]) -> None:
    """List the skipped files on standard error, or count them by reason if there are many."""
    if len(skipped) <= _NAMED_SKIPS:
        for path, reason in skipped:
            warn(f"{path} is not searched: {reason}")
        return
    reasons = Counter(str(reason) for _, reason in skipped).most_common()
    counts = ", ".join(f"{count:,} {reason}" for reason, count in reasons)
    warn(f"{len(skipped):,} files were not searched: {counts}")


@app.command()
def pull(
    origin: Annotated[str, typer.Argument(metavar="ORIGIN", help="The workspace to copy: a path or URI.")],
    directory: Annotated[
        str | None, typer.Argument(metavar="[DIR]", help="Directory of the copy; default: the last name in ORIGIN.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Copy the newest version of a workspace to local disk, to search it offline and without credentials.

    Later pulls fetch only new files. A search sees either the old or the new version.
    """
    from driftline.flows.config.which_workspace import options_for
    from driftline.flows.output.progress import open_progress
    from driftline.flows.runs.pull import PullRequest, pull_workspace

    uri = absolute_workspace(origin)
    request = PullRequest(uri, directory or uri.rstrip("/").rpartition("/")[2], options_for(uri))
    with open_progress() as progress:
        report = pull_workspace(request, progress)
    show(report.to_dict(), as_json, _print_pull)
    return DONE


def _print_pull(report: dict[str, Any]) -> None:
    files = f"{report['fetched']:,} of {report['files']:,} files fetched"
    say_done(f"{report['copy']}: {files}, {report['bytes'] / 1e6:,.1f} MB, in {report['seconds']:.1f} s")

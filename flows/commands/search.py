"""``driftline search``, ``status`` and ``sources``: what a workspace answers.

``driftline search --server``: the same search, asked of a web server.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from driftline.flows.commands.app import (
    DONE,
    BranchOption,
    CacheOption,
    ConfigOption,
    JsonOption,
    MaxDistanceOption,
    MinRelevanceOption,
    WordsArgument,
    WorkspaceOption,
    app,
    show,
    show_search,
)
from driftline.flows.config.environment import SERVER_VARIABLE
from driftline.flows.config.locate import on_named_branch, workspace_for_reading
from driftline.flows.config.search_settings import named_workspace, search_arguments
from driftline.flows.output.plain import print_search, say, warn
from driftline.storage.defaults import (
    DEFAULT_N_LINES,
    DEFAULT_RERANKED,
    DEFAULT_TOP_K,
    FALLBACK_THRESHOLD,
    MAX_RERANKED,
)
from driftline.storage.errors import UsageError, WorkspaceNotFound

if TYPE_CHECKING:
    from driftline.storage.lines.filters import LineFilter
    from driftline.storage.workspace.workspace import Workspace
    from driftline.tasks.search.filters import SearchFilter


def named_server(given: str | None, workspace: str | None) -> str | None:
    """The server to ask: ``given``, else $DRIFTLINE_SERVER unless a workspace is named. Raises UsageError for both."""
    if given and workspace:
        raise UsageError("A server serves its own workspace", given, "Name either --server or --workspace.")
    return given or (None if workspace else os.environ.get(SERVER_VARIABLE) or None)


def search_on(server: str, query: str, asked: Mapping[str, Any], only_here: Mapping[str, Any], *, as_json: bool) -> int:
    """Print what ``server`` finds, as a search of a workspace does; ``asked`` are parameters of the API.

    Raises UsageError if an option of ``only_here`` is used.
    """
    from driftline.flows.client import Connection  # loads http and ssl

    for option, value in only_here.items():
        if value not in (None, False):
            raise UsageError("A server does not take this option", option, "Leave it out, or search a --workspace.")
    found = Connection.to(server).get("search", {"q": query, **asked})
    return show_search(found, as_json, print_search)


PathsOption = Annotated[list[str] | None, typer.Option("--path", metavar="PATH", help="Only in this file.")]
DirsOption = Annotated[list[str] | None, typer.Option("--dir", metavar="DIR", help="Only below this directory.")]
GlobsOption = Annotated[list[str] | None, typer.Option("--glob", metavar="GLOB", help="Only in matching files.")]
ExtsOption = Annotated[list[str] | None, typer.Option("--ext", metavar="EXT", help="Only in files with this ending.")]
LangsOption = Annotated[
    list[str] | None, typer.Option("--lang", metavar="LANGUAGE", help="Only in files of this language.")
]
KindsOption = Annotated[
    list[str] | None,
    typer.Option("--kind", metavar="KIND", help="Only inside definitions of this kind: function, class, section, ..."),
]
SymbolsOption = Annotated[bool, typer.Option("--symbols", help="Only lines that begin a definition.")]
NoTestsOption = Annotated[bool, typer.Option("--no-tests", help="Exclude test files.")]
EntitiesOption = Annotated[
    list[str] | None,
    typer.Option("--entity", metavar="PATH", help="Only this source, or the sources below org:acme/project:alpha."),
]
NamedOption = Annotated[
    str | None, typer.Option("--in", metavar="NAME", help="Only in this named workspace of driftline.toml.")
]
TopKOption = Annotated[
    int | None, typer.Option("--top-k", min=0, help="Maximum number of results.", show_default=str(DEFAULT_TOP_K))
]
NLinesOption = Annotated[
    int | None,
    typer.Option(
        "--n-lines", "-n", "-C", min=0, help="Lines of context on each side.", show_default=str(DEFAULT_N_LINES)
    ),
]
ModeOption = Annotated[
    Literal["hybrid", "vector", "text"] | None,
    typer.Option(help="Rank by words and meaning, by meaning alone, or by words alone.", show_default="hybrid"),
]
StrategyOption = Annotated[
    Literal["auto", "prefilter", "postfilter", "hybrid"] | None,
    typer.Option(help="When to apply filters: use auto; the others exist for benchmarks.", show_default="auto"),
]
ThresholdOption = Annotated[
    float | None,
    typer.Option(
        "--fallback-threshold",
        min=0.0,
        max=1.0,
        help="With --strategy hybrid: filter after the search if at least this fraction matches.",
        show_default=str(FALLBACK_THRESHOLD),
    ),
]
RerankOption = Annotated[
    bool | None,
    typer.Option(
        "--rerank/--no-rerank",
        help="Rerank the best results with a transformer (extra: deep).",
        show_default="no",
    ),
]
RerankWindowsOption = Annotated[
    int | None,
    typer.Option(
        "--rerank-windows",
        min=0,
        max=MAX_RERANKED,
        help="Like --rerank, for this many results.",
        show_default=str(DEFAULT_RERANKED),
    ),
]
DeepOption = Annotated[
    bool | None,
    typer.Option(
        "--deep/--no-deep",
        help="Also search the definition embeddings written by 'index --deep'.",
        show_default="where there are any",
    ),
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Search on this web server, with the token in $DRIFTLINE_TOKEN. Default: $DRIFTLINE_SERVER.",
    ),
]
ExplainOption = Annotated[bool, typer.Option("--explain", help="Show the steps of the search and their times.")]


@app.command()
def search(
    words: WordsArgument,
    workspace: WorkspaceOption = None,
    top_k: TopKOption = None,
    max_distance: MaxDistanceOption = None,
    min_relevance: MinRelevanceOption = None,
    n_lines: NLinesOption = None,
    paths: PathsOption = None,
    dirs: DirsOption = None,
    globs: GlobsOption = None,
    exts: ExtsOption = None,
    langs: LangsOption = None,
    kinds: KindsOption = None,
    symbols: SymbolsOption = False,
    no_tests: NoTestsOption = False,
    entities: EntitiesOption = None,
    named: NamedOption = None,
    branch: BranchOption = None,
    mode: ModeOption = None,
    strategy: StrategyOption = None,
    fallback_threshold: ThresholdOption = None,
    rerank: RerankOption = None,
    rerank_windows: RerankWindowsOption = None,
    deep: DeepOption = None,
    explain: ExplainOption = False,
    cache: CacheOption = None,
    server: ServerOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Search the indexed lines. Exit code 1 if nothing is found.

    What is left out comes from [search] of driftline.toml.
    """
    query = " ".join(words)
    asked: dict[str, Any] = {"top_k": top_k, "n_lines": n_lines, "mode": mode, "symbols": symbols}
    asked |= {"max_distance": max_distance, "min_relevance": min_relevance, "tests": not no_tests, "branch": branch}
    asked |= {"path": paths, "dir": dirs, "glob": globs, "ext": exts, "lang": langs, "kind": kinds, "source": entities}
    if (remote := named_server(server, workspace)) is not None:
        only_here = {"--in": named, "--strategy": strategy, "--fallback-threshold": fallback_threshold}
        only_here |= {"--rerank": rerank, "--rerank-windows": rerank_windows, "--deep": deep, "--explain": explain}
        return search_on(remote, query, asked, only_here | {"--cache": cache}, as_json=as_json)
    within, default_workspace = named_workspace(named, config) if named is not None else (None, None)
    target = workspace_for_reading(workspace or default_workspace)
    from driftline.flows.output.run_series import record_search
    from driftline.tasks.search.query import search as search_lines

    told: dict[str, Any] = {"top_k": top_k, "n_lines": n_lines, "mode": mode, "strategy": strategy, "deep": deep}
    told["rerank"] = rerank if rerank is False or rerank_windows is None else rerank_windows
    arguments = search_arguments(told | {"fallback_threshold": fallback_threshold})
    opened = _on_branch(_cached(_open(target, workspace, config), cache), branch)
    where = _narrowed(asked, within)
    started = time.monotonic()
    limits: dict[str, Any] = {"max_distance": max_distance, "min_relevance": min_relevance}
    limits |= {"symbols": symbols, "kinds": kinds, "tests": not no_tests}
    report = search_lines(opened, query, where=where, explain=True, **limits, **arguments)
    record_search(opened, report.explanation, time.monotonic() - started)
    found = (report if explain else replace(report, explanation=None)).to_dict()
    return show_search(found, as_json, partial(_print_hits, opened))


def _narrowed(asked: Mapping[str, Any], within: LineFilter | None) -> SearchFilter:
    """The filter of what is ``asked``, by the names of the API."""
    from driftline.tasks.search.filters import SearchFilter

    return SearchFilter(
        paths=asked["path"] or None,
        dirs=asked["dir"] or None,
        globs=asked["glob"] or None,
        exts=asked["ext"] or None,
        languages=asked["lang"] or None,
        entities=asked["source"] or None,
        also=[within] if within else [],
        on_this_machine=True,
    )


def _on_branch(workspace: Workspace, given: str | None) -> Workspace:
    return on_named_branch(workspace, search_arguments({"branch": given})["branch"])


def _cached(workspace: Workspace, given: bool | None) -> Workspace:
    """The copy of a workspace in a bucket, brought up to date, if a copy is asked for."""
    caching = search_arguments({"cache": given, "cache_bytes": None})
    if not caching["cache"] or workspace.objects.is_local:
        return workspace
    from driftline.flows.output.progress import open_progress
    from driftline.flows.runs.pull import open_copy

    with open_progress() as progress:
        return open_copy(workspace, max_bytes=caching["cache_bytes"], warn=warn, progress=progress)


def _print_hits(workspace: Workspace, result: dict[str, Any]) -> None:
    from driftline.flows.output.plain import print_search

    if "explanation" in result:
        from driftline.flows.output.terminal import print_explanation

        print_explanation(result["explanation"])
    print_search(result, _local_folders(workspace, result["results"]) if sys.stdout.isatty() else None)


def _open(workspace: str, given: str | None = None, config: str | None = None) -> Workspace:
    """Open a workspace, ``given`` or found, with the storage options of ``driftline.toml`` if that file names it."""
    from driftline.flows.config.access import source_access
    from driftline.flows.config.toml_file import options_for
    from driftline.storage.workspace.workspace import Workspace

    return Workspace.open(workspace, options_for(workspace), source_access(workspace, given, config))


def _local_folders(opened: Workspace, hits: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The folder of each local source that has hits, for links."""
    from driftline.flows.config.environment import local_path
    from driftline.storage.entities import Entity

    folders: dict[str, str] = {}
    for entity in {hit["source"] for hit in hits}:
        record = opened.source(Entity.parse(entity, opened.config.hierarchy))
        if record is not None and local_path(record.uri) is not None:
            folders[entity] = record.uri
    return folders


_FIRST_STEPS = """
  driftline index .               index this folder
  driftline search "your words"   search the index
  driftline grep "your words" .   search files without an index
  driftline --help                all commands"""
_NEXT_STEPS = """
  driftline search "your words"   search it
  driftline index .               bring this folder in step
  driftline runs                  what has changed, and when
  driftline --help                all commands"""


def orient() -> int:
    """Say what there is in this folder, and what to do with it: what ``driftline`` alone prints."""
    try:
        target = workspace_for_reading(None)
        stats = _open(target).stats()
    except WorkspaceNotFound as error:
        say(f"Nothing is indexed here yet: {error.what[0].lower()}{error.what[1:]} ({error.where}).")
        print(_FIRST_STEPS)
        return DONE
    from driftline.flows.output.terminal import print_status

    print_status(asdict(stats))
    print(_NEXT_STEPS)
    return DONE


@app.command()
def status(workspace: WorkspaceOption = None, as_json: JsonOption = False) -> int:
    """Show the contents and state of the workspace."""
    target = workspace_for_reading(workspace)
    from driftline.flows.output.terminal import print_status
    from driftline.storage.workspace.copies import read_copy_record

    opened = _open(target)
    copied = read_copy_record(opened.objects)
    of = {"copy_of": copied.origin, "pulled": copied.pulled.isoformat()} if copied is not None else {}
    show({**asdict(opened.stats()), **of}, as_json, print_status)
    return DONE


@app.command()
def sources(workspace: WorkspaceOption = None, as_json: JsonOption = False) -> int:
    """List the sources of the workspace."""
    target = workspace_for_reading(workspace)
    from driftline.flows.output.terminal import print_sources

    stats = _open(target).stats()
    show({"workspace": stats.workspace, "sources": list(stats.sources)}, as_json, print_sources)
    return DONE

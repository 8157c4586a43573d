"""Define the app of the command line, its exit codes, shared options, and how commands print their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from driftline.flows.output.plain import print_json, warn

DONE, NOTHING_FOUND, WRONG_USE, FAILED = 0, 1, 2, 3

app = typer.Typer(
    name="driftline",
    help="Keep a semantic index of every line in your repositories and buckets up to date.",
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def show(result: dict[str, Any], as_json: bool, print_text: Callable[[dict[str, Any]], None]) -> None:
    """Print ``result`` as one JSON object, or with ``print_text``."""
    if as_json:
        print_json(result)
    else:
        print_text(result)


def show_search(found: dict[str, Any], as_json: bool, print_text: Callable[[dict[str, Any]], None]) -> int:
    """Print the results of a search, with its notes on standard error, and return the exit code.

    A glob that matches no document is wrong use, because it is usually a mistake.
    """
    show(found, as_json, print_text)
    for note in found.get("notes", ()):
        warn(note)
    if found["results"]:
        return DONE
    return WRONG_USE if found.get("unmatched") else NOTHING_FOUND


WorkspaceOption = Annotated[
    str | None,
    typer.Option(
        "--workspace",
        metavar="URI",
        help="The workspace: a folder, s3://, gs:// or az://, or @NAME. "
        "Default: $DRIFTLINE_WORKSPACE, else the nearest .driftline folder.",
    ),
]
ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="FILE", help="The driftline.toml to use. Default: $DRIFTLINE_CONFIG, else the nearest one."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

# Options of the executor.
ExecutorOption = Annotated[
    str,
    typer.Option(
        "--executor", metavar="WHERE", help="inline, local (processes), or tcp://HOST:PORT of a Dask scheduler."
    ),
]
WorkersOption = Annotated[int | None, typer.Option("--workers", min=1, help="Processes of the local executor.")]

# Options of index runs.
ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="A model2vec directory or name; default: an installed one."),
]
MaxDeleteFractionOption = Annotated[
    float,
    typer.Option(
        "--max-delete-fraction", min=0.0, max=1.0, help="Refuse to delete a larger fraction of a source; 1 allows all."
    ),
]
WaitOption = Annotated[
    float,
    typer.Option("--wait", min=0.0, metavar="SECONDS", help="Wait this long for another run of a source to finish."),
]

BranchOption = Annotated[
    str | None,
    typer.Option(
        "--branch", metavar="NAME", help="Use this branch instead of the main index; auto: the branch checked out."
    ),
]

# Options of searches.
QueryArgument = Annotated[str, typer.Argument(metavar="QUERY", help="The text to search for: words or code.")]
WordsArgument = Annotated[
    list[str], typer.Argument(metavar="QUERY...", help="The text to search for: words or code, in quotes or not.")
]
TopKOption = Annotated[int, typer.Option("--top-k", min=0, help="Maximum number of results.")]
MaxDistanceOption = Annotated[
    float | None,
    typer.Option("--max-distance", min=0.0, max=2.0, help="Drop results with a cosine distance above this (0 to 2)."),
]
MinRelevanceOption = Annotated[
    float | None,
    typer.Option("--min-relevance", min=0.0, max=1.0, help="Drop results with a relevance below this (0 to 1)."),
]
CacheOption = Annotated[
    bool | None,
    typer.Option(
        "--cache/--no-cache",
        help="Search a local copy of the bucket's workspace, updated before each search.",
        show_default="no",
    ),
]
NLinesOption = Annotated[int, typer.Option("--n-lines", "-n", "-C", min=0, help="Lines of context on each side.")]
WithinOption = Annotated[
    str | None,
    typer.Option(metavar="ENTITY", help="Limit access to this entity and those below it, such as org:acme."),
]

"""The command line's app, its exit codes, and the options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

DONE, NOTHING_FOUND, WRONG_USE, FAILED = 0, 1, 2, 3

app = typer.Typer(
    name="driftline",
    help="Keeps a semantic index of every line in your repositories and buckets in step with what changed.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

WorkspaceOption = Annotated[
    str | None,
    typer.Option(
        "--workspace",
        metavar="URI",
        help="Where the index lives: a folder, s3://, gs:// or az://. "
        "Default: $DRIFTLINE_WORKSPACE, else the nearest .driftline folder.",
    ),
]
ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="FILE", help="Which driftline.toml. Default: $DRIFTLINE_CONFIG, else the nearest one."
    ),
]
ExecutorOption = Annotated[
    str,
    typer.Option(
        "--executor", metavar="WHERE", help="inline, local (processes), or tcp://HOST:PORT of a Dask scheduler."
    ),
]
WorkersOption = Annotated[int | None, typer.Option("--workers", min=1, help="Processes of the local executor.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

"""The app of the command line, its exit codes, and how commands print their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from driftline.flows.output.plain import print_json, warn

DONE, NOTHING_FOUND, WRONG_USE, FAILED = 0, 1, 2, 3

app = typer.Typer(
    name="driftline",
    help="Keeps a semantic index of every line in your repositories and buckets in step with what changed.",
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def show(result: dict[str, Any], as_json: bool, print_text: Callable[[dict[str, Any]], None]) -> None:
    """Print ``result`` as one JSON object, or have ``print_text`` print it."""
    if as_json:
        print_json(result)
    else:
        print_text(result)


def show_search(found: dict[str, Any], as_json: bool, print_text: Callable[[dict[str, Any]], None]) -> int:
    """Show what a search has found, with its notes on standard error; returns the exit code.

    A glob that matches no document is wrong use: it is a mistake more often than not.
    """
    show(found, as_json, print_text)
    for note in found.get("notes", ()):
        warn(note)
    if found["results"]:
        return DONE
    return WRONG_USE if found.get("unmatched") else NOTHING_FOUND

"""Define ``driftline grep``: semantic search in files and pipes, without a workspace."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftline.flows.commands.app import (
    JsonOption,
    ModelOption,
    QueryArgument,
    app,
    parameters,
    show_search,
)
from driftline.flows.output.plain_text import warn
from driftline.storage.defaults import DEFAULT_REDACTION, Redaction
from driftline.storage.errors import SourceNotFound
from driftline.storage.request_options import spread
from driftline.tasks.search.request import SearchRequest, options_in

if TYPE_CHECKING:
    from driftline.storage.model import SkipReason

_NAMED_SKIPS = 5
"""Maximum number of skipped files to list; if there are more, they are counted by reason."""


_LIMITS = ("top_k", "max_distance", "min_relevance", "n_lines")


@app.command()
@spread("given", parameters(options_in("command", *_LIMITS)))
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
    """Search FILE semantically, without an index. Exit code 1 if nothing is found."""
    from driftline.flows.output.plain_text import print_search
    from driftline.tasks.search.grep import grep as search_texts
    from driftline.tasks.search.grep import open_embedder, read_texts

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

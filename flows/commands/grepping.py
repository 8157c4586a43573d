"""``driftline grep``: search by meaning in files and pipes that no workspace holds."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from driftline.flows.commands.app import DONE, NOTHING_FOUND, JsonOption, app

if TYPE_CHECKING:
    from driftline.storage.model import SkipReason

_NAMED_SKIPS = 5
"""More files that are left out are counted, not named."""


@app.command()
def grep(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to look for, in words or code.")],
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Files, folders, quoted globs, or - for standard input.")
    ],
    top_k: Annotated[int, typer.Option(min=0, help="At most so many results.")] = 10,
    max_distance: Annotated[
        float | None, typer.Option(min=0.0, max=2.0, help="Drop results that are farther (1 - cosine).")
    ] = None,
    n_lines: Annotated[int, typer.Option("--n-lines", "-n", min=0, help="Lines of context on each side.")] = 3,
    ignore_case: Annotated[bool, typer.Option("--ignore-case", "-i", help="Do not tell capitals apart.")] = False,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="A model2vec directory or name; default: an installed one.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Find the lines of FILE that mean QUERY, without an index. Exit code 1 when there are none."""
    from driftline.flows.output.terminal import print_json, print_search, printable
    from driftline.tasks.search.grep import grep as search_texts
    from driftline.tasks.search.grep import open_embedder, read_texts

    skipped: list[tuple[str, SkipReason]] = []
    texts = read_texts(files, sys.stdin.buffer.read, lambda path, reason: skipped.append((path, reason)))
    result = search_texts(
        query,
        texts,
        open_embedder(model),
        top_k=top_k,
        max_distance=max_distance,
        n_lines=n_lines,
        ignore_case=ignore_case,
    ).to_dict()
    for path, reason in skipped if len(skipped) <= _NAMED_SKIPS else ():
        print(f"driftline: {printable(path)} is not searched: {reason}", file=sys.stderr)
    if len(skipped) > _NAMED_SKIPS:
        reasons = Counter(str(reason) for _, reason in skipped).most_common()
        told = ", ".join(f"{count:,} {reason}" for reason, count in reasons)
        print(f"driftline: {len(skipped):,} files are not searched: {told}", file=sys.stderr)
    if as_json:
        print_json(result)
    else:
        print_search(result, {"": os.getcwd()})
    return DONE if result["results"] else NOTHING_FOUND

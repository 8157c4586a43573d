"""Define ``driftline sql``: query the workspace in SQL."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from driftline.flows.commands.app import DONE, BranchOption, JsonOption, WithinOption, WorkspaceOption, app
from driftline.flows.config.which_workspace import boundary_in, on_named_branch, open_for_reading
from driftline.flows.output.plain_text import emit, printable, warn
from driftline.storage.defaults import DEFAULT_SQL_SECONDS
from driftline.storage.errors import UsageError

if TYPE_CHECKING:
    from driftline.storage.sql import Result

Format = Literal["table", "csv", "json", "parquet"]
MAX_TABLE_ROWS = 1_000
"""Maximum number of rows in table format."""


@app.command()
def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One SELECT. 'SHOW TABLES' lists the views.")],
    workspace: WorkspaceOption = None,
    within: WithinOption = None,
    branch: BranchOption = None,
    form: Annotated[Format, typer.Option("--format", help="Output format.")] = "table",
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.0, metavar="SECONDS", help="Interrupt the query after this time.")
    ] = DEFAULT_SQL_SECONDS,
    as_json: JsonOption = False,
) -> int:
    """Query the workspace in SQL: documents, lines, owners, definitions, sources, runs, branches, memory.

    The query is read-only, and can access only the workspace.
    """
    from driftline.storage.sql_process import prepare

    prepare()
    opened = open_for_reading(workspace)
    from driftline.flows.search import searches_table
    from driftline.storage.sql_process import query as run

    boundary = None if within is None else boundary_in(opened, within)
    there = on_named_branch(opened, branch, boundary)
    if form == "parquet" and sys.stdout.isatty():
        raise UsageError(
            "Parquet is binary and cannot be printed to a terminal", fix="Redirect it to a file: > result.parquet"
        )
    journal = searches_table(opened)
    with run(there, query, within=boundary, searches=journal, max_seconds=timeout) as result:
        rows = _PRINTERS["json" if as_json else form](result)
    if not rows:
        warn("The query returned no rows.")
    return DONE


def _print_table(result: Result) -> int:
    from driftline.flows.output.terminal_reports import print_rows
    from driftline.storage.sql import as_text

    found = list(islice(result.rows(), MAX_TABLE_ROWS + 1))
    print_rows(
        result.schema.names, [[as_text(value) for value in row] for row in found[:MAX_TABLE_ROWS]], result.numbers
    )
    if len(found) > MAX_TABLE_ROWS:
        warn(f"Only the first {MAX_TABLE_ROWS:,} rows are shown: use --format csv, json or parquet for all of them.")
    return len(found)


def _print_csv(result: Result) -> int:
    from driftline.storage.sql import csv_of, rows_of

    count, to_terminal = 0, sys.stdout.isatty()
    pieces: Iterator[Sequence[Sequence[object]]] = map(list, map(rows_of, result))
    for piece in chain([[result.schema.names]], pieces):
        count += len(piece)
        text = csv_of(piece)
        emit("\n".join(map(printable, text.split("\n"))) if to_terminal else text)
    return count - 1


def _print_json(result: Result) -> int:
    from driftline.storage.sql import rows_of

    names, count = result.schema.names, 0
    emit(f'{{"columns": {json.dumps(names)}, "rows": [')
    for batch in result:
        objects = (_object(dict(zip(names, row, strict=True))) for row in rows_of(batch))
        emit((", " if count else "") + ", ".join(objects))
        count += batch.num_rows
    emit("]}\n")
    return count


def _object(row: dict[str, Any]) -> str:
    """Return a row as JSON, which has no NaN and infinity: they become null."""
    from driftline.storage.sql import as_json

    try:
        return json.dumps(row, default=as_json, allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(row, default=as_json), parse_constant=lambda _: None))


def _print_parquet(result: Result) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 0
    with pq.ParquetWriter(sys.stdout.buffer, result.schema, compression="zstd") as writer:
        for batch in result:
            try:
                batch.validate(full=True)
            except pa.ArrowInvalid as error:  # DuckDB's widest numbers have one digit more than Arrow's type
                fix = "Cast the column to VARCHAR."
                raise UsageError(f"A value does not fit into its Parquet type ({error})", fix=fix) from error
            writer.write_batch(batch)
            count += batch.num_rows
    return count


_PRINTERS = {"table": _print_table, "csv": _print_csv, "json": _print_json, "parquet": _print_parquet}

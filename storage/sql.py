"""Query one workspace in SQL: its content as read-only DuckDB views (DESIGN, "SQL").

DuckDB has access to nothing but the views: no files, network, extensions or settings. It asks each view for the columns
and rows that a query needs, and the view reads only those through the workspace's own store, so DuckDB needs no bucket
client. Its own limits do not bound every query: ``sql_process.py`` runs one in a process that can be killed.

    documents     the manifest: one row a document; its lines are counted in the indexed text, on request
    owners        who owns a document, by the CODEOWNERS file of its source
    skipped       files that are not indexed, and why
    lines         the indexed lines, numbered from 1
    definitions   functions, classes and sections
    sources       what is indexed
    branches      the branches of the sources
    runs          the run history: one row a run
    run_sources   what each index run did to each of its sources
    memory        the entries of the memory store, without their values
    searches      the journal of this user's searches that used a filter
"""

from __future__ import annotations

import csv
import io
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from driftline.storage.code_owners import LOCATIONS, owners_of
from driftline.storage.deltas.manifest import SCHEMA as MANIFEST
from driftline.storage.documents import INSIDE, LANGUAGE_OF, NAMED_LIKE_ARCHIVE, SkipReason
from driftline.storage.entities import Boundary, Entity, is_allowed
from driftline.storage.errors import DriftlineError, OutOfMemory, UsageError
from driftline.storage.lance.failures import is_lance_failure, read_failed
from driftline.storage.layout import BASE, is_delta
from driftline.storage.lines.commit_marker import MARKER_LINE
from driftline.storage.lines.line_table import PACK_COLUMN, PACK_LINE_COLUMN, LineTable
from driftline.storage.lines.outline import OUTLINE_COLUMN, decode
from driftline.storage.lines.packs import texts_in
from driftline.storage.memory.memory_indexes import FIELDS as MEMORY_FIELDS
from driftline.storage.memory.memory_indexes import MemoryIndex
from driftline.storage.workspace.branch_cuts import branch_records
from driftline.storage.workspace.records import INDEX, RunHistory, RunRecord
from driftline.storage.workspace.workspace import Workspace

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

MAX_BYTES = 2**30
BATCH_ROWS = 65_536
RESULT_ROWS = 2_048
"""Maximum number of rows per batch of a result, so that callers can stop before a large one is in memory."""
_OUT_OF_MEMORY = ("Out of Memory", "bad_alloc", "bad allocation", "Cannot allocate memory")
_FIXES = {
    "Catalog Error: Table": "SHOW TABLES lists the views.",
    "Binder Error": "DESCRIBE a view to see its columns; text is in single quotes.",
    "Permission Error": "A query can only read the views.",
}
"""What to do about DuckDB's errors that suggest no name."""
MAX_SCANS = 200
"""Number of recorded runs that are searched for the last complete scan of each source."""

_TIME = pa.timestamp("us")
"""UTC, stored without a zone."""
Columns = Sequence[str]
Read = Callable[[Columns, Any], Iterator[pa.RecordBatch]]
"""Yields batches of the requested columns, with the rows that pass an Arrow expression, or all rows if it is None."""


@dataclass(frozen=True, slots=True)
class View:
    """A view: the schema of its scan, how it is read, and how it is shown.

    ``shown`` lists the columns as SQL, ``where`` is a condition; ``distinct`` drops duplicates.
    """

    schema: pa.Schema
    read: Read
    shown: str = "*"
    where: str = "true"
    distinct: bool = False


@contextmanager
def query_here(
    workspace: Workspace,
    text: str,
    parameters: Sequence[Any],
    within: Boundary | None,
    searches: pa.Table | None,
    limits: Limits,
) -> Iterator[Result]:
    """Like ``sql_process.query``, but in this process, where ``limits`` do not bound every query."""
    connection = _connect(limits.max_bytes)
    timer = threading.Timer(limits.max_seconds, connection.interrupt)
    timer.daemon = True
    try:
        with limits.translated_errors():
            for name, view in views(workspace, within, searches).items():
                shown = connection.from_arrow(_Scanned(view, limits.failures)).filter(view.where).project(view.shown)
                (shown.distinct() if view.distinct else shown).create_view(name)
            connection.execute("SET enable_progress_bar = false")  # shown by default in a process started with -c
            connection.execute("SET TimeZone = 'UTC'")  # otherwise, now() would use the machine's time zone
            connection.execute("SET lock_configuration = true")
            _check(connection, text)
            timer.start()
            reader = _in_arrow(connection.sql(text, params=list(parameters))).to_arrow_reader(RESULT_ROWS)
        schema = _with_unique_names(reader.schema)
        yield Result(schema, _batches(reader, schema, limits), limits)
    finally:
        timer.cancel()
        connection.close()


@dataclass(frozen=True, slots=True)
class Limits:
    """A query's limits, and the errors raised while reading the workspace, which DuckDB would report as its own."""

    max_seconds: float
    max_bytes: int
    failures: list[DriftlineError] = field(default_factory=list)

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Translate DuckDB errors into Driftline errors."""
        import duckdb

        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError, MemoryError) as error:
            raise (self.failures[0] if self.failures else self._of(error)) from error

    def too_slow(self) -> UsageError:
        fix = "Narrow it, or allow more time."
        return UsageError(f"The query took longer than {self.max_seconds:g} s", fix=fix)

    def too_large(self) -> OutOfMemory:
        fix = "Select fewer columns, aggregate, or add a LIMIT."
        return OutOfMemory(f"The query needs more memory than {self.max_bytes / 1e9:.1f} GB", fix=fix)

    def _of(self, error: Exception) -> DriftlineError:
        text = str(error)
        if "INTERRUPT" in text.upper():
            return self.too_slow()
        if isinstance(error, MemoryError) or any(each in text for each in _OUT_OF_MEMORY):
            return self.too_large()
        what, did_you_mean, name = text.partition("\n\nLINE")[0].partition("Did you mean ")
        fix = f"{did_you_mean}{name.strip()}" or next(
            (fix for start, fix in _FIXES.items() if text.startswith(start)), ""
        )
        return UsageError("Cannot run the query", what.rstrip(".! \n"), fix)


@dataclass(frozen=True, slots=True)
class Result:
    """A query's rows, in batches; they can only be read once.

    If several columns have the same name, all but the first get a numeric suffix.
    """

    schema: pa.Schema
    _batches: Iterator[pa.RecordBatch]
    _limits: Limits

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches as DuckDB computes them. Raises the same errors as ``query``."""
        return self._batches

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the rows as Python values."""
        for batch in self:
            yield from rows_of(batch)

    @property
    def numbers(self) -> list[bool]:
        """Which columns contain numbers."""
        return [
            pa.types.is_integer(each) or pa.types.is_floating(each) or pa.types.is_decimal(each)
            for each in self.schema.types
        ]

    def table(self) -> pa.Table:
        """Return all rows. Raises the same errors as ``query``, and OutOfMemory beyond its ``max_bytes``."""
        found: list[pa.RecordBatch] = []
        size_bytes = 0
        for batch in self:
            size_bytes += batch.nbytes
            if size_bytes > self._limits.max_bytes:
                raise self._limits.too_large()
            found.append(batch)
        return pa.Table.from_batches(found, self.schema)


def rows_of(batch: pa.RecordBatch | pa.Table) -> Iterator[tuple[object, ...]]:
    """Yield rows as Python values; a moment that Python cannot represent, like infinity, is text."""
    yield from zip(*map(_values, batch.columns), strict=True)


def _values(column: pa.Array | pa.ChunkedArray) -> list[object]:
    try:
        values: list[object] = column.to_pylist()
    except (OverflowError, ValueError):  # one of its moments
        values = [_value(each) for each in column]
    return values


def _value(scalar: pa.Scalar) -> object:
    if isinstance(scalar, pa.StructScalar) and scalar.is_valid:
        return {name: _value(each) for name, each in scalar.items()}
    if isinstance(scalar, pa.ListScalar) and scalar.is_valid:
        return [_value(each) for each in scalar.values]
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return _moment(scalar)


def _moment(scalar: pa.Scalar) -> str:
    """Format a date or timestamp outside Python's years, or with nanoseconds."""
    if not (pa.types.is_date(scalar.type) or pa.types.is_timestamp(scalar.type)) or scalar.type == pa.timestamp("ns"):
        return str(scalar.cast(pa.string()))
    is_date = pa.types.is_date(scalar.type)
    if abs(scalar.value) == 2 ** (31 if is_date else 63) - 1:
        return "infinity" if scalar.value > 0 else "-infinity"
    per_day = 1 if is_date else 86_400 * {"s": 1, "ms": 10**3, "us": 10**6}[scalar.type.unit]
    days, rest = divmod(scalar.value, per_day)
    cycles, days = divmod(days, _DAYS_OF_400_YEARS)
    moment = datetime(1970, 1, 1) + timedelta(days, rest * 86_400 / per_day)
    text = str(moment.date() if is_date else moment)
    zone = "+00:00" if not is_date and scalar.type.tz else ""
    return f"{moment.year + 400 * cycles:04}{text[4:]}{zone}"


_DAYS_OF_400_YEARS = 146_097
"""After these, the Gregorian calendar repeats."""


def _with_unique_names(given: pa.Schema) -> pa.Schema:
    names: list[str] = []
    for name in given.names:
        numbered = (f"{name}_{number}" for number in range(2, len(given) + 2))
        names.append(next(each for each in (name, *numbered) if each not in names))
    return pa.schema([given.field(at).with_name(name) for at, name in enumerate(names)])


def _batches(reader: pa.RecordBatchReader, schema: pa.Schema, limits: Limits) -> Iterator[pa.RecordBatch]:
    while True:
        with limits.translated_errors():
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
        yield batch.rename_columns(schema.names)


def as_text(value: object, *, exact: bool = False) -> str:
    """Format a value for a cell: null as empty, a list or object as JSON, bytes as hex.

    Fractions are rounded unless ``exact`` is set.

    Examples:
        >>> as_text(None), as_text(1 / 3), as_text(1234567.8), as_text(["a"])
        ('', '0.333333', '1234568', '["a"]')
        >>> as_text(1234567.8, exact=True)
        '1234567.8'
    """
    if value is None:
        return ""
    if isinstance(value, float):
        is_long = 1e6 <= abs(value) < 2**53  # six digits would hide some of the whole number
        return str(value) if exact else f"{value:.0f}" if is_long else f"{value:.6g}"
    if isinstance(value, bytes):
        return value.hex()
    return json.dumps(value, default=as_json) if isinstance(value, list | dict) else str(value)


def csv_of(rows: Iterable[Sequence[object]]) -> str:
    """Format rows as CSV.

    Examples:
        >>> csv_of([("path", "lines"), ("a,b.txt", None)])
        'path,lines\\n"a,b.txt",\\n'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([as_text(value, exact=True) for value in row] for row in rows)
    return text.getvalue()


def as_json(value: Any) -> object:
    """Convert a value without a JSON equivalent to one that has one."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.hex() if isinstance(value, bytes) else str(value)


_NOT_IN_ARROW = frozenset(("bignum", "bit", "interval", "time with time zone", "uhugeint", "union", "variant"))
"""Types that DuckDB changes, or hides in bytes, on the way to Arrow, or that files and programs cannot read."""


def _is_odd(kind: Any) -> bool:  # a DuckDBPyType
    children = kind.children if kind.id in ("array", "list", "map", "struct") else ()
    return kind.id in _NOT_IN_ARROW or any(_is_odd(each) for _, each in children if not isinstance(each, int))


def _in_arrow(relation: DuckDBPyRelation) -> DuckDBPyRelation:
    """Return ``relation`` with values of these types as text."""
    odd = [_is_odd(each) for each in relation.types]
    if not any(odd):
        return relation
    names = (name.replace('"', '""') for name in relation.columns)
    columns = (f"#{at}::VARCHAR" if is_odd else f"#{at}" for at, is_odd in enumerate(odd, start=1))
    return relation.project(", ".join(f'{each} AS "{name}"' for each, name in zip(columns, names, strict=True)))


def _connect(max_bytes: int) -> DuckDBPyConnection:
    """Connect to an in-memory database that has no access to anything else and never spills to disk."""
    import duckdb

    return duckdb.connect(
        ":memory:",
        config={
            "enable_external_access": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_community_extensions": "false",
            "allow_persistent_secrets": "false",
            "python_enable_replacements": "false",
            "temp_directory": "",
            "memory_limit": f"{max_bytes // 2**20}MiB",
        },
    )


def _check(connection: DuckDBPyConnection, text: str) -> None:
    """Raise UsageError unless ``text`` is a single statement that only reads."""
    import duckdb

    found = connection.extract_statements(text)
    if len(found) != 1 or found[0].type != duckdb.StatementType.SELECT:
        what = "Only a SELECT can be run" if found else "The query is empty"
        fix = "Use one statement that starts with SELECT, WITH, FROM, DESCRIBE or SHOW TABLES."
        raise UsageError(what if len(found) < 2 else "Only one statement can be run", fix=fix)


class _Batches:
    """A source for a DuckDB scan, which can be anything that has ``to_reader``."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.projected_schema = schema
        self._batches = batches

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches)


class _Scanned(pads.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """A view as a dataset; DuckDB requests columns and rows from it, once for each use in a query."""

    def __init__(self, view: View, failures: list[DriftlineError]) -> None:
        self._view = view
        self._failures = failures

    @property
    def schema(self) -> pa.Schema:
        return self._view.schema

    def scanner(self, columns: Columns | None = None, filter: Any = None, **_: Any) -> _Batches:
        names = self.schema.names if columns is None else list(columns)
        schema = pa.schema([self.schema.field(name) for name in names])
        return _Batches(schema, self._read(names, filter, schema))

    def _read(self, names: Columns, where: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._view.read(names, where):
                yield batch.select(names).cast(schema)
        except BaseException as error:  # Lance panics with one, and DuckDB would report each as its own error
            if not isinstance(error, DriftlineError) and not is_lance_failure(error):
                raise
            failure = error if isinstance(error, DriftlineError) else read_failed("Cannot read a table", "", error)
            self._failures.append(failure)
            raise


# -- the views ---------------------------------------------------------------------------------


SEARCHES = pa.schema([("started", _TIME), ("seconds", pa.float64()), ("hit_rate", pa.float64())])
_LINES = pa.schema(
    [
        *((name, pa.string()) for name in ("entity", "path", "ext")),
        *((name, pa.int32()) for name in ("line_number", "column_number")),
        *((name, pa.string()) for name in ("text", "hash")),
    ]
)
_OWNERS = pa.schema([(name, pa.string()) for name in ("entity", "path", "owner")])
_DEFINITIONS = pa.schema(
    [(name, pa.string()) for name in ("entity", "path", "kind", "name")]
    + [(name, pa.int32()) for name in ("line", "first_line", "last_line")]
)
_RUNS = pa.schema(
    [
        ("run_id", pa.string()),
        ("kind", pa.string()),
        ("started", _TIME),
        ("seconds", pa.float64()),
        ("outcome", pa.string()),
        ("sources", pa.int64()),
        ("requests", pa.int64()),
    ]
)
_COUNTED = ("new", "changed", "touched", "unchanged", "deleted", "lines_embedded", "bytes_read", "documents_total")
_RUN_SOURCES = pa.schema(
    [
        ("run_id", pa.string()),
        ("started", _TIME),
        ("entity", pa.string()),
        *((name, pa.int64()) for name in (*_COUNTED, "lines_total")),
        ("skipped", pa.int64()),
        ("seconds", pa.float64()),
        ("commit", pa.string()),
        ("branch", pa.string()),
    ]
)
_BRANCHES = pa.schema(
    [
        ("name", pa.string()),
        ("entity", pa.string()),
        ("base", pa.string()),
        ("build", pa.int64()),
        ("created", _TIME),
        ("updated", _TIME),
    ]
)
_SOURCE_FIELDS: tuple[tuple[str, pa.DataType], ...] = (
    ("uri", pa.string()),
    ("origin", pa.string()),
    ("subpath", pa.string()),
    ("include", pa.list_(pa.string())),
    ("exclude", pa.list_(pa.string())),
    ("commit", pa.string()),
    ("committed", _TIME),
)
_MANIFEST = pa.schema([("entity", pa.string()), *((name, MANIFEST.field(name).type) for name in MANIFEST.names)])
_DOCUMENTS = _MANIFEST.append(pa.field("lines_of_text", pa.int64()))
_SKIPPED = pa.schema([_MANIFEST.field(name) for name in ("entity", "path", "size_bytes", "mtime_ns", "reason")])
_MODIFIED = "CASE WHEN mtime_ns > 0 THEN make_timestamp_ns(mtime_ns)::TIMESTAMP END AS modified"
_EXTENSION = "lower(regexp_extract(path, '[^/]\\.([^./]+)$', 1)) AS ext"
_LANGUAGE = f"MAP {LANGUAGE_OF}[ext] AS lang"
_MEMORY = pa.schema(
    [pa.field(each.name, _TIME if pa.types.is_timestamp(each.type) else each.type) for each in MEMORY_FIELDS]
)


def views(workspace: Workspace, within: Boundary | None = None, searches: pa.Table | None = None) -> dict[str, View]:
    """Return the views of ``workspace``, keyed by name, restricted to data ``within`` a boundary. Reads nothing yet."""
    there = _Contents(workspace, within)
    levels = pa.schema([("entity", pa.string()), *((level, pa.string()) for level in workspace.config.hierarchy)])
    sources = pa.schema([*levels, *_SOURCE_FIELDS])
    journal = SEARCHES.empty_table() if searches is None or within is not None else searches
    return {
        "documents": View(
            _DOCUMENTS,
            there.documents,
            f"entity, path, {_EXTENSION}, {_LANGUAGE}, size_bytes, lines_of_text AS lines, lines AS indexed_lines, "
            f"{_MODIFIED}, hash, etag",
            "reason IS NULL",
        ),
        "skipped": View(_SKIPPED, there.skipped, f"entity, path, size_bytes, {_MODIFIED}, reason"),
        "lines": View(
            _LINES,
            there.lines,
            f'entity, path, ext, {_LANGUAGE}, line_number + 1 AS line, column_number + 1 AS "column", text, hash',
        ),
        "owners": View(_OWNERS, there.owners),
        "definitions": View(_DEFINITIONS, there.definitions, distinct=True),
        "sources": View(sources, _small(sources, there.sources)),
        "branches": View(_BRANCHES, _small(_BRANCHES, there.branches)),
        "runs": View(_RUNS, _small(_RUNS, there.runs)),
        "run_sources": View(_RUN_SOURCES, _small(_RUN_SOURCES, there.run_sources)),
        "memory": View(_MEMORY, there.memory, where="expires IS NULL OR expires > now()::TIMESTAMP"),
        "searches": View(SEARCHES, lambda names, where: _filtered(journal, names, where)),
    }


def _small(schema: pa.Schema, rows: Callable[[], Iterator[Mapping[str, Any]]]) -> Read:
    """Return a reader for a small view, which reads all rows."""

    def read(names: Columns, where: Any) -> Iterator[pa.RecordBatch]:
        return _filtered(pa.Table.from_pylist(list(rows()), schema=schema), names, where)

    return read


MAX_PATHS = 1_000
"""Maximum number of documents whose text is read by path; for more, the text of all is."""


def _filtered(table: pa.Table, names: Columns, where: Any) -> Iterator[pa.RecordBatch]:
    yield from pads.dataset(table).scanner(columns=list(names), filter=where, batch_size=BATCH_ROWS).to_batches()


def _utc(moment: datetime | None) -> datetime | None:
    return moment.astimezone(UTC).replace(tzinfo=None) if moment else None


@dataclass(frozen=True, slots=True)
class _Contents:
    """A workspace's content within a boundary, as read by the views."""

    workspace: Workspace
    within: Boundary | None
    _histories: dict[str, list[RunRecord]] = field(default_factory=dict)

    def _tenants(self) -> list[Entity]:
        tenants = self.workspace.tenants()
        return tenants if self.within is None else [each for each in tenants if each in self.within.tenants]

    def _entities(self, tenant: Entity) -> list[Entity]:
        found = self.workspace.entities(tenant)
        return [each for each in found if is_allowed(each, self.within)]

    def documents(self, names: Columns, where: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all manifests.

        Reads only the columns that the query or the filter needs, and the documents' text only if their number of lines
        is needed.
        """
        needed = set(names) | _names_in(where)
        columns = [name for name in MANIFEST.names if name in needed] or ["path"]
        counts = self._lines_of_text(self._paths(where)) if "lines_of_text" in needed else None
        for tenant in self._tenants():
            for entity in self._entities(tenant):
                rows = self.workspace.manifest(entity).read(columns=[*dict.fromkeys(("path", *columns))])
                named = pa.DictionaryArray.from_arrays(pa.array([0] * len(rows), pa.int32()), [str(entity)])
                rows = rows.append_column("entity", named.cast(pa.string()))
                if counts is not None:
                    of_paths = counts.get(str(entity), {})
                    found = [of_paths.get(path, 0) for path in rows["path"].to_pylist()]
                    rows = rows.append_column("lines_of_text", pa.array(found, pa.int64()))
                yield from _filtered(rows, names, where)

    def _paths(self, where: Any) -> list[str] | None:
        """Return the paths of the documents that pass a filter, or None if these are many or depend on their lines."""
        if where is None or "lines_of_text" in _names_in(where):
            return None
        found: set[str] = set()
        for rows in self.documents(["path"], where):
            found.update(rows["path"].to_pylist())
            if len(found) > MAX_PATHS:
                return None
        return sorted(found)

    def _lines_of_text(self, paths: list[str] | None) -> dict[str, dict[str, int]]:
        """Count the lines of the text of each document, or of those at ``paths``; keyed by entity and path.

        These include lines with no row.
        """
        found: dict[str, dict[str, int]] = defaultdict(dict)
        for table, entities in self._tables() if paths is None or paths else ():
            of_packs = pc.field(PACK_LINE_COLUMN).is_valid()
            if entities is not None:
                of_packs &= pc.field("entity").isin([str(each) for each in entities])
            if paths is not None:
                of_packs &= pc.field("path").isin(paths)
            for packs in _scanned(table, ["entity", "path", PACK_LINE_COLUMN, PACK_COLUMN], of_packs):
                texts = texts_in(packs[PACK_COLUMN], table.uri)
                is_cut = pc.invert(pc.ends_with(texts, "\n"))  # the last line of a file may have no line break
                ends = pc.add(packs[PACK_LINE_COLUMN], pc.add(pc.count_substring(texts, "\n"), is_cut.cast(pa.int32())))
                columns = (packs["entity"].to_pylist(), packs["path"].to_pylist(), ends.to_pylist())
                for entity, path, end in zip(*columns, strict=True):
                    found[entity][path] = max(end, found[entity].get(path, 0))
        return found

    def skipped(self, names: Columns, where: Any) -> Iterator[pa.RecordBatch]:
        """Yield the files that are not indexed, from the manifests and from the skipped files of recorded scans."""
        for tenant in self._tenants():
            entities = self._entities(tenant)
            branches = ((entity, self.workspace.branch_of(entity)) for entity in entities)
            wanted = {(str(entity), branch.name if branch else None) for entity, branch in branches}
            runs = islice(RunHistory(self.workspace.objects, tenant).newest_first(), MAX_SCANS)
            scanned = _skipped_by_scans(runs, wanted)
            for entity in entities:
                record, branch = self.workspace.readable_source(entity), self.workspace.branch_of(entity)
                known = self.workspace.manifest(entity).read(columns=_SKIPPED.names[1:])
                read = known.filter(pc.is_valid(known["reason"]))
                if record is not None and record.archives:  # opened, and its members are documents
                    named = pc.match_substring_regex(read["path"], NAMED_LIKE_ARCHIVE)
                    named = pc.and_not(named, pc.match_substring(read["path"], INSIDE))
                    read = read.filter(pc.invert(pc.and_(named, pc.equal(read["reason"], SkipReason.ARCHIVE.value))))
                found = scanned.get((str(entity), branch.name if branch else None), {})
                unread = pa.table(
                    {"path": pa.array(list(found), pa.string()), "reason": pa.array(list(found.values()), pa.string())}
                )
                unread = unread.filter(pc.invert(pc.is_in(unread["path"], known["path"])))
                rows = pa.concat_tables([read, unread], promote_options="default")
                rows = rows.append_column("entity", pa.array([str(entity)] * len(rows), pa.string()))
                yield from _filtered(rows.select(_SKIPPED.names), names, where)

    def lines(self, names: Columns, where: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the line tables, excluding commit markers."""
        for table, entities in self._tables():
            of_lines = pc.field("line_number") > MARKER_LINE
            if entities is not None:
                of_lines &= pc.field("entity").isin([str(each) for each in entities])
            yield from _scanned(table, names, of_lines if where is None else of_lines & where)

    def owners(self, names: Columns, where: Any) -> Iterator[pa.RecordBatch]:
        """Yield the owners of documents, for sources that are whole repositories, folders or buckets."""
        files: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
        for table, entities in self._tables():
            of_files = pc.field(PACK_LINE_COLUMN).is_valid() & pc.field("path").isin(LOCATIONS)
            if entities is not None:
                of_files &= pc.field("entity").isin([str(each) for each in entities])
            for packs in _scanned(table, ["entity", "path", PACK_LINE_COLUMN, PACK_COLUMN], of_files):
                texts = texts_in(packs[PACK_COLUMN], table.uri).to_pylist()
                keys = (packs[name].to_pylist() for name in ("entity", "path", PACK_LINE_COLUMN))
                for entity, path, first, text in zip(*keys, texts, strict=True):
                    files[entity, path].append((first, text))
        for each in (each for tenant in self._tenants() for each in self._entities(tenant)):
            record, entity = self.workspace.readable_source(each), str(each)
            found = next((files[entity, path] for path in LOCATIONS if (entity, path) in files), None)
            if found is None or record is None or record.subpath:  # a part of a repository has no file of its own
                continue
            indexed = self.workspace.manifest(each).read(columns=["path", "reason"])
            paths = indexed.filter(pc.is_null(indexed["reason"]))["path"].to_pylist()
            rows = owners_of("".join(text for _, text in sorted(found)), paths)
            while chunk := [*islice(rows, BATCH_ROWS)]:
                columns = [[entity] * len(chunk), *map(list, zip(*chunk, strict=True))]
                yield from _filtered(pa.table(columns, schema=_OWNERS), names, where)

    def definitions(self, names: Columns, where: Any) -> Iterator[pa.RecordBatch]:
        """Yield the definitions in each block of lines; a definition that spans several blocks is yielded once per
        block.
        """
        for table, entities in self._tables():
            of_blocks = pc.field(OUTLINE_COLUMN) != ""
            if entities is not None:
                of_blocks &= pc.field("entity").isin([str(each) for each in entities])
            for blocks in _scanned(table, ["entity", "path", OUTLINE_COLUMN], of_blocks):
                rows = [
                    (row["entity"], row["path"], each.kind, each.name, each.line + 1, each.first + 1, each.last + 1)
                    for row in blocks.to_pylist()
                    for each in decode(row[OUTLINE_COLUMN])
                ]
                found = pa.Table.from_arrays(
                    [
                        pa.array(column, each.type)
                        for column, each in zip(zip(*rows, strict=True), _DEFINITIONS, strict=True)
                    ]
                    if rows
                    else [pa.array([], each.type) for each in _DEFINITIONS],
                    schema=_DEFINITIONS,
                )
                yield from _filtered(found, names, where)

    def _tables(self) -> Iterator[tuple[LineTable, list[Entity] | None]]:
        """Yield the line tables, each with the sources whose lines are visible; None means all."""
        if self.workspace.config.fingerprint is None:
            return
        for tenant in self._tenants():
            entities, branches = self._entities(tenant), self.workspace.branches
            branched = [each for each in entities if each in branches]
            main = [each for each in entities if each not in branches]
            everything = self.within is None and not any(each.tenant == tenant for each in branches)
            table_owners = [(tenant, None if everything else main), *((each, [each]) for each in branched)]
            for table_owner, counted in table_owners:
                table = self.workspace.lines(table_owner)
                if counted != [] and table.exists():
                    yield table, counted

    def sources(self) -> Iterator[dict[str, Any]]:
        for tenant in self._tenants():
            for entity in self._entities(tenant):
                record = self.workspace.readable_source(entity)
                if record is None:
                    continue
                commit = record.commit
                yield {
                    "entity": str(entity),
                    **dict(entity.parts),
                    **{name: getattr(record, name) for name in ("uri", "origin", "subpath", "include", "exclude")},
                    "commit": commit.id if commit else None,
                    "committed": _utc(commit.committed) if commit else None,
                }

    def branches(self) -> Iterator[dict[str, Any]]:
        for tenant in self._tenants():
            for entity in self._entities(tenant):
                for record in branch_records(self.workspace, entity):
                    moments = {"created": _utc(record.created), "updated": _utc(record.updated)}
                    yield {name: getattr(record, name) for name in ("name", "entity", "base", "build")} | moments

    def _history(self, tenant: Entity) -> list[RunRecord]:
        if str(tenant) not in self._histories:
            self._histories[str(tenant)] = list(RunHistory(self.workspace.objects, tenant).newest_first())
        return self._histories[str(tenant)]

    def runs(self) -> Iterator[dict[str, Any]]:
        """Yield the runs; a run over several tenants is yielded once.

        Within a boundary, yield only runs over its sources, without their request counts.
        """
        sources: dict[str, int] = defaultdict(int)
        runs: dict[str, RunRecord] = {}
        for run, found in self._parts():
            if found or self.within is None:
                sources[runs.setdefault(run.run_id, run).run_id] += len(found)
        for run in runs.values():
            requests = sum(run.report.get("requests", {}).values()) if self.within is None else None
            counts = {"sources": sources[run.run_id], "requests": requests}
            yield (
                {name: getattr(run, name) for name in ("run_id", "kind", "seconds", "outcome")} | counts | _started(run)
            )

    def run_sources(self) -> Iterator[dict[str, Any]]:
        for run, sources in self._parts():
            for source in sources:
                counts = {name: source.get(name) for name in (*_COUNTED, "lines_total", "commit", "branch")}
                counts |= {"skipped": len(source.get("skipped", ()))}
                seconds = sum(source.get("phases", {}).values())
                named = {"run_id": run.run_id, "entity": source["entity"], "seconds": seconds}
                yield named | counts | _started(run)

    def _parts(self) -> Iterator[tuple[RunRecord, list[Mapping[str, Any]]]]:
        """Yield each tenant's part of each run, with its sources within the boundary, which may be below the tenant."""
        for tenant in self._tenants():
            for run in self._history(tenant):
                found = run.report.get("sources", ()) if run.kind == INDEX else ()
                yield run, [each for each in found if self.within is None or self.within.allows_name(each["entity"])]

    def memory(self, names: Columns, where: Any) -> Iterator[pa.RecordBatch]:
        """Yield the entries at or below each tenant, or the boundary; ``entity`` is the owner."""
        for owner in self._tenants() if self.within is None else self.within.tops:
            names_there = (
                info.path.rpartition("/")[2] for info in self.workspace.objects.list(owner.directory, recursive=False)
            )
            if self.within is not None and owner.type == self.workspace.config.hierarchy[-1]:
                continue  # the index in this directory is a source's manifest
            if not any(name == BASE or is_delta(name) for name in names_there):
                continue
            rows = MemoryIndex(self.workspace.objects, owner.directory).read(columns=_MEMORY.names)
            owners = [str(Entity.of_directory(directory)) for directory in rows["entity"].to_pylist()]
            rows = rows.set_column(1, "entity", pa.array(owners, pa.string())).cast(_MEMORY)
            yield from _filtered(rows, names, where)


def _skipped_by_scans(
    runs: Iterable[RunRecord], wanted: Set[tuple[str, str | None]]
) -> dict[tuple[str, str | None], dict[str, str]]:
    """Return the reasons of skipped files by path, keyed by source and branch, from ``runs``, newest first.

    For each source, uses the last run that listed all files, and later runs that listed only some. Stops once these
    are known for all ``wanted`` sources.
    """
    found: dict[tuple[str, str | None], dict[str, str]] = {}
    complete = set[tuple[str, str | None]]()
    for run in runs:
        for source in run.report.get("sources", ()) if run.kind == INDEX else ():
            key = source["entity"], source.get("branch")
            if key in complete or "scan" not in source.get("phases", ()):
                continue
            skipped = {each["path"]: each["reason"] for each in source.get("skipped", ())}
            found[key] = skipped | found.get(key, {})
            if source.get("base") is None and not source.get("partial"):
                complete.add(key)
        if wanted <= complete:
            break
    return found


def _started(run: RunRecord) -> dict[str, Any]:
    return {"started": _utc(datetime.fromisoformat(run.started))}


def _names_in(where: Any) -> set[str]:
    """Return the columns of ``documents`` that an expression may read: all whose names it contains."""
    text = "" if where is None else str(where)
    return {name for name in _DOCUMENTS.names if name in text}


def _scanned(table: LineTable, names: Columns, where: Any) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a line table that pass ``where``, which is evaluated during the scan."""
    dataset = table.open()
    yield from dataset.scanner(columns=list(names), filter=where, batch_size=BATCH_ROWS).to_batches()

"""Print the commands' reports as human-readable text.

File names and lines are untrusted: their control characters are printed in escaped form.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from driftline.flows.output.plain_text import appearance, emit, printable, wants_styles
from driftline.storage.environment import install_command
from driftline.storage.objects.store_requests import price

if TYPE_CHECKING:
    from driftline.flows.output.run_reports import FleetsReport, RepositoryReport

Result = Mapping[str, Any]

_STATES = ("new", "changed", "touched", "unchanged", "deleted")
_SOURCE_COLUMNS = ("entity", "uri", "documents", "lines")
_MAX_FINDINGS = 100
_MAX_SHORTENED = 3
_UNFOLDED = 1000  # columns, if no terminal limits the width
_COUNTS_WIDTH = 24
"""Columns for a source's document and line counts."""
_MIN_TABLE_WIDTH = 60
"""In terminals with fewer columns, wider tables are printed as records."""


def print_index(result: Result, dry_run: bool, prices: Mapping[str, float] | None = None) -> None:
    """Print an index run's report, one paragraph per source; ``prices`` maps request types to the price of 1,000."""
    lines: list[Text | Table] = []
    failed = result.get("failed", ())
    for source in result["sources"]:
        counts = ", ".join(f"{source[state]:,} {state}" for state in _STATES if source[state]) or "none"
        lines.append(Text.assemble((printable(source["entity"]), "bold"), f"  {printable(source['uri'])}"))
        lines.append(Text(f"  documents: {counts}"))
        embedded = f"{source['lines_embedded']:,} {'to embed' if dry_run else 'embedded'}"
        lines.append(Text(f"  lines: {embedded}, {source['lines_total']:,} in the index"))
        reasons = Counter(str(skip["reason"]) for skip in source["skipped"])
        if not dry_run and any(source[state] for state in _STATES):
            del reasons["excluded"]  # requested exclusions need no hint, unless no documents are left
        if reasons:
            listed = ", ".join(f"{count:,} {_plural(reason, count)}" for reason, count in reasons.most_common())
            lines.append(Text(f"  not indexed: {listed}", style="yellow"))
        lines += _about_documents(source)
        files = source.get("truncated", ())
        if files:
            characters = sum(file["characters"] for file in files)
            named = ", ".join(printable(file["path"]) for file in files[:_MAX_SHORTENED])
            more = ", …" if len(files) > _MAX_SHORTENED else ""
            left_out = f"  overlong lines: {characters:,} characters in {len(files):,} documents are not indexed"
            lines.append(Text(f"{left_out}: {named}{more}", style="yellow"))
    lines += [Text(f"failed: {printable(failure['message'])}", style="red") for failure in failed]
    if result["requests"]:
        lines.append(Text(f"requests: {requests_text(result['requests'], prices or {})}", style="dim"))
    workspace, seconds = printable(result["workspace"]), f"{result['seconds']:.1f} s"
    done = f"{workspace} {'partly up to date' if failed else 'up to date'} after {seconds}"
    lines.append(Text(f"{workspace}: nothing written, {seconds}" if dry_run else done, style="dim"))
    (_print if dry_run else _print_done)(lines)


_NOUN = re.compile(r"^(?:symbolic link|pointer|submodule|archive|(?:damaged |Apple iWork )?document(?! that))\b")


def _plural(reason: str, count: int) -> str:
    """Return why ``count`` files are not indexed; reasons that are adjectives have no plural.

    Examples:
        >>> _plural("symbolic link", 4), _plural("symbolic link", 1), _plural("pointer of Git LFS", 2)
        ('symbolic links', 'symbolic link', 'pointers of Git LFS')
        >>> _plural("binary", 2)
        'binary'
    """
    return reason if count == 1 else _NOUN.sub(r"\g<0>s", reason)


def _about_documents(source: Result) -> Iterator[Text]:
    """Return hints about files that are skipped or incompletely indexed, and how to fix each."""
    unopened = sum(skip["reason"] == "archive" for skip in source["skipped"])
    if unopened:
        yield Text(f"  archives: {unopened:,}; --archives indexes the files inside", style="yellow")
    large = source.get("too_large", ())
    if large:
        from driftline.tasks.scanning.scan import has_own_limit
        from driftline.tasks.text import MAX_TEXT_BYTES

        huge = [file for file in large if file["bytes"] > MAX_TEXT_BYTES]
        large = [file for file in large if file["bytes"] <= MAX_TEXT_BYTES]
        if huge:
            most = f"no option accepts files above {MAX_TEXT_BYTES // 2**20} MiB: split them"
            yield Text(f"  too large: {_named(huge)}; {most}", style="yellow")
        for option, is_own in (("--max-document-bytes", True), ("--max-file-bytes", False)):
            files = [file for file in large if has_own_limit(file["path"]) == is_own]
            if files:
                yield Text(f"  too large: {_named(files)}; {option} {_most(files)} accepts them", style="yellow")
    if files := source.get("partially_indexed", ()):
        takes = f"--max-document-bytes {_most(files)} takes all lines"
        yield Text(f"  first and last lines only: {_named(files)}; {takes}", style="yellow")
    if source.get("redacted"):
        counts = ", ".join(f"{count:,} {rule}" for rule, count in source["redacted"].items())
        yield Text(f"  credentials replaced: {counts}", style="yellow")
    if source.get("missing_extra"):
        from driftline.tasks.extraction.extractor import EXTRA

        lacking = f"{source['missing_extra']:,} files require the extra '{EXTRA}'"
        yield Text(f"  documents: {lacking}. Run: {install_command(EXTRA)}", style="yellow")


def _named(files: Sequence[Result]) -> str:
    return ", ".join(f"{printable(file['path'])} ({file['bytes'] / 2**20:,.1f} MiB)" for file in files)


def _most(files: Sequence[Result]) -> int:
    return max(int(file["bytes"]) for file in files)


def requests_text(requests: Mapping[str, int], prices: Mapping[str, float]) -> str:
    """Format ``12 LIST, 3 GET: about 0.0001``; the cost is omitted if there are no prices."""
    counts = ", ".join(f"{count:,} {kind.upper()}" for kind, count in requests.items())
    cost = price(requests, prices)
    return counts if cost is None else f"{counts}: about {cost:.4g}"


def print_explanation(figures: Result) -> None:
    """Print how a search was executed, before its hits."""
    matching = f"{figures['matches']:,} of {figures['lines']:,} lines match the filter ({figures['hit_rate']:.1%})"
    if figures["mode"] == "hybrid":
        compared = f"{figures['examined']:,} lines compared by block ({figures['strategy']})"
    else:
        index = figures["index"] or "no vector index"
        compared = f"{figures['examined']:,} vectors compared ({index}, {figures['strategy']})"
    chosen = f"{figures['blocks']:,} blocks, {figures['candidates']:,} lines ranked"
    if figures["blocks_without_definitions"]:
        chosen += f" ({figures['blocks_without_definitions']:,} blocks with no definitions: index --full adds them)"
    times = ", ".join(f"{phase} {seconds * 1000:.1f} ms" for phase, seconds in figures["seconds"].items())
    _print([Text(f"{figures['mode']}: {matching}; {compared}; {chosen}; {times}", "dim"), Text()])


def print_status(result: Result) -> None:
    """Print the statistics of a workspace and its sources."""
    index = result["index_type"] if result["has_index"] else "none"
    last_run = result["last_run"] or {}
    started = str(last_run.get("started", ""))[:19].replace("T", " ")
    facts = {
        "workspace": printable(str(result["workspace"])),
        "documents": f"{result['total_documents']:,}",
        "lines": f"{result['total_lines']:,}",
        "vector index": index,
        "model": printable(str(result["model"])),
        "deltas": f"{result['deltas']:,}",
        "last run": printable(f"{started}  {last_run['run_id']}" if last_run else "none"),
    }
    if "copy_of" in result:
        facts |= {"copy of": printable(str(result["copy_of"])), "pulled": printable(str(result["pulled"])[:19])}
    lines: list[Text | Table] = [Text.assemble((f"{name:<13}", "dim"), str(value)) for name, value in facts.items()]
    _print([*lines, *_sources(result["sources"])])


def print_sources(result: Result) -> None:
    """Print the sources of a workspace."""
    _print(_sources(result["sources"]) or [Text(f"No sources in {printable(str(result['workspace']))}")])


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[bool]) -> None:
    """Print rows of text as a table; columns of ``numbers`` are right-aligned."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column, is_number in zip(columns, numbers, strict=True):
        table.add_column(Text(printable(column)), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    _print([table])


def print_branches(result: Result) -> None:
    """Print the branches of a workspace, sorted by source and name."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    columns = ("branch", "source", "base", "commit", "documents", "deleted", "lines", "MB", "days")
    for column in columns:
        table.add_column(column, justify="right" if column in columns[4:] else "left", overflow="fold")
    for branch in result["branches"]:
        counts = (f"{branch[name]:,}" for name in ("documents", "deleted", "lines"))
        size, age = f"{branch['size_bytes'] / 1e6:.1f}", f"{branch['age_seconds'] / 86_400:.1f}"
        base, commit = ((branch[name] or "")[:12] for name in ("base", "commit"))
        cells = (branch["name"], branch["entity"], base, commit, *counts, size, age)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    _print([table if result["branches"] else Text(f"No branches in {printable(str(result['workspace']))}")])


def print_tokens(result: Result) -> None:
    """Print the tokens of a workspace, oldest first."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("id", "within", "scopes", "created", "expires", "note"):
        table.add_column(column, overflow="fold")
    for each in result["tokens"]:
        within, scopes = each["within"] or "the whole workspace", ", ".join(each["scopes"])
        cells = (each["id"], within, scopes, each["created"][:10], (each["expires"] or "never")[:10], each["note"])
        table.add_row(*(Text(printable(cell)) for cell in cells))
    _print([table if result["tokens"] else Text(f"No tokens in {printable(str(result['workspace']))}")])


def print_runs(result: Result) -> None:
    """Print a workspace's runs, newest first, each with its nonzero statistics."""
    from driftline.flows.output.report_page import in_words  # loads storage

    lines: list[Text | Table] = []
    for run in result["runs"]:
        started, outcome = str(run["started"])[:19].replace("T", " "), run["outcome"]
        facts = f"{started}  {run['kind']:<8}{outcome}  {run['seconds']:.1f} s  {run['run_id']}"
        lines.append(Text(printable(facts), style="" if outcome == "done" else "red"))
        what = in_words(run)
        lines += [Text(f"  {printable(what)}", style="dim")] if what else []
    _print(lines or [Text(f"No runs in {printable(str(result['workspace']))}")])


def print_compact(result: Result) -> None:
    """Print each tenant's statistics before and after a compaction."""
    lines: list[Text | Table] = []
    for part in result["tenants"]:
        folded = sum(source["deltas"] for source in part["folded"])
        done = f"{folded:,} deltas folded, {part['versions_removed']:,} old versions removed"
        lines.append(Text.assemble((printable(part["tenant"]), "bold"), f"  {done}"))
        before, after = part["before"] or {}, part["after"] or {}
        names = ("files", "bytes", "deltas", "fragments", "versions")
        lines += [Text(f"  {name:<12}{before.get(name, 0):>16,} -> {after.get(name, 0):,}") for name in names]
        if after.get("bytes", 0) > before.get("bytes", 0):
            lines.append(Text("  recent versions are kept for readers; a later compaction removes them", style="dim"))
        if after.get("recall_at_10") is not None:
            lines.append(Text(f"  {'search p50':<12}{after['p50_seconds'] * 1000:>20.1f} ms"))
            lines.append(Text(f"  {'recall@10':<12}{after['recall_at_10']:>20.3f}"))
    lines.append(Text(f"{printable(result['workspace'])} compacted in {result['seconds']:.1f} s", style="dim"))
    _print_done(lines)


def print_cleanup(result: Result) -> None:
    """Print the orphans and unrecognized files that a cleanup found, and how many it deleted."""
    lines: list[Text | Table] = []
    for orphan in result["orphans"]:
        facts = f"{orphan['size_bytes']:,} bytes, {orphan['age_seconds'] / 3600:,.1f} h old, {orphan['reason']}"
        lines.append(Text(f"{printable(orphan['path'])}  {facts}"))
    lines += [Text(f"foreign file, kept: {printable(path)}", style="yellow") for path in result["foreign"]]
    if result["published"]:
        lines.append(Text(f"finished {result['published']:,} commits of killed runs"))
    done = "would be deleted (--delete)" if result["dry_run"] else f"found, {result['deleted_count']:,} deleted"
    orphans = f"orphans: {result['orphan_count']:,}{f' {done}' if result['orphan_count'] else ''}"
    scope = "" if result["full"] else " where runs may have left some (--full scans all)"
    lines.append(Text(f"{result['scanned_count']:,} objects scanned{scope}, {orphans}", "dim"))
    (_print if result["dry_run"] else _print_done)(lines)


def print_verify(result: Result) -> None:
    """Print the findings, and how much was checked."""
    lines: list[Text | Table] = [
        Text(f"{finding['kind']}: {printable(finding['entity'])} {printable(finding['path'])}  {finding['detail']}")
        for finding in result["findings"][:_MAX_FINDINGS]
    ]
    more = len(result["findings"]) - len(lines)
    if more > 0:
        lines.append(Text(f"... and {more:,} more (--json shows all)"))
    repaired = f", {result['repaired']:,} repaired" if result["repaired"] else ""
    checked = f"{result['documents']:,} documents, {result['lines']:,} lines and "
    checked += f"{result['memory_entries']:,} memory entries checked"
    lines.append(Text(f"{checked}, findings: {len(result['findings']):,}{repaired}", "dim"))
    _print(lines)


def _sources(sources: Sequence[Result]) -> list[Text | Table]:
    """Return a table of the sources, or two lines per source if the terminal would wrap their names."""
    if not sources:
        return []
    longest = max(len(source["entity"]) + len(source["uri"]) for source in sources)
    if sys.stdout.isatty() and longest + _COUNTS_WIDTH > shutil.get_terminal_size().columns:
        lines: list[Text | Table] = []
        for source in sources:
            lines.append(Text.assemble((printable(source["entity"]), "bold"), f"  {printable(source['uri'])}"))
            lines.append(Text(f"  {source['documents']:,} documents, {source['lines']:,} lines"))
        return lines
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in _SOURCE_COLUMNS:
        numeric = column in ("documents", "lines")
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for source in sources:
        table.add_row(*(Text(_cell(source.get(column, ""))) for column in _SOURCE_COLUMNS))
    return [table]


def _cell(value: object) -> str:
    if isinstance(value, list):
        return printable(" ".join(map(str, value)))
    return f"{value:,}" if isinstance(value, int) else printable(str(value))


_WARNINGS = ("yellow", "red")


def _print_done(parts: Iterable[Text | Table]) -> None:
    """Print a run's report, or only its warnings and failures if the command is quiet."""
    _print(_warnings(parts) if appearance().quiet else parts)


def _warnings(parts: Iterable[Text | Table]) -> Iterator[Text]:
    """Yield the warnings and failures of a report, indented ones below the line that names their source."""
    about: Text | None = None
    for part in parts:
        if not isinstance(part, Text):
            continue
        is_indented, is_warning = part.plain.startswith(" "), part.style in _WARNINGS
        if not is_indented and not is_warning:
            about = part
        if is_warning:
            if is_indented and about is not None:
                yield about
                about = None
            yield part


def _print(parts: Iterable[Text | Table]) -> None:
    width = None if sys.stdout.isatty() else _UNFOLDED
    console = Console(highlight=False, markup=False, emoji=False, width=width, force_terminal=wants_styles())
    with console.capture() as captured:
        for part in parts:
            if isinstance(part, Table) and console.width < _MIN_TABLE_WIDTH <= _width(part):
                for record in _records(part):
                    console.print(record, soft_wrap=True)
            else:
                console.print(_harmless(part), soft_wrap=isinstance(part, Text))
    emit(captured.get())


def _width(table: Table) -> int:
    return sum(max(len(str(cell)) for cell in (column.header, *column.cells)) + 1 for column in table.columns)


def _records(table: Table) -> Iterator[Text]:
    """Yield each table row as lines of name and value, for terminals too narrow for the columns."""
    names = [str(column.header) for column in table.columns]
    indent = max(map(len, names)) + 2
    for row in zip(*(column.cells for column in table.columns), strict=True):
        for name, cell in zip(names, row, strict=True):
            if str(cell):
                yield Text.assemble((name.ljust(indent), "dim"), str(cell))
        yield Text()


def _harmless(part: Text | Table) -> Text | Table:
    """Return ``part`` with control characters escaped."""
    if isinstance(part, Text) and printable(part.plain) != part.plain:
        return Text(printable(part.plain), style=part.style)
    return part


def print_fleets(report: FleetsReport, everything: bool = False) -> None:
    """Print one line per fleet and per repository; by default, only changed, missing and failing repositories."""
    lines: list[Text | Table] = []
    sync = report.sync
    to_index = set(sync.to_index if sync is not None else ())
    for fleet in report.fleets:
        counts = Counter(row.state for row in fleet.repositories)
        told = ", ".join(f"{count:,} {state}" for state, count in sorted(counts.items()))
        if sync is not None:
            changed = sum(row.entity in to_index for row in fleet.repositories)
            told += f"; {changed:,} {'would be indexed' if sync.dry_run else 'changed'}"
        name = (printable(fleet.name), "bold")
        lines.append(Text.assemble(name, f"  {len(fleet.repositories):,} repositories: {told or 'none'}"))
        lines += [Text(f"  {printable(problem)}", "yellow") for problem in fleet.problems]
        table = Table(box=None, padding=(0, 2), show_header=False)
        for row in fleet.repositories:
            if everything or row.entity in to_index or row.state in _SHOWN_STATES or row.pull_requests_problem:
                cells = [row.state, row.path, row.entity, (row.indexed or row.commit)[:10], _about(row)]
                table.add_row(*(Text(printable(cell)) for cell in cells))
        if table.row_count:
            lines.append(table)
    _print(lines)


_MINUTES = "%Y-%m-%dT%H:%M"
_SHOWN_STATES = frozenset({"failing", "missing", "retired", "new"})


def _about(row: RepositoryReport) -> str:
    parts = [row.reason] if row.reason else []
    if row.former_path:
        parts.append(f"renamed from {row.former_path}")
    if row.branches:
        parts.append(f"{len(row.branches):,} {'branch' if len(row.branches) == 1 else 'branches'}")
    if row.skipped_branches:
        parts.append(f"skipped branches: {', '.join(row.skipped_branches)}")
    if row.pull_requests_problem:
        parts.append(f"cannot list pull requests: {row.pull_requests_problem}")
    if row.archived and row.reason != "archived":
        parts.append("archived")
    if row.missed_since:
        parts.append(f"not listed since {row.missed_since:{_MINUTES}}")
    if row.retry_at:
        times = "once" if row.failures == 1 else f"{row.failures:,} times"
        parts.append(f"failed {times}, next attempt after {row.retry_at:{_MINUTES}}")
    if row.lag_seconds >= 1:
        parts.append(f"behind for {row.lag_seconds:,.0f} s")
    return "; ".join(parts)

"""The output of ``driftline ci``: a few lines of text, and the job summary in Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from driftline.flows.ci.run import CiReport
from driftline.storage.errors import DriftlineError

_COUNTS = ("new", "changed", "touched", "deleted")
_SHOWN_FAILURES = 20
_SHOWN_DUPLICATES = 20
_DONE = {"stale": "a newer build has replaced", "skipped": "nothing to do for", "checked": "fresh enough for"}


def lines(report: CiReport) -> list[str]:
    """Plain lines; the first one summarizes the others."""
    commit = (report.build.commit or "the commit")[:12]
    printed = [f"{_headline(report, None)} ({report.seconds:.1f} s)"]
    for source in report.run["sources"] if report.run else ():
        counts = ", ".join(f"{source[name]:,} {name}" for name in _COUNTS)
        printed.append(f"  {source['entity']}: {counts}; {_lines(source)}; {_scope(source)}")
    printed += [f"  failed: {failure['message']}" for failure in (report.run["failed"] if report.run else ())]
    printed += [f"  {run['deployment']}: {run['state']} after {run['seconds']:.1f} s" for run in report.flow_runs]
    printed += [f"  {_place(each)} looks like {_like(each)} ({each['distance']:.2f})" for each in report.duplicates]
    for age in report.ages:
        printed.append(f"  {age.entity}: {age.seconds or 0:,.0f} s behind {commit}")
    return printed


def markdown(report: CiReport, error: DriftlineError | None = None) -> str:
    """A section for the job summary of a CI system, with the error if there is one."""
    parts = [f"### Driftline: {_escape(_headline(report, error))}", ""]
    if error is not None:
        parts += [f"**{_escape(str(error))}**", ""]
    if report.run is not None:
        parts += _table(
            ("source", "scanned", *_COUNTS, "lines embedded", "not indexed"),
            (
                (
                    source["entity"],
                    _scope(source),
                    *(f"{source[name]:,}" for name in _COUNTS),
                    f"{source['lines_embedded']:,}",
                    _skipped(source),
                )
                for source in report.run["sources"]
            ),
        )
        parts += [f"- failed: {_escape(failure['message'])}" for failure in report.run["failed"][:_SHOWN_FAILURES]]
    if report.duplicates:
        pairs = (
            (each["symbol"], _place(each), each["like_symbol"], _like(each), f"{each['distance']:.2f}")
            for each in report.duplicates[:_SHOWN_DUPLICATES]
        )
        parts += ["New functions that look like existing code (distance 0 is the same):", ""]
        parts += _table(("new", "at", "looks like", "at", "distance"), pairs)
    if report.flow_runs:
        rows = ((r["deployment"], r["name"], r["state"], f"{r['seconds']:.1f} s") for r in report.flow_runs)
        parts += _table(("deployment", "run", "state", "time"), rows)
    if report.ages:
        behind = ((a.entity or a.uri, (a.indexed or "")[:12], _behind(a.seconds)) for a in report.ages)
        parts += _table(("source", "indexed", "behind"), behind)
    where = f" into `{_escape(report.run['workspace'])}`" if report.run else ""
    return "\n".join([*parts, f"{report.seconds:.1f} s{where}", "", ""])


def _headline(report: CiReport, error: DriftlineError | None) -> str:
    commit = report.build.commit[:12] if report.build.commit else "unknown commit"
    on = f" on {report.build.branch}" if report.build.branch else ""
    if error is not None:
        return f"failed for {commit}{on}"
    if report.failed:
        return f"partly in step with {commit}{on}"
    if report.index_branch:
        on = f" on {report.build.branch}, as the branch {report.index_branch} of the index"
    return f"{_DONE.get(report.action, 'in step with')} {commit}{on}"


def _place(duplicate: dict[str, Any]) -> str:
    return f"{duplicate['path']}:{duplicate['line']}"


def _like(duplicate: dict[str, Any]) -> str:
    return f"{duplicate['like_path']}:{duplicate['like_line']}"


def _lines(source: dict[str, Any]) -> str:
    reused = f", {source['lines_reused']:,} copied" if source["lines_reused"] else ""
    return f"{source['lines_embedded']:,} lines embedded{reused}"


def _scope(source: dict[str, Any]) -> str:
    if source["base"]:
        return f"changes since {source['base'][:12]}"
    return f"everything ({source['full_scan_reason']})" if source["full_scan_reason"] else "everything"


def _skipped(source: dict[str, Any]) -> str:
    reasons = Counter(str(skip["reason"]) for skip in source["skipped"])
    return ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())


def _behind(seconds: float | None) -> str:
    return "never indexed" if seconds is None else f"{seconds:,.0f} s"


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> list[str]:
    body = [" | ".join(_escape(cell) for cell in row) for row in rows]
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {row} |" for row in body), ""]


def _escape(text: str) -> str:
    """``text`` without Markdown: names of files and branches are untrusted."""
    return re.sub(r"([\\`*_\[\]<>|~#])", r"\\\1", " ".join(text.split()))

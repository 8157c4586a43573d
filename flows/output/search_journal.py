"""Keep a journal of the filtered searches of this user on this machine, and read it by hour.

The journal is outside the workspace, because a search needs only read access and writes nothing to the workspace.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from driftline.storage.environment import user_folder
from driftline.storage.errors import UsageError
from driftline.storage.json_records import from_json, to_json
from driftline.storage.workspace.records import RunRecord
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.request import Explanation

if TYPE_CHECKING:
    import pyarrow as pa


MAX_JOURNAL_BYTES = 1 << 20
"""A larger journal is truncated to its newer half."""
KIND = "search"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One search: when it started, how long it took, and the fraction of lines that passed its filter."""

    started: datetime
    seconds: float
    hit_rate: float


def record_search(workspace: Workspace, explanation: Explanation | None, seconds: float) -> None:
    """Record a search whose filter excluded some lines. Failures to write the journal are ignored."""
    if explanation is None or not explanation.lines or explanation.matches == explanation.lines:
        return
    entry = _Entry(started=datetime.now(UTC), seconds=seconds, hit_rate=explanation.matches / explanation.lines)
    path = _path(workspace)
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(to_json(entry, compact=True) + b"\n")
            size = file.tell()
        if size > MAX_JOURNAL_BYTES:
            kept = path.read_bytes()[-MAX_JOURNAL_BYTES // 2 :].partition(b"\n")[2]
            path.with_suffix(".new").write_bytes(kept)
            path.with_suffix(".new").replace(path)


def searches_table(workspace: Workspace) -> pa.Table:
    """Return this user's searches as a table for SQL."""
    import pyarrow as pa  # a search records itself without loading these

    from driftline.storage.sql import SEARCHES

    found = _entries(workspace)
    moments = [entry.started.astimezone(UTC).replace(tzinfo=None) for entry in found]
    columns = [moments, [entry.seconds for entry in found], [entry.hit_rate for entry in found]]
    return pa.table(columns, schema=SEARCHES)


def searches_by_hour(workspace: Workspace) -> list[RunRecord]:
    """Return this user's searches, newest first: one record per hour, with the median time."""
    by_hour: dict[datetime, list[_Entry]] = defaultdict(list)
    for entry in _entries(workspace):
        by_hour[entry.started.replace(minute=0, second=0, microsecond=0)].append(entry)
    return [_record(by_hour[hour]) for hour in sorted(by_hour, reverse=True)]


def _entries(workspace: Workspace) -> list[_Entry]:
    found: list[_Entry] = []
    path = _path(workspace)
    try:
        lines = path.read_bytes().splitlines() if path is not None else []
    except OSError:
        return []
    for line in lines:
        with contextlib.suppress(ValueError):  # a truncated line
            found.append(from_json(_Entry, line))
    return found


def _record(entries: list[_Entry]) -> RunRecord:
    from statistics import mean, median  # a search records itself without loading these

    last = max(entry.started for entry in entries)
    return RunRecord(
        run_id=f"searches-{last:%Y%m%dT%H}",
        kind=KIND,
        started=last.isoformat(),
        seconds=median(entry.seconds for entry in entries),
        outcome="done",
        report={"searches": len(entries), "hit_rate": round(mean(entry.hit_rate for entry in entries), 4)},
    )


def _path(workspace: Workspace) -> Path | None:
    """Return this user's journal, or None if the user has no home folder, like in some containers."""
    try:
        state = user_folder("XDG_STATE_HOME")
    except UsageError:
        return None
    return state / "driftline" / "searches" / f"{workspace.config.workspace_id}.jsonl"

"""What searches with a filter have cost: a journal of this user on this machine, for ``runs`` and ``report``.

A search needs read access only, so it writes nothing into the workspace. Searches of an hour become one row.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, median

from pydantic import BaseModel, ConfigDict, ValidationError

from driftline.storage.workspace.run_history import RunRecord
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.explanation import Explanation

STATE_VARIABLE = "XDG_STATE_HOME"
MAX_JOURNAL_BYTES = 1 << 20
"""A longer journal loses its older half."""
KIND = "search"


class _Entry(BaseModel):
    """One search: when it began, its time, and the share of the lines that its filter allowed."""

    model_config = ConfigDict(frozen=True)

    started: datetime
    seconds: float
    hit_rate: float


def record_search(workspace: Workspace, explanation: Explanation | None, seconds: float) -> None:
    """Write down a search whose filter left some lines out. A journal that cannot be written is no failure."""
    if explanation is None or not explanation.lines or explanation.matches == explanation.lines:
        return
    entry = _Entry(started=datetime.now(UTC), seconds=seconds, hit_rate=explanation.matches / explanation.lines)
    path = _path(workspace, os.environ)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(entry.model_dump_json().encode() + b"\n")
            size = file.tell()
        if size > MAX_JOURNAL_BYTES:
            kept = path.read_bytes()[-MAX_JOURNAL_BYTES // 2 :].partition(b"\n")[2]
            path.with_suffix(".new").write_bytes(kept)
            path.with_suffix(".new").replace(path)


def searches_by_hour(workspace: Workspace, environ: Mapping[str, str] | None = None) -> list[RunRecord]:
    """The searches of this user, newest first: one record for each hour, with their median time."""
    by_hour: dict[datetime, list[_Entry]] = defaultdict(list)
    try:
        lines = _path(workspace, os.environ if environ is None else environ).read_bytes().splitlines()
    except OSError:
        return []
    for line in lines:
        with contextlib.suppress(ValidationError):  # a line that was cut
            entry = _Entry.model_validate_json(line)
            by_hour[entry.started.replace(minute=0, second=0, microsecond=0)].append(entry)
    return [_record(by_hour[hour]) for hour in sorted(by_hour, reverse=True)]


def _record(entries: list[_Entry]) -> RunRecord:
    last = max(entry.started for entry in entries)
    return RunRecord(
        run_id=f"searches-{last:%Y%m%dT%H}",
        kind=KIND,
        started=last.isoformat(),
        seconds=median(entry.seconds for entry in entries),
        outcome="done",
        report={"searches": len(entries), "hit_rate": round(mean(entry.hit_rate for entry in entries), 4)},
    )


def _path(workspace: Workspace, environ: Mapping[str, str]) -> Path:
    state = environ.get(STATE_VARIABLE) or "~/.local/state"
    return Path(state).expanduser() / "driftline" / "searches" / f"{workspace.config.workspace_id}.jsonl"

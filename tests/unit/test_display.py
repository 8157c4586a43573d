"""Text output."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from driftline.flows.commands import status
from driftline.flows.output.plain_text import print_json, print_search
from driftline.flows.output.progress import ConcurrentProgress, NullProgress, QuietProgress
from driftline.flows.output.terminal_reports import print_index, print_sources, print_status
from driftline.storage.workspace.records import WorkspaceStats
from driftline.tasks.search.hits import _around
from driftline.tasks.search.ranking import Window
from driftline.tasks.task_context import CountReporter
from driftline.tasks.text import MAX_TEXT_BYTES


def hit(**changes: Any) -> dict[str, Any]:
    values = {"path": "a.py", "source": "org:o/project:p/source:s", "line": 10, "start_line": 9, "end_line": 11}
    values |= {"score": 0.5, "distance": 0.5, "rank": 1, "text": "ten", "context": ["nine", "ten", "eleven"]}
    return values | changes


def test_a_result_is_path_and_line_and_numbered_context(capsys: pytest.CaptureFixture[str]) -> None:
    print_search({"query": "q", "results": [hit()]})
    assert capsys.readouterr().out == "a.py:10  0.50\n   9- nine\n  10: ten\n  11- eleven\n"


def test_a_weak_result_shows_only_its_best_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_search({"query": "q", "results": [hit(label="likely"), hit(label="weak", path="b.py")]})
    likely, weak = capsys.readouterr().out.split("\n\n")
    assert (likely.count("\n"), weak) == (3, "b.py:10  0.50 weak\n  10: ten\n")


def test_a_result_without_context_shows_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_search({"query": "q", "results": [hit(context=[])]})
    assert capsys.readouterr().out == "a.py:10  0.50\n  10: ten\n"


def test_results_of_several_sources_name_theirs(capsys: pytest.CaptureFixture[str]) -> None:
    print_search({"query": "q", "results": [hit(), hit(source="org:o/project:p/source:t")]})
    out = capsys.readouterr().out
    assert "source:s\n" in out
    assert "source:t\n" in out


def test_control_characters_of_files_never_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_search({"query": "q", "results": [hit(path="a\n\x1b[2J.py", context=["\x1b]0;x\x07", "t\ten", "\x9b1m"])]})
    out = capsys.readouterr().out
    assert not set(out) & {"\x1b", "\x07", "\x9b", "\t"}
    assert out.startswith(r"a\x0a\x1b[2J.py:10")


def test_long_lines_and_markup_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    line = "[bold]:smile:[/nonsense] " + "x" * 500
    print_search({"query": "q", "results": [hit(context=[], text=line)]})
    assert line in capsys.readouterr().out


def test_json_survives_undecodable_names(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"path": "\udcff\u2028é"})
    assert capsys.readouterr().out == '{"path": "\\udcff\\u2028\\u00e9"}\n'


def test_an_index_report_counts_what_was_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    skipped = [
        {"path": "a", "reason": "binary"},
        {"path": "b", "reason": "binary"},
        {"path": ".env", "reason": "secret"},
    ]
    counts = {"new": 1200, "changed": 2, "touched": 3, "unchanged": 4, "deleted": 5}
    source = {"entity": "source:s", "uri": "/s", "skipped": skipped, "lines_embedded": 7, "lines_total": 8, **counts}
    result = {
        "run_id": "r",
        "workspace": "/w",
        "sources": [source],
        "seconds": 1.25,
        "requests": {"list": 2, "get": 30},
    }
    print_index(result, dry_run=False, prices={"list": 5.0})
    out = capsys.readouterr().out
    assert "2 LIST, 30 GET: about 0.01" in out
    assert "1,200 new, 2 changed, 3 touched, 4 unchanged, 5 deleted" in out
    assert "2 binary, 1 secret" in out


def test_counts_of_zero_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    counts = dict.fromkeys(("new", "changed", "touched", "unchanged", "deleted"), 0)
    source = {"entity": "source:s", "uri": "/s", "skipped": [], "lines_embedded": 0, "lines_total": 0}
    result = {"run_id": "r", "workspace": "/w", "seconds": 1.25, "requests": {}}
    for found, shown in ((counts, "documents: none\n"), ({**counts, "changed": 1}, "documents: 1 changed\n")):
        print_index({**result, "sources": [source | found]}, dry_run=False)
        assert shown in capsys.readouterr().out


def test_a_source_takes_two_lines_of_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"entity": "org:o/project:p/source:web", "uri": "/" + "u" * 50, "documents": 1234, "lines": 5}
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_sources({"workspace": "/w", "sources": [source]})
    out = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out)
    assert out.splitlines() == [f"org:o/project:p/source:web  {source['uri']}", "  1,234 documents, 5 lines"]


def test_the_status_of_an_empty_workspace_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"total_documents": 0, "total_lines": 0, "has_index": False, "index_type": None, "deltas": 0}
    print_status({"workspace": "/w", "model": None, "sources": (), "last_run": None, **figures})
    assert "vector index none" in capsys.readouterr().out


def test_without_a_terminal_no_source_is_folded(capsys: pytest.CaptureFixture[str]) -> None:
    source = {"entity": "org:o/project:p/source:" + "s" * 90, "uri": "/" + "u" * 90, "documents": 1234, "lines": 5}
    print_sources({"workspace": "/w", "sources": [source]})
    assert capsys.readouterr().out.splitlines()[1].split() == [source["entity"], source["uri"], "1,234", "5"]


def test_a_disconnected_reader_is_not_an_error() -> None:
    code = (
        "from driftline.flows.output.plain_text import print_json\nfor _ in range(5000): print_json({'x': 'y' * 100})"
    )
    done = subprocess.run(
        ["bash", "-c", '"$1" -c "$2" | head -n 1 >/dev/null; echo "${PIPESTATUS[0]}"', "bash", sys.executable, code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_quiet_progress_reports_a_figure_rarely() -> None:
    now = 0.0
    stream = io.StringIO()
    progress = QuietProgress(stream, interval=5.0, clock=lambda: now)
    progress.phase("embed", total=1000)
    for second in range(12):
        now = float(second)
        progress.advance(documents=10, lines=100)
    progress.message("careful")
    assert stream.getvalue().splitlines() == [
        "driftline: embed: 60 of 1,000 documents, 600 lines, 120 lines/s, 1 min 18 s left, 5 s",
        "driftline: embed: 110 of 1,000 documents, 1,100 lines, 110 lines/s, 1 min 21 s left, 10 s",
        "driftline: careful",
    ]


class Counted(NullProgress):
    """Records its calls."""

    def __init__(self) -> None:
        self.documents = self.lines = 0

    def advance(self, documents: int = 1, lines: int = 0) -> None:
        self.documents += documents
        self.lines += lines


def test_a_phase_shows_no_more_documents_than_it_has_although_a_task_ran_twice() -> None:
    counted = Counted()
    early = ConcurrentProgress(counted)
    early.phase("embedding", 10)
    for _ in range(3):
        early.advance(4, 40)
    assert (counted.documents, counted.lines) == (10, 120)
    early.phase("building indexes")
    early.advance(4)
    assert counted.documents == 14


def test_a_running_task_reports_new_counts_at_intervals() -> None:
    now, outcome = 0.0, list[tuple[int, int]]()
    reporter = CountReporter(lambda documents, lines: outcome.append((documents, lines)), 1.0, lambda: now)
    for tenth in range(1, 26):
        now = tenth / 10
        reporter.add(documents=1)
    reporter.add(lines=50)
    assert outcome == [(10, 0), (10, 0)]
    assert (reporter.documents, reporter.lines) == (20, 0)
    now = 3.5
    reporter.add(lines=50)
    assert outcome[-1] == (5, 100)


def test_on_a_terminal_the_best_line_stands_out_and_a_local_file_is_a_link(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "200"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    local, remote = hit(path="a b/ü.py"), hit(source="org:o/project:p/source:bucket")
    print_search({"query": "q", "results": [local, remote]}, {local["source"]: "/tree"})
    out = capsys.readouterr().out
    assert out.count("\x1b]8;") == 2  # opened and closed, once
    assert "file:///tree/a%20b/%C3%BC.py\x1b\\" in out
    assert "\x1b[1;33mten" in out
    assert "\x1b[2mnine" in out


def test_a_moved_or_deleted_line_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    moved = hit(context=[], freshness="moved", line_now=12)
    others = [hit(context=[], freshness=state) for state in ("gone", "fresh", None)]
    print_search({"query": "q", "results": [moved, *others]})
    heads = [line for line in capsys.readouterr().out.splitlines() if line.startswith("a.py")]
    assert heads == ["a.py:12  0.50  moved from line 10", "a.py:10  0.50  gone", "a.py:10  0.50", "a.py:10  0.50"]


def test_a_hit_without_a_score_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    print_search({"query": "q", "results": [hit(score=None, distance=None, context=[])]})
    assert capsys.readouterr().out == "a.py:10\n  10: ten\n"


def test_the_advice_for_unsupported_files_names_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    counts = dict.fromkeys(("new", "changed", "touched", "unchanged", "deleted", "lines_embedded", "lines_total"), 0)
    sizes = {"huge.log": MAX_TEXT_BYTES + 1, "large.pdf": MAX_TEXT_BYTES, "large.c": 5 * 2**20}
    large = [{"path": path, "bytes": size} for path, size in sizes.items()]
    source = {"entity": "source:s", "uri": "/s", "skipped": [], "too_large": large, **counts}
    print_index({"sources": [source], "requests": {}, "workspace": "ws", "seconds": 1.0}, dry_run=True)
    printed = capsys.readouterr().out
    assert "too large: huge.log (512.0 MiB); no option accepts files above 512 MiB: split them" in printed
    assert f"large.pdf (512.0 MiB); --max-document-bytes {MAX_TEXT_BYTES} accepts them" in printed
    assert f"large.c (5.0 MiB); --max-file-bytes {5 * 2**20} accepts them" in printed


def test_status_says_when_the_last_run_was(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"total_documents": 1, "total_lines": 2, "has_index": False, "index_type": None, "deltas": 1}
    last = {"run_id": "01M8G5N4", "started": "2026-11-28T04:12:16.123+00:00"}
    print_status({"workspace": "/w", "model": None, "sources": (), "last_run": last, **figures})
    assert "last run     2026-11-28 04:12:16  01M8G5N4\n" in capsys.readouterr().out


@pytest.mark.parametrize(("n_lines", "shown"), [(0, (7, 7)), (1, (6, 8)), (2, (5, 9)), (3, (1, 15))])
def test_little_context_surrounds_the_best_line_only(n_lines: int, shown: tuple[int, int]) -> None:
    window = Window("org:o", "a.py", "", 7, 0.5, "token", 1.0, first=4, last=12)
    assert _around(window, n_lines, within_definition=True) == shown


@pytest.mark.parametrize(("project", "is_named"), [("org:default/project:default", False), ("org:o/project:p", True)])
def test_the_next_step_updates_the_source_of_this_folder(
    project: str, is_named: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = {"entity": f"{project}/source:s", "uri": os.path.realpath(tmp_path), "documents": 1, "lines": 1}
    stats = WorkspaceStats(1, 1, False, None, sources=(source,))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(status, "open_for_reading", lambda _: SimpleNamespace(stats=lambda: stats))
    assert status.show_next_steps() == 0
    assert (f"index . --entity {project}/source:s  update" in capsys.readouterr().out) == is_named

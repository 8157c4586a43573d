"""``driftline watch`` and ``driftline web --watch``: saved lines are found, deleted lines are not."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from watchfiles import Change

import driftline as dl
from driftline.flows.config.index_request import IndexRequest, SourceRequest
from driftline.flows.output.run_reports import IndexReport
from driftline.flows.runs import watch
from driftline.flows.runs.index import index_sources
from driftline.flows.runs.watch import Watcher, entity_at, watcher_of, watching_sources
from driftline.storage.errors import DriftlineError, LeaseHeld
from driftline.storage.workspace.workspace import Workspace
from tests.support.waiting import PATIENCE_SECONDS, until
from tests.support.web import ask


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub/a.md").write_text("the first line\n")
    (folder / "b.md").write_text("the second line\n")
    return folder


class Watching:
    """A watcher in a thread, with its reports and errors."""

    def __init__(self, tree: Path, workspace: Path, model: Path) -> None:
        self.reports: list[IndexReport] = []
        self.errors: list[DriftlineError] = []
        self.workspace = str(workspace)
        self._stop = threading.Event()
        request = IndexRequest((str(tree),), self.workspace, model=str(model), executor="inline")
        watcher = Watcher(request, self.reports.append, self.errors.append)
        self._thread = threading.Thread(target=watcher.run, args=(self._stop,))
        self._thread.start()
        until(lambda: bool(self.reports))

    def paths(self) -> set[str]:
        from driftline.tasks.search.documents import document_page

        page = document_page(Workspace.open(self.workspace), limit=1_000)
        return {document.path for document in page.documents if document.reason is None}

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()


def save(path: Path, text: str) -> None:
    """Write a file atomically: otherwise a watcher may see an empty file."""
    written = path.parents[1] / f"{path.name}.new"
    written.write_text(text)
    written.rename(path)


@pytest.fixture
def watching(tree: Path, tmp_path: Path, tiny_model: Path) -> Iterator[Watching]:
    made = Watching(tree, tmp_path / "ws", tiny_model)
    yield made
    made.stop()


def test_saved_moved_and_deleted_files_are_indexed(watching: Watching, tree: Path, tmp_path: Path) -> None:
    assert watching.paths() == {"sub/a.md", "b.md"}
    save(tree / "c.md", "a zebra crosses\n")
    until(lambda: "c.md" in watching.paths())
    hits = dl.search(watching.workspace, "zebra", mode="text").results
    assert [(hit.path, hit.text) for hit in hits] == [("c.md", "a zebra crosses")]
    written = tree / ".c.md.swp"  # editors replace a file with a new one
    written.write_text("a giraffe crosses\n")
    written.rename(tree / "c.md")
    until(lambda: bool(dl.search(watching.workspace, "giraffe", mode="text").results))
    (tree / "sub").rename(tmp_path / "elsewhere")
    until(lambda: watching.paths() == {"b.md", "c.md"})
    (tmp_path / "elsewhere").rename(tree / "back")
    until(lambda: watching.paths() == {"b.md", "c.md", "back/a.md"})
    (tree / "b.md").unlink()
    until(lambda: watching.paths() == {"c.md", "back/a.md"})
    assert watching.errors == []


def test_a_file_or_folder_of_the_same_name_replaces_another(watching: Watching, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/c.md").write_text("the third line\n")
    (tree / "b.md").unlink()  # a file becomes a folder
    (tmp_path / "other").rename(tree / "b.md")
    until(lambda: watching.paths() == {"sub/a.md", "b.md/c.md"})
    (tree / "sub").rename(tmp_path / "before")  # a folder becomes another folder
    (tree / "b.md").rename(tree / "sub")
    until(lambda: watching.paths() == {"sub/c.md"})
    shutil.rmtree(tree / "sub")  # and a folder becomes a file
    save(tree / "sub", "the fourth line\n")
    until(lambda: watching.paths() == {"sub"})


def test_a_file_that_changes_under_its_other_name_is_indexed(watching: Watching, tree: Path, tmp_path: Path) -> None:
    (tree / "link.md").hardlink_to(tree / "b.md")
    until(lambda: "link.md" in watching.paths())
    with (tree / "link.md").open("a") as file:
        file.write("a zebra crosses\n")
    crossing = "SELECT path FROM lines WHERE text LIKE '%zebra%'"
    until(lambda: len(dl.sql(watching.workspace, crossing)) == 2)


def test_a_changed_ignore_file_causes_a_full_comparison(watching: Watching, tree: Path) -> None:
    (tree / ".gitignore").write_text("sub/\n")
    until(lambda: "sub/a.md" not in watching.paths())
    (tree / ".gitignore").unlink()
    until(lambda: "sub/a.md" in watching.paths())


def test_a_save_reads_only_the_saved_file(watching: Watching, tree: Path) -> None:
    save(tree / "b.md", "another second line\n")
    until(lambda: len(watching.reports) >= 2)
    (source,) = watching.reports[1].sources
    assert {str(state): count for state, count in source.states.items() if count} == {"changed": 1}


def test_the_deletion_of_a_large_folder_causes_a_full_comparison(
    tree: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = IndexRequest((str(tree),), str(tmp_path / "ws"), model=str(tiny_model), executor="inline")
    index_sources(request)
    shutil.rmtree(tree / "sub")
    watcher = Watcher(request, print, print)
    deleted = [(Change.deleted, str(tree / "sub"))]
    monkeypatch.setattr(watch, "MAX_CHANGED_PATHS", 2)
    assert watcher._paths(str(tree), deleted) == ("sub", "sub/a.md")
    monkeypatch.setattr(watch, "MAX_CHANGED_PATHS", 1)
    assert watcher._paths(str(tree), deleted) is None


@pytest.mark.parametrize("name", [b"gr\xf6\xdfe.txt", b"\xff/x.txt", b"sub/\xfe"])
def test_a_name_that_is_not_utf8_does_not_end_it(
    watching: Watching, tree: Path, monkeypatch: pytest.MonkeyPatch, name: bytes
) -> None:
    monkeypatch.setattr(watch, "RETRY_SECONDS", 0.5)
    path = os.fsencode(tree) + b"/" + name
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Path(os.fsdecode(path)).write_text("from an old archive\n")
    (tree / "c.md").write_text("a zebra crosses\n")
    until(lambda: "c.md" in watching.paths())
    Path(os.fsdecode(path)).unlink()
    (tree / "d.md").write_text("a giraffe crosses\n")
    until(lambda: "d.md" in watching.paths())
    assert watching.errors == []


def test_changes_are_found_beyond_the_limit_of_inotify(
    tree: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> Iterator[set[tuple[object, str]]]:
        raise OSError('OS file watch limit reached. about ["tree"] (Error { kind: MaxFilesWatch, paths: ["tree"] })')

    monkeypatch.setattr(watch, "RETRY_SECONDS", 0.5)
    monkeypatch.setattr(watch, "watch", refused)
    watching = Watching(tree, tmp_path / "ws", tiny_model)
    save(tree / "c.md", "a zebra crosses\n")
    until(lambda: "c.md" in watching.paths())
    watching.stop()


@pytest.mark.parametrize("kind", ["moved", "deleted"])
def test_a_replaced_folder_is_still_watched(
    watching: Watching, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(watch, "RETRY_SECONDS", 0.5)
    for number in range(2):
        following = tmp_path / f"following{number}"
        following.mkdir()
        (following / f"{number}.md").write_text("a zebra crosses\n")
        if kind == "deleted":
            shutil.rmtree(tree)
        else:
            tree.rename(tmp_path / f"before{number}")
        if kind != "moved":
            time.sleep(1.0)  # it is missing for a while
        following.rename(tree)
        until(lambda expected={f"{number}.md"}: watching.paths() == expected)  # type: ignore[misc]
        (tree / "later.md").write_text("a giraffe crosses\n")
        until(lambda: "later.md" in watching.paths())
    assert {error.kind for error in watching.errors} <= {"source_not_found"}
    assert len(watching.errors) <= 2


def counted_runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...] | None]:
    """The paths of each run from now on that has ended; None is a comparison of everything."""
    runs: list[tuple[str, ...] | None] = []

    def run(request: IndexRequest) -> IndexReport:
        try:
            return index_sources(request)
        finally:
            runs.append(request.paths)

    monkeypatch.setattr(watch, "index_sources", run)
    return runs


def test_a_refused_deletion_is_reported_once_with_a_fix(
    watching: Watching, tree: Path, monkeypatch: pytest.MonkeyPatch, driftline: Callable[..., object]
) -> None:
    monkeypatch.setattr(watch, "RETRY_SECONDS", 0.1)
    (tree / "big").mkdir()
    for number in range(120):
        (tree / f"big/{number}.md").write_text(f"file {number}\n")
    until(lambda: len(watching.paths()) == 122)
    shutil.rmtree(tree / "big")
    until(lambda: bool(watching.errors))
    (tree / "c.md").write_text("a zebra crosses\n")
    until(lambda: "c.md" in watching.paths())
    runs = counted_runs(monkeypatch)
    monkeypatch.setattr(watch, "COMPARE_SECONDS", 0.1)
    until(lambda: runs.count(None) >= 5, "several comparisons of everything")
    assert [error.kind for error in watching.errors] == ["deletion_refused"] * len(watching.errors)
    assert len({str(error) for error in watching.errors}) == len(watching.errors) <= 2  # one more document than before
    monkeypatch.setattr(watch, "COMPARE_SECONDS", 600.0)
    command = shlex.split(watching.errors[-1].fix.partition("run: ")[2])
    assert command[:2] == ["driftline", "index"]
    outcome: object = driftline(*command[1:], "--wait", str(PATIENCE_SECONDS))
    assert getattr(outcome, "code") == 0  # noqa: B009 -- the fixture's type is that of the command line
    until(lambda: len(watching.paths()) == 3)


def test_failed_sources_are_retried(watching: Watching, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [LeaseHeld("Another run holds the lease", "tree")]

    def failing(request: IndexRequest) -> IndexReport:
        if failures:
            raise failures.pop()
        return index_sources(request)

    monkeypatch.setattr(watch, "RETRY_SECONDS", 0.5)
    monkeypatch.setattr(watch, "index_sources", failing)
    save(tree / "c.md", "a zebra crosses\n")
    until(lambda: "c.md" in watching.paths())
    assert [error.kind for error in watching.errors] == ["lease_held"]


def test_changes_without_an_event_are_found_by_comparison(
    watching: Watching, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled = threading.Event()

    def paths(*_: object) -> tuple[str, ...]:
        handled.set()
        return ()  # as if another file had changed

    monkeypatch.setattr(watch.Watcher, "_paths", paths)
    save(tree / "c.md", "a zebra crosses\n")
    assert handled.wait(PATIENCE_SECONDS)
    assert "c.md" not in watching.paths()
    monkeypatch.setattr(watch, "COMPARE_SECONDS", 0.1)
    until(lambda: "c.md" in watching.paths())


def test_only_a_local_folder_is_watched(driftline: Callable[..., object], tmp_path: Path) -> None:
    for source in ("memory://bucket/x", str(tmp_path / "none")):
        outcome: object = driftline("watch", source, "--workspace", tmp_path / "ws")
        assert getattr(outcome, "code") == 2  # noqa: B009 -- the fixture's type is that of the command line
    assert not (tmp_path / "ws").exists()


@contextmanager
def watched(source: str, workspace: str) -> Iterator[None]:
    """Watch a source, as ``driftline watch`` does, until the context exits."""
    stop = threading.Event()
    watcher = watcher_of(source, workspace, entity_at(source, workspace))
    thread = threading.Thread(target=watcher.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE_SECONDS)


@pytest.mark.parametrize("command", ["watch", "web"])
def test_a_source_keeps_its_entity_and_filters(command: str, tree: Path, tmp_path: Path, tiny_model: Path) -> None:
    workspace, entity = str(tmp_path / "ws"), "org:acme/project:alpha/source:notes"
    source = SourceRequest(str(tree), entity, exclude=("sub/**",))
    index_sources(IndexRequest((source,), workspace, model=str(tiny_model), executor="inline"))
    save(tree / "c.md", "a zebra crosses\n")
    with watching_sources(Workspace.open(workspace)) if command == "web" else watched(str(tree), workspace):
        until(lambda: bool(dl.search(workspace, "zebra", mode="text").results))
        narrower = replace(source, exclude=("sub/**", "b.md"))
        index_sources(IndexRequest((narrower,), workspace, executor="inline", wait_seconds=PATIENCE_SECONDS))
        save(tree / "d.md", "a giraffe crosses\n")
        until(lambda: bool(dl.search(workspace, "giraffe", mode="text").results))
    assert [str(known) for known, _ in Workspace.open(workspace).sources()] == [entity]
    assert {each.path for each in dl.open(workspace).documents() if each.reason is None} == {"c.md", "d.md"}


@pytest.mark.parametrize("command", ["watch", "web"])
def test_a_process_indexes_what_is_saved_until_it_is_interrupted(command: str, tree: Path) -> None:
    arguments = ["watch"] if command == "watch" else ["web", "--watch", "--port", "0"]
    run = [sys.executable, "-m", "driftline", *arguments]
    with subprocess.Popen(run, cwd=tree, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stderr is not None
        said = iter(process.stderr)
        try:
            line = next(line for line in said if "serving" in line or "2 new" in line)
            if command == "web":
                location = re.search(r"serving (http://\S+/)", line)
                assert location is not None
                where = urlsplit(location[1]).netloc
                next(line for line in said if "unchanged" in line)
            save(tree / "c.md", "a zebra crosses\n")
            next(line for line in said if "1 new" in line)
            if command == "web":
                found = json.loads(ask(where, "/api/v1/search?q=zebra&mode=text").body)["results"]
                assert [hit["path"] for hit in found] == ["c.md"]
            process.send_signal(signal.SIGINT)
            rest = "".join(said)
            assert process.wait(PATIENCE_SECONDS) in (0, -signal.SIGINT)
            assert command == "web" or "continue with: driftline watch" in rest
        finally:
            process.kill()
    hits = dl.search(str(tree / ".driftline"), "zebra", mode="text").results
    assert [hit.path for hit in hits] == ["c.md"]

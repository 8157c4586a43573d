"""Update a local tree's index as it is edited: each batch of changes triggers a run over its paths."""

from __future__ import annotations

import logging
import os
import shlex
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from watchfiles import Change, watch
from watchfiles._rust_notify import WatchfilesRustInternalError

from driftline.flows.config.index_request import IndexRequest
from driftline.flows.output.plain_text import warn
from driftline.flows.output.run_reports import IndexReport, SourceReport
from driftline.flows.runs.index import index_sources
from driftline.storage.documents import DocumentState
from driftline.storage.entities import Entity
from driftline.storage.errors import DeletionRefused, DriftlineError, SourceNotFound, UsageError, WorkspaceNotFound
from driftline.storage.globs import is_unicode
from driftline.storage.sources.source import known_source, open_source
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.git.commits import MAX_CHANGED_PATHS
from driftline.tasks.scanning.path_patterns import IGNORE_FILES

log = logging.getLogger(__name__)

QUIET_MILLISECONDS = 50
"""Changes closer together than this are batched: to save a file, an editor writes, renames and deletes."""
LONGEST_MILLISECONDS = 1_000
"""Maximum duration of a batch: a file that is written continuously must not delay the others."""
COMPARE_SECONDS = 600.0
"""Interval between full comparisons, which find changes that a file system does not report."""
RETRY_SECONDS = 5.0
_PAUSE_FACTOR = 10
"""If changes are not reported, wait this many times the last comparison's duration before the next comparison."""
_POLL_MILLISECONDS = 200
_STEERING = (*IGNORE_FILES, ".gitattributes", ".gitmodules")
"""Files that affect which other files are selected."""


@dataclass(frozen=True, slots=True)
class Watcher:
    """Watch the only source of ``request``, a local folder.

    ``on_report`` receives the report of each run that changed something, and ``on_error`` receives each error once. A
    failed run is retried with its changes, unless deletions were refused.
    """

    request: IndexRequest
    on_report: Callable[[IndexReport], None]
    on_error: Callable[[DriftlineError], None]

    def run(self, stop: threading.Event | None = None) -> None:
        """Update the whole index, then run for each batch of changes, until ``stop`` or an interrupt.

        Raises UsageError if the source is not a local folder, and propagates errors from the first run.
        """
        root = self._root()
        batches = self._batches(root, stop or threading.Event())
        next(batches)  # no later change is missed
        self._index(None)
        pending, compared, retry_at = set[tuple[Change, str]](), time.monotonic(), 0.0
        is_lost, pause, reported = False, 0.0, dict[str, str]()
        for batch in batches:
            is_lost |= batch is None
            pending |= batch or set()
            now = time.monotonic()
            is_due = now - compared > (max(pause, RETRY_SECONDS) if is_lost else COMPARE_SECONDS)
            if not (pending or is_due) or now < retry_at:
                continue
            try:
                root = self._root() if is_lost else root
                paths = None if is_due else self._paths(root, pending)
                if paths != ():
                    self._index(paths)
            except DeletionRefused as error:  # everything else is indexed, and a retry would be refused again
                self._report_once(reported, self._with_a_way_on(error))
            except DriftlineError as error:
                self._report_once(reported, error)
                retry_at = time.monotonic() + RETRY_SECONDS
                continue
            else:
                reported = {
                    kind: message
                    for kind, message in reported.items()
                    if paths is not None and kind == DeletionRefused.kind
                }
            pending.clear()
            if paths is None:
                is_lost, compared = False, time.monotonic()
                pause = _PAUSE_FACTOR * (compared - now)

    def _report_once(self, reported: dict[str, str], error: DriftlineError) -> None:
        """Report an error, unless it equals the last one of its kind."""
        if reported.get(error.kind) != str(error):
            reported[error.kind] = str(error)
            self.on_error(error)

    def _with_a_way_on(self, error: DeletionRefused) -> DeletionRefused:
        (source,) = self.request.given
        entity = self.request.entity
        command = ["driftline", "index", source if isinstance(source, str) else source.uri]
        command += ["--entity", entity] if entity else []
        command += ["--workspace", str(self.request.workspace), "--max-delete-fraction", "1"]
        return DeletionRefused(error.what, error.where, f"To delete them, run: {shlex.join(command)}")

    def _root(self) -> str:
        (uri,) = self.request.given
        source = open_source(uri if isinstance(uri, str) else uri.uri)
        if not source.is_local or not os.path.isdir(source.uri):
            raise UsageError("Only a local folder can be watched", source.uri, "Schedule runs: driftline deploy")
        return os.path.realpath(source.uri)

    def _batches(self, root: str, stop: threading.Event) -> Iterator[set[tuple[Change, str]] | None]:
        """Yield batches of changes in ``root``; the first batch is empty, and so are batches from quiet times.

        None means that anything may have changed: the folder was replaced, or changes cannot be reported.
        """
        is_lost = is_reported = False
        while not stop.is_set():
            identity = self._identity()
            if identity is None:
                self._wait_for(root, stop)
                is_lost = True
                continue
            try:
                for batch in self._changes(os.path.realpath(self._named()), stop):
                    if self._identity() != identity:
                        is_lost = True
                        break
                    yield None if is_lost else batch
                    is_lost = False
            except FileNotFoundError:
                is_lost = True
            except (OSError, WatchfilesRustInternalError) as error:
                # The inotify limit was reached, or a name is not UTF-8; such files are never indexed.
                if is_lost and not is_reported:
                    log.warning("changes in %s are not reported, so everything is compared frequently: %s", root, error)
                    is_reported = True
                is_lost = True
                stop.wait(_POLL_MILLISECONDS / 1000)
                yield None

    def _named(self) -> str:
        (source,) = self.request.given
        return os.path.expanduser((source if isinstance(source, str) else source.uri).removeprefix("file://"))

    def _identity(self) -> tuple[int, int] | None:
        """Return the identity of the folder at the source's path, or None if there is none."""
        try:
            status = os.stat(self._named())
        except OSError:
            return None
        return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None

    def _wait_for(self, root: str, stop: threading.Event) -> None:
        self.on_error(SourceNotFound("The watched folder no longer exists", root, "The index keeps its documents."))
        while self._identity() is None and not stop.wait(_POLL_MILLISECONDS / 1000):
            pass

    def _changes(self, root: str, stop: threading.Event) -> Iterator[set[tuple[Change, str]]]:
        # Runs write to the workspace, and git to its own folder.
        workspace = os.path.realpath(self.request.workspace)
        within = f"{os.sep}.git{os.sep}"

        def is_user_change(_: Change, path: str) -> bool:
            return within not in path and path != workspace and not path.startswith(workspace + os.sep)

        return watch(
            root,
            watch_filter=is_user_change,
            step=QUIET_MILLISECONDS,
            debounce=LONGEST_MILLISECONDS,
            rust_timeout=_POLL_MILLISECONDS,
            yield_on_timeout=True,
            stop_event=stop,
            ignore_permission_denied=True,
        )

    def _index(self, paths: tuple[str, ...] | None) -> None:
        report = index_sources(replace(self.request, paths=paths))
        if paths is None or any(map(_has_changed, report.sources)):
            self.on_report(report)

    def _paths(self, root: str, changes: Iterable[tuple[Change, str]]) -> tuple[str, ...] | None:
        """Return the files that ``changes`` may affect, relative to ``root``, or None if any file may be affected."""
        found, gone = set[str](), set[str]()
        for change, path in changes:
            relative = os.path.relpath(path, root).replace(os.sep, "/")
            if relative.rpartition("/")[2] in _STEERING:
                return None
            # A folder that was moved in or out is reported as a single change, and another folder may now have its
            # name. The same applies to a folder that became accessible again.
            found.add(relative)
            if change is Change.deleted:
                gone.add(f"{relative}/")
            if os.path.isdir(path):
                found.update(_files_below(root, path))
            elif _has_other_names(path):
                return None
            if len(found) > MAX_CHANGED_PATHS:
                return None
        if gone:
            found.update(self._known_below(gone))
            if len(found) > MAX_CHANGED_PATHS:
                return None
        return tuple(sorted(name for name in found if is_unicode(name)))

    def _known_below(self, folders: Iterable[str]) -> Iterator[str]:
        """Yield the indexed documents under ``folders``; none under a path that was a file."""
        prefixes = [folder for folder in folders if is_unicode(folder)]
        workspace = Workspace.open(self.request.workspace, self.request.storage_options)
        for entity in self._entities(workspace):
            yield from workspace.manifest(entity).read(prefixes, columns=["path"])["path"].to_pylist()

    def _entities(self, workspace: Workspace) -> list[Entity]:
        root = self._root()
        return [entity for entity, record in workspace.sources() if os.path.realpath(record.uri) == root]


def _has_changed(source: SourceReport) -> bool:
    return any(count for state, count in source.states.items() if state is not DocumentState.UNCHANGED)


def _has_other_names(path: str) -> bool:
    """Return whether a file has other hard links, which change with it but without an event."""
    try:
        return os.lstat(path).st_nlink > 1
    except OSError:
        return False


def _files_below(root: str, folder: str) -> Iterator[str]:
    for directory, _, names in os.walk(folder):
        for name in names:
            yield os.path.relpath(os.path.join(directory, name), root).replace(os.sep, "/")


WAIT_SECONDS = 30.0
"""How long a run waits for another run of the same source."""


def entity_at(folder: str, workspace: str, storage_options: Mapping[str, Any] | None = None) -> str | None:
    """Return the entity of the workspace's only source at ``folder``, or None if there is none or several."""
    try:
        known = Workspace.open(workspace, storage_options).readable_sources()
    except WorkspaceNotFound:
        return None
    there = [str(entity) for entity, record in known if record.uri == os.path.realpath(folder)]
    return there[0] if len(there) == 1 else None


def watcher_of(
    uri: str,
    workspace: str,
    entity: str | None = None,
    *,
    model: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Watcher:
    """Return a watcher of the folder ``uri`` that reports each run on standard error.

    Each run applies the source's current filters, because other runs may change them.
    """
    # One process embeds a user's edits faster than it could start others.
    how: dict[str, Any] = {"model": model, "executor": "inline", "wait_seconds": WAIT_SECONDS}
    request = IndexRequest(uri, workspace, entity=entity, storage_options=storage_options, **how)
    return Watcher(request, _report, _failed)


def _report(report: IndexReport) -> None:
    for source in report.sources:
        states = ", ".join(f"{count:,} {state}" for state, count in source.states.items() if count)
        warn(f"{source.uri}: {states or 'no documents'} after {report.seconds:.1f} s")


def _failed(error: DriftlineError) -> None:
    warn(str(error) if isinstance(error, DeletionRefused) else f"{error} Trying again.")


@contextmanager
def watching_sources(workspace: Workspace) -> Iterator[None]:
    """Update each local source of ``workspace`` on changes, in its own thread, until the context exits."""
    local = [(record.uri, str(entity)) for entity, record in workspace.sources() if known_source(record.uri).is_local]
    stop, options = threading.Event(), workspace.objects.storage_options

    def run(uri: str, entity: str) -> None:
        try:
            watcher_of(uri, workspace.objects.uri, entity, storage_options=options).run(stop)
        except DriftlineError as error:
            warn(f"{uri} is no longer watched: {error}")

    threads = [threading.Thread(target=run, args=each, name=f"watch {each[0]}") for each in local]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()

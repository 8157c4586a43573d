"""Run ``driftline ci``: update the index to a build's commit, or report the index's age.

``ages`` reads the age of the index from the run history and git. ``lines`` and ``markdown`` format the report as text
and as a job summary.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from driftline.flows.ci.build import Build
from driftline.flows.config.driftline_toml import Configuration
from driftline.flows.config.index_request import IndexRequest, SourceRequest
from driftline.flows.config.workspace_names import local_path
from driftline.flows.output.progress import Progress
from driftline.flows.runs.index import index_sources
from driftline.flows.runs.plan import requests_of
from driftline.storage.defaults import DEFAULT_CI_TIMEOUT_SECONDS
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError, StaleBuild, StaleIndex, UsageError
from driftline.storage.json_records import as_dict
from driftline.storage.workspace.records import RunHistory, RunRecord, SourceRecord
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.git.commits import commit_time, is_ancestor
from driftline.tasks.git.work_tree import find_work_tree, git_origin


@dataclass(frozen=True, slots=True)
class SourceAge:
    """The age of an indexed source relative to a commit; ``seconds`` is None if it was never indexed."""

    uri: str
    entity: str | None = None
    indexed: str | None = None
    run_id: str | None = None
    seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the ``ci --json`` object; ``indexed`` is the last indexed commit."""
        return as_dict(self)


def ages(workspace: Workspace, uris: Sequence[str], commit: str, committed: datetime) -> list[SourceAge]:
    """Return the age of the sources at ``uris`` relative to ``commit``, which was made at ``committed``.

    The age is 0 if the index was built from ``commit`` or a descendant. Otherwise it is counted from the start of its
    last run, or from its own commit if that is earlier and the working tree contains it.
    """
    known = list(workspace.readable_sources())
    result: list[SourceAge] = []
    for uri in uris:
        requested = _record(uri)
        entities = [entity for entity, record in known if record.same_location(requested)]
        result += [_age(workspace, entity, requested.uri, commit, committed) for entity in entities]
        if not entities:
            result.append(SourceAge(requested.uri))
    return result


def _age(workspace: Workspace, entity: Entity, uri: str, commit: str, committed: datetime) -> SourceAge:
    for run in RunHistory(workspace.objects, entity.tenant).newest_first():
        source = _source_of(run, entity)
        if source is None:
            continue
        indexed = source.get("commit")
        age = SourceAge(uri, str(entity), indexed, run.run_id, 0.0)
        if indexed == commit:
            return age
        moment = datetime.fromisoformat(run.started)
        if indexed is not None and local_path(uri) is not None:
            if is_ancestor(uri, commit, indexed):
                return age
            moment = min(moment, commit_time(uri, indexed) or moment)
        return SourceAge(uri, str(entity), indexed, run.run_id, max(0.0, (committed - moment).total_seconds()))
    return SourceAge(uri, str(entity))


def _source_of(run: RunRecord, entity: Entity) -> Mapping[str, Any] | None:
    """Return a source's entry in the report of ``run``, or None if it did not update the source's main index."""
    failed = {failure["uri"] for failure in run.report.get("failed", ())}
    if run.outcome != "done" and not failed:
        return None
    return next((s for s in run.main_sources if s["entity"] == str(entity) and s["uri"] not in failed), None)


def _record(uri: str) -> SourceRecord:
    path = local_path(uri)
    if path is None:
        return SourceRecord(entity="", uri=uri.rstrip("/"))
    root = os.path.realpath(path)
    origin = git_origin(root)
    return SourceRecord(
        entity="", uri=root, origin=origin.url if origin else None, subpath=origin.subpath if origin else ""
    )


@dataclass(frozen=True, slots=True)
class CiRequest:
    """The inputs of ``driftline ci``. ``run`` is the index run of the main index, without a branch; ``builds`` has one
    build for each of its sources.

    Without (Prefect) ``deployments``, this process indexes. If ``max_staleness_seconds`` is set, it only checks the
    index's age. With ``only_branch``, builds of that branch update the main index, and all other builds are skipped;
    otherwise, a build of any branch except ``default_branch`` (usually reported by CI) indexes that branch of the
    sources. If ``duplicates_of`` is main, the branch's new functions are compared with existing code.
    """

    builds: tuple[Build, ...]
    run: IndexRequest
    deployments: tuple[str, ...] = ()
    timeout_seconds: float = DEFAULT_CI_TIMEOUT_SECONDS
    max_staleness_seconds: float | None = None
    only_branch: str | None = None
    default_branch: str | None = None
    duplicates_of: str | None = None

    @property
    def build(self) -> Build:
        """The build of the first source; all sources are on its branch."""
        return self.builds[0]


@dataclass(slots=True)
class CiReport:
    """The outcome of ``driftline ci``.

    ``action`` is ``indexed``, ``deployed``, ``checked``, ``skipped``, or ``stale`` if a newer build already indexed the
    branch. ``index_branch`` is the index branch, None for the main index.
    """

    build: Build
    action: str = "indexed"
    index_branch: str | None = None
    run: dict[str, Any] | None = None
    flow_runs: list[dict[str, Any]] = field(default_factory=list)
    ages: list[SourceAge] = field(default_factory=list)
    duplicates: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether some sources failed while others were indexed."""
        return bool(self.run and self.run["failed"])

    def to_dict(self) -> dict[str, Any]:
        """Return the ``ci --json`` object."""
        return {
            "action": self.action,
            "commit": self.build.commit,
            "branch": self.build.branch,
            "index_branch": self.index_branch,
            "system": self.build.system,
            "run": self.run,
            "flow_runs": self.flow_runs,
            "staleness": [age.to_dict() for age in self.ages],
            "duplicates": self.duplicates,
            "seconds": round(self.seconds, 3),
        }


def run_ci(request: CiRequest, report: CiReport, progress: Progress) -> None:
    """Execute ``request`` and fill in ``report``, even on failure.

    Raises DeploymentFailed, StaleIndex, UsageError, and errors from the index run.
    """
    clock = time.monotonic()
    try:
        _run(request, report, progress)
    finally:
        report.seconds = time.monotonic() - clock


def _run(request: CiRequest, report: CiReport, progress: Progress) -> None:
    build = request.build
    if request.duplicates_of not in (None, "main"):
        fix = "Write: --duplicates-of main"
        raise UsageError("Functions can only be compared with the main index", str(request.duplicates_of), fix)
    if request.only_branch is not None and not build.is_push_to(request.only_branch):
        report.action = "skipped"
    elif request.max_staleness_seconds is not None:
        report.action = "checked"
        _check(request, report, request.max_staleness_seconds)
    elif request.deployments:
        from driftline.flows.scheduling.deployments import run_deployments  # Prefect takes a second to import

        report.action = "deployed"
        commit = build.required_commit()
        report.flow_runs = run_deployments(request.deployments, commit, request.timeout_seconds, progress.message)
    elif build.nothing_to_index:
        progress.message(f"{build.nothing_to_index}, so there is nothing to index.")
        report.action = "skipped"
    else:
        if build.commit != build.checked_out:
            progress.message(f"This build is of {build.commit}, but {build.checked_out} is checked out and indexed.")
        if request.only_branch is None:
            report.index_branch = build.index_branch(request.default_branch)
        run = replace(request.run, by_commit=True, branch=report.index_branch, build=build.number)
        try:
            found = index_sources(run, progress)
        except StaleBuild as error:
            progress.message(str(error))
            report.action = "stale"
            return
        others = [(uri, error) for uri, error in found.failed if not isinstance(error, StaleBuild)]
        if len(others) < len(found.failed):
            report.action = "stale"
        report.run = replace(found, failed=others).to_dict()
        report.duplicates = _duplicates(request, report, progress)


def _duplicates(request: CiRequest, report: CiReport, progress: Progress) -> list[dict[str, Any]]:
    """Find existing code that resembles the branch's new functions, if requested."""
    if request.duplicates_of is None or report.index_branch is None:
        return []
    from driftline.storage.workspace.branch_cuts import on_branch
    from driftline.tasks.search.new_on_branch import find_duplicates

    progress.phase("looking for similar existing code")
    workspace = Workspace.open(request.run.workspace, request.run.storage_options)
    return [asdict(each) for each in find_duplicates(on_branch(workspace, report.index_branch))]


def _check(request: CiRequest, report: CiReport, limit: float) -> None:
    workspace = Workspace.open(request.run.workspace, request.run.storage_options)
    stale: StaleIndex | None = None
    for source, build in zip(request.run.given, request.builds, strict=True):
        commit = build.required_commit()
        if build.committed is None:
            raise UsageError("The commit's time is unknown", commit, "Check it out, or set CI_COMMIT_TIMESTAMP.")
        uri = source.uri if isinstance(source, SourceRequest) else source
        found = ages(workspace, [uri], commit, build.committed)
        report.ages += found
        stale = stale or next((error for age in found if (error := _staleness(age, commit, limit))), None)
    if stale is not None:
        raise stale


def _staleness(age: SourceAge, commit: str, limit: float) -> StaleIndex | None:
    if age.seconds is None:
        return StaleIndex("This source was never indexed", age.uri, "Run 'driftline ci' first.")
    if age.seconds <= limit:
        return None
    what = f"The index is {age.seconds:,.0f} s older than commit {commit[:12]}, more than {limit:,.0f} s"
    return StaleIndex(what, age.entity or age.uri, "Run 'driftline ci', or find out why the index run is late.")


def sources_here(configuration: Configuration, folder: str) -> tuple[SourceRequest, ...]:
    """Return the configured sources in the same working tree as ``folder``. Raises UsageError if there are none."""
    tree = find_work_tree(os.path.realpath(folder))
    if tree is None:
        raise UsageError("Not a git working tree", folder, "Run the command in one, or pass SOURCE.")
    here = [source for source in configuration.sources if _is_within(source.uri, tree.top)]
    if not here:
        raise UsageError(f"No source of {configuration.path} is in this working tree", tree.top, "Specify SOURCE.")
    return requests_of(here)


def _is_within(uri: str, top: str) -> bool:
    path = local_path(uri)
    return path is not None and os.path.commonpath([top, path]) == top


_COUNTS = ("new", "changed", "touched", "deleted")
_SHOWN_FAILURES = 20
_SHOWN_DUPLICATES = 20
_DONE = {"stale": "a newer build has replaced", "skipped": "nothing to do for", "checked": "fresh enough for"}


def lines(report: CiReport) -> list[str]:
    """Format the report as plain lines, starting with a summary."""
    commit = (report.build.commit or "the commit")[:12]
    printed = [f"{_headline(report, None)} ({report.seconds:.1f} s)"]
    for source in report.run["sources"] if report.run else ():
        counts = ", ".join(f"{source[name]:,} {name}" for name in _COUNTS)
        printed.append(f"  {source['entity']}: {counts}; {_lines(source)}; {_scope(source)}")
    printed += [f"  failed: {failure['message']}" for failure in (report.run["failed"] if report.run else ())]
    printed += [f"  {run['deployment']}: {run['state']} after {run['seconds']:.1f} s" for run in report.flow_runs]
    printed += [f"  {_location(each)} looks like {_like(each)} ({each['distance']:.2f})" for each in report.duplicates]
    for age in report.ages:
        printed.append(f"  {age.entity}: {age.seconds or 0:,.0f} s behind {commit}")
    return printed


def markdown(report: CiReport, error: DriftlineError | None = None) -> str:
    """Format the report as a section of a CI job summary, including the error if there is one."""
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
            (each["symbol"], _location(each), each["like_symbol"], _like(each), f"{each['distance']:.2f}")
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
        return f"partly updated to {commit}{on}"
    if report.index_branch:
        on = f" on {report.build.branch}, as the branch {report.index_branch} of the index"
    return f"{_DONE.get(report.action, 'up to date with')} {commit}{on}"


def _location(duplicate: dict[str, Any]) -> str:
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
    """Escape Markdown in ``text``: file and branch names are untrusted."""
    return re.sub(r"([\\`*_\[\]<>|~#])", r"\\\1", " ".join(text.split()))

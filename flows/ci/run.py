"""``driftline ci``: bring the index in step with the commit of a build, or report how far behind the index is."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from driftline.flows.ci.build import Build
from driftline.flows.ci.staleness import SourceAge, ages
from driftline.flows.config.defaults import DEFAULT_CI_TIMEOUT_SECONDS, DEFAULT_MAX_DELETE_FRACTION
from driftline.flows.config.paths import local_path
from driftline.flows.config.toml_file import Configuration
from driftline.flows.output.progress import Progress
from driftline.flows.runs.index_run import IndexRequest, index_sources
from driftline.flows.runs.plan import SourceRequest, requests_of
from driftline.storage.errors import StaleBuild, StaleIndex, UsageError
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.git.work_tree import find_work_tree


@dataclass(frozen=True, slots=True)
class CiRequest:
    """What to do for a build.

    Without ``deployments`` (of Prefect), this process indexes. With ``max_staleness_seconds``, it only checks the age
    of the index. ``only_branch`` skips builds of other branches and indexes it as the main index; else a build of any
    branch but ``default_branch`` (which CI mostly names) indexes that branch of the sources. ``duplicates_of`` main
    looks for existing code that new functions of the branch resemble.
    """

    build: Build
    sources: tuple[str | SourceRequest, ...] = ()
    workspace: str = ""
    model: str | None = None
    deployments: tuple[str, ...] = ()
    timeout_seconds: float = DEFAULT_CI_TIMEOUT_SECONDS
    max_staleness_seconds: float | None = None
    only_branch: str | None = None
    default_branch: str | None = None
    duplicates_of: str | None = None
    wait_seconds: float = 0.0
    max_delete_fraction: float = DEFAULT_MAX_DELETE_FRACTION
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(slots=True)
class CiReport:
    """What was done: ``action`` is ``indexed``, ``deployed``, ``checked``, ``skipped``, or ``stale`` if a newer build
    has indexed the branch. ``index_branch`` is the branch of the index, None for the main index."""

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
        """Whether a source failed while others were indexed."""
        return bool(self.run and self.run["failed"])

    def to_dict(self) -> dict[str, Any]:
        """As ``ci --json`` prints it."""
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
    """Carry out ``request`` and fill ``report``, also on failure.

    Raises DeploymentFailed, StaleIndex, UsageError, and the errors of an index run.
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
        raise UsageError("Functions are compared with the main index only", str(request.duplicates_of), fix)
    if request.only_branch is not None and not build.is_push_to(request.only_branch):
        report.action = "skipped"
    elif request.max_staleness_seconds is not None:
        report.action = "checked"
        _check(request, report, request.max_staleness_seconds)
    elif request.deployments:
        from driftline.flows.ci.deployment import run_deployments  # takes a second to import

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
        index_request = IndexRequest(
            sources=request.sources,
            workspace=request.workspace,
            model=request.model,
            max_delete_fraction=request.max_delete_fraction,
            wait_seconds=request.wait_seconds,
            storage_options=request.storage_options,
            keep_going=len(request.sources) > 1,
            by_commit=True,
            branch=report.index_branch,
            build=build.number if report.index_branch else None,
        )
        try:
            report.run = index_sources(index_request, progress).to_dict()
        except StaleBuild as error:
            progress.message(str(error))
            report.action = "stale"
        else:
            report.duplicates = _duplicates(request, report, progress)


def _duplicates(request: CiRequest, report: CiReport, progress: Progress) -> list[dict[str, Any]]:
    """The existing code that the new functions of the branch resemble, if that is asked for."""
    if request.duplicates_of is None or report.index_branch is None:
        return []
    from driftline.storage.workspace.branches import on_branch
    from driftline.tasks.search.duplicates import find_duplicates

    progress.phase("looking for what was written before")
    workspace = Workspace.open(request.workspace, request.storage_options)
    return [asdict(each) for each in find_duplicates(on_branch(workspace, report.index_branch))]


def _check(request: CiRequest, report: CiReport, limit: float) -> None:
    build = request.build
    commit = build.required_commit()
    if build.committed is None:
        raise UsageError("The time of the commit is unknown", commit, "Check it out, or set CI_COMMIT_TIMESTAMP.")
    workspace = Workspace.open(request.workspace, request.storage_options)
    uris = [source.uri if isinstance(source, SourceRequest) else source for source in request.sources]
    report.ages = ages(workspace, uris, commit, build.committed)
    for age in report.ages:
        if age.seconds is None:
            raise StaleIndex("This source was never indexed", age.uri, "Run 'driftline ci' first.")
        if age.seconds > limit:
            what = f"The index is {age.seconds:,.0f} s older than commit {commit[:12]}, more than {limit:,.0f} s"
            raise StaleIndex(what, age.entity or age.uri, "Run 'driftline ci', or find out why the index run is late.")


def sources_here(configuration: Configuration, folder: str) -> tuple[SourceRequest, ...]:
    """The sources of the file that lie in the same work tree as ``folder``. Raises UsageError if there is none."""
    tree = find_work_tree(os.path.realpath(folder))
    if tree is None:
        raise UsageError("Not a git work tree", folder, "Run the command in one, or name the SOURCE.")
    here = [source for source in configuration.sources if _is_within(source.uri, tree.top)]
    if not here:
        raise UsageError(f"No source of {configuration.path} lies in this work tree", tree.top, "Name the SOURCE.")
    return requests_of(here)


def _is_within(uri: str, top: str) -> bool:
    path = local_path(uri)
    return path is not None and os.path.commonpath([top, path]) == top

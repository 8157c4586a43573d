"""The commit of a CI build, from the variables of the CI system and from what git has checked out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Self

from driftline.storage.errors import UsageError
from driftline.tasks.git.commits import head


@dataclass(frozen=True, slots=True)
class _System:
    """The variables of one CI system; where several name the same thing, the first that is set counts."""

    name: str
    marker: str
    commit: str
    branch: tuple[str, ...]
    url: tuple[str, ...] = ()


_SYSTEMS = (
    _System("GitHub Actions", "GITHUB_ACTIONS", "GITHUB_SHA", ("GITHUB_HEAD_REF", "GITHUB_REF_NAME")),
    _System(
        "GitLab CI",
        "GITLAB_CI",
        "CI_COMMIT_SHA",
        ("CI_MERGE_REQUEST_SOURCE_BRANCH_NAME", "CI_COMMIT_BRANCH", "CI_COMMIT_REF_NAME"),
        ("CI_JOB_URL",),
    ),
    _System(
        "Jenkins", "JENKINS_URL", "GIT_COMMIT", ("CHANGE_BRANCH", "BRANCH_NAME", "GIT_LOCAL_BRANCH"), ("BUILD_URL",)
    ),
    _System("Buildkite", "BUILDKITE", "BUILDKITE_COMMIT", ("BUILDKITE_BRANCH",), ("BUILDKITE_BUILD_URL",)),
    _System("CircleCI", "CIRCLECI", "CIRCLE_SHA1", ("CIRCLE_BRANCH",), ("CIRCLE_BUILD_URL",)),
    _System(
        "Azure Pipelines",
        "TF_BUILD",
        "BUILD_SOURCEVERSION",
        ("SYSTEM_PULLREQUEST_SOURCEBRANCH", "BUILD_SOURCEBRANCHNAME"),
    ),
    _System("Bitbucket Pipelines", "BITBUCKET_BUILD_NUMBER", "BITBUCKET_COMMIT", ("BITBUCKET_BRANCH",)),
    _System("CI", "CI", "CI_COMMIT_SHA", ("CI_COMMIT_SOURCE_BRANCH", "CI_COMMIT_BRANCH"), ("CI_PIPELINE_URL",)),
)


@dataclass(frozen=True, slots=True)
class Build:
    """One build. ``commit`` is the full id; ``committed`` is when it was made; ``system`` is "" outside of CI."""

    system: str = ""
    commit: str | None = None
    committed: datetime | None = None
    branch: str | None = None
    url: str | None = None
    checked_out: str | None = None

    @classmethod
    def detect(cls, environ: Mapping[str, str], folder: str) -> Self:
        """Detect the build from ``environ`` and the work tree around ``folder``; the commit of the CI system wins."""
        build = cls._of_variables(environ)
        checked_out = head(folder)
        if checked_out is None:
            return build
        build = replace(build, checked_out=checked_out.id, branch=build.branch or checked_out.branch)
        if build.commit in (None, checked_out.id):
            build = replace(build, commit=checked_out.id, committed=checked_out.committed)
        return build

    @classmethod
    def _of_variables(cls, environ: Mapping[str, str]) -> Self:
        for system in _SYSTEMS:
            if environ.get(system.marker):
                return cls(
                    system=system.name,
                    commit=environ.get(system.commit) or None,
                    committed=_moment(environ.get("CI_COMMIT_TIMESTAMP")),
                    branch=_first(environ, system.branch),
                    url=_first(environ, system.url) or _github_url(environ),
                )
        return cls()

    def required_commit(self) -> str:
        """The commit. Raises UsageError if neither the CI system nor git names one."""
        if self.commit is None:
            fix = "Run it in a git work tree with a commit, or set CI=true and CI_COMMIT_SHA."
            raise UsageError("The commit of this build is unknown", fix=fix)
        return self.commit


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := environ.get(name))), None)


def _github_url(environ: Mapping[str, str]) -> str | None:
    parts = [environ.get(name) for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")]
    return f"{parts[0]}/{parts[1]}/actions/runs/{parts[2]}" if all(parts) else None


def _moment(text: str | None) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment

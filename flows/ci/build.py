"""The commit of a CI build, from the variables of the CI system and from what git has checked out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

from driftline.storage.errors import UsageError
from driftline.tasks.git.branches import default_branch
from driftline.tasks.git.commits import head


@dataclass(frozen=True, slots=True)
class _System:
    """The variables of one CI system; where several name the same thing, the first that is set counts.

    ``default`` names the default branch of the repository, ``request`` and ``target`` the number of a pull request and
    the branch that it shall be merged into. ``number`` grows from build to build.
    """

    name: str
    marker: str
    commit: str
    branch: tuple[str, ...]
    url: tuple[str, ...] = ()
    number: str = ""
    default: tuple[str, ...] = ()
    request: str = ""
    target: str = ""


_SYSTEMS = (
    _System(
        "GitHub Actions",
        "GITHUB_ACTIONS",
        "GITHUB_SHA",
        ("GITHUB_HEAD_REF", "GITHUB_REF_NAME"),
        number="GITHUB_RUN_NUMBER",
        target="GITHUB_BASE_REF",
    ),
    _System(
        "GitLab CI",
        "GITLAB_CI",
        "CI_COMMIT_SHA",
        ("CI_MERGE_REQUEST_SOURCE_BRANCH_NAME", "CI_COMMIT_BRANCH", "CI_COMMIT_REF_NAME"),
        ("CI_JOB_URL",),
        number="CI_PIPELINE_IID",
        default=("CI_DEFAULT_BRANCH",),
        request="CI_MERGE_REQUEST_IID",
        target="CI_MERGE_REQUEST_TARGET_BRANCH_NAME",
    ),
    _System(
        "Jenkins",
        "JENKINS_URL",
        "GIT_COMMIT",
        ("CHANGE_BRANCH", "BRANCH_NAME", "GIT_LOCAL_BRANCH"),
        ("BUILD_URL",),
        request="CHANGE_ID",
        target="CHANGE_TARGET",
    ),
    _System(
        "Buildkite",
        "BUILDKITE",
        "BUILDKITE_COMMIT",
        ("BUILDKITE_BRANCH",),
        ("BUILDKITE_BUILD_URL",),
        number="BUILDKITE_BUILD_NUMBER",
        default=("BUILDKITE_PIPELINE_DEFAULT_BRANCH",),
        request="BUILDKITE_PULL_REQUEST",
        target="BUILDKITE_PULL_REQUEST_BASE_BRANCH",
    ),
    _System(
        "CircleCI",
        "CIRCLECI",
        "CIRCLE_SHA1",
        ("CIRCLE_BRANCH",),
        ("CIRCLE_BUILD_URL",),
        number="CIRCLE_BUILD_NUM",
        request="CIRCLE_PR_NUMBER",
    ),
    _System(
        "Azure Pipelines",
        "TF_BUILD",
        "BUILD_SOURCEVERSION",
        ("SYSTEM_PULLREQUEST_SOURCEBRANCH", "BUILD_SOURCEBRANCH"),
        number="BUILD_BUILDID",
        request="SYSTEM_PULLREQUEST_PULLREQUESTNUMBER",
        target="SYSTEM_PULLREQUEST_TARGETBRANCH",
    ),
    _System(
        "Bitbucket Pipelines",
        "BITBUCKET_BUILD_NUMBER",
        "BITBUCKET_COMMIT",
        ("BITBUCKET_BRANCH",),
        number="BITBUCKET_BUILD_NUMBER",
        request="BITBUCKET_PR_ID",
        target="BITBUCKET_PR_DESTINATION_BRANCH",
    ),
    _System(
        "CI",
        "CI",
        "CI_COMMIT_SHA",
        ("CI_COMMIT_SOURCE_BRANCH", "CI_COMMIT_BRANCH"),
        ("CI_PIPELINE_URL",),
        default=("CI_DEFAULT_BRANCH", "CI_REPO_DEFAULT_BRANCH"),
    ),
)
"""The builds of Jenkins are numbered for each branch job, which may be made anew, so that their numbers say nothing."""


@dataclass(frozen=True, slots=True)
class Build:
    """One build. ``commit`` is the full id; ``committed`` is when it was made; ``system`` is "" outside of CI.

    ``number`` is higher than that of each earlier build. ``pull_request`` is the number of the request that is built,
    and ``target`` the branch that it shall be merged into; ``is_fork`` if it comes from another repository.
    """

    system: str = ""
    commit: str | None = None
    committed: datetime | None = None
    branch: str | None = None
    url: str | None = None
    checked_out: str | None = None
    number: int | None = None
    default_branch: str | None = None
    pull_request: str | None = None
    target: str | None = None
    is_fork: bool = False

    @classmethod
    def detect(cls, environ: Mapping[str, str], folder: str) -> Self:
        """Detect the build from ``environ`` and the work tree around ``folder``; the commit of the CI system wins."""
        build = cls._of_variables(environ)
        checked_out = head(folder)
        if checked_out is None:
            return build
        build = replace(build, checked_out=checked_out.id, branch=build.branch or checked_out.branch)
        build = replace(build, default_branch=build.default_branch or default_branch(folder))
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
                    branch=_branch(_first(environ, system.branch)),
                    url=_first(environ, system.url) or _github_url(environ),
                    number=_number(environ.get(system.number)),
                    default_branch=_first(environ, system.default) or _github_default(environ),
                    pull_request=_request(environ.get(system.request)) or _github_request(environ),
                    target=_branch(environ.get(system.target)),
                    is_fork=_is_fork(environ),
                )
        return cls()

    def index_branch(self, default: str | None = None) -> str | None:
        """The branch to index; None for the main index: outside of CI, and for the default branch.

        A pull request of another repository is ``pr/NUMBER``, since its branch may have any name. Without any name of
        the default branch, the target of a pull request counts as such.
        """
        main = default or self.default_branch
        if not self.system or self.branch is None or (main is None and self.pull_request is None):
            return None
        if self.pull_request is not None and (self.is_fork or self.branch == main):
            return f"pr/{self.pull_request}"
        return None if self.branch == main else self.branch

    def required_commit(self) -> str:
        """The commit. Raises UsageError if neither the CI system nor git names one."""
        if self.commit is None:
            fix = "Run it in a git work tree with a commit, or set CI=true and CI_COMMIT_SHA."
            raise UsageError("The commit of this build is unknown", fix=fix)
        return self.commit


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := environ.get(name))), None)


def _branch(name: str | None) -> str | None:
    """The name of a branch, without the prefix of its ref."""
    return (name or "").removeprefix("refs/heads/") or None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _request(text: str | None) -> str | None:
    return text if text and text.isdecimal() else None


def _github_request(environ: Mapping[str, str]) -> str | None:
    ref = environ.get("GITHUB_REF", "")
    return _request(ref.split("/")[2]) if ref.startswith("refs/pull/") else None


def _github_event(environ: Mapping[str, str]) -> dict[str, Any]:
    """What GitHub tells of the event, {} if it tells nothing."""
    path = environ.get("GITHUB_EVENT_PATH")
    if not path or not os.path.isfile(path):
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            event = json.load(file)
    except (OSError, ValueError):
        return {}
    return event if isinstance(event, dict) else {}


def _github_default(environ: Mapping[str, str]) -> str | None:
    repository = _github_event(environ).get("repository")
    name = repository.get("default_branch") if isinstance(repository, dict) else None
    return name if isinstance(name, str) else None


def _is_fork(environ: Mapping[str, str]) -> bool:
    """Whether a pull request comes from another repository, where the CI system tells."""
    project = environ.get("CI_MERGE_REQUEST_SOURCE_PROJECT_ID")
    if project:
        return project != environ.get("CI_PROJECT_ID", project)
    if environ.get("CHANGE_FORK") or environ.get("SYSTEM_PULLREQUEST_ISFORK", "").lower() == "true":
        return True
    request: Any = _github_event(environ).get("pull_request")
    try:
        name = request["head"]["repo"]["full_name"]
    except (KeyError, TypeError):  # no pull request, or its repository is gone
        return request is not None
    return bool(name != environ.get("GITHUB_REPOSITORY", name))


def _github_url(environ: Mapping[str, str]) -> str | None:
    parts = [environ.get(name) for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")]
    return f"{parts[0]}/{parts[1]}/actions/runs/{parts[2]}" if all(parts) else None


def _moment(text: str | None) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment

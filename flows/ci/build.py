"""Detect a CI build's commit, and the branch that it may index, from CI variables and git.

A build is indexed as a branch only if the CI system reports a push to that branch, or a pull request from a branch of
the same repository, and git confirms it, as far as it can tell. Pull requests from forks, or of unknown origin, are
indexed as ``pr/NUMBER``; for anything else, ``Build.index_branch`` raises.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from driftline.storage.errors import UsageError
from driftline.storage.sources.git_isolation import COMMIT_ID, find_repository
from driftline.storage.sources.mirror import parse_remote
from driftline.tasks.git.commits import (
    ORIGIN,
    default_branch,
    head,
    index_name,
    is_in_branch,
    is_on_remote_branch,
    remote_url,
    remotes,
)

USUAL_DEFAULTS = ("main", "master")
"""Assumed names of the default branch if neither the CI system nor git reports it."""
_REQUEST_REF = re.compile(r"refs/(?:remotes/)?(?:pull|pull-requests|merge-requests)/(\d+)/.*")
_CIRCLE_REQUEST = re.compile(r"pull/(\d+)(?:/(?:head|merge))?")
_EVENTS = ("BUILD_REASON", "CI_PIPELINE_EVENT", "CI_PIPELINE_SOURCE", "CODEBUILD_WEBHOOK_EVENT", "gitlabActionType")
"""Variables that contain the event that triggered a build."""
_REQUEST_EVENT = re.compile(r"pull_?request|merge_request|external_pull_request|patchset", re.IGNORECASE)
_NUMBER_AT_END = re.compile(r"(?:.*/)?(\d+)/?")
_SIGN = re.compile(
    r"(?:pull|merge)_?request|(?:^|_)pull_(?:number|id)$|(?:^|_)pr(?:_(?:number|id|iid|no|key))?$|^review_id$|_change$",
    re.IGNORECASE,
)
"""Names of variables with which systems and plugins other than the known ones indicate a pull request."""
_SIGN_WITHOUT_SYSTEM = re.compile(r"(?:pull|merge)_?request|^CODEBUILD_SOURCE_VERSION$", re.IGNORECASE)
"""Signs of a pull request that count even if no CI system is found; on a developer's machine, other names of _SIGN may
mean anything.
"""
_SIGN_OF_NUMBER = re.compile(r"(?:number|iid|no|(?<!i)id|key|change|request|pr)$", re.IGNORECASE)

Variables = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _System:
    """The variables of one CI system. If there are several alternatives, the first that is set is used.

    Any of ``markers`` identifies the system. ``default`` contains the repository's default branch, and ``tag`` the
    build's tag. Any variable that starts with one of ``signs`` indicates a pull request build: ``request`` is its
    number, ``source`` its branch, and ``target`` the branch to merge it into. ``is_own`` tells whether its branch
    belongs to the same repository. ``number`` increases with every build. ``repository`` contains the URL or path.
    """

    name: str
    markers: tuple[str, ...]
    commit: str
    branch: tuple[str, ...]
    is_own: Callable[[Variables], bool]
    url: tuple[str, ...] = ()
    number: str = ""
    default: tuple[str, ...] = ()
    tag: tuple[str, ...] = ()
    request: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()
    repository: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Build:
    """One build. ``commit`` is the full id, and ``committed`` is its time; ``system`` is "" outside CI.

    ``number`` is higher than the number of each earlier build. ``branch`` is the pushed branch or, if ``is_request``,
    the branch of pull request ``pull_request``, to be merged into ``target``. ``is_own`` is set if the branch is known
    to belong to the repository itself, and ``head_commit`` is its last commit. ``other_commit`` is the commit of the
    branch whose workflow runs, if the build is about something else. ``is_inferred`` is set if the CI system does not
    report a push. ``repository`` is the URL or path of the built repository, ``remote`` its name in git. ``unclear``
    is the reason why the branch is unknown, ``fix`` how to correct it, and ``nothing_to_index`` the reason why there is
    none.
    """

    system: str = ""
    commit: str | None = None
    committed: datetime | None = None
    branch: str | None = None
    url: str | None = None
    checked_out: str | None = None
    number: int | None = None
    default_branch: str | None = None
    is_request: bool = False
    pull_request: str | None = None
    target: str | None = None
    is_own: bool = False
    head_commit: str | None = None
    other_commit: str | None = None
    is_inferred: bool = False
    repository: str | None = None
    remote: str = ORIGIN
    unclear: str = ""
    fix: str = ""
    nothing_to_index: str = ""

    @classmethod
    def detect(cls, environ: Variables, folder: str, default: str | None = None) -> Build:
        """Detect the build from ``environ`` and the working tree around ``folder``; commits in ``environ`` take
        precedence, and ``default`` overrides the name of the default branch.
        """
        build = cls._of_variables(environ)
        folder = folder if "://" in folder else os.path.realpath(folder)
        checked_out = head(folder)
        if checked_out is None:
            return build
        build = replace(build, checked_out=checked_out.id)
        build = replace(build, default_branch=build.default_branch or default_branch(folder))
        if not build.system:
            build = replace(build, branch=checked_out.branch or build._branch_of_detached(folder))
        elif not build.unclear:
            build = build._with_remote(folder) if build.is_inferred else build
            if build._is_push_of_main(folder, checked_out.id, default):
                build = replace(build, is_request=False, pull_request=None, target=None)
            build = replace(build, unclear=build._why_not_checked_out(folder))
        if build.commit is None or checked_out.id in (build.commit, build.head_commit):
            build = replace(build, commit=checked_out.id, committed=checked_out.committed)
        return build

    @classmethod
    def of_sources(cls, environ: Variables, folders: Sequence[str], default: str | None = None) -> tuple[Build, ...]:
        """Detect the build of each of ``folders``. All are unclear if they are not of one branch of the index.

        A folder outside git, or a bucket, follows the others. ``default`` overrides the name of the default branch.
        """
        places = [_top_of(folder) for folder in folders]
        known = {place: cls.detect(environ, place, default) for place in dict.fromkeys(places)}
        in_git = [(place, build) for place, build in known.items() if build.checked_out]
        leading = in_git[0][1] if in_git else known[places[0]]
        builds = tuple(known[place] if known[place].checked_out else leading for place in places)
        why, fix = cls._why_not_one(in_git, default)
        return tuple(replace(build, branch=None, unclear=why, fix=fix) for build in builds) if why else builds

    @staticmethod
    def _why_not_one(builds: Sequence[tuple[str, Build]], default: str | None) -> tuple[str, str]:
        """Return why the ``builds`` of folders are not of one branch, and how to correct it, or two empty texts."""
        for folder, build in builds if len(builds) > 1 else ():
            if build.unclear:
                return f"{build.unclear}, in {folder}", build.fix
        for folder, build in builds[1:]:
            first_folder, first = builds[0]
            fix = "Run the command once for each of them."
            is_main = build._is_main(default)
            if is_main != first._is_main(default) or (build.branch != first.branch and not is_main):
                where = [f"{first_folder} is at {first.branch}", f"{folder} at {build.branch}"]
                return f"The sources are on different branches: {', '.join(where)}", fix
            # A CI system reports a push or a pull request of one repository.
            if build.system and build.checked_out != first.checked_out:
                origins = [remote_url(each) for each in (first_folder, folder)]
                if None in origins or not _is_same_repository(*map(str, origins)):
                    fix = "Omit one of them, and index it in a build of its own repository."
                    return f"A build is of one repository, but {first_folder} and {folder} are of two", fix
        return "", ""

    def _is_main(self, default: str | None) -> bool:
        """Return whether the branch is the repository's default branch, which may be overridden by ``default``."""
        main = default or self.default_branch
        return self.branch is not None and (self.branch in USUAL_DEFAULTS if main is None else self.branch == main)

    @classmethod
    def _of_variables(cls, environ: Variables) -> Build:
        system = next((each for each in _SYSTEMS if any(_is_set(environ, name) for name in each.markers)), None)
        if system is None:
            return cls._without_system(environ)
        commit = environ.get(system.commit, "")
        build = cls(
            system=system.name,
            commit=commit if COMMIT_ID.fullmatch(commit) else None,  # Buildkite may set the commit to HEAD
            committed=_moment(environ.get("CI_COMMIT_TIMESTAMP")),
            url=_first(environ, system.url),
            number=_number(environ.get(system.number)),
            default_branch=_first(environ, system.default),
            is_own=system.is_own(environ),
            repository=_first(environ, system.repository),
        )
        return _github(build, environ) if system is _GITHUB else _other(build, system, environ)

    @classmethod
    def _without_system(cls, environ: Variables) -> Build:
        """Return a build outside CI, or an unclear one if a variable indicates a pull request."""
        for name in _signs(environ):
            value = environ[name].lower()
            if _SIGN_WITHOUT_SYSTEM.search(name) and (value == "true" or _NUMBER_AT_END.fullmatch(value)):
                what = f"{name} indicates a pull request, but CI is not set"
                return cls(system=_ANY.name, unclear=what, fix=f"Set CI=true in CI; elsewhere, unset {name}.")
        return cls()

    def index_branch(self, default: str | None = None) -> str | None:
        """Return the branch to index; None means the main index (for pushes to the default branch).

        Outside CI, the branch that is checked out counts as pushed. A pull request is indexed as ``pr/NUMBER``, unless
        it is known to come from a non-default branch of the same repository. Raises UsageError if the branch is
        unknown, because any guess could be wrong.
        """
        main = default or self.default_branch
        if not self.system and self.checked_out is None:
            return None  # not a working tree
        if self.unclear or (self.nothing_to_index and not self.is_request):
            raise _unknown(self.unclear or self.nothing_to_index, self.fix)
        is_main = self._is_main(default)
        if self.is_request:
            if self.is_own and self.branch is not None and self.branch != self.target and not is_main:
                return index_name(self.branch)
            if self.pull_request is None:
                raise _unknown("The number of this pull request is unknown")
            return f"pr/{self.pull_request}"
        if self.branch is None:
            if not self.system:
                raise _unknown("The checked-out commit is on no local branch, and not in the default branch of origin")
            fix = "If it is a push to a branch, set CI_COMMIT_BRANCH to the branch"
            raise _unknown("The CI system reports no branch", fix if self.system == _ANY.name else "")
        if main is None and not is_main:
            what = f"It is unknown whether {self.branch} is the default branch"
            fix = "Specify the default branch: --default-branch NAME"
            raise UsageError(what, self.system or "this working tree", fix)
        return None if is_main else index_name(self.branch)

    def is_push_to(self, branch: str) -> bool:
        """Return whether this is a build of ``branch``, not of a tag or a pull request.

        Raises UsageError if unclear.
        """
        if self.is_request or self.nothing_to_index:
            return False
        if self.branch is not None and self.branch != branch:
            return False
        if self.branch is None or self.unclear:
            raise _unknown(self.unclear or "The branch of this build is unknown", self.fix or "Leave out --branch.")
        return True

    def required_commit(self) -> str:
        """Return the commit. Raises UsageError if neither the CI system nor git reports one."""
        if self.commit is None:
            fix = "Run it in a git working tree with a commit, or set CI=true and CI_COMMIT_SHA."
            raise UsageError("This build's commit is unknown", fix=fix)
        return self.commit

    def _with_remote(self, folder: str) -> Build:
        """Split Jenkins's ``remote/branch`` if the repository has no other remote: one of several may be a fork."""
        remote, _, branch = (self.branch or "").partition("/")
        return replace(self, remote=remote, branch=branch) if remotes(folder) == [remote] else self

    def _is_push_of_main(self, folder: str, commit: str, default: str | None) -> bool:
        """Return whether the default branch was pushed, and a pull request from it to another branch is only mentioned.

        CircleCI and Buildkite do this. The commit must be in this branch of the repository that is built.
        """
        if self.system not in (_BUILDKITE.name, _CIRCLE.name) or not (self.is_request and self.is_own):
            return False
        if self.branch is None or self.branch == self.target or not self._is_main(default) or self.commit != commit:
            return False
        origin = remote_url(folder)
        if not origin or not self.repository or not _is_same_repository(origin, self.repository):
            return False
        return bool(is_on_remote_branch(folder, commit, self.branch) or is_in_branch(folder, commit, self.branch))

    def _why_not_checked_out(self, folder: str) -> str:
        """Return why the working tree may not be at this build's branch, or "" if it is."""
        if self.checked_out is None:
            return ""
        subject = "the pull request" if self.is_request else self.branch
        if self.checked_out == self.other_commit != self.head_commit and self._is_of_workflow(folder, self.checked_out):
            return f"The branch of the workflow is checked out, not {subject}"
        if self.is_request:
            if self.commit is None or self.head_commit in (None, self.checked_out) or self.target is None:
                return ""
            is_base = is_on_remote_branch(folder, self.checked_out, self.target)
            return "The target of the pull request is checked out, not the pull request" if is_base else ""
        return self._why_not_pushed(folder, self.checked_out, self.branch) if self.branch is not None else ""

    def _is_of_workflow(self, folder: str, commit: str) -> bool:
        """Return whether ``commit``, which the CI system reports, may be of the workflow's branch.

        If a pull request's event does not contain its last commit, git must know that the target lacks the commit.
        """
        if not self.is_request or self.head_commit is not None or self.target is None:
            return True
        return is_on_remote_branch(folder, commit, self.target) is not False

    def _why_not_pushed(self, folder: str, commit: str, branch: str) -> str:
        """Return why ``commit``, which is checked out, may not have been pushed to ``branch``, or "" if it was.

        The branches of ``origin`` only prove it if ``origin`` is the repository that is built, not a fork.
        """
        is_other = self.commit not in (None, commit)
        origin = remote_url(folder, self.remote) if commit != self.commit or self.is_inferred else None
        if origin and self.repository and not _is_same_repository(origin, self.repository):
            return f"This build is of {self.repository}, but {_without_password(origin)} is checked out"
        is_pushed = is_on_remote_branch(folder, commit, branch, self.remote)
        if is_pushed is False and not is_other and not self.is_inferred:
            is_pushed = is_in_branch(folder, commit, branch)
        if is_pushed or (is_pushed is None and not is_other):
            return ""
        if is_other and (is_pushed is None or not self.is_inferred):
            return f"This build is of {str(self.commit)[:12]}, but {commit[:12]} is checked out"
        return f"{commit[:12]} is checked out, which is not in {self.remote}'s {branch}"

    def _branch_of_detached(self, folder: str) -> str | None:
        """Return the default branch if it contains the commit that is checked out, or None."""
        main, commit = self.default_branch, self.checked_out
        return main if main and commit and is_on_remote_branch(folder, commit, main) else None


def _top_of(folder: str) -> str:
    """Return the top of the working tree around ``folder``, or ``folder`` outside git.

    A submodule belongs to the repository around it, which pins its commit.
    """
    if "://" in folder or parse_remote(folder) is not None:
        return folder
    folder = os.path.realpath(folder)
    while not os.path.isdir(folder):  # a source may have been deleted
        folder = os.path.dirname(folder)
    repository = find_repository(folder)
    if repository is None:
        return folder
    outer = find_repository(os.path.dirname(repository.top)) if "/modules/" in repository.git_dir else None
    is_submodule = outer is not None and repository.git_dir.startswith(f"{outer.common_dir}/modules/")
    return _top_of(outer.top) if outer is not None and is_submodule else repository.top


def _unknown(what: str, fix: str = "") -> UsageError:
    fix = fix or "Check out the commit of the build, or index it by hand: driftline index --branch NAME"
    return UsageError(what, "this build", fix)


# -- systems other than GitHub -----------------------------------------------------------------


def _other(build: Build, system: _System, environ: Variables) -> Build:
    """Fill in what was built: a pull request, a tag, or otherwise a push."""
    is_merge = system is _JENKINS and environ.get("GERRIT_EVENT_TYPE") == "change-merged"
    if is_merge:  # Gerrit pushed to the branch, but still reports the change
        environ = {name: value for name, value in environ.items() if not name.startswith("GERRIT_CHANGE_")}
    refs = [environ.get(name, "") for name in system.branch]
    requested = [match[1] for ref in refs if (match := _REQUEST_REF.fullmatch(ref))]
    if system is _CIRCLE:
        requested += [match[1] for ref in refs if (match := _CIRCLE_REQUEST.fullmatch(ref))]
    event = _first(environ, _EVENTS) or ""
    says_request = _REQUEST_EVENT.match(event) is not None
    named = _signs(environ) if system in (_ANY, _JENKINS) else []
    is_named = any(name.startswith(system.signs) and _is_set(environ, name) for name in environ)
    if requested or says_request or is_named or named:
        source = _branch(_first(environ, system.source))
        is_ref = _REQUEST_REF.fullmatch(source or "") or _CIRCLE_REQUEST.fullmatch(source or "")
        numbers = [
            match[1] for name in (*system.request, *named) if (match := _NUMBER_AT_END.fullmatch(environ.get(name, "")))
        ]
        return replace(
            build,
            is_request=True,
            is_own=build.is_own and not is_ref,
            pull_request=next(iter([*numbers, *requested]), None),
            branch=source,
            target=_branch(_first(environ, system.target)),
            nothing_to_index="The pull request is closed" if event.lower().endswith(("_closed", "_merged")) else "",
        )
    tag = _first(environ, system.tag) or next((ref for ref in refs if ref.startswith("refs/tags/")), None)
    branch = _branch(next((ref for ref in refs if ref and ref != "detached"), None))
    if tag is not None or event.lower().startswith("tag"):
        name = (tag or branch or "").removeprefix("refs/tags/")
        return replace(build, nothing_to_index=f"Tag {name} is not a branch")
    if branch is not None and branch.startswith("refs/"):
        return replace(build, unclear=f"{branch} is no branch")
    if system is _JENKINS:
        build = replace(build, is_inferred=is_merge)  # the change may be checked out, not the branch
        if branch and not environ.get("BRANCH_NAME"):
            build, branch = replace(build, is_inferred=True), branch.removeprefix("origin/")
        if environ.get("BRANCH_IS_PRIMARY") == "true":
            build = replace(build, default_branch=branch)
    return replace(build, branch=branch)


def _signs(environ: Variables) -> list[str]:
    """Return the variables that indicate a pull request on any system, numbers first."""
    found = [name for name in environ if _SIGN.search(name) and _is_set(environ, name)]
    if re.fullmatch(r"pr/\d+", environ.get("CODEBUILD_SOURCE_VERSION", "")):
        found.append("CODEBUILD_SOURCE_VERSION")
    ends = {name: _SIGN_OF_NUMBER.search(name) for name in found}
    return sorted(found, key=lambda name: (ends[name] is None, "number" not in name.lower(), name))


def _same(environ: Variables, *pairs: tuple[str, str]) -> bool:
    """Return whether at least one of ``pairs`` is set, and both variables of every set pair have the same value."""
    values = [(environ.get(first), environ.get(second)) for first, second in pairs]
    known = [(first, second) for first, second in values if first and second]
    return bool(known) and all(first == second for first, second in known)


def _is_own_of_gitlab(environ: Variables) -> bool:
    """Return whether a merge request comes from the same project.

    A fork's merge request may be built in the fork or in the target, so all three projects must be the same.
    """
    source, path = "CI_MERGE_REQUEST_SOURCE_PROJECT_ID", "CI_MERGE_REQUEST_SOURCE_PROJECT_PATH"
    return _same(
        environ,
        (source, "CI_MERGE_REQUEST_PROJECT_ID"),
        (source, "CI_PROJECT_ID"),
        (path, "CI_MERGE_REQUEST_PROJECT_PATH"),
        (path, "CI_PROJECT_PATH"),
        ("CI_EXTERNAL_PULL_REQUEST_SOURCE_REPOSITORY", "CI_EXTERNAL_PULL_REQUEST_TARGET_REPOSITORY"),
    )


def _is_own_of_jenkins(environ: Variables) -> bool:
    return bool(environ.get("CHANGE_BRANCH")) and not environ.get("CHANGE_FORK")


def _is_own_of_buildkite(environ: Variables) -> bool:
    repositories = [_repository(environ.get(name, "")) for name in ("BUILDKITE_PULL_REQUEST_REPO", "BUILDKITE_REPO")]
    return bool(repositories[0]) and repositories[0] == repositories[1]


def _is_own_of_circle(environ: Variables) -> bool:
    """Return whether a pull request comes from the same project: CircleCI sets these variables only for forks."""
    return not any(environ.get(f"CIRCLE_PR_{name}") for name in ("NUMBER", "REPONAME", "USERNAME"))


def _is_own_of_azure(environ: Variables) -> bool:
    return environ.get("SYSTEM_PULLREQUEST_ISFORK", "").lower() == "false"


def _repository(url: str) -> str:
    """Return ``host/owner/name`` from a repository URL of any protocol."""
    match = re.fullmatch(r"(?:[a-z+]+://)?(?:[^@/]*@)?([^/:]+)(?::\d+(?=/))?[:/]+(.+?)(?:\.git)?/*", url.strip())
    return f"{match[1]}/{match[2]}".lower() if match else ""


def _is_same_repository(origin: str, built: str) -> bool:
    """Return whether a clone of ``origin`` is one of ``built``, a URL or a path.

    A host may have several names, and a folder may mirror any repository, so only different paths are told apart.
    Azure's URLs name the project only once if the repository has the same name.
    """
    if origin.startswith("file:") or re.match(r"[^:/]*(?:/|$)", origin):
        return True
    paths = [_repository(url if ":" in url else f"any:{url}").partition("/")[2] for url in (origin, built)]
    clone, other = (f"/{_without_azure_parts(unquote(path).lower())}".replace("//", "/") for path in paths)
    return clone.endswith(other) or other.endswith(clone)


def _without_azure_parts(path: str) -> str:
    """Return the path of a repository on Azure without its fixed parts, and with equal names of project and repository
    only once.
    """
    path = re.sub(r"(?:^|(?<=/))([^/]+)/_git/\1$", r"_git/\1", path)
    path = re.sub(r"^v3/([^/]+)/([^/]+)/\2$", r"v3/\1/\2", path)
    return re.sub(r"(?:^v3|(?:^|/)_git)/", "/", path)


def _without_password(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)


# -- GitHub ------------------------------------------------------------------------------------


def _github(build: Build, environ: Variables) -> Build:
    """Fill in what was built from the event, because for some events the variables contain only the target."""
    event, name = _github_event(environ), environ.get("GITHUB_EVENT_NAME", "")
    ref = environ.get("GITHUB_REF") or _github_ref(environ)
    default = _text(event, "repository", "default_branch")
    repository = environ.get("GITHUB_REPOSITORY") or _text(event, "repository", "full_name")
    build = replace(build, url=_github_url(environ), default_branch=default, repository=repository)
    of_ref = _REQUEST_REF.fullmatch(ref)
    other = environ.get("GITHUB_SHA") if ref.startswith("refs/heads/") else None
    request, issue = value_at(event, "pull_request"), value_at(event, "issue", "pull_request")
    named = environ.get("GITHUB_HEAD_REF") or environ.get("GITHUB_BASE_REF") or name.startswith("pull_request")
    if request is not None or issue is not None or of_ref or named:
        paths = (("pull_request", "number"), ("number",), ("issue", "number"))
        number = next(filter(None, (value_at(event, *path) for path in paths)), None)
        branches = {_text(event, "pull_request", "head", "ref"), environ.get("GITHUB_HEAD_REF") or None} - {None}
        is_closed = value_at(event, "action") == "closed" and name in ("", "pull_request", "pull_request_target")
        return replace(
            build,
            is_request=True,
            is_own=len(branches) == 1 and _is_own_of_github(event, environ, "pull_request", "head", "repo"),
            pull_request=str(number) if isinstance(number, int) else of_ref[1] if of_ref else None,
            branch=next(iter(branches)) if len(branches) == 1 else None,
            target=_text(event, "pull_request", "base", "ref") or environ.get("GITHUB_BASE_REF") or None,
            head_commit=_text(event, "pull_request", "head", "sha"),
            other_commit=other,
            nothing_to_index="The pull request is closed" if is_closed else "",
        )
    if name == "workflow_run":
        return _github_after_another(replace(build, other_commit=other), event, environ)
    if ref.startswith("refs/tags/"):
        return replace(build, nothing_to_index=f"Tag {ref.removeprefix('refs/tags/')} is not a branch")
    if not ref.startswith("refs/heads/"):
        return build
    return replace(build, branch=_branch(ref))


def _github_after_another(build: Build, event: Mapping[str, Any], environ: Variables) -> Build:
    """Fill in a ``workflow_run``: its variables always contain the default branch, not the first workflow's."""
    branch, commit = _text(event, "workflow_run", "head_branch"), _text(event, "workflow_run", "head_sha")
    is_own = _is_own_of_github(event, environ, "workflow_run", "head_repository")
    build = replace(build, branch=branch, head_commit=commit)
    if _text(event, "workflow_run", "event") in ("push", "schedule", "workflow_dispatch") and is_own and commit:
        other = None if environ.get("GITHUB_REF") == f"refs/heads/{branch}" else build.other_commit
        return replace(build, commit=commit, other_commit=other, is_inferred=True)  # it may be a tag of this name
    numbers = [value_at(request, "number") for request in value_at(event, "workflow_run", "pull_requests") or ()]
    number = str(numbers[0]) if len(numbers) == 1 and isinstance(numbers[0], int) else None
    return replace(build, is_request=True, is_own=False, pull_request=number)


def _github_ref(environ: Variables) -> str:
    kind = {"tag": "refs/tags/", "branch": "refs/heads/", "": "refs/heads/"}.get(environ.get("GITHUB_REF_TYPE", ""))
    name = environ.get("GITHUB_REF_NAME")
    return f"{kind}{name}" if kind and name and not re.fullmatch(r"\d+/merge", name) else ""


def _is_own_of_github(event: Mapping[str, Any], environ: Variables, *keys: str) -> bool:
    """Return whether the repository at ``keys`` of the event is the repository being built."""
    source = _text(event, *keys, "full_name")
    known = {environ.get("GITHUB_REPOSITORY") or None, _text(event, "repository", "full_name")} - {None}
    return source is not None and known == {source}


def _github_event(environ: Variables) -> dict[str, Any]:
    """Return GitHub's event payload, or {}."""
    path = environ.get("GITHUB_EVENT_PATH")
    if not path or not os.path.isfile(path):
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            event = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def _github_url(environ: Variables) -> str | None:
    parts = [environ.get(name) for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")]
    return f"{parts[0]}/{parts[1]}/actions/runs/{parts[2]}" if all(parts) else None


def value_at(value: Any, *keys: str) -> Any:
    """Return the value at a path of keys in ``value``, which was JSON, or None if it has another shape."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _text(value: Any, *keys: str) -> str | None:
    found = value_at(value, *keys)
    return found if isinstance(found, str) and found else None


# -- values ------------------------------------------------------------------------------------


def _first(environ: Variables, names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := environ.get(name))), None)


def _is_set(environ: Variables, name: str) -> bool:
    return environ.get(name, "").lower() not in ("", "false")


def _branch(name: str | None) -> str | None:
    """Return the branch name with its ref prefix removed."""
    return (name or "").removeprefix("refs/heads/") or None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _moment(text: str | None) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


# -- the systems -------------------------------------------------------------------------------

_GITHUB = _System(
    "GitHub Actions",
    ("GITHUB_ACTIONS",),
    "GITHUB_SHA",
    (),
    lambda _: False,  # known from the event
    number="GITHUB_RUN_NUMBER",
)
_GITLAB = _System(
    "GitLab CI",
    ("GITLAB_CI",),
    "CI_COMMIT_SHA",
    ("CI_COMMIT_BRANCH",),
    _is_own_of_gitlab,
    ("CI_JOB_URL",),
    number="CI_PIPELINE_IID",
    default=("CI_DEFAULT_BRANCH",),
    tag=("CI_COMMIT_TAG",),
    request=("CI_MERGE_REQUEST_IID", "CI_EXTERNAL_PULL_REQUEST_IID"),
    source=("CI_MERGE_REQUEST_SOURCE_BRANCH_NAME", "CI_EXTERNAL_PULL_REQUEST_SOURCE_BRANCH_NAME"),
    target=("CI_MERGE_REQUEST_TARGET_BRANCH_NAME", "CI_EXTERNAL_PULL_REQUEST_TARGET_BRANCH_NAME"),
    signs=("CI_MERGE_REQUEST_", "CI_EXTERNAL_PULL_REQUEST_"),
    repository=("CI_PROJECT_PATH",),
)
_JENKINS = _System(
    "Jenkins",
    ("JENKINS_URL",),
    "GIT_COMMIT",
    ("BRANCH_NAME", "GIT_LOCAL_BRANCH", "GIT_BRANCH"),
    _is_own_of_jenkins,
    ("BUILD_URL",),
    tag=("TAG_NAME",),
    request=("CHANGE_ID", "ghprbPullId", "gitlabMergeRequestIid", "GERRIT_CHANGE_NUMBER"),
    source=("CHANGE_BRANCH", "ghprbSourceBranch", "gitlabSourceBranch", "sourceBranch"),
    target=("CHANGE_TARGET", "ghprbTargetBranch", "gitlabTargetBranch", "targetBranch"),
    signs=(
        *("CHANGE_ID", "CHANGE_BRANCH", "CHANGE_TARGET", "CHANGE_FORK"),
        *("ghprb", "gitlabMergeRequest", "GERRIT_CHANGE_", "GITHUB_PR_", "sourceRepository"),
    ),
)
"""Jenkins numbers the builds per branch job. Recreating the job restarts the numbers, so they do not order builds."""
_BUILDKITE = _System(
    "Buildkite",
    ("BUILDKITE",),
    "BUILDKITE_COMMIT",
    ("BUILDKITE_BRANCH", "BUILDKITE_REFSPEC"),
    _is_own_of_buildkite,
    ("BUILDKITE_BUILD_URL",),
    number="BUILDKITE_BUILD_NUMBER",
    default=("BUILDKITE_PIPELINE_DEFAULT_BRANCH",),
    tag=("BUILDKITE_TAG",),
    request=("BUILDKITE_PULL_REQUEST",),
    source=("BUILDKITE_BRANCH",),
    target=("BUILDKITE_PULL_REQUEST_BASE_BRANCH",),
    signs=("BUILDKITE_PULL_REQUEST",),
    repository=("BUILDKITE_REPO",),
)
_CIRCLE = _System(
    "CircleCI",
    ("CIRCLECI",),
    "CIRCLE_SHA1",
    ("CIRCLE_BRANCH",),
    _is_own_of_circle,
    ("CIRCLE_BUILD_URL",),
    number="CIRCLE_BUILD_NUM",
    tag=("CIRCLE_TAG",),
    request=("CIRCLE_PR_NUMBER", "CIRCLE_PULL_REQUEST", "CI_PULL_REQUEST"),
    source=("CIRCLE_BRANCH",),
    signs=("CIRCLE_PR_", "CIRCLE_PULL_REQUEST", "CI_PULL_REQUEST"),
    repository=("CIRCLE_REPOSITORY_URL",),
)
_AZURE = _System(
    "Azure Pipelines",
    ("TF_BUILD",),
    "BUILD_SOURCEVERSION",
    ("BUILD_SOURCEBRANCH",),
    _is_own_of_azure,
    number="BUILD_BUILDID",
    request=("SYSTEM_PULLREQUEST_PULLREQUESTNUMBER", "SYSTEM_PULLREQUEST_PULLREQUESTID"),
    source=("SYSTEM_PULLREQUEST_SOURCEBRANCH",),
    target=("SYSTEM_PULLREQUEST_TARGETBRANCH",),
    signs=("SYSTEM_PULLREQUEST_",),
    repository=("BUILD_REPOSITORY_URI",),
)
_BITBUCKET = _System(
    "Bitbucket Pipelines",
    ("BITBUCKET_BUILD_NUMBER",),
    "BITBUCKET_COMMIT",
    ("BITBUCKET_BRANCH",),
    lambda _: True,  # it does not build pull requests from forks
    number="BITBUCKET_BUILD_NUMBER",
    tag=("BITBUCKET_TAG",),
    request=("BITBUCKET_PR_ID",),
    source=("BITBUCKET_BRANCH",),
    target=("BITBUCKET_PR_DESTINATION_BRANCH",),
    signs=("BITBUCKET_PR_",),
    repository=("BITBUCKET_REPO_FULL_NAME",),
)
_ANY = _System(
    "CI",
    (
        *("CI", "CONTINUOUS_INTEGRATION", "BUILD_ID", "BUILD_NUMBER", "RUN_ID", "CODEBUILD_BUILD_ID"),
        *("TEAMCITY_VERSION", "bamboo_buildKey", "GO_PIPELINE_NAME", "GO_SERVER_URL", "ZUUL_PIPELINE"),
        *("ATC_EXTERNAL_URL", "BUILD_PIPELINE_NAME", "BUILD_SUBMITTER"),
    ),
    "CI_COMMIT_SHA",
    (
        *("CI_COMMIT_BRANCH", "CI_COMMIT_REF", "APPVEYOR_REPO_BRANCH", "CIRRUS_BRANCH", "CODEBUILD_WEBHOOK_HEAD_REF"),
        *("DRONE_BRANCH", "DRONE_COMMIT_REF", "SEMAPHORE_GIT_BRANCH", "TRAVIS_BRANCH"),
    ),
    lambda _: False,  # unknown
    ("CI_PIPELINE_URL",),
    default=("CI_DEFAULT_BRANCH", "CI_REPO_DEFAULT_BRANCH"),
    tag=(
        *("CI_COMMIT_TAG", "APPVEYOR_REPO_TAG_NAME", "CIRRUS_TAG", "DRONE_TAG"),
        *("SEMAPHORE_GIT_TAG_NAME", "TRAVIS_TAG"),
    ),
    request=("CI_COMMIT_PULL_REQUEST", "CODEBUILD_WEBHOOK_TRIGGER"),
    source=("CI_COMMIT_SOURCE_BRANCH",),
    target=("CI_COMMIT_TARGET_BRANCH",),
    signs=("CI_COMMIT_PULL_REQUEST", "CI_COMMIT_SOURCE_BRANCH", "CI_COMMIT_TARGET_BRANCH"),
    repository=(
        "CI_REPO",
        "APPVEYOR_REPO_NAME",
        "CIRRUS_REPO_FULL_NAME",
        "CODEBUILD_SOURCE_REPO_URL",
        "DRONE_REPO",
        "SEMAPHORE_GIT_REPO_SLUG",
        "TRAVIS_REPO_SLUG",
    ),
)
"""Any other system. git reports a branch for a fork and for a merged pull request as well, so the system has to."""
_SYSTEMS = (_GITHUB, _GITLAB, _JENKINS, _BUILDKITE, _CIRCLE, _AZURE, _BITBUCKET, _ANY)

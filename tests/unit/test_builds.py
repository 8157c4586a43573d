"""The commit and branch of a CI build."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from driftline.flows.ci.build import Build
from driftline.storage.errors import UsageError

COMMIT = "a" * 40


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (
            {
                "CI": "true",
                "GITHUB_ACTIONS": "true",
                "GITHUB_SHA": COMMIT,
                "GITHUB_HEAD_REF": "",
                "GITHUB_REF_NAME": "main",
                "GITHUB_SERVER_URL": "https://git.example",
                "GITHUB_REPOSITORY": "team/web",
                "GITHUB_RUN_ID": "17",
            },
            ("GitHub Actions", COMMIT, "main", "https://git.example/team/web/actions/runs/17"),
        ),
        (
            {"GITHUB_ACTIONS": "true", "GITHUB_SHA": COMMIT, "GITHUB_HEAD_REF": "topic", "GITHUB_REF_NAME": "3/merge"},
            ("GitHub Actions", COMMIT, "topic", None),
        ),
        (
            {"CI": "true", "GITLAB_CI": "true", "CI_COMMIT_SHA": COMMIT, "CI_COMMIT_BRANCH": "main", "CI_JOB_URL": "u"},
            ("GitLab CI", COMMIT, "main", "u"),
        ),
        ({"JENKINS_URL": "x", "GIT_COMMIT": COMMIT, "BRANCH_NAME": "main"}, ("Jenkins", COMMIT, "main", None)),
        ({"CI": "true", "CI_COMMIT_SHA": COMMIT, "CI_COMMIT_BRANCH": "main"}, ("CI", COMMIT, "main", None)),
        ({"CI": "true"}, ("CI", None, None, None)),
        ({}, ("", None, None, None)),
    ],
)
def test_builds_of_known_ci_systems_are_recognized(
    environ: dict[str, str], expected: tuple[str, str | None, str | None, str | None], tmp_path: Path
) -> None:
    build = Build.detect(environ, str(tmp_path))
    assert (build.system, build.commit, build.branch, build.url) == expected
    assert build.checked_out is None


def test_git_fills_in_what_ci_leaves_out(tmp_path: Path) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    for command in (["init", "-q", "-b", "topic"], [*who, "commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    build = Build.detect({}, str(tmp_path))
    assert build.branch == "topic"
    assert build.commit == build.checked_out
    assert build.committed is not None
    other = Build.detect({"GITHUB_ACTIONS": "1", "GITHUB_SHA": COMMIT}, str(tmp_path))
    assert (other.commit, other.checked_out, other.committed) == (COMMIT, build.commit, None)


def test_the_commit_time_of_the_ci_system_is_used() -> None:
    outcome = {"GITLAB_CI": "1", "CI_COMMIT_SHA": COMMIT, "CI_COMMIT_TIMESTAMP": "2026-11-22T03:04:05+01:00"}
    committed = Build.detect(outcome, "/").committed
    assert committed is not None
    assert committed.isoformat() == "2026-11-22T03:04:05+01:00"
    assert Build.detect(outcome | {"CI_COMMIT_TIMESTAMP": "yesterday"}, "/").committed is None


def test_a_build_without_a_known_commit_explains_the_fix(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="CI_COMMIT_SHA"):
        Build.detect({}, str(tmp_path)).required_commit()


GITHUB = {"GITHUB_ACTIONS": "true", "GITHUB_SHA": COMMIT, "GITHUB_RUN_NUMBER": "12", "GITHUB_REPOSITORY": "team/web"}
GITLAB = {
    "GITLAB_CI": "true",
    "CI_COMMIT_SHA": COMMIT,
    "CI_DEFAULT_BRANCH": "main",
    "CI_PIPELINE_IID": "12",
    "CI_PROJECT_ID": "9",
}
JENKINS = {"JENKINS_URL": "https://ci", "GIT_COMMIT": COMMIT}
BUILDKITE = {
    "BUILDKITE": "true",
    "BUILDKITE_COMMIT": COMMIT,
    "BUILDKITE_BUILD_NUMBER": "12",
    "BUILDKITE_PIPELINE_DEFAULT_BRANCH": "main",
    "BUILDKITE_REPO": "git@github.com:team/web.git",
    "BUILDKITE_PULL_REQUEST": "false",
    "BUILDKITE_PULL_REQUEST_REPO": "",
}
CIRCLE = {"CIRCLECI": "true", "CIRCLE_SHA1": COMMIT, "CIRCLE_BUILD_NUM": "12"}
AZURE = {"TF_BUILD": "True", "BUILD_SOURCEVERSION": COMMIT, "BUILD_BUILDID": "12", "BUILD_REASON": "IndividualCI"}
BITBUCKET = {"BITBUCKET_BUILD_NUMBER": "12", "BITBUCKET_COMMIT": COMMIT}
BASES = {
    "GitHub Actions": GITHUB,
    "GitLab CI": GITLAB,
    "Jenkins": JENKINS,
    "Buildkite": BUILDKITE,
    "CircleCI": CIRCLE,
    "Azure Pipelines": AZURE,
    "Bitbucket Pipelines": BITBUCKET,
}
BASE_COMMITS = {"Buildkite": "BUILDKITE_COMMIT", "CircleCI": "CIRCLE_SHA1"}
NUMBERED = set(BASES) - {"Jenkins"}
SITUATIONS = ("push", "tag", "own request", "fork request", "request on the target", "closed", "again", "by hand")


def pushed(system: str, branch: str) -> dict[str, str]:
    """Return the CI variables for a push to ``branch``."""
    variables = {
        "GitHub Actions": {
            "GITHUB_EVENT_NAME": "push",
            "GITHUB_REF": f"refs/heads/{branch}",
            "GITHUB_REF_NAME": branch,
        },
        "GitLab CI": {"CI_PIPELINE_SOURCE": "push", "CI_COMMIT_BRANCH": branch, "CI_COMMIT_REF_NAME": branch},
        "Jenkins": {"BRANCH_NAME": branch, "GIT_BRANCH": f"origin/{branch}"},
        "Buildkite": {"BUILDKITE_BRANCH": branch, "BUILDKITE_SOURCE": "webhook"},
        "CircleCI": {"CIRCLE_BRANCH": branch},
        "Azure Pipelines": {"BUILD_SOURCEBRANCH": f"refs/heads/{branch}"},
        "Bitbucket Pipelines": {"BITBUCKET_BRANCH": branch},
    }
    return BASES[system] | variables[system]


def tagged(system: str, tag: str) -> dict[str, str]:
    variables = {
        "GitHub Actions": {"GITHUB_REF": f"refs/tags/{tag}", "GITHUB_REF_NAME": tag, "GITHUB_REF_TYPE": "tag"},
        "GitLab CI": {"CI_COMMIT_TAG": tag, "CI_COMMIT_REF_NAME": tag},
        "Jenkins": {"TAG_NAME": tag, "BRANCH_NAME": tag},
        "Buildkite": {"BUILDKITE_TAG": tag, "BUILDKITE_BRANCH": tag},
        "CircleCI": {"CIRCLE_TAG": tag},
        "Azure Pipelines": {"BUILD_SOURCEBRANCH": f"refs/tags/{tag}", "BUILD_SOURCEBRANCHNAME": tag},
        "Bitbucket Pipelines": {"BITBUCKET_TAG": tag},
    }
    return BASES[system] | variables[system]


def requested(system: str, branch: str, *, fork: bool, event: Path) -> dict[str, str]:
    """Return the CI variables for pull request 7, from ``branch`` (in the repository or a fork) into main."""
    pull_request = {
        "number": 7,
        "head": {"ref": branch, "sha": COMMIT, "repo": {"full_name": "someone/web" if fork else "team/web"}},
        "base": {"ref": "main"},
    }
    of_event = {"repository": {"default_branch": "main", "full_name": "team/web"}, "pull_request": pull_request}
    event.write_text(json.dumps(of_event | {"action": "synchronize", "number": 7}))
    variables = {
        "GitHub Actions": {
            "GITHUB_EVENT_NAME": "pull_request",
            "GITHUB_EVENT_PATH": str(event),
            "GITHUB_REF": "refs/pull/7/merge",
            "GITHUB_REF_NAME": "7/merge",
            "GITHUB_HEAD_REF": branch,
            "GITHUB_BASE_REF": "main",
        },
        "GitLab CI": {
            "CI_PIPELINE_SOURCE": "merge_request_event",
            "CI_COMMIT_REF_NAME": branch,
            "CI_MERGE_REQUEST_IID": "7",
            "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME": branch,
            "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
            "CI_MERGE_REQUEST_PROJECT_ID": "9",
            "CI_MERGE_REQUEST_SOURCE_PROJECT_ID": "8" if fork else "9",
        },
        "Jenkins": {
            "BRANCH_NAME": "PR-7",
            "CHANGE_ID": "7",
            "CHANGE_BRANCH": branch,
            "CHANGE_TARGET": "main",
            **({"CHANGE_FORK": "someone"} if fork else {}),
        },
        "Buildkite": {
            "BUILDKITE_BRANCH": branch,
            "BUILDKITE_PULL_REQUEST": "7",
            "BUILDKITE_PULL_REQUEST_REPO": f"git://github.com/{'someone' if fork else 'team'}/web.git",
            "BUILDKITE_PULL_REQUEST_BASE_BRANCH": "main",
        },
        "CircleCI": {
            "CIRCLE_BRANCH": "pull/7" if fork else branch,
            "CIRCLE_PULL_REQUEST": "https://github.com/team/web/pull/7",
            **({"CIRCLE_PR_NUMBER": "7", "CIRCLE_PR_USERNAME": "someone", "CIRCLE_PR_REPONAME": "web"} if fork else {}),
        },
        "Azure Pipelines": {
            "BUILD_REASON": "PullRequest",
            "BUILD_SOURCEBRANCH": "refs/pull/7/merge",
            "SYSTEM_PULLREQUEST_PULLREQUESTID": "7",
            "SYSTEM_PULLREQUEST_SOURCEBRANCH": f"refs/heads/{branch}",
            "SYSTEM_PULLREQUEST_TARGETBRANCH": "refs/heads/main",
            "SYSTEM_PULLREQUEST_ISFORK": str(fork),
        },
        "Bitbucket Pipelines": {  # does not build pull requests from forks
            "BITBUCKET_BRANCH": branch,
            "BITBUCKET_PR_ID": "7",
            "BITBUCKET_PR_DESTINATION_BRANCH": "main",
        },
    }
    return BASES[system] | variables[system]


def on_the_target(system: str, branch: str, event: Path) -> dict[str, str]:
    """Return the CI variables for a pull request from a fork, on a system that reports only the target branch or
    less.
    """
    variables = requested(system, branch, fork=True, event=event)
    if system == "GitHub Actions":
        target = {"GITHUB_REF": "refs/heads/main", "GITHUB_REF_NAME": "main"}
        return variables | target | {"GITHUB_EVENT_NAME": "pull_request_target"}
    if system == "GitLab CI":  # built in the fork
        return variables | {"CI_PROJECT_ID": "8"}
    if system == "Jenkins":  # another plugin's pull request builder
        return JENKINS | {"ghprbPullId": "7", "ghprbSourceBranch": branch, "GIT_BRANCH": "origin/main"}
    if system == "CircleCI":
        return variables | {"CIRCLE_BRANCH": branch}
    if system == "Azure Pipelines":
        return {name: value for name, value in variables.items() if not name.endswith("ISFORK")}
    return variables


def is_closed(variables: dict[str, str], event: Path) -> dict[str, str]:
    """Return the CI variables for a merged and closed pull request on GitHub; other systems do not build any."""
    event.write_text(json.dumps(json.loads(event.read_text()) | {"action": "closed"}))
    return variables | {"GITHUB_REF": "refs/heads/main", "GITHUB_REF_NAME": "main"}


def by_hand(system: str, branch: str) -> dict[str, str]:
    said = {
        "GitHub Actions": {"GITHUB_EVENT_NAME": "workflow_dispatch"},
        "GitLab CI": {"CI_PIPELINE_SOURCE": "web"},
        "Buildkite": {"BUILDKITE_SOURCE": "ui", "BUILDKITE_COMMIT": "HEAD"},
        "Azure Pipelines": {"BUILD_REASON": "Manual"},
    }
    return pushed(system, branch) | said.get(system, {})


@pytest.mark.parametrize("branch", ["main", "topic", "pr/3", "release/1"])
@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("system", BASES)
def test_a_build_indexes_only_its_own_branch(system: str, situation: str, branch: str, tmp_path: Path) -> None:
    event = tmp_path / "event.json"
    by_push = {"main": None, "pr/3": "heads/pr/3"}.get(branch, branch)  # "pr/3" is pull request 3
    by_request = {"main": "pr/7", "pr/3": "heads/pr/3"}.get(branch, branch)
    of_fork = by_request if system == "Bitbucket Pipelines" else "pr/7"
    own = requested(system, branch, fork=False, event=event)
    cases: dict[str, tuple[dict[str, str], str | None]] = {
        "push": (pushed(system, branch), by_push),
        "tag": (tagged(system, branch), "nothing"),
        "own request": (own, by_request),
        "fork request": (requested(system, branch, fork=True, event=event), of_fork),
        "request on the target": (on_the_target(system, branch, event), of_fork),
        "closed": (own, by_request),
        "again": (pushed(system, branch) | {"GITHUB_RUN_ATTEMPT": "2", "BUILDKITE_RETRY_COUNT": "1"}, by_push),
        "by hand": (by_hand(system, branch), by_push),
    }
    environ, expected = cases[situation]
    if situation in ("own request", "closed"):
        requested(system, branch, fork=False, event=event)  # now it holds another system's event
    if situation == "closed":
        environ = is_closed(environ, event)
    build = Build.detect(environ, str(tmp_path))
    assert build.system == system
    assert build.number == (12 if system in NUMBERED else None)
    if expected == "nothing":
        assert build.nothing_to_index
        assert not build.is_push_to("main")
        with pytest.raises(UsageError, match="is not a branch"):
            build.index_branch("main")
        return
    assert build.index_branch("main") == expected
    assert bool(build.nothing_to_index) == (situation == "closed" and system == "GitHub Actions")
    is_push = situation in ("push", "again", "by hand")
    assert build.is_push_to(branch) == is_push
    assert build.is_push_to("main") == (is_push and branch == "main")


@pytest.mark.parametrize(
    "environ",
    [
        GITHUB | {"GITHUB_EVENT_NAME": "pull_request_target", "GITHUB_REF": "refs/heads/main"},
        GITHUB | {"GITHUB_REF": "refs/heads/main", "GITHUB_BASE_REF": "main"},
        GITHUB | {"GITHUB_EVENT_NAME": "workflow_run", "GITHUB_REF": "refs/heads/main"},
        GITHUB | {"GITHUB_REF_NAME": "7/merge"},
        GITHUB,
        GITLAB | {"CI_COMMIT_REF_NAME": "main"},
        GITLAB | {"CI_PIPELINE_SOURCE": "merge_request_event", "CI_COMMIT_BRANCH": "main"},
        JENKINS | {"CHANGE_FORK": "someone", "BRANCH_NAME": "main"},
        JENKINS | {"GIT_LOCAL_BRANCH": "detached"},
        JENKINS | {"GIT_BRANCH": "origin/main", "ghprbActualCommit": COMMIT},
        GITLAB | {"CI_MERGE_REQUEST_SOURCE_PROJECT_ID": "8", "CI_COMMIT_BRANCH": "main"},
        BUILDKITE | {"BUILDKITE_BRANCH": "main", "BUILDKITE_PULL_REQUEST_REPO": "git://github.com/someone/web.git"},
        CIRCLE | {"CIRCLE_BRANCH": "main", "CIRCLE_PR_USERNAME": "someone"},
        CIRCLE,
        AZURE | {"BUILD_SOURCEBRANCH": "refs/heads/main", "BUILD_REASON": "PullRequest"},
        AZURE | {"BUILD_SOURCEBRANCH": "refs/notes/main"},
        BITBUCKET,
        {"CI": "true", "CI_COMMIT_BRANCH": "main", "CI_PIPELINE_EVENT": "pull_request"},
        {"BUILD_SUBMITTER": "hub.sr.ht", "BUILD_REASON": "patchset", "JOB_ID": "1"},
        {"CI": "true", "CI_COMMIT_BRANCH": "main", "CI_COMMIT_TARGET_BRANCH": "main"},
    ],
)
def test_a_build_of_unknown_branch_is_refused(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        Build.detect(environ, str(tmp_path)).index_branch("main")


@pytest.mark.parametrize(
    "environ",
    [
        JENKINS | {"GIT_BRANCH": "main", "GERRIT_CHANGE_NUMBER": "7", "GERRIT_BRANCH": "main"},
        JENKINS | {"GIT_BRANCH": "origin/main", "BITBUCKET_PULL_REQUEST_ID": "7"},
        BUILDKITE | {"BUILDKITE_BRANCH": "main", "BUILDKITE_REFSPEC": "refs/pull/7/head"},
        {"CI": "true", "CI_COMMIT_BRANCH": "main", "CI_COMMIT_REF": "refs/pull/7/head"},
        {"CI": "true", "DRONE": "true", "DRONE_BRANCH": "main", "DRONE_PULL_REQUEST": "7"},
        {"CI": "true", "TRAVIS_BRANCH": "main", "TRAVIS_PULL_REQUEST": "7"},
        {"CI": "true", "JOB_TYPE": "presubmit", "PULL_BASE_REF": "main", "PULL_NUMBER": "7"},
        {"CI": "true", "APPVEYOR_REPO_BRANCH": "main", "APPVEYOR_PULL_REQUEST_NUMBER": "7"},
        {
            "CODEBUILD_BUILD_ID": "web:1",
            "CODEBUILD_WEBHOOK_EVENT": "PULL_REQUEST_UPDATED",
            "CODEBUILD_WEBHOOK_HEAD_REF": "refs/heads/main",
            "CODEBUILD_WEBHOOK_TRIGGER": "pr/7",
        },
    ],
)
def test_requests_are_recognized_in_builds_that_name_their_target(environ: dict[str, str], tmp_path: Path) -> None:
    assert Build.detect(environ, str(tmp_path)).index_branch("main") == "pr/7"


@pytest.mark.parametrize(
    "environ",
    [
        {"CODEBUILD_BUILD_ID": "web:1", "CODEBUILD_WEBHOOK_EVENT": "PULL_REQUEST_CLOSED"},
        {"CODEBUILD_BUILD_ID": "web:1", "CODEBUILD_WEBHOOK_EVENT": "PULL_REQUEST_MERGED"},
        {"CI": "woodpecker", "CI_PIPELINE_EVENT": "pull_request_closed"},
    ],
)
def test_builds_of_closed_requests_have_nothing_to_index(environ: dict[str, str], tmp_path: Path) -> None:
    build = Build.detect(environ, str(tmp_path))
    assert build.is_request
    assert build.nothing_to_index == "The pull request is closed"


def test_a_merged_change_of_gerrit_is_a_push_to_its_branch(tmp_path: Path) -> None:
    environ = JENKINS | {"BRANCH_NAME": "main", "GERRIT_CHANGE_NUMBER": "7", "GERRIT_CHANGE_ID": "I7"}
    merged = Build.detect(environ | {"GERRIT_EVENT_TYPE": "change-merged"}, str(tmp_path))
    assert merged.index_branch("main") is None
    assert merged.is_push_to("main")
    for event in ("patchset-created", "comment-added", "change-abandoned", ""):
        changed = Build.detect(environ | {"GERRIT_EVENT_TYPE": event}, str(tmp_path))
        assert changed.index_branch("main") == "pr/7"
    of_request = environ | {"GERRIT_EVENT_TYPE": "change-merged", "CHANGE_ID": "8"}
    assert Build.detect(of_request, str(tmp_path)).index_branch("main") == "pr/8"


@pytest.mark.parametrize(
    "environ",
    [
        JENKINS | {"GIT_BRANCH": "main", "gitlabActionType": "TAG_PUSH"},
        {"CI": "true", "CI_PIPELINE_EVENT": "tag", "CI_COMMIT_REF": "refs/tags/main"},
        {"CI": "true", "TRAVIS_BRANCH": "main", "TRAVIS_TAG": "main", "TRAVIS_PULL_REQUEST": "false"},
        {"CODEBUILD_BUILD_ID": "web:1", "CODEBUILD_WEBHOOK_HEAD_REF": "refs/tags/main"},
    ],
)
def test_tags_are_recognized_in_builds_of_other_systems(environ: dict[str, str], tmp_path: Path) -> None:
    assert Build.detect(environ, str(tmp_path)).nothing_to_index == "Tag main is not a branch"


@pytest.mark.parametrize(
    "text", ["", "[not json", "[]", '{"pull_request": 7}', '{"pull_request": {"head": null}}', "["]
)
def test_requests_of_unknown_origin_have_a_name_of_their_own(text: str, tmp_path: Path) -> None:
    environ = requested("GitHub Actions", "topic", fork=False, event=tmp_path / "event.json")
    (tmp_path / "event.json").write_text(text if text != "[" else "[" * 100_000)
    assert Build.detect(environ, str(tmp_path)).index_branch("main") == "pr/7"
    assert Build.detect(environ | {"GITHUB_EVENT_PATH": "/nowhere"}, str(tmp_path)).index_branch() == "pr/7"


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ({"event": "push", "head_branch": "main", "head_repository": {"full_name": "team/web"}}, None),
        ({"event": "push", "head_branch": "topic", "head_repository": {"full_name": "team/web"}}, "topic"),
        ({"event": "push", "head_branch": "main", "head_repository": {"full_name": "someone/web"}}, "refused"),
        ({"event": "pull_request", "head_branch": "main", "head_repository": {"full_name": "someone/web"}}, "refused"),
        ({"event": "pull_request", "head_branch": "main", "pull_requests": [{"number": 7}]}, "pr/7"),
    ],
)
def test_a_workflow_triggered_by_another_indexes_the_build_of_the_first(
    run: dict[str, object], expected: str | None, tmp_path: Path
) -> None:
    event = {
        "repository": {"default_branch": "main", "full_name": "team/web"},
        "workflow_run": run | {"head_sha": COMMIT},
    }
    (tmp_path / "event.json").write_text(json.dumps(event))
    environ = GITHUB | {"GITHUB_EVENT_NAME": "workflow_run", "GITHUB_REF": "refs/heads/main"}
    build = Build.detect(environ | {"GITHUB_EVENT_PATH": str(tmp_path / "event.json")}, str(tmp_path))
    if expected == "refused":
        with pytest.raises(UsageError):
            build.index_branch()
    else:
        assert build.index_branch() == expected


def test_a_comment_on_a_pull_request_is_a_build_of_the_request(tmp_path: Path) -> None:
    event = {"repository": {"full_name": "team/web"}, "issue": {"number": 7, "pull_request": {"url": "u"}}}
    (tmp_path / "event.json").write_text(json.dumps(event))
    environ = GITHUB | {"GITHUB_EVENT_NAME": "issue_comment", "GITHUB_REF": "refs/heads/main"}
    environ["GITHUB_EVENT_PATH"] = str(tmp_path / "event.json")
    assert Build.detect(environ, str(tmp_path)).index_branch("main") == "pr/7"


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    return subprocess.run(
        ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.parametrize(
    ("name", "event", "expected"),
    [
        ("issue_comment", {"issue": {"number": 7, "pull_request": {"url": "u"}}}, "pr/7"),
        ("workflow_run", {"workflow_run": {"event": "pull_request", "pull_requests": [{"number": 7}]}}, "pr/7"),
        ("workflow_run", {"workflow_run": {"event": "push", "head_branch": "topic"}}, "topic"),
        ("workflow_run", {"workflow_run": {"event": "push", "head_branch": "main"}}, None),
    ],
)
def test_a_workflow_of_main_must_check_out_what_it_is_about(
    name: str, event: dict[str, Any], expected: str | None, tmp_path: Path
) -> None:
    """Such a workflow checks out main unless it specifies another commit, and main is in every branch's history."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    git(tmp_path, "init", "-q", "-b", "main", str(origin))
    git(origin, "commit", "-q", "--allow-empty", "-m", "main")
    git(origin, "checkout", "-q", "-b", "topic")
    git(origin, "commit", "-q", "--allow-empty", "-m", "topic")
    topic = git(origin, "rev-parse", "HEAD")
    git(tmp_path, "clone", "-q", str(origin), str(clone))
    git(clone, "checkout", "-q", "origin/main")
    main = git(clone, "rev-parse", "HEAD")
    repository = {"default_branch": "main", "full_name": "team/web"}
    for run in [event["workflow_run"]] if "workflow_run" in event else []:
        run |= {"head_repository": repository, "head_sha": topic if run.get("head_branch") != "main" else main}
    (tmp_path / "event.json").write_text(json.dumps(event | {"repository": repository}))
    environ = GITHUB | {"GITHUB_EVENT_NAME": name, "GITHUB_REF": "refs/heads/main", "GITHUB_SHA": main}
    environ["GITHUB_EVENT_PATH"] = str(tmp_path / "event.json")
    if expected is None:
        assert Build.detect(environ, str(clone)).index_branch() is None
        return
    with pytest.raises(UsageError, match="branch of the workflow is checked out"):
        Build.detect(environ, str(clone)).index_branch()
    git(clone, "checkout", "-q", topic)
    build = Build.detect(environ, str(clone))
    assert (build.index_branch(), build.checked_out) == (expected, topic)


def test_the_checked_out_commit_must_be_on_the_branch(tmp_path: Path) -> None:
    """A manual run on main may have checked out anybody's pull request."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    git(origin, "init", "-q", "-b", "main")
    git(origin, "commit", "-q", "--allow-empty", "-m", "one")
    first = git(origin, "rev-parse", "HEAD")
    git(origin, "commit", "-q", "--allow-empty", "-m", "two")
    git(tmp_path, "clone", "-q", str(origin), str(clone))
    environ = by_hand("GitHub Actions", "main") | {"GITHUB_REF": "refs/heads/main", "GITHUB_SHA": first}
    assert Build.detect(environ, str(clone)).index_branch() is None  # a later commit on main
    git(clone, "commit", "-q", "--allow-empty", "-m", "of a pull request")
    with pytest.raises(UsageError, match="is checked out"):
        Build.detect(environ, str(clone)).index_branch()
    after_a_tag = {"event": "push", "head_branch": "main", "head_repository": {"full_name": "team/web"}}
    after_a_tag["head_sha"] = git(clone, "rev-parse", "HEAD")
    (tmp_path / "after.json").write_text(json.dumps({"workflow_run": after_a_tag}))
    run = environ | {"GITHUB_EVENT_NAME": "workflow_run", "GITHUB_EVENT_PATH": str(tmp_path / "after.json")}
    merge = JENKINS | {"BRANCH_NAME": "main", "GIT_COMMIT": git(clone, "rev-parse", "HEAD")}
    merge |= {"GERRIT_EVENT_TYPE": "change-merged", "GERRIT_CHANGE_NUMBER": "7"}
    for inferred in (run, merge, JENKINS | {"GIT_BRANCH": "origin/main"}):
        with pytest.raises(UsageError, match="is not in origin's main"):
            Build.detect(inferred, str(clone)).index_branch("main")
    assert Build.detect({}, str(clone)).index_branch() is None  # by hand
    environ = requested("GitHub Actions", "topic", fork=False, event=tmp_path / "event.json")
    assert Build.detect(environ, str(clone)).index_branch() == "topic"
    git(clone, "checkout", "-q", "--detach", "origin/main")
    with pytest.raises(UsageError, match="target"):
        Build.detect(environ, str(clone)).index_branch()


@pytest.mark.parametrize("system", ["Buildkite", "CircleCI"])
def test_a_push_of_main_with_an_open_request_from_main_is_a_push(system: str, tmp_path: Path) -> None:
    """Both systems name the request in each build of its branch; git proves that the commit is in origin's main."""
    origin, clone = tmp_path / "team" / "web", tmp_path / "clone"
    origin.mkdir(parents=True)
    git(origin, "init", "-q", "-b", "main")
    git(origin, "commit", "-q", "--allow-empty", "-m", "one")
    git(tmp_path, "clone", "-q", str(origin), str(clone))
    commit = git(clone, "rev-parse", "HEAD")

    def outcome(checked_out: str, default: str | None = None, **changed: str) -> str | None:
        variables = requested(system, "main", fork=False, event=tmp_path / "event.json") | {
            BASE_COMMITS[system]: checked_out,
            "BUILDKITE_PULL_REQUEST_BASE_BRANCH": "release",
            "CIRCLE_REPOSITORY_URL": "git@github.com:team/web.git",
        }
        return Build.of_sources(variables | changed, [str(clone)], default)[0].index_branch(default)

    assert outcome(commit) is None
    git(origin, "branch", "develop")
    git(clone, "fetch", "-q")
    assert outcome(commit, "develop", BUILDKITE_BRANCH="develop", CIRCLE_BRANCH="develop") is None
    assert outcome(COMMIT, "develop", BUILDKITE_BRANCH="develop", CIRCLE_BRANCH="develop") == "pr/7"
    assert outcome(commit, BUILDKITE_PULL_REQUEST_REPO="git://a.example/b/c", CIRCLE_PR_USERNAME="someone") == "pr/7"
    assert outcome(commit, BUILDKITE_BRANCH="topic", CIRCLE_BRANCH="topic") == "topic"
    assert outcome(COMMIT) == "pr/7"
    git(clone, "commit", "-q", "--allow-empty", "-m", "not pushed")
    assert outcome(git(clone, "rev-parse", "HEAD")) == "pr/7"
    git(clone, "checkout", "-q", commit)
    git(clone, "remote", "set-url", "origin", "https://git.example/other/web")
    assert outcome(commit) == "pr/7"


def test_jenkins_builds_a_branch_of_a_remote_with_another_name(tmp_path: Path) -> None:
    hosted, clone = tmp_path / "hosted", tmp_path / "clone"
    hosted.mkdir()
    git(hosted, "init", "-q", "-b", "main")
    git(hosted, "commit", "-q", "--allow-empty", "-m", "one")
    git(tmp_path, "clone", "-q", "--origin", "upstream", str(hosted), str(clone))

    def outcome(name: str) -> str | None:
        variables = JENKINS | {"GIT_BRANCH": name, "GIT_COMMIT": git(clone, "rev-parse", "HEAD")}
        return Build.detect(variables, str(clone)).index_branch("main")

    assert outcome("upstream/main") is None
    git(clone, "remote", "add", "origin", "https://git.example/fork/web")
    assert outcome("upstream/main") == "upstream/main"
    git(clone, "remote", "rename", "origin", "fork")
    git(clone, "update-ref", "refs/remotes/fork/main", "HEAD")
    for name in ("fork/main", "upstream/main"):  # nothing tells which of them is the repository
        assert outcome(name) == name
    git(clone, "remote", "remove", "fork")
    git(clone, "commit", "-q", "--allow-empty", "-m", "not pushed")
    with pytest.raises(UsageError, match="not in upstream's main"):
        outcome("upstream/main")


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three repositories: base, a fork of it with one commit more, and a clone of the fork."""
    folder = tmp_path_factory.mktemp("repositories")
    git(folder, "init", "-q", "-b", "main", "base")
    git(folder / "base", "commit", "-q", "--allow-empty", "-m", "official")
    git(folder, "clone", "-q", str(folder / "base"), "fork")
    git(folder / "fork", "commit", "-q", "--allow-empty", "-m", "of the fork")
    git(folder, "clone", "-q", str(folder / "fork"), "clone")
    return folder


@pytest.fixture
def fork(repositories: Path, tmp_path: Path) -> Path:
    """A full clone of a fork whose branch main has one commit more than ``tmp_path/base``, which is also fetched."""
    shutil.copytree(repositories, tmp_path, dirs_exist_ok=True)
    for name in ("fork", "clone"):
        config = tmp_path / name / ".git" / "config"
        config.write_text(config.read_text().replace(str(repositories), str(tmp_path)))
    return tmp_path / "clone"


OTHER_REQUESTS = {
    "Codemagic": {"CM_PULL_REQUEST": "true", "CM_PULL_REQUEST_NUMBER": "7", "CM_BRANCH": "main"},
    "Xcode Cloud": {"CI_PULL_REQUEST_NUMBER": "7", "CI_PULL_REQUEST_SOURCE_REPO": "evil/r", "CI_BRANCH": "main"},
    "Netlify": {"PULL_REQUEST": "true", "REVIEW_ID": "7", "BRANCH": "pull/7/head", "HEAD": "main"},
    "Codefresh": {"CF_PULL_REQUEST_NUMBER": "7", "CF_PULL_REQUEST_ID": "9", "CF_BRANCH": "main"},
    "Screwdriver": {"SD_PULL_REQUEST": "7"},
    "Buddy": {"BUDDY_EXECUTION_PULL_REQUEST_NO": "7", "BUDDY_EXECUTION_BRANCH": "main"},
    "Amplify": {"AWS_PULL_REQUEST_ID": "7", "AWS_BRANCH": "main"},
    "Cirrus": {"CIRRUS_PR": "7", "CIRRUS_BRANCH": "main"},
    "Semaphore": {"SEMAPHORE_GIT_PR_NUMBER": "7", "SEMAPHORE_GIT_BRANCH": "main"},
    "Bamboo": {"bamboo_repository_pr_key": "7", "CI_COMMIT_BRANCH": "main"},
    "Zuul": {"ZUUL_PIPELINE": "check", "ZUUL_CHANGE": "7", "ZUUL_BRANCH": "main"},
    "GoCD": {"GO_PIPELINE_NAME": "p", "GO_SCM_R_PR_ID": "7", "GO_SCM_R_PR_BRANCH": "evil:main"},
    "CodeBuild": {"CODEBUILD_BUILD_ID": "b", "CODEBUILD_SOURCE_VERSION": "pr/7"},
    "Stash builder": JENKINS | {"GIT_BRANCH": "origin/main", "pullRequestId": "7", "sourceRepositoryOwner": "evil"},
    "GitHub builder": JENKINS | {"GIT_BRANCH": "origin/main", "GITHUB_PR_NUMBER": "7", "GITHUB_PR_SOURCE_BRANCH": "x"},
}


@pytest.mark.parametrize("name", OTHER_REQUESTS)
def test_other_systems_requests_are_recognized_by_their_variables(name: str, fork: Path) -> None:
    said = {"CI": "true"} | OTHER_REQUESTS[name]
    assert Build.detect(said, str(fork)).index_branch("main") == "pr/7"
    absent = {key: "false" if value in ("7", "true") else "" for key, value in OTHER_REQUESTS[name].items()}
    assert not Build.detect({"CI": "true"} | absent, str(fork)).is_request


@pytest.mark.parametrize("name", ["Zuul", "GoCD", "CodeBuild"])
def test_systems_that_do_not_set_ci_have_variables_of_their_own(name: str, fork: Path) -> None:
    assert Build.detect(OTHER_REQUESTS[name], str(fork)).index_branch("main") == "pr/7"


@pytest.mark.parametrize(
    "environ",
    [
        {"APP_PR": "12"},
        {"LAST_CHANGE": "2026"},
        {"TEAM_PR": "yes"},
        {"REVIEW_ID": "7"},
        {"PULL_REQUEST_TEMPLATE": "docs/template.md"},
        {"IS_PULL_REQUEST": "false"},
    ],
)
def test_outside_ci_variables_that_look_like_a_pull_request_do_not_count(environ: dict[str, str], fork: Path) -> None:
    git(fork, "checkout", "-q", "-b", "topic")
    build = Build.detect(environ, str(fork))
    assert (build.system, build.index_branch("main")) == ("", "topic")


@pytest.mark.parametrize(
    "environ",
    [
        {"AWS_PULL_REQUEST_ID": "7", "AWS_BRANCH": "main"},
        {"APP_MERGE_REQUEST": "https://git.example/team/web/merge_requests/7"},
        {"PULL_REQUEST": "true", "REVIEW_ID": "7"},
        {"CODEBUILD_SOURCE_VERSION": "pr/7"},
    ],
)
def test_without_ci_a_pull_request_is_refused_naming_the_variable(
    environ: dict[str, str], fork: Path, tmp_path: Path
) -> None:
    for folder in (fork, tmp_path):
        build = Build.detect(environ, str(folder))
        with pytest.raises(UsageError, match=f"{next(iter(environ))} indicates a pull request, .* Set CI=true"):
            build.index_branch("main")
        with pytest.raises(UsageError, match="indicates a pull request"):
            build.is_push_to("main")


@pytest.mark.parametrize(
    "environ",
    [
        {"CI": "true"},
        {"CONTINUOUS_INTEGRATION": "true"},
        {"TEAMCITY_VERSION": "2026.1"},
        {"BUILD_ID": "1", "BUILD_PIPELINE_NAME": "pr", "ATC_EXTERNAL_URL": "https://ci"},
        {"CI": "true", "RENDER": "true", "IS_PULL_REQUEST": "true", "RENDER_GIT_BRANCH": "main"},
    ],
)
def test_git_alone_does_not_show_that_main_was_pushed(environ: dict[str, str], fork: Path) -> None:
    with pytest.raises(UsageError, match=r"CI_COMMIT_BRANCH|number"):
        Build.detect(environ, str(fork)).index_branch()


URLS = {
    "https://github.com/someone/web": False,
    "git@github.com:someone/web.git": False,
    "https://github.com/team/web2": False,
    "https://token@github.com/team/web.git": True,
    "ssh://git@mirror.example:22/team/web": True,
    "github-alias:team/web.git": True,
}


@pytest.mark.parametrize("event", ["repository_dispatch", "workflow_dispatch", "check_run", "push"])
@pytest.mark.parametrize("url", URLS)
def test_a_clone_of_another_repository_is_not_a_build_of_main(
    url: str, event: str, fork: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(fork, "remote", "set-url", "origin", url)
    said = {"GITHUB_EVENT_NAME": event, "GITHUB_REF": "refs/heads/main", "GITHUB_SHA": COMMIT}
    monkeypatch.chdir(fork.parent)
    for folder in (str(fork), fork.name):
        build = Build.detect(GITHUB | said, folder)
        if URLS[url]:
            assert build.index_branch("main") is None
            continue
        with pytest.raises(UsageError, match="This build is of team/web, but"):
            build.index_branch("main")


AZURE_URLS = {
    "https://dev.azure.com/org/_git/web": True,
    "https://dev.azure.com/org/web/_git/web": True,
    "https://org@dev.azure.com/org/web/_git/web": True,
    "git@ssh.dev.azure.com:v3/org/web/web": True,
    "https://org.visualstudio.com/_git/web": True,
    "https://dev.azure.com/org/team/_git/web": False,
    "https://dev.azure.com/other/_git/web": False,
    "git@ssh.dev.azure.com:v3/other/web/web": False,
}


@pytest.mark.parametrize("built", ["https://dev.azure.com/org/_git/web", "https://dev.azure.com/org/web/_git/web"])
@pytest.mark.parametrize("url", AZURE_URLS)
def test_azure_may_leave_out_a_project_with_the_name_of_the_repository(url: str, built: str, fork: Path) -> None:
    git(fork, "remote", "set-url", "origin", url)
    environ = pushed("Azure Pipelines", "main") | {"BUILD_REPOSITORY_URI": built}
    if AZURE_URLS[url]:
        assert Build.detect(environ, str(fork)).index_branch("main") is None
        return
    with pytest.raises(UsageError, match="This build is of"):
        Build.detect(environ, str(fork)).index_branch("main")


@pytest.mark.parametrize("blank", [" ", "%20"])
def test_a_repository_is_the_same_whether_its_url_is_quoted(blank: str, fork: Path) -> None:
    git(fork, "remote", "set-url", "origin", f"https://dev.azure.com/org/My{blank}Team/_git/My%20Repo")
    for built in (" ", "%20"):
        uri = f"https://dev.azure.com/org/My%20Team/_git/My{built}Repo"
        environ = pushed("Azure Pipelines", "main") | {"BUILD_REPOSITORY_URI": uri}
        assert Build.detect(environ, str(fork)).index_branch("main") is None


@pytest.mark.parametrize("system", [*BASES, "any"])
def test_a_commit_outside_the_branch_of_origin_is_not_a_push_to_it(system: str, fork: Path, tmp_path: Path) -> None:
    """The system reports main and the commit that is checked out, but git knows better."""
    commit = git(fork, "rev-parse", "HEAD")
    any_system = {"CI": "true", "CI_COMMIT_BRANCH": "main", "CI_COMMIT_SHA": COMMIT}
    reported = any_system if system == "any" else pushed(system, "main")
    environ = {name: value.replace(COMMIT, commit) for name, value in reported.items()}
    assert Build.detect(environ, str(fork)).index_branch("main") is None
    git(fork, "remote", "set-url", "origin", str(tmp_path / "base"))
    git(fork, "fetch", "-q", "origin")
    with pytest.raises(UsageError, match="which is not in origin's main"):
        Build.detect(environ, str(fork)).index_branch("main")
    git(tmp_path / "base", "fetch", "-q", str(fork), "main")
    git(tmp_path / "base", "reset", "-q", "--hard", commit)
    assert Build.detect(environ, str(fork)).index_branch("main") is None  # it was pushed since the clone last fetched


def test_outside_ci_what_is_checked_out_is_indexed_as_its_branch(fork: Path) -> None:
    assert Build.detect({}, str(fork)).index_branch() is None
    git(fork, "checkout", "-q", "--detach")
    assert Build.detect({}, str(fork)).index_branch() is None  # in origin's main
    git(fork, "commit", "-q", "--allow-empty", "-m", "on no branch")
    with pytest.raises(UsageError, match="on no local branch"):
        Build.detect({}, str(fork)).index_branch()
    git(fork, "checkout", "-q", "-b", "topic")
    assert Build.detect({}, str(fork)).index_branch() == "topic"
    assert Build.detect({}, str(fork)).index_branch("topic") is None
    git(fork, "remote", "remove", "origin")
    with pytest.raises(UsageError, match="--default-branch"):
        Build.detect({}, str(fork)).index_branch()


@pytest.mark.parametrize("system", ["GitHub Actions", "Jenkins"])
def test_another_commit_of_a_branch_that_was_not_fetched_is_refused(system: str, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "the tip of main")
    run = {"event": "push", "head_branch": "feature", "head_repository": {"full_name": "team/web"}}

    def built(commit: str) -> Build:
        event = {"repository": {"default_branch": "main"}, "workflow_run": run | {"head_sha": commit}}
        (tmp_path / "event.json").write_text(json.dumps(event))
        said = {
            "GitHub Actions": {
                "GITHUB_EVENT_NAME": "workflow_run",
                "GITHUB_REF": "refs/heads/main",
                "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
            },
            "Jenkins": {"GIT_BRANCH": "origin/feature", "GIT_COMMIT": commit},
        }
        return Build.detect(BASES[system] | said[system], str(tmp_path))

    with pytest.raises(UsageError, match=f"is of {COMMIT[:12]}, but .* is checked out"):
        built(COMMIT).index_branch("main")
    assert built(git(tmp_path, "rev-parse", "HEAD")).index_branch("main") == "feature"


@pytest.mark.parametrize("system", ["Jenkins", "CircleCI", "Azure Pipelines", "Bitbucket Pipelines", "GitHub Actions"])
def test_without_a_known_default_branch_only_the_usual_names_are_the_main_index(system: str, tmp_path: Path) -> None:
    for branch in ("main", "master"):
        assert Build.detect(pushed(system, branch), str(tmp_path)).index_branch() is None
    with pytest.raises(UsageError, match="--default-branch"):
        Build.detect(pushed(system, "trunk"), str(tmp_path)).index_branch()
    assert Build.detect(pushed(system, "main"), str(tmp_path)).index_branch("trunk") == "main"


def test_jenkins_names_the_primary_branch(tmp_path: Path) -> None:
    environ = pushed("Jenkins", "trunk") | {"BRANCH_IS_PRIMARY": "true"}
    assert Build.detect(environ, str(tmp_path)).index_branch() is None
    assert Build.detect(JENKINS | {"GIT_BRANCH": "origin/main"}, str(tmp_path)).index_branch() is None


# Several sources.


def repository_at(folder: Path, branch: str, origin: str | None = None) -> Path:
    folder.mkdir()
    git(folder, "init", "-q", "-b", branch)
    git(folder, "commit", "-q", "--allow-empty", "-m", folder.name)
    if origin:
        git(folder, "remote", "add", "origin", origin)
    return folder


@pytest.mark.parametrize(
    ("first", "second", "default", "expected"),
    [
        ("main", "main", None, None),
        ("main", "topic", None, "different branches"),
        ("topic", "main", None, "different branches"),
        ("topic", "topic", None, "unknown whether topic"),
        ("topic", "topic", "main", "topic"),
        ("topic", "topic", "topic", None),
        ("main", "topic", "topic", "different branches"),
        ("", "topic", "main", "topic"),
        ("", "main", None, None),
        ("topic", "", "main", "topic"),
        ("", "", None, None),
    ],
)
def test_the_branch_of_a_run_is_the_branch_of_all_its_sources(
    first: str, second: str, default: str | None, expected: str | None, tmp_path: Path
) -> None:
    """Without a branch, a folder is outside git."""
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder, branch in zip(folders, (first, second), strict=True):
        repository_at(folder, branch) if branch else folder.mkdir()
    for order in ([*folders], [*folders, "s3://bucket/prefix"], ["s3://bucket/prefix", *folders]):
        builds = Build.of_sources({}, [str(folder) for folder in order], default)
        assert len(builds) == len(order)
        for build in builds:
            if expected in (None, "topic"):
                assert build.index_branch(default) == expected
                continue
            with pytest.raises(UsageError, match=str(expected)):
                build.index_branch(default)


@pytest.mark.parametrize("system", BASES)
@pytest.mark.parametrize("situation", ["push", "tag", "own request", "fork request"])
def test_a_build_of_one_repository_does_not_index_another(system: str, situation: str, tmp_path: Path) -> None:
    web = repository_at(tmp_path / "web", "main", "https://github.com/team/web.git")
    other = repository_at(tmp_path / "other", "main", "https://github.com/team/other.git")
    plain = tmp_path / "plain"
    plain.mkdir()
    environ = {
        name: git(web, "rev-parse", "HEAD") if value == COMMIT else value
        for name, value in {
            "push": lambda: pushed(system, "main"),
            "tag": lambda: tagged(system, "v1"),
            "own request": lambda: requested(system, "topic", fork=False, event=tmp_path / "event.json"),
            "fork request": lambda: requested(system, "topic", fork=True, event=tmp_path / "event.json"),
        }[situation]().items()
    }

    def outcome(*folders: Path) -> str | None:
        try:
            return Build.of_sources(environ, [str(folder) for folder in folders], "main")[0].index_branch("main")
        except UsageError as error:
            return str(error)

    alone = outcome(web)
    assert outcome(web, plain) == outcome(plain, web) == outcome(web, web) == alone
    for folders in ((web, other), (other, web), (plain, web, other)):
        assert outcome(*folders) not in (None, "topic", "pr/7")


def test_a_repository_on_a_host_has_no_branch_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository_at(tmp_path / "web", "topic"))
    (build,) = Build.of_sources({}, ["git@host.example:team/app.git"])
    assert (build.branch, build.index_branch()) == (None, None)


def test_a_submodule_follows_the_repository_that_pins_it(tmp_path: Path) -> None:
    web = repository_at(tmp_path / "web", "main", "https://github.com/team/web.git")
    for name, around in (("lib", web), ("inner", web / "lib")):
        part = repository_at(tmp_path / name, "topic")
        git(around, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(part), name)
    environ = {
        name: git(web, "rev-parse", "HEAD") if v == COMMIT else v
        for name, v in pushed("GitHub Actions", "main").items()
    }
    nested = web / "lib" / "inner"
    for folders in ((web, web / "lib"), (web / "lib", web), (nested, web)):
        builds = Build.of_sources(environ, [str(folder) for folder in folders], "main")
        assert [build.index_branch("main") for build in builds] == [None, None]
    clone = repository_at(web / "clone", "main", "https://github.com/team/other.git")
    with pytest.raises(UsageError, match=r"other\.git is checked out"):
        Build.of_sources(environ, [str(web), str(clone)], "main")[0].index_branch("main")


def test_the_commit_of_each_source_is_its_own(tmp_path: Path) -> None:
    web, other = repository_at(tmp_path / "web", "main"), repository_at(tmp_path / "other", "main")
    builds = Build.of_sources({}, [str(web), str(other), str(web)])
    assert [build.commit for build in builds] == [git(each, "rev-parse", "HEAD") for each in (web, other, web)]

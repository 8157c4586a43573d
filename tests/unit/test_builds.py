"""The commit and branch of a CI build."""

from __future__ import annotations

import subprocess
from pathlib import Path

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
    told = {"GITLAB_CI": "1", "CI_COMMIT_SHA": COMMIT, "CI_COMMIT_TIMESTAMP": "2026-11-22T03:04:05+01:00"}
    committed = Build.detect(told, "/").committed
    assert committed is not None
    assert committed.isoformat() == "2026-11-22T03:04:05+01:00"
    assert Build.detect(told | {"CI_COMMIT_TIMESTAMP": "yesterday"}, "/").committed is None


def test_a_build_without_a_known_commit_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="CI_COMMIT_SHA"):
        Build.detect({}, str(tmp_path)).required_commit()


GITHUB = {"GITHUB_ACTIONS": "true", "GITHUB_SHA": COMMIT, "GITHUB_RUN_NUMBER": "12"}
GITLAB = {"GITLAB_CI": "true", "CI_COMMIT_SHA": COMMIT, "CI_DEFAULT_BRANCH": "main", "CI_PIPELINE_IID": "5"}
PULL = {"GITHUB_REF": "refs/pull/7/merge", "GITHUB_BASE_REF": "main"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({**GITHUB, "GITHUB_REF_NAME": "main"}, (None, 12)),
        ({**GITHUB, "GITHUB_REF_NAME": "topic"}, ("topic", 12)),
        ({**GITHUB, **PULL, "GITHUB_HEAD_REF": "topic"}, ("topic", 12)),
        ({**GITHUB, **PULL, "GITHUB_HEAD_REF": "main"}, ("pr/7", 12)),
        ({**GITLAB, "CI_COMMIT_BRANCH": "main"}, (None, 5)),
        ({**GITLAB, "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME": "a/b", "CI_MERGE_REQUEST_IID": "3"}, ("a/b", 5)),
        (
            {
                **GITLAB,
                "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME": "a/b",
                "CI_MERGE_REQUEST_IID": "3",
                "CI_MERGE_REQUEST_SOURCE_PROJECT_ID": "8",
                "CI_PROJECT_ID": "9",
            },
            ("pr/3", 5),
        ),
        ({"JENKINS_URL": "x", "GIT_COMMIT": COMMIT, "CHANGE_BRANCH": "topic", "CHANGE_ID": "4"}, ("topic", None)),
        (
            {
                "TF_BUILD": "True",
                "BUILD_SOURCEVERSION": COMMIT,
                "BUILD_SOURCEBRANCH": "refs/heads/a/b",
                "BUILD_BUILDID": "2",
            },
            ("a/b", 2),
        ),
        (
            {
                "BITBUCKET_BUILD_NUMBER": "9",
                "BITBUCKET_COMMIT": COMMIT,
                "BITBUCKET_BRANCH": "topic",
                "BITBUCKET_PR_ID": "1",
            },
            ("topic", 9),
        ),
        (
            {"BUILDKITE": "true", "BUILDKITE_BRANCH": "topic", "BUILDKITE_PIPELINE_DEFAULT_BRANCH": "topic"},
            (None, None),
        ),
        ({"CIRCLECI": "true", "CIRCLE_BRANCH": "topic", "CIRCLE_BUILD_NUM": "3"}, ("topic", 3)),
        ({}, (None, None)),
    ],
)
def test_a_build_indexes_its_branch(environ: dict[str, str], expected: tuple[str | None, int | None]) -> None:
    build = Build.detect(environ, "/")
    default = None if "BUILDKITE" in environ or "GITLAB_CI" in environ else "main"
    assert (build.index_branch(default), build.number) == expected


def test_a_pull_request_of_a_fork_has_a_name_of_its_own(tmp_path: Path) -> None:
    event = tmp_path / "event.json"
    environ = {**GITHUB, **PULL, "GITHUB_HEAD_REF": "topic", "GITHUB_REPOSITORY": "team/web"}
    environ["GITHUB_EVENT_PATH"] = str(event)
    for repository, expected in (("team/web", "topic"), ("someone/web", "pr/7")):
        event.write_text(
            f'{{"repository": {{"default_branch": "main"}}, '
            f'"pull_request": {{"head": {{"repo": {{"full_name": "{repository}"}}}}}}}}'
        )
        assert Build.detect(environ, str(tmp_path)).index_branch() == expected
    event.write_text("[not json")
    assert Build.detect(environ, str(tmp_path)).index_branch("main") == "topic"
    assert Build.detect(environ, str(tmp_path)).index_branch() == "topic"


def test_where_the_default_branch_is_unknown_a_push_goes_to_the_main_index(tmp_path: Path) -> None:
    build = Build.detect({**GITHUB, "GITHUB_REF_NAME": "topic"}, str(tmp_path))
    assert build.index_branch() is None

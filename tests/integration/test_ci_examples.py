"""The shell steps in the CI examples, run as by a CI runner: a checkout, its variables, and a workspace in a bucket."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.servers.s3_server import S3Server
from tests.support.ci_examples import Job, github_jobs, gitlab_jobs
from tests.support.processes import forked_command


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A shallow clone of a repository with one commit."""
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "-q", "-b", "main")
    (origin / "a.py").write_text("alpha = 1\n")
    git(origin, "add", "-A")
    git(origin, "commit", "-qm", "one")
    git(tmp_path, "clone", "-q", "--depth", "100", f"file://{origin}", "web")
    return tmp_path / "web"


def path() -> str:
    """The PATH on which scripts find the command, and the Python that has Driftline."""
    return os.pathsep.join([str(forked_command().parent), str(Path(sys.executable).parent), os.environ["PATH"]])


def run(job: Job, checkout: Path, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DRIFTLINE_", "CI_", "GITHUB_", "GITLAB_")) and name != "CI"
    }
    environment = {**inherited, **job.variables, **variables, "PATH": path()}
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", job.script],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def s3_variables(server: S3Server, bucket: str) -> dict[str, str]:
    return {
        "DRIFTLINE_WORKSPACE": f"{bucket}/driftline",
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_REGION": "us-east-1",
    }


def test_the_jobs_for_github_index_a_push_and_check_a_pull_request(
    checkout: Path, s3_server: S3Server, s3_bucket: str, tmp_path: Path
) -> None:
    jobs = github_jobs()
    runner = s3_variables(s3_server, s3_bucket) | {
        "CI": "true",
        "GITHUB_ACTIONS": "true",
        "GITHUB_SHA": git(checkout, "rev-parse", "HEAD"),
        "GITHUB_REF_NAME": "main",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "RUNNER_TEMP": str(tmp_path),
    }
    too_early = run(jobs["fresh"], checkout, runner)
    assert too_early.returncode == 2, too_early.stderr
    indexed = run(jobs["index"], checkout, runner)
    assert indexed.returncode == 0, indexed.stderr
    report = json.loads((tmp_path / "driftline-ci.json").read_text())
    assert (report["commit"], report["run"]["sources"][0]["new"]) == (runner["GITHUB_SHA"], 1)
    assert "up to date with" in (tmp_path / "summary.md").read_text()
    fresh = run(jobs["fresh"], checkout, runner)
    assert fresh.returncode == 0, fresh.stderr
    run(jobs["index"], checkout, runner)
    report = json.loads((tmp_path / "driftline-ci.json").read_text())
    assert report["run"]["sources"][0]["base"] == runner["GITHUB_SHA"]  # the jobs do not change the checkout


def test_the_jobs_for_gitlab_index_the_default_branch(checkout: Path, s3_server: S3Server, s3_bucket: str) -> None:
    runner = s3_variables(s3_server, s3_bucket) | {
        "CI": "true",
        "GITLAB_CI": "true",
        "CI_COMMIT_SHA": git(checkout, "rev-parse", "HEAD"),
        "CI_COMMIT_BRANCH": "main",
    }
    indexed = run(gitlab_jobs()["driftline-index"], checkout, runner)
    assert indexed.returncode == 0, indexed.stderr
    assert "up to date with" in (checkout / "driftline-ci.md").read_text()
    assert "1 new" in indexed.stdout


def event_of(repository: str, commit: str, action: str) -> dict[str, object]:
    """Return GitHub's variables and event for pull request 7, from branch topic of ``repository``."""
    head = {"ref": "topic", "sha": commit, "repo": {"full_name": repository}}
    pull_request = {"number": 7, "head": head, "base": {"ref": "main"}}
    of = {"default_branch": "main", "full_name": "team/web"}
    return {"action": action, "number": 7, "pull_request": pull_request, "repository": of}


def test_the_jobs_for_pull_requests_index_and_delete_a_branch(
    checkout: Path, s3_server: S3Server, s3_bucket: str, tmp_path: Path
) -> None:
    jobs = github_jobs()
    runner = s3_variables(s3_server, s3_bucket) | {"CI": "true", "GITHUB_ACTIONS": "true", "RUNNER_TEMP": str(tmp_path)}
    push = runner | {"GITHUB_SHA": git(checkout, "rev-parse", "HEAD"), "GITHUB_REF_NAME": "main"}
    assert run(jobs["index"], checkout, push).returncode == 0
    git(checkout, "checkout", "-q", "-b", "topic")
    (checkout / "b.py").write_text("zebra = 1\n")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "two")
    event = tmp_path / "event.json"
    pull_request = runner | {"GITHUB_SHA": "f" * 40, "GITHUB_HEAD_REF": "topic", "GITHUB_EVENT_PATH": str(event)}
    pull_request |= {"GITHUB_REF": "refs/pull/7/merge", "GITHUB_BASE_REF": "main", "GITHUB_EVENT_NAME": "pull_request"}
    event.write_text(json.dumps(event_of("team/web", git(checkout, "rev-parse", "HEAD"), "synchronize")))
    indexed = run(jobs["branch"], checkout, pull_request)
    assert indexed.returncode == 0, indexed.stderr
    assert "as the branch topic of the index" in indexed.stdout
    found = subprocess.run(
        [forked_command(), "search", "zebra", "--branch", "topic"],
        env=os.environ | runner,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "b.py:1" in found.stdout, found.stderr
    nowhere = tmp_path / "no-checkout"
    nowhere.mkdir()
    for repository, deleted in (("someone/web", False), ("team/web", True), ("team/web", False)):
        event.write_text(json.dumps(event_of(repository, "e" * 40, "closed")))
        closed = run(jobs["closed"], nowhere, pull_request)
        assert closed.returncode == 0, closed.stderr
        assert ("deleted the branch topic" in closed.stdout) == deleted


def test_the_jobs_for_merge_requests_index_and_prune_branches(
    checkout: Path, s3_server: S3Server, s3_bucket: str
) -> None:
    jobs = gitlab_jobs()
    runner = s3_variables(s3_server, s3_bucket) | {"CI": "true", "GITLAB_CI": "true", "CI_DEFAULT_BRANCH": "main"}
    runner["CI_COMMIT_SHA"] = git(checkout, "rev-parse", "HEAD")
    assert run(jobs["driftline-index"], checkout, runner | {"CI_COMMIT_BRANCH": "main"}).returncode == 0
    merge_request = runner | {"CI_MERGE_REQUEST_SOURCE_BRANCH_NAME": "topic", "CI_MERGE_REQUEST_IID": "3"}
    merge_request |= {"CI_MERGE_REQUEST_SOURCE_PROJECT_ID": "9", "CI_PROJECT_ID": "9"}
    indexed = run(jobs["driftline-branch"], checkout, merge_request)
    assert indexed.returncode == 0, indexed.stderr
    assert "as the branch topic of the index" in (checkout / "driftline-ci.md").read_text()
    pruned = run(jobs["driftline-prune"], checkout, runner)
    assert pruned.returncode == 0, pruned.stderr
    assert "topic" in pruned.stdout


def test_a_failing_step_fails_its_job(checkout: Path) -> None:
    runner = {"DRIFTLINE_WORKSPACE": "nowhere://x", "RUNNER_TEMP": str(checkout.parent)}
    assert run(github_jobs()["index"], checkout, runner).returncode == 2  # not the exit code of tee


@pytest.mark.parametrize("jobs", [github_jobs(), gitlab_jobs()])
def test_every_job_installs_driftline_and_holds_no_secret(jobs: Mapping[str, Job]) -> None:
    assert len(jobs) == 5
    assert "--deployment web " in list(jobs.values())[4].script
    for job in jobs.values():
        assert len(job.installs) == 1
        assert "driftline" in job.installs[0]
        secrets = {name: value for name, value in job.variables.items() if "KEY" in name or "AUTH" in name}
        assert all(value.startswith("${{ secrets.") for value in secrets.values())

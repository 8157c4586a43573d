"""``driftline ci`` in a repository: scanned paths, output as text and JSON, and failures."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from driftline.flows.output.report_page import History, newest_runs
from driftline.flows.runs.plan import _default_entity
from driftline.storage.entities import Entity
from driftline.storage.errors import UsageError
from driftline.storage.layout import new_ulid
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.records import RunHistory, SourceRecord
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.maintenance.verification import repair_source
from tests.support.oracle import assert_in_step, files_below
from tests.support.processes import ForkedReader
from tests.support.waiting import PATIENCE_SECONDS

Driftline = Callable[..., Any]
ENTITY = Entity.parse("source:web")


def git(folder: Path, *arguments: str, date: str | None = None) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    environment = os.environ | ({"GIT_COMMITTER_DATE": date} if date else {})
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True, env=environment
    )
    return done.stdout.strip()


def commit(folder: Path, date: str | None = None) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "a commit", date=date)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "web"
    for name, text in {"src/a.py": "alpha = 1\n", "src/b.py": "beta = 2\n", "docs/c.md": "# Gamma\n"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "-q", "-b", "main")
    commit(root)
    return root


@pytest.fixture
def ci(
    driftline: Driftline, repository: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Driftline:
    """Run ``driftline ci`` in the repository, outside any CI system, into a workspace next to it."""
    for name in list(os.environ):
        if name == "CI" or name.startswith(("CI_", "GITHUB_", "GITLAB_", "DRIFTLINE_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(repository)

    def run(*arguments: object) -> Any:
        model = () if "--max-staleness" in arguments else ("--model", tiny_model)
        return driftline("ci", "--workspace", tmp_path / "index", *model, *arguments)

    return run


def source_of(outcome: Any) -> dict[str, Any]:
    assert outcome.code == 0, outcome.out + outcome.err
    (source,) = outcome.json["run"]["sources"]
    return dict(source)


def assert_exact(repository: Path, tmp_path: Path) -> None:
    files = {path: data for path, data in files_below(repository).items() if not path.startswith(".git/")}
    assert_in_step(Workspace.open(str(tmp_path / "index")), ENTITY, files)


# Scanned paths.


def test_only_changed_paths_are_scanned_and_the_index_equals_a_full_scan(
    ci: Driftline, repository: Path, tmp_path: Path
) -> None:
    first = source_of(ci("--json"))
    assert (first["new"], first["base"], first["commit"]) == (3, None, git(repository, "rev-parse", "HEAD"))
    (repository / "src" / "a.py").write_text("alpha = 'edited'\n")
    git(repository, "mv", "src/b.py", "docs/moved.py")
    (repository / "docs" / "c.md").unlink()
    (repository / "new.txt").write_text("delta\n")
    now = commit(repository)
    second = source_of(ci("--json"))
    counts = {name: second[name] for name in ("new", "changed", "touched", "unchanged", "deleted")}
    assert counts == {"new": 2, "changed": 1, "touched": 0, "unchanged": 0, "deleted": 2}
    assert (second["commit"], second["base"], second["documents_total"]) == (now, first["commit"], 3)
    assert_exact(repository, tmp_path)


def test_an_index_run_can_scan_only_changed_paths(
    ci: Driftline, driftline: Driftline, repository: Path, tmp_path: Path
) -> None:
    first = source_of(ci("--json"))
    (repository / "new.txt").write_text("delta\n")
    commit(repository)
    done = driftline("index", ".", "--ci", "--workspace", tmp_path / "index", "--json")
    (second,) = done.json["sources"]
    assert (done.code, second["base"], second["new"], second["unchanged"]) == (0, first["commit"], 1, 0)
    assert_exact(repository, tmp_path)


def test_many_deletions_of_one_commit_are_judged_by_the_whole_source(
    ci: Driftline, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftline.flows.runs.remove.GUARDED_DOCUMENTS", 0)
    source_of(ci("--json"))
    (repository / "src" / "a.py").unlink()
    commit(repository)
    assert source_of(ci("--json"))["deleted"] == 1  # a third of the source, but all scanned paths
    (repository / "src" / "b.py").unlink()
    (repository / "docs" / "c.md").write_text("# Other\n")
    commit(repository)
    assert source_of(ci("--json"))["deleted"] == 1
    (repository / "docs" / "c.md").unlink()
    (repository / "other.md").write_text("# None of these\n")
    commit(repository)
    refused = ci("--json")
    assert (refused.code, refused.json["error"]) == (3, "deletion_refused")
    confirmed = source_of(ci("--json", "--max-delete-fraction", 1))
    assert (confirmed["deleted"], confirmed["base"]) == (1, None)  # rejected deletions require a full scan


@pytest.mark.parametrize(
    ("rerun", "number", "action", "sources", "more"),
    [
        pytest.param("HEAD~1", 7, "stale", (), (), id="an older build again"),
        pytest.param("HEAD~1", 7, "stale", ("src", "docs"), (), id="an older build of two sources"),
        pytest.param("HEAD~1", 7, "stale", (), ("--full",), id="an older build that reads everything"),
        pytest.param("HEAD~1", 9, "indexed", (), (), id="a force-push to an earlier commit"),
        pytest.param("HEAD~1", None, "indexed", (), (), id="no number"),
        pytest.param("HEAD", 7, "indexed", (), (), id="an older build of the same commit"),
    ],
)
def test_a_build_that_runs_again_does_not_set_the_main_index_back(
    rerun: str,
    number: int | None,
    action: str,
    sources: tuple[str, ...],
    more: tuple[str, ...],
    ci: Driftline,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build(number: int | None, *more: str) -> dict[str, Any]:
        monkeypatch.setenv("GITLAB_CI", "true")
        monkeypatch.setenv("CI_DEFAULT_BRANCH", "main")
        monkeypatch.setenv("CI_COMMIT_BRANCH", "main")
        monkeypatch.setenv("CI_PIPELINE_SOURCE", "push")
        monkeypatch.setenv("CI_COMMIT_SHA", git(repository, "rev-parse", "HEAD"))
        if number is None:
            monkeypatch.delenv("CI_PIPELINE_IID")
        else:
            monkeypatch.setenv("CI_PIPELINE_IID", str(number))
        done = ci(*sources, "--json", *more)
        assert done.code == 0, done.err
        return dict(done.json)

    (repository / "src" / "a.py").write_text("alpha = 'edited'\n")
    commit(repository, "2090-01-01T00:00:00Z")  # git counts seconds, and all of this may take less than one
    build(8)
    git(repository, "checkout", "-q", rerun)
    assert build(number, *more)["action"] == action
    git(repository, "checkout", "-q", "main")
    (repository / "src" / "a.py").write_text("alpha = 'edited again'\n")
    commit(repository, "2090-01-02T00:00:00Z")
    assert build(3)["action"] == "indexed"  # the numbers began again


@pytest.mark.parametrize("event", ["force-push", "branch"])
def test_a_force_push_and_a_branch_are_compared_by_their_files(
    event: str, ci: Driftline, repository: Path, tmp_path: Path
) -> None:
    (repository / "src" / "a.py").write_text("alpha = 'pushed'\n")
    commit(repository)
    pushed = source_of(ci("--json"))
    if event == "branch":
        git(repository, "switch", "-qc", "topic", "HEAD~1")
    else:
        git(repository, "reset", "-q", "--hard", "HEAD~1")
    (repository / "src" / "b.py").write_text("beta = 'pushed instead'\n")
    commit(repository)
    if event == "branch":
        assert ci("--json").code == 2  # it would replace the main index
    found = source_of(ci("--json", *(["--branch", "topic"] if event == "branch" else [])))
    assert (found["base"], found["changed"]) == (pushed["commit"], 2)
    assert_exact(repository, tmp_path)


def test_a_shallow_clone_is_scanned_and_embeds_nothing_twice(ci: Driftline, repository: Path, tmp_path: Path) -> None:
    git(repository, "config", "remote.origin.url", f"file://{repository}")
    source_of(ci("--json"))
    (repository / "new.txt").write_text("delta\n")
    commit(repository)
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository}", "checkout/web")
    found = source_of(ci("--json", tmp_path / "checkout" / "web"))
    assert (found["base"], found["new"], found["touched"], found["lines_embedded"]) == (None, 1, 3, 1)
    assert "this clone does not have" in found["full_scan_reason"]
    assert_exact(tmp_path / "checkout" / "web", tmp_path)


def test_an_intermediate_run_forces_a_full_scan(
    ci: Driftline, driftline: Driftline, repository: Path, tiny_model: Path, tmp_path: Path
) -> None:
    source_of(ci("--json"))
    (repository / "src" / "a.py").write_text("alpha = 'not committed'\n")
    assert driftline("index", repository, "--workspace", tmp_path / "index", "--model", tiny_model).code == 0
    git(repository, "checkout", "-q", ".")
    found = source_of(ci("--json"))
    assert found["base"] is None
    assert_exact(repository, tmp_path)


def test_documents_removed_by_a_repair_are_indexed_again_at_the_same_commit(
    ci: Driftline, repository: Path, tmp_path: Path
) -> None:
    source_of(ci("--json"))
    workspace = Workspace.open(str(tmp_path / "index"))
    assert workspace.config.fingerprint is not None
    repair_source(workspace, ENTITY, {workspace.config.fingerprint: {"src/a.py"}}, new_ulid())
    found = source_of(ci("--json"))
    assert (found["base"], found["new"]) == (None, 1)
    assert "another run" in found["full_scan_reason"]
    assert_exact(repository, tmp_path)


def test_a_folder_without_git_is_scanned(ci: Driftline, repository: Path, tmp_path: Path) -> None:
    shutil.rmtree(repository / ".git")
    found = source_of(ci("--json"))
    assert (found["new"], found["base"], found["full_scan_reason"]) == (3, None, "git cannot list the changes")
    assert_exact(repository, tmp_path)


# Sources from driftline.toml.


def test_ci_indexes_the_configured_sources_inside_the_work_tree(
    ci: Driftline, repository: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (repository / "driftline.toml").write_text(
        '[[sources]]\nuri = "src"\nentity = "source:code"\ninclude = ["a.py"]\n'
        '[[sources]]\nuri = "docs"\n[[sources]]\nuri = "../elsewhere"\n[[sources]]\nuri = "s3://bucket/x"\n'
    )
    found = ci("--json")
    assert found.code == 0, found.out
    assert [(s["entity"].rpartition(":")[2], s["new"]) for s in found.json["run"]["sources"]] == [
        ("code", 1),
        ("docs", 1),
    ]
    commit(repository)
    assert all(s["base"] for s in ci("--json").json["run"]["sources"])
    shutil.rmtree(repository / "docs")
    failing = ci("--json")
    assert failing.code == 3
    assert [failure["error"] for failure in failing.json["run"]["failed"]] == ["source_not_found"]
    assert [s["entity"].rpartition(":")[2] for s in failing.json["run"]["sources"]] == ["code"]


def test_the_settings_of_the_file_apply(ci: Driftline, repository: Path, tmp_path: Path) -> None:
    settings = 'redact = "strict"\narchives = true\nnotebook_outputs = true\n'
    (repository / "driftline.toml").write_text(settings + '[[sources]]\nuri = "src"\n')
    assert ci().code == 0
    ((_, record),) = Workspace.open(str(tmp_path / "index")).sources()
    assert (record.redact, record.archives, record.notebook_outputs) == ("strict", True, True)


def test_the_options_of_an_index_run_apply(ci: Driftline, repository: Path, tmp_path: Path) -> None:
    (repository / "keep.py").write_text("token = 1\n")
    options = ("--entity", "org:acme/source:code", "--include", "*.py", "--exclude", "b.py", "--redact", "strict")
    done = ci("--json", "--archives", "--indexes", "none", "--max-file-bytes", "1000", *options)
    assert (source_of(done)["entity"], source_of(done)["new"]) == ("org:acme/project:default/source:code", 2)
    ((_, record),) = Workspace.open(str(tmp_path / "index")).sources()
    assert (record.include, record.exclude, record.redact) == (("*.py",), ("b.py",), "strict")
    assert (record.archives, record.max_file_bytes) == (True, 1000)
    (repository / "driftline.toml").write_text('[[sources]]\nuri = "src"\n')
    refused = ci("--entity", "source:x")
    assert (refused.code, "Specify SOURCE, or omit --entity." in refused.err) == (2, True)


def test_ci_has_each_option_of_index_that_applies_to_a_build(driftline: Driftline) -> None:
    flags = {name: set(re.findall(r"--[a-z][a-z-]+", driftline(name, "--help").out)) for name in ("index", "ci")}
    assert flags["index"] - flags["ci"] == {"--all", "--ci", "--dry-run"}


def test_all_sources_must_be_on_one_branch(ci: Driftline, repository: Path, tmp_path: Path) -> None:
    other, plain = tmp_path / "other", tmp_path / "plain"
    shutil.copytree(repository, other)
    plain.mkdir()
    (plain / "note.md").write_text("plain\n")
    assert [source["new"] for source in ci(plain, other, repository, "--json").json["run"]["sources"]] == [1, 3, 3]
    git(other, "checkout", "-q", "-b", "topic")
    for sources in ((repository, other), (other, repository), (plain, repository, other)):
        refused = ci(*sources)
        assert (refused.code, "The sources are on different branches" in refused.err) == (2, True)
        assert ci(*sources, "--branch", "main").code == 2
    on_branch = ci(plain, other, "--default-branch", "main", "--json")
    assert on_branch.json["index_branch"] == "topic"


# Output.


def test_text_output_has_lines_and_a_job_summary(
    ci: Driftline, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_SHA", git(repository, "rev-parse", "HEAD"))
    monkeypatch.setenv("GITHUB_REF_NAME", "feature|x")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "summary.md").write_text("what an earlier step wrote\n")
    commit_id = git(repository, "rev-parse", "HEAD")[:12]
    refused = ci()
    assert (refused.code, "--default-branch" in refused.err) == (2, True)
    (tmp_path / "summary.md").write_text("what an earlier step wrote\n")
    done = ci("--default-branch", "feature|x")
    assert done.code == 0
    assert done.out.startswith(f"up to date with {commit_id} on feature|x")
    assert "3 new, 0 changed" in done.out
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("what an earlier step wrote\n### Driftline: up to date with")
    assert r"on feature\|x" in summary
    assert "| 3 | 0 | 0 | 0 | 3 |" in summary
    failed = ci(repository / "nowhere", "--default-branch", "feature|x", "--summary", tmp_path / "other.md")
    assert failed.code == 2
    assert "**No such folder" in (tmp_path / "other.md").read_text()
    unwritable = ci("--default-branch", "feature|x", "--summary", tmp_path / "no" / "folder.md")
    assert (unwritable.code, "the summary was not written" in unwritable.err) == (0, True)


def test_json_output_is_one_object(ci: Driftline, repository: Path) -> None:
    report = ci("--json").json
    of_build = {"action", "commit", "branch", "index_branch", "system"}
    assert set(report) == of_build | {"run", "flow_runs", "staleness", "duplicates", "seconds"}
    assert (report["action"], report["branch"], report["system"]) == ("indexed", "main", "")
    assert report["commit"] == git(repository, "rev-parse", "HEAD")


def test_a_build_of_a_commit_that_is_not_checked_out_is_refused(ci: Driftline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("CI_COMMIT_SHA", "f" * 40)
    done = ci()
    assert done.code == 2
    assert f"This build is of {'f' * 40}, but" in done.err


def test_builds_of_other_branches_are_skipped(ci: Driftline, repository: Path, tmp_path: Path) -> None:
    skipped = ci("--json", "--branch", "release")
    assert (skipped.code, skipped.json["action"]) == (0, "skipped")
    assert not (tmp_path / "index").exists()
    assert ci("--json", "--branch", "main").json["action"] == "indexed"
    git(repository, "checkout", "-q", "--detach")
    assert ci("--branch", "main").code == 2


def test_a_fork_reaches_neither_the_main_index_nor_a_branch(
    ci: Driftline, driftline: Driftline, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull request from the main branch of a fork, a tag called main, and an unknown build."""
    assert ci().code == 0
    (repository / "evil.py").write_text("zebra = 1\n")
    commit(repository)
    event = tmp_path / "event.json"
    head = {"ref": "main", "sha": git(repository, "rev-parse", "HEAD"), "repo": {"full_name": "someone/web"}}
    of = {"default_branch": "main", "full_name": "team/web"}

    def write(head: dict[str, Any]) -> None:
        request = {"number": 7, "head": head, "base": {"ref": "main"}}
        event.write_text(json.dumps({"repository": of, "pull_request": request}))

    write(head)
    github = {"GITHUB_ACTIONS": "true", "GITHUB_SHA": head["sha"], "GITHUB_REF": "refs/heads/main"}
    github |= {"GITHUB_REF_NAME": "main", "GITHUB_REPOSITORY": "team/web", "GITHUB_EVENT_NAME": "pull_request_target"}
    for name, value in github.items():
        monkeypatch.setenv(name, str(value))
    assert ci().code == 2  # without the event, the pull request number is unknown
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(event))
    assert ci("--json", "--branch", "main").json["action"] == "skipped"
    assert ci("--json").json["index_branch"] == "pr/7"
    write({name: value for name, value in head.items() if name != "sha"})
    assert ci("--json", "--branch", "main").json["action"] == "skipped"
    assert ci().code == 2  # it may be the target that is checked out
    git(repository, "update-ref", "refs/remotes/origin/main", "HEAD")
    assert ci().code == 2
    git(repository, "update-ref", "refs/remotes/origin/main", "HEAD~")
    assert ci("--json").json["index_branch"] == "pr/7"
    git(repository, "update-ref", "-d", "refs/remotes/origin/main")
    monkeypatch.setenv("GITHUB_EVENT_NAME", "push")
    monkeypatch.setenv("GITHUB_REF", "refs/tags/main")
    monkeypatch.delenv("GITHUB_EVENT_PATH")
    assert ci("--json").json["action"] == "skipped"
    found = driftline("search", "zebra", "--workspace", tmp_path / "index", "--mode", "text", "--json")
    assert found.json["results"] == []
    assert "branches delete" in driftline("branches", "delete", "--workspace", tmp_path / "index").err
    assert driftline("branches", "delete", "--of-build", "--workspace", tmp_path / "index").code == 2  # a tag
    monkeypatch.delenv("GITHUB_ACTIONS")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("APP_PULL_REQUEST", "7")
    refused = driftline("branches", "delete", "--of-build", "--workspace", tmp_path / "index")
    assert (refused.code, "APP_PULL_REQUEST indicates a pull request" in refused.err) == (2, True)


# The gate.


def test_the_gate_fails_for_an_index_that_is_older_than_the_commit_by_more(
    ci: Driftline, repository: Path, tmp_path: Path
) -> None:
    assert ci("--max-staleness", 60).code == 2  # no workspace
    base = source_of(ci("--json"))["commit"]
    assert ci("--max-staleness", 0).code == 0
    made = int(git(repository, "show", "-s", "--format=%ct"))
    (repository / "src" / "a.py").write_text("alpha = 3\n")
    commit(repository, date=f"{made + 300} +0000")
    late = ci("--json", "--max-staleness", 200)
    assert (late.code, late.json["error"]) == (3, "stale_index")
    early = ci("--json", "--max-staleness", 400)
    assert early.code == 0
    (age,) = early.json["staleness"]
    assert (age["indexed"], age["entity"], early.json["run"]) == (base, str(ENTITY), None)
    assert age["seconds"] == pytest.approx(300, abs=60)
    assert source_of(ci("--json"))["changed"] == 1  # the gate has indexed nothing
    assert ci("--max-staleness", 0).code == 0
    git(repository, "reset", "-q", "--hard", "HEAD~1")
    assert ci("--max-staleness", 0).code == 0  # the index is at a later commit


def test_a_run_on_a_branch_does_not_make_the_main_index_fresh(
    ci: Driftline, driftline: Driftline, repository: Path, tmp_path: Path, tiny_model: Path
) -> None:
    assert ci().code == 0
    made = int(git(repository, "show", "-s", "--format=%ct"))
    (repository / "src" / "a.py").write_text("alpha = 3\nbeta = 4\n")
    commit(repository, date=f"{made + 300} +0000")
    git(repository, "checkout", "-q", "-b", "feature")
    command = ("index", ".", "--branch", "feature", "--workspace", tmp_path / "index", "--model", tiny_model)
    assert driftline(*command).code == 0
    late = ci("--json", "--max-staleness", 200)
    assert (late.code, late.json["error"]) == (3, "stale_index")
    workspace = Workspace.open(str(tmp_path / "index"))
    runs = newest_runs(workspace, 10)
    assert [value for _, value in History(runs[::-1]).growth("lines_total").points] == [3.0]
    with pytest.raises(UsageError, match="No run"):
        RunHistory(workspace.objects, ENTITY.tenant).revision(runs[0].run_id, ENTITY)


def test_a_source_that_was_never_indexed_fails_the_gate(
    ci: Driftline, driftline: Driftline, tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    assert driftline("index", tmp_path / "other", "--workspace", tmp_path / "index", "--model", tiny_model).code == 0
    never = ci("--json", "--max-staleness", 9e9)
    assert (never.code, json.loads(never.out)["error"]) == (3, "stale_index")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--deployment", "web", "src"),
        ("--deployment", "web", "--max-staleness", "1"),
        ("--deployment", "web", "--wait", "1"),
        ("src", "--config", "x.toml"),
        ("--max-staleness", "1", "--default-branch", "main"),
        ("--max-staleness", "1", "--max-delete-fraction", "0"),
        ("--max-staleness", "1", "--entity", "source:web"),
        ("--max-staleness", "1", "--no-deep"),
        ("--deployment", "web", "--redact", "strict"),
        ("--config", "x.toml", "--entity", "source:web"),
        ("--branch", "main", "--duplicates-of", "main"),
    ],
)
def test_options_that_would_be_ignored_are_a_usage_error(ci: Driftline, arguments: tuple[str, ...]) -> None:
    outcome = ci(*arguments)
    assert (outcome.code, " cannot be combined with " in outcome.err) == (2, True)


RETRY = """def {name}(call, attempts):
    failure = None
    for attempt in range(attempts):
        try:
            return call()
        except OSError as error:
            failure = error
            time.sleep(2**attempt * random.random())
    raise failure
"""


def test_new_functions_of_a_branch_are_compared_with_existing_ones(
    driftline: Driftline, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ci(branch: str, *arguments: str) -> Any:
        monkeypatch.setenv("CI_COMMIT_BRANCH", branch)
        return driftline("ci", "--workspace", tmp_path / "index", *arguments)

    for name in list(os.environ):
        if name == "CI" or name.startswith(("CI_", "GITHUB_", "GITLAB_", "DRIFTLINE_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(repository)
    monkeypatch.setenv("GITLAB_CI", "true")
    monkeypatch.setenv("CI_DEFAULT_BRANCH", "main")
    (repository / "src/retry.py").write_text("import time\n\n\n" + RETRY.format(name="with_retries"))
    (repository / "src/other.py").write_text("def area(width, height):\n    total = width * height\n    return total\n")
    commit(repository)
    assert ci("main").code == 0
    git(repository, "checkout", "-q", "-b", "topic")
    (repository / "src/new.py").write_text("# here it comes\n\n" + RETRY.format(name="with_retries"))
    commit(repository)
    summary = tmp_path / "summary.md"
    report = ci("topic", "--duplicates-of", "main", "--json", "--summary", str(summary)).json
    assert report["index_branch"] == "topic"
    (found,) = report["duplicates"]
    assert (found["path"], found["line"], found["symbol"]) == ("src/new.py", 3, "with_retries")
    assert (found["like_path"], found["like_line"], found["like_symbol"]) == ("src/retry.py", 4, "with_retries")
    assert found["distance"] < 0.1
    assert "src/retry.py:4" in summary.read_text()
    assert ci("topic", "--json").json["duplicates"] == []
    assert ci("topic", "--duplicates-of", "topic").code == 2


def test_any_number_of_repositories_of_one_name_have_their_own_entities(tmp_path: Path) -> None:
    """Build machines check all of them out at the same path."""
    workspace = Workspace.prepare(ObjectStore.open(str(tmp_path / "index")), [])
    for _ in range(2):
        found = []
        for team in "abcd":
            record = SourceRecord(entity="", uri="/runner/web", origin=f"https://git.example/{team}/web")
            entity, _ = _default_entity("web", record, workspace, set())
            workspace.bind_source(entity, replace(record, entity=str(entity)))
            found.append(entity)
        assert len({*found}) == 4
    assert len([*workspace.sources()]) == 4


def test_a_build_without_a_deployment_does_not_load_prefect() -> None:
    code = "import sys, driftline.flows.ci.job; sys.exit('prefect' in sys.modules)"
    assert ForkedReader(code).wait(PATIENCE_SECONDS) == 0

"""Branches of real git repositories and of a bucket: each has its own documents; main never changes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import driftline
from driftline.flows.commands import main as cli
from driftline.flows.output.run_reports import SourceReport
from driftline.flows.runs import branches
from driftline.flows.runs.branches import delete_named, list_branches, prune_branches
from driftline.flows.runs.cleanup import CleanupRequest, clean_workspace
from driftline.flows.runs.compact import CompactRequest, compact_workspace
from driftline.flows.runs.remove import remove_source
from driftline.flows.runs.verify_and_repair import VerifyRequest, verify_workspace
from driftline.storage.entities import Boundary, Entity
from driftline.storage.errors import StaleBuild, StorageError, UsageError
from driftline.storage.lance.reader_process import run_in_worker
from driftline.storage.workspace.branch_cuts import on_branch, read_branch
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.maintenance import verification
from driftline.tasks.maintenance.verification import FindingKind, check_branches
from tests.faults.damage import COLUMNS, values_of
from tests.support.oracle import assert_in_step, files_below, indexed_rows, save_tiny_model
from tests.support.waiting import PATIENCE_SECONDS

ENTITY = Entity.parse("source:web")
TEXTS = {f"src/{number}.py": f"word{number} word{number + 1}\nword{number + 2}\n" for number in range(12)}


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path, changes: dict[str, str | None]) -> str:
    for path, text in changes.items():
        if text is None:
            (folder / path).unlink()
        else:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "a commit")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "web"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    commit(root, dict(TEXTS))
    return root


@pytest.fixture(params=["local", "s3"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "index") if request.param == "local" else str(request.getfixturevalue("s3_bucket"))


Run = Callable[..., SourceReport]


@pytest.fixture
def run(repository: Path, workspace: str, tiny_model: Path) -> Run:
    """Index the checked-out files as a branch; None is the main index."""

    def run(branch: str | None = None, **options: Any) -> SourceReport:
        report = driftline.index(
            *(str(repository),), workspace=workspace, model=str(tiny_model), branch=branch, by_commit=True, **options
        )
        return report.sources[0]

    return run


def committed(folder: Path, commit: str = "HEAD") -> dict[str, bytes]:
    names = git(folder, "ls-tree", "-r", "--name-only", commit).splitlines()
    return {name: git(folder, "show", f"{commit}:{name}").encode() + b"\n" for name in names}


def holds(workspace: str, branch: str | None, files: dict[str, bytes]) -> None:
    opened = Workspace.open(workspace)
    assert_in_step(on_branch(opened, branch) if branch else opened, ENTITY, files)


def test_branches_with_a_history_are_compared(repository: Path, workspace: str, run: Run) -> None:
    """Main and three branches, a merge commit, and a rebase."""
    run()
    main = committed(repository)
    expected: dict[str, dict[str, bytes]] = {}

    def indexed(branch: str, **options: Any) -> SourceReport:
        report = run(branch, **options)
        expected[branch] = committed(repository)
        return report

    for number, name in enumerate(("one", "feature/zwei", "THREE")):
        git(repository, "checkout", "-q", "-b", name, "main")
        commit(repository, {f"src/{number}.py": f"word3{number}\n", f"new {name[-3:]}.py": f"word4{number}\n"})
        report = indexed(name)
        assert (report.lines_embedded, report.branch) == (2, name)
        assert report.base is not None, report.full_scan_reason  # git reports the paths that differ from main
    for name, files in expected.items():
        holds(workspace, name, files)
    holds(workspace, None, main)

    # A merge commit: the lines that main receives are already embedded.
    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "--no-ff", "--no-edit", "one")
    merged = run()
    main = committed(repository)
    assert (merged.lines_embedded, merged.lines_reused) == (0, 2)

    # A rebase onto it: a new cut is cheaper, and nothing is embedded.
    git(repository, "checkout", "-q", "feature/zwei")
    git(repository, "rebase", "-q", "main")
    rebased = indexed("feature/zwei")
    assert rebased.branch_cut.startswith("brought forward")
    assert rebased.lines_embedded == 0
    holds(workspace, "feature/zwei", expected["feature/zwei"])


def test_a_pull_request_that_is_noted_during_a_run_is_kept(
    repository: Path, workspace: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Webhooks note it without the branch's lease."""
    run()
    git(repository, "checkout", "-q", "-b", "topic")
    commit(repository, {"src/new.py": "word50\n"})
    run("topic")
    git(repository, "checkout", "-q", "main")
    commit(repository, {f"src/{number}.py": f"word6{number}\n" for number in range(5)})
    run()
    git(repository, "checkout", "-q", "topic")
    git(repository, "rebase", "-q", "main")
    decide = branches._decide

    def decide_meanwhile(*given: Any) -> Any:
        decision = decide(*given)
        branches.note_pull_requests(Workspace.open(workspace), ENTITY, "topic", ["7"])
        return decision

    monkeypatch.setattr(branches, "_decide", decide_meanwhile)
    assert run("topic").branch_cut.startswith("brought forward")
    record = read_branch(Workspace.open(workspace), ENTITY, "topic")
    assert record is not None
    assert record.pull_requests == ("7",)


def test_histories_that_cross(repository: Path, workspace: str, run: Run) -> None:
    """A force-push, a criss-cross merge of two branches, a squash merge, and a deleted branch."""
    run()
    expected: dict[str, dict[str, bytes]] = {}

    def indexed(branch: str) -> None:
        run(branch)
        expected[branch] = committed(repository)

    for name in ("one", "feature/zwei", "THREE"):
        git(repository, "checkout", "-q", "-b", name, "main")
        commit(repository, {f"new {name[-3:]}.py": f"word4{len(name)}\n"})
        indexed(name)
    git(repository, "checkout", "-q", "main")
    commit(repository, {"src/2.py": "word77\n"})
    run()

    git(repository, "checkout", "-q", "THREE")
    git(repository, "reset", "-q", "--hard", "main~1")
    commit(repository, {"src/9.py": "word90\n"})
    indexed("THREE")
    holds(workspace, "THREE", expected["THREE"])

    git(repository, "checkout", "-q", "feature/zwei")
    git(repository, "merge", "-q", "--no-edit", "THREE")
    indexed("feature/zwei")
    git(repository, "checkout", "-q", "THREE")
    git(repository, "merge", "-q", "--no-edit", "feature/zwei~1")
    indexed("THREE")

    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "--squash", "feature/zwei")
    commit(repository, {})
    squashed = run()
    assert squashed.lines_embedded == 0
    main = committed(repository)

    for name, files in expected.items():
        holds(workspace, name, files)
    holds(workspace, None, main)
    opened = Workspace.open(workspace)
    delete_named(opened, "one", None)
    with pytest.raises(UsageError, match="It has: THREE, feature/zwei"):
        on_branch(opened, "one")
    for name in ("THREE", "feature/zwei"):
        holds(workspace, name, expected[name])
    holds(workspace, None, main)


def test_two_builds_of_one_branch_at_once_leave_one_state(repository: Path, workspace: str, run: Run) -> None:
    run()
    git(repository, "checkout", "-q", "-b", "topic")
    commit(repository, {"src/1.py": "word50\n", "new.py": "word51\n"})
    with ThreadPoolExecutor(2) as pool:
        outcomes = [pool.submit(run, "topic", wait_seconds=PATIENCE_SECONDS) for _ in range(2)]
        errors = [error for outcome in outcomes if (error := outcome.exception()) is not None]
    assert len(errors) < 2, errors
    run("topic")
    holds(workspace, "topic", committed(repository))


def test_a_stale_build_does_not_replace_a_newer_one(repository: Path, workspace: str, run: Run) -> None:
    run()
    git(repository, "checkout", "-q", "-b", "topic")
    first = commit(repository, {"new.py": "word51\n"})
    second = commit(repository, {"new.py": "word52\n"})
    run("topic", build=8)
    newest = committed(repository)
    git(repository, "checkout", "-q", first)
    with pytest.raises(StaleBuild, match="Build 8"):
        run("topic", build=7)
    with pytest.raises(StaleBuild, match=second[:12]):  # without numbers, the history decides
        run("topic")
    holds(workspace, "topic", newest)
    run("topic", build=9)  # a force-push to the earlier commit
    holds(workspace, "topic", committed(repository, first))


NAMES = {
    "a/b": "zebra",
    "../../../escape": "tapir",
    "ümläut": "lemur",
    "UP": "otter",
    "up": "camel",
    "a" * 200: "moose",
    "with blank": "bison",
    "..": "hyena",
    "con": "koala",
    "a~2Fb": "llama",
    "🦊": "panda",
    "x.lock": "rhino",
    "-x": "sloth",
}
"""Branch names, and the word that each branch adds."""


def test_names_of_branches_are_data(repository: Path, tmp_path: Path, tiny_model: Path) -> None:
    workspace = str(tmp_path / "index")
    for branch, text in ((None, None), ("other", "okapi\n"), *NAMES.items()):
        if text is not None:
            (repository / "new.py").write_text(text)
        driftline.index(str(repository), workspace=workspace, model=str(tiny_model), branch=branch)

    def texts(query: str, branch: str | None) -> list[str]:
        return [hit.text for hit in driftline.search(workspace, query, branch=branch, mode="text").results]

    assert texts("okapi", "other") == ["okapi"]
    for name, word in NAMES.items():
        assert texts(word, name) == [word]
        assert (texts(word, "other"), texts("okapi", name), texts(word, None)) == ([], [], [])
    known = {"index", "web", "tiny-model"}
    assert {path.name for path in tmp_path.iterdir()} <= known


@pytest.mark.parametrize("name", ["", " ", " a", "a\n", "a" * 201, "a\0b"])
def test_invalid_names_are_refused_before_anything_is_written(tmp_path: Path, tiny_model: Path, name: str) -> None:
    (tmp_path / "tree").mkdir()
    with pytest.raises(UsageError, match="Not a valid branch name"):
        driftline.index(str(tmp_path / "tree"), workspace=str(tmp_path / "index"), model=str(tiny_model), branch=name)
    assert not (tmp_path / "index").exists()


def test_a_branch_without_a_main_index_is_refused(repository: Path, run: Run) -> None:
    with pytest.raises(UsageError, match="no main index"):
        run("topic")


def test_sources_in_buckets_have_branches(
    s3_bucket: str, s3_environment: Any, tiny_model: Path, tmp_path: Path
) -> None:
    client, prefix = s3_environment.client(), s3_bucket.removeprefix(f"s3://{s3_environment.bucket}/")

    def put(name: str, text: str) -> None:
        client.put_object(Bucket=s3_environment.bucket, Key=f"{prefix}/docs/{name}", Body=text.encode())

    options: dict[str, Any] = {"workspace": f"{s3_bucket}/index", "model": str(tiny_model), "entity": str(ENTITY)}
    for number in range(4):
        put(f"{number}.txt", f"word{number}\n")
    driftline.index(f"{s3_bucket}/docs", **options)
    put("1.txt", "word71\n")
    report = driftline.index(f"{s3_bucket}/docs", branch="nightly", **options).sources[0]
    assert (report.lines_embedded, report.documents_total) == (1, 4)
    texts = [row[2] for row in indexed_rows(on_branch(Workspace.open(options["workspace"]), "nightly"), ENTITY)]
    assert sorted(texts) == ["word0", "word2", "word3", "word71"]
    assert [row[2] for row in indexed_rows(Workspace.open(options["workspace"]), ENTITY)] == [
        f"word{number}" for number in range(4)
    ]


def test_a_search_of_a_branch_takes_other_sources_from_main(tmp_path: Path, tiny_model: Path) -> None:
    workspace = str(tmp_path / "index")
    for name in ("web", "docs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(f"word1 zebra {name}\n")
        driftline.index(str(tmp_path / name), workspace=workspace, model=str(tiny_model))
    (tmp_path / "web" / "a.txt").write_text("word1 zebra branch\n")
    driftline.index(str(tmp_path / "web"), workspace=workspace, model=str(tiny_model), branch="topic")

    def texts(query: str, branch: str | None, mode: Any) -> set[str]:
        return {hit.text for hit in driftline.search(workspace, query, branch=branch, mode=mode, n_lines=0).results}

    for mode in ("hybrid", "vector", "text"):
        assert texts("word1 zebra", None, mode) >= {"word1 zebra web", "word1 zebra docs"}
        assert "word1 zebra branch" not in texts("word1 zebra", None, mode)
        assert texts("word1 zebra", "topic", mode) >= {"word1 zebra branch", "word1 zebra docs"}
        assert "word1 zebra web" not in texts("word1 zebra", "topic", mode)
    with pytest.raises(UsageError, match="It has: topic"):
        driftline.search(workspace, "word1", branch="unknown")
    for name in ("web", "docs"):
        (tmp_path / name / "a.txt").unlink()  # now context comes from the index
    found = driftline.search(workspace, "word1 zebra", branch="topic", n_lines=1).results
    assert {hit.context for hit in found} == {("word1 zebra branch",), ("word1 zebra docs",)}


def test_nobody_sees_a_branch_of_another_tenant(tmp_path: Path, tiny_model: Path) -> None:
    workspace = str(tmp_path / "index")
    for tenant in ("acme", "umbrella"):
        (tmp_path / tenant).mkdir()
        (tmp_path / tenant / "a.txt").write_text(f"word1 {tenant}\n")
        entity = f"org:{tenant}/project:p/source:s"
        options: dict[str, Any] = {"workspace": workspace, "model": str(tiny_model), "entity": entity}
        driftline.index(str(tmp_path / tenant), **options)
        (tmp_path / tenant / "a.txt").write_text(f"word1 secret of {tenant}\n")
        driftline.index(str(tmp_path / tenant), branch=f"topic of {tenant}", **options)
    opened = Workspace.open(workspace)
    acme = Entity.parse("org:acme", opened.config.hierarchy)
    with pytest.raises(UsageError) as caught:
        on_branch(opened, "topic of umbrella", within=Boundary.of(acme))
    assert "umbrella" not in caught.value.fix
    found = driftline.search(workspace, "word1", branch="topic of acme", mode="text").results
    assert {hit.text for hit in found} == {"word1 secret of acme", "word1 umbrella"}


def test_main_is_folded_compacted_and_cleaned_under_branches(
    repository: Path, tmp_path: Path, tiny_model: Path
) -> None:
    workspace = str(tmp_path / "index")
    expected: dict[str, dict[str, bytes]] = {}

    def index(branch: str | None) -> None:
        driftline.index(str(repository), workspace=workspace, model=str(tiny_model), branch=branch)

    index(None)
    for number in range(6):
        (repository / "src/0.py").write_text(f"word{100 + number}\n")
        index(f"topic/{number}")
        expected[f"topic/{number}"] = {**files(repository)}
        (repository / "src/5.py").write_text(f"word{200 + number}\n")
        (repository / f"src/{6 + number}.py").unlink()
        index(None)
        compact(workspace)
    for name, found in expected.items():
        holds(workspace, name, found)
        assert driftline.search(workspace, "word100", branch=name, mode="text", n_lines=0).results
    holds(workspace, None, files(repository))


def test_a_deleted_branch_frees_its_bytes_with_the_next_cleanup(
    repository: Path, tmp_path: Path, tiny_model: Path
) -> None:
    workspace = str(tmp_path / "index")
    driftline.index(str(repository), workspace=workspace, model=str(tiny_model))
    driftline.index(str(repository), workspace=workspace, branch="topic")
    for path in repository.glob("src/*.py"):
        path.write_text(f"# {path.name}, written anew\nword7\n")
    driftline.index(str(repository), workspace=workspace)
    compact(workspace)
    table = Workspace.open(workspace).lines(Entity.parse("org:default"))
    folder = Path(table.uri)

    def data_files() -> set[str]:
        return {path.name for path in (folder / "data").glob("*.lance")}

    def newest() -> set[str]:
        return {file.path for fragment in table.open().get_fragments() for file in fragment.data_files()}

    assert data_files() > newest()  # the branch needs files that main has replaced
    delete_named(Workspace.open(workspace), "topic", None)
    report = clean_workspace(CleanupRequest(workspace, 0.0, dry_run=False))
    assert report.versions_removed
    assert data_files() == newest()
    assert not [path for path in (folder / "tree").rglob("*") if path.is_file()]
    holds(workspace, None, files(repository))
    assert not clean_workspace(CleanupRequest(workspace, 0.0)).orphans


def files(repository: Path) -> dict[str, bytes]:
    return {path: data for path, data in files_below(repository).items() if not path.startswith(".git/")}


def compact(workspace: str) -> None:
    compact_workspace(CompactRequest(workspace, max_deltas=0, retention_seconds=0.0, workers=1))
    report = clean_workspace(CleanupRequest(workspace, 0.0, dry_run=False))
    assert not report.skipped, report.skipped
    assert not report.foreign, report.foreign


@pytest.mark.parametrize("by_commit", [True, False])
def test_prune_takes_what_is_merged_gone_or_old(
    repository: Path, tmp_path: Path, tiny_model: Path, by_commit: bool
) -> None:
    workspace = str(tmp_path / "index")

    def index(branch: str | None) -> None:
        driftline.index(str(repository), workspace=workspace, model=str(tiny_model), branch=branch, by_commit=by_commit)

    index(None)
    others = {"open"}
    if not by_commit:
        index("label")  # not a branch in git
        git(repository, "checkout", "-q", "-b", "fresh")
        index("fresh")  # no commit of its own
        others |= {"label", "fresh"}
    for name in ("merged", "gone", "open"):
        git(repository, "checkout", "-q", "-b", name, "main")
        commit(repository, {f"{name}.py": "word7\n"})
        index(name)
    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "--no-ff", "--no-edit", "merged")
    remote = tmp_path / "remote.git"
    git(tmp_path, "clone", "-q", "--bare", str(repository), str(remote))
    git(repository, "remote", "add", "origin", str(remote))
    git(remote, "branch", "-q", "-D", "gone")
    git(repository, "branch", "-q", "-D", "gone")
    git(repository, "fetch", "-q", "--prune", "origin")
    git(repository, "remote", "set-head", "origin", "main")
    opened = Workspace.open(workspace)
    assert all(branch.commit for branch in list_branches(opened) if branch.name in ("merged", "gone", "open"))
    assert {(branch.name, branch.why) for branch in prune_branches(opened, dry_run=True)} == {
        ("merged", "merged"),
        ("gone", "deleted on the remote"),
    }
    assert len(prune_branches(opened)) == 2
    assert {branch.name for branch in prune_branches(opened, older_than_days=0.0)} == others
    assert prune_branches(opened) == []


@pytest.mark.parametrize("depth", ["--single-branch", "--depth=1"])
def test_only_a_remote_that_was_asked_proves_that_a_branch_is_gone(
    depth: str, repository: Path, tmp_path: Path, tiny_model: Path
) -> None:
    """A CI clone knows only one branch; other branches and pull requests may still be open."""
    for branch in ("open", "pr/9", "gone"):
        git(repository, "branch", branch)
    clone, workspace = tmp_path / "clone", str(tmp_path / "index")
    git(tmp_path, "clone", "-q", depth, "--branch", "main", f"file://{repository}", str(clone))
    names: tuple[str | None, ...] = (None, "open", "gone", "pr/7", "heads/pr/9")
    for number, name in enumerate(names):
        if name is not None:
            (clone / "src/0.py").write_text(f"word7 word{number}\n")
            git(clone, "checkout", "-q", "--detach")
            git(clone, "commit", "-qam", f"of {name}")
        driftline.index(str(clone), workspace=workspace, model=str(tiny_model), branch=name, by_commit=True)
        git(clone, "checkout", "-q", "main")
    git(repository, "branch", "-q", "-D", "gone")
    git(repository, "checkout", "-q", "--detach")
    trap, said = tmp_path / "executed", list[str]()

    def pruned() -> list[tuple[str, str]]:
        said.clear()
        return [(each.name, each.why) for each in prune_branches(Workspace.open(workspace), skip=said.append)]

    config = (clone / ".git/config").read_text()
    for unanswered in (
        [("remote", "set-url", "origin", str(tmp_path / "nowhere"))],
        [("remote", "remove", "origin")],
        [
            ("remote", "set-url", "origin", f"ext::sh -c 'touch% {trap}'"),
            ("config", "protocol.ext.allow", "always"),
            ("config", "core.sshCommand", f"touch {trap}"),
        ],
    ):
        for command in unanswered:
            git(clone, *command)
        assert pruned() == []
        assert len(said) == 1
        assert not trap.exists()
        (clone / ".git/config").write_text(config)
    assert pruned() == [("gone", "deleted on the remote")]
    assert said == []


@pytest.mark.parametrize(("remotes", "notes"), [(["upstream"], 1), (["upstream", "fork"], 1), ([], 0)])
def test_a_clone_whose_remotes_have_other_names_is_reported(
    remotes: list[str], notes: int, repository: Path, tmp_path: Path, tiny_model: Path
) -> None:
    clone, workspace = tmp_path / "clone", str(tmp_path / "index")
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    git(clone, "remote", "remove", "origin")
    for remote in remotes:
        git(clone, "remote", "add", remote, str(repository))
    for branch in (None, "gone"):
        driftline.index(str(clone), workspace=workspace, model=str(tiny_model), branch=branch)
    said: list[str] = []
    assert prune_branches(Workspace.open(workspace), skip=said.append) == []
    assert ["no remote called origin" in each for each in said] == [True] * notes


def test_an_unpushed_merge_does_not_prune_the_branch(repository: Path, tmp_path: Path, tiny_model: Path) -> None:
    """The clone does not know the remote's default branch, as after ``git init`` and ``git fetch``."""
    remote, workspace = tmp_path / "remote.git", str(tmp_path / "index")
    git(tmp_path, "clone", "-q", "--bare", str(repository), str(remote))
    git(repository, "remote", "add", "origin", str(remote))
    git(repository, "checkout", "-q", "-b", "feature")
    driftline.index(str(repository), workspace=workspace, model=str(tiny_model))
    commit(repository, {"new.py": "word7\n"})
    git(repository, "push", "-q", "origin", "feature")
    driftline.index(str(repository), workspace=workspace, model=str(tiny_model), branch="feature", by_commit=True)
    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "--ff-only", "feature")
    opened = Workspace.open(workspace)
    assert prune_branches(opened, dry_run=True) == []
    git(repository, "push", "-q", "origin", "main")
    assert [(each.name, each.why) for each in prune_branches(opened)] == [("feature", "merged")]


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("executor", ["local"])
def test_workers_index_a_branch(repository: Path, tmp_path: Path, tiny_model: Path, executor: str) -> None:
    options: dict[str, Any] = {"workspace": str(tmp_path / "index"), "model": str(tiny_model), "executor": executor}
    driftline.index(str(repository), workers=2, **options)
    main = files(repository)
    (repository / "src/1.py").write_text("word50\n")
    (repository / "src/2.py").unlink()
    report = driftline.index(str(repository), workers=2, branch="topic", **options).sources[0]
    assert report.lines_embedded == 1
    holds(options["workspace"], "topic", files(repository))
    holds(options["workspace"], None, main)


def test_a_branch_follows_the_main_index_to_another_model(repository: Path, tmp_path: Path, tiny_model: Path) -> None:
    workspace, other = str(tmp_path / "index"), save_tiny_model(tmp_path / "other", seed=8)

    def index(model: Path, branch: str | None = None, **options: Any) -> SourceReport:
        return driftline.index(
            str(repository), workspace=workspace, model=str(model), branch=branch, **options
        ).sources[0]

    index(tiny_model)
    main = files(repository)
    (repository / "src/1.py").write_text("word50\n")
    index(tiny_model, "topic")
    on_topic = files(repository)
    (repository / "src/1.py").write_text(TEXTS["src/1.py"])
    index(other, reembed=True)
    with pytest.raises(UsageError, match="a different model"):
        on_branch(Workspace.open(workspace), "topic")
    (repository / "src/1.py").write_text("word50\n")
    assert "another model" in index(other, "topic").branch_cut
    compact(workspace)
    listed = Workspace.open(workspace).objects.list("org:default/_tables")
    assert len({info.path.split("/")[2] for info in listed}) == 1
    holds(workspace, "topic", on_topic)
    holds(workspace, None, main)


def test_a_source_is_forgotten_with_its_branches(repository: Path, tmp_path: Path, tiny_model: Path) -> None:
    workspace = str(tmp_path / "index")
    for branch in (None, "one", "two"):
        (repository / "src/1.py").write_text(f"word{90 + len(branch or '')}\n")
        driftline.index(str(repository), workspace=workspace, model=str(tiny_model), branch=branch)
    remove_source(workspace, "source:web")
    compact(workspace)
    paths = [info.path for info in Workspace.open(workspace).objects.list()]
    assert [path for path in paths if "branch" in path or "/tree/" in path] == []


def _failing(function: Callable[..., Any], *arguments: Any) -> Any:
    if function is verification._difference:
        raise StorageError("Cannot read the lines table (error sending request)", "s3://b/ws")
    return run_in_worker(function, *arguments)


def test_a_damaged_branch_is_found_and_deleted_by_a_repair(
    repository: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = str(tmp_path / "index")
    driftline.index(str(repository), workspace=workspace, model=str(tiny_model))
    main = files(repository)
    (repository / "src/1.py").write_text("word50\n")
    driftline.index(str(repository), workspace=workspace, model=str(tiny_model), branch="topic")
    assert verify_workspace(VerifyRequest(workspace)).findings == []

    with monkeypatch.context() as patched:
        patched.setattr(verification, "run_in_worker", _failing)
        with pytest.raises(StorageError, match="error sending request"):
            verify_workspace(VerifyRequest(workspace, repair=True))
    holds(workspace, "topic", files(repository))
    (delta,) = (tmp_path / "index").rglob("_branches/*/*/_index_delta_*.parquet")
    delta.unlink()
    (finding,) = verify_workspace(VerifyRequest(workspace)).findings
    assert (finding.kind, finding.path) == (FindingKind.BRANCH, "topic")
    verify_workspace(VerifyRequest(workspace, repair=True))
    with pytest.raises(UsageError, match="It has none"):
        on_branch(Workspace.open(workspace), "topic")
    holds(workspace, None, main)
    driftline.index(str(repository), workspace=workspace, model=str(tiny_model), branch="topic")
    holds(workspace, "topic", files(repository))
    assert verify_workspace(VerifyRequest(workspace)).findings == []

    (lines,) = (tmp_path / "index").rglob("*.lance/tree/*")
    shutil.rmtree(lines)
    (finding,) = verify_workspace(VerifyRequest(workspace)).findings
    assert (finding.kind, finding.detail) == (FindingKind.BRANCH, "the table of its lines does not exist")


def test_a_branch_whose_values_changed_on_the_disk_is_found(repository: Path, tmp_path: Path, tiny_model: Path) -> None:
    workspace = str(tmp_path / "index")

    def index(branch: str | None = None) -> None:
        text = "".join(f"word{number} of {branch}\n" for number in range(60))
        (repository / "src/1.py").write_text(text)
        driftline.index(str(repository), workspace=workspace, model=str(tiny_model), branch=branch)

    def largest(folder: str) -> Path:
        return max((tmp_path / "index").rglob(folder), key=lambda path: path.stat().st_size)

    index()
    index("topic")
    opened = Workspace.open(workspace)
    (tenant,) = opened.tenants()

    def findings(path: Path, column: str) -> list[str]:
        sound, values = path.read_bytes(), values_of(path, column)
        path.write_bytes(sound[: values.start] + bytes(byte ^ 8 for byte in sound[values]) + sound[values.stop :])
        found = [each.path for each in check_branches(opened, tenant)]
        path.write_bytes(sound)
        return found

    own, shared = largest("*.lance/tree/*/data/*.lance"), largest("*.lance/data/*.lance")
    for column in COLUMNS.values():
        assert findings(own, column) == ["topic"], column
    assert findings(shared, "text") == [], "the main index is checked once, not for each branch"
    assert [*check_branches(opened, tenant)] == []


def test_a_diff_without_results_says_why(
    repository: Path, tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = str(tmp_path / "index")

    def why(query: str) -> str:
        assert cli.main(["diff", "main", "topic", query, "--workspace", workspace]) == 1
        return capsys.readouterr().err

    driftline.index(str(repository), workspace=workspace, model=str(tiny_model))
    driftline.index(str(repository), workspace=workspace, model=str(tiny_model), branch="topic")
    assert "same documents as the main index" in why("word7")
    (repository / "src/0.py").write_text((repository / "src/0.py").read_text() + "zebra\n")
    driftline.index(str(repository), workspace=workspace, model=str(tiny_model), branch="topic")
    assert cli.main(["diff", "main", "topic", "zebra", "--workspace", workspace]) == 0

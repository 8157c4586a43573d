"""``driftline index --all``: one run over the sources in a file, each independent of the others."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import driftline as dl
from driftline.flows.runs import index, source_run
from driftline.flows.runs.executors import InlineExecutor, Result, Spec, Task
from driftline.flows.runs.pull import PullRequest, pull_workspace
from driftline.flows.runs.source_run import LeasedRun, SourceRun
from driftline.storage.documents import DocumentState
from driftline.storage.errors import DeletionRefused, SourceConflict, StorageError
from driftline.storage.garbage import scan_references
from driftline.storage.layout import SOURCE, leased_entity
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.indexing.batch import BatchSpec
from driftline.tasks.maintenance.verification import verify
from driftline.tasks.scanning.scan import PartitionSpec, ScanResult, scan_partition
from driftline.tasks.task_context import TaskContext
from tests.support.waiting import PATIENCE_SECONDS

Driftline = Callable[..., Any]


@pytest.fixture
def team(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, whose file lists three sources, one of them missing."""
    for name, text in {"web/a.py": "alpha = 1\n", "web/b.js": "let beta\n", "docs/guide/c.md": "gamma\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "driftline.toml").write_text(
        f"""
workspace = "index"
model = "{tiny_model}"

[[sources]]
uri = "web"
include = ["*.py"]

[[sources]]
uri = "gone"

[[sources]]
uri = "docs"
entity = "org:acme/project:alpha/source:handbook"
"""
    )
    for variable in ("DRIFTLINE_CONFIG", "DRIFTLINE_WORKSPACE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "read", [scan_references, partial(verify, on_phase=print, run_id="")], ids=["cleanup", "verify"]
)
def test_sources_in_a_bucket_are_read_concurrently(
    tmp_path: Path, tiny_model: Path, read: Callable[[Workspace], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.py").write_text("x = 1\n")
    dl.index([str(tmp_path / name) for name in ("a", "b")], workspace=str(tmp_path / "ws"), model=str(tiny_model))
    both, get, seen = threading.Barrier(2), ObjectStore.get_versioned, list[str]()

    def get_both(objects: ObjectStore, path: str) -> tuple[bytes, str]:
        if path.endswith(SOURCE) or leased_entity(path)[0] == "source":
            both.wait(PATIENCE_SECONDS)  # breaks if one source is read after the other
            seen.append(path)
        return get(objects, path)

    monkeypatch.setattr(ObjectStore, "requests_at_once", 2)
    monkeypatch.setattr(ObjectStore, "get_versioned", get_both)
    read(Workspace.open(str(tmp_path / "ws")))
    assert len(set(seen)) == 4


def documents(outcome: Any) -> dict[str, int]:
    return {s["entity"].rpartition(":")[2]: s["documents_total"] for s in outcome.json["sources"]}


def test_a_source_that_fails_does_not_stop_the_others(
    team: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = driftline("index", "--all", "--json")
    assert done.code == 3
    assert done.json["workspace"] == str(team / "index")
    assert documents(done) == {"web": 1, "handbook": 1}
    (failure,) = done.json["failed"]
    assert (failure["uri"], failure["error"]) == (str(team / "gone"), "source_not_found")
    (run,) = driftline("runs", "--json", "--limit", 1).json["runs"]
    assert (run["outcome"], run["failed"]) == ("source_not_found", [failure["uri"]])
    # The file is authoritative: settings removed from it no longer apply.
    text = (team / "driftline.toml").read_text()
    (team / "driftline.toml").write_text(text.replace('include = ["*.py"]\n', "").replace('"gone"', '"docs/guide"'))
    monkeypatch.chdir(team / "web")
    repeated = driftline("index", "--all", "--json")
    assert (repeated.code, repeated.json["failed"]) == (0, [])
    assert documents(repeated) == {"web": 2, "guide": 1, "handbook": 1}
    # Reading commands find the file's workspace.
    assert driftline("status", "--json").json["total_documents"] == 4
    reported = driftline("index", "--all")
    assert "up to date after" in reported.out


def test_if_no_source_can_start_nothing_is_written(team: Path, driftline: Driftline) -> None:
    (team / "driftline.toml").write_text('[[sources]]\nuri = "gone"\n[[sources]]\nuri = "lost"\n')
    failed = driftline("index", "--all", "--json")
    assert (failed.code, failed.json["error"]) == (2, "source_not_found")
    assert not (team / ".driftline").exists()


def test_a_dry_run_over_all_writes_nothing(team: Path, driftline: Driftline) -> None:
    planned = driftline("index", "--all", "--dry-run", "--json")
    assert (planned.code, documents(planned)) == (3, {"web": 0, "handbook": 0})
    assert {s["new"] for s in planned.json["sources"]} == {1}
    assert not (team / "index").exists()


@pytest.mark.parametrize(
    "arguments",
    [("--all", "web"), ("--all", "--entity", "source:x"), ("--all", "--include", "*.py"), ("web", "--config", "x"), ()],
)
def test_all_and_source_exclude_each_other(team: Path, driftline: Driftline, arguments: tuple[str, ...]) -> None:
    wrong = driftline("index", *arguments)
    assert (wrong.code, "SOURCE" in wrong.err or "--all" in wrong.err) == (2, True)


def test_all_without_a_file_says_what_is_missing(
    driftline: Driftline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRIFTLINE_CONFIG", raising=False)
    missing = driftline("index", "--all")
    assert (missing.code, "driftline.toml" in missing.err) == (2, True)


def test_the_nearest_workspace_is_used_unless_the_file_is_given(
    team: Path, driftline: Driftline, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert driftline("index", "docs", "--model", tiny_model).code == 0  # without --all the file is ignored
    monkeypatch.chdir(team / "docs" / "guide")
    assert driftline("sources", "--json").json["workspace"] == str(team / "docs" / ".driftline")
    monkeypatch.setenv("DRIFTLINE_CONFIG", str(team / "driftline.toml"))
    assert driftline("sources").code == 2  # the file's workspace does not exist yet


def test_fifty_sources_are_indexed_concurrently_even_if_two_of_them_fail(
    tmp_path: Path, tiny_model: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"repository_{number:02}" for number in range(50)]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text(f"def of_{name}():\n    return 1\n")
    tables = "".join(f'[[sources]]\nuri = "{name}"\n' for name in names)
    (tmp_path / "driftline.toml").write_text(f'workspace = "index"\nmodel = "{tiny_model}"\n{tables}')
    monkeypatch.setenv("DRIFTLINE_CONFIG", str(tmp_path / "driftline.toml"))
    monkeypatch.delenv("DRIFTLINE_WORKSPACE", raising=False)
    threads, concurrent, begin = set[int](), threading.Event(), SourceRun.begin

    def watched(run: SourceRun, stack: ExitStack, marker_token: Any) -> LeasedRun | None:
        threads.add(threading.get_ident())
        if len(threads) > 1:
            concurrent.set()
        assert concurrent.wait(PATIENCE_SECONDS), "no source began while another was running"
        if run.entity.parts[-1][1] in (names[7], names[31]):
            raise StorageError("The disk has failed", run.report.uri)
        return begin(run, stack, marker_token)

    with monkeypatch.context() as patch:
        patch.setattr(SourceRun, "begin", watched)
        failed = driftline("index", "--all", "--indexes", "none", "--json")
    assert failed.code == 3
    assert sorted(failure["uri"] for failure in failed.json["failed"]) == [str(tmp_path / names[i]) for i in (7, 31)]
    assert [source["uri"] for source in failed.json["sources"]] == [str(tmp_path / name) for name in names]
    assert sum(source["new"] for source in failed.json["sources"]) == 48
    assert failed.json["phases"]["lease"] > 0
    done = driftline("index", "--all", "--indexes", "none", "--json")
    assert (done.code, done.json["failed"]) == (0, [])
    assert {source["documents_total"] for source in done.json["sources"]} == {1}
    assert driftline("status", "--json").json["total_lines"] == 100


def test_a_run_that_does_not_ask_git_for_changes_needs_no_commit(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "a.txt").write_text("pump\n")

    def of(root: str, rules: object) -> None:
        raise AssertionError("the commit costs several processes of git")

    monkeypatch.setattr("driftline.tasks.scanning.since_commit.WorkTreeAtCommit.of", of)
    report = dl.index(str(tmp_path), workspace=str(tmp_path / "index"), model=str(tiny_model))
    assert report.sources[0].documents_total == 1


# A project that contains its index is moved or copied.

Layout = tuple[str, tuple[str, ...], str | None]
LAYOUTS: dict[str, Layout] = {  # the workspace and the sources, in the project; the entity
    "around": (".driftline", (".",), None),
    "around, with a name": (".driftline", (".",), "org:acme/project:alpha/source:web"),
    "far inside": ("var/cache/index", (".",), None),
    "beside": (".driftline", ("src", "docs"), None),
    "around and within": (".driftline", (".", "docs"), None),
    "apart": ("var/index", ("src", "docs"), None),
}


def test_a_stopped_run_leaves_the_remaining_sources(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if nothing changed, so that no source has anything to embed."""
    folders = [tmp_path / f"s{number}" for number in range(40)]
    for folder in folders:
        folder.mkdir()
        (folder / "x.txt").write_text(f"a pump in {folder.name}\n")
    given, workspace = [str(folder) for folder in folders], str(tmp_path / "ws")
    dl.index(given, workspace=workspace, model=str(tiny_model))
    executor, scanned = InlineExecutor(2), list[str]()

    def stop_and_scan(spec: PartitionSpec, context: TaskContext) -> ScanResult:
        executor.stop()
        scanned.append(str(spec.entity))
        return scan_partition(spec, context)

    monkeypatch.setattr(source_run, "scan_partition", stop_and_scan)
    monkeypatch.setattr(index, "open_executor", lambda *_: executor)
    with pytest.raises(KeyboardInterrupt):
        dl.index(given, workspace=workspace)
    assert 0 < len(scanned) < len(folders) / 2


@pytest.mark.parametrize(
    ("layout", "change", "is_git"),
    [
        *((layout, "moved", False) for layout in LAYOUTS),
        *((layout, "copied", False) for layout in LAYOUTS if layout != "apart"),  # as good a copy of the index alone
        *(("around", change, True) for change in ("moved", "copied", "moved up")),
    ],
)
def test_a_project_that_contains_its_index_can_be_moved(
    layout: str, change: str, is_git: bool, tmp_path: Path, tiny_model: Path
) -> None:
    folder, sources, entity = LAYOUTS[layout]
    before, after = tmp_path / "first" / "proj", tmp_path / ("other" if change == "moved up" else "first/renamed")
    for name, text in {"src/pump.txt": "how the pump is primed\n", "docs/valve.txt": "how the valve closes\n"}.items():
        (before / name).parent.mkdir(parents=True, exist_ok=True)
        (before / name).write_text(text)
    if is_git:
        subprocess.run(["git", "init", "-q"], cwd=before, check=True)
        subprocess.run(["git", "remote", "add", "origin", "https://git.example/team/web"], cwd=before, check=True)

    def index(root: Path) -> None:
        locations = [os.path.normpath(root / source) for source in sources]
        dl.index(locations, workspace=str(root / folder), model=str(tiny_model), entity=entity)

    def found(root: Path, word: str) -> list[str | None]:
        report = dl.search(str(root / folder), word, mode="text", n_lines=0)
        assert all(hit.freshness == "fresh" for hit in report.results)
        return [hit.file for hit in report.results]

    index(before)
    entities = [str(name) for name, _ in Workspace.open(str(before / folder)).sources()]
    if change == "copied":
        shutil.copytree(before, after)
        (before / "src/pump.txt").write_text("of the original alone\n")
    else:
        shutil.move(before, after)
    for _ in range(2):
        assert found(after, "pump") == [str(after / "src/pump.txt")]
        assert found(after, "valve") == [str(after / "docs/valve.txt")]
        (after / "src/new.txt").write_text("a turbine\n")
        index(after)
    assert found(after, "turbine") == [str(after / "src/new.txt")]
    known = dict(Workspace.open(str(after / folder)).sources())
    assert [str(name) for name in known] == entities
    assert sorted(record.uri for record in known.values()) == sorted(os.path.normpath(after / each) for each in sources)
    if change == "copied":
        assert found(before, "turbine") == []
        assert found(before, "valve") == [str(before / "docs/valve.txt")]


def test_a_project_whose_source_is_a_link_can_be_moved(tmp_path: Path, tiny_model: Path) -> None:
    """``data`` next to the index leads elsewhere, before and after the move."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/pump.txt").write_text("how the pump is primed\n")
    (tmp_path / "proj/data").mkdir(parents=True)
    (tmp_path / "proj/data/pump.txt").write_text("how the pump is primed\n")
    dl.index(str(tmp_path / "proj/data"), workspace=str(tmp_path / "proj/.driftline"), model=str(tiny_model))
    shutil.move(tmp_path / "proj", tmp_path / "moved")
    shutil.rmtree(tmp_path / "moved/data")
    (tmp_path / "moved/data").symlink_to(tmp_path / "disk")
    report = dl.index(str(tmp_path / "moved/data"), workspace=str(tmp_path / "moved/.driftline"))
    assert [(each.entity, each.documents_total) for each in report.sources] == [
        ("org:default/project:default/source:data", 1)
    ]
    (hit,) = dl.search(str(tmp_path / "moved/.driftline"), "pump", mode="text", n_lines=0).results
    assert (hit.file, hit.freshness) == (str(tmp_path / "disk/pump.txt"), "fresh")


@pytest.mark.parametrize("entity", [None, "source:app"])
def test_a_source_given_by_a_link_follows_it(entity: str | None, tmp_path: Path, tiny_model: Path) -> None:
    for release in ("one", "two"):
        (tmp_path / release).mkdir()
        (tmp_path / release / "same.txt").write_text("a valve\n")
        (tmp_path / release / f"{release}.txt").write_text("a pump\n")
    workspace, link = str(tmp_path / "ws"), tmp_path / "current"

    def index(folder: Path, name: str | None = entity) -> dict[str, int]:
        report = dl.index(str(folder), workspace=workspace, model=str(tiny_model), entity=name)
        return {each.entity.rpartition(":")[2]: each.documents_total for each in report.sources}

    def found() -> list[tuple[str, str | None]]:
        return [(hit.path, hit.file) for hit in dl.search(workspace, "pump", mode="text", n_lines=0).results]

    link.symlink_to(tmp_path / "one")
    name = "app" if entity else "one"
    assert index(link) == index(tmp_path / "one") == {name: 2}
    link.unlink()
    link.symlink_to(tmp_path / "two")
    assert index(link) == index(link) == {name: 2}
    assert found() == [("two.txt", str(tmp_path / "two/two.txt"))]
    with pytest.raises(SourceConflict, match="bound to another URI"):
        index(tmp_path / "one", f"source:{name}")


@pytest.mark.parametrize("by_link", [True, False])
def test_a_run_that_moves_a_source_writes_nothing_if_it_may_not_delete(
    by_link: bool, tmp_path: Path, tiny_model: Path
) -> None:
    for release, count in (("one", 120), ("two", 3)):
        (tmp_path / release).mkdir()
        for number in range(count):
            (tmp_path / release / f"{release}{number}.txt").write_text(f"{release} pump {number}\n")
    link, workspace = tmp_path / "current", str(tmp_path / "ws")

    def index(release: str, **options: Any) -> None:
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / release)
        where = link if by_link else tmp_path / release
        options["rebind"] = not by_link
        dl.index(str(where), workspace=workspace, model=str(tiny_model), entity="source:app", **options)

    def state() -> tuple[str, int, int]:
        opened = Workspace.open(workspace)
        ((entity, record),) = opened.sources()
        return record.uri, len(opened.manifest(entity).read(columns=["path"])), opened.lines(entity).open().count_rows()

    index("one")
    before = state()
    for _ in range(2):
        with pytest.raises(DeletionRefused):
            index("two")
        assert state() == before
    index("one")
    assert state() == before
    index("two", max_delete_fraction=1.0)
    assert state()[:2] == (str(tmp_path / "two"), 3)


def test_a_source_may_move_to_a_folder_where_its_documents_have_other_paths(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "app/src").mkdir(parents=True)
    for number in range(120):
        (tmp_path / f"app/src/{number}.txt").write_text(f"pump {number}\n")
    how: dict[str, Any] = {"workspace": str(tmp_path / "ws"), "model": str(tiny_model), "entity": "source:app"}
    dl.index(str(tmp_path / "app"), **how)
    report = dl.index(str(tmp_path / "app/src"), rebind=True, **how).sources[0]
    assert (report.states[DocumentState.NEW], report.documents_total) == (120, 120)


def test_a_link_to_the_folder_of_a_source_does_not_take_the_source_away(tmp_path: Path, tiny_model: Path) -> None:
    for name in ("alpha", "beta"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text("a pump\n")
    workspace, link = str(tmp_path / "ws"), tmp_path / "current"

    def index(folder: Path) -> list[tuple[str, str]]:
        report = dl.index(str(folder), workspace=workspace, model=str(tiny_model))
        return [(each.entity.rpartition(":")[2], each.uri) for each in report.sources]

    alpha, beta = ("alpha", str(tmp_path / "alpha")), ("beta", str(tmp_path / "beta"))
    assert index(tmp_path / "alpha") == [alpha]
    link.symlink_to(tmp_path / "alpha")
    assert index(link) == [alpha]
    link.unlink()
    link.symlink_to(tmp_path / "beta")
    assert index(link) == index(link) == [beta]
    assert index(tmp_path / "alpha") == [alpha]


@pytest.mark.parametrize("around", [True, False])
def test_a_workspace_that_leaves_its_project_keeps_the_locations_of_its_sources(
    around: bool, tmp_path: Path, tiny_model: Path
) -> None:
    project, elsewhere = tmp_path / "proj", tmp_path / "elsewhere" / "kept"
    (project / "src").mkdir(parents=True)
    (project / "src/pump.txt").write_text("how the pump is primed\n")
    source = project if around else project / "src"
    dl.index(str(source), workspace=str(project / ".driftline"), model=str(tiny_model))
    elsewhere.parent.mkdir()
    shutil.move(project / ".driftline", elsewhere)
    pulled = tmp_path / "elsewhere" / "proj" / ".driftline"
    pull_workspace(PullRequest(str(elsewhere), str(pulled)))
    for location in (elsewhere, pulled):
        (hit,) = dl.search(str(location), "pump", mode="text", n_lines=0).results
        assert (hit.file, hit.freshness) == (str(project / "src/pump.txt"), "fresh")


def test_a_moved_folder_that_is_indexed_as_a_new_source_is_found_at_its_new_path(
    tmp_path: Path, tiny_model: Path
) -> None:
    project, workspace = tmp_path / "project", tmp_path / "w"
    project.mkdir()
    (project / "c.md").write_text("# pump gamma\n")
    dl.index(project, workspace=workspace, model=str(tiny_model))
    project.rename(tmp_path / "a")
    dl.index(tmp_path / "a", workspace=workspace, model=str(tiny_model))
    (hit,) = dl.search(workspace, "pump")
    assert (hit.file, hit.freshness) == (str(tmp_path / "a/c.md"), "fresh")
    assert hit.copies == ("org:default/project:default/source:project/c.md",)


def test_two_first_runs_of_sources_run_concurrently(tmp_path: Path, tiny_model: Path) -> None:
    """The other run has written fragments, but no table version yet."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(f"{name} valve\n")
    dl.index(str(tmp_path / "one"), workspace=str(tmp_path / "known"), model=str(tiny_model))
    (entity,) = [entity for entity, _ in Workspace.open(str(tmp_path / "known")).sources()]
    table = Workspace.open(str(tmp_path / "known")).lines(entity)
    Workspace.open_for_writing(str(tmp_path / "new"))
    shutil.copytree(Path(table.uri) / "data", tmp_path / "new" / table.path / "data")
    report = dl.index(str(tmp_path / "two"), workspace=str(tmp_path / "new"), model=str(tiny_model))
    assert report.sources[0].documents_total == 1
    (hit,) = dl.search(str(tmp_path / "new"), "valve", mode="text", n_lines=0).results
    assert hit.path == "a.txt"


class Recorded(InlineExecutor):
    """Records how many documents each batch has."""

    def __init__(self, slots: int, *, remote: bool) -> None:
        super().__init__(slots)
        self.remote = remote
        self.batches: list[int] = []

    def map(self, task: Task[Spec, Result], specs: Iterable[Spec]) -> Iterator[Result]:
        seen = list(specs)
        self.batches += [len(spec.changes) for spec in seen if isinstance(spec, BatchSpec)]
        return super().map(task, seen)


@pytest.mark.parametrize(
    ("remote", "slots", "bytes_each", "expected"),
    [
        (True, 2, 1_000, [200, 200]),
        (True, 4, 1_000, [100, 100, 100, 100]),
        (True, 2, 20, [400]),  # too little to share
        (True, 1, 1_000, [400]),
        (False, 2, 1_000, [400]),  # threads share the work inside a batch
    ],
)
def test_workers_share_the_files_of_one_folder(
    remote: bool,
    slots: int,
    bytes_each: int,
    expected: list[int],
    tmp_path: Path,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "flat").mkdir()
    for number in range(400):
        (tmp_path / "flat" / f"{number}.txt").write_text("word7 word8\n".ljust(bytes_each, "x"))
    executor = Recorded(slots, remote=remote)
    monkeypatch.setattr(index, "open_executor", lambda *_: executor)
    report = dl.index(str(tmp_path / "flat"), workspace=str(tmp_path / "index"), model=str(tiny_model))
    assert report.sources[0].documents_total == 400
    assert executor.batches == expected


@pytest.mark.parametrize("mode", ["text", "hybrid"])
def test_copies_in_many_sources_leave_room_for_other_documents(tmp_path: Path, tiny_model: Path, mode: Any) -> None:
    copied = "\n".join(f"def helper_{at}(x):\n    return renew_the_lease(x, {at})\n\n" for at in range(3))
    files = {f"fork{at}/lease.py": copied for at in range(40)}
    files |= {f"other/doc{at}.py": f"x = {at}\n\n# renew the lease sometimes\n" + "pad = 1\n" * 30 for at in range(12)}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    folders = sorted({str((tmp_path / name).parent) for name in files})
    dl.index(folders, workspace=str(tmp_path / "ws"), model=str(tiny_model), executor="inline")
    hits = dl.search(str(tmp_path / "ws"), "renew the lease", mode=mode, top_k=10).results
    assert len(hits) == 10
    assert max(len(hit.copies) for hit in hits) == 39

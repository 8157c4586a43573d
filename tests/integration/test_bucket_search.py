"""A bucket search sends few requests, in parallel, however the documents were changed."""

from __future__ import annotations

import json
import pickle
import random
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from cachetools import LRUCache

import driftline as dl
from driftline.storage.lines import table_searcher
from driftline.storage.lines.line_table import LineTable
from driftline.storage.shared_cache import SharedCache
from driftline.storage.workspace import early_reads
from driftline.storage.workspace.branch_cuts import on_branch
from driftline.storage.workspace.early_reads import EarlyReads
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search import last_search
from driftline.tasks.search import search as search_module
from driftline.tasks.search.hits import SearchReport
from driftline.tasks.search.request import SearchRequest
from tests.servers.delaying import DelayingProxy, Exchange, delaying, rounds
from tests.servers.s3_server import S3Server
from tests.support.oracle import WORDS, save_tiny_model
from tests.support.processes import forked_command
from tests.support.searches import search

DELAYS_SECONDS = (0.2, 1.0, 5.0)
"""One delay is much longer than a busy host takes between two parallel requests of a search."""
MAX_ROUNDS = 8
FILES, LINES = 150, 200


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    dice = random.Random(3)
    folder = tmp_path / "tree"
    folder.mkdir()
    for number in range(FILES):
        lines = ("}" if at % 7 == 3 else " ".join(dice.choices(WORDS, k=6)) for at in range(LINES))
        (folder / f"{number}.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def workspace(s3_bucket: str, tree: Path, tmp_path: Path) -> str:
    """An index in a bucket, with too many lines for a search without the index."""
    dl.index(str(tree), workspace=s3_bucket, model=str(save_tiny_model(tmp_path / "model")))
    return s3_bucket


@pytest.fixture
def proxy(s3_environment: S3Server, workspace: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[DelayingProxy]:
    with delaying(s3_environment.endpoint, 0) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


def requested(proxy: DelayingProxy, workspace: Workspace, query: str) -> tuple[SearchReport, list[Exchange]]:
    proxy.take()
    return search(workspace, query, n_lines=2), proxy.take()


def test_a_warm_search_takes_few_rounds_even_if_the_documents_are_gone(
    proxy: DelayingProxy, workspace: str, tree: Path
) -> None:
    opened = Workspace.open(workspace)
    query = " ".join(WORDS[10:13])
    first, cold = requested(proxy, opened, query)
    for proxy.delay_seconds in DELAYS_SECONDS:
        again, warm = requested(proxy, opened, query)
        if rounds(warm) <= MAX_ROUNDS:
            break
    shutil.rmtree(tree)
    gone, alone = requested(proxy, opened, query)

    assert first.results == again.results
    assert [hit.context for hit in gone.results] == [hit.context for hit in again.results]
    assert len(gone.results) == 10
    assert min(len(hit.context) for hit in gone.results) >= 4  # of the first or last line of a document
    assert len(cold) <= 200
    assert rounds(warm) <= MAX_ROUNDS
    assert rounds(alone) <= rounds(warm) + 6  # all hits' context is read at once


def test_a_process_reads_the_blocks_of_a_small_table_once(
    proxy: DelayingProxy, workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFTLINE_BLOCK_CACHE", "off")
    opened = Workspace.open(workspace)
    found = [requested(proxy, opened, word) for word in WORDS[7:11]]
    reads = [sum("/data/" in each.path for each in exchanges) for _, exchanges in found]
    assert reads[-1] == 0 < reads[0]
    monkeypatch.setattr(table_searcher, "_BLOCKS", SharedCache(LRUCache(0)))
    again, exchanges = requested(proxy, opened, WORDS[10])
    assert again.results == found[-1][0].results
    assert any("/data/" in each.path for each in exchanges)


def test_early_reads_serve_one_call_soon_and_are_not_pickled(
    s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace.open_for_writing(s3_bucket)
    objects = workspace.objects
    objects.create("org:one/_leases/a.json", b"{}")

    def opened() -> Workspace:
        early = EarlyReads.begin(objects, opens_tables=True)
        assert early.names is not None
        early.names.result()
        return Workspace.read_from(objects, early=early)

    first, later, sent = (opened() for _ in range(3))
    objects.create("org:two/_leases/a.json", b"{}")
    assert len(pickle.loads(pickle.dumps(sent)).tenants()) == 2
    assert [len(first.tenants()), len(first.tenants())] == [1, 2]
    later.early.began -= early_reads.EARLY_SECONDS
    later.early.open((), lambda table: None)  # does not renew the listing
    assert len(later.tenants()) == 2


@pytest.mark.parametrize("query", [(WORDS[7],), (WORDS[7], "--mode", "text"), ("-F", WORDS[7])])
def test_a_command_asks_for_nothing_twice(proxy: DelayingProxy, workspace: str, query: tuple[str, ...]) -> None:
    command = [str(forked_command()), "search", *query, "--workspace", workspace, "--json"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(found.stdout)["results"]
    requests = [(each.path, each.range) for each in proxy.take()]
    assert len(requests) <= 80
    assert len(requests) == len(set(requests))


def test_a_search_of_branches_reads_the_files_that_they_share_from_the_main_table(
    s3_environment: S3Server, s3_bucket: str, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(save_tiny_model(tmp_path / "model"))
    for number in range(3):
        part = tmp_path / f"part{number}"
        part.mkdir()
        for path in sorted(tree.iterdir())[number::50]:
            shutil.copy(path, part)
        dl.index(str(part), workspace=s3_bucket, entity=f"source:{number}", model=model)
        if number:
            (part / "new.txt").write_text(f"{WORDS[number]}\n")
            dl.index(str(part), workspace=s3_bucket, entity=f"source:{number}", branch="topic")
    with delaying(s3_environment.endpoint, 0) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        found = on_branch(Workspace.open(s3_bucket), "topic")
        report, exchanges = requested(proxy, found, WORDS[1])
    assert "new.txt" in {hit.path for hit in report.results}
    read = {(folder, name) for each in exchanges for folder, _, name in [each.path.rpartition("/")] if each.range}
    of_main = {name for folder, name in read if "/tree/" not in folder and folder.endswith("/data")}
    of_branches = {name for folder, name in read if "/tree/" in folder and folder.endswith("/data")}
    assert of_main
    assert of_branches
    assert not of_main & of_branches


CHANGES = ("a commit", "a deletion", "a recreated table", "another tenant")


@dataclass(frozen=True)
class Changing:
    """A tree and its index in a bucket."""

    at: str
    tree: Path
    model: Path

    def index(self, folder: Path | None = None, entity: str | None = None) -> None:
        dl.index(str(folder or self.tree), workspace=self.at, model=str(self.model), entity=entity)

    def change(self, change: str) -> None:
        if change == "a commit":
            (self.tree / "9.txt").write_text(f"{WORDS[5]} {WORDS[9]}\n")
        elif change == "a deletion":
            (self.tree / "2.txt").unlink()
        elif change == "another tenant":
            other = self.tree.with_name("other")
            other.mkdir()
            (other / "a.txt").write_text(f"{WORDS[5]}\n")
            return self.index(other, "org:other/project:one/source:tree")
        else:  # with the same version numbers
            objects = Workspace.open(self.at).objects
            objects.delete([each.path for each in objects.list() if not each.path.startswith("_workspace")])
            (self.tree / "2.txt").write_text(f"{WORDS[7]}\n")
        return self.index()

    def found(self, opened: Workspace) -> list[tuple[str, str, str]]:
        report = search_module.search(opened, SearchRequest(WORDS[5], mode="text"))
        return [(hit.source, hit.path, hit.text) for hit in report.results]


@pytest.fixture
def changing(s3_bucket: str, tmp_path: Path) -> Changing:
    made = Changing(s3_bucket, tmp_path / "tree", save_tiny_model(tmp_path / "model"))
    made.tree.mkdir()
    for number, word in enumerate(WORDS[:4]):
        (made.tree / f"{number}.txt").write_text(f"{word} {WORDS[5]}\n")
    made.index()
    return made


@pytest.mark.parametrize("is_during", [False, True], ids=["before", "during"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_search_never_answers_from_the_version_of_the_last_one(
    changing: Changing, change: str, is_during: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Change the bucket before a search, or when it has searched the last version and lists the newest."""
    run, is_newest, changed = search_module._complete, last_search._Opened.is_newest, Event()
    searches = list[Workspace]()

    def watched(opened: Workspace, request: SearchRequest) -> SearchReport:
        report = run(opened, request)
        searches.append(opened)
        if is_during and len(searches) == 1:
            changing.change(change)
            changed.set()
        return report

    def after_the_change(last: Any, opened: Workspace) -> bool:
        assert changed.wait(300)
        return is_newest(last, opened)

    opened = Workspace.open(changing.at)
    before, same = changing.found(opened), changing.found(opened)
    assert before == same
    assert len(before) == 4
    monkeypatch.setattr(search_module, "_complete", watched)
    if is_during:
        monkeypatch.setattr(last_search._Opened, "is_newest", after_the_change)
    else:
        changing.change(change)
    again = changing.found(opened)
    assert len(searches) == 2  # the last version, and the newest
    monkeypatch.setattr(last_search, "_LAST", SharedCache(LRUCache(1)))
    assert again == changing.found(Workspace.open(changing.at)) != before


def test_a_version_that_may_have_been_deleted_is_not_searched(
    changing: Changing, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, searches = search_module._complete, list[Workspace]()

    def watched(opened: Workspace, request: SearchRequest) -> SearchReport:
        searches.append(opened)
        return run(opened, request)

    opened = Workspace.open(changing.at)
    before = changing.found(opened)
    changing.change("a commit")
    monkeypatch.setattr(last_search, "MAX_AGE_SECONDS", 0.0)
    monkeypatch.setattr(search_module, "_complete", watched)
    assert changing.found(opened) != before
    assert len(searches) == 1


def test_a_warm_search_does_not_wait_for_the_listing_before_it_searches(
    proxy: DelayingProxy, workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, done = Workspace.open(workspace), Event()
    proxy.take()
    asked = SearchRequest(WORDS[7])
    first = search_module.search(opened, asked)
    cold = proxy.take()
    run, newest = search_module._complete, LineTable.newest

    def watched(workspace: Workspace, request: SearchRequest) -> SearchReport:
        report = run(workspace, request)
        done.set()
        return report

    def after_the_search(table: LineTable) -> tuple[str, str] | None:
        assert done.wait(300)
        return newest(table)

    monkeypatch.setattr(search_module, "_complete", watched)
    monkeypatch.setattr(LineTable, "newest", after_the_search)
    again = search_module.search(opened, asked)
    warm = proxy.take()
    assert done.is_set()
    assert again.results == first.results
    assert sum("_versions" in each.path for each in warm) == 1
    assert len(warm) <= 3 + sum("/data/" in each.path for each in warm) < len(cold)

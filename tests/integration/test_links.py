"""Permanent links of hits: a link leads to the indexed text at a commit on the host, or there is no link."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import driftline
from driftline.flows.config.index_request import IndexRequest, SourceRequest
from driftline.flows.runs.index import index_sources
from driftline.flows.runs.pull import PullRequest, pull_workspace
from driftline.storage.entities import Entity
from driftline.storage.json_records import from_json, to_json
from driftline.storage.workspace.records import SourceRecord
from driftline.storage.workspace.workspace import Workspace, acquire_source
from driftline.tasks.search import links
from tests.servers.git_server import Checkout, GitServer, git

HOST = "https://code.example/team/app/-/blob"


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "index")


@pytest.fixture
def command(driftline: Callable[..., Any]) -> Callable[..., Any]:
    return driftline


@pytest.fixture(autouse=True)
def _nothing_known() -> None:
    """Make each search ask git for the pushed commit."""
    for cache in (links._KNOWN, links._PUSHED):
        cache.clear()


@pytest.fixture
def tree(git_server: GitServer, tmp_path: Path) -> Checkout:
    """A clone of a repository; its configured remote is ``git@code.example:team/app.git``."""
    made = Checkout.of(git_server.create("app.git"), tmp_path / "tree")
    made.write("src/a.py", "def alpha():\n    return 1\n")
    made.write("docs/b.md", "alpha of the docs\n")
    made.push()
    git(made.folder, "fetch", "--quiet", "origin")
    return made


def bind(tree: Checkout) -> None:
    """Point a work tree's remote to another host, which is never contacted."""
    git(tree.folder, "config", "remote.origin.url", "https://user:s3cr3t@code.example/team/app.git")


def index(location: str, model: Path, source: object, **options: Any) -> None:
    index_sources(
        IndexRequest((SourceRequest(str(source), link="gitlab"),), location, model=str(model), workers=1, **options)
    )


def urls(location: str, **options: Any) -> dict[str, str | None]:
    links._PUSHED.clear()
    links._KNOWN.clear()
    found = driftline.search(location, "alpha", **options)
    exact = driftline.search(location, "", fixed="alpha", **options)
    assert {hit.path: hit.url for hit in exact} == {hit.path: hit.url for hit in found}
    return {hit.path: hit.url for hit in found}


def test_an_unchanged_file_of_a_work_tree_is_linked_at_the_pushed_commit(
    tree: Checkout, location: str, tiny_model: Path
) -> None:
    pushed = git(tree.folder, "rev-parse", "HEAD")
    bind(tree)
    tree.write("new.py", "alpha = 'untracked'\n")
    index(location, tiny_model, tree.folder)
    linked = {
        "src/a.py": f"{HOST}/{pushed}/src/a.py#L1",
        "docs/b.md": f"{HOST}/{pushed}/docs/b.md?plain=1#L1",
        "new.py": None,
    }
    assert urls(location) == linked
    git(tree.folder, "add", "--all")
    git(tree.folder, "commit", "--quiet", "-m", "not pushed")
    assert urls(location) == linked
    tree.write("src/a.py", "def alpha():\n    return 2\n")
    assert urls(location) == linked  # the text found is that of the commit
    (tree.folder / "docs/b.md").unlink()
    assert urls(location) == linked
    index(location, tiny_model, tree.folder)
    assert urls(location) == {"src/a.py": None, "new.py": None}  # the text found is newer than the commit
    git(tree.folder, "checkout", "--quiet", "HEAD", "--", "src/a.py")
    assert urls(location) == {"src/a.py": None, "new.py": None}


def test_a_source_below_the_top_of_its_repository_is_linked_by_the_path_in_it(
    tree: Checkout, location: str, tiny_model: Path
) -> None:
    bind(tree)
    index(location, tiny_model, tree.folder / "src")
    assert urls(location) == {"a.py": f"{HOST}/{git(tree.folder, 'rev-parse', 'HEAD')}/src/a.py#L1"}


def test_without_a_pushed_commit_there_is_no_link(tree: Checkout, location: str, tiny_model: Path) -> None:
    bind(tree)
    git(tree.folder, "update-ref", "-d", "refs/remotes/origin/main")
    index(location, tiny_model, tree.folder)
    assert urls(location) == {"src/a.py": None, "docs/b.md": None}


def urls_with(location: str, **change: Any) -> dict[str, str | None]:
    """Return the links after changing the only source's record, by default to a remote on a nonexistent host."""
    (path,) = Path(location).rglob("_source.json")
    before = path.read_bytes()
    known = from_json(SourceRecord, before)
    path.write_bytes(to_json(replace(known, **{"origin": "git@code.example:team/app.git"} | change)))
    try:
        return urls(location)
    finally:
        path.write_bytes(before)


def test_a_repository_by_its_url_is_linked_at_the_commit_of_its_run_without_a_mirror(
    git_server: GitServer, tree: Checkout, location: str, tiny_model: Path
) -> None:
    first = git(tree.folder, "rev-parse", "HEAD")
    index(location, tiny_model, git_server.url("app.git"))
    tree.write("src/a.py", "\n\ndef alpha():\n    return 2\n")
    second = tree.push()
    assert urls_with(location)["src/a.py"] == f"{HOST}/{first}/src/a.py#L1"
    index(location, tiny_model, git_server.url("app.git"))
    assert urls_with(location) == {
        "src/a.py": f"{HOST}/{second}/src/a.py#L3",
        "docs/b.md": f"{HOST}/{second}/docs/b.md?plain=1#L1",
    }


def test_documents_that_a_later_run_has_written_have_no_link_until_it_ends(
    tree: Checkout, location: str, tiny_model: Path
) -> None:
    bind(tree)
    at = git(tree.folder, "rev-parse", "HEAD")
    index(location, tiny_model, tree.folder, by_commit=True)
    git(tree.folder, "update-ref", "-d", "refs/remotes/origin/main")  # only the record is evidence
    tree.write("src/a.py", "def alpha():\n    return 3\n")
    index(location, tiny_model, tree.folder)
    assert urls(location) == {"src/a.py": None, "docs/b.md": f"{HOST}/{at}/docs/b.md?plain=1#L1"}
    tree.write("src/a.py", "def alpha():\n    return 1\n")
    index(location, tiny_model, tree.folder, by_commit=True)
    assert urls(location)["src/a.py"] == f"{HOST}/{at}/src/a.py#L1"


def test_a_branch_is_linked_at_its_own_commit(tree: Checkout, location: str, tiny_model: Path) -> None:
    main = git(tree.folder, "rev-parse", "HEAD")
    bind(tree)
    index(location, tiny_model, tree.folder, by_commit=True)
    git(tree.folder, "switch", "--quiet", "-c", "topic")
    tree.write("src/a.py", "\ndef alpha():\n    return 4\n")
    git(tree.folder, "commit", "--quiet", "-am", "topic")
    topic = git(tree.folder, "rev-parse", "HEAD")
    index(location, tiny_model, tree.folder, by_commit=True, branch="topic")
    git(tree.folder, "update-ref", "-d", "refs/remotes/origin/main")
    assert urls(location)["src/a.py"] == f"{HOST}/{main}/src/a.py#L1"
    assert urls(location, branch="topic")["src/a.py"] == f"{HOST}/{topic}/src/a.py#L2"


def test_a_copy_whose_record_is_newer_than_its_manifest_has_no_links(
    git_server: GitServer, tree: Checkout, location: str, tiny_model: Path, tmp_path: Path
) -> None:
    index(location, tiny_model, git_server.url("app.git"))
    copy = str(tmp_path / "copy")
    pull_workspace(PullRequest(location, copy))
    before = git(tree.folder, "rev-parse", "HEAD")
    assert urls_with(copy)["src/a.py"] == f"{HOST}/{before}/src/a.py#L1"
    tree.write("src/a.py", "alpha = 'elsewhere'\n")
    tree.push()
    index(location, tiny_model, git_server.url("app.git"))
    (newer,) = Path(location).rglob("_source.json")
    (older,) = Path(copy).rglob("_source.json")
    older.write_bytes(newer.read_bytes())
    assert urls_with(copy) == {"src/a.py": None, "docs/b.md": None}


def test_a_killed_run_removes_links_only_of_documents_that_it_wrote(
    git_server: GitServer, tree: Checkout, location: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(location, tiny_model, git_server.url("app.git"))
    at = git(tree.folder, "rev-parse", "HEAD")
    tree.write("src/a.py", "def alpha():\n    return 5\n")
    tree.push()
    with monkeypatch.context() as patch:
        patch.setattr("driftline.flows.runs.source_run.LeasedRun._delete", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            index(location, tiny_model, git_server.url("app.git"))
    assert urls_with(location) == {"src/a.py": None, "docs/b.md": f"{HOST}/{at}/docs/b.md?plain=1#L1"}


def test_a_forged_record_creates_no_links(
    git_server: GitServer, tree: Checkout, location: str, tiny_model: Path
) -> None:
    index(location, tiny_model, git_server.url("app.git"))
    for change in ({"link": "javascript:{commit}{path}"}, {"origin": "javascript:alert(1)"}, {"origin": None}):
        assert urls_with(location, **change) == {"src/a.py": None, "docs/b.md": None}


def test_credentials_of_a_remote_appear_nowhere(tree: Checkout, location: str, tiny_model: Path) -> None:
    bind(tree)
    index(location, tiny_model, tree.folder)
    said = json.dumps(driftline.search(location, "alpha").to_dict())
    assert HOST in said
    assert "s3cr3t" not in said + "".join(path.read_text() for path in Path(location).rglob("*.json"))


def test_an_excerpt_has_the_link_of_its_line(tree: Checkout, location: str, tiny_model: Path) -> None:
    bind(tree)
    index(location, tiny_model, tree.folder)
    workspace = driftline.open(location)
    (source,) = {hit.source for hit in workspace.search("alpha")}
    found = workspace.excerpt(source, "src/a.py", 2)
    assert found.url == f"{HOST}/{git(tree.folder, 'rev-parse', 'HEAD')}/src/a.py#L2"


def test_the_setting_of_a_source_is_recorded_changed_and_removed(
    git_server: GitServer, tree: Checkout, location: str, tiny_model: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    config = tmp_path / "driftline.toml"

    def recorded(line: str) -> str | None:
        sources = f'[[sources]]\nuri = "{git_server.url("app.git")}"\n{line}\n'
        config.write_text(f'workspace = "{location}"\nmodel = "{tiny_model}"\n{sources}')
        outcome = command("index", "--all", "--config", config)
        assert outcome.code == 0, outcome.err
        (path,) = Path(location).rglob("_source.json")
        return from_json(SourceRecord, path.read_bytes()).link

    assert recorded('link = "gitea"') == "gitea"
    own = "https://{host}/c/{repository}/+/{commit}/{path}#{line}"
    assert recorded(f'link = "{own}"') == own
    assert recorded("") is None
    config.write_text(config.read_text() + 'link = "ftp://x/{commit}/{path}"\n')
    outcome = command("index", "--all", "--config", config)
    assert (outcome.code, "Start with https://" in outcome.err) == (2, True), outcome.err


def test_a_lease_of_another_run_does_not_invalidate_links(tree: Checkout, location: str, tiny_model: Path) -> None:
    bind(tree)
    index(location, tiny_model, tree.folder, by_commit=True)
    git(tree.folder, "update-ref", "-d", "refs/remotes/origin/main")
    before = urls(location)
    workspace = Workspace.open(location)
    (entity,) = (Entity.parse(hit.source) for hit in driftline.search(location, "alpha", top_k=1))
    with acquire_source(workspace, entity, "another run"):
        pass
    assert urls(location) == before
    assert None not in before.values()

"""For random histories, the index of a repository given by URL equals the index of its checked-out tree."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from driftline.flows.config.index_request import IndexRequest
from driftline.flows.runs.index import index_sources
from driftline.storage.entities import Entity
from driftline.storage.workspace.workspace import Workspace
from tests.servers.git_server import Checkout, GitServer, git
from tests.support.oracle import WORDS, assert_in_step, indexed_rows, manifest_of, save_tiny_model

STEPS = 7


def tracked(project: Checkout) -> dict[str, bytes]:
    names = git(project.folder, "ls-files", "-z").split("\0")
    return {name: (project.folder / name).read_bytes() for name in names if name}


def change(chance: random.Random, project: Checkout) -> None:
    """Write, move and delete some files, or switch to an older or unrelated commit."""
    commits = git(project.folder, "rev-list", "--all").split()
    event = chance.random()
    if event < 0.2 and commits:
        git(project.folder, "reset", "--hard", "--quiet", chance.choice(commits))
    elif event < 0.3 and commits:
        git(project.folder, "checkout", "--quiet", "--orphan", f"orphan{project.count}")
    for _ in range(chance.randint(1, 5)):
        known = sorted(tracked(project))
        action = chance.random()
        if action < 0.2 and known:
            (project.folder / chance.choice(known)).unlink(missing_ok=True)
        elif action < 0.4 and known:
            old = project.folder / chance.choice(known)
            new = project.folder / f"moved/{chance.randrange(9)}.md"
            new.parent.mkdir(exist_ok=True)
            if old.exists():
                old.rename(new)
        else:
            folder = chance.choice(("", "a/", "a/b/", "c/"))
            lines = (" ".join(chance.choices(WORDS, k=3)) for _ in range(chance.randint(0, 4)))
            project.write(f"{folder}{chance.randrange(6)}.md", "\n".join(lines))
        git(project.folder, "add", "--all")


@pytest.mark.parametrize("seed", [1, 2])
def test_the_index_follows_any_history(seed: int, git_server: GitServer, tmp_path: Path) -> None:
    chance = random.Random(seed)
    model = str(save_tiny_model(tmp_path / "model"))
    project = Checkout.of(git_server.create("app.git"), tmp_path / "app")
    entities = [Entity.parse("source:served"), Entity.parse("source:bare")]
    uris = [git_server.url("app.git"), f"git+file://{project.remote}"]
    for _ in range(STEPS):
        change(chance, project)
        commit = project.push()
        for entity, uri in zip(entities, uris, strict=True):
            if chance.random() < 0.8:
                request = IndexRequest((uri,), str(tmp_path / entity.id), entity=str(entity), model=model)
                report = index_sources(request).sources[0]
                workspace = Workspace.open(str(tmp_path / entity.id))
                assert report.commit == commit
                assert_in_step(workspace, entity, tracked(project))
    folder = Entity.parse("source:folder")
    request = IndexRequest((str(project.folder),), str(tmp_path / "folder"), entity=str(folder), model=model)
    index_sources(request)
    of_folder = Workspace.open(str(tmp_path / "folder"))
    for entity, uri in zip(entities, uris, strict=True):
        index_sources(IndexRequest((uri,), str(tmp_path / entity.id), entity=str(entity)))
        workspace = Workspace.open(str(tmp_path / entity.id))
        assert indexed_rows(workspace, entity) == indexed_rows(of_folder, folder)
        assert manifest_of(workspace, entity) == manifest_of(of_folder, folder)

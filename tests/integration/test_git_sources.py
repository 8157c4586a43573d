"""Sources given as git URLs: indexed documents, the cost of a run, and the mirror."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import pickle
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from driftline.storage.entities import Entity
from driftline.storage.errors import AccessDenied, DriftlineError, SourceNotFound, StorageError, UsageError
from driftline.storage.sources import commit_tree, mirror
from driftline.storage.sources.git_isolation import spawn
from driftline.storage.sources.mirror import Mirror, current_branches, parse_remote, resolve, with_reference
from driftline.storage.sources.source import known_source, open_source
from driftline.storage.workspace.workspace import Workspace, acquire_source
from tests.servers.git_server import Checkout, GitServer, git

Driftline = Callable[..., Any]


@pytest.fixture
def project(git_server: GitServer, tmp_path: Path) -> Checkout:
    """A work tree of ``team/app.git`` on the server, with two files on ``main``."""
    (git_server.root / "team").mkdir()
    tree = Checkout.of(git_server.create("team/app.git"), tmp_path / "app")
    tree.write("src/a.py", "def alpha():\n    return 1\n")
    tree.write("docs/b.md", "beta\n")
    tree.push()
    return tree


@pytest.fixture
def run(tmp_path: Path, tiny_model: Path, driftline: Driftline) -> Driftline:
    """Index a source into a workspace and return the source's report."""

    def index(uri: object, *options: object) -> Any:
        outcome = driftline("index", uri, "--workspace", tmp_path / "index", "--model", tiny_model, *options, "--json")
        assert outcome.code == 0, outcome.err
        return outcome.json["sources"][0]

    return index


def counts(report: Any) -> tuple[int, int, int, int]:
    return report["new"], report["changed"], report["deleted"], report["unchanged"]


def requests(server: GitServer) -> list[str]:
    requested = [each.path.partition("?")[0].rpartition("/")[2] for each in server.requested]
    server.requested.clear()
    return requested


def test_a_repository_is_indexed_by_its_url(git_server: GitServer, project: Checkout, run: Driftline) -> None:
    first = run(git_server.url("team/app.git"))
    assert counts(first) == (2, 0, 0, 0)
    assert first["uri"] == git_server.url("team/app.git")
    assert first["entity"].endswith("source:app")
    project.write("src/a.py", "def gamma():\n    return 2\n")
    (project.folder / "docs/b.md").rename(project.folder / "docs/c.md")
    commit = project.push()
    second = run(git_server.url("team/app.git"))
    assert counts(second) == (1, 1, 1, 0)
    assert second["commit"] == commit
    assert second["base"] == first["commit"]
    assert second["bytes_read"] == len("def gamma():\n    return 2\n" + "beta\n")


def test_an_unchanged_repository_costs_one_request_for_its_refs(
    git_server: GitServer, project: Checkout, run: Driftline, tmp_path: Path
) -> None:
    run(git_server.url("team/app.git"))
    git_server.requested.clear()
    entity = tmp_path / "index"
    before = {path: path.stat().st_mtime_ns for path in entity.rglob("*") if "_runs" not in path.parts}
    assert counts(run(git_server.url("team/app.git"))) == (0, 0, 0, 2)
    assert requests(git_server) == ["refs", "git-upload-pack"]  # the protocol and the refs
    after = {path: path.stat().st_mtime_ns for path in entity.rglob("*") if "_runs" not in path.parts}
    assert {path.name for path in after if after[path] != before.get(path)} <= {"_runs", "org:default"}


def test_other_settings_list_an_unchanged_commit_again(
    git_server: GitServer, project: Checkout, run: Driftline
) -> None:
    run(git_server.url("team/app.git"))
    assert counts(run(git_server.url("team/app.git"), "--exclude", "*.md")) == (0, 0, 1, 1)


def test_a_run_after_an_interrupted_one_compares_everything(
    git_server: GitServer, project: Checkout, run: Driftline, tmp_path: Path
) -> None:
    entity = run(git_server.url("team/app.git"))["entity"]
    with acquire_source(Workspace.open(str(tmp_path / "index")), Entity.parse(entity), "another run"):
        pass
    again = run(git_server.url("team/app.git"))
    assert (counts(again), again["bytes_read"]) == ((0, 0, 0, 2), 0)


@pytest.mark.parametrize("form", ["git+file://{}", "{}"])
def test_a_bare_clone_is_read_as_a_repository(
    git_server: GitServer, project: Checkout, run: Driftline, form: str
) -> None:
    report = run(form.format(project.remote))
    assert counts(report) == (2, 0, 0, 0)
    assert report["uri"] == f"git+file://{project.remote}"
    project.write("src/a.py", "changed\n")
    project.push()
    assert counts(run(form.format(project.remote))) == (0, 1, 0, 1)


def test_the_git_folder_of_a_work_tree_is_read_as_a_repository(project: Checkout, run: Driftline) -> None:
    project.write("untracked.py", "not in the commit\n")
    assert counts(run(project.folder / ".git")) == (2, 0, 0, 0)
    assert counts(run(f"git+file://{project.folder}")) == (0, 0, 0, 2)


@pytest.mark.parametrize("ref", ["next", "v1", "refs/pull/7/head"])
def test_a_branch_a_tag_and_a_ref_are_named_after_an_at(
    git_server: GitServer, project: Checkout, run: Driftline, ref: str
) -> None:
    project.write("only_there.py", "x = 1\n")
    project.push("next")
    git(project.folder, "tag", "-a", "v1", "-m", "one")
    git(project.folder, "push", "--quiet", "origin", "v1", "HEAD:refs/pull/7/head")
    for uri in (git_server.url("team/app.git"), f"git+file://{project.remote}"):
        found = open_source(f"{uri}@{ref}")
        assert "only_there.py" in {info.path for info in found.list()}
        assert "only_there.py" not in {info.path for info in open_source(uri).list()}
        commit = git(project.folder, "rev-parse", "HEAD")
        assert {info.path for info in open_source(f"{uri}@{commit}").list()} == {info.path for info in found.list()}


def test_a_tag_as_the_default_branch_resolves_to_its_commit(git_server: GitServer, project: Checkout) -> None:
    commit = git(project.folder, "rev-parse", "HEAD")
    git(project.folder, "tag", "-a", "v1", "-m", "one")
    git(project.folder, "push", "--quiet", "origin", "v1")
    (project.remote / "HEAD").write_text("ref: refs/tags/v1\n")
    for uri in (git_server.url("team/app.git"), f"git+file://{project.remote}"):
        remote = parse_remote(uri)
        assert remote is not None
        assert current_branches(remote) == (commit, {"main": commit})
        assert resolve(remote) == commit


def test_a_missing_branch_or_repository_is_an_error_before_any_write(
    git_server: GitServer, project: Checkout, driftline: Driftline, tmp_path: Path
) -> None:
    for uri in ("team/app.git@none", "team/none.git", "team/empty.git"):
        git_server.create("team/empty.git") if uri == "team/empty.git" else None
        outcome = driftline("index", git_server.url(uri), "--workspace", tmp_path / "index")
        assert (outcome.code, "repository" in outcome.err) == (2, True), outcome.err
    assert not (tmp_path / "index").exists()


def test_links_submodules_and_pointers_are_skipped_with_a_reason(
    git_server: GitServer, project: Checkout, run: Driftline
) -> None:
    (project.folder / "link").symlink_to("docs")
    project.write("film.md", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    project.write("tool.sh", "#!/bin/sh\n")
    (project.folder / "tool.sh").chmod(0o755)
    inner = project.push()
    git(project.folder, "update-index", "--add", "--cacheinfo", f"160000,{inner},vendor/lib")
    git(project.folder, "commit", "--quiet", "-m", "a submodule")
    git(project.folder, "push", "--quiet", "origin", "HEAD:main")
    report = run(git_server.url("team/app.git"))
    reasons = {skipped["path"]: skipped["reason"] for skipped in report["skipped"]}
    assert reasons == {"link": "symbolic link", "film.md": "pointer of Git LFS", "vendor/lib": "submodule"}
    assert report["new"] == 3


def test_only_our_own_ignore_files_count(git_server: GitServer, project: Checkout, run: Driftline) -> None:
    project.write(".gitignore", "*.md\n")
    project.write("docs/.driftlineignore", "/private\n*.log\n")
    project.write("docs/private/x.md", "hidden\n")
    project.write("docs/y.log", "hidden\n")
    project.push()
    url = git_server.url("team/app.git")
    assert counts(run(url)) == (4, 0, 0, 0)
    project.write("docs/private/z.md", "hidden as well\n")
    project.write("docs/c.md", "shown\n")
    project.push()
    assert counts(run(url)) == (1, 0, 0, 4), "changed paths follow the rules of the folders above them"
    project.write("docs/.driftlineignore", "/private\n")
    project.push()
    assert counts(run(url)) == (1, 1, 0, 4), "a changed ignore file compares everything"


def test_a_force_push_and_a_lost_mirror_lose_nothing(
    git_server: GitServer, project: Checkout, run: Driftline, tmp_path: Path
) -> None:
    url = git_server.url("team/app.git")
    run(url)
    git(project.folder, "checkout", "--quiet", "--orphan", "other")
    git(project.folder, "rm", "-rfq", ".")
    project.write("src/a.py", "def alpha():\n    return 1\n")
    project.write("new.py", "new = 1\n")
    project.push()
    assert counts(run(url)) == (1, 0, 1, 1)
    shutil.rmtree(os.environ["DRIFTLINE_GIT_CACHE"])
    project.write("new.py", "new = 2\n")
    project.push()
    last = run(url)
    assert (counts(last), last["bytes_read"]) == ((0, 1, 0, 1), len("new = 2\n"))


def test_a_mirror_fetches_only_what_is_new_and_keeps_the_last_commits(
    git_server: GitServer, project: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "KEPT_COMMITS", 2)
    project.write("large.txt", "".join(f"{number} words of a large file\n" for number in range(40_000)))
    project.push()
    url = git_server.url("team/app.git")
    remote = parse_remote(url)
    assert remote is not None
    location = Mirror.of(remote)
    sizes = []
    for number in range(4):
        project.write("src/a.py", f"number = {number}\n")
        location.ensure(project.push())
        sizes.append(mirror._size_bytes(location.folder))
    assert sizes[-1] - sizes[0] < 0.1 * sizes[0]
    assert len(os.listdir(location._refs)) == mirror.KEPT_COMMITS


def test_many_fetches_are_packed_into_one(
    git_server: GitServer, project: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "TIDIED_AFTER", 2)
    remote = parse_remote(git_server.url("team/app.git"))
    assert remote is not None
    location = Mirror.of(remote)
    for number in range(4):
        project.write("src/a.py", f"number = {number}\n")
        commit = project.push()
        location.ensure(commit)
    packs = [name for name in os.listdir(Path(location.git_dir, "objects/pack")) if name.endswith(".pack")]
    assert len(packs) <= 2
    assert location.has(commit)
    assert open_source(git_server.url("team/app.git")).read("src/a.py") == b"number = 3\n"


def test_leftovers_of_a_killed_fetch_do_not_stop_the_next_one(
    git_server: GitServer, project: Checkout, run: Driftline
) -> None:
    url = git_server.url("team/app.git")
    run(url)
    remote = parse_remote(url)
    assert remote is not None
    location = Mirror.of(remote)
    commit = project.push()
    for left in ("shallow.lock", f"refs/driftline/{commit}.lock", "objects/pack/tmp_pack_x"):
        Path(location.git_dir, left).write_text("left")
    assert run(url)["commit"] == commit
    assert not Path(location.git_dir, "objects/pack/tmp_pack_x").exists()


def test_the_cache_is_bounded_and_keeps_what_is_in_use(
    git_server: GitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locations = []
    monkeypatch.setenv("DRIFTLINE_GIT_CACHE", str(tmp_path / "mirrors"))
    for name in ("one", "two", "three"):
        tree = Checkout.of(git_server.create(f"{name}.git"), tmp_path / name)
        (tree.folder / "noise").write_bytes(os.urandom(200_000))
        commit = tree.push()
        remote = parse_remote(git_server.url(f"{name}.git"))
        assert remote is not None
        locations.append((Mirror.of(remote), commit))
    monkeypatch.setenv("DRIFTLINE_GIT_CACHE_BYTES", "500000")
    (first, of_first), (second, of_second), (third, of_third) = locations
    with first.holding(of_first):
        second.ensure(of_second)
        third.ensure(of_third)
        assert [location.has(commit) for location, commit in locations] == [True, False, True]
    monkeypatch.setenv("DRIFTLINE_GIT_CACHE_BYTES", "much")
    with pytest.raises(UsageError, match="DRIFTLINE_GIT_CACHE_BYTES"):
        second.ensure(of_second)


def test_a_mirror_that_is_being_fetched_is_not_evicted(git_server: GitServer, project: Checkout) -> None:
    remote = parse_remote(git_server.url("team/app.git"))
    assert remote is not None
    location, commit = Mirror.of(remote), project.push()
    location.ensure(commit)
    with location._locked("fetch"):
        assert not location.delete()
    assert location.has(commit)
    left = location.folder.with_name(f"{location.folder.name}.1.deleted")
    left.mkdir()
    assert location.delete()
    location.ensure(commit)
    assert not left.exists(), "the remains of a killed deletion go with the next fetch"


def test_interrupting_a_git_command_kills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def spawned(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(spawn(*arguments, **options))
        return started[-1]

    def interrupted() -> float:
        if started:
            raise KeyboardInterrupt
        return 0.0

    monkeypatch.setattr(mirror, "spawn", spawned)
    monkeypatch.setattr(mirror, "time", SimpleNamespace(monotonic=interrupted))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        remote = parse_remote(f"git+http://127.0.0.1:{silent.getsockname()[1]}/x.git")
        assert remote is not None
        with pytest.raises(KeyboardInterrupt):
            resolve(remote)
    assert started[0].poll() == -signal.SIGKILL


@pytest.mark.parametrize("uri", ["git@host:2222/repo.git", "git@host:2222", "git+https://host/@scope/x.git"])
def test_a_url_that_git_would_read_differently_is_refused(uri: str) -> None:
    with pytest.raises(UsageError, match=r"port or a folder|no path before the @"):
        parse_remote(uri)


REPOSITORIES = {
    "https://gist.github.com/ann/0123abcd.git": "0123abcd",
    "https://github.com/acme/tree.wiki.git": "tree.wiki",
    "https://gitlab.com/a/b/c/tree.git": "tree",
    "https://bitbucket.example.com/scm/prj/tree.git": "tree",
    "https://dev.azure.com/acme/web/_git/tree": "tree",
    "https://acme@dev.azure.com/acme/a%20web/_git/a%20tree": "a tree",
    "https://acme.visualstudio.com/DefaultCollection/web/_git/tree": "tree",
    "git@ssh.dev.azure.com:v3/acme/web/tree": "tree",
    "ssh://git@ssh.dev.azure.com/v3/acme/web/tree": "tree",
    "https://git-codecommit.eu-west-1.amazonaws.com/v1/repos/tree": "tree",
    "ssh://KEY@git-codecommit.eu-west-1.amazonaws.com/v1/repos/tree": "tree",
}


@pytest.mark.parametrize("url", REPOSITORIES)
def test_a_repository_is_recognized_by_the_url_that_its_host_shows(url: str) -> None:
    for given in (url, f"{url}@topic", url if url.startswith("git@") else f"git+{url}"):
        remote = parse_remote(given)
        assert remote is not None
        assert (remote.name, remote.ref) == (REPOSITORIES[url], "topic" if "@topic" in given else "")
        assert parse_remote(remote.uri) == remote


@pytest.mark.parametrize("url", ["https://dev.azure.com/acme/web", "https://example.com/_git/", "ssh://host/v3/a/b"])
def test_other_urls_are_not_repositories(url: str) -> None:
    assert parse_remote(url) is None


@pytest.mark.parametrize(
    "url", ["codecommit::eu-west-1://tree", "codecommit://tree", "https://other@dev.azure.com/a/_git/b"]
)
def test_a_url_that_runs_a_program_or_may_hold_a_token_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"git\+https"):
        parse_remote(url)


@pytest.mark.parametrize(
    ("uri", "is_same"),
    [("acme/app", True), ("acme/app.git", True), ("acme/app@topic", True), ("acme/app-of-others", False), ("a", False)],
)
def test_the_token_of_a_repository_is_not_for_others_on_its_host(uri: str, is_same: bool) -> None:
    references = {"git+https://host.example/acme/app": "user:${TOKEN}"}
    found = with_reference(f"git+https://host.example/{uri}", references)
    assert ("TOKEN" in found) == is_same


def test_the_users_git_configuration_rewrites_urls_to_safe_protocols_only(
    git_server: GitServer, project: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, connect = tmp_path / "gitconfig", tmp_path / "connect"
    connect.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    connect.chmod(0o755)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_SSH_COMMAND", str(connect))
    monkeypatch.setenv("GIT_TOKEN", "s3cret")
    remote = parse_remote("git+http://${GIT_TOKEN}@old.example/team/app.git")
    assert remote is not None
    for base in (git_server.url("").removeprefix("git+"), f"ssh://git@host{git_server.root}/"):
        git_server.requested.clear()
        config.write_text(f'[url "{base}"]\n\tinsteadOf = http://old.example/\n')
        assert resolve(remote) == git(project.folder, "rev-parse", "HEAD")
        assert not any(each.authorization for each in git_server.requested)
    for base in (f"file://{git_server.root}/", f"ext::sh -c 'touch {tmp_path}/ran' "):
        config.write_text(f'[url "{base}"]\n\tinsteadOf = http://old.example/\n')
        with pytest.raises(UsageError, match="insteadOf"):
            resolve(remote)
    assert not (tmp_path / "ran").exists()


def test_a_token_is_given_by_reference_and_never_shown(
    git_server: GitServer,
    project: Checkout,
    tmp_path: Path,
    tiny_model: Path,
    driftline: Driftline,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    commands: list[list[str]] = []
    real = subprocess.Popen

    class Recorded(real):  # type: ignore[valid-type, misc]
        def __init__(self, command: Any, *rest: Any, **options: Any) -> None:
            commands.append(list(command))
            super().__init__(command, *rest, **options)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    git_server.authorization = "Basic " + base64.b64encode(b"robot:s3cret-token").decode()
    address = git_server.url("team/app.git").replace("://", "://robot:${GIT_TOKEN}@")
    options = ("--workspace", tmp_path / "index", "--model", tiny_model)
    monkeypatch.delenv("GIT_TOKEN", raising=False)
    assert "GIT_TOKEN" in driftline("index", address, *options).err
    monkeypatch.setenv("GIT_TOKEN", "wrong")
    outcome = driftline("index", address, *options)
    assert (outcome.code, "denies access" in outcome.err) == (2, True)
    monkeypatch.setenv("GIT_TOKEN", "s3cret-token")
    caplog.set_level("DEBUG")
    outcome = driftline("index", address, *options, "--json")
    assert outcome.json["sources"][0]["new"] == 2
    shown = outcome.out + outcome.err + caplog.text + repr(commands)
    written = b"".join(path.read_bytes() for path in (tmp_path / "index").rglob("*") if path.is_file())
    kept = b"".join(path.read_bytes() for path in Path(os.environ["DRIFTLINE_GIT_CACHE"]).rglob("*") if path.is_file())
    for secret in ("s3cret-token", base64.b64encode(b"robot:s3cret-token").decode()):
        assert secret not in shown
        assert secret.encode() not in written + kept


def test_a_token_in_a_url_is_refused(driftline: Driftline, tmp_path: Path) -> None:
    for url in (
        "git+https://s3cret@localhost/x.git",
        "git+ssh://git:s3cret@localhost/x.git",
        "https://u:s3cret@h/x.git",
    ):
        outcome = driftline("index", url, "--workspace", tmp_path / "index")
        assert (outcome.code, "s3cret" in outcome.err) == (2, False)


def test_tokens_are_used_once_the_file_is_trusted(
    git_server: GitServer,
    project: Checkout,
    tmp_path: Path,
    tiny_model: Path,
    driftline: Driftline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("GIT_TOKEN", "s3cret-token")
    monkeypatch.delenv("DRIFTLINE_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    git_server.authorization = "Basic " + base64.b64encode(b"robot:s3cret-token").decode()
    uri = git_server.url("team/app.git").replace("://", "://robot:${GIT_TOKEN}@")
    head = f'workspace = "index"\nmodel = "{tiny_model}"\n[[sources]]\nuri = "{uri}"\n'
    (tmp_path / "driftline.toml").write_text(
        head + '[[sources]]\nuri = "git@host:team/lib.git"\nentity = "source:of"\n'
    )
    assert "denies access" in driftline("index", "--all", "--json").out
    assert not any("s3cret" in each.authorization or "Basic" in each.authorization for each in git_server.requested)
    assert driftline("trust").code == 0
    indexed = driftline("index", "--all", "--json").json
    assert [(source["entity"], source["new"]) for source in indexed["sources"]] == [
        ("org:default/project:default/source:app", 2)
    ]
    assert [failure["uri"] for failure in indexed["failed"]] == ["git@host:team/lib.git"]


def test_a_redirect_is_not_followed_so_that_no_token_is(
    git_server: GitServer, project: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TOKEN", "s3cret-token")
    git_server.redirects["/moved.git"] = f"http://localhost:{git_server.server_address[1]}/team/app.git?"
    remote = parse_remote(git_server.url("moved.git").replace("://", "://${GIT_TOKEN}@"))
    assert remote is not None
    with pytest.raises(StorageError, match="redirects"):
        resolve(remote)
    assert {each.path.partition("?")[0] for each in git_server.requested} == {"/moved.git/info/refs"}


def test_a_dumb_server_serves_whole_histories(git_server: GitServer, project: Checkout) -> None:
    git(project.remote, "update-server-info")
    git_server.dumb = ("/team",)
    assert {info.path for info in open_source(git_server.url("team/app.git")).list()} == {"src/a.py", "docs/b.md"}


def test_a_failing_server_has_its_own_error(project: Checkout, git_server: GitServer) -> None:
    closed = parse_remote("git+http://127.0.0.1:9/x.git")
    assert closed is not None
    with pytest.raises(StorageError, match="cannot reach"):
        resolve(closed)
    git_server.authorization = "Basic none"
    with pytest.raises(AccessDenied):
        open_source(git_server.url("team/app.git"))
    with pytest.raises(SourceNotFound):
        open_source(f"git+file://{project.folder}/none")
    git(project.folder, "worktree", "add", "-q", "linked")
    with pytest.raises(SourceNotFound, match="is in another folder"):
        open_source(f"git+file://{project.folder}/linked")


def test_hits_are_read_from_the_mirror_without_a_request(
    git_server: GitServer, project: Checkout, run: Driftline
) -> None:
    run(git_server.url("team/app.git"))
    git_server.requested.clear()
    found = known_source(git_server.url("team/app.git"))
    assert found.read("docs/b.md") == b"beta\n"
    assert git_server.requested == []
    other = known_source("git+http://127.0.0.1:9/never.git")
    with pytest.raises(StorageError, match="no mirror"):
        other.read("a")


def test_a_reader_that_was_closed_or_killed_is_replaced(
    project: Checkout, git_server: GitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_tree, "OPEN_READERS", 1)
    sources = [open_source(git_server.url("team/app.git")), open_source(f"git+file://{project.remote}")]
    for _ in range(2):
        for source in sources:
            assert source.read("docs/b.md") == b"beta\n"
    (reader,) = commit_tree._readers.values()
    for process in reader._processes.values():
        process.kill()
        process.wait()
    with pytest.raises(StorageError):
        sources[1].read("docs/b.md")
    assert sources[1].read("docs/b.md") == b"beta\n"


def test_a_reader_that_has_failed_or_is_out_of_step_returns_no_other_content(project: Checkout) -> None:
    commit_tree.close_readers()
    source = open_source(f"git+file://{project.remote}")
    assert source.read("docs/b.md") == b"beta\n"

    def process() -> Any:
        (reader,) = commit_tree._readers.values()
        (found,) = reader._processes.values()
        return found

    class Failing:
        def __init__(self, pipe: Any) -> None:
            self.close = pipe.close

        def readline(self) -> bytes:
            raise MemoryError

    process().stdout = Failing(process().stdout)
    with pytest.raises(MemoryError):
        source.read("src/a.py")
    assert source.read("docs/b.md") == b"beta\n"
    process().stdin.write(f"contents {git(project.remote, 'rev-parse', 'main:src/a.py')}\n".encode())
    with pytest.raises(StorageError, match="different request"):
        source.read("docs/b.md")
    assert source.read("docs/b.md") == b"beta\n"


def test_many_sources_keep_few_processes_of_git(
    project: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_tree, "MAX_MORE_READERS", 2)
    monkeypatch.setattr(commit_tree, "OPEN_READERS", 1)
    monkeypatch.setenv("DRIFTLINE_GIT_CACHE", str(tmp_path / "cache"))
    with commit_tree.more_readers(500), commit_tree.more_readers(500):
        for number in range(5):
            copy = shutil.copytree(project.remote, tmp_path / f"{number}.git")
            assert open_source(f"git+file://{copy}").read("docs/b.md") == b"beta\n"
        assert len(commit_tree._readers) == 3


def test_a_run_lists_everything_if_a_folder_of_the_last_commit_is_gone(project: Checkout, run: Driftline) -> None:
    uri = f"git+file://{project.remote}"
    run(uri)
    lost = git(project.remote, "rev-parse", "main:docs")
    project.write("docs/b.md", "changed\n")
    project.push()
    (project.remote / "objects" / lost[:2] / lost[2:]).unlink()
    assert counts(run(uri)) == (0, 1, 0, 1)


def _emptied(pattern: str) -> None:
    for path in mirror.cache_folder().glob(pattern):
        path.chmod(0o644)
        path.write_bytes(b"")


def _removed(pattern: str) -> None:
    for path in mirror.cache_folder().glob(pattern):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("damage", [_removed, _emptied])
@pytest.mark.parametrize(
    "part", ["objects/pack/*.pack", "objects/pack/*.idx", "objects/pack/*", "HEAD", "config", "refs/driftline/*"]
)
def test_a_mirror_with_lost_files_is_fetched_again(
    git_server: GitServer, project: Checkout, damage: Callable[[str], None], part: str
) -> None:
    source = open_source(git_server.url("team/app.git"))
    assert source.read("docs/b.md") == b"beta\n"
    commit_tree.close_readers()
    damage(f"*/repository/{part}")
    for _ in range(2):  # a run may have to notice it first
        with contextlib.suppress(StorageError):
            open_source(git_server.url("team/app.git")).read("docs/b.md")
    project.write("docs/b.md", "later\n")
    project.push()
    assert open_source(git_server.url("team/app.git")).read("docs/b.md") == b"later\n"


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.ENOTDIR])
@pytest.mark.parametrize("operation", ["mkdir", "open", "_write"])
def test_an_unusable_folder_for_mirrors_is_an_error_that_names_it(
    git_server: GitServer, project: Checkout, monkeypatch: pytest.MonkeyPatch, operation: str, reason: int
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise OSError(reason, os.strerror(reason), "some/file")

    monkeypatch.setattr(mirror if operation == "_write" else Path, operation, failing)
    kind = AccessDenied if reason == errno.EACCES else StorageError
    with pytest.raises(kind, match="folder for mirrors cannot be used") as raised:
        open_source(git_server.url("team/app.git")).read("docs/b.md")
    assert "DRIFTLINE_GIT_CACHE" in str(raised.value)


@pytest.mark.parametrize("version", [(1, 8), (2, 30)])
def test_a_git_that_would_ignore_settings_contacts_no_host(
    git_server: GitServer, project: Checkout, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int]
) -> None:
    git_server.requested.clear()
    monkeypatch.setattr(mirror, "git_version", lambda: version)
    with pytest.raises(UsageError, match=r"need git 2\.31"):
        open_source(git_server.url("team/app.git"))
    assert git_server.requested == []


@pytest.mark.parametrize("folder", ["objects", "refs", ""])
def test_a_mirror_without_its_folders_is_fetched_again(git_server: GitServer, project: Checkout, folder: str) -> None:
    assert open_source(git_server.url("team/app.git")).read("docs/b.md") == b"beta\n"
    commit_tree.close_readers()
    _removed(f"*/repository/{folder}")
    with contextlib.suppress(StorageError):
        open_source(git_server.url("team/app.git")).read("docs/b.md")
    assert open_source(git_server.url("team/app.git")).read("docs/b.md") == b"beta\n"


def test_an_older_git_reads_the_same(project: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("a/b/c.md", "deep\n")
    project.push()
    source = open_source(f"git+file://{project.remote}")

    def read() -> dict[str, tuple[int, bytes | DriftlineError]]:
        commit_tree.close_readers()
        infos = list(source.list())
        contents = source.read_many([info.path for info in infos], [info.etag for info in infos])
        return {info.path: (info.size_bytes, data) for info, data in zip(infos, contents, strict=True)}

    found = read()
    assert found["a/b/c.md"] == (5, b"deep\n")
    monkeypatch.setattr(commit_tree, "_takes_commands", lambda: False)
    assert read() == found


def test_a_run_reads_the_folders_and_files_that_changed(
    project: Checkout, run: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        project.write(f"d{number % 6}/e/{number}.md", f"file {number}\n" * 100)
    project.push()
    uri = f"git+file://{project.remote}"
    run(uri)
    project.write("d3/e/3.md", "changed\n" * 100)
    project.push()
    read: list[int] = []
    original = commit_tree._CatFile._read

    def counted(self: Any, requests: Any, kind: Any) -> Any:
        found = original(self, requests, kind)
        read.extend(len(each.data) for each in found if each is not None)
        return found

    monkeypatch.setattr(commit_tree._CatFile, "_read", counted)
    last = run(uri)
    assert (last["changed"], last["bytes_read"]) == (1, 800)
    assert 800 < sum(read) < 6_000


def test_a_worker_reads_blobs_by_id_from_its_own_mirror(
    git_server: GitServer, project: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source(git_server.url("team/app.git"))
    infos = list(source.list())
    project.write("src/a.py", "later\n")
    project.push()
    sent = pickle.dumps(source)
    monkeypatch.setenv("DRIFTLINE_GIT_CACHE", str(tmp_path / "of-the-worker"))
    received = pickle.loads(sent)
    contents = received.read_many([info.path for info in infos], [info.etag for info in infos])
    assert dict(zip([info.path for info in infos], contents, strict=True)) == {
        "docs/b.md": b"beta\n",
        "src/a.py": b"def alpha():\n    return 1\n",
    }
    assert received == source


def test_the_commit_of_a_bare_clone_is_read_from_its_files(project: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = parse_remote(f"git+file://{project.remote}")
    assert remote is not None
    loose, head = git(project.remote, "rev-parse", "HEAD"), project.remote / "HEAD"
    with monkeypatch.context() as patch:
        patch.setattr(mirror, "ask", pytest.fail)
        assert mirror.current_commit(remote) == loose
        git(project.remote, "pack-refs", "--all")
        assert mirror.current_commit(remote) == loose
        newer = project.push()
        assert mirror.current_commit(remote) == newer, "a loose ref is newer than a packed one"
    (project.remote / "refs/heads/main").unlink()
    (project.remote / "refs/heads/main").symlink_to("other")
    head.write_text("ref: refs/heads/../../secret\n")
    (project.remote / "secret").write_text(f"{newer}\n")
    assert mirror.current_commit(remote) == ""
    head.write_text(f"{loose}\n")
    assert mirror.current_commit(remote) == loose, "a detached head is left to git"
    head.write_text("ref: refs/heads/none\n")
    assert mirror.current_commit(remote) == ""

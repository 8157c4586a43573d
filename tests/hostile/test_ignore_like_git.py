"""A work tree is listed as by ``git ls-files``: random trees, patterns and repositories are compared with git."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from driftline.storage.documents import SkipReason
from driftline.storage.sources.source import open_source
from driftline.tasks.git.work_tree import TrackedFiles, find_work_tree
from driftline.tasks.scanning.path_patterns import Rules
from driftline.tasks.scanning.scan import plan_partitions
from driftline.tasks.scanning.walk import Subtree, Walk, above_and_self

TREES = 2_000
NAMES = (
    *("a", "b", "c", "ab", "abc", "foo", "data", "_a", "-", "!a", "#a", "]", "[a]", "a b", "a ", "a\t", "\ta", "\\a"),
    *("é", "日本", "a.py", "x.log", ".hidden", "A", "0", "^", "a*", "**", "{a,b}", "\x0b", "\x7f"),
)
PIECES = (
    *(
        "a",
        "b",
        "c",
        "ab",
        "foo",
        "data",
        "_",
        "é",
        "日",
        "*",
        "**",
        "***",
        "?",
        "/",
        "/**/",
        "**/",
        "/**",
        "\\",
        "\\/",
    ),
    *("[ab]", "[!a]", "[^a]", "[a-c]", "[!_]*", "[]]", "[!]]", "[]-a]", "[a-", "[", "]", "[[:alpha:]]", "[[:space:]]"),
    *("[[:punct:]]", "[[:odd:]]", "[[:alpha:", "[[:]", "[é]", "[a/]", "[\\]]", "[\\", "[--0]", "[b-a]", "[[.a.]]"),
    *(" ", "\t", "\\ ", "!", "\\!", "#", "\\#", ".", "*.py", "*.log", "-", "^", "{a,b}", "$", "+", "(", "|", "\x00"),
)
NO_CONFIGURATION = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}


def random_pattern(generator: random.Random) -> str:
    pattern = "".join(generator.choices(PIECES, k=generator.randint(1, 5)))
    if generator.random() < 0.2:
        pattern = "!" + pattern
    return pattern + generator.choice(("", "", "", "/", " ", "\r", "/ ", "//"))


def write_tree(root: Path, generator: random.Random) -> list[str]:
    """Make a tree of a few files and one or two ignore files; return its file paths."""
    root.mkdir()
    files = []
    for _ in range(generator.randint(4, 10)):
        names = generator.choices(NAMES, k=generator.randint(1, 4))
        path = root.joinpath(*names)
        if not path.exists() and not any(parent.is_file() for parent in path.parents):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            files.append("/".join(names))
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    for folder in {root, generator.choice([root, *folders])}:
        lines = [random_pattern(generator) for _ in range(generator.randint(1, 4))]
        text = generator.choice(("", "\ufeff")) + "\n".join(lines) + generator.choice(("", "\n"))
        (folder / ".gitignore").write_bytes(text.encode())
    return files


def ignored_by_git(root: Path, paths: list[str]) -> set[str]:
    command = ["git", "check-ignore", "--no-index", "-z", "--stdin"]
    requested = "\0".join(paths).encode()
    run = subprocess.run(
        command, cwd=root, input=requested, capture_output=True, check=False, env=os.environ | NO_CONFIGURATION
    )
    assert run.returncode in (0, 1), run.stderr
    return set(run.stdout.decode().split("\0")[:-1])


@pytest.mark.parametrize("seed", range(3))
def test_random_trees_are_scanned_as_git_sees_them(tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    files = [f"t{i}/{path}" for i in range(TREES // 3) for path in write_tree(tmp_path / f"t{i}", generator)]
    ignored = ignored_by_git(tmp_path, files)
    kept = set(Walk(str(tmp_path), Rules(skip_secrets=False)).run([Subtree()]).paths)
    wrong = sorted(path for path in files if (path in kept) == (path in ignored))
    tree = wrong[0].partition("/")[0] if wrong else ""
    rules = {str(path): path.read_bytes() for path in (tmp_path / tree).rglob(".gitignore")} if wrong else {}
    assert not wrong, f"{len(wrong)} files differ from git, such as {wrong[:5]!r}; the first is under {rules}"
    assert len(ignored) > len(files) / 20


class Repositories:
    """A random work tree: tracked but ignored files, ignore files of every kind, and nested repositories."""

    def __init__(self, root: Path, home: Path, generator: random.Random) -> None:
        self.root, self.generator, self.home = root, generator, home
        self.fill(root)
        for folder in generator.sample(SUBFOLDERS, k=generator.randint(0, 3)):
            kind = generator.choice(("repository", "submodule", "work tree", "ignored"))
            inner = root / folder
            if inner.exists():
                continue
            if kind == "work tree":
                git(root, "worktree", "add", "-q", "--force", "--detach", str(inner))
                continue
            self.fill(inner)
            if kind == "submodule":
                git(root, "add", "-f", folder)
            elif kind == "ignored":
                with (root / ".gitignore").open("a") as file:
                    file.write(f"\n/{folder}/\n")
            if generator.random() < 0.3:
                git(inner, "worktree", "add", "-q", "--force", "--detach", str(inner / "again"))
        self.write_patterns(root / ".gitignore", "a")

    def fill(self, repository: Path) -> None:
        repository.mkdir(parents=True)
        git(repository, "init", "-q")
        if self.generator.random() < 0.6:
            value = self.generator.choice((" = true", " = Yes", "=on", " = 1", "", " = false", " = 0", " = 10 # once"))
            with (repository / ".git/config").open("a") as file:
                file.write(f"[core]\n\tignoreCase{value}\n")
        for folder in ("", "a/", "a/b/", "c/"):
            for name in self.generator.sample(FILES, k=3):
                (repository / folder).mkdir(exist_ok=True)
                (repository / folder / name).write_text("the heron lands\n")
            if self.generator.random() < 0.5:
                self.write_patterns(repository / folder / ".gitignore", "w")
        if self.generator.random() < 0.5:
            exclude = repository / ".git/info/exclude"
            if self.generator.random() < 0.5:
                exclude.unlink()
                exclude.symlink_to("../../excluded")
            self.write_patterns(exclude, "w")
        for path in sorted(repository.rglob("*")):
            if path.is_file() and ".git" not in path.relative_to(repository).parts and self.generator.random() < 0.4:
                git(repository, "add", "-f", str(path.relative_to(repository)))
        git(repository, "commit", "-qm", "first", "--allow-empty")

    def write_patterns(self, path: Path, mode: str) -> None:
        lines = self.generator.choices(PATTERNS, k=self.generator.randint(1, 3))
        with path.open(mode) as file:
            file.write("\n" + "\n".join(lines) + "\n")

    def listed_by_git(self, folder: Path, above: tuple[str, ...] = ()) -> set[str]:
        """Return git's listing of the repository in ``folder`` and of each nested repository, except for work trees of
        a repository above.
        """
        common = os.path.realpath(folder / git(folder, "rev-parse", "--git-common-dir"))
        if common in above:
            return set()
        found = set()
        for name in git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")[:-1]:
            path = folder / name
            if path.is_dir():
                if (path / ".git").exists():
                    found |= self.listed_by_git(path, (*above, common))
            elif path.is_file():
                found.add(str(path.relative_to(self.root)))
        return found


SUBFOLDERS = ("inner", "a/inner", "a/b/inner", "c/inner", "b/x/inner")
FILES = ("x.log", "keep.log", "lib.py", "a.txt", "CLAUDE.md", "b.tmp", "inner.py", "é.log")
PATTERNS = (
    *("*.log", "!keep.log", "a/", "/a", "b", "c/", "/c/*", "*.py", "CLAUDE.md", "a/b/*", "inner/", "inner", "*", "!*/"),
    *("!a/", "**/b/*.tmp", "lib.*", "*.md", "é*", "*.LOG", "!Keep.Log", "A/", "[K-L]*", "INNER"),
)


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "advice.addEmbeddedRepo=false")
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.removesuffix("\n")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    for name in ("XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return folder


def listed(root: Path, *subtrees: Subtree) -> set[str]:
    walk = Walk(str(root), Rules(skip_secrets=False), find_work_tree(str(root)))
    return set(walk.run(subtrees or [Subtree()]).paths)


@pytest.mark.parametrize("where", ["nowhere", "default", "setting", "repository"])
@pytest.mark.parametrize("seed", range(6))
def test_random_repositories_are_listed_as_git_lists_them(tmp_path: Path, home: Path, where: str, seed: int) -> None:
    generator = random.Random(seed)
    made = Repositories(tmp_path / "root", home, generator)
    ignored = generator.choice(("*.md\n", "x.log\n!*.py\n", "b/\n", "inner\n"))
    if where == "default":
        (home / ".config/git").mkdir(parents=True)
        (home / ".config/git/ignore").write_text(ignored)
    elif where != "nowhere":
        location = home / "ignored" if where == "setting" else made.root / "a/ignored"
        location.write_text(ignored)
        scope = (
            ["--global", "core.excludesFile", "~/ignored"] if where == "setting" else ["core.excludesFile", "a/ignored"]
        )
        git(made.root, "config", *scope)
    expected = made.listed_by_git(made.root)
    if where == "repository":  # set in the outer repository only
        inner = {path for path in expected if "inner/" in path}
        assert {path for path in listed(made.root) if "inner/" not in path} == expected - inner
        return
    assert listed(made.root) == expected
    for folder in ("a", "c"):
        below = {path.removeprefix(f"{folder}/") for path in expected if path.startswith(f"{folder}/")}
        if below and find_work_tree(str(made.root / folder)) is not None:
            assert listed(made.root / folder) == below
    parts = plan_partitions(open_source(made.root), 3, Rules(skip_secrets=False))
    assert set[str]().union(*(listed(made.root, *part) for part in parts)) == expected
    requested = sorted(expected)[:5]
    walk = Walk(str(made.root), Rules(skip_secrets=False), find_work_tree(str(made.root)), above_and_self(requested))
    assert sorted(walk.run([Subtree()]).paths) == requested


@pytest.mark.parametrize("folder", ["", "sub/"])
def test_a_submodule_without_its_repository_is_listed_as_by_git(tmp_path: Path, home: Path, folder: str) -> None:
    made = Repositories(tmp_path / "root", home, random.Random(1))
    for name in ("sub", "a/b/inner", "opened"):
        inner = made.root / name
        shutil.rmtree(inner, ignore_errors=True)
        made.fill(inner)
        git(made.root, "add", "-f", name)
    for name in ("sub", "a/b/inner"):
        shutil.rmtree(made.root / name / ".git")
    expected = made.listed_by_git(made.root)
    assert any(path.startswith("opened/") for path in expected)
    assert not any(path.startswith(("sub/", "a/b/inner/")) for path in expected)
    assert listed(made.root, *([Subtree("", (folder,)), Subtree(folder)] if folder == "sub/" else [])) == expected


def test_our_ignore_file_can_exclude_tracked_files(tmp_path: Path, home: Path) -> None:
    git(tmp_path, "init", "-q", "root")
    root = tmp_path / "root"
    for name in ("a.log", "b.log", "c.txt"):
        (root / name).write_text("the heron lands\n")
    (root / ".gitignore").write_text("*.log\n")
    git(root, "add", "-f", "a.log", "b.log", "c.txt")
    (root / ".driftlineignore").write_text("b.log\nc.txt\n")
    assert listed(root) == {".gitignore", ".driftlineignore", "a.log"}


def test_a_work_tree_inside_another_is_reported_as_such(tmp_path: Path, home: Path) -> None:
    git(tmp_path, "init", "-q", "root")
    root = tmp_path / "root"
    (root / "a.txt").write_text("the heron lands\n")
    git(root, "add", "a.txt")
    git(root, "commit", "-qm", "first")
    git(root, "worktree", "add", "-q", ".trees/feature")
    listing = Walk(str(root), Rules(), find_work_tree(str(root))).run([Subtree()])
    assert listing.paths == ["a.txt"]
    assert listing.skipped_paths == [".trees/feature/"]
    assert listing.skipped_reasons == ["another work tree of the same repository"]
    projects = Walk(str(tmp_path), Rules()).run([Subtree()])
    assert projects.paths == ["root/a.txt"]


@pytest.mark.parametrize("name", [".bare", "mirrors/app.git"])
def test_git_directories_are_skipped_where_git_lists_nothing(tmp_path: Path, home: Path, name: str) -> None:
    root = tmp_path / "root"
    git(tmp_path, "init", "-q", "--bare", str(root / name))
    (root / "work").mkdir()
    (root / "work/notes.txt").touch()
    listing = Walk(str(root), Rules()).run([Subtree()])
    assert (listing.paths, listing.skipped_paths) == (["work/notes.txt"], [f"{name}/"])
    assert listing.skipped_reasons == [SkipReason.GIT_DIRECTORY]
    git(root, "init", "-q")  # now git lists them
    assert f"{name}/HEAD" in Walk(str(root), Rules(), find_work_tree(str(root))).run([Subtree()]).paths


def test_a_repository_cannot_name_an_ignore_file_outside_its_work_tree(tmp_path: Path, home: Path) -> None:
    git(tmp_path, "init", "-q", "root")
    (tmp_path / "password").write_text("a.txt\n")
    (tmp_path / "root/a.txt").write_text("the heron lands\n")
    for location in (str(tmp_path / "password"), "../password", "~/../password"):
        git(tmp_path / "root", "config", "core.excludesFile", location)
        assert listed(tmp_path / "root") == {"a.txt"}
    (tmp_path / "root/.git/info/exclude").unlink()
    (tmp_path / "root/.git/info/exclude").symlink_to(tmp_path / "password")
    assert listed(tmp_path / "root") == {"a.txt"}


def test_documents_are_kept_if_git_fails(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q", "root")
    (tmp_path / "root/a.log").write_text("the heron lands\n")
    (tmp_path / "root/.gitignore").write_text("*.log\n")
    git(tmp_path / "root", "add", "-f", "a.log")
    monkeypatch.setattr(TrackedFiles, "output", lambda self: None)
    listing = Walk(str(tmp_path / "root"), Rules(), find_work_tree(str(tmp_path / "root"))).run([Subtree()])
    assert (listing.paths, listing.unsure) == ([".gitignore"], ["a.log"])

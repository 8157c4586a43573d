"""Run git on a repository that is not trusted: nothing that the repository names is executed, and nothing is fetched.

A repository's own configuration can name commands: filters, hooks, monitors, helpers of diffs, credentials and
transports. So commands that look at objects or files run with a git directory of their own, which is made for one
command: it borrows objects, index and ignore rules from the repository, and holds settings that name no command. Only
paths, names of commits and settings are asked of the repository itself, by commands that execute nothing.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 600
_SETTINGS = (
    "autocrlf|checkstat|eol|filemode|ignorecase|longpaths|precomposeunicode|protecthfs|protectntfs|safecrlf"
    "|sparsecheckout|sparsecheckoutcone|symlinks|trustctime"
)
"""Settings below ``core`` that decide how files and objects compare, none of which is a command or a path."""
_SETTING = re.compile(rf"core\.({_SETTINGS})\n([a-z]+)", re.IGNORECASE)
_ASKED = (
    *("--show-toplevel", "--show-prefix", "--absolute-git-dir", "--show-object-format"),
    *("--git-path", "index", "--git-path", "info/exclude", "--git-path", "objects"),
    *("--git-path", "shallow", "--git-path", "info/sparse-checkout"),
)
_UNBORN = "ref: refs/heads/unborn"


@dataclass(frozen=True, slots=True)
class Repository:
    """A git work tree as git itself locates it; all paths are absolute, and ``prefix`` leads from ``top`` to a folder.

    ``settings`` are pairs of a key below ``core`` and a value.
    """

    top: str
    prefix: str
    git_dir: str
    object_format: str
    index: str
    exclude: str
    objects: str
    shallow: str
    sparse_checkout: str
    settings: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Running:
    """A git command at work, and the git directory that was made for it."""

    process: subprocess.Popen[bytes]
    git_dir: str


def find_repository(folder: str) -> Repository | None:
    """The repository whose work tree holds ``folder``; None without git, or if git refuses to read it."""
    if not _has_git_above(folder):
        return None
    answer = ask(folder, "rev-parse", *_ASKED)
    lines = answer.decode("utf-8", "surrogateescape").split("\n") if answer is not None else []
    if len(lines) != 10:
        return None
    top, prefix, git_dir, object_format, *paths = lines[:-1]
    if not _is_same(os.path.join(top, prefix), folder):
        return None  # the repository's configuration moves its work tree elsewhere
    settings = (ask(folder, "config", "-z", "--get-regexp", rf"^core\.({_SETTINGS})$") or b"").decode(errors="replace")
    matches = map(_SETTING.fullmatch, settings.split("\0"))
    pairs = tuple((match[1], match[2]) for match in matches if match)
    index, exclude, objects, shallow, sparse_checkout = (os.path.join(folder, path) for path in paths)
    return Repository(top, prefix, git_dir, object_format, index, exclude, objects, shallow, sparse_checkout, pairs)


def ask(folder: str, *arguments: str) -> bytes | None:
    """What git prints of the paths, names and settings of the repository around ``folder``; None if it fails.

    Only for ``rev-parse``, ``symbolic-ref`` and ``config``, which execute nothing that a repository names.
    """
    return _output(_start(folder, arguments, {}))


def run(repository: Repository, folder: str, *arguments: str, head: str = "") -> bytes | None:
    """What git prints when it runs in ``folder`` with commit ``head`` checked out; None if it fails or times out."""
    return finish(start(repository, folder, *arguments, head=head))


def start(repository: Repository, folder: str, *arguments: str, head: str = "") -> Running | None:
    """As ``run``, for ``finish`` to wait for; None if git cannot be run."""
    git_dir = tempfile.mkdtemp(prefix="driftline-git-")
    try:
        _fill(git_dir, repository, head)
        environment = {
            "GIT_DIR": git_dir,
            "GIT_WORK_TREE": repository.top,
            "GIT_INDEX_FILE": repository.index,
            "GIT_OBJECT_DIRECTORY": repository.objects,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
        }
        process = _start(folder, arguments, environment)
    except OSError as error:
        log.debug("git cannot be isolated: %s", error)
        process = None
    if process is None:
        shutil.rmtree(git_dir, ignore_errors=True)
        return None
    return Running(process, git_dir)


def finish(running: Running | None) -> bytes | None:
    """The output of a command that ``start`` gave; None if it failed, or took longer than ten minutes."""
    if running is None:
        return None
    try:
        return _output(running.process)
    finally:
        shutil.rmtree(running.git_dir, ignore_errors=True)


def _fill(git_dir: str, repository: Repository, head: str) -> None:
    """Make ``git_dir`` a git directory that borrows from ``repository`` and names no command."""
    os.mkdir(os.path.join(git_dir, "refs"))
    os.mkdir(os.path.join(git_dir, "info"))
    with open(os.path.join(git_dir, "HEAD"), "w", encoding="ascii") as file:
        file.write(f"{head or _UNBORN}\n")
    sha1 = repository.object_format == "sha1"
    lines = ["[core]", f"repositoryformatversion = {0 if sha1 else 1}", "bare = false", "fsmonitor = false"]
    lines += [f"{key} = {value}" for key, value in repository.settings]
    if not sha1:
        lines += ["[extensions]", f"objectformat = {repository.object_format}"]
    with open(os.path.join(git_dir, "config"), "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")
    os.symlink(repository.exclude, os.path.join(git_dir, "info", "exclude"))
    os.symlink(repository.sparse_checkout, os.path.join(git_dir, "info", "sparse-checkout"))
    os.symlink(repository.shallow, os.path.join(git_dir, "shallow"))
    for name in os.listdir(repository.git_dir):
        if name.startswith("sharedindex."):  # the larger part of an index that git keeps in two
            os.symlink(os.path.join(repository.git_dir, name), os.path.join(git_dir, name))


def _start(folder: str, arguments: tuple[str, ...], variables: dict[str, str]) -> subprocess.Popen[bytes] | None:
    # Inside a hook git sets GIT_DIR and the like, which would point to another repository.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment |= {
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    command = ["git", "--no-pager", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false", *arguments]
    try:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        log.debug("git cannot be run: %s", error)
        return None


def _output(process: subprocess.Popen[bytes] | None) -> bytes | None:
    if process is None:
        return None
    try:
        output, _ = process.communicate(timeout=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        log.debug("%s took too long", process.args)
        return None
    if process.returncode != 0:
        log.debug("%s failed with %d", process.args, process.returncode)
        return None
    return output


def _has_git_above(root: str) -> bool:
    folder = root
    while True:
        if os.path.lexists(os.path.join(folder, ".git")):
            return True
        parent = os.path.dirname(folder)
        if parent == folder:
            return False
        folder = parent


def _is_same(first: str, second: str) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False

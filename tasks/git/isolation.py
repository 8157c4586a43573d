"""Run git on an untrusted repository: it executes no command that the repository names, and fetches nothing.

The configuration of a repository can name commands: filters, hooks, monitors, helpers for diffs, credentials and
transports. So commands that read objects or files run with a temporary git directory: it borrows objects, index and
ignore rules from the repository, and its settings name no command. Only commands that execute nothing read the
repository itself, for paths, names of commits and settings.
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

_TIMEOUT_SECONDS = 120
"""A pipe in place of a file that git reads would stop it for good; callers go on without git."""
_SETTINGS = (
    "autocrlf|eol|filemode|ignorecase|longpaths|precomposeunicode|protecthfs|protectntfs|safecrlf"
    "|sparsecheckout|sparsecheckoutcone|symlinks"
)
"""Settings below ``core`` that decide how files compare with objects. None of them is a command or a path.

Those that make git look at less than ctime and inode are not among them: a file could change unseen.
"""
_SETTING = re.compile(rf"core\.({_SETTINGS})\n([a-z]+)", re.IGNORECASE)
_ASKED = (
    *("--show-toplevel", "--show-prefix", "--absolute-git-dir", "--show-object-format"),
    *("--git-path", "index", "--git-path", "info/exclude", "--git-path", "objects"),
    *("--git-path", "shallow", "--git-path", "info/sparse-checkout"),
)
_READ_BY_GIT = ("HEAD", "commondir", "config", "config.worktree", "gitdir", "index", "packed-refs")
_UNBORN = "ref: refs/heads/unborn"


@dataclass(frozen=True, slots=True)
class Repository:
    """A git work tree as git locates it. Paths are absolute; ``prefix`` leads from ``top`` to the folder.

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
    """A running git command and its temporary git directory."""

    process: subprocess.Popen[bytes]
    git_dir: str


def find_repository(folder: str) -> Repository | None:
    """The repository whose work tree contains ``folder``; None without git, or if git refuses to read it."""
    git_entry = _git_above(folder)
    if git_entry is None or not _is_readable(git_entry):
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
    """Read paths, names or settings of the repository around ``folder``; None if git fails.

    Use it only for ``rev-parse``, ``symbolic-ref`` and ``config``, which execute nothing that a repository names.
    """
    return _output(_start(folder, arguments, {}))


def run(repository: Repository, folder: str, *arguments: str, head: str = "") -> bytes | None:
    """Run git in ``folder`` with commit ``head`` checked out; returns its output, None if it fails or times out."""
    return finish(start(repository, folder, *arguments, head=head))


def start(repository: Repository, folder: str, *arguments: str, head: str = "") -> Running | None:
    """As ``run``, without waiting: pass the result to ``finish``. None if git cannot run."""
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
        log.debug("cannot isolate git: %s", error)
        process = None
    if process is None:
        shutil.rmtree(git_dir, ignore_errors=True)
        return None
    return Running(process, git_dir)


def finish(running: Running | None) -> bytes | None:
    """Wait for a command of ``start``; returns its output, None if it failed or took too long."""
    if running is None:
        return None
    try:
        return _output(running.process)
    finally:
        shutil.rmtree(running.git_dir, ignore_errors=True)


def _fill(git_dir: str, repository: Repository, head: str) -> None:
    """Fill a git directory that borrows from ``repository`` and names no command."""
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
    borrowed = {
        "info/exclude": repository.exclude,
        "info/sparse-checkout": repository.sparse_checkout,
        "shallow": repository.shallow,
    }
    for name in os.listdir(repository.git_dir):
        if name.startswith("sharedindex."):  # the larger part of a split index
            borrowed[name] = os.path.join(repository.git_dir, name)
    for name, path in borrowed.items():
        if os.path.isfile(path):
            os.symlink(path, os.path.join(git_dir, name))


def _start(folder: str, arguments: tuple[str, ...], variables: dict[str, str]) -> subprocess.Popen[bytes] | None:
    # Hooks of git set GIT_DIR and the like, which point to another repository.
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
        log.debug("cannot run git: %s", error)
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


def _git_above(root: str) -> str | None:
    """The path of the nearest entry named ``.git``."""
    folder = root
    while True:
        entry = os.path.join(folder, ".git")
        if os.path.lexists(entry):
            return entry
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def _is_readable(git_entry: str) -> bool:
    """Whether git can read its files without waiting: none of them is a pipe, a socket or a device."""
    if not os.path.isdir(git_entry):
        return os.path.isfile(git_entry)
    paths = (os.path.join(git_entry, name) for name in _READ_BY_GIT)
    return all(os.path.isfile(path) or not os.path.lexists(path) for path in paths)


def _is_same(first: str, second: str) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False

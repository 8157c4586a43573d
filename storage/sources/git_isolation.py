"""Run git on an untrusted repository: never execute a command it configures, never fetch anything.

A repository's configuration can specify commands: filters, hooks, monitors, and helpers for diffs, credentials and
transports. Commands that read objects or files therefore use a temporary git directory that borrows objects, index and
ignore rules but not the settings. Only commands that execute nothing read the repository itself, for paths, commit
names and settings. Only mirrors use the network, and ``ask_remote``, to list a remote's branches.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)

COMMIT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_TIMEOUT_SECONDS = 120
_CHECK_SECONDS = 1.0
"""How often to check whether a git process has exited."""
_ASLEEP_SECONDS = 3.0
"""A pipe in place of a file that git reads would block it forever.

If git sleeps this long, callers continue without it.
"""
_STEERING = (".gitignore", ".gitattributes")
_STEERED = frozenset({"check-attr", "check-ignore", "diff-files", "status"})
"""The git commands that read a working tree's ``_STEERING`` files."""
_KEPT_VARIABLES = frozenset({"GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_SYSTEM"})
"""The location of the user's own configuration. Git hooks set other variables, which point to another repository."""
_SETTINGS = (
    "autocrlf|eol|filemode|ignorecase|longpaths|precomposeunicode|protecthfs|protectntfs|safecrlf"
    "|sparsecheckout|sparsecheckoutcone|symlinks"
)
"""Settings under ``core`` that determine how files compare with objects. None of them is a command or a path.

Settings that make git ignore ctime or inode are excluded, because file changes could go unnoticed.
"""
_SETTING = re.compile(rf"core\.({_SETTINGS})(?:\n([a-z0-9]*))?", re.IGNORECASE)
_TRUE = "true|yes|on|[0-9]*[1-9][0-9]*"
"""What git reads as true, like a key without a value."""
_EXCLUDES = "core.excludesfile\n"
_TRUSTED_SCOPES = ("system", "global")
_REV_PARSE_OPTIONS = (
    *("--show-toplevel", "--show-prefix", "--absolute-git-dir", "--show-object-format"),
    *("--git-path", "index", "--git-path", "info/exclude", "--git-path", "objects"),
    *("--git-path", "shallow", "--git-path", "info/sparse-checkout", "--git-common-dir"),
)
_READ_BY_GIT = ("HEAD", "commondir", "config", "config.worktree", "gitdir", "index", "packed-refs")
REACHING = ("GIT_ASKPASS", "GIT_CONFIG_GLOBAL", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO")
"""The user's variables that affect how git connects to a remote."""
_MAX_CONFIG_CHARACTERS = 1024 * 1024
_UNBORN = "ref: refs/heads/unborn"
_SCP_LIKE = re.compile(r"[^/]+:")
"""``host:path``, distinguished from a folder's path the way git does it."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A git working tree as located by git. Paths are absolute; ``prefix`` is the path from ``top`` to the folder.

    ``settings`` contains pairs of a key under ``core`` and a value. All working trees of the repository share
    ``common_dir``; ``excludes`` is the user's own ignore file, which may not exist.
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
    common_dir: str
    excludes: str

    @property
    def ignores_case(self) -> bool:
        """Whether ignore rules are case-insensitive (``core.ignorecase``), which git enables on macOS and Windows."""
        values = [value for name, value in self.settings if name.lower() == "ignorecase"]
        return bool(values) and re.fullmatch(_TRUE, values[-1], re.IGNORECASE) is not None


@dataclass(frozen=True, slots=True)
class Running:
    """A running git command and its temporary git directory."""

    process: subprocess.Popen[bytes]
    git_dir: str


def find_repository(folder: str) -> Repository | None:
    """Return the repository whose working tree contains ``folder``, or None if git is missing or refuses to read it."""
    git_entry = _git_above(folder)
    if git_entry is None or not _is_readable(git_entry):
        return None
    answer = ask(folder, "rev-parse", *_REV_PARSE_OPTIONS)
    lines = answer.decode("utf-8", "surrogateescape").split("\n") if answer is not None else []
    if len(lines) != 11:
        return None
    top, prefix, git_dir, object_format, *paths = lines[:-1]
    if not _is_same(os.path.join(top, prefix), folder):
        return None  # the repository's configuration moves its working tree elsewhere
    setting_names = rf"^core\.({_SETTINGS}|excludesfile)$"
    settings = ask(folder, "config", "-z", "--show-scope", "--get-regexp", setting_names) or b""
    scoped = settings.decode("utf-8", "surrogateescape").split("\0")
    found = list(zip(scoped[::2], scoped[1::2], strict=False))
    matches = (_SETTING.fullmatch(value) for _, value in found)
    pairs = tuple((match[1], "true" if match[2] is None else match[2]) for match in matches if match)
    index, exclude, objects, shallow, sparse_checkout, common = (os.path.join(folder, path) for path in paths)
    return Repository(
        top, prefix, git_dir, object_format, index, exclude, objects, shallow, sparse_checkout, pairs,
        os.path.realpath(common), _excludes_file(top, found),
    )  # fmt: skip


def nested_repository(folder: str, git_dir: str) -> Repository | None:
    """Return the repository with its top at ``folder``, for ``ls-files`` and ignore rules only; executes nothing.

    Returns None if git might block on its files.
    """
    if not _is_readable(git_dir):
        return None
    common = common_dir_of(git_dir)
    config = os.path.join(common, "config")
    try:
        with open(config if os.path.isfile(config) else os.devnull, encoding="utf-8", errors="replace") as file:
            text = file.read(_MAX_CONFIG_CHARACTERS)
    except OSError:
        return None
    object_format = "sha256" if re.search(r"(?im)^[ \t]*objectformat[ \t]*=[ \t]*sha256", text) else "sha1"
    ignores_case = re.search(rf"(?im)^[ \t]*ignorecase[ \t]*(?:=[ \t]*\"?(?:{_TRUE})\b.*)?$", text)
    settings = (("ignorecase", "true"),) if ignores_case else ()
    index, exclude = os.path.join(git_dir, "index"), os.path.join(common, "info/exclude")
    objects, shallow = os.path.join(common, "objects"), os.path.join(common, "shallow")
    sparse_checkout = os.path.join(git_dir, "info/sparse-checkout")
    return Repository(
        folder, "", git_dir, object_format, index, exclude, objects, shallow, sparse_checkout, settings, common, ""
    )


def common_dir_of(git_dir: str) -> str:
    """Return the git directory that a linked worktree shares with others; for any other working tree, ``git_dir``
    itself.
    """
    above, _, _ = git_dir.rstrip("/").rpartition("/")
    return os.path.realpath(os.path.dirname(above) if os.path.basename(above) == "worktrees" else git_dir)


def _excludes_file(top: str, settings: list[tuple[str, str]]) -> str:
    """Return the file configured by ``core.excludesFile``, or its default.

    A repository may only configure a file in its own working tree.
    """
    scope, value = "global", None
    for each, setting in settings:
        if setting.lower().startswith(_EXCLUDES):
            scope, value = each, setting[len(_EXCLUDES) :]
    if value is None:
        above = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        return os.path.realpath(os.path.join(top, above, "git/ignore"))
    if not value:
        return ""
    path = os.path.realpath(os.path.join(top, os.path.expanduser(value)))
    if scope not in _TRUSTED_SCOPES and not path.startswith(os.path.realpath(top) + os.sep):
        _warn_of_foreign(path)
        return ""
    return path


def excludes_file(folder: str) -> str:
    """Return the user's global ignore file, as seen from a folder outside any repository; it may not exist."""
    settings = ask(folder, "config", "-z", "--show-scope", "--get-regexp", r"^core\.excludesfile$") or b""
    scoped = settings.decode("utf-8", "surrogateescape").split("\0")
    return _excludes_file(folder, list(zip(scoped[::2], scoped[1::2], strict=False)))


@cache
def _warn_of_foreign(path: str) -> None:
    log.warning("ignoring a repository's core.excludesFile %s, which is outside its working tree", path)


def ask(folder: str, *arguments: str) -> bytes | None:
    """Query paths, refs or settings of the repository around ``folder``, or return None if git fails.

    Only for ``rev-parse``, ``symbolic-ref`` and ``config``, which never execute anything configured by the repository.
    """
    return _output(_start(folder, arguments, {}))


@cache
def git_version() -> tuple[int, int]:
    """Return the first two numbers of git's version, or (0, 0) if git does not run."""
    version = re.match(rb"git version (\d+)\.(\d+)", ask("/", "version") or b"")
    return (int(version[1]), int(version[2])) if version is not None else (0, 0)


def ask_remote(folder: str, *arguments: str, refs: tuple[str, ...] = ()) -> bytes | None:
    """Query the ``origin`` remote of the repository around ``folder``, by default for all its refs.

    Returns None if there is no remote, or it does not respond.

    The repository provides only the remote's address, and HTTP headers for it, which hold a CI build's token. The
    user's own configuration decides how to connect and with which credentials; nothing prompts for a password.
    """
    where = ask(folder, "config", "--get", "remote.origin.url")
    url = where.decode("utf-8", "surrogateescape").strip() if where else ""
    if not url:
        return None
    is_path = "://" not in url and not _SCP_LIKE.match(url)
    if is_path:
        url = os.path.join(folder, url)  # for a folder; git would resolve it relative to its working directory
    headers = (ask(folder, "config", "-z", "--get-regexp", r"^http\..*extraheader$") or b"").split(b"\0")[:-1]
    pairs = [entry.decode("utf-8", "surrogateescape").partition("\n") for entry in headers]
    variables = {"GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh", "GIT_CONFIG_COUNT": str(len(pairs))}
    for number, (key, _, value) in enumerate(pairs):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    variables |= {name: os.environ[name] for name in REACHING if name in os.environ}
    is_local = is_path or url.startswith("file:")
    with tempfile.TemporaryDirectory(prefix="driftline-git-") as elsewhere:
        variables["GIT_CEILING_DIRECTORIES"] = os.path.dirname(elsewhere)
        return _output(_start(elsewhere, (*arguments, "--", url, *refs), variables), waits_for_host=not is_local)


def run(
    repository: Repository, folder: str, *arguments: str, head: str = "", stdin: bytes | None = None
) -> bytes | None:
    """Run git in ``folder`` with commit ``head`` checked out and ``stdin`` as its input, and return its output, or
    return None if it fails or times out.
    """
    return finish(start(repository, folder, *arguments, head=head, stdin=stdin))


def start(
    repository: Repository, folder: str, *arguments: str, head: str = "", stdin: bytes | None = None
) -> Running | None:
    """Like ``run``, but without waiting; pass the result to ``finish``.

    Returns None if git cannot run, or might block on a file.
    """
    if _STEERED.intersection(arguments) and not _git_config_is_readable(repository, folder):
        return None
    excludes = repository.excludes if os.path.isfile(repository.excludes) else os.devnull
    arguments = ("-c", f"core.excludesFile={excludes}", *arguments)
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
        # A file, because ``communicate`` does not continue to write to a pipe after a timeout.
        with open(os.path.join(git_dir, "input"), "w+b") as file:
            file.write(stdin or b"")
            file.seek(0)
            process = _start(folder, arguments, environment, stdin=file.fileno())
    except OSError as error:
        log.debug("cannot isolate git: %s", error)
        process = None
    if process is None:
        shutil.rmtree(git_dir, ignore_errors=True)
        return None
    return Running(process, git_dir)


def finish(running: Running | None) -> bytes | None:
    """Wait for a command started by ``start``, and return its output, or return None if it failed or took too long."""
    if running is None:
        return None
    try:
        return _output(running.process)
    finally:
        shutil.rmtree(running.git_dir, ignore_errors=True)


def _fill(git_dir: str, repository: Repository, head: str) -> None:
    """Fill a git directory that borrows the objects of ``repository`` and configures no commands."""
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
        if name.startswith("sharedindex."):  # most of a split index is in a second file
            borrowed[name] = os.path.join(repository.git_dir, name)
    for name, path in borrowed.items():
        if os.path.isfile(path):
            os.symlink(path, os.path.join(git_dir, name))


def _start(
    folder: str, arguments: tuple[str, ...], variables: dict[str, str], *, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes] | None:
    try:
        return spawn(folder, arguments, variables, stdin=stdin)
    except OSError as error:
        log.debug("cannot run git: %s", error)
        return None


def spawn(
    folder: str,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    *,
    stdin: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
    detached: bool = False,
) -> subprocess.Popen[bytes]:
    """Start git without prompts, replacement objects, lazy fetches and network, unless ``variables`` override that.

    A ``detached`` command has no terminal, so nothing that it starts can prompt there. Raises OSError.
    """
    environment = {k: value for k, value in os.environ.items() if not k.startswith("GIT_") or k in _KEPT_VARIABLES}
    environment |= {
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    command = ["git", "--no-pager", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false", *arguments]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment | dict(variables),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=detached,
    )


def _output(process: subprocess.Popen[bytes] | None, *, waits_for_host: bool = False) -> bytes | None:
    """Return git's output, or None if it fails, takes too long, or sleeps without waiting for a host."""
    if process is None:
        return None
    started = time.monotonic()
    switches: int | None = None
    since = started
    while True:
        try:
            output, _ = process.communicate(timeout=_CHECK_SECONDS)
            break
        except subprocess.TimeoutExpired:
            now, last = time.monotonic(), switches
            switches = _context_switches(process.pid)
            since = since if switches is not None and switches == last else now
            is_asleep = now - since > _ASLEEP_SECONDS and not waits_for_host
            if is_asleep or now - started > _TIMEOUT_SECONDS:
                process.kill()
                process.communicate()
                why = "blocked on a file" if is_asleep else f"was not done after {_TIMEOUT_SECONDS} s"
                log.warning("git %s and was stopped: %s", why, process.args)
                return None
    if process.returncode != 0:
        log.debug("%s failed with %d", process.args, process.returncode)
        return None
    return output


def _context_switches(pid: int) -> int | None:
    """Return how often the threads of a process and its descendants went to sleep.

    Returns None if one of them is awake or the count is unknown.
    """
    switches = 0
    try:
        for each in _with_descendants(pid):
            for status in Path(f"/proc/{each}/task").glob("*/status"):
                fields = dict(line.partition(":")[::2] for line in status.read_text().splitlines())
                state = fields["State"].strip()[:1]
                if state not in "SZ":
                    return None
                switches += int(fields["voluntary_ctxt_switches"])
    except (OSError, KeyError, ValueError):
        return None
    return switches or None


def _with_descendants(pid: int) -> list[int]:
    """Return ``pid`` and its descendants: git waits for processes that it starts, such as one per submodule."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):  # it has exited
                stat = Path(f"/proc/{entry}/stat").read_text(errors="replace")
                children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def parse_commit_time(seconds: bytes) -> datetime:
    """Return the time of a commit in UTC; the epoch if it is not one, since a commit may contain any number."""
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(int(seconds), UTC)
    return datetime.fromtimestamp(0, UTC)


def _git_config_is_readable(repository: Repository, folder: str) -> bool:
    """Return whether git can read its configuration files from the top of the working tree to ``folder``: none is a
    pipe or other special file.
    """
    parts = os.path.relpath(os.path.realpath(folder), os.path.realpath(repository.top)).split(os.sep)
    if parts[0] == os.pardir:
        return False
    folders = [repository.top, *(os.path.join(repository.top, *parts[:depth]) for depth in range(1, len(parts) + 1))]
    paths = (os.path.join(each, name) for each in folders for name in _STEERING)
    return all(os.path.isfile(path) or not os.path.lexists(path) for path in paths)


def _git_above(root: str) -> str | None:
    """Return the path of the nearest entry named ``.git``."""
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
    """Return whether git can read its files without blocking: none of them is a pipe, a socket or a device."""
    if not os.path.isdir(git_entry):
        return os.path.isfile(git_entry)
    paths = (os.path.join(git_entry, name) for name in _READ_BY_GIT)
    return all(os.path.isfile(path) or not os.path.lexists(path) for path in paths)


def _is_same(first: str, second: str) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False

"""Read git commits and branches, and the paths that differ between two commits or between a commit and the disk.

Git compares trees, not histories, so force-pushes, branches and merges need no special cases. If git cannot list all
differences, ``ChangedPaths.paths`` is None, which requires a full scan.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from driftline.storage.globs import is_unicode
from driftline.storage.sources.git_isolation import (
    COMMIT_ID,
    Repository,
    ask,
    ask_remote,
    find_repository,
    finish,
    parse_commit_time,
    run,
    start,
)
from driftline.tasks.git.work_tree import WorkTree

MAX_CHANGED_PATHS = 20_000
"""Scanning more paths than this is no faster than a full scan."""

_ATTRIBUTES = ".gitattributes"
"""The file that determines how git writes other files to disk."""
ORIGIN = "origin"
_REMOTE, _HEADS = f"refs/remotes/{ORIGIN}/", "refs/heads/"
_SUBMODULE = b"160000"
_PLAIN_ENTRY, _SUBMODULE_ENTRY = b"\0H 1", b"\0H 160000"
"""The starts of entries in a list of tracked files. Other entries have a flag or a conflict."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The checked-out commit. ``branch`` is None on a detached head."""

    id: str
    committed: datetime
    branch: str | None


@dataclass(frozen=True, slots=True)
class ChangedPaths:
    """Sorted paths that differ, relative to the source; None requires a full scan; ``why`` is the reason."""

    paths: tuple[str, ...] | None
    why: str = ""


def head(root: str) -> Commit | None:
    """Return the checked-out commit of the working tree that contains ``root``.

    Returns None if git is missing or there is no commit yet.
    """
    repository = find_repository(root)
    commit = _head_id(root) if repository is not None else None
    if repository is None or commit is None:
        return None
    committed = _time_of(repository, commit)
    branch = ask(root, "symbolic-ref", "--quiet", "--short", "HEAD")
    name = branch.decode("utf-8", "replace").strip() if branch else None
    return Commit(commit, committed, name) if committed is not None else None


def commit_time(root: str, commit: str) -> datetime | None:
    """Return a commit's time in UTC, or None if the clone does not have it."""
    repository = find_repository(root) if COMMIT_ID.fullmatch(commit) else None
    return _time_of(repository, commit) if repository is not None else None


def is_ancestor(root: str, commit: str, later: str) -> bool:
    """Return whether ``commit`` is an ancestor of ``later``, or False if the clone lacks one of them."""
    repository = find_repository(root) if COMMIT_ID.fullmatch(commit) and COMMIT_ID.fullmatch(later) else None
    return repository is not None and run(repository, root, "merge-base", "--is-ancestor", commit, later) is not None


def _head_id(root: str) -> str | None:
    answer = ask(root, "rev-parse", "--verify", "--quiet", "HEAD")
    commit = answer.decode().strip() if answer else ""
    return commit if COMMIT_ID.fullmatch(commit) else None


def _time_of(repository: Repository, commit: str) -> datetime | None:
    answer = run(repository, repository.top, "rev-list", "--max-count=1", "--timestamp", commit)
    return parse_commit_time(answer.split()[0]) if answer else None


@dataclass(frozen=True, slots=True)
class PushedCommit:
    """A working tree's newest commit that is on its remote ``origin``; ``prefix`` is the folder under its top."""

    repository: Repository
    id: str

    @property
    def prefix(self) -> str:
        return self.repository.prefix

    @property
    def object_format(self) -> str:
        return self.repository.object_format


def pushed_commit(root: str) -> PushedCommit | None:
    """Return the newest commit that the working tree around ``root`` shares with its branch on ``origin``.

    Uses the branch as last fetched, falling back to the default branch. Contacts no host.
    """
    repository = find_repository(root)
    commit = _head_id(root) if repository is not None else None
    if repository is None or commit is None:
        return None
    branch = ask(root, "symbolic-ref", "--quiet", "--short", "HEAD")
    names = [f"{_REMOTE}{branch.decode('utf-8', 'replace').strip()}"] if branch else []
    upstream = ask(root, "rev-parse", "--symbolic-full-name", "--verify", "--quiet", "@{upstream}") if branch else None
    named = upstream.decode("utf-8", "replace").strip() if upstream else ""
    if named.startswith(_REMOTE):
        names.insert(0, named)
    for name in [*names, f"{_REMOTE}HEAD"]:
        answer = ask(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        tip = answer.decode().strip() if answer else ""
        if COMMIT_ID.fullmatch(tip):
            base = run(repository, root, "merge-base", commit, tip)
            found = base.decode().split()[:1] if base else []
            return PushedCommit(repository, found[0]) if found else None
    return None


_PATHS_AT_ONCE = 100


def blobs_at(pushed: PushedCommit, paths: Sequence[str]) -> dict[str, str]:
    """Return the commit's blob ids of regular files at ``paths``, relative to the folder; missing files are omitted.

    Returns nothing if git fails.
    """
    found: dict[str, str] = {}
    top = pushed.repository.top
    for start_at in range(0, len(paths), _PATHS_AT_ONCE):
        some = [f"{pushed.prefix}{path}" for path in paths[start_at : start_at + _PATHS_AT_ONCE]]
        options = ("--literal-pathspecs", "ls-tree", "-z", "--full-tree", pushed.id, "--")
        answer = run(pushed.repository, top, *options, *some) or b""
        for entry in answer.split(b"\0")[:-1]:
            meta, _, name = entry.partition(b"\t")
            mode, _, blob = meta.split()[:3]
            if mode.startswith(b"100"):
                found[os.fsdecode(name).removeprefix(pushed.prefix)] = blob.decode("ascii")
    return found


MAX_BLOBS_BYTES = 16 << 20
"""How much content of blobs is read at once."""


def blob_contents(pushed: PushedCommit, blobs: Sequence[str]) -> dict[str, bytes]:
    """Return the content of those of ``blobs`` that the clone has, up to MAX_BLOBS_BYTES together."""
    wanted, left = list[str](), MAX_BLOBS_BYTES
    for line in _batch(pushed, "--batch-check", dict.fromkeys(blobs)).decode().splitlines():
        name, kind, *sizes = line.split()  # or "<id> missing"
        if kind == "blob" and int(sizes[0]) <= left:
            left -= int(sizes[0])
            wanted.append(name)
    found, data, at = dict[str, bytes](), _batch(pushed, "--batch", wanted), 0
    while (start := data.find(b"\n", at) + 1) > 0:
        name, _, *sizes = data[at : start - 1].decode().split()
        at = start + int(sizes[0]) + 1 if sizes else start
        if sizes:
            found[name] = data[start : at - 1]
    return found


def _batch(pushed: PushedCommit, mode: str, blobs: Iterable[str]) -> bytes:
    names = "".join(f"{blob}\n" for blob in blobs).encode()
    top = pushed.repository.top
    return (run(pushed.repository, top, "cat-file", mode, stdin=names) or b"") if names else b""


def changes_between(tree: WorkTree, base: str, commit: str, *, ignore_files: Collection[str]) -> ChangedPaths:
    """Return the paths that differ between two commits' trees; a rename is a deletion plus an addition.

    A changed file whose name is in ``ignore_files`` affects other files, so it requires a full scan.
    """
    if not COMMIT_ID.fullmatch(base):
        return ChangedPaths(None, "the last indexed commit is not a commit id")
    if run(tree.repository, tree.root, "cat-file", "-e", f"{base}^{{commit}}") is None:
        return ChangedPaths(None, f"this clone does not have {base[:12]}, the last indexed commit")
    answer = run(tree.repository, tree.root, "diff-tree", "-r", "-z", "--raw", "--no-renames", base, commit)
    if answer is None:
        return ChangedPaths(None, f"git cannot compare with {base[:12]}, the last indexed commit")
    fields = answer.split(b"\0")[:-1]
    if any(_SUBMODULE in meta.split()[:2] for meta in (m.removeprefix(b":") for m in fields[::2])):
        return ChangedPaths(None, "a submodule has changed")
    return _within(tree, fields[1::2], ignore_files)


def changes_on_disk(tree: WorkTree, *, ignore_files: Collection[str]) -> ChangedPaths:
    """Return the paths that differ between the checked-out commit and disk: changed, deleted and untracked files.

    ``ignore_files`` has the same meaning as in ``changes_between``.
    """
    command = ("status", "--porcelain=v1", "-z", "--no-renames")
    options = ("--untracked-files=all", "--ignore-submodules=all")  # git would run a status in each submodule
    looking = start(tree.repository, tree.top, *command, *options, head=_head_id(tree.root) or "")
    entries = run(tree.repository, tree.top, "ls-files", "--stage", "-v", "-z")
    status = finish(looking)
    if entries is None:
        return ChangedPaths(None, "git cannot list the tracked files")
    listed = b"\0" + entries
    if listed.count(_PLAIN_ENTRY) < entries.count(b"\0") or _SUBMODULE_ENTRY in listed:
        return ChangedPaths(None, "there are submodules, conflicts, or files with assume-unchanged or skip-worktree")
    if status is None:
        return ChangedPaths(None, "git cannot list the changes on disk")
    return _within(tree, [entry[3:] for entry in status.split(b"\0")[:-1]], ignore_files)


def union(first: ChangedPaths, second: ChangedPaths) -> ChangedPaths:
    """Return the paths in either result, or a full scan if either result requires one."""
    if first.paths is None or second.paths is None:
        return first if first.paths is None else second
    paths = tuple(sorted({*first.paths, *second.paths}))
    if len(paths) > MAX_CHANGED_PATHS:
        return ChangedPaths(None, f"{len(paths):,} paths have changed")
    return ChangedPaths(paths)


def _within(tree: WorkTree, names: list[bytes], ignore_files: Collection[str]) -> ChangedPaths:
    """Convert ``names``, relative to the top of the working tree, to paths in the source.

    Names outside the source are dropped.
    """
    paths: set[str] = set()
    for name in map(os.fsdecode, names):
        if name.endswith("/"):
            return ChangedPaths(None, f"{name} is a nested repository")
        if name.rpartition("/")[2] in (*ignore_files, _ATTRIBUTES):
            return ChangedPaths(None, f"{name} has changed")
        if name.startswith(tree.prefix) and is_unicode(name):  # other names are never indexed
            paths.add(name[len(tree.prefix) :])
    return ChangedPaths(tuple(sorted(paths)))


_REQUEST_NAME = re.compile(r"((?:heads/)*)pr/\d+")


def index_name(branch: str) -> str:
    """Return a git branch's name in the index: its own, unless it is reserved for pull requests (``pr/NUMBER``)."""
    return f"heads/{branch}" if _REQUEST_NAME.fullmatch(branch) else branch


def branch_named(name: str) -> str | None:
    """Return the git branch for the index branch ``name``, or None for a pull request, which has no branch."""
    match = _REQUEST_NAME.fullmatch(name)
    return name if match is None else name.removeprefix("heads/") if match[1] else None


@dataclass(frozen=True, slots=True)
class RemoteBranches:
    """The branches that a remote listed, with their last commits; ``default`` is None if it did not report it."""

    tips: dict[str, str]
    default: str | None


def ask_remote_branches(root: str) -> RemoteBranches | None:
    """Ask ``origin`` for its branches.

    Returns None if there is no remote, or if it does not respond or has no branches. The clone's remote-tracking
    branches are not a substitute: a single-branch clone does not have the others.
    """
    if "://" in root or not os.path.isdir(root) or find_repository(root) is None:
        return None
    answer = ask_remote(root, "ls-remote", "--symref", refs=("HEAD", f"{_HEADS}*"))
    lines = [line.partition("\t") for line in (answer or b"").decode("utf-8", "replace").splitlines()]
    tips = {ref.removeprefix(_HEADS): tip for tip, _, ref in lines if ref.startswith(_HEADS)}
    head = f"ref: {_HEADS}"
    default = next((tip.removeprefix(head) for tip, _, ref in lines if ref == "HEAD" and tip.startswith(head)), None)
    return RemoteBranches(tips, default) if tips else None


def has_other_remotes(root: str) -> bool:
    """Return whether the working tree around ``root`` has remotes, but none is called ``origin``."""
    if "://" in root or not os.path.isdir(root) or find_repository(root) is None:
        return False
    urls = (ask(root, "config", "--get-regexp", r"^remote\..*\.url$") or b"").splitlines()
    return bool(urls) and not any(url.startswith(b"remote.origin.url ") for url in urls)


def local_branches(root: str) -> frozenset[str]:
    """Return the branch names of the working tree around ``root``; empty if git is missing."""
    if "://" in root or not os.path.isdir(root) or find_repository(root) is None:
        return frozenset()
    answer = ask(root, "rev-parse", "--symbolic-full-name", "--branches")
    names = (answer or b"").decode("utf-8", "replace").splitlines()
    return frozenset(name.removeprefix(_HEADS) for name in names)


def is_on_remote_branch(root: str, commit: str, branch: str, remote: str = ORIGIN) -> bool | None:
    """Return whether ``commit`` is in ``branch`` of ``remote``, as last fetched by the working tree around ``root``.

    Returns None if the branch was never fetched.
    """
    answer = ask(root, "rev-parse", "--verify", "--quiet", f"refs/remotes/{remote}/{branch}")
    tip = answer.decode().strip() if answer else ""
    return (commit == tip or is_ancestor(root, commit, tip)) if tip else None


def is_in_branch(root: str, commit: str, branch: str) -> bool | None:
    """Ask ``origin`` whether ``branch`` contains ``commit``; return None if the clone lacks the necessary history.

    A clone that fetches commit by commit remembers an older tip of the branch.
    """
    repository = find_repository(root)
    shallow = ask(root, "rev-parse", "--is-shallow-repository")
    if repository is None or shallow is None or shallow.strip() == b"true":
        return None
    remote = ask_remote_branches(root)
    tip = remote.tips.get(branch, "") if remote is not None else ""
    if COMMIT_ID.fullmatch(tip) and _time_of(repository, tip) is None:
        return None
    return commit == tip or is_ancestor(root, commit, tip)


def remote_url(root: str, remote: str = ORIGIN) -> str | None:
    """Return the URL of ``remote``, or None if there is none."""
    answer = ask(root, "config", "--get", f"remote.{remote}.url")
    return answer.decode("utf-8", "replace").strip() or None if answer else None


def remotes(root: str) -> list[str]:
    """Return the names of the remotes of the working tree around ``root``."""
    return (ask(root, "remote") or b"").decode("utf-8", "replace").split()


def default_branch(root: str) -> str | None:
    """Return the branch of ``origin``'s HEAD, as known to the working tree around ``root``, or None."""
    if "://" in root or find_repository(root) is None:
        return None
    answer = ask(root, "symbolic-ref", "--quiet", f"{_REMOTE}HEAD")
    name = answer.decode("utf-8", "replace").strip() if answer else ""
    return name.removeprefix(_REMOTE) or None


def is_merged(root: str, commit: str) -> bool:
    """Return whether ``commit`` is in the default branch of ``origin`` or, if unknown, a local ``main`` or ``master``.

    A local branch proves nothing about the remote: it may contain a merge that was never pushed.
    """
    if "://" in root or not os.path.isdir(root):
        return False
    name = default_branch(root)
    for ref in [f"{_REMOTE}{name}"] if name else ["refs/heads/main", "refs/heads/master"]:
        answer = ask(root, "rev-parse", "--verify", "--quiet", ref)
        tip = answer.decode().strip() if answer else ""
        if tip and is_ancestor(root, commit, tip):
            return True
    return False

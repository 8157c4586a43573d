"""Branches of a git work tree: those of its remote, and whether a commit is merged into what the remote calls HEAD."""

from __future__ import annotations

import os

from driftline.tasks.git.commits import is_ancestor
from driftline.tasks.git.isolation import ask, find_repository

_REMOTE, _HEADS = "refs/remotes/origin/", "refs/heads/"


def remote_branches(root: str) -> frozenset[str] | None:
    """The names of the branches of ``origin`` as the work tree around ``root`` saw them last; None without any."""
    names = _refs(root, "--remotes=origin")
    return frozenset(name.removeprefix(_REMOTE) for name in names if name != f"{_REMOTE}HEAD") or None


def local_branches(root: str) -> frozenset[str]:
    """The names of the branches of the work tree around ``root``; none without git."""
    return frozenset(name.removeprefix(_HEADS) for name in _refs(root, "--branches"))


def _refs(root: str, which: str) -> list[str]:
    if "://" in root or not os.path.isdir(root) or find_repository(root) is None:
        return []
    answer = ask(root, "rev-parse", "--symbolic-full-name", which)
    return (answer or b"").decode("utf-8", "replace").splitlines()


def default_branch(root: str) -> str | None:
    """The branch that ``origin`` calls its HEAD, as the work tree around ``root`` knows it; None if it does not."""
    if "://" in root or find_repository(root) is None:
        return None
    answer = ask(root, "symbolic-ref", "--quiet", f"{_REMOTE}HEAD")
    name = answer.decode("utf-8", "replace").strip() if answer else ""
    return name.removeprefix(_REMOTE) or None


def is_merged(root: str, commit: str) -> bool:
    """Whether ``commit`` is an ancestor of the default branch of ``origin``, or of a local ``main`` or ``master``."""
    if "://" in root or not os.path.isdir(root):
        return False
    name = default_branch(root)
    for ref in [f"{_REMOTE}{name}"] if name else ["refs/heads/main", "refs/heads/master"]:
        answer = ask(root, "rev-parse", "--verify", "--quiet", ref)
        tip = answer.decode().strip() if answer else ""
        if tip and is_ancestor(root, commit, tip):
            return True
    return False

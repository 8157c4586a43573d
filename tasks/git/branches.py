"""Branches of a git work tree: those of its remote, and whether a commit is merged into what the remote calls HEAD."""

from __future__ import annotations

import os
import re

from driftline.tasks.git.commits import is_ancestor
from driftline.tasks.git.isolation import ask, ask_remote, find_repository

_REMOTE, _HEADS = "refs/remotes/origin/", "refs/heads/"
_REQUEST_NAME = re.compile(r"((?:heads/)*)pr/\d+")


def index_name(branch: str) -> str:
    """What a branch of git is called in the index: as in git, but never ``pr/NUMBER``, which pull requests have."""
    return f"heads/{branch}" if _REQUEST_NAME.fullmatch(branch) else branch


def branch_named(name: str) -> str | None:
    """The branch of git that is called ``name`` in the index; None for a pull request, which is no branch."""
    match = _REQUEST_NAME.fullmatch(name)
    return name if match is None else name.removeprefix("heads/") if match[1] else None


def ask_remote_branches(root: str) -> frozenset[str] | None:
    """The names of the branches that the remote ``origin`` has now, in its own words.

    None if there is no remote, if it does not answer, or if it has no branch. What a clone remembers is no answer: a
    clone of a single branch never knew the others.
    """
    if "://" in root or not os.path.isdir(root) or find_repository(root) is None:
        return None
    answer = ask_remote(root, "ls-remote", "--heads")
    refs = [line.partition("\t")[2] for line in (answer or b"").decode("utf-8", "replace").splitlines()]
    return frozenset(ref.removeprefix(_HEADS) for ref in refs if ref.startswith(_HEADS)) or None


def local_branches(root: str) -> frozenset[str]:
    """The names of the branches of the work tree around ``root``; none without git."""
    if "://" in root or not os.path.isdir(root) or find_repository(root) is None:
        return frozenset()
    answer = ask(root, "rev-parse", "--symbolic-full-name", "--branches")
    names = (answer or b"").decode("utf-8", "replace").splitlines()
    return frozenset(name.removeprefix(_HEADS) for name in names)


def is_on_remote_branch(root: str, commit: str, branch: str) -> bool:
    """Whether ``commit`` is in ``branch`` of ``origin``, as the work tree around ``root`` has fetched it."""
    answer = ask(root, "rev-parse", "--verify", "--quiet", f"{_REMOTE}{branch}")
    tip = answer.decode().strip() if answer else ""
    return bool(tip) and (commit == tip or is_ancestor(root, commit, tip))


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

"""Which branch a command means: a name, or ``auto`` for the branch that is checked out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftline.storage.errors import UsageError

if TYPE_CHECKING:
    from driftline.storage.entities import Entity
    from driftline.storage.workspace.workspace import Workspace

AUTO = "auto"


def named_branch(name: str | None, folder: str = ".") -> str | None:
    """The branch ``name``, or for ``auto`` the one that is checked out in the work tree around ``folder``.

    Raises UsageError if nothing is checked out there, or no branch.
    """
    if name != AUTO:
        return name
    from driftline.tasks.git.commits import head

    commit = head(folder)
    if commit is None or commit.branch is None:
        raise UsageError("No branch is checked out here", folder, "Name it: --branch NAME")
    return commit.branch


def on_named_branch(workspace: Workspace, name: str | None, within: Entity | None = None) -> Workspace:
    """``workspace`` on the branch that a search names, of the sources at or below ``within``.

    ``auto`` is the main index where it has no such branch. Raises UsageError for any other unknown branch.
    """
    if name is None:
        return workspace
    from driftline.storage.workspace.branches import has_branch, on_branch

    branch = named_branch(name)
    if branch is None or (name == AUTO and not has_branch(workspace, branch, within)):
        return workspace
    return on_branch(workspace, branch, within)

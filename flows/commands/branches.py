"""Define ``driftline branches`` and ``driftline diff``, which list, delete, prune and compare index branches."""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftline.flows.commands.app import (
    DONE,
    Commands,
    JsonOption,
    QueryArgument,
    WorkspaceOption,
    app,
    parameters,
    show,
    show_search,
)
from driftline.flows.config.which_workspace import open_for_reading
from driftline.flows.output.plain_text import say, say_done, warn
from driftline.storage.defaults import DEFAULT_PRUNED_AFTER_DAYS
from driftline.storage.errors import UsageError
from driftline.storage.option_table import spread
from driftline.tasks.search.request import OPTIONS, SearchRequest

if TYPE_CHECKING:
    from driftline.storage.entities import Boundary
    from driftline.storage.workspace.workspace import Workspace

MAIN = "main"
"""The name of the main index in ``driftline diff``."""

branches = Commands(help="List, delete and prune the branches of the index.")
app.add_typer(branches, name="branches")

EntityOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH", help="Only this source, or the sources below an entity such as org:acme/project:alpha."
    ),
]


@branches.callback(invoke_without_command=True)
def list_all(
    context: typer.Context, workspace: WorkspaceOption = None, entity: EntityOption = None, as_json: JsonOption = False
) -> int:
    """List the branches: base, commit, changed documents, bytes, age."""
    if context.invoked_subcommand is not None:
        if workspace or entity or as_json:
            fix = f"Write: driftline branches {context.invoked_subcommand} --workspace ..."
            raise UsageError("The options of 'driftline branches' do not apply to its commands", fix=fix)
        return DONE
    return list_branches_of(workspace, entity, as_json)


@branches.command("list")
def list_branches_of(
    workspace: WorkspaceOption = None, entity: EntityOption = None, as_json: JsonOption = False
) -> int:
    """List the branches: base, commit, changed documents, bytes, age."""
    opened, within = _opened(workspace, entity)
    from driftline.flows.output.terminal_reports import print_branches
    from driftline.flows.runs.branches import list_branches

    found = [branch.to_dict() for branch in list_branches(opened, within)]
    show({"workspace": opened.objects.uri, "branches": found}, as_json, print_branches)
    return DONE


@branches.command()
def delete(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Branch name, as listed by 'driftline branches'.")
    ] = None,
    of_build: Annotated[
        bool,
        typer.Option(
            "--of-build", help="Instead of NAME, use the branch of the pull request that CI is building or closing."
        ),
    ] = False,
    workspace: WorkspaceOption = None,
    entity: EntityOption = None,
    wait: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Wait this long for another run to finish.")
    ] = 0.0,
    missing_ok: Annotated[bool, typer.Option("--missing-ok", help="Succeed even if no source has the branch.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Delete a branch from every source that has it. Keeps the main index and the source files."""
    if (name is None) != of_build:
        raise UsageError("Specify one branch", fix="Use: driftline branches delete NAME, or --of-build in CI")
    name = name or _of_build()
    opened, within = _opened(workspace, entity)
    from driftline.flows.runs.branches import delete_named

    deleted = delete_named(opened, name, within, wait_seconds=wait, missing_ok=missing_ok)
    show({"name": name, "deleted": deleted}, as_json, partial(_print_deleted, name))
    return DONE


@branches.command()
def prune(
    workspace: WorkspaceOption = None,
    entity: EntityOption = None,
    older_than_days: Annotated[
        float, typer.Option(min=0.0, metavar="DAYS", help="Delete branches not indexed for this many days.")
    ] = DEFAULT_PRUNED_AFTER_DAYS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Delete branches that are merged, deleted on the remote, or stale. Lists the branches on the remote."""
    opened, within = _opened(workspace, entity)
    from driftline.flows.runs.branches import prune_branches

    pruned = prune_branches(opened, within, older_than_days=older_than_days, dry_run=dry_run, skip=warn)
    result = {"workspace": opened.objects.uri, "dry_run": dry_run, "pruned": [asdict(branch) for branch in pruned]}
    show(result, as_json, _print_pruned)
    return DONE


@app.command()
@spread("given", parameters(OPTIONS.offered_in("command", "top_k", "n_lines")))
def diff(
    base: Annotated[str, typer.Argument(metavar="BASE", help="The base: main.")],
    branch: Annotated[str, typer.Argument(metavar="BRANCH", help="Branch name, as listed by 'driftline branches'.")],
    query: QueryArgument,
    workspace: WorkspaceOption = None,
    *,
    given: dict[str, Any],
    as_json: JsonOption = False,
) -> int:
    """Search the lines that BRANCH adds to the main index. Exit code 1 if nothing is found."""
    if base != MAIN:
        raise UsageError(
            "A branch can only be compared with the main index", base, f"Write: driftline diff {MAIN} BRANCH"
        )
    opened = open_for_reading(workspace)
    from driftline.flows.output.plain_text import print_search
    from driftline.storage.workspace.branch_cuts import on_branch
    from driftline.tasks.search.new_on_branch import new_lines

    report = new_lines(on_branch(opened, branch), SearchRequest.of(query, given))
    return show_search(report.to_dict(), as_json, lambda result: print_search(result, None))


def _of_build() -> str:
    """Return the branch of the pull request that CI is building. Raises UsageError for any other build."""
    from driftline.flows.ci.build import Build

    build = Build.detect(os.environ, ".")
    branch = build.index_branch() if build.is_request or build.unclear else None
    if branch is None:
        raise UsageError("This build is not for a pull request", build.system, "Specify the branch.")
    return branch


def _opened(workspace: str | None, entity: str | None) -> tuple[Workspace, Boundary | None]:
    from driftline.storage.entities import Boundary, Entity

    opened = open_for_reading(workspace)
    return opened, Boundary.of(Entity.parse(entity, opened.config.hierarchy)) if entity else None


def _print_deleted(name: str, result: dict[str, Any]) -> None:
    for entity in result["deleted"]:
        say_done(f"deleted the branch {name} of {entity}")


def _print_pruned(result: dict[str, Any]) -> None:
    done = "would delete" if result["dry_run"] else "deleted"
    for branch in result["pruned"]:
        (say if result["dry_run"] else say_done)(f"{done} {branch['name']} of {branch['entity']}: {branch['why']}")
    if not result["pruned"]:
        say_done("no branch to prune")

"""Payloads as hosts document them: the work that each of their events requires of a source and its branches."""

from __future__ import annotations

from typing import Any

import pytest

from driftline.flows.ci.webhooks import HOSTS, work_of
from driftline.flows.config.driftline_toml import HookSettings
from driftline.flows.config.index_request import SourceRequest

SOURCE = SourceRequest("git+https://code.example/team/app.git", "org:a/project:b/source:app")
ZEROS, ONES = "0" * 40, "1" * 40
Sent = tuple[str, dict[str, Any]]
REFS = {"branch": "refs/heads/{}", "tag": "refs/tags/{}"}


def pushed(host: str, name: str, kind: str = "branch", *, before: str = "2" * 40, after: str = ONES) -> Sent:
    """Return a push that moved a branch or a tag from one commit to another; zeros for none."""
    ref, is_gone = REFS[kind].format(name), after == ZEROS
    common: dict[str, Any] = {"ref": ref, "before": before, "after": after}
    match host:
        case "github" | "gitea":
            state: dict[str, Any] = {"created": before == ZEROS, "deleted": is_gone, "forced": True}
            return "push", common | state | {"repository": {"default_branch": "main"}}
        case "gitlab":
            kinds = {"branch": ("Push Hook", "push"), "tag": ("Tag Push Hook", "tag_push")}
            event, named = kinds[kind]
            return event, common | {"object_kind": named, "project": {"default_branch": "main"}}
        case "bitbucket":
            old, new = ({"type": kind, "name": name} if each != ZEROS else None for each in (before, after))
            change: dict[str, Any] = {
                "old": old,
                "new": new,
                "created": old is None,
                "closed": new is None,
                "forced": True,
            }
            return "repo:push", {"push": {"changes": [change]}, "repository": {"full_name": "team/app"}}
        case _:
            verb = "DELETE" if is_gone else "ADD" if before == ZEROS else "UPDATE"
            change = {"ref": {"id": ref, "displayId": name, "type": kind.upper()}, "refId": ref, "type": verb}
            return "repo:refs_changed", {"changes": [change], "repository": {"id": 1}}


ACTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "github": {
        "opened": ("opened", "open"), "synchronised": ("synchronize", "open"), "reopened": ("reopened", "open"),
        "labelled": ("labeled", "open"), "closed": ("closed", "closed"), "merged": ("closed", "closed"),
        "labelled after": ("labeled", "closed"), "edited after": ("edited", "closed"),
    },
    "gitea": {
        "opened": ("opened", "open"), "synchronised": ("synchronized", "open"), "reopened": ("reopened", "open"),
        "closed": ("closed", "closed"), "labelled after": ("label_updated", "closed"),
    },
    "gitlab": {
        "opened": ("open", "opened"), "synchronised": ("update", "opened"), "reopened": ("reopen", "opened"),
        "approved": ("approved", "opened"), "closed": ("close", "closed"), "merged": ("merge", "merged"),
        "labelled after": ("update", "merged"), "edited after": ("update", "closed"),
    },
    "bitbucket": {
        "opened": ("pullrequest:created", "OPEN"), "synchronised": ("pullrequest:updated", "OPEN"),
        "merged": ("pullrequest:fulfilled", "MERGED"), "closed": ("pullrequest:rejected", "DECLINED"),
        "commented after": ("pullrequest:comment_created", "MERGED"),
        "approved after": ("pullrequest:approved", "SUPERSEDED"),
    },
    "server": {
        "opened": ("pr:opened", "OPEN"), "synchronised": ("pr:from_ref_updated", "OPEN"),
        "merged": ("pr:merged", "MERGED"), "closed": ("pr:declined", "DECLINED"), "deleted": ("pr:deleted", "OPEN"),
        "commented after": ("pr:comment:added", "DECLINED"),
    },
}  # fmt: skip
"""What happens to a pull request: the host's action or event, and the request's state afterwards."""


def requested(host: str, happens: str, *, fork: bool, branch: str = "topic") -> Sent:
    action, state = ACTIONS[host][happens]
    source, target = (2 if fork else 1), 1
    match host:
        case "github" | "gitea":
            ends = {"head": {"ref": branch, "repo": {"id": source}}, "base": {"ref": "main", "repo": {"id": target}}}
            named = {"number": 7, "pull_request": ends | {"state": state}}
            return "pull_request", named | {"action": action, "repository": {"default_branch": "main"}}
        case "gitlab":
            ids = {"source_project_id": source, "target_project_id": target, "iid": 7, "id": 99}
            named = ids | {"source_branch": branch, "target_branch": "main", "action": action, "state": state}
            body = {"object_kind": "merge_request", "object_attributes": named}
            return "Merge Request Hook", body | {"project": {"default_branch": "main"}}
        case "bitbucket":
            names = {1: "team/app", 2: "fork/app"}
            ends = {
                end: {"branch": {"name": name}, "repository": {"full_name": names[each]}}
                for end, name, each in (("source", branch, source), ("destination", "main", target))
            }
            return action, {"pullrequest": ends | {"id": 7, "state": state}, "repository": {"full_name": "team/app"}}
        case _:
            ends = {
                end: {"displayId": name, "id": f"refs/heads/{name}", "repository": {"id": each}}
                for end, name, each in (("fromRef", branch, source), ("toRef", "main", target))
            }
            return action, {"pullRequest": ends | {"id": 7, "state": state}}


def works(host: str, sent: Sent, *branches: str, ref: str | None = None) -> list[tuple[str | None, str, bool]]:
    """Return the index branch, the ref and whether it is deleted, of each work that a delivery requires."""
    known, (event, payload) = HOSTS["bitbucket" if host == "server" else host], sent
    source = SOURCE if ref is None else SourceRequest(f"{SOURCE.uri}@{ref}", SOURCE.entity)
    settings = HookSettings({}, branches, pull_requests=True)
    found = (work_of(each, source, settings, known.request_ref) for each in known.events(event, payload))
    return [(each.branch, each.ref, each.is_gone) for each in found if each is not None]


@pytest.mark.parametrize("host", ACTIONS)
def test_a_push_moves_a_branch_creates_it_or_deletes_it(host: str) -> None:
    assert works(host, pushed(host, "main")) == [(None, "", False)]
    assert works(host, pushed(host, "x/y", before=ZEROS), "x/*") == [("x/y", "refs/heads/x/y", False)]
    assert works(host, pushed(host, "x/y"), "x/*") == [("x/y", "refs/heads/x/y", False)], "forced or not"
    assert works(host, pushed(host, "x/y"), "z", ref="main") == []
    assert works(host, pushed(host, "x/y", after=ZEROS)) == [("x/y", "refs/heads/x/y", True)]
    assert works(host, pushed(host, "main", after=ZEROS)) == [], "the main index is deleted by no delivery"


@pytest.mark.parametrize("host", ACTIONS)
@pytest.mark.parametrize("branch", ["main", "develop"])
def test_a_push_to_what_may_be_the_default_branch_runs_the_main_index(host: str, branch: str) -> None:
    """Bitbucket's payloads do not name the default branch, which a run of the main index asks for."""
    names_it = host not in ("bitbucket", "server")
    assert works(host, pushed(host, branch)) == ([] if names_it and branch != "main" else [(None, "", False)])
    listed = [("develop", "refs/heads/develop", False)]
    assert works(host, pushed(host, branch), "dev*") == ([(None, "", False)] if branch == "main" else listed)
    assert works(host, pushed(host, branch), ref="develop") == ([(None, "", False)] if branch == "develop" else [])


@pytest.mark.parametrize("host", ACTIONS)
@pytest.mark.parametrize("name", ["v1", "main", "topic"])
def test_a_tag_is_not_a_branch(host: str, name: str) -> None:
    for ends in ({"before": ZEROS}, {}, {"after": ZEROS}):
        assert works(host, pushed(host, name, "tag", **ends), "*") == []


@pytest.mark.parametrize(("host", "happens"), [(host, each) for host, actions in ACTIONS.items() for each in actions])
def test_a_pull_request_is_indexed_while_it_is_open(host: str, happens: str) -> None:
    if happens.endswith(" after"):  # another request may have the branch by now
        assert (
            works(host, requested(host, happens, fork=False)) == works(host, requested(host, happens, fork=True)) == []
        )
        return
    is_gone = happens in ("closed", "merged", "deleted")
    ref = "" if is_gone else "refs/heads/topic"
    assert works(host, requested(host, happens, fork=False)) == [("topic", ref, is_gone)]
    if is_gone:
        assert works(host, requested(host, happens, fork=False), "topic") == [], "a listed branch outlives it"
    of_fork = works(host, requested(host, happens, fork=True))
    template = HOSTS["bitbucket" if host == "server" else host].request_ref
    assert of_fork == ([("pr/7", "" if is_gone else template.format(7), is_gone)] if template else [])
    of_main = works(host, requested(host, happens, fork=True, branch="main"))
    assert of_main == of_fork, "a fork's branch may be called main"


@pytest.mark.parametrize("host", ACTIONS)
@pytest.mark.parametrize(
    "event",
    [
        "ping",
        "repository",
        "Repository Update Hook",
        "repo:updated",
        "repo:modified",
        "diagnostics:ping",
        "release",
        "",
    ],
)
def test_renames_and_archiving_are_left_to_the_next_sync(host: str, event: str) -> None:
    for action in ("renamed", "archived", "transferred", "deleted", "privatized"):
        named = {"default_branch": "main", "archived": True}
        assert works(host, (event, {"action": action, "repository": named, "project": named}), "*") == []

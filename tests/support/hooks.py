"""Webhooks as sent by git hosts, delivered to a server on loopback."""

from __future__ import annotations

import hashlib
import hmac
import json
import uuid
from typing import Any

from tests.support.web import Answer, ask

SECRET = "correct horse"
ZEROS = "0" * 40


def signed(host: str, body: str, secret: str = SECRET) -> dict[str, str]:
    """Return the header that proves that a host knows the secret."""
    digest = hmac.new(secret.encode(), body.encode(), hashlib.sha256).hexdigest()
    return {
        "github": {"X_Hub_Signature_256": f"sha256={digest}"},
        "gitlab": {"X_Gitlab_Token": secret},
        "gitea": {"X_Gitea_Signature": digest},
        "bitbucket": {"X_Hub_Signature": f"sha256={digest}"},
    }[host]


EVENTS = {"github": "X_GitHub_Event", "gitlab": "X_Gitlab_Event", "gitea": "X_Gitea_Event", "bitbucket": "X_Event_Key"}
DELIVERIES = {
    "github": "X_GitHub_Delivery",
    "gitlab": "X_Gitlab_Event_UUID",
    "gitea": "X_Gitea_Delivery",
    "bitbucket": "X_Request_UUID",
}


def deliver(address: str, host: str, event: str, payload: Any, *, delivery: str = "", **changed: str) -> Answer:
    """Deliver ``payload``, with a new id unless one is given; ``changed`` headers replace the correct ones."""
    number = uuid.uuid4().hex
    body = payload if isinstance(payload, str) else json.dumps({"sent": number, **payload})
    headers = {EVENTS[host]: event, DELIVERIES[host]: delivery or number, **signed(host, body), **changed}
    return ask(address, f"/hooks/{host}", method="POST", body=body, Content_Type="application/json", **headers)


def push(host: str, url: str, branch: str = "main", *, is_gone: bool = False) -> tuple[str, dict[str, Any]]:
    """Return the event and payload for a push to a branch of the repository at ``url``, or for the branch's
    deletion.
    """
    after = ZEROS if is_gone else "1" * 40
    if host in ("github", "gitea"):
        named = {"clone_url": url, "default_branch": "main", "id": 1}
        return "push", {"ref": f"refs/heads/{branch}", "after": after, "deleted": is_gone, "repository": named}
    if host == "gitlab":
        project = {"git_http_url": url, "default_branch": "main"}
        return "Push Hook", {"object_kind": "push", "ref": f"refs/heads/{branch}", "after": after, "project": project}
    ends = {"new": None if is_gone else {"type": "branch", "name": branch}, "old": {"type": "branch", "name": branch}}
    return "repo:push", {"push": {"changes": [ends]}, "repository": {"links": {"html": {"href": url}}}}


def request(
    host: str, url: str, number: int, branch: str, *, state: str = "open", fork: bool = False
) -> tuple[str, dict[str, Any]]:
    """Return the event and payload for a pull request from a branch of the repository or of a fork."""
    source = 2 if fork else 1
    if host in ("github", "gitea"):
        ends = {
            "head": {"ref": branch, "repo": {"id": source}},
            "base": {"ref": "main", "repo": {"id": 1}},
        }
        action = {"open": "opened", "closed": "closed"}[state]
        named = {"clone_url": url, "default_branch": "main", "id": 1}
        return "pull_request", {"action": action, "number": number, "pull_request": ends, "repository": named}
    if host == "gitlab":
        attributes = {"iid": number, "source_branch": branch, "target_branch": "main", "target_project_id": 1}
        attributes |= {"source_project_id": source, "action": {"open": "open", "closed": "merge"}[state]}
        project = {"git_http_url": url, "default_branch": "main"}
        return "Merge Request Hook", {
            "object_kind": "merge_request",
            "object_attributes": attributes,
            "project": project,
        }
    requested: dict[str, Any] = {
        "id": number,
        "source": {"branch": {"name": branch}, "repository": {"full_name": "fork/app" if fork else "team/app"}},
        "destination": {"branch": {"name": "main"}, "repository": {"full_name": "team/app"}},
    }
    event = {"open": "pullrequest:created", "closed": "pullrequest:fulfilled"}[state]
    return event, {"pullrequest": requested, "repository": {"links": {"html": {"href": url}}}}

"""Define the commands that grant access: ``driftline token``, for the web server, and ``driftline trust``, for
configuration files that commands find in parent folders.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftline.flows.commands.app import DONE, Commands, JsonOption, WithinOption, WorkspaceOption, app, show
from driftline.flows.config.which_workspace import boundary_in, open_for_reading
from driftline.flows.output.plain_text import say, warn
from driftline.storage.errors import UsageError
from driftline.storage.option_table import duration

if TYPE_CHECKING:
    from driftline.storage.workspace.tokens import Scope, TokenRecord

NEVER = "never"
DEFAULT_EXPIRY = "90d"
_DURATION = re.compile(r"([1-9]\d{0,4})([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 7 * 24}

token = Commands(help="Create, list and revoke web server tokens.", no_args_is_help=True)
app.add_typer(token, name="token")


@token.command()
def create(
    workspace: WorkspaceOption = None,
    within: WithinOption = None,
    scope: Annotated[
        str, typer.Option(metavar="NAMES", help="Permissions of the token: search, memory, metrics.")
    ] = "search",
    expires: Annotated[
        str, typer.Option(metavar="DURATION", help=f"Lifetime: 12h, 90d, 8w, or {NEVER}.")
    ] = DEFAULT_EXPIRY,
    note: Annotated[str, typer.Option(metavar="TEXT", help="User or purpose, shown by 'driftline token list'.")] = "",
    as_json: JsonOption = False,
) -> int:
    """Create a token and print it once: the workspace stores only its hash."""
    ends, scopes = _expiry(expires), _scopes(scope)
    opened = open_for_reading(workspace)
    from driftline.storage.workspace.tokens import create_token

    boundary = boundary_in(opened, within).tops[0] if within is not None else None
    made, record = create_token(opened, within=boundary, scopes=scopes, expires=ends, note=note)
    show({"token": made, **_described(record)}, as_json, _print_created)
    return DONE


@token.command("list")
def list_all(workspace: WorkspaceOption = None, as_json: JsonOption = False) -> int:
    """List the tokens: id, boundary, scopes, expiry. The tokens themselves are not stored."""
    opened = open_for_reading(workspace)
    from driftline.flows.output.terminal_reports import print_tokens
    from driftline.storage.workspace.tokens import read_tokens

    tokens = [_described(record) for record in read_tokens(opened.objects)]
    show({"workspace": opened.objects.uri, "tokens": tokens}, as_json, print_tokens)
    return DONE


@token.command()
def revoke(
    identifier: Annotated[str, typer.Argument(metavar="ID", help="Token id, as shown by 'driftline token list'.")],
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> int:
    """Revoke a token. Running servers reject it within seconds."""
    opened = open_for_reading(workspace)
    from driftline.storage.workspace.tokens import revoke_token

    revoked = revoke_token(opened, identifier)
    show({"revoked": _described(revoked)}, as_json, lambda result: say(f"revoked {result['revoked']['id']}"))
    return DONE


@app.command()
def trust(
    file: Annotated[str | None, typer.Argument(metavar="[FILE]", help="Default: the nearest driftline.toml.")] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Revoke trust in the file.")] = False,
) -> int:
    """Allow a driftline.toml found in a parent directory to set storage options, [memory], [web.hooks] and tokens.

    Trust ends when the file changes.
    """
    from driftline.flows.config.driftline_toml import trust_config

    config = trust_config(file, revoke=revoke)
    say(f"{'no longer trusted' if revoke else 'trusted'}: {config.path}")
    for key, value in config.storage_options.items():
        say(f"  {key} = {value}")  # contains references, not secrets
    for section in config.memory:
        say(f"  [memory.{section}]")
    return DONE


def _expiry(given: str) -> datetime | None:
    if given == NEVER:
        return None
    match = _DURATION.fullmatch(given)
    if match is None:
        raise UsageError("Not a duration", repr(given), f"Use 12h, 90d, 8w, or {NEVER}.")
    return datetime.now(UTC) + duration("--expires", int(match[1]) * _HOURS[match[2]] * 3_600)


def _scopes(given: str) -> list[Scope]:
    from driftline.storage.workspace.tokens import SCOPES

    names = [name.strip() for name in given.split(",") if name.strip()]
    if unknown := [name for name in names if name not in SCOPES]:
        raise UsageError("Unknown scope", ", ".join(unknown), f"Use {', '.join(SCOPES)}.")
    return [scope for scope in SCOPES if scope in names]


def _described(record: TokenRecord) -> dict[str, Any]:
    boundary = record.boundary
    return {
        "id": record.id,
        "within": str(boundary) if boundary is not None else None,
        "scopes": list(record.scopes),
        "created": record.created.isoformat(timespec="seconds"),
        "expires": record.expires.isoformat(timespec="seconds") if record.expires is not None else None,
        "note": record.note,
    }


def _print_created(result: dict[str, Any]) -> None:
    where, ends = result["within"] or "the whole workspace", result["expires"] or NEVER
    warn(f"token {result['id']}: {', '.join(result['scopes'])} in {where}; expires: {ends}. It is shown only once:")
    say(result["token"])

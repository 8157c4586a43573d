"""Define ``driftline trust``, for the configuration files that commands find in parent folders."""

from __future__ import annotations

from typing import Annotated

import typer

from driftline.flows.commands.app import DONE, app
from driftline.flows.output.plain_text import say


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

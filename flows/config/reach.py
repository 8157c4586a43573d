"""Which sources of a workspace a front door may read: those that the caller has named, not those that it names."""

from __future__ import annotations

from pathlib import Path

from driftline.flows.config.locate import WORKSPACE_VARIABLE
from driftline.flows.config.paths import local_path
from driftline.flows.config.surroundings import Surroundings
from driftline.flows.config.toml_file import named_or_trusted_config
from driftline.storage.workspace.reach import Reach


def reach_of(
    workspace: str, given: str | None, config: str | None = None, surroundings: Surroundings | None = None
) -> Reach:
    """The sources of ``workspace`` that may be read; ``given`` is its name if the caller has named it, ``config`` a
    configuration that the caller has named.

    The places that a named or trusted ``driftline.toml`` lists may be read. Beyond them no remote source may; a local
    one may if the workspace was named, else if it lies in the folder in which the workspace was found.
    Raises UsageError.
    """
    around = surroundings or Surroundings.current()
    trusted = named_or_trusted_config(config, around)
    places = tuple(source.uri for source in trusted.sources) if trusted is not None else ()
    if given or around.environ.get(WORKSPACE_VARIABLE):
        return Reach(places)
    found = local_path(workspace)
    return Reach(places, str(Path(found).resolve().parent) if found is not None else None)

"""Let the table of a new embedding take over, once every source is complete in it (DESIGN, "Embedding")."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow.compute as pc

from driftline.storage.workspace import Workspace
from driftline.tasks.context import ModelRef


def complete_reembedding(workspace: Workspace, model: ModelRef, replaces: str, tell: Callable[[str], None]) -> bool:
    """Make ``model`` the current one if all documents of all sources carry its fingerprint; says what is missing.

    Until then the old table serves. Raises FingerprintMismatch if a third model has become current meanwhile.
    """
    missing = []
    for entity, _ in workspace.sources():
        manifest = workspace.documents(entity).read(columns=["fingerprint", "reason"])
        documents = manifest.filter(pc.is_null(manifest["reason"]))
        if pc.any(pc.not_equal(documents["fingerprint"], model.fingerprint)).as_py():
            missing.append(str(entity))
    if missing:
        tell(f"The old model serves until these sources are embedded anew, too: {', '.join(missing)}")
        return False
    workspace.bind_model(model.name, model.fingerprint, model.dim, instead_of=replaces)
    return True

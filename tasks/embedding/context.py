"""What a task works with: the workspace and the embedder, opened once in each process."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from driftline.storage.errors import FingerprintMismatch
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.models import fingerprint, resolve_model

if TYPE_CHECKING:
    from driftline.storage.model import Embedder

PLAN_AFTER_LINES = 10_000
"""So many lines are tokenized in a fifth of the second that it takes to plan how to cut lines into words."""


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model by name, and the fingerprint and dimension that it must have on whichever host it is loaded."""

    name: str
    fingerprint: str
    dim: int


@dataclass(slots=True)
class TaskContext:
    """The second argument of every task. Pickles without the loaded model; a worker loads its own, once."""

    workspace: Workspace
    model: ModelRef
    _embedder: Embedder | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def embedder(self) -> Embedder:
        """The embedder, loaded at the first use. Raises ModelNotFound, FingerprintMismatch."""
        with self._lock:
            if self._embedder is None:
                self._embedder = load_embedder(self.model)
            return self._embedder

    def __reduce__(self) -> tuple[object, ...]:
        return TaskContext, (self.workspace, self.model)


@lru_cache(maxsize=2)
def load_embedder(model: ModelRef) -> Embedder:
    """Load ``model`` from this host, once in a process. Raises ModelNotFound, FingerprintMismatch."""
    from driftline.tasks.embedding.embedder import WordTableEmbedder
    from driftline.tasks.embedding.models import load_parts

    files = resolve_model(model.name)
    found = fingerprint(files)
    if found != model.fingerprint:
        raise FingerprintMismatch(
            f"The model on this host has another fingerprint ({found}, not {model.fingerprint})",
            model.name,
            "Install the same model and the same version of Driftline on every host.",
        )
    return WordTableEmbedder(load_parts(files), found, plan_after=PLAN_AFTER_LINES)

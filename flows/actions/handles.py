"""What actions keep open between calls, and close with the engine that they are registered for."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, MutableSequence
from typing import TYPE_CHECKING, Any

from driftline.flows.config.paths import absolute_workspace, is_plain_name, local_path
from driftline.flows.config.reach import reach_of
from driftline.flows.config.surroundings import Surroundings
from driftline.storage.errors import UsageError
from driftline.storage.workspace.workspace import Workspace

if TYPE_CHECKING:
    from driftline.storage.model import Embedder

CLOSE_HOOKS = ("register_cleanup", "add_close_hook", "on_close")
"""Methods of an engine that take a function to call when it closes, or lists of such functions; the first counts."""


class Handles:
    """Open workspaces, and the embedders of ad-hoc searches. Threads may share it; it opens nothing after ``close``."""

    def __init__(self, home: str | None = None) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._workspaces: dict[str, Workspace] = {}
        self._embedders: dict[str | None, Embedder] = {}
        self._closed = False

    def locate(self, name: str) -> str:
        """The URI or absolute path of a workspace: a plain name lies in the home, a path where it says."""
        if is_plain_name(name):
            around = Surroundings.current()
            return absolute_workspace(name, around.cwd, self._home or around.workspaces_home)
        path = local_path(name)
        return name if path is None else os.path.abspath(path)

    def workspace(self, uri: str) -> Workspace:
        """The workspace at ``uri`` as it is now. Raises WorkspaceNotFound and its kin."""
        self._check()
        with self._lock:
            known = self._workspaces.get(uri)
        opened = Workspace.open(uri, reach=reach_of(uri, uri)) if known is None else known.reread()
        with self._lock:
            self._workspaces[uri] = opened
        return opened

    def embedder(self, model: str | None = None) -> Embedder:
        """The embedder of ``model``, by default the default one, with its table of words. Raises ModelNotFound."""
        self._check()
        from driftline.tasks.search.grep import open_embedder

        with self._lock:
            if model not in self._embedders:
                self._embedders[model] = open_embedder(model)
            return self._embedders[model]

    def close(self) -> None:
        """Let go of everything; may be called again."""
        with self._lock:
            self._closed = True
            self._workspaces.clear()
            self._embedders.clear()

    def _check(self) -> None:
        if self._closed:
            raise UsageError("The engine of this action has been closed", fix="Register the actions with a new one.")


def close_with(engine: Any, close: Callable[[], None]) -> None:
    """Have ``close`` called when ``engine`` closes, or else when it is collected; without an engine, never."""
    for name in CLOSE_HOOKS:
        hook = getattr(engine, name, None)
        if isinstance(hook, MutableSequence):
            hook.append(close)
            return
        if callable(hook):
            hook(close)
            return
    try:
        weakref.finalize(engine, close)
    except TypeError:
        return  # None, or an object that cannot be watched: the handles go when the registry does

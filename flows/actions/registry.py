"""Register some or all actions next to an engine's own, and adapt their calls.

Arguments are checked, and results and errors become dictionaries, here and only here. An error is ``{success: False,
error, error_type}``; unexpected exceptions are bugs, and propagate. ``Handles`` keeps workspaces open between calls and
closes them when the engine closes.
"""

from __future__ import annotations

import difflib
import functools
import os
import threading
import traceback
import weakref
from collections.abc import Callable, Collection, Mapping, MutableMapping, MutableSequence
from typing import TYPE_CHECKING, Any, TypeAlias

from driftline.flows.actions.arguments import Parameters
from driftline.flows.config.which_workspace import source_access
from driftline.flows.config.workspace_names import NAME_SIGN, absolute_workspace, is_plain_name, local_path
from driftline.storage.errors import (
    AccessDenied,
    CommitConflict,
    CorruptFile,
    DeletionRefused,
    DriftlineError,
    LeaseHeld,
    MissingExtra,
    ModelNotFound,
    RecallTooLow,
    SourceNotFound,
    UnsafeStore,
    UsageError,
    WorkspaceNotFound,
)
from driftline.storage.layout import CONFIG
from driftline.storage.workspace.workspace import Workspace

if TYPE_CHECKING:
    from driftline.storage.embedding import Embedder

Result: TypeAlias = dict[str, Any]
Action: TypeAlias = Callable[..., Result]

_ERROR_TYPES: tuple[tuple[type[DriftlineError], str], ...] = (
    (WorkspaceNotFound, "workspace_not_found"),
    (CorruptFile, "index_corrupt"),
    (SourceNotFound, "file_not_found"),
    (MissingExtra, "prerequisite_missing"),
    (ModelNotFound, "prerequisite_missing"),
    (AccessDenied, "storage_error"),
    (UnsafeStore, "storage_error"),
    (UsageError, "validation_error"),
    (CommitConflict, "lancedb_error"),
    (RecallTooLow, "lancedb_error"),
    (DeletionRefused, "deletion_refused"),
    (LeaseHeld, "lease_held"),
    (DriftlineError, "storage_error"),
)
"""The ``error_type`` of each error class; the first matching class wins."""


class ActionError(DriftlineError):
    """A failure with its own ``error_type`` and additional fields for the dictionary."""

    def __init__(self, error_type: str, what: str, **details: Any) -> None:
        super().__init__(what)
        self.error_type = error_type
        self.details = details

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(ActionError, self.error_type, self.what, **self.details), ()


def documented_type(error: DriftlineError) -> str:
    """Return the ``error_type`` of an error in the search actions."""
    return next(name for kind, name in _ERROR_TYPES if isinstance(error, kind))


def own_type(error: DriftlineError) -> str:
    """Return the ``error_type`` of an error in the memory actions: its kind, or ``validation_error``."""
    return "validation_error" if type(error) is UsageError else error.kind


def action(
    function: Action,
    on_failure: Mapping[str, Any] | None = None,
    *,
    type_of: Callable[[DriftlineError], str] = documented_type,
) -> Action:
    """Wrap ``function`` as an action: its result gets ``success``, and errors become dictionaries with ``on_failure``.

    ``arguments`` defines how its arguments are parsed; positional arguments come after ``state``. ``type_of`` maps an
    error to its ``error_type``.
    """
    parameters = Parameters.of(function)

    @functools.wraps(function)
    def call(state: Any = None, *positional: Any, **named: Any) -> Result:
        try:
            return {"success": True, **function(state, **parameters.read(positional, named))}
        except ActionError as error:
            failure = {"error": str(error), "error_type": error.error_type, **error.details}
        except DriftlineError as error:
            error_type = type_of(error)
            failure = {"error": str(error), "error_type": error_type}
            if error_type == "prerequisite_missing":
                failure["install_hint"] = error.fix
        except Exception as error:  # Lance's errors have no common base
            error_type = "lancedb_error" if _comes_from_lance(error) else "storage_error"
            if error_type == "storage_error" and not isinstance(error, OSError):
                raise
            failure = {"error": f"{type(error).__name__}: {error}", "error_type": error_type}
        failure["error"] = failure["error"].encode(errors="backslashreplace").decode()  # names may contain surrogates
        return {"success": False, **failure, **(on_failure or {})}

    return call


def _comes_from_lance(error: Exception) -> bool:
    """Return whether the traceback of a built-in exception shows that Lance raised it."""
    frames = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(str(name).partition(".")[0] in ("lance", "lancedb") for name in frames)


CLOSE_HOOKS = ("register_cleanup", "add_close_hook", "on_close")
"""Engine methods that accept a function to call on close, or lists of such functions; the first that exists is used."""


def _has_workspace(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, CONFIG))


class Handles:
    """Open workspaces and the embedders of ad-hoc searches. Thread-safe; opens nothing after ``close``."""

    def __init__(self, home: str | None = None) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._workspaces: dict[str, Workspace] = {}
        self._embedders: dict[str | None, Embedder] = {}
        self._closed = False

    def locate(self, name: str) -> str:
        """Return the URI or absolute path of a workspace. A name, with or without @, is looked up in the home folder.

        A name without @ falls back to a workspace of that name in the current folder.
        """
        if is_plain_name(name):
            named = absolute_workspace(f"{NAME_SIGN}{name}", self._home)
            here = os.path.realpath(name)
            return here if _has_workspace(here) and not _has_workspace(named) else named
        if name.startswith(NAME_SIGN):
            return absolute_workspace(name, self._home)
        path = local_path(name)
        return name if path is None else os.path.abspath(path)

    def workspace(self, uri: str) -> Workspace:
        """Return the current workspace at ``uri``. Raises WorkspaceNotFound and similar errors."""
        self._check()
        with self._lock:
            known = self._workspaces.get(uri)
        opened = Workspace.open(uri, access=source_access(uri, uri)) if known is None else known.reread()
        with self._lock:
            self._workspaces[uri] = opened
        return opened

    def embedder(self, model: str | None = None) -> Embedder:
        """Return the embedder of ``model`` (default: the default model), with its word table.

        Raises ModelNotFound.
        """
        self._check()
        from driftline.tasks.search.unindexed import open_embedder

        with self._lock:
            if model not in self._embedders:
                self._embedders[model] = open_embedder(model)
            return self._embedders[model]

    def close(self) -> None:
        """Close everything. Idempotent."""
        with self._lock:
            self._closed = True
            self._workspaces.clear()
            self._embedders.clear()

    def _check(self) -> None:
        if self._closed:
            raise UsageError("This action's engine has been closed", fix="Register the actions with a new engine.")


def close_with(engine: Any, close: Callable[[], None]) -> None:
    """Call ``close`` when ``engine`` closes or, if it has no close hook, when it is garbage-collected."""
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
        return  # None, or no support for weak references: the handles live as long as the registry


OWN_PREFIX = "driftline."
"""Prefix for actions whose plain names the engine resolves to its own actions."""
_REGISTRIES = ("actions_registry", "actions", "registry")
"""Attributes where engines keep their action registry; the first mapping is used."""


def chosen(only: Collection[str] | str | None, groups: Mapping[str, Mapping[str, Action]]) -> set[str]:
    """Return the names of the actions that ``only`` selects, directly or by group; None selects all.

    Raises UsageError for an unknown name.
    """
    actions = {name: {name} for group in groups.values() for name in group}
    if only is None:
        return set(actions)
    known = {**actions, **{group: set(names) for group, names in groups.items()}}
    named = [only] if isinstance(only, str) else list(only)
    for name in named:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            fix = f"Did you mean {near[0]!r}?" if near else f"Known names: {', '.join(known)}."
            raise UsageError("Unknown action or group", repr(name), fix)
    return set().union(*(known[name] for name in named))


class NamespacedName(str):
    """An action name for an engine registry that is still empty.

    Engines copy the entries to their own registry, either as ``f"{namespace}.{name}"`` or, without a namespace, under
    the name itself, replacing their own action. Which of the two cannot be known in advance, so formatting and
    prepending yield the plain name (``ltm.store``), while the key itself has OWN_PREFIX (``driftline.ltm.store``).
    """

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return format(self.removeprefix(OWN_PREFIX), spec)

    def __radd__(self, namespace: str) -> str:
        return namespace + self.removeprefix(OWN_PREFIX)


def bind(
    registry: Any, actions: Mapping[str, Action], engine: Any = None, *, replace: bool = False, **given: Any
) -> None:
    """Add ``actions`` to ``registry``, with the ``given`` arguments bound.

    Each action gets two names: its own, and ``actions.`` with its name and an underscore. Unless ``replace`` is set,
    existing names are kept, including names of the engine's own actions. An engine overwrites its own actions with our
    entries if the registry is empty, so such entries get OWN_PREFIX, and use their plain names only within a namespace
    (``NamespacedName``).
    """
    own = _registry_of(engine)
    for name, function in actions.items():
        bound = _bound(function, given)
        for known_as in (name, f"actions.{name.replace('.', '_')}"):
            if replace:
                _put(registry, known_as, bound)
            elif own is not None and known_as in own and not _is_ours(own[known_as]):
                target = own if isinstance(own, MutableMapping) else registry
                _put(target, OWN_PREFIX + known_as, bound)
                if registry is not own:
                    _put(registry, NamespacedName(OWN_PREFIX + known_as), bound)
            elif not _holds(registry, known_as):
                _put(registry, known_as, bound)


def _bound(function: Action, given: Mapping[str, Any]) -> Action:
    @functools.wraps(function)
    def call(*positional: Any, **named: Any) -> Result:
        return function(*positional, **{**named, **given})

    return call


def _registry_of(engine: Any) -> Mapping[str, Any] | None:
    found = (getattr(engine, name, None) for name in _REGISTRIES)
    return next((each for each in found if isinstance(each, Mapping)), None)


def _is_ours(function: object) -> bool:
    return getattr(function, "__module__", "").startswith("driftline.flows.actions.")


def _put(registry: Any, name: str, function: Action) -> None:
    if isinstance(registry, MutableMapping):
        registry[name] = function
    else:
        registry.register(name, function)


def _holds(registry: Any, name: str) -> bool:
    if hasattr(registry, "__contains__"):
        return name in registry
    return hasattr(registry, "get") and registry.get(name) is not None

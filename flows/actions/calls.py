"""How an action is called: arguments are checked, and results and errors are dictionaries, here and only here.

An error is ``{success: False, error, error_type}``. What nobody foresaw is raised, as a defect.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from driftline.flows.actions.arguments import Parameters
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
"""The first class that fits decides."""


class ActionError(DriftlineError):
    """A failure with an ``error_type`` of its own, and what its dictionary carries besides."""

    def __init__(self, error_type: str, what: str, **details: Any) -> None:
        super().__init__(what)
        self.error_type = error_type
        self.details = details

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(ActionError, self.error_type, self.what, **self.details), ()


def documented_type(error: DriftlineError) -> str:
    """The ``error_type`` of an error in the actions of search."""
    return next(name for kind, name in _ERROR_TYPES if isinstance(error, kind))


def own_type(error: DriftlineError) -> str:
    """The ``error_type`` of an error in the actions of memory: its kind, or ``validation_error`` of wrong arguments."""
    return "validation_error" if type(error) is UsageError else error.kind


def action(
    function: Action,
    on_failure: Mapping[str, Any] | None = None,
    *,
    type_of: Callable[[DriftlineError], str] = documented_type,
) -> Action:
    """``function`` as an action: its result gets ``success``; errors become dictionaries, with ``on_failure`` added.

    Its arguments are read as ``arguments`` says; positional ones come after ``state``. ``type_of`` gives the
    ``error_type`` of an error.
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
        except Exception as error:  # Lance has no base of its own; what is neither its nor the system's is raised again
            error_type = "lancedb_error" if _comes_from_lance(error) else "storage_error"
            if error_type == "storage_error" and not isinstance(error, OSError):
                raise
            failure = {"error": f"{type(error).__name__}: {error}", "error_type": error_type}
        failure["error"] = failure["error"].encode(errors="backslashreplace").decode()  # names may hold surrogates
        return {"success": False, **failure, **(on_failure or {})}

    return call


def _comes_from_lance(error: Exception) -> bool:
    """Lance raises built-in exceptions: by the frames that they passed."""
    frames = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(str(name).partition(".")[0] in ("lance", "lancedb") for name in frames)

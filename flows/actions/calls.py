"""How an action is called: arguments are checked, and results and errors are dictionaries, here and only here.

An error is ``{success: False, error, error_type}``. What nobody foresaw is raised, as a defect.
"""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError, validate_call

from driftline.storage.errors import (
    AccessDenied,
    CommitConflict,
    CorruptFile,
    DriftlineError,
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
    (DriftlineError, "storage_error"),
)
"""The first class that fits decides."""


def _text(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _listed(value: object) -> object:
    value = _text(value)
    return [value] if isinstance(value, str) else value


Query: TypeAlias = Annotated[str, StringConstraints(pattern=r"\S")]
Name: TypeAlias = Annotated[str, BeforeValidator(_text), StringConstraints(min_length=1)]
Names: TypeAlias = Annotated[list[Name], BeforeValidator(_listed)]
"""One name or a list of them."""
SomeNames: TypeAlias = Annotated[Names, Field(min_length=1)]
Version: TypeAlias = Annotated[str, Field(pattern=r"^\d+(\.\d+)*$", coerce_numbers_to_str=True)]
Count: TypeAlias = Annotated[int, Field(ge=0)]
Positive: TypeAlias = Annotated[int, Field(ge=1)]
Distance: TypeAlias = Annotated[float, Field(ge=0, le=2)]
Seconds: TypeAlias = Annotated[float, Field(gt=0)]


class ActionError(DriftlineError):
    """A failure with an ``error_type`` of its own, and what its dictionary carries besides."""

    def __init__(self, error_type: str, what: str, **details: Any) -> None:
        super().__init__(what)
        self.error_type = error_type
        self.details = details

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(ActionError, self.error_type, self.what, **self.details), ()


def action(function: Action, on_failure: Mapping[str, Any] | None = None) -> Action:
    """``function`` as an action: its result gets ``success``; errors become dictionaries, with ``on_failure`` added.

    Arguments are converted to the types of its parameters where that is safe, since templates make strings of numbers.
    """
    checked = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(function)

    @functools.wraps(function)
    def call(state: Any = None, **arguments: Any) -> Result:
        try:
            return {"success": True, **checked(state, **arguments)}
        except ValidationError as error:
            failure = {"error": _told(error), "error_type": "validation_error"}
        except ActionError as error:
            failure = {"error": str(error), "error_type": error.error_type, **error.details}
        except DriftlineError as error:
            error_type = next(name for kind, name in _ERROR_TYPES if isinstance(error, kind))
            failure = {"error": str(error), "error_type": error_type}
            if error_type == "prerequisite_missing":
                failure["install_hint"] = error.fix
        except Exception as error:  # Lance has no base of its own; what is neither its nor the system's is raised again
            error_type = "lancedb_error" if _comes_from_lance(error) else "storage_error"
            if error_type == "storage_error" and not isinstance(error, OSError):
                raise
            failure = {"error": f"{type(error).__name__}: {error}", "error_type": error_type}
        return {"success": False, **failure, **(on_failure or {})}

    return call


def bind(registry: Any, actions: Mapping[str, Action], **given: Any) -> None:
    """Put ``actions`` into ``registry`` with the arguments ``given``; names that are there already stay.

    Each is there twice: by its name, and as ``actions.`` and its name with an underscore.
    """
    for name, function in actions.items():
        bound = functools.update_wrapper(functools.partial(function, **given), function)
        for known_as in (name, f"actions.{name.replace('.', '_')}"):
            if not _holds(registry, known_as):
                if isinstance(registry, MutableMapping):
                    registry[known_as] = bound
                else:
                    registry.register(known_as, bound)


def _holds(registry: Any, name: str) -> bool:
    if hasattr(registry, "__contains__"):
        return name in registry
    return hasattr(registry, "get") and registry.get(name) is not None


def _told(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, part['loc']))}: {part['msg']}" for part in error.errors())


def _comes_from_lance(error: Exception) -> bool:
    """Lance raises built-in exceptions: by the frames that they passed."""
    frames = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(str(name).partition(".")[0] in ("lance", "lancedb") for name in frames)

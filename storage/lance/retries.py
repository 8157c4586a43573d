"""Tries operations of Lance again whose repetition does no harm, while the store fails in passing.

Lance retries requests, but not what follows them: a listing that breaks off in its body fails at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from driftline.storage.errors import StorageError
from driftline.storage.lance.errors import is_lance_failure
from driftline.storage.objects import retries

_NETWORK = re.compile(
    r"error sending request|HTTP error|response body|timed out|timeout|connection|status code: (?:408|429|5\d\d)"
    r"|os error 11[013]",
    re.I,
)
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def is_network_failure(error: BaseException) -> bool:
    """Whether Lance failed since the store, or the way to it, did; the files may be sound."""
    return is_lance_failure(error) and bool(_NETWORK.search(str(error)))


def persistently(operation: Callable[[], _Result]) -> _Result:
    """The result of an idempotent ``operation``; raises what its last attempt raises."""
    return retries.persistently(operation, _may_pass)


def persistent(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """``function``, which is idempotent, as ``persistently`` calls it."""

    @wraps(function)
    def persist(*arguments: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
        return persistently(lambda: function(*arguments, **options))

    return persist


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, StorageError) and error.__cause__ is not None:
        error = error.__cause__
    return is_network_failure(error) and not retries.are_used_up(str(error))

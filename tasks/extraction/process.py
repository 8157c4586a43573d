"""Run an extractor in a separate process with limits, so a malicious document can crash only that process.

The process has no network access if the kernel allows that, writes no files, gets no credentials from the environment,
and responds in JSON, which is never executed here. It is reused for the next document; a process that dies, hangs, or
exceeds its limits is replaced (``storage/helper_process.py``).
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import resource
import signal
import sys
import traceback
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from typing import Any, NoReturn

from driftline.storage import helper_process
from driftline.storage.documents import SkipReason
from driftline.storage.helper_process import (
    HelperDied,
    HelperPool,
    HelperProcess,
    environment_of_helper,
    limit_cpu_time,
)

log = logging.getLogger(__name__)

CPU_SECONDS = 60
"""CPU time limit per document; a PDF of thousands of pages takes less."""
WALL_SECONDS = 600.0
"""Wall-clock time limit per document, long enough even on a heavily overloaded machine."""
MEMORY_BYTES = 2**30
"""Address space beyond what the process has before its first document."""
MAX_ANSWER_BYTES = 512 * 2**20
_SERVE = "from driftline.tasks.extraction.process import serve; serve({cpu_seconds}, {memory_bytes})"
_KEPT_VARIABLES = frozenset(("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "SYSTEMROOT", "TMPDIR", "TZ"))
_SET_VARIABLES = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Variables that limit threads and memory pools: each would reserve address space, which counts against the limit.
"""
_FORBIDDEN = (
    "socket.",
    "subprocess.",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "ctypes.dlopen",
)
_LIBRARIES = ("lxml.etree", "pypdfium2")
"""Loaded before the limits are set, because the limits forbid loading native libraries."""
_NEW_USER_AND_NETWORK = 0x10000000 | 0x40000000


class Refused(Exception):
    """Raised when an extractor rejects a file; ``reason`` is the SkipReason."""

    def __init__(self, reason: SkipReason) -> None:
        super().__init__(str(reason))
        self.reason = reason


def extract_apart(target: str, data: bytes) -> dict[str, Any]:
    """Call ``target``, a function given as ``module:name``, with ``data``; return its ``to_dict``. Raises Refused."""
    try:
        answer = _pool().ask(WALL_SECONDS, _decoded, data, target.encode())
    except HelperDied as error:
        if error.code in (-signal.SIGXCPU, -signal.SIGKILL):
            raise Refused(SkipReason.SLOW) from error
        raise Refused(SkipReason.BOMB if error.is_beyond_limit else SkipReason.DAMAGED) from error
    except TimeoutError as error:
        raise Refused(SkipReason.SLOW) from error
    except (ValueError, RecursionError) as error:  # not JSON, or nested too deeply
        raise Refused(SkipReason.DAMAGED) from error
    if "reason" in answer:
        if "error" in answer:  # damage, or a bug of the extractor
            log.debug("%s: %.200r", target, answer["error"])
        known = answer["reason"] in [*SkipReason]
        raise Refused(SkipReason(answer["reason"]) if known else SkipReason.DAMAGED)
    return answer


@cache
def _pool() -> HelperPool[HelperProcess]:
    code = _SERVE.format(cpu_seconds=CPU_SECONDS, memory_bytes=MEMORY_BYTES)
    return HelperPool(partial(HelperProcess, code, quiet=True, most_bytes=MAX_ANSWER_BYTES), _environment)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in _KEPT_VARIABLES}
    return environment_of_helper({**kept, **_SET_VARIABLES})


def _decoded(answer: bytes) -> dict[str, Any]:
    found = json.loads(answer)
    if not isinstance(found, dict):
        raise ValueError("no answer")
    return found


# -- in the other process ------------------------------------------------------------------------


def serve(cpu_seconds: int, memory_bytes: int) -> NoReturn:
    """Read documents from standard input and write their text to standard output until the input is closed."""

    @cache
    def limit_once() -> None:  # not before the first document is read and its extractor imported
        _limit_memory_and_files(memory_bytes)

    def answer(data: bytes, target: bytes) -> bytes:
        module, _, name = target.decode().partition(":")
        function = getattr(import_module(module), name)
        limit_once()
        limit_cpu_time(cpu_seconds)
        return _answer(function, data)

    helper_process.serve(answer, begin=_prepare)


def _prepare() -> None:
    _leave_network()
    for library in _LIBRARIES:
        with suppress(ImportError):
            import_module(library)


def _answer(function: Any, data: bytes) -> bytes:
    try:
        return json.dumps(function(data).to_dict()).encode()
    except Refused as refused:
        return json.dumps({"reason": refused.reason}).encode()
    except MemoryError:  # a decompression bomb; less memory may be left for the next document
        raise
    except Exception as error:  # libraries raise anything for malformed input
        place = traceback.extract_tb(error.__traceback__)[-1]  # not the message: it may quote the document
        found = f"{type(error).__name__} at {os.path.basename(place.filename)}:{place.lineno}"
        return json.dumps({"reason": SkipReason.DAMAGED, "error": found}).encode()


def _leave_network() -> None:
    """Move to a network namespace without interfaces, if the kernel permits it."""
    unshare = getattr(ctypes.CDLL(None), "unshare", None)
    if unshare is not None:
        unshare(_NEW_USER_AND_NETWORK)


def _limit_memory_and_files(memory_bytes: int) -> None:
    """Limit the process's memory, and prevent it from writing files, connecting to hosts or starting processes."""
    with suppress(OSError, ValueError):  # not available on every system
        with open("/proc/self/statm", "rb") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory_bytes, used + memory_bytes))
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, 0))
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event.startswith(_FORBIDDEN) or (event == "open" and _writes(arguments)):
        raise PermissionError(f"A document must not cause {event}")


def _writes(arguments: tuple[Any, ...]) -> bool:
    _, mode, flags = arguments
    return bool(mode and set(mode) & set("wax+")) or bool(flags and flags & (os.O_WRONLY | os.O_RDWR))

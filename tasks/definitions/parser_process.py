"""Find the definitions of many documents in another process, because parsers hold the interpreter lock."""

from __future__ import annotations

import atexit
import logging
import marshal
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import IO, Any

from driftline.storage.lines.outline import Definition
from driftline.tasks.definitions.outlines import definitions

log = logging.getLogger(__name__)

MIN_CHARACTERS = 500_000
"""Parsing fewer characters takes a tenth of a second, which is not worth another process."""
EXIT_SECONDS = 2.0
_LENGTH = struct.Struct("<Q")
_SERVE = "from driftline.tasks.definitions.parser_process import serve; serve()"

Document = tuple[str, str]
"""Path and text."""


def definitions_in_worker(documents: Sequence[Document], *, allowed: bool) -> Callable[[], list[list[Definition]]]:
    """Begin to find the definitions of ``documents``; calling the result waits for them, in the same order.

    The call itself parses the documents if they are few, if there is one core, or if another process is not
    ``allowed``.
    """
    few = sum(len(text) for _, text in documents) < MIN_CHARACTERS
    if few or not allowed or (os.cpu_count() or 1) < 2:
        return lambda: [definitions(path, text) for path, text in documents]
    pending: Future[list[list[Definition]]] = _waiting().submit(_request_definitions, list(documents))
    return pending.result


def _request_definitions(documents: list[Document]) -> list[list[Definition]]:
    answer = _helper().ask(documents)
    if answer is None:
        return [definitions(path, text) for path, text in documents]
    return [[Definition(*each) for each in found] for found in answer]


@cache
def _waiting() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="driftline-definitions")


@cache
def _helper() -> _Helper:
    return _Helper()


class _Helper:
    """The process that parses.

    It starts with the first request, and ends when its input ends, at the latest with this process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_lost = False

    def ask(self, documents: list[Document]) -> list[list[tuple[str, str, int, int, int]]] | None:
        """Return the fields of the definitions of each document; None if no process answers."""
        with self._lock:
            if self._is_lost:
                return None
            try:
                process = self._process or self._start()
                assert process.stdin is not None
                assert process.stdout is not None
                _send(process.stdin, documents)
                found: list[list[tuple[str, str, int, int, int]]] = _received(process.stdout)
            except (OSError, EOFError) as error:
                log.debug("Definitions are found in this process: %s", error)
                self._is_lost = True
                self._end()
                return None
            return found

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,  # Ctrl-C is for this process
        )
        atexit.register(self._end)
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.communicate(timeout=EXIT_SECONDS)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()


def serve() -> None:
    """Read documents from standard input and write their definitions to standard output, until the input ends."""
    while True:
        try:
            documents: list[Document] = _received(sys.stdin.buffer)
        except EOFError:
            return
        _send(
            sys.stdout.buffer,
            [
                [(each.kind, each.name, each.line, each.first, each.last) for each in definitions(*document)]
                for document in documents
            ],
        )


def _send(pipe: IO[bytes], value: list[Any]) -> None:
    data = marshal.dumps(value)
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _received(pipe: IO[bytes]) -> list[Any]:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError("The worker process has ended")
    (length,) = _LENGTH.unpack(head)
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError("The worker process ended while writing")
    return list(marshal.loads(data))

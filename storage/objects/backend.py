"""What a place that holds objects must offer: the port between ``objects`` and its two adapters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object: ``path`` relative to the workspace, ``modified`` by the store's own clock, with a time zone.

    ``version`` (an etag or a generation) changes with the content. Only versions from ``get_versioned``, ``head``,
    ``create`` and ``replace`` may be given to ``replace``: listings of Google Cloud Storage and Azure spell others.
    """

    path: str
    size_bytes: int
    modified: datetime
    version: str


class Backend(Protocol):
    """Conditional writes, reads and listings of one root; paths are checked already.

    Methods raise the errors of ``storage/errors.py``. AlreadyExists and PreconditionFailed may concern a write of
    our own whose acknowledgement was lost and that the client library has repeated.
    """

    lance_options: dict[str, str] | None

    def lance_uri(self, path: str) -> str: ...

    def get(self, path: str) -> tuple[bytes, str]: ...

    def open_input(self, path: str) -> pa.NativeFile: ...

    def head(self, path: str) -> ObjectInfo | None: ...

    def create(self, path: str, data: bytes) -> str: ...

    def replace(self, path: str, data: bytes, version: str) -> str: ...

    def walk(self, prefix: str, *, recursive: bool) -> Iterator[ObjectInfo]: ...

    def directories(self, prefix: str) -> list[str]: ...

    def delete(self, paths: Sequence[str]) -> None: ...

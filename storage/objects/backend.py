"""The interface of object stores that ``ObjectStore`` uses; ``Bucket`` and ``LocalDisk`` implement it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object: ``path`` is relative to the workspace; ``modified`` is the store's own time, with a time zone.

    ``version`` (an etag or a generation) changes with the content. ``replace`` accepts only versions from
    ``get_versioned``, ``head``, ``create`` and ``replace``: listings of Google Cloud Storage and Azure spell them
    differently.
    """

    path: str
    size_bytes: int
    modified: datetime
    version: str


class Backend(Protocol):
    """Conditional writes, reads and listings below one root; the caller has validated the paths.

    Methods raise the errors of ``storage/errors.py``. AlreadyExists and PreconditionFailed may stem from our own write
    if its acknowledgement was lost and the client library retried it.
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

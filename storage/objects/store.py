"""Access a workspace's objects, on a local disk or in a bucket: conditional writes, reads, listings and deletions.

A cache of immutable objects avoids repeated bucket requests.
"""

from __future__ import annotations

import atexit
import builtins
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from cachetools import LRUCache

from driftline.storage.errors import (
    AlreadyExists,
    PreconditionFailed,
    StorageError,
    UnknownScheme,
    UnsafeStore,
    UsageError,
    may_hold_secret,
)
from driftline.storage.globs import is_unicode
from driftline.storage.layout import ByteRange, ObjectInfo
from driftline.storage.objects.local_disk import TEMPORARY_PREFIX, LocalDisk
from driftline.storage.objects.store_requests import REQUESTS_AT_ONCE
from driftline.storage.option_table import path_or_uri
from driftline.storage.shared_cache import SharedCache

if TYPE_CHECKING:
    import pyarrow as pa

MAX_CACHED_BYTES = 64 * 1024 * 1024
"""Size of the cache of immutable bucket objects, per open store: enough for the deltas of many commits."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_CHAINED = re.compile(r"::[A-Za-z][A-Za-z0-9+.-]+:/")
_FORBIDDEN = re.compile(r"[\\\x00-\x1f\x7f\ud800-\udfff]")
_ABFS_HOST = re.compile(r"(?P<container>[^@]+)@(?P<account>[^.]+)\.(?:dfs|blob)\.core\.windows\.net")
_USE_ANOTHER_STORE = "Keep the workspace in a store that honours If-None-Match and If-Match, or on a local disk."


class Backend(Protocol):
    """Conditional writes, reads and listings under one root; the caller has validated the paths.

    Methods raise errors from ``storage/errors.py``. AlreadyExists and PreconditionFailed may stem from our own write if
    its acknowledgement was lost and the client library retried it.
    """

    lance_options: dict[str, str] | None

    def lance_uri(self, path: str) -> str: ...

    def cached_lance(self, path: str) -> tuple[str, dict[str, str]] | None: ...

    def read_ahead(self, ranges: Mapping[str, ByteRange]) -> None: ...

    def open_ahead(self, tables: Iterable[str]) -> None: ...

    def newest_version(self, table: str) -> tuple[str, str] | None: ...

    def only_etag(self, path: str) -> tuple[str, str]: ...

    def get(self, path: str) -> tuple[bytes, str]: ...

    def open_input(self, path: str) -> pa.NativeFile: ...

    def head(self, path: str) -> ObjectInfo | None: ...

    def create(self, path: str, data: bytes, same_as: str | None = None) -> str: ...

    def replace(self, path: str, data: bytes, version: str) -> str: ...

    def walk(self, prefix: str, *, recursive: bool) -> Iterator[ObjectInfo]: ...

    def directories(self, prefix: str) -> list[str]: ...

    def delete(self, paths: Sequence[str]) -> None: ...

    def sync(self, paths: Iterable[str]) -> None: ...


class ObjectStore:
    """A workspace's objects; paths are relative to it and use ``/``.

    Errors include the operation and the object, and never contain credentials. A pickled instance contains only the URI
    and the caller's storage options, never credentials from the environment. Methods that access the store also raise
    AccessDenied, StorageError.
    """

    def __init__(self, uri: str, backend: Backend, storage_options: Mapping[str, str]) -> None:
        self.uri = uri
        self._backend = backend
        self._storage_options = dict(storage_options)
        self._cache: SharedCache[str, pa.Buffer] = SharedCache(
            LRUCache(0 if self.is_local else MAX_CACHED_BYTES, lambda buffer: buffer.size)
        )

    @classmethod
    def open(cls, uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> ObjectStore:
        """Open the store at a path, or at a ``file``, ``memory``, ``s3``, ``gs``, ``az`` or ``abfs[s]`` URI.

        Does not connect or create anything. ``memory://`` is a new private temporary directory, removed at exit. Raises
        UnknownScheme, UsageError.
        """
        options = dict(storage_options or {})
        uri = path_or_uri("A workspace", uri)
        match = _SCHEME.match(uri)
        if match is None and _CHAINED.search(uri):  # may be a secret, even in a path
            raise UnknownScheme("Workspaces do not support chained URIs", "", "Use a path, or s3://, gs://, az://.")
        scheme = match[1].lower() if match else "file"
        match scheme:
            case "memory":
                root = _private_directory()
                return cls(root, LocalDisk(root), {})
            case "file":
                path = unquote(urlsplit(uri).path) if match else os.path.expanduser(uri)
                if not path:
                    raise UsageError("The workspace URI has no path", repr(uri))
                root = os.path.abspath(path)
                if not is_unicode(root):
                    raise UsageError("The workspace's path is not UTF-8", repr(root), "Rename or move it.")
                return cls(root, LocalDisk(root), {})
            case "s3" | "gs" | "az" | "abfs" | "abfss":
                name, _, prefix = uri[len(scheme) + 3 :].partition("/")
                if scheme.startswith("abfs"):
                    scheme = "az"
                    if host := _ABFS_HOST.fullmatch(name):
                        name = host["container"]
                        options.setdefault("azure_storage_account_name", host["account"])
                if "@" in name or ":" in name or may_hold_secret(uri):
                    raise UsageError(
                        "The URI contains credentials", f"{scheme}://…", "Use storage options or the environment."
                    )
                prefix = "/".join(part for part in prefix.split("/") if part)
                if not name:
                    raise UsageError("The URI has no bucket", uri, f"Use {scheme}://bucket/prefix.")
                if prefix:
                    _checked(prefix)
                from driftline.storage.objects.bucket import Bucket  # a local workspace need not load obstore

                location = f"{scheme}://{name}/{prefix}".rstrip("/")
                return cls(location, Bucket(scheme, name, prefix, options), options)
        raise UnknownScheme(f"Workspaces do not support {scheme}://", uri, "Use a path, or s3://, gs://, az://.")

    def make_private(self) -> None:
        """Create a new local store's folder so that only its owner can read it."""
        if isinstance(self._backend, LocalDisk):
            self._backend.make_private()

    @property
    def is_private(self) -> bool:
        """Whether only the owner can read this store's folder."""
        return isinstance(self._backend, LocalDisk) and self._backend.is_private

    @property
    def requests_at_once(self) -> int:
        """Number of requests to send in parallel: 1 on a local disk, where threads cost more than they save."""
        return 1 if self.is_local else REQUESTS_AT_ONCE

    @property
    def is_local(self) -> bool:
        return isinstance(self._backend, LocalDisk)

    @property
    def storage_options(self) -> dict[str, str]:
        """The options that the store was opened with; sources in the same store also use them."""
        return dict(self._storage_options)

    @property
    def lance_options(self) -> dict[str, str] | None:
        """Storage options for Lance, including timeouts, or None for a local disk. They may contain credentials."""
        options = self._backend.lance_options
        return dict(options) if options is not None else None

    def lance_uri(self, path: str) -> str:
        """Return the location of ``path`` for Lance: an absolute local path, or a percent-encoded bucket URI."""
        return self._backend.lance_uri(_checked(path))

    def cached_lance(self, path: str) -> tuple[str, dict[str, str]] | None:
        """Return the URI and options for Lance to read ``path`` through the block cache, if there is one.

        The options are valid only in this process. Raises UsageError.
        """
        return self._backend.cached_lance(_checked(path))

    def read_ahead(self, ranges: Mapping[str, ByteRange]) -> None:
        """Prefetch ``ranges`` of immutable bucket objects into the block cache, if there is one.

        A range with no end means a whole small object.
        """
        self._backend.read_ahead({_checked(path): wanted for path, wanted in ranges.items()})

    def open_ahead(self, tables: Iterable[str]) -> None:
        """Request the newest versions of Lance ``tables`` in a bucket, each for the next reader that opens one."""
        self._backend.open_ahead([_checked(path) for path in tables])

    def newest_version(self, table: str) -> tuple[str, str] | None:
        """Return key and etag of the newest version of a Lance table in a bucket, by a new listing."""
        return self._backend.newest_version(_checked(table))

    def only_etag(self, path: str) -> tuple[str, str]:
        """Return key and etag of a table version if Lance has only ever listed it with one etag, otherwise "".

        A version that was recreated has another etag.
        """
        return self._backend.only_etag(_checked(path))

    def get(self, path: str) -> bytes:
        """Return the bytes of an object. Raises ObjectNotFound."""
        return self.get_versioned(path)[0]

    def get_versioned(self, path: str) -> tuple[bytes, str]:
        """Return the bytes of an object and the version to pass to ``replace``. Raises ObjectNotFound."""
        return self._backend.get(_checked(path))

    def open_input(self, path: str, *, immutable: bool = False) -> pa.NativeFile:
        """Open an object as a seekable file.

        For a large object in a bucket, only the requested ranges are fetched. Smaller ``immutable`` objects in a bucket
        are cached for later calls. Raises ObjectNotFound.
        """
        import pyarrow as pa  # imported here, as in the backends: the first reads of a search do not wait for it

        cached = self._cache.get(path) if immutable else None
        if cached is not None:
            return pa.BufferReader(cached)
        opened = self._backend.open_input(_checked(path))
        if immutable and isinstance(opened, pa.BufferReader):
            self._cache.put(path, opened.read_buffer())
            opened.seek(0)
        return opened

    def head(self, path: str) -> ObjectInfo | None:
        """Return an object's metadata, or None if the object or the bucket does not exist.

        If the bucket does not exist, ``get`` raises an error.
        """
        return self._backend.head(_checked(path))

    def create(self, path: str, data: bytes, same_as: str | None = None) -> str:
        """Durably write an object that must not exist yet, and return its version.

        If an immutable object at ``same_as`` has the same ``data``, a local disk links to it instead of writing a file.

        An existing object with exactly ``data`` is treated as written by this call, because the acknowledgement of our
        own write may have been lost. Callers that need a single winner must pass unique bytes. Raises AlreadyExists.
        """
        try:
            return self._backend.create(_checked(path), data, same_as and _checked(same_as))
        except StorageError as error:
            return self._version_if_written(path, data, error)

    def replace(self, path: str, data: bytes, version: str) -> str:
        """Durably replace an object that still has ``version``, and return its new version.

        As in ``create``, an object that already has these bytes is treated as written. Raises PreconditionFailed if it
        changed or is missing.
        """
        try:
            return self._backend.replace(_checked(path), data, version)
        except StorageError as error:
            return self._version_if_written(path, data, error)

    def list(self, prefix: str = "", *, recursive: bool = True, temporary: bool = False) -> Iterator[ObjectInfo]:
        """Yield the objects under a directory, unordered, omitting unfinished temporary files.

        A failure during the listing raises, so a listing that finishes is complete. Cleanup also lists ``temporary``
        files.
        """
        for info in self._backend.walk(_checked_prefix(prefix), recursive=recursive):
            if temporary or not info.path.rpartition("/")[2].startswith(TEMPORARY_PREFIX):
                yield info

    def list_dirs(self, prefix: str = "") -> builtins.list[str]:
        """Return the names of the directories directly in a directory, sorted."""
        return sorted(self._backend.directories(_checked_prefix(prefix)))

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects and, on a local disk, directories that become empty. Missing objects are ignored."""
        self._backend.delete([_checked(path) for path in paths])

    def sync(self, paths: Iterable[str]) -> None:
        """Flush objects that Lance wrote to the local disk, so that a power failure does not lose them.

        A bucket stores an object durably before it acknowledges the write.
        """
        self._backend.sync(paths)

    def probe_conditional_writes(self) -> None:
        """Use a small temporary object to check that the store honours conditional writes.

        Raises UnsafeStore, AccessDenied, StorageError.
        """
        path = f"{TEMPORARY_PREFIX}probe-{uuid.uuid4().hex}"
        first = self.create(path, b"first")
        try:
            try:
                self.create(path, b"second")
                raise UnsafeStore("The store overwrites objects on create-only writes", self.uri, _USE_ANOTHER_STORE)
            except AlreadyExists:
                pass
            try:
                self.replace(path, b"third", first)
            except PreconditionFailed:
                raise UnsafeStore("The store rejects its own versions", self.uri, _USE_ANOTHER_STORE) from None
            try:
                self.replace(path, b"fourth", first)
                what = "The store ignores version conditions: it replaced an object that had changed"
                raise UnsafeStore(what, self.uri, _USE_ANOTHER_STORE)
            except PreconditionFailed:
                pass
        finally:
            self.delete([path])

    def _version_if_written(self, path: str, data: bytes, error: StorageError) -> str:
        """Return the object's version if it contains exactly ``data``; otherwise, raise ``error``.

        Reading it back does not prove that it reached the disk: flushing it may be what failed.
        """
        try:
            current, version = self._backend.get(path)
        except StorageError:
            raise error from None
        if current != data:
            raise error
        self._backend.sync([path])
        return version

    def __reduce__(self) -> tuple[object, ...]:
        return ObjectStore.open, (self.uri, self._storage_options)

    def __repr__(self) -> str:
        return f"ObjectStore({self.uri!r})"


def _checked(path: str) -> str:
    if not path or _FORBIDDEN.search(path) or any(part in ("", ".", "..") for part in path.split("/")):
        raise UsageError(
            "A workspace path must be relative, without '.', '..', backslashes or control characters", repr(path)
        )
    return path


def _checked_prefix(prefix: str) -> str:
    prefix = prefix.rstrip("/")
    return _checked(prefix) if prefix else ""


def _private_directory() -> str:
    root = tempfile.mkdtemp(prefix="driftline-memory-")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child may exit before the owner
            shutil.rmtree(root, ignore_errors=True)

    atexit.register(remove)
    return root

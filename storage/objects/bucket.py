"""Objects in a bucket, through obstore: S3 and compatible stores, Google Cloud Storage, Azure."""

from __future__ import annotations

import contextlib
import io
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore, S3Store

from driftline.storage.errors import ObjectNotFound, PreconditionFailed, UnsafeStore
from driftline.storage.objects.backend import ObjectInfo
from driftline.storage.objects.bucket_errors import USE_ANOTHER, BucketErrors, is_about_a_condition, is_transient
from driftline.storage.objects.bucket_options import BucketOptions
from driftline.storage.objects.etags import Etags
from driftline.storage.objects.local_disk import TEMPORARY_PREFIX
from driftline.storage.objects.request_counts import count
from driftline.storage.objects.retries import delays, persistently

if TYPE_CHECKING:
    from obstore import GetOptions, ListResult, ObjectMeta, PutResult, UpdateVersion

USER_AGENT = "driftline"
"""Appears in the access log of a store; requests of Lance carry Lance's own."""
LIST_CHUNK = 1000
DELETED_AT_ONCE = {"s3": 1000, "gs": 1, "az": 256}
"""Maximum number of objects that one request deletes."""
WHOLE_OBJECT_BYTES = 8 * 1024 * 1024
"""Objects up to this size are read with one request, which is cheaper than several requests for parts."""

_STORES: Mapping[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_Result = TypeVar("_Result")


class Bucket:
    """The objects below ``scheme://name/prefix``. Versions are etags, or generations on Google Cloud Storage."""

    def __init__(self, scheme: str, name: str, prefix: str, storage_options: Mapping[str, str]) -> None:
        self._scheme = scheme
        self._prefix = prefix
        self._uri = f"{scheme}://{name}"
        self._options = BucketOptions.of(scheme, storage_options)
        self._errors = BucketErrors(scheme, self._uri, self._options)
        self._etags = Etags()
        self.lance_options: dict[str, str] | None = self._options.for_lance()
        store = _STORES[scheme]
        # Stalled reads and wrong endpoints fail quickly; large uploads may take long.
        with self._errors.translated("open", ""):
            agent = {"user_agent": USER_AGENT, "timeout": "300s"}
            self._reader = store(name, **self._options.for_obstore(read_timeout="10s", **agent))
            self._writer = store(name, **self._options.for_obstore(**agent))

    def lance_uri(self, path: str) -> str:
        # Lance percent-decodes the path of a URI.
        return f"{self._uri}/{quote(self._key(path))}"

    def get(self, path: str) -> tuple[bytes, str]:
        def get() -> tuple[bytes, str]:
            count("get")
            result = obstore.get(self._reader, self._key(path))
            return bytes(result.bytes()), self._version(result.meta)

        return self._persistently("read", path, get)

    def open_input(self, path: str) -> pa.NativeFile:
        def get() -> pa.NativeFile:
            count("get")
            result = obstore.get(self._reader, self._key(path))
            if result.meta["size"] <= WHOLE_OBJECT_BYTES:
                return pa.BufferReader(pa.py_buffer(result.bytes()))
            return pa.PythonFile(_PinnedFile(self, path, result.meta["size"], result.meta["e_tag"]), mode="r")

        return self._persistently("read", path, get)

    def read_range(self, path: str, start: int, end: int, etag: str | None) -> bytes:
        """Bytes ``start`` to ``end`` (exclusive) of an object that still has ``etag``.

        Raises ObjectNotFound, also when the object has been replaced; AccessDenied, StorageError.
        """

        def get(if_match: str | None) -> bytes:
            count("get")
            options: GetOptions = {"range": (start, end), "if_match": if_match}
            result = obstore.get(self._reader, self._key(path), options=options)
            if etag and result.meta["e_tag"] != etag:
                raise PreconditionFailed("The object was replaced", f"{self._uri}/{self._key(path)}")
            return bytes(result.bytes())

        try:
            spelled = self._etags.spelled(etag) if etag else None
            return self._persistently("read", path, lambda: get(spelled))
        except PreconditionFailed as error:
            raise ObjectNotFound("The object was replaced during the read", error.where) from None

    def head(self, path: str) -> ObjectInfo | None:
        def head() -> ObjectInfo:
            count("head")
            return self._info(obstore.head(self._reader, self._key(path)))

        try:
            return self._persistently("look up", path, head)
        except ObjectNotFound:
            return None

    def create(self, path: str, data: bytes) -> str:
        def create() -> str:
            count("put")
            return self._version(obstore.put(self._writer, self._key(path), data, mode="create"))

        # A repeated conditional write may meet what the first one wrote; ObjectStore compares the bytes.
        return self._persistently("create", path, create)

    def replace(self, path: str, data: bytes, version: str) -> str:
        with self._translated("replace", path):
            try:
                written = self._replace(path, data, self._etags.spelled(version))
            except BaseError as error:
                if self._etags.are_known or not self._refuses_own_etags(path, version, error):
                    raise
                return self._replace(path, data, self._etags.spelled(version))
        self._etags.are_known = True
        return written

    def _replace(self, path: str, data: bytes, version: str) -> str:
        mode: UpdateVersion = {"version": version} if self._scheme == "gs" else {"e_tag": version}

        def replace() -> str:
            count("put")
            return self._version(obstore.put(self._writer, self._key(path), data, mode=mode))

        return persistently(replace, is_transient)

    def _refuses_own_etags(self, path: str, version: str, error: BaseError) -> bool:
        """Whether ``error`` is about the spelling of ``version``; if so, the other one is used from now on."""
        if self._scheme != "s3" or not is_about_a_condition(error):
            return False
        if isinstance(error, PreconditionError):
            found = self.head(path)
            if found is None or found.version != version:
                return False
        probe = f"{TEMPORARY_PREFIX}probe-{uuid.uuid4().hex}"
        first = self.create(probe, b"first")
        try:
            return self._etags.learn(first, lambda etag: self._replace(probe, etag.encode(), etag))
        finally:
            self.delete([probe])

    def walk(self, prefix: str, *, recursive: bool) -> Iterator[ObjectInfo]:
        if not recursive:
            yield from map(self._info, self._level(prefix)["objects"])
            return
        for meta in self._keys_below(prefix):
            yield self._info(meta)

    def _keys_below(self, prefix: str) -> Iterator[ObjectMeta]:
        """The objects below ``prefix``; a listing that breaks off is continued after the last key."""
        last, is_sorted = "", True
        pages, waits = self._pages(prefix, last), delays()
        while True:
            try:
                page = next(pages, None)
            except BaseError as error:
                wait = next(waits, None)
                # Where keys are not sorted, some of those still to come may lie before the last one.
                if wait is None or not is_sorted or not is_transient(error):
                    with self._translated("list", prefix):
                        raise
                time.sleep(wait)
                pages = self._pages(prefix, last)
                continue
            if page is None:
                return
            for meta in page:
                is_sorted = is_sorted and last < meta["path"]
                last = meta["path"]
            waits = delays()
            yield from page

    def _pages(self, prefix: str, after: str) -> Iterator[Sequence[ObjectMeta]]:
        key = self._key(prefix) or None
        count("list")
        for number, page in enumerate(obstore.list(self._reader, key, offset=after or None, chunk_size=LIST_CHUNK)):
            if number:
                count("list")
            yield page

    def directories(self, prefix: str) -> list[str]:
        return [directory.rpartition("/")[2] for directory in self._level(prefix)["common_prefixes"]]

    def _level(self, prefix: str) -> ListResult[Sequence[ObjectMeta]]:
        def list_level() -> ListResult[Sequence[ObjectMeta]]:
            count("list")
            return obstore.list_with_delimiter(self._reader, self._key(prefix) or None)

        listing = self._persistently("list", prefix, list_level)
        entries = len(listing["objects"]) + len(listing["common_prefixes"])
        count("list", max(1, -(-entries // LIST_CHUNK)) - 1)
        return listing

    def delete(self, paths: Sequence[str]) -> None:
        if not paths:
            return
        try:
            self._delete(paths)
        except ObjectNotFound:  # Google and Azure stop at the first missing object
            for path in paths:
                with contextlib.suppress(ObjectNotFound):
                    self._delete([path])

    def _delete(self, paths: Sequence[str]) -> None:
        def delete() -> None:
            count("delete", -(-len(paths) // DELETED_AT_ONCE[self._scheme]))
            obstore.delete(self._writer, [self._key(path) for path in paths])

        self._persistently("delete", paths[0], delete)

    def _persistently(self, action: str, path: str, operation: Callable[[], _Result]) -> _Result:
        """The result of an idempotent operation, with the errors of Driftline."""
        with self._translated(action, path):
            return persistently(operation, is_transient)

    def _translated(self, action: str, path: str) -> contextlib.AbstractContextManager[None]:
        return self._errors.translated(action, self._key(path))

    def _key(self, path: str) -> str:
        # Keys are formed here, not by obstore's prefix option, so that all requests spell them alike.
        return "/".join(part for part in (self._prefix, path) if part)

    def _info(self, meta: ObjectMeta) -> ObjectInfo:
        path = meta["path"].removeprefix(f"{self._prefix}/") if self._prefix else meta["path"]
        return ObjectInfo(path, meta["size"], meta["last_modified"], self._version(meta))

    def _version(self, meta: ObjectMeta | PutResult) -> str:
        version = (meta["version"] if self._scheme == "gs" else None) or meta["e_tag"]
        if not version:
            raise UnsafeStore("The store returns no etags", self._uri, USE_ANOTHER)
        return version


class _PinnedFile(io.RawIOBase):
    """A large object, read in parts of one version, so that a read never mixes two versions."""

    def __init__(self, bucket: Bucket, path: str, size: int, etag: str | None) -> None:
        self._bucket, self._path, self._size, self._etag = bucket, path, size, etag
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._size, self._position + size)
        if end <= self._position:
            return b""
        data = self._bucket.read_range(self._path, self._position, end, self._etag)
        self._position += len(data)
        return data

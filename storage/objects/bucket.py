"""Objects in a bucket, through obstore: S3 and compatible stores, Google Cloud Storage, Azure."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import obstore
import pyarrow as pa
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PreconditionError,
    UnknownConfigurationKeyError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from driftline.storage.errors import (
    AccessDenied,
    AlreadyExists,
    DriftlineError,
    ObjectNotFound,
    PreconditionFailed,
    StorageError,
    UnsafeStore,
    UsageError,
)
from driftline.storage.objects.backend import ObjectInfo
from driftline.storage.objects.bucket_options import BucketOptions
from driftline.storage.objects.request_counts import count

if TYPE_CHECKING:
    from obstore import GetOptions, ListResult, ObjectMeta, PutResult, UpdateVersion

USER_AGENT = "driftline"
"""Appears in the access log of a store; requests of Lance carry Lance's own."""
LIST_CHUNK = 1000
DELETED_AT_ONCE = {"s3": 1000, "gs": 1, "az": 256}
"""Maximum number of objects that one request deletes."""
WHOLE_OBJECT_BYTES = 8 * 1024 * 1024
"""Objects up to this size are read with one request, which is cheaper than several requests for parts."""
REASON_CHARACTERS = 200

_STORES: Mapping[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_TRANSPORT = re.compile(r"HttpError \{\s*kind: (\w+)")
_REFUSED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}
_WRONG_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_USE_ANOTHER = "Keep the workspace in a store with conditional writes, or on a local disk."
_SET_CREDENTIALS = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (profile files are not read).",
    "gs": "Set GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT.",
    "az": "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY.",
}


class Bucket:
    """The objects below ``scheme://name/prefix``. Versions are etags, or generations on Google Cloud Storage."""

    def __init__(self, scheme: str, name: str, prefix: str, storage_options: Mapping[str, str]) -> None:
        self._scheme = scheme
        self._prefix = prefix
        self._uri = f"{scheme}://{name}"
        self._options = BucketOptions.of(scheme, storage_options)
        self.lance_options: dict[str, str] | None = self._options.for_lance()
        store = _STORES[scheme]
        # Stalled reads and wrong endpoints fail quickly; large uploads may take long.
        with self._translated("open", ""):
            agent = {"user_agent": USER_AGENT, "timeout": "300s"}
            self._reader = store(name, **self._options.for_obstore(read_timeout="10s", **agent))
            self._writer = store(name, **self._options.for_obstore(**agent))

    def lance_uri(self, path: str) -> str:
        # Lance percent-decodes the path of a URI.
        return f"{self._uri}/{quote(self._key(path))}"

    def get(self, path: str) -> tuple[bytes, str]:
        count("get")
        with self._translated("read", path):
            result = obstore.get(self._reader, self._key(path))
            return bytes(result.bytes()), self._version(result.meta)

    def open_input(self, path: str) -> pa.NativeFile:
        count("get")
        with self._translated("read", path):
            result = obstore.get(self._reader, self._key(path))
            if result.meta["size"] <= WHOLE_OBJECT_BYTES:
                return pa.BufferReader(pa.py_buffer(result.bytes()))
            return pa.PythonFile(_PinnedFile(self, path, result.meta["size"], result.meta["e_tag"]), mode="r")

    def read_range(self, path: str, start: int, end: int, etag: str | None) -> bytes:
        """Bytes ``start`` to ``end`` (exclusive) of an object that still has ``etag``.

        Raises ObjectNotFound, also when the object has been replaced; AccessDenied, StorageError.
        """
        count("get")
        options: GetOptions = {"range": (start, end), "if_match": etag}
        try:
            with self._translated("read", path):
                return bytes(obstore.get(self._reader, self._key(path), options=options).bytes())
        except PreconditionFailed as error:
            raise ObjectNotFound("The object was replaced during the read", error.where) from None

    def head(self, path: str) -> ObjectInfo | None:
        count("head")
        try:
            with self._translated("look up", path):
                return self._info(obstore.head(self._reader, self._key(path)))
        except ObjectNotFound:
            return None

    def create(self, path: str, data: bytes) -> str:
        count("put")
        with self._translated("create", path):
            return self._version(obstore.put(self._writer, self._key(path), data, mode="create"))

    def replace(self, path: str, data: bytes, version: str) -> str:
        mode: UpdateVersion = {"version": version} if self._scheme == "gs" else {"e_tag": version}
        count("put")
        with self._translated("replace", path):
            return self._version(obstore.put(self._writer, self._key(path), data, mode=mode))

    def walk(self, prefix: str, *, recursive: bool) -> Iterator[ObjectInfo]:
        key = self._key(prefix) or None
        with self._translated("list", prefix):
            if not recursive:
                yield from map(self._info, self._level(prefix)["objects"])
                return
            count("list")
            for page, chunk in enumerate(obstore.list(self._reader, key, chunk_size=LIST_CHUNK)):
                if page:
                    count("list")
                yield from map(self._info, chunk)

    def directories(self, prefix: str) -> list[str]:
        with self._translated("list", prefix):
            listing = self._level(prefix)
        return [directory.rpartition("/")[2] for directory in listing["common_prefixes"]]

    def _level(self, prefix: str) -> ListResult[Sequence[ObjectMeta]]:
        listing = obstore.list_with_delimiter(self._reader, self._key(prefix) or None)
        entries = len(listing["objects"]) + len(listing["common_prefixes"])
        count("list", max(1, -(-entries // LIST_CHUNK)))
        return listing

    def delete(self, paths: Sequence[str]) -> None:
        if not paths:
            return
        count("delete", -(-len(paths) // DELETED_AT_ONCE[self._scheme]))
        try:
            with self._translated("delete", paths[0]):
                obstore.delete(self._writer, [self._key(path) for path in paths])
        except ObjectNotFound:  # Google and Azure stop at the first missing object
            for path in paths:
                count("delete")
                with contextlib.suppress(ObjectNotFound), self._translated("delete", path):
                    obstore.delete(self._writer, self._key(path))

    def _key(self, path: str) -> str:
        # Keys are formed here, not by obstore's prefix option, so that all requests spell them alike.
        return "/".join(part for part in (self._prefix, path) if part)

    def _info(self, meta: ObjectMeta) -> ObjectInfo:
        path = meta["path"].removeprefix(f"{self._prefix}/") if self._prefix else meta["path"]
        return ObjectInfo(path, meta["size"], meta["last_modified"], self._version(meta))

    def _version(self, meta: ObjectMeta | PutResult) -> str:
        version = (meta["version"] if self._scheme == "gs" else None) or meta["e_tag"]
        if not version:
            raise UnsafeStore("The store returns no etags", self._uri, _USE_ANOTHER)
        return version

    @contextlib.contextmanager
    def _translated(self, action: str, path: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, FileNotFoundError, ValueError) as error:
            # The original text may hold signed URLs and keys, so the error is not chained.
            raise self._translate(error, action, path) from None

    def _translate(self, error: Exception, action: str, path: str) -> DriftlineError:
        text = str(error)
        where = f"{self._uri}/{self._key(path)}".rstrip("/")
        code = _first(_CODE, text)
        status = _first(_STATUS, text)
        credentials = _SET_CREDENTIALS[self._scheme]
        reason = self._options.without_secrets(
            code or status or text.partition("\n")[0].rpartition(" - ")[2][:REASON_CHARACTERS]
        )
        if isinstance(error, UnknownConfigurationKeyError) or action == "open":
            return UsageError("The storage options are not valid", self._uri, reason)
        if isinstance(error, AlreadyExistsError):
            return AlreadyExists("The object already exists", where)
        if isinstance(error, PreconditionError):
            return PreconditionFailed("Another writer has changed the object", where)
        if code in ("NoSuchBucket", "ContainerNotFound"):
            return AccessDenied("The bucket does not exist", self._uri, "Create it, or correct the URI.")
        if isinstance(error, FileNotFoundError):
            return ObjectNotFound("The object does not exist", where)
        if "/latest/api/token" in text or "metadata.google" in text or "metadata/identity" in text:
            return AccessDenied("No credentials were found", self._uri, credentials)
        if code in _WRONG_REGION or status == "301":
            return AccessDenied("The bucket is in another region", self._uri, "Set AWS_REGION to its region.")
        if code in _REFUSED or status in ("401", "403"):
            return AccessDenied(f"The store refused to {action} ({code or status})", where, credentials)
        if code == "InvalidBucketName":
            return UsageError("The bucket name is not valid", self._uri, "Correct the URI.")
        if isinstance(error, NotSupportedError) or status == "501":
            return UnsafeStore(f"The store does not {action} objects conditionally", where, _USE_ANOTHER)
        match _first(_TRANSPORT, text):
            case "Connect":
                return StorageError(f"Could not {action}: no connection", where, "Check the endpoint and the network.")
            case "Timeout":
                return StorageError(f"Could not {action}: no answer in time", where, "Check the endpoint; run again.")
        return StorageError(f"Could not {action}", where, f"The store answered: {reason}")


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


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""

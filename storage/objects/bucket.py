"""Store objects in a bucket, through obstore: S3 and compatible stores, Google Cloud Storage, Azure.

Translate storage options, which have the names of the object_store crate, and obstore's exceptions. Send bare etags
in ``If-Match`` if the store requires it (Ceph up to version 16), and report a clock that differs too much from the
store's.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

import obstore
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
from driftline.storage.layout import ByteRange, ObjectInfo
from driftline.storage.objects.block_cache import cached_reads, only_etag, open_ahead, read_ahead, versions_in
from driftline.storage.objects.local_disk import TEMPORARY_PREFIX
from driftline.storage.objects.store_requests import count, delays, is_exhausted, with_retries

if TYPE_CHECKING:
    import pyarrow as pa
    from obstore import GetOptions, ListResult, ObjectMeta, PutResult, UpdateVersion

CONNECT_TIMEOUT = "3s"
READ_TIMEOUT_SECONDS = 10.0
"""Longest silence of a store in the middle of a read."""
MAX_RETRIES = 5
RETRY_SECONDS = 8
FIRST_DELAY_SECONDS = 0.2
LANCE_RETRY_SECONDS = 30  # longer than RETRY_SECONDS: Lance's writes are large, and a failed commit repeats work

_ENDPOINTS = {
    "s3": ("aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint", "endpoint_url", "endpoint"),
    "gs": ("google_base_url", "base_url"),
    "az": ("azure_storage_endpoint", "azure_endpoint", "endpoint"),
}
_REGIONS = ("aws_region", "region", "aws_default_region", "default_region")
_DEFAULT_REGION = "us-east-1"
_CLIENT_KEYS = {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "read_timeout",
    "root_certificate",
    "timeout",
    "user_agent",
}
_RETRY_KEYS = {"client_max_retries", "client_retry_timeout"}
_SECRET_KEY = re.compile("key|secret|token|sas|signature|password|credential|account", re.IGNORECASE)
_SECRET_ENVIRONMENT = re.compile("^(AWS|AZURE|GOOGLE)_.*(KEY|SECRET|TOKEN|SAS)", re.IGNORECASE)
_PROVIDER = re.compile("^(AWS|AZURE|GOOGLE)_")
_SHORTEST_SECRET = 6
_FSSPEC_NAMES = {
    "s3": {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_session_token": "token"},
    "gs": {"google_service_account": "token", "google_application_credentials": "token"},
    "az": {"azure_storage_account_name": "account_name", "azure_storage_account_key": "account_key"},
}
_FSSPEC_ENDPOINT = {"s3": "endpoint_url", "gs": "endpoint_url"}
_STALE = '"00000000000000000000000000000000"'
"""An etag that no object has."""


@dataclass(frozen=True, slots=True)
class BucketOptions:
    """The user's options, with endpoint, region and plain HTTP derived from them and from the environment."""

    config: Mapping[str, str] = field(repr=False)
    client: Mapping[str, str] = field(repr=False)
    retry: Mapping[str, str] = field(repr=False)
    endpoint: str = ""
    """The address of the store, if it is not the provider's default."""

    @classmethod
    def of(cls, scheme: str, storage_options: Mapping[str, str]) -> BucketOptions:
        """Build the options; ``storage_options`` override the environment (``AWS_*``, ``GOOGLE_*``, ``AZURE_*``)."""
        options = {key.lower(): str(value) for key, value in storage_options.items()}
        config = {key: value for key, value in options.items() if key not in _CLIENT_KEYS | _RETRY_KEYS}
        client = {"connect_timeout": CONNECT_TIMEOUT, **{k: v for k, v in options.items() if k in _CLIENT_KEYS}}
        endpoint = _pop_first(config, _ENDPOINTS[scheme]) or _from_environment(_ENDPOINTS[scheme])
        if endpoint:
            config[_ENDPOINTS[scheme][0]] = endpoint
            if endpoint.startswith("http://"):
                client.setdefault("allow_http", "true")
        if scheme == "s3":
            config["aws_region"] = _pop_first(config, _REGIONS) or _from_environment(_REGIONS) or _DEFAULT_REGION
        retry = {key: value for key, value in options.items() if key in _RETRY_KEYS}
        return cls(config, client, retry, endpoint)

    @property
    def credentials(self) -> tuple[tuple[str, str], ...]:
        """All settings that determine what a client may read; keep it in memory only."""
        surrounding = {key: value for key, value in os.environ.items() if _PROVIDER.match(key)}
        return tuple(sorted({**surrounding, **self.config, **self.client}.items()))

    @property
    def account(self) -> str:
        """The bucket's account, on Azure."""
        names = ("azure_storage_account_name", "account_name")
        return next((self.config[name] for name in names if name in self.config), "") or _from_environment(names)

    def for_obstore(self, **client_defaults: str) -> dict[str, Any]:
        """Return the keyword arguments for an obstore store."""
        seconds = int(self.retry.get("client_retry_timeout", RETRY_SECONDS))
        retry = {
            "max_retries": int(self.retry.get("client_max_retries", MAX_RETRIES)),
            "retry_timeout": timedelta(seconds=seconds),
            "backoff": {
                "init_backoff": timedelta(seconds=FIRST_DELAY_SECONDS),
                "max_backoff": timedelta(seconds=3),
                "base": 2,
            },
        }
        return {
            "config": dict(self.config),
            "client_options": {**client_defaults, **self.client},
            "retry_config": retry,
        }

    def for_lance(self) -> dict[str, str]:
        """Return Lance's ``storage_options``."""
        retry = {"client_max_retries": str(MAX_RETRIES), "client_retry_timeout": str(LANCE_RETRY_SECONDS)}
        options = {**self.config, **self.client, **retry, **self.retry}
        if "aws_endpoint_url_s3" in options:  # Lance only reads the other name
            options["aws_endpoint"] = options["aws_endpoint_url_s3"]
        return options

    def without_secrets(self, text: str) -> str:
        """Return ``text`` with every potential credential masked."""
        secrets = [value for key, value in self.config.items() if _SECRET_KEY.search(key)]
        secrets += [value for key, value in os.environ.items() if _SECRET_ENVIRONMENT.search(key)]
        for secret in sorted(secrets, key=len, reverse=True):
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, "***")
        return re.sub(r"(?i)(sig|signature)=[^&\s]+", r"\1=***", text)


def for_fsspec(scheme: str, storage_options: Mapping[str, Any]) -> dict[str, Any]:
    """Rename storage options for fsspec's file systems. Options that already have fsspec's names are unchanged."""
    options = dict(storage_options)
    if scheme not in _FSSPEC_NAMES:
        return options
    for ours, theirs in _FSSPEC_NAMES[scheme].items():
        if ours in options:
            options[theirs] = options.pop(ours)
    if endpoint := _pop_first(options, _ENDPOINTS[scheme]):
        options[_FSSPEC_ENDPOINT.get(scheme, "endpoint")] = endpoint
    if scheme == "s3":
        options.setdefault("max_concurrency", 1)  # above 1, s3fs requests each file's size before reading it
        if region := _pop_first(options, _REGIONS):
            options["client_kwargs"] = {"region_name": region, **options.get("client_kwargs", {})}
    return {key: value for key, value in options.items() if key not in _CLIENT_KEYS | _RETRY_KEYS}


def _pop_first(options: dict[str, str], names: tuple[str, ...]) -> str:
    values = [options.pop(name, "") for name in names]
    return next((value for value in values if value), "")


def _from_environment(names: tuple[str, ...]) -> str:
    return next((value for name in names if "_" in name and (value := os.environ.get(name.upper()))), "")


class Etags:
    """The etag format that a store accepts: quoted, as HTTP requires, unless the store rejects that."""

    def __init__(self) -> None:
        self._is_bare = False
        self.are_known = False
        """Whether the store has ever accepted a condition in this format."""

    def spelled(self, etag: str) -> str:
        return etag.strip('"') if self._is_bare else etag

    def learn(self, etag: str, replace: Callable[[str], str]) -> bool:
        """Find the accepted format, using an object with ``etag`` that ``replace`` replaces if the etag matches.

        Returns False if the store accepts neither format, or accepts a bare etag without comparing it.
        """
        with contextlib.suppress(BaseError):
            replace(etag)
            self.are_known = True
            return True
        bare = etag.strip('"')
        if bare == etag:
            return False
        with contextlib.suppress(BaseError):
            replace(_STALE.strip('"'))
            return False
        with contextlib.suppress(BaseError):
            replace(bare)
            self._is_bare = self.are_known = True
            return True
        return False


CODE = "RequestTimeTooSkewed"
"""The error code used by S3 and compatible stores."""
FIX = "Synchronize this machine's clock with a time server."
TIMEOUT_SECONDS = 3
_SERVER_TIME = re.compile(r"<ServerTime>([^<]+)</ServerTime>")


def describe(answer: str, endpoint: str, *, now: datetime | None = None) -> str:
    """Describe a clock error, including the difference if ``answer`` or a request to ``endpoint`` reveals it.

    The request is sent without credentials; ``endpoint`` is "" if there is none.
    """
    now = now or datetime.now(UTC)
    theirs = _time_in(answer) or _server_time(endpoint)
    if theirs is None:
        return "This machine's clock differs too much from the store's clock"
    seconds = round((now - theirs).total_seconds())
    direction = "fast" if seconds > 0 else "slow"
    return f"This machine's clock is {timedelta(seconds=abs(seconds))} h {direction}, by the store's clock"


def _time_in(answer: str) -> datetime | None:
    if match := _SERVER_TIME.search(answer):
        with contextlib.suppress(ValueError):
            reported = datetime.fromisoformat(match[1])
            return reported if reported.tzinfo else reported.replace(tzinfo=UTC)
    return None


def _server_time(endpoint: str) -> datetime | None:
    """Return the time in the headers of any response from the store."""
    url = urlsplit(endpoint)
    if not url.hostname:
        return None
    import email.utils  # these take too long to import for most commands
    import http.client

    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError, TypeError):
        connection = kind(url.hostname, url.port, timeout=TIMEOUT_SECONDS)
        with contextlib.closing(connection):
            connection.request("HEAD", "/")
            date = connection.getresponse().getheader("Date")
            return email.utils.parsedate_to_datetime(date) if date else None
    return None


REASON_CHARACTERS = 200
USE_ANOTHER = "Keep the workspace in a store with conditional writes, or on a local disk."

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_TRANSPORT = re.compile(r"HttpError \{\s*kind: (\w+)")
_REFUSED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}
_WRONG_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_SET_CREDENTIALS = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (profile files are not read).",
    "gs": "Set GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT.",
    "az": "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY.",
}
_EXPIRED = {"ExpiredToken", "InvalidToken"}
RENEW = "Renew the temporary credentials, then run the command again: what was committed is kept."
_MAY_PASS = {"Timeout", "Request", "Decode", "Interrupted", "Unknown"}
"""Failures in transit. If the connection failed ("Connect"), obstore already retried for long enough."""


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed soon, or False if obstore exhausted its own retries."""
    if not isinstance(error, BaseError) or isinstance(error, (AlreadyExistsError, PreconditionError)):
        return False
    text = str(error)
    if is_exhausted(text):
        return False
    status = _first(_STATUS, text)
    return status in ("408", "429") or status.startswith("5") or _first(_TRANSPORT, text) in _MAY_PASS


def is_precondition_error(error: BaseException) -> bool:
    """Return whether the store reports that a condition of the request does not hold or is malformed."""
    return isinstance(error, PreconditionError) or _first(_STATUS, str(error)) == "400"


@dataclass(frozen=True, slots=True)
class BucketErrors:
    """Translates errors for one bucket; the results never contain credentials."""

    scheme: str
    uri: str
    options: BucketOptions

    @contextlib.contextmanager
    def translated(self, action: str, key: str) -> Iterator[None]:
        """Translate obstore's errors during ``action`` on ``key`` into a DriftlineError."""
        try:
            yield
        except (BaseError, FileNotFoundError, ValueError) as error:
            # The original text may contain signed URLs and keys, so the error is not chained.
            raise self._translate(error, action, key) from None

    def _translate(self, error: Exception, action: str, key: str) -> DriftlineError:
        text = str(error)
        where = f"{self.uri}/{key}".rstrip("/")
        code = _first(_CODE, text)
        status = _first(_STATUS, text)
        reason = self.options.without_secrets(
            code or status or text.partition("\n")[0].rpartition(" - ")[2][:REASON_CHARACTERS]
        )
        if isinstance(error, UnknownConfigurationKeyError) or action == "open":
            return UsageError("Invalid storage options", self.uri, reason)
        if isinstance(error, AlreadyExistsError):
            return AlreadyExists("The object already exists", where)
        if isinstance(error, PreconditionError):
            return PreconditionFailed("Another writer changed the object", where)
        if code in ("NoSuchBucket", "ContainerNotFound"):
            return AccessDenied("The bucket does not exist", self.uri, "Create it, or correct the URI.")
        if isinstance(error, FileNotFoundError):
            return ObjectNotFound("The object does not exist", where)
        refusal = self._refusal(text, code, status, action, where)
        if refusal is not None:
            return refusal
        if code == "InvalidBucketName":
            return UsageError("Invalid bucket name", self.uri, "Correct the URI.")
        if isinstance(error, NotSupportedError) or status == "501":
            return UnsafeStore(f"The store does not {action} objects conditionally", where, USE_ANOTHER)
        match _first(_TRANSPORT, text):
            case "Connect":
                return StorageError(f"Could not {action}: no connection", where, "Check the endpoint and the network.")
            case "Timeout":
                return StorageError(f"Could not {action}: no response in time", where, "Check the endpoint; run again.")
        return StorageError(f"Could not {action}", where, f"The store replied: {reason}")

    def _refusal(self, text: str, code: str, status: str, action: str, where: str) -> AccessDenied | None:
        """Return the error if the store does not recognize the caller or accept this kind of authentication."""
        credentials = _SET_CREDENTIALS[self.scheme]
        if "/latest/api/token" in text or "metadata.google" in text or "metadata/identity" in text:
            return AccessDenied("No credentials were found", self.uri, credentials)
        if code == CODE:
            return AccessDenied(describe(text, self.options.endpoint), where, FIX)
        if code in _WRONG_REGION or status == "301":
            return AccessDenied("The bucket is in another region", self.uri, "Set AWS_REGION to its region.")
        # Amazon S3 returns 400 for an expired token, and a HEAD response carries no error code.
        if code in _REFUSED or status in ("401", "403") or (status == "400" and not code):
            fix = RENEW if code in _EXPIRED else credentials
            if code == "AccessDenied":
                fix = f"Allow the account to {action} objects below {self.uri}."
            return AccessDenied(f"The store refused to {action} ({code or status})", where, fix)
        return None


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""


USER_AGENT = "driftline"
"""The user agent in the access logs of stores; Lance sends its own."""
LIST_CHUNK = 1000
DELETED_AT_ONCE = {"s3": 1000, "gs": 1, "az": 256}
"""Maximum number of objects deleted per request."""
WHOLE_OBJECT_BYTES = 8 * 1024 * 1024
"""Objects up to this size are read with one request, which is cheaper than several partial requests."""

_STORES: Mapping[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_Result = TypeVar("_Result")


class Bucket:
    """The objects under ``scheme://name/prefix``. Versions are etags, or generations on Google Cloud Storage."""

    def __init__(self, scheme: str, name: str, prefix: str, storage_options: Mapping[str, str]) -> None:
        self._scheme = scheme
        self._prefix = prefix
        self._uri = f"{scheme}://{name}"
        self._options = BucketOptions.of(scheme, storage_options)
        self._errors = BucketErrors(scheme, self._uri, self._options)
        self._etags = Etags()
        self.identity = "\0".join((self._options.endpoint, self._options.account, self._uri))
        self.credentials = self._options.credentials
        self.lance_options: dict[str, str] | None = self._options.for_lance()
        store = _STORES[scheme]
        # Stalled reads and wrong endpoints fail quickly; large uploads may be slow.
        with self._errors.translated("open", ""):
            agent = {"user_agent": USER_AGENT, "timeout": "300s"}
            silence = f"{READ_TIMEOUT_SECONDS:.0f}s"
            self._reader = store(name, **self._options.for_obstore(read_timeout=silence, **agent))
            self._writer = store(name, **self._options.for_obstore(**agent))

    def lance_uri(self, path: str) -> str:
        # Lance percent-decodes the path of a URI.
        return f"{self._uri}/{quote(self._key(path))}"

    def cached_lance(self, path: str) -> tuple[str, dict[str, str]] | None:
        options = cached_reads(self)
        # The cache's server speaks S3 for every kind of bucket.
        return (f"s3://{self._uri.partition('://')[2]}/{quote(self._key(path))}", options) if options else None

    def read_ahead(self, ranges: Mapping[str, ByteRange]) -> None:
        read_ahead(self, {self._key(path): wanted for path, wanted in ranges.items()})

    def open_ahead(self, tables: Iterable[str]) -> None:
        open_ahead(self, map(self._key, tables))

    def newest_version(self, table: str) -> tuple[str, str] | None:
        return min(versions_in(self.page(f"{self._key(table)}/_versions/", "")[0]), default=None)

    def only_etag(self, path: str) -> tuple[str, str]:
        key = self._key(path)
        return key, only_etag(self, key)

    def fetch(self, key: str, start: int, end: int | None) -> tuple[bytes, int, str]:
        """Return bytes ``[start, end)`` of the object at ``key`` (None: to its end), with its size and etag."""
        options: GetOptions = {"range": (start, end) if end is not None else {"offset": start}} if start or end else {}

        def get() -> tuple[bytes, int, str]:
            result = obstore.get(self._reader, key, options=options)
            return bytes(result.bytes()), result.meta["size"], result.meta["e_tag"] or ""

        with self._errors.translated("read", key):
            return with_retries(get, is_transient)

    def page(self, prefix: str, after: str) -> tuple[list[tuple[str, int, str, str]], bool]:
        """Return key, size, etag and time of objects under the full ``prefix``, and whether more may follow."""

        def read() -> Sequence[ObjectMeta]:
            return next(
                iter(obstore.list(self._reader, prefix.rstrip("/"), offset=after or None, chunk_size=LIST_CHUNK)), []
            )

        with self._errors.translated("list", prefix):
            found = with_retries(read, is_transient)
        rows = [(each["path"], each["size"], each["e_tag"] or "", each["last_modified"].isoformat()) for each in found]
        return rows, len(rows) == LIST_CHUNK

    def get(self, path: str) -> tuple[bytes, str]:
        def get() -> tuple[bytes, str]:
            count("get")
            result = obstore.get(self._reader, self._key(path))
            return bytes(result.bytes()), self._version(result.meta)

        return self._retried("read", path, get)

    def open_input(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        def get() -> pa.NativeFile:
            count("get")
            result = obstore.get(self._reader, self._key(path))
            if result.meta["size"] <= WHOLE_OBJECT_BYTES:
                return pa.BufferReader(pa.py_buffer(result.bytes()))
            return pa.PythonFile(_PinnedFile(self, path, result.meta["size"], result.meta["e_tag"]), mode="r")

        return self._retried("read", path, get)

    def read_range(self, path: str, start: int, end: int, etag: str | None) -> bytes:
        """Return bytes ``start`` to ``end`` (exclusive) of an object, if it still has ``etag``.

        Raises ObjectNotFound, including when the object was replaced; AccessDenied, StorageError.
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
            return self._retried("read", path, lambda: get(spelled))
        except PreconditionFailed as error:
            raise ObjectNotFound("The object was replaced during the read", error.where) from None

    def head(self, path: str) -> ObjectInfo | None:
        def head() -> ObjectInfo:
            count("head")
            return self._info(obstore.head(self._reader, self._key(path)))

        try:
            return self._retried("look up", path, head)
        except ObjectNotFound:
            return None

    def create(self, path: str, data: bytes, same_as: str | None = None) -> str:
        def create() -> str:
            count("put")
            return self._version(obstore.put(self._writer, self._key(path), data, mode="create"))

        # A retried conditional write may find the result of its first attempt; ObjectStore compares the bytes.
        return self._retried("create", path, create)

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

        return with_retries(replace, is_transient)

    def _refuses_own_etags(self, path: str, version: str, error: BaseError) -> bool:
        """Return whether the store rejected ``version`` only because of how its etag is quoted.

        If so, later requests use the accepted form.
        """
        if self._scheme != "s3" or not is_precondition_error(error):
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
        """Yield the objects under ``prefix``; an interrupted listing continues after the last key."""
        last, is_sorted = "", True
        pages, waits = self._pages(prefix, last), delays()
        while True:
            try:
                page = next(pages, None)
            except BaseError as error:
                wait = next(waits, None)
                # If keys are not sorted, some of the remaining keys may precede the last one.
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

        listing = self._retried("list", prefix, list_level)
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

    def sync(self, paths: Iterable[str]) -> None:
        """Do nothing: a bucket has stored what it has acknowledged."""

    def _delete(self, paths: Sequence[str]) -> None:
        def delete() -> None:
            count("delete", -(-len(paths) // DELETED_AT_ONCE[self._scheme]))
            obstore.delete(self._writer, [self._key(path) for path in paths])

        self._retried("delete", paths[0], delete)

    def _retried(self, action: str, path: str, operation: Callable[[], _Result]) -> _Result:
        """Run an idempotent operation with retries, and translate its errors."""
        with self._translated(action, path):
            return with_retries(operation, is_transient)

    def _translated(self, action: str, path: str) -> contextlib.AbstractContextManager[None]:
        return self._errors.translated(action, self._key(path))

    def _key(self, path: str) -> str:
        # Keys are built here, not by obstore's prefix option, so that all requests format them the same way.
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
    """A large object, read in parts of a single version, so a read never mixes two versions."""

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

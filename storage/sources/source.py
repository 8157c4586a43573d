"""Open a local path or any fsspec URL as a source, and list, read and stat its files.

Local trees are read with ``os``, without following links; all others through fsspec with its caches disabled. fsspec
exceptions have no common base class, so every ``Exception`` goes to ``raise_translated``.
"""

from __future__ import annotations

import dataclasses
import datetime
import errno
import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from driftline.storage.environment import install_command, with_home
from driftline.storage.errors import (
    AccessDenied,
    DriftlineError,
    MissingExtra,
    ObjectNotFound,
    SourceNotFound,
    StorageError,
    UnknownScheme,
    UsageError,
    has_query,
    may_hold_secret,
    without_secrets,
)
from driftline.storage.globs import is_unicode
from driftline.storage.objects.store_requests import count_requests_of
from driftline.storage.sources.access import SafeFolder, check_names_are_utf8
from driftline.storage.sources.content_encoding import StoredBytes, decoded, may_be_encoded, without_chunks
from driftline.storage.sources.mirror import Remote, bare_repository, parse_remote, resolve

if TYPE_CHECKING:  # a search of local files reads no repository
    from driftline.storage.sources.commit_tree import CommitTree, TreeEntry


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file: ``path`` is relative to the source and POSIX-style; unknown etags are "", other unknown metadata is 0."""

    path: str
    size_bytes: int
    mtime_ns: int
    etag: str = ""
    ctime_ns: int = 0
    inode: int = 0


_CREDENTIAL_ERRORS = frozenset(
    {
        "ClientAuthenticationError",
        "CredentialRetrievalError",
        "DefaultCredentialsError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "ProfileNotFound",
        "RefreshError",
        "TokenRetrievalError",
    }
)


def translate(error: BaseException, where: str, what: str = "Reading failed") -> DriftlineError:
    """Translate ``error`` into a DriftlineError about ``where``.

    ``what`` describes a failure that has no specific error class.
    """
    if isinstance(error, DriftlineError):
        return error
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return ObjectNotFound("Not found", where)
    from driftline.storage.objects import bucket  # a search of a local workspace need not load obstore

    if bucket.CODE in str(error):
        return AccessDenied(bucket.describe(str(error), ""), where, bucket.FIX)
    names = {cls.__name__ for cls in type(error).__mro__}
    if isinstance(error, PermissionError) or names & _CREDENTIAL_ERRORS or _http_status(error) in (401, 403):
        return AccessDenied("Access denied", where, f"Check credentials and permissions ({_one_line(error)}).")
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        return ObjectNotFound("Symbolic links are not followed", where)
    return StorageError(f"{what} ({_one_line(error)})", where, "Try again.")


def raise_translated(error: BaseException, where: str, what: str = "Reading failed") -> NoReturn:
    """Raise the translation of ``error``, chained to it; a DriftlineError is raised unchanged."""
    if isinstance(error, DriftlineError):
        raise error
    raise translate(error, where, what) from error


def _http_status(error: BaseException) -> int | None:
    """Return an error's HTTP status. S3 reports 403 under many names, so the name is not enough."""
    for candidate in (error, error.__cause__):
        response = getattr(candidate, "response", None)
        if isinstance(response, Mapping):
            return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) or None
        status = getattr(candidate, "status", None) or getattr(candidate, "code", None)
        if isinstance(status, int):
            return status
    return None


def storable_ns(nanoseconds: int) -> int:
    """Return a file's time within the range of a column: file systems store years from 1901 to far beyond 2262."""
    return max(-LATEST_NS, min(nanoseconds, LATEST_NS))


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


INODE_BITS = (1 << 63) - 1
"""The bits of an inode number that fit a signed column."""
LATEST_NS = (1 << 63) // 10**9 * 10**9
"""The latest time that fits a column of nanoseconds, in 2262."""
VANISHED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors of a lookup through a folder that disappeared, or was replaced by a file or link."""


def list_folder(root: str, prefix: str) -> tuple[Sequence[str], Sequence[FileInfo]]:
    """Return the folders (relative paths with a trailing slash) and regular files directly in ``prefix``, both sorted.

    A missing ``prefix`` is treated as empty. Raises AccessDenied, ObjectNotFound, StorageError.
    """
    folders: list[str] = []
    files: list[FileInfo] = []
    try:
        with SafeFolder(root) as tree:
            for entry in tree.entries(prefix):
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{prefix}{entry.name}/")
                elif info := stat_file(tree, prefix + entry.name):
                    files.append(info)
    except OSError as error:
        if not prefix or error.errno not in VANISHED:
            raise translate(error, f"{root}/{prefix}") from error
    return sorted(folders), sorted(files, key=lambda info: info.path)


def stat_file(tree: SafeFolder, path: str) -> FileInfo | None:
    """Return the metadata of a regular file, or None if there is none. Raises AccessDenied, StorageError."""
    try:
        status = tree.stat(path)
    except OSError as error:
        if error.errno in VANISHED:
            return None
        raise translate(error, f"{tree.root}/{path}") from error
    if not stat.S_ISREG(status.st_mode):
        return None
    return FileInfo(
        path,
        status.st_size,
        storable_ns(status.st_mtime_ns),
        ctime_ns=storable_ns(status.st_ctime_ns),
        inode=status.st_ino & INODE_BITS,
    )


def read_file(tree: SafeFolder, path: str) -> bytes:
    """Return the bytes of a regular file. Raises ObjectNotFound, AccessDenied, StorageError."""
    try:
        data = tree.read(path)
    except OSError as error:
        raise translate(error, f"{tree.root}/{path}") from error
    if data is None:
        raise ObjectNotFound("Not a regular file", f"{tree.root}/{path}")
    return data


_ALIASES = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "adl": "az"}
_EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure"}
_FLAT = frozenset({"s3", "gs", "az"})
"""Stores whose ``find`` is one flat listing that raises on failure. All other stores are listed folder by folder."""
_CONCURRENT_HEADS = 16

CHUNK_BYTES = 16 * 2**20
"""How many bytes of a large file to read per request."""
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_ETAG_KEYS = ("generation", "ETag", "etag", "CRC", "sha")
_MTIME_KEYS = ("LastModified", "last_modified", "mtime", "modified", "updated", "Last-Modified", "created")


@dataclass(frozen=True)
class Source:
    """A tree of files to scan. Picklable: each worker opens its own connection.

    ``uri`` is an absolute local path or ``protocol://bucket/prefix``, without a trailing slash and without credentials.
    """

    uri: str
    storage_options: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    is_local: bool = True

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def default_name(self) -> str:
        """The default name of the source's entity: the last part of the URI."""
        return posixpath.basename(self.uri.rstrip("/")) or "root"

    @property
    def origin(self) -> str | None:
        """The repository's URL, if the URI points to a repository on another machine."""
        return None

    @property
    def folder(self) -> str | None:
        """The source's folder on this disk, if it is local."""
        return self.uri if self.is_local else None

    def check_reachable(self) -> None:
        """Check that this process can list the source. Raises the same errors as ``open_source``."""
        open_source(self.uri, self.storage_options, allow_empty=True)

    def close(self) -> None:
        """Close processes and files opened by reads; later reads reopen them."""

    @cached_property
    def _connection(self) -> tuple[Any, str]:
        return _connect(self.uri, self.storage_options)

    @property
    def _fs(self) -> Any:
        return self._connection[0]

    @property
    def _root(self) -> str:
        return self._connection[1]

    def list(self, prefix: str = "", *, recursive: bool = True) -> Iterator[FileInfo]:
        """Yield the files under ``prefix`` ("" or a folder with a trailing slash), in no particular order.

        A remote listing finishes before its first item is yielded; a local one raises where it fails. A missing prefix
        is treated as empty. Paths are exactly as in the store, including odd keys (``a//b``); folder markers (keys that
        end in a slash) are omitted. Raises AccessDenied, ObjectNotFound, StorageError.
        """
        if not recursive:
            yield from self.list_top(prefix)[1]
        elif self.is_local:
            pending = [prefix]
            while pending:
                folders, files = self.list_top(pending.pop())
                yield from files
                pending.extend(folders)
        elif self.uri.partition("://")[0] in _FLAT:
            yield from self._find(prefix)
        else:
            yield from [info for folder in self._descend(prefix) for info in folder]

    def list_top(self, prefix: str = "") -> tuple[Sequence[str], Sequence[FileInfo]]:
        """Return the folders (relative paths with a trailing slash) and files directly in ``prefix``, both sorted.

        Raises AccessDenied, ObjectNotFound, StorageError.
        """
        if self.is_local:
            return list_folder(self.uri, prefix)
        folders: list[str] = []
        files: list[FileInfo] = []
        for entry in self._entries(prefix):
            path = self._relative(entry)
            if path is None or not path.startswith(prefix):
                continue
            if entry["type"] == "directory":
                folders.append(path + "/" if path == prefix else path.rstrip("/") + "/")
            elif path and not path.endswith("/"):
                files.append(self._info(entry, path))
        return sorted(set(folders)), sorted(files, key=lambda info: info.path)

    def first_look(self, prefix: str = "") -> tuple[Sequence[str], bool, bool]:
        """Return ``(folders directly in prefix, whether it has files, whether the listing is complete)``.

        Like ``list_top``, but reads only the first page of an S3 listing, with one request. Raises AccessDenied,
        ObjectNotFound, StorageError.
        """
        if self.uri.partition("://")[0] != "s3" or "::" in self.uri:
            folders, files = self.list_top(prefix)
            return folders, bool(files), True
        bucket, _, key = self._key(prefix).partition("/")
        below = f"{key.rstrip('/')}/" if key else ""
        try:
            page = self._fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=below, Delimiter="/")
        except Exception as error:  # SDK exceptions have no common base
            raise_translated(error, f"{self.uri}/{prefix}", "Listing failed")
        paths = (self._relative({"name": f"{bucket}/{entry['Prefix']}"}) for entry in page.get("CommonPrefixes", ()))
        return [path for path in paths if path], len(page.get("Contents", ())) > 0, not page["IsTruncated"]

    def is_file(self) -> bool:
        """Return whether a remote source's URI points to an object instead of a folder.

        Returns False if the store does not report it.
        """
        return bool(self._fs.isfile(self._root)) if self._root else False

    def open_tree(self) -> SafeFolder:
        """Return the tree of a local source, for several reads."""
        return SafeFolder(self.uri)

    def read(self, path: str) -> bytes:
        """Return a file's bytes; local links are not followed.

        Raises ObjectNotFound, AccessDenied, StorageError.
        """
        if self.is_local:
            with self.open_tree() as tree:
                return read_file(tree, path)
        try:
            data = bytes(self._fs.cat_file(self._key(path)))
        except Exception as error:
            raise_translated(error, f"{self.uri}/{path}")
        (content,) = self._decoded([path], [data])
        assert isinstance(content, bytes)
        return content

    def chunks(self, path: str) -> Iterator[bytes]:
        """Yield a file's bytes in parts, to bound memory. Raises the same errors as ``read``."""
        try:
            if self.is_local:
                with self.open_tree() as tree:
                    yield from tree.chunks(path, CHUNK_BYTES)
                return
            start, key = 0, self._key(path)
            size = self._fs.info(key)["size"]
            while start < size:
                yield bytes(self._fs.cat_file(key, start=start, end=min(start + CHUNK_BYTES, size)))
                start += CHUNK_BYTES
        except Exception as error:
            raise_translated(error, f"{self.uri}/{path}")

    def read_many(self, paths: Sequence[str], etags: Sequence[str] = ()) -> Sequence[bytes | DriftlineError]:
        """Return each file's bytes or its error, in the order of ``paths``.

        Reads concurrently if the store allows it. ``etags`` come from the listing; a repository finds files by them
        alone.
        """
        if self.is_local or not paths:
            return [self._read_or_error(path) for path in paths]
        try:
            # Not fs.cat(): it expands "*" and "[" in keys as globs.
            results = self._fs.cat_ranges([self._key(path) for path in paths], None, None, on_error="return")
        except Exception as error:
            raise_translated(error, self.uri)
        found: list[bytes | DriftlineError] = []
        for path, result in zip(paths, results, strict=True):
            if not isinstance(result, BaseException):
                found.append(bytes(result))
            elif "content-encoding" in str(result).lower():  # of aiohttp, which decodes what an HTTP server sends
                found.append(StoredBytes.of(b"", None))
            else:
                found.append(translate(result, f"{self.uri}/{path}"))
        return self._decoded(paths, found)

    def _decoded(
        self, paths: Sequence[str], contents: Sequence[bytes | DriftlineError]
    ) -> Sequence[bytes | DriftlineError]:
        """Return objects without their ``Content-Encoding``, which costs a request for each that may have one."""
        if self.uri.partition("://")[0] not in _FLAT or "::" in self.uri:
            return contents
        plain = {at: without_chunks(each) for at, each in enumerate(contents) if isinstance(each, bytes)}
        asked = [at for at, each in plain.items() if may_be_encoded(paths[at], each)]
        with ThreadPoolExecutor(_CONCURRENT_HEADS) as threads:  # requests are counted per context
            heads = {at: threads.submit(copy_context().run, self._content_encoding, paths[at]) for at in asked}
        found = [*contents]
        for at, each in plain.items():
            stored, encoding = contents[at], heads[at].result() if at in heads else ""
            if isinstance(stored, bytes) and (encoding or each is not stored):
                found[at] = StoredBytes.of(stored, decoded(each, encoding))
        return found

    def _content_encoding(self, path: str) -> str:
        """Return an object's ``Content-Encoding``, "" if it has none or was deleted. Raises StorageError."""
        key = self._key(path)
        try:
            if self.uri.startswith("s3://"):
                bucket, _, name = key.partition("/")
                return str(self._fs.call_s3("head_object", Bucket=bucket, Key=name).get("ContentEncoding") or "")
            entry = self._fs.info(key)
        except FileNotFoundError:
            return ""
        except Exception as error:
            raise_translated(error, f"{self.uri}/{path}")
        settings = entry.get("content_settings") or {}
        return str(entry.get("contentEncoding") or settings.get("content_encoding") or "")

    def stat(self, path: str) -> FileInfo | None:
        """Return a file's current metadata, or None if it does not exist. Raises AccessDenied, StorageError."""
        if self.is_local:
            with self.open_tree() as tree:
                return stat_file(tree, path)
        try:
            self._fs.invalidate_cache()
            entry = self._fs.info(self._key(path))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise_translated(error, f"{self.uri}/{path}")
        return self._info(entry, path) if entry["type"] == "file" else None

    def _read_or_error(self, path: str) -> bytes | DriftlineError:
        try:
            return self.read(path)
        except DriftlineError as error:
            return error

    def _find(self, prefix: str) -> Iterator[FileInfo]:
        try:
            self._fs.invalidate_cache()
            entries = self._fs.find(self._key(prefix).rstrip("/"), detail=True)
            # adlfs reports a missing container as empty, and a blob at the prefix as a list.
            if self.uri.startswith("az://") and not entries and not self._bucket_exists():
                raise FileNotFoundError(self.uri)
        except Exception as error:
            raise_translated(error, f"{self.uri}/{prefix}", "Listing failed")
        for entry in entries.values() if isinstance(entries, Mapping) else ():
            path = self._relative(entry)
            if path and path.startswith(prefix) and not path.endswith("/"):
                yield self._info(entry, path)

    def _descend(self, prefix: str) -> Iterator[Sequence[FileInfo]]:
        pending, seen = [prefix], {prefix}
        while pending:
            folders, files = self.list_top(pending.pop())
            yield files
            # Some stores list a folder as its own child.
            unseen = [folder for folder in folders if folder not in seen]
            seen.update(unseen)
            pending.extend(unseen)

    def _entries(self, prefix: str) -> Iterable[Mapping[str, Any]]:
        try:
            self._fs.invalidate_cache()
            return list(self._fs.ls(self._key(prefix).rstrip("/"), detail=True))
        except FileNotFoundError as error:
            # An empty prefix is valid; a missing bucket is an error.
            if self.uri.partition("://")[0] in _FLAT and not self._bucket_exists():
                raise_translated(error, self.uri, "Listing failed")
            return []
        except Exception as error:
            raise_translated(error, f"{self.uri}/{prefix}", "Listing failed")

    def _bucket_exists(self) -> bool:
        return bool(self._fs.exists(self._root.partition("/")[0]))

    def _relative(self, entry: Mapping[str, Any]) -> str | None:
        name, base = str(entry["name"]).removeprefix("/"), self._root.strip("/")
        if not base:
            return name
        return name[len(base) + 1 :] if name.startswith(base + "/") else None

    def _info(self, entry: Mapping[str, Any], path: str) -> FileInfo:
        if entry.get("size") is None:
            try:
                entry = self._fs.info(entry["name"])
            except Exception as error:
                raise_translated(error, f"{self.uri}/{path}")
        etag = next((str(entry[key]) for key in _ETAG_KEYS if entry.get(key)), "")
        mtime = next((entry[key] for key in _MTIME_KEYS if entry.get(key)), None)
        return FileInfo(path, int(entry.get("size") or 0), _nanoseconds(mtime), etag.strip('"'))

    def _key(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}" if self._root else path


@dataclass(frozen=True)
class RepositorySource(Source):
    """A commit's tree in a git repository: its documents are blobs, with the same etags as in a working tree.

    ``commit`` is "" for the last fetched commit. ``credential`` refers to the host's token.
    """

    is_local: bool = False
    commit: str = ""
    credential: str = dataclasses.field(default="", repr=False)

    @classmethod
    def at(cls, remote: Remote, commit: str) -> RepositorySource:
        """Return the repository at ``commit``, which is fetched on demand; does not connect."""
        from driftline.storage.sources.commit_tree import CommitTree

        tree = CommitTree.of(remote, commit)
        return cls(tree.uri, commit=commit, credential=tree.credential)

    @cached_property
    def tree(self) -> CommitTree:
        from driftline.storage.sources.commit_tree import CommitTree

        return CommitTree(self.uri, self.commit, self.credential)

    @property
    def default_name(self) -> str:
        return self.tree.remote.name

    @property
    def origin(self) -> str | None:
        remote = self.tree.remote
        return None if remote.is_local else without_secrets(remote.location)

    @property
    def folder(self) -> str | None:
        remote = self.tree.remote
        return remote.location if remote.is_local else None

    def check_reachable(self) -> None:
        """Do nothing: most repositories are unchanged, so none is fetched before it is needed."""

    def close(self) -> None:
        self.tree.close()

    def list(self, prefix: str = "", *, recursive: bool = True) -> Iterator[FileInfo]:
        for entry in self.tree.entries():
            inside = entry.path.startswith(prefix) and (recursive or "/" not in entry.path[len(prefix) :])
            if entry.reason is None and inside:
                yield _info_of(entry)

    def list_top(self, prefix: str = "") -> tuple[Sequence[str], Sequence[FileInfo]]:
        folders, files = set[str](), []
        for info in self.list(prefix):
            name, slash, _ = info.path[len(prefix) :].partition("/")
            if slash:
                folders.add(f"{prefix}{name}/")
            else:
                files.append(info)
        return sorted(folders), sorted(files, key=lambda info: info.path)

    def first_look(self, prefix: str = "") -> tuple[Sequence[str], bool, bool]:
        folders, files = self.list_top(prefix)
        return folders, bool(files), True

    def is_file(self) -> bool:
        return False

    def stat(self, path: str) -> FileInfo | None:
        found = (_info_of(entry) for entry in self.tree.entries([path]) if entry.reason is None)
        return next(found, None)

    def read(self, path: str) -> bytes:
        (data,) = self.read_many([path])
        if isinstance(data, DriftlineError):
            raise data
        return data

    def chunks(self, path: str) -> Iterator[bytes]:
        yield self.read(path)

    def read_many(self, paths: Sequence[str], etags: Sequence[str] = ()) -> Sequence[bytes | DriftlineError]:
        from driftline.storage.sources.commit_tree import MAX_BLOB_BYTES

        if paths and not etags:
            listed = self.tree.entries(paths)
            known = {e.path: e.etag for e in listed if e.reason is None and e.size_bytes <= MAX_BLOB_BYTES}
            etags = [known.get(path, "") for path in paths]
        blobs = self.tree.blobs([etag.removeprefix("git:") for etag in etags]) if paths else []
        return [
            ObjectNotFound("Not found", f"{self.uri}/{path}") if data is None else data
            for path, data in zip(paths, blobs, strict=True)
        ]


def _info_of(entry: TreeEntry) -> FileInfo:
    return FileInfo(entry.path, entry.size_bytes, 0, entry.etag)


def open_source(
    uri: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None, *, allow_empty: bool = False
) -> Source:
    """Open the source at a path or an fsspec URL, and check that it can be listed.

    ``allow_empty`` accepts a prefix with no files in an existing bucket. Runs reject it, because the prefix may be
    misspelled. Raises UsageError if the URI may contain a secret or names are not decoded as UTF-8; also
    SourceNotFound, UnknownScheme, MissingExtra, AccessDenied.
    """
    text = os.fspath(uri)
    options = dict(storage_options or {})
    scheme, separator, rest = text.partition("://")
    remote = parse_remote(text)
    if remote is not None:
        return RepositorySource.at(remote, resolve(remote))
    if not separator and "::" not in text:
        return _open_local(text)
    if scheme in ("file", "local"):
        return _open_local(rest)
    if has_query(text) or ("::" in text and may_hold_secret(text)):
        raise UsageError(
            "The source URI contains a query string or a user name, which may be secret",
            text,
            "Pass credentials in the environment or as storage options.",
        )
    if "::" not in text:
        scheme = _ALIASES.get(scheme, scheme)
        text, from_url = _split_credentials(scheme, rest)
        options = from_url | options
    source = Source(text, options, is_local=False)
    try:
        folders, files, _ = source.first_look()
    except AccessDenied:
        raise
    except ObjectNotFound as error:
        raise SourceNotFound("No such bucket or folder", source.uri, "Check the spelling.") from error
    except StorageError as error:
        what = f"Cannot list the source ({error.__cause__ or error})"
        raise SourceNotFound(what, source.uri, "Check its address.") from error
    if not folders and not files and not allow_empty:
        if source.is_file():
            raise SourceNotFound("A source must be a folder, not a file", source.uri, "Index its folder.")
        raise SourceNotFound(
            "The source has no files",
            source.uri,
            "Check the spelling. To remove the source from the index: driftline remove ENTITY",
        )
    return source


def known_source(uri: str, storage_options: Mapping[str, Any] | None = None) -> Source:
    """Return the source that ``open_source`` once returned for ``uri``, without connecting to it."""
    remote = parse_remote(uri)
    if remote is not None:
        return RepositorySource.at(remote, "")
    return Source(uri, dict(storage_options or {}), is_local="://" not in uri and "::" not in uri)


_AT_HOST = re.compile(r"[a-z\d-]+(?:\.[a-z\d-]+)+/[\w.-]+/[\w.-]+", re.ASCII)
"""A repository's URL without its scheme, as git hosts show it."""


def _open_local(text: str) -> Source:
    """Open the folder at a path; if it is a bare repository, open that repository instead."""
    check_names_are_utf8()
    path = text
    try:
        path = os.path.realpath(with_home(text))
        os.scandir(path).close()
    except FileNotFoundError as error:
        fix = f"For a repository, write https://{text}." if _AT_HOST.match(text) else "Check the spelling."
        raise SourceNotFound("No such folder", path, fix) from error
    except NotADirectoryError as error:
        raise SourceNotFound("A source must be a folder, not a file", path, "Index its folder.") from error
    except PermissionError as error:
        raise AccessDenied("Cannot read the folder", path, "Check its permissions.") from error
    except (OSError, ValueError) as error:
        raise SourceNotFound(f"Cannot read the folder ({error})", repr(path), "Check its name.") from error
    if not is_unicode(path):
        raise UsageError("The folder's path is not UTF-8", repr(path), "Rename or move it.")
    remote = bare_repository(path)
    return RepositorySource.at(remote, resolve(remote)) if remote is not None else Source(path, {}, is_local=True)


def _split_credentials(scheme: str, rest: str) -> tuple[str, dict[str, Any]]:
    """Return the URI with user and password removed, and the options that fsspec derives from the full URI."""
    uri = f"{scheme}://{rest}"
    options = dict(_file_system_class(uri, scheme)._get_kwargs_from_urls(uri))
    netloc, slash, tail = rest.partition("/")
    # az://container@account: the part before the @ is not a user name.
    netloc = netloc.partition("@")[0] if scheme == "az" else netloc.rpartition("@")[2]
    path = re.sub(r"/+$", "", slash + tail)
    if not netloc and scheme != "memory":
        raise SourceNotFound("The URI has no bucket or host", f"{scheme}://", "Write, for example, s3://bucket/folder.")
    return f"{scheme}://{(netloc + path).lstrip('/') if scheme == 'memory' else netloc + path}", options


def check_scheme(uri: str) -> None:
    """Raise UnknownScheme if no source can have this URI."""
    scheme, separator, _ = uri.partition("://")
    if separator and "::" not in scheme and parse_remote(uri) is None:
        _file_system_class(uri, _ALIASES.get(scheme, scheme))


def _file_system_class(uri: str, scheme: str) -> Any:
    import fsspec  # takes 0.2 s, which local sources do not need

    try:
        return fsspec.get_filesystem_class(scheme)
    except ValueError as error:
        known = "a path, s3, gs, az, memory, http, or another fsspec scheme"
        raise UnknownScheme(f"Unknown scheme {scheme!r}", uri, f"Use {known}.") from error
    except ImportError as error:
        extra = _EXTRAS.get(scheme)
        fix = f"Run: {install_command(extra)}" if extra else str(error)
        raise MissingExtra(f"{scheme}:// needs an optional dependency", uri, fix) from error


def _connect(uri: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    if "::" not in uri:
        _file_system_class(uri, uri.partition("://")[0])
    from fsspec.core import url_to_fs

    from driftline.storage.objects.bucket import for_fsspec

    try:
        translated = for_fsspec(uri.partition("://")[0], options)
        fs, root = url_to_fs(uri, use_listings_cache=False, skip_instance_cache=True, **translated)
        if "::" not in uri:
            count_requests_of(fs, uri.partition("://")[0])
    except Exception as error:
        raise_translated(error, uri, "Cannot open the source")
    return fs, str(root).rstrip("/") or str(root)[:1]


def _nanoseconds(moment: Any) -> int:
    if isinstance(moment, str):
        try:
            moment = datetime.datetime.fromisoformat(moment)
        except ValueError:
            return 0
    if isinstance(moment, datetime.datetime):
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        # Integers are exact to the microsecond; float seconds are not.
        microseconds: int = (moment - _EPOCH) // datetime.timedelta(microseconds=1)
        return storable_ns(microseconds * 1000)
    return storable_ns(round(moment * 1_000_000) * 1000) if isinstance(moment, (int, float)) else 0

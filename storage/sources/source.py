"""Sources: open a local path or any fsspec URL, list it freshly, read it, stat it.

Local trees are read with ``os``; everything else goes through fsspec, with its caches off.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import re
import stat as stat_module
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from driftline.storage.errors import (
    AccessDenied,
    DriftlineError,
    MissingExtra,
    ObjectNotFound,
    SourceNotFound,
    StorageError,
    UnknownScheme,
)
from driftline.storage.objects.bucket_options import for_fsspec
from driftline.storage.objects.request_counts import watch
from driftline.storage.sources.errors import translate

_ALIASES = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "adl": "az"}
_EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure"}
_FLAT = frozenset({"s3", "gs", "az"})
"""Stores whose ``find`` is one flat listing that raises when it fails; others are listed folder by folder."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_ETAG_KEYS = ("generation", "ETag", "etag", "CRC", "sha")
_MTIME_KEYS = ("LastModified", "last_modified", "mtime", "modified", "updated", "Last-Modified", "created")


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file: ``path`` is relative to the source and posix; ``mtime_ns`` is 0 and ``etag`` "" where unknown."""

    path: str
    size_bytes: int
    mtime_ns: int
    etag: str = ""


@dataclass(frozen=True)
class Source:
    """A tree of files to scan. Picklable: a worker opens its own connection.

    ``uri`` is an absolute local path or ``protocol://bucket/prefix``, without a trailing slash and without credentials.
    """

    uri: str
    storage_options: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    is_local: bool = True

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

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
        """The files below ``prefix`` ("" or a folder with a trailing slash), in no set order.

        Complete and fresh, or StorageError: a remote listing is finished before its first item is yielded, and
        a local one raises where it fails. A missing prefix is empty. Paths are as the store has them: odd keys
        (``a//b``) are the caller's to judge; folder markers (keys that end in a slash) are left out.
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
        """The folders (full relative path and a trailing slash) and the files directly in ``prefix``, sorted."""
        if self.is_local:
            return self._list_top_local(prefix)
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
        """``(folders directly in prefix, whether there are files, whether that is all)``, by one request if it can.

        Like ``list_top``, but of S3 only the first page of the listing, which may be one of many.
        """
        if self.uri.partition("://")[0] != "s3" or "::" in self.uri:
            folders, files = self.list_top(prefix)
            return folders, bool(files), True
        bucket, _, key = self._key(prefix).partition("/")
        below = f"{key.rstrip('/')}/" if key else ""
        try:
            page = self._fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=below, Delimiter="/")
        except Exception as error:  # raised again, translated: SDKs have no common base (source_errors)
            raise translate(error, f"{self.uri}/{prefix}", "Listing failed") from error
        found = (self._relative({"name": f"{bucket}/{entry['Prefix']}"}) for entry in page.get("CommonPrefixes", ()))
        return [folder for folder in found if folder], len(page.get("Contents", ())) > 0, not page["IsTruncated"]

    def read(self, path: str) -> bytes:
        """The bytes of a file. Raises ObjectNotFound, AccessDenied, StorageError; local links are not followed."""
        if self.is_local:
            return _read_local(self._local(path))
        try:
            return bytes(self._fs.cat_file(self._key(path)))
        except Exception as error:
            raise translate(error, f"{self.uri}/{path}") from error

    def read_many(self, paths: Sequence[str]) -> Sequence[bytes | DriftlineError]:
        """The bytes of each file or its error, in order; concurrently where the store allows it."""
        if self.is_local or not paths:
            return [self._read_or_error(path) for path in paths]
        try:
            # Not fs.cat(): it expands "*" and "[" in keys as globs.
            results = self._fs.cat_ranges([self._key(path) for path in paths], None, None, on_error="return")
        except Exception as error:
            raise translate(error, self.uri) from error
        return [
            translate(result, f"{self.uri}/{path}") if isinstance(result, BaseException) else bytes(result)
            for path, result in zip(paths, results, strict=True)
        ]

    def stat(self, path: str) -> FileInfo | None:
        """What the store says of one file now; None if there is no such file."""
        if self.is_local:
            try:
                found = os.lstat(self._local(path))
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                raise translate(error, f"{self.uri}/{path}") from error
            return FileInfo(path, found.st_size, found.st_mtime_ns) if stat_module.S_ISREG(found.st_mode) else None
        try:
            self._fs.invalidate_cache()
            entry = self._fs.info(self._key(path))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise translate(error, f"{self.uri}/{path}") from error
        return self._info(entry, path) if entry["type"] == "file" else None

    def _read_or_error(self, path: str) -> bytes | DriftlineError:
        try:
            return self.read(path)
        except DriftlineError as error:
            return error

    def _list_top_local(self, prefix: str) -> tuple[Sequence[str], Sequence[FileInfo]]:
        folders: list[str] = []
        files: list[FileInfo] = []
        try:
            with os.scandir(self._local(prefix)) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(f"{prefix}{entry.name}/")
                    elif entry.is_file(follow_symlinks=False):
                        info = self.stat(prefix + entry.name)
                        if info is not None:
                            files.append(info)
        except FileNotFoundError as error:
            if not prefix:
                raise translate(error, self.uri) from error
        except OSError as error:
            raise translate(error, f"{self.uri}/{prefix}") from error
        return sorted(folders), sorted(files, key=lambda info: info.path)

    def _find(self, prefix: str) -> Iterator[FileInfo]:
        try:
            self._fs.invalidate_cache()
            found = self._fs.find(self._key(prefix).rstrip("/"), detail=True)
            # adlfs reports a missing container as an empty one, and a blob at the prefix as a list.
            if self.uri.startswith("az://") and not found and not self._bucket_exists():
                raise FileNotFoundError(self.uri)
        except Exception as error:
            raise translate(error, f"{self.uri}/{prefix}", "Listing failed") from error
        for entry in found.values() if isinstance(found, Mapping) else ():
            path = self._relative(entry)
            if path and path.startswith(prefix) and not path.endswith("/"):
                yield self._info(entry, path)

    def _descend(self, prefix: str) -> Iterator[Sequence[FileInfo]]:
        pending, seen = [prefix], {prefix}
        while pending:
            folders, files = self.list_top(pending.pop())
            yield files
            # A store may answer a folder with itself.
            fresh = [folder for folder in folders if folder not in seen]
            seen.update(fresh)
            pending.extend(fresh)

    def _entries(self, prefix: str) -> Iterable[Mapping[str, Any]]:
        try:
            self._fs.invalidate_cache()
            return list(self._fs.ls(self._key(prefix).rstrip("/"), detail=True))
        except FileNotFoundError as error:
            # An empty prefix is no failure, a missing bucket is one.
            if self.uri.partition("://")[0] in _FLAT and not self._bucket_exists():
                raise translate(error, self.uri, "Listing failed") from error
            return []
        except Exception as error:
            raise translate(error, f"{self.uri}/{prefix}", "Listing failed") from error

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
                raise translate(error, f"{self.uri}/{path}") from error
        etag = next((str(entry[key]) for key in _ETAG_KEYS if entry.get(key)), "")
        mtime = next((entry[key] for key in _MTIME_KEYS if entry.get(key)), None)
        return FileInfo(path, int(entry.get("size") or 0), _nanoseconds(mtime), etag.strip('"'))

    def _local(self, path: str) -> str:
        return f"{self.uri.rstrip('/')}/{path}"

    def _key(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}" if self._root else path


def open_source(
    uri: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None, *, allow_empty: bool = False
) -> Source:
    """The source at a path or an fsspec URL, after one look at it.

    ``allow_empty`` accepts a prefix without any file in a bucket that exists (a known source that was emptied).
    Raises SourceNotFound, UnknownScheme, MissingExtra, AccessDenied.
    """
    text = os.fspath(uri)
    options = dict(storage_options or {})
    scheme, separator, rest = text.partition("://")
    if not separator and "::" not in text:
        return _open_local(text)
    if scheme in ("file", "local"):
        return _open_local(rest)
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
        raise SourceNotFound("The source cannot be listed", source.uri, str(error.__cause__ or error)) from error
    if not folders and not files and not allow_empty:
        raise SourceNotFound("No files", source.uri, "Check the spelling, and that it is a folder, not a file.")
    return source


def known_source(uri: str, storage_options: Mapping[str, Any] | None = None) -> Source:
    """The source that ``open_source`` once returned as ``uri``, without a look at it."""
    return Source(uri, dict(storage_options or {}), is_local="://" not in uri and "::" not in uri)


def _open_local(text: str) -> Source:
    path = text
    try:
        path = os.path.realpath(Path(text).expanduser())
        os.scandir(path).close()
    except FileNotFoundError as error:
        raise SourceNotFound("No such folder", path, "Check the spelling.") from error
    except NotADirectoryError as error:
        raise SourceNotFound("A source is a folder, and this is a file", path, "Give its folder.") from error
    except PermissionError as error:
        raise AccessDenied("The folder cannot be read", path, "Check its permissions.") from error
    except (OSError, ValueError) as error:
        raise SourceNotFound("The folder cannot be read", repr(path), str(error)) from error
    return Source(path, {}, is_local=True)


def _split_credentials(scheme: str, rest: str) -> tuple[str, dict[str, Any]]:
    """The URI without user and password, and the options that fsspec takes from the full one."""
    uri = f"{scheme}://{rest}"
    options = dict(_file_system_class(uri, scheme)._get_kwargs_from_urls(uri))
    netloc, slash, tail = rest.partition("/")
    # az://container@account: the part before the @ is no user.
    netloc = netloc.partition("@")[0] if scheme == "az" else netloc.rpartition("@")[2]
    path = re.sub(r"/+$", "", slash + tail)
    if not netloc and scheme != "memory":
        raise SourceNotFound("A URI without a bucket or host", f"{scheme}://", "For example: s3://bucket/folder.")
    return f"{scheme}://{(netloc + path).lstrip('/') if scheme == 'memory' else netloc + path}", options


def _file_system_class(uri: str, scheme: str) -> Any:
    import fsspec  # 0.2 s that a local source need not pay

    try:
        return fsspec.get_filesystem_class(scheme)
    except ValueError as error:
        known = "a path, s3, gs, az, memory, http and what fsspec knows"
        raise UnknownScheme(f"Unknown scheme {scheme!r}", uri, f"Use {known}.") from error
    except ImportError as error:
        extra = _EXTRAS.get(scheme)
        fix = f"Run: pip install 'driftline[{extra}]'" if extra else str(error)
        raise MissingExtra(f"{scheme}:// needs an optional dependency", uri, fix) from error


def _connect(uri: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    if "::" not in uri:
        _file_system_class(uri, uri.partition("://")[0])
    from fsspec.core import url_to_fs

    try:
        known = for_fsspec(uri.partition("://")[0], options)
        fs, root = url_to_fs(uri, use_listings_cache=False, skip_instance_cache=True, **known)
        if "::" not in uri:
            watch(fs, uri.partition("://")[0])
    except Exception as error:
        raise translate(error, uri, "The source cannot be opened") from error
    return fs, str(root).rstrip("/") or str(root)[:1]


def _read_local(path: str) -> bytes:
    # Not following links and not blocking: the file may have become a link or a pipe since it was listed.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise translate(error, path) from error
    with open(descriptor, "rb") as file:
        if not stat_module.S_ISREG(os.fstat(descriptor).st_mode):
            raise ObjectNotFound("Not a regular file", path)
        try:
            return file.read()
        except OSError as error:
            raise translate(error, path) from error


def _nanoseconds(moment: Any) -> int:
    if isinstance(moment, str):
        try:
            moment = datetime.datetime.fromisoformat(moment)
        except ValueError:
            return 0
    if isinstance(moment, datetime.datetime):
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        # Exact to the microsecond, which a float of seconds is not.
        microseconds: int = (moment - _EPOCH) // datetime.timedelta(microseconds=1)
        return microseconds * 1000
    return round(moment * 1_000_000) * 1000 if isinstance(moment, (int, float)) else 0

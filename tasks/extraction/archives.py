"""Open archives and email as folders: each file inside is a separate document, with a path like ``a.zip!/b/c.txt``.

Zip files (jar, whl), tar files, compressed or not, and emails with attachments are containers. With the ``archives``
option, a run lists the members of new and changed containers, and reads the changed members. Both happen in a separate
process (``tasks.extraction.process``), with limits on size, number and nesting. A member's etag is its content hash, or
the reason why it cannot be indexed.
"""

from __future__ import annotations

import base64
import copy
import io
import json
import lzma
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, cast

from driftline.storage.documents import INSIDE, SkipReason, content_hash
from driftline.tasks.extraction.compression import MAX_UNPACKED_BYTES, is_tar, stream_of
from driftline.tasks.extraction.extractor import choose, is_archive
from driftline.tasks.extraction.process import Refused, extract_apart
from driftline.tasks.text import decode, is_utf8

VERSION = 4
"""The version of the member listing."""
OF_CONTENT, OF_REASON = OF_MEMBERS = "member:", "member!"
"""Prefixes of members' etags."""
MAX_CONTAINER_BYTES = 2**30
"""Maximum unpacked size of a container, including nested ones."""
MAX_CONTAINED = 100_000
"""Maximum number of members of a container, including the members of nested containers."""
MAX_NESTING = 3
"""Maximum depth of nested containers to open."""
_HASH = re.compile(r"[0-9a-f]{32}")
_LENGTH = struct.Struct("<Q")
_BROKEN = (
    EOFError, LookupError, NotImplementedError, OSError, RuntimeError, ValueError, lzma.LZMAError, struct.error,
    tarfile.TarError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Errors that the libraries raise for damaged members."""


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a container, with its ``path`` in the source.

    It has a content hash, or a ``reason`` why there is none.
    """

    path: str
    size_bytes: int
    content_hash: str
    reason: SkipReason | None = None

    @property
    def etag(self) -> str:
        """The etag to compare with the manifest."""
        return f"{OF_REASON}{self.reason.value}" if self.reason is not None else f"{OF_CONTENT}{self.content_hash}"


@dataclass(frozen=True, slots=True)
class OpenedArchive:
    """A container listed by a scan: its content hash, or the ``reason`` why it cannot be listed."""

    content_hash: str
    reason: SkipReason | None = None


def is_member_etag(etag: str) -> bool:
    """Return whether an etag belongs to a member of a container."""
    return etag.startswith(OF_MEMBERS)


def reason_in(etag: str) -> SkipReason | None:
    """Return the reason in the etag of an unindexable member, or None for any other etag."""
    return SkipReason(etag.removeprefix(OF_REASON)) if etag.startswith(OF_REASON) else None


def members_of(path: str, data: bytes) -> list[Member]:
    """List the members of the container at ``path`` with content ``data``; empty if it is not a container.

    If the container has several members with one path, the path is repeated with the reason REPLACED. Raises Refused.
    """
    answer = extract_apart(f"{__name__}:list_members", _request(path, data))
    found: list[Member] = []
    try:
        for name, size, digest, reason in answer["members"]:
            if not (isinstance(name, str) and name.startswith(path + INSIDE) and isinstance(size, int)):
                raise ValueError(name)
            why = SkipReason(reason) if reason else None
            if is_plain(name.removeprefix(path + INSIDE)) is not None and why is None:
                raise ValueError(name)
            if why is None and not _HASH.fullmatch(digest):
                raise ValueError(digest)
            found.append(Member(name, size, digest if why is None else "", why))
    except (KeyError, TypeError, ValueError):  # a malicious file may have taken over the process
        raise Refused(SkipReason.DAMAGED) from None
    return found


def read_members(path: str, data: bytes, requested: Mapping[str, str]) -> dict[str, bytes]:
    """Return the contents of a container's members, keyed by path, omitting missing and changed members.

    ``requested`` maps paths to expected content hashes. Raises Refused.
    """
    answer = extract_apart(f"{__name__}:unpack_members", _request(path, data, requested))
    try:
        return {str(name): base64.b64decode(content) for name, content in answer["contents"].items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise Refused(SkipReason.DAMAGED) from None


def is_plain(name: str) -> SkipReason | None:
    """Return why a member called ``name`` is not indexed, or None if the name is a plain relative path.

    Examples:
        >>> is_plain("docs/a.txt"), is_plain("../a.txt"), is_plain("C:\\\\a.txt")
        (None, <SkipReason.ODD_KEY: 'key is not a plain path'>, <SkipReason.ODD_KEY: 'key is not a plain path'>)
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        return SkipReason.BAD_NAME
    parts = name.split("/")
    odd = any(part in ("", ".", "..") for part in parts) or any(mark in name for mark in ("\0", "\\", "\n"))
    return SkipReason.ODD_KEY if odd or len(name) > _MAX_NAME else None


_MAX_NAME = 1_024


def _request(path: str, data: bytes, requested: Mapping[str, str] | None = None) -> bytes:
    head = json.dumps({"path": path, "requested": dict(requested or {})}).encode()
    return b"".join((_LENGTH.pack(len(head)), head, data))


# -- in the other process ------------------------------------------------------------------------

_Content = bytes | SkipReason


@dataclass(frozen=True, slots=True)
class _Answer:
    said: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return self.said


@dataclass(slots=True)
class _Limits:
    """The remaining limits for a container and the containers inside."""

    bytes_left: int = field(default_factory=lambda: MAX_CONTAINER_BYTES)
    members_left: int = field(default_factory=lambda: MAX_CONTAINED)

    def take(self, size: int) -> None:
        """Count unpacked bytes. Raises Refused."""
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise Refused(SkipReason.BOMB)

    def member(self) -> None:
        """Count a member. Raises Refused."""
        self.members_left -= 1
        if self.members_left < 0:
            raise Refused(SkipReason.BOMB)


def list_members(request: bytes) -> _Answer:
    """List all members and their hashes. Raises Refused."""
    path, _, data = _parsed(request)
    found: dict[str, tuple[int, str, str]] = {}
    replaced: list[tuple[str, int, str, str]] = []
    for name, content in _walk(path, data, _Limits(), 0):
        if name in found:  # the last member with a name wins, as in unpacking programs
            replaced.append((name, 0, "", SkipReason.REPLACED))
        found[name] = (len(content), content_hash(content), "") if isinstance(content, bytes) else (0, "", content)
    members = [*((name, *each) for name, each in found.items()), *replaced]
    return _Answer({"members": [(name.encode(errors="replace").decode(), *each) for name, *each in members]})


def unpack_members(request: bytes) -> _Answer:
    """Return the requested members as base64, unpacking no more than necessary. Raises Refused."""
    path, requested, data = _parsed(request)
    containers = {name[: found.start()] for name in requested for found in re.finditer(INSIDE, name)}
    contents: dict[str, str] = {}
    for name, content in _walk(path, data, _Limits(), 0, containers.union(requested)):
        if isinstance(content, bytes) and content_hash(content) == requested.get(name):
            contents[name] = base64.b64encode(content).decode()
            if len(contents) == len(requested):
                break
    return _Answer({"contents": contents})


def _parsed(request: bytes) -> tuple[str, dict[str, str], bytes]:
    (length,) = _LENGTH.unpack(request[: _LENGTH.size])
    head = json.loads(request[_LENGTH.size : _LENGTH.size + length])
    return head["path"], head["requested"], request[_LENGTH.size + length :]


def _walk(
    path: str, data: bytes, limits: _Limits, depth: int, requested: Set[str] | None = None
) -> Iterator[tuple[str, _Content]]:
    """Yield each member's path and content, or the reason why there is none, including nested members.

    In zip files, only the ``requested`` members and nested containers are unpacked. Raises Refused.
    """
    members = _members(path, data, limits)
    if members is None:
        return

    for name, unpack in members:
        limits.member()
        inside = path + INSIDE + name
        if (odd := is_plain(name)) is not None:
            yield inside, odd
            continue
        if requested is not None and inside not in requested:
            continue
        try:
            content = unpack()
        except _BROKEN:
            content = SkipReason.DAMAGED
        if not isinstance(content, bytes):
            yield inside, content
            continue
        is_folder = is_archive(inside, content)
        if not is_folder:
            yield inside, content
        if is_folder or _messages_in(inside, content) is not None:
            yield from _nested(inside, content, limits, depth + 1, requested, is_folder=is_folder)


def _nested(
    path: str, data: bytes, limits: _Limits, depth: int, requested: Set[str] | None, *, is_folder: bool
) -> Iterator[tuple[str, _Content]]:
    """Yield a nested container's members or, if it cannot be opened, the container itself with the reason."""
    if depth >= MAX_NESTING:
        if is_folder:
            yield path, SkipReason.NESTED
        return
    try:
        yield from _walk(path, data, limits, depth, requested)
    except Refused as refused:
        if refused.reason == SkipReason.BOMB:
            raise
        yield path, refused.reason


_Unpack = Callable[[], _Content]


def _members(path: str, data: bytes, limits: _Limits) -> Iterator[tuple[str, _Unpack]] | None:
    """Return a container's members, each with a function that unpacks it, or None for any other file."""
    messages = _messages_in(path, data)
    if messages is not None:
        return _attachments(data, limits, is_mailbox=messages)
    if not is_archive(path, data):
        return None
    return _in_tar(data, limits) if is_tar(data) else _in_zip(data, limits)


def _messages_in(path: str, data: bytes) -> bool | None:
    """Return whether a file is a mailbox (True) or a single email (False), or None for other files."""
    if len(data) > MAX_UNPACKED_BYTES:
        return None
    extractor = choose(path, data[:_JUDGED_BYTES]).extractor
    return extractor.name == "mailbox" if extractor is not None and extractor.name in ("mail", "mailbox") else None


_JUDGED_BYTES = 64 * 1024


def _limited(file: IO[bytes], limits: _Limits) -> _Content:
    """Read a member, up to the maximum size of a document."""
    content = file.read(MAX_UNPACKED_BYTES + 1)
    limits.take(len(content))
    return content if len(content) <= MAX_UNPACKED_BYTES else SkipReason.TOO_LARGE


def _in_zip(data: bytes, limits: _Limits) -> Iterator[tuple[str, _Unpack]]:
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except _BROKEN:
        raise Refused(SkipReason.DAMAGED) from None
    infos = archive.infolist()
    for name, info in zip(_names_in_zip(infos), infos, strict=True):
        if not name.endswith("/"):
            yield name.removeprefix("./"), partial(_from_zip, archive, info, limits)


def _names_in_zip(infos: Sequence[zipfile.ZipInfo]) -> list[str]:
    """Return the members' names; without a UTF-8 mark, they are in the encoding of the machine that zipped them.

    The library reads these as cp437, unless an extra field has the name, which is UTF-8.
    """
    names = [info.filename for info in infos]
    unmarked = [
        at
        for at, info in enumerate(infos)
        if not (info.flag_bits & _UTF_8 or info.filename.isascii()) and info.filename == info.orig_filename
    ]
    decoded = _decoded_names([names[at].encode("cp437") for at in unmarked])
    for at, name in zip(unmarked, decoded, strict=True):
        names[at] = name
    is_dos = [info.create_system == 0 for info in infos]  # whose programs may separate folders as Windows does
    return [name.replace("\\", "/") if dos else name for name, dos in zip(names, is_dos, strict=True)]


_UTF_8 = 0x800
_NO_CP437 = re.compile(rb"[\xa8-\xff]")
"""Signs in cp437, and letters in most other encodings."""


def _decoded_names(raw: Sequence[bytes]) -> list[str]:
    """Decode names that are in one encoding: UTF-8, cp437 (Western machines), or one that is detected."""
    joined = b"\n".join(raw)
    if is_utf8(joined) or _NO_CP437.search(joined):
        text, reason = decode(joined)
        names = text.split("\n")
        if reason is None and len(names) == len(raw):
            return names
    return [name.decode("cp437") for name in raw]


def _from_zip(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limits: _Limits) -> _Content:
    if info.flag_bits & 0x1:
        return SkipReason.ENCRYPTED
    if stat.S_ISLNK(info.external_attr >> 16):
        return SkipReason.LINK
    try:
        return _unpacked(archive, info, limits)
    except MemoryError:  # the dictionary of an xz or LZMA member, which other members do not need
        return SkipReason.BOMB


def _unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limits: _Limits) -> _Content:
    if info.compress_type in _METHODS_OF_STREAMS:
        content = _limited(stream_of(_packed(archive, info)), limits)
        is_whole = not isinstance(content, bytes) or zlib.crc32(content) == info.CRC
    else:
        try:
            file = archive.open(info)
        except NotImplementedError:
            return SkipReason.OTHER_COMPRESSION
        with file:
            content = _limited(file, limits)
        is_whole = not isinstance(content, bytes) or len(content) == info.file_size
    return content if is_whole else SkipReason.DAMAGED


_METHODS_OF_STREAMS = (93, 95)
"""Zip's numbers for zstd and xz, which the library does not read: such a member is a whole compressed file."""


def _packed(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Return a member's content as it is compressed."""
    stored = copy.copy(info)
    stored.compress_type, stored.file_size = zipfile.ZIP_STORED, info.compress_size
    del stored.CRC
    with archive.open(stored) as file:
        return file.read()


class _Counted(io.RawIOBase):
    """A tar file's stream that counts its bytes, because skipped members are also unpacked."""

    def __init__(self, stream: IO[bytes], limits: _Limits) -> None:
        self._stream, self._limits = stream, limits

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        part = cast(io.BufferedIOBase, self._stream).read1(size)  # stops before data that follows the last member
        self._limits.take(len(part))
        return part


def _in_tar(data: bytes, limits: _Limits) -> Iterator[tuple[str, _Unpack]]:
    try:
        stream = cast(IO[bytes], _Counted(stream_of(data), limits))
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for info in archive:
                if not info.isdir():
                    yield info.name.removeprefix("./"), partial(_from_tar, archive, info, limits)
    except _BROKEN:
        raise Refused(SkipReason.DAMAGED) from None


def _from_tar(archive: tarfile.TarFile, info: tarfile.TarInfo, limits: _Limits) -> _Content:
    if info.issym() or info.islnk():
        return SkipReason.LINK
    file = archive.extractfile(info) if info.isreg() else None
    uncounted = limits if info.issparse() else _Limits()  # the stream counts everything except holes
    return _limited(file, uncounted) if file is not None else SkipReason.UNREADABLE


def _attachments(data: bytes, limits: _Limits, *, is_mailbox: bool) -> Iterator[tuple[str, _Unpack]]:
    """Yield the attachments of an email, or of all emails in a mailbox, each in a numbered folder."""
    from driftline.tasks.extraction.text_formats import attachments, messages

    taken: set[str] = set()
    for number, message in enumerate(messages(data), start=1) if is_mailbox else [(0, data)]:
        for given, content in attachments(message):
            limits.take(len(content))
            name = f"{number}/{given}" if is_mailbox else given
            count = 1
            while name in taken:
                count += 1
                name = f"{number}/{count}-{given}" if is_mailbox else f"{count}-{given}"
            taken.add(name)
            yield name, partial(_as_is, content)


def _as_is(content: bytes) -> _Content:
    return content if len(content) <= MAX_UNPACKED_BYTES else SkipReason.TOO_LARGE


# -- settings ------------------------------------------------------------------------------------


def opened_mark(settings: object) -> str:
    """Return the mark of a container whose members were listed with ``settings``, identified by their ``repr``."""
    return f"{_MARK}{VERSION}-{content_hash(repr(settings).encode())[:8]}"


_MARK = "archive/"


def without_opened(mark: str) -> str:
    """Return the manifest mark that a file would have if it had not been opened as an archive.

    Examples:
        >>> without_opened("mail/1+archive/1-0123abcd+known/1")
        'mail/1+known/1'
    """
    return "+".join(part for part in mark.split("+") if not part.startswith(_MARK))

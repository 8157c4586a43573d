"""List and read a commit's tree in a git repository from its mirror, without a working tree.

A git process reads commits, trees and files, and stays running for later reads.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import re
import resource
import stat
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Literal, NamedTuple

from driftline.storage.documents import SkipReason
from driftline.storage.errors import ObjectNotFound, StorageError
from driftline.storage.sources.git_isolation import COMMIT_ID, git_version, parse_commit_time, spawn
from driftline.storage.sources.mirror import Mirror, Remote, parse_remote

MAX_TREE_BYTES = 512 * 1024 * 1024
"""Maximum size of a commit's listing, about four million files: a few small objects can expand to fill a disk."""
MAX_DIFF_BYTES = 16 * 1024 * 1024
_ENTRY_BYTES = 100
"""Approximate memory per tree entry, without its path."""
MAX_BLOB_BYTES = 1 << 30
OPEN_READERS = 4
"""Number of git processes to keep for more reads, in addition to the processes of ``more_readers``."""
MAX_MORE_READERS = 128
"""Maximum number of git processes added by ``more_readers``, enough for four groups of sources; each takes 0.3 MB."""
_FILES_A_READER = 8
"""The number of files that this process may open, divided by this, bounds the readers: each has two pipes and a lock,
and other code needs files as well.
"""
_IDS_AT_ONCE = 500
"""Number of requests sent per write. They take 90 bytes each and must fit into a pipe, so that neither side blocks."""
_FOLDERS_AT_ONCE_BYTES = 1 << 20
"""Size of the trees read per batch, unless a single tree is larger; as objects, they take ten times as much memory."""
MAX_PATH_BYTES = 4096
_FILE, _LINK, _FOLDER = stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR
_MODE = re.compile(rb"[0-7]{5,6}")
_NOT_PLAIN = frozenset({"", ".", "..", ".git"})

_Request = Literal["info", "contents"]
_PEELED = "^{commit}"
"""Git's suffix for the commit that a tag points to."""


class _Entry(NamedTuple):
    """A tree entry: the ``kind`` of file, and its content's id."""

    kind: int
    id: str


class _Object(NamedTuple):
    """A git object; without ``data`` if only its size was requested."""

    kind: bytes
    size: int
    data: bytes


_Tree = dict[bytes, _Entry]
"""The entries of a tree, keyed by name."""
_WHOLE = "Clone it without --filter, or index its URL."
_ENDLESS = "The tree of the commit has a cycle, or millions of files"


@dataclass(slots=True)
class _Budget:
    """How many bytes of trees may still be read."""

    left: int

    def allows(self, size: int) -> bool:
        """Spend ``size`` bytes; return False if that exceeds the budget."""
        self.left -= size
        return self.left >= 0


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A path in a commit. ``reason`` is why it is not a document; ``blob`` is its content's id."""

    path: str
    blob: str
    size_bytes: int
    reason: SkipReason | None = None

    @property
    def etag(self) -> str:
        return f"git:{self.blob}"


@dataclass(frozen=True)
class CommitTree:
    """The tree of ``commit`` in the repository at ``uri``; "" means the last fetched commit. Picklable.

    ``credential`` refers to the host's token, as ``user:NAME`` with the name of an environment variable.
    """

    uri: str
    commit: str = ""
    credential: str = dataclasses.field(default="", repr=False)

    @classmethod
    def of(cls, remote: Remote, commit: str) -> CommitTree:
        """Return the tree of ``commit`` in ``remote``; does not connect."""
        return cls(remote.uri, commit, f"{remote.user}:{remote.variable}" if remote.variable else "")

    def __getstate__(self) -> dict[str, str]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @cached_property
    def remote(self) -> Remote:
        """The repository, with a reference to its credentials."""
        found = parse_remote(self.uri)
        if found is None:
            raise StorageError("Not a URI of a git repository", self.uri)
        user, _, variable = self.credential.partition(":")
        return dataclasses.replace(found, user=user, variable=variable)

    @cached_property
    def mirror(self) -> Mirror:
        """The repository's mirror on this machine; each worker has its own."""
        return Mirror.of(self.remote)

    @cached_property
    def known_commit(self) -> str:
        """The commit id. Raises ObjectNotFound if no commit was ever fetched."""
        commit = self.commit or self.mirror.newest()
        if not commit:
            raise ObjectNotFound("This machine has no mirror of the repository", self.uri)
        return commit

    def entries(self, paths: Sequence[str] | None = None) -> list[TreeEntry]:
        """Return all entries of the commit, or only those at ``paths``, sorted by path, including submodules and links.

        Fetches the commit first. Raises AccessDenied, SourceNotFound, and StorageError, including for an endless tree
        and for a clone that lacks files.
        """
        wanted = None if paths is None else {path.encode() for path in paths if _is_plain(path)}
        folders = None if wanted is None else {path[:at] for path in wanted for at in _slashes(path)}
        found: dict[bytes, _Entry] = {}
        pending, size, budget = [(b"", self._root(self.known_commit))], 0, _Budget(MAX_TREE_BYTES)
        while pending:
            below: list[tuple[bytes, str]] = []
            for (prefix, _), tree in zip(pending, self._trees([each for _, each in pending], budget), strict=True):
                for name, entry in tree.items():
                    path = prefix + name
                    if entry.kind != _FOLDER and (wanted is None or path in wanted):
                        found.setdefault(path, entry)
                    elif entry.kind == _FOLDER and (folders is None or path in folders):
                        below.append((path + b"/", entry.id))
                size += sum(len(prefix) + len(name) + _ENTRY_BYTES for name in tree)
                if size > MAX_TREE_BYTES:
                    raise StorageError(_ENDLESS, self.uri)
            pending = below
        blobs = [entry.id for entry in found.values() if entry.kind in (_FILE, _LINK)]
        sizes = dict(zip(blobs, _read_objects(self, blobs, "info"), strict=True))
        if self.remote.is_local and None in sizes.values():
            raise StorageError("The clone lacks files of the commit (a partial clone)", self.uri, _WHOLE)
        return [_tree_entry(path, entry, sizes.get(entry.id)) for path, entry in sorted(found.items())]

    def changed_since(self, commit: str) -> list[str] | None:
        """Return the paths that differ between the tree of ``commit`` and this one, sorted.

        Reads only trees that differ. Returns None if the mirror has no ``commit`` or lacks one of its trees, or if
        there are too many differences to list. Raises the same errors as ``entries`` if the commit cannot be fetched.
        """
        with self.mirror.holding(self.known_commit):
            if not self.mirror.has(commit):
                return None
        try:
            return self._differing(commit)
        except StorageError:  # it may also concern this commit; a full listing fetches its trees again
            return None

    def _differing(self, commit: str) -> list[str] | None:
        found, size, budget = list[bytes](), 0, _Budget(MAX_TREE_BYTES)
        pending = [(b"", self._root(commit), self._root(self.known_commit))]
        while pending:
            below: list[tuple[bytes, str, str]] = []
            trees = self._trees([each for _, *both in pending for each in both], budget)
            for prefix, _, _ in pending:
                for name, old, new in _differences(next(trees), next(trees)):
                    path = prefix + name
                    folders = [each.id if each is not None and each.kind == _FOLDER else "" for each in (old, new)]
                    if any(each is not None and each.kind != _FOLDER for each in (old, new)):
                        found.append(path)
                    if folders[0] != folders[1]:
                        below.append((path + b"/", folders[0], folders[1]))
                    size += len(path) + _ENTRY_BYTES
                if size > MAX_DIFF_BYTES:
                    return None
            pending = below
        return [path.decode("utf-8", "backslashreplace") for path in sorted(found)]

    def committed(self) -> datetime:
        """Return the commit time. Raises StorageError."""
        if self.known_commit not in _times:
            self._root(self.known_commit)
        return _times.get(self.known_commit) or _time_of(b"")

    def _root(self, commit: str) -> str:
        """Return the root tree id of a commit. Raises ObjectNotFound."""
        (found,) = _read_objects(self, [commit], "contents", _PEELED)
        if found is None or not found.data.startswith(b"tree "):
            self.forget_mirror()
            raise ObjectNotFound(f"Git cannot read {commit[:12]} of the repository", self.uri, "Run the command again.")
        while len(_times) >= _TIMES_REMEMBERED:
            _times.popitem(last=False)
        _times[commit] = _time_of(found.data)
        return found.data[len(b"tree ") :].partition(b"\n")[0].decode("ascii", "replace")

    def _trees(self, ids: Sequence[str], budget: _Budget) -> Iterator[_Tree]:
        """Yield the content of each tree, with few in memory at a time; the id "" stands for an empty tree.

        Raises StorageError, including before it reads a tree that exceeds ``budget``.
        """
        for start in range(0, len(ids), _IDS_AT_ONCE):
            part = ids[start : start + _IDS_AT_ONCE]
            distinct = [*dict.fromkeys(each for each in part if each)]
            found = zip(distinct, _read_objects(self, distinct, "info"), strict=True)
            sizes = {"": 0} | {name: self._folder(each).size for name, each in found}
            for batch in _batches(part, sizes):
                if not budget.allows(sum(sizes[each] for each in batch)):
                    raise StorageError(_ENDLESS, self.uri)
                wanted, trees = [*dict.fromkeys(each for each in batch if each)], dict[str, _Tree]({"": {}})
                for name, each in zip(wanted, _read_objects(self, wanted, "contents"), strict=True):
                    try:
                        trees[name] = _parsed_tree(self._folder(each).data, len(name) // 2)
                    except ValueError as error:
                        raise self._unreadable() from error
                yield from (trees[name] for name in batch)

    def _folder(self, found: _Object | None) -> _Object:
        if found is None or found.kind != b"tree":
            raise self._unreadable()
        return found

    def _unreadable(self) -> StorageError:
        self.forget_mirror()
        what = f"Git cannot read a folder of commit {self.known_commit[:12]}"
        return StorageError(what, self.uri, "Run the command again.")

    def forget_mirror(self) -> None:
        """Delete a mirror that lacks objects, unless it is in use, so that the next run fetches them again.

        Programs that tidy caches delete single files.
        """
        if not self.remote.is_local:
            close_readers(str(self.mirror.folder))
            self.mirror.delete()

    def close(self) -> None:
        """Stop the process that waits for more reads."""
        close_readers(str(self.mirror.folder))

    def blobs(self, ids: Sequence[str]) -> list[bytes | None]:
        """Return the content of each blob, or None if the mirror lacks it. Raises the same errors as ``entries``."""
        found = [*_read_objects(self, ids, "contents")]
        if None in found:
            self.forget_mirror()
        return [each.data if each is not None and each.kind == b"blob" else None for each in found]


def _start(tree: CommitTree, *command: str) -> subprocess.Popen[bytes]:
    variables = tree.mirror.environment(tree.known_commit)
    unconfigured = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    try:
        return spawn(variables["GIT_DIR"], command, variables | unconfigured, stdin=subprocess.PIPE)
    except OSError as error:
        raise StorageError("Cannot run git", tree.uri, f"Install git ({error.strerror}).") from error


def _takes_commands() -> bool:
    """Return whether a single git process returns both sizes and contents (git 2.36 and later)."""
    return git_version() >= (2, 36)


def _is_plain(path: str) -> bool:
    """Return whether a path stays inside the tree and outside ``.git`` folders."""
    return len(path.encode()) <= MAX_PATH_BYTES and "\0" not in path and _NOT_PLAIN.isdisjoint(path.split("/"))


def _slashes(path: bytes) -> Iterator[int]:
    return (at for at, letter in enumerate(path) if letter == ord("/"))


def _batches(ids: Sequence[str], sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Split ``ids``, in order, into batches whose distinct trees stay small (in bytes)."""
    batch, size, known = list[str](), 0, set[str]()
    for each in ids:
        if batch and each not in known and size + sizes[each] > _FOLDERS_AT_ONCE_BYTES:
            yield batch
            batch, size, known = [], 0, set()
        size += 0 if each in known else sizes[each]
        known.add(each)
        batch.append(each)
    if batch:
        yield batch


def _parsed_tree(data: bytes, length: int) -> _Tree:
    r"""Parse a tree's entries, ``<mode> <name>\0<id>`` each, with ids of ``length`` bytes.

    If two have the same name, the first wins. Raises ValueError.
    """
    found: _Tree = {}
    at = 0
    while at < len(data):
        space = data.index(b" ", at)
        end = data.index(b"\0", space)
        mode, object_id = data[at:space], data[end + 1 : end + 1 + length]
        if len(object_id) != length:
            raise ValueError("an entry ends early")
        if not _MODE.fullmatch(mode):
            raise ValueError("an entry has no mode")
        found.setdefault(data[space + 1 : end], _Entry(stat.S_IFMT(int(mode, 8)), object_id.hex()))
        if len(found) > MAX_TREE_BYTES // _ENTRY_BYTES:
            raise ValueError("a folder has millions of entries")
        at = end + 1 + length
    return found


def _differences(before: _Tree, after: _Tree) -> Iterator[tuple[bytes, _Entry | None, _Entry | None]]:
    """Yield each name whose entries differ, with both entries."""
    for name in before.keys() | after.keys():
        old, new = before.get(name), after.get(name)
        if old != new:
            yield name, old, new


def _tree_entry(name: bytes, entry: _Entry, found: _Object | None) -> TreeEntry:
    path, reason = name.decode("utf-8", "backslashreplace"), None
    if entry.kind == _LINK:
        reason = SkipReason.LINK
    elif entry.kind != _FILE:
        reason = SkipReason.SUBMODULE
    elif not _is_plain(path):
        reason = SkipReason.ODD_KEY
    else:
        try:
            name.decode()
        except UnicodeDecodeError:
            reason = SkipReason.BAD_NAME
    return TreeEntry(path, entry.id, found.size if found is not None else 0, reason)


_times: OrderedDict[str, datetime] = OrderedDict()
"""The times of commits that this process read, by id: they never change."""
_TIMES_REMEMBERED = 10_000


def _time_of(commit: bytes) -> datetime:
    """Return the time in a commit's content; the epoch if it has none."""
    for line in commit.partition(b"\n\n")[0].split(b"\n"):
        if line.startswith(b"committer "):
            return parse_commit_time(line.rpartition(b">")[2].partition(b"+")[0].partition(b"-")[0])
    return parse_commit_time(b"")


# -- readers ------------------------------------------------------------------------------------


class _CatFile:
    """A ``git cat-file`` process (before git 2.36, two) in a mirror, which it protects from deletion; threads take
    turns.
    """

    def __init__(self, tree: CommitTree) -> None:
        self._tree = tree
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(tree.mirror.holding(tree.known_commit))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.is_open = True

    def read(self, requests: Sequence[str], kind: _Request) -> list[_Object | None] | None:
        """Return the object for each request, or None if it is missing; return None if the reader was closed.

        Raises StorageError.
        """
        with self._lock:
            if not self.is_open:
                return None
            try:
                return self._read(requests, kind)
            except (OSError, ValueError, IndexError) as error:
                self._end()
                fix = "Run 'git fsck' in it." if self._tree.remote.is_local else "Run the command again."
                what = f"Git cannot read the objects of the repository ({error})"
                raise StorageError(what, self._tree.uri, fix) from error
            except BaseException:  # an interrupted read leaves a response in the pipe that the next read would consume
                self._end()
                raise

    def _read(self, requests: Sequence[str], kind: _Request) -> list[_Object | None]:
        takes_commands = _takes_commands()
        option = "--batch-command" if takes_commands else "--batch" if kind == "contents" else "--batch-check"
        process = self._processes.get(option)
        if process is None:
            process = self._processes[option] = _start(self._tree, "cat-file", option)
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None
        command = f"{kind} " if takes_commands else ""
        stdin.write("".join(f"{command}{each}\n" for each in requests).encode("ascii"))
        stdin.flush()
        found: list[_Object | None] = []
        for each in requests:
            header = stdout.readline().split()
            is_missing = len(header) == 2 and header[1] == b"missing"
            is_other = header[0] != each.encode("ascii")
            if is_other and (is_missing or not each.endswith(_PEELED) or header[1] != b"commit"):
                raise ValueError("git's response is for a different request")
            if is_missing:
                found.append(None)
                continue
            size, data = int(header[2]), b""
            if kind == "contents":
                if size > MAX_BLOB_BYTES:
                    raise ValueError(f"an object has {size:,} bytes")
                data = stdout.read(size)
                if len(data) != size or stdout.read(1) != b"\n":
                    raise ValueError("an object ends early")
            found.append(_Object(header[1], size, data))
        return found

    def close(self) -> None:
        """Stop the process once no read is in progress, so that the mirror may be deleted."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self.is_open:
            self.is_open = False
            for process in self._processes.values():
                process.kill()
                for pipe in (process.stdin, process.stdout):
                    with contextlib.suppress(OSError):
                        if pipe is not None:
                            pipe.close()
                process.wait()
            self._stack.close()


_Key = tuple[int, str, str]
_readers: OrderedDict[_Key, _CatFile] = OrderedDict()
_readers_lock = threading.Lock()
_more_readers: list[int] = []


def _read_objects(tree: CommitTree, ids: Sequence[str], kind: _Request, peeled: str = "") -> Iterator[_Object | None]:
    """Yield the objects for ``ids``, in order, or None if the mirror does not have one.

    ``peeled`` is git's suffix for the object that a tag points to.
    """
    selected = [(each if COMMIT_ID.fullmatch(each) else "0" * 40) + peeled for each in ids]
    for start in range(0, len(selected), _IDS_AT_ONCE):
        found = None
        while found is None:
            reader = _reader(tree)
            try:
                found = reader.read(selected[start : start + _IDS_AT_ONCE], kind)
            except StorageError:
                tree.forget_mirror()
                raise
        yield from found


def _reader(tree: CommitTree) -> _CatFile:
    """Return this process's reader for a commit; other threads may be using it as well."""
    pid, folder = os.getpid(), str(tree.mirror.folder)
    key = pid, folder, tree.known_commit
    with _readers_lock:
        known = _readers.get(key)
        if known is not None and known.is_open:  # it holds the mirror
            _readers.move_to_end(key)
            return known
    tree.mirror.ensure(tree.known_commit)  # without the lock, because a fetch may be slow
    with _readers_lock:
        known = _readers.pop(key, None)
        if known is None or not known.is_open:
            known = _CatFile(tree)
        for other in [each for each in _readers if each[0] != pid]:
            del _readers[other]  # belongs to the parent process
        done = [each for each in _readers if each[1] == folder]
        excess = len(_readers) - len(done) + 1 - OPEN_READERS - _more_allowed()
        done += [each for each in _readers if each not in done][: max(0, excess)]
        idle = [_readers.pop(each) for each in done]
        _readers[key] = known
    for reader in idle:
        reader.close()
    return known


def _more_allowed() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_MORE_READERS if files == resource.RLIM_INFINITY else min(MAX_MORE_READERS, files // _FILES_A_READER)
    return min(sum(_more_readers), limit)


@contextlib.contextmanager
def more_readers(count: int) -> Iterator[None]:
    """Keep up to ``count`` more git processes open, for sources whose files are read only after other sources have been
    listed.

    There are at most ``MAX_MORE_READERS``, or fewer if this process may open few files.
    """
    _more_readers.append(count)
    try:
        yield
    finally:
        _more_readers.remove(count)
        close_readers()


def close_readers(folder: str | None = None) -> None:
    """Stop the processes that wait for more reads of all mirrors, or of the mirror in ``folder``."""
    with _readers_lock:
        found = {key: _readers.pop(key) for key in [*_readers] if folder in (None, key[1])}
    for (pid, _, _), reader in found.items():
        if pid == os.getpid():
            reader.close()


atexit.register(close_readers)

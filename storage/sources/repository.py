"""List and read the tree of a commit of a git repository from its mirror, without a work tree.

A git process reads blobs, and stays for later reads.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import resource
import signal
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from driftline.storage.errors import ObjectNotFound, StorageError
from driftline.storage.model import SkipReason
from driftline.storage.sources.isolation import spawn
from driftline.storage.sources.mirror import COMMIT_ID, Mirror, Remote, parse_remote

MAX_TREE_BYTES = 512 * 1024 * 1024
"""Maximum size of the listing of a commit, of some five million files: a few small objects can expand to more than a
disk."""
MAX_DIFF_BYTES = 16 * 1024 * 1024
MAX_DIFF_MEMORY_BYTES = 512 * 1024 * 1024
"""Git collects all differences before it prints the first one, so an endless tree would take all memory."""
MAX_BLOB_BYTES = 1 << 30
OPEN_READERS = 4
"""Git processes that wait for further reads; others are ended."""
_IDS_AT_ONCE = 500
"""Ids of 65 bytes each: fewer than fill a pipe, so that neither side blocks."""
_PATHS_AT_ONCE = 100
MAX_PATH_BYTES = 4096
"""Maximum length of a path; a hundred of them fit into the arguments of a command."""
_LINK, _SUBMODULE = "120000", "160000"
_NOT_PLAIN = frozenset({"", ".", "..", ".git"})
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A path of a commit. ``reason`` says why it is not a document; ``blob`` is the id of its content."""

    path: str
    blob: str
    size_bytes: int
    reason: SkipReason | None = None

    @property
    def etag(self) -> str:
        return f"git:{self.blob}"


@dataclass(frozen=True)
class CommitTree:
    """The tree of ``commit`` of the repository ``uri``; if that is "", of the commit that was fetched last. Picklable.

    ``credential`` refers to the token of the host, as ``user:NAME`` of an environment variable.
    """

    uri: str
    commit: str = ""
    credential: str = dataclasses.field(default="", repr=False)

    @classmethod
    def of(cls, remote: Remote, commit: str) -> CommitTree:
        """Return the tree of ``commit`` of ``remote``; contacts nothing."""
        return cls(remote.uri, commit, f"{remote.user}:{remote.variable}" if remote.variable else "")

    def __getstate__(self) -> dict[str, str]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @cached_property
    def remote(self) -> Remote:
        """The repository, with the reference to its credentials."""
        found = parse_remote(self.uri)
        if found is None:
            raise StorageError("Not a URI of a git repository", self.uri)
        user, _, variable = self.credential.partition(":")
        return dataclasses.replace(found, user=user, variable=variable)

    @cached_property
    def mirror(self) -> Mirror:
        """The mirror of the repository on this machine, where each worker has one."""
        return Mirror.of(self.remote)

    @cached_property
    def known_commit(self) -> str:
        """The id of the commit. Raises ObjectNotFound if none was ever fetched."""
        commit = self.commit or self.mirror.newest()
        if not commit:
            raise ObjectNotFound("This machine has no mirror of the repository", self.uri)
        return commit

    def entries(self, paths: Sequence[str] | None = None) -> list[TreeEntry]:
        """Return the entries of the commit, or those at ``paths``, including submodules and links, in the order of git.

        Fetches the commit first. Raises AccessDenied, SourceNotFound, StorageError, also for an endless tree.
        """
        options = ("ls-tree", "-r", "-l", "-z", "--full-tree", self.known_commit)
        with self.mirror.holding(self.known_commit):
            if paths is None:
                return list(_parsed(self._output(options, MAX_TREE_BYTES)))
            found: list[TreeEntry] = []
            possible = [path for path in paths if _is_plain(path)]
            for start in range(0, len(possible), _PATHS_AT_ONCE):
                some = possible[start : start + _PATHS_AT_ONCE]
                output = self._output(("--literal-pathspecs", *options[:1], *options[2:], "--", *some), MAX_TREE_BYTES)
                selected = set(some)
                found += (entry for entry in _parsed(output) if entry.path in selected)
            return found

    def changed_since(self, commit: str) -> list[str] | None:
        """Return the paths that differ between the trees of ``commit`` and of this one.

        Returns None if the mirror lacks ``commit``, or if there are too many to list. Raises the errors of ``entries``.
        """
        mirror = self.mirror
        with mirror.holding(self.known_commit):
            if not mirror.has(commit):
                return None
            try:
                command = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", commit, self.known_commit)
                output = self._output(command, MAX_DIFF_BYTES, memory_bytes=MAX_DIFF_MEMORY_BYTES)
            except StorageError:
                return None
        return [name.decode("utf-8", "backslashreplace") for name in output.split(b"\0")[:-1]]

    def committed(self) -> datetime:
        """Return the time of the commit. Raises StorageError."""
        if self.known_commit not in _times:
            list(_read_objects(self, [self.known_commit]))
        return _times.get(self.known_commit) or _time_of(b"")

    def blobs(self, ids: Sequence[str]) -> list[bytes | None]:
        """Return the content of each blob; None for a blob that the mirror lacks. Raises the errors of ``entries``."""
        return list(_read_objects(self, ids))

    def _output(self, command: Sequence[str], max_bytes: int, *, memory_bytes: int | None = None) -> bytes:
        """Return the output of a command that reads the mirror, which the caller holds."""
        with _start(self, command) as process:
            assert process.stdout is not None
            if memory_bytes is not None:
                _limit_memory(process.pid, memory_bytes)
            parts: list[bytes] = []
            length = 0
            while part := process.stdout.read(_CHUNK):
                parts.append(part)
                length += len(part)
                if length > max_bytes:
                    process.kill()
                    raise StorageError("The tree of the commit has a cycle, or millions of files", self.uri)
        if process.returncode != 0:
            raise StorageError(f"Git cannot read {self.known_commit[:12]} of the repository", self.uri, "Run it again.")
        return b"".join(parts)


def _start(tree: CommitTree, command: Sequence[str], stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    variables = tree.mirror.environment(tree.known_commit)
    unconfigured = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    try:
        return spawn(variables["GIT_DIR"], command, variables | unconfigured, stdin=stdin)
    except OSError as error:
        raise StorageError("Git cannot be run", tree.uri, f"Install git ({error.strerror}).") from error


def _limit_memory(pid: int, memory_bytes: int) -> None:
    """Limit the memory that a process allocates, not that it maps. Raises StorageError if that is not possible."""
    try:
        resource.prlimit(pid, resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    except ProcessLookupError:
        pass  # it is done
    except (AttributeError, OSError, ValueError) as error:
        os.kill(pid, signal.SIGKILL)
        raise StorageError("This system cannot limit the memory of git", fix=str(error)) from error


def _is_plain(path: str) -> bool:
    """Return whether a path leads to a file within a tree that does not belong to git."""
    return len(path.encode()) <= MAX_PATH_BYTES and "\0" not in path and _NOT_PLAIN.isdisjoint(path.split("/"))


def _parsed(listing: bytes) -> Iterator[TreeEntry]:
    r"""Yield the entries ``100644 blob <id> <size>\t<path>`` of ``ls-tree -l -z``; of two at one path, the first."""
    seen = set[str]()
    for line in listing.split(b"\0")[:-1]:
        meta, _, name = line.partition(b"\t")
        mode, _, blob, size = meta.decode("ascii").split()
        path, reason = name.decode("utf-8", "backslashreplace"), None
        if mode == _SUBMODULE:
            reason = SkipReason.SUBMODULE
        elif mode == _LINK:
            reason = SkipReason.LINK
        elif not _is_plain(path):
            reason = SkipReason.ODD_KEY
        else:
            try:
                name.decode()
            except UnicodeDecodeError:
                reason = SkipReason.BAD_NAME
        if mode[:2] != "04" and path not in seen:  # a folder in place of a file
            seen.add(path)
            yield TreeEntry(path, blob, int(size) if size.isdecimal() else 0, reason)


_times: OrderedDict[str, datetime] = OrderedDict()
"""The times of commits that readers of this process have opened: an id determines its content."""
_TIMES_REMEMBERED = 10_000


def _time_of(commit: bytes) -> datetime:
    """Return the time in the content of a commit; the epoch if it has none."""
    for line in commit.partition(b"\n\n")[0].split(b"\n"):
        if line.startswith(b"committer "):
            with contextlib.suppress(ValueError, IndexError, OverflowError):
                return datetime.fromtimestamp(int(line.split()[-2]), UTC)
    return datetime.fromtimestamp(0, UTC)


# -- readers ------------------------------------------------------------------------------------


class _Reader:
    """A ``git cat-file --batch`` in a mirror that it keeps in use; threads take turns."""

    def __init__(self, tree: CommitTree) -> None:
        self._where = tree.uri
        self._commit = tree.known_commit
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(tree.mirror.holding(tree.known_commit))
        self.is_open = True
        try:
            self._process = _start(tree, ("cat-file", "--batch"), subprocess.PIPE)
        except BaseException:
            self._stack.close()
            raise

    def read(self, ids: Sequence[str]) -> list[bytes | None] | None:
        """Return the object of each id, or None for a missing one; None if the reader was closed.

        Raises StorageError.
        """
        with self._lock:
            if not self.is_open:
                return None
            try:
                if self._commit in _times:
                    return self._read(ids)
                commit, *found = self._read([self._commit, *ids])
                if commit is not None:
                    _times[self._commit] = _time_of(commit)
                while len(_times) > _TIMES_REMEMBERED:
                    _times.popitem(last=False)
                return found
            except (OSError, ValueError, IndexError) as error:
                self._end()
                raise StorageError("Git cannot read the objects of the repository", self._where, str(error)) from error

    def _read(self, ids: Sequence[str]) -> list[bytes | None]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write("".join(f"{each}\n" for each in ids).encode("ascii"))
        stdin.flush()
        found: list[bytes | None] = []
        for _ in ids:
            header = stdout.readline().split()
            if len(header) == 2 and header[1] == b"missing":
                found.append(None)
                continue
            size = int(header[2])
            if size > MAX_BLOB_BYTES:
                raise ValueError(f"an object has {size:,} bytes")
            data = stdout.read(size)
            if len(data) != size or stdout.read(1) != b"\n":
                raise ValueError("an object ends early")
            found.append(data)
        return found

    def close(self) -> None:
        """End the process once nothing is read, and let others delete the mirror."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self.is_open:
            self.is_open = False
            self._process.kill()
            for pipe in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
            self._process.wait()
            self._stack.close()


_Key = tuple[int, str, str]
_readers: OrderedDict[_Key, _Reader] = OrderedDict()
_readers_lock = threading.Lock()


def _read_objects(tree: CommitTree, ids: Sequence[str]) -> Iterator[bytes | None]:
    """Yield the objects of ``ids``, in order; None for one that the mirror does not have."""
    selected = [each if COMMIT_ID.fullmatch(each) else "0" * 40 for each in ids]
    for start in range(0, len(selected), _IDS_AT_ONCE):
        found = None
        while found is None:
            found = _reader(tree).read(selected[start : start + _IDS_AT_ONCE])
        yield from found


def _reader(tree: CommitTree) -> _Reader:
    """Return the reader of this process for a commit, which other threads may use as well."""
    tree.mirror.ensure(tree.known_commit)  # not under the lock: a fetch may take long
    pid, folder = os.getpid(), str(tree.mirror.folder)
    key = pid, folder, tree.known_commit
    with _readers_lock:
        known = _readers.pop(key, None)
        if known is None or not known.is_open:
            known = _Reader(tree)
        for other in [each for each in _readers if each[0] != pid]:
            del _readers[other]  # of the process that this one was forked from
        done = [each for each in _readers if each[1] == folder]
        done += [each for each in _readers if each not in done][: max(0, len(_readers) - len(done) + 1 - OPEN_READERS)]
        idle = [_readers.pop(each) for each in done]
        _readers[key] = known
    for reader in idle:
        reader.close()
    return known


def close_readers() -> None:
    """End the processes that wait for further reads."""
    with _readers_lock:
        readers = [reader for (pid, _, _), reader in _readers.items() if pid == os.getpid()]
        _readers.clear()
    for reader in readers:
        reader.close()


atexit.register(close_readers)

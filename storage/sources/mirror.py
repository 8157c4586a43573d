"""Mirror the objects of a git repository, given by its URL, in a cache folder on this machine.

A mirror contains the newest requested commits, without history or a working tree. Its configuration is Driftline's own,
so nothing configured by the repository is executed, checked out or followed: no hook, filter, submodule, redirect or
other protocol. A repository on this disk has no mirror: git reads its objects through an empty one.

Processes share mirrors. Only one of them fetches at a time, and it removes the files of killed fetches. A mirror in use
is neither repacked nor evicted; a mirror that is being fetched is not evicted.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import quote, unquote

from driftline.storage.environment import byte_limit, cache_folder_of
from driftline.storage.errors import (
    AccessDenied,
    DriftlineError,
    SourceNotFound,
    StorageError,
    UsageError,
    without_secrets,
)
from driftline.storage.sources.git_isolation import COMMIT_ID, REACHING, ask, git_version, spawn

log = logging.getLogger(__name__)

GIT_CACHE_VARIABLE = "DRIFTLINE_GIT_CACHE"
GIT_CACHE_LIMIT_VARIABLE = "DRIFTLINE_GIT_CACHE_BYTES"
DEFAULT_GIT_CACHE_BYTES = 20 * 10**9
"""Maximum size of all mirrors; the least recently used are evicted."""
KEPT_COMMITS = 16
"""Number of commits, branches included, whose objects a mirror keeps, to compare commits with previous ones."""
TIDIED_AFTER = 24
"""A mirror with more packs than this is repacked."""
HOLD_ATTEMPTS = 3
ASK_SECONDS = 60.0
FETCH_SECONDS = 3600.0
_POLL_SECONDS = 0.5
_DELETED = ".deleted"
_ERROR_BYTES = 8192

REDIRECTS = "The host redirects to another URL"
_SCHEMES = frozenset({"file", "http", "https", "ssh"})
_SCP = re.compile(r"(?P<user>[A-Za-z0-9._-]+)@(?P<host>[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\]):(?P<path>[^\\:].*)")
_CREDENTIAL = re.compile(r"(?:(?P<user>[A-Za-z0-9._~-]+):)?\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}")
_REPOSITORY = re.compile(
    r"\.git$|/_git/[^/]+$|^(?:[^@/]*@)?ssh\.dev\.azure\.com(?::\d+)?/v3/"
    r"|^(?:[^@/]*@)?git-codecommit\.[^/]+\.amazonaws\.com(?:\.cn)?(?::\d+)?/v1/repos/[^/]+$"
)
"""Proof that a URL names a repository, without ``git+``: its end or, on Azure DevOps and CodeCommit, its path."""
_PORT = re.compile(r"[^:]*:\d+|\[[^]]*\](?::\d+)?|[^:]*")
_REF = re.compile(r"(?!/|.*(?://|\.\.|@\{|\.lock$|/$|\.$))[^\x00-\x20\x7f~^:?*\[\\]+")
_SYMBOLIC = "ref: HEAD"
_BRANCH_IN_HEAD = re.compile(r"ref: (refs/heads/[^\n]+)\n")
_MAX_REFS_BYTES = 4 * 1024 * 1024
_ANY_USER = "x-access-token"
"""The user name for a token sent as a password; hosts accept any user, or this one."""
_BY_REFERENCE = "Use git+https://${NAME}@host/path, where NAME is a variable that holds the token."
_DENIED = re.compile(
    r"authentication failed|could not read (?:username|password)|permission denied|error: 40[13]|publickey"
)
_REFUSED = re.compile(r"transport '([^']+)' not allowed")
_REPLACED = re.compile(r"not our ref|unadvertised object|couldn't find remote ref")
_MISSING = re.compile(r"not found|does not exist|not appear to be a git repository|error: 404")


@dataclass(frozen=True, slots=True)
class Remote:
    """A git repository as identified by its URL.

    ``location`` is git's name for it: a path, a URL or ``user@host:path``, without credentials; ``ref`` is a branch, a
    tag, a commit or a full ref name; "" means the default branch. ``variable`` is the environment variable that
    contains the token for ``user``.
    """

    location: str
    protocol: str
    ref: str = ""
    user: str = ""
    variable: str = ""

    @property
    def uri(self) -> str:
        """The canonical URI, without credentials."""
        prefix = {"file": "git+file://", "ssh": "git+ssh://"}.get(self.protocol, "git+")
        location = quoted_path(self.location) if self.is_local else self.location.removeprefix("ssh://")
        return prefix + location + (f"@{self.ref}" if self.ref else "")

    @property
    def is_local(self) -> bool:
        return self.protocol == "file"

    @property
    def name(self) -> str:
        """The last part of the path, without ``.git``."""
        path = self.location.rstrip("/").removesuffix("/.git")
        name = re.split(r"[/:]", path)[-1].removesuffix(".git") or "repository"
        whole = name if self.is_local else unquote(name)
        return whole if whole.isprintable() else name


def parse_remote(text: str) -> Remote | None:
    """Parse a repository's URI, or return None for any other kind of URI.

    Raises UsageError for credentials that are not references, and for URLs that git would interpret differently.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        match = _SCP.fullmatch(text)
        if match is None or os.path.exists(text):
            return None
        if re.match(r"\d+(?:/|$)", match["path"]):  # git would read a folder, but users mean a port
            what = "The number after the colon may be a port or a folder"
            raise UsageError(what, text, f"Use git+ssh://{match['user']}@{match['host']}/{match['path']}.")
        return _remote("ssh", text)
    if scheme.startswith("git+"):
        protocol = scheme.removeprefix("git+")
        if protocol not in _SCHEMES:
            raise UsageError(
                f"Unsupported protocol for a git repository: {protocol!r}", text, "Use git+https, git+ssh, git+file."
            )
        return _remote(protocol, rest)
    if scheme.split("::")[0] == "codecommit":
        fix = "Use git+https://git-codecommit.REGION.amazonaws.com/v1/repos/NAME."
        raise UsageError("git would run the program git-remote-codecommit for this URL", text, fix)
    path, _ = _split_ref(rest)
    is_one = scheme in ("http", "https", "ssh") and _REPOSITORY.search(path.rstrip("/"))
    return _remote(scheme, rest) if is_one else None


def with_reference(uri: str, references: Mapping[str, str]) -> str:
    """Return a repository's URI with the reference to its token: ``user:${NAME}`` of the longest prefix in
    ``references``. Any other URI, and one that has a reference, is returned unchanged.
    """
    remote = parse_remote(uri)
    if remote is None or remote.variable or remote.protocol not in ("http", "https"):
        return uri
    ends = r"(?:\.git)?(?:[/@]|$)"  # the token of one repository is not for others whose names begin with its name
    prefixes = [each for each in references if re.match(re.escape(each.rstrip("/")) + ends, remote.uri)]
    if not prefixes:
        return uri
    scheme, _, rest = remote.uri.partition("://")
    return f"{scheme}://{references[max(prefixes, key=len)]}@{rest}"


def quoted_path(path: str) -> str:
    """Percent-encode what a ``git+file://`` URI cannot contain: spaces, ``?``, ``#``, and ``%`` before two digits."""
    path = re.sub(r"%(?=[0-9A-Fa-f]{2})", "%25", path)
    if path.isprintable() and not re.search("[ ?#]", path):
        return path
    kept = (each.isprintable() and each not in " ?#" for each in path)
    return "".join(
        each if is_kept else quote(each, errors="surrogateescape") for each, is_kept in zip(path, kept, strict=True)
    )


def bare_repository(folder: str) -> Remote | None:
    """Return the repository whose git directory is ``folder``, a bare or mirror clone, or None for any other folder."""
    is_one = os.path.isfile(os.path.join(folder, "HEAD")) and all(
        os.path.isdir(os.path.join(folder, name)) for name in ("objects", "refs")
    )
    return Remote(folder, "file") if is_one else None


def _split_ref(rest: str) -> tuple[str, str]:
    """Split ``host/path@ref`` into ``(host/path, ref)``; an @ in the host belongs to the user name."""
    slash = max(rest.find("/"), rest.find(":") if "@" in rest.partition(":")[0] else -1)
    head, tail = rest[: slash + 1], rest[slash + 1 :]
    path, at, ref = tail.rpartition("@")
    return (head + path, ref) if at else (rest, "")


def _remote(protocol: str, rest: str) -> Remote:
    whole = unquote(rest, errors="surrogateescape") if protocol == "file" else ""
    is_whole = bool(whole) and os.path.isdir(whole)
    if not is_whole and (not rest.isprintable() or " " in rest or "?" in rest or "#" in rest):
        shown = rest.partition("?")[0].partition("#")[0]
        raise UsageError(
            "The repository URL has a query string, a fragment or a space",
            repr(f"git+{protocol}://{shown}"),
            "Append @ and a branch, tag or commit.",
        )
    if protocol == "file":
        path, ref = (rest, "") if is_whole else _split_ref(rest)
        location = os.path.realpath(os.path.expanduser(unquote(path, errors="surrogateescape")))
        inside = os.path.join(location, ".git")
        return Remote(inside if os.path.isdir(inside) else location, "file", _checked_ref(ref, rest))
    path, ref = _split_ref(rest)
    netloc, slash, tail = path.partition("/")
    credentials, _, host = netloc.rpartition("@")
    shown = f"git+{protocol}://{host}{slash}{tail}"
    if not host or host.startswith("-") or credentials.startswith("-"):
        raise UsageError("The repository URL has no host", shown, "Use git+https://host/path.git.")
    if slash and not tail.strip("/"):
        raise UsageError("The repository URL has no path before the @", shown, "Use %40 for @ in a path.")
    user, variable = "", ""
    if protocol == "ssh":
        if ":" in credentials or "$" in credentials:
            raise UsageError("SSH URLs cannot contain a password", shown, "Use a key in the SSH agent.")
        location = f"{credentials}@{path.rpartition('@')[2]}" if credentials else path
        if _PORT.fullmatch(host):
            location = f"ssh://{location}"
    else:
        if host.lower() == "dev.azure.com" and credentials == tail.partition("/")[0]:
            credentials = ""  # Azure puts the name of the organization into the URLs that it shows
        match = _CREDENTIAL.fullmatch(credentials)
        if credentials and match is None:
            raise UsageError("The repository URL may contain a secret", shown, _BY_REFERENCE)
        user, variable = (match["user"] or _ANY_USER, match["name"]) if match else ("", "")
        location = f"{protocol}://{host}{slash}{tail.rstrip('/')}"
    return Remote(location, protocol, _checked_ref(ref, shown), user, variable)


def _checked_ref(ref: str, where: str) -> str:
    if ref and (ref.startswith("-") or not _REF.fullmatch(ref)):
        raise UsageError(f"{ref!r} is not a branch, tag or commit name", where, "Correct the part after the @.")
    return ref


# -- asking -------------------------------------------------------------------------------------


def resolve(remote: Remote) -> str:
    """Return the id of the commit that ``remote`` currently points to, with one request.

    Raises SourceNotFound if there is none, UsageError if the token's variable is not set; also AccessDenied,
    StorageError.
    """
    commit = current_commit(remote)
    if not commit:
        raise _no_commit(remote)
    return commit


def current_commit(remote: Remote) -> str:
    """Like ``resolve``, but returns "" if the repository has no such commit, or none at all.

    Raises the same errors as ``resolve`` if the repository itself is missing or unreachable.
    """
    if remote.is_local:
        return _resolve_local(remote)
    if COMMIT_ID.fullmatch(remote.ref):
        return remote.ref
    return _first(_names(remote.ref), _listed(remote, *_names(remote.ref))[0])


def current_branches(remote: Remote) -> tuple[str, dict[str, str]]:
    """Return the result of ``current_commit``, and the other branches' commits, keyed by name, with one request."""
    names, all_branches = _names(remote.ref), "refs/heads/*"
    if remote.is_local:
        git_dir = _git_dir(remote)
        commit = _resolve_local(remote)
        answer = _ask(git_dir, "for-each-ref", "--format=%(objectname)\t%(refname)", all_branches.rstrip("*"))
        if answer is None:
            raise StorageError("Git cannot list the branches of the repository", remote.uri, "Run the command again.")
        found = _parsed_refs(answer)
        head = _BRANCH_IN_HEAD.fullmatch(_text_of(os.path.join(git_dir, "HEAD")))
        main = head[1] if head is not None else ""
    else:
        found, main = _listed(remote, *names, all_branches)
        commit = remote.ref if COMMIT_ID.fullmatch(remote.ref) else _first(names, found)
    if remote.ref:
        main = next((name for name in names if name in found), "")
    heads = {name.removeprefix("refs/heads/"): each for name, each in found.items() if name.startswith("refs/heads/")}
    heads.pop(main.removeprefix("refs/heads/"), None)
    return commit, {name: each for name, each in heads.items() if COMMIT_ID.fullmatch(each) and _REF.fullmatch(name)}


def with_ref(uri: str, ref: str) -> str:
    """Return a repository's URI at ``ref``. Raises UsageError if a URI cannot express the ref."""
    known = parse_remote(uri)
    named = f"{uri.removesuffix(f'@{known.ref}') if known is not None and known.ref else uri}@{ref}"
    found = parse_remote(named)
    if known is None or found is None or (found.location, found.ref) != (known.location, ref):
        raise UsageError("The branch name contains characters that a source URI cannot express", repr(ref))
    return named


def _listed(remote: Remote, *names: str) -> tuple[dict[str, str], str]:
    """Return the commits of the refs that match ``names``, as listed by the host, and the ref that HEAD points to."""
    with tempfile.TemporaryDirectory(prefix="driftline-git-") as elsewhere:
        variables = _reaching(remote) | {"GIT_CEILING_DIRECTORIES": os.path.dirname(elsewhere)}
        command = ("ls-remote", "--quiet", "--symref", "--", remote.location, *names)
        found = _parsed_refs(_run(remote, elsewhere, command, variables, ASK_SECONDS).decode("utf-8", "replace"))
    return found, found.pop(_SYMBOLIC, "").removeprefix("ref: ")


def _parsed_refs(answer: str) -> dict[str, str]:
    """Parse ``<id>\\t<ref>`` lines into a mapping from ref to commit; the key ``_SYMBOLIC`` contains the ref that HEAD
    points to.
    """
    lines = [line.split("\t", 1) for line in answer.split("\n") if "\t" in line]  # a name may contain other line breaks
    found = {name: value for value, name in lines if not value.startswith("ref: ")}
    head = next((value for value, name in lines if value.startswith("ref: ") and name == "HEAD"), "")
    return found | {_SYMBOLIC: head} if head else found


def _first(names: Sequence[str], found: Mapping[str, str]) -> str:
    commit = next((found[name] for name in names if name in found), "")
    return commit if COMMIT_ID.fullmatch(commit) else ""


def _names(ref: str) -> list[str]:
    """Return the refs that a name may mean, in order of precedence; a tag resolves to its commit."""
    if not ref or ref.startswith("refs/"):
        return [f"{ref or 'HEAD'}^{{}}", ref or "HEAD"]
    return [f"refs/heads/{ref}", f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}"]


def _resolve_local(remote: Remote) -> str:
    git_dir = _git_dir(remote)
    if not remote.ref and (known := _head_in_files(git_dir)):
        return known
    names = [remote.ref] if COMMIT_ID.fullmatch(remote.ref) else [n for n in _names(remote.ref) if not n.endswith("{}")]
    for name in names:
        answer = _ask(git_dir, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        if answer is not None and COMMIT_ID.fullmatch(answer):
            return answer
    return ""


def _head_in_files(git_dir: str) -> str:
    """Return the current branch's commit from git's files, without starting git.

    Return "" if only git itself can determine it, for example for another ref format.
    """
    match = _BRANCH_IN_HEAD.fullmatch(_text_of(os.path.join(git_dir, "HEAD")))
    if match is None or not _REF.fullmatch(match[1]):
        return ""
    commit = _text_of(os.path.join(git_dir, match[1])).strip()
    if not commit:
        packed = _text_of(os.path.join(git_dir, "packed-refs"))
        named = (line.partition(" ") for line in packed.split("\n"))
        commit = next((each for each, _, name in named if name == match[1]), "")
    return commit if COMMIT_ID.fullmatch(commit) else ""


def _text_of(path: str) -> str:
    """Return the text of a small regular file, or "" for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        is_small = stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_REFS_BYTES
        return file.read(_MAX_REFS_BYTES).decode("utf-8", "surrogateescape") if is_small else ""


def _no_commit(remote: Remote) -> SourceNotFound:
    if remote.ref:
        return SourceNotFound(f"The repository has no branch, tag or commit {remote.ref!r}", remote.uri, "Correct it.")
    return SourceNotFound("The repository has no commit on its default branch", remote.uri, "Append @ and a branch.")


def _git_dir(remote: Remote) -> str:
    """Return the git directory of a repository on this disk, if git can read its files without blocking."""
    git_dir = remote.location
    if bare_repository(git_dir) is None:
        if os.path.isfile(os.path.join(git_dir, ".git")):  # of a work tree or submodule
            fix = "Index the folder itself, or the repository that its .git file names."
            raise SourceNotFound("The repository of this folder is in another folder", remote.location, fix)
        raise SourceNotFound("The folder is not a git repository", remote.location, "Check the spelling.")
    for name in ("HEAD", "config", "packed-refs", "shallow"):
        path = os.path.join(git_dir, name)
        if os.path.lexists(path) and not os.path.isfile(path):
            raise SourceNotFound(
                "A repository file is not a regular file",
                path,
                "Replace it with a regular file: git could hang on it.",
            )
    return git_dir


def _ask(git_dir: str, *arguments: str) -> str | None:
    answer = ask(git_dir, "--git-dir", git_dir, *arguments)
    return answer.decode("utf-8", "replace").strip("\n") if answer is not None else None


# -- reaching the host --------------------------------------------------------------------------


def _reaching(remote: Remote) -> dict[str, str]:
    """Return the environment for a command that uses the network: the user's variables, overridden by Driftline's."""
    if (0, 0) < git_version() < (2, 31):  # it would ignore the settings below
        raise UsageError("Mirrors need git 2.31 or newer", remote.uri, "Upgrade git.")
    variables = {name: os.environ[name] for name in REACHING if name in os.environ}
    # The user's own configuration may rewrite the URL (url.<base>.insteadOf), but not to a less safe protocol. The
    # token is a header for the host of the URL as given, so no other host gets it.
    variables["GIT_ALLOW_PROTOCOL"] = remote.protocol if remote.is_local else f"{remote.protocol}:https:ssh"
    settings = {
        "core.hooksPath": os.devnull,
        "credential.interactive": "false",
        "fetch.recurseSubmodules": "false",
        "fetch.unpackLimit": "1",
        "fetch.writeCommitGraph": "false",
        "gc.auto": "0",
        "http.followRedirects": "false",  # a redirect would receive the token in the header
        "http.lowSpeedLimit": "1",
        "http.lowSpeedTime": "60",
        "maintenance.auto": "false",
        "protocol.version": "2",
        "transfer.bundleURI": "false",
    }
    if remote.variable:
        token = os.environ.get(remote.variable)
        if not token:
            raise UsageError(f"The repository needs the variable {remote.variable}", remote.uri, "Set it.")
        basic = base64.b64encode(f"{remote.user}:{token}".encode()).decode()
        scheme, _, rest = remote.location.partition("://")
        settings[f"http.{scheme}://{rest.partition('/')[0]}/.extraHeader"] = f"Authorization: Basic {basic}"
    if remote.protocol == "ssh" and not (
        {"GIT_SSH", "GIT_SSH_COMMAND"} & variables.keys() or ask("/", "config", "--get", "core.sshCommand")
    ):
        settings["core.sshCommand"] = "ssh -oBatchMode=yes -oConnectTimeout=30 -oServerAliveInterval=20"
    for number, (key, value) in enumerate(settings.items()):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return variables | {"GIT_CONFIG_COUNT": str(len(settings))}


def _run(
    remote: Remote,
    folder: str,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    seconds: float,
    *,
    pack_bytes: int | None = None,
) -> bytes:
    """Run a command that contacts ``remote``, and return its output.

    Stop it after ``seconds``, or if its pack is too large.
    """
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryFile() as errors:
        try:
            process = spawn(folder, arguments, variables, stderr=errors.fileno(), detached=True)
        except OSError as error:
            raise StorageError("Cannot run git", remote.uri, f"Install git ({error.strerror}).") from error
        why = ""
        try:
            while True:
                try:
                    output, _ = process.communicate(timeout=_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() > deadline:
                        why = f"The host did not respond within {seconds:g} s"
                    elif pack_bytes is not None and _incoming_bytes(folder) > pack_bytes:
                        why = _too_large(pack_bytes)
                    if why:
                        _end(process)
        except BaseException:  # Ctrl-C does not reach a process in another session
            _end(process)
            process.communicate()
            raise
        if process.returncode != 0:
            raise _failure(remote, why, _tail(errors))
    return output


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a detached process and the helpers that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _too_large(limit: int) -> str:
    return f"The repository has more than {limit / 1e9:g} GB, the limit of {GIT_CACHE_LIMIT_VARIABLE}"


def _incoming_bytes(git_dir: str) -> int:
    with contextlib.suppress(OSError), os.scandir(os.path.join(git_dir, "objects", "pack")) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.name.startswith("tmp_"))
    return 0


def _tail(errors: IO[bytes]) -> str:
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - _ERROR_BYTES))
    return errors.read().decode("utf-8", "replace")


def _failure(remote: Remote, why: str, stderr: str) -> DriftlineError:
    """Return an error with git's message; git never prints values from its environment."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if line.startswith(("fatal:", "error:", "remote:"))), "")
    reason = without_secrets(last or (lines[-1] if lines else "git failed"))[:300]
    message = stderr.lower()
    if why:
        return StorageError(why, remote.uri, "Run the command again.")
    if refused := _REFUSED.search(stderr):
        what = f"git's setting url.<base>.insteadOf replaces this URL with one that uses {refused[1]}"
        return UsageError(what, remote.uri, "Only https, ssh and the URL's own protocol are used: change the setting.")
    if _REPLACED.search(message):
        return StorageError("The host no longer has the commit", remote.uri, f"Run the command again ({reason}).")
    if _DENIED.search(message):
        return AccessDenied("The host denies access to the repository", remote.uri, f"{_BY_REFERENCE} ({reason})")
    if _MISSING.search(message):
        return SourceNotFound("The host has no such repository", remote.uri, f"Check the spelling ({reason}).")
    if "redirect" in message or "error: 30" in message:
        return StorageError(REDIRECTS, remote.uri, f"Use that URL ({reason}).")
    return StorageError("Git cannot reach the repository", remote.uri, reason)


# -- the cache ----------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Return the folder for all mirrors: $DRIFTLINE_GIT_CACHE, or ``driftline/git`` in the user's cache folder."""
    return cache_folder_of(GIT_CACHE_VARIABLE, "git")


def cache_bytes() -> int:
    """Return the size limit for all mirrors. Raises UsageError."""
    return byte_limit(GIT_CACHE_LIMIT_VARIABLE, DEFAULT_GIT_CACHE_BYTES)


@dataclass(frozen=True, slots=True)
class Mirror:
    """A remote's mirror in ``folder``, which may not exist yet; ``git_dir`` is a bare repository in it."""

    remote: Remote
    folder: Path

    @classmethod
    def of(cls, remote: Remote) -> Mirror:
        """Return the mirror of ``remote`` on this machine; does not connect."""
        digest = hashlib.sha256(f"{remote.protocol} {remote.location}".encode("utf-8", "surrogateescape")).hexdigest()
        return cls(remote, cache_folder() / digest[:24])

    @property
    def git_dir(self) -> str:
        return str(self.folder / "repository")

    def has(self, commit: str) -> bool:
        """Return whether the mirror holds the tree of ``commit``; always true for a commit id in a local repository."""
        return COMMIT_ID.fullmatch(commit) is not None and (self.remote.is_local or self._ref(commit).exists())

    def environment(self, commit: str) -> dict[str, str]:
        """Return the environment in which git reads ``commit``, without the repository's settings.

        Raises SourceNotFound if a repository on this disk no longer exists.
        """
        if not self.remote.is_local:
            return {"GIT_DIR": self.git_dir}
        git_dir = _git_dir(self.remote)
        objects = os.path.join(git_dir, "objects")
        if os.path.exists(os.path.join(git_dir, "commondir")):  # of a linked worktree
            objects = _ask(git_dir, "rev-parse", "--git-path", "objects") or objects
        return {"GIT_DIR": _empty_repository(_format_of(commit)), "GIT_OBJECT_DIRECTORY": os.path.realpath(objects)}

    def newest(self) -> str | None:
        """Return the commit fetched last, without contacting the remote; of a local repository, the current commit."""
        if self.remote.is_local:
            return resolve(self.remote)
        with contextlib.suppress(OSError):
            refs = [(entry.stat().st_mtime_ns, entry.name) for entry in os.scandir(self._refs)]
            return max(refs)[1] if refs else None
        return None

    def ensure(self, commit: str) -> None:
        """Fetch ``commit`` unless the mirror has it. Raises AccessDenied, SourceNotFound, StorageError, UsageError."""
        if self.remote.is_local:
            _git_dir(self.remote)
            return
        with _reported(self.folder):
            if not self.has(commit):
                with self._locked("fetch"):
                    if not self.has(commit):
                        self._fetch(commit)
                _make_room(self.folder)
            with contextlib.suppress(FileNotFoundError):  # evicted concurrently; ``holding`` retries
                os.utime(self.folder)  # the time of the last use

    @contextlib.contextmanager
    def holding(self, commit: str) -> Iterator[None]:
        """Hold the mirror that has the tree of ``commit``, so that it is neither repacked nor evicted.

        Raises the same errors as ``ensure``.
        """
        for _ in range(HOLD_ATTEMPTS):
            self.ensure(commit)
            if self.remote.is_local:
                yield
                return
            with self._locked("use", shared=True):
                if self.has(commit):  # another process may have evicted it
                    yield
                    return
        raise StorageError(
            "Mirrors in use leave no room for this repository", self.remote.uri, f"Raise {GIT_CACHE_LIMIT_VARIABLE}."
        )

    @property
    def _refs(self) -> str:
        return os.path.join(self.git_dir, "refs", "driftline")

    def _ref(self, commit: str) -> Path:
        return Path(self._refs, commit)

    @contextlib.contextmanager
    def _locked(self, name: str, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
        """Hold a lock on the mirror, also against other threads; yield False if it is held and ``wait`` is not set."""
        path = self.folder / name
        how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
        while True:
            with _reported(self.folder):
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                try:
                    lock = path.open("a")
                except FileNotFoundError:
                    continue  # deleted since
            with lock:
                try:
                    fcntl.flock(lock, how)
                except BlockingIOError:
                    yield False
                    return
                if _is_same_file(lock.fileno(), path):
                    yield True
                    return

    def _exists(self) -> bool:
        return bare_repository(self.git_dir) is not None and _text_of(os.path.join(self.git_dir, "HEAD")) != ""

    def _create(self, object_format: str) -> None:
        """Create an empty repository that configures no commands, unless it exists."""
        if self._exists():
            return
        shutil.rmtree(self.git_dir, ignore_errors=True)  # what a program that tidies caches left of it
        for part in ("objects/info", "objects/pack", "refs/driftline"):
            os.makedirs(os.path.join(self.git_dir, part), exist_ok=True)
        is_sha1 = object_format == "sha1"
        config = f"[core]\n\trepositoryformatversion = {0 if is_sha1 else 1}\n\tbare = true\n"
        config += "" if is_sha1 else f"[extensions]\n\tobjectformat = {object_format}\n"
        _write(Path(self.git_dir, "config"), config)
        _write(Path(self.folder, "remote"), f"{self.remote.uri}\n")
        _write(Path(self.git_dir, "HEAD"), "ref: refs/heads/unborn\n")  # last: this makes it a repository

    def _fetch(self, commit: str) -> None:
        self._create(_format_of(commit))
        self._remove_leftovers()
        variables = _reaching(self.remote) | {"GIT_DIR": self.git_dir}
        options = (
            "--quiet",
            "--no-tags",
            "--no-recurse-submodules",
            "--no-write-fetch-head",
            "--no-show-forced-updates",
        )
        spec = f"+{commit}:refs/driftline/{commit}"
        limit = cache_bytes()
        shallow = ("fetch", *options, "--depth=1", "--", self.remote.location, spec)
        whole = ("fetch", *options, "--", self.remote.location, spec)
        try:
            try:
                _run(self.remote, self.git_dir, shallow, variables, FETCH_SECONDS, pack_bytes=limit)
            except StorageError as error:
                if "shallow" not in str(error):
                    raise
                _run(self.remote, self.git_dir, whole, variables, FETCH_SECONDS, pack_bytes=limit)  # over dumb HTTP
        except BaseException:
            self._remove_leftovers()
            raise
        if _size_bytes(self.folder) > limit:
            shutil.rmtree(self.git_dir, ignore_errors=True)
            raise StorageError(_too_large(limit), self.remote.uri, "Raise it.")
        refs = sorted(os.scandir(self._refs), key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
        for old in refs[KEPT_COMMITS:]:
            os.unlink(old.path)
        self._tidy()
        _write(self.folder / "size", str(_size_bytes(self.folder)))

    def _remove_leftovers(self) -> None:
        """Remove the files of a killed fetch; only one process fetches at a time."""
        for folder, _, names in os.walk(self.git_dir):
            for name in names:
                if name.endswith(".lock") or name.startswith("tmp_"):
                    with contextlib.suppress(OSError):
                        os.unlink(os.path.join(folder, name))

    def _tidy(self) -> None:
        """Drop the objects of forgotten commits if there are many packs, unless another process reads the mirror."""
        packs = [name for name in os.listdir(os.path.join(self.git_dir, "objects", "pack")) if name.endswith(".pack")]
        if len(packs) <= TIDIED_AFTER:
            return
        with self._locked("use", wait=False) as idle:
            if idle:
                command = ("-c", "gc.packRefs=false", "gc", "--quiet", "--prune=now")
                _run(self.remote, self.git_dir, command, {"GIT_DIR": self.git_dir}, FETCH_SECONDS)

    def delete(self) -> bool:
        """Delete the mirror unless it is in use or being fetched; return whether it was deleted."""
        with self._locked("fetch", wait=False) as quiet:
            return quiet and self._delete()

    def _delete(self) -> bool:
        with self._locked("use", wait=False) as idle:
            if idle:
                doomed = self.folder.with_name(f"{self.folder.name}.{os.getpid()}{_DELETED}")
                os.rename(self.folder, doomed)  # rename first: another process may recreate it
                shutil.rmtree(doomed, ignore_errors=True)
        return idle


def _make_room(keep: Path) -> None:
    """Evict the least recently used mirrors, except ``keep``, until all fit into the cache."""
    sizes = {}
    for folder in cache_folder().iterdir():
        if folder.name.endswith(_DELETED):  # its process died
            shutil.rmtree(folder, ignore_errors=True)
            continue
        if folder.name.startswith("."):  # an empty repository
            continue
        try:
            sizes[folder] = int((folder / "size").read_text())
        except (OSError, ValueError):  # its first fetch was killed, or is still running
            with contextlib.suppress(OSError):
                sizes[folder] = _size_bytes(folder)
    excess = sum(sizes.values()) - cache_bytes()
    for folder in sorted(sizes.keys() - {keep}, key=_last_used) if excess > 0 else ():
        if excess > 0 and Mirror(Remote("", "file"), folder).delete():
            log.info("the mirror %s was deleted to make room", folder)
            excess -= sizes[folder]


@contextlib.contextmanager
def _reported(folder: Path) -> Iterator[None]:
    """Raise AccessDenied or StorageError if the system refuses an operation on the mirror in ``folder``."""
    try:
        yield
    except OSError as error:
        what, where = f"The folder for mirrors cannot be used ({error.strerror})", str(folder.parent)
        kind = AccessDenied if isinstance(error, PermissionError) else StorageError
        raise kind(what, where, f"Free some space, or set {GIT_CACHE_VARIABLE} to a folder of your own.") from error


def _empty_repository(object_format: str) -> str:
    """Return a git directory with no objects or settings, for reading repositories on this disk."""
    empty = Mirror(Remote("", "file"), cache_folder() / f".empty-{object_format}")
    if not empty._exists():
        with _reported(empty.folder), empty._locked("fetch"):
            empty._create(object_format)
    return empty.git_dir


def _format_of(commit: str) -> str:
    """Return the object format whose ids are as long as ``commit``."""
    return "sha1" if len(commit) == 40 else "sha256"


def _last_used(folder: Path) -> float:
    return folder.stat().st_mtime if folder.exists() else 0.0


def _size_bytes(folder: Path) -> int:
    return sum(
        os.lstat(os.path.join(location, name)).st_size for location, _, names in os.walk(folder) for name in names
    )


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _write(path: Path, text: str) -> None:
    """Write a file atomically."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.new")
    partial.write_text(text)
    os.replace(partial, path)

"""Link documents to their text at a commit on their repository's host: GitHub, GitLab, Gitea, Bitbucket, others.

A link must never point to different text, so a document has a link only if its content at a commit is known to be the
indexed content. Either a run recorded the indexed commit, and no later run wrote the document; or the working tree is
available, and git lists the same blob at a pushed commit. Commits never change, so their data is cached.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from cachetools import LRUCache, TTLCache

from driftline.storage.defaults import DEFAULT_REDACTION, Redaction
from driftline.storage.documents import INSIDE, DocumentKey, container_of, content_hash
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError
from driftline.storage.redaction import split_mark
from driftline.storage.shared_cache import SharedCache
from driftline.storage.sources.source import known_source
from driftline.storage.workspace.records import SourceRecord, read_copy_record
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.extraction.extractor import is_extracted, split_encoding

if TYPE_CHECKING:  # a search of sources that are elsewhere needs no git
    from driftline.tasks.git.commits import PushedCommit

log = logging.getLogger(__name__)

KNOWN_DOCUMENTS = 50_000
"""Number of documents to cache, with their content at a commit; each takes some 400 bytes."""
PUSHED_SECONDS = 30.0
"""How long a working tree's pushed commit is cached. A newer commit would only yield newer links."""

TEMPLATES: Mapping[str, str] = {
    "github": "{root}/blob/{commit}/{path}#L{line}",
    "gitlab": "{root}/-/blob/{commit}/{path}#L{line}",
    "gitea": "{root}/src/commit/{commit}/{path}#L{line}",
    "bitbucket": "{root}/src/{commit}/{path}#lines-{line}",
    "bitbucket-server": "{root}/browse/{path}?at={commit}#{line}",
    "azure": "{root}?path=/{path}&version=GC{commit}&line={line}&lineEnd={line}&lineStartColumn=1&lineEndColumn=9999",
    "codecommit": "{root}/{commit}/--/{path}?lines={line}-{line}",
}
"""Maps host types to their line link templates."""
_LINES = re.compile(r"[?&]lines?=\{line\}.*")
_GIST = "https://gist.github.com/{repository}/{commit}#file-{slug}-L{line}"
_WIKIS: Mapping[str, str] = {
    "github": "{root}/wiki/{page}/{commit}",
    "gitlab": "{root}/-/wikis/{page}?version_id={commit}",
}
"""Links to a page of a repository's wiki, for the hosts that show one at a commit; a page shows no line numbers."""
_OF_WIKI = ".wiki"
_AS_SOURCE = {"github": "plain=1", "gitlab": "plain=1", "gitea": "display=source"}
"""The query string that makes a host show a file's source instead of rendering it."""
_OF_COMMIT = re.compile(r"(?P<root>.*?)/(?:-/blob|blob|src/commit)/(?P<commit>[0-9a-f]{40,64})/(?P<path>[^?#]*)")
_RENDERED = frozenset({"adoc", "asc", "asciidoc", "ipynb", "markdown", "md", "mdx", "mkd", "org", "rst", "textile"})
_HOSTS = {"codeberg": "gitea", "forgejo": "gitea", "gitea": "gitea", "github": "github", "gitlab": "gitlab"}
"""Maps parts of host names to host types."""
_SSH_HOSTS = {
    "ssh.github.com": "github.com",
    "altssh.gitlab.com": "gitlab.com",
    "altssh.bitbucket.org": "bitbucket.org",
}
"""Maps SSH hosts to the web hosts they serve."""
_CODECOMMIT = re.compile(r"git-codecommit\.(?P<region>[a-z0-9-]+)\.amazonaws\.com")
_AZURE_SSH = re.compile(
    r"(?P<host>ssh\.dev\.azure\.com|vs-ssh\.visualstudio\.com)/v3/(?P<organization>[^/]+)/(?P<project>[^/]+)/(?P<name>[^/]+)"
)
_BELOW_A_FOLDER = {"gitea": "gitea", "forgejo": "gitea", "gitlab": "gitlab"}
"""Maps the folder of a web server to the type of the host that it serves there."""
_WEB_PORTS = {"http": 80, "https": 443}
_PLACEHOLDERS = frozenset({"host", "repository", "commit", "path", "line"})
_FIELD = re.compile(r"\{(\w*)\}")
_TEMPLATE = re.compile(r"https?://[^/@\\\"<>^`|\s]+/[!-~]*")
_HOST = re.compile(r"(?:[a-z0-9_-]+\.)+(?:xn--[a-z0-9-]+|[a-z0-9]+)|localhost|\[[0-9a-f:.]+\]")
_SCP = re.compile(r"(?:[^@/:]+@)?(?P<host>[^@/:\[\]]+|\[[^]]+\]):(?P<path>[^:].*)")


MAX_RECORDS_AHEAD = 4
_NEEDED: SharedCache[str, tuple[str, ...]] = SharedCache(LRUCache(64))
"""Maps buckets to the sources whose records recent searches read."""


@dataclass(slots=True)
class SourceRecords:
    """The source records of a search, each read once."""

    workspace: Workspace
    _read: dict[str, SourceRecord | None] = field(default_factory=dict)
    _coming: dict[str, Future[SourceRecord | None]] = field(default_factory=dict)

    def get(self, entity: str) -> SourceRecord | None:
        """Return a source's record, or None if it was removed."""
        if entity not in self._read:
            coming = self._coming.get(entity)
            self._read[entity] = coming.result() if coming else self._record(entity)
            needed = dict.fromkeys((entity, *(_NEEDED.get(self._uri) or ())))
            _NEEDED.put(self._uri, tuple(needed)[:MAX_RECORDS_AHEAD])
        return self._read[entity]

    def read_ahead(self, threads: Executor, entities: Iterable[str] | None = None) -> None:
        """Prefetch the records of ``entities`` in a bucket, by default the entities of the last search."""
        if self.workspace.objects.is_local:
            return
        needed = _NEEDED.get(self._uri) or () if entities is None else entities
        for entity in list(needed)[:MAX_RECORDS_AHEAD]:
            if entity not in self._coming and entity not in self._read:
                self._coming[entity] = threads.submit(self._record, entity)

    def _record(self, entity: str) -> SourceRecord | None:
        return self.workspace.readable_source(Entity.parse(entity, self.workspace.config.hierarchy))

    @property
    def _uri(self) -> str:
        return self.workspace.objects.uri

    def redaction(self, entity: str) -> Redaction:
        """Return a source's redaction mode."""
        record = self.get(entity)
        return record.redact if record is not None else DEFAULT_REDACTION


# -- addresses ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Address:
    """A repository on a host: ``path`` is ``owner/name``, including groups, and ``port`` the port of its web pages."""

    host: str
    path: str
    scheme: str = "https"
    port: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The normalized form of the remote's spellings; hosts ignore case."""
        return self.host, self.path.lower().removeprefix("scm/")

    @property
    def kind(self) -> str | None:
        """The host type suggested by the name, or None."""
        if self.host == "bitbucket.org":
            return "bitbucket"
        if "bitbucket" in self.host:
            return "bitbucket-server"
        if _CODECOMMIT.fullmatch(self.host):
            return "codecommit"
        folders = self.path.split("/")
        if self.host == "dev.azure.com" or folders[-2:-1] == ["_git"]:
            return "azure"
        if named := next((kind for part, kind in _HOSTS.items() if part in self.host), None):
            return named
        if folders[-3:-2] == ["scm"]:
            return "bitbucket-server"
        return _BELOW_A_FOLDER.get(folders[0]) if len(folders) >= 3 else None

    def root(self, kind: str) -> str:
        """Return the URL of the repository's pages on a host of this type."""
        site = f"{self.scheme}://{self.host}" + (f":{self.port}" if self.port is not None else "")
        if kind == "codecommit" and (match := _CODECOMMIT.fullmatch(self.host)):
            console = f"https://{match['region']}.console.aws.amazon.com/codesuite/codecommit/repositories"
            return f"{console}/{quote(self.path.rpartition('/')[2])}/browse"
        if kind != "bitbucket-server":
            return f"{site}/{quote(self.path)}"
        before, _, inside = f"/{self.path}".rpartition("/scm/")
        project, _, name = inside.strip("/").rpartition("/")
        owner = f"users/{project[1:]}" if project.startswith("~") else f"projects/{project}"
        return f"{site}{quote(before)}/{quote(owner)}/repos/{quote(name)}"


def address_of(remote: str) -> Address | None:
    """Return the repository that a remote points to, or None for a folder or an ambiguous remote.

    All spellings of a remote have the same ``key``. The user, password and SSH port are dropped.

    Examples:
        >>> address_of("https://user:secret@gitlab.example.com:8443/group/sub/name.git")
        Address(host='gitlab.example.com', path='group/sub/name', scheme='https', port=8443)
        >>> address_of("git@github.com:acme/tree.git").key == address_of("ssh://git@github.com:22/Acme/tree").key
        True
    """
    text, scheme, port = remote.strip().removeprefix("git+"), "https", None
    try:
        parts = urlsplit(text) if "://" in text else None
        if parts is None:
            host, path = _scp(text)
        else:
            host, path, port = parts.hostname or "", parts.path, parts.port
            if parts.scheme in _WEB_PORTS:
                scheme, path = parts.scheme, unquote(path, errors="strict")
                port = port if port != _WEB_PORTS[scheme] else None
            else:
                port = None
                host = host if parts.scheme in ("git", "ssh") else ""
    except ValueError:  # the "port" in ssh://git@host:owner/name is a folder
        host, path = _scp(text.partition("://")[2]) if text.startswith("ssh://") else ("", "")
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    host, path = _SSH_HOSTS.get(host.lower(), host.lower()), path.strip("/").removesuffix(".git")
    if (azure := _AZURE_SSH.fullmatch(f"{host}/{path}")) is not None:
        organization, project, name = map(unquote, (azure["organization"], azure["project"], azure["name"]))
        is_old = azure["host"] == "vs-ssh.visualstudio.com"
        host = f"{organization.lower()}.visualstudio.com" if is_old else "dev.azure.com"
        path = f"{'' if is_old else f'{organization}/'}{project}/_git/{name}"
    whole = not {"", ".", ".."}.intersection(path.split("/"))
    return Address(host, path, scheme, port) if _HOST.fullmatch(host) and whole and path.isprintable() else None


def _scp(text: str) -> tuple[str, str]:
    match = _SCP.fullmatch(text) if "://" not in text else None
    return (match["host"], match["path"]) if match else ("", "")


def pages_of_host(url: str) -> tuple[str, str] | None:
    """Return the host's blame of the line that a link leads to, and the history of its file, as of the link's commit.

    Returns None for a host whose page URLs are unknown.

    Examples:
        >>> commit = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
        >>> blame, history = pages_of_host(f"https://github.com/acme/tree/blob/{commit}/a.md?plain=1#L7")
        >>> blame == f"https://github.com/acme/tree/blame/{commit}/a.md?plain=1#L7"
        True
        >>> history == f"https://github.com/acme/tree/commits/{commit}/a.md"
        True
    """
    found = _OF_COMMIT.match(url)
    if found is None:
        return None
    root, commit, path = found["root"], found["commit"], found["path"]
    between = found[0][len(root) : found.start("commit") - found.start()]
    at_commit = "commit/" if between == "/src/commit/" else ""
    inside = "/-/" if between == "/-/blob/" else "/"
    blame = f"{root}{inside}blame/{at_commit}{commit}/{path}{url[found.end() :]}"
    return blame, f"{root}{inside}commits/{at_commit}{commit}/{path}"


# -- templates ---------------------------------------------------------------------------------


def invalid_link(link: str) -> str | None:
    """Return the problem with a source's ``link``, which is a host type or a template, or None if it is valid.

    Examples:
        >>> invalid_link("gitlab"), invalid_link("https://git.example.com/view/{repository}/{path}?id={commit}#n{line}")
        (None, None)
    """
    if link in TEMPLATES:
        return None
    names = set(_FIELD.findall(link))
    if not names:
        return f"write {', '.join(TEMPLATES)}, or a template with {{commit}} and {{path}}"
    if unknown := sorted(names - _PLACEHOLDERS):
        return f"{{{unknown[0]}}} is unknown; use {', '.join(f'{{{name}}}' for name in sorted(_PLACEHOLDERS))}"
    if not {"commit", "path"} <= names:
        return "a permanent link needs {commit} and {path}"
    plain = _FIELD.sub("x", link)
    if not _TEMPLATE.fullmatch(plain) or {"{", "}"} & {*plain}:
        return "start with https://, and include neither credentials nor spaces"
    return None


@dataclass(frozen=True, slots=True)
class LinkTemplate:
    """The template of a source host's links to document lines."""

    text: str
    kind: str | None = None
    known: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, record: SourceRecord) -> LinkTemplate | None:
        """Return a source's template, from its remote and its setting, or None if these are not enough for a link.

        The record may have been written by someone else, so an invalid setting is ignored.
        """
        address, setting = address_of(record.origin or ""), record.link
        if setting is not None and invalid_link(setting) is not None:
            setting = None
        if setting is not None and setting not in TEMPLATES:
            known = {"host": address.host, "repository": quote(address.path)} if address is not None else {}
            needed = {"host", "repository"}.intersection(_FIELD.findall(setting))
            return cls(setting, known=known) if needed <= known.keys() else None
        kind = setting or (address.kind if address is not None else None)
        if address is None or kind is None:
            return None
        if address.host == "gist.github.com":
            return cls(_GIST, known={"repository": quote(address.path)})
        if address.path.endswith(_OF_WIKI) and kind in ("github", "gitlab", "gitea"):
            root = replace(address, path=address.path.removesuffix(_OF_WIKI)).root(kind)
            return cls(_WIKIS[kind], known={"root": root}) if kind in _WIKIS else None
        return cls(TEMPLATES[kind], kind, {"root": address.root(kind)})

    def url(self, commit: str, path: str, line: int | None) -> str | None:
        """Return the link to a line of ``path`` at a commit or, if ``line`` is None, to the whole file.

        A wiki has links to its pages only.
        """
        text = self.text
        folder, _, name = path.rpartition("/")
        stem, _, ending = name.rpartition(".")
        if "{page}" in text and ending.lower() not in _RENDERED:
            return None
        page = stem if self.text == _WIKIS["github"] else f"{folder}/{stem}".lstrip("/")
        if line is None:
            before, _, after = text.partition("#")
            text = before if "{line}" in after else _LINES.sub("", text) if self.kind else text
        elif self.kind in _AS_SOURCE and path.rpartition(".")[2].lower() in _RENDERED:
            text = text.replace("#", f"?{_AS_SOURCE[self.kind]}#")
        values = {**self.known, "commit": commit, "line": str(line or 1), "path": quote(path, errors="surrogatepass")}
        values |= {"page": quote(page, errors="surrogatepass"), "slug": quote(re.sub(r"\W", "-", path.lower()))}
        return _FIELD.sub(lambda match: values[match[1]], text)


# -- links -------------------------------------------------------------------------------------


class _Revision(NamedTuple):
    """A document at a ``commit``: its path in the repository, and whether its lines come from extracted text."""

    commit: str
    path: str
    extracted: bool


@dataclass(frozen=True, slots=True)
class Links:
    """The permalinks of several documents."""

    _found: Mapping[DocumentKey, tuple[LinkTemplate, _Revision]] = field(default_factory=dict)

    def url(self, entity: str, path: str, line: int) -> str | None:
        """Return the link to a line (1-based), or None if the document has no link."""
        found = self._found.get((entity, path))
        if found is None:
            return None
        template, revision = found
        return template.url(revision.commit, revision.path, None if revision.extracted else line)


def find_links(
    workspace: Workspace,
    record_of: Callable[[str], SourceRecord | None],
    documents: Mapping[DocumentKey, str],
    contents: Mapping[DocumentKey, object],
) -> Links:
    """Return the links of ``documents``, a mapping to the hashes of their indexed content.

    ``record_of`` returns a source's record, read before this call; ``contents`` contains the bytes of documents that
    were read. Sources whose index or repository cannot be read have no links.
    """
    found: dict[DocumentKey, tuple[LinkTemplate, _Revision]] = {}
    for entity in sorted({entity for entity, _ in documents}):
        record = record_of(entity)
        template = LinkTemplate.of(record) if record is not None else None
        if record is None or template is None:
            continue
        requested = {path: digest for (of, path), digest in documents.items() if of == entity}
        read = {path: contents.get((entity, path)) for path in requested}
        try:
            revisions = _recorded(workspace, entity, record, requested)
            revisions |= _in_work_tree(
                workspace, record, {p: h for p, h in requested.items() if p not in revisions}, read
            )
        except DriftlineError as error:
            log.warning("Omitting the links of %s: %s", entity, error)
            continue
        found |= {(entity, path): (template, revision) for path, revision in revisions.items()}
    return Links(found)


_Fact = tuple[str, str, str, str, str]
_KNOWN: LRUCache[_Fact, _Revision | None] = LRUCache(KNOWN_DOCUMENTS)
"""Document locations, keyed by two names of the source, commit, path and hash, or None if the content differs."""
_KNOWN_LOCK = threading.Lock()


def _known(keys: Mapping[str, _Fact]) -> dict[str, _Revision | None]:
    with _KNOWN_LOCK:
        return {path: _KNOWN[key] for path, key in keys.items() if key in _KNOWN}


def _recorded(
    workspace: Workspace, entity: str, record: SourceRecord, requested: Mapping[str, str]
) -> dict[str, _Revision]:
    """Return the locations of documents at the indexed commit.

    At the end of that run, each document was the same as in the commit. It is unchanged if its manifest row, read after
    the record, is from that run or an earlier one. A copy's record may be newer than its manifest.
    """
    from driftline.storage.deltas.manifest import token_of  # searches with no such record do not load it

    at = record.reached or record.commit
    if at is None:
        return {}
    keys: dict[str, _Fact] = {p: (workspace.objects.uri, entity, at.id, p, digest) for p, digest in requested.items()}
    revisions = {path: revision for path, revision in _known(keys).items() if revision is not None}
    missing = [path for path in requested if path not in revisions]
    if not missing:
        return revisions
    manifest = workspace.manifest(Entity.parse(entity, workspace.config.hierarchy))
    rows = manifest.get(missing, columns=["path", "rev", "hash", "reason", "extractor"])
    if read_copy_record(workspace.objects) is not None and not 0 < at.revision <= manifest.recent_rev():
        return revisions
    new: dict[str, _Revision] = {}
    for row in rows.to_pylist():
        path = row["path"]
        if row["reason"] is None and row["hash"] == requested[path] and token_of(row["rev"]) <= at.token:
            extracted = INSIDE in path or bool(split_encoding(split_mark(row["extractor"], "off")[0])[0])
            new[path] = _Revision(at.id, f"{record.subpath}{container_of(path)}", extracted)
    with _KNOWN_LOCK:
        _KNOWN.update({keys[path]: revision for path, revision in new.items()})
    return revisions | new


_PUSHED: TTLCache[str, PushedCommit | None] = TTLCache(64, PUSHED_SECONDS)
_PUSHED_LOCK = threading.Lock()


def _in_work_tree(
    workspace: Workspace, record: SourceRecord, requested: Mapping[str, str], read: Mapping[str, object]
) -> dict[str, _Revision]:
    """Return the locations of documents at their working tree's newest pushed commit; its files were ``read``."""
    is_readable = "://" not in record.uri and "::" not in record.uri and workspace.access.allows(record.uri)
    pushed = _pushed(record.uri) if requested and is_readable else None
    if pushed is None:
        return {}
    keys: dict[str, _Fact] = {p: (record.uri, "", pushed.id, p, digest) for p, digest in requested.items()}
    found = _known(keys)
    unknown = [path for path in requested if path not in found and INSIDE not in path]
    if unknown:
        from driftline.tasks.git.commits import blob_contents, blobs_at

        blobs, new = blobs_at(pushed, unknown), dict[str, _Revision | None]()
        as_indexed = {
            path: data
            for path in unknown
            if isinstance(data := read.get(path), bytes) and content_hash(data) == requested[path]
        }
        changed = {path: blobs[path] for path in unknown if path in blobs and path not in as_indexed}
        contents = blob_contents(pushed, [*changed.values()])
        committed = {path: contents[blob] for path, blob in changed.items() if blob in contents}
        if blobs:  # otherwise git may have failed
            new |= dict.fromkeys(path for path in unknown if path not in blobs)
        for path, data in (as_indexed | committed).items():
            same = path in as_indexed or content_hash(data) == requested[path]
            if same and blobs.get(path) == _blob_id(data, pushed.object_format):
                new[path] = _Revision(pushed.id, f"{pushed.prefix}{path}", is_extracted(path, data))
            elif blobs:
                new[path] = None
        with _KNOWN_LOCK:
            _KNOWN.update({keys[path]: revision for path, revision in new.items()})
        found |= new
    return {path: revision for path, revision in found.items() if revision is not None}


def _pushed(root: str) -> PushedCommit | None:
    with _PUSHED_LOCK:
        if root in _PUSHED:
            return _PUSHED[root]
    from driftline.tasks.git.commits import pushed_commit

    found = pushed_commit(root)
    with _PUSHED_LOCK:
        _PUSHED[root] = found
    return found


def _blob_id(data: bytes, object_format: str) -> str:
    """Return git's blob id for these bytes."""
    digest = hashlib.new(object_format, b"blob %d\0" % len(data), usedforsecurity=False)
    digest.update(data)
    return digest.hexdigest()


def is_archive_unchanged(workspace: Workspace, entity: Entity, record: SourceRecord | None, path: str) -> bool:
    """Return whether a document's archive still has its indexed size and time, without reading it."""
    container = container_of(path)
    if record is None or container == path or not workspace.access.allows(record.uri):
        return False
    known = workspace.manifest(entity).get([container]).to_pylist()
    try:
        found = known_source(record.uri, workspace.objects.storage_options).stat(container)
    except DriftlineError:
        return False
    if not known or found is None:
        return False
    was, etags = known[0], {known[0]["etag"], found.etag} - {""}
    is_same = found.size_bytes == was["size_bytes"] and len(etags) < 2
    return is_same and (found.etag == was["etag"] != "" or found.mtime_ns == was["mtime_ns"])

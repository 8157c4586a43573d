"""What the page of a document shows beside its lines: its definitions, similar lines, and where its remote shows it."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote, unquote, urlsplit

from driftline.storage.errors import NotIndexed
from driftline.storage.workspace.records import SourceRecord
from driftline.tasks.definitions.outlines import definitions

MAX_DEFINITIONS = 500
_FORGES = {
    "github": "/blob/{ref}/{path}#L{line}",
    "gitlab": "/-/blob/{ref}/{path}#L{line}",
    "gitea": "/src/commit/{ref}/{path}#L{line}",
    "forgejo": "/src/commit/{ref}/{path}#L{line}",
    "codeberg": "/src/commit/{ref}/{path}#L{line}",
}
"""How each forge shows a line, by what the name of its host contains."""
_WITHOUT_COMMIT = ("github", "gitlab")
"""Forges that know HEAD."""


def split_address(address: bytes, levels: Sequence[str]) -> tuple[str, str]:
    """The source and the path of ``{entity}/{path}``, percent-encoded. Raises NotIndexed.

    Ids of entities hold no slash, and the deepest of ``levels`` ends the entity.
    """
    try:
        text = unquote(address.decode("ascii"), errors="surrogatepass")
    except UnicodeDecodeError:
        raise NotIndexed("No such document is indexed", "", "Take path and source from search results.") from None
    segments = text.split("/")
    depth = next((i for i, each in enumerate(segments, 1) if each.startswith(f"{levels[-1]}:")), len(segments))
    return "/".join(segments[:depth]), "/".join(segments[depth:])


def outline(path: str, lines: Sequence[str], first: int) -> list[tuple[int, str, str]]:
    """The definitions in ``lines``, of which the first is number ``first``: line, kind and qualified name."""
    found = definitions(path, "\n".join(lines))[:MAX_DEFINITIONS]
    return [(each.line + first, each.kind, each.name) for each in found]


def remote_link(record: SourceRecord, path: str, line: int, branch: str | None = None) -> tuple[str, str] | None:
    """The host and the link of a line in the web view of the source's git remote, if that is of a known kind."""
    host, repository = _repository(record.origin or "")
    kind = next((kind for kind in _FORGES if kind in host), None)
    ref = branch or (record.commit.id if record.commit else "HEAD" if kind in _WITHOUT_COMMIT else None)
    if kind is None or not repository or ref is None:
        return None
    pattern = _FORGES[kind].replace("/src/commit/", "/src/branch/") if branch else _FORGES[kind]
    within = f"{record.subpath.strip('/')}/{path}".lstrip("/")
    place = pattern.format(ref=quote(ref), path=quote(within, errors="surrogatepass"), line=line)
    return host, f"https://{host}/{quote(repository)}{place}"


def _repository(origin: str) -> tuple[str, str]:
    """Host and path of ``https://host/owner/name.git``, ``ssh://git@host/…`` or ``git@host:owner/name.git``."""
    if "://" in origin:
        parts = urlsplit(origin)
        host, path = parts.hostname or "", parts.path
        if parts.scheme in ("http", "https") and parts.port is not None:
            host = f"{host}:{parts.port}"
    else:
        host, _, path = origin.rpartition("@")[2].partition(":")
    return host.lower(), path.strip("/").removesuffix(".git")

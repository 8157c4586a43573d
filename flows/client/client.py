"""A web server as an object: ``driftline.connect(URL)``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from driftline.flows.client.connection import Connection
from driftline.tasks.search.defaults import DEFAULT_N_LINES, DEFAULT_TOP_K
from driftline.tasks.search.documents import Document
from driftline.tasks.search.excerpts import Excerpt
from driftline.tasks.search.hits import Hit
from driftline.tasks.search.query import Mode, SearchReport

DOCUMENTS_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Client:
    """Asks a web server. Every method raises the errors of the call that it stands for, AccessDenied for a token that
    may not ask this, and StorageError if the server cannot be reached.
    """

    connection: Connection

    def search(
        self,
        query: str,
        *,
        top_k: int = DEFAULT_TOP_K,
        n_lines: int = DEFAULT_N_LINES,
        mode: Mode = "hybrid",
        max_distance: float | None = None,
        min_relevance: float | None = None,
        sources: Sequence[str] = (),
        paths: Sequence[str] = (),
        dirs: Sequence[str] = (),
        globs: Sequence[str] = (),
        exts: Sequence[str] = (),
        languages: Sequence[str] = (),
        kinds: Sequence[str] = (),
        symbols: bool = False,
        tests: bool = True,
        branch: str | None = None,
    ) -> SearchReport:
        """Find the windows of lines that answer ``query``, best first, as ``driftline.search`` does.

        The server bounds ``top_k`` and ``n_lines``. Paths, directories and globs are relative to their source.
        """
        found = self.connection.get(
            "search",
            {
                "q": query,
                "top_k": top_k,
                "n_lines": n_lines,
                "mode": mode,
                "max_distance": max_distance,
                "min_relevance": min_relevance,
                "source": sources,
                "path": paths,
                "dir": dirs,
                "glob": globs,
                "ext": exts,
                "lang": languages,
                "kind": kinds,
                "symbols": symbols,
                "tests": tests,
                "branch": branch,
            },
        )
        nearest = _hit(found["nearest"]) if "nearest" in found else None
        notes, unmatched = tuple(found.get("notes", ())), tuple(found.get("unmatched", ()))
        return SearchReport(found["query"], tuple(map(_hit, found["results"])), None, notes, nearest, unmatched)

    def excerpt(self, source: str, path: str, line: int, *, n_lines: int = 20, branch: str | None = None) -> Excerpt:
        """Lines of an indexed document: ``line`` (1-based), and ``n_lines`` on each side."""
        asked = {"source": source, "path": path, "line": line, "n_lines": n_lines, "branch": branch}
        found = self.connection.get("excerpt", asked)
        return Excerpt(**{**found, "lines": tuple(found["lines"])})

    def documents(
        self, *, sources: Sequence[str] = (), dirs: Sequence[str] = (), exts: Sequence[str] = ()
    ) -> Iterator[Document]:
        """The indexed documents by source and path."""
        asked = {"limit": DOCUMENTS_AT_ONCE, "source": sources, "dir": dirs, "ext": exts}
        for page in self.connection.pages("documents", asked):
            yield from (Document(**document) for document in page["documents"])

    def search_memory(
        self, query: str, top_k: int = 5, entity: str | None = None, *, mode: Mode = "hybrid"
    ) -> list[dict[str, Any]]:
        """The memory entries that answer ``query``, best first: ``{record, score, rank}`` each."""
        found = self.connection.get("memory/search", {"q": query, "top_k": top_k, "entity": entity, "mode": mode})
        return list(found["results"])

    def status(self) -> dict[str, Any]:
        """As ``driftline status --json`` prints it."""
        return self.connection.get("status")

    def sources(self) -> list[dict[str, Any]]:
        """The sources, as ``driftline sources --json`` prints them."""
        return list(self.connection.get("sources")["sources"])

    def branches(self) -> list[dict[str, Any]]:
        """The branches of the sources, as ``driftline branches --json`` prints them."""
        return list(self.connection.get("branches")["branches"])


def _hit(told: Mapping[str, Any]) -> Hit:
    return Hit(**{**told, **{name: tuple(told[name]) for name in ("context", "copies")}})

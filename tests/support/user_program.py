"""An example of a user's program: it indexes, searches, uses memory and handles errors, with full type annotations."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

import driftline
from driftline import DriftlineError, Hit, LineFilter, MemoryEntry, MemoryItem, SearchReport, SourceReport, Workspace


def locations(hits: tuple[Hit, ...]) -> list[str]:
    """``path:line`` and the score of each hit."""
    return [f"{hit.path}:{hit.line} {hit.score:.2f} {len(hit.context)}" for hit in hits]


def index(folder: str, workspace: str, model: str) -> dict[str, int]:
    """Index ``folder``; returns the lines of each source."""
    report: driftline.IndexReport = driftline.index(
        folder, workspace=workspace, model=model, include=["*.md"], max_delete_fraction=0.9, indexes="all"
    )
    failures: list[tuple[str, DriftlineError]] = report.failed
    assert not failures
    sources: list[SourceReport] = report.sources
    print(f"{report.run_id} took {report.seconds:.1f} s; indexes: {', '.join(report.indexes)}")
    return {source.entity: source.lines_total for source in sources}


def find(workspace: Workspace, query: str) -> SearchReport:
    """Search below ``guides``, with an explanation."""
    within = LineFilter(dirs=("guides",), exts=(".md",))
    report = driftline.search(workspace, query, top_k=3, n_lines=1, where=within, mode="hybrid", explain=True)
    explanation: driftline.Explanation | None = report.explanation
    assert explanation is not None
    print(f"{explanation.matches} of {explanation.lines} lines in {sum(explanation.seconds.values()):.3f} s")
    return report


def remember(workspace: str) -> int:
    """Store and retrieve entries; returns the number of entries of an entity."""
    hierarchy = driftline.Hierarchy(levels=("org", "project"))
    with driftline.MemoryStore(workspace, hierarchy=hierarchy) as store:
        store.store("plan", {"step": 1}, "org:acme/project:alpha", metadata={"phase": "plan"})
        store.store("lunch", None, "org:acme", expires_at=datetime.now(UTC) + timedelta(hours=1))
        stored: int = store.store_many([MemoryItem(f"fact {n}", {"n": n}, "org:acme") for n in range(3)]).entries
        entry: MemoryEntry | None = store.retrieve("plan", "org:acme")
        assert entry is not None
        print(stored, entry.key, entry.entity.directory, entry.created.isoformat())
        page: driftline.Page[MemoryEntry] = store.retrieve_by_entity("org", "acme", within="org:acme")
        records: list[driftline.EntityRecord] = store.list_entities("org:acme")
        print(sorted(each.key for each in page.entries))
        print(sorted(record.entity.id for record in records))
        return page.total_count


def kind_of(workspace: str) -> str:
    """Open a workspace that does not exist, and return the kind of the error."""
    try:
        driftline.open(workspace)
    except driftline.WorkspaceNotFound as error:
        print(error.what, error.where, error.fix, error.exit_code)
        return error.kind
    except driftline.StorageError:
        return "try again"
    return ""


def main(folder: str, location: str, model: str) -> None:
    """Use each public function once."""
    lines = index(folder, location, model)
    workspace = driftline.open(location)
    stats: driftline.WorkspaceStats = workspace.status()
    print(driftline.__version__, lines, stats.total_documents, stats.total_lines, stats.model)
    print(locations(find(workspace, "a parser").results))
    print(locations(driftline.grep("a parser", folder, model=model, top_k=2, ignore_case=True).results))
    entity = next(iter(lines))
    states: list[tuple[str, driftline.DocumentState]] = driftline.analyze_document_states(
        workspace, entity, ["guides/parse.md"]
    )
    print([(path, state is driftline.DocumentState.UNCHANGED) for path, state in states])
    print(remember(location))
    with driftline.create_ltm_backend(storage_uri=location, embedding={"model": model}) as backend:
        print(backend.retrieve("plan", "org:acme/project:alpha")["success"])
    print(kind_of(f"{location}-missing"))


if __name__ == "__main__":
    main(*sys.argv[1:])

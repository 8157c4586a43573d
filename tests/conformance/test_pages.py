"""The documentation names every spelling that the specification accepts."""

from __future__ import annotations

import pytest

from tests.conformance.search_support import ROOT, pages
from tests.conformance.table import criterion

SPELLINGS = {
    "actions": [
        "search.workspace_create",
        "search.workspace_index",
        "search.workspace_search",
        "search.workspace_stats",
        "search.workspace_remove",
        "search.semantic",
        "semtools.search",
        "actions.semtools_search",
    ],
    "arguments": [
        "path",
        "workspace",
        "paths",
        "recursive",
        "extensions",
        "query",
        "top_k",
        "max_distance",
        "n_lines",
        "files",
        "n_results",
        "workspace_name",
        "strategy",
        "fallback_threshold",
        "min_relevance",
        "model",
        "mode",
        "dirs",
        "globs",
        "exts",
        "entity",
        "explain",
        "dry_run",
        "max_delete_fraction",
        "min_version",
        "check_version",
    ],
    "answers": [
        "created",
        "indexed",
        "updated",
        "skipped",
        "skipped_files",
        "total_lines",
        "total_documents",
        "has_index",
        "index_type",
        "best_match",
        "has_matches",
        "total_matches",
        "relevance",
        "file",
    ],
    "settings": ["DRIFTLINE_MODEL", "DRIFTLINE_HOME", "--fallback-threshold", "--min-relevance", "[search]"],
    "types": ["LineEmbedding", "DocMeta", "DocumentState", "analyze_document_states", "CURRENT_EMBEDDING_VERSION"],
    "memory": [
        "catalog_url",
        "storage_uri",
        "hierarchy_levels",
        "performance_config",
        "sqlalchemy",
        "postgresql+psycopg2",
        "LTM_ROOT_ENTITY_ID",
        "retrieve_by_entity",
        "register_entity_with_defaults",
        "compact_indexes",
        "cleanup_orphans",
        "within",
    ],
}


@criterion("pages", "1", "the reference lists every accepted spelling")
@pytest.mark.parametrize("kind", SPELLINGS)
def test_the_reference_lists_every_spelling(kind: str) -> None:
    """As code: in backticks, in a block, or at the beginning of inline code."""
    text = "\n".join(pages().values())
    code = "\n".join(text.split("`")[1::2])
    assert [word for word in SPELLINGS[kind] if word not in code] == []


CHANGES = [
    "workspace_remove",
    "workspace_name",
    "min_relevance",
    "DRIFTLINE_MODEL",
    "deletion_refused",
    "lease_held",
    "fallback_threshold",
    "LineEmbedding",
    "analyze_document_states",
    "within",
    "ltm_entries",
]


@criterion("pages", "2", "the changelog names what changed")
def test_the_changelog_names_what_changed() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert [word for word in CHANGES if word not in text] == []

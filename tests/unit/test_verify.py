"""The comparison of documents with counted lines, without a store."""

from __future__ import annotations

import pyarrow as pa

from driftline.tasks.maintenance.verification import FindingKind, compare

OURS, OTHER = "f1", "f2"
MANIFEST = pa.schema(
    [("path", pa.string()), ("hash", pa.string()), ("lines", pa.int32()), ("fingerprint", pa.string())]
)
COUNTS = pa.schema([("path", pa.string()), ("hash", pa.string()), ("rows", pa.int64())])


def found(
    documents: list[tuple[str, str, int, str]] | None, rows: list[tuple[str, str, int]], serves: bool = True
) -> list[tuple[FindingKind, str]]:
    manifest = None
    if documents is not None:
        manifest = pa.Table.from_pylist([dict(zip(MANIFEST.names, row, strict=True)) for row in documents], MANIFEST)
    counts = pa.Table.from_pylist([dict(zip(COUNTS.names, row, strict=True)) for row in rows], COUNTS)
    return [(kind, path) for kind, path, _ in compare(manifest, counts, OURS, serves=serves)]


def test_consistent_documents_and_lines_have_no_findings() -> None:
    assert found([("a", "h", 2, OURS), ("empty", "h", 0, OURS)], [("a", "h", 2)]) == []


def test_an_empty_workspace_has_no_findings() -> None:
    assert found([], []) == []
    assert found(None, []) == []


def test_each_difference_has_its_kind() -> None:
    documents = [("fewer", "h", 2, OURS), ("more", "h", 2, OURS), ("none", "h", 2, OURS), ("other", "h", 2, OURS)]
    rows = [("fewer", "h", 1), ("more", "h", 3), ("other", "old", 2), ("stranger", "h", 1)]
    assert sorted(found(documents, rows)) == sorted(
        [
            (FindingKind.WRONG_COUNT, "fewer"),
            (FindingKind.WRONG_COUNT, "more"),
            (FindingKind.MISSING_LINES, "none"),
            (FindingKind.MISSING_LINES, "other"),
            (FindingKind.STALE_LINES, "other"),
            (FindingKind.NO_DOCUMENT, "stranger"),
        ]
    )


def test_lines_next_to_an_empty_manifest_have_no_document() -> None:
    assert found([], [("a", "h", 2)]) == found(None, [("a", "h", 2)]) == [(FindingKind.NO_DOCUMENT, "a")]


def test_lines_of_a_document_that_was_not_indexed_are_stale() -> None:
    assert found([("a", "binary", 0, OURS)], [("a", "h", 2)]) == [(FindingKind.STALE_LINES, "a")]


def test_the_serving_table_may_lag_behind_during_a_reembedding() -> None:
    documents = [("moved", "new", 2, OTHER), ("here", "h", 1, OURS)]
    rows = [("moved", "old", 2), ("gone", "h", 1), ("here", "h", 1)]
    assert found(documents, rows) == []
    assert found(documents, rows, serves=False) == [
        (FindingKind.NO_DOCUMENT, "moved"),
        (FindingKind.NO_DOCUMENT, "gone"),
    ]
    assert found(documents, [("here", "h", 2)]) == [(FindingKind.WRONG_COUNT, "here")]

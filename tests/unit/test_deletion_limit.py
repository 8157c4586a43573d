"""The deletion limit: what a run may delete, and which missing documents count."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from driftline.flows.runs.remove import DeletionLimit, count_missing, missing_documents, unexplained_deletions
from driftline.tasks.scanning.diff import CHANGE_SCHEMA, DELETED_SCHEMA, SKIPPED_SCHEMA, Diff
from driftline.tasks.scanning.overlap import Claim
from driftline.tasks.scanning.path_patterns import Rules
from driftline.tasks.scanning.scan import ScanResult


def missing(*paths: str, **columns: Any) -> pa.Table:
    rows = [{"path": path, "hash": path, "lines": 1, **columns} for path in paths]
    return pa.Table.from_pylist(rows, DELETED_SCHEMA)


def scan(deleted: pa.Table, *, complete: bool) -> ScanResult:
    none = CHANGE_SCHEMA.empty_table()
    skipped = SKIPPED_SCHEMA.empty_table()
    return ScanResult(Diff(none, none, none, deleted, skipped, 0), skipped, 0, len(deleted), complete)


@pytest.mark.parametrize(
    ("lost", "known", "fraction", "allowed"),
    [
        (3, 3, 0.5, True),  # always
        (4, 8, 0.5, True),
        (5, 8, 0.5, False),
        (4, 4, 0.99, False),
        (4, 4, 1.0, True),
        (4, 1_000, 0.0, False),
        (0, 0, 0.0, True),
    ],
)
def test_more_than_a_fraction_needs_a_confirmation(lost: int, known: int, fraction: float, allowed: bool) -> None:
    limit = DeletionLimit(fraction, always=3)
    refusal = limit.refusal(lost, known, "documents", "org:a/project:b/source:c")
    assert (limit.allows(lost, known), refusal is None) == (allowed, allowed)
    if refusal is not None:
        assert f"{lost:,} of {known:,} documents are missing" in refusal.what
        assert (refusal.where, refusal.kind) == ("org:a/project:b/source:c", "deletion_refused")
        assert "--max-delete-fraction 1" in (refusal.fix or "")


def test_an_incomplete_listing_deletes_nothing() -> None:
    none = missing()
    parts = [scan(missing("a"), complete=True), scan(none, complete=False)]
    assert missing_documents(parts) is None
    assert missing_documents([scan(none, complete=False)]) == none  # there is nothing to keep
    found = missing_documents([scan(missing("a"), complete=True), scan(missing("b"), complete=True)])
    assert found is not None
    assert found["path"].to_pylist() == ["a", "b"]


def test_documents_that_the_request_leaves_out_do_not_count() -> None:
    documents = missing("kept.md", "out/a.md", "lib/b.md", "box.zip!/c.md")
    rules, claims = Rules(exclude=("out/",)), (Claim("lib/", Rules()),)
    assert unexplained_deletions(documents, rules, claims)["path"].to_pylist() == ["kept.md"]
    opened = Rules(exclude=("out/",), archives=True)
    assert unexplained_deletions(documents, opened, claims)["path"].to_pylist() == ["kept.md", "box.zip!/c.md"]
    assert len(unexplained_deletions(missing("large.bin", reason="binary"), Rules(), ())) == 0


def test_a_renamed_document_is_not_lost() -> None:
    twice = pa.concat_tables([missing("a", hash="h"), missing("b", hash="h"), missing("c", hash="i")])
    assert [count_missing(twice, Counter(new)) for new in ((), ("h",), ("h", "h", "h"), ("i", "h"))] == [3, 2, 1, 1]

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from driftline.storage.documents import DocumentState
from driftline.tasks.scanning.diff import CTIME_TICK_NS, FEW_INODES, LISTING_SCHEMA, MANIFEST_SCHEMA, classify, diff

OLD = 10**18
NOW = OLD + 3600 * 10**9


def listing(*rows: dict[str, Any]) -> pa.Table:
    base = {"size_bytes": 5, "mtime_ns": OLD, "etag": "", "ctime_ns": OLD, "inode": 7}
    return pa.Table.from_pylist([base | row for row in rows], schema=LISTING_SCHEMA)


def manifest(*rows: dict[str, Any]) -> pa.Table:
    status = {"size_bytes": 5, "mtime_ns": OLD, "etag": "", "ctime_ns": OLD, "inode": 7}
    base = status | {"hash": "h", "fingerprint": "fp", "lines": 3, "racy": False, "extractor": ""}
    return pa.Table.from_pylist([base | row for row in rows], schema=MANIFEST_SCHEMA)


def outcome(now: dict[str, Any], before: dict[str, Any], **options: Any) -> str:
    found = diff(listing({"path": "a"} | now), manifest({"path": "a"} | before), "fp", now_ns=NOW, **options)
    parts = {
        "new": len(found.new),
        "candidate": len(found.candidates),
        "retouched": len(found.retouched),
        "skipped": len(found.skipped),
        "unchanged": found.unchanged,
        "deleted": len(found.deleted),
    }
    assert sum(parts.values()) == 1 + (parts["retouched"] and parts["skipped"])
    return next(name for name, count in parts.items() if count)


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        ({}, {}, "unchanged"),
        ({"mtime_ns": OLD + 1}, {}, "candidate"),
        ({"size_bytes": 6}, {}, "candidate"),
        ({"etag": "x"}, {"etag": "x"}, "unchanged"),
        ({"etag": "x", "mtime_ns": OLD + 1}, {"etag": "x"}, "retouched"),
        ({"etag": "x", "size_bytes": 6}, {"etag": "x"}, "candidate"),
        ({"etag": "y"}, {"etag": "x"}, "candidate"),
        ({"etag": "x"}, {}, "unchanged"),
        ({"etag": "x", "mtime_ns": OLD + 1}, {}, "candidate"),
        ({}, {"etag": "x"}, "unchanged"),
        ({"mtime_ns": OLD + 1}, {"etag": "x"}, "candidate"),
        ({"ctime_ns": OLD + 1}, {}, "candidate"),
        ({"inode": 8}, {}, "candidate"),
        ({"ctime_ns": OLD + 1, "inode": 8}, {"ctime_ns": 0, "inode": 0}, "unchanged"),
        ({}, {"ctime_ns": None, "inode": None}, "candidate"),
        ({"etag": "x", "ctime_ns": OLD + 1}, {"etag": "x"}, "candidate"),
        ({"etag": "x", "mtime_ns": OLD + 1, "ctime_ns": OLD + 1, "inode": 8}, {"etag": "x"}, "retouched"),
        ({}, {"etag": "git:x"}, "candidate"),
        ({"etag": "git:x"}, {}, "unchanged"),
        ({"mtime_ns": 0}, {"mtime_ns": 0}, "unchanged"),
        ({"mtime_ns": 0, "ctime_ns": 0}, {"mtime_ns": 0, "ctime_ns": 0}, "candidate"),
        ({"mtime_ns": 0, "etag": "x"}, {"mtime_ns": 0, "etag": "x"}, "unchanged"),
        ({}, {"racy": True}, "candidate"),
        ({}, {"fingerprint": "other"}, "candidate"),
        ({}, {"reason": "binary"}, "skipped"),
        ({}, {"reason": "binary", "fingerprint": ""}, "skipped"),
        ({}, {"reason": "binary", "fingerprint": "other"}, "candidate"),
        ({"mtime_ns": OLD + 1}, {"reason": "binary"}, "candidate"),
    ],
)
def test_metadata_decides_which_files_are_read(now: dict[str, Any], before: dict[str, Any], expected: str) -> None:
    assert outcome(now, before) == expected


def test_a_full_run_reads_everything() -> None:
    assert outcome({}, {}, full=True) == "candidate"
    assert outcome({"etag": "x", "mtime_ns": OLD + 1}, {"etag": "x"}, full=True) == "candidate"


def test_new_and_deleted_files_are_recognized_in_any_order() -> None:
    now = listing({"path": "c"}, {"path": "a"}, {"path": "new"})
    before = manifest({"path": "gone", "reason": "binary"}, {"path": "a"}, {"path": "c"})
    found = diff(now, before, "fp", now_ns=NOW)
    assert found.new["path"].to_pylist() == ["new"]
    assert found.new["hash"].to_pylist() == [None]
    assert found.deleted.to_pylist() == [
        {"path": "gone", "hash": "h", "fingerprint": "fp", "lines": 3, "reason": "binary", "extractor": ""}
    ]
    assert found.unchanged == 2


def test_a_touched_file_gets_its_new_times_in_the_manifest() -> None:
    now = listing({"path": "a", "etag": "git:1", "mtime_ns": NOW})
    before = manifest({"path": "a", "etag": "git:1", "lines": 7})
    (row,) = diff(now, before, "fp", now_ns=NOW).retouched.select(MANIFEST_SCHEMA.names).to_pylist()
    assert row == {
        "path": "a",
        "size_bytes": 5,
        "mtime_ns": NOW,
        "etag": "git:1",
        "hash": "h",
        "fingerprint": "fp",
        "lines": 7,
        "reason": None,
        "racy": True,
        "ctime_ns": OLD,
        "inode": 7,
        "extractor": "",
    }


def test_a_touched_file_that_is_not_indexed_is_still_reported() -> None:
    now = listing({"path": "a", "etag": "x", "mtime_ns": OLD + 1})
    found = diff(now, manifest({"path": "a", "etag": "x", "reason": "binary"}), "fp", now_ns=NOW)
    assert found.retouched["reason"].to_pylist() == ["binary"]
    assert found.skipped.to_pylist() == [{"path": "a", "reason": "binary"}]


@pytest.mark.parametrize(
    ("age_ns", "etag", "racy"),
    [(0, "", True), (-(10**12), "", True), (10**9, "git:1", True), (3 * 10**9, "", False), (0, "s3-etag", False)],
)
def test_a_file_changed_just_now_is_racy_unless_its_store_has_etags(age_ns: int, etag: str, racy: bool) -> None:
    now = listing({"path": "a", "etag": etag, "mtime_ns": NOW - age_ns})
    assert diff(now, MANIFEST_SCHEMA.empty_table(), "fp", now_ns=NOW).new["racy"].to_pylist() == [racy]


def test_a_file_whose_ctime_is_recent_is_racy_for_any_mtime() -> None:
    now = listing({"path": "a", "ctime_ns": NOW - 1}, {"path": "b", "ctime_ns": NOW - 2 * CTIME_TICK_NS})
    assert diff(now, MANIFEST_SCHEMA.empty_table(), "fp", now_ns=NOW).new["racy"].to_pylist() == [True, False]


@pytest.mark.parametrize(
    ("other_inodes", "of", "read"),
    [
        (1, 1, 1),  # the only file of a folder, replaced
        (FEW_INODES, FEW_INODES, FEW_INODES),
        (FEW_INODES + 1, FEW_INODES + 1, 0),  # a network file system, mounted again
        (1_000, 1_000, 0),
        (501, 1_000, 0),
        (500, 1_000, 500),  # as many replaced as kept
    ],
)
def test_inodes_are_ignored_if_most_files_differ_only_in_them(other_inodes: int, of: int, read: int) -> None:
    before = manifest(*({"path": f"f{i:04}"} for i in range(of)))
    now = listing(*({"path": f"f{i:04}", "inode": 8 if i < other_inodes else 7} for i in range(of)))
    found = diff(now, before, "fp", now_ns=NOW)
    assert (len(found.candidates), len(found.retouched), found.unchanged) == (read, 0, of - read)


def test_a_changed_file_is_read_even_if_inodes_are_ignored() -> None:
    before = manifest(*({"path": f"f{i:02}"} for i in range(50)))
    changes = {"f03": {"ctime_ns": OLD + 1}, "f04": {"mtime_ns": OLD + 1}, "f05": {"size_bytes": 6}}
    now = listing(*({"path": f"f{i:02}", "inode": 8} | changes.get(f"f{i:02}", {}) for i in range(50)))
    assert diff(now, before, "fp", now_ns=NOW).candidates["path"].to_pylist() == sorted(changes)


def test_empty_tables_differ_in_nothing() -> None:
    found = diff(LISTING_SCHEMA.empty_table(), MANIFEST_SCHEMA.empty_table(), "fp", now_ns=NOW)
    assert (len(found.new), len(found.deleted), found.unchanged) == (0, 0, 0)


@pytest.mark.parametrize(
    ("before", "content", "state"),
    [
        ({"hash": None, "must_embed": True, "metadata_differs": True}, "h", DocumentState.NEW),
        ({"hash": "h", "must_embed": False, "metadata_differs": True}, "h", DocumentState.TOUCHED),
        ({"hash": "h", "must_embed": False, "metadata_differs": False}, "h", DocumentState.UNCHANGED),
        ({"hash": "h", "must_embed": False, "metadata_differs": False}, "i", DocumentState.CHANGED),
        ({"hash": "h", "must_embed": True, "metadata_differs": False}, "h", DocumentState.CHANGED),
    ],
)
def test_the_content_hash_decides_the_state(before: dict[str, Any], content: str, state: DocumentState) -> None:
    assert classify(before, content) is state

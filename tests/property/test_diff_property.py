"""``diff``, compared with a plain loop over dicts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from driftline.tasks.scanning.diff import LISTING_SCHEMA, MANIFEST_SCHEMA, diff
from tests.support.effort import examples

PATHS = st.sampled_from(["a", "b", "a/b", "ä", "a\nb", "z z", "%", "A"])
META = {
    "size_bytes": st.integers(0, 1),
    "mtime_ns": st.integers(0, 2),
    "etag": st.sampled_from(["", "x", "git:x", "git:y"]),
    "ctime_ns": st.integers(0, 2),
    "inode": st.integers(0, 2),
}
LISTED = st.fixed_dictionaries(META)
KNOWN = st.fixed_dictionaries(
    META
    | {
        "hash": st.just("h"),
        "fingerprint": st.sampled_from(["fp", "other", ""]),
        "lines": st.just(1),
        "reason": st.sampled_from([None, "binary"]),
        "racy": st.booleans(),
    }
)


def fate(now: dict[str, Any] | None, old: dict[str, Any] | None, full: bool) -> str:
    if old is None:
        return "new"
    if now is None:
        return "deleted"
    stale = old["fingerprint"] != "fp" and not (old["reason"] and not old["fingerprint"])
    by_etag = now["etag"] and old["etag"]
    same_mtime = now["mtime_ns"] == old["mtime_ns"]
    as_before = same_mtime and all(old[name] in (0, now[name]) for name in ("ctime_ns", "inode"))
    same = now["etag"] == old["etag"] and (as_before or not same_mtime)
    if not by_etag:
        is_dirty = old["etag"].startswith("git:") and not now["etag"]
        same = as_before and not is_dirty and now["mtime_ns"] + now["ctime_ns"] > 0
    if full or stale or old["racy"] or not same or now["size_bytes"] != old["size_bytes"]:
        return "candidates"
    if not as_before:
        return "retouched"
    return "skipped" if old["reason"] else "unchanged"


@settings(max_examples=examples(150), deadline=None)
@given(st.dictionaries(PATHS, LISTED), st.dictionaries(PATHS, KNOWN), st.booleans(), st.randoms(use_true_random=False))
def test_each_path_is_classified_by_the_rules(
    listed: dict[str, dict[str, Any]], known: dict[str, dict[str, Any]], full: bool, random: Any
) -> None:
    def table(rows: dict[str, dict[str, Any]], schema: pa.Schema) -> pa.Table:
        paths = sorted(rows)
        random.shuffle(paths)
        return pa.Table.from_pylist([{"path": path} | rows[path] for path in paths], schema=schema)

    found = diff(table(listed, LISTING_SCHEMA), table(known, MANIFEST_SCHEMA), "fp", now_ns=10**18, full=full)
    expected: dict[str, set[str]] = {}
    for path in listed.keys() | known.keys():
        expected.setdefault(fate(listed.get(path), known.get(path), full), set()).add(path)
    for name in ("new", "candidates", "retouched", "deleted"):
        assert set(getattr(found, name)["path"].to_pylist()) == expected.get(name, set()), name
    retouched_skips = {path for path in expected.get("retouched", set()) if known[path]["reason"]}
    assert set(found.skipped["path"].to_pylist()) == expected.get("skipped", set()) | retouched_skips
    assert found.unchanged == len(expected.get("unchanged", set()))
    for row in found.candidates.to_pylist() + found.retouched.to_pylist():
        assert {name: row[name] for name in META} == listed[row["path"]]
        assert row["reason"] == known[row["path"]]["reason"]

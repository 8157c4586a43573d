"""Deciding which files in a listing are orphans, without a store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from driftline.storage.garbage import Orphan, Reason, References, find_orphans
from driftline.storage.layout import ObjectInfo, ObjectKind, parse_name

NOW = datetime(2026, 11, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
ULID = "01M806HS3FZSJ5SNGHDT3TAWWE"
LATER_ULID = "01M806HZMPHY4H53A2MFJEWR8Z"
UUID = "02bc0381-0d56-4d17-8240-721fcfbc22cb"
SOURCE = "org:acme/project:alpha/source:web"
TABLE = "org:acme/_tables/line_embeddings-8448bc15515e5abc8ecd.lance"
DATA = "data/00010010110010011111101130fa054b8d9be3e72e3fd7077e.lance"
VERSION = "_versions/18446744073709551614.manifest"


def info(path: str, age: timedelta = 2 * HOUR, size: int = 7) -> ObjectInfo:
    return ObjectInfo(path, size, NOW - age, "v")


def orphans(
    *listing: ObjectInfo, references: References | None = None, max_age: timedelta = HOUR
) -> tuple[Orphan, ...]:
    named = [(info, parse_name(info.path)) for info in listing]
    return find_orphans(named, references or References(), now=NOW, max_age=max_age).orphans


def paths(*listing: ObjectInfo, references: References | None = None, max_age: timedelta = HOUR) -> list[str]:
    return [orphan.path for orphan in orphans(*listing, references=references, max_age=max_age)]


@pytest.mark.parametrize(
    ("path", "kind", "location"),
    [
        ("_workspace.json", ObjectKind.PERMANENT, ""),
        (".gitignore", ObjectKind.PERMANENT, ""),
        (".lock", ObjectKind.PERMANENT, ""),
        (f"{SOURCE}/_source.json", ObjectKind.PERMANENT, SOURCE),
        ("org:acme/_leases/source:org:acme~2Fproject:a~2Fsource:web.json", ObjectKind.PERMANENT, "org:acme/_leases"),
        (f"org:acme/_runs/{ULID}.json", ObjectKind.RUN, "org:acme/_runs"),
        (f"{SOURCE}/_index.parquet", ObjectKind.BASE, SOURCE),
        ("org:a~20b/_index.parquet", ObjectKind.BASE, "org:a~20b"),
        (f"{SOURCE}/_index_delta_{ULID}.parquet", ObjectKind.DELTA, SOURCE),
        (f"{SOURCE}/_staged_{ULID}_000001.parquet", ObjectKind.STAGED, SOURCE),
        (f"org:acme/user:al/{'a' * 32}-{'b' * 32}-{ULID}.json", ObjectKind.BLOB, "org:acme/user:al"),
        (f"{SOURCE}/.tmp-{'0' * 32}", ObjectKind.TEMPORARY, SOURCE),
        (f".tmp-probe-{'0' * 32}", ObjectKind.TEMPORARY, ""),
        (f"org:acme/_runs/.tmp-{'0' * 32}", ObjectKind.TEMPORARY, "org:acme/_runs"),
        (f"{TABLE}/{DATA}", ObjectKind.TABLE, TABLE),
        (f"{TABLE}/{DATA}#1", ObjectKind.TABLE, TABLE),
        (f"{TABLE}/data/.tmpBjU7k7", ObjectKind.TABLE, TABLE),
        (f"{TABLE}/_deletions/0-5-7805496641365423489.arrow", ObjectKind.TABLE, TABLE),
        (f"{TABLE}/_transactions/4-{UUID}.txn", ObjectKind.TABLE, TABLE),
        (f"{TABLE}/_indices/{UUID}/part_0_docs.lance", ObjectKind.TABLE, TABLE),
        (f"{TABLE}/{VERSION}", ObjectKind.VERSION, TABLE),
        (f"{TABLE}/_versions/latest_version_hint.json", ObjectKind.TABLE_HINT, TABLE),
    ],
)
def test_names_of_the_layout_are_recognized_at_their_location(path: str, kind: ObjectKind, location: str) -> None:
    name = parse_name(path)
    assert (name.kind, name.directory) == (kind, location)


@pytest.mark.parametrize(
    "path",
    [
        "notes.txt",
        f"_index_delta_{ULID}.parquet",  # no entity is at the root
        f"backup/{SOURCE}/_index_delta_{ULID}.parquet",
        f"{SOURCE}/_index_delta_{ULID}.parquet.bak",
        f"{SOURCE}/_index_delta_{ULID.lower()}.parquet",
        f"{SOURCE}/_staged_{ULID}_1.parquet",
        f"{SOURCE}/.tmp-mine",
        f"{SOURCE}/sub/_index.parquet",
        f"{SOURCE}/_runs/{ULID}.json",
        "org:acme/_runs/last.json",
        "org:acme/_tables/other.lance/data/00.lance",
        f"{TABLE}/data/notes.txt",
        f"{TABLE}/tree/branch/{DATA}",
        f"{TABLE}/_versions/d18446744073709551614.manifest",
        f"{SOURCE}/_tables/line_embeddings-84.lance/{DATA}",
        f"{TABLE}/_indices/{UUID}/deep/er",
        "org:acme\n/_index.parquet",
    ],
)
def test_foreign_files_are_never_orphans(path: str) -> None:
    everything = References(frozenset([path]), frozenset([path]), {TABLE: frozenset()}, {TABLE: NOW - 9 * HOUR})
    verdict = find_orphans([(info(path, timedelta(days=999)), parse_name(path))], everything, now=NOW, max_age=HOUR)
    assert verdict.orphans == ()
    assert verdict.foreign == (path,)


@pytest.mark.parametrize(
    "path",
    [
        "_workspace.json",
        ".gitignore",
        ".lock",
        f"{SOURCE}/_source.json",
        f"{SOURCE}/_index.parquet",
        "org:acme/_leases/source:org:acme.json",
        f"org:acme/user:al/{'a' * 32}-{'b' * 32}-{ULID}.json",
    ],
)
def test_configuration_leases_sources_bases_and_blobs_stay_even_without_references(path: str) -> None:
    everything = References(frozenset([path]), frozenset([path]), {TABLE: frozenset()}, {TABLE: NOW - 9 * HOUR})
    assert paths(info(path, timedelta(days=999)), references=everything, max_age=timedelta(0)) == []


def test_a_delta_is_deleted_only_after_its_base_names_it() -> None:
    folded, live = f"{SOURCE}/_index_delta_{ULID}.parquet", f"{SOURCE}/_index_delta_{LATER_ULID}.parquet"
    found = orphans(info(folded), info(live), references=References(folded=frozenset([folded])))
    assert [(orphan.path, orphan.reason) for orphan in found] == [(folded, Reason.FOLDED)]
    assert (found[0].size_bytes, found[0].age_seconds) == (7, 7200.0)


def test_a_staged_delta_is_deleted_only_if_nobody_can_commit_it() -> None:
    dead, waiting = f"{SOURCE}/_staged_{ULID}_000001.parquet", f"{SOURCE}/_staged_{ULID}_000002.parquet"
    assert paths(info(dead), info(waiting), references=References(dead=frozenset([dead]))) == [dead]


def test_a_file_of_a_table_is_deleted_only_if_no_version_names_it() -> None:
    other = f"{TABLE}/data/11.lance"
    references = References(tracked={TABLE: frozenset([DATA])})
    assert paths(info(f"{TABLE}/{DATA}"), info(other), references=references) == [other]


def test_versions_and_the_hint_of_a_live_table_are_kept() -> None:
    listing = [info(f"{TABLE}/{VERSION}"), info(f"{TABLE}/_versions/latest_version_hint.json")]
    assert paths(*listing, references=References(tracked={TABLE: frozenset()})) == []


def test_nothing_is_deleted_from_a_table_that_was_not_judged() -> None:
    assert paths(info(f"{TABLE}/{DATA}"), info(f"{TABLE}/data/.tmpBjU7k7"), max_age=timedelta(0)) == []


def test_a_superseded_table_is_deleted_whole_hint_and_versions_first() -> None:
    listing = [info(f"{TABLE}/{rest}") for rest in (DATA, VERSION, "_versions/latest_version_hint.json")]
    references = References(tracked={TABLE: frozenset([DATA, VERSION])}, superseded={TABLE: NOW - 2 * HOUR})
    assert paths(*listing, references=references) == [
        f"{TABLE}/_versions/latest_version_hint.json",
        f"{TABLE}/{VERSION}",
        f"{TABLE}/{DATA}",
    ]


@pytest.mark.parametrize(("newest", "superseded"), [(HOUR / 2, 9 * HOUR), (9 * HOUR, HOUR / 2)])
def test_a_superseded_table_stays_while_its_last_file_or_its_successor_is_young(
    newest: timedelta, superseded: timedelta
) -> None:
    listing = [info(f"{TABLE}/{VERSION}", 9 * HOUR), info(f"{TABLE}/{DATA}", newest)]
    references = References(tracked={TABLE: frozenset([DATA, VERSION])}, superseded={TABLE: NOW - superseded})
    assert paths(*listing, references=references) == []


def test_a_foreign_file_in_a_superseded_table_stays() -> None:
    listing = [info(f"{TABLE}/{VERSION}"), info(f"{TABLE}/notes.txt")]
    assert paths(*listing, references=References(superseded={TABLE: NOW - 9 * HOUR})) == [f"{TABLE}/{VERSION}"]


@pytest.mark.parametrize(("age", "gone"), [(HOUR - timedelta(seconds=1), False), (HOUR, True)])
def test_an_orphan_is_kept_until_its_age_is_reached(age: timedelta, gone: bool) -> None:
    assert bool(paths(info(f"{SOURCE}/.tmp-{'0' * 32}", age))) is gone


def test_an_object_with_a_future_time_counts_as_new() -> None:
    assert paths(info(f"{SOURCE}/.tmp-{'0' * 32}", -HOUR), max_age=timedelta(0)) == []


def test_expired_run_records_are_orphans_except_the_newest_of_a_tenant() -> None:
    old, newest = f"org:acme/_runs/{ULID}.json", f"org:acme/_runs/{LATER_ULID}.json"
    other = f"org:other/_runs/{ULID}.json"
    listing = [info(old, timedelta(days=91)), info(newest, timedelta(days=91)), info(other, timedelta(days=91))]
    assert paths(*listing) == [old]
    assert paths(info(old, timedelta(days=89)), info(newest)) == []

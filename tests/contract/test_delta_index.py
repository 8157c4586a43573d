"""The delta index over every kind of store: reading, folding, races, crashes and damage."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from driftline.storage.deltas import delta_index as delta
from driftline.storage.deltas.delta_index import (
    ADD,
    READ_ATTEMPTS,
    REMOVE,
    REMOVE_RETENTION,
    ROW_GROUP_ROWS,
    DeltaIndex,
)
from driftline.storage.errors import (
    CorruptFile,
    DriftlineError,
    ObjectNotFound,
    PreconditionFailed,
    StorageError,
    UsageError,
    WorkspaceTooNew,
)
from driftline.storage.layout import BASE, new_ulid
from driftline.storage.objects import bucket as buckets
from driftline.storage.objects.bucket import Bucket
from driftline.storage.objects.local_disk import LocalDisk
from driftline.storage.objects.store import ObjectStore
from driftline.storage.objects.store_requests import by_kind, request_counter

FIELDS = (pa.field("key", pa.string()), pa.field("value", pa.int64()))
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
LATER = NOON + REMOVE_RETENTION + timedelta(days=1)


@pytest.fixture
def index(store_uri: str) -> DeltaIndex:
    return DeltaIndex(ObjectStore.open(store_uri), "org:a/source:b", "test", FIELDS)


@pytest.fixture
def disk(tmp_path: Path) -> DeltaIndex:
    return DeltaIndex(ObjectStore.open(str(tmp_path)), "org:a/source:b", "test", FIELDS)


def change(
    index: DeltaIndex, rev: int, added: Mapping[str, int] | None = None, *removed: str, ulid: str | None = None
) -> str:
    """Publish one delta and return its name."""
    values = pa.table({"key": list(added or ()), "value": list((added or {}).values())}, schema=index.schema)
    keys = pa.table({"key": pa.array(removed, pa.string())})
    rows = [index.changes(ADD, rev, values, now=NOON), index.changes(REMOVE, rev, keys, now=NOON)]
    return index.append(ulid or new_ulid(), pa.concat_tables(rows))


def rows(table: pa.Table) -> dict[str, int]:
    return dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


def row_count(index: DeltaIndex, low: str = "", high: str | None = None) -> int:
    return index.reduce(lambda pieces: sum(map(len, pieces)), low, high, columns=())


def path(index: DeltaIndex, name: str) -> str:
    return f"{index.directory}/{name}"


# -- reading ---------------------------------------------------------------------------------


def test_the_highest_revision_wins_in_any_file(index: DeltaIndex) -> None:
    change(index, 1, {"a": 1, "b": 1, "c": 1})
    index.compact(now=NOON)
    change(index, 3, {"b": 3}, "c")
    change(index, 2, {"b": 2, "c": 2, "d": 2})
    assert rows(index.read()) == {"a": 1, "b": 3, "d": 2}
    assert rows(index.get(["b", "c", "x"])) == {"b": 3}
    assert row_count(index, "b", "d") == 1
    assert rows(index.read(as_of=2)) == {"a": 1, "b": 2, "c": 2, "d": 2}
    index.compact(now=NOON)
    assert rows(index.read()) == {"a": 1, "b": 3, "d": 2}


def test_an_index_without_any_file_is_empty(index: DeltaIndex) -> None:
    assert index.read().equals(index.schema.empty_table())
    assert index.compact().deltas == 0


def test_a_state_before_the_last_compaction_is_refused(index: DeltaIndex) -> None:
    change(index, 1, {"a": 1})
    change(index, 2, {"a": 2})
    index.compact(now=NOON)
    change(index, 3, {"a": 3})
    assert rows(index.read(as_of=2)) == {"a": 2}
    with pytest.raises(UsageError, match="Revision 1 precedes the last compaction, which folded up to 2"):
        index.read(as_of=1)


def test_a_dropped_removal_still_limits_the_oldest_readable_revision(index: DeltaIndex) -> None:
    change(index, 1, {"a": 1, "b": 1})
    change(index, 2, None, "a")
    index.compact(now=LATER)
    change(index, 3, {"b": 3})
    index.compact(now=LATER)
    with pytest.raises(UsageError, match="folded up to 3"):
        index.read(as_of=1)


def test_the_order_and_the_repetition_of_deltas_do_not_matter(disk: DeltaIndex) -> None:
    writes: list[Callable[[], object]] = [
        lambda: change(disk, 1, {"a": 1, "b": 1}),
        lambda: change(disk, 2, {"c": 2}, "a"),
        lambda: change(disk, 3, {"a": 3, "b": 3}),
        lambda: change(disk, 4, None, "b"),
        lambda: change(disk, 3, {"a": 3, "b": 3}),
    ]
    for seed in range(20):
        disk.objects.delete([info.path for info in disk.objects.list()])
        shuffled = random.Random(seed)
        for write in shuffled.sample(writes, len(writes)):
            write()
            if shuffled.random() < 0.4:
                disk.compact(now=NOON)
        assert rows(disk.read()) == {"a": 3, "c": 2}


def test_a_delta_that_is_published_twice_is_one_delta(index: DeltaIndex) -> None:
    ulid = new_ulid()
    assert change(index, 1, {"a": 1}, ulid=ulid) == change(index, 1, {"a": 1}, ulid=ulid)
    assert len(index.log().deltas) == 1


# -- compaction ------------------------------------------------------------------------------


def test_the_base_names_what_it_has_folded_and_a_reader_skips_it(index: DeltaIndex, monkeypatch: Any) -> None:
    name = change(index, 1, {"a": 1})
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "delete", lambda store, paths: None)
        index.compact(now=NOON)
    index.objects.delete([path(index, name)])
    index.objects.create(path(index, name), b"would be an error if it were read")
    assert index.log().deltas == (name,)
    assert rows(index.read()) == {"a": 1}


def test_a_late_delta_cannot_resurrect_a_key(index: DeltaIndex) -> None:
    change(index, 1, {"a": 1})
    change(index, 3, None, "a")
    index.compact(now=NOON + REMOVE_RETENTION - timedelta(seconds=1))
    change(index, 2, {"a": 2})
    assert rows(index.read()) == {}
    index.compact(now=LATER)
    assert rows(index.read()) == {}
    assert pq.read_table(pa.BufferReader(index.objects.get(path(index, BASE)))).num_rows == 0, "removals go in the end"


def test_deltas_that_a_compaction_could_not_delete_are_not_folded_again(disk: DeltaIndex, monkeypatch: Any) -> None:
    removal, addition = sorted([new_ulid(), new_ulid()])
    change(disk, 1, {"a": 1}, ulid=addition)
    change(disk, 2, None, "a", ulid=removal)
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "delete", lambda store, paths: None)
        disk.compact(now=LATER)  # the removal was folded and dropped, but both deltas still exist
    assert rows(disk.read()) == {}
    monkeypatch.setattr(delta, "ROUND_BYTES", 1)
    disk.compact(now=LATER)
    assert rows(disk.read()) == {}


def test_a_removal_survives_later_folds(disk: DeltaIndex, monkeypatch: Any) -> None:
    removal, addition = sorted([new_ulid(), new_ulid()])
    change(disk, 1, {"a": 1}, ulid=addition)
    change(disk, 2, None, "a", ulid=removal)
    monkeypatch.setattr(delta, "ROUND_BYTES", 1)
    disk.compact(now=LATER)
    assert rows(disk.read()) == {}


@pytest.mark.parametrize("has_base", [True, False])
def test_only_one_of_two_compactors_publishes_and_the_other_deletes_nothing(
    index: DeltaIndex, monkeypatch: Any, has_base: bool
) -> None:
    if has_base:
        change(index, 1, {"a": 1})
        index.compact(now=NOON)
    change(index, 2, {"b": 2})
    original = ObjectStore.head

    def overtaken(store: ObjectStore, name: str) -> Any:
        found = original(store, name)
        monkeypatch.setattr(ObjectStore, "head", original)
        index.compact(now=NOON)
        kept.append(change(index, 3, {"c": 3}))
        return found

    kept: list[str] = []
    monkeypatch.setattr(ObjectStore, "head", overtaken)
    with pytest.raises(PreconditionFailed):
        index.compact(now=NOON)
    assert index.log().deltas == tuple(kept)
    assert rows(index.read()) == ({"a": 1} if has_base else {}) | {"b": 2, "c": 3}


class Died(BaseException):
    """The process died."""


def test_a_crash_at_any_step_leaves_a_readable_index_and_the_next_compaction_finishes(
    index: DeltaIndex, monkeypatch: Any
) -> None:
    monkeypatch.setattr(delta, "ROUND_BYTES", 4_000)  # several rounds
    backend = type(index.objects._backend)
    expected: dict[str, int] = {}
    revs = count(1)
    for at in count():
        for number in range(4):
            rev = next(revs)
            added, removed = {f"k{number}": rev, f"r{rev}": rev}, f"r{rev - 3}"
            change(index, rev, added, removed)
            expected |= added
            expected.pop(removed, None)
        steps = count()
        with monkeypatch.context() as patch:
            for name in ("create", "replace", "delete"):
                patch.setattr(backend, name, _dying_after(getattr(backend, name), steps, at))
            try:
                index.compact(now=NOON)
            except Died:
                assert rows(index.read()) == expected, f"after step {at}"
            else:
                assert next(steps) <= at, "the crash was not reached"
                break
        if at % 2:
            index.compact(now=NOON)
            assert rows(index.read()) == expected, f"compacted after step {at}"
            assert index.log().deltas == ()
    assert at >= 4, "two rounds of two steps at least"


def _dying_after(method: Any, steps: Iterator[int], at: int) -> Any:
    def wrapped(*arguments: Any) -> Any:
        done = method(*arguments)
        if next(steps) == at:
            raise Died
        return done

    return wrapped


# -- vanishing and damaged files -------------------------------------------------------------


def test_a_read_starts_over_when_a_file_vanishes(index: DeltaIndex, monkeypatch: Any) -> None:
    change(index, 1, {"a": 1})
    change(index, 2, {"b": 2})
    original = ObjectStore.open_input

    def compacted_first(store: ObjectStore, name: str, **options: Any) -> Any:
        if name.endswith(BASE):
            monkeypatch.setattr(ObjectStore, "open_input", original)
            try:
                return original(store, name, **options)
            finally:
                index.compact(now=NOON)
        return original(store, name, **options)

    monkeypatch.setattr(ObjectStore, "open_input", compacted_first)

    assert rows(index.read()) == {"a": 1, "b": 2}
    assert index.log().deltas == ()


@pytest.mark.parametrize("read", [DeltaIndex.read, DeltaIndex.max_rev])
def test_the_first_compaction_during_a_listing_hides_nothing(
    disk: DeltaIndex, read: Callable[[DeltaIndex], Any], monkeypatch: Any
) -> None:
    """The listing contains the deltas, which are then deleted, but not the base."""
    change(disk, 1, {"a": 1})
    change(disk, 2, {"b": 2})
    expected = read(disk)
    entries = LocalDisk._entries

    def compacted_afterwards(store: LocalDisk, directory: str) -> Any:
        found = [*entries(store, directory)]
        if directory == disk.directory:
            monkeypatch.setattr(LocalDisk, "_entries", entries)
            disk.compact(now=NOON)
        return found

    monkeypatch.setattr(LocalDisk, "_entries", compacted_afterwards)
    assert read(disk) == expected
    assert disk.log().deltas == ()


def test_a_delta_is_fetched_once_from_a_bucket_and_the_base_each_time(s3_bucket: str) -> None:
    index = DeltaIndex(ObjectStore.open(s3_bucket), "org:a/source:b", "test", FIELDS)
    change(index, 1, {"a": 1})
    index.compact(now=NOON)
    change(index, 2, {"a": 2})
    change(index, 3, {"b": 3})
    requested = []
    for _ in range(3):
        with request_counter() as requests:
            index.check()
            assert rows(index.read()) == {"a": 2, "b": 3}
        requested.append(by_kind(requests.counts)["get"])
    assert requested == [4, 2, 2]
    with request_counter() as requests:  # for example by another process
        assert rows(DeltaIndex(ObjectStore.open(s3_bucket), "org:a/source:b", "test", FIELDS).read())
    assert by_kind(requests.counts)["get"] == 3


def test_an_index_whose_files_keep_vanishing_is_an_error(disk: DeltaIndex, monkeypatch: Any) -> None:
    change(disk, 1, {"a": 1})

    def vanish(store: ObjectStore, name: str, **_: Any) -> Any:
        raise ObjectNotFound("There is no such object", name)

    monkeypatch.setattr(ObjectStore, "open_input", vanish)
    with pytest.raises(StorageError, match="disappeared on 5 attempts"):
        disk.read()


def test_a_read_outlasts_any_number_of_compactions(disk: DeltaIndex, monkeypatch: Any) -> None:
    change(disk, 1, {"a": 1})
    gone = iter([f"_index_delta_{number}" for number in range(3 * READ_ATTEMPTS)])
    opened = ObjectStore.open_input

    def vanish(store: ObjectStore, name: str, **options: Any) -> Any:
        if (other := next(gone, None)) is not None:
            raise ObjectNotFound("There is no such object", other)
        return opened(store, name, **options)

    monkeypatch.setattr(ObjectStore, "open_input", vanish)
    assert rows(disk.read()) == {"a": 1}


def test_a_read_of_a_large_base_starts_over_when_it_is_replaced(s3_bucket: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(buckets, "WHOLE_OBJECT_BYTES", 100)
    index = DeltaIndex(ObjectStore.open(s3_bucket), "org:a/source:b", "test", FIELDS)
    old, new = ({f"k{i:06}": value + i for i in range(50_000)} for value in (0, 1))
    change(index, 1, old)
    index.compact(now=NOON)
    change(index, 2, new)
    original, reads = Bucket.read_range, count()

    def overtaken(bucket: Bucket, *arguments: Any) -> bytes:
        if next(reads) == 1:
            monkeypatch.setattr(Bucket, "read_range", original)
            index.compact(now=NOON)
        return original(bucket, *arguments)

    monkeypatch.setattr(Bucket, "read_range", overtaken)
    assert rows(index.read()) == new
    assert next(reads) > 1


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "truncated at the end": lambda data: data[:-1],
    "truncated in the middle": lambda data: data[: len(data) // 2],
    "text": lambda data: b"this is no Parquet file\n" * 20,
    "flipped bit in the data": lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
    "Parquet of somebody else": lambda data: _parquet(None),
    "Parquet of another kind": lambda data: _parquet(b'{"format_version": 1, "kind": "memory"}'),
    "Parquet with an odd footer": lambda data: _parquet(b"[]"),
    "Parquet without the columns": lambda data: _parquet(b'{"format_version": 1, "kind": "test"}'),
}


def _parquet(footer: bytes | None) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"x": [1]}).replace_schema_metadata({b"driftline": footer} if footer else None)
    with pq.ParquetWriter(sink, table.schema) as writer:
        writer.write_table(table)
        if footer:
            writer.add_key_value_metadata({b"driftline": footer})
    return sink.getvalue()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("victim", ["base", "delta"])
def test_a_damaged_or_foreign_file_is_reported_and_nothing_is_deleted(
    disk: DeltaIndex, victim: str, damage: str
) -> None:
    change(disk, 1, {"a": 1, "b": 2})
    disk.compact(now=NOON)
    names = {"base": BASE, "delta": change(disk, 2, {"a": 3})}
    target = path(disk, names[victim])
    data = disk.objects.get(target)
    disk.objects.delete([target])
    disk.objects.create(target, DAMAGES[damage](data))
    before = sorted((info.path, info.version) for info in disk.objects.list())
    actions: list[Callable[[], object]] = [disk.read, disk.compact, lambda: disk.get(["a"]), partial(row_count, disk)]
    for action in actions:
        with pytest.raises(CorruptFile, match=names[victim]):
            action()
    assert sorted((info.path, info.version) for info in disk.objects.list()) == before


def test_a_file_of_a_newer_format_asks_for_a_newer_driftline(disk: DeltaIndex) -> None:
    disk.objects.create(path(disk, BASE), _parquet(b'{"format_version": 2, "kind": "test"}'))
    with pytest.raises(WorkspaceTooNew, match=BASE):
        disk.read()


def test_a_store_failure_is_not_reported_as_damage(disk: DeltaIndex, monkeypatch: Any) -> None:
    change(disk, 1, {"a": 1})
    monkeypatch.setattr(pq, "ParquetFile", lambda *_, **__: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    with pytest.raises(DriftlineError) as raised:
        disk.read()
    assert type(raised.value) is StorageError


# -- cost ------------------------------------------------------------------------------------

MANY = 1_000_000


def test_a_prefix_reads_only_the_row_groups_that_hold_it(disk: DeltaIndex, monkeypatch: Any) -> None:
    keys = [f"folder{i // 1000:04}/file{i:07}" for i in range(MANY)]
    values = [random.Random(7).getrandbits(63)] * MANY
    table = pa.table({"key": keys, "value": values}, schema=disk.schema)
    disk.append(new_ulid(), disk.changes(ADD, 1, table, now=NOON))
    disk.compact(now=NOON)
    size = disk.log().base_bytes
    groups = MANY // ROW_GROUP_ROWS + 1
    counted = _count_reads(monkeypatch)
    assert len(disk.read()) == MANY
    assert counted.pop() >= 0.9 * size
    reads: list[Callable[[], object]] = [
        lambda: disk.read(["folder0500/"]),
        lambda: disk.reduce(list, "folder0500/", "folder0501/", columns=disk.schema.names),
        lambda: disk.get([keys[500_000]]),
        lambda: disk.read(["nowhere/"]),
    ]
    for read in reads:
        counted.clear()
        read()
        assert sum(counted) <= 1.5 * size / groups + 100_000, "one row group, and the footer"
    counted.clear()
    row_count(disk, "folder0500/", "folder0501/")
    assert sum(counted) <= size / groups + 100_000, "no values"


def _count_reads(monkeypatch: Any) -> list[int]:
    """Record the bytes read from now on, by file."""
    counted: list[int] = []
    original = LocalDisk.open_input

    class Counting(io.RawIOBase):
        def __init__(self, file: pa.NativeFile) -> None:
            self.file = file
            counted.append(0)

        def readable(self) -> bool:
            return True

        def seekable(self) -> bool:
            return True

        def tell(self) -> int:
            return int(self.file.tell())

        def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
            return int(self.file.seek(offset, whence))

        def read(self, size: int | None = -1) -> bytes:
            data = bytes(self.file.read(size))
            counted[-1] += len(data)
            return data

    monkeypatch.setattr(LocalDisk, "open_input", lambda disk, name: pa.PythonFile(Counting(original(disk, name)), "r"))
    return counted


def test_few_rows_of_long_values_are_compressed(disk: DeltaIndex) -> None:
    values = pa.table({"key": [f"{at}{'a long key ' * 400}" for at in range(10)], "value": [0] * 10})
    assert len(disk.encode(disk.changes(ADD, 1, values, now=NOON))) < values.nbytes / 2


def test_a_base_of_many_rows_is_written_in_full_row_groups(disk: DeltaIndex) -> None:
    for number in range(3):
        table = pa.table({"key": [f"{i:06}-{number}" for i in range(60_000)], "value": range(60_000)}, disk.schema)
        disk.append(new_ulid(), disk.changes(ADD, number, table, now=NOON))
        disk.compact(now=NOON)
    metadata = pq.ParquetFile(pa.BufferReader(disk.objects.get(path(disk, BASE)))).metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [
        ROW_GROUP_ROWS,
        180_000 - ROW_GROUP_ROWS,
    ]

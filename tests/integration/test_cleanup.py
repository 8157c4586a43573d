"""Cleanup of real workspaces: on disk, in memory and in a bucket, alongside writers, and after crashes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from driftline.flows.commands import main as cli
from driftline.flows.config.index_request import IndexRequest
from driftline.flows.runs.cleanup import CleanupReport, CleanupRequest, clean_workspace
from driftline.flows.runs.index import index_sources
from driftline.storage.deltas.manifest import BatchId
from driftline.storage.errors import CleanupAborted, LeaseLost, StorageError
from driftline.storage.garbage import Reason
from driftline.storage.layout import CLEANUP, CONFIG, lease_path, new_ulid
from driftline.storage.leases.lease import Lease, acquire
from driftline.storage.leases.liveness import ProcessIdentity
from driftline.storage.lines.commit_marker import SourceCommit
from driftline.storage.objects.local_disk import LocalDisk
from driftline.storage.workspace.records import RunHistory
from tests.faults.faults import Crash, Faults, Mode, injected
from tests.servers.delaying import delaying
from tests.servers.s3_server import S3Server
from tests.support.leftovers import ENTITY, SUPERSEDED, Corner, make_corner, make_old
from tests.support.oracle import assert_nothing_staged, save_tiny_model
from tests.support.processes import ForkedReader
from tests.support.waiting import PATIENCE_SECONDS

RETENTION_DAYS = 90


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Corner:
    root = tmp_path_factory.mktemp("original")
    return make_corner(root, str(root / "workspace"), model)


@pytest.fixture
def corner(store_uri: str, original: Corner) -> Corner:
    """A copy of a workspace in each kind of store; its tree is shared."""
    return original.copied(store_uri)


@pytest.fixture
def local(tmp_path: Path, original: Corner) -> Corner:
    """A copy of a workspace on local disk; its tree is shared."""
    return original.copied(str(tmp_path / "workspace"))


def clean(uri: str, max_age_seconds: float = 0.0, dry_run: bool = False) -> CleanupReport:
    return clean_workspace(CleanupRequest(uri, max_age_seconds, dry_run))


def found(report: CleanupReport) -> dict[str, Reason]:
    return {orphan.path: orphan.reason for orphan in report.orphans}


def test_a_workspace_without_leftovers_has_no_orphans(corner: Corner) -> None:
    report = clean(corner.uri)
    assert (report.orphans, report.foreign, report.skipped) == ((), (), [])
    assert report.scanned > 20
    corner.assert_alive()


def test_a_dry_run_reports_each_orphan_and_writes_nothing(corner: Corner) -> None:
    planted = corner.plant()
    before = sorted((info.path, info.version) for info in corner.workspace.objects.list(temporary=True))
    report = clean(corner.uri, dry_run=True)
    assert found(report) == planted
    assert report.to_dict()["deleted_paths"] == []
    after = sorted((info.path, info.version) for info in corner.workspace.objects.list(temporary=True))
    assert after == before


def test_orphans_are_deleted_and_live_files_stay(corner: Corner) -> None:
    planted = corner.plant()
    corner.workspace.objects.create("notes.txt", b"mine")
    corner.workspace.objects.create(f"{ENTITY.directory}/copy of _index.parquet", b"mine")
    before = corner.paths()
    report = clean(corner.uri)
    assert found(report) == planted
    assert {orphan.path for orphan in report.deleted} == set(planted)
    assert report.foreign == ("notes.txt", f"{ENTITY.directory}/copy of _index.parquet")
    assert before - corner.paths() == set(planted)
    assert clean(corner.uri).orphans == ()
    corner.assert_alive()


def test_a_staged_delta_whose_batch_was_committed_is_published(corner: Corner) -> None:
    committed = corner.commit_and_crash()
    dead = corner.stage()
    assert clean(corner.uri, dry_run=True).published == 0
    report = clean(corner.uri)
    assert (found(report), report.published) == ({dead: Reason.DEAD_RUN}, 1)
    assert committed not in corner.paths()
    assert_nothing_staged(corner.workspace)
    assert corner.workspace.manifest(ENTITY).read(["extra.txt"])["lines"].to_pylist() == [3]
    assert corner.table.count("path = 'extra.txt'") == 3


def test_age_is_measured_by_the_clock_of_the_store(local: Corner) -> None:
    planted = local.plant()
    assert clean(local.uri, 3_600).orphans == ()
    old = next(path for path, reason in planted.items() if reason is Reason.UNCOMMITTED)
    make_old(f"{local.uri}/{old}", 3_700)
    assert found(clean(local.uri, 3_600)) == {old: Reason.UNCOMMITTED}
    local.assert_alive()


def test_run_records_are_deleted_after_their_retention(local: Corner) -> None:
    records = sorted(path for path in local.paths() if "/_runs/" in path)
    for path in records:
        make_old(f"{local.uri}/{path}", (RETENTION_DAYS + 1) * 86_400)
    assert found(clean(local.uri)) == {records[0]: Reason.EXPIRED}


# -- traces --------------------------------------------------------------------------------------


def test_a_cleanup_without_garbage_costs_the_same_in_a_larger_bucket(
    original: Corner, s3_environment: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    corner = original.copied(s3_bucket)
    with delaying(s3_environment.endpoint, 0) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)

        def asked(full: bool = False) -> tuple[int, int]:
            proxy.take()
            report = clean_workspace(CleanupRequest(corner.uri, 0.0, dry_run=False, full=full))
            assert (report.orphans, report.full) == ((), full)
            return len(proxy.take()), report.scanned

        asked(full=True)
        at_rest = asked()
        corner.index()  # after a run without failures, nothing needs to be listed
        after_a_run = asked()
        for _ in range(30):
            corner.workspace.objects.create(f"org:default/{'0' * 32}-{'1' * 32}-{new_ulid()}.json", b"{}")
        corner.index()
        again = asked()
        assert again[0] <= after_a_run[0]
        assert again[1] == after_a_run[1]
        assert at_rest[0] < after_a_run[0] <= 20
        assert asked(full=True)[1] >= after_a_run[1] + 30


def test_a_failed_or_killed_run_leaves_a_trace_of_its_garbage(corner: Corner, monkeypatch: pytest.MonkeyPatch) -> None:
    assert clean(corner.uri).full
    silent = corner.write_and_crash()  # as by a worker that outlives its run
    assert (report := clean(corner.uri)).orphans == ()
    assert not report.full
    with (
        contextlib.suppress(ZeroDivisionError),
        acquire(corner.workspace.objects, lease_path(ENTITY), "fails"),
    ):
        failed = corner.write_and_crash()
        raise ZeroDivisionError
    assert found(clean(corner.uri)) == dict.fromkeys([silent, failed], Reason.UNCOMMITTED)
    clean(corner.uri)  # the cleanup itself has taken the leases
    lease_of_the_dead(corner, monkeypatch)
    died = corner.write_and_crash()
    with acquire(corner.workspace.objects, lease_path(ENTITY), "next"):
        pass
    report = clean(corner.uri)
    assert (found(report), report.full) == ({died: Reason.UNCOMMITTED}, False)
    corner.assert_alive()


def test_garbage_that_is_too_new_or_in_use_keeps_its_trace(corner: Corner) -> None:
    planted = corner.plant()
    assert clean(corner.uri, 3_600).orphans == ()
    with acquire(corner.workspace.objects, lease_path(ENTITY), "a-long-run"):
        clean(corner.uri)
    report = clean(corner.uri)
    assert not report.full
    assert Reason.UNCOMMITTED in found(report).values()
    assert not set(planted) & corner.paths()


@pytest.mark.parametrize("record", ["of another workspace", "damaged", "missing", "a week old"])
def test_without_a_record_that_is_valid_everything_is_listed(local: Corner, record: str) -> None:
    clean(local.uri)
    path = Path(local.uri, CLEANUP)
    known = json.loads(path.read_text())
    match record:
        case "of another workspace":
            path.write_text(json.dumps(known | {"workspace_id": "another"}))
        case "damaged":
            path.write_text("{")
        case "missing":
            path.unlink()
        case _:
            path.write_text(json.dumps(known | {"listed": (datetime.now(UTC) - timedelta(days=7)).isoformat()}))
    planted = local.write_and_crash()
    report = clean(local.uri)
    assert (found(report), report.full) == ({planted: Reason.UNCOMMITTED}, True)


# -- spelling ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spell",
    [
        str,
        lambda uri: f"{uri}/",
        lambda uri: f"{uri}//",
        lambda uri: f"file://{uri}",
        lambda uri: f"FILE://{uri}/",
        os.path.relpath,
        lambda uri: f"./{os.path.relpath(uri)}/.",
        lambda uri: f"{uri}/../workspace",
        lambda uri: f"{os.path.dirname(uri)}/link/",
    ],
    ids=["plain", "slash", "slashes", "file", "FILE", "relative", "dots", "parent", "link"],
)
def test_live_files_survive_for_any_spelling_of_a_local_workspace(
    local: Corner, spell: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(local.uri)
    monkeypatch.chdir(local.tree)
    planted = local.plant()
    assert found(clean(spell(local.uri))) == planted
    assert not set(planted) & local.paths()
    local.assert_alive()


@pytest.mark.parametrize("name", ["with space", "per%41cent", "ü", "colon:name", "org:nested"])
def test_live_files_survive_in_a_workspace_with_an_unusual_name(tmp_path: Path, original: Corner, name: str) -> None:
    odd = original.copied(str(tmp_path / name))
    assert found(clean(odd.uri)) == {}
    odd.assert_alive()


@pytest.mark.parametrize("suffix", ["", "/", "//"])
def test_live_files_survive_for_any_spelling_of_the_bucket(s3_bucket: str, original: Corner, suffix: str) -> None:
    bucket = original.copied(f"{s3_bucket}/deep er/ü%41")
    planted = bucket.plant()
    assert found(clean(bucket.uri.replace("/deep", "//deep") + suffix)) == planted
    bucket.assert_alive()


@pytest.mark.parametrize("kind", ["google_bucket", "azure_container"])
def test_live_files_survive_in_a_bucket_of_another_kind(
    kind: str, original: Corner, request: pytest.FixtureRequest
) -> None:
    bucket = original.copied(f"{request.getfixturevalue(kind)}/deep er/ü%41")
    planted = bucket.plant()
    assert found(clean(bucket.uri + "/")) == planted
    bucket.assert_alive()


def test_a_workspace_whose_files_are_not_listed_is_not_cleaned(local: Corner, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = local.plant()
    spelled = {f"./{path}" for path in local.table.tracked_files()}
    monkeypatch.setattr("driftline.storage.lines.line_table.LineTable.tracked_files", lambda table: frozenset(spelled))
    with pytest.raises(CleanupAborted, match="missing files"):
        clean(local.uri)
    assert set(planted) <= local.paths()


# -- beside writers ------------------------------------------------------------------------------


def test_a_busy_source_keeps_its_staged_deltas_and_its_tenant_its_tables(corner: Corner) -> None:
    planted = corner.plant()
    free = {path for path, reason in planted.items() if reason in (Reason.FOLDED, Reason.TEMPORARY)}
    with acquire(corner.workspace.objects, lease_path(ENTITY), "a-long-run"):
        for dry_run in (True, False):
            report = clean(corner.uri, dry_run=dry_run)
            assert set(found(report)) == free
            assert any("a-long-run" in message for message in report.skipped)
    assert set(planted) - corner.paths() == free
    assert set(found(clean(corner.uri))) == set(planted) - free


def test_tables_stay_while_another_run_maintains_them(corner: Corner) -> None:
    uncommitted = corner.write_and_crash()
    with acquire(corner.workspace.objects, lease_path(ENTITY.tenant, "maintenance"), "a-compaction"):
        assert found(clean(corner.uri)) == {}
    assert found(clean(corner.uri)) == {uncommitted: Reason.UNCOMMITTED}


def test_a_cleanup_releases_its_leases(corner: Corner) -> None:
    corner.plant()
    clean(corner.uri)
    for path in (lease_path(ENTITY), lease_path(ENTITY.tenant, "maintenance")):
        with acquire(corner.workspace.objects, path, "next") as lease:
            assert not lease.taken_over


SLOW_WRITER = """
import sys
from driftline.storage.deltas.manifest import BatchId
from driftline.storage.layout import lease_path, new_ulid
from driftline.storage.leases.lease import acquire
from driftline.storage.lines.commit_marker import SourceCommit
from tests.support.leftovers import ENTITY, Corner

corner = Corner(None, None, sys.argv[1])
with acquire(corner.workspace.objects, lease_path(ENTITY), "slow") as lease:
    fragments = corner.table.write_fragments(corner.rows())
    print("written", flush=True)
    sys.stdin.readline()
    corner.table.commit([SourceCommit(ENTITY, lease.token, BatchId(new_ulid(), 1))], fragments)
"""


def test_the_fragments_of_a_slow_writer_in_another_process_are_never_deleted(corner: Corner) -> None:
    writer = ForkedReader(f"import sys; sys.argv.append({corner.uri!r})\n{SLOW_WRITER}", quiet=False)
    with writer.stdout, writer.stdin:
        assert writer.stdout.readline() == b"written\n"
        assert clean(corner.uri).orphans == ()
    assert writer.wait(PATIENCE_SECONDS) == 0  # it goes on at the end of its input
    assert corner.table.count("path = 'extra.txt'") == 3


def lease_of_the_dead(corner: Corner, monkeypatch: pytest.MonkeyPatch) -> Lease:
    with monkeypatch.context() as patch:
        here = ProcessIdentity.current()
        dead = ProcessIdentity(here.host, here.boot_id, (1 << 23) + 77, "0")
        patch.setattr(ProcessIdentity, "current", lambda: dead)
        lease = acquire(corner.workspace.objects, lease_path(ENTITY), "paused")
        lease.leave_held()
    return lease


def test_a_holder_that_was_taken_over_cannot_commit_fragments_that_are_gone(
    corner: Corner, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = lease_of_the_dead(corner, monkeypatch)
    fragments = corner.table.write_fragments(corner.rows())
    assert [orphan.reason for orphan in clean(corner.uri).deleted] == [Reason.UNCOMMITTED]
    with pytest.raises(LeaseLost):
        corner.table.commit([SourceCommit(ENTITY, lease.token, BatchId(new_ulid(), 1))], fragments)
    corner.assert_alive()


# -- superseded embeddings -----------------------------------------------------------------------


def test_a_table_is_deleted_once_every_document_has_another_embedding(
    local: Corner, tmp_path_factory: pytest.TempPathFactory
) -> None:
    old = local.table.path
    local.model = save_tiny_model(tmp_path_factory.mktemp("other-model"), seed=8)
    local.index(reembed=True)
    report = clean(local.uri)
    assert set(found(report).values()) == {Reason.SUPERSEDED}
    assert not [path for path in local.paths() if path.startswith(f"{old}/")]
    local.assert_alive()


def test_both_tables_stay_until_every_source_is_reembedded(
    local: Corner, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "a.txt").write_text("word1\n")
    index_sources(IndexRequest((str(second),), local.uri, entity="source:second", model=str(local.model), workers=1))
    local.model = save_tiny_model(tmp_path_factory.mktemp("other-model"), seed=8)
    local.index(reembed=True)
    assert len(local.workspace.line_tables(ENTITY)) == 2
    before = local.paths()
    assert clean(local.uri).orphans == ()
    assert before <= local.paths()


def test_a_superseded_table_written_by_the_fence_stays_whole_until_the_next_cleanup(corner: Corner) -> None:
    table = corner.superseded_table()
    planted = corner.plant()
    assert set(found(clean(corner.uri, dry_run=True))) == {*planted, *table}
    assert found(clean(corner.uri)) == planted
    assert table <= corner.paths()
    assert table <= set(found(clean(corner.uri)))
    assert clean(corner.uri).orphans == ()
    corner.assert_alive()


def test_a_table_without_a_first_version_is_deleted(corner: Corner) -> None:
    before = corner.paths()
    corner.workspace.lines(ENTITY, SUPERSEDED).write_fragments(corner.rows())
    planted = corner.paths() - before
    assert found(clean(corner.uri)) == dict.fromkeys(planted, Reason.SUPERSEDED)
    corner.assert_alive()


# -- deletion ------------------------------------------------------------------------------------


def test_a_crash_after_any_deletion_leaves_the_rest_for_the_next_cleanup(
    tmp_path: Path, original: Corner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftline.tasks.maintenance.cleanup.DELETE_BATCH", 1)
    full = original.copied(str(tmp_path / "workspace"))
    planted = full.plant()
    step = 0
    while True:
        corner = full.copied(str(tmp_path / f"workspace{step}"))
        with injected(Faults(Mode.CRASH_AFTER, step)) as faults, contextlib.suppress(Crash):
            clean(corner.uri)
        if not faults.dead:
            break
        left = set(planted) & corner.paths()
        again = found(clean(corner.uri))
        strays = {path for path in again if path not in left and not path.startswith(".tmp-clock-")}
        assert {again[path] for path in strays} <= {Reason.UNCOMMITTED}  # the fence itself writes to tables
        assert not set(planted) & corner.paths()
        if faults.log[-1].startswith("delete"):
            corner.assert_alive()
        step += 1
    assert step > len(planted)


def test_each_deletion_is_in_the_audit_log_and_in_the_run_history_of_its_tenant(
    local: Corner, caplog: pytest.LogCaptureFixture
) -> None:
    planted = local.plant()
    with caplog.at_level(logging.INFO, "driftline.audit"):
        report = clean(local.uri)
    lines = [json.loads(record.message) for record in caplog.records if record.name == "driftline.audit"]
    assert {line["path"]: line["reason"] for line in lines} == {path: str(why) for path, why in planted.items()}
    assert {line["run_id"] for line in lines} == {report.run_id}
    assert all(line["size_bytes"] >= 0 and line["age_seconds"] >= 0 and line["time"] for line in lines)
    record = RunHistory(local.workspace.objects, ENTITY.tenant).last()
    assert record is not None
    assert (record.kind, record.run_id, record.outcome) == ("cleanup", report.run_id, "done")
    assert {entry["path"] for entry in record.report["deleted"]} == {path for path in planted if "/" in path}


def test_a_replaced_workspace_aborts_the_cleanup(local: Corner, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = local.plant()
    original = "driftline.flows.runs.cleanup.find_orphans"
    from driftline.storage.garbage import find_orphans

    def swap(*arguments: Any, **options: Any) -> Any:
        config = Path(local.uri, CONFIG)
        config.write_text(json.dumps({**json.loads(config.read_text()), "workspace_id": "another"}))
        return find_orphans(*arguments, **options)

    monkeypatch.setattr(original, swap)
    with pytest.raises(CleanupAborted, match="Another workspace"):
        clean(local.uri)
    assert set(planted) <= local.paths()


def test_failing_deletions_are_retried_only_while_they_progress(local: Corner, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = local.plant()
    original, calls = LocalDisk.delete, []

    def delete_one_and_fail(disk: LocalDisk, paths: list[str]) -> None:
        if not set(paths) & set(planted):
            return original(disk, paths)
        calls.append(len(paths))
        if len(calls) <= 2:
            original(disk, paths[:1])
        raise StorageError("Could not delete", paths[0])

    monkeypatch.setattr(LocalDisk, "delete", delete_one_and_fail)
    with pytest.raises(StorageError):
        clean(local.uri)
    assert calls == [len(planted), len(planted) - 1, len(planted) - 2]
    record = RunHistory(local.workspace.objects, ENTITY.tenant).last()
    assert record is not None
    assert record.outcome == "storage_error"
    assert len(set(planted) - local.paths()) == 2
    assert record.report["deleted_count"] <= 2


# -- command line --------------------------------------------------------------------------------


def test_cleanup_is_a_dry_run_by_default(local: Corner, capsys: pytest.CaptureFixture[str]) -> None:
    planted = local.plant()
    arguments = ["cleanup", "--workspace", local.uri, "--max-age-seconds", "0", "--json"]
    assert cli.main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["dry_run"], result["orphan_count"], result["deleted_count"]) == (True, len(planted), 0)
    assert set(planted) <= local.paths()
    assert cli.main([*arguments, "--delete"]) == 0
    output = capsys.readouterr()
    result = json.loads(output.out)
    assert set(result["deleted_paths"]) == set(planted)
    assert result["deleted_count"] == result["orphan_count"] == len(planted)
    assert cli.main(arguments[:-1]) == 0
    assert "orphans: 0" in capsys.readouterr().out


def test_a_missing_workspace_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cleanup", "--workspace", str(tmp_path / "nothing"), "--delete"]) == 2
    assert not (tmp_path / "nothing").exists()
    assert cli.main(["cleanup", "--workspace", str(tmp_path), "--max-age-seconds", "-1"]) == 2

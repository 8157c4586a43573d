"""Verification detects each kind of damage; a repair fixes whatever can be repaired."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import driftline as dl
from driftline.flows.commands import main as cli
from driftline.flows.config.index_request import IndexRequest
from driftline.flows.output.progress import Progress
from driftline.flows.output.run_reports import IndexReport, SourceReport
from driftline.flows.runs import verify_and_repair
from driftline.flows.runs.remove import remove_source
from driftline.flows.runs.verify_and_repair import VerifyReport, VerifyRequest, verify_workspace
from driftline.storage.deltas import manifest as documents
from driftline.storage.deltas.manifest import BatchId, ManifestRow
from driftline.storage.entities import Entity
from driftline.storage.errors import CorruptFile, StorageError, WorkspaceTooNew
from driftline.storage.lance import lance_table
from driftline.storage.lance.reader_process import run_in_worker
from driftline.storage.layout import lease_path, new_ulid
from driftline.storage.leases.lease import acquire
from driftline.storage.lines.commit_marker import SourceCommit
from driftline.storage.lines.line_table import each_document
from driftline.storage.workspace.records import PROGRAM_SCHEME
from driftline.tasks.maintenance.verification import FindingKind, changed_documents
from tests.support.leftovers import ENTITY, Corner, make_corner
from tests.support.oracle import save_tiny_model

SOURCE = str(ENTITY)


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


@pytest.fixture
def own(tmp_path: Path, model: Path) -> Corner:
    """A workspace and a tree; tests may change both."""
    return make_corner(tmp_path, str(tmp_path / "workspace"), model)


def check(corner: Corner, repair: bool = False) -> VerifyReport:
    return verify_workspace(VerifyRequest(corner.uri, repair))


def found(report: VerifyReport) -> set[tuple[FindingKind, str]]:
    return {(finding.kind, finding.path) for finding in report.findings}


def commit(corner: Corner, replaced: tuple[str, ...] = (), rows: pa.Table | None = None) -> None:
    """Change the table without the manifest."""
    table = corner.table
    fragments = table.write_fragments(rows) if rows is not None else []
    table.commit(
        [SourceCommit(ENTITY, table.commit_marker(ENTITY).token, BatchId(new_ulid(), 1), tuple(replaced))], fragments
    )


def record(corner: Corner, **fields: Any) -> None:
    """Change the manifest without the table."""
    meta = ManifestRow(**{"size_bytes": 1, "mtime_ns": 1, "fingerprint": corner.workspace.config.fingerprint, **fields})
    manifest = corner.workspace.manifest(ENTITY)
    manifest.append(
        new_ulid(), manifest.changes("add", corner.next_rev, documents.to_table([meta]), now=datetime.now(UTC))
    )


def lose_lines(corner: Corner) -> None:
    commit(corner, ("file3.txt",))


def lose_some_lines(corner: Corner) -> None:
    corner.table.open().delete("path = 'file3.txt' AND line_number < 7")


def repeat_lines(corner: Corner) -> None:
    dataset = corner.table.open()
    rows = dataset.to_table(filter="path = 'file3.txt' AND line_number = 5")
    lance.write_dataset(rows, dataset.uri, mode="append", storage_options=corner.table.options)


def swap_content(corner: Corner) -> None:
    corner.table.open().update({"hash": "'00'"}, where="path = 'file3.txt'")


def add_strangers(corner: Corner) -> None:
    commit(corner, rows=corner.rows("stranger.txt"))


def forget_document(corner: Corner) -> None:
    manifest = corner.workspace.manifest(ENTITY)
    gone = pa.table({"path": ["file3.txt"]})
    manifest.append(new_ulid(), manifest.changes("remove", corner.next_rev, gone, now=datetime.now(UTC)))


def invent_document(corner: Corner) -> None:
    record(corner, path="invented.txt", hash="00", lines=3)


def lose_commit_marker(corner: Corner) -> None:
    corner.table.open().delete("line_number = -1")


def repeat_commit_marker(corner: Corner) -> None:
    dataset = corner.table.open()
    rows = dataset.to_table(filter="line_number = -1")
    lance.write_dataset(rows, dataset.uri, mode="append", storage_options=corner.table.options)


def change(column: str, value: Callable[[Any], Any]) -> Callable[[Corner], object]:
    """Return damage that changes one value of a document."""

    def damage(corner: Corner) -> None:
        (rows,) = each_document(corner.table.of_documents(ENTITY, ["file3.txt"]), ["file3.txt"])
        values = rows[column].to_pylist()
        at = next(row for row, each in enumerate(values) if each)
        values[at] = value(values[at])
        kind = rows.schema.field(column)
        changed = rows.set_column(rows.schema.get_field_index(column), kind, pa.array(values, kind.type))
        commit(corner, ("file3.txt",), changed)

    return damage


def flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


CHANGED = {(FindingKind.CHANGED_LINES, "file3.txt")}
DAMAGES: dict[str, tuple[Callable[[Corner], object], set[tuple[FindingKind, str]]]] = {
    "lost lines": (lose_lines, {(FindingKind.MISSING_LINES, "file3.txt")}),
    "lost some lines": (lose_some_lines, {(FindingKind.WRONG_COUNT, "file3.txt")}),
    "repeated lines": (
        repeat_lines,
        {(FindingKind.WRONG_COUNT, "file3.txt"), (FindingKind.DUPLICATE_LINES, "file3.txt")},
    ),
    "other content": (
        swap_content,
        {(FindingKind.MISSING_LINES, "file3.txt"), (FindingKind.STALE_LINES, "file3.txt")},
    ),
    "strange lines": (add_strangers, {(FindingKind.NO_DOCUMENT, "stranger.txt")}),
    "forgotten document": (forget_document, {(FindingKind.NO_DOCUMENT, "file3.txt")}),
    "invented document": (invent_document, {(FindingKind.MISSING_LINES, "invented.txt")}),
    "lost commit marker": (lose_commit_marker, {(FindingKind.COMMIT_MARKER, "")}),
    "repeated commit marker": (repeat_commit_marker, {(FindingKind.COMMIT_MARKER, "")}),
    "changed text": (change("text", lambda text: f"{text[:-1]}~"), CHANGED),
    "changed block": (change("block", lambda block: f"{block[:-1]}~"), CHANGED),
    "changed pack": (change("pack", lambda pack: f"~{pack[1:]}"), CHANGED),
    "changed grams": (change("grams", flipped), CHANGED),
    "changed code": (change("block_code", lambda code: bytes(byte ^ 1 for byte in code)), CHANGED),
    "changed extension": (change("ext", lambda ext: ext.upper()), CHANGED),
}


def test_a_sound_workspace_has_no_findings(corner: Corner) -> None:
    report = check(corner)
    assert (report.findings, report.skipped) == ([], [])
    assert (report.documents, report.lines) == (5, corner.table.count())
    corner.workspace.manifest(ENTITY).compact()
    assert check(corner).findings == []


def test_verification_writes_nothing(corner: Corner) -> None:
    before = sorted((info.path, info.version) for info in corner.workspace.objects.list(temporary=True))
    check(corner)
    assert sorted((info.path, info.version) for info in corner.workspace.objects.list(temporary=True)) == before


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_detected_and_repaired(local: Corner, damage: str) -> None:
    make, expected = DAMAGES[damage]
    make(local)
    report = check(local)
    assert found(report) == expected
    assert {finding.entity for finding in report.findings} == {SOURCE}
    repaired = check(local, repair=True)
    assert (repaired.findings, repaired.skipped) == ([], [])
    assert repaired.repaired == len(expected)
    local.assert_alive()


def aborts_at_file1(batches: Iterator[pa.RecordBatch]) -> set[tuple[str, str]]:
    rows = [*batches]
    if any("file1.txt" in batch["path"].to_pylist() for batch in rows):
        os.abort()
    return changed_documents(iter(rows))


def test_a_fragment_that_aborts_its_reader_does_not_hide_changes_in_others(local: Corner) -> None:
    change("text", lambda text: f"{text[:-1]}~")(local)
    damaged, changed = local.table.examined(aborts_at_file1)
    assert len(damaged) == 1
    assert changed == {(SOURCE, "file3.txt")}


def test_changed_text_of_a_pack_is_not_shown(local: Corner) -> None:
    change("pack", lambda pack: f"~{pack[1:]}")(local)
    assert dl.search(local.uri, "/word/", paths=["file1.txt", "file2.txt"]).results
    for read in (
        lambda: dl.search(local.uri, "/word/", paths=["file3.txt"]),
        lambda: dl.sql(local.uri, "SELECT lines FROM documents WHERE path = 'file3.txt'"),
    ):
        with pytest.raises(CorruptFile, match="checksum"):
            read()


def test_damage_in_a_bucket_is_detected_and_repaired(s3_bucket: str, original: Corner) -> None:
    corner = original.copied(s3_bucket)
    commit(corner, ("file3.txt",), corner.rows("stranger.txt"))
    expected = {(FindingKind.MISSING_LINES, "file3.txt"), (FindingKind.NO_DOCUMENT, "stranger.txt")}
    assert found(check(corner)) == expected
    assert check(corner, repair=True).findings == []
    corner.assert_alive()


def test_staged_deltas_of_dead_runs_are_detected_and_settled(corner: Corner) -> None:
    corner.commit_and_crash()
    assert FindingKind.STAGED in {kind for kind, _ in found(check(corner))}
    repaired = check(corner, repair=True)
    assert repaired.findings == []
    assert corner.workspace.manifest(ENTITY).staged() == []


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 somebody else's archive"])
@pytest.mark.parametrize("name", ["base", "delta"])
def test_a_damaged_manifest_is_reported_set_aside_and_indexed_again(local: Corner, name: str, damage: bytes) -> None:
    manifest = local.workspace.manifest(ENTITY)
    if name == "base":
        manifest.compact()
    path = f"{ENTITY.directory}/{'_index.parquet' if name == 'base' else manifest.log().deltas[0]}"
    Path(local.uri, path).write_bytes(damage)
    assert found(check(local)) == {(FindingKind.UNREADABLE, path)}
    assert check(local, repair=True).findings == []
    local.assert_alive()
    (kept,) = [found for found in local.paths() if "_damaged_" in found]
    assert Path(local.uri, kept).read_bytes() == damage


def test_a_lost_table_is_found(local: Corner) -> None:
    local.workspace.objects.delete([path for path in local.paths() if path.startswith(local.table.path)])
    assert {kind for kind, _ in found(check(local))} == {FindingKind.MISSING_LINES}
    assert check(local, repair=True).findings == []
    local.assert_alive()


def test_a_lost_file_of_a_table_is_found(local: Corner) -> None:
    newest = {fragment.data_files()[0].path for fragment in local.table.open().get_fragments()}
    Path(local.uri, local.table.path, "data", min(newest)).unlink()
    assert found(check(local)) == {(FindingKind.UNREADABLE, local.table.path)}


def test_a_failed_read_of_a_table_stops_its_repair(local: Corner, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(function: Callable[..., Any], *arguments: Any) -> Any:
        if function is lance_table._fragments:
            raise StorageError("Cannot read the lines table (error sending request)", local.table.uri)
        return run_in_worker(function, *arguments)

    before = local.paths()
    monkeypatch.setattr(lance_table, "run_in_worker", fail)
    with pytest.raises(StorageError, match="error sending request"):
        local.table.quarantine_damage(".damaged")
    assert local.paths() == before


def test_a_source_that_is_removed_during_its_repair_is_not_indexed_again(
    local: Corner, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = verify_and_repair._Repair._index

    def removed_before(repair: Any, entity: Entity, removed: set[str]) -> None:
        remove_source(local.uri, str(entity))
        index(repair, entity, removed)

    monkeypatch.setattr(verify_and_repair._Repair, "_index", removed_before)
    lose_lines(local)
    assert check(local, repair=True).repaired == 1
    assert local.workspace.reread().source(ENTITY) is None
    assert check(local).findings == []


def test_a_damaged_lease_is_found(local: Corner) -> None:
    Path(local.uri, lease_path(ENTITY)).write_bytes(b"?")
    assert found(check(local)) == {(FindingKind.UNREADABLE, lease_path(ENTITY))}


def test_a_restored_configuration_names_the_model_of_this_host(
    local: Corner, model: Path, driftline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, at = Path(local.uri, "_workspace.json"), ("--workspace", local.uri)
    config.unlink()
    assert driftline("verify", "--repair", *at).code == 0
    assert "has no record of its embedding model" in driftline("search", "word7", *at).err
    config.unlink()
    monkeypatch.setenv("DRIFTLINE_MODEL", str(model))
    assert driftline("verify", "--repair", *at).code == 0
    assert driftline("search", "word7", *at).code == 0


def test_a_newer_format_is_not_damage(local: Corner) -> None:
    path = Path(local.uri, ENTITY.directory, "_source.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 99}))
    with pytest.raises(WorkspaceTooNew):
        check(local, repair=True)


def test_an_index_that_misses_lines_is_detected_and_rebuilt(own: Corner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftline.storage.lines.indexes.MAX_UNINDEXED_ROWS", 0)
    (own.tree / "more.txt").write_text("".join(f"word{i} word{i + 1}\n" for i in range(300)))
    own.index(full=True)
    dataset = own.table.open()
    names = {index.name for index in dataset.describe_indices()}
    assert names == {"path_idx", "parent_dirs_idx", "text_idx", "vector_idx"}
    assert check(own).findings == []
    # An index over the wrong rows, taken from a table in which every path differs.
    with monkeypatch.context() as patch:
        from driftline.storage.lines import indexes

        # Runs in this process, which is patched:
        patch.setattr("driftline.tasks.maintenance.verification.run_in_worker", operator.call)
        original = indexes._finds
        lost = {own.table.open().version}
        patch.setattr(
            indexes,
            "_finds",
            lambda at, counts, name, line: (
                original(at, counts, name, line) and not (name == "path_idx" and at.version in lost)
            ),
        )
        samples: list[list[dict[str, Any]]] = []
        sample = indexes._sample

        def recorded(*arguments: Any) -> list[dict[str, Any]]:
            samples.append(sample(*arguments))
            return samples[-1]

        patch.setattr(indexes, "_sample", recorded)
        assert found(check(own)) == {(FindingKind.INDEX, "path_idx")}
        assert check(own, repair=True).findings == []
        assert [line["id"] for line in samples[0]] != [line["id"] for line in samples[1]]  # another run, other lines
    assert {index.name for index in own.table.open().describe_indices()} == names


def test_a_busy_source_is_skipped(corner: Corner) -> None:
    commit(corner, ("file3.txt",))
    with acquire(corner.workspace.objects, lease_path(ENTITY), "a-long-run"):
        report = check(corner, repair=True)
    assert report.findings == []
    assert SOURCE in report.skipped[0]
    assert found(check(corner)) == {(FindingKind.MISSING_LINES, "file3.txt")}


def test_documents_of_a_source_that_cannot_be_read_are_kept(local: Corner) -> None:
    repeat_lines(local)
    lost, lines = found(check(local)), local.table.count()
    local.tree.rename(local.tree.with_name("elsewhere"))
    report = check(local, repair=True)
    assert found(report) == lost
    assert any("cannot be read" in message for message in report.skipped)
    assert local.table.count() == lines
    local.tree.with_name("elsewhere").rename(local.tree)
    assert check(local, repair=True).findings == []
    local.assert_alive()


def test_documents_of_a_source_whose_record_is_lost_are_kept(local: Corner) -> None:
    repeat_lines(local)
    Path(local.uri, ENTITY.directory, "_source.json").write_bytes(b"?")
    assert FindingKind.DUPLICATE_LINES in {finding.kind for finding in check(local, repair=True).findings}
    local.index()
    assert check(local, repair=True).findings == []
    local.assert_alive()


@pytest.mark.parametrize("damage", ["repeated lines", "lost some lines", "other content", "forgotten document"])
def test_documents_that_only_a_program_can_store_again_are_kept(local: Corner, damage: str) -> None:
    record = local.workspace.source(ENTITY)
    assert record is not None
    local.workspace.bind_source(ENTITY, replace(record, uri=f"{PROGRAM_SCHEME}{ENTITY}"))
    make, expected = DAMAGES[damage]
    make(local)
    lose_commit_marker(local)
    lines = local.table.count()
    report = check(local, repair=True)
    assert found(report) == expected
    assert any("only the program" in message for message in report.skipped)
    assert local.table.count() == lines


@pytest.mark.parametrize("failure", ["the run fails", "a file cannot be read"])
def test_a_removed_document_that_is_not_reindexed_is_a_finding(
    local: Corner, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    lose_lines(local)

    def index(request: IndexRequest, progress: Progress, **options: bool) -> IndexReport:
        if failure == "the run fails":
            raise StorageError("The source cannot be listed")
        report = SourceReport(SOURCE, "", skipped=[("file3.txt", "unreadable"), ("other.bin", "binary")])
        return IndexReport(str(request.workspace), "", [report])

    with monkeypatch.context() as patch:
        patch.setattr("driftline.flows.runs.verify_and_repair.index_sources", index)
        report = check(local, repair=True)
    assert found(report) == {(FindingKind.NOT_REINDEXED, "file3.txt")}
    assert check(local).findings == []
    local.index()
    local.assert_alive()


def test_a_reembedding_in_progress_is_not_damage(
    own: Corner, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from driftline.flows.config.index_request import IndexRequest
    from driftline.flows.runs.index import index_sources

    second = tmp_path / "second"
    second.mkdir()
    (second / "a.txt").write_text("word1\n")
    index_sources(IndexRequest((str(second),), own.uri, entity="source:second", model=str(own.model), workers=1))
    own.model = save_tiny_model(tmp_path_factory.mktemp("other-model"), seed=8)
    (own.tree / "file4.txt").unlink()
    own.index(reembed=True)
    assert check(own).findings == []


def test_the_exit_code_reports_findings(local: Corner, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["verify", "--workspace", local.uri]
    assert cli.main(arguments) == 0
    assert "findings: 0" in capsys.readouterr().out
    lose_lines(local)
    assert cli.main(arguments) == 3
    assert "file3.txt" in capsys.readouterr().out
    assert cli.main([*arguments, "--json"]) == 3
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["kind"], finding["path"]) == (str(FindingKind.MISSING_LINES), "file3.txt")
    assert cli.main([*arguments, "--repair"]) == 0
    assert "1 repaired" in capsys.readouterr().out

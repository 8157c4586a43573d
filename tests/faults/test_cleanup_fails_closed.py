"""A cleanup that cannot read or list everything deletes nothing and reports the file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from driftline.flows.commands import main as cli
from driftline.flows.runs.cleanup import CleanupReport, CleanupRequest, clean_workspace
from driftline.storage.errors import CleanupAborted, StorageError
from driftline.storage.garbage import Reason
from driftline.storage.layout import lease_path
from driftline.storage.lines.line_table import LineTable
from driftline.storage.objects.local_disk import LocalDisk
from tests.support.leftovers import ENTITY, Corner, make_corner

READS = ("get", "open_input", "walk", "head", "directories")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Corner:
    root = tmp_path_factory.mktemp("original")
    return make_corner(root, str(root / "workspace"), model)


@pytest.fixture
def corner(tmp_path: Path, original: Corner) -> Corner:
    return original.copied(str(tmp_path / "workspace"))


def clean(corner: Corner) -> CleanupReport:
    return clean_workspace(CleanupRequest(corner.uri, max_age_seconds=0.0, dry_run=False, full=True))


def listed(root: str) -> set[str]:
    """Return every file under ``root``, except leases and the file used to read the store's clock."""
    found = {os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names}
    return {path for path in found if "/_leases/" not in path and ".tmp-clock-" not in path}


def oldest_version(corner: Corner) -> str:
    return max(path for path in corner.paths() if path.endswith(".manifest"))


TARGETS: dict[str, Callable[[Corner], str]] = {
    "base": lambda corner: f"{ENTITY.directory}/_index.parquet",
    "delta": lambda corner: corner.workspace.manifest(ENTITY).publish("0" * 26, b""),
    "staged delta": lambda corner: corner.stage(),
    "version of a table": oldest_version,
    "source": lambda corner: f"{ENTITY.directory}/_source.json",
    "lease": lambda corner: lease_path(ENTITY),
    "lease of another": lambda corner: "org:other/_leases/source:org:other.json",
    "workspace": lambda corner: "_workspace.json",
}
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "foreign": lambda data: b"PK\x03\x04 somebody else's archive",
    "foreign JSON": lambda data: b'{"name": "package", "version": "1.0"}',
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dry_run", [False, True], ids=["delete", "dry run"])
def test_a_damaged_file_is_reported_and_nothing_is_deleted(
    corner: Corner, target: str, damage: str, dry_run: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    corner.plant()
    path = TARGETS[target](corner)
    file = Path(corner.uri, path if "/" in path or path.startswith("_w") else f"{ENTITY.directory}/{path}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(DAMAGES[damage](file.read_bytes() if file.exists() else b""))
    before = listed(corner.uri)
    arguments = ["cleanup", "--workspace", corner.uri, "--max-age-seconds", "0", "--json"]
    assert cli.main(arguments if dry_run else [*arguments, "--delete"]) == 3
    error = json.loads(capsys.readouterr().out)
    assert error["error"] == "cleanup_aborted"
    assert "Nothing was deleted" in error["message"]
    assert file.name in error["message"]
    assert listed(corner.uri) == before


def test_a_missing_file_of_a_table_is_reported_and_nothing_is_deleted(corner: Corner) -> None:
    corner.plant()
    for path in [name for name in corner.table.tracked_files() if name.startswith("data/")]:
        file = Path(corner.uri, corner.table.path, path)
        content = file.read_bytes()
        file.unlink()
        before = listed(corner.uri)
        with pytest.raises(CleanupAborted, match=path):
            clean(corner)
        assert listed(corner.uri) == before
        file.write_bytes(content)


def test_a_directory_that_cannot_be_listed_aborts(corner: Corner, monkeypatch: pytest.MonkeyPatch) -> None:
    corner.plant()
    original = os.scandir

    def refuse(path: str) -> Any:
        if str(path).endswith("/data"):
            raise PermissionError(13, "Permission denied", path)
        return original(path)

    before = listed(corner.uri)
    with monkeypatch.context() as patch:
        patch.setattr("driftline.storage.objects.local_disk.os.scandir", refuse)
        with pytest.raises(CleanupAborted, match="data"):
            clean(corner)
    assert listed(corner.uri) == before


class Reads:
    """Counts reads of the workspace. Read number ``failing`` fails; a listing fails only after its first entry."""

    def __init__(self, patch: pytest.MonkeyPatch, failing: int) -> None:
        self.log: list[str] = []
        self.failing = failing
        for method in READS:
            patch.setattr(LocalDisk, method, self._wrapped(getattr(LocalDisk, method), method == "walk"))
        patch.setattr(LineTable, "tracked_files", self._wrapped(LineTable.tracked_files, False))

    def _wrapped(self, original: Callable[..., Any], lists: bool) -> Callable[..., Any]:
        def fails(arguments: tuple[Any, ...]) -> bool:
            self.log.append(f"{original.__name__} {arguments[1:2]}")
            return len(self.log) - 1 == self.failing

        def wrapped(*arguments: Any, **options: Any) -> Any:
            if fails(arguments):
                raise StorageError("A read failed", "somewhere")
            return original(*arguments, **options)

        def listing(*arguments: Any, **options: Any) -> Iterator[Any]:
            torn = fails(arguments)
            for entry in original(*arguments, **options):
                yield entry
                if torn:
                    break
            if torn:
                raise StorageError("A listing was torn", "somewhere")

        return listing if lists else wrapped


def test_if_any_read_fails_nothing_is_deleted(corner: Corner, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = set(corner.plant())
    failing, aborted = 0, 0
    while True:
        with monkeypatch.context() as patch:
            reads = Reads(patch, failing)
            try:
                clean(corner)
            except CleanupAborted:
                aborted += 1
                cleaned = False
            except StorageError:
                cleaned = False  # before the survey, or between it and the deletion
            else:
                cleaned = True
        if len(reads.log) <= failing:
            break
        if cleaned:
            # Such reads only check whether a table exists, or concern a released lease, which would expire.
            assert "_versions" in reads.log[failing] or "_leases" in reads.log[failing], reads.log[failing]
            planted = {corner.stage(), corner.write_and_crash(), corner.temporary()}
        assert planted <= corner.paths(), f"read {failing}, {reads.log[failing]}"
        failing += 1
    assert aborted > 20
    assert not planted & corner.paths()
    corner.assert_alive()


def test_an_abandoned_lease_of_a_newer_version_aborts(corner: Corner) -> None:
    planted = corner.plant()
    path = Path(corner.uri, lease_path(ENTITY))
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 99}))
    with pytest.raises(CleanupAborted, match="newer"):
        clean(corner)
    assert set(planted) <= corner.paths()
    assert Reason.UNCOMMITTED in planted.values()

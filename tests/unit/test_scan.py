from __future__ import annotations

import io
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from driftline.storage.errors import StorageError
from driftline.storage.sources.source import LATEST_NS, open_source
from driftline.tasks.scanning.diff import CHANGE_SCHEMA, MANIFEST_SCHEMA
from driftline.tasks.scanning.path_patterns import Rules
from driftline.tasks.scanning.scan import ReadManifest, ScanResult, ScanSpec, plan_partitions, scan, scan_paths
from driftline.tasks.scanning.walk import Subtree

NOW = 4 * 10**18
"""A time long after every file's mtime, so no file is racy."""

ODD_NAMES = [
    "with space",
    "per%20cent",
    "quote'\"",
    "new\nline",
    "under_score",
    "🙂",
    "é",
    "*?[a]",
    "back\\slash",
    "#x",
]


def spec_of(root: Path, **options: object) -> ScanSpec:
    return ScanSpec(open_source(root), "fp", **options)  # type: ignore[arg-type]


def write(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("x = 1\n")


def nothing(prefixes: Sequence[str]) -> pa.Table:
    return MANIFEST_SCHEMA.empty_table()


def indexed(result: ScanResult) -> ReadManifest:
    """Return the manifest after a run that indexed all files in ``result``."""
    rows = result.diff.new.select(MANIFEST_SCHEMA.names).to_pylist()
    table = pa.Table.from_pylist(
        [row | {"hash": "h", "fingerprint": "fp", "lines": 1} for row in rows], schema=MANIFEST_SCHEMA
    )
    return lambda prefixes: table.filter(
        pa.array([row["path"].startswith(tuple(prefixes)) for row in rows], pa.bool_())
    )


def skipped(result: ScanResult) -> dict[str, str]:
    return dict(zip(result.skipped["path"].to_pylist(), result.skipped["reason"].to_pylist(), strict=True))


def paths(table: pa.Table) -> list[str]:
    found: list[str] = table["path"].to_pylist()
    return found


def test_an_unchanged_tree_has_no_differences(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "b/c.py", "b/d/e.py")
    first = scan(spec_of(tmp_path), nothing, now_ns=NOW)
    assert paths(first.diff.new) == ["a.py", "b/c.py", "b/d/e.py"]
    assert first.diff.new.schema == CHANGE_SCHEMA
    second = scan(spec_of(tmp_path), indexed(first), now_ns=NOW)
    assert (second.diff.unchanged, len(second.diff.candidates), second.listed, second.complete) == (3, 0, 3, True)


def test_times_beyond_a_column_are_stored_as_its_last(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "b.py")
    os.utime(tmp_path / "a.py", (10_413_792_000, 10_413_792_000))  # the year 2300
    first = scan(spec_of(tmp_path), nothing, now_ns=NOW)
    assert paths(first.diff.new) == ["a.py", "b.py"]
    stored = os.stat(tmp_path / "a.py").st_mtime_ns  # some file systems end in 2038
    assert first.diff.new["mtime_ns"].to_pylist()[0] == min(stored, LATEST_NS)


def test_each_kind_of_change_is_seen(tmp_path: Path) -> None:
    write(tmp_path, "same", "changed", "touched", "gone")
    before = indexed(scan(spec_of(tmp_path), nothing, now_ns=NOW))
    (tmp_path / "changed").write_text("longer than before\n")
    os.utime(tmp_path / "touched", ns=(1, 1))
    (tmp_path / "gone").rename(tmp_path / "renamed")
    found = scan(spec_of(tmp_path), before, now_ns=NOW).diff
    assert (paths(found.candidates), paths(found.new), paths(found.deleted), found.unchanged) == (
        ["changed", "touched"],
        ["renamed"],
        ["gone"],
        1,
    )


def test_names_may_hold_anything_that_is_utf8(tmp_path: Path) -> None:
    names = [*ODD_NAMES, *(f"folder {name}/{name}" for name in ODD_NAMES)]
    write(tmp_path, *names)
    result = scan(spec_of(tmp_path), nothing, now_ns=NOW)
    assert paths(result.diff.new) == sorted(names, key=str.encode)
    assert len(result.skipped) == 0
    assert scan_paths(spec_of(tmp_path), names, indexed(result), now_ns=NOW).diff.unchanged == len(names)


def test_names_that_are_not_utf8_are_reported(tmp_path: Path) -> None:
    write(tmp_path, "good.py")
    for name in (b"bad\xff.py", b"bad\xfe\xff/x.py"):
        path = os.path.join(os.fsencode(tmp_path), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(os.fsdecode(path)).write_text("x")
    result = scan(spec_of(tmp_path), nothing, now_ns=NOW)
    assert paths(result.diff.new) == ["good.py"]
    assert skipped(result) == {"bad\\xff.py": "undecodable name", "bad\\xfe\\xff/": "undecodable name"}


def test_links_are_not_followed_and_escaping_or_circular_ones_are_reported(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    write(root, "a/file.py")
    write(outside, "secret.py")
    links: dict[str, str | Path] = {
        "inside_file": "a/file.py",
        "inside_folder": "a",
        "broken": "nowhere",
        "a/loop": "..",
        "self": "self",
        "out_file": outside / "secret.py",
        "out_folder": outside,
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    result = scan(spec_of(root), nothing, now_ns=NOW)
    assert paths(result.diff.new) == ["a/file.py"]
    assert set(skipped(result)) == {"a/loop", "self", "out_file", "out_folder"}


def test_a_source_may_be_a_link_itself(tmp_path: Path) -> None:
    write(tmp_path / "root", "a.py")
    (tmp_path / "link").symlink_to("root")
    result = scan(spec_of(tmp_path / "link"), nothing, now_ns=NOW)
    assert paths(result.diff.new) == ["a.py"]


def test_pipes_and_sockets_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a.py")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        result = scan(spec_of(tmp_path), nothing, now_ns=NOW)
    assert paths(result.diff.new) == ["a.py"]
    assert skipped(result) == {"pipe": "unreadable", "socket": "unreadable"}


def test_large_files_secrets_and_excluded_files_are_reported_and_no_longer_indexed(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "b.py", "c.py", "key.pem")
    before = indexed(scan(spec_of(tmp_path, rules=Rules(skip_secrets=False)), nothing, now_ns=NOW))
    (tmp_path / "b.py").write_text("x" * 101)
    result = scan(spec_of(tmp_path, rules=Rules(exclude=("c.py",)), max_file_bytes=100), before, now_ns=NOW)
    assert skipped(result) == {"b.py": "too large", "c.py": "excluded", "key.pem": "secret"}
    assert paths(result.diff.deleted) == ["b.py", "c.py", "key.pem"]
    assert result.listed == 1


def test_bookkeeping_folders_are_left_out_silently(tmp_path: Path) -> None:
    write(tmp_path, "a.py", ".git/config", "sub/.hg/x", ".driftline/x", "sub/.svn/x")
    result = scan(spec_of(tmp_path), nothing, now_ns=NOW)
    assert (paths(result.diff.new), len(result.skipped)) == (["a.py"], 0)


def test_a_file_that_vanishes_after_it_was_listed_is_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a.py", "b.py")
    from driftline.tasks.scanning.walk import Walk

    keep_files = Walk._keep_files

    def vanish(walk: Walk, level: object) -> object:
        (tmp_path / "b.py").unlink(missing_ok=True)
        return keep_files(walk, level)  # type: ignore[arg-type]

    monkeypatch.setattr(Walk, "_keep_files", vanish)
    result = scan(spec_of(tmp_path), nothing, now_ns=NOW)
    assert (paths(result.diff.new), result.complete) == (["a.py"], True)


@pytest.mark.parametrize("n", [1, 2, 3, 20])
def test_partitions_find_together_what_one_scan_finds(tmp_path: Path, n: int) -> None:
    files = [f"{a}/{b}/{c}.py" for a in "abc" for b in "de" for c in "fg"] + ["top.py", "a/inner.py", "gone/x/y.py"]
    write(tmp_path, *files, "build/ignored.py", ".gitignore", "a/d/ignored/x.py", "a/new.log")
    (tmp_path / ".gitignore").write_text("build/\n*.log\n")
    (tmp_path / "a" / ".gitignore").write_text("ignored/\n")
    whole = scan(spec_of(tmp_path), nothing, now_ns=NOW)
    manifest = indexed(whole)
    shutil.rmtree(tmp_path / "gone")
    parts = plan_partitions(open_source(tmp_path), n)
    assert len(parts) <= n
    # Changes between planning and scanning also belong to a partition.
    write(tmp_path, "fresh/a.py", "a/fresh/b.py", "b/d/fresh/c.py")
    shutil.rmtree(tmp_path / "c")
    results = [scan(spec_of(tmp_path, subtrees=part), manifest, now_ns=NOW) for part in parts]
    once = scan(spec_of(tmp_path), manifest, now_ns=NOW)
    for name in ("new", "deleted", "candidates"):
        together = sorted(path for result in results for path in paths(getattr(result.diff, name)))
        assert together == sorted(paths(getattr(once.diff, name))), name
    assert sum(result.diff.unchanged for result in results) == once.diff.unchanged
    assert sorted(path for result in results for path in skipped(result)) == sorted(skipped(once))


def test_a_plan_splits_a_narrow_tree(tmp_path: Path) -> None:
    write(tmp_path, *(f"only/src/{i}/{j}.py" for i in range(12) for j in range(2)))
    sizes = []
    for part in plan_partitions(open_source(tmp_path), 3):
        result = scan(spec_of(tmp_path, subtrees=part), nothing, now_ns=NOW)
        sizes.append(len(result.diff.new))
    assert sizes == [8, 8, 8]


def test_specs_and_results_cross_processes(tmp_path: Path) -> None:
    write(tmp_path, "a.py")
    spec = pickle.loads(pickle.dumps(spec_of(tmp_path, subtrees=(Subtree("", ("b/",)),))))
    result = pickle.loads(pickle.dumps(scan(spec, nothing, now_ns=NOW)))
    assert paths(result.diff.new) == ["a.py"]


def test_a_missing_root_is_an_error_and_deletes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "root", "a/b.py")
    spec = spec_of(tmp_path / "root")
    before = indexed(scan(spec, nothing, now_ns=NOW))
    shutil.rmtree(tmp_path / "root")
    for subtrees in ((Subtree(),), (Subtree("a/"),)):
        with pytest.raises(StorageError, match="Cannot list the source"):
            scan(ScanSpec(spec.source, "fp", subtrees), before, now_ns=NOW)


def test_unreadable_folders_are_reported_and_their_files_are_not_deleted() -> None:
    """Runs as an ordinary user, since root ignores permissions, and outside tmp_path, which is private."""
    program = textwrap.dedent(
        """
        import os, sys
        sys.path.insert(0, sys.argv[2])
        from pathlib import Path
        import test_scan as t
        root = Path(sys.argv[1])
        before = t.indexed(t.scan(t.spec_of(root), t.nothing, now_ns=t.NOW))
        (root / "gone.py").unlink()
        (root / "closed").chmod(0)
        if os.geteuid() == 0:  # after the imports: another user may not be allowed to read the libraries
            os.setgroups([])
            os.setegid(65534)
            os.seteuid(65534)
        result = t.scan(t.spec_of(root), before, now_ns=t.NOW)
        print(t.paths(result.diff.deleted), t.skipped(result), result.complete, result.diff.unchanged)
        """
    )
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write(root, "a.py", "closed/b.py", "closed/deep/c.py", "gone.py")
        root.chmod(0o755)
        command = [sys.executable, "-c", program, name, str(Path(__file__).parent)]
        try:
            run = subprocess.run(command, capture_output=True, text=True, check=False)
        finally:
            (root / "closed").chmod(0o755)
    assert run.stdout.strip() == "['gone.py'] {'closed/': 'unreadable'} False 1", run.stderr


def test_a_folder_deeper_than_the_longest_path_is_scanned(tmp_path: Path) -> None:
    write(tmp_path, "a.py")
    part = "d" * 250
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir(part, dir_fd=folder)
        inner = os.open(part, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    with open(os.open("x.py", os.O_WRONLY | os.O_CREAT, dir_fd=folder), "w") as file:
        file.write("x")
    os.close(folder)
    deep = "/".join([part] * 20) + "/x.py"
    row = {"path": deep, "size_bytes": 1, "mtime_ns": 1, "etag": "", "hash": "h", "fingerprint": "fp", "racy": False}
    manifest = pa.Table.from_pylist([row, row | {"path": "gone.py"}], schema=MANIFEST_SCHEMA)
    result = scan(spec_of(tmp_path), lambda prefixes: manifest, now_ns=NOW)
    assert (paths(result.diff.new), paths(result.diff.deleted), result.complete) == (["a.py"], ["gone.py"], True)
    assert paths(result.diff.candidates) == [deep]
    assert open_source(tmp_path).read(deep) == b"x"


def test_scanning_single_paths_equals_a_whole_scan(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "b/c.py", "b/d.log", "build/e.py", "b/other.py", ".gitignore", "b/key.pem")
    (tmp_path / ".gitignore").write_text("build/\n*.log\n")
    before = indexed(scan(spec_of(tmp_path), nothing, now_ns=NOW))
    (tmp_path / "a.py").unlink()
    (tmp_path / "b" / "other.py").unlink()
    requested = ["a.py", "b/c.py", "b/d.log", "build/e.py", "never.py", "b/key.pem", "../x", "b"]
    result = scan_paths(spec_of(tmp_path), requested, before, now_ns=NOW)
    assert (paths(result.diff.deleted), result.diff.unchanged) == (["a.py"], 1)
    assert skipped(result) == {"b/d.log": "excluded", "build/": "excluded", "b/key.pem": "secret"}


def rewrite(path: Path) -> None:
    path.write_text("y = 2\n")


def replace(path: Path) -> None:
    (path.parent / "other").write_text("y = 2\n")
    os.utime(path.parent / "other", ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    (path.parent / "other").replace(path)


def swap_folders(path: Path) -> None:
    shutil.copytree(path.parent, path.parent.with_name("swapped"))
    (path.parent.with_name("swapped") / path.name).write_text("y = 2\n")
    shutil.copystat(path, path.parent.with_name("swapped") / path.name)
    path.parent.rename(path.parent.with_name("before"))
    path.parent.with_name("swapped").rename(path.parent)
    shutil.rmtree(path.parent.with_name("before"))


def unpack(path: Path) -> None:
    info = tarfile.TarInfo(path.name)
    info.size, info.mtime = 6, path.stat().st_mtime_ns // 10**9
    with io.BytesIO() as data:
        with tarfile.open(fileobj=data, mode="w") as archive:
            archive.addfile(info, io.BytesIO(b"y = 2\n"))
        data.seek(0)
        path.unlink()
        with tarfile.open(fileobj=data) as archive:
            archive.extractall(path.parent, filter="data")


KINDS_OF_TREE = {
    "plain": (),
    "git": ("add -A", "commit -qm first"),
    "staged": ("add -A",),
    "untracked": ("commit -qm first --allow-empty",),
    "assume unchanged": ("add -A", "commit -qm first", "update-index --assume-unchanged sub/a.py"),
    "skip worktree": ("add -A", "commit -qm first", "update-index --skip-worktree sub/a.py"),
    "without ctime": ("add -A", "commit -qm first", "config core.trustctime false"),
    "minimal": ("add -A", "commit -qm first", "config core.checkStat minimal", "config core.trustctime false"),
}


@pytest.mark.parametrize(
    ("kind", "change", "seconds"),
    [
        *(("plain", change, seconds) for change in (rewrite, replace, swap_folders, unpack) for seconds in (0, 1)),
        *((kind, rewrite, 1_600_000_000) for kind in KINDS_OF_TREE),
        *(("git", change, 1_600_000_000) for change in (replace, swap_folders, unpack)),
        *(("minimal", change, 315_532_800) for change in (replace, unpack)),
    ],
)
def test_new_content_of_the_same_size_and_time_is_read(
    tmp_path: Path, kind: str, change: Callable[[Path], None], seconds: int
) -> None:
    write(tmp_path, "sub/a.py", "sub/b.py")
    for name in ("a.py", "b.py"):
        os.utime(tmp_path / "sub" / name, (seconds, seconds))
    for command in ("init -q", *KINDS_OF_TREE[kind]) if kind != "plain" else ():
        git = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *command.split()]
        subprocess.run(git, cwd=tmp_path, check=True)
    before = indexed(scan(spec_of(tmp_path), nothing, now_ns=NOW))
    same = scan(spec_of(tmp_path), before, now_ns=NOW).diff
    assert (same.unchanged, len(same.candidates)) == (2, 0)
    change(tmp_path / "sub" / "a.py")
    os.utime(tmp_path / "sub" / "a.py", (seconds, seconds))
    found = scan(spec_of(tmp_path), before, now_ns=NOW).diff
    assert "sub/a.py" in paths(found.candidates)
    assert "sub/a.py" in paths(scan_paths(spec_of(tmp_path), ["sub/a.py"], before, now_ns=NOW).diff.candidates)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    write(root, "a.py", "b.py", "sub/c.py", "sub/d.tmp", "sub/private/e.py", "sub/deep/f.py")
    (root / ".gitignore").write_text("*.tmp\n/sub/private/\n")
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run(["git", *identity, *command], cwd=root, check=True)
    return root


def test_a_fresh_clone_is_known_without_reading(repository: Path, tmp_path: Path) -> None:
    first = scan(spec_of(repository), nothing, now_ns=NOW)
    assert all(etag.startswith("git:") for etag in first.diff.new["etag"].to_pylist())
    subprocess.run(["git", "clone", "-q", repository, tmp_path / "clone"], check=True)
    for path in ("a.py", "b.py", ".gitignore", "sub/c.py", "sub/deep/f.py"):
        os.utime(tmp_path / "clone" / path, ns=(10**18, 10**18))
    subprocess.run(["git", "-C", tmp_path / "clone", "update-index", "-q", "--refresh"], check=True)
    found = scan(spec_of(tmp_path / "clone"), indexed(first), now_ns=NOW).diff
    assert (len(found.retouched), len(found.candidates), len(found.new), len(found.deleted)) == (5, 0, 0, 0)


def test_a_part_of_a_work_tree_respects_the_ignore_files_above_it(repository: Path) -> None:
    (repository / ".git" / "info" / "exclude").write_text("deep/\n")
    write(repository, "sub/deep/untracked.py")
    result = scan(spec_of(repository / "sub"), nothing, now_ns=NOW)
    assert paths(result.diff.new) == ["c.py", "deep/f.py"]
    assert skipped(result) == {"d.tmp": "excluded", "private/": "excluded", "deep/untracked.py": "excluded"}
    assert result.diff.new["etag"][0].as_py().startswith("git:")


def test_partitions_of_a_work_tree_have_etags_too(repository: Path) -> None:
    subtrees = (Subtree("sub/", ("sub/deep/",)), Subtree("sub/deep/"))
    result = scan(spec_of(repository, subtrees=subtrees), nothing, now_ns=NOW)
    assert paths(result.diff.new) == ["sub/c.py", "sub/deep/f.py"]
    assert all(result.diff.new["etag"].to_pylist())
    found = scan_paths(spec_of(repository), ["sub/c.py"], nothing, now_ns=NOW)
    assert found.diff.new["etag"].to_pylist() == result.diff.new["etag"].to_pylist()[:1]

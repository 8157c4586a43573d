"""Check a fleet's targets: first syncs of many small repositories, unchanged ones, a push, a long history, a mirror.

    .venv/bin/python tests/benchmarks/fleet.py
    .venv/bin/python tests/benchmarks/fleet.py --repositories 2000 --history 50000 --files 20000  # the full size

``fleet_host.py`` measures the syncs with a host's API; the folder's repositories have no host.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import corpus
import fleet_host
import measure

import driftline
from driftline.storage.documents import DocumentState
from driftline.storage.sources import commit_tree

FILES = 20
CHANGED = 10
"""Number of files that change in the repository with a long history."""
FOLDERS = 100
_LINES = 20


def main() -> int:
    options = measure.begin(__doc__, repositories=400, hosted=2_000, discovered=10_000, history=5_000, files=4_000)
    if options.small:
        options.repositories, options.hosted, options.discovered = 3, 5, 120
        options.history, options.files = 12, 12
    verdict = measure.Verdict(options.small)
    with measure.scratch() as folder:
        measure_first_syncs(folder, options.repositories, verdict)
    with measure.scratch() as folder:
        measure_history(folder, options.history, options.files, verdict)
    with measure.scratch() as folder:
        fleet_host.measure_host(folder, options.hosted, options.discovered, verdict)
    return verdict.exit_code


def measure_first_syncs(folder: Path, count: int, verdict: measure.Verdict) -> None:
    """Compare syncs of ``count`` repositories with an index of the same files, and with an eighth of them."""
    few = max(1, count // 8)
    write_fleet(folder / "few", few)
    eighth = _first_sync(folder / "few", few)
    write_fleet(folder / "all", count)
    tree = folder / "tree"
    for number in range(count):
        for name, data in files_of(number):
            (tree / f"r{number:05}").mkdir(parents=True, exist_ok=True)
            (tree / f"r{number:05}" / name).write_bytes(data)
    single, _ = _run(folder, "index", str(tree), "--workspace", str(folder / "single"))
    first = _first_sync(folder / "all", count)
    unchanged, processes = _counting_processes(folder / "all")
    write_repository(folder / "all" / "fleet" / "r00000.git", files_of(count))
    changed, report = _run(folder / "all", "fleet", "sync")
    if len(report["to_index"]) != 1:
        raise SystemExit(f"{len(report['to_index'])} repositories were indexed instead of one")
    each = 1000 * first.cpu_seconds / count
    print(f"  {count:,} repositories of {FILES} files each, CPU seconds (seconds):")
    print(f"  one folder with the same files: {single.cpu_seconds:.1f} ({single.seconds:.1f})")
    print(
        f"  first sync: {first.cpu_seconds:.1f} ({first.seconds:.1f}), {each:.1f} ms for each repository, "
        f"{first.own_peak / 1e6:,.0f} MB of memory"
    )
    print(f"  first sync of {few:,}: {eighth.cpu_seconds:.1f} ({eighth.seconds:.1f})")
    print(
        f"  unchanged sync: {unchanged.cpu_seconds:.1f} ({unchanged.seconds:.1f}), "
        f"{1000 * unchanged.cpu_seconds / count:.2f} ms for each repository, {processes:,} processes of git"
    )
    print(f"  sync after one push: {changed.cpu_seconds:.1f} ({changed.seconds:.1f})")
    ratio = first.cpu_seconds / single.cpu_seconds
    verdict.at_most(f"first sync of {count:,} repositories, CPU, of the same files as one folder", ratio, 1.5)
    growth = each / (1000 * eighth.cpu_seconds / few)
    verdict.at_most(f"CPU for each of {count:,} repositories, of that for each of {few:,}", growth, 1.1)


def measure_history(folder: Path, commits: int, files: int, verdict: measure.Verdict) -> None:
    """Compare the index of a repository with ``commits`` and ``files`` with its tree; count what an update reads."""
    repository, tree = folder / "long.git", folder / "tree"
    write_history(repository, commits, files)
    subprocess.run(["git", "clone", "-q", str(repository), str(tree)], check=True)
    as_folder, _ = _run(folder, "index", str(tree), "--workspace", str(folder / "as-folder"))
    as_mirror, _ = _run(folder, "index", f"git+file://{repository}", "--workspace", str(folder / "as-mirror"))
    changed = append_commit(repository, files)
    read = Counter[str]()
    with counted_objects(read):
        report = driftline.index(f"git+file://{repository}", workspace=str(folder / "as-mirror"), executor="inline")
    if report.sources[0].states[DocumentState.CHANGED] != CHANGED:
        raise SystemExit(f"{dict(report.sources[0].states)} instead of {CHANGED} changed files")
    print(f"  a repository with {commits:,} commits and {files:,} files, of which {CHANGED} are changed:")
    print(f"  bytes read: {read['blob']:,} of blobs, {read['tree']:,} of trees, {read['commit']:,} of commits")
    print(f"  CPU: {as_mirror.cpu_seconds:.1f} as a repository, {as_folder.cpu_seconds:.1f} as a folder")
    verdict.at_most("bytes of blobs read, of the changed blobs", read["blob"] / changed, 1.2)
    verdict.at_most("index of a mirror, of the same tree as a folder", as_mirror.seconds / as_folder.seconds, 1.15)


def _first_sync(folder: Path, count: int) -> measure.Measured:
    first, report = _run(folder, "fleet", "sync")
    states = [row["state"] for row in report["fleets"][0]["repositories"]]
    if states != ["indexed"] * count:
        raise SystemExit(f"{states.count('indexed')} of {count} repositories were indexed")
    return first


def write_fleet(folder: Path, count: int) -> None:
    """Write a folder of ``count`` repositories, and the configuration of their fleet."""
    for number in range(count):
        write_repository(folder / "fleet" / f"r{number:05}.git", files_of(number))
    head = f'workspace = "index"\nmodel = "{corpus.model()}"\n'
    table = '[[fleet]]\nprovider = "folder"\nname = "bench"\nurl = "fleet"\n'
    (folder / "driftline.toml").write_text(head + table)


def write_history(repository: Path, commits: int, files: int) -> None:
    """Write a bare repository whose first commit adds all ``files``; each later one changes one of them."""
    subprocess.run(["git", "init", "-q", "--bare", "--initial-branch=main", str(repository)], check=True)
    _import(repository, [_commit(range(files), 0), *(_commit([at % files], at) for at in range(1, commits))])


def append_commit(repository: Path, files: int) -> int:
    """Add a commit that changes CHANGED files in different folders, and return their size."""
    numbers = range(0, files, files // CHANGED)[:CHANGED]
    _import(repository, [b"from refs/heads/main^0\n".join(_commit(numbers, -1).split(b"\0"))])
    return sum(len(_text(number, -1)) for number in numbers)


def _commit(numbers: Sequence[int], version: int) -> bytes:
    """Return the ``fast-import`` command of a commit; NUL marks the place of its parent."""
    changes = b"".join(
        b"M 100644 inline d%02d/f%05d.py\ndata %d\n%s\n" % (number % FOLDERS, number, len(text), text)
        for number in numbers
        for text in [_text(number, version)]
    )
    return b"commit refs/heads/main\ncommitter b <b@localhost> %d +0000\ndata 0\n\0%s" % (
        1_600_000_000 + version,
        changes,
    )


def _text(number: int, version: int) -> bytes:
    return "\n".join(f"def value_{line}_of_{number}_{version}(): return {line}" for line in range(_LINES)).encode()


def _import(repository: Path, commits: Sequence[bytes]) -> None:
    data = b"".join(commits).replace(b"\0", b"")
    subprocess.run(["git", "fast-import", "--quiet"], cwd=repository, input=data, check=True)


@contextmanager
def counted_objects(read: Counter[str]) -> Iterator[None]:
    """Add the bytes of objects that this process reads to ``read``, by their kind."""
    original = commit_tree._CatFile._read

    def counting(self: Any, requests: Sequence[str], kind: Any) -> Any:
        found = original(self, requests, kind)
        for each in found:
            read[each.kind.decode() if each is not None else "missing"] += len(each.data) if each is not None else 0
        return found

    commit_tree._CatFile._read = counting  # type: ignore[method-assign]
    try:
        yield
    finally:
        commit_tree._CatFile._read = original  # type: ignore[method-assign]


def files_of(number: int) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a repository; no two repositories share a file."""
    for file in range(FILES):
        lines = (f"def value_{line}_of_{number}_{file}(): return {line}" for line in range(20))
        yield f"file_{file:02}.py", "\n".join(lines).encode()


def write_repository(folder: Path, files: Iterator[tuple[str, bytes]]) -> None:
    """Write a bare repository with one commit, or add a commit to an existing one; git would need five processes."""
    entries = b"".join(b"100644 %s\0%s" % (name.encode(), _object(folder, "blob", data)) for name, data in files)
    person = b"bench <bench@localhost> 1600000000 +0000"
    content = b"tree %s\nauthor %s\ncommitter %s\n\nbench\n" % (
        _object(folder, "tree", entries).hex().encode(), person, person,
    )  # fmt: skip
    commit = _object(folder, "commit", content).hex()
    (folder / "refs" / "heads").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "heads" / "main").write_text(f"{commit}\n")
    (folder / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = true\n")
    (folder / "HEAD").write_text("ref: refs/heads/main\n")


def _object(folder: Path, kind: str, content: bytes) -> bytes:
    """Write a loose object and return its id."""
    data = b"%s %d\0%s" % (kind.encode(), len(content), content)
    digest = hashlib.sha1(data, usedforsecurity=False)
    path = folder / "objects" / digest.hexdigest()[:2] / digest.hexdigest()[2:]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zlib.compress(data, 1))
    return digest.digest()


def _counting_processes(folder: Path) -> tuple[measure.Measured, int]:
    """Return a sync, and the number of git processes that it started."""
    calls, shim = folder / "calls", folder / "bin" / "git"
    shim.parent.mkdir()
    real = subprocess.run(["sh", "-c", "command -v git"], check=True, capture_output=True, text=True).stdout.strip()
    shim.write_text(f'#!/bin/sh\necho >> "{calls}"\nexec "{real}" "$@"\n')
    shim.chmod(0o755)
    calls.touch()
    measured, _ = _run(folder, "fleet", "sync", path=f"{shim.parent}:")
    return measured, len(calls.read_text())


def _run(folder: Path, *arguments: str, path: str = "") -> tuple[measure.Measured, dict[str, Any]]:
    config = ["--config", str(folder / "driftline.toml")] if arguments[0] == "fleet" else ["--model", corpus.model()]
    result = measure.run(
        [*measure.DRIFTLINE, *arguments, *config, "--json"],
        {"PATH": path + os.environ["PATH"], "DRIFTLINE_GIT_CACHE": str(folder / "mirrors")},
    )
    return result, json.loads(result.output)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr}")

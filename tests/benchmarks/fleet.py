"""Measure syncs of a fleet of many small repositories (first, unchanged, after one push), and the same files as one
source.

.venv/bin/python tests/benchmarks/fleet.py .venv/bin/python tests/benchmarks/fleet.py --repositories 2000 # CPU per
repository must stay constant
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import corpus
import measure

FILES = 20


def main() -> int:
    options = measure.begin(__doc__, repositories=400)
    count = 3 if options.small else options.repositories
    with measure.scratch() as folder:
        for number in range(count):
            write_repository(folder / "fleet" / f"r{number:05}.git", files_of(number))
            for name, data in files_of(number):
                target = folder / "tree" / f"r{number:05}" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        head = f'workspace = "index"\nmodel = "{corpus.model()}"\n'
        table = '[[fleet]]\nprovider = "folder"\nname = "bench"\nurl = "fleet"\n'
        (folder / "driftline.toml").write_text(head + table)
        single, _ = _run(folder, "index", str(folder / "tree"), "--workspace", str(folder / "single"))
        first, report = _run(folder, "fleet", "sync")
        states = [row["state"] for row in report["fleets"][0]["repositories"]]
        if states != ["indexed"] * count:
            raise SystemExit(f"{states.count('indexed')} of {count} repositories were indexed")
        unchanged, _ = _run(folder, "fleet", "sync")
        processes = _processes(folder)
        write_repository(folder / "fleet" / "r00001.git", files_of(count))
        changed, report = _run(folder, "fleet", "sync")
        if len(report["to_index"]) != 1:
            raise SystemExit(f"{len(report['to_index'])} repositories were indexed instead of one")
    ratio = first.cpu_seconds / single.cpu_seconds
    print(f"  {count:,} repositories of {FILES} files each, CPU seconds (seconds):")
    print(f"  one folder with the same files: {single.cpu_seconds:.1f} ({single.seconds:.1f})")
    print(
        f"  first sync: {first.cpu_seconds:.1f} ({first.seconds:.1f}), {ratio:.2f} times the folder, "
        f"{1000 * first.cpu_seconds / count:.1f} ms for each repository, {first.own_peak / 1e6:,.0f} MB of memory"
    )
    print(
        f"  unchanged sync: {unchanged.cpu_seconds:.1f} ({unchanged.seconds:.1f}), "
        f"{1000 * unchanged.cpu_seconds / count:.2f} ms for each repository, {processes:,} processes of git"
    )
    print(f"  sync after one push: {changed.cpu_seconds:.1f} ({changed.seconds:.1f})")
    return 0


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


def _processes(folder: Path) -> int:
    """Return the number of git processes that a sync starts."""
    calls, shim = folder / "calls", folder / "bin" / "git"
    shim.parent.mkdir()
    real = subprocess.run(["sh", "-c", "command -v git"], check=True, capture_output=True, text=True).stdout.strip()
    shim.write_text(f'#!/bin/sh\necho >> "{calls}"\nexec "{real}" "$@"\n')
    shim.chmod(0o755)
    calls.touch()
    _run(folder, "fleet", "sync", path=f"{shim.parent}:")
    return len(calls.read_text())


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

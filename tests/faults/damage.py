"""The damage matrix: each kind of workspace file, damaged in each way, and the outcome of each command.

``python -m tests.faults.damage`` prints it as a table; ``make damage`` writes that to ``damage.md``.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from lance.file import LanceFileReader

from driftline.flows.commands.main import main
from driftline.storage.lance.reader_process import ProcessDied, run_in_worker
from driftline.storage.lines import indexes
from driftline.storage.lines.line_table import LineTable
from driftline.tasks.maintenance import search_quality, verification

DOCUMENTS = 8
MEASURED_QUERIES = 3
"""Number of searches with which a compaction measures search quality here; the usual number takes half its time."""
SAMPLED_ROWS = 4
"""Number of lines for which verify queries each index here (for the same reason)."""
WAYS: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda data: None,
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "one bit flipped": lambda data: (
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 0x10]) + data[len(data) // 2 + 1 :]
    ),
    "newer format": lambda data: re.sub(rb'("format_version": ?)\d+', rb"\g<1>99", data, count=1),
}
COLUMN_WAYS: dict[str, Callable[[bytes], bytes]] = {
    "one bit flipped": lambda data: WAYS["one bit flipped"](data) or b"",
    "zeroed": lambda data: bytes(len(data)),
    "cut": lambda data: data[: len(data) // 2],
}
"""Damage to the values of one column. If any are missing, so is the rest of the file."""
COLUMNS = {
    "texts of lines": "text",
    "packs": "pack",
    "grams of packs": "grams",
    "blocks": "block",
    "codes of blocks": "block_code",
}
"""The columns of the largest file of lines that are damaged one by one."""
KINDS = {
    "configuration": "_workspace.json",
    "record of a source": "*/*/source:*/_source.json",
    "lease of a source": "*/_leases/source:*.json",
    "maintenance lease": "*/_leases/maintenance:*.json",
    "run record": "*/_runs/*.json",
    "manifest": "*/*/source:*/_index_delta_*.parquet",
    "memory index": "*/_index_delta_*.parquet",
    "record of the memory catalog": "_catalog.json",
    "memory catalog": "_catalog.sqlite",
    "value of a memory entry": "org:default/????????????????????????????????-*.json",
    "version of the table of lines": "*/_tables/line_*/_versions/*.manifest",
    "lines": "*/_tables/line_*/data/*.lance",
    "deletions": "*/_tables/line_*/_deletions/*",
    "transaction of the table of lines": "*/_tables/line_*/_transactions/*.txn",
    "hint at the newest version": "*/_tables/line_*/_versions/latest_version_hint.json",
    "index of paths": "*/_tables/line_*/_indices/*/page_lookup.lance",
    "paths of the index": "*/_tables/line_*/_indices/*/page_data.lance",
    "index of words": "*/_tables/line_*/_indices/*/part_*_invert.lance",
    "words of the index": "*/_tables/line_*/_indices/*/part_*_tokens.lance",
    "blocks of the index of words": "*/_tables/line_*/_indices/*/part_*_docs.lance",
    "parts of the index of words": "*/_tables/line_*/_indices/*/metadata.lance",
    "index of folders": "*/_tables/line_*/_indices/*/bitmap_page_lookup.lance",
    "vector index": "*/_tables/line_*/_indices/*/auxiliary.idx",
    "partitions of the vector index": "*/_tables/line_*/_indices/*/index.idx",
    "version of the table of memory": "*/_tables/memory_*/_versions/*.manifest",
    "deletions of memory": "*/_tables/memory_*/_deletions/*",
    "vectors of memory": "*/_tables/memory_*/data/*.lance",
    "words of memory": "*/_tables/memory_*/_indices/*/metadata.lance",
    **dict.fromkeys(COLUMNS, "*/_tables/line_*/data/*.lance"),
}
"""File patterns in a workspace; the newest or largest match is damaged."""
COMMANDS = {
    "search": ("search", "needle"),
    "status": ("status",),
    "memory": ("memory", "get", "large"),
    "verify": ("verify",),
    "verify --repair": ("verify", "--repair"),
    "index": ("index",),
    "compact": ("compact",),
    "cleanup": ("cleanup", "--max-age-seconds", "0"),
    "search again": ("search", "needle"),
    "verify again": ("verify",),
}


ABORTED = "aborted"
"""The outcome of a command that reports a native code failure with the exit code for a corrupt file."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome of a command: its exit code, and its error kind or ""."""

    code: int
    kind: str
    output: str

    @property
    def is_clear(self) -> bool:
        """Whether the command succeeded or reported an error with a kind instead of a traceback."""
        return self.code in (0, 1, 2, 3) and self.kind != "unexpected" and "Traceback" not in self.output


def fuzzed(data: bytes, random: Random) -> bytes:
    """Return ``data`` with a change that readers may not detect: flipped bits, other lengths and offsets, a missing
    end.
    """
    changed, size = bytearray(data), len(data)
    if not size:
        return random.randbytes(20)
    near = min(size - 1, int(random.expovariate(1 / 60)))
    location = random.choice([random.randrange(size), size - 1 - near, near])
    way = random.randrange(7)
    if way == 0:
        for _ in range(random.randint(1, 4)):
            changed[random.randrange(size)] ^= 1 << random.randrange(8)
    elif way == 1:
        changed[location : location + 4] = struct.pack("<I", random.choice([0, 2**31 - 1, 2**32 - 1, size, 2 * size]))
    elif way == 2:
        changed[location : location + 8] = struct.pack("<Q", random.choice([0, 2**63 - 1, 2**64 - 1, 2**40, size]))
    elif way == 3:
        del changed[location:]
    elif way == 4:
        changed[location : location + 64] = random.randbytes(len(changed[location : location + 64]))
    elif way == 5:
        changed += random.randbytes(random.randint(1, 100))
    else:
        changed[location] = random.choice([0xFF, 0x80, 0x7F, 0x00])
    return bytes(changed)


def checked_indexes(table: LineTable, seed: str) -> list[tuple[str, str]]:
    """Check the indexes in this process; verify would use another one."""
    indexes.SAMPLE_ROWS = SAMPLED_ROWS
    return list(indexes.check_indexes(table, "damage"))


def _command(arguments: list[str]) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code, output and errors."""
    from tests.faults import damage as this

    search_quality.QUERIES = MEASURED_QUERIES
    verification._checked_indexes = this.checked_indexes
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return code, out.getvalue(), err.getvalue()


@dataclass(frozen=True, slots=True)
class Example:
    """A tree and its workspace, which was indexed twice and holds three memory entries."""

    folder: Path

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @classmethod
    def make(cls, folder: Path) -> Example:
        example = cls(folder)
        example.tree.mkdir(parents=True)
        for number in range(DOCUMENTS):
            lines = (f"file {number} line {line} about topic {(7 * number + line) % 50}\n" for line in range(40))
            (example.tree / f"{number}.txt").write_text("".join(lines))
        example.run("index", example.tree)
        (example.tree / "1.txt").write_text("the needle of the haystack\n")
        example.run("index", example.tree)
        for key, value in (("large", "word " * 20_000), ("small", "a"), ("other", "b")):
            example.run("memory", "put", key, json.dumps(value))
        return example

    def copy(self, folder: Path) -> Example:
        """Return a copy of the workspace over the same tree."""
        shutil.copytree(self.workspace, folder / "workspace")
        (folder / "tree").symlink_to(self.tree)
        return Example(folder)

    def file_of(self, kind: str) -> Path:
        matches = sorted(self.workspace.glob(KINDS[kind]), key=lambda path: (path.suffix == ".manifest", path.name))
        manifests = [path for path in matches if path.suffix == ".manifest"]
        return manifests[0] if manifests else max(matches, key=lambda path: path.stat().st_size)

    def damage(self, kind: str, way: str) -> None:
        path = self.file_of(kind)
        data: bytes | None = path.read_bytes()
        assert data is not None
        if kind in COLUMNS:
            values = values_of(path, COLUMNS[kind])
            damaged = COLUMN_WAYS[way](data[values])
            data = data[: values.start] + damaged + (data[values.stop :] if way != "cut" else b"")
        else:
            data = WAYS[way](data)
        path.unlink()
        if data is not None:
            path.write_bytes(data)

    def fuzz(self, random: Random) -> Path:
        """Change a file of a table and return its path."""
        path = random.choice(sorted(path for path in self.workspace.rglob("_tables/**/*") if path.is_file()))
        path.write_bytes(fuzzed(path.read_bytes(), random))
        return path

    def run(self, *arguments: object) -> Ended:
        """Run a command in another process, because native code may abort."""
        command = [*map(str, arguments), *([str(self.tree.resolve())] if arguments == ("index",) else [])]
        from tests.faults import damage as this  # also if this module is the program

        try:
            code, out, err = run_in_worker(this._command, [*command, "--workspace", str(self.workspace), "--json"])
        except ProcessDied:
            return Ended(2, ABORTED, "")
        try:
            answer = json.loads(out.strip().splitlines()[-1])
        except (ValueError, IndexError):
            answer = {}
        kind = answer.get("error", "findings" if answer.get("findings") else "") if isinstance(answer, dict) else ""
        return Ended(code, kind, out + err)


def values_of(path: Path, column: str) -> slice:
    """Return the bytes of a data file that hold most values of ``column``."""
    metadata: Any = LanceFileReader(str(path)).metadata()
    pages = metadata.columns[metadata.schema.names.index(column)].pages
    largest = max((buffer for page in pages for buffer in page.buffers), key=lambda buffer: buffer.size)
    return slice(largest.position, largest.position + largest.size)


def cells(kind: str) -> Iterator[str]:
    """Yield the ways in which a file of ``kind`` can be damaged."""
    if kind in COLUMNS:
        yield from COLUMN_WAYS
        return
    yield from (way for way in WAYS if way != "newer format" or KINDS[kind].endswith(".json"))


def outcomes(example: Example) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield each kind of file, each kind of damage to it, and the outcomes of the commands."""
    for kind in KINDS:
        for way in cells(kind):
            with tempfile.TemporaryDirectory() as name:
                damaged = example.copy(Path(name))
                damaged.damage(kind, way)
                yield kind, way, tuple(damaged.run(*command).kind or "ok" for command in COMMANDS.values())


def table(found: Iterable[tuple[str, str, tuple[str, ...]]]) -> Iterator[str]:
    """Yield the matrix as Markdown. Files and kinds of damage that have the same outcomes share a row, which lists
    failing commands.
    """
    ways: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for kind, way, ended in found:
        ways.setdefault((ended, kind), []).append(way)
    kinds: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for (ended, kind), each in ways.items():
        kinds.setdefault((ended, ", ".join(each)), []).append(kind)
    yield "| File | Damage | Outcome |"
    yield "|---|---|---|"
    for (ended, damages), files in kinds.items():
        commands: dict[str, list[str]] = {}
        for command, outcome in zip(COMMANDS, ended, strict=True):
            commands.setdefault(outcome, []).append(command)
        commands.pop("ok", None)
        text = "; ".join(f"{', '.join(names)}: `{outcome}`" for outcome, names in commands.items()) or "all `ok`"
        yield f"| {', '.join(files)} | {damages} | {text} |"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as location:
        for row in table(outcomes(Example.make(Path(location, "example")))):
            sys.stdout.write(f"{row}\n")
            sys.stdout.flush()

"""A workspace over a small tree, and every kind of file that a crashed run can leave in it."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from driftline.flows.config.index_request import IndexRequest
from driftline.flows.runs.index import index_sources
from driftline.storage.deltas import manifest as documents
from driftline.storage.deltas.manifest import BatchId, ManifestRow, revision
from driftline.storage.entities import Entity
from driftline.storage.garbage import Reason
from driftline.storage.layout import new_ulid
from driftline.storage.lines.commit_marker import SourceCommit
from driftline.storage.lines.line_table import LineTable
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.indexing.rows import line_rows
from tests.support.oracle import WORDS, assert_in_step, assert_nothing_staged, files_below

ENTITY = Entity.parse("source:tree")
SUPERSEDED = "00dead00"


@dataclass
class Corner:
    """A tree and its workspace, with methods that plant leftovers."""

    tree: Path
    model: Path
    uri: str

    @property
    def workspace(self) -> Workspace:
        return Workspace.open(self.uri)

    @property
    def table(self) -> LineTable:
        return self.workspace.lines(ENTITY)

    def copied(self, uri: str) -> Corner:
        """Return the same tree with a copy of its workspace at ``uri``; the workspace must be local."""
        if "://" not in uri:
            shutil.copytree(self.uri, uri)
            return Corner(self.tree, self.model, uri)
        objects, files = ObjectStore.open(uri), [path for path in Path(self.uri).rglob("*") if path.is_file()]
        with ThreadPoolExecutor(8) as pool:
            names = (path.relative_to(self.uri).as_posix() for path in files)
            list(pool.map(objects.create, names, map(Path.read_bytes, files)))
        return Corner(self.tree, self.model, objects.uri)

    def index(self, **options: object) -> None:
        request = IndexRequest((str(self.tree),), self.uri, entity="source:tree", model=str(self.model), workers=1)
        for name, value in options.items():
            object.__setattr__(request, name, value)
        index_sources(request)

    def assert_alive(self) -> None:
        """Assert that the index holds exactly the tree and is writable."""
        assert_in_step(self.workspace, ENTITY, files_below(self.tree))
        (self.tree / "after.txt").write_text(f"{WORDS[1]}\n")
        self.index()
        assert_in_step(self.workspace, ENTITY, files_below(self.tree))
        (self.tree / "after.txt").unlink()
        self.index()
        assert_nothing_staged(self.workspace)

    def paths(self) -> set[str]:
        return {info.path for info in self.workspace.objects.list(temporary=True)}

    def rows(self, path: str = "extra.txt", count: int = 3) -> pa.Table:
        """Return lines of a document that is not in the tree."""
        dim = self.workspace.config.dim
        assert dim is not None
        return line_rows(
            ENTITY,
            [ManifestRow(path, 1, 1, hash="00")],
            pa.array([0] * count, pa.int32()),
            pa.array(range(count), pa.int32()),
            pa.array(["word1"] * count),
            np.ones((count, dim), np.float16),
        )

    # -- leftovers of crashed runs ---------------------------------------------------------------

    def plant(self) -> dict[str, Reason]:
        """Plant one orphan of each kind that does not depend on age; return ``{path: reason}``."""
        return {
            self.fold_and_crash(): Reason.FOLDED,
            self.stage(): Reason.DEAD_RUN,
            self.write_and_crash(): Reason.UNCOMMITTED,
            self.temporary(): Reason.TEMPORARY,
            self.temporary(""): Reason.TEMPORARY,
        }

    def fold_and_crash(self) -> str:
        """Plant the files of a compaction that published its base but died before it deleted the folded deltas."""
        manifest = self.workspace.manifest(ENTITY)
        name = manifest.log().deltas[0]
        path = f"{manifest.directory}/{name}"
        data = manifest.objects.get(path)
        manifest.compact()
        manifest.objects.create(path, data)
        return path

    def stage(self) -> str:
        """Plant the delta of a run that died between staging and commit."""
        manifest, batch = self.workspace.manifest(ENTITY), BatchId(new_ulid(), 1)
        manifest.stage(batch, self._change())
        return f"{manifest.directory}/_staged_{batch.run_id}_{batch.batch:06}.parquet"

    def commit_and_crash(self) -> str:
        """Plant the delta of a run that died between its commit and its publication."""
        manifest, batch = self.workspace.manifest(ENTITY), BatchId(new_ulid(), 1)
        manifest.stage(batch, self._change())
        token = self.table.commit_marker(ENTITY).token
        self.table.commit([SourceCommit(ENTITY, token, batch)], self.table.write_fragments(self.rows()))
        return f"{manifest.directory}/_staged_{batch.run_id}_{batch.batch:06}.parquet"

    def write_and_crash(self) -> str:
        """Plant a worker's fragment that no commit references."""
        before = self.paths()
        self.table.write_fragments(self.rows())
        (path,) = self.paths() - before
        return path

    def temporary(self, directory: str = ENTITY.directory) -> str:
        name = f".tmp-{'0123456789abcdef' * 2}"
        path = f"{directory}/{name}" if directory else name
        self.workspace.objects.create(path, b"half")
        return path

    def superseded_table(self) -> set[str]:
        """Plant the table of an embedding that is no longer used by any document."""
        before = self.paths()
        self.workspace.lines(ENTITY, SUPERSEDED).create(16)
        return self.paths() - before

    @property
    def next_rev(self) -> int:
        """The next revision of the newest lease holder."""
        return revision(self.table.commit_marker(ENTITY).token, 1_000)

    def _change(self) -> pa.Table:
        fingerprint = self.workspace.config.fingerprint or ""
        rows = documents.to_table([ManifestRow("extra.txt", 1, 1, hash="00", fingerprint=fingerprint, lines=3)])
        return self.workspace.manifest(ENTITY).changes("add", self.next_rev, rows, now=datetime.now(UTC))


def make_corner(root: Path, uri: str, model: Path) -> Corner:
    """Make an indexed tree with a changed and a deleted file, so its table has several versions."""
    tree = root / "tree"
    tree.mkdir(parents=True)
    for number in range(6):
        (tree / f"file{number}.txt").write_text("".join(f"word{number * 60 + i}\n" for i in range(60)))
    corner = Corner(tree, model, uri)
    corner.index()
    (tree / "file1.txt").write_text("word7 word8\n")
    (tree / "file2.txt").unlink()
    corner.index()
    return corner


def make_old(path: str, seconds: float) -> None:
    """Set the mtime of a local file back by ``seconds``."""
    then = os.stat(path).st_mtime - seconds
    os.utime(path, (then, then))

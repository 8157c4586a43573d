"""A tree that changes in every possible way between runs; its index is compared with a plain dictionary."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from driftline.flows.config.index_request import IndexRequest, SourceRequest
from driftline.flows.runs.index import index_sources
from driftline.storage.entities import Entity
from driftline.storage.errors import DriftlineError
from driftline.storage.workspace.workspace import Workspace
from tests.faults.faults import Crash, Faults, Mode, injected
from tests.support.effort import examples
from tests.support.oracle import WORDS, assert_in_step, assert_nothing_staged, rows_of_file
from tests.support.searches import search

ENTITY = Entity.parse("source:tree")
FIRST_NS = 1_500_000_000_000_000_000
PATTERNS = ("*.log", "sub/", "b*", "!keep.log")
BINARY = b"\0\1\2 word1"

paths = st.sampled_from(["a.txt", "b.txt", "keep.log", "c.log", "sub/a.txt", "sub/d d.txt", "sub/deep/%_'é.txt"])
lines = st.sampled_from(WORDS[:60])
texts = st.lists(st.one_of(lines, st.just("--"), st.just("")), max_size=5).map("\n".join)


@dataclass(frozen=True)
class Known:
    """The state of a file at the last index run: its content, and whether it was indexed."""

    data: bytes
    times_ns: tuple[int, int]
    indexed: bool


def is_ignored(path: str, patterns: tuple[str, ...]) -> bool:
    """Return whether git ignores a path under PATTERNS; the last match decides."""
    name = path.rpartition("/")[2]
    if "sub/" in patterns and path.startswith("sub/"):
        return True
    ignored = False
    for pattern in patterns:
        if pattern == "!keep.log" and name == "keep.log":
            ignored = False
        elif pattern in ("*.log", "b*") and fnmatchcase(name, pattern):
            ignored = True
    return ignored


def is_text(data: bytes) -> bool:
    return b"\0" not in data


def times(path: Path) -> tuple[int, int]:
    return path.stat().st_mtime_ns, path.stat().st_ctime_ns


class IndexMachine(RuleBasedStateMachine):
    model: Path

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="driftline-machine-"))
        self.tree = self.folder / "tree"
        self.tree.mkdir()
        self.workspace = str(self.folder / "workspace")
        self.files: dict[str, bytes] = {}
        self.past: dict[str, list[bytes]] = {}
        self.patterns: tuple[str, ...] = ()
        self.known: dict[str, Known] = {}
        self.ticks = 0
        self.unsure = False

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    # -- the tree ----------------------------------------------------------------------------

    def put(self, path: str, data: bytes, *, fresh: bool = False) -> None:
        """Write a file with a unique past mtime or, if ``fresh``, the current time."""
        target = self.tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        if not fresh:
            self.touch_file(path)
        self.files[path] = data
        self.past.setdefault(path, []).append(data)

    def touch_file(self, path: str) -> None:
        self.ticks += 1
        moment = FIRST_NS + self.ticks * 10**9
        os.utime(self.tree / path, ns=(moment, moment))

    def pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.files)))

    @rule(path=paths, text=texts, fresh=st.booleans())
    def write(self, path: str, text: str, fresh: bool) -> None:
        self.put(path, text.encode(), fresh=fresh)

    @rule(data=st.data(), line=lines, fresh=st.booleans())
    @precondition(lambda self: self.files)
    def append(self, data: st.DataObject, line: str, fresh: bool) -> None:
        path = self.pick(data)
        self.put(path, self.files[path] + b"\n" + line.encode(), fresh=fresh)

    @rule(data=st.data(), line=lines)
    @precondition(lambda self: self.files)
    def rewrite_within_the_same_tick_and_size(self, data: st.DataObject, line: str) -> None:
        """Write different content with the same size and the same recent mtime, so only reading detects the change."""
        path = self.pick(data)
        target = self.tree / path
        if len(self.files[path]) == len(line):
            before = target.stat().st_mtime_ns
            self.put(path, line.encode(), fresh=True)
            if before > FIRST_NS + 10**17:  # it was fresh, so the run marked it as racy
                os.utime(target, ns=(before, before))

    @rule(data=st.data())
    @precondition(lambda self: self.files)
    def touch(self, data: st.DataObject) -> None:
        self.touch_file(self.pick(data))

    @rule(data=st.data(), to=paths)
    @precondition(lambda self: self.files)
    def rename(self, data: st.DataObject, to: str) -> None:
        path = self.pick(data)
        if path != to:
            (self.tree / to).parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.tree / path, self.tree / to)
            self.files[to] = self.files.pop(path)

    @rule(data=st.data())
    @precondition(lambda self: self.files)
    def shrink(self, data: st.DataObject) -> None:
        path = self.pick(data)
        self.put(path, self.files[path][: len(self.files[path]) // 2])

    @rule(data=st.data())
    @precondition(lambda self: self.files)
    def empty(self, data: st.DataObject) -> None:
        self.put(self.pick(data), b"")

    @rule(data=st.data())
    @precondition(lambda self: self.files)
    def make_binary(self, data: st.DataObject) -> None:
        self.put(self.pick(data), BINARY)

    @rule(data=st.data())
    @precondition(lambda self: self.files)
    def change_back(self, data: st.DataObject) -> None:
        path = self.pick(data)
        self.put(path, data.draw(st.sampled_from(self.past.get(path, [b"word1"]))))

    @rule(data=st.data())
    @precondition(lambda self: self.files)
    def delete(self, data: st.DataObject) -> None:
        path = self.pick(data)
        (self.tree / path).unlink()
        del self.files[path]

    @rule()
    @precondition(lambda self: any(path.startswith("sub/") for path in self.files))
    def delete_a_directory(self) -> None:
        shutil.rmtree(self.tree / "sub")
        self.files = {path: data for path, data in self.files.items() if not path.startswith("sub/")}

    @rule(patterns=st.lists(st.sampled_from(PATTERNS), max_size=2, unique=True))
    def write_gitignore(self, patterns: list[str]) -> None:
        self.patterns = tuple(patterns)
        (self.tree / ".gitignore").write_text("".join(f"{pattern}\n" for pattern in patterns))

    # -- the index ---------------------------------------------------------------------------

    def visible(self) -> dict[str, bytes]:
        return {path: data for path, data in self.files.items() if not is_ignored(path, self.patterns)}

    def request(self, **options: Any) -> IndexRequest:
        return IndexRequest(
            (SourceRequest(str(self.tree), "source:tree", exclude=(".gitignore",)),), self.workspace,
            model=str(self.model), workers=1, indexes="none", **options,
        )  # fmt: skip

    def expected_counts(self, full: bool) -> dict[str, int]:
        counts = dict.fromkeys(("new", "changed", "touched", "unchanged", "deleted"), 0)
        visible = self.visible()
        for path, data in visible.items():
            known, indexed = self.known.get(path), is_text(data)
            if not indexed:
                counts["deleted"] += bool(known and known.indexed)
            elif known is None or not known.indexed:
                counts["new"] += 1
            elif full or known.data != data:
                counts["changed"] += 1
            elif known.times_ns != times(self.tree / path):
                counts["touched"] += 1
            else:
                counts["unchanged"] += 1
        counts["deleted"] += sum(before.indexed for path, before in self.known.items() if path not in visible)
        return counts

    @rule(full=st.sampled_from([False, False, False, True]))
    def index(self, full: bool) -> None:
        expected = self.expected_counts(full)
        report = index_sources(self.request(full=full)).sources[0].to_dict()
        visible = self.visible()
        texts = {path: data for path, data in visible.items() if is_text(data)}
        if not self.unsure:
            note(f"{report}")
            assert {name: report[name] for name in expected} == expected
        assert report["lines_total"] == sum(len(rows_of_file(path, data)) for path, data in texts.items())
        assert {entry["path"] for entry in report["skipped"] if entry["reason"] == "binary"} == visible.keys() - texts
        self.remember()
        self.unsure = False
        opened = Workspace.open(self.workspace)
        assert_in_step(opened, ENTITY, texts)
        assert_nothing_staged(opened)
        self.assert_found(opened, texts)

    @rule(mode=st.sampled_from(list(Mode)), at=st.integers(1, 14))
    def index_and_be_interrupted(self, mode: Mode, at: int) -> None:
        with injected(Faults(mode, at)):
            try:
                index_sources(self.request())
            except (Crash, DriftlineError) as error:
                note(f"{error!r}")
                self.unsure = True
            else:
                self.remember()
                self.unsure = False

    def remember(self) -> None:
        self.known = {
            path: Known(data, times(self.tree / path), is_text(data)) for path, data in self.visible().items()
        }

    def assert_found(self, workspace: Workspace, texts: dict[str, bytes]) -> None:
        """Assert that a search finds an existing line at its location, and no line that does not exist."""
        where: dict[str, set[tuple[str, int]]] = {}
        for path, data in texts.items():
            for _, number, line in rows_of_file(path, data):
                where.setdefault(line, set()).add((path, number + 1))
        for word in [*sorted(where.keys() & set(WORDS))[:1], WORDS[59]]:
            hits = search(workspace, word, top_k=1, n_lines=0).results
            if word in where:
                assert (hits[0].path, hits[0].line) in where[word]
                assert hits[0].text == word
            else:
                assert not any(hit.text == word for hit in hits)


def test_after_every_run_the_index_matches_the_disk(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    monkeypatch.setattr("driftline.flows.runs.source_run.BATCH_DOCUMENTS", 3)
    monkeypatch.setattr("driftline.flows.runs.source_run.BATCHES_PER_COMMIT", 1)
    IndexMachine.model = model
    IndexMachine.TestCase.settings = settings(
        max_examples=examples(10), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
    )
    IndexMachine.TestCase().runTest()

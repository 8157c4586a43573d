"""A word search finds every word of every document on its line, whatever the line's length, ending and script."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import fsspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import driftline as dl
from driftline.storage.defaults import CUT
from driftline.storage.lines.tokenizer import keywords
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.maintenance.verification import verify
from driftline.tasks.text import MAX_ROW_CHARACTERS, MAX_ROWS_OF_LINE
from tests.support.searches import search

SCRIPTS = (
    "[bcdfg]{5}[xyz]{3}",
    "[а-я]{6}",
    "[ა-ჰ]{16}",
    "[一-龥]{3,6}",
    "[ァ-ン]{4}",
    "[가-깋]{3}",
    "[b-d]{4}[一-龥]{3}",
)
WORD = st.sampled_from(SCRIPTS).flatmap(lambda script: st.from_regex(script, fullmatch=True))
FILLING = st.sampled_from((0, 3, 40, 700, 3_000))
LINE = st.tuples(WORD, FILLING, WORD).map(lambda drawn: f"{drawn[0]} {'lorem, ' * drawn[1]}{drawn[2]}")
ENDS = st.sampled_from(("\n", "\r", "\r\n", "mixed"))
DOCUMENT = st.tuples(st.lists(LINE, min_size=1, max_size=20), ENDS, st.booleans())
ENCODINGS = ("utf-8", "utf-16", "utf-16-le", "utf-8-sig")


def joined(lines: list[str], end: str, ended: bool) -> str:
    ends = ["\n", "\r", "\r\n"] if end == "mixed" else [end]
    text = "".join(line + ends[at % len(ends)] for at, line in enumerate(lines))
    return text if ended else re.sub("[\r\n]+$", "", text)


@settings(max_examples=8, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(documents=st.lists(DOCUMENT, min_size=1, max_size=4), data=st.data())
def test_every_word_of_every_document_is_found_on_its_line(
    documents: list[tuple[list[str], str, bool]],
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_model: Path,
) -> None:
    location = tmp_path_factory.mktemp("words")
    source = location / "source"
    source.mkdir()
    for at, (lines, end, ended) in enumerate(documents):
        encoding = data.draw(st.sampled_from(ENCODINGS))
        (source / f"{at}.txt").write_bytes(joined(lines, end, ended).encode(encoding))
    report = dl.index(str(source), workspace=str(location / "ws"), model=str(tiny_model))
    (ran,) = report.sources
    assert (ran.skipped, ran.truncated) == ([], [])
    workspace = Workspace.open(str(location / "ws"))
    assert verify(workspace, lambda phase: None, "").findings == []
    at = data.draw(st.sampled_from(range(len(documents))))
    number = data.draw(st.sampled_from(range(len(documents[at][0]))))
    line = documents[at][0][number]
    for word in {line.split()[0], line.split()[-1]}:
        found = search(workspace, word, mode="text", top_k=200, n_lines=0).results
        here = [hit for hit in found if (hit.path, hit.line) == (f"{at}.txt", number + 1)]
        assert here, (word, [(hit.path, hit.line) for hit in found])
        assert any(word in hit.text for hit in here) or len(keywords(word)) > 1
        assert all(hit.text.strip(CUT) in line and 1 <= hit.column <= len(line) for hit in here)


def test_shortened_lines_are_reported_by_file(tmp_path: Path, tiny_model: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    most = MAX_ROWS_OF_LINE * MAX_ROW_CHARACTERS
    (source / "bundle.min.js").write_text("a" * (most + 11) + "\nshort\n")
    (source / "plain.txt").write_text("lorem ipsum\n")
    report = dl.index(str(source), workspace=str(tmp_path / "ws"), model=str(tiny_model))
    (ran,) = report.sources
    assert ran.truncated == [("bundle.min.js", 11)]
    assert ran.to_dict()["truncated"] == [{"path": "bundle.min.js", "characters": 11}]
    assert ran.lines_total == MAX_ROWS_OF_LINE + 2


def test_keys_are_not_searchable_under_any_name_and_are_reported(tmp_path: Path, tiny_model: Path) -> None:
    source = tmp_path / "source"
    (source / "i18n").mkdir(parents=True)
    (source / "i18n" / "en.key").write_text("greeting = Hello heron\n")
    (source / "notes.txt").write_text("heron\n-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQ\n")
    report = dl.index(str(source), workspace=str(tmp_path / "ws"), model=str(tiny_model))
    assert report.sources[0].skipped == [("notes.txt", "secret")]
    hits = search(Workspace.open(str(tmp_path / "ws")), "heron", mode="text").results
    assert [hit.path for hit in hits] == ["i18n/en.key"]


def test_compressed_files_are_read_in_buckets_and_on_disks(tmp_path: Path, tiny_model: Path) -> None:
    data = gzip.compress(b"the heron lands\n" * 40)
    fsspec.filesystem("memory").pipe("/compressed/events.jsonl", data)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "events.jsonl.gz").write_bytes(data)
    locations = [("memory://compressed", "events.jsonl"), (str(tmp_path / "source"), "events.jsonl.gz")]
    for number, (uri, path) in enumerate(locations):
        workspace = str(tmp_path / f"ws{number}")
        assert dl.index(uri, workspace=workspace, model=str(tiny_model)).sources[0].skipped == []
        hits = search(Workspace.open(workspace), "heron", mode="text", top_k=1).results
        assert [hit.path for hit in hits] == [path]

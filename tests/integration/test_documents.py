"""Documents from the file to the hit: indexed with their anchors, once, and found by every interface."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import time
import zlib
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import driftline as dl
from driftline.flows.mcp_server.tools import context_text
from driftline.flows.output.plain_text import own_appearance, print_search, show_as
from driftline.flows.runs import source_run
from driftline.storage.documents import DocumentState, SkipReason, content_hash
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.extraction import compression, extractor
from driftline.tasks.extraction.extractor import read_document
from driftline.tasks.indexing import batch
from driftline.tasks.indexing.rows import Donated
from driftline.tasks.search.documents import read_excerpt
from tests.servers.s3_server import S3Server
from tests.support.documents import DOCUMENTS, pdf
from tests.support.searches import search
from tests.support.waiting import until

Driftline = Callable[..., Any]
_CELLS = [
    ("markdown", ["# Herons\n", "\n", "Where they nest."]),
    ("code", ["def count_herons(pond):\n", "    return 1\n"]),
    ("markdown", ["The egret fishes at dawn."]),
]


def notebook(cells: list[tuple[str, list[str]]]) -> bytes:
    listed = [{"cell_type": kind, "source": source, "outputs": [{"text": ["a loud output"]}]} for kind, source in cells]
    return json.dumps({"nbformat": 4, "metadata": {}, "cells": listed}).encode()


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    minute_ago = time.time() - 60
    os.utime(path, (minute_ago, minute_ago))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "docs"
    root.mkdir()
    write(root / "nb.ipynb", notebook(_CELLS))
    write(root / "tern.1.gz", gzip.compress(b".TH TERN 1\nthe tern migrates\n"))
    write(root / "plain.txt", b"an ordinary line\n")
    return root


@pytest.fixture
def workspace(tree: Path, tmp_path: Path, tiny_model: Path) -> Path:
    dl.index(str(tree), workspace=str(tmp_path / "ws"), model=str(tiny_model))
    until(lambda: not again(tree, tmp_path / "ws").bytes_read)  # files this young may change within a tick
    return tmp_path / "ws"


def again(tree: Path, workspace: Path) -> Any:
    """Return the report of another run on the source."""
    (source,) = dl.index(str(tree), workspace=str(workspace)).sources
    return source


def test_a_hit_in_a_notebook_has_its_cell_and_definition(workspace: Path, driftline: Driftline) -> None:
    outcome = driftline("search", "count_herons", "--workspace", workspace, "--top-k", "1", "--json")
    (hit,) = outcome.json["results"]
    assert (hit["path"], hit["line"], hit["anchor"], hit["symbol"]) == ("nb.ipynb", 5, "cell 2", "count_herons")
    assert (hit["freshness"], hit["line_now"]) == ("fresh", 5)
    assert hit["context"][-2:] == ["def count_herons(pond):", "    return 1"]
    printed = driftline("search", "count_herons", "--workspace", workspace, "--top-k", "1").out
    assert printed.startswith("nb.ipynb:cell 2  ")


def test_the_location_of_a_hit_in_a_document_is_its_anchor(tree: Path, tmp_path: Path, tiny_model: Path) -> None:
    write(tree / "birds.pdf", pdf(("the first page",), ("the bittern booms",)))
    dl.index(str(tree), workspace=str(tmp_path / "ws"), model=str(tiny_model))
    opened = dl.open(str(tmp_path / "ws"))
    (hit,) = opened.search("the bittern booms", top_k=1, n_lines=0).results
    assert repr(hit).startswith("<Hit 1. birds.pdf:p2 ")
    (exactly,) = opened.search("", fixed=("bittern",), n_lines=0).results
    for found, expected in (hit, "birds.pdf:p2  "), (exactly, "birds.pdf:p2:the bittern booms"):
        report = {"results": [found.to_dict()], "exact": {"lines": 1, "documents": 1} if found is exactly else None}
        printed = io.StringIO()
        with own_appearance(), redirect_stdout(printed):
            show_as(color="always")
            print_search(report, {found.source: str(tree)})
        assert f"]8;;{(tree / 'birds.pdf').as_uri()}#page=2\x1b" in printed.getvalue()
        assert re.sub(r"\x1b\[[\d;]*m|\x1b\]8;;.*?\x1b\\", "", printed.getvalue()).startswith(expected)


def test_outputs_and_markup_of_a_notebook_are_not_indexed(workspace: Path) -> None:
    assert search(Workspace.open(str(workspace)), "loud output", mode="text").results == ()
    assert search(Workspace.open(str(workspace)), "cell_type", mode="text").results == ()


def test_context_lines_come_from_the_extracted_text(workspace: Path) -> None:
    opened = Workspace.open(str(workspace))
    excerpt = read_excerpt(opened, "nb.ipynb", 5, n_lines=2)
    assert excerpt.lines == ("Where they nest.", "", "def count_herons(pond):", "    return 1", "")
    assert excerpt.current
    (hit,) = search(opened, "tern migrates", mode="text", top_k=1).results
    assert (hit.path, hit.line, hit.anchor, hit.context) == (
        "tern.1.gz",
        2,
        None,
        ("# TERN(1)", "the tern migrates"),
    )


def test_an_unchanged_document_is_not_read_again(tree: Path, workspace: Path) -> None:
    report = again(tree, workspace)
    assert (report.bytes_read, report.lines_embedded, sum(report.states.values())) == (0, 0, 3)


def test_a_new_extractor_version_rereads_only_its_own_documents(
    tree: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = tuple(
        replace(each, version=each.version + 1) if each.name == "notebook" else each for each in extractor.EXTRACTORS
    )
    monkeypatch.setattr(extractor, "EXTRACTORS", newer)
    monkeypatch.setattr(extractor, "READERS", (*compression.COMPRESSIONS, *newer))
    report = again(tree, workspace)
    assert report.bytes_read == (tree / "nb.ipynb").stat().st_size
    assert again(tree, workspace).bytes_read == 0


def test_a_new_extractor_reads_files_that_were_skipped_before(
    tree: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(extractor, "EXTRACTORS", ())
        before.setattr(compression, "COMPRESSIONS", ())
        before.setattr(extractor, "COMPRESSIONS", ())
        before.setattr(extractor, "READERS", ())
        before.setattr(extractor, "BY_SUFFIX", {})
        report = dl.index(str(tree), workspace=str(tmp_path / "ws"), model=str(tiny_model))
        assert report.sources[0].skipped == [("tern.1.gz", "binary")]
    assert again(tree, tmp_path / "ws").skipped == []
    assert [hit.anchor for hit in search(Workspace.open(str(tmp_path / "ws")), "egret", mode="text").results] == [
        "markdown cell 3"
    ]


def test_a_changed_document_does_not_show_its_old_lines(tree: Path, workspace: Path) -> None:
    write(tree / "nb.ipynb", notebook(_CELLS[1:]))
    (hit,) = search(Workspace.open(str(workspace)), "egret fishes", mode="text", top_k=1).results
    assert (hit.freshness, hit.line_now) == (None, None)
    again(tree, workspace)
    (hit,) = search(Workspace.open(str(workspace)), "egret fishes", mode="text", top_k=1).results
    assert (hit.anchor, hit.line, hit.freshness) == ("markdown cell 2", 4, "fresh")


def test_files_that_are_searched_without_an_index_have_anchors_too(tree: Path, driftline: Driftline) -> None:
    outcome = driftline("grep", "egret fishes", tree, "--top-k", "1", "--json")
    (hit,) = outcome.json["results"]
    assert (Path(hit["path"]).name, hit["line"], hit["anchor"]) == ("nb.ipynb", 8, "markdown cell 3")


def test_documents_whose_donor_lost_its_lines_are_checked_like_others(
    tree: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "id_rsa.txt": b"-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----\n",
        "large.txt": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n",
        "scan.pdf": pdf(()),
        "swan.txt": b"the swan hisses\n",
    }
    for name, data in files.items():
        write(tree / name, data)
    (tree / "plain.txt").write_bytes(files["id_rsa.txt"])
    contents = {**files, "plain.txt": files["id_rsa.txt"]}
    marks = {path: read_document(path, data).mark for path, data in contents.items()}
    lost = {path: (Donated(content_hash(data), 99, None, marks[path]),) for path, data in contents.items()}
    monkeypatch.setattr(source_run, "find_donations", lambda *_: lost)
    source = again(tree, workspace)
    assert sorted(source.skipped) == [
        ("id_rsa.txt", SkipReason.SECRET), ("large.txt", SkipReason.LFS), ("plain.txt", SkipReason.SECRET),
        ("scan.pdf", SkipReason.NO_TEXT),
    ]  # fmt: skip
    assert (source.states[DocumentState.NEW], source.states[DocumentState.DELETED]) == (1, 1)
    found = search(Workspace.open(str(workspace)), "swan hisses", mode="text").results
    assert [hit.path for hit in found if hit.path in contents] == ["swan.txt"]


@pytest.fixture
def large(tmp_path: Path) -> Path:
    root = tmp_path / "large"
    root.mkdir()
    write(root / "run.log", b"".join(b"the run number %d went well\n" % number for number in range(3_000)))
    write(root / "notes.txt", b"an ordinary line\n" * 3_000)
    write(root / "a.txt", b"an ordinary line\n" * 2_000)
    return root


def test_logs_and_documents_have_a_limit_of_their_own(large: Path, tmp_path: Path, driftline: Driftline) -> None:
    at = ("--workspace", tmp_path / "ws", "--max-file-bytes", 1_000)
    (source,) = driftline("index", large, *at, "--json").json["sources"]
    named = [{"path": "notes.txt", "bytes": 51_000}, {"path": "a.txt", "bytes": 34_000}]
    assert (source["too_large"], source["documents_total"]) == (named, 1)
    printed = driftline("index", large, *at)
    assert "too large: notes.txt (0.0 MiB), a.txt (0.0 MiB); --max-file-bytes 51000 accepts them" in printed.out
    write(large / "a.pdf", pdf(("a " * 600,)))
    size = (large / "a.pdf").stat().st_size
    printed = driftline("index", large, *at, "--max-document-bytes", 1_000)
    assert f"too large: a.pdf (0.0 MiB); --max-document-bytes {size} accepts them" in printed.out
    assert "too large: notes.txt (0.0 MiB), a.txt (0.0 MiB); --max-file-bytes 51000 accepts them" in printed.out


@pytest.mark.parametrize("location", ["folder", "bucket"])
def test_a_larger_log_is_indexed_at_its_beginning_and_end(
    location: str, large: Path, tmp_path: Path, tiny_model: Path, driftline: Driftline, request: pytest.FixtureRequest
) -> None:
    uri, log = str(large), large / "run.log"
    if location == "bucket":
        uri, server = request.getfixturevalue("s3_bucket"), request.getfixturevalue("s3_environment")
        key = f"{uri.removeprefix(f's3://{server.bucket}/')}/run.log"
        server.client().put_object(Bucket=server.bucket, Key=key, Body=log.read_bytes())
    at = ("--workspace", tmp_path / "ws")
    limits = ("--max-file-bytes", "0", "--max-document-bytes")
    first = driftline("index", uri, *at, "--model", tiny_model, *limits, 2_000, "--json")
    assert first.code == 0, first
    (source,) = first.json["sources"]
    assert (source["partially_indexed"], source["documents_total"]) == (
        [{"path": "run.log", "bytes": log.stat().st_size}],
        1,
    )
    found = dl.open(str(tmp_path / "ws")).search("x", fixed=("the run number",), top_k=1_000, n_lines=0).results
    assert {(hit.line, hit.text) for hit in found} == {
        (number + 1, f"the run number {number} went well") for number in (*range(36), *range(2_967, 3_000))
    }

    def again(most: int) -> dict[str, Any]:
        report = driftline("index", uri, *at, *limits, most, "--json").json["sources"][0]
        return {name: report[name] for name in ("bytes_read", "changed", "lines_total")}

    until(lambda: not again(2_000)["bytes_read"])  # a file this young may change within a tick
    printed = driftline("index", uri, *at, *limits, 2_000).out
    size = log.stat().st_size
    assert f"first and last lines only: run.log (0.1 MiB); --max-document-bytes {size} takes all lines" in printed
    assert again(size) == {"bytes_read": size, "changed": 1, "lines_total": 3_000}


@pytest.mark.parametrize("piece", [500, 2**20], ids=["pieces", "whole"])
def test_an_exact_search_says_that_it_lacks_the_middle_of_a_large_file(
    large: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(batch, "MAX_PIECE_CHARACTERS", piece)
    write(large / "whole.md", b"the run number 1 went well\n\n")
    at = str(tmp_path / "ws")
    dl.index(str(large), workspace=at, model=str(tiny_model), max_file_bytes=1_000, max_document_bytes=2_000)
    workspace = dl.open(str(tmp_path / "ws"))

    def counts(**asked: Any) -> tuple[int, bool, str | None, int]:
        exact = workspace.search("", count=True, **asked).exact
        assert exact is not None
        return exact.lines, exact.complete, exact.reason, exact.partial

    assert counts(fixed=["number 1500 "]) == (0, False, "partial", 1)
    assert counts(fixed=["the run number"]) == (70, False, "partial", 1)
    assert counts(regex=["^$"]) == (1, False, "partial", 1)
    assert counts(regex=["^$"], globs=["*.md"]) == (1, True, None, 0)
    assert counts(regex=[r"not indexed|\^\.\.\."]) == (0, False, "partial", 1)
    assert counts(regex=[r"\n\n\n"], multiline=True)[0] == 0
    found = workspace.search("", fixed=["number 35 "], n_lines=2)
    assert found.results[0].context[-2:] == ("… not indexed …",) * 2
    (note,) = found.notes
    assert "first and last lines of 1 large document are" in note
    assert workspace.search("", fixed=["number 2967 "], n_lines=1).results[0].context[0] == "… not indexed …"
    assert workspace.search("", fixed=["nowhere"]).notes[0] == "No line matches the exact terms."


def test_a_large_file_of_records_must_be_plain_text(large: Path, tmp_path: Path, tiny_model: Path) -> None:
    for path in large.iterdir():
        path.unlink()
    lines = "\n".join(f"line {number}" for number in range(1_000))
    write(large / "wide.log", lines.encode("utf-16"))
    write(large / "long.csv", lines.replace("\n", ",").encode())
    write(large / "packed.log", gzip.compress(bytes(range(256)) * 200, 0))
    (source,) = dl.index(
        str(large), workspace=str(tmp_path / "ws"), model=str(tiny_model), max_file_bytes=0, max_document_bytes=2_000
    ).sources
    assert {*source.skipped} == {(name, SkipReason.TOO_LARGE) for name in ("wide.log", "long.csv", "packed.log")}


def test_a_large_file_is_embedded_in_pieces(
    large: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, driftline: Driftline
) -> None:
    monkeypatch.setattr(batch, "MAX_PIECE_CHARACTERS", 5_000)
    (source,) = dl.index(str(large), workspace=str(tmp_path / "ws"), model=str(tiny_model)).sources
    assert (source.lines_embedded, source.lines_total) == (8_000, 8_000)
    (hit,) = search(Workspace.open(str(tmp_path / "ws")), "run number 2345", mode="text", top_k=1, n_lines=1).results
    assert (hit.path, hit.line, hit.freshness) == ("run.log", 2_346, "fresh")
    verified = driftline("verify", "--workspace", tmp_path / "ws", "--json").json
    assert (verified["lines"], verified["findings"]) == (8_000, [])


def test_the_report_counts_what_the_extra_would_read(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, driftline: Driftline
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("a.html", "a.pdf", "a.docx"):
        write(tree / name, DOCUMENTS[name])
    at = (tree, "--workspace", tmp_path / "ws", "--model", tiny_model)
    with monkeypatch.context() as without:
        without.setattr(extractor, "_is_installed", lambda module: False)
        (source,) = driftline("index", *at, "--json").json["sources"]
        assert (source["missing_extra"], source["documents_total"]) == (2, 2)
        assert source["skipped"] == [{"path": "a.pdf", "reason": "needs driftline[documents]"}]
        assert "documents: 2 files require the extra 'documents'. Run: " in driftline("index", *at).out
    (source,) = driftline("index", *at, "--json").json["sources"]
    assert (source["missing_extra"], source["documents_total"], source["skipped"]) == (0, 3, [])
    assert source["bytes_read"] == len(DOCUMENTS["a.html"]) + len(DOCUMENTS["a.pdf"])


LOCATIONS = [
    ("curlew", ("a.html", "#top")),
    ("crane dances", ("a.pdf", "p. 2")),
    ("gannet", ("a.docx", None)),
    ("razorbill", ("a.pptx", "slide 2")),
    ("petrel", ("a.xlsx", "Birds!B3")),
    ("skua", ("a.odt", None)),
    ("buzzard", ("a.epub", "two.xhtml")),
    ("grebe", ("a.eml", None)),
    ("crake", ("a.mbox", "message 2")),
    ("snipe", ("a.rtf", None)),
    ("bittern", ("a.srt", "00:00:01")),
    ("dipper", ("a.vtt", "00:00:01")),
]
"""A word in a document of each format, and the word's location."""


@pytest.mark.parametrize(("query", "location"), LOCATIONS)
def test_a_word_of_each_format_is_found_with_its_anchor(
    all_formats: Path, query: str, location: tuple[str, str | None]
) -> None:
    hits = search(Workspace.open(str(all_formats)), query, mode="text", top_k=1).results
    assert [(hit.path, hit.anchor, hit.freshness) for hit in hits] == [(*location, "fresh")]


def test_documents_in_a_bucket_are_read_like_those_of_a_folder(
    s3_environment: S3Server, s3_bucket: str, tmp_path: Path, tiny_model: Path, driftline: Driftline
) -> None:
    client, folder = s3_environment.client(), s3_bucket.removeprefix(f"s3://{s3_environment.bucket}/")
    for name, data in DOCUMENTS.items():
        client.put_object(Bucket=s3_environment.bucket, Key=f"{folder}/{name}", Body=data)
    encoded = {"Body": gzip.compress(b"the dotterel is tame\n"), "ContentEncoding": "gzip"}
    client.put_object(Bucket=s3_environment.bucket, Key=f"{folder}/page.txt", **encoded)
    at = ("--workspace", tmp_path / "ws")
    (source,) = driftline("index", s3_bucket, *at, "--model", tiny_model, "--json").json["sources"]
    assert (source["skipped"], source["documents_total"]) == ([], len(DOCUMENTS) + 1)
    opened = Workspace.open(str(tmp_path / "ws"))
    for query, location in [*LOCATIONS, ("dotterel", ("page.txt", None))]:
        (hit,) = search(opened, query, mode="text", top_k=1).results
        assert (hit.path, hit.anchor) == location
    (source,) = driftline("index", s3_bucket, *at, "--json").json["sources"]
    assert source["bytes_read"] == 0


def test_objects_are_read_without_their_content_encoding(
    s3_environment: S3Server, s3_bucket: str, tmp_path: Path, tiny_model: Path, driftline: Driftline
) -> None:
    client, folder = s3_environment.client(), s3_bucket.removeprefix(f"s3://{s3_environment.bucket}/")

    def brotli(data: bytes) -> bytes:
        return bytes(pa.compress(data, codec="brotli", asbytes=True))

    def raw(data: bytes) -> bytes:
        unframed = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        return unframed.compress(data) + unframed.flush()

    def unchanged(data: bytes) -> bytes:
        return data

    def chunked(data: bytes) -> bytes:
        return b"".join(b"%x;chunk-signature=%s\r\n%s\r\n" % (len(each), b"a" * 64, each) for each in (data, b""))

    ways: dict[str, tuple[str, tuple[Callable[[bytes], bytes], ...]]] = {
        "brotli.html": ("br", (brotli,)),
        "deflate.js": ("deflate", (zlib.compress,)),
        "raw.js": ("deflate", (raw,)),
        "zstd.json": ("zstd", (partial(pa.compress, codec="zstd", asbytes=True),)),
        "twice.txt": ("gzip, gzip", (gzip.compress, gzip.compress)),
        "both.txt": ("gzip, br", (gzip.compress, brotli)),
        "chunks.txt": ("aws-chunked", (chunked,)),
        "plain.txt": ("aws-chunked", (unchanged,)),
        "framed.css": ("aws-chunked,gzip", (gzip.compress, chunked)),
        "liar.txt": ("gzip", (unchanged,)),
    }
    for name, (encoding, steps) in ways.items():
        body = f"<p>the dotterel {name.partition('.')[0]}\n".encode()
        for step in steps:
            body = step(body)
        client.put_object(Bucket=s3_environment.bucket, Key=f"{folder}/{name}", Body=body, ContentEncoding=encoding)
    for name, encoding in {"unknown.txt": "compress", "wrong.txt": "br", "unknown.tar": "compress"}.items():
        key = {"Key": f"{folder}/{name}", "ContentEncoding": encoding}
        client.put_object(Bucket=s3_environment.bucket, Body=b"\x1f\x9d\x90\0\xff" * 9, **key)
    at = ("--workspace", tmp_path / "ws")
    (source,) = driftline("index", s3_bucket, *at, "--model", tiny_model, "--archives", "--json").json["sources"]
    reason = SkipReason.CONTENT_ENCODING.value
    assert {(each["path"], each["reason"]) for each in source["skipped"]} == {
        ("unknown.tar", reason),
        ("unknown.txt", reason),
        ("wrong.txt", reason),
    }
    opened = Workspace.open(str(tmp_path / "ws"))
    for name in ways:
        (hit,) = search(opened, name.partition(".")[0], mode="text", top_k=1, n_lines=2).results
        assert (hit.path, hit.freshness in (None, "fresh")) == (name, True)
    (source,) = driftline("index", s3_bucket, *at, "--json").json["sources"]
    assert (source["bytes_read"], source["unchanged"]) == (0, len(ways))


@pytest.fixture(scope="module")
def all_formats(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    root = tmp_path_factory.mktemp("formats")
    (root / "tree").mkdir()
    for name, data in DOCUMENTS.items():
        write(root / "tree" / name, data)
    report = dl.index(str(root / "tree"), workspace=str(root / "ws"), model=str(tiny_model))
    assert report.sources[0].skipped == []
    return root / "ws"


def test_a_hit_says_what_opens_its_location_in_a_viewer(tree: Path, tmp_path: Path, tiny_model: Path) -> None:
    write(tree / "birds.pdf", pdf(("the first page",), ("the bittern booms",)))
    write(tree / "birds.html", b"<!doctype html><html><h1>Birds</h1><p id='a b'>the crane dances</p></html>")
    dl.index(str(tree), workspace=str(tmp_path / "ws"), model=str(tiny_model))
    opened = dl.open(str(tmp_path / "ws"))
    (of_pdf, *_), (of_html, *_) = (opened.search(f"the {bird}").results for bird in ("bittern booms", "crane dances"))
    assert (of_pdf.path, of_pdf.anchor, of_pdf.fragment) == ("birds.pdf", "p. 2", "page=2")
    assert (of_html.path, of_html.anchor, of_html.fragment) == ("birds.html", "#a b", "a%20b")
    excerpt = read_excerpt(Workspace.open(str(tmp_path / "ws")), "birds.pdf", of_pdf.line, n_lines=9)
    assert excerpt.anchors == ((1, "p. 1"), (of_pdf.line, "p. 2"))
    assert read_excerpt(Workspace.open(str(tmp_path / "ws")), "plain.txt", 1, n_lines=9).anchors == ()
    shown = context_text(excerpt, of_pdf.line)
    assert "[p. 1]\n1: the first page\n[p. 2]\n2: the bittern booms" in shown
    assert "[p. 2]\n2: the bittern booms" in context_text(excerpt, of_pdf.line, max_tokens=60)
    long = replace(excerpt, start_line=1, lines=("word " * 5,) * 40, anchors=((1, "p. 1"), (35, "p. 2")))
    cut = context_text(long, 20, max_tokens=100)
    assert "[p. 1]\n" in cut
    assert "\n1: word" not in cut
    assert "[p. 2]" not in cut
    (exactly,) = opened.search("x", fixed=("the bittern",)).results
    (unindexed,) = dl.grep("the bittern booms", str(tree / "birds.pdf"), model=str(tiny_model), top_k=1).results
    assert exactly.fragment == unindexed.fragment == "page=2"
    (code, *_) = opened.search("def count_herons").results
    assert (code.anchor, code.fragment) == ("cell 2", None)

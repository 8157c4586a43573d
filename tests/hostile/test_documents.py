"""Broken and malicious documents: each yields text or a skip reason, and only its own process may die."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import driftline as dl
from driftline.storage.documents import SkipReason
from driftline.storage.helper_process import HelperProcess
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.extraction import compression, office, process, xml_parts
from driftline.tasks.extraction.extractor import Extracted, is_extracted, read_document
from driftline.tasks.extraction.process import Refused, extract_apart
from tests.support.documents import DOCUMENTS, ENCRYPTED_PDF, archive, docx, opendocument, paragraph, pdf, xlsx
from tests.support.fuzzing import CANARY, fuzz
from tests.support.searches import search
from tests.support.waiting import until

MUTATIONS = 12
"""Number of mutations per kind and format."""
REASONS = {
    SkipReason.BINARY, SkipReason.BOMB, SkipReason.DAMAGED, SkipReason.ENCRYPTED, SkipReason.NO_TEXT,
    SkipReason.UNDECODABLE,
}  # fmt: skip


def broken(data: bytes, chance: random.Random) -> Iterator[bytes]:
    """Yield variants of a document: truncated, with changed, removed and repeated bytes, and with other numbers."""
    for _ in range(MUTATIONS):
        at = chance.randrange(1, len(data))
        yield data[:at]
        changed = bytearray(data)
        for _ in range(chance.randrange(1, 9)):
            changed[chance.randrange(len(data))] = chance.randrange(256)
        yield bytes(changed)
        length = chance.randrange(1, 64)
        yield data[:at] + data[at + length :]
        yield data[:at] + data[at : at + length] * chance.randrange(2, 50) + data[at + length :]
        yield data[:at] + (2**31 - 1).to_bytes(4, "little") + data[at + 4 :]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_broken_document_has_text_or_a_reason(name: str) -> None:
    for variant in broken(DOCUMENTS[name], random.Random(name)):
        reading = read_document(name, variant)
        assert reading.reason is None or reading.reason in REASONS, variant
        reading.extracted.text.encode()


def test_a_sample_of_broken_files_neither_ends_a_run_nor_leaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    outcome = fuzz(100, 3, tmp_path)  # `make soak` reads 5,000
    assert (outcome.files, outcome.leaks) == (100, [])
    assert outcome.ends["text"] > 10
    assert outcome.ends["members"] > 10


DEEP = "<a>" * 100_000
ENTITIES = (
    '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {chr(98 + at)} "{f"&{chr(97 + at)};" * 10}">' for at in range(12))
    + "]><x>&m;</x>"
)
OUTSIDE = '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><x>&a;</x>'
LOOP = pdf(("a",)).replace(b"/Kids [5 0 R]", b"/Kids [2 0 R]")


ATTACKS: dict[str, tuple[bytes, SkipReason]] = {
    "entities.docx": (archive({"word/document.xml": ENTITIES}), SkipReason.DAMAGED),
    "outside.docx": (archive({"word/document.xml": OUTSIDE}), SkipReason.DAMAGED),
    "deep.docx": (archive({"word/document.xml": DEEP}), SkipReason.BOMB),
    "missing.docx": (archive({"word/document.xml.rels": "word/document.xml"}), SkipReason.DAMAGED),
    "locked.docx": (b"\xd0\xcf\x11\xe0" + "EncryptedPackage".encode("utf-16-le"), SkipReason.ENCRYPTED),
    "locked.pdf": (ENCRYPTED_PDF, SkipReason.ENCRYPTED),
    "locked.odt": (opendocument("text", "", "<m><encryption-data/></m>"), SkipReason.ENCRYPTED),
    "scan.pdf": (pdf(()), SkipReason.NO_TEXT),
    "empty.docx": (docx(paragraph("--")), SkipReason.NO_TEXT),
    "deep.ipynb": (b'{"nbformat": 4, "cells": ' + b"[" * 100_000, SkipReason.DAMAGED),
    "deep.rtf": (b"{\\rtf1 " + b"{" * 100_000 + b"a", SkipReason.BOMB),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_with_its_reason(name: str) -> None:
    data, reason = ATTACKS[name]
    assert read_document(name, data).reason is reason


def test_a_page_tree_in_a_circle_ends() -> None:
    assert read_document("loop.pdf", LOOP).reason in REASONS


def test_a_sheet_that_claims_a_billion_rows_has_only_its_real_rows() -> None:
    cell = '<table:table-cell table:number-columns-repeated="1000000000"><text:p>a</text:p></table:table-cell>'
    row = f'<table:table-row table:number-rows-repeated="1000000000">{cell}</table:table-row>'
    body = f'<table:table table:name="S">{row * 2}</table:table>'
    assert read_document("a.ods", opendocument("spreadsheet", body)).extracted.text == "a\na\n"
    far = '<row r="999999999"><c r="XFD999999999" t="s"><v>999999999</v></c><c r="B1"><v>7</v></c></row>'
    assert read_document("a.xlsx", xlsx(far)).extracted.text == "7\n"


def test_members_of_a_compressed_file_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = random.Random(0).randbytes(50_000).hex().encode()
    for suffix, pack in (("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)):
        data = pack(noise) + pack(b"") + (b"" if suffix == "bz2" else bytes(70_000)) + pack(b"end")
        assert read_document(f"a.{suffix}", data).extracted.text.encode() == noise + b"end", suffix
        assert read_document(f"a.{suffix}", data[:-4]).reason is SkipReason.DAMAGED, suffix
        assert read_document(f"a.{suffix}", pack(noise)[:-9] + bytes(9)).reason is SkipReason.DAMAGED, suffix
        assert read_document(f"a.{suffix}", pack(b"a") + b"no member of it").extracted.text == "a", suffix
    monkeypatch.setattr(compression, "MAX_UNPACKED_BYTES", len(noise))
    assert read_document("a.gz", gzip.compress(noise)).reason is None
    assert read_document("a.gz", gzip.compress(noise) + gzip.compress(b"a")).reason is SkipReason.BOMB


@pytest.mark.parametrize(("codec", "suffix"), [("zstd", "zst"), ("lz4", "lz4")])
def test_frames_are_joined_bounded_and_checked(codec: str, suffix: str) -> None:
    pack = partial(pa.Codec(codec).compress, asbytes=True)
    noise = random.Random(0).randbytes(50_000).hex().encode()
    data = pack(noise) + pack(b"") * 1_000 + pack(b"end")
    assert read_document(f"a.{suffix}", data).extracted.text.encode() == noise + b"end"
    assert read_document(f"a.{suffix}", pack(bytes(compression.MAX_UNPACKED_BYTES + 1))).reason is SkipReason.BOMB
    for at in range(4, 400, 7):  # a wrong length or window also ends with a reason
        lie = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
        assert read_document(f"a.{suffix}", lie).reason in {None, *REASONS}
    assert read_document(f"a.{suffix}", data[:-4]).reason is SkipReason.DAMAGED
    assert read_document(f"a.{suffix}", pack(b"") * (compression.MAX_MEMBERS + 1)).reason is SkipReason.BOMB


def test_a_compressed_file_of_too_many_members_is_refused() -> None:
    most = compression.MAX_MEMBERS
    assert read_document("a.gz", gzip.compress(b"a") + gzip.compress(b"") * (most - 1)).extracted.text == "a"
    assert read_document("a.gz", gzip.compress(b"a") + gzip.compress(b"") * 20 * most).reason is SkipReason.BOMB


def test_deep_markup_is_read_or_refused() -> None:
    assert read_document("a.html", b"<html>" + b"<div>" * 50_000 + b"a").reason in (None, *REASONS)


MAKEFILE = b"all: build\r\n" + b"\tcc -c x.c\r\n" * 600 + b"\r\n# end\r\n"
ALMOST = {
    "Makefile": MAKEFILE,
    "a.eml": MAKEFILE,
    "header": b"a: " + b"x " * 4_000,
    "headers": b"a:\r\n" * 1_600,
    "folded": b"a:\n" + b" a:\n" * 2_000 + b"a",
    "box": b"From a " + b"00:00" * 200 + b"\n:",
    "times": b" " * 200 + b"1" * 200,
    "blank.html": b"<p>" + b" " * 8_000 + b"{%",
}
"""Document starts that would make an ambiguous regular expression backtrack."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ALMOST)
def test_files_that_resemble_documents_are_text(name: str) -> None:
    assert not is_extracted(name, ALMOST[name])


def test_decompression_bombs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xml_parts, "MAX_PARTS_BYTES", 100_000)
    monkeypatch.setattr(xml_parts.Archive.__init__, "__defaults__", (100_000, frozenset()))
    with pytest.raises(Refused, match="unpacks"):
        office.docx(docx(paragraph("a" * 200_000)))


# -- the process ---------------------------------------------------------------------------------

READERS = """
import os, socket, subprocess
from driftline.tasks.extraction import process
class Answer:
    def __init__(self, **said): self.said = said
    def to_dict(self): return self.said
def spin(data):
    while True: pass
def hog(data):
    kept = []
    while True: kept.append(bytearray(2**24))
def die(data): os.abort()
def leave(data): os._exit(0)
def connect(data): socket.create_connection(("127.0.0.1", int(data)))
def write(data): open(data.decode(), "w").write("x")
def append(data): os.open(data.decode(), os.O_CREAT | os.O_WRONLY)
def start(data): subprocess.run(["true"])
def variables(data): return Answer(text=repr(sorted(os.environ)), anchors=[], parts=[], headings=None)
def lie(data): return Answer(text="a\\n", anchors=[["x", 0, 10**12]], parts=[], headings=None)
def lie_of_headings(data): return Answer(text="a\\n", anchors=[], parts=[], headings=[[1, 10**12]])
def half(data): return Answer(text="a\\ud800\\n", anchors=[["x\\ny", 0, 0]], parts=[], headings=None)
def reason(data): return Answer(reason="\\x1b]0;")
def odd(data): return Answer(reason=["a"])
def echo(data): return Answer(text=data.decode(), anchors=[], parts=[], headings=None)
asked = []
def once(data):
    asked.append(data)
    return echo(data) if len(asked) == 1 else os._exit(0)
def deep(data):
    process.json.dumps = lambda said: "[" * 200_000
def list(data):
    process.json.dumps = lambda said: "[]"
def bug(data):
    raise KeyError(data.decode())
"""


@pytest.fixture
def readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module of bad extractors that new reader processes can import; each process is limited to one CPU second."""
    (tmp_path / "bad_readers.py").write_text(READERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(process, "CPU_SECONDS", 1)
    monkeypatch.setattr(process, "MEMORY_BYTES", 2**28)
    process._pool.cache_clear()
    yield
    process._pool().end()
    process._pool.cache_clear()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("spin", SkipReason.SLOW),
        ("hog", SkipReason.BOMB),
        ("die", SkipReason.DAMAGED),
        ("leave", SkipReason.DAMAGED),
        ("start", SkipReason.DAMAGED),
        ("reason", SkipReason.DAMAGED),
        ("odd", SkipReason.DAMAGED),
        ("deep", SkipReason.DAMAGED),
        ("list", SkipReason.DAMAGED),
    ],
)
@pytest.mark.usefixtures("readers")
def test_children_of_an_extractor_end_with_it(name: str, reason: SkipReason) -> None:
    with pytest.raises(Refused) as refused:
        extract_apart(f"bad_readers:{name}", b"")
    assert refused.value.reason is reason
    assert read_document("a.rtf", DOCUMENTS["a.rtf"]).reason is None


@pytest.mark.usefixtures("readers")
def test_the_log_names_the_place_of_an_exception_but_not_the_document(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", process.log.name)
    with pytest.raises(Refused):
        extract_apart("bad_readers:bug", b"private")
    assert re.fullmatch(r"bad_readers:bug: 'KeyError at bad_readers\.py:\d+'", caplog.messages[-1])


def echoed(text: str) -> str:
    """Return the response of the next waiting process, or of a new one, for a document that contains this text."""
    said: str = extract_apart("bad_readers:echo", text.encode())["text"]
    return said


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, readers: None) -> list[HelperProcess]:
    """A list of the reader processes started by a test."""
    found: list[HelperProcess] = []

    class Started(HelperProcess):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            found.append(self)

    monkeypatch.setattr(process, "HelperProcess", Started)
    return found


@pytest.mark.parametrize("interrupted", ["_send", "Future.result"])
def test_a_late_answer_is_not_given_to_another_document(
    interrupted: str, started: list[HelperProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert echoed("first") == "first"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(f"driftline.storage.helper_process.{interrupted}", interrupt)
        with pytest.raises(KeyboardInterrupt):
            echoed("second")
    assert [echoed("third"), echoed("fourth")] == ["third", "fourth"]
    assert [each.is_alive for each in started] == [False, True]


def test_a_process_killed_while_idle_is_replaced(started: list[HelperProcess]) -> None:
    echoed("first")
    started[0]._process.kill()
    started[0]._process.wait()
    assert echoed("second") == "second"
    assert len(started) == 2


def test_a_document_is_read_again_if_a_reused_process_dies(started: list[HelperProcess]) -> None:
    assert [extract_apart("bad_readers:once", text)["text"] for text in (b"a", b"b")] == ["a", "b"]
    assert [each.is_alive for each in started] == [False, True]


@pytest.mark.parametrize(("name", "processes"), [("die", 2), ("spin", 1), ("hog", 1), ("list", 1)])
def test_a_document_is_repeated_once_if_its_process_dies_within_its_limits(
    name: str, processes: int, started: list[HelperProcess]
) -> None:
    echoed("first")
    with pytest.raises(Refused):
        extract_apart(f"bad_readers:{name}", b"")
    assert len(started) == processes
    assert not any(each.is_alive for each in started)


@pytest.mark.usefixtures("readers")
def test_an_extractor_writes_no_file_and_connects_to_nobody(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        for name, data in (
            ("write", str(tmp_path / "w")),
            ("append", str(tmp_path / "a")),
            ("connect", str(server.getsockname()[1])),
        ):
            with pytest.raises(Refused):
                extract_apart(f"bad_readers:{name}", data.encode())
        with pytest.raises(BlockingIOError):
            server.accept()
    assert not (tmp_path / "w").exists()
    assert not (tmp_path / "a").exists()


@pytest.mark.usefixtures("readers")
def test_an_extractor_sees_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert "AWS" not in extract_apart("bad_readers:variables", b"")["text"]


@pytest.mark.usefixtures("readers")
def test_answers_of_a_process_are_validated() -> None:
    for lie in ("lie", "lie_of_headings"):
        with pytest.raises(Refused):
            Extracted.from_dict(extract_apart(f"bad_readers:{lie}", b""))
    said = Extracted.from_dict(extract_apart("bad_readers:half", b""))
    assert (said.text, said.anchors[0].name) == ("a?\n", "x y")


def test_a_run_over_broken_documents_names_each_with_its_reason(tmp_path: Path, tiny_model: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    files = {
        "a.html": DOCUMENTS["a.html"],
        "cut.docx": DOCUMENTS["a.docx"][:-40],
        "entities.docx": archive({"word/document.xml": ENTITIES}),
        "locked.pdf": ENCRYPTED_PDF,
        "scan.pdf": pdf(()),
    }
    for name, data in files.items():
        (tree / name).write_bytes(data)
        os.utime(tree / name, (time.time() - 60,) * 2)
    (source,) = dl.index(str(tree), workspace=str(tmp_path / "ws"), model=str(tiny_model)).sources
    skipped = [("cut.docx", "damaged document"), ("entities.docx", "damaged document")]
    skipped += [("locked.pdf", "encrypted"), ("scan.pdf", "document without text")]
    assert sorted(source.skipped) == skipped
    assert [hit.path for hit in search(Workspace.open(str(tmp_path / "ws")), "curlew").results] == ["a.html"]

    def again() -> dl.IndexReport:
        report = dl.index(str(tree), workspace=str(tmp_path / "ws"))
        assert sorted(report.sources[0].skipped) == skipped
        return report

    until(lambda: not again().sources[0].bytes_read)  # files this young may change within a tick

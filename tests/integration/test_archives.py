"""Archives and mail as folders of documents, from the file to the hit."""

from __future__ import annotations

import io
import json
import lzma
import os
import random
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import driftline as dl
from driftline.flows.runs.source_run import LeasedRun
from driftline.storage.documents import DocumentState, SkipReason, content_hash
from driftline.storage.errors import DeletionRefused, StorageError
from driftline.storage.sources.source import Source
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.extraction import archives
from driftline.tasks.extraction.archives import Member, members_of, read_members
from driftline.tasks.extraction.process import Refused
from driftline.tasks.scanning.scan import analyze_document_states
from driftline.tasks.search.documents import read_excerpt
from tests.servers.git_server import git
from tests.servers.s3_server import S3Server
from tests.support.documents import pdf
from tests.support.waiting import until

Driftline = Callable[..., Any]


def zipped(files: Mapping[str, bytes]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return held.getvalue()


def tarred(files: Mapping[str, bytes], mode: str = "w:gz") -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return held.getvalue()


def message(files: Mapping[str, bytes]) -> bytes:
    mail = EmailMessage()
    mail["From"], mail["Subject"], mail["Message-ID"] = "a@pond", "The grebe", "<1@pond>"
    mail.set_content("The grebe dives.")
    for name, data in files.items():
        mail.add_attachment(data, maintype="application", subtype="octet-stream", filename=name)
    return mail.as_bytes()


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    minute_ago = time.time() - 60
    os.utime(path, (minute_ago, minute_ago))


NOTEBOOK = json.dumps({
    "nbformat": 4,
    "cells": [{
        "cell_type": "code",
        "source": "count()",
        "outputs": [
            {"output_type": "stream", "text": ["seven \x1b[31msandpipers\x1b[0m\n"]},
            {"output_type": "display_data", "data": {"text/html": "<b>", "image/png": "AAAA"}},
            {"output_type": "error", "ename": "PondError", "evalue": "dry"},
        ],
    }],
}).encode()  # fmt: skip
IN_ZIP = {
    "birds/heron.txt": b"the heron waits\nand strikes\n",
    "birds/egret.md": b"the egret fishes\n",
    "guide.pdf": pdf(("the first page",), ("the bittern booms",)),
    "deep/inner.tar.gz": tarred({"tern.txt": b"the tern migrates\n"}),
    ".env": b"TOKEN=1\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "docs"
    root.mkdir()
    write(root / "a.zip", zipped(IN_ZIP))
    write(root / "mail.eml", message({"report.pdf": pdf(("the dipper bobs",)), "../../odd/plan.txt": b"the plan\n"}))
    write(root / "plain.txt", b"an ordinary line\n")
    return root


PATHS = [
    "a.zip!/birds/egret.md", "a.zip!/birds/heron.txt", "a.zip!/deep/inner.tar.gz!/tern.txt", "a.zip!/guide.pdf",
    "mail.eml", "mail.eml!/plan.txt", "mail.eml!/report.pdf", "plain.txt",
]  # fmt: skip


def index(tree: Path | str, workspace: Path, **how: Any) -> Any:
    (source,) = dl.index(str(tree), workspace=str(workspace), **how).sources
    return source


def settled(tree: Path | str, workspace: Path, **how: Any) -> Any:
    """Return the report of a run on a new source, after which no file is racy."""
    report = index(tree, workspace, archives=True, **how)
    until(lambda: not index(tree, workspace).bytes_read)
    return report


def documents(workspace: Path) -> list[str]:
    opened = Workspace.open(str(workspace))
    ((entity, _),) = opened.sources()
    rows = opened.manifest(entity).read(columns=["path", "reason"]).to_pylist()
    return sorted(row["path"] for row in rows if row["reason"] is None)


def test_files_in_archives_and_mail_are_documents_if_asked(
    tree: Path, tmp_path: Path, tiny_model: Path, driftline: Driftline
) -> None:
    ws = tmp_path / "ws"
    closed = driftline("index", tree, "--workspace", ws, "--model", tiny_model)
    assert "not indexed: 1 archive\n  archives: 1; --archives indexes the files inside" in closed.out
    assert documents(ws) == ["mail.eml", "plain.txt"]
    report = settled(tree, ws)
    assert report.skipped == [("a.zip!/.env", "secret")]
    assert documents(ws) == PATHS
    again = index(tree, ws)
    assert (again.lines_embedded, again.states[DocumentState.UNCHANGED], again.skipped) == (
        0, len(PATHS), [("a.zip!/.env", "secret")],
    )  # fmt: skip
    (hit,) = dl.open(str(ws)).search("the bittern booms", top_k=1).results
    assert (hit.path, hit.anchor, hit.file) == ("a.zip!/guide.pdf", "p. 2", str(tree / "a.zip"))
    (hit,) = dl.open(str(ws)).search("the", exts=["md"]).results
    assert (hit.path, hit.fragment) == ("a.zip!/birds/egret.md", None)
    excerpt = read_excerpt(Workspace.open(str(ws)), "a.zip!/birds/heron.txt", 1, n_lines=5)
    assert (excerpt.lines, excerpt.current) == (("the heron waits", "and strikes"), True)
    assert index(tree, ws, archives=False).states[DocumentState.DELETED] == len(PATHS) - 2
    assert documents(ws) == ["mail.eml", "plain.txt"]
    index(tree, ws, archives=True)
    assert documents(ws) == PATHS


def test_a_changed_archive_embeds_what_has_changed_inside(tree: Path, tmp_path: Path, tiny_model: Path) -> None:
    ws = tmp_path / "ws"
    settled(tree, ws, model=str(tiny_model))
    changed = IN_ZIP | {"birds/heron.txt": b"the heron waits\nand sleeps\n", "new.txt": b"the crake\n"}
    del changed["birds/egret.md"]
    write(tree / "a.zip", zipped(changed))
    assert not read_excerpt(Workspace.open(str(ws)), "a.zip!/guide.pdf", 1, n_lines=0).current
    states = dict(analyze_document_states(Workspace.open(str(ws)), "source:docs", [*PATHS, "a.zip!/new.txt"]))
    assert states["a.zip!/birds/heron.txt"] == DocumentState.CHANGED
    assert states["a.zip!/birds/egret.md"] == DocumentState.DELETED
    assert states["a.zip!/guide.pdf"] == states["mail.eml!/report.pdf"] == DocumentState.UNCHANGED
    report = index(tree, ws)
    expected = {DocumentState.NEW: 1, DocumentState.CHANGED: 1, DocumentState.DELETED: 1}
    assert {state: report.states[state] for state in expected} == expected
    assert report.lines_embedded == 3
    assert documents(ws) == sorted({*PATHS, "a.zip!/new.txt"} - {"a.zip!/birds/egret.md"})
    (tree / "a.zip").unlink()
    index(tree, ws)
    assert documents(ws) == [path for path in PATHS if not path.startswith("a.zip")]


def test_patterns_match_files_inside(tree: Path, tmp_path: Path, tiny_model: Path) -> None:
    ws = tmp_path / "ws"
    settled(tree, ws, model=str(tiny_model), include=("*.txt",), exclude=("birds/",))
    assert documents(ws) == ["a.zip!/deep/inner.tar.gz!/tern.txt", "mail.eml!/plan.txt", "plain.txt"]
    index(tree, ws, include=("a.zip",))
    assert documents(ws) == [path for path in PATHS if path.startswith("a.zip")]
    index(tree, ws, exclude=("*.zip", "mail.eml!/plan.txt"))
    assert documents(ws) == ["mail.eml", "mail.eml!/report.pdf", "plain.txt"]


def test_a_run_that_ends_early_opens_the_archive_again(
    tree: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ws = tmp_path / "ws"
    with monkeypatch.context() as broken:
        broken.setattr(LeasedRun, "_delete", lambda *_: _fail())
        with pytest.raises(StorageError):
            index(tree, ws, model=str(tiny_model), archives=True)
    opened = list[str]()

    def noted(path: str, data: bytes) -> list[Member]:
        opened.append(path)
        return members_of(path, data)

    monkeypatch.setattr("driftline.tasks.scanning.scan.members_of", noted)
    assert index(tree, ws).lines_total > 0
    assert sorted(opened) == ["a.zip", "mail.eml"]
    until(lambda: index(tree, ws).bytes_read == 0)
    opened.clear()
    index(tree, ws)
    assert opened == []


def _fail() -> None:
    raise StorageError("The store has gone away", "here")


def test_the_deletion_guard_protects_files_inside(tree: Path, tmp_path: Path, tiny_model: Path) -> None:
    ws = tmp_path / "ws"
    many = {f"{number}.txt": b"heron %d\n" % number for number in range(120)}
    write(tree / "a.zip", zipped(many))
    settled(tree, ws, model=str(tiny_model))
    write(tree / "a.zip", zipped({"1.txt": b"heron 1\n"}))
    for _ in range(2):
        with pytest.raises(DeletionRefused, match="119 of"):
            index(tree, ws)
    index(tree, ws, max_delete_fraction=1.0)
    assert documents(ws) == ["a.zip!/1.txt", *PATHS[4:]]


def test_archives_in_a_bucket_are_opened_and_read_once(
    s3_environment: S3Server, s3_bucket: str, tmp_path: Path, tiny_model: Path
) -> None:
    client, folder = s3_environment.client(), s3_bucket.removeprefix(f"s3://{s3_environment.bucket}/")
    for name, data in {"a.zip": zipped(IN_ZIP), "b.tar.xz": tarred({"x/tern.txt": b"tern\n"}, "w:xz")}.items():
        client.put_object(Bucket=s3_environment.bucket, Key=f"{folder}/{name}", Body=data)
    index(s3_bucket, tmp_path / "ws", model=str(tiny_model), archives=True)
    assert documents(tmp_path / "ws") == [*PATHS[:4], "b.tar.xz!/x/tern.txt"]
    again = index(s3_bucket, tmp_path / "ws")
    assert (again.bytes_read, again.states[DocumentState.UNCHANGED]) == (0, 5)


def test_a_commit_that_changes_an_archive_changes_its_files(tree: Path, tmp_path: Path, tiny_model: Path) -> None:
    ws = tmp_path / "ws"
    git(tree, "init", "--quiet")
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "--message", "one")
    index(tree, ws, model=str(tiny_model), archives=True, by_commit=True)
    assert documents(ws) == PATHS
    write(tree / "a.zip", zipped({"birds/heron.txt": IN_ZIP["birds/heron.txt"], "one.txt": b"one\n"}))
    git(tree, "commit", "--quiet", "--all", "--message", "two")
    report = index(tree, ws, by_commit=True)
    assert (report.full_scan_reason, report.lines_embedded) == ("", 1)
    assert documents(ws) == ["a.zip!/birds/heron.txt", "a.zip!/one.txt", *PATHS[4:]]


def test_outputs_of_notebooks_are_indexed_if_asked(tree: Path, tmp_path: Path, tiny_model: Path) -> None:
    ws = tmp_path / "ws"
    write(tree / "a.zip", zipped({"nb.ipynb": NOTEBOOK}))
    write(tree / "nb.ipynb", NOTEBOOK)
    settled(tree, ws, model=str(tiny_model))
    assert dl.open(str(ws)).search("", fixed=("sandpipers",)).results == ()
    index(tree, ws, notebook_outputs=True)
    until(lambda: not index(tree, ws).bytes_read)
    found = dl.open(str(ws)).search("", fixed=("seven sandpipers",)).results
    assert {(hit.path, hit.anchor) for hit in found} == {("nb.ipynb", "cell 1"), ("a.zip!/nb.ipynb", "cell 1")}
    assert read_excerpt(Workspace.open(str(ws)), "nb.ipynb", 1, n_lines=9).lines == (
        "count()", "seven sandpipers", "PondError: dry",
    )  # fmt: skip
    index(tree, ws, notebook_outputs=False)
    assert dl.open(str(ws)).search("", fixed=("sandpipers",)).results == ()


# -- hostile archives --------------------------------------------------------------------------


def reasons(data: bytes, path: str = "a.zip") -> dict[str, str]:
    return {each.path: str(each.reason) for each in members_of(path, data) if each.reason is not None}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../up.txt", SkipReason.ODD_KEY),
        ("/etc/passwd", SkipReason.ODD_KEY),
        ("C:\\windows\\a.txt", SkipReason.ODD_KEY),
        ("a/./b.txt", SkipReason.ODD_KEY),
        ("x" * 2_000, SkipReason.ODD_KEY),
    ],
)
def test_members_without_a_plain_path_are_skipped(name: str, reason: SkipReason) -> None:
    for path, data in ("a.zip", zipped({name: b"x"})), ("a.tgz", tarred({name: b"x"})):
        assert reasons(data, path) == {f"{path}!/{name}": reason}


@pytest.mark.parametrize(
    ("names", "encoding"),
    [
        (["表だよ/一覧表.txt", "表だよ/漢字.txt"], "cp932"),
        (["Отчёт.txt", "планы/привет.txt"], "cp866"),
        (["günstig/Über.txt", "déjà.txt"], "cp437"),
        (["günstig/Über.txt", "漢字.txt"], "utf-8"),
    ],
)
@pytest.mark.parametrize("system", [0, 3])
def test_names_in_a_zip_file_are_in_the_encoding_of_the_machine_that_made_it(
    names: list[str], encoding: str, system: int
) -> None:
    raw = [name.replace("/", "\\" if system == 0 else "/").encode(encoding) for name in names]
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for number, name in enumerate(raw):
            info = zipfile.ZipInfo(str(number) * len(name))
            info.create_system = system
            archive.writestr(info, b"x")
    data = held.getvalue()
    for number, name in enumerate(raw):
        data = data.replace(str(number).encode() * len(name), name)
    assert [each.path for each in members_of("a.zip", data)] == [f"a.zip!/{name}" for name in names]
    wanted = {f"a.zip!/{names[-1]}": content_hash(b"x")}
    assert read_members("a.zip", data, wanted) == {f"a.zip!/{names[-1]}": b"x"}


def test_a_name_from_an_extra_field_of_a_zip_file_is_not_decoded_again() -> None:
    info = zipfile.ZipInfo("Stra├ƒe.txt")
    info.filename = "Straße.txt"  # as Python 3.12 reads it
    assert archives._names_in_zip([info]) == ["Straße.txt"]


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_data_after_a_compressed_archive_is_ignored(mode: str) -> None:
    data = tarred({"a.txt": b"heron"}, mode) + b"--signed--" * 9
    assert [each.path for each in members_of("a.tgz", data)] == ["a.tgz!/a.txt"]


def test_links_devices_and_repeated_names_are_skipped() -> None:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name, kind in ("soft", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE), ("device", tarfile.CHRTYPE):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        for text in b"one", b"two":
            info = tarfile.TarInfo("twice.txt")
            info.size = 3
            archive.addfile(info, io.BytesIO(text))
    data = held.getvalue()
    link, device = str(SkipReason.LINK), str(SkipReason.UNREADABLE)
    assert reasons(data, "a.tar") == {
        "a.tar!/soft": link, "a.tar!/hard": link, "a.tar!/device": device, "a.tar!/twice.txt": SkipReason.REPLACED,
    }  # fmt: skip
    assert read_members("a.tar", data, {"a.tar!/twice.txt": content_hash(b"two")}) == {"a.tar!/twice.txt": b"two"}


def test_an_archive_is_unpacked_up_to_the_last_member_that_is_requested() -> None:
    held, last = io.BytesIO(), random.Random(1).randbytes(200_000)
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for name, content in ("first.txt", b"one"), ("last.txt", last):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    damaged = held.getvalue()[:100_000]
    digest = content_hash(b"one")
    assert read_members("a.tar", damaged, {"a.tar!/first.txt": digest}) == {"a.tar!/first.txt": b"one"}
    with pytest.raises(Refused):
        read_members("a.tar", damaged, {"a.tar!/first.txt": digest, "a.tar!/last.txt": content_hash(last)})


def test_a_member_that_has_changed_is_not_returned() -> None:
    data = zipped({"a.txt": b"new"})
    assert read_members("a.zip", data, {"a.zip!/a.txt": content_hash(b"old")}) == {}


def test_encrypted_and_lying_members_are_skipped() -> None:
    data = bytearray(zipped({"a.txt": b"a" * 1_000, "b.txt": b"the bittern"}))
    directory = data.index(b"PK\x01\x02")
    data[directory + 8] |= 1  # encrypted according to the zip directory
    assert reasons(bytes(data)) == {"a.zip!/a.txt": SkipReason.ENCRYPTED}
    for size in 10, 2**31:
        lying = bytearray(zipped({"a.txt": b"a" * 1_000, "b.txt": b"the bittern"}))
        lying[directory + 24 : directory + 28] = size.to_bytes(4, "little")
        assert reasons(bytes(lying)) == {"a.zip!/a.txt": SkipReason.DAMAGED}


def zipped_as(method: int, packed: bytes, content: bytes) -> bytes:
    """Zip one file that is compressed with a method that zipfile cannot write."""
    held = bytearray(zipped_whole("a.txt", packed))
    for start, at in ((0, 8), (held.index(b"PK\x01\x02"), 10)):
        held[start + at : start + at + 2] = method.to_bytes(2, "little")
        held[start + at + 6 : start + at + 10] = zlib.crc32(content).to_bytes(4, "little")
        held[start + at + 14 : start + at + 18] = len(content).to_bytes(4, "little")
    return bytes(held)


def zipped_whole(name: str, data: bytes) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr(name, data)
    return held.getvalue()


@pytest.mark.parametrize(
    ("method", "pack"), [(93, lambda data: pa.compress(data, "zstd", asbytes=True)), (95, lzma.compress)]
)
def test_members_that_are_compressed_with_zstd_or_xz_are_read(method: int, pack: Callable[[bytes], bytes]) -> None:
    for content in (b"the bittern\n" * 10_000, os.urandom(200_000), b""):
        data, path, digest = zipped_as(method, pack(content), content), "a.zip!/a.txt", content_hash(content)
        assert members_of("a.zip", data) == [Member(path, len(content), digest)]
        assert read_members("a.zip", data, {path: digest}) == {path: content}
    packed = pack(b"the bittern\n" * 10_000)
    assert reasons(zipped_as(method, packed, b"the grebe\n")) == {path: SkipReason.DAMAGED}
    assert reasons(zipped_as(method, packed[:-20], content)) == {path: SkipReason.DAMAGED}
    assert reasons(zipped_as(method, b"not packed at all", content)) == {path: SkipReason.DAMAGED}
    bomb = bytes(65 * 2**20)
    assert reasons(zipped_as(method, pack(bomb), bomb)) == {path: SkipReason.TOO_LARGE}


def test_a_member_that_needs_too_much_memory_does_not_hide_the_others() -> None:
    content = b"the bittern\n"
    packed = bytearray(lzma.compress(content))
    header = packed[12 : 12 + 4 * (packed[12] + 1)]
    header[header.index(b"\x21\x01") + 2] = 37  # a dictionary of 1.5 GiB
    header[-4:] = zlib.crc32(header[:-4]).to_bytes(4, "little")
    packed[12 : 12 + len(header)] = header
    data = bytearray(zipped_as(95, bytes(packed), content))
    with zipfile.ZipFile(held := io.BytesIO(data), "a") as archive:
        archive.writestr("b.txt", "the grebe\n")
    assert {each.path: each.reason for each in members_of("a.zip", held.getvalue())} == {
        "a.zip!/a.txt": SkipReason.BOMB,
        "a.zip!/b.txt": None,
    }


@pytest.mark.parametrize("method", [9, 98])
def test_members_whose_compression_is_not_read_say_so(method: int) -> None:
    """Deflate64 and PPMd."""
    assert reasons(zipped_as(method, b"packed", b"unknown")) == {"a.zip!/a.txt": SkipReason.OTHER_COMPRESSION}


def test_archives_are_opened_to_a_small_depth() -> None:
    data = b"the bottom\n"
    for name in "d.txt", "c.zip", "b.zip", "in.zip":
        data = zipped({name: data})
    assert members_of("a.zip", data) == [Member("a.zip!/in.zip!/b.zip!/c.zip", 0, "", SkipReason.NESTED)]


def test_bombs_are_refused_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = {f"{number}.txt": bytes(2**20) for number in range(20)}
    many = zipped({str(number): b"" for number in range(2_000)})
    monkeypatch.setattr(archives, "MAX_CONTAINER_BYTES", 2**24)
    monkeypatch.setattr(archives, "MAX_CONTAINED", 1_000)
    for data in zipped(bomb), zipped({"in.zip": zipped(bomb)}), tarred(bomb), tarred({"in": tarred(bomb)}), many:
        with pytest.raises(Refused) as refused:
            archives.list_members(archives._request("a.zip", data))
        assert refused.value.reason == SkipReason.BOMB
    assert reasons(zipped({"a.bin": bytes(65 * 2**20)})) == {"a.zip!/a.bin": SkipReason.TOO_LARGE}


def test_a_damaged_archive_is_skipped_with_its_reason(tmp_path: Path, tiny_model: Path) -> None:
    tree = tmp_path / "docs"
    tree.mkdir()
    write(tree / "a.zip", zipped(IN_ZIP)[:-30])
    write(tree / "b.tgz", tarred({"a.txt": b"heron\n" * 100})[:-60])
    write(tree / "c.zip", b"no archive at all\n")
    report = settled(tree, tmp_path / "ws", model=str(tiny_model))
    assert report.skipped == [("a.zip", "damaged document"), ("b.tgz", "damaged document")]
    assert index(tree, tmp_path / "ws").skipped == report.skipped
    assert documents(tmp_path / "ws") == ["c.zip"]


def test_a_document_that_cannot_be_read_is_not_deleted(
    tree: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ws = tmp_path / "ws"
    settled(tree, ws, model=str(tiny_model))
    (tree / "plain.txt").write_text("the corncrake calls at night\n")

    def fail(*_: object) -> bytes:
        raise StorageError("Could not read a file (Input/output error)", "plain.txt")

    monkeypatch.setattr(Source, "read", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        analyze_document_states(Workspace.open(str(ws)), "source:docs", ["plain.txt"])

"""Broken files for all extractors, and a check that no extractor hangs, ends other processes, or leaks."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import socket
import tarfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow as pa

from driftline.tasks.extraction import process
from driftline.tasks.extraction.archives import members_of, read_members
from driftline.tasks.extraction.extractor import read_document
from driftline.tasks.extraction.process import Refused
from tests.support.documents import DOCUMENTS

CANARY = "flamingo-7Gq2"
"""A word that is in no document, but in a file outside, in the environment and behind a port."""
_BOUNDARIES = (0, 1, 127, 255, 2**15 - 1, 2**16 - 1, 2**31 - 1, 2**32 - 1)


def _archives() -> dict[str, bytes]:
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in DOCUMENTS.items():
            archive.writestr(f"in/{name}", data)
    with tarfile.open(fileobj=tarred, mode="w") as tar:
        for name in ("a.eml", "nb.ipynb"):
            info = tarfile.TarInfo(name)
            info.size = len(DOCUMENTS[name])
            tar.addfile(info, io.BytesIO(DOCUMENTS[name]))
    text = b"the heron stands in the reeds\n" * 50
    packed = {"a.txt.gz": gzip.compress(text), "a.txt.bz2": bz2.compress(text), "a.txt.xz": lzma.compress(text)}
    packed |= {f"a.txt.{s}": pa.Codec(c).compress(text, asbytes=True) for s, c in (("zst", "zstd"), ("lz4", "lz4"))}
    tar_bytes = tarred.getvalue()
    packed |= {"a.tar": tar_bytes, "a.tar.gz": gzip.compress(tar_bytes), "a.tar.xz": lzma.compress(tar_bytes)}
    return packed | {"a.zip": zipped.getvalue()}


SEEDS: dict[str, bytes] = {**DOCUMENTS, **_archives()}


def broken_files(count: int, chance: random.Random, outside: str) -> Iterator[tuple[str, bytes]]:
    """Yield ``count`` files named like real ones; some contain references to the URL or path ``outside``."""
    names = sorted(SEEDS)
    for number in range(count):
        name = names[number % len(names)]
        yield name, _broken(name, SEEDS[name], chance, outside)


def _broken(name: str, data: bytes, chance: random.Random, outside: str) -> bytes:
    at = chance.randrange(1, len(data))
    match chance.randrange(8):
        case 0:
            return data[:at]
        case 1:
            changed = bytearray(data)
            for _ in range(chance.randrange(1, 17)):
                changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            return bytes(changed)
        case 2:  # the start of another format
            other = SEEDS[chance.choice(sorted(SEEDS))]
            return other[: chance.randrange(1, 512)] + data[at:]
        case 3:  # the largest possible number
            size = chance.choice((2, 4, 8))
            number = chance.choice(_BOUNDARIES) % 2 ** (8 * size)
            order: Literal["little", "big"] = chance.choice(("little", "big"))
            return bytes(data[:at] + number.to_bytes(size, order) + data[at + size :])
        case 4:
            length = chance.randrange(1, 200)
            return data[:at] + data[at : at + length] * chance.randrange(2, 200) + data[at + length :]
        case 5:  # decimal lengths and circular references
            digits = [place for place, byte in enumerate(data) if 48 <= byte < 58]
            if not digits:
                return data[at:] + data[:at]
            place = chance.choice(digits)
            return data[:place] + str(chance.choice(_BOUNDARIES)).encode() + data[place + 1 :]
        case 6:
            return _with_entities(data, chance, outside)
        case _:
            return data[:at] + chance.randbytes(chance.randrange(1, 64)) + data[at:]


def _with_entities(data: bytes, chance: random.Random, outside: str) -> bytes:
    """Put an entity bomb, or references to the outside, into a document's XML or at the start of its text."""
    bomb = "".join(f'<!ENTITY e{at} "{f"&e{at - 1};" * 10}">' for at in range(1, 12))
    kinds = (
        f'<!DOCTYPE x [<!ENTITY e0 "ha">{bomb}]>',
        f'<!DOCTYPE x [<!ENTITY e11 SYSTEM "{outside}">]>',
        f'<!DOCTYPE x SYSTEM "{outside}">',
    )
    head = chance.choice(kinds).encode()
    body = b"&e11;<img src='%s'><link rel=stylesheet href='%s'>" % (outside.encode(), outside.encode())
    if not data.startswith(b"PK"):
        return head + data.replace(b">", b">" + body, 1)
    held = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            part = old.read(info)
            if info.filename.endswith("xml"):
                start = part.index(b"?>") + 2 if part.startswith(b"<?xml") and b"?>" in part else 0
                part = part[:start] + head + part[start:].replace(b"<w:t>", b"<w:t>&e11;")
            new.writestr(info.filename, part)
    return held.getvalue()


@dataclass(slots=True)
class Outcome:
    """The number of files with text, with members and with a reason, and the files that were slowest or leaked."""

    ends: Counter[str] = field(default_factory=Counter)
    leaks: list[str] = field(default_factory=list)
    files: int = 0


def fuzz(count: int, seed: int, folder: Path, seconds: float = float("inf")) -> Outcome:
    """Read ``count`` broken files, or as many as ``seconds`` allow, like a run with ``archives``. Propagates any
    exception except Refused, because it would end a run.
    """
    secret = folder / "outside.txt"
    secret.write_text(CANARY)
    outcome, chance, ends = Outcome(), random.Random(seed), time.monotonic() + seconds
    before = {*os.listdir(folder)}
    process._pool().end()  # new ones start in ``folder``: in the current folder, other tests create files meanwhile
    with chdir(folder), socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/{CANARY}"
        for name, data in broken_files(count, chance, chance.choice((url, secret.as_uri()))):
            if time.monotonic() > ends:
                break
            outcome.files += 1
            if CANARY in _read(name, data, outcome.ends).replace(url, ""):
                outcome.leaks.append(f"{name}: text from outside")
        try:
            server.accept()[0].close()
            outcome.leaks.append("a connection")
        except BlockingIOError:
            pass
    process._pool().end()
    created = {*os.listdir(folder)} - before
    outcome.leaks += [f"a file: {name}" for name in created]
    return outcome


def _read(name: str, data: bytes, ends: Counter[str]) -> str:
    """Return all text that a run would index."""
    reading = read_document(name, data)
    ends[str(reading.reason or "text")] += 1
    text = reading.extracted.text + " ".join(anchor.name for anchor in reading.extracted.anchors)
    text.encode()
    if name.endswith((".zip", ".tar", ".tar.gz", ".tar.xz", ".eml", ".mbox")):
        try:
            members = members_of(name, data)
            found = read_members(
                name, data, {each.path: each.content_hash for each in members[:3] if each.reason is None}
            )
        except Refused as refused:
            ends[f"members: {refused.reason}"] += 1
            return text
        ends["members"] += len(members)
        text += "".join(read_document(path, content).extracted.text for path, content in found.items())
    return text

"""Document extraction: the choice of extractor, its result, and the record in the manifest."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from driftline.storage.documents import SkipReason
from driftline.storage.lines.outline import Anchor
from driftline.storage.redaction import with_mark
from driftline.tasks.definitions.find_definitions import definitions
from driftline.tasks.extraction import compression, extractor
from driftline.tasks.extraction.extractor import (
    Draft,
    Part,
    Reading,
    ReadSettings,
    definitions_by_part,
    outdated,
    read_document,
)
from driftline.tasks.extraction.process import Refused
from tests.support.documents import DOCUMENTS

RUSSIAN = "Съешь ещё этих мягких французских булок, да выпей чаю\n" * 3


def notebook(*cells: tuple[str, str], **more: Any) -> bytes:
    listed = [{"cell_type": kind, "source": source.splitlines(keepends=True)} for kind, source in cells]
    return json.dumps({"nbformat": 4, "metadata": {}, "cells": listed} | more).encode()


NOTEBOOK = notebook(
    ("markdown", "# Herons\n\nWhere they nest."),
    ("code", ""),
    ("code", "def count(pond):\n    return 1\n"),
    ("raw", "as it is"),
)


def anchors(reading: Reading) -> list[tuple[str, int, int]]:
    return [(each.name, each.first, each.last) for each in reading.extracted.anchors]


def test_a_notebook_is_its_cells_in_order_each_with_its_number_and_language() -> None:
    reading = read_document("a.ipynb", NOTEBOOK)
    assert reading.extracted.text == ("# Herons\n\nWhere they nest.\n\ndef count(pond):\n    return 1\n\nas it is\n")
    assert anchors(reading) == [("markdown cell 1", 0, 3), ("cell 3", 4, 6), ("cell 4", 7, 7)]
    assert reading.extracted.parts == (Part("md", 0, 3), Part("py", 4, 6))
    assert reading.mark == "notebook/4"


def test_a_notebook_has_the_definitions_of_its_cells() -> None:
    reading = read_document("a.ipynb", NOTEBOOK)
    texts, joined = definitions_by_part([("b.py", extractor.Extracted("x = 1\n")), ("a.ipynb", reading.extracted)])
    found = joined([definitions(path, text) for path, text in texts])
    assert found[0] == []
    assert [(each.kind, each.name, each.line) for each in found[1]] == [
        ("section", "Herons", 0),
        ("function", "count", 4),
    ]


@pytest.mark.parametrize(
    "data", [b"\xef\xbb\xbf" + NOTEBOOK, NOTEBOOK.decode().encode("utf-16"), 80 * b"\n" + NOTEBOOK]
)
def test_a_notebook_is_read_in_the_encodings_that_programs_write(data: bytes) -> None:
    assert read_document("a.ipynb", data).extracted == read_document("a.ipynb", NOTEBOOK).extracted


def test_a_cell_in_another_language_is_in_that_language() -> None:
    reading = read_document("a.ipynb", notebook(("code", "%%bash\ncount() {\n  ls\n}"), ("code", "%%time\nx = 1")))
    assert reading.extracted.parts == (Part("sh", 0, 4), Part("py", 5, 6))


def test_outputs_of_a_notebook_are_left_out() -> None:
    cell = {"cell_type": "code", "source": ["a = 1"], "outputs": [{"output_type": "stream", "text": ["12345"]}]}
    reading = read_document("a.ipynb", json.dumps({"nbformat": 4, "cells": [cell]}).encode())
    assert reading.extracted.text == "a = 1\n"


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ({"output_type": "stream", "text": ["10 %\r50 %\rdone\r\n", "\x1b[?25lready\x1b[1;32m!"]}, "done\nready!"),
        ({"data": {"text/plain": "<Markdown object>", "text/markdown": "# Ponds"}}, "# Ponds"),
        ({"data": {"text/markdown": f"![](data:image/png;base64,{'A' * 99}) x"}}, "![](data:) x"),
        ({"output_type": "pyerr", "ename": "OSError", "evalue": "no pond"}, "OSError: no pond"),
        ({"output_type": "pyout", "text": ["[1,", " 2]"]}, "[1,\n 2]"),
    ],
)
def test_an_output_is_read_as_people_see_it(output: dict[str, Any], shown: str) -> None:
    cell = {"cell_type": "code", "source": "a = 1", "outputs": [output]}
    data = json.dumps({"nbformat": 4, "cells": [cell]}).encode()
    assert read_document("a.ipynb", data, outputs=True).extracted.text == f"a = 1\n{shown}\n"


@pytest.mark.parametrize("source", ["a = 1\nb = 2", ["a = 1\n", "b = 2"], ["a = 1", "b = 2"]])
def test_an_old_notebook_is_read_too(source: object) -> None:
    cells = [{"cell_type": "heading", "level": 2, "source": "Ponds"}, {"cell_type": "code", "input": source}]
    reading = read_document("a.ipynb", json.dumps({"nbformat": 3, "worksheets": [{"cells": cells}]}).encode())
    assert reading.extracted.text == "## Ponds\n\na = 1\nb = 2\n"
    assert anchors(reading) == [("markdown cell 1", 0, 1), ("cell 2", 2, 3)]


@pytest.mark.parametrize(
    ("about", "cell", "source", "suffix"),
    [
        ({"language_info": {"name": "ruby"}}, {}, "x", "rb"),
        ({"language_info": {"name": "C#"}}, {}, "x", "cs"),
        ({"language_info": {"name": "polyglot-notebook"}, "kernelspec": {"language": "C#"}}, {}, "x", "cs"),
        ({"kernelspec": {"language": "kotlin"}}, {}, "x", "kt"),
        ({"kernelspec": "odd", "language_info": None}, {}, "x", "py"),
        ({}, {"vscode": {"languageId": "sql"}}, "x", "sql"),
        ({}, {"polyglot_notebook": {"kernelName": "javascript"}}, "x", "js"),
        ({}, {"dotnet_interactive": {"language": "csharp"}}, "x", "cs"),
        ({}, {"dotnet_interactive": {"language": "fsharp"}}, "x", ""),
        ({}, {}, "%sql\nSELECT 1", "sql"),
        ({}, {}, "#!javascript\nlet x", "js"),
        ({}, {}, "%sql SELECT 1\nx = 2", "py"),
        ({}, {}, "#!/bin/bash\nx", "py"),
    ],
)
def test_a_cell_is_in_the_language_that_it_or_its_notebook_names(
    about: object, cell: object, source: str, suffix: str
) -> None:
    cells = [{"cell_type": "code", "source": source, "metadata": cell}]
    reading = read_document("a.ipynb", json.dumps({"nbformat": 4, "metadata": about, "cells": cells}).encode())
    assert [part.suffix for part in reading.extracted.parts] == [suffix] * bool(suffix)


@pytest.mark.parametrize(
    "data",
    [
        b'{"cells": 3}',
        b'{"cells": [',
        b'{"cells": ' + b"[" * 200_000,
        b'{"cells": [{"source": 1}]}',
        b'{"cells": [{"cell_type": "heading", "level": Infinity}]}',
        b"{}",
    ],
)
def test_a_damaged_notebook_is_refused(data: bytes) -> None:
    assert read_document("a.ipynb", data).reason is SkipReason.DAMAGED


def test_a_notebook_without_text_is_refused() -> None:
    assert read_document("a.ipynb", notebook(("code", "# --"))).reason is SkipReason.NO_TEXT


def test_halves_of_surrogate_pairs_are_replaced() -> None:
    data = b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": "a\\ud800b"}]}'
    assert read_document("a.ipynb", data).extracted.text == "a?b\n"


def test_content_decides_before_the_name() -> None:
    assert read_document("kernel.json", NOTEBOOK).mark == "notebook/4"
    assert read_document("a.ipynb", b"no JSON") == Reading("a.ipynb", "-notebook/4", extractor.Extracted("no JSON"))
    assert read_document("a.json", b'{"cells": []}').mark == ""


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
    "lz4": lambda data: pa.Codec("lz4").compress(data, asbytes=True),
}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_compressed_file_is_indexed_as_its_content(suffix: str) -> None:
    compress = COMPRESS[suffix]
    reading = read_document(f"man/ls.1.{suffix}", compress(RUSSIAN.encode("utf-16")) + compress(b""))
    assert (reading.path, reading.extracted.text, reading.reason) == ("man/ls.1", RUSSIAN, None)
    assert read_document("data", compress(b"more")).extracted.text == "more"
    inner = read_document(f"a.ipynb.{suffix}", compress(NOTEBOOK))
    assert inner.extracted == read_document("a.ipynb", NOTEBOOK).extracted
    assert inner.mark.endswith("+notebook/4")


@pytest.mark.parametrize("suffix", ["zst", "lz4"])
def test_frames_to_skip_precede_compressed_data(suffix: str) -> None:
    frame = b"\x50\x2a\x4d\x18\4\0\0\0more"
    assert read_document(f"a.{suffix}", 2 * frame + COMPRESS[suffix](b"text")).extracted.text == "text"


def stored(parts: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        for name, data in parts.items():
            zipped.writestr(name, data)
    return buffer.getvalue()


def old_tar(name: bytes, data: bytes) -> bytes:
    """Return a tar file as written before 1988: its header says only its checksum."""
    head = name.ljust(100, b"\0") + b"0000644\0" + 2 * b"0000000\0" + b"%011o\0%011o\0" % (len(data), 0)
    head = head.ljust(512, b"\0")
    head = head[:148] + b"%06o\0 " % (sum(head) + 8 * ord(" ")) + head[156:]
    return head + data.ljust(512, b"\0") + bytes(1_024)


@pytest.mark.parametrize(
    ("path", "data"),
    [
        *((f"{name}.zip", stored({name: DOCUMENTS[name]})) for name in ("a.docx", "a.xlsx", "a.odt", "a.epub")),
        ("a.whl", stored({"docx/templates/word/document.xml": b"<w/>", "docx/api.py": b""})),
        ("a.jar", stored({"word/document.xml.txt": b"<w/>", "org/xl/workbook.xml": b"<w/>"})),
        ("a.tar", old_tar(b"note.txt", b"text")),
        ("a.tgz", gzip.compress(old_tar(b"note.txt", b"text"))),
    ],
)
def test_an_archive_that_contains_documents_is_an_archive(path: str, data: bytes) -> None:
    assert extractor.is_archive(path, data)


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("cut", [1, 4, 12, 30])
def test_a_compressed_file_that_is_cut_off_is_damaged(suffix: str, cut: int) -> None:
    data = COMPRESS[suffix](RUSSIAN.encode())
    assert read_document(f"a.{suffix}", data[:-cut]).reason is SkipReason.DAMAGED


@pytest.mark.parametrize("suffix", COMPRESS)
def test_doubly_compressed_files_and_other_binary_content_are_binary(suffix: str) -> None:
    compress = COMPRESS[suffix]
    assert read_document(f"a.{suffix}", compress(compress(b"text" * 99))).reason is SkipReason.BINARY
    assert read_document(f"a.{suffix}", compress(b"\0\1" * 40)).reason is SkipReason.BINARY


@pytest.mark.parametrize("suffix", COMPRESS)
def test_decompression_is_bounded(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_UNPACKED_BYTES", 1_000)
    assert read_document("a", COMPRESS[suffix](b" " * 1_001)).reason is SkipReason.BOMB
    assert read_document("a", COMPRESS[suffix](b"a" * 1_000)).reason is None
    two = COMPRESS[suffix](b"a" * 600) * 2
    assert read_document("a", two).reason is SkipReason.BOMB


def test_candidates_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extractor, "MAX_EXTRACTED_CHARACTERS", 10)
    draft = Draft()
    draft.add("12345")
    with pytest.raises(Refused):
        draft.add("67890")


def test_an_anchor_lasts_until_the_next_and_is_one_line_of_text() -> None:
    draft = Draft()
    draft.add("before")
    draft.at("p.\t\n1")
    draft.add("a\r\nb")
    draft.at("p. 2")
    draft.at("p. 3")
    draft.add("c")
    assert draft.done().anchors == (Anchor("p. 1", 1, 2), Anchor("p. 3", 3, 3))


@pytest.mark.parametrize(
    ("path", "mark", "expected"),
    [
        ("a.py", "", False),
        ("a.py", None, False),
        ("a.IPYNB", None, True),
        ("a.ipynb", "", True),
        ("a.ipynb", "notebook/4", False),
        ("a.ipynb", "-notebook/4", False),
        ("a.ipynb", "notebook/0", True),
        ("a.ipynb.gz", "gzip/2+notebook/4", False),
        ("a.ipynb.gz", "gzip/2+notebook/7", True),
        ("a.ipynb.gz", "gzip/2", False),
        ("a.gz", "", True),
        ("a", "unknown/1", True),
    ],
)
def test_another_extractor_or_version_makes_a_document_outdated(path: str, mark: str | None, expected: bool) -> None:
    paths, marks = pa.chunked_array([["a.py", path]], pa.string()), pa.chunked_array([["", mark]], pa.string())
    assert outdated(paths, marks, ReadSettings("off")).tolist() == [False, expected]
    known = with_mark("", "known")
    redacted = pa.chunked_array([[known, "+".join(filter(None, (mark, known)))]], pa.string())
    assert outdated(paths, redacted, ReadSettings("known")).tolist() == [False, expected]
    assert outdated(paths, redacted, ReadSettings("strict")).tolist() == [True, True]
    assert outdated(paths, marks, ReadSettings("known")).tolist() == [True, True]

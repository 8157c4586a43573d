"""What each extractor makes of a document of its format."""

from __future__ import annotations

import io
import zipfile

import pytest

from driftline.storage.model import SkipReason
from driftline.tasks.extraction import extractor
from driftline.tasks.extraction.extractor import EXTRACTORS, Extractor, Reading, is_extracted, read_document
from tests.support import documents
from tests.support.documents import DOCUMENTS, docx, epub, opendocument, paragraph, pdf, pptx, table, text_box, xlsx


def lines(reading: Reading) -> list[str]:
    assert reading.reason is None
    return reading.extracted.text.splitlines()


def anchored(reading: Reading) -> list[tuple[str, list[str]]]:
    """The anchors of a reading, each with its lines."""
    all_lines = lines(reading)
    return [(each.name, all_lines[each.first : each.last + 1]) for each in reading.extracted.anchors]


def test_the_corpus_has_a_document_for_each_extractor() -> None:
    marks = {read_document(name, data).mark for name, data in DOCUMENTS.items()}
    assert marks == {each.mark for each in EXTRACTORS}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_recognized_by_its_content(name: str) -> None:
    if name not in ("a.mbox", "a.eml"):
        assert is_extracted(name, DOCUMENTS[name])
    assert read_document("blob", DOCUMENTS[name]).extracted == read_document(name, DOCUMENTS[name]).extracted


def test_a_page_is_indexed_without_repeated_elements() -> None:
    reading = read_document("a.html", DOCUMENTS["a.html"])
    assert lines(reading) == [
        "Birds", "# Waders", "A curlew probes mud.", "## Fields", "- A lapwing", "- A plover",
        "def  call():", "    pass", "Name\tCount", "Ruff\t7",
    ]  # fmt: skip
    assert [name for name, _ in anchored(reading)] == ["#top", "#fields"]


PAGES = {
    "latin": "<?xml version='1.0' encoding='iso-8859-2'?><html><body><p>Zażółć</p></body></html>".encode("iso-8859-2"),
    "japanese": "<html><meta charset=shift_jis><p>鳥</p></html>".encode("shift_jis"),
    "entity": b"<html><body><p>gr&eacute;be</p></html>",
    "marked": "<html><body><p>ptáci</p></html>".encode("utf-16"),
    "unknown": "<html><meta charset=no-such-code><p>ptáci</p></html>".encode(),
}


@pytest.mark.parametrize(
    ("name", "text"),
    [("latin", "Zażółć"), ("japanese", "鳥"), ("entity", "grébe"), ("marked", "ptáci"), ("unknown", "ptáci")],
)
def test_a_page_is_read_in_the_encoding_that_it_declares(name: str, text: str) -> None:
    assert lines(read_document("a.xhtml", PAGES[name])) == [text]


@pytest.mark.parametrize(
    "data",
    [
        b"<html><body>{% for bird in birds %}<p>{{ bird }}</p>{% endfor %}</body></html>",
        b"<!DOCTYPE html><html><body><p><?php echo $bird ?></p></body></html>",
        b"<p class={{ kind }}>bird</p>",
        b"no page",
    ],
)
def test_a_template_is_source_code(data: bytes) -> None:
    reading = read_document("a.html", data)
    assert (reading.mark, reading.extracted.text) == ("-html/2", data.decode())


def test_source_code_with_markup_in_it_is_source_code() -> None:
    assert not is_extracted("a.js", b"<html><body>x</body></html>")
    assert not is_extracted("a.vue", b"<html><body>x</body></html>")


def test_a_pdf_has_pages() -> None:
    reading = read_document("a.pdf", DOCUMENTS["a.pdf"])
    assert anchored(reading) == [("p. 1", ["A stork", "stands."]), ("p. 2", ["A crane", "dances."])]


def test_broken_words_of_a_pdf_are_joined() -> None:
    assert lines(read_document("a.pdf", pdf(("a flamin-", "go stands", "Post-", "War")))) == [
        "a flamingo",
        "stands",
        "Post-",
        "War",
    ]


def test_a_running_head_of_a_pdf_is_indexed_once() -> None:
    pages = [("Birds of the marsh", f"bird {each}", "sings", f"{number}") for number, each in enumerate("abcdef")]
    reading = read_document("a.pdf", pdf(*pages))
    assert lines(reading).count("Birds of the marsh") == 1
    assert [name for name, _ in anchored(reading)] == [f"p. {number}" for number in range(1, 7)]
    assert {f"bird {each}" for each in "abcdef"} <= {*lines(reading)}


def test_a_scan_has_no_text() -> None:
    assert read_document("a.pdf", pdf((), ())).reason is SkipReason.NO_TEXT


def test_a_word_document_is_its_paragraphs_and_rows() -> None:
    body = paragraph("Title", "Title") + paragraph("a", "Heading2") + table(("x", "y"), ("", "z")) + paragraph("b")
    reading = read_document("a.docx", docx(body, footnotes=paragraph("a note")))
    assert lines(reading) == ["# Title", "## a", "x\ty", "\tz", "b", "a note"]
    assert anchored(reading) == [("footnotes", ["a note"])]


def test_a_text_box_is_read_once() -> None:
    body = f"<w:p><w:r><w:t>a </w:t></w:r><w:r>{text_box('w', 'a box')}</w:r></w:p>" + table(("x",)) + paragraph("b")
    assert lines(read_document("a.docx", docx(body))) == ["a a box", "x", "b"]
    assert lines(read_document("a.pptx", pptx(f"one</a:t></a:r></a:p>{text_box('a', 'two')}<a:p><a:r><a:t>three"))) == [
        "one",
        "two",
        "three",
    ]


def test_slides_are_in_the_order_of_the_show_with_their_notes() -> None:
    reading = read_document("a.pptx", pptx("one", "two", "three", notes={2: "say it"}))
    assert anchored(reading) == [("slide 1", ["one"]), ("slide 2", ["two", "say it"]), ("slide 3", ["three"])]


def test_each_row_of_a_sheet_is_a_line_anchored_at_its_first_cell() -> None:
    rows = (
        '<row r="2"><c r="B2" t="s"><v>1</v></c><c r="D2"><v>3.5</v></c></row><row r="3"><c r="A3"/></row>'
        '<row r="7"><c r="C7" t="inlineStr"><is><t>inline</t></is></c><c r="D7" t="s"><v>99</v></c></row>'
    )
    reading = read_document("a.xlsx", xlsx(rows, sheet="My birds", strings=("no", "yes")))
    assert anchored(reading) == [("My birds!B2", ["yes\t3.5"]), ("My birds!C7", ["inline"])]


def test_a_sheet_of_opendocument_counts_repeated_rows_and_cells() -> None:
    body = (
        '<table:table table:name="S"><table:table-row table:number-rows-repeated="4"><table:table-cell/>'
        '</table:table-row><table:table-row><table:table-cell table:number-columns-repeated="27"/>'
        "<table:table-cell><text:p>a</text:p></table:table-cell><table:table-cell><text:p>b</text:p>"
        "</table:table-cell></table:table-row></table:table>"
    )
    assert anchored(read_document("a.ods", opendocument("spreadsheet", body))) == [("S!AB5", ["a\tb"])]


def test_pages_of_a_presentation_of_opendocument_are_slides() -> None:
    body = "<draw:page><text:p>one</text:p></draw:page><draw:page><text:p>two<text:s/>words</text:p></draw:page>"
    assert anchored(read_document("a.odp", opendocument("presentation", body))) == [
        ("slide 1", ["one"]),
        ("slide 2", ["two words"]),
    ]


def test_a_book_is_read_in_order() -> None:
    reading = read_document("a.epub", epub(b="<h1 id='x'>first</h1>", a="<p>second</p>"))
    assert anchored(reading) == [("b.xhtml#x", ["# first"]), ("a.xhtml", ["second"])]


@pytest.mark.parametrize("name", ["a.epub", "a.odt"])
def test_an_archive_may_begin_with_any_member(name: str) -> None:
    with zipfile.ZipFile(io.BytesIO(DOCUMENTS[name])) as zipped:
        parts = {each: zipped.read(each) for each in reversed(zipped.namelist())}
    moved = documents.archive(parts)
    assert read_document(name, moved).extracted == read_document(name, DOCUMENTS[name]).extracted


def test_mail_has_its_headers_text_and_attachments() -> None:
    assert lines(read_document("a.eml", documents.MAIL)) == [
        "From: Ann <ann@example.org>", "To: Bob <bob@example.org>", "Date: Mon, 02 Mar 2026 10:00:00 +0000",
        "Subject: The grébe", "", "A grebe dives.", "attachment: grebe.png",
    ]  # fmt: skip


def test_mail_of_html_is_its_text() -> None:
    data = b"From: a@example.org\nSubject: s\nMIME-Version: 1.0\nContent-Type: text/html\n\n<p>A <b>knot</b></p>\n"
    assert lines(read_document("a.eml", data))[-1] == "A knot"


def test_a_mailbox_has_messages() -> None:
    found = anchored(read_document("a.mbox", documents.MAILBOX))
    assert [(name, [*filter(None, part)][1:]) for name, part in found] == [
        ("message 1", ["Subject: one", "A rail hides.", "From the reeds."]),
        ("message 2", ["Subject: two", "A crake calls."]),
    ]


def test_rtf_is_its_paragraphs() -> None:
    assert lines(read_document("a.rtf", documents.RTF)) == ["A snécessary snipe", "ци zigzag\tflight"]


def test_subtitles_have_their_times_as_anchors() -> None:
    assert anchored(read_document("a.srt", documents.SRT)) == [
        ("00:00:01", ["A bittern", "booms."]),
        ("01:02:03", ["Silence."]),
    ]
    assert anchored(read_document("a.vtt", documents.VTT)) == [("00:00:01", ["A dipper bobs."])]


def test_without_the_extra_a_page_is_text_and_a_pdf_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extractor, "_is_installed", lambda module: False)
    page = read_document("a.html", documents.HTML)
    assert (page.mark, page.extracted.text) == ("html/0", documents.HTML.decode())
    reading = read_document("a.pdf", DOCUMENTS["a.pdf"])
    assert (reading.mark, reading.reason) == ("pdf/0", SkipReason.NEEDS_EXTRA)
    assert read_document("a.docx", DOCUMENTS["a.docx"]).reason is None


@pytest.mark.parametrize("each", EXTRACTORS, ids=lambda each: each.name)
def test_an_extractor_knows_files_by_a_suffix_that_no_other_has(each: Extractor) -> None:
    assert each.suffixes
    assert not {*each.suffixes} & {suffix for other in EXTRACTORS if other != each for suffix in other.suffixes}

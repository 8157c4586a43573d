"""Each extractor extracts the text of a document in its format."""

from __future__ import annotations

import gzip
from collections.abc import Sequence

import pytest

from driftline.storage.documents import SkipReason
from driftline.tasks.extraction import extractor, html_pdf
from driftline.tasks.extraction.extractor import (
    EXTRACTORS,
    Extractor,
    Reading,
    definitions_by_part,
    is_extracted,
    read_document,
)
from driftline.tasks.extraction.process import Refused
from driftline.tasks.extraction.text_formats import attachments
from driftline.tasks.extraction.xml_parts import open_archive
from tests.support import documents
from tests.support.documents import (
    DOCUMENTS,
    docx,
    epub,
    opendocument,
    paragraph,
    parts,
    pdf,
    pptx,
    table,
    text_box,
    xlsx,
)


def lines(reading: Reading) -> list[str]:
    assert reading.reason is None
    return reading.extracted.text.splitlines()


def anchored(reading: Reading) -> list[tuple[str, list[str]]]:
    """Return the anchors of an extracted document, each with its lines."""
    all_lines = lines(reading)
    return [(each.name, all_lines[each.first : each.last + 1]) for each in reading.extracted.anchors]


def test_the_corpus_has_a_document_for_each_extractor() -> None:
    marks = {read_document(name, data).mark.rpartition("+")[2] for name, data in DOCUMENTS.items()}
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
    "wide": "<html><meta charset=utf-16><p>ptáci </p></html>".encode(),
    "wide XML": b'<?xml version="1.0" encoding="UTF-16"?><html><p>bird</p></html>',
    "western": b'<html><meta charset="iso-8859-1"><p>\x93bird\x94</p></html>',
    "windows": "<html><meta charset=windows-31j><p>鶴①</p></html>".encode("cp932"),
    "alias": "<html><meta charset=x-sjis><p>鶴①</p></html>".encode("cp932"),
}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("latin", "Zażółć"), ("japanese", "鳥"), ("entity", "grébe"), ("marked", "ptáci"), ("unknown", "ptáci"),
        ("wide", "ptáci"), ("wide XML", "bird"), ("western", "“bird”"), ("windows", "鶴①"), ("alias", "鶴①"),
    ],
)  # fmt: skip
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
    assert (reading.mark, reading.extracted.text) == ("-html/7", data.decode())


def test_source_code_with_markup_in_it_is_source_code() -> None:
    assert not is_extracted("a.js", b"<html><body>x</body></html>")
    assert not is_extracted("a.vue", b"<html><body>x</body></html>")


def test_a_pdf_has_pages() -> None:
    reading = read_document("a.pdf", DOCUMENTS["a.pdf"])
    assert anchored(reading) == [("p. 1", ["A stork", "stands."]), ("p. 2", ["A crane", "dances."])]


@pytest.mark.parametrize("hyphen", ["\xad", "\u2010", "\x02", "\ufffe", "-"])
def test_a_word_is_joined_at_each_hyphen_of_a_pdf(hyphen: str) -> None:
    assert html_pdf._joined(f"a flamin{hyphen}\r\ngo stands") == ["a flamingo", "stands"]


@pytest.mark.parametrize("word", ["الأهداف", "والإنسان", "الآن", "ألمانيا", "سأل", "لأن"])
def test_letters_of_an_arabic_ligature_of_a_pdf_are_in_order(word: str) -> None:
    drawn = word
    for alef in "أإآ":
        drawn = drawn.replace(f"ال{alef}", f"ا{alef}ل")
    assert html_pdf._joined(f"{drawn}\n{word}") == [word, word]


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


@pytest.mark.parametrize(
    "heads",
    [
        [f"Invoice No. {1000 + n}" for n in range(6)],
        [f"Chapter {n}" for n in range(1, 7)],
        [f"2026-03-0{n}" for n in range(1, 7)],
        [f"{n}. Nests" for n in range(1, 7)],
    ],
)
def test_lines_of_a_pdf_that_differ_in_a_number_are_text(heads: list[str]) -> None:
    pages = [(head, f"{at * 17} herons", f"Page {at + 1} of 6") for at, head in enumerate(heads)]
    text = [each for at, head in enumerate(heads) for each in (head, f"{at * 17} herons")]
    assert [line for line in lines(read_document("a.pdf", pdf(*pages))) if "Page" not in line] == text


@pytest.mark.parametrize(
    "heads",
    [
        ["Page {} of 9"], ["- {} -"], ["Birds of the marsh | {}"], ["{} Birds of the marsh"],
        ["{} Waders", "Chapter 3 {}"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("numbers", [range(11, 17), ("iii", "iv", "v", "vi", "vii", "viii")])
def test_lines_of_a_pdf_that_differ_in_the_page_number_are_running_heads(
    heads: list[str], numbers: Sequence[int | str]
) -> None:
    filled = [heads[at % len(heads)].format(number) for at, number in enumerate(numbers)]
    pages = [(head, f"bird {each}", "sings") for head, each in zip(filled, "abcdef", strict=True)]
    assert [line for line in lines(read_document("a.pdf", pdf(*pages))) if line in filled] == filled[: len(heads)]


def sections(reading: Reading) -> list[tuple[str, int, int]]:
    """Return the name, first line and last line of each section."""
    _, joined = definitions_by_part([(reading.path, reading.extracted)])
    return [(each.name, each.first, each.last) for each in joined([])[0]]


def test_lines_with_the_titles_of_bookmarks_are_headings() -> None:
    first = ("Contents", "1 Waders 2", "1.2 Curlews of the coast 2", "def call():")
    second = ("Chapter 1", "Waders and others", "see 1 Waders", "1 Waders", "1.2 Curlews of the", "coast", "Bills.")
    bookmarks = (("Waders", 1), ("Curlews of the coast", 1), ("Lost", 0), ("Gulls", 1))
    reading = read_document("a.pdf", pdf(first, second, bookmarks=bookmarks))
    assert lines(reading) == [*first, *second]
    assert sections(reading) == [("1 Waders", 7, 7), ("1.2 Curlews of the", 8, 10)]


def test_bookmarks_in_a_circle_end() -> None:
    data = pdf(("Waders",), bookmarks=(("Waders", 0), ("Gulls", 0)))
    (reading,) = (read_document("a.pdf", data.replace(b"/Dest [5 0 R", b"/First 7 0 R /Dest [5 0 R")),)
    assert sections(reading)[:1] == [("Waders", 0, 0)]


def test_code_of_a_page_has_no_headings() -> None:
    page = "<h1>Waders</h1><pre># count\n\nplumage\n-------\n1\n</pre><h2>Curlews</h2><p>a</p><h1>Gulls</h1>"
    found = sections(read_document("a.html", f"<html><body>{page}</body></html>".encode()))
    assert found == [("Waders", 0, 7), ("Waders > Curlews", 6, 7), ("Gulls", 8, 8)]


def test_a_box_next_to_the_text_is_text_and_navigation_is_not() -> None:
    boxes = '<div class="sphinxsidebar">Next</div><div class="sidebar"><p>Herons wade.</p></div><nav>Birds</nav>'
    assert lines(read_document("a.html", f"<html><body>{boxes}<p>Nests</p></body></html>".encode())) == [
        "Herons wade.",
        "Nests",
    ]


@pytest.mark.parametrize("subtype", ["FreeText", "Text", "Highlight"])
def test_a_pdf_has_the_notes_of_its_readers(subtype: str) -> None:
    field = f"<< /Type /Annot /Subtype /{subtype} /Rect [9 9 99 99] /Contents (a heron) >>"
    assert "a heron" in lines(read_document("a.pdf", documents.form(field, "b").replace(b"/AcroForm", b"/Other")))


@pytest.mark.parametrize(
    ("group", "found"),
    [
        (rb"{\*\annotation a heron}", ["one", "a heron"]), (rb"{\*\atnid Ann}", ["one"]),
        (rb"{\shp{\*\shpinst{\sp{\sn x}{\sv 1}}{\shptxt a heron}}}", ["one", "a heron"]),
        (rb"{\fonttbl{\*\annotation a heron}}", ["one"]),
        (rb"sto{\*\annotation a heron}rk", ["one", "stork", "a heron"]),
        (rb"stork{\footnote a heron\par wades} stands", ["one", "stork stands", "a heron", "wades"]),
        (rb"stork{\shp{\*\shpinst{\shptxt a heron\par}}} stands", ["one", "stork stands", "a heron"]),
        (rb"{\trowd a\nestcell b\nestcell{\*\nesttableprops\trowd\nestrow}{\nonesttables\par no}c\cell\row}",
         ["one", "a\tb", "c"]),
        (rb"{\pict\bin3 }}{}a\bin2 {{ heron", ["one", "a heron"]),
        (rb"C:\\bin32 has a heron\\\bin2 {{", ["one", "C:\\bin32 has a heron\\"]),
    ],
)  # fmt: skip
def test_rtf_has_comments_and_text_boxes(group: bytes, found: list[str]) -> None:
    text = rb"{\rtf1\ansi one\par " + group + rb"\par}"
    assert lines(read_document("a.rtf", text)) == found


@pytest.mark.parametrize(("word", "encoding"), [("mac", "mac_roman"), ("pc", "cp437"), ("pca", "cp850")])
def test_rtf_is_in_the_encoding_that_it_declares(word: str, encoding: str) -> None:
    escaped = "".join(f"\\'{byte:02x}" for byte in "äü".encode(encoding))
    assert lines(read_document("a.rtf", f"{{\\rtf1\\{word} {escaped}}}".encode())) == ["äü"]


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ('office:date-value="2026-03-01">*01.03.26', "2026-03-01"), ('office:value="7">*seven', "seven"),
        ('office:date-value="2026-03-01T12:30:00">*noon', "2026-03-01 12:30:00"), ('office:value="7">', "7"),
        ('office:string-value="heron">', "heron"), ('office:boolean-value="true">', "true"),
    ],
)  # fmt: skip
def test_a_cell_of_opendocument_has_its_value(cell: str, shown: str) -> None:
    attributes, _, text = cell.partition("*")
    paragraph = f"<text:p>{text}</text:p>" if text else ""
    row = f"<table:table-row><table:table-cell {attributes}{paragraph}</table:table-cell></table:table-row>"
    data = opendocument("spreadsheet", f'<table:table table:name="A">{row}</table:table>')
    assert anchored(read_document("a.ods", data)) == [("A!A1", [shown])]


def with_object(kind: str, body: str, content: str, name: str = "Object 1") -> bytes:
    embedded = '<draw:frame><draw:object xlink:href="./{}"/></draw:frame>'.format(name.replace(" ", "%20"))
    return documents.archive(parts(opendocument(kind, body.replace("*", embedded))) | {f"{name}/content.xml": content})


@pytest.mark.parametrize(
    ("kind", "body", "found"),
    [
        ("text", "<text:p>a *b</text:p><text:p>c</text:p>", [("", ["a b", "Nests", "heron", "c"])]),
        (
            "presentation",
            "<draw:page><text:p>a</text:p>*</draw:page><draw:page><text:p>b</text:p></draw:page>",
            [("slide 1", ["a", "Nests", "heron"]), ("slide 2", ["b"])],
        ),
        (
            "spreadsheet",
            '<table:table table:name="S"><table:shapes>*</table:shapes><table:table-row><table:table-cell/>'
            "<table:table-cell><text:p>b</text:p></table:table-cell></table:table-row></table:table>",
            [("S!A1", ["Nests"]), ("S!B1", ["b"])],
        ),
        (
            "spreadsheet",
            '<table:table table:name="S"><table:table-row><table:table-cell><text:p>b</text:p>*</table:table-cell>'
            "</table:table-row></table:table>",
            [("S!A1", ["b", "Nests"])],
        ),
    ],
    ids=["text", "slide", "sheet", "cell"],
)
@pytest.mark.parametrize("name", ["Object 1", "Chart_é"])
def test_a_chart_of_opendocument_keeps_its_position(
    kind: str, body: str, found: list[tuple[str, list[str]]], name: str
) -> None:
    row = "<table:table-row><table:table-cell><text:p>heron</text:p></table:table-cell></table:table-row>"
    chart = f"<chart:title><text:p>Nests</text:p></chart:title><table:table>{row}</table:table>"
    content = str(parts(opendocument("chart", chart))["content.xml"], "utf-8")
    reading = read_document("a", with_object(kind, body, content, name))
    assert anchored(reading) == found if found[0][0] else lines(reading) == found[0][1]


def test_a_chart_that_a_document_shows_often_is_read_once() -> None:
    body = f"<text:p>a{'*' * 9}</text:p>"
    chart = "<o xmlns:text='t'><text:p>Nests</text:p></o>"
    assert lines(read_document("a.odt", with_object("text", body, chart))) == ["a", "Nests"]


@pytest.mark.parametrize(
    ("inside", "shown"),
    [
        ("<mi>E</mi><mo>=</mo><mi>m</mi>", "E = m"),
        ("<semantics><mi>E</mi><annotation encoding='StarMath 5.0'>E = m c^2</annotation></semantics>", "E = m c^2"),
    ],
)
def test_a_formula_of_opendocument_is_part_of_its_paragraph(inside: str, shown: str) -> None:
    formula = f"<math xmlns='http://www.w3.org/1998/Math/MathML'>{inside}</math>"
    data = with_object("text", "<text:p>So*holds.</text:p>", formula, "Formula-0")
    assert lines(read_document("a.odt", data)) == [f"So {shown} holds."]
    cell = "<table:table-cell><text:p>*</text:p></table:table-cell>"
    table_of = f"<table:table><table:table-row>{cell}</table:table-row></table:table>"
    assert lines(read_document("a.odt", with_object("text", table_of, formula))) == [shown]


def test_a_picture_of_opendocument_has_its_description() -> None:
    picture = "<draw:frame><draw:image/><svg:title>Ponds</svg:title><svg:desc>A heron</svg:desc></draw:frame>"
    inside = opendocument("text", f"<text:p>one{picture}two</text:p>")
    assert lines(read_document("a.odt", inside)) == ["one Ponds A heron two"]
    alone = opendocument("presentation", f"<draw:page>{picture}<text:p>one</text:p></draw:page>")
    assert anchored(read_document("a.odp", alone)) == [("slide 1", ["Ponds", "A heron", "one"])]
    nested = opendocument("text", f"<chart:title><text:p>{picture}</text:p></chart:title><text:p>one</text:p>")
    assert lines(read_document("a.odt", nested)) == ["Ponds A heron", "one"]


@pytest.mark.parametrize(("charset", "encoding"), [("iso-8859-1", "latin-1"), ("koi8-r", "koi8-r"), ("utf-8", "utf-8")])
def test_mail_has_raw_headers_in_the_encoding_of_its_text(charset: str, encoding: str) -> None:
    word = "цапля" if encoding == "koi8-r" else "über"
    kind = f"Content-Type: text/plain; charset={charset}"
    head = f"From: a@b.org\nMIME-Version: 1.0\nMessage-ID: <1@b>\nSubject: a {word}\n{kind}\n\n{word}\n"
    assert lines(read_document("a.eml", head.encode(encoding)))[1:] == [f"Subject: a {word}", "", word]


def test_mail_has_the_subject_of_a_forwarded_mail() -> None:
    inner = "\n\n--x\nContent-Type: message/rfc822\n\nFrom: c@d.org\nSubject: heron\n\ninner\n--x--\n"
    kind = 'MIME-Version: 1.0\nMessage-ID: <1@b>\nContent-Type: multipart/mixed; boundary="x"'
    outer = f"From: a@b.org\n{kind}\n\n--x\n\nouter{inner}"
    found = lines(read_document("a.eml", outer.encode()))
    assert found == ["From: a@b.org", "", "outer", "From: c@d.org", "Subject: heron", "inner"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<form><input><p>Herons <label>wade</label></p><button>Send</button></form>", "Herons wade"),
        ("<p><ruby>東<rp>(</rp><rt>とう</rt><rp>)</rp>京<rt>きょう</rt></ruby>で</p>", "東京で"),
        ("<p>co&shy;operate</p>", "cooperate"),
        ("<p>a</p><p hidden>b</p>", "a"),
        ('<p hidden="until-found">folded</p>', "folded"),
        ("<footer>all rights</footer><blockquote>a<footer>by Ann</footer></blockquote>", "a\nby Ann"),
        ("<article>a<div class=footer>b</div></article><div class='x footer'>all rights</div>", "a\nb"),
        ("<p class=related>see b</p><div class=related>next</div>", "see b"),
    ],
)
def test_the_text_of_a_page_is_what_it_shows(body: str, text: str) -> None:
    assert lines(read_document("a.html", f"<html><body>{body}</body></html>".encode())) == text.split("\n")
    assert lines(read_document("a.epub", epub(one=body))) == text.split("\n")


@pytest.mark.parametrize("element", ["noframes", "noembed", "noscript"])
def test_a_page_omits_its_text_for_old_browsers(element: str) -> None:
    page = f"<html><body><p>a</p><{element}><p>See <b>b</b></p></{element}></body></html>".encode()
    assert lines(read_document("a.html", page)) == ["a"]


@pytest.mark.parametrize("declared", ["", '<!ENTITY nbsp "&#160;">', "<!-- don't -->\n<!ENTITY b 'x>y'>\n"])
@pytest.mark.parametrize("public", ["", ' PUBLIC "-//W3C//DTD XHTML 1.0 Strict//EN" "http://www.w3.org/a.dtd"'])
def test_a_page_omits_its_declarations(declared: str, public: str) -> None:
    head = f"<?xml version='1.0'?>\n<!-- a --><!DOCTYPE html{public} [{declared}]>\n"
    page = f"{head}<html><body><p>a [b]&gt;</p></body></html>"
    assert lines(read_document("a.xhtml", page.encode())) == ["a [b]>"]


@pytest.mark.parametrize("before", ["", "<!DOCTYPE html>", "<!-- <!DOCTYPE html [ -->"])
def test_declarations_in_a_script_do_not_hide_text(before: str) -> None:
    page = f"{before}<html><body><script>var type = '<!DOCTYPE html [';</script><p>a [b] > c</p></body></html>"
    assert lines(read_document("a.html", page.encode())) == ["a [b] > c"]


def test_pronunciations_and_soft_hyphens_are_left_out() -> None:
    ruby = "<text:ruby><text:ruby-base>東</text:ruby-base><text:ruby-text>とう</text:ruby-text></text:ruby>"
    body = f"<text:p>{ruby}{ruby}</text:p><text:p>he\xadron</text:p>"
    assert lines(read_document("a.odt", opendocument("text", body))) == ["東東", "heron"]
    assert lines(read_document("a.docx", docx(paragraph("he\xadron")))) == ["heron"]


def test_a_compressed_page_of_the_manual_is_its_paragraphs() -> None:
    reading = read_document("wade.1.gz", gzip.compress(documents.MAN))
    assert lines(reading) == [
        "# WADE(1)", "## NAME", "wade - walk in water", "## OPTIONS",
        "Wades like a heron-slowly, stand(1) \u201cas it is\u201d in K\u00f6ln's ponds_1.",
        "--depth cm Not deeper than cm .", "### Files", "/etc/wade.conf", "  two", "\u2022 An item.",
        "Bird\tNests", "Heron\tmany @ ponds\t2 h\u0153rons", "Owl\t1",
    ]  # fmt: skip
    assert [name for name, _, _ in sections(reading)] == [
        "WADE(1)", "WADE(1) > NAME", "WADE(1) > OPTIONS", "WADE(1) > OPTIONS > Files",
    ]  # fmt: skip
    assert lines(read_document("wade.8.gz", gzip.compress(documents.MDOC))) == [
        "# WADE(8)", "## NAME", "wade - walk in water", "## SYNOPSIS", "wade [-dv] [--depth=cm] file ...",
        "## DESCRIPTION", "See stand(1), \u201ca b\u201d, or [-q].", "-d, --deep Deep.",
    ]  # fmt: skip


def test_a_page_of_the_manual_that_people_edit_is_source_code() -> None:
    reading = read_document("wade.1", documents.MAN)
    assert (reading.mark, reading.extracted.text) == ("", documents.MAN.decode())


def test_a_scan_has_no_text() -> None:
    assert read_document("a.pdf", pdf((), ())).reason is SkipReason.NO_TEXT


def test_a_word_document_is_its_paragraphs_and_rows() -> None:
    body = paragraph("Title", "Title") + paragraph("a", "Heading2") + table(("x", "y"), ("", "z")) + paragraph("b")
    reading = read_document("a.docx", docx(body, footnotes=paragraph("a note")))
    assert lines(reading) == ["# Title", "## a", "x\ty", "\tz", "b", "a note"]
    assert anchored(reading) == [("footnotes", ["a note"])]


def test_a_text_box_is_read_once() -> None:
    body = f"<w:p><w:r><w:t>a </w:t></w:r><w:r>{text_box('w', 'a box')}</w:r></w:p>" + table(("x",)) + paragraph("b")
    assert lines(read_document("a.docx", docx(body))) == ["a box", "a", "x", "b"]
    assert lines(read_document("a.pptx", pptx(f"one</a:t></a:r></a:p>{text_box('a', 'two')}<a:p><a:r><a:t>three"))) == [
        "one",
        "two",
        "three",
    ]


def test_words_around_a_text_box_stay_apart_from_it() -> None:
    inner = f"<w:r>{text_box('w', 'inner')}</w:r>"
    heading = '<w:pPr><w:pStyle w:val="Heading1"/></w:pPr>'
    outer = f"<w:p>{heading}<w:r><w:t>be</w:t></w:r>{inner}<w:r><w:t>fore</w:t></w:r></w:p>"
    assert lines(read_document("a.docx", docx(outer + paragraph("b")))) == ["inner", "# before", "b"]
    assert lines(read_document("a.docx", docx(f"<w:tbl><w:tr><w:tc>{outer}</w:tc></w:tr></w:tbl>"))) == ["inner before"]


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
    parts = documents.parts(DOCUMENTS[name])
    turned = documents.archive(dict(reversed(parts.items())))
    assert read_document(name, turned).extracted == read_document(name, DOCUMENTS[name]).extracted


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


@pytest.mark.parametrize(
    ("charset", "encoding", "text"),
    [(204, "cp1251", "Привет"), (128, "cp932", "鶴は"), (161, "cp1253", "ερωδιός"), (0, "cp1252", "Kö")],
)
def test_rtf_is_in_the_encoding_of_its_font(charset: int, encoding: str, text: str) -> None:
    fonts = rf"{{\fonttbl{{\f0\fnil\fcharset{charset} A;}}{{\f1\fcharset0 B;}}}}"
    escaped = "".join(rf"\'{byte:02x}" for byte in text.encode(encoding))
    in_groups = rf"{{\f1 caf\'e9 {{\f0 {escaped}}} caf\'e9}}\par {escaped}\par \f1 \'e9\plain {escaped}"
    data = rf"{{\rtf1\ansi\ansicpg1252\deff0{fonts}{in_groups}\par}}".encode()
    assert lines(read_document("a.rtf", data)) == [f"café {text} café", text, f"é{text}"]


def test_subtitles_have_their_times_as_anchors() -> None:
    assert anchored(read_document("a.srt", documents.SRT)) == [
        ("00:00:01", ["A bittern", "booms."]),
        ("01:02:03", ["Silence."]),
    ]
    assert anchored(read_document("a.vtt", documents.VTT)) == [("00:00:01", ["Ann: A dipper bobs."])]


@pytest.mark.parametrize(
    "data",
    [
        documents.SRT.decode().encode("utf-16"),
        documents.SRT.decode().encode("utf-16-le"),
        documents.SRT.replace(b"\r\n", b"\r"),
        documents.SRT.replace(b"\r\n\r\n", b"\r\n"),
        documents.SRT.replace(b"01,000", b"01,00"),
        documents.SRT.replace(b",500\r\n", b",500\r\n\r\n"),
        documents.SRT.removeprefix(b"1\r\n").replace(b"\n2\r\n", b"\n"),
    ],
    ids=["UTF-16", "unmarked UTF-16", "CR", "no empty lines", "hundredths", "an empty line before", "no numbers"],
)
def test_subtitles_are_read_as_programs_write_them(data: bytes) -> None:
    assert read_document("a.srt", data).extracted == read_document("a.srt", documents.SRT).extracted


def test_subtitles_for_the_web_are_unescaped() -> None:
    first, second = "1\n00:01.000 --> 00:02.000\n<v.loud Ann>R&amp;D", "last\n00:02.000 --> 00:03.000\n<i>7</i>"
    data = f"WEBVTT\n\n{first}\n\nNOTE no\n\n{second}\n"
    assert lines(read_document("a.vtt", data.encode())) == ["Ann: R&D", "7"]


def test_captions_that_roll_up_are_read_once() -> None:
    cues = ("00:01", " \nA<00:01.5><c> dipper</c>"), ("00:02", "A dipper\n "), ("00:03", "A dipper\nx < y > z")
    data = "WEBVTT\n\n" + "".join(f"{time}.000 --> {time}.900\n{said}\n\n" for time, said in cues)
    assert anchored(read_document("a.vtt", data.encode())) == [("00:00:01", ["A dipper"]), ("00:00:03", ["x < y > z"])]


def with_parts(data: bytes, related: tuple[str, ...], parts: dict[str, str]) -> bytes:
    """Return a document with additional ``parts``, referenced by its part ``related``."""
    all_parts: dict[str, str | bytes] = {**documents.parts(data)}
    for owner, *targets in (related,):
        folder, _, base = owner.rpartition("/")
        listed = "".join(f'<Relationship Id="r{at}" Target="/{each}"/>' for at, each in enumerate(targets))
        all_parts[f"{folder}/_rels/{base}.rels"] = f"<Relationships>{listed}</Relationships>"
    return documents.archive(all_parts | parts)


OF_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def moved(data: bytes, owner: str, kind: str, name: str, target: str) -> bytes:
    """Return a document whose part ``name`` is called ``target``, which only a relation of ``owner`` says."""
    parts = documents.parts(data)
    parts[target] = parts.pop(name)
    folder, _, base = owner.rpartition("/")
    path = f"{folder}/_rels/{base}.rels".lstrip("/")
    listed = parts.get(path, b"<Relationships></Relationships>").decode()
    relation = f'<Relationship Id="r1" Type="{OF_OFFICE}/{kind}" Target="/{target}"/>'
    parts[path] = listed.replace("</Relationships>", f"{relation}</Relationships>").encode()
    return documents.archive(parts)


SHARED = xlsx('<row r="3"><c r="B3" t="s"><v>0</v></c></row>', strings=("heron",))
MOVED = moved(SHARED, "xl/workbook.xml", "sharedStrings", "xl/sharedStrings.xml", "xl/Strings7.xml")


@pytest.mark.parametrize(
    "data",
    [
        moved(docx(paragraph("heron")), "", "officeDocument", "word/document.xml", "word/document2.xml"),
        MOVED,
        moved(MOVED, "", "other", "xl/Strings7.xml", "xl/sTRINGS7.xml"),
    ],
    ids=["main part", "strings", "other case"],
)
def test_the_parts_of_an_office_file_are_found_by_its_relations(data: bytes) -> None:
    assert lines(read_document("a", data)) == ["heron"]


@pytest.mark.parametrize(
    ("name", "chunk"),
    [
        ("a.htm", b"<html><body><h1>Herons</h1><p>wade</p></body></html>"),
        (
            "a.mht",
            b"MIME-Version: 1.0\nContent-Type: multipart/related; boundary=x\n\n--x\nContent-Type: text/html\n\n"
            b"<html><h1>Herons</h1>wade</html>\n--x--\n",
        ),
        ("a.docx", docx(paragraph("Herons", "Heading1") + paragraph("wade"))),
        ("a.rtf", rb"{\rtf1 # Herons\par wade}"),
        ("a.txt", b"# Herons\nwade"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_word_document_has_the_documents_inserted_into_it(name: str, chunk: bytes) -> None:
    inserted = documents.archive(parts(docx(paragraph("one"))) | {f"word/{name}": chunk})
    found = read_document("a.docx", moved(inserted, "word/document.xml", "aFChunk", f"word/{name}", f"word/{name}"))
    assert [*filter(None, lines(found))] == ["one", "# Herons", "wade"]
    if name in ("a.htm", "a.docx"):
        assert found.extracted.headings == ((1, 1),)


@pytest.mark.parametrize(
    ("name", "chunk"),
    [
        ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)),
        ("a.docx", b"PK\x03\x04 damaged"),
        ("a.png", b"\x89PNG\0\0"),
    ],
)
def test_a_word_document_is_read_without_an_inserted_one_that_is_not(name: str, chunk: bytes) -> None:
    inserted = documents.archive(parts(docx(paragraph("one"))) | {f"word/{name}": chunk})
    found = read_document("a.docx", moved(inserted, "word/document.xml", "aFChunk", f"word/{name}", f"word/{name}"))
    assert [*filter(None, lines(found))] == ["one"]


def test_documents_may_not_be_inserted_into_each_other_without_end() -> None:
    with pytest.raises(Refused) as error, open_archive(docx(paragraph("one"))):
        raise RecursionError
    assert error.value.reason == SkipReason.BOMB


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("A heron wades", "one A heron wades two"),
        ("一只苍鹭", "one 一只苍鹭 two"),
        ("Picture 3", "onetwo"),
        ("C:\\My own files\\a.jpeg", "onetwo"),
        ("", "onetwo"),
    ],
)
def test_a_picture_has_its_description(said: str, found: str) -> None:
    shape = f'<p:cNvPr descr="{said}"/>'
    picture = f'<wp:docPr descr="{said}"/>{shape}'
    body = f'<w:p xmlns:wp="wp" xmlns:p="p"><w:r><w:t>one</w:t>{picture}<w:t>two</w:t></w:r></w:p>'
    assert " ".join(lines(read_document("a.docx", docx(body)))[0].split()) == " ".join(found.split())
    slides = documents.parts(pptx("one"))
    name = "ppt/slides/slide1.xml"
    slides[name] = slides[name].replace(b"<a:p>", b"<p:pic xmlns:p='p'>%s</p:pic><a:p>" % shape.encode(), 1)
    assert lines(read_document("a.pptx", documents.archive(slides))) == [*([said] if " " in found else []), "one"]


def test_headers_and_footers_of_a_word_document_are_read_once() -> None:
    relations = "".join(
        f'<Relationship Id="r{at}" Type="{OF_OFFICE}/{kind}" Target="{kind}{at}.xml"/>'
        for at, kind in enumerate(("header", "header", "footer"))
    )
    egret = paragraph("Egret")
    parts = documents.parts(docx(paragraph("one"), header0=egret, header1=egret, footer2=paragraph("Draft")))
    parts["word/_rels/document.xml.rels"] = f"<Relationships>{relations}</Relationships>".encode()
    reading = read_document("a.docx", documents.archive(parts))
    assert (lines(reading), [name for name, _ in anchored(reading)]) == (
        ["one", "Egret", "Draft"],
        ["header", "footer"],
    )


def test_cells_without_a_name_follow_the_one_before() -> None:
    rows = '<row><c><v>1</v></c></row><row><c/><c><v>2</v></c></row><row r="9"><c r="AZ9"/><c><v>3</v></c></row>'
    found = anchored(read_document("a.xlsx", xlsx(rows)))
    assert [name for name, _ in found] == ["Birds!A1", "Birds!B2", "Birds!BA9"]


def test_characters_that_xml_cannot_contain_are_unescaped() -> None:
    rows = '<row><c t="s"><v>0</v></c><c t="inlineStr"><is><t>_x005F_x000D_</t></is></c></row>'
    assert lines(read_document("a.xlsx", xlsx(rows, strings=("heron_x000D_",)))) == ["heron\t_x000D_"]


@pytest.mark.parametrize(
    ("declared", "reason"),
    [('PUBLIC "+//OEB 1.2//EN" "http://example.org/a.dtd"', None), ('[<!ENTITY a "aa">]', SkipReason.DAMAGED)],
)
def test_a_document_type_may_not_declare_entities(declared: str, reason: SkipReason | None) -> None:
    parts = documents.parts(epub(one="<p>a</p>"))
    parts["OPS/book.opf"] = f"<!DOCTYPE package {declared}>".encode() + parts["OPS/book.opf"]
    assert read_document("a.epub", documents.archive(parts)).reason is reason


@pytest.mark.parametrize(("file", "reason"), [("one.xhtml", SkipReason.ENCRYPTED), ("font.otf", None)])
def test_a_book_is_encrypted_if_a_chapter_is(file: str, reason: SkipReason | None) -> None:
    said = f"<encryption><EncryptedData><CipherReference URI='OPS/{file}'/></EncryptedData></encryption>".encode()
    book = documents.parts(epub(one="<p>a</p>")) | {"META-INF/encryption.xml": said}
    assert read_document("a.epub", documents.archive(book)).reason is reason


CHART = (
    "<c:chart xmlns:c='c' xmlns:a='a'><a:p><a:r><a:t>Herons by year</a:t></a:r></a:p>"
    + 2 * "<c:strCache><c:pt><c:v>2024</c:v></c:pt><c:pt><c:v>2025</c:v></c:pt></c:strCache>"
    + "<c:numCache><c:pt><c:v>7</c:v></c:pt></c:numCache></c:chart>"
)


def test_slides_have_the_words_of_charts_and_comments() -> None:
    parts = {
        "ppt/charts/chart1.xml": CHART,
        "ppt/comments/comment1.xml": "<p:cmLst xmlns:p='p'><p:cm><p:text>Count again</p:text></p:cm></p:cmLst>",
    }
    data = with_parts(pptx("one"), ("ppt/slides/slide1.xml", *parts), parts)
    assert anchored(read_document("a.pptx", data)) == [
        ("slide 1", ["one", "Herons by year", "2024\t2025", "Count again"])
    ]


@pytest.mark.parametrize("name", ["<c:v>Ruffs</c:v>", "<c:strRef><c:strCache><c:v>Ruffs</c:v></c:strCache></c:strRef>"])
def test_the_series_of_a_chart_have_their_names(name: str) -> None:
    series = f"<c:ser><c:tx>{name}</c:tx><c:val><c:v>7</c:v></c:val></c:ser>"
    chart = {"ppt/charts/chart1.xml": CHART.replace("<c:numCache>", f"{series}<c:numCache>")}
    data = with_parts(pptx("one"), ("ppt/slides/slide1.xml", "ppt/charts/chart1.xml"), chart)
    found = lines(read_document("a.pptx", data))
    assert (found.count("Ruffs"), "7" in found) == (1, False)


def test_a_chart_of_a_word_document_is_read_once() -> None:
    chart = "word/charts/chart1.xml"
    data = with_parts(docx(paragraph("one")), ("word/document.xml", *3 * [chart]), {chart: CHART})
    assert lines(read_document("a.docx", data)) == ["one", "Herons by year", "2024\t2025"]


def test_slide_numbers_are_not_indexed() -> None:
    number = '</a:t></a:r><a:fld type="slidenum"><a:t>7</a:t></a:fld><a:r><a:t>'
    assert lines(read_document("a.pptx", pptx(f"one{number}two"))) == ["onetwo"]


def test_a_sheet_has_the_words_of_drawings_and_of_comments_at_their_cells() -> None:
    parts = {
        "xl/drawings/drawing1.xml": "<d xmlns:a='a'><a:p><a:r><a:t>A box</a:t></a:r></a:p></d>",
        "xl/comments1.xml": "<comments><comment ref='C3'><text><r><t>Who?</t></r></text></comment></comments>",
    }
    data = with_parts(xlsx('<row><c r="A2"><v>7</v></c></row>'), ("xl/worksheets/sheet1.xml", *parts), parts)
    found = anchored(read_document("a.xlsx", data))
    assert found == [("Birds!A2", ["7"]), ("Birds!A1", ["A box"]), ("Birds!C3", ["Who?"])]


def test_a_drawing_that_refers_to_itself_is_read_once() -> None:
    drawing = "xl/drawings/drawing1.xml"
    parts = {drawing: "<d xmlns:a='a'><a:p><a:r><a:t>A box</a:t></a:r></a:p></d>"}
    data = with_parts(xlsx("<row/>"), ("xl/worksheets/sheet1.xml", drawing), parts)
    again = with_parts(data, (drawing, drawing), {})
    assert lines(read_document("a.xlsx", again)).count("A box") == 2


@pytest.mark.parametrize(
    ("style", "value", "shown"),
    [
        (0, "45352", "45352"), (1, "45352", "2024-03-01"), (2, "45352.5625", "2024-03-01 13:30:00"),
        (1, "0.25", "06:00:00"), (3, "45352", "45352"), (1, "-1", "-1"), (1, "1e300", "1e300"), (9, "5", "5"),
        (0, "0.30000000000000004", "0.3"),
        (0, "seven", "seven"), (4, "1.25", "30:00:00"), (5, "0.5", "12:00:00"), (4, "-0.0625", "-1:30:00"),
        (6, "45352", "2024-03-01"), (1, "1", "1900-01-01"), (1, "59", "1900-02-28"), (1, "61", "1900-03-01"),
    ],
)  # fmt: skip
def test_a_date_of_a_sheet_reads_as_a_date(style: int, value: str, shown: str) -> None:
    formats = '<numFmt numFmtId="170" formatCode="yyyy\\-mm"/><numFmt numFmtId="171" formatCode="0 &quot;days&quot;"/>'
    formats += (
        '<numFmt numFmtId="172" formatCode="[h]:mm"/><numFmt numFmtId="173" formatCode="[Red]&quot;[h]&quot;yyyy"/>'
    )
    of_cells = "".join(f'<xf numFmtId="{each}"/>' for each in (0, 14, 170, 171, 172, 46, 173))
    parts = {"xl/styles.xml": f'<s><numFmts>{formats}</numFmts><xf numFmtId="14"/><cellXfs>{of_cells}</cellXfs></s>'}
    data = with_parts(xlsx(f'<row><c r="A1" s="{style}"><v>{value}</v></c><c><v>x</v></c></row>'), ("xl/none",), parts)
    assert lines(read_document("a.xlsx", data)) == [f"{shown}\tx"]


def test_phonetic_text_of_a_cell_is_not_indexed() -> None:
    rows = '<row><c r="A1" t="s"><v>0</v></c></row>'
    spoken = "豊田</t><rPh sb='0' eb='2'><t>トヨタ</t></rPh><t>車"
    assert lines(read_document("a.xlsx", xlsx(rows, strings=(spoken,)))) == ["豊田車"]


def test_moved_text_is_read_only_at_its_new_place() -> None:
    moved = "<w:moveFrom><w:r><w:t>gone</w:t></w:r></w:moveFrom>"
    body = f"<w:p>{moved}<w:r><w:t>sea</w:t><w:noBreakHyphen/><w:t>bird</w:t></w:r></w:p>"
    assert lines(read_document("a.docx", docx(body))) == ["sea-bird"]


def test_the_parts_of_a_formula_are_separated() -> None:
    half = "<m:f><m:num><m:r><m:t>1</m:t></m:r></m:num><m:den><m:r><m:t>2</m:t></m:r></m:den></m:f>"
    square = "<m:sSup><m:e><m:t>x</m:t></m:e><m:sup><m:t>2</m:t></m:sup></m:sSup><m:sSup><m:sup/></m:sSup>"
    body = f'<w:p><m:oMath xmlns:m="m">{half}{square}</m:oMath></w:p>'
    assert lines(read_document("a.docx", docx(body))) == ["1/2x^2"]


def test_notes_and_comments_follow_their_paragraph() -> None:
    note = (
        "<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>Really.</text:p></text:note-body>"
    )
    comment = "<office:annotation><text:date>2026</text:date><text:p>Who?</text:p></office:annotation>"
    body = f"<text:h>A heron{note}</text:note> sleeps{comment}.</text:h>"
    assert lines(read_document("a.odt", opendocument("text", body))) == ["# A heron sleeps.", "Really.", "Who?"]
    cell = f"<table:table-cell>{comment}<text:p>7</text:p></table:table-cell>"
    sheet = f'<table:table table:name="S"><table:table-row>{cell}</table:table-row></table:table>'
    assert anchored(read_document("a.ods", opendocument("spreadsheet", sheet))) == [("S!A1", ["Who? 7"])]


def test_a_table_in_a_text_box_of_a_paragraph_keeps_its_rows() -> None:
    comment = "<office:annotation><text:p>Who?</text:p></office:annotation>"
    rows = "".join(
        f"<table:table-row>{''.join(f'<table:table-cell><text:p>{c}</text:p></table:table-cell>' for c in row)}"
        "</table:table-row>"
        for row in (("a", f"b{comment}"), ("c", "d"))
    )
    box = f"<draw:text-box><text:p>Caption</text:p><table:table>{rows}</table:table></draw:text-box>"
    body = f"<text:p>Around<draw:frame>{box}</draw:frame> it</text:p><text:p>Next</text:p>"
    found = lines(read_document("a.odt", opendocument("text", body)))
    assert found == ["Around it", "Caption", "Who?", "a\tb", "c\td", "Next"]


def test_a_paragraph_alone_in_a_cell_leaves_the_row_whole() -> None:
    page = (
        "<html><table><tr>\n <td>\n<p>Ruff</p></td><td><div>7</div>\n</td></tr>\n<tr><td>Two<p>lines</p></td><td>8</td>"
        "</tr></table><p>After</p><p>that</p></html>"
    )
    assert lines(read_document("a.html", page.encode())) == ["Ruff\t7", "Two", "lines\t8", "After", "that"]


def test_a_filled_form_of_a_pdf_has_its_values() -> None:
    field = (
        "<< /Type /Annot /Subtype /Widget /FT /Tx /T (name) /V (Ada) /F 4 /Rect [50 700 250 720] /AP << /N 3 0 R >> >>"
    )
    assert "Ada Heron" in lines(read_document("a.pdf", documents.form(field, "Ada Heron")))


def test_mail_has_the_text_between_its_attachments() -> None:
    parts = [
        "\n\nBefore",
        "Content-Type: image/png; name=a.png\n\n",
        "\n\nAfter",
        "Content-Type: text/plain; name=b.txt\n\nno",
    ]
    body = "".join(f"--x\n{each.lstrip() if each.startswith('C') else each}\n" for each in parts)
    data = f"From: a@example.org\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=x\n\n{body}--x--\n"
    found = [*filter(None, lines(read_document("a.eml", data.encode())))]
    assert found[1:] == ["Before", "After", "attachment: a.png", "attachment: b.txt"]


@pytest.mark.parametrize("around", ["{}", "multipart/alternative; boundary=y\n\n--y\nContent-Type: {}\n--y--"])
def test_mail_has_the_text_of_a_forwarded_page(around: str) -> None:
    forwarded = (
        f"From: b@example.org\nContent-Type: {around.format('text/html' + 2 * chr(10) + '<p>A <b>knot</b></p>')}"
    )
    body = f"--x\n\nSee below\n--x\nContent-Type: message/rfc822\n\n{forwarded}\n"
    data = f"From: a@example.org\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=x\n\n{body}--x--\n"
    assert [*filter(None, lines(read_document("a.eml", data.encode())))][1:] == [
        "See below",
        "From: b@example.org",
        "A knot",
    ]


def message(kind: str, *parts: str) -> bytes:
    body = "".join(f"--x\n{each}\n" for each in parts)
    head = "From: a@example.org\nMIME-Version: 1.0\nMessage-ID: <1@example.org>\n"
    return f"{head}Content-Type: multipart/{kind}; boundary=x\n\n{body}--x--\n".encode()


PAGE = "Content-Type: text/html\n\n<p>{}</p>"
PICTURE = "Content-Type: image/png; name=a.png\n\n"
UNNAMED = "Content-Type: application/pdf\nContent-Disposition: attachment\n\nno"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (message("mixed", PAGE.format("one"), PICTURE, PAGE.format("two")), ["one", "two", "attachment: a.png"]),
        (message("mixed", "\none", PAGE.format("two")), ["one", "two"]),
        (message("alternative", "\none", PAGE.format("two")), ["one"]),
        (
            message("related", PAGE.format("one"), PICTURE, "Content-Type: text/html\n\nframe"),
            ["one", "attachment: a.png"],
        ),
        (message("mixed", "\none", "Content-Type: text/calendar\n\nSUMMARY:Count"), ["one", "Summary: Count"]),
        (message("mixed", "\none", UNNAMED), ["one", "attachment: attachment.pdf"]),
    ],
    ids=["pages", "text and page", "alternatives", "related", "invitation", "unnamed"],
)
def test_mail_has_all_its_texts_and_one_of_alternatives(data: bytes, text: list[str]) -> None:
    assert [*filter(None, lines(read_document("a.eml", data)))][1:] == text
    named = [each.removeprefix("attachment: ") for each in text if each.startswith("attachment")]
    assert [name for name, _ in attachments(data)] == named


@pytest.mark.parametrize(
    ("charset", "body", "text"),
    [
        ("gb2312", "镕基".encode("gbk"), "镕基"), ("iso-8859-1", b"\x93rail\x94", "“rail”"),
        ("us-ascii", "Köln".encode(), "Köln"), ("utf-8", "Köln".encode(), "Köln"), ("no-such-code", b"rail", "rail"),
    ],
)  # fmt: skip
def test_mail_is_read_in_the_encoding_that_it_is_in(charset: str, body: bytes, text: str) -> None:
    head = f"From: a@example.org\nSubject: s\nMIME-Version: 1.0\nContent-Type: text/plain; charset={charset}\n\n"
    assert lines(read_document("a.eml", head.encode() + body))[-1] == text


@pytest.mark.parametrize(
    ("path", "before"),
    [
        ("cur/1.host:2,S", b""), ("1.emlx", b"1000\n"), ("a.eml", b"\xef\xbb\xbf"),
        ("a.eml", b"From ann@b.org Mon Mar  2 10:00:00 2026\r\n"), ("a.eml", b"From ann\n"),
        ("a.eml", b"DKIM-Signature: " + 9_000 * b"a" + b"\n"),
    ],
)  # fmt: skip
def test_mail_is_recognized_as_programs_store_it(path: str, before: bytes) -> None:
    reading = read_document(path, before + message("mixed", "\none"))
    assert (reading.mark, "one" in lines(reading)) == ("mail/7", True)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("declared", ["", "; charset=utf-16", "; charset=iso-8859-1", "; charset=utf-8"])
def test_mail_with_a_byte_order_mark_is_mail(encoding: str, declared: str) -> None:
    def saved(text: str) -> bytes:
        return f"\ufeff{text}".encode(encoding)

    one = f"From: a@example.org\nTo: Köln@example.org\nSubject: s\nContent-Type: text/plain{declared}\n\nGrébe 鷺\n"
    assert lines(read_document("a.eml", saved(one)))[-1] == "Grébe 鷺"
    quoted = one.replace("\n\nGrébe 鷺", "\nContent-Transfer-Encoding: base64\n\nR3LDqWJl").replace("utf-16", "utf-8")
    assert lines(read_document("a.eml", saved(quoted)))[-1] in ("Grébe", "GrÃ©be")  # in the encoding that it declares
    box = "".join(f"From a@example.org Mon Mar  2 10:00:0{at} 2026\n{one}\n" for at in range(3))
    found = anchored(read_document("a.mbox", saved(box)))
    assert [(name, "Grébe 鷺" in part) for name, part in found] == [(f"message {at}", True) for at in (1, 2, 3)]


def test_saved_mail_may_lack_all_headers_of_servers() -> None:
    head = "To: b@example.org\nSubject: s\n\none\n"
    assert read_document("a.eml", head.encode()).mark == "mail/7"
    assert read_document("a", head.encode()).mark == ""


def test_a_calendar_has_its_searchable_fields() -> None:
    assert anchored(read_document("a.ics", documents.CALENDAR)) == [
        (
            "entry 1",
            ["Dtstart: 20260302T100000", "Summary: Count the greebe nests", "Attendee: Ann Lee mailto:ann@example.org",
             "Description: Bring boots, please.", "No dogs."],
        ),
        ("entry 2", ["Summary: Paint"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ORG:Heron\\; Co;Ponds", ["Org: Heron Co Ponds"]),
        ("item1.EMAIL;TYPE=work:a@b.org", ["Email: a@b.org"]),
        ("NOTE;ENCODING=QUOTED-PRINTABLE:caf=C3=\r\n=A9", ["Note: café"]),
        ("NOTE;ENCODING=QUOTED-PRINTABLE:café=20noir", ["Note: café noir"]),
        ("NOTE;CHARSET=ISO-8859-1;ENCODING=QUOTED-PRINTABLE:caf=E9", ["Note: café"]),
        ("NOTE;CHARSET=idna;ENCODING=QUOTED-PRINTABLE:caf=C3=A9", ["Note: café"]),
        ("TEL;TYPE=WORK,VOICE:+39 1", ["Tel: +39 1"]),
        ("PHOTO;ENCODING=b:AAAA", []),
        ("note:a heron\r\n  nests", ["Note: a heron nests"]),
    ],
)
def test_a_contact_has_its_searchable_fields(line: str, found: list[str]) -> None:
    data = f"BEGIN:VCARD\r\nFN:Ann\r\n{line}\r\nEND:VCARD\r\n".encode()
    assert anchored(read_document("a.vcf", data)) == [("entry 1", ["Fn: Ann", *found])]


def test_mail_has_the_appointment_that_it_is_about() -> None:
    entry = f"Content-Type: text/calendar; method=REQUEST\n\n{documents.CALENDAR.decode()}"
    for parts_of_mail in ((entry,), ("Content-Type: text/plain\n\nCome.", entry)):
        found = lines(read_document("a.eml", message("alternative", *parts_of_mail)))
        assert "Summary: Count the greebe nests" in found
        assert not [line for line in found if line.startswith(("BEGIN", "UID"))]


def test_a_sentence_that_begins_with_from_does_not_begin_an_email() -> None:
    data = documents.MAILBOX.replace(b"A rail hides.", b"Hello,\n\nFrom the reeds, a rail.")
    assert [name for name, _ in anchored(read_document("a.mbox", data))] == ["message 1", "message 2"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (extractor.OLE + "WordDocument".encode("utf-16-le"), SkipReason.OTHER_OFFICE),
        (extractor.OLE + "__substg1.0_0037001F".encode("utf-16-le"), SkipReason.OTHER_OFFICE),
        (extractor.OLE + "Catalog".encode("utf-16-le"), SkipReason.BINARY),
        (documents.archive({"xl/workbook.bin": b"\0"}), SkipReason.OTHER_OFFICE),
        (documents.archive({"Index/Document.iwa": b"\0"}), SkipReason.IWORK),
        (documents.archive({"docs/Index/Document.iwa": b"\0"}), SkipReason.ARCHIVE),
    ],
)
@pytest.mark.parametrize("name", ["a", "a.doc", "a.key"])
def test_a_format_that_is_not_read_is_a_reason(data: bytes, reason: SkipReason, name: str) -> None:
    assert read_document(name, data).reason == reason
    if reason != SkipReason.ARCHIVE:
        assert read_document(f"{name}.gz", gzip.compress(data)).reason == reason


def test_without_the_extra_a_page_is_text_and_a_pdf_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extractor, "_is_installed", lambda module: False)
    page = read_document("a.html", documents.HTML)
    assert (page.mark, page.extracted.text) == ("html/0", documents.HTML.decode())
    reading = read_document("a.pdf", DOCUMENTS["a.pdf"])
    assert (reading.mark, reading.reason) == ("pdf/0", SkipReason.NEEDS_EXTRA)
    assert read_document("a.docx", DOCUMENTS["a.docx"]).reason is None


@pytest.mark.parametrize("each", EXTRACTORS, ids=lambda each: each.name)
def test_an_extractor_knows_files_by_a_suffix_that_no_other_has(each: Extractor) -> None:
    assert each.suffixes or each.packed  # the manual's sections are not document names
    assert not {*each.suffixes} & {suffix for other in EXTRACTORS if other != each for suffix in other.suffixes}

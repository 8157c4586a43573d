"""Compare extracted text with pdftotext and pandoc; measure extraction speed and memory, and a first run over HTML.

    apt-get install poppler-utils pandoc
    .venv/bin/python tests/benchmarks/extraction.py

Documents come from Debian packages; Word documents are ODT files converted by pandoc. Words are counted
case-insensitively. The reference text of an HTML page is its main part, since navigation is omitted on purpose.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the tests' documents

import measure
import pypdfium2
from lxml import html
from packages import Package, unpacked

import driftline
from driftline.storage.defaults import CUT
from driftline.storage.lines.outline import Anchor
from driftline.tasks.extraction import html_pdf
from driftline.tasks.extraction.extractor import Extracted, read_document
from tests.support.documents import DOCUMENTS

PACKAGES = (
    Package("debian", "r-doc-pdf", "4.2.2.20221110-2"),
    Package("debian", "bash-doc", "5.2.15-2"),
    Package("debian", "why3-doc-pdf", "1.5.1-1"),
    Package("debian", "docbook-xsl-doc-pdf", "1.79.1-1"),
    Package("debian", "developers-reference", "12.18"),
    Package("debian", "live-manual-pdf", "2:20151217.2"),
    Package("debian", "live-manual-odf", "2:20151217.2"),
    Package("debian", "postgresql-doc-15", "15.20-0+deb12u1"),
    Package("debian", "python3.11-doc", "3.11.2-6+deb12u9"),
)
QUESTIONS = Path(__file__).parent / "document_questions.tsv"
"""Columns: the document's name, words on the correct lines, and a question."""
OTHER_MANUALS = ("R-ints.pdf", "bash.pdf")
KINDS = ("pdf", "docx", "odt", "epub", "html")
MOST = 120
"""Maximum number of documents to compare per kind, evenly spaced."""
NEAR = 120
"""Number of characters in about one line."""
FEW_BYTES = 10_000
"""Smaller PDFs in these packages consist of empty pages."""
_WORD = re.compile(r"[^\W_]+")
_BROKEN = re.compile(r"(?<=\w)-\n\s*(?=[^\WA-Z\d])")
_LIGATURES = {0xAD: "", 0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl"}
_BLANKS, _PREFIX = re.compile(r"[\s\xa0]+"), re.compile(r"^(?:#+|-) ")
_MAIN = '//*[@role="main"] | //body[not(.//*[@role="main"])]'
_AROUND = "//*[self::nav or self::footer or self::script or self::style or contains(@class, 'headerlink')]"
_AROUND += " | //*[contains(@class, 'navheader') or contains(@class, 'navfooter')]"
_WITHOUT = (
    sys.executable,
    "-c",
    "import sys; import driftline.tasks.extraction.extractor as extractor; "
    "extractor._is_installed = lambda module: False; "
    "from driftline.__main__ import run; sys.exit(run())",
)
"""The command as on a host without the extra."""


@dataclass(frozen=True, slots=True)
class Document:
    """A decompressed document and its kind (the file suffix)."""

    kind: str
    data: bytes

    def reference(self) -> str:
        """Return the document's text as extracted by another program."""
        data = _main_part(self.data) if self.kind == "html" else self.data
        if self.kind == "pdf":
            command = ["pdftotext", "-enc", "UTF-8", "-", "-"]
        else:
            command = ["pandoc", "-f", self.kind, "-t", "plain", "--wrap=none"]
        done = subprocess.run(command, input=data, capture_output=True, check=False)
        return done.stdout.decode("utf-8", "replace").translate(_LIGATURES)


def _main_part(data: bytes) -> bytes:
    tree = html.document_fromstring(data)
    for part in tree.xpath(_AROUND):
        part.drop_tree()
    return b"".join(html.tostring(part, encoding="utf-8") for part in tree.xpath(_MAIN))


def documents() -> Iterator[Document]:
    """Yield the documents in the packages, without duplicates."""
    seen: set[bytes] = set()
    for folder in map(unpacked, PACKAGES):
        for path in sorted(folder.rglob("*")):
            kind = path.name.removesuffix(".gz").rpartition(".")[2]
            if kind in KINDS and path.is_file() and not path.is_symlink():
                data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
                if data in seen or (kind == "pdf" and len(data) < FEW_BYTES):
                    continue
                seen.add(data)
                yield Document(kind, data)
                if kind == "odt":
                    yield Document("docx", _converted(data))


def _converted(odt: bytes) -> bytes:
    command = ["pandoc", "-f", "odt", "-t", "docx", "-o", "-"]
    return subprocess.run(command, input=odt, capture_output=True, check=True).stdout


def words(text: str) -> Counter[str]:
    """Return the words of ``text``; words hyphenated at a line end are joined."""
    return Counter(word.casefold() for word in _WORD.findall(_BROKEN.sub("", text)))


def main() -> int:
    options = measure.begin(__doc__)
    verdict = measure.Verdict(options.small)
    if options.small:
        found = [Document(name.rpartition(".")[2], data) for name, data in DOCUMENTS.items()]
        found = [each for each in found if each.kind in KINDS]
    else:
        found = [*documents()]
    if shutil.which("pdftotext") and shutil.which("pandoc"):
        compare(found, verdict)
    else:
        print("  pdftotext and pandoc are not installed: nothing is compared", flush=True)
    speed(found, verdict)
    with measure.scratch() as root:
        runs(found, root, verdict)
        if not options.small:
            answers(root / "questions", verdict)
    return verdict.exit_code


def compare(found: Sequence[Document], verdict: measure.Verdict) -> None:
    """Compare the words of each kind with the reference's words, and check the anchors in PDF and HTML."""
    right = placed = 0
    for kind in KINDS:
        of_kind = [each for each in found if each.kind == kind]
        of_kind = of_kind[:: -(-len(of_kind) // MOST)] if of_kind else []
        expected = both = own = 0
        for document in of_kind:
            extracted = read_document(f"a.{kind}", document.data).extracted
            text = document.reference()
            ours, theirs = words(extracted.text), words(text)
            if not theirs:
                continue  # the other program rejects it
            expected, own, both = expected + theirs.total(), own + ours.total(), both + (ours & theirs).total()
            good = of = 0
            if kind == "pdf":
                good, of = _pdf_anchors(extracted.text.split("\n"), extracted.anchors, text)
            elif kind == "html":
                good, of = _html_anchors(extracted.text.split("\n"), extracted.anchors, _main_part(document.data))
            right, placed = right + good, placed + of
        print(f"  {kind}: {len(of_kind)} documents, {expected:,} words, {both / max(own, 1):.2%} of ours are theirs")
        verdict.at_least(f"words of the reference, {kind}", 100 * both / max(expected, 1), 99.0, "%")
    verdict.at_least("lines whose anchor is right, PDF and HTML", 100 * right / max(placed, 1), 97.0, "%")


def _pdf_anchors(lines: Sequence[str], anchors: Sequence[Anchor], reference: str) -> tuple[int, int]:
    """Return how many lines have all their words on the anchor's page, and how many lines there are."""
    of_pages = [words(page) for page in reference.split("\f")]
    good = of = 0
    for anchor in anchors:
        page = of_pages[int(anchor.name.removeprefix("p. ")) - 1]
        for line in lines[anchor.first : anchor.last + 1]:
            good, of = good + (not words(line) - page), of + 1
    return good, of


def _html_anchors(lines: Sequence[str], anchors: Sequence[Anchor], data: bytes) -> tuple[int, int]:
    """Return how many lines are anchored to the nearest id above (within NEAR characters), and how many lines there
    are.
    """
    whole, locations = _ids(html.document_fromstring(data))
    starts = [location for location, _ in locations]
    at = good = of = 0
    for anchor in anchors:
        for line in filter(None, map(_bare, lines[anchor.first : anchor.last + 1])):
            at = max(at, whole.find(line, at))
            nearest = starts[bisect_right(starts, at) - 1]
            good += any(name == anchor.name[1:] and nearest - NEAR <= location <= at for location, name in locations)
            of += 1
    return good, of


def _ids(tree: html.HtmlElement) -> tuple[str, list[tuple[int, str]]]:
    """Return the text of a page without blanks, and the position of each id in it."""
    parts, locations, size = list[str](), [(0, "")], 0

    def add(text: str | None) -> None:
        nonlocal size
        parts.append(_BLANKS.sub("", text or ""))
        size += len(parts[-1])

    def walk(element: html.HtmlElement) -> None:
        name = element.get("id") or (element.get("name") if element.tag == "a" else None)
        if name:
            locations.append((size, name))
        add(element.text)
        for child in element:
            if isinstance(child.tag, str):
                walk(child)
            add(child.tail)

    walk(tree)
    return "".join(parts), locations


def _bare(line: str) -> str:
    return _BLANKS.sub("", _PREFIX.sub("", line))


def speed(found: Sequence[Document], verdict: measure.Verdict) -> None:
    """Measure the CPU seconds of the PDF and HTML extractors in this process."""
    pdfs, of_html = ([each.data for each in found if each.kind == kind] for kind in ("pdf", "html"))
    count = sum(len(pypdfium2.PdfDocument(data)) for data in pdfs)
    seconds = _cpu_seconds(html_pdf.pdf, pdfs)
    verdict.at_least("pages of PDF, a CPU second", count / seconds, 60, "pages")
    megabytes = sum(map(len, of_html)) / 1e6
    verdict.at_least("HTML, a CPU second", megabytes / _cpu_seconds(html_pdf.html, of_html), 8, "MB")


def _cpu_seconds(extract: Callable[[bytes], Extracted], documents: Sequence[bytes]) -> float:
    started = time.process_time()
    for data in documents:
        extract(data)
    return time.process_time() - started


def runs(found: Sequence[Document], root: Path, verdict: measure.Verdict) -> None:
    """Index all documents, then only HTML with and without the extra."""
    for number, document in enumerate(found):
        folder = root / ("html" if document.kind == "html" else "others") / f"{number % 40}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.{document.kind}").write_bytes(document.data)
    others = _indexed(root / "others", root / "ws-others")
    verdict.at_most("memory of the largest process", others.largest_peak / 2**30, 1, "GiB")
    measured = _indexed(root / "html", root / "ws-html"), _indexed(root / "html", root / "ws-tags", _WITHOUT)
    extracted, plain = measured
    for name, each in (("with", extracted), ("without", plain)):
        (source,) = json.loads(each.output)["sources"]
        lines = f"{source['lines_total']:,} lines of {source['documents_total']:,} pages"
        print(f"  {name} the extra: {lines}, {each.cpu_seconds:.1f} CPU s", flush=True)
    verdict.at_most("first run over HTML, of one without the extra", extracted.cpu_seconds / plain.cpu_seconds, 1.15)


def answers(root: Path, verdict: measure.Verdict) -> None:
    """Ask the questions, which were written before any search of these documents.

    A hit is correct if it is in the expected document and its lines contain the expected words. Its anchor is correct
    if pdftotext finds the best line's words on that page, or if that id is the nearest one above.
    """
    files, questions = _files_by_name(), [line.split("\t") for line in QUESTIONS.read_text("utf-8").splitlines()]
    others = {name for name, path in files.items() if path.suffix == ".html" and "postgresql" in str(path)}
    tree = root / "tree"
    tree.mkdir(parents=True)
    for name in sorted({*others, *OTHER_MANUALS, *(name for name, _, _ in questions)}):
        shutil.copy(files[name], tree / name)
    _indexed(tree, root / "ws")
    ranks, placed, right = list[float](), 0, 0
    for name, words_named, question in questions:
        hits = driftline.open(str(root / "ws")).search(question, top_k=10, n_lines=5).results
        named = [hit for hit in hits if hit.path == name and _spaced(words_named) in _spaced(" ".join(hit.context))]
        ranks.append(1 / named[0].rank if named else 0.0)
        for hit in named:
            if hit.anchor is not None:
                placed, right = placed + 1, right + _is_at(tree / name, hit.anchor, hit.text)
    count = len(questions)
    verdict.at_least(f"MRR of {count} questions on documents", sum(ranks) / count, 0.35, "")
    verdict.at_least(f"recall@10 of {count} questions on documents", sum(map(bool, ranks)) / count, 0.60, "")
    verdict.at_least("right hits whose anchor is right", 100 * right / max(placed, 1), 95.0, "%")


def _files_by_name() -> dict[str, Path]:
    files: dict[str, Path] = {}
    for folder in map(unpacked, PACKAGES):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                files.setdefault(path.name, path)
    return files


def _spaced(text: str) -> str:
    return " ".join(text.casefold().split())


def _is_at(path: Path, anchor: str, line: str) -> bool:
    """Return whether an anchor belongs to a line; the line may be cut at either end."""
    line = line.strip(CUT)
    if path.suffix == ".pdf":
        good, _ = _pdf_anchors([line], [Anchor(anchor, 0, 0)], _pages_of(path))
        return good == 1
    tree = html.document_fromstring(_main_part(path.read_bytes()), parser=html.HTMLParser(encoding="utf-8"))
    whole, locations = _ids(tree)
    starts, bare = [location for location, _ in locations], re.escape(_bare(line))
    for found in re.finditer(bare, whole):  # a heading is in the table of contents too
        at = found.start()
        nearest = starts[bisect_right(starts, at) - 1]
        if any(name == anchor[1:] and nearest - NEAR <= location <= at for location, name in locations):
            return True
    return False


@cache
def _pages_of(path: Path) -> str:
    return Document("pdf", path.read_bytes()).reference()


def _indexed(tree: Path, workspace: Path, program: Sequence[str] = measure.DRIFTLINE) -> measure.Measured:
    return measure.run([*program, "index", str(tree), "--workspace", str(workspace), "--json"])


if __name__ == "__main__":
    raise SystemExit(main())

"""Lines and prose of documents as HTML."""

from __future__ import annotations

import html
import re

import pytest
from pygments.lexers import find_lexer_class_for_filename, get_all_lexers

from driftline.flows.web import rendering
from driftline.flows.web.rendering import _lexer_class, _significant_name, coloured, rendered


def test_every_name_has_the_language_that_pygments_finds() -> None:
    patterns = {pattern for _, _, known, _ in get_all_lexers() for pattern in known}
    names = {pattern.replace("*", star) for pattern in patterns for star in ("abc", "a.b", "")}
    names |= {f"folder.py/{name}" for name in ("README", "x.", ".bashrc", "page.html.j2", "x.tar.gz", "x.PY", "x.py")}
    for name in names:
        outcome = find_lexer_class_for_filename(name)
        assert outcome is None or _lexer_class(_significant_name(name)) is outcome, name


def test_each_line_is_complete_and_escaped_and_its_words_are_marked() -> None:
    lines = ['def renew(self): """The <lease>', 'ends.""" & more', "", "x = 1"]
    made = coloured("a.py", lines, "lease renew")
    texts = [html.unescape(re.sub("<[^>]+>", "", line)) for line in made]
    assert texts == lines
    assert all(line.count("<span") == line.count("</span>") for line in made)
    assert re.findall(r'-Mark">(\w+)<', "".join(made)) == ["renew", "lease"]


def test_a_text_that_takes_long_to_colour_is_only_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "COLOURING_SECONDS", 0.05)
    line = " ".join(["word"] * 12)
    made = coloured("a.java", ["return <b>;", *[line] * 320])  # in full, seconds of CPU time
    assert made == ["return &lt;b&gt;;", *[line] * 320]
    assert "<span" in coloured("a.java", [f"return {line};"])[0]


def test_words_are_marked_as_the_search_compares_them() -> None:
    line = "class ConnectionFailed(OSError):  # fails, inherits; wait for it"
    assert marked(line, "it failed to open a connection") == ["ConnectionFailed", "fails"]
    assert marked(line, "os error") == ["OSError"]
    assert marked(line, "for it") == ["for", "it"]  # the query contains nothing else
    assert marked("Größe und GRÖSSE", "größe") == ["Größe"]
    assert marked("x = y", "x") == []


def marked(line: str, query: str) -> list[str]:
    return re.findall(r'-Mark">(\w+)<', "".join(coloured("a.py", [line], query)))


def test_exact_matches_are_marked_where_they_are() -> None:
    lines = ["x = '<b>' + \"a\"", "", "leases = lease(1)"]
    made = coloured("a.py", lines, "", [[(4, 9)], [], [(0, 5), (3, 6), (9, 14)]])
    assert [html.unescape(re.sub("<[^>]+>", "", line)) for line in made] == lines
    found = ["".join(map(html.unescape, re.findall(r'-Mark">([^<]*)<', line))) for line in made]
    assert found == ["'<b>'", "", "leaseslease"]  # matches that overlap are one
    (long,) = coloured("a.py", ["x" * 2_000], "", [[(990, 1_500)]])
    assert "".join(re.findall(r'-Mark">([^<]*)<', long)) == "x" * 9 + "…"  # up to the end of the shown part


def laid_out(text: str, path: str = "docs/a.md") -> str:
    made = rendered(path, text.split("\n"), lambda target, fragment: f"/d/{target}#{fragment}")
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("# Set up\n\ntext", '<h2 id="L1"><span id="at-set-up"></span>Set up</h2>\n<p id="L3">text</p>'),
        ("- a\n- b", '<ul id="L1">\n<li>a</li>\n<li id="L2">b</li>\n</ul>'),
        ("# A\n# A", '<span id="at-a-1"></span>A</h2>'),
        ("a <b onclick=x>bold</b><br>c", '<p id="L1">a bold<br>c</p>'),
        ("<div>\n<script>alert(1)</script> &lt;i&gt;\n</div>", "<p>alert(1) &lt;i&gt;</p>"),
        ("<!-- a --> b\n\n<!-- c", "<p>b</p>"),
        ("![Logo](https://evil.example/x.png)", '<span class="picture">Logo</span>'),
        ("[x](javascript:alert(1))", "[x](javascript:alert(1))"),
        ("[x](vscode://file)", "<a>x</a>"),
        ('[x](https://a.b/"onclick=)', '<a href="https://a.b/%22onclick=" rel="noreferrer">x</a>'),
        ("[x](b.md#L4-L5) [y](/c/) [z](../..)", '"/d/docs/b.md#L4-L5"'),
        ("[x](#q)", '<a href="#at-q" rel="noreferrer">'),
        ("```python\nx = 1\n```", '<pre id="L1" class="code" tabindex="0"><code>x'),
        ("    <b>", "&lt;b&gt;"),
        ("|a|\n|-:|\n|b|", '<th class="right">'),
        ("---\ntitle: x\n---\n# A", '<h2 id="L4">'),
        ("<" * 60 + "\n" + "&lt;script&gt;", "&lt;script&gt;"),
    ],
)
def test_prose_is_laid_out_without_html_and_pictures(text: str, made: str) -> None:
    found = laid_out(text)
    assert made in found
    tags = {tag.lower() for tag in re.findall(r"<([a-zA-Z]\w*)", found)}
    assert tags <= {
        *["a", "br", "code", "h2", "li", "p", "pre", "span", "table", "tbody", "td", "th", "thead", "tr", "ul"]
    }
    assert re.search(r"<[^>]*\s(?:on\w+|style|src)=", found) is None


def test_long_prose_is_shown_as_lines() -> None:
    assert rendered("a.md", ["x" * 1_000] * 101, lambda target, _: target) is None


def test_a_notebook_without_cells_is_shown_as_lines() -> None:
    assert rendered("a.ipynb", ["not JSON"], lambda target, _: target) is None


def test_a_notebook_is_laid_out_by_cell() -> None:
    lines = ["# Herons", "", "*Where* they nest.", "", "def count(): return 1", "", "%%bash", "echo <b>"]
    anchors = [(1, "markdown cell 1"), (5, "cell 2"), (7, "cell 3")]
    made = rendered("a.ipynb", lines, lambda target, _: target, anchors)
    assert made is not None
    assert '<h2 id="L1"><span id="at-herons"></span>Herons</h2>\n<p id="L3"><em>Where</em>' in made
    assert '<pre id="L5" class="code" tabindex="0"><code><span class="k">def</span>' in made
    assert made.endswith(" &lt;b&gt;</code></pre>\n")
    assert "<code>%%bash" in made

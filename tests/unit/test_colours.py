"""Line colours on pages."""

from __future__ import annotations

import html
import re

import pytest
from pygments.lexers import find_lexer_class_for_filename, get_all_lexers

from driftline.flows.web import highlight
from driftline.flows.web.highlight import _lexer_class, _significant_name, coloured


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
    monkeypatch.setattr(highlight, "COLOURING_SECONDS", 0.05)
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

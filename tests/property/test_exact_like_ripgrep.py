"""Exact search finds the same lines as ripgrep, for any pattern that both interpret in the same way."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

import driftline
from driftline.storage.lines.regex_patterns import Pattern
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.exact import ExactSearch, open_exact_tables
from driftline.tasks.search.query_language import ExactTerms
from tests.support.effort import examples

RG = Path(sys.executable).with_name("rg")
ROOT = Path(__file__).parents[2]
SHARDS = 4
PATTERNS = 84
"""Number of patterns per shard: 336 in all shards, or 10,080 under ``make proofs``."""
OWN_FILES = ("storage/lines", "tasks/search", "flows/web", "docs/guides")
ODD_FILES: dict[str, tuple[str, str, str]] = {
    "greek.txt": ("Σίσυφος σ ς Ω Ohm\nKelvin K ſmall ß ẞ Straße\nnaïve ÀÉÎ àéî İı\n", "utf-8", "\n"),
    "cjk.txt": ("日本語のテキスト\n検索 = 'さがす'\n}\n한국어 문장\n", "utf-8", "\n"),
    "returns.txt": ("one\ntwo csrf_token\n\n}\n last", "utf-8", "\r"),
    "windows.txt": ("[section]\nkey = value\n\nother=1\n", "utf-8", "\r\n"),
    "wide.txt": ("wide größe\n}\n---\nend", "utf-16", "\n"),
    "marks.txt": ("a\ufdd0b foo foo\n\ufdd2 foo\n\u200bfoo\u200b\n", "utf-8", "\n"),
    "words.txt": ("½ x² x½ Ⅷx x٣ x‿y a_x\nx\u200dx Ⓐx x\u0301\n²\n‿x x-x x·x x\u200bx\n🄰x\n", "utf-8", "\n"),
    "blanks.txt": ("\n\n   \n\t\n\n", "utf-8", "\n"),
    "rules.txt": ("---\n}\n===\n{};\n\n***\n", "utf-8", "\n"),
    "long.js": ("x=1;" * 4_000 + "needle(csrf_end);" + "y;" * 600 + "\nend\n", "utf-8", "\n"),
    "empty.txt": ("", "utf-8", "\n"),
}
"""Name -> text, encoding, line end."""
CLASSES = (
    *(r"\d", r"\w", "[a-z]", "[A-Z]", "[^a-z]", "[0-9a-f]", ".", r"\p{L}", r"\pN", r"\p{Lu}", r"\p{Greek}", "[à-ü]"),
    *(r"\p{Han}", "[^ -~]", "[_.]", r"[^\w]", r"[^\d ]", r"\P{L}", r"\D", r"\W", "[[:punct:]]", r"[\t ]"),
)
QUANTIFIERS = ("", "", "", "?", "*", "+", "{2}", "{1,3}", "{2,}", "+?", "*?")
IN_RUST = {r"\d": "0-9", r"\w": "0-9A-Za-z_"}
"""RE2's classes are ASCII, Rust's are Unicode."""


@dataclass(frozen=True)
class Corpus:
    """An indexed tree, and its decoded text in ``plain``, which ripgrep reads."""

    plain: Path
    workspace: Workspace
    lines: list[str]

    @classmethod
    def make(cls, folder: Path, model: Path) -> Corpus:
        files = dict(ODD_FILES)
        for location in OWN_FILES:
            for path in sorted((ROOT / location).iterdir())[:6]:
                if path.suffix in (".py", ".md", ".js", ".css", ".j2"):
                    files[f"{location}/{path.name}"] = (path.read_text("utf-8"), "utf-8", "\n")
        for name, (text, encoding, line_end) in files.items():
            for root, data in (
                ("tree", text.replace("\n", line_end).encode(encoding)),
                ("plain", text.encode("utf-8")),
            ):
                (folder / root / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / root / name).write_bytes(data)
        workspace = str(folder / "workspace")
        driftline.index(str(folder / "tree"), workspace=workspace, model=str(model), indexes="none")
        lines = sorted({line[:400] for text, *_ in files.values() for line in text.split("\n") if line.strip()})
        return cls(folder / "plain", Workspace.open(workspace), lines)


@dataclass(frozen=True)
class SearchCase:
    """A pattern and its options."""

    text: str
    literal: bool = False
    ignore_case: bool = False
    words: bool = False
    multiline: bool = False

    def found(self, workspace: Workspace) -> set[tuple[str, int]]:
        options = {"ignore_case": self.ignore_case, "words": self.words, "multiline": self.multiline}
        pattern = Pattern.of(self.text, literal=self.literal, **options)
        search = ExactSearch(workspace, open_exact_tables(workspace, None), ExactTerms((pattern,)), lambda: False)
        return {(location.path, number + 1) for location, numbers in search.lines() for number in numbers}

    def found_by_ripgrep(self, folder: Path) -> set[tuple[str, int]]:
        options = ["--fixed-strings"] * self.literal + ["--word-regexp"] * self.words + ["-U"] * self.multiline
        options += ["--ignore-case" if self.ignore_case else "--case-sensitive"]
        text = self.text if self.literal else in_rust(self.text)
        command = [str(RG), "--no-config", "-uuu", "--text", "--null", "--line-number", *options, "-e", text, "."]
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
        assert done.returncode in (0, 1), (self, done.stderr)
        matches = (re.match(rb"\./([^\0]+)\0(\d+):", line) for line in done.stdout.split(b"\n")[:-1])
        return {(match[1].decode(), int(match[2])) for match in matches if match}


def in_rust(text: str) -> str:
    """Translate the RE2 expression ``text`` into Rust's syntax token by token, since ``\\[`` does not open a class."""
    return re.sub(r"(\[\^?)?(\\.)", _token_in_rust, text)


def _token_in_rust(found: re.Match[str]) -> str:
    opening, escape = found[1] or "", found[2]
    if escape == r"\b":
        return rf"{opening}(?-u:\b)"
    if members := IN_RUST.get(escape.lower()):
        members = members if opening else f"[{'^' * escape[1].isupper()}{members}]"
    return opening + (members or escape)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Corpus:
    return Corpus.make(tmp_path_factory.mktemp("corpus"), tiny_model)


def piece(chance: Random, lines: list[str], longest: int = 12) -> str:
    """Return part of a line, with at least one non-blank character."""
    while True:
        line = chance.choice(lines)
        start = chance.randrange(len(line))
        found = line[start : start + chance.randint(1, longest)]
        if found.strip():
            return found


def generalized(chance: Random, text: str) -> str:
    """Return an expression that matches ``text`` and more."""
    spelled = ""
    for character in text:
        if chance.random() < 0.6:
            spelled += re.escape(character)
        elif character in "0123456789":
            spelled += chance.choice((r"\d", "[0-9]+", r"\w"))
        elif character.isascii() and character.isalpha():
            spelled += chance.choice((r"\w", "[a-zA-Z]", r"\w*", ".", r"\p{L}+"))
        else:
            spelled += chance.choice((".", ".{1,2}", ".*", re.escape(character) + "+"))
    return spelled


def expression(chance: Random, lines: list[str], depth: int = 2) -> str:
    """Return a regular expression that usually matches something."""
    match chance.randrange(9 if depth else 4):
        case 0:
            return re.escape(piece(chance, lines))
        case 1 | 2:
            return generalized(chance, piece(chance, lines))
        case 3:
            return chance.choice(CLASSES) + chance.choice(QUANTIFIERS)
        case 4:
            return "|".join(expression(chance, lines, depth - 1) for _ in range(chance.randint(2, 4)))
        case 5:
            return f"({expression(chance, lines, depth - 1)}){chance.choice(QUANTIFIERS)}"
        case 6:
            words = re.findall(r"\w+", chance.choice(lines), re.ASCII) or ["end"]
            return rf"\b{chance.choice(words)}\b"
        case 7:
            line = chance.choice(lines)
            size = chance.randint(1, 12)
            return chance.choice((f"^{re.escape(line[:size])}", f"{re.escape(line[-size:])}$", f"^{'.' * size}$", "^$"))
        case _:
            return expression(chance, lines, depth - 1) + expression(chance, lines, depth - 1)


def requested(chance: Random, lines: list[str]) -> SearchCase:
    if chance.random() < 0.3:
        text = piece(chance, lines, longest=24)
        text = text.swapcase() if chance.random() < 0.2 else text
        return SearchCase(text, literal=True, ignore_case=chance.random() < 0.4, words=chance.random() < 0.2)
    text = expression(chance, lines)
    return SearchCase(text, ignore_case=chance.random() < 0.3, words=chance.random() < 0.15)


def sample(shard: int, lines: list[str]) -> Iterator[SearchCase]:
    chance = Random(shard)
    yield from (requested(chance, lines) for _ in range(examples(PATTERNS)))


@pytest.mark.parametrize("shard", range(SHARDS))
def test_each_pattern_finds_the_lines_that_ripgrep_finds(corpus: Corpus, shard: int) -> None:
    matching = 0
    for pattern in sample(shard, corpus.lines):
        expected = pattern.found_by_ripgrep(corpus.plain)
        assert pattern.found(corpus.workspace) == expected, pattern
        matching += bool(expected)
    assert matching > examples(PATTERNS) / 2


@pytest.mark.parametrize("text", ["x", "y", "²", "½", r"\d", r"\w*", r"\D", r"[^x]+", "x|"])
def test_words_end_where_they_end_for_ripgrep(text: str, corpus: Corpus) -> None:
    pattern = SearchCase(text, words=True)
    expected = pattern.found_by_ripgrep(corpus.plain)
    assert expected
    assert pattern.found(corpus.workspace) == expected


def across(chance: Random, texts: list[str]) -> SearchCase:
    """Return a pattern whose matches contain line breaks: the end of a line, some full lines, and the start of
    another.
    """
    lines = chance.choice(texts).split("\n")
    at = chance.randrange(len(lines) - 1)
    until = min(len(lines) - 1, at + chance.randint(1, 4))
    parts = [lines[at][-chance.randint(1, 12) :], *lines[at + 1 : until], lines[until][: chance.randint(0, 12)]]
    if chance.random() < 0.3:
        return SearchCase("\n".join(parts), literal=True, multiline=True)
    gaps = (r"\n", r"\n", "[ \\t\\n]+", r"[^#]*?\n", "(?s:.*?)\\n", r"\n(?:.*\n){0,2}")
    text = "".join(re.escape(part) + chance.choice(gaps) for part in parts[:-1]) + re.escape(parts[-1])
    return SearchCase(text, ignore_case=chance.random() < 0.3, multiline=True)


def test_each_multiline_pattern_finds_the_lines_that_ripgrep_finds(corpus: Corpus) -> None:
    chance = Random(5)
    read = (path.read_text("utf-8") for path in sorted(corpus.plain.rglob("*")) if path.is_file())
    texts = [text for text in read if text.count("\n") > 1]
    matching = 0
    for _ in range(examples(PATTERNS)):
        pattern = across(chance, texts)
        expected = pattern.found_by_ripgrep(corpus.plain)
        assert pattern.found(corpus.workspace) == expected, pattern
        matching += bool(expected)
    assert matching > examples(PATTERNS) / 2


@pytest.mark.parametrize("text", ["^$", "^", "$", "x*", "(?:)", r"^\s*$", "e*$", r"\b", r"^\n?", "^$|return"])
def test_a_multiline_pattern_without_text_finds_the_lines_that_ripgrep_finds(text: str, corpus: Corpus) -> None:
    pattern = SearchCase(text, multiline=True)
    expected = pattern.found_by_ripgrep(corpus.plain)
    assert expected
    assert pattern.found(corpus.workspace) == expected

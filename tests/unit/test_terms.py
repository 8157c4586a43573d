"""Terms equal those of the full-text index, which finds each line by each of its words."""

from __future__ import annotations

import lance
import pyarrow as pa
import pytest

from driftline.storage.lines.indexes import TEXT, TOKENIZER
from driftline.storage.lines.table import TEXT_COLUMN
from driftline.storage.lines.words import telling_words, terms

TEXTS = (
    "getHTTPResponse",
    "get_http_response",
    "XMLHttpRequest2",
    "parse_HTTPRequests(url)",
    "utf8",
    "UTF8Decoder.v2Beta",
    "a1b2c3",
    "MAX_VALUE",
    "snake__case_name",
    "kebab-case",
    "foo.bar->baz::qux",
    "λambda",
    "Привет",
    "日本語",
    "don't",
    "iPhone aB AB ABc",
    "hTTP fooBARBaz HTMLtoXML",
    "0xFF 3.14",
    "running flies dying skies university generously",
    "the is not",
    "😀smile",
    "naïve CAFÉ ŁÓDŹ straße Ünïcödé_ÇASE",
    "ПРИВЕТМир fooÉcole e\u0301clair",
    "x² १२३abc ﬁnd ½",
    "a\tb\u00a0c",
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("getHTTPResponses", ["get", "http", "respons"]),
        ("XMLHttpRequest2", ["xml", "http", "request", "2"]),
        ("self.__init__(_cache, class_)", ["self", "init", "cach", "class"]),
        ("NAÏVE_Éclairs", ["naiv", "eclair"]),
        ("it is not", ["it", "is", "not"]),
        (" -> ", []),
    ],
)
def test_identifiers_are_split_and_words_stemmed(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


@pytest.mark.parametrize("text", TEXTS)
def test_terms_are_the_tokens_of_the_index(text: str) -> None:
    assert terms(text) == [token.text for token in lance.tokenize(text, **TOKENIZER)]


def test_the_index_finds_every_text_by_each_of_its_words(tmp_path_factory: pytest.TempPathFactory) -> None:
    uri = str(tmp_path_factory.mktemp("index") / "texts.lance")
    dataset = lance.write_dataset(pa.table({TEXT_COLUMN: TEXTS, "row": range(len(TEXTS))}), uri)
    dataset.create_scalar_index(TEXT_COLUMN, "INVERTED", name=TEXT, with_position=False, **TOKENIZER)
    rows_of: dict[str, set[int]] = {}
    for row, text in enumerate(TEXTS):
        for word in telling_words(text):
            rows_of.setdefault(terms(word)[0], set()).add(row)
    for row, text in enumerate(TEXTS):
        for word in telling_words(text):
            query = lance.query.MatchQuery(word, TEXT_COLUMN)
            found = dataset.scanner(columns=["row", "_score"], full_text_query=query).to_table()
            assert row in found["row"].to_pylist(), (text, word)
            assert set(found["row"].to_pylist()) >= rows_of[terms(word)[0]], word


def test_stop_words_are_dropped_from_a_query() -> None:
    assert telling_words("How do you parse a getHTTPResponse, and parse it?") == ["parse", "get", "http", "response"]
    assert telling_words("to be or not") == ["not"]
    assert telling_words("is it") == ["is", "it"]
    assert telling_words("-> %") == []

"""Terms equal the full-text index's terms, so every word finds its line."""

from __future__ import annotations

import unicodedata

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftline.storage.lines.line_table import TEXT, TEXT_COLUMN
from driftline.storage.lines.tokenizer import (
    TOKENIZER,
    distinct_terms,
    index_terms,
    keywords,
    language_of,
    normalize_query,
    terms,
)
from driftline.tasks.search.query_language import MAX_PLACES, places_in

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
    "配置redis缓存和timeout参数",
    "사용자인증에 실패하면",
    "ｷｬｯｼｭ ＡＢＣ",
    "สวัสดีครับ हिन्दी भाषा",
    "ისტორიულგეოგრაფიული",
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


@pytest.mark.parametrize("text", [text for text in TEXTS if not index_terms(text)])
def test_terms_are_the_tokens_of_the_index(text: str) -> None:
    assert terms(text) == [token.text for token in lance.tokenize(text, **TOKENIZER)]


@pytest.mark.parametrize("text", TEXTS)
def test_terms_are_among_the_tokens_of_what_is_indexed(text: str) -> None:
    indexed = " ".join([text, *index_terms(text)])
    assert {*terms(text)} <= {token.text for token in lance.tokenize(indexed, **TOKENIZER)}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("缓存", ["缓存"]),
        ("清理缓存文件", ["清理", "理缓", "缓存", "存文", "文件"]),
        ("税", ["税"]),
        ("キャッシュを削除する方法", ["キャ", "ャッ", "ッシ", "シュ", "ュを", "を削", "削除", "除す", "る方", "方法"]),
        ("する", ["する"]),
        ("ｷｬｯｼｭ", ["キャ", "ャッ", "ッシ", "シュ"]),
        ("사용자 실패", ["사용", "용자", "실패"]),
        (unicodedata.normalize("NFD", "사용자"), ["사용", "용자"]),
        ("redis缓存timeout", ["redis", "缓存", "timeout"]),
        ("ＡＢＣ１２", ["abc", "12"]),
        ("re\u0301sume\u0301", ["resume"]),
        ("ёлка άλογο", ["елка", "αλογο"]),
        ("שָׁלוֹם مُحَمَّد", ["שלום", "محمد"]),
        ("дляDocker", ["для", "docker"]),
        ("wie werden die Dateien gelöscht", ["dateien", "gelöscht"]),
        ("comment supprimer les fichiers du cache", ["supprimer", "fichiers", "cache"]),
        ("как удалить файлы из кэша", ["удалить", "файлы", "кэша"]),
    ],
)
def test_the_words_of_a_query_in_any_script(query: str, words: list[str]) -> None:
    assert keywords(query) == words
    indexed = {*terms(query)}
    assert {*distinct_terms(words)} <= indexed


@pytest.mark.parametrize(
    ("query", "text", "stem"),
    [
        ("wie lösche ich eine Sicherung", "die Sicherungen gehören in den Ordner", "sicher"),
        ("wo sind die Häuser", "das Haus, über dem die Sonne aufgeht", "haus"),
        ("où est la sauvegarde chiffrée", "les sauvegardes chiffrées sont là, où il y a de la place", "chiffr"),
        ("как удалить файлы из кэша", "из файла и в файле", "файл"),
    ],
)
def test_words_are_stemmed_in_the_language_of_their_text(query: str, text: str, stem: str) -> None:
    words, language = keywords(query), language_of(query)
    indexed = " ".join([text, *index_terms(text)])
    requested = {token.text for token in lance.tokenize(normalize_query(words, language), **TOKENIZER)}
    shared = requested & {token.text for token in lance.tokenize(indexed, **TOKENIZER)}
    assert stem in shared & {*distinct_terms(words, language)} & {*terms(text, language)}
    assert stem not in {*terms(query)} & {*terms(text)}


def test_text_in_english_or_code_gets_no_stems() -> None:
    assert index_terms("the naïve café is on the corner of the street, and what does it cost") == []
    assert normalize_query(["cache", "lost", "files"]) == "cache lost files"
    assert language_of("async file I/O operations") == "en"


@pytest.mark.parametrize("text", ["plain ASCII", "naïve CAFÉ Việt", "Привет мой мир", "हिन्दी"])
def test_words_that_the_index_finds_are_not_spelled_out(text: str) -> None:
    assert index_terms(text) == []


SCRIPTS = st.sampled_from(
    [
        "a-zA-Z0-9_",
        "à-öø-ÿ",
        "а-яё",
        "ά-ώ",
        "א-ת",
        "ا-ي",
        "क-ह",
        "ก-ฮ",
        "ა-ჰ",
        "ぁ-ん",
        "ァ-ン",
        "一-乿",
        "가-깋",
        "Ａ-Ｚ",
        "ｱ-ﾝ",
    ]
)
TATWEEL = "\u0640"
"""Unicode calls it a letter, but it only stretches other letters, and the tokenizer drops it."""
WORDS = st.lists(
    SCRIPTS.flatmap(lambda script: st.from_regex(f"[{script}]{{1,20}}", fullmatch=True)), min_size=1, max_size=3
).map("".join)


@settings(max_examples=40, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=8), st.data())
def test_a_text_is_found_by_each_of_its_words_in_any_mixture_of_scripts(words: list[str], data: st.DataObject) -> None:
    text = " ".join(words)
    indexed = " ".join([text, *index_terms(text)])
    tokens = {token.text for token in lance.tokenize(indexed, **TOKENIZER)}
    word = data.draw(st.sampled_from(words))
    requested = keywords(word)
    found = {token.text for token in lance.tokenize(" ".join(requested), **TOKENIZER)}
    assert found <= tokens
    assert {*distinct_terms(requested)} <= {*terms(text)}
    assert bool(requested) == any(character.isalnum() for character in word.replace(TATWEEL, ""))


def test_the_index_finds_every_text_by_each_of_its_words(tmp_path_factory: pytest.TempPathFactory) -> None:
    uri = str(tmp_path_factory.mktemp("index") / "texts.lance")
    indexed = [" ".join([text, *index_terms(text)]) for text in TEXTS]
    dataset = lance.write_dataset(pa.table({TEXT_COLUMN: indexed, "row": range(len(TEXTS))}), uri)
    dataset.create_scalar_index(TEXT_COLUMN, "INVERTED", name=TEXT, with_position=False, **TOKENIZER)
    for row, text in enumerate(TEXTS):
        for word in keywords(text):
            query = lance.query.MatchQuery(word, TEXT_COLUMN)
            found = dataset.scanner(columns=["row", "_score"], full_text_query=query).to_table()
            assert row in found["row"].to_pylist(), (text, word)


def test_stop_words_are_dropped_from_a_query() -> None:
    assert keywords("How do you parse a getHTTPResponse, and parse it?") == ["parse", "get", "http", "response"]
    assert keywords("to be or not") == ["not"]
    assert keywords("why doesn't it notice that I'm offline, and somebody\u2019s cache isn\u2019t?") == [
        "notice",
        "offline",
        "cache",
    ]
    assert keywords("async file I/O") == ["async", "file", "i", "o"]
    assert keywords("I don't") == ["i", "don", "t"]
    assert keywords("is it") == ["is", "it"]
    assert keywords("-> %") == []
    assert keywords(TATWEEL) == []


def test_the_places_of_a_long_stack_trace_are_bounded() -> None:
    trace = "\n".join(f'  File "/srv/app/module{n}.py", line {n}, in run' for n in range(1, 100) for _ in range(2))
    places = places_in(trace)
    assert places == [(f"/srv/app/module{n}.py", n) for n in range(1, MAX_PLACES + 1)]

"""Ranking arithmetic, compared with its definition line by line."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from driftline.storage.lines.outline import Definition
from driftline.storage.lines.tokenizer import terms
from driftline.tasks.search import ranking
from driftline.tasks.search.candidates import _LITERAL, _quoted, lines_of, share_of_name
from driftline.tasks.search.query_language import QueryForm, name_in, query_form
from driftline.tasks.search.ranking import (
    WEIGHTS,
    CandidateLines,
    Window,
    arranged,
    count_words,
    document_scores,
    extended,
    filename_boosts,
    semantic_scores,
    set_leads,
    text_scores,
    with_whole_definitions,
    without_copies,
    word_weights,
)
from driftline.tasks.search.relevance import label, likelihood

K1, B = 1.2, 0.75
Floats = NDArray[np.float32]


def saturated(count: float, length: float, mean: float) -> float:
    """Return BM25's saturated count for a count and a length."""
    return count * (K1 + 1) / (count + K1 * (1 - B + B * length / mean))


def some_lines(rng: np.random.Generator, n: int) -> CandidateLines:
    """Return lines of four documents, with gaps between them."""
    document = np.sort(rng.integers(0, 4, n))
    number = np.concatenate([np.sort(rng.choice(60, (document == d).sum(), replace=False)) for d in range(4)])
    return CandidateLines(document, number)


def around(lines: CandidateLines, values: Floats, reach: int, decay: float) -> NDArray[np.float64]:
    """Return weighted sums over each line and its neighbours in the document."""
    total = np.zeros(values.shape)
    for i in range(len(values)):
        for j in range(len(values)):
            away = abs(int(lines.number[i]) - int(lines.number[j]))
            if lines.document[i] == lines.document[j] and away <= reach:
                total[i] += decay**away * values[j]
    return total


def test_weights_of_words_are_recovered_from_scores_of_an_index() -> None:
    rng = np.random.default_rng(1)
    counts = rng.poisson(0.8, (80, 5)).astype(np.float32)
    counts[:, 4] = 0  # in no block
    lengths = rng.integers(20, 300, 80).astype(np.float32)
    idf = np.array([math.log(1 + (1000 - df + 0.5) / (df + 0.5)) for df in (3, 40, 400, 900, 1)])
    mean = lengths.mean()
    scores = [
        sum(weight * saturated(count, length, mean) for weight, count in zip(idf, row, strict=True))
        for row, length in zip(counts.tolist(), lengths.tolist(), strict=True)
    ]
    found = word_weights(counts, lengths, np.array(scores, np.float32))
    assert np.allclose(found[:4], idf[:4], rtol=1e-3)
    assert found[4] == 0


def test_without_blocks_or_words_all_weights_are_zero() -> None:
    assert (
        word_weights(np.zeros((0, 3), np.float32), np.zeros(0, np.float32), np.zeros(0, np.float32)).tolist() == [0] * 3
    )
    assert word_weights(np.zeros((2, 0), np.float32), np.ones(2, np.float32), np.ones(2, np.float32)).shape == (0,)


@pytest.mark.parametrize("n", [1, 2, 9, 70])
def test_words_around_a_line_and_in_its_path_determine_its_score(n: int) -> None:
    rng = np.random.default_rng(n)
    lines = some_lines(rng, n)
    counts = rng.poisson(0.2, (n, 3)).astype(np.float32)
    lengths = rng.integers(1, 80, n).astype(np.float32)
    in_path = rng.poisson(0.5, (4, 3)).astype(np.float32)[lines.document]
    in_names = rng.poisson(0.3, (n, 3)).astype(np.float32)
    weights = np.array([4.0, 0.5, 2.0], np.float32)
    near = around(lines, np.column_stack([counts, lengths]), WEIGHTS.word_reach, WEIGHTS.word_decay)
    mean = near[:, -1].mean()
    expected = [
        sum(
            weights[t] * saturated(near[i, t] + in_path[i, t], near[i, -1], mean)
            + (WEIGHTS.path * weights[t] if in_path[i, t] else 0)
            + (WEIGHTS.names * weights[t] if in_names[i, t] else 0)
            for t in range(3)
        )
        for i in range(n)
    ]
    covered = [
        sum(weights[t] * min(1, near[i, t] + in_path[i, t] + in_names[i, t]) for t in range(3)) for i in range(n)
    ]
    assert np.allclose(text_scores(lines, counts, lengths, in_path, in_names, weights), (expected, covered), rtol=1e-4)


@pytest.mark.parametrize("n", [1, 3, 60])
def test_meaning_is_the_cosine_of_the_lines_around_a_line(n: int) -> None:
    rng = np.random.default_rng(n)
    lines = some_lines(rng, n)
    vectors = rng.standard_normal((n, 6)).astype(np.float32)
    query = rng.standard_normal(6).astype(np.float32)
    query /= np.linalg.norm(query)
    for meaning in (WEIGHTS.code, WEIGHTS.prose):
        expected = np.zeros(n)
        for reach in meaning:
            near = around(lines, vectors, reach.lines, reach.decay)
            expected += reach.weight * (near @ query) / np.linalg.norm(near, axis=1)
        assert np.allclose(semantic_scores(lines, vectors, query, meaning), expected, atol=1e-4)
        assert semantic_scores(lines, np.zeros_like(vectors), query, meaning).tolist() == [0.0] * n


def test_only_the_best_blocks_raise_the_rank_of_a_document() -> None:
    best = WEIGHTS.document_blocks
    scores = np.arange(20, 0, -1).astype(np.float32)
    document = np.array([0, 2] + [2] * 18)
    gains = document_scores(document, scores, 3)
    assert gains.tolist() == pytest.approx([WEIGHTS.document * 20, 0, WEIGHTS.document * sum(range(19, 19 - best, -1))])


def test_words_are_counted_as_terms_in_any_notation() -> None:
    texts = ["def getHTTPResponses(self):", "responses, response; http_response", "  ", "responding"]
    counts, lengths = count_words(texts, ["respons", "http", "absent"])
    assert counts.tolist() == [[1, 1, 0], [3, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert lengths.argmax() == 1
    assert lengths[2] == 0
    assert count_words(texts, [])[0].shape == (4, 0)


@given(
    st.lists(
        st.text(st.sampled_from("aB1_ é\n.")) | st.sampled_from(["get_HTTPResponses", "gets", "dying"]), max_size=8
    ),
    st.lists(st.sampled_from(["get", "respons", "http", "die", "a", "ab", "e", "b"]), unique=True),
)
def test_counting_in_bulk_equals_counting_one_by_one(texts: list[str], words: list[str]) -> None:
    counts, lengths = count_words(texts, words)
    assert counts.tolist() == [[terms(text).count(word) for word in words] for text in texts]
    assert lengths.tolist() == [len(text.strip()) for text in texts]


@pytest.mark.parametrize(
    "word", ["happy", "happily", "dying", "skies", "running", "cities", "generously", "ties", "y", "Über"]
)
def test_all_words_with_the_stem_are_counted(word: str) -> None:
    counts, _ = count_words([word, f"x {word.upper()} y_{word.lower()}"], terms(word))
    assert counts[:, 0].all()


def test_stemming_changes_the_last_letter_at_most() -> None:
    endings = [
        "s",
        "es",
        "ed",
        "ing",
        "ies",
        "ied",
        "y",
        "ily",
        "ly",
        "ally",
        "ity",
        "ability",
        "ibility",
        "ization",
        "ational",
        "ation",
        "fulness",
        "ousness",
        "iveness",
        "ogy",
    ]
    beginnings = ("hop", "hopp", "car", "happ", "gener", "activ", "fl", "sk", "d", "l", "t", "relat", "org", "us", "w")
    for word in (beginning + ending for beginning in beginnings for ending in endings):
        assert all(ranking._beginning(stem) in word for stem in terms(word)), word


def window(path: str, line: int, score: float, content: str | None = None) -> Window:
    return Window("source:a", path, content or path, line, 0.5, "text", score, line, line, score=score)


def test_the_best_file_comes_first_and_others_before_its_second_window() -> None:
    windows = [window("a.py", 1, 10), window("b.py", 1, 9.9), window("b.py", 50, 9.8), window("c.py", 1, 9.7)]
    found = arranged([*windows, window("c.py", 90, 2)], ["lease"])
    assert [(each.path, each.first) for each in found[:4]] == [("b.py", 1), ("a.py", 1), ("c.py", 1), ("b.py", 50)]


@pytest.mark.parametrize(
    ("query", "first"),
    [("LeaseLost", "class LeaseLost"), ("_entry", "_entry"), ("acquireLock", "_acquireLock"), ("release", "lost")],
)
def test_the_definition_of_the_queried_name_is_first(query: str, first: str) -> None:
    names = ("lost", "entry", "leaseLost", "class LeaseLost", "_entry", "_acquireLock", "Lock")
    windows = [window(f"{at}.py", 3, 20.0 - at) for at, name in enumerate(names)]
    for each, name in zip(windows, names, strict=True):
        each.definition = Definition("class", name.removeprefix("class "), 3, 3, 9)
    found = arranged(windows, ["leas", "lost"], "name", name=query)
    assert found[0].path == f"{names.index(first)}.py"
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)


@pytest.mark.parametrize("query", ["Lease", "LeaseLost", "_Lease", "lease"])
def test_a_class_comes_before_its_constructor_and_words_with_its_stem(query: str) -> None:
    name = query.capitalize() if query == "lease" else query
    windows = [window(f"{at}.java", 3, 20.0 - at) for at in range(3)]
    for each, of in zip(windows, ("leases", f"{name}.{name}", name), strict=True):
        each.definition = Definition("class", of, 3, 3, 9)
    found = arranged(windows, ["leas"], query_form(query), name=name_in(query))
    assert found[0].path == ("0.java" if query == "lease" else "2.java")


@pytest.mark.parametrize(
    ("gone", "shown"),
    [("", "source:a"), ("source:a", "source:b"), ("source:b", "source:a"), ("source:a source:b", "source:a")],
)
def test_a_copy_replaces_a_document_of_a_source_that_is_gone(gone: str, shown: str) -> None:
    """As after a move, if the workspace stayed: whether the documents are equal or only similar."""
    for hashes in (("same", "same"), ("old", "new")):
        windows = [window("x.py", 1, 9, hashes[0]), window("x.py", 1, 9, hashes[1])]
        for each, entity in zip(windows, ("source:a", "source:b"), strict=True):
            each.entity = entity
            each.definition = Definition("function", "renew", 1, 1, 9)
        (found,) = without_copies(windows, [LEASE] * 2, gone.split())
        assert (found.entity, found.copies) == (shown, (f"{'source:b' if shown == 'source:a' else 'source:a'}/x.py",))
        assert found.score == windows[0].score


def test_copies_in_other_sources_are_merged() -> None:
    windows = [window("a/x.py", 1, 9, "same"), window("b/x.py", 1, 8, "same"), window("b/y.py", 1, 7, "same")]
    windows[1].entity = "source:b"
    first, other = without_copies(windows, ["a lease is held"] * 3)
    assert (first.path, first.copies, other.path) == ("a/x.py", ("source:b/b/x.py",), "b/y.py")


def test_documents_without_a_hash_are_not_copies() -> None:
    windows = [window("a/x.py", 1, 9, ""), window("b/x.py", 1, 8, "")]
    assert [each.path for each in without_copies(windows, ["a lease", "a lock"])] == ["a/x.py", "b/x.py"]


def test_a_file_named_like_the_query_ranks_first() -> None:
    found = arranged(
        [window("a.py", 1, 10), window("net/lease_token.py", 1, 9.5), window("b.py", 1, 1)], ["leas", "token"]
    )
    assert found[0].path == "net/lease_token.py"


@pytest.mark.parametrize(
    ("path", "words", "share"),
    [
        ("net/lease_token.py", ["leas", "token", "write"], WEIGHTS.stem * 2 / 3 + WEIGHTS.full_stem_match),
        ("net/LeaseTokens.java", ["leas", "token"], WEIGHTS.stem + WEIGHTS.full_stem_match),
        ("net/lease_token_test.py", ["leas", "token"], WEIGHTS.stem),
        ("net/lease.service.ts", ["leas", "token"], WEIGHTS.stem / 2 + WEIGHTS.full_stem_match),
        (".lease", ["leas"], WEIGHTS.stem + WEIGHTS.full_stem_match),
        ("lease/mod.rs", ["leas", "token"], WEIGHTS.stem / 2 + WEIGHTS.full_stem_match),
        ("lease/__init__.py", ["leas"], WEIGHTS.stem + WEIGHTS.full_stem_match),
        ("lease/index.ts", ["index"], 0),
        ("index.ts", ["index"], WEIGHTS.stem + WEIGHTS.full_stem_match),
        ("-", ["leas"], 0),
    ],
)
def test_a_file_whose_name_consists_of_query_words_ranks_higher(path: str, words: list[str], share: float) -> None:
    assert filename_boosts([path], words) == pytest.approx([share])


@pytest.mark.parametrize(("kind", "first"), [("section", [1, 50, 90]), ("function", [1, 2, 3])])
def test_other_sections_of_a_book_lose_nothing(kind: str, first: list[int]) -> None:
    windows = [window("book.pdf", line, 10 - line / 100) for line in (1, 20, 50, 90)]
    for each, name in zip(windows, ("Curlews", "Curlews", "Curlews > Bills", "Gulls"), strict=True):
        each.definition = Definition(kind, name, each.first, each.first, each.first + 9)
    found = arranged([*windows, window("b.md", 2, 8), window("c.md", 3, 8)], ["lease"])
    assert [each.first for each in found[:3]] == first


def test_results_are_ordered_by_the_score_of_their_window() -> None:
    rng = np.random.default_rng(3)
    windows = [window(f"{rng.integers(5)}.py", int(at), float(rng.uniform(0, 30))) for at in range(40)]
    scores = [each.score for each in arranged(windows, ["a", "b"])]
    assert scores == sorted(scores, reverse=True)


def test_a_later_window_of_a_file_keeps_its_label() -> None:
    windows = [window("a.py", at * 50, 10 - at) for at in range(6)] + [window("b.py", 1, 3)]
    found = arranged(windows, ["lease"])
    assert [each.path for each in found[:3]] == ["a.py", "a.py", "b.py"]
    further = [each for each in found if each.path == "a.py"]
    assert [each.penalty for each in further] == sorted(each.penalty for each in further)
    assert further[0].penalty == 0
    own = {each.first: each.score + each.penalty for each in further[1:]}
    assert own == pytest.approx({each.first: each.fit for each in further[1:]})


def test_long_queries_and_sentences_describe_one_location_and_let_files_decide_less() -> None:
    def first(words: int, form: QueryForm) -> str:
        windows = [window("a.py", 1, 10), *(window("b.py", at * 40, 9.4) for at in range(4)), window("c.py", 1, 0)]
        return arranged(windows, [f"w{at}" for at in range(words)], form)[0].path

    assert [first(words, "phrase") for words in (3, 5, 8)] == ["b.py", "b.py", "a.py"]
    assert [first(words, "question") for words in (3, 8, 14)] == ["b.py", "b.py", "a.py"]
    assert first(3, "sentence") == "a.py"


@pytest.mark.parametrize(
    ("query", "form"),
    [
        ("Session.get", "name"),
        ("RETRY_LIMIT", "name"),
        ("session", "phrase"),
        ("request retry and backoff", "phrase"),
        ("where is the token refreshed", "question"),
        ("does a lease expire?", "question"),
        ("Wie wird eine Anfrage wiederholt", "question"),
        ("how do two processes agree", "question"),
        ("which of the answers can it send", "question"),
        ("how do I install it", "usage"),
        ("How often should I compact?", "usage"),
        ("how to revert a commit", "usage"),
        ("can it read PDF", "usage"),
        ("where can we see the log", "usage"),
        ("what do I need", "usage"),
        ("wie installiere ich das", "usage"),
        ("kann man das abschalten", "usage"),
        ("如何安装", "usage"),
        ("what's a fragment?", "usage"),
        ("What are the options", "usage"),
        ("what does exit code 3 mean", "usage"),
        ("what does the server answer when a file is fresh", "question"),
        ("why was it skipped", "usage"),
        ("Was ist ein Index", "usage"),
        ("什么是索引", "usage"),
        ("索引とは", "usage"),
        ("howto", "phrase"),
        ("cannot it", "phrase"),
        ("how", "phrase"),
        ("Return the header of a request", "sentence"),
        ("liest die Zeile einer Tabelle", "sentence"),
        ("", "phrase"),
    ],
)
def test_a_query_is_a_name_a_phrase_a_question_or_a_sentence(query: str, form: QueryForm) -> None:
    assert query_form(query) == form


def test_without_windows_or_words_nothing_is_arranged() -> None:
    assert arranged([], ["a"]) == []
    assert [each.score for each in arranged([window("a", 1, 3)], [])] == [3]


def test_documents_with_the_same_name_and_content_are_shown_once_and_named() -> None:
    windows = [window(f"{folder}/a.js", line, 9, "same") for line in (1, 60) for folder in ("src", "dist", "esm")]
    windows.append(window("b.js", 1, 8, "same"))
    found = without_copies(windows, [*["a lease is held"] * 3, *["a lock is held"] * 3, "a lease is held"])
    assert [(each.path, each.first, each.copies) for each in found] == [
        ("src/a.js", 1, ("dist/a.js", "esm/a.js")),
        ("src/a.js", 60, ()),
        ("b.js", 1, ()),
    ]


LEASE = "def renew(lease, clock):\n    deadline = clock.now() + lease.duration\n    return lease.renewed(deadline)\n"
MANUAL = "A lease expires unless its holder renews it, which is why every holder reads the clock of the store.\n"


def defined(path: str, name: str, score: float) -> Window:
    """Return a window that starts a function."""
    found = window(path, 3, score)
    found.definition = Definition("function", name, 3, 3, 9)
    return found


@pytest.mark.parametrize(
    ("first", "other", "text", "other_text", "copied"),
    [
        (defined("a/x.py", "renew", 9), defined("b/y.py", "Holder.renew", 8), LEASE, LEASE + "# the end\n", True),
        (defined("a/x.py", "renew", 9), defined("b/x.py", "extend", 8), LEASE, LEASE, True),
        (defined("a/x.py", "renew", 9), defined("b/x.py", "renew", 8), "return lease", "return lease", True),
        (defined("a/x.py", "renew", 9), defined("b/x.py", "renew", 8), LEASE, "return lease.renewed(d)", False),
        (defined("a/x.py", "renew", 9), defined("b/y.py", "extend", 8), LEASE, LEASE, False),
        (defined("a/x.py", "renew", 9), defined("a/x.py", "renew", 8), LEASE, LEASE, False),
        (defined("a/x.py", "renew", 9), defined("b/y.py", "renew", 8), LEASE, LEASE.replace("lease", "lock"), False),
        (defined("a/x.py", "renew", 9), defined("b/y.py", "renew", 8), LEASE, "def renew(): ...", False),
        (defined("a/x.py", "renew", 9), defined("b/y.py", "renew", 8), "return lease", LEASE, False),
        (window("book.html", 1, 9), window("book.pdf", 4, 8), MANUAL, MANUAL.replace(" ", "\n")[:70], True),
        (window("ja.html", 1, 9), window("ja.pdf", 4, 8), "パッケージをインストール", "ッケージをインストール", True),
    ],
)  # fmt: skip
def test_a_window_with_nearly_the_text_of_another_is_its_copy(
    first: Window, other: Window, text: str, other_text: str, copied: bool
) -> None:
    first, other = replace(first), replace(other)
    found = without_copies([first, other], [text, other_text])
    assert found == ([first] if copied else [first, other])
    assert first.copies == ((other.path,) if copied else ())


def test_a_source_replaces_its_copy_in_a_bundle() -> None:
    windows = [defined("dist/x.js", "renew", 9), defined("esm/x.js", "renew", 8), defined("src/x.ts", "renew", 7)]
    found = without_copies(windows, [LEASE] * 3)
    assert [(each.path, each.score, each.copies) for each in found] == [("esm/x.js", 9, ("dist/x.js", "src/x.ts"))]


def test_a_source_with_only_a_part_of_the_text_replaces_nothing() -> None:
    windows = [defined("dist/x.js", "renew", 9), defined("src/x.ts", "renew", 1), defined("src/x.ts", "renew", 7)]
    found = without_copies(windows, [LEASE * 2 + MANUAL, "def renew(lease, clock):", LEASE])
    assert [(each.path, each.copies) for each in found] == [("dist/x.js", ("src/x.ts",)), ("src/x.ts", ())]


@pytest.mark.parametrize(
    ("definition", "other", "lines"),
    [
        ((10, 8, 30), None, [(8, 30)]),
        ((10, 8, 60), None, [(12, 14)]),
        ((10, 2, 38), None, [(10, 38)]),
        ((10, 8, 30), (20, 25), [(8, 30)]),
        ((10, 8, 30), (28, 33), [(12, 14), (28, 33)]),
    ],
)
def test_the_first_window_shows_its_whole_definition_if_it_fits(
    definition: tuple[int, int, int], other: tuple[int, int] | None, lines: list[tuple[int, int]]
) -> None:
    first = replace(window("a.py", 12, 9), last=14, definition=Definition("function", "renew", *definition))
    windows = [first] + ([replace(window("a.py", other[0], 8), last=other[1])] if other else [])
    assert [(each.first, each.last) for each in with_whole_definitions(windows)] == lines


def test_only_the_first_and_named_windows_show_whole_definitions() -> None:
    windows = [defined(f"{at}.py", "renew", 9 - at) for at in range(3)]
    windows[2].named = True
    assert [(each.first, each.last) for each in with_whole_definitions(windows)] == [(3, 9), (3, 3), (3, 9)]


def test_a_longer_list_begins_like_a_shorter_one() -> None:
    found = [window("a.py", 10, 9), window("b.py", 1, 8)]
    later = [window("c.py", 1, 9.5), window("a.py", 10, 9), window("a.py", 40, 3)]
    assert [(each.path, each.first) for each in extended(found, later)] == [
        ("a.py", 10),
        ("b.py", 1),
        ("c.py", 1),
        ("a.py", 40),
    ]


@given(st.lists(st.floats(-50, 200), min_size=2, max_size=20), st.floats(0, 99), st.floats(1, 200))
def test_likelihoods_and_labels_are_in_the_order_of_scores(scores: list[float], lead: float, max_score: float) -> None:
    likely = [likelihood(score, lead, max_score, 0.4) for score in sorted(scores)]
    assert likely == sorted(likely)
    assert 0 <= likely[0] <= likely[-1] <= 1
    order = ["weak", "likely", "strong"]
    locations = [order.index(label(each)) for each in likely]
    assert locations == sorted(locations)


def test_a_hit_is_more_certain_if_no_other_file_is_as_good() -> None:
    files = [window("a.py", 1, 9), window("a.py", 50, 8), window("b.py", 1, 7), window("c.py", 1, 6.5)]
    set_leads(files)
    assert [each.lead for each in files] == [2, 1, 0.5, 0]
    assert label(likelihood(9, 0, 10, 1)) == "likely"
    assert label(likelihood(9, 3, 10, 1)) == "strong"
    alone = [replace(window("a.py", line, score), max_score=10.0) for line, score in ((1, 9), (50, 2))]
    set_leads(alone)
    assert [label(likelihood(each.score, each.lead, 10, 1)) for each in alone] == ["strong", "likely"]


def test_a_hit_with_one_of_several_words_is_weak_unless_a_later_one_has_the_others() -> None:
    files = [replace(window(f"{at}.py", 1, 6 - 2 * at), max_score=20.0, covered=0.2) for at in range(2)]
    for covered, expected in ((0.2, "weak"), (1.0, "likely")):
        files[1] = replace(files[1], covered=covered)
        set_leads(files)
        assert label(likelihood(6, files[0].lead, 20, files[0].coverage)) == expected


def test_windows_with_a_common_text_take_linear_time() -> None:
    licence = " ".join(f"word{n}" for n in range(60))

    def seconds(count: int) -> float:
        windows = [window(f"docs{n}/a.md", 1, 1.0) for n in range(count)]
        texts = [f"{licence} {' '.join(f'own{n}x{m}' for m in range(60))}" for n in range(count)]
        started = time.process_time()
        assert len(without_copies(windows, texts)) == count
        assert len(extended(windows, windows)) == count
        return time.process_time() - started

    small = max(seconds(200), 0.01)
    assert seconds(2_000) < 40 * small


def test_the_largest_part_of_a_class_fits_its_name_best() -> None:
    parts = [Definition("class", "Shop.Store", 3, 3, 3 + lines) for lines in (4_000, 300, 120, 3, 0)]
    shares = [share_of_name(part, ["Store"]) for part in parts]
    assert shares == sorted(set(shares), reverse=True)
    assert share_of_name(Definition("function", "Store.store", 0, 0, 4_000), ["Store"]) < shares[-1]


def test_string_literals_are_found_in_linear_time() -> None:
    lines = ["'" + "\\'" * 500, "'\\" * 500] * 256
    started = time.process_time()
    assert not any(map(_LITERAL.findall, lines))
    assert time.process_time() - started < 0.5, "0.04 s; 2 s or more if each quote begins another attempt"


def test_a_repetitive_message_is_compared_with_a_repetitive_literal_quickly() -> None:
    query, line = "yellow zebra xylophone " * 300, f'print("{"yellow zebra xylophone " * 100}")'
    columns = {"entity": "source:a", "path": "a.py", "hash": "1", "block": f"a.py\n{line}", "outline": ""}
    blocks = pa.table({name: [value] for name, value in columns.items()}).append_column("line_number", pa.array([0]))
    candidates = lines_of(blocks.append_column("column_number", pa.array([0])), query)
    started = time.process_time()
    assert _quoted(candidates, np.ones(3, np.float32)).tolist() == [3]
    assert time.process_time() - started < 0.5, "0.01 s; 2 s or more if each run is summed up for each of its words"

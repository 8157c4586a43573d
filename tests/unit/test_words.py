"""Lines are only cut where no token can span the cut."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from driftline.tasks.embedding.embedder import WordPlan, plan_words
from driftline.tasks.embedding.models import load, resolve_model


@pytest.fixture(scope="module")
def default() -> WordPlan:
    plan = plan_words(load(resolve_model()).tokenizer)
    assert plan is not None
    return plan


def chunks(plan: WordPlan, *lines: str) -> list[list[str]]:
    cuts = plan.chunks(pa.array(lines, pa.string()))
    pieces, bounds = cuts.pieces.to_pylist(), cuts.bounds.tolist()
    return [pieces[a:b] for a, b in pairwise(bounds)]


def words(plan: WordPlan, chunk: str) -> list[str]:
    return list(plan.words(pa.array([chunk])).pieces.to_pylist())


def test_lines_are_cut_before_runs_of_spaces(default: WordPlan) -> None:
    assert chunks(default, "a  b c", "", "  d ", "e") == [[" a", "  b", " c"], [], ["   d", " "], [" e"]]


def test_spaces_stay_with_other_white_space_before_them(default: WordPlan) -> None:
    blanks = ["\t", "\u00a0", "\u3000", "\u2003", "\u202f", "\u1680", "\u0085", "\u2028"]
    for blank in blanks:
        assert chunks(default, f"a{blank} b") == [[f" a{blank} b"]]


def test_lines_are_cut_after_letters_of_any_script(default: WordPlan) -> None:
    assert chunks(default, "été лиса 漢 👍 x") == [[" été", " лиса", " 漢", " 👍", " x"]]


def test_slices_are_cut_like_copies(default: WordPlan) -> None:
    lines = pa.array(["before", "a b", "c", "after"])
    assert default.chunks(lines[1:3]).pieces.to_pylist() == [" a", " b", " c"]
    assert default.words(lines[1:2]).pieces.to_pylist() == ["a b"]


def test_chunks_are_cut_between_letters_digits_and_punctuation_of_the_default_model(default: WordPlan) -> None:
    assert words(default, " foo_bar2(x10)==é1") == [" foo", "_", "bar", "2", "(", "x", "1", "0", ")==é1"]


def test_a_token_is_never_cut() -> None:
    vocabulary = ["a", "b", "1", " ", ".", "a1", "b .", " b"]
    tokenizer = Tokenizer(models.Unigram([(token, -1.0) for token in ["<unk>", *vocabulary]], unk_id=0))
    plan = plan_words(tokenizer, unknown_token=0)
    assert plan is not None
    assert chunks(plan, "a b 1 .") == [["a b 1", " ."]]
    assert words(plan, "a1a") == ["a1", "a"]


def test_hidden_whole_line_tokens_are_found_by_probes() -> None:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "foo": 1, "bar": 2}, unk_token="[UNK]"))
    assert plan_words(tokenizer, unknown_token=0) is None
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert plan_words(tokenizer, unknown_token=0) is not None


def test_planning_does_not_change_the_tokenizer() -> None:
    tokenizer = load(resolve_model()).tokenizer
    before = tokenizer.to_str()
    plan_words(tokenizer)
    assert tokenizer.to_str() == before

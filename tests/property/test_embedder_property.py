"""For every tokenizer family, any text gets the same vector as from StaticModel.encode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model2vec import StaticModel

from driftline.tasks.embedding.embedder import WordTableEmbedder
from tests.support.effort import examples

LINES = st.lists(
    st.one_of(
        st.text(),
        st.text(st.sampled_from("aA1_(.'\"`<> \t\u00a0\u3000\u0301é漢\u200b👍")),
        st.lists(
            st.sampled_from(
                ["def", "self", "foo(", ")", "  ", " ", "\t", "x1", "1", "==", "'s", "<s>", "[UNK]", "é", "漢"]
            )
        ).map("".join),
    ),
    min_size=1,
    max_size=20,
)


@pytest.fixture(scope="module")
def pair(model_directory: Path) -> tuple[StaticModel, WordTableEmbedder]:
    return StaticModel.from_pretrained(model_directory), WordTableEmbedder.open(str(model_directory), table_size=500)


@settings(max_examples=examples(50), deadline=None)
@given(lines=LINES)
def test_any_lines_equal_encode(pair: tuple[StaticModel, WordTableEmbedder], lines: list[str]) -> None:
    model, embedder = pair
    expected = model.encode(lines, normalize=True, use_multiprocessing=False)
    np.testing.assert_allclose(embedder.embed(lines), expected, rtol=0, atol=1e-4)

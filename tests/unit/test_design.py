"""Every promise on the design page refers to existing tests."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_promise_names_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "how-it-works" / "design.md").read_text()
    promises = re.split(r"^ *- ", page.partition("## Promises\n")[2].partition("\n## ")[0], flags=re.MULTILINE)[1:]
    assert len(promises) > 5
    for promise in promises:
        named = _TEST.findall(promise)
        assert named or promise.rstrip().endswith("under"), f"no test shows: {promise}"
        for file, name in named:
            assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file} has no {name}"

"""Documents that are written to make the search for definitions slow, large or recursive."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from driftline.tasks.definitions.find_definitions import MAX_DEPTH, MAX_NAME_CHARACTERS, definitions
from driftline.tasks.indexing.rows import RowPositions, outlines

MAX_CPU_SECONDS = 5.0
"""A hundred times what each text takes; quadratic time takes a multiple of it."""

SLOW = {
    "comments.js": "//\n" * 12_000 + "".join(f"function a{i}(){{}}" for i in range(6_000)) + "\n",
    "headings.html": "<h1>" * 40_000,
    "attributes.html": "<h1 " * 200_000,
    "tags.html": "<h1>" + "<" * 200_000 + "</h1>",
    "images.md": "# " + "[" * 200_000,
    "links.md": "# " + "](" * 200_000,
    "markup.md": "# " + "<" * 200_000,
    "spaces.md": "# " + " " * 200_000 + "x",
    "modifiers.zig": "static " * 100_000,
    "contexts.hs": ("class " * 40 + "=> " * 40 + "\n") * 2_000 + "{-" * 100_000,
    "modifiers.dart": ("final get <" * 30 + "\n") * 2_000,
    "metadata.clj": "(def " + "^{a} " * 70 + "(\n",
    "declarators.c": "int " + "(" * 20_000 + "f" + ")" * 20_000 + "() {}",
}
NESTED = {
    "nested.js": "".join(f"function a{i:04d}() {{ x\n" for i in range(2_000)) + "}\n" * 2_000,
    "nested.lua": "".join(f"{' ' * i}function a{i:04d}()\n" for i in range(400)),
    "nested.zig": f"fn {'a' * 200_000}()\n" + "".join(f"{' ' * i}fn b{i}()\n" for i in range(1, 400)),
    "nested.py": "".join(f"{' ' * i}class A{i}:\n" for i in range(90)),
    "nested.rst": "".join(
        f"{'a' * 100}\n{mark * 100}\n" if over else f"{mark * 100}\n{'a' * 100}\n{mark * 100}\n"
        for over in (True, False)
        for mark in "=-~^\"'`#*+:.<>_"
    ),
}


@pytest.mark.parametrize("name", SLOW)
def test_definitions_are_found_in_linear_time(name: str) -> None:
    started = time.process_time()
    definitions(name, SLOW[name])
    assert time.process_time() - started < MAX_CPU_SECONDS


@pytest.mark.parametrize("name", NESTED)
def test_nested_definitions_take_linear_space(name: str) -> None:
    text = NESTED[name]
    found = definitions(name, text)
    lines = text.split("\n")
    assert max(len(each.name) for each in found) < 10 * MAX_NAME_CHARACTERS
    assert max(sum(each.first <= n <= each.last for each in found) for n in range(len(lines))) <= MAX_DEPTH
    rows = pa.array(range(len(lines)), pa.int32())
    zeros = pa.array([0] * len(lines), pa.int32())
    column = outlines(RowPositions.of(zeros, rows, zeros), [found])
    assert column.nbytes < 20 * len(text.encode()) + 100_000

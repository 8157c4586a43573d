"""What a transformer reads of code: identifiers as words, and a definition by its name, its head and its path."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from driftline.storage.lines.outline import Definition

TEXT_VERSION = 1
"""Part of the fingerprint of a transformer: changes with what is read of a definition."""
HEAD_LINES = 12
"""Lines that are read from the beginning of a definition: comments above it, its signature, its first lines."""
MAX_CHARACTERS = 700
"""More is not read: a text of 128 tokens is about as long."""
FOLDERS = 2
"""Parts of a path that are read, the last ones."""
_HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORDS = re.compile(r"[^\W_]+|[.,?!]")


def as_words(text: str) -> str:
    """``text`` as a reader of prose knows it: identifiers split at humps and underscores, without signs."""
    return " ".join(_WORDS.findall(_HUMPS.sub(" ", text)))


def definition_text(path: str, definition: Definition, lines: Mapping[int, str]) -> str:
    """What is read of a definition of a document, whose ``lines`` with a word are given by their 0-based number."""
    last = min(definition.last, definition.first + HEAD_LINES - 1)
    numbers = dict.fromkeys((*range(definition.first, last + 1), definition.line))
    head = " ".join(lines[number].strip() for number in numbers if number in lines)[:MAX_CHARACTERS]
    folders = os.path.splitext(path)[0].split("/")[-FOLDERS:]
    return f"{as_words(definition.name)} . {as_words(head)} . {as_words(' '.join(folders))}"

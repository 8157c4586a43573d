"""Formats that are text inside: notebooks, mail, subtitles and RTF."""

from __future__ import annotations

import json
from typing import Any

from driftline.storage.model import SkipReason
from driftline.tasks.extraction.extractor import Draft, Extracted, Refused

_SUFFIXES = {"python": "py", "julia": "jl", "javascript": "js", "typescript": "ts", "rust": "rs", "c++": "cpp"}
_PLAIN_SUFFIXES = frozenset(("bash", "c", "cpp", "go", "java", "kotlin", "php", "r", "ruby", "scala", "sql", "swift"))


def notebook(data: bytes) -> Extracted:
    """The cells of a Jupyter notebook in order, code and prose, without outputs; the anchor is the number of a cell."""
    try:
        read = json.loads(data)
        cells = _cells(read)
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError):
        raise Refused(SkipReason.DAMAGED) from None
    language = _language(read)
    draft = Draft()
    for number, (kind, source) in enumerate(cells, start=1):
        if not source.strip():
            continue
        if draft.lines:
            draft.add("")
        draft.at(f"cell {number}")
        draft.begin("md" if kind == "markdown" else language if kind == "code" else "")
        draft.add(source.rstrip("\n"))
    return draft.done()


def _cells(read: Any) -> list[tuple[str, str]]:
    """Kind and source of each cell, of version 4 or 3 of the format."""
    sheets = [read] if "cells" in read else read["worksheets"]
    found = [cell for sheet in sheets for cell in sheet["cells"]]
    return [(str(cell["cell_type"]), _joined(cell.get("source", cell.get("input", "")))) for cell in found]


def _joined(source: Any) -> str:
    return source if isinstance(source, str) else "".join(source)


def _language(read: dict[str, Any]) -> str:
    """The suffix of files in the language of a notebook, "" if nobody knows it."""
    try:
        about = read.get("metadata", {})
        name = about.get("language_info", {}).get("name") or about.get("kernelspec", {}).get("language") or "python"
        name = str(name).lower()
    except AttributeError:
        return ""
    return _SUFFIXES.get(name, name if name in _PLAIN_SUFFIXES else "")

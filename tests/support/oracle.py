"""The expected content of an index, computed naively from the files on disk, and a tiny model for indexing."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
from model2vec import StaticModel
from tokenizers import Tokenizer, models, pre_tokenizers

from driftline.storage.entities import Entity
from driftline.storage.lines.line_table import PACK_COLUMN, PACK_LINE_COLUMN
from driftline.storage.lines.packs import text_in
from driftline.storage.workspace.workspace import Workspace

WORDS = tuple(f"word{number}" for number in range(400))

Row = tuple[str, int, str]
"""Path, 0-based line number, text."""


def save_tiny_model(folder: Path, seed: int = 7, dim: int = 16) -> Path:
    """Save a model2vec directory that has a random vector for each of WORDS and loads in milliseconds."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(("[UNK]", *WORDS))}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    vectors = np.random.default_rng(seed).standard_normal((len(WORDS) + 1, dim)).astype(np.float32)
    StaticModel(vectors, tokenizer, normalize=True).save_pretrained(folder)
    return folder


def rows_of_file(path: str, data: bytes) -> list[Row]:
    """Return the rows of one UTF-8 file: its lines that contain a letter or digit or, if there are none, its first
    line.
    """
    text = data.decode()
    lines = text.split("\n") if "\n" in text else text.split("\r")
    rows = [
        (path, number, line.removesuffix("\r"))
        for number, line in enumerate(lines)
        if any(unicodedata.category(character)[0] in "LN" for character in line)
    ]
    return rows or [(path, 0, lines[0].removesuffix("\r"))] if text else []


def files_below(root: Path) -> dict[str, bytes]:
    """Return all files under ``root``; each must be indexed."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            found[path.relative_to(root).as_posix()] = path.read_bytes()
    return found


def indexed_rows(workspace: Workspace, entity: Entity) -> list[Row]:
    """Return a source's rows in the lines table, sorted, after asserting that the packs of each document hold them."""
    table = workspace.lines(entity)
    if not table.exists():
        return []
    columns = ["path", "line_number", "text", PACK_LINE_COLUMN, PACK_COLUMN]
    where = "entity = '" + str(entity).replace("'", "''") + "'"
    found = [tuple(row.values()) for batch in table.rows(columns, where) for row in batch.to_pylist()]
    packs: dict[str, dict[int, str]] = defaultdict(dict)
    for path, _, _, first, pack in found:
        if pack is not None:
            assert first not in packs[path], f"{path} is packed twice"
            packs[path][first] = (text_in(pack.encode()) or b"").decode()
    packed = {path: "".join(texts[first] for first in sorted(texts)).split("\n") for path, texts in packs.items()}
    rows = sorted((path, number, text) for path, number, text, *_ in found)
    assert [row for row in rows if row[2] not in packed.get(row[0], [])[row[1] : row[1] + 1]] == [], "not in a pack"
    return rows


def manifest_of(workspace: Workspace, entity: Entity) -> dict[str, tuple[str, int]]:
    """Return ``{path: (hash, lines)}`` of a source's indexed documents."""
    table = workspace.manifest(entity).read(columns=["path", "hash", "lines", "reason"])
    assert not [path for path, n in Counter(table["path"].to_pylist()).items() if n > 1], (
        "a document is in the manifest twice"
    )
    return {row["path"]: (row["hash"], row["lines"]) for row in table.to_pylist() if row["reason"] is None}


def assert_in_step(workspace: Workspace, entity: Entity, files: dict[str, bytes]) -> None:
    """Assert that table and manifest hold exactly the lines of the text files in ``files``, each once."""
    expected = {path: rows_of_file(path, data) for path, data in files.items()}
    assert indexed_rows(workspace, entity) == sorted(row for rows in expected.values() for row in rows)
    hashes = {path: hashlib.blake2b(data, digest_size=16).hexdigest() for path, data in files.items()}
    assert manifest_of(workspace, entity) == {path: (hashes[path], len(rows)) for path, rows in expected.items()}


def assert_nothing_staged(workspace: Workspace) -> None:
    """Assert that no file from an unfinished commit is left."""
    left = [info.path for info in workspace.objects.list() if "_staged_" in info.path]
    assert not left, left


def lineage(entity: Entity) -> list[Entity]:
    """Return ``entity`` and its ancestors, tenant first."""
    return [Entity(entity.parts[:depth]) for depth in range(1, len(entity.parts) + 1)]

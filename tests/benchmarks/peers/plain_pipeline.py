"""A plain pipeline over model2vec and LanceDB: plain_pipeline.py TREE MODEL TARGET; prints the number of files.

Read, split, ``StaticModel.encode``, ``table.add``, and the indexes that Driftline builds, with the same parameters.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
from lancedb.index import FTS, BTree, IvfRq, LabelList
from model2vec import StaticModel

from driftline.storage.lance.lance_table import VECTOR_BITS, VECTOR_METRIC

LINES_PER_BATCH = 100_000


def batches(files: list[Path]) -> Iterator[list[tuple[Path, int, str]]]:
    batch: list[tuple[Path, int, str]] = []
    for file in files:
        text = file.read_text("utf-8", "replace")
        batch += [(file, number, line) for number, line in enumerate(text.split("\n")) if line.strip()]
        if len(batch) >= LINES_PER_BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def rows(root: Path, batch: list[tuple[Path, int, str]], model: StaticModel) -> pa.Table:
    vectors = model.encode([line for _, _, line in batch])
    paths = [str(file.relative_to(root)) for file, _, _ in batch]
    columns: dict[str, Any] = {
        "path": pa.array(paths),
        "line_number": pa.array([number for _, number, _ in batch], pa.int32()),
        "text": pa.array([line for _, _, line in batch]),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.asarray(vectors, np.float32).reshape(-1)), model.dim),
        "parent_dirs": pa.array(
            [[p[: i + 1] for i, c in enumerate(p) if c == "/"] for p in paths], pa.list_(pa.string())
        ),
    }
    return pa.table(columns)


def main(tree: str, model_path: str, target: str) -> None:
    root, model, database = Path(tree), StaticModel.from_pretrained(model_path), lancedb.connect(target)
    files = sorted(path for path in root.rglob("*.py") if path.is_file())
    table = None
    for batch in batches(files):
        data = rows(root, batch, model)
        if table is None:
            table = database.create_table("lines", data)
        else:
            table.add(data)
    if table is None:
        return
    table.create_index("path", config=BTree())
    table.create_index("parent_dirs", config=LabelList())
    table.create_index("text", config=FTS(with_position=False))
    table.create_index("vector", config=IvfRq(VECTOR_METRIC, num_partitions=1, num_bits=VECTOR_BITS))
    print(len(files))


if __name__ == "__main__":
    main(*sys.argv[1:])

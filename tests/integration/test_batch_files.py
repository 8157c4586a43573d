"""A batch becomes one data file, however many pieces it is embedded in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance.file import LanceFileReader

import driftline as dl
from driftline.storage.entities import Entity
from driftline.storage.errors import StorageError
from driftline.storage.lance.lance_table import LanceTable
from driftline.storage.lines.line_table import PACK_COLUMN, LineTable, schema
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.indexing import batch
from tests.support.searches import search

Driftline = Callable[..., Any]
SOURCE = Entity.parse("org:acme/project:alpha/source:web")


@pytest.mark.parametrize("failures", [0, 1])
@pytest.mark.parametrize("piece", [300, 2_000, batch.PIECE_CHARACTERS])
def test_a_batch_in_pieces_has_all_lines_once_even_after_a_failed_write(
    tmp_path: Path, tiny_model: Path, driftline: Driftline, piece: int, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "PIECE_CHARACTERS", piece)
    left, write = [failures], LanceTable._write

    def fails_first(table: LanceTable, rows: Any) -> Any:
        if isinstance(rows, pa.RecordBatchReader) and left[0]:
            left[0] -= 1
            rows.read_next_batch()
            raise StorageError("Cannot write", table.uri) from OSError("error sending request: connection reset")
        return write(table, rows)

    monkeypatch.setattr(LanceTable, "_write", fails_first)
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(20):
        (tree / f"{number}.txt").write_text("".join(f"file {number} has line {at}\n" for at in range(number + 1)))
    (source,) = dl.index(str(tree), workspace=str(tmp_path / "ws"), model=str(tiny_model)).sources
    assert left == [0]
    assert (source.lines_embedded, source.lines_total) == (210, 210)
    workspace = Workspace.open(str(tmp_path / "ws"))
    (tenant,) = workspace.tenants()
    sizes = [each.count_rows() for each in workspace.lines(tenant).open().get_fragments()]
    assert sorted(sizes) == [1, 210]  # the commit marker and the batch
    (hit,) = search(workspace, "file 17 has line 11", mode="text", top_k=1, n_lines=0).results
    assert (hit.path, hit.line) == ("17.txt", 12)
    verified = driftline("verify", "--workspace", tmp_path / "ws", "--json").json
    assert (verified["lines"], verified["findings"]) == (210, [])


def test_columns_that_every_search_reads_are_at_the_end_of_a_large_file(tmp_path: Path) -> None:
    """Lance's default would write a page of each column after 8 MiB, between the pages of larger columns."""
    columns, rows, count = schema(1), 60_000, 3
    constant: dict[str, Any] = {"id": 0, "path": "folder/" * 9, "line_number": 1, "column_number": 0, "hash": "f" * 64}
    arrays = [
        pa.repeat(pa.scalar(constant[name], kind), rows) if name in constant else pa.nulls(rows, kind)
        for name, kind in zip(columns.names, columns.types, strict=True)
    ]
    part = pa.Table.from_arrays(arrays, schema=columns)
    table = LineTable(ObjectStore.open(str(tmp_path)), SOURCE, "f00d")
    table.create(1)
    (fragment,) = table.write(lambda: iter([part] * count))
    (file,) = tmp_path.rglob(f"data/{fragment.files[0].path}")
    metadata = LanceFileReader(str(file)).metadata()
    assert metadata.num_rows == rows * count
    pages = [[each.buffers for each in column.pages] for column in metadata.columns]
    last = pages[columns.names.index(PACK_COLUMN) :]
    assert [len(each) for each in last] == [1] * len(last)
    starts = [buffer.position for (buffers,) in last for buffer in buffers]
    assert starts == sorted(starts)
    assert min(starts) >= max(buffer.position for each in pages[: -len(last)] for page in each for buffer in page)

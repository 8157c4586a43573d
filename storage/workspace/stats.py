"""Define the statistics of a workspace, and how they and search results show as tables in notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


def html_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table for notebooks, with every cell escaped."""
    cells = ["".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in rows]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


@dataclass(frozen=True, slots=True)
class WorkspaceStats:
    """Workspace statistics; ``total_lines`` counts rows of ``line_embeddings``."""

    total_documents: int
    total_lines: int
    has_index: bool
    index_type: str | None
    workspace: str = ""
    model: str | None = None
    sources: tuple[dict[str, Any], ...] = ()
    deltas: int = 0
    last_run: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as a dictionary.

        Returns:
            The object printed by ``status --json``.

        Examples:
            >>> ws.status().to_dict()["total_documents"]
            1
        """
        return asdict(self)

    def _repr_html_(self) -> str:
        rows = [(name, value) for name, value in self.to_dict().items() if name != "sources"]
        return html_table(("", self.workspace), rows)

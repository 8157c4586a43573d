"""Start MCP servers in the test's process, and read the text of their answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from mcp.server import MCPServer

from driftline.flows.mcp_server.server import WorkspaceTools, server_of
from driftline.flows.mcp_server.tools import LineTools, MemoryTools
from driftline.storage.memory.store import MemoryStore
from driftline.storage.workspace.workspace import Workspace

_LINE = re.compile(r"(?:(?P<source>[\w.-]+) )?(?P<path>[^\s:]+):(?P<line>\d+):(?P<text>.*?)(?:  \([^()]*\))?")
_HEADING = re.compile(r"(?:(?P<source>[\w.-]+) )?(?P<path>[^\s:]+):(?P<line>\d+)(?:  \([^()]*\))?")
_NUMBERED = re.compile(r"(?P<line>\d+)[:-] (?P<text>.*)")


def make_server(workspace: Workspace, memory: Callable[[], MemoryStore] | None = None) -> MCPServer[Any]:
    """Return the server of a workspace and of the store that ``memory`` opens; it closes when the process exits."""
    tools = MemoryTools(lambda *query, **options: memory().search_memory(*query, **options)) if memory else None
    return server_of({"": WorkspaceTools(LineTools(workspace.reread, lambda: None, shows_files=True), tools)})


def text_of(outcome: Any) -> str:
    """Return an answer's text. Fails if the call failed, or if clients would show something else to the model."""
    assert not outcome.is_error, outcome
    assert outcome.structured_content is None
    (block,) = outcome.content
    text: str = block.text
    return text


def hits_of(text: str) -> list[tuple[str, int, str]]:
    """Return the path, the line and the text of each result of a search."""
    hits: list[tuple[str, int, str]] = []
    heading: tuple[str, int] | None = None
    for each in text.splitlines():
        if found := _HEADING.fullmatch(each):
            heading = found["path"], int(found["line"])
        elif heading and (found := _NUMBERED.fullmatch(each)):
            if int(found["line"]) == heading[1]:
                hits.append((*heading, found["text"]))
        elif found := _LINE.fullmatch(each):
            hits.append((found["path"], int(found["line"]), found["text"]))
    return hits


def numbered_lines(text: str) -> list[str]:
    """Return the numbered lines, without their numbers."""
    return [found["text"] for each in text.splitlines() if (found := _NUMBERED.fullmatch(each))]

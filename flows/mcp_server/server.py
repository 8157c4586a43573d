"""The MCP server: a workspace as tools for programs that speak the Model Context Protocol.

Tools only read. What they return is bounded, and what goes wrong is an error of the protocol (``is_error``).
"""

from __future__ import annotations

import functools
import ipaddress
import signal
import socket
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Annotated, Any, ParamSpec, TypeVar

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

from driftline.flows.mcp_server.memory import FilterValue, MemoryAnswer, memory_answer
from driftline.storage.errors import DriftlineError, UsageError
from driftline.storage.lines.filters import LineFilter
from driftline.storage.memory.store import MemoryStore
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.excerpts import read_excerpt
from driftline.tasks.search.query import Mode, search

MAX_TOP_K = 50
MAX_N_LINES = 20
MAX_EXCERPT_LINES = 200
MAX_SOURCES = 100
MAX_LINE_CHARACTERS = 500
MAX_ANSWER_BYTES = 64 * 1024
"""Of lines, in UTF-8: what an answer may take of a model's context."""

_INSTRUCTIONS = (
    "Search indexed repositories and documents by meaning with search_lines; read around a hit with read_context, "
    "giving it the hit's path, line and source."
)
_OF_MEMORY = " Look up what was stored in memory with search_memory."
_GOODBYE_SECONDS = 3
"""How long an interrupted HTTP server waits for clients that hold a stream open."""
_P = ParamSpec("_P")
_T = TypeVar("_T")

Query = Annotated[str, Field(min_length=1, max_length=2_000, description="What to look for, in words or code.")]
Names = Annotated[list[str], Field(max_length=100)]


class Found(BaseModel):
    """A window of lines; numbers are 1-based, ``line`` and ``text`` are its best line."""

    path: str
    source: str
    line: int
    start_line: int
    end_line: int
    score: float | None
    distance: float | None
    rank: int
    text: str
    context: list[str]


class SearchAnswer(BaseModel):
    """Windows, best first. ``truncated``: lines were cut or windows left out to keep the answer short."""

    query: str
    results: list[Found]
    truncated: bool


class SourceStatus(BaseModel):
    """One indexed place."""

    entity: str
    uri: str
    documents: int
    lines: int


class IndexStatus(BaseModel):
    """What the workspace holds; ``sources_left_out`` counts sources that are not listed."""

    workspace: str
    total_documents: int
    total_lines: int
    has_index: bool
    index_type: str | None
    model: str | None
    sources: list[SourceStatus]
    sources_left_out: int


class ContextAnswer(BaseModel):
    """Lines of a document as they were indexed; ``current``: it has not changed since then."""

    path: str
    source: str
    start_line: int
    end_line: int
    lines: list[str]
    current: bool
    truncated: bool


def make_server(workspace: Workspace, memory: Callable[[], MemoryStore] | None = None) -> MCPServer[Any]:
    """The server of an open workspace, which it reads anew at each call, and of the store that ``memory`` opens."""
    instructions = _INSTRUCTIONS + (_OF_MEMORY if memory else "")
    server: MCPServer[Any] = MCPServer(
        "driftline", instructions=instructions, version=version("driftline"), log_level="WARNING"
    )
    reads = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)

    @server.tool(annotations=reads)
    @_telling_errors
    def search_lines(
        query: Query,
        top_k: Annotated[int, Field(ge=1, le=MAX_TOP_K, description="At most so many results.")] = 10,
        n_lines: Annotated[int, Field(ge=0, le=MAX_N_LINES, description="Lines of context on each side.")] = 3,
        max_distance: Annotated[float | None, Field(ge=0, le=2, description="Drop what is farther.")] = None,
        paths: Annotated[Names | None, Field(description="Only these documents, by path in their source.")] = None,
        dirs: Annotated[Names | None, Field(description="Only below these folders.")] = None,
        globs: Annotated[Names | None, Field(description="Only paths that match, as in src/**/*.py.")] = None,
        exts: Annotated[Names | None, Field(description="Only files with these endings.")] = None,
        mode: Annotated[Mode, Field(description="By words and meaning, by meaning alone, by words alone.")] = "hybrid",
    ) -> SearchAnswer:
        """Find the lines of the indexed documents that mean the query, best first, with the lines around them."""
        where = LineFilter(
            paths=tuple(paths) if paths else None,
            dirs=tuple(dirs) if dirs else None,
            globs=tuple(globs) if globs else None,
            exts=tuple(exts) if exts else None,
        )
        report = search(
            workspace.reread(), query, top_k=top_k, n_lines=n_lines, max_distance=max_distance, where=where, mode=mode
        )
        results: list[Found] = []
        left, truncated = MAX_ANSWER_BYTES, False
        for hit in report.results:
            context, left, cut = _bounded(hit.context, left)
            if len(context) < len(hit.context) and results:
                return SearchAnswer(query=query, results=results, truncated=True)
            truncated |= cut
            results.append(
                Found(
                    path=hit.path,
                    source=hit.source,
                    line=hit.line,
                    start_line=hit.start_line,
                    end_line=hit.start_line + len(context) - 1,
                    score=hit.score,
                    distance=hit.distance,
                    rank=hit.rank,
                    text=_cut(hit.text),
                    context=context,
                )
            )
        return SearchAnswer(query=query, results=results, truncated=truncated)

    @server.tool(annotations=reads)
    @_telling_errors
    def index_status() -> IndexStatus:
        """Tell what is indexed: sources, documents, lines, and the model that embedded them."""
        stats = workspace.reread().stats()
        return IndexStatus(
            workspace=stats.workspace,
            total_documents=stats.total_documents,
            total_lines=stats.total_lines,
            has_index=stats.has_index,
            index_type=stats.index_type,
            model=stats.model,
            sources=[SourceStatus.model_validate(source) for source in stats.sources[:MAX_SOURCES]],
            sources_left_out=max(0, len(stats.sources) - MAX_SOURCES),
        )

    @server.tool(annotations=reads)
    @_telling_errors
    def read_context(
        path: Annotated[str, Field(min_length=1, description="The path of a search result.")],
        line: Annotated[int, Field(ge=1, description="The line to read around, counted from 1.")],
        n_lines: Annotated[int, Field(ge=0, le=MAX_EXCERPT_LINES // 2, description="Lines on each side.")] = 20,
        source: Annotated[str | None, Field(description="The source of the result, if several have the path.")] = None,
    ) -> ContextAnswer:
        """Read an indexed document around a line. Nothing but indexed documents can be read."""
        found = read_excerpt(workspace.reread(), path, line, n_lines=n_lines, source=source)
        lines, _, truncated = _bounded(found.lines, MAX_ANSWER_BYTES)
        return ContextAnswer(
            path=found.path,
            source=found.source,
            start_line=found.start_line,
            end_line=found.start_line + len(lines) - 1,
            lines=lines,
            current=found.current,
            truncated=truncated,
        )

    if memory is None:
        return server

    @server.tool(annotations=reads)
    @_telling_errors
    def search_memory(
        query: Query,
        top_k: Annotated[int, Field(ge=1, le=MAX_TOP_K, description="At most so many entries.")] = 5,
        filter: Annotated[
            dict[str, FilterValue] | None,
            Field(description="Fields of the metadata, all of which must fit; a list means any of its values."),
        ] = None,
        entity: Annotated[
            str | None,
            Field(description="Look at or below this entity, as in org:acme/project:alpha; by default the root."),
        ] = None,
    ) -> MemoryAnswer:
        """Find the entries of the memory store that mean the query, best first."""
        return memory_answer(memory(), query, top_k, filter, entity, MAX_ANSWER_BYTES)

    return server


def serve_stdio(workspace: Workspace, memory: Callable[[], MemoryStore] | None = None) -> None:
    """Serve one client over standard input and output, until it closes them. An interrupt ends the process."""
    server = make_server(workspace, memory)
    # The SDK reads in a thread that no KeyboardInterrupt reaches; there is nothing to finish.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        server.run("stdio")
    finally:
        signal.signal(signal.SIGINT, before)


def serve_http(
    workspace: Workspace,
    host: str,
    port: int,
    on_ready: Callable[[str], None],
    memory: Callable[[], MemoryStore] | None = None,
) -> None:
    """Serve over streamable HTTP until interrupted; ``on_ready`` gets the URL, whose port is free to choose with 0.

    Raises UsageError for an address that other machines could reach, since there is no authentication, or is taken.
    """
    import uvicorn

    listener = _listen(host, port)
    with listener:
        shown = f"[{host}]" if ":" in host else host
        names = [shown, "127.0.0.1", "localhost", "[::1]"]
        # A web page whose name is made to lead here could otherwise ask the server through its visitor's browser.
        security = TransportSecuritySettings(
            allowed_hosts=[f"{name}:*" for name in names], allowed_origins=[f"http://{name}:*" for name in names]
        )
        app = make_server(workspace, memory).streamable_http_app(transport_security=security)
        on_ready(f"http://{shown}:{listener.getsockname()[1]}/mcp")
        uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=_GOODBYE_SECONDS)).run(
            sockets=[listener]
        )


def _listen(host: str, port: int) -> socket.socket:
    where = f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if not ipaddress.ip_address(address[0]).is_loopback:
            raise UsageError("The MCP server listens on loopback only", where, "Use 127.0.0.1 or localhost.")
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # so that who reads the URL can connect at once
    except OSError as error:
        raise UsageError("The MCP server cannot listen there", where, f"Choose another --port ({error}).") from error
    return listener


def _telling_errors(tool: Callable[_P, _T]) -> Callable[_P, _T]:
    """``tool`` with our errors as the protocol's, so that the client's model reads what to do."""

    @functools.wraps(tool)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return tool(*args, **kwargs)
        except DriftlineError as error:
            raise ToolError(f"{error.kind}: {error}") from error
        except Exception:
            traceback.print_exc()  # a defect: the client is told no more than that the tool failed
            raise

    return call


def _bounded(lines: Sequence[str], left: int) -> tuple[list[str], int, bool]:
    """As many of ``lines``, each cut, as fit into ``left`` bytes; the bytes then left; whether anything is missing."""
    kept: list[str] = []
    truncated = False
    for line in lines:
        short = _cut(line)
        left -= len(short.encode("utf-8", "surrogatepass")) + 1
        if left < 0:
            return kept, 0, True
        truncated |= short is not line
        kept.append(short)
    return kept, left, truncated


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARACTERS else line[: MAX_LINE_CHARACTERS - 1] + "…"

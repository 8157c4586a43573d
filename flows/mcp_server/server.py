"""Serve a workspace's MCP tools over standard input and output, or over HTTP.

HTTP is served on loopback, and requests are stateless: the tools are read-only, so there are neither sessions nor open
streams. Connections whose request does not arrive in time are closed, and the number of connections is limited.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    ToolAnnotations,
    jsonrpc_message_adapter,
)
from mcp_types import Tool as ListedTool
from pydantic import Field, ValidationError, create_model, model_validator

from driftline.flows.mcp_server.tools import LineTools, MemoryTools, protocol_errors
from driftline.storage.errors import DriftlineError
from driftline.storage.option_table import nearest_name

if TYPE_CHECKING:
    from mcp.shared._stream_protocols import ReadStream, WriteStream
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from driftline.flows.http_server import HttpServer

_GRACE_SECONDS = 3
"""Grace period for requests in flight at shutdown."""
UNCHECKED = TransportSecuritySettings(enable_dns_rebinding_protection=False)
"""The SDK need not check Host and Origin: both servers' guards do."""


def http_server(tools: MCPServer[Any], host: str, port: int) -> HttpServer:
    """Return an HTTP server for ``tools``, already listening. Port 0 selects a free port.

    Raises UsageError if the address is in use or reachable from other machines: there is no authentication.
    """
    import uvicorn

    from driftline.flows.http_server import HttpGuard, HttpServer, TimeoutProtocol, listen, own_addresses

    fix = "Use 127.0.0.1 or localhost; 'driftline web' serves /mcp to other machines, with tokens."
    listener = listen(host, port, what="The MCP server", only_loopback=fix)
    addresses = own_addresses(host, listener)
    app = tools.streamable_http_app(transport_security=UNCHECKED, stateless_http=True)
    config = uvicorn.Config(
        HttpGuard(WholePosts(app), addresses),
        http=TimeoutProtocol,
        ws="none",
        log_level="warning",
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    return HttpServer(f"http://{addresses[0]}/mcp", uvicorn.Server(config), listener)


@dataclass(frozen=True, slots=True)
class WholePosts:
    """Buffers requests and passes them to ``app`` when complete; rejects all methods but POST.

    There are no sessions, so a GET would open a stream that stays empty until the client disconnects.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] != "POST":
            from starlette.responses import PlainTextResponse

            refused = PlainTextResponse("Only POST is allowed.", HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "POST"})
            await refused(scope, receive, send)
            return
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return  # the client disconnected, or the body is too large and the guard responds
            body += message.get("body", b"")
            more = message.get("more_body", False)
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def receive_whole() -> Message:
            return whole.pop() if whole else await receive()

        await self.app(scope, receive_whole, send)


_INSTRUCTIONS = (
    "Search indexed repositories and documents semantically with search_lines; read around a result with read_context. "
    "If you know an exact text or a name, use grep_lines, find_definitions and find_uses."
)
_MEMORY_INSTRUCTIONS = " Search stored memory entries with search_memory."


@dataclass(frozen=True, slots=True)
class WorkspaceTools:
    """A workspace's tools; its memory tools are None if it has no memory.

    ``unlisted`` returns the arguments that are accepted, but of no use now, such as ``branch`` without branches.
    """

    lines: LineTools
    memory: MemoryTools | None = None
    unlisted: Callable[[], frozenset[str]] = frozenset

    def by_name(self) -> dict[str, Callable[..., Any]]:
        """Return the tools, in the order that clients list them."""
        lines = self.lines
        tools: list[Callable[..., Any]] = [lines.search_lines, lines.grep_lines, lines.find_definitions]
        tools += [lines.find_uses, lines.read_context, lines.index_status]
        if self.memory is not None:
            tools.append(self.memory.search_memory)
        return {tool.__name__: tool for tool in tools}


def server_of(workspaces: Mapping[str, WorkspaceTools]) -> MCPServer[Any]:
    """Return the server for ``workspaces``, keyed by name. With several, tools accept a name (default: the first)."""
    has_memory = any(each.memory for each in workspaces.values())
    instructions = _INSTRUCTIONS + (_MEMORY_INSTRUCTIONS if has_memory else "")
    offered: dict[str, dict[str, Callable[..., Any]]] = {}
    for workspace, each in workspaces.items():
        for name, tool in each.by_name().items():
            offered.setdefault(name, {})[workspace] = tool
    if len(workspaces) > 1:
        instructions += f" Each call searches one workspace: {', '.join(workspaces)}. If it finds nothing, try another."
    tools = [_of_workspace(each) if len(workspaces) > 1 else next(iter(each.values())) for each in offered.values()]
    server = _Server(
        "driftline",
        instructions=instructions,
        version=version("driftline"),
        log_level="WARNING",
        tools=[
            _strict(Tool.from_function(protocol_errors(tool), description=inspect.getdoc(tool), annotations=_READS))
            for tool in tools
        ],
    )
    server.unlisted = tuple(each.unlisted for each in workspaces.values())

    @server.resource(SOURCES_URI, name="sources", mime_type="application/json")
    def sources() -> str:
        """The indexed sources, with their number of documents and lines."""
        try:
            found = {name: each.lines.index_status() for name, each in workspaces.items()}
            if len(found) == 1:
                return next(iter(found.values())).model_dump_json()
            return json.dumps({name: status.model_dump(mode="json") for name, status in found.items()})
        except DriftlineError as error:
            raise ResourceError(f"{error.kind}: {error}") from error

    @server.prompt(name="find")
    def find(question: Annotated[str, Field(description="What you want to know about the code.")]) -> str:
        """Answer a question from the indexed code and documents, citing the lines that support the answer."""
        return _FIND.format(question=question)

    return server


class _Server(MCPServer[Any]):
    """Lists only the arguments that are of use in a workspace when the client asks for the tools.

    Over standard input, it answers every message.
    """

    unlisted: tuple[Callable[[], frozenset[str]], ...] = ()

    async def run_stdio_async(self) -> None:
        async with stdio_server() as (read, write):
            server = self._lowlevel_server
            await server.run(_Messages(read, write), write, server.create_initialization_options())

    async def list_tools(self) -> list[ListedTool]:
        tools = await super().list_tools()
        useless = await asyncio.to_thread(lambda: frozenset.intersection(*(each() for each in self.unlisted)))
        for tool in tools:
            of_use = {name: each for name, each in tool.input_schema["properties"].items() if name not in useless}
            tool.input_schema = {**tool.input_schema, "properties": of_use}
        return tools


@dataclass(frozen=True, slots=True)
class _Messages:
    """A client's messages. Those that the SDK cannot parse are repaired or answered; it would drop them in silence."""

    read: ReadStream[SessionMessage | Exception]
    write: WriteStream[SessionMessage]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        async for item in self.read:
            if not isinstance(item, ValidationError):
                return item
            message = SessionMessage(_repaired(item))
            if not isinstance(message.message, JSONRPCError):
                return message
            await self.write.send(message)
        raise StopAsyncIteration

    receive = __anext__

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self.read.aclose()


def _repaired(error: ValidationError) -> JSONRPCMessage:
    """Return the message that caused ``error``, without lone surrogates, or else the error that answers it.

    JSON has lone surrogates where a client cut a text within a character, such as an emoji.
    """
    found = error.errors()
    given = next(
        (each["input"] for each in found if isinstance(each["input"], dict) and "jsonrpc" in each["input"]), None
    )
    is_json = found[0]["type"] != "json_invalid"
    if not is_json:
        with suppress(ValueError, RecursionError):
            given = json.loads(found[0]["input"])
            return jsonrpc_message_adapter.validate_json(json.dumps(given, ensure_ascii=False).encode(errors="replace"))
    known = given.get("id") if isinstance(given, dict) else None
    code, text = (INVALID_REQUEST, "Not a JSON-RPC message") if is_json else (PARSE_ERROR, "Not JSON")
    is_id = isinstance(known, int | str) and not isinstance(known, bool)
    return JSONRPCError(jsonrpc="2.0", id=known if is_id else None, error=ErrorData(code=code, message=text))


def _of_workspace(tools: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Return a tool that calls one of ``tools``, selected by its ``workspace`` argument."""
    names = tuple(tools)

    @wraps(tools[names[0]])
    def call(*args: Any, workspace: str | None = None, **kwargs: Any) -> Any:
        return tools[names[0] if workspace is None else workspace](*args, **kwargs)

    about = Field(description=f"The workspace to search; default: {names[0]}.")
    annotation: Any = Annotated[Literal[names] | None, about]
    own = inspect.signature(tools[names[0]], eval_str=True)
    added = inspect.Parameter("workspace", inspect.Parameter.KEYWORD_ONLY, default=names[0], annotation=annotation)
    vars(call)["__signature__"] = own.replace(parameters=[*own.parameters.values(), added])
    return call


SOURCES_URI = "driftline://sources"
_FIND = """Answer from the index of Driftline: {question}

Search with search_lines, once in the words of the question and once in words that the code may use. Follow names with
find_definitions and find_uses. Read around the best lines with read_context before you rely on them. Cite every
statement as path:line, and say so if the index does not answer the question."""


_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)


def _strict(tool: Tool) -> Tool:
    """Make ``tool`` reject unknown arguments, which the SDK would drop, even filters; shorten its schema."""
    known = [*tool.fn_metadata.arg_model.model_fields]

    def check(given: Any) -> Any:
        if isinstance(given, dict) and (unknown := [name for name in given if name not in known]):
            raise ValueError(f"Unknown argument {unknown[0]!r}. {nearest_name(unknown[0], known)}")
        return given

    checks: dict[str, Any] = {"check": model_validator(mode="before")(check)}
    name = tool.fn_metadata.arg_model.__name__
    arguments = create_model(name, __base__=tool.fn_metadata.arg_model, __validators__=checks)
    arguments.model_config["extra"] = "forbid"
    arguments.model_rebuild(force=True)
    metadata = tool.fn_metadata.model_copy(update={"arg_model": arguments})
    parameters = _listed(arguments.model_json_schema(by_alias=True))
    fields = {name: getattr(tool, name) for name in Tool.model_fields}
    return _StrictTool.model_construct(**fields | {"fn_metadata": metadata, "parameters": parameters})


class _StrictTool(Tool):
    """Reports invalid arguments on one line; the SDK would print pydantic's error."""

    async def run(self, arguments: dict[str, Any], context: Any, convert_result: bool = False) -> Any:
        try:
            self.fn_metadata.validate_arguments(arguments)
        except ValidationError as error:
            wrong = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}".removeprefix(": ") for each in error.errors())
            raise ToolError("; ".join(text.removeprefix("Value error, ") for text in wrong)) from error
        return await super().run(arguments, context, convert_result)


_ONLY_CHECKED = {"additionalProperties", "maxItems", "maxLength", "minLength", "minimum", "title"}
"""What the server checks, and errors explain: of no use to a model before its first call."""


def _listed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema as clients put it into a model's context in every session: only what a model needs to decide.

    Clients omit optional arguments, so there is no null, and neither has an absent switch a default of false.
    """
    properties = {}
    for name, about in schema.get("properties", {}).items():
        whole, options = about, [each for each in about.get("anyOf", ()) if each != {"type": "null"}]
        if len(options) == 1:
            whole = {**options[0], **{key: each for key, each in about.items() if key != "anyOf"}}
        is_absent = any(whole.get("default") is value for value in (None, False))
        properties[name] = {
            key: each
            for key, each in whole.items()
            if key not in _ONLY_CHECKED and not (key == "default" and is_absent)
        }
    return {**{key: each for key, each in schema.items() if key not in _ONLY_CHECKED}, "properties": properties}


def serve_stdio(server: MCPServer[Any]) -> None:
    """Serve one client over standard input and output until it closes them. An interrupt kills the process."""
    # The SDK's reader thread never sees KeyboardInterrupt, and there is nothing to clean up.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        server.run("stdio")
    finally:
        signal.signal(signal.SIGINT, before)


def serve_http(tools: MCPServer[Any], host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve over streamable HTTP until interrupted. Port 0 selects a free port; ``on_ready`` receives the URL.

    Raises UsageError if the address is in use or reachable from other machines: there is no authentication.
    """
    server = http_server(tools, host, port)
    on_ready(server.url)
    server.run()

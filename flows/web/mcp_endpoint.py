"""Serve the MCP tools at /mcp: each call has its request's access."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anyio.to_thread import run_sync
from starlette.types import ASGIApp, Receive, Scope, Send

from driftline.flows.web.api import Reader
from driftline.flows.web.authentication import granted

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from driftline.storage.memory.entries import MemoryEntry
    from driftline.storage.memory.search import MemoryHits


@dataclass(slots=True)
class Tools:
    """The application that serves the tools of ``reader`` over stateless streamable HTTP.

    Its libraries take a second to load: the first request waits for them, not server startup.
    """

    reader: Reader
    _app: asyncio.Future[ASGIApp] | None = None
    _serving: asyncio.Task[None] | None = None
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            self._app = asyncio.get_running_loop().create_future()
            # An empty context: the first request's access must not leak into others.
            self._serving = asyncio.create_task(self._serve(self._app), context=Context())
        app = await asyncio.shield(self._app)
        await app(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Stop the application, if it was started, when the context exits."""
        try:
            yield
        finally:
            self._stop.set()
            if self._serving is not None:
                await self._serving

    async def _serve(self, ready: asyncio.Future[ASGIApp]) -> None:
        try:
            answers, app = await run_sync(_application, self.reader)
            async with app.router.lifespan_context(app):
                ready.set_result(answers)
                await self._stop.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise


def _application(reader: Reader) -> tuple[ASGIApp, Starlette]:
    """Return the application that handles requests, and the one that provides its lifespan."""
    from driftline.flows.mcp_server.server import UNCHECKED, WholePosts, WorkspaceTools, server_of
    from driftline.flows.mcp_server.tools import LineTools, MemoryTools
    from driftline.flows.memory_stores import search_memory

    lines = LineTools(reader.newest, lambda: granted("search").within, reader.run)
    memory = reader.memory

    def search(query: str, **options: Any) -> MemoryHits[MemoryEntry]:
        assert memory is not None
        settings, within = memory(), granted("memory").within
        found: MemoryHits[MemoryEntry] = reader.run(
            search_memory, settings.workspace, settings.configuration, within, query, **options
        )
        return found

    server = server_of({"": WorkspaceTools(lines, MemoryTools(search) if memory is not None else None)})
    app = server.streamable_http_app(transport_security=UNCHECKED, stateless_http=True, json_response=True)
    return WholePosts(app), app

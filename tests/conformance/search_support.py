"""Helpers for the search conformance tests: file trees, action registries, and checks of responses."""

from __future__ import annotations

import asyncio
import os
import runpy
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from driftline.flows.actions import register_actions
from tests.support.mcp import text_of
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
Answer = dict[str, Any]
Registry = dict[str, Callable[..., Answer]]
Driftline = Callable[..., Any]

ENGINE_ARGUMENTS: Mapping[str, Any] = {
    "engine": object(),
    "node": "a node",
    "graph": object(),
    "config": {},
    "checkpoint_dir": None,
    "parallel_results": [],
}
"""Arguments that engines pass to every action, in addition to its own."""

NOTES = {
    "src/leases.py": "def renew_lease(holder):\n    return holder.renew()\n",
    "src/login.py": "def check_password(user, password):\n    raise LoginFailed(user)\n",
    "src/deep/parser.py": "class ArgumentParser:\n    pass\n",
    "lib/errors.rs": "fn handle_login_error(error: Error) {\n    retry(error)\n}\n",
    "lib/notes.txt": "Boil the potatoes in salted water.\n",
    "docs/leases.md": "# Leases\nA lease expires when its holder is dead.\nRenew it in time.\n",
    "docs/deep/cooking.md": "Fry the onions in butter.\n",
}


def plant(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write these files under ``folder``, and return it."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def actions(home: Path | None = None, engine: Any = None) -> Registry:
    """Return a registry of all actions; named workspaces are in ``home``."""
    registry: Registry = {}
    register_actions(registry, engine, home=None if home is None else str(home))
    return registry


def ok(answer: Answer) -> Answer:
    """Assert that ``answer`` is not a failure, and return it."""
    assert answer.get("success") is True, answer
    return answer


def error_type(answer: Answer) -> str:
    """Assert that a failure has the documented form, and return its kind."""
    assert answer.get("success") is False, answer
    assert isinstance(answer["error"], str), answer
    assert answer["error"], answer
    return str(answer["error_type"])


def locations(hits: Iterable[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Return the file name (without folder) and line of each hit, in order."""
    return [(os.path.basename(hit.get("path") or hit["file"]), hit["line"]) for hit in hits]


def names(answer: Answer) -> set[str]:
    """Return the file names (without folders) of the results in a response."""
    return {name for name, _ in locations(ok(answer)["results"])}


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the sizes and modification times of all files under a folder; they change with every write."""
    found = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {str(path.relative_to(folder)): (stat.st_size, stat.st_mtime_ns) for path, stat in sorted(found.items())}


def pages() -> dict[str, str]:
    """Return the documentation pages, including generated parts, keyed by path."""
    hooks = runpy.run_path(str(ROOT / "docs" / "hooks.py"))
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "flows").glob("*.md")]
    written = {path.relative_to(ROOT).as_posix(): hooks["fill"](path.read_text()) for path in found if path.exists()}
    return written | {f"docs/reference/{name}.md": page for name, page in hooks["command_pages"]().items()}


def action_pages() -> str:
    """Return the action reference."""
    return "\n".join(text for text in pages().values() if "search.workspace_create" in text)


def ask_mcp(workspace: str, *calls: tuple[str, dict[str, Any]]) -> list[str]:
    """Return the texts of an MCP server's responses over a workspace; protocol errors fail the test."""
    from mcp import Client

    import driftline as dl
    from tests.support.mcp import make_server

    async def talk() -> list[Any]:
        async with Client(make_server(dl.open(workspace).storage), read_timeout_seconds=PATIENCE_SECONDS) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return [text_of(outcome) for outcome in asyncio.run(talk())]

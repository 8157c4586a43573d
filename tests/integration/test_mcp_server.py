"""The MCP server with the SDK's client: over stdio, over HTTP, and in this process."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from mcp import Client, StdioServerParameters

import driftline as dl
from driftline.flows.commands.mcp import unlisted_arguments
from driftline.flows.config.memory_settings import MEMORY_CONFIG_VARIABLE, find_memory, load_memory_configuration
from driftline.flows.mcp_server import tools as mcp_memory
from driftline.flows.mcp_server.server import WorkspaceTools, server_of
from driftline.flows.mcp_server.tools import BYTES_PER_TOKEN, MAX_ANSWER_BYTES, MAX_TOKENS, MIN_TOKENS, LineTools
from driftline.storage.defaults import MAX_SHOWN_CHARACTERS
from driftline.storage.environment import install_command
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.embedder import WordTableEmbedder
from driftline.tasks.search.request import MAX_TOP_K
from tests.support.mcp import hits_of, make_server, numbered_lines, text_of
from tests.support.processes import forked_command
from tests.support.waiting import PATIENCE_SECONDS

Outcome = Any


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A folder that contains a workspace ``ws`` over the trees ``web`` and ``app``, and an unindexed file."""
    location = tmp_path_factory.mktemp("mcp")
    for source in ("web", "app"):
        (location / source).mkdir()
        (location / source / "both.txt").write_text(f"{source}\nparser\n")
    (location / "web" / "long.txt").write_text("\n".join(["subcommand " * 100] * 400))
    (location / "web" / "only.txt").write_text("one\n---\nnamespace\ntwo\n")
    (location / "secret.txt").write_text("namespace\n")
    for source in ("web", "app"):
        dl.index(str(location / source), workspace=str(location / "ws"), model=str(tiny_model))
    return location


def ask(server: Any, *calls: tuple[str, dict[str, Any]]) -> list[Outcome]:
    async def talk() -> list[Outcome]:
        async with Client(server, read_timeout_seconds=PATIENCE_SECONDS) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(talk())


FIND = ("search_lines", {"query": "namespace", "top_k": 1, "n_lines": 1})


def check_found(outcome: Outcome) -> None:
    assert hits_of(text_of(outcome)) == [("only.txt", 3, "namespace")]


def test_a_client_finds_a_line_over_stdio(location: Path) -> None:
    program = str(Path(sys.executable).parent / "driftline")
    server = StdioServerParameters(command=program, args=["mcp", "--workspace", str(location / "ws")])
    found, context = ask(server, FIND, ("read_context", {"path": "only.txt", "line": 3, "n_lines": 1}))
    check_found(found)
    assert numbered_lines(text_of(context)) == ["---", "namespace", "two"]


def test_every_message_over_stdio_is_answered(location: Path) -> None:
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    find = {"name": "search_lines", "arguments": {"query": "namespace"}}
    messages = [
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}),
        json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": find}).replace(
            "space", "space \\ud83d"
        ),
        '{"jsonrpc": "2.0", "id": 3, "method": {"id": "other"}}',
        '{"jsonrpc": "2.0", "id": true, "method": 7}',
        '[{"jsonrpc": "2.0", "id": "4", "method": "ping"}]',
        "{oops",
        "[" * 100_000,
        json.dumps({"jsonrpc": "2.0", "id": 5, "method": "ping"}),
    ]
    command = [str(forked_command()), "mcp", "--workspace", str(location / "ws")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as server:
        assert server.stdin is not None
        assert server.stdout is not None
        answers = []
        for number, message in enumerate(messages):
            server.stdin.write(f"{message}\n")
            server.stdin.flush()
            if number != 1:
                answers.append(json.loads(server.stdout.readline()))
        server.stdin.close()
        assert server.wait(PATIENCE_SECONDS) == 0
    errors = [(each["id"], each.get("error", {}).get("code")) for each in answers]
    assert errors == [(1, None), (2, None), (3, -32600), *[(None, -32600)] * 2, *[(None, -32700)] * 2, (5, None)]
    assert "namespace" in answers[1]["result"]["content"][0]["text"]


def test_clients_show_the_sources_and_a_prompt(location: Path) -> None:
    async def talk() -> tuple[Any, Any, Any]:
        server = make_server(Workspace.open(str(location / "ws")))
        async with Client(server, read_timeout_seconds=PATIENCE_SECONDS) as client:
            (resource,) = (await client.list_resources()).resources
            (prompt,) = (await client.list_prompts()).prompts
            sources = await client.read_resource(resource.uri)
            return prompt, sources, await client.get_prompt(prompt.name, {"question": "who parses?"})

    prompt, sources, asked = asyncio.run(talk())
    assert [each.name for each in prompt.arguments] == ["question"]
    status = json.loads(sources.contents[0].text)
    assert [source["entity"].rpartition(":")[2] for source in status["sources"]] == ["app", "web"]
    assert "who parses?" in asked.messages[0].content.text


def test_one_server_has_many_workspaces_each_within_the_boundary(tmp_path: Path, tiny_model: Path) -> None:
    for name, text in (("web", "namespace"), ("app", "parser")):
        for org in ("ours", "theirs"):
            (tmp_path / name / org).mkdir(parents=True)
            (tmp_path / name / org / f"{org}.txt").write_text(f"{text}\n")
            dl.index(
                str(tmp_path / name / org),
                workspace=str(tmp_path / name / ".driftline"),
                entity=f"org:{org}/project:p/source:s",
                model=str(tiny_model),
            )
    program = str(forked_command())
    arguments = ["mcp", "--within", "org:ours"]
    for name in ("web", "app"):
        arguments += ["--workspace", str(tmp_path / name / ".driftline")]

    async def talk() -> tuple[Any, ...]:
        server = StdioServerParameters(command=program, args=arguments)
        async with Client(server, read_timeout_seconds=PATIENCE_SECONDS) as client:
            tools = (await client.list_tools()).tools
            asked = [
                await client.call_tool("grep_lines", {"pattern": "namespace|parser"} | where)
                for where in ({}, {"workspace": "web"}, {"workspace": "app"}, {"workspace": "none"})
            ]
            return tools, asked, await client.read_resource("driftline://sources"), client.instructions

    tools, (default, web, app, unknown), sources, instructions = asyncio.run(talk())
    assert {tuple(tool.input_schema["properties"]["workspace"]["enum"]) for tool in tools} == {("web", "app")}
    found = [[text for _, _, text in hits_of(text_of(each))] for each in (default, web, app)]
    assert found == [["namespace"], ["namespace"], ["parser"]]  # other sources are outside the boundary
    assert unknown.is_error
    statuses = json.loads(sources.contents[0].text)
    assert list(statuses) == ["web", "app"]
    listed = [source["entity"] for status in statuses.values() for source in status["sources"]]
    assert listed == ["org:ours/project:p/source:s"] * 2
    assert "web, app" in (instructions or "")


def test_obsolete_arguments_are_accepted_but_not_listed(tmp_path: Path, tiny_model: Path) -> None:
    workspace = str(tmp_path / "ws")
    servers: list[Any] = []

    async def listed_and_refused() -> tuple[set[str], bool]:
        async with Client(servers[0]) as client:
            names = {name for tool in (await client.list_tools()).tools for name in tool.input_schema["properties"]}
            given = {"pattern": "parser", "sources": ["web"]}
            return names & {"branch", "sources", "source"}, (await client.call_tool("grep_lines", given)).is_error

    for name, branch, expected in (
        ("web", None, set()),
        ("app", None, {"sources", "source"}),
        ("app", "feature", {"sources", "source", "branch"}),
    ):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / f"{branch}.txt").write_text("parser\n")
        dl.index(str(tmp_path / name), workspace=workspace, model=str(tiny_model), branch=branch)
        if not servers:
            opened = dl.open(workspace).storage
            tools = WorkspaceTools(LineTools(opened.reread), None, partial(unlisted_arguments, opened, None))
            servers.append(server_of({"": tools}))
        assert asyncio.run(listed_and_refused()) == (expected, False)


def status_for_host(url: str, host: str) -> int:
    """Return the server's response status for a request with a foreign host name, as after DNS rebinding."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_SECONDS)
    headers = {"Host": host, "Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    connection.request("POST", "/mcp", '{"jsonrpc": "2.0", "id": 1, "method": "ping"}', headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_a_client_finds_a_line_over_http(location: Path) -> None:
    program = str(Path(sys.executable).parent / "driftline")
    command = [program, "mcp", "--transport", "http", "--port", "0", "--workspace", str(location / "ws")]
    guarded = ["setpriv", "--pdeathsig", "KILL", *command] if shutil.which("setpriv") else command
    with subprocess.Popen(guarded, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            assert said.startswith("driftline: serving http://127.0.0.1:"), said
            url = said.split()[-1]
            assert status_for_host(url, "evil.example") in (403, 421)
            found, status = ask(url, FIND, ("index_status", {}))
            check_found(found)
            assert status.structured_content["total_documents"] == 4
        finally:
            process.send_signal(signal.SIGINT)
            code_at_end = process.wait(PATIENCE_SECONDS)
        assert code_at_end == 0
        assert process.stderr.read() == ""


def test_tools_have_schemas_with_bounds(location: Path) -> None:
    async def tools() -> dict[str, Any]:
        async with Client(make_server(dl.open(str(location / "ws")).storage)) as client:
            return {tool.name: tool for tool in (await client.list_tools()).tools}

    found = asyncio.run(tools())
    exact = {"grep_lines", "find_definitions", "find_uses"}
    assert set(found) == {"search_lines", "index_status", "read_context"} | exact
    # The list uses up part of a model's context in each session.
    listed = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in found.values()]
    assert len(json.dumps(listed, separators=(",", ":"))) <= 1_320 * BYTES_PER_TOKEN
    listed_options = found["search_lines"].input_schema["properties"]
    assert listed_options["languages"] == {"items": {"type": "string"}, "type": "array"}
    assert listed_options["top_k"] == {"default": 10, "maximum": MAX_TOP_K, "type": "integer"}
    assert {"branch", "sources"} <= set(listed_options)
    for tool in found.values():
        assert tool.description
        assert tool.output_schema is None, "clients pass structured content to models instead of the text"
        assert tool.annotations.read_only_hint


def test_filters_reach_the_search(location: Path) -> None:
    def paths(query: str = "parser namespace subcommand", **options: Any) -> set[str]:
        requested = {"query": query, "top_k": 50, "n_lines": 0, **options}
        (outcome,) = ask(make_server(dl.open(str(location / "ws")).storage), ("search_lines", requested))
        return {path for path, _, _ in hits_of(text_of(outcome))}

    assert paths() == {"both.txt", "long.txt", "only.txt"}
    assert paths(globs=["on*.txt"]) == paths("parser namespace file:only.txt") == {"only.txt"}
    assert paths(languages=["markdown"]) == set()
    assert paths(sources=["app"]) == paths(sources=["source:app"]) == paths("parser repo:app") == {"both.txt"}


def test_exact_text_definitions_and_uses_are_found(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "a.py").write_text("def load(path):\n    return path\n\n\nfirst = load('x')\n")
    (tmp_path / "tree" / "b.py").write_text("from sub.a import load\n}\nlader = load('loads(')\n")
    (tmp_path / "tree" / "c.md").write_text("# Type System\nThe type system.\n")
    (tmp_path / "tree" / "d.h").write_text("struct Add { int operator()(int a) { return a; } };\n")
    dl.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"), model=str(tiny_model))
    server = make_server(dl.open(str(tmp_path / "ws")).storage)

    def found(tool: str, **requested: Any) -> tuple[list[tuple[str, int]], str]:
        (outcome,) = ask(server, (tool, requested))
        text = text_of(outcome)
        (matches,) = (line for line in text.splitlines() if line.startswith("matches: "))
        return [(path, line) for path, line, _ in hits_of(text)], matches.removeprefix("matches: ")

    assert found("grep_lines", pattern=r"^(\}|def)") == ([("b.py", 2), ("sub/a.py", 1)], "2 in 2 documents")
    assert found("grep_lines", pattern="loads(", literal=True)[0] == [("b.py", 3)]
    assert found("grep_lines", pattern="LOAD", ignore_case=True, count=True) == ([], "4 in 2 documents")
    assert found("grep_lines", pattern=".", globs=["*.py"], top_k=1) == ([("b.py", 1)], "6 in 2 documents")
    for written in ("load", "load()", "def load", "def load()"):
        assert found("find_definitions", name=written)[0] == [("sub/a.py", 1)]
    assert found("find_uses", name="load")[0] == [("sub/a.py", 5), ("b.py", 1), ("b.py", 3)]
    assert found("find_uses", name="load", globs=["sub/*"])[0] == [("sub/a.py", 5)]
    assert found("find_definitions", name='a" OR "b\\')[0] == []
    assert found("find_definitions", name="operator()")[0] == [("d.h", 1)]
    assert found("find_definitions", name="type system")[0] == [("c.md", 1)]
    assert found("find_uses", name="type system")[0] == [("c.md", 2)]
    assert found("find_definitions", name="function load")[0] == [("sub/a.py", 1)]
    (other,) = ask(server, ("find_definitions", {"name": "function load"}))
    assert "Nothing is called 'function load': this is about 'load'." in text_of(other)
    (wrong,) = ask(server, ("grep_lines", {"pattern": "a(b"}))
    assert wrong.is_error
    assert "character 2" in wrong.content[0].text


def test_each_workspace_of_a_server_has_a_name_of_its_own(
    tmp_path: Path, tiny_model: Path, driftline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes a workspace inside another and a workspace specified twice."""
    (tmp_path / "tree").mkdir()
    outer, inner = tmp_path / "web", tmp_path / "web" / ".driftline"
    for workspace, text in ((outer, "namespace"), (inner, "parser")):
        (tmp_path / "tree" / "a.txt").write_text(f"{text}\n")
        dl.index(str(tmp_path / "tree"), workspace=str(workspace), model=str(tiny_model))
    found: list[str] = []

    def serve(server: Any) -> None:
        for name in (None, str(outer), str(inner)):  # null is equivalent to absent
            (outcome,) = ask(server, ("grep_lines", {"pattern": "namespace|parser", "workspace": name}))
            found.extend(text for _, _, text in hits_of(text_of(outcome)))

    monkeypatch.setattr("driftline.flows.mcp_server.server.serve_stdio", serve)
    named = [part for each in (outer, inner, f"file://{outer}/") for part in ("--workspace", each)]
    assert driftline("mcp", *named).code == 0
    assert found == ["namespace", "namespace", "parser"]


def test_answers_are_bounded(location: Path) -> None:
    server = make_server(dl.open(str(location / "ws")).storage)
    wide = {"query": "subcommand", "top_k": 50, "n_lines": 20}
    answers = ask(server, ("search_lines", wide), ("read_context", {"path": "long.txt", "line": 200, "n_lines": 100}))
    for text in map(text_of, answers):
        assert MAX_ANSWER_BYTES / 4 < len(text.encode()) <= MAX_ANSWER_BYTES
        assert "max_tokens=8000" in text
        assert max(map(len, numbered_lines(text))) <= MAX_SHOWN_CHARACTERS


def test_the_text_of_an_answer_has_only_the_decisive_fields(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a.py").write_text("def load(path):\n    return path\n\n\nfirst = load('x')\n")
    dl.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"), model=str(tiny_model))
    monkeypatch.chdir(tmp_path / "tree")
    server = make_server(dl.open(str(tmp_path / "ws")).storage)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("find_uses", {"name": "load"}),
        ("grep_lines", {"pattern": ".", "top_k": 1, "n_lines": 1}),
        ("grep_lines", {"pattern": "nothing here"}),
        ("read_context", {"path": "a.py", "line": 2, "n_lines": 1}),
    ]
    assert [outcome.content[0].text for outcome in ask(server, *calls)] == [
        "a.py:5:first = load('x')\nmatches: 1 in 1 document",
        "a.py:1  (function load)\n1: def load(path):\n2-     return path\nmatches: 3 in 1 document"
        "\n1 shown: a larger `top_k` shows more.",
        "matches: 0 in 0 documents\nNo line matches the exact terms.\n"
        "search_lines also finds synonyms and related names.",
        "a.py:1-3\n1: def load(path):\n2:     return path\n3: ",
    ]
    monkeypatch.chdir(tmp_path)
    (elsewhere,) = ask(server, calls[0])
    assert text_of(elsewhere).splitlines()[-1] == f"Paths are relative to {tmp_path / 'tree'}"


def test_the_lines_found_on_a_branch_can_be_read(tmp_path: Path, tiny_model: Path) -> None:
    """In a changed file, and in a new one."""
    tree, ws = tmp_path / "tree", str(tmp_path / "ws")

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgSign=false")
        subprocess.run(["git", *identity, *arguments], cwd=tree, check=True, capture_output=True)

    tree.mkdir()
    git("init", "-q", "-b", "main")
    (tree / "changed.txt").write_text("parser\n")
    git("add", ".")
    git("commit", "-qm", "one")
    dl.index(str(tree), workspace=ws, model=str(tiny_model))
    git("checkout", "-qb", "feature/x")
    (tree / "changed.txt").write_text("parser\nnamespace\n")
    (tree / "new.txt").write_text("namespace\n")
    git("add", ".")
    git("commit", "-qm", "two")
    dl.index(str(tree), workspace=ws, model=str(tiny_model), branch="feature/x")
    server = make_server(Workspace.open(ws))
    for tool, query in (("search_lines", {"query": "namespace branch:feature/x"}), ("grep_lines", {"pattern": "name"})):
        (found,) = ask(server, (tool, query | ({"branch": "feature/x"} if tool == "grep_lines" else {})))
        assert "branch: feature/x" in text_of(found)
        hits = [hit for hit in hits_of(text_of(found)) if hit[2] == "namespace"]
        assert [hit[:2] for hit in sorted(hits)] == [("changed.txt", 2), ("new.txt", 1)]
        for path, line, text in hits:
            (read,) = ask(server, ("read_context", {"path": path, "line": line, "branch": "feature/x", "n_lines": 0}))
            assert "[feature/x]" in text_of(read)
            assert text_of(read).endswith(f"{line}: {text}")
    (main,) = ask(server, ("read_context", {"path": "changed.txt", "line": 2}))
    assert "has no line 2: it has 1 line" in main.content[0].text


@pytest.mark.parametrize("n_lines", [0, 3, 20])
@pytest.mark.parametrize("line", [5, 24])
def test_a_line_past_the_end_does_not_exist(location: Path, line: int, n_lines: int) -> None:
    """Even if lines before it would be within the context; read from the file, or from the index."""
    workspace = Workspace.open(str(location / "ws"))
    (outcome,) = ask(make_server(workspace), ("read_context", {"path": "only.txt", "line": line, "n_lines": n_lines}))
    assert outcome.is_error
    assert f"has no line {line}: it has 4 lines" in outcome.content[0].text


def test_sources_are_shown_and_accepted_by_their_short_names(location: Path) -> None:
    server = make_server(Workspace.open(str(location / "ws")))
    both, one, read = ask(
        server,
        ("grep_lines", {"pattern": "parser"}),
        ("grep_lines", {"pattern": "parser", "sources": ["web"]}),
        ("read_context", {"path": "both.txt", "line": 1, "source": "app", "n_lines": 0}),
    )
    assert text_of(both).splitlines()[:2] == ["app both.txt:2:parser", "web both.txt:2:parser"]
    assert f"app is in {location / 'app'}" in text_of(both)
    assert text_of(one).splitlines()[0] == "both.txt:2:parser"
    assert text_of(read) == "both.txt:1-1\n1: app"


@pytest.mark.parametrize("line", [4, 2**31, 10**20])
def test_a_line_beyond_a_document_that_is_gone_does_not_exist(tmp_path: Path, tiny_model: Path, line: int) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a.txt").write_text("one\n\nthree\n")
    dl.index(str(tmp_path / "tree"), workspace=str(tmp_path / "ws"), model=str(tiny_model))
    (tmp_path / "tree" / "a.txt").unlink()
    server = make_server(dl.open(str(tmp_path / "ws")).storage)
    (outcome,) = ask(server, ("read_context", {"path": "a.txt", "line": line, "n_lines": 0}))
    assert f"has no line {line}: it has 3 lines" in outcome.content[0].text


@pytest.mark.parametrize("max_tokens", [MIN_TOKENS, 1_000, 5_000, MAX_TOKENS])
def test_an_answer_fits_into_its_tokens_and_says_how_to_get_the_rest(location: Path, max_tokens: int) -> None:
    server = make_server(dl.open(str(location / "ws")).storage)
    wide = {"query": "subcommand", "top_k": 50, "n_lines": 20, "max_tokens": max_tokens}
    around = {"path": "long.txt", "line": 200, "n_lines": 100, "max_tokens": max_tokens}
    found, read, few = ask(
        server, ("search_lines", wide), ("read_context", around), ("search_lines", {"query": "parser", "top_k": 1})
    )
    for text in map(text_of, (found, read)):
        assert len(text.encode()) <= max_tokens * BYTES_PER_TOKEN
        assert f"(max_tokens={max_tokens}): " in text.splitlines()[-1]
    assert "\n200: " in text_of(read)
    assert "max_tokens" not in text_of(few)


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("read_context", {"path": "../secret.txt", "line": 1}, "No such document is indexed"),
        ("read_context", {"path": "only.txt/../../secret.txt", "line": 1}, "No such document is indexed"),
        ("read_context", {"path": "ABSOLUTE", "line": 1}, "No such document is indexed"),
        ("read_context", {"path": "only.txt", "line": 99}, "has no line 99: it has 4 lines"),
        ("read_context", {"path": "only.txt", "line": 0}, "greater than or equal to 1"),
        ("read_context", {"path": "both.txt", "line": 1}, "Several sources"),
        ("read_context", {"path": "only.txt", "line": 1, "source": "../web:"}, "An entity must have the form"),
        ("search_lines", {"query": ""}, "at least 1 character"),
        ("search_lines", {"query": "x", "top_k": 1000}, "less than or equal to 50"),
        ("search_lines", {"query": "x", "tests": "guess"}, "Input should be"),
        ("search_lines", {"query": "x", "sources": ["aap"]}, "No source has this name: aap. Did you mean 'app'?"),
        ("search_lines", {"q": "x"}, "Unknown argument 'q'. Did you mean 'query'?"),
        ("grep_lines", {"query": "x"}, "Did you mean 'pattern'?"),
        ("grep_lines", {"pattern": "x", "path": "only.txt"}, "Did you mean 'globs'?"),
        ("grep_lines", {"pattern": "x", "glob": "*.txt"}, "Did you mean 'globs'?"),
        ("find_uses", {"symbol": "x"}, "Did you mean 'name'?"),
        ("no_such_tool", {}, "no_such_tool"),
    ],
)
def test_failures_are_protocol_errors(location: Path, name: str, arguments: dict[str, Any], complaint: str) -> None:
    arguments = {
        key: str(location / "secret.txt") if value == "ABSOLUTE" else value for key, value in arguments.items()
    }
    (outcome,) = ask(make_server(dl.open(str(location / "ws")).storage), (name, arguments))
    assert outcome.is_error
    assert complaint in outcome.content[0].text


@pytest.mark.parametrize(
    ("name", "arguments", "same"),
    [
        ("search_lines", {"query": "parser", "globs": "only.txt"}, {"query": "parser", "globs": ["only.txt"]}),
        ("search_lines", {"query": "parser", "max_tokens": 10**6}, {"query": "parser", "max_tokens": MAX_TOKENS}),
        ("read_context", {"path": "only.txt:3"}, {"path": "only.txt", "line": 3}),
        ("read_context", {"path": "only.txt"}, {"path": "only.txt", "line": 1}),
    ],
)
def test_arguments_are_taken_as_a_model_plainly_means_them(
    location: Path, name: str, arguments: dict[str, Any], same: dict[str, Any]
) -> None:
    given, meant = ask(make_server(dl.open(str(location / "ws")).storage), (name, arguments), (name, same))
    assert text_of(given) == text_of(meant)


def test_files_that_are_not_indexed_are_never_read(location: Path, tmp_path: Path, tiny_model: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    for name in ("plain.txt", "inner/deep.txt"):
        (tree / name).write_text("parser\n---\nnamespace\n")
    dl.index(str(tree), workspace=str(tmp_path / "ws"), model=str(tiny_model))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "deep.txt").write_text("PRIVATE\nPRIVATE\nPRIVATE\n")
    (tree / "plain.txt").unlink()
    (tree / "plain.txt").symlink_to(outside / "deep.txt")
    shutil.rmtree(tree / "inner")
    (tree / "inner").symlink_to(outside)
    server = make_server(dl.open(str(tmp_path / "ws")).storage)
    for path in ("plain.txt", "inner/deep.txt"):
        (outcome,) = ask(server, ("read_context", {"path": path, "line": 2}))
        text = text_of(outcome)
        assert numbered_lines(text) == ["parser", "---", "namespace"]  # from the index
        assert "The document has since changed or been deleted." in text


def test_a_server_sees_files_indexed_after_its_start(tmp_path: Path, tiny_model: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a.txt").write_text("parser\n")

    def index() -> None:
        dl.index(str(tree), workspace=str(tmp_path / "ws"), model=str(tiny_model))

    index()

    async def talk() -> None:
        async with Client(make_server(dl.open(str(tmp_path / "ws")).storage)) as client:
            (tree / "a.txt").write_text("parser\nnamespace\n")
            index()
            outcome = await client.call_tool("search_lines", {"query": "namespace", "top_k": 1})
            assert hits_of(text_of(outcome))[0][1] == 2

    asyncio.run(talk())


# -- memory ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def remembered(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> tuple[Path, dict[str, str]]:
    """A workspace with the memory of two tenants, and the variables that configure its model."""
    folder = tmp_path_factory.mktemp("mcp-memory")
    configuration = folder / "ltm.yaml"
    configuration.write_text(json.dumps({"settings": {"ltm": {"embedding": {"model": str(tiny_model)}}}}))
    with dl.MemoryStore(str(folder / "ws"), embedder=lambda: WordTableEmbedder.open(str(tiny_model))) as store:
        for phase in ("plan", "act"):
            location = f"org:acme/project:{phase}"
            store.store(phase, {"text": f"parser {phase}"}, location, {"phase": phase, "n": len(phase)})
        store.store("long", "namespace " * 20_000, "org:acme/project:long", {"note": "x" * 10_000})
        store.store_many(dl.MemoryItem(f"many {n}", "subcommand " * 300, "org:many") for n in range(50))
        store.store("foreign", "parser plan", "org:other")
    return folder / "ws", {MEMORY_CONFIG_VARIABLE: str(configuration)}


def recall(remembered: tuple[Path, dict[str, str]], **arguments: Any) -> Outcome:
    location, variables = remembered
    memory = find_memory(load_memory_configuration(environ=variables), Workspace.open(str(location)))
    assert memory is not None
    server = make_server(dl.open(str(location)).storage, memory)
    with memory():
        (outcome,) = ask(server, ("search_memory", arguments))
    return outcome


def test_memory_is_searched_semantically_and_by_filter_and_entity(remembered: tuple[Path, dict[str, str]]) -> None:
    def keys(**arguments: Any) -> list[str]:
        outcome = recall(remembered, query="parser", **arguments)
        assert not outcome.is_error, outcome
        return [hit["record"]["key"] for hit in outcome.structured_content["results"]]

    assert set(keys(entity="org:acme")) == {"plan", "act", "long"}
    assert keys(entity="org:acme", filter={"phase": "plan", "source": None}) == ["plan"]
    assert keys(entity="org:acme", filter={"n": [3, 4], "phase": ["act"]}) == ["act"]
    assert keys(entity="org:acme/project:act") == ["act"]
    assert len(keys(entity="org:acme", top_k=1)) == 1
    assert set(keys()) >= {"plan", "act"}  # without a configured root, in every tenant
    hits = recall(remembered, query="namespace", entity="org:acme").structured_content["results"]
    assert [hit["rank"] for hit in hits] == [1, 2, 3]
    assert hits[0]["record"]["entity"] == "org:acme/project:long"
    assert hits[0]["score"] > hits[1]["score"]


def test_answers_of_memory_are_bounded(remembered: tuple[Path, dict[str, str]]) -> None:
    (hit,) = recall(remembered, query="namespace", entity="org:acme/project:long").structured_content["results"]
    assert hit["record"]["cut"] == ["value", "metadata"]
    assert len(hit["record"]["value"]) == mcp_memory.MAX_FIELD_CHARACTERS
    answer = recall(remembered, query="subcommand", entity="org:many", top_k=50).structured_content
    assert answer["truncated"]
    assert 5 < len(answer["results"]) < 50
    assert len(json.dumps(answer["results"])) < 1.1 * MAX_ANSWER_BYTES


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"query": "x", "entity": "../../etc"}, "An entity must have the form"),
        ({"query": "x", "top_k": 51}, "less than or equal to 50"),
        ({"query": ""}, "at least 1 character"),
        ({"query": "x", "filter": {"a": {"b": 1}}}, "filter"),
    ],
)
def test_usage_errors_of_memory_are_protocol_errors(
    remembered: tuple[Path, dict[str, str]], arguments: dict[str, Any], complaint: str
) -> None:
    outcome = recall(remembered, **arguments)
    assert outcome.is_error
    assert complaint in outcome.content[0].text


def test_a_client_searches_memory_over_stdio(remembered: tuple[Path, dict[str, str]], location: Path) -> None:
    program = str(forked_command())
    command = ["mcp", "--workspace", str(remembered[0])]
    server = StdioServerParameters(command=program, args=command, env={**os.environ, **remembered[1]})
    (outcome,) = ask(server, ("search_memory", {"query": "parser plan", "entity": "org:acme", "top_k": 1}))
    assert [hit["record"]["key"] for hit in outcome.structured_content["results"]] == ["plan"]
    assert find_memory(load_memory_configuration(environ={}), Workspace.open(str(location / "ws"))) is None
    without = load_memory_configuration(environ={}, embedding={"enabled": False})
    assert find_memory(without, Workspace.open(str(remembered[0]))) is None


def test_the_server_survives_the_death_of_the_process_that_reads(
    remembered: tuple[Path, dict[str, str]], location: Path
) -> None:
    """Native code may abort that process because of a damaged table."""
    recall = ("search_memory", {"query": "parser plan", "entity": "org:acme", "top_k": 1})

    def end_readers() -> int:
        ended = 0
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # from another test, and it has just ended
                if child.ppid() != os.getpid() and "storage.lance.reader_process" in " ".join(child.cmdline()):
                    child.kill()
                    ended += 1
        return ended

    async def talk(workspace: Path, name: str, arguments: dict[str, Any]) -> None:
        command, environment = ["mcp", "--workspace", str(workspace)], {**os.environ, **remembered[1]}
        program = Path(sys.executable).parent / "driftline"  # whose helpers have command lines of their own
        server = StdioServerParameters(command=str(program), args=command, env=environment)
        async with Client(server, read_timeout_seconds=PATIENCE_SECONDS) as client:
            first = await client.call_tool(name, arguments)
            assert end_readers() == 1
            second = await client.call_tool(name, arguments)
        assert not second.is_error, second
        assert first.content == second.content != []

    asyncio.run(talk(remembered[0], *recall))
    asyncio.run(talk(location / "ws", *FIND))


@pytest.mark.parametrize(("host", "complaint"), [("0.0.0.0", "loopback only"), ("192.0.2.1", "loopback only")])
def test_only_loopback_is_served(location: Path, driftline: Callable[..., Any], host: str, complaint: str) -> None:
    outcome = driftline("mcp", "--workspace", location / "ws", "--transport", "http", "--host", host)
    assert outcome.code == 2
    assert complaint in outcome.err


def test_usage_errors_end_the_server_before_it_starts(
    location: Path, tmp_path: Path, driftline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert driftline("mcp", "--workspace", tmp_path / "nowhere").code == 2
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    monkeypatch.delitem(sys.modules, "driftline.flows.mcp_server.server")
    outcome = driftline("mcp", "--workspace", location / "ws")
    assert outcome.code == 2
    assert install_command("mcp") in outcome.err


@pytest.mark.parametrize(
    ("wrong", "right"), [("lang", "languages"), ("limit", "top_k"), ("glob", "globs"), ("bracnh", "branch")]
)
def test_an_unknown_argument_is_an_error_that_names_the_nearest(location: Path, wrong: str, right: str) -> None:
    (outcome,) = ask(
        make_server(dl.open(str(location / "ws")).storage), ("search_lines", {"query": "parser", wrong: ["txt"]})
    )
    assert outcome.is_error
    assert outcome.content[0].text.startswith(f"Unknown argument {wrong!r}")
    assert f"{right!r}" in outcome.content[0].text
    assert "pydantic" not in outcome.content[0].text


def test_a_filter_that_matches_no_document_says_so(location: Path) -> None:
    (outcome,) = ask(
        make_server(dl.open(str(location / "ws")).storage), ("search_lines", {"query": "parser", "globs": ["*.zz"]})
    )
    assert hits_of(text_of(outcome)) == []
    assert "'*.zz'" in text_of(outcome)

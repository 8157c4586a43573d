"""Coding agents: where each keeps its MCP servers and its instructions, and how Driftline adds itself to both.

A change touches nothing but Driftline's own entry: comments and other entries stay as they are, a file that was there
is copied first, and ``uninstalled`` takes out what ``installed`` put in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from driftline.storage.errors import UsageError

Scope = Literal["project", "user"]
NAME = "driftline"
BACKUP_SUFFIX = ".before-driftline"
BEGIN, END = "<!-- driftline: begin -->", "<!-- driftline: end -->"
INSTRUCTIONS = f"""{BEGIN}
## Searching this code

The MCP server `driftline` searches an index of every line here.

- You know what the code does, but not what it is called: use its search, with a sentence or a few words.
- You know a name, an error message or another exact text: use grep, or `grep_lines`; for the definitions and uses of a
  name, `find_definitions` and `find_uses`.
- A result is `path:line`. Read the lines around it before you change anything.
{END}
"""
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/|[{}\[\],:]|[^\s{}\[\],:"/]+|\s+|/', re.DOTALL)
_TABLE = re.compile(rf"^\[mcp_servers\.{NAME}\]\n(?:(?!\[).*\n?)*", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent: its files in a project and of a user, relative to it; None where it has none.

    ``key`` names the object of MCP servers; of a file in TOML, the table. ``shape`` is the form of an entry.
    """

    project: str | None
    user: str | None
    key: str
    shape: Literal["stdio", "plain", "custom", "local"]
    project_instructions: str | None = None
    user_instructions: str | None = None
    head: str = ""

    def entry(self, command: Sequence[str]) -> dict[str, Any]:
        """Return the entry of a server that ``command`` starts."""
        if self.shape == "local":
            return {"type": "local", "command": list(command), "enabled": True}
        kind = {"stdio": {"type": "stdio"}, "custom": {"source": "custom"}, "plain": {}}[self.shape]
        return {**kind, "command": command[0], "args": list(command[1:])}


AGENTS: Mapping[str, Agent] = {
    "claude-code": Agent(".mcp.json", ".claude.json", "mcpServers", "stdio", "CLAUDE.md", ".claude/CLAUDE.md"),
    "cursor": Agent(
        ".cursor/mcp.json",
        ".cursor/mcp.json",
        "mcpServers",
        "plain",
        ".cursor/rules/driftline.mdc",
        head="---\nalwaysApply: true\n---\n",
    ),
    "vscode": Agent(
        ".vscode/mcp.json",
        ".config/Code/User/mcp.json",
        "servers",
        "stdio",
        ".github/instructions/driftline.instructions.md",
        head='---\napplyTo: "**"\n---\n',
    ),
    "codex": Agent(".codex/config.toml", ".codex/config.toml", "mcp_servers", "plain", "AGENTS.md", ".codex/AGENTS.md"),
    "gemini": Agent(
        ".gemini/settings.json", ".gemini/settings.json", "mcpServers", "plain", "GEMINI.md", ".gemini/GEMINI.md"
    ),
    "windsurf": Agent(None, ".codeium/windsurf/mcp_config.json", "mcpServers", "plain", ".windsurf/rules/driftline.md"),
    "zed": Agent(".zed/settings.json", ".config/zed/settings.json", "context_servers", "custom", "AGENTS.md"),
    "opencode": Agent(
        "opencode.json",
        ".config/opencode/opencode.json",
        "mcp",
        "local",
        "AGENTS.md",
        ".config/opencode/AGENTS.md",
    ),
}
"""The agents by name, as their documentation describes them."""


@dataclass(frozen=True, slots=True)
class Change:
    """A file that would change: its text before, "" if there is none, and after, "" if it would go."""

    agent: str
    path: Path
    before: str
    after: str

    def apply(self) -> None:
        """Write the file, after a copy of what was there first."""
        backup = self.path.with_name(self.path.name + BACKUP_SUFFIX)
        if self.before and not backup.exists() and not _is_ours(self.before):
            backup.write_text(self.before)
        if not self.after:
            if backup.exists() and self.path.suffix == ".json":
                self.path.write_text("{}\n")  # there was a file before, which held no more
            else:
                self.path.unlink(missing_ok=True)
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(self.after)


def changes(names: Sequence[str], scope: Scope, place: Path, command: Sequence[str], *, remove: bool) -> list[Change]:
    """Return what installing, or removing, Driftline changes for the agents ``names`` in a project or home folder.

    Raises UsageError for a configuration that is not what its agent reads.
    """
    texts: dict[Path, str] = {}
    owners: dict[Path, str] = {}
    for name in names:
        agent = AGENTS[name]
        for path, is_config in _files(agent, scope, place):
            text = texts[path] if path in texts else _read(path)
            owners.setdefault(path, name)
            if not is_config:
                texts[path] = _instructed(text, agent.head, remove=remove)
            elif path.suffix == ".toml":
                texts[path] = _in_toml(text, None if remove else agent.entry(command))
            else:
                texts[path] = _in_json(text, agent.key, None if remove else agent.entry(command), path)
    found = [Change(owners[path], path, _read(path), after) for path, after in texts.items()]
    return [change for change in found if change.before != change.after]


def is_installed(name: str, scope: Scope, place: Path) -> bool:
    """Return whether the configuration of an agent names Driftline."""
    config = AGENTS[name].project if scope == "project" else AGENTS[name].user
    if config is None:
        return False
    text = _read(place / config)
    if config.endswith(".toml"):
        return _TABLE.search(text) is not None
    return NAME in (_parsed(text, place / config).get(AGENTS[name].key) or {})


def _files(agent: Agent, scope: Scope, place: Path) -> Iterator[tuple[Path, bool]]:
    config, told = (
        (agent.project, agent.project_instructions) if scope == "project" else (agent.user, agent.user_instructions)
    )
    if config is not None:
        yield place / config, True
        if told is not None:
            yield place / told, False


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("The file of an agent cannot be read", str(path), f"{error}.") from error


def _is_ours(text: str) -> bool:
    return BEGIN in text or f'"{NAME}"' in text or _TABLE.search(text) is not None


def _instructed(text: str, head: str, *, remove: bool) -> str:
    if BEGIN in text and END in text:
        before, _, rest = text.partition(BEGIN)
        after = rest.partition(END)[2].removeprefix("\n")
        text = before.removesuffix("\n") + after if before.strip() != head.strip() else after
    if remove:
        return text
    return (f"{text}\n" if text else head) + INSTRUCTIONS


def _in_toml(text: str, entry: Mapping[str, Any] | None) -> str:
    rest = _TABLE.sub("", text)
    if entry is None:
        return rest.removesuffix("\n") if rest != text and rest.endswith("\n\n") else rest
    table = f"[mcp_servers.{NAME}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items())
    if match := _TABLE.search(text):
        return text[: match.start()] + table + ("\n" if text[match.end() :] else "") + text[match.end() :]
    return f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}{chr(10) if text else ''}{table}"


# -- JSON with comments ------------------------------------------------------------------------


def _parsed(text: str, path: Path) -> dict[str, Any]:
    tokens = [token for token, _ in _tokens(text)]
    kept = [t for n, t in enumerate(tokens) if not (t == "," and tokens[n + 1 : n + 2] in (["}"], ["]"]))]
    try:
        found = json.loads("".join(kept) or "{}")
    except ValueError as error:
        raise UsageError("The configuration of an agent is not JSON", str(path), f"{error}.") from error
    if not isinstance(found, dict):
        raise UsageError("The configuration of an agent is no object", str(path), "Correct it, or set it aside.")
    return found


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    """The tokens of JSON and where they begin, without blanks and comments."""
    for match in _TOKEN.finditer(text):
        token = match[0]
        if not token.isspace() and not token.startswith(("//", "/*")):
            yield token, match.start()


def _members(text: str, start: int) -> Iterator[tuple[str, int, int, int]]:
    """Each member of the object that begins at ``start``: its name, where it begins, its value begins and ends."""
    tokens = [(token, at + start) for token, at in _tokens(text[start:])]
    depth, at = 0, 0
    while at < len(tokens):
        token, place = tokens[at]
        if token in "}]":
            return
        if depth == 0 and token != "{" and token != "," and at + 2 < len(tokens) and tokens[at + 1][0] == ":":
            first, end, nested = at + 2, at + 2, 0
            while True:
                nested += {"{": 1, "[": 1, "}": -1, "]": -1}.get(tokens[end][0], 0)
                end += 1
                if nested == 0:
                    break
            last, last_at = tokens[end - 1]
            yield json.loads(token), place, tokens[first][1], last_at + len(last)
            at = end
        else:
            at += 1


def _in_json(text: str, key: str, entry: Mapping[str, Any] | None, path: Path) -> str:
    """``text`` with ``entry`` as Driftline's in the object ``key``, or without any; all else stays as it is."""
    before = _parsed(text, path)
    servers = before.get(key, {})
    if not isinstance(servers, dict):
        raise UsageError(f"{key!r} is no object", str(path), "Correct it, or set the file aside.")
    if entry is None and NAME not in servers:
        return text
    if servers.get(NAME) == entry:
        return text
    if not text.strip():
        return json.dumps({key: {NAME: entry}}, indent=2) + "\n"
    top = next(at for token, at in _tokens(text) if token == "{")
    held = next((each for each in _members(text, top) if each[0] == key), None)
    if entry is None:
        assert held is not None
        rest = {name: value for name, value in before.items() if name != key}
        if set(servers) == {NAME} and not rest:
            return ""
        return _without(text, held if set(servers) == {NAME} else _own(text, held))
    written = json.dumps(entry, indent=2)
    if held is None:
        return _inserted(text, top, f'"{key}": {json.dumps({NAME: entry}, indent=2)}', bool(before), "  ")
    if NAME in servers:
        _, _, start, end = _own(text, held)
        return text[:start] + written.replace("\n", "\n    ") + text[end:]
    return _inserted(text, held[2], f'"{NAME}": {written}', bool(servers), "    ")


def _own(text: str, held: tuple[str, int, int, int]) -> tuple[str, int, int, int]:
    return next(each for each in _members(text, held[2]) if each[0] == NAME)


def _inserted(text: str, brace: int, member: str, more: bool, indent: str) -> str:
    """``text`` with ``member`` as the first of the object whose brace is at ``brace``."""
    lines = member.replace("\n", f"\n{indent}")
    rest = text[brace + 1 :]
    follows = "," if more else ("" if rest.lstrip(" ").startswith("\n") else f"\n{indent[2:]}")
    return f"{text[: brace + 1]}\n{indent}{lines}{follows}{rest}"


def _without(text: str, member: tuple[str, int, int, int]) -> str:
    """``text`` without a member, its comma and the blanks before it."""
    _, start, _, end = member
    comma = re.match(r"\s*,", text[end:])
    if comma:
        end += comma.end()
        return text[:start].rstrip(" \n\t") + text[end:]
    kept = text[:start].rstrip()
    return kept.removesuffix(",") + text[end:]

"""Coding agents: where each stores MCP servers and instructions, and how Driftline adds its own.

A change touches only Driftline's own entry: comments, line endings and other entries are kept. Text is removed and
inserted at token boundaries, and the result is parsed again: if anything but that entry would differ, nothing is
written. An existing file is backed up first; removing Driftline restores it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from driftline.storage.errors import UsageError

InstallLevel = Literal["project", "user"]
NAME = "driftline"
BACKUP_SUFFIX = ".before-driftline"
BEGIN, END = "<!-- driftline: begin -->", "<!-- driftline: end -->"
INSTRUCTIONS = f"""{BEGIN}
## Searching this code

The MCP server `driftline` searches an index of every line here.

- You know what the code does, but not what it is called: use `search_lines`, with a sentence or a few words.
- You know a name, an error message or another exact text: use grep, or `grep_lines`; for the definitions and uses of a
  name, `find_definitions` and `find_uses`.
- A result is `path:line`. Read the lines around it before you change anything.
{END}
"""
_MARKS = re.compile(rf"{re.escape(BEGIN)}.*?{re.escape(END)}(?:\r?\n)?", re.DOTALL)
_JSON_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/|[{}\[\],:]|[^\s{}\[\],:"/]+|\s+|.', re.DOTALL)
_TOML_TOKEN = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|#[^\n]*|[\n\[\]{}=]|[^"'#\n\[\]{}=]+|.''',
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent, with the relative paths of its files in a project and in a home folder, None if there is no such file.

    ``key`` is the name of the object (in TOML, the table) that lists MCP servers. ``shape`` is the format of an entry.
    ``head`` is the header of a new instructions file.
    """

    project: str | None
    user: str | None
    key: str
    shape: Literal["stdio", "plain", "local", "tools"]
    project_instructions: str | None = None
    user_instructions: str | None = None
    head: str = ""

    def entry(self, command: Sequence[str]) -> dict[str, Any]:
        """Return the entry for a server that is started with ``command``."""
        if self.shape == "local":
            return {"type": "local", "command": list(command), "enabled": True}
        started = {"command": command[0], "args": list(command[1:])}
        kind = {} if self.shape == "plain" else {"type": "stdio"}
        return {**kind, **started, **({"tools": ["*"]} if self.shape == "tools" else {})}

    def files(self, scope: InstallLevel) -> tuple[str, ...]:
        """Return the paths of the agent's configuration and instructions files in ``scope``, if it has them there."""
        in_project = (self.project, self.project_instructions)
        files = in_project if scope == "project" else (self.user, self.user_instructions)
        return tuple(file for file in files if file is not None)


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
    "copilot": Agent(
        ".github/mcp.json",
        ".copilot/mcp-config.json",
        "mcpServers",
        "tools",
        "AGENTS.md",
        ".copilot/copilot-instructions.md",
    ),
    "codex": Agent(".codex/config.toml", ".codex/config.toml", "mcp_servers", "plain", "AGENTS.md", ".codex/AGENTS.md"),
    "gemini": Agent(
        ".gemini/settings.json", ".gemini/settings.json", "mcpServers", "plain", "GEMINI.md", ".gemini/GEMINI.md"
    ),
    "antigravity": Agent(
        ".agents/mcp_config.json",
        ".gemini/config/mcp_config.json",
        "mcpServers",
        "plain",
        "AGENTS.md",
        ".gemini/GEMINI.md",
    ),
    "windsurf": Agent(
        None,
        ".codeium/windsurf/mcp_config.json",
        "mcpServers",
        "plain",
        user_instructions=".codeium/windsurf/memories/global_rules.md",
    ),
    "devin": Agent(
        ".devin/config.json",
        ".config/devin/config.json",
        "mcpServers",
        "plain",
        "AGENTS.md",
        ".config/devin/AGENTS.md",
    ),
    "zed": Agent(".zed/settings.json", ".config/zed/settings.json", "context_servers", "plain", "AGENTS.md"),
    "opencode": Agent(
        "opencode.json",
        ".config/opencode/opencode.json",
        "mcp",
        "local",
        "AGENTS.md",
        ".config/opencode/AGENTS.md",
    ),
}
"""The agents by name, according to their documentation."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file change: its text before and after, None if there is no file.

    ``is_first`` means that the file has nothing from ``install`` yet, so ``apply`` backs it up.
    """

    agent: str
    path: Path
    before: str | None
    after: str | None
    is_first: bool = False

    def apply(self) -> None:
        """Back up the file's previous content and write the file.

        The file keeps its mode and owner, and symbolic links to it are preserved. The backup is deleted once the file
        has its original content again.

        Raises:
            UsageError: The file changed since it was read, or cannot be written.
        """
        target, backup = Path(os.path.realpath(self.path)), _backup_of(self.path)
        if _read(self.path) != self.before:
            raise UsageError("The file changed since it was read", str(self.path), "Run the command again.")
        try:
            if self.is_first and self.before is not None and not backup.exists():
                _write(backup, self.before, like=target)
            if self.after is None:
                target.unlink(missing_ok=True)
                return
            _write(target, self.after, like=target)
            if _read(backup) == self.after:
                backup.unlink()
        except (OSError, UnicodeEncodeError) as error:
            what = f"Cannot write the agent's configuration file ({error})"
            raise UsageError(what, str(self.path), "Check its permissions.") from error


_FOLDERS = {
    ".claude.json": ("CLAUDE_CONFIG_DIR", ".claude.json"),
    ".claude/": ("CLAUDE_CONFIG_DIR", ""),
    ".codex/": ("CODEX_HOME", ""),
    ".copilot/": ("COPILOT_HOME", ""),
    ".config/": ("XDG_CONFIG_HOME", ""),
}
"""Environment variables that relocate a folder of the home folder, keyed by the start of a path."""


def _located(file: str, scope: InstallLevel, folder: Path) -> Path:
    """Return where an agent reads ``file`` on this system."""
    if scope == "project":
        return folder / file
    if sys.platform == "darwin" and file.startswith((".config/Code/", ".config/zed/")):
        return folder / file.replace(".config/Code/", "Library/Application Support/Code/")
    for start, (variable, name) in _FOLDERS.items():
        value = os.environ.get(variable, "")
        if file.startswith(start) and os.path.isabs(value):
            return Path(value, name + file.removeprefix(start))
    return folder / file


def agents_in(scope: InstallLevel) -> list[str]:
    """Return the agents that support configuration per project or per user."""
    return [name for name, agent in AGENTS.items() if agent.files(scope)]


def changes(
    names: Sequence[str], scope: InstallLevel, folder: Path, command: Sequence[str], *, remove: bool
) -> list[FileChange]:
    """Return the changes that install or remove Driftline for agents in a project or home folder.

    Args:
        names: Keys of ``AGENTS``.
        scope: Whether ``folder`` is a project or the home folder of a user.
        folder: The folder.
        command: The command that starts the MCP server.
        remove: Whether to remove Driftline.

    Raises:
        UsageError: An agent has no configuration in this scope, or its configuration is invalid or cannot be edited
            safely.
    """
    texts: dict[Path, str | None] = {}
    found: dict[Path, FileChange] = {}
    for name in names:
        agent = AGENTS[name]
        files = agent.files(scope)
        if not files:
            raise UsageError(f"{name} has no project configuration", fix="Use --user.")
        parts: tuple[_Part, ...] = (_Entry(agent.key, agent.entry(command)), _Section(agent.head))
        for file, part in zip(files, parts, strict=False):
            path = _located(file, scope, folder)
            if path not in found:
                before = texts[path] = _read(path)
                present = part.present_in(before or "", path)
                is_first = (present is not None or not remove) and not part.is_own_in(before or "", path)
                found[path] = FileChange(name, path, before, None, is_first)
            text = texts[path]
            if not remove:
                texts[path] = part.added_to(text or "", path)
            elif text is not None and not (isinstance(part, _Section) and _has_other_users(file, scope, folder, names)):
                texts[path] = _restored(part, text, path)
    complete = [replace(change, after=texts[path]) for path, change in found.items()]
    return [change for change in complete if change.before != change.after]


def is_installed(name: str, scope: InstallLevel, folder: Path) -> bool:
    """Return whether an agent's configuration includes Driftline. Raises UsageError if it cannot be read."""
    agent = AGENTS[name]
    files = agent.files(scope)
    if not files:
        return False
    path = _located(files[0], scope, folder)
    return NAME in _servers(_parsed(_read(path) or "", path), agent.key, path)


def _has_other_users(file: str, scope: InstallLevel, folder: Path, names: Sequence[str]) -> bool:
    """Return whether an agent outside ``names`` reads the instructions in ``file`` and has Driftline installed."""
    others = [name for name, agent in AGENTS.items() if name not in names and file in agent.files(scope)[1:]]
    return any(is_installed(name, scope, folder) for name in others)


def _restored(part: _Part, text: str, path: Path) -> str | None:
    """Return ``text`` without ``part``, or the backup if ``part`` was the only change, or None to delete the file."""
    present = part.present_in(text, path)
    if present is None:
        return text
    copy = _read(_backup_of(path))
    written: _Part = present
    if isinstance(present, _Entry) and isinstance(part, _Entry) and isinstance(present.entry, Mapping):
        written = replace(present, entry={name: present.entry[name] for name in part.entry if name in present.entry})
    with contextlib.suppress(UsageError):  # never restore a backup with an invalid configuration
        if copy is not None and copy != text and written.added_to(copy, path) == text:
            return copy
    after = present.removed_from(text, path)
    if after.strip():
        return after
    return None if copy is None else "{}\n" if path.suffix == ".json" else ""


# -- files -------------------------------------------------------------------------------------


def _backup_of(path: Path) -> Path:
    return path.with_name(path.name + BACKUP_SUFFIX)


def _read(path: Path) -> str | None:
    """Return a file's text with its original line endings, or None if there is no file."""
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        what = f"Cannot read the agent's configuration file ({error})"
        raise UsageError(what, str(path), "Check its permissions and encoding.") from error


def _write(path: Path, text: str, *, like: Path) -> None:
    """Write a file atomically, with the mode and owner of ``like`` if that exists."""
    data = text.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        status = os.stat(like)
    except FileNotFoundError:
        status = None
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with open(os.open(temporary, flags, 0o666 if status is None else 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if status is not None:
            with contextlib.suppress(PermissionError):  # only root may change a file's owner
                os.chown(temporary, status.st_uid, status.st_gid)
            os.chmod(temporary, status.st_mode & 0o7777)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _like(text: str, given: str) -> str:
    """Return ``given`` with the line endings of ``text``."""
    return given.replace("\n", "\r\n") if "\r\n" in text else given


def _ends_with_blank_line(text: str) -> bool:
    return not text.strip("\r\n") or re.search(r"\n\r?\n\Z", text) is not None


# -- the parts of a file that are Driftline's --------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Section:
    """The instructions, between their markers."""

    head: str

    def present_in(self, text: str, path: Path) -> _Section | None:
        if BEGIN in text and not _MARKS.search(text):
            raise UsageError("A marker around the instructions is missing", str(path), f"Add {END}, or delete {BEGIN}.")
        return self if _MARKS.search(text) else None

    def is_own_in(self, text: str, path: Path) -> bool:
        return self.present_in(text, path) is not None

    def added_to(self, text: str, path: Path) -> str:
        block = _like(text, INSTRUCTIONS)
        if self.present_in(text, path):
            return _MARKS.sub(lambda _: block, text, count=1)
        return (f"{text}{_like(text, chr(10))}" if text else self.head) + block

    def removed_from(self, text: str, path: Path) -> str:
        found = _MARKS.search(text)
        assert found is not None
        before, after = text[: found.start()], text[found.end() :]
        if before == self.head:
            return after
        is_apart = not after or _ends_with_blank_line(before) or after.startswith(("\n", "\r\n"))
        return (before.removesuffix("\n").removesuffix("\r") if is_apart else before) + after


@dataclass(frozen=True, slots=True)
class _Entry:
    """The MCP server's entry in a configuration's ``key`` object."""

    key: str
    entry: Mapping[str, Any]

    def present_in(self, text: str, path: Path) -> _Entry | None:
        servers = _servers(_parsed(text, path), self.key, path)
        return _Entry(self.key, servers[NAME]) if NAME in servers else None

    def is_own_in(self, text: str, path: Path) -> bool:
        """Return whether the entry is what ``install`` writes: one that a person wrote or changed is backed up."""
        present = self.present_in(text, path)
        return present is not None and _form(present.entry) == _form(self.entry)

    def added_to(self, text: str, path: Path) -> str:
        """Add the entry. If it exists, its other keys, such as variables, are kept."""
        before = _parsed(text, path)
        present = _servers(before, self.key, path).get(NAME, {})
        if not isinstance(present, dict):
            raise UsageError(f"{self.key}.{NAME} is not an object", str(path), "Correct it, or delete it.")
        whole = {**present, **self.entry}
        if whole == present:
            return text
        added = _toml_with(text, self.entry) if _is_toml(path) else _json_with(text, self.key, whole)
        return self._checked(before, added, whole, path)

    def removed_from(self, text: str, path: Path) -> str:
        before = _parsed(text, path)
        after = _toml_without(text) if _is_toml(path) else _json_without(text, self.key)
        while not _is_toml(path) and self.present_in(after, path):  # a key that was written twice
            after = _json_without(after, self.key)
        after = self._checked(before, after, None, path)
        is_empty = not _is_toml(path) and not _others(before, self.key) and not _json_comments(text)
        return "" if is_empty else after

    def _checked(self, before: dict[str, Any], after: str, entry: Any, path: Path) -> str:
        """Return ``after``. Raises UsageError if it differs from ``before`` in more than ``entry``."""
        try:
            found = _parsed(after, path)
            is_right = _servers(found, self.key, path).get(NAME) == entry
        except UsageError:
            is_right = False
        if not is_right or _comparable(found, self.key) != _comparable(before, self.key):
            raise UsageError(
                "Cannot edit the file without changing other entries",
                str(path),
                f"{'Delete' if entry is None else 'Write'} the entry {self.key}.{NAME} by hand"
                f"{'' if entry is None else f': {json.dumps(entry)}'}.",
            )
        return after


def _form(entry: Any) -> tuple[Any, ...]:
    """Return an entry's keys, its program's name and its arguments, without the workspace."""
    if not isinstance(entry, Mapping):
        return ()
    words = [entry.get("command"), entry.get("args")]
    command = [word for each in words for word in (each if isinstance(each, list) else [each]) if word is not None]
    program = str(command[0]).rpartition("/")[2] if command else ""
    rest = command[1:]
    return sorted(entry), program, rest[:-2] if rest[-2:-1] == ["--workspace"] else rest


_Part = _Entry | _Section


def _is_toml(path: Path) -> bool:
    return path.suffix == ".toml"


def _parsed(text: str, path: Path) -> dict[str, Any]:
    language = "TOML" if _is_toml(path) else "JSON"
    try:
        found = tomllib.loads(text) if _is_toml(path) else _json_value(text)
    except (ValueError, RecursionError) as error:
        what = f"The agent's configuration is not {language} ({error})"
        raise UsageError(what, str(path), "Correct it, or rename it.") from error
    if not isinstance(found, dict):
        raise UsageError("The agent's configuration is not an object", str(path), "Correct it, or rename it.")
    return found


def _servers(config: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    servers = config.get(key, {})
    if not isinstance(servers, dict):
        raise UsageError(f"{key!r} is not an object", str(path), "Correct it, or rename the file.")
    return servers


def _others(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a configuration with Driftline's entry removed, and the server object too if that leaves it empty."""
    servers = {name: value for name, value in config.get(key, {}).items() if name != NAME}
    return {name: servers if name == key else value for name, value in config.items() if name != key or servers}


def _comparable(config: Mapping[str, Any], key: str) -> str:
    """Serialize the other entries in a fixed order. Comparing values would not work: NaN != NaN, and 1 == True."""
    return json.dumps(_others(config, key), sort_keys=True, default=repr)


# -- TOML --------------------------------------------------------------------------------------

_OWN = ("mcp_servers", NAME)


@dataclass(frozen=True, slots=True)
class _Statement:
    """A header, a key and its value, or any other line; ``path`` is the key path of the table or value, or ()."""

    text: str
    path: tuple[str, ...] = ()
    is_header: bool = False

    @property
    def is_own(self) -> bool:
        return self.path[:2] == _OWN

    @property
    def is_blank(self) -> bool:
        return not self.text.strip()


def _statements(text: str) -> Iterator[_Statement]:
    """Split ``text``, valid TOML, into statements."""
    table: tuple[str, ...] = ()
    tokens: list[str] = []
    depth = 0
    for token in [*(match[0] for match in _TOML_TOKEN.finditer(text)), ""]:
        tokens.append(token)
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token, 0)
        if token not in ("\n", "") or depth:
            continue
        statement = "".join(tokens)
        first = next((each for each in tokens if each.strip()), "#")
        if first == "[":
            table = _only_path(statement)
            yield _Statement(statement, table, is_header=True)
        elif first.startswith("#"):
            yield _Statement(statement)
        else:
            yield _Statement(statement, table + _only_path("".join(tokens[: tokens.index("=")]) + "=0"))
        tokens = []


def _only_path(statement: str) -> tuple[str, ...]:
    found: Any = tomllib.loads(statement)
    path: list[str] = []
    while isinstance(found, dict) and found:
        ((name, found),) = found.items()
        path.append(name)
        found = found[0] if isinstance(found, list) else found
    return tuple(path)


def _toml_with(text: str, entry: Mapping[str, Any]) -> str:
    """Set the keys of ``entry`` in Driftline's table in ``text``, appending the table if it is missing."""
    lines = _like(text, "".join(f"{key} = {_toml_value(value)}\n" for key, value in entry.items()))
    end = _like(text, "\n")
    written = {(*_OWN, key) for key in entry}
    kept = [
        each for each in _statements(text) if each.path[:3] not in written and (each.is_header or each.path != _OWN)
    ]
    header = next((n for n, each in enumerate(kept) if each.is_header and each.path == _OWN), None)
    if header is None:
        rest = "".join(each.text for each in kept)
        gap = ("" if rest.endswith("\n") else end) + end if rest else ""
        return f"{rest}{gap}[{'.'.join(_OWN)}]{end}{lines}"
    own = kept[header].text
    texts = [each.text for each in kept]
    texts[header] = own + ("" if own.endswith("\n") else end) + lines
    return "".join(texts)


def _toml_value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_without(text: str) -> str:
    """Remove Driftline's tables and keys from ``text``, including the comments inside and the blank line before."""
    statements = list(_statements(text))
    gone = {n for n, each in enumerate(statements) if each.is_own}
    for n in sorted(gone):
        before = n - 1
        while before >= 0 and not statements[before].path:
            before -= 1
        if before in gone and not statements[n].is_header:
            gone |= set(range(before, n))
    for n in sorted(gone):
        follows = next((m for m in range(n, len(statements)) if m not in gone), None)
        is_open = follows is None or statements[follows].is_blank
        if n and n - 1 not in gone and statements[n - 1].is_blank and is_open:
            gone.add(n - 1)
    return "".join(each.text for n, each in enumerate(statements) if n not in gone)


# -- JSON with comments ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def is_comment(self) -> bool:
        return self.text.startswith(("//", "/*"))


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of an object: its name, the name's position, and where its value starts and ends."""

    name: str
    start: int
    value: int
    end: int


def _json_tokens(text: str) -> list[_Token]:
    """Split JSON into tokens and comments, skipping whitespace and the byte order mark."""
    tokens = (_Token(match[0], match.start()) for match in _JSON_TOKEN.finditer(text))
    return [token for token in tokens if token.text.strip(" \t\r\n\ufeff")]


def _json_comments(text: str) -> list[str]:
    return [token.text for token in _json_tokens(text) if token.is_comment]


def _json_value(text: str) -> Any:
    tokens = [token.text for token in _json_tokens(text) if not token.is_comment]
    if not tokens:
        return {}
    is_loose = [
        each == "," and tokens[n + 1 : n + 2] in (["}"], ["]"]) and tokens[n - 1] not in "{[,"
        for n, each in enumerate(tokens)
    ]
    return json.loads(
        " ".join(each for each, loose in zip(tokens, is_loose, strict=True) if not loose), parse_constant=_refuse
    )


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON value")


def _json_members(text: str, brace: int) -> Iterator[_Member]:
    """Yield the members of the object whose brace is at ``brace``."""
    tokens = [token for token in _json_tokens(text) if token.start > brace and not token.is_comment]
    at = 0
    while tokens[at].text != "}":
        if tokens[at].text == ",":
            at += 1
            continue
        name, last, depth = tokens[at], at + 2, 0
        while True:
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(tokens[last].text, 0)
            if not depth:
                break
            last += 1
        yield _Member(json.loads(name.text), name.start, tokens[at + 2].start, tokens[last].end)
        at = last + 1


def _json_member(text: str, brace: int, name: str) -> _Member | None:
    """Return the last member with this name: the last duplicate wins."""
    return next((each for each in reversed(list(_json_members(text, brace))) if each.name == name), None)


def _json_with(text: str, key: str, entry: Mapping[str, Any]) -> str:
    """Set Driftline's entry in the ``key`` object of ``text`` to ``entry``."""
    top = next((token.start for token in _json_tokens(text) if token.text == "{"), None)
    if top is None:
        gap = _like(text, "\n") if text.strip() and not text.endswith("\n") else ""
        return text + gap + _like(text, json.dumps({key: {NAME: entry}}, indent=2) + "\n")
    held = _json_member(text, top, key)
    if held is None:
        return _json_inserted(text, top, f'"{key}": {json.dumps({NAME: entry}, indent=2)}', "  ")
    own = _json_member(text, held.value, NAME)
    written = json.dumps(entry, indent=2)
    if own is None:
        return _json_inserted(text, held.value, f'"{NAME}": {written}', "    ")
    return text[: own.value] + _like(text, written.replace("\n", "\n    ")) + text[own.end :]


def _json_inserted(text: str, brace: int, member: str, indent: str) -> str:
    """Insert ``member`` into ``text`` as the first member of the object whose brace is at ``brace``."""
    rest = text[brace + 1 :]
    if next(_json_members(text, brace), None):
        follows = ","
    else:
        follows = "" if re.match(r"[ \t]*\r?\n", rest) else f"\n{indent[2:]}"
    inserted = f"\n{member}".replace("\n", f"\n{indent}") + follows
    return text[: brace + 1] + _like(text, inserted) + rest


def _json_without(text: str, key: str) -> str:
    """Remove Driftline's entry from ``text``, and the ``key`` object if that leaves it empty."""
    top = next(token.start for token in _json_tokens(text) if token.text == "{")
    held = _json_member(text, top, key)
    assert held is not None
    own = _json_member(text, held.value, NAME)
    assert own is not None
    around = text[held.start : own.start] + text[own.end : held.end]
    return _json_cut(text, own if len(list(_json_members(text, held.value))) > 1 or _json_comments(around) else held)


def _json_cut(text: str, member: _Member) -> str:
    """Remove a member from ``text``, along with one adjacent comma and the whitespace before it. Keep all comments."""
    tokens = _json_tokens(text)
    after = next(token for token in tokens if token.start >= member.end and not token.is_comment)
    before = next(token for token in reversed(tokens) if token.start < member.start and not token.is_comment)
    start, end = member.start, member.end
    neighbour = next(token for token in reversed(tokens) if token.start < member.start)
    blank = text[neighbour.end : start]
    is_line_end = re.match(r"[ \t]*(?:\r?\n|$)", text[after.end if after.text == "," else end :]) is not None
    if neighbour.text.startswith("//") and not is_line_end:
        start -= len(blank) - blank.index("\n") - 1
    else:
        start -= len(blank)
    if after.text == ",":
        return text[:start] + text[end : after.start] + text[after.end :]
    if before.text == ",":
        return text[: before.start] + text[before.end : start] + text[end:]
    return text[:start] + text[end:]

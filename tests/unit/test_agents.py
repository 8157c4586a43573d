"""Coding agents: each format, what stays of a file, and that everything can be undone."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from driftline.flows.config.agents import AGENTS, BACKUP_SUFFIX, BEGIN, changes, is_installed
from driftline.storage.errors import UsageError

COMMAND = ["driftline", "mcp"]
PLAIN = {"command": "driftline", "args": ["mcp"]}
FORMATS: dict[str, tuple[str, Any]] = {
    "claude-code": (".claude.json", {"mcpServers": {"driftline": {"type": "stdio", **PLAIN}}}),
    "cursor": (".cursor/mcp.json", {"mcpServers": {"driftline": PLAIN}}),
    "vscode": (".config/Code/User/mcp.json", {"servers": {"driftline": {"type": "stdio", **PLAIN}}}),
    "codex": (".codex/config.toml", {"mcp_servers": {"driftline": PLAIN}}),
    "gemini": (".gemini/settings.json", {"mcpServers": {"driftline": PLAIN}}),
    "windsurf": (".codeium/windsurf/mcp_config.json", {"mcpServers": {"driftline": PLAIN}}),
    "zed": (".config/zed/settings.json", {"context_servers": {"driftline": {"source": "custom", **PLAIN}}}),
    "opencode": (
        ".config/opencode/opencode.json",
        {"mcp": {"driftline": {"type": "local", "command": COMMAND, "enabled": True}}},
    ),
}


def apply(names: list[str], place: Path, scope: Any = "user", *, remove: bool = False) -> int:
    found = changes(names, scope, place, COMMAND, remove=remove)
    for change in found:
        change.apply()
    return len(found)


def tree(place: Path) -> dict[str, str]:
    return {path.relative_to(place).as_posix(): path.read_text() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", AGENTS)
def test_each_agent_gets_the_entry_that_its_documentation_describes(name: str, tmp_path: Path) -> None:
    path, expected = FORMATS[name]
    apply([name], tmp_path)
    text = (tmp_path / path).read_text()
    assert (tomllib.loads(text) if path.endswith("toml") else json.loads(text)) == expected
    assert is_installed(name, "user", tmp_path)


@pytest.mark.parametrize("scope", ["project", "user"])
def test_installing_twice_changes_nothing_and_uninstalling_leaves_nothing(scope: Any, tmp_path: Path) -> None:
    assert apply(list(AGENTS), tmp_path, scope)
    assert apply(list(AGENTS), tmp_path, scope) == 0
    assert apply(list(AGENTS), tmp_path, scope, remove=True)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize(
    ("name", "before"),
    [
        (
            "zed",
            '// mine\n{\n  "theme": "dark", // keep\n'
            '  "context_servers": {\n    /* other */ "x": {"command": "x"},\n  },\n}\n',
        ),
        ("zed", '{\n  // nothing but this\n  "theme": "a, \\"b\\": {c}"\n}\n'),
        ("cursor", '{"mcpServers": {"x": {"args": [1, {"a": []}]}}, "y": [{}]}'),
        ("cursor", '{"mcpServers": {}}'),
        ("codex", '# mine\nmodel = "x"\n\n[mcp_servers.other]\ncommand = "y"\n'),
    ],
)
def test_comments_and_other_entries_stay_and_a_removal_restores_the_file(
    name: str, before: str, tmp_path: Path
) -> None:
    path = tmp_path / FORMATS[name][0]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(before)
    apply([name], tmp_path)
    after = path.read_text()
    assert is_installed(name, "user", tmp_path)
    for kept in ("// mine", "// keep", "/* other */", "// nothing but this", "# mine", '"y": [{}]'):
        assert (kept in after) == (kept in before)
    assert path.with_name(path.name + BACKUP_SUFFIX).read_text() == before
    assert apply([name], tmp_path) == 0
    apply([name], tmp_path, remove=True)
    assert not is_installed(name, "user", tmp_path)
    for kept in ("// mine", "// keep", "/* other */", "// nothing but this", "# mine", '"y": [{}]'):
        assert (kept in path.read_text()) == (kept in before)


def test_instructions_stand_beside_what_people_wrote(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("# Ours\n\nText.\n")
    apply(["codex", "opencode", "zed"], tmp_path, "project")
    text = (tmp_path / "AGENTS.md").read_text()
    assert text.startswith("# Ours\n\nText.\n")
    assert text.count(BEGIN) == 1
    apply(["codex", "opencode", "zed"], tmp_path, "project", remove=True)
    assert (tmp_path / "AGENTS.md").read_text() == "# Ours\n\nText.\n"


@pytest.mark.parametrize("text", ["{", "[]", '{"mcpServers": 1}'])
def test_what_is_no_configuration_is_left_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / ".cursor/mcp.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(UsageError, match=r"mcp\.json"):
        changes(["cursor"], "project", tmp_path, COMMAND, remove=False)
    assert path.read_text() == text

"""Coding agents: each format, preserved parts of files, and complete removal."""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftline.flows.commands.main import main
from driftline.flows.config.coding_agents import AGENTS, BACKUP_SUFFIX, BEGIN, END, agents_in, changes, is_installed
from driftline.storage.errors import UsageError

COMMAND = ["driftline", "mcp"]
PLAIN = {"command": "driftline", "args": ["mcp"]}
FORMATS: dict[str, tuple[str, Any]] = {
    "claude-code": (".claude.json", {"mcpServers": {"driftline": {"type": "stdio", **PLAIN}}}),
    "cursor": (".cursor/mcp.json", {"mcpServers": {"driftline": PLAIN}}),
    "vscode": (".config/Code/User/mcp.json", {"servers": {"driftline": {"type": "stdio", **PLAIN}}}),
    "copilot": (
        ".copilot/mcp-config.json",
        {"mcpServers": {"driftline": {"type": "stdio", **PLAIN, "tools": ["*"]}}},
    ),
    "codex": (".codex/config.toml", {"mcp_servers": {"driftline": PLAIN}}),
    "gemini": (".gemini/settings.json", {"mcpServers": {"driftline": PLAIN}}),
    "antigravity": (".gemini/config/mcp_config.json", {"mcpServers": {"driftline": PLAIN}}),
    "windsurf": (".codeium/windsurf/mcp_config.json", {"mcpServers": {"driftline": PLAIN}}),
    "devin": (".config/devin/config.json", {"mcpServers": {"driftline": PLAIN}}),
    "zed": (".config/zed/settings.json", {"context_servers": {"driftline": PLAIN}}),
    "opencode": (
        ".config/opencode/opencode.json",
        {"mcp": {"driftline": {"type": "local", "command": COMMAND, "enabled": True}}},
    ),
}


@pytest.fixture(autouse=True)
def no_other_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "COPILOT_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)


def apply(names: list[str], location: Path, scope: Any = "user", *, remove: bool = False) -> int:
    found = changes(names, scope, location, COMMAND, remove=remove)
    for change in found:
        change.apply()
    return len(found)


def tree(location: Path) -> dict[str, str]:
    return {path.relative_to(location).as_posix(): path.read_text() for path in location.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", AGENTS)
def test_each_agent_gets_the_entry_that_its_documentation_describes(name: str, tmp_path: Path) -> None:
    path, expected = FORMATS[name]
    apply([name], tmp_path)
    text = (tmp_path / path).read_text()
    assert (tomllib.loads(text) if path.endswith("toml") else json.loads(text)) == expected
    assert is_installed(name, "user", tmp_path)


@pytest.mark.parametrize("scope", ["project", "user"])
def test_installing_twice_changes_nothing_and_uninstalling_leaves_nothing(scope: Any, tmp_path: Path) -> None:
    names = agents_in(scope)
    assert apply(names, tmp_path, scope)
    assert apply(names, tmp_path, scope) == 0
    assert apply(names, tmp_path, scope, remove=True)
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


def test_instructions_keep_what_people_wrote(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("# Ours\n\nText.\n")
    apply(["codex", "opencode", "zed"], tmp_path, "project")
    text = (tmp_path / "AGENTS.md").read_text()
    assert text.startswith("# Ours\n\nText.\n")
    assert text.count(BEGIN) == 1
    apply(["codex", "opencode", "zed"], tmp_path, "project", remove=True)
    assert (tmp_path / "AGENTS.md").read_text() == "# Ours\n\nText.\n"


FILES = {"cursor": ".cursor/mcp.json", "codex": ".codex/config.toml"}


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        ("cursor", "{"),
        ("cursor", "[]"),
        ("cursor", '{"mcpServers": 1}'),
        ("cursor", '{"mcpServers": {"driftline": 1}}'),
        ("cursor", '{"a": 1 2}'),
        ("cursor", '{"a": NaN}'),
        ("cursor", "/* {}"),
        ("cursor", "[" * 9_999),
        ("codex", "mcp_servers = 1\n"),
        ("codex", "[mcp_servers\n"),
        ("codex", "[[mcp_servers.driftline]]\n"),
        ("codex", "mcp_servers = {}\n"),
    ],
)
def test_other_files_than_configurations_are_left_alone(agent: str, text: str, tmp_path: Path) -> None:
    path = put(tmp_path / FILES[agent], text)
    with pytest.raises(UsageError, match=path.name):
        changes([agent], "project", tmp_path, COMMAND, remove=False)
    assert path.read_text() == text


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("text", ["", "// nothing yet", "/* nothing yet */\r\n", "{}", "{ // nothing\n}", "\ufeff{}"])
def test_a_file_without_entries_is_restored(text: str, tmp_path: Path) -> None:
    path = put(tmp_path / ".cursor/mcp.json", text)
    apply(["cursor"], tmp_path, "project")
    assert is_installed("cursor", "project", tmp_path)
    apply(["cursor"], tmp_path, "project", remove=True)
    assert path.read_bytes().decode() == text
    assert [each.name for each in path.parent.iterdir() if each.is_file()] == ["mcp.json"]


OWN = '"driftline": {"command": "driftline", "args": ["mcp"]}'


REMOVALS = {
    "cursor": [
        (f'{{"mcpServers": {{"x": {{}}, // of x\n    {OWN}\n  }}}}', '{"mcpServers": {"x": {} // of x\n  }}'),
        (f'{{"mcpServers": {{"x": {{}}, // of x\n    {OWN} }}}}', '{"mcpServers": {"x": {} // of x\n }}'),
        (f'{{"mcpServers": {{{OWN} // ours\n , "x": {{}}}}}}', '{"mcpServers": { // ours\n  "x": {}}}'),
        (f'{{"mcpServers": {{ /* mine */ {OWN}, }} }}', '{"mcpServers": { /* mine */ } }'),
        (f'{{"mcpServers": {{{OWN}}}, "a": ","}}', '{ "a": ","}'),
        (f'// mine\n{{"mcpServers": {{{OWN}}}}}', "// mine\n{}"),
        (f'{{"mcpServers": {{"x": 1}}, "mcpServers": {{{OWN}}}}}', None),
    ],
    "codex": [
        (
            'a = 1\n\n[mcp_servers.driftline] # ours\ncommand = "x"\n# within\nargs = [\n  "[a]", # }\n]\n\n'
            "# of b\n[b]\n",
            "a = 1\n\n# of b\n[b]\n",
        ),
        (
            '[mcp_servers."driftline"]\ncommand = "x"\n[mcp_servers.driftline.env]\nA = "1"\n\n'
            '[[b]]\nc = """\n[d]"""\n',
            '\n[[b]]\nc = """\n[d]"""\n',
        ),
        ('[mcp_servers]\nother.command = "y"\ndriftline = {command = "x"}\n', '[mcp_servers]\nother.command = "y"\n'),
        ('mcp_servers.driftline.command = "x"\nb = 1\n', "b = 1\n"),
        ('a = """\n[mcp_servers.driftline]\n"""\n', 'a = """\n[mcp_servers.driftline]\n"""\n'),
        ('mcp_servers = {driftline = {command = "x"}}\n', None),
    ],
}


@pytest.mark.parametrize(
    ("agent", "before", "after"), [(agent, *each) for agent, cases in REMOVALS.items() for each in cases]
)
def test_a_removal_keeps_comments(agent: str, before: str, after: str | None, tmp_path: Path) -> None:
    path = put(tmp_path / FILES[agent], before)
    if after is None:
        with pytest.raises(UsageError, match=r"mcp_?[sS]ervers\.driftline by hand"):
            apply([agent], tmp_path, "project", remove=True)
        after = before
    else:
        apply([agent], tmp_path, "project", remove=True)
    assert path.read_text() == after


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cursor", '{"mcpServers": {"driftline": {"command": "old", "env": {"A": "1"}}}}'),
        ("codex", '[mcp_servers.driftline]\ncommand = "old" # ours\n# kept\n[mcp_servers.driftline.env]\nA = "1"\n'),
    ],
)
def test_an_update_keeps_user_additions_to_the_entry(name: str, text: str, tmp_path: Path) -> None:
    path = put(tmp_path / FORMATS[name][0], text)
    assert apply([name], tmp_path, "project")
    found = path.read_text()
    servers = json.loads(found)["mcpServers"] if name == "cursor" else tomllib.loads(found)["mcp_servers"]
    assert servers == {"driftline": {**PLAIN, "env": {"A": "1"}}}
    assert ("# kept" in found) == ("# kept" in text)
    assert apply([name], tmp_path, "project") == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cursor", '{"mcpServers": {"driftline": {"command": "uvx", "args": ["driftline", "mcp"]}}}'),
        ("cursor", '{"mcpServers": {"driftline": {"command": "driftline", "args": [], "env": {"A": "1"}}}}'),
        ("cursor", '{"mcpServers": {"driftline": {"url": "https://x"}, "b": {}}}'),
        ("cursor", '{"mcpServers": {"driftline": {"command": "a"}, "driftline": {"command": "b"}}}'),
        ("zed", '{"context_servers": {"driftline": {"command": "uvx"}}}'),
        ("opencode", '{"mcp": {"driftline": {"type": "local", "command": ["uvx", "driftline"]}}}'),
        ("codex", '[mcp_servers.driftline]\ncommand = "uvx" # mine\n[mcp_servers.driftline.env]\nA = "1"\n'),
    ],
)
def test_an_entry_that_a_person_wrote_is_backed_up_and_restored(name: str, text: str, tmp_path: Path) -> None:
    path = put(tmp_path / FORMATS[name][0], text)
    backup = path.with_name(path.name + BACKUP_SUFFIX)
    apply([name], tmp_path)
    assert backup.read_text() == text
    apply([name], tmp_path)
    apply([name], tmp_path, remove=True)
    assert path.read_text() == text
    apply([name], tmp_path, remove=True)
    assert not is_installed(name, "user", tmp_path)
    assert backup.read_text() == text


@pytest.mark.parametrize(
    ("before", "added", "after"),
    [
        ("Use tabs", "Never push.\n", "Use tabs\nNever push.\n"),
        ("Use tabs\n", "Never push.\n", "Use tabs\nNever push.\n"),
        ("Use tabs\r\n", "Never push.\r\n", "Use tabs\r\nNever push.\r\n"),
        ("Use tabs", "\nNever push.", "Use tabs\nNever push."),
        ("", "Never push.\n", "Never push.\n"),
    ],
)
def test_a_removal_does_not_join_lines(before: str, added: str, after: str, tmp_path: Path) -> None:
    path = put(tmp_path / "CLAUDE.md", before)
    apply(["claude-code"], tmp_path, "project")
    path.write_bytes(path.read_bytes() + added.encode())
    apply(["claude-code"], tmp_path, "project", remove=True)
    assert path.read_bytes().decode() == after


@pytest.mark.parametrize(
    ("name", "system", "variable", "expected"),
    [
        ("vscode", "darwin", "", "home/Library/Application Support/Code/User/mcp.json"),
        ("vscode", "darwin", "XDG_CONFIG_HOME", "home/Library/Application Support/Code/User/mcp.json"),
        ("vscode", "linux", "XDG_CONFIG_HOME", "moved/Code/User/mcp.json"),
        ("zed", "darwin", "XDG_CONFIG_HOME", "home/.config/zed/settings.json"),
        ("zed", "linux", "XDG_CONFIG_HOME", "moved/zed/settings.json"),
        ("opencode", "darwin", "XDG_CONFIG_HOME", "moved/opencode/opencode.json"),
        ("codex", "linux", "CODEX_HOME", "moved/config.toml"),
        ("copilot", "linux", "COPILOT_HOME", "moved/mcp-config.json"),
        ("claude-code", "linux", "CLAUDE_CONFIG_DIR", "moved/.claude.json"),
        ("claude-code", "linux", "CODEX_HOME", "home/.claude.json"),
    ],
)
def test_files_are_where_the_agent_reads_them(
    name: str, system: str, variable: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", system)
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "moved"))
    found = changes([name], "user", tmp_path / "home", COMMAND, remove=False)
    assert found[0].path == tmp_path / expected
    monkeypatch.setenv(variable or "CODEX_HOME", "relative")
    assert changes([name], "user", tmp_path / "home", COMMAND, remove=False)[0].path.is_relative_to(tmp_path / "home")


def test_a_private_file_stays_private_and_so_is_its_copy(tmp_path: Path) -> None:
    path = put(tmp_path / ".cursor/mcp.json", '{"token": "secret"}')
    path.chmod(0o600)
    apply(["cursor"], tmp_path, "project")
    assert [each.stat().st_mode & 0o777 for each in (path, path.with_name(path.name + BACKUP_SUFFIX))] == [0o600, 0o600]


def test_a_link_to_a_configuration_stays_a_link(tmp_path: Path) -> None:
    target = put(tmp_path / "dotfiles/mcp.json", "{}")
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor/mcp.json").symlink_to("../dotfiles/mcp.json")
    apply(["cursor"], tmp_path, "project")
    assert (tmp_path / ".cursor/mcp.json").is_symlink()
    assert json.loads(target.read_text()) == {"mcpServers": {"driftline": PLAIN}}
    assert [each.name for each in target.parent.iterdir()] == ["mcp.json"]


def test_a_failed_write_leaves_only_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "opencode.json", "{}")
    (change,) = [
        each for each in changes(["opencode"], "project", tmp_path, COMMAND, remove=False) if each.path == path
    ]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match=r"Cannot write.*No space left"):
        change.apply()
    assert tree(tmp_path) == {"opencode.json": "{}"}


def test_a_file_that_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = put(tmp_path / "opencode.json", "{}")
    (change,) = [
        each for each in changes(["opencode"], "project", tmp_path, COMMAND, remove=False) if each.path == path
    ]
    path.write_text('{"theme": "dark"}')
    with pytest.raises(UsageError, match="file changed"):
        change.apply()
    assert tree(tmp_path) == {"opencode.json": '{"theme": "dark"}'}


@pytest.mark.parametrize(
    ("scope", "names", "shared"),
    [("project", ("codex", "zed"), "AGENTS.md"), ("user", ("gemini", "antigravity"), ".gemini/GEMINI.md")],
)
def test_instructions_stay_while_another_agent_reads_them(
    scope: Any, names: tuple[str, str], shared: str, tmp_path: Path
) -> None:
    first, last = names
    apply([*names], tmp_path, scope)
    apply([first], tmp_path, scope, remove=True)
    assert (tmp_path / shared).read_text().count(BEGIN) == 1
    apply([last], tmp_path, scope, remove=True)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("text", [f"{BEGIN}\nmine\n", f"{END}\n{BEGIN}\nmine\n"])
def test_a_mark_without_its_end_is_reported(text: str, tmp_path: Path) -> None:
    put(tmp_path / "AGENTS.md", text)
    with pytest.raises(UsageError, match="mark"):
        apply(["codex"], tmp_path, "project")


@pytest.mark.parametrize("remove", [False, True])
def test_an_agent_without_a_configuration_in_projects_says_so(remove: bool, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"windsurf .*--user"):
        changes(["windsurf"], "project", tmp_path, COMMAND, remove=remove)


BLANKS = st.sampled_from(["", "", " ", "\n  ", "/* , } */", ' // "{\n', "\t\n\n"])
KEYS = st.sampled_from(["a", "b c", 'quote"', "// no", "driftling", "{", "\u00fc"])


@st.composite
def json_with_comments(draw: st.DrawFn, depth: int = 3) -> str:
    """Return a value, mostly an object, with blanks and comments between all tokens."""
    kind = draw(st.sampled_from("oa1s" if depth else "1s")) if depth < 3 else "o"
    if kind == "1":
        return draw(st.sampled_from(["1", "-2.50", "true", "null"]))
    if kind == "s":
        return json.dumps(draw(KEYS))
    names = draw(st.lists(KEYS, max_size=3, unique=True))
    if depth == 3 and draw(st.booleans()):
        names.insert(draw(st.integers(0, len(names))), "mcpServers")
    parts = []
    for name in names:
        value = draw(json_with_comments(depth - 1))
        if name == "mcpServers" and not value.startswith("{"):
            value = '{"other":' + value + "}"
        key = f"{json.dumps(name)}{draw(BLANKS)}:" if kind == "o" else ""
        parts.append(f"{draw(BLANKS)}{key}{draw(BLANKS)}{value}{draw(BLANKS)}")
    end = "," * (bool(parts) and draw(st.booleans())) + draw(BLANKS)
    opening, closing = "{}" if kind == "o" else "[]"
    return opening + ",".join(parts) + end + closing


TOML = [
    "a{0} = 1 # [x]",
    "",
    "# about the next",
    'b{0} = """\n[mcp_servers.driftline]\n"""',
    "c{0} = ['[', # ]\n  \"]\",\n]",
    "d{0} = {{e = '#', f.g = 1979-05-27}}",
    "[t{0}]  # note",
    '[t{0}."u.v"]',
    "[[l]]",
    "[mcp_servers.other{0}]\n  command = 'x'",
    "[mcp_servers.other{0}.env]",
]


def joined(lines: list[str], end: str) -> str:
    return "\n".join(line.format(n) for n, line in enumerate(lines)) + end


def check_round_trip(name: str, text: str) -> None:
    """Assert that uninstalling restores every byte or, without the copy, all except blanks and an empty servers
    object.
    """
    with tempfile.TemporaryDirectory() as folder, patch("os.fsync"):  # tests the text, not the disk
        location = Path(folder)
        path = put(location / FORMATS[name][0], text)
        apply([name], location)
        assert is_installed(name, "user", location)
        installed = path.read_bytes()
        apply([name], location, remove=True)
        assert path.read_bytes().decode() == text
        path.write_bytes(installed)
        apply([name], location, remove=True)
        left = path.read_bytes().decode() if path.exists() else ""
    before, after = "".join(text.split()), "".join(left.split())
    if (empty := '"mcpServers":{}') in before and empty not in after:
        before, after = before.replace(empty, "").replace(",", ""), after.replace(",", "")
    assert after in (before, before.removesuffix("{}"))
    assert left.count("\r\n") == (left.count("\n") if "\r\n" in text else 0)


@settings(deadline=None)
@given(json_with_comments(), st.booleans())
def test_any_json_with_comments_is_restored(text: str, windows: bool) -> None:
    check_round_trip("cursor", text.replace("\n", "\r\n") if windows else text)


@settings(deadline=None)
@given(st.lists(st.sampled_from(TOML), max_size=9), st.sampled_from(["", "\n", "\n\n"]), st.booleans())
def test_any_toml_is_restored(lines: list[str], end: str, windows: bool) -> None:
    text = joined(lines, end)
    check_round_trip("codex", text.replace("\n", "\r\n") if windows else text)


@settings(deadline=None)
@given(st.lists(st.sampled_from(TOML), max_size=6), st.lists(st.sampled_from(TOML[6:]), max_size=4))
def test_a_superseded_table_is_deleted_without_its_neighbours(before: list[str], after: list[str]) -> None:
    first, last = joined(before, "\n"), joined([line.replace("{0}", "x{0}") for line in after], "\n")
    own = '[mcp_servers.driftline] # ours\ncommand = "x"\n[mcp_servers.driftline.env]\nA = "1"\n'
    with tempfile.TemporaryDirectory() as folder, patch("os.fsync"):
        path = put(Path(folder, ".codex/config.toml"), first + own + last)
        apply(["codex"], Path(folder), remove=True)
        left = path.read_text() if path.exists() else ""
    assert left in (first + last, first.removesuffix("\n") + last, (first + last).strip())


@pytest.mark.parametrize("scope", ["--project", "--user"])
def test_a_dry_run_for_all_agents_lists_each_file_and_writes_none(
    scope: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["agents", "install", "--all", "--dry-run", scope]) == 0
    outcome = capsys.readouterr()
    kind: Any = scope.removeprefix("--")
    for name in agents_in(kind):
        assert f"would create {tmp_path / AGENTS[name].files(kind)[0]}  ({name})" in outcome.out
    assert ("windsurf has no project configuration" in outcome.err) == (scope == "--project")
    assert tree(tmp_path) == {}


def test_installing_warns_if_the_server_could_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warned(*arguments: str) -> tuple[bool, bool]:
        assert main(["agents", "install", "cursor", "--dry-run", *arguments]) == 0
        err = capsys.readouterr().err
        return "There is no index in" in err, "put it on the PATH, or use --user" in err

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    own, programs = tmp_path / "env" / "bin", tmp_path / "bin"
    for folder in (own, programs):
        folder.mkdir(parents=True)
        (folder / "driftline").write_text("#!/bin/sh\n")
        (folder / "driftline").chmod(0o755)
    monkeypatch.setattr("sys.prefix", str(own.parent))
    monkeypatch.setenv("PATH", str(own))
    assert warned() == (True, True)
    assert warned("--user") == (False, False)
    assert warned("--user", "--workspace", "elsewhere") == (True, False)
    monkeypatch.setenv("PATH", f"{own}{os.pathsep}{programs}")
    put(tmp_path / ".driftline/_workspace.json", "{}")
    assert warned() == (False, False)


def test_a_configuration_that_cannot_be_read_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    put(tmp_path / ".cursor/mcp.json", '{"mcpServers": 5}')
    apply(["codex"], tmp_path)
    assert main(["agents", "list", "--json"]) == 0
    outcome = capsys.readouterr()
    states = {each.pop("agent"): each for each in json.loads(outcome.out)["agents"]}
    assert states["cursor"] == {"project": None, "user": None}
    assert states["codex"] == {"project": True, "user": True}
    assert "cursor: 'mcpServers' is not an object" in outcome.err

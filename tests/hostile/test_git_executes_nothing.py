"""Indexing an untrusted repository executes none of the commands in it: a source is data."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Driftline = Callable[..., Any]

IDENTITY = ("-c", "user.name=test", "-c", "user.email=test@localhost")
COMMAND_KEYS = (
    "alias.status",
    "alias.ls-files",
    "alias.diff-files",
    "alias.rev-parse",
    "blame.ignoreRevsFile",
    "browser.evil.cmd",
    "core.alternateRefsCommand",
    "core.askPass",
    "core.editor",
    "core.fsmonitor",
    "core.gitProxy",
    "core.pager",
    "core.sshCommand",
    "credential.helper",
    "diff.evil.command",
    "diff.evil.textconv",
    "diff.external",
    "difftool.evil.cmd",
    "filter.evil.clean",
    "filter.evil.process",
    "filter.evil.smudge",
    "gc.recentObjectsHook",
    "gpg.program",
    "gpg.ssh.defaultKeyCommand",
    "gpg.ssh.program",
    "gpg.x509.program",
    "guitool.evil.cmd",
    "http.proxyAuthMethod",
    "interactive.diffFilter",
    "man.evil.cmd",
    "merge.evil.driver",
    "mergetool.evil.cmd",
    "pager.diff-files",
    "pager.ls-files",
    "pager.rev-parse",
    "pager.status",
    "receive.procReceiveRefs",
    "remote.origin.receivepack",
    "remote.origin.uploadpack",
    "sendemail.smtpServer",
    "sequence.editor",
    "ssh.variant",
    "submodule.module.update",
    "tar.evil.command",
    "trailer.evil.command",
    "uploadpack.packObjectsHook",
    "web.browser",
)
"""Every git configuration key whose value git may execute, alone or with an attribute or a remote."""
HOOKS = (
    *("applypatch-msg", "commit-msg", "fsmonitor-watchman", "post-applypatch", "post-checkout", "post-commit"),
    *("post-index-change", "post-merge", "post-receive", "post-rewrite", "post-update", "pre-applypatch"),
    *("pre-auto-gc", "pre-commit", "pre-merge-commit", "pre-push", "pre-rebase", "pre-receive", "prepare-commit-msg"),
    *("proc-receive", "push-to-checkout", "reference-transaction", "sendemail-validate", "update"),
)
ATTRIBUTES = "* filter=evil diff=evil merge=evil text=auto\n"


def git(folder: Path, *arguments: str) -> str:
    command = ["git", *IDENTITY, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


class Trap:
    """A repository in which every command that git might execute leaves a trace."""

    def __init__(self, root: Path) -> None:
        self.tree = root / "tree"
        self.traces = root / "traces"
        self.traces.mkdir()
        self.tree.mkdir()
        git(self.tree, "init", "-q", "-b", "main")
        (self.tree / "a.txt").write_text("the first line\n")
        (self.tree / "b.txt").write_text("the second line\n")
        git(self.tree, "add", "-A")
        git(self.tree, "commit", "-qm", "first")

    def arm(self) -> None:
        """Set the traps, and make every file look changed to force git to compare contents."""
        script = self.traces.parent / "trap.sh"
        script.write_text(f'#!/bin/sh\ntouch "{self.traces}/$(basename "$0")-$1"\ncat\n')
        script.chmod(0o755)
        for key in COMMAND_KEYS:
            value = f"!{script} {key}" if key.startswith(("alias.", "submodule.", "credential.")) else f"{script} {key}"
            git(self.tree, "config", key, value)
        git(self.tree, "config", "filter.evil.required", "true")
        git(self.tree, "config", "protocol.ext.allow", "always")
        git(self.tree, "config", "remote.origin.url", f"ext::{script} transport")
        (self.tree / ".gitattributes").write_text(ATTRIBUTES)
        hooks = self.tree / ".git" / "hooks"
        hooks.mkdir(exist_ok=True)
        for name in HOOKS:
            (hooks / name).unlink(missing_ok=True)
            (hooks / name).symlink_to(script)
        for name in ("a.txt", "b.txt"):
            stat = (self.tree / name).stat()
            os.utime(self.tree / name, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10_000_000_000))

    @property
    def sprung(self) -> list[str]:
        return sorted(os.listdir(self.traces))


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path)


def test_the_trap_for_executed_commands_works(trap: Trap) -> None:
    trap.arm()
    subprocess.run(["git", "status"], cwd=trap.tree, check=False, capture_output=True)
    assert any("filter.evil" in name for name in trap.sprung)


@pytest.mark.parametrize("command", ["index", "ci", "grep"])
def test_repository_commands_are_never_executed(trap: Trap, tmp_path: Path, driftline: Driftline, command: str) -> None:
    trap.arm()
    at = ("--workspace", tmp_path / "workspace")
    arguments: tuple[object, ...] = ("grep", "first", trap.tree) if command == "grep" else (command, trap.tree, *at)
    for _ in range(2):
        done = driftline(*arguments, "--json")
        assert done.code == 0, done.err
        (trap.tree / "a.txt").write_text("the first line, changed\n")
    assert trap.sprung == []


def test_a_submodule_runs_no_filter(trap: Trap, tmp_path: Path, driftline: Driftline) -> None:
    (tmp_path / "inner").mkdir()
    inner = Trap(tmp_path / "inner")
    git(trap.tree, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner.tree), "module")
    git(trap.tree, "commit", "-qm", "second")
    module = trap.tree / "module"
    git(module, "config", "filter.evil.clean", f"touch {inner.traces}/clean")
    (module / ".gitattributes").write_text(ATTRIBUTES)
    os.utime(module / "a.txt", ns=(1, 1))
    for command in ("index", "ci"):
        assert driftline(command, trap.tree, "--workspace", tmp_path / command).code == 0
    assert inner.sprung == []


def test_a_partial_clone_fetches_nothing(trap: Trap, tmp_path: Path, driftline: Driftline) -> None:
    commit = git(trap.tree, "rev-parse", "HEAD")
    workspace = tmp_path / "workspace"
    assert driftline("ci", trap.tree, "--workspace", workspace).code == 0
    (trap.tree / "a.txt").write_text("the next line\n")
    git(trap.tree, "commit", "-qam", "second")
    trap.arm()
    for key, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.partialCloneFilter": "blob:none",
    }.items():
        git(trap.tree, "config", key, value)
    for lost in (commit, git(trap.tree, "rev-parse", "HEAD^{tree}")):
        (trap.tree / ".git" / "objects" / lost[:2] / lost[2:]).unlink()
    assert driftline("ci", trap.tree, "--workspace", workspace).code == 0
    assert driftline("index", trap.tree, "--workspace", workspace).code == 0
    assert trap.sprung == []


def test_a_work_tree_that_the_configuration_moves_is_a_plain_tree(
    trap: Trap, tmp_path: Path, driftline: Driftline
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "secret.txt").write_text("what lies outside\n")
    git(trap.tree, "config", "core.worktree", str(other))
    documents = driftline("index", trap.tree, "--workspace", tmp_path / "ws", "--json").json["sources"][0]
    assert documents["documents_total"] == 2

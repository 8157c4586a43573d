"""Installing the environment: uv uses pip's configuration, and the lock files agree."""

from __future__ import annotations

import re
import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from driftline.storage import environment

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-extras.lock", "requirements-dev.lock")


@pytest.fixture(scope="module")
def run_uv() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / ".ci" / "run_uv.py"))


def variables(run_uv: dict[str, Any], listing: str, own_index: bool = False, **environ: str) -> dict[str, str]:
    result: dict[str, str] = run_uv["uv_variables"](run_uv["pip_settings"](listing), environ, own_index)
    return result


def test_pips_index_is_passed_to_uv(run_uv: dict[str, Any]) -> None:
    listing = ":env:.cert='/a.pem'\nglobal.cert='/b.pem'\nglobal.index-url='https://mirror.test/simple'\n"
    expected = {"UV_DEFAULT_INDEX": "https://mirror.test/simple", "SSL_CERT_FILE": "/a.pem"}
    assert variables(run_uv, listing) == expected


def test_explicit_settings_of_uv_win(run_uv: dict[str, Any]) -> None:
    listing = "global.index-url='https://mirror.test/simple'\nglobal.timeout='9'\n"
    assert variables(run_uv, listing, UV_INDEX_URL="https://own.test") == {"UV_HTTP_TIMEOUT": "9"}
    assert variables(run_uv, listing, own_index=True) == {"UV_HTTP_TIMEOUT": "9"}
    assert variables(run_uv, listing, UV_HTTP_TIMEOUT="5") == {"UV_DEFAULT_INDEX": "https://mirror.test/simple"}


def test_additional_files_are_searched_only_without_an_index(run_uv: dict[str, Any]) -> None:
    listing = "global.find-links='/wheels\\n/more'\nglobal.extra-index-url='https://more.test'\n"
    assert variables(run_uv, listing) == {}
    offline = {"UV_NO_INDEX": "true", "UV_FIND_LINKS": "/wheels,/more"}
    assert variables(run_uv, listing + "install.no-index='true'\n") == offline


def test_an_entry_of_a_lock_is_found_with_its_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / ".ci"), *sys.path])
    pinned = runpy.run_path(str(ROOT / ".ci" / "install.py"), run_name="install")["pinned"]
    entry = pinned((ROOT / LOCKS[-1]).read_text(), "uv")
    assert re.fullmatch(r"uv==\S+ \\\n( +--hash=sha256:[0-9a-f]{64}( \\)?\n)+", entry)


def test_development_dependencies_are_not_an_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {"dev", "docs"} == set(project["dependency-groups"])
    assert not {"dev", "docs"} & set(project["project"]["optional-dependencies"])
    locked = (ROOT / LOCKS[-1]).read_text()
    wanted = [each for group in project["dependency-groups"].values() for each in group if isinstance(each, str)]
    for name in (re.split(r"[^a-z0-9-]", each)[0] for each in wanted):
        assert re.search(rf"^{name}==", locked, re.MULTILINE), name


def test_each_lock_holds_the_versions_of_the_next_larger_one_and_hashes_for_all() -> None:
    smaller: set[str] = set()
    for name in LOCKS:
        text = (ROOT / name).read_text()
        entries = re.findall(r"^([a-z0-9].*==.*) \\\n +--hash", text, re.MULTILINE)
        assert len(entries) == len(re.findall(r"^[a-z0-9]", text, re.MULTILINE))
        assert "://" not in text
        versions = {re.sub(r"\[.*?\]| ;.*", "", entry) for entry in entries}
        assert smaller <= versions
        smaller = versions


@pytest.mark.parametrize(
    ("origin", "command", "upgrade"),
    [
        ({}, "pip install 'driftline[s3]'", "pip install --upgrade driftline"),
        ({"url": "file:///a/b", "dir_info": {}}, "pip install '/a/b[s3]'", "git -C /a/b pull && pip install /a/b"),
        (
            {"url": "file:///a/b", "dir_info": {"editable": True}},
            "pip install -e '/a/b[s3]'",
            "git -C /a/b pull && pip install -e /a/b",
        ),
        (
            {"url": "file:///a/driftline.whl", "archive_info": {}},
            "pip install 'driftline[s3] @ file:///a/driftline.whl'",
            "pip install --upgrade 'driftline @ file:///a/driftline.whl'",
        ),
        (
            {"url": "https://host/driftline", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            "pip install 'driftline[s3] @ git+https://host/driftline'",
            "pip install --upgrade 'driftline @ git+https://host/driftline'",
        ),
    ],
)
def test_a_fix_installs_the_way_driftline_was_installed(
    origin: dict[str, Any], command: str, upgrade: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_origin", lambda: origin)
    monkeypatch.setattr(environment, "_installer", lambda: "pip install")
    assert environment.install_command("s3") == command
    assert environment.upgrade_command() == upgrade


def test_a_clone_with_an_environment_of_its_own_is_installed_by_its_makefile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Makefile").touch()
    monkeypatch.setattr(environment, "_origin", lambda: {"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert "pip install" in environment.install_command("mcp")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert environment.install_command("mcp") == f"make -C {tmp_path} install"


@pytest.mark.parametrize(
    ("mark", "installer"),
    [("uv-receipt.toml", "uv tool install --force"), ("pipx_metadata.json", "pipx install --force")],
)
def test_a_fix_uses_the_tool_that_made_the_environment(
    mark: str, installer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / mark).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(environment, "_origin", dict)
    assert environment.install_command("s3") == f"{installer} 'driftline[s3]'"

"""How the environment is installed: pip's configuration reaches uv, and the lock files agree."""

from __future__ import annotations

import re
import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-extras.lock", "requirements-dev.lock")


@pytest.fixture(scope="module")
def run_uv() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / ".ci" / "run_uv.py"))


def variables(run_uv: dict[str, Any], listing: str, own_index: bool = False, **environ: str) -> dict[str, str]:
    result: dict[str, str] = run_uv["uv_variables"](run_uv["pip_settings"](listing), environ, own_index)
    return result


def test_the_index_of_pip_becomes_that_of_uv(run_uv: dict[str, Any]) -> None:
    listing = ":env:.cert='/a.pem'\nglobal.cert='/b.pem'\nglobal.index-url='https://mirror.test/simple'\n"
    expected = {"UV_DEFAULT_INDEX": "https://mirror.test/simple", "SSL_CERT_FILE": "/a.pem"}
    assert variables(run_uv, listing) == expected


def test_explicit_settings_of_uv_win(run_uv: dict[str, Any]) -> None:
    listing = "global.index-url='https://mirror.test/simple'\nglobal.timeout='9'\n"
    assert variables(run_uv, listing, UV_INDEX_URL="https://own.test") == {"UV_HTTP_TIMEOUT": "9"}
    assert variables(run_uv, listing, own_index=True) == {"UV_HTTP_TIMEOUT": "9"}
    assert variables(run_uv, listing, UV_HTTP_TIMEOUT="5") == {"UV_DEFAULT_INDEX": "https://mirror.test/simple"}


def test_additional_files_count_only_where_there_is_no_index(run_uv: dict[str, Any]) -> None:
    listing = "global.find-links='/wheels\\n/more'\nglobal.extra-index-url='https://more.test'\n"
    assert variables(run_uv, listing) == {}
    offline = {"UV_NO_INDEX": "true", "UV_FIND_LINKS": "/wheels,/more"}
    assert variables(run_uv, listing + "install.no-index='true'\n") == offline


def test_an_entry_of_a_lock_is_found_with_its_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / ".ci"), *sys.path])
    pinned = runpy.run_path(str(ROOT / ".ci" / "install.py"), run_name="install")["pinned"]
    entry = pinned((ROOT / LOCKS[-1]).read_text(), "uv")
    assert re.fullmatch(r"uv==\S+ \\\n( +--hash=sha256:[0-9a-f]{64}( \\)?\n)+", entry)


def test_what_development_needs_is_no_extra_of_the_package() -> None:
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

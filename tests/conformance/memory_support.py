"""Helpers for the memory conformance tests: entity names, stores on disk, and views of a workspace."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import driftline as dl
from driftline.flows.memory_backend import HierarchicalLTMBackend
from driftline.storage.objects.local_disk import LocalDisk

LEVELS = ["org", "project", "user", "session"]
ACME = "org:acme"
ALPHA = f"{ACME}/project:alpha"
ALICE = f"{ALPHA}/user:alice"
S123 = f"{ALICE}/session:s123"
LINEAGE = [ACME, ALPHA, ALICE, S123]
PARENTS = {"org": "acme", "project": "alpha", "user": "alice"}
GLOBEX = "org:globex/project:alpha/user:alice/session:s123"
LARGE = "a value that is not inlined " * 100
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"
"""A database that rejects every connection immediately."""


def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the environment variables that configure workspaces, models and memory."""
    for name in list(os.environ):
        if name.startswith(("DRIFTLINE_", "LTM_", "SEMTOOLS_")) or name == "DATABASE_URL":
            monkeypatch.delenv(name)


def open_backend(folder: Path | str, catalog: str | None = None, **options: Any) -> HierarchicalLTMBackend:
    """Return the dictionary adapter of a store in ``folder``, without vectors unless ``options`` request them."""
    given: dict[str, Any] = {"embedding": {"enabled": False}, "hierarchy_levels": LEVELS, **options}
    return dl.create_ltm_backend("hierarchical", catalog_url=catalog, storage_uri=str(folder), **given)


def files(folder: Path, pattern: str) -> list[str]:
    """Return the sorted relative paths of files under ``folder`` that match ``pattern``."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob(pattern))


def blobs(folder: Path) -> list[str]:
    """Return the entry values that are stored in blobs."""
    return [path for path in files(folder, "*.json") if "session:" in path or ("/_" not in path and ":" in path)]


def keys(page: Mapping[str, Any]) -> list[str]:
    """Return the sorted keys of a response's entries."""
    assert page["success"], page
    return sorted(entry["key"] for entry in page["entries"])


def ok(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Assert that ``answer`` is not a failure, and return it."""
    assert answer.get("success"), answer
    return answer


def blob_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list to which each blob's name is appended when it is read from disk."""
    reads: list[str] = []
    get = LocalDisk.get

    def counted(disk: LocalDisk, path: str) -> tuple[bytes, str]:
        if path.endswith(".json") and "session:" in path:
            reads.append(path)
        return get(disk, path)

    monkeypatch.setattr(LocalDisk, "get", counted)
    return reads


ROOT = Path(__file__).parents[2]


def reference_pages() -> dict[str, str]:
    """Return the documentation pages, keyed by path."""
    folders = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "flows").glob("*.md")]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in folders if path.exists()}


def decided(*words: str) -> bool:
    """Return whether any decision record contains all these words."""
    records = [path for path in ROOT.rglob("[0-9]*.md") if path.parent.name in ("adr", "decisions")]
    return any(all(word in path.read_text() for word in words) for path in records)


def public_calls(target: object) -> dict[str, inspect.Signature]:
    """Return an object's public methods, except for opening and closing, with their signatures."""
    names = [name for name in dir(target) if not name.startswith("_") and name != "close"]
    methods = {name: getattr(target, name) for name in names}
    return {
        name: inspect.signature(method)
        for name, method in methods.items()
        if callable(method) and inspect.ismethod(method)
    }


def arguments(signature: inspect.Signature, given: Mapping[str, Any]) -> dict[str, Any]:
    """Select the arguments that a call accepts from ``given``. Fails if a required parameter is missing."""
    taken: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if name in given:
            taken[name] = given[name]
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        ):
            pytest.fail(f"the tests know no argument for {name}: add one")
    return taken

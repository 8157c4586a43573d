"""The structure of the code: no import cycles, short modules and functions, and no references to missing modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("flows", "tasks", "storage", "deployments")
MAX_MODULE_LINES = 800
MAX_FUNCTION_LINES = 60
HISTORY = ("CHANGELOG.md", "docs/how-it-works/decisions/")
"""Pages about earlier versions keep old names."""
_DOTTED = re.compile(r"\bdriftline((?:\.[a-zA-Z_]\w*)+)")
_FILE = re.compile(r"(?<![\w/.-])((?:flows|tasks|storage)/[\w/]+\.py)\b")


def files(*folders: str, suffixes: tuple[str, ...] = (".py",)) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes and "__pycache__" not in path.parts:
                yield path


def code() -> list[Path]:
    return list(files(*PACKAGES, "tests", ".ci", "docs"))


def texts() -> dict[str, str]:
    """Return the text of each source, page and configuration file, by path in the repository."""
    found = [
        *files(*PACKAGES, "tests", "docs", ".ci", ".github", suffixes=(".py", ".md", ".toml", ".yaml", ".yml", ".sh"))
    ]
    found += [path for path in ROOT.iterdir() if path.suffix in (".md", ".toml", ".yml") or path.name == "Makefile"]
    named = {path.relative_to(ROOT).as_posix(): path.read_text() for path in found}
    return {name: text for name, text in named.items() if not name.startswith(HISTORY)}


@cache
def names_of(module: Path) -> frozenset[str]:
    """Return the names that a module defines, assigns or imports."""
    tree = ast.parse(module.read_text())
    names = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return frozenset(
        names
        | {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
    )


def exists(parts: list[str]) -> bool:
    """Return whether a dotted name in a package leads to a package, a module, or a name in a module."""
    location = ROOT / parts[0]
    for i, part in enumerate(parts[1:], start=1):
        if (location / part).is_dir():
            location /= part
        elif (module := location / f"{part}.py").exists():
            return len(parts) == i + 1 or parts[i + 1] in names_of(module)
        else:
            return part in names_of(location / "__init__.py")
    return True


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("driftline", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        list(TopologicalSorter(imports).static_order())
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_no_module_of_the_package_is_long() -> None:
    lengths = {path.relative_to(ROOT).as_posix(): path.read_text().count("\n") for path in files(*PACKAGES)}
    assert {name: length for name, length in lengths.items() if length > MAX_MODULE_LINES} == {}


def test_no_function_is_long() -> None:
    """Docstrings do not count: public functions' docstrings explain each argument."""
    lengths = {
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1 - documented
        for path in code()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
        for documented in (len((ast.get_docstring(node, clean=False) or "").splitlines()),)
    }
    assert {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES} == {}


def test_every_dotted_name_of_the_package_exists() -> None:
    lost = {
        f"{name}: {match.group()}"
        for name, text in texts().items()
        for match in _DOTTED.finditer(text)
        if (parts := match[1].split(".")[1:])[0] in PACKAGES and not exists(parts)
    }
    assert lost == set()


def test_every_file_that_the_docs_mention_exists() -> None:
    lost = {
        f"{name}: {match[1]}"
        for name, text in texts().items()
        for match in _FILE.finditer(text)
        if not (ROOT / match[1]).exists()
    }
    assert lost == set()

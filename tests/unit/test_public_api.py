"""The names in ``import driftline``: they load lazily, type checkers see them, and each keyword has a single
default.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import driftline
from driftline.flows.config.index_request import IndexRequest
from driftline.flows.web.api import Reader
from driftline.flows.web.server import web_server
from driftline.storage import errors
from driftline.tasks.search.request import SearchRequest
from tests.support.web import serving

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("storage", "tasks", "flows")


def error_classes() -> list[type[errors.DriftlineError]]:
    classes = [errors.DriftlineError]
    for known in classes:
        classes += [found for found in known.__subclasses__() if found.__module__ == errors.__name__]
    return classes


def typed_names() -> dict[str, str]:
    """Return the names that type checkers see, and the modules that define them."""
    tree = ast.parse(Path(inspect.getfile(driftline)).with_suffix(".pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def keyword_defaults(function: Callable[..., Any], *left_out: str) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    keywords = (each for each in parameters if each.kind is not inspect.Parameter.VAR_POSITIONAL)
    return {each.name: each.default for each in keywords if each.name not in left_out}


@pytest.mark.parametrize("name", driftline.__all__)
def test_each_public_name_is_what_type_checkers_see(name: str) -> None:
    value = getattr(driftline, name)
    if name in vars(driftline) and name not in typed_names():
        assert name == "__version__" or inspect.getmodule(value) is driftline
    else:
        assert value is getattr(sys.modules[typed_names()[name]], name)


def test_every_error_of_the_tree_is_public_and_drawn() -> None:
    names = {found.__name__ for found in error_classes()}
    assert names <= set(driftline.__all__)
    assert {"DriftlineError", *re.findall(r"── (\w+)", errors.__doc__ or "")} == names


def test_the_version_equals_the_installed_packages() -> None:
    assert driftline.__version__ == version("driftline")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="serach"):
        getattr(driftline, "serach")  # noqa: B009  # a type checker refuses it otherwise


def test_an_import_loads_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import driftline; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names} == {"driftline"}


def test_keywords_have_the_defaults_of_their_functions() -> None:
    assert keyword_defaults(driftline.index) == keyword_defaults(IndexRequest)
    of_search = keyword_defaults(SearchRequest)
    assert keyword_defaults(driftline.search, "workspace") == of_search
    assert keyword_defaults(driftline.grep, "model", "ignore_case", "redact").items() <= of_search.items()


PROTOCOLS_AND_SERVERS = {"Client", "Embedder"}
"""Names whose only example (in the class docstring) needs a server or an implementation."""


def public_functions() -> dict[str, Callable[..., Any]]:
    """Return the public functions and methods of ``driftline``, by name."""
    found: dict[str, Callable[..., Any]] = {}
    for name in driftline.__all__:
        value = getattr(driftline, name)
        if inspect.isfunction(value):
            found[name] = value
        for cls in own_classes(value):
            for attribute, method in vars(cls).items():
                function = getattr(method, "__func__", method)
                if inspect.isfunction(function) and not attribute.startswith("_"):
                    found[f"{name}.{attribute}"] = function
    return found


def own_classes(value: object) -> list[type]:
    """Return a class and its bases, if they belong to Driftline."""
    bases = inspect.getmro(value) if inspect.isclass(value) else ()
    return [cls for cls in bases if cls.__module__.startswith("driftline.")]


def raised_in(function: Callable[..., Any]) -> set[str]:
    """Return the Driftline errors that a function's body raises directly."""
    names = {found.__name__ for found in error_classes()}
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    raised = (node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise))
    return names & {call.func.id for call in raised if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}


def missing_sections(name: str, function: Callable[..., Any]) -> set[str]:
    """Return the sections that are missing from a function's docstring."""
    text, signature = inspect.getdoc(function) or "", inspect.signature(function)
    needed = {"Args:"} if signature.parameters.keys() - {"self", "cls"} else set()
    needed |= {"Returns:"} if signature.return_annotation not in (None, "None") else set()
    needed |= {">>>"} if name.partition(".")[0] not in PROTOCOLS_AND_SERVERS else set()
    needed |= {"Raises:"} if raised_in(function) or name.startswith("MemoryStore.") else set()
    return {section for section in needed if section not in text and section.replace("Returns", "Yields") not in text}


def test_public_functions_document_arguments_results_and_errors_and_give_an_example() -> None:
    missing = {name: missing_sections(name, function) for name, function in public_functions().items()}
    lacking = {name: sections for name, sections in missing.items() if sections}
    assert lacking == {}


EXAMPLES = (
    "CatalogError",
    "Client",
    "DriftlineError",
    "Embedder",
    "Entity",
    "Explanation",
    "HierarchicalLTMBackend",
    "Hierarchy",
    "Hit",
    "IndexReport",
    "LineFilter",
    "LineStore",
    "MemoryEntry",
    "MemoryExplanation",
    "MemoryStore",
    "ReadOnlyWorkspace",
    "SearchReport",
    "SearchRequest",
    "SourceRecord",
    "SourceReport",
    "Workspace",
    "WorkspaceStats",
    "analyze_document_states",
    "connect",
    "create_ltm_backend",
    "grep",
    "index",
    "open",
    "search",
    "sql",
)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The names used in examples: a workspace over one document, a server for it, and a memory."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "tree").mkdir()
    (folder / "tree" / "notes.md").write_text("the holder renews the lease\n")
    location, tree = str(folder / "ws"), str(folder / "tree")
    driftline.index(tree, workspace=location)
    ws = driftline.open(location)
    given = {"driftline": driftline, "np": np, "location": location, "tree": tree, "ws": ws}
    given |= {name: getattr(driftline, name) for name in EXAMPLES}
    memory = driftline.create_ltm_backend(storage_uri=str(folder / "memory"))
    with memory, serving(web_server(Reader(ws.storage.reread), "127.0.0.1", 0)) as address:
        yield given | {"memory": memory, "store": memory.core, "url": f"http://{address}"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_public_names_run(name: str, names: dict[str, Any]) -> None:
    printed: list[str] = []
    runner = doctest.DocTestRunner()
    value, finder = getattr(driftline, name), doctest.DocTestFinder()
    tests = (test for each in own_classes(value) or [value] for test in finder.find(each, name))
    found = [test for test in tests if test.examples]
    for test in found:
        test.globs |= names
        runner.run(test, out=printed.append)
    assert found
    assert not runner.summarize(verbose=False).failed, "".join(printed)


def test_the_examples_of_other_names_run() -> None:
    printed: list[str] = []
    runner, finder = doctest.DocTestRunner(), doctest.DocTestFinder()
    public = {cls.__qualname__ for name in EXAMPLES for cls in own_classes(getattr(driftline, name))}
    found = []
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        module = importlib.import_module(".".join(("driftline", *path.relative_to(ROOT).with_suffix("").parts)))
        tests = finder.find(module, "", globs={**vars(module)})
        found += [test for test in tests if test.examples and test.name.split(".")[1] not in {*EXAMPLES, *public}]
    for test in found:
        runner.run(test, out=printed.append)
    assert len(found) > 40
    assert not runner.summarize(verbose=False).failed, "".join(printed)


def test_a_workspace_and_a_client_have_the_same_methods() -> None:
    """The client lacks the methods that write, or that need the files."""

    def methods(cls: type) -> dict[str, inspect.Signature]:
        found = {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}
        return {name: inspect.signature(value) for name, value in found.items() if callable(value)}

    here, there, shared = map(methods, (driftline.Workspace, driftline.Client, driftline.ReadOnlyWorkspace))
    assert here.keys() - shared == {"index", "verify"}
    assert there.keys() - shared == {"close"}
    assert [name for name, signature in shared.items() if {here[name], there[name]} != {signature}] == []


def test_text_in_place_of_a_list_is_one_value(names: dict[str, Any]) -> None:
    ws, uri = names["ws"], names["location"]
    assert [each.path for each in ws.documents(exts="md")] == [each.path for each in ws.documents(exts=["md"])] != []
    access = driftline.open(uri, sources="s3://docs/").storage.access
    assert access.roots == ("s3://docs",)


def test_a_report_is_shown_as_text_and_as_a_table(names: dict[str, Any]) -> None:
    report = names["ws"].search("lease <b>", n_lines=0)
    assert repr(report) == "<SearchReport 'lease <b>': 1 result\n  1. notes.md:1  the holder renews the lease>"
    assert "<td>notes.md:1</td>" in report._repr_html_()
    assert repr(report.results[0]) == "<Hit 1. notes.md:1 'the holder renews the lease'>"
    assert report.to_arrow().to_pylist() == [hit.to_dict() for hit in report]
    assert names["location"] in repr(names["ws"])
    assert "total_documents" in names["ws"]._repr_html_()

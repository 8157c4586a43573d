"""The documentation is complete and agrees with the code."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md")))
PACKAGES = ("storage", "tasks", "flows")
README_LINES = 150
RESULTS = ROOT / "tests/benchmarks/results"
MEASURED = (ROOT / "README.md", *sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "decisions"))
"""Pages that need current figures; accepted decision records keep old ones."""

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_LANGUAGES = {"sh", "python", "text", "console", "toml", "yaml", "json"}
_SNIPPET = "--8<--"
_PROGRAM = re.compile(r"`(?:tests/benchmarks/)?([a-z_]+)\.py(?: [^`]*)?`")
_FIGURE = re.compile(r"(\d[\d,]*(?:\.\d+)?(?:e-\d+)?) ?(ms|s|x|B|bytes|KB|MB|GB|GiB|%)(?![\w/])")
_FILE = re.compile(r"`((?:storage|tasks|flows|tests|deployments|docs)/[\w./-]+)(?:::\w+)?`")
_SECTION = re.compile(r"\(DESIGN, \"([^\"]+)\"")
_LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]+))?\)")


def hooks() -> Any:
    """The module ``docs/hooks.py``, loaded by path as MkDocs does."""
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names(pages: tuple[Path, ...]) -> list[str]:
    return [page.relative_to(ROOT).as_posix() for page in pages]


def sources() -> Iterator[Path]:
    """Return the modules of the three packages."""
    return (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))


def fenced(text: str) -> Iterator[tuple[str, str]]:
    """Return the language and the code of each fenced block."""
    return ((match["language"], match["code"]) for match in _FENCE.finditer(text))


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    for name in _FILE.findall(page.read_text()):
        assert (ROOT / name).exists(), f"{name} does not exist"


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_every_relative_link_of_a_page_leads_to_a_file(page: Path) -> None:
    for target, _ in _LINK.findall(page.read_text()):
        assert not target or (page.parent / target).exists(), f"{target} does not exist"


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_every_block_of_a_page_says_what_it_holds_and_is_valid(page: Path) -> None:
    for language, code in fenced(page.read_text()):
        assert language in _LANGUAGES, f"a block has the language {language!r}"
        if _SNIPPET in code:
            continue
        if language == "toml":
            tomllib.loads(code)
        elif language == "json":
            json.loads(code)
        elif language == "yaml":
            yaml.safe_load(code)


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.relative_to(DOCS).as_posix())
def test_the_generated_parts_of_a_page_agree_with_the_code(page: Path) -> None:
    filled = hooks().fill(page.read_text())
    assert "<!-- generated" not in filled


def figures_of(name: str) -> list[float]:
    """Return all numbers recorded by a benchmark."""
    result = RESULTS / f"{name}.json"
    recorded = json.loads(result.read_text()) if result.exists() else {"output": [], "records": []}
    printed = re.findall(r"\d[\d,]*(?:\.\d+)?", "\n".join(recorded["output"]))
    figures = [record for record in recorded["records"] if record["kind"] == "figure"]
    values = [*printed, *(record[each] for record in figures for each in ("value", "target"))]
    return [float(str(value).replace(",", "")) for value in values]


def unrecorded(line: str) -> list[str]:
    """Return the figures in a line that none of the benchmarks named in it has recorded."""
    known = [number for name in _PROGRAM.findall(line) for number in figures_of(name)]
    found = []
    for text, unit in _FIGURE.findall(line):
        spelling = ".3g" if "e" in text else f".{len(text.partition('.')[2])}f"
        if not any(f"{number:{spelling}}" == text.replace(",", "") for number in known):
            found.append(f"{text} {unit}")
    return found


@pytest.mark.parametrize("page", MEASURED, ids=names(MEASURED))
def test_every_quoted_figure_of_a_benchmark_is_one_that_it_recorded(page: Path) -> None:
    filled = hooks().fill(page.read_text())
    wrong = {line: unrecorded(line) for line in _FENCE.sub("", filled).splitlines() if _PROGRAM.search(line)}
    assert {line: figures for line, figures in wrong.items() if figures} == {}


def test_an_unrecorded_figure_is_found() -> None:
    lines = max(figures_of("searching"))
    assert unrecorded(f"{lines:,.0f} lines, search in 3,141.5 ms (`searching.py`)") == ["3,141.5 ms"]
    assert unrecorded(f"search in {lines:.1f} ms (`searching.py`)") == []


def test_a_page_that_explains_a_key_that_the_code_lacks_is_refused() -> None:
    module = hooks()
    part = "<!-- generated: keys driftline.flows.config.toml_schema:SourceTable\nurl: A folder.\n-->"
    with pytest.raises(module.StalePage, match=r"'url'"):
        module.fill(part)
    part = "<!-- generated: enumeration driftline.storage.documents:SkipReason\nBINARY: Text.\nBINARIES: Text.\n-->"
    with pytest.raises(module.StalePage, match=r"'TOO_LARGE'.*'BINARIES'"):
        module.fill(part)


def test_a_generated_part_ends_with_its_comment() -> None:
    page = "<!-- generated: filters -->\n\n### Globs {#globs}\n\n<!-- a comment -->\n"
    assert hooks().fill(page).endswith("\n\n### Globs {#globs}\n\n<!-- a comment -->\n")


def test_every_kind_of_error_has_an_entry_in_troubleshooting() -> None:
    page = (DOCS / "operate" / "troubleshooting.md").read_text()
    entries = dict(re.findall(r"^### ([a-z_]+)\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))
    from_the_command_line = {"interrupted", "unexpected"}
    assert set(entries) == set(hooks().error_kinds()) | from_the_command_line
    for kind, entry in entries.items():
        for part in ("**Symptom**: ", "**Cause**: ", "**Fix**: "):
            assert entry.count(part) == 1, f"{kind} lacks {part}"


def test_the_tree_of_errors_holds_every_class_with_a_kind() -> None:
    kinds = set()
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                for statement in node.body:
                    match statement:
                        case (
                            ast.Assign(targets=[ast.Name("kind")], value=ast.Constant(str(kind)))
                            | ast.AnnAssign(target=ast.Name("kind"), value=ast.Constant(str(kind)))
                        ):
                            kinds.add(kind)
    assert kinds == set(hooks().error_kinds())


def test_every_command_is_in_the_reference() -> None:
    from driftline.flows.commands import main
    from driftline.flows.commands.app import app

    main.load()
    module = hooks()
    listed, pages = module.fill((DOCS / "reference" / "cli.md").read_text()), module.command_pages()
    commands = [command.name or command.callback.__name__ for command in app.registered_commands]  # type: ignore[union-attr]
    assert len(commands) > 10
    for command in [*commands, "memory"]:
        assert f"(commands/driftline-{command}.md)" in listed
        page = pages[f"driftline-{command}"]
        assert page.index(f"$ driftline {command}") < page.index("[OPTIONS]"), "an example comes first"
    assert "## driftline memory put " in pages["driftline-memory"]
    groups = ("Results", "Exact search", "Filters", "Ranking", "Workspace", "Output")
    assert re.findall(r"^\*\*(.+)\*\*$", pages["driftline-search"], re.MULTILINE) == [*groups]
    assert re.findall(r"commands/(driftline-[\w-]+)\.md", listed) == [*pages], "the order of the pages"


def test_every_environment_variable_of_the_code_is_in_the_reference() -> None:
    page = hooks().fill((DOCS / "reference" / "configuration.md").read_text())
    used = {
        name for path in sources() for name in re.findall(r"\b(?:DRIFTLINE|LTM)_[A-Z]+(?:_[A-Z]+)*\b", path.read_text())
    }
    assert len(used) > 8
    assert {name for name in used if f"`{name}`" not in page} == set()


def test_every_section_of_the_design_that_the_code_names_exists() -> None:
    headings = re.findall(r"^## (.+)$", (DOCS / "how-it-works" / "design.md").read_text(), re.MULTILINE)
    for path in sources():
        for section in _SECTION.findall(path.read_text()):
            assert any(heading.startswith(section) for heading in headings), f"{path.name} names {section!r}"


def test_the_design_lists_every_package() -> None:
    drawing = (DOCS / "how-it-works" / "design.md").read_text().partition("## Packages")[2].partition("\n## ")[0]
    for package in PACKAGES:
        part = drawing.partition(f"\n{package}/ ")[2].partition("\n\n")[0]
        packages = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        assert packages
        assert set(re.findall(r"^  (\w+)/ ", part, re.MULTILINE)) == packages


def test_every_decision_record_is_in_the_index_and_in_the_navigation() -> None:
    folder = DOCS / "how-it-works" / "decisions"
    index, navigation = hooks().fill((folder / "index.md").read_text()), (ROOT / "mkdocs.yml").read_text()
    for record in folder.glob("[0-9]*.md"):
        if record.name != "0000-template.md":
            assert f"({record.name})" in index
            assert record.name in navigation


def test_the_example_of_the_memory_guide_is_a_configuration(tmp_path: Path) -> None:
    from driftline.flows.config.memory_settings import load_memory_configuration

    [code] = [code for language, code in fenced((DOCS / "guides" / "memory.md").read_text()) if language == "yaml"]
    file = tmp_path / "memory.yaml"
    file.write_text(code)
    loaded = load_memory_configuration(file, {"DATABASE_URL": "postgresql://localhost/memory"})
    assert loaded.storage.uri == "s3://my-bucket/memory"


def test_pictures_load_nothing_from_elsewhere() -> None:
    for picture in (DOCS / "images").glob("*.svg"):
        assert not re.search(r"(?:url\(|href=|src:)\s*[\"']?https?:", picture.read_text()), picture.name

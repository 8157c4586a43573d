"""The generated parts of the documentation site, which MkDocs calls as a hook while it builds.

A page asks for a part with a comment, ``<!-- generated: NAME ARGUMENT -->``, and the code answers: options from typer,
keys from pydantic, errors from their classes, figures from the recorded results of benchmarks. Where the code has names
without prose, the comment holds one line ``name: meaning`` for each; a name that is missing there, or that the code no
longer has, fails the build.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import math
import posixpath
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {
    "CHANGELOG.md": "operate/changelog.md",
    "CONTRIBUTING.md": "how-it-works/contributing.md",
    "SECURITY.md": "how-it-works/security-policy.md",
    "tests/benchmarks/RESULTS.md": "benchmarks/results.md",
}
"""Pages of the site that lie elsewhere in the repository, and their paths in the site."""
PLOTS = "tests/benchmarks/results"
COMMANDS = "commands"
"""The folder of the generated pages of commands, in the site."""
MAX_EXAMPLES = 4

_PART = re.compile(
    r"<!-- generated: (?P<name>[\w-]+)(?: (?P<argument>(?!-->)\S+))?(?P<meanings>\n.*?)?\s*-->", re.DOTALL
)
_BLOCK = re.compile(r"^ *```(?:sh|console|text)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_PIPE = re.compile(r"(`[^`]*`)|\|")
"""A code span, whose pipes stay, or a pipe."""
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)(?P<target>[^)#\s]+)")
_REMOTE_ASSET = re.compile(
    r"<(?:script|img|iframe)\b[^>]*\bsrc=[\"']?(?:https?:)?//|<link\b[^>]*rel=[\"']?stylesheet[^>]*//"
)


class StalePage(Exception):
    """A page and the code disagree about which names there are."""


# -- called by MkDocs ------------------------------------------------------------------------------


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and plots that lie outside of ``docs/``."""
    from mkdocs.structure.files import File

    for name, markdown in command_pages().items():
        files.append(File.generated(config, f"reference/{COMMANDS}/{name}.md", content=markdown))
    plots = {str(path.relative_to(ROOT)): f"benchmarks/results/{path.name}" for path in (ROOT / PLOTS).glob("*.svg")}
    for source, page_uri in {**OUTSIDE, **plots}.items():
        files.append(File.generated(config, page_uri, abs_src_path=str(ROOT / source)))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the page of each command below that of the command line."""
    reference = next(section["Reference"] for section in config.nav or () if "Reference" in section)
    at = reference.index("reference/cli.md")
    pages = [f"reference/{COMMANDS}/{name}.md" for name in command_pages()]
    reference[at] = {"Command line": ["reference/cli.md", *pages]}
    return config


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the generated parts into a page, and point its links at the paths of the site."""
    page_uri = page.file.src_uri
    source = next((source for source, moved in OUTSIDE.items() if moved == page_uri), f"docs/{page_uri}")
    return fill(relocate(markdown, source, page_uri))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that loads anything from another host."""
    if found := _REMOTE_ASSET.search(output):
        raise StalePage(f"{page.file.src_uri} loads from another host: {found[0]}")
    return output


# -- pages -----------------------------------------------------------------------------------------


def fill(markdown: str) -> str:
    """Return ``markdown`` with its generated parts. Raises StalePage."""
    return _PART.sub(_part, markdown)


def relocate(markdown: str, source: str, page_uri: str) -> str:
    """Return the page ``source`` of the repository, with the links that it needs at ``page_uri`` of the site."""

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match["target"]))
        if target in OUTSIDE:
            target = OUTSIDE[target]
        elif target.startswith(PLOTS):
            target = f"benchmarks/results/{posixpath.basename(target)}"
        elif target.startswith("docs/"):
            target = target.removeprefix("docs/")
        else:
            return match["target"]  # which MkDocs reports
        return posixpath.relpath(target, posixpath.dirname(page_uri))

    return _LINK.sub(link, markdown)


def _part(match: re.Match[str]) -> str:
    if match["name"] not in PARTS:
        raise StalePage(f"Nothing generates {match['name']!r}; choose one of {', '.join(PARTS)}")
    meanings = {}
    for line in (match["meanings"] or "").splitlines():
        name, colon, meaning = line.strip().partition(": ")
        if colon:
            meanings[name] = meaning.strip()
    return PARTS[match["name"]](match["argument"] or "", meanings)


def _checked(names: Iterable[str], meanings: Mapping[str, str], where: str) -> Mapping[str, str]:
    """Return ``meanings``, which must explain exactly ``names``."""
    wanted = list(names)
    missing, unknown = [n for n in wanted if n not in meanings], [n for n in meanings if n not in wanted]
    if missing or unknown:
        raise StalePage(f"{where}: without an explanation: {missing}; explained, but not in the code: {unknown}")
    return meanings


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    escaped = ([_PIPE.sub(lambda found: found[1] or r"\|", cell) for cell in cells] for cells in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


# -- command line ----------------------------------------------------------------------------------


def cli(argument: str, meanings: Mapping[str, str]) -> str:
    """Return tables of the commands, each with a link to its page, and the options before the command."""
    root = _root_command()
    tables = []
    for title, names in _load("driftline.flows.commands.app:GROUPS").items():
        rows = []
        for name in names:
            first = inspect.cleandoc(root.commands[name].help or "").partition("\n\n")[0].replace("\n", " ")
            rows.append((f"[`{name}`]({COMMANDS}/driftline-{name}.md){{#{name}}}", first))
        tables += [f"**{title}**", _table(("Command", "What it does"), rows)]
    behind = ", ".join(f"`{option.opts[0]}`" for option in _load("driftline.flows.commands.app:output_options")())
    before = [
        "## Options before the command",
        f"{behind} may follow the command as well.",
        _parameters(root.params, "Option"),
    ]
    return "\n\n".join([*tables, *before])


@cache
def command_pages() -> Mapping[str, str]:
    """Return the page of each command by its name: examples from the guides, then arguments and options from typer."""
    found, commands = {}, _root_command().commands
    for name in chain(*_load("driftline.flows.commands.app:GROUPS").values()):
        command, title = commands[name], f"driftline {name}"
        parts = [f"# {title}", inspect.cleandoc(command.help or ""), _examples(name)]
        if hasattr(command, "commands"):
            for sub, subcommand in command.commands.items():
                about = [f"## {title} {sub} {{#{sub}}}", inspect.cleandoc(subcommand.help or "")]
                parts += [*about, *_usage(f"{title} {sub}", subcommand)]
        else:
            parts += _usage(title, command)
        found[f"driftline-{name}"] = "\n\n".join(parts)
    return found


def _root_command() -> Any:
    import typer.main

    _load("driftline.flows.commands.main:load")()
    return typer.main.get_command(_load("driftline.flows.commands.main:app"))


def _examples(name: str) -> str:
    """Return the first commands ``name`` of the guide that has most of them, and a link to it. Raises StalePage."""
    pages = {
        page: page.read_text()
        for part in ("start", "guides", "operate")
        for page in (ROOT / "docs" / part).glob("*.md")
    }
    command = re.compile(rf"^ *(?:\$ )?(driftline {name}\b(?:.*\\\n)*.*)", re.MULTILINE)
    found = {
        page: list(dict.fromkeys(line for block in _BLOCK.findall(text) for line in command.findall(block)))
        for page, text in sorted(pages.items())
    }
    best = max(found, key=lambda page: len(found[page]))
    if not found[best]:
        raise StalePage(f"No guide has an example of driftline {name}")
    shown = [f"$ {line}" for line in found[best][:MAX_EXAMPLES]]
    title, link = pages[best].splitlines()[0].strip("# "), best.relative_to(ROOT / "docs").as_posix()
    return "\n".join(["```console", *shown, "```", "", f"More: [{title}](../../{link})."])


def _usage(title: str, command: Any) -> list[str]:
    arguments = [_metavar(parameter) for parameter in command.params if not parameter.opts[0].startswith("-")]
    usage = " ".join([title, *arguments, "[OPTIONS]"])
    is_option = {p.name: p.opts[0].startswith("-") for p in command.params}
    shown = [p for p in command.params if not p.hidden and p.expose_value]
    groups = _load("driftline.flows.commands.app:option_groups")([p for p in shown if is_option[p.name]])
    tables = [_parameters([p for p in shown if not is_option[p.name]], "Argument")]
    for heading, group in groups.items():
        tables += [f"**{heading}**" if len(groups) > 1 else "", _parameters(group, "Option")]
    return [f"```text\n{usage}\n```", *filter(None, tables)]


def _metavar(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name.upper())
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def _parameters(listed: Iterable[Any], title: str) -> str:
    rows = [(f"`{_spelling(p)}`", _default(p), str(p.help or "")) for p in listed]
    return _table((title, "Default", "Meaning"), rows) if rows else ""


def _spelling(parameter: Any) -> str:
    if not parameter.opts[0].startswith("-"):
        return _metavar(parameter)
    names = ", ".join(parameter.opts)
    if parameter.secondary_opts:
        names += f" / {', '.join(parameter.secondary_opts)}"
    if parameter.is_flag:
        return names
    choices = getattr(parameter.type, "choices", ())
    kind = "|".join(map(str, choices)) or parameter.metavar or parameter.type.name.split()[0].upper()
    return f"{names} {kind}"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if isinstance(getattr(parameter, "show_default", None), str):
        return f"`{parameter.show_default}`"
    if getattr(parameter, "is_flag", False):
        return f"`{parameter.opts[0]}`" if parameter.default else ""
    return "" if parameter.default in (None, "") else f"`{parameter.default}`"


def arguments(argument: str, meanings: Mapping[str, str]) -> str:
    """Return the arguments of an action, in the order of their positions; those of a search have their own help."""
    options = _load("driftline.tasks.search.request:OPTIONS").offered_in("action")
    offered = {row.argument: row for row in options.values()}
    parameters = inspect.signature(_load(argument)).parameters
    named = [name for name in parameters if name not in ("state", "handles")]
    explained = {name: offered[name].help for name in named if name in offered} | dict(meanings)
    _checked(named, explained, argument)
    rows = []
    for name in named:
        is_option = name in offered and name not in meanings
        default = offered[name].default if is_option else parameters[name].default
        rows.append((f"`{name}`", _argument_default(default), explained[name]))
    return _table(("Argument", "Default", "Meaning"), rows)


def _argument_default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    if value is None:
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{_written(value).replace('False', 'false')}`"


def options(argument: str, meanings: Mapping[str, str]) -> str:
    """Return the rows of a request's option table."""
    rows = _load(argument).values()
    return _table(
        ("Option", "Default", "Meaning"),
        [(f"`{row.name}`", "" if row.default in (None, ()) else f"`{row.default}`", row.description) for row in rows],
    )


def filters(argument: str, meanings: Mapping[str, str]) -> str:
    """Return the options of the command line that filter a search."""
    request = importlib.import_module("driftline.tasks.search.request")
    offered = request.OPTIONS.offered_in("command", *request.FILTERS, "max_distance", "min_relevance")
    rows = [(f"`{' '.join(filter(None, (row.flag, row.metavar)))}`", row.help) for row in offered.values()]
    return _table(("Option", "Meaning"), rows)


# -- errors ----------------------------------------------------------------------------------------


def error_kinds() -> dict[str, type[Exception]]:
    """Return the error class of each ``kind``, in the order of their definition."""
    from driftline.storage.errors import DriftlineError

    classes: list[type[DriftlineError]] = [DriftlineError]
    for cls in classes:
        classes += cls.__subclasses__()
    order = {name: number for number, name in enumerate(vars(importlib.import_module("driftline.storage.errors")))}
    own = [cls for cls in classes if "kind" in vars(cls)]
    return {cls.kind: cls for cls in sorted(own, key=lambda cls: order.get(cls.__name__, len(order)))}


def errors(argument: str, meanings: Mapping[str, str]) -> str:
    """Return a row for each kind of error, with a link to what to do about it."""
    rows = []
    for kind, cls in error_kinds().items():
        meaning = inspect.cleandoc(cls.__doc__ or "").partition("\n")[0]
        exit_code = str(cls.exit_code)  # type: ignore[attr-defined]
        parent = cls.__bases__[0].__name__ if cls.__bases__[0] is not Exception else ""
        link = f"[`{kind}`](../operate/troubleshooting.md#{kind})"
        rows.append((link, f"`{cls.__name__}`", f"`{parent}`" if parent else "", exit_code, meaning))
    return _table(("Kind", "Class", "Subclass of", "Exit code", "Meaning"), rows)


def enumeration(argument: str, meanings: Mapping[str, str]) -> str:
    """Return the values of an ``enum.StrEnum``, whose names have meanings."""
    members: type[enum.StrEnum] = _load(argument)
    _checked(list(members.__members__), meanings, argument)
    return _table(("Value", "Meaning"), [(f"`{members[name].value}`", meaning) for name, meaning in meanings.items()])


def decisions(argument: str, meanings: Mapping[str, str]) -> str:
    """Return the titles of the decision records, each with a link."""
    records = sorted((ROOT / "docs/how-it-works/decisions").glob("[0-9]*.md"))[1:]  # the first is the template
    titles = (record.read_text().partition("\n")[0].removeprefix("# ").partition(". ") for record in records)
    rows = [(number, f"[{title}]({record.name})") for record, (number, _, title) in zip(records, titles, strict=True)]
    return _table(("", "Decision"), rows)


def views(argument: str, meanings: Mapping[str, str]) -> str:
    """Return the views of SQL with their columns."""
    import duckdb

    hierarchy = _load("driftline.storage.entities:INDEX_LEVELS")
    found = _load("driftline.storage.sql:views")(SimpleNamespace(config=SimpleNamespace(hierarchy=hierarchy)))
    _checked(found, meanings, "views")

    def columns(name: str) -> str:
        view = found[name]
        return ", ".join(duckdb.from_arrow(view.schema.empty_table()).project(view.shown).columns)

    rows = [(f"`{name}`", meaning, f"`{columns(name)}`") for name, meaning in meanings.items()]
    return _table(("View", "One row is", "Columns"), rows)


# -- configuration ---------------------------------------------------------------------------------


def keys(argument: str, meanings: Mapping[str, str]) -> str:
    """Return the keys of a pydantic model as a table; the keys of its sections are ``section.key``."""
    found = list(_fields(_load(argument)))
    explained = {name: meaning for name, *_, meaning in found if meaning} | dict(meanings)
    _checked([name for name, *_ in found], explained, argument)
    rows = [(f"`{name}`", kind, default, explained[name]) for name, kind, default, _ in found]
    return _table(("Key", "Type", "Default", "Meaning"), rows)


def _fields(model: Any, prefix: str = "") -> Iterable[tuple[str, str, str, str]]:
    from pydantic import BaseModel

    for name, field in model.model_fields.items():
        classes = [part for part in _options(field.annotation) if isinstance(part, type)]
        section = next((part for part in classes if issubclass(part, BaseModel)), None)
        if section is not None:
            yield from _fields(section, f"{prefix}{name}.")
        else:
            value = None if field.is_required() else field.get_default(call_default_factory=True)
            empty = field.is_required() or value is None or value in ("", [], {}, ())
            default = "required" if field.is_required() else "" if empty else f"`{_written(value)}`"
            yield f"{prefix}{name}", _type_name(field.annotation), default, field.description or ""


def _written(value: Any) -> str:
    return str(list(value) if isinstance(value, tuple) else value).replace("True", "true").replace("'", '"')


def _options(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _type_name(annotation: Any) -> str:
    names = {str: "text", int: "integer", float: "number", bool: "true or false"}
    parts = []
    for part in _options(annotation):
        origin = get_origin(part)
        if part is types.NoneType:
            continue
        if origin is Literal:
            parts.append(" or ".join(f"`{value}`" for value in get_args(part)))
        elif origin in (list, tuple):
            item = _type_name(get_args(part)[0])
            parts.append("tables" if item.endswith("Table") else f"list of {item}s")
        elif origin is dict:
            parts.append("table")
        elif hasattr(part, "__metadata__"):
            parts.append(_type_name(part.__origin__))
        else:
            parts.append(names.get(part, getattr(part, "__name__", str(part))))
    return " or ".join(parts)


def variables(argument: str, meanings: Mapping[str, str]) -> str:
    """Environment variables and the configuration keys that they set, from a mapping of the code."""
    mapping: Mapping[str, tuple[str, ...]] = _load(argument)
    return _table(("Variable", "Key"), [(f"`{name}`", f"`{'.'.join(path)}`") for name, path in mapping.items()])


# -- Python ----------------------------------------------------------------------------------------


def python(argument: str, meanings: Mapping[str, str]) -> str:
    """What mkdocstrings shall document of ``driftline.__all__``: ``functions``, ``classes`` or ``errors``."""
    package = importlib.import_module("driftline")
    base = _load("driftline.storage.errors:DriftlineError")
    chosen = []
    for name in package.__all__:
        value = getattr(package, name)
        is_error = isinstance(value, type) and issubclass(value, base)
        kind = "errors" if is_error else "classes" if isinstance(value, type) else "functions"
        if kind == argument and (callable(value) or argument != "functions"):
            chosen.append(name)
    options = "\n    options:\n      inherited_members: true" if argument == "classes" else ""
    return "\n\n".join(f"::: driftline.{name}{options}" for name in chosen)


# -- benchmarks ------------------------------------------------------------------------------------


def figures(argument: str, meanings: Mapping[str, str]) -> str:
    """Return a folded table of what benchmarks have recorded, each with its target."""
    found = [(name, record) for name in argument.split(",") for record in _figures(name)]
    rows = []
    for name, record in found:
        value = f"{_number(record['value'])} {record['unit']}".strip()
        target = f"{record['relation']} {_number(record['target'])} {record['unit']}".strip()
        missed = "" if record["fine"] else ": ".join(filter(None, ("**missed**", record.get("obstacle"))))
        rows.append((record["what"], value, target, missed, f"`{name}.py`"))
    if not rows:
        raise StalePage(f"No figure of {argument!r} is recorded")
    title = f"{sum(record['fine'] for _, record in found)} of {len(found)} targets reached"
    return _folded(title, _table(("Measured", "Figure", "Target", "", "`python tests/benchmarks/`"), rows))


def recorded(argument: str, meanings: Mapping[str, str]) -> str:
    """Return what benchmarks printed when they were recorded, folded."""
    results = [_recorded(name) for name in argument.split(",")]
    printed = "\n\n".join("\n".join(["```text", *result["output"], "```"]) for result in results)
    return _folded("; ".join(f"{result['command']}, {result['date']}" for result in results), printed)


def overview(argument: str, meanings: Mapping[str, str]) -> str:
    """Return a plot with a dot for each recorded figure, in a row for each group of benchmarks.

    A dot stands at the quotient of figure and target, to the right of the line if it misses the target.
    """
    height = _PLOT_TOP + _PLOT_ROW * len(meanings) + 24
    parts = [
        f'<svg viewBox="0 0 {_PLOT_WIDTH} {height}" role="img" aria-label="Figures of the benchmarks beside their '
        'targets" font-size="13" fill="currentColor">'
    ]
    for quotient, label in ((1 / 4, "4 times better"), (1.0, "target"), (2.0, "twice the target")):
        x = _plot_x(quotient)
        parts.append(f'<text x="{x}" y="14" text-anchor="middle" opacity=".7">{label}</text>')
        parts.append(
            f'<path d="M{x} 22V{height - 20}" stroke="currentColor" opacity="{1 if quotient == 1 else 0.25}"/>'
        )
    for row, (title, names) in enumerate(meanings.items()):
        y = _PLOT_TOP + _PLOT_ROW * row + _PLOT_ROW // 2
        found = [record for name in names.split(",") for record in _figures(name)]
        parts.append(f'<text x="0" y="{y + 4}">{title}</text>')
        for record in found:
            value, target = record["value"], record["target"]
            is_most = record["relation"] == "at most"
            part, whole = (value, target) if is_most else (target, value)
            x = _plot_x(part / whole if whole else 1.0 if part == whole else 1e9)
            colour = "#1a7f37" if record["fine"] else "#cf222e"
            about = f"{record['what']}: {_number(value)} {record['unit']}, {record['relation']} {_number(target)}"
            parts.append(
                f'<circle cx="{x}" cy="{y}" r="5" fill="{colour}" opacity=".75"><title>{escape(about)}</title></circle>'
            )
    return f"<div>{''.join(parts)}</svg></div>"


_PLOT_WIDTH, _PLOT_NAMES, _PLOT_ROW, _PLOT_TOP = 720, 210, 24, 26


def _plot_x(quotient: float) -> float:
    """Return the place of figure / target: from a sixteenth to four times, on a logarithmic scale."""
    share = (math.log2(min(4.0, max(1 / 16, quotient))) + 4) / 6
    return round(_PLOT_NAMES + share * (_PLOT_WIDTH - _PLOT_NAMES - 8), 1)


def _folded(title: str, content: str) -> str:
    return "\n".join([f'??? note "{title}"', "", *(f"    {line}".rstrip() for line in content.splitlines())])


def _figures(name: str) -> list[Mapping[str, Any]]:
    return [record for record in _recorded(name)["records"] if record["kind"] == "figure"]


def _number(value: float) -> str:
    """Return three digits that count, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _recorded(name: str) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = json.loads((ROOT / PLOTS / f"{name}.json").read_text())
    except FileNotFoundError:
        raise StalePage(f"No result of {name!r} is recorded: make bench ARGS={name}") from None
    return found


PARTS: Mapping[str, Callable[[str, Mapping[str, str]], str]] = {
    "cli": cli,
    "arguments": arguments,
    "options": options,
    "filters": filters,
    "figures": figures,
    "recorded": recorded,
    "overview": overview,
    "errors": errors,
    "enumeration": enumeration,
    "decisions": decisions,
    "views": views,
    "keys": keys,
    "variables": variables,
    "python": python,
}

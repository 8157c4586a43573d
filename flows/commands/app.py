"""Define the command-line app, exit codes, shared options, and how commands print results."""

from __future__ import annotations

import inspect
import logging
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import takewhile
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from driftline.flows.config.index_request import OPTIONS
from driftline.flows.output.logs import log_more
from driftline.flows.output.plain_text import COLORS, print_json, show_as, warn
from driftline.storage.defaults import all_weak
from driftline.storage.option_table import Option

_Function = TypeVar("_Function", bound=Callable[..., Any])
DONE, NOTHING_FOUND, WRONG_USE, FAILED = 0, 1, 2, 3


def _quiet(_context: Any, _option: Any, given: bool) -> None:
    if given:
        show_as(quiet=True)


def _verbose(_context: Any, _option: Any, given: int) -> None:
    if given:
        show_as(verbose=given)
        log_more(logging.INFO if given == 1 else logging.DEBUG)


def _color(_context: Any, _option: Any, given: str | None) -> None:
    if given in COLORS:
        show_as(color=given)
    elif given is not None:
        raise typer.BadParameter(f"{given!r} is not one of {', '.join(COLORS)}", param_hint="--color")


def output_options() -> list[Any]:
    """Return the options that every command accepts, before or after its name."""
    shared: dict[str, Any] = {"expose_value": False, "rich_help_panel": "Output"}
    return [
        TyperOption(
            param_decls=["--quiet", "-q"],
            is_flag=True,
            default=False,
            callback=_quiet,
            help="Print results, warnings and errors only.",
            **shared,
        ),
        TyperOption(
            param_decls=["--verbose", "-v"],
            count=True,
            default=0,
            callback=_verbose,
            help="Log the progress and failures of runs to standard error; -vv logs everything.",
            **shared,
        ),
        TyperOption(
            param_decls=["--color"],
            metavar="WHEN",
            callback=_color,
            help=f"Colours: {', '.join(COLORS[:-1])} or {COLORS[-1]}.",
            **shared,
        ),
    ]


_NARROW = 60
"""In narrower terminals, option descriptions start on the line after the option name."""
_OBVIOUS_RANGE = re.compile(r"(?:; )?x>=[01](?:\.0)?(?=\])")
_DEFAULT = re.compile(r"\[default: \((.*?)\)")
_METAVARS = {"int": "N", "flo": "X"}
"""Value type names in help, keyed by the start of typer's type name; the rest of it depends on typer's version."""


_Formatter: Any = typer.Context.formatter_class


class _Help(_Formatter):  # type: ignore[misc]  # the class depends on typer's version
    """Fits help into narrow terminals, breaking lines only between words."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.width = max(min(shutil.get_terminal_size().columns, 80) - 2, 20)

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        indent, is_narrow = self.current_indent, self.width < _NARROW
        column = 4 if is_narrow else min(col_max, max(len(name) for name, _ in rows)) + col_spacing
        margin = " " * (indent + column)
        for name, text in rows:
            plain = _DEFAULT.sub(r"[default: \1", _OBVIOUS_RANGE.sub("", text)).removesuffix("[]").rstrip()
            lines = textwrap.wrap(plain, self.width - column - indent, break_long_words=False, break_on_hyphens=False)
            beside = not is_narrow and len(name) <= column - col_spacing
            head = [f"{name:<{column}}{lines.pop(0)}"] if beside and lines else [name]
            self.write("".join(f"{line}\n" for line in [" " * indent + head[0], *(margin + line for line in lines)]))


class _Context(typer.Context):
    formatter_class = _Help


def _with_output_options(params: Sequence[Any] | None) -> list[Any]:
    """Return ``params`` plus ``output_options``, with a number metavar for numeric parameters."""
    for option in params or ():
        if option.metavar is None and not getattr(option, "is_flag", False):
            option.metavar = _METAVARS.get(option.type.name.lower()[:3])
    return [*(params or ()), *output_options()]


_NEGATED_FIELD = re.compile(r"-[a-z]{2,}:")
"""The start of an excluding query term, such as -file:test, which the parser would take as options."""


GROUPS = {
    "Index": ("index", "watch", "ci", "fleet", "branches", "remove"),
    "Search": ("search", "grep", "sql", "diff", "pull"),
    "Inspect": ("status", "sources", "runs", "report"),
    "Serve": ("web", "mcp", "agents", "token", "trust"),
    "Remember": ("memory",),
    "Schedule": ("serve", "deploy"),
    "Maintain": ("compact", "cleanup", "verify"),
}
"""The sections of ``driftline --help``."""
EXAMPLES = {
    "index": {
        "driftline index .": "The current folder, into .driftline.",
        "driftline index s3://bucket/docs --workspace s3://bucket/index": "A bucket, into a bucket.",
        "driftline index https://github.com/acme/web.git": "A repository, without a clone.",
    },
    "search": {
        "driftline search how is a lease renewed": "A question, or some words.",
        "driftline search def:Lease lang:python": "The definition of a name; uses:Lease finds its uses.",
        "driftline search '\"connect(\" -file:test timeout'": "Exact text ranked by words, without tests.",
        "driftline search -E 'csrf_[a-z]+'": "Every line that matches a regular expression.",
    },
    "grep": {"driftline grep 'API authentication' docs 'notes/*.md'": "Folders and globs, without an index."},
    "sql": {"driftline sql 'SELECT ext, sum(lines) FROM documents GROUP BY ext'": "Lines by file extension."},
    "diff": {"driftline diff main feature/login password": "Search the lines that a branch adds."},
    "watch": {"driftline watch src": "Index src, then each file as it is saved."},
    "agents install": {"driftline agents install claude-code cursor --project": "For everyone in this repository."},
    "fleet sync": {"driftline fleet sync --dry-run": "Show what would be indexed."},
    "memory put": {"driftline memory put plan '{\"step\": 1}' --entity org:acme/user:ann": "A JSON value of a user."},
}
"""Examples in ``--help``, by command."""
OPTION_GROUPS = (
    "Options",
    "Results",
    "Exact search",
    "Filters",
    "Ranking",
    "Content",
    "Embedding",
    "Execution",
    "Access",
    "Workspace",
    "Output",
)
"""The headings of options, in order. Options without one come first."""
_MAX_UNGROUPED = 14
"""Commands with up to this many options list them under one heading."""


def option_groups(options: Sequence[Any]) -> dict[str, list[Any]]:
    """Return a command's options by heading, in the order of OPTION_GROUPS."""
    if len(options) <= _MAX_UNGROUPED:
        return {OPTION_GROUPS[0]: list(options)} if options else {}
    groups = {title: [each for each in options if _group(each) == title] for title in OPTION_GROUPS}
    return {title: found for title, found in groups.items() if found}


def _group(option: Any) -> str:
    return OPTION_GROUPS[-1] if "--help" in option.opts else option.rich_help_panel or OPTION_GROUPS[0]


class _Command(TyperCommand):
    context_class = _Context

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the command's EXAMPLES, its arguments, and its options by group."""
        examples = EXAMPLES.get(ctx.command_path.partition(" ")[2], {})
        with formatter.section("Examples") if examples else nullcontext():
            for command, meaning in examples.items():
                formatter.write_text(meaning)
                formatter.write(f"    {command}\n")
        shown = [each for each in self.get_params(ctx) if each.get_help_record(ctx)]
        arguments = [each for each in shown if each.param_type_name == "argument"]
        options = option_groups([each for each in shown if each not in arguments])
        for title, group in {**({"Arguments": arguments} if arguments else {}), **options}.items():
            with formatter.section(title):
                # typer before 0.26 escapes brackets for rich
                records = [each.get_help_record(ctx) for each in group]
                formatter.write_dl([(name, text.replace("\\[", "[")) for name, text in records])

    def __init__(self, *args: Any, params: list[Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, params=_with_output_options(params), **kwargs)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse ``args``. An option is never another option's value, and -file:test is a word of a query.

        A leading space keeps the parser from reading such a word as options.
        """
        options = {name: each for each in self.params for name in (*each.opts, *each.secondary_opts)}
        takes_words = any(each.name == "words" for each in self.params)
        read, rest, previous = [], iter(args), None
        for argument in rest:
            if previous is not None:
                _refuse_option_as_value(previous, argument, options)
            elif argument == "--":
                read.append(argument)
                break
            is_term = takes_words and previous is None and _NEGATED_FIELD.match(argument)
            if not is_term:
                _refuse_joined_flags(argument, options)
            read.append(f" {argument}" if is_term else argument)
            takes_value = previous is None and argument in options and _takes_value(options[argument])
            previous = argument if takes_value else None
        return super().parse_args(ctx, [*read, *rest])


def _takes_value(option: Any) -> bool:
    return option.param_type_name == "option" and not option.is_flag and not option.count


def _refuse_option_as_value(name: str, value: str, options: Mapping[str, Any]) -> None:
    """Raise a usage error for ``-F -i``: the option -F would take the option -i as its text."""
    if value in options and options[value].param_type_name == "option":
        long = max(options[name].opts, key=len)
        raise typer.BadParameter(
            f"the value is missing before {value}; for the text {value}, write {long}={value}", param_hint=name
        )


def _refuse_joined_flags(argument: str, options: Mapping[str, Any]) -> None:
    """Raise a usage error for ``-Fi``, which would be -F with the text ``i``, if -i is a flag as well."""
    letters = [f"-{letter}" for letter in argument[1:]] if re.fullmatch(r"-\w{2,}", argument) else []
    known = [*takewhile(options.__contains__, letters)]
    takes = next((at for at, name in enumerate(known) if _takes_value(options[name])), None)
    if takes is None or len(known) < len(letters) or not known[takes + 1 :]:
        return
    if not any(_takes_value(options[name]) for name in known[takes + 1 :]):
        fix = f"write {' '.join(known[takes + 1 :])} before {known[takes]}, and the value after it"
        raise typer.BadParameter(fix, param_hint=argument)


class _Group(TyperGroup):
    context_class = _Context

    def __init__(self, *args: Any, params: list[Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, params=_with_output_options(params), **kwargs)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command's complete first sentence, by GROUPS."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        first = {
            name: inspect.cleandoc(each.help or "").partition("\n\n")[0] for name, each in commands.items() if each
        }
        for title, names in (GROUPS if ctx.parent is None else {"Commands": tuple(first)}).items():
            rows = [(name, first[name].partition(". ")[0].removesuffix(".")) for name in names if name in first]
            with formatter.section(title):
                formatter.write_dl(rows)


class Commands(typer.Typer):
    """A group of commands, each of which accepts the ``output_options``."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_Group, **settings)

    def command(self, *args: Any, **settings: Any) -> Callable[[_Function], _Function]:
        """Add a command, like typer."""
        return super().command(*args, cls=_Command, **settings)


app = Commands(
    name="driftline",
    help="Keep a semantic index of every line in your repositories and buckets up to date.",
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)


class Interrupted(Exception):
    """Ctrl-C, with a sentence about committed work: typer would reduce a KeyboardInterrupt to an exit code."""


@contextmanager
def reporting_what_was_committed() -> Iterator[None]:
    """Turn Ctrl-C into Interrupted, with the notes that say what was committed."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted("; ".join(getattr(error, "__notes__", ()))) from None


def show(result: dict[str, Any], as_json: bool, print_text: Callable[[dict[str, Any]], None]) -> None:
    """Print ``result`` as one JSON object, or with ``print_text``."""
    if as_json:
        print_json(result)
    else:
        print_text(result)


def show_search(found: dict[str, Any], as_json: bool, print_text: Callable[[dict[str, Any]], None]) -> int:
    """Print search results, with notes on standard error, and return the exit code.

    A glob that matches no documents is a usage error, because it is usually a mistake.
    """
    from driftline.tasks.search.request import in_flags

    show(found, as_json, print_text)
    none_good = "exact" not in found and all_weak(hit.get("label") for hit in found["results"])
    for note in found.get("notes", ())[none_good:]:  # the first is printed above weak results
        warn(in_flags(note))
    if found["results"] or found.get("exact", {}).get("documents"):
        return DONE
    return WRONG_USE if found.get("unmatched") else NOTHING_FOUND


WorkspaceOption = Annotated[
    str | None,
    typer.Option(
        "--workspace",
        metavar="URI",
        help="The workspace: a folder, s3://, gs:// or az://, or @NAME. "
        "Default: $DRIFTLINE_WORKSPACE, then the nearest .driftline folder.",
        rich_help_panel="Workspace",
    ),
]
ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The driftline.toml to use. Default: $DRIFTLINE_CONFIG, then the nearest one.",
        rich_help_panel="Workspace",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of text.", rich_help_panel="Output")
]


BranchOption = Annotated[
    str | None,
    typer.Option(
        "--branch", metavar="NAME", help="Use this branch instead of the main index; auto: the checked-out branch."
    ),
]

# Search options.
QueryArgument = Annotated[str, typer.Argument(metavar="QUERY", help="The text to search for: words or code.")]
WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="QUERY...", help="The text to search for: words or code, in quotes or not."),
]
CacheOption = Annotated[
    bool | None,
    typer.Option(
        "--cache/--no-cache",
        help="Search a local copy of the bucket's workspace, updated before each search.",
        show_default="no",
        rich_help_panel="Workspace",
    ),
]
WithinOption = Annotated[
    str | None,
    typer.Option(
        metavar="ENTITY",
        help="Limit access to this entity and its descendants, such as org:acme.",
        rich_help_panel="Access",
    ),
]


def parameters(options: Mapping[str, Option]) -> list[inspect.Parameter]:
    """Return a request's options as command parameters; omitted options are None."""
    return [row.keyword(Annotated[row.value_type | None, declared(row)]) for row in options.values()]


def declared(row: Option, **changed: Any) -> Any:
    """Return an option as typer declares it, with some settings ``changed``."""
    low, high = row.limits()
    shown: bool | str = row.unset or (str(row.default) if row.default not in (None, ()) else False)
    if row.is_switch and row.default is not None:
        shown = ("yes" if row.default else "no") if "/" in row.flag else False
    settings: dict[str, Any] = {
        "metavar": row.metavar,
        "min": low,
        "max": high,
        "help": row.help,
        "show_default": shown,
        "rich_help_panel": row.group or None,
    }
    return typer.Option(row.flag, *(each for each in row.aliases if each.startswith("-")), **settings | changed)


ExecutorOption = Annotated[str, declared(OPTIONS["executor"])]
WorkersOption = Annotated[int | None, declared(OPTIONS["workers"])]
ModelOption = Annotated[str | None, declared(OPTIONS["model"])]

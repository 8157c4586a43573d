"""Run the command line, ``driftline COMMAND``: from arguments to an exit code, reporting every failure on one line.

Exit codes: 0 done or found, 1 nothing found, 2 usage error or bad input, 3 failed. Only the module of the command is
loaded, and it imports heavy modules when it runs, so ``--help`` and usage errors are fast. If memory is scarce, a
warning is printed first, because libraries would abort the process without a message.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import gc
import importlib
import io
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from itertools import takewhile
from types import FrameType
from typing import Annotated, Any, BinaryIO, TextIO

import typer

from driftline.flows.commands.app import DONE, FAILED, WRONG_USE, Interrupted, app
from driftline.flows.output.logs import json_lines, log_levels, quiet_libraries, wants_json, writes_json
from driftline.flows.output.plain_text import appearance, own_appearance, print_json, print_traceback, warn
from driftline.storage.errors import (
    DriftlineError,
    OutOfMemory,
    StorageError,
    UsageError,
    is_panic,
    native_crash_error,
    shortened,
)
from driftline.storage.globs import is_unicode

ENOUGH_BYTES = 4 * 2**30
"""Address space that Arrow, Lance and their threads reserve, although they use little of it."""
_TEXTS = ("failed to map segment", "cannot allocate memory", "can't start new thread", "bad_alloc")
FIX = "Raise or lift the limit (ulimit -v). To limit memory itself, use a control group, such as a container's."


def address_space_warning() -> str | None:
    """Return a warning if this process's address space limit is lower than it is likely to need."""
    with contextlib.suppress(ImportError, OSError):
        import resource  # not available on every system

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY and limit < ENOUGH_BYTES:
            return (
                f"The address space is limited to {limit / 1e9:.1f} GB, less than {ENOUGH_BYTES / 1e9:.1f} GB: "
                f"libraries abort when they cannot reserve what they need. {FIX}"
            )
    return None


def as_out_of_memory(error: BaseException) -> OutOfMemory | None:
    """Convert ``error`` to OutOfMemory if Python or a library raised it because memory ran out."""
    text = str(error)
    if (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or any(sign in text.lower() for sign in _TEXTS)
    ):
        limited = FIX if address_space_warning() else "Free memory, or raise the process's limit."
        return OutOfMemory(f"Not enough memory ({type(error).__name__}: {text[:200]})", fix=limited)
    return None


COMMANDS = {
    "index": "index",
    "remove": "index",
    "fleet": "fleet",
    "search": "search",
    "status": "status",
    "sources": "status",
    "grep": "search",
    "sql": "sql",
    "agents": "agents",
    "pull": "search",
    "compact": "maintenance",
    "cleanup": "maintenance",
    "verify": "maintenance",
    "serve": "serve",
    "deploy": "serve",
    "mcp": "mcp",
    "web": "web",
    "watch": "index",
    "branches": "branches",
    "diff": "branches",
    "ci": "ci",
    "runs": "status",
    "report": "status",
    "memory": "memory",
    "token": "token",
    "trust": "token",
}
"""The commands, and the modules in this folder that add them to ``app``."""
_READERS = frozenset(("search", "grep", "mcp", "sql", "status", "sources", "diff", "runs"))
"""Commands that only read, so there is nothing to continue after Ctrl-C."""
_MEANT_OPTIONS = {"help": "--help", "version": "--version"}
"""Options that are accepted as commands, as in git: ``driftline help search`` is ``driftline search --help``."""
_SPELLINGS = {
    "-C": "-A -B --after-context --before-context --context",
    "--files": "-l --files-with-matches",
    "--top-k": "-m --max-count -L --limit -k --max-results",
    "--limit": "-L -m",
    "--count": "-c",
    "--glob": "-g --include",
    "--lang": "-t --type --language",
    "--ext": "--extension",
    "--path": "--file --filename",
    "--entity": "-R --repo --source",
    "--regex": "-e -P --regexp --perl-regexp --pcre2",
    "--fixed": "--fixed-strings --literal",
    "--whole-words": "--word-regexp",
    "--case-sensitive": "-s",
    "--exclude": "--ignore",
    "--format": "-f --csv --markdown --parquet",
    "--workspace": "-w --index --db",
    "--port": "-p",
    "--version": "-V",
}
"""For each option, its names in grep, ripgrep, gh and other programs."""
_NEEDLESS = {
    "search": dict.fromkeys(("-r", "--recursive", "-H"), "A search covers all indexed files, and names them.")
    | dict.fromkeys(("--hidden", "--no-ignore", "-u"), "A search covers what is indexed: see driftline index --help.")
    | dict.fromkeys(("-S", "--smart-case"), "This is the default.")
    | {"--web": "Run: driftline web."}
}
"""Options of those programs that a command does not need, and why."""
_VERBS = {
    **dict.fromkeys(("find", "query", "ask"), ("search",)),
    **dict.fromkeys(("add", "init", "update", "build", "create"), ("index", "install", "put")),
    **dict.fromkeys(("ls", "show", "list"), ("list", "sources")),
    **dict.fromkeys(("rm", "remove", "delete"), ("remove", "uninstall", "delete", "revoke")),
    **{"set": ("put",), "gc": ("cleanup",), "check": ("verify",), "doctor": ("verify",), "ui": ("web",)},
}
"""Words that people try as commands, and the commands that they may mean."""
_HINTS = {("grep", "FILE"): "Specify files or folders, such as '.', or - for standard input. "}
_INTERRUPTED = 130  # typer turns KeyboardInterrupt into this exit code
_STOPPED = threading.Event()
"""Set once Ctrl-C stopped a command."""
_BASES = typer.BadParameter.__mro__
_WRONG_USE_ERRORS: Any = _BASES[_BASES.index(Exception) - 1]
"""The base class of typer's usage errors; its name depends on typer's version."""
_HANDLERS: list[Any] = []
"""Handlers installed by explain_aborts; they must live as long as the process."""


def load(command: str | None = None) -> None:
    """Add ``command`` to ``app``; if it is unknown, add all commands, for help and suggestions."""
    for module in dict.fromkeys([COMMANDS[command]] if command in COMMANDS else COMMANDS.values()):
        importlib.import_module(f"{__package__}.{module}")


def command_line() -> int:
    """Run ``main`` and exit."""
    _decode_names_as_utf8()
    explain_aborts(_wants_json(sys.argv[1:]))
    replace_standard_streams()
    _stop_on_signals()
    try:
        code = flushed(main())
        if _STOPPED.is_set():
            os._exit(code)  # the interpreter would wait for threads in native code
        return code
    finally:
        gc.freeze()  # skips the final garbage collection


def _stop_on_signals() -> None:
    """Raise KeyboardInterrupt on Ctrl-C and on SIGTERM, unless the parent ignores these signals.

    A run that a scheduler stops this way commits its work, releases its leases and stops its child processes.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.SIG_DFL:  # there is nothing to clean up
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)


def _decode_names_as_utf8() -> None:
    """Restart in Python's UTF-8 mode if the locale uses another encoding: indexes store file names in UTF-8.

    UTF-8 arguments are left unchanged; others are decoded with the locale's encoding.
    """
    if sys.getfilesystemencoding() == "utf-8" or os.environ.get("PYTHONUTF8") == "1":
        return
    variables = dict(os.environ) | {"PYTHONUTF8": "1"}
    variables.setdefault("PYTHONIOENCODING", f"{sys.getfilesystemencoding()}:backslashreplace")
    os.execve(sys.executable, [os.fsencode(sys.executable), *map(_as_utf8, sys.orig_argv[1:])], variables)


def _as_utf8(argument: str) -> bytes:
    given = os.fsencode(argument)
    try:
        given.decode()
    except UnicodeDecodeError:
        return argument.encode("utf-8", "surrogateescape")
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Failures print one line, or a JSON object with ``--json``."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json = _wants_json(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    quiet_libraries()
    try:
        as_log = wants_json("--log-json" in _before_command(arguments), os.environ)
    except UsageError as error:
        return _fail_with(error, as_json)
    with own_appearance(), json_lines() if as_log else nullcontext(), log_levels():
        return _run(arguments, as_json)


def _wants_json(arguments: Sequence[str]) -> bool:
    return "--json" in takewhile(lambda argument: argument != "--", arguments)


def explain_aborts(as_json: bool) -> None:
    """Print the reason if native code aborts the process: Rust aborts on some panics.

    An abort raises no exception, and Python runs its own signal handlers only in the main thread, between two
    instructions. This handler runs immediately, in the thread that receives the signal.
    """
    import ctypes

    def explain(_: int) -> None:
        try:
            _fail_with(native_crash_error("it has aborted the command"), as_json)
            sys.stdout.flush()
        finally:
            os._exit(WRONG_USE)

    _HANDLERS.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(explain))
    with suppress(OSError, AttributeError):  # no known C library, as on Windows
        ctypes.CDLL(None).signal(int(signal.SIGABRT), _HANDLERS[-1])


def _run(arguments: Sequence[str], as_json: bool) -> int:
    if low := address_space_warning():
        warn(low)
    kept = ""
    before = list(_before_command(arguments))
    command = next(iter(arguments[len(before) :]), None)
    if command in _MEANT_OPTIONS:
        arguments = [*before, *arguments[len(before) + 1 :], _MEANT_OPTIONS[command]]
        before = list(_before_command(arguments))
        command = next(iter(arguments[len(before) :]), None)
    try:
        load(None if "--help" in before else command)
        _check_arguments(command, arguments)
        tree = _command_tree(len(app.registered_commands), len(app.registered_groups))
        code = int(tree(args=list(arguments), prog_name="driftline", standalone_mode=False) or DONE)
    except _WRONG_USE_ERRORS as error:
        message, fix = _usage_message(error, command)
        message, fix = shortened(message), shortened(fix)
        return _fail(WRONG_USE, "usage", f"{message}. {fix}", as_json, fix=fix)
    except DriftlineError as error:
        _say_causes(error)
        return _fail_with(error, as_json)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except Interrupted as error:
        code, kept = _INTERRUPTED, str(error)
    except BaseException as error:
        if is_panic(error):
            return _fail_with(native_crash_error(str(error).partition("\n")[0][:300]), as_json)
        if not isinstance(error, Exception):
            raise
        if failure := as_out_of_memory(error) or _environment_error(error):
            return _fail_with(failure, as_json and not isinstance(error, Unwritable))
        # A bug, or an unexpected failure. Python's own exit code would be 1, which means "nothing found".
        if not writes_json():
            print_traceback()
        return _fail(FAILED, "unexpected", f"unexpected {type(error).__name__}: {error}", as_json)
    if code == _INTERRUPTED:
        fix = f"{kept or 'Committed work is kept'}: run the same command again to continue."
        fix = "" if command in _READERS else fix
        _STOPPED.set()
        return _fail(FAILED, "interrupted", f"interrupted. {fix}".rstrip(), as_json, fix=fix)
    return code


@cache
def _command_tree(commands: int, groups: int) -> Any:
    """Return the commands added to ``app`` so far, ready to parse; typer would rebuild them on each call."""
    return typer.main.get_command(app)


def _before_command(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the options before the command, and their values."""
    previous = ""
    for argument in arguments:
        if not argument.startswith("-") and previous != "--color":
            return
        yield argument
        previous = argument


def _usage_message(error: Any, command: str | None) -> tuple[str, str]:
    """Return a usage error's message (no final period) and fix; typer suggests too many similar names."""
    of = f"{command} " if command in COMMANDS else ""
    message, fix = error.format_message().rstrip("."), f"Try 'driftline {of}--help'."
    if message.startswith("No such option"):
        option, known = error.option_name, {name for each in error.ctx.command.params for name in each.opts}
        known |= {name for each in error.ctx.command.params for name in each.secondary_opts}
        habits = [name for name, spellings in _SPELLINGS.items() if option in spellings.split() and name in known]
        names = {name.strip("-"): name for name in error.possibilities or ()}  # dashes would make all options similar
        close = [names[name] for name in difflib.get_close_matches(option.strip("-"), names, n=1, cutoff=0.7)]
        close, needless = habits or close, _NEEDLESS.get(str(command), {}).get(option)
        meant = f"Did you mean {close[0]}? " if close else ""
        message, fix = f"No such option: {option}", f"{needless} {fix}" if needless else f"{meant}{fix}"
    elif message.startswith("No such command"):
        group, named = error.ctx.command_path.partition(" ")[2], message.split("'")[1]
        commands = error.ctx.command.list_commands(error.ctx)
        verbs = [each for each in _VERBS.get(named, ()) if each in commands]
        close = verbs or difflib.get_close_matches(named, commands, n=1)
        other = "" if group else "To search for words: driftline search WORDS. "
        message = f"No such command {f'{group} {named}'.strip()!r}"
        fix = f"Did you mean {f'{group} {close[0]}'.strip()!r}? {fix}" if close else f"{other}{fix}"
    elif message.startswith("Missing argument"):
        name = message.split("'")[1].rstrip(".")
        hint = _HINTS.get((str(command), name), "")
        message, fix = f"The argument {name} is missing", f"{hint}{fix}"
    elif message.startswith(("Missing command", "Usage:")):  # click prints the usage of a group instead
        message = "Missing command"
        fix = f"Add one of {', '.join(error.ctx.command.list_commands(error.ctx))}. {fix}"
    elif message.startswith("Got unexpected extra argument"):
        if all(each.param_type_name == "option" for each in error.ctx.command.params):
            given = message.rpartition("(")[2].rstrip(")")
            return f"'{error.ctx.command_path}' takes options only, no argument {given!r}", fix
        fix = f'Quote several words, as in "two words". {fix}'
    message = re.sub(r"is not a valid int(eger)?( range)?$", "is not an integer", message.rstrip("?. "))
    return re.sub(r"is not a valid float( range)?$", "is not a number", message), fix


def _check_arguments(command: str | None, arguments: Sequence[str]) -> None:
    """Raise UsageError for an argument that is not UTF-8, unless it is a file name of grep."""
    for argument in arguments:
        if command != "grep" and not is_unicode(argument):
            fix = "Check the encoding of the terminal; files with such names must be renamed."
            raise UsageError("An argument is not valid UTF-8", repr(argument)[:100], fix)


def _environment_error(error: Exception) -> DriftlineError | None:
    """Translate ``error`` if the process's working directory or standard streams caused it."""
    if isinstance(error, Unwritable):
        return unwritable(error)
    if isinstance(error, FileNotFoundError):
        try:
            os.getcwd()
        except FileNotFoundError:
            return UsageError("The current directory no longer exists", fix="Change to another directory.")
    return None


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Log to standard error as JSON lines, like DRIFTLINE_LOG=json.")
    ] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"driftline {version_of('driftline')}")
        raise typer.Exit(DONE)
    if context.invoked_subcommand is None:
        from driftline.flows.commands.status import show_next_steps

        raise typer.Exit(show_next_steps())


def _say_causes(error: BaseException) -> None:
    """Print the chain of causes of ``error`` if the command is verbose."""
    cause = error.__cause__ or error.__context__
    if appearance().verbose and cause is not None:
        _say_causes(cause)
        warn(f"caused by {type(cause).__name__}: {cause}")


def _fail_with(error: DriftlineError, as_json: bool) -> int:
    return _fail(error.exit_code, error.kind, str(error), as_json, error.where, error.fix)


def _fail(code: int, kind: str, message: str, as_json: bool, where: str = "", fix: str = "") -> int:
    if "`" in message:
        from driftline.tasks.search.request import in_flags

        message, fix = in_flags(message), in_flags(fix)
    if writes_json():
        fields = {"error": kind, "where": where, "fix": fix}
        logging.getLogger("driftline").error("%s", message, extra={"fields": fields}, exc_info=kind == "unexpected")
    if as_json:
        try:
            print_json({"error": kind, "message": message, "where": where, "fix": fix})
        except Unwritable:
            warn(message)
    elif not writes_json():
        warn(message)
    return code


class Unwritable(OSError):
    """A failed write to standard output; a workspace on a full disk raises another error."""


_failures: list[Unwritable] = []
"""Failed writes; the command-line library swallows failures to print its help."""


class _Output(io.TextIOWrapper):
    """Standard output: a closed pipe (``| head``) is not an error; any other failed write raises Unwritable."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            return self._failed(error)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> int:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # Python flushes its buffer again at exit
        if isinstance(error, BrokenPipeError):
            return 0
        _failures.append(Unwritable(error.errno, error.strerror))
        raise _failures[0] from error


class _Closed(io.TextIOBase):
    """Standard output of a process that was started with none."""

    encoding = "utf-8"

    @property
    def buffer(self) -> BinaryIO:
        raise Unwritable(errno.EBADF, "it is closed")

    def writable(self) -> bool:
        return True

    def write(self, _: str) -> int:
        raise Unwritable(errno.EBADF, "it is closed")


def replace_standard_streams() -> None:
    """Make failed writes to standard output raise Unwritable, and replace closed streams."""
    if sys.stdin is None:
        sys.stdin = _devnull()
    if sys.stderr is None:
        sys.stderr = _devnull()
    out: object = sys.stdout
    if out is None:
        sys.stdout = _Closed()
    elif isinstance(out, io.TextIOWrapper):
        options: dict[str, Any] = {"line_buffering": out.line_buffering, "write_through": out.write_through}
        encoding, errors = out.encoding, out.errors
        sys.stdout = _Output(out.detach(), encoding=encoding, errors=errors, **options)


def unwritable(error: Unwritable) -> StorageError:
    """Return the error for a failed write to standard output."""
    return StorageError("Cannot write to standard output", str(error.strerror), "Redirect it elsewhere.")


def flushed(code: int) -> int:
    """Flush buffered output; return ``code``, or a failed write's exit code."""
    try:
        sys.stdout.flush()
        if _failures and code == 0:
            raise _failures[0]
    except Unwritable as error:
        warn(str(unwritable(error)))
        return FAILED
    return code


def _devnull() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_RDWR), "w")

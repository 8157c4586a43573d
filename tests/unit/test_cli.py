"""The command line without a workspace: usage errors, help, version, and failure reports."""

from __future__ import annotations

import gc
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from typer.models import CommandInfo

from driftline import __main__
from driftline.flows.commands import main as cli
from driftline.flows.commands import status
from driftline.flows.commands.app import EXAMPLES, GROUPS, OPTION_GROUPS, app
from driftline.flows.config import index_request
from driftline.flows.output import plain_text
from driftline.storage.errors import DeletionRefused, StorageError, UnknownScheme, UsageError
from driftline.storage.option_table import Options
from driftline.tasks.search import request
from driftline.tasks.search.request import SearchRequest

HEAVY = ("prefect", "distributed", "dask", "lance", "pyarrow", "numpy", "model2vec", "sqlalchemy", "pydantic")


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory without a workspace."""
    monkeypatch.delenv("DRIFTLINE_WORKSPACE", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def failing(*_: Any) -> str:
        raise error

    monkeypatch.setattr(status, "open_for_reading", failing)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["index"], "SOURCE"),
        (["index", ".", "--no-such-option"], "--no-such-option"),
        (["index", ".", "--max-delete-fraction", "1.5"], "--max-delete-fraction"),
        (["index", ".", "--indexes", "some"], "--indexes"),
        (["index", ".", "--workers", "0"], "--workers"),
        (["index", "s3://bucket/code"], "--workspace"),
        (["search"], "QUERY"),
        (["search", ""], "The query is empty"),
        (["search", "-F", "-i", "Lease"], "--fixed=-i"),
        (["search", "-E", "--files"], "--regex=--files"),
        (["search", "-Fi", "Lease"], "-i before -F"),
        (["search", "-iFw", "Lease"], "-w before -F"),
        (["index", "--include", "--full"], "--include=--full"),
        (["search", "x", "--top-k", "-1"], "--top-k"),
        (["search", "x", "--top-k", "many"], "--top-k"),
        (["search", "x", "-n", "-1"], "--n-lines"),
        (["grep", "x"], "FILE"),
        (["grep", "x", "nowhere.txt"], "nowhere.txt"),
        (["mcp"], "driftline index"),
        (["mcp", "--transport", "smoke"], "--transport"),
        (["status"], "driftline index"),
        (["sources"], "driftline index"),
        (["remove", "source:web"], "driftline index"),
        (["no-such-command"], "no-such-command"),
    ],
)
def test_a_usage_error_is_one_line_on_standard_error_and_exit_code_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("driftline: ")
    assert err.count("\n") == 1
    assert complaint in err


@pytest.mark.parametrize("arguments", [["status"], ["search", "x", "--top-k", "-1"], ["index", ".", "--nonsense"]])
def test_with_json_an_error_is_one_object_on_standard_output(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out)["error"] in {"usage", "workspace_not_found"}


@pytest.mark.parametrize(
    ("arguments", "query"),
    [
        (["lease", "-file:test"], "lease -file:test"),
        (["-file:test", "lease", "--top-k", "3"], "-file:test lease"),
        (["-lang:markdown lease", "holder"], "-lang:markdown lease holder"),
        (["-F", "-file:test"], ""),
        (["-F", "x", "--", "-file:test", "-i"], "-file:test -i"),
        (["--fixed=-i", "-i", "x"], "x"),
    ],
)
def test_an_excluding_term_is_a_word_of_the_query(
    arguments: list[str], query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def note(_: str, request: SearchRequest, *__: Any, **___: Any) -> int:
        asked.append(request.query)
        return 0

    monkeypatch.setattr("driftline.flows.commands.search.search_on", note)
    assert cli.main(["search", "--server", "http://host", *arguments]) == 0
    assert asked == [query]


def test_json_after_a_double_dash_is_not_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["search", "--", "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_driftline_without_a_command_says_what_to_do_if_nothing_is_indexed(
    nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert str(nowhere) in out
    assert "driftline index ." in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serch", "x"], "No such command 'serch'. Did you mean 'search'? Try 'driftline --help'."),
        (
            ["index", ".", "--includ", "x"],
            "No such option: --includ. Did you mean --include? Try 'driftline index --help'.",
        ),
        (["sql", "two", "words"], '"two words"'),
        (["search", "x", "--includ", "y"], "No such option: --includ. Try 'driftline search --help'."),
        (["search", "x", "-l"], "No such option: -l. Did you mean --files? Try"),
        (["search", "x", "-A", "3"], "No such option: -A. Did you mean -C? Try"),
        (["-V"], "No such option: -V. Did you mean --version? Try"),
        (["search", "x", "-e", "y"], "No such option: -e. Did you mean --regex? Try"),
        (["search", "x", "--limit", "3"], "No such option: --limit. Did you mean --top-k? Try"),
        (["search", "x", "-s"], "No such option: -s. Did you mean --case-sensitive? Try"),
        (["search", "-rn", "x"], "No such option: -r. A search covers all indexed files, and names them. Try"),
        (["status", "-w", "x"], "No such option: -w. Did you mean --workspace? Try"),
        (["sql", "--csv", "SELECT 1"], "No such option: --csv. Did you mean --format? Try"),
        (["index", ".", "--ignore", "x"], "No such option: --ignore. Did you mean --exclude? Try"),
        (["find", "x"], "No such command 'find'. Did you mean 'search'? Try"),
        (["add", "."], "No such command 'add'. Did you mean 'index'? Try"),
        (["agents", "remove", "x"], "No such command 'agents remove'. Did you mean 'agents uninstall'? Try"),
        (["branches", "rm", "x"], "No such command 'branches rm'. Did you mean 'branches delete'? Try"),
        (["search", "x", "--max-count", "3"], "No such option: --max-count. Did you mean --top-k? Try"),
        (["search", "x", "--top_k", "3"], "No such option: --top_k. Did you mean --top-k? Try"),
        (["grep", "x", ".", "-m1"], "No such option: -m. Did you mean --top-k? Try"),
        (["status", "-l"], "No such option: -l. Try 'driftline status --help'."),
        (["who", "renews", "it"], "No such command 'who'. To search for words: driftline search WORDS."),
        (["branches", "lst"], "No such command 'branches lst'. Did you mean 'branches list'?"),
        (["branches", "x"], "No such command 'branches x'. Try 'driftline branches --help'."),
        (["branches", "--workspace", "x", "prune"], "Write: driftline branches prune --workspace ..."),
        (["sources", "list"], "'driftline sources' takes options only, no argument 'list'."),
        (["memory"], "Missing command. Add one of put, get, list,"),
        (["token"], "Missing command. Add one of create, list, revoke. Try"),
        (["grep", "x"], "The argument FILE is missing. Specify files or folders, such as '.'"),
        (["search", "x", "--top-k", "many"], "'many' is not an integer."),
    ],
)
def test_wrong_use_suggests_the_nearest_right_one(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["help"], ["--help"]),
        (["help", "search"], ["search", "--help"]),
        (["help", "branches", "prune"], ["branches", "prune", "--help"]),
        (["version"], ["--version"]),
    ],
)
def test_help_and_version_are_commands_as_well(
    words: list[str], option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = [(cli.main(each), capsys.readouterr().out) for each in (words, option)]
    assert shown[0] == shown[1]
    assert shown[0][0] == 0
    assert shown[0][1]


@pytest.mark.parametrize(
    "command", ["index", "search", "grep", "status", "sources", "remove", "cleanup", "verify", "ci", "runs", "report"]
)
def test_each_command_has_help_and_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("driftline 0.")


def test_each_error_class_sets_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, DeletionRefused("Too many deletions", "source:web", "Confirm with 1."))
    assert cli.main(["status"]) == 3
    assert capsys.readouterr().err == "driftline: Too many deletions: source:web. Confirm with 1.\n"


def test_a_newline_in_an_error_stays_on_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, UnknownScheme("No file system", "odd\nname://x"))
    assert cli.main(["status"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_interrupted_search_exits_with_3_and_has_nothing_to_resume(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    assert cli.main(["status"]) == 3
    assert capsys.readouterr().err == "driftline: interrupted.\n"  # it only reads


def test_an_unexpected_exception_keeps_its_traceback_and_exits_with_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, ZeroDivisionError("surprise"))
    assert cli.main(["status", "--json"]) == 3
    out, err = capsys.readouterr()
    assert "Traceback" in err
    assert json.loads(out)["error"] == "unexpected"


def test_the_command_line_and_its_first_reads_of_a_bucket_start_without_heavy_libraries() -> None:
    code = (
        "import sys, driftline.flows.commands.main as main; main.load(); "
        "import driftline.storage.objects.bucket, driftline.storage.workspace.early_reads; "
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("given", [None, "4"])
def test_numpy_starts_no_threads_unless_their_number_is_given(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", str(given))
    if given is None:
        monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_IGN)  # keep the handler of this process
    monkeypatch.setattr(gc, "set_threshold", lambda _: None)
    monkeypatch.setattr(cli, "command_line", lambda: 7)
    assert __main__.run() == 7
    assert os.environ["OPENBLAS_NUM_THREADS"] == (given or "1")


def test_an_interrupt_before_a_command_begins_shows_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "typer.py").write_text("import time; print('importing', flush=True); time.sleep(900)")
    environment = dict(os.environ) | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "driftline"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"importing\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate() == (b"", b"")
    assert process.returncode == -signal.SIGINT

    def interrupted(_: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load", interrupted)
    assert cli.main(["compact"]) == 3
    assert "run the same command again" in capsys.readouterr().err


def test_each_command_is_in_the_module_that_is_loaded_for_it() -> None:
    cli.load()
    modules: dict[str, str] = {}
    for group in app.registered_groups:
        assert group.name is not None
        assert group.typer_instance is not None
        modules[group.name] = module_of(group.typer_instance.registered_commands[0])
    modules |= {command_name(command): module_of(command) for command in app.registered_commands}
    assert modules == cli.COMMANDS


def command_name(command: CommandInfo) -> str:
    assert command.callback is not None
    return command.name or command.callback.__name__


def module_of(command: CommandInfo) -> str:
    assert command.callback is not None
    return command.callback.__module__.rpartition(".")[2]


def test_a_command_does_not_import_other_commands() -> None:
    code = "import sys, driftline.flows.commands.main as main; main.load('search'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    folder = "driftline.flows.commands."
    others = {folder + module for module in cli.COMMANDS.values()} - {folder + "search"}
    assert folder + "search" in loaded
    assert not others & set(loaded)


def test_help_before_a_command_shows_all_commands() -> None:
    command = [sys.executable, "-m", "driftline", "--help", "search"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert {name for name in cli.COMMANDS if f"\n  {name} " not in shown} == set()


def test_help_lists_each_command_in_one_group() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(cli.COMMANDS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_help_shows_examples_that_the_command_accepts(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*name.split(), "-h"]) == 0
    shown = capsys.readouterr().out
    for example in EXAMPLES[name]:
        assert example in shown
        program, *arguments = shlex.split(example)
        assert program == "driftline"
        context = None
        command: Any = typer.main.get_command(app)
        for part in name.split():
            context = command.make_context(part, [], parent=context, resilient_parsing=True)
            command = command.get_command(context, part)
        with command.make_context(name, arguments[len(name.split()) :], parent=context):
            pass


@pytest.mark.parametrize("name", ["index", "search", "ci", "web"])
def test_long_help_lists_examples_and_then_each_option_below_its_group(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([name, "-h"]) == 0
    groups: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        if line and not line.startswith(" "):
            groups[line.removesuffix(":")] = []
        elif match := re.match(r"  (?:-\w, )*(--[\w-]+)", line):
            next(reversed(groups.values())).append(match[1])
    titles = [title for title in groups if title in OPTION_GROUPS]
    assert len(titles) > 3
    assert titles == sorted(titles, key=OPTION_GROUPS.index)
    if name in EXAMPLES:
        assert [*groups].index("Examples") < [*groups].index(titles[0])
    command: Any = typer.main.get_command(app)
    listed = [option for title in titles for option in groups[title]]
    wanted = {max(each.opts, key=len) for each in command.commands[name].params if each.opts[0].startswith("-")}
    assert sorted(listed) == sorted(wanted | {"--help"})
    for row in {"index": index_request.OPTIONS, "search": request.OPTIONS}.get(name, Options({})).values():
        assert "command" not in row.only_in or row.flag.partition("/")[0] in groups[row.group or "Options"]


def test_the_shell_completes_commands() -> None:
    words = {"_DRIFTLINE_COMPLETE": "complete_bash", "COMP_WORDS": "driftline sea", "COMP_CWORD": "1"}
    program = [str(Path(sys.executable).parent / "driftline")]
    done = subprocess.run(program, env=os.environ | words, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["search"]


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_takes_the_options_of_output(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert (
        all(option in shown for option in ("--quiet", "--verbose", "--color"))
        or "Index:" in shown
        or "Commands:" in shown
    )


@pytest.mark.parametrize(
    ("arguments", "quiet", "verbose", "color"),
    [
        (["status"], False, 0, "auto"),
        (["-q", "--color", "never", "status"], True, 0, "never"),
        (["status", "-vv", "--color=always"], False, 2, "always"),
        (["--color", "always", "status", "--color", "never"], False, 0, "never"),
        (["sources", "--quiet"], True, 0, "auto"),
    ],
)
def test_output_options_may_precede_or_follow_the_command(
    arguments: list[str], quiet: bool, verbose: int, color: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[plain_text.Appearance] = []

    def stop(*_: Any) -> str:
        seen.append(plain_text.appearance())
        raise UsageError("enough")

    monkeypatch.setattr(status, "open_for_reading", stop)
    assert cli.main(arguments) == 2
    assert seen == [plain_text.Appearance(quiet, verbose, color)]
    assert plain_text.appearance() == plain_text.Appearance()


def test_an_unknown_color_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--color", "red"]) == 2
    assert "auto, always, never" in capsys.readouterr().err


def test_a_verbose_command_says_what_has_caused_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: Any) -> str:
        try:
            raise OSError("no route to the host")
        except OSError as error:
            raise StorageError("The store does not answer", "s3://x") from error

    monkeypatch.setattr(status, "open_for_reading", failing)
    for option, count in (("-v", 1), ("-q", 0)):
        assert cli.main(["status", option]) == 3
        assert capsys.readouterr().err.count("caused by OSError: no route to the host") == count


@pytest.mark.parametrize("command", [[], ["index"], ["search"], ["token"], ["memory", "search"]])
def test_help_fits_into_a_narrow_terminal_without_breaking_names(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(columns: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        assert cli.main([*command, "--help"]) == 0
        return capsys.readouterr().out.splitlines()

    narrow, wide = shown(40), shown(80)
    assert max(map(len, wide)) <= 80
    # A name that is wider than the terminal is on a separate line, and an example is one line, to copy.
    assert all(len(line) <= 40 or len(line.split()) <= 3 or "  driftline " in line for line in narrow)
    assert set(" ".join(wide).split()) == set(" ".join(narrow).split())
    assert not [word for word in ("range>", "(yes)", "(no)", "x>=0") if word in " ".join(wide)]


@pytest.mark.parametrize("command", [["serve"], ["deploy"]])
def test_usage_data_of_prefect_is_disabled_before_it_is_imported(
    command: list[str], nowhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Scheduling(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise UsageError(f"DO_NOT_TRACK={os.environ.get('DO_NOT_TRACK')}")

    (nowhere / "driftline.toml").write_text("")
    monkeypatch.setenv("DO_NOT_TRACK", "")
    monkeypatch.delenv("DO_NOT_TRACK")
    monkeypatch.setitem(sys.modules, "driftline.flows.scheduling.deployments", Scheduling("deployments"))
    assert cli.main([*command, "--config", "driftline.toml"]) == 2
    assert "DO_NOT_TRACK=1" in capsys.readouterr().err

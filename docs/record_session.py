"""Record the terminal sessions of README.md, of the home page and of guides: run the commands for real, and show what
they print.

    python docs/record_session.py   # into README.md, images/session.svg, how-it-works/search.md,
                                    # guides/{sql,exact-search,documents}.md

The sessions run in temporary copies of ``storage/``, shown as ``~/driftline/storage``.
"""

from __future__ import annotations

import html
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
SESSION = ROOT / "docs" / "images" / "session.svg"
README = ROOT / "README.md"
SQL = ROOT / "docs" / "guides" / "sql.md"
EXACT = ROOT / "docs" / "guides" / "exact-search.md"
EXPLAINED = ROOT / "docs" / "how-it-works" / "search.md"
DOCUMENTS = ROOT / "docs" / "guides" / "documents.md"
SQL_SOURCES = {"tasks": ("search", "definitions"), "docs": ("docs", "guides")}
"""What the questions of the guide on SQL are asked about: folders, and the teams to which they
belong; each has a folder that only its second run indexes."""
SQL_OWNERS = "* @acme/core\nsearch/ @acme/search\nscanning/ @acme/ingest\nmaintenance/ @acme/operations\n"
"""The CODEOWNERS of the first of them."""
README_COMMANDS = (
    "driftline index storage",
    "cd storage",
    'driftline search "lost the race against another run" --top-k 2 -n 0',
    "driftline index .",
    "driftline status",
)
COMMANDS = (
    "cd storage",
    "driftline index .",
    'driftline search "lost the race against another run" --top-k 2 -n 0',
    'echo "# The slower writer gives up." > example.py',
    "driftline index .",
    'driftline search "which writer gives up" --top-k 1 -n 0',
)
WIDTH = 72
SHOWN_FOLDER = "~/driftline"
BLOCK = re.compile(r"(?<=\[start:session\] -->\n```console\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)
"""The session in README.md."""

_QUESTION = re.compile(r'(?<=^```console\n)(\$ driftline sql "[^"]*")\n.*?(?=^```$)', re.DOTALL | re.MULTILINE)
_SEARCH = re.compile(r"(?<=^```console\n)\$ driftline search .*?(?=^```$)", re.DOTALL | re.MULTILINE)
_REMOTE_FONT = re.compile(r"@font-face \{\{.*?\}\}\n?", re.DOTALL)
_FORMAT = _REMOTE_FONT.sub("", CONSOLE_SVG_FORMAT)
_STYLE = re.compile(r"^ *(\.session-r\d+ \{.*\})$", re.MULTILINE)
_TEXT = re.compile(r'<text class="[^"]*" x="[^"]*" y="(?P<y>[^"]*)"[^>]*>(?P<text>[^<]*)</text>')
_RESULT = re.compile(r"^(?P<location>\S+:\d+)  (?P<score>-?\d+\.\d\d.*)$")


def main() -> int:
    README.write_text(BLOCK.sub(lambda _: transcript(README_COMMANDS), README.read_text(), count=1))
    SQL.write_text(answered(SQL.read_text()))
    EXACT.write_text(searched(EXACT.read_text()))
    EXPLAINED.write_text(searched(EXPLAINED.read_text(), "storage"))
    DOCUMENTS.write_text(extracted(DOCUMENTS.read_text()))
    SESSION.write_text(drawn())
    print(f"{README.name}, {SESSION.relative_to(ROOT)}: {len(README_COMMANDS)} and {len(COMMANDS)} commands")
    return 0


def drawn() -> str:
    """Return the session of the home page, run anew, as an SVG."""
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), force_terminal=True, legacy_windows=False)  # noqa: SIM115
    for command, output in session(COMMANDS):
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        for line in output.splitlines():
            console.print(styled(line), soft_wrap=False, overflow="ellipsis", no_wrap=True)
    dark, light = (
        console.export_svg(title="driftline", theme=theme, clear=False, code_format=_FORMAT, unique_id="session")
        for theme in (SVG_EXPORT_THEME, DEFAULT_TERMINAL_THEME)
    )
    colours = "\n".join([*_STYLE.findall(light), ".session-title { fill: #000 }", "rect[rx] { fill: #fff }"])
    return dark.replace("</style>", f"@media (prefers-color-scheme: light) {{\n{colours}\n}}\n    </style>", 1)


def lines_of(svg: str) -> str:
    """Return the lines of text that an SVG of ``drawn`` shows."""
    lines: dict[float, list[str]] = {}
    for match in _TEXT.finditer(svg):
        lines.setdefault(float(match["y"]), []).append(html.unescape(match["text"]).replace("\xa0", " "))
    return "\n".join("".join(parts).rstrip() for _, parts in sorted(lines.items()))


def answered(page: str) -> str:
    """Return the text of the guide on SQL with the answer of each question, run anew."""
    with tempfile.TemporaryDirectory() as temporary:
        top = Path(temporary).resolve()
        for source, (team, later) in SQL_SOURCES.items():
            copy_package(source, top)
            (top / "tasks" / "CODEOWNERS").write_text(SQL_OWNERS)
            (top / source / later).rename(top / later)
            index = f"driftline index {source} --workspace .driftline --entity org:acme/project:{team}/source:{source}"
            run(index, top)
            (top / later).rename(top / source / later)
            run(index, top)

        def answer(question: re.Match[str]) -> str:
            lines = run(question[1].removeprefix("$ "), top).splitlines()
            return "\n".join([question[1], *(line.rstrip() for line in lines), ""])

        return _QUESTION.sub(answer, page)


def searched(page: str, folder: str = "") -> str:
    """Return the text of a page with what its searches of ``storage/`` print in ``folder``, run anew."""
    with tempfile.TemporaryDirectory() as temporary:
        top = Path(temporary).resolve()
        copy_package("storage", top)
        run("driftline index storage --workspace .driftline", top)
        return with_results(page, lambda command: without_times(run(f"{command} 2>&1", top / folder)))


def without_times(output: str) -> str:
    """Return ``output`` without the times of an explanation, wrapped to the width of a page."""
    first, _, rest = re.sub(r" +$", "", output, flags=re.MULTILINE).partition("\n")
    if "; open " not in first:
        return output
    return f"{textwrap.fill(first.partition('; open ')[0] + '; ...', 120)}\n{rest}"


def extracted(page: str) -> str:
    """Return the text of the guide on documents with what its search prints, run anew over a file of each format."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve() / "birds"
        write_herons(folder)
        run("driftline index . --archives", folder)
        return with_results(page, lambda command: run(command, folder))


def with_results(page: str, print_of: Callable[[str], str]) -> str:
    """Return the text of a guide with ``print_of`` each search that it shows."""

    def results(block: re.Match[str]) -> str:
        commands = re.findall(r"^\$ (driftline .*)$", block[0], re.MULTILINE)
        return "\n".join(f"$ {command}\n{print_of(command)}" for command in commands)

    return _SEARCH.sub(results, page)


def write_herons(folder: Path) -> None:
    """Write a document of each format into ``folder``."""
    sys.path.insert(0, str(ROOT))
    from tests.support.documents import HERONS

    folder.mkdir()
    for name, content in HERONS.items():
        (folder / name).write_bytes(content)


def transcript(commands: Sequence[str]) -> str:
    """Return ``commands`` behind prompts, each with its output, and a blank line between outputs."""
    parts = [f"$ {command}\n{output}" + ("\n" if output else "") for command, output in session(commands)]
    return "".join(parts).removesuffix("\n")


def session(commands: Sequence[str]) -> list[tuple[str, str]]:
    """Run ``commands`` above a copy of ``storage/``; return each with its output. ``cd FOLDER`` applies to the rest."""
    with tempfile.TemporaryDirectory() as temporary:
        top = folder = Path(temporary).resolve()
        copy_package("storage", top)
        done = []
        for command in commands:
            if command.startswith("cd "):
                folder /= command.removeprefix("cd ")
                done.append((command, ""))
            else:
                done.append((command, shown(run(command, folder), top)))
        return done


def shown(output: str, top: Path) -> str:
    """Return ``output`` with ``SHOWN_FOLDER`` in place of ``top``. Columns to the right of it stay aligned."""
    path = re.compile(re.escape(str(top)) + r"(?P<below>\S*)(?P<gap> {2,})?")
    padding = " " * max(0, len(str(top)) - len(SHOWN_FOLDER))
    return path.sub(lambda m: f"{SHOWN_FOLDER}{m['below']}{m['gap'] + padding if m['gap'] else ''}", output)


def copy_package(name: str, folder: Path) -> None:
    """Copy a package into ``folder``, without what git ignores."""
    shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".driftline", "*.pyc"))


def run(command: str, folder: Path) -> str:
    """Return what ``command`` prints in ``folder``."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DRIFTLINE_")}
    programs = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env={**environment, "PATH": programs, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{shlex.quote(command)} failed: {done.stderr}")
    return done.stdout


def styled(line: str) -> Text:
    """Style a line of output: results bright, context dim."""
    if match := _RESULT.fullmatch(line):
        return Text.assemble((match["location"], "bold cyan"), "  ", (match["score"], "yellow"))
    if re.match(r"^ +\d+- ", line):
        return Text(line, "bright_black")
    return Text(line)


if __name__ == "__main__":
    sys.exit(main())

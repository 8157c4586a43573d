"""Record the terminal session that README.md shows: run the commands for real, and draw what they print.

    python docs/record_session.py       # writes docs/images/session.svg

The session runs in a temporary copy of ``storage/``. Its folder is shown as ``~/driftline``.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
SESSION = ROOT / "docs" / "images" / "session.svg"
COMMANDS = (
    "driftline index .",
    'driftline search "the writer that lost the race" --top-k 2 -n 1',
    'echo "# The slower writer gives up." >> leases/lease.py',
    "driftline index .",
    'driftline search "who gives up when two write" --top-k 1 -n 0',
)
WIDTH = 100
SHOWN_FOLDER = "~/driftline/storage"

_REMOTE_FONT = re.compile(r"@font-face \{\{.*?\}\}\n?", re.DOTALL)
_RESULT = re.compile(r"^(?P<place>\S+:\d+)  (?P<score>-?\d\.\d\d)$")


def main() -> int:
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), force_terminal=True, legacy_windows=False)  # noqa: SIM115
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder).resolve() / "storage"
        shutil.copytree(ROOT / "storage", tree, ignore=shutil.ignore_patterns("__pycache__", ".driftline"))
        for command in COMMANDS:
            console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
            for line in run(command, tree).replace(str(tree), SHOWN_FOLDER).splitlines():
                console.print(styled(line), soft_wrap=False, overflow="ellipsis", no_wrap=True)
    SESSION.write_text(console.export_svg(title="driftline", code_format=_REMOTE_FONT.sub("", CONSOLE_SVG_FORMAT)))
    print(f"{SESSION.relative_to(ROOT)}: {len(COMMANDS)} commands")
    return 0


def run(command: str, folder: Path) -> str:
    """What ``command`` prints in ``folder``."""
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
    """A line of output: results stand out, context steps back."""
    if match := _RESULT.fullmatch(line):
        return Text.assemble((match["place"], "bold cyan"), "  ", (match["score"], "yellow"))
    if re.match(r"^ +\d+- ", line):
        return Text(line, "bright_black")
    return Text(line)


if __name__ == "__main__":
    sys.exit(main())

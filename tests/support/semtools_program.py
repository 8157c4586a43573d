"""Stand-ins for the semtools programs, with the same options, formats and exit codes.

- 1.5.1 and 2.0.0: a program called ``search``, which prints text and knows no ``--json``;
- 3.0.1: ``semtools search``, with ``--json``, and without ``--version`` (exit code 2, as for every unknown option);
- 3.4.0, not released: the same with ``--version``.

They compare words instead of meanings: the distance is 1 minus the share of words that query and line have in common.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

VERSIONS = ("1.5.1", "2.0.0", "3.0.1")
CALLS = "calls.jsonl"
"""The file next to the program that has a line for each call: its arguments as a JSON list."""
FAILURE_VARIABLE, SLEEP_VARIABLE = "SEMTOOLS_FAILURE", "SEMTOOLS_SLEEP_SECONDS"
"""Variables that hold a text to print to standard error before exit code 1, and a time to sleep."""


def install(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the program of ``version`` in ``folder`` the only one on the PATH; return the file that records its
    calls.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / ("search" if version < "3" else "semtools")
    program.write_text(_PROGRAM.format(python=sys.executable, version=version))
    program.chmod(0o755)
    for name in ("SEMTOOLS_WORKSPACE", FAILURE_VARIABLE, SLEEP_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", os.pathsep.join((str(folder), "/usr/bin", "/bin")))
    return folder / CALLS


def calls(record: Path) -> list[list[str]]:
    """Return the arguments of each recorded search, without calls for the version or help."""
    if not record.exists():
        return []
    made = [json.loads(line) for line in record.read_text().splitlines()]
    return [call for call in made if not {"--version", "-V", "--help", "-h"} & set(call)]


_PROGRAM = """#!{python}
import json, os, re, sys, time

VERSION = "{version}"
PLACE = os.path.dirname(os.path.abspath(__file__))
arguments = sys.argv[1:]
with open(os.path.join(PLACE, "calls.jsonl"), "a") as file:
    file.write(json.dumps(arguments) + "\\n")

def wrong(argument):
    sys.stderr.write(f"error: unexpected argument '{{argument}}' found\\n\\nFor more information, try '--help'.\\n")
    sys.exit(2)

def failed(message):
    sys.stderr.write(f"Error: {{message}}\\n")
    sys.exit(1)

new = VERSION[0] == "3"
if arguments[:1] in (["--version"], ["-V"]):
    if VERSION == "3.0.1":
        wrong(arguments[0])
    print("semtools", VERSION)
    sys.exit()
if new:
    if arguments[:1] != ["search"]:
        sys.stderr.write("error: unrecognized subcommand\\n")
        sys.exit(2)
    del arguments[0]

VALUES = {{"-n": "n_lines", "--n-lines": "n_lines", "--context": "n_lines", "--top-k": "top_k",
          "-m": "max_distance", "--max-distance": "max_distance", "--threshold": "max_distance"}}
FLAGS = {{"-i": "ignore_case", "--ignore-case": "ignore_case"}}
if new:
    VALUES.update({{"-w": "workspace", "--workspace": "workspace"}})
    FLAGS.update({{"-j": "json", "--json": "json"}})
options = {{"n_lines": "3", "top_k": "3", "max_distance": None, "workspace": os.environ.get("SEMTOOLS_WORKSPACE")}}
words, rest = [], False
while arguments:
    argument = arguments.pop(0)
    name, equals, value = argument.partition("=")
    if rest or not argument.startswith("-") or argument == "-":
        words.append(argument)
    elif argument == "--":
        rest = True
    elif name in VALUES:
        if not equals and (not arguments or arguments[0].startswith("-")):
            wrong(argument)
        options[VALUES[name]] = value if equals else arguments.pop(0)
    elif argument in FLAGS:
        options[FLAGS[argument]] = True
    else:
        wrong(argument)
if not words:
    sys.stderr.write("error: the following required arguments were not provided:\\n  <QUERY>\\n")
    sys.exit(2)
query, files = words[0], words[1:]
try:
    n_lines, top_k = int(options["n_lines"]), int(options["top_k"])
    limit = None if options["max_distance"] is None else float(options["max_distance"])
except ValueError:
    sys.stderr.write("error: invalid value\\n")
    sys.exit(2)

time.sleep(float(os.environ.get("SEMTOOLS_SLEEP_SECONDS", 0)))
if os.environ.get("SEMTOOLS_FAILURE"):
    failed(os.environ["SEMTOOLS_FAILURE"])
if not files:
    failed("No input provided. Either specify files as arguments or pipe input to stdin.")

def bag(text):
    return set(re.findall(r"\\w+", text.lower()))

found = []
for name in files:
    try:
        lines = open(name, encoding="utf-8", newline="").read().replace("\\r\\n", "\\n").split("\\n")
    except (OSError, UnicodeDecodeError) as error:
        failed(error)
    if lines[-1] == "":
        lines.pop()
    for number, line in enumerate(lines):
        both, either = bag(query) & bag(line), bag(query) | bag(line)
        distance = 1.0 - (len(both) / len(either) if either else 0.0)
        if limit is None or distance < limit:
            start, end = max(0, number - n_lines), min(len(lines), number + n_lines + 1)
            found.append((distance, name, start, end, number, lines[start:end]))
found.sort(key=lambda hit: hit[0])
if limit is None or options["workspace"]:
    found = found[:top_k]
if options.get("json"):
    print(json.dumps({{"results": [
        {{"filename": name, "start_line_number": start, "end_line_number": end, "match_line_number": number,
         "distance": distance, "content": "\\n".join(block)}}
        for distance, name, start, end, number, block in found]}}, indent=2))
else:
    for distance, name, start, end, number, block in found:
        print(f"{{name}}:{{start}}::{{end}} ({{distance}})")
        for offset, line in enumerate(block):
            print(f"{{start + offset + 1:4}}: {{line}}")
        print()
"""

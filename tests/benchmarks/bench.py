"""Run all benchmarks one after another, and write their results into RESULTS.md beside this file.

    make bench                                                    # all of them, for hours on 2 cores
    .venv/bin/python tests/benchmarks/bench.py --small            # check that they run; write nothing
    .venv/bin/python tests/benchmarks/bench.py searching quality  # only these; keep the results of the others

The results of each benchmark are kept in results/NAME.json, so that they can be run one by one. A run that fails leaves
the results of the last one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from measure import MISSED, RECORDS

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
FOLDER = HERE / "results"

BENCHMARKS: Mapping[str, Sequence[str]] = {
    "indexing": ("--lines", "4000000", "--rounds", "1"),
    "scaling": ("--lines", "16000000"),
    "phases": (),
    "unchanged": (),
    "million_files": (),
    "incremental": (),
    "embedding": (),
    "extraction": (),
    "exact": (),
    "memory": (),
    "bucket": (),
    "cluster": (),
    "branches": (),
    "deepening": (),
    "dask_scale": (),
    "many_sources": (),
    "fleet": (),
    "store_requests": (),
    "public_repositories": (),
    "handbook": (),
    "quality": (),
    "weights": (),
    "searching": (),
    "ci_latency": (),
    "watching": (),
    "web_load": (),
    "memory_store": (),
    "folding": (),
    "compaction": (),
    "state_detection": (),
    "cleanup": (),
}
"""The benchmarks and their arguments, without ``index_kinds``, which belongs to a decision record."""

WIDTH, BAR, LEFT = 640, 22, 210
COLOUR, OTHERS = "#2563eb", "#94a3b8"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--small", action="store_true", help="quick runs over little data, whose figures mean nothing")
    options = parser.parse_args()
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"There is no benchmark {', '.join(sorted(unknown))}")
    FOLDER.mkdir(exist_ok=True)
    missed: list[str] = []
    failed: list[str] = []
    for name in options.names or BENCHMARKS:
        found = run(name, ["--small"] if options.small else BENCHMARKS[name])
        if found["exit_code"] not in (0, MISSED):
            failed.append(name)
            continue
        if found["exit_code"]:
            missed.append(name)
        if not options.small:
            (FOLDER / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
            write_results()
    for outcome, names in (("Missed a target", missed), ("Failed, so their last results stay", failed)):
        if names:
            print(f"{outcome}: {', '.join(names)}")
    return 1 if missed or failed else 0


def run(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run one benchmark and show its output. Return its output and its records."""
    print(f"\n=== {name} {' '.join(arguments)}", flush=True)
    started = time.perf_counter()
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "records"
        process = subprocess.Popen(
            [sys.executable, "-u", str(HERE / f"{name}.py"), *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, RECORDS: str(records)},
        )
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
        exit_code = process.wait()
        reported = records.read_text("utf-8").splitlines() if records.exists() else []
    return {
        "command": " ".join(["python", f"tests/benchmarks/{name}.py", *arguments]),
        "exit_code": exit_code,
        "seconds": round(time.perf_counter() - started),
        "date": time.strftime("%Y-%m-%d"),
        "output": lines,
        "records": [json.loads(line) for line in reported],
    }


def write_results() -> None:
    """Write RESULTS.md and its plots from all available results."""
    found = {name: json.loads(file.read_text()) for name in BENCHMARKS if (file := FOLDER / f"{name}.json").exists()}
    lines = [
        "# Results of the benchmarks",
        "",
        "Written by `make bench`. A missed target is marked, with the reason.",
        "[Benchmarks](../../docs/benchmarks/index.md) and [Scaling](../../docs/operate/scaling.md) explain them.",
        "Ratios compare runs of the same minutes on the same host.",
        "",
        "| what | figure | target | | benchmark |",
        "|---|---|---|---|---|",
    ]
    for name, result in found.items():
        for record in result["records"]:
            if record["kind"] == "figure":
                missed = ": ".join(filter(None, ("**missed**", record.get("obstacle"))))
                outcome = "reached" if record["fine"] else missed
                unit = record["unit"]
                figure, target = f"{record['value']:.3g} {unit}", f"{record['relation']} {record['target']:.3g} {unit}"
                lines.append(f"| {record['what']} | {figure.strip()} | {target.strip()} | {outcome} | `{name}` |")
    for name, result in found.items():
        lines += ["", f"## {name}", "", f"`{result['command']}`, {result['date']}, {result['seconds']} s", ""]
        for number, record in enumerate(plots(result["records"])):
            file = FOLDER / f"{name}-{number}.svg"
            file.write_text(bar_plot(record["title"], record["unit"], record["values"]))
            lines += [f"![{record['title']}]({FOLDER.name}/{file.name})", ""]
        lines += ["```text", *result["output"], "```"]
    RESULTS.write_text("\n".join(lines) + "\n")


def plots(records: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Return the records that are plots."""
    return (record for record in records if record["kind"] == "bars")


def bar_plot(title: str, unit: str, values: Mapping[str, float]) -> str:
    """Return an ``<svg>`` that contains a bar for each value, scaled to the largest. Driftline's bars are
    highlighted.
    """
    height, top = 34 + BAR * len(values), max([*values.values(), 1e-9])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="8" y="18" font-size="13" font-weight="600">{escape(title)}</text>',
    ]
    own = any("driftline" in name for name in values)
    for row, (name, value) in enumerate(values.items()):
        y, width = 28 + row * BAR, value / top * (WIDTH - LEFT - 110)
        colour = COLOUR if "driftline" in name or not own else OTHERS
        parts += [
            f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 5}" fill="{colour}"/>',
            f'<text x="{LEFT + width + 6:.1f}" y="{y + 13}">{value:,.3g} {escape(unit)}</text>'
            if value < 1000
            else f'<text x="{LEFT + width + 6:.1f}" y="{y + 13}">{value:,.0f} {escape(unit)}</text>',
        ]
    return "".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    sys.exit(main())

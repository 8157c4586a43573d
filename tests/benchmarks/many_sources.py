"""Measure the cost per source: one run over many tiny sources, first and unchanged.

.venv/bin/python tests/benchmarks/many_sources.py
.venv/bin/python tests/benchmarks/many_sources.py --sources 200     # the CPU for each source must not grow with them
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import corpus
import measure


def main() -> int:
    options = measure.begin(__doc__, sources=50)
    sources = 3 if options.small else options.sources
    with measure.scratch() as folder:
        tables = []
        for number in range(sources):
            (folder / f"source_{number:03}").mkdir()
            (folder / f"source_{number:03}" / "a.py").write_text(f"def of_source_{number}():\n    return 1\n")
            tables.append(f'[[sources]]\nuri = "source_{number:03}"\n')
        head = f'workspace = "index"\nmodel = "{corpus.model()}"\n'
        (folder / "driftline.toml").write_text(head + "\n".join(tables))
        first, report = _index(folder)
        if len(report["sources"]) != sources:
            raise SystemExit(f"{len(report['sources'])} of {sources} sources were indexed")
        unchanged, _ = _index(folder)
    phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in report["phases"].items())
    print(f"  {sources} sources of one file: {first.seconds:.1f} s at first, {unchanged.seconds:.1f} s unchanged")
    print(
        f"  CPU for each source: {first.cpu_seconds / sources * 1000:.0f} ms at first, "
        f"{unchanged.cpu_seconds / sources * 1000:.0f} ms unchanged"
    )
    print(f"  at first {report['seconds'] / sources * 1000:.0f} ms each; seconds by phase, overlapping: {phases}")
    return 0


def _index(folder: Path) -> tuple[measure.Measured, dict[str, Any]]:
    command = [*measure.DRIFTLINE, "index", "--all", "--json"]
    result = measure.run(command, {"DRIFTLINE_CONFIG": str(folder / "driftline.toml")})
    return result, json.loads(result.output)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr}")

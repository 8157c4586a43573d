"""Run and measure processes, report the machine, and check figures against targets."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_POLL_SECONDS = 0.02
_MAX_PAUSES = 20
"""The pause between samples, as a multiple of a sample's CPU time. Each sample reads the whole process table."""
RECORDS = "DRIFTLINE_BENCH_RECORDS"
"""The environment variable that names the file in which ``bench.py`` collects records."""
MISSED = 3
"""The exit code of a complete run that missed a target; a failed run has a different one."""
PROGRAM = "DRIFTLINE_BENCH_PROGRAM"
"""The environment variable that replaces the ``driftline`` command with another program, if figures do not matter."""
DRIFTLINE = (
    (os.environ[PROGRAM],)
    if PROGRAM in os.environ
    else (
        sys.executable,
        "-c",
        "import sys; from driftline.__main__ import run; sys.exit(run())",
    )
)
"""The ``driftline`` command as its console script runs it, even if the script is not on the PATH."""
PYTHON = os.environ.get("DRIFTLINE_BENCH_PYTHON", sys.executable)
"""What runs the programs of peers."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A run of a process.

    ``own_peak`` is its peak resident memory in bytes; ``children_peak`` is the peak of its largest child.
    """

    seconds: float
    cpu_seconds: float
    own_peak: int
    children_peak: int
    output: str

    @property
    def largest_peak(self) -> int:
        """The larger of the process's peak and its children's, in bytes."""
        return max(self.own_peak, self.children_peak)


def run(command: Sequence[str], env: Mapping[str, str] | None = None) -> Measured:
    """Run ``command`` to completion. Raises CalledProcessError with its error output if it fails."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err, env={**os.environ, **(env or {})})
        peak = _Peak(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        peak.stop()
        out.seek(0)
        err.seek(0)
        output, errors = out.read(), err.read()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, output, errors)
    return Measured(seconds, usage.ru_utime + usage.ru_stime, peak.own, peak.children, output)


class _Peak(threading.Thread):
    """Watches the resident memory of a process and its children."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.own = self.children = 0
        self._pid = pid
        self._done = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            process = psutil.Process(self._pid)
        except psutil.NoSuchProcess:
            return
        pause = _POLL_SECONDS
        while not self._done.wait(pause):
            looked = time.thread_time()
            try:
                self.own = max(self.own, process.memory_info().rss)
                children = [_resident(child) for child in process.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            self.children = max([self.children, *children])
            pause = max(_POLL_SECONDS, _MAX_PAUSES * (time.thread_time() - looked))

    def stop(self) -> None:
        self._done.set()
        self.join()


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def median(values: Sequence[float]) -> float:
    """Return the median run, which is least affected by other work on the host."""
    return statistics.median(values)


@dataclass(slots=True)
class Verdict:
    """The targets of a benchmark. ``exit_code`` is MISSED if a target is missed. Small runs are not judged.

    ``obstacle`` is the reason to print if a target is missed.
    """

    small: bool
    missed: list[str] = field(default_factory=list)

    def at_least(self, what: str, value: float, target: float, unit: str = "x", obstacle: str = "") -> None:
        self._judge(what, value, target, unit, "at least", value >= target, obstacle)

    def at_most(self, what: str, value: float, target: float, unit: str = "x", obstacle: str = "") -> None:
        self._judge(what, value, target, unit, "at most", value <= target, obstacle)

    def _judge(
        self, what: str, value: float, target: float, unit: str, relation: str, fine: bool, obstacle: str
    ) -> None:
        outcome = "small run" if self.small else "ok" if fine else "MISSED"
        why = obstacle if outcome == "MISSED" else ""
        print(f"  {outcome:9} {what}: {value:.3g} {unit} ({relation} {target:.3g}){why and f': {why}'}", flush=True)
        reported = {"what": what, "value": value, "unit": unit, "relation": relation, "target": target, "fine": fine}
        record("figure", **reported, obstacle=why)
        if not fine and not self.small:
            self.missed.append(what)

    @property
    def exit_code(self) -> int:
        return MISSED if self.missed else 0


def bars(title: str, unit: str, values: Mapping[str, float]) -> None:
    """Record a plot of contenders for ``bench.py``. Does nothing if a benchmark runs alone."""
    record("bars", title=title, unit=unit, values=dict(values))


def record(kind: str, **reported: object) -> None:
    """Append a JSON line to the file named by RECORDS, if set."""
    if target := os.environ.get(RECORDS):
        with Path(target).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, **reported}) + "\n")


def begin(description: str | None, **defaults: int | str) -> argparse.Namespace:
    """Parse ``--small`` and the options in ``defaults``, and print the machine."""
    title = (description or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--small", action="store_true", help="a quick run over little data, whose figures mean nothing")
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value, help=f"default: {value}")
    options = parser.parse_args()
    packages = ("driftline", "pylance", "lancedb", "pyarrow", "model2vec", "semble", "numpy")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    print(title)
    memory, load = psutil.virtual_memory().total / 2**30, os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, {memory:.0f} GiB, load {load:.1f}, {platform.system()} {platform.machine()}")
    print(f"Python {platform.python_version()}, {versions}", flush=True)
    return options


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield an empty directory on the same disk as the corpora; remove it afterwards."""
    from corpus import CACHE

    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="run-") as folder:
        yield Path(folder)

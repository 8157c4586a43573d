"""Runs Driftline commands on two hosts, and kills or stops some of them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.waiting import PATIENCE_SECONDS

TTL_SECONDS = 6.0
COMMAND_SECONDS = PATIENCE_SECONDS
"""No command may take longer, whatever the store does."""
KILLED, STOPPED = 0.2, 0.1
"""The share of commands that are killed, and the share that are stopped for longer than a lease lasts."""
CACHE_BYTES = 200_000
"""Fewer bytes than a few searches read, so blocks are evicted."""
EXPECTED = {"lease_held", "lease_lost", "commit_conflict", "interrupted"}
"""Errors that contention may cause; each of them leaves the work to the next command."""


@dataclass(frozen=True)
class Host:
    """A machine whose clock differs from the true time by ``skew_seconds``; its searches may cache blocks."""

    name: str
    skew_seconds: float
    folder: Path
    caches: bool = True

    @property
    def blocks(self) -> Path:
        return self.folder / "blocks"


@dataclass(frozen=True)
class Done:
    """The outcome of a command. ``code`` is None if it was killed; ``answer`` is its JSON."""

    code: int | None
    answer: Any = None

    @property
    def error(self) -> str:
        return str(self.answer.get("error", "")) if isinstance(self.answer, dict) else ""


@dataclass
class Commands:
    """Starts commands for several threads. ``problems`` must stay empty; ``counts`` counts outcomes."""

    workspace: str
    environment: Mapping[str, str]
    chance: random.Random
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, host: Host, *arguments: object, gently: bool = False) -> Done:
        """Run a command with ``--json``. Unless ``gently`` is set, it may be killed or stopped."""
        words = [str(argument) for argument in arguments]
        with self._lock:
            fate, moment = self.chance.random(), self.chance.uniform(0.5, 5)
        process = self._start(host, words)
        if not gently and fate < KILLED + STOPPED:
            try:
                process.wait(moment)
            except subprocess.TimeoutExpired:
                if fate < KILLED:
                    process.kill()
                else:
                    process.send_signal(signal.SIGSTOP)
                    time.sleep(1.5 * TTL_SECONDS)
                    process.send_signal(signal.SIGCONT)
                    self._count("stopped")
        try:
            out, err = process.communicate(timeout=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            self.problem(f"{words} took more than {COMMAND_SECONDS} s\n{err[-2000:]}")
        return self._judge(words, process.returncode, out, err)

    def problem(self, text: str) -> None:
        with self._lock:
            self.problems.append(text)

    def _start(self, host: Host, words: list[str]) -> subprocess.Popen[str]:
        program = [sys.executable, str(Path(__file__).with_name("host.py"))]
        cache = {
            "DRIFTLINE_BLOCK_CACHE": str(host.blocks) if host.caches else "off",
            "DRIFTLINE_BLOCK_CACHE_BYTES": str(CACHE_BYTES),
        }
        return subprocess.Popen(
            [*program, host.name, str(host.skew_seconds), str(TTL_SECONDS), *words, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env={
                **os.environ,
                **self.environment,
                **cache,
                "TMPDIR": str(host.folder),
                "DRIFTLINE_WORKSPACE": self.workspace,
            },
        )

    def _judge(self, words: list[str], code: int, out: str, err: str) -> Done:
        verb = " ".join(words[: 2 if words[0] in ("memory", "branches") else 1])
        if code == -signal.SIGKILL:
            self._count(f"{verb}: killed")
            return Done(None)
        try:
            answer = json.loads(out)
        except ValueError:
            self.problem(f"{words} ended with {code} and no answer: {out[-500:]}\n{err[-2000:]}")
            return Done(code)
        done = Done(code, answer)
        self._count(f"{verb}: {done.error or code}")
        if "Traceback" in err or (code not in (0, 1) and done.error not in EXPECTED):
            self.problem(f"{words} ended with {code}: {out[-1500:]}\n{err[-3000:]}")
        return done

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

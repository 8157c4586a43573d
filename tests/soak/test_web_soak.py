"""The web server under concurrent readers, runs and compactions, for ``DRIFTLINE_SOAK_SECONDS`` (``make soak``)."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from http.client import HTTPException
from pathlib import Path
from urllib.parse import quote, urlsplit

import psutil
import pytest

from tests.support.waiting import PATIENCE_SECONDS, ended, until
from tests.support.web import Answer, ask

SECONDS = float(os.environ.get("DRIFTLINE_SOAK_SECONDS", "20"))
SEED = int(os.environ.get("DRIFTLINE_SOAK_SEED", "0")) or random.randrange(1, 10**6)
READERS = 6
FILES = 40
RUN_SECONDS = 3.0
COMPACT_EVERY = 10
MIN_ANSWERS = 30
"""Number of answers of each route before memory is first measured: a busy machine gives fewer in the same time."""
MAX_GROWTH = 1.35
"""Maximum growth of resident memory from the first third of the soak to its end."""
SOURCE = "org:default/project:default/source:tree"


def command(*arguments: object) -> None:
    run = [sys.executable, "-m", "driftline", *map(str, arguments)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def write(tree: Path, version: int) -> None:
    """Write all files of a version: in a complete version, each file contains the same number."""
    for number in range(FILES):
        text = f"marker of file {number} stands at version {version}\nand the lease of {number} ends\n"
        (tree / f"f{number}.md").write_text(text)


class Readers:
    """Threads that request all routes; ``problems`` lists wrong responses."""

    def __init__(self, address: str) -> None:
        self.problems: list[str] = []
        self._address = address
        self._stop = threading.Event()
        self._checks: dict[str, Callable[[Answer], str]] = {
            "/api/v1/search?q=marker+version&mode=text&top_k=40&n_lines=0": self._one_version,
            "/?q=the+lease+ends": lambda answer: "" if "article" in answer.body else "no results",
            "/api/v1/documents?limit=1000": lambda answer: self._count(answer, "documents"),
            f"/d/{quote(SOURCE)}/f7.md?line=1": lambda answer: "" if "marker" in answer.body else "no document",
            "/api/v1/status": lambda _: "",
            "/metrics": lambda answer: "" if "driftline_index_readable 1.0" in answer.body else "not readable",
            "/readyz": lambda _: "",
        }
        self.requested = Counter(dict.fromkeys(self._checks, 0))
        self._threads = [threading.Thread(target=self._run, args=(SEED + n,)) for n in range(READERS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._stop.is_set():
            target = chance.choice(list(self._checks))
            try:
                answer = ask(self._address, target)
            except (OSError, HTTPException):
                self.problems.append(f"{target}: {traceback.format_exc()}")
                return
            self.requested[target] += 1
            wrong = f"status {answer.status}" if answer.status != 200 else self._checks[target](answer)
            if wrong:
                self.problems.append(f"{target}: {wrong}: {answer.body[:300]}")

    @staticmethod
    def _one_version(answer: Answer) -> str:
        texts = [hit["text"] for hit in json.loads(answer.body)["results"]]
        versions = {found[1] for text in texts if (found := re.search(r"version (\d+)", text))}
        return "" if len(texts) == FILES and len(versions) == 1 else f"{len(texts)} results of {sorted(versions)}"

    @staticmethod
    def _count(answer: Answer, field: str) -> str:
        found = len(json.loads(answer.body)[field])
        return "" if found == FILES else f"{found} of {FILES}"


@pytest.mark.timeout(SECONDS + 1800)
def test_no_answer_fails_or_mixes_versions_while_runs_commit_and_compact(tmp_path: Path) -> None:
    tree, workspace = tmp_path / "tree", tmp_path / "ws"
    tree.mkdir()
    write(tree, 0)
    command("index", tree, "--workspace", workspace)
    web = [sys.executable, "-m", "driftline", "web", "--workspace", str(workspace), "--port", "0"]
    log = tmp_path / "web.log"
    with log.open("w") as messages, subprocess.Popen(web, stderr=messages) as process:
        try:
            addresses = partial(re.findall, r"serving (\S+)\n")
            until(lambda: addresses(log.read_text()), "the server", unless=lambda: ended(process, log))
            (address,) = addresses(log.read_text())
            resident, early = psutil.Process(process.pid), 0
            readers, started, version = Readers(urlsplit(address).netloc), time.monotonic(), 0
            try:
                while (passed := time.monotonic() - started) < SECONDS or not (early or readers.problems):
                    version += 1
                    write(tree, version)
                    command("index", tree, "--workspace", workspace, "--executor", "inline")
                    if version % COMPACT_EVERY == 0:
                        command("compact", "--workspace", workspace)
                    if passed > SECONDS / 3 and not early and min(readers.requested.values()) >= MIN_ANSWERS:
                        early = resident.memory_info().rss
                    time.sleep(RUN_SECONDS)
            finally:
                readers.stop()
            late = resident.memory_info().rss
        finally:
            process.kill()
    asked = sum(readers.requested.values())
    print(f"seed {SEED}: {version} runs, asked {asked:,} times, {early / 1e6:.0f} -> {late / 1e6:.0f} MB")
    assert readers.problems[:5] == [], f"seed {SEED}"
    assert late <= MAX_GROWTH * early

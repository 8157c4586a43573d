"""Compare exact search with ripgrep: time, the cost of packs, a bucket 30 ms away, and phrases combined with words.

    .venv/bin/python tests/benchmarks/exact.py
    .venv/bin/python tests/benchmarks/exact.py --workspace WORKSPACE    # only the times of an index of the same tree

The first run without packs uses a program that does not write any. Each row of ``exact_questions.tsv`` has a path, a
function in that file, an exact phrase from the function, and words that describe it; all were written before any
search. A hit is correct if it is in the function.
"""

from __future__ import annotations

import ast
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from math import log2
from pathlib import Path

import corpus
import measure

sys.path.insert(0, str(Path(__file__).parents[2]))

import driftline
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.exact import ExactSearch, open_exact_tables
from driftline.tasks.search.query_language import ExactTerms, parse
from tests.servers.delaying import delaying, rounds
from tests.servers.s3_server import S3Server, running_s3

DELAY_SECONDS = 0.03
SELECTIVE = 200
"""Patterns that match at most MOST_LINES lines."""
MOST_LINES = 50
WORST = (".*", "se", "e", r"\w+", "^", "import|def|return")
QUESTIONS = Path(__file__).with_name("exact_questions.tsv")
RG = Path(sys.executable).with_name("rg")
ENDS = "it reads the end of each data file, one for every 4 MiB of text, after four requests for the newest version"
_WITHOUT_PACKS = (
    sys.executable,
    "-c",
    "import sys, pyarrow as pa; import driftline.tasks.indexing.rows as rows; "
    "nothing = lambda texts, document, *_: {'pack': pa.nulls(len(document), pa.string()), "
    "'pack_line': pa.nulls(len(document), pa.int32()), 'grams': pa.nulls(len(document), pa.binary())}; "
    "rows.packs = nothing; from driftline.__main__ import run; sys.exit(run())",
)
_NAME = re.compile(r"[A-Za-z_]{6,}")


def main() -> int:
    options = measure.begin(__doc__, lines=1_300_000, workspace="")
    verdict = measure.Verdict(options.small)
    tree = corpus.packages(20_000 if options.small else options.lines)
    print(tree)
    if options.workspace:
        times(Path(options.workspace), selective(tree.path), verdict)
        return verdict.exit_code
    with measure.scratch() as folder:
        indexed, plain = folder / "ws", folder / "without"
        packed = _index(tree.path, indexed, measure.DRIFTLINE)
        without = _index(tree.path, plain, _WITHOUT_PACKS)
        verdict.at_most("first run, CPU, of one without packs", packed.cpu_seconds / without.cpu_seconds, 1.2)
        verdict.at_most("packs, of the text", (_data_bytes(indexed) - _data_bytes(plain)) / tree.bytes, 0.3)
        patterns = selective(tree.path)
        like_ripgrep(tree.path, indexed, patterns[:40], verdict)
        times(indexed, patterns, verdict)
        command = [*measure.DRIFTLINE, "search", "-E", patterns[0], "--workspace", str(indexed), "--json"]
        cold = measure.median([measure.run(command).seconds for _ in range(5)])
        verdict.at_most("cold command on a local disk", cold, 0.5, "s")
        if not options.small:
            questions(tree.path, indexed, verdict)
        bucket(indexed, patterns, folder / "s3", verdict)
    return verdict.exit_code


def _index(tree: Path, workspace: Path, program: tuple[str, ...]) -> measure.Measured:
    return measure.run([*program, "index", str(tree), "--workspace", str(workspace), "--json"])


def _data_bytes(workspace: Path) -> int:
    return sum(each.stat().st_size for each in workspace.rglob("*.lance/data/*"))


def selective(tree: Path) -> list[str]:
    """Return names that occur in few lines; every other one starts a regular expression."""
    counts: Counter[str] = Counter()
    for path in sorted(tree.rglob("*.py")):
        for line in path.read_text("utf-8", "replace").split("\n"):
            counts.update({*_NAME.findall(line)})
    rare = sorted(name for name, count in counts.items() if count <= MOST_LINES // 5)
    names = random.Random(7).sample(rare, SELECTIVE)
    return [name if at % 2 else rf"{name[:-1]}[a-z_]\b" for at, name in enumerate(names)]


def like_ripgrep(tree: Path, workspace: Path, patterns: list[str], verdict: measure.Verdict) -> None:
    """Compare the matching lines of some patterns; ``tests/property/test_exact_like_ripgrep.py`` compares 10,080."""
    opened, same = Workspace.open(str(workspace)), 0
    tables = open_exact_tables(opened, None)
    for text in patterns:
        terms = ExactTerms(parse("", regex=[text]).terms.patterns)
        ours = {
            (at.path, n + 1) for at, found in ExactSearch(opened, tables, terms, lambda: False).lines() for n in found
        }
        case = ["--case-sensitive"] if text != text.lower() else ["--ignore-case"]
        command = [str(RG), "--no-config", "-uuu", "--text", "--null", "--line-number", *case, "-e", text, "."]
        done = subprocess.run(command, cwd=tree, capture_output=True, check=False)
        found = (re.match(rb"\./([^\0]+)\0(\d+):", line) for line in done.stdout.split(b"\n")[:-1])
        same += ours == {(each[1].decode(), int(each[2])) for each in found if each}
    verdict.at_least("patterns whose lines are those of ripgrep", 100 * same / len(patterns), 100, "%")


def times(workspace: Path, patterns: list[str], verdict: measure.Verdict) -> None:
    """Measure warm searches in this process."""
    opened = driftline.open(str(workspace))

    def seconds(pattern: str) -> tuple[float, float]:
        started, cpu = time.perf_counter(), time.process_time()
        opened.search("", regex=[pattern], top_k=100, n_lines=0)
        return time.perf_counter() - started, time.process_time() - cpu

    first, _ = seconds(patterns[0])
    print(f"  first search of a process {first * 1e3:.0f} ms", flush=True)
    found = sorted(seconds(pattern) for pattern in patterns)
    walls, cpus = ([each[at] * 1e3 for each in found] for at in (0, 1))
    print(f"  selective: CPU p50 {sorted(cpus)[len(cpus) // 2]:.1f} ms, p95 {sorted(cpus)[-len(cpus) // 20]:.1f} ms")
    verdict.at_most("selective pattern, warm, p50", walls[len(walls) // 2], 8, "ms")
    verdict.at_most("selective pattern, warm, p95", walls[-len(walls) // 20], 20, "ms")
    slow = {pattern: min(seconds(pattern) for _ in range(3)) for pattern in WORST}
    print("  " + ", ".join(f"{pattern} {wall * 1e3:.0f} ms" for pattern, (wall, _) in slow.items()), flush=True)
    verdict.at_most("first 100 of the worst pattern", max(wall for wall, _ in slow.values()) * 1e3, 150, "ms")


def questions(tree: Path, workspace: Path, verdict: measure.Verdict) -> None:
    """Compare searches for a phrase with words, the phrase alone, everything as words, and the words alone."""
    opened = driftline.open(str(workspace))
    gains: dict[str, list[float]] = {"phrase and words": [], "phrase": [], "all as words": [], "words": []}
    for asked in QUESTIONS.read_text("utf-8").splitlines():
        path, name, query = asked.split("\t")
        first, last = dict(_functions(tree / path))[name]
        question = parse(query)
        phrase = query.removesuffix(question.words).rstrip()
        plain = " ".join(re.findall(r"[^\W_]\S*[^\W_]", question.terms.patterns[0].text))
        for kind, text in zip(gains, (query, phrase, f"{plain} {question.words}", question.words), strict=True):
            hits = opened.search(text, top_k=10, n_lines=0).results
            right = (at for at, hit in enumerate(hits, start=1) if hit.path == path and first <= hit.line <= last)
            rank = next(right, None)
            gains[kind].append(1 / log2(rank + 1) if rank is not None else 0.0)
    mean = {kind: sum(each) / len(each) for kind, each in gains.items()}
    print("  NDCG@10: " + ", ".join(f"{kind} {value:.3f}" for kind, value in mean.items()), flush=True)
    together = mean.pop("phrase and words")
    verdict.at_least(
        f"NDCG@10 of {len(gains['phrase'])} phrases with words, of the best alone", together / max(mean.values()), 1
    )


def _functions(path: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the qualified name, first line and last line of each function and class in a file."""

    def walk(node: ast.AST, within: str) -> Iterator[tuple[str, tuple[int, int]]]:
        for child in ast.iter_child_nodes(node):
            inside = within
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inside = f"{within}.{child.name}".lstrip(".")
                yield inside, (child.lineno, child.end_lineno or child.lineno)
            yield from walk(child, inside)

    return walk(ast.parse(path.read_text("utf-8")), "")


def bucket(workspace: Path, patterns: list[str], folder: Path, verdict: measure.Verdict) -> None:
    """Search a copy in a bucket from new processes with an empty cache."""
    folder.mkdir()
    with running_s3(folder) as server, delaying(server.endpoint, DELAY_SECONDS) as proxy:
        _upload(workspace, server)
        keys = {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}
        env = keys | {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": proxy.endpoint}
        found: list[tuple[float, int, int, int]] = []
        for pattern in patterns[:3]:
            with tempfile.TemporaryDirectory() as empty:
                proxy.take()
                command = [
                    *measure.DRIFTLINE,
                    "search",
                    "-E",
                    pattern,
                    "--workspace",
                    f"s3://{server.bucket}/ws",
                    "--json",
                ]
                done = measure.run(command, env | {"DRIFTLINE_BLOCK_CACHE": empty})
                asked = proxy.take()
            if not json.loads(done.output)["results"]:
                raise SystemExit(f"Nothing is found for {pattern!r}")
            found.append((done.seconds, len(asked), rounds(asked), sum(each.received_bytes for each in asked)))
    seconds, requests, chain, read = sorted(found)[1]
    print(f"  in a bucket: {requests} requests, {chain} rounds, {read / 1e6:.1f} MB, {seconds:.2f} s", flush=True)
    verdict.at_most("cold command in a bucket, requests", requests, 12, "", ENDS)
    verdict.at_most("cold command in a bucket", seconds, 0.6, "s")


def _upload(workspace: Path, server: S3Server) -> None:
    client = server.client()
    for path in sorted(workspace.rglob("*")):
        if path.is_file() and path.name != "_catalog.sqlite":
            key = f"ws/{path.relative_to(workspace).as_posix()}"
            client.put_object(Bucket=server.bucket, Key=key, Body=path.read_bytes())


if __name__ == "__main__":
    sys.exit(main())

"""A program that runs writers, compactors and readers of one delta index for a while, each in its own process.

``soak.py URI SECONDS`` prints one JSON object: counts, and the list ``problems``, which must be empty.

The expected content follows from the number of changes that each writer has published, so no journal is needed. A
writer's change ``n`` adds the key of ``n``, removes the key of ``n - LIFE``, and adds or removes a key that all writers
share but change at different times. Within a block, changes are published in any order. Some are published again after
a compaction has folded the first publication and the removal of its keys. ``rev`` decides.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from multiprocessing.sharedctypes import Synchronized
from typing import Any

import pyarrow as pa

from driftline.storage.deltas.delta_index import ADD, REMOVE, DeltaIndex
from driftline.storage.errors import LeaseHeld
from driftline.storage.layout import BASE, new_ulid
from driftline.storage.leases.lease import acquire
from driftline.storage.objects.store import ObjectStore

WRITERS, COMPACTORS, READERS = 8, 3, 2
DIRECTORY = "org:a/source:b"
LEASE = "org:a/_leases/source:b.json"
FIELDS = (pa.field("key", pa.string()), pa.field("value", pa.int64()))
BLOCK = 4
LIFE = 10
MIN_CHANGES, MIN_PUBLICATIONS = 2 * BLOCK, 2
CHANGES_PER_SHARED_KEY = 2
REST_SECONDS = 0.02
"""Pauses between compactions and between changes, because 13 processes share the cores."""

_fork = multiprocessing.get_context("fork")  # only imports come first


@dataclass(frozen=True, slots=True)
class Progress:
    """A writer's shared progress: changes up to ``started`` may be visible; changes up to ``done`` must be."""

    started: Synchronized[int]
    done: Synchronized[int]


@dataclass(frozen=True, slots=True)
class End:
    """When the roles end: at ``deadline``, but not before each has done a minimum (it takes longer on a busy
    machine).
    """

    deadline: float
    published: Synchronized[int]

    def has_come(self) -> bool:
        return time.monotonic() >= self.deadline and self.published.value >= MIN_PUBLICATIONS


@dataclass(frozen=True, slots=True)
class Publication:
    """A base written by a compactor under the lease of ``token``: the replaced version and the new one.

    The compactor worked from ``since`` to ``until`` on the host's monotonic clock.
    """

    token: int
    replaced: str
    version: str
    since: float
    until: float


# -- the model -------------------------------------------------------------------------------


def rev_of(writer: int, number: int) -> int:
    return number * WRITERS + writer


def own_key(writer: int, number: int) -> str:
    return f"own/{writer}/{number:07}"


def shared_change(writer: int, number: int) -> tuple[str, bool]:
    """Return the shared key that a change adds or removes, and whether it adds it."""
    key = number // CHANGES_PER_SHARED_KEY
    return f"shared/{key:07}", (key + writer) % 3 != 0


def model(done: Sequence[int]) -> dict[str, int]:
    """Return the index content after each writer has published a number of changes."""
    newest: dict[str, int] = defaultdict(int)
    expected: dict[str, int] = {}
    for writer, last in enumerate(done):
        expected |= {own_key(writer, number): number for number in range(max(1, last - LIFE + 1), last + 1)}
        for number in range(1, last + 1):
            rev, (key, _) = rev_of(writer, number), shared_change(writer, number)
            newest[key] = max(newest[key], rev)
    for key, rev in newest.items():
        if shared_change(rev % WRITERS, rev // WRITERS)[1]:
            expected[key] = rev
    return expected


def contradictions(seen: dict[str, int], done: Sequence[int], started: Sequence[int]) -> list[str]:
    """Return the contradictions in a read that started after changes ``done`` and ended before any change after
    ``started``.
    """
    outcome = []
    for writer, (known, begun) in enumerate(zip(done, started, strict=True)):
        own = {key: value for key, value in seen.items() if key.startswith(f"own/{writer}/")}
        must = {own_key(writer, number) for number in range(max(1, begun - LIFE + 1), known + 1)}
        may = {own_key(writer, number): number for number in range(max(1, known - LIFE + 1), begun + 1)}
        outcome += [f"lost {key}" for key in must - own.keys()]
        outcome += [f"resurrected {key}" for key in own.keys() - may.keys()]
        outcome += [f"{key} has value {value}" for key, value in own.items() if may.get(key, value) != value]
    return outcome


def chain_problems(publications: Sequence[Publication]) -> list[str]:
    """Check that each base replaced its predecessor, and that no two compactors worked at the same time."""
    outcome = []
    order = sorted(publications, key=lambda publication: publication.since)
    for before, after in pairwise(order):
        if after.replaced != before.version:
            outcome.append(f"a base under token {after.token} did not replace the one of token {before.token}")
        if after.token < before.token:
            outcome.append(f"token {after.token} published after token {before.token}")
        if after.token != before.token and after.since < before.until:
            outcome.append(f"tokens {before.token} and {after.token} were at work at the same time")
    return outcome


# -- the processes ---------------------------------------------------------------------------


def open_index(uri: str) -> DeltaIndex:
    return DeltaIndex(ObjectStore.open(uri), DIRECTORY, "soak", FIELDS)


def encoded(index: DeltaIndex, writer: int, number: int) -> bytes:
    key, is_added = shared_change(writer, number)
    rev = rev_of(writer, number)
    added = {own_key(writer, number): number} | ({key: rev} if is_added else {})
    removed = [own_key(writer, number - LIFE)] if number > LIFE else []
    values = pa.table({"key": list(added), "value": list(added.values())}, schema=index.schema)
    gone = pa.table({"key": pa.array(removed if is_added else [*removed, key], pa.string())})
    now = datetime.now(UTC)
    return index.encode(
        pa.concat_tables([index.changes(ADD, rev, values, now=now), index.changes(REMOVE, rev, gone, now=now)])
    )


def write(uri: str, end: End, writer: int, progress: Sequence[Progress]) -> dict[str, int]:
    index, chance = open_index(uri), random.Random(writer)
    mine, past = progress[writer], []
    first = 1
    while not end.has_come() or first <= MIN_CHANGES:
        mine.started.value = first + BLOCK - 1
        numbers = list(range(first, first + BLOCK))
        chance.shuffle(numbers)
        for number in numbers:
            ulid, data = new_ulid(), encoded(index, writer, number)
            index.publish(ulid, data)
            past.append((ulid, data))
            time.sleep(chance.uniform(0, 2 * REST_SECONDS))
        if chance.random() < 0.3:
            index.publish(*chance.choice(past))
        mine.done.value = first + BLOCK - 1
        first += BLOCK
    return {"changes": first - 1}


def compact(uri: str, end: End, number: int) -> dict[str, Any]:
    index, found = open_index(uri), Publications()
    backend: Any = index.objects._backend
    for method in ("create", "replace"):
        setattr(backend, method, found.noting(getattr(backend, method)))
    while not end.has_come():
        try:
            lease = acquire(index.objects, LEASE, f"compactor-{number}")
        except LeaseHeld:
            time.sleep(REST_SECONDS)
            continue
        with lease:
            found.token, found.since, before = lease.token, time.monotonic(), len(found.published)
            index.compact()
            lease.check()
            found.ended()
            with end.published.get_lock():
                end.published.value += len(found.published) - before
        time.sleep(REST_SECONDS)
    return {"published": found.published}


class Publications:
    """Records the bases written by one compactor."""

    def __init__(self) -> None:
        self.token = 0
        self.since = 0.0
        self.published: list[dict[str, Any]] = []

    def noting(self, original: Callable[..., str]) -> Callable[..., str]:
        def write_and_note(path: str, data: bytes, version: str = "") -> str:
            written = original(path, data, version) if version else original(path, data)
            if path.endswith(BASE):
                self.published.append(
                    {"token": self.token, "replaced": version, "version": written, "since": self.since, "until": 0.0}
                )
            return written

        return write_and_note

    def ended(self) -> None:
        """Count the deletion of folded deltas as work."""
        for publication in self.published:
            publication["until"] = publication["until"] or time.monotonic()


def read(uri: str, end: End, progress: Sequence[Progress]) -> dict[str, Any]:
    index, reads = open_index(uri), 0
    problems: list[str] = []
    while not (end.has_come() and reads) and not problems:
        done = [writer.done.value for writer in progress]
        found = rows(index.read())
        problems += contradictions(found, done, [writer.started.value for writer in progress])
        reads += 1
    return {"reads": reads, "problems": problems[:10]}


def rows(table: pa.Table) -> dict[str, int]:
    return dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


def _run(results: Any, role: Callable[..., dict[str, Any]], *arguments: Any) -> None:
    try:
        results.put({"role": role.__name__, **role(*arguments)})
    except BaseException:
        results.put({"role": role.__name__, "problems": [traceback.format_exc()]})


def soak(uri: str, seconds: float) -> dict[str, Any]:
    """Run all processes, then compare the index with the model, before and after a last compaction."""
    progress = [Progress(_fork.Value("q", 0), _fork.Value("q", 0)) for _ in range(WRITERS)]
    results = _fork.SimpleQueue()
    end = End(time.monotonic() + seconds, _fork.Value("q", 0))
    roles: list[tuple[Any, ...]] = [(write, uri, end, number, progress) for number in range(WRITERS)]
    roles += [(compact, uri, end, number) for number in range(COMPACTORS)]
    roles += [(read, uri, end, progress) for _ in range(READERS)]
    processes = [_fork.Process(target=_run, args=(results, *role), daemon=True) for role in roles]
    for process in processes:
        process.start()
    outcome = [results.get() for _ in processes]
    for process in processes:
        process.join()
    problems = [problem for answer in outcome for problem in answer.get("problems", [])]
    published = [[Publication(**item) for item in answer["published"]] for answer in outcome if "published" in answer]
    problems += chain_problems([publication for each in published for publication in each])
    if not problems:
        index = open_index(uri)
        expected = model([writer.done.value for writer in progress])
        for moment in ("", " after a last compaction"):
            if rows(index.read()) != expected:
                problems.append(f"the index does not hold what the model holds{moment}")
            index.compact()
    return {
        "changes": [answer["changes"] for answer in outcome if "changes" in answer],
        "publications": [len(each) for each in published],
        "reads": [answer["reads"] for answer in outcome if "reads" in answer],
        "problems": problems,
    }


if __name__ == "__main__":
    print(json.dumps(soak(sys.argv[1], float(sys.argv[2]))))

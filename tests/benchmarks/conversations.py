"""Measure how much of the evidence for questions about long conversations memory finds, with LoCoMo's turns as entries.

    .venv/bin/python tests/benchmarks/conversations.py --data locomo10.zip
    .venv/bin/python tests/benchmarks/conversations.py --data locomo10.json --half tuning

``--data`` is the data file of https://github.com/snap-research/locomo. Its licence, CC BY-NC 4.0, forbids commercial
use, so this repository contains neither the file nor figures from it. Each turn is an entry that contains its speaker
and date; the evidence for a question is the turns that answer it. Recall is the share of this evidence among the first
ten hits, so no generative model is needed. The first five conversations are for tuning, the others for reporting.
"""

from __future__ import annotations

import json
import sys
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, get_args

import measure

from driftline.storage.defaults import Mode
from driftline.storage.memory.store import MemoryItem, MemoryStore
from driftline.tasks.embedding.embedder import WordTableEmbedder

TOP_K = 10
OF_TUNING = 5
KINDS = {1: "several turns", 2: "dates", 3: "open", 4: "one turn", 5: "without an answer"}
"""The question categories, by LoCoMo's numbers."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and the keys of the turns that answer it."""

    text: str
    kind: str
    evidence: frozenset[str]


def main() -> int:
    options = measure.begin(__doc__, data="", half="all")
    if not Path(options.data).is_file():
        print(f"Skipped: there is no file {options.data or '(--data)'}. Get data/locomo10.zip of snap-research/locomo.")
        return 0
    found = [*_conversations(Path(options.data))]
    halves = {"all": found, "tuning": found[:OF_TUNING], "reporting": found[OF_TUNING:]}
    embedder = WordTableEmbedder.open()
    recall: dict[tuple[str, str], list[float]] = defaultdict(list)
    seconds: list[float] = []
    with measure.scratch() as folder:
        catalog = f"sqlite:///{folder / 'catalog.sqlite'}"
        with MemoryStore(str(folder / "workspace"), catalog_url=catalog, embedder=lambda: embedder) as store:
            for number, conversation in enumerate(halves[options.half][: 1 if options.small else None]):
                scope = f"org:locomo/project:c{number}"
                turns = dict(_turns(conversation))
                store.store_many(MemoryItem(key, text, scope) for key, text in turns.items())
                store.flush()
                for each in _questions(conversation, turns):
                    for mode in get_args(Mode):
                        started = time.process_time()
                        hits = store.search_memory(each.text, TOP_K, scope=scope, mode=mode)
                        seconds.append(time.process_time() - started)
                        share = len(each.evidence & {hit.record.key for hit in hits}) / len(each.evidence)
                        for key in (each.kind, "all"):
                            recall[mode, key].append(share)
    print(f"\n{'recall@10':20}{'questions':>10}" + "".join(f"{mode:>9}" for mode in get_args(Mode)))
    for kind in (*KINDS.values(), "all"):
        if shares := recall["hybrid", kind]:
            print(f"{kind:20}{len(shares):10}" + "".join(f"{mean(recall[mode, kind]):9.3f}" for mode in get_args(Mode)))
    print(f"CPU of a search: {1000 * mean(seconds):.1f} ms")
    return 0


def _conversations(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the conversations of a release with their names. A release is one file, or an archive of one file per
    conversation.
    """
    if not zipfile.is_zipfile(path):
        yield from json.loads(path.read_text("utf-8"))
        return
    with zipfile.ZipFile(path) as archive:
        for name in sorted(name for name in archive.namelist() if name.endswith(".json")):
            yield json.loads(archive.read(name))


def _turns(conversation: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the key and text of each turn: speaker, date, spoken text, and a description of any picture."""
    sessions = conversation.get("conversation", conversation)
    for name, turns in sessions.items():
        if not name.startswith("session_") or not isinstance(turns, Sequence) or isinstance(turns, str):
            continue
        date = sessions.get(f"{name}_date_time", "")
        for turn in turns:
            if isinstance(turn, Mapping) and "dia_id" in turn:
                shown = f" ({turn['blip_caption']})" if "blip_caption" in turn else ""
                yield turn["dia_id"], f"{turn['speaker']}, {date}: {turn['text']}{shown}"


def _questions(conversation: Mapping[str, Any], turns: Mapping[str, str]) -> Iterator[Asked]:
    """Yield the questions with known evidence."""
    for asked in conversation["qa"]:
        evidence = frozenset(key for each in asked.get("evidence", ()) for key in str(each).split("; ") if key in turns)
        if evidence:
            yield Asked(asked["question"], KINDS.get(asked.get("category"), "one turn"), evidence)


if __name__ == "__main__":
    sys.exit(main())

"""Assign each file of overlapping sources to one source, independent of the order of runs (DESIGN, "Index run").

If several sources of a tenant select a file, the source with the nearest folder gets it, then the first by entity.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftline.storage.entities import Entity
from driftline.storage.workspace.records import SourceRecord
from driftline.tasks.scanning.path_patterns import Matcher, Rules


@dataclass(frozen=True, slots=True)
class Claim:
    """Files under ``prefix`` ("" or a folder with a trailing slash) that pass ``rules`` belong to another source."""

    prefix: str
    rules: Rules

    @property
    def is_whole(self) -> bool:
        return self.rules == Rules()

    def covers(self, paths: pa.Array) -> NDArray[np.bool_]:
        """Return which ``paths`` (relative to the source that loses them) are claimed, as ``(n,) bool``."""
        below = np.asarray(pc.starts_with(paths, self.prefix).to_numpy(zero_copy_only=False), dtype=bool)
        if not self.is_whole and below.any():
            inside = pc.utf8_slice_codeunits(paths.filter(pa.array(below)), len(self.prefix))
            below[np.flatnonzero(below)] = ~Matcher.of(self.rules).excluded(inside)
        return below


def claimed(paths: pa.Array, claims: Iterable[Claim]) -> NDArray[np.bool_]:
    """Return an ``(n,) bool`` mask of the paths covered by any of ``claims``."""
    taken = np.zeros(len(paths), dtype=bool)
    for claim in claims:
        taken |= claim.covers(paths)
    return taken


@dataclass(frozen=True, slots=True)
class SourcesByFolder:
    """A workspace's sources, keyed by folder, for quickly finding sources that may share files."""

    records: Mapping[Entity, SourceRecord]
    _sorted: list[tuple[str, Entity]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sorted", sorted((_root(record.uri), e) for e, record in self.records.items()))

    def at_or_below(self, uri: str) -> list[Entity]:
        """Return the sources whose folder is ``uri`` or inside it."""
        root = _root(uri)
        start = bisect_left(self._sorted, root, key=itemgetter(0))
        return [
            entity for _, entity in takewhile(lambda item: item[0].startswith(root), islice(self._sorted, start, None))
        ]

    def at_or_above(self, uri: str) -> list[Entity]:
        """Return the sources whose folder is ``uri`` or contains it."""
        root = _root(uri)
        lengths = [at + 1 for at, character in enumerate(root) if character == "/"]
        found: list[Entity] = []
        for folder in (root[:length] for length in lengths):
            start = bisect_left(self._sorted, folder, key=itemgetter(0))
            end = bisect_right(self._sorted, folder, start, key=itemgetter(0))
            found += [entity for _, entity in self._sorted[start:end]]
        return found

    def claims_on(self, entity: Entity, record: SourceRecord) -> tuple[Claim, ...]:
        """Return the claims of the tenant's other sources on files under the folder of ``record``."""
        others = (other for other in self.at_or_below(record.uri) if other != entity)
        claims = (claim_of(other, self.records[other], entity, record) for other in others)
        return tuple(claim for claim in claims if claim is not None)


def claim_of(entity: Entity, record: SourceRecord, on: Entity, loser: SourceRecord) -> Claim | None:
    """Return the claim of ``record`` on another source's files, or None if it has none, or lower priority."""
    inside = below(loser.uri, record.uri)
    if inside is None or entity.tenant != on.tenant or (not inside and str(entity) >= str(on)):
        return None
    return Claim(f"{inside}/" if inside else "", Rules(record.include, record.exclude))


def below(folder: str, path: str) -> str | None:
    """Return a path or URI relative to ``folder`` ("" for the folder itself), or None if it is outside."""
    if path == folder:
        return ""
    root = _root(folder)
    return path[len(root) :] if path.startswith(root) else None


def _root(uri: str) -> str:
    return uri.rstrip("/") + "/"

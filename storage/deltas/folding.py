"""For each key, the row of the highest ``rev``: pure functions over Arrow tables (DESIGN, "Delta index")."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def newest(key: str, changes: pa.Table) -> pa.Table:
    """For each key the row of the highest ``rev``, sorted by key; a pure function."""
    if len(changes) == 0:
        return changes
    changes = changes.sort_by([(key, "ascending"), ("rev", "descending")])
    keys = changes[key].combine_chunks()
    first = pa.concat_arrays([pa.array([True]), pc.not_equal(keys[1:], keys[:-1])])
    return changes.filter(first)


def fold(key: str, base: pa.Table, changes: pa.Table) -> pa.Table:
    """For each key the row of the highest ``rev``, sorted by key; a pure function (DESIGN, "Delta index").

    ``base`` and ``changes`` are both sorted by key, with unique keys.
    """
    if len(changes) == 0:
        return base
    if len(base) == 0:
        return changes
    position = np.asarray(pc.search_sorted(base[key], changes[key]).to_numpy(zero_copy_only=False), dtype=np.int64)
    row = np.minimum(position, len(base) - 1)
    beside = base.select([key, "rev"]).take(pa.array(row))
    known = np.asarray(pc.equal(beside[key], changes[key]).to_numpy(), dtype=bool)
    newer = np.asarray(pc.greater(changes["rev"], beside["rev"]).to_numpy(), dtype=bool)
    order = np.arange(len(base))
    number = np.arange(len(base), len(base) + len(changes))
    order[row[known & newer]] = number[known & newer]
    order = np.insert(order, position[~known], number[~known])
    return pa.concat_tables([base, changes]).take(pa.array(order))

"""Entries about to be written to the catalog, as columns: one object per entry takes a third of a bulk load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from itertools import compress
from typing import Any

from driftline.storage.ids import content_hash
from driftline.storage.memory.catalog.values import check_expiry, check_key, check_metadata, encode


@dataclass(slots=True)
class Drafts:
    """Entries of one tenant. Columns are named as in the catalog; ``path`` is the owner's directory, ``metadata`` JSON
    text. ``large`` maps the keys of entries that are not ``inline`` to their values."""

    key: list[str] = field(default_factory=list)
    path: list[str] = field(default_factory=list)
    inline: list[bytes | None] = field(default_factory=list)
    blob_path: list[str | None] = field(default_factory=list)
    content_hash: list[str] = field(default_factory=list)
    size_bytes: list[int] = field(default_factory=list)
    metadata: list[str] = field(default_factory=list)
    expires: list[datetime | None] = field(default_factory=list)
    large: dict[str, bytes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.key)

    def add(
        self,
        key: str,
        value: Any,
        path: str,
        metadata: Mapping[str, Any] | None,
        expires_at: datetime | None,
        inline_bytes: int,
    ) -> None:
        """Append an entry. Raises BadEntry."""
        data = encode(value)
        is_small = len(data) <= inline_bytes
        self.key.append(check_key(key))
        self.path.append(path)
        self.inline.append(data if is_small else None)
        self.blob_path.append(None)
        self.content_hash.append(content_hash(data))
        self.size_bytes.append(len(data))
        self.metadata.append(check_metadata(metadata))
        self.expires.append(check_expiry(expires_at))
        if is_small:
            self.large.pop(key, None)
        else:
            self.large[key] = data

    def latest(self) -> Drafts:
        """The last entry of each key."""
        positions = {key: position for position, key in enumerate(self.key)}
        if len(positions) == len(self):
            return self
        return self.some([positions[key] == position for position, key in enumerate(self.key)])

    def some(self, chosen: Sequence[bool]) -> Drafts:
        """The entries whose position is true in ``chosen``."""
        columns = {name: list(compress(getattr(self, name), chosen)) for name in COLUMNS}
        return Drafts(**columns, large=self.large)


COLUMNS = tuple(each.name for each in fields(Drafts) if each.name != "large")

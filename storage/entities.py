"""Entities: the nodes of the hierarchy, their paths and their directories (DESIGN, "Words")."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

from driftline.storage.errors import BadEntity

INDEX_LEVELS = ("org", "project", "source")
DEFAULT_IDS = {"org": "default", "project": "default"}
MAX_ID_CHARACTERS = 200

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_TYPE = re.compile(r"[a-z][a-z0-9_]*")


@lru_cache(maxsize=100_000)  # a bulk load encodes the same few ids repeatedly
def encode_id(text: str) -> str:
    """``text`` as one safe path segment: bytes outside ``[A-Za-z0-9._-]`` become ``~HH``.

    Raises BadEntity for an empty, overlong or undecodable id, and for ``.`` and ``..``.
    """
    if not text or text in (".", ".."):
        raise BadEntity("An id must not be empty, '.' or '..'", repr(text), "Give it a name.")
    if len(text) > MAX_ID_CHARACTERS:
        raise BadEntity(f"An id has more than {MAX_ID_CHARACTERS} characters", repr(text[:40] + "…"), "Shorten it.")
    if any(ord(c) < 32 for c in text):
        raise BadEntity("An id must not contain control characters", repr(text), "Remove them.")
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise BadEntity("An id is not valid Unicode", repr(text), "Use another name.") from error
    return "".join(chr(byte) if byte in _PLAIN else f"~{byte:02X}" for byte in raw)


def decode_id(segment: str) -> str:
    """The id that ``encode_id`` wrote as ``segment``."""
    return unquote(segment.replace("%", "%25").replace("~", "%"))


@dataclass(frozen=True, slots=True, order=True)
class Entity:
    """A node of the hierarchy: ``(type, id)`` pairs from the tenant root down.

    ``str(entity)`` is its path, ``org:acme/project:alpha/source:web``, with ids encoded as in ``directory``.
    """

    parts: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str, levels: tuple[str, ...] = INDEX_LEVELS) -> Entity:
        """The entity that ``type:id/type:id/...`` names, its levels in order.

        Missing leading levels get their defaults, so that ``source:web`` means
        ``org:default/project:default/source:web``. Raises BadEntity.
        """
        pairs: list[tuple[str, str]] = []
        for segment in text.strip("/").split("/"):
            kind, colon, name = segment.partition(":")
            if not colon or not _TYPE.fullmatch(kind):
                raise BadEntity(
                    "An entity must have the form type:id/type:id", repr(text), f"For example: {_example(levels)}."
                )
            if kind not in levels:
                raise BadEntity(f"Unknown level {kind!r} in an entity", repr(text), f"Levels are: {', '.join(levels)}.")
            encode_id(name)
            pairs.append((kind, name))
        ids = dict(pairs)
        depths = [levels.index(kind) for kind, _ in pairs]
        if len(ids) != len(pairs) or depths != sorted(depths):
            raise BadEntity(
                "The levels of an entity are repeated or out of order", repr(text), f"For example: {_example(levels)}."
            )
        deepest = depths[-1]
        parts = []
        for level in levels[: deepest + 1]:
            if level not in ids and level not in DEFAULT_IDS:
                raise BadEntity(
                    f"The entity lacks the level {level!r}", repr(text), f"For example: {_example(levels)}."
                )
            parts.append((level, ids.get(level) or DEFAULT_IDS[level]))
        return cls(tuple(parts))

    @classmethod
    def of_directory(cls, directory: str) -> Entity:
        """The entity that ``directory`` belongs to."""
        pairs = (segment.partition(":") for segment in directory.split("/"))
        return cls(tuple((kind, decode_id(name)) for kind, _, name in pairs))

    @property
    def type(self) -> str:
        return self.parts[-1][0]

    @property
    def id(self) -> str:
        return self.parts[-1][1]

    @property
    def tenant(self) -> Entity:
        """The entity of the first level, below which all data of the tenant is stored."""
        return Entity(self.parts[:1])

    @property
    def directory(self) -> str:
        """The directory of the entity, relative to the workspace, without a trailing slash."""
        return "/".join(f"{kind}:{encode_id(name)}" for kind, name in self.parts)

    def __str__(self) -> str:
        return "/".join(f"{kind}:{name}" for kind, name in self.parts)


def _example(levels: tuple[str, ...]) -> str:
    return "/".join(f"{level}:{name}" for level, name in zip(levels, ("acme", "alpha", "web", "s123"), strict=False))

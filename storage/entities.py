"""Parse, complete and encode entities: hierarchy levels, default ids, paths and directories."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias
from urllib.parse import unquote

from driftline.storage.errors import BadEntity, UsageError

INDEX_LEVELS = ("org", "project", "source")
DEFAULT_IDS = {"org": "default", "project": "default"}
DEFAULT_PARTS = frozenset(f"{level}:{name}" for level, name in DEFAULT_IDS.items())
MAX_ID_CHARACTERS = 200

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_TYPE = re.compile(r"[a-z][a-z0-9_]*")

TEMPLATE = "org:{org}/project:{group}/source:{name}"
"""The template for the entities of repositories, unless the fleet has its own."""
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_PLACEHOLDERS = frozenset({"org", "group", "name", "path", "id"})


@lru_cache(maxsize=100_000)  # a bulk load encodes the same few ids repeatedly
def encode_id(text: str) -> str:
    """Encode ``text`` as one safe path segment: bytes outside ``[A-Za-z0-9._-]`` become ``~HH``.

    Raises BadEntity for an empty, overlong or undecodable id, and for ``.`` and ``..``.
    """
    if not text or text in (".", ".."):
        raise BadEntity("An id must not be empty, '.' or '..'", repr(text), "Use a name.")
    if len(text) > MAX_ID_CHARACTERS:
        raise BadEntity(f"The id has more than {MAX_ID_CHARACTERS} characters", repr(text[:40] + "…"), "Shorten it.")
    if any(ord(c) < 32 for c in text):
        raise BadEntity("An id must not contain control characters", repr(text), "Remove them.")
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise BadEntity("The id is not valid Unicode", repr(text), "Use another name.") from error
    return "".join(chr(byte) if byte in _PLAIN else f"~{byte:02X}" for byte in raw)


def decode_id(segment: str) -> str:
    """Decode a segment that ``encode_id`` returned."""
    return unquote(segment.replace("%", "%25").replace("~", "%"))


@dataclass(frozen=True, slots=True, order=True)
class Entity:
    """A node of the hierarchy: ``(type, id)`` pairs from the tenant root down.

    ``str(entity)`` is its path, ``org:acme/project:alpha/source:web``, with ids encoded as in ``directory``.
    """

    parts: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str, levels: tuple[str, ...] = INDEX_LEVELS) -> Entity:
        """Parse ``type:id/type:id/...``, with the levels in order.

        Args:
            text: the path. Missing leading levels get their defaults.
            levels: the levels of the hierarchy.

        Returns:
            The entity.

        Raises:
            BadEntity: If the syntax is wrong, or a level is unknown, repeated, out of order, or missing without a
                default.

        Examples:
            >>> str(Entity.parse("source:web"))
            'org:default/project:default/source:web'
        """
        pairs: list[tuple[str, str]] = []
        if not isinstance(text, str):
            raise BadEntity("An entity must be text of the form type:id/type:id", repr(text)[:100])
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
                "The entity's levels are repeated or out of order", repr(text), f"For example: {_example(levels)}."
            )
        deepest = depths[-1]
        parts = []
        for level in levels[: deepest + 1]:
            if level not in ids and level not in DEFAULT_IDS:
                raise BadEntity(f"The entity has no level {level!r}", repr(text), f"For example: {_example(levels)}.")
            parts.append((level, ids.get(level) or DEFAULT_IDS[level]))
        return cls(tuple(parts))

    @classmethod
    def of_directory(cls, directory: str) -> Entity:
        """Return the entity that a workspace directory belongs to.

        Args:
            directory: its path, relative to the workspace.

        Returns:
            The entity.

        Examples:
            >>> Entity.of_directory("org:acme/project:a~20b").id
            'a b'
        """
        pairs = (segment.partition(":") for segment in directory.split("/"))
        return cls(tuple((kind, decode_id(name)) for kind, _, name in pairs))

    @property
    def type(self) -> str:
        """The type of the entity's own level, such as ``source``."""
        return self.parts[-1][0]

    @property
    def id(self) -> str:
        """The id at the entity's own level."""
        return self.parts[-1][1]

    @property
    def tenant(self) -> Entity:
        """The first-level entity, which holds all of the tenant's data."""
        return Entity(self.parts[:1])

    @property
    def directory(self) -> str:
        """The directory of the entity, relative to the workspace, without a trailing slash."""
        return "/".join(f"{kind}:{encode_id(name)}" for kind, name in self.parts)

    def __str__(self) -> str:
        return "/".join(f"{kind}:{name}" for kind, name in self.parts)


def _example(levels: tuple[str, ...]) -> str:
    return "/".join(f"{level}:{name}" for level, name in zip(levels, ("acme", "alpha", "web", "s123"), strict=False))


MEMORY_LEVELS = ("org", "project", "user", "session")
UNASSIGNED = "_unassigned"
ROOT_ID = "default"
MAX_LEVELS = 8
MAX_NAME_BYTES = 255
"""The file system limit for one name; applies to ``type:id`` with the id encoded."""
MAX_DIRECTORY_BYTES = 700
"""The workspace prefix, the directory and a blob's name must fit into the 1,024 bytes of an S3 key."""

EntityName: TypeAlias = Entity | str | tuple[str, str]
"""An entity, its path ``type:id/type:id``, or a ``(type, id)`` pair."""
Parts: TypeAlias = tuple[tuple[str, str], ...]

_LEVEL = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The levels of an entity hierarchy and their default ids.

    ``levels`` start at the tenant. ``defaults`` maps levels to ids. For a level without an entry, the default id is
    ``default`` at the first level, and ``_unassigned`` at all others. ``root`` is the default scope, and confines
    every call; if unset, entries without an owner belong to the first level with its default id. An entity below the
    root takes missing levels from the root, then from the defaults.
    """

    levels: tuple[str, ...] = MEMORY_LEVELS
    defaults: Mapping[str, str] = field(default_factory=dict)
    root: EntityName | None = None

    def __post_init__(self) -> None:
        names = ", ".join(self.levels)
        if not 1 <= len(self.levels) <= MAX_LEVELS or len(set(self.levels)) != len(self.levels):
            raise UsageError(f"A hierarchy must have 1 to {MAX_LEVELS} distinct levels", names)
        for level in self.levels:
            if not _LEVEL.fullmatch(level) or level == INDEX_LEVELS[-1]:
                raise UsageError("Invalid level name", repr(level), "Use a-z, 0-9, _, and not 'source'.")
        for level, name in self.defaults.items():
            if level not in self.levels:
                raise UsageError(f"A default is set for a level that is not one of {names}", repr(level))
            encode_id(name)
        _ = self.root_entity

    @property
    def root_entity(self) -> Entity:
        """The configured root, or else the default entity of the first level."""
        parts = self.parts(self.root) if self.root else (self._with_default(self.levels[0]),)
        return self._completed(parts, ())

    def named(self, type: str, id: str, parents: Mapping[str, str] | None = None) -> Entity:
        """Return the entity ``type:id``; missing levels come from the root or the defaults.

        Args:
            type: the level of the entity.
            id: the id of the entity.
            parents: maps higher levels to ids.

        Returns:
            The entity.

        Raises:
            BadEntity: for unknown levels and invalid ids.

        Examples:
            >>> driftline.Hierarchy().named("user", "bob", {"org": "acme"}).directory
            'org:acme/project:_unassigned/user:bob'
        """
        ids = {**(parents or {}), type: id}
        for level in ids:
            self.check_type(level)
        depth = self.levels.index(type)
        below = [level for level in ids if self.levels.index(level) > depth]
        if below:
            raise BadEntity(f"A {below[0]} is below a {type}, not above it", f"{type}:{id!r}")
        return self.complete(tuple((level, ids[level]) for level in self.levels if level in ids))

    def check_type(self, type: str) -> str:
        """Check that a level exists.

        Args:
            type: its name.

        Returns:
            ``type``.

        Raises:
            BadEntity: if it is not a level.

        Examples:
            >>> driftline.Hierarchy().check_type("project")
            'project'
        """
        if type not in self.levels:
            raise BadEntity("Unknown level in an entity", repr(type)[:80], f"Levels are: {', '.join(self.levels)}.")
        return type

    def entity(self, entity: EntityName) -> Entity:
        """Check an entity, and complete it with the missing levels above it.

        Args:
            entity: text of the form ``type:id/type:id``, a pair, or an entity. Ids may be plain or encoded as in
                ``Entity.directory``; an id with a slash must be encoded, or be part of a pair.

        Returns:
            The complete entity.

        Raises:
            BadEntity: if it is malformed.

        Examples:
            >>> driftline.Hierarchy().entity(("project", "alpha")).directory
            'org:default/project:alpha'
        """
        return self.complete(self.parts(entity))

    def parts(self, entity: EntityName) -> Parts:
        """Return the levels and ids in an entity.

        Args:
            entity: see ``entity``.

        Returns:
            Pairs of level and id, in order.

        Raises:
            BadEntity: if it is malformed.

        Examples:
            >>> driftline.Hierarchy().parts("project:alpha/user:bob")
            (('project', 'alpha'), ('user', 'bob'))
        """
        parts = entity.parts if isinstance(entity, Entity) else _parse(entity)
        depths = [self.levels.index(level) if level in self.levels else -1 for level, _ in parts]
        if not parts or -1 in depths or len(dict(parts)) != len(parts) or sorted(depths) != depths:
            raise BadEntity(
                f"An entity must list its levels once each and in order: {', '.join(self.levels)}",
                repr(str(entity)[:200]),
                "For example: " + "/".join(f"{level}:name" for level in self.levels[:2]) + ".",
            )
        return parts

    def is_complete(self, parts: Parts) -> bool:
        """Return whether no level is missing.

        Args:
            parts: pairs of level and id.

        Returns:
            Whether ``parts`` list every level from the first one down to their last one.

        Examples:
            >>> driftline.Hierarchy().is_complete((("org", "acme"),))
            True
        """
        return tuple(level for level, _ in parts) == self.levels[: len(parts)]

    def complete(self, parts: Parts) -> Entity:
        """Add missing levels from the root or the defaults.

        Args:
            parts: pairs of level and id.

        Returns:
            The entity.

        Raises:
            BadEntity: if an id is invalid or the path is too long.

        Examples:
            >>> driftline.Hierarchy().complete((("project", "alpha"),)).directory
            'org:default/project:alpha'
        """
        return self._completed(parts, self.root_entity.parts)

    def _completed(self, parts: Parts, root: Parts) -> Entity:
        ids, inherited = dict(parts), dict(root)
        found: list[tuple[str, str]] = []
        for level in self.levels[: self.levels.index(parts[-1][0]) + 1]:
            if level in ids:
                part = level, ids[level]
            elif level in inherited:
                part = level, inherited[level]
            else:
                part = self._with_default(level)
            if inherited.get(level) != part[1]:
                inherited = {}  # a sibling of the root, or below one
            found.append(part)
        entity = Entity(tuple(found))
        _check_length(entity)
        return entity

    def _with_default(self, level: str) -> tuple[str, str]:
        return level, self.defaults.get(level, ROOT_ID if level == self.levels[0] else UNASSIGNED)


def directories(path: str) -> list[str]:
    """Return the directories of the entity stored at ``path`` and of its ancestors, tenant first."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def short_names(sources: Collection[str]) -> dict[str, str]:
    """Return each source's last id, or its full path if other sources have the same last id.

    Examples:
        >>> [*short_names(["org:a/source:web", "org:b/source:web", "org:b/source:app"]).values()]
        ['a/web', 'b/web', 'app']
    """
    ids = {source: [part.partition(":")[2] for part in source.split("/")] for source in sources}
    last = Counter(parts[-1] for parts in ids.values())
    return {source: parts[-1] if last[parts[-1]] == 1 else "/".join(parts) for source, parts in ids.items()}


def is_within(entity: Entity, scope: Entity) -> bool:
    """Return whether ``entity`` is at or below ``scope``."""
    return entity.parts[: len(scope.parts)] == scope.parts


@dataclass(frozen=True, slots=True)
class Boundary:
    """The visible part of the hierarchy: each of ``tops``, and everything under it. ``of`` drops tops that are below
    another.

    Examples:
        >>> acme, web = Entity.parse("org:acme"), Entity.parse("org:acme/project:web")
        >>> boundary = Boundary.of(web, Entity.parse("org:other"))
        >>> boundary.allows(web), boundary.allows(acme)
        (True, False)
        >>> str(boundary.narrowed(Boundary.of(acme)))
        'org:acme/project:web'
    """

    tops: tuple[Entity, ...]
    _parts: frozenset[Parts] = field(init=False, compare=False, repr=False)
    _names: frozenset[str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_parts", frozenset(top.parts for top in self.tops))
        object.__setattr__(self, "_names", frozenset(map(str, self.tops)))

    @classmethod
    def of(cls, *entities: Entity) -> Boundary:
        """Return the boundary that allows ``entities`` and everything under them; with none, it allows nothing."""
        distinct = {entity.parts for entity in entities}
        kept = (e for e in distinct if not any(e[:depth] in distinct for depth in range(len(e))))
        return cls(tuple(sorted(map(Entity, kept), key=str)))

    def __str__(self) -> str:
        return ", ".join(map(str, self.tops))

    @property
    def tenants(self) -> frozenset[Entity]:
        """The tenants that are at least partly visible."""
        return frozenset(top.tenant for top in self.tops)

    def allows(self, entity: Entity) -> bool:
        """Return whether ``entity`` is at or below one of the tops."""
        return any(entity.parts[:depth] in self._parts for depth in range(len(entity.parts) + 1))

    def allows_name(self, name: str) -> bool:
        """Return whether the entity with this name, in any hierarchy, is at or below one of the tops."""
        parts = name.split("/")
        return any("/".join(parts[:depth]) in self._names for depth in range(len(parts) + 1))

    def narrowed(self, other: Boundary) -> Boundary:
        """Return the boundary that allows only what both boundaries allow."""
        inside = [top for top in self.tops if other.allows(top)]
        return Boundary.of(*inside, *(top for top in other.tops if self.allows(top)))


def is_allowed(entity: Entity, within: Boundary | None) -> bool:
    """Return whether ``within`` allows ``entity``; None allows all."""
    return within is None or within.allows(entity)


def _parse(text: str | tuple[str, str]) -> Parts:
    if not isinstance(text, str):
        return (_pair(text),)
    parts = []
    for segment in text.strip("/").split("/"):
        kind, colon, name = segment.partition(":")
        if not colon or not _LEVEL.fullmatch(kind):
            raise BadEntity("An entity must have the form type:id/type:id", repr(text[:200]))
        _check_ends(name)
        decoded = decode_id(name)
        parts.append((kind, decoded if _encodes(decoded, name) else name))
    return tuple(parts)


def _pair(pair: object) -> tuple[str, str]:
    """Validate ``pair``: JSON may have turned it into a list or anything else."""
    if isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(each, str) for each in pair):
        _check_ends(pair[1])
        return pair[0], pair[1]
    raise BadEntity("An entity must be a string of the form type:id/type:id, or a (type, id) pair", repr(pair)[:80])


def _check_ends(name: str) -> None:
    """Reject spaces around an id, which templates leave behind: ``acme`` and ``acme `` would be two entities."""
    if name != name.strip():
        raise BadEntity("An id must not begin or end with whitespace", repr(name)[:80], "Remove it.")


def _encodes(text: str, segment: str) -> bool:
    try:
        return encode_id(text) == segment
    except BadEntity:
        return False


def _check_length(entity: Entity) -> None:
    names = [f"{kind}:{encode_id(name)}" for kind, name in entity.parts]
    if max(map(len, names)) > MAX_NAME_BYTES:
        raise BadEntity(f"The id takes more than {MAX_NAME_BYTES} bytes when encoded", repr(max(names, key=len)[:80]))
    if len("/".join(names)) > MAX_DIRECTORY_BYTES:
        raise BadEntity(
            f"The entity's path takes more than {MAX_DIRECTORY_BYTES} bytes",
            repr("/".join(names)[:80]),
            "Shorten its ids.",
        )


# -- entities of repositories -------------------------------------------------------------------


def check_template(template: str) -> None:
    """Check an entity template. Raises UsageError."""
    unknown = [name for name in _PLACEHOLDER.findall(template) if name not in _PLACEHOLDERS]
    if unknown or "{" in _PLACEHOLDER.sub("", template) or "}" in _PLACEHOLDER.sub("", template):
        known = ", ".join(f"{{{name}}}" for name in sorted(_PLACEHOLDERS))
        raise UsageError("The entity template has an unknown placeholder", repr(template), f"Placeholders: {known}.")
    entity = Entity.parse(_PLACEHOLDER.sub("x", template))
    if entity.type != INDEX_LEVELS[-1]:
        raise BadEntity("The entity template has no source", repr(template), "Append /source:{name}.")
    if not {"name", "path", "id"} & set(_PLACEHOLDER.findall(template)):
        raise UsageError(
            "The entity template yields one entity for all repositories", repr(template), "Use {name} or {path}."
        )


def normalized_name(entity: str) -> str:
    """Return the form in which case-insensitive, normalization-insensitive file systems compare names.

    >>> normalized_name("source:\u00dc") == normalized_name("source:u\u0308")
    True
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", entity).casefold())


def entity_of(template: str, identifier: str, path: str, branch: str, taken: Collection[str]) -> str:
    """Return an entity for a repository. If its ``normalized_name`` is already in ``taken``, a suffix is added.

    >>> entity_of(TEMPLATE, "1", "acme/tools/lint/cli", "main", ())
    'org:acme/project:tools.lint/source:cli'

    Raises BadEntity.
    """
    *groups, name = path.split("/")
    values = {
        "org": groups[0] if groups else DEFAULT_IDS["org"],
        "group": ".".join(groups[1:]) or DEFAULT_IDS["project"],
        "name": name + (f"@{branch}" if "@" in identifier else ""),
        "path": path,
        "id": identifier,
    }
    filled = _PLACEHOLDER.sub(lambda match: values[match[1]].replace("/", "."), template)
    suffix = hashlib.blake2b(identifier.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    for candidate in (filled, f"{filled}-{suffix}"):
        entity = Entity.parse(candidate)
        for _, each in entity.parts:
            encode_id(each)
        if normalized_name(str(entity)) not in taken:
            return str(entity)
    raise BadEntity("Another repository already has this entity", path, "Use {path} in the template.")

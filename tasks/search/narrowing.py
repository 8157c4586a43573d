"""Which documents a search may answer with: one model, checked here, that every interface builds from its arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from driftline.storage.entities import Entity
from driftline.storage.errors import UsageError
from driftline.storage.globs import alternatives, check_glob, is_unicode
from driftline.storage.lines.filters import LineFilter
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.line_kinds import extensions_of
from driftline.tasks.search.named_places import where_named
from driftline.tasks.search.relative_filters import relative_to_sources

_WILDCARD = re.compile(r"[*?\[]|\{.*,.*\}")
MAX_TOLD = 20
"""Values of one filter that are told one by one."""
_LABELS = {"paths": "path", "dirs": "directory", "globs": "glob", "exts": "ending", "languages": "language"}


@dataclass(frozen=True, slots=True)
class SearchFilter:
    """Conditions that a document must all satisfy, each by any of its values.

    None is no condition; an empty one allows nothing. Endings may have braces, as globs do. With ``on_this_machine``,
    ``paths``, ``dirs`` and globs that begin with ``~`` or ``..`` are those of the process: its files and folders, or
    their paths in a source. ``also`` are further conditions, and nothing outside of ``within`` is allowed, or told.

    Raises UsageError for a value that can match nothing, with the nearest spelling that can.
    """

    paths: Sequence[str] | None = None
    dirs: Sequence[str] | None = None
    globs: Sequence[str] | None = None
    exts: Sequence[str] | None = None
    languages: Sequence[str] | None = None
    entities: Sequence[str | tuple[str, str]] | None = None
    also: Sequence[LineFilter] = ()
    within: Entity | None = None
    on_this_machine: bool = False

    def __post_init__(self) -> None:
        for name in ("paths", "dirs"):
            for value in getattr(self, name) or ():
                _check_name(_LABELS[name], value)
        if self.globs is not None:
            object.__setattr__(self, "globs", tuple(self._glob(glob) for glob in self.globs))
        if self.exts is not None:
            object.__setattr__(self, "exts", tuple(ext for given in self.exts for ext in _endings(given)))
        extensions_of(self.languages or ())

    def where(self, workspace: Workspace) -> LineFilter:
        """The lines of ``workspace`` that every condition allows. Raises BadEntity, UsageError."""
        levels = workspace.config.hierarchy
        entities = None if self.entities is None else tuple(_entity(each, levels) for each in self.entities)
        named: dict[str, Any] = {}
        also = [LineFilter(entities=(self.within,))] if self.within is not None else []
        if not self.on_this_machine:
            named = {"paths": _tuple(self.paths), "dirs": _tuple(self.dirs)}
        else:
            also += [where_named(workspace, self.paths, "file")] if self.paths is not None else []
            also += [where_named(workspace, self.dirs, "folder")] if self.dirs is not None else []
        also += [LineFilter(exts=extensions_of(self.languages))] if self.languages is not None else []
        also += self.also
        globs, exts = _tuple(self.globs), _tuple(self.exts)
        where = LineFilter(entities=entities, globs=globs, exts=exts, all_of=tuple(also) or None, **named)
        return relative_to_sources(workspace, where)

    def conditions(self) -> Iterator[tuple[str, str, SearchFilter]]:
        """What each value alone allows: its name, "" for ``also``, what to tell people if that is nothing, and it."""
        alone: dict[str, Any] = {"within": self.within, "on_this_machine": self.on_this_machine}
        for each in fields(self):
            if each.name in _LABELS or each.name == "entities":
                for value in (getattr(self, each.name) or ())[:MAX_TOLD]:
                    yield *self._told(each.name, value), SearchFilter(**alone | {each.name: (value,)})
        for where in self.also:
            for name, value, each_of in _values(where):
                _, told = self._told(name, value) if name else ("", "No indexed document is in what was named.")
                yield "", told, SearchFilter(also=(each_of,), **alone)

    def _told(self, name: str, value: str | tuple[str, str]) -> tuple[str, str]:
        text = value if isinstance(value, str) else ":".join(value)
        condition, advice = f"{_LABELS.get(name, 'entity')} {text!r}", ""
        if name in ("paths", "dirs") and _WILDCARD.search(text):
            advice = " Did you mean a glob?"
        elif name == "globs" and "," in text and "{" not in text:
            advice = f" Alternatives have braces: {'{' + text + '}'!r}."
        elif name == "globs" and not _WILDCARD.search(text):
            advice = f" A directory is the glob {text.rstrip('/') + '/'!r}."
        return condition, f"No indexed document matches the {condition}.{advice}"

    def _glob(self, glob: str) -> str:
        if self.on_this_machine and glob.startswith(("~/", "../")):
            glob = os.path.normpath(os.path.join(os.getcwd(), os.path.expanduser(glob)))
        check_glob(glob)
        return glob


def as_filter(where: LineFilter | SearchFilter | None) -> SearchFilter:
    """The conditions of a filter, one by one as far as it tells them."""
    if isinstance(where, SearchFilter):
        return where
    return SearchFilter(also=(where,) if where is not None and where != LineFilter() else ())


def _values(where: LineFilter) -> Iterator[tuple[str, str, LineFilter]]:
    """The values of a filter one by one, with the names of their fields; what has none, or too many, as one."""
    rest = where
    for name in ("entities", "paths", "dirs", "globs", "exts"):
        values = getattr(where, name)
        if values and len(values) <= MAX_TOLD:
            rest = replace(rest, **{name: None})
            yield from ((name, str(value), LineFilter(**{name: (value,)})) for value in values)
    if rest != LineFilter():
        yield "", "", rest


def _tuple(values: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)


def _entity(entity: str | tuple[str, str], levels: tuple[str, ...]) -> Entity:
    return Entity.parse(entity if isinstance(entity, str) else ":".join(entity), levels)


def _check_name(label: str, name: str) -> None:
    if not name.strip():
        raise UsageError(f"A {label} is empty", fix="Leave it out; '.' is a whole source.")
    if not is_unicode(name) or "\0" in name:
        raise UsageError(f"A {label} is not UTF-8, as no indexed one is", repr(name), "Check its encoding.")


def _endings(given: str) -> Iterator[str]:
    """The endings that one value stands for. Raises UsageError."""
    for ext in alternatives(given):
        name = ext.removeprefix("*").removeprefix(".")
        if not name.strip():
            raise UsageError("An ending is empty", repr(given), "Name one, such as 'py'.")
        if not is_unicode(name):
            raise UsageError("An ending is not UTF-8, as no indexed one is", repr(given), "Check its encoding.")
        if ext.startswith("*") or name != name.strip():
            raise UsageError("An ending is no glob", repr(given), f"Write {name.strip()!r}.")
        if "." in name or "/" in name or _WILDCARD.search(name):
            fix = f"Use the glob {(name if '/' in name else f'*.{name}')!r}."
            raise UsageError("An ending has no dot, slash or wildcard inside", repr(given), fix)
        if "," in name and not name.endswith(",v"):
            raise UsageError("An ending has a comma", repr(given), f"Write {'{' + name + '}'!r}, or name each.")
        yield ext

"""The index request: each option of an index run is declared once.

The command line, the Prefect flows, ``driftline.toml`` and the Python functions get their parameters, with types,
defaults, bounds and descriptions, from the table ``OPTIONS``. The module imports no heavy libraries.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Any, Self, TypeAlias, cast

from driftline.storage.defaults import (
    DEFAULT_EXECUTOR,
    DEFAULT_MAX_DELETE_FRACTION,
    IndexScope,
    Redaction,
)
from driftline.storage.errors import UsageError
from driftline.storage.option_table import Options, listed, option, path_or_uri

_COMMAND, _FLOW = frozenset({"command"}), frozenset({"flow"})


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """A source with its own entity and filters, which replace those recorded in the workspace.

    ``link``, its host's type or a link template, also replaces the recorded value; None keeps it, and "" removes it.
    ``commit`` is a repository's commit, if the caller already looked it up. If ``rebind`` is set, the entity may move
    to ``uri``. Filters that a person ``configured`` are tried when they change, to report those that match no file.
    """

    uri: str
    entity: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    link: str | None = None
    commit: str = ""
    rebind: bool = False
    configured: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", path_or_uri("A source", self.uri))
        _check_patterns(self)


Given: TypeAlias = str | os.PathLike[str] | SourceRequest
"""A source as passed to a run: a path or URI, or a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions:
    """The sources of an index run, and its options.

    To add an option, add a line here: all interfaces then offer it, unless ``only_in`` limits it to some. ``entity``,
    ``include``, ``exclude`` and ``link`` apply to sources that are given as URIs. ``deep`` is True for the workspace's
    or the default transformer, or the name of one; None keeps the workspace's transformer, if any, and False removes
    it. ``storage_options`` apply to the workspace and the sources. ``keep_going`` reports source failures instead of
    raising the first. ``build`` is the number of the CI build: a run with a lower number than the last run of
    ``branch`` is rejected; in the main index, only if its commit is also older. ``paths`` restricts the scan to these
    files of the only source, for callers that know that nothing else changed. ``references`` contains the references
    to the tokens of repositories that are given without one, as ``with_reference`` expects them.

    Raises UsageError for a value that has the wrong type or is out of bounds.
    """

    sources: Given | Sequence[Given] = field(kw_only=False)
    entity: str | None = option(
        None,
        "Entity of a single source, such as org:acme/project:alpha/source:web.",
        unset="derived from its name",
        metavar="PATH",
    )
    include: Sequence[str] = option(
        (),
        "Index only files that match one of these patterns, now and in later runs; '*' resets.",
        metavar="GLOB",
        group="Content",
    )
    exclude: Sequence[str] = option(
        (),
        "Skip files that match one of these patterns, now and in later runs.",
        metavar="GLOB",
        group="Content",
    )
    model: str | None = option(
        None,
        "A model2vec directory or name.",
        unset="the model installed with Driftline",
        metavar="NAME",
        is_setting=True,
        group="Embedding",
    )
    executor: str = option(
        DEFAULT_EXECUTOR,
        "inline, local (processes), or a Dask scheduler's tcp://HOST:PORT.",
        metavar="WHERE",
        group="Execution",
    )
    workers: int | None = option(
        None,
        "Number of processes of the local executor.",
        bounds=(1, inf),
        served=(1, 1_024),
        group="Execution",
    )
    full: bool = option(False, "Reread and re-embed every document.")
    dry_run: bool = option(False, "Report what would change; write nothing.")
    max_delete_fraction: float = option(
        DEFAULT_MAX_DELETE_FRACTION, "Refuse to delete a larger fraction of a source; 1 allows all.", bounds=(0, 1)
    )
    max_file_bytes: int | None = option(
        None,
        "Skip larger files.",
        unset="the source's current setting; 4 MiB for a new source",
        bounds=(0, inf),
        is_setting=True,
        group="Content",
    )
    max_document_bytes: int | None = option(
        None,
        "Skip larger documents, logs, CSV and JSON Lines files.",
        unset="the source's current setting; 64 MiB for a new source",
        bounds=(0, inf),
        is_setting=True,
        group="Content",
    )
    redact: Redaction | None = option(
        None,
        "Which credentials in the text to redact.",
        unset="the source's current setting; known for a new source",
        guide="index-sources.md#redact",
        is_setting=True,
        group="Content",
    )
    archives: bool | None = option(
        None,
        "Index the files inside zip and tar archives and email.",
        unset="the source's current setting; no for a new source",
        flag="--archives/--no-archives",
        guide="documents.md#archives",
        is_setting=True,
        group="Content",
    )
    notebook_outputs: bool | None = option(
        None,
        "Index the text outputs of notebooks.",
        unset="the source's current setting; no for a new source",
        flag="--notebook-outputs/--no-notebook-outputs",
        is_setting=True,
        group="Content",
    )
    rebind: bool = option(False, "Allow the entity to change its URI.")
    reembed: bool = option(
        False,
        "Allow the workspace to change its model.",
        group="Embedding",
    )
    wait_seconds: float = option(
        0.0,
        "Wait this long for another run of a source to finish.",
        flag="--wait",
        metavar="SECONDS",
        bounds=(0, inf),
        served=(0, 86_400),
        group="Execution",
    )
    indexes: IndexScope = option(
        "all",
        "Search indexes to update; text: only those for exact and full-text search.",
        group="Execution",
    )
    by_commit: bool = option(
        False,
        "Scan only files changed since the last indexed commit, like driftline ci.",
        flag="--ci",
        only_in=_COMMAND,
    )
    branch: str | None = option(
        None, "Index this branch of the sources; the main index does not change.", metavar="NAME"
    )
    link: str | None = option(
        None,
        "Type of the sources' host, or a link template.",
        unset="the source's current setting; derived from the host name for a new source",
        only_in=_FLOW,
    )
    deep: bool | str | None = option(
        None,
        "Also embed definitions and sections with a transformer, now and in later runs (extra: deep).",
        unset="the workspace's current setting",
        flag="--deep/--no-deep",
        only_in=_COMMAND,
        group="Embedding",
    )
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    keep_going: bool = False
    build: int | None = None
    paths: tuple[str, ...] | None = None
    references: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        given = self.sources
        if isinstance(given, str | bytes | os.PathLike | SourceRequest) or not isinstance(given, Iterable):
            given = (given,)
        each = (one if isinstance(one, SourceRequest) else path_or_uri("A source", one) for one in given)
        object.__setattr__(self, "sources", tuple(each))
        if self.model is not None:
            object.__setattr__(self, "model", path_or_uri("A model", self.model))
        _check_patterns(self)
        for name, row in OPTIONS.items():
            row.check(getattr(self, name))

    @property
    def given(self) -> tuple[str | SourceRequest, ...]:
        """The sources, as a tuple."""
        return cast("tuple[str | SourceRequest, ...]", self.sources)


OPTIONS = Options.of(IndexOptions)
"""The options of an index run."""
SETTINGS = Options({name: row for name, row in OPTIONS.items() if row.is_setting})
"""The options that can have a default in ``driftline.toml``."""
_RETIRED = "Refuse to retire a larger fraction of a fleet, or to delete a larger fraction of a source; 1 allows all."
FLEET_OPTIONS = Options(
    {
        **{name: OPTIONS[name] for name in ("executor", "workers", "full", "reembed", "indexes", "wait_seconds")},
        "max_delete_fraction": replace(OPTIONS["max_delete_fraction"], help=_RETIRED),
        **SETTINGS,
    }
)
"""The options of a sync of fleets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRequest(IndexOptions):
    """An index run of ``workspace``: a path or a URI."""

    workspace: str | os.PathLike[str] = field(kw_only=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "workspace", path_or_uri("A workspace", self.workspace))
        IndexOptions.__post_init__(self)

    @classmethod
    def of(cls, workspace: str | os.PathLike[str], options: IndexOptions) -> Self:
        """Return the request for a workspace."""
        return cls(workspace=workspace, **{each.name: getattr(options, each.name) for each in fields(options)})


def _check_patterns(owner: SourceRequest | IndexOptions) -> None:
    """Convert pattern lists to tuples, as in the records. Raises UsageError for anything but strings."""
    for name in ("include", "exclude"):
        patterns = listed(name, getattr(owner, name)) or ()
        if not all(isinstance(each, str) for each in patterns):
            raise UsageError(f"{name} must be a list of strings", repr(patterns)[:100])
        object.__setattr__(owner, name, patterns)

"""Define the schema of ``driftline.toml``: its tables, keys and types, and the error messages for mistakes in it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from cronsim import CronSim, CronSimError
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    field_validator,
)

from driftline.storage.defaults import MAX_RERANKED, Redaction, Strategy
from driftline.storage.errors import UsageError
from driftline.storage.sources.discovery import Provider, Visibility

SHORTEST_INTERVAL_SECONDS = 1.0
_CRON_FIELDS = 5
_STRATEGIES = {"qdrant": "prefilter", "post": "postfilter"}
"""Names of the ``workspaceFiltering`` values in this file."""

Text = Annotated[str, Field(min_length=1)]


class Table(BaseModel):
    """A table of the file. Unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _check_moment(value: str | float | None) -> str | float | None:
    if isinstance(value, str):
        try:
            CronSim(value if len(value.split()) == _CRON_FIELDS else "", datetime.now(UTC))
        except CronSimError as error:
            raise ValueError("write five cron fields, such as '*/15 * * * *', or a number of seconds") from error
    elif value is not None and not SHORTEST_INTERVAL_SECONDS <= value < float("inf"):
        raise ValueError(f"write {SHORTEST_INTERVAL_SECONDS:g} second or more, or five cron fields")
    return value


Moment = Annotated[str | float | None, AfterValidator(_check_moment)]
"""A schedule: five cron fields, or a number of seconds."""


class SourceTable(Table):
    """``[[sources]]``."""

    uri: Text
    entity: Text | None = None
    include: list[Text] = []
    exclude: list[Text] = []
    schedule: Moment = None
    link: Text | None = None

    @field_validator("link")
    @classmethod
    def _check_link(cls, value: str | None) -> str | None:
        if value is not None:
            from driftline.tasks.search.links import wrong_link  # loads Lance

            if (wrong := wrong_link(value)) is not None:
                raise ValueError(wrong)
        return value


class FleetTable(Table):
    """``[[fleet]]``."""

    provider: Provider
    name: Text | None = None
    url: Text | None = None
    org: Text | None = None
    group: Text | None = None
    user: Text | None = None
    repositories: list[Text] = []
    include: list[Text] = []
    exclude: list[Text] = []
    topics: list[Text] = []
    archived: bool = True
    forks: bool = True
    visibility: list[Visibility] = []
    max_size: PositiveInt | None = None
    token: Annotated[str, Field(pattern=r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$")] | None = None
    entity: Text | None = None
    include_files: list[Text] = []
    exclude_files: list[Text] = []
    grace_days: Annotated[NonNegativeFloat, Field(le=3650)] = 7.0
    schedule: Moment = None


class WorkspaceTable(Table):
    """``[workspaces.NAME]``."""

    sources: list[Text] = []
    dirs: list[Text] = []


class PriceTable(Table):
    """``[prices]``: the price of 1,000 requests of each kind, in any currency."""

    list: NonNegativeFloat | None = None
    get: NonNegativeFloat | None = None
    head: NonNegativeFloat | None = None
    put: NonNegativeFloat | None = None
    delete: NonNegativeFloat | None = None

    @property
    def known(self) -> dict[str, float]:
        """Return the prices in the file, by kind of request."""
        return self.model_dump(exclude_none=True)


class SearchTable(Table):
    """``[search]``: the defaults of a search."""

    strategy: Annotated[Strategy | None, Field(validation_alias=AliasChoices("strategy", "workspaceFiltering"))] = None
    fallback_threshold: Annotated[
        float | None, Field(ge=0, le=1, validation_alias=AliasChoices("fallback_threshold", "fallbackThreshold"))
    ] = None
    top_k: NonNegativeInt | None = None
    n_lines: NonNegativeInt | None = None
    mode: Literal["hybrid", "vector", "text"] | None = None
    rerank: bool | Annotated[int, Field(ge=0, le=MAX_RERANKED)] | None = None
    branch: Text | None = None
    deep: bool | None = None
    cache: bool | None = None
    cache_bytes: PositiveInt | None = None

    @field_validator("strategy", mode="before")
    @classmethod
    def _read_strategy(cls, value: object) -> object:
        return _STRATEGIES.get(value, value) if isinstance(value, str) else value


class HooksTable(Table):
    """``[web.hooks]``: the webhooks that ``driftline web`` takes, with references to their secrets."""

    github: Text | None = None
    gitlab: Text | None = None
    gitea: Text | None = None
    bitbucket: Text | None = None
    branches: list[Text] = []
    pull_requests: bool = False
    prefect: bool = False


class WebTable(Table):
    """``[web]``."""

    hooks: HooksTable | None = None


Block = Annotated[str, Field(pattern=r"^[a-z0-9-]+/[a-z0-9-]+$")]
"""A block of a Prefect server, ``TYPE/NAME``."""


class AccessTable(Table):
    """``[access]``: the entities that users of ``driftline web``, named by a proxy, may see."""

    groups_header: Text | None = None
    everyone: list[Text] = []
    users: dict[Text, list[Text]] = {}
    groups: dict[Text, list[Text]] = {}


class File(Table):
    """The whole file."""

    workspace: Text | None = None
    model: Text | None = None
    redact: Redaction | None = None
    archives: bool | None = None
    notebook_outputs: bool | None = None
    sources: list[SourceTable] = []
    fleet: list[FleetTable] = []
    workspaces: dict[Text, WorkspaceTable] = {}
    storage_options: dict[Text, str | int | float | bool] = {}
    prices: PriceTable = PriceTable()
    search: SearchTable = SearchTable()
    web: WebTable = WebTable()
    notify: list[Block] = []
    access: AccessTable | None = None
    memory: dict[Text, Any] = {}


def parse(raw: Mapping[str, Any], path: Path) -> File:
    """Validate the tables of a file. Raises UsageError, which names the first mistake and never quotes a value."""
    try:
        return File.model_validate(raw)
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_input=False, include_context=False)
        # A misspelled key is named, rather than the one that is missing for it.
        first = next((each for each in mistakes if each["type"] == "extra_forbidden"), mistakes[0])
        mistake = _mistake(first["type"], first["msg"], first["loc"], path)
    raise mistake  # not chained to pydantic's error, which quotes values that may be secrets


def location_of(path: Path, table: str = "", row: int | None = None) -> str:
    """Return the location of an error for messages; ``row`` is 0-based, messages count from 1."""
    if not table:
        return str(path)
    return f"{path}, {table}" if row is None else f"{path}, [[{table}]] number {row + 1}"


def _mistake(kind: str, message: str, location: tuple[int | str, ...], path: Path) -> UsageError:
    table, key = _table_of(location)
    where = location_of(path)
    if table in (SourceTable, FleetTable) and len(location) > 1 and isinstance(location[1], int):
        where = location_of(path, str(location[0]), location[1])
    elif location[0] in ("workspaces", "storage_options", "prices", "search") and len(location) > 1:
        where = location_of(path, f"[{location[0]}.{location[1]}]" if table is WorkspaceTable else f"[{location[0]}]")
    elif table is HooksTable:
        where = location_of(path, "[web.hooks]")
    elif table is AccessTable:
        where = location_of(path, "[access]")
    if kind == "extra_forbidden":
        known = sorted(table.model_fields)
        close = difflib.get_close_matches(key, known, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"Known keys: {', '.join(known)}."
        return UsageError(f"Unknown key {key!r}", where, hint)
    if kind == "missing":
        return UsageError(f"The key {key!r} is missing", where, "Add it.")
    if kind == "list_type" and key in ("sources", "fleet") and table is File:
        return UsageError(f"{key!r} is not a list of tables", where, f"Begin each one with [[{key}]].")
    if table is File and key == "notify" and kind == "string_pattern_mismatch":
        return UsageError("A name in 'notify' is not one of a block", where, "Write TYPE/NAME, as 'prefect block ls'.")
    if table is FleetTable and key == "token":
        return UsageError(
            "A token must be a reference", where, "Write ${NAME}, where NAME is a variable that holds it."
        )
    text = message.removeprefix("Value error, ")
    return UsageError(f"{key!r} cannot be used", where, f"{text[0].upper()}{text[1:]}.")


def _table_of(location: tuple[int | str, ...]) -> tuple[type[Table], str]:
    """Return the table that contains a mistake, and its key."""
    head, rest = str(location[0]), location[1:]
    if head == "prices" and rest:
        return PriceTable, str(rest[0])
    if head == "search" and rest:
        return SearchTable, str(rest[0])
    if head == "web" and rest:
        return (HooksTable, str(rest[1])) if len(rest) > 1 else (WebTable, str(rest[0]))
    if head == "access" and rest:
        return AccessTable, str(rest[0])
    if head in ("sources", "fleet") and len(rest) > 1:
        return SourceTable if head == "sources" else FleetTable, str(rest[1])
    if head == "workspaces" and len(rest) > 1:
        return WorkspaceTable, str(rest[1])
    return File, str(rest[0]) if head == "storage_options" and rest else head

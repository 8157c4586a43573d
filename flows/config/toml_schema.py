"""Define the schema of ``driftline.toml``: its tables, keys and types, and its error messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union

from cronsim import CronSim, CronSimError
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    create_model,
    field_validator,
)

from driftline.flows.config.index_request import OPTIONS
from driftline.flows.config.workspace_names import location_of
from driftline.storage.errors import UsageError
from driftline.storage.option_table import Option
from driftline.storage.sources.hosts import Provider, Visibility
from driftline.tasks.search.request import OPTIONS as SEARCH_OPTIONS

SHORTEST_INTERVAL_SECONDS = 1.0
_CRON_FIELDS = 5
_STRATEGIES = {"qdrant": "prefilter", "post": "postfilter"}
"""Maps ``workspaceFiltering`` values to strategies."""

Text = Annotated[str, Field(min_length=1)]
_T = TypeVar("_T", bound="Table")


class Table(BaseModel):
    """A table in the file. Unknown keys and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


def _with_settings(options: Mapping[str, Option]) -> Callable[[type[_T]], type[_T]]:
    """Return a decorator that adds a field to a table for each option whose default the file may set."""

    def add(table: type[_T]) -> type[_T]:
        fields: dict[str, Any] = {name: _setting(row) for name, row in options.items() if row.is_setting}
        return create_model(table.__name__, __base__=table, __doc__=table.__doc__, __module__=__name__, **fields)

    return add


def _setting(row: Option) -> Any:
    low, high = row.bounds or (None, None)
    limits = Field(ge=low, le=None if high == inf else high)
    kinds = (Text if each is str else Annotated[each, limits] if each in (int, float) else each for each in row.types)
    kind: Any = Literal[row.choices] if row.choices else Union[tuple(kinds)]  # noqa: UP007  # of a tuple
    keys = [alias for alias in row.aliases if not alias.startswith("-")]
    described = f"{row.description} [More](../guides/{row.guide})." if row.guide else row.description
    described += f" Also `{keys[0]}`." if keys else ""
    described += f" Default: `{json.dumps(row.default)}`." if row.default is not None else ""
    return kind | None, Field(default=None, validation_alias=AliasChoices(row.name, *keys), description=described)


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
    """``[[sources]]``: a source of the index, with its filters and schedule."""

    uri: Text = Field(description="A folder, a git working tree, or a bucket prefix.")
    entity: Text | None = Field(
        default=None,
        description="The [entity](../guides/index-sources.md#entity) of the source. Default: derived from its name.",
    )
    include: list[Text] = Field(
        default=[], description="Patterns as in `.gitignore`. Index only documents that match one of them."
    )
    exclude: list[Text] = Field(
        default=[], description="Patterns as in `.gitignore`. Skip documents that match one of them."
    )
    schedule: Moment = Field(
        default=None,
        description="Five cron fields, in UTC, or a number of seconds, at least 1. Default: every 15 minutes.",
    )
    link: Text | None = Field(
        default=None,
        description=(
            "The host type, or a template, for [links](../guides/search.md#links). Default: derived from the host name."
        ),
    )

    @field_validator("link")
    @classmethod
    def _check_link(cls, value: str | None) -> str | None:
        if value is not None:
            from driftline.tasks.search.links import invalid_link  # loads Lance

            if (wrong := invalid_link(value)) is not None:
                raise ValueError(wrong)
        return value


class FleetTable(Table):
    """``[[fleet]]``: the repositories of an owner on a git host."""

    provider: Provider = Field(description="The host type, a `folder` of repositories, or a `list` of URLs.")
    name: Text | None = Field(default=None, description="The fleet's name in reports. Default: host and owner.")
    url: Text | None = Field(
        default=None,
        description=(
            "The URL of a self-hosted instance; for `folder`, the folder; for `list`, a file with one URL per line. A "
            "self-hosted `bitbucket` is a Data Center."
        ),
    )
    org: Text | None = Field(
        default=None, description="The organization of `github` or `gitea`, or the workspace or project of `bitbucket`."
    )
    group: Text | None = Field(default=None, description="The group of `gitlab`, with its subgroups.")
    user: Text | None = Field(
        default=None,
        description=("The user of `github`, `gitlab` or `gitea`. With no owner: everything the token can read."),
    )
    repositories: list[Text] = Field(default=[], description="The repository URLs, if the provider is `list`.")
    include: list[Text] = Field(
        default=[], description="Repository globs, such as `acme/*`. Select only matching repositories."
    )
    exclude: list[Text] = Field(default=[], description="Repository globs. Exclude matching repositories.")
    topics: list[Text] = Field(
        default=[], description="Select only repositories with one of these topics. Not on `bitbucket`."
    )
    archived: bool = Field(
        default=True, description="Whether to include archived repositories. Not on Bitbucket Cloud."
    )
    forks: bool = Field(default=True, description="Whether to include forks.")
    visibility: list[Visibility] = Field(
        default=[], description="Select only these: `public`, `internal`, `private`. Default: all."
    )
    max_size: PositiveInt | None = Field(
        default=None,
        description="Exclude repositories with more bytes, according to `github`, `gitea` or Bitbucket Cloud.",
    )
    token: Annotated[str, Field(pattern=r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$")] | None = Field(
        default=None, description="A reference `${NAME}` to the variable with the token, for the API and for git."
    )
    entity: Text | None = Field(
        default=None,
        description=(
            "The entity template, with `{org}`, `{group}`, `{name}`, `{path}` and `{id}`. Default: "
            "`org:{org}/project:{group}/source:{name}`, and `source:{name}` if there is no host."
        ),
    )
    include_files: list[Text] = Field(
        default=[], description="Patterns as in `.gitignore`. Index only documents that match one of them."
    )
    exclude_files: list[Text] = Field(
        default=[], description="Patterns as in `.gitignore`. Skip documents that match one of them."
    )
    branches: list[Text] = Field(
        default=[],
        description=(
            "Branch globs, such as `release/*`. Index matching branches as [branches](../guides/branches.md) of the "
            "index, and delete them when they are gone."
        ),
    )
    pull_requests: bool = Field(
        default=False,
        description=(
            "Index the open pull requests of GitHub, GitLab or Gitea as branches `pr/NUMBER`, until they are closed."
        ),
    )
    readers: Text | None = Field(
        default=None,
        description=(
            "How the proxy spells the host's logins, such as `{login}@example.org`. [Users of a trusted proxy]"
            "(../guides/web-access.md#users-and-groups) then see the repositories that the host lets them read. "
            "Requires a token, and `github`, `gitlab`, or an `org` of `gitea`."
        ),
    )
    readers_max_age_seconds: Annotated[PositiveFloat, Field(le=365 * 86400)] = Field(
        default=86400.0, description="Seconds after which the host's list of readers is no longer used."
    )
    grace_days: Annotated[NonNegativeFloat, Field(le=3650)] = Field(
        default=7.0, description="Days after which a missing repository is removed from the index."
    )
    schedule: Moment = Field(
        default=None,
        description="Five cron fields, in UTC, or a number of seconds, at least 1. Default: every 15 minutes.",
    )


class WorkspaceTable(Table):
    """``[workspaces.NAME]``: a view, which limits searches to parts of sources."""

    sources: list[Text] = Field(default=[], description="Entities; every source at or below them is in the view.")
    dirs: list[Text] = Field(default=[], description="Directories, each inside one of the file's sources.")


class PriceTable(Table):
    """``[prices]``: the price of 1,000 requests by type, in any currency."""

    list: NonNegativeFloat | None = Field(default=None, description="The price of 1,000 listings.")
    get: NonNegativeFloat | None = Field(default=None, description="The price of 1,000 reads.")
    head: NonNegativeFloat | None = Field(default=None, description="The price of 1,000 metadata requests.")
    put: NonNegativeFloat | None = Field(default=None, description="The price of 1,000 writes.")
    delete: NonNegativeFloat | None = Field(default=None, description="The price of 1,000 deletions.")

    @property
    def known(self) -> dict[str, float]:
        """The prices set in the file, keyed by request type."""
        return self.model_dump(exclude_none=True)


@_with_settings(SEARCH_OPTIONS)
class SearchTable(Table):
    """``[search]``: search defaults."""

    cache: bool | None = Field(
        default=None,
        description=("Search a bucket's workspace in [a local copy](../guides/buckets.md#cache). Default: false."),
    )
    cache_bytes: PositiveInt | None = Field(
        default=None, description="Maximum size of all copies. Default: 10737418240 (10 GiB)."
    )

    @field_validator("strategy", mode="before", check_fields=False)
    @classmethod
    def _read_strategy(cls, value: object) -> object:
        return _STRATEGIES.get(value, value) if isinstance(value, str) else value


class HooksTable(Table):
    """``[web.hooks]``: the webhooks that ``driftline web`` accepts, with references to their secrets."""

    github: Text | None = Field(
        default=None,
        description=(
            "The secret of GitHub's [webhooks](../guides/web-api.md#webhooks), as `${VARIABLE}` or `block:NAME`."
        ),
    )
    gitlab: Text | None = Field(default=None, description="The secret of GitLab's webhooks.")
    gitea: Text | None = Field(default=None, description="The secret of Gitea's and Forgejo's webhooks.")
    bitbucket: Text | None = Field(default=None, description="The secret of Bitbucket's webhooks.")
    branches: list[Text] = Field(
        default=[], description="Patterns such as `release/*`: pushes to matching branches are also indexed."
    )
    pull_requests: bool = Field(default=False, description="Index open pull requests as branches.")
    prefect: bool = Field(
        default=False, description="Start the source's Prefect deployment instead of a run in the server."
    )


class WebTable(Table):
    """``[web]``: the settings of ``driftline web``."""

    hooks: HooksTable | None = None


PrefectBlock = Annotated[str, Field(pattern=r"^[a-z0-9-]+/[a-z0-9-]+$")]
"""A Prefect block, ``TYPE/NAME``."""


class AccessTable(Table):
    """``[access]``: the entities that users authenticated by a trusted proxy may see in ``driftline web``."""

    groups_header: Text | None = Field(
        default=None, description="The header with the user's groups, separated by commas."
    )
    everyone: list[Text] = Field(
        default=[],
        description="The entities that all [users of a trusted proxy](../guides/web-access.md#users-and-groups) see.",
    )
    users: dict[Text, list[Text]] = Field(
        default={}, description="A table of users and the entities that each may see."
    )
    groups: dict[Text, list[Text]] = Field(
        default={}, description="A table of groups and the entities that each may see."
    )


@_with_settings(OPTIONS)
class _IndexTable(Table):
    workspace: Text | None = Field(
        default=None, description="The workspace, a path or URI. Default: `.driftline` next to the file."
    )


class File(_IndexTable):
    """The whole file."""

    sources: list[SourceTable] = Field(default=[], description="One table `[[sources]]` per source, see below.")
    fleet: list[FleetTable] = Field(
        default=[],
        description="One table `[[fleet]]` per [repository owner](../guides/fleet.md#fleets), see below.",
    )
    workspaces: dict[Text, WorkspaceTable] = Field(
        default={},
        description="One table `[workspaces.NAME]` per [view](../guides/many-sources.md#views), see below.",
    )
    storage_options: dict[Text, str | int | float | bool] = Field(
        default={},
        description="Options for all buckets, `[storage_options]`. Secrets only as `${VARIABLE}` or `block:NAME`.",
    )
    prices: PriceTable = PriceTable()
    search: SearchTable = SearchTable()
    web: WebTable = WebTable()
    notify: list[PrefectBlock] = Field(
        default=[],
        description="Prefect blocks, `TYPE/NAME`, that [report failed runs](../guides/schedules.md#notify).",
    )
    access: AccessTable | None = None
    memory: dict[Text, Any] = Field(
        default={},
        description=(
            "The sections of [`settings.ltm`](#memory), `[memory.catalog]` for example, see [below](#memory-table)."
        ),
    )


def parse(raw: Mapping[str, Any], path: Path) -> File:
    """Validate a file's tables. Raises UsageError for the first mistake; the message quotes no values."""
    try:
        return File.model_validate(raw)
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_input=False, include_context=False)
        # Report a misspelled key rather than the missing key that it was meant to be.
        first = next((each for each in mistakes if each["type"] == "extra_forbidden"), mistakes[0])
        mistake = _mistake(first["type"], first["msg"], first["loc"], path)
    raise mistake  # not chained to pydantic's error, which quotes values that may be secrets


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
        from difflib import get_close_matches

        close = get_close_matches(key, known, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"Known keys: {', '.join(known)}."
        return UsageError(f"Unknown key {key!r}", where, hint)
    if kind == "missing":
        return UsageError(f"The key {key!r} is missing", where, "Add it.")
    if kind == "list_type" and key in ("sources", "fleet") and table is File:
        return UsageError(f"{key!r} is not a list of tables", where, f"Start each table with [[{key}]].")
    if table is File and key == "notify" and kind == "string_pattern_mismatch":
        return UsageError("Not a block name in 'notify'", where, "Use TYPE/NAME, as listed by 'prefect block ls'.")
    if table is FleetTable and key == "token":
        return UsageError(
            "A token must be a reference", where, "Use ${NAME}, where NAME is the variable with the token."
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

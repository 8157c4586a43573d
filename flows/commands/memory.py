"""Define ``driftline memory``, which stores JSON values under keys and finds them by key, owner or semantic search."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftline.flows.commands.app import (
    DONE,
    NOTHING_FOUND,
    Commands,
    JsonOption,
    WithinOption,
    WorkspaceOption,
    app,
    parameters,
)
from driftline.flows.output.plain_text import print_json, say, warn
from driftline.storage.errors import UsageError
from driftline.storage.option_table import MAX_SECONDS, spread
from driftline.tasks.search.request import MEMORY_OPTIONS

if TYPE_CHECKING:
    from driftline.storage.memory.store import MemoryStore
    from driftline.storage.workspace.workspace import Workspace

memory = Commands(
    help="Store JSON values under keys, owned by entities; look them up by key or entity, or search them semantically."
)
app.add_typer(memory, name="memory")

_EVERYTHING = "Default: the configured root, or everything if there is none."
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The key, unique in its tenant.")]
EntityArgument = Annotated[str | None, typer.Argument(metavar="[ENTITY]", help=_EVERYTHING)]
ConfigOption = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="YAML file with settings.ltm. Default: $LTM_CONFIG.")
]
ScopeOption = Annotated[
    str | None,
    typer.Option(
        "--in",
        metavar="ENTITY",
        help=f"Limit to this entity and its descendants, such as org:acme. {_EVERYTHING}",
    ),
]
FieldsOption = Annotated[
    list[str] | None, typer.Option("--where", metavar="FIELD=VALUE", help="Only entries with this metadata field.")
]


@memory.command()
def put(
    key: KeyArgument,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="JSON; anything else is stored as text. - reads standard input.")
    ],
    entity: Annotated[
        str | None,
        typer.Option(metavar="ENTITY", help="Entity that owns the entry, such as org:acme/project:alpha/user:alice."),
    ] = None,
    fields: Annotated[
        list[str] | None, typer.Option("--metadata", metavar="FIELD=VALUE", help="Add a field to the metadata.")
    ] = None,
    expires_in: Annotated[
        float | None,
        typer.Option(min=0.0, max=MAX_SECONDS, metavar="SECONDS", help="Expire the entry after this time."),
    ] = None,
    within: WithinOption = None,
    workspace: WorkspaceOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Store a value under a key, replacing any existing value."""
    with _opened(workspace, config, within, create=True) as store:
        owner = store.names.root if entity is None else store.names.find(entity)
        if expires_in is not None and math.isnan(expires_in):
            raise UsageError("--expires-in must be a number of seconds", "nan")
        expires = None if expires_in is None else datetime.now(UTC) + timedelta(seconds=expires_in)
        stored = store.store(key, _value(sys.stdin.read() if value == "-" else value), owner, _fields(fields), expires)
    left = next(iter(stored.moved_from.get(key, ())), None)
    if left is not None:
        warn(f"The key belonged to {left.directory}; its entry moved.")
    if stored.redacted:
        named = ", ".join(f"{count:,} {rule}" for rule, count in sorted(stored.redacted.items()))
        warn(f"Credentials were redacted in the value: {named}.")
    result = {"key": key, "entity": owner.directory, "replaced": stored.replaced > 0}
    result |= {"moved_from": left.directory if left else None, "redacted": dict(stored.redacted)}
    return _show(result, as_json, f"{key}  {owner.directory}")


@memory.command()
def get(
    key: KeyArgument,
    scope: ScopeOption = None,
    within: WithinOption = None,
    workspace: WorkspaceOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Print a key's value; with --json, the whole entry. Exit code 1 if the key does not exist."""
    with _opened(workspace, config, within) as store:
        entry = store.retrieve(key, scope)
    if entry is None:
        return _nothing({"key": key, "entry": None}, as_json, f"There is no entry with the key {key!r}.")
    return _show(entry.to_dict(), as_json, json.dumps(entry.value, ensure_ascii=False))


@memory.command(name="list")
def list_entries(
    scope: EntityArgument = None,
    prefix: Annotated[str, typer.Option(help="Only keys that start with this.")] = "",
    after: Annotated[str, typer.Option(help="Start after this key.")] = "",
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of entries.")] = 100,
    within: WithinOption = None,
    workspace: WorkspaceOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """List the keys at and below an entity, with their owner and size, from its index.

    Exit code 1 if there are none.
    """
    from driftline.storage.memory.catalog.entry_writes import BEHIND_PRIVATE, shown
    from driftline.storage.memory.memory_indexes import MemoryListing

    with _opened(workspace, config, within) as store:
        store.flush()
        directories = [entity.directory for entity in store.names.tops(scope)] or [store.names.root.directory]
        listing = MemoryListing(store.workspace.objects)
        behind = f"{after}{BEHIND_PRIVATE}" if after else ""
        found = [
            listing.list(directory, prefix=prefix, after=behind, limit=limit).to_pylist() for directory in directories
        ]
        every = sorted((row for rows in found for row in rows), key=lambda row: row["key"])
        # Several tenants may have the same key, and --after skips all of them, so a page never splits a key's entries.
        last = every[limit - 1]["key"] if 0 < limit <= len(every) else None
        rows = [{**row, "key": shown(row["key"])} for n, row in enumerate(every) if n < limit or row["key"] == last]
        total = sum(listing.totals(directory, prefix=prefix).entries for directory in directories)
    entries = [{**row, "metadata": json.loads(row["metadata"]), **_times(row)} for row in rows]
    lines = [f"{row['key']}  {row['entity']}  {row['size_bytes']:,} bytes" for row in rows]
    result = {"entity": directories[0] if len(directories) == 1 else None, "entries": entries, "total_count": total}
    if not rows:
        return _nothing(result, as_json, "The memory has no entries." if not (scope or prefix) else "No entry matches.")
    return _show(result, as_json, *lines)


@memory.command()
@spread("given", parameters(MEMORY_OPTIONS))
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="The text to search for.")],
    scope: ScopeOption = None,
    fields: FieldsOption = None,
    *,
    given: dict[str, Any],
    within: WithinOption = None,
    workspace: WorkspaceOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Search entries semantically and by words. Exit code 1 if nothing is found."""
    from driftline.flows.memory_backend import hits_to_dict

    with _opened(workspace, config, within) as store:
        options = {name: value for name, value in given.items() if value is not None}
        hits = store.search_memory(query, filter=_fields(fields), scope=scope, **options)
    result = hits_to_dict(hits)
    lines = [
        f"{hit.score:.2f}  {hit.record.key}  {json.dumps(hit.record.value, ensure_ascii=False)[:200]}" for hit in hits
    ]
    lines += [f"{name}: {value}" for name, value in result.get("explanation", {}).items()]
    if not hits:
        return _nothing({"query": query, **result}, as_json, " ".join(hits.notes) or "No entry matches.", *lines)
    _show({"query": query, **result}, as_json, *lines)
    for note in hits.notes:
        warn(note)
    return DONE


@memory.command()
def delete(
    key: KeyArgument,
    scope: ScopeOption = None,
    within: WithinOption = None,
    workspace: WorkspaceOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Delete a key's entry. Exit code 1 if there is none."""
    with _opened(workspace, config, within) as store:
        deleted = store.delete(key, scope)
    if not deleted:
        return _nothing({"key": key, "deleted": False}, as_json, f"There is no entry with the key {key!r}.")
    return _show({"key": key, "deleted": True}, as_json, f"deleted {key}")


@memory.command()
def move(
    entity: Annotated[
        str, typer.Argument(metavar="ENTITY", help="The entity to move, along with everything under it.")
    ],
    parent: Annotated[str, typer.Argument(metavar="PARENT", help="Its new parent, in the same tenant.")],
    within: WithinOption = None,
    workspace: WorkspaceOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Move an entity, along with its entries, under another parent."""
    with _opened(workspace, config, within) as store:
        moved = store.move_entity(entity, parent)
    return _show({"entity": entity, "moved_to": moved.directory}, as_json, moved.directory)


@memory.command()
def rebuild(
    scope: EntityArgument = None,
    within: WithinOption = None,
    workspace: WorkspaceOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Rebuild the indexes at and below an entity, and a tenant's vectors, from the catalog."""
    with _opened(workspace, config, within) as store:
        sizes = store.rebuild(scope)
    return _show({"indexes": sizes}, as_json, f"rebuilt {len(sizes):,} indexes")


@memory.command()
def adopt(
    discard: Annotated[
        bool, typer.Option("--discard", help="Proceed even if the catalog is empty: discard the workspace's entries.")
    ] = False,
    workspace: WorkspaceOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Bind the workspace to the configured catalog instead of the recorded one.

    Entries that are not in this catalog are lost: cleanup deletes their blobs.
    """
    from driftline.storage.memory import workspace_catalog
    from driftline.storage.memory.catalog.database import Catalog

    opened, url = _opened_for_writing(workspace, config)
    with closing(Catalog(workspace_catalog.catalog_url(opened, url))) as catalog:
        newer = workspace_catalog.older_tenants(opened, catalog)
        record = workspace_catalog.adopt(opened, catalog, discard=discard)
    result = {"catalog": record.where, "catalog_id": record.catalog_id, "given_up": newer}
    lines = [
        f"adopted {record.where}",
        *(f"discarded: newer entries in {name}" for name in newer),
    ]
    return _show(result, as_json, *lines, "To rebuild the indexes, run: driftline verify --repair")


@memory.command()
def restore(
    elsewhere: Annotated[
        bool,
        typer.Option(
            "--elsewhere", help="Proceed even if the workspace is bound to another catalog, which is then abandoned."
        ),
    ] = False,
    workspace: WorkspaceOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Rebuild a lost catalog from the workspace's indexes and blobs."""
    from driftline.storage.memory.workspace_catalog import check_location, restore_catalog

    opened, url = _opened_for_writing(workspace, config)
    if not elsewhere:
        check_location(opened, url)
    restored = restore_catalog(opened, url)
    line = f"restored {restored.entries:,} entries of {restored.tenants:,} tenants into {restored.where}"
    return _show(asdict(restored), as_json, line)


def _opened_for_writing(workspace: str | None, config: str | None) -> tuple[Workspace, str | None]:
    """Open a workspace for writing, and return it with the configured catalog's URL."""
    from driftline.flows.config.memory_settings import load_memory_configuration, memory_of
    from driftline.flows.config.which_workspace import options_for, workspace_for_reading
    from driftline.storage.workspace.workspace import Workspace

    uri = workspace_for_reading(workspace or load_memory_configuration(config).storage.uri)
    options = options_for(uri)
    Workspace.open(uri, options)  # neither command creates a workspace
    return Workspace.open_for_writing(uri, options), memory_of(uri, config).catalog.url


@contextmanager
def _opened(
    workspace: str | None, config: str | None, within: str | None, *, create: bool = False
) -> Iterator[MemoryStore]:
    """Open a command's store, bound to ``within``; with ``create``, create an explicitly given workspace if missing."""
    from driftline.flows.config.memory_settings import load_memory_configuration, memory_of, open_memory
    from driftline.flows.config.which_workspace import options_for, workspace_for_reading
    from driftline.flows.memory_backend import memory_compaction_request
    from driftline.storage.workspace.workspace import Workspace

    uri = workspace_for_reading(workspace or load_memory_configuration(config).storage.uri)
    configuration, options = memory_of(uri, config), options_for(uri)
    if not create:
        Workspace.open(uri, options)
    with open_memory(configuration, uri, options, memory_compaction_request(), within) as store:
        yield store


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _fields(assignments: Sequence[str] | None) -> dict[str, Any]:
    fields = {}
    for text in assignments or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError("Not in the form FIELD=VALUE", repr(text))
        if name in fields:
            raise UsageError("The field is given twice", name, "Give it one value.")
        fields[name] = _value(value)
    return fields


def _times(row: dict[str, Any]) -> dict[str, str | None]:
    return {name: row[name].isoformat() if row[name] else None for name in ("created", "updated", "expires")}


def _nothing(result: dict[str, Any], as_json: bool, why: str, *lines: str) -> int:
    """Show an empty result, and explain on standard error why it is empty."""
    _show(result, as_json, *lines)
    warn(why)
    return NOTHING_FOUND


def _show(result: dict[str, Any], as_json: bool, *lines: str) -> int:
    if as_json:
        print_json(result)
    else:
        for line in lines:
            say(line)
    return DONE

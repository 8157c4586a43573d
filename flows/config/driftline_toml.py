"""Read ``driftline.toml``: a team's sources, schedules, views and storage options.

Paths in the file are relative to its folder. The whole file is validated before a command writes anything; errors
include the key, its table, and the fix. A file found in a parent folder may be someone else's, and its storage options
and references could send this user's credentials to an attacker's endpoint. They are used only after ``driftline
trust`` has recorded the file's path and content, like direnv.
"""

from __future__ import annotations

import hashlib
import logging
import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from driftline.flows.config.index_request import SETTINGS
from driftline.flows.config.secret_references import (
    check_catalog,
    check_options,
    check_secret,
    check_uri,
    resolve_options,
    resolve_secret,
    without_reference,
)
from driftline.flows.config.workspace_names import (
    CONFIG_FILE,
    CONFIG_VARIABLE,
    WORKSPACE_FOLDER,
    absolute_uri,
    absolute_workspace,
    find_config,
    local_path,
    location_of,
)
from driftline.storage.entities import INDEX_LEVELS, TEMPLATE, Entity, check_template
from driftline.storage.environment import user_folder
from driftline.storage.errors import BadEntity, UsageError
from driftline.storage.sources.mirror import parse_remote

if TYPE_CHECKING:  # commands that find no such file import none of these
    from driftline.flows.config.toml_schema import (
        AccessTable,
        File,
        FleetTable,
        HooksTable,
        SourceTable,
        WorkspaceTable,
    )
    from driftline.storage.lines.line_filter import LineFilter
    from driftline.storage.sources.discovery import FleetSelection
    from driftline.storage.sources.hosts import Host, OwnerKind

LOGIN = "{login}"
HOOK_HOSTS = ("github", "gitlab", "gitea", "bitbucket")

log = logging.getLogger(__name__)


def is_trusted(file: Path, content: bytes) -> bool:
    """Return whether the user trusts ``file`` with exactly this content."""
    try:
        return _mark(file, content).is_file()
    except UsageError:  # a user with no home folder cannot have trusted anything
        return False


def trust(file: Path, content: bytes) -> None:
    """Mark ``file`` as trusted with its current content. Raises UsageError if the trust record cannot be written."""
    mark = _mark(file, content)
    try:
        mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark.write_bytes(os.fsencode(file) + b"\n")
    except OSError as error:
        what = f"Cannot write the trust record ({error.strerror})"
        raise UsageError(what, str(mark), "Check the folder's permissions.") from error


def distrust(file: Path, content: bytes) -> None:
    """Revoke trust in ``file``."""
    _mark(file, content).unlink(missing_ok=True)


def _mark(file: Path, content: bytes) -> Path:
    digest = hashlib.sha256(os.fsencode(file) + b"\0" + content).hexdigest()
    return user_folder("XDG_STATE_HOME") / "driftline" / "trusted" / digest


@dataclass(frozen=True, slots=True)
class Schedule:
    """The schedule of a source: ``cron`` (five fields) or ``interval_seconds``; exactly one is set."""

    cron: str | None = None
    interval_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ConfiguredSource:
    """A ``[[sources]]`` table. ``uri`` is an absolute path or a URI; ``entity`` defaults to the last part of ``uri``.

    ``link`` is its host's type, or a link template; if "", the host name determines the type.
    """

    uri: str
    entity: Entity
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    schedule: Schedule | None = None
    link: str = ""


@dataclass(frozen=True, slots=True)
class ConfiguredFleet:
    """A ``[[fleet]]`` table: the repositories on ``host`` that match ``selection``.

    ``include`` and ``exclude`` are globs of files, ``branches`` globs of branches. ``pull_requests`` follows the open
    ones. ``readers`` is how a proxy spells a ``{login}`` of the host, whose list of readers expires after
    ``readers_max_age_seconds``; "" ignores the list. ``table`` is the table itself, for a machine without the file.
    """

    name: str
    host: Host
    selection: FleetSelection
    template: str
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    branches: tuple[str, ...] = ()
    pull_requests: bool = False
    grace_days: float = 7.0
    schedule: Schedule | None = None
    readers: str = ""
    readers_max_age_seconds: float = 86400.0
    table: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ViewPart:
    """The part of a source in a view: everything under ``dir``; "" means the whole source."""

    source: ConfiguredSource
    dir: str = ""


@dataclass(frozen=True, slots=True)
class HookSettings:
    """``[web.hooks]``: references to the secrets of host types that may deliver.

    Pushes to the main branch always start a run; pushes to other branches do if the name matches one of ``branches``.
    """

    secrets: Mapping[str, str] = field(default_factory=dict)
    branches: tuple[str, ...] = ()
    pull_requests: bool = False
    prefect: bool = False


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """``[access]``: the entities that ``everyone``, ``users`` and ``groups`` may see.

    The proxy sends a user's groups in the ``groups_header`` header, separated by commas.
    """

    groups_header: str | None = None
    everyone: tuple[str, ...] = ()
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A validated configuration file.

    ``workspace`` is an absolute path or a URI, by default ``.driftline`` next to the file. ``storage_options`` contains
    references instead of secrets, so a deployment may store them; ``options()`` resolves them. ``prices`` maps request
    types to the price of 1,000 requests. ``index`` and ``search`` hold the defaults of runs and searches, ``memory``
    the sections of ``settings.ltm`` with unresolved references, and ``notify`` the Prefect blocks that report failed
    runs. ``is_withheld`` is set if the file is not trusted: it then has no storage options, memory or hooks, and its
    sources and fleets have no tokens.
    """

    path: Path
    workspace: str
    index: Mapping[str, Any] = field(default_factory=dict)
    sources: tuple[ConfiguredSource, ...] = ()
    fleets: tuple[ConfiguredFleet, ...] = ()
    workspaces: Mapping[str, tuple[ViewPart, ...]] = field(default_factory=dict)
    storage_options: Mapping[str, str] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)
    is_withheld: bool = False
    hooks: HookSettings | None = None
    notify: tuple[str, ...] = ()
    access: AccessSettings | None = None

    def options(self) -> dict[str, str]:
        """Return the storage options with their references resolved. Raises UsageError."""
        return resolve_options(self.storage_options, str(self.path))

    def run_options(self) -> dict[str, Any]:
        """Return the options of an index run that the file sets. Raises UsageError."""
        return {**self.index, "storage_options": self.options()}

    def references(self) -> dict[str, str]:
        """Return the references to the tokens of repositories, as ``with_reference`` expects them.

        A workspace records its sources without them. If fleets have different tokens for one host, each is used for
        the repositories of its owner.
        """
        found: dict[str, set[str]] = defaultdict(set)
        for fleet in self.fleets:
            for start, reference in fleet.host.references().items():
                found[start].add(reference)
        for uri in (*(source.uri for source in self.sources), *(uri for each in self.fleets for uri in each.host.uris)):
            remote = parse_remote(uri)
            if remote is not None and remote.variable:
                found[remote.uri].add(f"{remote.user}:${{{remote.variable}}}")
        return {start: each.pop() for start, each in found.items() if len(each) == 1}

    def hook_secrets(self) -> dict[str, str]:
        """Return the webhook secrets, keyed by host type. Raises UsageError."""
        where, known = location_of(self.path, "[web.hooks]"), self.hooks.secrets if self.hooks is not None else {}
        return {name: resolve_secret(name, reference, where) for name, reference in known.items()}


def trusted_config(given: str | os.PathLike[str] | None) -> Configuration:
    """Like ``open_config``, for files that run on someone else's behalf. Also raises UsageError for untrusted files."""
    config = open_config(given)
    if config.is_withheld:
        raise UsageError(
            "The configuration is not trusted", str(config.path), "Run 'driftline trust', or pass it with --config."
        )
    return config


def open_config(given: str | os.PathLike[str] | None) -> Configuration:
    """Load the file that ``find_config`` locates. Raises UsageError if there is none or it is invalid."""
    config = locate_config(given)
    if config is None:
        raise UsageError(f"No {CONFIG_FILE} here or above", os.getcwd(), "Create one, or pass it with --config.")
    return config


def locate_config(given: str | os.PathLike[str] | None) -> Configuration | None:
    """Load the file that ``find_config`` locates, if there is one.

    A file that was not given explicitly must be trusted (``trust``); otherwise its ``[storage_options]``, ``[memory]``
    and ``[web.hooks]`` and the tokens of its sources and fleets are ignored with a warning. Raises UsageError if it is
    invalid.
    """
    path = find_config(given)
    if path is None:
        return None
    content = _read(path)
    config = _resolve(_parse(content, path), path)
    is_named = bool(given or os.environ.get(CONFIG_VARIABLE))
    plain = tuple(replace(source, uri=without_reference(source.uri)) for source in config.sources)
    fleets = tuple(replace(fleet, host=_without_token(fleet.host)) for fleet in config.fleets)
    holds_some = config.storage_options or config.memory or config.hooks
    if is_named or not (holds_some or plain != config.sources or fleets != config.fleets):
        return config
    if is_trusted(path, content):
        return config
    _warn_of(path)
    withheld = replace(config, sources=plain, fleets=fleets, hooks=None, is_withheld=True)
    return replace(withheld, storage_options={}, memory={})


def _without_token(host: Host) -> Host:
    return replace(host, variable="", uris=tuple(without_reference(uri) for uri in host.uris))


@cache
def _warn_of(path: Path) -> None:
    """Warn about an untrusted file, once per file."""
    log.warning(
        "%s is not trusted: its [storage_options], [memory], [web.hooks] and tokens are ignored. Review it, then run "
        "'driftline trust', or pass it with --config or %s",
        str(path).encode(errors="backslashreplace").decode(),  # a log may refuse a name that is not UTF-8
        CONFIG_VARIABLE,
    )


def named_or_trusted_config(given: str | None) -> Configuration | None:
    """Return the located file if it was given or is trusted, otherwise None. Raises UsageError if it is invalid."""
    path = find_config(given)
    if path is None:
        return None
    content = _read(path)
    is_ours = bool(given or os.environ.get(CONFIG_VARIABLE)) or is_trusted(path, content)
    return _resolve(_parse(content, path), path) if is_ours else None


def prices_for() -> Mapping[str, float]:
    """Return the prices of 1,000 requests by type from the located file; empty if there is no file."""
    path = find_config(None)
    return load_config(path).prices if path is not None else {}


def config_of(workspace: str) -> Configuration | None:
    """Return the located configuration if its ``workspace`` is this one, in any notation, or None.

    Raises UsageError.
    """
    config = locate_config(None)
    target = absolute_uri(absolute_workspace(workspace), Path.cwd())
    return config if config is not None and config.workspace == target else None


def memory_table_for(workspace: str) -> Mapping[str, Any]:
    """Return the ``[memory]`` table in the configuration of ``workspace``; {} if there is none. Raises UsageError."""
    config = config_of(workspace)
    return config.memory if config is not None else {}


def load_config(path: str | os.PathLike[str]) -> Configuration:
    """Read and validate a configuration file. Raises UsageError."""
    file = Path(path).resolve()
    return _resolve(_parse(_read(file), file), file)


def trust_config(given: str | os.PathLike[str] | None, *, revoke: bool = False) -> Configuration:
    """Trust the located file with its current content, or stop trusting it if ``revoke`` is set, and load it.

    Raises UsageError.
    """
    path = find_config(given)
    if path is None:
        raise UsageError(f"No {CONFIG_FILE} here or above", os.getcwd(), "Specify the file.")
    content = _read(path)
    config = _resolve(_parse(content, path), path)
    (distrust if revoke else trust)(path, content)
    return config


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(
            f"Cannot read the configuration ({error.strerror})", str(file), "Check its permissions."
        ) from error


def _parse(content: bytes, file: Path) -> File:
    import tomllib

    from driftline.flows.config.toml_schema import parse

    try:
        raw = tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise UsageError("The configuration is not UTF-8", str(file), "Save it as UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"The configuration is not valid TOML ({error})", str(file), "Correct it.") from error
    return parse(raw, file)


def view_filter(config: Configuration, name: str) -> LineFilter:
    """Return the filter of the view ``name``; an empty view matches no lines.

    Raises UsageError for an unknown name, and for a directory that does not exist in a local source.
    """
    from driftline.storage.lines.line_filter import LineFilter  # loads numpy and Lance

    if name not in config.workspaces:
        known = ", ".join(config.workspaces) or "none"
        raise UsageError(f"There is no view named {name!r}", str(config.path), f"Known names: {known}.")
    parts = config.workspaces[name]
    for part in parts:
        _check_dir(part, location_of(config.path, f"[workspaces.{name}]"))
    whole = tuple(sorted({part.source.entity for part in parts if not part.dir}))
    dirs: dict[Entity, list[str]] = {}
    for part in parts:
        if part.dir and part.source.entity not in whole:
            dirs.setdefault(part.source.entity, []).append(part.dir)
    alternatives = [LineFilter(entities=(entity,), dirs=tuple(sorted(below))) for entity, below in dirs.items()]
    if whole or not alternatives:
        alternatives.append(LineFilter(entities=whole))
    return alternatives[0] if len(alternatives) == 1 else LineFilter(any_of=tuple(alternatives))


def _check_dir(part: ViewPart, where: str) -> None:
    root = local_path(part.source.uri)
    if not part.dir or root is None or not root.is_dir() or (root / part.dir).is_dir():
        return
    problem = "is a file" if (root / part.dir).exists() else "does not exist"
    raise UsageError(f"The directory {part.dir!r} of {part.source.entity} {problem}", where, "Correct or remove it.")


def _resolve(parsed: File, file: Path) -> Configuration:
    workspace = parsed.workspace or WORKSPACE_FOLDER
    check_uri(workspace, location_of(file))
    workspace = _absolute(workspace, file, location_of(file, "workspace"))
    options = {key: _as_option(value) for key, value in parsed.storage_options.items()}
    check_options(options, location_of(file, "[storage_options]"))
    sources = _sources(parsed.sources, file)
    workspaces = {
        name: tuple(_parts(table, sources, file, location_of(file, f"[workspaces.{name}]")))
        for name, table in parsed.workspaces.items()
    }
    index = parsed.model_dump(include=set(SETTINGS), exclude_none=True)
    if "model" in index and os.path.isdir(folder := _absolute(index["model"], file, location_of(file, "model"))):
        index["model"] = folder
    return Configuration(
        file,
        workspace,
        index,
        tuple(sources),
        tuple(_fleets(parsed.fleet, file)),
        workspaces,
        options,
        parsed.prices.known,
        parsed.search.model_dump(exclude_none=True),
        _memory(parsed.memory, location_of(file, "[memory]")),
        hooks=_hooks(parsed.web.hooks, location_of(file, "[web.hooks]")),
        notify=tuple(parsed.notify),
        access=_access(parsed.access, location_of(file, "[access]")),
    )


def _absolute(uri: str, file: Path, where: str) -> str:
    """Like ``absolute_uri``, relative to the folder of ``file``; errors include ``where``."""
    try:
        return absolute_uri(uri, file.parent)
    except UsageError as error:
        raise UsageError(f"{error.what} ({error.where})", where, error.fix) from error


def _access(table: AccessTable | None, where: str) -> AccessSettings | None:
    if table is None:
        return None
    if table.groups and table.groups_header is None:
        raise UsageError(
            "groups requires groups_header", where, 'Write, for example: groups_header = "X-Forwarded-Groups"'
        )
    if with_comma := next((name for name in table.groups if "," in name), None):
        fix = "The header separates groups by commas: let the proxy send short names."
        raise UsageError("A group's name contains a comma", f"{where} {with_comma!r}", fix)
    users, groups = ({name: tuple(given) for name, given in of.items()} for of in (table.users, table.groups))
    return AccessSettings(table.groups_header, tuple(table.everyone), users, groups)


def _hooks(table: HooksTable | None, where: str) -> HookSettings | None:
    if table is None:
        return None
    secrets = {name: each for name in HOOK_HOSTS if (each := getattr(table, name)) is not None}
    if not secrets:
        raise UsageError(
            "No webhook secret is configured", where, 'Write, for example: github = "${GITHUB_HOOK_SECRET}"'
        )
    for name, value in secrets.items():
        check_secret(name, value, where)
    return HookSettings(secrets, tuple(table.branches), table.pull_requests, table.prefect)


def _memory(table: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    for name in ("catalog", "index"):  # deployments also read parts of these
        if not isinstance(table.get(name, {}), dict):
            raise UsageError(f"{name} is not a table", where, f"Put its settings in [memory.{name}].")
    check_catalog(str(table.get("catalog", {}).get("url") or ""), where)
    return table


def _sources(tables: Sequence[SourceTable], file: Path) -> list[ConfiguredSource]:
    sources: list[ConfiguredSource] = []
    uris, entities = set[str](), set[Entity]()
    for row, table in enumerate(tables):
        where = location_of(file, "sources", row)
        source = _source(table, file, where)
        if source.uri in uris:
            raise UsageError("Duplicate source", where, f"Remove one entry for {table.uri}.")
        if source.entity in entities:
            raise UsageError(
                f"Two sources have the entity {source.entity}", where, "Use another entity for one of them."
            )
        uris.add(source.uri)
        entities.add(source.entity)
        sources.append(source)
    return sources


def _source(table: SourceTable, file: Path, where: str) -> ConfiguredSource:
    remote = parse_remote(table.uri)
    check_uri(without_reference(table.uri), where)
    uri = _absolute(table.uri, file, where)
    level = INDEX_LEVELS[-1]
    name = remote.name if remote is not None else posixpath.basename(uri.rstrip("/")) or "root"
    entity = _entity(table.entity or f"{level}:{name}", where)
    if entity.type != level:
        raise UsageError(f"Documents belong to a {level}, but {entity} is not one", where, f"Add /{level}:NAME.")
    files = tuple(table.include), tuple(table.exclude)
    return ConfiguredSource(uri, entity, *files, _schedule(table.schedule), table.link or "")


def _schedule(given: str | float | None) -> Schedule | None:
    if given is None:
        return None
    return Schedule(cron=given) if isinstance(given, str) else Schedule(interval_seconds=float(given))


def fleets_of(tables: Sequence[FleetTable]) -> tuple[ConfiguredFleet, ...]:
    """Return the fleets that ``tables`` describe: each is a ``ConfiguredFleet.table`` from another machine.

    Raises UsageError.
    """
    return tuple(_fleets(tables, Path("fleets")))


def _fleets(tables: Sequence[FleetTable], file: Path) -> list[ConfiguredFleet]:
    fleets: list[ConfiguredFleet] = []
    for row, table in enumerate(tables):
        where = location_of(file, "fleet", row)
        try:
            fleet = _fleet(table, file)
        except UsageError as error:
            what = f"{error.what} ({error.where})" if error.where else error.what
            raise UsageError(what, where, error.fix) from error
        if any(fleet.name == other.name for other in fleets):
            raise UsageError("Two fleets have the same name", where, "Rename one of them.")
        fleets.append(fleet)
    return fleets


def _fleet(table: FleetTable, file: Path) -> ConfiguredFleet:
    from driftline.storage.sources.discovery import FleetSelection
    from driftline.storage.sources.hosts import LOCAL_PROVIDERS, Host

    provider = table.provider
    (kind, owner), is_local = _checked_owner(table), provider in LOCAL_PROVIDERS
    url = table.url or ""
    if url and is_local:
        url = absolute_uri(url, file.parent)
    elif url and not re.fullmatch(r"https?://[^/@?#\s]+(?:/[^@?#\s]*)?", url):
        raise UsageError("Not a valid host URL", "", "Use https://git.example.com, without user or query.")
    template = table.entity or (TEMPLATE if not is_local else f"{INDEX_LEVELS[-1]}:{{name}}")
    check_template(template)
    host = Host(
        provider,
        url.rstrip("/"),
        owner,
        cast("OwnerKind", kind),
        (table.token or "").strip("${}"),
        tuple(table.repositories),
    )
    if table.pull_requests and not host.has_pulls:
        fix = "Remove pull_requests, or follow branches."
        raise UsageError(f"A {provider} fleet does not support pull requests", "", fix)
    for name in sorted(host.unlisted):
        if getattr(table, name) != type(table).model_fields[name].default:
            raise UsageError(f"A fleet of this host cannot select by {name}", host.name, f"Remove {name}.")
    if table.readers is not None:
        _check_readers(table.readers, host)
    selection = FleetSelection(
        tuple(table.include),
        tuple(table.exclude),
        tuple(table.topics),
        table.archived,
        table.forks,
        tuple(table.visibility),
        table.max_size,
    )
    selection.reasons()  # checks the globs
    files = tuple(table.include_files), tuple(table.exclude_files), tuple(table.branches), table.pull_requests
    named = table.model_copy(update={"name": table.name or host.name, "url": url or None, "schedule": None})
    elsewhere = named.model_dump(mode="json", exclude_defaults=True)
    readers = table.readers or "", table.readers_max_age_seconds
    moment = _schedule(table.schedule)
    return ConfiguredFleet(
        named.name or "", host, selection, template, *files, table.grace_days, moment, *readers, elsewhere
    )


def _checked_owner(table: FleetTable) -> tuple[str, str]:
    """Return the kind and name of a fleet's owner, if any. Raises UsageError for settings that its provider lacks."""
    from driftline.storage.sources.hosts import LOCAL_PROVIDERS, OWNERS

    provider = table.provider
    owners = {kind: name for kind in ("org", "group", "user") if (name := getattr(table, kind)) is not None}
    known = OWNERS[provider]
    if len(owners) > 1 or not set(owners) <= known:
        kinds = ", ".join(sorted(known - {""})) or "none"
        raise UsageError(f"A {provider} fleet has more than one owner", ", ".join(owners), f"Keep one of: {kinds}.")
    is_local = provider in LOCAL_PROVIDERS
    if (table.repositories and provider != "list") or (is_local and not table.url and not table.repositories):
        what = {"folder": "requires a folder as its url", "list": "requires repositories, or a file as its url"}
        raise UsageError(f"A fleet of {provider} {what.get(provider, 'does not accept a list of repositories')}")
    if is_local and table.token:
        fix = "Use git+https://${NAME}@host/path.git in the list."
        raise UsageError(f"A {provider} fleet does not accept a token", "", fix)
    for uri in table.repositories:
        check_uri(without_reference(uri), "")
        parse_remote(uri)
    return next(iter(owners.items()), ("", ""))


def _check_readers(spelling: str, host: Host) -> None:
    if spelling.count(LOGIN) != 1 or "{" in spelling.replace(LOGIN, ""):
        fix = f'Write "{LOGIN}", or for example "{LOGIN}@example.org".'
        raise UsageError("readers must contain {login} once, and no other placeholder", repr(spelling), fix)
    if not host.has_readers:
        what = f"A fleet of {host.provider} cannot follow who may read its repositories"
        raise UsageError(what, "", "Remove readers. It requires a token for github or gitlab, or for an org on gitea.")


def _parts(table: WorkspaceTable, sources: Sequence[ConfiguredSource], file: Path, where: str) -> list[ViewPart]:
    parts: list[ViewPart] = []
    for text in table.sources:
        scope = _entity(text, where)
        members = [source for source in sources if source.entity.parts[: len(scope.parts)] == scope.parts]
        if not members:
            known = ", ".join(str(source.entity) for source in sources) or "none"
            raise UsageError(f"No source is at or below {scope}", where, f"Sources: {known}.")
        parts += [ViewPart(source) for source in members]
    for text in table.dirs:
        check_uri(text, where)
        directory = _absolute(text, file, where)
        within = [
            ViewPart(source, directory[len(source.uri) :].strip("/"))
            for source in sources
            if _below(directory, source.uri)
        ]
        containing = [ViewPart(source) for source in sources if _below(source.uri, directory)]
        if not within and not containing:
            raise UsageError(f"No source contains the directory {text!r}", where, "Correct it, or add its source.")
        parts += within + containing
    return list(dict.fromkeys(parts))


def _entity(text: str, where: str) -> Entity:
    try:
        return Entity.parse(text)
    except BadEntity as error:
        raise BadEntity(f"{error.what} ({error.where})", where, error.fix) from error


def _below(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def _as_option(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

"""Define ``driftline web``: serve a workspace as web pages, an HTTP API and MCP tools."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import cache as once
from functools import lru_cache, partial
from importlib.util import find_spec
from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated

import typer

from driftline.flows.commands.app import DONE, CacheOption, WithinOption, WorkspaceOption, app
from driftline.flows.config.which_workspace import boundary_in, open_for_reading, workspace_for_indexing
from driftline.flows.output.plain_text import warn
from driftline.storage.errors import DriftlineError, UsageError, WorkspaceNotFound

if TYPE_CHECKING:
    from driftline.flows.ci.webhooks import Hooks
    from driftline.flows.config.driftline_toml import ConfiguredFleet
    from driftline.flows.served_memory import Memory
    from driftline.flows.web.access import AccessRules, Authentication, HostReaders, KnownRules, Readable, TrustedProxy
    from driftline.flows.web.api import Reader
    from driftline.flows.web.guard import RateLimit
    from driftline.flows.web.routes import McpApp
    from driftline.flows.web.search_processes import SearchProcesses
    from driftline.storage.entities import Boundary
    from driftline.storage.workspace.fleet_state import FleetRecord
    from driftline.storage.workspace.workspace import Workspace

LOOPBACK = ("127.0.0.1", "::1", "localhost")
DEFAULT_RATE = 50.0
"""Requests per second per token; the search-as-you-type page makes at most ten."""

HostsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host",
        metavar="NAME",
        help="Accept this host, or host:port, in request URLs.",
        rich_help_panel="Access",
    ),
]
ProxyHeaderOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Trust the user name that the proxy sends in this header; see --trusted-proxy.",
        rich_help_panel="Access",
    ),
]
OriginsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cors-origin",
        metavar="URL",
        help="Allow cross-origin API requests from this origin.",
        rich_help_panel="Access",
    ),
]
ProcessesOption = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Number of search processes.", show_default="one per core, at most 4; 1 for a bucket"
    ),
]
ProxiesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--trusted-proxy",
        metavar="ADDRESS",
        help="Address or network of the proxy, such as 10.0.0.0/24.",
        rich_help_panel="Access",
    ),
]


TokenOption = Annotated[
    bool,
    typer.Option(
        "--require-token",
        help="Require tokens even on loopback, for use behind a local proxy.",
        rich_help_panel="Access",
    ),
]
RateOption = Annotated[
    float,
    typer.Option(
        min=0.1,
        metavar="N",
        help="Requests per second per token; bursts may be twice as high.",
        rich_help_panel="Access",
    ),
]
KeyOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="The certificate's private key.", rich_help_panel="Access")
]
CertificateOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="TLS certificate chain; enables HTTPS.", rich_help_panel="Access")
]
WatchOption = Annotated[
    bool,
    typer.Option(
        "--watch", help="Index files in local sources as they are saved, or in this folder if there are none."
    ),
]


@app.command()
def web(
    workspace: WorkspaceOption = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; any address but loopback requires tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 selects a free port.")] = 8030,
    cache: CacheOption = None,
    within: WithinOption = None,
    require_token: TokenOption = False,
    allowed_host: HostsOption = None,
    trusted_proxy_header: ProxyHeaderOption = None,
    trusted_proxy: ProxiesOption = None,
    rate: RateOption = DEFAULT_RATE,
    tls_certificate: CertificateOption = None,
    tls_key: KeyOption = None,
    cors_origin: OriginsOption = None,
    processes: ProcessesOption = None,
    watch: WatchOption = False,
) -> int:
    """Serve the workspace: a search page, an API at /api/v1, and MCP at /mcp.

    On loopback, all local users have access; other addresses need tokens ('driftline token create') or a proxy.
    """
    opened = _indexed_here(workspace) if watch else open_for_reading(workspace)
    from driftline.flows.web.api import Reader
    from driftline.flows.web.server import Exposure, web_server

    boundary = None if within is None else boundary_in(opened, within)
    proxy = _proxy(trusted_proxy_header, trusted_proxy)
    rules = _access_rules(opened, proxy, within)
    is_public = host not in LOOPBACK or bool(allowed_host) or require_token
    exposure = Exposure(
        names=tuple(allowed_host or ()),
        certificate=tls_certificate,
        key=tls_key,
        authentication=_authentication(
            opened, boundary, proxy, rules, needs_token=is_public, is_encrypted=bool(tls_key)
        ),
        rate_limit=_rate_limit(rate) if is_public or proxy else None,
        cors_origins=tuple(cors_origin or ()),
    )
    searches: list[SearchProcesses] = []
    with (
        _newest(opened, cache, searches) as newest,
        closing(_searching(newest().objects.is_local, processes)) as searching,
    ):
        reader = Reader(newest, _memory(opened), searching.run, _fleets(opened))
        server = web_server(reader, host, port, exposure, _mcp_app(reader), hooks := _hooks(opened.objects.uri))
        searching.start(newest())
        searches.append(searching)
        with _indexing(hooks, opened if watch else None), suppress(KeyboardInterrupt):
            warn(f"serving {server.url}")
            _prepare_in_background(reader)
            server.run()  # until a signal
    return DONE


@contextmanager
def _indexing(hooks: Hooks | None, watched: Workspace | None) -> Iterator[None]:
    """Execute webhook runs, and index changes to the sources of ``watched``, until the context exits."""
    with ExitStack() as stack:
        if hooks is not None:
            stack.enter_context(hooks.running())
        if watched is not None:
            from driftline.flows.runs.watch import watching_sources

            stack.enter_context(watching_sources(watched))
        yield


def _hooks(target: str) -> Hooks | None:
    """Return the webhooks in the workspace's ``driftline.toml``, if any."""
    from driftline.flows.config.driftline_toml import config_of

    config = config_of(target)
    if config is None or config.hooks is None:
        return None
    from driftline.flows.ci.webhooks import hooks_of

    return hooks_of(config)


def _searching(is_local: bool, processes: int | None) -> SearchProcesses:
    """Return the processes that read the index.

    For a bucket, the default is one process. Each process runs several searches at once, because they mostly wait for
    the network.
    """
    from driftline.flows.web import search_processes as made

    if not is_local:
        return made.SearchProcesses(processes or 1, made.CONCURRENT_SEARCHES)
    return made.SearchProcesses(processes or made.default_processes())


def _prepare_in_background(reader: Reader) -> None:
    """Load code for the first page and later searches in the background."""
    from driftline.flows.web import pages

    def prepare() -> None:
        pages.prepare()
        with suppress(DriftlineError):  # requests will report it
            reader.prepare()

    threading.Thread(target=prepare, daemon=True).start()


def _indexed_here(workspace: str | None) -> Workspace:
    """Open the workspace to watch; if none exists, index this folder first."""
    from driftline.flows.config.index_request import IndexRequest
    from driftline.flows.runs.index import index_sources

    try:
        return open_for_reading(workspace)
    except WorkspaceNotFound:
        warn("indexing this folder")
        index_sources(IndexRequest((".",), workspace_for_indexing(workspace, ["."])))
    return open_for_reading(workspace)


def _access_rules(workspace: Workspace, proxy: TrustedProxy | None, within: str | None = None) -> AccessRules | None:
    """Return the access rules in the workspace's ``driftline.toml``, if any.

    Raises UsageError if there are rules but no proxy, or a proxy but neither rules nor ``within``: in both cases, a
    mistake would show everything to everyone.
    """
    from driftline.flows.config.driftline_toml import AccessSettings, config_of
    from driftline.flows.web.access import AccessRules

    config, bounded = config_of(workspace.objects.uri), partial(boundary_in, workspace)
    restricted = {fleet.name: fleet for fleet in config.fleets if fleet.readers} if config is not None else {}
    if config is None or (config.access is None and not restricted):
        if proxy is not None and within is None:
            uri = workspace.objects.uri
            where = str(config.path) if config is not None else f"no driftline.toml of {uri} is here or above"
            fix = "Write [access] there, name the file with DRIFTLINE_CONFIG, or pass --within to show it to all users."
            raise UsageError("Users of the proxy have no access rules", where, fix)
        if proxy is not None:
            warn(f"without [access] rules, users of the proxy see everything within {within}")
        return None
    if proxy is None:
        fix = "Use --trusted-proxy-header and --trusted-proxy, or remove the rules and use tokens."
        what = "[access]" if config.access is not None else "A fleet with readers"
        raise UsageError(f"{what} requires a proxy that authenticates users", str(config.path), fix)
    settings = config.access or AccessSettings()
    return AccessRules(
        bounded(*settings.everyone),
        {name: bounded(*entities) for name, entities in settings.users.items()},
        {name: bounded(*entities) for name, entities in settings.groups.items()},
        settings.groups_header or "",
        _readers(workspace, restricted) if restricted else None,
    )


def _readers(workspace: Workspace, fleets: Mapping[str, ConfiguredFleet]) -> HostReaders:
    """Return the readers of ``fleets``, which syncs write into the workspace."""
    from driftline.flows.web.access import FleetReaders, HostReaders
    from driftline.storage.layout import FLEET, ObjectInfo
    from driftline.storage.workspace.fleet_state import read_fleets, readable_by_login

    @lru_cache(1)
    def of_version(_: ObjectInfo | None) -> dict[str, Readable]:
        return {name: readable_by_login(each) for name, each in read_fleets(workspace.objects).items()}

    def read() -> dict[str, Readable]:
        return of_version(workspace.objects.head(FLEET))

    ages = {name: timedelta(seconds=each.readers_max_age_seconds) for name, each in fleets.items()}
    return HostReaders(read, {name: FleetReaders(each.readers, ages[name]) for name, each in fleets.items()})


def _newest(
    workspace: Workspace, cache: bool | None, searches: list[SearchProcesses]
) -> AbstractContextManager[Callable[[], Workspace]]:
    """Return a function that opens the workspace for each request.

    For a bucket, it opens the local copy if requested, or if an earlier search left one.
    """
    from driftline.flows.config.which_workspace import cache_settings, search_settings
    from driftline.flows.runs.pull import has_copy, newest_of
    from driftline.tasks.search.search import warm

    def prepare(found: Workspace) -> None:
        for each in searches:  # None before the first copy
            each.run(warm, found)

    if cache is None and not workspace.objects.is_local and "cache" not in search_settings():
        cache = has_copy(workspace)
    is_cached, max_bytes = cache_settings(cache)
    return newest_of(workspace, cache=is_cached, max_bytes=max_bytes, warn=warn, prepare=prepare)


def _memory(workspace: Workspace) -> Callable[[], Memory]:
    """Return a function that locates the memory: invalid settings then fail memory searches, not startup."""

    @once
    def find() -> Memory:
        from driftline.flows.config.memory_settings import memory_of
        from driftline.flows.served_memory import Memory

        return Memory(workspace, memory_of(workspace.objects.uri))

    return find


def _fleets(workspace: Workspace) -> Callable[[], Mapping[str, FleetRecord]]:
    """Return a function that reads the state of the fleets if it has changed."""
    from driftline.storage.layout import FLEET, ObjectInfo
    from driftline.storage.workspace.fleet_state import read_fleets

    @lru_cache(1)
    def of_version(_: ObjectInfo | None) -> Mapping[str, FleetRecord]:
        return read_fleets(workspace.objects)

    return lambda: of_version(workspace.objects.head(FLEET))


def _mcp_app(reader: Reader) -> McpApp | None:
    """Return the MCP tools, if the extra is installed."""
    from driftline.flows.web.routes import McpApp

    return McpApp(reader) if find_spec("mcp") is not None else None


def _authentication(
    workspace: Workspace,
    within: Boundary | None,
    proxy: TrustedProxy | None,
    rules: AccessRules | None,
    *,
    needs_token: bool,
    is_encrypted: bool,
) -> Authentication:
    from driftline.flows.web.access import Authentication, KnownTokens
    from driftline.storage.workspace.tokens import read_tokens

    if not needs_token and proxy is None:
        return Authentication(within=within)
    if not read_tokens(workspace.objects) and proxy is None:
        fix = "Create one: driftline token create"
        raise UsageError("The workspace has no tokens, so no request would be authorized", workspace.objects.uri, fix)
    if needs_token and not is_encrypted and proxy is None:
        warn("tokens are sent unencrypted: pass --tls-certificate and --tls-key, or use a TLS proxy")
    known = KnownTokens(lambda: read_tokens(workspace.objects))
    return Authentication(known, proxy, within, _reread(rules, workspace, proxy) if rules is not None else None)


def _reread(rules: AccessRules, workspace: Workspace, proxy: TrustedProxy | None) -> KnownRules:
    """Return access rules that follow changes to the configuration, except for the fleets that have readers."""
    from driftline.flows.web.access import KnownRules

    def read() -> AccessRules:
        found = _access_rules(workspace, proxy)
        if found is None:
            raise UsageError("The configuration no longer has access rules", workspace.objects.uri, "Restart.")
        return replace(found, readers=rules.readers)

    known = KnownRules(read)
    known.refresh()
    return known


def _proxy(header: str | None, addresses: list[str] | None) -> TrustedProxy | None:
    from driftline.flows.web.access import TrustedProxy

    if header is None and not addresses:
        return None
    if header is None or not addresses:
        fix = "Set both --trusted-proxy-header and --trusted-proxy: otherwise anyone could send the header."
        raise UsageError("A trusted proxy requires a header and an address", header or ", ".join(addresses or ()), fix)
    try:
        networks = tuple(ip_network(address) for address in addresses)
    except ValueError as error:
        raise UsageError("Not a valid proxy address", str(error), "Use 10.0.0.7 or 10.0.0.0/24.") from error
    return TrustedProxy(header, networks)


def _rate_limit(per_second: float) -> RateLimit:
    from driftline.flows.web.guard import RateLimit

    return RateLimit(per_second, burst=max(1, round(2 * per_second)))

"""Answer /healthz, /readyz and /metrics, and observe each request: count, time, log and trace it to its last byte.

Prometheus reads ``Metrics`` at /metrics: requests, times and errors by route, the age of index and cache, and the state
of fleets. ``tracer`` sends an OpenTelemetry span per request, configured by the standard variables.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, get_args

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from driftline.flows.web.access import granted
from driftline.flows.web.responses import JsonAnswer
from driftline.storage.entities import Entity, normalized_name
from driftline.storage.environment import install_command
from driftline.storage.errors import BadEntity, DriftlineError, MissingExtra
from driftline.storage.workspace.fleet_state import FleetRecord, entities_in_use
from driftline.storage.workspace.records import DONE, RunHistory, RunRecord, read_copy_record
from driftline.storage.workspace.workspace import Workspace

log = logging.getLogger(__name__)

INDEX_SECONDS = 15.0
"""Maximum age of cached index metrics."""
MAX_RUNS_READ = 100
"""Maximum run records to read at once, newest first; the next update reads older ones. Prometheus waits 10 s."""
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class Metrics:
    """A server's metrics."""

    registry: CollectorRegistry
    requests: Counter
    errors: Counter
    seconds: Histogram
    under_way: Gauge

    @classmethod
    def create(cls) -> Metrics:
        """Create metrics in a separate registry, so several servers in a process do not share them."""
        registry = CollectorRegistry()
        return cls(
            registry,
            Counter("driftline_http_requests", "Requests answered.", ["route", "method", "status"], registry=registry),
            Counter("driftline_http_errors", "Error responses, by kind.", ["route", "error"], registry=registry),
            Histogram(
                "driftline_http_request_seconds",
                "Time from the request to the end of its response.",
                ["route"],
                buckets=_BUCKETS,
                registry=registry,
            ),
            Gauge("driftline_http_requests_under_way", "Requests in progress.", registry=registry),
        )

    def text(self, index: IndexMetrics | None) -> bytes:
        """Return the metrics as Prometheus text, including metrics of ``index`` and the process if they are visible."""
        found = generate_latest(self.registry)
        if index is None:
            return found
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(index)
        return found + generate_latest(registry)


@dataclass(slots=True, eq=False)  # registries keep collectors in a dict
class IndexMetrics:
    """The version and age of the workspace that ``newest`` opens, and the state of its ``fleets``, read at most every
    INDEX_SECONDS.
    """

    newest: Callable[[], Workspace]
    fleets: Callable[[], Mapping[str, FleetRecord]] = dict
    _known_fleets: Mapping[str, FleetRecord] = field(default_factory=dict)
    _last: RunRecord | None = None
    _indexed: float | None = None
    _ends: dict[Entity, float] = field(default_factory=dict)
    """When the last successful run of each source ended, according to the runs read so far."""
    _runs_read: set[tuple[str, Entity]] = field(default_factory=set)
    _readable: bool = False
    _model: str = ""
    _compared: float | None = None
    _read_at: float = -INDEX_SECONDS
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for a Prometheus registry."""
        with self._lock:
            if time.monotonic() - self._read_at >= INDEX_SECONDS:
                self._read()
            last, model, readable, compared = self._last, self._model, self._readable, self._compared
            fleets, indexed = self._known_fleets, self._indexed
        yield GaugeMetricFamily("driftline_index_readable", "1 if the workspace can be read.", float(readable))
        if last is not None:
            version = {"run_id": last.run_id, "model": model, "outcome": last.outcome}
            yield InfoMetricFamily("driftline_index", "The last run of the workspace.", version)
            about = "When the last run ended, in Unix time."
            yield GaugeMetricFamily("driftline_index_last_run_timestamp_seconds", about, _end(last))
        if indexed is not None:
            about = "When the last successful run of a source that is not a fleet's ended, in Unix time."
            yield GaugeMetricFamily("driftline_sources_last_run_timestamp_seconds", about, indexed)
        if compared is not None:
            about = "When the local copy was last compared with the bucket, in Unix time."
            yield GaugeMetricFamily("driftline_cache_compared_timestamp_seconds", about, compared)
        if fleets:
            yield from _of_fleets(fleets)

    def _read(self) -> None:
        self._read_at = time.monotonic()
        try:
            self._known_fleets = self.fleets()
        except DriftlineError as error:  # their times show that the state is old
            log.warning("Cannot read the state of the fleets: %s", error)
        try:
            workspace = self.newest()
            copied = read_copy_record(workspace.objects)
            runs = [RunHistory(workspace.objects, tenant).last() for tenant in workspace.tenants()]
            self._indexed = self._last_of_sources(workspace)
        except DriftlineError:
            self._readable = False
            return
        self._readable, self._model = True, workspace.config.model or ""
        self._compared = copied.pulled.timestamp() if copied is not None else None
        self._last = max((run for run in runs if run is not None), key=lambda run: run.run_id, default=None)

    def _last_of_sources(self, workspace: Workspace) -> float | None:
        """Return when the last run of a source outside the fleets ended; a sync without changes records no run."""
        histories = {tenant: RunHistory(workspace.objects, tenant) for tenant in workspace.tenants()}
        runs = {(run_id, tenant) for tenant, history in histories.items() for run_id in history.ids()}
        self._runs_read &= runs  # cleanups delete old records
        for run_id, tenant in sorted(runs - self._runs_read, reverse=True)[:MAX_RUNS_READ]:
            with suppress(BadEntity):
                self._note_ends(histories[tenant].readable(run_id))
            self._runs_read.add((run_id, tenant))
        in_fleets = entities_in_use(self._known_fleets.values())
        own = (entity for entity in self._ends if normalized_name(str(entity)) not in in_fleets)
        for entity in sorted(own, key=lambda each: self._ends[each], reverse=True):
            if workspace.readable_source(entity) is not None:
                return self._ends[entity]
            del self._ends[entity]  # it was removed, or is damaged until its next run
        return None

    def _note_ends(self, run: RunRecord | None) -> None:
        if run is not None and run.outcome == DONE:
            for source in run.main_sources:
                entity = Entity.parse(source["entity"])
                self._ends[entity] = max(_end(run), self._ends.get(entity, 0.0))


def _end(run: RunRecord) -> float:
    return datetime.fromisoformat(run.started).timestamp() + run.seconds


def _of_fleets(fleets: Mapping[str, FleetRecord]) -> Iterator[Metric]:
    from driftline.storage.workspace.fleet_state import State

    now = datetime.now(UTC)
    about = "Repositories of a fleet, by state."
    states = GaugeMetricFamily("driftline_fleet_repositories", about, labels=["fleet", "state"])
    about = "When a fleet's host last listed its repositories, in Unix time."
    listed = GaugeMetricFamily("driftline_fleet_listed_timestamp_seconds", about, labels=["fleet"])
    about = "How long the index of a fleet's repository has been known to be behind, at most."
    lag = GaugeMetricFamily("driftline_fleet_lag_seconds", about, labels=["fleet"])
    for name, fleet in fleets.items():
        counts = Counts(each.state for each in fleet.repositories.values())
        for state in get_args(State):
            states.add_metric([name, state], counts[state])
        if fleet.listed_at is not None:
            listed.add_metric([name], fleet.listed_at.timestamp())
        lag.add_metric([name], max((each.lag_seconds(now) for each in fleet.repositories.values()), default=0.0))
    yield from (states, listed, lag)


access_log = logging.getLogger("driftline.access")
"""One record per request, at INFO. Queries are private, so they are not logged."""
INTERNAL_ERROR, UNEXPECTED = 500, "unexpected"
_UNANSWERED = 499
"""The status of requests whose client disconnected, or was too slow, before the response started."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Tracer(Protocol):
    """The type of function returned by ``tracer``, which creates a span for a request."""

    def __call__(self, scope: Scope) -> Any: ...


@dataclass(frozen=True, slots=True)
class Observed:
    """Passes requests to ``app``, and observes them."""

    app: ASGIApp
    metrics: Metrics = field(default_factory=Metrics.create)
    tracer: Tracer | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, sent_bytes, is_gone = time.monotonic(), _UNANSWERED, 0, False

        async def received() -> Message:
            nonlocal is_gone
            message = await receive()
            is_gone = is_gone or message["type"] == "http.disconnect"
            return message

        async def watched(message: Message) -> None:
            nonlocal status, sent_bytes
            if is_gone and status == _UNANSWERED:
                return  # the client can no longer receive a response
            if message["type"] == "http.response.start":
                status = message["status"]
            sent_bytes += len(message.get("body", b""))
            await send(message)

        self.metrics.under_way.inc()
        span = self.tracer(scope) if self.tracer is not None else nullcontext()
        with span as current:
            try:
                await self.app(scope, received, watched)
            finally:
                self.metrics.under_way.dec()
                seconds = time.monotonic() - started
                self._note(scope, status, seconds, sent_bytes)
                if current is not None:
                    current.update_name(f"{scope['method']} {_route(scope)}")
                    current.set_attribute("http.response.status_code", status)

    def _note(self, scope: Scope, status: int, seconds: float, sent_bytes: int) -> None:
        route, state = _route(scope), scope.get("state", {})
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self.metrics.requests.labels(route, method, str(status)).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        error = state.get("error", UNEXPECTED if status >= INTERNAL_ERROR else "")
        if error:
            self.metrics.errors.labels(route, error).inc()
        fields = {
            "request_id": state.get("request_id", ""),
            "token": state.get("token_id", ""),
            "client": (scope.get("client") or ("",))[0],
            "method": method,
            "route": route,
            "status": status,
            "error": error,
            "seconds": round(seconds, 6),
            "bytes": sent_bytes,
        }
        access_log.info("%s %s %s", method, route, status, extra={"fields": fields})


def _route(scope: Scope) -> str:
    """Return the route's pattern, because paths are unbounded and reveal documents."""
    return getattr(scope.get("route"), "path", "none")


VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def tracer(environ: Mapping[str, str] = os.environ) -> Tracer | None:
    """Return the function that creates spans, if an exporter is configured in ``environ``.

    Spans continue the trace of a client's ``traceparent``; they contain neither queries nor document paths. Raises
    MissingExtra.
    """
    if not any(environ.get(name) for name in VARIABLES):
        return None
    try:
        from opentelemetry import propagate
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind
    except ModuleNotFoundError as error:
        fix = f"Install the extra ({install_command('otel')}), or unset the variable."
        raise MissingExtra("Traces need OpenTelemetry", ", ".join(VARIABLES), fix) from error
    service = {"service.name": environ.get("OTEL_SERVICE_NAME") or "driftline-web"}
    provider = TracerProvider(resource=Resource.create(service))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    made = provider.get_tracer("driftline.web")

    def span_of(scope: Scope) -> object:
        context = propagate.extract(dict(Headers(scope=scope)))
        attributes = {"http.request.method": scope["method"], "url.scheme": scope["scheme"]}
        return made.start_as_current_span(scope["method"], context, SpanKind.SERVER, attributes)

    return span_of


async def alive() -> Response:
    """Answer /healthz: the server accepts requests."""
    return JsonAnswer({"status": "alive"})


def readiness(newest: Callable[[], Workspace]) -> Callable[[], Response]:
    """Return the function that answers /readyz: whether ``newest`` can open the workspace."""

    def answer() -> Response:
        newest()
        return JsonAnswer({"status": "ready"})

    return answer


def metrics_page(metrics: Metrics, index: IndexMetrics) -> Callable[[], Response]:
    """Return the function that answers /metrics."""

    def answer() -> Response:
        # The last run may concern entities outside the token's boundary.
        may_see_all = granted("metrics").within is None
        return Response(metrics.text(index if may_see_all else None), media_type=CONTENT_TYPE_LATEST)

    return answer

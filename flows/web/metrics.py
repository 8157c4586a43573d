"""What Prometheus reads at /metrics: requests, their times and errors by route, and how old index and cache are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric

from driftline.storage.errors import DriftlineError
from driftline.storage.workspace.copies import read_copy_record
from driftline.storage.workspace.run_history import RunHistory, RunRecord
from driftline.storage.workspace.workspace import Workspace

INDEX_SECONDS = 15.0
"""How long the last run of the index is believed to be the last."""
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of one server."""

    registry: CollectorRegistry
    requests: Counter
    errors: Counter
    seconds: Histogram
    under_way: Gauge

    @classmethod
    def create(cls) -> Metrics:
        """Metrics in a registry of their own, so that several servers of a process do not share them."""
        registry = CollectorRegistry()
        return cls(
            registry,
            Counter("driftline_http_requests", "Requests answered.", ["route", "method", "status"], registry=registry),
            Counter("driftline_http_errors", "Errors answered, by kind.", ["route", "error"], registry=registry),
            Histogram(
                "driftline_http_request_seconds",
                "Time from the request to the end of its answer.",
                ["route"],
                buckets=_BUCKETS,
                registry=registry,
            ),
            Gauge("driftline_http_requests_under_way", "Requests that are being answered.", registry=registry),
        )

    def text(self, index: IndexMetrics | None) -> bytes:
        """The exposition format, with the figures of the ``index`` and of the process if they may be seen."""
        found = generate_latest(self.registry)
        if index is None:
            return found
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(index)
        return found + generate_latest(registry)


@dataclass(slots=True, eq=False)  # registries keep collectors in a dict
class IndexMetrics:
    """The version and age of the workspace that ``newest`` opens; read every INDEX_SECONDS at most."""

    newest: Callable[[], Workspace]
    _last: RunRecord | None = None
    _readable: bool = False
    _model: str = ""
    _compared: float | None = None
    _read_at: float = -INDEX_SECONDS
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def collect(self) -> Iterator[Metric]:
        """For a registry of Prometheus."""
        with self._lock:
            if time.monotonic() - self._read_at >= INDEX_SECONDS:
                self._read()
            last, model, readable, compared = self._last, self._model, self._readable, self._compared
        yield GaugeMetricFamily("driftline_index_readable", "1 if the workspace can be read.", float(readable))
        if last is not None:
            version = {"run_id": last.run_id, "model": model, "outcome": last.outcome}
            yield InfoMetricFamily("driftline_index", "The last run of the workspace.", version)
            ended = datetime.fromisoformat(last.started).timestamp() + last.seconds
            about = "When the last run ended, in Unix time."
            yield GaugeMetricFamily("driftline_index_last_run_timestamp_seconds", about, ended)
        if compared is not None:
            about = "When the copy on this disk was last compared with the bucket, in Unix time."
            yield GaugeMetricFamily("driftline_cache_compared_timestamp_seconds", about, compared)

    def _read(self) -> None:
        self._read_at = time.monotonic()
        try:
            workspace = self.newest()
            copied = read_copy_record(workspace.objects)
            runs = [RunHistory(workspace.objects, tenant).last() for tenant in workspace.tenants()]
        except DriftlineError:
            self._readable = False
            return
        self._readable, self._model = True, workspace.config.model or ""
        self._compared = copied.pulled.timestamp() if copied is not None else None
        self._last = max((run for run in runs if run is not None), key=lambda run: run.run_id, default=None)

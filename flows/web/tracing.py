"""Traces by OpenTelemetry: a span for each request, sent where the standard variables say."""

from __future__ import annotations

import os
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import Scope

from driftline.flows.web.observing import Tracer
from driftline.storage.errors import MissingExtra

VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def tracer(environ: Mapping[str, str] = os.environ) -> Tracer | None:
    """What makes the span of a request, if an exporter is configured in ``environ``. Raises MissingExtra.

    Spans continue the trace that a client's ``traceparent`` names; they hold no query and no path of a document.
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
        fix = "Install the extra: pip install 'driftline[otel]', or unset the variable."
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

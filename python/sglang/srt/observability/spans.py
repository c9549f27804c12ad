"""OpenTelemetry spans of requests, exported with OTLP over HTTP. Needs the `otel` extra."""

import time
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sglang.srt.core.trace import Tracer

EXPORT_EVERY_MS = 500
MAX_BOUND = 65_536
"""Requests with a context; more than any queue holds."""

_W3C = TraceContextTextMapPropagator()


@dataclass(frozen=True, slots=True)
class OpenSpan:
    """A span that has begun; `context` is what its children name as their parent."""

    span: Span
    context: str

    def end(self, **details: int | float | str) -> None:
        """It is over now."""
        self.span.set_attributes(details)
        self.span.end()


class SpanExporter:
    """Spans of one process. Times are CLOCK_MONOTONIC nanoseconds and become wall-clock time here."""

    def __init__(self, endpoint: str, service: str) -> None:
        """`endpoint`: URL of the collector; `/v1/traces` is added where it has no path."""
        url = endpoint if endpoint.rstrip("/").count("/") > 2 else endpoint.rstrip("/") + "/v1/traces"
        self._provider = TracerProvider(resource=Resource.create({"service.name": service}), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=url, timeout=5)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=EXPORT_EVERY_MS))
        self._tracer = self._provider.get_tracer("sglang")
        self._offset = time.time_ns() - time.monotonic_ns()

    def begin(self, name: str, parent: str) -> OpenSpan:
        """A server span under the client's traceparent, or a new trace where that is empty or malformed."""
        context = _W3C.extract({"traceparent": parent})
        span = self._tracer.start_span(name, context=context, kind=SpanKind.SERVER)
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, context=trace.set_span_in_context(span))
        return OpenSpan(span, carrier.get("traceparent", ""))

    def add(self, name: str, parent: str, start_ns: int, end_ns: int, details: dict[str, int | float | str]) -> None:
        """A span that is over."""
        context = _W3C.extract({"traceparent": parent})
        span = self._tracer.start_span(name, context=context, start_time=start_ns + self._offset, attributes=details)
        span.end(end_time=max(start_ns, end_ns) + self._offset)

    def close(self) -> None:
        """Send what waits."""
        self._provider.shutdown()


class SpanTracer:
    """A `Tracer` that makes spans of what is reported with a bound rid, and passes everything on to another."""

    enabled = True

    def __init__(self, exporter: SpanExporter, other: Tracer) -> None:
        self._exporter = exporter
        self._other = other
        self._contexts: dict[str, str] = {}

    def slice(self, track: str, name: str, start_ns: int, end_ns: int, **details: int | float | str) -> None:
        context = self._contexts.get(str(details.get("rid", "")))
        if context is not None:
            self._exporter.add(name, context, start_ns, end_ns, details)
        if self._other.enabled:
            self._other.slice(track, name, start_ns, end_ns, **details)

    def instant(self, track: str, name: str, at_ns: int, **details: int | float | str) -> None:
        if self._other.enabled:
            self._other.instant(track, name, at_ns, **details)

    def bind(self, rid: str, context: str) -> None:
        if len(self._contexts) < MAX_BOUND:
            self._contexts[rid] = context

    def release(self, rid: str) -> None:
        self._contexts.pop(rid, None)

    def close(self) -> None:
        self._exporter.close()
        self._other.close()

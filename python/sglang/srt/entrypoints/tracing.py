"""Opens what --trace-file and --otlp-endpoint ask for."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sglang.srt.config.server import ServerConfig
from sglang.srt.core.trace import NullTracer, Tracer
from sglang.srt.errors import ConfigError
from sglang.srt.observability.trace import ChromeTracer

if TYPE_CHECKING:
    from sglang.srt.observability.spans import SpanExporter


def open_exporter(config: ServerConfig, process: str) -> "SpanExporter | None":
    """Exports spans to --otlp-endpoint; None without it. Raises ConfigError where OpenTelemetry is not installed."""
    if not config.otlp_endpoint:
        return None
    try:
        from sglang.srt.observability.spans import SpanExporter
    except ImportError as error:
        raise ConfigError(f"--otlp-endpoint: needs the extra `otel` (pip install sglang[otel]): {error}") from error
    return SpanExporter(config.otlp_endpoint, f"sglang-{process}-{config.disagg_mode}-{config.port}")


def open_tracer(config: ServerConfig) -> Tracer:
    """The scheduler process's tracer: a timeline, spans, both or nothing."""
    tracer: Tracer = NullTracer()
    if config.trace_file:
        tracer = ChromeTracer(Path(config.trace_file), f"{config.disagg_mode} {config.port}", os.getpid())
    exporter = open_exporter(config, "scheduler")
    if exporter is None:
        return tracer
    from sglang.srt.observability.spans import SpanTracer

    return SpanTracer(exporter, tracer)

"""OpenTelemetry set-up: OTLP export by the standard `OTEL_*` variables, off when no endpoint is set."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NoOpTracerProvider, Tracer

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Tracing:
    """Owns the tracer provider of a server.

    Args:
        environ: the environment; the exporter itself reads the process's own.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._provider: TracerProvider | None = None
        if not enabled(environ):
            return
        # Imported here, since the exporter's client is not free and most starts do without it.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        resource = Resource.create({"service.name": environ.get("OTEL_SERVICE_NAME", "pondera")})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))

    @property
    def tracer(self) -> Tracer:
        return (self._provider or NoOpTracerProvider()).get_tracer("pondera")

    def close(self) -> None:
        """Flush what is still queued, within the exporter's own time-out."""
        if self._provider is not None:
            self._provider.shutdown()


def enabled(environ: Mapping[str, str]) -> bool:
    """Whether an OTLP endpoint is configured and telemetry is not switched off."""
    if (
        environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or environ.get("OTEL_TRACES_EXPORTER") == "none"
    ):
        return False
    return any(environ.get(name) for name in _ENDPOINTS)

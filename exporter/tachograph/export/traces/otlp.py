"""Traces to any OpenTelemetry backend over OTLP/HTTP, through the SDK (needs the extra `tachograph[otlp]`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tachograph.client.hello.identity import Identity
from tachograph.export.sinks.open_telemetry import EXPORT_SECONDS, resource, silence_sdk
from tachograph.export.traces.spans import Span


class OtlpTrace:
    """Exports a sampled step as one trace: the step as root, its phases as children.

    `endpoint` is the full address, such as `http://localhost:4318/v1/traces`; without one the SDK's own variables hold
    (`OTEL_EXPORTER_OTLP_ENDPOINT` and the rest). The SDK's batch thread sends; what it cannot send it drops. Raises
    ImportError, with what to install, if the SDK is missing.
    """

    def __init__(self, endpoint: str | None, identity: Identity) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace import StatusCode, set_span_in_context
        except ImportError as error:
            from tachograph import extras

            raise ImportError(f"traces over OTLP need OpenTelemetry: {extras.command('otlp')}") from error
        self._failed = StatusCode.ERROR
        self._inside = set_span_in_context
        silence_sdk()
        self._provider = TracerProvider(resource=resource(identity), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=EXPORT_SECONDS)))
        self._tracer = self._provider.get_tracer("tachograph")

    def write(self, steps: Span, phases: Iterable[Span], facts: Mapping[str, object], unix: float) -> None:
        """Export a step and what lies in it; `unix` is what makes perf_counter's seconds Unix ones."""
        given: dict[str, Any] = {f"tachograph.{name}": value for name, value in facts.items()}
        root = self._tracer.start_span(
            steps.name, context=None, start_time=_nanoseconds(unix + steps.began), attributes=given
        )
        inside = self._inside(root)
        for phase in phases:
            span = self._tracer.start_span(
                phase.name, context=inside, start_time=_nanoseconds(unix + phase.began),
                attributes={"tachograph.step": given["tachograph.step"]},
            )  # fmt: skip
            if phase.failed:
                span.set_status(self._failed)
            span.end(_nanoseconds(unix + phase.ended))
        root.end(_nanoseconds(unix + steps.ended))

    def close(self) -> None:
        """Export what is left."""
        self._provider.shutdown()


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)

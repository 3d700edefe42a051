"""Metrics to any OpenTelemetry collector over OTLP/HTTP (needs the extra `tachograph[otlp]`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tachograph.catalog.metric import COUNTER
from tachograph.catalog.train import TRAIN_METRICS
from tachograph.export.sinks.open_telemetry import EXPORT_SECONDS, resource, silence_sdk

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation

    from tachograph.catalog.metric import Metric
    from tachograph.client.hello.identity import Identity


class OtlpSink:
    """Exports a rank's metrics under their Prometheus names, counters as monotonic sums, every `seconds`.

    Run and rank are attributes of the resource. `endpoint` is the full address, such as
    `http://localhost:4318/v1/metrics`; without one the SDK's own variables hold (`OTEL_EXPORTER_OTLP_ENDPOINT` and the
    rest). Raises ImportError, with what to install, if the SDK is missing.
    """

    def __init__(self, identity: Identity, endpoint: str | None = None, seconds: float = 10.0) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        except ImportError as error:
            from tachograph import extras

            raise ImportError(f"OtlpSink needs OpenTelemetry: {extras.command('otlp')}") from error
        self._process = os.getpid()
        self._metrics: Mapping[str, float] = {}
        self._known: set[str] = set()
        silence_sdk()
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(endpoint, timeout=EXPORT_SECONDS), export_interval_millis=1000 * seconds
        )
        self._provider = MeterProvider([reader], resource=resource(identity))
        self._meter = self._provider.get_meter("tachograph")

    def write(self, time: float, step: int, metrics: Mapping[str, float]) -> None:
        """Take a frame over; the SDK's own thread asks for it when it exports."""
        self._metrics = metrics
        for key in metrics:
            family = key.partition("/")[0]
            if family not in self._known and (row := TRAIN_METRICS.get(family)) is not None:
                self._known.add(family)
                self._instrument(row)

    def close(self) -> None:
        """Export what is left."""
        self._provider.shutdown(timeout_millis=2000)

    def _instrument(self, row: Metric) -> None:
        make: Callable[..., Any] = (
            self._meter.create_observable_counter if row.kind == COUNTER else self._meter.create_observable_gauge
        )
        make(row.name, callbacks=[self._observe(row)], unit=_UNITS.get(row.unit, row.unit), description=row.help)

    def _observe(self, row: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        label = row.own_label

        def observe(options: CallbackOptions) -> Iterable[Observation]:
            if os.getpid() != self._process:  # the SDK begins anew in every forked loader worker; all it has is old
                return
            for key, value in self._metrics.items():
                family, _, word = key.partition("/")
                if family == row.key:
                    yield Observation(value, {label: word} if label else None)

        return observe


_UNITS = {"seconds": "s", "bytes": "By"}
"""UCUM spelling, which OpenTelemetry wants."""

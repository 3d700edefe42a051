"""Shared by metrics and traces over OTLP: the resource, and a filter for the SDK's repeated log messages."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from tachograph.client.core.notice import notice

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from tachograph.client.hello.identity import Identity

EXPORT_SECONDS = 2.0
"""Seconds that one export may take, retries included: the exit is not delayed longer by a collector that is down."""

_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.metrics._internal.export",
)
"""Loggers of the SDK that warn at each attempt to export: with a collector that is down, four every ten seconds."""


def resource(identity: Identity) -> Resource:
    """Return run and rank as attributes of everything that is sent. Raises ImportError without the SDK."""
    from opentelemetry.sdk.resources import Resource

    return Resource.create({
        "service.name": "tachograph", "tachograph.run": identity.run, "tachograph.rank": identity.rank,
        "tachograph.world_size": identity.world_size, "tachograph.attempt": identity.attempt,
    })  # fmt: skip


def silence_sdk() -> None:
    """Log the SDK's warnings about its collector once, as a notice of ours."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if _log_once not in logger.filters:
            logger.addFilter(_log_once)


def _log_once(record: logging.LogRecord) -> bool:
    with contextlib.suppress(Exception):  # arguments that do not fit the text: not ours to raise
        notice("otlp", f"OpenTelemetry does not reach its collector: {record.getMessage()}")
    return False

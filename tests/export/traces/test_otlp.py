"""Traces over OTLP/HTTP, received by a real server and decoded with OpenTelemetry's own messages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tachograph.client.hello.identity import Identity
from tachograph.export.traces import Traces

WHO = Identity("llama", 5, 5, 8, 1, 0)


def test_a_step_is_one_trace_with_its_phases_as_children(receiver: Any, train: Callable[..., None]) -> None:
    """Root and children share the trace, and say run, rank and step."""
    traces = Traces(every=2, otlp=f"{receiver.url}/v1/traces")
    traces.start(WHO)
    train(traces, range(1, 4))
    traces.close()
    spans = []
    for body in receiver.bodies:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            attributes = {each.key: each.value for each in resource.resource.attributes}
            assert attributes["tachograph.run"].string_value == "llama"
            assert attributes["tachograph.rank"].int_value == 5
            spans += [span for scope in resource.scope_spans for span in scope.spans]
    (root,) = [span for span in spans if not span.parent_span_id]
    children = [span for span in spans if span.parent_span_id]
    assert root.name == "step"
    assert sorted(span.name for span in children) == ["backward", "collective", "forward"]
    for span in children:
        assert span.parent_span_id == root.span_id
        assert span.trace_id == root.trace_id
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano + 1000
    facts = {each.key: each.value for each in root.attributes}
    assert facts["tachograph.step"].int_value == 2
    assert facts["tachograph.collective_wait_seconds"].double_value == 0.25


def test_nobody_listening_holds_nobody_up(train: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    """A collector that is down costs its traces: one line in the log."""
    traces = Traces(every=1, otlp="http://127.0.0.1:9/v1/traces")
    traces.start(WHO)
    with caplog.at_level(logging.WARNING):
        train(traces, range(1, 50))
        traces.close()
    assert len([record for record in caplog.records if "does not reach its collector" in record.message]) == 1

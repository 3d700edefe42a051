"""The messages of Prometheus' protobuf format, for the package `protobuf`.

Field numbers and types are those of io/prometheus/client/metrics.proto (prometheus/client_model 0.6); exemplars and
summaries, which the exporter has none of, are left out, so that they would be unknown fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet

COUNTER, GAUGE, SUMMARY, UNTYPED, HISTOGRAM, GAUGE_HISTOGRAM = range(6)
"""The enumeration MetricType."""

_MESSAGES = {
    "LabelPair": "1 string name, 2 string value",
    "Gauge": "1 double value",
    "Counter": "1 double value",
    "Untyped": "1 double value",
    "Bucket": "1 uint64 cumulative_count, 4 double cumulative_count_float, 2 double upper_bound",
    "BucketSpan": "1 sint32 offset, 2 uint32 length",
    "Histogram": "1 uint64 sample_count, 4 double sample_count_float, 2 double sample_sum, 3 Bucket* bucket, "
    "5 sint32 schema, 6 double zero_threshold, 7 uint64 zero_count, 8 double zero_count_float, "
    "9 BucketSpan* negative_span, 10 sint64* negative_delta, 11 double* negative_count, "
    "12 BucketSpan* positive_span, 13 sint64* positive_delta, 14 double* positive_count",
    "Metric": "1 LabelPair* label, 2 Gauge gauge, 3 Counter counter, 5 Untyped untyped, 7 Histogram histogram, "
    "6 int64 timestamp_ms",
    "MetricFamily": "1 string name, 2 string help, 3 int32 type, 4 Metric* metric, 5 string unit",
}
_PACKAGE = "io.prometheus.client"


def _message_type() -> Any:
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="metrics.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for each in fields.split(", "):
            number, kind, field = each.split()
            label = field_type.LABEL_REPEATED if kind.endswith("*") else field_type.LABEL_OPTIONAL
            added = message.field.add(name=field, number=int(number), label=label)
            if (kind := kind.removesuffix("*")) in _MESSAGES:
                added.type, added.type_name = field_type.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                added.type = getattr(field_type, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.MetricFamily"))


_Family = _message_type()


def families(page: bytes) -> Iterator[Any]:
    """Yield the MetricFamily messages of a page; fail for a field that is not in the schema."""
    at = 0
    while at < len(page):
        length = shift = 0
        while True:
            byte = page[at]
            length, shift, at = length | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                break
        assert at + length <= len(page), "cut short"
        family = _Family.FromString(page[at : at + length])
        _check(family)
        at += length
        yield family


def _check(message: Any) -> None:
    assert len(UnknownFieldSet(message)) == 0, message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if field.is_repeated else [value]:
                _check(each)

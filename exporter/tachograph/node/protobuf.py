"""Samples in Prometheus' protobuf format, the one with native histograms: MetricFamily messages, each after its length.

The schema is `io/prometheus/client/metrics.proto` of prometheus/client_model, the encoding that of
https://protobuf.dev/programming-guides/encoding/; the package `protobuf` would cost the exporter memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from math import inf
from struct import Struct

from tachograph.catalog import index as catalog
from tachograph.catalog.metric import COUNTER, HISTOGRAM, NATIVE_HISTOGRAM, Metric
from tachograph.node.exposition import Beginnings, Series, by_family
from tachograph.node.histograms import BOUNDS, HistogramSample
from tachograph.node.samples import Sample
from tachograph.wire import FINE_SCHEMA

NATIVE: Mapping[str, Metric] = {catalog.TRAIN_STEP_SECONDS.name: catalog.RUN_STEP_DISTRIBUTION}
"""Histogram -> the family that shows it as a native one, so that its classic series stay where both are scraped."""

ZERO_THRESHOLD = 2.0**-128
"""Prometheus' default; any number above 0 says that a histogram without observations is a native one."""

_double = Struct("<d").pack
_TYPES = {COUNTER: 0, HISTOGRAM: 4, NATIVE_HISTOGRAM: 4}
_GAUGE = 1

# A field's tag is its number and how it is encoded: as a varint (0), as a double (1), or after its length (2).
_NAME, _HELP, _TYPE, _METRIC = b"\x0a", b"\x12", b"\x18", b"\x22"
_LABEL, _GAUGE_FIELD, _COUNTER_FIELD, _HISTOGRAM_FIELD = b"\x0a", b"\x12", b"\x1a", b"\x3a"
_LABEL_NAME, _LABEL_VALUE = b"\x0a", b"\x12"
_VALUE = b"\x09\x09"  # the length of what follows: a tag and a double
_COUNT, _SUM, _BUCKET, _SCHEMA = b"\x08", b"\x11", b"\x1a", b"\x28"
_ZERO_THRESHOLD, _SPAN, _DELTAS = b"\x31", b"\x62", b"\x6a"
_CUMULATIVE, _BOUND = b"\x08", b"\x11"
_OFFSET, _LENGTH = b"\x08", b"\x10"


class ProtobufExposition:
    """Renders samples; headers, and the part of each message before its number, are cached between pages."""

    def __init__(self) -> None:
        self._beginnings = Beginnings(_beginning)
        self._headers: dict[str, bytes] = {}

    def render(self, samples: Iterable[Sample | HistogramSample]) -> bytes:
        """Return the samples, families in catalog order; of two samples of one series the later one wins."""
        families = by_family(samples)
        self._beginnings.keep(families.keys())
        page: list[bytes] = []
        for name, series in families.items():
            metric = next(iter(series.values())).metric
            beginnings = self._beginnings.of(name, series)
            values = [sample.value for sample in series.values() if isinstance(sample, Sample)]
            if values:
                page += self._family(metric, map(bytes.__add__, beginnings, map(_double, values)))
                continue
            page += self._family(metric, _histograms(beginnings, series, _classic))
            if name in NATIVE:
                page += self._family(NATIVE[name], _histograms(beginnings, series, _native))
        return b"".join(page)

    def _family(self, metric: Metric, messages: Iterable[bytes]) -> tuple[bytes, bytes, bytes]:
        header = self._headers.get(metric.name)
        if header is None:
            kind = _varint(_TYPES.get(metric.kind, _GAUGE))
            header = _field(_NAME, metric.name.encode()) + _field(_HELP, metric.help.encode()) + _TYPE + kind
            self._headers[metric.name] = header
        body = b"".join(messages)
        return _varint(len(header) + len(body)), header, body


def _beginning(sample: Sample | HistogramSample) -> bytes:
    """Return the message of a sample up to its number; of a histogram, its labels."""
    pairs = zip(sample.metric.labels, sample.labels, strict=True)
    labels = b"".join(
        _field(_LABEL, _field(_LABEL_NAME, name.encode()) + _field(_LABEL_VALUE, value.encode()))
        for name, value in pairs
    )
    if isinstance(sample, HistogramSample):
        return labels
    kind = _COUNTER_FIELD if sample.metric.kind == COUNTER else _GAUGE_FIELD
    return _METRIC + _varint(len(labels) + 11) + labels + kind + _VALUE


def _histograms(labels: Iterable[bytes], series: Series, encode: Callable[[HistogramSample], bytes]) -> Iterator[bytes]:
    for start, sample in zip(labels, series.values(), strict=True):
        if isinstance(sample, HistogramSample):
            total = _COUNT + _varint(sample.cumulative[-1]) + _SUM + _double(sample.sum)
            yield _field(_METRIC, start + _field(_HISTOGRAM_FIELD, total + encode(sample)))


def _classic(sample: HistogramSample) -> bytes:
    return b"".join(
        _field(_BUCKET, _CUMULATIVE + _varint(count) + _BOUND + _double(bound))
        for bound, count in zip((*BOUNDS, inf), sample.cumulative, strict=True)
    )


def _native(sample: HistogramSample) -> bytes:
    """Return the buckets as spans of neighbours, each after its gap, and what each count is above the one before."""
    spans: list[tuple[int, int]] = []
    indices = sorted(sample.native)
    end = 0
    for index in indices:
        if spans and index == end:
            spans[-1] = spans[-1][0], spans[-1][1] + 1
        else:
            spans.append((index - end, 1))
        end = index + 1
    counts = [0, *(sample.native[index] for index in indices)]
    deltas = b"".join(_varint(_zigzag(count - before)) for before, count in pairwise(counts))
    return b"".join(
        (
            _SCHEMA + _varint(_zigzag(FINE_SCHEMA)),
            _ZERO_THRESHOLD + _double(ZERO_THRESHOLD),
            *(_field(_SPAN, _OFFSET + _varint(_zigzag(gap)) + _LENGTH + _varint(length)) for gap, length in spans),
            _field(_DELTAS, deltas),
        )
    )


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


def _zigzag(number: int) -> int:
    """Return a signed number as an unsigned one: 0, -1, 1, -2 as 0, 1, 2, 3."""
    return number << 1 if number >= 0 else (-number << 1) - 1


def _varint(number: int) -> bytes:
    """Return a whole number in groups of seven bits, the lowest first; all but the last have their highest bit set."""
    if number < 128:
        return bytes((number,))
    groups = bytearray()
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    groups.append(number)
    return bytes(groups)

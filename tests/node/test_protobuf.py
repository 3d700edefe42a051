"""The protobuf exposition: every series of the text, and step times as a native histogram that is exact to 2.5 %."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tachograph.catalog import index as catalog
from tachograph.node.app import Exporter
from tachograph.node.exposition import TEXT, render
from tachograph.node.histograms import MOST, Buckets, RunHistogram, parse
from tachograph.node.protobuf import ProtobufExposition
from tachograph.node.samples import Sample
from tachograph.wire import FINE_INDEX_RANGE, FINE_SCHEMA, bucket_index
from tests.node.client_model import COUNTER, GAUGE, HISTOGRAM, families
from tests.node.test_exposition import node as node  # noqa: PLC0414 - its fixture

KINDS = {COUNTER: "counter", GAUGE: "gauge", HISTOGRAM: "histogram"}
DISTRIBUTION = catalog.RUN_STEP_DISTRIBUTION.name
STEPS = catalog.TRAIN_STEP_SECONDS

Key = tuple[str, frozenset[tuple[str, str]]]


def in_text(samples: Any) -> tuple[dict[Key, float], dict[str, tuple[str, str]]]:
    """Return the value of every series of the text format, and the type and help of each family."""
    values: dict[Key, float] = {}
    about: dict[str, tuple[str, str]] = {}
    for family in text_string_to_metric_families(render(samples, TEXT).decode()):
        name = family.name + "_total" * (family.type == "counter")
        about[name] = family.type, family.documentation
        values |= {(sample.name, frozenset(sample.labels.items())): sample.value for sample in family.samples}
    return values, about


def in_protobuf(samples: Any) -> tuple[dict[Key, float], dict[str, tuple[str, str]], dict[Key, Any]]:
    """Return the same of the protobuf format as Prometheus ingests it, and its native histograms."""
    values: dict[Key, float] = {}
    about: dict[str, tuple[str, str]] = {}
    native: dict[Key, Any] = {}
    for family in families(ProtobufExposition().render(samples)):
        assert family.name not in about
        about[family.name] = KINDS[family.type], family.help
        for metric in family.metric:
            labels = {pair.name: pair.value for pair in metric.label}
            found = list(_series(family, metric, labels))
            assert len(found) == len(dict(found))
            assert not dict(found).keys() & values.keys()
            if found:
                values |= dict(found)
            else:
                native[family.name, frozenset(labels.items())] = metric.histogram
    return values, about, native


def _series(family: Any, metric: Any, labels: dict[str, str]) -> Iterator[tuple[Key, float]]:
    def key(suffix: str = "", **more: str) -> Key:
        return family.name + suffix, frozenset((labels | more).items())

    if family.type == COUNTER:
        yield key(), metric.counter.value
    elif family.type == GAUGE:
        yield key(), metric.gauge.value
    elif metric.histogram.bucket:
        assert not metric.histogram.HasField("schema")
        for bucket in metric.histogram.bucket:
            edge = "+Inf" if math.isinf(bucket.upper_bound) else repr(bucket.upper_bound)
            yield key("_bucket", le=edge), bucket.cumulative_count
        yield key("_sum"), metric.histogram.sample_sum
        yield key("_count"), metric.histogram.sample_count


def test_every_series_of_the_text_is_there(node: Exporter) -> None:
    """Names, labels, values, types and help are the same; the native histogram alone is more."""
    odd = (Sample(catalog.TRAIN_LOSS, ("r", str(rank)), n) for rank, n in enumerate((math.nan, math.inf, -math.inf)))
    samples = [*node.samples(), *odd]
    text, said = in_text(samples)
    values, about, native = in_protobuf(samples)
    assert values.keys() == text.keys()
    assert [key for key in text if values[key] != text[key] and not math.isnan(text[key])] == []
    assert any(math.isnan(value) for value in text.values())
    assert about.pop(DISTRIBUTION)[0] == "histogram"
    assert about == said
    assert native.keys() == {(DISTRIBUTION, frozenset({("run", "llama-7b")}))}


def counts(histogram: Any) -> dict[int, int]:
    """Return the counts of a native histogram by bucket index."""
    found: dict[int, int] = {}
    index = count = 0
    deltas = iter(histogram.positive_delta)
    for span in histogram.positive_span:
        index += span.offset
        for _ in range(span.length):
            found[index] = count = count + next(deltas)
            index += 1
    assert next(deltas, None) is None
    assert sum(found.values()) == histogram.sample_count  # Prometheus refuses the page otherwise
    return found


def native_of(histogram: RunHistogram) -> Any:
    """Return what the exposition says of a run's native histogram."""
    _, _, native = in_protobuf([histogram.sample(STEPS, ("r",))])
    return native[DISTRIBUTION, frozenset({("run", "r")})]


INDICES = st.integers(*FINE_INDEX_RANGE)


@settings(deadline=None)
@given(st.dictionaries(INDICES, st.integers(1, MOST), max_size=40), st.floats(0, 1e300))
def test_native_buckets_are_exact(given_counts: dict[int, int], total: float) -> None:
    """Whatever counts a run has, at any place and with any gaps: each is read as it was written."""
    found = native_of(RunHistogram(given_counts, total))
    assert counts(found) == given_counts
    assert (found.schema, found.sample_sum) == (FINE_SCHEMA, total)


def test_without_observations_it_is_a_native_histogram() -> None:
    """An empty one is told from a classic one by its zero threshold, so that its first observations are an increase."""
    found = native_of(RunHistogram())
    assert (found.sample_count, found.zero_threshold > 0, len(found.bucket)) == (0, True, 0)


@pytest.mark.parametrize("labels", [("a" * 120, "7"), ("ü" * 190, "1234"), ('"\\\n', "0"), ("", "")])
def test_labels_of_any_length(labels: tuple[str, str]) -> None:
    """Lengths beyond 127 bytes take two; quotes, backslashes and line ends are text like any other."""
    (family,) = families(ProtobufExposition().render([Sample(catalog.RANK_UP, labels, math.inf)]))
    (metric,) = family.metric
    assert [(pair.name, pair.value) for pair in metric.label] == list(zip(("run", "rank"), labels, strict=True))
    assert metric.gauge.value == math.inf


def test_what_is_kept_between_pages() -> None:
    """A page is the same whether one was written before it or not; of two samples of a series the later one wins."""
    up, histogram = catalog.RANK_UP, RunHistogram({3: 4}, 2.5)
    first = [Sample(up, ("r", str(rank)), 1) for rank in range(100)]
    second = [Sample(up, ("r", "7"), 1), histogram.sample(STEPS, ("r",)), Sample(up, ("r", "7"), 0)]
    exposition = ProtobufExposition()
    for samples in (first, second, second, first, second):
        assert exposition.render(samples) == ProtobufExposition().render(samples)
    assert in_protobuf(second)[0]["tachograph_rank_up", frozenset({("run", "r"), ("rank", "7")})] == 0


def quantile(share: float, found: Any) -> tuple[float, float]:
    """Return the bounds of the bucket in which Prometheus interpolates a quantile."""
    before, wanted = 0, share * found.sample_count
    for index, count in sorted(counts(found).items()):
        before += count
        if before >= wanted:
            return 2 ** ((index - 1) / 2**FINE_SCHEMA), 2 ** (index / 2**FINE_SCHEMA)
    raise AssertionError("no observation")


@pytest.mark.parametrize("spread", [0.0, 0.003, 0.05, 0.5, 2.0])
@pytest.mark.parametrize("usual", [0.005, 0.31, 2.0, 300.0])
def test_quantiles_are_exact_to_a_fortieth(usual: float, spread: float) -> None:
    """Of steps of 5 ms to 300 s, however they scatter, and wherever in its bucket Prometheus puts p50 and p99."""
    chance = random.Random(usual + spread)
    run, ranks, seen = RunHistogram(), [], []
    for _ in range(8):
        steps = [min(max(usual * math.exp(chance.gauss(0, spread)), 0.004), 500.0) for _ in range(500)]
        found: dict[str, int] = {}
        for step in steps:
            key = str(bucket_index(step, FINE_SCHEMA))
            found[key] = found.get(key, 0) + 1
        ranks.append({"schema": 3, "sum": sum(steps), "buckets": {}, "fine": found})
        seen += steps
    for rank in ranks:
        run.add(parse(rank), Buckets())
    shown, seen = native_of(run), sorted(seen)
    for share in (0.5, 0.99):
        exact = seen[math.ceil(share * len(seen)) - 1]
        low, high = quantile(share, shown)
        assert max(exact / low, high / exact) - 1 < 0.025

"""The catalog: names, kinds, units and labels keep the field's rules and our own."""

from __future__ import annotations

import re
from collections import Counter

from tachograph.catalog import index as catalog
from tachograph.catalog.index import METRICS, gpu_metrics
from tachograph.catalog.metric import COUNTER, GAUGE, HISTOGRAM, INFO, NATIVE_HISTOGRAM, PREFIX, Metric
from tests.catalog.rows import every_row


def test_a_name_is_given_once() -> None:
    """No two rows have one name, nor names that collide once a suffix is added or taken away."""
    families = Counter(metric.name.removesuffix("_total").removesuffix("_info") for metric in METRICS)
    assert [name for name, count in families.items() if count > 1] == []
    for metric in METRICS:
        if metric.kind == HISTOGRAM:
            assert not {metric.name + suffix for suffix in ("_bucket", "_sum", "_count")} & set(catalog.BY_NAME)


def test_every_constant_is_a_row() -> None:
    """Each row is bound to a constant, so that code can name it."""
    bound = [value for value in vars(catalog).values() if isinstance(value, Metric)]
    assert Counter(metric.name for metric in bound) == Counter(metric.name for metric in METRICS)


@every_row
def test_name(metric: Metric) -> None:
    """Prefix, lower case, and the suffix its kind asks for, and only that kind."""
    assert re.fullmatch(rf"{PREFIX}[a-z][a-z0-9_]*[a-z0-9]", metric.name)
    assert metric.kind in (COUNTER, GAUGE, HISTOGRAM, NATIVE_HISTOGRAM, INFO)
    assert (metric.kind == COUNTER) == metric.name.endswith("_total")
    assert (metric.kind == INFO) == metric.name.endswith("_info")
    assert not metric.name.endswith(("_count", "_sum", "_bucket", "_created"))


@every_row
def test_unit(metric: Metric) -> None:
    """A base unit, which stands in the name just before `_total`; a name with a unit's word declares it."""
    stem = metric.name.removesuffix("_total")
    units = ("bytes_per_second", "seconds", "bytes", "ratio", "celsius", "watts", "joules", "hertz")
    assert metric.unit in ("", *units)
    assert next((unit for unit in units if stem.endswith(f"_{unit}")), "") == metric.unit


@every_row
def test_labels(metric: Metric) -> None:
    """Few, legal, never one that Prometheus or a scrape adds, never one that grows without bound.

    A process is named by the evidence of a standstill alone, which is of nine ranks and gone with it; a step by that of
    an end, of which there is one of each kind.
    """
    assert len(set(metric.labels)) == len(metric.labels) <= 9
    for label in metric.labels:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", label)
    forbidden = {"job", "instance", "host", "hostname", "pid", "step", "path", "le", "quantile", "message", "severity"}
    if metric.name.startswith(("tachograph_run_hang_", "tachograph_run_frozen_")):
        forbidden.remove("pid")
    if metric.name == "tachograph_run_last_words_age_seconds":
        forbidden.remove("step")
    assert not forbidden & set(metric.labels)


@every_row
def test_label_values_belong_to_the_last_label(metric: Metric) -> None:
    """Values that exist from the start are of a metric with a label of its own."""
    assert len(set(metric.values)) == len(metric.values)
    if metric.values:
        assert metric.labels


@every_row
def test_columns_agree(metric: Metric) -> None:
    """Hidden values are in the vocabulary; a loop logs plain numbers; only gauges end with their rank."""
    assert set(metric.values) <= set(metric.vocabulary)
    if metric.vocabulary and not isinstance(metric.detail, bool):
        assert set(metric.detail) < set(metric.vocabulary)
    if metric.loggable:
        assert (metric.own_label, metric.merged) == (None, False)
    if metric.lasts:
        assert metric.kind == GAUGE
        assert metric.key in catalog.TRAIN_METRICS


@every_row
def test_help(metric: Metric) -> None:
    """One paragraph for a tired person: a sentence, with its end."""
    assert metric.help[0].isupper() or metric.help[0].isdigit()
    assert metric.help.endswith(".")
    assert "\n" not in metric.help
    assert len(metric.help) <= 200


@every_row
def test_who_it_is_of(metric: Metric) -> None:
    """Series of ranks have run and rank, of a run and its supervisor the run, of GPUs index and uuid; others none."""
    first = metric.labels[:2]
    if metric.name.startswith("tachograph_train_") and metric.merged:
        assert metric.labels == ("run", metric.own_label) if metric.own_label else metric.labels == ("run",)
        assert metric.kind in (COUNTER, HISTOGRAM)  # what is added up over the ranks of a node must be a sum
    elif metric.name.startswith(("tachograph_rank_", "tachograph_train_")) or metric is catalog.CLIENT_DROPPED:
        assert first == catalog.RANK
    elif metric.name.startswith(("tachograph_run_", "tachograph_supervisor_")):
        assert metric.labels[0] == "run"
    elif metric.name.startswith("tachograph_gpu_"):
        assert first == catalog.GPU
        assert metric in tuple(gpu_metrics())
    else:
        assert not {"run", "rank", "gpu", "uuid"} & set(metric.labels)


def test_wire_keys() -> None:
    """A metric that a rank may send has a short key, and at most one label of its own."""
    for key, metric in (catalog.TRAIN_METRICS | catalog.TRAIN_HISTOGRAMS).items():
        assert metric.name == catalog.TRAIN_PREFIX + key
        assert metric.key == key
    for metric in catalog.TRAIN_METRICS.values():
        whose = 1 if metric.merged else 2
        assert len(metric.labels) <= whose + 1
        assert metric.own_label == (metric.labels[whose] if len(metric.labels) > whose else None)
    assert "config_info" not in catalog.TRAIN_METRICS


@every_row
def test_dcgm_twin(metric: Metric) -> None:
    """A DCGM name is a DCGM field, on a GPU's metric, with a scale that converts."""
    for twin in metric.dcgm:
        assert twin.scale > 0
        assert re.fullmatch(r"DCGM_FI_[A-Z0-9_]+", twin.field)
        assert metric.labels[:2] == catalog.GPU
        assert len(twin.labels) == len(metric.labels) - 2
        assert not twin.labels or metric is catalog.GPU_ECC_ERRORS or twin.labels[0] in metric.values


def test_a_dcgm_field_has_one_twin() -> None:
    """Two of ours for one of theirs could not both be right."""
    fields = [twin.field for metric in METRICS for twin in metric.dcgm]
    assert len(set(fields)) == len(fields) > 25


def test_vocabularies_are_words() -> None:
    """Label values with a fixed vocabulary are short lower-case words, each once."""
    for words in (catalog.PHASES, catalog.STEP_TAGS, catalog.LOST_CAUSES, catalog.STATES, catalog.OPERATIONS,
                  catalog.NONFINITE_SOURCES,
                  catalog.CLOCK_EVENT_REASONS, catalog.REJECT_REASONS, catalog.DROP_REASONS,
                  catalog.UNAVAILABLE_REASONS, catalog.RECOVERY_ACTIONS, catalog.XID_ACTIONS,
                  catalog.COLLECTOR_REASONS, catalog.WORKER_END_CAUSES):  # fmt: skip
        assert len(set(words)) == len(words)
        assert all(re.fullmatch(r"[a-z][a-z0-9_-]{1,39}", word) for word in words)

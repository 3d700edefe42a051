"""Series of a rank: how the `metrics` of a state are applied, and under which reasons they are dropped."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from tachograph.catalog.exporter import DROP_REASONS
from tachograph.catalog.rank import PHASES, USUAL_PHASES
from tachograph.catalog.train import TRAIN_METRICS
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.run_totals import CounterDelta
from tachograph.node.ranks.series import RankSeries


@pytest.fixture
def drops() -> Counter[str]:
    return Counter()


@pytest.fixture
def series(drops: Counter[str]) -> RankSeries:
    return RankSeries(Limits(), drops)


def shown(series: RankSeries, *, alive: bool = True) -> dict[tuple[str, ...], float]:
    return {(s.metric.key, *s.labels[2:]): s.value for s in series.samples(("r", "0"), alive=alive)}


def test_values_are_shown_as_given(series: RankSeries, drops: Counter[str]) -> None:
    """Plain numbers, numbers by label, zeros, NaN and infinities come out as they went in."""
    series.take({"loss": "NaN", "grad_norm": "+Inf", "learning_rate": 0, "tokens_total": 0,
                 "collective_enqueued": {"0": 301, "tp": 0}, "phase_seconds_total": {"data": 1.5}})  # fmt: skip
    values = shown(series)
    assert math.isnan(values["loss",])
    assert values["grad_norm",] == math.inf
    assert values["learning_rate",] == 0
    assert values["tokens_total",] == 0
    assert values["collective_enqueued", "0"] == 301
    assert values["collective_enqueued", "tp"] == 0
    assert values["phase_seconds_total", "data"] == 1.5
    assert not drops


def test_known_label_values_of_counters_start_at_zero(series: RankSeries) -> None:
    """A counter that is born at 1 has no increase, so phases and sources exist from the first state on."""
    series.take({})
    values = shown(series)
    assert {labels[0] for _, *labels in values if labels and labels[0] in PHASES} == set(USUAL_PHASES)
    assert values["nonfinite_total", "loss"] == 0


def test_gauges_are_replaced_and_counters_stay(series: RankSeries) -> None:
    """A gauge left out of a state is absent; a counter left out keeps its value, for it never goes backwards."""
    series.take({"loss": 2.0, "tokens_total": 10, "collective_enqueued": {"0": 1, "1": 1}})
    series.take({"collective_enqueued": {"0": 2}})
    values = shown(series)
    assert ("loss",) not in values
    assert ("collective_enqueued", "1") not in values
    assert values["tokens_total",] == 10


@pytest.mark.parametrize(
    ("metrics", "reason", "count"),
    [
        ({"nope": 1}, "unknown_metric", 1),
        ({"nope": {"a": 1, "b": 2}}, "unknown_metric", 2),
        ({"step_seconds": 1}, "unknown_metric", 1),
        ({"loss": "2.3"}, "wrong_type", 1),
        ({"loss": None}, "wrong_type", 1),
        ({"loss": True}, "wrong_type", 1),
        ({"loss": [1]}, "wrong_type", 1),
        ({"loss": {"a": 1}}, "wrong_type", 1),
        ({"loss": 10**400}, "wrong_type", 1),
        ({"phase_seconds_total": 1}, "wrong_type", 1),
        ({"tokens_total": "NaN"}, "wrong_type", 1),
        ({"tokens_total": "+Inf"}, "wrong_type", 1),
        ({"tokens_total": -1}, "counter_decrease", 1),
        ({"phase_seconds_total": {"lunch": 1}}, "unknown_phase", 1),
        ({"collectives_total": {"all_gossip": 1}}, "bad_label", 1),
        ({"nonfinite_step": {"weights": 1}}, "bad_label", 1),
        ({"tagged_steps_total": {"lunch": 1}}, "bad_label", 1),
        ({"lost_seconds_total": {"lunch": 1, "": 2}}, "bad_label", 2),
        ({"lost_seconds_total": {"data": 10**400}}, "wrong_type", 1),
        ({"lost_seconds_total": 3}, "wrong_type", 1),
        ({"productive_seconds_total": "NaN"}, "wrong_type", 1),
        ({"productive_seconds_total": {"data": 1}}, "wrong_type", 1),
        ({"productive_seconds_total": -1}, "counter_decrease", 1),
        ({"phase_excess_seconds_total": {"lunch": 1}}, "unknown_phase", 1),
        ({"phase_device_seconds_total": {"lunch": 1}}, "unknown_phase", 1),
        ({"restarts_total": 3}, "unknown_metric", 1),
        ({"invariant": {"x" * 65: 1}}, "bad_label", 1),
        ({"collective_enqueued": {"": 1}}, "bad_label", 1),
        ({"collective_enqueued": {"x" * 65: 1}}, "bad_label", 1),
    ],
)
def test_what_does_not_fit_is_dropped_alone(
    series: RankSeries, drops: Counter[str], metrics: dict[str, object], reason: str, count: int
) -> None:
    """A series that cannot be taken is counted under its reason; the others of the same frame are exact."""
    series.take({**metrics, "samples_total": 7})
    assert drops == {reason: count}
    assert reason in DROP_REASONS
    assert shown(series)["samples_total",] == 7
    assert len(shown(series)) == len(USUAL_PHASES) + 2 + 1


def test_a_counter_never_falls(series: RankSeries, drops: Counter[str]) -> None:
    """A lower value of the same process is refused and counted; the higher one stands until it is passed."""
    for value, expected in ((10, 10), (9, 10), (10, 10), (11, 11)):
        series.take({"tokens_total": value})
        assert shown(series)["tokens_total",] == expected
    assert drops == {"counter_decrease": 1}


def test_label_values_are_capped_and_known_ones_live_on(series: RankSeries, drops: Counter[str]) -> None:
    """Of 10,000 groups the first 32 are taken; those still follow their rank while the excess is counted."""
    series.take({"collective_enqueued": {str(i): i for i in range(10_000)}})
    assert drops == {"label_limit": 10_000 - 32}
    series.take({"collective_enqueued": {str(i): 2 * i for i in range(10_000)}, "loss": 1.0})
    values = shown(series)
    assert values["collective_enqueued", "31"] == 62
    assert ("collective_enqueued", "32") not in values
    assert values["loss",] == 1.0


def test_series_of_a_rank_are_capped(drops: Counter[str]) -> None:
    """Beyond the cap new series are dropped and counted; known counters continue, and gauges do not displace them."""
    series = RankSeries(Limits(series_per_rank=15), drops)  # 12 exist from the start
    series.take({"tokens_total": 1, "loss": 1, "grad_norm": 1, "learning_rate": 1, "samples_total": 1})
    assert drops == {"series_limit": 2}
    series.take({"loss": 1, "grad_norm": 1, "learning_rate": 1, "tokens_total": 2})
    assert shown(series)["tokens_total",] == 2
    assert len(shown(series)) == 15


@pytest.mark.parametrize(
    "key",
    [
        "layer_grad_norm",
        "layer_grad_ratio",
        "layer_activation_rms",
        "layer_memory_peak_bytes",
        "invariant",
        "invariant_step",
    ],
)
def test_a_thousand_layers_cost_the_layers(series: RankSeries, drops: Counter[str], key: str) -> None:
    """The first of a frame are taken: 128 layers, and of other labels that a rank words itself 32."""
    series.take({key: {f"layers.{i}": i for i in range(1000)}, "loss": 1.0})
    values, most = shown(series), 128 if key.startswith("layer") else 32
    assert sum(1 for family, *_ in values if family == key) == most
    assert values["loss",] == 1.0
    assert drops == {"label_limit": 1000 - most}


def test_what_a_process_adds_to_its_run(series: RankSeries, drops: Counter[str]) -> None:
    """Merged families are no series of the rank; a frame gives what they grew by, a repeated one nothing.

    A zero is reported once, to create the series. A value that fell, or is not a number, is dropped alone.
    """
    first = {"productive_seconds_total": 10.0, "lost_seconds_total": {"data": 2, "init": 0}}
    assert series.take(first) == [
        CounterDelta("productive_seconds_total", "", 10.0), CounterDelta("lost_seconds_total", "data", 2.0),
        CounterDelta("lost_seconds_total", "init", 0.0),
    ]  # fmt: skip
    assert series.take(first) == []
    assert series.take({}) == []
    assert series.take({"lost_seconds_total": {"data": 5, "init": "NaN"}}) == [
        CounterDelta("lost_seconds_total", "data", 3.0)
    ]
    assert series.take({"lost_seconds_total": {"data": 4}, "productive_seconds_total": 11.0}) == [
        CounterDelta("productive_seconds_total", "", 1.0)
    ]
    assert drops == {"wrong_type": 1, "counter_decrease": 1}
    assert not {key for key, *_ in shown(series)} & {"productive_seconds_total", "lost_seconds_total"}


def test_after_the_end_counters_and_the_step_stay(series: RankSeries) -> None:
    """Of a rank that has ended, what describes a moment is gone, and what it counted stays."""
    series.take({"loss": 1.0, "step": 5, "tokens_total": 3, "memory_allocated_bytes": 9})
    after = shown(series, alive=False)
    assert after["step",] == 5
    assert after["tokens_total",] == 3
    assert ("loss",) not in after
    assert ("memory_allocated_bytes",) not in after


def test_a_failure_is_counted_by_its_category(series: RankSeries) -> None:
    """The count stays after the end; there is no series before."""
    assert not any(key == "failures_total" for key, *_ in shown(series))
    series.fail("network")
    assert shown(series, alive=False)["failures_total", "network"] == 1


def test_every_training_metric_of_the_catalog_is_taken(series: RankSeries, drops: Counter[str]) -> None:
    """A new row in the catalog needs no change here."""
    words = {
        "phase": "data", "op": "all_reduce", "source": "loss", "category": "network", "tag": "gc", "cause": "hang",
        "kind": "no_steps",
    }  # fmt: skip
    rows = {key: row for key, row in TRAIN_METRICS.items() if not row.concluded}
    deltas = series.take(
        {key: 1 if row.own_label is None else {words.get(row.own_label, "x"): 1} for key, row in rows.items()}
        | {"threshold": {"hang_seconds": 60}}
    )
    assert not drops
    assert {key for key, *_ in shown(series)} == {key for key, row in rows.items() if not row.merged}
    assert {delta.key for delta in deltas} == {key for key, row in rows.items() if row.merged}

"""The suite of loss traces, the peers' rules on it, and its committed tables."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import pytest

SEEDS = range(10)  # each kind of noise once


@pytest.fixture(scope="module")
def slow_divergence() -> ModuleType:
    return importlib.import_module("slow_divergence")


def flagged(detector: Callable[[int, float], bool], values: Iterable[float]) -> list[int]:
    return [step for step, value in enumerate(values) if detector(step, value)]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_truth_of_a_trace_is_in_its_values(loss_traces: ModuleType, seed: int) -> None:
    """A seed always gives the same trace; NaN stands in events of its kind alone; a spike stands out of the noise."""
    size = loss_traces.NOISES[seed][1]
    least = max(loss_traces.LEAST_RISE, loss_traces.LEAST_DEVIATIONS * size)
    for make in loss_traces.SUITE:
        trace = make(seed)
        assert list(map(repr, make(seed).values)) == list(map(repr, trace.values))
        assert len(trace.values) == len(trace.steps)
        inside = {i for event in trace.events for i in event}
        assert inside <= set(range(len(trace.values)))
        wrong = {i for i, value in enumerate(trace.values) if not math.isfinite(value)}
        assert wrong == (inside if trace.kind.startswith("NaN") else set())
        if trace.kind.startswith("spike of 1–3"):
            before = sorted(trace.values[trace.events[0].start - 50 : trace.events[0].start])[25]
            peak = max(trace.values[i] for i in inside)
            assert peak > before * (1 + least) * math.exp(-3 * size)


def test_kill_loss_spike_needs_five_in_a_row(detectors: ModuleType) -> None:
    """Twice the mean or more, five times running, after a full window; four and a pause are no spike."""
    calm = [1.0] * 100
    assert flagged(detectors.KillLossSpike(), [*calm, *[9.0] * 6]) == [104, 105]
    assert flagged(detectors.KillLossSpike(), [*calm, *[9.0] * 4, 1.0, *[9.0] * 4]) == []
    assert flagged(detectors.KillLossSpike(patience=0), [*calm, 2.0, 1.9]) == [100]
    assert flagged(detectors.KillLossSpike(patience=0), [*calm[1:], 9.0]) == []


def test_kill_loss_spike_sees_a_loss_that_stays_high(detectors: ModuleType) -> None:
    """Half of the window above the highest of the first hundred, from step 200 on."""
    assert flagged(detectors.KillLossSpike(), [*[1.0] * 300, *[1.5] * 60]) == list(range(350, 360))


def test_skip_step_takes_every_finite_value_into_its_mean(detectors: ModuleType) -> None:
    """Six deviations above, from the 64th value on; falls pass; a second outlier hides behind the first."""
    calm = [1.0, 1.2] * 50  # deviation 0.1
    assert flagged(detectors.SkipStep(), [*calm, 1.75, 1.1]) == [100]
    assert flagged(detectors.SkipStep(), [*calm, 1.65, 0.0]) == []
    assert flagged(detectors.SkipStep(), [*calm[:62], 9.0]) == []
    assert flagged(detectors.SkipStep(), [*calm[:63], 9.0]) == [63]
    assert flagged(detectors.SkipStep(), [*calm, math.nan, 1.75, 1.75]) == [100, 101]


def test_skip_step_forgets_after_128(detectors: ModuleType) -> None:
    """The mean is of the last 128 values alone."""
    assert flagged(detectors.SkipStep(), [*[1.0, 1.2] * 20, *[5.0, 5.2] * 64, 5.8]) == [168]


def test_rerun_machine_compares_with_the_first_hundred(detectors: ModuleType) -> None:
    """Ten times the highest of the first hundred and not less; what is not finite always."""
    assert flagged(detectors.RerunMachine(), [500.0, *[1.0] * 99, 4999.0, 5000.0, math.inf]) == [101, 102]
    assert flagged(detectors.RerunMachine(), [*[1.0] * 99, 50.0, 400.0, math.nan]) == [101]


def test_alarms_are_scored_as_documented(detectors: ModuleType, loss_traces: ModuleType) -> None:
    """Touching an event is right, once; touching a neutral span is nothing; the rest is false."""
    wanted = {1, 2, 11, 14, 20, 21, 30}
    rule = detectors.Rule(lambda: lambda step, value: step in wanted)
    trace = loss_traces.Trace("made", [0.0] * 40, list(range(40)), [range(10, 20), range(35, 38)], [range(20, 25)])
    score = detectors.Score()
    score.add(trace, rule)
    assert (score.events, score.delays, score.false_alarms) == (2, [1], 2)
    assert (score.recall, score.precision, score.coverage) == (0.5, 1 / 3, [0.2, 0.0])


@pytest.mark.parametrize(("is_saved", "found"), [(False, 0), (True, 1)])
def test_a_restart_forgets_what_is_not_saved(
    detectors: ModuleType, loss_traces: ModuleType, is_saved: bool, found: int
) -> None:
    """After a restart a rule starts anew, unless its program saves it."""
    values = [*[1.0] * 100, 1.0, 50.0]
    trace = loss_traces.Trace("made", values, list(range(102)), [range(101, 102)], restarts=frozenset([100]))
    score = detectors.Score()
    score.add(trace, detectors.Rule(detectors.RerunMachine, is_saved))
    assert len(score.delays) == found


@pytest.mark.slow
def test_ours_finds_more_than_each_peer(detectors: ModuleType, loss_traces: ModuleType) -> None:
    """On tuning seeds: the highest recall and F1, more precise than OLMo's, and long spikes stay seen."""
    scores = detectors.judge((make(seed) for make in loss_traces.SUITE for seed in SEEDS), detectors.RULES)
    rows = {name: detectors.summary(kinds, next(iter(kinds.values()))) for name, kinds in scores.items()}
    client, ours = rows.pop("its client alone"), rows.pop("Tachograph")
    for row in rows.values():
        assert float(ours["recall"]) > float(row["recall"]) + 0.2
        assert float(client["recall"]) > float(row["recall"]) + 0.1
        assert float(ours["F1"]) > float(row["F1"]) + 0.2
    assert float(ours["precision"]) >= max(0.94, float(rows["OLMo-core, 6 σ of 128"]["precision"]))
    assert ours["share of a long one flagged"] > 0.9


def test_ours_is_ahead_on_gradient_norms(detectors: ModuleType, loss_traces: ModuleType) -> None:
    """On tuning seeds: the highest F1, and nearly all jumps found, short and long."""
    jumps = [loss_traces.gradient_norms(seed, length=length) for seed in range(30) for length in (2, 100)]
    scores = detectors.judge(jumps, detectors.GRADIENT_RULES)
    rows = {name: detectors.summary(kinds, next(iter(kinds.values()))) for name, kinds in scores.items()}
    ours = rows.pop("Tachograph")
    assert all(float(ours["F1"]) > float(row["F1"]) for row in rows.values())
    assert float(ours["recall"]) >= 0.97


def test_a_resume_and_a_rise_of_the_rate_have_grace(detectors: ModuleType, loss_traces: ModuleType) -> None:
    """As in a real run: the client knows of both, the peers cannot."""
    step_up = [2.0 + 0.01 * (i % 3) + (1.0 if i >= 100 else 0.0) for i in range(200)]
    trace = loss_traces.Trace("made", step_up, list(range(200)), rates=[1e-4 if i < 100 else 1e-3 for i in range(200)])
    score = detectors.Score()
    score.add(trace, detectors.RULES["Tachograph"])
    assert score.false_alarms == 0
    score.add(loss_traces.Trace("made", step_up, list(range(200))), detectors.RULES["Tachograph"])
    assert score.false_alarms == 1
    soon = [2.0 + 0.01 * (i % 3) + (2.0 if i == 118 else 0.0) for i in range(200)]
    score = detectors.Score()
    score.add(
        loss_traces.Trace("made", soon, list(range(200)), restarts=frozenset([100])), detectors.RULES["Tachograph"]
    )
    assert score.false_alarms == 0


def climbing(percent: float, seconds: int = 3600, turn: int = 1800) -> list[float]:
    """A loss at 2 that climbs by so many percent a minute from `turn` on, at a step a second."""
    return [2 * (1 + percent / 100) ** (max(0, second - turn) / 60) for second in range(seconds)]


def slow(values: Sequence[float], rule: Any, **arguments: Any) -> list[int]:
    return [i for i, value in enumerate(values) if rule.observe(i, value, **arguments)]


def test_the_slope_rule_sees_a_slow_climb_within_twenty_minutes(slow_divergence: ModuleType) -> None:
    """0.2 % a minute is found, 0.05 % is not, and a fall is good news."""
    rule = slow_divergence.SlowDivergence
    assert 1800 < slow(climbing(0.2), rule())[0] <= 1800 + 1200
    assert slow(climbing(0.05), rule()) == []
    assert slow(climbing(-0.2), rule()) == []


def test_the_slope_rule_takes_no_step_for_a_climb(slow_divergence: ModuleType) -> None:
    """A lasting step up, however large, is none."""
    for height in (1.05, 1.2, 2.0):
        values = [2.0 * (height if second >= 1800 else 1) for second in range(5400)]
        assert slow(values, slow_divergence.SlowDivergence()) == []


def test_the_slope_rule_is_excused_for_twenty_minutes(slow_divergence: ModuleType) -> None:
    """By a spike, a step back and a new learning rate; NaN is no sample."""
    values = climbing(0.2, 4800)
    spiked, back, rated = (slow_divergence.SlowDivergence() for _ in range(3))
    rated.learning_rate(1e-4)
    fired: dict[str, list[int]] = {"spiked": [], "back": [], "rated": []}
    for i, value in enumerate(values):
        if i == 2400:
            rated.learning_rate(2e-4)
        if spiked.observe(i, value, spike=i == 2400):
            fired["spiked"].append(i)
        if back.observe(i if i < 2400 else i - 500, value):
            fired["back"].append(i)
        if rated.observe(i, value):
            fired["rated"].append(i)
    for name, steps in fired.items():
        assert steps[0] >= 2400 + slow_divergence.WINDOW_SECONDS, name
    holed = [math.nan if i % 2 else value for i, value in enumerate(climbing(0.2))]
    assert slow(holed, slow_divergence.SlowDivergence())[0] <= 1800 + 1200


def test_heavy_tails_raise_no_alarm(detectors: ModuleType, loss_traces: ModuleType) -> None:
    """20,000 healthy steps with 3 % noise from Student's t: a fixed limit of six deviations has some ten alarms."""
    trace = loss_traces.healthy(6)
    assert loss_traces.NOISES[6] == ("heavy", 0.03)
    assert flagged(detectors.Tachograph(), trace.values[:20_000]) == []


@pytest.mark.slow
def test_the_committed_table_is_what_the_code_gives(detectors: ModuleType, loss_traces: ModuleType) -> None:
    """A change of a detector or of the suite comes with `python bench/detectors.py --doc`."""
    makes = (loss_traces.early_spike, loss_traces.plateau)
    scores = detectors.judge((make(seed) for make in makes for seed in detectors.REPORTED), detectors.RULES)
    committed = detectors.DOCUMENT.read_text().splitlines()
    for line in detectors.markdown(detectors.rows_by_kind(scores)).splitlines():
        assert line in committed

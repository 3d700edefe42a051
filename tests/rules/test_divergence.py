"""LossDiverging on the traces of the bench: in Prometheus as in bench/slow_divergence.py, which says how good it is."""

from __future__ import annotations

import importlib
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tachograph.files.shipped import read_yaml

ROOT = Path(__file__).resolve().parents[2]
RuleTests = Callable[..., None]
SCRAPE = 5
SLACK = 150
"""Seconds around a change of state that are left open: the two do not look at the same moments."""


@pytest.fixture(scope="module")
def bench() -> Iterator[tuple[ModuleType, ModuleType]]:
    """The traces and the rule written again, from the bench's folder."""
    sys.path.insert(0, str(ROOT / "bench"))
    yield importlib.import_module("loss_traces"), importlib.import_module("slow_divergence")
    sys.path.remove(str(ROOT / "bench"))


def alert() -> dict[str, str]:
    """Return LossDiverging as it stands in the rules."""
    groups = read_yaml(ROOT / "prometheus/rules/loss_trend.yml")["groups"]
    return next(rule for group in groups for rule in group["rules"] if rule.get("alert") == "LossDiverging")


def fired(rule: Any, losses: Sequence[float]) -> list[bool]:
    """Return for each second whether the bench's rule fires."""
    return [rule.observe(step, loss) for step, loss in enumerate(losses)]


def scenario(run: str, losses: Sequence[float]) -> dict[str, str]:
    """Return the loss as Prometheus scrapes it; its first sample is the one after SCRAPE steps."""
    samples = [losses[0], *losses[SCRAPE - 1 :: SCRAPE]]
    return {
        "series": f'tachograph_run_loss{{run="{run}",instance="n"}}',
        "values": " ".join(f"{loss:.9g}" for loss in samples),
    }


def moments(states: Sequence[bool]) -> Iterator[tuple[int, bool]]:
    """Yield every second minute at which the state has stood, and will stand, for a while."""
    for second in range(1260, len(states) - SLACK, 120):
        around = states[second - SLACK : second + SLACK]
        if all(around) or not any(around):
            yield second + 2, states[second]


def test_the_bench_has_the_numbers_of_the_rule(bench: tuple[ModuleType, ModuleType]) -> None:
    """What the traces cannot tell apart within SLACK is compared as written: how long it lasts, how much it is.

    The bench looks every LOOK, the rule counts minutes. Two hours, where steps are slow, have six times as
    many; the bench has no such steps.
    """
    rule, (_, rules) = alert(), bench
    assert rule["for"] == f"{rules.PERSISTS / 60:g}m"
    numbers = [float(number) for number in re.findall(r">= (-?[\d.]+)(?: \*|\n)", rule["expr"])]
    least = rules.LEAST_LOOKS * rules.LOOK / 60
    correlation = round(rules.LEAST_CORRELATION * math.sqrt(12), 2)
    assert numbers == [
        number
        for minutes in (least, 6 * least)
        for number in (100 * rules.LEAST_CLIMB, correlation, minutes, rules.LEAST_THIRD, rules.LEAST_THIRD)
    ]


@pytest.mark.slow
def test_prometheus_fires_when_the_bench_says(
    rule_tests: RuleTests, tmp_path: Path, bench: tuple[ModuleType, ModuleType]
) -> None:
    """Divergence in each kind of noise, healthy losses, a plateau and a lasting step up: alike every two minutes."""
    traces, rules = bench
    losses = {f"diverges-{seed}": traces.slow_divergence(seed).values for seed in range(10)}
    losses |= {f"healthy-{seed}": traces.healthy(seed).values[:2400] for seed in (1, 2, 7, 8, 9)}
    losses |= {"plateau": traces.plateau(3).values, "up": traces.shift_up(1).values}
    expected: dict[int, list[str]] = {}
    open_runs: dict[int, set[str]] = {}
    for run, values in losses.items():
        for moment, fires in moments(fired(rules.SlowDivergence(), values)):
            open_runs.setdefault(moment, set()).add(run)
            if fires:
                expected.setdefault(moment, []).append(run)
    assert any(run.startswith("diverges") for runs in expected.values() for run in runs)
    cases = [
        {
            "expr": f'ALERTS{{alertname="LossDiverging",alertstate="firing",run=~"{"|".join(sorted(runs))}"}}',
            "eval_time": f"{moment}s",
            "exp_samples": [
                {
                    "labels": f'ALERTS{{alertname="LossDiverging",alertstate="firing",run="{run}",severity="warning",'
                    'component="tachograph",tier="standard"}',
                    "value": 1,
                }
                for run in expected.get(moment, ())
            ],
        }
        for moment, runs in sorted(open_runs.items())
    ]
    # keep_firing_for would hide when the condition ends; what is compared is the condition.
    text = "\n".join(
        line for line in (ROOT / "prometheus/rules/loss_trend.yml").read_text(encoding="utf-8").splitlines()
        if "keep_firing_for" not in line
    )  # fmt: skip
    (tmp_path / "loss_trend.yml").write_text(text, encoding="utf-8")
    given = [scenario(*one) for one in losses.items()]
    rule_tests(
        [ROOT / "prometheus/rules/learning.yml", tmp_path / "loss_trend.yml"],
        {"interval": "5s", "input_series": given, "promql_expr_test": cases},
    )

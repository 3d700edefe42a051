"""MfuDropped, ThroughputDropped and DataStall, however rarely a run is scraped and however long its steps are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

RULES = Path(__file__).resolve().parents[2] / "prometheus/rules"
SUBJECTS = ("runs", "progress", "efficiency", "host", "data")
HEALTHY = 1800.0
"""Seconds until something happens."""

RuleTests = Callable[..., None]


@dataclass(frozen=True)
class Pace:
    """A run of one rank: its usual step, and that after half an hour with its wait for data; the work that it counts.

    `once` if only one step is like that; `grows` if it has as much more work as it takes longer.
    """

    name: str
    step: float
    after: float
    data: float = 0.0
    once: bool = False
    grows: bool = False
    counts: str = "flops"


def paces(step: float) -> list[Pace]:
    """Return the runs of one usual step: those that something is said of, and those that are well."""
    stall = min(25, step / 2) if step > 20 else 25
    return [
        Pace(f"mfu-{step:g}", step, 1.6 * step),
        Pace(f"tokens-{step:g}", step, 1.6 * step, counts="tokens"),
        Pace(f"data-{step:g}", step, 1.6 * step, data=0.6 * step),
        Pace(f"well-{step:g}", step, 1.1 * step),
        Pace(f"grows-{step:g}", step, 2 * step, grows=True),
        Pace(f"grows-tokens-{step:g}", step, 2 * step, grows=True, counts="tokens"),
        Pace(f"stall-{step:g}", step, step + 50, once=True),
        Pace(f"stall-tokens-{step:g}", step, step + 50, once=True, counts="tokens"),
        Pace(f"stall-data-{step:g}", step, step + stall, data=stall, once=True),
    ]


def series(pace: Pace, interval: int, until: float) -> Iterator[dict[str, str]]:
    """Yield what each scrape shows of a run, as its client counts: whole steps, and the last 20 s of them."""
    ends, waits = [0.0], [0.0]
    while ends[-1] < until:
        slow = ends[-1] >= HEALTHY and (not pace.once or ends[-1] - HEALTHY < pace.step)
        ends.append(ends[-1] + (pace.after if slow else pace.step))
        waits.append(pace.data if slow else 0.01 * pace.step)
    lengths = [after - before for before, after in pairwise(ends)]
    worked = ends if pace.grows else [pace.step * steps for steps in range(len(ends))]
    shown: dict[str, list[str]] = {}
    for now in range(0, int(until), interval):
        steps = bisect_right(ends, now) - 1
        first = min(bisect_right(ends, ends[steps] - 20), max(0, steps - 3))
        usual = median(lengths[first:steps]) if steps >= 3 else None
        fresh = usual is not None and now <= ends[steps] + max(20, 3 * usual) + 2 * usual
        values = {
            "rank_up": 1,
            "rank_peak_flops": 1000 if pace.counts == "flops" else None,
            f"train_{pace.counts}_total": 400 * worked[steps],
            "train_steps_total": steps,
            "rank_progress_timestamp_seconds": ends[steps],
            "train_recent_step_seconds": usual if fresh else None,
            'train_recent_phase_seconds{phase="data",': mean(waits[first + 1 : steps + 1]) if fresh else None,
        }
        for name, value in values.items():
            shown.setdefault(name, []).append("stale" if value is None else f"{value:.4f}")
    for name, samples in shown.items():
        begin = name if name.endswith(",") else name + "{"
        given = f'tachograph_{begin}run="{pace.name}",rank="0",instance="n"}}'
        yield {"series": given, "values": " ".join(samples)}


@pytest.mark.slow  # efficiency/behaviour.yml and data/behaviour.yml have one interval and one step
@pytest.mark.parametrize("interval", [5, 15, 30, 60])
def test_lost_speed_is_found_at_any_interval_and_any_step(rule_tests: RuleTests, interval: int) -> None:
    """Within two minutes, three scrapes and three steps; a tenth, one stall, and twice the work a step are nothing."""
    given: list[dict[str, str]] = []
    checks: list[dict[str, Any]] = []
    for step in (0.3, 7.0, 40.0, 200.0):
        limit = HEALTHY + 120 + 3 * interval + 3 * 1.6 * step
        for pace in paces(step):
            given += series(pace, interval, HEALTHY + 1500)
        checks.append({
            "expr": f'count by (alertname, run) (ALERTS{{run=~".+-{step:g}"}})',
            "eval_time": f"{limit + 2:.0f}s",
            "exp_samples": [
                {"labels": f'{{alertname="{alert}",run="{run}-{step:g}"}}', "value": 1}
                for alert, run in (("MfuDropped", "mfu"), ("ThroughputDropped", "tokens"), ("DataStall", "data"))
            ],
        })  # fmt: skip
    checks.append({
        "expr": 'count by (alertname, run) (count_over_time(ALERTS{run=~"(well|stall|grows).+"}[1h]))',
        "eval_time": f"{HEALTHY + 1490:.0f}s",
    })  # fmt: skip
    checks.append({"expr": "count(count_over_time(ALERTS[1h]))", "eval_time": f"{HEALTHY:.0f}s"})
    test = {"interval": f"{interval}s", "input_series": given, "promql_expr_test": checks}
    rule_tests([RULES / f"{subject}.yml" for subject in SUBJECTS], test, interval="7s")

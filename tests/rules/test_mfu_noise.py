"""MfuDeclining on noise: a day and a half of samples that scatter by 3 %, which no test file could hold by hand."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

RULES = Path(__file__).resolve().parents[2] / "prometheus/rules"
MINUTES = 32 * 60
LEVEL = 0.4

RuleTests = Callable[..., None]


def samples(seed: int, lost_per_day: float, begins: int = 0) -> str:
    """Return one MFU a minute with a standard deviation of 3 %, of which a share is lost per day from a minute on."""
    noise = random.Random(seed)
    return " ".join(
        f"{LEVEL * (1 - lost_per_day * max(0, minute - begins) / 1440) * noise.gauss(1, 0.03):.5f}"
        for minute in range(MINUTES)
    )


@pytest.mark.slow
def test_noise_is_no_decline_and_a_decline_shows_through_noise(rule_tests: RuleTests) -> None:
    """Eight healthy runs of 32 hours keep quiet; losses of 7 % a day and of 7 % in 6 hours are found, 3 % is not."""
    runs = {f"healthy-{seed}": samples(seed, 0) for seed in range(8)}
    runs |= {"little": samples(8, 0.03), "slow": samples(9, 0.07), "fast": samples(10, 0.28, MINUTES - 480)}
    given = []
    for run, values in runs.items():
        info = f'tachograph_rank_info{{run="{run}",rank="0",attempt="0",world_size="1",instance="n"}}'
        given.append({"series": info, "values": f"1x{MINUTES}"})
        given.append({"series": f'run:step_mfu:ratio{{run="{run}"}}', "values": values})
    expected = {
        "expr": f'count by (run) (count_over_time(ALERTS{{alertstate="firing"}}[{MINUTES}m]))',
        "eval_time": f"{MINUTES - 2}m30s",
        "exp_samples": [{"labels": f'{{run="{run}"}}', "value": 1} for run in ("fast", "slow")],
    }
    rules = [RULES / "efficiency.yml", RULES / "efficiency_trend.yml"]
    rule_tests(rules, {"interval": "1m", "input_series": given, "promql_expr_test": [expected]}, interval="2m")

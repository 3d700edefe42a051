"""GpuIdleInRun where rules are looked at once a minute: the excuse that it reads was recorded an evaluation before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

RULES = Path(__file__).resolve().parents[2] / "prometheus/rules"
RuleTests = Callable[..., None]


def idle_after_five_minutes(run: str) -> Iterator[dict[str, str]]:
    """Yield the series of a rank, every 5 s, whose GPU works for five minutes and then no more."""
    who = f'run="{run}",rank="0",instance="n-{run}"'
    card = f'gpu="0",uuid="GPU-{run}",instance="n-{run}"'
    yield {"series": f'tachograph_rank_info{{{who},gpu="0",uuid="GPU-{run}"}}', "values": "1x140"}
    yield {"series": f"tachograph_rank_up{{{who}}}", "values": "1x140"}
    yield {"series": f'tachograph_rank_state{{{who},state="running"}}', "values": "1x140"}
    yield {"series": f"tachograph_train_recent_step_seconds{{{who}}}", "values": "1x140"}
    yield {"series": f"tachograph_gpu_sm_cycles_total{{{card}}}", "values": "0+9e9x140"}
    yield {"series": f"tachograph_gpu_sm_active_cycles_total{{{card}}}", "values": "0+8e9x60 480e9x79"}


def test_a_save_is_excused_where_rules_are_looked_at_once_a_minute(rule_tests: RuleTests) -> None:
    """Idle for six minutes: a ticket for the run that only waits, none for the one that saves."""
    saves = {
        "series": 'tachograph_rank_phase_seconds{run="saves",rank="0",phase="checkpoint",instance="n-saves"}',
        "values": "_x60 3+5x79",
    }
    fired = 'group by (run) (count_over_time(ALERTS{alertname="GpuIdleInRun",alertstate="firing"}[11m]))'
    rule_tests(
        # As the replay evaluates them: in the order of their names.
        [RULES / f"{name}.yml" for name in ("gpu", "gpu_faults", "gpu_load", "progress")],
        {
            "interval": "5s",
            "input_series": [*idle_after_five_minutes("saves"), *idle_after_five_minutes("waits"), saves],
            "promql_expr_test": [
                {"expr": fired, "eval_time": "11m", "exp_samples": [{"labels": '{run="waits"}', "value": 1}]}
            ],
        },
        interval="60s",
    )

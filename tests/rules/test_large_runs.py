"""Runs too large to write out by hand: one culprit among 1,024 ranks, a whole node, a crowd."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tachograph_lab.replay.promtool_limit import with_raised_limit

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
GPUS_PER_NODE = 8
HANGS_AFTER = 12  # samples, 5 s apart
SAMPLES = 24

EVERY_RULE = sorted((ROOT / "prometheus/rules").glob("*.yml"))

Series = dict[str, str]
RuleTests = Callable[..., None]


def series(name: str, rank: int, values: str, **labels: str) -> Series:
    own = {"run": "llama-70b", "rank": str(rank), **labels, "instance": f"node-{rank // GPUS_PER_NODE}"}
    return {"series": name + "{" + ",".join(f'{key}="{value}"' for key, value in own.items()) + "}", "values": values}


def hang(ranks: int, culprits: Collection[int]) -> Iterator[Series]:
    """Yield a run of one step a second in which, from 60 s on, the culprits sit in their loaders and the rest wait."""
    steady, late = f"1x{SAMPLES}", f"_x{HANGS_AFTER} 0.2+5x{SAMPLES - HANGS_AFTER}"
    stops = f"0+5x{HANGS_AFTER} {5 * HANGS_AFTER}x{SAMPLES - HANGS_AFTER}"
    for rank in range(ranks):
        gpu = str(rank % GPUS_PER_NODE)
        behind = int(rank in culprits)
        yield series("tachograph_rank_info", rank, steady, gpu=gpu, uuid=f"GPU-{rank}")
        yield series("tachograph_rank_up", rank, steady)
        yield series("tachograph_rank_state", rank, steady, state="running")
        yield series("tachograph_rank_progress_timestamp_seconds", rank, stops)
        yield series("tachograph_train_recent_step_seconds", rank, steady)
        yield series("tachograph_train_step", rank, f"48201x{SAMPLES}")
        yield series("tachograph_train_collective_enqueued", rank, f"{9876543 - behind}x{SAMPLES}", group="0")
        since = late.replace("0.2+", "0.3+") if rank == 0 else late  # it waits longest, and is asked for what
        yield series("tachograph_rank_phase_seconds", rank, since, phase="data" if behind else "backward")
    waits = f"0+0.5x{HANGS_AFTER} {HANGS_AFTER / 2:g}x{SAMPLES - HANGS_AFTER}"
    yield series("tachograph_train_collective_seconds_total", 0, waits, op="all_reduce")


def firing(samples: Mapping[str, int], by: str) -> dict[str, Any]:
    """Expect these alerts, counted by labels, and no other at 102 s: 20 s and more after the last step."""
    return {
        "expr": f'count by (alertname, {by}) (ALERTS{{alertname!="TachographWatchdog"}})',
        "eval_time": "102s",
        "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()],
    }


@pytest.mark.timeout(600)
def test_one_of_1024_ranks_is_named_in_the_words_a_person_must_receive(rule_tests: RuleTests) -> None:
    """Hour 40: one rank in its data loader, 1,023 in all_reduce, every GPU busy: one alert, and it says all of it."""
    page = {
        "exp_labels": {"severity": "critical", "component": "tachograph", "tier": "standard", "run": "llama-70b",
                       "rank": "217", "instance": "node-27", "gpu": "1", "uuid": "GPU-217"},
        "exp_annotations": {
            "summary": "Run llama-70b is hanging.",
            "description": "Run llama-70b has been hanging for 40 s at step 48,201. 1,023 of 1,024 ranks wait in "
            "all_reduce 9,876,543; rank 217 (node-27, GPU 1) never entered it: phase data for 40 s.",
            "cost": "1,024 GPU-hours an hour",
            "checkpoint": "",
            "runbook_url": "https://github.com/tachograph/tachograph/blob/main/runbooks/RunHung.md",
            "dashboard_url": "http://localhost:3000/d/tachograph-run/run?var-run=llama-70b&var-rank=217&from=now-30m&to=now",
            "blackbox_url": "http://node-27:10024/blackbox/llama-70b",
        },
    }  # fmt: skip
    rule_tests(EVERY_RULE, {
        "interval": "5s",
        "input_series": list(hang(1024, {217})),
        "alert_rule_test": [{"eval_time": "102s", "alertname": "RunHung", "exp_alerts": [page]}],
        "promql_expr_test": [firing({'{alertname="RunHung",rank="217"}': 1}, "rank")],
    })  # fmt: skip


def test_a_whole_node_is_named_but_a_crowd_is_not(rule_tests: RuleTests) -> None:
    """Eight culprits of one node are eight alerts in one page; nine are a crowd, and so are three of four."""
    rule_tests(
        EVERY_RULE,
        {
            "interval": "5s",
            "input_series": list(hang(64, range(8, 16))),
            "promql_expr_test": [firing({'{alertname="RunHung",instance="node-1"}': 8}, "instance")],
        },
        {
            "interval": "5s",
            "input_series": list(hang(64, range(8, 17))),
            "promql_expr_test": [firing({'{alertname="RunHung"}': 1}, "instance")],
        },
        {
            "interval": "5s",
            "input_series": list(hang(4, {1, 2, 3})),
            "promql_expr_test": [firing({'{alertname="RunHung"}': 1}, "instance")],
        },
    )


def deaths(ranks: int, first: Collection[int]) -> Iterator[Series]:
    """Yield a run in which the first die at 62 s and all others 10 s after them, when they give up waiting."""
    for rank in range(ranks):
        at, shown = (62, HANGS_AFTER + 1) if rank in first else (72, HANGS_AFTER + 3)
        yield series("tachograph_rank_info", rank, f"1x{SAMPLES}", gpu=str(rank % GPUS_PER_NODE))
        yield series("tachograph_rank_up", rank, f"1x{shown - 1} 0x{SAMPLES - shown}")
        yield series(
            "tachograph_rank_ended_timestamp_seconds", rank, f"_x{shown} {at}x{SAMPLES - shown}", reason="died"
        )


def test_the_first_of_4096_to_die_is_named_and_a_crowd_is_not(
    rule_tests: RuleTests, programs: Mapping[str, Path], tmp_path: Path
) -> None:
    """Whoever follows the first, which is everybody, is not blamed; eight that die at once are, nine are a crowd."""

    def test(ranks: int, first: Collection[int], **by: str) -> dict[str, Any]:
        labels = "{" + ",".join(f'{name}="{value}"' for name, value in {"alertname": "RankDead", **by}.items()) + "}"
        number = len(first) if "instance" in by else 1
        return {"interval": "5s", "input_series": list(deaths(ranks, first)), "promql_expr_test": [{
            "expr": f'count by (alertname, {" ,".join(by) or "rank"}) (ALERTS{{alertname="RankDead"}})',
            "eval_time": "102s", "exp_samples": [{"labels": labels, "value": number}],
        }]}  # fmt: skip

    large = [test(4096, {3000}, rank="3000", instance="node-375")]
    small = [test(2, {1}, rank="1", instance="node-0"), test(3, {2}, rank="2", instance="node-0")]
    crowds = [test(64, range(8, 16), instance="node-1"), test(64, range(8, 17))]
    rules = [ROOT / "prometheus/rules" / name for name in ("runs.yml", "progress.yml", "ranks.yml")]
    unlimited = tmp_path / "promtool"  # the shipped one reads 10,000 samples a query
    unlimited.write_bytes(with_raised_limit(programs["promtool"].read_bytes()))
    unlimited.chmod(0o755)
    rule_tests(rules, *large, *small, *crowds, program=unlimited)
    unlimited.unlink()


def hardware(ranks: int, lost: int) -> Iterator[Series]:
    """Yield a healthy run with a rank on every GPU, but for one that is lost from 60 s on."""
    for rank in range(ranks):
        gpu = {"gpu": str(rank % GPUS_PER_NODE), "uuid": f"GPU-{rank}"}
        yield series("tachograph_rank_info", rank, f"1x{SAMPLES}", **gpu)
        yield series("tachograph_rank_up", rank, f"1x{SAMPLES}")
        for error in ("corrected", "uncorrected"):
            yield gpu_series("tachograph_gpu_ecc_errors_total", rank, f"0x{SAMPLES}", error=error, scope="volatile")
        if rank == lost:
            since = f"_x{HANGS_AFTER} 1x{SAMPLES - HANGS_AFTER}"
            yield gpu_series("tachograph_gpu_unavailable_info", rank, since, reason="lost")


def gpu_series(name: str, number: int, values: str, **labels: str) -> Series:
    own = {"gpu": str(number % GPUS_PER_NODE), "uuid": f"GPU-{number}", **labels,
           "instance": f"node-{number // GPUS_PER_NODE}"}  # fmt: skip
    return {"series": name + "{" + ",".join(f'{key}="{value}"' for key, value in own.items()) + "}", "values": values}


def test_one_lost_gpu_of_512_is_one_alert_with_its_rank(rule_tests: RuleTests) -> None:
    """Each GPU joins the one rank that sits on it, among hundreds that share its index."""
    rule_tests(EVERY_RULE, {
        "interval": "5s",
        "input_series": list(hardware(512, 217)),
        "promql_expr_test": [firing({'{alertname="GpuLost",rank="217"}': 1}, "rank")],
    })  # fmt: skip

"""A run too large to write out by hand: one GPU of 512."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
GPUS_PER_NODE = 8
LOST_AFTER = 12  # samples, 5 s apart
SAMPLES = 24

EVERY_RULE = sorted((ROOT / "prometheus/rules").glob("*.yml"))

Series = dict[str, str]
RuleTests = Callable[..., None]


def gpu_series(name: str, number: int, values: str, **labels: str) -> Series:
    """Return a series of a GPU, which shares its index with one of each node."""
    own = {"gpu": str(number % GPUS_PER_NODE), "uuid": f"GPU-{number}", **labels,
           "instance": f"node-{number // GPUS_PER_NODE}"}  # fmt: skip
    return {"series": name + "{" + ",".join(f'{key}="{value}"' for key, value in own.items()) + "}", "values": values}


def hardware(gpus: int, lost: int) -> Iterator[Series]:
    """Yield a healthy run with a rank on every GPU, but for one that is lost from 60 s on."""
    for number in range(gpus):
        rank = {"run": "llama-70b", "rank": str(number)}
        yield gpu_series("tachograph_rank_on_gpu", number, f"1x{SAMPLES}", **rank)
        for error in ("corrected", "uncorrected"):
            yield gpu_series("tachograph_gpu_ecc_errors_total", number, f"0x{SAMPLES}", error=error, scope="volatile")
    since = f"_x{LOST_AFTER} 1x{SAMPLES - LOST_AFTER}"
    yield gpu_series("tachograph_gpu_unavailable_info", lost, since, reason="lost")


def test_one_lost_gpu_of_512_is_one_alert_with_its_rank(rule_tests: RuleTests) -> None:
    """Each GPU joins the one rank that sits on it, among many that share its index."""
    rule_tests(EVERY_RULE, {
        "interval": "5s",
        "input_series": list(hardware(512, 217)),
        "promql_expr_test": [{
            "expr": 'count by (alertname, rank) (ALERTS{alertname!="TachographWatchdog"})', "eval_time": "102s",
            "exp_samples": [{"labels": '{alertname="GpuLost",rank="217"}', "value": 1}],
        }],
    })  # fmt: skip

"""Stragglers in many generated runs: the alerts of each, and none for runs just below a limit. Two ranks, three, 64.

Steps of 100 ms; samples every 5 s, evaluations between them. `skew/behaviour.yml` holds the texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.client.torch.nccl_run import figures

ROOT = Path(__file__).resolve().parents[2]
STEPS = 50
"""Steps in 5 s, the time between samples."""

SAMPLES = 130

Series = dict[str, str]
RuleTests = Callable[..., None]
Wait = float | Sequence[float] | str
"""Seconds a step; for each sample, those of the steps since the one before; or the values of the gauge themselves."""


def series(name: str, run: str, rank: int | None, values: str, node: str = "n", **labels: str) -> Series:
    own = {"run": run, **({} if rank is None else {"rank": str(rank)}), **labels, "instance": node}
    return {"series": name + "{" + ",".join(f'{key}="{value}"' for key, value in own.items()) + "}", "values": values}


def growing(per_step: float, samples: int = SAMPLES) -> str:
    return f"0+{per_step * STEPS:.5f}x{samples}"


def recent(wait: Wait, samples: int = SAMPLES) -> str:
    """Return what a rank shows of its last 20 s, which are four samples."""
    if isinstance(wait, str):
        return wait
    if isinstance(wait, float):
        return f"{wait:.5f}x{samples}"
    windows = (wait[max(0, last - 4) : last] for last in range(1, len(wait) + 1))
    return " ".join(f"{sum(window) / len(window):.5f}" for window in windows)


def run(name: str, *waits: Wait, nodes: int = 0, samples: int = SAMPLES, steps: float = 1.0) -> Iterator[Series]:
    """Yield a run whose ranks wait so long; `nodes` is the number of ranks on a node, 0: all on one."""
    for rank, wait in enumerate(waits):
        node = f"node-{rank // nodes}" if nodes else "n"
        yield series("tachograph_rank_info", name, rank, f"1x{samples}", node)
        yield series("tachograph_rank_up", name, rank, f"1x{samples}", node)
        yield series("tachograph_train_steps_total", name, rank, growing(steps, samples), node)
        yield series("tachograph_rank_progress_timestamp_seconds", name, rank, f"0+5x{samples}", node)
        yield series("tachograph_train_recent_step_seconds", name, rank, f"{5 / STEPS / steps:.5f}x{samples}", node)
        yield series("tachograph_train_recent_wait_seconds", name, rank, recent(wait, samples), node)
    for node, ranks in Counter(f"node-{rank // nodes}" if nodes else "n" for rank in range(len(waits))).items():
        yield from concluded(name, node, ranks, f"0+5x{samples}", samples)


def concluded(name: str, node: str, ranks: int, progress: str, samples: int) -> Iterator[Series]:
    """Yield what a node concludes of its ranks."""
    yield series("tachograph_run_ranks", name, None, f"{ranks}x{samples}", node, state="running")
    yield series("tachograph_run_progress_timestamp_seconds", name, None, progress, node)


def phase(name: str, rank: int, per_step: float, phase: str, *, node: str = "n", samples: int = SAMPLES) -> Series:
    values = f"{per_step:.5f}x{samples}"
    return series("tachograph_train_recent_phase_seconds", name, rank, values, node, phase=phase)


def excess(name: str, share: float | str, phase: str, ranks: int = 3) -> Series:
    """Return what steps took beyond their usual, as a share of the run's rank-seconds."""
    values = share if isinstance(share, str) else f"0+{share * 5 * ranks:.5f}x{SAMPLES}"
    return series("tachograph_train_phase_excess_seconds_total", name, None, values, phase=phase)


def alerts(*expected: Mapping[str, str], by: str = "alertname, severity, run, rank", at: int = 282) -> dict[str, Any]:
    """Expect these alerts, each once, and no other, ever until then."""
    samples = [", ".join(f'{key}="{value}"' for key, value in labels.items()) for labels in expected]
    return {
        "expr": f"count by ({by}) (count by ({by}, instance) (count_over_time(ALERTS{{severity!='none'}}[1h])))",
        "eval_time": f"{at}s",
        "exp_samples": [{"labels": f"{{{labels}}}", "value": 1} for labels in samples],
    }


def straggler(run: str, rank: int | None = None, severity: str = "warning") -> dict[str, str]:
    whom = {} if rank is None else {"rank": str(rank)}
    return {"alertname": "StragglerRank", "severity": severity, "run": run, **whom}


def check(rule_tests: RuleTests, *tests: tuple[Sequence[Series], list[dict[str, Any]]]) -> None:
    rules = [ROOT / f"prometheus/rules/{name}.yml" for name in ("runs", "progress", "skew", "step_desync")]
    made = ({"interval": "5s", "input_series": given, "promql_expr_test": wanted} for given, wanted in tests)
    rule_tests(rules, *made)


def test_small_lags(rule_tests: RuleTests) -> None:
    """9 % is reported, with three ranks as with four; 5.5 % is not, nor 4.5 ms, nor what ranks differ by anyway.

    Neither are two of four, which nothing tells from the other two.
    """
    given = [
        *run("four", 0.030, 0.0205, 0.0305, 0.0295),
        *run("three", 0.030, 0.021, 0.030),
        *run("less", 0.030, 0.0245, 0.030, 0.030),
        *run("noisy", 0.033, 0.021, 0.027, 0.0275, 0.0325),
        *run("short", 0.015, 0.0105, 0.015, 0.015, steps=2),
        *run("halves", 0.030, 0.021, 0.021, 0.030),
    ]
    check(rule_tests, (given, [alerts(straggler("four", 1), straggler("three", 1))]))


def test_small_lags_that_do_not_count(rule_tests: RuleTests) -> None:
    """Not in a checkpoint, for 20 s only, or before a restart.

    A gap of two scrapes is bridged, and a rank whose wait is not a number hides nothing.
    """
    given = [
        *run("saving", 0.030, 0.021, 0.030),
        series("tachograph_rank_phase_seconds", "saving", 0, "3x60", phase="checkpoint"),
        *run("once", 0.030, [*[0.03] * 25, *[0.015] * 4, *[0.03] * 31], 0.030),
        *run("again", *["0.03x24 stale 0.03x74"] * 3),
        *run("gap", 0.030, "0.021x30 stale _ 0.021x27", 0.030),
        *run("nan", 0.030, 0.021, 0.030, "NaN " * 61),
    ]
    one_alert = {
        "expr": 'changes(ALERTS_FOR_STATE{run="gap"}[3m]) > 0',
        "eval_time": "282s",
        "exp_samples": [],
    }
    check(rule_tests, (given, [alerts(straggler("gap", 1), straggler("nan", 1)), one_alert]))


def test_two_ranks_are_compared_with_their_past(rule_tests: RuleTests) -> None:
    """A lag of 10 % that is new is reported, after 800 s of none; not one that was since the start, or soon after."""
    given = [
        *run("new", "0.02x160 0.025x39", "0.02x160 0.015x39", samples=200),
        *run("old", 0.026, 0.016, samples=200),
        *run("young", "0.02x6 0.025x193", "0.02x6 0.015x193", samples=200),
    ]
    check(rule_tests, (given, [alerts(at=802), alerts(straggler("new", 1), at=897)]))


def test_where_a_lag_arises(rule_tests: RuleTests) -> None:
    """In the phase that takes longer than on the median rank; nowhere, where it is spread over five phases."""
    given: list[Series] = []
    usual = {"data": 0.005, "forward": 0.03, "backward": 0.02, "optimizer": 0.005, "other": 0.005}
    more = {"back": {"backward": 0.04}, "load": {"data": 0.04}, "even": dict.fromkeys(usual, 0.008)}
    for name, added in more.items():
        given += run(name, 0.040, 0.0, 0.041, 0.039)
        for rank in range(4):
            for one, seconds in usual.items():
                given.append(phase(name, rank, seconds + (added.get(one, 0.0) if rank == 1 else 0.0), one))
    named = {
        "expr": "count by (run, rank, phase) (rank:straggler_phase:seconds)",
        "eval_time": "122s",
        "exp_samples": [
            {"labels": '{run="back", rank="1", phase="backward"}', "value": 1},
            {"labels": '{run="load", rank="1", phase="data"}', "value": 1},
        ],
    }
    check(rule_tests, (given, [named]))


def limit(name: str, ratio: float) -> Series:
    own = f'{{run="{name}",rank="0",name="straggler_ratio",instance="n"}}'
    return {"series": f"tachograph_train_threshold{own}", "values": f"{ratio}x{SAMPLES}"}


def by_lengths(name: str, late: Callable[[int, float], float], seconds: int = 250) -> Iterator[Series]:
    """Yield a run on NCCL whose ranks know their waits from the Flight Recorder's lengths alone, scraped every 5 s."""
    shown = figures(late, seconds=seconds)
    waits = [" ".join("_" if wait is None else f"{wait:.5f}" for wait in [None, *own][::5]) for own in shown]
    return run(name, *waits, samples=seconds // 5, steps=5 / STEPS / 0.162)


def test_by_the_flight_recorders_lengths(rule_tests: RuleTests) -> None:
    """From recorded dumps to the page: rank 2 works 50 ms longer, from the start or later, and is named, it alone.

    Nobody is after a stall of rank 2.
    """
    given = [
        *by_lengths("late", lambda rank, time: 0.05 * (rank == 2)),
        *by_lengths("later", lambda rank, time: 0.05 * (rank == 2 and time > 90)),
        *by_lengths("stall", lambda rank, time: 5.0 * (rank == 2 and 100 < time < 100.2)),
    ]
    check(rule_tests, (given, [
        alerts(straggler("late", 2, "critical"), at=117),
        alerts(straggler("late", 2, "critical"), straggler("later", 2, "critical"), at=247),
    ]))  # fmt: skip


def test_own_limit(rule_tests: RuleTests) -> None:
    """A run that sets 0.1 is paged at 14 % of the step; one that sets 0.4 gets a ticket at a quarter; others at 0.2."""
    given = [
        *run("strict", 0.030, 0.016, 0.030), limit("strict", 0.1),
        *run("tolerant", 0.030, 0.005, 0.030), limit("tolerant", 0.4),
        *run("plain", 0.030, 0.016, 0.030), *run("late", 0.030, 0.007, 0.030),
    ]  # fmt: skip
    check(rule_tests, (given, [alerts(
        straggler("strict", 1, "critical"), straggler("late", 1, "critical"),
        straggler("tolerant", 1), straggler("plain", 1),
    )]))  # fmt: skip


def test_a_page_stays_a_page(rule_tests: RuleTests) -> None:
    """Once paged, a lag that falls to 17 % of the step is no ticket, at 14 % it is; 17 % from the start is no page."""
    given = [
        *run("held", 0.030, "0.005x30 0.013x69", 0.030),
        *run("eased", 0.030, "0.005x30 0.016x69", 0.030),
        *run("never", 0.030, 0.013, 0.030),
    ]
    check(rule_tests, (given, [alerts(
        straggler("held", 1, "critical"), straggler("eased", 1, "critical"), straggler("eased", 1),
        straggler("never", 1),
    )]))  # fmt: skip


def on_own_node(name: str) -> Iterator[Series]:
    """Yield a run whose rank 1 is late, on a node of the run's name, each rank on a GPU."""
    for one in run(name, 0.030, 0.005, 0.030):
        gpu = f',uuid="GPU-{name}",instance="{name}"' if 'rank="1"' in one["series"] else f',instance="{name}"'
        own = gpu if "rank_info" in one["series"] else f',instance="{name}"'
        yield {**one, "series": one["series"].replace(',instance="n"', own)}


def of_gpu(record: str, name: str, value: float) -> Series:
    return {"series": f'{record}{{instance="{name}",gpu="1",uuid="GPU-{name}"}}', "values": f"{value}x{SAMPLES}"}


def test_causes(rule_tests: RuleTests) -> None:
    """Heat before the clock it lowers, power only where the clock is low, a link, the loader, the node, else the phase.

    Another run's GPU, and a little heat or pressure, are no cause.
    """
    names = (
        "hot",
        "braked",
        "capped",
        "clock",
        "nvlink",
        "pcie",
        "loader",
        "busy",
        "swapping",
        "disk",
        "plain",
        "none",
    )
    given = [one for name in names for one in on_own_node(name)]
    for name in names[:-1]:
        for rank in (0, 1, 2):
            where = "data" if name == "loader" else "forward"
            given.append(phase(name, rank, 0.07 if rank == 1 else 0.01, where, node=name))
    given += [
        of_gpu("node:gpu_thermal_slowdown:ratio", "hot", 0.9), of_gpu("node:gpu_clock_of_peers:ratio", "hot", 0.8),
        of_gpu("node:gpu_thermal_slowdown:ratio", "plain", 0.04), of_gpu("node:gpu_power_braked:ratio", "braked", 0.3),
        of_gpu("node:gpu_power_braked:ratio", "plain", 0.04),
        of_gpu("node:gpu_power_capped:ratio", "capped", 0.9), of_gpu("node:gpu_clock_of_peers:ratio", "capped", 0.9),
        of_gpu("node:gpu_power_capped:ratio", "plain", 0.9), of_gpu("node:gpu_clock_of_peers:ratio", "clock", 0.9),
        of_gpu("node:gpu_power_capped:ratio", "clock", 0.4),
        of_gpu("node:gpu_nvlink_links_down:count", "nvlink", 2), of_gpu("node:gpu_pcie_speed:ratio", "pcie", 0.5),
        of_gpu("node:gpu_pcie_speed:ratio", "plain", 0.95),
    ]  # fmt: skip
    for record, name, share in (
        ("cpu_waiting", "busy", 0.3), ("memory_stalled", "swapping", 0.1), ("io_stalled", "disk", 0.3),
        ("cpu_waiting", "plain", 0.15), ("memory_stalled", "plain", 0.04), ("io_stalled", "plain", 0.15),
    ):  # fmt: skip
        values = f"{share}x{SAMPLES}"
        given.append({"series": f'node:pressure_{record}:ratio1m{{instance="{name}"}}', "values": values})
    causes = ("thermal", "power", "power", "clock", "link", "link", "loader", "host", "host", "host", "phase")
    found = {
        "expr": "rank:straggler_cause:info",
        "eval_time": "122s",
        "exp_samples": [
            {
                "labels": f'rank:straggler_cause:info{{run="{name}",rank="1",instance="{name}",cause="{cause}"}}',
                "value": 1,
            }
            for name, cause in zip(names, causes, strict=False)
        ],
    }
    check(rule_tests, (given, [found]))


@pytest.mark.slow
def test_turns(rule_tests: RuleTests) -> None:
    """An excess of 3 % in one phase is reported, even if another's is not a number; 0.9 % in each of two is not.

    Nor is one for which nobody waits, or beside a rank that is late, if only now and then. Nor in a run that
    saves often, once, or at a restart. Nor one of all at once: larger than the waits, or while all wait for data.
    """
    wavering = [0.01 if sample % 10 < 6 else 0.03 for sample in range(SAMPLES)]  # 30 s late, 20 s not
    given = [
        *run("turns", 0.03, 0.03, 0.03), excess("turns", 0.03, "data"), excess("turns", 0.004, "forward"),
        *run("nan", 0.008, 0.008, 0.008), excess("nan", "NaN " * 61, "data"), excess("nan", 0.015, "forward"),
        *run("less", 0.03, 0.03, 0.03), excess("less", 0.009, "data"), excess("less", 0.009, "forward"),
        *run("free", 0.004, 0.004, 0.004), excess("free", 0.03, "data"),
        *run("fixed", 0.03, 0.019, 0.03), excess("fixed", 0.03, "data"),
        *run("page", 0.03, 0.002, 0.03), excess("page", 0.03, "data"),
        *run("wide", 0.06, 0.03, 0.05, 0.011, 0.04), excess("wide", 0.03, "data", ranks=5),
        *run("wavering", 0.03, wavering, 0.03), excess("wavering", 0.03, "data"),
        *run("saving", 0.03, 0.03, 0.03), excess("saving", 0.03, "data"),
        series("tachograph_rank_phase_seconds", "saving", 0, "3 _ _ _ " * 33, phase="checkpoint"),
        *run("once", 0.03, 0.03, 0.03), excess("once", "0x20 0.3 0.6 0.9 1.2x40", "data"),
        *run("again", 0.03, 0.03, 0.03), excess("again", "0+0.02x30 0+0.02x30", "data"),
        *run("shared", 0.012, 0.012, 0.012), excess("shared", 0.15, "data"),
        *run("hungry", 0.03, 0.03, 0.03), excess("hungry", 0.2, "data"),
        {"series": 'run:data_stall:ratio{run="hungry"}', "values": f"0.35x{SAMPLES}"},
    ]  # fmt: skip
    check(
        rule_tests,
        (
            given,
            [alerts(
                straggler("turns"), straggler("nan"), straggler("fixed", 1),
                straggler("page", 1, "critical"), straggler("wide", 3, "critical"),
                at=602,
            )],
        ),
    )  # fmt: skip


def at(name: str, *steps: str, state: str = "running") -> Iterator[Series]:
    """Yield a run of 5 steps a second whose ranks are at these steps; the last one is in this state."""
    for rank, values in enumerate(steps):
        own = state if rank == len(steps) - 1 else "running"
        yield series("tachograph_rank_info", name, rank, "1x60")
        yield series("tachograph_rank_up", name, rank, "1x60")
        yield series("tachograph_rank_state", name, rank, "1x60", state=own)
        yield series("tachograph_train_step", name, rank, values)
        yield series("tachograph_train_recent_step_seconds", name, rank, "0.2x60")


def test_step_desync(rule_tests: RuleTests) -> None:
    """65 steps behind alert, 60 do not, where 63 fit between two looks; one that runs away; of three apart, none.

    Not at the start, in a hang, of the dead, of what is not a number, or for 15 s.
    """
    usual = "1000+25x60"
    given = [
        *at("behind", usual, usual, usual, "935+25x60"), *at("near", usual, usual, usual, "940+25x60"),
        *at("away", usual, usual, "1000+50x60"), *at("apart", usual, "1000+50x60", "1000+75x60"),
        *at("start", usual, usual, "500+25x60"),
        series("tachograph_rank_phase_seconds", "start", 2, "3x60", phase="init"),
        *at("hang", "0+25x12 300x48", "0+25x12 300x48", "0+25x8 200x52"),
        *at("dead", usual, usual, "500x60", state="dead"),
        *at("nan", usual, usual, "1000 " + "NaN " * 20 + "1525+25x38"),
        *at("brief", usual, usual, "900+25x3 1100+25x56"),
    ]  # fmt: skip
    for name in ("behind", "near", "away", "apart", "start", "dead", "nan", "brief"):
        given.append(series("tachograph_run_progress_timestamp_seconds", name, None, "0+5x60"))
    given.append(series("tachograph_run_progress_timestamp_seconds", "hang", None, "0+5x12 60x48"))
    given.append({"series": 'node:ranks_alive:count{run="hang",instance="n"}', "values": "3x60"})
    own = {"alertname": "RankStepDesync"}
    wanted = alerts(
        {**own, "run": "behind", "rank": "3"},
        {**own, "run": "away", "rank": "2"},
        {**own, "run": "apart"},
        {"alertname": "RunHung", "run": "hang"},
        by="alertname, run, rank",
    )
    check(rule_tests, (given, [wanted]))


def large(late: Collection[int], lag: float, since: int = 0) -> list[Series]:
    """Return 64 ranks on eight nodes that wait 28 to 32 ms, the late ones less from the sample `since` on."""
    waits = [0.030 + 0.002 * ((rank * 7) % 11 - 5) / 5 for rank in range(64)]
    own = [f"_ {wait:.5f}x{since} {wait - lag:.5f}x30" if rank in late else wait for rank, wait in enumerate(waits)]
    busy = [
        phase(
            "big", rank, 0.05 + (lag if rank in late else 0.0), "forward", node=f"node-{rank // 8}", samples=since + 30
        )
        for rank in range(64)
    ]
    return [*run("big", *own, nodes=8, samples=since + 30), *busy]


def on_nodes(*expected: tuple[str, str, str, int], at: int = 122) -> dict[str, Any]:
    """Expect these: kind of alert, severity, node or none, and how many."""
    where = {"": "", **{f"node-{number}": f',instance="node-{number}"' for number in range(8)}}
    return {
        "expr": 'count by (alertname, severity, instance) (ALERTS{alertname!="TachographWatchdog"})',
        "eval_time": f"{at}s",
        "exp_samples": [
            {"labels": f'{{alertname="Straggler{kind}",severity="{severity}"{where[node]}}}', "value": count}
            for kind, severity, node, count in expected
        ],
    }


def test_one_of_64(rule_tests: RuleTests) -> None:
    """A page at a quarter of the step, a ticket at a tenth; nothing at 3 %."""
    phases = {
        "expr": "count by (rank, phase) (rank:straggler_phase:seconds)",
        "eval_time": "122s",
        "exp_samples": [{"labels": '{rank="41",phase="forward"}', "value": 1}],
    }
    check(
        rule_tests,
        (large({41}, 0.025), [on_nodes(("Rank", "critical", "node-5", 1)), phases]),
        (large({41}, 0.010), [on_nodes(("Rank", "warning", "node-5", 1)), phases]),
        (large({41}, 0.003), [on_nodes()]),
    )  # fmt: skip


@pytest.mark.slow
def test_nodes_of_eight(rule_tests: RuleTests) -> None:
    """A node is named with all or half of its ranks late, not with three of eight."""
    rank, node = ("Rank", "critical", "node-3"), ("Node", "critical", "node-3")
    check(
        rule_tests,
        (large(range(24, 32), 0.025), [on_nodes((*node, 1), (*rank, 8))]),
        (large(range(24, 28), 0.025), [on_nodes((*node, 1), (*rank, 4))]),
        (large(range(24, 27), 0.025), [on_nodes((*rank, 3))]),
    )  # fmt: skip


@pytest.mark.slow
def test_more_than_eight_are_one_page(rule_tests: RuleTests) -> None:
    """Of the run; of two whole nodes of eight, each node."""
    nodes = [("Node", "critical", f"node-{number}", 1) for number in (0, 1)]
    check(
        rule_tests,
        (large(range(16), 0.025, 150), [on_nodes(at=747), on_nodes(*nodes, at=872)]),
        (large(range(24), 0.025, 150), [on_nodes(at=747), on_nodes(("Rank", "critical", "", 1), at=872)]),
    )


@pytest.mark.slow
def test_more_than_eight_by_less_or_from_the_start(rule_tests: RuleTests) -> None:
    """By less, they are one ticket. Since the start of the run, none: it is uneven."""
    check(
        rule_tests,
        (large(range(24), 0.010, 150), [on_nodes(at=747), on_nodes(("Rank", "warning", "", 1), at=872)]),
        (large(range(16), 0.025), [on_nodes()]),
        (large(range(24), 0.025), [on_nodes()]),
    )

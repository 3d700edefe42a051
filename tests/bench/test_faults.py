"""The fault bench: what it plays, how it judges, and two real jobs with a delay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def scenarios() -> ModuleType:
    import fault_scenarios  # on the path by conftest.py

    return fault_scenarios


@pytest.fixture(scope="module")
def scores() -> ModuleType:
    import fault_scores

    return fault_scores


@pytest.fixture
def outcome(scenarios: ModuleType) -> Callable[..., Any]:
    """Make an outcome of a job: what was said as (alert, severity, rank, phase), 50 s after the onset."""
    from fault_stack import Outcome, Told

    by_run = {one.run: one for one in scenarios.campaign(healthy=2, repeats=1)}

    def make(run: str, *said: tuple[str, str, int | None, str | None], at: float = 150.0) -> Any:
        told = [Told(*one, first=at, last=at + 10, text="") for one in said]
        return Outcome(by_run[run], onset=100.0, began=60.0, ended=190.0, told=told)

    return make


def test_every_delay_is_played_in_every_place_and_way(scenarios: ModuleType) -> None:
    """Three sizes, six places, fixed and in turn; the fixed ones must name rank and phase, the others the phase."""
    delays = scenarios.delays()
    assert len(delays) == 36
    assert {(one.share, one.place, one.rotating) for one in delays} == {
        (share, place, turn) for share in (0.5, 0.2, 0.1) for place in scenarios.PLACES for turn in (False, True)
    }
    assert all((one.expected.rank is None) == one.rotating for one in delays)
    assert {one.expected.phase for one in delays} == {"data", "copy", "forward", "backward", "optimizer", "other"}


def test_a_basic_loop_is_played_under_every_parallelism(scenarios: ModuleType) -> None:
    """Delays of three sizes in four places, the smallest thrice; one in turn, two of a node; hangs; healthy."""
    played = scenarios.basic()
    for parallelism in scenarios.PARALLELISMS:
        ones = [one for one in played if one.parallelism == parallelism]
        assert {
            (one.place, one.share) for one in ones if one.kind == "delay" and not one.rotating and one.nodes == 1
        } == {(place, share) for place in scenarios.BASIC_PLACES for share in (0.5, 0.2, 0.1)}
        kinds = Counter(one.kind for one in ones)
        slow_nodes = 1 if parallelism in ("pipeline", "experts") else 2
        assert [one.ranks for one in ones if one.nodes == 4] == [8] * (slow_nodes + 1)
        assert kinds == {"delay": 21 + slow_nodes, "healthy": 5} | dict.fromkeys(
            ("omitted", "order", "loader", "left", "killed"), 1
        )
        assert {one.tier for one in ones} == {f"basic {parallelism}"}
    expected = {str(one.expected) for one in played if one.kind not in ("delay", "healthy")}
    assert expected == {"RunHung rank 2", "RankDead rank 2"}


def test_an_unedited_script_is_played_under_every_parallelism(scenarios: ModuleType) -> None:
    """A delay in four places, three hangs, one healthy run."""
    played = scenarios.unedited()
    for parallelism in scenarios.PARALLELISMS:
        ones = [one for one in played if one.parallelism == parallelism]
        late = {(one.place, one.share) for one in ones if one.kind == "delay"}
        assert late == {(place, 0.2) for place in scenarios.BASIC_PLACES}
        assert Counter(one.kind for one in ones) == {"delay": 4, "omitted": 1, "loader": 1, "killed": 1, "healthy": 1}
        assert {one.tier for one in ones} == {f"unedited {parallelism}"}


def test_a_campaign_mixes_faults_and_healthy_runs(scenarios: ModuleType) -> None:
    """Each run has its own name; cut off at any point, both kinds were played in their proportion; long ones first."""
    campaign = scenarios.campaign(healthy=30, repeats=2)
    assert len({one.run for one in campaign}) == len(campaign)
    long = sum(one.long for one in campaign)
    assert all(one.long for one in campaign[:long])
    rest = campaign[long:]
    calm = sum(one.tier == "healthy" for one in rest)
    assert calm == 30
    half = sum(one.tier == "healthy" for one in rest[: len(rest) // 2])
    assert abs(half - 15) <= 1


def test_a_delay_stretches_the_steps_not_the_run(scenarios: ModuleType) -> None:
    """A run with a delay of half a step has fewer steps after its onset and takes as long as a healthy one."""
    healthy, slow = scenarios.HEALTHY, scenarios.delays()[0]
    assert slow.share == 0.5
    after = slow.steps - slow.steps_before
    assert after * scenarios.STEP_SECONDS * 1.5 == pytest.approx(slow.seconds, rel=0.01)
    assert (healthy.steps - healthy.steps_before) * scenarios.STEP_SECONDS == pytest.approx(90, rel=0.01)


def test_rank_and_phase_must_both_be_right(scores: ModuleType, outcome: Callable[..., Any]) -> None:
    """Rank and phase right; phase wrong or missing; another rank; nothing; another alert beside it."""
    run = "backward-20-fixed-0"
    right = ("StragglerRank", "warning", 2, "backward")
    judged = scores.judge(outcome(run, right))
    assert (judged.right_rank, judged.right, judged.delay) == (True, True, 50.0)
    cases = {
        (("StragglerRank", "warning", 2, "forward"),): (True, False, "forward"),
        (("StragglerRank", "warning", 2, None),): (True, False, "no phase"),
        (("StragglerRank", "warning", 1, "backward"),): (False, False, "wrong rank"),
        (("StragglerRank", "warning", None, "backward"),): (False, False, "wrong rank"),
        (): (False, False, "nothing"),
        (("DataStall", "critical", None, None),): (False, False, "other alert"),
        (right, ("MfuDropped", "critical", None, None)): (True, False, "backward"),
        (right, ("StragglerRank", "warning", 1, "backward")): (False, False, "wrong rank"),
        (right, ("LossSpike", "info", None, None)): (True, True, "backward"),
        (right, ("StragglerRank", "critical", 2, "backward")): (True, True, "backward"),
    }
    for said, (right_rank, all_right, column) in cases.items():
        judged = scores.judge(outcome(run, *said))
        assert (judged.right_rank, judged.right, scores.taken_for(judged)) == (right_rank, all_right, column), said


def test_where_ranks_take_turns_no_rank_may_be_named(scores: ModuleType, outcome: Callable[..., Any]) -> None:
    """A run-level alert with the phase is right, one that blames a rank is a false culprit."""
    run = "loader-10-rotating-0"
    assert scores.judge(outcome(run, ("StragglerRank", "warning", None, "data"))).right
    blamed = scores.judge(outcome(run, ("StragglerRank", "warning", 3, "data")))
    assert not blamed.right_rank
    assert scores.taken_for(blamed) == "wrong rank"


def test_an_alert_before_the_fault_is_no_answer(scores: ModuleType, outcome: Callable[..., Any]) -> None:
    """The right words before anything was wrong are chance."""
    judged = scores.judge(outcome("forward-50-fixed-0", ("StragglerRank", "critical", 2, "forward"), at=90.0))
    assert judged.answer is None
    assert not judged.right


def test_a_healthy_run_may_only_inform(scores: ModuleType, outcome: Callable[..., Any]) -> None:
    """Nothing and info are right; a page or ticket is a false alarm."""
    assert scores.judge(outcome("healthy-0")).right
    assert scores.judge(outcome("healthy-0", ("LossSpike", "info", None, None))).right
    wrong = scores.judge(outcome("healthy-1", ("StragglerRank", "warning", 0, None)))
    assert not wrong.right
    assert [one.rank for one in wrong.surplus] == [0]


def test_symptoms_of_an_end_are_allowed_with_it(scores: ModuleType, outcome: Callable[..., Any]) -> None:
    """A rank that is killed takes the others down: their failing is no surplus, a straggler is."""
    frozen = ("RankFrozen", "critical", 2, "backward")  # its text says where it was last seen: nothing to be judged
    assert scores.judge(outcome("frozen-0", frozen)).right
    dead, failed = ("RankDead", "critical", 2, None), ("RankFailed", "critical", 0, None)
    assert scores.judge(outcome("killed-0", dead, failed)).right
    assert not scores.judge(outcome("killed-0", dead, ("StragglerRank", "critical", 1, None))).right


def test_tables_count_what_was_judged(scores: ModuleType, outcome: Callable[..., Any]) -> None:
    """One of two is right; the delay is of those that were reported; a long one that was cut off says so."""
    cut = outcome("divergence-0")
    cut.fault = "the campaign was too short"
    found = scores.tables(
        [
            outcome("copy-20-fixed-0", ("StragglerRank", "warning", 2, "copy")),
            outcome("copy-20-rotating-0"),
            outcome("healthy-0"),
            outcome("basic-pipeline-backward-50-fixed-0", ("StragglerRank", "critical", 2, "backward")),
            outcome("basic-pipeline-backward-20-fixed-0", ("StragglerRank", "critical", 2, "forward")),
            outcome("basic-pipeline-stuck-loader-0", ("RunHung", "critical", 1, None)),
            cut,
        ]
    )
    row = found["Right, late, false"][0]
    assert (row["number"], row["rank right"], row["cause too"]) == (2, 1, 1)
    assert (row["median delay s"], row["false alarms"]) == ("50", 0)
    fixed = {one["delayed"]: one for one in found["Delay on one rank: which phase was named"]}
    assert fixed["copy"]["copy"] == 1
    turns = {one["delayed"]: one for one in found["Delay on ranks in turn: which phase was named"]}
    assert turns["copy"]["nothing"] == 1
    assert found["Other faults"][0]["said"] == "the campaign was too short"
    (pipeline,) = found["Basic loops, by parallelism"]
    assert (pipeline["50 %"], pipeline["20 %"], pipeline["10 %"], pipeline["hangs"]) == (
        "1/1", "1/1", "0/0", "0/1",
    )  # fmt: skip
    assert (pipeline["delays: phase too"], pipeline["false alarms"]) == ("1/2", 1)
    (longest,) = found["Basic loops: the longest delay, in seconds"]
    assert (longest["50 %"], longest["hangs"]) == ("50", "–")
    assert fixed["backward"]["backward"] == "·"
    assert [one["run"] for one in found["Not right"]] == [
        "copy-20-rotating-0", "basic-pipeline-backward-20-fixed-0", "basic-pipeline-stuck-loader-0",
    ]  # fmt: skip


def test_a_slow_node_must_be_named(scores: ModuleType, outcome: Callable[..., Any]) -> None:
    """Another node, or a rank of the slow one, is a wrong answer."""
    run = "basic-ddp-backward-50-node-0"
    said = ("StragglerNode", "critical", None, "backward")
    for node, right in (("node-2", True), ("node-1", False), (None, False)):
        given = outcome(run, said)
        given.told[0].node = node
        assert scores.judge(given).right == right, node
    assert not scores.judge(outcome(run, ("StragglerRank", "critical", 4, "backward"))).right


def test_a_result_survives_being_written(outcome: Callable[..., Any]) -> None:
    """A line of results gives back the same alerts."""
    from fault_stack import Told

    given = outcome("NaN-0", ("LossNotFinite", "critical", 2, None))
    row = json.loads(json.dumps(given.row()))
    assert row["run"] == "NaN-0"
    assert [Told(**one) for one in row["told"]] == given.told


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        "backward-50-fixed-0",
        "before-collective-50-fixed-0",
        *(f"basic-{name}-optimizer-50-fixed-0" for name in ("ddp", "fsdp2", "hsdp", "tensor", "pipeline")),
        *(f"basic-{name}-backward-50-fixed-0" for name in ("fsdp2-tensor", "experts")),
        *(f"basic-{name}-backward-50-node-0" for name in ("ddp", "hsdp", "pipeline", "fsdp2-tensor")),
        "unedited-fsdp2-loader-20-fixed-0",
    ],
)
def test_the_job_delays_where_it_says(run: str, tmp_path: Path, scenarios: ModuleType) -> None:
    """A real job runs to its end, without an exporter; from the onset on its steps are longer."""
    from dataclasses import asdict, replace

    scenario = next(one for one in scenarios.campaign(healthy=0, repeats=1) if one.run == run)
    scenario = replace(scenario, onset=1.0, seconds=2.0)
    (tmp_path / "scenario.json").write_text(json.dumps({**asdict(scenario), "expected": None}), encoding="utf-8")
    from tachograph_lab.processes import free_port

    environment = {
        **os.environ,
        "TACHOGRAPH_SOCKET": str(tmp_path / "nobody.sock"),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    began = time.time()
    done = subprocess.run(
        [sys.executable, ROOT / "bench/fault_job.py", tmp_path],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    if scenario.loop != scenarios.UNEDITED:  # torchrun says nothing where all is well
        ended = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
        assert ended == [f"rank {rank} ended with status 0" for rank in range(scenario.ranks)], done.stderr
    onset = float((tmp_path / "onset").read_text(encoding="utf-8"))
    after = scenario.steps - scenario.steps_before
    least = after * scenarios.STEP_SECONDS * (1 + scenario.share)
    assert began + 1.0 < onset
    assert time.time() - onset > 0.9 * least


def test_the_committed_figures_are_of_a_whole_campaign(scenarios: ModuleType) -> None:
    """A change of scenarios or rules comes with `make bench-faults`: all delays on one rank, and 30 healthy runs."""
    page = (ROOT / "docs/evidence/fault-bench.md").read_text(encoding="utf-8")
    _, tables, _ = page.split("<!-- written by bench/faults.py --doc -->")
    lines = [line.strip("| ").split(" | ") for line in tables.splitlines() if line.startswith("| ")]
    numbers = {line[0]: int(line[1]) for line in lines if line[0].startswith(("delay ", "healthy"))}
    assert numbers.keys() == {"delay 50%", "delay 20%", "delay 10%", "healthy"}
    assert numbers["healthy"] >= 30
    assert min(numbers.values()) >= len(scenarios.PLACES)
    for columns, jobs in ((10, scenarios.basic()), (6, scenarios.unedited())):
        late = Counter(one.parallelism for one in jobs if one.kind == "delay" and not one.rotating)
        played = {name: line[-2] for line in lines if len(line) == columns for name in line[0].split(", ")}
        assert {name: int(played[name].split("/")[1]) for name in scenarios.PARALLELISMS} == late

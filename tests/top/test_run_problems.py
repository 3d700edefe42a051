"""The first lines of `top RUN`: what is wrong with a run as a whole, in the words of its nodes."""

from __future__ import annotations

from typing import Any

import pytest

from tachograph.findings.kinds import RUN_HUNG
from tachograph.top.overview import FiringAlert, RankRow, RunSummary
from tachograph.top.run_problems import run_problems

CULPRIT = RankRow(
    "r", 3, "n1", phase="data", phase_seconds=42.0, pid="7", where="a.py:3 f", marks=("culprit",), cause="1 behind"
)


@pytest.mark.parametrize(
    ("summary", "ranks", "said"),
    [
        ({"state": "running", "step_seconds": 0.1, "data_seconds": 0.01, "wait_seconds": 0.05}, [], []),
        (
            {"state": "running", "step_seconds": 0.1, "data_seconds": 0.06},
            [],
            ["Run r: 60% of each step (60 ms of 100 ms) is spent waiting for data."],
        ),
        ({"state": "running", "step_seconds": 0.1, "data_seconds": 0.06, "data_limit": 0.7}, [], []),
        (
            {"state": "running", "nonfinite_ranks": 2},
            [RankRow("r", 5, "n2", marks=("NaN first",))],
            ["Run r: the loss is NaN or infinite on 2 ranks, rank 5 on n2 first."],
        ),
        (
            {"state": "dead", "ranks": {"dead": 1, "failed": 2, "running": 5}},
            [RankRow("r", 5, "n2", marks=("died first",))],
            ["Run r: 1 rank died, rank 5 on n2 first.", "Run r: 2 ranks failed."],
        ),
        (
            {"state": "running"},
            [RankRow("r", 5, "n2", marks=("straggler",), lag_seconds=0.05, cause="forward")],
            ["Rank 5 on n2 of run r arrives last, 50 ms after the others in each step; it is busy longest in forward."],
        ),
        (
            {"state": "hung", "state_seconds": 34.0},
            [CULPRIT],
            ["Run r: no step for 34 s; rank 3 on n1 is 1 behind, in data for 42 s, at a.py:3 f (pid 7)."],
        ),
        (
            {"state": "hung", "state_seconds": 34.0, "step_seconds": 0.2},
            [RankRow("r", 0)],
            ["Run r: no step for 34 s, usually 200 ms; no rank stands out."],
        ),
    ],
)
def test_what_is_wrong(summary: dict[str, Any], ranks: list[RankRow], said: list[str]) -> None:
    """One sentence for each, the worst first, each with what usually helps."""
    found = list(run_problems(RunSummary("r", **summary), ranks))
    assert [one.text for one in found] == said
    assert all(one.remedy and one.run == "r" for one in found)


@pytest.mark.parametrize(
    ("rank", "remedy"),
    [
        (
            CULPRIT,
            "py-spy dump --pid 7 on n1 shows where it stands; `tachograph top --exporter n1` has more: "
            + RUN_HUNG.runbook,
        ),
        (RankRow("r", 3, "n1", marks=("behind",)), f"`tachograph top --exporter n1` has more: {RUN_HUNG.runbook}"),
        (RankRow("r", 0), RUN_HUNG.runbook),
    ],
)
def test_where_to_look_at_a_run_without_a_step(rank: RankRow, remedy: str) -> None:
    """Commands with their own node and process, ready to be copied."""
    (found,) = run_problems(RunSummary("r", state="hung", state_seconds=34.0), [rank])
    assert found.remedy == remedy


def test_since_when_is_what_the_alerts_say() -> None:
    """A late rank by the alert that names it, a wait for data by the run's; other alerts say nothing of either."""
    summary = RunSummary("r", state="running", step_seconds=0.1, data_seconds=0.06)
    late = RankRow("r", 5, "n2", lag_seconds=0.05, marks=("straggler",))
    alerts = [
        FiringAlert("StragglerRank", "critical", 40.0, "5", "n2"),
        FiringAlert("StragglerRank", "critical", 90.0, "6", "n2"),
        FiringAlert("DataStall", "critical", 150.0),
    ]
    assert [(one.text, one.seconds) for one in run_problems(summary, [late], alerts)] == [
        ("Rank 5 on n2 of run r has arrived last for 40 s, 50 ms after the others in each step.", 40.0),
        ("Run r: for 2 min, 60% of each step (60 ms of 100 ms) has been spent waiting for data.", 150.0),
    ]

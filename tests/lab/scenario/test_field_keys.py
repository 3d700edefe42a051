"""The keys with which a scenario tells of the field: intervals, loops, several runs, and how processes end."""

from __future__ import annotations

import math
from pathlib import Path
from textwrap import dedent

import pytest

from tachograph_lab.scenario import Expected, Scenario, ScenarioError, faults, load

GOOD = """\
title: A story
story: Something happens.
lasts: 10m
fleet: {nodes: 4, gpus_per_node: 2}
"""


def read(folder: Path, text: str) -> Scenario:
    """Return a scenario read from this text."""
    path = folder / "story.yaml"
    path.write_text(dedent(text))
    return load(path)


def mistakes(folder: Path, text: str) -> list[str]:
    """Return the mistakes in this text, without the name of its folder."""
    with pytest.raises(ScenarioError) as caught:
        read(folder, text)
    return [line.replace(f"{folder}/", "") for line in caught.value.lines]


def test_the_fields_habits(tmp_path: Path) -> None:
    """Each key is read; without them a scenario is as it always was."""
    told = read(
        tmp_path,
        GOOD.replace("gpus_per_node: 2", "gpus_per_node: 2, pipeline: 2, first_gpu: 4")
        + """\
scrape: 15s
evaluation: 30s
loop: basic
waits: [0, 3]
total_steps: 10_000
step: {forward: 20, first: 4m, stages: [1, 1.3]}
""",
    )
    assert (told.scrape, told.evaluation, told.loop, told.waits) == (15, 30, "basic", (0, 3))
    assert (told.total_steps, told.step.first, told.step.stages) == (10_000, 240, (1, 1.3))
    assert [told.fleet.stage_of(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [told.fleet.gpu_of(rank) for rank in range(3)] == [4, 5, 4]
    assert read(tmp_path, GOOD + "waits: none\n").waits == ()
    usual = read(tmp_path, GOOD)
    assert usual == read(tmp_path, GOOD + "waits: all\nloop: marked\nscrape: 5s\n")
    assert (usual.scrape, usual.evaluation, usual.waits) == (5, None, None)


def test_faults_of_the_field(tmp_path: Path) -> None:
    """How processes end, what pauses them, and what Prometheus does not see."""
    told = read(
        tmp_path,
        GOOD
        + """\
faults:
  - {fault: exit, at: 1m, rank: 0, code: 1}
  - {fault: sigterm, at: 2m, ranks: all, requeued: never}
  - {fault: pause, at: 10, for: 5, rank: 3, phase: eval, alone: true}
  - {fault: rollout, at: 1m, nodes: all, each: 40s, between: 50s}
  - {fault: clock_skew, at: 0, node: node-2, by: -40s}
  - {fault: gil, at: 3m, for: 12, ranks: [1, 2]}
""",
    )
    left, term, pause, rollout, skew, gil = told.faults
    assert left == faults.Exit(at=60, ranks=(0,), code=1, others="end")
    assert isinstance(term, faults.Sigterm)
    assert term.until == math.inf
    assert pause == faults.PauseOnce(at=10, lasts=5, ranks=(3,), phase="eval", alone=True)
    assert isinstance(rollout, faults.Rollout)
    assert [(each.at, each.until, each.node) for each in rollout.downs()][1:3] == [(110, 150, 1), (160, 200, 2)]
    assert rollout.until == 250
    assert isinstance(skew, faults.ClockSkew)
    assert skew.by == -40
    assert isinstance(gil, faults.Gil)
    assert [(each.rank, each.at, each.until) for each in gil.freezes()] == [(1, 180, 192), (2, 180, 192)]


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ("scrape: 2500ms", "story.yaml:5: `scrape` is 2.5 s; allowed: whole seconds"),
        ("loop: bare", "story.yaml:5: `loop` is 'bare'; allowed: one of marked, basic"),
        ("waits: some", "story.yaml:5: `waits` has the wrong form; allowed: all, none, a list"),
        ("waits: [8]", "story.yaml:5: rank 8 is outside the fleet; allowed: 0 to 7"),
        ("step: {stages: [1, 2]}", "story.yaml:5: `stages` has 2 factors; as many as the fleet's `pipeline`: 1"),
        ("step: {stages: [0]}", "story.yaml:5: `stages` is '0'; allowed: a number above 0"),
        (
            "faults: [{fault: sigterm, at: 1, ranks: all, requeued: 0}]",
            "story.yaml:5: `requeued` is '0'; allowed: a duration above 0",
        ),
        ("faults: [{fault: gil, at: 1, rank: 1}]", "story.yaml:5: `gil` needs exactly one size; give one of for"),
        (
            "faults: [{fault: stuck, at: 1, rank: 1, phase: checkpoint}]",
            "story.yaml:5: `stuck` in a run that saves no checkpoints; give",
        ),
        ("runs: [other]", "story.yaml:5: not a mapping; give what differs from the first run"),
        ("runs: [{lasts: 5m}]", "story.yaml:5: unknown key `lasts`; allowed: seed, fleet, loop"),
        ("runs: [{}]", "story.yaml:5: two runs are on GPU 0 of node-0; give one of them another"),
        ("runs: [{fleet: {first_node: 4, nodes: x}}]", "story.yaml:5: runs: `nodes` is 'x'; allowed: a whole number"),
    ],
)
def test_what_does_not_fit_is_told_with_its_line(tmp_path: Path, more: str, line: str) -> None:
    """File, line, what is wrong and what is allowed."""
    found = mistakes(tmp_path, GOOD + more + "\n")
    assert any(each.startswith(line) for each in found), found


RUNS = (
    GOOD
    + """\
seed: 7
faults:
  - {fault: exporter_down, at: 1m, node: node-00}
  - {fault: nan, at: 2m, rank: 1}
runs:
  - {fleet: {run: small, nodes: 1, first_gpu: 2}, faults: none}
  - {fleet: {first_node: 4, nodes: 9}, faults: [{fault: kill, at: 3m, node: node-12}]}
expect:
  - {alert: RankDead, receiver: page, within: 10s, of: 3, labels: {run: llama-70b, instance: node-12}}
"""
)


def test_other_runs_say_what_differs(tmp_path: Path) -> None:
    """As in `live`; nodes are numbered through the cluster, and `of` counts through all runs."""
    text = RUNS.replace("fault: kill, at: 3m, node: node-12", "fault: kill, at: 3m, rank: 17")
    told = read(tmp_path, text)
    small, twin = told.runs
    assert [run.fleet.run for run in told.every_run] == ["llama-70b", "small", "llama-70b"]
    assert [run.seed for run in told.every_run] == [7, 8, 9]
    assert (told.fleet.node_name(0), small.fleet.node_name(0), twin.fleet.node_name(0)) == (
        *("node-00", "node-00", "node-04"),
    )
    assert small.faults == ()
    assert small.fleet.gpu_of(1) == 3
    assert told.ranks == 8 + 2 + 18
    assert told.began(told.expect[0]) == 180


def test_a_mistake_in_another_run_says_so(tmp_path: Path) -> None:
    """A fault that it inherits and that does not fit it is reported where it stands."""
    text = RUNS.replace(", faults: none", "").replace("rank: 1}", "rank: 5}")
    assert mistakes(tmp_path, text.replace("fault: kill, at: 3m, node: node-12", "fault: kill, at: 3m, rank: 18")) == [
        "story.yaml:8: runs: rank 5 is outside the fleet; allowed: 0 to 1",
        "story.yaml:11: runs: rank 18 is outside the fleet; allowed: 0 to 17",
    ]


def test_a_limit_grows_with_the_intervals() -> None:
    """So does the scenario, where it would end before the limit."""
    late = Expected(alert="RankDead", receiver="page", within=10, plus_scrapes=3, plus_evaluations=2)
    story = Scenario(title="t", story="s", lasts=100, expect=(late,), faults=(faults.Kill(at=60, rank=0),))
    assert story.limit(late) == 10 + 15 + 10
    slower = story.at_intervals(30, 15)
    assert (slower.scrape, slower.evaluation, slower.limit(late)) == (30, 15, 130)
    assert slower.lasts == 195
    assert story.at_intervals(None, None).lasts == 100

"""Scenario files: they are read completely, and all mistakes are reported at once, with their lines."""

from __future__ import annotations

import pickle
from dataclasses import fields
from pathlib import Path
from textwrap import dedent

import pytest

from tachograph.findings.limits import LIMIT_NAMES
from tachograph_lab import checkout
from tachograph_lab.scenario import Fleet, Scenario, ScenarioError, faults, load
from tachograph_lab.scenario.definition import ScenarioLimits
from tachograph_lab.scenario.values import duration

GOOD = """\
title: A story
story: Something happens.
lasts: 10m
fleet: {nodes: 16}
checkpoint: {every: 5m, takes: 20s}
"""


def _load(folder: Path, text: str) -> Scenario:
    path = folder / "story.yaml"
    path.write_text(text)
    return load(path)


def _lines(folder: Path, text: str) -> list[str]:
    """Return the mistakes in a file, without the name of its folder."""
    with pytest.raises(ScenarioError) as caught:
        _load(folder, text)
    return [line.replace(f"{folder}/", "") for line in caught.value.lines]


def _with(*entries: str) -> str:
    return GOOD + "faults:\n" + "".join(f"  - {{{entry}}}\n" for entry in entries)


def test_a_whole_file(tmp_path: Path) -> None:
    """Every section is read into its dataclass, places by name, durations in seconds, numbers as people write them."""
    scenario = _load(
        tmp_path,
        dedent("""\
            incident: 4
            title: A story
            story: Something happens.
            seed: 7
            lasts: 1h30m
            fleet: {run: llama, tier: hero, nodes: 16, gpus_per_node: 4, tensor_parallel: 2}
            step: {data: 20ms, noise: 0}
            work: {tokens: 4_194_304, flops_per_token: 4.6e10}
            learning: {loss: {from: 9, to: 2}, rate: 3.0e-4}
            eval: {every: 2h, takes: 3m}
            faults:
              - {fault: slow_phase, at: 90, for: 2m, node: node-03, phase: data, factor: 2}
              - {fault: slow_collective, at: 5m, nodes: [node-15, node-02], adds: 4s, nic_errors: 5}
              - {fault: leak, at: 0, ranks: all, bytes_per_hour: 1e8}
            expect:
              - {alert: StragglerRank, receiver: page, within: 3m, of: 2, labels: {rank: "5"}, text: [thermal, "84"]}
            may: [{alert: NicErrorsRising, receiver: ticket}]
            """),
    )
    assert scenario.incident == 4
    assert scenario.lasts == 5400
    assert scenario.fleet == Fleet(run="llama", tier="hero", nodes=16, gpus_per_node=4, tensor_parallel=2)
    assert scenario.step.data == 0.02
    assert scenario.step.noise == 0
    assert scenario.work.tokens == 4194304
    assert (scenario.learning.loss.start, scenario.learning.loss.end) == (9, 2)
    assert scenario.checkpoint is None
    assert scenario.eval is not None
    assert scenario.eval.every == 7200
    first, second, third = scenario.faults
    assert first == faults.SlowPhase(at=90, lasts=120, ranks=(12, 13, 14, 15), phase="data", factor=2)
    assert second == faults.SlowCollective(at=300, nodes=(2, 15), adds=4, nic_errors=5)
    assert isinstance(third, faults.Leak)
    assert len(third.ranks) == 64
    assert scenario.expect[0].labels == {"rank": "5"}
    assert scenario.expect[0].text == ("thermal", "84")
    assert pickle.loads(pickle.dumps(scenario)) == scenario  # it goes to other processes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90", 90), ("90s", 90), ("12m", 720), ("1h30m", 5400), ("200ms", 0.2), ("1d", 86400)],
)
def test_durations(text: str, seconds: float) -> None:
    """A duration is a number of seconds, or numbers with units."""
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["-3", "3 m", "m", "1h30", "", "inf", "nan"])
def test_what_is_no_duration(text: str) -> None:
    """No sign, no space, no missing unit in the middle, nothing infinite."""
    with pytest.raises(ValueError, match="a duration"):
        duration(text)


@pytest.mark.parametrize(("nodes", "name"), [(2, "node-1"), (10, "node-1"), (11, "node-01"), (128, "node-001")])
def test_node_names_are_as_wide_as_the_widest(nodes: int, name: str) -> None:
    """Names sort as numbers do: node-0 to node-9, but node-00 to node-10."""
    assert Fleet(nodes=nodes).node_name(1) == name


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("fault: throtle, at: 1m", "unknown fault `throtle`; allowed: throttle, ecc"),
        ("at: 1m, rank: 3", "`fault` is missing; allowed: throttle"),
        ("fault: freeze, at: 1m, rank: 128", "rank 128 is outside the fleet; allowed: 0 to 127"),
        ("fault: link_down, at: 1m, node: node-3", "node node-3 is outside the fleet; allowed: node-00 to node-15"),
        ("fault: freeze, at: 1m", "`freeze` needs exactly one place; give one of rank"),
        ("fault: freeze, at: 1m, rank: [3, 4]", "rank a list is outside the fleet; allowed: 0 to 127"),
        ("fault: freeze, rank: 3", "`at` is missing; it is required"),
        ("fault: freeze, at: -1m, rank: 3", "`at` is '-1m'; allowed: a duration"),
        ("fault: freeze, at: 1m, for: 0, rank: 3", "`for` is '0'; allowed: a duration above 0"),
        (
            "fault: freeze, at: 10m, rank: 3",
            "`freeze` begins at 600 s, after the scenario's end; allowed: before",
        ),
        ("fault: kill, at: 1m, for: 1m, rank: 3", "unknown key `for`; allowed: fault, at, cause, others, rank"),
        ("fault: throttle, at: 1m, rank: 3, to: 80 %", "`to` is '80 %'; allowed: a share above 0 and below 1"),
        ("fault: throttle, at: 1m, rank: 3, to: 0.8, cause: dust", "`cause` is 'dust'; allowed: one of thermal"),
        (
            "fault: slow_phase, at: 1m, rank: 3, phase: data",
            "`slow_phase` needs exactly one size; give one of factor",
        ),
        ("fault: slow_phase, at: 1m, rank: 3, phase: init, adds: 1", "`phase` is 'init'; allowed: one of data, copy"),
        ("fault: xid, at: 1m, rank: 3, number: x", "`number` is 'x'; allowed: a whole number of at least 1"),
        ("fault: loss_spike, at: 1m, by: 1, recovers: maybe", "`recovers` is 'maybe'; allowed: true or false"),
    ],
)
def test_a_wrong_fault_is_told_with_its_line(tmp_path: Path, fault: str, what: str) -> None:
    """File, line, what is wrong and what is allowed."""
    lines = _lines(tmp_path, _with("fault: nan, at: 2m, rank: 1", fault))
    assert any(line.startswith(f"story.yaml:8: {what}") for line in lines), lines


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        (
            "kill, at: 2m, rank: 3",
            "kill, at: 3m, rank: 3",
            "`kill` at 180 s contradicts `kill` at 120 s: both set the process of",
        ),
        ("freeze, at: 1m, for: 3m, rank: 3", "kill, at: 3m, rank: 3", "`kill` at 180 s contradicts `freeze` at 60 s"),
        (
            "stuck, at: 4m, rank: 9, phase: data",
            "node_down, at: 2m, node: node-01",
            "`node_down` at 120 s contradicts `stuck`",
        ),
        (
            "exporter_down, at: 2m, node: node-01",
            "scrape_blocked, at: 3m, node: node-01",
            "both set the reach of node 1",
        ),
        (
            "slow_loader, at: 2m, adds: 1",
            "slow_phase, at: 3m, rank: 2, phase: data, adds: 1",
            "both set the run's phase data",
        ),
        ("loss_spike, at: 2m, by: 1, recovers: false", "nan, at: 3m, rank: 5", "both set the run's loss"),
        ("slow_checkpoint, at: 1m, takes: 2m", "no_checkpoint, at: 2m", "both set the run's checkpoint"),
        (
            "planned_restart, at: 1m, takes: 2m",
            "restart_loop, at: 2m, every: 1m, attempts: 3",
            "both set the run's attempt",
        ),
        ("finish, at: 3m", "finish, at: 4m", "the run finishes twice"),
        ("finish, at: 3m", "nan, at: 4m, rank: 1", "after the run has finished"),
    ],
)
def test_contradictions(tmp_path: Path, first: str, second: str, what: str) -> None:
    """Two faults that set the same quantity at the same place and time are reported, whatever their order."""
    lines = _lines(tmp_path, _with(f"fault: {first}", f"fault: {second}"))
    assert any(what in line for line in lines), lines
    assert _lines(tmp_path, _with(f"fault: {second}", f"fault: {first}"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("freeze, at: 1m, for: 1m, rank: 3", "kill, at: 2m, rank: 3"),
        ("kill, at: 1m, rank: 3", "kill, at: 2m, rank: 4"),
        ("kill, at: 1m, rank: 3", "planned_restart, at: 2m, takes: 1m"),
        ("slow_phase, at: 1m, rank: 3, phase: data, adds: 1", "slow_phase, at: 1m, rank: 3, phase: forward, adds: 1"),
        ("loss_spike, at: 1m, by: 1", "loss_spike, at: 2m, by: 1"),
        ("xid, at: 1m, rank: 3, number: 79", "gpu_lost, at: 1m, rank: 3"),
        ("scrape_failure, at: 1m, node: node-01, every: 1m", "exporter_down, at: 3m, node: node-01"),
    ],
)
def test_what_goes_together(tmp_path: Path, first: str, second: str) -> None:
    """Faults one after the other, at different places, or of different quantities do not contradict each other."""
    assert len(_load(tmp_path, _with(f"fault: {first}", f"fault: {second}")).faults) == 2


def test_a_restart_brings_a_process_back(tmp_path: Path) -> None:
    """A rank can be killed in each attempt, once."""
    entries = (
        "fault: kill, at: 1m, rank: 3",
        "fault: planned_restart, at: 2m, takes: 1m",
        "fault: kill, at: 4m, rank: 3",
    )
    assert len(_load(tmp_path, _with(*entries)).faults) == 3


@pytest.mark.parametrize(
    ("expect", "what"),
    [
        (
            "alert: StraglerRank, receiver: page, within: 1m",
            "unknown alert `StraglerRank`; the rules have: AmpSkippingSteps",
        ),
        ("alert: RankDead, receiver: pager, within: 1m", "unknown receiver `pager`; alertmanager.yml has: "),
        ("alert: TachographWatchdog, receiver: watchdog, within: 1m", "unknown receiver `watchdog`"),
        ("alert: RankDead, receiver: page", "`within` is missing; it is required"),
        ("alert: RankDead, receiver: page, within: 1m, of: 2", "there is no fault 2; allowed: 0 to 1"),
        ("alert: RankDead, receiver: page, within: 9m", "the scenario ends after 600 s, before RankDead is due"),
        ('alert: RankDead, receiver: page, within: 1m, labels: {rank: "200"}', "rank 200 is outside the fleet"),
        (
            "alert: RankDead, receiver: page, within: 1m, labels: {instance: node-1}",
            "instance node-1 is outside the fleet",
        ),
        (
            "alert: RankDead, receiver: page, within: 1m, labels: {run: other}",
            "unknown run `other`; allowed: llama-70b",
        ),
        (
            "alert: RankDead, receiver: page, within: 1m, text: dead",
            "`text` has the wrong form; allowed: a list of texts",
        ),
    ],
)
def test_a_wrong_expectation(tmp_path: Path, expect: str, what: str) -> None:
    """Alerts are those of the shipped rules, receivers those of the shipped Alertmanager, names those of the fleet."""
    lines = _lines(tmp_path, _with("fault: kill, at: 2m, rank: 3") + f"expect:\n  - {{{expect}}}\n")
    assert [line for line in lines if line.startswith(f"story.yaml:9: {what}")], lines


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    """Unknown keys, wrong values, places and contradictions together, in the order of their lines, each once."""
    lines = _lines(
        tmp_path,
        dedent("""\
            titel: A story
            story: Something happens.
            lasts: 10m
            fleet: {nodes: 4}
            step: {data: -3}
            faults:
              - {fault: kill, at: 2m, rank: 32}
              - {fault: freeze, at: 3m, rank: 3}
              - {fault: kill, at: 4m, rank: 3}
            """),
    )
    assert [line.split(": ", 1)[0] for line in lines] == [
        *("story.yaml:1", "story.yaml:1", "story.yaml:5", "story.yaml:7", "story.yaml:9")
    ]
    assert lines[0].startswith("story.yaml:1: `title` is missing; it is required")
    assert lines[1].startswith("story.yaml:1: unknown key `titel`; allowed: incident, title, story")


def test_what_is_no_scenario_at_all(tmp_path: Path) -> None:
    """No file, not YAML, not a mapping: one line each, no traceback."""
    with pytest.raises(ScenarioError, match="cannot be read"):
        load(tmp_path / "none.yaml")
    assert _lines(tmp_path, "title: [")[0].startswith("story.yaml:1: not YAML")
    assert _lines(tmp_path, "- 1\n")[0].startswith("story.yaml:1: not a mapping; allowed: incident, title")
    assert _lines(tmp_path, "")[0].startswith("story.yaml:1: not a mapping")


def test_every_fault_is_documented() -> None:
    """Its line in docs/scenarios.md has its word, its keys and its effect."""
    rows = {
        line.split("`")[1]: line
        for line in (checkout.root() / "docs" / "scenarios.md").read_text().splitlines()
        if line.startswith("- `") and line.split("`")[1] in faults.FAULTS
    }
    assert sorted(rows) == sorted(faults.FAULTS)
    for word, kind in faults.FAULTS.items():
        keys = [part.name for part in fields(kind) if part.name not in ("at", "lasts")]
        assert [key for key in keys if f"`{key}`" not in rows[word]] == [], word
        assert ("`for`" in rows[word]) == kind.lasting, word


def test_live_replaces_what_it_names(tmp_path: Path) -> None:
    """Mappings are merged key by key, lists replaced, `none` removes a section; everything else stays."""
    scenario = _load(
        tmp_path,
        _with("fault: kill, at: 2m, rank: 100")
        + "live: {lasts: 5m, fleet: {nodes: 2}, checkpoint: none, faults: [{fault: kill, at: 1m, rank: 3}]}\n",
    )
    live = scenario.for_live()
    assert (live.lasts, live.fleet.nodes, live.fleet.run, live.checkpoint) == (300, 2, "llama-70b", None)
    assert live.faults == (faults.Kill(at=60, rank=3),)
    assert scenario.faults == (faults.Kill(at=120, rank=100),)
    assert live.live is None


def test_what_is_wrong_only_live_says_so(tmp_path: Path) -> None:
    """A rank that the smaller fleet does not have, and a title, which `live` cannot change."""
    lines = _lines(tmp_path, _with("fault: kill, at: 2m, rank: 100") + "live: {title: x, fleet: {nodes: 2}}\n")
    assert lines == [
        "story.yaml:7: live: rank 100 is outside the fleet; allowed: 0 to 15",
        "story.yaml:8: `live` cannot change `title`; remove it",
    ]


def test_a_story_without_live_cannot_be_replayed_live(tmp_path: Path) -> None:
    """It says what to add."""
    with pytest.raises(ScenarioError, match="add a `live:` section"):
        _load(tmp_path, GOOD).for_live()


def test_a_run_may_set_every_limit_there_is(tmp_path: Path) -> None:
    """The section has the names of the table, and its ranges; only limits that are set are sent."""
    assert tuple(part.name for part in fields(ScenarioLimits)) == LIMIT_NAMES
    assert ScenarioLimits(hang_seconds=600.0).set() == {"hang_seconds": 600.0}
    given = _load(tmp_path, GOOD + "thresholds: {hang_seconds: 1h}\nsite_limits: {straggler_ratio: 0.3}\n")
    assert (given.thresholds.set(), given.site_limits.set()) == ({"hang_seconds": 3600.0}, {"straggler_ratio": 0.3})
    (line,) = _lines(tmp_path, GOOD + "site_limits: {hang_seconds: 5s}\n")
    assert line.endswith("allowed: a number of seconds from 10 to 86400")

"""From made-up answers of Prometheus to the finding: branches that no story has, gaps, and hostile names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tachograph.servers.prometheus_api import QueryRefusedError, TimeSeries
from tachograph.triage import incident, text
from tachograph.triage.conclusion import conclude
from tachograph.triage.facts import Facts, gather
from tachograph.triage.findings import Triage
from tachograph.triage.modes import MODES, next_commands
from tachograph.triage.queries import TEMPLATES, filled

RUN, NOW = "llama-7b", 1_790_000_000.0
Row = tuple[Mapping[str, str], float]

HEALTHY: Mapping[str, list[Row]] = {
    "figures": [
        ({"__name__": "run:ranks:count"}, 16),
        ({"__name__": "run:train_step:max"}, 4000),
        ({"__name__": "run:progress_age_seconds:min"}, 0.5),
        ({"__name__": "run:step_interval_seconds:p50"}, 1.0),
        ({"__name__": "run:loss:median"}, 2.31),
        ({"__name__": "run:checkpoint_age_seconds:min"}, 900),
    ],
    "states": [({"state": "running"}, 16)],
    "world_size": [({}, 16)],
    "nodes": [({"instance": "node-0"}, 1), ({"instance": "node-1"}, 1)],
    "answering": [({}, 2)],
}


def alert(name: str, severity: str = "critical", since: float = 60, **labels: str) -> Row:
    """Return the answer for an alert that has fired for so many seconds."""
    return {"alertname": name, "severity": severity, "run": RUN, **labels}, NOW - since


def triage(*alerts: Row, **rows: list[Row]) -> Triage:
    """Return the conclusion from a healthy run's answers, some replaced."""
    given = {**HEALTHY, "alerts": list(alerts), **rows}
    return conclude(Facts(RUN, NOW, {name: list(_series(one)) for name, one in given.items()}))


def _series(rows: list[Row]) -> Iterator[TimeSeries]:
    for labels, value in rows:
        yield TimeSeries(labels, ((NOW, value),))


def said(*alerts: Row, **rows: list[Row]) -> tuple[str, str, str]:
    finding = triage(*alerts, **rows).finding
    return finding.severity, finding.category, finding.mode


def test_what_is_lost_between_steps_is_evidence() -> None:
    """Saves that take a fifth of the time make no step slower, and are too short for an alert."""
    found = triage(lost=[({"cause": "checkpoint"}, 0.18)])
    (speed,) = [one for one in found.answers if one.name == "speed"]
    assert "18% of the last half hour was lost to checkpoint" in speed.evidence


RANK = {"rank": "5", "instance": "node-0", "gpu": "5", "uuid": "GPU-5"}


def test_nothing_is_wrong() -> None:
    """A healthy run has a yes or an unknown at each question, and costs nothing."""
    found = triage()
    assert (found.finding.severity, found.finding.category, found.finding.words) == ("none", "none", "nothing is wrong")
    assert {one.answer for one in found.answers} == {"yes", "unknown"}
    assert found.lost_share is None
    lines = text.lines(found, next_commands(found.finding.mode, {"run": RUN}), 200)
    assert lines[1] == "ok: nothing is wrong"
    assert "Next:" not in lines


def test_a_run_that_stands_still_makes_no_steps_and_is_not_fast() -> None:
    """Long before it is a hang, and where the hang has another name: a frozen rank."""
    standing = [
        *HEALTHY["figures"],
        ({"__name__": "run:stalled_seconds:min"}, 27.0),
        ({"__name__": "run:step_mfu:ratio"}, 0.4),
    ]
    answers = {one.name: one for one in triage(alert("RankFrozen", **RANK), figures=standing).answers}
    assert (answers["progress"].answer, answers["speed"].answer) == ("no", "unknown")
    pausing = [*HEALTHY["figures"], ({"__name__": "run:stalled_seconds:min"}, 3.0)]
    answers = {one.name: one for one in triage(figures=pausing).answers}
    assert answers["progress"].answer == "yes"


def test_a_late_rank_is_no_slow_network_and_nobody_takes_turns() -> None:
    """The others wait for it, which shows as communication."""
    rows = {
        "late": [(RANK, 0.29)],
        "turns": [({"phase": "forward"}, 0.02)],
        "slow_cause": [({"cause": "communication"}, 1.0)],
    }
    speed = next(one for one in triage(alert("StragglerRank", **RANK), **rows).answers if one.name == "speed")
    assert speed.evidence == ("rank 5 (node-0, GPU 5) is late by 29% of the step, and the others wait for it",)


def test_a_page_is_above_every_ticket_and_a_cause_above_what_follows() -> None:
    """A ticket of an earlier row does not hide a page; of pages the row that explains most is the finding."""
    nic = alert("NicErrorsRising", "warning", run="", instance="node-1")
    assert said(nic, alert("MfuDropped"))[2] == "slow_steps"
    found = triage(alert("RunHung", **RANK), alert("RankDead", **RANK), alert("CheckpointStale", "warning"))
    assert found.finding.mode == "rank_died"
    assert found.also == ["RunHung (critical): rank 5 (node-0, GPU 5)", "CheckpointStale (warning)"]
    assert {one.name for one in found.answers if one.answer == "no"} == {"alive", "progress", "checkpoints"}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("oom_kill", ("page", "out_of_memory", "out_of_memory")),
        ("nfs", ("page", "storage", "rank_died")),
        ("memory_failure", ("page", "hardware", "rank_died")),
        ("segfault", ("page", "software", "rank_died")),
    ],
)
def test_the_kernel_says_why_a_rank_died(kind: str, expected: tuple[str, str, str]) -> None:
    """What the kernel logged on a node of the run is nearer than a rank that is gone."""
    kernel = [({"kind": kind, "instance": "node-0", "text": "the message"}, 12.0)]
    assert said(alert("RankDead", **RANK), kernel=kernel) == expected


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("oom", ("out_of_memory", "out_of_memory")),
        ("data", ("data", "rank_failed")),
        ("nonfinite", ("numerical", "rank_failed")),
        ("exception", ("software", "rank_failed")),
    ],
)
def test_a_rank_says_why_it_failed(reason: str, expected: tuple[str, str]) -> None:
    """The reason of the rank that is named counts, not those of its peers, which failed because of it."""
    first = ({**RANK, "reason": reason, "kind": "failed"}, NOW - 70)
    peer = ({"rank": "6", "instance": "node-0", "reason": "collective", "kind": "communication"}, NOW - 69)
    assert said(alert("RankFailed", **RANK), first_ends=[peer, first])[1:] == expected


def test_ends_of_an_earlier_attempt_do_not_count() -> None:
    """Who ended an hour ago did not end this attempt."""
    before = ({"rank": "3", "instance": "node-1", "reason": "oom", "kind": "failed"}, NOW - 3000)
    now = ({**RANK, "reason": "exception", "kind": "failed"}, NOW - 300)
    found = triage(alert("RunDown"), first_ends=[before, now], states=[({"state": "failed"}, 16)]).finding
    assert (found.category, found.ranks) == ("software", ("5",))


def test_communication_with_its_nodes_and_ports() -> None:
    """A slower step is communication where that part grew, behind the nodes that stand out."""
    found = triage(
        alert("MfuDropped"),
        slow_cause=[({"cause": "communication"}, 1)],
        slow_nodes=[({"instance": "node-0"}, 1), ({"instance": "node-1"}, 1)],
        nic_error_rate=[({"instance": "node-1"}, 20)],
        nic_errors=[({"instance": "node-1", "device": "mlx5_0", "error": "symbol"}, 6000)],
        speed_loss=[({"unit": "mfu"}, 0.37)],
    )
    assert found.finding.words == (
        "network: collectives are slow, 2 nodes behind what they share: node-0, node-1; NIC errors rising on 1 "
        "of them (symbol)"
    )
    assert found.lost_share == 0.37
    assert found.lost_hours == pytest.approx(0.37 * 16 / 60)


@pytest.mark.parametrize(("cause", "category"), [("data", "data"), ("compute", "compute"), ("", "compute")])
def test_a_slower_step_by_the_part_that_grew(cause: str, category: str) -> None:
    """Without nodes that stand out, too."""
    assert said(alert("ThroughputDropped"), slow_cause=[({"cause": cause}, 1)] if cause else [])[1] == category


def test_a_hang_without_a_culprit() -> None:
    """Where ranks are missing, it is they; where none stands out, what all share."""
    standing = [({"__name__": "run:overdue_seconds:min"}, 90.0), ({"__name__": "run:progress_age_seconds:min"}, 90.0)]
    hung = triage(alert("RunHung"), figures=standing)
    assert (hung.finding.category, hung.lost_share) == ("network", 1.0)
    missing = [*standing, ({"__name__": "run:ranks_missing:count"}, 1.0)]
    assert said(alert("RunHung"), figures=missing)[1] == "software"
    unseen = [({"instance": "node-1"}, 100.0)]
    assert said(alert("RunHung"), figures=missing, of_nodes_unseen=unseen)[1] == "monitoring"


def test_a_role_that_waits_for_another_says_for_which() -> None:
    """It has no page of its own: that is of the role that hangs."""
    standing = [({"__name__": "run:overdue_seconds:min"}, 90.0), ({"__name__": "run:progress_age_seconds:min"}, 90.0)]
    found = triage(figures=standing, waits_for=[({"run": "ppo/critic", "of": "ppo"}, 1.0)])
    evidence = text.lines(found, (), 200)
    assert any("it waits for ppo/critic, which hangs" in line for line in evidence)


def test_a_frozen_rank_in_the_kernel_waits_for_a_disk() -> None:
    """State D is storage; all at once is the scheduler."""
    frozen = [({**RANK, "phase": "checkpoint", "pid": "4242", "process": "D"}, 40.0)]
    found = triage(alert("RankFrozen", **RANK), frozen=frozen).finding
    assert (found.category, found.pid) == ("storage", "4242")
    assert said(alert("RankFrozen"))[1:] == ("preemption", "suspended")


def test_a_message_of_another_nodes_kernel_does_not_count() -> None:
    """The node of the rank that died is known."""
    kernel = [({"kind": "oom_kill", "instance": "node-1", "text": "the message"}, 12.0)]
    assert said(alert("RankDead", **RANK), kernel=kernel) == ("page", "software", "rank_died")


def test_late_ranks_of_which_none_is_named() -> None:
    """In turns, by the phase in which they are late; or a crowd, which shares something."""
    turns = [({"phase": "forward"}, 0.02)]
    assert said(alert("StragglerRank", "warning"), turns=turns) == ("ticket", "compute", "uneven_work")
    assert said(alert("StragglerRank")) == ("page", "compute", "straggler")


def test_a_plateau_has_its_usual_reasons() -> None:
    """A loss that stands still is no fault by itself: the evidence says so, and where the rate is."""
    figures = [*HEALTHY["figures"], ({"__name__": "run:learning_rate:max"}, 3e-6)]
    found = triage(
        figures=figures,
        loss_lowest=[({}, 2.3)],
        loss_lowest_before=[({}, 2.3)],
        rate_before=[({}, 3e-4)],
    )
    assert not found.finding.wrong
    learning = next(one for one in found.answers if one.name == "learning")
    assert any("1% of the highest" in line for line in learning.evidence)
    assert any("a rate that decayed" in line for line in learning.evidence)
    assert said(alert("LearningRateStuck", "warning")) == ("ticket", "configuration", "plateau")


@pytest.mark.parametrize(
    ("rows", "severity", "mode"),
    [
        ({"states": [], "figures": [], "ended": [({"outcome": "finished"}, NOW - 60)]}, "none", "ended"),
        ({"states": [], "figures": [], "ended": [({"outcome": "terminated"}, NOW - 60)]}, "info", "preempted"),
        ({"states": [], "figures": []}, "none", "no_data"),
        ({"figures": []}, "none", "starting"),
    ],
)
def test_runs_of_which_no_alert_fires(rows: dict[str, list[Row]], severity: str, mode: str) -> None:
    """A run that has ended, was asked to end, has not begun, or is not known at that time."""
    finding = triage(**rows).finding
    assert (finding.severity, finding.mode) == (severity, mode)


def test_an_alert_of_the_site_itself() -> None:
    """An alert that we do not ship is named, after ours."""
    assert said(alert("DiskOnFire"))[2] == "other"
    assert said(alert("DiskOnFire"), alert("RunHung", **RANK))[2] == "communication_stall"


def test_every_evidence_survives_what_is_missing() -> None:
    """Series without the labels that are expected, and numbers that are none, fail no question."""
    odd: dict[str, list[Row]] = {name: [({"__name__": "run:loss:median"}, float("nan"))] for name in TEMPLATES}
    odd["of_gpus"] = [({"__name__": "node:gpu_lost:info"}, 1.0)]
    odd["alerts"] = []
    found = conclude(Facts(RUN, NOW, {name: list(_series(rows)) for name, rows in odd.items()}))
    assert len(found.answers) == 12


def test_a_query_that_is_refused_costs_itself_alone() -> None:
    """It is a remark; without the alerts there is no conclusion."""

    def ask(query: str) -> list[TimeSeries]:
        if "queue_size" in query:
            raise QueryRefusedError("too many samples")
        return []

    facts = gather(RUN, NOW, ask)
    assert conclude(facts).remarks == ["not known: queue: too many samples"]

    def refuse(_: str) -> list[TimeSeries]:
        raise QueryRefusedError("too many samples")

    with pytest.raises(QueryRefusedError):
        gather(RUN, NOW, refuse)


def test_the_cost_in_words() -> None:
    """GPU-hours since it began, and how many more every hour."""
    standing = [({"__name__": "run:overdue_seconds:min"}, 90.0), ({"__name__": "run:progress_age_seconds:min"}, 90.0)]
    found = triage(alert("RunHung", since=1800, **RANK), figures=standing)
    lines = text.lines(found, next_commands(found.finding.mode, {"run": RUN}), 200)
    assert "  about 8 GPU-hours lost so far, 16 more every hour" in lines
    assert lines[-6].startswith("  1. tachograph blackbox capture llama-7b; ")


def test_hostile_names_stay_names() -> None:
    """A run's name is quoted in queries and commands, and shown without control characters."""
    run = 'a"}\n$nodes;rm -rf /'
    assert filled(run, "x{$run}") == 'x{run="a\\"}\\n$nodes;rm -rf /"}'
    found = conclude(Facts(run, NOW, {}))
    commands = next_commands("communication_stall", {"run": run})
    assert "'a\"}\n$nodes;rm -rf /'" in commands[0].command
    assert not any("\n" in line for line in text.lines(found, commands, 80))


def test_names_like_options_are_operands_of_the_commands() -> None:
    """They are pasted into a shell: a name that is an option there would send its questions, or a login, elsewhere."""
    known = {"run": "--prometheus=http://a", "node": "-oProxyCommand=x", "rank": "1", "pid": "2", "gpu": "0"}
    commands = [one.command for mode in MODES for one in next_commands(mode, known)]
    assert {"tachograph top --once -- --prometheus=http://a", "ssh -- -oProxyCommand=x nvidia-smi"} <= {*commands}
    bare = r"(?<!-- )(?<!=)(?<!-Fe )'?(?:--prometheus=|-oProxy)"
    assert [command for command in commands if re.search(bare, command)] == []


def test_names_are_no_markup_of_a_record(tmp_path: Path) -> None:
    """It is read where Markdown is rendered: a name makes no link, loads no picture and is no tag."""
    run = "[a](http://x/y) ![b](//x/p.png) <img src=x onerror=y> `c`"
    incident.write(tmp_path / "record.md", conclude(Facts(run, NOW, {})), (), None)
    made = (tmp_path / "record.md").read_text(encoding="utf-8")
    assert r"\[a\](http://x/y) !\[b\](//x/p.png) &lt;img" in made
    assert not re.search(r"(?<!\\)[\[\]`]|<", made)

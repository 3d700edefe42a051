"""The dashboard "Incident": one run, one window, everything that happened on one time axis."""

from __future__ import annotations

import shell
from absences import NO_LOSS, NO_MFU, NO_RANK
from condition import CONDITION, CONDITION_WORDS
from culprits import (
    error_heat,
    lag_heat,
    named_ones,
    node_heat,
    node_table,
    phases_over_time,
    rank_table,
    ranks_by_phase,
)
from panels import (
    BASELINE,
    BLUE,
    CAUSES,
    ORANGE,
    SEVERITIES,
    SPIKE,
    UNITS,
    Json,
    coloured,
    lines,
    named,
    override,
    query,
    row,
    table,
    timeline,
    words,
)
from series import HERE, firing, of_cluster, of_nodes_alone, of_run, own, stepping
from shell import RUNBOOK_LINK, SAME, field, link
from tachograph.catalog import index as c

ROWS = 25  # of a timeline: more than that nobody reads
WIDE = {"w": 24, "axis": 240}
"""The place of a panel over time: with equally many pixels to the left of each, the same moments line up."""

GRADES = dict(enumerate(reversed(SEVERITIES), start=1))  # 1 info, 2 warning, 3 critical
GRADE_WORDS = [
    {
        "type": "value",
        "options": {str(code): {"text": word, "color": SEVERITIES[word]} for code, word in GRADES.items()},
    }
]

EVENTS = (
    ("nodes down", "node:down_seconds:max"),
    ("exporters silent", "node:exporter_unseen_seconds:max"),
    ("GPUs off the bus", "node:gpu_lost:info"),
    ("GPUs with a hung driver", "node:gpu_hung:info"),
    ("GPUs with a fatal Xid", "node:gpu_xid_fatal_timestamp_seconds:max"),
    ("GPUs with uncorrected ECC errors", "node:gpu_ecc_uncorrected:max"),
    ("GPUs slowed by heat", "node:gpu_thermal_slowdown:ratio"),
    ("GPUs slowed by the power brake", "node:gpu_power_braked:ratio"),
    ("GPUs clocked below their peers", "node:gpu_clock_of_peers:ratio"),
    ("GPUs with NVLinks down", "node:gpu_nvlink_links_down:count"),
    ("GPUs with NVLink errors", "node:gpu_nvlink_errors_per_minute:mean5m"),
    ("network ports down", "node:nic_down_seconds:max"),
    ("nodes with network errors", "node:nic_errors:rate2m"),
)
"""What the rules see of a machine, present only while it is so -> how its count is named; the worst first."""


def graded(labels: str) -> str:
    """Return what fires by these labels: 3 critical, 2 warning, 1 info."""
    return f" or on ({labels}) ".join(
        f"group by ({labels}) ({firing(severity=word)}) * {code}" for code, word in reversed(GRADES.items())
    )


def alert_table() -> Json:
    """Return every alert of the window in the order in which they began: what came first is often the cause."""
    # Only of moments at which it fired: an alert that was pending for a while an hour before did not begin then.
    firing_since = " or ".join(
        f"min_over_time(({select('ALERTS_FOR_STATE')} and ignoring (alertstate) "
        f"{select('ALERTS', alertstate='firing')})[$__range:5s])"
        for select in (of_run, of_nodes_alone)
    )
    began = f"({firing_since}) and ignoring (alertstate) {firing(over='$__range')}"
    columns = {"Value": "Since", "severity": "Severity", "alertname": "Alert", "rank": "Rank", "instance": "Node"}
    return table(
        "Alerts of this window, in order",
        "Every alert that fired for this run or its nodes within the window, the first one on top: it is often the "
        "cause, and those that follow are its consequences. Empty is good. A click on an alert opens its runbook.",
        [query(f"bottomk({2 * ROWS}, 1000 * ({began}))", table=True)],
        "Nothing fired in this window.",
        columns | {"gpu": "GPU"},
        overrides=[
            override("Since", unit="dateTimeAsIso", custom__width=160),
            words("Severity", SEVERITIES, custom__width=80),
            override("Alert", links=[RUNBOOK_LINK]),
            override("Rank", links=[link("This rank", "ranks", run=SAME, rank=field("Rank"))], custom__width=60),
            override("Node", links=[link("Node and GPUs", "node", run=SAME, instance=field("Node"))]),
            override("GPU", custom__width=55),
        ],
        sort=[{"displayName": "Since", "desc": False}],
        w=24,
        h=7,
    )


def what_happened() -> list[Json]:
    """Return the run's state, its alerts, attempts and pauses, and what the machines had, one above the other."""
    attempts = f"count by (attempt) (group by (attempt, rank) ({own(of_run(c.RANK_INFO))}))"
    named_alerts = f"topk({ROWS}, {graded('alertname, rank, instance')})"
    apart = f"count by (phase) ({of_run(c.RANK_PHASE, phase='|'.join(c.PAUSES))})"
    return [
        timeline("State of the run", "none", "The worst condition that holds for any rank. Green throughout is good. "
                 "Where it changes, the alerts below show why, from that moment on.", [query(CONDITION, "run")],
                 NO_RANK, mappings=CONDITION_WORDS, h=4, **WIDE),
        named_ones(**WIDE),
        timeline("Alerts by node and rank", "none", "What fired for the run or its nodes, which node and rank it "
                 "named, and from when to when: red is critical, orange a warning, blue is information. None is good. "
                 "Start with the row that begins first; what stays longest is what to replace.",
                 [query(f'label_replace({named_alerts}, "who", ", rank $1", "rank", "(.+)")',
                        "{{alertname}} {{instance}}{{who}}")],
                 "nothing fired", mappings=GRADE_WORDS, shown=firing(), h=7, **WIDE),
        timeline("Attempts, checkpoints and evaluations", "none", "How many ranks an attempt has, and how many start "
                 "up, save or evaluate. One attempt throughout, with short saves, is good. A new attempt is a restart.",
                 [query(attempts, "attempt {{attempt}}"), query(apart, "{{phase}}")], NO_RANK,
                 color={"mode": "fixed", "fixedColor": BLUE}, shown=of_run(c.RUN_RANKS), h=5, **WIDE),
        timeline("Hardware events", "none", "How many GPUs or nodes of the run are affected, as the rules see it. None "
                 "is good. What begins before the run slows down or stops is the likely cause: the tables name it.",
                 [named({text: f"count({of_cluster(name)} and {HERE}) > 0" for text, name in EVENTS})],
                 "no hardware event in this window", shown=" or ".join(of_cluster(name) for _, name in EVENTS),
                 color={"mode": "fixed", "fixedColor": ORANGE}, h=5, **WIDE),
    ]  # fmt: skip


def what_it_cost() -> list[Json]:
    """Return speed, loss and waste on the same axis."""
    spiking = f"{of_run('run:loss:median')} and on (run) {of_run('run:loss_spike_steps:median')} > 0"
    return [
        lines("MFU", UNITS["ratio"], "Model FLOP/s of completed steps as a share of the peak, and the same in the hour "
              "before. On the dashed line is good. Where it falls below the line, money is being lost.",
              [query(stepping(of_run("run:step_mfu:ratio")), "completed steps"),
               query(of_run("run:step_mfu:baseline"), "baseline")],
              NO_MFU, overrides=[BASELINE], min=0, h=6, **WIDE),
        ranks_by_phase(h=6, **WIDE),
        lines("Loss", "none", "Median training loss over ranks; red points: a spike goes on. Falling is good. A jump "
              "after a restart or a new learning rate: compare with the rows above.",
              [query(of_run("run:loss:median"), "loss"), query(spiking, "spike")], NO_LOSS,
              overrides=[SPIKE], h=6, **WIDE),
        lines("GPUs lost, by cause", "locale", "Time that brought no new work, measured in GPUs: GPU-hours lost per "
              "hour. Near 0 is good, except for collectives, which are part of how a run is built.",
              [query(f"{of_run('run:lost_seconds:rate2m')} > 0", "{{cause}}")], "not accounted yet", stack=True,
              overrides=coloured(CAUSES), min=0, h=6, **WIDE),
        lines("Age of the last checkpoint", UNITS["seconds"], "What a failure would have cost at each moment. A "
              "regular sawtooth is good. A tooth that keeps growing: saving has stopped.",
              [query(of_run("run:checkpoint_age_seconds:min"), "age")], "no checkpoint reported", min=0, h=6, **WIDE),
    ]  # fmt: skip


def supervisor() -> list[Json]:
    """Return what a supervisor decided, and what its restarts cost."""
    return [
        lines("Decisions of the supervisor", "none", "What tachograph supervise did, would have done in shadow mode, "
              "asked for or held back, in all; right and wrong: what became of what it would have done. Level is "
              "good. Each rise is a decision: tachograph supervise history says why.",
              [query(f"sum by (action, outcome) ({of_run(c.SUPERVISOR_ACTIONS)})", "{{action}}: {{outcome}}")],
              "no supervisor, or nothing decided", min=0, h=5, **WIDE),
        lines("Restarts by the supervisor", UNITS["seconds"], "How long the run took from the failure to the next "
              "step when its supervisor last restarted it; in all, how many steps were made again and how many "
              "GPU-hours were saved against a person who needs 15 minutes. Short and level is good. A rise: save more "
              "often, or find what fails.",
              [query(f"max({of_run(c.SUPERVISOR_RECOVERY)})", "time to recover"),
               query(f"sum({of_run(c.SUPERVISOR_LOST_STEPS)})", "steps made again"),
               query(f"sum({of_run(c.SUPERVISOR_SAVED)}) / 3600", "GPU-hours saved")],
              "no restart by a supervisor", min=0, h=5, **WIDE,
              overrides=[override(name, unit="locale", custom__axisPlacement="right")
                         for name in ("steps made again", "GPU-hours saved")]),
    ]  # fmt: skip


def dashboard() -> Json:
    """Return the whole dashboard."""
    return shell.dashboard(
        "incident",
        "One run, one window: alerts, phases, hardware events, restarts and checkpoints on one time axis. Set the time "
        "range to the incident, or open it from an alert.",
        [
            *what_happened(),
            row("Who"),
            lag_heat(12, h=8, **WIDE),
            node_heat(12, h=6, **WIDE),
            error_heat(12, h=6, **WIDE),
            phases_over_time(12, h=9, **WIDE),
            row("What it cost"),
            *what_it_cost(),
            row("Supervisor", *supervisor()),
            row("For the post-mortem"),
            alert_table(),
            rank_table(h=9),
            node_table(h=9),
        ],
        annotations=shell.marks(alerts=False),
        since="now-1h",
    )

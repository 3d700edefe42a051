"""The panels that name who holds a run up: its ranks and its nodes, what the rules named first."""

from __future__ import annotations

from absences import NO_RANK, NO_WAITS
from limits import EACH_SECOND, LATE, NET_ERRORS, TWICE
from panels import (
    ORANGE,
    PHASES,
    RED,
    STATES,
    UNITS,
    Json,
    at_end,
    bar_cells,
    coloured,
    heat,
    in_order,
    lines,
    marked,
    one_by_one,
    override,
    query,
    table,
    timeline,
    words,
)
from series import of_cluster, of_ranks, of_run, own
from shell import BLACK_BOX, LOGS, SAME, TRACES, explore, field, link
from tachograph.catalog import index as c
from tachograph.diagnosis import STALL_SECONDS, STALL_STEPS

ROWS = 40  # of a table: a person reads no more, and a browser need not carry 16,384

WAIT = of_ranks(c.TRAIN_RECENT_WAIT)
_WAITS = of_run(c.TRAIN_RECENT_WAIT)


def of_a_step(seconds: str) -> str:
    """Return seconds of a rank of the run as a share of the run's usual step."""
    return f"({seconds}) / on () group_left () quantile(0.5, {of_run(c.RUN_STEP_SECONDS)})"


_USUAL = f"max by (run) ({_WAITS}) and count by (run) ({_WAITS}) == 2 or quantile by (run) (0.5, {_WAITS})"
LAG = f"({of_a_step(f'({_USUAL}) - on (run) group_right () {WAIT}')})"
"""How much less a rank waits now than the median one (of two, than the other), as a share of the run's usual step."""
LAG_BAND = {
    name: of_a_step(f"({_USUAL}) - on () {wait}")
    for name, wait in (("max", f"min({WAIT})"), ("median", f"quantile(0.5, {WAIT})"), ("min", f"max({WAIT})"))
}
"""Its highest, median and lowest over the chosen ranks: who waits least lags most."""
EARLIER = f"({of_run('run:collective_wait_per_step_seconds:median')} - on (run) group_right () {WAIT})"
"""The same order, by the waits that the rules measure from; short, because it is repeated in every column."""
BEHIND = f"max by (rank) ({of_ranks('rank:collectives_behind:max')})"

LOG_QUERY = f'{{run="${{run:percentencode}}"}} | rank="{field("Rank")}"'
"""A rank's log, with the labels of deploy/alloy/training.alloy."""
TRACE_QUERY = f'{{resource.tachograph.run="${{run:percentencode}}" && resource.tachograph.rank={field("Rank")}}}'
"""A rank's traced steps, with the attributes that tachograph.export sends."""

RANK_VERDICTS = (
    ("died first", of_ranks("rank:first_end:timestamp", kind="died")),
    ("failed first", of_ranks("rank:first_end:timestamp", kind="!died")),
    ("caused the hang", of_ranks("rank:hang_suspect:behind")),
    ("NaN first", of_ranks("rank:loss_nonfinite_first:step")),
    ("other numbers", of_ranks("rank:invariant_culprit:info")),
    ("broken GPU", of_ranks("node:broken_gpu_rank:info")),
    ("other step", of_ranks("rank:steps_apart:count")),
    ("late", f"({of_ranks('rank:straggler:level')} > 0)"),
)
"""What a rule says about a rank -> the series that says so, worst first."""


GONE, NODE = -1, -2
"""Stand for the phase of a rank that is in none any more, and of a node."""
STALLED = "stalled"
"""The state of running ranks whose run makes no step."""
STATE_COLOURS = STATES | {STALLED: ORANGE}


AFTER_PAUSE = "30s"
"""For so long after a pause a run has not stalled: its age counts the pause, until the step after it is made."""


def is_stalled() -> str:
    """Return what has a sample while a run makes no step and nobody pauses, from the limit for screens upwards.

    The exporter's own page has the same limit; RunHung has a different one, and comes later.
    """
    pause = f"last_over_time({of_run(c.RANK_PHASE, phase='|'.join(c.PAUSES))}[{AFTER_PAUSE}])"
    limit = f"clamp_min({STALL_STEPS} * {of_run('run:step_interval_seconds:p50')}, {STALL_SECONDS:.0f})"
    return f"(({of_run('run:progress_age_seconds:min')} - {limit}) > 0 unless on () {pause})"


def state_of_ranks() -> str:
    """Return a series for each chosen rank: `state` is its own, or says that the run has stalled."""
    own_state = f"max by (rank, state) ({own(of_ranks(c.RANK_STATE))} == 1)"
    running = f"max by (rank) ({own(of_ranks(c.RANK_STATE, state='running'))} == 1) and on () {is_stalled()}"
    return f'label_replace({running}, "state", "{STALLED}", "", "") or on (rank) {own_state}'


def verdicts(labels: str = "rank") -> str:
    """Return one series with these labels for each chosen rank that a rule names, `verdict` says as what."""
    return " or on (rank) ".join(
        f'label_replace(group by ({labels}) ({found}), "verdict", "{text}", "", "")' for text, found in RANK_VERDICTS
    )


def conspicuous(rows: int) -> str:
    """Return the chosen ranks that deserve a look most, highest first."""
    nought = f"max by (rank) ({of_ranks(c.RANK_UP)}) * 0"
    gone = f"max by (rank) ({own(of_ranks(c.RANK_STATE, state='dead|failed|frozen'))})"
    phase = f"max by (rank) ({own(of_ranks(c.RANK_PHASE))})"
    alerts = of_ranks("ALERTS", alertstate="firing", severity="critical")
    # One number to choose rows by: named by a page, then gone, behind in a collective, lagging, long in its phase.
    weighed = (
        f"group by (rank) ({alerts}) * 1e12",
        f"{gone} * 1e9",
        f"{BEHIND} * 1e6",
        f"max by (rank) ({EARLIER}) * 1e3",
        phase,
    )
    score = " + on (rank) ".join(f"({part} or on (rank) {nought})" for part in weighed)
    return f"topk({rows}, {score})"


def rank_table(**more: object) -> Json:
    """Return the table that names the culprit: the most conspicuous ranks of all that are chosen."""
    chosen = conspicuous(ROWS)
    asked = (
        f"{chosen} * on (rank) group_right () group by (rank, instance, gpu) ({own(of_ranks(c.RANK_INFO))})",
        state_of_ranks(),
        f"max by (rank, phase) ({own(of_ranks(c.RANK_PHASE))})",
        f"max by (rank) ({own(of_ranks(c.TRAIN_STEP))})",
        f"max by (rank) ({LAG})",
        f"({BEHIND}) > 0",
        verdicts(),
    )
    # Whoever reads it on a phone sees the first four or five.
    columns = {"rank": "Rank", "verdict": "Verdict", "instance": "Node", "phase": "Phase", "Value #C": "For"}
    columns |= {"gpu": "GPU", "state": "State", "Value #D": "Step", "Value #E": "Lag per step"}
    columns |= {"Value #F": "Behind"}
    here = {"instance": field("Node"), "rank": field("Rank")}
    links = [
        link("Only this rank, here", "run", run=SAME, **here),
        link("Beside the others", "ranks", run=SAME, **here),
        explore("Its logs, in Loki", LOGS, queryType="range", expr=LOG_QUERY),
        explore("Its traced steps, in Tempo", TRACES, queryType="traceql", query=TRACE_QUERY),
    ]
    node = [link("Its node and GPUs", "node", run=SAME, instance=field("Node")), BLACK_BOX]
    return table(
        "Ranks, worst first",
        f"The {ROWS} ranks most worth a look: named by a rule, gone, behind in a collective, lagging, long in "
        "one phase. Lag: how much later than the median rank it arrives, as a share of a step; a full bar pages. "
        "Behind counts collectives. Nobody named and all alike is good. In a hang the culprit is the one behind, or "
        "in another phase. A click shows only that rank, or its node.",
        one_by_one(asked, "rank", chosen),
        "No rank of this run has been seen.",
        columns,
        join="rank",
        overrides=[
            override("Rank", links=links, custom__width=55),
            marked("Verdict", custom__width=125),
            override("Node", links=node, custom__width=80),
            override("GPU", custom__width=45),
            words("State", STATE_COLOURS, custom__width=70),
            words("Phase", PHASES, custom__width=85),
            override("For", unit="s", decimals=1, custom__width=76),
            override("Step", unit="locale", custom__width=72),
            bar_cells("Lag per step", LATE, unit=UNITS["ratio"], decimals=1, custom__minWidth=96),
            override("Behind", custom__width=62),
        ],
        **{"w": 24, "h": 10, **more},
    )


NODE_ROWS = 20


def node_verdicts(of_ranks_too: bool = True) -> str:
    """Return one series for each node of the run that a rule names, or whose rank it names; `verdict` says as what."""
    here = f"on (instance) group by (instance) ({of_run(c.RUN_RANKS)})"
    slow = f'label_replace({of_run("node:slowdown_culprit:info")}, "slow", "slow", "", "")'
    nodes = (
        f'label_replace(group by (instance) ({of_cluster("node:down_seconds:max")}), "verdict", "down", "", "")'
        f" and on (instance) group by (instance) (last_over_time({of_run(c.RUN_RANKS)}[1h]))",
        f'group by (instance, verdict) (label_join({slow}, "verdict", ": ", "slow", "cause"))',
        f"label_replace(group by (instance) ({of_run('rank:straggler:level', rank='')} > 0), "
        '"verdict", "late", "", "")',
        f"label_replace(group by (instance) ({of_cluster('node:nic_down_seconds:max')}) and {here},"
        ' "verdict", "link down", "", "")',
    )
    ranks = (
        *(
            f'label_replace(group by (instance) ({of_run(name, **which)}), "verdict", "{text}", "", "")'
            for text, name, which in (
                ("rank died", "rank:first_end:timestamp", {"kind": "died"}),
                ("rank failed", "rank:first_end:timestamp", {"kind": "!died"}),
                ("rank hung", "rank:hang_suspect:behind", {}),
            )
        ),
        f"label_replace(group by (instance) ({of_run('rank:straggler:level', rank='.+')} > 0), "
        '"verdict", "rank late", "", "")',
    )
    return " or on (instance) ".join(f"({part})" for part in (*nodes, *(ranks if of_ranks_too else ())))


def node_table(**more: object) -> Json:
    """Return the table that names nodes: six behind one switch stand here, where no single rank is late."""
    there = of_run(c.RUN_RANKS, state="running|frozen|finished")
    ranks = f"sum by (instance) (last_over_time({there}[15m]))"
    inside = f"max by (instance) ({of_run(c.RUN_COLLECTIVE_SECONDS)})"
    lag = f"max by (instance) ({of_run('rank:lag_seconds:mean', rank='')})"
    ratio = f"{inside} / on () group_left () quantile(0.5, {inside})"
    errors = f"max by (instance) ({of_cluster('node:nic_errors:increase1h')})"
    weighed = (f"group by (instance) ({node_verdicts()}) * 1e6", ratio, f"abs({lag})")
    score = " + on (instance) ".join(f"({part} or on (instance) 0 * {ranks})" for part in weighed)
    chosen = f"topk({NODE_ROWS}, {score})"
    asked = (chosen, node_verdicts(), ranks, ratio, errors)
    columns = {"instance": "Node", "verdict": "Verdict", "Value #C": "Ranks", "Value #D": "Collectives × median"}
    columns |= {"Value #E": "Net errors, 1 h"}
    shown = [link("Its node and GPUs", "node", run=SAME, instance=field("Node")),
             link("Only its ranks, here", "run", run=SAME, instance=field("Node")), BLACK_BOX]  # fmt: skip
    return table(
        "Nodes, worst first",
        f"The {NODE_ROWS} nodes of the run most worth a look: named by a rule, then those on which collectives take "
        "longest relative to the median node. Nobody named and × median near 1 is good. Several named slow, with "
        "network errors (a full bar is a ticket): look at the switch they share. One named late: drain it.",
        one_by_one(asked, "instance", chosen),
        "No node of this run has been seen.",
        columns,
        join="instance",
        overrides=[
            override("Node", links=shown, custom__width=80),
            marked("Verdict", custom__width=150),
            override("Ranks", custom__width=52),
            override("Collectives × median", decimals=2, custom__width=156),
            bar_cells("Net errors, 1 h", NET_ERRORS, unit="locale", decimals=0, custom__minWidth=105),
        ],
        **{"w": 24, "h": 8, **more},
    )


def sequence_spread(**more: object) -> Json:
    """Return the panel of how far the last rank is behind the first one of its process group."""
    # From the rule, which asks ranks that stand still: between scrapes of two nodes there are thousands of collectives.
    nought = f"0 * max({of_run(c.RUN_RANKS)})"
    return lines(
        "Collectives behind",
        "none",
        "How many collectives the last rank is behind the first one of its process group, while the run stands still. "
        "0 is good. A line above 0 is a hang: the table of ranks names who never entered.",
        [query(f"max({of_run('rank:collectives_behind:max')}) or {nought}", "behind")],
        NO_RANK,
        min=0,
        decimals=0,
        soft_max=4,
        **more,
    )


def ranks_by_phase(**more: object) -> Json:
    """Return the panel of how many ranks of the run do what."""
    return lines(
        "Ranks by phase",
        "none",
        "How many ranks are in which phase. A steady mix is good. If all but a few stay in backward or collective, "
        "they wait for those few.",
        [query(f"count by (phase) ({of_run(c.RANK_PHASE)})", "{{phase}}")],
        "no rank is running",
        stack=True,
        overrides=coloured(PHASES),
        min=0,
        decimals=0,
        **more,
    )


# Each `or` looks at all that stands before it, so what most ranks are in comes last.
_RARE_FIRST = sorted(c.PHASES, key=("data", "forward", "collective", "backward").count)
PHASE_CODE = " or ".join(
    f"{of_ranks(c.RANK_PHASE, phase=phase)} * 0 + {c.PHASES.index(phase)}" for phase in _RARE_FIRST
)
"""The place in the catalog of the phase that each chosen rank is in."""
PHASE_WORDS = [
    {
        "type": "value",
        "options": {str(code): {"text": phase, "color": PHASES[phase]} for code, phase in enumerate(c.PHASES)}
        | {str(code): {"text": text, "color": RED} for code, text in ((GONE, "gone"), (NODE, "node"))},
    }
]


def named_ones(rows: int = 12, **more: object) -> Json:
    """Return the panel of the ranks and nodes that rules name, over time: who, as what, and in which phase."""
    who = f"topk({rows}, ({verdicts('rank, instance')}) unless on (rank) vector(1))"  # a late node has no rank
    phase = f"max by (rank) ({PHASE_CODE})"
    return timeline(
        "Ranks and nodes that rules name",
        "none",
        f"The {rows} ranks, and as many nodes, of which a rule says that they hold the run up or broke it: as what, "
        "since when, and the phase that the rank is in. Empty is good. A row that begins where the run stops or slows "
        "down is who to look at first.",
        [
            query(
                f"{who} * 0 + on (rank) group_left () {phase} or {who} * 0 + {GONE}",
                "rank {{rank}}, {{instance}}: {{verdict}}",
            ),
            query(f"topk({rows}, {node_verdicts(False)}) * 0 + {NODE}", "{{instance}}: {{verdict}}"),
        ],
        "no rule names anybody",
        mappings=PHASE_WORDS,
        shown=of_run(c.RUN_RANKS),
        **{"w": 24, "h": 6, **more},
    )


def phases_over_time(rows: int, **more: object) -> Json:
    """Return the panel of what the most conspicuous ranks do, phase by phase."""
    chosen = at_end(conspicuous(rows))
    return timeline(
        "What the outlier ranks are doing",
        "none",
        f"The phase, at each scrape, of the {rows} ranks most worth a look at the end of the range. Rows that look "
        "alike are good. One row in a different colour from the rest is the rank that the others wait for.",
        [query(in_order(f"max by (rank) ({own(f'({PHASE_CODE})')} and on (rank) {chosen})", "rank"), "rank {{rank}}")],
        "no rank is running",
        mappings=PHASE_WORDS,
        shown=of_run(c.RUN_RANKS),
        **{"w": 24, "h": 9, **more},
    )


def lag_heat(rows: int = 30, **more: object) -> Json:
    """Return the panel of the ranks that lagged most within the range."""
    worst = f"topk({rows}, max by (rank) (max_over_time({LAG}[$__range:1m] @ end())))"
    return heat(
        f"Lag per step by rank, full red at {LATE:.0%}",
        UNITS["ratio"],
        f"How much later than the median rank a rank arrives, as a share of a step, for the {rows} ranks that lagged "
        "most within the range; full red pages. No red is good. One red row: that rank is slow; rows in turns: "
        "something differs from step to step.",
        [query(in_order(f"max by (rank) ({LAG}) and on (rank) {worst}", "rank"), "rank {{rank}}")],
        NO_WAITS,
        shown=of_run("run:collective_wait_per_step_seconds:median"),
        full=LATE,
        decimals=1,
        **{"w": 12, "h": 12, **more},
    )


def node_heat(rows: int = 40, **more: object) -> Json:
    """Return the panel of the nodes whose collectives took longest within the range."""
    took = of_run(c.RUN_COLLECTIVE_SECONDS)
    worst = f"topk({rows}, max by (instance) (max_over_time({took}[$__range] @ end())))"
    slowest = f"max by (instance) ({took}) and on (instance) {worst}"
    over = f"({slowest}) / on () group_left () quantile(0.5, {took})"
    return heat(
        f"Collective time per step by node, full red at {TWICE:.0f} × median",
        "none",
        "Time per step that the node's slowest rank spends in collectives, relative to the median node, for the "
        f"{rows} nodes with the longest within the range; twice as long is full red. No red is good. A few red rows: "
        "what these nodes share, a switch or a rail, is slow.",
        [query(in_order(over, "instance"), "{{instance}}")],
        NO_WAITS,
        shown=took,
        full=TWICE,
        min=1,
        decimals=2,
        **{"w": 12, "h": 12, **more},
    )


def error_heat(rows: int = 40, **more: object) -> Json:
    """Return the panel of the nodes whose network ports corrupt packets."""
    here = f"on (instance) group by (instance) ({of_run(c.RUN_RANKS)})"
    rate = of_cluster("node:nic_errors:rate2m")
    worst = f"topk({rows}, max by (instance) (max_over_time({rate}[$__range] @ end())))"
    return heat(
        f"Network errors per second by node, full red at {EACH_SECOND}",
        "none",
        f"Corrupted packets per second at the worst port of a node: the {rows} nodes with the most. No row is good. "
        "Several rows that begin at once: what these nodes share, a switch or a rail; a single one: its cable or "
        "transceiver.",
        [
            query(
                in_order(f"max by (instance) ({rate} and {here}) and on (instance) {worst}", "instance"), "{{instance}}"
            )
        ],
        "no port corrupts packets, or node_exporter is not scraped",
        shown=f"({rate} and {here})",
        full=EACH_SECOND,
        decimals=1,
        **{"w": 12, "h": 12, **more},
    )

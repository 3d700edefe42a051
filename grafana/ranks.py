"""The dashboard "Ranks": who is late, who waits for whom, and where each rank's step goes."""

from __future__ import annotations

import shell
from absences import DETAIL, NO_COORDINATES, NO_WAITS
from culprits import (
    LAG,
    LAG_BAND,
    ROWS,
    WAIT,
    conspicuous,
    error_heat,
    lag_heat,
    node_heat,
    node_table,
    of_a_step,
    rank_table,
    sequence_spread,
)
from limits import WHOLE
from panels import (
    BAND,
    BLUE,
    ORANGE,
    PURPLE,
    UNITS,
    Json,
    bar_cells,
    coloured,
    lines,
    named,
    one_by_one,
    override,
    query,
    row,
    spread,
    table,
)
from phases import phases_over_time
from series import not_over, of_ranks, of_run, own
from shell import SAME, field, link
from tachograph.catalog import index as c

WORK = "copy|forward|backward|optimizer|other"
PARTS = {"compute": BLUE, "communication": PURPLE, "data": ORANGE}


def stalled(**more: object) -> Json:
    """Return who is behind in which process group while the run hangs."""
    behind = of_run("rank:collectives_behind:max")
    groups = f"sort_desc(topk({ROWS // 2}, max by (group, rank, instance) ({behind}) > 0))"
    return table(
        "Stalled process groups",
        "While the run hangs: who is behind in which process group, and by how many collectives. Empty is good. Start "
        "with the rank furthest behind: the others in its group wait for it, and other groups wait for them.",
        [query(groups, table=True)],
        "No process group is stalled, or none reports sequence numbers.",
        {"group": "Group", "rank": "Rank", "instance": "Node", "Value": "Behind"},
        overrides=[
            override("Rank", links=[link("Only this rank", "ranks", run=SAME, rank=field("Rank"))], custom__width=60),
            override("Group", custom__width=120),
            override("Node", custom__width=110),
            override("Behind", custom__width=70),
        ],
        **more,
    )


def parts_table(**more: object) -> Json:
    """Return where the step of each conspicuous rank goes: its own work, waiting for others, waiting for data."""
    chosen = conspicuous(ROWS)
    late = f"{of_ranks(c.TRAIN_RECENT_PHASE)} and on (run, rank) ({of_ranks('rank:straggler:level')} > 0)"
    longer = f"({late}) - on (run, phase) group_left () {of_run('run:phase_seconds:median')} > 0"
    asked = (
        f"{chosen} * on (rank) group_right () group by (rank, instance, gpu) ({own(of_ranks(c.RANK_INFO))})"
        f" and on () group({of_run(c.TRAIN_RECENT_STEP)})",
        of_a_step(f"sum by (rank) ({own(of_ranks(c.TRAIN_RECENT_PHASE, phase=WORK))})"),
        of_a_step(f"max by (rank) ({WAIT})"),
        of_a_step(f"max by (rank) ({own(of_ranks(c.TRAIN_RECENT_PHASE, phase='data'))})"),
        f"max by (rank, phase) (topk by (rank) (1, {longer}))",
    )
    columns = {"rank": "Rank", "instance": "Node", "gpu": "GPU", "Value #B": "Compute", "Value #C": "Waits for others"}
    columns |= {"Value #D": "Waits for data", "phase": "Late in"}
    return table(
        "Step time breakdown by rank",
        "Shares of the usual step, over the last 20 s or three steps, for the ranks of the first table: work, waits "
        "for other ranks, waits for data. Alike on all is good. A late rank computes longer and waits less; the last "
        "column has its phase.",
        one_by_one(asked, "rank", chosen),
        "No steps are completing.",
        columns,
        join="rank",
        overrides=[
            override("Rank", custom__width=60),
            override("Node", custom__width=110),
            override("GPU", custom__width=50),
            *(
                bar_cells(name, WHOLE, unit=UNITS["ratio"], decimals=0, custom__minWidth=140)
                for name in ("Compute", "Waits for others", "Waits for data")
            ),
        ],
        **more,
    )


def by_coordinate() -> list[Json]:
    """Return the mean wait of each pipeline stage, tensor part and expert part, by the ranks' own coordinates."""

    def average(figure: str, dimension: str) -> str:
        place = f"max by (run, rank, instance, {dimension}) ({of_ranks(c.RANK_COORDINATES, **{dimension: '.+'})})"
        return f"avg by ({dimension}) ({figure} * on (run, rank, instance) group_left ({dimension}) {place})"

    def waits(dimension: str) -> str:
        return f'label_replace({average(of_a_step(WAIT), dimension)}, "place", "{dimension} $1", "{dimension}", "(.+)")'

    step = f"max by (run, rank, instance) ({of_ranks(c.TRAIN_RECENT_STEP)})"
    return [
        table(
            "Waits by parallel group",
            "Share of a step that the ranks of a pipeline stage (pp), a tensor part (tp) or an expert part (ep) wait "
            "for others, on average. Alike is good; differences may be due to how the stages are cut. The one that "
            "waits least is the one that the others wait for.",
            [query(f"max by (place) ({' or '.join(map(waits, ('pp', 'tp', 'ep')))})", table=True)],
            NO_COORDINATES,
            {"place": "Place", "Value": "Waits"},
            overrides=[
                override("Place", custom__width=80),
                bar_cells("Waits", WHOLE, unit=UNITS["ratio"], decimals=1),
            ],
            sort=[{"displayName": "Place", "desc": False}],
            w=16,
            h=8,
        ),
        lines("Pipeline bubble", UNITS["ratio"], "Share of a step in which a pipeline's stages wait. With p stages, m "
              "micro-batches and 1F1B, (p − 1) / (m + p − 1) is good. More: uneven stages, a late rank, the network.",
              [query(f"avg({average(f'{WAIT} / on (run, rank, instance) {step}', 'pp')})", "waits")],
              NO_COORDINATES, min=0, w=8),
    ]  # fmt: skip


def collectives() -> list[Json]:
    """Return how fast collectives move data, and which fail."""
    return [
        lines("Bus bandwidth", "Bps", "By operation, on the rank that moves the most, with the median of the hour "
              "before. Its usual level is good. Below it on all: the network; with one late rank: that rank.",
              [query(of_run("run:collective_bus_bandwidth_bytes:max2m"), "{{op}}"),
               query(of_run("run:collective_bus_bandwidth_bytes:baseline"), "{{op}}, usual")],
              "no collective was timed lately", min=0, w=8),
        lines("Payload of a collective", UNITS["bytes"], "Mean size by operation, over ranks. Flat is good. Many small "
              "ones leave the network idle: raise the bucket size. It needs an exporter with --rank.series=all.",
              [query(f"sum by (op) (rate({of_ranks(c.TRAIN_COLLECTIVE_BYTES)}[$__rate_interval])) / "
                     f"sum by (op) (rate({of_ranks(c.TRAIN_COLLECTIVES)}[$__rate_interval]))", "{{op}}")],
              DETAIL, min=0, w=8),
        lines("Failed collectives", "none", "Since the attempt began, by operation, over ranks. None is good. It "
              "needs an exporter with --rank.series=all.",
              [query(f"sum by (op) ({of_ranks(c.TRAIN_COLLECTIVE_FAILURES)})", "{{op}}")],
              f"none failed, or {DETAIL}", min=0, decimals=0, soft_max=4, w=8),
    ]  # fmt: skip


def over_time() -> list[Json]:
    """Return the same over time: who stood out, and since when."""
    steps = not_over(of_ranks(c.TRAIN_STEP))
    return [
        lag_heat(w=12, h=10),
        node_heat(w=12, h=10),
        phases_over_time(12),
        lines("Lag per step", UNITS["ratio"], "How much later than the median rank a rank arrives, as a share of a "
              "step: band over all ranks, and the three that are latest now. Near 0 is good. One that stays above: see "
              "its row above.",
              [named(LAG_BAND), *spread(LAG, "topk", "rank {{rank}}")[1:]], NO_WAITS, overrides=BAND, w=8),
        lines("Collective wait per step", UNITS["seconds"], "Time per step in which a rank can only wait for the "
              "others. A narrow band is good. The ranks named wait least: they arrive last and hold up the others.",
              spread(WAIT, "bottomk", "rank {{rank}}"), NO_WAITS, overrides=BAND, min=0, w=8),
        lines("Parts of a step", UNITS["seconds"], "What the median rank spends a step on. Flat is good. Compute grows "
              "on all: clocks, power; communication: the network, or one late rank; data: storage and loader.",
              [query(of_run("run:step_part_seconds:median"), "{{cause}}")],
              "no ordinary step completed lately", overrides=coloured(PARTS), min=0, w=8),
        sequence_spread(w=12),
        lines("Step spread across ranks", "none", "How many optimizer steps the last rank is behind the first one, as "
              "of their latest reports. As many as fit between two reports is good. A climb: each rank trains alone; "
              "compare how they were started.",
              [query(f"max({steps}) - min({steps})", "steps")], "no step yet", min=0, decimals=0, soft_max=4, w=12),
    ]  # fmt: skip


def dashboard() -> Json:
    """Return the whole dashboard."""
    return shell.dashboard(
        "ranks",
        "The ranks of a run side by side: who is late, who waits for whom, where each rank's step goes.",
        [
            rank_table(w=14, h=10),
            node_table(w=10, h=10),
            row("Who waits for whom"),
            stalled(w=8, h=10),
            parts_table(w=16, h=10),
            row("Over time"),
            *over_time(),
            row("Parallelism", *by_coordinate()),
            row("Collectives", *collectives()),
            row("Network", error_heat(w=24, h=8)),
        ],
    )

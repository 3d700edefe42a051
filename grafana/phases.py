"""What ranks are in, over time: those that rules name, with the nodes that they name, and the outliers."""

from __future__ import annotations

from culprits import conspicuous, node_verdicts, verdicts
from panels import PHASES, RED, Json, at_end, in_order, query, timeline
from series import of_ranks, of_run, own
from tachograph.catalog import index as c

GONE, NODE = -1, -2
"""Stand for the phase of a rank that is in none any more, and of a node."""
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
                "rank {{rank}} {{instance}} {{verdict}}",
            ),
            query(f"topk({rows}, {node_verdicts(False)}) * 0 + {NODE}", "{{instance}} {{verdict}}"),
        ],
        "no rule names anybody",
        mappings=PHASE_WORDS,
        shown=of_run(c.RUN_RANKS),
        **{"w": 24, "h": 7, **more},
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

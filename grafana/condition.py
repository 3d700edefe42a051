"""The state a run is in, in one word, and what fires for it."""

from __future__ import annotations

from culprits import ROWS, STALLED, is_stalled
from panels import BLUE, GREEN, ORANGE, RED, SEVERITIES, Json, override, query, table, words
from series import FIRING, of_run, own
from shell import RUNBOOK_LINK, SAME, field, link
from tachograph.catalog import index as c


def _in_state(state: str) -> str:
    return own(of_run(c.RANK_STATE, state=state)) + " == 1"


CONDITIONS = (
    ("hung", RED, of_run("run:hung_seconds:min")),
    ("rank dead", RED, _in_state("dead")),
    ("rank failed", RED, _in_state("failed")),
    ("rank frozen", ORANGE, _in_state("frozen")),
    (STALLED, ORANGE, is_stalled()),
    ("steps again", ORANGE, of_run("ALERTS", alertstate="firing", alertname="RunHung")),
    ("running", GREEN, _in_state("running")),
    ("finished", BLUE, _in_state("finished")),
)
"""The conditions of a run, worst first: the first that holds for any rank stands for the run.

The alert for a hang goes on firing for a while after it, because a failed scrape must not end it.
"""

CONDITION = " or ".join(f"group({found}) * {code}" for code, (_, _, found) in enumerate(CONDITIONS, start=1))
"""The number, from 1, of the condition the run is in."""

CONDITION_WORDS = [
    {
        "type": "value",
        "options": {str(i): {"text": word, "color": colour} for i, (word, colour, _) in enumerate(CONDITIONS, start=1)},
    }
]
"""What a panel shows for that number."""


ON_A_RUN = {"rank": "Rank", "instance": "Node"}
ON_HOSTS = {"instance": "Node", "gpu": "GPU", "run": "Run"}
"""Whom the table of alerts names, by label, on dashboards of one run and on those of nodes."""


def firing_table(title: str, firing: str, text: str, absent: str, named: dict[str, str], **more: object) -> Json:
    """Return the table of what fires; however many warnings there are, they never crowd out what pages.

    `absent` says what nothing fires for: the reader looks at one dashboard while an alert fires about something else.
    """
    since = " or ".join(
        f'topk({ROWS // 2}, time() - ALERTS_FOR_STATE{{severity{which}"critical"}} and ignoring (alertstate) {firing})'
        for which in ("=", "!=")
    )
    return table(
        title,
        f"{text} Empty is good. Each alert has a runbook of the same name: start there.",
        [query(since, table=True)],
        absent,
        {"severity": "Severity", "alertname": "Alert", **named, "Value": "For"},
        overrides=[
            words("Severity", SEVERITIES, custom__width=76),
            *_leads(named),
            override("For", unit="s", decimals=0, custom__width=58),
        ],
        sort=[{"displayName": "Severity", "desc": False}],
        h=6,
        **more,
    )


def firing_of_run(**more: object) -> Json:
    """Return the table of all that fires for the run or its nodes: the same wherever one run is looked at."""
    return firing_table(
        "Firing now",
        FIRING,
        "What fires for this run or its nodes, and whom it names.",
        "No alert fires for this run or its nodes.",
        ON_A_RUN,
        **more,
    )


def _leads(named: dict[str, str]) -> list[Json]:
    """Return where a click on an alert, or on whom it names, leads, with widths; only a run has ranks and incidents."""
    if named != ON_A_RUN:
        return [
            override("Alert", links=[RUNBOOK_LINK], custom__minWidth=130),
            override("Node", custom__minWidth=90),
            override("GPU", custom__width=48),
            override("Run", custom__minWidth=80),
        ]
    return [
        override("Alert", links=[RUNBOOK_LINK, link("The hour around it", "incident", run=SAME)], custom__minWidth=150),
        override("Node", links=[link("Node and GPUs", "node", run=SAME, instance=field("Node"))], custom__width=80),
        override("Rank", custom__width=48, links=[link("This rank", "ranks", run=SAME, rank=field("Rank"))]),
    ]

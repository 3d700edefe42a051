"""The index of the runbooks by symptom and by severity: two sections of runbooks/README.md."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from tachograph.findings.kinds import severities
from tools.pages.section import ROOT, with_sections
from tools.pages.shipped_rules import shipped_rules

SYMPTOMS = (
    "no steps",
    "it starts again and again",
    "slow all at once",
    "slow by one rank or node",
    "slower day by day",
    "loss is NaN, jumps or climbs",
    "loss does not improve",
    "gradients or loss scale are unusual",
    "ranks disagree",
    "checkpoints",
    "out of memory, or nearly",
    "a GPU is broken",
    "a GPU is about to break",
    "heat, power, clocks",
    "links inside a node",
    "links between nodes",
    "no data",
    "ranks are on two nodes at once",
)
"""The symptoms that a runbook may name in its third line, as in `Page or ticket. Symptoms: no steps; no data.`"""

_INTRODUCTIONS = {
    "critical": "### Pages\nAnswer within 5 minutes:",
    "warning": "### Tickets\nAnswer within the working hour:",
    "info": "### Neither\nShown on the dashboard, sent to nobody:",
    "none": "Always firing, so that its absence is noticed:",
}
"""Severity, the most urgent first -> what stands before its alerts."""

_URGENCY = tuple(_INTRODUCTIONS)


def index_page() -> str:
    """Return runbooks/README.md with each alert by symptom, as its runbook says, and by severity, as its rules say."""
    severities = _severities()
    alerts = sorted(severities, key=lambda alert: (min(map(_URGENCY.index, severities[alert])), alert))
    symptoms = {alert: _symptoms(alert) for alert in alerts}
    rows = (f"| {one} | {', '.join(_link(alert) for alert in alerts if one in symptoms[alert])} |" for one in SYMPTOMS)
    parts = (
        textwrap.fill(
            ", ".join(_link(alert) for alert in sorted(severities) if severity in severities[alert]) + ".",
            width=120,
            break_on_hyphens=False,
        )
        for severity in _URGENCY
    )
    return with_sections(
        "runbooks/README.md",
        {
            "symptoms": "\n".join(("| what is seen | look at |", "|---|---|", *rows)),
            "severities": "\n\n".join(map("\n".join, zip(_INTRODUCTIONS.values(), parts, strict=True))),
        },
    )


def _link(alert: str) -> str:
    return f"[{alert}]({alert}.md)"


def _severities() -> Mapping[str, set[str]]:
    """Return every alert with the severities of its rules."""
    found: dict[str, set[str]] = {}
    for rule in shipped_rules():
        if "alert" in rule:
            found.setdefault(rule["alert"], set()).update(severities(rule["labels"]["severity"]))
    return found


def _symptoms(alert: str) -> Sequence[str]:
    """Return the symptoms in the third line of a runbook; none where there is no runbook yet."""
    path = ROOT / f"runbooks/{alert}.md"
    line = path.read_text(encoding="utf-8").splitlines()[2] if path.exists() else ""
    symptoms = line.rpartition("Symptoms: ")[2].removesuffix(".").split("; ") if "Symptoms: " in line else []
    if unknown := set(symptoms) - set(SYMPTOMS):
        raise ValueError(f"{path.name}: {', '.join(unknown)}: expected one of {'; '.join(SYMPTOMS)}")
    return symptoms

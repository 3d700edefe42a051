"""Which alerts inhibit which, from alertmanager.yml; run it to print the lists of docs/pages.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tachograph.findings import kinds

ROOT = Path(__file__).resolve().parents[2]
Alert = tuple[str, str]
"""Name and severity."""


class Inhibition(NamedTuple):
    """An inhibition rule: source alerts inhibit target alerts if these labels are equal."""

    sources: frozenset[Alert]
    targets: frozenset[Alert]
    equal: tuple[str, ...]


def severities() -> dict[str, set[str]]:
    """Return every alert of the rules with its severities: an alert may have a page and a ticket."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "prometheus/rules").glob("*.yml")):
        for group in yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]:
            for rule in group["rules"]:
                if "alert" in rule:
                    found.setdefault(rule["alert"], set()).update(kinds.severities(rule["labels"]["severity"]))
    return found


def matching(matchers: list[str], known: Mapping[str, set[str]]) -> frozenset[Alert]:
    """Return the alerts, each with a severity, that match the matchers on these two labels."""
    found = {(alert, severity) for alert, ones in known.items() for severity in ones}
    for matcher in matchers:
        label, operator, value = re.fullmatch(r"(\w+)(=~?|!=)\"(.*)\"", matcher).groups()  # type: ignore[union-attr]
        if label in ("alertname", "severity"):
            place = int(label == "severity")
            pattern = value if operator == "=~" else re.escape(value)
            found = {one for one in found if re.fullmatch(pattern, one[place])}
    return frozenset(found)


def configured() -> list[dict[str, Any]]:
    """Return the inhibition rules of alertmanager.yml."""
    path = ROOT / "alertmanager/alertmanager.yml"
    rules: list[dict[str, Any]] = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["inhibit_rules"]
    return rules


def inhibitions() -> list[Inhibition]:
    """Return the rules with the alerts that they concern."""
    known = severities()
    return [
        Inhibition(
            matching(rule["source_matchers"], known), matching(rule["target_matchers"], known), tuple(rule["equal"])
        )
        for rule in configured()
    ]


LEVELS = {
    ("run",): "run", ("run", "instance"): "run and node", ("instance",): "node", ("instance", "uuid"): "GPU",
    ("run", "instance", "uuid"): "GPU", ("run", "rank", "instance"): "rank",
}  # fmt: skip
FAMILIES = ("Gpu", "Rank", "Straggler", "Checkpoint", "Nic", "GradientNorm")
"""Prefixes of names: if all alerts with a prefix are inhibited, or all their tickets, the lists use the prefix."""
SLOW = frozenset({
    "Checkpoint…", "CollectiveSlow", "DataStall", "GoodputLow", "GpuIdleInRun", "MfuDropped", "RankStepDesync",
    "Straggler…", "ThroughputDropped",
})  # fmt: skip
"""What a run that does not step looks like: said once, below the lists."""


def _shortened(names: frozenset[str], known: Mapping[str, set[str]]) -> str:
    words = set(names)
    for family in FAMILIES:
        members = {name for name in known if name.startswith(family)}
        tickets = {name for name in members if known[name] == {"warning"}}
        if members <= words:
            words = words - members | {f"{family}…"}
        elif len(tickets) > 2 and tickets <= words:
            words = words - tickets | {f"{family}… tickets"}
    if words >= SLOW:
        words = words - SLOW | {"*slowness*"}
    return ", ".join(sorted(words))


def lists() -> str:
    """Return Markdown lists, one for each level: the alerts that each alert inhibits on the same run, node or GPU."""
    found: dict[tuple[str, str], set[str]] = {}
    for one in inhibitions():
        for name in {name for name, _ in one.sources}:
            found.setdefault((LEVELS[one.equal], name), set()).update(target for target, _ in one.targets)
    rows: dict[tuple[str, frozenset[str]], list[str]] = {}
    for (level, name), targets in sorted(found.items()):
        rows.setdefault((level, frozenset(targets)), []).append(name)
    known = severities()
    lines: list[str] = []
    for level in dict.fromkeys(LEVELS.values()):
        listed = sorted((names, targets) for (of, targets), names in rows.items() if of == level)
        if listed:
            lines += [f"On the same {level}:", ""]
            lines += [f"- {', '.join(names)}: {_shortened(targets, known)}" for names, targets in listed]
            lines.append("")
    return "\n".join([*lines, f"*slowness*: {', '.join(sorted(SLOW))}."])


if __name__ == "__main__":
    print(lists())

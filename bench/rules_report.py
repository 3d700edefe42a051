"""The cost of Prometheus by its own metrics: read, summarized, and written to docs/evidence/rules-bench.md."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tachograph.text import duration

FENCE = "<!-- written by bench/rules.py --doc -->"
LISTED = 3
"""The number of groups that the document lists per size; the others cost less."""


@dataclass(frozen=True)
class Figures:
    """The state of Prometheus at one moment: its page, its CPU seconds, its resident memory, the time."""

    page: str
    cpu: float
    resident_mb: float
    moment: float

    def value(self, name: str) -> float:
        """Return the sum of a family's samples."""
        return sum(float(value) for value in re.findall(rf"(?m)^{name}(?:\{{[^}}]*\}})? (\S+)$", self.page))

    def groups(self, name: str) -> dict[str, float]:
        """Return a family's samples by rule group."""
        found = re.findall(rf'(?m)^{name}\{{rule_group="[^"]*;([^";]+)"\}} (\S+)$', self.page)
        return {group: float(value) for group, value in found}


def row(
    first: Figures, looks: Sequence[Figures], *, helper: float, alerts: Sequence[str], load: float
) -> dict[str, Any]:
    """Summarize the readings in one state: for each group, the durations of its evaluations."""
    last = looks[-1]
    seconds = last.moment - first.moment
    intervals = last.groups("prometheus_rule_group_interval_seconds")
    durations = [look.groups("prometheus_rule_group_last_duration_seconds") for look in looks]
    groups = {}
    for group, interval in intervals.items():
        known = [one[group] for one in durations if group in one]
        groups[group] = {"interval": interval, "p50": statistics.median(known), "max": max(known)}
    missed = "prometheus_rule_group_iterations_missed_total"
    failed = "prometheus_rule_evaluation_failures_total"
    return {
        "series": int(last.value("prometheus_tsdb_head_series")),
        "samples a second": round(
            (last.value("prometheus_tsdb_head_samples_appended_total")
             - first.value("prometheus_tsdb_head_samples_appended_total")) / seconds
        ),
        "resident GB": round(max(look.resident_mb for look in looks) / 1024, 2),
        "cores": round((last.cpu - first.cpu) / seconds, 2),
        "cores for rules": round(sum(one["p50"] / one["interval"] for one in groups.values()), 2),
        "cores of the fleet": round(helper, 2),
        "evaluations missed": int(last.value(missed) - first.value(missed)),
        "evaluations failed": int(last.value(failed) - first.value(failed)),
        "alerts": list(alerts),
        "load": round(load, 1),
        "groups": groups,
    }  # fmt: skip


def with_rows(text: str, sizes: Sequence[Mapping[str, Any]], scrape: str, rank_series: str) -> str:
    """Return what `tachograph size` scales from with the dearest state of each measured size, sizes one a line."""
    known, every = json.loads(text), int(duration.parse(scrape))
    rows = {(row["ranks"], row["scrape_seconds"]): row for row in known["rows"]}
    named = {"series": "series", "samples a second": "samples_per_second", "resident GB": "gigabytes", "cores": "cores"}
    for size in sizes:
        states = [state for name, state in size.items() if name not in ("ranks", "cpu")]
        dearest = {to: max(state[name] for state in states) for name, to in named.items()}
        rows[size["ranks"], every] = {
            "ranks": size["ranks"], "scrape_seconds": every, "rank_series": rank_series, **dearest
        }  # fmt: skip
    known["rows"] = "ROWS"
    lines = ",\n".join(f"    {json.dumps(rows[key])}" for key in sorted(rows))
    return json.dumps(known, indent=2).replace('"ROWS"', f"[\n{lines}\n  ]") + "\n"


def cores(groups: Mapping[str, Any]) -> float:
    """Return the share of a core that all groups take together, from each one's CPU seconds and interval."""
    return sum(float(one["cpu"]) / float(one["interval"]) for one in groups.values())


def document(text: str, result: Mapping[str, Any]) -> str:
    """Return the document with the new measurements after its marker."""
    return text.split(FENCE, maxsplit=1)[0] + FENCE + "\n\n" + "\n".join(tables(result)) + "\n"


def tables(result: Mapping[str, Any]) -> list[str]:
    """Return the figures as Markdown."""
    states = [key for key in result["sizes"][0] if key not in ("ranks", "cpu")]
    lines = [
        f"Prometheus {result['prometheus']} ({result['suite']}), GOGC={result['gogc']}; a scrape every "
        f"{result['scrape']}; "
        f"warm-up {result['warm-up']:.0f} s, then {result['seconds']:.0f} s of each state, "
        f"{result['onset']:.0f} s after a fault began.",
        "",
        "| ranks | state | series | samples a second | resident GB | cores, all | cores, rules "
        "| load | evaluations missed | firing |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for size in result["sizes"]:
        for state in states:
            one = size[state]
            firing = ", ".join(one["alerts"]) or "–"
            lines.append(
                f"| {size['ranks']:,} | {state} | {one['series']:,} | {one['samples a second']:,} "
                f"| {one['resident GB']} | {one['cores']} | {one['cores for rules']} "
                f"| {one['load']} | {one['evaluations missed']} | {firing} |"
            )
    for size in result["sizes"]:
        spent = size.get("cpu", {})
        together = f" All groups' CPU together: {cores(spent):.2f} cores." if spent else ""
        lines += ["", f"Groups at {size['ranks']:,} ranks: p50 (max) in ms, share of the interval.{together}", ""]
        columns = [*states, "CPU"] if spent else states
        lines += ["| group | interval | " + " | ".join(columns) + " |", "|---|---|" + "---|" * len(columns)]
        groups = size[states[0]]["groups"]
        worst = {name: max(size[state]["groups"][name]["p50"] for state in states) for name in groups}
        shares = sorted(groups, key=lambda name: -worst[name] / groups[name]["interval"])
        for name in shares[:LISTED]:
            cells = []
            for state in states:
                one = size[state]["groups"][name]
                share = one["p50"] / one["interval"]
                cells.append(f"{one['p50'] * 1e3:.1f} ({one['max'] * 1e3:.1f}), {share:.1%}")
            if name in spent:
                cells.append(f"{spent[name]['cpu'] * 1e3:.1f}, {spent[name]['cpu'] / spent[name]['interval']:.1%}")
            lines.append(f"| {name} | {groups[name]['interval']:.0f} s | " + " | ".join(cells) + " |")
    return lines

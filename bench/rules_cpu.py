"""The CPU seconds of each rule, independent of the machine's load: scraping stops, then every expression is queried.

A duration grows with the machine's load, the CPU time of a process hardly does. The rules' own expressions are queried
at a time in each state, in a Prometheus that does nothing else. The cost of storing a rule's result is not
included; results are small compared with the samples read for them. Neither is garbage collection: it reads the whole
heap, which takes a second or more if that is large, and falls into an arbitrary expression.
"""

from __future__ import annotations

import math
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from tachograph.text import duration

ROUNDS = 6


def process_seconds(pid: int) -> float:
    """Return the CPU seconds of all threads of a process, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def ask(url: str, expression: str, moment: float) -> None:
    """Evaluate an expression as a rule would; return only the number of series."""
    body = urllib.parse.urlencode({"query": f"count({expression})", "time": f"{moment:.3f}", "timeout": "60s"})
    with urllib.request.urlopen(f"{url}/api/v1/query", data=body.encode(), timeout=90) as answer:
        answer.read()


def cost(pid: int, url: str, expression: str, moment: float) -> float:
    """Return the CPU seconds of one evaluation."""
    began = process_seconds(pid)
    ask(url, expression, moment)
    return process_seconds(pid) - began


def costs(pid: int, url: str, moment: float, rules: Path) -> dict[str, dict[str, Any]]:
    """Return for each rule group its interval, its CPU seconds, and those of each of its rules, the lowest of each.

    All are asked in turn, several times over: a collection that goes on for a while meets others in each round.
    """
    groups = [group for path in sorted(rules.glob("*.yml")) for group in yaml.safe_load(path.read_text())["groups"]]
    least = {group["name"]: [math.inf] * len(group["rules"]) for group in groups}
    for _ in range(ROUNDS):
        for group in groups:
            spent = [cost(pid, url, rule["expr"], moment) for rule in group["rules"]]
            least[group["name"]] = list(map(min, least[group["name"]], spent))
    found: dict[str, dict[str, Any]] = {}
    for group in groups:
        names = [f"{number} {rule.get('record') or rule['alert']}" for number, rule in enumerate(group["rules"])]
        each = dict(zip(names, least[group["name"]], strict=True))
        interval = duration.parse(group.get("interval", "5s"))
        found[group["name"]] = {"interval": interval, "cpu": sum(each.values()), "rules": each}
    return found

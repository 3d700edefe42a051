"""How often `tachograph bisect` finds the exact place, and in how many runs: made-up commands, some with wrong runs."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from random import Random
from typing import Any

from tachograph.bisect.boundary import Boundary, Candidates, next_value
from tachograph.bisect.nodes import BadNode, next_set
from tachograph.bisect.tally import Trial, lead_for
from tachograph_lab.table import save, show

COMMANDS = 2000
NODES = [f"node{number:02}" for number in range(64)]


def boundary(seed: int, wrong: float, lead: int) -> tuple[bool, int]:
    """Return whether the breaking point of a made-up command was found exactly, and in how many runs."""
    random = Random(seed)
    bad = random.randint(2, 4096)
    works_to = random.randint(1, bad - 1)
    trials: list[Trial] = []
    while isinstance(value := next_value(Candidates(1, bad), trials, lead), int):
        trials.append(made_up(str(value), random, wrong, works=value <= works_to))
    return value == Boundary(works_to, works_to + 1), len(trials)


def culprit(seed: int, wrong: float, lead: int) -> tuple[bool, int]:
    """Return the same of the one bad node of 64."""
    random = Random(seed)
    bad = NODES[seed % len(NODES)]
    trials: list[Trial] = []
    while not isinstance(found := next_set(NODES, (), 1, trials, lead), BadNode):
        trials.append(made_up(",".join(found), random, wrong, works=bad not in found))
    return found.node == bad, len(trials)


def made_up(value: str, random: Random, wrong: float, *, works: bool) -> Trial:
    """Return the trial of a command that has the wrong outcome in a share of its runs."""
    outcome = works if random.random() >= wrong else not works
    return Trial(value, outcome, int(not outcome), 0.0, "")


Search = Callable[[int, float, int], tuple[bool, int]]
CASES: tuple[tuple[str, Search, float, int], ...] = (
    ("a number, no wrong runs", boundary, 0.0, 2),
    ("a number, 10 % wrong runs", boundary, 0.1, 2),
    ("a number, 10 % wrong runs, --flaky 10", boundary, 0.1, lead_for(0.1)),
    ("one of 64 nodes, no wrong runs", culprit, 0.0, 1),
    ("one of 64 nodes, 10 % wrong runs", culprit, 0.1, 1),
    ("one of 64 nodes, 10 % wrong runs, --flaky 10", culprit, 0.1, lead_for(0.1)),
)


def main() -> None:
    """Print, for each case, how many of the made-up commands were judged rightly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", type=int, default=COMMANDS)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name, search, wrong, lead in CASES:
        found = [search(seed, wrong, lead) for seed in range(given.commands)]
        runs = [count for _, count in found]
        rows.append({
            "made-up commands": name, "exact": f"{sum(right for right, _ in found) / len(found):.2%}",
            "runs, median": statistics.median(runs), "runs, most": max(runs),
        })  # fmt: skip
    show(f"{given.commands} made-up commands of each kind", rows)
    save("bisections", {"rows": rows})


if __name__ == "__main__":
    main()

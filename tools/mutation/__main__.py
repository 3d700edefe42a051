"""Mutation testing of the Prometheus rules: each rule is changed in one place at a time, and some rule test must fail.

A mutant that survives is either untested or equivalent to the original (tools/mutation/mutants.yml says why).

    python -m tools.mutation                          # every mutant of every rule
    python -m tools.mutation --sample 400 --seed 1    # a random sample, stratified by rule file
    python -m tools.mutation --files skew data        # some rule files
    python -m tools.mutation --unchanged              # checks the tool: an unchanged rule must survive
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from tachograph_lab.replay import promtool_limit
from tachograph_lab.table import save, show
from tools.mutation.mutants import EXPLAINED, ROOT, Mutant, candidates, drawn, explained, unchanged
from tools.mutation.trial import Batch, RuleTest, scenarios, written

MOST_SURVIVE = 0.05
MOST_COPIES = 600
"""Copies of rules in one promtool run."""


@dataclass
class Campaign:
    """Which mutants were killed, and by which test; kept in a file, so that a run can be resumed."""

    alive: dict[int, Mutant]
    promtool: Path
    folder: Path
    ends: float
    killed: dict[str, str] = field(default_factory=dict)
    before: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        if self.results.exists():
            for line in self.results.read_text(encoding="utf-8").splitlines():
                one = json.loads(line)
                self.before.setdefault(one["scenario"], []).append(one)

    @property
    def results(self) -> Path:
        """The file that says what each scenario killed."""
        return self.folder / "results.jsonl"

    def run(self, over: Sequence[RuleTest], jobs: int, own: bool = False) -> None:
        """Try scenarios in order on the mutants that are left; `own`: only on those of the scenario's rule file."""
        names = {one.name: number for number, one in self.alive.items()}
        for scenario in over:
            for one in self.before.get(scenario.key, ()):
                for name in one["killed"].keys() & names.keys():
                    self.killed.setdefault(name, f"{scenario.name} ({one['killed'][name]})")
                    self.alive.pop(names[name], None)
        with ThreadPoolExecutor(jobs) as pool:
            for _ in pool.map(self.trial, over, itertools.repeat(own)):
                pass

    def trial(self, scenario: RuleTest, own: bool) -> None:
        """Try a scenario on the mutants that it could kill."""
        with self.lock:
            before = {name for one in self.before.get(scenario.key, ()) for name in one["tried"]}
            alive = dict(self.alive)
        reaches = {one.writes: scenario.reach.down(one.writes) for one in alive.values()}
        known = scenario.reach.reads
        reading = {name for name, reached in reaches.items() if name in known and scenario.notices(reached)}
        left = [number for number, one in alive.items() if one.writes in reading and one.name not in before]
        if own:
            left = [number for number in left if scenario.name.startswith(f"{alive[number].file}/")]
        random.Random(1).shuffle(left)
        while left and time.monotonic() < self.ends:
            some: dict[int, Mutant] = {}
            copies = 0
            while left and copies < MOST_COPIES:
                number = left.pop()
                if number in self.alive:
                    some[number] = alive[number]
                    copies += len(reaches[some[number].writes])
            if some:
                began = time.monotonic()
                killed = Batch(scenario, some, self.promtool, self.folder).killed()
                self.note(scenario, some, killed, time.monotonic() - began)

    def note(self, scenario: RuleTest, some: dict[int, Mutant], killed: dict[int, str], took: float) -> None:
        """Record the result of a batch."""
        with self.lock:
            for number, how in killed.items():
                self.killed.setdefault(some[number].name, f"{scenario.name} ({how})")
                self.alive.pop(number, None)
            tried = [one.name for number, one in some.items() if number not in killed]
            print(
                f"  {took:6.1f} s  {scenario.name}: {len(killed)} of {len(some)} killed, {len(self.alive)} left",
                flush=True,
            )
            hows = {some[number].name: how for number, how in killed.items()}
            line: dict[str, Any] = {"scenario": scenario.key, "tried": tried, "killed": hows, "seconds": round(took, 1)}
            self.before.setdefault(scenario.key, []).append(line)
            with self.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", nargs="*", default=[], help="rule files, without .yml")
    parser.add_argument("--sample", type=int, help="number of mutants to draw at random")
    parser.add_argument("--seed", type=int, default=1, help="seed of the draw")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--minutes", type=float, default=600, help="start no promtool after so many minutes")
    parser.add_argument("--folder", type=Path, help="folder of the results; a run resumes from it")
    parser.add_argument("--root", type=Path, default=ROOT, help="a copy of prometheus/ and tests/ to work on")
    parser.add_argument("--suite", default="bookworm", help="Debian release whose promtool is used")
    parser.add_argument("--list", action="store_true", help="list the mutants and exit")
    parser.add_argument("--unchanged", action="store_true", help="try unchanged rules")
    return parser.parse_args()


def main() -> None:
    """Try the mutants, print the survivors, and fail if too many are unexplained."""
    options = parse()
    rules, tests = options.root / "prometheus" / "rules", options.root / "tests" / "rules"
    every = list(candidates(options.files, rules))
    if options.unchanged:
        every = list(unchanged(every))
    some = drawn(every, options.sample, options.seed) if options.sample else every
    if options.list:
        print("\n".join(mutant.name for mutant in some))
        return
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tachograph-mutants-") as name:
        promtool, folder = promtool_limit.raised(options.suite), options.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        ends = began + 60 * options.minutes
        campaign = Campaign(dict(enumerate(some)), promtool, folder, ends)
        plain = scenarios(sorted(tests.glob("**/*.yml")), rules)
        campaign.run(plain, options.jobs, own=True)
        campaign.run(plain, options.jobs)
        if campaign.alive:
            python = scenarios(written(tests, folder), rules)
            campaign.run(python, options.jobs)
            campaign.run([one.with_texts() for one in [*plain, *python]], options.jobs)
    late = time.monotonic() > ends
    if options.unchanged:
        sys.exit(f"killed without a change: {campaign.killed}" if campaign.killed else 0)
    sys.exit(report(some, campaign.killed, len(every), time.monotonic() - began, late))


def report(tried: Sequence[Mutant], killed: dict[str, str], total: int, seconds: float, late: bool) -> str | int:
    """Print the results; return the exit status, a message for a failure."""
    reasons = explained()
    dead = {name for name, how in killed.items() if how.endswith("(parse)")}
    real = [one for one in tried if one.name not in dead]
    survived = [one for one in real if one.name not in killed]
    unexplained = [one for one in survived if one.name not in reasons]
    rows = [
        {
            "rule file": file,
            "mutants": sum(one.file == file for one in real),
            "killed": sum(one.file == file and one.name in killed for one in real),
            "explained": sum(one.file == file and one.name in reasons for one in survived),
            "survived": sum(one.file == file for one in unexplained),
        }
        for file in sorted({one.file for one in real})
    ]
    note = "out of time: not every test was tried on the survivors" if late else ""
    show(f"{len(real)} of {total} mutants in {seconds:.0f} s", rows, note)
    for one in unexplained:
        print(f"  survived: {one.name}")
    save("mutants", {"mutants": len(real), "of": total, "seconds": round(seconds), "late": late, "files": rows,
                     "survived": [one.name for one in survived], "killed": killed})  # fmt: skip
    share = len(unexplained) / max(1, len(real))
    return f"{share:.1%} survived without a reason in {EXPLAINED.name}" if share > MOST_SURVIVE else 0


if __name__ == "__main__":
    main()

"""Whether the rule tests notice when a rule is wrong.

Each rule is changed in one place at a time, and a test that loads its file must fail. What survives is a place that no
test looks at, or a change that changes nothing (tools/mutation/mutants.yml says why).

    python -m tools.mutation                          # every mutant of every rule
    python -m tools.mutation --sample 400 --seed 1    # some, of each rule file its share
    python -m tools.mutation --files skew data        # some rule files
    python -m tools.mutation --unchanged              # the tool itself: a rule that is not changed survives
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import yaml

from tachograph_lab.replay import promtool_limit
from tachograph_lab.table import save, show
from tools.mutation.text import Mutant, mutants, unchanged
from tools.mutation.trial import Batch, Scenario, scenarios, written

ROOT = Path(__file__).parents[2]
EXPLAINED = Path(__file__).with_name("mutants.yml")
MOST_SURVIVE = 0.05
MOST_COPIES = 600
"""Copies of rules in one promtool."""

GENERATED = {"dcgm"}
"""Rule files that are written by a program, and tested through it."""


def explained() -> dict[str, str]:
    """Return the reason for each mutant that changes nothing, by its name."""
    if not EXPLAINED.exists():
        return {}
    found = yaml.safe_load(EXPLAINED.read_text(encoding="utf-8")) or []
    return {f"{one['file']}: {one['rule']}: {one['change']}": one["reason"] for one in found}


def candidates(files: Sequence[str], rules: Path = ROOT / "prometheus" / "rules") -> Iterator[Mutant]:
    """Yield every mutant of the rule files named, of all if none is."""
    for path in sorted(rules.glob("*.yml")):
        if path.stem not in GENERATED and (not files or path.stem in files):
            yield from mutants(path.stem, path.read_text(encoding="utf-8"))


def drawn(every: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return some mutants at random, of each rule file its share, at least one."""
    chance = random.Random(seed)
    found = []
    for file in sorted({one.file for one in every}):
        own = [one for one in every if one.file == file]
        found += chance.sample(own, min(len(own), max(1, round(count * len(own) / len(every)))))
    return found


@dataclass
class Hunt:
    """Which mutants were noticed, and by what; kept in a file, so that a run can be taken up again."""

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
        """The file with what each scenario noticed."""
        return self.folder / "results.jsonl"

    def run(self, over: Sequence[Scenario], jobs: int, own: bool = False) -> None:
        """Try scenarios, in this order, on the mutants that are left; `own`: on those of the same name's rule file."""
        names = {one.name: number for number, one in self.alive.items()}
        for scenario in over:
            for one in self.before.get(scenario.key, ()):
                for name in one["killed"].keys() & names.keys():
                    self.killed.setdefault(name, f"{scenario.name} ({one['killed'][name]})")
                    self.alive.pop(names[name], None)
        with ThreadPoolExecutor(jobs) as pool:
            for _ in pool.map(self.trial, over, itertools.repeat(own)):
                pass

    def trial(self, scenario: Scenario, own: bool) -> None:
        """Try a scenario on the mutants that it could notice."""
        with self.lock:
            before = {name for one in self.before.get(scenario.key, ()) for name in one["tried"]}
            alive = dict(self.alive)
        reaches = {one.writes: scenario.reach.down(one.writes) for one in alive.values()}
        known = scenario.reach.reads
        heard = {name for name, reached in reaches.items() if name in known and scenario.notices(reached)}
        left = [number for number, one in alive.items() if one.writes in heard and one.name not in before]
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

    def note(self, scenario: Scenario, some: dict[int, Mutant], killed: dict[int, str], took: float) -> None:
        """Keep what came of a batch."""
        with self.lock:
            for number, how in killed.items():
                self.killed.setdefault(some[number].name, f"{scenario.name} ({how})")
                self.alive.pop(number, None)
            tried = [one.name for number, one in some.items() if number not in killed]
            print(
                f"  {took:6.1f} s  {scenario.name}: {len(killed)} of {len(some)} noticed, {len(self.alive)} left",
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
    parser.add_argument("--sample", type=int, help="only so many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--minutes", type=float, default=600, help="no promtool is begun later")
    parser.add_argument("--folder", type=Path, help="where results are kept, and from which a run goes on")
    parser.add_argument("--root", type=Path, default=ROOT, help="a copy of prometheus/ and tests/ to work on")
    parser.add_argument("--suite", default="bookworm", help="Debian release whose promtool is used")
    parser.add_argument("--list", action="store_true", help="only say what would be changed")
    parser.add_argument("--unchanged", action="store_true", help="try rules that are not changed")
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
        hunt = Hunt(dict(enumerate(some)), promtool, folder, ends)
        plain = scenarios(sorted(tests.glob("*/*.yml")), rules)
        hunt.run(plain, options.jobs, own=True)
        hunt.run(plain, options.jobs)
        if hunt.alive:
            python = scenarios(written(tests, folder), rules)
            hunt.run(python, options.jobs)
            hunt.run([one.with_texts() for one in [*plain, *python]], options.jobs)
    late = time.monotonic() > ends
    if options.unchanged:
        sys.exit(f"noticed without a change: {hunt.killed}" if hunt.killed else 0)
    sys.exit(report(some, hunt.killed, len(every), time.monotonic() - began, late))


def report(tried: Sequence[Mutant], killed: dict[str, str], total: int, seconds: float, late: bool) -> str | int:
    """Print what came of it; return the exit status, words for a failure."""
    reasons = explained()
    dead = {name for name, how in killed.items() if how.endswith("(parse)")}
    real = [one for one in tried if one.name not in dead]
    survived = [one for one in real if one.name not in killed]
    unexplained = [one for one in survived if one.name not in reasons]
    rows = [
        {
            "rule file": file,
            "mutants": sum(one.file == file for one in real),
            "noticed": sum(one.file == file and one.name in killed for one in real),
            "explained": sum(one.file == file and one.name in reasons for one in survived),
            "survived": sum(one.file == file for one in unexplained),
        }
        for file in sorted({one.file for one in real})
    ]
    note = "out of time: not every test was tried on those that survived" if late else ""
    show(f"{len(real)} of {total} mutants in {seconds:.0f} s", rows, note)
    for one in unexplained:
        print(f"  survived: {one.name}")
    save("mutants", {"mutants": len(real), "of": total, "seconds": round(seconds), "late": late, "files": rows,
                     "survived": [one.name for one in survived], "killed": killed})  # fmt: skip
    share = len(unexplained) / max(1, len(real))
    return f"{share:.1%} survived without a reason in {EXPLAINED.name}" if share > MOST_SURVIVE else 0

"""Whether the rule tests notice when a rule is wrong.

Each rule is changed in one place at a time, and a test that loads its file must fail. What survives is a place that no
test looks at, or a change that changes nothing (bench/mutants.yml says why).

    python bench/mutate_rules.py                        # every mutant of every rule: hours
    python bench/mutate_rules.py --sample 40 --seed 1   # a quick figure
    python bench/mutate_rules.py --files skew data      # some rule files
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

from mutate_rules_text import Mutant, mutants
from mutate_rules_trial import PythonTrial, Trial, trials
from table import save, show
from tachograph.lab import binaries

ROOT = Path(__file__).parent.parent
RULES = ROOT / "prometheus" / "rules"
EXPLAINED = Path(__file__).with_name("mutants.yml")
MOST_UNEXPLAINED = 0.05
GENERATED = {"dcgm"}
"""Rule files that are written by a program, and tested through it."""


@dataclass(frozen=True)
class Verdict:
    """A mutant and the test file that noticed it; None: it survived."""

    mutant: Mutant
    killed_by: str | None
    seconds: float


def explained() -> dict[str, str]:
    """Return the reason for each mutant that changes nothing, by its name."""
    if not EXPLAINED.exists():
        return {}
    found = yaml.safe_load(EXPLAINED.read_text(encoding="utf-8")) or []
    return {f"{one['file']}: {one['rule']}: {one['change']}": one["reason"] for one in found}


def candidates(files: list[str]) -> Iterator[Mutant]:
    """Yield every mutant of the rule files named, of all if none is."""
    for path in sorted(RULES.glob("*.yml")):
        if path.stem not in GENERATED and (not files or path.stem in files):
            yield from mutants(path.stem, path.read_text(encoding="utf-8"))


def judge(mutant: Mutant, against: list[Trial | PythonTrial]) -> Verdict:
    """Run the tests of its file until one fails."""
    began = time.monotonic()
    killed_by = next((trial.name for trial in against if not trial.passes(mutant)), None)
    seconds = time.monotonic() - began
    print(f"  {seconds:6.1f} s  {killed_by or 'SURVIVED'}  {mutant.name}", flush=True)
    return Verdict(mutant, killed_by, seconds)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", nargs="*", default=[], help="rule files, without .yml")
    parser.add_argument("--sample", type=int, help="only so many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--minutes", type=float, default=600, help="no mutant is begun later")
    parser.add_argument("--suite", default="bookworm", help="Debian release whose promtool is used")
    parser.add_argument("--list", action="store_true", help="only say what would be changed")
    return parser.parse_args()


def main() -> None:
    """Try the mutants, print the survivors, and fail if too many are unexplained."""
    options = parse()
    drawn = list(candidates(options.files))
    total = len(drawn)
    if options.sample and options.sample < total:
        drawn = random.Random(options.seed).sample(drawn, options.sample)
    if options.list:
        print("\n".join(mutant.name for mutant in drawn))
        return
    promtool = binaries.ensure(options.suite)["promtool"]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tachograph-mutants-") as name:
        against = trials(ROOT / "tests" / "rules", RULES, promtool, Path(name), {one.file for one in drawn})

        def attempt(mutant: Mutant) -> Verdict | None:
            late = time.monotonic() - began > 60 * options.minutes
            return None if late else judge(mutant, against[mutant.file])

        with ThreadPoolExecutor(options.jobs) as pool:
            verdicts = [verdict for verdict in pool.map(attempt, drawn) if verdict]
    sys.exit(report(verdicts, total, time.monotonic() - began))


def report(verdicts: list[Verdict], total: int, seconds: float) -> str | int:
    """Print what came of it; return the exit status, words for a failure."""
    reasons = explained()
    survived = [one for one in verdicts if one.killed_by is None]
    unexplained = [one for one in survived if one.mutant.name not in reasons]
    rows = [
        {
            "rule file": file,
            "mutants": sum(one.mutant.file == file for one in verdicts),
            "survived": sum(one.mutant.file == file for one in survived),
            "unexplained": sum(one.mutant.file == file for one in unexplained),
        }
        for file in sorted({one.mutant.file for one in verdicts})
    ]
    show(f"{len(verdicts)} of {total} mutants in {seconds:.0f} s", rows)
    for one in unexplained:
        print(f"  survived: {one.mutant.name}")
    save("mutants", {"mutants": len(verdicts), "of": total, "seconds": round(seconds), "files": rows,
                     "survived": [one.mutant.name for one in survived]})  # fmt: skip
    share = len(unexplained) / max(1, len(verdicts))
    return f"{share:.0%} survived without a reason in {EXPLAINED.name}" if share > MOST_UNEXPLAINED else 0


if __name__ == "__main__":
    main()

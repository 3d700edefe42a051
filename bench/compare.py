"""How often `tachograph compare` is right: made-up runs of 200 steps, by what their noise is like.

Each run is written by the client's own StepFile and read as a user's would be. Constants were chosen on seeds below
1000; reported are seeds from 1000 on. `--doc` writes the table of docs/evidence/compare.md.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tachograph.catalog.rank import PHASES
from tachograph.client.core.steps import StepRecord
from tachograph.client.hello.identity import Identity
from tachograph.compare.comparison import LIMIT, REGRESSION, WITHIN, Comparison, compare
from tachograph.compare.rank_steps import recording
from tachograph.compare.recording import RecordedRun
from tachograph.export.step_file import StepFile
from tachograph_lab.table import between, markdown, save, show

STEPS, PAIRS, FIRST_SEED = 200, 200, 1000
SECONDS, NOISE = 0.3, 0.03
WHO = Identity("made-up", 0, 0, 8, 0, 0)
DATA, FORWARD, BACKWARD = (PHASES.index(name) for name in ("data", "forward", "backward"))
DOCUMENT = Path(__file__).parents[1] / "docs/evidence/compare.md"
BEGIN, END = "<!-- begin: bench/compare.py --doc -->", "<!-- end: bench/compare.py --doc -->"

Noise = Callable[[Random], Iterator[float]]
"""Yields by what share each step is longer than it should be."""


def independent(random: Random) -> Iterator[float]:
    """Yield 3 % of independent noise."""
    while True:
        yield random.gauss(0, NOISE)


def alike(kept: float) -> Noise:
    """Return 3 % of noise in which a step keeps this share of the one before it (AR(1))."""

    def steps(random: Random) -> Iterator[float]:
        level = random.gauss(0, NOISE)
        while True:
            yield level
            level = kept * level + random.gauss(0, NOISE * math.sqrt(1 - kept**2))

    return steps


def slow_start(random: Random) -> Iterator[float]:
    """Yield noise, and a first fifth or so that begins at twice the length."""
    long = random.uniform(0.05, 0.3) * STEPS
    for step, noise in enumerate(independent(random)):
        yield noise + math.exp(-3 * step / long)


def outliers(random: Random) -> Iterator[float]:
    """Yield noise, and one step in fifty that takes three to ten times as long."""
    for noise in independent(random):
        yield noise + (random.uniform(2, 9) if random.random() < 0.02 else 0.0)


def saves(random: Random) -> Iterator[float]:
    """Yield noise, and every tenth step half as long again."""
    first = random.randrange(10)
    for step, noise in enumerate(independent(random), first):
        yield noise + 0.5 * (step % 10 == 0)


def levels(random: Random) -> Iterator[float]:
    """Yield noise around two levels, 10 % apart, that last for fifty and twenty steps."""
    high = False
    for noise in independent(random):
        high ^= random.random() < (0.05 if high else 0.02)
        yield noise + 0.1 * high


def skewed(random: Random) -> Iterator[float]:
    """Yield waits that are exponential, a tenth of a step on average."""
    while True:
        yield random.expovariate(10)


def other_day(random: Random) -> Iterator[float]:
    """Yield noise around a level of the run's own, 1 % apart: another node, another day."""
    level = random.gauss(0, 0.01)
    for noise in independent(random):
        yield level + noise


NOISES: tuple[tuple[str, Noise, int], ...] = (
    ("independent", independent, 1),
    ("each step keeps 0.5 of the last", alike(0.5), 1),
    ("0.7", alike(0.7), 1),
    ("0.9", alike(0.9), 1),
    ("0.95", alike(0.95), 1),
    ("a slow start", slow_start, 1),
    ("outliers", outliers, 1),
    ("every tenth step longer", saves, 1),
    ("two levels", levels, 1),
    ("exponential waits", skewed, 1),
    ("runs 1 % apart, one of each", other_day, 1),
    ("runs 1 % apart, two of each", other_day, 2),
    ("runs 1 % apart, three of each", other_day, 3),
)
"""A name, the noise, and the runs on each side."""


def write_run(path: Path, random: Random, noise: Noise, slower: float) -> None:
    """Write a run whose steps take a share `slower` more, because its backward does."""
    file = StepFile(path)
    file.start(WHO)
    seconds, now, wait = [0.0] * len(PHASES), 0.0, 0.0
    for step, excess in zip(range(STEPS + 2), noise(random), strict=False):
        factor = max(0.5, 1 + excess)
        seconds[DATA] += SECONDS * 0.05 * random.expovariate(1)
        seconds[FORWARD] += SECONDS * 0.3 * factor
        seconds[BACKWARD] += SECONDS * factor * (0.6 + slower)
        wait += SECONDS * 0.05 * random.uniform(0.5, 1.5)
        began, now = now, now + SECONDS * factor * (1 + slower)
        file.logged(step, {"loss": 2 + 2 / (1 + step / 20) + random.gauss(0, 0.05)})
        tag = "warm-up" if step == 0 else None
        file.observe(StepRecord(step, began, now, tag, tuple(seconds), wait))
    file.write(0.0, STEPS, {"tokens_total": 4096.0 * STEPS, "steps_total": STEPS, "memory_peak_bytes": 60e9})
    file.close()


def compared(folder: Path, seed: int, noise: Noise, slower: float, each: int) -> Comparison:
    """Return the comparison of runs and of slower ones."""
    sides: list[list[RecordedRun]] = []
    for name, share in (("a", 0.0), ("b", slower)):
        sides.append([])
        for number in range(each):
            path = folder / f"{name}{number}.jsonl"
            write_run(path, Random(f"{seed} {name} {number}"), noise, share)
            sides[-1].append(recording(path, path.read_text(encoding="utf-8")))
    first, second = sides
    return compare(first, second)


@dataclass
class Score:
    """How comparisons of one noise and one slowdown ended."""

    verdicts: Counter[str] = field(default_factory=Counter)
    covered: int = 0
    intervals: int = 0


def score(noise: Noise, slower: float, each: int, first_seed: int, pairs: int) -> Score:
    """Return the verdicts, and how many intervals of the step time have the true change."""
    found = Score()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first_seed, first_seed + pairs):
            comparison = compared(Path(folder), seed, noise, slower, each)
            found.verdicts[comparison.verdict] += 1
            for row in comparison.rows:
                if row.measure.name in ("step_time", "mean_step_time") and row.low is not None and row.high is not None:
                    found.intervals += 1
                    found.covered += row.low <= slower <= row.high
    return found


def row(name: str, noise: Noise, each: int, given: argparse.Namespace) -> dict[str, str]:
    """Return a row of the table, as shares of the pairs."""
    same, little, much = (score(noise, slower, each, given.first_seed, given.pairs) for slower in (0.0, 0.01, 0.05))
    told = much.verdicts[REGRESSION] + much.verdicts[WITHIN]
    covered = sum(one.covered for one in (same, little, much)) / sum(one.intervals for one in (same, little, much))
    return {
        "noise": name,
        "95 % interval covers": f"{covered:.1%}",
        "regression at 0 %": f"{same.verdicts[REGRESSION] / given.pairs:.1%}",
        "at 1 %": f"{little.verdicts[REGRESSION] / given.pairs:.1%}",
        "at 5 %": f"{much.verdicts[REGRESSION] / given.pairs:.1%}",
        "of those told": f"{much.verdicts[REGRESSION] / told:.1%}" if told else "-",
        "cannot tell, at 5 %": f"{1 - told / given.pairs:.1%}",
    }


def main() -> int:
    """Print a row for each kind of noise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--doc", action="store_true", help=f"write the table into {DOCUMENT.name}")
    given = parser.parse_args()
    rows = [row(*one, given) for one in NOISES]
    title = f"{given.pairs} pairs of runs of {STEPS} steps with {NOISE:.0%} noise for each slowdown, limit {LIMIT:.0%}"
    show(title, rows)
    save("compare", {"pairs": given.pairs, "rows": rows})
    if given.doc:
        text = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(
            between(text, BEGIN, END, [f"{title}.", "", *markdown(list(rows[0]), (one.values() for one in rows))]),
            encoding="utf-8",
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

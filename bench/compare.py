"""How often `tachograph compare` is wrong: pairs of made-up runs of 200 steps, by what their noise is like.

Each run is written by the client's own StepFile and read as a user's would be. Constants were chosen on seeds below
1000; reported are seeds from 1000 on.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from tachograph.catalog.rank import PHASES
from tachograph.client.core.steps import StepRecord
from tachograph.client.hello.identity import Identity
from tachograph.compare.comparison import INCONCLUSIVE, LIMIT, NOT_JUDGED, REGRESSION, Comparison, compare
from tachograph.compare.rank_steps import recording
from tachograph.export.step_file import StepFile
from tachograph_lab.table import save, show

STEPS, PAIRS, FIRST_SEED = 200, 100, 1000
SECONDS, NOISE = 0.3, 0.03
WHO = Identity("made-up", 0, 0, 8, 0, 0)
DATA, FORWARD, BACKWARD = (PHASES.index(name) for name in ("data", "forward", "backward"))

Noise = Callable[[Random], Iterator[float]]
"""Yields by what share each step is longer than it should be."""


def independent(random: Random) -> Iterator[float]:
    """Yield 3 % of independent noise."""
    while True:
        yield random.gauss(0, NOISE)


def alike(random: Random) -> Iterator[float]:
    """Yield 3 % of noise in which a step is like the one before it (AR(1), 0.7)."""
    level, kept = random.gauss(0, NOISE), 0.7
    while True:
        yield level
        level = kept * level + random.gauss(0, NOISE * math.sqrt(1 - kept**2))


def slow_start(random: Random) -> Iterator[float]:
    """Yield noise, and a first fifth or so that begins at twice the length."""
    long = random.uniform(0.05, 0.3) * STEPS
    for step, noise in enumerate(independent(random)):
        yield noise + math.exp(-3 * step / long)


def outliers(random: Random) -> Iterator[float]:
    """Yield noise, and one step in fifty that takes three to ten times as long."""
    for noise in independent(random):
        yield noise + (random.uniform(2, 9) if random.random() < 0.02 else 0.0)


def other_day(random: Random) -> Iterator[float]:
    """Yield noise around a level of the run's own, 1 % apart: another node, another day."""
    level = random.gauss(0, 0.01)
    for noise in independent(random):
        yield level + noise


NOISES: tuple[tuple[str, Noise], ...] = (
    ("independent", independent),
    ("alike neighbours", alike),
    ("a slow start", slow_start),
    ("outliers", outliers),
    ("another day", other_day),
)


def write_run(path: Path, random: Random, noise: Noise, slower: float) -> None:
    """Write a run whose steps take `slower` more, as a share, because its backward does."""
    file = StepFile(path)
    file.start(WHO)
    seconds, now, wait = [0.0] * len(PHASES), 0.0, 0.0
    for step, excess in zip(range(STEPS + 2), noise(random), strict=False):
        factor = max(0.5, 1 + excess)
        seconds[DATA] += SECONDS * 0.05 * random.expovariate(1)
        seconds[FORWARD] += SECONDS * 0.3 * factor
        seconds[BACKWARD] += SECONDS * (0.6 * factor + slower)
        wait += SECONDS * 0.05 * random.uniform(0.5, 1.5)
        began, now = now, now + SECONDS * (factor + slower)
        file.logged(step, {"loss": 2 + 2 / (1 + step / 20) + random.gauss(0, 0.05)})
        tag = "warm-up" if step == 0 else None
        file.observe(StepRecord(step, began, now, tag, tuple(seconds), wait))
    file.write(0.0, STEPS, {"tokens_total": 4096.0 * STEPS, "steps_total": STEPS, "memory_peak_bytes": 60e9})
    file.close()


def pair(folder: Path, seed: int, noise: Noise, slower: float) -> Comparison:
    """Return the comparison of a run and a slower one."""
    runs = []
    for name, share in (("a", 0.0), ("b", slower)):
        path = folder / f"{name}.jsonl"
        write_run(path, Random(f"{seed} {name}"), noise, share)
        runs.append(recording(path, path.read_text(encoding="utf-8")))
    return compare(runs[0], runs[1])


def verdicts(noise: Noise, slower: float, first_seed: int, pairs: int) -> tuple[Counter[str], Counter[str]]:
    """Return the verdicts of pairs, and the measures that were called a regression."""
    found: Counter[str] = Counter()
    called: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first_seed, first_seed + pairs):
            compared = pair(Path(folder), seed, noise, slower)
            found[compared.verdict] += 1
            called.update(row.measure.name for row in compared.rows if row.verdict == REGRESSION)
            assert any(row.verdict != NOT_JUDGED for row in compared.rows)
    return found, called


def main() -> None:
    """Print, for each kind of noise and each slowdown, how many pairs were called what."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    given = parser.parse_args()
    rows = []
    for name, noise in NOISES:
        for slower in (0.0, 0.01, 0.05):
            found, called = verdicts(noise, slower, given.first_seed, given.pairs)
            measures = ", ".join(f"{measure} {count}" for measure, count in called.most_common())
            rows.append({
                "noise": name, "slower by": f"{slower:.0%}", "regressions": found[REGRESSION],
                "inconclusive": found[INCONCLUSIVE], "measures called that": measures or "-",
            })  # fmt: skip
    title = f"{given.pairs} pairs of runs of {STEPS} steps with {NOISE:.0%} noise, limit {LIMIT:.0%}"
    show(title, rows)
    save("compare", {"pairs": given.pairs, "rows": rows})


if __name__ == "__main__":
    main()

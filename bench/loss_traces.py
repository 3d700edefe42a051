"""Labelled loss traces, generated from a seed: what a loss detector must flag, and what it must not.

The healthy loss is a power law that falls to a floor, times noise. Half of the traces start with the run, half later in
it. A *spike* is a rise of at least a fifth of the level and of at least eight standard deviations of the noise; smaller
ones are not in the suite, as people would not agree on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random

STEPS = 1500
HEALTHY_STEPS = 100_000
STEPS_PER_MINUTE = 60
DIVERGENCE_PER_MINUTE = 0.002
DIVERGENCE_MINUTES = 30

LEAST_RISE = 0.2
LEAST_DEVIATIONS = 8.0
MOST_RISE = 3.0

SHIFT_NEUTRAL_STEPS = 300
"""A lasting step up looks like a spike until it has lasted; an alarm in its first steps is neither right nor wrong."""

NOISES: tuple[tuple[str, float], ...] = (
    ("gaussian", 0.01), ("gaussian", 0.02), ("gaussian", 0.05), ("gaussian", 0.10),
    ("heavy", 0.01), ("heavy", 0.02), ("heavy", 0.03),
    ("correlated", 0.01), ("correlated", 0.02), ("correlated", 0.05),
)  # fmt: skip
"""Shape and relative standard deviation: a seed takes the row of its last digit. Heavy tails are Student's t with five
degrees of freedom, drawn again beyond six deviations; correlated noise is autoregressive, 0.9 from step to step."""

CORRELATION = 0.9
TAIL_DEGREES = 5
MOST_DEVIATIONS = 6.0
"""Beyond this, noise would be a spike by the definition above, and the labels would contradict themselves."""


@dataclass(frozen=True)
class Trace:
    """Logged values in order. Spans are half-open ranges of positions in `values`."""

    kind: str
    values: list[float]
    steps: list[int]
    events: Sequence[range] = ()
    neutral: Sequence[range] = ()
    restarts: frozenset[int] = field(default_factory=frozenset)
    """Positions at which a new process begins: a detector keeps only what its program saves in checkpoints."""

    least_share: float = 0.0
    """Least share of an event's steps that must be flagged for it to count as found."""

    rates: Sequence[float] = ()
    """The learning rate of each step, if the trace is about it."""


class _Run:
    """One healthy loss curve and its noise."""

    def __init__(self, kind: str, seed: int, steps: int = STEPS, *, fresh: bool | None = None) -> None:
        self.kind = kind
        self.random = Random(f"{kind} {seed}")
        self.shape, self.noise = NOISES[seed % len(NOISES)]
        is_fresh = self.random.random() < 0.5 if fresh is None else fresh
        self.first = 0 if is_fresh else self.random.randrange(1_000, 50_000)
        floor, height = self.random.uniform(1.5, 2.5), self.random.uniform(6, 9)
        reach, power = self.random.uniform(20, 200), self.random.uniform(0.4, 0.8)
        self.levels = [floor + height * (1 + step / reach) ** -power for step in range(self.first, self.first + steps)]
        self.steps = list(range(self.first, self.first + steps))
        self.rises = [0.0] * steps
        """The size of the event as a share of the run's level."""

    def draw_rise(self) -> float:
        least = self.least_rise
        return least * math.pow(MOST_RISE / least, self.random.random())

    @property
    def least_rise(self) -> float:
        return max(LEAST_RISE, LEAST_DEVIATIONS * self.noise)

    def raise_by(self, span: range, rise: float) -> range:
        """Lift the loss over `span` and return the span."""
        for i in span:
            self.rises[i] += rise
        return span

    def trace(
        self, events: Sequence[range] = (), neutral: Sequence[range] = (), restarts: frozenset[int] = frozenset()
    ) -> Trace:
        deviations = noise(self.random, self.shape, self.noise)
        lifted = zip(self.levels, self.rises, deviations, strict=False)
        values = [level * (1 + rise) * math.exp(deviation) for level, rise, deviation in lifted]
        return Trace(self.kind, values, self.steps, events, neutral, restarts)


def noise(random: Random, shape: str, size: float) -> Iterator[float]:
    """Yield endless noise of standard deviation `size`."""
    last = random.gauss(0, 1)
    while True:
        fresh = random.gauss(0, 1)
        if shape == "gaussian":
            yield size * fresh
        elif shape == "heavy":  # t = normal / sqrt(chi²/n), brought to variance one
            heavy = fresh * math.sqrt((TAIL_DEGREES - 2) / random.gammavariate(TAIL_DEGREES / 2, 2))
            if abs(heavy) <= MOST_DEVIATIONS:
                yield size * heavy
        else:
            last = CORRELATION * last + math.sqrt(1 - CORRELATION**2) * fresh
            yield size * last


def healthy(seed: int) -> Trace:
    """Return 100,000 steps without an event."""
    return _Run("healthy", seed, HEALTHY_STEPS, fresh=True).trace()


def short_spike(seed: int) -> Trace:
    """A spike of one to three steps that heals."""
    run = _Run("spike of 1–3 steps", seed)
    start = run.random.randrange(200, STEPS - 50)
    event = run.raise_by(range(start, start + run.random.randint(1, 3)), run.draw_rise())
    return run.trace([event])


def early_spike(seed: int) -> Trace:
    """A spike of one to three steps within the first 60 of a run, while the loss falls fast."""
    run = _Run("spike in steps 9–60 of a run", seed, fresh=True)
    start = run.random.randint(9, 60)
    event = run.raise_by(range(start, start + run.random.randint(1, 3)), run.draw_rise())
    return run.trace([event])


def long_spike(seed: int) -> Trace:
    """A spike of 20 to 200 steps: one half ends at once, one half sinks until it is no spike any more."""
    run = _Run("spike of 20–200 steps", seed)
    start, length, rise = run.random.randrange(200, STEPS - 500), run.random.randint(20, 200), run.draw_rise()
    event, after = range(start, start + length), range(start + length, start + 2 * length)
    if run.random.random() < 0.5:
        run.raise_by(event, rise)
        return run.trace([event])
    for i in (*event, *after):
        run.rises[i] += rise * (run.least_rise / rise) ** ((i - start) / length)
    return run.trace([event], [after])


def spike_after_restart(seed: int) -> Trace:
    """A new process resumes from a checkpoint, and a spike comes 12 to 150 steps later."""
    run, back = _restarted("spike 12–150 steps after a restart", seed)
    start = back + run.random.randint(12, 150)
    event = run.raise_by(range(start, start + run.random.randint(1, 3)), run.draw_rise())
    return run.trace([event], restarts=frozenset([back]))


def nan(seed: int) -> Trace:
    """One to 50 losses that are NaN."""
    run = _Run("NaN for 1–50 steps", seed)
    start = run.random.randrange(200, STEPS - 100)
    event = run.raise_by(range(start, start + run.random.randint(1, 50)), math.nan)
    return run.trace([event])


def slow_divergence(seed: int) -> Trace:
    """The loss stops falling and climbs by 0.2 % per minute for half an hour, at one step per second."""
    length = DIVERGENCE_MINUTES * STEPS_PER_MINUTE
    run = _Run("slow divergence, 0.2 % a minute", seed, 600 + length, fresh=False)
    event = range(600, 600 + length)
    turn = run.levels[600]
    for i in event:
        run.levels[i] = turn * (1 + DIVERGENCE_PER_MINUTE) ** ((i - 600) / STEPS_PER_MINUTE)
    return replace(run.trace([event]), least_share=0.05)  # a lone alarm within half an hour is chance


def learning_rate_drop(seed: int) -> Trace:
    """The learning rate falls and the loss with it, by 5 to 20 % within 5 to 100 steps."""
    run = _Run("learning-rate drop", seed)
    start, length, fall = run.random.randrange(200, 900), run.random.randint(5, 100), run.random.uniform(0.05, 0.2)
    for i in range(start, STEPS):
        run.rises[i] -= fall * (1 - math.exp((start - i) / length))
    return run.trace()


def learning_rate_rise(seed: int) -> Trace:
    """The learning rate is raised, two to ten times, and the loss with it, by 5 to 30 % within 3 to 40 steps."""
    run = _Run("learning-rate rise", seed)
    start, length, rise = run.random.randrange(200, 900), run.random.randint(3, 40), run.random.uniform(0.05, 0.3)
    for i in range(start, STEPS):
        run.rises[i] += rise * (1 - math.exp((start - i) / length))
    rate, factor = 10 ** run.random.uniform(-5, -3), run.random.uniform(2, 10)
    return replace(run.trace(), rates=[rate * factor if i >= start else rate for i in range(STEPS)])


def shift_down(seed: int) -> Trace:
    """Easier data from one step on: the loss is 10 to 40 % lower for good."""
    run = _Run("data shift down", seed)
    run.raise_by(range(run.random.randrange(200, 1000), STEPS), -run.random.uniform(0.1, 0.4))
    return run.trace()


def shift_up(seed: int) -> Trace:
    """Harder data from one step on: the loss is 10 to 60 % higher for good; see SHIFT_NEUTRAL_STEPS."""
    run = _Run("data shift up", seed)
    start = run.random.randrange(200, 1000)
    run.raise_by(range(start, STEPS), run.random.uniform(0.1, 0.6))
    return run.trace(neutral=[range(start, start + SHIFT_NEUTRAL_STEPS)])


def restart(seed: int) -> Trace:
    """A new process resumes from a checkpoint; the loss is up to 5 % higher at first."""
    run, back = _restarted("restart", seed)
    return run.trace(restarts=frozenset([back]))


def rollback(seed: int) -> Trace:
    """The same process loads a checkpoint; the loss is up to 5 % higher at first."""
    run, _ = _restarted("rollback in the same process", seed)
    return run.trace()


def plateau(seed: int) -> Trace:
    """The loss is constant."""
    run = _Run("plateau", seed)
    start = run.random.randrange(200, 900)
    run.levels[start:] = [run.levels[start]] * (STEPS - start)
    return run.trace()


def _restarted(kind: str, seed: int) -> tuple[_Run, int]:
    """Return a run that repeats its last 50 to 300 steps from position `back` on."""
    run = _Run(kind, seed)
    back, lost = run.random.randrange(500, 1000), run.random.randint(50, 300)
    run.levels[back:] = run.levels[back - lost : STEPS - lost]
    run.steps[back:] = run.steps[back - lost : STEPS - lost]
    bump, length = run.random.uniform(0, 0.05), run.random.randint(10, 100)
    for i in range(back, STEPS):
        run.rises[i] += bump * math.exp((back - i) / length)
    return run, back


SUITE: tuple[Callable[[int], Trace], ...] = (
    short_spike, long_spike, early_spike, spike_after_restart, nan, slow_divergence,
    learning_rate_drop, learning_rate_rise, shift_down, shift_up, restart, rollback, plateau,
)  # fmt: skip


def gradient_norms(seed: int, *, length: int, steps: int = STEPS) -> Trace:
    """A gradient norm with 10 to 30 % noise (log-normal, a quarter of it carried over); it jumps × 3 to 10.

    `length` is how many steps the jump lasts; with 0 there is none.
    """
    random = Random(f"gradient norm {length} {seed}")
    size, level = random.uniform(0.1, 0.3), random.uniform(0.2, 2)
    deviations = noise(random, "gaussian", size)
    values, last = [], 0.0
    for _ in range(steps):
        last = 0.25 * last + next(deviations)
        values.append(level * math.exp(last))
    kind = "healthy" if not length else "jump of 1–3 steps" if length <= 3 else "jump of 20–200 steps"
    if not length:
        return Trace(kind, values, list(range(steps)))
    start, factor = random.randrange(200, steps - 2 * length), random.uniform(3, 10)
    for i in range(start, start + length):
        values[i] *= factor
    return Trace(kind, values, list(range(steps)), [range(start, start + length)])

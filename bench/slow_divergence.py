"""The rule LossDiverging of prometheus/rules/loss_trend.yml, reimplemented in Python for the bench.

It runs step by step at one step per second, whereas Prometheus scrapes every 5 s and evaluates every 15 s.
tests/rules/test_divergence.py compares the two. Run as a program, it prints how soon the rule detects the bench's slow
divergences, by noise, and how often it is wrong on healthy losses.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import loss_traces
from loss_traces import Trace
from tachograph_lab.table import save, show

SCRAPE, LOOK = 5, 15
WINDOW_SECONDS = 1200
LOOKS = WINDOW_SECONDS // LOOK
LEAST_LOOKS = 76
THIRD = 400
LEAST_CLIMB = 0.015
LEAST_CORRELATION = 0.7
LEAST_THIRD = 0.1
PERSISTS = 60
RATE_FACTOR = 1.5


class SlowDivergence:
    """Decides whether the alert would fire."""

    def __init__(self) -> None:
        self._seconds = 0
        self._last_step = -1
        self._minute: deque[float] = deque(maxlen=60 // SCRAPE)
        self._means: deque[float] = deque(maxlen=LOOKS)
        self._medians: deque[float] = deque(maxlen=2 * THIRD // LOOK + 1)
        self._excused_until = 0
        self._rate: float | None = None
        self._since: int | None = None
        self._fires = False

    def learning_rate(self, rate: float) -> None:
        """Take the learning rate; a change by half within the window suppresses the alert."""
        if self._rate and max(rate, self._rate) > RATE_FACTOR * min(rate, self._rate):
            self._excused_until = self._seconds + WINDOW_SECONDS
        self._rate = rate

    def observe(self, step: int, loss: float, *, spike: bool = False) -> bool:
        """Take the loss of one step, a second after the previous one."""
        if spike or step < self._last_step:
            self._excused_until = self._seconds + WINDOW_SECONDS
        self._last_step = step
        self._seconds += 1
        if self._seconds % SCRAPE == 0 and math.isfinite(loss):
            self._minute.append(loss)
        if self._seconds % LOOK == 0 and self._minute:
            self._look()
        return self._fires

    def _look(self) -> None:
        self._means.append(statistics.fmean(self._minute))
        self._medians.append(statistics.median(islice(self._means, max(0, len(self._means) - THIRD // LOOK), None)))
        if self._seconds < self._excused_until or not self._climbs():
            self._since, self._fires = None, False
            return
        self._since = self._seconds if self._since is None else self._since
        self._fires = self._seconds - self._since >= PERSISTS

    def _climbs(self) -> bool:
        count = len(self._means)
        if count < LEAST_LOOKS or len(self._medians) < 2 * THIRD // LOOK + 1:
            return False
        rise = LOOKS * slope(self._means)
        if rise < LEAST_CLIMB * abs(statistics.fmean(self._means)):
            return False
        if rise < LEAST_CORRELATION * math.sqrt(12) * statistics.pstdev(self._means):
            return False
        first, middle, last = self._medians[0], self._medians[THIRD // LOOK], self._medians[-1]
        least = LEAST_THIRD * (last - first)
        return middle - first >= least and last - middle >= least


def slope(values: Sequence[float]) -> float:
    """Return the slope of the line fitted to equidistant values, per interval."""
    middle = (len(values) - 1) / 2
    weights = [i - middle for i in range(len(values))]
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(w * w for w in weights)


def seen_after(trace: Trace) -> float:
    """Return the seconds from the start of a slow divergence to the alert; infinite if it never fires."""
    rule, event = SlowDivergence(), trace.events[0]
    for i, (step, loss) in enumerate(zip(trace.steps, trace.values, strict=True)):
        if rule.observe(step, loss) and i in event:
            return i - event.start
    return math.inf


def false_alarms(trace: Trace) -> int:
    """Return how often the alert starts to fire on a healthy trace."""
    rule = SlowDivergence()
    fires = [rule.observe(step, loss) for step, loss in zip(trace.steps, trace.values, strict=True)]
    return sum(now and not before for before, now in zip([False, *fires], fires, strict=False))


def by_noise(seeds: Iterable[int]) -> list[dict[str, Any]]:
    """Return for each kind of noise, and for all, how many divergences are detected how soon after their start."""
    delays: dict[tuple[str, float], list[float]] = {noise: [] for noise in loss_traces.NOISES}
    for seed in seeds:
        delays[loss_traces.NOISES[seed % len(loss_traces.NOISES)]].append(seen_after(loss_traces.slow_divergence(seed)))
    rows = [_row(f"{shape}, {100 * size:.0f} %", values) for (shape, size), values in delays.items()]
    return [*rows, _row("all", [delay for values in delays.values() for delay in values])]


def _row(noise: str, delays: Sequence[float]) -> dict[str, Any]:
    within = {f"within {minutes} min": sum(delay < 60 * minutes for delay in delays) for minutes in (16, 18, 20, 30)}
    median = statistics.median(delays) / 60
    return {"noise": noise, "traces": len(delays), **within, "median, min": median if median < math.inf else "–"}


def main() -> None:
    """Print the table and the false alarms, and write bench/out/slow_divergence.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=1000, help="first seed")
    parser.add_argument("--seeds", type=int, default=100, help="number of divergences")
    parser.add_argument("--healthy", type=int, default=20, help="number of healthy traces of 100,000 steps")
    options = parser.parse_args()
    rows = by_noise(range(options.first, options.first + options.seeds))
    show("Slow divergence, 0.2 % a minute", rows)
    healthy = [false_alarms(loss_traces.healthy(options.first + i)) for i in range(options.healthy)]
    steps = options.healthy * loss_traces.HEALTHY_STEPS
    show("Healthy", [{"steps": f"{steps:,}", "false alarms": sum(healthy)}])
    save("slow_divergence", {"by_noise": rows, "healthy_steps": steps, "false_alarms": sum(healthy)})


if __name__ == "__main__":
    main()

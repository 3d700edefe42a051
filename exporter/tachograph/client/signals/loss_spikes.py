"""Loss spikes, by a robust score against the loss's own recent past, and the first NaN.

Runs in the sender thread on what the training thread logged.

Method. Training loss falls, so a plain trailing median lies above the healthy values and hides a spike early on. What
is scored is the *rise*: the loss minus the median of the last 8 normal losses, in units of how rises normally spread
(scaled interquartile range of the last 128; up to a quarter of them may be outliers). Spikes never enter that
past, so a shift cannot hide itself. Six standard deviations, the limit of OLMo-core's `SkipStepOptimizer`, are the
least; noise with heavy tails raises the limit to twice the highest score it normally has, and so does a short past.
docs/evidence/detectors.md has precision and recall beside three peers; `python bench/detectors.py` prints them.

A textbook score is reported as well, to look at: no decision depends on it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from time import monotonic, time

from tachograph.catalog.rank import NONFINITE_SOURCES
from tachograph.client.core.sorted_window import SortedWindow, median
from tachograph.client.signals.spike import Spike

WINDOW = 128
LEVEL_WINDOW = 8
LEVEL_MINIMUM = 4
SLOW_WINDOW = 32
"""A loss that climbs by less than the limit in each step takes the level along, but not that of so many losses."""

SLOW_RISE = (SLOW_WINDOW + 1) / (LEVEL_WINDOW + 1)
"""By what factor a loss that climbs evenly is further above that level. One that always has, like a generator's while
its discriminator learns, is as usual: its own median rise, so many times, is no part of the score."""

SPIKE_SCORE = 6.0
HEALED_SCORE = 3.0
"""A spike ends below half its limit, so that noise around the limit does not restart the count."""

MIN_RISES = 4
SHORT_PAST = 5.0
"""With few rises the spread is uncertain, so the limit grows by this divided by their number: × 2.25 with 4."""

TAIL_FACTOR = 2.0
MOST_SCORE = 10.0
TAIL_AT_FIRST: float = 4.0
TAIL_KEPT = 0.9995
"""A new baseline expects scores up to 4; what it has seen fades by half in 1,400 steps. The factor leaves room for the
rare score of a heavy tail: Student's t with five degrees of freedom takes the limit to 8 or 9, and at most to 10, while
normal noise leaves it near 6."""

TAIL_MIN_RISES = 20
"""Scores against fewer rises are too rough to estimate a tail."""

SPREAD_FLOOR = 0.02
"""Least spread, as a share of the level: a loss that hardly moves is not in alarm over a rise of less than 12 %."""

TRAILING = 4
"""The textbook z-score looks at this many losses; its limit is 3."""

RESUME_GRACE = 20
RATE_JUMP_GRACE = 50
"""Steps without a new spike after a resume, whose first losses are the restored optimizer's affair, and after a jump of
the learning rate."""


class LossWatch:
    """Scores each loss against the normal ones before it; `score` is None if they are few or it is not finite."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.spikes = 0
        self.spike = Spike(clock)
        self.score: float | None = None
        self._last_step = -1
        self._last: float | None = None
        self._grace = 0
        self._grace_end = 0
        self._normal: tuple[float, float | None, float | None] | None = None
        self._tail = TAIL_AT_FIRST
        self._score_before = 0.0
        self._forget()

    def grace(self, steps: int) -> None:
        """Let no spike begin for so many steps from the next loss on; the level goes on learning."""
        self._grace = max(self._grace, steps)

    def observe(self, step: int, loss: float) -> None:
        """Take the loss of one step; a step number that goes back (a rollback, a restart) starts a new baseline."""
        if step < self._last_step:
            self._forget()
            self._grace_end = 0
        if self._grace:
            self._grace_end, self._grace = step + self._grace, 0
        self._last_step = step
        if not math.isfinite(loss):
            self.score = self._last = None
            return
        self._settle()
        recent = sorted(islice(self._recent, max(len(self._recent) - LEVEL_WINDOW, 0), None))
        level = median(recent) if recent else loss
        rise = loss - level
        self.score = self._score(rise, level)
        self._last = loss
        odd = self._is_odd(loss)
        if odd and (self.spike.steps or step >= self._grace_end):
            if not self.spike.steps:
                self.spikes += 1
            if self.spike.go_on(step):
                self._forget()
            return
        self.spike.end()
        self._normal = loss, None if odd else rise, self.score

    @property
    def trailing_score(self) -> float | None:
        """The textbook z-score: the last loss against mean and standard deviation of the four normal ones before it.

        None until there are four, and where they do not differ.
        """
        if self._last is None or len(self._recent) < TRAILING:
            return None
        mean, deviation = trailing(islice(self._recent, len(self._recent) - TRAILING, None))
        return (self._last - mean) / deviation if deviation > 1e-9 * abs(mean) else None

    def metrics(self) -> dict[str, object]:
        """Return what is known of the loss; the number of spikes always, from 0 on."""
        metrics: dict[str, object] = {"loss_spikes_total": self.spikes}
        if self._last_step >= 0:
            metrics["loss_spike_steps"] = self.spike.steps
        if self.score is not None:
            metrics["loss_zscore"] = self.score
        if (trailing_score := self.trailing_score) is not None:
            metrics["loss_trailing_zscore"] = trailing_score
        return metrics

    def _score(self, rise: float, level: float) -> float | None:
        if len(self._rises) < MIN_RISES:
            return None
        return rise / max(self._rises.spread, SPREAD_FLOOR * abs(level), 1e-12)

    def _is_odd(self, loss: float) -> bool:
        if self.score is None:
            return False
        score = self.score
        if len(self._recent) == SLOW_WINDOW:
            level = median(sorted(self._recent))
            usual = SLOW_RISE * max(self._rises.median, 0.0)
            score = max(score, self._score(loss - level - usual, level) or score)
        return score > (HEALED_SCORE if self.spike.steps else self._limit())

    def _limit(self) -> float:
        by_tail = min(max(SPIKE_SCORE, TAIL_FACTOR * self._tail), MOST_SCORE)
        return by_tail * (1 + SHORT_PAST / len(self._rises))

    def _settle(self) -> None:
        """Take the last normal loss into the baseline, now that another one is compared with it.

        An odd one, which grace let pass, moves the level, but neither spread nor tail.
        """
        if self._normal is None:
            return
        (loss, rise, score), self._normal = self._normal, None
        if rise is not None:
            if score is not None and len(self._rises) >= TAIL_MIN_RISES:
                if score < HEALED_SCORE:  # the one before stood alone: two high ones are no tail, they begin something
                    self._tail = max(self._score_before, TAIL_KEPT * self._tail)
                self._score_before = score
            if len(self._recent) >= LEVEL_MINIMUM:
                self._rises.push(rise)
        self._recent.append(loss)

    def _forget(self) -> None:
        self._recent: deque[float] = deque(maxlen=SLOW_WINDOW)
        self._rises = SortedWindow(WINDOW)
        self._normal = None
        self._tail = TAIL_AT_FIRST
        self._score_before = 0.0
        self.spike.end()


def trailing(losses: Iterable[float]) -> tuple[float, float]:
    """Return mean and standard deviation (of the population) of a few losses."""
    few = tuple(losses)
    mean = sum(few) / len(few)
    return mean, math.sqrt(sum([(loss - mean) ** 2 for loss in few]) / len(few))


HEALED_VALUES = 100
"""After this many finite values in a row a non-finite one is new trouble: its step is reported, not the old one."""


class NonfiniteWatch:
    """Counts NaN and infinite values by source and remembers the step at which the latest trouble began.

    `unix` gives the time of the last such loss.
    """

    def __init__(self, unix: Callable[[], float] = time) -> None:
        self._unix = unix
        self._last_loss: float | None = None
        self.totals = dict.fromkeys(NONFINITE_SOURCES, 0)
        self.first_steps: dict[str, int] = {}
        self._finite = dict.fromkeys(NONFINITE_SOURCES, 0)

    def metrics(self) -> dict[str, object]:
        """Return the counts by source, and the first steps and the time of the last such loss once there are any."""
        first = {"nonfinite_step": dict(self.first_steps)} if self.first_steps else {}
        last = {} if self._last_loss is None else {"loss_nonfinite_timestamp_seconds": self._last_loss}
        return {"nonfinite_total": dict(self.totals), **first, **last}

    def observe(self, step: int, values: Mapping[str, float]) -> None:
        """Look at the values logged for one step."""
        for source in NONFINITE_SOURCES:
            value = values.get(source)
            if value is None:
                continue
            if math.isfinite(value):
                self._finite[source] += 1
                continue
            self.totals[source] += 1
            if source == "loss":
                self._last_loss = self._unix()
            if source not in self.first_steps or self._finite[source] >= HEALED_VALUES:
                self.first_steps[source] = step
            self._finite[source] = 0

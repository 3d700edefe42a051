"""The mean wait of ordinary steps from the lengths of their collectives, where nothing measures the waits themselves.

A collective on a GPU begins when this rank's data is ready and ends when every rank's has arrived, so its length is the
wait for the others and the transfer. The transfer is alike on all ranks: the rank whose lengths are least arrived last.

Lengths are read every 15 s or more seldom, and a figure stays until the next. It is the lower one of two readings in a
row, which have no step in common: what falls into one of them alone is never seen, however seldom they come. All ranks
of a run must measure alike, so the choice is made once, by what is the same for every rank of one program.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from time import perf_counter, time
from typing import NamedTuple

from tachograph.catalog.rank import RECENT_SECONDS, RECENT_STEPS
from tachograph.client.core.notice import notice

TRIAL_STEPS = 10
"""Ordinary steps after the first reading in which nothing may have measured a wait."""

STEPS_KEPT = 4096
"""More steps than the recorder's 2,000 collectives belong to."""


KEPT = 3
"""Times the time between the last two readings that a figure stays without a third. Steps of 6 s fill every reading or
every other one."""

BLIND = 10
"""Readings without a whole step in a row that are worth a word: the ring is too small for this program's steps."""


class Length(NamedTuple):
    """A collective: when the host enqueued it, in Unix seconds, and how long it took; None while that is not known."""

    enqueued: float
    seconds: float | None


class WaitByLengths:
    """Takes ordinary steps and readings of all collectives that are still remembered; the sender thread does both.

    `alone` returns whether nothing else has measured waits so far. `clock` is the one that steps are timed with, `now`
    returns Unix seconds.
    """

    __slots__ = (
        "_alone",
        "_blind",
        "_clock",
        "_known",
        "_last",
        "_now",
        "_steps",
        "_trial",
        "_until",
        "_wait",
        "chosen",
    )

    def __init__(
        self, alone: Callable[[], bool], clock: Callable[[], float] = perf_counter, now: Callable[[], float] = time
    ) -> None:
        self.chosen = False
        self._alone = alone
        self._clock = clock
        self._now = now
        self._trial: int | None = None  # steps to go; None before the first reading
        self._steps: deque[tuple[float, float]] = deque(maxlen=STEPS_KEPT)
        self._known: list[tuple[float, float]] = []  # when steps ended, and what they waited
        self._last: tuple[float, float] | None = None  # when the last mean was taken, and it
        self._wait: float | None = None
        self._until = inf
        self._blind = 0  # readings since the last whole step

    def step(self, began: float, ended: float) -> None:
        """Take an ordinary step: from the end of the one before to its own."""
        if self.chosen:
            self._steps.append((began, ended))
        elif self._trial:
            self._trial -= 1
            self.chosen = not self._trial and self._alone()

    def read(self, collectives: Sequence[Length]) -> None:
        """Take all that is remembered at this moment, in the order in which it was enqueued."""
        if self._trial is None:
            self._trial = TRIAL_STEPS
        if not self.chosen or not collectives:
            return
        steps = list(self._steps)
        self._steps.clear()
        shift = self._now() - self._clock()
        self._blind += bool(steps)
        for step, wait in zip(steps, _waits(steps, collectives, shift), strict=True):
            if step[0] >= collectives[0].enqueued - shift:  # else some of its collectives may be forgotten
                self._blind = 0
                if wait is None:
                    self._steps.append(step)
                else:
                    self._known.append((step[1], wait))
        if len(self._known) >= RECENT_STEPS:
            self._sum_up()
        if self._blind == BLIND:
            text = f"a step has more collectives than the {len(collectives)} that PyTorch remembers"
            notice("ring", f"{text}, so waits are not known and no late rank is found: set TORCH_FR_BUFFER_SIZE higher")

    def wait(self) -> float | None:
        """Return the mean wait of a step; None where it is not known."""
        return self._wait if self._clock() <= self._until else None

    def _sum_up(self) -> None:
        known, self._known = self._known, []
        newest = known[-1][0]
        window = [wait for ended, wait in known if ended > newest - RECENT_SECONDS]
        if len(window) < RECENT_STEPS:
            window = [wait for _, wait in known[-RECENT_STEPS:]]
        if not any(window):  # collectives in CUDA graphs leave no trace
            return
        moment, mean = self._clock(), sum(window) / len(window)
        before, self._last = self._last, (moment, mean)
        if before is None or moment > self._until:
            self._wait, self._until = None, inf
        else:
            self._wait, self._until = min(mean, before[1]), moment + KEPT * (moment - before[0])


def _waits(steps: Sequence[tuple[float, float]], collectives: Sequence[Length], shift: float) -> Sequence[float | None]:
    """Return the sum of lengths of each step; None where one of them is not known."""
    ends = [ended for _, ended in steps]
    sums: list[float | None] = [0.0] * len(steps)
    for enqueued, seconds in collectives:
        moment = enqueued - shift
        index = bisect_left(ends, moment)
        if index < len(steps) and steps[index][0] < moment:
            known = sums[index]
            sums[index] = None if known is None or seconds is None else known + seconds
    return sums

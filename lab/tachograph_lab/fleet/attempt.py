"""One attempt of a run: the position of all its ranks between two all-reduces, at any moment.

A cycle begins when the all-reduce of one step ends, on all ranks at once: each rank makes its optimizer step, which
ends its step, saves or evaluates when due, and computes the next step until it enters the next all-reduce. That ends
`collective` seconds after the last rank has entered it; until then the others wait.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tachograph_lab.fleet.aside import RanksAside
from tachograph_lab.fleet.pace import PARTS, Pace, Seconds
from tachograph_lab.scenario.faults import Freeze, PauseOnce, SkipCollective, Stuck

CYCLE = ("optimizer", "checkpoint", "eval", "generate", "reward", "other", "collective", "init", *PARTS[:-1])
"""The phases of a rank between two all-reduces, in order; the wait for the next all-reduce belongs to backward."""

OPTIMIZER, CHECKPOINT, EVAL, GENERATE, REWARD, OTHER, COLLECTIVE, INIT, DATA = range(9)
BACKWARD = CYCLE.index("backward")

_PAUSED_IN = {
    "other": OTHER, "checkpoint": CHECKPOINT, "eval": EVAL, "generate": GENERATE, "reward": REWARD, "data": DATA,
    "collective": COLLECTIVE,
}  # fmt: skip
"""The part of the cycle that a pause in this phase lengthens."""


@dataclass(frozen=True)
class Position:
    """Every rank of an attempt at one moment; arrays by rank, `seconds` by part of the cycle and rank."""

    seconds: Seconds
    place: Sequence[int]
    since: Sequence[float]
    completed: Sequence[int]
    ended: Sequence[float]
    entered: Sequence[int]


class Attempt:
    """The ranks of one attempt; `began` and all times are seconds of the scenario."""

    def __init__(
        self, pace: Pace, ranks: int, *, began: float, first_step: int, init: float,
        freezes: Sequence[Freeze], skips: Sequence[SkipCollective], pauses: Sequence[PauseOnce] = (),
        stuck_saves: Sequence[Stuck] = (),
    ) -> None:  # fmt: skip
        self.first_step = first_step
        self.cycles = 0
        self.seconds = np.zeros((len(CYCLE), ranks))
        self.waits = np.zeros(ranks)
        self.ended = np.zeros(ranks)
        self._reported = np.zeros((len(CYCLE), ranks))
        self.step_began = np.zeros(ranks)
        self._pace = pace
        self._freezes = freezes
        self._skips = [each for each in skips if each.at >= began]
        self._skipped = np.zeros(ranks, dtype=np.int64)
        self._optimizer = np.zeros(ranks)
        self._pauses = [each for each in pauses if each.at >= began and not each.alone]
        self.aside = RanksAside([each for each in pauses if each.alone], _PAUSED_IN)
        self._stuck_saves = [each for each in stuck_saves if each.until > began]
        self._hung = False
        self._written: Seconds | None = None
        self.begin(began, init=init)

    @property
    def computing(self) -> int:
        """The number of the step that this cycle computes."""
        return self.first_step + self.cycles

    def begin(
        self, at: float, *, init: float = 0.0, checkpoint: Seconds | float = 0.0, evaluation: float = 0.0
    ) -> None:
        """Plan the cycle that begins at `at`."""
        self.at, self._written = at, None
        spent = np.zeros_like(self.seconds)
        spent[OPTIMIZER] = self._optimizer
        spent[CHECKPOINT], spent[EVAL], spent[INIT] = checkpoint, evaluation, init
        restarting = self._pause(at, spent)
        step = self._pace.step(self.computing, at + spent[:DATA].sum(0), first=self.cycles == 0)
        spent[DATA:], self._optimizer = step[:-1], step[-1]
        spent[DATA] += restarting
        for freeze in self._freezes:
            self._freeze(freeze, spent[:, freeze.rank])
        barrier = self._barrier(at, spent) if np.ndim(checkpoint) else None
        self.aside.plan(at, self.cycles, spent)
        ends = np.cumsum(spent, axis=0)
        self.spent = spent
        self.starts = np.vstack([np.zeros(len(self.waits)), ends[:-1]])
        self.arrivals: Seconds = at + ends[-1] if barrier is None else barrier
        self.arrivals[self.aside.ranks] = -math.inf
        latest = float(self.arrivals.max())
        self.arrivals[self.aside.ranks] = math.inf
        self.completion = latest + self._pace.collective(latest) if math.isfinite(latest) else math.inf
        for skip in self._skips:
            if not self._hung and at + self.starts[DATA, skip.rank] >= skip.at:
                self._skipped[skip.rank] = 1
                self._hung = True
        if self._hung:
            self.completion = math.inf

    def still_seconds(self, rank: int, now: float) -> float:
        """Return for how long a rank that is in a save has written nothing, where one of the ranks is stuck in it."""
        return 0.0 if self._written is None else max(0.0, now - float(self._written[rank]))

    def hang(self, at: float) -> None:
        """Make every all-reduce from now on hang: one of the ranks is gone."""
        self._hung = True
        if self.completion > at:
            self.completion = math.inf

    def add_cycle(self) -> None:
        """Add the cycle's seconds to the totals, once its all-reduce has ended."""
        waits = np.maximum(0.0, self.completion - self.arrivals)
        self.aside.cut(self.completion - self.at, self.spent, BACKWARD)
        self.seconds += self.spent
        self.seconds[BACKWARD] += waits
        self.waits = self.waits + waits
        if self.cycles:
            self.ended = self.at + self.spent[OPTIMIZER]
            for rank, aside in self.aside.now.items():
                self.ended[rank] = aside.ended
        self.step_began = self.at + self.starts[DATA + 1]
        self.cycles += 1

    def position(self, now: float) -> Position:
        """Return where every rank is; `now` is within the cycle."""
        elapsed = now - self.at
        into = np.maximum(elapsed - self.starts, 0.0)
        seconds = np.minimum(into, self.spent)
        seconds[BACKWARD] = into[BACKWARD]
        place = (self.starts <= elapsed).sum(0) - 1  # parts of zero length are skipped
        stepped = (elapsed >= self.spent[OPTIMIZER]) & (self.cycles > 0)
        # A sum may round to slightly less than before, and these are counters.
        self._reported = np.maximum(self._reported, self.seconds + seconds)
        since = self.at + self.starts[place, np.arange(len(place))]
        completed = np.where(stepped, self.cycles, max(0, self.cycles - 1))
        ended = np.where(stepped, self.at + self.spent[OPTIMIZER], self.ended)
        entered = self.cycles + (now >= self.arrivals) - self._skipped
        for rank in self.aside.before:
            aside = self.aside.now[rank]
            since[rank] = ended[rank] = aside.ended
            completed[rank] = aside.cycles
            entered[rank] = aside.cycles - self._skipped[rank]
        return Position(
            seconds=self._reported,
            place=place.tolist(),
            since=since.tolist(),
            completed=completed.tolist(),
            ended=ended.tolist(),
            entered=entered.tolist(),
        )

    def cycles_of(self, rank: int) -> int:
        """Return the number of all-reduces that a rank took part in and that have ended."""
        return self.aside.now[rank].cycles if rank in self.aside.now else self.cycles

    def next_optimizer_ends(self, rank: int) -> float:
        """Return the second at which a rank has made the optimizer step that follows this cycle's all-reduce."""
        return self.completion + float(self._optimizer[rank])

    def _pause(self, at: float, spent: Seconds) -> Seconds:
        """Lengthen the cycle by the pauses that are due; return what each rank's loader takes longer."""
        restarting = np.zeros(len(self.waits))
        for pause in [each for each in self._pauses if each.at <= at]:
            self._pauses.remove(pause)
            into = restarting if pause.phase == "data" else spent[_PAUSED_IN[pause.phase]]
            into[list(pause.ranks)] += pause.until - pause.at
        return restarting

    def _barrier(self, at: float, spent: Seconds) -> Seconds | None:
        """Keep every rank in a checkpoint that one does not end; return when the others enter the barrier behind it."""
        for stuck in self._stuck_saves:
            if stuck.at <= at < stuck.until:
                written: Seconds = at + spent[: CHECKPOINT + 1].sum(0)
                self._written = written.copy()
                self._written[stuck.rank] = at + spent[:CHECKPOINT, stuck.rank].sum()
                spent[CHECKPOINT] = stuck.until - at - spent[OPTIMIZER]
                if math.isinf(stuck.until):
                    written[stuck.rank] = math.inf
                    return written
        return None

    def _freeze(self, freeze: Freeze, spent: Seconds) -> None:
        """Lengthen the part of the cycle in which a rank is frozen."""
        entered = self.at
        if freeze.at < entered < freeze.until:  # frozen while it waited: the all-reduce ends without its process
            spent[OPTIMIZER] += freeze.until - entered
            return
        for part in range(len(CYCLE)):
            if entered <= freeze.at < entered + spent[part]:
                spent[part] += freeze.until - freeze.at
                return
            entered += spent[part]

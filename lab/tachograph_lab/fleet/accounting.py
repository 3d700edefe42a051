"""Histogram, phase excess and goodput of a simulated rank, computed by the client's own code.

Those three take 40 µs per step and rank, so the ranks of a node that no fault affects individually share one
accounting. The exporter sums these families over the ranks of a node, so it shows one rank's values times their number.
"""

from __future__ import annotations

from collections.abc import Mapping

from tachograph.catalog.rank import PHASES
from tachograph.client.core.counters import Counter
from tachograph.client.core.phases import PhaseClock
from tachograph.client.core.step_histogram import StepHistogram
from tachograph.client.core.steps import Step, StepRecord
from tachograph.client.signals.goodput import Goodput
from tachograph.client.signals.phase_excess import PhaseExcess


class SimulatedPhaseClock(PhaseClock):
    """A phase clock that the simulation sets."""

    __slots__ = ("place", "shown")

    def __init__(self) -> None:
        super().__init__()
        self.place = "init"
        self.shown = dict.fromkeys(PHASES, 0.0)

    def read(self) -> tuple[str, float, dict[str, float]]:
        """Return the phase, its start and the seconds in each phase as set."""
        return self.place, 0.0, self.shown


class RankAccounting:
    """The observers of one rank; `began` is the Unix time at which its process started."""

    def __init__(self, began: float, last_step: int | None, ended: float | None) -> None:
        self._clock = SimulatedPhaseClock()
        self._step = Step(self._clock, Counter())
        self._histogram = StepHistogram()
        self._excess = PhaseExcess()
        self._goodput = Goodput(self._clock, self._step, lambda: last_step, lambda: ended, now=lambda: began)

    def observe(self, record: StepRecord) -> None:
        """Observe a completed step."""
        self._histogram.observe(record)
        self._excess.observe(record)
        self._goodput.observe(record)

    def read(self, place: str, seconds: Mapping[str, float], step: int) -> tuple[dict[str, object], dict[str, object]]:
        """Return metrics and histogram now, given the phase, the seconds in each phase, and the current step."""
        self._clock.place, self._clock.shown = place, dict(seconds)
        self._step.next = step
        metrics = {
            key: value
            for source in (self._histogram, self._excess, self._goodput)
            for key, value in source.metrics().items()
        }
        return metrics, self._histogram.frame()

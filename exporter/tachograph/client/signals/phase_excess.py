"""The time by which single steps exceed their usual duration, by phase.

Averages between ranks see a rank that is always slow. They do not see slowness that moves: on each step another rank is
late, all wait for it, and over a minute all ranks look the same. But each rank's own step is longer than that rank's
usual one where the time went, and that adds up here. A phase that becomes slow for good is its own median within 64
steps, and adds nothing more.
"""

from __future__ import annotations

from tachograph.catalog.rank import OWN_PHASES, USUAL_PHASES
from tachograph.client.core.sorted_window import SortedWindow
from tachograph.client.core.steps import StepRecord
from tachograph.client.signals.ordinary_steps import OrdinarySteps

WINDOW = 64
"""Ordinary steps whose median is the usual one."""

LEAST_STEPS = 16
"""Steps needed before a median is used."""

LEAST_SHARE = 0.05
"""Of the median step: what is below is noise."""


class PhaseExcess:
    """Adds up, by phase, what ordinary steps took beyond their rank's usual time; a step observer and a source."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(USUAL_PHASES, 0.0)
        self._ordinary = OrdinarySteps()
        self._step = SortedWindow(WINDOW)
        self._phases = [(name, SortedWindow(WINDOW)) for name in OWN_PHASES]

    def observe(self, record: StepRecord) -> None:
        """Take a completed step."""
        step = self._ordinary.cost(record)
        if step is None:
            return
        known = len(self._step) >= LEAST_STEPS
        least = LEAST_SHARE * self._step.median if known else 0.0
        for (name, usual), spent in zip(self._phases, step.own, strict=True):
            busy = max(0.0, spent)
            if known and (excess := busy - usual.median) > least:
                self.seconds[name] += excess
            usual.push(busy)
        self._step.push(step.seconds)

    def metrics(self) -> dict[str, object]:
        """Return the seconds of every phase, from 0 on."""
        return {"phase_excess_seconds_total": dict(self.seconds)}

"""The time by which single steps exceed their usual duration, by phase.

Averages between ranks see a rank that is always slow. They do not see slowness that moves: on each step another rank is
late, all wait for it, and over a minute all ranks look the same. But each rank's own step is longer than that rank's
usual one where the time went, and that adds up here. A phase that becomes slow for good is its own median within 64
steps, and adds nothing more.
"""

from __future__ import annotations

from tachograph.catalog.rank import PHASES
from tachograph.client.core.sorted_window import SortedWindow
from tachograph.client.core.steps import StepRecord

WINDOW = 64
"""Ordinary steps whose median is the usual one."""

LEAST_STEPS = 16
"""Steps needed before a median is used."""

LEAST_SHARE = 0.05
"""Of the median step: what is below is noise."""

_BACKWARD, _COLLECTIVE, _EVAL = PHASES.index("backward"), PHASES.index("collective"), PHASES.index("eval")

MEASURED = tuple(index for index, name in enumerate(PHASES) if name not in ("init", "collective", "checkpoint", "eval"))
"""Phases that every step goes through. Collectives are waiting for others; checkpoints and evaluations run on
their own schedule between steps and do not make the next one unusual."""


class PhaseExcess:
    """Adds up, by phase, what ordinary steps took beyond their rank's usual time; a step observer and a source.

    A step is everything since the end of the one before: the wait for its batch lies between the two. Its busy seconds
    in a phase are the phase's without the exposed wait in it. Marked collectives have a phase of their own, so what is
    left of the wait is that of gradient buckets, in backward.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._before: StepRecord | None = None
        self._stride = 1
        self._step = SortedWindow(WINDOW)
        self._phases = {index: SortedWindow(WINDOW) for index in MEASURED}

    def observe(self, record: StepRecord) -> None:
        """Take a completed step; a tagged one, or one after a gap or an evaluation, is only the next one's past."""
        before, self._before = self._before, record
        if before is None:
            return
        stride, self._stride = self._stride, record.number - before.number
        if record.tag is not None or self._stride != stride:
            return
        spent = [now - then for now, then in zip(record.seconds, before.seconds, strict=False)]
        if spent[_EVAL] > 0:  # which may have waited for data and run forward, in phases inside its own
            return
        step = sum([spent[index] for index in MEASURED]) + spent[_COLLECTIVE]
        spent[_BACKWARD] -= max(0.0, record.wait - before.wait - spent[_COLLECTIVE])
        known = len(self._step) >= LEAST_STEPS
        least = LEAST_SHARE * self._step.median if known else 0.0
        for index, usual in self._phases.items():
            busy = max(0.0, spent[index])
            if known and (excess := busy - usual.median) > least:
                self.seconds[PHASES[index]] += excess
            usual.push(busy)
        self._step.push(step)

    def metrics(self) -> dict[str, object]:
        """Return the seconds of every phase, from 0 on."""
        return {"phase_excess_seconds_total": dict(self.seconds)}

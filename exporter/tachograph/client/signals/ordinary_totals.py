"""Counts of the rank's ordinary steps, which others compare: how many, how long, how much of it waiting, and where."""

from __future__ import annotations

from tachograph.catalog.rank import OWN_PHASES
from tachograph.client.core.steps import StepRecord
from tachograph.client.signals.ordinary_steps import OrdinarySteps
from tachograph.client.signals.wait_by_lengths import WaitByLengths


class OrdinaryTotals:
    """Adds up ordinary steps since the process began; a step observer and a metric source.

    `lengths` have the wait where nothing measures it.
    """

    def __init__(self, lengths: WaitByLengths | None = None) -> None:
        self._lengths = lengths or WaitByLengths(lambda: False)
        self._ordinary = OrdinarySteps()
        self._steps = 0
        self._seconds = 0.0
        self._wait = self._told_wait = 0.0
        self._waits_known = False
        self._own = [0.0] * len(OWN_PHASES)
        self._told = dict.fromkeys(OWN_PHASES, 0.0)

    def observe(self, record: StepRecord) -> None:
        """Take a completed step."""
        step = self._ordinary.cost(record)
        if step is None:
            return
        self._lengths.step(step.ended - step.seconds, step.ended)
        self._steps += 1
        self._seconds += step.seconds
        self._wait += step.wait
        self._own = [total + seconds for total, seconds in zip(self._own, step.own, strict=True)]
        self._waits_known = record.wait > 0

    def metrics(self) -> dict[str, object]:
        """Return the totals, which never fall, though a wait on a GPU may be known steps late; none before a step."""
        if not self._steps:
            return {}
        self._told = {name: max(self._told[name], total) for name, total in zip(OWN_PHASES, self._own, strict=True)}
        totals: dict[str, object] = {
            "ordinary_steps_total": self._steps,
            "ordinary_step_seconds_total": self._seconds,
            "ordinary_phase_seconds_total": {name: total for name, total in self._told.items() if total > 0},
        }
        if self._lengths.chosen:
            if (wait := self._lengths.wait()) is not None:
                totals["recent_wait_seconds"] = wait
        elif self._waits_known:
            self._told_wait = max(self._told_wait, self._wait)
            totals["ordinary_wait_seconds_total"] = self._told_wait
        return totals

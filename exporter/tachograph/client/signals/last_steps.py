"""The last steps of a rank, for its box."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from tachograph.catalog.rank import PHASES
from tachograph.client.core.steps import StepRecord

KEPT = 20


class LastSteps:
    """Keeps the last completed steps."""

    def __init__(self) -> None:
        self._records: deque[StepRecord] = deque(maxlen=KEPT + 1)
        self.observe = self._records.append

    def read(self, unix: float) -> list[dict[str, object]]:
        """Return number, end (Unix time), length, tag and seconds by phase; `unix` is added to a `perf_counter`.

        A step lasts from the end of the step before.
        """
        records = list(self._records)
        found: list[dict[str, object]] = []
        for before, record in pairwise(records):
            spent = zip(PHASES, record.seconds, before.seconds, strict=True)
            step = {"number": record.number, "ended": unix + record.ended, "seconds": record.ended - before.ended}
            phases = {name: round(now - then, 6) for name, now, then in spent if now > then}
            found.append({**step, "tag": record.tag, "phases": phases})
        return found

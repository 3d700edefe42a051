"""Another place to send a rank's metrics to, beside the exporter; there is none by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Sink(Protocol):
    """Takes a rank's numbers about once a second, in the sender thread; one that raises five times in a row is dropped.

    A slow sink delays the heartbeats of its rank: queue what may block.
    """

    def write(self, time: float, step: int, metrics: Mapping[str, float]) -> None:
        """Take counters and gauges at Unix time `time`: keys are `name`, or `name/label value`; NaN and infinity occur.

        `step` is the step the rank is at.
        """

    def close(self) -> None:
        """Write out what is queued: the record ends."""

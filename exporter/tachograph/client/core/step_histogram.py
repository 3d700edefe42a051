"""A histogram of step durations: ordinary steps in exponential buckets, the others counted by tag."""

from __future__ import annotations

from tachograph.client.core.steps import StepRecord
from tachograph.wire import (
    FINE_SCHEMA,
    HISTOGRAM_SCHEMA,
    MAX_FINE_BUCKETS,
    bucket_index,
    encode_number,
    reduced,
)


class StepHistogram:
    """Counts every step once: its duration in a bucket, or its tag; the sender thread fills it."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._buckets: dict[int, int] = {}
        self._tagged: dict[str, int] = {}

    def observe(self, record: StepRecord) -> None:
        """Count a step."""
        if record.tag is not None:
            self._tagged[record.tag] = self._tagged.get(record.tag, 0) + 1
            return
        seconds = record.ended - record.began
        index = bucket_index(seconds, FINE_SCHEMA)
        self._buckets[index] = self._buckets.get(index, 0) + 1
        self._sum += seconds

    def metrics(self) -> dict[str, object]:
        """Return the number of tagged steps by tag, once there is one."""
        return {"tagged_steps_total": dict(self._tagged)} if self._tagged else {}

    def frame(self) -> dict[str, object]:
        """Return the histogram as the wire carries it: coarse, for every exporter, and fine for those that take it."""
        fine, coarse = self._buckets, reduced(self._buckets)
        frame: dict[str, object] = {
            "schema": HISTOGRAM_SCHEMA,
            "sum": encode_number(self._sum),
            "count": sum(coarse.values()),
            "buckets": {str(index): coarse[index] for index in sorted(coarse)},
        }
        if len(fine) <= MAX_FINE_BUCKETS:
            frame["fine"] = {str(index): fine[index] for index in sorted(fine)}
        return frame

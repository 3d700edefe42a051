"""The interfaces of what a recorder can be given: sources and observers of metrics, sinks, and a tracer of steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tachograph.client.core.steps import StepRecord
    from tachograph.client.hello.identity import Identity


class MetricSource(Protocol):
    """Gives metrics for a frame, in the sender thread; if it raises, its metrics are left out; five in a row end it."""

    def metrics(self) -> Mapping[str, object] | Iterable[tuple[str, object]]:
        """Return wire key and value: a number, or a mapping from label value to number; NaN and infinity as floats."""
        ...


class StepObserver(Protocol):
    """Receives every completed step, in order, from the sender thread, within a second."""

    def observe(self, record: StepRecord) -> None:
        """Take one step."""


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


class Trace(Protocol):
    """A step observer that also sees phases begin and end (`tachograph.export.traces`).

    One that has a method `logged(step, values)` also gets what the loop logged with each step.
    """

    def start(self, identity: Identity) -> None:
        """Begin; called once, when the recorder is made."""

    def phase(self, inner: AbstractContextManager[None], name: str) -> AbstractContextManager[None]:
        """Return a context manager that does what `inner` does and is traced as `name`."""
        ...

    def observe(self, record: StepRecord) -> None:
        """Take one completed step."""

    def close(self) -> None:
        """Write out what is left: the record ends."""

"""What has something to report: asked by the sender thread before each frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tachograph.client.core.step_record import StepRecord


class Source(Protocol):
    """Gives metrics for a frame; one that raises costs its own metrics, and is dropped after five in a row."""

    def metrics(self) -> Mapping[str, object] | Iterable[tuple[str, object]]:
        """Return wire key and value: a number, or a mapping from label value to number; NaN and infinity as floats."""
        ...


class StepObserver(Protocol):
    """Hears of every completed step, in the order of steps, from the sender thread, within a second."""

    def observe(self, record: StepRecord) -> None:
        """Take one step."""

"""Who arrives last at the collectives of a run: the rank that waits less for the others than is usual."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from statistics import median
from typing import TypeVar

from tachograph.diagnosis import LAG_RATIO, LAG_SECONDS, STRAGGLER_WAIT

K = TypeVar("K", bound=Hashable)


def usual_wait(waits: Collection[float]) -> float | None:
    """Return the wait that lag is measured from, the median; of two ranks the longer wait, of one none."""
    return None if len(waits) < 2 else max(waits) if len(waits) == 2 else median(waits)


def lags(waits: Mapping[K, float]) -> dict[K, float]:
    """Return by how many seconds of each step a rank waits less than is usual, for ranks by their waits per step."""
    usual = usual_wait(waits.values())
    return {} if usual is None else {rank: usual - wait for rank, wait in waits.items()}


def is_late(lag: float, ratio: float) -> bool:
    """Return whether a lag is more than noise, in seconds and as a share of the step."""
    return lag > LAG_SECONDS and ratio > LAG_RATIO


def is_straggler(lag: float, wait: float, limit: float) -> bool:
    """Return whether a rank holds its run up; lag, wait and the limit of a lag are shares of the step."""
    return lag > limit and wait < STRAGGLER_WAIT * (wait + lag)

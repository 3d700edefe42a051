"""Step times of a run on this node: the ranks' exponential buckets, added up for a classic and a native histogram."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from tachograph.catalog.metric import Metric
from tachograph.wire import (
    FINE_INDEX_RANGE,
    FINE_SCHEMA,
    HISTOGRAM_INDEX_RANGE,
    HISTOGRAM_SCHEMA,
    MAX_FINE_BUCKETS,
    decode_number,
    reduced,
)

BOUNDS: tuple[float, ...] = tuple(2.0 ** (k / 2) for k in range(-14, 15))
"""Upper bounds of the classic buckets, 7.8 ms to 128 s in steps of √2: schema 1, to which the others reduce exactly."""

MOST = 2**53
"""The largest count that a double holds exactly; bounds what a malicious rank can write into the state file."""

_FIRST = -14
_PER_BOUND = 1 << (FINE_SCHEMA - 1)
_FINE_PER_COARSE = 1 << (FINE_SCHEMA - HISTOGRAM_SCHEMA)
_LOWEST, _HIGHEST = FINE_INDEX_RANGE


@dataclass(frozen=True)
class HistogramSample:
    """One exposed histogram; `cumulative` has a count for each of BOUNDS and the total for +Inf.

    `native` has the same counts by bucket index at FINE_SCHEMA, without the empty ones.
    """

    metric: Metric
    labels: tuple[str, ...]
    cumulative: tuple[int, ...]
    sum: float
    native: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Buckets:
    """A rank's cumulative histogram as a frame carries it: `fine` counts are at FINE_SCHEMA, others at schema 3."""

    counts: Mapping[int, int] = field(default_factory=dict)
    sum: float = 0.0
    fine: bool = False

    def coarse(self) -> Mapping[int, int]:
        """Return the counts at schema 3."""
        return reduced(self.counts) if self.fine else self.counts

    def fell_from(self, before: Buckets) -> bool:
        """Return whether any count or the sum is lower than `before`: not a later state of the same process."""
        now, then = _alike(self, before)
        return self.sum < before.sum or any(now.get(i, 0) < n for i, n in then.items())


def parse(value: object) -> Buckets:
    """Return the histogram of a frame; raise ValueError for anything that is not one.

    The total is counted from the buckets; a rank's own `count` may be ahead of them by a step and is not used. Where
    there are fine buckets, the others are not looked at.
    """
    if not isinstance(value, dict) or value.get("schema") != HISTOGRAM_SCHEMA:
        raise ValueError(f"expected an object with schema {HISTOGRAM_SCHEMA}")
    fine = value.get("fine")
    given = value.get("buckets") if fine is None else fine
    if not isinstance(given, dict):
        raise ValueError("expected buckets: an object of index and count")
    try:
        total = decode_number(value.get("sum"))
    except OverflowError as error:
        raise ValueError("expected a sum within the range of a double") from error
    if not (math.isfinite(total) and total >= 0):
        raise ValueError("expected a finite sum of at least 0")
    low, high = HISTOGRAM_INDEX_RANGE if fine is None else FINE_INDEX_RANGE
    if len(given) > (high - low + 1 if fine is None else MAX_FINE_BUCKETS):
        raise ValueError("expected each bucket at most once, and at most so many fine ones")
    counts: dict[int, int] = {}
    for text, count in given.items():
        index = int(text)
        if not low <= index <= high or type(count) is not int or not 0 <= count <= MOST:
            raise ValueError("expected whole, non-negative counts of known buckets")
        counts[index] = counts.get(index, 0) + count
    return Buckets(counts, total, fine is not None)


class RunHistogram:
    """The observations of all ranks of a run on this node; it never falls, even when a rank leaves.

    `counts` are by bucket index at FINE_SCHEMA; those of a rank without fine buckets are in the middle of its coarse
    ones.
    """

    def __init__(self, counts: Mapping[int, int] | None = None, sum: float = 0.0) -> None:
        self.counts = {index: n for index, n in (counts or {}).items() if _LOWEST <= index <= _HIGHEST}
        self.sum = sum

    def add(self, now: Buckets, before: Buckets) -> None:
        """Add what a rank observed between two of its states."""
        counts, earlier = _alike(now, before)
        fine = now.fine and counts is now.counts
        for index, count in counts.items():
            if more := count - earlier.get(index, 0):
                place = index if fine else index * _FINE_PER_COARSE - _FINE_PER_COARSE // 2
                place = min(max(place, _LOWEST), _HIGHEST)
                self.counts[place] = min(self.counts.get(place, 0) + more, MOST)
        # The difference first: rounded, a sum plus and minus the same number may be lower than before.
        if math.isfinite(total := self.sum + (now.sum - before.sum)):
            self.sum = total

    def classic(self) -> list[int]:
        """Return the counts of the classic buckets, one for each of BOUNDS and one beyond."""
        counts = [0] * (len(BOUNDS) + 1)
        for index, count in self.counts.items():
            place = min(max(-(-index // _PER_BOUND) - _FIRST, 0), len(BOUNDS))
            counts[place] += count
        return counts

    def sample(self, metric: Metric, labels: tuple[str, ...]) -> HistogramSample:
        """Return the histogram as it is exposed."""
        return HistogramSample(metric, labels, tuple(accumulate(self.classic())), self.sum, dict(self.counts))


def from_classic(counts: list[int]) -> dict[int, int]:
    """Return counts by bucket index at FINE_SCHEMA that reduce to these classic ones."""
    return {(_FIRST + place) * _PER_BOUND: n for place, n in enumerate(counts[: len(BOUNDS) + 1]) if n}


def _alike(now: Buckets, before: Buckets) -> tuple[Mapping[int, int], Mapping[int, int]]:
    """Return the counts of two states of a rank at one schema."""
    if now.fine == before.fine or not before.counts:
        return now.counts, before.counts
    return now.coarse(), before.coarse()

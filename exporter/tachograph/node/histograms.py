"""Step times of a run on this node: the ranks' exponential buckets, merged into one classic histogram."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from tachograph.catalog.metric import Metric
from tachograph.wire import HISTOGRAM_INDEX_RANGE, HISTOGRAM_SCHEMA, decode_number

BOUNDS = tuple(2.0 ** (k / 2) for k in range(-14, 15))
"""Upper bounds of the exposed buckets, 7.8 ms to 128 s in steps of √2: schema 1, to which schema 3 reduces exactly."""

MOST = 2**53
"""The largest count that a double holds exactly; bounds what a malicious rank can write into the state file."""

_FIRST = -14
_PER_BOUND = 1 << (HISTOGRAM_SCHEMA - 1)


@dataclass(frozen=True)
class HistogramSample:
    """One exposed histogram; `cumulative` has a count for each of BOUNDS and the total for +Inf."""

    metric: Metric
    labels: tuple[str, ...]
    cumulative: tuple[int, ...]
    sum: float


@dataclass(frozen=True)
class Buckets:
    """A rank's cumulative histogram as a frame carries it."""

    counts: Mapping[int, int] = field(default_factory=dict)
    sum: float = 0.0

    def fell_from(self, before: Buckets) -> bool:
        """Return whether any count or the sum is lower than `before`: not a later state of the same process."""
        return self.sum < before.sum or any(self.counts.get(i, 0) < n for i, n in before.counts.items())


def parse(value: object) -> Buckets:
    """Return the histogram of a frame; raise ValueError for anything that is not one.

    The total is counted from the buckets; a rank's own `count` may be ahead of them by a step and is not used.
    """
    if not isinstance(value, dict) or value.get("schema") != HISTOGRAM_SCHEMA:
        raise ValueError(f"expected an object with schema {HISTOGRAM_SCHEMA}")
    given = value.get("buckets")
    if not isinstance(given, dict):
        raise ValueError("expected buckets: an object of index and count")
    try:
        total = decode_number(value.get("sum"))
    except OverflowError as error:
        raise ValueError("expected a sum within the range of a double") from error
    if not (math.isfinite(total) and total >= 0):
        raise ValueError("expected a finite sum of at least 0")
    low, high = HISTOGRAM_INDEX_RANGE
    if len(given) > high - low + 1:
        raise ValueError("expected each bucket at most once")
    counts: dict[int, int] = {}
    for text, count in given.items():
        index = int(text)
        if not low <= index <= high or type(count) is not int or not 0 <= count <= MOST:
            raise ValueError("expected whole, non-negative counts of known buckets")
        counts[index] = counts.get(index, 0) + count
    return Buckets(counts, total)


class RunHistogram:
    """The observations of all ranks of a run on this node; it never falls, even when a rank leaves."""

    def __init__(self, counts: Sequence[int] = (), sum: float = 0.0) -> None:
        self._counts = list(counts) if len(counts) == len(BOUNDS) + 1 else [0] * (len(BOUNDS) + 1)
        self._sum = sum

    def copy(self) -> tuple[list[int], float]:
        """Return the counts, one for each of BOUNDS and one beyond, and the sum."""
        return list(self._counts), self._sum

    def add(self, now: Buckets, before: Buckets) -> None:
        """Add what a rank observed between two of its states."""
        for index, count in now.counts.items():
            # Bucket i of schema 3 lies within bucket ceil(i/4) of schema 1.
            place = -(-index // _PER_BOUND) - _FIRST
            place = min(max(place, 0), len(BOUNDS))
            self._counts[place] = min(self._counts[place] + count - before.counts.get(index, 0), MOST)
        # The difference first: rounded, a sum plus and minus the same number may be lower than before.
        if math.isfinite(total := self._sum + (now.sum - before.sum)):
            self._sum = total

    def sample(self, metric: Metric, labels: tuple[str, ...]) -> HistogramSample:
        """Return the histogram as it is exposed."""
        return HistogramSample(metric, labels, tuple(accumulate(self._counts)), self._sum)

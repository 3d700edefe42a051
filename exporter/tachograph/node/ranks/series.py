"""The series that one process of a rank reported, within the limits: counters, and the gauges of its last frame.

A merged family has no label `rank`: what the process adds to it is passed on to the run (`run_totals.py`).
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice

from tachograph.catalog.metric import ALL, COUNTER, SERIES_LEVELS, Metric
from tachograph.catalog.train import TRAIN_FAILURES, TRAIN_METRICS, TRAIN_THRESHOLD
from tachograph.findings.limits import LIMITS
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.names import NamedRank
from tachograph.node.ranks.run_totals import CounterDelta
from tachograph.node.samples import Sample
from tachograph.wire import decode_number, fits

MAX_LABEL_BYTES = 64
MOST_FAMILIES = 512
"""Keys of a frame that are read, five times as many as the catalog has: bounds the cost of a long frame."""

_HIDDEN: Mapping[str, frozenset[str]] = {
    level: frozenset(key for key, row in TRAIN_METRICS.items() if not row.is_shown_at(level)) for level in SERIES_LEVELS
}
"""Level -> wire keys of the families that it does not show."""

_NUMBERS: Mapping[str, bool] = {
    key: row.kind == COUNTER
    for key, row in TRAIN_METRICS.items()
    if row.own_label is None and not (row.merged or row.concluded)
}
"""Wire keys of the families that are one number of a rank, and whether it is a counter."""

_NONE: Mapping[str, float] = {}
_LONG = 2**63
"""An integer from which on it may have no double."""


class RankSeries:
    """The accepted series of one process; dropped ones are counted in `drops` by `catalog.DROP_REASONS`."""

    __slots__ = ("_drops", "_limits", "_named", "counters", "gauges", "merged", "size")

    def __init__(self, limits: Limits, drops: Counter[str]) -> None:
        self._limits = limits
        self._drops = drops
        self._named: NamedRank | None = None
        self.gauges: dict[str, dict[str, float]] = {}
        # A counter that appears at 1 has increase() == 0, so known label values start at 0.
        self.counters: dict[str, dict[str, float]] = {
            row.key: dict.fromkeys(row.values, 0.0)
            for row in TRAIN_METRICS.values()
            if row.kind == COUNTER and row.values and not row.merged
        }
        self.size = sum(map(len, self.counters.values()))
        self.merged: dict[str, dict[str, float]] = {}
        """Counts of this process so far, for families without the label `rank`."""

    def name(self, named: NamedRank) -> None:
        """Take new values of labels only as far as the names of the rank have room for them, also of those it has."""
        self._named = named
        for families in (self.counters, self.merged):
            for key, values in families.items():
                row = TRAIN_METRICS[key]
                if row.own_label is not None and not row.vocabulary:
                    for label in [each for each in values if not named.takes(key, each)]:
                        del values[label]

    def take(self, metrics: Mapping[str, object], most: int = sys.maxsize) -> list[CounterDelta]:
        """Apply the `metrics` of a state frame; return what it adds to the run's merged families.

        Counters grow, gauges are replaced, and there are at most `most` series in all.
        """
        self.gauges = {}
        deltas: list[CounterDelta] = []
        before = sum(map(len, self.counters.values()))
        room = full = min(self._limits.series_per_rank, most) - before
        if len(metrics) > MOST_FAMILIES:
            self._drops["unknown_metric"] += len(metrics) - MOST_FAMILIES
        for key, value in islice(metrics.items(), MOST_FAMILIES):
            # Most of a frame: a gauge that has room, and a counter that is known and does not fall. The rest is below.
            counts = _NUMBERS.get(key)
            if counts is not None and (type(value) is float or (type(value) is int and -_LONG < value < _LONG)):
                if not counts and room > 0:
                    self.gauges[key] = {"": float(value)}
                    room -= 1
                    continue
                if counts and self.counters.get(key, _NONE).get("", math.inf) <= value < math.inf:
                    self.counters[key][""] = float(value)
                    continue
            row = TRAIN_METRICS.get(key)
            if row is None or row.concluded:
                self._drops["unknown_metric"] += len(value) if isinstance(value, dict) else 1
            elif row.own_label is None:
                room -= self._family(row, (("", value),), room, deltas)
            elif isinstance(value, dict):
                # Values past twice the limit are not even read, so that the work is bounded too.
                widest = 2 * self._most_values(row)
                if len(value) > widest:
                    self._drops["label_limit"] += len(value) - widest
                room -= self._family(row, islice(value.items(), widest), room, deltas)
            else:
                self._drops["wrong_type"] += 1
        self.size = before + full - room
        return deltas

    def _family(self, row: Metric, values: Iterable[tuple[str, object]], room: int, deltas: list[CounterDelta]) -> int:
        """Apply one family; return how many series it added to this rank, and append what it adds to the run.

        A good part of the cost of a frame is here, so the usual case, a number of a known series, makes no call.
        """
        counts, merged = row.kind == COUNTER, row.merged
        if merged:
            room = self._limits.series_per_rank
        kept = (self.merged if merged else self.counters if counts else self.gauges).setdefault(row.key, {})
        before = len(kept)
        invented = None if row.own_label is None or row.vocabulary else self._named
        for label, value in values:
            known, fault, number = kept.get(label), "", 0.0
            try:
                number = float(value) if type(value) is float or type(value) is int else decode_number(value)
            except (ValueError, OverflowError):  # OverflowError: an integer beyond the range of a double
                fault = "wrong_type"
            if counts and not math.isfinite(number):
                fault = "wrong_type"
            if known is None and not fault:
                if row.own_label is not None:
                    fault = self._bad_label(row, label, len(kept))
                if not fault and row is TRAIN_THRESHOLD:
                    fault = "" if label in LIMITS and LIMITS[label].admits(number) else "bad_limit"
                if not fault and len(kept) - before >= room:
                    fault = "series_limit"
                if not fault and invented is not None and not invented.takes(row.key, label):
                    fault = "series_limit"
            if counts and number < (known or 0.0):
                fault = fault or "counter_decrease"
            if fault:
                self._drops[fault] += 1
                continue
            if merged and number != known:
                deltas.append(CounterDelta(row.key, label, number - (known or 0.0)))
            kept[label] = number
        return 0 if merged else len(kept) - before

    def _bad_label(self, row: Metric, label: str, siblings: int) -> str:
        """Return the reason why a new series cannot have this label value, or an empty string."""
        if row.vocabulary and label not in row.vocabulary:
            return "unknown_phase" if row.own_label == "phase" else "bad_label"
        if not label or not fits(label, MAX_LABEL_BYTES):
            return "bad_label"
        return "label_limit" if siblings >= self._most_values(row) else ""

    def _most_values(self, row: Metric) -> int:
        """Return how many values the family's own label may have."""
        return self._limits.layers if row.own_label == "layer" else self._limits.label_values

    def fail(self, category: str) -> None:
        """Count a failure of the rank's process by one of catalog.FAILURE_CATEGORIES."""
        counts = self.counters.setdefault(TRAIN_FAILURES.key, {})
        counts[category] = counts.get(category, 0.0) + 1

    def total(self, key: str) -> float | None:
        """Return a counter summed over its label, or None if the rank never sent it."""
        values = self.counters.get(key)
        return sum(values.values()) if values else None

    def gauge(self, key: str) -> float | None:
        """Return a plain gauge of the last frame, or None."""
        return self.gauges.get(key, {}).get("")

    def samples(self, rank: tuple[str, str], *, alive: bool, level: str = ALL) -> list[Sample]:
        """Return the samples of the rank (its run and rank labels), alive or ended, at one of SERIES_LEVELS.

        The fewer a rank has, the more ranks a cluster's Prometheus can hold: docs/cost.md has their number.
        """
        hidden = _HIDDEN[level]
        shown: list[Sample] = []
        for families in (self.counters, self.gauges):
            for key, values in families.items():
                row = TRAIN_METRICS[key]
                if key in hidden or not (alive or row.lasts or families is self.counters):
                    continue
                for label, value in values.items():
                    if row.rare and not value and level != ALL:
                        continue
                    shown.append(Sample(row, rank if row.own_label is None else (*rank, label), value))
        return shown

"""Which readings can be: a reading is believed only within what physics, or the driver's own limits, allow.

Drivers give 4294967295 and 2619 % utilization, 4294967 W, 4294967295 °C (DCGM issue 199, dcgm-exporter
issue 418, gpustat issue 170): such a reading is no sample, and one that failed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from tachograph.node.driver.nvml import Narrow

BLANKS = frozenset((
    2**32 - 1, 2**64 - 1, *range(0x7FFFFFF0, 0x80000000), *range(0x7FFFFFFFFFFFFFF0, 0x8000000000000000),
    2**63, 2**64,  # as a double has them
))  # fmt: skip
"""Numbers that stand for none: all bits set, and what DCGM calls blank, not found, not supported and not permitted."""

GRACE_SECONDS = 15.0
"""For how long a driver may have left a counter as it was, and then add what has come in the meantime at once."""

LEAP_SECONDS = 600.0
"""How long a counter must stand where it leapt to until it is read again: what was shown before may have been wrong."""


class Impossible(ValueError):  # noqa: N818 - what it says of a reading
    """A number cannot be the reading that it is given for; the message is the same each time, for it is logged."""


@dataclass(frozen=True)
class Range:
    """From least to most, in base units; a counter also grows by `fastest` a second at most.

    Readings that say `sets` are a limit of the GPU's own by that name, and those that say `under` are at most `times`
    the largest of it, where it is known and not 0.
    """

    least: float
    most: float
    fastest: float = math.inf
    sets: str = ""
    under: str = ""
    times: float = 1.0


class Belief:
    """Judges the readings of one GPU; remembers its limits and its counters."""

    def __init__(self) -> None:
        self._limits: dict[str, dict[Hashable, float]] = {}
        self._counters: dict[Hashable, DriverCounter] = {}

    def number(self, reading: Hashable, possible: Range, raw: float, scale: float) -> float:
        """Return what a reading is in base units; raise Impossible if it cannot be."""
        number = raw * scale
        if not possible.least <= number <= possible.most:  # nor is NaN
            raise Impossible(f"not possible: it is not within {possible.least:.4g} and {possible.most:.4g}")
        if raw in BLANKS:
            raise Impossible("not possible: it is a blank value")
        if possible.under:
            limit = possible.times * max(self._limits.get(possible.under, {}).values(), default=0)
            if 0 < limit < number:
                raise Impossible(f"not possible: it is more than {possible.times:g} times the {possible.under}")
        if possible.sets:
            self._limits.setdefault(possible.sets, {})[reading] = number
        return number

    def count(self, reading: Hashable, possible: Range, raw: float, scale: float, now: float) -> float:
        """Return what a counter is in base units, carried on where it wraps; raise Impossible if it cannot be."""
        self.number(reading, possible, raw, scale)
        counter = self._counters.get(reading)
        if counter is None:
            counter = self._counters[reading] = DriverCounter()
        return counter.take(raw, now, possible.fastest / scale) * scale


class DriverCounter:
    """A counter of the driver, carried on where its 32 bits wrap, and not believed where it leaps or dips.

    A fall from the upper half of the 32 bits to the lower one is a wrap, unless it would be a leap. Any other fall is
    believed once the next reading confirms it: then it is a reset, as by a reload of the driver, and is passed on as
    one, for Prometheus knows what to do with it. A leap that stands counts for nothing: the count goes on from where it
    was.
    """

    __slots__ = ("_carry", "_doubt", "_fall", "_raw", "_seen")
    RANGE = 2**32

    def __init__(self) -> None:
        self._carry: float = 0
        self._raw: float = 0
        self._seen = -math.inf
        self._doubt: tuple[float, float, float] | None = None  # of a leap: since when it stands, last when, and where
        self._fall: tuple[float, float] | None = None  # when it fell, and to where

    def take(self, raw: float, now: float, fastest: float = math.inf) -> float:
        """Return the whole count, given what the driver has now; raise Impossible for one that leapt or fell there."""
        grown, most = raw - self._raw, fastest * (now - self._seen + GRACE_SECONDS)
        carry = self._carry
        if grown < 0:
            in_halves = isinstance(raw, Narrow) and self._raw >= self.RANGE / 2 > raw
            if in_halves and grown + self.RANGE <= most:
                carry += self.RANGE
            else:
                self._confirm(raw, now, fastest)
                carry = 0
        elif grown > most:
            self._fall = None
            self._stands(raw, now, fastest)
            carry = self._carry + self._raw - raw
        self._carry, self._raw, self._seen, self._doubt, self._fall = carry, raw, now, None, None
        return carry + raw

    def _confirm(self, raw: float, now: float, fastest: float) -> None:
        """Raise Impossible unless the reading before had fallen as well, and this one has grown from there."""
        fall, self._fall, self._doubt = self._fall, (now, raw), None
        if fall is None or not 0 <= raw - fall[1] <= fastest * (now - fall[0] + GRACE_SECONDS):
            raise Impossible("not possible: a counter fell, which the next reading has to confirm")

    def _stands(self, raw: float, now: float, fastest: float) -> None:
        """Raise Impossible unless it has stood where it leapt to for long, growing from there as a counter does."""
        since, at, before = self._doubt or (now, now, raw)
        if not 0 <= raw - before <= fastest * (now - at + GRACE_SECONDS):
            since = now
        self._doubt = since, now, raw
        if now - since < LEAP_SECONDS:
            raise Impossible("not possible: a counter leapt")

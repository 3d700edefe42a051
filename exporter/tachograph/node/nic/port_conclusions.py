"""Conclusions of a node about its network ports, from their readings and their past.

A device that comes and goes by itself is never missed: a BMC's USB port (enx…) and virtual functions (…v0).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TypeAlias

from tachograph.catalog import index as catalog
from tachograph.diagnosis import PORT_ERRORS_PER_HOUR
from tachograph.node.nic.port_reading import PortDetails, PortReading
from tachograph.node.samples import Sample
from tachograph.node.windows import Growth, Highest

DAY_SECONDS, HOUR_SECONDS, TRAFFIC_SECONDS, NOW_SECONDS = 86_400.0, 3600.0, 300.0, 120.0
MINUTE_SECONDS = 60.0
KNOWN_SECONDS = 60.0
"""Readings older than that say nothing about now."""
IN_USE_BYTES_PER_SECOND = 1e6
"""An Ethernet device that receives less is not missed."""
MISSED_SECONDS = 6 * 3600.0
"""A port that has been down for longer was taken out of use."""
CORRUPTED = ("symbol", "receive")
"""The errors whose rate shows whether packets are being corrupted now."""

_COMES_AND_GOES = re.compile(r"enx|.*v\d+$")


class _Errors:
    """Errors of one kind: an hour of them, noted once a minute, and two minutes."""

    def __init__(self) -> None:
        self._hour, self._now = Growth(HOUR_SECONDS), Growth(NOW_SECONDS)
        self._noted = -math.inf

    def note(self, now: float, count: float) -> None:
        """Take the counter."""
        self._now.note(now, count)
        if now - self._noted >= MINUTE_SECONDS:
            self._noted = now
            self._hour.note(now, count)

    def within_hour(self, now: float) -> float:
        """Return how many there were within an hour."""
        return HOUR_SECONDS * (self._hour.per_second(now) or 0.0)

    def per_second(self, now: float) -> float:
        """Return how many there are in a second, of two minutes."""
        return self._now.per_second(now) or 0.0


class _Port:
    """The past of one port."""

    def __init__(self, began: float) -> None:
        self.up = False
        self.board = ""
        self.seen = self._began = began
        self._used: float | None = None
        self.speed: float | None = None
        self._received, self._best = Growth(TRAFFIC_SECONDS), Highest(DAY_SECONDS)
        self._errors: dict[str, _Errors] = {}

    def look(self, port: PortReading, now: float) -> None:
        """Note a reading."""
        self.up, self.board, self.seen = port.up, port.board, now
        if port.received is not None:
            self._received.note(now, port.received)
        if self.up and (self._used is not None or self._is_used(port, now)):
            self._used = now
        if port.details is not None:
            self._note(port.details, now)

    def _note(self, details: PortDetails, now: float) -> None:
        self.speed = details.speed or None  # a driver that does not know says 0
        if self.up and self.speed is not None:
            self._best.note(now, self.speed)
        for kind, count in details.errors.items():
            self._errors.setdefault(kind, _Errors()).note(now, count)

    def _is_used(self, port: PortReading, now: float) -> bool:
        """Return whether it is in use: RDMA always is, Ethernet once it has received a megabyte a second."""
        if _COMES_AND_GOES.match(port.device) and not port.port:
            return False
        return bool(port.port) or (self._received.per_second(now) or 0.0) > IN_USE_BYTES_PER_SECOND

    def down_for(self, now: float) -> float | None:
        """Return for how long it has been down, if it was in use within six hours before."""
        if self.up or self._used is None or now - self._used >= MISSED_SECONDS:
            return None
        return now - self._used

    def never_up_for(self, now: float) -> float | None:
        """Return since when it is known, if it was not in use since."""
        return None if self.up or self._used is not None else now - self._began

    def best(self, now: float) -> float | None:
        """Return its highest speed of a day."""
        return self._best.value(now)

    def errors(self, now: float) -> Iterator[tuple[str, float]]:
        """Yield the kinds of errors that it had within an hour, and how many."""
        for kind, errors in self._errors.items():
            if count := errors.within_hour(now):
                yield kind, count

    def corrupted(self, now: float) -> float:
        """Return how many packets it corrupts in a second."""
        return max((self._errors[kind].per_second(now) for kind in CORRUPTED if kind in self._errors), default=0.0)


_Key: TypeAlias = tuple[str, str]


class PortConclusions:
    """Takes readings of all ports. What it finds is shown only while it is so."""

    def __init__(self) -> None:
        self._ports: dict[_Key, _Port] = {}

    def look(self, readings: Sequence[PortReading], now: float) -> None:
        """Note the readings of a moment; a device that is gone is forgotten after a day."""
        for port in readings:
            key = port.device, port.port
            if key not in self._ports:
                self._ports[key] = _Port(now)
            self._ports[key].look(port, now)
        for key in [key for key, port in self._ports.items() if port.seen < now - DAY_SECONDS]:
            del self._ports[key]

    def samples(self, now: float) -> Iterator[Sample]:
        """Yield what is amiss now, and how many RDMA ports are down that nobody misses."""
        ports = {key: port for key, port in self._ports.items() if port.seen > now - KNOWN_SECONDS}
        speeds = {key: port.speed for key, port in ports.items() if port.up and port.speed is not None}
        rdma = [port for (_, number), port in ports.items() if number]
        if rdma:
            unused = sum(not port.up and port.down_for(now) is None for port in rdma)
            yield Sample(catalog.NODE_UNUSED_PORTS, (), unused)
        for key, port in ports.items():
            if (seconds := port.down_for(now)) is not None:
                yield Sample(catalog.PORT_DOWN, key, seconds)
            elif key[1] and (seconds := port.never_up_for(now)) is not None:
                yield Sample(catalog.PORT_NEVER_UP, key, seconds)
            if (ratio := _share_of_speed(key, ports, speeds, now)) < 1:
                yield Sample(catalog.PORT_SPEED, key, ratio)
            for kind, count in port.errors(now):
                yield Sample(catalog.PORT_ERRORS, (*key, kind), count)
            if (rate := port.corrupted(now)) * HOUR_SECONDS > PORT_ERRORS_PER_HOUR:
                yield Sample(catalog.PORT_ERROR_RATE, key, rate)


def _share_of_speed(key: _Key, ports: Mapping[_Key, _Port], speeds: Mapping[_Key, float], now: float) -> float:
    """Return what is left of a port's speed: of its best in a day, or of the same port of the node's equal boards."""
    speed, port = speeds.get(key), ports[key]
    if speed is None:
        return 1.0
    equals = [
        other for (device, number), other in speeds.items()
        if port.board and number == key[1] and ports[device, number].board == port.board
    ]  # fmt: skip
    return speed / max(port.best(now) or speed, median(equals) if equals else speed)
